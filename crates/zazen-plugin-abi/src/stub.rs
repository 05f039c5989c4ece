//! `zazen_stub.h` and `zazen_connect.h`: what generated client stubs ask of a run-time.

pub use crate::segment::Segment;
use std::ffi::{c_char, c_int, c_void};

/// `struct zazen_stub_service`: what a generated client is a client of.
#[repr(C)]
#[derive(Debug)]
pub struct StubService {
    /// Bytes of this structure where the client was compiled.
    pub struct_size: u32,
    /// `ID=` of the header.
    pub id: u32,
    /// The header's name without `.h`.
    pub name: *const c_char,
    /// A hash of prototypes and annotations.
    pub schema_hash: u64,
    /// The same with the structs' sizes and alignments.
    pub layout_hash: u64,
    /// How many functions the header has.
    pub function_count: u32,
}

/// `struct zazen_stub_call`: one call. The stub fills it in; the run-time sets what the comments
/// say.
#[repr(C)]
#[derive(Debug)]
pub struct StubCall {
    /// Bytes of this structure where the client was compiled.
    pub struct_size: u32,
    /// The function's index within the service.
    pub function: u32,
    /// `FUNCTION_` constants.
    pub flags: u32,
    /// Pieces of the tail.
    pub tail_count: u32,
    /// The request's fixed part.
    pub fixed: *const c_void,
    /// Its size, a multiple of 8.
    pub fixed_bytes: u64,
    /// The request's tail; each piece is padded with zeros to a multiple of 8.
    pub tail: *const Segment,
    /// Fixed part and padded tail together.
    pub request_bytes: u64,
    /// Zerocopy inputs.
    pub inputs: *const Segment,
    /// Zerocopy outputs: capacities. The run-time sets `bytes` to what came.
    pub outputs: *mut Segment,
    /// How many inputs.
    pub in_count: u32,
    /// How many outputs.
    pub out_count: u32,
    /// Descriptors to pass; they stay the caller's.
    pub fds: *const c_int,
    /// How many.
    pub fd_count: u32,
    /// Set by the run-time: how many descriptors came.
    pub reply_fd_count: u32,
    /// The longest reply that the stub takes.
    pub reply_bytes_max: u64,
    /// Set by the run-time: the reply's message, 8-byte aligned.
    pub reply: *mut c_void,
    /// Set by the run-time: its size.
    pub reply_bytes: u64,
    /// Set by the run-time: descriptors that came; -1 where taken.
    pub reply_fds: *mut c_int,
    /// The run-time's own.
    pub runtime: *mut c_void,
}

/// `struct zazen_connect_options`: zero in a field means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Bytes of this structure where the client was compiled.
    pub struct_size: u32,
    /// `enum zazen_carrier`.
    pub carrier: u32,
    /// The MPI rank.
    pub rank: i32,
    /// How many ranks there are.
    pub ranks: i32,
    /// Patience for connecting, in milliseconds.
    pub connect_ms: u32,
    /// Patience for an answer, in milliseconds.
    pub call_ms: u32,
    /// The cluster key's file.
    pub key_file: *const c_char,
}
