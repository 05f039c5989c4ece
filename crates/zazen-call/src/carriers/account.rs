//! What each identity holds of a server: connections, calls, memory, descriptors, shared memory.
//!
//! An identity is a local user, on the kernel's word, or a holder of the cluster key: its address,
//! and the user that it claims.
//!
//! Invariants: an identity at its own bound is refused by name, or waits in its own thread; no
//! other identity notices. What is held is counted off when its holder is dropped. Root and the
//! daemon's own user have no bounds here: they could end the daemon as well.

use crate::limits::CallerLimits;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// Messages up to this size are not counted, so that small calls cost nothing here.
pub(crate) const FREE_BYTES: u64 = 64 << 10;
/// How often a call that waits for its turn looks whether the server drains.
const LOOK: Duration = Duration::from_millis(100);

/// An identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    /// A user of this machine.
    Local(u32),
    /// A holder of the cluster key, at this address, for this user.
    Remote(IpAddr, u32),
}

impl std::fmt::Display for Payer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Payer::Local(uid) => write!(f, "user {uid}"),
            Payer::Remote(host, uid) => write!(f, "user {uid} at {host}"),
        }
    }
}

/// The limits of identities, which may change while calls are under way. Whatever was admitted
/// before a change stays.
pub(crate) struct Bounds {
    connections_max: AtomicUsize,
    calls_max: AtomicUsize,
    queue_max_ms: AtomicU64,
    bytes_max: AtomicU64,
    descriptors_max: AtomicUsize,
}

impl Bounds {
    fn new(limits: &CallerLimits) -> Bounds {
        Bounds {
            connections_max: limits.connections_max.into(),
            calls_max: limits.calls_max.into(),
            queue_max_ms: millis(limits.queue_max).into(),
            bytes_max: limits.bytes_max.into(),
            descriptors_max: limits.descriptors_max.into(),
        }
    }

    fn set(&self, limits: &CallerLimits) {
        self.connections_max.store(limits.connections_max, Ordering::Relaxed);
        self.calls_max.store(limits.calls_max, Ordering::Relaxed);
        self.queue_max_ms.store(millis(limits.queue_max), Ordering::Relaxed);
        self.bytes_max.store(limits.bytes_max, Ordering::Relaxed);
        self.descriptors_max.store(limits.descriptors_max, Ordering::Relaxed);
    }

    fn calls_max(&self) -> usize {
        self.calls_max.load(Ordering::Relaxed)
    }

    fn queue_max(&self) -> Duration {
        Duration::from_millis(self.queue_max_ms.load(Ordering::Relaxed))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// All identities that hold something.
pub(crate) struct Accounts {
    bounds: Arc<Bounds>,
    all: Mutex<HashMap<Payer, Weak<Account>>>,
}

impl Accounts {
    /// Accounts of callers that are bounded by `limits`.
    pub(crate) fn new(limits: &CallerLimits) -> Accounts {
        Accounts { bounds: Arc::new(Bounds::new(limits)), all: Mutex::default() }
    }

    /// Bounds all callers by `limits` from now on, those with an account too.
    pub(crate) fn set_limits(&self, limits: &CallerLimits) {
        self.bounds.set(limits);
    }

    /// The account of `payer`. It is bounded unless the payer is root or this process's own user.
    pub(crate) fn of(&self, payer: &Payer) -> Arc<Account> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = all.get(payer).and_then(Weak::upgrade) {
            return account;
        }
        all.retain(|_, account| account.strong_count() > 0);
        let own = rustix::process::geteuid().as_raw();
        let bounded = !matches!(payer, Payer::Local(uid) if *uid == 0 || *uid == own);
        let account = Account::new(payer.to_string(), bounded.then(|| Arc::clone(&self.bounds)));
        all.insert(payer.clone(), Arc::downgrade(&account));
        account
    }
}

/// The account of one identity.
pub(crate) struct Account {
    who: String,
    limits: Option<Arc<Bounds>>,
    connections: AtomicUsize,
    calls: AtomicUsize,
    bytes: AtomicU64,
    shm_bytes: AtomicU64,
    fds: AtomicUsize,
    /// Threads that wait for a call to end.
    waiting: AtomicUsize,
    queue: Mutex<()>,
    ended: Condvar,
}

impl Account {
    fn new(who: String, limits: Option<Arc<Bounds>>) -> Arc<Account> {
        Arc::new(Account {
            who,
            limits,
            connections: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            shm_bytes: AtomicU64::new(0),
            fds: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(()),
            ended: Condvar::new(),
        })
    }

    /// An account for a peer that has not said who it is: it makes no calls.
    pub(crate) fn of_stranger() -> Arc<Account> {
        Account::new("a stranger".to_owned(), None)
    }

    /// The identity in words: "user 1001".
    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// False for root and the daemon's own user.
    pub(crate) fn is_bounded(&self) -> bool {
        self.limits.is_some()
    }

    fn busy(&self, what: &str, setting: &str) -> Error {
        Error::new(
            ErrorKind::Busy,
            format!(
                "{} is at its limit of {what} with this daemon; end some, or raise `{setting}`",
                self.who
            ),
        )
    }

    /// Counts one more connection, until [`Account::close`].
    pub(crate) fn open(&self) -> Result<()> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let max = self.limits.as_ref().map(|limits| limits.connections_max.load(Ordering::Relaxed));
        match max {
            Some(max) if before >= max => {
                self.close();
                Err(self.busy(&format!("{max} connections"), "caller_connections_max"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn close(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more call, until [`Account::leave`]. Waits on the calling thread for a place,
    /// unless `stops` says to stop.
    pub(crate) fn enter(&self, stops: impl Fn() -> bool) -> Result<()> {
        let Some(limits) = &self.limits else { return Ok(()) };
        if self.try_enter(limits.calls_max()) {
            return Ok(());
        }
        let start = Instant::now();
        let mut queue = self.queue();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let entered = loop {
            if self.try_enter(limits.calls_max()) {
                break true;
            }
            let left = limits.queue_max().saturating_sub(start.elapsed());
            if left.is_zero() || stops() {
                break false;
            }
            queue = self.ended.wait_timeout(queue, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(queue);
        if entered {
            return Ok(());
        }
        let (calls, waited) = (limits.calls_max(), limits.queue_max());
        let what = format!("{calls} calls at a time, and waited {waited:?} in vain");
        Err(self.busy(&what, "caller_calls_max"))
    }

    fn try_enter(&self, max: usize) -> bool {
        let fits = |calls: usize| (calls < max).then_some(calls + 1);
        self.calls.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    /// The call is over.
    pub(crate) fn leave(&self) {
        if self.limits.is_none() {
            return;
        }
        self.calls.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Takes the lock, so that a waiting thread has either seen the free place or is woken.
            drop(self.queue());
            self.ended.notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, ()> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts memory for a message of `bytes`; `None` if it is too small to count.
    pub(crate) fn charge(self: &Arc<Account>, bytes: u64) -> Result<Option<Charge>> {
        if bytes <= FREE_BYTES || self.limits.is_none() {
            return Ok(None);
        }
        let mut charge = Charge { account: Arc::clone(self), bytes: 0 };
        charge.grow_to(bytes)?;
        Ok(Some(charge))
    }

    /// Counts shared memory that the caller keeps, at most `most` in all, until
    /// [`Account::give_back_shm`].
    pub(crate) fn take_shm(&self, bytes: u64, most: u64) -> bool {
        let max = if self.is_bounded() { most } else { u64::MAX };
        take(&self.shm_bytes, bytes, max)
    }

    pub(crate) fn give_back_shm(&self, bytes: u64) {
        self.shm_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts descriptors that the daemon holds or has on their way for this identity, until
    /// [`Account::release_fds`].
    pub(crate) fn hold_fds(&self, count: usize) -> Result<()> {
        let max =
            self.limits.as_ref().map_or(usize::MAX, |limits| limits.descriptors_max.load(Ordering::Relaxed));
        let fits = |held: usize| held.checked_add(count).filter(|sum| *sum <= max);
        match self.fds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.busy(&format!("{max} descriptors on their way"), "LimitNOFILE")),
        }
    }

    pub(crate) fn release_fds(&self, count: usize) {
        self.fds.fetch_sub(count, Ordering::Relaxed);
    }
}

fn take(held: &AtomicU64, bytes: u64, max: u64) -> bool {
    let fits = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= max);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

/// Memory counted against an account, until dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// A charge of nothing.
    pub(crate) fn none(account: &Arc<Account>) -> Charge {
        Charge { account: Arc::clone(account), bytes: 0 }
    }

    /// Counts `bytes` in all. Does nothing if that is little, or less than is counted already.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<()> {
        let Some(limits) = &self.account.limits else { return Ok(()) };
        if bytes <= self.bytes.max(FREE_BYTES) {
            return Ok(());
        }
        let max = limits.bytes_max.load(Ordering::Relaxed);
        if !take(&self.account.bytes, bytes - self.bytes, max) {
            let what = format!("{max} bytes of messages under way");
            return Err(self.account.busy(&what, "caller_bytes_max"));
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> CallerLimits {
        CallerLimits {
            connections_max: 2,
            calls_max: 2,
            bytes_max: 1 << 20,
            descriptors_max: 10,
            queue_max: Duration::from_millis(50),
        }
    }

    fn refused(result: Result<()>, words: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(words) && error.to_string().contains("user 7"), "{error}");
    }

    #[test]
    fn each_identity_has_bounds_of_its_own() {
        let accounts = Accounts::new(&limits());
        let payer = Payer::Remote(IpAddr::from([10, 0, 0, 1]), 7);
        let (one, again) = (accounts.of(&payer), accounts.of(&payer));
        let other = accounts.of(&Payer::Remote(IpAddr::from([10, 0, 0, 2]), 7));
        one.open().unwrap();
        again.open().unwrap();
        refused(one.open(), "caller_connections_max");
        other.open().unwrap();
        one.close();
        one.open().unwrap();

        let big = one.charge(900 << 10).unwrap().unwrap();
        refused(again.charge(200 << 10).map(drop), "caller_bytes_max");
        assert!(again.charge(FREE_BYTES).unwrap().is_none());
        assert!(other.charge(200 << 10).unwrap().is_some());
        drop(big);
        assert!(again.charge(1 << 20).unwrap().is_some());

        one.hold_fds(8).unwrap();
        refused(again.hold_fds(3), "descriptors");
        one.release_fds(8);
        again.hold_fds(10).unwrap();
        assert!(one.take_shm(5, 8) && !again.take_shm(4, 8));
    }

    #[test]
    fn new_limits_hold_for_accounts_that_are_in_use() {
        let accounts = Accounts::new(&limits());
        let account = accounts.of(&Payer::Remote(IpAddr::from([10, 0, 0, 1]), 7));
        (0..2).for_each(|_| account.open().unwrap());
        accounts.set_limits(&CallerLimits { connections_max: 3, bytes_max: 8 << 20, ..limits() });
        account.open().unwrap();
        refused(account.open(), "3 connections");
        let charge = account.charge(4 << 20).unwrap().unwrap();
        accounts.set_limits(&CallerLimits { connections_max: 1, ..limits() });
        refused(account.open(), "1 connections");
        refused(account.charge(100 << 10).map(drop), "caller_bytes_max");
        drop(charge);
        assert!(account.charge(100 << 10).unwrap().is_some());
    }

    #[test]
    fn root_and_the_daemons_own_user_are_not_bounded() {
        let accounts = Accounts::new(&limits());
        for uid in [0, rustix::process::geteuid().as_raw()] {
            let account = accounts.of(&Payer::Local(uid));
            (0..10).for_each(|_| account.open().unwrap());
            (0..10).for_each(|_| account.enter(|| false).unwrap());
            assert!(account.charge(1 << 40).unwrap().is_none());
            account.hold_fds(1 << 20).unwrap();
        }
        assert!(!accounts.of(&Payer::Local(0)).is_bounded());
    }

    #[test]
    fn a_call_waits_for_its_turn_and_not_for_ever() {
        let patient = CallerLimits { queue_max: Duration::from_secs(60), ..limits() };
        let account = Account::new("user 7".to_owned(), Some(Arc::new(Bounds::new(&patient))));
        account.enter(|| false).unwrap();
        account.enter(|| false).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| account.enter(|| false));
            while account.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            account.leave();
            waits.join().unwrap().unwrap();
        });
        refused(account.enter(|| true), "caller_calls_max");
        let short = Account::new("user 7".to_owned(), Some(Arc::new(Bounds::new(&limits()))));
        (0..2).for_each(|_| short.enter(|| false).unwrap());
        refused(short.enter(|| false), "caller_calls_max");
    }
}
