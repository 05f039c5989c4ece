//! Reads small frames that follow each other in one file together: one system call and one buffer
//! for many frames.
//!
//! Invariant: every job gets exactly one result. A frame with wrong bytes, or whose read failed, is
//! read again alone, in the same way as a single frame.

use super::access::Access;
use super::buffer::Slice;
use super::job::{Data, Job};
use super::outcome::Got;
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zazen_core::Result;
use zazen_wire::checksum::frame_checksum;

/// Frames up to this length are read together. The store packs longer ones too, but a caller that
/// keeps one of those would keep the buffer of all.
pub(crate) const SMALL: u64 = 16 << 10;
/// The largest gap between two frames that are read together. The store's alignment leaves smaller
/// gaps.
const GAP_MAX: u64 = 64;

impl Job {
    /// The file and the place of the frame in it, if the cache packs the frame with others.
    pub(crate) fn packed_place(&self) -> Option<(&Arc<OwnedFd>, u64)> {
        match &self.data {
            Data::Descriptor(file, offset) if !self.whole && self.is_cached() => Some((file, *offset)),
            _ => None,
        }
    }

    /// The same, if the frame is small.
    pub(crate) fn small_place(&self) -> Option<(&Arc<OwnedFd>, u64)> {
        self.packed_place().filter(|_| self.length <= SMALL)
    }

    /// Whether `next` follows closely in the same file.
    pub(crate) fn is_followed_by(&self, next: &Job) -> bool {
        let (Some((file, offset)), Some((other, begin))) = (self.packed_place(), next.packed_place()) else {
            return false;
        };
        let end = offset + self.length;
        Arc::ptr_eq(file, other) && (end..end + GAP_MAX).contains(&begin)
    }
}

/// Reads `jobs`, which follow each other, and gives each frame to `done` with its number and
/// length. Stops when the reader is being dropped.
pub(crate) fn read(
    access: &Access,
    jobs: Vec<Job>,
    on_cold: &dyn Fn(),
    done: &mut dyn FnMut(u64, u64, Result<Got>),
) {
    let together = match &jobs[..] {
        [first, .., last] => read_together(access, first, last, on_cold),
        _ => None,
    };
    for job in jobs {
        if access.stopped() {
            return;
        }
        let (number, length) = (job.number, job.length);
        let slice = together.as_ref().and_then(|(begin, all)| part(access, &job, *begin, all));
        let got = match slice {
            Some(buffer) => {
                let place = access.file_of(&job);
                Ok(Got { delivery: job.delivery, place, buffer, mended: false })
            }
            None => match access.read(job, on_cold) {
                Some(got) => got,
                None => return,
            },
        };
        done(number, length, got);
    }
}

/// The bytes from `first` to `last`, and where they begin in the file; `None` if they can't be
/// read.
fn read_together(access: &Access, first: &Job, last: &Job, on_cold: &dyn Fn()) -> Option<(u64, Slice)> {
    let (file, begin) = first.small_place()?;
    let (_, end) = last.small_place()?;
    let length = usize::try_from((end + last.length).checked_sub(begin)?).ok()?;
    let mut buffer = access.pool.take(length).ok()?;
    let mut filled = 0;
    let _turn = access.turn(first, file, begin, length as u64);
    while filled < length {
        let rest = &mut buffer.bytes_mut()[filled..];
        let at = begin + filled as u64;
        let mut slices = [std::io::IoSliceMut::new(rest)];
        // The bytes are in memory, so no other thread need wait for the disk.
        if let Ok(bytes) = preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT)
            && bytes > 0
        {
            filled += bytes;
            continue;
        }
        on_cold();
        match pread(file, &mut buffer.bytes_mut()[filled..], at) {
            Err(Errno::INTR) => {}
            Err(_) | Ok(0) => return None,
            Ok(bytes) => filled += bytes,
        }
    }
    Some((begin, Slice::all(buffer)))
}

/// `job`'s part of `all`, if its checksum is right.
fn part(access: &Access, job: &Job, begin: u64, all: &Slice) -> Option<Slice> {
    let (_, offset) = job.small_place()?;
    let slice = all.part(usize::try_from(offset.checked_sub(begin)?).ok()?, job.length as usize)?;
    let expected = job.checksum.filter(|_| access.check);
    expected.is_none_or(|expected| frame_checksum(slice.bytes()) == expected).then_some(slice)
}
