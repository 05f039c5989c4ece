//! The fingerprint of a set of indices: its size and Σ xⁱ over GF(2⁶¹−1) at two points.
//!
//! Fingerprints of multisets add up. That the holders' sum equals the target's shows that every index is held
//! exactly once, up to this error: the difference of the two is a polynomial in x of degree below N whose
//! coefficients (at most the number of nodes) are not 0 in the field, so a wrong multiset passes at fewer than
//! N of the 2⁶¹−3 points that a draw can give, and at two independent ones with a probability below
//! (N / (2⁶¹−3))²: 2⁻⁶² for a billion frames, 2⁻⁴² for 2⁴⁰. The points are drawn per run, after the sets are fixed.
//!
//! A run costs O(log count) multiplications, a bitmap one per word, a sparse block one per 256 numbers held
//! and an addition per number: nothing here walks the frames of a run.

use zazen_core::{Run, RunSet, runset::Segment};

/// The field's prime, 2⁶¹ − 1.
pub(crate) const PRIME: u64 = (1 << 61) - 1;

/// Powers of one point, tabled.
struct Point {
    x: u64,
    /// x⁶⁴
    word: u64,
    /// `bytes[k][v]` = Σ x^(8k + b) over the bits b of v.
    bytes: Box<[[u64; 256]; 8]>,
    /// x^low and x^(256·high) for the two halves of a 16-bit offset.
    low: Box<[u64; 256]>,
    high: Box<[u64; 256]>,
}

/// A multiset's size and its polynomial at both points; each value is below [`PRIME`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) count: u64,
    pub(crate) sums: [u64; 2],
}

/// The two points of a run.
pub(crate) struct Fingerprinter {
    points: [Point; 2],
}

/// `a + b` in the field, for a, b below the prime.
pub(crate) fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= PRIME { sum - PRIME } else { sum }
}

/// `-a` in the field, for a below the prime.
pub(crate) fn negate(a: u64) -> u64 {
    if a == 0 { 0 } else { PRIME - a }
}

/// `a·b` in the field, for a, b below the prime.
pub(crate) fn multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let folded = (product as u64 & PRIME) + (product >> 61) as u64;
    if folded >= PRIME { folded - PRIME } else { folded }
}

/// Any u64 as an element of the field.
pub(crate) fn reduce(value: u64) -> u64 {
    let folded = (value & PRIME) + (value >> 61);
    if folded >= PRIME { folded - PRIME } else { folded }
}

fn power(base: u64, mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

/// 1 + q + q² + … (`count` terms) by doubling: right for q = 1 as well, and free of divisions.
fn geometric(q: u64, count: u64) -> u64 {
    let (mut sum, mut ahead) = (0, 1);
    for bit in (0..u64::BITS - count.leading_zeros()).rev() {
        sum = add(sum, multiply(ahead, sum));
        ahead = multiply(ahead, ahead);
        if count >> bit & 1 == 1 {
            sum = add(multiply(sum, q), 1);
            ahead = multiply(ahead, q);
        }
    }
    sum
}

/// A stream of well-mixed values from a seed (SplitMix64): equal on all ranks.
pub(crate) struct Draws(u64);

impl Draws {
    /// Values from one half of `seed`; the halves are independent.
    pub(crate) fn new(seed: &[u8; 16], half: usize) -> Draws {
        let mut word = [0; 8];
        word.copy_from_slice(&seed[8 * half..8 * half + 8]);
        Draws(u64::from_le_bytes(word))
    }

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

    /// A point of the field other than 0 and 1, which would see nothing but counts.
    fn point(&mut self) -> u64 {
        loop {
            let drawn = reduce(self.next());
            if drawn > 1 {
                return drawn;
            }
        }
    }
}

impl Point {
    fn new(x: u64) -> Point {
        let mut bytes = Box::new([[0; 256]; 8]);
        for (place, table) in bytes.iter_mut().enumerate() {
            for (value, sum) in table.iter_mut().enumerate() {
                let bits = (0..8).filter(|bit| value >> bit & 1 == 1);
                *sum = bits.fold(0, |sum, bit| add(sum, power(x, 8 * place as u64 + bit)));
            }
        }
        let low = Box::new(std::array::from_fn(|at| power(x, at as u64)));
        let high = Box::new(std::array::from_fn(|at| power(x, 256 * at as u64)));
        Point { x, word: power(x, 64), bytes, low, high }
    }

    fn run(&self, run: Run) -> u64 {
        multiply(power(self.x, run.first), geometric(power(self.x, run.step), run.count))
    }

    fn bits(&self, base: u64, words: &[u64]) -> u64 {
        let horner = words.iter().rev().fold(0, |sum, word| {
            // Eight values below 2⁶¹ fit a u64.
            let tables = self.bytes.iter().zip(word.to_le_bytes());
            let value: u64 = tables.map(|(table, byte)| table[usize::from(byte)]).sum();
            add(multiply(sum, self.word), reduce(value))
        });
        multiply(power(self.x, base), horner)
    }

    fn sparse(&self, base: u64, offsets: &[u16]) -> u64 {
        let mut total = 0;
        for page in offsets.chunk_by(|a, b| a >> 8 == b >> 8) {
            let sum: u128 = page.iter().map(|offset| u128::from(self.low[usize::from(offset & 255)])).sum();
            let folded = reduce((sum as u64 & PRIME) + (sum >> 61) as u64);
            total = add(total, multiply(folded, self.high[usize::from(page[0] >> 8)]));
        }
        multiply(power(self.x, base), total)
    }
}

impl Fingerprinter {
    pub(crate) fn new(seed: &[u8; 16]) -> Fingerprinter {
        Fingerprinter { points: std::array::from_fn(|half| Point::new(Draws::new(seed, half).point())) }
    }

    /// Points that are the same in every run, to compare sets that nobody chose with them in mind.
    pub(crate) fn fixed() -> Fingerprinter {
        Fingerprinter::new(b"zazen assignment")
    }

    pub(crate) fn of(&self, set: &RunSet) -> Fingerprint {
        let sums = std::array::from_fn(|at| {
            let point = &self.points[at];
            set.segments().fold(0, |sum, segment| {
                let part = match segment {
                    Segment::Run(run) => point.run(run),
                    Segment::Sparse { base, offsets } => point.sparse(base, offsets),
                    Segment::Bits { base, words } => point.bits(base, words),
                };
                add(sum, part)
            })
        });
        Fingerprint { count: set.len(), sums }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Σ xⁱ, one index after the other.
    fn by_hand(fingerprinter: &Fingerprinter, indices: &[u64]) -> [u64; 2] {
        std::array::from_fn(|at| {
            indices.iter().fold(0, |sum, index| add(sum, power(fingerprinter.points[at].x, *index)))
        })
    }

    fn fingerprinter(seed: u8) -> Fingerprinter {
        Fingerprinter::new(&[seed; 16])
    }

    #[test]
    fn field_operations_agree_with_wide_remainders() {
        let mut draws = Draws::new(&[3; 16], 0);
        for _ in 0..1000 {
            let (a, b) = (draws.next() % PRIME, draws.next() % PRIME);
            assert_eq!(multiply(a, b), (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64);
            assert_eq!(add(a, negate(a)), 0);
            let any = draws.next();
            assert_eq!(reduce(any), any % PRIME);
        }
        assert_eq!(multiply(PRIME - 1, PRIME - 1), 1);
    }

    #[test]
    fn a_geometric_series_with_ratio_one_is_its_count() {
        assert_eq!(geometric(1, 1_000_000_007), 1_000_000_007);
        assert_eq!(geometric(1, 0), 0);
        assert_eq!(geometric(7, 4), 1 + 7 + 49 + 343);
    }

    #[test]
    fn a_run_of_a_billion_equals_the_sum_of_its_eight_strided_parts() {
        let fingerprinter = fingerprinter(9);
        let whole = fingerprinter.of(&RunSet::range(0, 999_999_999));
        let mut sums = [0; 2];
        for first in 0..8 {
            let part = fingerprinter.of(&RunSet::from_run(Run::new(first, 125_000_000, 8).unwrap()));
            sums = std::array::from_fn(|at| add(sums[at], part.sums[at]));
        }
        assert_eq!(whole.sums, sums);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_encoding_agrees_with_the_sum_by_hand(
            seed in any::<u8>(),
            first in 0u64..1 << 40,
            gaps in proptest::collection::vec(prop_oneof![1u64..3, 1u64..100, 1u64..100_000], 1..2000),
        ) {
            let fingerprinter = fingerprinter(seed);
            let mut at = first;
            let indices: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let set = RunSet::from_ascending(indices.iter().copied());
            let found = fingerprinter.of(&set);
            prop_assert_eq!(found.count, indices.len() as u64);
            prop_assert_eq!(found.sums, by_hand(&fingerprinter, &indices));
        }

        #[test]
        fn a_missing_a_doubled_or_a_swapped_frame_shows(
            count in 2u64..5000, hole in any::<u64>(), other in any::<u64>(), seed in any::<u8>(),
        ) {
            let (hole, other) = (hole % count, other % count);
            let fingerprinter = fingerprinter(seed);
            let whole = fingerprinter.of(&RunSet::range(0, count - 1));
            let mut holed = RunSet::range(0, count - 1);
            holed.remove(hole);
            let holed = fingerprinter.of(&holed);
            prop_assert_ne!(holed.count, whole.count);
            prop_assert_ne!(holed.sums[0], whole.sums[0]);
            prop_assert_ne!(holed.sums[1], whole.sums[1]);
            // One frame gone and another held twice: the counts are right.
            let doubled = fingerprinter.of(&RunSet::from_ascending([other]));
            let swapped: [u64; 2] = std::array::from_fn(|at| add(holed.sums[at], doubled.sums[at]));
            if hole == other {
                prop_assert_eq!(swapped, whole.sums);
            } else {
                prop_assert_ne!(swapped[0], whole.sums[0]);
                prop_assert_ne!(swapped[1], whole.sums[1]);
            }
        }
    }
}
