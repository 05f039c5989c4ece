//! Starting a testbed's processes, and finding out that they are ready.

use super::state::NODES_NAME;
use super::{Folder, Host, Process, Role, State, net, place};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// How long a process may take to answer after its start.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Free space that the caches leave on the disk: they are small and short-lived.
const FREE_FLOOR: &str = "256M";
/// Lines of a log that are shown when its process does not come up.
const LOG_LINES: usize = 5;

/// The program called `name`: what the environment variable `variable` says, else beside this program, else on the
/// search path.
pub(crate) fn program(name: &str, variable: &str, install: &str) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(variable).filter(|given| !given.is_empty()) {
        return Ok(PathBuf::from(given));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = beside.into_iter().chain(std::env::split_paths(&path).map(|folder| folder.join(name)));
    candidates.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{name}: neither beside zazen nor on PATH; install it with `{install}`, or set {variable}"
            ),
        )
    })
}

/// Starts the file server of `state`; its address is known afterwards.
pub(crate) fn start_server(state: &mut State) -> Result<()> {
    let host = &state.server;
    let folder = state.folder()?;
    let ready = host.dir.join("address");
    folder.remove(&format!("{}/address", host.name))?;
    let listen = match host.netns {
        Some(_) => format!("{}:{}", net::ip_address(Role::Server, 0), net::SERVER_PORT),
        None => "127.0.0.1:0".to_owned(),
    };
    let mut command = on_host(state, host)?;
    command.arg(own_program()?).args(["testbed", "serve-files", "--listen", &listen, "--root"]);
    command.arg(&state.backing_root).arg("--ready").arg(&ready);
    if let (None, Some(rate)) = (&state.net, state.limits.server_bytes_per_s) {
        command.args(["--rate", &rate.to_string()]);
    }
    let log = log_file(host);
    let process = Process::spawn(place::without_environment(&mut command), open_log(&folder, host)?)?;
    state.server.process = Some(process);
    state.save()?;
    let addr = wait_for("file server", &process, &log, || {
        std::fs::read_to_string(&ready)
            .ok()
            .filter(|text| text.ends_with('\n'))
            .map(|text| text.trim().to_owned())
    })?;
    state.backing = format!("{}=tcp://{addr}", state.backing_root.display());
    state.server.addr = Some(addr);
    state.save()
}

/// Starts the daemon of node `index`; its address is known afterwards and stays the same when it is revived.
pub(crate) fn start_node(state: &mut State, index: usize) -> Result<()> {
    let host = &state.nodes[index];
    let socket = socket_of(host)?.to_path_buf();
    let listen = match (&host.addr, &host.netns) {
        (Some(addr), _) => addr.clone(),
        (None, Some(_)) => format!("{}:{}", net::ip_address(Role::Node, index), net::NODE_PORT),
        (None, None) => "127.0.0.1:0".to_owned(),
    };
    let mut command = on_host(state, host)?;
    command.arg(program("zazend", "ZAZEND", "pip install .")?);
    command.arg("--cache").arg(host.dir.join("cache"));
    command.args(["--backing", &state.backing, "--name", &host.name, "--listen", &listen]);
    command.arg("--socket").arg(&socket).arg("--key").arg(&state.key);
    command.args(["--budget", &state.budget.to_string(), "--free-floor", FREE_FLOOR]);
    if let Some(readers) = state.readers {
        command.args(["--readers", &readers.to_string()]);
    }
    if state.trust_copies {
        command.args(["--validate", "never"]);
    }
    let folder = state.folder()?;
    folder.make_folder(&host.name)?;
    let ready = host.dir.join("ready");
    folder.remove(&format!("{}/ready", host.name))?;
    command.arg("--ready-file").arg(&ready);
    let log = log_file(host);
    let what = format!("node {}", host.name);
    let process = Process::spawn(place::without_environment(&mut command), open_log(&folder, host)?)?;
    state.nodes[index].process = Some(process);
    state.save()?;
    let addr = wait_for(&what, &process, &log, || listening_address(&ready))?;
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
pub(crate) fn log_file(host: &Host) -> PathBuf {
    host.dir.join("log")
}

/// A command line that runs the program appended to it on `host`, under one pid throughout.
fn on_host(state: &State, host: &Host) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(["testbed", "exec", "--bare", "--on", &host.name, "--dir"]).arg(&state.dir).arg("--");
    Ok(command)
}

pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::io("find the running zazen program", error))
}

fn socket_of(host: &Host) -> Result<&Path> {
    host.socket.as_deref().ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("node {}: its record has no socket; make the testbed anew", host.name),
        )
    })
}

/// The TCP address on which a daemon listens, once it serves.
fn listening_address(ready: &Path) -> Option<String> {
    let told: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(ready).ok()?).ok()?;
    Some(told.get("listen")?.as_str()?.to_owned())
}

fn wait_for(
    what: &str,
    process: &Process,
    log: &Path,
    mut ready: impl FnMut() -> Option<String>,
) -> Result<String> {
    let until = Instant::now() + READY_WITHIN;
    loop {
        if let Some(answer) = ready() {
            return Ok(answer);
        }
        let alive = process.is_alive();
        if !alive || Instant::now() >= until {
            let how = if alive { "does not answer within 20 s" } else { "ended at once" };
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{what}: {how}; its log {} ends with:\n  {tail}", log.display()),
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
