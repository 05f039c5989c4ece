//! The namespace of a testbed: its daemons' flags, and a mount for each node.

use crate::daemon::wait_for;
use crate::state::Namespace;
use crate::{Host, Process, Programs, State, without_variables};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use zazen_call::Connection;
use zazen_core::{Error, Result};
use zazen_env::ownership::{self, Trust};
use zazen_wire::service;

/// The function of the namespace that answers once a node takes part.
const HELLO: u16 = 1;
/// How long a mount's process may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The flags of a node's daemon.
pub(crate) fn flags(state: &State, namespace: &Namespace, host: &Host) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec!["--namespace".into(), host.dir.join("namespace").into()];
    flags.extend(["--namespace-nodes".into(), state.nodes_file.clone().into()]);
    // A node that has been one before takes no notice of it.
    flags.push("--namespace-format".into());
    if !namespace.root_squash {
        flags.extend(["--namespace-root".into(), "trust".into()]);
    }
    if let Some(replicas) = namespace.replicas {
        flags.extend(["--namespace-replicas".into(), replicas.to_string().into()]);
    }
    if let Some(level) = &namespace.durability {
        flags.extend(["--namespace-durability".into(), level.into()]);
    }
    if let Some(seconds) = namespace.repair_after {
        flags.extend(["--namespace-repair-after".into(), seconds.to_string().into()]);
    }
    if let Some(path) = &namespace.forward {
        flags.extend(["--namespace-forward".into(), path.into()]);
    }
    flags
}

/// Fails with `Config` if others could replace the folder of the mounts: whoever put a link there
/// would say where the trees go.
pub(crate) fn check(namespace: Option<&Namespace>) -> Result<()> {
    let Some(mounts) = namespace.and_then(|namespace| namespace.mounts.as_deref()) else { return Ok(()) };
    ownership::check(mounts, Trust::of_this_process())
        .map_err(|error| error.within("testbed: choose another folder for --mounts"))
}

/// Waits until every node takes part, and mounts.
pub(crate) fn begin(state: &mut State, programs: &Programs) -> Result<()> {
    let Some(namespace) = state.namespace.clone() else { return Ok(()) };
    for host in &state.nodes {
        let Some(socket) = host.socket.as_deref() else { continue };
        let log = host.dir.join("log");
        let alive = || host.process.is_some_and(|process| process.is_alive());
        wait_for(&format!("the namespace on {}", host.name), &log, alive, || takes_part(socket))?;
    }
    let Some(mounts) = namespace.mounts else { return Ok(()) };
    if let Some(namespace) = &mut state.namespace {
        namespace.made = uppermost_missing(&mounts);
    }
    // The record first: what is made is removed.
    state.save()?;
    for at in 0..state.nodes.len() {
        let host = state.nodes[at].clone();
        let place = mounts.join(at.to_string());
        let within = |error| Error::io(format!("mount {}", place.display()), error);
        std::fs::create_dir_all(&place).map_err(within)?;
        let outside = std::fs::metadata(&mounts).map_err(within)?.dev();
        let log = host.dir.join("mount.log");
        let mut command = Command::new(&programs.zazen);
        command.arg("mount").arg(&place).arg("--foreground");
        command.arg("--socket").args(&host.socket);
        let file = File::create(&log).map_err(within)?;
        let process = Process::spawn(without_variables(&mut command), file)?;
        if let Some(namespace) = &mut state.namespace {
            namespace.processes.push(process);
        }
        state.save()?;
        let mounted = || {
            let inside = std::fs::metadata(&place).ok()?.dev();
            (inside != outside).then_some(())
        };
        wait_for(&format!("mount {}", place.display()), &log, || process.is_alive(), mounted)?;
    }
    Ok(())
}

/// The uppermost folder of `path` that is not there yet.
fn uppermost_missing(path: &Path) -> Option<PathBuf> {
    let missing = path.ancestors().take_while(|folder| folder.symlink_metadata().is_err());
    missing.last().map(Path::to_path_buf)
}

fn takes_part(socket: &Path) -> Option<()> {
    let mut connection = Connection::unix(socket, Duration::from_secs(1)).ok()?;
    connection.set_timeout(Some(Duration::from_secs(1)));
    connection.call(service::NAMESPACE, HELLO, &[], &[]).ok().map(drop)
}

/// Ends the mounts.
pub(crate) fn end(state: &State, remark: &mut dyn FnMut(String)) {
    let Some(namespace) = &state.namespace else { return };
    for process in &namespace.processes {
        process.signal(rustix::process::Signal::TERM);
    }
    namespace.processes.iter().for_each(|process| process.see_off(PATIENCE));
    let Some(mounts) = &namespace.mounts else { return };
    for at in 0..state.nodes.len() {
        let place = mounts.join(at.to_string());
        let gone = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        if let Err(error) = std::fs::remove_dir(&place)
            && !gone(&error)
        {
            remark(format!("mount {} stays: {error}; `zazen unmount` it", place.display()));
        }
    }
    let Some(made) = &namespace.made else { return };
    // Only empty ones: what else is in them is the user's.
    for folder in mounts.ancestors().take_while(|folder| folder.starts_with(made)) {
        if std::fs::remove_dir(folder).is_err() {
            break;
        }
    }
}
