//! The client runtime of generated stubs: `zazen_stub.h` and `zazen_connect.h` over the call layer.
//!
//! A [`Link`] (C's `struct zazen_stub_connection`) reaches the plug-ins of one daemon. Plug-ins in
//! the daemon's process are reached over the daemon's socket, isolated plug-ins over the sockets of
//! their processes. Each thread that is in a call has a lane of its own. The far side knows all
//! lanes of a plug-in as one client.
//!
//! Invariants: a child uses none of its parent's connections after a fork. If a call fails in the
//! middle, its lane is closed, so that no answer is taken for another call's. No panic leaves this
//! library.

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
