//! A file system of the kernel.

use crate::side::{Kind, Meta, OpenFile, Side};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest value of an extended attribute on Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;
const NS: i64 = 1_000_000_000;

/// A file system of the kernel: whatever is mounted.
pub struct PlainSide;

fn meta_of(meta: &std::fs::Metadata) -> Meta {
    let kind = match meta.file_type() {
        of if of.is_file() => Kind::File,
        of if of.is_dir() => Kind::Directory,
        of if of.is_symlink() => Kind::Symlink,
        _ => Kind::Special,
    };
    Meta {
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        bytes: meta.len(),
        accessed_ns: meta.atime().saturating_mul(NS).saturating_add(meta.atime_nsec()),
        modified_ns: meta.mtime().saturating_mul(NS).saturating_add(meta.mtime_nsec()),
        changed_ns: meta.ctime().saturating_mul(NS).saturating_add(meta.ctime_nsec()),
        links: meta.nlink(),
        identity: (meta.dev(), meta.ino()),
        holder: None,
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) }
}

impl OpenFile for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match FileExt::read_at(self, &mut into[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>> {
        if offset >= length {
            return Ok(None);
        }
        let start = match rustix::fs::seek(self, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // It knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some((offset, length))),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(self, SeekFrom::Hole(start))?;
        Ok((start < length).then_some((start, end.min(length))))
    }

    fn length(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn identity(&self) -> Result<(u64, u64)> {
        let meta = self.metadata()?;
        Ok((meta.dev(), meta.ino()))
    }

    fn set_length(&self, bytes: u64) -> Result<()> {
        self.set_len(bytes)
    }

    fn try_lock(&self) -> Result<bool> {
        match rustix::fs::flock(self, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        let fd = std::os::fd::IntoRawFd::into_raw_fd(*self);
        // SAFETY: the descriptor is this function's own, and nobody uses it afterwards.
        match unsafe { libc::close(fd) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Side for PlainSide {
    fn meta(&self, path: &Path) -> Result<Option<Meta>> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(meta_of(&meta))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(meta) => entries.push((entry.file_name(), meta_of(&meta))),
                // It went away meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        Ok(Box::new(options.open(path)?))
    }

    fn open_part(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        Ok(Box::new(options.open(path)?))
    }

    fn make_directory(&self, path: &Path) -> Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                match path.metadata()?.is_dir() {
                    true => Ok(()),
                    false => Err(error),
                }
            }
            made => made,
        }
    }

    fn symlink(&self, target: &Path, path: &Path) -> Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
    }

    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid))?;
        }
        if meta.kind != Kind::Symlink {
            // After the owner, which takes the set-id bits away.
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(meta.mode), AtFlags::empty())?;
        }
        let times = Timestamps {
            last_access: timespec(meta.accessed_ns),
            last_modification: timespec(meta.modified_ns),
        };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = match rustix::fs::llistxattr(path, &mut names) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        };
        let of_users = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
        let mut found = Vec::new();
        for name in of_users {
            let name = OsStr::from_bytes(name);
            let mut value = vec![0; XATTR_BYTES_MAX];
            match rustix::fs::lgetxattr(path, name, &mut value) {
                Ok(length) => {
                    value.truncate(length);
                    found.push((OsString::from_vec(name.as_bytes().to_vec()), value));
                }
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(found)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()> {
        Ok(rustix::fs::lsetxattr(path, name.as_os_str(), value, XattrFlags::empty())?)
    }

    fn own_node(&self) -> Option<u32> {
        None
    }

    fn sync(&self, path: &Path) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }
}
