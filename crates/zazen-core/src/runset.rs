//! Sets of frame numbers (or of indices), described by runs and blocks instead of listed.
//!
//! A [`RunSet`] is an ordered sequence of segments with disjoint spans. A segment is a strided run,
//! a sparse block (16-bit offsets within 65 536 numbers) or a bitmap block; each block takes
//! whichever is smallest. A billion regularly spaced numbers are one segment. No function here
//! expands a run into a list.
//!
//! Invariant: segments are in ascending order, their spans do not overlap, and no segment is empty.
//!
//! Costs: with s segments, `contains`, `rank`, `select`, `insert` and `remove` search O(log s) (the
//! first `rank` or `select` after a change counts all segments once, and an insertion of a segment
//! moves those behind it). `slice`, `block`, `cut` and the set operations are O(s), plus the 64 Ki
//! windows where different segments overlap and no closed form fits. A union or difference of long,
//! interleaved runs with different steps therefore takes memory in proportion to the span in which
//! they overlap (1 bit per number). So first cut a set from another process to the request.
//!
//! A set shares its blocks with its copies and slices until one of them changes. Copying a set,
//! cutting it at window borders and moving it by whole windows copy no block.
//!
//! No number is larger than [`NUMBER_MAX`].

mod append;
mod cut;
mod edit;
mod iter;
mod ops;
mod run;
mod segment;
#[cfg(test)]
mod tests;

use crate::error::{Error, ErrorKind, Result};
pub(crate) use run::{Cluster, clusters, mesh};
pub use run::{NUMBER_MAX, Run};
use segment::Seg;
pub use segment::Segment;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::OnceLock;

/// See [`RunSet::checked_from_runs`]: half a GiB of bits.
pub const INTERLEAVED_MAX: u64 = 1 << 32;

/// A set of u64 numbers up to [`NUMBER_MAX`]; see the module. Equality is set equality, whatever
/// the segments.
#[derive(Clone, Default)]
pub struct RunSet {
    segs: Vec<Seg>,
    len: u64,
    /// The last segment is an open block: it is not in its smallest form yet.
    open: bool,
    /// How many numbers are before each segment. Computed when first needed, dropped by every
    /// change.
    ranks: OnceLock<Box<[u64]>>,
}

impl RunSet {
    /// The empty set.
    pub fn new() -> RunSet {
        RunSet::default()
    }

    /// All of `first ..= last`; empty if `first > last`. `last` is taken as [`NUMBER_MAX`] at most.
    pub fn range(first: u64, last: u64) -> RunSet {
        let last = last.min(NUMBER_MAX);
        if first > last {
            return RunSet::new();
        }
        RunSet::from_run(Run { first, count: last - first + 1, step: 1 })
    }

    /// One run. Panics if it is not valid (see [`Run`]). Use [`Run::new`] for values from outside.
    pub fn from_run(run: Run) -> RunSet {
        assert!(run.is_valid(), "{run:?} is no valid run");
        let run = Run::normal(run.first, run.count, run.step);
        RunSet { segs: vec![Seg::Run(run)], len: run.count, ..RunSet::default() }
    }

    /// The union of runs in any order, overlapping or not. Panics if one is not valid.
    pub fn from_runs(runs: impl IntoIterator<Item = Run>) -> RunSet {
        let checked = runs.into_iter().map(|run| {
            assert!(run.is_valid(), "{run:?} is no valid run");
            Run::normal(run.first, run.count, run.step)
        });
        let mut runs = mesh(checked.collect());
        runs.sort_by_key(|run| run.first);
        // Runs whose spans overlap go to different layers; each layer is then ascending.
        let mut layers: Vec<RunSet> = Vec::new();
        let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        for run in runs {
            let at = match ends.peek() {
                Some(Reverse((last, at))) if *last < run.first => {
                    let at = *at;
                    ends.pop();
                    layers[at].append_run(run);
                    at
                }
                _ => {
                    layers.push(RunSet::from_run(run));
                    layers.len() - 1
                }
            };
            ends.push(Reverse((run.last(), at)));
        }
        RunSet::union_all(layers)
    }

    /// [`RunSet::from_runs`] for runs from another process. `TooLarge` if they interleave over more
    /// than [`INTERLEAVED_MAX`] numbers, because each of these takes a bit.
    pub fn checked_from_runs(runs: Vec<Run>) -> Result<RunSet> {
        match RunSet::interleaved(&runs) {
            ..=INTERLEAVED_MAX => Ok(RunSet::from_runs(runs)),
            spread => Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "runs of unlike steps interleave over {spread} numbers, beyond the limit of \
                     {INTERLEAVED_MAX}; use narrower runs, or equal steps"
                ),
            )),
        }
    }

    /// The number of numbers over which `runs` interleave so that no run describes them. A set of
    /// these runs takes a bit for each.
    pub fn interleaved(runs: &[Run]) -> u64 {
        let mut normal: Vec<Run> =
            runs.iter().map(|run| Run::normal(run.first, run.count, run.step)).collect();
        normal.sort_unstable_by_key(|run| (run.step, run.first % run.step, run.first));
        // Overlapping runs in one residue class are one run.
        normal.dedup_by(|next, run| {
            let same = run.step == next.step && run.first % run.step == next.first % run.step;
            let joined = same && next.first <= run.last();
            if joined {
                run.count = (run.last().max(next.last()) - run.first) / run.step + 1;
            }
            joined
        });
        let unlike = clusters(mesh(normal)).into_iter().filter(|cluster| cluster.runs.len() > 1);
        unlike.fold(0, |sum, cluster| sum.saturating_add((cluster.last - cluster.first).saturating_add(1)))
    }

    /// The union of many sets.
    pub fn union_all(sets: impl IntoIterator<Item = RunSet>) -> RunSet {
        let mut sets: Vec<RunSet> = sets.into_iter().collect();
        while sets.len() > 1 {
            sets = sets
                .chunks(2)
                .map(|pair| pair.iter().fold(RunSet::new(), |all, set| all.union(set)))
                .collect();
        }
        let mut all = sets.pop().unwrap_or_default();
        all.seal();
        all
    }

    /// Numbers in strictly ascending order, compressed as they come. Panics if they do not ascend.
    pub fn from_ascending(numbers: impl IntoIterator<Item = u64>) -> RunSet {
        let mut set = RunSet::new();
        let mut least = 0;
        for number in numbers {
            assert!(number >= least, "number {number} comes after {}: not ascending", least - 1);
            set.append(number);
            least = number + 1;
        }
        set.seal();
        set
    }

    /// The numbers of a bitmap of any length: number `first + 64·w + b` is in the set where bit `b`
    /// of `words[w]` is set. Takes one pass over the words; `first` is a multiple of 65 536 and no
    /// number is beyond [`NUMBER_MAX`], or it panics.
    pub fn from_words(first: u64, words: &[u64]) -> RunSet {
        assert!(
            first.is_multiple_of(segment::WINDOW),
            "a bitmap begins at {first}, not at a multiple of 65536"
        );
        let mut set = RunSet::new();
        for (window, words) in words.chunks(segment::WORDS).enumerate() {
            let base = first.checked_add(window as u64 * segment::WINDOW);
            let added = base.is_some_and(|base| set.extend_bits(base, words));
            assert!(added || words.iter().all(|word| *word == 0), "a bitmap reaches beyond {NUMBER_MAX}");
        }
        set.seal();
        set
    }

    /// How many numbers.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no number in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The smallest number.
    pub fn first(&self) -> Option<u64> {
        self.segs.first().map(Seg::first)
    }

    /// The largest number.
    pub fn last(&self) -> Option<u64> {
        self.segs.last().map(Seg::last)
    }

    /// Whether `number` is in it.
    pub fn contains(&self, number: u64) -> bool {
        self.holder_of(number).is_some()
    }

    /// The segment that holds `number`.
    fn holder_of(&self, number: u64) -> Option<usize> {
        let at = self.segs.partition_point(|seg| seg.first() <= number).checked_sub(1)?;
        self.segs[at].contains(number).then_some(at)
    }

    /// Adds a number; false if it was there. Ascending arrivals (a daemon's log) cost O(1)
    /// amortised and compress as they come; any order costs at most one 64 Ki block. Panics beyond
    /// [`NUMBER_MAX`].
    pub fn insert(&mut self, number: u64) -> bool {
        match self.last() {
            Some(last) if number < last => {
                let added = self.insert_inside(number);
                if added {
                    self.forget_ranks();
                }
                added
            }
            Some(last) if number == last => false,
            _ => {
                self.append(number);
                true
            }
        }
    }

    /// Adds all numbers of a run. Panics if it is not valid.
    pub fn insert_run(&mut self, run: Run) {
        assert!(run.is_valid(), "{run:?} is no valid run");
        if self.last().is_none_or(|last| last < run.first) {
            self.append_run(Run::normal(run.first, run.count, run.step));
        } else {
            *self = self.union(&RunSet::from_run(run));
        }
    }

    /// Adds the numbers of a bitmap as in [`Segment::Bits`], all of them behind the last number;
    /// false, and nothing is added, if they are not, or if `base` or `words` are not of that form.
    /// For decoders.
    pub fn extend_bits<'a>(&mut self, base: u64, words: impl Into<Cow<'a, [u64]>>) -> bool {
        let words = words.into();
        let formed = base.is_multiple_of(segment::WINDOW) && words.len() <= segment::WORDS;
        let Some(first) = words.iter().position(|word| *word != 0).filter(|_| formed) else {
            return formed;
        };
        let first = base + first as u64 * 64 + u64::from(words[first].trailing_zeros());
        let reaches_end =
            base == segment::base_of(u64::MAX) && words.get(segment::WORDS - 1) >= Some(&(1 << 63));
        if reaches_end || self.last().is_some_and(|last| last >= first) {
            return false;
        }
        self.append_words(base, words);
        true
    }

    /// Adds the numbers `base + offsets[i]`, ascending as in [`Segment::Sparse`] (but of any
    /// length), all of them behind the last number; false, and nothing is added, if they are not,
    /// or if `base` or `offsets` are not of that form. For decoders.
    pub fn extend_sparse(&mut self, base: u64, offsets: &[u16]) -> bool {
        let formed = base.is_multiple_of(segment::WINDOW) && offsets.is_sorted_by(|a, b| a < b);
        let (Some(first), Some(last), true) = (offsets.first(), offsets.last(), formed) else {
            return formed;
        };
        let behind = self.last().is_none_or(|held| held < base + u64::from(*first));
        let fits = behind && base + u64::from(*last) <= NUMBER_MAX;
        if fits {
            self.append_offsets(base, offsets);
        }
        fits
    }

    /// Removes a number; false if it was not there.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some(at) = self.holder_of(number) else {
            return false;
        };
        self.forget_ranks();
        self.remove_from(at, number);
        true
    }

    /// The numbers within `first ..= last`.
    pub fn slice(&self, first: u64, last: u64) -> RunSet {
        let mut out = RunSet::new();
        self.for_each_clipped(first, last, |seg| out.append_seg(seg));
        out.seal();
        out
    }

    /// Calls `take` with each segment's part within `first ..= last`.
    fn for_each_clipped(&self, first: u64, last: u64, mut take: impl FnMut(&Seg)) {
        let start = self.segs.partition_point(|seg| seg.last() < first);
        for seg in &self.segs[start..] {
            if seg.first() > last {
                return;
            }
            if first <= seg.first() && seg.last() <= last {
                take(seg);
            } else if let Some(part) = seg.clip(first, last) {
                take(&part);
            }
        }
    }

    /// How many numbers are smaller than `number`.
    pub fn rank(&self, number: u64) -> u64 {
        let Some(at) = self.segs.partition_point(|seg| seg.first() < number).checked_sub(1) else {
            return 0;
        };
        self.ranks()[at] + self.segs[at].rank(number)
    }

    /// The number with `rank` smaller ones before it.
    pub fn select(&self, rank: u64) -> Option<u64> {
        if rank >= self.len {
            return None;
        }
        let ranks = self.ranks();
        let at = ranks.partition_point(|before| *before <= rank) - 1;
        Some(self.segs[at].select(rank - ranks[at]))
    }

    fn ranks(&self) -> &[u64] {
        self.ranks.get_or_init(|| {
            let mut before = 0;
            let count = |seg: &Seg| {
                before += seg.len();
                before - seg.len()
            };
            self.segs.iter().map(count).collect()
        })
    }

    fn forget_ranks(&mut self) {
        if self.ranks.get().is_some() {
            self.ranks.take();
        }
    }

    /// The `count` numbers from rank `start` on (fewer at the end): a contiguous block of the set.
    pub fn block(&self, start: u64, count: u64) -> RunSet {
        let end = start.saturating_add(count).min(self.len);
        if start >= end {
            return RunSet::new();
        }
        match (self.select(start), self.select(end - 1)) {
            (Some(first), Some(last)) => self.slice(first, last),
            _ => RunSet::new(),
        }
    }

    /// All numbers ascending; lazy.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        iter::Numbers::new(self.segs.iter().cloned(), self.len)
    }

    /// The set as disjoint strided runs ascending by first number, greedy from the left; lazy. The
    /// sequence depends on the set alone, so equal sets print alike.
    pub fn runs(&self) -> impl Iterator<Item = Run> + Clone + '_ {
        iter::Runs::new(self.segs.iter().cloned())
    }

    /// As [`RunSet::runs`], without a borrow of the set. It walks a copy, which shares the set's
    /// blocks.
    pub fn into_runs(self) -> impl Iterator<Item = Run> + Clone + Send + Sync + 'static {
        iter::Runs::new(self.segs.into_iter())
    }

    /// The segments as stored.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> + '_ {
        self.segs.iter().map(Seg::view)
    }

    /// Heap bytes that the set holds. A block that it shares with a copy counts in both.
    pub fn heap_bytes(&self) -> usize {
        let segments = self.segs.capacity() * segment::SEGMENT_BYTES;
        let blocks = self.segs.iter().map(Seg::heap_bytes).sum::<usize>();
        segments + blocks + self.ranks.get().map_or(0, |ranks| ranks.len() * 8)
    }
}

impl PartialEq for RunSet {
    fn eq(&self, other: &RunSet) -> bool {
        self.len == other.len && (self.segs == other.segs || self.runs().eq(other.runs()))
    }
}
impl Eq for RunSet {}

impl fmt::Debug for RunSet {
    /// The first runs, as `first..=last/step`, and how many numbers in all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunSet({} numbers:", self.len)?;
        for (at, run) in self.runs().take(17).enumerate() {
            match (at, run.count, run.step) {
                (16, ..) => write!(f, " …")?,
                (_, 1, _) => write!(f, " {}", run.first)?,
                (_, _, 1) => write!(f, " {}..={}", run.first, run.last())?,
                _ => write!(f, " {}..={}/{}", run.first, run.last(), run.step)?,
            }
        }
        f.write_str(")")
    }
}

impl FromIterator<u64> for RunSet {
    /// Any order, duplicates welcome.
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> RunSet {
        let mut set = RunSet::new();
        let mut late = Vec::new();
        for number in numbers {
            if set.last().is_none_or(|last| last < number) {
                set.append(number);
            } else {
                late.push(number);
            }
        }
        set.seal();
        late.sort_unstable();
        late.dedup();
        if late.is_empty() { set } else { set.union(&RunSet::from_ascending(late)) }
    }
}
