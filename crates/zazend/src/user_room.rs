//! What of the byte budget one user may take in ways that eviction cannot undo: frames that it is still sending.
//!
//! Invariant: operators have no bounds here; a share is given back when it is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// The part of the budget that one user may take so.
const PART: u64 = 4;
/// A user's push brings at least so many bytes ...
const PACE_BYTES: u64 = 1 << 20;
/// ... in each time so long, or it is cut off.
pub const PACE_TIME: Duration = Duration::from_secs(30);

/// Bytes of a budget that one user may take.
pub fn limit(budget: u64) -> u64 {
    budget / PART
}

/// The bytes that each user's unfinished pushes announce.
#[derive(Default)]
pub struct Unfinished(Mutex<HashMap<u32, u64>>);

/// A push's part of them, until dropped.
pub struct UnfinishedShare {
    all: Arc<Unfinished>,
    uid: u32,
    bytes: u64,
}

impl Unfinished {
    fn held(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share for a push of `bytes` of user `uid`; `NoSpace` where its pushes come to more than its part of `budget`.
    pub fn take(self: &Arc<Unfinished>, uid: u32, bytes: u64, budget: u64) -> Result<UnfinishedShare> {
        let mut held = self.held();
        let others = held.get(&uid).copied().unwrap_or_default();
        if others.saturating_add(bytes) > limit(budget) {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{bytes} bytes beside {others} that user {uid} is still sending are more than {} bytes, a quarter of \
                     the budget, which is what one user's unfinished pushes may take; send fewer at a time or cut the \
                     frame into smaller ones",
                    limit(budget)
                ),
            ));
        }
        *held.entry(uid).or_default() += bytes;
        Ok(UnfinishedShare { all: self.clone(), uid, bytes })
    }
}

impl Drop for UnfinishedShare {
    fn drop(&mut self) {
        let mut held = self.all.held();
        if let Some(sum) = held.get_mut(&self.uid) {
            *sum = sum.saturating_sub(self.bytes);
            if *sum == 0 {
                held.remove(&self.uid);
            }
        }
    }
}

/// Whether a push brings its bytes fast enough to keep the room that it has.
pub struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// A push that begins at `now`.
    pub fn new(now: Instant) -> Pace {
        Pace { since: now, bytes: 0 }
    }

    /// `bytes` more have come by `now`, and more are to come; an error if that was too slow.
    pub fn came(&mut self, bytes: u64, now: Instant) -> Result<()> {
        self.bytes += bytes;
        if self.bytes >= PACE_BYTES {
            (self.since, self.bytes) = (now, 0);
            return Ok(());
        }
        if now.saturating_duration_since(self.since) < PACE_TIME {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            format!(
                "{} bytes came in {} s, a push must bring {PACE_BYTES} in that time while it takes room from others; push \
                 when the bytes are there",
                self.bytes,
                PACE_TIME.as_secs()
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_pushes_take_a_quarter_and_give_it_back() {
        let all = Arc::new(Unfinished::default());
        let first = all.take(7, 20, 100).unwrap();
        let error = all.take(7, 6, 100).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("more than 25 bytes, a quarter"), "{error}");
        let _other = all.take(8, 25, 100).unwrap();
        drop(first);
        drop(all.take(7, 25, 100).unwrap());
        assert_eq!(all.held().len(), 1);
        assert!(all.take(7, u64::MAX, 100).is_err());
    }

    #[test]
    fn a_trickle_is_cut_off_and_a_slow_push_is_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut trickle = Pace::new(start);
        assert!((1..30).all(|second| trickle.came(1, at(second)).is_ok()));
        let error = trickle.came(1, at(30)).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("30 bytes"), "{error}");
        let mut slow = Pace::new(start);
        assert!((1..300).all(|second| slow.came(40_000, at(second)).is_ok()));
    }
}
