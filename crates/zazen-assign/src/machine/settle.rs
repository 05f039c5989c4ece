//! From resolved slices to shares: tally, contested frames, residue, answers and the deal within a
//! node.

use super::{Machine, Slice, Stage, Step, Tally, expect, out_of_turn};
use crate::blocks::{decode_pair, encode_pair, violation};
use crate::rules::{DECIDED_TOGETHER_MAX, Decision, Scale, decide, even, level};
use crate::{Assignment, Counts, Parts, Protocol, Rules};
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::codec::{Reader, Writer};

impl Machine {
    pub(super) fn tally(&mut self, slice: Slice) -> Result<Step> {
        let mut words = slice.loads.clone();
        for own in [slice.counts[2], slice.residue.len()] {
            words.extend((0..self.size).map(|rank| if rank == self.rank { own } else { 0 }));
        }
        words.extend([slice.counts[0], slice.counts[1], slice.knocked.iter().map(RunSet::len).sum()]);
        self.stage = Stage::Tally { slice };
        Ok(Step::Sum(words))
    }

    pub(super) fn on_tally(&mut self, slice: Slice, words: &[u64]) -> Result<Step> {
        let tally = self.read_tally(words)?;
        let total = |words: &[u64]| words.iter().sum::<u64>();
        let contested = total(&tally.contested);
        self.plan.total = Counts { native: tally.native, alien: tally.alien, residue: total(&tally.residue) };
        if contested == 0 {
            return self.settle(slice, tally, &[]);
        }
        let deciders = tally.contested.iter().filter(|count| **count > 0).count();
        let rules = self.input()?.rules;
        if rules == Rules::Full && deciders > 1 && contested <= DECIDED_TOGETHER_MAX {
            return self.forward(slice, tally);
        }
        let (ranks, part) = (self.plan.nodes.ranks(), tally.contested[self.rank]);
        let scale = Scale { loads: &tally.loads, ranks: &ranks, part, whole: contested };
        let decision = decide(rules, &slice.claims, &scale);
        self.wins(slice, tally, decision)
    }

    /// The tally, if it adds up: every frame of the target is native, alien or residue, and every
    /// frame that is not residue belongs to a node or is contested.
    fn read_tally(&self, words: &[u64]) -> Result<Tally> {
        let (nodes, size) = (self.plan.nodes.members.len(), self.size);
        expect(words, (nodes + 2 * size + 3) as u64)?;
        let (loads, rest) = words.split_at(nodes);
        let (contested, rest) = rest.split_at(size);
        let (residue, totals) = rest.split_at(size);
        let sum = |words: &[u64]| words.iter().map(|word| u128::from(*word)).sum::<u128>();
        let held = sum(&totals[..2]);
        if held + sum(residue) != u128::from(self.plan.target_len) || sum(loads) + sum(contested) != held {
            let context = format!(
                "the ranks' tallies do not add up: natives and aliens {held}, residue {}, owned {}, contested {}, \
                 of {} frames; run one version on all ranks",
                sum(residue),
                sum(loads),
                sum(contested),
                self.plan.target_len
            );
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        Ok(Tally {
            loads: loads.to_vec(),
            contested: contested.to_vec(),
            residue: residue.to_vec(),
            native: totals[0],
            alien: totals[1],
            knocked: totals[2],
        })
    }

    /// The rank that decides the contested frames of all slices: the lowest of the ranks that have
    /// most of them.
    fn decider(tally: &Tally) -> usize {
        let most = tally.contested.iter().copied().max().unwrap_or(0);
        tally.contested.iter().position(|count| *count == most).unwrap_or(0)
    }

    fn forward(&mut self, slice: Slice, tally: Tally) -> Result<Step> {
        let mut blocks = vec![Vec::new(); self.size];
        let mut writer = Writer::new();
        for (node, claims) in slice.claims.iter().enumerate().filter(|(_, claims)| !claims.is_empty()) {
            writer.u32(node as u32);
            writer.runset(claims);
        }
        blocks[Self::decider(&tally)] = writer.into_bytes();
        self.stage = Stage::Forward { slice, tally };
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_forward(&mut self, slice: Slice, tally: Tally, blocks: &[Vec<u8>]) -> Result<Step> {
        const NAME: &str = "forwarded claims";
        let nodes = self.plan.nodes.members.len();
        let mut claims: Vec<Vec<RunSet>> = vec![Vec::new(); nodes];
        for (from, block) in blocks.iter().enumerate().filter(|(_, block)| !block.is_empty()) {
            if Self::decider(&tally) != self.rank {
                return Err(violation(NAME, from, "another rank decides"));
            }
            let (first, end) = self.slice(from);
            let mut reader = Reader::new(NAME, block);
            while reader.remaining() > 0 {
                let entry = reader.u32().and_then(|node| Ok((node as usize, reader.runset()?)));
                let (node, set) =
                    entry.map_err(|error| violation(NAME, from, "they do not decode").caused_by(error))?;
                let within =
                    set.first().is_none_or(|low| low >= first) && set.last().is_none_or(|high| high < end);
                if node >= nodes || !within {
                    return Err(violation(
                        NAME,
                        from,
                        format!("node {node} or an index is outside its slice"),
                    ));
                }
                claims[node].push(set);
            }
        }
        let claims: Vec<RunSet> = claims.into_iter().map(RunSet::union_all).collect();
        let ranks = self.plan.nodes.ranks();
        let scale = Scale { loads: &tally.loads, ranks: &ranks, part: 1, whole: 1 };
        let decision = decide(Rules::Full, &claims, &scale);
        self.wins(slice, tally, decision)
    }

    fn wins(&mut self, slice: Slice, tally: Tally, decision: Decision) -> Result<Step> {
        self.stage = Stage::Wins { slice, tally, lost: decision.lost };
        Ok(Step::Sum(decision.wins))
    }

    pub(super) fn on_wins(
        &mut self,
        slice: Slice,
        mut tally: Tally,
        lost: &[RunSet],
        words: &[u64],
    ) -> Result<Step> {
        expect(words, tally.loads.len() as u64)?;
        let won = words.iter().map(|word| u128::from(*word)).sum::<u128>();
        let contested = tally.contested.iter().map(|word| u128::from(*word)).sum::<u128>();
        if won != contested {
            let context =
                format!("{won} contested frames were decided of {contested}; run one version on all ranks");
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        tally.loads.iter_mut().zip(words).for_each(|(load, wins)| *load += wins);
        self.settle(slice, tally, lost)
    }

    /// The loads are final. Cuts the residue into blocks and sends each rank what it does not know.
    fn settle(&mut self, slice: Slice, tally: Tally, lost: &[RunSet]) -> Result<Step> {
        let input = self.input()?;
        let owner = input.protocol == Protocol::Owner;
        let total = self.plan.total.residue;
        let quotas = match input.rules {
            Rules::Full => level(&self.plan.nodes.by_rank(&tally.loads), total),
            Rules::Paper => even(self.size, total),
        };
        let quota = quotas[self.rank];
        if !owner {
            let before = quotas[..self.rank].iter().sum();
            self.plan.residue = self.plan.residue.block(before, quota);
        }
        let contested = tally.contested.iter().any(|count| *count > 0);
        if !contested && tally.knocked == 0 && (total == 0 || !owner) {
            return self.share(&tally, quota);
        }
        let first: u64 = tally.residue[..self.rank].iter().sum();
        let end = first + slice.residue.len();
        let mut start = 0;
        let mut blocks = Vec::with_capacity(self.size);
        for (rank, quota) in quotas.iter().enumerate() {
            let (low, high) = (start.max(first), (start + quota).min(end));
            start += quota;
            let residue = if owner && low < high {
                slice.residue.block(low - first, high - low)
            } else {
                RunSet::new()
            };
            let node = self.plan.nodes.of_rank[rank];
            let part = |sets: &[RunSet]| sets.get(node).cloned().unwrap_or_default();
            let leads = self.plan.nodes.leader(rank);
            let gone = if leads { part(&slice.knocked).union(&part(lost)) } else { RunSet::new() };
            blocks.push(encode_pair(&gone, &residue));
        }
        self.stage = Stage::Answer { tally, quota };
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_answer(&mut self, tally: &Tally, quota: u64, blocks: &[Vec<u8>]) -> Result<Step> {
        const NAME: &str = "answer";
        let (mut gone, mut residue) = (Vec::new(), Vec::new());
        for (from, block) in blocks.iter().enumerate() {
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
        self.share(tally, quota)
    }

    /// This rank's share is complete: it must be as large as the tally says.
    fn share(&mut self, tally: &Tally, quota: u64) -> Result<Step> {
        let (held, residue) = (self.plan.native.len() + self.plan.alien.len(), self.plan.residue.len());
        let due = if self.plan.nodes.leader(self.rank) { tally.loads[self.node()] } else { 0 };
        if held != due || residue != quota {
            let context = format!(
                "rank {} was left {held} cached frames and {residue} others, but {due} and {quota} were agreed; \
                 run one version on all ranks",
                self.rank
            );
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        if self.plan.nodes.shared() { self.deal() } else { self.done() }
    }

    /// Leaders deal what their node reads to its ranks; everyone takes part.
    pub(super) fn deal(&mut self) -> Result<Step> {
        let mut blocks = vec![Vec::new(); self.size];
        let plan = &mut self.plan;
        if plan.nodes.leader(self.rank) {
            let members = &plan.nodes.members[plan.nodes.of_rank[self.rank]];
            // After a perfect hit the aliens were not cut to the request, and they are not read.
            let share = plan.native.union(&plan.alien);
            let mut start = 0;
            let mut own = (RunSet::new(), RunSet::new());
            for (rank, size) in members.iter().zip(even(members.len(), share.len())) {
                let bounds = size
                    .checked_sub(1)
                    .and_then(|more| Some((share.select(start)?, share.select(start + more)?)));
                start += size;
                let Some((low, high)) = bounds else { continue };
                let part = (plan.native.slice(low, high), plan.alien.slice(low, high));
                if *rank == self.rank {
                    own = part;
                } else {
                    blocks[*rank] = encode_pair(&part.0, &part.1);
                }
            }
            (plan.native, plan.alien) = own;
        } else {
            (plan.native, plan.alien) = (RunSet::new(), RunSet::new());
        }
        self.stage = Stage::Deal;
        Ok(Step::Alltoallv(blocks))
    }

    pub(super) fn on_deal(&mut self, blocks: &[Vec<u8>]) -> Result<Step> {
        const NAME: &str = "deal";
        let leader = self.plan.nodes.members[self.node()][0];
        for (from, block) in blocks.iter().enumerate().filter(|(_, block)| !block.is_empty()) {
            if from != leader || leader == self.rank {
                return Err(violation(NAME, from, "it does not lead this rank's node"));
            }
            (self.plan.native, self.plan.alien) = decode_pair(NAME, from, block, 0, self.plan.count)?;
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
