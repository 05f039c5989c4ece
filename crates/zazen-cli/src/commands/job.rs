//! `zazen job`: daemons of one job, on its nodes, as its user.
//!
//! `start` makes the job's folder, which all nodes see, and lets a launcher (srun) run `zazen job
//! node` once on each node. That starts the node's daemon in a folder of the node's disk, says in
//! the job's folder where it serves, and stays until it is told to end. `stop` tells the launcher,
//! which tells all nodes.
//!
//! Invariants: the folders are for the job's user alone; a folder that was there before is never
//! used and never removed.

use crate::commands::key;
use crate::output;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_testbed::{Daemon, Launch, Process, find_program, own_program};

/// `%N` is the number of nodes.
const LAUNCHER: &str = "srun --overlap --nodes=%N --ntasks=%N --ntasks-per-node=1 --cpu-bind=none \
                        --input=none --kill-on-bad-exit=0 --quiet";
const LOOK: Duration = Duration::from_millis(100);
/// How long a node's daemon may take to end.
const END_WITHIN: Duration = Duration::from_secs(60);
const LOG_LINES: usize = 8;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  eval \"$(zazen job start --backing /lustre --dir /ssd)\"    # in a batch script of Slurm
  srun python analyse.py                                   # its frames come from the job's nodes
  zazen job stop")]
pub(crate) struct Job {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a daemon on each node of the job, and print the variables that its programs need
    #[command(after_help = "EXAMPLES:
  eval \"$(zazen job start --backing /lustre --dir /ssd)\"
  eval \"$(zazen job start --backing /lustre --launcher 'mpiexec -n %N -ppn 1' --count 4)\"

Let the batch script run it with `eval`. No root is needed: the daemons serve their own user only.
They end with `zazen job stop`, or with the job. Their caches end with them. If they cannot be
started, the `eval` fails, too.")]
    Start(Start),
    /// Stop the daemons of the job, and remove what they cached
    Stop(Stop),
    /// Runs on each node: the launcher starts it
    #[command(hide = true)]
    Node(Node),
}

#[derive(Args)]
struct Start {
    /// The backing store: datasets beneath this folder are cached (repeat it)
    #[arg(long, value_name = "DIR", required = true)]
    backing: Vec<PathBuf>,
    /// A folder of the node's own disk, where the job's cache goes; %n is the node's name
    /// [default: $ZAZEN_JOB_DIR, $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The job's folder, which all nodes must see; it must not exist
    /// [default: ~/.zazen/jobs/JOB]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// What the cache of a node may take, like 200G [default: zazend's]
    #[arg(long, value_name = "SIZE")]
    budget: Option<String>,
    /// The command that runs a program once on each node; %N is the number of nodes
    #[arg(long, value_name = "COMMAND", default_value = LAUNCHER, hide_default_value = true)]
    launcher: String,
    /// How many nodes [default: $SLURM_JOB_NUM_NODES]
    #[arg(long, value_name = "N")]
    count: Option<usize>,
    /// How long the daemons may take to start
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,
    /// More flags for each zazend, after --
    #[arg(last = true, value_name = "FLAGS")]
    more: Vec<OsString>,
}

#[derive(Args)]
struct Stop {
    /// The job's folder [default: $ZAZEN_JOB, or ~/.zazen/jobs/JOB]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Args)]
struct Node {
    #[arg(long)]
    state: PathBuf,
    /// Where the daemon's folder goes, and how that is called.
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    folder: String,
    #[arg(long)]
    backing: Vec<PathBuf>,
    #[arg(long)]
    budget: Option<String>,
    #[arg(last = true)]
    more: Vec<OsString>,
}

/// What a node tells the others: a file of the job's folder.
#[derive(Serialize, Deserialize)]
struct Serving {
    name: String,
    address: String,
    socket: PathBuf,
}

pub(crate) fn run(arguments: &Job) -> Result<()> {
    match &arguments.action {
        Action::Start(start) => start_all(start),
        Action::Stop(stop) => stop_all(stop),
        Action::Node(node) => serve(node),
    }
}

fn start_all(start: &Start) -> Result<()> {
    let count = match start.count {
        Some(count) => count,
        None => number_of_nodes()?,
    };
    if count == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "--count 0: a job has at least one node"));
    }
    let state = state_folder(start.state.as_deref())?;
    let told = ["ZAZEN_JOB_DIR", "TMPDIR"].iter().find_map(std::env::var_os);
    let dir = start.dir.clone().or(told.map(PathBuf::from)).unwrap_or_else(|| "/tmp".into());
    if !dir.is_absolute() {
        let why = format!("--dir {}: give an absolute path, it is used on all nodes", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    make_state(&state)?;
    let launched = launch(start, count, &state, &dir);
    let serving = launched.and_then(|launcher| await_all(start, count, &state, &launcher));
    match serving.and_then(|serving| tell(&state, &dir, &serving)) {
        Ok(text) => {
            output::print_raw(&text);
            Ok(())
        }
        Err(error) => {
            remove_state(&state);
            // For `eval`, whose status would be 0 otherwise.
            output::print_raw("false\n");
            Err(error)
        }
    }
}

fn number_of_nodes() -> Result<usize> {
    let told = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"].iter().find_map(|name| std::env::var(name).ok());
    told.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let why = "how many nodes the job has is not known: $SLURM_JOB_NUM_NODES is not set; run this in \
                   a batch script of Slurm, or give --count and --launcher";
        Error::new(ErrorKind::InvalidArgument, why)
    })
}

/// The job's name in paths.
fn job_name() -> Result<String> {
    let job = std::env::var("SLURM_JOB_ID").or_else(|_| std::env::var("PBS_JOBID")).unwrap_or_default();
    if job.is_empty() {
        let why = "no job: $SLURM_JOB_ID is not set; give --state and a folder for this job";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(job.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect())
}

fn state_folder(given: Option<&Path>) -> Result<PathBuf> {
    let folder = match given {
        Some(given) => given.to_owned(),
        None => {
            let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "$HOME is not set; give --state and a folder for this job",
                )
            })?;
            Path::new(&home).join(".zazen/jobs").join(job_name()?)
        }
    };
    std::path::absolute(&folder).map_err(|error| Error::io(folder.display().to_string(), error))
}

fn make_state(state: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    if let Some(parent) = state.parent() {
        // Only the last one must be new.
        let made = DirBuilder::new().mode(0o700).recursive(true).create(parent);
        made.map_err(|error| Error::io(format!("make the folder {}", parent.display()), error))?;
    }
    builder.create(state).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            ErrorKind::Conflict,
            format!(
                "{} exists: daemons of this job run already, or were not stopped; run `zazen job stop`",
                state.display()
            ),
        ),
        _ => Error::io(format!("make the job's folder {}", state.display()), error),
    })?;
    builder
        .create(state.join("nodes"))
        .map_err(|error| Error::io(format!("make a folder in {}", state.display()), error))?;
    key::write_new(&state.join("key"))
}

/// Removes what `start` made, and nothing else.
fn remove_state(state: &Path) {
    for name in ["key", "log", "launcher.json", "nodes.txt", "task_prolog"] {
        // Not all of them were made.
        let _ = std::fs::remove_file(state.join(name));
    }
    for file in std::fs::read_dir(state.join("nodes")).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(file.path());
    }
    let _ = std::fs::remove_dir(state.join("nodes"));
    if let Err(error) = std::fs::remove_dir(state) {
        output::note(format!("{}: not removed: {error}", state.display()));
    }
}

fn launch(start: &Start, count: usize, state: &Path, dir: &Path) -> Result<Process> {
    let words: Vec<String> =
        start.launcher.split_whitespace().map(|word| word.replace("%N", &count.to_string())).collect();
    let Some((program, words)) = words.split_first() else {
        return Err(Error::new(ErrorKind::InvalidArgument, "--launcher: no command"));
    };
    let user = rustix::process::geteuid().as_raw();
    let job = state.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(words).arg(own_program()?).args(["job", "node", "--state"]).arg(state);
    command.arg("--dir").arg(dir).args(["--folder", &format!("zazen-{user}-{job}")]);
    for backing in &start.backing {
        command.arg("--backing").arg(backing);
    }
    if let Some(budget) = &start.budget {
        command.args(["--budget", budget]);
    }
    command.arg("--").args(&start.more);
    let log = OpenOptions::new().append(true).create_new(true).mode(0o600).open(state.join("log"));
    let log: File = log.map_err(|error| Error::io(format!("make a log in {}", state.display()), error))?;
    let launcher = Process::spawn(&mut command, log)?;
    let text = serde_json::to_string(&launcher)
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("launcher.json: {error}")))?;
    write_new(&state.join("launcher.json"), &text)?;
    Ok(launcher)
}

/// Waits until all nodes serve. If they do not, everything is stopped, and the error has the end of
/// the log.
fn await_all(start: &Start, count: usize, state: &Path, launcher: &Process) -> Result<Vec<Serving>> {
    let until = Instant::now() + Duration::from_secs(start.wait);
    loop {
        // Looked at before the nodes: who ends after the last one serves has done its part.
        let alive = launcher.is_alive();
        let serving = serving(state);
        if serving.len() >= count {
            return Ok(serving);
        }
        if !alive || Instant::now() >= until {
            let how = match alive {
                true => format!("did not all start within {} s (--wait)", start.wait),
                false => "ended".to_owned(),
            };
            launcher.stop(END_WITHIN);
            let log = std::fs::read_to_string(state.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
            let text =
                format!("daemons of {count} nodes {how}; {} served. They said:\n  {tail}", serving.len());
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        std::thread::sleep(LOOK);
    }
}

fn serving(state: &Path) -> Vec<Serving> {
    let files = std::fs::read_dir(state.join("nodes")).into_iter().flatten().flatten();
    let ready =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
    let texts = ready.filter_map(|path| std::fs::read_to_string(path).ok());
    let mut all: Vec<Serving> = texts.filter_map(|text| serde_json::from_str(&text).ok()).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Writes what programs need, and returns the variables for a shell.
fn tell(state: &Path, dir: &Path, serving: &[Serving]) -> Result<String> {
    let lines: String = serving.iter().map(|node| format!("{}\n", node.address)).collect();
    write_new(&state.join("nodes.txt"), &lines)?;
    let own = node_name();
    // Without %n all sockets have one path.
    let here = serving.iter().find(|node| node.name == own).or(serving.first());
    let socket = here.map(|node| node.socket.clone()).unwrap_or_default();
    let mut variables = vec![
        ("ZAZEN_SOCKET", socket),
        ("ZAZEN_NODES", state.join("nodes.txt")),
        ("ZAZEN_KEY", state.join("key")),
        ("ZAZEN_JOB", state.to_owned()),
    ];
    if dir.to_string_lossy().contains("%n") {
        // srun runs it before each task, and takes its `export` lines.
        let mut text = "#!/bin/sh\ncase $SLURMD_NODENAME in\n".to_owned();
        for node in serving {
            let line = format!("export ZAZEN_SOCKET={}", node.socket.display());
            text.push_str(&format!("{}) echo {} ;;\n", quoted(&node.name), quoted(&line)));
        }
        text.push_str("esac\n");
        let prolog = state.join("task_prolog");
        write_new(&prolog, &text)?;
        std::fs::set_permissions(&prolog, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(|error| Error::io(prolog.display().to_string(), error))?;
        variables.push(("SLURM_TASK_PROLOG", prolog));
    }
    let line =
        |(name, value): &(&str, PathBuf)| format!("export {name}={}\n", quoted(&value.to_string_lossy()));
    Ok(variables.iter().map(line).collect())
}

/// One word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn stop_all(stop: &Stop) -> Result<()> {
    let named = stop.state.clone().or_else(|| std::env::var_os("ZAZEN_JOB").map(PathBuf::from));
    let state = state_folder(named.as_deref())?;
    let file = state.join("launcher.json");
    let text = std::fs::read_to_string(&file).map_err(|error| {
        let text = format!("{}: no daemons of a job were started there", state.display());
        if error.kind() == std::io::ErrorKind::NotFound {
            Error::new(ErrorKind::NotFound, text)
        } else {
            Error::io(file.display().to_string(), error)
        }
    })?;
    let launcher: Process = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("{}: {error}", file.display())))?;
    launcher.stop(END_WITHIN);
    remove_state(&state);
    Ok(())
}

/// Slurm's name of this node, or the host's.
fn node_name() -> String {
    let told = std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    let name = told.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    name.replace('/', "_")
}

/// A node's daemon, until a signal asks for its end.
fn serve(arguments: &Node) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Error::io("take signals", error))?;
    }
    let name = node_name();
    let dir = PathBuf::from(arguments.dir.to_string_lossy().replace("%n", &name));
    let folder = dir.join(&arguments.folder);
    DirBuilder::new().mode(0o700).create(&folder).map_err(|error| {
        let hint = "if a job has left it there, remove it; --dir names another place";
        Error::io(format!("node {name}: make the folder {} ({hint})", folder.display()), error)
    })?;
    let outcome = serve_in(&folder, &name, arguments, &stop);
    let removed = std::fs::remove_dir_all(&folder);
    outcome
        .and(removed.map_err(|error| Error::io(format!("node {name}: remove {}", folder.display()), error)))
}

fn serve_in(folder: &Path, name: &str, arguments: &Node, stop: &AtomicBool) -> Result<()> {
    let launch = Launch {
        cache: folder.join("cache"),
        backing: arguments.backing.iter().map(|path| path.clone().into()).collect(),
        socket: folder.join("s"),
        listen: Some("0.0.0.0:0".to_owned()),
        key: Some(arguments.state.join("key")),
        name: Some(name.to_owned()),
        budget: arguments.budget.clone(),
        free_floor: None,
        more: arguments.more.clone(),
    };
    let zazend = find_program("zazend", "ZAZEND", "pip install .")?;
    let mut daemon =
        Daemon::start(&zazend, &launch, folder).map_err(|error| error.within(format!("node {name}")))?;
    let port =
        daemon.ready().listen.as_deref().and_then(|at| at.rsplit_once(':')).map_or("", |(_, port)| port);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let told = Serving { name: name.to_owned(), address: format!("{host}:{port}"), socket: launch.socket };
    let text = serde_json::to_string(&told)
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("node {name}: {error}")))?;
    let file = arguments.state.join("nodes").join(format!("{name}.json"));
    // Whole or not there: the other end reads it while it waits.
    let fresh = file.with_extension("new");
    write_new(&fresh, &text)?;
    std::fs::rename(&fresh, &file).map_err(|error| Error::io(file.display().to_string(), error))?;
    while !stop.load(Ordering::Relaxed) {
        if !daemon.is_alive() {
            let why = format!("node {name}: the daemon ended:\n{}", daemon.log());
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        std::thread::sleep(LOOK);
    }
    // The signal went perhaps to the daemon, too; a second one only makes it end sooner.
    let _ = daemon.signal(rustix::process::Signal::TERM);
    let until = Instant::now() + END_WITHIN / 2;
    while daemon.is_alive() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    daemon.kill();
    Ok(())
}

fn write_new(path: &Path, text: &str) -> Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| Error::io(format!("write {}", path.display()), error))
}
