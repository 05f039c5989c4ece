//! Small frames, cold: against one sequential file of the same bytes, and against the same frames
//! as plain files.
//!
//! The cache packs frames of up to 128 KiB. The daemon compares each frame with its source, unless
//! `validate = "never"`. For sources of 4 KB the comparison is the larger part of the work, so both
//! cases are printed. Beside them stands the bound that the kernel sets: the system calls that look
//! at each source, and one sequential read of the same bytes, without Zazen.

use crate::cost::{Cost, Side};
use crate::measure::{Row, interleave, rate, speed_ratios};
use crate::reads::{files_of, read_plain};
use crate::rig::{Daemon, Folder, dataset, drop_caches};
use crate::warm::skipped;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, Result, RunSet};

/// (name, bytes of a frame, frames)
const SIZES: [(&str, usize, u64); 2] = [("4 KB", 4096, 32_768), ("64 KB", 64 << 10, 4096)];
/// Threads of the plain reader: as many as Zazen's.
const THREADS: usize = 8;

pub(crate) fn small(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    if !drop_caches() {
        return Ok(vec![skipped("small frames, cold", "needs root to drop the page cache")]);
    }
    let mut rows = Vec::new();
    for (name, bytes, count) in SIZES {
        let place = folder.fresh("small")?;
        let backing = place.join("backing");
        let source = dataset(&backing, "sim", count, bytes)?;
        let total = bytes as u64 * count;
        let one = crate::cold::large_file(&place, total)?;
        for (validate, checked) in [("always", ""), ("never", ", sources not compared")] {
            let daemon = Daemon::start_with(&place.join(validate), &backing, &["--validate", validate])?;
            let mut ours = Side::new(&daemon, &source, (&RunSet::range(0, count - 1), total), true)?;
            ours.cold = true;
            let (times, sequential) =
                interleave(repeats, || ours.seconds(), || cold_seconds(|| read_sequentially(&one)))?;
            let note = format!(
                "ours {:.0} MB/s ({:.0} k frames/s), one file {:.0} MB/s; {}",
                rate(total, &times),
                rate(total, &times) * 1e3 / bytes as f64,
                rate(total, &sequential),
                Cost::median(&ours.costs)
            );
            rows.push(Row {
                name: format!("cold read, {name}{checked} / one file"),
                value: speed_ratios(&times, &sequential),
                unit: "ratio",
                goal: ">= 0.80",
                note,
            });
            if validate == "always" {
                rows.push(against_files(repeats, (name, total), &source, &mut ours)?);
                rows.extend(against_bare(repeats, (name, total), (&source, &one), &mut ours)?);
            }
        }
    }
    Ok(rows)
}

/// `ours` against the dataset's own files, read by as many threads.
fn against_files(repeats: usize, (name, total): (&str, u64), source: &Path, ours: &mut Side) -> Result<Row> {
    let files = files_of(source)?;
    let (times, plain) =
        interleave(repeats, || ours.seconds(), || cold_seconds(|| read_plain(&files, THREADS)))?;
    let note = format!(
        "ours {:.0} MB/s, {THREADS} threads over plain files {:.0} MB/s",
        rate(total, &times),
        rate(total, &plain)
    );
    let (name, value) = (format!("cold read, {name} / plain files"), speed_ratios(&times, &plain));
    Ok(Row { name, value, unit: "ratio", goal: "-", note })
}

/// `ours` against the least that comparing sources costs, and that against one file: what is the
/// most that a cache which compares each source can reach here.
fn against_bare(
    repeats: usize,
    (name, total): (&str, u64),
    (source, one): (&Path, &PathBuf),
    ours: &mut Side,
) -> Result<Vec<Row>> {
    let files = files_of(source)?;
    let bare = || cold_seconds(|| look_and_read(&files, one));
    let (times, floor) = interleave(repeats, || ours.seconds(), bare)?;
    let (again, sequential) = interleave(repeats, bare, || cold_seconds(|| read_sequentially(one)))?;
    let say = |what: &str, times: &[f64]| format!("{what} {:.0} MB/s", rate(total, times));
    Ok(vec![
        Row {
            name: format!("cold read, {name} / bare looks and one file"),
            value: speed_ratios(&times, &floor),
            unit: "ratio",
            goal: ">= 0.80",
            note: format!("{}, {}", say("ours", &times), say("bare", &floor)),
        },
        Row {
            name: format!("bare looks at {name} sources and one file / one file"),
            value: speed_ratios(&again, &sequential),
            unit: "ratio",
            goal: "-",
            note: format!(
                "{}, {}; {} system calls, no Zazen",
                say("bare", &again),
                say("one file", &sequential),
                files.len()
            ),
        },
    ])
}

/// Looks at each source once, on as many threads as Zazen's reader has, while one more reads a
/// file.
fn look_and_read(sources: &[PathBuf], one: &PathBuf) -> Result<()> {
    std::thread::scope(|scope| {
        let share = sources.len().div_ceil(THREADS).max(1);
        let looks: Vec<_> = sources
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().try_for_each(|path| look_at(path))))
            .collect();
        read_sequentially(one)?;
        looks.into_iter().try_for_each(|look| look.join().unwrap_or(Ok(())))
    })
}

fn look_at(path: &Path) -> Result<()> {
    std::fs::metadata(path).map(drop).map_err(|error| Error::io(format!("stat {}", path.display()), error))
}

fn cold_seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    drop_caches();
    crate::measure::seconds(work)
}

fn read_sequentially(path: &PathBuf) -> Result<()> {
    let fail = |error| Error::io(format!("read {}", path.display()), error);
    let file = File::open(path).map_err(fail)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at).map_err(fail)? {
            0 => return Ok(()),
            bytes => at += bytes as u64,
        }
    }
}
