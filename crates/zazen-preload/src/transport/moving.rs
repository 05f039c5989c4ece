//! What is open goes along when the process becomes another user.
//!
//! In two steps, since a program changes its groups, its group and its user one after the other:
//! leaving takes the descriptors and ends the connections at once; arriving connects anew with the
//! next call.
//!
//! Invariants: between the steps this process has the kernel's descriptors themselves, and no
//! connection of the old identity's but those of calls in progress; who arrives first enters all of
//! them before anybody else makes a call.

use super::lane::{BUSY, FREE, Lane, drop_lane};
use super::lanes::{EPOCH, KEY, KNOWN, LOWEST, acquire_fresh, begin_anew, lanes, pause, raised, release};
use super::manner::over;
use crate::far::{self, far};
use crate::signals::Lock;
use crate::{cwd, heard, state, table};
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Descriptors that a process can take along; further ones are lost (EIO).
const CARRIED_MAX: usize = 4096;

/// A handler's call would wait for it for ever, so signals wait as long as it takes to take along
/// and to enter.
static LOCK: Lock = Lock::new();
/// How many are carried; 0: nothing is to be entered.
static COUNT: AtomicU32 = AtomicU32::new(0);
static IDS: [AtomicU32; CARRIED_MAX] = [const { AtomicU32::new(0) }; CARRIED_MAX];
/// The kernel's numbers; -1 once entered.
static FDS: [AtomicI32; CARRIED_MAX] = [const { AtomicI32::new(-1) }; CARRIED_MAX];

/// Whether that descriptor is carried, so that programs must not touch it.
pub(super) fn carries(fd: c_int) -> bool {
    let count = COUNT.load(Ordering::Acquire) as usize;
    FDS[..count.min(CARRIED_MAX)].iter().any(|carried| carried.load(Ordering::Relaxed) == fd)
}

/// After fork: a child has what its parent's session hands it.
pub(super) fn forget() {
    drop_carried();
    LOCK.after_fork();
}

fn drop_carried() {
    let count = COUNT.swap(0, Ordering::AcqRel) as usize;
    for carried in &FDS[..count.min(CARRIED_MAX)] {
        let fd = carried.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            table::close_kernel(fd);
        }
    }
}

/// A connection of the old identity's that no thread is in a call on.
fn free_lane() -> Option<&'static Lane> {
    // Calls that don't wait end soon; a process whose only connection waits can't take anything
    // along.
    for _ in 0..1000 {
        let mut some_busy = false;
        for lane in lanes() {
            if lane.fd.load(Ordering::Acquire) < 0 {
                continue;
            }
            if lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(lane);
            }
            some_busy = true;
        }
        if !some_busy {
            return None;
        }
        pause(1_000_000);
    }
    None
}

/// The process is another user now: takes what it has open, and ends its connections.
pub(crate) fn leave() {
    // What the old identity was told, the new one has not heard; what is open for it ends with the
    // connections.
    heard::begin_again();
    let _locked = LOCK.lock();
    if let Some(lane) = free_lane() {
        let held = cwd::far().map(table::FarFile::id).into_iter().chain(far::bases());
        let mut all = true;
        for id in table::each().map(|(_, entry)| entry.id()).chain(held) {
            all &= take_along(lane, id);
        }
        if !all {
            // Another node's can't come along. No old number may ever mean a new file.
            begin_anew();
        }
        EPOCH.fetch_add(1, Ordering::AcqRel);
        release(lane);
    } else {
        EPOCH.fetch_add(1, Ordering::AcqRel);
    }
    for lane in lanes() {
        if lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            drop_lane(lane);
            lane.state.store(FREE, Ordering::Release);
        }
    }
    KEY.store(0, Ordering::Release);
    KNOWN.store(0, Ordering::Release);
}

/// Whether the new identity will have that description.
fn take_along(lane: &'static Lane, id: u32) -> bool {
    let count = COUNT.load(Ordering::Acquire) as usize;
    if IDS[..count].iter().any(|known| known.load(Ordering::Relaxed) == id) {
        return true;
    }
    let mut fd = -1;
    let to_be_had = count < CARRIED_MAX && state::daemon_is_here();
    if !to_be_had || over(lane, || far!(px_give(id, &raw mut fd))).is_err() || fd < 0 {
        return false;
    }
    let fd = raised(fd);
    LOWEST.fetch_min(fd, Ordering::AcqRel);
    IDS[count].store(id, Ordering::Relaxed);
    FDS[count].store(fd, Ordering::Relaxed);
    COUNT.store(count as u32 + 1, Ordering::Release);
    true
}

/// Enters what is carried in the session of the new identity.
pub(super) fn arrive() -> Result<(), i32> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let _locked = LOCK.lock();
    let count = COUNT.load(Ordering::Acquire) as usize;
    if count == 0 {
        return Ok(());
    }
    let lane = acquire_fresh().inspect_err(|_| drop_carried())?;
    for (id, fd) in IDS[..count].iter().zip(&FDS[..count]) {
        let fd = fd.load(Ordering::Relaxed);
        let _ = over(lane, || far!(px_take(id.load(Ordering::Relaxed), fd)));
    }
    drop_carried();
    release(lane);
    Ok(())
}
