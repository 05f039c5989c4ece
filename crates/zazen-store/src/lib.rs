//! Frames on a node's local disk: plain files at the dataset's own paths, a native and an alien
//! sequence log per dataset, checksums, recovery, a hard byte budget with scan-resistant eviction.
//!
//! Invariants: a frame is visible only after its data, its name and its log record are in place, in
//! that order; bytes that don't match their checksum are never handed out as verified; the budget
//! is never exceeded; losing any suffix of any write costs frames, never correctness. No network,
//! no backing store.
//!
//! Bytes on disk, failure cases and what is assumed of fsync: `docs/formats/store.md`.

mod activity;
pub mod contract;
mod counters;
mod dataset;
mod evict;
mod fences;
mod layout_bytes;
mod log;
mod lookup;
mod names;
mod old_layout;
mod open;
mod open_files;
mod own_file;
mod put;
pub mod record;
mod recover;
mod registry;
mod rewrite;
mod room;
mod segments;
mod several;
mod state;
mod store;
mod superseded;
mod types;

pub use activity::ScanGuard;
pub use layout_bytes::layout_bytes;
pub use own_file::{read_root_text, write_root_text};
pub use put::Put;
pub use segments::PACKED_BYTES_MAX;
pub use several::{DISKS_MAX, DiskPut, PageCursor, ScanGuards, Stores};
pub use store::Store;
pub use types::{
    CachedFrame, DatasetSummary, EntriesCursor, OpenFrame, RecoveryReport, Space, StoreConfig, Stored,
};
