//! The bit stream of compressed XTC positions: numbers of any width, the highest bit first, without
//! padding between them.
//!
//! Three coordinates of known ranges are one mixed-radix number. Its bytes are stored with the
//! lowest byte first, and the bits that fill no byte are its highest.

/// The bits that [`Bits`] finds in eight bytes, wherever the first of them begins.
const NARROW_MAX: u32 = 56;

/// Reads numbers from the front of a byte slice. It reads no byte beyond the slice.
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    /// In bits from the start.
    at: usize,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0 }
    }

    /// The next `width` bits, at most 56. `None` if there are not as many.
    #[inline(always)]
    fn narrow(&mut self, width: u32) -> Option<u64> {
        let (byte, bit) = (self.at / 8, (self.at % 8) as u32);
        let window = match self.bytes.get(byte..byte + 8) {
            Some(eight) => u64::from_be_bytes(eight.try_into().ok()?),
            None => self.last_bytes(byte, bit + width)?,
        };
        self.at += width as usize;
        // Two shifts, because a width of 0 would shift by 64.
        Some((window << bit) >> (63 - width) >> 1)
    }

    /// Fewer than eight bytes are left: they and zeros behind them, if they hold `needed` bits.
    #[cold]
    fn last_bytes(&self, byte: usize, needed: u32) -> Option<u64> {
        let rest = self.bytes.get(byte..)?;
        let mut eight = [0; 8];
        eight.get_mut(..rest.len())?.copy_from_slice(rest);
        (needed as usize <= 8 * rest.len()).then_some(u64::from_be_bytes(eight))
    }

    /// The next `width` bits, at most 32.
    #[inline(always)]
    pub(crate) fn number(&mut self, width: u32) -> Option<u32> {
        self.narrow(width).map(|number| number as u32)
    }

    /// The next `width` bits as one mixed-radix number; at most 56.
    #[inline(always)]
    fn mixed(&mut self, width: u32) -> Option<u64> {
        let stored = self.narrow(width)?;
        let (whole, rest) = (width & !7, width & 7);
        let low = match whole {
            0 => 0,
            _ => ((stored >> rest) << (64 - whole)).swap_bytes(),
        };
        let high = stored & ((1 << rest) - 1);
        Some(low | (high << whole))
    }

    /// The same for up to 127 bits.
    #[cold]
    fn wide(&mut self, width: u32) -> Option<u128> {
        let mut number = 0u128;
        for at in 0..width / 8 {
            number |= u128::from(self.narrow(8)?) << (8 * at);
        }
        Some(number | (u128::from(self.narrow(width % 8)?) << (width & !7)))
    }
}

/// Three numbers that are stored as one.
pub(crate) struct Triple {
    /// In bits; 0: each number is stored by itself, with the width of its own.
    width: u32,
    widths: [u32; 3],
    sizes: [u32; 3],
    plane: Divisor,
    line: Divisor,
}

impl Triple {
    /// Numbers below `sizes`, none of which is 0, with the width that their product needs.
    pub(crate) fn new(sizes: [u32; 3]) -> Triple {
        // Larger ones are not multiplied.
        if sizes.iter().any(|size| *size > 0xff_ffff) {
            let widths = sizes.map(|size| 32 - size.leading_zeros());
            return Triple { width: 0, widths, ..Triple::with_width(sizes, 0) };
        }
        let product = sizes.iter().map(|size| u128::from(*size)).product::<u128>();
        Triple::with_width(sizes, 128 - product.leading_zeros())
    }

    /// The same with a width that the format fixes.
    pub(crate) const fn with_width(sizes: [u32; 3], width: u32) -> Triple {
        let (line, plane) = (sizes[2] as u64, (sizes[2] as u64).saturating_mul(sizes[1] as u64));
        // Nothing is divided by more: such numbers are stored one by one.
        let plane = if plane > 1 << 63 { 1 << 63 } else { plane };
        Triple { width, widths: [0; 3], sizes, plane: Divisor::new(plane), line: Divisor::new(line) }
    }

    /// The next three numbers. A damaged stream gives any numbers.
    #[inline(always)]
    pub(crate) fn read(&self, bits: &mut Bits<'_>) -> Option<[u32; 3]> {
        if self.width.wrapping_sub(1) < NARROW_MAX {
            let (x, rest) = self.plane.divide(bits.mixed(self.width)?);
            let (y, z) = self.line.divide(rest);
            return Some([x as u32, y as u32, z as u32]);
        }
        self.read_large(bits)
    }

    #[cold]
    fn read_large(&self, bits: &mut Bits<'_>) -> Option<[u32; 3]> {
        if self.width == 0 {
            let [x, y, z] = self.widths;
            return Some([bits.number(x)?, bits.number(y)?, bits.number(z)?]);
        }
        let number = bits.wide(self.width)?;
        let (size_y, size_z) = (u128::from(self.sizes[1]), u128::from(self.sizes[2]));
        let rest = number / size_z;
        Some([(rest / size_y) as u32, (rest % size_y) as u32, (number % size_z) as u32])
    }
}

/// A divisor whose reciprocal is known: processors divide several times more slowly than they
/// multiply.
struct Divisor {
    divisor: u64,
    /// 2^(63 + shift) / divisor, rounded up, where 2^shift is the first power of two that is not
    /// below the divisor.
    reciprocal: u64,
    shift: u32,
}

impl Divisor {
    /// `divisor` is neither 0 nor above 2^63.
    const fn new(divisor: u64) -> Divisor {
        let shift = divisor.next_power_of_two().trailing_zeros();
        let reciprocal = ((1u128 << (63 + shift)) / divisor as u128 + 1) as u64;
        Divisor { divisor, reciprocal, shift }
    }

    /// Quotient and remainder of a number below 2^63.
    ///
    /// The reciprocal is too large by at most 1, so the quotient before it is cut off is too large
    /// by less than number / 2^(63 + shift) <= 1 / divisor: not enough to reach the next whole one.
    #[inline(always)]
    fn divide(&self, number: u64) -> (u64, u64) {
        let quotient = ((u128::from(number << 1) * u128::from(self.reciprocal)) >> 64) as u64 >> self.shift;
        (quotient, number.wrapping_sub(quotient.wrapping_mul(self.divisor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn division_is_exact(
            number in 0u64..1 << 63, less in 0u32..63, shift in 0u32..63, divisor in 1u64..(1 << 63) + 1,
        ) {
            let number = number >> less;
            let some = (divisor >> shift).max(1);
            let multiple = number / some * some;
            for (number, divisor) in [
                (number, divisor), (number, some), (multiple, some), (multiple.wrapping_sub(1) >> 1, some),
                (multiple.saturating_sub(1), some), (number, number.max(1)), (number, number / 2 + 1),
                (number, number / 3 + 1), ((1 << 63) - 1, some), (number, 1 << shift),
            ] {
                let expected = (number / divisor, number % divisor);
                prop_assert_eq!(Divisor::new(divisor).divide(number), expected);
            }
        }

        #[test]
        fn numbers_are_cut_from_the_front(bytes in prop::collection::vec(any::<u8>(), 0..40),
                                          widths in prop::collection::vec(0u32..33, 0..20)) {
            let text: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
            let (mut bits, mut at) = (Bits::new(&bytes), 0);
            for width in widths {
                let expected = text.get(at..at + width as usize)
                    .map(|digits|
                        if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 2).unwrap() });
                prop_assert_eq!(bits.number(width), expected);
                if expected.is_none() { break; }
                at += width as usize;
            }
        }

        #[test]
        fn mixed_and_wide_agree(
            bytes in prop::collection::vec(any::<u8>(), 16),
            skip in 0u32..8, width in 1u32..54
        ) {
            let mut one = Bits::new(&bytes);
            let mut other = Bits::new(&bytes);
            one.number(skip);
            other.number(skip);
            prop_assert_eq!(one.mixed(width).map(u128::from), other.wide(width));
        }
    }
}
