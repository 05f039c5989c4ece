//! Reading frames: storage order, read-ahead within a memory bound, several files in flight, checksums checked.

use std::path::PathBuf;
use std::sync::Arc;
use zazen_core::{Error, Result};
use zazen_wire::frames::Delivery;

/// How to read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Bytes of frames read ahead and not yet taken, at most (a single larger frame still comes, alone). Default 256 MiB.
    pub memory_max: u64,
    /// Files in flight; `None`: as the daemon advises for its disk.
    pub readers: Option<usize>,
    /// Check every frame against its checksum (default true).
    pub check: bool,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { memory_max: 256 << 20, readers: None, check: true }
    }
}

/// A frame in memory. Its buffer goes back to the reader's pool when the last clone is dropped.
#[derive(Clone)]
pub struct Frame {
    /// Its number.
    pub number: u64,
    /// How it came; `None`: straight from the backing store, without a daemon.
    pub delivery: Option<Delivery>,
    /// Absolute path by which a program can open the bytes: in the cache if cached, else on the backing store.
    pub path: PathBuf,
    _bytes: Arc<Vec<u8>>,
}

impl Frame {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
}

/// Where frames came from, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// From the cache as natives.
    pub native: u64,
    /// From the cache as aliens that were there before.
    pub alien: u64,
    /// Read from the backing store, by the daemon or directly.
    pub backing_reads: u64,
    /// Bytes of all frames.
    pub bytes: u64,
    /// Bad checksums met and mended.
    pub mended: u64,
}

/// An iterator over frames; dropping it stops the read-ahead.
///
/// An `Err` item names its frame; the iteration can go on after it.
pub struct FrameReader {
    _private: (),
}

impl FrameReader {
    /// Where the frames taken so far came from.
    pub fn stats(&self) -> ReadStats {
        todo!()
    }
    /// Frames not yet taken.
    pub fn remaining(&self) -> u64 {
        todo!()
    }
}

impl Iterator for FrameReader {
    type Item = std::result::Result<Frame, Error>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}
