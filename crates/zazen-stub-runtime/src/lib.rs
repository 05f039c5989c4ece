//! The client runtime of generated stubs: `zazen_stub.h` and `zazen_connect.h` over the call layer.
//!
//! A [`Link`] (C's `struct zazen_stub_connection`) reaches the plug-ins of one daemon: those in the daemon's process
//! over its own socket, isolated ones over the sockets of their processes. Each has lanes, one for each thread
//! that is in a call, which the far side knows as one client.
//!
//! Invariants: nothing of a parent's connections is used after a fork; a call that fails in the middle costs its
//! lane, so no answer is ever taken for another call's; no panic leaves this library.

mod buffers;
mod call;
pub mod ffi;
mod interrupt;
mod lanes;
mod link;
mod settings;

pub use link::Link;
pub use settings::{Address, Settings};
pub use zazen_plugin_abi::stub::{Segment, StubCall, StubService};
