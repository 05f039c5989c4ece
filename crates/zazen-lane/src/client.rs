//! The client's end of a lane, call by call: it posts a request, moves bytes as the daemon asks for
//! them, and takes the reply.
//!
//! A call is [`Client::begin`], then [`Client::advance`] whenever a record came, until it returns
//! the reply, then [`Client::finish`]. The caller decides how to wait in between: with
//! [`Port::wait`], then on the socket.
//!
//! The client trusts the daemon, which acts for it, but checks what the daemon writes all the same:
//! a bug there must not become one here. Every place that the daemon names is checked against the
//! region.

use crate::granted::Granted;
use crate::parts::{Source, Target};
use crate::port::{End, Port, Rouse};
use crate::tables::{TABLES_BYTES_MAX, Tables};
use crate::view::{PoolView, View};
use crate::{Broken, System};
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::shm::{Offer, Op, PartPlace, Record, Span};

const NO_ROOM: Broken = Broken("it answers more than there is room for");

/// The client's end of one lane.
pub struct Client<S> {
    port: Port<S>,
    pool: PoolView,
    inline_bytes: usize,
    eager_bytes: usize,
    chunk_bytes: u64,
}

/// A request. All memory that it names stays valid until the call is over.
pub struct Request<'a> {
    /// Its header: lengths, room and call id are set; the CRCs are 0.
    pub header: Header,
    /// Encoded arguments.
    pub payload: Source<'a>,
    /// The bulk bytes, in order.
    pub input: &'a [Source<'a>],
    /// Where the reply's bulk bytes go, in order; `None`: to [`Receiver::bulk`].
    pub output: Option<&'a [Target<'a>]>,
}

/// What a call needs of whoever makes it: the socket's bell, and memory for the answer.
pub trait Receiver {
    /// What ends a call early.
    type Error: From<Broken>;

    /// Rings the daemon, which sleeps on the socket.
    fn ring(&mut self) -> Result<(), Self::Error>;

    /// Memory of exactly `bytes` bytes for the body of the next record; a reply's payload may be in
    /// it. `None`: no answer of this length was asked for.
    fn body(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Memory for the next `bytes` of a payload that is too long for a record.
    fn payload(&mut self, bytes: usize) -> Result<Target<'_>, Self::Error>;

    /// Memory for the next `bytes` of the reply's bulk bytes, if the request named no output.
    fn bulk(&mut self, bytes: usize) -> Result<Target<'_>, Self::Error>;
}

/// A call in progress.
pub struct Progress<'a> {
    request: &'a Request<'a>,
    call_number: u32,
    streams_payload: bool,
    streams_input: bool,
    /// Buffers in the pool are named in tables: their bytes are not copied.
    names_input: bool,
    names_output: bool,
    /// The part that is streamed next (0 is the payload, the input's parts follow), and the byte in
    /// it.
    next_in: (usize, usize),
    /// The buffer to which the next bytes of the reply go, and the byte in it.
    next_out: (usize, usize),
    bulk_bytes: u64,
    payload_bytes: u64,
    granted: Option<Granted>,
    /// The call used the daemon's memory: the daemon waits to hear that it is free.
    used_memory: bool,
}

/// A reply has come. Its payload is where the [`Receiver`] was asked for memory.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// Whether the payload came before it in pieces ([`Receiver::payload`]), or is at the beginning
    /// of its body ([`Receiver::body`]).
    pub streamed: bool,
    /// Bulk bytes that came with it.
    tail: Span,
}

impl Reply {
    /// Bulk bytes that came with the reply itself; earlier ones are copied already.
    #[inline]
    pub fn tail_bytes(&self) -> u64 {
        self.tail.bytes
    }
}

impl<'a> Progress<'a> {
    /// The rest of the part that is streamed now; `None` if all has been sent.
    fn rest(&mut self, pool: PoolView) -> Option<Source<'a>> {
        loop {
            let part = match self.next_in.0 {
                0 if self.streams_payload => Some(self.request.payload),
                0 => None,
                _ if !self.streams_input => return None,
                nth => {
                    let part = *self.request.input.get(nth - 1)?;
                    let named = self.names_input && pool.place(part.start(), part.len()).is_some();
                    (!named).then_some(part)
                }
            };
            let rest = part.map(|part| part.part(self.next_in.1, usize::MAX)).filter(|rest| !rest.is_empty());
            if rest.is_some() {
                return rest;
            }
            self.next_in = (self.next_in.0 + 1, 0);
        }
    }
}

impl<S: System> Client<S> {
    /// The lane of `offer`, which has passed [`Offer::check`], in the region `view`.
    ///
    /// # Safety
    ///
    /// The region stays mapped as long as the client lives.
    pub unsafe fn new(offer: &Offer, view: View, system: S) -> Client<S> {
        Client {
            // SAFETY: the caller's promise.
            port: unsafe { Port::new(view, offer.lane(), End::Client, system) },
            pool: PoolView { view, span: offer.pool },
            inline_bytes: offer.inline_bytes as usize,
            eager_bytes: offer.eager_bytes as usize,
            chunk_bytes: u64::from(offer.chunk_bytes),
        }
    }

    /// The end of the lane, to wait with.
    #[inline]
    pub fn port(&mut self) -> &mut Port<S> {
        &mut self.port
    }

    /// The region and its pool.
    #[inline]
    pub fn pool(&self) -> PoolView {
        self.pool
    }

    /// Whether this many bytes at `start` would have to be streamed: then it is better to copy them
    /// to pool memory first.
    pub fn would_stream(&self, start: *const u8, bytes: usize) -> bool {
        bytes > self.eager_bytes && self.pool.place(start, bytes).is_none()
    }

    /// Posts the request. Bytes that do not fit follow as the daemon grants memory for them.
    #[inline]
    pub fn begin<'a, R: Receiver>(
        &mut self,
        request: &'a Request<'a>,
        receiver: &mut R,
    ) -> Result<Progress<'a>, R::Error> {
        let (pool, payload) = (self.pool, request.payload);
        let mut tables = Tables::new();
        let (mut inputs, mut outputs) = (0, 0);
        // Tables are never streamed, so a request with a streamed payload has none.
        if payload.len() + TABLES_BYTES_MAX <= self.eager_bytes {
            inputs = tables.name(pool, request.input.iter().map(|part| (part.start(), part.len())));
            if let Some(output) = request.output {
                let parts = output.iter().map(|part| (part.start().cast_const(), part.len()));
                outputs = tables.name(pool, parts);
            }
        }
        let names_input = inputs > 0;
        let is_carried = move |part: &&Source<'_>| {
            !(part.is_empty() || names_input && pool.place(part.start(), part.len()).is_some())
        };
        let data = request.input.iter().filter(is_carried).copied();
        let data_bytes: usize = data.clone().map(|part| part.len()).sum();
        let tables = tables.source();
        let head_bytes = tables.len() + payload.len();
        let mut record = Record { inputs, outputs, ..Record::of(Op::Message, request.header.call as u32) };
        record.head = if head_bytes <= self.inline_bytes {
            PartPlace::Inline
        } else if head_bytes <= self.eager_bytes {
            PartPlace::Eager
        } else {
            PartPlace::Streamed
        };
        // Where data could begin in the eager buffer.
        let eager_used = if record.head == PartPlace::Eager { head_bytes } else { 0 };
        record.data = if record.head == PartPlace::Inline && head_bytes + data_bytes <= self.inline_bytes {
            PartPlace::Inline
        } else if record.head != PartPlace::Streamed && eager_used + data_bytes <= self.eager_bytes {
            PartPlace::Eager
        } else {
            PartPlace::Streamed
        };
        let (view, eager) = (self.port.view(), self.port.places().eager_in());
        if record.head == PartPlace::Eager {
            view.write(eager.at, tables);
            view.write(eager.at + tables.len() as u64, payload);
        }
        if record.data == PartPlace::Eager {
            let mut at = eager.at + eager_used as u64;
            for part in data.clone() {
                view.write(at, part);
                at += part.len() as u64;
            }
        }
        self.port.tell_cpu();
        let (inline_head, inline_data) = (record.head == PartPlace::Inline, record.data == PartPlace::Inline);
        let head = [tables, payload].into_iter().filter(move |_| inline_head);
        let body = head.chain(data.filter(move |_| inline_data));
        self.tell(receiver, record, &request.header.encode_unsealed(), body)?;
        Ok(Progress {
            request,
            call_number: record.call_number,
            streams_payload: record.head == PartPlace::Streamed,
            streams_input: record.data == PartPlace::Streamed,
            names_input,
            names_output: outputs > 0,
            next_in: (0, 0),
            next_out: (0, 0),
            bulk_bytes: 0,
            payload_bytes: 0,
            granted: None,
            used_memory: false,
        })
    }

    /// Handles all records that came; returns the reply if it is among them.
    #[inline]
    pub fn advance<R: Receiver>(
        &mut self,
        call: &mut Progress<'_>,
        receiver: &mut R,
    ) -> Result<Option<Reply>, R::Error> {
        loop {
            let lender = &mut *receiver;
            let Some(taken) = self.port.take(move |bytes| lender.body(bytes))? else { return Ok(None) };
            let record = taken.record;
            if record.call_number != call.call_number {
                return Err(Broken("it speaks of another call").into());
            }
            if record.op == Op::Message {
                return Ok(Some(reply(&record, &taken.header, taken.body_bytes, call)?));
            }
            self.see_to(&record, call, receiver)?;
        }
    }

    /// Handles a record that is no reply.
    fn see_to<R: Receiver>(
        &mut self,
        record: &Record,
        call: &mut Progress<'_>,
        receiver: &mut R,
    ) -> Result<(), R::Error> {
        match record.op {
            Op::Grant => {
                self.check(record.span)?;
                if call.granted.is_some() {
                    return Err(Broken("it grants memory twice in a call").into());
                }
                call.granted = Some(Granted::new(record.span, self.chunk_bytes));
                call.used_memory = true;
                self.fill(call, receiver)
            }
            Op::Credit => {
                let granted = call.granted.as_mut();
                granted.ok_or(Broken("it gives credit for no piece"))?.credit()?;
                self.fill(call, receiver)
            }
            Op::Chunk => {
                self.check(record.span)?;
                call.used_memory = true;
                if record.is_payload {
                    let into = receiver.payload(record.span.bytes as usize)?;
                    self.copy_out(record.span, into)?;
                    call.payload_bytes += record.span.bytes;
                } else {
                    self.take_bulk(record.span, call, receiver)?;
                }
                self.port.system().fault_point();
                self.tell_op(receiver, Record::of(Op::Credit, call.call_number))
            }
            Op::Message | Op::Done => Err(Broken("it says what only a client says").into()),
        }
    }

    /// Takes the bytes that came with the reply, at most `bulk_max` bulk bytes in all, and says
    /// that the daemon's memory is free. Descriptors, if the header announces some, come on the
    /// socket.
    #[inline]
    pub fn finish<R: Receiver>(
        &mut self,
        call: &mut Progress<'_>,
        reply: &Reply,
        bulk_max: u64,
        receiver: &mut R,
    ) -> Result<(), R::Error> {
        let bytes = reply.tail.bytes.min(bulk_max.saturating_sub(call.bulk_bytes));
        if bytes > 0 {
            let tail = Span { at: reply.tail.at, bytes };
            self.check(tail)?;
            self.take_bulk(tail, call, receiver)?;
        }
        if call.used_memory {
            self.tell_op(receiver, Record::of(Op::Done, call.call_number))?;
        }
        match call.request.header.room {
            Some(room) if reply.header.bulk_bytes > room => Err(NO_ROOM.into()),
            _ => Ok(()),
        }
    }

    /// Fills free pieces while there are bytes to send.
    fn fill<R: Receiver>(&mut self, call: &mut Progress<'_>, receiver: &mut R) -> Result<(), R::Error> {
        while call.rest(self.pool).is_some() {
            let Some(piece) = call.granted.as_mut().and_then(Granted::take) else { return Ok(()) };
            let mut filled = 0;
            while filled < piece.bytes
                && let Some(rest) = call.rest(self.pool)
            {
                let now = rest.part(0, (piece.bytes - filled) as usize);
                self.port.view().write(piece.at + filled, now);
                filled += now.len() as u64;
                call.next_in.1 += now.len();
            }
            self.port.system().fault_point();
            let span = Span { at: piece.at, bytes: filled };
            self.tell_op(receiver, Record { span, ..Record::of(Op::Chunk, call.call_number) })?;
        }
        Ok(())
    }

    /// Copies bulk bytes to the buffers that the daemon can't reach itself.
    fn take_bulk<R: Receiver>(
        &mut self,
        span: Span,
        call: &mut Progress<'_>,
        receiver: &mut R,
    ) -> Result<(), R::Error> {
        call.bulk_bytes += span.bytes;
        let Some(output) = call.request.output else {
            let into = receiver.bulk(span.bytes as usize)?;
            return Ok(self.copy_out(span, into)?);
        };
        let mut rest = span;
        while rest.bytes > 0 {
            let Some(part) = output.get(call.next_out.0) else { return Err(NO_ROOM.into()) };
            let in_place = call.names_output && self.pool.place(part.start(), part.len()).is_some();
            if in_place || call.next_out.1 == part.len() {
                call.next_out = (call.next_out.0 + 1, 0);
                continue;
            }
            let now = part.part(call.next_out.1, rest.bytes as usize);
            self.port.view().read_to(rest.at, now);
            call.next_out.1 += now.len();
            rest = Span { at: rest.at + now.len() as u64, bytes: rest.bytes - now.len() as u64 };
        }
        Ok(())
    }

    fn copy_out(&self, span: Span, into: Target<'_>) -> Result<(), Broken> {
        if into.len() as u64 != span.bytes {
            return Err(NO_ROOM);
        }
        self.port.view().read_to(span.at, into);
        Ok(())
    }

    fn check(&self, span: Span) -> Result<(), Broken> {
        if self.port.view().span().holds(span) {
            Ok(())
        } else {
            Err(Broken("it points outside of the region"))
        }
    }

    fn tell_op<R: Receiver>(&mut self, receiver: &mut R, record: Record) -> Result<(), R::Error> {
        self.tell(receiver, record, &[0; HEADER_BYTES], std::iter::empty())
    }

    /// Posts a record, and rings the daemon if it sleeps on the socket.
    #[inline]
    fn tell<'b, R: Receiver>(
        &mut self,
        receiver: &mut R,
        record: Record,
        header: &[u8; HEADER_BYTES],
        body: impl Iterator<Item = Source<'b>> + Clone,
    ) -> Result<(), R::Error> {
        match self.port.post(record, header, body)? {
            Some(Rouse::Nothing) => Ok(()),
            Some(Rouse::Bell) => receiver.ring(),
            None => Err(Broken("it takes nothing out of its ring").into()),
        }
    }
}

/// Checks a reply's record: its payload is where it says, as long as it says.
fn reply(
    record: &Record,
    header: &[u8; HEADER_BYTES],
    body_bytes: usize,
    call: &Progress<'_>,
) -> Result<Reply, Broken> {
    let malformed = Broken("its reply's header is malformed");
    let header = Header::decode_unsealed(header).map_err(|_| malformed)?;
    if header.kind != Kind::Reply {
        return Err(malformed);
    }
    let payload_bytes = u64::from(header.payload_bytes);
    let streamed = match record.head {
        PartPlace::Inline if payload_bytes <= body_bytes as u64 && call.payload_bytes == 0 => false,
        PartPlace::Streamed if payload_bytes == call.payload_bytes => true,
        _ => return Err(Broken("its reply's payload has another length than it says")),
    };
    Ok(Reply { header, streamed, tail: record.span })
}
