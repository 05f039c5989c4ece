//! A client's lane as [`crate::Connection`] uses it: [`zazen_lane::Client`], the socket beside it,
//! and memory that grows.

use crate::carriers::seam::{Ask, Exchanged, Sink};
use crate::carriers::shm::cpus::has_cpus_to_spin;
use crate::carriers::shm::fault;
use crate::carriers::shm::pool::ClientPool;
use crate::carriers::shm::region::Kernel;
use crate::carriers::stream::{Fault, Stream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_lane::{Broken, Client, Receiver, Reply, Request, Source, Target};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, Header, Kind};
use zazen_wire::shm::{BELL, FDS, Offer};

/// A client sleeps on its futex for this long, then on the socket, where it also learns of the
/// daemon's death.
const NAP: Duration = Duration::from_millis(20);

/// One lane.
pub(crate) struct ClientLane {
    lane: Client<Kernel>,
    pub(crate) pool: Arc<ClientPool>,
    /// The body of the record that came last.
    body: Vec<u8>,
    fds: Option<(u64, Vec<OwnedFd>)>,
}

/// How long to wait, and how often to look whether the daemon is still there.
pub(crate) struct Patience {
    pub(crate) timeout: Option<Duration>,
    pub(crate) nap_max: Option<Duration>,
}

/// The socket, and the memory that the answer goes to.
struct Answer<'s> {
    stream: &'s mut Stream,
    body: Vec<u8>,
    payload: Vec<u8>,
    /// Bulk bytes for which the caller has no buffers.
    bulk: Vec<u8>,
}

impl Receiver for Answer<'_> {
    type Error = Fault;

    fn ring(&mut self) -> std::result::Result<(), Fault> {
        self.stream.send_frame(Kind::Request, BELL, 0, &[])
    }

    fn body(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.body.resize(bytes, 0);
        Some(&mut self.body)
    }

    fn payload(&mut self, bytes: usize) -> std::result::Result<Target<'_>, Fault> {
        grow(&mut self.payload, bytes)
    }

    fn bulk(&mut self, bytes: usize) -> std::result::Result<Target<'_>, Fault> {
        grow(&mut self.bulk, bytes)
    }
}

fn grow(all: &mut Vec<u8>, bytes: usize) -> std::result::Result<Target<'_>, Fault> {
    let have = all.len();
    all.try_reserve(bytes).map_err(|_| Fault::Kernel(rustix::io::Errno::NOMEM))?;
    all.resize(have + bytes, 0);
    Ok(Target::of(&mut all[have..]))
}

fn lost(peer: &str, fault: Fault) -> Error {
    fault.into_error(peer, "before its reply was complete")
}

impl ClientLane {
    /// The lane that `offer` describes, in the region of `pool`.
    pub(crate) fn new(offer: &Offer, pool: Arc<ClientPool>) -> ClientLane {
        // SAFETY: the pool, which the lane keeps, has the region mapped.
        let lane = unsafe { Client::new(offer, **pool.region, Kernel) };
        ClientLane { lane, pool, body: Vec::new(), fds: None }
    }

    /// One call: the call that the reply is about, and what it says. An `Err` leaves the connection
    /// dead.
    pub(crate) fn transact(
        &mut self,
        stream: &mut Stream,
        peer: &str,
        (ask, header): (&Ask<'_>, Header),
        sink: &mut Sink<'_, '_>,
        patience: &Patience,
    ) -> Result<(u64, Result<Exchanged>)> {
        let (bulk, output) = match sink {
            Sink::Grow(bulk) => (Some(bulk), None),
            Sink::Fill(output) => (None, Some(Target::of_slices(output))),
        };
        let (payload, input) = (Source::of(ask.payload), Source::of_slices(ask.input));
        let request = Request { header, payload, input, output };
        if !ask.fds.is_empty() {
            fault::point();
            stream.send_frame(Kind::Request, FDS, header.call, ask.fds).map_err(|fault| lost(peer, fault))?;
        }
        let body = std::mem::take(&mut self.body);
        let mut answer = Answer { stream, body, payload: Vec::new(), bulk: Vec::new() };
        let replied = self.wait_for_reply(&request, &mut answer, peer, patience);
        let Answer { stream, body, mut payload, bulk: grown } = answer;
        self.body = body;
        let reply = match replied? {
            Ok(reply) => reply,
            Err(told) => return Ok((0, Err(told))),
        };
        if let Some(bulk) = bulk {
            *bulk = grown;
        }
        if !reply.streamed {
            payload.extend_from_slice(&self.body[..reply.header.payload_bytes as usize]);
        }
        let fds = self.reply_fds(stream, peer, &reply.header)?;
        let Header { call, status, bulk_bytes, .. } = reply.header;
        if status != 0 {
            let told = ErrorReply::decode(&payload).map_err(|error| error.within(peer))?;
            return Ok((call, Err(told.into_error(status))));
        }
        Ok((call, Ok(Exchanged { payload, bulk_bytes, fds })))
    }

    /// Makes the call, except for the reply's descriptors. The inner `Err` is what the daemon says
    /// on the socket.
    fn wait_for_reply(
        &mut self,
        request: &Request<'_>,
        answer: &mut Answer<'_>,
        peer: &str,
        patience: &Patience,
    ) -> Result<std::result::Result<Reply, Error>> {
        let fault = |fault: Fault| lost(peer, fault);
        let lie = |broken: Broken| lost(peer, broken.into());
        let mut call = self.lane.begin(request, answer).map_err(fault)?;
        // Read the clock only when there is something to wait for.
        let mut deadline = None;
        loop {
            if let Some(reply) = self.lane.advance(&mut call, answer).map_err(fault)? {
                // The body with the payload is not asked for again.
                self.lane.finish(&mut call, &reply, u64::MAX, answer).map_err(fault)?;
                return Ok(Ok(reply));
            }
            let until = deadline.get_or_insert_with(|| patience.timeout.map(|time| Instant::now() + time));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let nap = [left, patience.nap_max, Some(NAP)].into_iter().flatten().min().unwrap_or(NAP);
            let port = self.lane.port();
            if port.wait(has_cpus_to_spin(), nap).map_err(lie)? {
                continue;
            }
            if port.is_closed() || port.sleep_on_socket().map_err(lie)? {
                let heard = self.hear_socket(answer.stream, peer, left);
                self.lane.port().wake_up();
                if let Some(told) = heard? {
                    return Ok(Err(told));
                }
            }
        }
    }

    /// Sleeps on the socket until it brings something: a bell, descriptors, or the daemon's last
    /// words.
    fn hear_socket(
        &mut self,
        stream: &mut Stream,
        peer: &str,
        left: Option<Duration>,
    ) -> Result<Option<Error>> {
        let fault = |fault: Fault| lost(peer, fault);
        stream.allow_in_all(left).map_err(fault)?;
        let frame = stream.header().map_err(fault)?.ok_or_else(|| fault(Fault::Closed))?;
        let header = Header::decode(&frame).map_err(|error| error.within(peer))?;
        if header.status != 0 {
            let mut payload = Vec::new();
            stream.read_vec(&mut payload, header.payload_bytes as usize).map_err(fault)?;
            let reply = ErrorReply::decode(&payload).map_err(|error| error.within(peer))?;
            return Ok(Some(reply.into_error(header.status)));
        }
        self.take_frame(stream, &header).map_err(|error| error.within(peer))?;
        Ok(None)
    }

    fn take_frame(&mut self, stream: &mut Stream, header: &Header) -> Result<()> {
        match (header.service, header.function) {
            // Descriptors that came with a bell belong to the message behind it.
            (0, BELL) => Ok(()),
            (0, FDS) => {
                self.fds = Some((header.call, stream.take_fds(header.fd_count)?));
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Protocol,
                "the socket brings what belongs into the ring; reconnect",
            )),
        }
    }

    /// The descriptors that were sent ahead of the reply.
    fn reply_fds(&mut self, stream: &mut Stream, peer: &str, header: &Header) -> Result<Vec<OwnedFd>> {
        if header.fd_count == 0 {
            return Ok(Vec::new());
        }
        loop {
            if let Some((call, fds)) = self.fds.take()
                && call == header.call
            {
                return Ok(fds);
            }
            if let Some(error) = self.hear_socket(stream, peer, None)? {
                return Err(error);
            }
        }
    }
}
