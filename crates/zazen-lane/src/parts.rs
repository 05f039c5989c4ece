//! The program's own memory, as pointers and lengths.
//!
//! No reference is made to it: a program may write from one thread what another thread sends.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

/// Bytes that are valid for reads for `'a`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Source<'a> {
    start: *const u8,
    bytes: usize,
    life: PhantomData<&'a [u8]>,
}

/// Memory that is valid for writes for `'a`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Target<'a> {
    start: *mut u8,
    bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

const _: () = assert!(size_of::<Source<'_>>() == size_of::<IoSlice<'_>>());
const _: () = assert!(size_of::<Target<'_>>() == size_of::<IoSliceMut<'_>>());

impl<'a> Source<'a> {
    /// No bytes.
    pub const NONE: Source<'static> = Source { start: std::ptr::null(), bytes: 0, life: PhantomData };

    /// These bytes.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Source<'a> {
        Source { start: bytes.as_ptr(), bytes: bytes.len(), life: PhantomData }
    }

    /// Memory that is no slice of this process.
    ///
    /// # Safety
    ///
    /// `start` is valid for reads of `bytes` bytes for `'a`, or `bytes` is 0.
    #[inline]
    pub const unsafe fn from_raw(start: *const u8, bytes: usize) -> Source<'a> {
        Source { start, bytes, life: PhantomData }
    }

    /// Slices as they are given to the kernel.
    pub fn of_slices(slices: &'a [IoSlice<'_>]) -> &'a [Source<'a>] {
        // SAFETY: an IoSlice is laid out as an iovec, a pointer and a length, as a Source is; both
        // are only read.
        unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), slices.len()) }
    }

    /// Where they begin.
    #[inline]
    pub fn start(&self) -> *const u8 {
        self.start
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// These bytes from `skip` on, at most `most` of them.
    #[inline]
    pub fn part(&self, skip: usize, most: usize) -> Source<'a> {
        let skip = skip.min(self.bytes);
        Source { start: self.start.wrapping_add(skip), bytes: most.min(self.bytes - skip), life: PhantomData }
    }
}

impl<'a> Target<'a> {
    /// This memory.
    #[inline]
    pub fn of(bytes: &'a mut [u8]) -> Target<'a> {
        Target { start: bytes.as_mut_ptr(), bytes: bytes.len(), life: PhantomData }
    }

    /// Memory that is no slice of this process.
    ///
    /// # Safety
    ///
    /// `start` is valid for writes of `bytes` bytes for `'a`, or `bytes` is 0.
    #[inline]
    pub const unsafe fn from_raw(start: *mut u8, bytes: usize) -> Target<'a> {
        Target { start, bytes, life: PhantomData }
    }

    /// Slices as they are given to the kernel.
    pub fn of_slices(slices: &'a mut [IoSliceMut<'_>]) -> &'a [Target<'a>] {
        // SAFETY: an IoSliceMut is laid out as an iovec, a pointer and a length, as a Target is;
        // the unique borrow lasts as long as the targets do.
        unsafe { std::slice::from_raw_parts(slices.as_mut_ptr().cast(), slices.len()) }
    }

    /// Where it begins.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// How many bytes it has room for.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has room for none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// This memory from `skip` on, at most `most` bytes of it.
    #[inline]
    pub fn part(&self, skip: usize, most: usize) -> Target<'a> {
        let skip = skip.min(self.bytes);
        Target { start: self.start.wrapping_add(skip), bytes: most.min(self.bytes - skip), life: PhantomData }
    }
}
