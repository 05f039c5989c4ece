//! Calls that a signal's handler jumps out of (siglongjmp): a common way to end a call that waits.
//! Nobody takes their answers, and what they would still read is somebody else's. So the jump ends
//! them.
//!
//! Invariant: a call is ended only if the place that the jump leads to lies above the call's mark,
//! on the same stack. So a handler may jump about within itself.

use super::lane::{FREE, Lane, drop_lane};
use crate::real::{errno, set_errno, system_call};
use crate::{far, heard, wire};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// How often the far side is told that a call has to end, 5 ms apart.
const WISHES_MAX: usize = 100;

thread_local! {
    /// The lane of the call that this thread began last, of those that have not ended.
    static LAST: Cell<Option<&'static Lane>> = const { Cell::new(None) };
}

/// A call begins, or a lane is made ready for it. `mark` is on the stack of whoever does that.
pub(super) fn enter(lane: &'static Lane, mark: &u8, tag: Option<u32>) {
    if LAST.get().is_some_and(|last| std::ptr::eq(last, lane)) {
        // Its greeting.
        return;
    }
    lane.mark.store(std::ptr::from_ref(mark).addr(), Ordering::Relaxed);
    lane.tag.store(tag.unwrap_or(0), Ordering::Relaxed);
    let outer = LAST.get().map_or(std::ptr::null(), std::ptr::from_ref);
    lane.outer.store(outer.cast_mut(), Ordering::Relaxed);
    LAST.set(Some(lane));
}

/// It has ended.
pub(super) fn leave(lane: &'static Lane) {
    if LAST.get().is_some_and(|last| std::ptr::eq(last, lane)) {
        LAST.set(outer_of(lane));
    }
}

/// In a child.
pub(super) fn forget() {
    LAST.set(None);
}

fn outer_of(lane: &Lane) -> Option<&'static Lane> {
    // SAFETY: null, or a lane, which stays.
    unsafe { lane.outer.load(Ordering::Relaxed).as_ref() }
}

/// The thread is about to jump to that place on its stack: ends the calls that it leaves.
pub(crate) fn jump(to: usize) {
    while let Some(lane) = LAST.get() {
        let mark = lane.mark.load(Ordering::Relaxed);
        if to < mark || is_on_another_stack(to) {
            return;
        }
        LAST.set(outer_of(lane));
        let before = errno();
        end(lane);
        set_errno(before);
    }
}

/// Whether a place is on the stack of its own that a signal's handler runs on.
fn is_on_another_stack(place: usize) -> bool {
    // SAFETY: all zeros is a valid answer.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    let asked = system_call(libc::SYS_sigaltstack, [0, (&raw mut stack) as usize, 0, 0, 0, 0]);
    let bottom = stack.ss_sp.addr();
    asked.is_err()
        || (stack.ss_flags & libc::SS_ONSTACK != 0 && (bottom..bottom + stack.ss_size).contains(&place))
}

#[cold]
fn end(lane: &'static Lane) {
    let (fd, tag) = (lane.fd.load(Ordering::Relaxed), lane.tag.load(Ordering::Relaxed));
    if fd >= 0 && tag != 0 {
        // SAFETY: the lane is this thread's.
        let in_memory = unsafe { (*lane.rings.get()).is_mapped() };
        for _ in 0..WISHES_MAX {
            // In shared memory, an answer shows elsewhere.
            if wire::wish_once(fd, tag) || (in_memory && far::cancel(tag).is_ok()) {
                break;
            }
        }
    }
    heard::note_left();
    lane.stays.store(false, Ordering::Relaxed);
    // SAFETY: as above; nobody is in the call.
    unsafe { (*lane.buffers.get()).clear() };
    drop_lane(lane);
    lane.state.store(FREE, Ordering::Release);
}
