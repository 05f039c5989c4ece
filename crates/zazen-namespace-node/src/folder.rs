//! The namespace's folder on the node's disk: who this node is, and which life of it this is.
//!
//! ```text
//! DATA/
//!   lock          held by the daemon that runs
//!   node          who the node is: number, partitions, life (docs/formats/namespace.md)
//!   log/          a folder for each partition
//!   objects/      the bytes of files
//! ```
//!
//! The folder belongs to the daemon's user, and nobody else can search it: who has an object's name
//! has no way to the object.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::{Incarnation, NodeNo};
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;

/// The file that says who the node is.
const NODE: &str = "node";
/// What the file begins with.
const MAGIC: u64 = u64::from_le(0x314e_5a41_5a4e_535a);
/// The version of the folder that this build writes and reads.
const VERSION: u16 = 1;

zazen_wire::messages! {
    /// What the file `node` says.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NodeRecord {
        /// Tells the file from others.
        magic: u64,
        /// The version of the folder's formats.
        version: u16,
        /// The node's number, given out once.
        node: NodeNo,
        /// Partitions of the namespace, fixed when it was made.
        partitions: u32,
        /// The daemon's life.
        incarnation: Incarnation,
    }
}

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
                    "namespace folder {shown}: must belong to user {uid} and to nobody else (it has user {}, mode \
                     {:03o}); run `chown {uid} {shown}; chmod 700 {shown}`",
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
                return Error::new(ErrorKind::Busy, format!("namespace folder {shown}: another daemon has it"));
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

    /// Begins another life of the node: reads who it was, or makes it, and writes the next life
    /// down before anybody hears of it.
    ///
    /// Fails with `Config` if the folder is another node's, or of a namespace of another size.
    pub fn begin_life(&self, node: NodeNo, partitions: u32) -> Result<Incarnation> {
        let shown = self.path.display();
        let old = self.read_record()?;
        let record = match old {
            None => {
                NodeRecord { magic: MAGIC, version: VERSION, node, partitions, incarnation: Incarnation(1) }
            }
            Some(old) if old.node != node || old.partitions != partitions => {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!(
                        "namespace folder {shown}: it is of node {} in a namespace of {} partitions, and the settings \
                         say node {node} and {partitions} partitions; give the settings that it was made with, or \
                         another folder",
                        old.node, old.partitions
                    ),
                ));
            }
            Some(old) => NodeRecord { incarnation: Incarnation(old.incarnation.0 + 1), ..old },
        };
        self.write_record(&record)?;
        Ok(record.incarnation)
    }

    fn read_record(&self) -> Result<Option<NodeRecord>> {
        let shown = format!("{}/{NODE}", self.path.display());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut bytes = Vec::new();
        match rustix::fs::openat(self.fd(), NODE, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Error::io(shown, errno.into())),
            Ok(file) => {
                let read = File::from(file).take(4096).read_to_end(&mut bytes);
                read.map_err(|error| Error::io(&shown, error))?
            }
        };
        let corrupt = |why: &str| Err(Error::new(ErrorKind::Corrupt, format!("{shown}: {why}")));
        let Some((record, crc)) = bytes.split_last_chunk::<4>() else {
            return corrupt("is too short");
        };
        if crc32c(record).to_string().as_bytes() != u32_of(*crc).to_string().as_bytes() {
            return corrupt("its checksum does not match; it was damaged");
        }
        let record = NodeRecord::decode(record)?;
        if record.magic != MAGIC {
            return corrupt("is not a file of the namespace");
        }
        if record.version != VERSION {
            let why = format!("{shown}: is of version {}, this build reads {VERSION}", record.version);
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        Ok(Some(record))
    }

    fn write_record(&self, record: &NodeRecord) -> Result<()> {
        let mut writer = zazen_wire::codec::Writer::new();
        record.write(&mut writer);
        let bytes = writer.into_bytes();
        let mut tail = zazen_wire::codec::Writer::new();
        tail.u32(crc32c(&bytes));
        let whole = [bytes, tail.into_bytes()].concat();
        replace(self.fd(), NODE, &whole)
            .map_err(|error| Error::io(format!("write {}/{NODE}", self.path.display()), error))
    }
}

fn u32_of(bytes: [u8; 4]) -> u32 {
    zazen_wire::codec::Reader::new("checksum", &bytes).u32().unwrap_or_default()
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
    fn each_start_is_a_new_life_and_the_settings_must_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ns");
        for life in 1..4 {
            let folder = DataFolder::open(&path).unwrap();
            assert_eq!(folder.begin_life(NodeNo(2), 16).unwrap(), Incarnation(life));
            let error = folder.begin_life(NodeNo(1), 16).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        }
    }

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

    #[test]
    fn a_damaged_record_is_an_error_and_not_a_new_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ns");
        let folder = DataFolder::open(&path).unwrap();
        folder.begin_life(NodeNo(0), 16).unwrap();
        let file = path.join(NODE);
        let good = std::fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            std::fs::write(&file, &bad).unwrap();
            folder.begin_life(NodeNo(0), 16).expect_err("a flipped bit");
        }
        for cut in 0..good.len() {
            std::fs::write(&file, &good[..cut]).unwrap();
            folder.begin_life(NodeNo(0), 16).expect_err("a cut file");
        }
    }
}
