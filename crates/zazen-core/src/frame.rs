//! A frame's number and what is known of it.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::FRAME_NO_MAX;
use std::fmt;

/// The number of a frame within its dataset: 0 ..= 2⁴⁰.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(u64);

impl FrameNo {
    /// Frame `number`; fails with [`ErrorKind::TooLarge`] beyond 2⁴⁰.
    pub fn new(number: u64) -> Result<FrameNo> {
        if number > FRAME_NO_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("frame number {number} is beyond the limit of 2^40 ({FRAME_NO_MAX})"),
            ));
        }
        Ok(FrameNo(number))
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FrameNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a cached frame came to its node (Zazen paper §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Pushed here by a writer, or loaded here on purpose; meant to be on one node only.
    Native,
    /// Brought here by a read miss.
    Alien,
}

/// What a source looked like when it was copied; a differing one makes the copy stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validator {
    /// Size of the source file in bytes (of the whole file, also where the frame is a piece of it).
    pub size: u64,
    /// Modification time of the source in nanoseconds since the epoch.
    pub mtime_ns: i64,
}

/// What a node knows of a frame that it holds, or is about to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// The frame's number.
    pub number: FrameNo,
    /// Its length in bytes.
    pub length: u64,
    /// CRC-64/NVME of its bytes.
    pub checksum: u64,
    /// What its source looked like; `None` if the writer gave none (then it never becomes stale).
    pub validator: Option<Validator>,
    /// Owner of the source.
    pub uid: u32,
    /// Group of the source.
    pub gid: u32,
    /// Permission bits of the source (0o7777).
    pub mode: u32,
}
