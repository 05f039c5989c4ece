//! The listings that the program got ([`zazen_forward_api::in_order`]), and those that are made for
//! a program that goes through names of a folder in their alphabetical order.

use super::kept::{Shared, lock, may_keep};
use crate::far::{PxOpened, PxStat, far};
use crate::transport;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_forward_api::in_order::{Listings, Walk, each_entry};
use zazen_forward_api::paths::Text;
use zazen_forward_api::structures::AHEAD_WHOLE;

/// Bytes of a folder that is listed for names in alphabetical order.
const ORDERED_BYTES: usize = 32 << 10;

static STATE: Shared<Listings> = Shared(UnsafeCell::new(Listings::NONE));
/// Whether anything was ever asked of it.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// All listings.
///
/// # Safety
///
/// The caller has the lock, for as long as it uses them.
pub(super) unsafe fn listings() -> &'static mut Listings {
    IS_USED.store(true, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { &mut *STATE.0.get() }
}

/// The program has got these entries of a directory.
pub(crate) fn listed(id: u32, data: *const c_void, bytes: usize) {
    if bytes == 0 || !may_keep() {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock; the caller's bytes.
    unsafe { listings().listed(id, std::slice::from_raw_parts(data.cast::<u8>(), bytes)) };
}

/// In a child: another thread may have been in the middle of a change.
pub(super) fn forget_all() {
    if IS_USED.load(Ordering::Relaxed) {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        unsafe { listings() }.forget();
    }
}

/// A description is closed: its number may come to mean another directory.
pub(super) fn closed(id: u32) {
    if IS_USED.load(Ordering::Relaxed) {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        unsafe { listings() }.closed(id);
    }
}

/// Lists a folder that a program goes through in alphabetical order, and leaves no trace there:
/// not in its time of access either. Whether that was possible.
pub(super) fn list_in_order(walk: Walk, dir: c_int, folder: &[u8], name: &[u8]) -> bool {
    let mut path = Text::new();
    if !path.set(if folder.is_empty() { b"." } else { folder }) {
        return false;
    }
    let (mut opened, mut stat) = (PxOpened::default(), PxStat::default());
    let mut bytes = vec![0_u8; ORDERED_BYTES];
    let mut count = bytes.len() as u64;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_NOATIME;
    let (out, told, data) =
        ((&raw mut opened).cast(), (&raw mut stat).cast(), bytes.as_mut_ptr().cast::<c_void>());
    let outcome = far!(px_open_ahead(dir, path.as_ptr(), flags, out, told, data, &raw mut count));
    let Ok(bits) = outcome else { return false };
    let _ = transport::without_waiting(|| far!(px_close(opened.id, 1)));
    if bits & AHEAD_WHOLE == 0 {
        return false;
    }
    let bytes = &bytes[..(count as usize).min(ORDERED_BYTES)];
    let mut entries: Vec<&[u8]> = each_entry(bytes).collect();
    let _locked = lock();
    // SAFETY: this thread has the lock.
    unsafe { listings() }.sorted(walk, &mut entries, name);
    true
}
