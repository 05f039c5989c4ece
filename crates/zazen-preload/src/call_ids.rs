//! IDs of calls, by which people find a call in the spans of the processes that it went through
//! (docs/formats/spans.md). Nothing is decided by them.

use crate::real::system_call;
use std::sync::atomic::{AtomicU32, Ordering};

/// A number of this process, drawn at its first call; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Calls so far.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// The next call's ID in spans.
pub(crate) fn next() -> u64 {
    let mut process = PROCESS.load(Ordering::Relaxed);
    if process == 0 {
        let mut drawn = [0_u8; 4];
        let arguments = [drawn.as_mut_ptr() as usize, drawn.len(), libc::GRND_NONBLOCK as usize, 0, 0, 0];
        // Without randomness calls have the IDs of other processes' calls: only people notice.
        let _ = system_call(libc::SYS_getrandom, arguments);
        process = u32::from_ne_bytes(drawn) | 1;
        PROCESS.store(process, Ordering::Relaxed);
    }
    zazen_wire::plugins::call_id(process, CALLS.fetch_add(1, Ordering::Relaxed).into())
}

/// After fork: a process of its own.
pub(crate) fn forget() {
    PROCESS.store(0, Ordering::Relaxed);
}
