//! An isolated plug-in, seen from the daemon: its processes, and what became of each.
//!
//! A plug-in that acts as the daemon's user has one process for everybody. It is begun again when
//! it ends. A plug-in that acts as its callers has one process for each identity, begun on the
//! first call of that identity. If such a process crashes or hangs, only its own identity's calls
//! fail; the next call begins another process. A process of an identity ends if it has no clients
//! for a while, or if another identity needs its place.
//!
//! Invariants: at most one process for each identity, or one in all; at most `identities_max`
//! processes of identities and [`PER_USER_MAX`] of one user; the process of an identity serves that
//! identity only; no lock is held while a process is begun, asked or waited for; each generation's
//! fate is known once its process is gone.

use crate::config::{HostOptions, PluginConfig};
use crate::control::{self, ToWorker};
use crate::counters::Counters;
use crate::identity::Identity;
use crate::object::Description;
use crate::process::{self, Keeper, Launch, watch_over};
use crate::stats::PluginReport;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zazen_call::{Carrier, Connection};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_wire::plugins::{Fate, FateKind};

/// The most processes of one user: its groups make several identities of it.
const PER_USER_MAX: usize = 8;
/// The process of an identity ends after it had no clients for this long …
const IDLE: Duration = Duration::from_secs(300);
/// … but a client that was told of the process has this long to connect.
const HANDED_OUT: Duration = Duration::from_secs(5);
/// The first rest before a process is begun again; each further rest is twice as long …
const REST_MIN: Duration = Duration::from_millis(50);
/// … up to this.
const REST_MAX: Duration = Duration::from_secs(30);
/// A process that lived this long ended for a new reason: the rests begin anew.
const GOOD_LIFE: Duration = Duration::from_secs(60);
/// How long a caller waits for a process that is being begun, or for the end of the one before.
const BEGIN_WAIT: Duration = Duration::from_secs(10);
/// How long a caller that lost a process waits to learn why.
const FATE_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether a process has ended that lost a caller.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many generations' fates are kept.
const FATES_MAX: usize = 256;
/// A process gives a sign of life each second. After this long without one, reports call it silent.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Whom a process serves: one identity, which the process has become; or everybody, as the daemon's
/// user.
type Whom = Option<Identity>;

/// An isolated plug-in.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    own: Identity,
}

struct Shared {
    config: PluginConfig,
    options: HostOptions,
    /// Tells the plug-in from the daemon's other plug-ins.
    index: usize,
    description: Description,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    workers: HashMap<Whom, Worker>,
    /// Of the process that was begun last.
    generation: u64,
    crashes: u64,
    fates: BTreeMap<u64, FateKind>,
    /// Processes that callers found gone, whose watchers have not said so yet.
    found_gone: BTreeSet<u64>,
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
    counters: Option<Arc<Counters>>,
    clients: u64,
    /// When its last sign of life came.
    heard: Instant,
    /// When a client was last told of it.
    wanted: Instant,
    began: Instant,
    rest: Duration,
    not_before: Instant,
}

impl Worker {
    fn beginning(generation: u64, rest: Duration) -> Worker {
        let now = Instant::now();
        Worker {
            phase: Phase::Beginning,
            generation,
            pid: 0,
            control: None,
            counters: None,
            clients: 0,
            heard: now,
            wanted: now,
            began: now,
            rest,
            not_before: now,
        }
    }

    fn is_idle(&self, for_at_least: Duration) -> bool {
        self.phase == Phase::Running && self.clients == 0 && self.wanted.elapsed() > for_at_least
    }

    /// Whether its process has ended, though the thread that watches it has not said so yet.
    fn is_gone(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control::is_closed(control.as_fd()))
    }

    /// The process has ended. It rests before the next one begins, but not the first time: a caller
    /// that tries again after a crash should find the plug-in there.
    fn rest(&mut self, has_crashed: bool) {
        let is_new = self.began.elapsed() > GOOD_LIFE || !has_crashed;
        let rest = if is_new { Duration::ZERO } else { self.rest };
        *self = Worker {
            phase: Phase::Resting,
            not_before: Instant::now() + rest,
            ..Worker::beginning(self.generation, (rest * 2).clamp(REST_MIN, REST_MAX))
        };
    }

    fn end(&mut self) {
        self.phase = Phase::Ending;
        self.tell_to_stop(Duration::ZERO);
    }

    /// Tells the process to end; calls in progress may take `patience`. A process that is gone
    /// needs no telling.
    fn tell_to_stop(&self, patience: Duration) {
        if let Some(control) = &self.control {
            let patience_ms = patience.as_millis() as u64;
            control::send(control.as_fd(), &ToWorker::Stop { patience_ms }).ok();
        }
    }
}

impl State {
    /// If the process has crashed and its watcher has not said so yet, the next one need not wait
    /// for the watcher.
    fn find_gone(&mut self, whom: &Whom) {
        if let Some(worker) = self.workers.get_mut(whom)
            && worker.phase == Phase::Running
            && worker.is_gone()
        {
            self.found_gone.insert(worker.generation);
            worker.rest(true);
        }
    }

    /// Whether there is a process of that generation, as far as its watcher has said.
    fn has_process(&self, generation: u64) -> bool {
        self.found_gone.contains(&generation) || self.worker(generation).is_some()
    }

    /// That process, unless somebody knows that it has ended.
    fn worker(&self, generation: u64) -> Option<&Worker> {
        let lives = |worker: &&Worker| matches!(worker.phase, Phase::Running | Phase::Ending);
        self.workers.values().filter(lives).find(|worker| worker.generation == generation)
    }

    /// Whether the process of that generation serves nobody any more.
    fn is_gone(&self, generation: u64) -> bool {
        self.worker(generation).is_none_or(Worker::is_gone)
    }

    /// Makes a place for one more process of this user's, if need be by ending one without clients.
    /// `Busy` if there is none.
    fn make_room(&mut self, config: &PluginConfig, uid: u32) -> Result<()> {
        // Forget identities that were not here for long.
        let quiet =
            |worker: &Worker| worker.phase == Phase::Resting && worker.not_before.elapsed() > GOOD_LIFE;
        self.workers.retain(|_, worker| !quiet(worker));
        let is_his = |whom: &Whom| whom.as_ref().is_some_and(|whom| whom.uid == uid);
        let has_place = |worker: &Worker| matches!(worker.phase, Phase::Beginning | Phase::Running);
        let his = self.workers.iter().filter(|(whom, worker)| is_his(whom) && has_place(worker)).count();
        let all = self.workers.values().filter(|worker| has_place(worker)).count();
        let of_user = his >= PER_USER_MAX;
        if !of_user && all < config.identities_max {
            return Ok(());
        }
        let idle = self
            .workers
            .iter_mut()
            .filter(|(whom, worker)| (!of_user || is_his(whom)) && worker.is_idle(HANDED_OUT))
            .min_by_key(|(_, worker)| worker.wanted);
        if let Some((_, worker)) = idle {
            worker.end();
            return Ok(());
        }
        let name = config.path.display();
        let why = if of_user {
            format!(
                "user {uid} has {PER_USER_MAX} processes of plug-in {name} already, one for each group and \
                 set of groups, all in use; end some programs first"
            )
        } else {
            format!(
                "all {} processes of plug-in {name} are in use by others; try again later, or raise \
                 `identities` of this plug-in in zazend.toml",
                config.identities_max
            )
        };
        Err(Error::new(ErrorKind::Busy, why))
    }
}

/// What [`Shared::wait_until_ready`] found.
enum Readiness {
    /// The process of this generation runs.
    Runs(u64),
    /// The caller is to begin the process of this generation.
    Begin(u64),
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

    /// Waits until the process runs or, with `begins`, until it may be begun: then the place is the
    /// caller's, who must begin the process. `Unavailable` after [`BEGIN_WAIT`].
    fn wait_until_ready(&self, whom: &Whom, begins: bool) -> Result<Readiness> {
        let until = Instant::now() + BEGIN_WAIT;
        let mut state = self.state();
        loop {
            if state.stopping {
                return Err(Error::new(ErrorKind::ShuttingDown, "the daemon stops and begins no plug-in"));
            }
            if begins {
                state.find_gone(whom);
            }
            let now = Instant::now();
            let next_look = match state.workers.get_mut(whom) {
                Some(worker) if worker.phase == Phase::Running && !worker.is_gone() => {
                    worker.wanted = now;
                    return Ok(Readiness::Runs(worker.generation));
                }
                Some(worker) if begins && worker.phase == Phase::Resting => {
                    Some(worker.not_before).filter(|not_before| *not_before > now)
                }
                None if begins => None,
                _ => Some(until),
            };
            let Some(next_look) = next_look else { break };
            if now >= until {
                return Err(Error::new(ErrorKind::Unavailable, self.does_not_run(whom)));
            }
            state = self.wait(state, next_look.min(until).saturating_duration_since(now));
        }
        if let Some(identity) = whom {
            state.make_room(&self.config, identity.uid)?;
        }
        state.generation += 1;
        let generation = state.generation;
        let rest = state.workers.get(whom).map_or(Duration::ZERO, |worker| worker.rest);
        state.workers.insert(whom.clone(), Worker::beginning(generation, rest));
        Ok(Readiness::Begin(generation))
    }

    fn does_not_run(&self, whom: &Whom) -> String {
        let name = &self.description.name;
        match whom {
            None => format!("plug-in {name} does not run at the moment; try again"),
            Some(whom) => {
                let uid = whom.uid;
                format!("plug-in {name}: the process for user {uid} does not run at the moment; try again")
            }
        }
    }

    /// The generation of the process that serves `whom`; it is begun if there is none and `begins`.
    fn serving(self: &Arc<Shared>, whom: &Whom, begins: bool) -> Result<u64> {
        let generation = match self.wait_until_ready(whom, begins)? {
            Readiness::Runs(generation) => return Ok(generation),
            Readiness::Begin(generation) => generation,
        };
        let begun = self.begin(whom, generation);
        if begun.is_err() {
            self.ended(whom, generation, FateKind::Crashed);
        }
        self.changed.notify_all();
        begun.map(|()| generation)
    }

    /// Begins a process, and the thread that watches it.
    fn begin(self: &Arc<Shared>, whom: &Whom, generation: u64) -> Result<()> {
        let launch = Launch {
            config: &self.config,
            options: &self.options,
            index: self.index,
            generation,
            identity: whom.as_ref(),
            function_count: self.description.functions.len(),
        };
        let begun = launch.begin()?;
        let (pid, control, counters) = (begun.child.id(), begun.control.clone(), begun.counters.clone());
        let watch = Watch { shared: self.clone(), whom: whom.clone(), generation };
        let watch = move || {
            let Watch { shared, whom, generation } = &watch;
            let fate = watch_over(&watch, &shared.config, &shared.options, begun);
            shared.ended(whom, *generation, fate);
            if whom.is_none() {
                shared.begin_again();
            }
        };
        let mut state = self.state();
        // Whether it began or not: without a thread the closure is dropped, and with it the control
        // socket, which ends the process.
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
            worker.counters = Some(counters);
            (worker.heard, worker.wanted) = (Instant::now(), Instant::now());
            // A stop that came meanwhile found no process to tell.
            if stopping {
                worker.end();
            }
        }
        Ok(())
    }

    /// Begins the process that serves everybody, after its rests, until it runs or the daemon
    /// stops. Callers only wait for it, so that none of them pays for an object that can't be
    /// loaded any more.
    fn begin_again(self: &Arc<Shared>) {
        loop {
            match self.serving(&None, true) {
                Ok(generation) => {
                    return tracing::info!("plug-in {}: begun again (generation {generation})", self.name());
                }
                Err(error) => match error.kind() {
                    ErrorKind::ShuttingDown => return,
                    // It rests for longer than callers wait.
                    ErrorKind::Unavailable => {}
                    _ => tracing::error!("{error}; it is tried again"),
                },
            }
        }
    }

    /// That process is gone, or never began.
    fn ended(&self, whom: &Whom, generation: u64, fate: FateKind) {
        let mut state = self.state();
        state.crashes += u64::from(fate != FateKind::Stopped);
        state.fates.insert(generation, fate);
        if state.fates.len() > FATES_MAX {
            state.fates.pop_first();
        }
        if !state.found_gone.remove(&generation)
            && let Some(worker) = state.workers.get_mut(whom)
            && worker.generation == generation
        {
            worker.rest(fate != FateKind::Stopped);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Supervisor {
    /// Checks the object and begins a process, so that a plug-in which can't be loaded or refuses
    /// shows at once: that of the daemon's own identity if the plug-in acts as its callers. `index`
    /// tells it from the daemon's other plug-ins.
    pub(crate) fn start(config: &PluginConfig, options: &HostOptions, index: usize) -> Result<Supervisor> {
        let description = Launch::to_check(config, options, index).check()?;
        let acts_as_caller = description.acts_as_caller || config.acts_as_caller;
        let shared = Arc::new(Shared {
            config: PluginConfig { acts_as_caller, ..config.clone() },
            options: options.clone(),
            index,
            description,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let supervisor = Supervisor { shared, own: Identity::own()? };
        let first = acts_as_caller.then(|| supervisor.own.clone());
        supervisor.shared.serving(&first, true)?;
        Ok(supervisor)
    }

    /// What the plug-in is.
    pub(crate) fn description(&self) -> &Description {
        &self.shared.description
    }

    /// Where that caller is served, and by which generation. Begins the process of the caller's
    /// identity if there is none; waits for a process that is being begun.
    pub(crate) fn socket(&self, caller: &Credentials) -> Result<(PathBuf, u64)> {
        let shared = &self.shared;
        let generation = if shared.config.acts_as_caller {
            shared.serving(&Some(Identity::of(caller).to_serve(&self.own)?), true)?
        } else {
            shared.serving(&None, false)?
        };
        Ok((process::socket(&shared.options, shared.index, generation), generation))
    }

    /// A connection to the process that serves that caller; its replies may take `patience`.
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

    /// Hands `ask` a connection to the process that serves that caller; that of the next process
    /// if this one has ended before its answer. `ask` may be called twice.
    pub(crate) fn asked<T>(
        &self,
        caller: &Credentials,
        mut ask: impl FnMut(Connection, u64) -> Result<T>,
    ) -> Result<T> {
        let mut has_lost = false;
        loop {
            let (socket, generation) = self.socket(caller)?;
            let answer = Connection::local(&socket, Carrier::Auto, BEGIN_WAIT).and_then(|mut connection| {
                connection.set_timeout(None);
                ask(connection, generation)
            });
            let is_lost = |error: &Error| {
                use ErrorKind::{Io, NotFound, Protocol, Unavailable};
                matches!(error.kind(), Io | NotFound | Protocol | Unavailable) && self.is_gone(generation)
            };
            match answer {
                Err(error) if !has_lost && is_lost(&error) => has_lost = true,
                answer => return answer,
            }
        }
    }

    /// Whether that process has ended. A caller asks that lost it a moment ago, so this waits for
    /// the end: the connections of a process that is killed end one after the other, and on a busy
    /// machine that takes a while.
    fn is_gone(&self, generation: u64) -> bool {
        let until = Instant::now() + BEGIN_WAIT;
        let mut state = self.shared.state();
        loop {
            if state.is_gone(generation) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(state, left.min(LOOK_EVERY));
        }
    }

    /// What became of that generation. A caller asks that lost it a moment ago, so this waits a
    /// moment for the fate.
    pub(crate) fn fate(&self, generation: u64) -> Fate {
        let until = Instant::now() + FATE_WAIT;
        let mut state = self.shared.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let kind = match state.fates.get(&generation) {
                Some(kind) => *kind,
                None if !state.has_process(generation) => FateKind::Crashed,
                None if left.is_zero() && state.is_gone(generation) => FateKind::Crashed,
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

    /// Counters and state of all processes together. It asks no process: the counters lie in memory
    /// that each process shares with the daemon, so a process that answers nobody delays no report.
    pub(crate) fn report(&self) -> PluginReport {
        let shared = &self.shared;
        let mut running = Vec::new();
        let (mut is_silent, mut pid) = (false, 0);
        let (generation, crashes, stopping) = {
            let state = shared.state();
            for worker in state.workers.values().filter(|worker| worker.phase == Phase::Running) {
                running.extend(worker.counters.clone());
                is_silent |= worker.heard.elapsed() > SILENT_AFTER;
                pid = worker.pid;
            }
            (state.generation, state.crashes, state.stopping)
        };
        let mut sum = PluginReport::of(&shared.description);
        for counters in &running {
            sum.add(&counters.read(&shared.description));
        }
        let per_caller = shared.config.acts_as_caller;
        let is_down = !per_caller && running.is_empty();
        PluginReport {
            path: shared.name(),
            placement: "isolated".to_owned(),
            state: match (is_down, stopping) {
                (false, _) if is_silent => "silent",
                (false, _) => "running",
                (true, false) => "restarting",
                (true, true) => "stopped",
            }
            .to_owned(),
            generation,
            pid: if running.len() == 1 { pid } else { 0 },
            processes: if per_caller { running.len() as u64 } else { 0 },
            crashes,
            ..sum
        }
    }

    /// Tells the processes to end; calls in progress may take the configured time.
    pub(crate) fn begin_stop(&self) {
        let mut state = self.shared.state();
        state.stopping = true;
        for worker in state.workers.values() {
            worker.tell_to_stop(self.shared.options.drain);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until the processes have ended; those that take longer than they may are killed.
    pub(crate) fn stop(&self) {
        self.begin_stop();
        loop {
            // A thread may have begun the next process, and its thread, when the stop came.
            let threads = std::mem::take(&mut self.shared.state().threads);
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                // It panics only for our bugs; then there is nothing left to wait for.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The watcher of one process.
struct Watch {
    shared: Arc<Shared>,
    whom: Whom,
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
        match &self.whom {
            None => self.shared.name(),
            Some(whom) => format!("{} for user {}", self.shared.name(), whom.uid),
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.state().stopping || self.with(|worker| worker.phase == Phase::Ending) == Some(true)
    }

    fn heard(&self, clients: u64) {
        self.with(|worker| {
            worker.clients = clients;
            worker.heard = Instant::now();
            if self.whom.is_some() && worker.is_idle(IDLE) {
                worker.end();
            }
        });
    }
}
