//! Integers of files, in the order that the file has.

/// The order of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Big,
    Little,
}

/// The `N` bytes at `at`; `None` where there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl Order {
    pub(crate) fn i32(self, bytes: &[u8], at: usize) -> Option<i32> {
        let bytes = array(bytes, at)?;
        Some(match self {
            Order::Big => i32::from_be_bytes(bytes),
            Order::Little => i32::from_le_bytes(bytes),
        })
    }

    pub(crate) fn i64(self, bytes: &[u8], at: usize) -> Option<i64> {
        let bytes = array(bytes, at)?;
        Some(match self {
            Order::Big => i64::from_be_bytes(bytes),
            Order::Little => i64::from_le_bytes(bytes),
        })
    }
}

/// The first 8 bytes, or as many as there are, as a little-endian number.
pub(crate) fn little(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    for (into, byte) in whole.iter_mut().zip(bytes) {
        *into = *byte;
    }
    u64::from_le_bytes(whole)
}

/// A big-endian i32.
pub(crate) fn be_i32(bytes: &[u8], at: usize) -> Option<i32> {
    Order::Big.i32(bytes, at)
}

/// A big-endian i64.
pub(crate) fn be_i64(bytes: &[u8], at: usize) -> Option<i64> {
    Order::Big.i64(bytes, at)
}
