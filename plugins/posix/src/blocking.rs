//! Calls that wait: until a descriptor is ready, until they are interrupted, or until nobody waits for them.
//!
//! Invariant: no thread sits in a system call that can't be ended; waiting is always poll(2) with an eventfd
//! beside, in slices, so that a caller who died is noticed.

use crate::entry::answer;
use crate::session::Session;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zazen_plugin_sdk::{Outcome, checked, errno, is_cancelled};

/// How often a waiting call looks whether its caller is still there.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// The way to end one waiting call.
pub(crate) struct Interrupt {
    event: OwnedFd,
    raised: AtomicBool,
}

impl Interrupt {
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

/// A waiting call of a session, known by its tag.
pub(crate) struct Waiting<'a> {
    session: &'a Session,
    tag: u32,
    pub(crate) interrupt: Arc<Interrupt>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn begin(session: &'a Session, tag: u32) -> Outcome<Waiting<'a>> {
        // SAFETY: numbers only; the descriptor is new.
        let event = unsafe {
            OwnedFd::from_raw_fd(checked(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?)
        };
        let interrupt = Arc::new(Interrupt { event, raised: false.into() });
        let mut waiting = session.interrupted.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(tag, interrupt.clone());
        drop(waiting);
        let waiting = Waiting { session, tag, interrupt };
        if session.has_ended() {
            return Err(libc::EINTR);
        }
        Ok(waiting)
    }

    /// EINTR once interrupted or alone.
    pub(crate) fn check(&self) -> Outcome<()> {
        let ended = self.interrupt.is_raised() || self.session.has_ended() || is_cancelled();
        if ended { Err(libc::EINTR) } else { Ok(()) }
    }

    /// Waits until one of `fds` has something; false after `until`.
    pub(crate) fn poll(&self, fds: &mut Vec<libc::pollfd>, until: Option<Instant>) -> Outcome<bool> {
        let count = fds.len();
        fds.push(libc::pollfd { fd: self.interrupt.event.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        let outcome = self.poll_slices(fds, count, until);
        fds.truncate(count);
        outcome
    }

    fn poll_slices(&self, fds: &mut [libc::pollfd], count: usize, until: Option<Instant>) -> Outcome<bool> {
        loop {
            self.check()?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            // Rounded up: a millisecond early would be a busy loop.
            let milliseconds = slice.as_micros().div_ceil(1000) as c_int;
            // SAFETY: as many as the slice has.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as u64, milliseconds) };
            if ready < 0 && errno() != libc::EINTR {
                return Err(errno());
            }
            if ready > 0 && fds[..count].iter().any(|fd| fd.revents != 0) {
                return Ok(true);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// Runs `attempt`, which must not block, until it has another answer than EAGAIN.
    pub(crate) fn until<T>(
        &self,
        fd: RawFd,
        events: i16,
        until: Option<Instant>,
        mut attempt: impl FnMut() -> Outcome<T>,
    ) -> Outcome<T> {
        loop {
            match attempt() {
                Err(libc::EAGAIN) => {}
                other => return other,
            }
            let mut fds = vec![libc::pollfd { fd, events, revents: 0 }];
            if !self.poll(&mut fds, until)? {
                return Err(libc::EAGAIN);
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.session.interrupted.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tag);
    }
}

/// Ends all waiting calls of a session that ends.
pub(crate) fn interrupt_all(session: &Session) {
    let waiting: Vec<_> = {
        let waiting = session.interrupted.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.values().cloned().collect()
    };
    waiting.iter().for_each(|interrupt| interrupt.raise());
    crate::record_locks::wake();
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_cancel(tag: u32) -> c_int {
    answer(|session| {
        let waiting = session.interrupted.lock().unwrap_or_else(PoisonError::into_inner).get(&tag).cloned();
        waiting.ok_or(libc::ESRCH)?.raise();
        crate::record_locks::wake();
        Ok(0)
    })
}
