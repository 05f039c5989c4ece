//! The ledger of one cache, shared by threads. Its arithmetic is `zazen_frames::quota` and `room`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use zazen_core::RelPath;
use zazen_frames::quota::{Claim, Ledger, Quotas, Scope, Short, Taken};
use zazen_frames::room::Account;

pub(crate) use zazen_frames::room::on_disk;

/// The ledger of one cache root.
pub(crate) struct Room {
    ledger: Mutex<Ledger>,
    leaking: AtomicBool,
}

impl Room {
    pub(crate) fn new(budget: u64, floor: u64) -> Room {
        let whole = Account { budget, floor, ..Account::default() };
        Room { ledger: Mutex::new(Ledger::new(whole)), leaking: AtomicBool::new(false) }
    }

    fn guard(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bounds the cache by these from now on; more may be in use.
    pub(crate) fn set_limits(&self, budget: u64, floor: u64) {
        let account = &mut self.guard().whole;
        (account.budget, account.floor) = (budget, floor);
    }

    /// Bounds users and folders by these from now on; they may have more.
    pub(crate) fn set_quotas(&self, quotas: Quotas) {
        self.guard().quotas = quotas;
    }

    pub(crate) fn floor(&self) -> u64 {
        self.guard().whole.floor
    }

    pub(crate) fn budget(&self) -> u64 {
        self.guard().whole.budget
    }

    pub(crate) fn account(&self) -> Account {
        self.guard().whole
    }

    /// What a user or a folder has.
    pub(crate) fn taken(&self, scope: &Scope) -> Taken {
        self.guard().taken(scope)
    }

    /// What each user has.
    pub(crate) fn users(&self) -> Vec<(u32, Taken)> {
        self.guard().users().collect()
    }

    /// Reserves `bytes` if the file system has `free` left and the bounds of `claim` allow it;
    /// otherwise says what is missing.
    pub(crate) fn reserve(&self, bytes: u64, free: u64, claim: Option<&Claim>) -> Result<(), Short> {
        self.guard().reserve(bytes, free, claim)
    }

    /// Notes that so many of the reserved bytes were written to an unfinished file.
    pub(crate) fn land(&self, bytes: u64) {
        self.guard().whole.land(bytes);
    }

    /// Releases `bytes` of what is reserved for `claim`, `landed` of them in an unfinished file.
    pub(crate) fn release(&self, bytes: u64, landed: u64, claim: Option<&Claim>) {
        self.guard().release(bytes, landed, claim);
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

    /// Notes that something of no series that took `before` bytes takes `after` now.
    pub(crate) fn settle_own(&self, before: u64, after: u64) {
        self.guard().whole.settle(before, after);
    }

    /// Notes that a series that took `before` bytes takes `after` now, and how much more or less of
    /// it each user owns.
    pub(crate) fn settle(&self, series: &RelPath, before: u64, after: u64, owned: &[(u32, i64)]) {
        self.guard().settle(series, before, after, owned);
    }
}
