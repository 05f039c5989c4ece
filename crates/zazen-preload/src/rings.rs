//! Calls over a lane in shared memory: `zazen_lane`'s client, driven without a heap and past every
//! hook.
//!
//! Calls go through a pair of rings in a region that the daemon gave. The lane's socket brings
//! bells and descriptors, and tells of the daemon's end. What a program reads or writes is copied
//! once between its memory and the region, or not at all where it lies in the region's pool.
//!
//! Invariant: a call that waits for something of its own (`tag`) sleeps on the socket, so that a
//! signal is noticed there as in the call that it stands for.

use crate::kernel::Kernel;
use crate::real::system_call;
use crate::wire::{self, Buffers, SEGMENTS, SMALL_BYTES, Waits};
use std::ffi::{c_int, c_void};
use std::time::Duration;
use zazen_lane::{Broken, Client, Receiver, Request, Source, Target, View, check_mapping};
use zazen_plugin_abi::stub::{Segment, StubCall, StubService};
use zazen_wire::Message;
use zazen_wire::header::{Header, Kind};
use zazen_wire::plugins::{self, ANSWER_HEAD_BYTES, plugins_fn, status};
use zazen_wire::service;
use zazen_wire::shm::{self, BELL, FDS, Offer, Span};

/// A call sleeps on the futex for so long, then on the socket, where the daemon's death is heard.
const NAP: Duration = Duration::from_millis(20);

/// One lane's rings; without memory until [`Rings::move_to_memory`].
pub(crate) struct Rings {
    lane: Option<Client<Kernel>>,
    calls: u64,
    /// Pool memory that the lane keeps; larger data are copied through it.
    stage: Option<Span>,
    /// How many more calls do not ask the pool, since it had no memory to give.
    unstaged: u32,
}

/// A call over the rings.
struct Ask<'a> {
    service: u16,
    function: u16,
    payload: Source<'a>,
    input: Source<'a>,
    /// `None`: bulk bytes may not be answered at all.
    output: Option<Target<'a>>,
    /// How many of the bulk bytes count, according to the answer: even if the output is small, the
    /// daemon passes on all the room.
    counts: fn(&[u8]) -> usize,
    /// Bytes of payload that an answer may have.
    reply_max: usize,
    /// The tag of a call that may block.
    tag: Option<u32>,
}

/// The answer.
struct Reply {
    /// The daemon's refusal, or 0.
    status: u32,
    payload: *const u8,
    payload_bytes: usize,
    bulk_bytes: u64,
}

/// The lane cannot be used any more.
struct Lost(i32);

const GONE: Lost = Lost(status::DISCONNECTED);

impl From<Broken> for Lost {
    fn from(_: Broken) -> Lost {
        Lost(status::MALFORMED)
    }
}

/// The socket, and the memory that the answer goes to.
struct Answer<'b> {
    fd: c_int,
    buffers: &'b mut Buffers,
    reply_max: usize,
    streamed: usize,
}

impl Receiver for Answer<'_> {
    type Error = Lost;

    fn ring(&mut self) -> Result<(), Lost> {
        if wire::send_frame(self.fd, BELL) { Ok(()) } else { Err(GONE) }
    }

    #[inline]
    fn body(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.buffers.small_answer(bytes)
    }

    fn payload(&mut self, bytes: usize) -> Result<Target<'_>, Lost> {
        if bytes > self.reply_max - self.streamed {
            return Err(Lost(status::TOO_LARGE));
        }
        let memory = self.buffers.large_answer(self.reply_max);
        if memory.is_null() {
            return Err(Lost(status::NO_MEMORY));
        }
        let start = memory.wrapping_add(self.streamed);
        self.streamed += bytes;
        // SAFETY: the memory has room for `reply_max` bytes, and stays until the call is over.
        Ok(unsafe { Target::from_raw(start, bytes) })
    }

    fn bulk(&mut self, _: usize) -> Result<Target<'_>, Lost> {
        Err(Lost(status::MALFORMED))
    }
}

impl Rings {
    pub(crate) const fn new() -> Rings {
        Rings { lane: None, calls: 0, stage: None, unstaged: 0 }
    }

    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.lane.is_some()
    }

    /// Maps the region that the daemon offers; false if it cannot be used here.
    fn map(&mut self, offer: &Offer, fd: c_int) -> bool {
        let seals = system_call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0]);
        // SAFETY: all zeros is a valid stat.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        let looked = system_call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize, 0, 0, 0, 0]);
        let (Ok(seals), Ok(_)) = (seals, looked) else { return false };
        if check_mapping(seals as u32, stat.st_size, offer.region_bytes).is_err() {
            return false;
        }
        let bytes = offer.region_bytes as usize;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let arguments = [0, bytes, protection, libc::MAP_SHARED as usize, fd as usize, 0];
        let Ok(base) = system_call(libc::SYS_mmap, arguments) else { return false };
        // A child must not inherit it: it is its parent's lane.
        let _ = system_call(libc::SYS_madvise, [base, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]);
        // SAFETY: the mapping is of a memfd that can't shrink; it is unmapped after the lane is
        // gone, or never. The offer's decoder has checked the offer.
        let lane = unsafe { Client::new(offer, View::new(base as *mut u8, bytes), Kernel) };
        *self = Rings { lane: Some(lane), ..Rings::new() };
        true
    }

    /// Unmaps the region.
    pub(crate) fn unmap(&mut self) {
        if let Some(lane) = self.lane.take() {
            let view = lane.pool().view;
            *self = Rings::new();
            let arguments = [view.base() as usize, view.span().bytes as usize, 0, 0, 0, 0];
            let _ = system_call(libc::SYS_munmap, arguments);
        }
    }

    /// Forgets the mapping without unmapping it. (After a fork the child does not have it.)
    pub(crate) fn forget(&mut self) {
        *self = Rings::new();
    }

    /// The address of a span of the pool.
    pub(crate) fn pool_address(&self, span: Span) -> Option<*mut c_void> {
        let pool = self.lane.as_ref()?.pool();
        pool.span.holds(span).then(|| pool.view.pointer(span).cast())
    }

    /// Where the pool is in this process.
    pub(crate) fn pool_range(&self) -> std::ops::Range<usize> {
        let Some(lane) = &self.lane else { return 0..0 };
        let pool = lane.pool();
        let start = pool.view.pointer(pool.span) as usize;
        start..start + pool.span.bytes as usize
    }

    /// Where an address lies in this lane's pool, if it does.
    pub(crate) fn pool_offset(&self, address: *const c_void) -> Option<u64> {
        let pool = self.lane.as_ref()?.pool();
        let found = pool.view.find(address.cast(), 0)?;
        pool.span.holds(found).then_some(found.at)
    }

    /// One call.
    fn transact(&mut self, fd: c_int, buffers: &mut Buffers, ask: &Ask<'_>) -> Result<Reply, Lost> {
        let lane = self.lane.as_mut().ok_or(GONE)?;
        self.calls += 1;
        let header = Header {
            kind: Kind::Request,
            service: ask.service,
            function: ask.function,
            status: 0,
            call: self.calls,
            payload_bytes: ask.payload.len() as u32,
            fd_count: 0,
            bulk_bytes: ask.input.len() as u64,
            payload_crc: 0,
            flags: 0,
            room: ask.output.map(|output| output.len() as u64),
        };
        let output = ask.output.as_ref().map(std::slice::from_ref);
        let input = std::slice::from_ref(&ask.input);
        let request = Request { header, payload: ask.payload, input, output };
        let mut answer = Answer { fd, buffers, reply_max: ask.reply_max, streamed: 0 };
        let mut call = lane.begin(&request, &mut answer)?;
        let reply = loop {
            if let Some(reply) = lane.advance(&mut call, &mut answer)? {
                break reply;
            }
            wait(lane, fd, answer.buffers, ask.tag)?;
        };
        let Header { status, fd_count, bulk_bytes, .. } = reply.header;
        let payload_bytes = reply.header.payload_bytes as usize;
        let payload: *const u8 = match reply.streamed {
            true => answer.buffers.large_answer(ask.reply_max),
            false => answer.buffers.small_answer(SMALL_BYTES).map_or(std::ptr::null(), |all| all.as_ptr()),
        };
        if payload.is_null() {
            return Err(Lost(status::NO_MEMORY));
        }
        let counts = if status == 0 && reply.tail_bytes() > 0 {
            // SAFETY: the answer's bytes: the lane has checked that so many came.
            (ask.counts)(unsafe { std::slice::from_raw_parts(payload, payload_bytes) }) as u64
        } else {
            0
        };
        lane.finish(&mut call, &reply, counts, &mut answer)?;
        // One that this process has no room for does not come again.
        while answer.buffers.fds().len() < usize::from(fd_count) && !answer.buffers.lost_fds {
            match wire::hear_frame(fd, answer.buffers) {
                wire::Heard::Frame(BELL | FDS) | wire::Heard::Interrupted => {}
                _ => return Err(GONE),
            }
        }
        Ok(Reply { status, payload, payload_bytes, bulk_bytes })
    }

    /// Whether this many bytes at `start` would have to be streamed: copying them through the pool
    /// is better.
    fn would_stream(&self, start: *const u8, bytes: usize) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.would_stream(start, bytes))
    }
}

/// Waits until something came.
fn wait(lane: &mut Client<Kernel>, fd: c_int, buffers: &mut Buffers, tag: Option<u32>) -> Result<(), Lost> {
    let port = lane.port();
    if tag.is_none() && port.wait(true, NAP)? {
        return Ok(());
    }
    let mut interrupted = false;
    while port.sleep_on_socket()? {
        // The wish to end may have reached the far side before the call began to wait, so repeat
        // it.
        if interrupted && !wire::wish_once(fd, tag.unwrap_or(0)) {
            continue;
        }
        let heard = wire::hear_frame(fd, buffers);
        port.wake_up();
        match heard {
            wire::Heard::Frame(BELL | FDS) => {}
            wire::Heard::Interrupted => interrupted = tag.is_some(),
            wire::Heard::Frame(_) | wire::Heard::Nothing => return Err(GONE),
        }
    }
    Ok(())
}

/// Moves a lane to shared memory, if the far side offers some and this process can map it. False:
/// the connection cannot be used any more.
pub(crate) fn move_to_memory(fd: c_int, rings: &mut Rings, buffers: &mut Buffers) -> bool {
    let Ok((header, payload)) = wire::ask(fd, (0, shm::ASK), &[], buffers) else { return false };
    let offer = Offer::decode(&payload).ok().filter(|_| header.status == 0);
    let mapped = match (offer, buffers.fds()) {
        (Some(offer), [region]) => rings.map(&offer, *region),
        _ => false,
    };
    buffers.clear();
    if !mapped {
        return true;
    }
    match wire::ask(fd, (0, shm::MOVE), &[], buffers) {
        Ok((header, _)) if header.status == 0 => true,
        _ => {
            rings.unmap();
            false
        }
    }
}

/// Takes a span of pool memory (`words` is its length), or gives one back (`words` is the span).
pub(crate) fn pool_call(
    fd: c_int,
    rings: &mut Rings,
    buffers: &mut Buffers,
    words: &[u8],
) -> Result<Span, bool> {
    let function = if words.len() == 8 { shm::POOL_TAKE } else { shm::POOL_GIVE };
    let ask = Ask {
        service: 0,
        function,
        payload: Source::of(words),
        input: Source::NONE,
        output: None,
        counts: |_| 0,
        reply_max: SMALL_BYTES,
        tag: None,
    };
    let reply = rings.transact(fd, buffers, &ask).map_err(|_| false)?;
    if reply.status != 0 {
        return Err(true);
    }
    // SAFETY: the reply's bytes, in this lane's buffers.
    let payload = unsafe { std::slice::from_raw_parts(reply.payload, reply.payload_bytes) };
    if payload.is_empty() { Ok(Span { at: 0, bytes: 0 }) } else { Span::decode(payload).map_err(|_| false) }
}

/// Performs a call over the rings; see [`wire::exchange`].
///
/// # Safety
///
/// `call` is a stub's.
pub(crate) unsafe fn exchange_in_memory(
    fd: c_int,
    rings: &mut Rings,
    buffers: &mut Buffers,
    service: &StubService,
    call: &mut StubCall,
    waits: &Waits,
) -> (i32, bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if call.in_count > 1 || call.out_count > 1 {
            return (status::TOO_LARGE, true);
        }
        let Some(payload) = wire::request(buffers, service, call) else { return (status::NO_MEMORY, true) };
        let nothing = Segment { pointer: std::ptr::null_mut(), bytes: 0 };
        let input = if call.in_count == 1 { *call.inputs } else { nothing };
        let output = if call.out_count == 1 { *call.outputs } else { nothing };
        let (in_start, in_bytes): (*const u8, usize) =
            (input.pointer.cast_const().cast(), input.bytes as usize);
        let (out_start, out_bytes): (*mut u8, usize) = (output.pointer.cast(), output.bytes as usize);
        let mut ask = Ask {
            service: service::PLUGINS,
            function: plugins_fn::CALL,
            payload: Source::from_raw(payload.0, payload.1),
            input: Source::from_raw(in_start, in_bytes),
            output: Some(Target::from_raw(out_start, out_bytes)),
            counts: bytes_told,
            reply_max: ANSWER_HEAD_BYTES + 8 * SEGMENTS + call.reply_bytes_max as usize,
            tag: waits.tag,
        };
        let streams = rings.would_stream(in_start, in_bytes) || rings.would_stream(out_start, out_bytes);
        let stage = if streams && in_bytes.min(out_bytes) == 0 {
            Stage::take(fd, rings, buffers, in_bytes.max(out_bytes))
        } else {
            None
        };
        if let Some(stage) = &stage {
            if out_bytes > 0 {
                ask.output = Some(Target::from_raw(stage.address, out_bytes));
            } else {
                std::ptr::copy_nonoverlapping(in_start, stage.address, in_bytes);
                ask.input = Source::from_raw(stage.address, in_bytes);
            }
        }
        let (status, whole) = match rings.transact(fd, buffers, &ask) {
            Err(Lost(status)) => return (status, false),
            Ok(reply) if reply.status != 0 => (wire::refused(reply.status), true),
            Ok(reply) => {
                let payload = std::slice::from_raw_parts(reply.payload, reply.payload_bytes);
                match take_in_memory(buffers, call, payload, reply.bulk_bytes) {
                    Ok(status) => (status, true),
                    Err(status) => (status, false),
                }
            }
        };
        if let Some(stage) = stage {
            if status == status::OK && out_bytes > 0 {
                let come = (*call.outputs).bytes as usize;
                std::ptr::copy_nonoverlapping(stage.address, out_start, come);
            }
            if whole && !stage.give_back(fd, rings, buffers) {
                return (status::DISCONNECTED, false);
            }
        }
        (status, whole)
    }
}

/// Bytes of output that an answer announces.
fn bytes_told(payload: &[u8]) -> usize {
    match plugins::AnswerHead::take(payload) {
        Ok((head, sizes, _)) if head.status.cast_signed() == status::OK => {
            plugins::sizes(sizes).fold(0_u64, u64::saturating_add) as usize
        }
        _ => 0,
    }
}

/// Pool memory through which a call's data go: copied once on this side, used in place on the
/// other.
struct Stage {
    span: Span,
    address: *mut u8,
}

/// Pool memory that a lane keeps; larger spans are given back after the call.
const STAGE_KEPT: usize = 256 << 10;
/// After this many calls a pool that had no memory is asked again.
const STAGE_AGAIN: u32 = 64;

impl Stage {
    fn take(fd: c_int, rings: &mut Rings, buffers: &mut Buffers, bytes: usize) -> Option<Stage> {
        let kept = rings.stage.filter(|span| bytes as u64 <= span.bytes);
        if let Some(span) = kept {
            return rings.pool_address(span).map(|address| Stage { span, address: address.cast() });
        }
        if rings.unstaged > 0 {
            rings.unstaged -= 1;
            return None;
        }
        // This leaves the call's request alone: it writes only to the answer's memory.
        let wanted = bytes.max(STAGE_KEPT) as u64;
        let Ok(span) = pool_call(fd, rings, buffers, &wanted.to_le_bytes()) else {
            rings.unstaged = STAGE_AGAIN;
            return None;
        };
        if span.bytes == STAGE_KEPT as u64 {
            rings.stage = Some(span);
        }
        rings.pool_address(span).map(|address| Stage { span, address: address.cast() })
    }

    /// False: the lane cannot be used any more. The call's answer stays as it is, since this answer
    /// is empty.
    fn give_back(self, fd: c_int, rings: &mut Rings, buffers: &mut Buffers) -> bool {
        if rings.stage == Some(self.span) {
            return true;
        }
        let words = [self.span.at.to_le_bytes(), self.span.bytes.to_le_bytes()];
        let words = words.as_flattened();
        pool_call(fd, rings, buffers, words).is_ok()
    }
}

unsafe fn take_in_memory(
    buffers: &mut Buffers,
    call: &mut StubCall,
    payload: &[u8],
    bulk: u64,
) -> Result<i32, i32> {
    let Ok((head, sizes, at)) = plugins::AnswerHead::take(payload) else { return Err(status::MALFORMED) };
    let told = head.status.cast_signed();
    if told != status::OK {
        return Ok(told);
    }
    if head.out_count != call.out_count {
        return Err(status::MALFORMED);
    }
    for size in plugins::sizes(sizes) {
        // SAFETY: one output, as was looked before.
        let segment = unsafe { &mut *call.outputs };
        if size > segment.bytes || size > bulk {
            return Err(status::MALFORMED);
        }
        segment.bytes = size;
    }
    call.reply = payload[at..].as_ptr().cast_mut().cast();
    call.reply_bytes = (payload.len() - at) as u64;
    let fds = buffers.fds();
    (call.reply_fds, call.reply_fd_count) = (fds.as_mut_ptr(), fds.len() as u32);
    Ok(status::OK)
}
