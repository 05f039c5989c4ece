//! Record locks (`fcntl`) and locks of open files (`flock`).

use super::change::Change;
use super::machine::{Asking, Partition, Stop};
use super::permission::{self, READ, WRITE};
use super::row::LockRow;
use crate::operation::{Answer, Blocking, Lock, LockWanted};
use crate::{Errno, Incarnation, NodeNo};

type Answered = Result<Answer, Stop>;

/// Whether the lock is of this life of the node.
pub(super) fn is_of(lock: &LockRow, node: NodeNo, incarnation: Incarnation) -> bool {
    (lock.node, lock.incarnation) == (node, incarnation)
}

impl Partition {
    /// Takes, frees or tests a lock. Never waits.
    pub(super) fn lock(&mut self, call: &Asking<'_>, lock: &Lock) -> Answered {
        let serial = lock.id.serial();
        let inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        if lock.start > lock.end {
            return Err(Errno::EINVAL.into());
        }
        let open = self.tables.opens.contains_key(&(serial, call.node, call.incarnation));
        let may = |bits| permission::may(call.caller, &inode, bits);
        if !open && !may(READ) && !may(WRITE) {
            return Err(Errno::EACCES.into());
        }
        let wanted = LockRow {
            whole: lock.whole,
            node: call.node,
            incarnation: call.incarnation,
            owner: lock.owner,
            pid: lock.pid,
            start: if lock.whole { 0 } else { lock.start },
            end: if lock.whole { u64::MAX } else { lock.end },
            exclusive: matches!(lock.wanted, LockWanted::Exclusive | LockWanted::TestExclusive),
        };
        let locks = self.tables.locks.get(&serial).map_or(&[][..], |locks| locks);
        let unlock = lock.wanted == LockWanted::Unlock;
        if let Some(other) = locks.iter().find(|other| !unlock && wanted.meets(other)) {
            let LockRow { node, pid, start, end, exclusive, .. } = *other;
            return Ok(Answer::Blocking(Blocking { node, pid, start, end, exclusive }));
        }
        if matches!(lock.wanted, LockWanted::TestShared | LockWanted::TestExclusive) {
            return Ok(Answer::Done);
        }
        let after = set(locks, &wanted, unlock);
        if after.len() > locks.len() && after.len() > self.settings.locks_max as usize {
            return Err(Errno::ENOLCK.into());
        }
        if after != locks {
            self.change(&Change::Locks { serial, locks: after });
        }
        Ok(Answer::Done)
    }
}

impl LockRow {
    fn same_owner(&self, other: &LockRow) -> bool {
        (self.whole, self.node, self.incarnation, self.owner)
            == (other.whole, other.node, other.incarnation, other.owner)
    }

    fn overlaps(&self, other: &LockRow) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether the two cannot be held at once.
    fn meets(&self, other: &LockRow) -> bool {
        self.whole == other.whole
            && !self.same_owner(other)
            && self.overlaps(other)
            && (self.exclusive || other.exclusive)
    }

    /// Whether the two are one lock.
    fn joins(&self, other: &LockRow) -> bool {
        let touches = self.overlaps(other)
            || self.end.checked_add(1) == Some(other.start)
            || other.end.checked_add(1) == Some(self.start);
        touches && self.exclusive == other.exclusive
    }
}

/// The locks after the owner of `wanted` has set its range: what the owner had there goes, what
/// stays beside it is split off, and neighbours of the same kind become one.
fn set(locks: &[LockRow], wanted: &LockRow, unlock: bool) -> Vec<LockRow> {
    let mut wanted = wanted.clone();
    let mut after = Vec::with_capacity(locks.len() + 2);
    for lock in locks {
        if !lock.same_owner(&wanted) {
            after.push(lock.clone());
        } else if !unlock && lock.joins(&wanted) {
            wanted.start = wanted.start.min(lock.start);
            wanted.end = wanted.end.max(lock.end);
        } else if lock.overlaps(&wanted) {
            if lock.start < wanted.start {
                after.push(LockRow { end: wanted.start - 1, ..lock.clone() });
            }
            if lock.end > wanted.end {
                after.push(LockRow { start: wanted.end + 1, ..lock.clone() });
            }
        } else {
            after.push(lock.clone());
        }
    }
    if !unlock {
        after.push(wanted);
    }
    after.sort_by_key(|lock| (lock.whole, lock.node, lock.incarnation, lock.owner, lock.start));
    after
}
