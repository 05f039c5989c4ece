//! The backing store behind one trait: where all frames live for good. Today a mounted directory
//! ([`directory::DirectoryBacking`]) and a directory served over TCP at a bounded rate
//! ([`served`], the testbed's stand-in for a slow file server); object stores fit the same seam.
//!
//! Invariants: nothing here ever writes to the backing store; what a caller may do there is the store's own word: a
//! directory is asked by threads that have assumed the caller's identity ([`Backing::seen_by`]), so that the kernel
//! decides.

pub mod dataset;
pub mod directory;
mod look;
pub mod served;
mod tree;
mod watchdog;

pub use directory::DirectoryBacking;
pub use served::ServedBacking;
pub use zazen_core::{Rights, SourceStat};

use std::os::fd::OwnedFd;
use std::sync::Arc;
use zazen_core::{Credentials, RelPath, Result};

/// An open source file. Reads may come from several threads, each with its own offset.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// What the file looked like when it was opened.
    fn stat(&self) -> SourceStat;
    /// What this very file looks like now, whatever its name leads to by now.
    fn stat_now(&self) -> Result<SourceStat>;
    /// A descriptor that another process can read the file through, if this backing has such and this process has room
    /// for one more.
    fn descriptor(&self) -> Option<OwnedFd>;
    /// Whether this backing has descriptors at all.
    fn has_descriptor(&self) -> bool {
        false
    }
}

/// A backing store. Shared by threads. A store that has vanished answers `Unavailable`, one that hangs
/// `TimedOut`; both may come back.
pub trait Backing: Send + Sync {
    /// For messages: "directory /lustre", "file server 10.0.0.1:9100".
    fn describe(&self) -> String;
    /// What `path` looks like now.
    fn stat(&self, path: &RelPath) -> Result<SourceStat>;
    /// Opens a file beneath the root; symbolic links that leave it are refused.
    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>>;
    /// The names in a directory, unordered.
    fn list(&self, path: &RelPath) -> Result<Vec<String>>;
    /// Whether whoever sees the store so may use `path` as `rights` say. `false` also if the way there is closed.
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool>;
    /// The store as `who` sees it: each call of the view succeeds exactly if a program of `who` could do the same.
    /// `PermissionDenied` if nobody can be `who`; a view of a user that this process cannot act for fails at each call.
    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>>;

    /// [`Backing::allows`] of many paths in one go, answers in the same order.
    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        Ok(paths.iter().map(|path| self.allows(path, rights)).collect())
    }

    /// [`Backing::stat`] of many paths in one go, answers in the same order. An error of the store as a whole
    /// (`Unavailable`, `TimedOut`) is the outer one.
    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        Ok(paths.iter().map(|path| self.stat(path)).collect())
    }

    /// As [`Backing::stat_many`] of `paths` beneath `folder`.
    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let paths: Vec<_> = paths.iter().map(|path| folder.join(path.as_str())).collect::<Result<_>>()?;
        self.stat_many(&paths)
    }

    /// As [`Backing::stat_beneath`], of the files themselves, opened for reading: the answer is an error where
    /// they may not be read now.
    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let open = |path: &RelPath| self.open(&folder.join(path.as_str())?).map(|file| file.stat());
        Ok(paths.iter().map(open).collect())
    }

    /// The names in a directory that are not themselves directories, as far as the store can tell cheaply.
    fn list_files(&self, path: &RelPath) -> Result<Vec<String>> {
        self.list(path)
    }

    /// Reads and bytes so far, (reads, bytes): data only, no stats or listings.
    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}
