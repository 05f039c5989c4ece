//! Signals that wait for a moment: while this thread has a lock that a handler's own call would
//! wait for, or has put something where a handler's own call would take it.
//!
//! A program that never set a handler has none that could call: its signals are not blocked, which
//! would take two system calls each time.
//!
//! Invariant: nothing that can take long happens meanwhile, unless it is said there.

use crate::real::system_call;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Signals that the kernel sends for what a thread does itself: they can't wait.
const OWN: u64 = 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1)
    | 1 << (libc::SIGSYS - 1);

/// Whether the program has, or had, a handler of a signal that can wait.
static HANDLES: AtomicBool = AtomicBool::new(false);
/// Threads that go without blocking their signals now.
static UNBLOCKED: AtomicUsize = AtomicUsize::new(0);
/// So often a program's first handler waits for such threads. One of them may be below it, where a
/// fault called the program.
const LOOKS_MAX: usize = 1000;

/// The signals that a thread had blocked before; `None` if it blocked none.
#[derive(Clone, Copy)]
pub(crate) struct Before(Option<u64>);

/// Blocks this thread's signals, until [`restore`].
pub(crate) fn block() -> Before {
    if !HANDLES.load(Ordering::Relaxed) {
        UNBLOCKED.fetch_add(1, Ordering::SeqCst);
        if !HANDLES.load(Ordering::SeqCst) {
            return Before(None);
        }
        UNBLOCKED.fetch_sub(1, Ordering::Release);
    }
    Before(Some(change(!OWN)))
}

pub(crate) fn restore(before: Before) {
    match before.0 {
        Some(before) => _ = change(before),
        None => _ = UNBLOCKED.fetch_sub(1, Ordering::Release),
    }
}

/// The program is about to set this handler. From here on, threads block their signals.
pub(crate) fn handles(signal: c_int, handler: usize) {
    let calls = handler > libc::SIG_IGN && handler != SIG_HOLD && handler != libc::SIG_ERR;
    let can_wait = (1..=64).contains(&signal) && OWN >> (signal - 1) & 1 == 0;
    if !calls || !can_wait || HANDLES.swap(true, Ordering::SeqCst) {
        return;
    }
    wait(LOOKS_MAX);
}

/// Waits until all threads block their signals, and looks so often at most. Whether they do.
fn wait(looks: usize) -> bool {
    for _ in 0..looks {
        if UNBLOCKED.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let _ = system_call(libc::SYS_sched_yield, [0; 6]);
    }
    false
}

/// In a child: it has one thread, which goes with what is said of it.
pub(crate) fn after_fork() {
    UNBLOCKED.store(0, Ordering::Release);
}

/// What sigset(3) takes for "blocked".
const SIG_HOLD: usize = 2;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_block_their_signals_from_the_first_handler_on() {
        handles(libc::SIGSEGV, 0x1000);
        handles(libc::SIGUSR1, libc::SIG_IGN);
        handles(libc::SIGUSR1, libc::SIG_DFL);
        let before = block();
        assert!(before.0.is_none(), "there is no handler that could call");
        assert!(!wait(3), "a thread goes without");
        restore(before);
        assert!(wait(1));
        handles(libc::SIGUSR1, 0x1000);
        let before = block();
        assert!(before.0.is_some() && wait(1));
        restore(before);
    }
}
