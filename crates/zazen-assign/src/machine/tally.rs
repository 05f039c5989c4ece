//! The rounds that add up what the ranks found in their slices.

use super::{Machine, Slice, Stage, Step, expect};
use crate::Counts;
use crate::blocks::violation;
use crate::shared::Shared;
use crate::tally::{Contribution, Dealt, Tally, odd};
use std::sync::Arc;
use zazen_core::{Result, RunSet};

impl Machine {
    pub(super) fn tally(&mut self, slice: Slice) -> Result<Step> {
        let leader = self.plan.node.leader;
        let offered = self.plan.native.len() + self.plan.alien.len();
        let entry = Contribution {
            leader,
            offered: if leader == self.rank { offered } else { 0 },
            native: slice.counts[0],
            alien: slice.counts[1],
            contested: slice.counts[2],
            residue: slice.residue.len(),
            knocked: slice.knocked.iter().map(RunSet::len).sum(),
        };
        self.stage = Stage::Tally { slice };
        Ok(Step::Allgatherv(entry.encode(self.rank)))
    }

    pub(super) fn on_tally(&mut self, slice: Slice, blocks: &Shared<Vec<Vec<u8>>>) -> Result<Step> {
        let tally = blocks.derive(None::<&Arc<()>>, |blocks| Tally::of(blocks))?;
        tally.check(self.plan.target_len)?;
        if let Some(rank) = slice.leaders.iter().find(|rank| !tally.leads(**rank)) {
            return Err(violation("offer", *rank, "it does not lead its node"));
        }
        self.plan.total = Counts { native: tally.native, alien: tally.alien, residue: tally.residue() };
        let rules = self.input()?.rules;
        if tally.contested_total == 0 && tally.knocked == 0 {
            if tally.undisputed.get().is_none() {
                tally.check_loads(&tally.offered)?;
            }
            let dealt = || Arc::new(Dealt::of(rules, &tally, tally.offered.clone()));
            let dealt = tally.undisputed.get_or_init(dealt).clone();
            return self.settle(slice, &tally, dealt, &[]);
        }
        let mut words = vec![0u64; self.size];
        for sets in [&slice.claims, &slice.knocked] {
            for (leader, set) in slice.leaders.iter().zip(sets) {
                words[*leader] += set.len();
            }
        }
        self.stage = Stage::Conflicts { slice, tally };
        Ok(Step::Sum(words))
    }

    /// What is contested or knocked out is no load so far.
    pub(super) fn on_conflicts(
        &mut self,
        slice: Slice,
        tally: Arc<Tally>,
        words: &Shared<Vec<u64>>,
    ) -> Result<Step> {
        expect(words, self.size as u64)?;
        let rules = self.input()?.rules;
        let loads = |words: &Vec<u64>| {
            let pairs = tally.offered.iter().zip(words);
            let loads = pairs.map(|(offered, gone)| offered.checked_sub(*gone)).collect::<Option<Vec<u64>>>();
            let loads = loads.ok_or_else(|| odd("a node loses more than it offered".into()))?;
            tally.check_loads(&loads)?;
            Ok(loads)
        };
        if tally.contested_total == 0 {
            let dealt = words.derive(Some(&tally), |words| Ok(Dealt::of(rules, &tally, loads(words)?)))?;
            return self.settle(slice, &tally, dealt, &[]);
        }
        let loads = words.derive(Some(&tally), loads)?;
        self.contest(slice, tally, loads)
    }
}
