//! Locks of the namespace's files that a mount was given.

use crate::tree::Owner;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_namespace::InodeId;

/// Who was given locks here: they end with the daemon that gave them.
#[derive(Default)]
pub(crate) struct Locked(Mutex<HashMap<InodeId, HashSet<(u64, bool)>>>);

impl Locked {
    fn owners(&self) -> MutexGuard<'_, HashMap<InodeId, HashSet<(u64, bool)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has(&self, id: InodeId) -> bool {
        self.owners().contains_key(&id)
    }

    pub(crate) fn add(&self, id: InodeId, owner: Owner) {
        self.owners().entry(id).or_default().insert((owner.number, owner.whole));
    }

    pub(crate) fn end(&self, id: InodeId, owner: Owner) {
        let mut locked = self.owners();
        if let Some(owners) = locked.get_mut(&id) {
            owners.remove(&(owner.number, owner.whole));
            if owners.is_empty() {
                locked.remove(&id);
            }
        }
    }
}
