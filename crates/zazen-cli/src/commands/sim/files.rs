//! Files of results.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use zazen_core::{Error, Result};

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    write_whole_by(path, |into| into.write_all(contents.as_ref()))
}

/// The same, with `write` for contents that need not be in memory as a whole.
pub(crate) fn write_whole_by(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let beside = path.with_extension("part");
    let written = || {
        let mut into = BufWriter::new(File::create(&beside)?);
        write(&mut into)?;
        into.flush()?;
        std::fs::rename(&beside, path)
    };
    written().map_err(|error| Error::io(path.display().to_string(), error))
}
