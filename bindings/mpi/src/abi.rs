//! The three ABIs and their constants.
//!
//! Values: the standard ABI's `mpi_abi.h` (MPI 5.0 §20), the MPICH ABI initiative's `mpi.h`, and
//! Open MPI's exported objects (equal in 4.x and 5.x).

use std::ffi::c_int;

/// An MPI handle: a pointer, or an `int` zero-extended.
pub(crate) type Handle = usize;

/// Which application binary interface an MPI library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// MPI 5.0's standard ABI (`libmpi_abi`): handles are pointers with fixed values.
    Standard,
    /// MPICH, Intel MPI, MVAPICH, Cray MPI: handles are `int`.
    Mpich,
    /// Open MPI 4 and 5: handles are addresses of exported objects.
    OpenMpi,
}

/// The constants that a C program gets from `mpi.h`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) comm_world: Handle,
    pub(crate) byte: Handle,
    pub(crate) uint64: Handle,
    pub(crate) sum: Handle,
    pub(crate) bor: Handle,
    pub(crate) bxor: Handle,
    pub(crate) errors_return: Handle,
    pub(crate) in_place: usize,
    pub(crate) status_ignore: usize,
    pub(crate) proc_null: c_int,
    pub(crate) any_source: c_int,
    /// Which `int` of an MPI_Status is its MPI_SOURCE.
    pub(crate) status_source: usize,
    /// Handles are 32-bit integers.
    pub(crate) int_handles: bool,
}

pub(crate) const STANDARD: Constants = Constants {
    comm_world: 0x101,
    byte: 0x247,
    uint64: 0x259,
    sum: 0x21,
    bor: 0x29,
    bxor: 0x2a,
    errors_return: 0x143,
    in_place: 1,
    status_ignore: 0,
    proc_null: -3,
    any_source: -1,
    status_source: 0,
    int_handles: false,
};

pub(crate) const MPICH: Constants = Constants {
    comm_world: 0x4400_0000,
    byte: 0x4c00_010d,
    uint64: 0x4c00_083e,
    sum: 0x5800_0003,
    bor: 0x5800_0008,
    bxor: 0x5800_000a,
    errors_return: 0x5400_0001,
    in_place: usize::MAX,
    status_ignore: 1,
    proc_null: -1,
    any_source: -2,
    status_source: 2,
    int_handles: true,
};

/// Open MPI's constants; `address` looks an exported object up.
pub(crate) fn open_mpi(address: impl Fn(&str) -> Option<Handle>) -> Option<Constants> {
    Some(Constants {
        comm_world: address("ompi_mpi_comm_world")?,
        byte: address("ompi_mpi_byte")?,
        uint64: address("ompi_mpi_uint64_t")?,
        sum: address("ompi_mpi_op_sum")?,
        bor: address("ompi_mpi_op_bor")?,
        bxor: address("ompi_mpi_op_bxor")?,
        errors_return: address("ompi_mpi_errors_return")?,
        in_place: 1,
        status_ignore: 0,
        proc_null: -2,
        any_source: -1,
        status_source: 0,
        int_handles: false,
    })
}

impl Constants {
    /// The handle that MPI wrote into `slot`, which was 0 before.
    pub(crate) fn handle_of(&self, slot: u64) -> Handle {
        let bytes = slot.to_ne_bytes();
        if self.int_handles {
            u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as Handle
        } else {
            slot as Handle
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int_handles_are_zero_extended() {
        let mut slot = 0u64.to_ne_bytes();
        slot[..4].copy_from_slice(&0x8400_0002u32.to_ne_bytes());
        assert_eq!(MPICH.handle_of(u64::from_ne_bytes(slot)), 0x8400_0002);
        // Bytes beyond the int must not leak into the handle.
        slot[4..].fill(0xff);
        assert_eq!(MPICH.handle_of(u64::from_ne_bytes(slot)), 0x8400_0002);
        assert_eq!(STANDARD.handle_of(0x7f00_dead_beef_0000), 0x7f00_dead_beef_0000);
    }

    #[test]
    fn open_mpi_needs_every_object() {
        assert!(open_mpi(|_| Some(8)).is_some());
        for missing in ["ompi_mpi_op_bor", "ompi_mpi_op_bxor"] {
            assert!(open_mpi(|name| (name != missing).then_some(8)).is_none());
        }
    }
}
