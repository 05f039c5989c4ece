//! The client's end of a connection.
//!
//! Invariant: a connection is `alive` only between complete calls; whatever fails in the middle leaves it dead,
//! so that no reply is ever taken for another call's.

use crate::handshake;
use crate::key::ClusterKey;
use crate::message::Outgoing;
use crate::stream::{Fault, Stream, Watch};
use crate::{Identity, Reply, tcp, unix};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, Header, Kind};

/// A client's connection to one daemon. One call at a time; not shared between threads (open several).
pub struct Connection {
    stream: Stream,
    /// The daemon's name in error messages.
    peer: String,
    next_call: u64,
    timeout: Option<Duration>,
    alive: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("alive", &self.alive)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to the daemon of this machine.
    ///
    /// Fails with `Unavailable` if no daemon listens at `path` and `TimedOut` if it does not accept.
    pub fn unix(path: &Path, timeout: Duration) -> Result<Connection> {
        let socket = unix::connect(path, timeout)?;
        Ok(Connection::new(Stream::new(socket, true), format!("the daemon at {}", path.display())))
    }

    /// Connects to a remote daemon and proves the key, both ways, all within `timeout`.
    ///
    /// Fails with `Unavailable`, `TimedOut`, `Authentication` if the keys differ, or `Unsupported` if the two
    /// releases share no protocol version.
    pub fn tcp(addr: &str, key: &ClusterKey, identity: &Identity, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        let socket = tcp::connect(addr, deadline)?;
        let mut connection = Connection::new(Stream::new(socket, false), format!("the daemon at {addr}"));
        handshake::prove_as_client(&mut connection, key, identity, deadline)?;
        connection.set_timeout(None);
        Ok(connection)
    }

    fn new(stream: Stream, peer: String) -> Connection {
        Connection { stream, peer, next_call: 1, timeout: None, alive: true }
    }

    /// Calls and waits. `bulk` is sent after the payload. Replies later than `timeout` (as set) are `TimedOut`
    /// and the connection is dead from then on. After `Unavailable`, `TimedOut` or `Protocol`, reconnect.
    ///
    /// An error that the service returned comes as its kind and message, and leaves the connection alive.
    pub fn call(&mut self, service: u16, function: u16, payload: &[u8], bulk: &[&[u8]]) -> Result<Reply> {
        self.call_with_fds(service, function, payload, bulk, &[])
    }

    /// [`Connection::call`] with descriptors (unix socket only); they are duplicated for the daemon.
    pub fn call_with_fds(
        &mut self,
        service: u16,
        function: u16,
        payload: &[u8],
        bulk: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply> {
        let call = self.next_call;
        let request =
            Outgoing { kind: Kind::Request, service, function, call, status: 0, payload, bulk, fds };
        request.check(self.stream.passes_fds())?;
        if !self.alive {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the connection to {} ended with an earlier failure; reconnect", self.peer),
            ));
        }
        self.next_call += 1;
        self.alive = false;
        let sent = request.send(&self.stream);
        if let Err(fault @ (Fault::Stalled | Fault::Kernel(_))) = sent {
            return Err(fault.into_error(&self.peer, "while a request was sent"));
        }
        // A daemon that closed while we were sending may have said why before.
        let answer = self.reply(call);
        match answer {
            Ok((about, outcome)) => {
                self.alive = about == call && sent.is_ok();
                outcome
            }
            Err(error) => Err(error),
        }
    }

    /// Receives one reply: the call it is about, and what it says.
    fn reply(&mut self, call: u64) -> Result<(u64, Result<Reply>)> {
        let fault = |peer: &str, fault: Fault| fault.into_error(peer, "before its reply was complete");
        self.stream.allow_in_all(self.timeout).map_err(|f| fault(&self.peer, f))?;
        let header = self.stream.header().map_err(|f| fault(&self.peer, f))?;
        let header = header.ok_or_else(|| fault(&self.peer, Fault::Closed))?;
        let header = Header::decode(&header).map_err(|error| error.within(&self.peer))?;
        let unasked = header.call == 0 && header.status != 0;
        if header.kind != Kind::Reply || (header.call != call && !unasked) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("{} answered call {} where call {call} was asked; reconnect", self.peer, header.call),
            ));
        }
        let fds = self.stream.take_fds(header.fd_count).map_err(|error| error.within(&self.peer))?;
        let mut payload = Vec::new();
        self.stream
            .read_vec(&mut payload, header.payload_bytes as usize)
            .map_err(|f| fault(&self.peer, f))?;
        header.check_payload(&payload).map_err(|error| error.within(&self.peer))?;
        let mut bulk = Vec::new();
        let bulk_bytes = usize::try_from(header.bulk_bytes).map_err(|_| {
            Error::new(ErrorKind::TooLarge, format!("{} sends more bulk data than fit in memory", self.peer))
        })?;
        self.stream.read_vec(&mut bulk, bulk_bytes).map_err(|f| fault(&self.peer, f))?;
        if header.status != 0 {
            let reply = ErrorReply::decode(&payload).map_err(|error| error.within(&self.peer))?;
            return Ok((header.call, Err(reply.into_error(header.status))));
        }
        Ok((header.call, Ok(Reply { payload, fds, bulk })))
    }

    /// The time allowed for each reply (default: no bound; the peer's death is noticed all the same). The same
    /// time bounds a send in which nothing moves.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        // Fails only for a socket that is none; then the next call says so.
        let _ = self.stream.set_send_timeout(self.stream.until_watch(timeout));
    }

    /// Looks into a peer's silence: whenever nothing has come for `every` while a reply is due, `still_there` is asked,
    /// and the call is `TimedOut` at once if it says no. [`Connection::set_timeout`] bounds the whole all the same. A
    /// send in which nothing moves for `every` is `TimedOut`.
    ///
    /// `still_there` runs on the calling thread and should take no longer than `every`.
    pub fn watch(&mut self, every: Duration, still_there: impl FnMut() -> bool + Send + 'static) {
        self.stream.set_watch(Some(Watch { every, still_there: Box::new(still_there) }));
        self.set_timeout(self.timeout);
    }

    /// False once a call failed in the middle: every further call is `Unavailable`; reconnect.
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// Whom this connection talks to, for messages to people.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}
