//! From the tally to shares: contested frames, residue, answers and the deal within a node.

use super::{Machine, Slice, Stage, Step, expect, out_of_turn};
use crate::blocks::{decode_pair, encode_pair, violation};
use crate::collectives::Blocks;
use crate::rules::{DECIDED_TOGETHER_MAX, Decision, Scale, decide, even};
use crate::shared::Shared;
use crate::tally::{Dealt, Tally};
use crate::{Assignment, Counts, Parts, Protocol, Rules};
use std::collections::BTreeMap;
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::codec::{Reader, Writer};

impl Machine {
    /// Decides the contested frames, against `loads` by leader.
    pub(super) fn contest(&mut self, slice: Slice, tally: Arc<Tally>, loads: Arc<Vec<u64>>) -> Result<Step> {
        let deciders = tally.contested.iter().filter(|count| **count > 0).count();
        let rules = self.input()?.rules;
        if rules == Rules::Full && deciders > 1 && tally.contested_total <= DECIDED_TOGETHER_MAX {
            return self.forward(slice, tally, loads);
        }
        let part = (tally.contested[self.rank], tally.contested_total);
        let decision = decided(rules, &slice.leaders, &slice.claims, &tally, &loads, part);
        self.wins(slice, tally, loads, decision)
    }

    fn forward(&mut self, slice: Slice, tally: Arc<Tally>, loads: Arc<Vec<u64>>) -> Result<Step> {
        let mut writer = Writer::new();
        let claims = slice.leaders.iter().zip(&slice.claims).filter(|(_, claims)| !claims.is_empty());
        for (leader, claims) in claims {
            writer.u32(*leader as u32);
            writer.runset(claims);
        }
        let bytes = writer.into_bytes();
        let blocks = if bytes.is_empty() { Vec::new() } else { vec![(tally.decider(), bytes)] };
        self.stage = Stage::Forward { slice, tally, loads };
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_forward(
        &mut self,
        mut slice: Slice,
        tally: Arc<Tally>,
        loads: Arc<Vec<u64>>,
        blocks: &Blocks,
    ) -> Result<Step> {
        const NAME: &str = "forwarded claims";
        let mut claims: BTreeMap<usize, Vec<RunSet>> = BTreeMap::new();
        for (from, block) in blocks {
            if tally.decider() != self.rank {
                return Err(violation(NAME, *from, "another rank decides"));
            }
            let (first, end) = self.slice(*from);
            let mut reader = Reader::new(NAME, block);
            while reader.remaining() > 0 {
                let entry = reader.u32().and_then(|leader| Ok((leader as usize, reader.runset()?)));
                let (leader, set) =
                    entry.map_err(|error| violation(NAME, *from, "they do not decode").caused_by(error))?;
                let within =
                    set.first().is_none_or(|low| low >= first) && set.last().is_none_or(|high| high < end);
                if !tally.leads(leader) || !within {
                    return Err(violation(
                        NAME,
                        *from,
                        format!("rank {leader} leads no node, or an index is outside its slice"),
                    ));
                }
                claims.entry(leader).or_default().push(set);
            }
        }
        let (leaders, claims): (Vec<usize>, Vec<Vec<RunSet>>) = claims.into_iter().unzip();
        let claims: Vec<RunSet> = claims.into_iter().map(RunSet::union_all).collect();
        let decision = decided(Rules::Full, &leaders, &claims, &tally, &loads, (1, 1));
        // What was knocked out is told by the owner of each slice, what was lost by the decider.
        let knocked = std::mem::take(&mut slice.leaders).into_iter().zip(std::mem::take(&mut slice.knocked));
        let mut knocked: BTreeMap<usize, RunSet> = knocked.collect();
        if !knocked.is_empty() {
            slice.knocked = leaders.iter().map(|leader| knocked.remove(leader).unwrap_or_default()).collect();
        }
        slice.leaders = leaders;
        let mut decision = decision;
        for (leader, set) in knocked {
            slice.leaders.push(leader);
            slice.knocked.push(set);
            decision.lost.push(RunSet::new());
            decision.wins.push(0);
        }
        self.wins(slice, tally, loads, decision)
    }

    fn wins(
        &mut self,
        slice: Slice,
        tally: Arc<Tally>,
        loads: Arc<Vec<u64>>,
        decision: Decision,
    ) -> Result<Step> {
        let mut words = vec![0; self.size];
        for (leader, wins) in slice.leaders.iter().zip(&decision.wins) {
            words[*leader] = *wins;
        }
        self.stage = Stage::Wins { slice, tally, loads, lost: decision.lost };
        Ok(Step::Sum(words))
    }

    pub(super) fn on_wins(
        &mut self,
        slice: Slice,
        tally: Arc<Tally>,
        loads: &Arc<Vec<u64>>,
        lost: &[RunSet],
        words: &Shared<Vec<u64>>,
    ) -> Result<Step> {
        expect(words, self.size as u64)?;
        let won = words.iter().map(|word| u128::from(*word)).sum::<u128>();
        if won != u128::from(tally.contested_total) {
            let context = format!(
                "{won} contested frames were decided of {}; run one version on all ranks",
                tally.contested_total
            );
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        let rules = self.input()?.rules;
        let dealt = words.derive(Some(loads), |words| {
            let loads = loads.iter().zip(words).map(|(load, wins)| load.saturating_add(*wins)).collect();
            Ok(Dealt::of(rules, &tally, loads))
        })?;
        self.settle(slice, &tally, dealt, lost)
    }

    /// The loads are final. Cuts the residue into blocks and sends each rank what it does not know.
    /// `lost` is by the slice's leaders.
    pub(super) fn settle(
        &mut self,
        slice: Slice,
        tally: &Tally,
        dealt: Arc<Dealt>,
        lost: &[RunSet],
    ) -> Result<Step> {
        let owner = self.input()?.protocol == Protocol::Owner;
        let total = self.plan.total.residue;
        if !owner {
            let (start, end) = dealt.block(self.rank);
            self.plan.residue = self.plan.residue.block(start, end - start);
        }
        if tally.contested_total == 0 && tally.knocked == 0 && (total == 0 || !owner) {
            return self.share(&dealt);
        }
        let mut told: BTreeMap<usize, (RunSet, RunSet)> = BTreeMap::new();
        for (at, leader) in slice.leaders.iter().enumerate() {
            let part = |sets: &[RunSet]| sets.get(at).cloned().unwrap_or_default();
            let gone = part(&slice.knocked).union(&part(lost));
            if !gone.is_empty() {
                told.entry(*leader).or_default().0 = gone;
            }
        }
        if owner {
            let first = tally.residue_before(self.rank);
            for (rank, low, high) in dealt.overlaps(first, first + slice.residue.len()) {
                told.entry(rank).or_default().1 = slice.residue.block(low - first, high - low);
            }
        }
        let encoded =
            |(rank, (gone, residue)): (usize, (RunSet, RunSet))| (rank, self.block(&gone, &residue));
        let blocks = told.into_iter().map(encoded).collect();
        self.stage = Stage::Answer { dealt };
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_answer(&mut self, dealt: &Dealt, blocks: &Blocks) -> Result<Step> {
        const NAME: &str = "answer";
        let (mut gone, mut residue) = (Vec::new(), Vec::new());
        for (from, block) in blocks {
            let from = *from;
            let (lost, left) = decode_pair(NAME, from, block, 0, self.plan.count)?;
            let (first, end) = self.slice(from);
            let within =
                left.first().is_none_or(|low| low >= first) && left.last().is_none_or(|high| high < end);
            if !within {
                return Err(violation(NAME, from, "it gives residue outside its slice"));
            }
            if !lost.is_subset(&self.plan.native)
                && !lost.difference(&self.plan.native).is_subset(&self.plan.alien)
            {
                return Err(violation(NAME, from, "it takes frames away that were not offered"));
            }
            gone.push(lost);
            residue.push(left);
        }
        let gone = RunSet::union_all(gone);
        if !gone.is_empty() {
            self.plan.native = self.plan.native.difference(&gone);
            self.plan.alien = self.plan.alien.difference(&gone);
        }
        if self.input()?.protocol == Protocol::Owner {
            self.plan.residue = RunSet::union_all(residue);
        } else if residue.iter().any(|left| !left.is_empty()) {
            return Err(violation(NAME, self.rank, "the bitmap protocol sends no residue"));
        }
        self.share(dealt)
    }

    /// This rank's share is complete: it must be as large as the tally says.
    fn share(&mut self, dealt: &Dealt) -> Result<Step> {
        let (held, residue) = (self.plan.native.len() + self.plan.alien.len(), self.plan.residue.len());
        let due = if self.plan.node.leads() { dealt.loads[self.rank] } else { 0 };
        let (start, end) = dealt.block(self.rank);
        if held != due || residue != end - start {
            let context = format!(
                "rank {} was left {held} cached frames and {residue} others, but {due} and {} were agreed; \
                 run one version on all ranks",
                self.rank,
                end - start
            );
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        if self.plan.shared { self.deal() } else { self.done() }
    }

    /// Leaders deal what their node reads to its ranks; everyone takes part.
    pub(super) fn deal(&mut self) -> Result<Step> {
        let mut blocks = Vec::new();
        let plan = &mut self.plan;
        if plan.node.leads() {
            // After a perfect hit the aliens were not cut to the request, and they are not read.
            let share = plan.native.union(&plan.alien);
            let mut start = 0;
            let mut own = (RunSet::new(), RunSet::new());
            let members = std::iter::once(&self.rank).chain(&plan.node.others);
            for (rank, size) in members.zip(even(plan.node.ranks, share.len())) {
                let bounds = size
                    .checked_sub(1)
                    .and_then(|more| Some((share.select(start)?, share.select(start + more)?)));
                start += size;
                let Some((low, high)) = bounds else { continue };
                let part = (plan.native.slice(low, high), plan.alien.slice(low, high));
                if *rank == self.rank {
                    own = part;
                } else {
                    blocks.push((*rank, encode_pair(&part.0, &part.1)));
                }
            }
            (plan.native, plan.alien) = own;
        } else {
            (plan.native, plan.alien) = (RunSet::new(), RunSet::new());
        }
        self.stage = Stage::Deal;
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_deal(&mut self, blocks: &Blocks) -> Result<Step> {
        const NAME: &str = "deal";
        let leader = self.plan.node.leader;
        for (from, block) in blocks {
            if *from != leader || leader == self.rank {
                return Err(violation(NAME, *from, "it does not lead this rank's node"));
            }
            (self.plan.native, self.plan.alien) = decode_pair(NAME, *from, block, 0, self.plan.count)?;
        }
        self.done()
    }

    pub(super) fn done(&mut self) -> Result<Step> {
        let request = self.input.as_ref().ok_or_else(out_of_turn)?.request;
        let plan = &mut self.plan;
        let [native, alien, residue] = [&mut plan.native, &mut plan.alien, &mut plan.residue]
            .map(|indices| std::mem::take(indices).uncut(&request));
        let mine = Counts { native: native.len(), alien: alien.len(), residue: residue.len() };
        Ok(Step::Done(Box::new(Assignment {
            set: native.union(&alien).union(&residue),
            parts: Parts { native, alien, residue },
            mine,
            total: plan.total,
            path: plan.path,
            bytes_sent: self.bytes_sent,
            rounds: self.rounds,
        })))
    }
}

/// Decides `claims`, which are of `leaders`, against `part` of the `loads` of these.
fn decided(
    rules: Rules,
    leaders: &[usize],
    claims: &[RunSet],
    tally: &Tally,
    loads: &[u64],
    (part, whole): (u64, u64),
) -> Decision {
    let loads: Vec<u64> = leaders.iter().map(|leader| loads[*leader]).collect();
    let ranks: Vec<u64> = leaders.iter().map(|leader| tally.ranks(*leader)).collect();
    decide(rules, claims, &Scale { loads: &loads, ranks: &ranks, part, whole })
}
