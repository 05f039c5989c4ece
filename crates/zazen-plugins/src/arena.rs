//! Memory of one call: zeroed, 16-byte aligned, freed as one.
//!
//! Small requests come out of a slab that the thread keeps from call to call. Large allocations are
//! kept, too, for the next call of whatever thread: fresh ones from the kernel cost a fault for
//! each page, several times what copying costs.
//!
//! Invariant: what a call left in kept memory is seen by no later one: it is zeroed, or overwritten
//! as a whole before a plug-in gets it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const ALIGN: usize = 16;
const SLAB_BYTES: usize = 16 << 10;
/// Large allocations are multiples of so much: the next call's is likely of the same size.
const BLOCK_STEP: usize = 64 << 10;
/// Bytes of large allocations that the process keeps while no call uses them.
const KEPT_BYTES_MAX: usize = 32 << 20;

#[repr(C, align(16))]
struct Slab([u8; SLAB_BYTES]);

thread_local! {
    /// Empty while a call has it.
    static KEPT: Cell<Option<Box<Slab>>> = const { Cell::new(None) };
}

/// A large allocation: initialised memory that nobody else has.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is its owner's alone; any thread may free it.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and owned.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Blocks that no call uses, and their bytes.
struct Spare {
    allocations: Vec<Allocation>,
    bytes: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { allocations: Vec::new(), bytes: 0 });

impl Spare {
    /// A kept allocation of at least `bytes`, and at most twice that.
    fn take(bytes: usize) -> Option<Allocation> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |allocation: &Allocation| (bytes..=bytes.saturating_mul(2)).contains(&allocation.layout.size());
        let index = spare.allocations.iter().rposition(fits)?;
        let allocation = spare.allocations.swap_remove(index);
        spare.bytes -= allocation.layout.size();
        Some(allocation)
    }

    fn keep(allocation: Allocation) {
        let bytes = allocation.layout.size();
        if bytes > KEPT_BYTES_MAX {
            return;
        }
        let mut dropped = Vec::new();
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        // Of sizes that are not asked for any more, the oldest go.
        while spare.bytes + bytes > KEPT_BYTES_MAX {
            let oldest = spare.allocations.remove(0);
            spare.bytes -= oldest.layout.size();
            dropped.push(oldest);
        }
        spare.bytes += bytes;
        spare.allocations.push(allocation);
        drop(spare);
    }
}

#[derive(Default)]
pub(crate) struct Arena {
    slab: Option<Box<Slab>>,
    used: usize,
    allocations: Vec<Allocation>,
}

impl Arena {
    /// `bytes` zeroed bytes that live as long as the arena; `None` if there is no memory.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let (start, is_zero) = self.take(bytes)?;
        if !is_zero {
            // SAFETY: `take` gave as many bytes, which are nobody else's.
            unsafe { start.write_bytes(0, bytes) };
        }
        Some(start)
    }

    /// The same for what is overwritten as a whole at once: initialised, and possibly with bytes of
    /// another call.
    pub(crate) fn allocate_to_fill(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.take(bytes).map(|(start, _)| start)
    }

    /// Memory, and whether it is zeros.
    fn take(&mut self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        if rounded <= SLAB_BYTES - self.used {
            let slab = self.slab.get_or_insert_with(|| KEPT.take().unwrap_or_else(fresh_slab));
            let piece = &mut slab.0[self.used..self.used + rounded];
            self.used += rounded;
            return Some((NonNull::from(piece).cast(), false));
        }
        let rounded = rounded.checked_next_multiple_of(BLOCK_STEP)?;
        let kept = Spare::take(rounded);
        let is_zero = kept.is_none();
        let allocation = match kept {
            Some(allocation) => allocation,
            None => {
                let layout = Layout::from_size_align(rounded, ALIGN).ok()?;
                // SAFETY: the size is not 0.
                Allocation { start: NonNull::new(unsafe { alloc_zeroed(layout) })?, layout }
            }
        };
        let start = allocation.start;
        self.allocations.push(allocation);
        Some((start, is_zero))
    }
}

fn fresh_slab() -> Box<Slab> {
    Box::new(Slab([0; SLAB_BYTES]))
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.allocations.drain(..).for_each(Spare::keep);
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
        let spare = SPARE.lock().unwrap();
        assert_eq!(
            spare.bytes,
            spare.allocations.iter().map(|allocation| allocation.layout.size()).sum::<usize>()
        );
        assert!(spare.bytes <= KEPT_BYTES_MAX);
        drop(spare);
        assert!(Arena::default().allocate(usize::MAX).is_none());
        assert!(Arena::default().allocate(isize::MAX as usize - 64).is_none());
    }
}
