//! What a copy needs of a file system. A side is made for one tree: all paths are the tree's root
//! or beneath it, and no symbolic link from the root on is followed.

use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind, Result};
use std::path::{Component, Path, PathBuf};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device.
    Special,
}

/// What `lstat` says of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: Kind,
    /// Permission bits: the lower twelve bits of a mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub bytes: u64,
    /// When it was read last, in nanoseconds since the epoch.
    pub accessed_ns: i64,
    /// When it was written last.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
    /// How many names it has.
    pub links: u64,
    /// Equal for two names of one file.
    pub identity: (u64, u64),
    /// The node that holds a file's bytes, if the side knows.
    pub holder: Option<u32>,
}

/// An open file.
pub trait OpenFile {
    /// Reads at `offset`: fewer bytes only at the end.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// The bytes from `offset` on that are no hole: their beginning and end. `None` if only a hole
    /// follows.
    fn data_from(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>>;
    /// The length.
    fn length(&self) -> Result<u64>;
    /// As [`Meta::identity`].
    fn identity(&self) -> Result<(u64, u64)>;
    /// Sets the length.
    fn set_length(&self, bytes: u64) -> Result<()>;
    /// Ends writing: what was written is there for all then, and changes no time any more. The lock
    /// of a part stays.
    fn end_writing(&mut self) -> Result<()>;
    /// Sets mode and times, and the owner if the caller is root.
    fn set_meta(&self, meta: &Meta) -> Result<()>;
    /// Extended attributes of users: names and values.
    fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>>;
    /// Sets one.
    fn set_xattr(&self, name: &OsString, value: &[u8]) -> Result<()>;
}

/// Why a symbolic link at `path` ends the walk.
pub(crate) fn link_error(path: &Path) -> Error {
    let why = format!(
        "{} is a symbolic link where a directory should be, and is not followed; remove the link, or \
         name the directory that it leads to",
        path.display()
    );
    Error::new(ErrorKind::NotADirectory, why)
}

/// What is above the root of a tree, and may be reached by links: who names the root names it. The
/// root itself if its path does not end in a name.
pub(crate) fn above(root: &Path) -> &Path {
    match root.file_name() {
        Some(_) => root.parent().unwrap_or(root),
        None => root,
    }
}

/// The names that lead from `above` to `path`.
pub(crate) fn names_beneath<'a>(above: &Path, path: &'a Path) -> Result<Vec<&'a OsStr>> {
    let outside = || Error::new(ErrorKind::InvalidInput, format!("{} is not in the tree", path.display()));
    let beneath = path.strip_prefix(above).map_err(|_| outside())?;
    let names = beneath.components().filter(|part| *part != Component::CurDir).map(|part| match part {
        Component::Normal(name) => Ok(name),
        _ => Err(outside()),
    });
    names.collect()
}

/// A file system. For any thread.
pub trait Side: Send + Sync {
    /// `lstat`; `None` if there is nothing.
    fn meta(&self, path: &Path) -> Result<Option<Meta>>;
    /// The entries of a directory.
    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &Path) -> Result<PathBuf>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>>;
    /// Opens a part for reading and writing, and locks it until it is dropped. `None` if another
    /// process has the lock. What is there and is no regular file of the caller's with one name is
    /// removed, and a new file made, for its owner only. A locked one of `owner` counts as another
    /// process's: it gives its part away just before it renames it. A file system without locks
    /// gives them to everybody.
    fn open_part(&self, path: &Path, owner: u32) -> Result<Option<Box<dyn OpenFile>>>;
    /// Makes a directory for its owner only; no error if it is there.
    fn make_directory(&self, path: &Path) -> Result<()>;
    /// Makes a symbolic link.
    fn symlink(&self, target: &Path, path: &Path) -> Result<()>;
    /// Gives a file another name.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Renames, replacing a file.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a name that is no directory's.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Sets mode and times of a directory or a link, and the owner if the caller is root.
    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()>;
    /// Extended attributes of users: names and values.
    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>>;
    /// Sets one of a directory.
    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()>;
    /// The node of this process, where files may be held; `None` if the side has no nodes.
    fn own_node(&self) -> Option<u32>;
    /// Brings to the disk what was written beneath `path`.
    fn sync(&self, path: &Path) -> Result<()>;
    /// For a side that takes files as a whole, and nothing else: an object store.
    fn whole_files(&self) -> Option<&dyn WholeFiles> {
        None
    }
}

/// Takes whole files. Of a tree they keep bytes, names and times of writing.
pub trait WholeFiles: Send + Sync {
    /// Begins a file, which nobody sees before its end.
    fn begin(&self, path: &Path, bytes: u64, modified_ns: i64) -> Result<Box<dyn WholeFile>>;
}

/// A file that is being sent. Nothing of one stays that is dropped before it is finished.
pub trait WholeFile {
    /// The next bytes.
    fn add(&mut self, bytes: &[u8]) -> Result<()>;
    /// All bytes were sent: puts the file in the place of the one that was there.
    fn finish(self: Box<Self>) -> Result<()>;
}
