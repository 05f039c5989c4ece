//! Which rank's node holds each frame, found out without reading: two all-gathers.
//!
//! Invariant: every rank computes the same answer from the same messages; the error of one rank is
//! every rank's.

use super::Dataset;
use crate::agree::told_by_rank_0;
use std::collections::BTreeMap;
use zazen_assign::Collectives;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};

/// A frame that no node holds.
pub const NO_OWNER: i32 = -1;

/// What a node holds of the dataset.
#[derive(Clone, Debug, Default, PartialEq)]
struct Held {
    native: RunSet,
    alien: RunSet,
}

/// What a rank says of its node, or why it cannot: (kind code, message).
#[derive(Clone, Debug, PartialEq)]
struct Word(std::result::Result<(u128, Held), (u32, String)>);

impl Message for Word {
    const NAME: &'static str = "OwnersOfNode";

    fn write(&self, writer: &mut Writer) {
        match &self.0 {
            Ok((node, held)) => {
                writer.bool(true);
                writer.u64(*node as u64);
                writer.u64((*node >> 64) as u64);
                writer.runset(&held.native);
                writer.runset(&held.alien);
            }
            Err((kind, message)) => {
                writer.bool(false);
                writer.u32(*kind);
                writer.clipped_text(message);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Word> {
        Ok(Word(match reader.bool()? {
            true => {
                let node = u128::from(reader.u64()?) | u128::from(reader.u64()?) << 64;
                Ok((node, Held { native: reader.runset()?, alien: reader.runset()? }))
            }
            false => Err((reader.u32()?, reader.free_text()?)),
        }))
    }
}

/// A node of the job.
struct Node {
    /// Ascending.
    ranks: Vec<usize>,
    held: Held,
}

/// Which node holds which frames, alike on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Holders {
    /// The frames that exist.
    pub extent: RunSet,
    /// By rank, the index of its node in `held`.
    pub node_of_rank: Vec<usize>,
    /// By node, the frames that exist and that it holds.
    pub held: Vec<RunSet>,
}

impl Dataset {
    /// Which node holds which of the frames that exist, at one moment (collective). Nothing is
    /// read. Each node's first rank asks its own daemon, so no cluster key is needed. A node whose
    /// daemon does not answer holds nothing.
    pub fn holders(&mut self, collectives: &dyn Collectives) -> Result<Holders> {
        let (extent, nodes) = self.gathered(collectives)?;
        let mut node_of_rank = vec![0; collectives.size()];
        for (at, node) in nodes.iter().enumerate() {
            node.ranks.iter().for_each(|rank| node_of_rank[*rank] = at);
        }
        let held = nodes.iter().map(|node| node.held.native.union(&node.held.alien)).collect();
        Ok(Holders { extent, node_of_rank, held })
    }

    /// The frames that exist as rank 0 sees them, and the nodes.
    fn gathered(&mut self, collectives: &dyn Collectives) -> Result<(RunSet, Vec<Node>)> {
        let same_files = self.agree_on_names(collectives)?;
        let extent = told_by_rank_0(collectives, || self.extent())?;
        self.extent = Some(extent.clone());
        let held = match extent.first().zip(extent.last()) {
            Some((first, last)) => same_files.and_then(|()| self.query(first, last, 1)),
            None => same_files.map(|()| Default::default()),
        };
        let all = held.map(|(native, alien)| Held {
            native: native.intersection(&extent),
            alien: alien.intersection(&extent),
        });
        Ok((extent, gather(self.node, all, collectives)?))
    }

    /// The frames that exist, and for each of them, in ascending order, the rank whose node holds
    /// it; [`NO_OWNER`] if none does. Collective. Nothing is read.
    ///
    /// A native counts before an alien. If several nodes hold a frame alike, the node with the
    /// fewest frames per rank so far owns it; ties go to the node of the lowest rank. The ranks of
    /// a node own its frames in contiguous blocks.
    pub fn owners(&mut self, collectives: &dyn Collectives) -> Result<(RunSet, Vec<i32>)> {
        let (extent, nodes) = self.gathered(collectives)?;
        Ok((extent.clone(), deal(&nodes, &extent)?))
    }
}

/// The nodes of the job, each by its lowest rank.
fn gather(node: u128, held: Result<Held>, collectives: &dyn Collectives) -> Result<Vec<Node>> {
    let said = |held: &Result<Held>, with: bool| {
        let word = match held {
            Ok(held) if with => Ok((node, held.clone())),
            Ok(_) => Ok((node, Held::default())),
            Err(error) => Err((error.kind() as u32, error.to_string())),
        };
        Word(word).encode()
    };
    let ranks = understood(collectives.allgatherv(&said(&held, false))?)?;
    let is_first = ranks.iter().position(|(other, _)| *other == node) == Some(collectives.rank());
    // One rank speaks for its node.
    let spoken = understood(collectives.allgatherv(&said(&held, is_first))?)?;
    let mut at: BTreeMap<u128, usize> = BTreeMap::new();
    let mut nodes: Vec<Node> = Vec::new();
    for (rank, (node, held)) in spoken.into_iter().enumerate() {
        match at.get(&node) {
            Some(at) => nodes[*at].ranks.push(rank),
            None => {
                at.insert(node, nodes.len());
                nodes.push(Node { ranks: vec![rank], held });
            }
        }
    }
    Ok(nodes)
}

fn understood(words: Vec<Vec<u8>>) -> Result<Vec<(u128, Held)>> {
    let understand = |(rank, word): (usize, Vec<u8>)| match Word::decode(&word)?.0 {
        Ok(said) => Ok(said),
        Err((kind, message)) => {
            let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Unavailable);
            Err(Error::new(kind, format!("rank {rank}: {message}")))
        }
    };
    words.into_iter().enumerate().map(understand).collect()
}

/// The owner of each frame of `extent`, in ascending order.
fn deal(nodes: &[Node], extent: &RunSet) -> Result<Vec<i32>> {
    let count = usize::try_from(extent.len()).ok().filter(|count| *count <= i32::MAX as usize);
    let count = count.ok_or_else(|| {
        let text = format!("{} frames are too many to name the owner of each; use assign()", extent.len());
        Error::new(ErrorKind::TooLarge, text)
    })?;
    const NOBODY: u32 = u32::MAX;
    let mut node_of = vec![NOBODY; count];
    let mut load = vec![0u64; nodes.len()];
    let sets: [Vec<&RunSet>; 2] = [
        nodes.iter().map(|node| &node.held.native).collect(),
        nodes.iter().map(|node| &node.held.alien).collect(),
    ];
    for sets in &sets {
        // Frames with one holder come first, so that the others level the load.
        let mut several: Vec<usize> = Vec::new();
        let mut holders = vec![0u8; count];
        let mut only = vec![NOBODY; count];
        for (node, set) in sets.iter().enumerate() {
            each_position(set, extent, |at| {
                holders[at] = holders[at].saturating_add(1);
                only[at] = node as u32;
            });
        }
        for at in 0..count {
            match holders[at] {
                _ if node_of[at] != NOBODY => {}
                0 => {}
                1 => {
                    node_of[at] = only[at];
                    load[only[at] as usize] += 1;
                }
                _ => several.push(at),
            }
        }
        let mut numbers = several.iter().map(|at| extent.select(*at as u64));
        for at in &several {
            let Some(Some(number)) = numbers.next() else { break };
            let holding = (0..nodes.len()).filter(|node| sets[*node].contains(number));
            // Loads per rank are compared as fractions.
            let least = holding.min_by(|one, other| {
                let (one, other) = (*one, *other);
                let left = u128::from(load[one]) * nodes[other].ranks.len() as u128;
                left.cmp(&(u128::from(load[other]) * nodes[one].ranks.len() as u128))
            });
            if let Some(node) = least {
                node_of[*at] = node as u32;
                load[node] += 1;
            }
        }
    }
    let mut dealt = vec![0u64; nodes.len()];
    let owner = |node: u32| {
        if node == NOBODY {
            return NO_OWNER;
        }
        let at = node as usize;
        let ranks = &nodes[at].ranks;
        let rank = (u128::from(dealt[at]) * ranks.len() as u128 / u128::from(load[at].max(1))) as usize;
        dealt[at] += 1;
        ranks.get(rank).map_or(NO_OWNER, |rank| *rank as i32)
    };
    Ok(node_of.into_iter().map(owner).collect())
}

/// Calls `visit` with the position in `extent` of each number of `set`, which is a part of it.
fn each_position(set: &RunSet, extent: &RunSet, mut visit: impl FnMut(usize)) {
    let mut rest = set.iter().peekable();
    if rest.peek().is_none() {
        return;
    }
    for (at, number) in extent.iter().enumerate() {
        match rest.peek() {
            Some(next) if *next == number => {
                visit(at);
                rest.next();
            }
            Some(_) => {}
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zazen_assign::threads::run;

    fn node(ranks: &[usize], native: &[u64], alien: &[u64]) -> Node {
        let set = |numbers: &[u64]| numbers.iter().copied().collect::<RunSet>();
        Node { ranks: ranks.to_vec(), held: Held { native: set(native), alien: set(alien) } }
    }

    fn check(nodes: &[Node], extent: &[u64], expected: &[i32]) {
        let extent: RunSet = extent.iter().copied().collect();
        assert_eq!(deal(nodes, &extent).unwrap(), expected);
    }

    #[test]
    fn the_rules_as_written() {
        let two = || [node(&[0, 2], &[1, 2, 3, 4], &[7]), node(&[1], &[5], &[7, 9])];
        check(&two(), &[1, 2, 3, 4, 5, 7, 9, 11], &[0, 0, 0, 2, 1, 2, 1, -1]);
        // A native beside an alien; several natives level the load.
        check(&[node(&[0], &[1], &[]), node(&[1], &[], &[1])], &[1], &[0]);
        let both = [node(&[0], &[1, 2, 3, 4], &[]), node(&[1], &[1, 2, 3, 4, 5], &[])];
        check(&both, &[1, 2, 3, 4, 5], &[0, 0, 1, 0, 1]);
        check(&[], &[1, 2], &[-1, -1]);
        check(&[node(&[0], &[], &[])], &[], &[]);
    }

    proptest! {
        /// Every frame is owned by a rank of a node that holds it, as a native if any does; the
        /// ranks of a node have blocks of about equal length.
        #[test]
        fn owners_hold_what_they_own(
            extent in prop::collection::btree_set(0u64..400, 0..120),
            held in prop::collection::vec(
                (prop::collection::btree_set(0u64..400, 0..90),
                 prop::collection::btree_set(0u64..400, 0..90)), 1..5),
            ranks in prop::collection::vec(0usize..5, 1..9),
        ) {
            let ranks: Vec<usize> = ranks.into_iter().map(|node| node % held.len()).collect();
            let answers = run(ranks.len(), |collectives| {
                let at = ranks[collectives.rank()];
                let (native, alien) = &held[at];
                let cut = |set: &std::collections::BTreeSet<u64>| -> RunSet {
                    set.intersection(&extent).copied().collect() };
                let mine = Held { native: cut(native), alien: cut(alien) };
                let nodes = gather(at as u128 + (1 << 100), Ok(mine), collectives)?;
                deal(&nodes, &extent.iter().copied().collect())
            });
            let answers: Vec<Vec<i32>> = answers.into_iter().map(Result::unwrap).collect();
            for answer in &answers {
                prop_assert_eq!(answer, &answers[0]);
            }
            let present: std::collections::BTreeSet<usize> = ranks.iter().copied().collect();
            for (number, owner) in extent.iter().zip(&answers[0]) {
                let natives = present.iter().any(|node| held[*node].0.contains(number));
                let aliens = present.iter().any(|node| held[*node].1.contains(number));
                match usize::try_from(*owner) {
                    Ok(rank) if natives => prop_assert!(held[ranks[rank]].0.contains(number)),
                    Ok(rank) => prop_assert!(aliens && held[ranks[rank]].1.contains(number)),
                    Err(_) => prop_assert!(!natives && !aliens),
                }
            }
            for node in present {
                let of_node: Vec<usize> = (0..ranks.len()).filter(|rank| ranks[*rank] == node).collect();
                let counts: Vec<usize> = of_node.iter()
                    .map(|rank| answers[0].iter().filter(|owner| **owner == *rank as i32).count()).collect();
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", counts);
            }
        }
    }

    #[test]
    fn one_ranks_error_is_every_ranks() {
        let answers = run(3, |collectives| {
            let mine = match collectives.rank() {
                1 => Err(Error::new(ErrorKind::Busy, "no")),
                _ => Ok(Held::default()),
            };
            gather(7, mine, collectives).map(drop)
        });
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Busy, "rank 1: no".to_owned()));
        }
    }
}
