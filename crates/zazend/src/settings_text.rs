//! Reads a file of settings, or a list of nodes, which is read again while the daemon serves. So
//! nothing is waited for, as the writer of a FIFO would be, and no file takes the daemon's memory.

use std::io::{Error, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The longest file.
const BYTES_MAX: u64 = 64 << 20;

/// The text of a plain file of at most 64 MiB.
pub(crate) fn settings_text(path: &Path) -> Result<String> {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !opened.metadata()?.is_file() {
        return Err(Error::other("it is not a plain file"));
    }
    let mut text = String::new();
    opened.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Error::other(format!("it has more than {BYTES_MAX} bytes; is it the right file?")));
    }
    Ok(text)
}
