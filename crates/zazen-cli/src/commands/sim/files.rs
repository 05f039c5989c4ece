//! Files of results.

use std::path::Path;
use zazen_core::{Error, Result};

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let beside = path.with_extension("part");
    let named = |error| Error::io(path.display().to_string(), error);
    std::fs::write(&beside, contents).map_err(named)?;
    std::fs::rename(&beside, path).map_err(named)
}
