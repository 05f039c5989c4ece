//! Bytes made shorter for slow links: a Huffman code of single bytes, chosen anew for each chunk.
//!
//! This suits bitmaps of random sets, which have no repeats: a bitmap in which one bit of eight is
//! set takes 4.4 bits a byte, of which 4.35 are its entropy. Four streams side by side keep a core
//! busy.
//!
//! ```text
//! packed  raw length (8 bytes), chunk*        each of 512 KiB of raw bytes, the last one shorter
//! chunk   0, raw bytes
//!         1, 128 bytes of code lengths, 4 × stream length (4 bytes), 4 streams
//! lengths of the codes of bytes 2i (low half) and 2i + 1 (high half): 0 (does not occur) to 12
//! stream  a quarter of the chunk's bytes (rounded up; the last takes the rest): codes from the
//!         lowest bit on, then 8 bytes of 0
//! ```
//!
//! Codes are canonical: shorter ones first, equal lengths by byte; a code's first bit is its
//! lowest. They use up all codes of 12 bits. Decoding never panics, and holds at most eight times
//! the input.

use zazen_core::{Error, ErrorKind, Result};

/// Raw bytes in a chunk.
const CHUNK: usize = 512 << 10;
/// The longest code, in bits.
const BITS_MAX: u32 = 12;
/// All codes of that length.
const CODES: usize = 1 << BITS_MAX;
/// Bytes that follow a stream, so that it can be read in words.
const PADDING: usize = 8;

const RAW: u8 = 0;
const CODED: u8 = 1;

/// Appends `bytes`, packed, to `out`. Chunks that would not become shorter by a sixteenth stay raw.
pub fn pack(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    for chunk in bytes.chunks(CHUNK) {
        let mut counts = histogram(chunk);
        if counts[usize::from(chunk[0])] as usize == chunk.len() {
            // A code has two bytes at least.
            counts[usize::from(!chunk[0])] = 1;
        }
        let lengths = code_lengths(&counts);
        let bits: u64 = counts.iter().zip(&lengths).map(|(count, length)| count * u64::from(*length)).sum();
        if bits / 8 + 200 > (chunk.len() - chunk.len() / 16) as u64 {
            out.push(RAW);
            out.extend_from_slice(chunk);
            continue;
        }
        out.push(CODED);
        out.extend(lengths.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
        let heads = out.len();
        out.extend_from_slice(&[0; 16]);
        let table = codes(&lengths);
        for (at, quarter) in quarters(chunk).into_iter().enumerate() {
            let start = out.len();
            encode_stream(quarter, &table, out);
            let length = (out.len() - start) as u32;
            out[heads + 4 * at..heads + 4 * at + 4].copy_from_slice(&length.to_le_bytes());
        }
    }
}

/// The bytes that [`pack`] was given; fails with [`ErrorKind::Protocol`] for anything else.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut rest = packed;
    let mut length = [0; 8];
    length.copy_from_slice(take(&mut rest, 8)?);
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| broken("it is too long"))?;
    // A byte takes a bit at least.
    if length / 8 > packed.len() {
        return Err(broken("it announces more than it has"));
    }
    let mut out = Vec::new();
    while out.len() < length {
        let count = CHUNK.min(length - out.len());
        match take(&mut rest, 1)?[0] {
            RAW => out.extend_from_slice(take(&mut rest, count)?),
            CODED => {
                let start = out.len();
                out.resize(start + count, 0);
                decode_chunk(&mut rest, &mut out[start..])?;
            }
            kind => return Err(broken(&format!("chunk kind {kind}"))),
        }
    }
    if !rest.is_empty() {
        return Err(broken("bytes follow its end"));
    }
    Ok(out)
}

fn broken(why: &str) -> Error {
    let context = format!("packed bytes: {why}; the sender is damaged or of another version");
    Error::new(ErrorKind::Protocol, context)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count).ok_or_else(|| broken("cut short"))?;
    *rest = after;
    Ok(taken)
}

/// The four parts of a chunk that the streams hold.
fn quarters(chunk: &[u8]) -> [&[u8]; 4] {
    let quarter = chunk.len().div_ceil(4);
    let part = |at: usize| &chunk[(at * quarter).min(chunk.len())..((at + 1) * quarter).min(chunk.len())];
    [part(0), part(1), part(2), part(3)]
}

fn histogram(chunk: &[u8]) -> [u64; 256] {
    // Four tables, so that equal bytes in a row do not wait for each other.
    let mut tables = [[0u32; 256]; 4];
    let (fours, rest) = chunk.as_chunks::<4>();
    for four in fours {
        for (table, byte) in tables.iter_mut().zip(four) {
            table[usize::from(*byte)] += 1;
        }
    }
    rest.iter().for_each(|byte| tables[0][usize::from(*byte)] += 1);
    std::array::from_fn(|byte| tables.iter().map(|table| u64::from(table[byte])).sum())
}

/// Lengths of an optimal code of at most [`BITS_MAX`] bits, by package-merge; two bytes at least
/// occur.
fn code_lengths(counts: &[u64; 256]) -> [u8; 256] {
    let mut leaves: Vec<(u64, u8)> =
        (0..=255).map(|byte| (counts[usize::from(byte)], byte)).filter(|leaf| leaf.0 > 0).collect();
    leaves.sort_unstable();
    // By level, the merged list of leaves and packages: whether each entry is a leaf. Leaves come
    // in their own order, so how many there are says which ones.
    let mut levels: Vec<Vec<bool>> = Vec::with_capacity(BITS_MAX as usize);
    let mut packages: Vec<u64> = Vec::new();
    for _ in 0..BITS_MAX {
        let mut merged: Vec<u64> = Vec::with_capacity(leaves.len() + packages.len());
        let mut is_leaf = Vec::with_capacity(merged.capacity());
        let (mut leaf, mut package) = (0, 0);
        while leaf < leaves.len() || package < packages.len() {
            let own =
                leaf < leaves.len() && (package == packages.len() || leaves[leaf].0 <= packages[package]);
            merged.push(if own { leaves[leaf].0 } else { packages[package] });
            is_leaf.push(own);
            (leaf, package) = if own { (leaf + 1, package) } else { (leaf, package + 1) };
        }
        packages = merged.as_chunks::<2>().0.iter().map(|[a, b]| a + b).collect();
        levels.push(is_leaf);
    }
    let mut lengths = [0; 256];
    let mut wanted = 2 * (leaves.len() - 1);
    for is_leaf in levels.iter().rev() {
        let own = is_leaf[..wanted.min(is_leaf.len())].iter().filter(|leaf| **leaf).count();
        leaves[..own].iter().for_each(|(_, byte)| lengths[usize::from(*byte)] += 1);
        wanted = 2 * (wanted.min(is_leaf.len()) - own);
    }
    lengths
}

/// By byte: its code in the low half, the code's length in the high half.
fn codes(lengths: &[u8; 256]) -> [u32; 256] {
    let mut next = 0u32;
    let mut codes = [0; 256];
    for length in 1..=BITS_MAX {
        for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, own)| u32::from(**own) == length) {
            *code = (next.reverse_bits() >> (32 - length)) | length << 16;
            next += 1;
        }
        next <<= 1;
    }
    codes
}

fn encode_stream(bytes: &[u8], table: &[u32; 256], out: &mut Vec<u8>) {
    let mut at = out.len();
    // Room for the longest codes, and for a whole word behind the last.
    out.resize(at + bytes.len() * BITS_MAX as usize / 8 + 2 * PADDING, 0);
    let (mut held, mut count) = (0u64, 0u32);
    let mut flush = |held: &mut u64, count: &mut u32| {
        out[at..at + 8].copy_from_slice(&held.to_le_bytes());
        at += (*count / 8) as usize;
        *held >>= *count & !7;
        *count &= 7;
    };
    let (fours, rest) = bytes.as_chunks::<4>();
    for four in fours {
        for byte in four {
            let entry = table[usize::from(*byte)];
            held |= u64::from(entry & 0xffff) << count;
            count += entry >> 16;
        }
        flush(&mut held, &mut count);
    }
    for byte in rest {
        let entry = table[usize::from(*byte)];
        held |= u64::from(entry & 0xffff) << count;
        count += entry >> 16;
        flush(&mut held, &mut count);
    }
    count += 7;
    flush(&mut held, &mut count);
    out.truncate(at);
    out.extend_from_slice(&[0; PADDING]);
}

/// By the next 12 bits: the byte in the low half, its code's length in the high half.
fn decoding_table(lengths: &[u8; 256]) -> Result<Box<[u16; CODES]>> {
    let used: usize =
        lengths.iter().filter(|length| **length > 0).map(|length| CODES >> u32::from(*length).min(31)).sum();
    if lengths.iter().any(|length| u32::from(*length) > BITS_MAX) || used != CODES {
        return Err(broken("its code lengths are no code"));
    }
    let mut table = Box::new([0u16; CODES]);
    for (byte, entry) in codes(lengths).into_iter().enumerate().filter(|(_, entry)| *entry > 0) {
        let (code, length) = ((entry & 0xffff) as usize, entry >> 16);
        for at in (code..CODES).step_by(1 << length) {
            table[at] = byte as u16 | (length as u16) << 8;
        }
    }
    Ok(table)
}

/// A stream that is being read.
struct Stream<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: usize,
}

impl Stream<'_> {
    /// The next 56 bits at least.
    #[inline]
    fn word(&self) -> Result<u64> {
        let from = self.at / 8;
        let bytes = self.bytes.get(from..from + 8).and_then(|bytes| bytes.first_chunk());
        let bytes = bytes.ok_or_else(|| broken("a stream is cut short"))?;
        Ok(u64::from_le_bytes(*bytes) >> (self.at % 8))
    }

    /// Decodes `N` bytes, at most four: the longest codes of so many fit a word.
    #[inline]
    fn decode<const N: usize>(&mut self, table: &[u16; CODES], into: &mut [u8; N]) -> Result<()> {
        let mut word = self.word()?;
        for byte in into {
            let entry = table[word as usize % CODES];
            *byte = entry as u8;
            word >>= entry >> 8;
            self.at += usize::from(entry >> 8);
        }
        Ok(())
    }
}

fn decode_chunk(rest: &mut &[u8], out: &mut [u8]) -> Result<()> {
    let mut lengths = [0u8; 256];
    for (pair, byte) in lengths.as_chunks_mut::<2>().0.iter_mut().zip(take(rest, 128)?) {
        *pair = [byte & 15, byte >> 4];
    }
    let table = decoding_table(&lengths)?;
    let heads = take(rest, 16)?.as_chunks::<4>().0;
    let mut stream = |head: &[u8; 4]| {
        Ok::<Stream<'_>, Error>(Stream { bytes: take(rest, u32::from_le_bytes(*head) as usize)?, at: 0 })
    };
    let [mut a, mut b, mut c, mut d] =
        [stream(&heads[0])?, stream(&heads[1])?, stream(&heads[2])?, stream(&heads[3])?];
    let quarter = out.len().div_ceil(4);
    let (first, others) = out.split_at_mut(quarter);
    let (second, others) = others.split_at_mut(quarter.min(others.len()));
    let (third, fourth) = others.split_at_mut(quarter.min(others.len()));
    {
        let fours = first.as_chunks_mut::<4>().0.iter_mut().zip(second.as_chunks_mut::<4>().0);
        let fours = fours.zip(third.as_chunks_mut::<4>().0.iter_mut().zip(fourth.as_chunks_mut::<4>().0));
        for ((into_a, into_b), (into_c, into_d)) in fours {
            a.decode(&table, into_a)?;
            b.decode(&table, into_b)?;
            c.decode(&table, into_c)?;
            d.decode(&table, into_d)?;
        }
    }
    // The fourth is the shortest, and has set how far all of them came.
    let done = fourth.len() / 4 * 4;
    for (stream, part) in [(&mut a, first), (&mut b, second), (&mut c, third), (&mut d, fourth)] {
        for byte in part[done..].as_chunks_mut::<1>().0 {
            stream.decode(&table, byte)?;
        }
        if stream.at.div_ceil(8) + PADDING != stream.bytes.len() {
            return Err(broken("a stream has another length than its codes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        pack(bytes, &mut out);
        assert_eq!(unpack(&out).unwrap(), bytes);
        out
    }

    /// Bytes of which each bit is set with a probability of `share` in 256.
    fn bits(seed: u64, count: usize, share: u64) -> Vec<u8> {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        (0..count).map(|_| (0..8).fold(0, |byte, bit| byte | u8::from(draw() % 256 < share) << bit)).collect()
    }

    #[test]
    fn random_bitmaps_come_near_their_entropy() {
        for (share, entropy) in [(32, 0.5436), (16, 0.3373), (64, 0.8113)] {
            let bytes = bits(share, 2 << 20, share);
            let ratio = packed(&bytes).len() as f64 / bytes.len() as f64;
            assert!(ratio >= entropy * 0.98 && ratio < entropy * 1.03 + 0.02, "{share}: {ratio}");
        }
        // A byte takes a bit at least.
        let few = packed(&bits(4, 2 << 20, 4)).len() as f64 / f64::from(2 << 20);
        assert!((0.125..0.2).contains(&few), "{few}");
        let noise = bits(1, 2 << 20, 128);
        assert!(packed(&noise).len() < noise.len() + 64);
        assert!(packed(&vec![7; 5 << 20]).len() < 660_000);
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(packed(&[]), [0; 8]);
        assert_eq!(packed(&[1, 2]), [2, 0, 0, 0, 0, 0, 0, 0, RAW, 1, 2]);
        let bytes: Vec<u8> = (0..1600).map(|at| [5, 5, 6, 255][at % 4]).collect();
        let out = packed(&bytes);
        // Codes 0, 10 and 11 for 5, 6 and 255; four times 5, 5, 6, 255 are 24 bits, three bytes.
        assert_eq!((out[8], out[9 + 2], out[9 + 3], out[9 + 127]), (CODED, 1 << 4, 2, 2 << 4));
        assert_eq!(out[9 + 128..9 + 144], [83, 0, 0, 0, 83, 0, 0, 0, 83, 0, 0, 0, 83, 0, 0, 0]);
        assert_eq!(out[9 + 144..9 + 147], [0b0011_0100, 0b0100_1101, 0b1101_0011]);
        assert_eq!(out.len(), 9 + 144 + 4 * 83);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn bytes_come_back(seed: u64, count in 0usize..70_000, share in 0u64..257) {
            packed(&bits(seed, count, share));
        }

        #[test]
        fn any_histogram_gives_a_code(counts in prop::collection::vec((any::<u8>(), 0u32..24), 2..300)) {
            let mut table = [0u64; 256];
            counts.iter().for_each(|(byte, exponent)| table[usize::from(*byte)] += 1 << exponent);
            if table.iter().filter(|count| **count > 0).count() > 1 {
                let lengths = code_lengths(&table);
                prop_assert!(decoding_table(&lengths).is_ok());
                prop_assert!(table.iter().zip(&lengths).all(|(count, length)| (*count > 0) == (*length > 0)));
            }
        }

        #[test]
        fn damage_never_panics(
            seed: u64, count in 1usize..9000, share in 1u64..200,
            flips in prop::collection::vec((any::<u32>(), any::<u8>()), 1..20), cut: u32,
        ) {
            let out = packed(&bits(seed, count, share));
            prop_assert!(unpack(&out[..cut as usize % out.len()]).is_err());
            for (at, byte) in flips {
                let mut damaged = out.clone();
                let at = at as usize % damaged.len().min(200);
                damaged[at] = byte;
                if let Ok(bytes) = unpack(&damaged) {
                    prop_assert!(bytes.len() <= 8 * damaged.len() + 8);
                }
            }
        }
    }
}
