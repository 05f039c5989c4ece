//! What a copy needs of a file system. Paths are absolute in it.

use std::ffi::OsString;
use std::io::Result;
use std::path::{Path, PathBuf};

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
    /// Takes the lock of the file, which ends with the open file; whether it was free. A file system
    /// without locks gives it to everybody.
    fn try_lock(&self) -> Result<bool>;
    /// Closes it; what was written is there for all then.
    fn close(self: Box<Self>) -> Result<()>;
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
    /// Opens a file for reading and writing, and makes it if it is not there, for its owner only.
    fn open_part(&self, path: &Path) -> Result<Box<dyn OpenFile>>;
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
    /// Sets mode and times, and the owner if the caller is root. Not of what a link leads to.
    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()>;
    /// Extended attributes of users: names and values.
    fn xattrs(&self, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>>;
    /// Sets one.
    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> Result<()>;
    /// The node of this process, where files may be held; `None` if the side has no nodes.
    fn own_node(&self) -> Option<u32>;
    /// Brings to the disk what was written beneath `path`.
    fn sync(&self, path: &Path) -> Result<()>;
}
