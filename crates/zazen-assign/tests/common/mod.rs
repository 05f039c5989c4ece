//! What the integration tests share: a lockstep driver, random cases, and a second implementation
//! of the rules, frame by frame.

// Each test file uses a part of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use zazen_assign::{
    Answer, Assignment, Blocks, Input, Machine, Protocol, Rules, Shared, Step, check_blocks, two_bit,
};
use zazen_core::{Request, Result, RunSet};

/// Runs machines in lockstep on one thread; `tamper` may change what a rank is answered.
pub fn lockstep(
    mut machines: Vec<Machine>,
    mut tamper: impl FnMut(u32, usize, &mut Answer),
) -> Vec<Result<Assignment>> {
    let size = machines.len();
    let mut results: Vec<Option<Result<Assignment>>> = (0..size).map(|_| None).collect();
    let mut answers: Vec<Answer> = (0..size).map(|_| Answer::Start).collect();
    for round in 0.. {
        let mut steps: Vec<Option<Step>> = Vec::new();
        for (rank, answer) in answers.iter_mut().enumerate() {
            if results[rank].is_some() {
                steps.push(None);
                continue;
            }
            tamper(round, rank, answer);
            match machines[rank].step(std::mem::replace(answer, Answer::Start)) {
                Ok(Step::Done(assignment)) => {
                    results[rank] = Some(Ok(*assignment));
                    steps.push(None);
                }
                Ok(step) => steps.push(Some(step)),
                Err(error) => {
                    results[rank] = Some(Err(error));
                    steps.push(None);
                }
            }
        }
        // A rank that asks for another collective than the others, or waits for a rank that is
        // gone, would hang. It is ended.
        let steps: Option<Vec<Step>> = steps.into_iter().collect();
        match steps.and_then(exchange) {
            Some(next) => answers = next,
            None => break,
        }
    }
    let hung =
        || Err(zazen_core::Error::new(zazen_core::ErrorKind::Unavailable, "the others left or differ"));
    results.into_iter().map(|result| result.unwrap_or_else(hung)).collect()
}

fn exchange(steps: Vec<Step>) -> Option<Vec<Answer>> {
    let kind = std::mem::discriminant(&steps[0]);
    if steps.iter().any(|step| std::mem::discriminant(step) != kind) {
        return None;
    }
    let size = steps.len();
    let reduce = |combine: fn(u64, u64) -> u64| {
        let all: Vec<&Vec<u64>> = steps
            .iter()
            .map(|step| match step {
                Step::Sum(words) | Step::Xor(words) | Step::Or(words) | Step::TwoBit(words) => words,
                _ => unreachable!(),
            })
            .collect();
        let same = all.iter().all(|words| words.len() == all[0].len());
        same.then(|| {
            let sum = (0..all[0].len()).map(|at| all.iter().map(|words| words[at]).reduce(combine).unwrap());
            let sum: Vec<u64> = sum.collect();
            let sum = Shared::from(sum);
            (0..size).map(|_| Answer::Words(sum.clone())).collect()
        })
    };
    match &steps[0] {
        Step::Sum(_) => reduce(u64::wrapping_add),
        Step::Xor(_) => reduce(|a, b| a ^ b),
        Step::Or(_) => reduce(|a, b| a | b),
        Step::TwoBit(_) => reduce(two_bit),
        Step::Allgatherv(_) => {
            let all: Vec<Vec<u8>> = steps
                .into_iter()
                .map(|step| match step {
                    Step::Allgatherv(mine) => mine,
                    _ => unreachable!(),
                })
                .collect();
            let all = Shared::from(all);
            Some((0..size).map(|_| Answer::Gathered(all.clone())).collect())
        }
        Step::Alltoallv(_) => {
            let mut received: Vec<Blocks> = vec![Vec::new(); size];
            for (from, step) in steps.into_iter().enumerate() {
                let Step::Alltoallv(blocks) = step else { unreachable!() };
                check_blocks(&blocks, size).unwrap();
                blocks.into_iter().for_each(|(to, block)| received[to].push((from, block)));
            }
            Some(received.into_iter().map(Answer::Blocks).collect())
        }
        // Every other rank packs.
        Step::IsSlow => Some((0..size).map(|rank| Answer::Slow(rank % 2 == 0)).collect()),
        Step::Done(_) => unreachable!(),
    }
}

/// A small deterministic generator, so a seed determines a case.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed ^ 0x5851_f42d_4c95_7f2d)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^ (x >> 33)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Who holds what, frame by frame.
#[derive(Clone, Debug)]
pub struct Case {
    pub nodes_of_ranks: Vec<usize>,
    pub request: Request,
    pub target: Option<BTreeSet<u64>>,
    pub native: Vec<BTreeSet<u64>>,
    pub alien: Vec<BTreeSet<u64>>,
}

impl Case {
    /// A case of up to `frames_max` frames; the same one for the same seed.
    pub fn drawn(seed: u64, frames_max: u64) -> Case {
        let mut draw = Draw::new(seed);
        let nodes = 1 + draw.below(5) as usize;
        let ranks = 1 + draw.below(7) as usize;
        let nodes_of_ranks = (0..ranks).map(|_| draw.below(nodes as u64) as usize).collect();
        let begin = [0, draw.below(1000), (1 << 39) + draw.below(1 << 20)][draw.below(3) as usize];
        let stride = [1, 1, 1 + draw.below(9)][draw.below(3) as usize];
        let span = 1 + draw.below(frames_max * stride);
        let request = Request::new(begin, begin + span - 1, stride).unwrap();
        // Frames outside the request, on both sides and between its strides, are held too.
        let low = begin.saturating_sub(20);
        let held = low..begin + span + 20;
        let mut native = vec![BTreeSet::new(); nodes];
        let mut alien = vec![BTreeSet::new(); nodes];
        let place = draw.below(4);
        let (lost, doubled) = ([0, 2, 30][draw.below(3) as usize], [0, 2, 40][draw.below(3) as usize]);
        let aliens = [0, 3, 40][draw.below(3) as usize];
        for frame in held.clone() {
            let home = match place {
                0 => frame % nodes as u64,
                1 => (frame - low) * nodes as u64 / (held.end - low),
                2 => draw.below(nodes as u64),
                _ => (frame / 64) % nodes as u64,
            } as usize;
            if draw.below(100) >= lost {
                native[home].insert(frame);
            }
            if draw.below(100) < doubled {
                native[draw.below(nodes as u64) as usize].insert(frame);
            }
            while draw.below(100) < aliens {
                alien[draw.below(nodes as u64) as usize].insert(frame);
            }
        }
        let target = (draw.below(3) == 0).then(|| held.filter(|_| draw.below(10) > 0).collect());
        Case { nodes_of_ranks, request, target, native, alien }
    }

    pub fn inputs(&self, rules: Rules, protocol: Protocol, verify_exact: bool) -> Vec<Input> {
        let set = |frames: &BTreeSet<u64>| RunSet::from_ascending(frames.iter().copied());
        let input = |node: &usize| Input {
            // The ids are not in the order of the ranks.
            node: (*node as u128 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            native: set(&self.native[*node]),
            alien: set(&self.alien[*node]),
            request: self.request,
            target: self.target.as_ref().map(set),
            rules,
            protocol,
            verify_exact,
            seed: [7; 16],
        };
        self.nodes_of_ranks.iter().map(input).collect()
    }

    /// The frames that somebody must read.
    pub fn wanted(&self) -> BTreeSet<u64> {
        (0..self.request.count())
            .map(|index| self.request.frame_at(index))
            .filter(|frame| self.target.as_ref().is_none_or(|target| target.contains(frame)))
            .collect()
    }

    /// The rules, applied one frame after the other: (frames by rank, [natives, aliens, residue]).
    pub fn solved(&self, rules: Rules) -> (Vec<BTreeSet<u64>>, [u64; 3]) {
        // Alive nodes in the order of their lowest ranks, with their ranks.
        let mut ranks_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (rank, node) in self.nodes_of_ranks.iter().enumerate() {
            ranks_of.entry(*node).or_default().push(rank);
        }
        let mut order: Vec<usize> = ranks_of.keys().copied().collect();
        order.sort_by_key(|node| ranks_of[node][0]);
        let mut read: BTreeMap<usize, BTreeSet<u64>> =
            order.iter().map(|node| (*node, BTreeSet::new())).collect();
        let (mut contested, mut residue) = (Vec::new(), Vec::new());
        let mut totals = [0; 3];
        for frame in self.wanted() {
            let holders = |sets: &[BTreeSet<u64>]| -> Vec<usize> {
                order.iter().copied().filter(|node| sets[*node].contains(&frame)).collect()
            };
            let (natives, aliens) = (holders(&self.native), holders(&self.alien));
            match (natives.as_slice(), aliens.as_slice(), rules) {
                ([], [], _) => residue.push(frame),
                ([], [_, _, ..], Rules::Paper) => residue.push(frame),
                ([], [sole], _) => {
                    totals[1] += 1;
                    read.get_mut(sole).unwrap().insert(frame);
                }
                ([], _, Rules::Full) => {
                    totals[1] += 1;
                    contested.push((frame, aliens));
                }
                ([sole], _, _) => {
                    totals[0] += 1;
                    read.get_mut(sole).unwrap().insert(frame);
                }
                ([lowest, ..], _, Rules::Paper) => {
                    totals[0] += 1;
                    read.get_mut(lowest).unwrap().insert(frame);
                }
                (_, _, Rules::Full) => {
                    totals[0] += 1;
                    contested.push((frame, natives));
                }
            }
        }
        totals[2] = residue.len() as u64;
        for (frame, holders) in contested {
            // The least load per rank; min_by keeps the first of equals, which is the lowest.
            let winner = holders
                .into_iter()
                .min_by(|a, b| {
                    let load = |node: &usize| (read[node].len(), ranks_of[node].len());
                    let ((la, ra), (lb, rb)) = (load(a), load(b));
                    (la * rb).cmp(&(lb * ra))
                })
                .unwrap();
            read.get_mut(&winner).unwrap().insert(frame);
        }
        let mut by_rank = vec![BTreeSet::new(); self.nodes_of_ranks.len()];
        for (node, ranks) in &ranks_of {
            let mut share = read[node].iter().copied();
            for (at, rank) in ranks.iter().enumerate() {
                let (each, more) = (read[node].len() / ranks.len(), read[node].len() % ranks.len());
                by_rank[*rank].extend(share.by_ref().take(each + usize::from(at < more)));
            }
        }
        let mut sizes = vec![0; by_rank.len()];
        for at in 0..residue.len() {
            let to = match rules {
                Rules::Full => {
                    (0..sizes.len()).min_by_key(|rank| by_rank[*rank].len() + sizes[*rank]).unwrap()
                }
                Rules::Paper => at % sizes.len(),
            };
            sizes[to] += 1;
        }
        let mut rest = residue.into_iter();
        for (rank, size) in sizes.into_iter().enumerate() {
            by_rank[rank].extend(rest.by_ref().take(size));
        }
        (by_rank, totals)
    }
}
