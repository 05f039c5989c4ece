//! The shared-memory carrier: a region per caller with a pair of rings per lane, beside the unix
//! socket. The socket vouches for the caller, carries descriptors and bells, and tells of either
//! end's death. `docs/formats/shm.md` is its page.
//!
//! - `zazen_lane`: both ends' rings, waits, and the client's calls;
//! - `region`: makes and maps shared memory, waits and wakes with the kernel;
//! - `lane`, `pool`: the client's end, and its buffers;
//! - `core`, `memory`: the daemon's end, and what it grants; `grants` decides who gets how much,
//!   pure;
//! - `cpus`, `fault`: who may spin; where tests kill a client.

pub(crate) mod core;
pub(crate) mod cpus;
pub(crate) mod fault;
mod grants;
pub(crate) mod lane;
pub(crate) mod memory;
pub(crate) mod pool;
pub(crate) mod region;
