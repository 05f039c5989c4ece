//! How many things of a kind each user has at this node, over all connections and mounts. They take
//! memory and threads here, and memory at the primaries of partitions: so one user may have so
//! many, and others do not notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that one user may have open. A file beyond is `EMFILE`.
const FILES_MAX: usize = 65_536;
/// Keys of locks that one user may have. One beyond is `ENOLCK`.
const LOCKS_MAX: usize = 65_536;
/// Chunks of files that one user's open files keep open together. Beyond, each open file keeps one.
const CHUNKS_MAX: usize = 65_536;

/// Threads that work on one user's chunks beside the calls' own. Beyond, a call does all by itself.
const HELPERS_MAX: usize = 64;
/// Stands for whoever looks at a file, among users: all of them share what it has.
pub(crate) const ANYBODY: u32 = u32::MAX;

/// Things of one kind. For any thread.
pub(crate) struct PerUser {
    max: usize,
    of: Mutex<HashMap<u32, usize>>,
}

/// One thing of a user: it counts until this is dropped.
pub(crate) struct Counted {
    among: Arc<PerUser>,
    uid: u32,
}

impl PerUser {
    pub(crate) fn new(max: usize) -> Arc<PerUser> {
        Arc::new(PerUser { max, of: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the user may have one more.
    pub(crate) fn has_room(&self, uid: u32) -> bool {
        self.counts().get(&uid).is_none_or(|count| *count < self.max)
    }

    #[cfg(test)]
    pub(crate) fn count(&self, uid: u32) -> usize {
        self.counts().get(&uid).copied().unwrap_or(0)
    }

    /// Counts one more, if the user may have it.
    pub(crate) fn take(self: &Arc<PerUser>, uid: u32) -> Option<Counted> {
        let mut of = self.counts();
        let count = of.entry(uid).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Counted { among: Arc::clone(self), uid })
    }

    /// Counts one more, whether or not the user may have it.
    pub(crate) fn add(self: &Arc<PerUser>, uid: u32) -> Counted {
        *self.counts().entry(uid).or_default() += 1;
        Counted { among: Arc::clone(self), uid }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut of = self.among.counts();
        if let Some(count) = of.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                of.remove(&self.uid);
            }
        }
    }
}

/// What is counted for each user.
pub(crate) struct OfUsers {
    pub(crate) files: Arc<PerUser>,
    pub(crate) locks: Arc<PerUser>,
    pub(crate) chunks: Arc<PerUser>,
    pub(crate) helpers: Arc<PerUser>,
}

impl Default for OfUsers {
    fn default() -> OfUsers {
        OfUsers {
            files: PerUser::new(FILES_MAX),
            locks: PerUser::new(LOCKS_MAX),
            chunks: PerUser::new(CHUNKS_MAX),
            helpers: PerUser::new(HELPERS_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_so_many_and_what_is_dropped_leaves_room() {
        let all = PerUser::new(3);
        let mut held: Vec<_> = (0..3).map(|_| all.take(7).expect("there is room")).collect();
        assert!(all.take(7).is_none() && !all.has_room(7));
        assert!(all.take(8).is_some(), "others do not share it");
        held.push(all.add(7));
        held.pop();
        assert!(!all.has_room(7), "three are left");
        held.pop();
        assert!(all.has_room(7));
        held.clear();
        assert!(all.counts().is_empty());
    }
}
