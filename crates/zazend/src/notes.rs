//! Why the frames of a scan were not in the cache, for `zazen explain`.
//!
//! Invariant: each frame has one reason, the first that was found. Only "no room to keep it"
//! replaces "never here", because it also says why the next scan will miss the frame.

use crate::node::Node;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_backing::Rights;
use zazen_call::Caller;
use zazen_core::{RelPath, RunSet};
use zazen_frames::absence::{Absence, Removal, explain};
use zazen_frames::scan_record::{Absent, ScanNotes};

/// The reasons of one scan.
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
}

impl Inner {
    fn has(&self, number: u64) -> bool {
        self.removed.iter().any(|removal| removal.set.contains(number))
            || self.other.iter().any(|set| set.contains(number))
    }
}

impl Notes {
    /// The notes of a scan of `series` that begins while the frames `missing` are not cached.
    pub fn begin(node: &Node, series: &RelPath, missing: &RunSet) -> Notes {
        let notes = Notes::default();
        if !missing.is_empty() {
            // A caller's set can be large, so it is not compared under the lock: every removal of
            // frames waits for that lock.
            let removals = node.store.removals().of_series(series);
            let (removed, rest) = explain(removals, missing);
            let mut inner = notes.inner();
            inner.removed = removed;
            inner.other[Absence::NeverHere as usize] = rest;
            drop(inner);
        }
        notes
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frame `number` could not be handed out from the cache.
    pub fn add(&self, number: u64, why: Absence) {
        let mut inner = self.inner();
        let replaces = why == Absence::NoRoom && inner.other[Absence::NeverHere as usize].remove(number);
        if replaces || !inner.has(number) {
            inner.other[why as usize].insert(number);
        }
    }

    /// Frame `number` went while the scan was under way.
    pub fn add_gone(&self, node: &Node, series: &RelPath, number: u64) {
        let removed = node.store.removals().last_of(series, number);
        match removed {
            Some(removal) if !self.inner().has(number) => self.inner().removed.push(removal),
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
        ScanNotes { absent, store_rate: rate.last, store_rate_best: rate.best }
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
