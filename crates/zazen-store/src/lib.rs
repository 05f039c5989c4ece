//! Frames on a node's local disk: plain files at the dataset's own paths, a native and an alien sequence log per
//! dataset, checksums, recovery, a hard byte budget with scan-resistant eviction.
//!
//! Invariants: a frame is visible only after its data, its name and its log record are in place, in that
//! order; bytes that don't match their checksum are never handed out as verified; the budget is never exceeded;
//! losing any suffix of any write costs frames, never correctness. No network, no backing store.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use zazen_core::{FrameMeta, Layout, Origin, RelPath, Result, RunSet, Source};
use zazen_env::Disk;

/// Bounds of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes of frames, logs and segments that the cache may use; hard.
    pub budget_bytes: u64,
    /// Free bytes of the file system that are never used.
    pub free_floor_bytes: u64,
}

/// What recovery found; each item is also logged.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Datasets found.
    pub datasets: u64,
    /// Frames whose record and file agree.
    pub frames: u64,
    /// Log bytes cut off behind the first bad record.
    pub log_bytes_cut: u64,
    /// Records whose file was missing or of another length.
    pub frames_dropped: u64,
    /// Unfinished files removed.
    pub temporaries_removed: u64,
}

/// A cached frame, opened.
pub struct OpenFrame {
    /// The file that holds it; may hold others too.
    pub file: File,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What is known of it.
    pub meta: FrameMeta,
    /// How it came here.
    pub origin: Origin,
    /// Absolute path of the file.
    pub path: PathBuf,
}

/// A cached frame, described. `position` orders frames as they lie on the disk.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is known of it.
    pub meta: FrameMeta,
    /// How it came here.
    pub origin: Origin,
    /// Its source beneath the dataset.
    pub source: Source,
    /// Absolute path of the file that holds it.
    pub path: PathBuf,
    /// Storage order.
    pub position: u64,
}

/// One dataset in numbers.
#[derive(Clone, Debug)]
pub struct DatasetSummary {
    /// Its path.
    pub dataset: RelPath,
    /// Native frames.
    pub natives: u64,
    /// Alien frames.
    pub aliens: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Scans under way.
    pub scans: u32,
    /// Store clock at its last use (push, query, scan); larger is later.
    pub last_use: u64,
}

/// Space, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// In use by the cache.
    pub used: u64,
    /// Promised to puts under way.
    pub reserved: u64,
    /// The budget.
    pub budget: u64,
    /// Free on the file system.
    pub free: u64,
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The frame is in the cache.
    Stored,
    /// The same number with the same checksum was there already; nothing changed but that an alien pushed again
    /// is a native now.
    AlreadyHere,
}

/// The store of one cache root. Shared by threads; data are written and read outside its lock.
pub struct Store<D: Disk> {
    _disk: Arc<D>,
}

/// A frame being written. Dropping it without `commit` leaves nothing behind.
pub struct Put<D: Disk> {
    _disk: Arc<D>,
}

/// Keeps a dataset from being evicted while a scan of it is under way.
pub struct ScanGuard {
    _private: (),
}

#[allow(unused_variables)]
impl<D: Disk> Store<D> {
    /// Opens the cache root of `disk`, recovering whatever state a crash left. `Busy` if another process has it open.
    pub fn open(disk: D, config: StoreConfig) -> Result<(Arc<Store<D>>, RecoveryReport)> {
        todo!()
    }
    /// Identity of this cache, made at first open and kept.
    pub fn node(&self) -> u128 {
        todo!()
    }
    /// Begins to write a frame of `meta.length` bytes; makes room by evicting if it must.
    ///
    /// `NoSpace` if no room can be made; `Conflict` if the number is there with another checksum and the same
    /// validator (two frames with one number); a differing validator replaces the stale copy at commit.
    /// For `Origin::Native` with an equal frame present: the put succeeds and `commit` says `AlreadyHere`.
    pub fn put(self: &Arc<Self>, dataset: &RelPath, source: &Source, meta: &FrameMeta, origin: Origin) -> Result<Put<D>> {
        todo!()
    }
    /// What is held of `dataset`, as (natives, aliens); empty sets for an unknown dataset. A cheap snapshot.
    pub fn holdings(&self, dataset: &RelPath) -> (Arc<RunSet>, Arc<RunSet>) {
        todo!()
    }
    /// Describes a cached frame; `None` if it isn't here.
    pub fn entry(&self, dataset: &RelPath, number: u64) -> Result<Option<Entry>> {
        todo!()
    }
    /// Describes those of `numbers` that are here, ordered by storage position.
    pub fn entries(&self, dataset: &RelPath, numbers: &RunSet) -> Result<Vec<Entry>> {
        todo!()
    }
    /// Opens a cached frame; `None` if it isn't here (a missing or short file is dropped and counts as not here).
    pub fn open_frame(&self, dataset: &RelPath, number: u64) -> Result<Option<OpenFrame>> {
        todo!()
    }
    /// Reads a frame and compares; a bad one is dropped. Returns whether it was good; `None` if it isn't here.
    pub fn verify(&self, dataset: &RelPath, number: u64) -> Result<Option<bool>> {
        todo!()
    }
    /// Drops a frame (stale, bad, or evicted by hand); false if it wasn't here.
    pub fn drop_frame(&self, dataset: &RelPath, number: u64) -> Result<bool> {
        todo!()
    }
    /// Drops `set` (`None`: all) of a dataset: (frames, bytes). `Busy` if it is pinned or being scanned.
    pub fn evict(&self, dataset: &RelPath, set: Option<&RunSet>) -> Result<(u64, u64)> {
        todo!()
    }
    /// Pins or unpins; survives restarts. `NotFound` for an unknown dataset.
    pub fn pin(&self, dataset: &RelPath, pinned: bool) -> Result<()> {
        todo!()
    }
    /// Marks a scan of `dataset` as under way until the guard is dropped.
    pub fn scan(self: &Arc<Self>, dataset: &RelPath) -> ScanGuard {
        todo!()
    }
    /// The layout last told for `dataset`, if any; kept across restarts.
    pub fn layout(&self, dataset: &RelPath) -> Option<Layout> {
        todo!()
    }
    /// All datasets, by path.
    pub fn datasets(&self) -> Vec<DatasetSummary> {
        todo!()
    }
    /// Space now.
    pub fn space(&self) -> Space {
        todo!()
    }
    /// Counters since the start, as (name, value): evicted_frames, evicted_bytes, dropped_corrupt, dropped_stale, …
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        todo!()
    }
    /// The whole state as text, for a person.
    pub fn dump(&self) -> String {
        todo!()
    }
    /// Writes and syncs what is in memory only; called at a graceful stop.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
}

#[allow(unused_variables)]
impl<D: Disk> Put<D> {
    /// Appends bytes; beyond the announced length is `InvalidArgument`. A full disk is `NoSpace`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        todo!()
    }
    /// Checks length and checksum (computed from what was written; `Corrupt` if it differs from `meta.checksum`) and makes the frame visible.
    pub fn commit(self) -> Result<Stored> {
        todo!()
    }
    /// As [`Put::commit`], for a frame whose checksum was not known beforehand: the computed one is recorded.
    pub fn commit_computed(self) -> Result<(Stored, u64)> {
        todo!()
    }
}
