//! Warm local reads through the API against plain reads of the same files, and several readers
//! against one.

use crate::cost::{Cost, Meter};
use crate::measure::{Row, Spread, interleave, rate, seconds, speed_ratios};
use crate::rig::{Daemon, Folder, dataset};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zazen_client::{Dataset, ReadOptions};
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// (name, bytes of a frame, frames): about half a gigabyte each.
pub(crate) const SIZES: [(&str, usize, u64); 4] =
    [("64 KB", 64 << 10, 8192), ("430 KB", 430_000, 1200), ("2 MB", 2 << 20, 256), ("64 MB", 64 << 20, 8)];

/// Reads `set` through the API; every frame is touched. Returns (frames, bytes).
pub(crate) fn read_through(dataset: &mut Dataset, set: &RunSet) -> Result<(u64, u64)> {
    read_with(dataset, set, &ReadOptions::default())
}

/// The same with `options`.
pub(crate) fn read_with(dataset: &mut Dataset, set: &RunSet, options: &ReadOptions) -> Result<(u64, u64)> {
    let (mut frames, mut bytes, mut sum) = (0, 0, 0u64);
    for frame in dataset.frames(set.clone(), options)? {
        let frame = frame?;
        sum = sum.wrapping_add(u64::from(frame.bytes()[0]));
        frames += 1;
        bytes += frame.bytes().len() as u64;
    }
    std::hint::black_box(sum);
    if frames != set.len() {
        return Err(Error::new(ErrorKind::Io, format!("read {frames} of {} frames", set.len())));
    }
    Ok((frames, bytes))
}

/// Reads whole files one after another into one buffer, on each of `threads` threads.
pub(crate) fn read_plain(files: &[PathBuf], threads: usize) -> Result<()> {
    let share = files.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = files
            .chunks(share.max(1))
            .map(|part| {
                scope.spawn(move || -> Result<()> {
                    let mut buffer = Vec::new();
                    for path in part {
                        read_one(path, &mut buffer)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| Error::new(ErrorKind::Io, "a plain reader panicked"))?
        })
    })
}

fn read_one(path: &Path, buffer: &mut Vec<u8>) -> Result<()> {
    let fail = |error| Error::io(format!("read {}", path.display()), error);
    let file = File::open(path).map_err(fail)?;
    let length = file.metadata().map_err(fail)?.len() as usize;
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    file.read_exact_at(&mut buffer[..length], 0).map_err(fail)?;
    std::hint::black_box(buffer[0]);
    Ok(())
}

/// The cached files of a dataset of one series, in name order.
pub(crate) fn cached_files(daemon: &Daemon, name: &str) -> Result<Vec<PathBuf>> {
    let folder = daemon.cache.join(name);
    let entries =
        std::fs::read_dir(&folder).map_err(|error| Error::io(format!("list {}", folder.display()), error))?;
    let is_series =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".zazen@"));
    let series = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_series);
    let files = files_of(&series.unwrap_or_else(|| folder.clone()))?;
    if files.is_empty() {
        // A peer that reads nothing would be infinitely fast.
        return Err(Error::new(ErrorKind::NotFound, format!("no cached files beneath {}", folder.display())));
    }
    Ok(files)
}

/// The files of a folder, in name order.
pub(crate) fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| Error::io(format!("list {}", folder.display()), error))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

pub(crate) fn warm(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, bytes, count) in SIZES {
        let place = folder.fresh("warm")?;
        let backing = place.join("backing");
        let source = dataset(&backing, "sim", count, bytes)?;
        let daemon = Daemon::start(&place, &backing)?;
        let mut opened = daemon.open(&source)?;
        let set = RunSet::range(0, count - 1);
        read_through(&mut opened, &set)?; // misses: now everything is cached
        let files = cached_files(&daemon, "sim")?;
        let total = bytes as u64 * count;
        let meter = Meter::of(&daemon, total);
        let mut best = (f64::MAX, 1);
        for threads in [1, 2, 4] {
            read_plain(&files, threads)?;
            let time = seconds(|| read_plain(&files, threads))?;
            if time < best.0 {
                best = (time, threads);
            }
        }
        // What an analysis does without Zazen (one file after another), and the best rate of
        // several threads.
        for (peer, threads, goal) in [("plain loop", 1, ">= 0.97"), ("plain, best of threads", best.1, "-")] {
            let mut costs = Vec::new();
            let (ours, plain) = interleave(
                repeats,
                || {
                    let (time, cost) = meter.measure(|| read_through(&mut opened, &set).map(drop))?;
                    costs.push(cost);
                    Ok(time)
                },
                || seconds(|| read_plain(&files, threads)),
            )?;
            let note = format!(
                "ours {:.0} MB/s, {}; plain {:.0} MB/s with {threads} thread(s)",
                rate(total, &ours),
                Cost::median(&costs),
                rate(total, &plain)
            );
            let value = speed_ratios(&ours, &plain);
            rows.push(Row { name: format!("warm read, {name} / {peer}"), value, unit: "ratio", goal, note });
        }
    }
    Ok(rows)
}

/// Four readers of one node, a quarter of the frames each, against one reader of all.
pub(crate) fn readers(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    const READERS: u64 = 4;
    let mut rows = Vec::new();
    for (name, bytes, count) in [SIZES[1], SIZES[2]] {
        let place = folder.fresh("readers")?;
        let backing = place.join("backing");
        let source = dataset(&backing, "sim", count, bytes)?;
        let daemon = Daemon::start(&place, &backing)?;
        let all = RunSet::range(0, count - 1);
        let mut one = daemon.open(&source)?;
        read_through(&mut one, &all)?;
        for cold in [false, true] {
            if cold && !crate::rig::drop_caches() {
                rows.push(skipped(
                    &format!("4 readers / 1, {name}, cold"),
                    "needs root to drop the page cache",
                ));
                continue;
            }
            let prepare = || {
                if cold {
                    crate::rig::drop_caches();
                }
            };
            let several = || {
                prepare();
                seconds(|| {
                    std::thread::scope(|scope| {
                        let workers: Vec<_> = (0..READERS)
                            .map(|reader| {
                                let (daemon, source) = (&daemon, &source);
                                let share = all.block(reader * count / READERS, count / READERS);
                                scope.spawn(move || read_through(&mut daemon.open(source)?, &share).map(drop))
                            })
                            .collect();
                        workers.into_iter().try_for_each(|worker| {
                            worker.join().map_err(|_| Error::new(ErrorKind::Io, "a reader panicked"))?
                        })
                    })
                })
            };
            let single = || {
                prepare();
                seconds(|| read_through(&mut one, &all).map(drop))
            };
            let (ours, peer) = interleave(repeats, several, single)?;
            let total = bytes as u64 * count;
            let note = format!("four {:.0} MB/s, one {:.0} MB/s", rate(total, &ours), rate(total, &peer));
            let kind = if cold { "cold" } else { "warm" };
            let value = speed_ratios(&ours, &peer);
            rows.push(Row {
                name: format!("4 readers of a node / 1, {name}, {kind}"),
                value,
                unit: "ratio",
                goal: ">= 0.95",
                note,
            });
        }
    }
    Ok(rows)
}

/// A row that could not be measured here, and why.
pub(crate) fn skipped(name: &str, why: &str) -> Row {
    let value = Spread::of(&[]);
    Row { name: name.to_owned(), value, unit: "-", goal: "-", note: format!("skipped: {why}") }
}
