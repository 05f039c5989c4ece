//! Starting the processes of a testbed's hosts: its file server and its daemons.

use crate::daemon::{Launch, Ready, read, wait_for};
use crate::state::NODES_NAME;
use crate::{Folder, Host, Process, Programs, Role, State, namespace, net, without_variables};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use zazen_core::{Error, ErrorKind, Result};

/// Free space that the caches leave on the disk: they are small and short-lived.
const FREE_FLOOR: &str = "256M";

/// Starts the file server of `state`; its address is known afterwards.
pub(crate) fn start_server(state: &mut State, programs: &Programs) -> Result<()> {
    let host = &state.server;
    let folder = state.folder()?;
    let ready = host.dir.join("address");
    folder.remove(&format!("{}/address", host.name))?;
    let listen = match host.netns {
        Some(_) => format!("{}:{}", net::ip_address(Role::Server, 0), net::SERVER_PORT),
        None => "127.0.0.1:0".to_owned(),
    };
    let mut command = on_host(state, host, programs);
    command.arg(&programs.zazen).args(["testbed", "serve-files", "--listen", &listen, "--root"]);
    command.arg(&state.backing_root).arg("--ready").arg(&ready);
    if let (None, Some(rate)) = (&state.net, state.limits.server_bytes_per_s) {
        command.args(["--rate", &rate.to_string()]);
    }
    let log = log_file(host);
    let process = Process::spawn(without_variables(&mut command), open_log(&folder, host)?)?;
    state.server.process = Some(process);
    state.save()?;
    let address = || Some(read(&ready)?.strip_suffix('\n')?.trim().to_owned());
    let addr = wait_for("file server", &log, || process.is_alive(), address)?;
    state.backing = format!("{}=tcp://{addr}", state.backing_root.display());
    state.server.addr = Some(addr);
    state.save()
}

/// Starts the daemon of node `index`; its address is known afterwards and stays the same when it is
/// revived.
pub fn start_node(state: &mut State, index: usize, programs: &Programs) -> Result<()> {
    let host = &state.nodes[index];
    let listen = match (&host.addr, &host.netns) {
        (Some(addr), _) => addr.clone(),
        (None, Some(_)) => format!("{}:{}", net::ip_address(Role::Node, index), net::NODE_PORT),
        (None, None) => "127.0.0.1:0".to_owned(),
    };
    let ready = host.dir.join("ready");
    let mut launch = Launch {
        listen: Some(listen),
        key: Some(state.key.clone()),
        name: Some(host.name.clone()),
        budget: Some(state.budget.to_string()),
        free_floor: Some(FREE_FLOOR.to_owned()),
        ..Launch::new(host.dir.join("cache"), &state.backing, socket_of(host)?)
    };
    // Written once all nodes are up, and read when the first block of a file is wanted.
    launch = launch.with(["--peers".into(), state.nodes_file.clone().into_os_string()]);
    if let Some(readers) = state.readers {
        launch = launch.with(["--readers".to_owned(), readers.to_string()]);
    }
    if state.trust_copies {
        launch = launch.with(["--validate", "never"]);
    }
    if let Some(spans) = &state.spans {
        launch = launch.with(["--spans".into(), spans.clone().into_os_string()]);
    }
    if let Some(namespace) = &state.namespace {
        launch = launch.with(namespace::flags(state, namespace, host));
    }
    let mut command = on_host(state, host, programs);
    command.arg(&programs.zazend).args(launch.flags()).arg("--ready-file").arg(&ready);
    let folder = state.folder()?;
    folder.make_folder(&host.name)?;
    folder.remove(&format!("{}/ready", host.name))?;
    let (log, what) = (log_file(host), format!("node {}", host.name));
    let process = Process::spawn(without_variables(&mut command), open_log(&folder, host)?)?;
    state.nodes[index].process = Some(process);
    state.save()?;
    let address = || Ready::parse(&read(&ready)?)?.listen;
    let addr = wait_for(&what, &log, || process.is_alive(), address)?;
    state.nodes[index].addr = Some(addr);
    state.save()
}

/// `nodes.txt`: what `--nodes` reads.
pub(crate) fn write_nodes_file(state: &State) -> Result<()> {
    let mut text = String::from("# One node a line; written by `zazen testbed up`.\n");
    for addr in state.nodes.iter().filter_map(|node| node.addr.as_deref()) {
        text.push_str(addr);
        text.push('\n');
    }
    state.folder()?.write(NODES_NAME, &text, 0o644)
}

fn open_log(folder: &Folder, host: &Host) -> Result<File> {
    folder.append(&format!("{}/log", host.name))
}

/// The log of `host`'s process.
pub fn log_file(host: &Host) -> PathBuf {
    host.dir.join("log")
}

/// A command line that runs the program appended to it on `host`, under one pid throughout.
fn on_host(state: &State, host: &Host, programs: &Programs) -> Command {
    let mut command = Command::new(&programs.zazen);
    command.args(["testbed", "exec", "--bare", "--on", &host.name, "--dir"]).arg(&state.dir).arg("--");
    command
}

fn socket_of(host: &Host) -> Result<&Path> {
    host.socket.as_deref().ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("node {}: its record has no socket; make the testbed anew", host.name),
        )
    })
}
