//! One scan of a file: what is read next, and where each frame ends.

use crate::dcd::{self, Dcd};
use crate::gromacs::{self, Head, Header};
use crate::ncdf::{self, Ncdf};
use crate::text::{Taken, Text};
use zazen_core::limits::{FRAME_NO_MAX, check_frame_bytes};
use zazen_core::trajectory::{Format, HEADER_BYTES_MAX, Trouble};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Come again with at least so many bytes from [`Scanner::position`] on, or all that the file
    /// has from there.
    More(usize),
    /// The file's header is known: [`Scanner::begin`], [`Scanner::n_atoms`] where the header tells
    /// it.
    Header,
    /// A whole frame of so many bytes ended; the position is behind it.
    Frame(u64),
    /// The position moved within a frame.
    Moved,
    /// There are no more frames.
    End,
}

/// The parser of one file. Feed it by [`Scanner::step`].
#[derive(Clone, Debug)]
pub struct Scanner {
    format: Format,
    state: State,
    /// The next byte that is looked at.
    position: u64,
    /// Where the frame at the position begins.
    frame_begin: u64,
    begin: u64,
    frames: u64,
    n_atoms: u64,
}

#[derive(Clone, Debug)]
enum State {
    /// The file's header is not known yet.
    Header,
    Xtc,
    Trr,
    Dcd(Dcd),
    Ncdf(Ncdf),
    Text(Text),
}

impl Scanner {
    /// A scan from the beginning of a file.
    pub fn new(format: Format) -> Scanner {
        Scanner { format, state: State::Header, position: 0, frame_begin: 0, begin: 0, frames: 0, n_atoms: 0 }
    }

    /// The file's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Where the next bytes that it looks at begin.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where the first frame begins.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Atoms in each frame; 0 until it is known.
    pub fn n_atoms(&self) -> u64 {
        self.n_atoms
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether only frames' headers are looked at, so that their bodies need not be read.
    pub fn skips(&self) -> bool {
        !matches!(self.format, Format::Gro | Format::Lammps | Format::Xyz)
    }

    /// Every frame's length is a multiple of so many bytes.
    pub fn unit(&self) -> u64 {
        if self.format == Format::Xtc { 4 } else { 1 }
    }

    /// Goes on behind `frames` frames of `n_atoms` atoms that end at `end`. The header has been
    /// read.
    pub fn resume(&mut self, frames: u64, end: u64, n_atoms: u64) {
        (self.frames, self.position, self.frame_begin, self.n_atoms) = (frames, end, end, n_atoms);
    }

    /// All further whole frames at once, if each is as long as the others and has no header of its
    /// own: (bytes of each, how many). The position is then behind them. `None`: there are none, or
    /// [`Scanner::step`] tells.
    pub fn take_even(&mut self, size: u64) -> Option<(u64, u64)> {
        let State::Ncdf(ncdf) = &self.state else { return None };
        let length = ncdf.record_bytes;
        check_frame_bytes(length).ok()?;
        let fit = size.saturating_sub(self.position).checked_div(length)?;
        let said = ncdf.records.map_or(fit, |count| count.saturating_sub(self.frames));
        let count = fit.min(said).min((FRAME_NO_MAX + 1).saturating_sub(self.frames));
        let end = count.checked_mul(length).and_then(|bytes| self.position.checked_add(bytes))?;
        self.frames += count;
        (self.position, self.frame_begin) = (end, end);
        Some((length, count)).filter(|(_, count)| *count > 0)
    }

    /// Goes on with `bytes`, which begin at [`Scanner::position`] of a file of `size` bytes.
    ///
    /// Fails with what is wrong with the frame behind the good ones; the scan is over then.
    pub fn step(&mut self, bytes: &[u8], size: u64) -> Result<Step, Trouble> {
        if matches!(self.state, State::Header) {
            return self.header(bytes, size);
        }
        if self.position >= size && self.position == self.frame_begin {
            return self.ended(size);
        }
        if let State::Text(text) = &mut self.state {
            let mut text = *text;
            let step = self.text(&mut text, bytes, size);
            self.state = State::Text(text);
            return step;
        }
        let (head, want) = match &self.state {
            State::Xtc => (gromacs::xtc(bytes), gromacs::XTC_HEAD),
            State::Trr => (gromacs::trr(bytes), gromacs::TRR_HEAD),
            State::Dcd(dcd) => (dcd_head(dcd, bytes, self.frames), dcd::FRAME_HEAD),
            State::Ncdf(ncdf) if ncdf.records.is_some_and(|count| count <= self.frames) => {
                return Ok(Step::End);
            }
            State::Ncdf(ncdf) => (Some(Ok(Header { n_atoms: ncdf.n_atoms, length: ncdf.record_bytes })), 0),
            State::Header | State::Text(_) => return Ok(Step::End),
        };
        match head {
            Some(Ok(head)) => self.frame(head, size),
            Some(Err(why)) => Err(self.damaged(self.behind(why))),
            None if self.position + bytes.len() as u64 >= size => {
                Err(self.unfinished(format!("the file ends at byte {size}, within the frame's header")))
            }
            None => Ok(Step::More(want)),
        }
    }

    fn header(&mut self, bytes: &[u8], size: u64) -> Result<Step, Trouble> {
        let whole = bytes.len() as u64 >= size;
        let found = match self.format {
            Format::Xtc => Ok(Some((State::Xtc, 0, 0))),
            Format::Trr => Ok(Some((State::Trr, 0, 0))),
            Format::Gro | Format::Lammps | Format::Xyz => {
                Ok(Some((State::Text(Text::new(self.format)), 0, 0)))
            }
            Format::Dcd => {
                Dcd::parse(bytes).map(|found| found.map(|dcd| (State::Dcd(dcd), dcd.begin, dcd.n_atoms)))
            }
            Format::Ncdf => Ncdf::parse(bytes)
                .map(|found| found.map(|ncdf| (State::Ncdf(ncdf), ncdf.begin, ncdf.n_atoms))),
            Format::H5md => Err("an HDF5 file has no order of frames; `h5md` finds them".to_owned()),
        };
        match found {
            Err(why) => Err(self.damaged(why)),
            Ok(None) if whole => {
                Err(self.unfinished(format!("the file ends at byte {size}, within its header")))
            }
            Ok(None) => {
                let most = if self.format == Format::Ncdf { ncdf::HEADER_BYTES_MAX } else { 2 << 20 };
                Ok(Step::More((bytes.len() * 4).clamp(dcd::HEAD, most.max(bytes.len() + 1))))
            }
            Ok(Some((_, begin, _))) if begin > HEADER_BYTES_MAX as u64 => {
                Err(self.damaged(format!("its header has {begin} bytes, the limit is {HEADER_BYTES_MAX}")))
            }
            Ok(Some((_, begin, _))) if begin > size => {
                Err(self.unfinished(format!("the file ends at byte {size}, within its header")))
            }
            Ok(Some((state, begin, n_atoms))) => {
                self.state = state;
                (self.begin, self.position, self.frame_begin) = (begin, begin, begin);
                self.n_atoms = n_atoms;
                Ok(Step::Header)
            }
        }
    }

    /// A frame with this header begins at the position.
    fn frame(&mut self, head: Header, size: u64) -> Result<Step, Trouble> {
        self.check_atoms(head.n_atoms)?;
        check_frame_bytes(head.length).map_err(|error| self.damaged(error.to_string()))?;
        let begin = self.frame_begin;
        let Some(end) = begin.checked_add(head.length).filter(|end| i64::try_from(*end).is_ok()) else {
            return Err(self.damaged(format!("it ends beyond 2^63, with {} bytes", head.length)));
        };
        if end > size {
            return Err(
                self.unfinished(format!("it has {} bytes, the file ends at byte {size}", head.length))
            );
        }
        self.frames += 1;
        (self.position, self.frame_begin) = (end, end);
        Ok(Step::Frame(head.length))
    }

    fn text(&mut self, text: &mut Text, bytes: &[u8], size: u64) -> Result<Step, Trouble> {
        let at_end = self.position + bytes.len() as u64 >= size;
        // Blank lines at the end of a file are no frame.
        if self.position == self.frame_begin && at_end && bytes.trim_ascii().is_empty() {
            return Ok(Step::End);
        }
        match text.take(bytes) {
            Err(why) => Err(self.damaged(why)),
            Ok(Taken::Bytes(taken)) if at_end && taken == bytes.len() => {
                Err(self.unfinished(format!("the file ends at byte {size}, within the frame")))
            }
            Ok(Taken::Bytes(0)) if at_end => Err(self.unfinished(format!(
                "the file ends at byte {size}, within the frame: its last line has no end (if the file is \
                 whole: echo >> FILE)"
            ))),
            Ok(Taken::Bytes(0)) => Ok(Step::More((bytes.len() * 2).max(4096))),
            Ok(Taken::Bytes(taken)) => {
                self.position += taken as u64;
                check_frame_bytes(self.position - self.frame_begin)
                    .map_err(|error| self.damaged(error.to_string()))?;
                Ok(Step::Moved)
            }
            Ok(Taken::End(taken)) => {
                self.check_atoms(text.n_atoms)?;
                self.position += taken as u64;
                let length = self.position - self.frame_begin;
                check_frame_bytes(length).map_err(|error| self.damaged(error.to_string()))?;
                self.frame_begin = self.position;
                self.frames += 1;
                Ok(Step::Frame(length))
            }
        }
    }

    fn check_atoms(&mut self, n_atoms: u64) -> Result<(), Trouble> {
        if self.n_atoms == 0 {
            self.n_atoms = n_atoms;
        }
        match self.n_atoms == n_atoms {
            true => Ok(()),
            false => {
                Err(self.damaged(format!("it has {n_atoms} atoms, the frames before it {}", self.n_atoms)))
            }
        }
    }

    /// All bytes are dealt with.
    fn ended(&self, size: u64) -> Result<Step, Trouble> {
        match &self.state {
            State::Ncdf(ncdf) if ncdf.records.is_some_and(|count| count > self.frames) => {
                let count = ncdf.records.unwrap_or(0);
                Err(self.unfinished(format!("the file says it has {count} frames and ends at byte {size}")))
            }
            _ => Ok(Step::End),
        }
    }

    /// What is wrong with the header of a frame. The frame before it is then suspect, too: a
    /// program that ended within it, and was started again, leaves less of it than its own header
    /// says.
    fn behind(&self, why: String) -> String {
        match self.frames {
            0 => why,
            _ => format!("{why}; the frame before it may be damaged, too"),
        }
    }

    fn damaged(&self, why: String) -> Trouble {
        Trouble { offset: self.frame_begin, unfinished: false, why }
    }

    fn unfinished(&self, why: String) -> Trouble {
        Trouble { offset: self.frame_begin, unfinished: true, why }
    }

    /// What keeps one decoder, which knows only the header of `first`, from reading the frames of
    /// this file; `None` if nothing does. The headers of both have been read.
    pub fn unlike(&self, first: &Scanner) -> Option<&'static str> {
        match (&self.state, &first.state) {
            (State::Dcd(one), State::Dcd(first)) => one.unlike(first),
            (State::Ncdf(one), State::Ncdf(first)) => {
                (one.built != first.built).then_some("its records hold other variables than those")
            }
            _ => (self.format != first.format).then_some("its frames are of another format than those"),
        }
    }
}

fn dcd_head(dcd: &Dcd, bytes: &[u8], index: u64) -> Option<Head> {
    let good = dcd.check(bytes, index)?;
    Some(good.map(|()| Header { n_atoms: dcd.n_atoms, length: dcd.frame_bytes(index) }))
}
