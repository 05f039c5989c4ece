//! What lies between the frames of a file: how far behind its place among frames that follow each
//! other each frame begins.
//!
//! Programs write the same things between any two frames, so the gap before a frame mostly equals
//! the one before. The table stores the change as a varint: mostly one byte a frame. 64 frames make
//! a block, as in the table of lengths.

use crate::varint::{put_varint, take_varint, unzigzag, zigzag};

/// Frames in a block of unequal lengths, or of frames that lie apart.
pub(super) const BLOCK: usize = 64;

/// The shift of a block's first frame, and where the varints of the others begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    shift: i64,
    changes: usize,
}

/// How far behind its place among frames that follow each other each frame begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    blocks: Vec<Block>,
    changes: Vec<u8>,
    count: u64,
    /// The last frame's shift, and the gap before it.
    shift: i64,
    gap: i64,
    end: u64,
}

impl Gaps {
    /// Behind all frames.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.changes.capacity()
    }

    /// Adds a frame that is shifted by so many bytes, and where it ends.
    pub(super) fn push(&mut self, shift: i64, end: u64) {
        if self.count.is_multiple_of(BLOCK as u64) {
            self.blocks.push(Block { shift, changes: self.changes.len() });
            self.gap = 0;
        } else {
            let gap = shift.wrapping_sub(self.shift);
            put_varint(&mut self.changes, zigzag(gap.wrapping_sub(self.gap)));
            self.gap = gap;
        }
        (self.count, self.shift, self.end) = (self.count + 1, shift, self.end.max(end));
    }

    /// The shift of frame `index`.
    pub(super) fn get(&self, index: u64) -> Option<i64> {
        let block = self.blocks.get(usize::try_from(index / BLOCK as u64).ok()?)?;
        let (mut at, mut shift, mut gap) = (block.changes, block.shift, 0i64);
        for _ in 0..index % BLOCK as u64 {
            gap = gap.wrapping_add(unzigzag(take_varint(&self.changes, &mut at)?));
            shift = shift.wrapping_add(gap);
        }
        (index < self.count).then_some(shift)
    }

    /// Appends the number of frames, and each frame's change of the gap before it, in blocks.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        put_varint(bytes, self.count);
        for (nth, block) in self.blocks.iter().enumerate() {
            let next = self.blocks.get(nth + 1).map_or(self.changes.len(), |next| next.changes);
            put_varint(bytes, zigzag(block.shift));
            bytes.extend_from_slice(&self.changes[block.changes..next]);
        }
    }

    /// The shifts that `encode` appended, and the number of bytes that it took.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Vec<i64>, usize)> {
        let mut at = 0;
        let count = take_varint(bytes, &mut at)?;
        // Each frame takes a byte at least.
        if count > bytes.len() as u64 {
            return None;
        }
        let mut shifts = Vec::new();
        let (mut shift, mut gap) = (0i64, 0i64);
        for nth in 0..count {
            let number = unzigzag(take_varint(bytes, &mut at)?);
            if nth.is_multiple_of(BLOCK as u64) {
                (shift, gap) = (number, 0);
            } else {
                gap = gap.wrapping_add(number);
                shift = shift.wrapping_add(gap);
            }
            shifts.push(shift);
        }
        Some((shifts, at))
    }
}
