//! The operations that a store needs from a disk.
//!
//! Invariant of every implementation: no operation reaches outside the root, whatever symbolic
//! links are beneath it. A link is refused, never followed.

use zazen_core::{RelPath, Result};

/// The permission bit (sticky, without meaning on a regular file) that marks a file as Zazen's. It
/// distinguishes a file that a crash left from a file that somebody else put there.
pub const MARK_BIT: u32 = 0o1000;

/// A directory tree for a store. Paths are beneath its root. No implementation follows a symbolic
/// link, in or out of the tree.
///
/// The assumptions, which [`crate::SimDisk`] tests when it crashes: data that was written but not
/// synced may be lost, zeroed or cut anywhere. A rename is atomic but may be lost. Appends may be
/// cut anywhere. Changes of directories may be lost, but only together with all later ones (the
/// order that a journal keeps).
pub trait Disk: Send + Sync + 'static {
    /// An open file. Reads and writes carry their offset.
    type File: DiskFile;
    /// Where the root is, for messages and for paths given to users.
    fn root(&self) -> &std::path::Path;
    /// Locks the root for this process; `Busy` if another process has it. The lock is held until
    /// the disk is dropped.
    fn lock(&self) -> Result<()>;
    /// Creates a file that must not exist; parent directories are made.
    fn create(&self, path: &DiskPath) -> Result<Self::File>;
    /// Opens a file for reading and, if `write`, writing; `NotFound` if there is none, `Corrupt`
    /// for one that another user could have written.
    fn open(&self, path: &DiskPath, write: bool) -> Result<Self::File>;
    /// Opens for appending and reading, making it and its parents if needed.
    fn open_append(&self, path: &DiskPath) -> Result<Self::File>;
    /// Atomic; replaces `to`; parents of `to` are made. `Conflict` if `to` is a directory, or if
    /// one of its parents is a file.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()>;
    /// As [`Disk::rename`], but `Conflict` if anything is at `to`.
    fn rename_new(&self, from: &DiskPath, to: &DiskPath) -> Result<()>;
    /// Removes a file; `NotFound` if there is none.
    fn remove(&self, path: &DiskPath) -> Result<()>;
    /// Removes an empty directory. Leaves one that is not empty, without an error.
    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()>;
    /// (name, is_dir) of a directory's entries, unordered; empty if it doesn't exist.
    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>>;
    /// Length of a file in bytes; `None` if there is none.
    fn file_len(&self, path: &DiskPath) -> Result<Option<u64>> {
        Ok(self.stat(path)?.filter(|stat| stat.is_file).map(|stat| stat.len))
    }
    /// What is at `path`, without following a link there; `None` if nothing is.
    fn stat(&self, path: &DiskPath) -> Result<Option<FileStat>>;
    /// Checks that only this process's user and root could have put something into the directory
    /// `path` and those above it, up to the root; `Config` if not. Missing directories are
    /// accepted.
    fn check_folders(&self, path: &DiskPath) -> Result<()> {
        let _ = path;
        Ok(())
    }
    /// Fails at once if changes are known to fail now, so they need not be tried.
    fn admit_change(&self) -> Result<()> {
        Ok(())
    }
    /// Files that a store may keep open for itself.
    fn open_files_max(&self) -> usize {
        256
    }
    /// Free bytes of the file system.
    fn free_bytes(&self) -> Result<u64>;
    /// The entries of a directory (and its own name, up to the root) reach the disk before it
    /// returns.
    fn sync_dir(&self, path: &DiskPath) -> Result<()>;
    /// Everything written through this disk reaches it before it returns.
    fn sync_all(&self) -> Result<()>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync + 'static {
    /// Reads up to `buffer.len()` bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `bytes`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// What is known of the file.
    fn stat(&self) -> Result<FileStat>;
    /// Length in bytes.
    fn len(&self) -> Result<u64> {
        Ok(self.stat()?.len)
    }
    /// Whether it is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts it.
    fn truncate(&self, bytes: u64) -> Result<()>;
    /// Data, length, times and mark reach the disk before it returns. After an error, nothing is
    /// known about what was written since the last success: the kernel counts it as written, so a
    /// second call succeeds without writing it.
    fn sync(&self) -> Result<()>;
    /// As [`DiskFile::sync`], for data and length alone.
    fn sync_data(&self) -> Result<()>;
    /// Allocates space for `offset .. offset + bytes`, so that later writes there do not fail for
    /// lack of space. Bytes without space before read as zeros, and a shorter file grows to
    /// `offset + bytes`. `NoSpace` leaves the file as it was. `Unsupported` where the file system
    /// cannot.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Makes `offset .. offset + bytes` read as zeros and frees the space of whole blocks. The
    /// length stays. `Unsupported` where the file system cannot.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Sets when the file was read and changed last, in nanoseconds since the epoch.
    fn set_times(&self, accessed_ns: i64, modified_ns: i64) -> Result<()>;
    /// Makes the file's bytes those of `source` by sharing its blocks: a change of either leaves
    /// the other as it is. `Unsupported` where the file system cannot, or where the two lie on
    /// different ones.
    fn reflink_from(&self, source: &Self) -> Result<()>
    where
        Self: Sized;
    /// Marks the file as Zazen's ([`MARK_BIT`]). `handed_out`: processes of other users may get its
    /// descriptor, and may open it again through the descriptor, for reading. Nobody reaches it by
    /// its path, because the root is closed. The file keeps its owner, the daemon's user, because
    /// an owner could rewrite the file.
    fn mark(&self, handed_out: bool) -> Result<()>;
    /// A descriptor that can be passed to another process. The simulated disk makes a temporary
    /// copy.
    fn to_std(&self) -> Result<std::fs::File>;
    /// The same for a file that is not needed here any more.
    fn into_std(self) -> Result<std::fs::File>
    where
        Self: Sized,
    {
        self.to_std()
    }
    /// Fills `buffer` from `offset` on, up to the file's end. Returns the number of bytes.
    fn read_full_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_at(&mut buffer[filled..], offset + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStat {
    /// Whether it is a regular file; false for a link or a device.
    pub is_file: bool,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Length in bytes.
    pub len: u64,
    /// Whether it carries [`MARK_BIT`].
    pub marked: bool,
    /// Bytes that it takes on the disk; fewer than its length where it has holes.
    pub allocated_bytes: u64,
    /// When it was read last, in nanoseconds since the epoch, as far as the file system keeps it.
    pub accessed_ns: i64,
    /// When its bytes were changed last.
    pub modified_ns: i64,
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
    /// `dataset/.zazen`.
    pub fn own_dir(dataset: &RelPath) -> DiskPath {
        let own = zazen_core::limits::OWN_DIR;
        DiskPath(if dataset.is_root() { own.to_owned() } else { format!("{dataset}/{own}") })
    }
    /// `self/name`, where `name` is one component that [`Disk::list`] gave.
    pub fn child(&self, name: &str) -> DiskPath {
        DiskPath(if self.0.is_empty() { name.to_owned() } else { format!("{}/{name}", self.0) })
    }
    /// The same path with `suffix` put behind its last component.
    pub fn with_suffix(&self, suffix: &str) -> DiskPath {
        DiskPath(format!("{}{suffix}", self.0))
    }
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The directory that holds it, and its name there.
    pub(crate) fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

impl std::fmt::Display for DiskPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}
