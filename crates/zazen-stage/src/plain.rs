//! A file system of the kernel.
//!
//! Each path is walked from a descriptor of what the tree lies in, name by name, and never through
//! a symbolic link; owners, modes, times and attributes are set on descriptors. So nobody who may
//! write in the tree can lead a run of root's out of it.

use crate::side::{Kind, Meta, OpenFile, Side, above, link_error, names_beneath};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest value of an extended attribute on Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;
const NS: i64 = 1_000_000_000;

/// A file system of the kernel: whatever is mounted.
pub struct PlainSide {
    above: PathBuf,
    held: OwnedFd,
}

fn meta_of(stat: &rustix::fs::Stat) -> Meta {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Special,
    };
    let ns = |seconds: i64, ns| seconds.saturating_mul(NS).saturating_add(ns);
    Meta {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        bytes: stat.st_size as u64,
        accessed_ns: ns(stat.st_atime, stat.st_atime_nsec as i64),
        modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
        changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec as i64),
        links: stat.st_nlink,
        identity: (stat.st_dev, stat.st_ino),
        holder: None,
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) }
}

fn xattrs_of(file: impl AsFd) -> Result<Vec<(OsString, Vec<u8>)>> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(&file, &mut names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    let of_users = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found = Vec::new();
    for name in of_users {
        let name = OsStr::from_bytes(name);
        let mut value = vec![0; XATTR_BYTES_MAX];
        match rustix::fs::fgetxattr(&file, name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                found.push((name.to_owned(), value));
            }
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

fn times_of(meta: &Meta) -> Timestamps {
    Timestamps { last_access: timespec(meta.accessed_ns), last_modification: timespec(meta.modified_ns) }
}

fn set_meta_of(file: &File, meta: &Meta) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(file, Some(meta.uid), Some(meta.gid))?;
    }
    // After the owner, which takes the set-id bits away.
    rustix::fs::fchmod(file, Mode::from_raw_mode(meta.mode))?;
    Ok(rustix::fs::futimens(file, &times_of(meta))?)
}

/// Takes the lock; whether it was free.
fn try_lock(file: &File) -> std::result::Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn same_file(one: &File, other: &File) -> Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// An open file. A part is open twice: its lock and its times outlast the end of writing.
struct PlainFile {
    file: File,
    writer: Option<File>,
}

impl PlainFile {
    fn bytes(&self) -> &File {
        self.writer.as_ref().unwrap_or(&self.file)
    }
}

impl OpenFile for PlainFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match self.bytes().read_at(&mut into[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.bytes().write_all_at(bytes, offset)
    }

    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>> {
        if offset >= length {
            return Ok(None);
        }
        let start = match rustix::fs::seek(self.bytes(), SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // It knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some((offset, length))),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(self.bytes(), SeekFrom::Hole(start))?;
        Ok((start < length).then_some((start, end.min(length))))
    }

    fn length(&self) -> Result<u64> {
        Ok(self.bytes().metadata()?.len())
    }

    fn identity(&self) -> Result<(u64, u64)> {
        let meta = self.file.metadata()?;
        Ok((meta.dev(), meta.ino()))
    }

    fn set_length(&self, bytes: u64) -> Result<()> {
        self.bytes().set_len(bytes)
    }

    fn end_writing(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let fd = std::os::fd::IntoRawFd::into_raw_fd(writer);
        // SAFETY: the descriptor is this function's own, and nobody uses it afterwards.
        match unsafe { libc::close(fd) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    fn set_meta(&self, meta: &Meta) -> Result<()> {
        set_meta_of(&self.file, meta)
    }

    fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        xattrs_of(&self.file)
    }

    fn set_xattr(&self, name: &OsString, value: &[u8]) -> Result<()> {
        Ok(rustix::fs::fsetxattr(&self.file, name.as_os_str(), value, XattrFlags::empty())?)
    }
}

/// Times that a part is looked at again, after somebody removed or made it meanwhile.
const TRIES: usize = 16;

impl PlainSide {
    /// The tree at `root`, which need not be there yet; what it lies in must be. Links above the
    /// root are followed once, here.
    pub fn new(root: &Path) -> Result<PlainSide> {
        let above = above(root);
        let shown = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = rustix::fs::open(shown, flags, Mode::empty())?;
        Ok(PlainSide { above: above.to_path_buf(), held })
    }

    /// The directory that `path` is in, and the last name.
    fn place<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
        let mut names = names_beneath(&self.above, path)?;
        let last = names.pop().unwrap_or(OsStr::new("."));
        let mut at = self.held.try_clone()?;
        let mut shown = self.above.clone();
        for name in names {
            shown.push(name);
            at = directory(&at, name, OFlags::PATH, &shown)?;
        }
        Ok((at, last))
    }

    /// A directory of the tree, for reading.
    fn directory(&self, path: &Path) -> Result<OwnedFd> {
        let (at, name) = self.place(path)?;
        directory(&at, name, OFlags::RDONLY, path)
    }
}

/// Opens a directory, and not what a link leads to.
fn directory(at: &OwnedFd, name: &OsStr, how: OFlags, shown: &Path) -> Result<OwnedFd> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).map_err(|errno| match stat(at, name) {
        Ok(there) if matches!(errno, Errno::NOTDIR | Errno::LOOP) && there.kind == Kind::Symlink => {
            link_error(shown)
        }
        _ => errno.into(),
    })
}

/// `lstat` of a name in a directory.
fn stat(at: &OwnedFd, name: &OsStr) -> std::result::Result<Meta, Errno> {
    Ok(meta_of(&rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Opens a file, and not what a link leads to; never waits for a pipe.
fn open_file(at: &OwnedFd, name: &OsStr, how: OFlags) -> std::result::Result<File, Errno> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

/// Changes names in directories. Another run that has finished a directory may have taken away its
/// owner's right to write there: this run gives it back, and sets the last mode at its own end.
/// `above` is what the tree lies in: it is none of the tree's directories, and keeps its mode.
fn changing<T>(
    above: &OwnedFd,
    directories: &[&OwnedFd],
    mut change: impl FnMut() -> std::result::Result<T, Errno>,
) -> std::result::Result<T, Errno> {
    let own = rustix::process::geteuid();
    let outside = rustix::fs::fstat(above)?;
    for _ in 0..TRIES {
        match change() {
            Err(Errno::ACCESS) => {}
            done => return done,
        }
        for at in directories {
            let stat = rustix::fs::fstat(at)?;
            if stat.st_uid != own.as_raw() || (stat.st_dev, stat.st_ino) == (outside.st_dev, outside.st_ino) {
                return Err(Errno::ACCESS);
            }
            if stat.st_mode & 0o300 != 0o300 {
                let own_name = format!("/proc/self/fd/{}", at.as_raw_fd());
                rustix::fs::chmod(own_name, Mode::from_raw_mode(0o700))?;
            }
        }
    }
    change()
}

fn remove(above: &OwnedFd, at: &OwnedFd, name: &OsStr) -> Result<()> {
    match changing(above, &[at], || rustix::fs::unlinkat(at, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Side for PlainSide {
    fn meta(&self, path: &Path) -> Result<Option<Meta>> {
        let (at, name) = match self.place(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            place => place?,
        };
        match stat(&at, name) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let held = self.directory(path)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&held)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match stat(&held, name) {
                Ok(meta) => entries.push((name.to_owned(), meta)),
                // It went away meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(entries)
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let (at, name) = self.place(path)?;
        let target = rustix::fs::readlinkat(&at, name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let (at, name) = self.place(path)?;
        Ok(Box::new(PlainFile { file: open_file(&at, name, OFlags::RDONLY)?, writer: None }))
    }

    fn open_part(&self, path: &Path, owner: u32) -> Result<Option<Box<dyn OpenFile>>> {
        let (at, name) = self.place(path)?;
        let own = rustix::process::geteuid().as_raw();
        for _ in 0..TRIES {
            let mut file = match open_file(&at, name, OFlags::RDONLY) {
                Ok(file) => file,
                Err(Errno::NOENT) => {
                    let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                    match changing(&self.held, &[&at], || open_file(&at, name, how)) {
                        Ok(_) | Err(Errno::EXIST) => continue,
                        Err(errno) => return Err(errno.into()),
                    }
                }
                // A link, a socket, or another user's.
                Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => {
                    remove(&self.held, &at, name)?;
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            let there = file.metadata()?;
            if !there.is_file() || there.nlink() != 1 || there.uid() != own {
                if there.nlink() == 0 {
                    continue;
                }
                let may_be_ours = there.is_file() && there.nlink() == 1 && there.uid() == owner;
                if may_be_ours && matches!(try_lock(&file), Ok(false)) {
                    return Ok(None);
                }
                remove(&self.held, &at, name)?;
                continue;
            }
            let locked = match try_lock(&file) {
                // NFS locks only what is open for writing.
                Err(Errno::BADF) => {
                    let again = open_file(&at, name, OFlags::RDWR)?;
                    if !same_file(&file, &again)? {
                        continue;
                    }
                    file = again;
                    try_lock(&file)?
                }
                locked => locked?,
            };
            if !locked {
                return Ok(None);
            }
            // A run that was killed may have left it with its last mode.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
            match open_file(&at, name, OFlags::RDWR) {
                Ok(writer) if same_file(&file, &writer)? => {
                    return Ok(Some(Box::new(PlainFile { file, writer: Some(writer) })));
                }
                // Whoever had the lock before has finished it.
                Ok(_) | Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        let why = format!("{}: somebody else makes and removes it all the time", path.display());
        Err(Error::other(why))
    }

    fn make_directory(&self, path: &Path) -> Result<()> {
        let (at, name) = self.place(path)?;
        match changing(&self.held, &[&at], || rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o700))) {
            Err(Errno::EXIST) => directory(&at, name, OFlags::PATH, path).map(drop),
            made => Ok(made?),
        }
    }

    fn symlink(&self, target: &Path, path: &Path) -> Result<()> {
        let (at, name) = self.place(path)?;
        Ok(changing(&self.held, &[&at], || rustix::fs::symlinkat(target, &at, name))?)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, from_name) = self.place(from)?;
        let (to, to_name) = self.place(to)?;
        let link = || rustix::fs::linkat(&from, from_name, &to, to_name, AtFlags::empty());
        Ok(changing(&self.held, &[&to], link)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, from_name) = self.place(from)?;
        let (to, to_name) = self.place(to)?;
        Ok(changing(&self.held, &[&from, &to], || rustix::fs::renameat(&from, from_name, &to, to_name))?)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let (at, name) = self.place(path)?;
        Ok(changing(&self.held, &[&at], || rustix::fs::unlinkat(&at, name, AtFlags::empty()))?)
    }

    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()> {
        let (at, name) = self.place(path)?;
        if meta.kind == Kind::Symlink {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link = File::from(rustix::fs::openat(&at, name, flags, Mode::empty())?);
            if !link.metadata()?.is_symlink() {
                return Err(Error::other("somebody else replaced the link; run the command again"));
            }
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
                rustix::fs::chownat(&link, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
            }
            return Ok(rustix::fs::utimensat(&at, name, &times_of(meta), AtFlags::SYMLINK_NOFOLLOW)?);
        }
        let held = match directory(&at, name, OFlags::RDONLY, path) {
            // Its owner may not read it, and may change that. The descriptor's own name leads to
            // the directory that was opened, whatever has its path now.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let held = directory(&at, name, OFlags::PATH, path)?;
                let own_name = format!("/proc/self/fd/{}", held.as_raw_fd());
                rustix::fs::chmod(own_name, Mode::from_raw_mode(0o700))?;
                directory(&held, OsStr::new("."), OFlags::RDONLY, path)?
            }
            held => held?,
        };
        set_meta_of(&File::from(held), meta)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
        xattrs_of(self.directory(path)?)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()> {
        let held = self.directory(path)?;
        Ok(rustix::fs::fsetxattr(&held, name.as_os_str(), value, XattrFlags::empty())?)
    }

    fn own_node(&self) -> Option<u32> {
        None
    }

    fn sync(&self, path: &Path) -> Result<()> {
        Ok(rustix::fs::syncfs(self.directory(path)?)?)
    }
}
