//! A digest of what was done to a simulated disk, in order.

/// FNV-1a over 64-bit words: equal histories give equal digests on every machine. Not against
/// forgery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace(u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    /// An operation and the path that it is about.
    pub(crate) fn note(&mut self, what: &str, path: &str) {
        self.bytes(u64::MAX, what.as_bytes());
        self.bytes(u64::MAX, path.as_bytes());
    }

    /// Bytes and where they go.
    pub(crate) fn bytes(&mut self, at: u64, bytes: &[u8]) {
        self.word(at);
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }

    pub(crate) fn digest(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_bytes_count() {
        let of = |notes: &[(&str, &str)]| {
            let mut trace = Trace::default();
            notes.iter().for_each(|(what, path)| trace.note(what, path));
            trace.digest()
        };
        let all = [
            of(&[]),
            of(&[("read", "a")]),
            of(&[("read", "b")]),
            of(&[("rea", "da")]),
            of(&[("read", "a"), ("read", "b")]),
            of(&[("read", "b"), ("read", "a")]),
        ];
        for (at, digest) in all.iter().enumerate() {
            assert!(!all[..at].contains(digest), "{at}");
        }
    }
}
