//! MPI bound at run time, as collectives for the assignment protocol.
//!
//! No `mpi.h` is read at build time. This crate finds the MPI that the process already uses
//! (through mpi4py, or because the program was linked with it) by its symbols. The library's
//! exports and its file name show its ABI, and three tables give the constants. So one build serves
//! Open MPI 4 and 5, MPICH, Intel MPI and every library of the standard ABI.
//!
//! Assumes 64-bit little-endian Linux (x86-64, AArch64), where an `int` handle may be passed
//! zero-extended in a pointer-sized argument.
//!
//! Invariants: the user's communicator is duplicated and its error handler is not changed. No MPI
//! call is made before `MPI_Init` or after `MPI_Finalize`. No count passed to MPI exceeds 2³¹ − 1.

mod abi;
mod carrier;
mod exchange;
mod launcher;
mod library;
mod links;
mod sparse;
mod start;

pub use abi::Abi;
pub use carrier::MpiCollectives;
pub use exchange::{two_bit_by_exchange, xor_by_exchange};
pub use launcher::{check_launcher, is_launched, launched_ranks};
pub use library::{check_world, loaded_library};
pub use links::slow_by_exchange;
pub use start::Started;
