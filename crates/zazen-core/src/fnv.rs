//! Hashes of names that are stored or that nodes must agree on. They never change.

/// FNV-1a with 128 bits. Not for untrusted keys of hash tables. A collision loses no data where it
/// is used: what shares a folder or a number still differs in its sources.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(START, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// A hash whose every bit depends on every bit of `bytes`: names that are alike, such as `run1` and
/// `run2`, are far apart. (FNV's own low bits of these two differ by 315.)
pub fn spread_64(bytes: &[u8]) -> u64 {
    let hash = fnv1a_128(bytes);
    mixed(hash as u64 ^ mixed((hash >> 64) as u64))
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of `word`.
pub fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is stored must be found again: computed by another program.
    #[test]
    fn the_hash_stays() {
        assert_eq!(spread_64(b"field.h5"), 0x674fea9b628ff3c5);
        assert_eq!(fnv1a_128(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    }
}
