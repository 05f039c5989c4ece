//! Which connections a server has: admission within the bound, calls in progress, and draining.
//!
//! Invariant: a call is either begun before draining began (then drain waits for it) or refused. Beginning and ending a
//! call takes no lock: each connection says in a flag of its own that it is in a call and then looks whether the
//! server drains; who drains says so first and then looks at the flags.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

struct Entry {
    socket: Arc<OwnedFd>,
    in_call: Arc<AtomicBool>,
    /// A TCP peer that has not proven the key yet.
    unproven: bool,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u64, Entry>,
    /// Numbers ever given.
    last: u64,
    unproven: usize,
}

/// A connection's place among the others: by it calls are begun and ended.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) number: u64,
    in_call: Arc<AtomicBool>,
}

/// The connections of one server.
pub(crate) struct Registry {
    state: Mutex<State>,
    draining: AtomicBool,
    changed: Condvar,
    connections_max: usize,
}

impl Registry {
    pub(crate) fn new(connections_max: usize) -> Registry {
        Registry {
            state: Mutex::default(),
            draining: AtomicBool::new(false),
            changed: Condvar::new(),
            connections_max,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, the map would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; fails with `Busy` if there are too many, `ShuttingDown` while draining.
    /// Peers that have proven nothing get half of the places, so that strangers can't lock the cluster's own
    /// out.
    pub(crate) fn admit(&self, socket: &Arc<OwnedFd>, unproven: bool) -> Result<Place> {
        let mut state = self.state();
        let unproven_max = self.connections_max.div_ceil(2);
        if self.is_draining() {
            return Err(Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down"));
        }
        if state.connections.len() >= self.connections_max {
            let max = self.connections_max;
            let why = format!(
                "the daemon is at its limit of {max} connections; try again, or raise `connections_max`"
            );
            return Err(Error::new(ErrorKind::Busy, why));
        }
        if unproven && state.unproven >= unproven_max {
            let why = format!(
                "{unproven_max} connections that have not proven the cluster key yet are open; try again"
            );
            return Err(Error::new(
                ErrorKind::Busy,
                format!("the daemon is busy: {why}, or raise `connections_max`"),
            ));
        }
        state.last += 1;
        state.unproven += usize::from(unproven);
        let number = state.last;
        let in_call = Arc::new(AtomicBool::new(false));
        let place = Place { number, in_call: Arc::clone(&in_call) };
        state.connections.insert(number, Entry { socket: Arc::clone(socket), in_call, unproven });
        Ok(place)
    }

    pub(crate) fn mark_proven(&self, number: u64) {
        let mut state = self.state();
        if let Some(entry) = state.connections.get_mut(&number)
            && std::mem::take(&mut entry.unproven)
        {
            state.unproven -= 1;
        }
    }

    pub(crate) fn remove(&self, number: u64) {
        self.mark_proven(number);
        self.state().connections.remove(&number);
        self.changed.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.state().connections.len()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// False if the server drains: the call is to be refused.
    pub(crate) fn begin_call(&self, place: &Place) -> bool {
        place.in_call.store(true, Ordering::SeqCst);
        if self.is_draining() {
            self.end_call(place);
            return false;
        }
        true
    }

    /// False if the server drains: the connection is to be closed.
    pub(crate) fn end_call(&self, place: &Place) -> bool {
        place.in_call.store(false, Ordering::SeqCst);
        if !self.is_draining() {
            return true;
        }
        // With the lock, so that who waits has either seen the flag or hears of it.
        drop(self.state());
        self.changed.notify_all();
        false
    }

    /// Refuses new calls and connections from now on, and closes those that are in no call.
    pub(crate) fn begin_drain(&self) {
        let state = self.state();
        self.draining.store(true, Ordering::SeqCst);
        for entry in state.connections.values().filter(|entry| !entry.in_call.load(Ordering::SeqCst)) {
            close(&entry.socket);
        }
    }

    /// Waits for calls in progress, at most for `patience`; then closes the rest and says how many those were.
    pub(crate) fn finish_drain(&self, patience: Duration) -> usize {
        let until = Instant::now().checked_add(patience);
        let mut state = self.state();
        loop {
            let in_call = |entry: &&Entry| entry.in_call.load(Ordering::SeqCst);
            let calls = state.connections.values().filter(in_call).count();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if calls == 0 || left.is_some_and(|left| left.is_zero()) {
                state.connections.values().for_each(|entry| close(&entry.socket));
                return calls;
            }
            state = match left {
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Waits until at most `count` connections are left, at most for `patience`.
    pub(crate) fn wait_until_left(&self, count: usize, patience: Duration) {
        let state = self.state();
        let waited =
            self.changed.wait_timeout_while(state, patience, |state| state.connections.len() > count);
        drop(waited);
    }
}

/// Wakes whoever is blocked on the socket; the descriptor itself is closed by its owner.
fn close(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
