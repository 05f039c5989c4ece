//! The stream plug-in: what telescopes send, buffered and dealt to compute ranks, and their results summed: the radio
//! telescope's case of ZOID (PPoPP'08, §4). `stream.h` is the interface, docs/streams.md how to use it.
//!
//! [`ring`], [`integrate`], [`packet`] and [`bits`] decide everything and touch nothing: no bytes, sockets, clocks or
//! threads. Around them are receivers, waiting ranks, a writer of sums, and the edge to the host.
//!
//! Invariants: each packet is delivered, flagged lost, or counted as late, duplicate or dropped, and the counters add
//! up; no lock is held over a copy, a sum, a wait or a callback; nothing a station or a client sends is believed.

pub mod bits;
mod config;
mod entry;
pub mod integrate;
mod memory;
pub mod packet;
mod receive;
pub mod ring;
mod store;
mod stream;
mod streams;

zazen_plugin_sdk::export_entry_table!();
