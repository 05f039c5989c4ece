//! An object store as the destination of a tree. Its program is asked ([`ObjectWriter`]); a bucket
//! has objects only, so what else a tree has is an error or is counted as left out.

use crate::side::{Kind, Meta, OpenFile, Side, WholeFile, WholeFiles};
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use zazen_backing::SourceFile;
use zazen_backing::objects::ObjectWriter;
use zazen_backing::served::{NewFile, Sending, There};
use zazen_core::RelPath;

/// A bucket. Paths are keys: relative, and empty for the bucket itself.
pub struct ObjectSide(ObjectWriter);

impl ObjectSide {
    /// The objects that `writer` writes.
    pub fn new(writer: ObjectWriter) -> ObjectSide {
        ObjectSide(writer)
    }
}

fn io(error: zazen_core::Error) -> Error {
    Error::other(error)
}

/// What a bucket has not.
fn no(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what}: an object store has none"))
}

fn key(path: &Path) -> Result<RelPath> {
    let text = path.to_str().ok_or_else(|| {
        let why = "its name is no UTF-8 text, which keys of an object store must be; rename it";
        Error::new(ErrorKind::InvalidInput, why)
    })?;
    RelPath::new(text).map_err(io)
}

fn meta(kind: Kind, bytes: u64, modified_ns: i64) -> Meta {
    Meta {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        bytes,
        accessed_ns: modified_ns,
        modified_ns,
        changed_ns: modified_ns,
        links: 1,
        identity: (0, 0),
        holder: None,
    }
}

impl Side for ObjectSide {
    fn meta(&self, path: &Path) -> Result<Option<Meta>> {
        Ok(match self.0.look(&key(path)?).map_err(io)? {
            There::Nothing => None,
            There::Folder => Some(meta(Kind::Directory, 0, 0)),
            // One that was written in another way is older than any file.
            There::File { modified_ns, seen, .. } => {
                Some(meta(Kind::File, seen.size, modified_ns.unwrap_or(i64::MIN)))
            }
        })
    }

    fn list(&self, _path: &Path) -> Result<Vec<(OsString, Meta)>> {
        Err(no("listings"))
    }

    fn read_link(&self, _path: &Path) -> Result<PathBuf> {
        Err(no("symbolic links"))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(Object(self.0.open(&key(path)?).map_err(io)?)))
    }

    fn open_part(&self, _path: &Path, _owner: u32) -> Result<Option<Box<dyn OpenFile>>> {
        Err(no("parts of files"))
    }

    /// There are none, but an object of that name would hide what is put beneath it.
    fn make_directory(&self, path: &Path) -> Result<()> {
        match self.meta(path)? {
            Some(there) if there.kind == Kind::File => Err(Error::from_raw_os_error(libc::ENOTDIR)),
            _ => Ok(()),
        }
    }

    fn symlink(&self, _target: &Path, _path: &Path) -> Result<()> {
        Err(no("symbolic links"))
    }

    fn link(&self, _from: &Path, _to: &Path) -> Result<()> {
        Err(no("hard links"))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> Result<()> {
        Err(no("names that change"))
    }

    fn remove(&self, _path: &Path) -> Result<()> {
        Err(no("removals by this program"))
    }

    fn set_meta(&self, _path: &Path, _meta: &Meta) -> Result<()> {
        Err(no("modes and times of directories"))
    }

    fn xattrs(&self, _path: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
        Err(no("extended attributes"))
    }

    fn set_xattr(&self, _path: &Path, _name: &OsString, _value: &[u8]) -> Result<()> {
        Err(no("extended attributes"))
    }

    fn own_node(&self) -> Option<u32> {
        None
    }

    /// What was written is with the store.
    fn sync(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn whole_files(&self) -> Option<&dyn WholeFiles> {
        Some(self)
    }
}

impl WholeFiles for ObjectSide {
    fn begin(&self, path: &Path, bytes: u64, modified_ns: i64) -> Result<Box<dyn WholeFile>> {
        let file = NewFile { path: key(path)?, bytes, modified_ns, checksum: None };
        Ok(Box::new(NewObject(self.0.begin(&file).map_err(io)?)))
    }
}

struct NewObject(Sending);

impl WholeFile for NewObject {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.add(bytes).map_err(io)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.finish().map(drop).map_err(io)
    }
}

/// An object that is read.
struct Object(Box<dyn SourceFile>);

impl OpenFile for Object {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.0.read_at(&mut into[filled..], offset + filled as u64).map_err(io)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    fn write_all_at(&self, _bytes: &[u8], _offset: u64) -> Result<()> {
        Err(no("objects that change"))
    }

    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>> {
        Ok((offset < length).then_some((offset, length)))
    }

    fn length(&self) -> Result<u64> {
        Ok(self.0.stat().validator.size)
    }

    fn identity(&self) -> Result<(u64, u64)> {
        Ok((0, 0))
    }

    fn set_length(&self, _bytes: u64) -> Result<()> {
        Err(no("objects that change"))
    }

    fn end_writing(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_meta(&self, _meta: &Meta) -> Result<()> {
        Err(no("objects that change"))
    }

    fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        Ok(Vec::new())
    }

    fn set_xattr(&self, _name: &OsString, _value: &[u8]) -> Result<()> {
        Err(no("extended attributes"))
    }
}
