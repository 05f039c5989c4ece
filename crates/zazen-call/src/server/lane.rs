//! A lane's calls, as the daemon serves them: from the ring to the service and back.
//!
//! Invariants: one thread at a time has a lane. Whatever ends a lane, its caller's group hears of
//! it (services hear of the caller's end with the last lane), and its place among the connections
//! is freed once.

use crate::bulk::{Bulk, InputPiece, Output, OutputSlot};
use crate::carriers::account::{Charge, FREE_BYTES};
use crate::carriers::message::send_error;
use crate::carriers::seam::check_message;
use crate::carriers::shm::core::{Core, CoreLock, NAP, lock};
use crate::carriers::shm::cpus::spinners_max;
use crate::carriers::shm::memory::LaneSeat;
use crate::carriers::stream::{Fault, Stream};
use crate::quiet::may_say;
use crate::server::callers::Group;
use crate::server::parking::Parked;
use crate::server::registry::{Admitted, Begin};
use crate::server::services::check_room;
use crate::server::state::Shared;
use crate::service::{Call, Line, Reply};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_lane::{Broken, Source, Taken};
use zazen_wire::Message;
use zazen_wire::codec::Reader;
use zazen_wire::handshake as wire_handshake;
use zazen_wire::header::{ErrorReply, Header, Kind};
use zazen_wire::shm::{ENTRY_BYTES, Op, POOL_GIVE, POOL_TAKE, PartPlace, Record, Span, TableEntry};

/// Threads that spin for a client's next request, in all servers of this process.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);
/// How long to wait for a refused client's last bytes.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes of kernel memory that unread bells may take. A client that leaves more unread leaves
/// descriptors unread.
const UNREAD_BELLS_MAX: usize = 16 << 10;

enum End {
    Closed,
    Lost(Fault),
    Refused { about: (u16, u16, u64), error: Error },
}

impl From<Broken> for End {
    fn from(broken: Broken) -> End {
        End::Lost(broken.into())
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Lost(fault)
    }
}

/// One lane of one caller.
pub(crate) struct Lane {
    place: Admitted,
    shared: Arc<Shared>,
    /// `None` once the services have heard of its end.
    group: Option<Arc<Group>>,
    core: CoreLock,
    bulk: Bulk,
    output: Output,
    body: Vec<u8>,
    /// The charge for a body that was streamed.
    charge: Option<Charge>,
    line: Line,
}

/// A request whose head has been copied out and checked.
struct Request {
    header: Header,
    /// Where in `body` the payload is.
    payload: std::ops::Range<usize>,
    fds: Vec<OwnedFd>,
}

/// A request's tables, or what stands for them where it has none.
struct Tables {
    inputs: Vec<TableEntry>,
    outputs: Vec<TableEntry>,
    /// Without a table: all input comes with the message, all output is carried back.
    plain: [TableEntry; 2],
    /// Input that is not in the pool.
    data_bytes: u64,
}

impl Tables {
    fn decode(
        record: &Record,
        header: &Header,
        body: &[u8],
        pool: Span,
    ) -> std::result::Result<Tables, Failure> {
        let mut tables = Tables {
            inputs: Vec::new(),
            outputs: Vec::new(),
            plain: [TableEntry::Data(header.bulk_bytes), TableEntry::Data(header.room.unwrap_or(u64::MAX))],
            data_bytes: header.bulk_bytes,
        };
        let input_bytes = usize::from(record.inputs) * ENTRY_BYTES;
        if record.inputs > 0 {
            tables.inputs = TableEntry::decode_table(&body[..input_bytes], pool, header.bulk_bytes)?;
            let data = |entry: &TableEntry| if let TableEntry::Data(bytes) = entry { *bytes } else { 0 };
            tables.data_bytes = tables.inputs.iter().map(data).sum();
        }
        if record.outputs > 0 {
            let room = header.room.ok_or_else(|| lied("a table of output for no room"))?;
            tables.outputs = TableEntry::decode_table(&body[input_bytes..record.table_bytes()], pool, room)?;
        }
        Ok(tables)
    }

    fn inputs(&self) -> &[TableEntry] {
        if self.inputs.is_empty() { &self.plain[..1] } else { &self.inputs }
    }

    fn outputs(&self) -> &[TableEntry] {
        if self.outputs.is_empty() { &self.plain[1..] } else { &self.outputs }
    }
}

/// Where the data begin that came with a request; `None` if they are streamed.
fn data_at_hand(
    record: &Record,
    head_bytes: usize,
    data_bytes: u64,
    body: &[u8],
    core: &Core,
) -> std::result::Result<Option<*const u8>, Failure> {
    match (record.data, record.head) {
        (PartPlace::Streamed, _) => Ok(None),
        (PartPlace::Inline, PartPlace::Inline) if data_bytes <= (body.len() - head_bytes) as u64 => {
            Ok(Some(body[head_bytes..].as_ptr()))
        }
        (PartPlace::Eager, head) => {
            let eager = core.port.places().eager_in();
            let used = if head == PartPlace::Eager { head_bytes as u64 } else { 0 };
            let span = Span { at: eager.at + used, bytes: data_bytes };
            if !eager.holds(span) {
                return Err(lied("a request's data are longer than the buffer that they are in"));
            }
            Ok(Some(core.port.view().pointer(span).cast_const()))
        }
        _ => Err(lied("a request's data are not where it says")),
    }
}

impl Lane {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        group: Arc<Group>,
        place: Admitted,
        seat: LaneSeat,
        stream: Stream,
    ) -> Box<Lane> {
        let line = Line::new(stream.socket());
        let core = Arc::new(Mutex::new(Core::new(seat, stream, shared.limits.stall_timeout)));
        let bulk = Bulk::of_lane(Arc::clone(&core));
        let output = Output::of_lane(Arc::clone(&core));
        Box::new(Lane {
            place,
            shared: Arc::clone(shared),
            group: Some(group),
            core,
            bulk,
            output,
            body: Vec::new(),
            charge: None,
            line,
        })
    }

    fn serve_while_warm(&mut self) -> std::result::Result<(), End> {
        lock(&self.core).port.wake_up();
        if !lock(&self.core).look_at_socket()? {
            // Serve what the client asked before it left: it may not wait for the answer.
            while self.serve_next()? {}
            return Err(End::Closed);
        }
        loop {
            if self.serve_next()? {
                continue;
            }
            if self.shared.registry.is_draining() {
                return Err(End::Closed);
            }
            let spinner = Spinner::new();
            let ready = lock(&self.core).port.wait(spinner.is_some(), NAP)?;
            drop(spinner);
            if !ready {
                return Ok(());
            }
        }
    }

    /// Serves the next request, if there is one.
    fn serve_next(&mut self) -> std::result::Result<bool, End> {
        let mut body = std::mem::take(&mut self.body);
        let taken = lock(&self.core).take_request(&mut body);
        self.body = body;
        let Some(taken) = taken? else { return Ok(false) };
        let call = Header::call_of_unsealed(&taken.header);
        let refused = |error| End::Refused { about: (0, 0, call), error };
        let request = self.request(&taken).map_err(|failure| match failure {
            Failure::Lost(fault) => End::Lost(fault),
            Failure::Lied(error) => refused(error),
        })?;
        let header = request.header;
        let about = (header.service, header.function, header.call);
        let (served, goes_on) = match self.shared.registry.begin_call(&self.place) {
            Begin::Go => {
                let served = self.answer(request);
                (served, self.shared.registry.end_call(&self.place))
            }
            Begin::Busy(error) => {
                let declined = self.reply(&header, Err(error));
                (declined.map_err(|failure| failure.end(|error| End::Refused { about, error })), true)
            }
            Begin::Draining => {
                let error =
                    Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down; go on without it");
                return Err(End::Refused { about, error });
            }
        };
        self.charge = None;
        if header.fd_count > 0 {
            lock(&self.core).stream.release_fds_in();
        }
        if self.body.capacity() > FREE_BYTES as usize {
            self.body = Vec::new();
        }
        served?;
        if goes_on { Ok(true) } else { Err(End::Closed) }
    }

    /// Copies the request out and checks it. All that follows works on the copy.
    fn request(&mut self, taken: &Taken) -> std::result::Result<Request, Failure> {
        let record = taken.record;
        let header = Header::decode_unsealed(&taken.header)?;
        if header.kind != Kind::Request || header.status != 0 || header.call as u32 != record.call_number {
            return Err(lied("a ring brings what is no request"));
        }
        let table_bytes = record.table_bytes();
        let head_bytes = table_bytes + header.payload_bytes as usize;
        let Lane { core, bulk, output, body, charge, place, .. } = self;
        let mut locked = lock(core);
        locked.port.tell_cpu();
        let eager = locked.port.places().eager_in();
        match record.head {
            PartPlace::Inline if head_bytes <= body.len() => {}
            PartPlace::Eager if head_bytes as u64 <= eager.bytes => {
                body.resize(head_bytes, 0);
                locked.port.view().read(eager.at, body);
            }
            // The tables say how much is streamed, so they cannot be streamed themselves.
            PartPlace::Streamed if table_bytes == 0 => {}
            _ => return Err(lied("a request's head is not where it says")),
        }
        let tables = Tables::decode(&record, &header, body, locked.pool().span())?;
        let streamed_head = if record.head == PartPlace::Streamed { head_bytes as u64 } else { 0 };
        let streamed_data = if record.data == PartPlace::Streamed { tables.data_bytes } else { 0 };
        locked.begin(record.call_number, streamed_head.saturating_add(streamed_data))?;
        let data = data_at_hand(&record, head_bytes, tables.data_bytes, body, &locked)?;
        bulk.begin(0);
        if record.head == PartPlace::Streamed {
            drop(locked);
            *charge = place.account.charge(head_bytes as u64)?;
            bulk.go_on(head_bytes as u64, [InputPiece::Streamed(head_bytes as u64)]);
            bulk.read_vec(body, head_bytes)?;
            locked = lock(core);
        }
        let region = locked.port.view();
        let mut used = 0;
        let piece = |entry: &TableEntry| match (entry, data) {
            (TableEntry::Pool(span), _) => {
                InputPiece::at(region.pointer(*span).cast_const(), span.bytes as usize)
            }
            (TableEntry::Data(bytes), None) => InputPiece::Streamed(*bytes),
            (TableEntry::Data(bytes), Some(start)) => {
                let piece = InputPiece::at(start.wrapping_add(used), *bytes as usize);
                used += *bytes as usize;
                piece
            }
        };
        bulk.go_on(header.bulk_bytes, tables.inputs().iter().map(piece));
        let slot = |entry: &TableEntry| match entry {
            TableEntry::Pool(span) => OutputSlot::at(region.pointer(*span), span.bytes as usize),
            TableEntry::Data(bytes) => OutputSlot::Carried(*bytes),
        };
        output.begin(header.room, tables.outputs().iter().map(slot), eager.bytes);
        let fds = if header.fd_count > 0 { locked.take_fds(header.call)? } else { Vec::new() };
        if fds.len() != usize::from(header.fd_count) {
            return Err(lied("other descriptors came than the request says"));
        }
        Ok(Request { header, payload: table_bytes..head_bytes, fds })
    }

    /// Serves the call and posts the reply.
    fn answer(&mut self, request: Request) -> std::result::Result<(), End> {
        let Request { header, payload, fds } = request;
        let about = (header.service, header.function, header.call);
        let lies = |error| End::Refused { about, error };
        let payload = &self.body[payload];
        let Some(group) = &self.group else { return Err(End::Closed) };
        if header.service == wire_handshake::SERVICE {
            let answer = self.answer_own(&header, payload, group);
            return self.reply(&header, answer).map_err(|failure| failure.end(lies));
        }
        let line = self.line.clone();
        let call = Call {
            function: header.function,
            payload,
            bulk_bytes: header.bulk_bytes,
            bulk: &mut self.bulk,
            output: &mut self.output,
            fds,
            line,
            began: Instant::now(),
        };
        let answer = self.shared.services.dispatch(header.service, &group.caller, call);
        let group = Arc::clone(group);
        let replied = self.finish(&header, answer);
        self.shared.services.answered(header.service, &group.caller);
        replied
    }

    /// Posts the reply of a service.
    fn finish(&mut self, header: &Header, answer: Result<Reply>) -> std::result::Result<(), End> {
        if let Some(fault) = self.bulk.fault().or(self.output.fault()) {
            return Err(End::Lost(fault));
        }
        let about = (header.service, header.function);
        let answer = answer.and_then(|reply| {
            check_room(header.room, self.output.written(), &reply)?;
            check_message(about, &reply.payload, 0, reply.fds.len(), true)?;
            if !reply.fds.is_empty() {
                lock(&self.core).stream.hold_fds_out(reply.fds.len(), UNREAD_BELLS_MAX)?;
            }
            Ok(reply)
        });
        let lies = |error| End::Refused { about: (about.0, about.1, header.call), error };
        self.reply(header, answer).map_err(|failure| failure.end(lies))
    }

    /// A call to the call layer itself.
    fn answer_own(&self, header: &Header, payload: &[u8], group: &Arc<Group>) -> Result<Reply> {
        let core = lock(&self.core);
        let payload = match header.function {
            wire_handshake::TOKEN => group.token()?.to_vec(),
            POOL_TAKE => core.pool().take_for_client(Reader::new("pool bytes", payload).u64()?)?.encode(),
            POOL_GIVE => {
                core.pool().give_back(Span::decode(payload)?)?;
                Vec::new()
            }
            other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("the call layer has no function {other} on a ring"),
                ));
            }
        };
        Ok(Reply { payload, ..Reply::default() })
    }

    fn reply(&mut self, asked: &Header, answer: Result<Reply>) -> std::result::Result<(), Failure> {
        let (status, reply) = match answer {
            Ok(reply) => (0, reply),
            Err(error) => {
                let payload = ErrorReply { message: error.to_string() }.encode();
                (error.kind() as u32, Reply { payload, ..Reply::default() })
            }
        };
        if !reply.bulk.is_empty() && self.output.write_all(&reply.bulk).is_err() {
            return Err(Failure::Lost(self.output.fault().unwrap_or(Fault::Closed)));
        }
        let bulk_bytes = if status == 0 { self.output.written() } else { 0 };
        let mut core = lock(&self.core);
        let tail = if status == 0 { core.take_tail() } else { core.abandon_output() };
        let inline = reply.payload.len() <= core.inline_bytes();
        if !inline {
            if tail.bytes > 0 {
                // The tail's piece has no room for the payload: send it first, as any other piece.
                core.restore_tail(tail);
                core.flush_output(false)?;
            }
            let mut left = &reply.payload[..];
            while !left.is_empty() {
                let room = core.output_room(left.len() as u64, true)?;
                core.port.view().write(room.at, Source::of(&left[..room.bytes as usize]));
                core.output_filled(room.bytes);
                left = &left[room.bytes as usize..];
            }
            core.flush_output(true)?;
        }
        let tail = if inline { tail } else { Span { at: 0, bytes: 0 } };
        if !reply.fds.is_empty() {
            let fds: Vec<BorrowedFd<'_>> = reply.fds.iter().map(AsFd::as_fd).collect();
            core.send_fds(asked.call, &fds)?;
        }
        let header = Header {
            kind: Kind::Reply,
            status,
            payload_bytes: reply.payload.len() as u32,
            fd_count: reply.fds.len() as u16,
            bulk_bytes,
            payload_crc: 0,
            flags: 0,
            room: None,
            ..*asked
        };
        let record = Record {
            head: if inline { PartPlace::Inline } else { PartPlace::Streamed },
            span: tail,
            ..Record::of(Op::Message, asked.call as u32)
        };
        let body = if inline { Source::of(&reply.payload) } else { Source::of(&[]) };
        core.post(record, &header.encode_unsealed(), body)?;
        core.end();
        Ok(())
    }

    /// Says why the lane ends, to the client and in the log. The services hear of the lane's end
    /// before the client does.
    fn part(mut self: Box<Self>, end: End) {
        self.group = None;
        let number = self.place.number;
        let say = |site| may_say(site, self.place.account.who());
        let mut core = lock(&self.core);
        let told = match end {
            End::Closed => None,
            End::Lost(Fault::Closed) => {
                tracing::debug!("shm connection {number}: the client vanished in a call");
                None
            }
            End::Lost(Fault::Stalled) => {
                if let Some(left_out) = say("shm lost") {
                    tracing::info!(
                        "shm connection {number}: nothing moved in a call for too long; closed{left_out}"
                    );
                }
                None
            }
            End::Lost(Fault::Kernel(errno)) => {
                if let Some(left_out) = say("shm lost") {
                    tracing::info!("shm connection {number}: {errno}; closed{left_out}");
                }
                None
            }
            End::Lost(Fault::Broken(why)) => {
                let why = format!("the client broke the rules of shared memory: {why}");
                Some(((0, 0, 0), Error::new(ErrorKind::Protocol, why)))
            }
            End::Refused { about, error } => Some((about, error)),
        };
        if let Some((about, error)) = told {
            match error.kind() {
                ErrorKind::ShuttingDown => tracing::debug!("shm connection {number}: {error}"),
                _ => {
                    if let Some(left_out) = say("shm refused") {
                        tracing::warn!("shm connection {number} refused and closed: {error}{left_out}");
                    }
                }
            }
            let sent = send_error(&core.stream, about, &error);
            core.port.close();
            if sent.is_ok() {
                core.stream.linger(LINGER.min(self.shared.limits.stall_timeout), 1 << 20);
            }
        }
        core.port.close();
    }
}

impl Parked for Lane {
    fn number(&self) -> u64 {
        self.place.number
    }

    fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(lock(&self.core).stream.socket())
    }

    fn go_cold(&self) -> bool {
        // A lie in the ring is found when the lane is served.
        matches!(lock(&self.core).port.sleep_on_socket(), Ok(true))
    }

    fn serve(mut self: Box<Self>) -> Option<Box<dyn Parked>> {
        match self.serve_while_warm() {
            Ok(()) => Some(self),
            Err(end) => {
                self.part(end);
                None
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Tell the registry last: a thread that waits for it to be empty has then seen every
        // detach.
        self.group = None;
        self.shared.registry.remove(self.place.number);
    }
}

enum Failure {
    Lost(Fault),
    Lied(Error),
}

impl Failure {
    fn end(self, lies: impl FnOnce(Error) -> End) -> End {
        match self {
            Failure::Lost(fault) => End::Lost(fault),
            Failure::Lied(error) => lies(error),
        }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::Lost(fault)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Lied(error)
    }
}

fn lied(why: &str) -> Failure {
    Failure::Lied(Error::new(ErrorKind::Protocol, why))
}

/// The right to spin. There are fewer rights than CPUs, so that clients find a CPU to run on.
pub(crate) struct Spinner;

impl Spinner {
    pub(crate) fn new() -> Option<Spinner> {
        if SPINNERS.fetch_add(1, Ordering::Relaxed) < spinners_max() {
            return Some(Spinner);
        }
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}
