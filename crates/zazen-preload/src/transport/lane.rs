//! A lane: a connection to the daemon, for one call at a time.
//!
//! Invariant: only the thread that made a lane `BUSY` uses what is in it.

use crate::rings::Rings;
use crate::table;
use crate::wire::Buffers;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

pub(super) const FREE: u32 = 0;
pub(super) const BUSY: u32 = 1;

pub(super) struct Lane {
    pub(super) state: AtomicU32,
    /// -1 where not connected.
    pub(super) fd: AtomicI32,
    /// Calls that it carried over the socket.
    pub(super) calls: AtomicU32,
    /// Whether it takes calls beyond the one that is waited for, as a connection to the far side
    /// itself does.
    pub(super) queues: AtomicBool,
    /// Answers that nobody waited for, and that are still to be received.
    pub(super) owed: AtomicU32,
    /// Whoever has the lane keeps it beyond the call in progress.
    pub(super) stays: AtomicBool,
    /// Where the call in progress has its mark on its thread's stack, and its tag, or 0.
    pub(super) mark: AtomicUsize,
    pub(super) tag: AtomicU32,
    /// The lane of the call that it interrupted, if a signal's handler makes it.
    pub(super) outer: AtomicPtr<Lane>,
    /// The second in which its other end was last looked for.
    pub(super) asked: AtomicU32,
    /// The identity with which it connected: [`EPOCH`] at that time.
    pub(super) epoch: AtomicU32,
    /// Where its pool begins and ends, once the program has memory of it.
    pub(super) pool: [AtomicUsize; 2],
    /// What the call in progress uses.
    pub(super) buffers: UnsafeCell<Buffers>,
    pub(super) rings: UnsafeCell<Rings>,
}

// SAFETY: the cells are touched only by the thread that made the lane BUSY.
unsafe impl Sync for Lane {}

impl Lane {
    pub(super) const fn new() -> Lane {
        Lane {
            state: AtomicU32::new(FREE),
            fd: AtomicI32::new(-1),
            calls: AtomicU32::new(0),
            queues: AtomicBool::new(false),
            owed: AtomicU32::new(0),
            stays: AtomicBool::new(false),
            mark: AtomicUsize::new(0),
            tag: AtomicU32::new(0),
            outer: AtomicPtr::new(std::ptr::null_mut()),
            asked: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            pool: [const { AtomicUsize::new(0) }; 2],
            buffers: UnsafeCell::new(Buffers::new()),
            rings: UnsafeCell::new(Rings::new()),
        }
    }
}

impl Lane {
    /// It has no connection any more: what was said on that one says nothing of the next. Whoever
    /// calls has made the lane BUSY, or is alone.
    pub(super) fn forget_calls(&self) {
        // SAFETY: as was said.
        unsafe { (*self.buffers.get()).offered = false };
        self.calls.store(0, Ordering::Relaxed);
        self.queues.store(false, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
    }
}

/// Ends its connection.
pub(super) fn drop_lane(lane: &Lane) {
    // SAFETY: whoever drops a lane has made it BUSY.
    let rings = unsafe { &mut *lane.rings.get() };
    // Memory that the program has stays where it is, though nobody else looks at it any more.
    if lane.pool[1].swap(0, Ordering::Relaxed) == 0 {
        rings.unmap()
    } else {
        rings.forget()
    }
    lane.forget_calls();
    let fd = lane.fd.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        table::close_kernel(fd);
    }
}
