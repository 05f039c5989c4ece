//! Counters of a stream.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted outside of the ring.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) foreign: AtomicU64,
    pub(crate) receives: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_scattered: AtomicU64,
    pub(crate) bytes_gathered: AtomicU64,
    pub(crate) receiver_cpu_ns: AtomicU64,
}

impl Tally {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
