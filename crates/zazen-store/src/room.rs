//! The byte budget.
//!
//! Invariant: used + reserved never exceeds the budget by a put: what a put uses is reserved before it is written, for
//! the whole frame at once or step by step. All sizes are counted in blocks of 4 KiB, as a file system gives them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Bytes that a file of `bytes` takes.
pub(crate) fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// What a put may add beside its frame: a page each of a log, the names file, the dataset's state and the registry,
/// and the tails of a segment.
pub(crate) const PUT_OVERHEAD: u64 = 8 * 4096;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    /// Of the reserved bytes, those that lie in unfinished files: the file system counts them already.
    pub(crate) landed: u64,
}

/// The account of one cache root.
pub(crate) struct Room {
    budget: u64,
    floor: u64,
    account: Mutex<Account>,
    leaking: AtomicBool,
}

impl Room {
    pub(crate) fn new(budget: u64, floor: u64) -> Room {
        Room { budget, floor, account: Mutex::default(), leaking: AtomicBool::new(false) }
    }

    fn guard(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    pub(crate) fn account(&self) -> Account {
        *self.guard()
    }

    /// Reserves `bytes` where the file system has `free`; else says how many bytes are missing.
    pub(crate) fn reserve(&self, bytes: u64, free: u64) -> Result<(), u64> {
        let mut account = self.guard();
        let budget_short = (account.used + account.reserved + bytes).saturating_sub(self.budget);
        let floor_short =
            (self.floor + account.reserved.saturating_sub(account.landed) + bytes).saturating_sub(free);
        match budget_short.max(floor_short) {
            0 => {
                account.reserved += bytes;
                Ok(())
            }
            short => Err(short),
        }
    }

    /// So many of the reserved bytes have been written to an unfinished file.
    pub(crate) fn land(&self, bytes: u64) {
        self.guard().landed += bytes;
    }

    /// Gives back `bytes` of what is reserved, `landed` of them in an unfinished file.
    pub(crate) fn release(&self, bytes: u64, landed: u64) {
        let mut account = self.guard();
        account.reserved = account.reserved.saturating_sub(bytes);
        account.landed = account.landed.saturating_sub(landed);
    }

    /// Notes a removal that failed: a file may be left that nobody counts, so the next start must walk the trees.
    pub(crate) fn removed(&self, removed: zazen_core::Result<()>) -> zazen_core::Result<()> {
        if removed.is_err() {
            self.leaking.store(true, Ordering::Relaxed);
        }
        removed
    }

    pub(crate) fn is_leaking(&self) -> bool {
        self.leaking.load(Ordering::Relaxed)
    }

    /// Something that took `before` takes `after` now.
    pub(crate) fn settle(&self, before: u64, after: u64) {
        let mut account = self.guard();
        account.used = (account.used + after).saturating_sub(before);
    }
}
