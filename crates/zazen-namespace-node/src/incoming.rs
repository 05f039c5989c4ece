//! Copies of other nodes' files that are coming in. Each becomes an object when it is whole.

use crate::objects::{ObjectName, errno};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zazen_core::{Error, Result};
use zazen_namespace::Errno;

const NS: i64 = 1_000_000_000;

/// The folder of copies that are coming in.
pub(crate) struct Incoming(OwnedFd);

impl Incoming {
    /// The folder, without what an earlier life of the daemon left.
    pub(crate) fn open(folder: OwnedFd) -> Result<Incoming> {
        let within = |errno: rustix::io::Errno| Error::io("folder of incoming copies", errno.into());
        for entry in rustix::fs::Dir::read_from(&folder).map_err(within)? {
            let entry = entry.map_err(within)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty()).map_err(within)?;
            }
        }
        Ok(Incoming(folder))
    }

    /// The file of a copy; `fresh`: an empty one.
    pub(crate) fn file(&self, name: ObjectName, fresh: bool) -> std::result::Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let flags = if fresh { flags | OFlags::CREATE | OFlags::TRUNC } else { flags };
        let opened = rustix::fs::openat(&self.0, name.file(), flags, Mode::from_raw_mode(0o600));
        match opened {
            Ok(fd) => Ok(File::from(fd)),
            Err(rustix::io::Errno::NOENT) => Err(Errno::ESTALE),
            Err(error) => Err(errno(error)),
        }
    }

    /// Gives the file its length, and the time of the original's last change. Then the disk has all
    /// of it: the sender may remove its own bytes.
    pub(crate) fn finish(
        &self,
        file: &File,
        length: u64,
        modified_ns: i64,
    ) -> std::result::Result<(), Errno> {
        rustix::fs::ftruncate(file, length).map_err(errno)?;
        let time = Timespec { tv_sec: modified_ns.div_euclid(NS), tv_nsec: modified_ns.rem_euclid(NS) };
        rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })
            .map_err(errno)?;
        // The time, too: the checksums count only with it.
        file.sync_all().map_err(|_| Errno::EIO)
    }

    /// The folder.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Ends a copy that did not become whole.
    pub(crate) fn remove(&self, name: ObjectName) {
        rustix::fs::unlinkat(&self.0, name.file(), AtFlags::empty()).ok();
    }
}
