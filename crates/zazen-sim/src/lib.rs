//! FusionSim: simulates what a cluster of up to millions of nodes does with a workload, as in §3 of
//! the FusionFS paper (TPDS'16), but with stragglers, contention and failures.
//!
//! *Pure*: no files, clocks, threads or randomness. The same job, cluster and seed give the same
//! result, byte for byte, on every machine. A run uses one thread; sweeps run side by side.
//!
//! [`job::Job`] says what to simulate, [`world::run`] simulates it, and [`outcome::Outcome`] is
//! what was found. docs/simulator.md describes the model and its limits.

pub mod assignment;
pub mod cache;
pub mod calibrate;
pub mod cluster;
pub mod contention;
pub mod daemon;
pub mod disk;
pub mod engine;
pub mod estimate;
pub mod fetching;
mod fit;
pub mod ior;
pub mod job;
pub mod keepers;
pub mod math;
pub mod maxmin;
pub mod measure;
pub mod namespace;
pub mod network;
pub mod outcome;
pub mod placement;
mod prefetch;
pub mod program;
pub mod push;
pub mod queue;
pub mod random;
pub mod record;
pub mod replay;
pub mod report;
pub mod shared_store;
mod slots;
pub mod speeds;
pub mod spread;
pub mod time;
pub mod topology;
pub mod trace;
pub mod validate;
pub mod view;
pub mod work;
pub mod workloads;
pub mod world;

pub use cluster::Cluster;
pub use engine::Progress;
pub use job::Job;
pub use network::Fidelity;
pub use outcome::Outcome;
pub use world::{memory_bytes, run};
