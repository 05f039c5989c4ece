//! Bytes on the wire: codec, call header, handshake, run sets, checksums, and the numbers of the
//! services.
//!
//! Everything is little endian and versioned; fields are added at the end of a message only. A
//! decoder meets the world: it never panics, never allocates more than the input can justify, and
//! says what is wrong. `docs/formats/wire.md` is the page for people.

pub mod checksum;
pub mod codec;
pub mod contract;
pub mod control;
pub mod field;
pub mod handshake;
pub mod header;
pub mod pack;
pub mod plugins;
pub mod runset_codec;
pub mod service;
pub mod shm;
mod trajectory;

pub use codec::Message;
