//! Signals that wait for a moment: while this thread has a lock that a handler's own call would
//! wait for, or has put something where a handler's own call would take it.
//!
//! Invariant: nothing that can take long happens meanwhile, unless it is said there.

use crate::real::system_call;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that the kernel sends for what a thread does itself: they can't wait.
const OWN: u64 = 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1)
    | 1 << (libc::SIGSYS - 1);

/// The signals that a thread had blocked before.
#[derive(Clone, Copy)]
pub(crate) struct Before(u64);

/// Blocks this thread's signals, until [`restore`].
pub(crate) fn block() -> Before {
    Before(change(!OWN))
}

pub(crate) fn restore(before: Before) {
    change(before.0);
}

fn change(new: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = ((&raw const new) as usize, (&raw mut before) as usize);
    let _ = system_call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, 8, 0, 0]);
    before
}

/// A lock that no handler waits for: signals of the thread that has it wait until it is given back.
pub(crate) struct Lock(AtomicBool);

/// While it lives, this thread has the lock.
pub(crate) struct Locked<'a> {
    lock: &'a Lock,
    before: Before,
}

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let before = block();
        while self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let _ = system_call(libc::SYS_sched_yield, [0; 6]);
        }
        Locked { lock: self, before }
    }

    /// In a child: whoever had the lock is not there.
    pub(crate) fn after_fork(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.lock.0.store(false, Ordering::Release);
        restore(self.before);
    }
}
