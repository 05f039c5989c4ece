//! The packets of stations: a header of 24 bytes, little endian, and samples. *Pure.*
//!
//! ```text
//!  0      4        6      8              16       20      24
//! +------+--------+------+--------------+--------+-------+----------------
//! | ZST1 | station| flags| time         | bytes  | tag   | samples
//! +------+--------+------+--------------+--------+-------+----------------
//! ```
//!
//! `time` is the number of the first sample since the beginning of time. With the flag `END`
//! nothing follows, and `time` is that of the first sample that will not come.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Nothing follows: the station has ended.
pub const END: u16 = 1;
/// The latest time. So numbers of blocks and samples that are computed from a time stay within 64
/// bits.
pub const TIME_MAX: u64 = 1 << 62;
const MAGIC: &[u8; 4] = b"ZST1";

/// A packet in a receiver's buffer.
pub(crate) struct Piece<'a> {
    /// Within the stream.
    pub(crate) station: u32,
    /// Number since the beginning of time.
    pub(crate) packet: u64,
    pub(crate) samples: &'a [u8],
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which station, counted over all nodes.
    pub station: u16,
    /// Whether the station has ended.
    pub is_end: bool,
    /// Number of the first sample.
    pub time: u64,
    /// Bytes of the samples.
    pub bytes: u32,
    /// Which observation.
    pub tag: u32,
}

impl Header {
    /// Reads a header; `None` if the bytes are not a header, or its time is beyond [`TIME_MAX`].
    pub fn take(from: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = from.first_chunk()?;
        let [m0, m1, m2, m3, s0, s1, f0, f1, rest @ ..] = *bytes;
        let [t0, t1, t2, t3, t4, t5, t6, t7, b0, b1, b2, b3, g0, g1, g2, g3] = rest;
        let flags = u16::from_le_bytes([f0, f1]);
        let header = Header {
            station: u16::from_le_bytes([s0, s1]),
            is_end: flags & END != 0,
            time: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            bytes: u32::from_le_bytes([b0, b1, b2, b3]),
            tag: u32::from_le_bytes([g0, g1, g2, g3]),
        };
        (&[m0, m1, m2, m3] == MAGIC && flags & !END == 0 && header.time <= TIME_MAX).then_some(header)
    }

    /// Its bytes.
    pub fn put(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&self.station.to_le_bytes());
        bytes[6..8].copy_from_slice(&(if self.is_end { END } else { 0 }).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[20..].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_these() {
        let header = Header { station: 0x0102, is_end: true, time: 0x0304, bytes: 5, tag: 6 };
        let golden = *b"ZST1\x02\x01\x01\0\x04\x03\0\0\0\0\0\0\x05\0\0\0\x06\0\0\0";
        assert_eq!(header.put(), golden);
        assert_eq!(Header::take(&golden), Some(header));
        assert_eq!(Header::take(&golden[..23]), None);
        let mut other = golden;
        other[0] = b'z';
        assert_eq!(Header::take(&other), None);
        let mut flags = golden;
        flags[7] = 1;
        assert_eq!(Header::take(&flags), None);
        let of = |time| Header { time, ..header };
        assert_eq!(Header::take(&of(TIME_MAX).put()), Some(of(TIME_MAX)));
        assert_eq!(Header::take(&of(TIME_MAX + 1).put()), None);
    }
}
