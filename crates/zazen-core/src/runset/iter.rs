//! Walking a set: its numbers, and its greedy runs. Both are lazy and hold no numbers.

use super::run::{Greedy, Run};
use super::segment::Seg;
use std::sync::Arc;

/// All numbers of a set, ascending.
#[derive(Clone)]
pub(super) struct Numbers<S> {
    segs: S,
    part: Part,
    left: u64,
}

/// The rest of a segment. Its block is shared with the set.
#[derive(Clone)]
enum Part {
    Run {
        next: u64,
        left: u64,
        step: u64,
    },
    Sparse {
        base: u64,
        offsets: Arc<Vec<u16>>,
        at: usize,
    },
    /// `base` is that of word `at`, the next one; `word` is what is left of the one before.
    Bits {
        base: u64,
        word: u64,
        words: Arc<Vec<u64>>,
        at: usize,
    },
}

impl Part {
    fn of(seg: Seg) -> Part {
        match seg {
            Seg::Run(run) => Part::Run { next: run.first, left: run.count, step: run.step },
            Seg::Sparse(block) => Part::Sparse { base: block.base, offsets: block.offsets, at: 0 },
            Seg::Bits(block) => Part::Bits { base: block.base, word: 0, words: block.words, at: 0 },
        }
    }

    fn next(&mut self) -> Option<u64> {
        match self {
            Part::Run { left: 0, .. } => None,
            Part::Run { next, left, step } => {
                let number = *next;
                *left -= 1;
                if *left > 0 {
                    *next += *step;
                }
                Some(number)
            }
            Part::Sparse { base, offsets, at } => {
                let offset = offsets.get(*at)?;
                *at += 1;
                Some(*base + u64::from(*offset))
            }
            Part::Bits { base, word, words, at } => {
                while *word == 0 {
                    *word = *words.get(*at)?;
                    *at += 1;
                    *base += 64;
                }
                let bit = u64::from(word.trailing_zeros());
                *word &= *word - 1;
                Some((*base - 64) + bit)
            }
        }
    }
}

impl<S: Iterator<Item = Seg>> Numbers<S> {
    pub(super) fn new(segs: S, len: u64) -> Numbers<S> {
        Numbers { segs, part: Part::Run { next: 0, left: 0, step: 1 }, left: len }
    }
}

impl<S: Iterator<Item = Seg>> Iterator for Numbers<S> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            if let Some(number) = self.part.next() {
                self.left -= 1;
                return Some(number);
            }
            self.part = Part::of(self.segs.next()?);
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

/// The greedy runs of a set; the sequence depends on the set alone, not on its segments.
#[derive(Clone)]
pub(super) struct Runs<S> {
    segs: S,
    part: Part,
    run: Option<Run>,
    greedy: Greedy,
}

impl<S: Iterator<Item = Seg>> Runs<S> {
    pub(super) fn new(segs: S) -> Runs<S> {
        Runs { segs, part: Part::Run { next: 0, left: 0, step: 1 }, run: None, greedy: Greedy::default() }
    }
}

impl<S: Iterator<Item = Seg>> Iterator for Runs<S> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        loop {
            let ended = if let Some(run) = self.run.take() {
                let (ended, rest) = self.greedy.run(run);
                self.run = rest;
                ended
            } else if let Some(number) = self.part.next() {
                self.greedy.number(number)
            } else {
                match self.segs.next() {
                    Some(Seg::Run(run)) => self.run = Some(run),
                    Some(block) => self.part = Part::of(block),
                    None => return self.greedy.finish(),
                }
                None
            };
            if ended.is_some() {
                return ended;
            }
        }
    }
}
