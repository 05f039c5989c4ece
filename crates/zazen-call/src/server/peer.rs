//! One connection from its acceptance to its end.
//!
//! Invariants: whatever a peer sends costs only its own connection. A service's panic is an error
//! reply. Every service hears of a caller's end exactly once, after the caller's last call.

use crate::bulk::{Bulk, Output};
use crate::carriers::account::{Charge, FREE_BYTES, Payer};
use crate::carriers::message::{Outgoing, send_error};
use crate::carriers::shm::cpus::has_cpus_to_spin;
use crate::carriers::shm::memory::LaneSeat;
use crate::carriers::shm::region::Kernel;
use crate::carriers::stream::{Fault, Stream};
use crate::carriers::unix;
use crate::handshake::{self, ServerSide, Step};
use crate::quiet::may_say;
use crate::server::callers::Group;
use crate::server::lane::{Lane, Spinner};
use crate::server::registry::{Admitted, Begin};
use crate::server::services::check_room;
use crate::server::state::{Carrier, Shared};
use crate::service::{Call, Caller, Line, Reply};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_lane::Awake;
use zazen_wire::Message;
use zazen_wire::handshake as wire_handshake;
use zazen_wire::header::{Header, Kind, OFFERS_SHM};

/// How long a refused peer's last bytes are discarded,
const LINGER: Duration = Duration::from_secs(1);
/// and how many of them.
const LINGER_BYTES_MAX: u64 = 64 << 20;
/// A payload buffer larger than this is not kept for the next call.
const KEPT_PAYLOAD_BYTES_MAX: usize = FREE_BYTES as usize;

/// Why a connection ends.
enum End {
    /// The peer closed between messages, or the server drains.
    Closed,
    /// The peer vanished or stalled in the middle.
    Lost(Fault),
    /// Its calls go on in shared memory.
    Moved(LaneSeat),
    /// Another process serves it, until this descriptor says that the process has ended.
    Handed(OwnedFd),
    /// The peer is told this, then its connection is closed.
    Refused { about: (u16, u16, u64), error: Error },
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Lost(fault)
    }
}

type Outcome<T> = std::result::Result<T, End>;

/// Serves the connection until it ends, or until its lane in shared memory waits for the next call
/// without a thread. When the connection ends, its number is free again.
pub(crate) fn serve(shared: &Arc<Shared>, stream: Stream, carrier: Carrier, place: Admitted) {
    let number = place.number;
    let mut peer = Peer::new(shared, stream, carrier, place);
    match peer.identify() {
        Ok(caller) => peer.serve_calls(caller),
        Err(end) => {
            peer.part(end);
            shared.registry.remove(number);
        }
    }
}

/// The same for a connection whose caller another process has identified, and which that process
/// has open as well: so its end must be told, closing this descriptor ends nothing.
pub(crate) fn serve_adopted(shared: &Arc<Shared>, stream: Stream, place: Admitted, caller: Caller) {
    let socket = Arc::clone(stream.socket());
    let _ = stream.set_send_timeout(Some(shared.limits.stall_timeout));
    let awake = has_cpus_to_spin().then(Awake::new);
    Peer { awake, ..Peer::new(shared, stream, Carrier::Tcp, place) }.serve_calls(caller);
    let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
}

/// Waits until the connection ends, which another process serves, or that process lets go of its
/// callers: then `ends` is readable. The socket is not shut down here: a call may be in progress
/// there. It is closed once both processes have closed it.
fn wait_for_end(socket: &OwnedFd, ends: &OwnedFd) {
    let mut waits = [PollFd::new(socket, PollFlags::RDHUP), PollFd::new(ends, PollFlags::IN)];
    while rustix::event::poll(&mut waits, None) == Err(Errno::INTR) {}
}

struct Peer<'a> {
    shared: &'a Arc<Shared>,
    /// The stream, and the bulk bytes of the message at hand.
    bulk: Bulk,
    carrier: Carrier,
    place: Admitted,
    payload: Vec<u8>,
    /// A service has seen a call of this connection.
    called: bool,
    /// The lane that it was offered.
    seat: Option<LaneSeat>,
    /// The charge for the payload at hand.
    charge: Option<Charge>,
    /// How it waits for calls, if it may wait without sleeping.
    awake: Option<Awake>,
}

/// What came before a request's bulk bytes.
struct Request {
    header: Header,
    fds: Vec<OwnedFd>,
    /// There was no room for its payload, which has been discarded.
    refusal: Option<Error>,
}

impl<'a> Peer<'a> {
    fn new(shared: &'a Arc<Shared>, stream: Stream, carrier: Carrier, place: Admitted) -> Peer<'a> {
        Peer {
            shared,
            bulk: Bulk::of_stream(stream),
            carrier,
            place,
            payload: Vec::new(),
            called: false,
            seat: None,
            charge: None,
            awake: None,
        }
    }

    /// Waits for the next call without sleeping, if that has paid before; whether it has come.
    fn wait_awake(&mut self) -> bool {
        let (Some(awake), Some(stream)) = (&mut self.awake, self.bulk.stream()) else { return true };
        let spinner = Spinner::new();
        spinner.is_some() && awake.wait(&Kernel, stream.cpu_of_peer(), || stream.has_come())
    }

    /// Serves the calls of a caller that is known, until the connection ends or goes on elsewhere.
    fn serve_calls(mut self, caller: Caller) {
        let (shared, number) = (self.shared, self.place.number);
        // Services hear of the caller's end when the group is dropped, before the peer does.
        let mut group = Group::new(caller, &shared.callers, &self.place.account);
        let end = loop {
            if let Err(end) = self.serve_call(&mut group) {
                break end;
            }
        };
        match end {
            End::Moved(seat) => {
                let Some(stream) = self.bulk.into_stream() else { return };
                let lane = Lane::new(shared, group, self.place, seat, stream);
                if let Some(parking) = shared.parking() {
                    parking.serve(lane);
                    parking.stand_in();
                }
                return;
            }
            End::Handed(ends) => {
                let socket = Arc::clone(self.stream().socket());
                wait_for_end(&socket, &ends);
                drop(group);
            }
            end => {
                drop(group);
                self.part(end);
            }
        }
        shared.registry.remove(number);
    }

    fn stream(&mut self) -> &mut Stream {
        let Some(stream) = self.bulk.stream() else { unreachable!("a peer is a stream until it moves") };
        stream
    }

    fn identify(&mut self) -> Outcome<Caller> {
        let stall = self.shared.limits.stall_timeout;
        self.stream().set_send_timeout(Some(stall))?;
        match self.carrier {
            Carrier::Unix => {
                let (credentials, pid) = unix::peer(self.stream().socket().as_fd())
                    .map_err(|error| End::Refused { about: (0, 0, 0), error })?;
                Ok(Caller { credentials, pid, host: None, connection: self.place.number })
            }
            Carrier::Tcp => {
                let patience = stall.min(self.shared.limits.proof_timeout);
                self.stream().set_send_timeout(Some(patience))?;
                self.stream().allow_in_all(Some(patience))?;
                let caller = self.shake_hands()?;
                self.stream().set_send_timeout(Some(stall))?;
                Ok(caller)
            }
        }
    }

    fn shake_hands(&mut self) -> Outcome<Caller> {
        let Some(key) = &self.shared.key else { return Err(End::Closed) };
        let mut side = ServerSide::new(key, &self.shared.host);
        loop {
            let bytes = self.stream().header()?.ok_or(End::Closed)?;
            let Request { header, .. } = self.request(&bytes, wire_handshake::PAYLOAD_BYTES_MAX)?;
            let about = (header.service, header.function, header.call);
            if header.bulk_bytes > 0 {
                let error = Error::new(ErrorKind::Protocol, "a message of the handshake has bulk bytes");
                return Err(End::Refused { about, error });
            }
            let step = side.step(header.service, header.function, &self.payload);
            match step.map_err(|error| End::Refused { about, error })? {
                Step::Answer(payload) => self.reply(about, &payload)?,
                Step::Proven(payload, hello) => {
                    let host = self.place.host().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                    let payer = Payer::Remote(host, hello.credentials.uid);
                    let account = self.shared.accounts.of(&payer);
                    let proven = self.shared.registry.prove(&mut self.place, account);
                    proven.map_err(|error| End::Refused { about, error })?;
                    self.reply(about, &payload)?;
                    return Ok(handshake::caller(*hello, self.place.number));
                }
            }
        }
    }

    /// Waits for one call, serves it, replies.
    fn serve_call(&mut self, group: &mut Arc<Group>) -> Outcome<()> {
        let stall = self.shared.limits.stall_timeout;
        let sleeps = !self.stream().has_ahead() && !self.wait_awake();
        let bytes = self.stream().header_when_it_comes(stall)?.ok_or(End::Closed)?;
        if let Some(awake) = self.awake.as_mut().filter(|_| sleeps) {
            awake.slept(&Kernel);
        }
        let Request { header, fds, refusal } = self.request(&bytes, usize::MAX)?;
        if let Some(error) = refusal {
            return self.decline(&header, fds, &error);
        }
        if header.service == wire_handshake::SERVICE {
            return self.serve_own(&header, group);
        }
        self.called = true;
        let about = (header.service, header.function, header.call);
        match self.shared.registry.begin_call(&self.place) {
            Begin::Go => {}
            Begin::Busy(error) => return self.decline(&header, fds, &error),
            Begin::Draining => {
                let error =
                    Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down; go on without it");
                return Err(End::Refused { about, error });
            }
        }
        let served = self.dispatch_and_reply(&group.caller, &header, fds);
        let goes_on = self.shared.registry.end_call(&self.place);
        self.forget_payload();
        served?;
        if goes_on { Ok(()) } else { Err(End::Closed) }
    }

    /// An idle connection holds no memory for payloads.
    fn forget_payload(&mut self) {
        if self.payload.capacity() > KEPT_PAYLOAD_BYTES_MAX {
            self.payload = Vec::new();
        }
        self.charge = None;
    }

    /// Refuses a call that the caller has no room for; the connection goes on.
    fn decline(&mut self, header: &Header, fds: Vec<OwnedFd>, error: &Error) -> Outcome<()> {
        drop(fds);
        self.forget_payload();
        self.bulk.begin(header.bulk_bytes);
        self.bulk.discard()?;
        if let Some(left_out) = may_say("busy", self.place.account.who()) {
            tracing::warn!("a call of {} was refused: {error}{left_out}", self.place.account.who());
        }
        Ok(send_error(self.stream(), (header.service, header.function, header.call), error)?)
    }

    /// A call to the call layer itself.
    fn serve_own(&mut self, header: &Header, group: &mut Arc<Group>) -> Outcome<()> {
        self.bulk.begin(header.bulk_bytes);
        self.bulk.discard()?;
        let about = (header.service, header.function, header.call);
        match header.function {
            zazen_wire::shm::ASK => return self.offer_shm(about, group),
            zazen_wire::shm::MOVE if self.seat.is_some() => {
                self.reply(about, &[])?;
                return Err(self.seat.take().map_or(End::Closed, End::Moved));
            }
            _ => {}
        }
        let answer = match header.function {
            wire_handshake::TOKEN => group.token().map(|token| token.to_vec()),
            wire_handshake::JOIN if self.called => Err(Error::new(
                ErrorKind::Conflict,
                "this connection has made calls already; only a fresh one can join another caller",
            )),
            wire_handshake::JOIN => self.shared.callers.join(&self.payload, &group.caller).map(|joined| {
                group.dissolve();
                *group = joined;
                self.called = true;
                // A lane in the old caller's region is no lane of this one.
                self.seat = None;
                Vec::new()
            }),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the call layer has no function {other}; is this daemon an older release?"),
            )),
        };
        match answer {
            Ok(payload) => self.reply(about, &payload),
            Err(error) => Ok(send_error(self.stream(), about, &error)?),
        }
    }

    /// The caller asks for shared memory: tells it where its lane is. It moves there once it has
    /// mapped the region.
    fn offer_shm(&mut self, about: (u16, u16, u64), group: &Arc<Group>) -> Outcome<()> {
        let seat = match self.shared.offers_shm(self.carrier) {
            true => group.pool().and_then(|pool| pool.take_lane()),
            false => Err(Error::new(ErrorKind::Unsupported, "this daemon serves no shared memory here")),
        };
        match seat {
            Ok(seat) => {
                let payload = seat.offer().encode();
                let fds = [seat.pool.fd()];
                Outgoing { payload: &payload, fds: &fds, ..Outgoing::reply(about) }.send(self.stream())?;
                self.seat = Some(seat);
                Ok(())
            }
            Err(error) => {
                if let Some(left_out) = may_say("no lane", self.place.account.who()) {
                    tracing::info!("connection {} stays on its socket: {error}{left_out}", self.place.number);
                }
                Ok(send_error(self.stream(), about, &error)?)
            }
        }
    }

    /// Checks the header and receives the payload into `self.payload`.
    fn request(&mut self, bytes: &[u8; 64], payload_bytes_max: usize) -> Outcome<Request> {
        let call = Header::call_of(bytes);
        let header = Header::decode(bytes).map_err(|error| End::Refused { about: (0, 0, call), error })?;
        let about = (header.service, header.function, header.call);
        let refuse = |error: Error| End::Refused { about, error };
        let protocol = |why: String| refuse(Error::new(ErrorKind::Protocol, why));
        if header.kind != Kind::Request || header.status != 0 {
            return Err(protocol("a client sent a reply where a request is wanted".to_owned()));
        }
        if header.payload_bytes as usize > payload_bytes_max {
            return Err(protocol(format!(
                "a message of {} bytes before the proof of the key is beyond the limit of \
                 {payload_bytes_max}",
                header.payload_bytes
            )));
        }
        let fds = self.stream().take_fds(header.fd_count).map_err(refuse)?;
        match self.place.account.charge(u64::from(header.payload_bytes)) {
            Ok(charge) => self.charge = charge,
            Err(error) => {
                self.stream().skip(header.payload_bytes as usize)?;
                return Ok(Request { header, fds, refusal: Some(error) });
            }
        }
        let mut payload = std::mem::take(&mut self.payload);
        self.stream().read_vec(&mut payload, header.payload_bytes as usize)?;
        self.payload = payload;
        header.check_payload(&self.payload).map_err(refuse)?;
        Ok(Request { header, fds, refusal: None })
    }

    fn dispatch_and_reply(&mut self, caller: &Caller, header: &Header, fds: Vec<OwnedFd>) -> Outcome<()> {
        // Over TCP nothing but this socket belongs to the connection.
        let is_whole = self.carrier == Carrier::Tcp && header.bulk_bytes == 0 && !self.stream().has_ahead();
        let line = Line::of_whole(self.stream().socket(), is_whole);
        self.bulk.begin(header.bulk_bytes);
        let mut output = Output::in_memory(header.room, &self.place.account);
        let call = Call {
            function: header.function,
            payload: &self.payload,
            bulk_bytes: header.bulk_bytes,
            bulk: &mut self.bulk,
            output: &mut output,
            fds,
            line,
            began: Instant::now(),
        };
        let answer = self.shared.services.dispatch(header.service, caller, call);
        let replied = self.finish(header, output, answer);
        self.shared.services.answered(header.service, caller);
        replied
    }

    /// Sends the reply of a service.
    fn finish(&mut self, header: &Header, output: Output, answer: Result<Reply>) -> Outcome<()> {
        // The reply waits until the bulk is in: a client that still sends does not read, and
        // neither side could go on. It also keeps the connection at a message's beginning.
        self.bulk.discard()?;
        let about = (header.service, header.function, header.call);
        let account = Arc::clone(&self.place.account);
        let checked = answer.and_then(|reply| {
            check_room(header.room, output.written(), &reply)?;
            let charge = account.charge((reply.payload.len() + reply.bulk.len()) as u64)?;
            self.stream().hold_fds_out(reply.fds.len(), 0)?;
            Ok((reply, charge))
        });
        match checked {
            Ok((mut reply, _charge)) => {
                let (output, charge) = output.into_memory();
                let handed = reply.handed.take();
                if handed.is_some() {
                    // Before the caller can make the next call.
                    self.shared.registry.hand_over(self.place.number);
                }
                let outcome = self.reply_in_full(about, &output, &reply);
                drop(charge);
                crate::spare::give_back(output);
                match handed {
                    Some(ends) if outcome.is_ok() => Err(End::Handed(ends)),
                    _ => outcome,
                }
            }
            Err(error) => Ok(send_error(self.stream(), about, &error)?),
        }
    }

    fn reply_in_full(&mut self, about: (u16, u16, u64), output: &[u8], reply: &Reply) -> Outcome<()> {
        let fds: Vec<BorrowedFd<'_>> = reply.fds.iter().map(AsFd::as_fd).collect();
        let bulk = [IoSlice::new(output), IoSlice::new(&reply.bulk)];
        let flags = if self.shared.offers_shm(self.carrier) { OFFERS_SHM } else { 0 };
        let outgoing =
            Outgoing { payload: &reply.payload, bulk: &bulk, fds: &fds, flags, ..Outgoing::reply(about) };
        let Some(stream) = self.bulk.stream() else { return Err(End::Closed) };
        match outgoing.check(stream.passes_fds()) {
            Ok(()) => Ok(outgoing.send(stream)?),
            Err(error) => Ok(send_error(stream, about, &error)?),
        }
    }

    fn reply(&mut self, about: (u16, u16, u64), payload: &[u8]) -> Outcome<()> {
        Ok(Outgoing { payload, ..Outgoing::reply(about) }.send(self.stream())?)
    }

    /// Says why the connection ends, to the peer and in the log.
    fn part(mut self, end: End) {
        let (number, carrier) = (self.place.number, self.carrier.name());
        let account = Arc::clone(&self.place.account);
        // Strangers share their lines.
        let say = |site| may_say(site, account.who());
        match end {
            End::Closed => {}
            End::Lost(Fault::Closed) => {
                tracing::debug!("{carrier} connection {number}: the peer vanished in a message")
            }
            End::Lost(fault) => {
                if let Some(left_out) = say("lost") {
                    let why = match fault {
                        Fault::Stalled => "nothing moved in a message for too long".to_owned(),
                        Fault::Kernel(errno) => errno.to_string(),
                        Fault::Broken(why) => why.to_owned(),
                        Fault::Closed => "the peer vanished".to_owned(),
                    };
                    tracing::info!("{carrier} connection {number}: {why}; closed{left_out}");
                }
            }
            End::Moved(_) | End::Handed(_) => {}
            End::Refused { about, error } => {
                match error.kind() {
                    ErrorKind::ShuttingDown => tracing::debug!("{carrier} connection {number}: {error}"),
                    _ => {
                        if let Some(left_out) = say("refused") {
                            tracing::warn!(
                                "{carrier} connection {number} refused and closed: {error}{left_out}"
                            );
                        }
                    }
                }
                if send_error(self.stream(), about, &error).is_ok() {
                    let patience = LINGER.min(self.shared.limits.stall_timeout);
                    self.stream().linger(patience, LINGER_BYTES_MAX);
                }
            }
        }
    }
}
