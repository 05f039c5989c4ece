//! Sums of groups against a model that remembers every result: each is in exactly one sum, or
//! counted.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use zazen_stream::integrate::{Accepted, Groups, Key, Whole};

#[derive(Default)]
struct Kept {
    indexes: BTreeSet<u64>,
    /// Index and weight of those that have bytes.
    results: Vec<(u64, u64)>,
    bytes: u64,
    on_their_way: u64,
    retired: bool,
}

struct Rig {
    groups: Groups,
    blocks: u64,
    open_max: u64,
    kept: BTreeMap<(u32, u64), Kept>,
    left: BTreeSet<(u32, u64)>,
    pending: Vec<Key>,
    counts: BTreeMap<&'static str, u64>,
}

impl Rig {
    fn new(blocks: u32, open_max: u32) -> Rig {
        Rig {
            groups: Groups::new(blocks, open_max),
            blocks: blocks.into(),
            open_max: open_max.into(),
            kept: BTreeMap::new(),
            left: BTreeSet::new(),
            pending: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn newest(&self, part: u32) -> Option<u64> {
        let begun = self.kept.keys().chain(&self.left).filter(|(other, _)| *other == part);
        begun.map(|(_, group)| *group).max()
    }

    fn arrive(&mut self, index: u64, part: u32, result: Option<(u64, u64)>) {
        let group = index / self.blocks;
        let key = (part, group);
        let is_old = self.newest(part).is_some_and(|newest| newest >= group + self.open_max);
        let is_retired = self.kept.get(&key).is_some_and(|kept| kept.retired);
        let mut leaving = Vec::new();
        let accepted = self.groups.accept(index, part, result, &mut leaving);
        let kept = self.kept.get(&key);
        let what = if self.left.contains(&key) || is_retired || is_old {
            "late"
        } else if kept.is_some_and(|kept| kept.indexes.contains(&index)) {
            "duplicate"
        } else if let (Some(kept), Some((bytes, _))) = (kept, result)
            && !kept.results.is_empty()
            && kept.bytes != bytes
        {
            "unfit"
        } else if result.is_some() {
            "added"
        } else {
            "skipped"
        };
        let said = match accepted {
            Accepted::Add(key) => {
                self.pending.push(key);
                "added"
            }
            Accepted::Skipped => "skipped",
            Accepted::Duplicate => "duplicate",
            Accepted::Late => "late",
            Accepted::Unfit => "unfit",
        };
        assert_eq!(said, what, "block {index} of part {part}");
        *self.counts.entry(what).or_default() += 1;
        if what == "late" {
            assert!(leaving.is_empty());
            return;
        }
        for (_, kept) in self.kept.range_mut((part, 0)..(part, (group + 1).saturating_sub(self.open_max))) {
            kept.retired = true;
        }
        let kept = self.kept.entry(key).or_default();
        if what == "added" || what == "skipped" {
            kept.indexes.insert(index);
        }
        if what == "added" {
            let (bytes, weight) = result.unwrap();
            kept.results.push((index, weight));
            kept.bytes = bytes;
            kept.on_their_way += 1;
        }
        self.expect(leaving);
    }

    /// What leaves must be just what should: all that is retired or whole, with nothing on its way.
    fn expect(&mut self, leaving: Vec<Whole>) {
        let due = self.kept.iter().filter(|(_, kept)| {
            kept.on_their_way == 0 && (kept.retired || kept.indexes.len() as u64 == self.blocks)
        });
        let due: BTreeSet<(u32, u64)> = due.map(|(key, _)| *key).collect();
        let said: BTreeSet<(u32, u64)> =
            leaving.iter().map(|whole| (whole.key.part, whole.key.group)).collect();
        assert_eq!(due, said);
        for whole in leaving {
            let key = (whole.key.part, whole.key.group);
            let kept = self.kept.remove(&key).unwrap();
            assert!(self.left.insert(key), "left twice");
            assert_eq!(whole.index, key.1 * self.blocks);
            assert_eq!(u64::from(whole.results), kept.results.len() as u64);
            assert_eq!(whole.weight, kept.results.iter().map(|(_, weight)| weight).sum::<u64>());
        }
    }

    fn add(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let key = self.pending.remove(0);
        self.kept.get_mut(&(key.part, key.group)).unwrap().on_their_way -= 1;
        let leaving = self.groups.added(key).into_iter().collect();
        self.expect(leaving);
    }

    fn finish(mut self) {
        for kept in self.kept.values_mut() {
            kept.retired = true;
        }
        let leaving = self.groups.retire_all();
        self.expect(leaving);
        while !self.pending.is_empty() {
            self.add();
        }
        assert!(self.kept.is_empty() && self.groups.open() == 0);
        let counters = self.groups.counters();
        let count = |what| self.counts.get(what).copied().unwrap_or(0);
        assert_eq!(counters.added, count("added"));
        assert_eq!(counters.skipped, count("skipped"));
        assert_eq!(counters.duplicate, count("duplicate"));
        assert_eq!(counters.late, count("late"));
        assert_eq!(counters.unfit, count("unfit"));
        assert_eq!(counters.arrived, self.counts.values().sum::<u64>());
        assert_eq!(counters.groups, self.left.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn each_result_is_in_one_sum_or_counted(
        blocks in 1u32..5,
        open_max in 1u32..4,
        steps in proptest::collection::vec((0u64..10, 0u32..3, 0u8..10, any::<bool>()), 1..200),
    ) {
        let mut rig = Rig::new(blocks, open_max);
        for (at, (near, part, what, add)) in steps.into_iter().enumerate() {
            let index = (at as u64 / 6 + near).saturating_sub(3);
            let bytes = if what == 0 { 16 } else { 8 };
            let weight = 1 + near;
            rig.arrive(index, part, (what != 1).then_some((bytes, weight)));
            if add {
                rig.add();
            }
        }
        rig.finish();
    }
}
