//! The user's folder of scan records: where a record goes if no daemon takes it.
//!
//! Invariants: files of one user in a folder that only this user may enter; what another user put
//! there is not read. The folder is opened once and checked, and all else goes from there. Root
//! goes through no link or folder of another user. The folder is bounded in files and bytes, and
//! the oldest go first.

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
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
    let within = |error: io::Error| Error::io(format!("scan record in {}", folder.display()), error);
    let folder = open(folder, true).map_err(within)?;
    let bytes = record.encode();
    make_room(&folder, bytes.len() as u64);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    // Names sort by age.
    let host = record.host.replace('/', "_");
    let name = format!("{:014}-{host}-{}-{serial}{SUFFIX}", record.began_ms, record.pid);
    let temporary = format!(".{name}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = fs::openat(&folder, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(made.map_err(|error| within(error.into()))?);
    let written = file.write_all(MAGIC).and_then(|()| file.write_all(&bytes));
    let kept = written.and_then(|()| Ok(fs::renameat(&folder, temporary.as_str(), &folder, name.as_str())?));
    kept.map_err(|error| {
        // It is of no use.
        let _ = fs::unlinkat(&folder, temporary.as_str(), AtFlags::empty());
        within(error)
    })
}

/// Opens the folder, which `create` makes if it is missing.
///
/// It must be this user's own and no link, and no other may write in it. Root also follows no path
/// that another user could have laid: with another user's `$HOME`, root leaves no record.
fn open(folder: &Path, create: bool) -> io::Result<OwnedFd> {
    let refuse = |text: String| io::Error::new(io::ErrorKind::PermissionDenied, text);
    let own = rustix::process::geteuid().as_raw();
    let check = |part: &Path, owner: u32| match own == 0 && owner != 0 {
        true => Err(refuse(format!("{} belongs to user {owner}", part.display()))),
        false => Ok(()),
    };
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = fs::open("/", path, Mode::empty())?;
    let parts: Vec<_> = folder.components().filter(|part| *part != Component::RootDir).collect();
    for (index, part) in parts.iter().enumerate() {
        let part: &Path = part.as_ref();
        let look = || fs::statat(&at, part, AtFlags::SYMLINK_NOFOLLOW);
        let found = match look() {
            Err(Errno::NOENT) if create => {
                match fs::mkdirat(&at, part, Mode::RWXU) {
                    // Another process was faster.
                    Ok(()) | Err(Errno::EXIST) => look()?,
                    Err(error) => return Err(error.into()),
                }
            }
            found => found?,
        };
        check(part, found.st_uid)?;
        let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
        let flags = match index + 1 == parts.len() {
            true => OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            false if is_link => path,
            false => path | OFlags::NOFOLLOW,
        };
        at = fs::openat(&at, part, flags, Mode::empty())?;
        check(part, fs::fstat(&at)?.st_uid)?;
    }
    let found = fs::fstat(&at)?;
    if found.st_uid != own || found.st_mode & 0o022 != 0 {
        return Err(refuse(format!("it is of user {}, mode {:o}", found.st_uid, found.st_mode & 0o7777)));
    }
    Ok(at)
}

/// The folder's files: name and bytes, the oldest first.
fn files(folder: &OwnedFd) -> Vec<(CString, u64)> {
    let Ok(listed) = fs::Dir::read_from(folder) else { return Vec::new() };
    let mut files: Vec<_> = listed
        .flatten()
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| name.to_bytes().ends_with(SUFFIX.as_bytes()))
        .filter_map(|name| {
            let found = fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((name, found.st_size as u64))
        })
        .collect();
    files.sort();
    files
}

fn make_room(folder: &OwnedFd, wanted: u64) {
    let files = files(folder);
    let (mut count, mut bytes) = (files.len(), files.iter().map(|(_, bytes)| bytes).sum::<u64>());
    for (name, length) in files {
        if count < FILES_MAX && bytes + wanted <= BYTES_MAX {
            return;
        }
        // Another process may have removed it.
        let _ = fs::unlinkat(folder, &name, AtFlags::empty());
        (count, bytes) = (count - 1, bytes - length);
    }
}

/// The records of this user, the latest first. Files that are not this user's, or are damaged, are
/// left out.
pub fn read() -> Vec<ScanRecord> {
    folder().map_or_else(Vec::new, |folder| read_from(&folder))
}

fn read_from(folder: &Path) -> Vec<ScanRecord> {
    let Ok(folder) = open(folder, false) else { return Vec::new() };
    files(&folder).iter().rev().filter_map(|(name, _)| read_one(&folder, name)).collect()
}

fn read_one(folder: &OwnedFd, name: &CStr) -> Option<ScanRecord> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(fs::openat(folder, name, flags, Mode::empty()).ok()?);
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
    use std::os::unix::fs::PermissionsExt;
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
        let kept = files(&open(home.path(), false).unwrap());
        assert_eq!(kept.len(), FILES_MAX);
        assert!(!home.path().join("00000000000000-x.scan").exists());
        assert_eq!(read_from(home.path())[0].rank, 7);
    }
    #[test]
    fn a_folder_that_another_user_could_have_laid_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (victim, planted) = (home.path().join("victim"), home.path().join("planted"));
        std::fs::create_dir(&victim).unwrap();
        std::fs::write(victim.join("old.scan"), vec![0; 9 << 20]).unwrap();
        let is_untouched = || std::fs::read_dir(&victim).unwrap().count() == 1;
        let refused = |folder: &Path| {
            assert!(write_to(folder, &record(0, 1)).is_err(), "{}", folder.display());
            assert!(read_from(folder).is_empty() && is_untouched());
        };
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        refused(&planted);
        let open_to_all = home.path().join("open");
        write_to(&open_to_all, &record(0, 1)).unwrap();
        std::fs::set_permissions(&open_to_all, std::fs::Permissions::from_mode(0o777)).unwrap();
        refused(&open_to_all);
        if rustix::process::geteuid().is_root() {
            // A user's home, and a link of theirs on the way.
            let theirs = home.path().join("theirs");
            std::fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::symlink(home.path(), theirs.join("state")).unwrap();
            std::os::unix::fs::chown(&theirs, Some(12345), None).unwrap();
            refused(&theirs.join("state/victim"));
            refused(&theirs.join("new"));
            assert!(!theirs.join("new").exists());
            let link = home.path().join("link");
            std::os::unix::fs::symlink(home.path(), &link).unwrap();
            std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
            refused(&link.join("victim"));
        }
    }
}
