//! Taking a testbed down: safe to repeat; touches only what the record names.

use crate::state::{FILE_NAME, KEY_NAME, NODES_NAME, SERVER_NAME, State};
use crate::{Folder, disk, namespace, net};
use std::path::Path;
use std::time::Duration;
use zazen_core::{ErrorKind, Result};

/// How long a daemon may drain before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stops and removes everything that `state` records except the file server's data. `remark` gets
/// a sentence for each thing that could not be removed.
pub fn take_down(state: &State, remark: &mut dyn FnMut(String)) -> Result<()> {
    let folder = state.folder()?;
    namespace::end(state, remark);
    // All are asked before the first is waited for.
    for process in state.hosts().filter_map(|host| host.process) {
        process.signal(rustix::process::Signal::TERM);
    }
    for process in state.hosts().filter_map(|host| host.process) {
        process.see_off(PATIENCE);
    }
    if let Some(net) = &state.net {
        net::tear_down(state, net, remark);
    }
    if let Some(limited) = &state.disk {
        disk::tear_down(state, limited, remark);
    }
    if let Some(sockets) = &state.socket_dir {
        remove_sockets(sockets, remark);
    }
    // Only an empty one: what a simulation wrote there is the user's.
    folder.remove_if_empty(SERVER_NAME);
    // The record last: what could not be removed is found again.
    let hosts = state.hosts().map(|host| host.name.as_str());
    for name in hosts.chain([KEY_NAME, NODES_NAME, FILE_NAME]) {
        if let Err(error) = folder.remove(name) {
            remark(format!("{error}; remove it by hand"));
        }
    }
    Ok(())
}

/// Removes the folder of sockets. It lies in a public place, where others may have put another
/// folder in the meantime.
fn remove_sockets(sockets: &Path, remark: &mut dyn FnMut(String)) {
    let removed = match Folder::open(sockets) {
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => Err(error),
        Ok(folder) => folder.remove_all(),
    };
    match removed {
        // In a sticky folder nobody else can have taken the name, and only an empty folder goes.
        Ok(()) => drop(std::fs::remove_dir(sockets)),
        Err(error) => remark(format!("{error}; remove {} by hand", sockets.display())),
    }
}
