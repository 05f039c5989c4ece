//! Locks of bytes by their owners, for a tree whose locks nobody else knows.

use crate::tree::{Blocking, Errno, Lock, Node, Owner, Range, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The most locks of one file.
const LOCKS_MAX: usize = 65_536;

/// A lock that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    owner: u64,
    pid: u32,
    range: Range,
    exclusive: bool,
}

/// All locks: `fcntl`'s and `flock`'s apart.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    held: Mutex<HashMap<(Node, bool), Vec<Held>>>,
}

impl LockTable {
    /// The lock of another owner that stands in the way.
    pub(crate) fn test(&self, node: Node, owner: Owner, range: Range, lock: Lock) -> Option<Blocking> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        find(held.get(&(node, owner.whole))?, owner, range, lock)
    }

    /// Takes or ends a lock; what the owner had in the range is replaced.
    pub(crate) fn set(&self, node: Node, owner: Owner, range: Range, lock: Lock) -> Result<()> {
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.entry((node, owner.whole)).or_default();
        if find(held, owner, range, lock).is_some() {
            return Err(Errno::EAGAIN);
        }
        if held.len() + 2 > LOCKS_MAX && lock != Lock::Unlock {
            return Err(Errno::ENOLCK);
        }
        let mut kept = Vec::with_capacity(held.len() + 2);
        for one in held.drain(..) {
            if one.owner != owner.number || one.range.end < range.start || one.range.start > range.end {
                kept.push(one);
                continue;
            }
            if one.range.start < range.start {
                kept.push(Held { range: Range { start: one.range.start, end: range.start - 1 }, ..one });
            }
            if one.range.end > range.end {
                kept.push(Held { range: Range { start: range.end + 1, end: one.range.end }, ..one });
            }
        }
        if lock != Lock::Unlock {
            let exclusive = lock == Lock::Exclusive;
            kept.push(Held { owner: owner.number, pid: owner.pid, range, exclusive });
        }
        if kept.is_empty() {
            all.remove(&(node, owner.whole));
        } else {
            *held = kept;
        }
        Ok(())
    }
}

fn find(held: &[Held], owner: Owner, range: Range, lock: Lock) -> Option<Blocking> {
    let stands = |one: &&Held| {
        one.owner != owner.number
            && one.range.start <= range.end
            && one.range.end >= range.start
            && match lock {
                Lock::Unlock => false,
                Lock::Shared => one.exclusive,
                Lock::Exclusive => true,
            }
    };
    let one = held.iter().find(stands)?;
    Some(Blocking { range: one.range, exclusive: one.exclusive, pid: one.pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u64) -> Owner {
        Owner { number, pid: number as u32, whole: false }
    }

    fn bytes(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn locks_are_shared_split_and_ended_as_fcntl_has_it() {
        let table = LockTable::default();
        let set = |who, start, end, lock| table.set(1, owner(who), bytes(start, end), lock);
        assert_eq!(set(1, 0, 99, Lock::Shared), Ok(()));
        assert_eq!(set(2, 50, 60, Lock::Shared), Ok(()));
        assert_eq!(set(2, 50, 60, Lock::Exclusive), Err(Errno::EAGAIN));
        assert_eq!(set(1, 40, 69, Lock::Unlock), Ok(()));
        assert_eq!(set(2, 40, 69, Lock::Exclusive), Ok(()));
        let blocking = table.test(1, owner(3), bytes(0, u64::MAX), Lock::Exclusive).unwrap();
        assert_eq!(blocking.range, bytes(0, 39));
        assert_eq!(table.test(1, owner(1), bytes(70, 80), Lock::Exclusive), None);
        // flock's locks do not see them.
        let whole = Owner { whole: true, ..owner(4) };
        assert_eq!(table.set(1, whole, bytes(0, u64::MAX), Lock::Exclusive), Ok(()));
        for who in 1..=2 {
            set(who, 0, u64::MAX, Lock::Unlock).unwrap();
        }
        assert_eq!(table.test(1, owner(3), bytes(0, u64::MAX), Lock::Exclusive), None);
    }
}
