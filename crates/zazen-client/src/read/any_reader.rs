//! An iteration over frames in either order, for the language bindings.

use super::{Frame, FrameReader, OrderedReader, ReadStats};
use zazen_core::Error;

/// Frames in storage order, which is the fastest, or by number.
pub enum AnyReader {
    /// In storage order, misses last.
    Storage(Box<FrameReader>),
    /// By ascending number.
    Ordered(Box<OrderedReader>),
}

impl AnyReader {
    /// The next frame, if it is ready. Does not wait and does not read. `None` does not mean that
    /// no frame will come.
    pub fn next_ready(&mut self) -> Option<std::result::Result<Frame, Error>> {
        match self {
            AnyReader::Storage(reader) => reader.next_ready(),
            AnyReader::Ordered(_) => None,
        }
    }

    /// Where the frames read so far came from.
    pub fn stats(&self) -> ReadStats {
        match self {
            AnyReader::Storage(reader) => reader.stats(),
            AnyReader::Ordered(reader) => reader.stats(),
        }
    }

    /// Frames not yet taken.
    pub fn remaining(&self) -> u64 {
        match self {
            AnyReader::Storage(reader) => reader.remaining(),
            AnyReader::Ordered(reader) => reader.remaining(),
        }
    }
}

impl Iterator for AnyReader {
    type Item = std::result::Result<Frame, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            AnyReader::Storage(reader) => reader.next(),
            AnyReader::Ordered(reader) => reader.next(),
        }
    }
}
