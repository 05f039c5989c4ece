//! Which bytes of which file a frame is: file-name templates and pieces of trajectory files.

use crate::error::Result;
use crate::frame::FrameNo;
use crate::path::RelPath;
use crate::runset::RunSet;

/// Where a frame's bytes are, relative to its dataset's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: RelPath,
    /// Where the frame begins in it, in bytes.
    pub offset: u64,
    /// The frame's length in bytes; `None`: to the end of the file.
    pub length: Option<u64>,
}

/// A file-name template with one place for the number: `frame-{n:07}.dcd`, `step{n}/data.vtu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    prefix: String,
    /// Digits at least, zero padded; 0 or 1: not padded.
    width: usize,
    suffix: String,
}

impl NameTemplate {
    /// Parses `prefix{n}suffix` or `prefix{n:0W}suffix`; fails with `InvalidArgument` naming what is wrong.
    pub fn parse(text: &str) -> Result<NameTemplate> {
        let _ = text;
        todo!()
    }

    /// The name of frame `number`.
    pub fn name(&self, number: FrameNo) -> String {
        let _ = number;
        todo!()
    }

    /// The number that `name` spells, if `name` is exactly what [`NameTemplate::name`] would print for it.
    pub fn number(&self, name: &str) -> Option<FrameNo> {
        let _ = name;
        todo!()
    }

    /// The template that most of `names` follow, by the last run of digits of each; `None` if no name has one.
    /// Ties go to the template met first in sorted order, so that every node agrees.
    pub fn detect<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<NameTemplate> {
        let _ = names.into_iter().count();
        todo!()
    }
}

impl std::fmt::Display for NameTemplate {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}

/// A run of frames inside one file: frame `first + i·step` is at `offset + i·frame_bytes`, i < `count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file, relative to the dataset.
    pub path: RelPath,
    /// The first frame number in it.
    pub first: u64,
    /// Frames in it.
    pub count: u64,
    /// Distance between consecutive frame numbers in it.
    pub step: u64,
    /// Where the first frame begins, in bytes.
    pub offset: u64,
    /// Bytes of each frame.
    pub frame_bytes: u64,
}

/// How a dataset's frame numbers map to sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One file per frame.
    Files(NameTemplate),
    /// Frames inside trajectory files.
    Pieces(Vec<Piece>),
}

impl Layout {
    /// The source of frame `number`, if this layout has one.
    pub fn source(&self, number: FrameNo) -> Option<Source> {
        let _ = number;
        todo!()
    }

    /// For pieces, the set of all frame numbers; `None` for files, whose numbers only a listing tells.
    pub fn declared_extent(&self) -> Option<RunSet> {
        todo!()
    }

    /// Checks that no frame number is given twice and that all bounds hold.
    pub fn validate(&self) -> Result<()> {
        todo!()
    }
}
