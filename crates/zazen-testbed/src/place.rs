//! Which host of the testbed a command runs on, and what it finds there: namespace, control group,
//! environment.

use crate::variables::{BACKING, KEY, NODE, NODES, SOCKET, TESTBED};
use crate::{Host, State, disk};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use zazen_core::{Error, ErrorKind, Result};

/// Where a process without a given host belongs: the launcher's rank, modulo the number of nodes.
pub fn host_of_rank(state: &State, rank: usize) -> &Host {
    &state.nodes[rank % state.nodes.len()]
}

/// The same where dead nodes get no ranks, as a resource manager would have it; an error if all are
/// dead.
pub fn live_host_of_rank(state: &State, rank: usize) -> Result<&Host> {
    let live = |node: &&Host| node.process.is_some_and(|process| process.is_alive());
    let nodes: Vec<&Host> = state.nodes.iter().filter(live).collect();
    if nodes.is_empty() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("testbed {}: all nodes are dead; `zazen testbed revive n0`", state.dir.display()),
        ));
    }
    Ok(nodes[rank % nodes.len()])
}

/// Moves this process onto `host`: everything it starts from now on is there too.
pub fn enter(state: &State, host: &Host) -> Result<()> {
    if let Some(limited) = &state.disk {
        disk::enter(limited, &host.name)?;
    }
    if let Some(netns) = &host.netns {
        let path = std::path::Path::new("/run/netns").join(netns);
        let within = |error| Error::io(format!("network namespace {}", path.display()), error);
        let file = File::open(&path).map_err(within)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| within(errno.into()))?;
    }
    Ok(())
}

/// The variables that the client library and the tools look at, for a process on `host` (or on none
/// in particular).
pub fn environment(state: &State, host: Option<&Host>) -> Vec<(&'static str, String)> {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut variables = vec![
        (TESTBED, text(&state.dir)),
        (KEY, text(&state.key)),
        (NODES, text(&state.nodes_file)),
        (BACKING, state.backing.clone()),
    ];
    if let Some(host) = host {
        variables.push((NODE, host.name.clone()));
        if let Some(socket) = &host.socket {
            variables.push((SOCKET, text(socket)));
        }
    }
    variables
}
