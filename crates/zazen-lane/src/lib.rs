//! One lane of shared memory, as both of its ends use it. `docs/formats/shm.md` describes the
//! bytes.
//!
//! Two programs drive this crate: `zazen-call` (the daemon's end, and clients that link the call
//! layer) and the preload library (a client inside an unmodified program). The preload library
//! stands in front of libc, so this crate
//!
//! - never allocates, and takes no lock: callers bring the memory that answers go to;
//! - calls no function of libc, and no kernel: callers bring a [`System`], chosen at compile time;
//! - never panics on what the other end writes: a lie is [`Broken`], and costs the lane.
//!
//! - [`View`]: the mapped region, and the only code that touches its bytes;
//! - [`ring`]: the counters of one ring, pure;
//! - [`patience`]: whether to spin, to yield or to sleep, pure;
//! - [`Awake`]: the same for an end of a connection on a socket alone;
//! - [`Port`]: one end of a lane: posts and takes records, sleeps and wakes;
//! - [`Client`]: the client's calls over a port, as a state machine;
//! - [`Geometry`]: where lanes and pool lie in a region, and whether a mapping is safe to use.

mod awake;
mod client;
mod geometry;
mod granted;
mod parts;
pub mod patience;
mod port;
pub mod ring;
mod system;
mod tables;
mod view;

pub use awake::Awake;
pub use client::{Client, Progress, Receiver, Reply, Request};
pub use geometry::{Geometry, check_mapping};
pub use parts::{Source, Target};
pub use port::{End, Port, Rouse, Taken};
pub use system::System;
pub use view::{PoolView, View};

/// What the other end wrote can't be what an honest end would write, in these words. The lane is of
/// no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);
