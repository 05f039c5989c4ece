//! The way to end one waiting call.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_plugin_sdk::{Outcome, checked};

/// The way to end one waiting call.
pub(crate) struct Interrupt {
    event: OwnedFd,
    raised: AtomicBool,
}

impl Interrupt {
    pub(crate) fn new() -> Outcome<Interrupt> {
        // SAFETY: numbers only; the descriptor is new.
        let event = unsafe {
            OwnedFd::from_raw_fd(checked(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?)
        };
        Ok(Interrupt { event, raised: false.into() })
    }

    /// The descriptor that becomes readable when the interrupt is raised.
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        // SAFETY: eight bytes to an eventfd of ours.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

static ONE: u64 = 1;
