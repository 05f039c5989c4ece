//! Adding and removing one number in the middle of a set.
//!
//! A run is split, never expanded; a block is changed in place. Where single edits crowd a window
//! with segments, they are folded into one block.

use super::RunSet;
use super::append::{FOLD_SEGMENTS_MAX, spill};
use super::run::Run;
use super::segment::{SEGMENT_BYTES, SPARSE_MAX, Seg, Window, base_of, window_end};
use std::sync::Arc;

/// Segments in a window before folding is considered at all.
const CROWD: usize = 8;

impl RunSet {
    /// Adds a number that is smaller than the last one.
    pub(super) fn insert_inside(&mut self, number: u64) -> bool {
        let at = self.segs.partition_point(|seg| seg.first() <= number);
        if at > 0 && number <= self.segs[at - 1].last() {
            let added = self.insert_into(at - 1, number);
            self.len += u64::from(added);
            return added;
        }
        self.insert_between(at, number);
        self.len += 1;
        true
    }

    /// Adds a number within the span of segment `at`; false if it was there.
    fn insert_into(&mut self, at: usize, number: u64) -> bool {
        let Seg::Run(run) = self.segs[at] else {
            return self.add_to_block(at, number);
        };
        if run.contains(number) {
            return false;
        }
        let (before, after) = run.split(number);
        let mut parts: Vec<Run> = Vec::with_capacity(3);
        for part in before.into_iter().chain([Run::single(number)]).chain(after) {
            if !parts.last_mut().is_some_and(|last| last.join(&part)) {
                parts.push(part);
            }
        }
        self.segs.splice(at..=at, parts.into_iter().map(Seg::Run));
        self.fold_around(at, number);
        true
    }

    /// Adds a number in the gap before segment `at`, preferring to extend a neighbour.
    fn insert_between(&mut self, at: usize, number: u64) {
        let base = base_of(number);
        for near in [at.checked_sub(1), Some(at)].into_iter().flatten() {
            if self.segs.get(near).is_some_and(|seg| seg.block_base() == Some(base)) {
                self.add_to_block(near, number);
                return;
            }
        }
        let new = Run::single(number);
        let joined_before = match at.checked_sub(1).map(|before| &mut self.segs[before]) {
            Some(Seg::Run(run)) if run.count > 1 => run.join(&new),
            _ => false,
        };
        if joined_before {
            self.join_at(at - 1);
            return;
        }
        if let Some(Seg::Run(next)) = self.segs.get_mut(at) {
            let mut longer = new;
            if longer.join(next) {
                *next = longer;
                if at > 0 {
                    self.join_at(at - 1);
                }
                return;
            }
        }
        if let Some(Seg::Run(run)) = at.checked_sub(1).map(|before| &mut self.segs[before])
            && run.join(&new)
        {
            return;
        }
        self.segs.insert(at, Seg::Run(new));
        self.fold_around(at, number);
    }

    /// Joins the runs `at` and `at + 1` if they make one.
    fn join_at(&mut self, at: usize) {
        if let Some([Seg::Run(run), Seg::Run(next)]) = self.segs.get_mut(at..at + 2)
            && run.join(next)
        {
            self.segs.remove(at + 1);
        }
    }

    fn add_to_block(&mut self, at: usize, number: u64) -> bool {
        let last = at + 1 == self.segs.len();
        let added = match &mut self.segs[at] {
            Seg::Run(_) => unreachable!("a run is no block"),
            Seg::Bits(bits) => bits.set((number - bits.base) as u16),
            Seg::Sparse(sparse) => {
                let offset = (number - sparse.base) as u16;
                match sparse.offsets.binary_search(&offset) {
                    Ok(_) => false,
                    Err(place) => {
                        Arc::make_mut(&mut sparse.offsets).insert(place, offset);
                        true
                    }
                }
            }
        };
        if matches!(&self.segs[at], Seg::Sparse(sparse) if sparse.offsets.len() > SPARSE_MAX) {
            spill(&mut self.segs[at]);
        }
        self.open |= last && added;
        added
    }

    /// Removes a number of segment `at`, which holds it.
    pub(super) fn remove_from(&mut self, at: usize, number: u64) {
        self.len -= 1;
        match &mut self.segs[at] {
            Seg::Run(run) => {
                let (before, rest) = run.split(number);
                let after = rest.and_then(|rest| rest.ranks(1, rest.count));
                let split = before.is_some() && after.is_some();
                self.segs.splice(at..=at, before.into_iter().chain(after).map(Seg::Run));
                if split {
                    self.fold_around(at, number);
                }
            }
            Seg::Sparse(block) => {
                let offset = number - block.base;
                let place = block.offsets.partition_point(|held| u64::from(*held) < offset);
                Arc::make_mut(&mut block.offsets).remove(place);
                if block.offsets.is_empty() {
                    self.drop_segment(at);
                }
            }
            Seg::Bits(block) => {
                block.clear(number - block.base);
                if block.count == 0 {
                    self.drop_segment(at);
                } else if block.count as usize <= SPARSE_MAX / 2 {
                    let mut window = Window::new(block.base);
                    window.or_words(&block.words);
                    if let Some(packed) = window.pack() {
                        self.segs[at] = packed;
                    }
                }
            }
        }
    }

    fn drop_segment(&mut self, at: usize) {
        self.segs.remove(at);
        self.open &= at < self.segs.len();
    }

    /// Folds the segments that lie in the window of `number`, near segment `at`, where a block is
    /// smaller.
    fn fold_around(&mut self, at: usize, number: u64) {
        let (base, end_of_window) = (base_of(number), window_end(base_of(number)));
        let reach = 2 * FOLD_SEGMENTS_MAX;
        let before = self.segs[..at].iter().rev().take(reach).take_while(|seg| seg.first() >= base).count();
        let straddling = self.segs[at - before..].iter().take_while(|seg| seg.first() < base).count();
        let start = at - before + straddling;
        let crowd = self.segs[start..].iter().take(2 * reach).take_while(|seg| seg.last() <= end_of_window);
        let (crowd, numbers) = crowd.fold((0, 0), |(crowd, numbers), seg| (crowd + 1, numbers + seg.len()));
        let cheaper = crowd >= CROWD && numbers as usize * 2 < (crowd - 1) * SEGMENT_BYTES;
        if cheaper || crowd >= FOLD_SEGMENTS_MAX {
            let end = start + crowd;
            self.open &= end < self.segs.len();
            self.fold(start, end);
        }
    }
}
