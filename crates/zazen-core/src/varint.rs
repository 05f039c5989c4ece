//! Numbers of one to ten bytes: 7 bits a byte, the least significant first; the top bit says that
//! more follows. docs/formats has the files that they lie in.

/// A signed number as an unsigned one that is small where it is near zero.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// What [`zigzag`] was given.
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a number.
#[inline]
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Writes a number at `at`, which then is its end. Ten bytes are room enough; it panics without.
#[inline]
pub fn write_varint(bytes: &mut [u8], at: &mut usize, mut value: u64) {
    while value >= 0x80 {
        bytes[*at] = value as u8 | 0x80;
        value >>= 7;
        *at += 1;
    }
    bytes[*at] = value as u8;
    *at += 1;
}

/// The number that begins at `at`, which then is its end. `None` if the bytes end before it, or if
/// it has more than 64 bits.
#[inline]
pub fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
