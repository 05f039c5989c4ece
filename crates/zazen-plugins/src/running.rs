//! One call in progress: `struct zazen_call` and what a dispatcher may ask of it (`struct
//! zazen_call_ops`).
//!
//! Input segments come as bulk bytes in their order, output segments leave likewise, each at the
//! offset that the capacities before it add up to. Where the carrier shares memory with the client,
//! both are used in place.
//!
//! Invariants: whatever index a plug-in names is checked; a registered userbuf is completed exactly
//! once, also when the call fails or panics; all that a call allocated is freed with it.

use crate::arena::Arena;
use crate::clients::Client;
use crate::watch::Busy;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};
use zazen_call::SharedBytesMut;
use zazen_plugin_abi::plugin::{self as abi, CallOps};
use zazen_wire::plugins::{ANSWER_HEAD_BYTES, AnswerHead, status};

/// Descriptors of one answer, at most.
const REPLY_FDS_MAX: usize = 64;
/// An answer's message is rarely longer: for so many bytes there is room from the beginning.
const USUAL_MESSAGE_BYTES: usize = 240;
/// What memory of C's is aligned to.
const ALIGN: usize = 16;
const ZEROS: [u8; 4096] = [0; 4096];

thread_local! {
    static CURRENT: Cell<*mut Running<'static>> = const { Cell::new(null_mut()) };
}

struct Output<'a> {
    /// The client's own memory, if it was lent.
    lent: Option<SharedBytesMut<'a>>,
    /// What the plug-in was given to write to.
    prepared: *mut u8,
    /// What the plug-in says to send.
    sent: Option<(*const u8, u64)>,
}

/// A call in progress. Made once, then only reached through the pointer that C has.
pub(crate) struct Running<'a> {
    call: abi::PluginCall,
    outer: *mut Running<'static>,
    pub(crate) plugin: &'a str,
    pub(crate) client: &'a Client,
    pub(crate) busy: &'a Busy,
    carried: zazen_call::Call<'a>,
    arena: Arena,
    sizes: Vec<u64>,
    /// Where each input segment is, as far as they came.
    inputs: Vec<Option<NonNull<u8>>>,
    inputs_come: usize,
    outputs: Vec<Output<'a>>,
    /// Output segments from the first on that were lent.
    outputs_lent: usize,
    fds: Vec<RawFd>,
    payload: Vec<u8>,
    replied: bool,
    reply_fds: Vec<OwnedFd>,
    userbuf_taken: bool,
    completion: Option<(abi::Completion, *mut c_void)>,
}

/// What a call is made of.
pub(crate) struct Request<'a> {
    /// The plug-in's name.
    pub(crate) plugin: &'a str,
    pub(crate) client: &'a Client,
    pub(crate) busy: &'a Busy,
    pub(crate) carried: zazen_call::Call<'a>,
    /// Where the message begins in the payload.
    pub(crate) message_at: usize,
    /// Segments' sizes, inputs first.
    pub(crate) sizes: Vec<u64>,
    pub(crate) in_count: usize,
    pub(crate) reply_bytes_max: u64,
}

/// What came of it.
pub(crate) struct Answer {
    pub(crate) status: i32,
    /// Head and message.
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// Bytes of the answer, segments included.
    pub(crate) bytes: u64,
}

impl Answer {
    /// An answer that says only why there is none.
    pub(crate) fn refusal(status: i32) -> Answer {
        let mut payload = Vec::with_capacity(ANSWER_HEAD_BYTES);
        AnswerHead { status: status.cast_unsigned(), out_count: 0 }.put(std::iter::empty(), &mut payload);
        Answer { status, bytes: payload.len() as u64, payload, fds: Vec::new() }
    }
}

static OPS: CallOps = CallOps {
    struct_size: size_of::<CallOps>() as u32,
    reserved: 0,
    allocate: op_allocate,
    receive: op_receive,
    prepare: op_prepare,
    send: op_send,
    reply: op_reply,
    send_fd: op_send_fd,
    handle_enter: op_handle_enter,
    handle_get: op_handle_get,
    handle_remove: op_handle_remove,
};

/// Runs `dispatch` on the request.
pub(crate) fn run(
    dispatch: unsafe extern "C" fn(*mut abi::PluginCall) -> i32,
    request: Request<'_>,
) -> Answer {
    let out_count = request.sizes.len() - request.in_count;
    let head_bytes = ANSWER_HEAD_BYTES + 8 * out_count;
    let message = &request.carried.payload[request.message_at..];
    let mut running = Running {
        call: abi::PluginCall {
            struct_size: size_of::<abi::PluginCall>() as u32,
            flags: 0,
            // Not written by the host, and the dispatcher owns it during the call.
            message: message.as_ptr().cast_mut().cast(),
            message_bytes: message.len() as u64,
            reply_bytes_max: request.reply_bytes_max,
            in_bytes: request.sizes.as_ptr(),
            out_bytes: request.sizes[request.in_count..].as_ptr(),
            in_count: request.in_count as u32,
            out_count: out_count as u32,
            fds: null(),
            fd_count: request.carried.fds.len() as u32,
            reserved: 0,
            userbuf: null(),
            ops: &raw const OPS,
            host_data: null_mut(),
        },
        outer: CURRENT.get(),
        plugin: request.plugin,
        client: request.client,
        busy: request.busy,
        fds: request.carried.fds.iter().map(AsRawFd::as_raw_fd).collect(),
        carried: request.carried,
        arena: Arena::default(),
        sizes: request.sizes,
        inputs: vec![None; request.in_count],
        inputs_come: 0,
        outputs: Vec::new(),
        outputs_lent: 0,
        payload: Vec::with_capacity(head_bytes + USUAL_MESSAGE_BYTES),
        replied: false,
        reply_fds: Vec::new(),
        userbuf_taken: false,
        completion: None,
    };
    running.outputs.resize_with(out_count, || Output { lent: None, prepared: null_mut(), sent: None });
    running.payload.resize(head_bytes, 0);
    running.call.fds = running.fds.as_ptr();
    let this: *mut Running<'_> = &raw mut running;
    // SAFETY: `running` lives on this frame until the end of this function, and from here to
    // `finish` is reached only through `this`, by this thread: the dispatcher's calls of OPS and of
    // the host's functions.
    unsafe {
        (*this).call.host_data = this.cast();
        CURRENT.set(this.cast());
        let status = dispatch(&raw mut (*this).call);
        CURRENT.set((*this).outer);
        (*this).finish(status)
    }
}

/// The call that the calling thread runs, if it does.
pub(crate) fn current<T>(look: impl FnOnce(&mut Running<'_>) -> T) -> Option<T> {
    let current = CURRENT.get();
    // SAFETY: not null only while `run` is below us on this thread's stack, with no reference of
    // its own; `look` is the host's code and calls no plug-in.
    (!current.is_null()).then(|| look(unsafe { &mut *current }))
}

impl Running<'_> {
    pub(crate) fn register_userbuf(
        &mut self,
        buffer: *const c_void,
        completion: Option<abi::Completion>,
        argument: *mut c_void,
    ) -> bool {
        if std::mem::replace(&mut self.userbuf_taken, true) {
            return false;
        }
        self.call.userbuf = buffer;
        self.completion = completion.map(|completion| (completion, argument));
        true
    }

    fn in_count(&self) -> usize {
        self.inputs.len()
    }

    fn out_bytes(&self, index: usize) -> u64 {
        self.sizes[self.in_count() + index]
    }

    fn receive(&mut self, index: usize, wanted: *mut u8) -> Result<NonNull<u8>, i32> {
        if index >= self.in_count() {
            return Err(status::MALFORMED);
        }
        while self.inputs_come < index {
            self.receive_next(null_mut())?;
        }
        if self.inputs_come == index {
            return self.receive_next(wanted);
        }
        let came = self.inputs[index].ok_or(status::MALFORMED)?;
        match NonNull::new(wanted) {
            Some(wanted) if wanted != came => {
                // SAFETY: both have the segment's bytes: `came` was received so, `wanted` is the
                // dispatcher's word.
                unsafe { std::ptr::copy(came.as_ptr(), wanted.as_ptr(), self.sizes[index] as usize) };
                Ok(wanted)
            }
            _ => Ok(came),
        }
    }

    fn receive_next(&mut self, wanted: *mut u8) -> Result<NonNull<u8>, i32> {
        let index = self.inputs_come;
        let bytes = usize::try_from(self.sizes[index]).map_err(|_| status::TOO_LARGE)?;
        let at = match self.carried.lend_input(bytes) {
            Some(lent) if bytes > 0 => {
                let start = NonNull::new(lent.as_ptr().cast_mut());
                match start.filter(|start| wanted.is_null() && start.as_ptr().addr() % ALIGN == 0) {
                    Some(start) => start,
                    None => {
                        let to = self.place(wanted, bytes)?;
                        // SAFETY: `to` has room for `bytes`; `lent` is as long, and another
                        // mapping.
                        unsafe { lent.copy_to(std::slice::from_raw_parts_mut(to.as_ptr(), bytes)) };
                        to
                    }
                }
            }
            _ => {
                let to = self.place(wanted, bytes)?;
                // SAFETY: `to` has room for `bytes` bytes, which are initialised: the arena's; a
                // plug-in's own are memory of C's, which the kernel or a copy fills.
                let into = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), bytes) };
                let bulk = &mut self.carried.bulk;
                self.busy.while_waiting(|| bulk.read_exact(into)).map_err(|_| status::DISCONNECTED)?;
                to
            }
        };
        self.inputs[index] = Some(at);
        self.inputs_come += 1;
        Ok(at)
    }

    /// Where a segment is put that is about to come; it is the plug-in's only once it is there as a
    /// whole.
    fn place(&mut self, wanted: *mut u8, bytes: usize) -> Result<NonNull<u8>, i32> {
        NonNull::new(wanted).or_else(|| self.arena.allocate_to_fill(bytes)).ok_or(status::NO_MEMORY)
    }

    fn prepare(&mut self, index: usize) -> Result<*mut u8, i32> {
        if index >= self.outputs.len() {
            return Err(status::MALFORMED);
        }
        if !self.outputs[index].prepared.is_null() {
            return Ok(self.outputs[index].prepared);
        }
        let bytes = usize::try_from(self.out_bytes(index)).map_err(|_| status::TOO_LARGE)?;
        if index == self.outputs_lent
            && let Some(mut lent) = self.carried.lend_output(bytes).filter(|_| bytes > 0)
        {
            let start = lent.as_mut_ptr();
            self.outputs[index].lent = Some(lent);
            self.outputs_lent += 1;
            if start.addr() % ALIGN == 0 {
                self.outputs[index].prepared = start;
                return Ok(start);
            }
        }
        let memory = self.arena.allocate(bytes).ok_or(status::NO_MEMORY)?;
        self.outputs[index].prepared = memory.as_ptr();
        Ok(memory.as_ptr())
    }

    /// Sends what there is to send, completes the userbuf, and puts the answer together.
    fn finish(&mut self, dispatched: i32) -> Answer {
        let mut outcome = dispatched;
        if outcome == status::OK
            && let Err(failed) = self.write_outputs()
        {
            outcome = failed;
        }
        if let Some((completion, argument)) = self.completion.take() {
            // SAFETY: the plug-in's own function with its own argument, called once.
            unsafe { completion(outcome, argument) };
        }
        if outcome != status::OK {
            return Answer::refusal(outcome);
        }
        let sizes = self.outputs.iter().map(|output| output.sent.map_or(0, |(_, bytes)| bytes));
        let bulk: u64 = sizes.clone().sum();
        let head = AnswerHead { status: 0, out_count: self.outputs.len() as u32 };
        head.write_to(sizes, &mut self.payload);
        let payload = std::mem::take(&mut self.payload);
        Answer {
            status: outcome,
            bytes: payload.len() as u64 + bulk,
            payload,
            fds: std::mem::take(&mut self.reply_fds),
        }
    }

    fn write_outputs(&mut self) -> Result<(), i32> {
        let last = self.outputs.iter().rposition(|output| output.sent.is_some_and(|(_, bytes)| bytes > 0));
        let Some(last) = last else { return Ok(()) };
        for index in 0..=last {
            let room = self.out_bytes(index);
            let output = &mut self.outputs[index];
            let (from, bytes) = output.sent.unwrap_or((null(), 0));
            let sent = if bytes == 0 {
                &[][..]
            } else {
                // SAFETY: what the dispatcher said to send: memory of the arena, of the client's
                // lent room, or of a registered userbuf, `bytes` long by the plug-in's promise, and
                // not written to meanwhile.
                unsafe { std::slice::from_raw_parts(from, bytes as usize) }
            };
            if let Some(lent) = &mut output.lent {
                if lent.as_mut_ptr().cast_const() != from {
                    lent.copy_from(sent);
                }
                continue;
            }
            let padding = if index == last { 0 } else { room - bytes };
            let stream = &mut self.carried.output;
            let written = stream.write_all(sent).and_then(|()| {
                let mut left = padding;
                while left > 0 {
                    let now = left.min(ZEROS.len() as u64);
                    stream.write_all(&ZEROS[..now as usize])?;
                    left -= now;
                }
                Ok(())
            });
            written.map_err(|error| match error.kind() {
                std::io::ErrorKind::OutOfMemory => status::NO_MEMORY,
                // The room that the client announced is not what it has.
                std::io::ErrorKind::WriteZero => status::MALFORMED,
                _ => status::DISCONNECTED,
            })?;
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some((completion, argument)) = self.completion.take() {
            // SAFETY: as in `finish`, which did not come to it.
            unsafe { completion(status::DISCONNECTED, argument) };
        }
    }
}

/// The running call behind a dispatcher's pointer.
///
/// # Safety
/// `call` must be what the host gave the dispatcher that is running on this thread.
unsafe fn running<'a>(call: *mut abi::PluginCall) -> &'a mut Running<'a> {
    // SAFETY: `host_data` was set by `run` to the whole that `call` is a part of; see there.
    unsafe { &mut *(*call).host_data.cast() }
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.err().unwrap_or(status::OK)
}

unsafe extern "C" fn op_allocate(call: *mut abi::PluginCall, bytes: u64) -> *mut c_void {
    // SAFETY: the dispatcher passes its own call.
    let running = unsafe { running(call) };
    let memory = usize::try_from(bytes).ok().and_then(|bytes| running.arena.allocate(bytes));
    memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

unsafe extern "C" fn op_receive(call: *mut abi::PluginCall, index: u32, pointer: *mut *mut c_void) -> i32 {
    // SAFETY: the dispatcher passes its own call and a pointer variable of its own.
    let (running, wanted) = unsafe { (running(call), *pointer) };
    code(running.receive(index as usize, wanted.cast()).map(|at| {
        // SAFETY: as above.
        unsafe { *pointer = at.as_ptr().cast() };
    }))
}

unsafe extern "C" fn op_prepare(call: *mut abi::PluginCall, index: u32, pointer: *mut *mut c_void) -> i32 {
    // SAFETY: the dispatcher passes its own call.
    let running = unsafe { running(call) };
    code(running.prepare(index as usize).map(|at| {
        // SAFETY: a pointer variable of the dispatcher's own.
        unsafe { *pointer = at.cast() };
    }))
}

unsafe extern "C" fn op_send(call: *mut abi::PluginCall, index: u32, from: *const c_void, bytes: u64) -> i32 {
    // SAFETY: the dispatcher passes its own call.
    let running = unsafe { running(call) };
    let index = index as usize;
    if index >= running.outputs.len() || bytes > running.out_bytes(index) || (from.is_null() && bytes > 0) {
        return status::BAD_REPLY;
    }
    running.outputs[index].sent = Some((from.cast(), bytes));
    status::OK
}

unsafe extern "C" fn op_reply(call: *mut abi::PluginCall, bytes: u64, message: *mut *mut c_void) -> i32 {
    // SAFETY: the dispatcher passes its own call.
    let running = unsafe { running(call) };
    if bytes > running.call.reply_bytes_max || std::mem::replace(&mut running.replied, true) {
        return status::BAD_REPLY;
    }
    let head = running.payload.len();
    let Ok(bytes) = usize::try_from(bytes) else { return status::NO_MEMORY };
    if running.payload.try_reserve_exact(bytes).is_err() {
        return status::NO_MEMORY;
    }
    running.payload.resize(head + bytes, 0);
    // SAFETY: a pointer variable of the dispatcher's own; `head` is within the payload, which is
    // not touched until the dispatcher has returned.
    unsafe { *message = running.payload.as_mut_ptr().add(head).cast() };
    status::OK
}

unsafe extern "C" fn op_send_fd(call: *mut abi::PluginCall, fd: c_int, index: *mut i64) -> i32 {
    // SAFETY: the dispatcher passes its own call.
    let running = unsafe { running(call) };
    if fd < 0 {
        return status::BAD_REPLY;
    }
    // SAFETY: the plug-in gives the descriptor away with this call.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if running.reply_fds.len() == REPLY_FDS_MAX {
        return status::TOO_LARGE;
    }
    // SAFETY: a variable of the dispatcher's own.
    unsafe { *index = running.reply_fds.len() as i64 };
    running.reply_fds.push(fd);
    status::OK
}

/// The kind's text; none for NULL.
///
/// # Safety
/// `kind` must be NULL or a NUL-terminated string that outlives the use.
unsafe fn kind_of<'a>(kind: *const c_char) -> &'a CStr {
    if kind.is_null() {
        return c"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(kind) }
}

unsafe extern "C" fn op_handle_enter(
    call: *mut abi::PluginCall,
    kind: *const c_char,
    value: i64,
    handle: *mut i64,
) -> i32 {
    // SAFETY: the dispatcher passes its own call, a literal, and a variable of its own.
    let (running, kind) = unsafe { (running(call), kind_of(kind)) };
    code(running.client.enter_handle(kind, value).map(|number| {
        // SAFETY: as above.
        unsafe { *handle = number };
    }))
}

unsafe extern "C" fn op_handle_get(
    call: *mut abi::PluginCall,
    kind: *const c_char,
    handle: i64,
    value: *mut i64,
) -> i32 {
    // SAFETY: as in `op_handle_enter`.
    let (running, kind) = unsafe { (running(call), kind_of(kind)) };
    code(running.client.handle(kind, handle).map(|found| {
        // SAFETY: as above.
        unsafe { *value = found };
    }))
}

unsafe extern "C" fn op_handle_remove(
    call: *mut abi::PluginCall,
    kind: *const c_char,
    handle: i64,
    value: *mut i64,
) -> i32 {
    // SAFETY: as in `op_handle_enter`.
    let (running, kind) = unsafe { (running(call), kind_of(kind)) };
    code(running.client.remove_handle(kind, handle).map(|found| {
        // SAFETY: as above.
        unsafe { *value = found };
    }))
}
