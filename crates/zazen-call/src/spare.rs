//! Memory for answers that wait to be sent, kept from one answer to the next.
//!
//! Fresh memory from the kernel costs a page fault for each page, several times the cost of copying
//! into it. Kept memory belongs to no connection, so idle connections hold none. The process keeps
//! a bounded amount.
//!
//! Invariant: each buffer that an answer grows into was looked for here first. So no more is kept
//! than answers had in use at once, by sizes, and a process that answers a few calls at once keeps
//! a few buffers.

use std::sync::{Mutex, PoisonError};

/// Bytes kept at most while no answer uses them.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Smaller buffers are left to the allocator. Larger ones have multiples of it, so that they fit
/// answers of nearly their size.
const KEPT_EACH_MIN: usize = 64 << 10;

/// Buffers that nobody uses, and their bytes.
struct Spare {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: Vec::new(), bytes: 0 });

/// Gives `buffer` room for `bytes` in all; `None` if there is no memory.
pub(crate) fn grow(buffer: &mut Vec<u8>, bytes: usize) -> Option<()> {
    if buffer.capacity() < bytes {
        let mut larger = take(bytes)?;
        larger.extend_from_slice(buffer);
        give_back(std::mem::replace(buffer, larger));
    }
    Some(())
}

/// An empty buffer with room for `bytes`; `None` if there is no memory.
fn take(bytes: usize) -> Option<Vec<u8>> {
    let mut wanted = bytes;
    if bytes >= KEPT_EACH_MIN {
        wanted = bytes.checked_next_multiple_of(KEPT_EACH_MIN)?;
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |buffer: &Vec<u8>| (bytes..=wanted.saturating_mul(2)).contains(&buffer.capacity());
        if let Some(index) = spare.buffers.iter().rposition(fits) {
            let buffer = spare.buffers.swap_remove(index);
            spare.bytes -= buffer.capacity();
            return Some(buffer);
        }
    }
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(wanted).ok()?;
    Some(buffer)
}

/// How many bytes are kept now.
pub fn kept_bytes() -> usize {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).bytes
}

/// Keeps `buffer` for another answer, if it is worth it.
pub(crate) fn give_back(mut buffer: Vec<u8>) {
    let bytes = buffer.capacity();
    if !(KEPT_EACH_MIN..=KEPT_BYTES_MAX).contains(&bytes) {
        return;
    }
    buffer.clear();
    // Freed after the lock is released.
    let mut dropped = Vec::new();
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    // The oldest buffers go: their sizes are not asked for any more.
    while spare.bytes + bytes > KEPT_BYTES_MAX {
        let oldest = spare.buffers.remove(0);
        spare.bytes -= oldest.capacity();
        dropped.push(oldest);
    }
    spare.bytes += bytes;
    spare.buffers.push(buffer);
    drop(spare);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_what_is_kept_is_bounded() {
        let mut used = take(1 << 20).unwrap();
        used.extend([7; 1000]);
        give_back(used);
        let again = take(1 << 20).unwrap();
        assert!(again.is_empty() && again.capacity() >= 1 << 20);
        assert!(take(isize::MAX as usize + 1).is_none());
        for _ in 0..100 {
            give_back(Vec::with_capacity(1 << 20));
        }
        give_back(Vec::with_capacity(KEPT_BYTES_MAX + 1));
        let spare = SPARE.lock().unwrap();
        assert!(spare.bytes <= KEPT_BYTES_MAX && spare.bytes > KEPT_BYTES_MAX / 2);
        assert_eq!(spare.bytes, spare.buffers.iter().map(Vec::capacity).sum::<usize>());
    }
}
