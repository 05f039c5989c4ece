//! Memory for frames that are pushed, chunk by chunk, used again: a fresh MiB costs a fault and
//! zeroing of each page, which is more than to copy the bytes from the socket. The buffers that
//! zazen-call keeps for answers are empty when they are taken, so each use zeroes them.
//!
//! Invariant: a buffer holds what an earlier frame, perhaps another user's, left in it. Whoever
//! takes one uses only the bytes that it wrote itself.

use std::sync::{Mutex, PoisonError};

/// Buffers that are kept. Each has at most one chunk of a push, 1 MiB.
const KEPT_MAX: usize = 8;

/// The buffers that nobody uses now.
#[derive(Default)]
pub struct PushBuffers(Mutex<Vec<Vec<u8>>>);

impl PushBuffers {
    /// A buffer of at least `bytes` bytes.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.filter(|buffer| buffer.len() >= bytes).unwrap_or_else(|| vec![0; bytes])
    }

    /// Keeps `buffer` for another frame, if there is room.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = PushBuffers::default();
        let first = buffers.take(100);
        let at = first.as_ptr();
        buffers.give(first);
        let again = buffers.take(60);
        assert_eq!((again.as_ptr(), again.len()), (at, 100));
        buffers.give(again);
        assert_eq!(buffers.take(101).len(), 101, "one that is too short is no use");
        (0..2 * KEPT_MAX).for_each(|_| buffers.give(vec![0; 7]));
        assert_eq!(buffers.0.lock().unwrap().len(), KEPT_MAX);
    }
}
