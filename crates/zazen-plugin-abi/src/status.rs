//! `enum zazen_call_status`: the transport status of a call. What the function itself reports is
//! separate.

/// The function ran and its answer came.
pub const OK: i32 = 0;
/// A message breaks the encoding.
pub const MALFORMED: i32 = 1;
/// Beyond a limit.
pub const TOO_LARGE: i32 = 2;
/// No memory at the far end.
pub const NO_MEMORY: i32 = 3;
// 4, NULL for an argument that must not be NULL, is found by the client's own stub.
/// The caller has no such handle.
pub const BAD_HANDLE: i32 = 5;
/// The plug-in broke its header's promise.
pub const BAD_REPLY: i32 = 6;
/// The plug-in has no such function.
pub const NO_FUNCTION: i32 = 7;
/// No such plug-in there.
pub const NO_SERVICE: i32 = 8;
/// The two ends were made from different headers.
pub const SCHEMA: i32 = 9;
/// The other end went away.
pub const DISCONNECTED: i32 = 10;
/// No answer in time.
pub const TIMED_OUT: i32 = 11;
/// This transport can't carry the call.
pub const UNSUPPORTED: i32 = 12;
/// The plug-in's process ended during the call.
pub const CRASHED: i32 = 13;
