//! Byte-balanced matching: every file that a rank holds is read locally, and the ranks read about
//! equally many bytes.

use crate::problem::{NOBODY, Problem};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// How many files a chain of moves may have.
const CHAIN_MAX: usize = 3;

/// By file: its rank. The largest file is next, and goes to the holder's rank with the fewest
/// bytes. Files that no rank holds come last, largest first, each to the rank with the fewest bytes
/// of all. Then the fullest rank gives files away, until it can't or has no more than `bound`
/// bytes.
pub(crate) fn balanced(problem: &Problem, bound: u64) -> Vec<u32> {
    let mut rank_of_file = largest_first(problem);
    Balance::of(problem, &mut rank_of_file).improve(bound);
    rank_of_file
}

fn largest_first(problem: &Problem) -> Vec<u32> {
    let mut order: Vec<u32> = (0..problem.files() as u32).collect();
    order.sort_by_key(|file| (Reverse(problem.bytes_of(*file as usize)), *file));
    let mut load = vec![0_u64; problem.ranks()];
    // By node: its ranks by their bytes.
    let mut on_node: Vec<BinaryHeap<Reverse<(u64, u32)>>> = (0..problem.nodes())
        .map(|node| problem.ranks_of(node).iter().map(|rank| Reverse((0, *rank))).collect())
        .collect();
    let mut rank_of_file = vec![NOBODY; problem.files()];
    let mut remote = Vec::new();
    for file in order {
        let least = |node: &&u32| on_node[**node as usize].peek().map(|Reverse((bytes, _))| *bytes);
        let Some(node) = problem.holders_of(file as usize).iter().min_by_key(least) else {
            remote.push(file);
            continue;
        };
        if let Some(mut top) = on_node[*node as usize].peek_mut() {
            top.0.0 += problem.bytes_of(file as usize);
            rank_of_file[file as usize] = top.0.1;
            load[top.0.1 as usize] = top.0.0;
        }
    }
    let mut of_all: BinaryHeap<Reverse<(u64, u32)>> =
        load.iter().enumerate().map(|(rank, bytes)| Reverse((*bytes, rank as u32))).collect();
    for file in remote {
        if let Some(mut top) = of_all.peek_mut() {
            top.0.0 += problem.bytes_of(file as usize);
            rank_of_file[file as usize] = top.0.1;
        }
    }
    rank_of_file
}

/// Ranks, their bytes and their files, while files move.
struct Balance<'a> {
    problem: &'a Problem,
    rank_of_file: &'a mut [u32],
    /// By rank: its bytes.
    load: Vec<u64>,
    /// By rank: its files.
    files: Vec<Vec<u32>>,
    /// (bytes, rank), the fullest last.
    by_load: BTreeSet<(u64, u32)>,
}

impl<'a> Balance<'a> {
    fn of(problem: &'a Problem, rank_of_file: &'a mut [u32]) -> Self {
        let mut load = vec![0; problem.ranks()];
        let mut files = vec![Vec::new(); problem.ranks()];
        for (file, rank) in rank_of_file.iter().enumerate() {
            load[*rank as usize] += problem.bytes_of(file);
            files[*rank as usize].push(file as u32);
        }
        let by_load = load.iter().enumerate().map(|(rank, bytes)| (*bytes, rank as u32)).collect();
        Balance { problem, rank_of_file, load, files, by_load }
    }

    /// Moves files from holder to holder while this leaves the fullest rank with fewer bytes, and
    /// makes no other as full.
    fn improve(&mut self, bound: u64) {
        // Each round moves a file off the fullest rank: as many rounds as files are plenty.
        for _ in 0..self.problem.files() {
            let Some((most, fullest)) = self.by_load.last().copied() else { return };
            let mut chain = Vec::new();
            if most <= bound || !self.give_away(fullest, 0, most, &mut chain) {
                return;
            }
            for (file, to) in chain {
                self.shift(file, to);
            }
        }
    }

    /// Finds files that `rank`, which is about to get `more` bytes, can give away so that it and
    /// all receivers stay below `most`, which the fullest rank has. The chain lists each file and
    /// its new rank.
    fn give_away(&self, rank: u32, more: u64, most: u64, chain: &mut Vec<(u32, u32)>) -> bool {
        let left = |file: &u32| self.load[rank as usize] + more - self.problem.bytes_of(*file as usize);
        let mut receivers = Vec::new();
        for file in self.files[rank as usize].iter().filter(|file| left(file) < most) {
            let bytes = self.problem.bytes_of(*file as usize);
            for node in self.problem.holders_of(*file as usize) {
                let ranks = self.problem.ranks_of(*node as usize).iter();
                let least = ranks
                    .filter(|to| **to != rank && self.load[**to as usize] < most)
                    .filter(|to| chain.iter().all(|(_, taken)| taken != *to))
                    .min_by_key(|to| self.load[**to as usize]);
                if let Some(to) = least {
                    let then = self.load[*to as usize] + bytes;
                    if bytes > 0 && then < most {
                        chain.push((*file, *to));
                        return true;
                    }
                    receivers.push((then, bytes, *file, *to));
                }
            }
        }
        if chain.len() + 1 >= CHAIN_MAX {
            return false;
        }
        receivers.sort_unstable();
        for (_, bytes, file, to) in receivers.into_iter().filter(|(_, bytes, ..)| *bytes > 0) {
            chain.push((file, to));
            if self.give_away(to, bytes, most, chain) {
                return true;
            }
            chain.pop();
        }
        false
    }

    fn shift(&mut self, file: u32, to: u32) {
        let from = std::mem::replace(&mut self.rank_of_file[file as usize], to);
        let bytes = self.problem.bytes_of(file as usize);
        if let Some(at) = self.files[from as usize].iter().position(|other| *other == file) {
            self.files[from as usize].swap_remove(at);
        }
        self.files[to as usize].push(file);
        self.set_load(from, self.load[from as usize] - bytes);
        self.set_load(to, self.load[to as usize] + bytes);
    }

    fn set_load(&mut self, rank: u32, bytes: u64) {
        let before = std::mem::replace(&mut self.load[rank as usize], bytes);
        self.by_load.remove(&(before, rank));
        self.by_load.insert((bytes, rank));
    }
}
