//! The C structures and constants of `sdk/plugin/include` in Rust, for hosts, plug-ins and client
//! run-times.
//!
//! - [`plugin`]: `zazen_plugin.h`, what a plug-in exports and what its host gives it;
//! - [`stub`]: `zazen_stub.h` and `zazen_connect.h`, what a client run-time gets and gives;
//! - [`segment`]: `zazen_segment.h`, what both share; [`status`]: its transport statuses.
//!
//! Invariants: each structure is laid out as in its header (`tests/layout.rs` asks the C compiler);
//! fields are only ever added at the end, and `struct_size` says how many of them the other side
//! knows. Definitions only: no code that does anything, no dependency.

pub mod plugin;
pub mod segment;
pub mod status;
pub mod stub;
