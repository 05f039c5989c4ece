//! A submitted frame.

use std::sync::OnceLock;
use zazen_core::{FrameMeta, Series, Source};
use zazen_frames::messages::Push;
use zazen_wire::checksum::frame_checksum;

/// The bytes and the metadata of a submitted frame.
pub(super) struct Payload {
    pub(super) dataset: String,
    pub(super) source: Source,
    pub(super) series: Series,
    /// The frame's metadata without the checksum.
    pub(super) meta: FrameMeta,
    pub(super) bytes: Vec<u8>,
    pub(super) checksum: OnceLock<u64>,
}

impl Payload {
    /// The arguments of the call. The first courier computes the checksum, so the application's
    /// thread does not.
    pub(super) fn message(&self) -> Push {
        let mut meta = self.meta.clone();
        meta.checksum = *self.checksum.get_or_init(|| frame_checksum(&self.bytes));
        let (dataset, series) = (self.dataset.clone(), self.series.clone());
        Push { dataset, source: self.source.clone(), meta, series }
    }
}
