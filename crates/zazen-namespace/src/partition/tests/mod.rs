//! Tests of a partition, alone and with others.

mod interleave;
mod model;
mod mutants;
mod semantics;
mod simulate;
mod world;
