//! Tells which blocks of a log may hold a frame number, without reading the blocks.
//!
//! It keeps the smallest and the largest frame number of each block of 64 records, the same for
//! each 64 blocks, and so on: a quarter of a byte per record. Records may arrive in any order. A
//! log that arrived in ascending order has one candidate block per number. A shuffled log has many;
//! the caller notices and sorts it.

use zazen_core::RunSet;

/// Records in a block.
pub(crate) const BLOCK_RECORDS: u64 = 64;
const FANOUT: u64 = 64;

/// Smallest and largest number of each block, in levels; see the module.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    levels: Vec<Vec<(u64, u64)>>,
    records: u64,
}

impl Fences {
    /// Takes the frame number of the next record.
    pub(crate) fn push(&mut self, number: u64) {
        let mut slot = self.records / BLOCK_RECORDS;
        self.records += 1;
        for level in 0.. {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let is_top = level + 1 == self.levels.len();
            let fences = &mut self.levels[level];
            match fences.get_mut(slot as usize) {
                Some((low, high)) => (*low, *high) = ((*low).min(number), (*high).max(number)),
                None => fences.push((number, number)),
            }
            if is_top {
                if fences.len() == 2 {
                    self.add_level();
                }
                return;
            }
            slot /= FANOUT;
        }
    }

    /// Adds a level above the top one, which has just got its second entry.
    fn add_level(&mut self) {
        let Some(top) = self.levels.last() else { return };
        let low = top.iter().map(|fence| fence.0).min().unwrap_or(0);
        let high = top.iter().map(|fence| fence.1).max().unwrap_or(0);
        self.levels.push(vec![(low, high)]);
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> u64 {
        self.records.div_ceil(BLOCK_RECORDS)
    }

    /// The blocks that may hold `number`, ascending.
    pub(crate) fn candidates(&self, number: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(block) = self.next(from, |low, high| low <= number && number <= high) {
            found.push(block);
            from = block + 1;
        }
        found
    }

    /// The first block from `from` on that may hold one of `numbers`.
    pub(crate) fn next_of(&self, from: u64, numbers: &RunSet) -> Option<u64> {
        self.next(from, |low, high| numbers.rank(high + 1) > numbers.rank(low))
    }

    fn next(&self, from: u64, matches: impl Fn(u64, u64) -> bool) -> Option<u64> {
        let mut block = from;
        while block < self.blocks() {
            // Take the highest level whose entry begins at this block, then go down while it
            // matches.
            let mut level = 0;
            let mut span = 1;
            while level + 1 < self.levels.len() && block.is_multiple_of(span * FANOUT) {
                level += 1;
                span *= FANOUT;
            }
            loop {
                let (low, high) = self.levels[level][(block / span) as usize];
                if !matches(low, high) {
                    block += span;
                    break;
                }
                if level == 0 {
                    return Some(block);
                }
                level -= 1;
                span /= FANOUT;
            }
        }
        None
    }

    /// Heap bytes held.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<(u64, u64)>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_env::SeededRandom;

    fn check(numbers: &[u64], seed: u64) {
        let mut fences = Fences::default();
        numbers.iter().for_each(|number| fences.push(*number));
        let blocks: Vec<(u64, u64)> = numbers
            .chunks(BLOCK_RECORDS as usize)
            .map(|block| (*block.iter().min().unwrap(), *block.iter().max().unwrap()))
            .collect();
        assert_eq!(fences.blocks(), blocks.len() as u64);
        let mut random = SeededRandom::new(seed);
        let top = numbers.iter().max().map_or(10, |top| top + 10);
        for _ in 0..50 {
            let number = random.below(top);
            let expected: Vec<u64> = (0..)
                .zip(&blocks)
                .filter(|(_, (low, high))| (*low..=*high).contains(&number))
                .map(|(at, _)| at)
                .collect();
            assert_eq!(fences.candidates(number), expected, "number {number}, seed {seed}");
            let set: RunSet = (0..3).map(|_| random.below(top)).collect();
            let from = random.below(blocks.len() as u64 + 1);
            let expected = (0..).zip(&blocks).find(|(at, (low, high))| {
                *at >= from && set.iter().any(|number| (*low..=*high).contains(&number))
            });
            assert_eq!(fences.next_of(from, &set), expected.map(|(at, _)| at), "seed {seed}");
        }
    }

    #[test]
    fn agrees_with_a_plain_list_in_any_order() {
        check(&[], 1);
        check(&[5], 2);
        for (seed, count) in [(3, 64), (4, 65), (5, 4_096), (6, 4_097), (7, 300_000)] {
            let mut numbers: Vec<u64> = (0..count).map(|at| at * 3).collect();
            check(&numbers, seed);
            numbers.reverse();
            check(&numbers, seed);
            let mut random = SeededRandom::new(seed);
            numbers.iter_mut().for_each(|number| *number = random.below(1_000_000));
            check(&numbers, seed);
        }
    }
}
