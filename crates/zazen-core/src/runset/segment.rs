//! The stored form of a segment, and the 64 Ki window that sets are combined in.
//!
//! Invariants: no segment is empty; a block's numbers lie in one window (`base ..= base + 65 535`,
//! `base` a multiple of 65 536); sparse offsets ascend strictly and are at most [`SPARSE_MAX`];
//! `count`, `first` and `last` of a bitmap are those of its words.

use super::run::{Greedy, Run};
use std::borrow::Cow;
use std::sync::Arc;

/// Numbers in a window.
pub(super) const WINDOW: u64 = 1 << 16;
/// Words in a window.
pub(super) const WORDS: usize = 1024;
/// The most offsets in a sparse block: more would take at least as much memory as a full bitmap.
pub(super) const SPARSE_MAX: usize = 4096;
/// What a segment costs beyond its offsets or words.
pub(super) const SEGMENT_BYTES: usize = std::mem::size_of::<Seg>();

/// What sharing costs per block: two counts and the vector's own fields.
const SHARED_BYTES: usize = 40;

/// The first number of the window that `number` is in.
pub(super) fn base_of(number: u64) -> u64 {
    number & !(WINDOW - 1)
}

/// The last number of the window that begins at `base`.
pub(super) fn window_end(base: u64) -> u64 {
    base + (WINDOW - 1)
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
    /// Number `base + 64·w + b` is in it where bit `b` of `words[w]` is set; `base` is a multiple
    /// of 65 536, at most 1024 words, trailing zero words may be cut.
    Bits {
        /// The block's first number.
        base: u64,
        /// The bitmap, least significant bit first.
        words: &'a [u64],
        /// How many bits are set.
        count: u32,
    },
}

/// Offsets are shared between copies of a set; a change takes a copy first if they are.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sparse {
    pub(super) base: u64,
    pub(super) offsets: Arc<Vec<u16>>,
}

/// Words are shared like the offsets of [`Sparse`].
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) base: u64,
    pub(super) count: u32,
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) words: Arc<Vec<u64>>,
}

/// A segment as stored, in 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Seg {
    Run(Run),
    Sparse(Sparse),
    Bits(Bits),
}

impl Sparse {
    fn number(&self, at: usize) -> u64 {
        self.base + u64::from(self.offsets[at])
    }

    fn rank(&self, number: u64) -> usize {
        match number.checked_sub(self.base) {
            None => 0,
            Some(offset) => self.offsets.partition_point(|held| u64::from(*held) < offset),
        }
    }
}

impl Bits {
    /// The bitmap of `words`, of which at least one is not zero.
    pub(super) fn new(base: u64, words: &[u64]) -> Bits {
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |at| at + 1);
        let words = &words[..used];
        Bits::of(base, words.to_vec(), population(words) as u32)
    }

    /// The bitmap of `words` with `count ≥ 1` bits set, the last word not zero.
    pub(super) fn of(base: u64, words: Vec<u64>, count: u32) -> Bits {
        let mut bits = Bits { base, count, first: 0, last: 0, words: Arc::new(words) };
        bits.measure_ends();
        bits
    }

    /// Allocates the whole window, so that adding single bits does not move the words.
    pub(super) fn reserve(&mut self) {
        let words = Arc::make_mut(&mut self.words);
        words.reserve_exact(WORDS - words.len());
    }

    fn measure_ends(&mut self) {
        if let Some(at) = self.words.iter().position(|word| *word != 0) {
            self.first = (at * 64) as u16 + self.words[at].trailing_zeros() as u16;
        }
        if let Some(at) = self.words.iter().rposition(|word| *word != 0) {
            self.last = (at * 64) as u16 + 63 - self.words[at].leading_zeros() as u16;
        }
    }

    pub(super) fn has(&self, offset: u64) -> bool {
        self.words.get((offset / 64) as usize).is_some_and(|word| word >> (offset % 64) & 1 == 1)
    }

    /// Sets a bit; false if it was set.
    pub(super) fn set(&mut self, offset: u16) -> bool {
        let (at, bit) = (usize::from(offset / 64), 1u64 << (offset % 64));
        let words = Arc::make_mut(&mut self.words);
        if at >= words.len() {
            words.reserve_exact(WORDS - words.len());
            words.resize(at + 1, 0);
        }
        let fresh = words[at] & bit == 0;
        if fresh {
            words[at] |= bit;
            self.first = if self.count == 0 { offset } else { self.first.min(offset) };
            self.last = self.last.max(offset);
            self.count += 1;
        }
        fresh
    }

    /// Clears a bit; false if it was clear. May leave the bitmap empty: then the caller drops it.
    pub(super) fn clear(&mut self, offset: u64) -> bool {
        let held = self.has(offset);
        if held {
            Arc::make_mut(&mut self.words)[(offset / 64) as usize] &= !(1u64 << (offset % 64));
            self.count -= 1;
            if offset == u64::from(self.first) || offset == u64::from(self.last) {
                self.measure_ends();
            }
        }
        held
    }

    fn rank(&self, number: u64) -> u64 {
        let offset = number.saturating_sub(self.base).min(WINDOW);
        if offset > u64::from(self.last) {
            return u64::from(self.count);
        }
        let (whole, rest) = ((offset / 64) as usize, offset % 64);
        let below = self.words.iter().take(whole).map(|word| word.count_ones()).sum::<u32>();
        let part = self.words.get(whole).map_or(0, |word| (word & ((1 << rest) - 1)).count_ones());
        u64::from(below + part)
    }

    fn select(&self, rank: u64) -> u64 {
        let mut left = rank as u32;
        for (at, word) in self.words.iter().enumerate() {
            if left < word.count_ones() {
                let mut word = *word;
                for _ in 0..left {
                    word &= word - 1;
                }
                return self.base + at as u64 * 64 + u64::from(word.trailing_zeros());
            }
            left -= word.count_ones();
        }
        unreachable!("rank {rank} of a bitmap of {} numbers", self.count)
    }
}

impl Seg {
    pub(super) fn first(&self) -> u64 {
        match self {
            Seg::Run(run) => run.first,
            Seg::Sparse(block) => block.number(0),
            Seg::Bits(block) => block.base + u64::from(block.first),
        }
    }

    pub(super) fn last(&self) -> u64 {
        match self {
            Seg::Run(run) => run.last(),
            Seg::Sparse(block) => block.number(block.offsets.len() - 1),
            Seg::Bits(block) => block.base + u64::from(block.last),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Seg::Run(run) => run.count,
            Seg::Sparse(block) => block.offsets.len() as u64,
            Seg::Bits(block) => u64::from(block.count),
        }
    }

    /// The window of a block; `None` for a run.
    pub(super) fn block_base(&self) -> Option<u64> {
        match self {
            Seg::Run(_) => None,
            Seg::Sparse(block) => Some(block.base),
            Seg::Bits(block) => Some(block.base),
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        match self {
            Seg::Run(run) => run.contains(number),
            Seg::Sparse(block) => number
                .checked_sub(block.base)
                .and_then(|offset| u16::try_from(offset).ok())
                .is_some_and(|offset| block.offsets.binary_search(&offset).is_ok()),
            Seg::Bits(block) => number.checked_sub(block.base).is_some_and(|offset| block.has(offset)),
        }
    }

    /// How many of its numbers are smaller than `number`.
    pub(super) fn rank(&self, number: u64) -> u64 {
        match self {
            Seg::Run(run) => run.rank(number),
            Seg::Sparse(block) => block.rank(number) as u64,
            Seg::Bits(block) => block.rank(number),
        }
    }

    /// The number of rank `rank < len()`.
    pub(super) fn select(&self, rank: u64) -> u64 {
        match self {
            Seg::Run(run) => run.first + rank * run.step,
            Seg::Sparse(block) => block.number(rank as usize),
            Seg::Bits(block) => block.select(rank),
        }
    }

    /// Its numbers within `low ..= high`; `None` if there are none.
    pub(super) fn clip(&self, low: u64, high: u64) -> Option<Seg> {
        if low <= self.first() && self.last() <= high {
            return Some(self.clone());
        }
        match self {
            Seg::Run(run) => run.clip(low, high).map(Seg::Run),
            Seg::Sparse(block) => {
                let end = high.checked_add(1).map_or(block.offsets.len(), |high| block.rank(high));
                let kept = block.offsets.get(block.rank(low)..end)?;
                (!kept.is_empty())
                    .then(|| Seg::Sparse(Sparse { base: block.base, offsets: Arc::new(kept.to_vec()) }))
            }
            Seg::Bits(block) => {
                let mut window = Window::new(block.base);
                window.or_words(&block.words);
                window.keep(low, high);
                window.pack()
            }
        }
    }

    pub(super) fn view(&self) -> Segment<'_> {
        match self {
            Seg::Run(run) => Segment::Run(*run),
            Seg::Sparse(block) => Segment::Sparse { base: block.base, offsets: &block.offsets },
            Seg::Bits(block) => Segment::Bits { base: block.base, words: &block.words, count: block.count },
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Seg::Run(_) => 0,
            Seg::Sparse(block) => SHARED_BYTES + block.offsets.capacity() * 2,
            Seg::Bits(block) => SHARED_BYTES + block.words.capacity() * 8,
        }
    }
}

/// The bitmap of one window: where differing segments meet.
#[derive(Clone)]
pub(super) struct Window {
    pub(super) base: u64,
    pub(super) words: Box<[u64; WORDS]>,
}

impl Window {
    pub(super) fn new(base: u64) -> Window {
        Window { base, words: Box::new([0; WORDS]) }
    }

    /// Empties it and moves it to `base`.
    pub(super) fn reset(&mut self, base: u64) {
        self.base = base;
        self.words.fill(0);
    }

    pub(super) fn or_words(&mut self, words: &[u64]) {
        for (own, word) in self.words.iter_mut().zip(words) {
            *own |= word;
        }
    }

    /// Adds the numbers of `seg`, all of which are in this window.
    pub(super) fn or_seg(&mut self, seg: &Seg) {
        match seg {
            Seg::Run(run) => self.or_run(*run),
            Seg::Sparse(block) => {
                for offset in block.offsets.iter() {
                    self.words[usize::from(offset / 64)] |= 1 << (offset % 64);
                }
            }
            Seg::Bits(block) => self.or_words(&block.words),
        }
    }

    /// Adds the numbers of `run`, all of which are in this window.
    pub(super) fn or_run(&mut self, run: Run) {
        let (first, last) = ((run.first - self.base) as usize, (run.last() - self.base) as usize);
        if run.step == 1 {
            let (low, high) = (first / 64, last / 64);
            let (head, tail) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
            if low == high {
                self.words[low] |= head & tail;
            } else {
                self.words[low] |= head;
                self.words[low + 1..high].fill(u64::MAX);
                self.words[high] |= tail;
            }
            return;
        }
        if run.step < 64 {
            for (at, word) in stride_words(first, last, run.step as usize) {
                self.words[at] |= word;
            }
            return;
        }
        for offset in (first..=last).step_by(run.step as usize) {
            self.words[offset / 64] |= 1 << (offset % 64);
        }
    }

    /// Drops what is outside `low ..= high`.
    pub(super) fn keep(&mut self, low: u64, high: u64) {
        let mut mask = Window::new(self.base);
        let (low, high) = (low.max(self.base), high.min(window_end(self.base)));
        if low <= high {
            mask.or_run(Run::normal(low, high - low + 1, 1));
        }
        for (own, word) in self.words.iter_mut().zip(mask.words.iter()) {
            *own &= word;
        }
    }

    /// As a block, sparse or bitmap, whichever is smaller; `None` if empty.
    pub(super) fn pack(&self) -> Option<Seg> {
        let used = self.words.iter().rposition(|word| *word != 0)? + 1;
        let words = &self.words[..used];
        Some(pack_words(self.base, words.into(), population(words)))
    }
}

/// The smaller block of the `count ≥ 1` numbers in `words`, the last of which is not zero.
pub(super) fn pack_words(base: u64, words: Cow<'_, [u64]>, count: u64) -> Seg {
    if count as usize <= SPARSE_MAX && 2 * count <= 8 * words.len() as u64 {
        let mut offsets = Vec::with_capacity(count as usize);
        for_each_bit(&words, |offset| offsets.push(offset));
        return Seg::Sparse(Sparse { base, offsets: Arc::new(offsets) });
    }
    Seg::Bits(Bits::of(base, words.into_owned(), count as u32))
}

/// How many bits are set.
pub(super) fn population(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Calls `take` with the offset of every set bit, ascending.
pub(super) fn for_each_bit(words: &[u64], mut take: impl FnMut(u16)) {
    for (at, word) in words.iter().enumerate() {
        let mut word = *word;
        while word != 0 {
            take((at * 64) as u16 + word.trailing_zeros() as u16);
            word &= word - 1;
        }
    }
}

/// The words (place, bits) of the offsets `first, first + step, … ≤ last`, for a step below 64.
fn stride_words(first: usize, last: usize, step: usize) -> impl Iterator<Item = (usize, u64)> {
    let pattern = (0..64).step_by(step).fold(0u64, |word, bit| word | 1 << bit);
    let (low, high) = (first / 64, last / 64);
    let mut phase = first % 64;
    (low..=high).map(move |at| {
        let ends = if at == high { u64::MAX >> (63 - last % 64) } else { u64::MAX };
        let word = pattern << phase & ends;
        // The first offset of the next word, reckoned from there.
        phase = (phase + step - 64 % step) % step;
        (at, word)
    })
}

/// The run that the `count` numbers in `words` make, where it is dense and they make one.
fn one_run(base: u64, words: &[u64], count: u64) -> Option<Run> {
    let low = words.iter().position(|word| *word != 0)?;
    let first = low * 64 + words[low].trailing_zeros() as usize;
    let last = words.len() * 64 - 1 - words.last()?.leading_zeros() as usize;
    let step = (last - first).checked_div(count as usize - 1)?;
    if !(1..64).contains(&step) || !(last - first).is_multiple_of(step) {
        return None;
    }
    // The step is at most the mean distance: a run that is all in `words` leaves room for no other
    // number.
    let all = stride_words(first, last, step).all(|(at, word)| words[at] & word == word);
    all.then(|| Run::normal(base + first as u64, count, step as u64))
}

/// This many words show whether it is worth walking the rest.
const SAMPLE_WORDS: usize = 8;

/// Whether `words` will probably give far more than `limit` runs. Its first [`SAMPLE_WORDS`] words
/// gave `runs`; the estimate assumes that the rest is similar. A wrong estimate costs memory, at
/// most that of a bitmap.
fn irregular(words: &[u64], runs: usize, limit: usize) -> bool {
    let expected = runs * words.len() / SAMPLE_WORDS;
    let islands = || words.iter().map(|word| u64::from((word & !(word << 1)).count_ones())).sum::<u64>();
    expected > 4 * limit && islands() > 4 * limit as u64
}

/// The greedy runs of the `count ≥ 1` numbers in `words` (the last of which is not zero), or `None`
/// if there are more than `limit`.
pub(super) fn runs_of_words(base: u64, words: &[u64], count: u64, limit: usize) -> Option<Vec<Run>> {
    if let Some(run) = one_run(base, words, count) {
        return Some(vec![run]);
    }
    let (mut greedy, mut runs) = (Greedy::default(), Vec::new());
    for (at, word) in words.iter().enumerate() {
        if at == SAMPLE_WORDS && irregular(words, runs.len(), limit) {
            return None;
        }
        let (mut start, mut word) = (base + at as u64 * 64, *word);
        while word != 0 {
            let skip = word.trailing_zeros();
            let ones = (word >> skip).trailing_ones();
            start += u64::from(skip);
            let mut left = Some(Run { first: start, count: u64::from(ones), step: 1 });
            while let Some(run) = left {
                let (ended, rest) = greedy.run(run);
                runs.extend(ended);
                left = rest;
            }
            start += u64::from(ones);
            word = word.checked_shr(skip + ones).unwrap_or(0);
        }
        if runs.len() >= limit {
            return None;
        }
    }
    runs.extend(greedy.finish());
    (runs.len() <= limit).then_some(runs)
}
