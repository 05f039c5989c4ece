//! Text formats, whose frames end at a known line.
//!
//! XYZ: the number of atoms, a comment, a line for each atom. GRO: a title, the number of atoms, a
//! line for each atom, the box. LAMMPS dump: items, each with a line that begins `ITEM:`; the
//! number of lines behind `ITEM: ATOMS` stands behind `ITEM: NUMBER OF ATOMS`.

use crate::lines;
use zazen_core::trajectory::Format;

/// What a line that begins an item of a LAMMPS dump begins with.
const ITEM: &[u8] = b"ITEM:";
/// An atom's line of a GRO file is at least as long: names, numbers and a position, in columns.
const GRO_ATOM_BYTES: usize = 44;
/// An atom's line of an XYZ file that is shorter is looked at, because it could be the next frame's
/// number of atoms. To look at all lines would take longer than to read them.
const XYZ_SHORT_BYTES: usize = 24;

/// Where a parser is within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// At its first line.
    Begin,
    /// At the line that tells the number of atoms.
    Count,
    /// XYZ: at the line that may say anything.
    Comment(u64),
    /// So many lines are left of the frame.
    Rest(u64),
    /// LAMMPS: at a line that may begin an item.
    Item,
}

/// A parser of one frame after the other. It sees each line as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    format: Format,
    place: LineKind,
    pub(crate) n_atoms: u64,
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
        Text { format, place: LineKind::Begin, n_atoms: 0 }
    }

    /// Goes on with the bytes that follow those dealt with. An error is about the whole frame.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Taken, String> {
        if let LineKind::Rest(lines) = self.place {
            return self.rest(bytes, lines);
        }
        let Some((line, length)) = lines::first(bytes) else {
            lines::check_open(bytes)?;
            return Ok(Taken::Bytes(0));
        };
        self.place = match (self.format, self.place) {
            (_, LineKind::Comment(atoms)) => LineKind::Rest(atoms),
            (Format::Xyz, _) => LineKind::Comment(self.count(line)?),
            (Format::Gro, LineKind::Count) => LineKind::Rest(1 + self.count(line)?),
            (Format::Gro, _) => LineKind::Count,
            (_, place) => self.item(line, place)?,
        };
        Ok(Taken::Bytes(length))
    }

    /// At `lines` lines, the last of which ends the frame.
    fn rest(&mut self, bytes: &[u8], lines: u64) -> Result<Taken, String> {
        let (mut taken, mut left) = (0, lines);
        for end in memchr::memchr_iter(b'\n', bytes) {
            left -= 1;
            self.check_line(&bytes[taken..end], left == 0)?;
            taken = end + 1;
            if left == 0 {
                self.place = LineKind::Begin;
                return Ok(Taken::End(taken));
            }
        }
        // The hole of a sparse file is one endless line.
        lines::check_open(&bytes[taken..])?;
        self.place = LineKind::Rest(left);
        Ok(Taken::Bytes(taken))
    }

    /// Refuses a line that cannot be one of an atom, or, as the last one of a GRO frame, its box.
    ///
    /// A program that ended within a frame and was started again leaves fewer lines than the frame
    /// says. Counted alone, the lines of the next frame would make up for them.
    fn check_line(&self, line: &[u8], is_last: bool) -> Result<(), String> {
        let is_good = match self.format {
            Format::Gro if is_last => matches!(lines::numbers_alone(line), Some(0 | 3..)),
            Format::Gro => line.len() >= GRO_ATOM_BYTES || lines::numbers_alone(line).is_none(),
            // Comments of extended XYZ have numbers, too: Lattice="9 0 0 …".
            Format::Xyz if memchr::memchr(b'=', line).is_some() => false,
            Format::Xyz => line.len() >= XYZ_SHORT_BYTES && !is_last || lines::numbers(line) >= 3,
            _ => !line.starts_with(ITEM),
        };
        match is_good {
            true => Ok(()),
            false => Err(format!(
                "it has other lines than its number of atoms says: {} is none of an atom",
                lines::shown(line)
            )),
        }
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
