//! The client's end of a socket, and of the lane in shared memory beside it once calls go there.

use crate::carriers::message::Outgoing;
use crate::carriers::seam::{Answered, Ask, ClientEnd, Exchanged, Sink};
use crate::carriers::shm::lane::{ClientLane, Patience};
use crate::carriers::stream::{Fault, Stream, Watch};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, Header, Kind, OFFERS_SHM};

/// Bulk bytes that a reply may have for which the caller has no buffers of its own.
const GROWN_BYTES_MAX: usize = 4 << 30;

/// See the module.
pub(crate) struct SocketEnd {
    stream: Stream,
    /// The lane that carries the calls; the stream then brings bells and descriptors.
    lane: Option<Box<ClientLane>>,
    /// The server has said that it has shared memory to give.
    offered: bool,
    /// How often silence is looked into.
    watch_every: Option<Duration>,
    timeout: Option<Duration>,
    /// The server's name in error messages.
    peer: String,
}

impl SocketEnd {
    pub(crate) fn new(stream: Stream, peer: String) -> SocketEnd {
        SocketEnd { stream, lane: None, offered: false, watch_every: None, timeout: None, peer }
    }

    /// Whether the server has said that it has shared memory to give.
    pub(crate) fn is_offered_shm(&self) -> bool {
        self.offered
    }

    pub(crate) fn lane(&self) -> Option<&ClientLane> {
        self.lane.as_deref()
    }

    /// The socket, without limits of time. `None` if it carries no calls, or if bytes that came are
    /// not used yet.
    pub(crate) fn into_socket(mut self) -> Option<OwnedFd> {
        if self.lane.is_some() || self.stream.has_ahead() {
            return None;
        }
        self.stream.allow_each(None).and_then(|()| self.stream.set_send_timeout(None)).ok()?;
        self.stream.copy_socket()
    }

    /// Calls go over `lane` from now on.
    pub(crate) fn move_to(&mut self, lane: ClientLane) {
        self.lane = Some(Box::new(lane));
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
        // This process may have no room for the descriptors: the message behind them is still to be
        // taken.
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
}

impl ClientEnd for SocketEnd {
    fn exchange(&mut self, ask: &Ask<'_>, sink: &mut Sink<'_, '_>) -> Result<Answered> {
        let request = Outgoing::request(ask, sink.room());
        if let Some(lane) = &mut self.lane {
            let header = request.header_unsealed();
            let patience = Patience { timeout: self.timeout, nap_max: self.watch_every };
            let (about, outcome) =
                lane.transact(&mut self.stream, &self.peer, (ask, header), sink, &patience)?;
            return Ok(Answered { outcome, goes_on: about == ask.call });
        }
        let sent = request.send(&self.stream);
        if let Err(fault @ (Fault::Stalled | Fault::Kernel(_))) = sent {
            return Err(fault.into_error(&self.peer, "while a request was sent"));
        }
        // A server that closed while the request was sent may have said why before.
        let (about, outcome) = self.reply(ask.call, sink)?;
        Ok(Answered { outcome, goes_on: about == ask.call && sent.is_ok() })
    }

    fn passes_fds(&self) -> bool {
        self.stream.passes_fds()
    }

    /// The same time bounds a send in which nothing moves.
    fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        // Fails only for a socket that is none; then the next call says so.
        let _ = self.stream.set_send_timeout(self.stream.until_watch(timeout));
    }

    fn watch(&mut self, every: Duration, still_there: Box<dyn FnMut() -> bool + Send>) {
        self.watch_every = Some(every);
        self.stream.set_watch(Some(Watch { every, still_there }));
        self.set_timeout(self.timeout);
    }
}
