//! Directories that were found lately: path → inode.
//!
//! Without it, each call on a path would ask once for each directory above. An entry counts for
//! [`FRESH_FOR`], as names do in a mount. What this process removes or renames ends all of them,
//! and so does an error that an old entry may have caused
//! ([`zazen_namespace::Errno::asks_for_another_look`]): the call then walks again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_namespace::InodeId;

/// How long a directory counts as found.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Directories that are remembered; beyond, all are forgotten.
const KNOWN_MAX: usize = 1024;

/// What one process found, for itself alone.
#[derive(Default)]
pub(crate) struct Known {
    found: Mutex<HashMap<Vec<u8>, (InodeId, Instant)>>,
}

impl Known {
    fn found(&self) -> MutexGuard<'_, HashMap<Vec<u8>, (InodeId, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, if it was found lately.
    pub(crate) fn get(&self, path: &[u8]) -> Option<InodeId> {
        let (id, at) = *self.found().get(path)?;
        (at.elapsed() < FRESH_FOR).then_some(id)
    }

    /// Remembers a directory that was found by calls that began at `since`.
    pub(crate) fn put(&self, path: &[u8], id: InodeId, since: Instant) {
        let mut found = self.found();
        if found.len() >= KNOWN_MAX {
            found.clear();
        }
        found.insert(path.to_vec(), (id, since));
    }

    /// Forgets all. Whether there was something to forget.
    pub(crate) fn clear(&self) -> bool {
        let mut found = self.found();
        let had = !found.is_empty();
        found.clear();
        had
    }
}
