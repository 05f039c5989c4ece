//! What the node that makes the names in the archive knows of files in chunks.

use crate::handles::lock;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use zazen_namespace::{Attributes, Errno, InodeId};

/// Failures that are remembered.
const FAILED_MAX: usize = 1 << 16;

/// Whether the archive has a whole of a file, or shall have one: it is in chunks, and some chunk
/// has bytes. Of others, the length says all.
pub(super) fn has_one(found: &Attributes) -> bool {
    found.bytes > 0 && found.chunks.as_ref().is_some_and(|chunks| chunks.count > 0)
}

/// What changes with each change of a file or of its chunks.
type Looks = (u64, u64, u64, i64, i64);

fn looks(found: &Attributes) -> Looks {
    (found.version, found.bytes, found.blocks, found.modified_ns, found.changed_ns)
}

/// Which wholes there are, which are to be made, and which could not be. For any thread.
#[derive(Default)]
pub(crate) struct Wholes {
    /// Files whose wholes are to be made or looked at.
    wanted: Mutex<BTreeSet<InodeId>>,
    /// How files looked when their chunks were in that state.
    made: Mutex<HashMap<InodeId, (Looks, u64)>>,
    /// Why there is no whole.
    failed: Mutex<BTreeMap<InodeId, Errno>>,
}

impl Wholes {
    /// The archive lacks a file, which may be in chunks. Why its whole could not be made so far.
    pub(super) fn want(&self, found: &Attributes) -> Option<Errno> {
        if found.chunks.is_none() || found.is_written() {
            return None;
        }
        lock(&self.wanted).insert(found.id);
        lock(&self.failed).get(&found.id).copied()
    }

    /// The archive has the whole of that state, in which the file's chunks were when it looked so.
    pub(super) fn made(&self, found: &Attributes, state: u64) {
        lock(&self.made).insert(found.id, (looks(found), state));
    }

    /// The state in which the file's chunks were when it was looked at last.
    pub(super) fn state(&self, id: InodeId) -> Option<u64> {
        lock(&self.made).get(&id).map(|(_, state)| *state)
    }

    /// Whether a whole of that state is the file as it is.
    pub(super) fn is_as_made(&self, found: &Attributes, state: Option<u64>) -> bool {
        let made = lock(&self.made).get(&found.id).copied();
        !found.is_written() && made.is_some_and(|(before, of)| before == looks(found) && state == Some(of))
    }

    /// Forgets what is known of other files than these.
    pub(super) fn keep(&self, is_known: impl Fn(InodeId) -> bool) {
        lock(&self.made).retain(|id, _| is_known(*id));
    }

    /// Another node makes the names.
    pub(super) fn forget(&self) {
        lock(&self.wanted).clear();
        lock(&self.made).clear();
        lock(&self.failed).clear();
    }

    pub(super) fn next(&self) -> Option<InodeId> {
        lock(&self.wanted).pop_first()
    }

    pub(super) fn told(&self, id: InodeId, outcome: Result<(), Errno>) {
        let mut failed = lock(&self.failed);
        match outcome {
            // The next look at the tree says whether it is to be tried again.
            Ok(()) | Err(Errno::EAGAIN | Errno::ESTALE | Errno::ETIMEDOUT) => drop(failed.remove(&id)),
            Err(errno) if failed.len() < FAILED_MAX => drop(failed.insert(id, errno)),
            Err(_) => {}
        }
    }
}
