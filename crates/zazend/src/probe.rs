//! Whether a daemon could make files at a place, for `zazend --check`.
//!
//! Invariant: nothing that it makes stays.

use std::path::{Path, PathBuf};
use zazen_core::{Error, Result};

/// The directory itself, or the nearest one above it that exists.
pub(crate) fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

/// Whether files can be made in `place`. `remedy`: what to do if not.
pub(crate) fn try_writing(place: &Path, remedy: &str) -> Result<()> {
    let probe = place.join(format!(".zazend-check-{}", std::process::id()));
    let written = std::fs::write(&probe, b"zazend --check");
    std::fs::remove_file(&probe).ok();
    written.map_err(|error| Error::io(format!("{} cannot be written to; {remedy}", place.display()), error))
}
