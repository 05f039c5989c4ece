//! EVICT, PIN and VERIFY: who may ask for them, and which frames one VERIFY checks.
//!
//! Invariants: the owner of a dataset may drop and check its cached frames, because that harms
//! nobody else. Only an operator (root, the daemon's own user, a holder of the cluster key) may
//! pin: a pin takes room from all users for ever, and what is pinned may grow.

use crate::messages::Verified;
use crate::push::Pusher;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, Result, RunSet, SourceStat};

/// Frames that one VERIFY checks at most.
pub const VERIFY_MAX: u64 = 65_536;

/// What is asked of a dataset in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// To drop frames.
    Evict,
    /// To keep all frames, of now and of later.
    Pin,
    /// To end a pin.
    Unpin,
    /// To check the bytes of frames.
    Verify,
}

/// Whether `who` may do this, before anything is asked of the backing store: `Ok(false)` if its
/// owner may.
///
/// Fails with `PermissionDenied` if not even the owner may.
pub fn may_without_asking(deed: Deed, who: &Pusher, dataset: &str) -> Result<bool> {
    match deed {
        Deed::Pin if !who.operator => Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "dataset {dataset}: only root, the daemon's user and holders of the cluster key may pin, \
                 since all users share the cache's room; ask whoever runs the daemon, user {} may only unpin \
                 its own datasets",
                who.who.uid
            ),
        )),
        _ => Ok(who.operator),
    }
}

/// Whether `who` may do it as the owner of the dataset's directory, which looks like `found`. An
/// owner that cannot be found out is an error.
pub fn may_as_owner(who: &Pusher, found: Result<SourceStat>, dataset: &str) -> Result<()> {
    let owner = found.map_err(|error| error.within(format!("dataset {dataset}: its owner")))?;
    if owner.uid == who.who.uid {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "dataset {dataset}: only its owner, root and the daemon's user may do this, user {} is neither",
            who.who.uid
        ),
    ))
}

/// What became of the check of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Its bytes match its checksum.
    Good,
    /// They do not, and it was dropped.
    Bad,
    /// It is not in the cache any more.
    Gone,
}

/// One VERIFY.
#[derive(Debug)]
pub struct Verifying {
    block: RunSet,
    /// How many of the block were checked or gone.
    at: u64,
    found: Verified,
}

impl Verifying {
    /// Checks at most `frames_max` frames of `held`, from frame number `from` on.
    pub fn new(held: &RunSet, from: u64, frames_max: u32) -> Verifying {
        let rest = held.slice(from, FRAME_NO_MAX);
        let block = rest.block(0, u64::from(frames_max).clamp(1, VERIFY_MAX));
        let found = Verified { checked: 0, bytes: 0, bad: Vec::new(), next: rest.select(block.len()) };
        Verifying { block, at: 0, found }
    }

    /// The frame to check next; `None`: see [`Verifying::end`].
    pub fn next(&self) -> Option<u64> {
        self.block.select(self.at)
    }

    /// The next frame was checked; it has `length` bytes.
    pub fn checked(&mut self, length: u64, outcome: Checked) {
        let Some(number) = self.next() else { return };
        self.at += 1;
        if outcome == Checked::Gone {
            return;
        }
        if outcome == Checked::Bad {
            self.found.bad.push(number);
        }
        self.found.checked += 1;
        self.found.bytes += length;
    }

    /// Whether an answer now would report something. An answer that reports nothing would be asked
    /// for again and again.
    pub fn has_some(&self) -> bool {
        self.found.checked > 0
    }

    /// The answer: if not all of the block was checked, it says where to go on.
    pub fn end(mut self) -> Verified {
        if let Some(number) = self.next() {
            self.found.next = Some(number);
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use zazen_core::{Credentials, Validator};

    fn user(uid: u32, operator: bool) -> Pusher {
        Pusher { who: Credentials { uid, gid: uid, groups: Vec::new() }, operator }
    }

    #[test]
    fn owners_drop_and_check_and_operators_pin_too() {
        let owned =
            || Ok(SourceStat { validator: Validator::default(), uid: 7, gid: 7, mode: 0o700, is_dir: true });
        let may = |deed, who: &Pusher| match may_without_asking(deed, who, "/d") {
            Ok(true) => Ok(()),
            Ok(false) => may_as_owner(who, owned(), "/d"),
            Err(error) => Err(error),
        };
        for deed in [Deed::Evict, Deed::Pin, Deed::Unpin, Deed::Verify] {
            may(deed, &user(9, true)).unwrap();
            assert_eq!(may(deed, &user(7, false)).is_ok(), deed != Deed::Pin, "{deed:?}");
            let error = may(deed, &user(8, false)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(
                error.to_string().contains("dataset /d") && error.to_string().contains("user 8"),
                "{error}"
            );
        }
        let away = Err(Error::new(ErrorKind::Unavailable, "away"));
        assert_eq!(may_as_owner(&user(7, false), away, "/d").unwrap_err().kind(), ErrorKind::Unavailable);
    }

    proptest! {
        /// Whoever follows `next` checks each frame once, whatever stops in between.
        #[test]
        fn every_frame_is_checked_once(
            held in prop::collection::btree_set(0u64..200, 0..60),
            from in 0u64..220, frames_max in 0u32..20,
            stops in prop::collection::vec(1u64..30, 0..40),
        ) {
            let set: RunSet = held.iter().copied().collect();
            let (mut from, mut seen, mut bad) = (from, BTreeSet::new(), Vec::new());
            let expected: BTreeSet<u64> = held.range(from..).copied().collect();
            let mut stops = stops.into_iter();
            loop {
                let mut verifying = Verifying::new(&set, from, frames_max);
                let mut left = stops.next().unwrap_or(u64::MAX);
                let mut sum = 0;
                while let Some(number) = verifying.next().filter(|_| left > 0) {
                    prop_assert!(seen.insert(number), "twice");
                    let outcome = [Checked::Good, Checked::Bad, Checked::Gone][number as usize % 3];
                    verifying.checked(number, outcome);
                    sum += if outcome == Checked::Gone { 0 } else { number };
                    left -= 1;
                }
                let found = verifying.end();
                prop_assert_eq!(found.bytes, sum);
                bad.extend(found.bad);
                match found.next {
                    Some(next) => from = next,
                    None => break,
                }
            }
            let wrong: Vec<u64> = expected.iter().copied().filter(|number| number % 3 == 1).collect();
            prop_assert_eq!(bad, wrong);
            prop_assert_eq!(seen, expected);
        }
    }
}
