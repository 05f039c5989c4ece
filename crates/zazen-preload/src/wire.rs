//! Calls as messages of the daemon's plug-ins service, over its unix socket (`zazen_wire`). A small
//! call allocates nothing, and a signal can end a call that waits.
//!
//! Invariant: what an answer says is checked before it is used. An answer that is not whole ends
//! the connection.

use crate::far;
use crate::kernel::Kernel;
use crate::real::system_call;
use crate::{call_ids, table};
use std::ffi::{CStr, c_int, c_void};
use zazen_lane::Awake;
use zazen_plugin_abi::stub::{StubCall, StubService};
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{HEADER_BYTES, Header, Kind, OFFERS_SHM};
use zazen_wire::plugins::{self, ANSWER_HEAD_BYTES, CALL_HEAD_BYTES, plugins_fn};
use zazen_wire::service;

pub(crate) use zazen_wire::plugins::status;

/// Messages up to this size need no memory of their own.
pub(crate) const SMALL_BYTES: usize = 8192;
/// Segments of one direction: posix.h has one at most.
pub(crate) const SEGMENTS: usize = 4;
const FDS: usize = 4;

/// The memory of one call in progress; a lane keeps it.
pub(crate) struct Buffers {
    /// The far side has shared memory to give.
    pub(crate) offered: bool,
    request: [u64; SMALL_BYTES / 8],
    answer: [u64; SMALL_BYTES / 8],
    /// From malloc, for larger messages.
    large: [*mut c_void; 2],
    fds: [c_int; FDS],
    fd_count: usize,
    /// A descriptor came, but this process may have no more.
    pub(crate) lost_fds: bool,
    /// How the lane waits for answers of a far side that it is connected to itself.
    awake: Awake,
}

impl Buffers {
    pub(crate) const fn new() -> Buffers {
        Buffers {
            offered: false,
            request: [0; SMALL_BYTES / 8],
            answer: [0; SMALL_BYTES / 8],
            large: [std::ptr::null_mut(); 2],
            fds: [-1; FDS],
            fd_count: 0,
            lost_fds: false,
            awake: Awake::new(),
        }
    }

    /// After the call: frees memory, and closes descriptors that nobody took.
    pub(crate) fn clear(&mut self) {
        for fd in &mut self.fds {
            if *fd >= 0 {
                table::close_kernel(*fd);
            }
            *fd = -1;
        }
        self.lost_fds = false;
        self.fd_count = 0;
        for large in &mut self.large {
            if !large.is_null() {
                // SAFETY: malloc's.
                unsafe { libc::free(*large) };
            }
            *large = std::ptr::null_mut();
        }
    }

    /// Memory for a message of `bytes`; NULL if there is none.
    fn memory(&mut self, index: usize, bytes: usize) -> *mut u8 {
        if bytes <= SMALL_BYTES {
            let small = if index == 0 { &mut self.request } else { &mut self.answer };
            return small.as_mut_ptr().cast();
        }
        // SAFETY: a size; freed by clear().
        self.large[index] = unsafe { libc::malloc(bytes) };
        self.large[index].cast()
    }
}

impl Buffers {
    /// Memory for an answer that is small, exactly so long; `None` if it is not.
    pub(crate) fn small_answer(&mut self, bytes: usize) -> Option<&mut [u8]> {
        // SAFETY: the array's own bytes; any bytes are a value of u64.
        let all = unsafe { std::slice::from_raw_parts_mut(self.answer.as_mut_ptr().cast(), SMALL_BYTES) };
        all.get_mut(..bytes)
    }

    /// Memory for an answer of up to `bytes`; NULL if there is none. It is the same memory until
    /// [`Buffers::clear`].
    pub(crate) fn large_answer(&mut self, bytes: usize) -> *mut u8 {
        if self.large[1].is_null() {
            // SAFETY: a size; freed by clear().
            self.large[1] = unsafe { libc::malloc(bytes.max(1)) };
        }
        self.large[1].cast()
    }

    /// Descriptors that came; they are closed by [`Buffers::clear`] unless somebody took them.
    pub(crate) fn fds(&mut self) -> &mut [c_int] {
        &mut self.fds[..self.fd_count]
    }
}

/// Whether the call may block, and its tag then.
pub(crate) struct Waits {
    pub(crate) tag: Option<u32>,
}

/// What an open of the plug-in gave.
pub(crate) enum PluginHost {
    Here,
    /// The plug-in has a process of its own, which listens there.
    Elsewhere(String),
    /// Behind this connection, which goes to the far side itself.
    Over(c_int),
    /// The same, but this process had no number for the connection.
    Lost,
}

/// Sends all parts.
fn send(fd: c_int, parts: &mut [libc::iovec]) -> bool {
    send_with(fd, parts, None, 0)
}

/// The same, with a descriptor, and flags of sendmsg(2).
fn send_with(fd: c_int, parts: &mut [libc::iovec], mut passed: Option<c_int>, flags: c_int) -> bool {
    let mut first = 0;
    let mut control = [0_u64; 4];
    while first < parts.len() {
        // SAFETY: all zeros is a valid message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts[first..].as_mut_ptr();
        message.msg_iovlen = parts.len() - first;
        if let Some(passed) = passed {
            // SAFETY: the control buffer has room for one descriptor.
            unsafe {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
                libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(passed);
            }
        }
        let flags = (libc::MSG_NOSIGNAL | flags) as usize;
        let arguments = [fd as usize, (&raw const message) as usize, flags, 0, 0, 0];
        let mut sent = match system_call(libc::SYS_sendmsg, arguments) {
            Ok(sent) => sent,
            Err(libc::EINTR) => continue,
            Err(_) => return false,
        };
        passed = None;
        while first < parts.len() && sent >= parts[first].iov_len {
            sent -= parts[first].iov_len;
            first += 1;
        }
        if first < parts.len() {
            let part = &mut parts[first];
            part.iov_base = part.iov_base.cast::<u8>().wrapping_add(sent).cast();
            part.iov_len -= sent;
        }
    }
    true
}

/// Waits for the answer of a call that a signal asked to end. The wish may have reached the far
/// side before the call began to wait, so it is repeated.
fn wish_for_the_end(fd: c_int, tag: u32) {
    while !wish_once(fd, tag) {}
}

/// Sends the wish; returns whether something came within 5 ms.
pub(crate) fn wish_once(fd: c_int, tag: u32) -> bool {
    let _ = far::cancel(tag);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let arguments = [(&raw mut poll) as usize, 1, (&raw const pause) as usize, 0, 0, 0];
    matches!(system_call(libc::SYS_ppoll, arguments), Ok(1..))
}

/// What the socket of a lane in shared memory brought.
pub(crate) enum Heard {
    /// A frame of the call layer: its function. Its descriptors are kept.
    Frame(u16),
    /// A signal came first.
    Interrupted,
    /// The daemon's error, or its end.
    Nothing,
}

/// Waits for a frame on the socket of a lane that has moved to shared memory.
pub(crate) fn hear_frame(fd: c_int, buffers: &mut Buffers) -> Heard {
    // Notice a signal before anything is taken. A signal with SA_RESTART goes unnoticed, as in
    // read(2).
    let mut first = 0_u8;
    let arguments = [fd as usize, (&raw mut first) as usize, 1, libc::MSG_PEEK as usize, 0, 0];
    match system_call(libc::SYS_recvfrom, arguments) {
        Ok(1..) => {}
        Err(libc::EINTR) => return Heard::Interrupted,
        _ => return Heard::Nothing,
    }
    let mut head = [0; HEADER_BYTES];
    let parts = [(head.as_mut_ptr(), HEADER_BYTES), (std::ptr::null_mut(), 0)];
    let got = receive(fd, parts, HEADER_BYTES, buffers, None);
    match got.and_then(|_| Header::decode(&head).ok()) {
        Some(header) if header.service == 0 && header.status == 0 && header.payload_bytes == 0 => {
            Heard::Frame(header.function)
        }
        _ => Heard::Nothing,
    }
}

/// Sends a frame of the call layer. If the socket is full, a bell is dropped: its reader has
/// something to wake up for anyway.
pub(crate) fn send_frame(fd: c_int, function: u16) -> bool {
    let frame = Header {
        kind: Kind::Request,
        service: 0,
        function,
        status: 0,
        call: 0,
        payload_bytes: 0,
        fd_count: 0,
        bulk_bytes: 0,
        payload_crc: 0,
        flags: 0,
        room: None,
    }
    .encode();
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    match system_call(libc::SYS_sendto, [fd as usize, frame.as_ptr() as usize, frame.len(), flags, 0, 0]) {
        Ok(sent) => sent == frame.len(),
        Err(error) => matches!(error, libc::EAGAIN | libc::EINTR),
    }
}

/// Receives at least `least` bytes into the parts, and descriptors; how many, or `None`.
fn receive(
    fd: c_int,
    parts: [(*mut u8, usize); 2],
    least: usize,
    buffers: &mut Buffers,
    tag: Option<u32>,
) -> Option<usize> {
    let mut have = 0;
    while have < least {
        let mut left = have;
        let parts = parts.map(|(to, room)| {
            let skip = left.min(room);
            left -= skip;
            libc::iovec { iov_base: to.wrapping_add(skip).cast(), iov_len: room - skip }
        });
        let mut control = [0_u64; 8];
        // SAFETY: all zeros is a valid message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_CMSG_CLOEXEC as usize;
        match system_call(libc::SYS_recvmsg, [fd as usize, (&raw mut message) as usize, flags, 0, 0, 0]) {
            Ok(0) => return None,
            Ok(got) => {
                have += got;
                buffers.lost_fds |= message.msg_flags & libc::MSG_CTRUNC != 0;
                // SAFETY: the kernel's message.
                unsafe { keep_fds(&message, buffers) };
            }
            Err(libc::EINTR) => {
                if let Some(tag) = tag {
                    wish_for_the_end(fd, tag);
                }
            }
            Err(_) => return None,
        }
    }
    Some(have)
}

unsafe fn keep_fds(message: &libc::msghdr, buffers: &mut Buffers) {
    // SAFETY: as the kernel filled it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return;
        }
        let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
        for at in 0..count {
            let fd = libc::CMSG_DATA(header).cast::<c_int>().add(at).read_unaligned();
            match buffers.fds.get_mut(buffers.fd_count) {
                Some(slot) => {
                    *slot = fd;
                    buffers.fd_count += 1;
                }
                None => table::close_kernel(fd),
            }
        }
    }
}

/// Any number but 0 tells an answer from an unasked message. There is one call at a time, beside
/// those whose answers nobody waits for.
const WAITED_FOR: u64 = 1;
const NOT_WAITED_FOR: u64 = 2;

fn header(
    function: u16,
    payload: &[u8],
    bulk_bytes: u64,
    room: u64,
    passes: bool,
    id: u64,
) -> [u8; HEADER_BYTES] {
    Header {
        kind: Kind::Request,
        service: service::PLUGINS,
        function,
        status: 0,
        call: id,
        payload_bytes: payload.len() as u32,
        fd_count: u8::from(passes).into(),
        bulk_bytes,
        payload_crc: crc32c(payload),
        flags: 0,
        room: Some(room),
    }
    .encode()
}

fn part(pointer: *const c_void, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: pointer.cast_mut(), iov_len: bytes }
}

/// One small call over the socket, without bulk bytes. Descriptors that come with the answer are
/// kept.
pub(crate) fn ask(
    fd: c_int,
    to: (u16, u16),
    words: &[u8],
    buffers: &mut Buffers,
) -> Result<(Header, Vec<u8>), i32> {
    let mut head = header(to.1, words, 0, 0, false, WAITED_FOR);
    if to.0 != service::PLUGINS {
        let plain = Header::decode(&head).map_err(|_| status::MALFORMED)?;
        head = Header { service: to.0, room: None, ..plain }.encode();
    }
    let mut parts = [part(head.as_ptr().cast(), head.len()), part(words.as_ptr().cast(), words.len())];
    if !send(fd, &mut parts) {
        return Err(status::DISCONNECTED);
    }
    let mut head = [0; HEADER_BYTES];
    let none = (std::ptr::null_mut(), 0);
    let got = receive(fd, [(head.as_mut_ptr(), HEADER_BYTES), none], HEADER_BYTES, buffers, None);
    let header = got.and_then(|_| Header::decode(&head).ok()).ok_or(status::DISCONNECTED)?;
    let mut payload = vec![0; header.payload_bytes as usize];
    if !payload.is_empty() {
        let parts = [(payload.as_mut_ptr(), payload.len()), none];
        receive(fd, parts, payload.len(), buffers, None).ok_or(status::DISCONNECTED)?;
    }
    Ok((header, payload))
}

/// The first words on a connection; a transport status on failure. `over`: a go-between is asked
/// for its own connection first.
pub(crate) fn open(fd: c_int, service: &StubService, over: bool) -> Result<PluginHost, i32> {
    // SAFETY: the stub's static string.
    let name = unsafe { CStr::from_ptr(service.name) }.to_string_lossy().into_owned();
    let words = plugins::OpenPlugin {
        plugin: service.id as u16,
        name,
        schema_hash: service.schema_hash,
        layout_hash: service.layout_hash,
        rank: u32::MAX,
        ranks: u32::MAX,
        stay: false,
    }
    .encode();
    let mut buffers = Buffers::new();
    let mut ask_for = |function: u16| ask(fd, (service::PLUGINS, function), &words, &mut buffers);
    let mut answer = if over { Some(ask_for(plugins_fn::OPEN_OVER)?) } else { None };
    // A go-between that passes on each call refuses.
    answer = answer.filter(|(header, _)| header.status == 0);
    let (header, payload) = match answer {
        Some(answer) => answer,
        None => ask_for(plugins_fn::OPEN)?,
    };
    if header.status != 0 {
        return Err(status::NO_SERVICE);
    }
    let opened = plugins::PluginOpened::decode(&payload).map_err(|_| status::MALFORMED)?;
    match opened.status.cast_signed() {
        status::OK if buffers.lost_fds => Ok(PluginHost::Lost),
        status::OK if !buffers.fds().is_empty() => {
            let socket = std::mem::replace(&mut buffers.fds()[0], -1);
            buffers.clear();
            Ok(PluginHost::Over(socket))
        }
        status::OK if opened.elsewhere.is_empty() => Ok(PluginHost::Here),
        status::OK => Ok(PluginHost::Elsewhere(opened.elsewhere)),
        refused => Err(refused),
    }
}

/// Performs a call; returns its transport status, and whether the connection can still be used.
/// `owed`: over a connection to the far side itself, the answers that come before this call's, and
/// that nobody waits for.
///
/// # Safety
///
/// `call` is a stub's.
pub(crate) unsafe fn exchange(
    fd: c_int,
    buffers: &mut Buffers,
    service: &StubService,
    call: &mut StubCall,
    waits: &Waits,
    owed: Option<u32>,
) -> (i32, bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Err(failure) = send_call(fd, buffers, service, call, WAITED_FOR, 0) {
            return failure;
        }
        if let Err(status) = drop_answers(fd, buffers, owed.unwrap_or(0)) {
            return (status, false);
        }
        let sleeps = owed.is_some() && !buffers.awake.wait(&Kernel, cpu_of_peer(fd), || has_come(fd));
        let answer = answer(fd, buffers, call, waits, SMALL_BYTES);
        if sleeps {
            buffers.awake.slept(&Kernel);
        }
        match answer {
            Ok(status) => (status, true),
            Err(status) => (status, false),
        }
    }
}

/// Whether something has come, or the connection has ended.
fn has_come(fd: c_int) -> bool {
    let mut byte = 0_u8;
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT) as usize;
    let looked = [fd as usize, (&raw mut byte) as usize, 1, flags, 0, 0];
    system_call(libc::SYS_recvfrom, looked) != Err(libc::EAGAIN)
}

/// The CPU on which the last message of a TCP peer of this machine was sent.
fn cpu_of_peer(fd: c_int) -> u32 {
    let mut cpu = u32::MAX;
    let mut bytes = size_of_val(&cpu) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_INCOMING_CPU as usize);
    let (value, length) = ((&raw mut cpu) as usize, (&raw mut bytes) as usize);
    let _ = system_call(libc::SYS_getsockopt, [fd as usize, level, option, value, length, 0]);
    cpu
}

/// Sends a call whose answer is received later, by [`receive_later`], and pretends that it was all
/// zeros. `more` calls follow at once.
///
/// # Safety
///
/// `call` is a stub's.
pub(crate) unsafe fn send_first(
    fd: c_int,
    buffers: &mut Buffers,
    service: &StubService,
    call: &mut StubCall,
    more: bool,
) -> (i32, bool) {
    if fd < 0 {
        return (status::DISCONNECTED, false);
    }
    let flags = if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        if let Err(failure) = send_call(fd, buffers, service, call, WAITED_FOR, flags) {
            return failure;
        }
        pretend(buffers, call);
    }
    (status::OK, true)
}

/// Receives the answer of the oldest call that was sent by [`send_first`]; `owed`: behind so many
/// answers that nobody waits for.
///
/// # Safety
///
/// `call` is a stub's, made as when it was sent.
pub(crate) unsafe fn receive_later(
    fd: c_int,
    buffers: &mut Buffers,
    call: &mut StubCall,
    owed: u32,
) -> (i32, bool) {
    if fd < 0 {
        return (status::DISCONNECTED, false);
    }
    if let Err(status) = drop_answers(fd, buffers, owed) {
        return (status, false);
    }
    // SAFETY: the caller's promise.
    match unsafe { answer(fd, buffers, call, &Waits { tag: None }, 0) } {
        Ok(status) => (status, true),
        Err(status) => (status, false),
    }
}

/// An answer of zeros, with no bytes.
///
/// # Safety
///
/// `call` is a stub's.
unsafe fn pretend(buffers: &mut Buffers, call: &mut StubCall) {
    for at in 0..call.out_count as usize {
        // SAFETY: the stub's array.
        unsafe { (*call.outputs.add(at)).bytes = 0 };
    }
    let bytes = (call.reply_bytes_max as usize).min(SMALL_BYTES);
    buffers.answer[..bytes.div_ceil(8)].fill(0);
    call.reply = buffers.answer.as_mut_ptr().cast();
    call.reply_bytes = bytes as u64;
}

/// Sends a call whose answer nobody waits for, and pretends that it was all zeros. `may_rest`: it
/// goes with the next call, if one comes soon; the kernel sends it within a fifth of a second.
///
/// # Safety
///
/// `call` is a stub's.
pub(crate) unsafe fn send_only(
    fd: c_int,
    buffers: &mut Buffers,
    service: &StubService,
    call: &mut StubCall,
    may_rest: bool,
) -> (i32, bool) {
    let flags = if may_rest { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        if let Err(failure) = send_call(fd, buffers, service, call, NOT_WAITED_FOR, flags) {
            return failure;
        }
        pretend(buffers, call);
    }
    (status::OK, true)
}

/// Sends what rests.
pub(crate) fn push(fd: c_int) {
    let on: c_int = 1;
    let (level, option) = (libc::IPPROTO_TCP as usize, libc::TCP_NODELAY as usize);
    let (value, bytes) = ((&raw const on) as usize, size_of_val(&on));
    let _ = system_call(libc::SYS_setsockopt, [fd as usize, level, option, value, bytes, 0]);
}

/// Receives answers that nobody waits for.
pub(crate) fn drop_answers(fd: c_int, buffers: &mut Buffers, count: u32) -> Result<(), i32> {
    for _ in 0..count {
        let mut head = [0; HEADER_BYTES];
        let none = (std::ptr::null_mut(), 0);
        receive(fd, [(head.as_mut_ptr(), HEADER_BYTES), none], HEADER_BYTES, buffers, None)
            .ok_or(status::DISCONNECTED)?;
        let header = Header::decode(&head).map_err(|_| status::MALFORMED)?;
        if header.kind != Kind::Reply || header.call != NOT_WAITED_FOR {
            return Err(status::MALFORMED);
        }
        discard(fd, buffers, u64::from(header.payload_bytes) + header.bulk_bytes)?;
    }
    Ok(())
}

/// Sends a call; or its transport status, and whether the connection can still be used.
///
/// # Safety
///
/// `call` is a stub's.
unsafe fn send_call(
    fd: c_int,
    buffers: &mut Buffers,
    service: &StubService,
    call: &StubCall,
    id: u64,
    flags: c_int,
) -> Result<(), (i32, bool)> {
    // SAFETY: the caller's promise.
    unsafe {
        if call.in_count as usize > SEGMENTS || call.out_count as usize > SEGMENTS {
            return Err((status::TOO_LARGE, true));
        }
        let payload = request(buffers, service, call).ok_or((status::NO_MEMORY, true))?;
        let payload = std::slice::from_raw_parts(payload.0, payload.1);
        let (mut bulk, mut room) = (0, 0);
        let mut parts = [part(std::ptr::null(), 0); SEGMENTS + 2];
        for at in 0..call.in_count as usize {
            let segment = *call.inputs.add(at);
            parts[at + 2] = part(segment.pointer, segment.bytes as usize);
            bulk += segment.bytes;
        }
        for at in 0..call.out_count as usize {
            room += (*call.outputs.add(at)).bytes;
        }
        let passed = (call.fd_count == 1).then(|| *call.fds);
        let head = header(plugins_fn::CALL, payload, bulk, room, passed.is_some(), id);
        parts[0] = part(head.as_ptr().cast(), head.len());
        parts[1] = part(payload.as_ptr().cast(), payload.len());
        let sent = send_with(fd, &mut parts[..call.in_count as usize + 2], passed, flags);
        if sent { Ok(()) } else { Err((status::DISCONNECTED, false)) }
    }
}

/// The call's payload: its head, its segments' sizes, its message.
///
/// # Safety
///
/// `call` is a stub's.
pub(crate) unsafe fn request(
    buffers: &mut Buffers,
    service: &StubService,
    call: &StubCall,
) -> Option<(*const u8, usize)> {
    let sizes = (call.in_count + call.out_count) as usize;
    let bytes = CALL_HEAD_BYTES + sizes * 8 + call.request_bytes as usize;
    let memory = buffers.memory(0, bytes);
    if memory.is_null() {
        return None;
    }
    let mut at = 0;
    let mut put = |from: *const c_void, count: usize| {
        // SAFETY: the memory has room for the head, the sizes and the message, which are put in
        // this order.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), memory.add(at), count) };
        at += count;
    };
    let head = [
        u64::from(service.id) | u64::from(call.function) << 32,
        u64::from(call.in_count) | u64::from(call.out_count) << 32,
        call.reply_bytes_max,
        0,
        call_ids::next(),
    ];
    put(head.as_ptr().cast(), CALL_HEAD_BYTES);
    // SAFETY: the stub's arrays.
    unsafe {
        for index in 0..call.in_count as usize {
            put((&raw const (*call.inputs.add(index)).bytes).cast(), 8);
        }
        for index in 0..call.out_count as usize {
            put((&raw const (*call.outputs.add(index)).bytes).cast(), 8);
        }
        put(call.fixed, call.fixed_bytes as usize);
        for index in 0..call.tail_count as usize {
            let segment = *call.tail.add(index);
            put(segment.pointer, segment.bytes as usize);
            let gap = (segment.bytes as usize).wrapping_neg() & 7;
            put([0_u8; 8].as_ptr().cast(), gap);
        }
    }
    Some((memory, bytes))
}

/// Takes the answer; `Err` if the connection cannot be used any more. `room`: for what comes with
/// its header; 0 where another answer may follow it.
unsafe fn answer(
    fd: c_int,
    buffers: &mut Buffers,
    call: &mut StubCall,
    waits: &Waits,
    room: usize,
) -> Result<i32, i32> {
    let mut head = [0; HEADER_BYTES];
    let small: *mut u8 = buffers.answer.as_mut_ptr().cast();
    let parts = [(head.as_mut_ptr(), HEADER_BYTES), (small, room)];
    let got = receive(fd, parts, HEADER_BYTES, buffers, waits.tag).ok_or(status::DISCONNECTED)?;
    let header = Header::decode(&head).map_err(|_| status::MALFORMED)?;
    if header.kind != Kind::Reply || header.call != WAITED_FOR {
        return Err(status::MALFORMED);
    }
    buffers.offered |= header.flags & OFFERS_SHM != 0;
    // What came after the header: the payload, a part of it, or even bulk bytes.
    let early = got - HEADER_BYTES;
    let bytes = header.payload_bytes as usize;
    let most = ANSWER_HEAD_BYTES + 8 * SEGMENTS + call.reply_bytes_max as usize;
    if bytes > most.max(SMALL_BYTES) {
        return Err(status::TOO_LARGE);
    }
    let payload = if bytes <= SMALL_BYTES {
        small
    } else {
        let large = buffers.memory(1, bytes);
        if large.is_null() {
            return Err(status::NO_MEMORY);
        }
        // SAFETY: no more came than the small buffer holds.
        unsafe { std::ptr::copy_nonoverlapping(small, large, early.min(bytes)) };
        large
    };
    let none = (std::ptr::null_mut(), 0);
    if early < bytes {
        let rest = bytes - early;
        receive(fd, [(payload.wrapping_add(early), rest), none], rest, buffers, None)
            .ok_or(status::DISCONNECTED)?;
    }
    let early_bulk = early.saturating_sub(bytes);
    // SAFETY: `bytes` bytes are there; what came beyond lies in the small buffer behind them.
    unsafe {
        let payload = std::slice::from_raw_parts(payload, bytes);
        header.check_payload(payload).map_err(|_| status::MALFORMED)?;
        if header.status != 0 {
            return if header.bulk_bytes == 0 { Ok(refused(header.status)) } else { Err(status::NO_SERVICE) };
        }
        let early_bulk = std::slice::from_raw_parts(small.wrapping_add(bytes.min(SMALL_BYTES)), early_bulk);
        take(fd, buffers, call, payload, header.bulk_bytes, early_bulk)
    }
}

/// A daemon's error in place of an answer.
pub(crate) fn refused(kind: u32) -> i32 {
    match zazen_core::ErrorKind::from_code(kind) {
        Some(zazen_core::ErrorKind::TooLarge) => status::TOO_LARGE,
        Some(zazen_core::ErrorKind::Unsupported) => status::UNSUPPORTED,
        Some(zazen_core::ErrorKind::Busy) => status::NO_MEMORY,
        Some(zazen_core::ErrorKind::Io) => status::BAD_REPLY,
        _ => status::NO_SERVICE,
    }
}

/// Receives bytes and drops them: the program's memory behind what it gets stays as it is.
fn discard(fd: c_int, buffers: &mut Buffers, mut bytes: u64) -> Result<(), i32> {
    let mut scratch = [0_u8; 4096];
    while bytes > 0 {
        let piece = scratch.len().min(bytes as usize);
        let parts = [(scratch.as_mut_ptr(), piece), (std::ptr::null_mut(), 0)];
        receive(fd, parts, piece, buffers, None).ok_or(status::DISCONNECTED)?;
        bytes -= piece as u64;
    }
    Ok(())
}

unsafe fn take(
    fd: c_int,
    buffers: &mut Buffers,
    call: &mut StubCall,
    payload: &[u8],
    bulk_bytes: u64,
    early_bulk: &[u8],
) -> Result<i32, i32> {
    let Ok((head, sizes, at)) = plugins::AnswerHead::take(payload) else { return Err(status::MALFORMED) };
    let told = head.status.cast_signed();
    if told != status::OK {
        return if bulk_bytes == 0 { Ok(told) } else { Err(told) };
    }
    let total: u64 = plugins::sizes(sizes).fold(0, u64::saturating_add);
    if head.out_count != call.out_count || total > bulk_bytes || early_bulk.len() as u64 > bulk_bytes {
        return Err(status::MALFORMED);
    }
    // A go-between that has shared memory passes on an output's whole room; only if there is one
    // output is its end known.
    if total < bulk_bytes && call.out_count != 1 {
        return Err(status::MALFORMED);
    }
    let mut early = early_bulk;
    for (index, size) in plugins::sizes(sizes).enumerate() {
        // SAFETY: the stub's array, and its memory as large as it says.
        unsafe {
            let segment = &mut *call.outputs.add(index);
            if size > segment.bytes {
                return Err(status::MALFORMED);
            }
            let to = segment.pointer.cast::<u8>();
            let first = early.len().min(size as usize);
            std::ptr::copy_nonoverlapping(early.as_ptr(), to, first);
            early = &early[first..];
            let rest = size as usize - first;
            if rest > 0 {
                let parts = [(to.add(first), rest), (std::ptr::null_mut(), 0)];
                receive(fd, parts, rest, buffers, None).ok_or(status::DISCONNECTED)?;
            }
            segment.bytes = size;
        }
    }
    discard(fd, buffers, bulk_bytes - total - early.len() as u64)?;
    call.reply = payload[at..].as_ptr().cast_mut().cast();
    call.reply_bytes = (payload.len() - at) as u64;
    call.reply_fds = buffers.fds.as_mut_ptr();
    call.reply_fd_count = buffers.fd_count as u32;
    Ok(status::OK)
}
