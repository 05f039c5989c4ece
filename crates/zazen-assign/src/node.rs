//! Who shares a node with this rank, and the rank that tells it.

use crate::blocks::violation;
use crate::fingerprint::Draws;
use zazen_core::{Error, Result};
use zazen_wire::codec::{Reader, Writer};

/// This rank's place on its node.
#[derive(Debug)]
pub(crate) struct Node {
    /// The lowest rank of the node. A node is known by its leader's rank.
    pub(crate) leader: usize,
    /// How many ranks of the node are lower than this one.
    pub(crate) position: usize,
    /// Ranks of the node.
    pub(crate) ranks: usize,
    /// The other ranks, ascending; only the leader knows them.
    pub(crate) others: Vec<usize>,
}

impl Node {
    pub(crate) fn alone(rank: usize) -> Node {
        Node { leader: rank, position: 0, ranks: 1, others: Vec::new() }
    }

    pub(crate) fn leads(&self) -> bool {
        self.position == 0
    }

    /// The registrar's word for the rank at `position` of `members`.
    pub(crate) fn told(members: &[usize], position: usize) -> Vec<u8> {
        let mut writer = Writer::new();
        let mut number = |value: usize| writer.u32(value as u32);
        [members[0], position, members.len()].into_iter().for_each(&mut number);
        if position == 0 {
            members[1..].iter().copied().for_each(number);
        }
        writer.into_bytes()
    }

    /// That word for `rank` of `size`, from registrar `from`.
    pub(crate) fn read(from: usize, block: &[u8], rank: usize, size: usize) -> Result<Node> {
        const NAME: &str = "the members of a node";
        let mut reader = Reader::new(NAME, block);
        let short = |error| violation(NAME, from, "cut short").caused_by(error);
        let mut number = || Ok::<usize, Error>(reader.u32().map_err(short)? as usize);
        let (leader, position, ranks) = (number()?, number()?, number()?);
        let listed = if position == 0 { ranks.saturating_sub(1) } else { 0 };
        if reader.remaining() != 4 * listed {
            return Err(violation(NAME, from, "another length than announced"));
        }
        let others = (0..listed).map(|_| reader.u32().map(|rank| rank as usize).map_err(short));
        let others: Vec<usize> = others.collect::<Result<_>>()?;
        let ascend = std::iter::once(&rank).chain(&others).zip(&others).all(|(low, high)| low < high);
        let leads = position == 0 && leader == rank;
        let follows = position > 0 && leader < rank && position <= rank - leader;
        let fits =
            ascend && position < ranks && ranks <= size && others.last().is_none_or(|last| *last < size);
        if !fits || !(leads || follows) {
            return Err(violation(NAME, from, "such a node cannot be"));
        }
        Ok(Node { leader, position, ranks, others })
    }
}

/// The rank that is told the ranks of node `id`.
pub(crate) fn registrar(id: u128, size: usize) -> usize {
    let low = Draws::from_word(id as u64).next();
    let mixed = Draws::from_word(low ^ (id >> 64) as u64).next();
    ((u128::from(mixed) * size as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_registrars_come_back_and_others_are_refused() {
        let members = [3, 7, 8];
        for (position, rank) in members.into_iter().enumerate() {
            let word = Node::told(&members, position);
            let node = Node::read(0, &word, rank, 9).unwrap();
            assert_eq!((node.leader, node.position, node.ranks), (3, position, 3));
            assert_eq!(node.others, if position == 0 { vec![7, 8] } else { vec![] });
            for length in 0..word.len() {
                assert!(Node::read(0, &word[..length], rank, 9).is_err());
            }
            assert!(Node::read(0, &word, rank + 1, 9).is_err() || position > 0);
            assert!(Node::read(0, &word, 2, 9).is_err() && Node::read(0, &word, rank, 2).is_err());
        }
        for odd in [&[3, 7, 7][..], &[3, 8, 7], &[3, 9]] {
            assert!(Node::read(0, &Node::told(odd, 0), 3, 9).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn registrars_are_spread() {
        let mut counts = vec![0; 64];
        (0..6400u128).for_each(|id| counts[registrar(id << 64 | 5, 64)] += 1);
        assert!(counts.iter().all(|count| (50..160).contains(count)), "{counts:?}");
        assert!((0..100u128).all(|id| registrar(id, 1) == 0));
    }
}
