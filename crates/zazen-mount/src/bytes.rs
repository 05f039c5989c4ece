//! Bytes of open files: from this machine's own file, or through the tree.

use crate::local_io;
use crate::opens::OpenFile;
use crate::tree::{Errno, Result, Tree};

/// The most bytes that one request copies by reading and writing, and in one step.
const COPY_BYTES_MAX: u64 = 8 << 20;
const STEP_BYTES_MAX: u64 = 1 << 20;

/// Reads until `buffer` is full or the file ends.
pub(crate) fn read(tree: &dyn Tree, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    match &file.local {
        Some(local) => local_io::read(local, offset, buffer),
        None => tree.read(file.handle, offset, buffer),
    }
}

/// Writes at `offset`, or at the file's end.
pub(crate) fn write(
    tree: &dyn Tree,
    file: &OpenFile,
    offset: u64,
    bytes: &[u8],
    append: bool,
) -> Result<usize> {
    match &file.local {
        Some(local) => local_io::write(local, offset, bytes, append),
        None => tree.write(file.handle, offset, bytes, append),
    }
}

/// Copies between two files: some of the bytes, as `copy_file_range` may.
pub(crate) fn copy(
    tree: &dyn Tree,
    (from, from_offset): (&OpenFile, u64),
    (to, to_offset): (&OpenFile, u64),
    bytes: u64,
) -> Result<u64> {
    let copied = match (&from.local, &to.local) {
        (Some(from), Some(to)) => local_io::copy(from, from_offset, to, to_offset, bytes),
        _ => tree.copy(from.handle, from_offset, to.handle, to_offset, bytes),
    };
    match copied {
        Err(Errno::EOPNOTSUPP) => by_hand(tree, (from, from_offset), (to, to_offset), bytes),
        copied => copied,
    }
}

/// Copies by reading and writing. The kernel must not do that itself: it would take the bytes from
/// pages that it keeps, and others may have written the file since.
fn by_hand(
    tree: &dyn Tree,
    (from, from_offset): (&OpenFile, u64),
    (to, to_offset): (&OpenFile, u64),
    bytes: u64,
) -> Result<u64> {
    let bytes = bytes.min(COPY_BYTES_MAX);
    let mut buffer = vec![0; bytes.min(STEP_BYTES_MAX) as usize];
    let mut done = 0;
    while done < bytes {
        let room = &mut buffer[..(bytes - done).min(STEP_BYTES_MAX) as usize];
        let moved = read(tree, from, from_offset.saturating_add(done), room)
            .and_then(|got| write(tree, to, to_offset.saturating_add(done), &room[..got], false));
        match moved {
            Ok(0) => break,
            Ok(count) => done += count as u64,
            // What was copied counts; the next call meets the error.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
