//! Children that were made past fork's handlers: by a system call's number, by `clone`, or by a
//! program's own instructions. Such a child has its parent's connections, and a call over them
//! would take the parent's replies.
//!
//! Invariant: one page says whose memory this is. The kernel clears it in every child that does not
//! share memory with its parent, so asking costs no system call.

use crate::real::system_call;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

const PAGE_BYTES: usize = 4096;

/// Null until [`begin`], and where the kernel has no such pages (before Linux 4.14).
static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Called before there is a connection.
pub(crate) fn begin() {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let asked = [0, PAGE_BYTES, protection as usize, flags as usize, usize::MAX, 0];
    let Ok(page) = system_call(libc::SYS_mmap, asked) else { return };
    let advice = libc::MADV_WIPEONFORK as usize;
    if system_call(libc::SYS_madvise, [page, PAGE_BYTES, advice, 0, 0, 0]).is_err() {
        let _ = system_call(libc::SYS_munmap, [page, PAGE_BYTES, 0, 0, 0, 0]);
        return;
    }
    let page = page as *mut AtomicU8;
    // SAFETY: a page of ours.
    unsafe { (*page).store(1, Ordering::Release) };
    // Another thread may have been first: then the kernel keeps a page too many.
    let _ = PAGE.compare_exchange(std::ptr::null_mut(), page, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether this is a child that no handler has made a process of its own.
#[inline]
pub(crate) fn is_orphan() -> bool {
    // SAFETY: null, or the page, which stays.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.is_some_and(|page| page.load(Ordering::Acquire) == 0)
}

/// This process has put away what was its parent's.
pub(crate) fn settle() {
    // SAFETY: as above.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        page.store(1, Ordering::Release);
    }
}
