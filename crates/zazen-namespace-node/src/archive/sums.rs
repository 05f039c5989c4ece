//! Are bytes those that were archived? The checksums of the file on its node's disk say so.

use crate::seals::{BLOCK_BYTES, Seal};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use zazen_wire::checksum::frame_checksum;

/// Bytes that are copied and compared at a time: whole blocks of checksums.
pub(super) const CHUNK_BYTES: u64 = 16 * BLOCK_BYTES;

/// How many bytes of the file from `start` on are those of the seal: whole chunks, or all.
pub(super) fn right_bytes(file: &File, start: u64, seal: &Seal) -> std::io::Result<u64> {
    let length = file.metadata()?.len().saturating_sub(start).min(seal.bytes);
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let mut at = 0;
    while at < length {
        let wanted = (seal.bytes - at).min(CHUNK_BYTES);
        if length - at < wanted {
            break;
        }
        let chunk = &mut chunk[..wanted as usize];
        file.read_exact_at(chunk, start + at)?;
        if !is_right(chunk, at, seal)? {
            break;
        }
        at += wanted;
    }
    Ok(at)
}

/// Copies what the seal says to `start` in another file, holes as holes. `each` hears how many
/// bytes were copied. `None`: the bytes are others.
pub(super) fn copy_checked(
    from: &File,
    (into, start): (&File, u64),
    seal: &Seal,
    each: &mut dyn FnMut(usize) -> std::io::Result<()>,
) -> Result<(), Option<std::io::Error>> {
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let mut at = 0;
    while at < seal.bytes {
        let wanted = (seal.bytes - at).min(CHUNK_BYTES) as usize;
        let chunk = &mut chunk[..wanted];
        let is_hole = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data >= at + wanted as u64,
            Err(rustix::io::Errno::NXIO) => true,
            Err(_) => false,
        };
        if is_hole {
            chunk.fill(0);
        } else {
            from.read_exact_at(chunk, at).map_err(Some)?;
        }
        // A hole is checked as zeros: what should not be one is found, too.
        if !is_right(chunk, at, seal).map_err(Some)? {
            return Err(None);
        }
        if !is_hole {
            into.write_all_at(chunk, start + at).map_err(Some)?;
            each(wanted).map_err(Some)?;
        }
        at += wanted as u64;
    }
    Ok(())
}

/// Whether bytes from `at` on, a block's beginning, are those of the seal.
pub(super) fn is_right(bytes: &[u8], at: u64, seal: &Seal) -> std::io::Result<bool> {
    let blocks = bytes.chunks(BLOCK_BYTES as usize);
    let sums = seal.sums(at / BLOCK_BYTES, blocks.len() as u64)?;
    Ok(blocks.zip(sums).all(|(block, sum)| frame_checksum(block) == sum))
}
