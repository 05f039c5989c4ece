//! Reads a file of settings, or a list of nodes, which is read again while the daemon serves. So
//! nothing is waited for, as the writer of a FIFO would be, and no file takes the daemon's memory.

use std::io::{Error, Result};
use std::path::Path;
use zazen_env::plain_file::{open_plain, read_within};

/// The longest file.
const BYTES_MAX: u64 = 64 << 20;

/// The text of a plain file of at most 64 MiB.
pub(crate) fn settings_text(path: &Path) -> Result<String> {
    let it = |error: Error| match error.raw_os_error() {
        Some(_) => error,
        None => Error::other(format!("it {error}")),
    };
    let bytes = open_plain(path).and_then(|file| read_within(file, BYTES_MAX)).map_err(it)?;
    String::from_utf8(bytes).map_err(|_| Error::other("it is not UTF-8 text"))
}
