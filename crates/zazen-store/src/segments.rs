//! Segment files: many small frames in one file, append-only.
//!
//! All segments of a dataset form one address space: segment `n` covers addresses `n·64 MiB …`. A
//! segment holds frames of one access class only (owner, group, mode, native or alien), because
//! whoever gets a descriptor of it can read all of it. It is removed when its last live frame goes,
//! and never written to again after the store was closed.

use crate::open_files::{KeptFile, OpenFiles};
use std::collections::BTreeMap;
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, RelPath, Result};
use zazen_env::{Disk, DiskFile, DiskPath};

/// Frames up to this length are packed, unless a store's bounds say otherwise. A file of its own
/// costs a frame of 64 KiB more time than its bytes do: the file is made, named, opened and closed.
pub const PACKED_BYTES_MAX: u64 = 128 << 10;
/// Addresses that a segment covers.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 20;
/// Frames begin at multiples of this, so that a mapped frame is aligned for any number in it.
const ALIGNMENT: u64 = 64;
const OPEN_MAX: usize = 32;
const NUMBER_MAX: u64 = (1 << 48) / SEGMENT_BYTES;

/// The segment of an address, and the offset in its file.
pub(crate) fn locate(address: u64) -> (u64, u64) {
    (address / SEGMENT_BYTES, address % SEGMENT_BYTES)
}

pub(crate) fn dir(dataset: &RelPath) -> DiskPath {
    DiskPath::own(dataset, "segments")
}

pub(crate) fn path(dataset: &RelPath, segment: u64) -> DiskPath {
    dir(dataset).child(&format!("{segment:07}"))
}

/// What the files hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentUse {
    /// Bytes of the file.
    pub(crate) len: u64,
    /// Live frames in it.
    pub(crate) frames: u64,
}

/// All segments of a dataset, by number.
pub(crate) type SegmentTable = BTreeMap<u64, SegmentUse>;

/// Who may read a segment, and what kind of frames it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    uid: u32,
    gid: u32,
    mode: u32,
    native: bool,
}

struct OpenSegment<F> {
    number: u64,
    file: Arc<KeptFile<F>>,
    len: u64,
}

/// The segments being written.
pub(crate) struct SegmentWriter<F> {
    open: BTreeMap<Class, OpenSegment<F>>,
    next: u64,
    files: Arc<OpenFiles<F>>,
}

impl<F: DiskFile> SegmentWriter<F> {
    /// A writer whose first segment is number `next`.
    pub(crate) fn new(next: u64, files: Arc<OpenFiles<F>>) -> SegmentWriter<F> {
        SegmentWriter { open: BTreeMap::new(), next, files }
    }

    /// Appends a frame to the segment of its class; returns its address and the segment's new
    /// length.
    pub(crate) fn append<D: Disk<File = F>>(
        &mut self,
        disk: &D,
        dataset: &RelPath,
        meta: &FrameMeta,
        origin: Origin,
        bytes: &[u8],
    ) -> Result<(u64, u64)> {
        let class = Class { uid: meta.uid, gid: meta.gid, mode: meta.mode, native: origin == Origin::Native };
        let fits = |segment: &OpenSegment<F>| segment.len + bytes.len() as u64 <= SEGMENT_BYTES - ALIGNMENT;
        if !self.open.get(&class).is_some_and(fits) {
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            let segment = self.begin(disk, dataset)?;
            self.open.insert(class, segment);
        }
        let Some(segment) = self.open.get_mut(&class) else {
            return Err(Error::new(ErrorKind::Io, "no open segment")); // inserted above
        };
        segment.file.file()?.write_all_at(bytes, segment.len)?;
        let address = segment.number * SEGMENT_BYTES + segment.len;
        let end = segment.len + bytes.len() as u64;
        segment.len = end.next_multiple_of(ALIGNMENT);
        Ok((address, end))
    }

    fn begin<D: Disk<File = F>>(&mut self, disk: &D, dataset: &RelPath) -> Result<OpenSegment<F>> {
        let number = self.next;
        if number >= NUMBER_MAX {
            let text = format!("dataset {dataset} has used up its {NUMBER_MAX} segments; evict it once");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        self.next += 1;
        let path = path(dataset, number);
        let file = disk.create(&path)?;
        file.mark(false)?;
        Ok(OpenSegment { number, file: self.files.keep(path, None, file), len: 0 })
    }

    /// Stops writing to `segment`, which is about to be removed.
    pub(crate) fn close(&mut self, segment: u64) {
        self.open.retain(|_, open| open.number != segment);
    }

    /// Stops writing to all segments.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
    }
}
