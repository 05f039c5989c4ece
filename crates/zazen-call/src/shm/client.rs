//! The client's end of a lane: a request into the ring, bytes in and out as the daemon asks for them, the reply.
//!
//! The daemon is trusted (it is who the client asked to act for it), but what it writes is checked all the same: a bug
//! there must not become one here.

use crate::connection::{Ask, Exchanged, Sink};
use crate::pool::ClientPool;
use crate::shm::fault;
use crate::shm::port::{End, Port, Rouse, Taken};
use crate::stream::{Fault, Stream};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, HEADER_BYTES, Header, Kind};
use zazen_wire::shm::{BELL, ENTRIES_MAX, Entry, FDS, Offer, Op, Place, Record, Span};

/// A client sleeps on its futex for so long, then on the socket, where it also hears of the daemon's death.
const NAP: Duration = Duration::from_millis(20);
/// Bytes in the pool that are fewer are copied: that costs less than looking up where they are.
const IN_PLACE_MIN: usize = 512;

/// One lane.
pub(crate) struct ClientLane {
    port: Port,
    pub(crate) pool: Arc<ClientPool>,
    inline_bytes: usize,
    eager_bytes: usize,
    chunk_bytes: u64,
    body: Vec<u8>,
    tables: Vec<u8>,
    fds: Option<(u64, Vec<OwnedFd>)>,
}

/// How long to wait, and what to look for meanwhile.
pub(crate) struct Patience {
    pub(crate) timeout: Option<Duration>,
    pub(crate) nap_max: Option<Duration>,
}

/// A call in progress.
struct Progress<'a> {
    turn: u32,
    /// What is streamed to the daemon, and how far it is.
    parts: Vec<&'a [u8]>,
    at: (usize, usize),
    free: VecDeque<Span>,
    in_flight: VecDeque<Span>,
    payload: Vec<u8>,
    /// Granted memory, or pieces, were used: the daemon waits to hear that they are not any more.
    used_memory: bool,
}

/// The tables of a request, and the bytes that they leave to be carried.
struct Plan {
    inputs: u16,
    outputs: u16,
    data_bytes: usize,
}

/// A few slices without a trip to the heap; more go there.
struct Slices<'a> {
    few: [&'a [u8]; 8],
    many: Vec<&'a [u8]>,
    count: usize,
}

impl<'a> Slices<'a> {
    fn new() -> Slices<'a> {
        Slices { few: [&[]; 8], many: Vec::new(), count: 0 }
    }

    fn push(&mut self, slice: &'a [u8]) {
        if self.count < self.few.len() {
            self.few[self.count] = slice;
        } else {
            if self.many.is_empty() {
                self.many.extend(self.few);
            }
            self.many.push(slice);
        }
        self.count += 1;
    }

    fn as_slice(&self) -> &[&'a [u8]] {
        if self.many.is_empty() { &self.few[..self.count] } else { &self.many }
    }
}

impl ClientLane {
    pub(crate) fn new(offer: &Offer, pool: Arc<ClientPool>) -> ClientLane {
        ClientLane {
            port: Port::new(Arc::clone(&pool.region), offer.lane(), End::Client),
            pool,
            inline_bytes: offer.inline_bytes as usize,
            eager_bytes: offer.eager_bytes as usize,
            chunk_bytes: u64::from(offer.chunk_bytes),
            body: Vec::new(),
            tables: Vec::new(),
            fds: None,
        }
    }

    /// One call: the call that the reply is about, and what it says. An `Err` leaves the connection dead.
    pub(crate) fn transact(
        &mut self,
        stream: &mut Stream,
        peer: &str,
        request: (&Ask<'_>, Header),
        sink: &mut Sink<'_, '_>,
        patience: &Patience,
    ) -> Result<(u64, Result<Exchanged>)> {
        let (ask, header) = request;
        let fault = |fault: Fault| fault.into_error(peer, "before its reply was complete");
        let plan = self.plan(ask, sink);
        let mut progress = self.send(stream, ask, &header, &plan).map_err(fault)?;
        let pool = Arc::clone(&self.pool);
        let mut sink = Drain::new(sink, plan.outputs > 0, &pool);
        // The clock is looked at only once there is something to wait for.
        let mut deadline = None;
        loop {
            let mut body = std::mem::take(&mut self.body);
            let taken = self.port.take(&mut body);
            self.body = body;
            if let Some(taken) = taken.map_err(fault)? {
                match self.see_to(stream, &taken, &mut progress, &mut sink) {
                    Ok(None) => continue,
                    Ok(Some(reply)) => {
                        return self.finish(stream, peer, reply, progress, &mut sink);
                    }
                    Err(failed) => return Err(fault(failed)),
                }
            }
            let until = deadline.get_or_insert_with(|| patience.timeout.map(|time| Instant::now() + time));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let nap = [left, patience.nap_max, Some(NAP)].into_iter().flatten().min().unwrap_or(NAP);
            if self.port.wait(crate::shm::has_cpus_to_spin(), nap).map_err(fault)? {
                continue;
            }
            if self.port.is_closed() || self.port.sleep_on_socket().map_err(fault)? {
                let heard = self.hear_socket(stream, peer, left);
                self.port.wake_up();
                if let Some(error) = heard? {
                    return Ok((0, Err(error)));
                }
            }
        }
    }

    /// Sleeps on the socket until it brings something: a bell, descriptors, or the daemon's last words.
    fn hear_socket(
        &mut self,
        stream: &mut Stream,
        peer: &str,
        left: Option<Duration>,
    ) -> Result<Option<Error>> {
        let fault = |fault: Fault| fault.into_error(peer, "before its reply was complete");
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
            // Descriptors that came with it are those of the message behind it.
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

    /// What is in the pool is named in tables; the rest is carried.
    fn plan(&mut self, ask: &Ask<'_>, sink: &Sink<'_, '_>) -> Plan {
        self.tables.clear();
        let mut plan = Plan { inputs: 0, outputs: 0, data_bytes: 0 };
        // Tables are never streamed, so a payload that is goes without.
        let may_name = ask.payload.len() + 2 * ENTRIES_MAX * zazen_wire::shm::ENTRY_BYTES <= self.eager_bytes;
        let inputs = ask.input.iter().map(|part| (part.as_ptr(), part.len()));
        if may_name && let Some(count) = self.name(inputs) {
            plan.inputs = count;
        }
        if may_name && let Sink::Fill(output) = sink {
            let outputs = output.iter().map(|part| (part.as_ptr(), part.len()));
            plan.outputs = self.name(outputs).unwrap_or(0);
        }
        plan.data_bytes = self.data(ask, plan.inputs > 0).map(<[u8]>::len).sum();
        plan
    }

    /// The input that is carried: all of it, or what a table can't name.
    fn data<'s, 'a>(&'s self, ask: &Ask<'a>, named: bool) -> impl Iterator<Item = &'a [u8]> + use<'s, 'a> {
        let in_pool = move |part: &&IoSlice<'_>| self.pool.place(part.as_ptr(), part.len()).is_some();
        ask.input.iter().filter(move |part| !(part.is_empty() || named && in_pool(part))).map(|part| &**part)
    }

    /// Appends a table of `parts`, unless none of them is in the pool or they are too many.
    fn name(&mut self, parts: impl Iterator<Item = (*const u8, usize)> + Clone) -> Option<u16> {
        if !parts.clone().any(|(start, length)| self.pool.place(start, length).is_some()) {
            return None;
        }
        let start = self.tables.len();
        let mut count = 0;
        let mut carried = 0u64;
        let mut push = |tables: &mut Vec<u8>, entry: Entry| {
            tables.extend(entry.encode());
            count += 1;
        };
        for (from, length) in parts {
            match self.pool.place(from, length) {
                Some(span) => {
                    if carried > 0 {
                        push(&mut self.tables, Entry::Data(std::mem::take(&mut carried)));
                    }
                    push(&mut self.tables, Entry::Pool(span));
                }
                None => carried += length as u64,
            }
        }
        if carried > 0 {
            push(&mut self.tables, Entry::Data(carried));
        }
        if count > ENTRIES_MAX {
            self.tables.truncate(start);
            return None;
        }
        Some(count as u16)
    }

    fn send<'a>(
        &mut self,
        stream: &Stream,
        ask: &Ask<'a>,
        header: &Header,
        plan: &Plan,
    ) -> std::result::Result<Progress<'a>, Fault> {
        let turn = header.call as u32;
        let head_bytes = self.tables.len() + ask.payload.len();
        let eager = self.port.places.eager_in();
        let mut record =
            Record { inputs: plan.inputs, outputs: plan.outputs, ..Record::of(Op::Message, turn) };
        record.head = if head_bytes <= self.inline_bytes {
            Place::Inline
        } else if head_bytes <= self.eager_bytes {
            Place::Eager
        } else {
            Place::Streamed
        };
        // Where data could begin in the eager buffer.
        let eager_used = if record.head == Place::Eager { head_bytes } else { 0 };
        record.data = if record.head == Place::Inline && head_bytes + plan.data_bytes <= self.inline_bytes {
            Place::Inline
        } else if record.head != Place::Streamed && eager_used + plan.data_bytes <= self.eager_bytes {
            Place::Eager
        } else {
            Place::Streamed
        };
        let mut parts = Vec::new();
        match record.head {
            Place::Inline => {}
            Place::Eager => {
                self.port.region.write(eager.at, &self.tables);
                self.port.region.write(eager.at + self.tables.len() as u64, ask.payload);
            }
            Place::Streamed => parts.push(ask.payload),
        }
        match record.data {
            Place::Inline => {}
            Place::Eager => {
                let mut at = eager.at + eager_used as u64;
                for part in self.data(ask, plan.inputs > 0) {
                    self.port.region.write(at, part);
                    at += part.len() as u64;
                }
            }
            Place::Streamed => parts.extend(self.data(ask, plan.inputs > 0)),
        }
        if !ask.fds.is_empty() {
            fault::point();
            stream.send_frame(Kind::Request, FDS, header.call, ask.fds)?;
        }
        self.port.tell_cpu();
        let mut body = Slices::new();
        let tables = std::mem::take(&mut self.tables);
        if record.head == Place::Inline {
            body.push(&tables);
            body.push(ask.payload);
            if record.data == Place::Inline {
                self.data(ask, plan.inputs > 0).for_each(|part| body.push(part));
            }
        }
        let posted = self.port.post(record, &header.encode_unsealed(), body.as_slice());
        self.tables = tables;
        let posted = posted?;
        ring(stream, posted)?;
        Ok(Progress {
            turn,
            parts,
            at: (0, 0),
            free: VecDeque::new(),
            in_flight: VecDeque::new(),
            payload: Vec::new(),
            used_memory: false,
        })
    }

    /// Sees to one record; the reply is given back.
    fn see_to(
        &mut self,
        stream: &Stream,
        taken: &Taken,
        progress: &mut Progress<'_>,
        sink: &mut Drain<'_, '_, '_>,
    ) -> std::result::Result<Option<(Record, Header)>, Fault> {
        let record = taken.record;
        if record.turn != progress.turn {
            return Err(Fault::Broken("it speaks of another call"));
        }
        match record.op {
            Op::Message => {
                let header = Header::decode_unsealed(&taken.header)
                    .map_err(|_| Fault::Broken("its reply's header is malformed"))?;
                Ok(Some((record, header)))
            }
            Op::Grant => {
                // Pieces small enough that both ends are busy at the same time.
                let half = (record.span.bytes / 2).next_multiple_of(4096).max(4096);
                let piece = self.chunk_bytes.min(half);
                let mut rest = record.span;
                while rest.bytes > 0 {
                    let bytes = rest.bytes.min(piece);
                    progress.free.push_back(Span { at: rest.at, bytes });
                    rest = Span { at: rest.at + bytes, bytes: rest.bytes - bytes };
                }
                progress.used_memory = true;
                self.fill(stream, progress)?;
                Ok(None)
            }
            Op::Credit => {
                let Some(piece) = progress.in_flight.pop_front() else {
                    return Err(Fault::Broken("it gives credit for no piece"));
                };
                progress.free.push_back(piece);
                self.fill(stream, progress)?;
                Ok(None)
            }
            Op::Chunk => {
                self.check(record.span)?;
                progress.used_memory = true;
                if record.is_payload {
                    let have = progress.payload.len();
                    progress.payload.resize(have + record.span.bytes as usize, 0);
                    self.port.region.read(record.span.at, &mut progress.payload[have..]);
                } else {
                    sink.take(&self.port, record.span)?;
                }
                fault::point();
                let posted =
                    self.port.post(Record::of(Op::Credit, progress.turn), &[0; HEADER_BYTES], &[])?;
                ring(stream, posted)?;
                Ok(None)
            }
            Op::Done => Err(Fault::Broken("it says what only a client says")),
        }
    }

    fn check(&self, span: Span) -> std::result::Result<(), Fault> {
        let whole = Span { at: 0, bytes: self.pool.region_bytes };
        if whole.holds(span) { Ok(()) } else { Err(Fault::Broken("it points outside of the region")) }
    }

    /// Fills free pieces while there are bytes to send.
    fn fill(&mut self, stream: &Stream, progress: &mut Progress<'_>) -> std::result::Result<(), Fault> {
        while progress.at.0 < progress.parts.len() {
            let Some(piece) = progress.free.pop_front() else { return Ok(()) };
            self.check(piece)?;
            let mut filled = 0;
            while filled < piece.bytes && progress.at.0 < progress.parts.len() {
                let rest = &progress.parts[progress.at.0][progress.at.1..];
                let now = &rest[..rest.len().min((piece.bytes - filled) as usize)];
                self.port.region.write(piece.at + filled, now);
                filled += now.len() as u64;
                progress.at.1 += now.len();
                if now.len() == rest.len() {
                    progress.at = (progress.at.0 + 1, 0);
                }
            }
            fault::point();
            if filled == 0 {
                progress.free.push_front(piece);
                return Ok(());
            }
            progress.in_flight.push_back(piece);
            let span = Span { at: piece.at, bytes: filled };
            let record = Record { span, ..Record::of(Op::Chunk, progress.turn) };
            let posted = self.port.post(record, &[0; HEADER_BYTES], &[])?;
            ring(stream, posted)?;
        }
        Ok(())
    }

    /// The reply has come: its last bytes, its descriptors, its payload.
    fn finish(
        &mut self,
        stream: &mut Stream,
        peer: &str,
        (record, header): (Record, Header),
        progress: Progress<'_>,
        sink: &mut Drain<'_, '_, '_>,
    ) -> Result<(u64, Result<Exchanged>)> {
        let fault = |fault: Fault| fault.into_error(peer, "before its reply was complete");
        let mut payload = progress.payload;
        if record.head == Place::Inline {
            let bytes = self.body.get(..header.payload_bytes as usize);
            payload.extend(bytes.ok_or_else(|| fault(Fault::Broken("its reply's payload is cut short")))?);
        }
        if payload.len() != header.payload_bytes as usize {
            return Err(fault(Fault::Broken("its reply's payload has another length than it says")));
        }
        if record.span.bytes > 0 {
            self.check(record.span).map_err(fault)?;
            sink.take(&self.port, record.span).map_err(fault)?;
        }
        if progress.used_memory {
            let done = self.port.post(Record::of(Op::Done, progress.turn), &[0; HEADER_BYTES], &[]);
            ring(stream, done.map_err(fault)?).map_err(fault)?;
        }
        let fds = self.reply_fds(stream, peer, &header)?;
        if header.status != 0 {
            let reply = ErrorReply::decode(&payload).map_err(|error| error.within(peer))?;
            return Ok((header.call, Err(reply.into_error(header.status))));
        }
        if header.bulk_bytes > sink.room() {
            return Err(fault(Fault::Broken("it answers more than there is room for")));
        }
        Ok((header.call, Ok(Exchanged { payload, bulk_bytes: header.bulk_bytes, fds })))
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

/// Rings the daemon if it asked for that.
fn ring(stream: &Stream, posted: Option<Rouse>) -> std::result::Result<(), Fault> {
    match posted {
        Some(Rouse::Nothing) => Ok(()),
        Some(Rouse::Bell) => stream.send_frame(Kind::Request, BELL, 0, &[]),
        None => Err(Fault::Broken("it takes nothing out of its ring")),
    }
}

/// Where a reply's carried bytes go: into the sink's buffers that the daemon can't reach itself.
struct Drain<'s, 'a, 'b> {
    sink: &'s mut Sink<'a, 'b>,
    /// Buffers in the pool have been filled in place.
    in_place: bool,
    pool: &'s ClientPool,
    part: usize,
    filled: usize,
}

impl<'s, 'a, 'b> Drain<'s, 'a, 'b> {
    fn new(sink: &'s mut Sink<'a, 'b>, in_place: bool, pool: &'s ClientPool) -> Self {
        Drain { sink, in_place, pool, part: 0, filled: 0 }
    }

    fn room(&self) -> u64 {
        match &*self.sink {
            Sink::Grow(_) => u64::MAX,
            Sink::Fill(output) => output.iter().map(|part| part.len() as u64).sum(),
        }
    }

    fn take(&mut self, port: &Port, span: Span) -> std::result::Result<(), Fault> {
        let output = match &mut *self.sink {
            Sink::Grow(bytes) => {
                let have = bytes.len();
                let more = span.bytes as usize;
                bytes.try_reserve(more).map_err(|_| Fault::Kernel(rustix::io::Errno::NOMEM))?;
                bytes.resize(have + more, 0);
                port.region.read(span.at, &mut bytes[have..]);
                return Ok(());
            }
            Sink::Fill(output) => output,
        };
        let mut rest = span;
        while rest.bytes > 0 {
            let Some(part) = output.get_mut(self.part) else {
                return Err(Fault::Broken("it answers more than there is room for"));
            };
            let skip = self.in_place && self.pool.place(part.as_ptr(), part.len()).is_some();
            if skip || self.filled == part.len() {
                (self.part, self.filled) = (self.part + 1, 0);
                continue;
            }
            let now = (part.len() - self.filled).min(rest.bytes as usize);
            port.region.read(rest.at, &mut part[self.filled..self.filled + now]);
            self.filled += now;
            rest = Span { at: rest.at + now as u64, bytes: rest.bytes - now as u64 };
        }
        Ok(())
    }
}

impl ClientPool {
    /// Where bytes lie in the pool, if they do and are worth naming.
    fn place(&self, start: *const u8, length: usize) -> Option<Span> {
        if length < IN_PLACE_MIN {
            return None;
        }
        let span = self.region.find(start, length)?;
        self.span.holds(span).then_some(span)
    }
}
