//! Making and mapping a region, and what an end of a lane needs of the kernel.
//!
//! Invariants: the mapping has one length for its whole life, and the memory behind it can't shrink
//! (the daemon seals it); [`View`] checks every access.

use crate::carriers::shm::fault;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_lane::{Broken, System, View, check_mapping};
use zazen_wire::shm::Span;

/// A shared mapping, unmapped when dropped.
pub(crate) struct Region(View);

impl Deref for Region {
    type Target = View;

    fn deref(&self) -> &View {
        &self.0
    }
}

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
        check_mapping(seals.bits(), length, bytes)
            .map_err(|Broken(why)| Error::new(ErrorKind::Protocol, format!("the daemon: {why}")))?;
        Region::map(fd, bytes)
    }

    fn map(fd: BorrowedFd<'_>, bytes: u64) -> Result<Region> {
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let Some(length) = length else {
            return Err(Error::new(ErrorKind::Config, "a shared region of that size can't be mapped"));
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that
        // anybody has.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0) }
                .map_err(|errno| Error::io(format!("map {bytes} bytes of shared memory"), errno.into()))?;
        // SAFETY: the mapping is of a memfd that can't shrink, and is unmapped only when the region
        // is dropped; whoever has a copy of the view holds the region.
        Ok(Region(unsafe { View::new(base.cast(), length) }))
    }

    /// Makes the pages of `span` present, so that no first touch waits for them. Best effort.
    pub(crate) fn populate(&self, span: Span) {
        let start = self.pointer(span);
        // SAFETY: the range lies in the mapping (checked by `pointer`); the advice changes no
        // contents.
        let _ = unsafe { rustix::mm::madvise(start.cast(), span.bytes as usize, Advice::LinuxPopulateWrite) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made; what points into it holds the region.
        let _ = unsafe { rustix::mm::munmap(self.base().cast(), self.span().bytes as usize) };
    }
}

/// The kernel, as an end of a lane waits and wakes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;

impl System for Kernel {
    fn sleep_on(&self, word: &AtomicU32, value: u32, at_most: Duration) -> bool {
        let timeout = futex::Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // Not private: the other end is another process.
        futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) != Err(rustix::io::Errno::TIMEDOUT)
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }

    fn give_way(&self) {
        std::thread::yield_now();
    }

    #[inline]
    fn cpu(&self) -> u32 {
        // SAFETY: takes nothing and only asks. Where the kernel can't say, -1 is as good a number
        // as any.
        let cpu = unsafe { libc::sched_getcpu() };
        cpu.unsigned_abs()
    }

    #[inline]
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }

    #[inline(always)]
    fn fault_point(&self) {
        fault::point();
    }
}
