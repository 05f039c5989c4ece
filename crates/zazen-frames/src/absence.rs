//! Why a node did not have a frame that was asked of it (`zazen explain`): the closed list of
//! reasons, and what a daemon remembers of the frames that it removed.
//!
//! Invariants: the memory is bounded ([`BYTES_MAX`]); the oldest removals are forgotten first.
//! Later removals of a frame hide earlier ones.

use std::collections::VecDeque;
use zazen_core::{RelPath, Result, RunSet};
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::Field;

/// Bytes of removals that a daemon remembers.
pub const BYTES_MAX: usize = 1 << 20;
/// Removals of one kind that follow each other within this time are one.
const ONE_NS: u64 = 10_000_000_000;
/// Removals that explain one set of frames, at most: the set may be as large as a message, and each
/// is compared with all of it.
pub const EXPLAINING_MAX: usize = 256;
/// What a removal costs beside its numbers and names.
const ENTRY_BYTES: usize = 160;

/// Why a node did not have a frame. Numbers are stable; new reasons are added at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absence {
    /// The node does not remember that it ever had the frame.
    NeverHere,
    /// It was evicted to make room, or by hand.
    Evicted,
    /// Its source changed after it was copied.
    Stale,
    /// Its bytes did not match their checksum, or its file was gone or short.
    Corrupt,
    /// There was no room to keep it.
    NoRoom,
    /// The caller may not read its source.
    Denied,
    /// The cache's disk could not give or take it.
    CacheFails,
    /// The daemon of the reader's node did not answer.
    NodeDead,
    /// The reader used no daemon: it was told not to, or the daemon is another user's, or does not
    /// cache this folder.
    NoDaemon,
}

impl Absence {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Absence; 9] = [
        Absence::NeverHere,
        Absence::Evicted,
        Absence::Stale,
        Absence::Corrupt,
        Absence::NoRoom,
        Absence::Denied,
        Absence::CacheFails,
        Absence::NodeDead,
        Absence::NoDaemon,
    ];
}

impl Field for Absence {
    type Value = Absence;
    const BYTES_MIN: usize = 1;

    fn write(why: &Absence, writer: &mut Writer) {
        writer.u8(*why as u8);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Absence> {
        let number = reader.u8()?;
        match Absence::ALL.get(usize::from(number)) {
            Some(why) => Ok(*why),
            None => Err(reader.malformed(format_args!("unknown reason {number} of an absence"))),
        }
    }
}

/// Frames that left a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// When, on the daemon's monotonic clock.
    pub at_ns: u64,
    /// Of which series.
    pub series: RelPath,
    /// Why.
    pub why: Absence,
    /// The series that needed the room; `None`: no other, or by hand.
    pub wanted: Option<RelPath>,
    /// The frames.
    pub set: RunSet,
}

impl Removal {
    fn bytes(&self) -> usize {
        let wanted = self.wanted.as_ref().map_or(0, |wanted| wanted.as_str().len());
        ENTRY_BYTES + self.series.as_str().len() + wanted + self.set.heap_bytes()
    }
}

/// The last removals of a cache.
#[derive(Debug, Default)]
pub struct Removals {
    kept: VecDeque<Removal>,
    bytes: usize,
}

impl Removals {
    /// Remembers that the frames of `removal` left the cache.
    pub fn remember(&mut self, removal: Removal) {
        if removal.set.is_empty() {
            return;
        }
        match self.kept.back_mut() {
            Some(last)
                if (&last.series, last.why, &last.wanted)
                    == (&removal.series, removal.why, &removal.wanted)
                    && removal.at_ns.saturating_sub(last.at_ns) < ONE_NS =>
            {
                self.bytes -= last.bytes();
                last.set = last.set.union(&removal.set);
                self.bytes += last.bytes();
            }
            _ => {
                self.bytes += removal.bytes();
                self.kept.push_back(removal);
            }
        }
        while self.bytes > BYTES_MAX {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    /// Removals of the series for which `is_meant` holds, the latest first.
    pub fn of(&self, is_meant: impl Fn(&RelPath) -> bool) -> impl Iterator<Item = &Removal> {
        self.kept.iter().rev().filter(move |removal| is_meant(&removal.series))
    }

    /// Removals of `series`, the latest first, at most [`EXPLAINING_MAX`]: to be looked at after
    /// the lock on these is given back.
    pub fn of_series(&self, series: &RelPath) -> Vec<Removal> {
        self.of(|other| other == series).take(EXPLAINING_MAX).cloned().collect()
    }

    /// The latest removal of frame `number` of `series`, cut to it.
    pub fn last_of(&self, series: &RelPath, number: u64) -> Option<Removal> {
        let removal = self.of(|other| other == series).find(|removal| removal.set.contains(number))?;
        let Removal { at_ns, series, why, wanted, .. } = removal;
        let (series, wanted, set) = (series.clone(), wanted.clone(), RunSet::range(number, number));
        Some(Removal { at_ns: *at_ns, series, why: *why, wanted, set })
    }
}

/// Why each frame of `set` is not here, by the `removals` of its series, the latest first: the
/// latest removal of each, cut to `set`, and the frames that no removal names.
pub fn explain(removals: Vec<Removal>, set: &RunSet) -> (Vec<Removal>, RunSet) {
    let mut rest = set.clone();
    let mut found = Vec::new();
    for removal in removals {
        if rest.is_empty() {
            break;
        }
        let hit = rest.intersection(&removal.set);
        if !hit.is_empty() {
            rest = rest.difference(&hit);
            found.push(Removal { set: hit, ..removal });
        }
    }
    (found, rest)
}

/// How many classes of lengths there are: one for each power of two of a u64.
const CLASSES: usize = 64;
/// A rate is measured over at least this time ...
const WINDOW_NS: u64 = 200_000_000;
/// ... and at least so many frames.
const WINDOW_FRAMES: u32 = 2;

/// How fast the backing store gives frames, by their length: a small frame costs more per byte. A
/// rate is bytes per second of the time in which at least one copy was under way.
#[derive(Debug)]
pub struct StoreRates {
    classes: Vec<Class>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    under_way: u32,
    since_ns: u64,
    busy_ns: u64,
    bytes: u64,
    frames: u32,
    best: u64,
    last: u64,
}

impl Default for StoreRates {
    fn default() -> StoreRates {
        StoreRates { classes: vec![Class::default(); CLASSES] }
    }
}

/// What the backing store gave, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRate {
    /// Lately.
    pub last: u64,
    /// The most that was measured.
    pub best: u64,
}

impl StoreRates {
    fn class(&mut self, length: u64) -> &mut Class {
        &mut self.classes[63 - (length | 1).leading_zeros() as usize]
    }

    /// A copy of a frame of `length` bytes begins.
    pub fn begin(&mut self, now_ns: u64, length: u64) {
        let class = self.class(length);
        if class.under_way == 0 {
            class.since_ns = now_ns;
        }
        class.under_way += 1;
    }

    /// It ended: `bytes` of it came (0: it failed).
    pub fn end(&mut self, now_ns: u64, length: u64, bytes: u64) {
        let class = self.class(length);
        class.busy_ns += now_ns.saturating_sub(class.since_ns);
        class.since_ns = now_ns;
        class.under_way = class.under_way.saturating_sub(1);
        class.bytes += bytes;
        class.frames += u32::from(bytes > 0);
        if class.busy_ns >= WINDOW_NS && class.frames >= WINDOW_FRAMES {
            class.close();
        }
    }

    /// The rate of frames of about `length` bytes.
    pub fn rate(&mut self, length: u64) -> StoreRate {
        let class = self.class(length);
        if class.last == 0 && class.frames >= WINDOW_FRAMES && class.busy_ns > WINDOW_NS / 20 {
            class.close();
        }
        StoreRate { last: class.last, best: class.best }
    }
}

impl Class {
    fn close(&mut self) {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy_ns.max(1));
        self.last = u64::try_from(rate).unwrap_or(u64::MAX);
        self.best = self.best.max(self.last);
        (self.busy_ns, self.bytes, self.frames) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn series(name: &str) -> RelPath {
        RelPath::new(name).unwrap()
    }

    fn removal(at_ns: u64, name: &str, why: Absence, set: RunSet) -> Removal {
        Removal { at_ns, series: series(name), why, wanted: None, set }
    }

    #[test]
    fn the_latest_removal_counts() {
        let mut removals = Removals::default();
        removals.remember(removal(0, "a", Absence::Evicted, RunSet::range(0, 9)));
        removals.remember(removal(ONE_NS, "a", Absence::Stale, RunSet::range(5, 6)));
        let (found, rest) = explain(removals.of_series(&series("a")), &RunSet::range(4, 12));
        let found: Vec<_> = found.into_iter().map(|one| (one.why, one.set)).collect();
        let evicted = RunSet::from_ascending([4, 7, 8, 9]);
        assert_eq!(found, [(Absence::Stale, RunSet::range(5, 6)), (Absence::Evicted, evicted)]);
        assert_eq!(rest, RunSet::range(10, 12));
        assert_eq!(explain(removals.of_series(&series("b")), &RunSet::range(0, 3)).1.len(), 4);
    }

    #[test]
    fn few_removals_are_compared_with_a_large_set() {
        let mut removals = Removals::default();
        let count = 2 * EXPLAINING_MAX as u64;
        for at in 0..count {
            removals.remember(removal(at * ONE_NS, "a", Absence::Evicted, RunSet::range(at, at + 1)));
        }
        let of = removals.of_series(&series("a"));
        assert_eq!(of.len(), EXPLAINING_MAX);
        let (found, rest) = explain(of, &RunSet::range(0, count));
        assert_eq!(found.first().map(|one| one.at_ns), Some((count - 1) * ONE_NS), "the latest first");
        assert_eq!(rest, RunSet::range(0, count - EXPLAINING_MAX as u64 - 1));
        let last = removals.last_of(&series("a"), 7).unwrap();
        assert_eq!((last.at_ns, last.set), (7 * ONE_NS, RunSet::range(7, 7)));
        assert_eq!(removals.last_of(&series("b"), 7), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut removals = Removals::default();
        for at in 0..20_000u64 {
            let set = RunSet::from_ascending([at, at * 2 + 100_000]);
            removals.remember(removal(at * ONE_NS, "a", Absence::Evicted, set));
            assert!(removals.bytes <= BYTES_MAX);
        }
        let bytes: usize = removals.kept.iter().map(Removal::bytes).sum();
        assert_eq!(bytes, removals.bytes);
        assert!(
            explain(removals.of_series(&series("a")), &RunSet::range(0, 0)).1.contains(0),
            "the oldest is gone"
        );
        assert!(
            !explain(removals.of_series(&series("a")), &RunSet::range(19_999, 19_999)).1.contains(19_999)
        );
    }

    #[test]
    fn a_store_that_slows_down_shows() {
        let mut rates = StoreRates::default();
        let mut now = 0;
        let mut copy = |rates: &mut StoreRates, frames: u32, length: u64, ns: u64| {
            for _ in 0..frames {
                rates.begin(now, length);
                now += ns;
                rates.end(now, length, length);
            }
        };
        copy(&mut rates, 40, 1 << 20, 10_000_000);
        assert_eq!(rates.rate(1 << 20), StoreRate { last: 100 << 20, best: 100 << 20 });
        // Small frames are of another class.
        copy(&mut rates, 400, 4096, 1_000_000);
        assert_eq!(rates.rate(1 << 20).last, 100 << 20);
        copy(&mut rates, 40, 1 << 20, 100_000_000);
        assert_eq!(rates.rate(1 << 20), StoreRate { last: 10 << 20, best: 100 << 20 });
    }

    #[test]
    fn copies_at_the_same_time_share_the_time() {
        let mut rates = StoreRates::default();
        for frame in 0..4 {
            rates.begin(frame, 1000);
        }
        for frame in 0..4 {
            rates.end(1_000_000_000 + frame, 1000, 1000);
        }
        assert!(rates.rate(1000).best <= 4000);
    }

    proptest! {
        /// Compared with a simple model: a map from number to its latest removal.
        #[test]
        fn explanations_agree_with_a_map(
            removed in prop::collection::vec((0u64..60, 1u64..20, 0u8..3, 0u64..3), 0..30),
            asked in (0u64..70, 1u64..40),
        ) {
            let kinds = [Absence::Evicted, Absence::Stale, Absence::Corrupt];
            let (mut removals, mut model) = (Removals::default(), BTreeMap::new());
            let mut now = 0;
            for (first, count, kind, pause) in removed {
                now += pause * ONE_NS / 2;
                let why = kinds[usize::from(kind)];
                let set = RunSet::range(first, first + count - 1);
                model.extend(set.iter().map(|number| (number, why)));
                removals.remember(removal(now, "a", why, set));
            }
            let asked = RunSet::range(asked.0, asked.0 + asked.1 - 1);
            let (found, rest) = explain(removals.of_series(&series("a")), &asked);
            for number in asked.iter() {
                let named: Vec<_> = found.iter().filter(|one| one.set.contains(number)).collect();
                prop_assert!(named.len() <= 1);
                prop_assert_eq!(named.first().map(|one| one.why), model.get(&number).copied());
                prop_assert_eq!(named.is_empty(), rest.contains(number));
            }
        }
    }
}
