//! Every decoder of bytes from outside, as a function of bytes that must not panic, with seed
//! inputs.
//!
//! `tests/fuzz.rs` runs them on any toolchain, a bounded number of times and from a seed, as part
//! of `make test`. `../../fuzz` gives the same functions to cargo-fuzz, which finds more and needs
//! a nightly toolchain.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a target that panics is what the fuzzers look for"
)]

pub mod mutate;
mod namespace;
mod seeds;
mod spans;
mod store;
mod targets;

/// A decoder under test.
pub struct Target {
    /// Its name, here and for cargo-fuzz.
    pub name: &'static str,
    /// Decodes the input; panics if it finds an error.
    pub run: fn(&[u8]),
    /// Inputs that reach deep into the decoder.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How often `make test` runs it: for about a second or two.
    pub runs: u32,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "header", run: targets::header, seeds: seeds::golden, runs: 100_000 },
    Target { name: "messages", run: targets::messages, seeds: seeds::golden, runs: 100_000 },
    Target { name: "handshake", run: targets::handshake, seeds: seeds::golden, runs: 50_000 },
    Target { name: "runset", run: targets::runset, seeds: seeds::golden, runs: 20_000 },
    Target { name: "pack", run: targets::pack, seeds: seeds::packed, runs: 5_000 },
    Target { name: "record", run: targets::record, seeds: seeds::golden, runs: 50_000 },
    Target { name: "shm", run: targets::shm, seeds: seeds::golden, runs: 50_000 },
    Target { name: "plugins", run: targets::plugins, seeds: seeds::golden, runs: 50_000 },
    Target { name: "stream", run: targets::stream, seeds: seeds::golden, runs: 10_000 },
    Target { name: "stubs", run: targets::stubs, seeds: seeds::headers, runs: 2_000 },
    Target { name: "manifest", run: targets::manifest, seeds: seeds::manifests, runs: 5_000 },
    Target { name: "config", run: targets::config, seeds: seeds::configs, runs: 500 },
    Target { name: "xtc", run: targets::xtc, seeds: seeds::xtc_frames, runs: 50_000 },
    Target { name: "trajectory", run: targets::trajectory, seeds: seeds::trajectories, runs: 10_000 },
    Target {
        name: "namespace_messages",
        run: namespace::messages,
        seeds: namespace::message_seeds,
        runs: 50_000,
    },
    Target {
        name: "namespace_records",
        run: namespace::records,
        seeds: namespace::record_seeds,
        runs: 20_000,
    },
    Target { name: "namespace_files", run: namespace::files, seeds: namespace::file_seeds, runs: 300 },
    Target { name: "spans", run: spans::spans, seeds: spans::seeds, runs: 20_000 },
    Target { name: "store", run: store::store, seeds: store::files, runs: 1_000 },
];

/// The target called `name`.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a target of this crate")
}
