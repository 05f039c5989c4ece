//! The strategies that decide file by file, and never take a decision back.

use crate::problem::{NOBODY, Problem};
use std::collections::BTreeSet;

/// Which of the holders that still have room takes a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The first one in the file's list, as VisIO does.
    First,
    /// The one that the fewest files without a rank ask for; the first of several.
    LeastDemand,
}

/// By file: its node, or [`NOBODY`]. The file with the fewest holders that have room is next; the
/// first of several.
pub(crate) fn scarcest_first(problem: &Problem, pick: Pick) -> Vec<u32> {
    let mut node_of_file = vec![NOBODY; problem.files()];
    let mut room = problem.room();
    let (begin, files) = problem.files_by_node();
    let mut demand: Vec<u32> = begin.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut open: Vec<u32> = (0..problem.files()).map(|file| problem.holders_of(file).len() as u32).collect();
    let mut queue: BTreeSet<(u32, u32)> =
        (0..problem.files()).filter(|file| open[*file] > 0).map(|file| (open[file], file as u32)).collect();
    while let Some((_, file)) = queue.pop_first() {
        let holders = problem.holders_of(file as usize);
        let mut free = holders.iter().copied().filter(|node| room[*node as usize] > 0);
        let node = match pick {
            Pick::First => free.next(),
            Pick::LeastDemand => free.min_by_key(|node| demand[*node as usize]),
        };
        let Some(node) = node else { continue };
        node_of_file[file as usize] = node;
        for holder in holders {
            demand[*holder as usize] -= 1;
        }
        let node = node as usize;
        room[node] -= 1;
        if room[node] > 0 {
            continue;
        }
        // The node is full: one holder less for each of its files that still waits.
        for other in &files[begin[node] as usize..begin[node + 1] as usize] {
            if node_of_file[*other as usize] == NOBODY && queue.remove(&(open[*other as usize], *other)) {
                open[*other as usize] -= 1;
                if open[*other as usize] > 0 {
                    queue.insert((open[*other as usize], *other));
                }
            }
        }
    }
    node_of_file
}

/// By file: its node, or [`NOBODY`]. Files come in an order drawn from `seed`; each goes to a
/// holder with room that is drawn, too.
pub(crate) fn first_come(problem: &Problem, seed: u64) -> Vec<u32> {
    let mut random = SplitMix(seed);
    let mut order: Vec<u32> = (0..problem.files() as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    let mut node_of_file = vec![NOBODY; problem.files()];
    let mut room = problem.room();
    for file in order {
        let free = |node: &&u32| room[**node as usize] > 0;
        let holders = problem.holders_of(file as usize);
        let count = holders.iter().filter(free).count();
        if count == 0 {
            continue;
        }
        let drawn = random.below(count as u64) as usize;
        if let Some(node) = holders.iter().filter(free).nth(drawn).copied() {
            node_of_file[file as usize] = node;
            room[node as usize] -= 1;
        }
    }
    node_of_file
}

/// SplitMix64 (Steele, Lea and Flood): equal on every machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0. The bias is below `bound` / 2⁶⁴.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
