//! The hash of names that are stored or that nodes must agree on. It never changes.

/// FNV-1a with 128 bits. Not for untrusted keys of hash tables. A collision loses no data where it
/// is used: what shares a folder or a number still differs in its sources.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(START, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
