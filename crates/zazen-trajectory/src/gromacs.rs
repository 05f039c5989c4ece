//! GROMACS XTC and TRR: XDR, so big endian. Each frame has a header that tells its length.
//!
//! XTC: magic@0 (1995, or 2023 for large frames), atoms@4, step@8, time@12, box@16, atoms@52. Up to
//! 9 atoms are plain coordinates from 56 on. Otherwise: precision@56, least@60 and greatest@72
//! integers, smallidx@84, and the number of compressed bytes at 88, in 4 bytes or (2023) in 8.
//!
//! TRR: magic@0 (1993), version string@4, 13 integers@24: sizes of the blocks, atoms, step, nre;
//! then time and lambda in single or double precision; then the blocks.

use crate::bytes::{be_i32, be_i64};

/// Bytes of a header that suffice for any frame of the format.
pub(crate) const XTC_HEAD: usize = 96;
pub(crate) const TRR_HEAD: usize = 92;

pub(crate) const XTC_MAGIC: i32 = 1995;
pub(crate) const XTC_LARGE_MAGIC: i32 = 2023;
pub(crate) const TRR_MAGIC: i32 = 1993;
pub(crate) const TRR_VERSION: &[u8] = b"GMX_trn_file";

/// A frame's header, or what is wrong with it.
pub(crate) type Head = Result<Header, String>;

/// What a frame's header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) n_atoms: u64,
    /// Of the whole frame, in bytes.
    pub(crate) length: u64,
}

/// The header in the first bytes of an XTC frame; `None` if more bytes are needed.
pub(crate) fn xtc(bytes: &[u8]) -> Option<Head> {
    let magic = be_i32(bytes, 0)?;
    if magic != XTC_MAGIC && magic != XTC_LARGE_MAGIC {
        return Some(Err(format!("an XTC frame begins with {XTC_MAGIC} or {XTC_LARGE_MAGIC}, not {magic}")));
    }
    let (n_atoms, again) = (be_i32(bytes, 4)?, be_i32(bytes, 52)?);
    if n_atoms <= 0 || n_atoms != again {
        return Some(Err(format!("its header has {n_atoms} atoms, its coordinates are for {again}")));
    }
    let n_atoms = n_atoms as u64;
    if n_atoms <= 9 {
        return Some(Ok(Header { n_atoms, length: 56 + 12 * n_atoms }));
    }
    let small = be_i32(bytes, 84)?;
    let (packed, begin) = match magic {
        XTC_MAGIC => (i64::from(be_i32(bytes, 88)?), 92),
        _ => (be_i64(bytes, 88)?, 96),
    };
    // GROMACS writes 73, beyond its table of sizes, if no atoms are near each other.
    if !(0..=73).contains(&small) || packed <= 0 || packed > i64::MAX / 2 {
        return Some(Err(format!("its header is damaged: smallidx {small}, {packed} compressed bytes")));
    }
    Some(Ok(Header { n_atoms, length: begin + (packed as u64).next_multiple_of(4) }))
}

/// The header in the first bytes of a TRR frame; `None` if more bytes are needed.
pub(crate) fn trr(bytes: &[u8]) -> Option<Head> {
    let magic = be_i32(bytes, 0)?;
    if magic != TRR_MAGIC {
        return Some(Err(format!("a TRR frame begins with {TRR_MAGIC}, not {magic}")));
    }
    let (outer, inner, version) = (be_i32(bytes, 4)?, be_i32(bytes, 8)?, bytes.get(12..24)?);
    if outer != 13 || inner != 12 || version != TRR_VERSION {
        return Some(Err("its version string is not GMX_trn_file".to_owned()));
    }
    let mut fields = [0i32; 13];
    for (nth, field) in fields.iter_mut().enumerate() {
        *field = be_i32(bytes, 24 + 4 * nth)?;
    }
    let [ir, e, cell, vir, pres, top, sym, x, v, f, n_atoms, ..] = fields;
    if n_atoms <= 0 || ir != 0 || e != 0 || top != 0 || sym != 0 {
        return Some(Err(format!("its header is damaged: {n_atoms} atoms, block sizes {fields:?}")));
    }
    let (n_atoms, vectors) = (n_atoms as u64, 3 * n_atoms as u64);
    let blocks = [(cell, 9), (vir, 9), (pres, 9), (x, vectors), (v, vectors), (f, vectors)];
    let mut real = None;
    let mut length = 76;
    for (bytes, numbers) in blocks.into_iter().filter(|(bytes, _)| *bytes != 0) {
        let bytes = u64::try_from(bytes).unwrap_or(0);
        let size = bytes / numbers;
        if !matches!(size, 4 | 8) || size * numbers != bytes || real.is_some_and(|real| real != size) {
            return Some(Err(format!("its header is damaged: {n_atoms} atoms, block sizes {fields:?}")));
        }
        real = Some(size);
        length += bytes;
    }
    let Some(real) = real else { return Some(Err("it holds neither box nor atoms".to_owned())) };
    Some(Ok(Header { n_atoms, length: length + 2 * real }))
}
