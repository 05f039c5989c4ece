//! Bytes on the wire and on disk. Nothing else in the workspace encodes integers.
//!
//! Everything is little endian and versioned; fields are added at the end of a message only. A decoder meets
//! the world: it never panics, never allocates more than the input can justify, and says what is wrong.
//! `docs/formats/wire.md` is the page for people.

pub mod checksum;
pub mod codec;
pub mod frames;
mod frames_codec;
pub mod handshake;
pub mod header;
pub mod plugins;
pub mod record;
pub mod runset_codec;
pub mod shm;

pub use codec::Message;
