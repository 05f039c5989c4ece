//! A courier: a thread that takes frames from the queue and sends them to their nodes, over
//! connections that it keeps.

use super::{Payload, Sending, Shared, State, holders, note};
use crate::NodeState;
use crate::cluster::{Remote, Target, daemon_is_gone};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::Pushed;
use zazen_push::Event;

/// Connections that one courier keeps.
const CONNECTIONS_MAX: usize = 64;
/// A courier without work ends after this time.
const IDLE: Duration = Duration::from_secs(10);

pub(super) struct Courier<'a> {
    shared: &'a Arc<Shared>,
    connections: BTreeMap<usize, Remote>,
}

impl<'a> Courier<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Courier<'a> {
        Courier { shared, connections: BTreeMap::new() }
    }

    pub(super) fn run(mut self) {
        let mut state = self.shared.lock();
        loop {
            if state.stop {
                break;
            }
            let Some(sending) = state.queue.pop_front() else {
                state.idle += 1;
                let (woken, waited) =
                    self.shared.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
                continue;
            };
            let payload = state.entries.get(&sending.frame).map(|entry| entry.payload.clone());
            let died = state.deaths[sending.node] != sending.deaths;
            let mut trouble = None;
            let outcome = match payload {
                _ if died => Err(Error::new(ErrorKind::Unavailable, "the node died meanwhile")),
                // A queued frame has no fate yet, so its entry exists.
                None => Err(Error::new(ErrorKind::InvalidArgument, "the frame is gone")),
                Some(payload) => {
                    drop(state);
                    let outcome = self.carry(sending.node, &payload);
                    drop(payload);
                    // This may check the node once more, so do not hold the lock.
                    trouble =
                        outcome.as_ref().err().map(|error| NodeState::of(&self.target(sending.node), error));
                    state = self.shared.lock();
                    outcome
                }
            };
            // For other states the error's own message is better.
            let trouble = trouble.filter(|trouble| {
                use NodeState::{Dead, Hangs, UnknownName, Unreachable, WrongKey};
                matches!(trouble, Dead | Hangs | UnknownName | Unreachable | WrongKey)
            });
            self.report(&mut state, sending, died, outcome, trouble);
        }
        state.couriers -= 1;
    }

    fn target(&self, node: usize) -> Target {
        Target::Tcp(self.shared.nodes[node].clone())
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
            if may_have && holders::has(remote, payload).unwrap_or(false) {
                return Ok(Pushed::AlreadyHere);
            }
            remote.push(&payload.message(), &payload.bytes)
        };
        // A kept connection may have died although the node is well. So try one new connection.
        if let Some(mut remote) = self.connections.remove(&node) {
            match push(&mut remote) {
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
        let outcome = push(&mut remote);
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
        trouble: Option<NodeState>,
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
