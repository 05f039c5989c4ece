//! One connection from its acceptance to its end.
//!
//! Invariants: whatever a peer sends costs only its own connection; a service's panic is an error reply;
//! every service hears of a caller's end exactly once, after the caller's last call.

use crate::bulk::Bulk;
use crate::handshake::{self, ServerSide, Step};
use crate::message::{Outgoing, send_error};
use crate::server::Shared;
use crate::stream::{Fault, Stream};
use crate::{Call, Caller, Reply, unix};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::handshake as wire_handshake;
use zazen_wire::header::{Header, Kind};

/// A refused peer's last bytes are discarded for so long …
const LINGER: Duration = Duration::from_secs(1);
/// … and so many of them.
const LINGER_BYTES_MAX: u64 = 64 << 20;
/// A payload buffer larger than this is not kept for the next call.
const KEPT_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Over what a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Unix,
    Tcp,
}

impl Carrier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Carrier::Unix => "unix",
            Carrier::Tcp => "tcp",
        }
    }
}

/// Why a connection ends.
enum End {
    /// The peer closed between messages, or the server drains.
    Closed,
    /// The peer vanished or stalled in the middle.
    Lost(Fault),
    /// The peer is told this, then closed.
    Refused { about: (u16, u16, u64), error: Error },
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Lost(fault)
    }
}

type Outcome<T> = std::result::Result<T, End>;

/// Serves the connection until it ends.
pub(crate) fn serve(shared: &Shared, stream: Stream, carrier: Carrier, number: u64) {
    let mut peer = Peer { shared, stream, carrier, number, payload: Vec::new() };
    let end = match peer.identify() {
        Err(end) => end,
        Ok(caller) => {
            shared.registry.mark_proven(number);
            let end = peer.serve_calls(&caller);
            for service in shared.services.values() {
                if catch_unwind(AssertUnwindSafe(|| service.detach(&caller))).is_err() {
                    tracing::error!("service {} panicked when connection {number} ended", service.id());
                }
            }
            end
        }
    };
    peer.part(end);
}

struct Peer<'a> {
    shared: &'a Shared,
    stream: Stream,
    carrier: Carrier,
    number: u64,
    payload: Vec<u8>,
}

impl Peer<'_> {
    fn identify(&mut self) -> Outcome<Caller> {
        let stall = self.shared.limits.stall_timeout;
        self.stream.set_send_timeout(Some(stall))?;
        match self.carrier {
            Carrier::Unix => {
                let (credentials, pid) = unix::peer(self.stream.socket().as_fd())
                    .map_err(|error| End::Refused { about: (0, 0, 0), error })?;
                Ok(Caller { credentials, pid, host: None, connection: self.number })
            }
            Carrier::Tcp => {
                self.stream.allow_in_all(Some(stall))?;
                self.shake_hands()
            }
        }
    }

    fn shake_hands(&mut self) -> Outcome<Caller> {
        let Some(key) = &self.shared.key else { return Err(End::Closed) };
        let mut side = ServerSide::new(key, &self.shared.host);
        loop {
            let bytes = self.stream.header()?.ok_or(End::Closed)?;
            let (header, _) = self.request(&bytes, wire_handshake::PAYLOAD_BYTES_MAX)?;
            let about = (header.service, header.function, header.call);
            if header.bulk_bytes > 0 {
                let error = Error::new(ErrorKind::Protocol, "a message of the handshake has bulk bytes");
                return Err(End::Refused { about, error });
            }
            let step = side.step(header.service, header.function, &self.payload);
            match step.map_err(|error| End::Refused { about, error })? {
                Step::Answer(payload) => self.reply(about, Ok(&payload))?,
                Step::Proven(payload, hello) => {
                    self.reply(about, Ok(&payload))?;
                    return Ok(handshake::caller(*hello, self.number));
                }
            }
        }
    }

    fn serve_calls(&mut self, caller: &Caller) -> End {
        loop {
            match self.serve_call(caller) {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
    }

    /// Waits for one call, serves it, replies.
    fn serve_call(&mut self, caller: &Caller) -> Outcome<()> {
        let bytes = self.stream.header_when_it_comes(self.shared.limits.stall_timeout)?.ok_or(End::Closed)?;
        let (header, fds) = self.request(&bytes, usize::MAX)?;
        let about = (header.service, header.function, header.call);
        if !self.shared.registry.begin_call(self.number) {
            let error = Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down; go on without it");
            return Err(End::Refused { about, error });
        }
        let served = self.dispatch_and_reply(caller, &header, fds);
        let goes_on = self.shared.registry.end_call(self.number);
        if self.payload.capacity() > KEPT_PAYLOAD_BYTES_MAX {
            self.payload = Vec::new();
        }
        served?;
        if goes_on { Ok(()) } else { Err(End::Closed) }
    }

    /// Checks the header and receives the payload into `self.payload`.
    fn request(&mut self, bytes: &[u8; 64], payload_bytes_max: usize) -> Outcome<(Header, Vec<OwnedFd>)> {
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
                "a message of {} bytes before the proof of the key is beyond the limit of {payload_bytes_max}",
                header.payload_bytes
            )));
        }
        let fds = self.stream.take_fds(header.fd_count).map_err(refuse)?;
        let mut payload = std::mem::take(&mut self.payload);
        self.stream.read_vec(&mut payload, header.payload_bytes as usize)?;
        self.payload = payload;
        header.check_payload(&self.payload).map_err(refuse)?;
        Ok((header, fds))
    }

    fn dispatch_and_reply(&mut self, caller: &Caller, header: &Header, fds: Vec<OwnedFd>) -> Outcome<()> {
        let mut bulk = Bulk::new(&mut self.stream, header.bulk_bytes);
        let call = Call {
            function: header.function,
            payload: &self.payload,
            bulk_bytes: header.bulk_bytes,
            bulk: &mut bulk,
            fds,
        };
        let answer = dispatch(self.shared, header.service, caller, call);
        // The reply waits until the bulk is in: a client that still sends does not read, and neither side could
        // go on. It also keeps the connection at a message's beginning.
        bulk.discard()?;
        let about = (header.service, header.function, header.call);
        match answer {
            Ok(reply) => self.reply_in_full(about, reply),
            Err(error) => self.reply(about, Err(&error)),
        }
    }

    fn reply_in_full(&self, about: (u16, u16, u64), reply: Reply) -> Outcome<()> {
        let fds: Vec<BorrowedFd<'_>> = reply.fds.iter().map(AsFd::as_fd).collect();
        let (service, function, call) = about;
        let outgoing = Outgoing {
            kind: Kind::Reply,
            service,
            function,
            call,
            status: 0,
            payload: &reply.payload,
            bulk: &[&reply.bulk],
            fds: &fds,
        };
        match outgoing.check(self.carrier == Carrier::Unix) {
            Ok(()) => Ok(outgoing.send(&self.stream)?),
            Err(error) => self.reply(about, Err(&error)),
        }
    }

    fn reply(&self, about: (u16, u16, u64), answer: std::result::Result<&[u8], &Error>) -> Outcome<()> {
        let (service, function, call) = about;
        match answer {
            Ok(payload) => {
                Outgoing {
                    kind: Kind::Reply,
                    service,
                    function,
                    call,
                    status: 0,
                    payload,
                    bulk: &[],
                    fds: &[],
                }
                .send(&self.stream)?;
            }
            Err(error) => send_error(&self.stream, about, error)?,
        }
        Ok(())
    }

    /// The last words, and the log's.
    fn part(self, end: End) {
        let (number, carrier) = (self.number, self.carrier.name());
        match end {
            End::Closed => {}
            End::Lost(Fault::Closed) => {
                tracing::debug!("{carrier} connection {number}: the peer vanished in a message")
            }
            End::Lost(Fault::Stalled) => tracing::info!(
                "{carrier} connection {number}: nothing moved for {:?} in a message; closed",
                self.shared.limits.stall_timeout
            ),
            End::Lost(Fault::Kernel(errno)) => {
                tracing::info!("{carrier} connection {number}: {errno}; closed")
            }
            End::Refused { about, error } => {
                match error.kind() {
                    ErrorKind::ShuttingDown => tracing::debug!("{carrier} connection {number}: {error}"),
                    _ => tracing::warn!("{carrier} connection {number} refused and closed: {error}"),
                }
                if send_error(&self.stream, about, &error).is_ok() {
                    self.stream.linger(LINGER.min(self.shared.limits.stall_timeout), LINGER_BYTES_MAX);
                }
            }
        }
    }
}

/// Calls the service; a panic in it is an error, logged, and the daemon stays up.
fn dispatch(shared: &Shared, service: u16, caller: &Caller, call: Call<'_>) -> Result<Reply> {
    let Some(serving) = shared.services.get(&service) else {
        let known: Vec<String> = shared.services.keys().map(u16::to_string).collect();
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this daemon has no service {service}, only {}; is it an older release?",
                known.join(", ")
            ),
        ));
    };
    let function = call.function;
    catch_unwind(AssertUnwindSafe(|| serving.call(caller, call))).unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        tracing::error!("service {service} panicked in function {function}: {said}");
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "the daemon met a bug of its own in service {service}, function {function} ({said}); \
                 it goes on; please report it with the daemon's log"
            ),
        ))
    })
}
