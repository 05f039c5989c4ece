//! Building a set from ascending parts: the one place where segments are chosen, joined and folded.
//!
//! Invariant: all appended numbers are greater than the last number. The last block is *open* while
//! single numbers are still added to it. It is sealed (brought to its smallest form) once a number
//! falls behind its window.

use super::RunSet;
use super::run::{Greedy, NUMBER_MAX, Run};
use super::segment::{
    Bits, SEGMENT_BYTES, SPARSE_MAX, Seg, Sparse, Window, base_of, pack_words, population, runs_of_words,
    window_end,
};
use std::borrow::Cow;
use std::sync::Arc;

/// A run of at least this length stays a run behind an open block of its window.
const RUN_WORTH: u64 = 64;
/// The number of short runs at the end of one window that are considered for folding into a block.
const FOLD_SEGMENTS: usize = 8;
/// This many segments in one window cost more than any block.
pub(super) const FOLD_SEGMENTS_MAX: usize = 8192 / SEGMENT_BYTES + 8;

impl RunSet {
    pub(super) fn append(&mut self, number: u64) {
        assert!(number <= NUMBER_MAX, "number {number} is beyond the limit of run sets, {NUMBER_MAX}");
        self.append_run(Run::single(number));
    }

    pub(super) fn append_run(&mut self, run: Run) {
        debug_assert!(run.is_valid() && self.last().is_none_or(|last| last < run.first));
        self.forget_ranks();
        self.len += run.count;
        self.place_run(run);
    }

    fn place_run(&mut self, run: Run) {
        match self.segs.last_mut() {
            Some(Seg::Run(tail)) => {
                if tail.join(&run) {
                    return;
                }
                // Two numbers do not yet show a stride: the second may begin the next run.
                if tail.count == 2 && run.count > 1 && run.first - tail.last() == run.step {
                    let begin = tail.last();
                    *tail = Run::single(tail.first);
                    let longer = Run { first: begin, count: run.count + 1, step: run.step };
                    self.segs.push(Seg::Run(longer));
                    return;
                }
            }
            Some(block) if block.block_base() == Some(base_of(run.first)) && run.count < RUN_WORTH => {
                let base = base_of(run.first);
                if run.last() <= window_end(base) {
                    for rank in 0..run.count {
                        push_offset(block, (run.first - base + rank * run.step) as u16);
                    }
                    self.open = true;
                    return;
                }
            }
            _ => {}
        }
        if self.open {
            self.seal();
            return self.place_run(run);
        }
        self.segs.push(Seg::Run(run));
        self.fold_tail();
    }

    /// Appends a block that is in its smallest form already.
    pub(super) fn append_block(&mut self, block: &Seg) {
        self.forget_ranks();
        self.len += block.len();
        if let Some(tail) = self.segs.last_mut()
            && tail.block_base() == block.block_base()
        {
            merge_blocks(tail, block);
            self.open = true;
            return;
        }
        self.seal();
        self.segs.push(block.clone());
    }

    pub(super) fn append_seg(&mut self, seg: &Seg) {
        match seg {
            Seg::Run(run) => self.append_run(*run),
            block => self.append_block(block),
        }
    }

    /// Appends the numbers of a window in their smallest form: runs that join what is there, or a
    /// block.
    pub(super) fn append_words<'a>(&mut self, base: u64, words: impl Into<Cow<'a, [u64]>>) {
        let mut words = words.into();
        let Some(used) = words.iter().rposition(|word| *word != 0).map(|at| at + 1) else {
            return;
        };
        match &mut words {
            Cow::Borrowed(words) => *words = &words[..used],
            Cow::Owned(words) => words.truncate(used),
        }
        let count = population(&words);
        self.forget_ranks();
        if self.segs.last().is_some_and(|tail| tail.block_base() == Some(base)) {
            self.append_block(&pack_words(base, words, count));
            return;
        }
        self.seal();
        self.len += count;
        self.place_words(base, words, count);
    }

    fn place_words(&mut self, base: u64, words: Cow<'_, [u64]>, count: u64) {
        let limit = (2 * count as usize).min(8 * words.len()) / SEGMENT_BYTES + 1;
        match runs_of_words(base, &words, count, limit) {
            Some(runs) => self.place_runs(&runs),
            None => self.segs.push(pack_words(base, words, count)),
        }
    }

    /// Appends runs that are known to be the smallest form: they are joined, never folded.
    fn place_runs(&mut self, runs: &[Run]) {
        for run in runs {
            let joined = match self.segs.last_mut() {
                Some(Seg::Run(tail)) => tail.join(run),
                _ => false,
            };
            if !joined {
                self.segs.push(Seg::Run(*run));
            }
        }
    }

    /// Brings an open last block to its smallest form.
    pub(super) fn seal(&mut self) {
        if !self.open {
            return;
        }
        self.open = false;
        match self.segs.pop() {
            Some(Seg::Sparse(block)) => self.place_offsets(block),
            Some(Seg::Bits(block)) => {
                self.place_words(block.base, Cow::Borrowed(&block.words), u64::from(block.count));
            }
            other => self.segs.extend(other),
        }
    }

    /// Appends the numbers `base + offsets[i]`, ascending, in their smallest form.
    pub(super) fn append_offsets(&mut self, base: u64, offsets: &[u16]) {
        let in_tail = self.segs.last().is_some_and(|tail| tail.block_base() == Some(base));
        if in_tail || offsets.len() < RUN_WORTH as usize || offsets.len() > SPARSE_MAX {
            offsets.iter().for_each(|offset| self.append(base + u64::from(*offset)));
            return;
        }
        self.forget_ranks();
        self.seal();
        self.len += offsets.len() as u64;
        self.place_offsets(Sparse { base, offsets: Arc::new(offsets.to_vec()) });
    }

    fn place_offsets(&mut self, mut block: Sparse) {
        let span = usize::from(block.offsets.last().copied().unwrap_or(0)) / 64 + 1;
        let bytes = (2 * block.offsets.len()).min(8 * span);
        let limit = bytes / SEGMENT_BYTES + 1;
        let (mut greedy, mut runs) = (Greedy::default(), Vec::new());
        for offset in block.offsets.iter() {
            runs.extend(greedy.number(block.base + u64::from(*offset)));
            if runs.len() >= limit {
                break;
            }
        }
        runs.extend(greedy.finish());
        if runs.len() <= limit {
            self.place_runs(&runs);
        } else if bytes < 2 * block.offsets.len() {
            let mut window = Window::new(block.base);
            window.or_seg(&Seg::Sparse(block));
            self.segs.extend(window.pack());
        } else {
            Arc::make_mut(&mut block.offsets).shrink_to_fit();
            self.segs.push(Seg::Sparse(block));
        }
    }

    /// Folds the last segments into an open block where short runs crowd one window.
    fn fold_tail(&mut self) {
        let end = self.segs.len();
        if end < FOLD_SEGMENTS {
            return;
        }
        let base = base_of(self.segs[end - 1].first());
        if self.segs[end - FOLD_SEGMENTS].first() < base || self.segs[end - 1].last() > window_end(base) {
            return;
        }
        let crowd = &self.segs[end - FOLD_SEGMENTS..];
        let numbers = crowd.iter().map(Seg::len).sum::<u64>();
        let start = if numbers as usize * 2 < FOLD_SEGMENTS * SEGMENT_BYTES / 2 {
            end - FOLD_SEGMENTS
        } else if end >= FOLD_SEGMENTS_MAX && self.segs[end - FOLD_SEGMENTS_MAX].first() >= base {
            self.segs.partition_point(|seg| seg.first() < base)
        } else {
            return;
        };
        self.fold(start, end);
        self.open = true;
    }

    /// Replaces segments `start .. end`, all in one window, by one block.
    pub(super) fn fold(&mut self, start: usize, end: usize) {
        let mut window = Window::new(base_of(self.segs[start].first()));
        for seg in &self.segs[start..end] {
            window.or_seg(seg);
        }
        self.segs.splice(start..end, window.pack());
    }
}

/// Adds an offset behind the last one of a block.
fn push_offset(block: &mut Seg, offset: u16) {
    match block {
        Seg::Run(_) => unreachable!("a run is no block"),
        Seg::Bits(bits) => {
            bits.set(offset);
        }
        Seg::Sparse(sparse) => {
            Arc::make_mut(&mut sparse.offsets).push(offset);
            if sparse.offsets.len() > SPARSE_MAX {
                spill(block);
            }
        }
    }
}

/// Turns a sparse block that has become too long into a bitmap with room for its whole window.
pub(super) fn spill(block: &mut Seg) {
    if let Seg::Sparse(sparse) = block {
        let mut window = Window::new(sparse.base);
        for offset in sparse.offsets.iter() {
            window.words[usize::from(offset / 64)] |= 1 << (offset % 64);
        }
        let mut bits = Bits::new(window.base, &window.words[..]);
        bits.reserve();
        *block = Seg::Bits(bits);
    }
}

/// Adds the numbers of `next` to `tail`: blocks of one window, `next` behind.
fn merge_blocks(tail: &mut Seg, next: &Seg) {
    match next {
        Seg::Run(_) => unreachable!("a run is no block"),
        Seg::Sparse(block) => {
            for offset in block.offsets.iter() {
                push_offset(tail, *offset);
            }
        }
        Seg::Bits(_) => {
            let mut window = Window::new(base_of(next.first()));
            window.or_seg(tail);
            window.or_seg(next);
            if let Some(merged) = window.pack() {
                *tail = merged;
            }
        }
    }
}
