//! Reads, writes and the like on a file of this machine, for the kernel's requests.

use crate::tree::{Errno, Result};
use std::os::fd::OwnedFd;

/// The error number of a failed system call.
pub(crate) fn errno_of(error: rustix::io::Errno) -> Errno {
    Errno::of(error.raw_os_error() as u16)
}

/// Reads until `buffer` is full or the file ends.
pub(crate) fn read(file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(errno_of(error)),
        }
    }
    Ok(done)
}

/// Writes all of `bytes`; to the end if `append`.
pub(crate) fn write(file: &OwnedFd, offset: u64, bytes: &[u8], append: bool) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let wrote = if append {
            let parts = [std::io::IoSlice::new(rest)];
            rustix::io::pwritev2(file, &parts, u64::MAX, rustix::io::ReadWriteFlags::APPEND)
        } else {
            rustix::io::pwrite(file, rest, offset + done as u64)
        };
        match wrote {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(errno_of(error)),
        }
    }
    Ok(done)
}

/// `fsync` or `fdatasync`.
pub(crate) fn sync(file: &OwnedFd, data_only: bool) -> Result<()> {
    let done = if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) };
    done.map_err(errno_of)
}

/// `fallocate`.
pub(crate) fn allocate(file: &OwnedFd, mode: i32, offset: u64, bytes: u64) -> Result<()> {
    let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
    rustix::fs::fallocate(file, flags, offset, bytes).map_err(errno_of)
}

/// `SEEK_DATA` or `SEEK_HOLE`. Moves the descriptor's own offset, which nobody uses.
pub(crate) fn seek(file: &OwnedFd, offset: u64, data: bool) -> Result<u64> {
    let to = if data { rustix::fs::SeekFrom::Data(offset) } else { rustix::fs::SeekFrom::Hole(offset) };
    rustix::fs::seek(file, to).map_err(errno_of)
}

/// `copy_file_range`.
pub(crate) fn copy(
    from: &OwnedFd,
    mut from_offset: u64,
    to: &OwnedFd,
    mut to_offset: u64,
    bytes: u64,
) -> Result<u64> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), bytes) {
        Ok(copied) => Ok(copied as u64),
        // The files are on different disks, or the disk can't: they are read and written.
        Err(rustix::io::Errno::XDEV | rustix::io::Errno::NOSYS) => Err(Errno::EOPNOTSUPP),
        Err(error) => Err(errno_of(error)),
    }
}
