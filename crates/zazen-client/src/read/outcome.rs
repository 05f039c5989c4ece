//! What came of reading a frame.

use super::buffer::Slice;
use super::frame_file::FrameFile;
use zazen_core::Result;
use zazen_frames::messages::Delivery;

/// A frame read.
pub(crate) struct Got {
    pub delivery: Option<Delivery>,
    pub place: FrameFile,
    pub buffer: Slice,
    /// A bad checksum was found and repaired.
    pub mended: bool,
}

impl Got {
    /// Whether it was in this node's cache, as it should be.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.delivery, Some(Delivery::Native | Delivery::Alien)) && !self.mended
    }
}

/// The outcome of a frame.
pub(crate) struct Outcome {
    pub number: u64,
    pub got: Result<Got>,
    /// Bytes that count towards the limit.
    pub charged: u64,
}
