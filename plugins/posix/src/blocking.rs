//! Calls that wait: until a descriptor is ready, until they are interrupted, or until their caller
//! is gone.
//!
//! Invariant: no thread stays in a system call that cannot be ended. A wait is poll(2), with an
//! eventfd that interrupts it, and in slices, so that it notices when its caller died.

use crate::interrupt::Interrupt;
use crate::session::Session;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zazen_plugin_sdk::{Outcome, errno, is_cancelled};

/// How often a waiting call looks whether its caller is still there.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// A waiting call of a session, known by its tag.
pub(crate) struct Waiting<'a> {
    session: &'a Session,
    tag: u32,
    pub(crate) interrupt: Arc<Interrupt>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn begin(session: &'a Session, tag: u32) -> Outcome<Waiting<'a>> {
        let interrupt = Arc::new(Interrupt::new()?);
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
        fds.push(libc::pollfd { fd: self.interrupt.fd(), events: libc::POLLIN, revents: 0 });
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

/// Repeats `attempt` at growing intervals until it has another answer than EAGAIN: for locks whose
/// release nobody reports.
pub(crate) fn patiently<T>(waiting: &Waiting<'_>, mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let mut patience = Duration::from_micros(200);
    loop {
        match attempt() {
            Err(libc::EAGAIN) => {}
            other => return other,
        }
        waiting.check()?;
        std::thread::sleep(patience);
        patience = (patience * 2).min(Duration::from_millis(20));
    }
}
