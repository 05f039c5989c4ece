//! Values of the kernel's requests, as the tree has them, and back.

use crate::tree::{Errno, How, InodeStat, Kind, Name, Result, When};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes that `stat` shows as the best size of a read or write.
const BLOCK_BYTES: u32 = 128 << 10;
/// Set user id, set group id.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The error number as fuser has it.
pub(crate) fn error(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno as i32)
}

pub(crate) fn name_of(name: &OsStr) -> Result<Name> {
    Name::new(name.as_bytes())
}

pub(crate) fn time_of(ns: i64) -> SystemTime {
    let (seconds, nanos) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) as u32);
    let nanos = Duration::from_nanos(u64::from(nanos));
    let at = match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH.checked_add(Duration::from_secs(after)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs())),
    };
    at.and_then(|at| at.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Nanoseconds since the epoch; times beyond the years 1677 to 2262 are cut to those.
pub(crate) fn ns_of(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN + 1, |ns| -ns),
    }
}

pub(crate) fn when(time: Option<TimeOrNow>) -> Option<When> {
    time.map(|time| match time {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(at) => When::At(ns_of(at)),
    })
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Fifo => FileType::NamedPipe,
        Kind::CharDevice => FileType::CharDevice,
        Kind::Directory => FileType::Directory,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::File => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
        Kind::Socket => FileType::Socket,
    }
}

pub(crate) fn attr(stat: &InodeStat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.node),
        size: stat.bytes,
        blocks: stat.blocks,
        atime: time_of(stat.accessed_ns),
        mtime: time_of(stat.modified_ns),
        ctime: time_of(stat.changed_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.kind),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

pub(crate) fn how(flags: i32) -> How {
    let access = flags & libc::O_ACCMODE;
    How {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
    }
}

/// The mode without the set-id bits that a write takes away; `None` if it has none.
pub(crate) fn without_set_id(mode: u32) -> Option<u32> {
    let mut kept = mode & !SET_UID;
    if mode & 0o010 != 0 {
        kept &= !SET_GID;
    }
    (kept != mode).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_also_from_before_the_epoch() {
        for ns in [0, 1, -1, 999_999_999, -1_000_000_000, -1_500_000_001, 1_800_000_000_123_456_789] {
            assert_eq!(ns_of(time_of(ns)), ns);
        }
    }

    #[test]
    fn a_write_takes_the_bits_that_linux_takes() {
        let check = |mode, expected| assert_eq!(without_set_id(mode), expected, "{mode:o}");
        check(0o4755, Some(0o755));
        check(0o6777, Some(0o777));
        check(0o2745, None); // Without the group's x it is no set-id bit.
        check(0o2755, Some(0o755));
        check(0o1777, None);
    }

    #[test]
    fn open_flags_say_what_is_wanted() {
        let flags = libc::O_RDWR | libc::O_APPEND | libc::O_TRUNC;
        let expected = How { read: true, write: true, append: true, truncate: true, exclusive: false };
        assert_eq!(how(flags), expected);
        assert_eq!(
            how(libc::O_WRONLY | libc::O_EXCL),
            How { write: true, exclusive: true, ..How::default() }
        );
    }
}
