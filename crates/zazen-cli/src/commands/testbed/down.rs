//! `zazen testbed down`: idempotent; touches only what the record names.

use crate::output;
use crate::testbed::state::{FILE_NAME, KEY_NAME, NODES_NAME, SERVER_NAME, State};
use crate::testbed::{Folder, disk, net};
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
    let folder = state.folder()?;
    let held = folder.lock()?;
    take_down(&state)?;
    folder.remove_lock();
    drop(held);
    // The folder goes too where nothing of the user's is left in it.
    let _ = std::fs::remove_dir(folder.path());
    output::line(format!("testbed {}: down", dir.display()));
    if state.backing_root.starts_with(folder.path()) && state.backing_root.exists() {
        output::line(format!("kept the file server's data in {}", state.backing_root.display()));
    }
    Ok(())
}

/// Stops and removes everything that `state` records except the file server's data.
pub(crate) fn take_down(state: &State) -> Result<()> {
    let folder = state.folder()?;
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
    if let Some(sockets) = &state.socket_dir {
        remove_sockets(sockets);
    }
    // Only an empty one: what a simulation wrote there is the user's.
    folder.remove_if_empty(SERVER_NAME);
    // The record last: what could not be removed is found again.
    let hosts = state.hosts().map(|host| host.name.as_str());
    for name in hosts.chain([KEY_NAME, NODES_NAME, FILE_NAME]) {
        if let Err(error) = folder.remove(name) {
            output::note(format!("{error}; remove it by hand"));
        }
    }
    Ok(())
}

/// Removes the folder of sockets, which lies in a place where others may have put another one in the meantime.
fn remove_sockets(sockets: &Path) {
    let removed = match Folder::open(sockets) {
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => Err(error),
        Ok(folder) => folder.remove_all(),
    };
    match removed {
        // Its own name in a sticky folder: nobody else's can be there, and only an empty one goes.
        Ok(()) => drop(std::fs::remove_dir(sockets)),
        Err(error) => output::note(format!("{error}; remove {} by hand", sockets.display())),
    }
}
