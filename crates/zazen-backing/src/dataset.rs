//! A dataset on a backing store: its layout and extent, from a manifest (`zazen.toml`), a given pattern, or the
//! names in its directory.

use crate::Backing;
use zazen_core::{Layout, RelPath, Result, RunSet};

/// How a dataset's frames are named, and which exist.
#[derive(Clone, Debug)]
pub struct DatasetDescription {
    /// The layout; `None` for an empty directory without a manifest.
    pub layout: Option<Layout>,
    /// The frame numbers that exist.
    pub extent: RunSet,
}

/// Describes the dataset in `directory` of `backing`: its manifest if it has one, else `pattern` if given, else
/// what the file names tell. `NotFound` if there is no such directory.
pub fn describe(
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> Result<DatasetDescription> {
    let _ = (backing, directory, pattern);
    todo!()
}

/// The layout alone: no listing where a manifest or the pattern tells.
pub fn layout(backing: &dyn Backing, directory: &RelPath, pattern: Option<&str>) -> Result<Option<Layout>> {
    let _ = (backing, directory, pattern);
    todo!()
}
