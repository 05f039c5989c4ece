//! The fingerprint of a set of indices: one element of GF(2¹²⁸) = GF(2)\[t\] / (t¹²⁸ + t⁷ + t² + t
//! + 1).
//!
//! Index f weighs t^(f mod 64) · r^⌊f / 64⌋, where r is drawn at random for each assignment, after
//! the sets are fixed. A word of a bitmap is thus itself an element, a polynomial in t, and a set's
//! fingerprint is Σ word(w) · rʷ over the words of its bitmap. The fingerprint of a union of
//! multisets is the sum of their fingerprints, and the sum is an exclusive or. So the sum over all
//! holders is the fingerprint of the indices that are held an odd number of times.
//!
//! *What a match shows.* Let D be the symmetric difference of those indices and the target, N the
//! indices of the request. If D is not empty, the difference of the two fingerprints is a
//! polynomial in r of degree below N/64, whose coefficients are the words of D's bitmap: each is a
//! polynomial in t of degree below 64, hence 0 in the field only if the word is 0. A polynomial
//! that is not 0 has no more roots than its degree, and r is one of 2¹²⁸ − 2 elements (0 and 1 are
//! left out, where a word's place would not show). So fingerprints of different sets are equal with
//! a probability below (N/64) / (2¹²⁸ − 2): 2⁻¹⁰⁴ for a billion indices, 2⁻⁹⁴ for 2⁴⁰. If they are
//! equal, every index of the target is held an odd number of times, hence at least once; if
//! moreover the counts of all holders add up (exactly, in integers) to the target's, none is held
//! more than once and no other index is held at all. Where the index space is compared in up to
//! 4096 chunks as well, the probability that any comparison is wrong is at most 4097 times that.
//!
//! A run costs O(64 + log count) multiplications, a bitmap two carry-less multiplications per word,
//! a sparse block one exclusive or per number. No function here walks the frames of a long run.

use crate::chunks::Chunks;
use crate::clmul::{Kernel, Unreduced};
use zazen_core::{Run, RunSet, runset::Segment};

/// Powers per table, and words of a block.
const TABLED: usize = 1024;
/// Three digits of that base: the exponents that tables cover.
const TABLED_BITS: u32 = 30;
/// For a sparse block with fewer numbers, the 64 sums by bit cost more than they save.
const BY_BIT_MIN: usize = 128;

/// The powers of one run's r.
pub(crate) struct Fingerprinter {
    kernel: Kernel,
    /// rⁱ, r^(2¹⁰·i), r^(2²⁰·i).
    powers: [Box<[u128; TABLED]>; 3],
    /// r^(2³⁰).
    beyond: u128,
}

/// A stream of well-mixed values from a seed (SplitMix64): equal on all ranks.
pub(crate) struct Draws(u64);

impl Draws {
    /// Values that follow from `word`.
    pub(crate) fn from_word(word: u64) -> Draws {
        Draws(word)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Elements drawn from a seed, equal on all ranks: uniform if the seed is.
pub(crate) struct Elements([Draws; 2]);

impl Elements {
    pub(crate) fn new(seed: u128) -> Elements {
        Elements([Draws(seed as u64), Draws((seed >> 64) as u64)])
    }

    /// Elements of `rank`'s own.
    pub(crate) fn of_rank(seed: u128, rank: usize) -> Elements {
        let [low, high] = words_of(seed);
        let mut mixed = Draws(Draws(low ^ rank as u64).next() ^ high);
        Elements([Draws(mixed.next()), Draws(mixed.next())])
    }

    /// The next element other than 0 and 1.
    pub(crate) fn next(&mut self) -> u128 {
        loop {
            let [low, high] = [self.0[0].next(), self.0[1].next()];
            let drawn = u128::from(low) | u128::from(high) << 64;
            if drawn > 1 {
                return drawn;
            }
        }
    }
}

/// A seed as a number.
pub(crate) fn seed_of(bytes: [u8; 16]) -> u128 {
    u128::from_le_bytes(bytes)
}

/// An element as the words that a collective moves.
pub(crate) fn words_of(element: u128) -> [u64; 2] {
    [element as u64, (element >> 64) as u64]
}

impl Fingerprinter {
    /// For r = `point`.
    pub(crate) fn new(point: u128) -> Fingerprinter {
        Fingerprinter::with(Kernel::detect(), point)
    }

    /// A point that is the same in every run. Use it only for sets that were not chosen to collide
    /// at this point.
    pub(crate) fn fixed() -> Fingerprinter {
        Fingerprinter::new(u128::from_le_bytes(*b"zazen assignment"))
    }

    fn with(kernel: Kernel, point: u128) -> Fingerprinter {
        let mut base = point;
        let powers = std::array::from_fn(|_| {
            let mut next = 1;
            let mut table = Box::new([1; TABLED]);
            for at in table.iter_mut() {
                *at = next;
                next = kernel.multiply(next, base);
            }
            base = next;
            table
        });
        Fingerprinter { kernel, powers, beyond: base }
    }

    pub(crate) fn multiply(&self, a: u128, b: u128) -> u128 {
        self.kernel.multiply(a, b)
    }

    /// The fingerprint of `set`.
    pub(crate) fn of(&self, set: &RunSet) -> u128 {
        set.segments().fold(0, |sum, segment| {
            sum ^ match segment {
                Segment::Run(run) => self.run(run),
                Segment::Sparse { base, offsets } => self.sparse(base, offsets),
                Segment::Bits { base, words, .. } => self.bits(base / 64, words),
            }
        })
    }

    /// The fingerprints of `set`'s parts in each of `chunks`, in one pass; their sum is that of the
    /// set.
    pub(crate) fn by_chunk(&self, set: &RunSet, chunks: &Chunks) -> Vec<u128> {
        let mut sums = vec![0; chunks.count()];
        for segment in set.segments() {
            match segment {
                Segment::Run(run) => {
                    let (low, high) = (chunks.holding(run.first), chunks.holding(run.last()));
                    for (sum, at) in sums[low..=high].iter_mut().zip(low..) {
                        let (first, end) = chunks.bounds(at);
                        *sum ^= clip(run, first, end).map_or(0, |part| self.run(part));
                    }
                }
                Segment::Sparse { base, mut offsets } => {
                    let chunk = |offset: &u16| chunks.holding(base + u64::from(*offset));
                    while let (Some(at), Some(last)) = (offsets.first().map(chunk), offsets.last().map(chunk))
                    {
                        // Find the chunk by bisection. A division for each number would cost more
                        // than everything else here.
                        let whole = at == last;
                        let end = if whole {
                            offsets.len()
                        } else {
                            offsets.partition_point(|offset| chunk(offset) == at)
                        };
                        sums[at] ^= self.sparse(base, &offsets[..end]);
                        offsets = &offsets[end..];
                    }
                }
                Segment::Bits { base, words, .. } => {
                    let each = chunks.words().min(TABLED as u64);
                    for (part, words) in words.chunks(each as usize).enumerate() {
                        let first = base / 64 + part as u64 * each;
                        sums[chunks.holding(64 * first)] ^= self.bits(first, words);
                    }
                }
            }
        }
        sums
    }

    /// r^exponent.
    fn power(&self, exponent: u64) -> u128 {
        let digit = |at: usize| (exponent >> (10 * at)) as usize % TABLED;
        let mut power = self.powers[0][digit(0)];
        for at in 1..3 {
            if digit(at) != 0 {
                power = self.multiply(power, self.powers[at][digit(at)]);
            }
        }
        let (mut left, mut square) = (exponent >> TABLED_BITS, self.beyond);
        while left > 0 {
            if left & 1 == 1 {
                power = self.multiply(power, square);
            }
            square = self.multiply(square, square);
            left >>= 1;
        }
        power
    }

    /// 1 + q + q² + … (`count` terms) by doubling: right for q = 1 as well, and free of divisions.
    fn geometric(&self, q: u128, count: u64) -> u128 {
        let (mut sum, mut ahead) = (0, 1);
        for bit in (0..u64::BITS - count.leading_zeros()).rev() {
            sum ^= self.multiply(ahead, sum);
            ahead = self.multiply(ahead, ahead);
            if count >> bit & 1 == 1 {
                sum = self.multiply(sum, q) ^ 1;
                ahead = self.multiply(ahead, q);
            }
        }
        sum
    }

    fn run(&self, run: Run) -> u128 {
        if run.step == 1 {
            return self.range(run.first, run.last());
        }
        // Numbers that are `period` apart in the run use the same bit of a later word.
        let period = 64 >> run.step.trailing_zeros().min(6);
        let ratio = self.power(run.step / (64 / period));
        let (rounds, extra) = (run.count / period, run.count % period);
        let (mut longer, mut shorter) = (Unreduced::default(), Unreduced::default());
        for class in 0..period.min(run.count) {
            let number = run.first + class * run.step;
            let sum = if class < extra { &mut longer } else { &mut shorter };
            sum.add_shifted(self.power(number / 64), (number % 64) as u32);
        }
        let series = self.geometric(ratio, rounds);
        let longer_series = self.multiply(series, ratio) ^ 1;
        self.multiply(longer.reduce(), longer_series) ^ self.multiply(shorter.reduce(), series)
    }

    fn range(&self, first: u64, last: u64) -> u128 {
        let (low, high) = (first / 64, last / 64);
        let (head, tail) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
        let times = |word: u64, power: u128| self.multiply(u128::from(word), power);
        if low == high {
            return times(head & tail, self.power(low));
        }
        let full = self.geometric(self.powers[0][1], high - low - 1);
        let full = self.multiply(full, self.power(low + 1));
        times(head, self.power(low)) ^ times(u64::MAX, full) ^ times(tail, self.power(high))
    }

    /// A bitmap from word `first` on; no longer than a block.
    fn bits(&self, first: u64, words: &[u64]) -> u128 {
        self.multiply(self.kernel.inner(words, &self.powers[0][..]), self.power(first))
    }

    fn sparse(&self, base: u64, offsets: &[u16]) -> u128 {
        let powers = &*self.powers[0];
        let mut sum = Unreduced::default();
        if offsets.len() < BY_BIT_MIN {
            for offset in offsets {
                sum.add_shifted(powers[usize::from(offset / 64)], u32::from(offset % 64));
            }
        } else {
            // Numbers on the same bit share one shift. Two halves fit a vector register together,
            // two elements do not.
            let mut by_bit = [[0; 2]; 64];
            for offset in offsets {
                let [low, high] = words_of(powers[usize::from(offset / 64)]);
                let held = &mut by_bit[usize::from(offset % 64)];
                *held = [held[0] ^ low, held[1] ^ high];
            }
            for (shift, [low, high]) in by_bit.into_iter().enumerate() {
                sum.add_shifted(u128::from(low) | u128::from(high) << 64, shift as u32);
            }
        }
        self.multiply(sum.reduce(), self.power(base / 64))
    }
}

/// The part of `run` within `first .. end`.
fn clip(run: Run, first: u64, end: u64) -> Option<Run> {
    let skipped = first.saturating_sub(run.first).div_ceil(run.step);
    let low = run.first + skipped * run.step;
    let high = run.last().min(end - 1);
    (skipped < run.count && low <= high).then(|| {
        let count = (high - low) / run.step + 1;
        Run { first: low, count, step: if count == 1 { 1 } else { run.step } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::WINDOW;
    use proptest::prelude::*;

    /// The definition, one index and one bit after the other.
    fn by_hand(point: u128, indices: &[u64]) -> u128 {
        fn times(a: u128, b: u128) -> u128 {
            (0..128).rev().fold(0, |product: u128, bit| {
                let doubled = product << 1 ^ if product >> 127 == 1 { 0x87 } else { 0 };
                doubled ^ if b >> bit & 1 == 1 { a } else { 0 }
            })
        }
        fn power(base: u128, mut exponent: u64) -> u128 {
            let (mut result, mut square) = (1, base);
            while exponent > 0 {
                if exponent & 1 == 1 {
                    result = times(result, square);
                }
                square = times(square, square);
                exponent >>= 1;
            }
            result
        }
        indices.iter().fold(0, |sum, index| sum ^ times(power(2, index % 64), power(point, index / 64)))
    }

    fn point(seed: u8) -> u128 {
        Elements::new(u128::from_le_bytes([seed; 16])).next()
    }

    fn run(first: u64, count: u64, step: u64) -> Run {
        Run::new(first, count, step).unwrap()
    }

    #[test]
    fn a_geometric_series_with_ratio_one_is_its_count_in_the_field() {
        let fingerprinter = Fingerprinter::new(point(1));
        assert_eq!(fingerprinter.geometric(1, 1_000_000_007), 1);
        assert_eq!(fingerprinter.geometric(1, 10), 0);
        assert_eq!(fingerprinter.geometric(7, 0), 0);
        let square = fingerprinter.multiply(7, 7);
        assert_eq!(fingerprinter.geometric(7, 4), 1 ^ 7 ^ square ^ fingerprinter.multiply(square, 7));
    }

    #[test]
    fn a_run_of_a_billion_equals_the_sum_of_its_strided_parts() {
        let fingerprinter = Fingerprinter::new(point(9));
        let whole = fingerprinter.of(&RunSet::range(0, 999_999_999));
        for step in [2, 3, 8, 64, 100, 128, 1000] {
            let part = |first| fingerprinter.run(run(first, (1_000_000_000 - first).div_ceil(step), step));
            assert_eq!(whole, (0..step).fold(0, |sum, first| sum ^ part(first)), "step {step}");
        }
    }

    /// Equal on every machine and in every build: ranks of one job may have different processors.
    #[test]
    fn golden_values() {
        for kernel in Kernel::all() {
            let fixed = Fingerprinter::with(kernel, u128::from_le_bytes(*b"zazen assignment"));
            let found = [
                fixed.of(&RunSet::from_ascending([0, 1, 63])),
                fixed.of(&RunSet::from_ascending([64])),
                fixed.of(&RunSet::range(0, 999_999_999)),
                fixed.of(&RunSet::from_run(run(5, 1 << 30, 7))),
            ];
            assert_eq!(found, GOLDEN, "{kernel:?}: {found:#x?}");
        }
    }
    const GOLDEN: [u128; 4] = [
        0x8000_0000_0000_0003,
        u128::from_le_bytes(*b"zazen assignment"),
        0x3731_8440_7a8e_de0e_89de_4302_c43b_9d4d,
        0x2d45_3140_f5be_8f39_0e8f_186e_c64c_6327,
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_encoding_agrees_with_the_sum_by_hand(
            seed in any::<u8>(),
            first in prop_oneof![0u64..200, 0u64..1 << 40],
            gaps in proptest::collection::vec(prop_oneof![1u64..3, 1u64..100, 1u64..100_000], 1..2000),
        ) {
            let mut at = first;
            let indices: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let set = RunSet::from_ascending(indices.iter().copied());
            let expected = by_hand(point(seed), &indices);
            for kernel in Kernel::all() {
                prop_assert_eq!(Fingerprinter::with(kernel, point(seed)).of(&set), expected, "{:?}", kernel);
            }
        }

        /// The result must not depend on the stored form of a block. The counts are near the points
        /// where the form or the way of summing changes.
        #[test]
        fn a_block_of_any_count_and_form_agrees_with_the_sum_by_hand(
            seed in any::<u8>(),
            window in prop_oneof![Just(0u64), 0u64..1 << 24],
            count in prop_oneof![
                1usize..4, BY_BIT_MIN - 2..BY_BIT_MIN + 2, 1022usize..1027, 2046usize..2051, 4094usize..4099,
            ],
            spread in prop_oneof![Just(65_536usize), Just(8192)],
            words_min in prop_oneof![Just(1u64), Just(8), Just(1024)],
        ) {
            let mut draws = Draws::from_word(u64::from(seed) << 32 | window);
            let mut offsets = std::collections::BTreeSet::new();
            while offsets.len() < count {
                offsets.insert((draws.next() % spread as u64) as u16);
            }
            let offsets: Vec<u16> = offsets.into_iter().collect();
            let base = window << 16;
            let indices: Vec<u64> = offsets.iter().map(|offset| base + u64::from(*offset)).collect();
            let mut words = vec![0u64; TABLED];
            offsets.iter().for_each(|offset| words[usize::from(offset / 64)] |= 1 << (offset % 64));
            let expected = by_hand(point(seed), &indices);
            let (set, other) = (RunSet::from_ascending(indices.iter().copied()),
                                RunSet::from_words(base, &words));
            for kernel in Kernel::all() {
                let one = Fingerprinter::with(kernel, point(seed));
                prop_assert_eq!(one.sparse(base, &offsets), expected, "offsets, {:?}", kernel);
                prop_assert_eq!(one.bits(base / 64, &words), expected, "words, {:?}", kernel);
                prop_assert_eq!(
                    (one.of(&set), one.of(&other)),
                    (expected, expected),
                    "as stored, {:?}", kernel);
            }
            // The same block in chunks, of which it may fill many.
            let (one, chunks) = (Fingerprinter::new(point(seed)), Chunks::of(base + WINDOW, words_min));
            let parts = one.by_chunk(&set, &chunks);
            prop_assert_eq!(parts.iter().fold(0, |sum, part| sum ^ part), expected);
            prop_assert_eq!(parts, one.by_chunk(&other, &chunks));
        }

        #[test]
        fn a_run_agrees_with_the_sum_by_hand(
            seed in any::<u8>(), first in 0u64..1 << 40, count in 1u64..1500,
            step in prop_oneof![1u64..130, Just(64), Just(192), 1u64..1 << 29],
        ) {
            let run = run(first, count, step);
            let indices: Vec<u64> = (0..run.count).map(|at| run.first + at * run.step).collect();
            prop_assert_eq!(Fingerprinter::new(point(seed)).run(run), by_hand(point(seed), &indices));
        }

        #[test]
        fn chunks_add_up_and_each_is_that_of_its_part(
            runs in proptest::collection::vec((0u64..200_000, 1u64..5000, 1u64..40), 1..6),
            noise in proptest::collection::vec(0u64..200_000, 0..3000),
            words_min in prop_oneof![Just(1u64), Just(4), Just(64), Just(1024)],
        ) {
            let runs = runs.into_iter().map(|(first, count, step)| run(first, count, step));
            let set = RunSet::from_runs(runs).union(&noise.into_iter().collect());
            let fingerprinter = Fingerprinter::new(point(3));
            let chunks = Chunks::of(500_000, words_min);
            let parts = fingerprinter.by_chunk(&set, &chunks);
            for (at, part) in parts.iter().enumerate() {
                let (first, end) = chunks.bounds(at);
                prop_assert_eq!(*part, fingerprinter.of(&set.slice(first, end - 1)));
            }
            prop_assert_eq!(parts.iter().fold(0, |sum, part| sum ^ part), fingerprinter.of(&set));
        }
    }
}
