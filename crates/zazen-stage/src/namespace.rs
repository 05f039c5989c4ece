//! The namespace without a mount, as the program's own user.

use crate::side::{Kind, Meta, OpenFile, Side};
use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_namespace_client::core::operation::{Lock, LockWanted, Mode, SetAttributes, SetXattr};
use zazen_namespace_client::core::{Attributes, Errno, Kind as InodeKind, Name};
use zazen_namespace_client::{File, Namespace};

/// The namespace through a daemon.
pub struct NamespaceSide {
    namespace: Namespace,
    node: u32,
}

/// Numbers the owners of locks of this process.
static OWNERS: AtomicU64 = AtomicU64::new(1);

impl NamespaceSide {
    /// The namespace as this process's user sees it.
    pub fn new(namespace: Namespace) -> zazen_core::Result<NamespaceSide> {
        let node = namespace.hello()?.node.0;
        Ok(NamespaceSide { namespace, node })
    }
}

fn io(errno: Errno) -> Error {
    Error::from_raw_os_error(i32::from(errno as u16))
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn meta_of(found: &Attributes) -> Meta {
    let kind = match found.kind {
        InodeKind::File => Kind::File,
        InodeKind::Directory => Kind::Directory,
        InodeKind::Symlink => Kind::Symlink,
        _ => Kind::Special,
    };
    Meta {
        kind,
        mode: found.mode,
        uid: found.uid,
        gid: found.gid,
        bytes: found.bytes,
        accessed_ns: found.accessed_ns,
        modified_ns: found.modified_ns,
        changed_ns: found.changed_ns,
        links: found.links.into(),
        identity: (0, found.id.0),
        holder: found.place.as_ref().map(|place| place.holder.0),
    }
}

struct Opened {
    namespace: Namespace,
    file: File,
}

impl OpenFile for Opened {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset).map_err(io)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(io)
    }

    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>> {
        if offset >= length {
            return Ok(None);
        }
        let start = match self.file.seek_data(offset) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(io(errno)),
        };
        let end = self.file.seek_hole(start).map_err(io)?;
        Ok((start < length).then_some((start, end.min(length))))
    }

    fn length(&self) -> Result<u64> {
        self.namespace.attributes(None, self.file.attributes().id).map(|found| found.bytes).map_err(io)
    }

    fn identity(&self) -> Result<(u64, u64)> {
        Ok((0, self.file.attributes().id.0))
    }

    fn set_length(&self, bytes: u64) -> Result<()> {
        self.file.set_length(bytes).map_err(io)
    }

    fn try_lock(&self) -> Result<bool> {
        let lock = Lock {
            id: self.file.attributes().id,
            owner: OWNERS.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id()),
            pid: std::process::id(),
            whole: true,
            start: 0,
            end: u64::MAX,
            wanted: LockWanted::Exclusive,
        };
        self.namespace.lock(None, lock).map(|blocking| blocking.is_none()).map_err(io)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.file.close().map_err(io)
    }
}

impl Side for NamespaceSide {
    fn meta(&self, path: &Path) -> Result<Option<Meta>> {
        match self.namespace.stat(None, bytes(path), false) {
            Ok(found) => Ok(Some(meta_of(&found))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(io(errno)),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let entries = self.namespace.list(None, bytes(path), true).map_err(io)?;
        let entry = |entry: zazen_namespace_client::Listed| {
            Some((OsString::from_vec(entry.name.as_bytes().to_vec()), meta_of(&entry.attributes?)))
        };
        Ok(entries.into_iter().filter_map(entry).collect())
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let found = self.namespace.stat(None, bytes(path), false).map_err(io)?;
        let target = self.namespace.read_link(None, found.id).map_err(io)?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let mode = Mode { read: true, write: false, truncate: false };
        let file = self.namespace.open(None, bytes(path), mode).map_err(io)?;
        Ok(Box::new(Opened { namespace: self.namespace.clone(), file }))
    }

    fn open_part(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let mode = Mode { read: true, write: true, truncate: false };
        let file = self.namespace.open_or_create(None, bytes(path), 0o600, mode, false).map_err(io)?;
        Ok(Box::new(Opened { namespace: self.namespace.clone(), file }))
    }

    fn make_directory(&self, path: &Path) -> Result<()> {
        match self.namespace.mkdir(None, bytes(path), 0o700) {
            Ok(_) => Ok(()),
            Err(Errno::EEXIST) => match self.namespace.stat(None, bytes(path), true) {
                Ok(found) if found.kind == InodeKind::Directory => Ok(()),
                Ok(_) => Err(io(Errno::EEXIST)),
                Err(errno) => Err(io(errno)),
            },
            Err(errno) => Err(io(errno)),
        }
    }

    fn symlink(&self, target: &Path, path: &Path) -> Result<()> {
        let (directory, name) = self.namespace.place(None, bytes(path)).map_err(io)?;
        self.namespace.symlink(None, directory, &name, bytes(target)).map(drop).map_err(io)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let found = self.namespace.stat(None, bytes(from), false).map_err(io)?;
        let (directory, name) = self.namespace.place(None, bytes(to)).map_err(io)?;
        self.namespace.link(None, found.id, directory, &name).map(drop).map_err(io)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.namespace.rename_path(None, bytes(from), bytes(to)).map_err(io)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.namespace.remove(None, bytes(path)).map_err(io)
    }

    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()> {
        let id = self.namespace.stat(None, bytes(path), false).map_err(io)?.id;
        let root = rustix::process::geteuid().is_root();
        let none = SetAttributes {
            id,
            mode: None,
            uid: None,
            gid: None,
            bytes: None,
            accessed_ns: None,
            modified_ns: None,
        };
        if root {
            let owner = SetAttributes { uid: Some(meta.uid), gid: Some(meta.gid), ..none.clone() };
            self.namespace.set_attributes(None, owner).map_err(io)?;
        }
        let set = SetAttributes {
            mode: (meta.kind != Kind::Symlink).then_some(meta.mode),
            accessed_ns: Some(meta.accessed_ns),
            modified_ns: Some(meta.modified_ns),
            ..none
        };
        self.namespace.set_attributes(None, set).map(drop).map_err(io)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
        let id = self.namespace.stat(None, bytes(path), false).map_err(io)?.id;
        let names = match self.namespace.list_xattr(None, id) {
            Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            names => names.map_err(io)?,
        };
        let mut found = Vec::new();
        for name in names.into_iter().filter(|name| name.as_bytes().starts_with(b"user.")) {
            match self.namespace.get_xattr(None, id, &name) {
                Ok(value) => found.push((OsStr::from_bytes(name.as_bytes()).to_owned(), value)),
                Err(Errno::ENODATA) => {}
                Err(errno) => return Err(io(errno)),
            }
        }
        Ok(found)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()> {
        let id = self.namespace.stat(None, bytes(path), false).map_err(io)?.id;
        let name = Name::new(name.as_bytes()).map_err(io)?;
        let set = SetXattr { id, name, value: Some(value.to_vec()), create: false, replace: false };
        self.namespace.set_xattr(None, set).map_err(io)
    }

    fn own_node(&self) -> Option<u32> {
        Some(self.node)
    }

    fn sync(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
}
