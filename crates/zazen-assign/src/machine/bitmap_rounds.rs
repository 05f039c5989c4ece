//! The rounds of the published protocol (Zazen paper §4, steps 1–7), which the exchange of holdings
//! takes under `protocol=bitmaps`.
//!
//! The paper assumes that no frame is native twice. A sum of one word checks this. If a frame is
//! native twice, a two-bit all-reduce over the natives shows which frames these are, and the owners
//! decide them as under `protocol=owner`. Under the full rules the owners also decide frames with
//! several aliens.

use super::{Machine, Slice, Stage, Step, expect};
use crate::bitmaps::{Global, bitmap, entries, survey};
use crate::collectives::Blocks;
use zazen_core::{Error, ErrorKind, Result, RunSet};

impl Machine {
    pub(super) fn on_native_count(&mut self, words: &[u64]) -> Result<Step> {
        expect(words, 1)?;
        self.stage = Stage::Natives { copies: words[0] };
        Ok(Step::Or(bitmap(&self.plan.native, self.plan.count)))
    }

    pub(super) fn on_natives(&mut self, copies: u64, native: Vec<u64>) -> Result<Step> {
        expect(&native, self.plan.count.div_ceil(64))?;
        if ones(&native) == copies {
            return self.after_natives(native, None);
        }
        self.stage = Stage::NativeEntries { native };
        Ok(Step::TwoBit(entries(&self.plan.native, None, self.plan.count)))
    }

    pub(super) fn on_native_entries(&mut self, native: Vec<u64>, native_entries: Vec<u64>) -> Result<Step> {
        expect(&native_entries, self.plan.count.div_ceil(32))?;
        self.after_natives(native, Some(native_entries))
    }

    /// Step 3: if every frame is native somewhere, aliens do not matter.
    fn after_natives(&mut self, native: Vec<u64>, native_entries: Option<Vec<u64>>) -> Result<Step> {
        if ones(&native) == self.plan.target_len {
            return self.survey(Global { native, native_entries, alien_entries: None });
        }
        let mine = entries(&self.plan.alien, Some(&native), self.plan.count);
        self.stage = Stage::AlienEntries { native, native_entries };
        Ok(Step::TwoBit(mine))
    }

    /// Steps 6 and 7, except that the residue is cut into blocks later, when the loads are known.
    pub(super) fn survey(&mut self, global: Global) -> Result<Step> {
        let (rules, slice) = (self.input()?.rules, self.slice(self.rank));
        let plan = &mut self.plan;
        let request = (plan.count, plan.target.as_deref());
        let found = survey(rules, &global, request, slice, (&plan.native, &plan.alien));
        drop(global);
        plan.alien = found.alien;
        plan.residue = found.residue;
        let held = plan.native.len() + plan.alien.len();
        if held < found.claims.len() {
            let context = "the all-reduces of the bitmap protocol gave an entry that is both one and several";
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        if !found.contested {
            return self.tally_bitmaps(found.counts, Vec::new());
        }
        self.stage = Stage::Claims { counts: found.counts };
        Ok(Step::Alltoallv(self.by_slice(&found.claims, &RunSet::new())))
    }

    pub(super) fn on_claims(&mut self, counts: [u64; 3], blocks: &Blocks) -> Result<Step> {
        let (first, end) = self.slice(self.rank);
        let claims = self.pairs("claims", blocks, first, end)?;
        self.tally_bitmaps(counts, claims.into_iter().map(|(rank, pair)| (rank, pair.0)).collect())
    }

    fn tally_bitmaps(&mut self, counts: [u64; 3], claims: Vec<(usize, RunSet)>) -> Result<Step> {
        let (leaders, claims) = claims.into_iter().unzip();
        let residue = match self.slice(self.rank) {
            (first, end) if first == end => RunSet::new(),
            (first, end) => self.plan.residue.slice(first, end - 1),
        };
        self.tally(Slice { leaders, claims, knocked: Vec::new(), residue, counts })
    }
}

fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}
