//! The namespace's folder on the node's disk.
//!
//! ```text
//! DATA/
//!   lock          held by the daemon that runs
//!   node/         log, snapshots, identity: the files of zazen_namespace::node
//!   objects/      the bytes of files
//! ```
//!
//! The folder belongs to the daemon's user, and nobody else can search it: who has an object's name
//! has no way to the object.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// The folder, held for one daemon.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    fd: OwnedFd,
    /// Held while it is open.
    _lock: OwnedFd,
}

impl DataFolder {
    /// Makes or opens the folder and takes it for this process.
    ///
    /// Fails with `Busy` if another daemon has it, and with `Config` if others than this process's
    /// user could reach into it.
    pub fn open(path: &Path) -> Result<DataFolder> {
        let shown = path.display();
        let io = |error: std::io::Error| Error::io(format!("namespace folder {shown}"), error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| io(errno.into()))?;
        let meta = File::from(fd.try_clone().map_err(io)?).metadata().map_err(io)?;
        let uid = rustix::process::geteuid().as_raw();
        if meta.uid() != uid || meta.mode() & 0o077 != 0 {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "namespace folder {shown}: must belong to user {uid} and to nobody else (it has user {}, \
                     mode {:03o}); run `chown {uid} {shown}; chmod 700 {shown}`",
                    meta.uid(),
                    meta.mode() & 0o777
                ),
            ));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&fd, "lock", flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| io(errno.into()))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            if errno == rustix::io::Errno::WOULDBLOCK {
                return Error::new(
                    ErrorKind::Busy,
                    format!("namespace folder {shown}: another daemon has it"),
                );
            }
            io(errno.into())
        })?;
        Ok(DataFolder { path: path.to_path_buf(), fd, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open folder.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A folder in it, made if it is not there.
    pub fn sub(&self, name: &str) -> Result<OwnedFd> {
        sub(self.fd(), name)
            .map_err(|error| Error::io(format!("folder {}/{name}", self.path.display()), error))
    }
}

/// A folder in `parent`, made if it is not there.
pub(crate) fn sub(parent: BorrowedFd<'_>, name: &str) -> std::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Puts a file with these bytes in the place of the one called `name`: all or nothing, also after a
/// crash.
pub(crate) fn replace(folder: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let fresh = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::openat(folder, &fresh, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    file.sync_data()?;
    rustix::fs::renameat(folder, &fresh, folder, name)?;
    Ok(rustix::fs::fsync(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_at_a_time_and_nobody_else_reaches_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ns");
        let held = DataFolder::open(&path).unwrap();
        assert_eq!(DataFolder::open(&path).unwrap_err().kind(), ErrorKind::Busy);
        drop(held);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(DataFolder::open(&path).unwrap_err().kind(), ErrorKind::Config);
    }
}
