//! One call: makes a request from a stub's pieces, and puts the answer where the stub looks for it.
//!
//! Invariant: an answer is checked before it is used: the counts, the sizes against the room, the
//! status.

use crate::interrupt;
use crate::lanes::Lane;
use crate::link::{Binding, Failure, Link};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;
use zazen_call::Exchanged;
use zazen_core::{Error, ErrorKind};
use zazen_plugin_abi::segment::{FUNCTION_BLOCKING, FUNCTION_IDEMPOTENT};
use zazen_plugin_abi::stub::{Segment, StubCall, StubService};
use zazen_wire::plugins::{AnswerHead, CallHead, SEGMENTS_MAX, plugins_fn, sizes, status};
use zazen_wire::service;

/// A payload buffer larger than this is not kept for the lane's next call.
const KEPT_PAYLOAD_BYTES: usize = 1 << 20;

/// Answers after which the client must open the plug-in again.
const GONE: [i32; 4] = [status::NO_SERVICE, status::DISCONNECTED, status::TIMED_OUT, status::CRASHED];

thread_local! {
    static STATUS: Cell<i32> = const { Cell::new(0) };
    static WORDS: RefCell<CString> = RefCell::new(CString::default());
}

/// This thread's last status.
pub(crate) fn last_status() -> i32 {
    STATUS.try_with(Cell::get).unwrap_or(0)
}

pub(crate) fn set_last_status(status: i32) {
    let _ = STATUS.try_with(|last| last.set(status));
}

/// Keeps a failure's message for this thread, and returns its status.
pub(crate) fn told<T>(outcome: Result<T, Failure>) -> i32 {
    match outcome {
        Ok(_) => status::OK,
        Err(failure) => {
            keep_words(failure.words);
            failure.status
        }
    }
}

pub(crate) fn keep_words(words: String) {
    let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    let _ = WORDS.try_with(|last| last.replace(words));
}

/// The message of this thread's last failure; valid until its next failure.
pub(crate) fn last_words() -> *const std::ffi::c_char {
    WORDS.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What an answer holds until the stub is done with it.
pub(crate) struct Held {
    _payload: Vec<u8>,
    /// An aligned copy of the message, if the payload was not aligned.
    _aligned: Vec<u64>,
    fds: Vec<RawFd>,
}

/// A call that failed, and whether it may be tried again.
struct Lost {
    failure: Failure,
    /// The function has certainly not run.
    before: bool,
}

impl Link {
    /// Performs `call`, which a stub filled in. Returns the transport status.
    ///
    /// # Safety
    /// `service` and `call` must be what `zazen_stub.h` says, and all that they point to alive.
    pub unsafe fn call(&self, service: &StubService, call: &mut StubCall) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { perform(self, service, call) }
    }

    /// Opens the plug-in, if it is not open yet; a transport status.
    ///
    /// # Safety
    /// `service` must be what `zazen_stub.h` says.
    pub unsafe fn bind(&self, service: &StubService) -> i32 {
        // SAFETY: the caller's promise.
        told(unsafe { self.binding(service) }.map(|_| ()))
    }
}

/// See [`Link::call`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn perform(link: &Link, service: &StubService, call: &mut StubCall) -> i32 {
    let idempotent = call.flags & FUNCTION_IDEMPOTENT != 0;
    let mut tries = 0;
    loop {
        // SAFETY: the caller's promise.
        let binding = match unsafe { link.binding(service) } {
            Ok(binding) => binding,
            Err(failure) => return told::<()>(Err(failure)),
        };
        // SAFETY: as above.
        match unsafe { once(&binding, call) } {
            Ok(status) => return status,
            Err(lost) => {
                tries += 1;
                if tries < 3 && binding.is_dead() && (lost.before || (idempotent && tries < 2)) {
                    continue;
                }
                return told::<()>(Err(lost.failure));
            }
        }
    }
}

/// A stub's array.
///
/// # Safety
/// `start` must point to `count` elements that live for `'a`, or `count` be 0.
unsafe fn array<'a, T>(start: *const T, count: u32) -> &'a [T] {
    if count == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, count as usize) }
}

/// A piece of a stub's memory.
///
/// # Safety
/// The segment's memory must live for `'a`.
unsafe fn bytes<'a>(segment: &Segment) -> &'a [u8] {
    if segment.bytes == 0 || segment.pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(segment.pointer.cast(), segment.bytes as usize) }
}

unsafe fn once(binding: &Binding, call: &mut StubCall) -> Result<i32, Lost> {
    // SAFETY: a stub's arrays, alive until the call's end.
    let (input, output) =
        unsafe { (array(call.inputs, call.in_count), array(call.outputs.cast_const(), call.out_count)) };
    if let Err(failure) = check(binding, call, input, output) {
        return Err(Lost { failure, before: false });
    }
    let out_rooms: Vec<u64> = output.iter().map(|segment| segment.bytes).collect();
    let tag = interrupt::next_tag();
    let began = Instant::now();
    let mut lane = binding.pool.take().map_err(|error| lost_before(binding, &error))?;
    if !lane.is_fresh(binding.plugin, began) {
        binding.bury();
        let failure = Failure::new(status::DISCONNECTED, "the daemon, or the plug-in's process, went away");
        return Err(Lost { failure, before: true });
    }
    // SAFETY: as above.
    unsafe { put_payload(binding, call, tag, input, &out_rooms, &mut lane.payload) };
    let exchanged = {
        let _waiting = (call.flags & FUNCTION_BLOCKING != 0)
            .then(|| interrupt::Waiting::begin(binding.plugin, tag, &binding.pool));
        // SAFETY: as above.
        unsafe { exchange(&mut lane, call, input, output) }
    };
    if lane.payload.capacity() > KEPT_PAYLOAD_BYTES {
        lane.payload = Vec::new();
    }
    match exchanged {
        Ok(answer) => {
            binding.pool.give_back(lane);
            // SAFETY: as above.
            let taken = unsafe { take_answer(call, answer, &out_rooms) };
            taken.map_err(|failure| {
                // A daemon that passes calls on says so: the process to which it passed this call
                // has ended.
                if GONE.contains(&failure.status) {
                    binding.bury();
                }
                Lost { failure, before: false }
            })
        }
        Err(error) if lane.connection.is_alive() => {
            binding.pool.give_back(lane);
            Err(Lost { failure: refused(&error), before: false })
        }
        Err(error) => {
            if error.kind() == ErrorKind::TimedOut {
                let failure = Failure::new(status::TIMED_OUT, error.to_string());
                return Err(Lost { failure, before: false });
            }
            binding.bury();
            let why = binding.why_lost(began.elapsed());
            Err(Lost { failure: Failure::new(why, error.to_string()), before: false })
        }
    }
}

/// There was no lane, so the function has not run.
fn lost_before(binding: &Binding, error: &Error) -> Lost {
    if error.kind() == ErrorKind::Busy {
        return Lost { failure: Failure::new(status::NO_MEMORY, error.to_string()), before: false };
    }
    binding.bury();
    Lost { failure: Failure::new(status::DISCONNECTED, error.to_string()), before: true }
}

/// An error that came as an answer: the function has not run, or the host has a bug.
fn refused(error: &Error) -> Failure {
    let status = match error.kind() {
        ErrorKind::TooLarge => status::TOO_LARGE,
        ErrorKind::Unsupported => status::UNSUPPORTED,
        ErrorKind::Io => status::BAD_REPLY,
        ErrorKind::Busy => status::NO_MEMORY,
        _ => status::NO_SERVICE,
    };
    Failure::new(status, error.to_string())
}

fn check(binding: &Binding, call: &StubCall, input: &[Segment], output: &[Segment]) -> Result<(), Failure> {
    let too_large = |what: &str, max: u64| {
        Failure::new(status::TOO_LARGE, format!("the call has more {what} than the limit of {max}"))
    };
    if call.in_count > SEGMENTS_MAX || call.out_count > SEGMENTS_MAX {
        return Err(too_large("zerocopy arguments", u64::from(SEGMENTS_MAX)));
    }
    if call.request_bytes > binding.message_bytes_max {
        return Err(too_large("bytes", binding.message_bytes_max));
    }
    let total = input.iter().chain(output).try_fold(0u64, |sum, segment| sum.checked_add(segment.bytes));
    match total {
        Some(total) if total <= binding.segment_bytes_max => Ok(()),
        _ => Err(too_large("bytes of zerocopy arguments", binding.segment_bytes_max)),
    }
}

unsafe fn put_payload(
    binding: &Binding,
    call: &StubCall,
    tag: u64,
    input: &[Segment],
    out_rooms: &[u64],
    payload: &mut Vec<u8>,
) {
    payload.clear();
    let head = CallHead {
        plugin: binding.plugin,
        function: call.function,
        in_count: call.in_count,
        out_count: call.out_count,
        reply_bytes_max: call.reply_bytes_max.min(binding.message_bytes_max),
        tag,
        id: interrupt::call_id(tag),
    };
    let in_sizes = input.iter().map(|segment| segment.bytes);
    head.put(in_sizes.chain(out_rooms.iter().copied()), payload);
    payload.reserve(call.request_bytes as usize);
    let fixed = Segment { pointer: call.fixed.cast_mut(), bytes: call.fixed_bytes };
    // SAFETY: the stub's fixed part and tail, alive until the call's end.
    unsafe {
        payload.extend_from_slice(bytes(&fixed));
        for piece in array(call.tail, call.tail_count) {
            payload.extend_from_slice(bytes(piece));
            let gap = piece.bytes.wrapping_neg() & 7;
            payload.extend_from_slice(&[0; 8][..gap as usize]);
        }
    }
}

/// How many segments need no list on the heap.
const FEW: usize = 4;

unsafe fn exchange(
    lane: &mut Lane,
    call: &StubCall,
    input: &[Segment],
    output: &[Segment],
) -> zazen_core::Result<Exchanged> {
    // SAFETY: the stub's memory lives until the call's end, and nobody else uses its outputs
    // meanwhile; the caller keeps the descriptors open.
    unsafe {
        let part = |segment: &Segment| IoSlice::new(bytes(segment));
        let room = |segment: &Segment| {
            let pointer =
                if segment.bytes == 0 { std::ptr::dangling_mut() } else { segment.pointer.cast::<u8>() };
            IoSliceMut::new(std::slice::from_raw_parts_mut(pointer, segment.bytes as usize))
        };
        let fds: Vec<BorrowedFd<'_>> =
            array(call.fds, call.fd_count).iter().map(|fd| BorrowedFd::borrow_raw(*fd)).collect();
        let mut few_in: [IoSlice<'_>; FEW] = std::array::from_fn(|_| IoSlice::new(&[]));
        let many_in: Vec<IoSlice<'_>>;
        let parts = if input.len() <= FEW {
            few_in.iter_mut().zip(input).for_each(|(to, segment)| *to = part(segment));
            &few_in[..input.len()]
        } else {
            many_in = input.iter().map(part).collect();
            &many_in[..]
        };
        let mut rooms: Vec<IoSliceMut<'_>> = output.iter().map(room).collect();
        let Lane { connection, payload, .. } = lane;
        connection.exchange_with_fds(service::PLUGINS, plugins_fn::CALL, payload, parts, &mut rooms, &fds)
    }
}

unsafe fn take_answer(call: &mut StubCall, answer: Exchanged, out_rooms: &[u64]) -> Result<i32, Failure> {
    let malformed = |why: &str| Failure::new(status::MALFORMED, format!("the daemon's answer: {why}"));
    let (head, size_bytes, at) =
        AnswerHead::take(&answer.payload).map_err(|error| malformed(&error.to_string()))?;
    let told = head.status.cast_signed();
    if told != status::OK {
        return Err(Failure::new(told, format!("the plug-in's host answers with status {told}")));
    }
    if head.out_count as usize != out_rooms.len()
        || sizes(size_bytes).zip(out_rooms).any(|(got, room)| got > *room)
    {
        return Err(malformed("its zerocopy outputs are not those that were asked for"));
    }
    for (index, got) in sizes(size_bytes).enumerate() {
        // SAFETY: the stub's array has as many elements as it announced.
        unsafe { (*call.outputs.add(index)).bytes = got };
    }
    let Exchanged { payload, fds, .. } = answer;
    let mut held = Box::new(Held {
        _payload: payload,
        _aligned: Vec::new(),
        fds: fds.into_iter().map(OwnedFd::into_raw_fd).collect(),
    });
    let message = &held._payload[at..];
    let bytes = message.len();
    let mut start = message.as_ptr();
    if !start.addr().is_multiple_of(8) {
        let mut aligned = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: `aligned` has room for all bytes.
        unsafe { std::ptr::copy_nonoverlapping(start, aligned.as_mut_ptr().cast(), bytes) };
        start = aligned.as_ptr().cast();
        held._aligned = aligned;
    }
    call.reply = start.cast_mut().cast();
    call.reply_bytes = bytes as u64;
    call.reply_fds = held.fds.as_mut_ptr();
    call.reply_fd_count = held.fds.len() as u32;
    call.runtime = Box::into_raw(held).cast();
    Ok(status::OK)
}

/// Frees what the call's answer holds, and closes the descriptors that nobody took.
///
/// # Safety
/// `call` must be a stub's, and nobody may use its answer any more.
pub(crate) unsafe fn end(call: &mut StubCall) {
    let held = std::mem::replace(&mut call.runtime, std::ptr::null_mut());
    if held.is_null() {
        return;
    }
    // SAFETY: only `take_answer` sets it.
    let held = unsafe { Box::from_raw(held.cast::<Held>()) };
    for fd in held.fds.iter().filter(|fd| **fd >= 0) {
        // SAFETY: a descriptor that came with the answer and that the stub did not take.
        unsafe { libc::close(*fd) };
    }
}
