//! Memory for what came along, used by one thread at a time.

use crate::far::PxStat;
use crate::signals::{Lock, Locked};
use crate::{heard, lineage, state, transport};
use std::cell::UnsafeCell;

/// Whether answers may be asked for in advance.
pub(super) fn may_keep() -> bool {
    !state::daemon_is_here()
        && heard::is_by_itself()
        && transport::reaches_the_plug_in()
        && !lineage::is_orphan()
}

/// The device that holds a file.
pub(super) fn device_of(stat: &PxStat) -> (u32, u32) {
    (stat.devices[2], stat.devices[3])
}

/// What one thread uses at a time, and no signal's handler meanwhile.
pub(super) struct Shared<T>(pub(super) UnsafeCell<T>);

// SAFETY: used only by whoever holds LOCK, or has reserved a part under it.
unsafe impl<T> Sync for Shared<T> {}

static LOCK: Lock = Lock::new();

/// In a child: whoever had the lock is not there.
pub(super) fn unlock() {
    LOCK.after_fork();
}

/// While it lives, what is kept is this thread's.
pub(super) fn lock() -> Locked<'static> {
    LOCK.lock()
}
