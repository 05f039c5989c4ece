//! Warm local reads through the API against plain reads of the same frames as files, and several
//! readers against one.

use crate::cost::{Cost, Meter};
use crate::measure::{Row, Spread, interleave, rate, seconds, speed_ratios};
use crate::reads::{files_of, read_plain, read_through};
use crate::rig::{Daemon, Folder, dataset};
use std::path::PathBuf;
use zazen_client::Dataset;
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// (name, bytes of a frame, frames): about half a gigabyte each.
pub(crate) const SIZES: [(&str, usize, u64); 4] =
    [("64 KB", 64 << 10, 8192), ("430 KB", 430_000, 1200), ("2 MB", 2 << 20, 256), ("64 MB", 64 << 20, 8)];

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
        // The same bytes on the same disk, each frame a file: the cache packs small frames.
        let files = files_of(&source)?;
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
        // The four are open as the one is, with buffers.
        let share = |reader: u64| all.block(reader * count / READERS, count / READERS);
        let mut four = Vec::new();
        for reader in 0..READERS {
            let mut opened = daemon.open(&source)?;
            read_through(&mut opened, &share(reader))?;
            four.push((opened, share(reader)));
        }
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
            let mut several = || {
                prepare();
                seconds(|| {
                    std::thread::scope(|scope| {
                        let read =
                            |(opened, share): (&mut Dataset, &RunSet)| read_through(opened, share).map(drop);
                        let workers: Vec<_> = four
                            .iter_mut()
                            .map(|(opened, share)| scope.spawn(move || read((opened, share))))
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
            let (ours, peer) = interleave(repeats, &mut several, single)?;
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
            if !cold {
                rows.push(against_bare(repeats, (name, total), &files_of(&source)?, &mut several)?);
            }
        }
    }
    Ok(rows)
}

/// Four readers against four threads that do nothing but copy the same frames from the page cache:
/// what memory and the processor's caches allow four of.
fn against_bare(
    repeats: usize,
    (name, total): (&str, u64),
    files: &[PathBuf],
    several: &mut dyn FnMut() -> Result<f64>,
) -> Result<Row> {
    let (ours, bare) = interleave(repeats, several, || seconds(|| read_plain(files, 4)))?;
    let note = format!("ours {:.0} MB/s, bare {:.0} MB/s", rate(total, &ours), rate(total, &bare));
    Ok(Row {
        name: format!("4 readers of a node / 4 bare copiers, {name}, warm"),
        value: speed_ratios(&ours, &bare),
        unit: "ratio",
        goal: ">= 0.95",
        note,
    })
}

/// A row that could not be measured here, and why.
pub(crate) fn skipped(name: &str, why: &str) -> Row {
    let value = Spread::of(&[]);
    Row { name: name.to_owned(), value, unit: "-", goal: "-", note: format!("skipped: {why}") }
}
