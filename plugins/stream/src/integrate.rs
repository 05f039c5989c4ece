//! Sums results: which group a result belongs to, when a group is complete, and the sums. *Pure.*
//!
//! A result belongs to one block and one *part* (a share of the subbands, or another division of
//! the work). K consecutive blocks are a group. For each group and part, the K results are added
//! element by element and leave as one record, so the output is K times smaller.
//!
//! Invariants: a result is added exactly once, or counted as duplicate, late or unfit; a record
//! says how many results are in it. The bytes are summed outside of [`Groups`], under a lock of the
//! group's own.

use crate::bits::Bits;
use std::collections::{BTreeMap, BTreeSet};

/// The type of a result's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// 32-bit whole numbers; they wrap around.
    I32,
    /// 64-bit whole numbers; they wrap around.
    I64,
}

impl Element {
    /// By its number in `stream.h`.
    pub fn from_number(number: u32) -> Option<Element> {
        [Element::F32, Element::F64, Element::I32, Element::I64].get(number as usize).copied()
    }

    /// Its number in `stream.h`.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 => 8,
        }
    }
}

macro_rules! add_as {
    ($type:ty, $sum:expr, $more:expr, $add:expr) => {
        for (sum, more) in $sum.as_chunks_mut().0.iter_mut().zip($more.as_chunks().0) {
            *sum = $add(<$type>::from_ne_bytes(*sum), <$type>::from_ne_bytes(*more)).to_ne_bytes();
        }
    };
}

/// `sum += more`, element by element. Both are equally long, whole elements.
pub fn add(element: Element, sum: &mut [u8], more: &[u8]) {
    assert_eq!(sum.len(), more.len());
    match element {
        Element::F32 => add_as!(f32, sum, more, |a: f32, b: f32| a + b),
        Element::F64 => add_as!(f64, sum, more, |a: f64, b: f64| a + b),
        Element::I32 => add_as!(i32, sum, more, i32::wrapping_add),
        Element::I64 => add_as!(i64, sum, more, i64::wrapping_add),
    }
}

/// Counts of results by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCounters {
    /// Results and skips that came.
    pub arrived: u64,
    /// Of them: added to their group.
    pub added: u64,
    /// Of them: skips. The block has no result, and its group does not wait for it.
    pub skipped: u64,
    /// Of them: duplicates of a block and part.
    pub duplicate: u64,
    /// Of them: their group had left.
    pub late: u64,
    /// Of them: not of this observation, or of another size than the group's others.
    pub unfit: u64,
    /// Groups that left.
    pub groups: u64,
    /// Of them: without some of their results.
    pub groups_incomplete: u64,
}

/// A group and its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// K blocks, counted from the first one.
    pub group: u64,
    /// Which share of the work.
    pub part: u32,
}

/// What to do with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Add it to this group's sum; [`Groups::added`] must follow.
    Add(Key),
    /// Nothing: a skip.
    Skipped,
    /// Nothing: it came before.
    Duplicate,
    /// Nothing: its group has left.
    Late,
    /// Nothing: of another size than the group's others.
    Unfit,
}

/// The data of a group that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Which one.
    pub key: Key,
    /// Its first block, counted from the stream's first.
    pub index: u64,
    /// Results in its sum.
    pub results: u32,
    /// The sum of their weights.
    pub weight: u64,
}

struct Group {
    come: Bits,
    count: u32,
    added: u32,
    /// Results on their way into the sum.
    pending: u32,
    /// The group leaves as soon as no result is on its way into the sum.
    is_retired: bool,
    bytes: u64,
    weight: u64,
}

/// See the module.
pub struct Groups {
    blocks: u32,
    open_max: u64,
    open: BTreeMap<(u32, u64), Group>,
    /// Per part: the newest groups that have left.
    left: BTreeMap<u32, BTreeSet<u64>>,
    counters: ResultCounters,
}

impl Groups {
    /// Groups of `blocks` blocks each. A group leaves unfinished when a group of its part that is
    /// `open_max` later begins.
    pub fn new(blocks: u32, open_max: u32) -> Groups {
        Groups {
            blocks: blocks.max(1),
            open_max: u64::from(open_max.max(1)),
            open: BTreeMap::new(),
            left: BTreeMap::new(),
            counters: ResultCounters::default(),
        }
    }

    /// A result came, of the block that is `index` blocks behind the first one: its bytes and
    /// weight, or `None` for a skip. What leaves because of it is put into `leaving`, and must be
    /// emitted.
    pub fn accept(
        &mut self,
        index: u64,
        part: u32,
        result: Option<(u64, u64)>,
        leaving: &mut Vec<Whole>,
    ) -> Accepted {
        self.counters.arrived += 1;
        let key = Key { group: index / u64::from(self.blocks), part };
        let at = (index % u64::from(self.blocks)) as usize;
        if self.has_left(key) {
            self.counters.late += 1;
            return Accepted::Late;
        }
        self.retire_before(key, leaving);
        let blocks = self.blocks as usize;
        let group = self.open.entry((part, key.group)).or_insert_with(|| Group {
            come: Bits::new(blocks),
            count: 0,
            added: 0,
            pending: 0,
            is_retired: false,
            bytes: 0,
            weight: 0,
        });
        if group.come.get(at) {
            self.counters.duplicate += 1;
            return Accepted::Duplicate;
        }
        if let Some((bytes, _)) = result
            && group.added > 0
            && group.bytes != bytes
        {
            self.counters.unfit += 1;
            return Accepted::Unfit;
        }
        group.come.set(at);
        group.count += 1;
        let Some((bytes, weight)) = result else {
            self.counters.skipped += 1;
            leaving.extend(self.leave_if_done(key));
            return Accepted::Skipped;
        };
        group.added += 1;
        group.pending += 1;
        group.bytes = bytes;
        group.weight = group.weight.wrapping_add(weight);
        self.counters.added += 1;
        Accepted::Add(key)
    }

    /// Counts a result that can't be one.
    pub fn refuse(&mut self) {
        self.counters.arrived += 1;
        self.counters.unfit += 1;
    }

    /// A result that was accepted is in the sum. The group, if that was the last one.
    pub fn added(&mut self, key: Key) -> Option<Whole> {
        let group = self.open.get_mut(&(key.part, key.group))?;
        group.pending -= 1;
        self.leave_if_done(key)
    }

    /// All groups leave: these at once, others when the results on their way have arrived.
    pub fn retire_all(&mut self) -> Vec<Whole> {
        let keys: Vec<Key> = self.open.keys().map(|&(part, group)| Key { group, part }).collect();
        keys.into_iter().filter_map(|key| self.retire(key)).collect()
    }

    fn retire(&mut self, key: Key) -> Option<Whole> {
        self.open.get_mut(&(key.part, key.group))?.is_retired = true;
        self.leave_if_done(key)
    }

    fn leave_if_done(&mut self, key: Key) -> Option<Whole> {
        let group = self.open.get(&(key.part, key.group))?;
        if group.pending > 0 || !(group.is_retired || group.count == self.blocks) {
            return None;
        }
        let group = self.open.remove(&(key.part, key.group))?;
        let left = self.left.entry(key.part).or_default();
        left.insert(key.group);
        // Groups that are open_max behind the newest have left anyway, so do not list them.
        while left.len() as u64 > self.open_max {
            left.pop_first();
        }
        self.counters.groups += 1;
        self.counters.groups_incomplete += u64::from(group.added < self.blocks);
        let index = key.group * u64::from(self.blocks);
        Some(Whole { key, index, results: group.added, weight: group.weight })
    }

    /// Whether a group has left. Those `open_max` behind the part's newest have, whether they ever
    /// began or not.
    fn has_left(&self, key: Key) -> bool {
        let of_part = (key.part, 0)..=(key.part, u64::MAX);
        let newest_open = self.open.range(of_part).next_back().map(|((_, group), _)| *group);
        let left = self.left.get(&key.part);
        let newest = newest_open.max(left.and_then(|left| left.last().copied()));
        newest.is_some_and(|newest| newest >= key.group.saturating_add(self.open_max))
            || left.is_some_and(|left| left.contains(&key.group))
            || self.open.get(&(key.part, key.group)).is_some_and(|group| group.is_retired)
    }

    fn retire_before(&mut self, key: Key, leaving: &mut Vec<Whole>) {
        let Some(end) = key.group.checked_sub(self.open_max) else { return };
        let old: Vec<u64> =
            self.open.range((key.part, 0)..=(key.part, end)).map(|((_, group), _)| *group).collect();
        leaving.extend(old.into_iter().filter_map(|group| self.retire(Key { group, part: key.part })));
    }

    /// Groups that have begun and not left.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Counts of results by outcome.
    pub fn counters(&self) -> ResultCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        let mut sum: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let more: Vec<u8> = [0.25f32, 7.0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        add(Element::F32, &mut sum, &more);
        assert_eq!(sum, [1.75f32, 5.0].iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
        let mut sum = i64::MAX.to_ne_bytes();
        add(Element::I64, &mut sum, &1i64.to_ne_bytes());
        assert_eq!(sum, i64::MIN.to_ne_bytes());
    }

    #[test]
    fn a_group_leaves_when_whole_or_when_too_old() {
        let mut groups = Groups::new(3, 2);
        let mut leaving = Vec::new();
        let key = Key { group: 0, part: 5 };
        assert_eq!(groups.accept(0, 5, Some((8, 10)), &mut leaving), Accepted::Add(key));
        assert_eq!(groups.accept(0, 5, Some((8, 10)), &mut leaving), Accepted::Duplicate);
        assert_eq!(groups.accept(1, 5, None, &mut leaving), Accepted::Skipped);
        assert_eq!(groups.accept(2, 5, Some((4, 1)), &mut leaving), Accepted::Unfit);
        assert_eq!(groups.accept(2, 5, Some((8, 1)), &mut leaving), Accepted::Add(key));
        // Whole, but the first result is still on its way into the sum.
        assert_eq!(groups.added(key), None);
        assert_eq!(groups.added(key), Some(Whole { key, index: 0, results: 2, weight: 11 }));
        assert_eq!(groups.accept(1, 5, Some((8, 1)), &mut leaving), Accepted::Late);
        assert!(leaving.is_empty());
        assert!(matches!(groups.accept(4, 5, Some((8, 3)), &mut leaving), Accepted::Add(_)));
        assert!(matches!(groups.accept(9, 5, Some((8, 3)), &mut leaving), Accepted::Add(_)));
        // Group 1 is too old now, but leaves only when its result is in.
        assert!(leaving.is_empty());
        assert_eq!(groups.accept(5, 5, Some((8, 3)), &mut leaving), Accepted::Late);
        let whole = groups.added(Key { group: 1, part: 5 }).unwrap();
        assert_eq!((whole.index, whole.results), (3, 1));
        let counters = groups.counters();
        assert_eq!((counters.arrived, counters.added, counters.skipped), (9, 4, 1));
        assert_eq!((counters.duplicate, counters.late, counters.unfit), (1, 2, 1));
        assert_eq!((counters.groups, counters.groups_incomplete), (2, 2));
    }
}
