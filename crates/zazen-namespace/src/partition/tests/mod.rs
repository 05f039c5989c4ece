//! Tests of a partition, alone and with others.

mod again;
mod chunks;
mod interleave;
mod locks;
mod model;
mod mutants;
mod semantics;
mod simulate;
mod world;
