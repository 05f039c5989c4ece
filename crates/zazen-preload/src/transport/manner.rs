//! How a call of the stubs is made, which their functions have no argument for.

use super::lane::Lane;
use crate::signals::{self, Before};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT_TAG: AtomicU32 = AtomicU32::new(1);

/// How a call of the stubs is made.
#[derive(Clone, Copy)]
pub(super) enum Manner {
    Usual,
    /// Nobody waits for its answer.
    Unawaited,
    /// It may block; a signal ends it by this number.
    Tagged(u32),
    /// Over a lane that the caller has and keeps.
    Over(&'static Lane),
    /// The same, only to be sent. `more` follow.
    Send {
        lane: &'static Lane,
        more: bool,
    },
    /// The same call was sent; only its answer is to be received.
    Receive {
        lane: &'static Lane,
        is_first: bool,
    },
}

thread_local! {
    /// How this thread's next call is made, if not as usual. Signals are blocked from when it is
    /// set until the call takes it, so that no handler's call takes it.
    static NEXT: Cell<Option<(Manner, Before)>> = const { Cell::new(None) };
}

pub(super) fn in_manner<T>(manner: Manner, call: impl FnOnce() -> T) -> T {
    NEXT.set(Some((manner, signals::block())));
    let outcome = call();
    // A stub refuses some arguments by itself.
    if let Some((_, before)) = NEXT.take() {
        signals::restore(before);
    }
    outcome
}

/// Makes a call that may block, with a number by which a signal can end it.
pub(crate) fn tagged<T>(call: impl FnOnce(u32) -> T) -> T {
    let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
    in_manner(Manner::Tagged(tag), || call(tag))
}

/// Makes a call of the stubs without waiting for its answer, which is taken to be 0, where the
/// connection allows that. The far side does the call before all later ones of this thread.
pub(crate) fn without_waiting<T>(call: impl FnOnce() -> T) -> T {
    in_manner(Manner::Unawaited, call)
}

/// Makes a call over a lane that the caller has, and keeps.
pub(super) fn over<T>(lane: &'static Lane, call: impl FnOnce() -> T) -> T {
    lane.stays.store(true, Ordering::Relaxed);
    let outcome = in_manner(Manner::Over(lane), call);
    lane.stays.store(false, Ordering::Relaxed);
    outcome
}

/// How the call that this thread now makes is made. Its signals come again.
pub(super) fn take() -> Manner {
    let Some((manner, before)) = NEXT.take() else { return Manner::Usual };
    signals::restore(before);
    manner
}
