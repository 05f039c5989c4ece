//! Reads frames that lie apart, for random access: small ones into buffers that they share.
//!
//! Invariant: each job gets exactly one result, in the order of the jobs. A frame with wrong bytes,
//! or whose read failed, is read again alone, in the same way as a single frame.

use super::access::Access;
use super::buffer::{Buffer, Slice};
use super::extent::SMALL;
use super::job::{Data, Job};
use super::outcome::Got;
use rustix::io::{Errno, pread};
use std::os::fd::OwnedFd;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::checksum::frame_checksum;

/// Frames in one buffer begin at multiples of this, as the store places them.
const ALIGN: usize = 64;
/// The size of a buffer that several frames share.
const SHARED_BYTES: usize = 256 << 10;

/// Reads `jobs` on this thread.
pub(crate) fn read_all(access: &Access, jobs: Vec<Job>, done: &mut dyn FnMut(u64, Result<Got>)) {
    let mut group = Vec::new();
    let mut bytes = 0;
    for job in jobs {
        let length = room_of(&job);
        if !group.is_empty() && length.is_none_or(|length| bytes + length > SHARED_BYTES) {
            read_group(access, std::mem::take(&mut group), bytes, done);
            bytes = 0;
        }
        match length {
            Some(length) => {
                group.push(job);
                bytes += length;
            }
            None => done(job.number, read_alone(access, job)),
        }
    }
    if !group.is_empty() {
        read_group(access, group, bytes, done);
    }
}

/// What a small frame takes of a shared buffer; `None` if it gets a buffer of its own.
fn room_of(job: &Job) -> Option<usize> {
    // Other frames come from their source itself, whose version is checked with each.
    let in_memory = job.is_cached() || matches!(job.data, Data::Inline(..));
    (in_memory && job.length <= SMALL).then(|| (job.length as usize).next_multiple_of(ALIGN))
}

fn read_alone(access: &Access, job: Job) -> Result<Got> {
    let number = job.number;
    let stopped = || Error::new(ErrorKind::ShuttingDown, format!("frame {number}: the read was stopped"));
    access.read(job, &|| ()).unwrap_or_else(|| Err(stopped()))
}

fn read_group(access: &Access, jobs: Vec<Job>, bytes: usize, done: &mut dyn FnMut(u64, Result<Got>)) {
    let all = access.pool.take(bytes).ok().map(|mut buffer| {
        let good = fill(access, &jobs, &mut buffer);
        (Slice::all(buffer), good)
    });
    let mut begin = 0;
    for (at, job) in jobs.into_iter().enumerate() {
        let length = job.length as usize;
        let slice = all.as_ref().filter(|(_, good)| good[at]).and_then(|(all, _)| all.part(begin, length));
        begin += length.next_multiple_of(ALIGN);
        let number = job.number;
        let got = match slice {
            Some(buffer) => {
                Ok(Got { delivery: job.delivery, place: access.file_of(&job), buffer, mended: false })
            }
            None => read_alone(access, job),
        };
        done(number, got);
    }
}

/// Fills `buffer` with the frames one after the other. For each: whether its bytes are right.
fn fill(access: &Access, jobs: &[Job], buffer: &mut Buffer) -> Vec<bool> {
    let mut good = Vec::with_capacity(jobs.len());
    let mut rest = buffer.bytes_mut();
    for job in jobs {
        let (room, behind) = rest.split_at_mut((job.length as usize).next_multiple_of(ALIGN));
        rest = behind;
        let bytes = &mut room[..job.length as usize];
        let expected = job.checksum.filter(|_| access.check);
        good.push(
            read_into(access, job, bytes)
                && expected.is_none_or(|expected| frame_checksum(bytes) == expected),
        );
    }
    good
}

fn read_into(access: &Access, job: &Job, bytes: &mut [u8]) -> bool {
    match &job.data {
        Data::Descriptor(file, offset) => {
            let _turn = access.turn(job, file, *offset, job.length);
            read_full(file, bytes, *offset)
        }
        Data::Inline(bulk, start) => match bulk.get(*start..*start + bytes.len()) {
            Some(from) => {
                bytes.copy_from_slice(from);
                true
            }
            None => false,
        },
        Data::Source(..) => false,
    }
}

fn read_full(file: &OwnedFd, mut bytes: &mut [u8], mut at: u64) -> bool {
    while !bytes.is_empty() {
        match pread(file, &mut *bytes, at) {
            Err(Errno::INTR) => {}
            Err(_) | Ok(0) => return false,
            Ok(read) => {
                at += read as u64;
                bytes = &mut bytes[read..];
            }
        }
    }
    true
}
