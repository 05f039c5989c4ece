//! Connections to the far side that are made before a program asks for one: a program that starts
//! others waits for no proof of the key.
//!
//! Invariant: a spare connection is given to one caller only, who is who the far side was told.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_call::{ClusterKey, Connection, Identity, Reply};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{PluginOpened, plugins_fn, status};
use zazen_wire::service;

use super::shared_read::CONNECT_WITHIN;

/// How many are kept: both ends of a pipe start at once.
const SPARES_MAX: usize = 2;

/// Whom a connection is for, and what is opened there.
#[derive(Clone)]
pub(super) struct Far {
    pub(super) node: String,
    pub(super) key: ClusterKey,
    pub(super) identity: Identity,
    /// An `OpenPlugin`.
    pub(super) message: Vec<u8>,
}

impl Far {
    /// The far side's answer, and beside it the connection, if the plug-in is open there.
    pub(super) fn open(&self) -> Result<Reply> {
        let mut connection = Connection::tcp(&self.node, &self.key, &self.identity, CONNECT_WITHIN)?;
        let reply = connection.call(service::PLUGINS, plugins_fn::OPEN_OVER, &self.message, &[])?;
        if PluginOpened::decode(&reply.payload)?.status.cast_signed() != status::OK {
            return Ok(reply);
        }
        let none = || Error::new(ErrorKind::Io, "the connection to the far side has no socket");
        Ok(Reply { fds: vec![connection.into_socket().ok_or_else(none)?], ..reply })
    }

    fn serves(&self, other: &Far) -> bool {
        (&self.identity.credentials, &self.message) == (&other.identity.credentials, &other.message)
    }
}

#[derive(Default)]
pub(super) struct Spares(Mutex<State>);

#[derive(Default)]
struct State {
    ready: Vec<(Far, Reply)>,
    making: usize,
}

impl Spares {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is as good as a new one.
    pub(super) fn take(&self, far: &Far) -> Option<Reply> {
        let mut state = self.state();
        // What the far side has closed meanwhile is of no use to anybody.
        state.ready.retain(|(_, reply)| reply.fds.first().is_some_and(is_open));
        let at = state.ready.iter().position(|(of, _)| of.serves(far))?;
        Some(state.ready.swap_remove(at).1)
    }

    /// Makes one more of this kind, in the background.
    pub(super) fn refill(self: &Arc<Self>, far: Far) {
        let mut state = self.state();
        if state.making + state.ready.len() >= SPARES_MAX {
            // Those of another user's programs make room.
            if let Some(at) = state.ready.iter().position(|(of, _)| !of.serves(&far)) {
                state.ready.swap_remove(at);
            } else {
                return;
            }
        }
        state.making += 1;
        drop(state);
        let spares = Arc::clone(self);
        let made = std::thread::Builder::new().name("spare".into()).spawn(move || {
            let made = far.open();
            let mut state = spares.state();
            state.making -= 1;
            // A failure is for the program to see that asks next.
            if let Some(reply) = made.ok().filter(|reply| !reply.fds.is_empty()) {
                state.ready.push((far, reply));
            }
        });
        if made.is_err() {
            self.state().making -= 1;
        }
    }
}

/// Whether the far side has not closed it, as far as is known here.
fn is_open(socket: &OwnedFd) -> bool {
    let mut look = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    rustix::event::poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}
