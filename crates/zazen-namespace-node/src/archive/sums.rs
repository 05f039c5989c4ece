//! Are bytes those that were archived? The checksums of the file on its node's disk say so.

use crate::seals::{BLOCK_BYTES, Seal};
use std::fs::File;
use std::os::unix::fs::FileExt;
use zazen_wire::checksum::frame_checksum;

/// Bytes that are copied and compared at a time: whole blocks of checksums.
pub(super) const CHUNK_BYTES: u64 = 16 * BLOCK_BYTES;

/// How many bytes from the file's start on are those of the seal: whole chunks, or all.
pub(super) fn right_bytes(file: &File, seal: &Seal) -> std::io::Result<u64> {
    let length = file.metadata()?.len().min(seal.bytes);
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let mut at = 0;
    while at < length {
        let wanted = (seal.bytes - at).min(CHUNK_BYTES);
        if length - at < wanted {
            break;
        }
        let chunk = &mut chunk[..wanted as usize];
        file.read_exact_at(chunk, at)?;
        if !is_right(chunk, at, seal)? {
            break;
        }
        at += wanted;
    }
    Ok(at)
}

/// Whether bytes from `at` on, a block's beginning, are those of the seal.
pub(super) fn is_right(bytes: &[u8], at: u64, seal: &Seal) -> std::io::Result<bool> {
    let blocks = bytes.chunks(BLOCK_BYTES as usize);
    let sums = seal.sums(at / BLOCK_BYTES, blocks.len() as u64)?;
    Ok(blocks.zip(sums).all(|(block, sum)| frame_checksum(block) == sum))
}
