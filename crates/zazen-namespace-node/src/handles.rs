//! What a caller has: its open files and its locks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_namespace::{Errno, InodeId, NodeNo};

/// Takes a lock. What a thread that panicked left behind is whole: nothing here panics half way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that one caller may have open.
pub(crate) const HANDLES_MAX: usize = 65_536;
/// Locks that one caller may have asked for.
pub(crate) const LOCKS_MAX: usize = 65_536;

/// A caller's open files and locks.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) handles: Mutex<HashMap<u64, Arc<Handle>>>,
    pub(crate) locks: Mutex<HashSet<(InodeId, u64, bool)>>,
}

/// An open file of a caller.
pub(crate) struct Handle {
    pub(crate) id: InodeId,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whether the opener is root, whose writes leave set-user-id as it is.
    pub(crate) by_root: bool,
    /// The holder and the generation; `None` for a file that had no bytes yet.
    pub(crate) place: Mutex<Option<(NodeNo, u64)>>,
    /// Whether anything may have been written by it.
    pub(crate) wrote: AtomicBool,
}

impl Session {
    /// How many files are open.
    pub(crate) fn handles(&self) -> usize {
        lock(&self.handles).len()
    }

    /// The open file with this number.
    pub(crate) fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).get(&number).map(Arc::clone).ok_or(Errno::EBADF)
    }

    pub(crate) fn take(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).remove(&number).ok_or(Errno::EBADF)
    }

    pub(crate) fn has_open(&self, id: InodeId) -> bool {
        lock(&self.handles).values().any(|handle| handle.id == id)
    }

    pub(crate) fn writers(&self, id: InodeId) -> Option<Arc<Handle>> {
        lock(&self.handles).values().find(|handle| handle.id == id && handle.write).map(Arc::clone)
    }
}
