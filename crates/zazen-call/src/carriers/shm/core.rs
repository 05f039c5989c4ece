//! The daemon's end of a lane below the calls: records in and out, streamed bytes, granted memory,
//! descriptors.
//!
//! Invariants: whatever a client writes costs this lane only. Everything is checked, and a lie is a
//! [`Fault::Broken`] that ends the lane. Memory that the client may still be copying from or to is
//! kept until the client says that it is done, or is gone. Every wait is bounded by the server's
//! stall time.

use crate::carriers::shm::cpus::has_cpus_to_spin;
use crate::carriers::shm::memory::{Grant, LaneSeat, Pool};
use crate::carriers::shm::region::Kernel;
use crate::carriers::stream::{Fault, Stream};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_lane::{End, Port, Rouse, Source, Taken};
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::shm::{BELL, FDS, Op, Record, Span};

/// How long a lane sleeps on its futex before it checks whether its client is gone, or gives up its
/// thread.
pub(crate) const NAP: Duration = Duration::from_millis(50);
/// How long a call waits for granted memory before it uses the lane's own buffers.
const GRANT_PATIENCE: Duration = Duration::from_millis(100);
/// Records of earlier calls that are ignored within one call.
const STALE_MAX: u32 = 256;
/// Pieces of input that may be ready at the same time.
const READY_MAX: usize = 64;

/// See the module.
pub(crate) struct Core {
    pub(crate) port: Port<Kernel>,
    pub(crate) stream: Stream,
    seat: LaneSeat,
    stall: Duration,
    chunk_bytes: u64,
    inline_bytes: usize,
    call_number: u32,
    stale: u32,
    /// Where the bodies of records go that should have none.
    scratch: Vec<u8>,
    input: Input,
    output: OutputPieces,
    /// Grants of the last call that the client may still use.
    lingering: Vec<Grant>,
    /// Descriptors that came before their request was read.
    fds: Option<(u64, Vec<OwnedFd>)>,
}

pub(crate) type CoreLock = Arc<Mutex<Core>>;

/// Locks a lane's core; only one thread at a time has a lane, so this never waits.
pub(crate) fn lock(core: &CoreLock) -> MutexGuard<'_, Core> {
    // No service can panic while the lock is held: none of its code runs then.
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

const NOTHING: Source<'static> = Source::NONE;

/// The next record, its body in `body`.
fn take(port: &mut Port<Kernel>, body: &mut Vec<u8>) -> Result<Option<Taken>, Fault> {
    let taken = port.take(move |bytes| {
        body.resize(bytes, 0);
        Some(&mut body[..])
    });
    Ok(taken?)
}

#[derive(Default)]
struct Input {
    /// Streamed bytes that have not come yet.
    left: u64,
    /// The memory that the client fills.
    granted: Option<Span>,
    grant: Option<Grant>,
    ready: VecDeque<Span>,
    /// A piece was given out; its credit is due when the next piece is asked for.
    given: bool,
}

#[derive(Default)]
struct OutputPieces {
    /// The piece that is being filled, and how many bytes of it are.
    current: Option<(Span, u64)>,
    free: VecDeque<Span>,
    in_flight: VecDeque<Span>,
    grant: Option<Grant>,
    asked: bool,
}

impl Input {
    fn reset(&mut self, left: u64) {
        (self.left, self.granted, self.grant, self.given) = (left, None, None, false);
        self.ready.clear();
    }
}

impl OutputPieces {
    fn reset(&mut self, first: Span) {
        (self.current, self.grant, self.asked) = (None, None, false);
        self.in_flight.clear();
        self.free.clear();
        self.free.push_back(first);
    }
}

impl Core {
    pub(crate) fn new(seat: LaneSeat, stream: Stream, stall: Duration) -> Core {
        // SAFETY: the seat, which the core keeps, has the region mapped.
        let port = unsafe { Port::new(**seat.pool.region, seat.places(), End::Daemon, Kernel) };
        let offer = seat.offer();
        Core {
            port,
            stream,
            seat,
            stall,
            chunk_bytes: u64::from(offer.chunk_bytes),
            inline_bytes: offer.inline_bytes as usize,
            call_number: 0,
            stale: 0,
            scratch: Vec::new(),
            input: Input::default(),
            output: OutputPieces::default(),
            lingering: Vec::new(),
            fds: None,
        }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.seat.pool
    }

    /// The next request, if one is there. Records that end an earlier call are handled on the way.
    pub(crate) fn take_request(&mut self, body: &mut Vec<u8>) -> Result<Option<Taken>, Fault> {
        loop {
            let Some(taken) = take(&mut self.port, body)? else { return Ok(None) };
            if taken.record.op == Op::Message {
                return Ok(Some(taken));
            }
            self.between_calls(&taken.record)?;
        }
    }

    /// Handles a record that is no request and came between calls: the end of the last call.
    fn between_calls(&mut self, record: &Record) -> Result<(), Fault> {
        match record.op {
            Op::Done if record.call_number == self.call_number => self.lingering.clear(),
            Op::Chunk | Op::Credit | Op::Done => {}
            Op::Grant | Op::Message => return Err(Fault::Broken("a client grants no memory")),
        }
        self.stale += 1;
        if self.stale > STALE_MAX {
            Err(Fault::Broken("it floods its ring with records of no call"))
        } else {
            Ok(())
        }
    }

    /// Begins a call of which `streamed` bytes are streamed.
    pub(crate) fn begin(&mut self, call_number: u32, streamed: u64) -> Result<(), Fault> {
        // A new request shows that the client is done with the last one, even if it did not say so.
        self.lingering.clear();
        (self.call_number, self.stale) = (call_number, 0);
        self.input.reset(streamed);
        self.output.reset(self.port.places().eager_out());
        // If memory is free now, the client fills it while the service prepares.
        if streamed > 0
            && let Some(grant) = self.seat.pool.stage(streamed, Duration::ZERO)
        {
            self.grant_input(grant.span())?;
            self.input.grant = Some(grant);
        }
        Ok(())
    }

    /// The call is over; the reply has been posted.
    pub(crate) fn end(&mut self) {
        let grants = self.input.grant.take().into_iter().chain(self.output.grant.take());
        self.lingering.extend(grants.map(|mut grant| {
            grant.end_transfer();
            grant
        }));
    }

    fn grant_input(&mut self, span: Span) -> Result<(), Fault> {
        self.input.granted = Some(span);
        self.post(Record { span, ..Record::of(Op::Grant, self.call_number) }, &[0; HEADER_BYTES], NOTHING)
    }

    /// The next piece of streamed input. The client may fill the piece before it again.
    pub(crate) fn next_input(&mut self) -> Result<Span, Fault> {
        if self.input.granted.is_none() {
            let grant = self.seat.pool.stage(self.input.left, GRANT_PATIENCE);
            let span = grant.as_ref().map_or(self.port.places().eager_in(), Grant::span);
            self.input.grant = grant;
            self.grant_input(span)?;
        }
        if std::mem::take(&mut self.input.given) {
            self.post(Record::of(Op::Credit, self.call_number), &[0; HEADER_BYTES], NOTHING)?;
        }
        loop {
            if let Some(piece) = self.input.ready.pop_front() {
                self.input.given = true;
                return Ok(piece);
            }
            self.next_record()?;
        }
    }

    /// Waits for a record of this call, and handles it.
    fn next_record(&mut self) -> Result<(), Fault> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let taken = self.wait_record(&mut scratch);
        self.scratch = scratch;
        let record = taken?.record;
        if record.call_number != self.call_number {
            return self.between_calls(&record);
        }
        match record.op {
            Op::Chunk => {
                let piece = record.span;
                let granted = self.input.granted.is_some_and(|granted| granted.holds(piece));
                if !granted || piece.bytes == 0 || piece.bytes > self.input.left {
                    return Err(Fault::Broken("a piece lies outside what was granted, or is too long"));
                }
                if self.input.ready.len() >= READY_MAX {
                    return Err(Fault::Broken("it sends pieces without waiting for credit"));
                }
                self.input.left -= piece.bytes;
                self.input.ready.push_back(piece);
                if let Some(grant) = self.input.grant.as_mut().filter(|_| self.input.left == 0) {
                    grant.end_transfer();
                }
                Ok(())
            }
            Op::Credit => match self.output.in_flight.pop_front() {
                Some(piece) => {
                    self.output.free.push_back(piece);
                    Ok(())
                }
                None => Err(Fault::Broken("it gives credit for a piece that it never had")),
            },
            Op::Message | Op::Grant | Op::Done => {
                Err(Fault::Broken("a record that has no place within a call"))
            }
        }
    }

    fn wait_record(&mut self, body: &mut Vec<u8>) -> Result<Taken, Fault> {
        let deadline = Instant::now() + self.stall;
        loop {
            if let Some(taken) = take(&mut self.port, body)? {
                return Ok(taken);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Stalled);
            }
            if !self.port.wait(has_cpus_to_spin(), left.min(NAP))? && self.is_hung_up() {
                return Err(Fault::Closed);
            }
        }
    }

    /// Room in the piece that is being filled, at most `max`; a new one if that is full.
    pub(crate) fn output_room(&mut self, max: u64, is_payload: bool) -> Result<Span, Fault> {
        if let Some((piece, filled)) = self.output.current {
            if filled < piece.bytes {
                return Ok(Span { at: piece.at + filled, bytes: (piece.bytes - filled).min(max) });
            }
            self.flush_output(is_payload)?;
        }
        if self.output.free.is_empty() && !std::mem::replace(&mut self.output.asked, true) {
            self.output.grant = self.seat.pool.stage(u64::MAX, GRANT_PATIENCE);
            if let Some(grant) = &self.output.grant {
                let mut rest = grant.span();
                while rest.bytes > 0 {
                    let bytes = rest.bytes.min(self.chunk_bytes);
                    self.output.free.push_back(Span { at: rest.at, bytes });
                    rest = Span { at: rest.at + bytes, bytes: rest.bytes - bytes };
                }
            }
        }
        loop {
            if let Some(piece) = self.output.free.pop_front() {
                self.output.current = Some((piece, 0));
                return Ok(Span { at: piece.at, bytes: piece.bytes.min(max) });
            }
            self.next_record()?;
        }
    }

    /// `bytes` more of the current piece are filled.
    pub(crate) fn output_filled(&mut self, bytes: u64) {
        if let Some((_, filled)) = &mut self.output.current {
            *filled += bytes;
        }
    }

    /// Sends the piece that is being filled to the client.
    pub(crate) fn flush_output(&mut self, is_payload: bool) -> Result<(), Fault> {
        if let Some((piece, filled)) = self.output.current.take() {
            if filled == 0 {
                self.output.free.push_front(piece);
                return Ok(());
            }
            self.output.in_flight.push_back(piece);
            let span = Span { at: piece.at, bytes: filled };
            let record = Record { span, is_payload, ..Record::of(Op::Chunk, self.call_number) };
            self.post(record, &[0; HEADER_BYTES], NOTHING)?;
        }
        Ok(())
    }

    /// The bytes of the piece that is being filled; they go with the reply.
    pub(crate) fn take_tail(&mut self) -> Span {
        match self.output.current.take() {
            Some((piece, filled)) => Span { at: piece.at, bytes: filled },
            None => Span { at: 0, bytes: 0 },
        }
    }

    /// The longest payload that a reply may have in the ring, in bytes.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Drops what was written: the call failed.
    pub(crate) fn abandon_output(&mut self) -> Span {
        if let Some((piece, _)) = self.output.current.take() {
            self.output.free.push_front(piece);
        }
        Span { at: 0, bytes: 0 }
    }

    /// Puts back what [`Core::take_tail`] took.
    pub(crate) fn restore_tail(&mut self, tail: Span) {
        self.output.current = Some((tail, tail.bytes));
    }

    /// Posts a record. A client whose ring is full does not read, which breaks the rules.
    pub(crate) fn post(
        &mut self,
        record: Record,
        header: &[u8; HEADER_BYTES],
        body: Source<'_>,
    ) -> Result<(), Fault> {
        match self.port.post(record, header, std::iter::once(body))? {
            Some(Rouse::Nothing) => Ok(()),
            Some(Rouse::Bell) => self.stream.send_frame(Kind::Reply, BELL, 0, &[]),
            None => Err(Fault::Broken("it does not take what is sent to it")),
        }
    }

    /// Sends descriptors ahead of the reply to `call`.
    pub(crate) fn send_fds(&self, call: u64, fds: &[BorrowedFd<'_>]) -> Result<(), Fault> {
        self.stream.send_frame(Kind::Reply, FDS, call, fds)
    }

    /// The descriptors that belong to `call`.
    pub(crate) fn take_fds(&mut self, call: u64) -> Result<Vec<OwnedFd>, Fault> {
        loop {
            if let Some((theirs, fds)) = self.fds.take() {
                if theirs == call {
                    return Ok(fds);
                }
                return Err(Fault::Broken("descriptors came for another call"));
            }
            self.stream.allow_in_all(Some(self.stall))?;
            let frame = self.stream.header()?.ok_or(Fault::Closed)?;
            self.take_frame(&frame)?;
        }
    }

    fn take_frame(&mut self, frame: &[u8; HEADER_BYTES]) -> Result<(), Fault> {
        let header = Header::decode(frame).map_err(|_| Fault::Broken("its socket brings no message"))?;
        let plain = header.payload_bytes == 0 && header.bulk_bytes == 0 && header.kind == Kind::Request;
        match (header.service, header.function, header.fd_count) {
            // The kernel delivers a bell together with the descriptors of the message behind it:
            // they wait for that message.
            (0, BELL, 0) if plain && !self.stream.has_stray_fds() => Ok(()),
            (0, FDS, 1..) if plain && self.fds.is_none() => {
                let fds = self.stream.take_fds(header.fd_count);
                let fds = fds.map_err(|_| Fault::Broken("other descriptors came than were announced"))?;
                self.fds = Some((header.call, fds));
                Ok(())
            }
            _ => Err(Fault::Broken("its socket brings what belongs into the ring")),
        }
    }

    /// Reads what the socket has. False: the client has closed it.
    pub(crate) fn look_at_socket(&mut self) -> Result<bool, Fault> {
        loop {
            let events = self.socket_events();
            if !self.stream.has_ahead() && !events.contains(PollFlags::IN) {
                return Ok(!events.intersects(PollFlags::HUP | PollFlags::ERR));
            }
            self.stream.allow_in_all(Some(self.stall))?;
            match self.stream.header()? {
                Some(frame) => self.take_frame(&frame)?,
                None => return Ok(false),
            }
        }
    }

    fn socket_events(&self) -> PollFlags {
        let mut waits = [PollFd::new(&**self.stream.socket(), PollFlags::IN | PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut waits, Some(&now)) {
            Ok(_) => waits[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Whether the client has closed the socket, or died.
    fn is_hung_up(&self) -> bool {
        self.socket_events().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }
}
