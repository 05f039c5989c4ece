//! The stream plug-in: buffers the samples of telescopes, deals them out to ranks, and sums the
//! ranks' results. This is the radio telescope of the ZOID paper (PPoPP'08, §4). `stream.h` is the
//! interface; docs/streams.md says how to use it.
//!
//! [`ring`], [`integrate`], [`packet`] and [`bits`] make all decisions and are pure: no bytes of
//! samples, sockets, clocks or threads. Around them are receivers, waiting ranks, a writer of sums,
//! and the functions for the host.
//!
//! Invariants: each packet is delivered, marked as missing, or counted as late, duplicate or
//! dropped, and the counters add up. No lock is held during a copy, a sum, a wait or a callback.
//! Nothing that a station or a client sends is trusted.

pub mod bits;
mod config;
mod entry;
pub mod integrate;
#[cfg(test)]
mod layout_tests;
mod lock;
mod memory;
pub mod packet;
mod receive;
mod receivers;
pub mod ring;
mod store;
mod stream;
mod streams;
mod tally;

zazen_plugin_sdk::export_entry_table!();
