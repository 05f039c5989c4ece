//! AMBER NetCDF, classic format in its three versions (32-bit offsets, 64-bit offsets, 64-bit
//! data). A frame is one record: the values of all record variables for one step of the dimension
//! `frame`. All records have the same size.
//!
//! NetCDF-4 files are HDF5 files, and not read here.

use crate::bytes::{be_i32, be_i64};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::codec::Writer;

/// The longest header that is read: names and attributes of any sane file take a few kilobytes.
pub(crate) const HEADER_BYTES_MAX: usize = 4 << 20;

const DIMENSIONS: i32 = 10;
const VARIABLES: i32 = 11;
const ATTRIBUTES: i32 = 12;

/// What a NetCDF file's header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ncdf {
    pub(crate) n_atoms: u64,
    /// Where the first record begins.
    pub(crate) begin: u64,
    /// Bytes of each record.
    pub(crate) record_bytes: u64,
    /// Records that the file says it has; `None`: as many as fit.
    pub(crate) records: Option<u64>,
    /// The checksum of what a decoder needs to know of a record: each variable's name, place, type,
    /// shape and attributes, such as its scale and units.
    pub(crate) built: u64,
}

/// Whether a file that begins with `bytes` is a classic NetCDF file.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    matches!(bytes, [b'C', b'D', b'F', 1 | 2 | 5, ..])
}

/// Why a header was not read.
enum Stop {
    More,
    Bad(String),
}

type Parsed<T> = Result<T, Stop>;

fn bad<T>(why: &str) -> Parsed<T> {
    Err(Stop::Bad(why.to_owned()))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    version: u8,
}

impl<'a> Cursor<'a> {
    fn i32(&mut self) -> Parsed<i32> {
        let value = be_i32(self.bytes, self.at).ok_or(Stop::More)?;
        self.at += 4;
        Ok(value)
    }

    fn i64(&mut self) -> Parsed<i64> {
        let value = be_i64(self.bytes, self.at).ok_or(Stop::More)?;
        self.at += 8;
        Ok(value)
    }

    /// A number that is not negative: 4 bytes, or 8 in version 5.
    fn count(&mut self) -> Parsed<u64> {
        let value = if self.version == 5 { self.i64()? } else { i64::from(self.i32()?) };
        u64::try_from(value).map_err(|_| Stop::Bad(format!("its header has the count {value}")))
    }

    fn offset(&mut self) -> Parsed<u64> {
        let value = if self.version == 1 { i64::from(self.i32()?) } else { self.i64()? };
        u64::try_from(value).map_err(|_| Stop::Bad(format!("its header has the offset {value}")))
    }

    fn skip(&mut self, bytes: u64) -> Parsed<&'a [u8]> {
        let Some(padded) = bytes.checked_next_multiple_of(4).filter(|end| *end <= HEADER_BYTES_MAX as u64)
        else {
            return bad("its header has a field of many megabytes");
        };
        let taken = self.bytes.get(self.at..self.at + padded as usize).ok_or(Stop::More)?;
        self.at += padded as usize;
        Ok(&taken[..bytes as usize])
    }

    fn name(&mut self) -> Parsed<&'a [u8]> {
        let length = self.count()?;
        self.skip(length)
    }

    /// The number of items in a list whose items have this tag.
    fn list(&mut self, tag: i32) -> Parsed<u64> {
        let (found, count) = (self.i32()?, self.count()?);
        match found {
            0 if count == 0 => Ok(0),
            found if found == tag => Ok(count),
            found => Err(Stop::Bad(format!("its header has the tag {found} where {tag} belongs"))),
        }
    }

    fn attributes(&mut self) -> Parsed<()> {
        for _ in 0..self.list(ATTRIBUTES)? {
            self.name()?;
            let (kind, count) = (self.i32()?, self.count()?);
            let bytes = size_of_kind(kind)?.checked_mul(count);
            self.skip(bytes.unwrap_or(u64::MAX))?;
        }
        Ok(())
    }
}

fn size_of_kind(kind: i32) -> Parsed<u64> {
    match kind {
        1 | 2 | 7 => Ok(1),
        3 | 8 => Ok(2),
        4 | 5 | 9 => Ok(4),
        6 | 10 | 11 => Ok(8),
        other => Err(Stop::Bad(format!("its header has the data type {other}"))),
    }
}

impl Ncdf {
    /// The header of a file that begins with `bytes`; `Ok(None)` if more of them are needed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Ncdf>, String> {
        match Ncdf::read(bytes) {
            Ok(found) => Ok(Some(found)),
            Err(Stop::More) if bytes.len() >= HEADER_BYTES_MAX => {
                Err("its header does not end within 4 MiB".to_owned())
            }
            Err(Stop::More) => Ok(None),
            Err(Stop::Bad(why)) => Err(why),
        }
    }

    fn read(bytes: &[u8]) -> Parsed<Ncdf> {
        if bytes.len() < 4 {
            return Err(Stop::More);
        }
        if !is_one(bytes) {
            return bad("it does not begin with CDF and a version");
        }
        let mut header = Cursor { bytes, at: 4, version: bytes[3] };
        // A count of -1 says that the writer did not know it.
        let records = match header.version {
            5 => header.i64()?,
            _ => i64::from(header.i32()?),
        };
        let records = u64::try_from(records).ok();
        let mut lengths = Vec::new();
        let (mut n_atoms, mut frames) = (None, None);
        for nth in 0..header.list(DIMENSIONS)? {
            let (name, length) = (header.name()?, header.count()?);
            match name {
                b"atom" => n_atoms = Some(length),
                b"frame" if length == 0 => frames = Some(nth),
                _ => {}
            }
            lengths.push(length);
        }
        header.attributes()?;
        let (Some(n_atoms), Some(frames)) = (n_atoms.filter(|atoms| *atoms > 0), frames) else {
            return bad("it is no AMBER trajectory: it lacks the dimension `atom` or the unlimited `frame`");
        };
        let mut variables = Vec::new();
        for _ in 0..header.list(VARIABLES)? {
            let mut built = Writer::new();
            built.blob(header.name()?);
            let (mut is_record, mut values) = (false, 1u64);
            for nth in 0..header.count()? {
                let dimension = header.count()?;
                let Some(length) = usize::try_from(dimension).ok().and_then(|at| lengths.get(at)) else {
                    return bad("a variable has a dimension that its header does not list");
                };
                built.u64(if dimension == frames { u64::MAX } else { *length });
                match (nth, dimension == frames) {
                    (0, true) => is_record = true,
                    _ => values = values.saturating_mul(*length),
                }
            }
            let from = header.at;
            header.attributes()?;
            built.blob(bytes.get(from..header.at).unwrap_or_default());
            let kind = header.i32()?;
            built.u32(kind as u32);
            header.count()?;
            let (bytes, begin) = (size_of_kind(kind)?.checked_mul(values), header.offset()?);
            if is_record {
                variables.push((begin, bytes.unwrap_or(u64::MAX), built.into_bytes()));
            }
        }
        variables.sort_unstable();
        let places = variables.iter().map(|(at, bytes, _)| (*at, *bytes)).collect();
        let (begin, record_bytes) = match (record(places, header.at as u64), records) {
            (Ok(found), _) => found,
            // scipy, and so MDAnalysis, states sizes and places only with the first record.
            (Err(_), Some(0)) => (header.at as u64, 0),
            (Err(why), _) => return Err(Stop::Bad(why)),
        };
        let mut built = Writer::new();
        for (at, _, variable) in &variables {
            built.u64(at.saturating_sub(begin));
            built.blob(variable);
        }
        let built = frame_checksum(&built.into_bytes());
        Ok(Ncdf { n_atoms, begin, record_bytes, records, built })
    }
}

/// Where the first record begins and how long each is: the variables, (begin, bytes) in
/// ascending order, fill it.
fn record(variables: Vec<(u64, u64)>, header_end: u64) -> Result<(u64, u64), String> {
    let Some((begin, _)) = variables.first().copied() else {
        return Err("it has no record variables".into());
    };
    let alone = variables.len() == 1;
    let mut end = begin;
    for (at, bytes) in &variables {
        if *at != end || *bytes == 0 {
            return Err(format!("a variable begins at byte {at} of its first record, where {end} belongs"));
        }
        // A variable that is alone is not padded.
        let padded = if alone { Some(*bytes) } else { bytes.checked_next_multiple_of(4) };
        end = padded.and_then(|bytes| end.checked_add(bytes)).ok_or("its records are too large")?;
    }
    if begin < header_end || i64::try_from(end).is_err() {
        return Err(format!("its records begin at byte {begin}, within its header"));
    }
    Ok((begin, end - begin))
}
