//! `zazen testbed down`: idempotent; touches only what the record names.

use crate::output;
use crate::testbed::state::{FILE_NAME, State, lock};
use crate::testbed::{Host, disk, net};
use std::path::Path;
use std::time::Duration;
use zazen_core::{ErrorKind, Result};

/// How long a daemon may drain before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(dir: &Path) -> Result<()> {
    let state = match State::load(dir) {
        Ok(state) => state,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            output::line(format!("testbed {}: there is none", dir.display()));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let held = lock(dir)?;
    take_down(&state);
    drop(held);
    // The folder goes too where nothing of the user's is left in it.
    let _ = std::fs::remove_dir(dir);
    output::line(format!("testbed {}: down", dir.display()));
    if state.backing_root.starts_with(dir) && state.backing_root.exists() {
        output::line(format!("kept the file server's data in {}", state.backing_root.display()));
    }
    Ok(())
}

/// Stops and removes everything that `state` records except the file server's data.
pub(crate) fn take_down(state: &State) {
    // All are asked before the first is waited for.
    for process in state.hosts().filter_map(|host| host.process) {
        process.signal(rustix::process::Signal::TERM);
    }
    for process in state.hosts().filter_map(|host| host.process) {
        process.stop(PATIENCE);
    }
    if let Some(net) = &state.net {
        net::tear_down(state, net);
    }
    if let Some(limited) = &state.disk {
        disk::tear_down(state, limited);
    }
    for host in state.hosts() {
        remove_folder(host);
    }
    if let Some(sockets) = &state.socket_dir {
        for socket in state.nodes.iter().filter_map(|node| node.socket.as_deref()) {
            let _ = std::fs::remove_file(socket);
        }
        let _ = std::fs::remove_dir(sockets);
    }
    if state.backing_root.starts_with(&state.dir) {
        // Only an empty one: what a simulation wrote there is the user's.
        let _ = std::fs::remove_dir(&state.backing_root);
    }
    for file in [&state.key, &state.nodes_file, &state.dir.join(FILE_NAME)] {
        let _ = std::fs::remove_file(file);
    }
}

fn remove_folder(host: &Host) {
    match std::fs::remove_dir_all(&host.dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            output::note(format!("{}: {error}; remove it by hand", host.dir.display()));
        }
        _ => {}
    }
}
