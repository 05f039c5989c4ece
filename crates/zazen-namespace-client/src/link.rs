//! The connections to the daemon.
//!
//! Invariants: a call that may have changed something is never sent twice by this file; a call that
//! only reads is sent again, over a new connection, while the patience lasts. So is a write of
//! bytes to a place and a cut of a file: they say which try they are, and the daemon executes no
//! earlier try after a later one. A forked child uses no connection of its parent and waits for no
//! lock of its parent: it is a caller of its own.

use crate::known::Known;
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{ClusterKey, Connection, Identity, Lanes, Reply};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::fork::PerProcess;
use zazen_namespace::operation::Inode;
use zazen_namespace::service::{
    Answered, Answers, Ask, Asks, Balance, Balanced, Changes, Hello, Leave, Leaving, MapView, NodeSpace,
    NodeView, Quota, Quotas, Scrub, ScrubAt, Scrubbed, Spaces, Watch, namespace_fn,
};
use zazen_namespace::{Errno, InodeId, NodeNo};
use zazen_wire::{Message, service};

/// How long the daemon may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a call may take. The daemon itself gives up earlier, with an answer.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a call that only reads waits for a daemon that is being restarted.
const RESTART: Duration = Duration::from_secs(20);
/// How often a daemon that was waited for in vain is asked again.
const PROBE: Duration = Duration::from_millis(500);
/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a daemon may take to join its namespace.
const JOIN: Duration = Duration::from_secs(20);
/// How long a node may take to say its name to the daemon.
const NAMES: Duration = Duration::from_secs(10);
/// Idle connections that are kept.
const IDLE_MAX: usize = 16;

/// A namespace, as its daemon on this node (or another one) serves it. Cheap to clone, for any
/// thread. What a program opens is closed with its last clone.
#[derive(Clone)]
pub struct Namespace {
    link: Arc<Link>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Namespace({})", self.link.endpoint.describe())
    }
}

struct Link {
    endpoint: Endpoint,
    patience: PerProcess<Patience>,
    session: PerProcess<Mutex<Option<Session>>>,
    known: PerProcess<Known>,
    /// Numbers calls on files.
    next_call: AtomicU64,
}

enum Endpoint {
    Socket(PathBuf),
    Node { addr: String, key: ClusterKey, identity: Identity },
}

/// The connections to one life of the daemon: one caller to it.
struct Session {
    lanes: Lanes,
    idle: Vec<Connection>,
    hello: Hello,
}

impl Endpoint {
    fn connect(&self) -> Result<Connection> {
        match self {
            Endpoint::Socket(path) => Connection::unix(path, CONNECT),
            Endpoint::Node { addr, key, identity } => Connection::tcp(addr, key, identity, CONNECT),
        }
    }

    fn describe(&self) -> String {
        match self {
            Endpoint::Socket(path) => path.display().to_string(),
            Endpoint::Node { addr, .. } => addr.clone(),
        }
    }

    fn open(&self) -> Result<Session> {
        let mut first = self.connect()?;
        first.set_timeout(Some(CONNECT));
        let reply = first.call(service::NAMESPACE, namespace_fn::HELLO, &[], &[]).map_err(explained)?;
        let hello = Hello::decode(&reply.payload)?;
        let lanes = first.lanes()?;
        first.set_timeout(Some(PATIENCE));
        Ok(Session { lanes, idle: vec![first], hello })
    }
}

/// The error of the first call, with what to do about it. A daemon of an earlier release says less.
fn explained(error: Error) -> Error {
    let said = error.to_string();
    match (error.kind(), said.split_once(" has not joined the others yet")) {
        (ErrorKind::Unsupported, _) if !said.contains("--namespace DIR") => {
            error.within("a daemon is of a namespace only if it is started with --namespace DIR")
        }
        (ErrorKind::Unavailable, Some((namespace, _))) => Error::new(
            ErrorKind::Unavailable,
            format!(
                "{namespace} has not joined the others yet: start the daemons of the nodes that its list of \
                 nodes names; the first nodes of a new namespace need --namespace-format and empty folders"
            ),
        ),
        _ => error,
    }
}

/// Whether a call may be sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It only reads.
    Yes,
    /// It changes something, or belongs to one life of the daemon.
    No,
}

impl Namespace {
    /// The namespace of the daemon at `socket`. Fails with `Unavailable` if none listens there, and
    /// with `Unsupported` if it serves no namespace.
    pub fn local(socket: &Path) -> Result<Namespace> {
        Namespace::of(Endpoint::Socket(socket.to_path_buf()))
    }

    /// The same, but waits for a daemon that is there and has not joined its namespace yet, as
    /// after its start: at most for [`JOIN`].
    pub fn local_when_joined(socket: &Path) -> Result<Namespace> {
        let until = Instant::now() + JOIN;
        loop {
            match Namespace::local(socket) {
                Err(error)
                    if error.kind() == ErrorKind::Unavailable
                        && Instant::now() < until
                        && UnixStream::connect(socket).is_ok() => {}
                found => return found,
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// The namespace through the daemon at `addr` (`host:port`). This program acts with the
    /// identity that it claims, which the cluster key vouches for.
    pub fn remote(addr: &str, key: &ClusterKey, identity: &Identity) -> Result<Namespace> {
        Namespace::of(Endpoint::Node { addr: addr.to_owned(), key: key.clone(), identity: identity.clone() })
    }

    /// The namespace of the daemon at `socket`, to which the first call connects: for a daemon
    /// that may not listen or may not have joined its namespace yet.
    pub fn local_later(socket: &Path) -> Namespace {
        Namespace::not_connected(Endpoint::Socket(socket.to_path_buf()))
    }

    fn of(endpoint: Endpoint) -> Result<Namespace> {
        let namespace = Namespace::not_connected(endpoint);
        *namespace.link.session() = Some(namespace.link.endpoint.open()?);
        Ok(namespace)
    }

    fn not_connected(endpoint: Endpoint) -> Namespace {
        let link = Link {
            endpoint,
            patience: PerProcess::new(),
            session: PerProcess::new(),
            known: PerProcess::new(),
            next_call: AtomicU64::new(1),
        };
        Namespace { link: Arc::new(link) }
    }

    /// A number for a call on a file: no other call of this process has it. A forked child is
    /// another caller to the daemon, with numbers of its own.
    pub(crate) fn fresh_call(&self) -> u64 {
        self.link.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// Which directories this process found lately.
    pub(crate) fn known(&self) -> &Known {
        self.link.known.get()
    }

    /// Drops the connections as they are, as the death of this program would: for tests.
    #[doc(hidden)]
    pub fn abandon(self) {
        *self.link.session() = None;
    }

    /// Who the daemon is, and who this program is to it.
    pub fn hello(&self) -> Result<Hello> {
        let mut session = self.link.session();
        if session.is_none() {
            *session = Some(self.link.endpoint.open()?);
        }
        match &*session {
            Some(session) => Ok(session.hello.clone()),
            None => unreachable!("it was opened above"),
        }
    }

    /// The map with the names of these nodes: waits, at most for [`NAMES`], for those that are up
    /// and have not said their names to the daemon yet. The name of a node that is down may be
    /// empty.
    pub fn map_with_names(&self, of: &BTreeSet<NodeNo>) -> Result<MapView> {
        let until = Instant::now() + NAMES;
        loop {
            let map = self.map()?;
            let lacks = |node: &NodeView| node.up && node.name.is_empty() && of.contains(&node.node);
            if !map.nodes.iter().any(lacks) || Instant::now() >= until {
                return Ok(map);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// The map: nodes and partitions. Names may be empty.
    pub fn map(&self) -> Result<MapView> {
        MapView::decode(&self.call(namespace_fn::MAP, &[], Repeat::Yes)?.payload)
    }

    /// The state of the namespace as the daemon sees it, as JSON.
    pub fn status(&self) -> Result<String> {
        let reply = self.call(namespace_fn::STATUS, &[], Repeat::Yes)?;
        String::from_utf8(reply.payload)
            .map_err(|error| Error::new(ErrorKind::Protocol, "the status is not UTF-8").caused_by(error))
    }

    /// Checks a part of a node's objects (`None`: of the daemon's own node), some seconds long.
    /// `PermissionDenied` for others than root and the daemon's user.
    pub fn scrub(&self, node: Option<NodeNo>, from: ScrubAt) -> Result<Scrubbed> {
        let ask = Scrub { node, from }.encode();
        Scrubbed::decode(&self.call(namespace_fn::SCRUB, &ask, Repeat::Yes)?.payload)
    }

    /// Starts, stops or asks after the work of a node that gives files to nodes with more space.
    /// `PermissionDenied` for others than root and the daemon's user.
    pub fn balance(&self, ask: &Balance) -> Result<Balanced> {
        Balanced::decode(&self.call(namespace_fn::BALANCE, &ask.encode(), Repeat::No)?.payload)
    }

    /// Has a node leave the namespace or stay, or asks how far it is. `PermissionDenied` for others
    /// than root and the daemon's user.
    pub fn leave(&self, ask: &Leave) -> Result<Leaving> {
        Leaving::decode(&self.call(namespace_fn::LEAVE, &ask.encode(), Repeat::No)?.payload)
    }

    /// The disks of the nodes that answered a moment ago.
    pub fn spaces(&self) -> Result<Vec<NodeSpace>> {
        Ok(Spaces::decode(&self.call(namespace_fn::SPACE, &[], Repeat::Yes)?.payload)?.nodes)
    }

    /// The same; where a quota bounds what can be made in the directory, one entry that says so.
    pub fn spaces_in(&self, directory: InodeId) -> Result<Vec<NodeSpace>> {
        let ask = Inode { id: directory }.encode();
        Ok(Spaces::decode(&self.call(namespace_fn::SPACE, &ask, Repeat::Yes)?.payload)?.nodes)
    }

    /// Sets or ends a quota. `PermissionDenied` for others than root and the daemon's user.
    pub fn set_quota(&self, quota: &Quota) -> Result<()> {
        self.call(namespace_fn::QUOTA, &quota.encode(), Repeat::Yes).map(drop)
    }

    /// The quotas, and what is used of them: all for root and the daemon's user, otherwise the
    /// caller's own.
    pub fn quotas(&self) -> Result<Quotas> {
        Quotas::decode(&self.call(namespace_fn::QUOTAS, &[], Repeat::Yes)?.payload)
    }

    /// Blocks until something has changed behind `after` that a mount may have cached, at most some
    /// seconds; then there may be no changes.
    pub fn watch(&self, after: u64) -> Result<Changes> {
        let reply = self.call(namespace_fn::WATCH, &Watch { after }.encode(), Repeat::Yes)?;
        Changes::decode(&reply.payload)
    }

    /// Asks operations; one answer for each, in order.
    pub(crate) fn ask_all(
        &self,
        asks: Vec<Ask>,
        repeat: Repeat,
    ) -> std::result::Result<Vec<Answered>, Errno> {
        let asked = asks.len();
        let reply =
            self.call(namespace_fn::ASK, &Asks { asks }.encode(), repeat).map_err(|e| errno_of(&e))?;
        let answers = Answers::decode(&reply.payload).map_err(|error| errno_of(&error))?.answers;
        if answers.len() == asked { Ok(answers) } else { Err(Errno::EIO) }
    }

    /// Calls the daemon over a connection of its own.
    pub(crate) fn call(&self, function: u16, payload: &[u8], repeat: Repeat) -> Result<Reply> {
        self.with(repeat, |connection| connection.call(service::NAMESPACE, function, payload, &[]))
    }

    /// Lends a connection to `act`, and again if it breaks and `repeat` allows that.
    pub(crate) fn with<T>(
        &self,
        repeat: Repeat,
        mut act: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let patience = self.link.patience.get();
        loop {
            patience.check()?;
            let failed = match self.link.take() {
                Ok(mut connection) => match act(&mut connection) {
                    Ok(done) => {
                        self.link.give(connection);
                        patience.answered();
                        return Ok(done);
                    }
                    Err(error) if connection.is_alive() => {
                        self.link.give(connection);
                        patience.answered();
                        return Err(error);
                    }
                    Err(error) => {
                        self.link.forget();
                        if repeat == Repeat::No {
                            return Err(error);
                        }
                        error
                    }
                },
                // Nothing was sent: also a change may wait for the daemon.
                Err(error) => error,
            };
            if !is_passing(&failed) {
                return Err(failed);
            }
            if started.elapsed() > RESTART || patience.is_at_end() {
                patience.end();
                return Err(failed);
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// How long callers still wait for a daemon that does not answer. The first of them wait for
/// [`RESTART`]. From then on all fail at once, until the daemon answers: one of them asks it each
/// [`PROBE`].
#[derive(Default)]
struct Patience {
    is_at_end: AtomicBool,
    next_probe: Mutex<Option<Instant>>,
}

impl Patience {
    fn is_at_end(&self) -> bool {
        self.is_at_end.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if !self.is_at_end.swap(true, Ordering::Relaxed) {
            tracing::warn!("the namespace's daemon does not answer: calls fail until it does");
        }
        *self.next_probe.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PROBE);
    }

    fn answered(&self) {
        if self.is_at_end.load(Ordering::Relaxed) {
            self.is_at_end.store(false, Ordering::Relaxed);
            tracing::info!("the namespace's daemon answers again");
        }
    }

    /// Refuses a call, unless it is the one that asks whether the daemon is back.
    fn check(&self) -> Result<()> {
        if !self.is_at_end() {
            return Ok(());
        }
        let mut next = self.next_probe.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if next.is_none_or(|next| next <= now) {
            *next = Some(now + PROBE);
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the namespace's daemon has not answered for {} s; start it again", RESTART.as_secs()),
        ))
    }
}

impl Link {
    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        let session = self.session.get_or(|parents| {
            // If no thread of the parent held the lock at the fork, close its descriptors here, so
            // that the daemon does not mistake this child for the parent.
            if let Some(mut parents) = parents.and_then(|parents| parents.try_lock().ok()) {
                drop(parents.take());
            }
            Mutex::new(None)
        });
        session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<Connection> {
        let lanes = {
            let mut session = self.session();
            let session = match &mut *session {
                Some(session) => session,
                none => none.insert(self.endpoint.open()?),
            };
            if let Some(idle) = session.idle.pop() {
                return Ok(idle);
            }
            session.lanes.clone()
        };
        let opened = lanes.open();
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
            self.forget();
        }
        let mut connection = opened?;
        connection.set_timeout(Some(PATIENCE));
        Ok(connection)
    }

    fn give(&self, connection: Connection) {
        if let Some(session) = &mut *self.session()
            && session.idle.len() < IDLE_MAX
        {
            session.idle.push(connection);
        }
    }

    /// The daemon may be gone: what it knew of this program is gone too, then.
    fn forget(&self) {
        let mut session = self.session();
        let gone = match &mut *session {
            None => false,
            // A connection of the same life may still live, if only a call was cut off.
            Some(session) => session.lanes.open().is_err(),
        };
        if gone {
            *session = None;
        }
    }
}

/// Whether waiting may help.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::ShuttingDown | ErrorKind::Busy)
}

/// The error number of a call that gave no answer.
pub(crate) fn errno_of(error: &Error) -> Errno {
    tracing::debug!("the namespace's daemon: {error}");
    match error.kind() {
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::PermissionDenied => Errno::EPERM,
        ErrorKind::TimedOut => Errno::ETIMEDOUT,
        ErrorKind::TooLarge | ErrorKind::InvalidArgument => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::ENOSYS,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_first_call_say_what_to_do() {
        let check = |kind, said: &str, expected: &str| {
            let error = explained(Error::new(kind, said));
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(expected), "{error}");
        };
        let waits = "the namespace on m1 has not joined the others yet; see `zazen namespace status`";
        check(ErrorKind::Unavailable, waits, "on m1 has not joined the others yet: start the daemons");
        check(ErrorKind::Unsupported, "no service 4", "--namespace DIR");
        check(ErrorKind::Io, "else", "else");
    }
}
