//! The strategies by name, and what each result says about itself.

use crate::matching::{Weighted, heaviest};
use crate::problem::{NOBODY, Problem};
use crate::{bytes, flow, greedy};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use zazen_core::{Error, ErrorKind, Result};

/// How files are given to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// File i goes to rank i mod R, wherever it lies: what readers do that know no places.
    Blind,
    /// Files come in an order that the seed draws; each goes to a drawn holder with room.
    FirstCome,
    /// VisIO: the file with the fewest holders that have room goes to the first of these holders.
    /// What is left goes to the first ranks with room, in the files' order.
    Scarcest,
    /// As [`Strategy::Scarcest`], but to the holder that the fewest waiting files ask for.
    LeastDemand,
    /// No map has fewer remote reads (maximum flow).
    Optimal,
    /// Every file that a rank holds is read locally; the largest file first, to the rank with the
    /// fewest bytes; then the fullest ranks give files away. Ranks may get any number of files.
    Bytes,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 6] = [
        Strategy::Blind,
        Strategy::FirstCome,
        Strategy::Scarcest,
        Strategy::LeastDemand,
        Strategy::Optimal,
        Strategy::Bytes,
    ];

    /// The strategy's name in scenarios, on the command line and in Python.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Blind => "blind",
            Strategy::FirstCome => "first-come",
            Strategy::Scarcest => "scarcest",
            Strategy::LeastDemand => "least-demand",
            Strategy::Optimal => "optimal",
            Strategy::Bytes => "bytes",
        }
    }
}

impl std::str::FromStr for Strategy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name() == name).ok_or_else(|| {
            let names: Vec<_> = Strategy::ALL.iter().map(|strategy| strategy.name()).collect();
            let context = format!("strategy: there is no {name:?}; there are {}", names.join(", "));
            Error::new(ErrorKind::InvalidArgument, context)
        })
    }
}

/// Who reads what, and how good that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// By file: the rank that reads it.
    pub rank_of_file: Vec<u32>,
    /// Files that their rank's node does not hold.
    pub remote: u64,
    /// No map of this strategy's kind has fewer remote files.
    pub bound: u64,
    /// The most bytes that a rank reads.
    pub bytes_max: u64,
    /// Bytes that a rank reads on average, rounded down.
    pub bytes_mean: u64,
    /// In no map of this strategy's kind does every rank read fewer bytes.
    pub bytes_bound: u64,
}

impl Matched {
    /// By rank: its files, ascending.
    pub fn files_by_rank(&self, ranks: usize) -> Vec<Vec<u32>> {
        let mut files = vec![Vec::new(); ranks];
        for (file, rank) in self.rank_of_file.iter().enumerate() {
            files[*rank as usize].push(file as u32);
        }
        files
    }
}

/// Gives every file of `problem` to exactly one rank. `seed` matters to [`Strategy::FirstCome`]
/// only.
pub fn match_files(problem: &Problem, strategy: Strategy, seed: u64) -> Matched {
    let best = || heaviest(&weighted(problem), greedy::scarcest_first(problem, greedy::Pick::LeastDemand));
    let counting = |node_of_file: &[u32], rest| spread(problem, node_of_file, rest);
    let bytes = strategy == Strategy::Bytes;
    let bytes_bound = if bytes { flow::local_bound(problem) } else { flow::least(problem) };
    let (rank_of_file, optimal) = match strategy {
        Strategy::Blind => {
            let ranks = problem.ranks();
            ((0..problem.files()).map(|file| (file % ranks) as u32).collect(), None)
        }
        Strategy::FirstCome => (counting(&greedy::first_come(problem, seed), Rest::First), None),
        Strategy::Scarcest => {
            (counting(&greedy::scarcest_first(problem, greedy::Pick::First), Rest::First), None)
        }
        Strategy::LeastDemand => {
            (counting(&greedy::scarcest_first(problem, greedy::Pick::LeastDemand), Rest::FewestBytes), None)
        }
        Strategy::Optimal => {
            let nodes = best();
            (counting(&nodes, Rest::FewestBytes), Some(without_node(&nodes)))
        }
        Strategy::Bytes => (bytes::balanced(problem, bytes_bound), None),
    };
    let local = |(file, rank): (usize, &u32)| problem.is_local(file, *rank as usize);
    let remote = rank_of_file.iter().enumerate().filter(|pair| !local(*pair)).count() as u64;
    let mut load = vec![0_u64; problem.ranks()];
    for (file, rank) in rank_of_file.iter().enumerate() {
        load[*rank as usize] += problem.bytes_of(file);
    }
    Matched {
        remote,
        bound: match optimal {
            Some(bound) => bound,
            None if bytes => {
                (0..problem.files()).filter(|file| problem.holders_of(*file).is_empty()).count() as u64
            }
            None => without_node(&best()),
        },
        bytes_max: load.iter().copied().max().unwrap_or(0),
        bytes_mean: load.iter().sum::<u64>() / problem.ranks() as u64,
        bytes_bound,
        rank_of_file,
    }
}

/// Each file weighs 1 on its holders.
fn weighted(problem: &Problem) -> Weighted {
    let mut begin = vec![0];
    let mut places = Vec::new();
    for file in 0..problem.files() {
        places.extend(problem.holders_of(file).iter().map(|node| (*node, 1)));
        begin.push(places.len() as u32);
    }
    Weighted { begin, places, room: problem.room() }
}

fn without_node(node_of_file: &[u32]) -> u64 {
    node_of_file.iter().filter(|node| **node == NOBODY).count() as u64
}

/// Which rank with room takes a file that no node with room holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The first one, in the files' order, as VisIO does.
    First,
    /// The one with the fewest bytes, largest file first.
    FewestBytes,
}

/// Gives the files of each node to its ranks, and the files without a node to any. By file: its
/// rank.
///
/// On a node, the largest file is next, and goes to the rank with the fewest bytes that has room.
pub(crate) fn spread(problem: &Problem, node_of_file: &[u32], rest: Rest) -> Vec<u32> {
    let each = problem.files_per_rank();
    let mut order: Vec<u32> = (0..problem.files() as u32).collect();
    order.sort_by_key(|file| (Reverse(problem.bytes_of(*file as usize)), *file));
    let mut rank_of_file = vec![NOBODY; problem.files()];
    let mut load = vec![(0_u64, 0_usize); problem.ranks()];
    let mut on_node: Vec<BinaryHeap<Reverse<(u64, u32)>>> = (0..problem.nodes())
        .map(|node| problem.ranks_of(node).iter().map(|rank| Reverse((0, *rank))).collect())
        .collect();
    for file in &order {
        let node = node_of_file[*file as usize];
        if node == NOBODY {
            continue;
        }
        if let Some(Reverse((bytes, rank))) = on_node[node as usize].pop() {
            let bytes = bytes + problem.bytes_of(*file as usize);
            let files = load[rank as usize].1 + 1;
            load[rank as usize] = (bytes, files);
            rank_of_file[*file as usize] = rank;
            if files < each {
                on_node[node as usize].push(Reverse((bytes, rank)));
            }
        }
    }
    let with_room = (0..problem.ranks() as u32).filter(|rank| load[*rank as usize].1 < each);
    match rest {
        Rest::First => {
            let room = with_room.flat_map(|rank| vec![rank; each - load[rank as usize].1]);
            let waiting = rank_of_file.iter_mut().filter(|own| **own == NOBODY);
            for (own, rank) in waiting.zip(room) {
                *own = rank;
            }
        }
        Rest::FewestBytes => {
            let mut room: BinaryHeap<_> =
                with_room.map(|rank| Reverse((load[rank as usize].0, rank))).collect();
            for file in order {
                if rank_of_file[file as usize] == NOBODY
                    && let Some(Reverse((bytes, rank))) = room.pop()
                {
                    rank_of_file[file as usize] = rank;
                    load[rank as usize].1 += 1;
                    if load[rank as usize].1 < each {
                        room.push(Reverse((bytes + problem.bytes_of(file as usize), rank)));
                    }
                }
            }
        }
    }
    rank_of_file
}
