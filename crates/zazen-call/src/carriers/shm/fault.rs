//! Places where a test kills a client; nothing in a release build.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(debug_assertions)]
static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Makes this process kill itself (SIGKILL) at the `nth` fault point from now on. For tests; does
/// nothing in a release build.
#[doc(hidden)]
pub fn die_at_fault_point(nth: u64) {
    #[cfg(debug_assertions)]
    LEFT.store(nth, Ordering::SeqCst);
    #[cfg(not(debug_assertions))]
    let _ = nth;
}

/// A place where the process may die.
#[inline(always)]
pub(crate) fn point() {
    #[cfg(debug_assertions)]
    if LEFT.load(Ordering::Relaxed) != u64::MAX && LEFT.fetch_sub(1, Ordering::SeqCst) <= 1 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
