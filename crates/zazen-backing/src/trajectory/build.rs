//! Builds the index of one opened file, or extends it.
//!
//! Small frames are read in large blocks. Of large frames only the headers are read. So building
//! is bound by the slower of reading and asking.

use crate::SourceFile;
use std::sync::Arc;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::trajectory::{Format, FrameTable, Trouble};
use zazen_core::{Error, ErrorKind, Result, TrajectoryFile, Validator};
use zazen_trajectory::{Anchors, FileIndex, Grown, H5md, Sample, Scanner, Step, find_h5md, hide_counters};

/// Bytes that are read at once where frames are small, or all bytes are looked at.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes that are read for a header where frames are large.
const HEAD_BYTES: usize = 512;
/// Bytes of a file's header that are compared at once.
const HEADER_BLOCK_BYTES: usize = 64 << 10;
/// Samples that are compared before a frame of an open dataset is read: the first bytes, those
/// before the old end, and some blocks between them.
const SAMPLES_AGAIN: usize = 6;
/// The bytes are asked for so many times before it is asked whether somebody still waits.
const FILLS: u32 = 32;
/// Frames from this length on are large.
const LARGE_BYTES: u64 = 64 << 10;

/// Whether nobody waits for the frames any more. `None`: they are looked for to the end.
pub type Stops<'a> = Option<&'a dyn Fn() -> bool>;

/// Fails once nobody waits any more.
pub(crate) fn check(stops: Stops<'_>) -> Result<()> {
    match stops.is_some_and(|stops| stops()) {
        true => {
            let text = "its frames are no longer looked for: the caller is gone, or zazend is stopping";
            Err(Error::new(ErrorKind::ShuttingDown, text))
        }
        false => Ok(()),
    }
}

/// Reads until `buffer` is full or the file ends; how many bytes.
pub(super) fn read_full(file: &dyn SourceFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// The bytes of a file around the place that a scanner looks at.
struct Around<'a> {
    file: &'a dyn SourceFile,
    size: u64,
    bytes: Vec<u8>,
    at: u64,
    held: usize,
}

impl Around<'_> {
    /// What is held from `position` on.
    fn from(&self, position: u64) -> &[u8] {
        match position.checked_sub(self.at) {
            Some(behind) if behind <= self.held as u64 => &self.bytes[behind as usize..self.held],
            _ => &[],
        }
    }

    /// Reads `least` bytes from `position` on, and more up to `wish`. `Stale` if the file has
    /// become shorter.
    fn fill(&mut self, position: u64, least: usize, wish: usize) -> Result<()> {
        let left = usize::try_from(self.size.saturating_sub(position)).unwrap_or(usize::MAX);
        let (least, wanted) = (least.min(left), least.max(wish).min(left));
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        (self.at, self.held) = (position, 0);
        while self.held < wanted {
            let offset = position + self.held as u64;
            match self.file.read_at(&mut self.bytes[self.held..wanted], offset)? {
                0 => break,
                read => self.held += read,
            }
        }
        if self.held < least {
            let end = position + self.held as u64;
            let text = format!("became shorter while it was read: it ended at byte {end}, not {}", self.size);
            return Err(Error::new(ErrorKind::Stale, text));
        }
        Ok(())
    }
}

/// What a scan found.
struct Found {
    n_atoms: u64,
    /// What a decoder needs, where that is not what stands before the first frame.
    header: Option<Vec<u8>>,
    table: FrameTable,
    trouble: Option<Trouble>,
    /// The frames of a known index are its first.
    extends: bool,
}

/// Scans `file` from its beginning, or behind the frames of `known`.
fn scan(
    stops: Stops<'_>,
    file: &dyn SourceFile,
    format: Format,
    size: u64,
    known: Option<&FileIndex>,
) -> Result<Found> {
    if format == Format::H5md {
        return scan_h5md(stops, file, size);
    }
    let mut fills = 0u32;
    let mut around = Around { file, size, bytes: Vec::new(), at: 0, held: 0 };
    let mut scanner = Scanner::new(format);
    let mut table = FrameTable::new(0, scanner.unit());
    let (mut wish, extends) = (BLOCK_BYTES, known.is_some());
    let found = |scanner: &Scanner, table, trouble| {
        let n_atoms = scanner.n_atoms();
        Found { n_atoms, header: None, table, trouble, extends }
    };
    loop {
        if let Some((length, count)) = scanner.take_even(size) {
            table.push_many(length, count)?;
        }
        if scanner.frames() > FRAME_NO_MAX {
            return Err(Error::new(ErrorKind::TooLarge, "it has more than 2^40 frames, the limit"));
        }
        let position = scanner.position();
        let step = match scanner.step(around.from(position), size) {
            Ok(step) => step,
            Err(trouble) => return Ok(found(&scanner, table, Some(trouble))),
        };
        match step {
            Step::More(least) => {
                if fills.is_multiple_of(FILLS) {
                    check(stops)?;
                }
                fills = fills.wrapping_add(1);
                let had = around.from(position).len();
                around.fill(position, least, wish)?;
                if around.from(position).len() <= had && around.held as u64 + position < size {
                    return Err(Error::new(
                        ErrorKind::Io,
                        "its parser makes no progress; please report this",
                    ));
                }
            }
            Step::Header => {
                table = FrameTable::new(scanner.begin(), scanner.unit());
                if let Some(known) = known {
                    if known.table.begin() != scanner.begin() {
                        return Err(Error::new(ErrorKind::Stale, "its header changed"));
                    }
                    table = (*known.table).clone();
                    scanner.resume(table.count(), table.end(), known.n_atoms);
                }
            }
            Step::Frame(length) => {
                table.push(length)?;
                let large = scanner.skips() && length >= LARGE_BYTES;
                wish = if large { HEAD_BYTES } else { BLOCK_BYTES };
            }
            Step::Moved => {}
            Step::End => return Ok(found(&scanner, table, None)),
        }
    }
}

/// The frames of an H5MD file, by its metadata.
fn scan_h5md(stops: Stops<'_>, file: &dyn SourceFile, size: u64) -> Result<Found> {
    let mut reads = 0u32;
    let mut read = |offset: u64, count: usize| {
        if reads.is_multiple_of(FILLS) {
            check(stops)?;
        }
        reads = reads.wrapping_add(1);
        let mut bytes = vec![0; count];
        let read = read_full(file, &mut bytes, offset)?;
        bytes.truncate(read);
        Ok(bytes)
    };
    let H5md { header, n_atoms, table, trouble } = find_h5md(&mut read, size)?;
    Ok(Found { n_atoms, header: Some(header), table, trouble, extends: false })
}

/// Whether a frame of `length` bytes is at the place where `scanner`, which has read the header,
/// stands.
pub(super) fn is_frame(file: &dyn SourceFile, mut scanner: Scanner, length: u64) -> Result<bool> {
    let size = scanner.position().saturating_add(length);
    let wish = if scanner.skips() { HEAD_BYTES } else { BLOCK_BYTES };
    let mut around = Around { file, size, bytes: Vec::new(), at: scanner.position(), held: 0 };
    loop {
        let position = scanner.position();
        match scanner.step(around.from(position), size) {
            Ok(Step::More(least)) => {
                let had = around.from(position).len();
                around.fill(position, least, wish)?;
                if around.held <= had {
                    return Ok(false);
                }
            }
            Ok(Step::Moved) => {}
            Ok(Step::Frame(found)) => return Ok(found == length),
            Ok(Step::Header | Step::End) | Err(_) => return Ok(false),
        }
    }
}

/// Whether the file begins with `header`, but for the counters that writers update.
pub(super) fn has_header(file: &dyn SourceFile, format: Format, header: &[u8]) -> Result<bool> {
    let mut block = vec![0; header.len().min(HEADER_BLOCK_BYTES)];
    for (nth, expected) in header.chunks(HEADER_BLOCK_BYTES).enumerate() {
        let offset = (nth * HEADER_BLOCK_BYTES) as u64;
        let read = read_full(file, &mut block[..expected.len()], offset)?;
        let (found, mut expected) = (&mut block[..read], expected.to_vec());
        hide_counters(format, offset, found);
        hide_counters(format, offset, &mut expected);
        if *found != expected[..] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the file still has the first samples that were taken of `held`.
pub(super) fn has_samples(file: &dyn SourceFile, format: Format, held: &TrajectoryFile) -> Result<bool> {
    let (Some(known), Some(table)) = (&held.samples, &held.table) else { return Ok(true) };
    let mut samples = Anchors::samples(known.seed, table.end());
    samples.truncate(SAMPLES_AGAIN);
    let found = sums_of(file, format, samples)?;
    Ok(known.sums.get(..found.len()) == Some(found.as_slice()))
}

/// Samples of the file up to `end`.
fn sums(file: &dyn SourceFile, format: Format, seed: u64, end: u64) -> Result<Vec<u64>> {
    sums_of(file, format, Anchors::samples(seed, end))
}

fn sums_of(file: &dyn SourceFile, format: Format, samples: Vec<Sample>) -> Result<Vec<u64>> {
    let mut buffer = Vec::new();
    let sum = |sample: Sample| {
        buffer.resize(sample.bytes as usize, 0);
        let read = read_full(file, &mut buffer, sample.offset)?;
        Ok(Anchors::sum(format, sample, &mut buffer[..read]))
    };
    samples.into_iter().map(sum).collect()
}

/// The index of an opened file called `name`: `known` where it still is right, extended where the
/// file grew, or a new one.
///
/// Fails if the file is no trajectory, or none of its frames is good.
pub(super) fn build(
    stops: Stops<'_>,
    file: &dyn SourceFile,
    name: &str,
    key: &str,
    known: Option<Arc<FileIndex>>,
) -> Result<Arc<FileIndex>> {
    let now = file.stat().validator;
    let known = match known {
        Some(known) => match known.compare(&now) {
            Grown::Same => return Ok(known),
            Grown::Perhaps if is_prefix(file, &known)? => Some(known),
            _ => None,
        },
        None => None,
    };
    let format = match &known {
        Some(known) => known.format,
        None => format_of(file, name)?,
    };
    let found = match scan(stops, file, format, now.size, known.as_deref()) {
        // A header that writers replace: the frames are found anew.
        Err(error) if error.kind() == ErrorKind::Stale && known.is_some() => {
            scan(stops, file, format, now.size, None)?
        }
        found => found?,
    };
    if found.table.count() == 0
        && let Some(trouble) = &found.trouble
    {
        return Err(first_is_bad(trouble));
    }
    // An index that is extended keeps its seed; so who knew it sees that its frames are the same.
    let seed = match &known {
        Some(known) if found.extends => known.anchors.seed,
        _ => zazen_env::random_u128()? as u64,
    };
    let anchors = Anchors { seed, sums: sums(file, format, seed, found.table.end())? };
    let header = match found.header {
        Some(header) => header,
        None => {
            let mut header = vec![0; found.table.begin() as usize];
            read_full(file, &mut header, 0)?;
            header
        }
    };
    // If the file changed meanwhile, it is compared again at the next opening.
    let later = file.stat_now()?.validator;
    let unsettled = now.unsettled || !now.looks_like(&later);
    Ok(Arc::new(FileIndex {
        key: key.to_owned(),
        format,
        n_atoms: found.n_atoms,
        header: header.into(),
        table: Arc::new(found.table),
        trouble: found.trouble,
        seen: Validator { unsettled, ..now },
        anchors,
    }))
}

/// Whether what the index knows is the beginning of the file, as far as samples show.
fn is_prefix(file: &dyn SourceFile, known: &FileIndex) -> Result<bool> {
    Ok(sums(file, known.format, known.anchors.seed, known.table.end())? == known.anchors.sums)
}

/// The format of the open file called `name`.
fn format_of(file: &dyn SourceFile, name: &str) -> Result<Format> {
    let mut head = vec![0; zazen_trajectory::SNIFF_BYTES];
    let read = read_full(file, &mut head, 0)?;
    zazen_trajectory::sniff(&head[..read], name).ok_or_else(|| {
        let what = match read {
            0 => "is empty".to_owned(),
            _ => zazen_trajectory::foreign(&head[..read]),
        };
        let kind = if read == 0 { ErrorKind::NotFound } else { ErrorKind::InvalidArgument };
        Error::new(kind, format!("{what}; frame 0 should begin at byte 0"))
    })
}

/// What is wrong with a file none of whose frames is good.
fn first_is_bad(trouble: &Trouble) -> Error {
    let what = if trouble.unfinished { "is not complete" } else { "is damaged" };
    let kind = if trouble.unfinished { ErrorKind::NotFound } else { ErrorKind::Corrupt };
    Error::new(kind, format!("frame 0, at byte {}, {what}: {}", trouble.offset, trouble.why))
}
