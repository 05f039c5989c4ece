//! What goes into a store and what comes out, as plain data.

use std::fs::File;
use std::path::PathBuf;
use zazen_core::{FrameMeta, Origin, RelPath, Source};
use zazen_env::DiskPath;
use zazen_frames::look::Cached;
use zazen_frames::scan;

/// Positions from here on belong to frames with files of their own, in log order. Positions of
/// packed frames are smaller.
pub(crate) const POSITION_FILES: u64 = 1 << 62;

/// Bounds of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The hard limit of what frames, logs and segments may take, in bytes.
    pub budget_bytes: u64,
    /// Bytes of the file system that always stay free.
    pub free_floor_bytes: u64,
    /// Frames up to this length are packed, many in a file. Frames that are here stay as they are.
    /// The daemon takes [`crate::PACKED_BYTES_MAX`].
    pub packed_bytes_max: u64,
}

/// What recovery found; each item is also logged.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Datasets found.
    pub datasets: u64,
    /// Frames whose records are good. Their files are looked at when they are opened.
    pub frames: u64,
    /// Log bytes cut off behind the first bad record.
    pub log_bytes_cut: u64,
    /// Records that name nothing usable: aliens that are natives too, and names that can't be read.
    pub frames_dropped: u64,
    /// Unfinished files removed: temporaries, and files without a record that carry Zazen's mark.
    pub temporaries_removed: u64,
    /// Files beneath a dataset that are not Zazen's; left alone.
    pub foreign_files: u64,
    /// False if the last process did not stop by [`crate::Store::sync`]; then the trees were
    /// walked.
    pub clean: bool,
    /// What a person should know, one line each; files set aside are named here.
    pub problems: Vec<String>,
}

/// A cached frame, opened.
pub struct OpenFrame {
    /// The file that holds it; may hold others too.
    pub file: File,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What is known of it.
    pub meta: FrameMeta,
    /// Its source beneath the dataset.
    pub source: Source,
    /// How it came here.
    pub origin: Origin,
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Whether the file may hold other frames, too.
    pub is_packed: bool,
}

/// A cached frame, described. `position` orders frames as they lie on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFrame {
    /// What is known of it.
    pub meta: FrameMeta,
    /// How it came here.
    pub origin: Origin,
    /// Its source beneath the dataset.
    pub source: Source,
    /// Absolute path of the file that holds it.
    pub path: PathBuf,
    /// Where it begins in that file, in bytes.
    pub offset: u64,
    /// Storage order.
    pub position: u64,
    /// The file beneath the store's root.
    pub(crate) place: DiskPath,
    /// Which disk of the cache, in the order of [`crate::Stores::disks`].
    pub(crate) disk: u8,
}

impl CachedFrame {
    /// Whether both frames are packed in one file: whoever may read one may read the other.
    pub fn is_packed_with(&self, other: &CachedFrame) -> bool {
        self.is_packed() && other.is_packed() && self.disk == other.disk && self.place == other.place
    }

    /// Whether its file may hold other frames, too.
    pub fn is_packed(&self) -> bool {
        // Packed frames have their addresses as positions; files of their own come after all of
        // those.
        self.position < POSITION_FILES
    }
}

impl Cached for CachedFrame {
    fn meta(&self) -> &FrameMeta {
        &self.meta
    }
    fn source(&self) -> &Source {
        &self.source
    }
}

impl scan::Stored for CachedFrame {
    fn shares_file_with(&self, other: &CachedFrame) -> bool {
        self.is_packed_with(other)
    }
    fn origin(&self) -> Origin {
        self.origin
    }
}

/// Where [`crate::Store::entries_page`] goes on; begin with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntriesCursor {
    pub(crate) in_aliens: bool,
    pub(crate) generation: u64,
    pub(crate) block: u64,
    /// Pages asked for so far.
    pub(crate) pages: u32,
}

impl EntriesCursor {
    /// Blocks of records that the next page reads, at most `most`. The first page is short, because
    /// its reader waits for it; each later one is four times as long.
    pub(crate) fn next_blocks(&mut self, most: u64) -> u64 {
        self.pages = self.pages.saturating_add(1);
        4_u64.saturating_pow(self.pages).min(most)
    }
}

/// One dataset in numbers.
#[derive(Clone, Debug)]
pub struct DatasetSummary {
    /// Its path, a series'.
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
    /// The store's clock at its last use (push, query, scan); larger is later.
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
    /// Of that, what the cache must leave free.
    pub floor: u64,
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The frame is in the cache.
    Stored,
    /// The same number with the same checksum was there already. Nothing changed, except that an
    /// alien that is pushed again becomes a native.
    AlreadyHere,
}
