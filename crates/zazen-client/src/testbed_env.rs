//! On a testbed several nodes share one machine: which node's daemon is this process's?
//!
//! `$ZAZEN_SOCKET` wins. Else `$ZAZEN_TESTBED` names the testbed's directory, and the launcher's rank variable (`PMI_RANK`,
//! `OMPI_COMM_WORLD_RANK`, `PMIX_RANK`, `SLURM_PROCID`), modulo the number of nodes, picks the node.

use std::path::PathBuf;

/// The socket of this process's testbed node, if it runs on a testbed.
pub fn testbed_socket() -> Option<PathBuf> {
    todo!()
}

/// What the launcher says: (rank, size), from its environment variables. `None` outside a launcher.
pub fn launcher_rank_and_size() -> Option<(usize, usize)> {
    todo!()
}
