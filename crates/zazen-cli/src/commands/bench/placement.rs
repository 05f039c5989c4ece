//! Who holds what: the holdings of each node, worked out by every rank for itself from the same few
//! numbers.
//!
//! Invariants: every frame that is no hole, not left out and not on a dead node is native on
//! exactly one node; the same plan gives the same holdings in every process. No list of frames is
//! ever made: random placement goes word by word through bitmaps.

use clap::ValueEnum;
use zazen_core::{Run, RunSet};

/// Frames of one bitmap block of a run set.
const BLOCK: u64 = 1 << 16;
/// Random bits by which a frame's node is drawn, beyond those that count the nodes: no node's share
/// is off by more than one part in 2^16.
const EVEN_BITS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// Node i of n holds frames i, i + n, i + 2n, …
    RoundRobin,
    /// Node i holds the i-th n-th of all frames
    Contiguous,
    /// Each frame is on one node drawn at random
    Random,
    /// Round robin, but some frames are on no node (--hole-share, 1e-6 if not given)
    Holes,
    /// The paper's section 5.1: contiguous natives, all other frames as aliens, one native left out
    Aliens,
}

/// What is placed how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) frames: u64,
    pub(crate) nodes: u64,
    pub(crate) placement: Placement,
    /// The last so many nodes hold nothing.
    pub(crate) dead_nodes: u64,
    /// Of all frames, 0 to 1: those that are on no node.
    pub(crate) hole_share: f64,
    pub(crate) seed: u64,
}

/// What one node holds.
pub(crate) struct Holdings {
    pub(crate) native: RunSet,
    pub(crate) alien: RunSet,
}

impl Plan {
    /// The holdings of node `node`.
    pub(crate) fn holdings(&self, node: u64) -> Holdings {
        if node >= self.nodes - self.dead_nodes {
            return Holdings { native: RunSet::new(), alien: RunSet::new() };
        }
        let native = match self.placement {
            Placement::RoundRobin | Placement::Holes => self.round_robin(node),
            Placement::Random => self.random(node),
            Placement::Contiguous => self.contiguous(node),
            Placement::Aliens if node == 0 => self.contiguous(node).difference(&RunSet::range(0, 0)),
            Placement::Aliens => self.contiguous(node),
        };
        let all = || RunSet::range(0, self.frames - 1);
        let alien = match self.placement {
            Placement::Aliens => all().difference(&native),
            _ => RunSet::new(),
        };
        let holes = self.holes();
        if holes.is_empty() {
            return Holdings { native, alien };
        }
        Holdings { native: native.difference(&holes), alien: alien.difference(&holes) }
    }

    fn round_robin(&self, node: u64) -> RunSet {
        if node >= self.frames {
            return RunSet::new();
        }
        let count = (self.frames - node).div_ceil(self.nodes);
        RunSet::from_run(Run { first: node, count, step: self.nodes })
    }

    fn contiguous(&self, node: u64) -> RunSet {
        let bound = |node: u64| (u128::from(self.frames) * u128::from(node) / u128::from(self.nodes)) as u64;
        match (bound(node), bound(node + 1)) {
            (first, end) if first == end => RunSet::new(),
            (first, end) => RunSet::range(first, end - 1),
        }
    }

    /// Frame f goes to the node whose part of the unit interval f's random number lies in; the
    /// numbers of 64 frames are compared at once, bit by bit.
    fn random(&self, node: u64) -> RunSet {
        if self.nodes == 1 {
            return RunSet::range(0, self.frames - 1);
        }
        let counting = u64::BITS - (self.nodes - 1).leading_zeros();
        let bits = if self.nodes.is_power_of_two() { counting } else { counting + EVEN_BITS };
        let bound = |node: u64| ((u128::from(node) << bits) / u128::from(self.nodes)) as u64;
        let (low, high) = (bound(node), bound(node + 1));
        let mut set = RunSet::new();
        let mut words = vec![0u64; (BLOCK / 64) as usize];
        for block in 0..self.frames.div_ceil(BLOCK) {
            let base = block * BLOCK;
            let mut stream = Stream::new(self.seed, block);
            for word in &mut words {
                // Of each frame: is its number below the bound? None is below 0, all are below
                // 2^bits.
                let mut below = (0, if high >> bits & 1 == 1 { u64::MAX } else { 0 });
                for bit in 0..bits {
                    let drawn = stream.next();
                    let decide = |bound: u64, below: u64| match bound >> bit & 1 {
                        1 => !drawn | below,
                        _ => !drawn & below,
                    };
                    below.0 = decide(low, below.0);
                    if high >> bits & 1 == 0 {
                        below.1 = decide(high, below.1);
                    }
                }
                *word = below.1 & !below.0;
            }
            keep_below(&mut words, self.frames - base);
            set.extend_bits(base, &words);
        }
        set
    }

    /// One hole in each of as many equal parts as there are holes, at a random place.
    fn holes(&self) -> RunSet {
        if self.hole_share <= 0.0 {
            return RunSet::new();
        }
        let holes = ((self.frames as f64 * self.hole_share).round() as u64).clamp(1, self.frames);
        let bound = |part: u64| (u128::from(self.frames) * u128::from(part) / u128::from(holes)) as u64;
        let mut stream = Stream::new(self.seed, u64::MAX);
        RunSet::from_ascending((0..holes).map(|part| {
            let (first, end) = (bound(part), bound(part + 1));
            first + stream.next() % (end - first)
        }))
    }
}

/// Clears the bits from `count` on.
fn keep_below(words: &mut [u64], count: u64) {
    for (at, word) in words.iter_mut().enumerate() {
        *word = match count.saturating_sub(at as u64 * 64) {
            0 => 0,
            left @ 1..64 => *word & ((1 << left) - 1),
            _ => *word,
        };
    }
}

/// SplitMix64 (Steele, Lea and Flood): the `part`-th of many streams that belong to a seed.
pub(crate) struct Stream(u64);

impl Stream {
    pub(crate) fn new(seed: u64, part: u64) -> Stream {
        Stream(mix(seed.wrapping_add(mix(part))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(frames: u64, nodes: u64, placement: Placement) -> Plan {
        Plan { frames, nodes, placement, dead_nodes: 0, hole_share: 0.0, seed: 7 }
    }

    /// How many nodes hold each frame as native.
    fn copies(plan: &Plan) -> Vec<u32> {
        let mut copies = vec![0; plan.frames as usize];
        for node in 0..plan.nodes {
            plan.holdings(node).native.iter().for_each(|frame| copies[frame as usize] += 1);
        }
        copies
    }

    #[test]
    fn every_frame_is_on_one_node() {
        for placement in [Placement::RoundRobin, Placement::Contiguous, Placement::Random] {
            for (frames, nodes) in [(1, 1), (1, 3), (63, 2), (1000, 7), (65_536, 8), (200_001, 5)] {
                let plan = plan(frames, nodes, placement);
                assert!(copies(&plan).iter().all(|copies| *copies == 1), "{plan:?}");
            }
        }
    }

    #[test]
    fn random_shares_are_even_and_unlike() {
        for nodes in [2, 3, 8, 100] {
            let plan = plan(1_000_000, nodes, Placement::Random);
            let (first, last) = (plan.holdings(0).native, plan.holdings(nodes - 1).native);
            let expected = 1e6 / nodes as f64;
            for share in [&first, &last] {
                // Six standard deviations of a binomial count.
                assert!((share.len() as f64 - expected).abs() < 6.0 * expected.sqrt(), "{nodes}: {share:?}");
            }
            assert!(first.runs().count() > 1000, "{nodes} nodes: no regularity");
            let other = Plan { seed: 8, ..plan.clone() };
            assert_ne!(first, other.holdings(0).native);
            assert_eq!(first, plan.holdings(0).native);
        }
    }

    #[test]
    fn holes_are_as_many_as_said_and_on_no_node() {
        for placement in [Placement::Holes, Placement::Random, Placement::Contiguous] {
            let plan = Plan { hole_share: 1e-3, ..plan(100_000, 3, placement) };
            assert_eq!(copies(&plan).iter().filter(|copies| **copies == 0).count(), 100, "{placement:?}");
        }
        let few = Plan { hole_share: 1e-9, ..plan(1000, 2, Placement::Holes) };
        assert_eq!(few.holes().len(), 1, "a share above zero is at least one hole");
        let all = Plan { hole_share: 1.0, ..plan(1000, 2, Placement::Holes) };
        assert!(all.holdings(0).native.is_empty());
    }

    #[test]
    fn dead_nodes_hold_nothing() {
        let plan = Plan { dead_nodes: 2, ..plan(1000, 4, Placement::RoundRobin) };
        assert!(plan.holdings(2).native.is_empty() && plan.holdings(3).native.is_empty());
        assert_eq!(plan.holdings(1).native.len(), 250);
    }

    #[test]
    fn the_papers_set_up_has_aliens_everywhere_and_one_frame_without_a_native() {
        let plan = plan(1000, 4, Placement::Aliens);
        let copies = copies(&plan);
        assert_eq!((copies[0], copies.iter().sum::<u32>()), (0, 999));
        for node in 0..4 {
            let Holdings { native, alien } = plan.holdings(node);
            assert_eq!(native.union(&alien), RunSet::range(0, 999));
            assert!(native.is_disjoint(&alien));
        }
    }
}
