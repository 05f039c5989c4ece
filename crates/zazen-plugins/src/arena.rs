//! Memory of one call: zeroed, 16-byte aligned, freed as one.
//!
//! Small requests come out of a slab that the thread keeps from call to call.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;

const ALIGN: usize = 16;
const SLAB_BYTES: usize = 16 << 10;

#[repr(C, align(16))]
struct Slab([u8; SLAB_BYTES]);

thread_local! {
    /// Empty while a call has it.
    static KEPT: Cell<Option<Box<Slab>>> = const { Cell::new(None) };
}

#[derive(Default)]
pub(crate) struct Arena {
    slab: Option<Box<Slab>>,
    used: usize,
    blocks: Vec<(NonNull<u8>, Layout)>,
}

impl Arena {
    /// `bytes` zeroed bytes that live as long as the arena; `None` if there is no memory.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        if rounded <= SLAB_BYTES - self.used {
            let slab = self.slab.get_or_insert_with(|| KEPT.take().unwrap_or_else(fresh_slab));
            let piece = &mut slab.0[self.used..self.used + rounded];
            piece.fill(0);
            self.used += rounded;
            return Some(NonNull::from(piece).cast());
        }
        let layout = Layout::from_size_align(rounded, ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        self.blocks.push((block, layout));
        Some(block)
    }
}

fn fresh_slab() -> Box<Slab> {
    Box::new(Slab([0; SLAB_BYTES]))
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (block, layout) in self.blocks.drain(..) {
            // SAFETY: allocated above with this layout, and handed out for the arena's life only.
            unsafe { dealloc(block.as_ptr(), layout) };
        }
        if let Some(slab) = self.slab.take() {
            // At the thread's end there is no place to keep it in.
            let _ = KEPT.try_with(|kept| kept.set(Some(slab)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_apart_also_when_reused() {
        for _ in 0..3 {
            let mut arena = Arena::default();
            let sizes = [0, 1, 15, 16, 17, 4000, 16 << 10, 100_000, 3, 9000];
            let pieces: Vec<_> = sizes.iter().map(|bytes| arena.allocate(*bytes).unwrap()).collect();
            for (number, (piece, bytes)) in pieces.iter().zip(sizes).enumerate() {
                assert_eq!(piece.as_ptr() as usize % ALIGN, 0);
                // SAFETY: the piece has `bytes` bytes and nobody else uses it.
                let piece = unsafe { std::slice::from_raw_parts_mut(piece.as_ptr(), bytes) };
                assert!(piece.iter().all(|byte| *byte == 0));
                piece.fill(number as u8 + 1);
            }
            for (number, (piece, bytes)) in pieces.iter().zip(sizes).enumerate() {
                // SAFETY: as above.
                let piece = unsafe { std::slice::from_raw_parts(piece.as_ptr(), bytes) };
                assert!(piece.iter().all(|byte| *byte == number as u8 + 1));
            }
        }
        assert!(Arena::default().allocate(usize::MAX).is_none());
        assert!(Arena::default().allocate(isize::MAX as usize - 64).is_none());
    }
}
