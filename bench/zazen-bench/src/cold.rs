//! Cold reads through the API against fio's best on the same disk and the same files.

use crate::cost::{Cost, Meter};
use crate::measure::{Row, interleave, rate, seconds, speed_ratios};
use crate::reads::{files_of, read_plain, read_through};
use crate::rig::{Daemon, Folder, dataset, drop_caches};
use crate::warm::{SIZES, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// One way for fio to read a large file, sequentially or several blocks at once.
const FIO_WAYS: [&[&str]; 6] = [
    &["--ioengine=io_uring", "--iodepth=16", "--direct=1", "--bs=1M"],
    &["--ioengine=io_uring", "--iodepth=32", "--direct=1", "--bs=512k"],
    &["--ioengine=psync", "--numjobs=4", "--direct=1", "--bs=1M", "--offset_increment=25%", "--size=25%"],
    &["--ioengine=psync", "--numjobs=8", "--direct=1", "--bs=1M", "--offset_increment=12%", "--size=12%"],
    &["--ioengine=psync", "--bs=1M"],
    &["--ioengine=psync", "--numjobs=4", "--bs=1M", "--offset_increment=25%", "--size=25%"],
];

pub(crate) fn cold(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    if Command::new("fio").arg("--version").output().is_err() {
        return Ok(vec![skipped("cold read / fio", "fio is not installed (Debian: apt-get install -y fio)")]);
    }
    if !drop_caches() {
        return Ok(vec![skipped("cold read / fio", "needs root to drop the page cache")]);
    }
    let mut rows = Vec::new();
    for (name, bytes, count) in SIZES {
        let place = folder.fresh("cold")?;
        let backing = place.join("backing");
        let source = dataset(&backing, "sim", count, bytes)?;
        let total = bytes as u64 * count;
        let large = large_file(&place, total)?;
        let daemon = Daemon::start(&place, &backing)?;
        let mut opened = daemon.open(&source)?;
        let set = RunSet::range(0, count - 1);
        read_through(&mut opened, &set)?;
        // The sources are compared by stat alone, so their pages are dropped too.
        let mut best = (f64::MAX, 0);
        for way in 0..FIO_WAYS.len() {
            let time = fio(&large, way)?;
            if time < best.0 {
                best = (time, way);
            }
        }
        let (meter, mut costs) = (Meter::of(&daemon, total), Vec::new());
        let (ours, peer) = interleave(
            repeats,
            || {
                drop_caches();
                let (time, cost) = meter.measure(|| read_through(&mut opened, &set).map(drop))?;
                costs.push(cost);
                Ok(time)
            },
            || fio(&large, best.1),
        )?;
        let note = format!(
            "ours {:.0} MB/s, {}; fio {:.0} MB/s on one file of the same size ({})",
            rate(total, &ours),
            Cost::median(&costs),
            rate(total, &peer),
            FIO_WAYS[best.1].join(" ")
        );
        let goal = if bytes >= 430_000 { ">= 0.95" } else { "-" };
        let value = speed_ratios(&ours, &peer);
        rows.push(Row {
            name: format!("cold read, {name} frames / fio's best"),
            value,
            unit: "ratio",
            goal,
            note,
        });
        if bytes >= 430_000 {
            rows.push(bare_files(repeats, (name, total), &files_of(&source)?, (&large, best.1))?);
        }
    }
    Ok(rows)
}

/// What files of this size allow: plain reads of the same frames as files, with the best number of
/// threads, against fio on one file.
fn bare_files(
    repeats: usize,
    (name, total): (&str, u64),
    files: &[PathBuf],
    (large, way): (&Path, usize),
) -> Result<Row> {
    let plain = |threads: usize| {
        drop_caches();
        seconds(|| read_plain(files, threads))
    };
    let mut best = (f64::MAX, 1);
    for threads in [4, 8, 16] {
        let time = plain(threads)?;
        if time < best.0 {
            best = (time, threads);
        }
    }
    let (times, peer) = interleave(repeats, || plain(best.1), || fio(large, way))?;
    let note = format!(
        "plain reads {:.0} MB/s with {} threads, fio {:.0} MB/s; no Zazen",
        rate(total, &times),
        best.1,
        rate(total, &peer)
    );
    Ok(Row {
        name: format!("bare cold reads of {name} files / fio's best"),
        value: speed_ratios(&times, &peer),
        unit: "ratio",
        goal: "-",
        note,
    })
}

pub(crate) fn large_file(place: &Path, bytes: u64) -> Result<PathBuf> {
    let path = place.join("large");
    let fail = |error| Error::io(format!("write {}", path.display()), error);
    let mut file = std::fs::File::create(&path).map_err(fail)?;
    let block = crate::rig::noise(4 << 20);
    let mut left = bytes;
    while left > 0 {
        let part = left.min(block.len() as u64);
        std::io::Write::write_all(&mut file, &block[..part as usize]).map_err(fail)?;
        left -= part;
    }
    file.sync_all().map_err(fail)?;
    Ok(path)
}

/// Seconds that fio reports for reading the file once, cold.
fn fio(file: &Path, way: usize) -> Result<f64> {
    drop_caches();
    let output = Command::new("fio")
        .args(["--name=peer", "--rw=read", "--readonly", "--output-format=json", "--group_reporting"])
        .arg(format!("--filename={}", file.display()))
        .args(FIO_WAYS[way])
        .output()
        .map_err(|error| Error::io("run fio", error))?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::new(ErrorKind::Io, format!("fio's answer: {error}")))?;
    let read = &told["jobs"][0]["read"];
    match (read["io_bytes"].as_f64(), read["bw_bytes"].as_f64()) {
        (Some(bytes), Some(rate)) if rate > 0.0 => Ok(bytes / rate),
        _ => Err(Error::new(
            ErrorKind::Io,
            format!("fio read nothing: {}", String::from_utf8_lossy(&output.stderr)),
        )),
    }
}
