//! One isolated plug-in, seen from the daemon: its process, begun again when it ends, and what became of each.
//!
//! Invariants: at most one process per plug-in; each generation's fate is known once its process is gone; no lock is
//! held while anything is waited for but the lock's own condition.

use crate::config::{HostOptions, PluginConfig};
use crate::control::{self, ToWorker};
use crate::object::Description;
use crate::process::{self, Begun, Keeper, Launch, watch_over};
use crate::stats::PluginReport;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zazen_call::{Carrier, Connection};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::plugins::{Fate, FateKind, plugins_fn};
use zazen_wire::service;

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

/// An isolated plug-in.
pub(crate) struct Supervisor {
    pub(crate) description: Description,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: PluginConfig,
    options: HostOptions,
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

    fn begin(&self, generation: u64) -> Result<Begun> {
        self.launch(generation).begin()
    }

    fn launch(&self, generation: u64) -> Launch<'_> {
        Launch { config: &self.config, options: &self.options, index: self.index, generation, identity: None }
    }
}

impl Keeper for Shared {
    fn name(&self) -> String {
        self.config.path.display().to_string()
    }

    fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    fn heard(&self, _clients: u64) {}
}

impl Supervisor {
    /// Begins the plug-in's process; `index` tells it from the daemon's other plug-ins. Fails with `Config` if it
    /// can't be loaded or refuses.
    pub(crate) fn start(config: PluginConfig, options: HostOptions, index: usize) -> Result<Supervisor> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { config, options, index, state, changed: Condvar::new() });
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

    /// Where the plug-in serves now, and which generation it is; waits for one that is being begun. `Unavailable` if it
    /// crashes all the time or is stopped.
    pub(crate) fn socket(&self) -> Result<(PathBuf, u64)> {
        let done = |state: &State| matches!(state.phase, Phase::Running | Phase::Stopped);
        let state = self.shared.wait_until(BEGIN_WAIT, done);
        if state.phase != Phase::Running {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("plug-in {} does not run at the moment; try again", self.description.name),
            ));
        }
        let generation = state.generation;
        Ok((process::socket(&self.shared.options, self.shared.index, generation), generation))
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
        let timeout = if kind == FateKind::Hung { self.shared.config.call_timeout() } else { Duration::ZERO };
        Fate { kind: kind as u8, call_timeout_ms: timeout.as_millis() as u64 }
    }

    /// A connection to the plug-in's process; its replies may take `patience`.
    pub(crate) fn connect(&self, patience: Option<Duration>) -> Result<(Connection, u64)> {
        let (socket, generation) = self.socket()?;
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
            let fate = watch_over(shared, &shared.config, &shared.options, begun);
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
