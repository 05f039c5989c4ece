//! Matching: which rank reads which file, where files have replicas on several nodes.
//!
//! *Pure.* A [`Problem`] says on which node each rank runs, how long each file is, and which nodes
//! hold it. [`match_files`] gives every file to exactly one rank, and says how far the result is
//! from the bound. [`sticky`] finds one map for all time steps of a series.
//!
//! A file is *local* to a rank if the rank's node holds the file; otherwise reading it is *remote*.
//! With `F` files and `R` ranks, each strategy but [`Strategy::Bytes`] gives a rank at most
//! ⌈F / R⌉ files.
//!
//! Source of the scarcest-first strategy: VisIO (IPDPS'11), Algorithm 2.

mod bytes;
mod flow;
mod greedy;
mod matching;
mod problem;
pub mod scenario;
mod sticky;
mod strategy;

pub use problem::{FILES_MAX, FileAt, HOLDERS_MAX, Problem, RANKS_MAX};
pub use sticky::{Sticky, sticky};
pub use strategy::{Matched, Strategy, match_files};
