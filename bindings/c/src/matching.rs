//! `zazen_match`: which rank reads which file, where files have replicas.

use crate::status::{guard, invalid};
use crate::structs::Sized0;
use zazen_match::{FileAt, Matched, Problem, Strategy, match_files};

/// How files are given to ranks.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum zazen_strategy_t {
    /// No map reads fewer files remotely.
    ZAZEN_MATCH_OPTIMAL = 0,
    /// File i goes to rank i mod ranks.
    ZAZEN_MATCH_BLIND = 1,
    /// Files in a drawn order, each to a drawn holder with room.
    ZAZEN_MATCH_FIRST_COME = 2,
    /// VisIO: the file with the fewest holders left is next, and goes to the first of them.
    ZAZEN_MATCH_SCARCEST = 3,
    /// The same, to the holder that the fewest other files ask for.
    ZAZEN_MATCH_LEAST_DEMAND = 4,
    /// Every held file is read at a holder, and the ranks' bytes are balanced.
    ZAZEN_MATCH_BYTES = 5,
}

/// How good a matching is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_matched_t {
    /// sizeof(zazen_matched_t).
    pub struct_size: usize,
    /// Files that their rank's node does not hold.
    pub remote: u64,
    /// No map has fewer.
    pub bound: u64,
    /// The most bytes that a rank reads.
    pub bytes_max: u64,
    /// Bytes that a rank reads on average, rounded down.
    pub bytes_mean: u64,
    /// In no map does every rank read fewer bytes.
    pub bytes_bound: u64,
}

// SAFETY: repr(C), size first, zeroes are numbers, no padding.
unsafe impl Sized0 for zazen_matched_t {
    const NAME: &'static str = "zazen_matched_t";
}

/// Gives each of `file_count` files to exactly one of `rank_count` ranks, and writes its rank to
/// `rank_of_file`. Rank r runs on node `node_of_rank[r]`; nodes are any numbers. File f has
/// `bytes_of_file[f]` bytes, and the nodes `holders[holders_begin[f]]` up to, but without,
/// `holders[holders_begin[f + 1]]` hold it. `strategy` is a zazen_strategy_t; `seed` matters to
/// ZAZEN_MATCH_FIRST_COME only. A rank gets at most ceil(files / ranks) files, but for
/// ZAZEN_MATCH_BYTES. The result depends on the arguments only. `matched` may be NULL.
///
/// # Safety
/// The arrays have `rank_count`, `file_count`, `file_count + 1` and `holders_begin[file_count]`
/// elements, and `rank_of_file` has room for `file_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_match(
    node_of_rank: *const u32,
    rank_count: usize,
    bytes_of_file: *const u64,
    holders_begin: *const u64,
    holders: *const u32,
    file_count: usize,
    strategy: i32,
    seed: u64,
    rank_of_file: *mut u32,
    matched: *mut zazen_matched_t,
) -> i32 {
    guard(|| {
        let strategy = named(strategy)?;
        let files_missing = bytes_of_file.is_null() || holders_begin.is_null() || rank_of_file.is_null();
        if (rank_count > 0 && node_of_rank.is_null()) || (file_count > 0 && files_missing) {
            return Err(invalid("zazen_match: an array is NULL"));
        }
        if rank_count > zazen_match::RANKS_MAX || file_count > zazen_match::FILES_MAX {
            return Err(invalid(format!(
                "zazen_match: {rank_count} ranks or {file_count} files are too many"
            )));
        }
        // SAFETY: by the caller's word.
        unsafe { zazen_matched_t::check(matched) }?;
        let nodes = match rank_count {
            0 => &[],
            // SAFETY: by the caller's word; a null pointer is not made into a slice.
            _ => unsafe { std::slice::from_raw_parts(node_of_rank, rank_count) },
        };
        let mut files = Vec::with_capacity(file_count);
        let mut end = 0;
        for file in 0..file_count {
            // SAFETY: by the caller's word there are `file_count` lengths and one more begin.
            let (bytes, first, last) =
                unsafe { (*bytes_of_file.add(file), *holders_begin.add(file), *holders_begin.add(file + 1)) };
            if first != end || last < first || last > zazen_match::HOLDERS_MAX as u64 {
                let context = format!("zazen_match: holders_begin[{file}] is {first}, and {last} follows");
                return Err(invalid(context));
            }
            end = last;
            let count = (last - first) as usize;
            if count > 0 && holders.is_null() {
                return Err(invalid("zazen_match: holders is NULL"));
            }
            let of_file = match count {
                0 => &[],
                // SAFETY: by the caller's word; a null pointer is not made into a slice.
                _ => unsafe { std::slice::from_raw_parts(holders.add(first as usize), count) },
            };
            files.push(FileAt { bytes, holders: of_file.to_vec() });
        }
        let found = match_files(&Problem::new(nodes, &files)?, strategy, seed);
        let Matched { remote, bound, bytes_max, bytes_mean, bytes_bound, rank_of_file: ranks } = found;
        for (file, rank) in ranks.iter().enumerate() {
            // SAFETY: by the caller's word there is room for `file_count`.
            unsafe { rank_of_file.add(file).write(*rank) };
        }
        let told = zazen_matched_t { struct_size: 0, remote, bound, bytes_max, bytes_mean, bytes_bound };
        // SAFETY: by the caller's word.
        unsafe { told.give(matched) }
    })
}

fn named(strategy: i32) -> zazen_core::Result<Strategy> {
    use zazen_strategy_t::*;
    let all = [
        (ZAZEN_MATCH_OPTIMAL, Strategy::Optimal),
        (ZAZEN_MATCH_BLIND, Strategy::Blind),
        (ZAZEN_MATCH_FIRST_COME, Strategy::FirstCome),
        (ZAZEN_MATCH_SCARCEST, Strategy::Scarcest),
        (ZAZEN_MATCH_LEAST_DEMAND, Strategy::LeastDemand),
        (ZAZEN_MATCH_BYTES, Strategy::Bytes),
    ];
    let found = all.into_iter().find(|(number, _)| *number as i32 == strategy);
    found.map(|(_, strategy)| strategy).ok_or_else(|| {
        invalid(format!("zazen_match: strategy {strategy} is none of the ZAZEN_MATCH_ constants"))
    })
}
