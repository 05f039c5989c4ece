//! MPI bound at run time, as a carrier of the assignment protocol.
//!
//! No `mpi.h` is read at build time. The MPI that the process already runs on (through mpi4py, or because the
//! program was linked with it) is found by its symbols, its ABI is told from what it exports and what its file
//! is called, and three tables give the constants. One build thus serves Open MPI 4 and 5, MPICH, Intel MPI and
//! every library of the standard ABI.
//!
//! Assumes 64-bit little-endian Linux (x86-64, AArch64), where an `int` handle may be passed zero-extended in a
//! pointer-sized argument.
//!
//! Invariants: the user's communicator is duplicated and its error handler left alone; no MPI call is made before
//! `MPI_Init` or after `MPI_Finalize`; no count passed to MPI exceeds 2³¹ − 1.

mod abi;
mod carrier;
mod exchange;
mod launcher;
mod library;
mod start;

pub use abi::Abi;
pub use carrier::MpiCollectives;
pub use exchange::{two_bit_by_exchange, xor_by_exchange};
pub use launcher::{check_launcher, launched_ranks};
pub use library::{check_world, loaded_library};
pub use start::Started;
