//! A lane in shared memory: the client's end of `docs/formats/shm.md`, without a heap and past every hook.
//!
//! Calls go through a pair of rings in a region that the daemon gave; the lane's socket brings bells and
//! descriptors and tells of the daemon's end. What a program reads or writes is copied once between its memory and
//! the region, or not at all where it lies in the region's pool.
//!
//! Invariants: what the daemon wrote is copied out before it is looked at, and every place it names is checked
//! against the region; a record is published whole; a call that waits for something of its own (`tag`) sleeps on the
//! socket, so that a signal is noticed there as in the call that it stands for.

use crate::real::system_call;
use crate::wire::{self, Buffers};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};
use zazen_wire::Message;
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::patience::{Spin, Yielding};
use zazen_wire::plugins::status;
use zazen_wire::shm::{
    BELL, ENTRY_BYTES, Entry, FDS, LanePlaces, Offer, Op, Place, Record, SLOT_BYTES, Span,
};

const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const ON_SOCKET: u32 = 2;
/// So long on the futex, then on the socket, where the daemon's death is heard.
const NAP: Duration = Duration::from_millis(20);
/// Bytes in the pool that are fewer are copied.
const IN_PLACE_MIN: usize = 512;
/// Times that the CPU is given up before a sleep.
const YIELDS: u32 = 2;
const LOOKS_PER_CLOCK: u32 = 32;
/// Pieces of granted memory: a grant is at most four chunks, each in two halves.
const PIECES_MAX: usize = 64;
const SLOT: u64 = SLOT_BYTES as u64;

/// One lane's rings; without memory until [`Rings::map`].
pub(crate) struct Rings {
    base: *mut u8,
    bytes: usize,
    places: LanePlaces,
    pool: Span,
    inline_bytes: usize,
    eager_bytes: usize,
    chunk_bytes: u64,
    tail: u32,
    /// The daemon's counter as last believed.
    head: u32,
    taken: u32,
    turn: u64,
    spin: Spin,
    yielding: Yielding,
    /// The last post had to wake the daemon: a spin would be too short.
    woke: bool,
    /// Pool memory that the lane keeps, through which larger data go.
    pub(crate) stage: Option<Span>,
    /// Calls for which the pool is not asked again, since it had none to give.
    pub(crate) unstaged: u32,
}

/// A call over the rings.
pub(crate) struct Ask<'a> {
    pub(crate) service: u16,
    pub(crate) function: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) input: (*const u8, usize),
    pub(crate) output: (*mut u8, usize),
    /// Whether bulk bytes may be answered at all.
    pub(crate) has_output: bool,
    /// How many of the bulk bytes count, by what the answer says: of a small output the daemon passes on all the room.
    pub(crate) counts: fn(&[u8]) -> usize,
    /// Bytes of payload that an answer may have.
    pub(crate) reply_max: usize,
    /// Of a call that may wait.
    pub(crate) tag: Option<u32>,
}

/// What came of it.
pub(crate) struct Reply {
    /// The daemon's refusal, or 0.
    pub(crate) status: u32,
    pub(crate) payload: *const u8,
    pub(crate) payload_bytes: usize,
    pub(crate) bulk_bytes: u64,
}

/// The lane is no good any more.
pub(crate) struct Lost(pub(crate) i32);

const BROKEN: Lost = Lost(status::MALFORMED);
const GONE: Lost = Lost(status::DISCONNECTED);

/// A queue of places, without a heap.
struct Pieces {
    all: [Span; PIECES_MAX],
    first: usize,
    count: usize,
}

impl Pieces {
    fn new() -> Pieces {
        Pieces { all: [Span { at: 0, bytes: 0 }; PIECES_MAX], first: 0, count: 0 }
    }

    fn push(&mut self, piece: Span) -> Result<(), Lost> {
        if self.count == PIECES_MAX {
            return Err(BROKEN);
        }
        self.all[(self.first + self.count) % PIECES_MAX] = piece;
        self.count += 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<Span> {
        if self.count == 0 {
            return None;
        }
        let piece = self.all[self.first];
        self.first = (self.first + 1) % PIECES_MAX;
        self.count -= 1;
        Some(piece)
    }
}

/// Memory in flight of a call that streams.
struct Streaming {
    free: Pieces,
    in_flight: Pieces,
}

/// A call in progress.
struct Progress<'a> {
    ask: &'a Ask<'a>,
    turn: u32,
    /// What is streamed to the daemon, how much of it has gone.
    parts: [(*const u8, usize); 2],
    sent: usize,
    streaming: Option<Streaming>,
    /// The output lies in the pool: the daemon fills it.
    in_place: bool,
    filled: usize,
    payload_bytes: usize,
    used_memory: bool,
}

fn futex(word: &AtomicU32, operation: c_int, value: u32, time: Option<Duration>) {
    let pause = time.map(|time| libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    let pause = pause.as_ref().map_or(0, |pause| std::ptr::from_ref(pause) as usize);
    let word = std::ptr::from_ref(word) as usize;
    let _ = system_call(libc::SYS_futex, [word, operation as usize, value as usize, pause, 0, 0]);
}

fn this_cpu() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::sched_getcpu() }.unsigned_abs()
}

impl Rings {
    pub(crate) const fn new() -> Rings {
        Rings {
            base: std::ptr::null_mut(),
            bytes: 0,
            places: LanePlaces { at: 0, slots: 0, eager_bytes: 0 },
            pool: Span { at: 0, bytes: 0 },
            inline_bytes: 0,
            eager_bytes: 0,
            chunk_bytes: 0,
            tail: 0,
            head: 0,
            taken: 0,
            turn: 0,
            spin: Spin::new(),
            yielding: Yielding::new(),
            woke: false,
            stage: None,
            unstaged: 0,
        }
    }

    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        !self.base.is_null()
    }

    /// Maps what the daemon offers; false if it is of no use here.
    pub(crate) fn map(&mut self, offer: &Offer, fd: c_int) -> bool {
        let seals = system_call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0]);
        let wanted = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize;
        // SAFETY: all zeros is a valid stat.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        let looked = system_call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize, 0, 0, 0, 0]);
        let sealed = seals.is_ok_and(|seals| seals & wanted == wanted);
        if !sealed || looked.is_err() || u64::try_from(stat.st_size) != Ok(offer.region_bytes) {
            return false;
        }
        let bytes = offer.region_bytes as usize;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let arguments = [0, bytes, protection, libc::MAP_SHARED as usize, fd as usize, 0];
        let Ok(base) = system_call(libc::SYS_mmap, arguments) else { return false };
        // A child has no part in it: what it inherits would be its parent's lane.
        let _ = system_call(libc::SYS_madvise, [base, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]);
        *self = Rings {
            base: base as *mut u8,
            bytes,
            places: offer.lane(),
            pool: offer.pool,
            inline_bytes: offer.inline_bytes as usize,
            eager_bytes: offer.eager_bytes as usize,
            chunk_bytes: u64::from(offer.chunk_bytes),
            ..Rings::new()
        };
        true
    }

    /// Lets the region go.
    pub(crate) fn unmap(&mut self) {
        if self.is_mapped() {
            let _ = system_call(libc::SYS_munmap, [self.base as usize, self.bytes, 0, 0, 0, 0]);
            *self = Rings::new();
        }
    }

    /// Leaves the mapping as it is. (After fork the child does not even have it.)
    pub(crate) fn forget(&mut self) {
        *self = Rings::new();
    }

    fn holds(&self, span: Span) -> bool {
        (Span { at: 0, bytes: self.bytes as u64 }).holds(span)
    }

    fn at(&self, span: Span) -> Result<*mut u8, Lost> {
        if self.holds(span) { Ok(self.base.wrapping_add(span.at as usize)) } else { Err(BROKEN) }
    }

    fn counter(&self, at: u64) -> &AtomicU32 {
        // SAFETY: an offset of a lane that the offer's check found within the region, aligned; both ends access it
        // atomically only.
        unsafe { AtomicU32::from_ptr(self.base.wrapping_add(at as usize).cast()) }
    }

    /// Where memory of the program's lies in the pool, if it does and is worth naming.
    fn in_pool(&self, start: *const u8, length: usize) -> Option<Span> {
        if length < IN_PLACE_MIN {
            return None;
        }
        let at = (start as usize).checked_sub(self.base as usize)? as u64;
        let span = Span { at, bytes: length as u64 };
        self.pool.holds(span).then_some(span)
    }

    /// Whether so many bytes at that place would have to be streamed: they are better staged in the pool.
    pub(crate) fn would_stream(&self, start: *const u8, length: usize) -> bool {
        length > self.eager_bytes && self.in_pool(start, length).is_none()
    }

    /// The address of a span of the pool.
    pub(crate) fn pool_address(&self, span: Span) -> Option<*mut c_void> {
        self.pool.holds(span).then(|| self.base.wrapping_add(span.at as usize).cast())
    }

    /// Where the pool is in this process.
    pub(crate) fn pool_range(&self) -> std::ops::Range<usize> {
        let start = self.base as usize + self.pool.at as usize;
        start..start + self.pool.bytes as usize
    }

    /// Whether an address lies in this lane's pool; where.
    pub(crate) fn pool_offset(&self, address: *const c_void) -> Option<u64> {
        let at = (address as usize).checked_sub(self.base as usize)? as u64;
        (self.is_mapped() && self.pool.holds(Span { at, bytes: 0 })).then_some(at)
    }

    /// Posts a record with its body; the ring has room for one call's records.
    fn post(
        &mut self,
        mut record: Record,
        header: &[u8; HEADER_BYTES],
        body: &[(*const u8, usize)],
    ) -> Result<bool, Lost> {
        let bytes: usize = body.iter().map(|part| part.1).sum();
        let slots = 1 + bytes.div_ceil(SLOT_BYTES) as u32;
        if slots > self.places.slots - self.tail.wrapping_sub(self.head) {
            let now = self.counter(self.places.requests_head()).load(Ordering::Acquire);
            if now.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
                return Err(BROKEN);
            }
            self.head = now;
            if slots > self.places.slots - self.tail.wrapping_sub(now) {
                return Err(BROKEN);
            }
        }
        record.slots = slots as u16;
        let mask = self.places.slots - 1;
        let ring = self.base.wrapping_add(self.places.requests() as usize);
        let slot = |nth: u32| (u64::from(self.tail.wrapping_add(nth) & mask) * SLOT) as usize;
        let first = record.encode(header);
        // SAFETY: slots of the ring, which lies in the region; the program's memory as it says.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(slot(0)), SLOT_BYTES);
            let end = self.places.slots as usize * SLOT_BYTES;
            let mut at = slot(1);
            for (from, length) in body {
                let before_end = (end - at).min(*length);
                std::ptr::copy_nonoverlapping(*from, ring.add(at), before_end);
                at += before_end;
                if at == end {
                    at = 0;
                }
                let rest = length - before_end;
                std::ptr::copy_nonoverlapping(from.wrapping_add(before_end), ring.add(at), rest);
                at += rest;
            }
        }
        self.tail = self.tail.wrapping_add(slots);
        self.counter(self.places.requests_tail()).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let word = self.counter(self.places.daemon_line());
        let mut slept = word.load(Ordering::Relaxed);
        if slept != AWAKE {
            slept = word.swap(AWAKE, Ordering::AcqRel);
            if slept == ON_FUTEX {
                futex(word, libc::FUTEX_WAKE, u32::MAX >> 1, None);
            }
        }
        self.woke = slept != AWAKE;
        Ok(slept == ON_SOCKET)
    }

    /// Posts, and rings the daemon if it sleeps on the socket.
    fn tell(
        &mut self,
        fd: c_int,
        record: Record,
        header: &[u8; HEADER_BYTES],
        body: &[(*const u8, usize)],
    ) -> Result<(), Lost> {
        if self.post(record, header, body)? && !wire::send_frame(fd, BELL) {
            return Err(GONE);
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.counter(self.places.replies_tail()).load(Ordering::Acquire) != self.taken
    }

    /// The next record; its inline body goes into `answer`.
    fn take(&mut self, answer: &mut [u8]) -> Result<Option<(Record, [u8; HEADER_BYTES], usize)>, Lost> {
        let tail = self.counter(self.places.replies_tail()).load(Ordering::Acquire);
        let available = tail.wrapping_sub(self.taken);
        if available == 0 {
            return Ok(None);
        }
        let mask = self.places.slots - 1;
        let ring = self.base.wrapping_add(self.places.replies() as usize);
        let place = |nth: u32| (self.taken.wrapping_add(nth) & mask) as usize * SLOT_BYTES;
        let mut slot = [0; SLOT_BYTES];
        // SAFETY: a slot of the ring.
        unsafe { std::ptr::copy_nonoverlapping(ring.add(place(0)), slot.as_mut_ptr(), SLOT_BYTES) };
        let (record, header) = Record::decode(&slot, self.places.slots).map_err(|_| BROKEN)?;
        let slots = u32::from(record.slots);
        let bytes = (slots as usize - 1) * SLOT_BYTES;
        if available > self.places.slots || slots > available || bytes > answer.len() {
            return Err(BROKEN);
        }
        let before_end = (self.places.slots as usize * SLOT_BYTES - place(1)).min(bytes);
        // SAFETY: slots of the ring; `answer` has room, as just looked.
        unsafe {
            std::ptr::copy_nonoverlapping(ring.add(place(1)), answer.as_mut_ptr(), before_end);
            std::ptr::copy_nonoverlapping(ring, answer.as_mut_ptr().add(before_end), bytes - before_end);
        }
        self.taken = self.taken.wrapping_add(slots);
        self.counter(self.places.replies_head()).store(self.taken, Ordering::Release);
        Ok(Some((record, header, bytes)))
    }

    fn tell_cpu(&self) {
        let told = self.counter(self.places.client_line() + 4);
        let now = this_cpu();
        if told.load(Ordering::Relaxed) != now {
            told.store(now, Ordering::Relaxed);
        }
    }

    /// Spins, or gives the CPU up to a daemon on the same one, as long as that pays: whether something came, and, if that
    /// is to be learned from, when the wait began.
    fn stay_awake(&mut self) -> (bool, Option<Instant>) {
        let theirs = self.counter(self.places.daemon_line() + 4).load(Ordering::Relaxed);
        if theirs == this_cpu() {
            return (self.yielding.may() && self.give_way(), None);
        }
        let start = Instant::now();
        let budget = self.spin.budget(self.woke);
        if budget.is_zero() {
            return (false, Some(start));
        }
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.is_ready() {
                    self.spin.hit();
                    return (true, None);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= budget {
                return (false, Some(start));
            }
        }
    }

    fn give_way(&mut self) -> bool {
        let start = Instant::now();
        let mut ready = false;
        for _ in 0..YIELDS {
            let _ = system_call(libc::SYS_sched_yield, [0; 6]);
            ready = self.is_ready();
            if ready {
                break;
            }
        }
        self.yielding.learn(ready, start.elapsed());
        ready
    }

    fn is_closed(&self) -> bool {
        self.counter(self.places.daemon_line() + 8).load(Ordering::Acquire) != 0
    }

    /// Waits until something came.
    fn wait(&mut self, fd: c_int, buffers: &mut Buffers, tag: Option<u32>) -> Result<(), Lost> {
        if self.is_ready() {
            return Ok(());
        }
        if tag.is_some() {
            return self.wait_on_socket(fd, buffers, tag);
        }
        let (came, spun) = self.stay_awake();
        if came {
            return Ok(());
        }
        // The clock is looked at where it matters: a wake that comes at once is the usual end.
        let mut since = spun;
        let mut left = NAP;
        loop {
            let word = self.counter(self.places.client_line());
            word.store(ON_FUTEX, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.is_ready() {
                futex(word, libc::FUTEX_WAIT, ON_FUTEX, Some(left));
            }
            word.store(AWAKE, Ordering::Relaxed);
            let ready = self.is_ready();
            if ready && spun.is_none() {
                return Ok(());
            }
            let start = *since.get_or_insert_with(Instant::now);
            left = NAP.saturating_sub(start.elapsed());
            let given_up = left.is_zero() || self.is_closed();
            if spun.is_some() && (ready || given_up) {
                self.spin.missed(start.elapsed());
            }
            if ready {
                return Ok(());
            }
            if given_up {
                return self.wait_on_socket(fd, buffers, None);
            }
        }
    }

    fn wait_on_socket(&mut self, fd: c_int, buffers: &mut Buffers, tag: Option<u32>) -> Result<(), Lost> {
        let mut interrupted = false;
        loop {
            self.counter(self.places.client_line()).store(ON_SOCKET, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.is_ready() {
                self.counter(self.places.client_line()).store(AWAKE, Ordering::Relaxed);
                return Ok(());
            }
            // The wish may have come before the call began to wait, so it is repeated.
            if interrupted && !wire::wish_once(fd, tag.unwrap_or(0)) {
                continue;
            }
            let heard = wire::hear_frame(fd, buffers);
            self.counter(self.places.client_line()).store(AWAKE, Ordering::Relaxed);
            match heard {
                wire::Heard::Frame(BELL | FDS) => {}
                wire::Heard::Interrupted => interrupted = tag.is_some(),
                wire::Heard::Frame(_) | wire::Heard::Nothing => return Err(GONE),
            }
        }
    }

    /// One call.
    pub(crate) fn transact(
        &mut self,
        fd: c_int,
        buffers: &mut Buffers,
        ask: &Ask<'_>,
    ) -> Result<Reply, Lost> {
        let mut progress = self.send(fd, ask)?;
        loop {
            let answer = buffers.small_answer();
            // SAFETY: this call's own buffer.
            let answer = unsafe { std::slice::from_raw_parts_mut(answer.0, answer.1) };
            let Some((record, header, bytes)) = self.take(answer)? else {
                self.wait(fd, buffers, ask.tag)?;
                continue;
            };
            if record.turn != progress.turn {
                return Err(BROKEN);
            }
            match record.op {
                Op::Message => {
                    let header = Header::decode_unsealed(&header).map_err(|_| BROKEN)?;
                    return self.finish(fd, buffers, &record, &header, bytes, progress);
                }
                Op::Grant => {
                    let half = (record.span.bytes / 2).next_multiple_of(4096).max(4096);
                    let piece = self.chunk_bytes.min(half);
                    let streaming = progress
                        .streaming
                        .get_or_insert_with(|| Streaming { free: Pieces::new(), in_flight: Pieces::new() });
                    let mut rest = record.span;
                    while rest.bytes > 0 {
                        let bytes = rest.bytes.min(piece);
                        streaming.free.push(Span { at: rest.at, bytes })?;
                        rest = Span { at: rest.at + bytes, bytes: rest.bytes - bytes };
                    }
                    progress.used_memory = true;
                    self.fill(fd, &mut progress)?;
                }
                Op::Credit => {
                    let streaming = progress.streaming.as_mut().ok_or(BROKEN)?;
                    let piece = streaming.in_flight.pop().ok_or(BROKEN)?;
                    streaming.free.push(piece)?;
                    self.fill(fd, &mut progress)?;
                }
                Op::Chunk => {
                    progress.used_memory = true;
                    if record.is_payload {
                        self.take_payload(buffers, record.span, &mut progress)?;
                    } else {
                        self.take_output(record.span, &mut progress)?;
                    }
                    self.tell(fd, Record::of(Op::Credit, progress.turn), &[0; HEADER_BYTES], &[])?;
                }
                Op::Done => return Err(BROKEN),
            }
        }
    }

    /// Posts the request; what does not fit goes as the daemon grants memory for it.
    fn send<'a>(&mut self, fd: c_int, ask: &'a Ask<'a>) -> Result<Progress<'a>, Lost> {
        self.turn += 1;
        let turn = self.turn as u32;
        let may_name = ask.payload.len() + 2 * ENTRY_BYTES <= self.eager_bytes;
        let input = self.in_pool(ask.input.0, ask.input.1).filter(|_| may_name);
        let output = self.in_pool(ask.output.0, ask.output.1).filter(|_| may_name && ask.has_output);
        let mut tables = [0; 2 * ENTRY_BYTES];
        let mut table_bytes = 0;
        for span in [input, output].into_iter().flatten() {
            tables[table_bytes..table_bytes + ENTRY_BYTES].copy_from_slice(&Entry::Pool(span).encode());
            table_bytes += ENTRY_BYTES;
        }
        let carried = if input.is_some() { 0 } else { ask.input.1 };
        let head_bytes = table_bytes + ask.payload.len();
        let mut record = Record {
            inputs: input.is_some().into(),
            outputs: output.is_some().into(),
            ..Record::of(Op::Message, turn)
        };
        record.head = self.place_of(head_bytes);
        let eager_used = if record.head == Place::Eager { head_bytes } else { 0 };
        record.data = if record.head == Place::Inline && head_bytes + carried <= self.inline_bytes {
            Place::Inline
        } else if record.head != Place::Streamed && eager_used + carried <= self.eager_bytes {
            Place::Eager
        } else {
            Place::Streamed
        };
        let nothing = (std::ptr::null(), 0);
        let (tables, payload) = ((tables.as_ptr(), table_bytes), (ask.payload.as_ptr(), ask.payload.len()));
        let data = (ask.input.0, carried);
        let mut body = [nothing; 3];
        let mut parts = [nothing; 2];
        let eager = self.at(self.places.eager_in())?;
        // SAFETY: what goes there is no more than the buffer holds, by the choice of places above.
        unsafe {
            match record.head {
                Place::Inline => (body[0], body[1]) = (tables, payload),
                Place::Eager => {
                    std::ptr::copy_nonoverlapping(tables.0, eager, tables.1);
                    std::ptr::copy_nonoverlapping(payload.0, eager.add(tables.1), payload.1);
                }
                Place::Streamed => parts[0] = payload,
            }
            match record.data {
                Place::Inline => body[2] = data,
                Place::Eager => std::ptr::copy_nonoverlapping(data.0, eager.add(eager_used), data.1),
                Place::Streamed => parts[1] = data,
            }
        }
        let header = Header {
            kind: Kind::Request,
            service: ask.service,
            function: ask.function,
            status: 0,
            call: self.turn,
            payload_bytes: ask.payload.len() as u32,
            fd_count: 0,
            bulk_bytes: ask.input.1 as u64,
            payload_crc: 0,
            flags: 0,
            room: ask.has_output.then_some(ask.output.1 as u64),
        };
        self.tell_cpu();
        self.tell(fd, record, &header.encode_unsealed(), &body)?;
        Ok(Progress {
            ask,
            turn,
            parts,
            sent: 0,
            streaming: None,
            in_place: output.is_some(),
            filled: 0,
            payload_bytes: 0,
            used_memory: false,
        })
    }

    fn place_of(&self, bytes: usize) -> Place {
        if bytes <= self.inline_bytes {
            Place::Inline
        } else if bytes <= self.eager_bytes {
            Place::Eager
        } else {
            Place::Streamed
        }
    }

    /// Fills free pieces while there are bytes to send.
    fn fill(&mut self, fd: c_int, progress: &mut Progress<'_>) -> Result<(), Lost> {
        let total = progress.parts[0].1 + progress.parts[1].1;
        while progress.sent < total {
            let Some(streaming) = progress.streaming.as_mut() else { return Ok(()) };
            let Some(piece) = streaming.free.pop() else { return Ok(()) };
            let to = self.at(piece)?;
            let bytes = (piece.bytes as usize).min(total - progress.sent);
            let mut done = 0;
            let mut before = 0;
            for (from, length) in progress.parts {
                let skip = (progress.sent + done).saturating_sub(before).min(length);
                let now = (length - skip).min(bytes - done);
                // SAFETY: the program's memory; the piece has room for `bytes`.
                unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(skip), to.add(done), now) };
                done += now;
                before += length;
            }
            progress.sent += bytes;
            streaming.in_flight.push(piece)?;
            let span = Span { at: piece.at, bytes: bytes as u64 };
            self.tell(fd, Record { span, ..Record::of(Op::Chunk, progress.turn) }, &[0; HEADER_BYTES], &[])?;
        }
        Ok(())
    }

    fn take_output(&self, span: Span, progress: &mut Progress<'_>) -> Result<(), Lost> {
        let from = self.at(span)?;
        let bytes = span.bytes as usize;
        let (to, room) = progress.ask.output;
        if progress.in_place || !progress.ask.has_output || bytes > room - progress.filled {
            return Err(BROKEN);
        }
        // SAFETY: the program's memory has room, the region these bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to.add(progress.filled), bytes) };
        progress.filled += bytes;
        Ok(())
    }

    fn take_payload(
        &self,
        buffers: &mut Buffers,
        span: Span,
        progress: &mut Progress<'_>,
    ) -> Result<(), Lost> {
        let from = self.at(span)?;
        let bytes = span.bytes as usize;
        if bytes > progress.ask.reply_max - progress.payload_bytes.min(progress.ask.reply_max) {
            return Err(Lost(status::TOO_LARGE));
        }
        let memory = buffers.large_answer(progress.ask.reply_max);
        if memory.is_null() {
            return Err(Lost(status::NO_MEMORY));
        }
        // SAFETY: room for `reply_max` bytes, as just looked.
        unsafe { std::ptr::copy_nonoverlapping(from, memory.add(progress.payload_bytes), bytes) };
        progress.payload_bytes += bytes;
        Ok(())
    }

    /// The reply has come: its last bytes, its descriptors, its payload.
    fn finish(
        &mut self,
        fd: c_int,
        buffers: &mut Buffers,
        record: &Record,
        header: &Header,
        body_bytes: usize,
        mut progress: Progress<'_>,
    ) -> Result<Reply, Lost> {
        if header.kind != Kind::Reply {
            return Err(BROKEN);
        }
        let payload_bytes = header.payload_bytes as usize;
        let payload: *const u8 = match record.head {
            Place::Inline if payload_bytes <= body_bytes => buffers.small_answer().0,
            Place::Streamed if payload_bytes == progress.payload_bytes => {
                buffers.large_answer(progress.ask.reply_max)
            }
            _ => return Err(BROKEN),
        };
        if record.span.bytes > 0 {
            // SAFETY: the answer's bytes, as just looked.
            let said = unsafe { std::slice::from_raw_parts(payload, payload_bytes) };
            let counts = if header.status == 0 { (progress.ask.counts)(said) } else { 0 };
            let left = counts.saturating_sub(progress.filled) as u64;
            let tail = Span { at: record.span.at, bytes: record.span.bytes.min(left) };
            self.take_output(tail, &mut progress)?;
        }
        if progress.used_memory {
            self.tell(fd, Record::of(Op::Done, progress.turn), &[0; HEADER_BYTES], &[])?;
        }
        while buffers.fd_count() < usize::from(header.fd_count) {
            match wire::hear_frame(fd, buffers) {
                wire::Heard::Frame(BELL | FDS) | wire::Heard::Interrupted => {}
                _ => return Err(GONE),
            }
        }
        if header.bulk_bytes > progress.ask.output.1 as u64 {
            return Err(BROKEN);
        }
        Ok(Reply { status: header.status, payload, payload_bytes, bulk_bytes: header.bulk_bytes })
    }

    /// Takes an offer's bytes apart.
    pub(crate) fn offer(payload: &[u8]) -> Option<Offer> {
        Offer::decode(payload).ok()
    }
}
