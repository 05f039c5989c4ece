//! The environment variables in which launchers of MPI programs tell a process its rank: one list.
//!
//! This crate reads no environment: each function asks its caller for a variable's value.

/// What one launcher sets.
struct Launcher {
    /// This process's rank.
    rank: &'static str,
    /// How many ranks there are; `None`: this launcher does not say.
    ranks: Option<&'static str>,
}

/// The innermost launcher first: under `srun` or in a batch job, Slurm's variables are set as well.
///
/// Slurm's number of ranks is that of a job step: a batch script that runs one plain process has
/// `SLURM_NTASKS`, but is no launch of so many ranks.
const LAUNCHERS: [Launcher; 5] = [
    Launcher { rank: "OMPI_COMM_WORLD_RANK", ranks: Some("OMPI_COMM_WORLD_SIZE") },
    Launcher { rank: "PMI_RANK", ranks: Some("PMI_SIZE") },
    Launcher { rank: "PMIX_RANK", ranks: None },
    Launcher { rank: "MV2_COMM_WORLD_RANK", ranks: Some("MV2_COMM_WORLD_SIZE") },
    Launcher { rank: "SLURM_PROCID", ranks: Some("SLURM_STEP_NUM_TASKS") },
];

/// The variables of ranks, for messages.
pub const RANK_VARIABLES: &str =
    "OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, MV2_COMM_WORLD_RANK, SLURM_PROCID";

/// This process's rank; `None` outside a launcher.
pub fn rank(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    LAUNCHERS.iter().find_map(|launcher| number(&variable, launcher.rank))
}

/// How many ranks the launcher says it started, and the variable that says so; `None` outside a
/// launcher.
pub fn ranks(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, usize)> {
    LAUNCHERS.iter().find_map(|launcher| {
        let name = launcher.ranks?;
        Some((name, number(&variable, name)?))
    })
}

/// This process's rank and how many there are; `None` where no launcher tells both.
pub fn rank_of_ranks(variable: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    LAUNCHERS
        .iter()
        .find_map(|launcher| Some((number(&variable, launcher.rank)?, number(&variable, launcher.ranks?)?)))
}

/// Whether a launcher started this process. A batch script is not started by one, although Slurm
/// tells it a rank.
pub fn is_launched(variable: impl Fn(&str) -> Option<String>) -> bool {
    LAUNCHERS.iter().any(|launcher| {
        number(&variable, launcher.rank).is_some()
            && launcher.ranks.is_none_or(|ranks| number(&variable, ranks).is_some())
    })
}

fn number(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<usize> {
    variable(name)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn launchers_are_told_apart() {
        let check = |pairs: &[(&str, &str)], expected: Option<usize>| {
            assert_eq!(rank(environment(pairs)), expected, "{pairs:?}");
        };
        check(&[], None);
        check(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")], Some(3));
        check(&[("OMPI_COMM_WORLD_RANK", "1")], Some(1));
        check(&[("PMIX_RANK", "1")], Some(1));
        check(&[("SLURM_PROCID", "0"), ("PMI_RANK", "2")], Some(2));
        check(&[("PMI_RANK", "x")], None);
        check(&[("PMI_RANK", "-1")], None);
    }

    #[test]
    fn the_innermost_launcher_counts() {
        let check = |pairs: &[(&str, &str)], expected: Option<usize>| {
            assert_eq!(ranks(environment(pairs)).map(|(_, ranks)| ranks), expected, "{pairs:?}");
        };
        check(&[("PMI_SIZE", "4")], Some(4));
        check(&[("OMPI_COMM_WORLD_SIZE", "2"), ("PMI_SIZE", "1")], Some(2));
        check(&[("SLURM_STEP_NUM_TASKS", "64")], Some(64));
        check(&[("SLURM_NTASKS", "64")], None);
        // hydra under srun: one proxy task per node, but the inner launcher's word counts.
        check(&[("PMI_SIZE", "1"), ("SLURM_STEP_NUM_TASKS", "2")], Some(1));
    }

    #[test]
    fn a_rank_and_their_number_come_from_one_launcher() {
        let check = |pairs: &[(&str, &str)], expected| {
            assert_eq!(rank_of_ranks(environment(pairs)), expected, "{pairs:?}");
        };
        check(&[("PMI_RANK", "3"), ("PMI_SIZE", "8")], Some((3, 8)));
        check(&[("PMI_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")], None);
        check(&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")], Some((1, 2)));
    }

    #[test]
    fn a_batch_script_is_no_launch() {
        let check = |pairs: &[(&str, &str)], expected: bool| {
            assert_eq!(is_launched(environment(pairs)), expected, "{pairs:?}");
        };
        check(&[], false);
        check(&[("PMIX_RANK", "0")], true);
        check(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")], true);
        check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "64")], false);
        check(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "64")], true);
    }

    #[test]
    fn messages_name_every_variable() {
        let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.rank).collect();
        assert_eq!(names.join(", "), RANK_VARIABLES);
    }
}
