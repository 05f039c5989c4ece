//! The backing store behind one trait: where all frames live for good. Today a mounted directory
//! ([`directory::DirectoryBacking`]) and a directory served over TCP at a bounded rate
//! ([`served`], the testbed's stand-in for a slow file server); object stores fit the same seam.
//!
//! Invariant: nothing here ever writes to the backing store.

pub mod dataset;
pub mod directory;
mod look;
pub mod served;
mod watchdog;

pub use directory::DirectoryBacking;
pub use served::ServedBacking;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use zazen_core::{Credentials, RelPath, Result, Validator};

/// What a source file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStat {
    /// Size, times and inode, and whether the source was too young to tell.
    pub validator: Validator,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// True for a directory.
    pub is_dir: bool,
}

/// An open source file. Reads may come from several threads, each with its own offset.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// What the file looked like when it was opened.
    fn stat(&self) -> SourceStat;
    /// A descriptor that another process can read the file through, if this backing has such.
    fn descriptor(&self) -> Option<OwnedFd>;
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
    /// Whether `who` may search every directory from the root down to (and including) `directory`.
    fn may_search(&self, who: &Credentials, directory: &RelPath) -> Result<bool>;

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

    /// The names in a directory that are not themselves directories, as far as the store can tell cheaply.
    fn list_files(&self, path: &RelPath) -> Result<Vec<String>> {
        self.list(path)
    }

    /// Reads and bytes so far, (reads, bytes): data only, no stats or listings.
    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// The directories from the root down to and including `directory`.
pub(crate) fn lineage(directory: &RelPath) -> Vec<RelPath> {
    let mut folders = vec![directory.clone()];
    while let Some((folder, _)) = folders[folders.len() - 1].split() {
        folders.push(folder);
    }
    folders.reverse();
    folders
}

/// [`Backing::may_search`] by asking for every directory's owner and mode.
pub(crate) fn may_search_by_stat(
    backing: &dyn Backing,
    who: &Credentials,
    directory: &RelPath,
) -> Result<bool> {
    for (folder, stat) in lineage(directory).iter().zip(backing.stat_many(&lineage(directory))?) {
        let stat = stat?;
        if !stat.is_dir {
            return Err(zazen_core::Error::new(
                zazen_core::ErrorKind::NotFound,
                format!("{folder} on {} is a file, not a directory", backing.describe()),
            ));
        }
        if !who.may_search(stat.uid, stat.gid, stat.mode) {
            return Ok(false);
        }
    }
    Ok(true)
}
