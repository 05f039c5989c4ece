//! The user's folder of scan records: where a record goes if no daemon takes it.
//!
//! Invariants: files of one user in a folder that only this user may enter; what another user put
//! there is not read. The folder is bounded in files and bytes, and the oldest go first.

use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::scan_record::{RECORD_BYTES_MAX, ScanRecord};
use zazen_wire::Message;

/// Files in the folder.
const FILES_MAX: usize = 1024;
/// Bytes in the folder.
const BYTES_MAX: u64 = 8 << 20;
/// How a file begins.
const MAGIC: &[u8] = b"zazen scan 1\n";
const SUFFIX: &str = ".scan";

/// The folder: `zazen/scans` in `$XDG_STATE_HOME`, else in `~/.local/state`. `None` without a home.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("zazen/scans"))
}

/// Keeps `record` as a new file.
pub(crate) fn write(record: &ScanRecord) -> Result<()> {
    let folder = folder().ok_or_else(|| Error::new(ErrorKind::Config, "no $HOME for the scan's record"))?;
    write_to(&folder, record)
}

fn write_to(folder: &Path, record: &ScanRecord) -> Result<()> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let within = |error| Error::io(format!("scan record in {}", folder.display()), error);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(within)?;
    let bytes = record.encode();
    make_room(folder, bytes.len() as u64);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    // Names sort by age.
    let name = format!("{:014}-{}-{}-{serial}{SUFFIX}", record.began_ms, record.host, record.pid);
    let temporary = folder.join(format!(".{name}"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary).map_err(within)?;
    let written = file.write_all(MAGIC).and_then(|()| file.write_all(&bytes));
    let kept = written.and_then(|()| std::fs::rename(&temporary, folder.join(name)));
    kept.map_err(|error| {
        // It is of no use.
        let _ = std::fs::remove_file(&temporary);
        within(error)
    })
}

/// The folder's files: name and bytes, the oldest first.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(listed) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = listed
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(SUFFIX))
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect();
    files.sort();
    files
}

fn make_room(folder: &Path, wanted: u64) {
    let files = files(folder);
    let (mut count, mut bytes) = (files.len(), files.iter().map(|(_, bytes)| bytes).sum::<u64>());
    for (path, length) in files {
        if count < FILES_MAX && bytes + wanted <= BYTES_MAX {
            return;
        }
        // Another process may have removed it.
        let _ = std::fs::remove_file(path);
        (count, bytes) = (count - 1, bytes - length);
    }
}

/// The records of this user, the latest first. Files that are not this user's, or are damaged, are
/// left out.
pub fn read() -> Vec<ScanRecord> {
    folder().map_or_else(Vec::new, |folder| read_from(&folder))
}

fn read_from(folder: &Path) -> Vec<ScanRecord> {
    files(folder).iter().rev().filter_map(|(path, _)| read_one(path)).collect()
}

fn read_one(path: &Path) -> Option<ScanRecord> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take((RECORD_BYTES_MAX + MAGIC.len()) as u64 + 1).read_to_end(&mut bytes).ok()?;
    ScanRecord::decode(bytes.strip_prefix(MAGIC)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_frames::scan_record::Part;

    fn record(rank: u32, began_ms: u64) -> ScanRecord {
        ScanRecord {
            dataset: "/d".into(),
            series: String::new(),
            node: String::new(),
            node_id: 1,
            host: "h".into(),
            job: String::new(),
            pid: 1,
            rank,
            ranks: 4,
            assigned: true,
            whole: true,
            began_ms,
            wall_ns: 9,
            spent_ns: vec![1; Part::ALL.len()],
            near_frames: 1,
            near_bytes: 1,
            far_frames: 0,
            far_bytes: 0,
            failed_frames: 0,
            store_rate: 0,
            store_rate_best: 0,
            absent: Vec::new(),
        }
    }

    #[test]
    fn records_come_back_latest_first_and_damage_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("scans");
        (0..3).for_each(|rank| write_to(&folder, &record(rank, 100 + u64::from(rank))).unwrap());
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        std::fs::write(folder.join("99999999999999-x.scan"), b"zazen scan 1\ngarbage").unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join("99999999999998-x.scan")).unwrap();
        let ranks: Vec<u32> = read_from(&folder).iter().map(|record| record.rank).collect();
        assert_eq!(ranks, [2, 1, 0]);
    }

    #[test]
    fn the_folder_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        for at in 0..FILES_MAX + 3 {
            std::fs::write(home.path().join(format!("{at:014}-x.scan")), b"x").unwrap();
        }
        write_to(home.path(), &record(7, 99_999)).unwrap();
        let kept = files(home.path());
        assert_eq!(kept.len(), FILES_MAX);
        assert!(!home.path().join("00000000000000-x.scan").exists());
        assert_eq!(read_from(home.path())[0].rank, 7);
    }
}
