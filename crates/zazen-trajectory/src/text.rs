//! Text formats, whose frames end at a known line.
//!
//! XYZ: the number of atoms, a comment, a line for each atom. GRO: a title, the number of atoms, a
//! line for each atom, the box. LAMMPS dump: items, each with a line that begins `ITEM:`; the
//! number of lines behind `ITEM: ATOMS` stands behind `ITEM: NUMBER OF ATOMS`.

use crate::lines;
use zazen_core::trajectory::Format;

/// Where a parser is within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// At its first line.
    Begin,
    /// At the line that tells the number of atoms.
    Count,
    /// So many lines still to skip; then the frame ends.
    Rest(u64),
    /// LAMMPS: at a line that may begin an item.
    Item,
}

/// A parser of one frame after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    format: Format,
    place: LineKind,
    pub(crate) n_atoms: u64,
    /// Bytes that were skipped of a line whose end was not met yet.
    line_bytes: usize,
}

/// What came of some bytes.
pub(crate) enum Taken {
    /// So many bytes are dealt with; the frame goes on. 0: the line does not end in them.
    Bytes(usize),
    /// The frame ends behind so many bytes.
    End(usize),
}

impl Text {
    pub(crate) fn new(format: Format) -> Text {
        Text { format, place: LineKind::Begin, n_atoms: 0, line_bytes: 0 }
    }

    /// Goes on with the bytes that follow those dealt with. An error is about the whole frame.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Taken, String> {
        if let LineKind::Rest(lines) = self.place {
            let (taken, skipped) = lines::skip(bytes, lines);
            self.place = LineKind::Rest(lines - skipped);
            if skipped == lines {
                (self.place, self.line_bytes) = (LineKind::Begin, 0);
                return Ok(Taken::End(taken));
            }
            // The hole of a sparse file is one endless line.
            let open = memchr::memrchr(b'\n', bytes).map_or(self.line_bytes + taken, |at| taken - at - 1);
            self.line_bytes = open;
            if open > lines::SKIPPED_BYTES_MAX {
                return Err("it has a line that is longer than 1 MiB".to_owned());
            }
            return Ok(Taken::Bytes(taken));
        }
        let Some((line, length)) = lines::first(bytes) else {
            return match bytes.len() > lines::LINE_BYTES_MAX {
                true => Err("a line of its header is longer than 64 KiB".to_owned()),
                false => Ok(Taken::Bytes(0)),
            };
        };
        self.place = match (self.format, self.place) {
            (Format::Xyz, _) => LineKind::Rest(1 + self.count(line)?),
            (Format::Gro, LineKind::Count) => LineKind::Rest(1 + self.count(line)?),
            (Format::Gro, _) => LineKind::Count,
            (_, place) => self.item(line, place)?,
        };
        Ok(Taken::Bytes(length))
    }

    fn count(&mut self, line: &[u8]) -> Result<u64, String> {
        match lines::number(line).filter(|count| (1..1 << 32).contains(count)) {
            Some(count) => {
                self.n_atoms = count;
                Ok(count)
            }
            None => Err(format!("the line {} is not its number of atoms", lines::shown(line))),
        }
    }

    fn item(&mut self, line: &[u8], place: LineKind) -> Result<LineKind, String> {
        if place == LineKind::Count {
            self.count(line)?;
            return Ok(LineKind::Item);
        }
        let Some(item) = line.strip_prefix(b"ITEM:").map(<[u8]>::trim_ascii) else {
            return match place {
                LineKind::Begin => Err(format!("the line {} is no ITEM:", lines::shown(line))),
                _ => Ok(LineKind::Item),
            };
        };
        if place == LineKind::Begin {
            if ![&b"TIMESTEP"[..], b"UNITS", b"TIME"].contains(&item) {
                return Err(format!("it begins with {}, not ITEM: TIMESTEP", lines::shown(line)));
            }
            self.n_atoms = 0;
            return Ok(LineKind::Item);
        }
        if item == b"NUMBER OF ATOMS" {
            return Ok(LineKind::Count);
        }
        if item == b"ATOMS" || item.starts_with(b"ATOMS ") {
            return match self.n_atoms {
                0 => Err("its atoms come before their number".to_owned()),
                count => Ok(LineKind::Rest(count)),
            };
        }
        Ok(LineKind::Item)
    }
}
