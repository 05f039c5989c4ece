//! A row of bits. *Pure.*

/// A fixed number of bits, all 0 at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    length: usize,
}

impl Bits {
    /// `length` zeros.
    pub fn new(length: usize) -> Bits {
        Bits { words: vec![0; length.div_ceil(64)], length }
    }

    /// Sets a bit. Returns whether it was not set before.
    pub fn set(&mut self, at: usize) -> bool {
        debug_assert!(at < self.length);
        let (word, bit) = (&mut self.words[at / 64], 1 << (at % 64));
        let was_clear = *word & bit == 0;
        *word |= bit;
        was_clear
    }

    /// Whether one is set.
    pub fn get(&self, at: usize) -> bool {
        self.words[at / 64] & (1 << (at % 64)) != 0
    }

    /// All 0.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// How many of `length` bits from `from` on are set.
    pub fn count(&self, from: usize, length: usize) -> usize {
        let (mut at, end) = (from, from + length);
        let mut count = 0;
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (at % 64) };
            count += (self.words[at / 64] & mask).count_ones() as usize;
            at += bits;
        }
        count
    }

    /// Bytes of [`Bits::write_to`].
    pub fn bytes(&self) -> usize {
        self.length.div_ceil(8)
    }

    /// As bytes, the lowest bit first.
    pub fn write_to(&self, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate().take(self.bytes()) {
            *byte = (self.words[at / 8] >> (8 * (at % 8))) as u8;
        }
    }
}
