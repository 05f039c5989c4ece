//! The index of one trajectory file, as it is kept: docs/formats/trajectory-index.md.
//!
//! An index is good for a file that looks as it did. If the file grew, its index is good for the
//! part that was there, if samples of that part are unchanged: its first bytes, the bytes before
//! its end, and blocks at places that only the index knows. A file that was cut and written again
//! differs in the bytes before its old end. Any other change makes the index worthless.

use std::sync::Arc;
use zazen_core::trajectory::{Format, FrameTable, HEADER_BYTES_MAX, Trouble};
use zazen_core::{Error, ErrorKind, Result, Validator};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::codec::{Reader, Writer};

/// The version of the format.
pub const INDEX_VERSION: u16 = 1;
const MAGIC: &[u8; 4] = b"ZZTI";
/// The longest table that is read.
const TABLE_BYTES_MAX: usize = 1 << 30;
const PATH_BYTES_MAX: usize = 8192;
const WHY_BYTES_MAX: usize = 4096;

/// A file of at most so many bytes is one sample.
const WHOLE_BYTES: u64 = 256 << 10;
const HEAD_BYTES: u64 = 4 << 10;
const TAIL_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u64 = 4 << 10;
const BLOCKS: u64 = 30;
/// The most samples that an index has.
const SAMPLES_MAX: usize = 64;

/// A part of the file that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Where it begins.
    pub offset: u64,
    /// Its length, at most 256 KiB.
    pub bytes: u64,
}

/// Samples of a file up to the end of its last whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchors {
    /// Chooses the places.
    pub seed: u64,
    /// The checksum of each sample.
    pub sums: Vec<u64>,
}

impl Anchors {
    /// The samples of a file whose frames end at `end`.
    pub fn samples(seed: u64, end: u64) -> Vec<Sample> {
        if end <= WHOLE_BYTES {
            return vec![Sample { offset: 0, bytes: end }];
        }
        let mut samples = vec![
            Sample { offset: 0, bytes: HEAD_BYTES },
            Sample { offset: end - TAIL_BYTES, bytes: TAIL_BYTES },
        ];
        let mut state = seed;
        for _ in 0..BLOCKS {
            // SplitMix64.
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let offset = (mixed ^ (mixed >> 31)) % (end - BLOCK_BYTES);
            samples.push(Sample { offset, bytes: BLOCK_BYTES });
        }
        samples
    }

    /// The checksum of a sample's bytes, without the counters that writers update in a header.
    pub fn sum(format: Format, sample: Sample, bytes: &mut [u8]) -> u64 {
        hide_counters(format, sample.offset, bytes);
        frame_checksum(bytes)
    }
}

/// Zeroes the counters that writers update in a file's header. `bytes` begin at `offset` of the
/// file.
pub fn hide_counters(format: Format, offset: u64, bytes: &mut [u8]) {
    let counters = match format {
        Format::Dcd => 8..28,
        Format::Ncdf => 4..12,
        _ => 0..0,
    };
    for at in counters {
        if let Some(behind) = u64::checked_sub(at, offset)
            && let Some(byte) = bytes.get_mut(behind as usize)
        {
            *byte = 0;
        }
    }
}

/// How a file compares with its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// It is the file as it was.
    Same,
    /// It may have grown: the samples tell.
    Perhaps,
    /// It is another file, or was changed otherwise.
    Other,
}

impl Grown {
    /// Compares the file as it looks `now` with how it was `seen`.
    pub fn between(seen: &Validator, now: &Validator) -> Grown {
        if seen.agrees_with(now) {
            return Grown::Same;
        }
        let alike = |one: u64, other: u64| one == other || one == 0 || other == 0;
        let grew = now.size > seen.size || (now.size == seen.size && seen.looks_like(now));
        match alike(seen.inode, now.inode) && grew && now.mtime_ns >= seen.mtime_ns {
            true => Grown::Perhaps,
            false => Grown::Other,
        }
    }
}

/// The index of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIndex {
    /// Which file: the backing store and the path there.
    pub key: String,
    /// The file's format.
    pub format: Format,
    /// Atoms in each frame.
    pub n_atoms: u64,
    /// What stands before the first frame.
    pub header: Arc<[u8]>,
    /// Where the frames are.
    pub table: Arc<FrameTable>,
    /// Why there are no more.
    pub trouble: Option<Trouble>,
    /// What the file looked like before its frames were looked for.
    pub seen: Validator,
    /// What of it is compared when it grew.
    pub anchors: Anchors,
}

impl FileIndex {
    /// Compares the file as it looks now with the file as it looked.
    ///
    /// Writers of DCD and NetCDF change the counters in the header before or after they append, so
    /// a file of the same length that was written later is `Perhaps`, too. The caller must compare
    /// the samples; [`Grown::between`] is for those who cannot.
    pub fn compare(&self, now: &Validator) -> Grown {
        let touched = now.size == self.seen.size && self.seen.inode == now.inode && now.inode != 0;
        match Grown::between(&self.seen, now) {
            // Programs change HDF5 files anywhere.
            Grown::Perhaps | Grown::Other if self.format == Format::H5md => Grown::Other,
            Grown::Other if touched && now.mtime_ns >= self.seen.mtime_ns => Grown::Perhaps,
            found => found,
        }
    }

    /// The index as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(MAGIC);
        writer.u16(INDEX_VERSION);
        writer.text(&self.key);
        writer.text(self.format.name());
        writer.u64(self.n_atoms);
        writer.blob(&self.header);
        writer.validator(&self.seen);
        writer.option(&self.trouble, |writer, trouble| {
            writer.u64(trouble.offset);
            writer.bool(trouble.unfinished);
            writer.text(zazen_wire::codec::clip(&trouble.why, WHY_BYTES_MAX));
        });
        writer.u64(self.anchors.seed);
        writer.list(&self.anchors.sums, |writer, sum| writer.u64(*sum));
        writer.blob(&self.table.encode());
        let mut bytes = writer.into_bytes();
        let mut seal = Writer::new();
        seal.u64(frame_checksum(&bytes));
        bytes.extend_from_slice(&seal.into_bytes());
        bytes
    }

    /// Reads what [`FileIndex::encode`] wrote. `Corrupt` or `Malformed` for anything else.
    pub fn decode(bytes: &[u8]) -> Result<FileIndex> {
        let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, format!("trajectory index: {why}"));
        let split = bytes.len().checked_sub(8).ok_or_else(|| corrupt("is cut short"))?;
        let (body, seal) = bytes.split_at(split);
        if Reader::new("trajectory index", seal).u64()? != frame_checksum(body) {
            return Err(corrupt("its checksum is wrong"));
        }
        let mut reader = Reader::new("trajectory index", body);
        if reader.raw(4)? != MAGIC || reader.u16()? != INDEX_VERSION {
            return Err(corrupt("is of another version"));
        }
        let key = reader.text(PATH_BYTES_MAX)?;
        let format = Format::named(&reader.text(16)?).ok_or_else(|| corrupt("its format is not known"))?;
        let n_atoms = reader.u64()?;
        let header = Arc::from(reader.blob(HEADER_BYTES_MAX)?);
        let seen = reader.validator()?;
        let trouble = reader.option(|reader| {
            Ok(Trouble {
                offset: reader.u64()?,
                unfinished: reader.bool()?,
                why: reader.text(WHY_BYTES_MAX)?,
            })
        })?;
        let seed = reader.u64()?;
        let sums: Vec<u64> = reader.list(8, Reader::u64)?;
        let table = Arc::new(FrameTable::decode(reader.blob(TABLE_BYTES_MAX)?)?);
        if reader.remaining() > 0 || sums.len() > SAMPLES_MAX {
            return Err(corrupt("has bytes that do not belong there"));
        }
        let anchors = Anchors { seed, sums };
        Ok(FileIndex { key, format, n_atoms, header, table, trouble, seen, anchors })
    }
}
