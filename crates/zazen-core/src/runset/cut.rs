//! From frame numbers to the index space of a request and back.
//!
//! Both maps keep order, so that the parts of a set map one by one: runs in closed form, bitmaps by
//! shifting words where the stride is 1, other blocks number by number.

use super::RunSet;
use super::run::Run;
use super::segment::{Seg, Sparse, WINDOW, WORDS, Window, base_of, for_each_bit};
use crate::request::Request;

impl RunSet {
    /// The numbers that `request` names, as indices of its index space. A run stays a run (closed
    /// form).
    pub fn cut(&self, request: &Request) -> RunSet {
        let (begin, stride) = (request.begin(), request.stride());
        let wanted = Run::normal(begin, request.count(), stride);
        let mut out = Shifted::new();
        self.for_each_clipped(begin, wanted.last(), |seg| match seg {
            Seg::Run(run) => {
                if let Some(met) = run.intersection(&wanted) {
                    out.run(Run::normal((met.first - begin) / stride, met.count, (met.step / stride).max(1)));
                }
            }
            block if stride == 1 => out.block(block, 0u64.wrapping_sub(begin)),
            block => for_each_number(block, |number| {
                if (number - begin).is_multiple_of(stride) {
                    out.set.append((number - begin) / stride);
                }
            }),
        });
        out.finish()
    }

    /// Indices of `request` back to frame numbers; inverse of [`RunSet::cut`] within the request.
    /// Indices beyond the request are dropped.
    pub fn uncut(&self, request: &Request) -> RunSet {
        let (begin, stride) = (request.begin(), request.stride());
        let mut out = Shifted::new();
        self.for_each_clipped(0, request.count() - 1, |seg| match seg {
            Seg::Run(run) => {
                let step = if run.count == 1 { 1 } else { run.step * stride };
                out.run(Run { first: begin + run.first * stride, count: run.count, step });
            }
            block if stride == 1 => out.block(block, begin),
            block => for_each_number(block, |index| out.set.append(begin + index * stride)),
        });
        out.finish()
    }
}

fn for_each_number(block: &Seg, mut take: impl FnMut(u64)) {
    match block {
        Seg::Run(_) => unreachable!("runs map in closed form"),
        Seg::Sparse(block) => block.offsets.iter().for_each(|offset| take(block.base + u64::from(*offset))),
        Seg::Bits(block) => for_each_bit(&block.words, |offset| take(block.base + u64::from(offset))),
    }
}

/// A set that grows by shifted parts. `pending` collects the words of the window that shifted
/// bitmaps reach into; it is passed on before anything else is.
struct Shifted {
    set: RunSet,
    pending: Option<Window>,
}

impl Shifted {
    fn new() -> Shifted {
        Shifted { set: RunSet::new(), pending: None }
    }

    fn flush(&mut self) {
        if let Some(window) = self.pending.take() {
            self.set.append_words(window.base, &window.words[..]);
        }
    }

    fn run(&mut self, run: Run) {
        self.flush();
        self.set.append_run(run);
    }

    /// Appends `block` moved by `distance` (modulo 2⁶⁴).
    fn block(&mut self, block: &Seg, distance: u64) {
        match block {
            Seg::Run(run) => self.run(Run { first: run.first.wrapping_add(distance), ..*run }),
            Seg::Sparse(sparse) if distance.is_multiple_of(WINDOW) => {
                self.flush();
                let base = sparse.base.wrapping_add(distance);
                self.set.append_block(&Seg::Sparse(Sparse { base, offsets: sparse.offsets.clone() }));
            }
            Seg::Sparse(sparse) => {
                self.flush();
                let base = sparse.base.wrapping_add(distance);
                for offset in sparse.offsets.iter() {
                    self.set.append(base.wrapping_add(u64::from(*offset)));
                }
            }
            Seg::Bits(bits) if distance.is_multiple_of(WINDOW) => {
                self.flush();
                let mut moved = bits.clone();
                moved.base = bits.base.wrapping_add(distance);
                self.set.append_block(&Seg::Bits(moved));
            }
            Seg::Bits(bits) => self.words(bits.base.wrapping_add(distance), &bits.words),
        }
    }

    /// Adds a bitmap that begins at any number. The number may be below 0; then the first words are
    /// empty.
    fn words(&mut self, start: u64, words: &[u64]) {
        let shift = start % 64;
        let mut carry = 0;
        for at in 0..=words.len() {
            let word = words.get(at).copied().unwrap_or(0);
            let place = (start - shift).wrapping_add(at as u64 * 64);
            let value = word << shift | carry;
            carry = if shift == 0 { 0 } else { word >> (64 - shift) };
            if value != 0 {
                self.word(place, value);
            }
        }
    }

    fn word(&mut self, place: u64, value: u64) {
        let base = base_of(place);
        if self.pending.as_ref().is_some_and(|window| window.base != base) {
            self.flush();
        }
        let window = self.pending.get_or_insert_with(|| Window::new(base));
        window.words[(place / 64) as usize % WORDS] |= value;
    }

    fn finish(mut self) -> RunSet {
        self.flush();
        self.set.seal();
        self.set
    }
}
