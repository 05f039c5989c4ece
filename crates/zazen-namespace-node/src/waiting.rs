//! Objects that wait for checksums, and what the node knows of objects and disks for a while.

use crate::handles::lock;
use crate::objects::{ObjectName, ObjectStat};
use crate::seals::QUIET_NS;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zazen_namespace::NodeNo;
use zazen_namespace::service::NodeSpace;

/// Objects that are looked at together.
const AT_ONCE: usize = 256;
/// Objects that wait at most; the slow look finds the others.
const WAITING_MAX: usize = 1 << 18;
/// An object that is still being written is looked at again after this, and ever later.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What waits, and what is known.
#[derive(Default)]
pub(crate) struct Waiting {
    objects: Mutex<HashMap<ObjectName, Due>>,
    /// Objects that were checked at an open: the time of their last change then, and when.
    pub(crate) checked: Mutex<HashMap<ObjectName, (i64, Instant)>>,
    pub(crate) spaces: Mutex<BTreeMap<NodeNo, NodeSpace>>,
}

/// When an object is looked at next.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    pause: Duration,
}

impl Waiting {
    /// The object was perhaps written.
    pub(crate) fn note(&self, name: ObjectName, stat: &ObjectStat) {
        if stat.bytes == 0 {
            return;
        }
        let mut waiting = lock(&self.objects);
        if waiting.len() < WAITING_MAX {
            let at = Instant::now() + Duration::from_nanos(QUIET_NS.unsigned_abs());
            waiting.entry(name).or_insert(Due { at, pause: AGAIN });
        }
    }

    /// How many objects wait for checksums.
    pub(crate) fn waits(&self) -> usize {
        lock(&self.objects).len()
    }

    /// Some objects that are due. They stay in the table until [`Waiting::done`].
    pub(crate) fn due(&self) -> Vec<ObjectName> {
        let now = Instant::now();
        let waiting = lock(&self.objects);
        let due = waiting.iter().filter(|(_, due)| due.at <= now);
        due.map(|(name, _)| *name).take(AT_ONCE).collect()
    }

    pub(crate) fn done(&self, name: ObjectName) {
        lock(&self.objects).remove(&name);
    }

    pub(crate) fn later(&self, name: ObjectName) {
        if let Some(due) = lock(&self.objects).get_mut(&name) {
            due.at = Instant::now() + due.pause;
            due.pause = (due.pause * 2).min(AGAIN_MAX);
        }
    }
}
