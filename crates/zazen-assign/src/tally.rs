//! What all ranks know about all slices and nodes after an exchange of holdings, and who reads how
//! much. Equal on all ranks, so the machines of one process hold it once.

use crate::Rules;
use crate::blocks::violation;
use crate::rules::{even, level, part};
use std::sync::{Arc, OnceLock};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::codec::{Reader, Writer};

const NAME: &str = "tally";
/// Numbers of an entry.
const NUMBERS: usize = 7;

/// What one rank adds to the tally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contribution {
    /// The leader of its node.
    pub(crate) leader: usize,
    /// If it leads: frames that its node holds and may read, some of which it may lose.
    pub(crate) offered: u64,
    /// In its slice: frames read as natives and as aliens, contested ones, residue, and how often
    /// an alien is knocked out.
    pub(crate) native: u64,
    pub(crate) alien: u64,
    pub(crate) contested: u64,
    pub(crate) residue: u64,
    pub(crate) knocked: u64,
}

impl Contribution {
    /// A mask of the numbers that are not 0, and these; none of them: no bytes.
    pub(crate) fn encode(&self, rank: usize) -> Vec<u8> {
        let numbers = [
            (rank - self.leader) as u64,
            self.offered,
            self.native,
            self.alien,
            self.contested,
            self.residue,
            self.knocked,
        ];
        let present = || numbers.iter().enumerate().filter(|(_, number)| **number > 0);
        let mut writer = Writer::new();
        writer.u8(present().fold(0, |mask, (at, _)| mask | 1 << at));
        present().for_each(|(_, number)| writer.u64(*number));
        writer.into_bytes()
    }

    fn decode(bytes: &[u8], rank: usize) -> Result<Contribution> {
        let parse = || {
            let mut reader = Reader::new(NAME, bytes);
            let mask = reader.u8()?;
            let mut numbers = [0; NUMBERS];
            for (at, number) in numbers.iter_mut().enumerate() {
                if mask >> at & 1 == 1 {
                    *number = reader.u64()?;
                }
            }
            if mask >> NUMBERS != 0 || reader.remaining() > 0 {
                return Err(reader.malformed("more than its numbers"));
            }
            Ok(numbers)
        };
        let numbers =
            parse().map_err(|error| violation(NAME, rank, "it does not decode").caused_by(error))?;
        let [below, offered, native, alien, contested, residue, knocked] = numbers;
        let leader = usize::try_from(below).ok().and_then(|below| rank.checked_sub(below));
        let leader = leader.ok_or_else(|| violation(NAME, rank, "its leader does not exist"))?;
        if leader != rank && offered > 0 {
            return Err(violation(NAME, rank, "it offered frames and does not lead its node"));
        }
        Ok(Contribution { leader, offered, native, alien, contested, residue, knocked })
    }
}

/// The entries of all ranks.
#[derive(Debug)]
pub(crate) struct Tally {
    /// By rank: the leader of its node.
    leaders: Vec<u32>,
    /// By rank: ranks of the node that it leads, or 0.
    ranks: Vec<u32>,
    /// By leader; 0 for other ranks.
    pub(crate) offered: Vec<u64>,
    /// By slice; nothing at all if no frame is contested.
    pub(crate) contested: Vec<u64>,
    /// By slice: frames of residue in the slices before. One more than there are ranks.
    residue_before: Vec<u64>,
    pub(crate) native: u64,
    pub(crate) alien: u64,
    pub(crate) contested_total: u64,
    pub(crate) knocked: u64,
    /// The deal, if the offers are the loads.
    pub(crate) undisputed: OnceLock<Arc<Dealt>>,
}

impl Tally {
    /// Every rank that gets the same blocks gets the same tally or the same error.
    pub(crate) fn of(blocks: &[Vec<u8>]) -> Result<Tally> {
        let mut tally = Tally {
            leaders: Vec::with_capacity(blocks.len()),
            ranks: vec![0; blocks.len()],
            offered: Vec::with_capacity(blocks.len()),
            contested: vec![0; blocks.len()],
            residue_before: Vec::with_capacity(blocks.len() + 1),
            native: 0,
            alien: 0,
            contested_total: 0,
            knocked: 0,
            undisputed: OnceLock::new(),
        };
        let add = |sum: &mut u64, value: u64, rank: usize| {
            *sum =
                sum.checked_add(value).ok_or_else(|| violation(NAME, rank, "its numbers are too large"))?;
            Ok::<u64, Error>(*sum)
        };
        let mut residue = 0;
        for (rank, bytes) in blocks.iter().enumerate() {
            let entry = Contribution::decode(bytes, rank)?;
            if entry.leader < rank && tally.leaders[entry.leader] as usize != entry.leader {
                return Err(violation(NAME, rank, "the leader that it names follows another"));
            }
            tally.leaders.push(entry.leader as u32);
            tally.ranks[entry.leader] += 1;
            tally.offered.push(entry.offered);
            tally.contested[rank] = entry.contested;
            tally.residue_before.push(residue);
            add(&mut residue, entry.residue, rank)?;
            add(&mut tally.native, entry.native, rank)?;
            add(&mut tally.alien, entry.alien, rank)?;
            add(&mut tally.contested_total, entry.contested, rank)?;
            add(&mut tally.knocked, entry.knocked, rank)?;
        }
        tally.residue_before.push(residue);
        if tally.contested_total == 0 {
            tally.contested = Vec::new();
        }
        Ok(tally)
    }

    pub(crate) fn residue(&self) -> u64 {
        self.residue_before.last().copied().unwrap_or(0)
    }

    /// Frames of residue in the slices before `rank`'s.
    pub(crate) fn residue_before(&self, rank: usize) -> u64 {
        self.residue_before[rank]
    }

    pub(crate) fn leads(&self, rank: usize) -> bool {
        self.leaders.get(rank).is_some_and(|leader| *leader as usize == rank)
    }

    /// Ranks of the node that `leader` leads.
    pub(crate) fn ranks(&self, leader: usize) -> u64 {
        u64::from(self.ranks[leader]).max(1)
    }

    /// The rank that decides the contested frames of all slices: the lowest of the ranks that have
    /// most of them.
    pub(crate) fn decider(&self) -> usize {
        let most = self.contested.iter().copied().max().unwrap_or(0);
        self.contested.iter().position(|count| *count == most).unwrap_or(0)
    }

    /// Checks that every frame of the target is native, alien or residue.
    pub(crate) fn check(&self, target_len: u64) -> Result<()> {
        let (held, residue) = (u128::from(self.native) + u128::from(self.alien), self.residue());
        if held + u128::from(residue) == u128::from(target_len) && u128::from(self.contested_total) <= held {
            return Ok(());
        }
        Err(odd(format!("natives and aliens {held}, residue {residue}, of {target_len} frames")))
    }

    /// Checks that every frame that is not residue belongs to a node in `loads` or is contested.
    pub(crate) fn check_loads(&self, loads: &[u64]) -> Result<()> {
        let owned = loads.iter().map(|load| u128::from(*load)).sum::<u128>();
        let held = u128::from(self.native) + u128::from(self.alien);
        if owned + u128::from(self.contested_total) == held {
            return Ok(());
        }
        let contested = self.contested_total;
        Err(odd(format!("natives and aliens {held}, owned {owned}, contested {contested}")))
    }
}

pub(crate) fn odd(what: String) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("the ranks' tallies do not add up: {what}; run one version on all ranks"),
    )
}

/// Who reads how much.
#[derive(Debug)]
pub(crate) struct Dealt {
    /// By leader: frames that its node reads from its cache.
    pub(crate) loads: Vec<u64>,
    /// By rank: where its block of the residue begins. One more than there are ranks.
    starts: Vec<u64>,
}

impl Dealt {
    pub(crate) fn of(rules: Rules, tally: &Tally, loads: Vec<u64>) -> Dealt {
        let (size, total) = (loads.len(), tally.residue());
        let quotas = match rules {
            Rules::Paper => even(size, total),
            Rules::Full => {
                let mut seen = vec![0; size];
                let by_rank = tally.leaders.iter().map(|leader| {
                    let leader = *leader as usize;
                    seen[leader] += 1;
                    part(tally.ranks[leader] as usize, loads[leader], seen[leader] - 1).1
                });
                level(&by_rank.collect::<Vec<u64>>(), total)
            }
        };
        let mut starts = vec![0];
        starts.extend(quotas.iter().scan(0, |end, quota| {
            *end += quota;
            Some(*end)
        }));
        Dealt { loads, starts }
    }

    /// `rank`'s block of the residue: from where to where.
    pub(crate) fn block(&self, rank: usize) -> (u64, u64) {
        (self.starts[rank], self.starts[rank + 1])
    }

    /// The ranks whose blocks overlap `first .. end`, and the overlaps.
    pub(crate) fn overlaps(&self, first: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let ranks = self.starts.len() - 1;
        let from = self.starts.partition_point(|start| *start <= first).saturating_sub(1);
        let blocks = (from..ranks).map(|rank| (rank, self.block(rank)));
        let blocks = blocks.take_while(move |(_, (start, _))| *start < end);
        let cut = move |(rank, (start, stop)): (usize, (u64, u64))| (rank, start.max(first), stop.min(end));
        blocks.map(cut).filter(|(_, low, high)| low < high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(leader: usize, offered: u64, residue: u64) -> Contribution {
        Contribution { leader, offered, residue, ..Contribution::default() }
    }

    #[test]
    fn golden_bytes_of_an_entry_and_damage() {
        let mut full =
            Contribution { leader: 3, native: 4, alien: 5, contested: 6, knocked: 7, ..entry(3, 0, 8) };
        assert_eq!(Contribution::default().encode(0), [0]);
        let mut expected = vec![0b111_1101];
        [2u64, 4, 5, 6, 8, 7].iter().for_each(|number| expected.extend(number.to_le_bytes()));
        assert_eq!(full.encode(5), expected);
        assert_eq!(Contribution::decode(&expected, 5).unwrap(), full);
        full.offered = 1;
        assert!(Contribution::decode(&full.encode(5), 5).is_err(), "only leaders offer");
        assert!(Contribution::decode(&expected, 1).is_err(), "a leader below 0");
        assert!(
            Contribution::decode(&expected[..48], 5).is_err() && Contribution::decode(&[128], 0).is_err()
        );
        assert!(Contribution::decode(&[0, 0], 0).is_err() && Contribution::decode(&[], 0).is_err());
    }

    #[test]
    fn a_tally_gives_every_rank_its_block() {
        let entries = [entry(0, 10, 0), entry(1, 0, 9), entry(0, 0, 0), entry(3, 1, 11)];
        let blocks: Vec<Vec<u8>> =
            entries.iter().enumerate().map(|(rank, entry)| entry.encode(rank)).collect();
        let tally = Tally::of(&blocks).unwrap();
        assert_eq!((tally.ranks(0), tally.ranks(1), tally.residue()), (2, 1, 20));
        assert!(tally.leads(3) && !tally.leads(2) && !tally.leads(4));
        assert_eq!((0..4).map(|rank| tally.residue_before(rank)).collect::<Vec<_>>(), [0, 0, 9, 9]);
        // By rank 5, 0, 5, 1 frames; 20 more make 8, 8, 8, 7.
        let dealt = Dealt::of(Rules::Full, &tally, tally.offered.clone());
        assert_eq!(
            (0..4).map(|rank| dealt.block(rank)).collect::<Vec<_>>(),
            [(0, 3), (3, 11), (11, 14), (14, 20)]
        );
        assert_eq!(dealt.overlaps(0, 9).collect::<Vec<_>>(), [(0, 0, 3), (1, 3, 9)]);
        assert_eq!(dealt.overlaps(9, 20).collect::<Vec<_>>(), [(1, 9, 11), (2, 11, 14), (3, 14, 20)]);
        assert_eq!(dealt.overlaps(4, 4).count(), 0);
        let bad = |rank: usize, entry: Contribution| {
            let mut blocks = blocks.clone();
            blocks[rank] = entry.encode(rank);
            Tally::of(&blocks).is_err()
        };
        assert!(bad(3, entry(2, 0, 0)), "its leader follows another");
        assert!(bad(3, entry(3, 0, u64::MAX)), "sums that wrap");
    }
}
