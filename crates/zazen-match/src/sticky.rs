//! One map for all time steps: a rank keeps its blocks, so state that belongs to a block stays
//! where it is.

use crate::matching::{Weighted, heaviest};
use crate::problem::{FileAt, Problem};
use crate::strategy::{Rest, Strategy, match_files, spread};
use zazen_core::{Error, ErrorKind, Result};

/// One map of blocks to ranks for all steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// By block: the rank that reads it in every step.
    pub rank_of_block: Vec<u32>,
    /// Remote reads over all steps. No map that stays has fewer.
    pub remote: u64,
    /// Remote reads over all steps if each step had the best map of its own.
    pub bound: u64,
    /// The most bytes that a rank reads over all steps.
    pub bytes_max: u64,
    /// Bytes that a rank reads over all steps on average, rounded down.
    pub bytes_mean: u64,
}

/// The map with the fewest remote reads over all `steps`; each step has the same number of files,
/// and file i of each step is block i. A rank gets at most ⌈blocks / ranks⌉ blocks.
///
/// Fails with `InvalidArgument` if the steps have unlike numbers of files, else as
/// [`Problem::new`].
pub fn sticky<N: Ord + Clone>(node_of_rank: &[N], steps: &[Vec<FileAt<N>>]) -> Result<Sticky> {
    let blocks = steps.first().map_or(0, Vec::len);
    if let Some(step) = steps.iter().position(|files| files.len() != blocks) {
        let context = format!("steps[{step}]: has {} files, steps[0] has {blocks}", steps[step].len());
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    let problems: Vec<Problem> =
        steps.iter().map(|files| Problem::new(node_of_rank, files)).collect::<Result<_>>()?;
    // A block is as long as its files together, so that ranks of a node share bytes fairly.
    let long = |block: usize| {
        let each = steps.iter().map(|files| files[block].bytes);
        each.fold(0_u64, u64::saturating_add)
    };
    let whole: Vec<FileAt<N>> =
        (0..blocks).map(|block| FileAt { bytes: long(block), holders: Vec::new() }).collect();
    let whole = Problem::new(node_of_rank, &whole)?;
    let mut begin = vec![0];
    let mut places: Vec<(u32, u32)> = Vec::new();
    for block in 0..blocks {
        let mut nodes: Vec<u32> =
            problems.iter().flat_map(|problem| problem.holders_of(block)).copied().collect();
        nodes.sort_unstable();
        for same in nodes.chunk_by(|one, other| one == other) {
            places.push((same[0], same.len() as u32));
        }
        begin.push(places.len() as u32);
    }
    let node_of_block = heaviest(&Weighted { begin, places, room: whole.room() }, Vec::new());
    let rank_of_block = spread(&whole, &node_of_block, Rest::FewestBytes);
    let remote_in = |problem: &Problem| {
        (0..blocks).filter(|block| !problem.is_local(*block, rank_of_block[*block] as usize)).count() as u64
    };
    let mut load = vec![0_u64; whole.ranks()];
    for (block, rank) in rank_of_block.iter().enumerate() {
        load[*rank as usize] += whole.bytes_of(block);
    }
    Ok(Sticky {
        remote: problems.iter().map(remote_in).sum(),
        bound: problems.iter().map(|problem| match_files(problem, Strategy::Optimal, 0).bound).sum(),
        bytes_max: load.iter().copied().max().unwrap_or(0),
        bytes_mean: load.iter().sum::<u64>() / whole.ranks() as u64,
        rank_of_block,
    })
}
