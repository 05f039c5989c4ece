//! The namespace without a mount, as the program's own user.
//!
//! Each path is walked by inode from what the tree lies in, and never through a symbolic link.

use crate::side::{Kind, Meta, OpenFile, Side, above, link_error, names_beneath};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_namespace_client::core::operation::{Lock, LockWanted, Mode, Rename, SetAttributes, SetXattr};
use zazen_namespace_client::core::{Attributes, Errno, InodeId, Kind as InodeKind, Name};
use zazen_namespace_client::{File, Namespace};

/// The namespace through a daemon.
pub struct NamespaceSide {
    namespace: Namespace,
    node: u32,
    above: PathBuf,
    above_id: InodeId,
    /// Directories of the tree that were found. A run that is at work while somebody moves one goes
    /// on in it, as a descriptor would.
    found: Mutex<HashMap<PathBuf, InodeId>>,
}

/// Numbers the owners of locks of this process.
static OWNERS: AtomicU64 = AtomicU64::new(1);

impl NamespaceSide {
    /// The tree at `root`, which need not be there yet, as this process's user sees it. Links above
    /// the root are followed once, here.
    pub fn new(namespace: Namespace, root: &Path) -> zazen_core::Result<NamespaceSide> {
        let node = namespace.hello()?.node.0;
        let above = above(root).to_path_buf();
        let above_id = namespace
            .directory(None, bytes(&above))
            .map_err(|errno| zazen_core::Error::io(above.display().to_string(), io(errno)))?;
        Ok(NamespaceSide { namespace, node, above, above_id, found: Mutex::default() })
    }

    /// The directory that `path` is in, and the last name; `None` if it is where the tree lies.
    fn place(&self, path: &Path) -> Result<(InodeId, Option<Name>)> {
        let mut names = names_beneath(&self.above, path)?;
        let Some(last) = names.pop() else { return Ok((self.above_id, None)) };
        let mut here = self.above_id;
        let mut walked = self.above.clone();
        for name in names {
            walked.push(name);
            let known = self.found().get(&walked).copied();
            here = match known {
                Some(known) => known,
                None => {
                    let id = self.directory_in(here, &Name::new(name.as_bytes()).map_err(io)?, &walked)?;
                    self.found().insert(walked.clone(), id);
                    id
                }
            };
        }
        Ok((here, Some(Name::new(last.as_bytes()).map_err(io)?)))
    }

    fn found(&self) -> MutexGuard<'_, HashMap<PathBuf, InodeId>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory_in(&self, here: InodeId, name: &Name, shown: &Path) -> Result<InodeId> {
        let found = self.namespace.lookup(None, here, name).map_err(io)?;
        match found.kind {
            InodeKind::Directory => Ok(found.id),
            InodeKind::Symlink => Err(link_error(shown)),
            _ => Err(io(Errno::ENOTDIR)),
        }
    }

    fn directory(&self, path: &Path) -> Result<InodeId> {
        match self.place(path)? {
            (id, None) => Ok(id),
            (id, Some(name)) => self.directory_in(id, &name, path),
        }
    }

    /// The place of what has a name.
    fn named(&self, path: &Path) -> Result<(InodeId, Name)> {
        let (directory, name) = self.place(path)?;
        Ok((directory, name.ok_or_else(|| io(Errno::EEXIST))?))
    }

    fn lookup(&self, path: &Path) -> Result<Attributes> {
        match self.place(path)? {
            (id, None) => self.namespace.attributes(None, id).map_err(io),
            (id, Some(name)) => self.namespace.lookup(None, id, &name).map_err(io),
        }
    }
}

/// Takes the lock of a file; whether it was free.
fn try_lock(namespace: &Namespace, id: InodeId) -> Result<bool> {
    let lock = Lock {
        id,
        owner: OWNERS.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id()),
        pid: std::process::id(),
        whole: true,
        start: 0,
        end: u64::MAX,
        wanted: LockWanted::Exclusive,
    };
    namespace.lock(None, lock).map(|blocking| blocking.is_none()).map_err(io)
}

fn set_meta_of(namespace: &Namespace, id: InodeId, meta: &Meta) -> Result<()> {
    let none = SetAttributes::of(id);
    if rustix::process::geteuid().is_root() {
        let owner = SetAttributes { uid: Some(meta.uid), gid: Some(meta.gid), ..none.clone() };
        namespace.set_attributes(None, owner).map_err(io)?;
    }
    let set = SetAttributes {
        mode: (meta.kind != Kind::Symlink).then_some(meta.mode),
        accessed_ns: Some(meta.accessed_ns),
        modified_ns: Some(meta.modified_ns),
        ..none
    };
    namespace.set_attributes(None, set).map(drop).map_err(io)
}

fn xattrs_of(namespace: &Namespace, id: InodeId) -> Result<Vec<(OsString, Vec<u8>)>> {
    let names = match namespace.list_xattr(None, id) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names.map_err(io)?,
    };
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| name.as_bytes().starts_with(b"user.")) {
        match namespace.get_xattr(None, id, &name) {
            Ok(value) => found.push((OsStr::from_bytes(name.as_bytes()).to_owned(), value)),
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(io(errno)),
        }
    }
    Ok(found)
}

fn set_xattr_of(namespace: &Namespace, id: InodeId, name: &OsStr, value: &[u8]) -> Result<()> {
    let name = Name::new(name.as_bytes()).map_err(io)?;
    let set = SetXattr { id, name, value: Some(value.to_vec()), create: false, replace: false };
    namespace.set_xattr(None, set).map_err(io)
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

struct NamespaceFile {
    namespace: Namespace,
    id: InodeId,
    /// `None` after the end of writing.
    file: Option<File>,
}

impl NamespaceFile {
    fn new(namespace: &Namespace, file: File) -> NamespaceFile {
        NamespaceFile { namespace: namespace.clone(), id: file.attributes().id, file: Some(file) }
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(|| io(Errno::EBADF))
    }
}

impl OpenFile for NamespaceFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file()?.read_at(into, offset).map_err(io)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file()?.write_all_at(bytes, offset).map_err(io)
    }

    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>> {
        if offset >= length {
            return Ok(None);
        }
        let start = match self.file()?.seek_data(offset) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(io(errno)),
        };
        let end = self.file()?.seek_hole(start).map_err(io)?;
        Ok((start < length).then_some((start, end.min(length))))
    }

    fn length(&self) -> Result<u64> {
        self.namespace.attributes(None, self.id).map(|found| found.bytes).map_err(io)
    }

    fn identity(&self) -> Result<(u64, u64)> {
        Ok((0, self.id.0))
    }

    fn set_length(&self, bytes: u64) -> Result<()> {
        self.file()?.set_length(bytes).map_err(io)
    }

    fn end_writing(&mut self) -> Result<()> {
        self.file.take().map_or(Ok(()), |file| file.close().map_err(io))
    }

    fn set_meta(&self, meta: &Meta) -> Result<()> {
        set_meta_of(&self.namespace, self.id, meta)
    }

    fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        xattrs_of(&self.namespace, self.id)
    }

    fn set_xattr(&self, name: &OsString, value: &[u8]) -> Result<()> {
        set_xattr_of(&self.namespace, self.id, name, value)
    }
}

impl Side for NamespaceSide {
    fn meta(&self, path: &Path) -> Result<Option<Meta>> {
        match self.lookup(path) {
            Ok(found) => Ok(Some(meta_of(&found))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let entries = self.namespace.list_inode(None, self.directory(path)?, true).map_err(io)?;
        let entry = |entry: zazen_namespace_client::Listed| {
            Some((OsString::from_vec(entry.name.as_bytes().to_vec()), meta_of(&entry.attributes?)))
        };
        Ok(entries.into_iter().filter_map(entry).collect())
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let target = self.namespace.read_link(None, self.lookup(path)?.id).map_err(io)?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let found = self.lookup(path)?;
        if found.kind != InodeKind::File {
            return Err(Error::other("it is no file any more; run the command again"));
        }
        let mode = Mode { read: true, write: false, truncate: false };
        let file = self.namespace.open_inode(None, found.id, mode).map_err(io)?;
        Ok(Box::new(NamespaceFile::new(&self.namespace, file)))
    }

    fn open_part(&self, path: &Path, owner: u32) -> Result<Option<Box<dyn OpenFile>>> {
        let (directory, name) = self.named(path)?;
        let own = rustix::process::geteuid().as_raw();
        match self.namespace.lookup(None, directory, &name) {
            Ok(there) => {
                let is_file = there.kind == InodeKind::File && there.links == 1;
                if !is_file || there.uid != own {
                    if is_file
                        && there.uid == owner
                        && matches!(try_lock(&self.namespace, there.id), Ok(false))
                    {
                        return Ok(None);
                    }
                    match self.namespace.unlink(None, directory, &name) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(errno) => return Err(io(errno)),
                    }
                }
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(io(errno)),
        }
        let mode = Mode { read: true, write: true, truncate: false };
        let file = self.namespace.create(None, directory, &name, 0o600, mode, false).map_err(io)?;
        let opened = file.attributes();
        if opened.kind != InodeKind::File || opened.uid != own || opened.links != 1 {
            let why = format!("{}: somebody else made it just now; run the command again", path.display());
            return Err(Error::other(why));
        }
        if !try_lock(&self.namespace, opened.id)? {
            return Ok(None);
        }
        Ok(Some(Box::new(NamespaceFile::new(&self.namespace, file))))
    }

    fn make_directory(&self, path: &Path) -> Result<()> {
        let (directory, name) = match self.place(path)? {
            (_, None) => return Ok(()),
            (directory, Some(name)) => (directory, name),
        };
        match self.namespace.make_directory(None, directory, &name, 0o700) {
            Ok(_) => Ok(()),
            Err(Errno::EEXIST) => self.directory_in(directory, &name, path).map(drop),
            Err(errno) => Err(io(errno)),
        }
    }

    fn symlink(&self, target: &Path, path: &Path) -> Result<()> {
        let (directory, name) = self.named(path)?;
        self.namespace.symlink(None, directory, &name, bytes(target)).map(drop).map_err(io)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let id = self.lookup(from)?.id;
        let (directory, name) = self.named(to)?;
        self.namespace.link(None, id, directory, &name).map(drop).map_err(io)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (directory, name) = self.named(from)?;
        let (new_directory, new_name) = self.named(to)?;
        let (no_replace, exchange) = (false, false);
        let rename = Rename { directory, name, new_directory, new_name, no_replace, exchange };
        self.namespace.rename(None, rename).map_err(io)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let (directory, name) = self.named(path)?;
        self.namespace.unlink(None, directory, &name).map_err(io)
    }

    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()> {
        let id = match meta.kind {
            Kind::Directory => self.directory(path)?,
            _ => self.lookup(path)?.id,
        };
        set_meta_of(&self.namespace, id, meta)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
        xattrs_of(&self.namespace, self.directory(path)?)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()> {
        set_xattr_of(&self.namespace, self.directory(path)?, name, value)
    }

    fn own_node(&self) -> Option<u32> {
        Some(self.node)
    }

    fn sync(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
}
