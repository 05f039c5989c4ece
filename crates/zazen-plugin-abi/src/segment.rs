//! `zazen_segment.h`: what both ends of a call share.

use std::ffi::c_void;

/// `ZAZEN_FUNCTION_BLOCKING`: the function may block for long.
pub const FUNCTION_BLOCKING: u32 = 1;
/// `ZAZEN_FUNCTION_ONEWAY`: nobody waits for an answer.
pub const FUNCTION_ONEWAY: u32 = 2;
/// `ZAZEN_FUNCTION_IDEMPOTENT`: running it twice is running it once.
pub const FUNCTION_IDEMPOTENT: u32 = 4;
/// `ZAZEN_FUNCTION_ERRNO`: the function's errno travels.
pub const FUNCTION_ERRNO: u32 = 8;

/// `struct zazen_segment`: a piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its address; NULL for none.
    pub pointer: *mut c_void,
    /// Its size.
    pub bytes: u64,
}
