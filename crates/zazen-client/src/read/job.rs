//! One frame to be read: where its bytes are, and reading them with the checksum taken while they are in cache.

use super::buffer::{Buffer, Pool};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::checksum::FrameDigest;
use zazen_wire::frames::Delivery;

/// Bytes read before they are summed: they are still in the core's own cache then.
const PIECE: usize = 256 << 10;

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
    /// Reads the frame into a buffer of `pool`; compares with the checksum where `check` and there is one.
    pub(crate) fn read(&self, pool: &Arc<Pool>, check: bool, stop: &AtomicBool) -> std::result::Result<Buffer, Fault> {
        let length = usize::try_from(self.length).map_err(|_| {
            Fault::Bad(Error::new(ErrorKind::TooLarge, format!("frame {} has {} bytes", self.number, self.length)))
        })?;
        let expected = self.checksum.filter(|_| check);
        let mut buffer = pool.take(length);
        let mut digest = expected.map(|_| FrameDigest::default());
        let mut done = 0;
        while done < length {
            if stop.load(Ordering::Relaxed) {
                return Err(Fault::Stopped);
            }
            let piece = &mut buffer.bytes_mut()[done..length.min(done + PIECE)];
            let bytes = self.data.read(piece, done as u64).map_err(|error| Fault::Bad(self.named(error)))?;
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

    fn named(&self, error: Error) -> Error {
        error.within(format!("frame {} ({})", self.number, self.path.display()))
    }
}

impl Data {
    /// Up to `piece.len()` bytes of the frame from its byte `at` on; 0 where there are no more.
    fn read(&self, piece: &mut [u8], at: u64) -> Result<usize> {
        match self {
            Data::Descriptor(file, offset) => loop {
                match rustix::io::pread(file, &mut *piece, offset + at) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(Error::io(format!("read at byte {}", offset + at), errno.into())),
                    Ok(bytes) => return Ok(bytes),
                }
            },
            Data::Source(file, offset) => file.read_at(piece, offset + at),
            Data::Inline(bulk, start) => {
                let from = bulk.get(start + at as usize..).unwrap_or_default();
                let bytes = from.len().min(piece.len());
                piece[..bytes].copy_from_slice(&from[..bytes]);
                Ok(bytes)
            }
        }
    }
}
