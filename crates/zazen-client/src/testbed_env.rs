//! Finds this process's node on a testbed, where several nodes share one machine.
//!
//! `$ZAZEN_SOCKET` wins. Else `$ZAZEN_TESTBED` names the testbed's directory, and the rank that the
//! launcher tells ([`zazen_core::launcher`]), modulo the number of nodes, picks the node.
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

/// The socket of this process's testbed node, if it runs on a testbed.
fn testbed_socket() -> Option<PathBuf> {
    let rank = launcher_rank().unwrap_or(0);
    socket_of_rank(&testbed_folder()?, rank)
}

/// The socket of the daemon for a program that names none: `$ZAZEN_SOCKET`, that of this process's
/// testbed node, or this machine's.
pub fn find_socket_path() -> PathBuf {
    let is_told = std::env::var_os("ZAZEN_SOCKET").is_some_and(|socket| !socket.is_empty());
    let node = if is_told { None } else { testbed_socket() };
    node.unwrap_or_else(zazen_env::socket_path::find_socket_path)
}

/// The backing store of this process's testbed, if it runs on a testbed.
pub(crate) fn testbed_backing() -> Option<String> {
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

/// The description's text. It names a backing store, which is trusted. So nobody may have written
/// it but those whose daemons are believed.
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
    zazen_core::launcher::rank(|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
