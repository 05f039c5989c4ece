//! Turns the kernel's answer about a source into a [`SourceStat`].
//!
//! Inode numbers count only on file systems that keep them. A FUSE server may change a file's
//! number at any time.

use crate::SourceStat;
use rustix::fs::{AtFlags, FileType};
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_core::{Error, Result, Validator};

/// The most file systems that are remembered. Beyond this, all are forgotten.
const DEVICES_MAX: usize = 1024;

/// This machine's clock. Read it before the source is looked at; the source's age counts from
/// there.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The meaning of `stat`, if the clock was `now_ns` before the call.
pub(crate) fn source_stat(stat: &rustix::fs::Stat, now_ns: i64) -> SourceStat {
    let time =
        |seconds: i64, nanoseconds: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
    let mtime_ns = time(stat.st_mtime, stat.st_mtime_nsec as i64);
    let ctime_ns = time(stat.st_ctime, stat.st_ctime_nsec as i64);
    let inode = if has_lasting_inodes(stat.st_dev) { stat.st_ino } else { 0 };
    SourceStat {
        validator: Validator::seen(stat.st_size as u64, mtime_ns, ctime_ns, inode, now_ns),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        is_dir: FileType::from_raw_mode(stat.st_mode).is_dir(),
    }
}

/// What a local path looks like, in the form that a backing store gives. For writers that record a
/// source's validator.
pub fn stat_local(path: &Path) -> Result<SourceStat> {
    let now = now_ns();
    rustix::fs::stat(path)
        .map(|stat| source_stat(&stat, now))
        .map_err(|errno| Error::io(path.display().to_string(), errno.into()))
}

/// What the name `path` leads to, if that is a file and no link; `None` otherwise.
pub fn stat_name(path: &str) -> Option<SourceStat> {
    let now = now_ns();
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statat(rustix::fs::CWD, path, flags).ok()?;
    FileType::from_raw_mode(stat.st_mode).is_file().then(|| source_stat(&stat, now))
}

/// As [`stat_local`], of an open file.
pub fn stat_file(file: &impl std::os::fd::AsFd) -> std::io::Result<SourceStat> {
    let now = now_ns();
    Ok(source_stat(&rustix::fs::fstat(file)?, now))
}

/// Whether files on the file system with this device number keep their inode numbers.
fn has_lasting_inodes(device: u64) -> bool {
    thread_local! {
        /// The last device, and the answer: most sources are on one.
        static LAST: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    }
    match LAST.get() {
        Some((last, lasting)) if last == device => lasting,
        _ => {
            let lasting = look_up_lasting_inodes(device);
            LAST.set(Some((device, lasting)));
            lasting
        }
    }
}

fn look_up_lasting_inodes(device: u64) -> bool {
    static KNOWN: OnceLock<RwLock<HashMap<u64, bool>>> = OnceLock::new();
    let known = KNOWN.get_or_init(RwLock::default);
    if let Some(lasting) = known.read().unwrap_or_else(PoisonError::into_inner).get(&device) {
        return *lasting;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // A device that is not mounted is a subvolume of a mounted one. FUSE has no subvolumes.
    let lasting = !is_fuse(&mounts, device);
    let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= DEVICES_MAX {
        known.clear();
    }
    known.insert(device, lasting);
    lasting
}

/// Whether `mountinfo` says that `device` is a FUSE file system. A line is
/// `36 35 0:41 / /mnt rw - fuse.x x rw`, with optional fields before the dash.
fn is_fuse(mountinfo: &str, device: u64) -> bool {
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mountinfo.lines().any(|line| {
        let ours = line.split(' ').nth(2) == Some(&numbers);
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
        ours && (kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_is_told_by_the_mounts() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      36 22 0:41 / /mnt/a rw,nosuid shared:9 master:1 - fuse.sshfs host:/x rw\n\
                      37 22 8:17 / /mnt/b rw - fuseblk /dev/sdb1 rw\n\
                      38 22 0:50 / /mnt/c rw - fusectl fusectl rw\n";
        let check = |major, minor, expected| {
            assert_eq!(is_fuse(mounts, rustix::fs::makedev(major, minor)), expected, "{major}:{minor}");
        };
        check(8, 1, false);
        check(0, 41, true);
        check(8, 17, true);
        check(0, 50, false);
        check(9, 9, false);
    }

    #[test]
    fn a_name_is_looked_at_and_no_link_followed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "123").unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let look = |name: &str| stat_name(folder.path().join(name).to_str().unwrap());
        let found = look("a").unwrap();
        assert_eq!(found.validator.size, 3);
        assert!(found.validator.looks_like(&stat_local(&file).unwrap().validator));
        for other in ["link", "none", ""] {
            assert!(look(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_new_file_is_not_settled() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = rustix::fs::fstat(file.as_file()).unwrap();
        let seen = source_stat(&stat, now_ns());
        assert!(seen.validator.unsettled && seen.validator.ctime_ns > 0);
        let later = source_stat(&stat, now_ns() + 3_000_000_000);
        assert!(!later.validator.unsettled && later.validator.agrees_with(&seen.validator));
    }
}
