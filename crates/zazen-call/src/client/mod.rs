//! The client's end of a connection.
//!
//! Invariant: a connection is `alive` only between complete calls. A failure in the middle of a
//! call leaves it dead, so that no reply is ever taken for another call's.

use crate::carriers::seam::{Answered, Ask, ClientEnd, Exchanged, Sink};
use crate::carriers::shm::fault::point as fault_point;
use crate::carriers::shm::lane::ClientLane;
use crate::carriers::shm::pool::{ClientPool, PoolBuffer};
use crate::carriers::shm::region::Region;
use crate::carriers::socket::SocketEnd;
use crate::carriers::stream::Stream;
use crate::carriers::{tcp, unix};
use crate::handshake;
use crate::identity::Identity;
use crate::key::ClusterKey;
use crate::service::Reply;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::codec::Reader;
use zazen_wire::handshake as wire_handshake;
use zazen_wire::shm::{self, Offer, Span};

/// A connection that made this many calls will make more: shared memory pays.
const CALLS_BEFORE_SHM: u64 = 8;

/// What carries a connection's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A unix socket, and shared memory beside it as soon as that pays.
    Auto,
    /// A unix socket alone.
    Unix,
    /// Shared memory from the first call on; a unix socket if the daemon has none to give.
    Shm,
    /// TCP.
    Tcp,
    /// Another one, behind [`crate::carriers::ClientEnd`].
    Other,
}

/// A client's connection to one daemon. One call at a time; not shared between threads.
///
/// **Several threads** of one client each take a connection of their own: [`Connection::lane`], or
/// [`Connection::lanes`] once and [`Lanes::open`] in each thread. The daemon knows all of them as
/// one caller. Lanes do not wait for each other. What one lane holds in the daemon (an open
/// descriptor, say) is there for all of them, until the last is dropped.
///
/// **After a fork** the child must not use its parent's connections. It opens new ones.
pub struct Connection {
    end: End,
    /// Whether moving to shared memory has been tried.
    asked_for_shm: bool,
    /// The caller's region, if an earlier lane has mapped it.
    pool: Option<Arc<ClientPool>>,
    /// The daemon's name in error messages.
    peer: String,
    endpoint: Endpoint,
    next_call: u64,
    alive: bool,
}

/// What carries the calls. The carriers of this crate are called directly, without dynamic
/// dispatch.
#[allow(clippy::large_enum_variant, reason = "there is one per connection, and a box would cost each call")]
enum End {
    Socket(SocketEnd),
    Other(Box<dyn ClientEnd>),
}

impl End {
    fn any(&mut self) -> &mut dyn ClientEnd {
        match self {
            End::Socket(end) => end,
            End::Other(end) => &mut **end,
        }
    }

    fn lane(&self) -> Option<&ClientLane> {
        match self {
            End::Socket(end) => end.lane(),
            End::Other(_) => None,
        }
    }

    fn is_offered_shm(&self) -> bool {
        matches!(self, End::Socket(end) if end.is_offered_shm())
    }
}

type Connect = dyn Fn() -> Result<Box<dyn ClientEnd>> + Send + Sync;

/// How to connect again, for one more lane.
#[derive(Clone)]
enum Endpoint {
    Unix { path: PathBuf, carrier: Carrier, timeout: Duration, expected: Option<u32> },
    Tcp { addr: String, key: ClusterKey, identity: Identity, timeout: Duration },
    Other { peer: String, connect: Arc<Connect> },
}

/// Opens further lanes of one caller; see [`Connection`]. Cheap to clone, for any thread.
#[derive(Clone)]
pub struct Lanes {
    endpoint: Endpoint,
    token: [u8; wire_handshake::TOKEN_BYTES],
    pool: Option<Arc<ClientPool>>,
}

impl Lanes {
    /// One more connection of the same caller, for the use of one thread.
    ///
    /// Fails like connecting does, and with `Unavailable` once all of the caller's lanes are gone.
    pub fn open(&self) -> Result<Connection> {
        let mut lane = match &self.endpoint {
            Endpoint::Unix { path, timeout, expected, .. } => {
                Connection::plain_unix(path, Carrier::Unix, *timeout, *expected)?
            }
            Endpoint::Tcp { addr, key, identity, timeout } => Connection::tcp(addr, key, identity, *timeout)?,
            Endpoint::Other { peer, connect } => {
                Connection::new(End::Other(connect()?), peer.clone(), self.endpoint.clone())
            }
        };
        lane.endpoint = self.endpoint.clone();
        lane.call(wire_handshake::SERVICE, wire_handshake::JOIN, &self.token, &[])
            .map_err(|error| error.within("open one more lane"))?;
        lane.pool = self.pool.clone();
        if lane.may_share() {
            lane.move_to_shm()?;
        }
        Ok(lane)
    }
}

/// Memory shared with the daemon, for any thread of the caller; see [`Connection::pool`]. Cheap to
/// clone.
#[derive(Clone)]
pub struct Pool(Arc<ClientPool>);

impl Pool {
    /// A buffer of `bytes` bytes from memory that the daemon granted earlier; `None` if none is
    /// free. It does not ask the daemon for more: [`Connection::allocate`] does. Its contents are
    /// unspecified.
    pub fn take(&self, bytes: usize) -> Option<PoolBuffer> {
        self.0.take(bytes)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lanes(secret)")
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("carrier", &self.carrier())
            .field("alive", &self.alive)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to the daemon of this machine ([`Carrier::Auto`]).
    ///
    /// Fails with `Unavailable` if no daemon listens at `path`, with `TimedOut` if it does not
    /// accept, and with `Authentication` if it runs as a user that this process does not believe
    /// ([`crate::believes`]).
    pub fn unix(path: &Path, timeout: Duration) -> Result<Connection> {
        Connection::local(path, Carrier::Auto, timeout)
    }

    /// [`Connection::unix`] with a choice of carrier: `Auto`, `Unix` or `Shm` (others are
    /// `InvalidArgument`). [`Connection::carrier`] says which one is in use.
    pub fn local(path: &Path, carrier: Carrier, timeout: Duration) -> Result<Connection> {
        Connection::local_of(path, carrier, timeout, None)
    }

    /// [`Connection::local`] to a server that may also run as user `expected`: the program that
    /// started the server knows its user.
    pub fn local_of(
        path: &Path,
        carrier: Carrier,
        timeout: Duration,
        expected: Option<u32>,
    ) -> Result<Connection> {
        if matches!(carrier, Carrier::Tcp | Carrier::Other) {
            return Err(Error::new(ErrorKind::InvalidArgument, "TCP does not go over a local socket"));
        }
        let mut connection = Connection::plain_unix(path, carrier, timeout, expected)?;
        if carrier == Carrier::Shm {
            connection.set_timeout(Some(timeout));
            connection.move_to_shm()?;
            connection.set_timeout(None);
        }
        Ok(connection)
    }

    /// Asks for shared memory and moves there. If the daemon has none to give, the connection stays
    /// as it is; an `Err` leaves it dead.
    fn move_to_shm(&mut self) -> Result<()> {
        self.asked_for_shm = true;
        let asked = self.call(wire_handshake::SERVICE, shm::ASK, &[], &[]);
        let reply = match asked {
            Err(error) if self.alive => {
                tracing::debug!("{} gives no shared memory: {error}", self.peer);
                return Ok(());
            }
            asked => asked?,
        };
        let (offer, pool) = match self.map(&reply) {
            Err(error) => {
                tracing::debug!("{} offers shared memory that is of no use here: {error}", self.peer);
                return Ok(());
            }
            Ok(mapped) => mapped,
        };
        fault_point();
        self.call(wire_handshake::SERVICE, shm::MOVE, &[], &[])?;
        fault_point();
        if let End::Socket(end) = &mut self.end {
            end.move_to(ClientLane::new(&offer, Arc::clone(&pool)));
        }
        self.pool = Some(pool);
        Ok(())
    }

    /// Maps what the daemon offers, unless an earlier lane has mapped it.
    fn map(&self, reply: &Reply) -> Result<(Offer, Arc<ClientPool>)> {
        let offer = Offer::decode(&reply.payload)?;
        let pool = match &self.pool {
            Some(pool) if (pool.number, pool.region_bytes) == (offer.region, offer.region_bytes) => {
                Arc::clone(pool)
            }
            _ => {
                let none = || Error::new(ErrorKind::Protocol, "no descriptor came with it");
                let fd = reply.fds.first().ok_or_else(none)?;
                ClientPool::new(&offer, Region::of_offer(fd.as_fd(), offer.region_bytes)?)
            }
        };
        pool.region.populate(offer.lane().working());
        Ok((offer, pool))
    }

    /// Whether the connection is to move to shared memory before its next call.
    fn wants_shm(&self) -> bool {
        let auto = matches!(self.endpoint, Endpoint::Unix { carrier: Carrier::Auto, .. });
        auto && self.end.is_offered_shm() && !self.asked_for_shm && self.next_call > CALLS_BEFORE_SHM
    }

    fn plain_unix(
        path: &Path,
        carrier: Carrier,
        timeout: Duration,
        expected: Option<u32>,
    ) -> Result<Connection> {
        let socket = unix::connect(path, timeout, expected)?;
        let endpoint = Endpoint::Unix { path: path.to_owned(), carrier, timeout, expected };
        Ok(Connection::of_socket(
            Stream::new(socket, true),
            format!("the daemon at {}", path.display()),
            endpoint,
        ))
    }

    /// Connects to a remote daemon and proves the key, both ways, all within `timeout`.
    ///
    /// Fails with `Unavailable`, `TimedOut`, `Authentication` if the keys differ, or `Unsupported`
    /// if the two releases share no protocol version.
    pub fn tcp(addr: &str, key: &ClusterKey, identity: &Identity, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        let socket = tcp::connect(addr, deadline)?;
        let endpoint =
            Endpoint::Tcp { addr: addr.to_owned(), key: key.clone(), identity: identity.clone(), timeout };
        let mut connection =
            Connection::of_socket(Stream::new(socket, false), format!("the daemon at {addr}"), endpoint);
        let ask = |function, payload: &[u8]| {
            connection.set_timeout(Some(deadline.saturating_duration_since(Instant::now())));
            let answer = connection.call(wire_handshake::SERVICE, function, payload, &[]);
            Ok(answer.map_err(|error| error.within(&connection.peer))?.payload)
        };
        let peer = format!("the daemon at {addr}");
        handshake::prove_as_client(ask, &peer, key, identity)?;
        connection.set_timeout(None);
        Ok(connection)
    }

    /// A connection over another carrier. `connect` makes the client's end of a fresh one, now and
    /// for each further lane; `peer` names the server in error messages.
    pub fn over(
        peer: &str,
        connect: impl Fn() -> Result<Box<dyn ClientEnd>> + Send + Sync + 'static,
    ) -> Result<Connection> {
        let end = End::Other(connect()?);
        let endpoint = Endpoint::Other { peer: peer.to_owned(), connect: Arc::new(connect) };
        Ok(Connection::new(end, peer.to_owned(), endpoint))
    }

    fn of_socket(stream: Stream, peer: String, endpoint: Endpoint) -> Connection {
        Connection::new(End::Socket(SocketEnd::new(stream, peer.clone())), peer, endpoint)
    }

    fn new(end: End, peer: String, endpoint: Endpoint) -> Connection {
        Connection { end, asked_for_shm: false, pool: None, peer, endpoint, next_call: 1, alive: true }
    }

    /// Calls and waits. `bulk` is sent after the payload. Replies later than `timeout` (as set) are
    /// `TimedOut` and the connection is dead from then on. After `Unavailable`, `TimedOut` or
    /// `Protocol`, reconnect.
    ///
    /// An error of the service is returned with its kind and message, and leaves the connection
    /// alive.
    pub fn call(&mut self, service: u16, function: u16, payload: &[u8], bulk: &[&[u8]]) -> Result<Reply> {
        self.call_with_fds(service, function, payload, bulk, &[])
    }

    /// [`Connection::call`] with descriptors (unix socket only); they are duplicated for the
    /// daemon.
    pub fn call_with_fds(
        &mut self,
        service: u16,
        function: u16,
        payload: &[u8],
        bulk: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply> {
        let input: Vec<IoSlice<'_>> = bulk.iter().map(|part| IoSlice::new(part)).collect();
        let mut sink = Sink::Grow(Vec::new());
        let ask = Ask { service, function, call: self.next_call, payload, input: &input, fds };
        let Exchanged { payload, fds, .. } = self.transact(ask, &mut sink)?;
        let bulk = if let Sink::Grow(bulk) = sink { bulk } else { Vec::new() };
        Ok(Reply { payload, fds, bulk, ..Reply::default() })
    }

    /// Calls and waits, like [`Connection::call`]. `input` is sent as the request's bulk bytes, in
    /// order, and the reply's bulk bytes fill `output`, in order. Slices that lie in this caller's
    /// [`PoolBuffer`]s are passed without a copy if the carrier can do that.
    ///
    /// Fails also with `TooLarge` if the service answers more than `output` has room for. After an
    /// error the output's contents are unspecified.
    pub fn exchange(
        &mut self,
        service: u16,
        function: u16,
        payload: &[u8],
        input: &[IoSlice<'_>],
        output: &mut [IoSliceMut<'_>],
    ) -> Result<Exchanged> {
        self.exchange_with_fds(service, function, payload, input, output, &[])
    }

    /// [`Connection::exchange`] with descriptors (local connections only); they are duplicated for
    /// the daemon.
    pub fn exchange_with_fds(
        &mut self,
        service: u16,
        function: u16,
        payload: &[u8],
        input: &[IoSlice<'_>],
        output: &mut [IoSliceMut<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Exchanged> {
        let ask = Ask { service, function, call: self.next_call, payload, input, fds };
        self.transact(ask, &mut Sink::Fill(output))
    }

    /// A buffer of `bytes` bytes for bulk data: in memory shared with the daemon if this connection
    /// has some, else on the heap ([`PoolBuffer::is_shared`]). Its contents are unspecified. Ends
    /// the program if there is no memory; for lengths that others choose there is
    /// [`Connection::try_allocate`].
    pub fn allocate(&mut self, bytes: usize) -> PoolBuffer {
        self.allocate_shared(bytes).unwrap_or_else(|| PoolBuffer::on_heap(bytes))
    }

    /// [`Connection::allocate`]; `None` if there is no memory.
    pub fn try_allocate(&mut self, bytes: usize) -> Option<PoolBuffer> {
        self.allocate_shared(bytes).or_else(|| PoolBuffer::try_on_heap(bytes))
    }

    fn allocate_shared(&mut self, bytes: usize) -> Option<PoolBuffer> {
        if self.end.lane().is_none() && self.end.is_offered_shm() && !self.asked_for_shm && self.may_share() {
            self.move_to_shm().ok()?;
        }
        let pool = Arc::clone(&self.end.lane()?.pool);
        if let Some(buffer) = pool.take(bytes) {
            return Some(buffer);
        }
        while let Some(span) = pool.surplus() {
            self.call(wire_handshake::SERVICE, shm::POOL_GIVE, &span.encode(), &[]).ok()?;
        }
        let ask = ClientPool::wants(bytes).to_le_bytes();
        let granted = self.call(wire_handshake::SERVICE, shm::POOL_TAKE, &ask, &[]).ok()?;
        let granted = Span::decode(&granted.payload).ok()?;
        if pool.stock(granted, bytes) { pool.take(bytes) } else { None }
    }

    fn may_share(&self) -> bool {
        matches!(self.endpoint, Endpoint::Unix { carrier: Carrier::Auto | Carrier::Shm, .. })
    }

    /// Memory shared with the daemon, from which this caller's buffers come; `None` on other
    /// carriers.
    pub fn pool(&self) -> Option<Pool> {
        self.end.lane().map(|lane| Pool(Arc::clone(&lane.pool)))
    }

    /// Opens further connections of this caller, for other threads.
    pub fn lanes(&mut self) -> Result<Lanes> {
        let reply = self.call(wire_handshake::SERVICE, wire_handshake::TOKEN, &[], &[])?;
        let mut token = [0; wire_handshake::TOKEN_BYTES];
        token.copy_from_slice(Reader::new("lane token", &reply.payload).raw(wire_handshake::TOKEN_BYTES)?);
        Ok(Lanes { endpoint: self.endpoint.clone(), token, pool: self.pool.clone() })
    }

    /// One more connection of the same caller, for another thread.
    pub fn lane(&mut self) -> Result<Connection> {
        self.lanes()?.open()
    }

    /// What carries the calls now: `Shm`, `Unix`, `Tcp` or `Other`.
    pub fn carrier(&self) -> Carrier {
        match self.endpoint {
            Endpoint::Unix { .. } if self.end.lane().is_some() => Carrier::Shm,
            Endpoint::Unix { .. } => Carrier::Unix,
            Endpoint::Tcp { .. } => Carrier::Tcp,
            Endpoint::Other { .. } => Carrier::Other,
        }
    }

    fn transact(&mut self, mut ask: Ask<'_>, sink: &mut Sink<'_, '_>) -> Result<Exchanged> {
        if self.alive && self.end.lane().is_none() && self.wants_shm() {
            self.move_to_shm()?;
            ask.call = self.next_call;
        }
        ask.check(self.end.any().passes_fds())?;
        if !self.alive {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the connection to {} ended with an earlier failure; reconnect", self.peer),
            ));
        }
        self.next_call += 1;
        self.alive = false;
        let Answered { outcome, goes_on } = match &mut self.end {
            End::Socket(end) => end.exchange(&ask, sink)?,
            End::Other(end) => end.exchange(&ask, sink)?,
        };
        self.alive = goes_on;
        outcome
    }

    /// The time allowed for each reply. By default there is no limit, but the peer's death is
    /// noticed. The same time limits a send in which nothing moves.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.end.any().set_timeout(timeout);
    }

    /// Watches a silent peer. Whenever a reply is due and nothing has come for `every`,
    /// `still_there` is asked; if it says no, the call is `TimedOut` at once. The limit of
    /// [`Connection::set_timeout`] still holds. A send in which nothing moves for `every` is
    /// `TimedOut`.
    ///
    /// `still_there` runs on the calling thread and should take no longer than `every`.
    pub fn watch(&mut self, every: Duration, still_there: impl FnMut() -> bool + Send + 'static) {
        self.end.any().watch(every, Box::new(still_there));
    }

    /// The connection's socket, for a process that goes on with it. `None` if calls go elsewhere
    /// than over the socket, or if the connection is not between two calls.
    pub fn into_socket(self) -> Option<OwnedFd> {
        match self.end {
            End::Socket(end) if self.alive => end.into_socket(),
            _ => None,
        }
    }

    /// False after a call failed in the middle: every further call is `Unavailable`; reconnect.
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// The server's name, for messages to people.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}
