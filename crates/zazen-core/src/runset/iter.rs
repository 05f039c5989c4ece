//! Walking a set: its numbers, and its greedy runs. Both are lazy and hold no numbers.

use super::run::{Greedy, Run};
use super::segment::Seg;
use std::slice;

/// All numbers of a set, ascending.
#[derive(Clone)]
pub(super) struct Numbers<'a> {
    segs: slice::Iter<'a, Seg>,
    part: Part<'a>,
    left: u64,
}

#[derive(Clone)]
enum Part<'a> {
    Run {
        next: u64,
        left: u64,
        step: u64,
    },
    Sparse {
        base: u64,
        offsets: slice::Iter<'a, u16>,
    },
    /// `base` is that of the words still to come; `word` is what is left of the one before.
    Bits {
        base: u64,
        word: u64,
        words: slice::Iter<'a, u64>,
    },
}

impl<'a> Part<'a> {
    fn of(seg: &'a Seg) -> Part<'a> {
        match seg {
            Seg::Run(run) => Part::Run { next: run.first, left: run.count, step: run.step },
            Seg::Sparse(block) => Part::Sparse { base: block.base, offsets: block.offsets.iter() },
            Seg::Bits(block) => Part::Bits { base: block.base, word: 0, words: block.words.iter() },
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
            Part::Sparse { base, offsets } => offsets.next().map(|offset| *base + u64::from(*offset)),
            Part::Bits { base, word, words } => {
                while *word == 0 {
                    *word = *words.next()?;
                    *base += 64;
                }
                let bit = u64::from(word.trailing_zeros());
                *word &= *word - 1;
                Some((*base - 64) + bit)
            }
        }
    }
}

impl<'a> Numbers<'a> {
    pub(super) fn new(segs: &'a [Seg], len: u64) -> Numbers<'a> {
        Numbers { segs: segs.iter(), part: Part::Run { next: 0, left: 0, step: 1 }, left: len }
    }
}

impl Iterator for Numbers<'_> {
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
pub(super) struct Runs<'a> {
    segs: slice::Iter<'a, Seg>,
    part: Part<'a>,
    run: Option<Run>,
    greedy: Greedy,
}

impl<'a> Runs<'a> {
    pub(super) fn new(segs: &'a [Seg]) -> Runs<'a> {
        Runs {
            segs: segs.iter(),
            part: Part::Run { next: 0, left: 0, step: 1 },
            run: None,
            greedy: Greedy::default(),
        }
    }
}

impl Iterator for Runs<'_> {
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
                    Some(Seg::Run(run)) => self.run = Some(*run),
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
