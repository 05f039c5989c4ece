//! Record locks as POSIX has them, for owners that live in one process: pure, no I/O.
//!
//! To the kernel all clients of a daemon are one process, so it never sees a conflict between them.
//! This table does. An owner is a session, a file is (device, inode).
//!
//! Invariants: an owner's locks of a file never overlap, and locks of the same kind that
//! touch are merged. Segments of two owners overlap only if both are for reading. An owner that
//! would wait for itself, over any number of other owners, is refused (EDEADLK).

use std::collections::HashMap;
use std::hash::Hash;

/// Bytes of a file, both ends included; `last` is `i64::MAX` for "to the end, however far".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub first: i64,
    /// Last byte.
    pub last: i64,
}

impl Range {
    /// The range that `struct flock` means by a start and a length. `None` if it begins before the
    /// file (EINVAL) or ends beyond 63 bits (EOVERFLOW).
    pub fn new(start: i64, length: i64) -> Option<Range> {
        let (first, last) = match length {
            0 => (start, i64::MAX),
            1.. => (start, start.checked_add(length - 1)?),
            _ => (start.checked_add(length)?, start - 1),
        };
        (first >= 0).then_some(Range { first, last })
    }

    /// Whether they share a byte.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// As `struct flock` says it: 0 for "to the end".
    pub fn length(&self) -> i64 {
        if self.last == i64::MAX { 0 } else { self.last - self.first + 1 }
    }
}

/// One held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock<O> {
    /// Whose.
    pub owner: O,
    /// What.
    pub range: Range,
    /// For writing, so alone.
    pub write: bool,
}

/// All locks of all files, and who waits for whom.
#[derive(Clone, Debug)]
pub struct LockTable<F, O> {
    files: HashMap<F, Vec<HeldLock<O>>>,
    /// (who waits, for whom).
    waits: Vec<(O, O)>,
}

impl<F, O> Default for LockTable<F, O> {
    fn default() -> LockTable<F, O> {
        LockTable { files: HashMap::new(), waits: Vec::new() }
    }
}

impl<F: Copy + Eq + Hash, O: Copy + Eq + Hash> LockTable<F, O> {
    /// The lock of another owner that stands in the way: the one with the lowest first byte.
    pub fn conflict(&self, file: F, owner: O, range: Range, write: bool) -> Option<HeldLock<O>> {
        self.files
            .get(&file)?
            .iter()
            .filter(|held| held.owner != owner && (held.write || write) && held.range.overlaps(&range))
            .min_by_key(|held| held.range.first)
            .copied()
    }

    /// Sets the owner's lock on exactly this range, or releases it (`None`). The caller has checked
    /// that no other lock conflicts.
    pub fn set(&mut self, file: F, owner: O, range: Range, write: Option<bool>) {
        let held = self.files.entry(file).or_default();
        let mut locks = Vec::with_capacity(held.len() + 2);
        for lock in held.drain(..) {
            if lock.owner != owner || !lock.range.overlaps(&range) {
                locks.push(lock);
                continue;
            }
            if lock.range.first < range.first {
                let range = Range { first: lock.range.first, last: range.first - 1 };
                locks.push(HeldLock { range, ..lock });
            }
            if lock.range.last > range.last {
                let range = Range { first: range.last + 1, last: lock.range.last };
                locks.push(HeldLock { range, ..lock });
            }
        }
        if let Some(write) = write {
            locks.push(HeldLock { owner, range, write });
        }
        locks.sort_by_key(|lock| lock.range.first);
        *held = merged(locks, owner);
        if held.is_empty() {
            self.files.remove(&file);
        }
    }

    /// Releases all of the owner's locks on a file; whether there were any.
    pub fn release(&mut self, file: F, owner: O) -> bool {
        let Some(held) = self.files.get_mut(&file) else { return false };
        let before = held.len();
        held.retain(|lock| lock.owner != owner);
        let released = held.len() < before;
        if held.is_empty() {
            self.files.remove(&file);
        }
        released
    }

    /// Releases all that the owner holds or waits for; the files where it held something.
    pub fn release_owner(&mut self, owner: O) -> Vec<F> {
        self.waits.retain(|(waiter, _)| *waiter != owner);
        let files: Vec<F> = self.files.keys().copied().collect();
        files.into_iter().filter(|file| self.release(*file, owner)).collect()
    }

    /// What is held on a file.
    pub fn held(&self, file: F) -> &[HeldLock<O>] {
        self.files.get(&file).map_or(&[], Vec::as_slice)
    }

    /// Puts back what [`LockTable::held`] said earlier.
    pub fn restore(&mut self, file: F, held: Vec<HeldLock<O>>) {
        if held.is_empty() {
            self.files.remove(&file);
        } else {
            self.files.insert(file, held);
        }
    }

    /// The strongest kind of lock on each part of `range`, over all owners, in order; `None` where
    /// nobody holds one.
    pub fn strongest(&self, file: F, range: Range) -> Vec<(Range, Option<bool>)> {
        let held: Vec<_> = self.held(file).iter().filter(|held| held.range.overlaps(&range)).collect();
        let mut starts = vec![range.first];
        for lock in &held {
            starts.push(lock.range.first.max(range.first));
            if lock.range.last < range.last {
                starts.push(lock.range.last + 1);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let mut parts: Vec<(Range, Option<bool>)> = Vec::new();
        for (at, first) in starts.iter().enumerate() {
            let last = starts.get(at + 1).map_or(range.last, |next| next - 1);
            let part = Range { first: *first, last };
            let kind = held.iter().filter(|held| held.range.overlaps(&part)).map(|held| held.write).max();
            match parts.last_mut() {
                Some((before, same)) if *same == kind => before.last = last,
                _ => parts.push((part, kind)),
            }
        }
        parts
    }

    /// Notes that `owner` waits for `blocker`, unless that would close a circle: then false.
    pub fn wait(&mut self, owner: O, blocker: O) -> bool {
        let mut seen = vec![blocker];
        let mut at = 0;
        while at < seen.len() {
            if seen[at] == owner {
                return false;
            }
            let next = self.waits.iter().filter(|(waiter, _)| *waiter == seen[at]).map(|(_, other)| *other);
            let next: Vec<O> = next.filter(|other| !seen.contains(other)).collect();
            seen.extend(next);
            at += 1;
        }
        self.waits.push((owner, blocker));
        true
    }

    /// Takes back one [`LockTable::wait`].
    pub fn unwait(&mut self, owner: O, blocker: O) {
        if let Some(at) = self.waits.iter().position(|wait| *wait == (owner, blocker)) {
            self.waits.swap_remove(at);
        }
    }

    /// Whether nothing is held and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.waits.is_empty()
    }
}

/// Joins the owner's neighbours of one kind; the input is ordered.
fn merged<O: Copy + Eq>(locks: Vec<HeldLock<O>>, owner: O) -> Vec<HeldLock<O>> {
    let mut out: Vec<HeldLock<O>> = Vec::with_capacity(locks.len());
    let mut last_own: Option<usize> = None;
    for lock in locks {
        if lock.owner == owner {
            if let Some(at) = last_own
                && out[at].write == lock.write
                && out[at].range.last.checked_add(1) == Some(lock.range.first)
            {
                out[at].range.last = lock.range.last;
                continue;
            }
            last_own = Some(out.len());
        }
        out.push(lock);
    }
    out
}
