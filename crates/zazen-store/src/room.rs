//! The account of one cache, shared by threads. Its arithmetic is `zazen_frames::room`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use zazen_frames::room::Account;

pub(crate) use zazen_frames::room::on_disk;

/// The account of one cache root.
pub(crate) struct Room {
    account: Mutex<Account>,
    leaking: AtomicBool,
}

impl Room {
    pub(crate) fn new(budget: u64, floor: u64) -> Room {
        let account = Mutex::new(Account { budget, floor, ..Account::default() });
        Room { account, leaking: AtomicBool::new(false) }
    }

    fn guard(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bounds the cache by these from now on; more may be in use.
    pub(crate) fn set_limits(&self, budget: u64, floor: u64) {
        let mut account = self.guard();
        (account.budget, account.floor) = (budget, floor);
    }

    pub(crate) fn floor(&self) -> u64 {
        self.guard().floor
    }

    pub(crate) fn budget(&self) -> u64 {
        self.guard().budget
    }

    pub(crate) fn account(&self) -> Account {
        *self.guard()
    }

    /// Reserves `bytes` if the file system has `free` left; otherwise says how many bytes are
    /// missing.
    pub(crate) fn reserve(&self, bytes: u64, free: u64) -> Result<(), u64> {
        self.guard().reserve(bytes, free)
    }

    /// Notes that so many of the reserved bytes were written to an unfinished file.
    pub(crate) fn land(&self, bytes: u64) {
        self.guard().land(bytes);
    }

    /// Releases `bytes` of what is reserved, `landed` of them in an unfinished file.
    pub(crate) fn release(&self, bytes: u64, landed: u64) {
        self.guard().release(bytes, landed);
    }

    /// Notes a removal that failed: a file may be left that nobody counts, so the next start must
    /// walk the trees.
    pub(crate) fn removed(&self, removed: zazen_core::Result<()>) -> zazen_core::Result<()> {
        if removed.is_err() {
            self.leaking.store(true, Ordering::Relaxed);
        }
        removed
    }

    pub(crate) fn is_leaking(&self) -> bool {
        self.leaking.load(Ordering::Relaxed)
    }

    /// Notes that something that took `before` bytes takes `after` now.
    pub(crate) fn settle(&self, before: u64, after: u64) {
        self.guard().settle(before, after);
    }
}
