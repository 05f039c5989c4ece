//! Maps frame numbers to sources: file-name templates, pieces of trajectory files, lists of files,
//! blocks of any file.

use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameNo;
use crate::path::RelPath;
use crate::runset::RunSet;
use crate::source::Source;
use crate::trajectory::Trajectory;
use std::sync::Arc;

mod blocks;
mod digits;
mod pieces;
mod template;

pub use blocks::Blocks;
pub(crate) use digits::{WIDTH_MAX, Widths, last_digits};
pub use pieces::Piece;
pub use template::{Component, Level, NameTemplate, PARTS_PER_STEP_MAX};

/// How a dataset's frame numbers map to sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One file per frame.
    Files(NameTemplate),
    /// Frames inside trajectory files.
    Pieces(Vec<Piece>),
    /// One file per frame, whatever its name: frame i is file i of the list.
    List(Arc<Vec<RelPath>>),
    /// All frames of trajectory files.
    Trajectory(Arc<Trajectory>),
    /// Byte ranges of one version of a file.
    Blocks(Blocks),
}

impl Layout {
    /// The source of frame `number`, if this layout has one.
    pub fn source(&self, number: FrameNo) -> Option<Source> {
        match self {
            Layout::Files(template) => {
                Some(Source { path: RelPath::new(&template.name(number)).ok()?, offset: 0, length: None })
            }
            Layout::Pieces(pieces) => {
                let number = number.get();
                // Pieces are usually in order. If they are not, the search below finds the right
                // one.
                let likely = pieces.partition_point(|piece| piece.first <= number).checked_sub(1);
                let likely = likely.map(|at| &pieces[at]);
                let (piece, offset) = likely
                    .into_iter()
                    .chain(pieces)
                    .find_map(|piece| piece.offset_of(number).map(|offset| (piece, offset)))?;
                Some(Source { path: piece.path.clone(), offset, length: Some(piece.frame_bytes) })
            }
            Layout::List(files) => {
                let path = files.get(usize::try_from(number.get()).ok()?)?;
                Some(Source { path: path.clone(), offset: 0, length: None })
            }
            Layout::Blocks(blocks) => blocks.source(number),
            Layout::Trajectory(trajectory) => trajectory.source(number.get()),
        }
    }

    /// For pieces, lists, trajectories and blocks, the set of all frame numbers. `None` for a
    /// template: only a directory listing shows which of its numbers exist. Pieces that
    /// [`Layout::validate`] would refuse are left out.
    pub fn declared_extent(&self) -> Option<RunSet> {
        match self {
            Layout::Files(_) => None,
            Layout::Pieces(pieces) => Some(pieces::extent(pieces)),
            Layout::List(files) => Some(match files.len() as u64 {
                0 => RunSet::new(),
                count => RunSet::range(0, count - 1),
            }),
            Layout::Blocks(blocks) => Some(blocks.extent()),
            Layout::Trajectory(trajectory) => Some(trajectory.extent()),
        }
    }

    /// The trajectory of a layout with all frames of trajectory files.
    pub fn trajectory(&self) -> Option<&Trajectory> {
        match self {
            Layout::Trajectory(trajectory) => Some(trajectory),
            Layout::Files(_) | Layout::Pieces(_) | Layout::List(_) | Layout::Blocks(_) => None,
        }
    }

    /// The template of a layout with one file per frame.
    pub fn template(&self) -> Option<&NameTemplate> {
        match self {
            Layout::Files(template) => Some(template),
            _ => None,
        }
    }

    /// The version of a file that this layout is made for; `None` for a layout of another kind.
    pub fn blocks(&self) -> Option<&Blocks> {
        match self {
            Layout::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// The pieces of a layout with frames inside trajectory files.
    pub fn pieces(&self) -> Option<&[Piece]> {
        match self {
            Layout::Files(_) | Layout::List(_) | Layout::Trajectory(_) | Layout::Blocks(_) => None,
            Layout::Pieces(pieces) => Some(pieces),
        }
    }

    /// Whether `source` is the source that this layout names for frame `number`.
    pub fn gives(&self, number: FrameNo, source: &Source) -> bool {
        match self {
            Layout::Files(template) => {
                let whole = source.offset == 0 && source.length.is_none();
                whole && template.number(source.path.as_str()) == Some(number)
            }
            Layout::Pieces(_) | Layout::List(_) | Layout::Trajectory(_) | Layout::Blocks(_) => {
                self.source(number).as_ref() == Some(source)
            }
        }
    }

    /// Checks that no frame number or listed file appears twice and that all limits hold. Time and
    /// memory grow with the number of pieces or files, within limits; a layout that needs more is
    /// `TooLarge`.
    pub fn validate(&self) -> Result<()> {
        match self {
            Layout::Files(_) => Ok(()),
            Layout::Pieces(pieces) => pieces::validate(pieces),
            Layout::List(files) => check_list(files),
            Layout::Trajectory(trajectory) => trajectory.validate(),
            Layout::Blocks(blocks) => blocks.validate(),
        }
    }
}

fn check_list(files: &[RelPath]) -> Result<()> {
    let refuse = |number: usize, why: &str| {
        let file = &files[number];
        Err(Error::new(ErrorKind::InvalidArgument, format!("file {number} of the list, {file}: {why}")))
    };
    if let Some(number) = files.iter().position(RelPath::is_root) {
        return refuse(number, "names no file; give the file's path in the dataset");
    }
    // Sorting finds what is listed twice; a list that is sorted already takes one look.
    let mut sorted: Vec<(&RelPath, usize)> = files.iter().zip(0..).collect();
    sorted.sort_unstable();
    let again = sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).min();
    again.map_or(Ok(()), |number| refuse(number, "is listed twice; a file is one frame"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> NameTemplate {
        NameTemplate::parse(text).unwrap()
    }

    fn frame(number: u64) -> FrameNo {
        FrameNo::new(number).unwrap()
    }

    fn piece(path: &str, first: u64, count: u64, step: u64) -> Piece {
        Piece { path: RelPath::new(path).unwrap(), first, count, step, offset: 100, frame_bytes: 10 }
    }

    #[test]
    fn pieces_give_offsets_and_extent() {
        let layout =
            Layout::Pieces(vec![piece("b", 100, 50, 2), piece("a", 0, 100, 1), piece("c", 101, 50, 2)]);
        layout.validate().unwrap();
        assert_eq!(layout.declared_extent().unwrap(), RunSet::range(0, 199));
        for (number, path, offset) in [(0, "a", 100), (99, "a", 1090), (100, "b", 100), (103, "c", 110)] {
            let source = layout.source(frame(number)).unwrap();
            assert_eq!((source.path.as_str(), source.offset, source.length), (path, offset, Some(10)));
            assert!(layout.gives(frame(number), &source) && !layout.gives(frame(number ^ 1), &source));
        }
        assert_eq!(layout.source(frame(200)), None);
        let files = Layout::Files(template("s/{n:03}"));
        let source = files.source(frame(5)).unwrap();
        assert_eq!((source.path.as_str(), source.offset, source.length), ("s/005", 0, None));
        assert!(files.gives(frame(5), &source) && !files.gives(frame(6), &source));
        assert!(!files.gives(frame(5), &Source { offset: 1, ..source.clone() }));
        assert!(files.declared_extent().is_none() && files.validate().is_ok());
    }

    #[test]
    fn a_list_numbers_its_files() {
        let list = |names: &[&str]| {
            Layout::List(Arc::new(names.iter().map(|name| RelPath::new(name).unwrap()).collect()))
        };
        let layout = list(&["cat.jpg", "sub/dog 7.jpg"]);
        layout.validate().unwrap();
        assert_eq!(layout.declared_extent().unwrap(), RunSet::range(0, 1));
        assert_eq!(layout.source(frame(1)).unwrap().path.as_str(), "sub/dog 7.jpg");
        assert_eq!((layout.source(frame(2)), layout.source(frame(1)).unwrap().length), (None, None));
        assert!(list(&[]).declared_extent().unwrap().is_empty());
        assert!(list(&["a", "b", "a"]).validate().is_err() && list(&["a", ""]).validate().is_err());
    }

    #[test]
    fn bad_pieces_are_refused() {
        fn check(pieces: Vec<Piece>, kind: ErrorKind) {
            let error = Layout::Pieces(pieces).validate().unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        check(vec![piece("a", 0, 10, 3), piece("b", 1, 10, 4)], ErrorKind::Conflict);
        check(vec![piece("a", 0, 1 << 39, 2), piece("b", 7, 1 << 30, 3)], ErrorKind::Conflict);
        check(vec![piece("a", 0, 0, 1)], ErrorKind::InvalidArgument);
        check(vec![piece("a", 0, 2, 0)], ErrorKind::InvalidArgument);
        check(vec![piece("", 0, 2, 1)], ErrorKind::InvalidArgument);
        check(vec![piece("a", 1, 1 << 40, 1), piece("a", 1 << 40, 2, 1)], ErrorKind::TooLarge);
        check(vec![piece("a", 0, u64::MAX, u64::MAX)], ErrorKind::TooLarge);
        check(vec![Piece { frame_bytes: 0, ..piece("a", 0, 1, 1) }], ErrorKind::InvalidArgument);
        check(vec![Piece { frame_bytes: u64::MAX, ..piece("a", 0, 2, 1) }], ErrorKind::TooLarge);
        check(vec![Piece { offset: u64::MAX, ..piece("a", 0, 2, 1) }], ErrorKind::TooLarge);
        Layout::Pieces(vec![piece("a", 0, 1 << 39, 2), piece("b", 1, 1 << 39, 2)]).validate().unwrap();
    }
}
