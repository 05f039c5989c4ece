//! What the ends of forwarding share: the preload library and the seccomp supervisor, which forward
//! a program's files, and the posix plug-in, which opens them.
//!
//! - [`elf`]: which programs a preload library cannot forward;
//! - [`in_order`]: what a program asks for next that goes through names in their order;
//! - [`near`]: how `zazen run` says which folders prefixes stand for;
//! - [`paths`]: which paths are forwarded, and what they are called at the far side;
//! - [`structures`]: the structures and constants of `plugins/posix/posix.h`;
//! - [`variables`]: the environment variables by which `zazen run` configures the preload library.
//!
//! Invariants: nothing here allocates, takes a lock, or makes a system call, since the preload
//! library uses it in hooks of libc; each structure is laid out as in `posix.h`
//! (`tests/joined/layout.rs` asks the C compiler).

pub mod elf;
pub mod in_order;
pub mod near;
pub mod paths;
pub mod structures;
pub mod variables;
