//! Why the frames of a scan were not in the cache, for `zazen explain`.
//!
//! Invariant: each frame has one reason, the first that was found. Only "no room to keep it"
//! replaces "never here", because it also says why the next scan will miss the frame.

use crate::node::Node;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zazen_backing::Rights;
use zazen_call::Caller;
use zazen_core::{RelPath, RunSet};
use zazen_frames::absence::{Absence, Removal, explain};
use zazen_frames::scan_record::{Absent, ScanNotes};

/// Bytes of sets of frames in the notes of random access, which may go on for long.
const NAMED_BYTES_MAX: usize = 256 << 10;

/// The reasons of one scan, or of the random access to one dataset on one connection.
#[derive(Default)]
pub struct Notes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Removals before the scan, cut to its frames.
    removed: Vec<Removal>,
    /// By [`Absence::ALL`].
    other: [RunSet; Absence::ALL.len()],
    /// A miss's length, for the store's rate.
    length: u64,
    /// What the misses took that another node gave, and the others, one after another.
    peer: Duration,
    store: Duration,
    /// They name so many frames that they take no more.
    is_full: bool,
}

impl Inner {
    fn bytes(&self) -> usize {
        let removed = self.removed.iter().map(|removal| &removal.set);
        let sets: usize = removed.chain(&self.other).map(RunSet::heap_bytes).sum();
        sets + self.removed.len() * size_of::<Removal>()
    }

    /// `set` without the frames that have a reason already.
    fn without_noted(&self, set: &RunSet) -> RunSet {
        let removed = self.removed.iter().map(|removal| &removal.set);
        let noted = removed.chain(&self.other).filter(|noted| !noted.is_empty());
        noted.fold(set.clone(), |rest, noted| rest.difference(noted))
    }

    fn add_removed(&mut self, new: Removal) {
        let is_same =
            |old: &&mut Removal| (old.at_ns, old.why, &old.wanted) == (new.at_ns, new.why, &new.wanted);
        match self.removed.iter_mut().find(is_same) {
            Some(old) => old.set = old.set.union(&new.set),
            None => self.removed.push(new),
        }
    }

    fn has(&self, number: u64) -> bool {
        self.removed.iter().any(|removal| removal.set.contains(number))
            || self.other.iter().any(|set| set.contains(number))
    }
}

impl Notes {
    /// Frames of `series` are wanted and `missing`, not cached. Notes that are as large as
    /// [`NAMED_BYTES_MAX`] take no more of them.
    pub fn more(&self, node: &Node, series: &RelPath, missing: &RunSet) {
        if missing.is_empty() {
            return;
        }
        {
            let mut inner = self.inner();
            inner.is_full = inner.is_full || inner.bytes() > NAMED_BYTES_MAX;
            if inner.is_full {
                return;
            }
        }
        // A caller's set can be large, so it is not compared under the lock: every removal of
        // frames waits for that lock.
        let removals = node.store.removals().of_series(series);
        let mut inner = self.inner();
        let new = inner.without_noted(missing);
        let (removed, rest) = explain(removals, &new);
        removed.into_iter().for_each(|removal| inner.add_removed(removal));
        let never = &mut inner.other[Absence::NeverHere as usize];
        *never = never.union(&rest);
    }

    /// A miss came, from another node or from the backing store, in this time.
    pub fn came(&self, from_peer: bool, took: Duration) {
        let mut inner = self.inner();
        match from_peer {
            true => inner.peer += took,
            false => inner.store += took,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frame `number` could not be handed out from the cache.
    pub fn add(&self, number: u64, why: Absence) {
        let mut inner = self.inner();
        if inner.is_full {
            return;
        }
        let replaces = why == Absence::NoRoom && inner.other[Absence::NeverHere as usize].remove(number);
        if replaces || !inner.has(number) {
            inner.other[why as usize].insert(number);
        }
    }

    /// Frame `number` went while the scan was under way.
    pub fn add_gone(&self, node: &Node, series: &RelPath, number: u64) {
        let removed = node.store.removals().last_of(series, number);
        match removed {
            Some(removal) if !self.inner().has(number) => self.inner().add_removed(removal),
            _ => self.add(number, Absence::NeverHere),
        }
    }

    /// A miss is `length` bytes long.
    pub fn length(&self, length: u64) {
        self.inner().length = length;
    }

    /// All of it, for a caller who may see the dataset.
    pub fn told(&self, node: &Node, caller: &Caller) -> ScanNotes {
        let inner = self.inner();
        let mut absent: Vec<Absent> = told(node, caller, inner.removed.iter());
        for (why, set) in Absence::ALL.into_iter().zip(&inner.other).filter(|(_, set)| !set.is_empty()) {
            let (count, set) = (set.len(), set.clone());
            absent.push(Absent { why, at_ms: 0, wanted: String::new(), count, set });
        }
        let rate = node.fetcher.rate(inner.length);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        ScanNotes {
            absent,
            store_rate: rate.last,
            store_rate_best: rate.best,
            peer_ns: ns(inner.peer),
            store_ns: ns(inner.store),
        }
    }
}

/// Removals as `caller` may see them: the dataset that needed the room is named to those who may
/// list it.
pub fn told<'a>(node: &Node, caller: &Caller, removals: impl Iterator<Item = &'a Removal>) -> Vec<Absent> {
    let (wall_ms, now) = (wall_ms(), node.store.now_ns());
    // Each name is a question to the backing store.
    let mut names: BTreeMap<&RelPath, String> = BTreeMap::new();
    let mut name = |wanted: &'a RelPath| {
        let spelled = || spelled(node, caller, wanted).unwrap_or_default();
        names.entry(wanted).or_insert_with(spelled).clone()
    };
    let told = |removal: &'a Removal| Absent {
        why: removal.why,
        at_ms: wall_ms.saturating_sub(now.saturating_sub(removal.at_ns) / 1_000_000),
        wanted: removal.wanted.as_ref().map(&mut name).unwrap_or_default(),
        count: removal.set.len(),
        set: removal.set.clone(),
    };
    removals.map(told).collect()
}

fn spelled(node: &Node, caller: &Caller, series: &RelPath) -> Option<String> {
    let directory = series.series_parts().map_or_else(|| series.clone(), |(directory, _)| directory);
    let path = node.roots.spelled(&directory)?;
    if !node.is_operator(caller) {
        let at = node.roots.locate(&path).ok()?;
        let view = at.root.seen_by(&node.powers.viewer(caller).ok()?).ok()?;
        let may_list = zazen_backing::Backing::allows(&*view, &at.beneath, Rights::READ.and(Rights::SEARCH));
        may_list.ok().filter(|may| *may)?;
    }
    Some(path)
}

/// Milliseconds since 1970.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
