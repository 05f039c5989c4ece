//! The frames in flight, and couriers: threads that take frames from the queue and send them to
//! their nodes, over connections that they keep. [`Shared::step`] carries out what the writer
//! decides.

use super::holders::{Holders, has};
use super::payload::Payload;
use crate::NodeState;
use crate::cluster::{Remote, Target, daemon_is_gone};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::ClusterKey;
use zazen_core::{Error, ErrorKind, FrameNo, Result};
use zazen_frames::messages::Pushed;
use zazen_push::{Action, Event, OnSlow, Writer};

/// Failures kept as text.
const PROBLEMS_MAX: usize = 32;
/// Connections that one courier keeps.
const CONNECTIONS_MAX: usize = 64;
/// Frames that go in one message, and their bytes together, beside the first one's.
const TOGETHER_MAX: usize = 16;
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// A courier without work ends after this time.
const IDLE: Duration = Duration::from_secs(10);

/// A submitted frame without its fate.
pub(super) struct InFlight {
    pub(super) payload: Arc<Payload>,
    /// The window has accepted the frame, or it was given up.
    pub(super) accepted: bool,
    /// A newer version of the same frame. It is submitted when this one has its fate.
    pub(super) newer: Option<Arc<Payload>>,
}

/// A frame to send to a node.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub(super) frame: FrameNo,
    pub(super) node: usize,
    /// How often the node had died when this was queued. If it has died since, no courier waits for
    /// it again.
    pub(super) deaths: u64,
}

pub(super) struct State {
    pub(super) writer: Writer,
    pub(super) entries: BTreeMap<FrameNo, InFlight>,
    pub(super) newer_bytes: u64,
    pub(super) queue: VecDeque<Sending>,
    pub(super) deaths: Vec<u64>,
    pub(super) problems: VecDeque<String>,
    pub(super) couriers: usize,
    pub(super) idle: usize,
    /// A thread waits for `settled`, and has not been woken yet.
    pub(super) waits: bool,
    pub(super) stop: bool,
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Couriers wait here for frames to send.
    pub(super) work: Condvar,
    /// Callers of push wait here for room, callers of finish for the end.
    pub(super) settled: Condvar,
    pub(super) begun: Instant,
    pub(super) nodes: Vec<String>,
    pub(super) key: ClusterKey,
    pub(super) holders: Holders,
    pub(super) timeout: Duration,
    pub(super) couriers_max: usize,
    pub(super) on_slow: OnSlow,
    pub(super) window_bytes: u64,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until some frame was accepted or got its fate. It may return earlier.
    pub(super) fn wait_settled<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waits = true;
        self.settled.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for `settled`: a system call, so only once for all frames of a batch.
    fn wake_settled(&self, state: &mut State) {
        if std::mem::take(&mut state.waits) {
            self.settled.notify_all();
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub(super) fn submit(self: &Arc<Shared>, state: &mut State, frame: FrameNo, payload: Arc<Payload>) {
        let bytes = payload.bytes.len() as u64;
        state.entries.insert(frame, InFlight { payload, accepted: false, newer: None });
        self.step(state, Event::Submit { frame, bytes });
    }

    /// Gives up a frame that waits behind an older frame with its number. The writer counts it as
    /// skipped.
    pub(super) fn drop_newer(self: &Arc<Shared>, state: &mut State, frame: FrameNo, take: bool) {
        if take && let Some(entry) = state.entries.get_mut(&frame) {
            let dropped = entry.newer.take();
            state.newer_bytes -= dropped.map_or(0, |newer| newer.bytes.len() as u64);
        }
        self.step(state, Event::Submit { frame, bytes: 0 });
    }

    /// Gives one event to the writer and carries out the resulting actions.
    fn step(self: &Arc<Shared>, state: &mut State, event: Event) {
        let mut actions = Vec::new();
        let mut resubmit = Vec::new();
        state.writer.step(self.now_ns(), event, &mut actions);
        for action in actions {
            match action {
                Action::Send { frame, node } => {
                    let deaths = state.deaths[node];
                    state.queue.push_back(Sending { frame, node, deaths });
                    self.call_courier(state);
                }
                Action::Accept { frame } => {
                    if let Some(entry) = state.entries.get_mut(&frame) {
                        entry.accepted = true;
                    }
                    self.wake_settled(state);
                }
                Action::Done { frame, .. } => {
                    let newer = state.entries.remove(&frame).and_then(|entry| entry.newer);
                    resubmit.extend(newer.map(|newer| (frame, newer)));
                    self.wake_settled(state);
                }
            }
        }
        for (frame, newer) in resubmit {
            state.newer_bytes -= newer.bytes.len() as u64;
            self.submit(state, frame, newer);
        }
    }

    /// Makes sure that a courier takes what was queued.
    fn call_courier(self: &Arc<Shared>, state: &mut State) {
        if state.idle >= state.queue.len() || state.couriers >= self.couriers_max {
            // A courier that is not idle looks at the queue before it rests.
            if state.idle > 0 {
                self.work.notify_one();
            }
            return;
        }
        let shared = self.clone();
        let spawned = std::thread::Builder::new()
            .name("zazen-push".to_owned())
            .spawn(move || Courier::new(&shared).run());
        match spawned {
            Ok(_) => state.couriers += 1,
            Err(error) if state.couriers == 0 => {
                note(state, format!("no thread to push with: {error}"));
                // No courier will ever send it, so it fails now.
                if let Some(Sending { frame, node, .. }) = state.queue.pop_back() {
                    self.step(state, Event::Failed { frame, node });
                }
            }
            Err(_) => self.work.notify_one(),
        }
    }
}

fn note(state: &mut State, problem: String) {
    tracing::debug!("{problem}");
    if state.problems.len() == PROBLEMS_MAX {
        state.problems.pop_front();
    }
    state.problems.push_back(problem);
}

struct Courier<'a> {
    shared: &'a Arc<Shared>,
    connections: BTreeMap<usize, Remote>,
    /// Nodes whose daemons take one frame at a time.
    singly: BTreeSet<usize>,
}

impl<'a> Courier<'a> {
    fn new(shared: &'a Arc<Shared>) -> Courier<'a> {
        Courier { shared, connections: BTreeMap::new(), singly: BTreeSet::new() }
    }

    fn run(mut self) {
        let mut state = self.shared.lock();
        loop {
            if state.stop {
                break;
            }
            let batch = take_batch(&mut state);
            if batch.is_empty() {
                state.idle += 1;
                let (woken, waited) =
                    self.shared.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
                continue;
            }
            let node = batch[0].0.node;
            let died = state.deaths[node] != batch[0].0.deaths;
            let mut trouble = None;
            let outcomes: Vec<Result<Pushed>> = match died {
                true => batch.iter().map(|_| Err(dead())).collect(),
                false => {
                    drop(state);
                    let payloads: Vec<&Payload> = batch.iter().map(|(_, payload)| &**payload).collect();
                    let outcomes = self.carry_all(node, &payloads);
                    // This may check the node once more, so do not hold the lock.
                    let failed = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
                    trouble = failed.map(|error| NodeState::of(&self.target(node), error));
                    state = self.shared.lock();
                    outcomes
                }
            };
            // For other states the error's own message is better.
            let trouble = trouble.filter(|trouble| {
                use NodeState::{Dead, Hangs, UnknownName, Unreachable, WrongKey};
                matches!(trouble, Dead | Hangs | UnknownName | Unreachable | WrongKey)
            });
            for ((sending, payload), outcome) in batch.into_iter().zip(outcomes) {
                // The frame's bytes go before its fate is known to those who wait for it.
                drop(payload);
                self.report(&mut state, sending, died, outcome, trouble.as_ref());
            }
        }
        state.couriers -= 1;
    }

    fn target(&self, node: usize) -> Target {
        Target::Tcp(self.shared.nodes[node].clone())
    }

    /// Sends frames to `node`: several small ones in one message.
    fn carry_all(&mut self, node: usize, payloads: &[&Payload]) -> Vec<Result<Pushed>> {
        let shared = self.shared;
        let is_new = |payload: &&Payload| {
            payloads.len() > 1 && shared.holders.holder(&shared.nodes, &shared.key, payload).is_none()
        };
        let together: Vec<&Payload> = payloads.iter().copied().filter(is_new).collect();
        let mut told = match together.len() {
            0 | 1 => None,
            _ => self.carry_together(node, &together).map(Vec::into_iter),
        };
        let mut outcomes = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let told = told.as_mut().filter(|_| together.iter().any(|one| std::ptr::eq(*one, *payload)));
            outcomes.push(told.and_then(Iterator::next).unwrap_or_else(|| self.carry(node, payload)));
        }
        outcomes
    }

    /// Sends frames to `node` in one message. `None`: its daemon takes only one frame at a time.
    fn carry_together(&mut self, node: usize, payloads: &[&Payload]) -> Option<Vec<Result<Pushed>>> {
        if self.singly.contains(&node) {
            return None;
        }
        let bytes: Vec<&[u8]> = payloads.iter().map(|payload| &payload.bytes[..]).collect();
        let sent = self.with_connection(node, |remote| {
            remote.push_many(payloads.iter().map(|payload| payload.message()).collect(), &bytes)
        });
        match sent {
            Ok(outcomes) => {
                for (payload, outcome) in payloads.iter().zip(&outcomes) {
                    if outcome.is_ok() {
                        self.shared.holders.note(node, payload);
                    }
                }
                Some(outcomes)
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.singly.insert(node);
                None
            }
            Err(error) => {
                let same = || Err(Error::new(error.kind(), error.to_string()));
                Some(payloads.iter().map(|_| same()).collect())
            }
        }
    }

    /// Sends a frame to `node`, or to the node that already has it.
    fn carry(&mut self, node: usize, payload: &Payload) -> Result<Pushed> {
        let shared = self.shared;
        if let Some(holder) = shared.holders.holder(&shared.nodes, &shared.key, payload) {
            let outcome = self.carry_to(holder, payload, true);
            // Any answer of the holder counts, except that it cannot take the frame. Then another
            // node may.
            let cannot = |error: &Error| {
                daemon_is_gone(error) || matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::TimedOut)
            };
            if holder == node || !outcome.as_ref().is_err_and(cannot) {
                return outcome;
            }
        }
        let outcome = self.carry_to(node, payload, false);
        if outcome.is_ok() {
            shared.holders.note(node, payload);
        }
        outcome
    }

    /// Sends a frame to `node`. If the node `may_have` it, ask the node first.
    fn carry_to(&mut self, node: usize, payload: &Payload, may_have: bool) -> Result<Pushed> {
        let push = |remote: &mut Remote| {
            // A daemon that does not know this request still takes the frame.
            if may_have && has(remote, payload).unwrap_or(false) {
                return Ok(Pushed::AlreadyHere);
            }
            remote.push(&payload.message(), &payload.bytes)
        };
        self.with_connection(node, push)
    }

    /// Calls `node` over the kept connection, or over a new one.
    fn with_connection<T>(
        &mut self,
        node: usize,
        mut call: impl FnMut(&mut Remote) -> Result<T>,
    ) -> Result<T> {
        // A kept connection may have died although the node is well. So try one new connection.
        if let Some(mut remote) = self.connections.remove(&node) {
            match call(&mut remote) {
                Err(error) if error.kind() == ErrorKind::Unavailable && !remote.is_alive() => {}
                outcome => {
                    self.keep(node, remote);
                    return outcome;
                }
            }
        }
        let mut remote =
            Remote::connect_within(&self.target(node), Some(&self.shared.key), self.shared.timeout)?;
        remote.set_timeout(Some(self.shared.timeout));
        let outcome = call(&mut remote);
        self.keep(node, remote);
        outcome
    }

    fn keep(&mut self, node: usize, remote: Remote) {
        if remote.is_alive() {
            if self.connections.len() >= CONNECTIONS_MAX {
                self.connections.pop_first();
            }
            self.connections.insert(node, remote);
        }
    }

    fn report(
        &self,
        state: &mut State,
        sending: Sending,
        died: bool,
        outcome: Result<Pushed>,
        trouble: Option<&NodeState>,
    ) {
        let Sending { frame, node, .. } = sending;
        let event = match &outcome {
            Ok(Pushed::Stored) => Event::Acknowledged { frame, node, already: false },
            Ok(Pushed::AlreadyHere) => Event::Acknowledged { frame, node, already: true },
            Err(error) => match error.kind() {
                ErrorKind::NoSpace | ErrorKind::Busy => Event::Full { frame, node },
                ErrorKind::InvalidArgument
                | ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::Conflict
                | ErrorKind::TooLarge
                | ErrorKind::Unsupported
                | ErrorKind::Stale
                | ErrorKind::Config => Event::Refused { frame, node },
                ErrorKind::Unavailable
                | ErrorKind::TimedOut
                | ErrorKind::Corrupt
                | ErrorKind::Protocol
                | ErrorKind::Authentication
                | ErrorKind::ShuttingDown
                | ErrorKind::Io
                | ErrorKind::Mpi => Event::Failed { frame, node },
            },
        };
        if let (Err(error), false) = (&outcome, died) {
            let addr = &self.shared.nodes[node];
            note(
                state,
                match trouble {
                    Some(trouble) => format!("node {addr}: {trouble}: frame {frame}: {error}"),
                    None => format!("node {addr}: frame {frame}: {error}"),
                },
            );
        }
        let deaths = state.writer.counters().node_deaths;
        self.shared.step(state, event);
        state.deaths[node] += state.writer.counters().node_deaths - deaths;
    }
}

/// The next frame of the queue, and the small frames behind it for the same node. Nobody waits for
/// a batch to become full: what came while the last one was sent makes the next one.
fn take_batch(state: &mut State) -> Vec<(Sending, Arc<Payload>)> {
    let mut batch: Vec<(Sending, Arc<Payload>)> = Vec::new();
    let (mut bytes, mut at) = (0, 0);
    while at < state.queue.len() && batch.len() < TOGETHER_MAX {
        let sending = state.queue[at];
        // A queued frame has no fate yet, so its entry exists.
        let Some(entry) = state.entries.get(&sending.frame) else {
            state.queue.remove(at);
            continue;
        };
        let length = entry.payload.bytes.len();
        let belongs = batch.first().is_none_or(|(first, _)| {
            (first.node, first.deaths) == (sending.node, sending.deaths)
                && bytes + length <= TOGETHER_BYTES_MAX
        });
        if !belongs {
            at += 1;
            continue;
        }
        bytes += length;
        batch.push((sending, entry.payload.clone()));
        state.queue.remove(at);
    }
    batch
}

fn dead() -> Error {
    Error::new(ErrorKind::Unavailable, "the node died meanwhile")
}
