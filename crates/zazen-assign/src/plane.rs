//! Planes: 65 536 indices as 1024 words, the unit in which holdings are compared.
//!
//! A [`Reader`] expands a set window by window in ascending order. A [`Builder`] turns planes and
//! runs back into a set. It finds strided runs again, so regular placements stay small.

use zazen_core::{Run, RunSet, runset::Segment};
use zazen_wire::runset_codec::{Part, View};

/// Indices per window.
pub(crate) const WINDOW: u64 = 1 << 16;
/// Words per window.
pub(crate) const WORDS: usize = 1024;

/// One bit per index of a window.
pub(crate) type Plane = [u64; WORDS];

pub(crate) fn new_plane() -> Box<Plane> {
    Box::new([0; WORDS])
}

/// Sets bits `first ..= last`.
pub(crate) fn fill_range(plane: &mut Plane, first: usize, last: usize) {
    let (low, high) = (first / 64, last / 64);
    let (head, tail) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
    if low == high {
        plane[low] |= head & tail;
    } else {
        plane[low] |= head;
        plane[low + 1..high].fill(u64::MAX);
        plane[high] |= tail;
    }
}

/// Sets bits `first, first + step, … ≤ last`.
fn fill_stride(plane: &mut Plane, first: usize, last: usize, step: usize) {
    if step == 1 {
        return fill_range(plane, first, last);
    }
    if step >= 64 {
        for bit in (first..=last).step_by(step) {
            plane[bit / 64] |= 1 << (bit % 64);
        }
        return;
    }
    // A word holds the pattern of the step, shifted to where its first bit falls.
    let pattern = (0..64).step_by(step).fold(0u64, |pattern, bit| pattern | 1 << bit);
    let (low, high) = (first / 64, last / 64);
    let turn = 64 % step;
    let mut phase = first % 64;
    let mut word = pattern << phase;
    phase %= step;
    for into in &mut plane[low..high] {
        *into |= word;
        phase = if phase >= turn { phase - turn } else { phase + step - turn };
        word = pattern << phase;
    }
    plane[high] |= word & (u64::MAX >> (63 - last % 64));
}

/// A part of a set, wherever it is.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Run(Run),
    Sparse { base: u64, offsets: &'a [u16] },
    Words { base: u64, words: &'a [u64] },
    Bytes { base: u64, skipped: usize, bytes: &'a [u8] },
}

impl Piece<'_> {
    fn span(&self) -> (u64, u64) {
        match self {
            Piece::Run(run) => (run.first, run.last()),
            Piece::Sparse { base, .. } | Piece::Words { base, .. } | Piece::Bytes { base, .. } => {
                (*base, base + (WINDOW - 1))
            }
        }
    }
}

/// A set, read window by window.
pub(crate) struct Reader<'a> {
    pieces: Vec<Piece<'a>>,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(set: &'a RunSet) -> Reader<'a> {
        let piece = |segment| match segment {
            Segment::Run(run) => Piece::Run(run),
            Segment::Sparse { base, offsets } => Piece::Sparse { base, offsets },
            Segment::Bits { base, words, .. } => Piece::Words { base, words },
        };
        Reader { pieces: set.segments().map(piece).collect(), at: 0 }
    }

    /// Reads a set where it was received.
    pub(crate) fn of_view(view: &'a View<'a>) -> Reader<'a> {
        let piece = |part: &'a Part<'a>| match part {
            Part::Run(run) => Piece::Run(*run),
            Part::Sparse { base, offsets } => Piece::Sparse { base: *base, offsets },
            Part::Bitmap { base, skipped, bytes } => Piece::Bytes { base: *base, skipped: *skipped, bytes },
        };
        Reader { pieces: view.parts().iter().map(piece).collect(), at: 0 }
    }

    /// Skips the pieces that end before `base`. Windows are visited in ascending order.
    pub(crate) fn advance(&mut self, base: u64) {
        while self.pieces.get(self.at).is_some_and(|piece| piece.span().1 < base) {
            self.at += 1;
        }
    }

    /// The piece that holds `base` or follows it, if it is a run, and its span; after
    /// [`Reader::advance`] to `base`.
    pub(crate) fn next(&self) -> Option<(Option<Run>, u64, u64)> {
        self.pieces.get(self.at).map(|piece| {
            let (first, last) = piece.span();
            (if let Piece::Run(run) = piece { Some(*run) } else { None }, first, last)
        })
    }

    /// Whether anything may lie in the window at `base`; after [`Reader::advance`] to it.
    pub(crate) fn touches(&self, base: u64) -> bool {
        self.next().is_some_and(|(_, first, _)| first < base + WINDOW)
    }

    /// The piece of the window at `base`, if there is only one.
    fn only_piece(&mut self, base: u64) -> Option<Piece<'a>> {
        self.advance(base);
        let mut within = self.pieces[self.at..].iter().take_while(|piece| piece.span().0 < base + WINDOW);
        within.next().copied().filter(|_| within.next().is_none())
    }

    /// Adds the window at `base` to `plane`.
    pub(crate) fn fill(&mut self, base: u64, plane: &mut Plane) {
        self.advance(base);
        let end = base + (WINDOW - 1);
        for piece in &self.pieces[self.at..] {
            if piece.span().0 > end {
                break;
            }
            match piece {
                Piece::Run(run) => {
                    let skipped = base.saturating_sub(run.first).div_ceil(run.step);
                    let first = run.first + skipped * run.step;
                    let last = run.last().min(end);
                    if first <= last {
                        fill_stride(
                            plane,
                            (first - base) as usize,
                            (last - base) as usize,
                            run.step as usize,
                        );
                    }
                }
                Piece::Sparse { offsets, .. } => {
                    for offset in *offsets {
                        plane[usize::from(offset >> 6)] |= 1 << (offset & 63);
                    }
                }
                Piece::Words { words, .. } => {
                    for (into, from) in plane.iter_mut().zip(*words) {
                        *into |= from;
                    }
                }
                Piece::Bytes { skipped, bytes, .. } => fill_bytes(plane, *skipped, bytes),
            }
        }
    }
}

/// The indices of a window that several holders have.
pub(crate) struct Overlay {
    /// At least one holder has it.
    pub(crate) any: Box<Plane>,
    /// More than one holder has it.
    pub(crate) several: Box<Plane>,
    scratch: Box<Plane>,
}

impl Overlay {
    pub(crate) fn new() -> Overlay {
        Overlay { any: new_plane(), several: new_plane(), scratch: new_plane() }
    }

    pub(crate) fn clear(&mut self) {
        self.any.fill(0);
        self.several.fill(0);
    }

    /// Adds one more holder's words, from word `first` on. Returns how many numbers they hold.
    pub(crate) fn add(&mut self, first: usize, words: impl Iterator<Item = u64>) -> u64 {
        overlay(&mut self.any[first..], &mut self.several[first..], words)
    }

    /// Adds what `reader` has in the window at `base`. Returns how many numbers that is. A bitmap
    /// is read in place, in one pass.
    pub(crate) fn add_window(&mut self, reader: &mut Reader<'_>, base: u64) -> u64 {
        match reader.only_piece(base) {
            Some(Piece::Words { words, .. }) => self.add(0, words.iter().copied()),
            Some(Piece::Bytes { skipped, bytes, .. }) => {
                let (head, words, tail) = aligned(skipped, bytes);
                let after = (skipped + head.len()) / 8;
                let mut count = self.add(after, words.iter().map(|word| u64::from_le_bytes(*word)));
                for (at, part) in [(skipped, head), (8 * (after + words.len()), tail)] {
                    if !part.is_empty() {
                        count += self.add(at / 8, std::iter::once(word_of(at % 8, part)));
                    }
                }
                count
            }
            _ => {
                self.scratch.fill(0);
                reader.fill(base, &mut self.scratch);
                overlay(&mut self.any[..], &mut self.several[..], self.scratch.iter().copied())
            }
        }
    }
}

fn overlay(any: &mut [u64], several: &mut [u64], words: impl Iterator<Item = u64>) -> u64 {
    let mut count = 0;
    for ((any, several), word) in any.iter_mut().zip(several).zip(words) {
        *several |= *any & word;
        *any |= word;
        count += u64::from(word.count_ones());
    }
    count
}

/// Splits `bytes`, which begin at byte `skipped` of a plane, into the rest of the plane's first
/// word, whole words, and the remaining bytes.
fn aligned(skipped: usize, bytes: &[u8]) -> (&[u8], &[[u8; 8]], &[u8]) {
    let (head, rest) = bytes.split_at((8 - skipped % 8).min(bytes.len()) % 8);
    let (words, tail) = rest.as_chunks::<8>();
    (head, words, tail)
}

/// The word that has `bytes` from its byte `skipped` on.
fn word_of(skipped: usize, bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)) << (8 * skipped)
}

/// Adds `bytes` from byte `skipped` of the plane on.
fn fill_bytes(plane: &mut Plane, skipped: usize, bytes: &[u8]) {
    let (head, words, tail) = aligned(skipped, bytes);
    let after = (skipped + head.len()) / 8;
    for (at, part) in [(skipped, head), (8 * (after + words.len()), tail)] {
        if !part.is_empty() {
            plane[at / 8] |= word_of(at % 8, part);
        }
    }
    for (into, word) in plane[after..].iter_mut().zip(words) {
        *into |= u64::from_le_bytes(*word);
    }
}

/// How many bits are set.
pub(crate) fn population(plane: &Plane) -> u64 {
    plane.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Collects a set in ascending order from planes and runs.
#[derive(Default)]
pub(crate) struct Builder {
    set: RunSet,
    scratch: Option<Box<Plane>>,
}

impl Builder {
    /// Adds a run that begins after all that was added before.
    pub(crate) fn push_run(&mut self, run: Run) {
        self.set.insert_run(run);
    }

    /// Adds the window at `base`, which lies after all that was added before.
    pub(crate) fn push_plane(&mut self, base: u64, plane: &Plane) {
        let Some(high) = plane.iter().rposition(|word| *word != 0) else { return };
        // Comparing words finds regular windows without walking their bits.
        match self.as_run(plane, high) {
            Some(run) => self.push_run(Run { first: base + run.first, ..run }),
            None => {
                let added = self.set.extend_bits(base, &plane[..=high]);
                assert!(added, "windows are pushed in ascending order");
            }
        }
    }

    /// The plane as one strided run, if it is one.
    fn as_run(&mut self, plane: &Plane, high: usize) -> Option<Run> {
        let low = plane.iter().position(|word| *word != 0)?;
        let first = 64 * low + plane[low].trailing_zeros() as usize;
        let last = 64 * high + 63 - plane[high].leading_zeros() as usize;
        let count = population(plane) as usize;
        if count == 1 {
            return Some(Run { first: first as u64, count: 1, step: 1 });
        }
        let step = (last - first) / (count - 1);
        if !(last - first).is_multiple_of(count - 1) {
            return None;
        }
        let expected = self.scratch.get_or_insert_with(new_plane);
        expected.fill(0);
        fill_stride(expected, first, last, step);
        (**expected == *plane).then_some(Run { first: first as u64, count: count as u64, step: step as u64 })
    }

    pub(crate) fn finish(self) -> RunSet {
        self.set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Draws;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The numbers of the bits set, ascending.
    fn ones(words: &[u64]) -> Vec<u64> {
        let set = |bit: &u64| words[*bit as usize / 64] >> (bit % 64) & 1 == 1;
        (0..64 * words.len() as u64).filter(set).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_set_read_by_planes_and_built_again_is_itself(
            runs in proptest::collection::vec((0u64..300_000, 1u64..3000, 1u64..200), 0..8),
            noise in proptest::collection::vec((0u64..500_000, 1u64..70_000, 1u64..40, any::<u64>()), 0..3),
        ) {
            let runs: Vec<Run> = runs.into_iter().map(|(f, c, s)| Run::new(f, c, s).unwrap()).collect();
            let mut expected: BTreeSet<u64> =
                runs.iter().flat_map(|run| (0..run.count).map(|k| run.first + k * run.step)).collect();
            for (first, span, gap, seed) in noise {
                let mut draws = Draws::from_word(seed);
                expected.extend((first..first + span).filter(|_| draws.next().is_multiple_of(gap)));
            }
            let set = RunSet::from_ascending(expected.iter().copied()).union(&RunSet::from_runs(runs));
            let mut bytes = Vec::new();
            zazen_wire::runset_codec::encode(&set, &mut bytes);
            let view = View::prefix(&bytes).unwrap().0;
            let (mut reader, mut builder, mut plane) = (Reader::new(&set), Builder::default(), new_plane());
            let (mut received, mut other) = (Reader::of_view(&view), new_plane());
            let mut overlay = Overlay::new();
            let mut found = Vec::new();
            for base in (0..14 * WINDOW).step_by(WINDOW as usize) {
                plane.fill(0);
                reader.advance(base);
                if reader.touches(base) {
                    reader.fill(base, &mut plane);
                }
                other.fill(0);
                received.fill(base, &mut other);
                prop_assert!(other == plane, "window {}", base);
                overlay.clear();
                prop_assert_eq!(overlay.add_window(&mut reader, base), population(&plane));
                prop_assert!(overlay.any == plane && population(&overlay.several) == 0, "window {}", base);
                prop_assert_eq!(overlay.add_window(&mut received, base), population(&plane));
                prop_assert!(overlay.any == plane && overlay.several == plane, "window {}", base);
                found.extend(ones(&plane[..]).iter().map(|bit| base + bit));
                builder.push_plane(base, &plane);
            }
            prop_assert_eq!(&found, &expected.into_iter().collect::<Vec<_>>());
            prop_assert!(builder.finish() == set);
        }

        #[test]
        fn every_stride_fills_its_own_bits(
            first in 0usize..65_536,
            step in 1usize..300,
            count in 1usize..70_000
        ) {
            let last = (first + (count - 1) * step).min(65_535);
            let mut plane = new_plane();
            fill_stride(&mut plane, first, last, step);
            let expected: Vec<u64> = (first..=last).step_by(step).map(|bit| bit as u64).collect();
            prop_assert_eq!(ones(&plane[..]), expected);
        }
    }

    #[test]
    fn a_strided_run_stays_one_run_across_windows() {
        let set = RunSet::from_run(Run::new(5, 100_000, 7).unwrap());
        let (mut reader, mut builder, mut plane) = (Reader::new(&set), Builder::default(), new_plane());
        for base in (0..11 * WINDOW).step_by(WINDOW as usize) {
            plane.fill(0);
            reader.fill(base, &mut plane);
            builder.push_plane(base, &plane);
        }
        assert!(builder.set == set);
        assert_eq!(builder.finish().segments().count(), 1);
    }
}
