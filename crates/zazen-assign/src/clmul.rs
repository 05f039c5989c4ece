//! Products in GF(2)\[t\] and GF(2¹²⁸), by the processor's carry-less multiplication where it has
//! one.
//!
//! An element is a polynomial in t modulo t¹²⁸ + t⁷ + t² + t + 1, bit i the coefficient of tⁱ. All
//! kernels give equal results. The kernel is chosen at run time. Invariant: all `unsafe` code of
//! this crate is in this file.

/// Which instructions multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Shifts and exclusive ors: any machine.
    Portable,
    /// PCLMULQDQ.
    #[cfg(target_arch = "x86_64")]
    Carryless(x86::Detected),
    /// VPCLMULQDQ on 256-bit registers.
    #[cfg(target_arch = "x86_64")]
    Wide(x86::DetectedWide),
}

/// An unreduced product or sum of products: low and high 128 coefficients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unreduced {
    pub(crate) low: u128,
    pub(crate) high: u128,
}

impl Unreduced {
    /// The field's element.
    pub(crate) fn reduce(self) -> u128 {
        let high = self.high;
        // t¹²⁸ = t⁷ + t² + t + 1. The part that the shifts push out again is below t⁷.
        let over = (high >> 127) ^ (high >> 126) ^ (high >> 121);
        let folded = high ^ (high << 1) ^ (high << 2) ^ (high << 7);
        self.low ^ folded ^ over ^ (over << 1) ^ (over << 2) ^ (over << 7)
    }

    /// Adds `value`·tˢʰⁱᶠᵗ, for shift < 64.
    #[inline]
    pub(crate) fn add_shifted(&mut self, value: u128, shift: u32) {
        self.low ^= value << shift;
        self.high ^= (value >> 64) >> (64 - shift);
    }
}

impl Kernel {
    /// The fastest that this machine has.
    pub(crate) fn detect() -> Kernel {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(detected) = x86::DetectedWide::detect() {
                return Kernel::Wide(detected);
            }
            if let Some(detected) = x86::Detected::detect() {
                return Kernel::Carryless(detected);
            }
        }
        Kernel::Portable
    }

    /// All that this machine has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Kernel> {
        let mut all = vec![Kernel::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(x86::Detected::detect().map(Kernel::Carryless));
            all.extend(x86::DetectedWide::detect().map(Kernel::Wide));
        }
        all
    }

    /// `a·b` in the field.
    pub(crate) fn multiply(self, a: u128, b: u128) -> u128 {
        let product = match self {
            Kernel::Portable => portable_product(a, b),
            #[cfg(target_arch = "x86_64")]
            Kernel::Carryless(detected) => detected.product(a, b),
            #[cfg(target_arch = "x86_64")]
            Kernel::Wide(detected) => detected.narrow().product(a, b),
        };
        product.reduce()
    }

    /// Σ `words[i]`·`powers[i]` in the field. There are at least as many powers as words.
    pub(crate) fn inner(self, words: &[u64], powers: &[u128]) -> u128 {
        let powers = &powers[..words.len()];
        let sum = match self {
            Kernel::Portable => portable_inner(words, powers),
            #[cfg(target_arch = "x86_64")]
            Kernel::Carryless(detected) => detected.inner(words, powers),
            #[cfg(target_arch = "x86_64")]
            Kernel::Wide(detected) => detected.inner(words, powers),
        };
        sum.reduce()
    }
}

/// A word times a 128-bit polynomial, four bits of the word at a time.
fn portable_times_word(word: u64, value: u128) -> Unreduced {
    let (value_low, value_high) = (value, 0u128);
    // The multiples of `value` by all polynomials below t⁴. They reach up to t¹³⁰.
    let mut multiples = [(0u128, 0u128); 16];
    for at in 1..16usize {
        let (low, high) = multiples[at / 2];
        let (low, high) = (low << 1, (high << 1) | (low >> 127));
        multiples[at] = if at % 2 == 1 { (low ^ value_low, high ^ value_high) } else { (low, high) };
    }
    let (mut low, mut high) = (0u128, 0u128);
    for nibble in (0..16).rev() {
        high = (high << 4) | (low >> 124);
        low <<= 4;
        let multiple = multiples[(word >> (4 * nibble) & 15) as usize];
        low ^= multiple.0;
        high ^= multiple.1;
    }
    Unreduced { low, high }
}

fn portable_product(a: u128, b: u128) -> Unreduced {
    let (low, high) = (portable_times_word(a as u64, b), portable_times_word((a >> 64) as u64, b));
    Unreduced { low: low.low ^ (high.low << 64), high: low.high ^ (high.high << 64) ^ (high.low >> 64) }
}

fn portable_inner(words: &[u64], powers: &[u128]) -> Unreduced {
    let mut sum = Unreduced::default();
    for (word, power) in words.iter().zip(powers).filter(|(word, _)| **word != 0) {
        let product = portable_times_word(*word, *power);
        sum.low ^= product.low;
        sum.high ^= product.high;
    }
    sum
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Unreduced;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_set_epi64x, _mm_set1_epi64x,
        _mm_setzero_si128, _mm_storeu_si128, _mm_xor_si128, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
        _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_permute4x64_epi64, _mm256_setzero_si256,
        _mm256_xor_si256,
    };

    /// Proof that the processor has PCLMULQDQ.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Detected(());

    /// Proof that it has VPCLMULQDQ and AVX2 too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct DetectedWide(Detected);

    impl Detected {
        pub(crate) fn detect() -> Option<Detected> {
            std::is_x86_feature_detected!("pclmulqdq").then_some(Detected(()))
        }

        pub(super) fn product(self, a: u128, b: u128) -> Unreduced {
            // SAFETY: a `Detected` exists only where the processor has the instruction.
            unsafe { product(a, b) }
        }

        pub(super) fn inner(self, words: &[u64], powers: &[u128]) -> Unreduced {
            // SAFETY: as above.
            unsafe { inner(words, powers) }
        }
    }

    impl DetectedWide {
        pub(crate) fn detect() -> Option<DetectedWide> {
            let wide = std::is_x86_feature_detected!("vpclmulqdq") && std::is_x86_feature_detected!("avx2");
            Detected::detect().filter(|_| wide).map(DetectedWide)
        }

        pub(super) fn narrow(self) -> Detected {
            self.0
        }

        pub(super) fn inner(self, words: &[u64], powers: &[u128]) -> Unreduced {
            // SAFETY: a `DetectedWide` exists only where the processor has the instructions.
            unsafe { inner_wide(words, powers) }
        }
    }

    fn halves(value: __m128i) -> u128 {
        let mut bytes = [0u8; 16];
        // SAFETY: the store is of 16 bytes and needs no alignment; SSE2 is part of x86-64.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), value) };
        u128::from_le_bytes(bytes)
    }

    fn vector(value: u128) -> __m128i {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_set_epi64x((value >> 64) as i64, value as i64) }
    }

    /// `low` + `middle`·t⁶⁴.
    fn joined(low: __m128i, middle: __m128i) -> Unreduced {
        let (low, middle) = (halves(low), halves(middle));
        Unreduced { low: low ^ (middle << 64), high: middle >> 64 }
    }

    #[target_feature(enable = "pclmulqdq")]
    fn product(a: u128, b: u128) -> Unreduced {
        let (a, b) = (vector(a), vector(b));
        let low = _mm_clmulepi64_si128::<0x00>(a, b);
        let high = _mm_clmulepi64_si128::<0x11>(a, b);
        let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(a, b), _mm_clmulepi64_si128::<0x01>(a, b));
        let sum = joined(low, middle);
        Unreduced { low: sum.low, high: sum.high ^ halves(high) }
    }

    /// Both slices are of one length.
    #[target_feature(enable = "pclmulqdq")]
    fn inner(words: &[u64], powers: &[u128]) -> Unreduced {
        let (mut low, mut middle) = (_mm_setzero_si128(), _mm_setzero_si128());
        for (word, power) in words.iter().zip(powers) {
            // SAFETY: a power is 16 readable bytes; on this little-endian machine its low half
            // comes first.
            let power = unsafe { _mm_loadu_si128(std::ptr::from_ref(power).cast()) };
            let word = _mm_set1_epi64x(*word as i64);
            low = _mm_xor_si128(low, _mm_clmulepi64_si128::<0x00>(word, power));
            middle = _mm_xor_si128(middle, _mm_clmulepi64_si128::<0x10>(word, power));
        }
        joined(low, middle)
    }

    /// Both slices are of one length. Four words a step: their powers are two registers of two.
    #[target_feature(enable = "pclmulqdq,vpclmulqdq,avx2")]
    fn inner_wide(words: &[u64], powers: &[u128]) -> Unreduced {
        let (mut low, mut middle) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        let (steps, rest) = words.as_chunks::<4>();
        let (by_step, rest_powers) = powers.split_at(4 * steps.len());
        for (words, powers) in steps.iter().zip(by_step.as_chunks::<4>().0) {
            // SAFETY: four words are 32 readable bytes, four powers 64; no alignment is needed.
            let (words, first, second) = unsafe {
                let powers = powers.as_ptr().cast::<__m256i>();
                (
                    _mm256_loadu_si256(words.as_ptr().cast()),
                    _mm256_loadu_si256(powers),
                    _mm256_loadu_si256(powers.add(1)),
                )
            };
            // Words 0 and 1 to the low halves of the lanes of one register, 2 and 3 to those of
            // another.
            let one = _mm256_permute4x64_epi64::<0b01_01_00_00>(words);
            let two = _mm256_permute4x64_epi64::<0b11_11_10_10>(words);
            low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128::<0x00>(one, first));
            middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128::<0x10>(one, first));
            low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128::<0x00>(two, second));
            middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128::<0x10>(two, second));
        }
        let folded =
            |wide: __m256i| _mm_xor_si128(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
        let (sum, rest) = (joined(folded(low), folded(middle)), inner(rest, rest_powers));
        Unreduced { low: sum.low ^ rest.low, high: sum.high ^ rest.high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// a·b in the field, one bit after the other.
    fn by_bits(a: u128, b: u128) -> u128 {
        (0..128).rev().fold(0, |product: u128, bit| {
            let doubled = product << 1 ^ if product >> 127 == 1 { 0x87 } else { 0 };
            doubled ^ if b >> bit & 1 == 1 { a } else { 0 }
        })
    }

    #[test]
    fn a_known_product() {
        // t¹²⁷·t = t¹²⁸, and the largest element squared.
        for kernel in Kernel::all() {
            assert_eq!(kernel.multiply(1 << 127, 2), 0x87, "{kernel:?}");
            assert_eq!(kernel.multiply(u128::MAX, 1), u128::MAX, "{kernel:?}");
            assert_eq!(kernel.multiply(u128::MAX, u128::MAX), by_bits(u128::MAX, u128::MAX), "{kernel:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn every_kernel_multiplies_bit_by_bit(a in any::<u128>(), b in any::<u128>()) {
            for kernel in Kernel::all() {
                prop_assert_eq!(kernel.multiply(a, b), by_bits(a, b), "{:?}", kernel);
            }
        }

        #[test]
        fn every_kernel_sums_products(
            words in proptest::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 0..40),
            powers in proptest::collection::vec(any::<u128>(), 40..41),
        ) {
            let terms = words.iter().zip(&powers);
            let expected = terms.fold(0, |sum, (word, power)| sum ^ by_bits(*power, u128::from(*word)));
            for kernel in Kernel::all() {
                prop_assert_eq!(kernel.inner(&words, &powers), expected, "{:?}", kernel);
            }
        }

        #[test]
        fn shifting_multiplies_by_a_power(value in any::<u128>(), shift in 0u32..64) {
            let mut sum = Unreduced::default();
            sum.add_shifted(value, shift);
            prop_assert_eq!(sum.reduce(), by_bits(value, 1 << shift));
        }
    }
}
