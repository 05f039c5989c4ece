//! Messages of the frames service (service 2).
//!
//! Each struct is the payload of one request or reply. `messages_codec.rs` holds their bytes.

use zazen_core::{FrameMeta, Layout, Origin, RelPath, RunSet, Series};

/// Function numbers of the frames service.
pub mod frames_fn {
    /// [`super::OpenDataset`] → [`super::DatasetInfo`].
    pub const OPEN: u16 = 1;
    /// [`super::Query`] → [`super::Holdings`].
    pub const QUERY: u16 = 2;
    /// [`super::ScanOpen`] → [`super::ScanOpened`]. Local callers only.
    pub const SCAN_OPEN: u16 = 3;
    /// [`super::ScanNext`] → [`super::ScanBatch`] with descriptors. Local callers only.
    pub const SCAN_NEXT: u16 = 4;
    /// [`super::ScanClose`] → (). Local callers only.
    pub const SCAN_CLOSE: u16 = 5;
    /// [`super::Push`] + bulk bytes → [`super::Pushed`].
    pub const PUSH: u16 = 6;
    /// [`super::ReportBad`] → (): a reader met bytes that don't match their checksum; the daemon checks and drops.
    pub const REPORT_BAD: u16 = 7;
    /// [`super::Fetch`] → [`super::Fetched`]: fill from the backing store (`zazen load`).
    pub const FETCH: u16 = 8;
    /// [`super::Evict`] → [`super::Evicted`].
    pub const EVICT: u16 = 9;
    /// [`super::Pin`] → ().
    pub const PIN: u16 = 10;
    /// [`super::Verify`] → [`super::Verified`].
    pub const VERIFY: u16 = 11;
    /// [`super::List`] → [`super::Listing`].
    pub const LIST: u16 = 12;
    /// () → UTF-8 JSON: datasets with counts and bytes.
    pub const DATASETS: u16 = 13;
}

/// Opens a dataset by the absolute path that the user types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDataset {
    /// Absolute path of the dataset's directory on the backing store.
    pub path: String,
    /// Also list the backing directory and return which frame numbers exist.
    pub want_extent: bool,
    /// A template given by the user, where detection is not wanted; in [`zazen_core::NameTemplate`] notation. With
    /// `only_cached` also `pieces` or `list`.
    pub pattern: Option<String>,
    /// For tools: the backing store is not asked for a layout; [`DatasetInfo::series`] tells what the cache has.
    pub only_cached: bool,
}

/// An opened dataset. The handle is valid on this connection only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// For later calls on the same connection.
    pub handle: u32,
    /// The cache's name for the dataset: its path beneath its backing root, and its series where that is known.
    pub dataset: RelPath,
    /// How numbers map to files, if known (from a manifest, the pattern, a listing, or an earlier push).
    pub layout: Option<Layout>,
    /// The frame numbers that exist on the backing store; `None` if not asked for, or if it does not answer.
    pub extent: Option<RunSet>,
    /// False if the backing store did not answer; then what is known comes from the cache alone.
    pub backing_ok: bool,
    /// With [`OpenDataset::only_cached`]: the series of this directory in the cache, as patterns for opening each.
    pub series: Vec<String>,
}

/// Asks for what the node holds of an opened dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// Only numbers ≥ this,
    pub begin: u64,
    /// … ≤ this,
    pub end: u64,
    /// … and at this stride from `begin`.
    pub stride: u64,
}

/// What a node holds, as frame numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Pushed or loaded here.
    pub native: RunSet,
    /// Brought here by misses.
    pub alien: RunSet,
}

/// Starts a scan: the daemon hands out these frames, each once, in storage order, misses last as they arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOpen {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// The frame numbers to hand out.
    pub set: RunSet,
}

/// A scan begun; ended by [`ScanClose`] or with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOpened {
    /// For later calls on the same connection.
    pub scan: u32,
    /// How many of the frames are in the cache now.
    pub cached: u64,
}

/// Asks for the next frames of a scan. Several connections of one process may not share a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanNext {
    /// From [`ScanOpened`].
    pub scan: u32,
    /// At most so many frames (the daemon also bounds it by [`zazen_core::limits::BATCH_FRAMES_MAX`], and the files
    /// that hold them by [`zazen_core::limits::FDS_PER_MESSAGE_MAX`]).
    pub frames_max: u16,
    /// At most so many bytes together, but at least one frame.
    pub bytes_max: u64,
}

/// How a frame of a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// From the cache, a native.
    Native,
    /// From the cache, an alien that was there before.
    Alien,
    /// Fetched from the backing store for this read and kept as an alien.
    Fetched,
    /// A descriptor of the source itself: the cache had no room, or is told not to keep.
    ReadThrough,
    /// Bytes follow in the reply's bulk part: the source has no descriptor to pass (served backing) and there is no room.
    Inline,
    /// This frame could not be had; `error` says why. No descriptor.
    Failed,
}

/// One frame of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// The frame's number.
    pub number: u64,
    /// How it came.
    pub delivery: Delivery,
    /// Index into the message's descriptors, where there is one; packed frames share it. Unless the delivery is
    /// `Failed`, the bytes of a frame without one follow in the reply's bulk part, in the order of the entries:
    /// packed frames come so to other users than root and the daemon's.
    pub fd: Option<u16>,
    /// Where the frame begins in the descriptor's file, or in the bulk part, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// CRC-64/NVME of its bytes, where known (always for cached frames).
    pub checksum: Option<u64>,
    /// Absolute path by which the bytes can be opened: in the cache if cached (empty for other users than root and the
    /// daemon's: the cache is closed to them), else on the backing store.
    /// For a piece of a larger file on the backing store it is that file.
    pub path: String,
    /// For [`Delivery::Failed`]: (kind code, message).
    pub error: Option<(u32, String)>,
    /// The file behind descriptor and path has this frame's bytes and nothing else.
    pub whole: bool,
}

/// Some frames of a scan; empty exactly when the scan has handed out everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanBatch {
    /// The frames.
    pub entries: Vec<BatchEntry>,
}

/// Ends a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanClose {
    /// From [`ScanOpened`].
    pub scan: u32,
}

/// A frame on its way into a node's cache as a native; its bytes follow as the call's bulk part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Absolute path of the dataset as users spell it.
    pub dataset: String,
    /// Where the frame lives beneath the dataset (file name), and which part of that file it is.
    pub source: zazen_core::Source,
    /// Number, length, checksum, source validator, owner and mode.
    pub meta: FrameMeta,
    /// The series that it belongs to.
    pub series: Series,
}

/// What became of a push. Anything else is an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Stored as a native.
    Stored,
    /// The very same frame (number and checksum) was here already.
    AlreadyHere,
}

/// A reader's complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportBad {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// The frame.
    pub number: u64,
}

/// Fills the cache from the backing store. The reply comes when all is done; ask in chunks to show progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// Frame numbers.
    pub set: RunSet,
    /// What they become.
    pub origin: Origin,
}

/// What became of a [`Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Frames that are in the cache now because of this call.
    pub fetched: u64,
    /// Frames that were there before.
    pub present: u64,
    /// Bytes read from the backing store.
    pub bytes: u64,
    /// Frames that could not be had (at most 100 are named): number, kind code, message.
    pub failed: Vec<(u64, u32, String)>,
}

/// Removes frames from the cache. Pinned datasets are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evict {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// Which; `None`: the whole dataset.
    pub set: Option<RunSet>,
}

/// What an [`Evict`] removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Pins a dataset (never evicted to make room) or unpins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// True to pin.
    pub pinned: bool,
}

/// Checks cached frames against their checksums, from frame number `after` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// First frame number to check.
    pub from: u64,
    /// Stop after so many frames.
    pub frames_max: u32,
}

/// What a [`Verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Frames checked.
    pub checked: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// Frames whose bytes did not match; they have been dropped.
    pub bad: Vec<u64>,
    /// Where to go on; `None`: done.
    pub next: Option<u64>,
}

/// Asks for the cached frames of a dataset, one row each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// From [`DatasetInfo`].
    pub handle: u32,
    /// First frame number.
    pub from: u64,
    /// At most so many rows (bounded by the daemon).
    pub rows_max: u32,
}

/// One cached frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRow {
    /// What is known of it.
    pub meta: FrameMeta,
    /// How it came to this node.
    pub origin: Origin,
    /// Its source beneath the dataset.
    pub source: zazen_core::Source,
    /// Absolute path of the bytes in the cache (a segment file for packed frames); empty for other users than root and
    /// the daemon's.
    pub path: String,
}

/// Rows of a [`List`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Ascending by number.
    pub rows: Vec<ListRow>,
    /// Where to go on; `None`: done.
    pub next: Option<u64>,
}
