//! One frame to be read: where its bytes are, and reading them with the checksum taken while they are in cache.

use super::buffer::{Buffer, Pool};
use super::turn::Turn;
use super::window;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_backing::SourceFile;
use zazen_core::limits::FRAME_BYTES_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::Delivery;
use zazen_wire::checksum::FrameDigest;

/// Bytes read before they are summed: they are still in the core's own cache then.
const PIECE: usize = 256 << 10;
/// How far ahead of the read a cold file is asked of the disk: one file alone keeps a flash device busy then.
const AHEAD: u64 = 4 << 20;
/// Bytes asked for in one call: the kernel cuts longer requests short.
const AHEAD_STEP: u64 = 1 << 20;

/// Frames whose length is compared with their file's before there is memory for them: a read tells of smaller ones.
const LOOKED_AT: u64 = 1 << 20;

/// Where a frame's bytes are.
pub(crate) enum Data {
    /// In an open file, from this offset on.
    Descriptor(Arc<OwnedFd>, u64),
    /// In a source that has no descriptor, from this offset on.
    Source(Arc<dyn SourceFile>, u64),
    /// Here, from this index on; shared with the other frames of the batch.
    Inline(Arc<Vec<u8>>, usize),
}

/// A frame to be read.
pub(crate) struct Job {
    pub number: u64,
    /// How the daemon delivers it; `None`: directly.
    pub delivery: Option<Delivery>,
    pub path: PathBuf,
    /// The file has nothing but this frame.
    pub whole: bool,
    pub length: u64,
    pub checksum: Option<u64>,
    pub data: Data,
}

/// Why a frame's bytes are not to be had.
pub(crate) enum Fault {
    /// The reader is being dropped.
    Stopped,
    /// The bytes are short, unreadable or wrong.
    Bad(Error),
}

impl Job {
    /// Reads the frame into a buffer of `pool`; compares with the checksum where `check` and there is one. `on_cold`
    /// is told once if bytes are found not to be in memory yet. A file's bytes are read in a `turn`, if it gives one. A
    /// frame `from_disk` is one that nobody needs to find cold.
    pub(crate) fn read<'a>(
        &self,
        pool: &Arc<Pool>,
        check: bool,
        stop: &AtomicBool,
        from_disk: bool,
        on_cold: &dyn Fn(),
        turn: &dyn Fn(&OwnedFd, u64) -> Option<Turn<'a>>,
    ) -> std::result::Result<Buffer, Fault> {
        let bad = |error: Error| Fault::Bad(self.named(error));
        let length = self.length_checked().map_err(bad)?;
        let expected = self.checksum.filter(|_| check);
        let mut buffer = pool.take(length).map_err(bad)?;
        let mut digest = expected.map(|_| FrameDigest::default());
        let in_windows = self.is_cached() && self.length >= window::WORTH_BYTES;
        let turn_held = match &self.data {
            Data::Descriptor(file, offset) => turn(file, *offset),
            Data::Source(..) | Data::Inline(..) => None,
        };
        let mut hand = Hand {
            data: &self.data,
            length: self.length,
            asked: 0,
            cold: false,
            in_windows,
            brought: 0,
            on_cold,
        };
        hand.cold = from_disk && in_windows;
        if turn_held.is_some() {
            // Not all of it is in memory: asking once more would only have the kernel begin with small requests.
            hand.is_cold();
        }
        let mut done = 0;
        while done < length {
            if stop.load(Ordering::Relaxed) {
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

    /// The length, once it is known to be no more than a frame may have and than its file has: whoever told it may lie.
    fn length_checked(&self) -> Result<usize> {
        let too_large = |why: String| Error::new(ErrorKind::TooLarge, why);
        if self.length > FRAME_BYTES_MAX {
            let why =
                format!("has {} bytes, the limit is {FRAME_BYTES_MAX}; cut it into frames", self.length);
            return Err(too_large(why));
        }
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

    /// Has the disk begin with a frame that will be read soon.
    pub(crate) fn ask_for(&self) {
        if let (Data::Descriptor(file, offset), true) = (&self.data, self.length < window::WORTH_BYTES) {
            // Advice only: what it does not do, the read does.
            let length = std::num::NonZeroU64::new(self.length);
            let _ = rustix::fs::fadvise(&**file, *offset, length, rustix::fs::Advice::WillNeed);
        }
    }

    fn named(&self, error: Error) -> Error {
        error.within(format!("frame {} ({})", self.number, self.path.display()))
    }
}

/// Reads pieces of one frame, and learns on the way whether they are in memory.
struct Hand<'a> {
    data: &'a Data,
    length: u64,
    /// Up to where the disk has been asked.
    asked: u64,
    cold: bool,
    /// What is cold is brought window by window.
    in_windows: bool,
    /// Up to where in the file it was.
    brought: u64,
    on_cold: &'a dyn Fn(),
}

impl Hand<'_> {
    /// Up to `piece.len()` bytes of the frame from its byte `at` on; 0 where there are no more.
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
                // 0 bytes without waiting may be the end or a page that isn't there: the plain read tells.
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

    /// Brings the window that begins here, if one does; the next one is asked for when half of this one is read.
    fn bring(&mut self, file: &OwnedFd, at: u64, end: u64) {
        if at + window::WINDOW / 2 < self.brought || self.brought >= end {
            return;
        }
        match window::bring(file, at.max(self.brought)) {
            Some(next) => self.brought = next,
            None => self.in_windows = false,
        }
    }

    /// Has the disk begin with what comes next: the kernel's own read-ahead starts small in every file.
    fn ask_ahead(&mut self, file: &OwnedFd, offset: u64, at: u64) {
        if self.in_windows {
            return;
        }
        let until = self.length.min(at + AHEAD);
        self.asked = self.asked.max(at);
        // Half a window at least, not a call for every piece.
        if self.asked + AHEAD / 2 > until && self.asked > at && until < self.length {
            return;
        }
        while self.asked < until {
            let bytes = AHEAD_STEP.min(until - self.asked);
            let Some(length) = std::num::NonZeroU64::new(bytes) else { return };
            // Advice only: what it does not do, the read does.
            let advice = rustix::fs::Advice::WillNeed;
            if rustix::fs::fadvise(file, offset + self.asked, Some(length), advice).is_err() {
                self.asked = u64::MAX / 2;
                return;
            }
            self.asked += bytes;
        }
    }
}
