//! H5MD: frames are the rows of `particles/GROUP/position/value` of an HDF5 file.
//!
//! A row is a byte range of the file if the array is in one piece, or if a chunk holds whole rows.
//! What a filter made of a chunk is a frame if each chunk holds one row; the header says how to
//! decode it. Anything else is an error that says how to repack the file.

use crate::hdf5::{
    Array, Chunk, ChunkIndex, Chunks, File, Layout, NOWHERE, Parsed, ReadAt, Stop, each_chunk, unsupported,
};
use zazen_core::limits::{FRAME_NO_MAX, check_frame_bytes};
use zazen_core::trajectory::{FrameTable, Trouble};
use zazen_core::{Error, ErrorKind, Result};

/// A table of frames in chunks takes memory for each; a hole in a file costs its writer nothing.
const IN_CHUNKS_MAX: u64 = 1 << 25;
/// What decodes a frame is not longer.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// What an H5MD file's metadata tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct H5md {
    /// What decodes a frame, as JSON: the array, the type of its values, the shape of a frame, and
    /// the filters of a chunk. docs/datasets.md says what is what.
    pub header: Vec<u8>,
    /// Atoms in each frame.
    pub n_atoms: u64,
    /// Where the frames are.
    pub table: FrameTable,
    /// Why there are no more.
    pub trouble: Option<Trouble>,
}

/// Finds the frames of the H5MD file that `read` reads, which has `size` bytes.
///
/// Fails with what `read` failed with; with `Unsupported` for a file whose frames are no byte
/// ranges, `InvalidArgument` for an HDF5 file that is no H5MD, `Corrupt` for one that is damaged
/// where its frames are described, and `NotFound` for one that was cut there.
pub fn find_h5md<'a>(read: &'a mut ReadAt<'a>, size: u64) -> Result<H5md> {
    let mut base = 0;
    let found = File::new(read, size).and_then(|mut file| {
        base = file.base();
        find(&mut file)
    });
    found.map_err(|stop| match stop {
        Stop::Io(error) => error,
        Stop::Unsupported(what) => Error::new(
            ErrorKind::Unsupported,
            format!(
                "{what}; MDAnalysis reads any H5MD from the nodes' disks by the name zazen:FILE, and any \
                 program of HDF5 does through zazen.fsspec"
            ),
        ),
        Stop::Bad(at, why) => damaged(at.saturating_add(base), &why),
        Stop::Ends(trouble) => damaged(trouble.offset, &trouble.why),
        Stop::Cut(end) => Error::new(ErrorKind::NotFound, cut(end.saturating_add(base), size, size)),
    })
}

fn damaged(at: u64, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("at byte {at}: {why}; {STILL_WRITING}"))
}

const STILL_WRITING: &str = "if a program is still writing it, open it when that has closed it";

/// Why what ends at `end` is not read: the file has `size` bytes, and was flushed up to `said_end`.
fn cut(end: u64, size: u64, said_end: u64) -> String {
    let after = STILL_WRITING;
    match end {
        NOWHERE => {
            format!("a program has it open for writing; {after}; if that ended early: h5clear -s FILE")
        }
        _ if end <= size => {
            format!("what lies behind byte {said_end} was not flushed by its writer; {after}")
        }
        _ => format!("the file ends at byte {size}, and should go on to byte {end}; {after}"),
    }
}

fn find(file: &mut File<'_>) -> Parsed<H5md> {
    let groups = file.names_at(&["particles"])?;
    let Some(group) = groups.first() else {
        let mut what =
            "is an HDF5 file, but no H5MD trajectory: it has no particles/GROUP/position/value".to_owned();
        if matches!(file.object(&["coordinates"]), Ok(Some(_))) {
            what += "; it looks like NetCDF-4 (AMBER: nccopy -k nc6 FILE NEW makes a file that can be read) \
                     or like mdtraj's HDF5 (mdconvert -o NEW.xtc FILE)";
        }
        return Err(Stop::Io(Error::new(ErrorKind::InvalidArgument, what)));
    };
    let name = format!("particles/{group}/position/value");
    let array = match file.object(&["particles", group, "position", "value"])? {
        Some(at) => file.array(at)?,
        None => None,
    };
    let Some(array) = array else {
        let what = format!("is an HDF5 file without positions of each frame: it has no array {name}");
        return Err(Stop::Io(Error::new(ErrorKind::InvalidArgument, what)));
    };
    let [frames, n_atoms, dimensions] = array.shape[..] else {
        return unsupported(format!("{name} has {} dimensions, and 3 belong there", array.shape.len()));
    };
    if n_atoms == 0 || !(1..=3).contains(&dimensions) {
        return unsupported(format!("a frame of {name} has {n_atoms} atoms in {dimensions} dimensions"));
    }
    let bytes = n_atoms.checked_mul(dimensions).and_then(|values| values.checked_mul(array.value.bytes));
    let bytes = bytes.filter(|bytes| check_frame_bytes(*bytes).is_ok());
    let Some(row) = bytes else {
        return unsupported(format!("a frame of {n_atoms} atoms is longer than a frame may be"));
    };
    if frames > FRAME_NO_MAX {
        return unsupported(format!("it says that it has {frames} frames, the limit is 2^40"));
    }
    let header = header(&name, &array);
    if header.len() > HEADER_BYTES_MAX {
        let what = "the names and filters of its positions take more than";
        return unsupported(format!("{what} {HEADER_BYTES_MAX} bytes"));
    }
    let (table, trouble) = match array.layout {
        Layout::Compact => return unsupported(format!("{name} lies in a header of HDF5")),
        Layout::Contiguous { at, bytes } => in_one_piece(file, (frames, row), at, bytes)?,
        Layout::Chunked { .. } => in_chunks(file, &name, &array, row)?,
    };
    let (size, said_end) = ends(file);
    let trouble = trouble.or_else(|| {
        let why = || cut(said_end, size, said_end);
        (said_end > size).then(|| Trouble { offset: size, unfinished: true, why: why() })
    });
    Ok(H5md { header, n_atoms, table, trouble })
}

/// What decodes a frame.
fn header(name: &str, array: &Array) -> Vec<u8> {
    let list = |values: Vec<String>| values.join(", ");
    let filters = array.filters.iter().map(|filter| {
        let values = list(filter.values.iter().map(u32::to_string).collect());
        format!("{{\"id\": {}, \"values\": [{values}]}}", filter.id)
    });
    format!(
        "{{\"array\": {}, \"dtype\": \"{}\", \"shape\": [{}], \"filters\": [{}]}}",
        quoted(name),
        array.value.name(),
        list(array.shape[1..].iter().map(u64::to_string).collect()),
        list(filters.collect()),
    )
    .into_bytes()
}

/// A text of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn never_written(frame: u64, frames: u64, offset: u64, unfinished: bool) -> Trouble {
    let why = format!("the file has room for {frames} frames, and frame {frame} was never written");
    Trouble { offset, unfinished, why }
}

/// Frames by their places in the whole file, and why there are no more.
type Places = (FrameTable, Option<Trouble>);

/// Where the whole file ends, and where it says that it ends.
fn ends(file: &File<'_>) -> (u64, u64) {
    (file.base() + file.size(), file.base().saturating_add(file.said_end()))
}

fn fits(at: u64, result: Result<()>) -> Parsed<()> {
    result.map_err(|error| Stop::Bad(at, error.to_string()))
}

/// Frames that follow one another.
fn in_one_piece(file: &File<'_>, (frames, row): (u64, u64), at: u64, bytes: u64) -> Parsed<Places> {
    let (size, said_end) = ends(file);
    if at == NOWHERE {
        let trouble = (frames > 0).then(|| never_written(0, frames, size, true));
        return Ok((FrameTable::apart(), trouble));
    }
    if frames.checked_mul(row).is_none_or(|needed| needed > bytes) {
        return Err(Stop::Bad(at, format!("its {frames} frames of {row} bytes are said to have {bytes}")));
    }
    let begin = at.saturating_add(file.base());
    let whole = frames.min(size.min(said_end).saturating_sub(begin) / row);
    let mut table = FrameTable::new(begin, 1);
    fits(at, table.push_many(row, whole))?;
    let end = begin.saturating_add(frames.saturating_mul(row));
    let trouble = (whole < frames).then(|| Trouble {
        offset: table.end(),
        unfinished: true,
        why: cut(end, size, said_end),
    });
    Ok((table, trouble))
}

/// The command that makes a file whose frames can be found: how the array is stored there. A name
/// that a shell would read in another way is left out, and the command then means all arrays.
fn repack(name: &str, option: &str, how: &str) -> String {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "/_-.".contains(letter));
    let array = if is_plain { format!("{name}:") } else { String::new() };
    format!("repack it: h5repack {option} {array}{how} FILE NEW")
}

/// Frames in chunks, in the order of their numbers.
fn in_chunks(file: &mut File<'_>, name: &str, array: &Array, row: u64) -> Parsed<Places> {
    let Layout::Chunked { shape, index } = &array.layout else { return unsupported("it has no chunks") };
    let (frames, rows) = (array.shape[0], shape[0]);
    let chunk = format!("CHUNK=1x{}x{}", array.shape[1], array.shape[2]);
    let repack = repack(name, "-l", &chunk);
    let is_filtered = !array.filters.is_empty();
    // A chunk may have room for more atoms behind those of the frame.
    let is_whole = shape[1] == array.shape[1] || (shape[1] > array.shape[1] && !is_filtered);
    if rows == 0 || !is_whole || shape[2] != array.shape[2] {
        let [_, atoms, dimensions] = shape[..] else { return unsupported("its chunks have no 3 dimensions") };
        return unsupported(format!(
            "a frame of {name} does not lie in one piece: it has {} atoms in {} dimensions, and a chunk \
             has {atoms} in {dimensions}; {repack}",
            array.shape[1], array.shape[2]
        ));
    }
    if *index == ChunkIndex::SeveralDimensions {
        let what = "can grow in several dimensions, and HDF5's newer index for that is not read";
        return unsupported(format!("{name} {what}; {repack}"));
    }
    if is_filtered && rows > 1 {
        return unsupported(format!(
            "{rows} frames lie in each chunk of {name}, which is compressed or has a checksum; {repack}"
        ));
    }
    // From one frame to the next in a chunk.
    let stride = (row / array.shape[1]).checked_mul(shape[1]);
    let Some((stride, bytes)) = stride.and_then(|stride| Some((stride, rows.checked_mul(stride)?))) else {
        return unsupported(format!("a chunk has {rows} frames"));
    };
    let count = frames.div_ceil(rows);
    let chunks = Chunks { rows, count, bytes, rank: 3, is_filtered };
    let (mut table, mut held, mut next) = (FrameTable::apart(), 0u64, 0u64);
    let ((size, said_end), base) = (ends(file), file.base());
    let behind_base = |at: u64| at.saturating_add(base);
    let mut place = |chunk: Chunk| {
        let at = behind_base(chunk.at);
        if chunk.number < next {
            return Err(Stop::Bad(chunk.at, "its chunks are not in order".into()));
        }
        // Chunks behind the last frame are left over from a file that was longer.
        if chunk.number >= count {
            next = chunk.number.saturating_add(1);
            return Ok(());
        }
        if chunk.number > next {
            // Later ones are there, so nobody was cut off here.
            return Err(Stop::Ends(never_written(table.count(), frames, at, false)));
        }
        next += 1;
        if chunk.left_out != 0 {
            let frame = table.count();
            return unsupported(format!(
                "frame {frame} was stored as it is, because its filters gained nothing; {}",
                self::repack(name, "-f", "NONE")
            ));
        }
        if !is_filtered && chunk.bytes != bytes {
            return Err(Stop::Bad(chunk.at, format!("a chunk has {} bytes, not {bytes}", chunk.bytes)));
        }
        let length = if is_filtered { chunk.bytes } else { row };
        fits(chunk.at, check_frame_bytes(length))?;
        for nth in 0..rows.min(frames - table.count()) {
            let offset = at.checked_add(nth * stride);
            let end = offset.and_then(|offset| offset.checked_add(length)).unwrap_or(NOWHERE);
            if end > size.min(said_end) {
                let why = cut(end, size, said_end);
                return Err(Stop::Ends(Trouble { offset: at, unfinished: true, why }));
            }
            held += length;
            if held > size {
                return Err(Stop::Bad(chunk.at, "its chunks lie one upon the other".into()));
            }
            if table.count() == IN_CHUNKS_MAX {
                let repack = self::repack(name, "-l", "CONTI");
                return unsupported(format!("it has more than {IN_CHUNKS_MAX} frames in chunks; {repack}"));
            }
            fits(chunk.at, table.push_at(end - length, length))?;
        }
        Ok(())
    };
    let ended = each_chunk(file, *index, &chunks, &mut place);
    let found = table.count();
    let bad = |offset, unfinished, why| Some(Trouble { offset, unfinished, why });
    let trouble = match ended {
        Err(Stop::Ends(trouble)) => Some(trouble),
        // Of what describes the places of chunks a part is gone: the frames before are good.
        Err(Stop::Bad(at, why)) if found > 0 => bad(behind_base(at), false, why),
        Err(Stop::Cut(end)) if found > 0 => bad(table.end(), true, cut(behind_base(end), size, said_end)),
        Err(stop) => return Err(stop),
        Ok(()) if found < frames => Some(never_written(found, frames, table.end(), true)),
        Ok(()) => None,
    };
    Ok((table, trouble))
}
