//! Which connections a server has: admission within its limits, calls in progress, and draining.
//!
//! Invariants: a peer that has proven nothing (a stranger) takes a stranger's place, and no other.
//! A call either begins before draining does, and drain waits for it, or it is refused.
//!
//! Beginning and ending a call takes no lock. Each connection sets a flag of its own that it is in
//! a call, and then looks whether the server drains. A server that drains says so first, and then
//! looks at the flags.

use crate::carriers::account::Account;
use crate::limits::ServerLimits;
use crate::server::peer_group::PeerGroup;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

struct Connected {
    socket: Arc<OwnedFd>,
    in_call: Arc<AtomicBool>,
    /// Of a TCP peer that has not proven the key yet: where it comes from, and when it came.
    stranger: Option<(PeerGroup, Instant)>,
    /// Whose connection it is; `None` for a stranger.
    account: Option<Arc<Account>>,
    /// It came over TCP, so that only the cluster key says who is there.
    is_remote: bool,
    /// Another process serves it, and knows whether it is in a call.
    handed: bool,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u64, Connected>,
    /// The last number given.
    last: u64,
    strangers: usize,
    /// Connections of peers that are no strangers.
    known: usize,
}

/// A connection's place among the others. Calls are begun and ended with it.
#[derive(Clone)]
pub(crate) struct Admitted {
    pub(crate) number: u64,
    pub(crate) account: Arc<Account>,
    /// Where a TCP peer comes from.
    host: Option<IpAddr>,
    in_call: Arc<AtomicBool>,
}

impl Admitted {
    pub(crate) fn host(&self) -> Option<IpAddr> {
        self.host
    }
}

/// Whether a call may begin.
pub(crate) enum Begin {
    /// It has.
    Go,
    /// The server drains.
    Draining,
    /// The caller has too many.
    Busy(Error),
}

/// The connections of one server.
pub(crate) struct Registry {
    state: Mutex<State>,
    draining: AtomicBool,
    changed: Condvar,
    connections_max: AtomicUsize,
    strangers_max: usize,
}

/// A stranger may stay for this long: a peer that knows the key has proven it by then.
const STRANGER_GRACE: Duration = Duration::from_millis(250);
/// Strangers of a group that has more than its share may be sent away after this time.
const CROWD_GRACE: Duration = Duration::from_millis(20);
/// One group's share is a quarter of the strangers' places.
const GROUP_SHARE: usize = 4;
/// An eighth of the places is kept for callers that have few connections,
const RESERVE_SHARE: usize = 8;
/// fewer than this many.
const FEW: usize = 16;

impl Registry {
    pub(crate) fn new(limits: &ServerLimits) -> Registry {
        Registry {
            state: Mutex::default(),
            draining: AtomicBool::new(false),
            changed: Condvar::new(),
            connections_max: limits.connections_max.into(),
            strangers_max: limits.strangers_max.max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, the map would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits at most `max` connections from now on. Those that are here stay.
    pub(crate) fn set_connections_max(&self, max: usize) {
        self.connections_max.store(max, Ordering::Relaxed);
    }

    /// Closes all connections that came over TCP. Returns how many.
    pub(crate) fn close_remote(&self) -> usize {
        let state = self.state();
        let remote = state.connections.values().filter(|entry| entry.is_remote);
        remote.inspect(|entry| close(&entry.socket)).count()
    }

    /// A place for a connection of `account`'s; fails with `Busy` if there are too many,
    /// `ShuttingDown` while draining.
    pub(crate) fn admit(&self, socket: &Arc<OwnedFd>, account: Arc<Account>) -> Result<Admitted> {
        let mut state = self.state();
        self.count_in(&mut state, &account)?;
        Ok(state.enter(socket, None, account))
    }

    /// A place for a TCP peer that has proven nothing yet, at the address `host`. Ask
    /// [`Registry::makes_room`] before.
    pub(crate) fn admit_stranger(
        &self,
        socket: &Arc<OwnedFd>,
        host: IpAddr,
        peer_group: PeerGroup,
    ) -> Result<Admitted> {
        let mut state = self.state();
        self.refuse_if_draining()?;
        state.strangers += 1;
        let mut place = state.enter(socket, Some((peer_group, Instant::now())), Account::of_stranger());
        place.host = Some(host);
        Ok(place)
    }

    /// Makes room for one more stranger: if there is none, closes the oldest stranger of the group
    /// that has most of them. False if all have just come: then the next one waits.
    pub(crate) fn makes_room(&self) -> bool {
        let mut state = self.state();
        if state.strangers < self.strangers_max {
            return true;
        }
        let mut peer_groups: BTreeMap<PeerGroup, usize> = BTreeMap::new();
        let strangers =
            state.connections.iter().filter_map(|(number, entry)| Some((*number, entry.stranger?)));
        let strangers: Vec<_> = strangers.collect();
        strangers.iter().for_each(|(_, (peer_group, _))| *peer_groups.entry(*peer_group).or_default() += 1);
        let Some((crowd, places)) = peer_groups.iter().max_by_key(|(_, places)| **places) else {
            return false;
        };
        // Numbers grow with time: the lowest of a group is its oldest.
        let oldest = strangers.iter().find(|(_, (peer_group, _))| peer_group == crowd);
        let is_crowd = *places > self.strangers_max / GROUP_SHARE;
        let grace = if is_crowd { CROWD_GRACE } else { STRANGER_GRACE };
        let Some((number, _)) = oldest.filter(|(_, (_, since))| since.elapsed() >= grace) else {
            return false;
        };
        let number = *number;
        if let Some(entry) = state.connections.get_mut(&number) {
            close(&entry.socket);
            entry.stranger = None;
            state.strangers -= 1;
        }
        true
    }

    /// A stranger has proven that it belongs to `account`; fails as [`Registry::admit`] does.
    pub(crate) fn prove(&self, place: &mut Admitted, account: Arc<Account>) -> Result<()> {
        let mut state = self.state();
        self.count_in(&mut state, &account)?;
        place.account = Arc::clone(&account);
        if let Some(entry) = state.connections.get_mut(&place.number) {
            let stranger = entry.stranger.take();
            entry.account = Some(account);
            state.strangers -= usize::from(stranger.is_some());
        }
        Ok(())
    }

    fn refuse_if_draining(&self) -> Result<()> {
        match self.is_draining() {
            true => Err(Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down")),
            false => Ok(()),
        }
    }

    fn count_in(&self, state: &mut State, account: &Account) -> Result<()> {
        self.refuse_if_draining()?;
        let max = self.connections_max.load(Ordering::Relaxed);
        let has_many = account.is_bounded() && account.connections() >= FEW;
        let places = if has_many { max - max / RESERVE_SHARE } else { max };
        if state.known >= places {
            let why = format!(
                "the daemon is at its limit of {max} connections; try again, or raise `connections_max`"
            );
            return Err(Error::new(ErrorKind::Busy, why));
        }
        account.open()?;
        state.known += 1;
        Ok(())
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut state = self.state();
        if let Some(entry) = state.connections.remove(&number) {
            state.strangers -= usize::from(entry.stranger.is_some());
            if let Some(account) = entry.account {
                account.close();
                state.known -= 1;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.state().connections.len()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Begins a call, in its caller's turn.
    pub(crate) fn begin_call(&self, place: &Admitted) -> Begin {
        if let Err(error) = place.account.enter(|| self.is_draining()) {
            return if self.is_draining() { Begin::Draining } else { Begin::Busy(error) };
        }
        place.in_call.store(true, Ordering::SeqCst);
        if self.is_draining() {
            self.end_call(place);
            return Begin::Draining;
        }
        Begin::Go
    }

    /// False if the server drains: the connection is to be closed.
    pub(crate) fn end_call(&self, place: &Admitted) -> bool {
        place.in_call.store(false, Ordering::SeqCst);
        place.account.leave();
        if !self.is_draining() {
            return true;
        }
        // Takes the lock, so that a waiting thread has either seen the flag or is woken.
        drop(self.state());
        self.changed.notify_all();
        false
    }

    /// Refuses new calls and connections from now on, and closes connections that are in no call.
    pub(crate) fn begin_drain(&self) {
        let state = self.state();
        self.draining.store(true, Ordering::SeqCst);
        for entry in state.connections.values().filter(|entry| !entry.in_call.load(Ordering::SeqCst)) {
            if entry.handed { close_to_calls(&entry.socket) } else { close(&entry.socket) }
        }
    }

    /// Another process serves the connection from now on.
    pub(crate) fn hand_over(&self, number: u64) {
        let mut state = self.state();
        if let Some(entry) = state.connections.get_mut(&number) {
            entry.handed = true;
        }
    }

    /// Waits for calls in progress, at most for `patience`; then closes the rest and returns how
    /// many there were.
    pub(crate) fn finish_drain(&self, patience: Duration) -> usize {
        let until = Instant::now().checked_add(patience);
        let mut state = self.state();
        loop {
            let in_call = |entry: &&Connected| entry.in_call.load(Ordering::SeqCst);
            let calls = state.connections.values().filter(in_call).count();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if calls == 0 || is_over {
                for entry in state.connections.values() {
                    if entry.handed && !is_over {
                        close_to_calls(&entry.socket)
                    } else {
                        close(&entry.socket)
                    }
                }
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

impl State {
    fn enter(
        &mut self,
        socket: &Arc<OwnedFd>,
        stranger: Option<(PeerGroup, Instant)>,
        account: Arc<Account>,
    ) -> Admitted {
        self.last += 1;
        let in_call = Arc::new(AtomicBool::new(false));
        let place = Admitted {
            number: self.last,
            account: Arc::clone(&account),
            host: None,
            in_call: Arc::clone(&in_call),
        };
        let account = stranger.is_none().then_some(account);
        let (socket, is_remote) = (Arc::clone(socket), stranger.is_some());
        self.connections
            .insert(self.last, Connected { socket, in_call, stranger, account, is_remote, handed: false });
        place
    }
}

/// Ends a connection that another process serves as soon as no call of its is in progress or on its
/// way: replies still get out.
fn close_to_calls(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
}

/// Wakes a thread that is blocked on the socket; the owner closes the descriptor itself.
fn close(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
