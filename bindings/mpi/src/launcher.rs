//! Checks that the ranks found each other. A rank whose MPI does not match its launcher starts as a
//! world of one.
//!
//! This happens without an error if the libraries do not match (an Open MPI process under MPICH's
//! launcher, a missing PMI plug-in under Slurm). Every rank would then read everything.

use zazen_core::launcher::{self, ranks};
use zazen_core::{Error, ErrorKind, Result};

/// How many ranks the launcher says it started; `None` outside a launcher.
pub fn launched_ranks() -> Option<usize> {
    ranks(|name| std::env::var(name).ok()).map(|(_, launched)| launched)
}

/// Whether a launcher started this process.
pub fn is_launched() -> bool {
    launcher::is_launched(|name| std::env::var(name).ok())
}

/// Fails with `Mpi` if MPI_COMM_WORLD has one rank although the launcher's environment says that
/// there are several.
pub fn check_launcher(world_size: usize) -> Result<()> {
    check(world_size, |name| std::env::var(name).ok())
}

fn check(world_size: usize, variable: impl Fn(&str) -> Option<String>) -> Result<()> {
    match ranks(variable) {
        Some((name, launched)) if world_size == 1 && launched > 1 => Err(Error::new(
            ErrorKind::Mpi,
            format!(
                "{name} says that the launcher started {launched} ranks, but MPI_COMM_WORLD has 1: the ranks \
                 came up as singletons and each would read every frame. The launcher and the MPI library do \
                 not belong together: use the mpiexec that came with the library (with the mpich wheel: \
                 `python -m pip install mpich` and the mpiexec beside that python), or choose mpi4py's \
                 library with MPI4PY_MPIABI"
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singletons_are_told_from_worlds_of_one() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_string())
        };
        for (size, pairs, ok) in [
            (1, &[][..], true),
            (1, &[("PMI_SIZE", "1")][..], true),
            (4, &[("PMI_SIZE", "4")][..], true),
            (1, &[("PMI_SIZE", "4")][..], false),
            (1, &[("OMPI_COMM_WORLD_SIZE", "2")][..], false),
            (1, &[("SLURM_STEP_NUM_TASKS", "64")][..], false),
            (1, &[("SLURM_NTASKS", "64")][..], true),
            // hydra under srun: one proxy task per node, but the inner launcher's word counts.
            (1, &[("PMI_SIZE", "1"), ("SLURM_STEP_NUM_TASKS", "2")][..], true),
            (1, &[("PMI_SIZE", "nonsense")][..], true),
        ] {
            let result = check(size, env(pairs));
            assert_eq!(result.is_ok(), ok, "{size} {pairs:?}");
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::Mpi);
            }
        }
    }
}
