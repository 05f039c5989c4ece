//! Sets of frame numbers (or of indices) that describe instead of listing.
//!
//! A [`RunSet`] is an ordered sequence of segments with disjoint spans. A segment is a strided run, a sparse
//! block (16-bit offsets within 65 536 numbers) or a bitmap block; each block takes whichever is smallest.
//! A billion numbers with regular placement are one segment; nothing here ever expands a run into a list.
//!
//! Invariant: segments are in ascending order, their spans do not overlap, and no segment is empty.

use crate::error::Result;
use crate::request::Request;

/// The numbers `first, first + step, …` (`count` of them). `count ≥ 1`, `step ≥ 1`; `step` is 1 where
/// `count` is 1; the last number fits in a u64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// The distance between neighbours.
    pub step: u64,
}

impl Run {
    /// A run; fails with `InvalidArgument` if `count` or `step` is 0, `TooLarge` if the last number overflows.
    pub fn new(first: u64, count: u64, step: u64) -> Result<Run> {
        let _ = (first, count, step);
        todo!()
    }

    /// The last number.
    pub fn last(&self) -> u64 {
        self.first + (self.count - 1) * self.step
    }

    /// Whether `number` is in it.
    pub fn contains(&self, number: u64) -> bool {
        number >= self.first && number <= self.last() && (number - self.first) % self.step == 0
    }
}

/// One segment, borrowed: what codecs and fingerprints walk.
#[derive(Clone, Copy, Debug)]
pub enum Segment<'a> {
    /// A strided run of any span.
    Run(Run),
    /// Numbers `base + offsets[i]`, ascending; `base` is a multiple of 65 536.
    Sparse {
        /// The block's first number.
        base: u64,
        /// Offsets from it, ascending.
        offsets: &'a [u16],
    },
    /// Number `base + 64·w + b` is in it where bit `b` of `words[w]` is set; `base` is a multiple of 65 536,
    /// at most 1024 words, trailing zero words may be cut.
    Bits {
        /// The block's first number.
        base: u64,
        /// The bitmap, least significant bit first.
        words: &'a [u64],
    },
}

/// A set of u64 numbers; see the module. Equality is set equality, whatever the segments.
#[derive(Clone, Debug, Default)]
pub struct RunSet {
    // the owner of this file chooses
    _private: (),
}

#[allow(unused_variables, missing_docs)]
impl RunSet {
    /// The empty set.
    pub fn new() -> RunSet {
        todo!()
    }
    /// All of `first ..= last`; empty if `first > last`.
    pub fn range(first: u64, last: u64) -> RunSet {
        todo!()
    }
    /// One run.
    pub fn from_run(run: Run) -> RunSet {
        todo!()
    }
    /// The union of runs in any order, overlapping or not.
    pub fn from_runs(runs: impl IntoIterator<Item = Run>) -> RunSet {
        todo!()
    }
    /// Numbers in strictly ascending order, compressed as they come.
    pub fn from_ascending(numbers: impl IntoIterator<Item = u64>) -> RunSet {
        todo!()
    }
    /// How many numbers.
    pub fn len(&self) -> u64 {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// The smallest number.
    pub fn first(&self) -> Option<u64> {
        todo!()
    }
    /// The largest number.
    pub fn last(&self) -> Option<u64> {
        todo!()
    }
    pub fn contains(&self, number: u64) -> bool {
        todo!()
    }
    /// Adds a number; false if it was there. Ascending arrivals (a daemon's log) cost O(1) amortised and
    /// compress as they come; any order costs at most one 64 Ki block.
    pub fn insert(&mut self, number: u64) -> bool {
        todo!()
    }
    /// Removes a number; false if it was not there.
    pub fn remove(&mut self, number: u64) -> bool {
        todo!()
    }
    pub fn union(&self, other: &RunSet) -> RunSet {
        todo!()
    }
    pub fn intersection(&self, other: &RunSet) -> RunSet {
        todo!()
    }
    pub fn difference(&self, other: &RunSet) -> RunSet {
        todo!()
    }
    pub fn is_subset(&self, other: &RunSet) -> bool {
        todo!()
    }
    /// The numbers within `first ..= last`.
    pub fn slice(&self, first: u64, last: u64) -> RunSet {
        todo!()
    }
    /// The numbers that `request` names, as indices of its index space. A run stays a run (closed form).
    pub fn cut(&self, request: &Request) -> RunSet {
        todo!()
    }
    /// Indices of `request` back to frame numbers; inverse of [`RunSet::cut`] within the request.
    pub fn uncut(&self, request: &Request) -> RunSet {
        todo!()
    }
    /// How many numbers are smaller than `number`.
    pub fn rank(&self, number: u64) -> u64 {
        todo!()
    }
    /// The number with `rank` smaller ones before it.
    pub fn select(&self, rank: u64) -> Option<u64> {
        todo!()
    }
    /// The `count` numbers from rank `start` on (fewer at the end): a contiguous block of the set.
    pub fn block(&self, start: u64, count: u64) -> RunSet {
        todo!()
    }
    /// All numbers ascending; lazy.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::empty()
    }
    /// The set as disjoint strided runs ascending by first number, greedy from the left; lazy.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        std::iter::empty()
    }
    /// The segments as stored.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> + '_ {
        std::iter::empty()
    }
    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        todo!()
    }
}

impl PartialEq for RunSet {
    fn eq(&self, _other: &RunSet) -> bool {
        todo!()
    }
}
impl Eq for RunSet {}

impl FromIterator<u64> for RunSet {
    /// Any order, duplicates welcome.
    fn from_iter<I: IntoIterator<Item = u64>>(_numbers: I) -> RunSet {
        todo!()
    }
}
