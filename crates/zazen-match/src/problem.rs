//! What has to be matched, in the form that the strategies work on.

use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The most ranks of a problem.
pub const RANKS_MAX: usize = 1 << 20;
/// The most files of a problem.
pub const FILES_MAX: usize = 1 << 24;
/// The most (file, holder) pairs of a problem.
pub const HOLDERS_MAX: usize = 1 << 26;

/// Marks a file that no rank has yet.
pub(crate) const NOBODY: u32 = u32::MAX;

/// One file: its length in bytes, and the nodes that hold a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAt<N> {
    /// Length in bytes.
    pub bytes: u64,
    /// The nodes that hold it. A node may be named twice, and need not have a rank.
    pub holders: Vec<N>,
}

/// Ranks on nodes, and files on nodes. Nodes are numbered in the order of their first rank; holders
/// without a rank are left out, because no rank can read there locally.
#[derive(Clone, Debug)]
pub struct Problem {
    /// By rank: its node.
    node_of_rank: Vec<u32>,
    /// The ranks of node n are `ranks[ranks_begin[n]..ranks_begin[n + 1]]`, ascending.
    ranks_begin: Vec<u32>,
    ranks: Vec<u32>,
    /// By file: its length.
    bytes: Vec<u64>,
    /// The holders of file f are `holders[holders_begin[f]..holders_begin[f + 1]]`, in the order
    /// given.
    holders_begin: Vec<u32>,
    holders: Vec<u32>,
}

impl Problem {
    /// The problem of `files` and of ranks that run on `node_of_rank`.
    ///
    /// Fails with `InvalidArgument` if there is no rank, and with `TooLarge` beyond the limits or
    /// if the files' lengths do not add up in 64 bits.
    pub fn new<N: Ord>(node_of_rank: &[N], files: &[FileAt<N>]) -> Result<Problem> {
        if node_of_rank.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "ranks: there is none, give at least one"));
        }
        limit("ranks", node_of_rank.len(), RANKS_MAX)?;
        limit("files", files.len(), FILES_MAX)?;
        limit("files: holders in all", files.iter().map(|file| file.holders.len()).sum(), HOLDERS_MAX)?;
        if files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes)).is_none() {
            let context = "files: their bytes together do not fit 64 bits";
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        let mut numbers: BTreeMap<&N, u32> = BTreeMap::new();
        let mut of_rank = Vec::with_capacity(node_of_rank.len());
        for node in node_of_rank {
            let next = numbers.len() as u32;
            of_rank.push(*numbers.entry(node).or_insert(next));
        }
        let mut holders_begin = vec![0];
        let mut holders: Vec<u32> = Vec::new();
        // By node: the last file that named it. A file may have as many holders as there are nodes.
        let mut named_by = vec![NOBODY; numbers.len()];
        for (file, at) in files.iter().zip(0..) {
            for node in file.holders.iter().filter_map(|node| numbers.get(node)) {
                if std::mem::replace(&mut named_by[*node as usize], at) != at {
                    holders.push(*node);
                }
            }
            holders_begin.push(holders.len() as u32);
        }
        let bytes = files.iter().map(|file| file.bytes).collect();
        let (ranks_begin, ranks) = by_group(&of_rank, numbers.len());
        Ok(Problem { node_of_rank: of_rank, ranks_begin, ranks, bytes, holders_begin, holders })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.node_of_rank.len()
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.bytes.len()
    }

    /// The length of a file in bytes.
    pub fn bytes_of(&self, file: usize) -> u64 {
        self.bytes[file]
    }

    /// The most files that one rank gets from the strategies that count files: ⌈F / R⌉.
    pub fn files_per_rank(&self) -> usize {
        self.files().div_ceil(self.ranks())
    }

    /// Whether the node of `rank` holds `file`.
    pub fn is_local(&self, file: usize, rank: usize) -> bool {
        self.holders_of(file).contains(&self.node_of_rank[rank])
    }

    /// How many nodes have a rank.
    pub(crate) fn nodes(&self) -> usize {
        self.ranks_begin.len() - 1
    }

    pub(crate) fn ranks_of(&self, node: usize) -> &[u32] {
        &self.ranks[self.ranks_begin[node] as usize..self.ranks_begin[node + 1] as usize]
    }

    /// The nodes with a rank that hold `file`, in the order given.
    pub(crate) fn holders_of(&self, file: usize) -> &[u32] {
        &self.holders[self.holders_begin[file] as usize..self.holders_begin[file + 1] as usize]
    }

    /// By node: how many files its ranks take together.
    pub(crate) fn room(&self) -> Vec<u32> {
        let each = self.files_per_rank();
        // More room than there are files is never used.
        let of = |node| self.ranks_of(node).len().saturating_mul(each).min(self.files()) as u32;
        (0..self.nodes()).map(of).collect()
    }

    /// By node: the files that it holds, as (begin of each node, files), ascending.
    pub(crate) fn files_by_node(&self) -> (Vec<u32>, Vec<u32>) {
        let mut begin = vec![0_u32; self.nodes() + 1];
        for node in &self.holders {
            begin[*node as usize + 1] += 1;
        }
        for node in 0..self.nodes() {
            begin[node + 1] += begin[node];
        }
        let mut next = begin.clone();
        let mut files = vec![0; self.holders.len()];
        for file in 0..self.files() {
            for node in self.holders_of(file) {
                files[next[*node as usize] as usize] = file as u32;
                next[*node as usize] += 1;
            }
        }
        (begin, files)
    }
}

/// The members of each group, ascending, as (begin of each group, members).
fn by_group(group_of: &[u32], groups: usize) -> (Vec<u32>, Vec<u32>) {
    let mut begin = vec![0_u32; groups + 1];
    for group in group_of {
        begin[*group as usize + 1] += 1;
    }
    for group in 0..groups {
        begin[group + 1] += begin[group];
    }
    let mut next = begin.clone();
    let mut members = vec![0; group_of.len()];
    for (member, group) in group_of.iter().enumerate() {
        members[next[*group as usize] as usize] = member as u32;
        next[*group as usize] += 1;
    }
    (begin, members)
}

fn limit(what: &str, count: usize, most: usize) -> Result<()> {
    if count > most {
        return Err(Error::new(ErrorKind::TooLarge, format!("{what}: {count}, the limit is {most}")));
    }
    Ok(())
}
