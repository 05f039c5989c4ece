//! Trajectories: files that hold many frames, one after the other. A frame is a byte range of its
//! file.
//!
//! This module says where the frames are. `zazen-trajectory` finds that out.

mod table;

pub use table::FrameTable;

use crate::error::{Error, ErrorKind, Result};
use crate::frame::Validator;
use crate::limits::FRAME_NO_MAX;
use crate::path::RelPath;
use crate::runset::RunSet;
use crate::source::Source;
use std::fmt;
use std::sync::Arc;

/// The most bytes that a decoder needs before the first frame.
pub const HEADER_BYTES_MAX: usize = 16 << 20;

/// The format of a trajectory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// GROMACS, compressed.
    Xtc,
    /// GROMACS, full precision.
    Trr,
    /// CHARMM, NAMD, X-PLOR, OpenMM.
    Dcd,
    /// AMBER NetCDF.
    Ncdf,
    /// HDF5 for molecular data.
    H5md,
    /// GROMACS text.
    Gro,
    /// LAMMPS text dump.
    Lammps,
    /// XYZ and extended XYZ.
    Xyz,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 8] = [
        Format::Xtc,
        Format::Trr,
        Format::Dcd,
        Format::Ncdf,
        Format::H5md,
        Format::Gro,
        Format::Lammps,
        Format::Xyz,
    ];

    /// Its name: the usual extension of its files.
    pub fn name(self) -> &'static str {
        match self {
            Format::Xtc => "xtc",
            Format::Trr => "trr",
            Format::Dcd => "dcd",
            Format::Ncdf => "ncdf",
            Format::H5md => "h5md",
            Format::Gro => "gro",
            Format::Lammps => "lammpstrj",
            Format::Xyz => "xyz",
        }
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the frames of a file end before the file does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Where the first frame that is not good begins, in bytes.
    pub offset: u64,
    /// The file ends within the frame: it was cut, or its program still writes. `false`: the bytes
    /// are no frame.
    pub unfinished: bool,
    /// What is wrong.
    pub why: String,
}

/// Checksums of samples of a file, up to the end of its last whole frame. `zazen-trajectory` says
/// where the samples are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSums {
    /// Chooses the places.
    pub seed: u64,
    /// The checksum of each sample.
    pub sums: Arc<[u64]>,
}

/// One trajectory file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrajectoryFile {
    /// The file, relative to the dataset's directory.
    pub path: RelPath,
    /// The number of its first frame.
    pub first: u64,
    /// Whole frames in it.
    pub count: u64,
    /// Where they are; `None` where only somebody else knows (the daemon).
    pub table: Option<Arc<FrameTable>>,
    /// What stands before the first frame, if a decoder needs it.
    pub header: Arc<[u8]>,
    /// What the file looked like when its frames were found.
    pub seen: Validator,
    /// Why there are no more frames, unless the file simply ends.
    pub trouble: Option<Trouble>,
    /// Samples of its frames; `None` where only somebody else knows (the daemon).
    pub samples: Option<SampleSums>,
}

impl TrajectoryFile {
    /// Whether a frame behind the whole ones is counted as well: one that is damaged. Reading it
    /// tells what is wrong, so nobody takes the good frames for all frames.
    fn is_damaged(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| !trouble.unfinished)
    }

    /// Frame numbers that the file takes: the whole frames, and one that is damaged.
    pub fn numbers(&self) -> u64 {
        self.count + u64::from(self.is_damaged())
    }
}

/// A dataset whose frames are those of trajectory files of one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trajectory {
    /// The format of all its files.
    pub format: Format,
    /// Atoms in each frame.
    pub n_atoms: u64,
    /// One file that the user named or that is alone in its directory. `false`: the files of a
    /// manifest.
    pub single: bool,
    /// The files; the numbers of their frames ascend.
    pub files: Vec<TrajectoryFile>,
}

impl Trajectory {
    /// What a decoder needs before the first frame; empty for most formats.
    pub fn header(&self) -> &[u8] {
        self.files.first().map_or(&[], |file| &file.header)
    }

    /// The file that holds frame `number`, or would.
    pub fn file_of(&self, number: u64) -> Option<&TrajectoryFile> {
        let behind = self.files.partition_point(|file| file.first <= number);
        self.files[..behind].iter().rev().find(|file| file.numbers() > 0).or(self.files.first())
    }

    /// Where frame `number` is; `None` if it is not whole, or if only the daemon knows.
    pub fn source(&self, number: u64) -> Option<Source> {
        let file = self.file_of(number)?;
        let (offset, length) = file.table.as_ref()?.get(number.checked_sub(file.first)?)?;
        Some(Source { path: file.path.clone(), offset, length: Some(length) })
    }

    /// The numbers of all frames.
    pub fn extent(&self) -> RunSet {
        match self.files.last().map_or(0, |file| file.first + file.numbers()) {
            0 => RunSet::new(),
            count => RunSet::range(0, count - 1),
        }
    }

    /// Checks that each file is named, and that the files' numbers follow each other within the
    /// limit.
    pub fn validate(&self) -> Result<()> {
        let refuse = |kind, what: String| Err(Error::new(kind, format!("trajectory: {what}")));
        let mut next = 0u64;
        for file in &self.files {
            if file.path.is_root() {
                return refuse(ErrorKind::InvalidArgument, "a file has no name".into());
            }
            if file.first != next || file.table.as_ref().is_some_and(|table| table.count() != file.count) {
                return refuse(
                    ErrorKind::InvalidArgument,
                    format!("the frames of {} do not add up", file.path),
                );
            }
            next =
                file.count.checked_add(1).and_then(|_| next.checked_add(file.numbers())).unwrap_or(u64::MAX);
            if next > FRAME_NO_MAX {
                return refuse(ErrorKind::TooLarge, format!("{} has frames beyond number 2^40", file.path));
            }
        }
        Ok(())
    }

    /// Why there is no frame `number`: `Corrupt` for one that is damaged, else `NotFound`; and for
    /// people.
    pub fn why_not(&self, number: u64) -> (ErrorKind, String) {
        let Some(file) = self.file_of(number) else {
            return (ErrorKind::NotFound, "the trajectory has no files".to_owned());
        };
        let index = number.saturating_sub(file.first);
        match &file.trouble {
            Some(Trouble { offset, unfinished, why }) if index >= file.count => {
                let (kind, what) = match unfinished {
                    true => (ErrorKind::NotFound, "is not complete"),
                    false => (ErrorKind::Corrupt, "is damaged"),
                };
                (kind, format!("frame {} of {}, at byte {offset}, {what}: {why}", file.count, file.path))
            }
            _ => (ErrorKind::NotFound, format!("{} has {} frames", file.path, file.count)),
        }
    }

    /// The same without offsets and headers, to be remembered beside cached frames. Of troubles,
    /// only damage counts, since it takes a frame number.
    pub fn summary(&self) -> Trajectory {
        let strip = |file: &TrajectoryFile| TrajectoryFile {
            table: None,
            header: Arc::default(),
            seen: Validator::default(),
            trouble: file.trouble.clone().filter(|_| file.is_damaged()),
            samples: None,
            ..file.clone()
        };
        Trajectory { files: self.files.iter().map(strip).collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, first: u64, lengths: &[u64], trouble: Option<bool>) -> TrajectoryFile {
        let mut table = FrameTable::new(10, 1);
        lengths.iter().for_each(|length| table.push(*length).unwrap());
        let trouble = trouble.map(|unfinished| Trouble { offset: table.end(), unfinished, why: "x".into() });
        TrajectoryFile {
            path: RelPath::new(path).unwrap(),
            first,
            count: table.count(),
            table: Some(Arc::new(table)),
            header: Arc::default(),
            seen: Validator::default(),
            trouble,
            samples: None,
        }
    }

    #[test]
    fn numbers_lead_to_files() {
        let files = vec![
            file("a.xtc", 0, &[4, 8], Some(false)),
            file("b.xtc", 3, &[], None),
            file("c.xtc", 3, &[5], Some(true)),
        ];
        let trajectory = Trajectory { format: Format::Xtc, n_atoms: 3, single: false, files };
        let place = |number| trajectory.source(number).map(|found| (found.path.to_string(), found.offset));
        assert_eq!(place(1), Some(("a.xtc".into(), 14)));
        assert_eq!(place(3), Some(("c.xtc".into(), 10)));
        assert_eq!((place(2), place(4)), (None, None));
        assert_eq!(trajectory.extent(), RunSet::range(0, 3));
        assert!(trajectory.why_not(2).1.contains("frame 2 of a.xtc, at byte 22, is damaged"));
        assert!(trajectory.why_not(4).1.contains("frame 1 of c.xtc, at byte 15, is not complete"));
        assert!(trajectory.summary().source(0).is_none());
        assert_eq!(trajectory.summary().extent(), RunSet::range(0, 3));
        trajectory.summary().validate().unwrap();
    }

    #[test]
    fn formats_have_names() {
        for format in Format::ALL {
            assert_eq!(Format::named(format.name()), Some(format));
        }
        assert_eq!(Format::named("pdb"), None);
    }
}
