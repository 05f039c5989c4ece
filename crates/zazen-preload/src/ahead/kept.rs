//! Memory for what came along, used by one thread at a time.

use crate::far::PxStat;
use crate::real::system_call;
use crate::{heard, state, transport};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether answers may be asked for in advance.
pub(super) fn may_keep() -> bool {
    !state::daemon_is_here() && heard::is_by_itself() && transport::reaches_the_plug_in()
}

/// The device that holds a file.
pub(super) fn device_of(stat: &PxStat) -> (u32, u32) {
    (stat.devices[2], stat.devices[3])
}

/// What one thread uses at a time, and no signal's handler meanwhile.
pub(super) struct Shared<T>(pub(super) UnsafeCell<T>);

// SAFETY: used only by whoever holds LOCK, or has reserved a part under it.
unsafe impl<T> Sync for Shared<T> {}

static LOCK: AtomicBool = AtomicBool::new(false);

/// While it lives, what is kept is this thread's.
pub(super) struct Locked {
    mask: u64,
}

/// Signals that the kernel sends for a fault: they can't wait.
const FAULTS: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

fn change_mask(new: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = ((&raw const new) as usize, (&raw mut before) as usize);
    let _ = system_call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, 8, 0, 0]);
    before
}

/// In a child: whoever had the lock is not there.
pub(super) fn unlock() {
    LOCK.store(false, Ordering::Release);
}

pub(super) fn lock() -> Locked {
    let mask = change_mask(!FAULTS);
    while LOCK.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        let _ = system_call(libc::SYS_sched_yield, [0; 6]);
    }
    Locked { mask }
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.store(false, Ordering::Release);
        change_mask(self.mask);
    }
}
