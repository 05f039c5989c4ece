//! What each user may have under way with a daemon at a time, so that one user's demands cost
//! nobody else.

use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The part of the budget that one user's unfinished pushes may take.
const PART: u64 = 4;

/// So many of one kind for each user `W`.
#[derive(Debug)]
pub struct Shares<W> {
    max: usize,
    held: BTreeMap<W, usize>,
}

impl<W: Ord + Clone> Shares<W> {
    /// At most `max` for each user.
    pub fn new(max: usize) -> Shares<W> {
        Shares { max, held: BTreeMap::new() }
    }

    /// The bound.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes `count` for `who`; false if they would be more than it may have.
    pub fn take(&mut self, who: &W, count: usize) -> bool {
        let held = self.held.get(who).copied().unwrap_or(0);
        if count > self.max.saturating_sub(held) {
            return false;
        }
        self.held.insert(who.clone(), held + count);
        true
    }

    /// Gives `count` back.
    pub fn give(&mut self, who: &W, count: usize) {
        if let Some(held) = self.held.get_mut(who) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.held.remove(who);
            }
        }
    }

    /// Users who hold any.
    pub fn users(&self) -> usize {
        self.held.len()
    }
}

/// Bytes of a budget that one user's unfinished pushes may take: eviction cannot undo those.
pub(crate) fn unfinished_max(budget: u64) -> u64 {
    budget / PART
}

/// The bytes that each user's unfinished pushes announced.
#[derive(Debug, Default)]
pub struct Unfinished {
    held: BTreeMap<u32, u64>,
}

impl Unfinished {
    /// Adds a push of `bytes` by user `uid`; `NoSpace` if the user's pushes come to more than its
    /// part of `budget`.
    pub fn take(&mut self, uid: u32, bytes: u64, budget: u64) -> Result<()> {
        let others = self.held.get(&uid).copied().unwrap_or_default();
        let max = unfinished_max(budget);
        if others.saturating_add(bytes) > max {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{bytes} bytes beside {others} that user {uid} is still sending are more than {max} \
                     bytes, a quarter of the budget, which is what one user's unfinished pushes may take; \
                     send fewer at a time or cut the frame into smaller ones"
                ),
            ));
        }
        *self.held.entry(uid).or_default() += bytes;
        Ok(())
    }

    /// Removes it again.
    pub fn give(&mut self, uid: u32, bytes: u64) {
        if let Some(sum) = self.held.get_mut(&uid) {
            *sum = sum.saturating_sub(bytes);
            if *sum == 0 {
                self.held.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_its_own_and_gets_them_back() {
        let mut shares = Shares::new(2);
        assert!(shares.take(&"b", 1) && shares.take(&"b", 1) && !shares.take(&"b", 1));
        assert!(shares.take(&"a", 1) && !shares.take(&"a", 2) && !shares.take(&"a", usize::MAX));
        shares.give(&"b", 1);
        assert!(shares.take(&"b", 1) && !shares.take(&"b", 1));
        shares.give(&"b", 2);
        assert!(shares.take(&"b", 2));
        [("a", 1), ("b", 2)].iter().for_each(|(who, count)| shares.give(who, *count));
        assert_eq!(shares.users(), 0);
    }

    #[test]
    fn a_users_pushes_take_a_quarter_and_give_it_back() {
        let mut all = Unfinished::default();
        all.take(7, 20, 100).unwrap();
        let error = all.take(7, 6, 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("more than 25 bytes, a quarter"), "{error}");
        all.take(8, 25, 100).unwrap();
        all.give(7, 20);
        all.take(7, 25, 100).unwrap();
        all.give(7, 25);
        assert_eq!(all.held.len(), 1);
        assert!(all.take(7, u64::MAX, 100).is_err());
    }
}
