//! The client's end of a connection.
//!
//! Invariant: a connection is `alive` only between complete calls; whatever fails in the middle leaves it dead,
//! so that no reply is ever taken for another call's.

use crate::handshake;
use crate::key::ClusterKey;
use crate::message::Outgoing;
use crate::pool::{ClientPool, PoolBuffer};
use crate::shm::client::{ClientLane, Patience};
use crate::shm::region::Region;
use crate::stream::{Fault, Stream, Watch};
use crate::{Identity, Reply, tcp, unix};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::codec::Reader;
use zazen_wire::handshake as wire_handshake;
use zazen_wire::header::{ErrorReply, Header, Kind, OFFERS_SHM};
use zazen_wire::shm::{self, Offer, Span};

/// A connection that made so many calls will make more: shared memory pays.
const CALLS_BEFORE_SHM: u64 = 8;

/// Bulk bytes that a reply may have for which the caller has no buffers of its own.
const GROWN_BYTES_MAX: usize = 4 << 30;

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
}

/// What came of an [`Connection::exchange`].
#[derive(Debug, Default)]
pub struct Exchanged {
    /// Encoded results.
    pub payload: Vec<u8>,
    /// Bulk bytes that the reply had; they fill the output from its beginning on.
    pub bulk_bytes: u64,
    /// Descriptors that came with it (local connections only).
    pub fds: Vec<OwnedFd>,
}

/// A client's connection to one daemon. One call at a time; not shared between threads.
///
/// **Several threads** of one client each take a connection of their own, all of which the daemon knows as the same
/// caller: [`Connection::lane`], or [`Connection::lanes`] once and [`Lanes::open`] in each thread. Lanes wait for nothing of
/// each other. What one holds in the daemon (an open descriptor, say) is there for all, until the last is dropped.
///
/// **After a fork** the child must not use its parent's connections: it connects anew.
pub struct Connection {
    stream: Stream,
    /// The lane in shared memory, once the connection has moved there; the stream then brings bells and descriptors.
    lane: Option<Box<ClientLane>>,
    /// The daemon has said that it would.
    offered: bool,
    /// Whether moving there has been tried.
    asked_for_shm: bool,
    /// The caller's region, if an earlier lane has mapped it.
    pool: Option<Arc<ClientPool>>,
    /// How often silence is looked into.
    watch_every: Option<Duration>,
    /// The daemon's name in error messages.
    peer: String,
    origin: Origin,
    next_call: u64,
    timeout: Option<Duration>,
    alive: bool,
}

/// How to get there once more.
#[derive(Clone)]
enum Origin {
    Unix { path: PathBuf, carrier: Carrier, timeout: Duration, expected: Option<u32> },
    Tcp { addr: String, key: ClusterKey, identity: Identity, timeout: Duration },
}

/// Opens further lanes of one caller; see [`Connection`]. Cheap to clone, for any thread.
#[derive(Clone)]
pub struct Lanes {
    origin: Origin,
    token: [u8; wire_handshake::TOKEN_BYTES],
    pool: Option<Arc<ClientPool>>,
}

impl Lanes {
    /// One more connection of the same caller, for the use of one thread.
    ///
    /// Fails like connecting does, and with `Unavailable` once all of the caller's lanes are gone.
    pub fn open(&self) -> Result<Connection> {
        let mut lane = match &self.origin {
            Origin::Unix { path, timeout, expected, .. } => {
                Connection::plain_unix(path, Carrier::Unix, *timeout, *expected)?
            }
            Origin::Tcp { addr, key, identity, timeout } => Connection::tcp(addr, key, identity, *timeout)?,
        };
        lane.origin = self.origin.clone();
        lane.call(wire_handshake::SERVICE, wire_handshake::JOIN, &self.token, &[])
            .map_err(|error| error.within("open one more lane"))?;
        lane.pool = self.pool.clone();
        if lane.may_share() {
            lane.move_to_shm()?;
        }
        Ok(lane)
    }
}

/// Memory shared with the daemon, for any thread of the caller; see [`Connection::pool`]. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<ClientPool>);

impl Pool {
    /// A buffer of `bytes` bytes from memory that the daemon granted earlier, without asking it: `None` if none is free
    /// ([`Connection::allocate`] asks). Its contents are unspecified.
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

/// A request but for its number.
pub(crate) struct Ask<'a> {
    pub(crate) service: u16,
    pub(crate) function: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) input: &'a [IoSlice<'a>],
    pub(crate) fds: &'a [BorrowedFd<'a>],
}

/// Where a reply's bulk bytes go.
pub(crate) enum Sink<'a, 'b> {
    /// Into memory of its own.
    Grow(Vec<u8>),
    /// Into the caller's buffers.
    Fill(&'a mut [IoSliceMut<'b>]),
}

impl Connection {
    /// Connects to the daemon of this machine ([`Carrier::Auto`]).
    ///
    /// Fails with `Unavailable` if no daemon listens at `path`, `TimedOut` if it does not accept, and `Authentication` if
    /// it is another user's than those that this process [`crate::believes`].
    pub fn unix(path: &Path, timeout: Duration) -> Result<Connection> {
        Connection::local(path, Carrier::Auto, timeout)
    }

    /// [`Connection::unix`] with a choice of carrier: `Auto`, `Unix` or `Shm` (`Tcp` is `InvalidArgument`). What it came
    /// to is [`Connection::carrier`].
    pub fn local(path: &Path, carrier: Carrier, timeout: Duration) -> Result<Connection> {
        Connection::local_of(path, carrier, timeout, None)
    }

    /// [`Connection::local`] to a server that may also be user `expected`'s: whoever started it knows whose it is.
    pub fn local_of(
        path: &Path,
        carrier: Carrier,
        timeout: Duration,
        expected: Option<u32>,
    ) -> Result<Connection> {
        if carrier == Carrier::Tcp {
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

    /// Asks for shared memory and goes on there. A daemon that has none to give leaves the connection as it is; an
    /// `Err` leaves it dead.
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
        crate::shm::fault_point();
        self.call(wire_handshake::SERVICE, shm::MOVE, &[], &[])?;
        crate::shm::fault_point();
        self.lane = Some(Box::new(ClientLane::new(&offer, Arc::clone(&pool))));
        self.pool = Some(pool);
        Ok(())
    }

    /// Maps what the daemon offers, unless an earlier lane has.
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
        let auto = matches!(self.origin, Origin::Unix { carrier: Carrier::Auto, .. });
        auto && self.offered && !self.asked_for_shm && self.next_call > CALLS_BEFORE_SHM
    }

    fn plain_unix(
        path: &Path,
        carrier: Carrier,
        timeout: Duration,
        expected: Option<u32>,
    ) -> Result<Connection> {
        let socket = unix::connect(path, timeout, expected)?;
        let origin = Origin::Unix { path: path.to_owned(), carrier, timeout, expected };
        Ok(Connection::new(Stream::new(socket, true), format!("the daemon at {}", path.display()), origin))
    }

    /// Connects to a remote daemon and proves the key, both ways, all within `timeout`.
    ///
    /// Fails with `Unavailable`, `TimedOut`, `Authentication` if the keys differ, or `Unsupported` if the two
    /// releases share no protocol version.
    pub fn tcp(addr: &str, key: &ClusterKey, identity: &Identity, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        let socket = tcp::connect(addr, deadline)?;
        let origin =
            Origin::Tcp { addr: addr.to_owned(), key: key.clone(), identity: identity.clone(), timeout };
        let mut connection =
            Connection::new(Stream::new(socket, false), format!("the daemon at {addr}"), origin);
        handshake::prove_as_client(&mut connection, key, identity, deadline)?;
        connection.set_timeout(None);
        Ok(connection)
    }

    fn new(stream: Stream, peer: String, origin: Origin) -> Connection {
        Connection {
            stream,
            lane: None,
            offered: false,
            asked_for_shm: false,
            pool: None,
            watch_every: None,
            peer,
            origin,
            next_call: 1,
            timeout: None,
            alive: true,
        }
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
        let input: Vec<IoSlice<'_>> = bulk.iter().map(|part| IoSlice::new(part)).collect();
        let mut sink = Sink::Grow(Vec::new());
        let ask = Ask { service, function, payload, input: &input, fds };
        let Exchanged { payload, fds, .. } = self.transact(&ask, &mut sink)?;
        let bulk = if let Sink::Grow(bulk) = sink { bulk } else { Vec::new() };
        Ok(Reply { payload, fds, bulk })
    }

    /// Calls and waits, like [`Connection::call`]: `input` is sent as the request's bulk bytes, in order, and the reply's
    /// bulk bytes fill `output`, in order. Slices of either that lie in this caller's [`PoolBuffer`]s are passed
    /// where they are, without a copy, where the carrier can.
    ///
    /// Fails also with `TooLarge` if the service answers more than `output` has room for. After an error the output's
    /// contents are unspecified.
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

    /// [`Connection::exchange`] with descriptors (local connections only); they are duplicated for the daemon.
    pub fn exchange_with_fds(
        &mut self,
        service: u16,
        function: u16,
        payload: &[u8],
        input: &[IoSlice<'_>],
        output: &mut [IoSliceMut<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Exchanged> {
        let ask = Ask { service, function, payload, input, fds };
        self.transact(&ask, &mut Sink::Fill(output))
    }

    /// A buffer of `bytes` bytes for bulk data: in memory shared with the daemon if this connection has any to give, else
    /// on the heap ([`PoolBuffer::is_shared`]). Its contents are unspecified.
    /// The program ends where there is no memory: [`Connection::try_allocate`] is for lengths that others name.
    pub fn allocate(&mut self, bytes: usize) -> PoolBuffer {
        self.allocate_shared(bytes).unwrap_or_else(|| PoolBuffer::on_heap(bytes))
    }

    /// [`Connection::allocate`]; `None` where there is no memory.
    pub fn try_allocate(&mut self, bytes: usize) -> Option<PoolBuffer> {
        self.allocate_shared(bytes).or_else(|| PoolBuffer::try_on_heap(bytes))
    }

    fn allocate_shared(&mut self, bytes: usize) -> Option<PoolBuffer> {
        if self.lane.is_none() && self.offered && !self.asked_for_shm && self.may_share() {
            self.move_to_shm().ok()?;
        }
        let pool = Arc::clone(&self.lane.as_ref()?.pool);
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
        matches!(self.origin, Origin::Unix { carrier: Carrier::Auto | Carrier::Shm, .. })
    }

    /// Memory shared with the daemon, from which this caller's buffers come; `None` on other carriers.
    pub fn pool(&self) -> Option<Pool> {
        self.lane.as_ref().map(|lane| Pool(Arc::clone(&lane.pool)))
    }

    /// What opens further connections of this caller, for other threads.
    pub fn lanes(&mut self) -> Result<Lanes> {
        let reply = self.call(wire_handshake::SERVICE, wire_handshake::TOKEN, &[], &[])?;
        let mut token = [0; wire_handshake::TOKEN_BYTES];
        token.copy_from_slice(Reader::new("lane token", &reply.payload).raw(wire_handshake::TOKEN_BYTES)?);
        Ok(Lanes { origin: self.origin.clone(), token, pool: self.pool.clone() })
    }

    /// One more connection of the same caller, for another thread.
    pub fn lane(&mut self) -> Result<Connection> {
        self.lanes()?.open()
    }

    /// What carries the calls now: `Shm`, `Unix` or `Tcp`.
    pub fn carrier(&self) -> Carrier {
        match self.origin {
            Origin::Unix { .. } if self.lane.is_some() => Carrier::Shm,
            Origin::Unix { .. } => Carrier::Unix,
            Origin::Tcp { .. } => Carrier::Tcp,
        }
    }

    fn transact(&mut self, ask: &Ask<'_>, sink: &mut Sink<'_, '_>) -> Result<Exchanged> {
        if self.alive && self.lane.is_none() && self.wants_shm() {
            self.move_to_shm()?;
        }
        let call = self.next_call;
        let room = match sink {
            Sink::Grow(_) => None,
            Sink::Fill(output) => Some(output.iter().map(|part| part.len() as u64).sum()),
        };
        let request = Outgoing {
            kind: Kind::Request,
            service: ask.service,
            function: ask.function,
            call,
            status: 0,
            payload: ask.payload,
            bulk: ask.input,
            fds: ask.fds,
            flags: 0,
            room,
        };
        request.check(self.stream.passes_fds())?;
        if !self.alive {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the connection to {} ended with an earlier failure; reconnect", self.peer),
            ));
        }
        self.next_call += 1;
        self.alive = false;
        if let Some(lane) = &mut self.lane {
            let header = request.header_unsealed();
            let patience = Patience { timeout: self.timeout, nap_max: self.watch_every };
            let (about, outcome) =
                lane.transact(&mut self.stream, &self.peer, (ask, header), sink, &patience)?;
            self.alive = about == call;
            return outcome;
        }
        let sent = request.send(&self.stream);
        if let Err(fault @ (Fault::Stalled | Fault::Kernel(_))) = sent {
            return Err(fault.into_error(&self.peer, "while a request was sent"));
        }
        // A daemon that closed while we were sending may have said why before.
        let answer = self.reply(call, sink);
        match answer {
            Ok((about, outcome)) => {
                self.alive = about == call && sent.is_ok();
                outcome
            }
            Err(error) => Err(error),
        }
    }

    /// Receives one reply: the call it is about, and what it says.
    fn reply(&mut self, call: u64, sink: &mut Sink<'_, '_>) -> Result<(u64, Result<Exchanged>)> {
        let fault = |peer: &str, fault: Fault| fault.into_error(peer, "before its reply was complete");
        self.stream.allow_in_all(self.timeout).map_err(|f| fault(&self.peer, f))?;
        let header = self.stream.header().map_err(|f| fault(&self.peer, f))?;
        let header = header.ok_or_else(|| fault(&self.peer, Fault::Closed))?;
        let header = Header::decode(&header).map_err(|error| error.within(&self.peer))?;
        self.offered |= header.flags & OFFERS_SHM != 0;
        let unasked = header.call == 0 && header.status != 0;
        if header.kind != Kind::Reply || (header.call != call && !unasked) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("{} answered call {} where call {call} was asked; reconnect", self.peer, header.call),
            ));
        }
        // Of descriptors that this process has no room for the message behind them is still to be taken.
        let fds = match self.stream.take_fds(header.fd_count).map_err(|error| error.within(&self.peer)) {
            Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
            fds => fds,
        };
        let mut payload = Vec::new();
        self.stream
            .read_vec(&mut payload, header.payload_bytes as usize)
            .map_err(|f| fault(&self.peer, f))?;
        header.check_payload(&payload).map_err(|error| error.within(&self.peer))?;
        match sink {
            Sink::Grow(bulk) => {
                let bulk_bytes = usize::try_from(header.bulk_bytes).map_err(|_| {
                    let why = format!("{} sends more bulk data than fit in memory", self.peer);
                    Error::new(ErrorKind::TooLarge, why)
                })?;
                if bulk_bytes > GROWN_BYTES_MAX {
                    let why = format!(
                        "{} announces {bulk_bytes} bulk bytes, beyond the limit of {GROWN_BYTES_MAX}",
                        self.peer
                    );
                    return Err(Error::new(ErrorKind::Protocol, why));
                }
                self.stream.read_vec(bulk, bulk_bytes).map_err(|f| fault(&self.peer, f))?;
            }
            Sink::Fill(output) => self.fill(header.bulk_bytes, output)?,
        }
        if header.status != 0 {
            let reply = ErrorReply::decode(&payload).map_err(|error| error.within(&self.peer))?;
            return Ok((header.call, Err(reply.into_error(header.status))));
        }
        let bulk_bytes = header.bulk_bytes;
        Ok((header.call, fds.map(|fds| Exchanged { payload, bulk_bytes, fds })))
    }

    /// Receives `bytes` bulk bytes into `output`.
    fn fill(&mut self, bytes: u64, output: &mut [IoSliceMut<'_>]) -> Result<()> {
        let mut left = bytes;
        for part in output {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
            let mut have = 0;
            while have < wanted {
                let got = self.stream.read_some(&mut part[have..wanted]);
                have += got.map_err(|f| f.into_error(&self.peer, "before its reply was complete"))?;
            }
            left -= wanted as u64;
        }
        if left > 0 {
            let why =
                format!("{} answers {left} bulk bytes more than there is room for; reconnect", self.peer);
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        Ok(())
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
        self.watch_every = Some(every);
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
