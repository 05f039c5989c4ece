//! The checksum of HDF5's newer structures: Bob Jenkins' `lookup3`, in public domain.

use crate::bytes::little;

/// The checksum of `bytes`.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let (mut a, mut b, mut c) = (start, start, start);
    let word = |part: &[u8], at: usize| little(&part[at.min(part.len())..part.len().min(at + 4)]) as u32;
    let mut rest = bytes;
    while rest.len() > 12 {
        let (part, behind) = rest.split_at(12);
        a = a.wrapping_add(word(part, 0));
        b = b.wrapping_add(word(part, 4));
        c = c.wrapping_add(word(part, 8));
        (a, b, c) = mix(a, b, c);
        rest = behind;
    }
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    c = c.wrapping_add(word(rest, 8));
    last(a, b, c)
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    (a, b, c)
}

fn last(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_author_s_examples() {
        assert_eq!(super::checksum(b""), 0xdead_beef);
        assert_eq!(super::checksum(b"Four score and seven years ago"), 0x1777_0551);
    }
}
