//! Every limit that a peer, a file or a user can meet.

use crate::error::{Error, ErrorKind, Result};

/// The largest frame number: 2⁴⁰.
pub const FRAME_NO_MAX: u64 = 1 << 40;
/// The largest frame: 1 TiB.
pub const FRAME_BYTES_MAX: u64 = 1 << 40;
/// The longest relative path (dataset or frame), in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest path component, in bytes (the kernel's NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;
/// The largest message payload that a peer may announce, in bytes. Bulk data are streamed and not
/// counted.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
/// Descriptors in one message; the kernel's own bound is 253.
pub const FDS_PER_MESSAGE_MAX: usize = 64;
/// Frames in one batch of a scan; packed ones share descriptors.
pub const BATCH_FRAMES_MAX: usize = 1024;
/// Frames in one answer to a call of random access.
pub const READ_MANY_FRAMES_MAX: usize = 4096;
/// Bytes that a daemon holds for one answer to a call of random access, but for a single larger
/// frame: those of frames that have no descriptor for this caller.
pub const READ_MANY_SENT_MAX: usize = 8 << 20;
/// Places of cached frames in one answer to a reader that reads one by one.
pub const PLACES_MAX: usize = 4096;
/// The directory inside a dataset's cache folder that holds Zazen's own files; no frame path may
/// use it.
pub const OWN_DIR: &str = ".zazen";
/// The name of every series' folder begins with this; no frame path may.
pub const SERIES_MARK: &str = ".zazen@";
/// Suffix of the daemon's socket name for the lock file of turns at its spinning disk. The file
/// exists only if the daemon advises a single reader.
pub const TURN_SUFFIX: &str = ".turn";
/// Suffix of the lock file for the reader that gets the next turn.
pub const NEXT_TURN_SUFFIX: &str = ".turn.next";
/// The manifest: the file in a dataset's backing directory that describes its frames if names alone
/// do not.
pub const MANIFEST_NAME: &str = "zazen.toml";

/// Refuses (`TooLarge`) a frame of more than [`FRAME_BYTES_MAX`] bytes. This is the only check of a
/// frame's length, for all who learn one from outside.
pub fn check_frame_bytes(bytes: u64) -> Result<()> {
    if bytes <= FRAME_BYTES_MAX {
        return Ok(());
    }
    let text =
        format!("a frame of {bytes} bytes is beyond the limit of {FRAME_BYTES_MAX}; cut it into frames");
    Err(Error::new(ErrorKind::TooLarge, text))
}
