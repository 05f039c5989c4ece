//! One isolated plug-in, seen from the daemon: its process, begun again when it ends, and what became of each.
//!
//! Invariants: at most one process per plug-in; each generation's fate is known once its process is gone; no lock is
//! held while anything is waited for but the lock's own condition.

use crate::config::{HostOptions, PluginConfig};
use crate::control::{self, EXIT_HUNG, FromWorker, Start, ToWorker, readable};
use crate::object::Description;
use crate::stats::PluginReport;
use crate::worker::WORKER_FLAG;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zazen_call::{Carrier, Connection};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::frames::service;
use zazen_wire::plugins::{Fate, FateKind, plugins_fn};

/// The first rest before a process is begun again, doubled each time …
const REST_MIN: Duration = Duration::from_millis(50);
/// … up to this.
const REST_MAX: Duration = Duration::from_secs(30);
/// A process that lived for so long ended for a new reason: the rests begin anew.
const GOOD_LIFE: Duration = Duration::from_secs(60);
/// How long a caller waits for a process that is being begun.
const BEGIN_WAIT: Duration = Duration::from_secs(10);
/// How long somebody who lost a process waits to learn why.
const FATE_WAIT: Duration = Duration::from_secs(2);
/// Generations whose fates are kept.
const FATES_MAX: usize = 64;
/// Beyond the time for calls in progress, a process may take so long to end.
const END_WAIT: Duration = Duration::from_secs(5);

/// An isolated plug-in.
pub(crate) struct Supervisor {
    pub(crate) description: Description,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: PluginConfig,
    options: HostOptions,
    /// Tells this plug-in's sockets from those of others.
    index: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    generation: u64,
    pid: u32,
    crashes: u64,
    fates: BTreeMap<u64, FateKind>,
    control: Option<Arc<OwnedFd>>,
    stopping: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Beginning,
    Running,
    Resting,
    Stopped,
}

/// A process that serves.
struct Begun {
    child: Child,
    control: Arc<OwnedFd>,
    process: Option<OwnedFd>,
    description: Description,
    socket: PathBuf,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until `done` or for `patience`; whether it came to it.
    fn wait_until(&self, patience: Duration, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, patience, |state| !done(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn socket(&self, generation: u64) -> PathBuf {
        let mut name = self.options.socket.as_os_str().to_owned();
        name.push(format!(".plugin-{}-{generation}", self.index));
        name.into()
    }

    fn name(&self) -> String {
        self.config.path.display().to_string()
    }

    fn start_message(&self, generation: u64, socket: Option<&Path>) -> ToWorker {
        let config = &self.config;
        ToWorker::Start(Start {
            path: config.path.clone(),
            socket: socket.map(Path::to_path_buf),
            daemon_pid: std::process::id(),
            generation,
            process_count: config.process_count,
            segment_bytes_max: config.segment_bytes_max,
            connections_max: self.options.connections_max,
            memory_bytes: config.memory_bytes,
            open_files: config.open_files,
            call_timeout_ms: u64::try_from(config.call_timeout.as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn begin(&self, generation: u64) -> Result<Begun> {
        let socket = self.socket(generation);
        let (mut child, control, process) = spawn(&self.options.worker)?;
        control::send(control.as_fd(), &self.start_message(generation, Some(&socket))).ok();
        match await_ready(&control, self.options.start_timeout) {
            Ok(description) => Ok(Begun { child, control: Arc::new(control), process, description, socket }),
            Err(error) => {
                end_group(&mut child);
                std::fs::remove_file(&socket).ok();
                Err(error.within(format!("plug-in {}", self.name())))
            }
        }
    }
}

/// Begins the worker program; its process group is its own, so that the terminal's signals don't reach it and all
/// that it began can be ended with it.
fn spawn(worker: &Path) -> Result<(Child, OwnedFd, Option<OwnedFd>)> {
    let (ours, theirs) = control::pair()?;
    let child = Command::new(worker)
        .arg0("zazend-plugin")
        .arg(WORKER_FLAG)
        .stdin(Stdio::from(theirs))
        .process_group(0)
        .spawn()
        .map_err(|error| Error::io(format!("begin a plug-in's process ({})", worker.display()), error))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok((child, ours, process))
}

/// Ends the process, whatever it does, and all that it began and left in its group.
fn end_group(child: &mut Child) -> Option<std::process::ExitStatus> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Before the wait: until then the group's number can't be anybody else's.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    child.kill().ok();
    child.wait().ok()
}

fn await_ready(control: &OwnedFd, patience: Duration) -> Result<Description> {
    let refuse = |why: String| Error::new(ErrorKind::Config, why);
    if !readable(&[control.as_fd()], patience) {
        return Err(refuse(format!("loading and init took longer than {patience:?}")));
    }
    match control::receive(control.as_fd())? {
        Some(FromWorker::Ready(description)) => Ok(description),
        Some(FromWorker::Refused { why }) => Err(refuse(why)),
        _ => Err(refuse("its process ended while it was loaded or in its init".to_owned())),
    }
}

/// Loads the object in a process of its own and says what it is; nothing of it runs but its constructors.
pub(crate) fn check(config: &PluginConfig, options: &HostOptions) -> Result<Description> {
    let (mut child, control, _) = spawn(&options.worker)?;
    let shared = Shared::new(config.clone(), options.clone(), 0);
    control::send(control.as_fd(), &shared.start_message(0, None)).ok();
    let found = await_ready(&control, options.start_timeout);
    end_group(&mut child);
    found
}

impl Shared {
    fn new(config: PluginConfig, options: HostOptions, index: usize) -> Shared {
        Shared { config, options, index, state: Mutex::default(), changed: Condvar::new() }
    }
}

impl Supervisor {
    /// Begins the plug-in's process; `index` tells it from the daemon's other plug-ins. Fails with `Config` if it
    /// can't be loaded or refuses.
    pub(crate) fn start(config: PluginConfig, options: HostOptions, index: usize) -> Result<Supervisor> {
        let shared = Arc::new(Shared::new(config, options, index));
        let begun = shared.begin(1)?;
        let description = begun.description.clone();
        shared.change(|state| running(state, 1, &begun));
        let ours = shared.clone();
        let thread = std::thread::Builder::new()
            .name(format!("plugin-{}", description.id))
            .spawn(move || supervise(&ours, begun))
            .map_err(|error| Error::io("start a plug-in's supervisor", error))?;
        Ok(Supervisor { description, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Where the plug-in serves now, and which generation it is; waits for one that is being begun. `None` if it
    /// crashes all the time or is stopped.
    pub(crate) fn socket(&self) -> Option<(PathBuf, u64)> {
        let done = |state: &State| matches!(state.phase, Phase::Running | Phase::Stopped);
        let state = self.shared.wait_until(BEGIN_WAIT, done);
        (state.phase == Phase::Running).then(|| (self.shared.socket(state.generation), state.generation))
    }

    /// What became of that generation; asked by somebody who lost it, so it may take a moment to be known.
    pub(crate) fn fate(&self, generation: u64) -> Fate {
        let known = |state: &State| state.fates.contains_key(&generation) || state.generation != generation;
        let state = self.shared.wait_until(FATE_WAIT, known);
        let kind = match state.fates.get(&generation) {
            Some(kind) => *kind,
            None if state.generation == generation => FateKind::Running,
            None => FateKind::Crashed,
        };
        let timeout = if kind == FateKind::Hung { self.shared.config.call_timeout } else { Duration::ZERO };
        Fate { kind: kind as u8, call_timeout_ms: timeout.as_millis() as u64 }
    }

    /// A connection to the plug-in's process; its replies may take `patience`.
    pub(crate) fn connect(&self, patience: Option<Duration>) -> Result<(Connection, u64)> {
        let (socket, generation) = self.socket().ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!("plug-in {} does not run at the moment; try again", self.description.name),
            )
        })?;
        let mut connection = Connection::local(&socket, Carrier::Auto, BEGIN_WAIT)?;
        connection.set_timeout(patience);
        Ok((connection, generation))
    }

    /// Counters and state; those of its functions are missing if its process does not answer within a second.
    pub(crate) fn report(&self) -> PluginReport {
        let is_running = self.shared.state().phase == Phase::Running;
        let counted = is_running
            .then(|| self.connect(Some(Duration::from_secs(1))).ok())
            .flatten()
            .and_then(|(mut connection, _)| {
                connection.call(service::PLUGINS, plugins_fn::STATS, &[], &[]).ok()
            })
            .and_then(|reply| serde_json::from_slice::<PluginReport>(&reply.payload).ok());
        let state = self.shared.state();
        PluginReport {
            path: self.shared.name(),
            placement: "isolated".to_owned(),
            state: match state.phase {
                Phase::Running if counted.is_some() => "running",
                Phase::Running => "silent",
                Phase::Beginning | Phase::Resting => "restarting",
                Phase::Stopped => "stopped",
            }
            .to_owned(),
            generation: state.generation,
            pid: state.pid,
            crashes: state.crashes,
            ..counted.unwrap_or_else(|| PluginReport::of(&self.description))
        }
    }

    /// Tells the process to end; calls in progress may take the configured time.
    pub(crate) fn begin_stop(&self) {
        let control = {
            let mut state = self.shared.state();
            state.stopping = true;
            state.control.clone()
        };
        self.shared.changed.notify_all();
        if let Some(control) = control {
            let patience_ms = self.shared.options.drain.as_millis() as u64;
            control::send(control.as_fd(), &ToWorker::Stop { patience_ms }).ok();
        }
    }

    /// Waits until the process has ended; it is killed if it takes longer than it may.
    pub(crate) fn stop(&self) {
        self.begin_stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It panics only for our bugs; then there is nothing left to wait for.
            let _ = thread.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn running(state: &mut State, generation: u64, begun: &Begun) {
    state.phase = Phase::Running;
    state.generation = generation;
    state.pid = begun.child.id();
    state.control = Some(begun.control.clone());
}

/// The supervisor's thread: watches one process after the other.
fn supervise(shared: &Shared, first: Begun) {
    let (mut generation, mut rest) = (1, Duration::ZERO);
    let mut next = Some(first);
    loop {
        if let Some(begun) = next.take() {
            let since = Instant::now();
            let fate = watch_over(shared, begun);
            if since.elapsed() > GOOD_LIFE {
                rest = Duration::ZERO;
            }
            shared.change(|state| {
                state.phase = if state.stopping { Phase::Stopped } else { Phase::Resting };
                state.pid = 0;
                state.control = None;
                state.crashes += u64::from(fate != FateKind::Stopped);
                state.fates.insert(generation, fate);
                if state.fates.len() > FATES_MAX {
                    state.fates.pop_first();
                }
            });
        }
        // The first time at once: whoever calls again after a crash should find the plug-in there.
        let stopping = shared.wait_until(rest, |state| state.stopping).stopping;
        rest = (rest * 2).clamp(REST_MIN, REST_MAX);
        if stopping {
            shared.change(|state| state.phase = Phase::Stopped);
            return;
        }
        generation += 1;
        match shared.begin(generation) {
            Ok(begun) => {
                shared.change(|state| running(state, generation, &begun));
                tracing::info!("plug-in {}: begun again (generation {generation})", shared.name());
                // A stop that came meanwhile found no process to tell.
                if shared.state().stopping {
                    control::send(begun.control.as_fd(), &ToWorker::Stop { patience_ms: 0 }).ok();
                }
                next = Some(begun);
            }
            Err(error) => {
                tracing::error!("{error}; next try in {rest:?}");
                shared.change(|state| {
                    state.crashes += 1;
                    state.fates.insert(generation, FateKind::Crashed);
                });
            }
        }
    }
}

/// Until the process has ended; what became of it.
fn watch_over(shared: &Shared, mut begun: Begun) -> FateKind {
    let (mut heard, mut hung) = (Instant::now(), None);
    let mut told_to_stop: Option<Instant> = None;
    let mut fds = vec![begun.control.as_fd()];
    fds.extend(begun.process.as_ref().map(AsFd::as_fd));
    loop {
        // Not more than one before the rest is looked at: a plug-in that babbles must not keep the daemon from stopping.
        if readable(&fds[..1], Duration::ZERO) {
            heard = Instant::now();
            match control::receive::<FromWorker>(begun.control.as_fd()) {
                Ok(Some(FromWorker::Hung { why })) => hung = Some(why),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("plug-in {}: {error}", shared.name());
                    break;
                }
            }
        } else if fds.len() > 1 && readable(&fds[1..], Duration::ZERO) {
            break;
        }
        if told_to_stop.is_none() && shared.state().stopping {
            told_to_stop = Some(Instant::now());
        }
        if told_to_stop.is_some_and(|at| at.elapsed() > shared.options.drain + END_WAIT) {
            tracing::warn!("plug-in {}: did not end in time; killed", shared.name());
            break;
        }
        if heard.elapsed() > shared.config.silence && told_to_stop.is_none() {
            hung = Some(format!("no sign of life for {:?}", shared.config.silence));
            break;
        }
        readable(&fds, Duration::from_millis(200));
    }
    let silent_end = told_to_stop.is_some() || shared.state().stopping;
    // One that is about to end by itself shows its own status.
    if hung.is_none() && fds.len() > 1 {
        readable(&fds[1..], Duration::from_millis(500));
    }
    let status = end_group(&mut begun.child);
    std::fs::remove_file(&begun.socket).ok();
    let name = shared.name();
    if silent_end {
        return FateKind::Stopped;
    }
    if hung.is_some() || status.and_then(|status| status.code()) == Some(EXIT_HUNG) {
        let why = hung.unwrap_or_else(|| "a call did not end".to_owned());
        tracing::error!("plug-in {name}: {why}; its process was ended");
        return FateKind::Hung;
    }
    let how = match status {
        Some(status) if status.signal().is_some() => {
            format!("was killed by signal {}", status.signal().unwrap_or_default())
        }
        Some(status) => format!("ended with exit code {}", status.code().unwrap_or_default()),
        None => "ended".to_owned(),
    };
    tracing::error!("plug-in {name}: its process {how}; calls in progress fail, it is begun again");
    FateKind::Crashed
}
