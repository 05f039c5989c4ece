//! The mask that files are made with: one for each thread.
//!
//! The process has the caller's identity, so the kernel decides everything else.

use std::cell::Cell;
use zazen_plugin_sdk::Outcome;

thread_local! {
    static UMASK_IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the thread makes files with this umask. The thread first gets an umask, and a
/// working directory, of its own.
pub(crate) struct Umask(u32);

pub(crate) fn with_umask(mask: u32) -> Outcome<Umask> {
    if !UMASK_IS_OURS.get() {
        // SAFETY: no memory involved.
        zazen_plugin_sdk::checked(unsafe { libc::unshare(libc::CLONE_FS) })?;
        UMASK_IS_OURS.set(true);
    }
    // SAFETY: a number.
    Ok(Umask(unsafe { libc::umask(mask & 0o777) }))
}

impl Drop for Umask {
    fn drop(&mut self) {
        // SAFETY: a number.
        unsafe { libc::umask(self.0) };
    }
}
