//! The backing store, the permanent home of all frames, behind one trait. There are two kinds: a
//! mounted directory ([`directory::DirectoryBacking`]) and a directory served over TCP at a bounded
//! rate ([`served`], the testbed's model of a slow file server). The third kind is a bucket of an
//! object store ([`objects`]), which a program of its own reads.
//!
//! Invariants: no daemon writes to the backing store, and of this crate only
//! [`objects::ObjectWriter`], for a user's own program. The store decides what a caller may do
//! there: threads that have assumed the caller's identity use the directory ([`Backing::seen_by`]),
//! so the kernel decides. An object store knows no users: there, an owner, a group and a mode that
//! the administrator gives decide.

pub mod by_name;
pub mod dataset;
pub mod directory;
mod look;
mod names;
pub mod objects;
pub mod served;
pub mod trajectory;
mod tree;
mod watchdog;

pub use directory::DirectoryBacking;
pub use names::DirectoryNames;
pub use objects::ObjectBacking;
pub use served::ServedBacking;
pub use zazen_core::{Rights, SourceStat};

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zazen_core::{Credentials, RelPath, Result, Validator};

/// Bytes in memory of their own.
pub type Piece = Box<dyn AsRef<[u8]> + Send>;

/// An open source file. Reads may come from several threads, each with its own offset.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Reads up to `bytes_max` bytes at `offset`, as pieces in their order; none at the end of the
    /// file. Whoever has the bytes in memory hands them on as they are.
    fn read_pieces(&self, bytes_max: usize, offset: u64) -> Result<Vec<Piece>> {
        let mut bytes = vec![0; bytes_max];
        let read = self.read_at(&mut bytes, offset)?;
        bytes.truncate(read);
        Ok(if bytes.is_empty() { Vec::new() } else { vec![Box::new(bytes)] })
    }
    /// What the file looked like when it was opened.
    fn stat(&self) -> SourceStat;
    /// What this open file looks like now, even if its name leads to another file by now.
    fn stat_now(&self) -> Result<SourceStat>;
    /// A descriptor by which another process can read the file, if this kind of backing store has
    /// descriptors and this process can open one more.
    fn descriptor(&self) -> Option<OwnedFd>;
    /// Whether this kind of backing store has descriptors.
    fn has_descriptor(&self) -> bool {
        false
    }
    /// Whether each read fails with `Stale` unless its bytes are of the version that was opened.
    /// Then nobody needs to look at the file again to know which version was read.
    fn is_one_version(&self) -> bool {
        false
    }
    /// Where bytes of the file were read ahead: what its name led to afterwards. `stat_now` is of
    /// the same moment. `None`: bytes are read when they are asked for.
    fn name_led_to(&self) -> Option<Validator> {
        None
    }
}

/// Paths that may hang in one call for many: each costs a thread until it answers.
pub const HANGS_MAX: usize = 2;

/// A backing store. Threads share it. If the store has vanished, calls fail with `Unavailable`; if
/// it hangs, with `TimedOut`. Either may work again later.
pub trait Backing: Send + Sync {
    /// For messages: "directory /lustre", "file server 10.0.0.1:9100".
    fn describe(&self) -> String;
    /// What `path` looks like now.
    fn stat(&self, path: &RelPath) -> Result<SourceStat>;
    /// Opens a file beneath the root; symbolic links that leave it are refused.
    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>>;
    /// Opens a file that looked like `seen` when it was opened before. A store whose reads fail
    /// with `Stale` for another version does not look at the file again.
    fn open_version(&self, path: &RelPath, _seen: &Validator) -> Result<Box<dyn SourceFile>> {
        self.open(path)
    }
    /// The names in a directory.
    fn list(&self, path: &RelPath) -> Result<DirectoryNames>;
    /// Whether the user of this view may use `path` with `rights`. `false` also if a directory on
    /// the way is closed to the user.
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool>;
    /// The store as `who` sees it: each call of the view succeeds exactly if a program of `who`
    /// could do the same. `PermissionDenied` if `who` is not a valid user. If this process cannot
    /// act for `who`, each call of the view fails.
    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>>;

    /// [`Backing::allows`] for many paths at once; the answers are in the same order. A path that
    /// hangs does not keep the others from their answers, but after [`HANGS_MAX`] of them the rest
    /// is not asked: there are fewer answers than paths.
    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        Ok(paths.iter().map(|path| self.allows(path, rights)).collect())
    }

    /// [`Backing::stat`] for many paths at once; the answers are in the same order. An error of the
    /// whole store (`Unavailable`, `TimedOut`) is the outer error.
    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        Ok(paths.iter().map(|path| self.stat(path)).collect())
    }

    /// As [`Backing::stat_many`] of `paths` beneath `folder`.
    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let paths: Vec<_> = paths.iter().map(|path| folder.join(path.as_str())).collect::<Result<_>>()?;
        self.stat_many(&paths)
    }

    /// As [`Backing::stat_beneath`], but each file is opened for reading. The answer is an error if
    /// the file may not be read now.
    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let open = |path: &RelPath| self.open(&folder.join(path.as_str())?).map(|file| file.stat());
        Ok(paths.iter().map(open).collect())
    }

    /// Advice: these files beneath `folder` will be looked at soon. Returns at once. A store on a
    /// disk of this machine brings in what it knows of them; other stores do nothing.
    fn will_look_beneath(&self, _folder: &RelPath, _paths: &Arc<[RelPath]>) {}

    /// For each of these folders in `folder`, whether it is on a disk of this machine, so that a
    /// look at a file in it waits for no other machine. No, where the store cannot tell.
    fn near_folders(&self, _folder: &RelPath, inner: &Arc<[RelPath]>) -> Result<Vec<bool>> {
        Ok(vec![false; inner.len()])
    }

    /// The names in a directory that are not themselves directories, as far as the store can tell
    /// cheaply.
    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.list(path)
    }

    /// The names of the folders in a directory, sorted; links to folders are not among them.
    fn list_folders(&self, path: &RelPath) -> Result<Vec<String>> {
        // What is removed between the two listings is taken for a folder: listing that then fails
        // with `NotFound`.
        let mut names = Vec::from(self.list(path)?);
        let files = self.list_files(path)?;
        let files: HashSet<&str> = files.iter().map(String::as_str).collect();
        names.retain(|name| !files.contains(name.as_str()));
        names.sort_unstable();
        Ok(names)
    }

    /// As [`Backing::list_files`] or [`Backing::list`], if the names take at most `bytes_max` of
    /// memory. `None` if they take more: then this call took little more than that itself.
    fn list_within(
        &self,
        path: &RelPath,
        files_only: bool,
        bytes_max: u64,
    ) -> Result<Option<DirectoryNames>> {
        let names = if files_only { self.list_files(path)? } else { self.list(path)? };
        Ok((names.bytes() <= bytes_max).then_some(names))
    }

    /// Reads and bytes so far, (reads, bytes): data only, no stats or listings.
    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}
