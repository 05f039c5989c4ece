//! The environment by which `zazen run` configures the preload library in a program.

use std::ffi::CStr;

/// What is forwarded: `LOCAL[=FAR]:LOCAL[=FAR]…` (see [`crate::paths::prefixes`]).
pub const FORWARD: &CStr = c"ZAZEN_FORWARD";
/// The path of the daemon's socket.
pub const SOCKET: &CStr = c"ZAZEN_FORWARD_SOCKET";
/// Options, one letter each: [`DIRECT`], [`SOCKETS`], [`ABORT_ON_ESCAPE`].
pub const OPTIONS: &CStr = c"ZAZEN_FORWARD_OPTIONS";
/// The number of one more user whose daemons are trusted, besides root and the program's own user.
pub const DAEMON_UID: &CStr = c"ZAZEN_DAEMON_UID";
/// For tests: a file to which the detector of escapes appends a line.
pub const ESCAPES: &CStr = c"ZAZEN_FORWARD_ESCAPES";
/// Open forwarded files that a program hands to the next one across exec. The preload library
/// writes and reads it.
pub const HANDED: &CStr = c"ZAZEN_FORWARD_FDS";
/// The program `zazen`, where it can supervise programs that make their own system calls: with a
/// daemon on this machine.
pub const RUN: &CStr = c"ZAZEN_FORWARD_RUN";
/// Which folders the prefixes stand for, where the daemon is on this machine (see [`crate::near`]).
pub const NEAR: &CStr = c"ZAZEN_FORWARD_NEAR";
/// Set for a program that is supervised: no library is preloaded into what it starts.
pub const SUPERVISED: &CStr = c"ZAZEN_FORWARD_SUPERVISED";

/// Opening a forwarded file gives the kernel's own descriptor.
pub const DIRECT: u8 = b'd';
/// Internet sockets are forwarded, too.
pub const SOCKETS: u8 = b's';
/// For tests: the program aborts when something reaches a forwarded descriptor past the library.
pub const ABORT_ON_ESCAPE: u8 = b'e';

/// The longest value of [`FORWARD`], in bytes without its NUL.
pub const FORWARD_BYTES_MAX: usize = crate::paths::PATH_MAX - 1;
