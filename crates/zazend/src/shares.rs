//! How much of the daemon's work each user may have under way at a time, so that one user's demands
//! cost nobody else.
//!
//! Invariants: root and the daemon's own user have no bounds here. A share is given back when it is
//! dropped. A call waits for a share on its own thread, and only for other calls of its own user.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::shares;

/// Memory of an open dataset's layout that counts as one more open dataset: a GiB for each user.
pub(crate) const LAYOUT_BYTES_OF_A_SHARE: usize = 64 << 10;
/// How often a waiting call looks whether it should still wait.
const LOOK: Duration = Duration::from_millis(100);

/// A user, of this machine or of another.
pub(crate) type Who = (Option<String>, u32);

/// `None` for callers without bounds: root, and the daemon's own user.
fn who_is(caller: &Caller) -> Option<Who> {
    let own = rustix::process::geteuid().as_raw();
    let uid = caller.credentials.uid;
    let is_free = caller.is_local() && (uid == 0 || uid == own);
    (!is_free).then(|| (caller.host.clone(), uid))
}

/// Shares of one kind.
pub struct Shares {
    /// What the shares are of, in the plural: "scans".
    what: &'static str,
    held: Mutex<shares::Shares<Who>>,
    freed: Condvar,
    /// Shares that all users hold, including users without bounds.
    under_way: AtomicUsize,
}

/// One share, or several, until dropped.
pub struct Share {
    shares: Arc<Shares>,
    who: Option<Who>,
    count: usize,
}

impl Shares {
    /// At most `max` of `what` for each user.
    pub fn new(what: &'static str, max: usize) -> Arc<Shares> {
        let held = Mutex::new(shares::Shares::new(max));
        Arc::new(Shares { what, held, freed: Condvar::new(), under_way: AtomicUsize::new(0) })
    }

    fn held(&self) -> MutexGuard<'_, shares::Shares<Who>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares that are taken now, by all users.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    fn share(self: &Arc<Shares>, who: Option<Who>, count: usize) -> Share {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Share { shares: self.clone(), who, count }
    }

    /// A share for `caller`, if there is one now; `Busy` if not.
    pub fn take(self: &Arc<Shares>, caller: &Caller) -> Result<Share> {
        self.wait(caller, Duration::ZERO, || false)
    }

    /// As [`Shares::take`], for something that counts as `weight` of its kind: at most as all that
    /// a user may have.
    pub fn take_weighing(self: &Arc<Shares>, caller: &Caller, weight: usize) -> Result<Share> {
        let weight = weight.min(self.held().max());
        self.wait_for(who_is(caller), weight, Duration::ZERO, || false)
    }

    /// As [`Shares::take`], but waits: at most for `patience`, and no longer once `stops` returns
    /// true.
    pub fn wait(
        self: &Arc<Shares>,
        caller: &Caller,
        patience: Duration,
        stops: impl Fn() -> bool,
    ) -> Result<Share> {
        self.wait_as(who_is(caller), patience, stops)
    }

    /// As [`Shares::wait`], for a user, or for one without bounds (`None`).
    pub(crate) fn wait_as(
        self: &Arc<Shares>,
        who: Option<Who>,
        patience: Duration,
        stops: impl Fn() -> bool,
    ) -> Result<Share> {
        self.wait_for(who, 1, patience, stops)
    }

    fn wait_for(
        self: &Arc<Shares>,
        who: Option<Who>,
        count: usize,
        patience: Duration,
        stops: impl Fn() -> bool,
    ) -> Result<Share> {
        let Some(who) = who else { return Ok(self.share(None, count)) };
        let start = Instant::now();
        let mut held = self.held();
        loop {
            if held.take(&who, count) {
                return Ok(self.share(Some(who), count));
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() || stops() {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "user {} is at its limit of {} {} under way with this daemon; let some end first",
                        who.1,
                        held.max(),
                        self.what
                    ),
                ));
            }
            held = self.freed.wait_timeout(held, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.under_way.fetch_sub(1, Ordering::Relaxed);
        let Some(who) = self.who.take() else { return };
        self.shares.held().give(&who, self.count);
        self.shares.freed.notify_all();
    }
}

/// All kinds.
pub struct AllShares {
    /// Calls that list directories, read manifests or go through many frames.
    pub heavy: Arc<Shares>,
    /// Blocks being given to another node, each in memory as a whole.
    pub given: Arc<Shares>,
    /// Blocks of small frames that were read ahead, each in memory as a whole.
    pub blocks: Arc<Shares>,
    /// Scans under way.
    pub scans: Arc<Shares>,
    /// Datasets open, over all connections.
    pub opened: Arc<Shares>,
    /// Threads that fetch for scans, beyond each scan's first.
    pub fetchers: Arc<Shares>,
    /// Open sources and bytes that scans hold for readers who have not asked for them yet, beyond
    /// each scan's first.
    pub ahead: Arc<Shares>,
}

impl Default for AllShares {
    fn default() -> AllShares {
        AllShares {
            heavy: Shares::new("calls that go through many frames", 16),
            given: Shares::new("blocks for another node", 32),
            blocks: Shares::new("blocks of small frames", 32),
            scans: Shares::new("scans", 512),
            opened: Shares::new("open datasets", 16_384),
            fetchers: Shares::new("fetching threads", 64),
            ahead: Shares::new("frames read ahead", 256),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::Credentials;

    fn caller(uid: u32, host: Option<&str>) -> Caller {
        let credentials = Credentials { uid, gid: 1, groups: vec![] };
        Caller { credentials, pid: 1, host: host.map(str::to_owned), connection: 1 }
    }

    #[test]
    fn each_user_has_its_own_and_gets_them_back() {
        let shares = Shares::new("scans", 2);
        let (b, a) = (caller(4_000_000_007, None), caller(4_000_000_008, None));
        let held = [shares.take(&b).unwrap(), shares.take(&b).unwrap()];
        let error = shares.take(&b).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("limit of 2 scans"), "{error}");
        assert!(shares.wait(&b, Duration::from_secs(60), || true).is_err());
        let _others = [shares.take(&a).unwrap(), shares.take(&caller(4_000_000_007, Some("n2"))).unwrap()];
        assert!(shares.take_weighing(&b, 2).is_err(), "b has as many");
        let heavy = shares.take_weighing(&caller(4_000_000_009, None), 1000).unwrap();
        assert!(shares.take(&caller(4_000_000_009, None)).is_err(), "as heavy as all that c may have");
        drop(heavy);
        let _root = (0..10).map(|_| shares.take(&caller(0, None)).unwrap()).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shares.wait(&b, Duration::from_secs(60), || false).map(drop));
            drop(held);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(shares.held().users(), 2);
    }
}
