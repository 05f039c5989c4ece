//! Whole clusters in one thread: many daemons, writers, readers and a backing store around the
//! shipped cores, with faults that follow from a seed.
//!
//! What ships and runs here: `zazen-store` over a simulated disk, `zazen-push`'s writer,
//! `zazen-assign`'s machines, the machines of `zazen-frames` (pushes, the order of scans, looks,
//! misses, flights, copies, shares, outages), and all messages as bytes. What stands in for drivers
//! (threads, sockets, descriptors) is this crate's own.
//!
//! One scheduler gives events a total order, by time and then by the order of scheduling; nothing
//! else decides. A seed therefore gives one run: [`Outcome::trace`] is a digest of every event,
//! every byte that arrives and every operation of every disk.
//!
//! Faults: those of [`zazen_env::sim_disk`], of the network (module `net`), kills, power failures
//! and stops of daemons, outages of the backing store, frames that are written again, deleted
//! files, rights that are taken away, bad bits, clocks that are off, drift and jump.
//!
//! Checks, in the order in which they matter:
//! 1. No wrong bytes: what a reader takes for a frame is a version of it, and one that was there
//!    since it asked, unless the backing store was away.
//! 2. Each frame of a job's target is read by exactly one rank.
//! 3. What a node acknowledged it has: after a kill, after a stop in good order with or without
//!    power, and at the end. Power failures without a stop, evictions, errors of its disk and
//!    changed sources excuse it.
//! 4. No cache exceeds its budget, in its own account and on its disk.
//! 5. What is being scanned is not evicted for want of room.
//! 6. A copy from the backing store is what its source was at one moment.
//! 7. A user gets no cached copy of a file that it may not read, and nobody gets one of a file that
//!    is gone, unless the backing store was away.
//! 8. When the faults end, all that was begun ends, and every daemon runs.
//!
//! Module `namespace` simulates namespaces: its faults and checks are listed there.
//!
//! Not simulated: threads and locks, shared memory, jobs that die.

mod backing;
mod batch;
mod calls;
mod checks;
mod collective;
mod content;
mod daemon;
mod disk;
mod eviction;
mod fetch;
mod intake;
mod job;
mod mutant;
mod namespace;
mod net;
mod node;
mod profile;
mod rank;
mod run;
mod scanning;
mod scheduler;
mod trouble;
mod world;
mod writer;
mod writing;

pub use collective::assign;
pub use mutant::Mutant;
pub use namespace::{NamespaceOutcome, begin_node, run_namespace, run_namespace_over, tell_namespace};
pub use run::{Outcome, Stats, run, tell};
pub use zazen_namespace::Planted;
pub use zazen_sim::Fidelity;
