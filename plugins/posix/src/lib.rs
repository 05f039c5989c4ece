//! The posix plug-in: what a forwarded program asks of files and sockets, done where the daemon is.
//!
//! A session stands for one process. It has the process's open file descriptions, its record locks
//! and its calls that block. Each description is one kernel descriptor here, which the sessions
//! that inherited it share, so offsets, `O_APPEND` and `flock` are the kernel's own. `posix.h` is
//! the interface, and docs/forwarding.md says what is promised.
//!
//! Invariants:
//! - The process that this runs in has the caller's identity for good and serves nobody else. Its
//!   host sees to that. So the kernel decides what a call may do.
//! - A path leads only beneath the exports (`reach.rs`).
//! - No lock of this crate is held during a call that can block.
//! - When a session ends, all that it held is released.
//! - No panic leaves a function.

mod ahead;
mod base;
mod blocking;
mod entry;
mod files;
mod interrupt;
mod lock_calls;
mod locks;
mod metadata;
mod names;
mod reach;
mod record_locks;
mod session;
mod session_calls;
mod sessions;
mod sockets;
mod umask;

zazen_plugin_sdk::export_entry_table!();

pub use locks::{HeldLock, LockTable, Range};
