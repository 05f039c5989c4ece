//! Digests of what happened: equal runs have equal digests.

/// FNV-1a over words, rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds a word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    /// Adds bytes, and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| {
            self.word(word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        });
        rest.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    /// The digest so far.
    pub fn digest(self) -> u64 {
        crate::random::mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Trace;

    #[test]
    fn order_and_lengths_matter() {
        let of = |parts: &[&[u8]]| {
            let mut trace = Trace::default();
            parts.iter().for_each(|part| trace.bytes(part));
            trace.digest()
        };
        let all = [of(&[b"ab", b"c"]), of(&[b"a", b"bc"]), of(&[b"c", b"ab"]), of(&[b"abc"]), of(&[])];
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])), "{all:?}");
        assert_eq!(of(&[b"12345678", b"9"]), of(&[b"12345678", b"9"]));
    }
}
