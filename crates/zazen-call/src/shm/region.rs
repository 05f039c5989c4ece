//! A mapping of memory that two processes share: the only place of this carrier, with `shared.rs`, where it is touched.
//!
//! Invariants: the mapping has one length for its whole life, and the memory behind it can't shrink (the daemon seals
//! it), so an access within bounds never faults; no reference to shared bytes is made but to atomic counters; what
//! is out of bounds is our bug and panics, since every offset that comes from outside is checked before.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::shm::Span;

/// A shared mapping, unmapped when dropped.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is a range of memory; all access is by copies and atomics, which any thread may do.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New zeroed memory that nobody can shrink, grow or unseal.
    pub(crate) fn create(bytes: u64) -> Result<(OwnedFd, Region)> {
        let context = |what: &str| {
            let what = format!("{what} {bytes} bytes of shared memory");
            move |errno: rustix::io::Errno| Error::io(what, errno.into())
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let fd = rustix::fs::memfd_create("zazen-lanes", flags)
            // Kernels before 6.3 do not know the flag.
            .or_else(|_| rustix::fs::memfd_create("zazen-lanes", flags - MemfdFlags::NOEXEC_SEAL))
            .map_err(context("make"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(context("reserve"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(context("seal"))?;
        let region = Region::map(fd.as_fd(), bytes)?;
        Ok((fd, region))
    }

    /// Maps what a daemon sent; `Protocol` unless it is sealed and `bytes` long.
    pub(crate) fn of_offer(fd: BorrowedFd<'_>, bytes: u64) -> Result<Region> {
        let context =
            |errno: rustix::io::Errno| Error::io("look at the daemon's shared region", errno.into());
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(context)?;
        let length = rustix::fs::fstat(fd).map_err(context)?.st_size;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) || u64::try_from(length) != Ok(bytes) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the daemon's shared region is not sealed, or {length} bytes long and not {bytes}"),
            ));
        }
        Region::map(fd, bytes)
    }

    fn map(fd: BorrowedFd<'_>, bytes: u64) -> Result<Region> {
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let Some(length) = length else {
            return Err(Error::new(ErrorKind::Config, "a shared region of that size can't be mapped"));
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that anybody has.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0) }
                .map_err(|errno| Error::io(format!("map {bytes} bytes of shared memory"), errno.into()))?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::new(ErrorKind::Io, "the kernel maps shared memory at address 0"));
        };
        Ok(Region { base, bytes: length })
    }

    /// Makes the pages of `span` present, so that no first touch waits for them. Best effort.
    pub(crate) fn populate(&self, span: Span) {
        let start = self.pointer(span);
        // SAFETY: the range lies in the mapping (checked by `pointer`); the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.cast(), span.bytes as usize, Advice::LinuxPopulateWrite) };
    }

    /// The beginning of `span`; panics if that is not within.
    pub(crate) fn pointer(&self, span: Span) -> *mut u8 {
        let whole = Span { at: 0, bytes: self.bytes as u64 };
        assert!(whole.holds(span), "{span:?} is within a region of {} bytes", self.bytes);
        // SAFETY: `at` is at most the mapping's length.
        unsafe { self.base.as_ptr().add(span.at as usize) }
    }

    /// Where `bytes` lie in the region, if they do.
    pub(crate) fn find(&self, start: *const u8, length: usize) -> Option<Span> {
        let at = (start as usize).checked_sub(self.base.as_ptr() as usize)?;
        let span = Span { at: at as u64, bytes: length as u64 };
        (Span { at: 0, bytes: self.bytes as u64 }).holds(span).then_some(span)
    }

    /// Copies out of the region, once.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.pointer(Span { at, bytes: into.len() as u64 });
        // SAFETY: `from` is valid for as many bytes (checked by `pointer`), `into` is private memory. The other
        // process may write meanwhile: any mix of bytes is a value of u8, and nothing is read twice.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies into the region.
    pub(crate) fn write(&self, at: u64, from: &[u8]) {
        let to = self.pointer(Span { at, bytes: from.len() as u64 });
        // SAFETY: `to` is valid for as many bytes. A source that is itself in the region (a pool buffer too small or
        // too many to be passed in place) may be the same bytes only if the caller has a bug: `copy` tolerates it.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) }
    }

    /// The counter at `at`.
    pub(crate) fn counter(&self, at: u64) -> &AtomicU32 {
        let start = self.pointer(Span { at, bytes: 4 });
        assert!(at.is_multiple_of(4), "a counter is aligned");
        // SAFETY: in bounds and aligned (the mapping begins on a page); both processes access it atomically only, or
        // the other one scribbles, which an atomic read sees as some value.
        unsafe { AtomicU32::from_ptr(start.cast()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made; what points into it holds the region.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Sleeps while `word` is `value`, at most so long; returns early for any reason. False: so long it was.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, at_most: Duration) -> bool {
    let timeout = futex::Timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // Without the private flag: the other end is another process.
    futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) != Err(rustix::io::Errno::TIMEDOUT)
}

/// Wakes whoever sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
