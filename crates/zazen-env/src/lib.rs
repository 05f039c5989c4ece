//! The seam between Zazen's cores and the machine: disks, clocks, randomness; real and simulated.
//!
//! Only this crate touches them on behalf of the cores.

use zazen_core::{RelPath, Result};

/// A directory tree that a store lives in. Paths are beneath its root; no implementation follows a symbolic
/// link out of it.
///
/// What is assumed (and what [`the simulated disk`] breaks when it crashes): data written but not synced may
/// be lost, zeroed or cut anywhere; a rename is atomic but may be lost; appends may be cut anywhere.
///
/// [`the simulated disk`]: crate
pub trait Disk: Send + Sync + 'static {
    /// An open file. Reads and writes carry their offset.
    type File: DiskFile;
    /// Where the root is, for messages and for paths given to users.
    fn root(&self) -> &std::path::Path;
    /// Takes the root for this process; `Busy` if another has it. Held until the disk is dropped.
    fn lock(&self) -> Result<()>;
    /// Creates a file that must not exist; parent directories are made.
    fn create(&self, path: &DiskPath) -> Result<Self::File>;
    /// Opens a file for reading and, if `write`, writing; `NotFound` if there is none.
    fn open(&self, path: &DiskPath, write: bool) -> Result<Self::File>;
    /// Opens for appending and reading, making it and its parents if needed.
    fn open_append(&self, path: &DiskPath) -> Result<Self::File>;
    /// Atomic; replaces `to`; parents of `to` are made.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()>;
    /// Removes a file; `NotFound` if there is none.
    fn remove(&self, path: &DiskPath) -> Result<()>;
    /// Removes an empty directory, silently keeping one that isn't.
    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()>;
    /// (name, is_dir) of a directory's entries, unordered; empty if it doesn't exist.
    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>>;
    /// Length of a file in bytes; `None` if there is none.
    fn file_len(&self, path: &DiskPath) -> Result<Option<u64>>;
    /// Free bytes of the file system.
    fn free_bytes(&self) -> Result<u64>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync + 'static {
    /// Reads up to `buffer.len()` bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `bytes`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether it is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts it.
    fn truncate(&self, bytes: u64) -> Result<()>;
    /// Data and length reach the disk before it returns.
    fn sync(&self) -> Result<()>;
    /// A handle that can be passed to another process. The simulated disk makes a temporary copy.
    fn to_std(&self) -> Result<std::fs::File>;
}

/// A path beneath a disk's root. Unlike a [`RelPath`] it may pass through `.zazen`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskPath(String);

impl DiskPath {
    /// The frame path itself.
    pub fn of(path: &RelPath) -> DiskPath {
        DiskPath(path.as_str().to_owned())
    }
    /// `dataset/.zazen/name`; `name` is Zazen's own spelling, never a user's.
    pub fn own(dataset: &RelPath, name: &str) -> DiskPath {
        let own = zazen_core::limits::OWN_DIR;
        DiskPath(if dataset.is_root() { format!("{own}/{name}") } else { format!("{dataset}/{own}/{name}") })
    }
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Time since an arbitrary start, and wall time.
pub trait Clock: Send + Sync {
    /// Monotonic nanoseconds.
    fn now_ns(&self) -> u64;
    /// Nanoseconds since the epoch.
    fn wall_ns(&self) -> i64;
}
