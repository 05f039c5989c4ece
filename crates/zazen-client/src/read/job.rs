//! One frame to read: where its bytes are, and how to read them. The checksum is computed while the
//! bytes are in the cache.

use super::buffer::{Buffer, Pool};
use super::turn::Turn;
use super::window;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::Delivery;
use zazen_wire::checksum::FrameDigest;

/// Bytes that are read before they are checksummed. They are then still in the core's own cache.
const PIECE: usize = 256 << 10;
/// How far ahead of the read a cold file is requested from the disk. With this, one file keeps a
/// flash device busy.
const AHEAD: u64 = 4 << 20;
/// Bytes requested in one call. The kernel shortens longer requests.
const AHEAD_STEP: u64 = 1 << 20;

/// Frames longer than this are compared with their file's length before memory is allocated. For
/// shorter frames the read itself detects a wrong length.
const LOOKED_AT: u64 = 1 << 20;

/// Where a frame's bytes are.
pub(crate) enum Data {
    /// In an open file, from this offset on.
    Descriptor(Arc<OwnedFd>, u64),
    /// In a source that has no descriptor, from this offset on.
    Source(Arc<dyn SourceFile>, u64),
    /// In memory, from this index on. The other frames of the batch share the memory.
    Inline(Arc<Vec<u8>>, usize),
}

/// A frame to be read.
pub(crate) struct Job {
    pub number: u64,
    /// How the daemon delivers it; `None`: read without a daemon.
    pub delivery: Option<Delivery>,
    pub path: Arc<Path>,
    /// The file holds only this frame.
    pub whole: bool,
    pub length: u64,
    pub checksum: Option<u64>,
    pub data: Data,
}

/// Why a frame could not be read.
pub(crate) enum Fault {
    /// The reader is being dropped.
    Stopped,
    /// The bytes are short, unreadable or wrong.
    Bad(Error),
}

/// How a frame is read.
pub(crate) struct Reading<'a> {
    /// Gives the buffer.
    pub pool: &'a Arc<Pool>,
    /// Compare the bytes with the frame's checksum, if it has one.
    pub check: bool,
    /// Ends the read early once it is set.
    pub stop: &'a AtomicBool,
    /// Expect the bytes to be uncached: skip the probe, and do not call `on_cold`.
    pub from_disk: bool,
    /// Called at most once, when bytes turn out not to be in memory.
    pub on_cold: &'a dyn Fn(),
    /// Takes a turn at the disk for the file and offset, where readers take turns; the turn is held
    /// until the frame is read.
    pub turn: &'a dyn Fn(&OwnedFd, u64) -> Option<Turn<'a>>,
}

impl Job {
    /// Reads the frame as `how` says.
    pub(crate) fn read(&self, how: &Reading<'_>) -> std::result::Result<Buffer, Fault> {
        let bad = |error: Error| Fault::Bad(self.named(error));
        let length = self.length_checked().map_err(bad)?;
        let expected = self.checksum.filter(|_| how.check);
        let mut buffer = how.pool.take(length).map_err(bad)?;
        let mut digest = expected.map(|_| FrameDigest::default());
        let in_windows = self.is_cached() && self.length >= window::WORTH_BYTES;
        let turn_held = match &self.data {
            Data::Descriptor(file, offset) => (how.turn)(file, *offset),
            Data::Source(..) | Data::Inline(..) => None,
        };
        let mut hand = Hand {
            data: &self.data,
            length: self.length,
            asked: 0,
            cold: false,
            in_windows,
            brought: 0,
            on_cold: how.on_cold,
        };
        hand.cold = how.from_disk && in_windows;
        if turn_held.is_some() {
            // Not all of it is in memory. Another probe would only make the kernel begin with small
            // requests.
            hand.is_cold();
        }
        let mut done = 0;
        while done < length {
            if how.stop.load(Ordering::Relaxed) {
                return Err(Fault::Stopped);
            }
            let piece = &mut buffer.bytes_mut()[done..length.min(done + PIECE)];
            let bytes = hand.read(piece, done as u64).map_err(|error| Fault::Bad(self.named(error)))?;
            if bytes == 0 {
                let why = format!("frame {} ends after {done} of {length} bytes", self.number);
                return Err(Fault::Bad(Error::new(ErrorKind::Corrupt, why)));
            }
            if let Some(digest) = &mut digest {
                digest.update(&piece[..bytes]);
            }
            done += bytes;
        }
        let found = digest.map(|digest| digest.finish());
        match (found, expected) {
            (Some(found), Some(expected)) if found != expected => Err(Fault::Bad(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "frame {} ({}): its bytes have the checksum {found:016x}, not {expected:016x}",
                    self.number,
                    self.path.display()
                ),
            ))),
            _ => Ok(buffer),
        }
    }

    /// The length, after a check that it is within the limit for frames and within the file. The
    /// daemon may have sent any value.
    fn length_checked(&self) -> Result<usize> {
        let too_large = |why: String| Error::new(ErrorKind::TooLarge, why);
        if let Data::Descriptor(file, offset) = &self.data
            && self.length >= LOOKED_AT
        {
            let found =
                rustix::fs::fstat(&**file).map_err(|errno| Error::io("look at its file", errno.into()))?;
            let size = u64::try_from(found.st_size).unwrap_or(0);
            if offset.checked_add(self.length).is_none_or(|end| end > size) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("is said to be {} bytes from byte {offset} on, its file has {size}", self.length),
                ));
            }
        }
        usize::try_from(self.length).map_err(|_| too_large(format!("has {} bytes", self.length)))
    }

    /// Whether the bytes are on the node's own disk.
    pub(crate) fn is_cached(&self) -> bool {
        matches!(self.delivery, Some(Delivery::Native | Delivery::Alien | Delivery::Fetched))
    }

    /// Asks the disk for a frame that will be read soon.
    pub(crate) fn ask_for(&self) {
        if let (Data::Descriptor(file, offset), true) = (&self.data, self.length < window::WORTH_BYTES) {
            // This is only advice. If it fails, the read does the work.
            let length = std::num::NonZeroU64::new(self.length);
            let _ = rustix::fs::fadvise(&**file, *offset, length, rustix::fs::Advice::WillNeed);
        }
    }

    fn named(&self, error: Error) -> Error {
        error.within(format!("frame {} ({})", self.number, self.path.display()))
    }
}

/// Reads pieces of one frame and detects whether they are in memory.
struct Hand<'a> {
    data: &'a Data,
    length: u64,
    /// The offset up to which the disk was asked.
    asked: u64,
    cold: bool,
    /// Cold bytes are brought into memory window by window.
    in_windows: bool,
    /// The offset in the file up to which this was done.
    brought: u64,
    on_cold: &'a dyn Fn(),
}

impl Hand<'_> {
    /// Up to `piece.len()` bytes of the frame from its byte `at` on; 0 at the end.
    fn read(&mut self, piece: &mut [u8], at: u64) -> Result<usize> {
        match self.data {
            Data::Descriptor(file, offset) => self.read_file(file, *offset, piece, at),
            Data::Source(file, offset) => {
                self.is_cold();
                file.read_at(piece, offset + at)
            }
            Data::Inline(bulk, start) => {
                let from = bulk.get(start.saturating_add(at as usize)..).unwrap_or_default();
                let bytes = from.len().min(piece.len());
                piece[..bytes].copy_from_slice(&from[..bytes]);
                Ok(bytes)
            }
        }
    }

    fn read_file(&mut self, file: &OwnedFd, offset: u64, piece: &mut [u8], at: u64) -> Result<usize> {
        use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
        if !self.cold {
            let mut slices = [std::io::IoSliceMut::new(piece)];
            match preadv2(file, &mut slices, offset + at, ReadWriteFlags::NOWAIT) {
                // 0 bytes without waiting may mean the end, or a page that is not in memory. The
                // plain read shows which.
                Ok(bytes) if bytes > 0 => return Ok(bytes),
                _ => self.is_cold(),
            }
        }
        self.ask_ahead(file, offset, at);
        if self.in_windows {
            self.bring(file, offset + at, offset + self.length);
        }
        loop {
            match pread(file, &mut *piece, offset + at) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io(format!("read at byte {}", offset + at), errno.into())),
                Ok(bytes) => return Ok(bytes),
            }
        }
    }

    fn is_cold(&mut self) {
        if !self.cold {
            self.cold = true;
            (self.on_cold)();
        }
    }

    /// Brings in the window that begins here, if one does. The next window is requested when half
    /// of this one is read.
    fn bring(&mut self, file: &OwnedFd, at: u64, end: u64) {
        if at + window::WINDOW / 2 < self.brought || self.brought >= end {
            return;
        }
        match window::bring(file, at.max(self.brought)) {
            Some(next) => self.brought = next,
            None => self.in_windows = false,
        }
    }

    /// Asks the disk for the next bytes, because the kernel's own read-ahead starts small in every
    /// file.
    fn ask_ahead(&mut self, file: &OwnedFd, offset: u64, at: u64) {
        if self.in_windows {
            return;
        }
        let until = self.length.min(at + AHEAD);
        self.asked = self.asked.max(at);
        // Request at least half a window, so that not every piece needs a call.
        if self.asked + AHEAD / 2 > until && self.asked > at && until < self.length {
            return;
        }
        while self.asked < until {
            let bytes = AHEAD_STEP.min(until - self.asked);
            let Some(length) = std::num::NonZeroU64::new(bytes) else { return };
            // This is only advice. If it fails, the read does the work.
            let advice = rustix::fs::Advice::WillNeed;
            if rustix::fs::fadvise(file, offset + self.asked, Some(length), advice).is_err() {
                self.asked = u64::MAX / 2;
                return;
            }
            self.asked += bytes;
        }
    }
}
