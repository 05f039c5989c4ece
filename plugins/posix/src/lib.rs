//! The posix plug-in: what a forwarded program asks of files and sockets, done where the daemon is.
//!
//! A session stands for one process: its open file descriptions (each one kernel descriptor here, shared by the
//! sessions that inherited it, so that offsets, `O_APPEND` and `flock` are the kernel's own), its record locks
//! and its calls that block. `posix.h` is the interface, docs/forwarding.md the promises.
//!
//! Invariants: the process that this runs in is the caller, for good, and serves nobody else (its host's promise), so the
//! kernel decides what a call may; a path leads nowhere but beneath the exports (`reach.rs`); no lock of ours is held over a call that can block; when a session
//! ends, all that it held is gone; no panic leaves a function.

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

pub use locks::{LockTable, Range, Segment};
