//! Where a frame comes from.

use crate::path::RelPath;

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
