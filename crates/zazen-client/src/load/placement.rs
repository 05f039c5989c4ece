//! Which node gets which copy of which frame. Pure: the same arguments give the same shares.
//!
//! Invariants: no node gets a frame twice, or one that it holds. Each frame ends on `copies` nodes,
//! unless there are fewer.

use zazen_core::RunSet;

/// What shall lie where.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The frames to hold.
    pub frames: &'a RunSet,
    /// What each node holds already.
    pub held: &'a [RunSet],
    /// Nodes that shall hold each frame; at least 1, and no more than there are nodes.
    pub copies: u32,
    /// The rack of each node; `None`: racks do not count.
    pub racks: Option<&'a [&'a str]>,
}

/// What each node fetches.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// By node.
    pub shares: Vec<RunSet>,
    /// Copies in all shares.
    pub missing: u64,
}

impl Wanted<'_> {
    /// Spreads the missing copies.
    ///
    /// One copy: contiguous blocks, so that each node reads long stretches. Several copies: frame i
    /// of those wanted goes to node i modulo nodes first, so that the blocks of a time step lie on
    /// all nodes. The second and later copies begin at a node that moves on by one for each round
    /// over the nodes, so that the frames of a dead node are on all others. With racks, the second
    /// copy goes to another rack than the first, and the third to the rack of the second.
    pub fn spread(&self) -> Spread {
        let nodes = self.held.len();
        if nodes == 0 {
            return Spread { shares: Vec::new(), missing: 0 };
        }
        if self.copies <= 1 {
            return self.in_blocks();
        }
        let wanted: Vec<RunSet> = self.held.iter().map(|held| held.intersection(self.frames)).collect();
        let mut cursors: Vec<_> = wanted.iter().map(|held| held.iter().peekable()).collect();
        let mut shares: Vec<Vec<u64>> = vec![Vec::new(); nodes];
        let mut missing = 0;
        for (index, number) in self.frames.iter().enumerate() {
            let mut holding = vec![false; nodes];
            for (node, cursor) in cursors.iter_mut().enumerate() {
                holding[node] = cursor.next_if(|next| *next == number).is_some();
            }
            let mut count = holding.iter().filter(|holds| **holds).count();
            for node in self.order(index) {
                if count >= self.copies as usize {
                    break;
                }
                if !holding[node] {
                    shares[node].push(number);
                    count += 1;
                    missing += 1;
                }
            }
        }
        let shares = shares.into_iter().map(|share| share.into_iter().collect()).collect();
        Spread { shares, missing }
    }

    fn in_blocks(&self) -> Spread {
        let held = RunSet::union_all(self.held.to_vec());
        let missing = self.frames.difference(&held);
        let nodes = self.held.len() as u128;
        let bound = |index: usize| (u128::from(missing.len()) * index as u128 / nodes) as u64;
        let share = |index: usize| missing.block(bound(index), bound(index + 1) - bound(index));
        Spread { shares: (0..self.held.len()).map(share).collect(), missing: missing.len() }
    }

    /// The nodes in the order in which frame `index` prefers them.
    fn order(&self, index: usize) -> Vec<usize> {
        let nodes = self.held.len();
        let first = index % nodes;
        if nodes == 1 {
            return vec![first];
        }
        let turn = index / nodes;
        let others = (0..nodes - 1).map(|step| (first + 1 + (turn + step) % (nodes - 1)) % nodes);
        let mut order: Vec<usize> = std::iter::once(first).chain(others).collect();
        let Some(racks) = self.racks else { return order };
        if let Some(second) = order.iter().copied().find(|node| racks[*node] != racks[first]) {
            // Stable: within a class, the order above counts.
            order.sort_by_key(|node| match *node {
                node if node == first => 0,
                node if node == second => 1,
                node if racks[node] == racks[second] => 2,
                _ => 3,
            });
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn set(numbers: &[u64]) -> RunSet {
        numbers.iter().copied().collect()
    }

    #[test]
    fn one_copy_is_spread_in_blocks() {
        let frames = RunSet::range(0, 9);
        let held = [set(&[0]), set(&[1])];
        let spread = Wanted { frames: &frames, held: &held, copies: 1, racks: None }.spread();
        assert_eq!(spread.shares, [RunSet::range(2, 5), RunSet::range(6, 9)]);
    }

    #[test]
    fn copies_of_a_dead_node_lie_on_all_others() {
        let frames = RunSet::range(0, 239);
        let held = vec![RunSet::new(); 5];
        let spread = Wanted { frames: &frames, held: &held, copies: 2, racks: None }.spread();
        let dead = &spread.shares[2];
        assert_eq!(dead.len(), 96);
        for (node, share) in spread.shares.iter().enumerate().filter(|(node, _)| *node != 2) {
            assert_eq!(share.intersection(dead).len(), 24, "node {node}");
        }
    }

    #[test]
    fn copies_go_to_two_racks() {
        let (frames, held) = (RunSet::range(0, 3), vec![RunSet::new(); 6]);
        let racks = ["a", "a", "b", "b", "c", "c"];
        let wanted = Wanted { frames: &frames, held: &held, copies: 3, racks: Some(&racks) };
        let nodes_of = |number: u64| -> Vec<usize> {
            (0..6).filter(|node| wanted.spread().shares[*node].contains(number)).collect()
        };
        assert_eq!((nodes_of(0), nodes_of(1), nodes_of(3)), (vec![0, 2, 3], vec![1, 2, 3], vec![3, 4, 5]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_frame_gets_its_copies(
            frames in prop::collection::btree_set(0u64..300, 0..80),
            held in prop::collection::vec(prop::collection::btree_set(0u64..300, 0..60), 1..7),
            copies in 1u32..5,
            racks in prop::option::of(prop::collection::vec(0usize..3, 7)),
        ) {
            let frames: RunSet = frames.into_iter().collect();
            let held: Vec<RunSet> = held.into_iter().map(|held| held.into_iter().collect()).collect();
            let copies = copies.min(held.len() as u32);
            let names: Option<Vec<&str>> = racks.as_ref()
                .map(|racks| racks[..held.len()].iter().map(|rack| ["a", "b", "c"][*rack]).collect());
            let spread = Wanted { frames: &frames, held: &held, copies, racks: names.as_deref() }.spread();
            let mut on: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            let mut fetched = 0;
            for (node, share) in spread.shares.iter().enumerate() {
                prop_assert!(share.intersection(&held[node]).is_empty());
                prop_assert!(share.difference(&frames).is_empty());
                fetched += share.len();
                for number in share.iter().chain(held[node].intersection(&frames).iter()) {
                    prop_assert!(on.entry(number).or_default().insert(node));
                }
            }
            prop_assert_eq!(fetched, spread.missing);
            for number in frames.iter() {
                let nodes = &on[&number];
                prop_assert!(nodes.len() >= copies as usize);
                let before = held.iter().filter(|held| held.contains(number)).count();
                prop_assert!(nodes.len() == copies as usize || nodes.len() == before);
                if let Some(racks) = &names && before == 0 && copies > 1 {
                    let distinct: BTreeSet<&str> = racks.iter().copied().collect();
                    let of_copies: BTreeSet<&str> = nodes.iter().map(|node| racks[*node]).collect();
                    prop_assert!(distinct.len() < 2 || of_copies.len() >= 2);
                }
            }
        }
    }
}
