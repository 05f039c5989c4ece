//! On a testbed several nodes share one machine: which node's daemon is this process's?
//!
//! `$ZAZEN_SOCKET` wins. Else `$ZAZEN_TESTBED` names the testbed's directory, and the launcher's rank variable (`PMI_RANK`,
//! `OMPI_COMM_WORLD_RANK`, `PMIX_RANK`, `SLURM_PROCID`), modulo the number of nodes, picks the node.
//!
//! What a testbed is made of stands in its `testbed.json`.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The testbed's own description, as far as a client needs it.
#[derive(Deserialize)]
struct Testbed {
    nodes: Vec<TestbedNode>,
    backing: Option<String>,
}

#[derive(Deserialize)]
struct TestbedNode {
    socket: Option<PathBuf>,
}

/// Launchers' variables: (rank, size). Slurm's are asked last: a batch script's own step has them too.
const LAUNCHERS: [(&str, &[&str]); 5] = [
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"]),
    ("PMI_RANK", &["PMI_SIZE"]),
    ("PMIX_RANK", &["PMIX_SIZE", "OMPI_COMM_WORLD_SIZE"]),
    ("MV2_COMM_WORLD_RANK", &["MV2_COMM_WORLD_SIZE"]),
    ("SLURM_PROCID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
];

/// The socket of this process's testbed node, if it runs on a testbed.
pub fn testbed_socket() -> Option<PathBuf> {
    let rank = rank_from(|name| std::env::var(name).ok()).unwrap_or(0);
    socket_of_rank(&testbed_folder()?, rank)
}

/// How this process's testbed spells its backing store, if it runs on a testbed.
pub fn testbed_backing() -> Option<String> {
    read(&testbed_folder()?)?.backing
}

fn testbed_folder() -> Option<PathBuf> {
    std::env::var_os("ZAZEN_TESTBED").filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn read(folder: &Path) -> Option<Testbed> {
    let path = folder.join("testbed.json");
    let read = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    match read.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string())) {
        Ok(testbed) => Some(testbed),
        Err(why) => {
            let path = path.display();
            let text = format!(
                "$ZAZEN_TESTBED names no testbed ({path}: {why}); unset it, or run `zazen testbed up`"
            );
            crate::warn::warn_once("testbed", &text);
            None
        }
    }
}

fn socket_of_rank(folder: &Path, rank: usize) -> Option<PathBuf> {
    let mut nodes = read(folder)?.nodes;
    if nodes.is_empty() {
        return None;
    }
    let index = rank % nodes.len();
    nodes.swap_remove(index).socket
}

/// What the launcher says: (rank, size), from its environment variables. `None` outside a launcher.
pub fn launcher_rank_and_size() -> Option<(usize, usize)> {
    rank_and_size_from(|name| std::env::var(name).ok())
}

fn rank_from(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    LAUNCHERS.iter().find_map(|(rank, _)| variable(rank)?.trim().parse().ok())
}

fn rank_and_size_from(variable: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|(rank, sizes)| {
        let size = sizes.iter().find_map(|size| number(size))?;
        number(rank).filter(|rank| *rank < size).map(|rank| (rank, size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], rank: Option<usize>, both: Option<(usize, usize)>) {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        assert_eq!(rank_from(variable), rank, "{variables:?}");
        assert_eq!(rank_and_size_from(variable), both, "{variables:?}");
    }

    #[test]
    fn launchers_are_told_apart() {
        check(&[], None, None);
        check(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")], Some(3), Some((3, 4)));
        check(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], Some(1), Some((1, 2)));
        check(&[("PMIX_RANK", "1")], Some(1), None);
        check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")], Some(0), Some((0, 8)));
        check(&[("SLURM_PROCID", "0"), ("PMI_RANK", "2"), ("PMI_SIZE", "4")], Some(2), Some((2, 4)));
        check(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")], None, None);
        check(&[("PMI_RANK", "9"), ("PMI_SIZE", "4")], Some(9), None);
    }

    #[test]
    fn ranks_are_dealt_over_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(socket_of_rank(folder.path(), 0), None, "a folder without a testbed");
        let text = r#"{"version":1,"nodes":[{"name":"n0","socket":"/a"},{"name":"n1","socket":"/b","x":1}]}"#;
        std::fs::write(folder.path().join("testbed.json"), text).unwrap();
        for (rank, socket) in [(0, "/a"), (1, "/b"), (5, "/b")] {
            assert_eq!(socket_of_rank(folder.path(), rank), Some(socket.into()), "rank {rank}");
        }
    }
}
