//! A plug-in that acts as its callers, seen from the daemon: one process for each identity, begun on its first call.
//!
//! A process that crashes or hangs costs its own identity's calls; the next call of that identity begins another one.
//! Processes without clients end after a while, or as soon as another identity needs their place.
//!
//! Invariants: at most one process for each identity; at most `identities_max` in all and [`PER_USER_MAX`] for one
//! user; an identity is served by its own process or refused, never by another's; no lock is held while a process is
//! begun or waited for.

use crate::config::{HostOptions, PluginConfig};
use crate::control::{self, ToWorker};
use crate::identity::Identity;
use crate::object::Description;
use crate::process::{self, Keeper, Launch, watch_over};
use crate::stats::PluginReport;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zazen_call::{Carrier, Connection};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_wire::plugins::{Fate, FateKind, plugins_fn};
use zazen_wire::service;

/// Processes for one user: its groups make several identities of it.
const PER_USER_MAX: usize = 8;
/// A process without clients ends after so long …
const IDLE: Duration = Duration::from_secs(300);
/// … and not before it has had so long for a client to come that was told of it.
const HANDED_OUT: Duration = Duration::from_secs(5);
/// An identity whose process ended waits so long for the next one, doubled each time …
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
const FATES_MAX: usize = 256;
/// How long all processes together may take to tell their counters.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// The processes of one plug-in.
pub(crate) struct Identities {
    pub(crate) description: Description,
    shared: Arc<Shared>,
    own: Identity,
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
    workers: HashMap<Identity, Worker>,
    /// Of the last process, whosever it is.
    generation: u64,
    crashes: u64,
    fates: BTreeMap<u64, FateKind>,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Beginning,
    Running,
    /// Told to end, since nobody needs it.
    Ending,
    /// There is no process; the next one is not begun before `not_before`.
    Resting,
}

struct Worker {
    phase: Phase,
    generation: u64,
    pid: u32,
    control: Option<Arc<OwnedFd>>,
    clients: u64,
    /// When a client was last told of it.
    wanted: Instant,
    rest: Duration,
    not_before: Instant,
}

impl Worker {
    fn is_idle(&self, for_at_least: Duration) -> bool {
        self.phase == Phase::Running && self.clients == 0 && self.wanted.elapsed() > for_at_least
    }

    fn end(&mut self) {
        self.phase = Phase::Ending;
        if let Some(control) = &self.control {
            control::send(control.as_fd(), &ToWorker::Stop { patience_ms: 0 }).ok();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    fn name(&self) -> String {
        self.config.path.display().to_string()
    }
}

impl State {
    /// Whether there is a place for one more process of this user's; one that nobody needs is ended for it.
    fn make_room(&mut self, config: &PluginConfig, uid: u32) -> Result<()> {
        // What is left of those who were here.
        let quiet =
            |worker: &Worker| worker.phase == Phase::Resting && worker.not_before.elapsed() > GOOD_LIFE;
        self.workers.retain(|_, worker| !quiet(worker));
        let has_place = |worker: &Worker| matches!(worker.phase, Phase::Beginning | Phase::Running);
        let his = self.workers.iter().filter(|(whose, worker)| whose.uid == uid && has_place(worker)).count();
        let all = self.workers.values().filter(|worker| has_place(worker)).count();
        let of_user = his >= PER_USER_MAX;
        if !of_user && all < config.identities_max {
            return Ok(());
        }
        let idle = self
            .workers
            .iter_mut()
            .filter(|(whose, worker)| (!of_user || whose.uid == uid) && worker.is_idle(HANDED_OUT))
            .min_by_key(|(_, worker)| worker.wanted);
        if let Some((_, worker)) = idle {
            worker.end();
            return Ok(());
        }
        let name = config.path.display();
        let why = if of_user {
            format!(
                "user {uid} has {PER_USER_MAX} processes of plug-in {name} already, one for each group and set of groups, all \
                 in use; end some programs first"
            )
        } else {
            format!(
                "all {} processes of plug-in {name} are in use by others; try again later, or raise `identities` of \
                 this plug-in in zazend.toml",
                config.identities_max
            )
        };
        Err(Error::new(ErrorKind::Busy, why))
    }
}

impl Identities {
    /// Begins the process of the daemon's own identity, so that a plug-in which can't be loaded or refuses shows at
    /// once; `index` tells it from the daemon's other plug-ins.
    pub(crate) fn start(
        config: PluginConfig,
        options: HostOptions,
        index: usize,
        description: Description,
    ) -> Result<Identities> {
        let own = Identity::own()?;
        let shared =
            Arc::new(Shared { config, options, index, state: Mutex::default(), changed: Condvar::new() });
        let identities = Identities { description, shared, own: own.clone() };
        identities.of(&own)?;
        Ok(identities)
    }

    /// Where that caller is served, and by which process; begins it if there is none.
    pub(crate) fn socket(&self, caller: &Credentials) -> Result<(PathBuf, u64)> {
        let whom = Identity::of(caller).to_serve(&self.own)?;
        let generation = self.of(&whom)?;
        Ok((process::socket(&self.shared.options, self.shared.index, generation), generation))
    }

    fn of(&self, whom: &Identity) -> Result<u64> {
        let shared = &self.shared;
        let until = Instant::now() + BEGIN_WAIT;
        let mut state = shared.state();
        loop {
            if state.stopping {
                return Err(Error::new(ErrorKind::ShuttingDown, "the daemon stops and begins no plug-in"));
            }
            let now = Instant::now();
            let next_look = match state.workers.get_mut(whom) {
                Some(worker) if worker.phase == Phase::Running => {
                    worker.wanted = now;
                    return Ok(worker.generation);
                }
                Some(worker) if worker.phase == Phase::Resting && worker.not_before <= now => None,
                Some(worker) if worker.phase == Phase::Resting => Some(worker.not_before),
                Some(_) => Some(until),
                None => None,
            };
            let Some(next_look) = next_look else { break };
            if now >= until {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "plug-in {}: the process for user {} does not run at the moment; try again",
                        self.description.name, whom.uid
                    ),
                ));
            }
            state = shared.wait(state, next_look.min(until).saturating_duration_since(now));
        }
        state.make_room(&shared.config, whom.uid)?;
        state.generation += 1;
        let generation = state.generation;
        let now = Instant::now();
        let rest = state.workers.get(whom).map_or(Duration::ZERO, |worker| worker.rest);
        let beginning = Worker {
            phase: Phase::Beginning,
            generation,
            pid: 0,
            control: None,
            clients: 0,
            wanted: now,
            rest,
            not_before: now,
        };
        state.workers.insert(whom.clone(), beginning);
        drop(state);
        let begun = self.begin(whom, generation);
        if begun.is_err() {
            shared.ended(whom, generation, FateKind::Crashed, Duration::ZERO);
        }
        shared.changed.notify_all();
        begun.map(|()| generation)
    }

    fn begin(&self, whom: &Identity, generation: u64) -> Result<()> {
        let shared = &self.shared;
        let launch = Launch {
            config: &shared.config,
            options: &shared.options,
            index: shared.index,
            generation,
            identity: Some(whom),
        };
        let begun = launch.begin()?;
        let (pid, control) = (begun.child.id(), begun.control.clone());
        let watch = Watch { shared: shared.clone(), whom: whom.clone(), generation };
        let watch = move || {
            let since = Instant::now();
            let fate = watch_over(&watch, &watch.shared.config, &watch.shared.options, begun);
            watch.shared.ended(&watch.whom, watch.generation, fate, since.elapsed());
        };
        let mut state = shared.state();
        // Whether it began or not: without a thread the closure ends, and with it the control socket and the process.
        let thread = std::thread::Builder::new()
            .name(format!("plugin-{}", self.description.id))
            .spawn(watch)
            .map_err(|error| Error::io("start a plug-in's supervisor", error))?;
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
        let stopping = state.stopping;
        if let Some(worker) = state.workers.get_mut(whom).filter(|worker| worker.generation == generation) {
            worker.phase = Phase::Running;
            worker.pid = pid;
            worker.control = Some(control);
            worker.wanted = Instant::now();
            // A stop that came meanwhile found no process to tell.
            if stopping {
                worker.end();
            }
        }
        Ok(())
    }

    /// What became of that generation; asked by somebody who lost it, so it may take a moment to be known.
    pub(crate) fn fate(&self, generation: u64) -> Fate {
        let until = Instant::now() + FATE_WAIT;
        let mut state = self.shared.state();
        loop {
            let lives = state.workers.values().any(|worker| {
                worker.generation == generation && !matches!(worker.phase, Phase::Resting | Phase::Beginning)
            });
            let left = until.saturating_duration_since(Instant::now());
            let kind = match state.fates.get(&generation) {
                Some(kind) => *kind,
                None if !lives => FateKind::Crashed,
                None if left.is_zero() => FateKind::Running,
                None => {
                    state = self.shared.wait(state, left);
                    continue;
                }
            };
            let timeout =
                if kind == FateKind::Hung { self.shared.config.call_timeout() } else { Duration::ZERO };
            return Fate { kind: kind as u8, call_timeout_ms: timeout.as_millis() as u64 };
        }
    }

    /// A connection to the process of that caller; its replies may take `patience`.
    pub(crate) fn connect(
        &self,
        caller: &Credentials,
        patience: Option<Duration>,
    ) -> Result<(Connection, u64)> {
        let (socket, generation) = self.socket(caller)?;
        let mut connection = Connection::local(&socket, Carrier::Auto, BEGIN_WAIT)?;
        connection.set_timeout(patience);
        Ok((connection, generation))
    }

    /// Counters and state of all processes together; those that don't answer in time are left out.
    pub(crate) fn report(&self) -> PluginReport {
        let (running, generation, crashes) = {
            let state = self.shared.state();
            let running: Vec<(u64, u32)> = state
                .workers
                .values()
                .filter(|worker| worker.phase == Phase::Running)
                .map(|worker| (worker.generation, worker.pid))
                .collect();
            (running, state.generation, state.crashes)
        };
        let until = Instant::now() + REPORT_WAIT;
        let mut sum = PluginReport::of(&self.description);
        let (mut answered, mut pid) = (0, 0);
        for (generation, its_pid) in &running {
            let left = until.saturating_duration_since(Instant::now());
            let socket = process::socket(&self.shared.options, self.shared.index, *generation);
            if let Some(part) = (!left.is_zero()).then(|| counters(&socket, left)).flatten() {
                sum.add(&part);
                answered += 1;
            }
            pid = *its_pid;
        }
        PluginReport {
            path: self.shared.name(),
            placement: "isolated".to_owned(),
            state: if answered == running.len() { "running" } else { "silent" }.to_owned(),
            generation,
            pid: if running.len() == 1 { pid } else { 0 },
            crashes,
            ..sum
        }
    }

    /// Tells the processes to end; calls in progress may take the configured time.
    pub(crate) fn begin_stop(&self) {
        let patience_ms = self.shared.options.drain.as_millis() as u64;
        let mut state = self.shared.state();
        state.stopping = true;
        for worker in state.workers.values() {
            if let Some(control) = &worker.control {
                control::send(control.as_fd(), &ToWorker::Stop { patience_ms }).ok();
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until the processes have ended; those that take longer than they may are killed.
    pub(crate) fn stop(&self) {
        self.begin_stop();
        let threads = std::mem::take(&mut self.shared.state().threads);
        for thread in threads {
            // It panics only for our bugs; then there is nothing left to wait for.
            let _ = thread.join();
        }
    }
}

fn counters(socket: &std::path::Path, patience: Duration) -> Option<PluginReport> {
    let mut connection = Connection::local(socket, Carrier::Unix, patience).ok()?;
    connection.set_timeout(Some(patience));
    let reply = connection.call(service::PLUGINS, plugins_fn::STATS, &[], &[]).ok()?;
    serde_json::from_slice(&reply.payload).ok()
}

impl Drop for Identities {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// That process is gone, or never began.
    fn ended(&self, whom: &Identity, generation: u64, fate: FateKind, lived: Duration) {
        let mut state = self.state();
        state.crashes += u64::from(fate != FateKind::Stopped);
        state.fates.insert(generation, fate);
        if state.fates.len() > FATES_MAX {
            state.fates.pop_first();
        }
        if let Some(worker) = state.workers.get_mut(whom).filter(|worker| worker.generation == generation) {
            worker.phase = Phase::Resting;
            worker.pid = 0;
            worker.control = None;
            worker.clients = 0;
            // The first time at once: whoever calls again after a crash should find the plug-in there.
            let rest =
                if lived > GOOD_LIFE || fate == FateKind::Stopped { Duration::ZERO } else { worker.rest };
            worker.not_before = Instant::now() + rest;
            worker.rest = (rest * 2).clamp(REST_MIN, REST_MAX);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The watcher of one process.
struct Watch {
    shared: Arc<Shared>,
    whom: Identity,
    generation: u64,
}

impl Watch {
    fn with<T>(&self, look: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let mut state = self.shared.state();
        state.workers.get_mut(&self.whom).filter(|worker| worker.generation == self.generation).map(look)
    }
}

impl Keeper for Watch {
    fn name(&self) -> String {
        format!("{} for user {}", self.shared.name(), self.whom.uid)
    }

    fn is_stopping(&self) -> bool {
        self.shared.state().stopping || self.with(|worker| worker.phase == Phase::Ending) == Some(true)
    }

    fn heard(&self, clients: u64) {
        self.with(|worker| {
            worker.clients = clients;
            if worker.is_idle(IDLE) {
                worker.end();
            }
        });
    }
}
