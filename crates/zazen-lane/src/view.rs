//! A mapped region, as a range of addresses: the only code of this crate that touches shared
//! memory.
//!
//! Invariants: the memory behind the view can't shrink (the daemon seals it), so an access within
//! bounds never faults; no reference to shared bytes is made but to atomic counters; what is out of
//! bounds is our bug and panics, since every offset that another process names is checked before.

use crate::parts::{Source, Target};
use std::sync::atomic::AtomicU32;
use zazen_wire::shm::Span;

/// A region where this process has mapped it. A copy is another name for the same memory.
#[derive(Clone, Copy, Debug)]
pub struct View {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is a range of memory; all access is by copies and atomics, which any thread may do.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// The `bytes` bytes at `base`.
    ///
    /// # Safety
    ///
    /// They are a mapping that begins on a page, is readable and writable, can't shrink, and stays
    /// mapped for as long as this view, a copy of it, or a pointer that came from it is used.
    pub const unsafe fn new(base: *mut u8, bytes: usize) -> View {
        View { base, bytes }
    }

    /// The whole region.
    #[inline]
    pub fn span(&self) -> Span {
        Span { at: 0, bytes: self.bytes as u64 }
    }

    /// The address of its first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The beginning of `span`; panics if that is not within.
    #[inline]
    pub fn pointer(&self, span: Span) -> *mut u8 {
        assert!(self.span().holds(span), "{span:?} is within a region of {} bytes", self.bytes);
        // SAFETY: `at` is at most the mapping's length.
        unsafe { self.base.add(span.at as usize) }
    }

    /// Where `bytes` bytes of this process lie in the region, if they do.
    #[inline]
    pub fn find(&self, start: *const u8, bytes: usize) -> Option<Span> {
        let at = (start as usize).checked_sub(self.base as usize)?;
        let span = Span { at: at as u64, bytes: bytes as u64 };
        self.span().holds(span).then_some(span)
    }

    /// Copies out of the region, once.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) {
        self.read_to(at, Target::of(into));
    }

    /// [`View::read`] into memory that may be no slice.
    #[inline]
    pub fn read_to(&self, at: u64, into: Target<'_>) {
        let from = self.pointer(Span { at, bytes: into.len() as u64 });
        // SAFETY: `from` is valid for as many bytes (checked by `pointer`), `into` for writes. The
        // other process may write meanwhile: any mix of bytes is a value of u8, and nothing is read
        // twice. `into` may itself lie in the region (a pool buffer too small to be named): `copy`
        // tolerates an overlap.
        unsafe { std::ptr::copy(from, into.start(), into.len()) }
    }

    /// Copies into the region.
    #[inline]
    pub fn write(&self, at: u64, from: Source<'_>) {
        let to = self.pointer(Span { at, bytes: from.len() as u64 });
        // SAFETY: `to` is valid for as many bytes, `from` for reads. A source that is itself in the
        // region (a pool buffer too small or too many to be named) may be the same bytes only if
        // the caller has a bug: `copy` tolerates it.
        unsafe { std::ptr::copy(from.start(), to, from.len()) }
    }

    /// The counter at `at`.
    #[inline]
    pub fn counter(&self, at: u64) -> &AtomicU32 {
        let start = self.pointer(Span { at, bytes: 4 });
        assert!(at.is_multiple_of(4), "a counter is aligned");
        // SAFETY: in bounds and aligned (the mapping begins on a page); both processes access it
        // atomically only, or the other one scribbles, which an atomic read sees as some value.
        unsafe { AtomicU32::from_ptr(start.cast()) }
    }
}

/// Memory in the pool is named to the daemon from so many bytes on; what is less is copied, which
/// costs less than looking up where it lies.
const IN_PLACE_MIN: usize = 512;

/// A region and where its pool is.
#[derive(Clone, Copy, Debug)]
pub struct PoolView {
    /// The region.
    pub view: View,
    /// The pool in it.
    pub span: Span,
}

impl PoolView {
    /// Where bytes lie in the pool, if they do and are worth naming.
    #[inline]
    pub fn place(&self, start: *const u8, bytes: usize) -> Option<Span> {
        if bytes < IN_PLACE_MIN {
            return None;
        }
        let span = self.view.find(start, bytes)?;
        self.span.holds(span).then_some(span)
    }
}
