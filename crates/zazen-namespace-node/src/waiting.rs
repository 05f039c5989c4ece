//! Objects that wait for checksums, and what the node knows of objects and disks for a while.

use crate::handles::lock;
use crate::objects::{ObjectName, ObjectStat};
use crate::seals::QUIET_NS;
use crate::wish::Wish;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use zazen_namespace::service::{Balanced, NodeSpace};
use zazen_namespace::{InodeId, NodeNo};

/// Objects that are looked at together.
const AT_ONCE: usize = 256;
/// Objects that wait at most; the slow look finds the others.
const WAITING_MAX: usize = 1 << 18;
/// An object that is still being written is looked at again after this, and ever later.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// How long a sender may take to tell the metadata of a copy.
const ARRIVED_FOR: Duration = Duration::from_secs(600);
/// Copies that came and are not named yet, at most.
const ARRIVED_MAX: usize = 1 << 16;

/// What waits, and what is known.
#[derive(Default)]
pub(crate) struct Waiting {
    /// For checksums.
    pub(crate) seals: Table,
    /// For copies on other nodes.
    pub(crate) copies: Table,
    /// Those that were here when the daemon began, and may lack checksums or copies.
    pub(crate) begun_with: Mutex<BegunWith>,
    /// Objects that were checked at an open: the time of their last change then, and when.
    pub(crate) checked: Mutex<HashMap<ObjectName, (i64, Instant)>>,
    pub(crate) spaces: Mutex<BTreeMap<NodeNo, NodeSpace>>,
    /// Since when nodes have been down.
    pub(crate) down: Mutex<BTreeMap<NodeNo, Instant>>,
    /// What is done about the files of lost nodes.
    pub(crate) repairs: Mutex<Repairs>,
    /// The node that gets new files while this node's disk is nearly full, plus 1; otherwise 0.
    pub(crate) place: AtomicU64,
    /// The work of giving files to other nodes.
    pub(crate) balance: Mutex<Balancing>,
    /// Copies that came a moment ago: the metadata does not name them yet.
    pub(crate) arrived: Arrived,
    /// What directories wish for files in them, and when that was asked.
    pub(crate) wishes: Mutex<HashMap<(Wish, InodeId), (u32, Instant)>>,
}

/// The work of giving files to other nodes.
#[derive(Clone, Default)]
pub(crate) struct Balancing {
    /// What was done.
    pub(crate) done: Balanced,
    pub(crate) bytes_per_s: u64,
    pub(crate) age_s: u64,
    /// The next folder of objects.
    pub(crate) folder: u64,
    /// The disks when the work began.
    pub(crate) begun: Vec<NodeSpace>,
    /// The bytes that went to each node since then. The nodes tell their space only now and then.
    pub(crate) given: BTreeMap<NodeNo, u64>,
}

/// How far the look at the objects is that were here when the daemon began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BegunWith {
    /// This folder is next.
    Folder(u64),
    /// All were noted.
    Noted,
}

impl Default for BegunWith {
    fn default() -> BegunWith {
        BegunWith::Folder(0)
    }
}

impl Waiting {
    /// How many objects wait for checksums, and one more as long as there may be others that are
    /// not known yet.
    pub(crate) fn seals_left(&self) -> usize {
        // First: an object is in the table before its folder counts as noted.
        let unknown = usize::from(*lock(&self.begun_with) != BegunWith::Noted);
        self.seals.len() + unknown
    }

    /// The object was perhaps written.
    pub(crate) fn note(&self, name: ObjectName, stat: &ObjectStat) {
        if stat.bytes > 0 {
            self.seals.note(name, Duration::from_nanos(QUIET_NS.unsigned_abs()));
        }
    }
}

/// Copies that came in, and when. No inode names one before its sender has told the metadata.
#[derive(Default)]
pub(crate) struct Arrived(Mutex<HashMap<ObjectName, Instant>>);

impl Arrived {
    /// Notes a copy. False if too many came: then it must not be taken.
    pub(crate) fn note(&self, name: ObjectName) -> bool {
        let mut copies = lock(&self.0);
        if copies.len() >= ARRIVED_MAX {
            copies.retain(|_, at| at.elapsed() < ARRIVED_FOR);
        }
        let has_room = copies.len() < ARRIVED_MAX || copies.contains_key(&name);
        if has_room {
            copies.insert(name, Instant::now());
        }
        has_room
    }

    /// Whether the copy came a moment ago.
    pub(crate) fn has(&self, name: ObjectName) -> bool {
        lock(&self.0).get(&name).is_some_and(|at| at.elapsed() < ARRIVED_FOR)
    }

    /// An inode names the copy, or it is gone.
    pub(crate) fn done(&self, name: ObjectName) {
        lock(&self.0).remove(&name);
    }
}

/// Which folders are looked at for what lost nodes had. *Pure*: time is an argument.
///
/// A pass looks at all folders. What could not be dealt with is left for another pass.
#[derive(Default)]
pub(crate) struct Repairs {
    /// Lost nodes for which a whole pass left nothing.
    done: BTreeSet<NodeNo>,
    pass: Option<Pass>,
    /// How long the next pass waits, and until when.
    pause: Option<(Duration, Instant)>,
}

struct Pass {
    /// The nodes that were lost when it began.
    of: BTreeSet<NodeNo>,
    folder: u64,
    left: usize,
}

impl Repairs {
    /// The folder to look at now; `None` if there is nothing to do.
    pub(crate) fn folder(&mut self, now: Instant, lost: &BTreeSet<NodeNo>) -> Option<u64> {
        self.done.retain(|node| lost.contains(node));
        if self.pass.is_none() && !lost.is_subset(&self.done) {
            if self.pause.is_some_and(|(_, until)| now < until) {
                return None;
            }
            self.pass = Some(Pass { of: lost.clone(), folder: 0, left: 0 });
        }
        self.pass.as_ref().map(|pass| pass.folder)
    }

    /// A folder was looked at, and so many of its objects are left. At the end of a pass: its
    /// nodes, and how many objects are left in all.
    pub(crate) fn looked(&mut self, now: Instant, left: usize, is_last: bool) -> Option<(Vec<u32>, usize)> {
        let mut pass = self.pass.take()?;
        pass.left += left;
        pass.folder += 1;
        if !is_last {
            self.pass = Some(pass);
            return None;
        }
        let ended = (pass.of.iter().map(|node| node.0).collect(), pass.left);
        if pass.left == 0 {
            self.pause = None;
            self.done.extend(pass.of);
        } else {
            let pause = self.pause.map_or(AGAIN, |(pause, _)| (pause * 2).min(AGAIN_MAX));
            self.pause = Some((pause, now + pause));
        }
        Some(ended)
    }
}

/// Objects, and when each is due.
#[derive(Default)]
pub(crate) struct Table(Mutex<HashMap<ObjectName, Due>>);

/// When an object is looked at next.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    pause: Duration,
}

impl Table {
    /// Adds an object, due after `pause`, if it is not there. Whether it is there now.
    pub(crate) fn note(&self, name: ObjectName, pause: Duration) -> bool {
        let mut objects = lock(&self.0);
        let has_room = objects.len() < WAITING_MAX || objects.contains_key(&name);
        if has_room {
            objects.entry(name).or_insert(Due { at: Instant::now() + pause, pause: AGAIN });
        }
        has_room
    }

    /// Whether one more object has room.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.0).len() < WAITING_MAX
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Some objects that are due. They stay in the table until [`Table::done`].
    pub(crate) fn due(&self) -> Vec<ObjectName> {
        let now = Instant::now();
        let objects = lock(&self.0);
        let due = objects.iter().filter(|(_, due)| due.at <= now);
        due.map(|(name, _)| *name).take(AT_ONCE).collect()
    }

    pub(crate) fn done(&self, name: ObjectName) {
        lock(&self.0).remove(&name);
    }

    pub(crate) fn later(&self, name: ObjectName) {
        if let Some(due) = lock(&self.0).get_mut(&name) {
            due.at = Instant::now() + due.pause;
            due.pause = (due.pause * 2).min(AGAIN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_all_folders_go_on_until_nothing_is_left() {
        let nodes = |numbers: &[u32]| numbers.iter().copied().map(NodeNo).collect::<BTreeSet<_>>();
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        assert_eq!(repairs.folder(now, &nodes(&[])), None);
        let lost = nodes(&[2]);
        assert_eq!(repairs.folder(now, &lost), Some(0));
        assert_eq!(repairs.looked(now, 3, false), None);
        assert_eq!(repairs.folder(now, &lost), Some(1));
        assert_eq!(repairs.looked(now, 0, true), Some((vec![2], 3)));
        assert_eq!(repairs.folder(now, &lost), None, "another pass comes, and not at once");
        let later = now + AGAIN;
        assert_eq!(repairs.folder(later, &lost), Some(0));
        assert_eq!(repairs.looked(later, 0, false), None);
        // One more is lost meanwhile: this pass may have missed files of it.
        let both = nodes(&[2, 3]);
        assert_eq!(repairs.folder(later, &both), Some(1));
        assert_eq!(repairs.looked(later, 0, true), Some((vec![2], 0)));
        assert_eq!(repairs.folder(later, &both), Some(0));
        assert_eq!(repairs.looked(later, 0, true), Some((vec![2, 3], 0)));
        assert_eq!(repairs.folder(later, &both), None);
        // A node that comes back and is lost again is dealt with again.
        assert_eq!(repairs.folder(later, &nodes(&[3])), None);
        assert_eq!(repairs.folder(later, &both), Some(0));
    }

    #[test]
    fn copies_that_came_are_remembered_and_are_not_too_many() {
        let arrived = Arrived::default();
        let name = |id| ObjectName { id: InodeId(id), generation: 1 };
        for id in 0..ARRIVED_MAX as u64 {
            assert!(arrived.note(name(id)));
        }
        assert!(!arrived.note(name(u64::MAX)));
        assert!(arrived.note(name(7)) && arrived.has(name(7)));
        arrived.done(name(7));
        assert!(!arrived.has(name(7)) && arrived.note(name(u64::MAX)));
    }
}
