//! Finds this process's node on a testbed, where several nodes share one machine.
//!
//! `$ZAZEN_SOCKET` wins. Else `$ZAZEN_TESTBED` names the testbed's directory, and the launcher's
//! rank variable (`PMI_RANK`, `OMPI_COMM_WORLD_RANK`, `PMIX_RANK`, `SLURM_PROCID`), modulo the
//! number of nodes, picks the node.
//!
//! `testbed.json` describes the testbed.

use serde::Deserialize;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
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

/// The longest description; enough for thousands of nodes.
const BYTES_MAX: u64 = 64 << 20;

/// Launchers' rank variables. Slurm's is last, because a batch script's own step has it too.
const RANK_VARIABLES: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"];

/// The socket of this process's testbed node, if it runs on a testbed.
pub fn testbed_socket() -> Option<PathBuf> {
    let rank = launcher_rank().unwrap_or(0);
    socket_of_rank(&testbed_folder()?, rank)
}

/// The backing store of this process's testbed, if it runs on a testbed.
pub fn testbed_backing() -> Option<String> {
    read(&testbed_folder()?)?.backing
}

fn testbed_folder() -> Option<PathBuf> {
    std::env::var_os("ZAZEN_TESTBED").filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn read(folder: &Path) -> Option<Testbed> {
    let path = folder.join("testbed.json");
    let read = read_own(&path);
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

/// The description's text. It names a backing store, which is trusted. So only users whose daemons
/// are trusted may have written it.
fn read_own(path: &Path) -> std::result::Result<String, String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let mut file = opened.map_err(|error| error.to_string())?;
    zazen_call::check_file(&file, "it").map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = file.by_ref().take(BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

fn socket_of_rank(folder: &Path, rank: usize) -> Option<PathBuf> {
    let mut nodes = read(folder)?.nodes;
    if nodes.is_empty() {
        return None;
    }
    let index = rank % nodes.len();
    nodes.swap_remove(index).socket
}

/// This process's rank as its launcher says; `None` outside a launcher.
pub fn launcher_rank() -> Option<usize> {
    rank_from(|name| std::env::var(name).ok())
}

fn rank_from(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    RANK_VARIABLES.iter().find_map(|name| variable(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], rank: Option<usize>) {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        assert_eq!(rank_from(variable), rank, "{variables:?}");
    }

    #[test]
    fn launchers_are_told_apart() {
        check(&[], None);
        check(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")], Some(3));
        check(&[("OMPI_COMM_WORLD_RANK", "1")], Some(1));
        check(&[("PMIX_RANK", "1")], Some(1));
        check(&[("SLURM_PROCID", "0"), ("PMI_RANK", "2")], Some(2));
        check(&[("PMI_RANK", "x")], None);
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
