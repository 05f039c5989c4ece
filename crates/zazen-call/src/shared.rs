//! Memory that another process can write at any moment, as pointers and lengths.
//!
//! Invariants: no reference to such memory is ever made. Bytes on which a decision depends are
//! copied out first, once. The kernel may be given the pointers: it copies.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that a caller may write to at any moment: copy them once, or hand them to the kernel.
/// Valid for `'a`, for reads, whatever the caller does.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    start: *const u8,
    length: usize,
    life: PhantomData<&'a ()>,
}

/// Room for bytes that another process reads, and may itself be writing. Valid for `'a`, for
/// writes.
#[derive(Debug)]
pub struct SharedBytesMut<'a> {
    start: *mut u8,
    length: usize,
    life: PhantomData<&'a mut ()>,
}

// SAFETY: these are pointers to memory that stays mapped for `'a` and has no thread of its own;
// every access goes through copies that tolerate concurrent writers.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedBytesMut<'_> {}

impl<'a> SharedBytes<'a> {
    /// Bytes in private memory, which nobody else writes.
    pub fn of(bytes: &'a [u8]) -> SharedBytes<'a> {
        SharedBytes { start: bytes.as_ptr(), length: bytes.len(), life: PhantomData }
    }

    /// # Safety
    /// `start` must be valid for reads of `length` bytes for `'a`.
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> SharedBytes<'a> {
        SharedBytes { start, length, life: PhantomData }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where they begin, for a system call or a copy. Not to be made a reference of.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// These bytes from `from` on, at most `length` of them.
    pub fn part(&self, from: usize, length: usize) -> SharedBytes<'a> {
        let from = from.min(self.length);
        // SAFETY: `from` is at most `length`, so the pointer stays within, or one past, the bytes.
        let start = unsafe { self.start.add(from) };
        SharedBytes { start, length: length.min(self.length - from), life: PhantomData }
    }

    /// Copies them once; panics if `into` has another length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length, "a copy's two ends have one length");
        // SAFETY: the source is valid for `length` bytes (see `new`), the target is a slice of that
        // length in memory of ours, and the two are apart.
        unsafe { std::ptr::copy_nonoverlapping(self.start, into.as_mut_ptr(), self.length) }
    }

    /// A private copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Writes them to `file` at `offset` (pwrite), all of them unless the kernel fails or the disk
    /// is full; returns how many.
    pub fn write_at(&self, file: BorrowedFd<'_>, offset: u64) -> std::io::Result<usize> {
        let mut done = 0;
        while done < self.length {
            let at = offset_of(offset, done)?;
            // SAFETY: `done` is less than `length`; the kernel reads at most what is left of valid
            // memory.
            let count = unsafe {
                libc::pwrite64(file.as_raw_fd(), self.start.add(done).cast(), self.length - done, at)
            };
            match usize::try_from(count) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => match std::io::Error::last_os_error() {
                    error if error.kind() == std::io::ErrorKind::Interrupted => {}
                    error if done == 0 => return Err(error),
                    _ => break,
                },
            }
        }
        Ok(done)
    }
}

impl<'a> SharedBytesMut<'a> {
    /// Room in private memory.
    pub fn of(bytes: &'a mut [u8]) -> SharedBytesMut<'a> {
        SharedBytesMut { start: bytes.as_mut_ptr(), length: bytes.len(), life: PhantomData }
    }

    /// # Safety
    /// `start` must be valid for writes of `length` bytes for `'a`, and no reference of this
    /// process may exist to them meanwhile.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> SharedBytesMut<'a> {
        SharedBytesMut { start, length, life: PhantomData }
    }

    /// How many bytes there is room for.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where the room begins, for a system call or a copy. Not to be made a reference of.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    /// Copies `bytes` to its beginning; panics if they are more than there is room for.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length, "a copy stays within its target");
        // SAFETY: the target is valid for `length` bytes (see `new`), which are at least as many as
        // the source's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len()) }
    }

    /// Fills it from `file` at `offset` (pread) until it is full or the file ends; returns how many
    /// bytes came.
    pub fn read_at(&mut self, file: BorrowedFd<'_>, offset: u64) -> std::io::Result<usize> {
        let mut done = 0;
        while done < self.length {
            let at = offset_of(offset, done)?;
            // SAFETY: `done` is less than `length`; the kernel writes at most what is left of valid
            // memory.
            let count = unsafe {
                libc::pread64(file.as_raw_fd(), self.start.add(done).cast(), self.length - done, at)
            };
            match usize::try_from(count) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => match std::io::Error::last_os_error() {
                    error if error.kind() == std::io::ErrorKind::Interrupted => {}
                    error if done == 0 => return Err(error),
                    _ => break,
                },
            }
        }
        Ok(done)
    }
}

fn offset_of(offset: u64, done: usize) -> std::io::Result<i64> {
    let at = offset.checked_add(done as u64).and_then(|at| i64::try_from(at).ok());
    at.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EINVAL))
}
