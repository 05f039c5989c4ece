//! How a call of the generated stubs reaches the posix plug-in. This module implements
//! `zazen_stub.h` for one process; the rest of the library does not know what carries calls.
//!
//! A lane is a connection that carries one call at a time; a process has as many as it has threads
//! in calls. Nothing is allocated for a call whose reply is small, and no thread is started.
//!
//! Invariants: a lane that failed in the middle of a call is closed, so no reply is ever taken for
//! another call's. After a fork the child has lanes and a session of its own. The descriptors of
//! lanes are above those that programs use, and hooks keep programs away from them.

use crate::far;
use crate::real::{errno, system_call};
use crate::rings::{self, Rings};
use crate::wire::{self, Buffers, Waits};
use crate::{state, table};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use zazen_forward_api::paths::Text;
use zazen_plugin_abi::segment::FUNCTION_BLOCKING;
pub(crate) use zazen_plugin_abi::stub::{Segment, StubCall as Call, StubService as Service};

const LANES: usize = 128;

/// A process that made this many calls will make more: then shared memory pays.
const CALLS_BEFORE_MEMORY: u32 = 16;

const FREE: u32 = 0;
const BUSY: u32 = 1;

use wire::status;

struct Lane {
    state: AtomicU32,
    /// -1 where not connected.
    fd: AtomicI32,
    /// Calls that it carried over the socket.
    calls: AtomicU32,
    /// The identity with which it connected: [`EPOCH`] at that time.
    epoch: AtomicU32,
    /// Where its pool begins and ends, once the program has memory of it.
    pool: [AtomicUsize; 2],
    /// What the call in progress uses.
    buffers: UnsafeCell<Buffers>,
    rings: UnsafeCell<Rings>,
}

// SAFETY: the cells are touched only by the thread that made the lane BUSY.
unsafe impl Sync for Lane {}

static LANE: [Lane; LANES] = [const {
    Lane {
        state: AtomicU32::new(FREE),
        fd: AtomicI32::new(-1),
        calls: AtomicU32::new(0),
        epoch: AtomicU32::new(0),
        pool: [const { AtomicUsize::new(0) }; 2],
        buffers: UnsafeCell::new(Buffers::new()),
        rings: UnsafeCell::new(Rings::new()),
    }
}; LANES];

/// The session's key; 0 until the first connection.
static KEY: AtomicU64 = AtomicU64::new(0);
/// Whether the far side knows the session already.
static KNOWN: AtomicU32 = AtomicU32::new(0);
/// Counts the identities that this process has had.
static EPOCH: AtomicU32 = AtomicU32::new(0);
static NEXT_TAG: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static STATUS: Cell<i32> = const { Cell::new(0) };
    static TAG: Cell<u32> = const { Cell::new(0) };
}

/// A number for a call that may block, so that a signal can end it.
pub(crate) fn tag() -> u32 {
    let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
    TAG.set(tag);
    tag
}

/// The session's key, made up when first asked for.
pub(crate) fn key() -> u64 {
    loop {
        let key = KEY.load(Ordering::Acquire);
        if key != 0 {
            return key;
        }
        let mut random = 0_u64;
        let _ = system_call(libc::SYS_getrandom, [(&raw mut random) as usize, 8, 0, 0, 0, 0]);
        let _ = KEY.compare_exchange(0, random, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// After fork: a new process, so new lanes and a new session.
pub(crate) fn forget() {
    for lane in &LANE {
        let fd = lane.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            table::close_kernel(fd);
        }
        // SAFETY: this is the child's only thread.
        unsafe { (*lane.rings.get()).forget() };
        lane.calls.store(0, Ordering::Relaxed);
        lane.pool[1].store(0, Ordering::Relaxed);
        lane.state.store(FREE, Ordering::Release);
    }
    KEY.store(0, Ordering::Release);
    KNOWN.store(0, Ordering::Release);
    moving::forget();
}

/// Goes on with the session of before exec.
pub(crate) fn adopt(key: u64) {
    KEY.store(key, Ordering::Release);
}

/// Whether the far side has heard of this session.
pub(crate) fn is_known() -> bool {
    KNOWN.load(Ordering::Acquire) != 0
}

/// Whether a descriptor is one of ours, which programs must not touch.
#[inline]
pub(crate) fn owns(fd: c_int) -> bool {
    // Lanes live high: most descriptors are decided by one comparison.
    let lane = || LANE.iter().any(|lane| lane.fd.load(Ordering::Relaxed) == fd);
    (fd >= LOWEST.load(Ordering::Relaxed) && (lane() || moving::carries(fd))) || table::is_peer(fd)
}

static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);

/// Makes room at a number that a program wants: the lane moves elsewhere.
pub(crate) fn move_away(fd: c_int) {
    for lane in &LANE {
        if lane.fd.load(Ordering::Acquire) == fd
            && let Ok(new) = table::fcntl_kernel(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1)
        {
            lane.fd.store(new, Ordering::Release);
        }
    }
}

/// Moves a descriptor above those that programs use.
fn raised(fd: c_int) -> c_int {
    // SAFETY: all zeros is a valid limit.
    let mut limit: libc::rlimit64 = unsafe { std::mem::zeroed() };
    let asked = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    let _ = system_call(libc::SYS_prlimit64, asked);
    let lowest = (limit.rlim_cur.min(4096) as usize).saturating_sub(LANES + 8).max(10);
    let Ok(high) = table::fcntl_kernel(fd, libc::F_DUPFD_CLOEXEC, lowest) else { return fd };
    table::close_kernel(fd);
    high
}

/// The folder of a path that is too long for an address, opened, and a shorter path by its number.
fn shorten(path: &[u8]) -> Result<(c_int, Text), c_int> {
    let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(libc::ECONNREFUSED)?;
    let mut text = Text::new();
    if !text.set(&path[..=slash]) {
        return Err(libc::ENAMETOOLONG);
    }
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let arguments = [libc::AT_FDCWD as usize, text.as_ptr() as usize, flags, 0, 0, 0];
    let folder = system_call(libc::SYS_openat, arguments)? as c_int;
    let mut digits = [0; 10];
    let mut first = digits.len();
    let mut rest = folder;
    while rest > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.set(b"/proc/self/fd/");
    if text.push(&digits[first..]) && text.push(&path[slash..]) {
        return Ok((folder, text));
    }
    table::close_kernel(folder);
    Err(libc::ENAMETOOLONG)
}

fn connect_socket(path: &[u8]) -> Result<c_int, c_int> {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.is_empty() {
        return Err(libc::ECONNREFUSED);
    }
    if path.len() >= address.sun_path.len() {
        let (folder, short) = shorten(path)?;
        let fits = short.as_bytes().len() < address.sun_path.len();
        let connected = if fits { connect_socket(short.as_bytes()) } else { Err(libc::ENAMETOOLONG) };
        table::close_kernel(folder);
        return connected;
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as std::ffi::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let fd = system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])? as c_int;
    let fd = raised(fd);
    let length = size_of_val(&address);
    loop {
        match system_call(libc::SYS_connect, [fd as usize, (&raw const address) as usize, length, 0, 0, 0]) {
            Ok(_) => break,
            Err(libc::EINTR) => {}
            Err(error) => {
                table::close_kernel(fd);
                return Err(error);
            }
        }
    }
    if !is_believed(fd) {
        table::close_kernel(fd);
        return Err(libc::EACCES);
    }
    LOWEST.fetch_min(fd, Ordering::AcqRel);
    Ok(fd)
}

/// Whether whoever listens at the other end is root, this process's user, or the one that it was
/// configured to believe: as the kernel has it from the moment of listening. `zazen_call::believes`
/// has the same rule.
fn is_believed(fd: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    let (value, bytes) = ((&raw mut peer) as usize, (&raw mut length) as usize);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize);
    let asked = system_call(libc::SYS_getsockopt, [fd as usize, level, option, value, bytes, 0]);
    let own = system_call(libc::SYS_geteuid, [0; 6]).map_or(u32::MAX, |uid| uid as u32);
    asked.is_ok()
        && peer.uid != u32::MAX
        && (peer.uid == 0 || peer.uid == own || state::daemon_uid() == Some(peer.uid))
}

/// A connection on which the plug-in is open: the daemon's, or that of the plug-in's own process,
/// whose socket the daemon names.
fn connect(lane: &Lane) -> Result<(), i32> {
    let service = far::service();
    lane.epoch.store(EPOCH.load(Ordering::Acquire), Ordering::Release);
    let mut path = Text::new();
    path.set(state::socket());
    for _ in 0..4 {
        let fd = connect_socket(path.as_bytes()).map_err(|_| status::NO_SERVICE)?;
        lane.fd.store(fd, Ordering::Release);
        match wire::open(fd, service) {
            Ok(wire::Opened::Here) => return Ok(()),
            Ok(wire::Opened::Elsewhere(there)) => {
                path.set(there.as_bytes());
            }
            Err(status) => {
                drop_lane(lane);
                return Err(status);
            }
        }
        drop_lane(lane);
    }
    Err(status::NO_SERVICE)
}

/// A lane for one call, connected and known to the far side.
fn acquire() -> Result<&'static Lane, i32> {
    moving::arrive()?;
    acquire_fresh()
}

/// The same before what the process has open has come along.
fn acquire_fresh() -> Result<&'static Lane, i32> {
    // Connected ones first.
    for wants_connected in [true, false] {
        for lane in &LANE {
            let connected = lane.fd.load(Ordering::Relaxed) >= 0;
            if connected == wants_connected
                && lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                if lane.fd.load(Ordering::Acquire) >= 0 {
                    if !is_stale(lane) {
                        return Ok(lane);
                    }
                    drop_lane(lane);
                }
                if let Err(status) = connect(lane) {
                    release(lane);
                    return Err(status);
                }
                if !greet(lane) {
                    drop_lane(lane);
                    release(lane);
                    return Err(status::NO_SERVICE);
                }
                return Ok(lane);
            }
        }
    }
    Err(status::NO_MEMORY)
}

thread_local! {
    /// The lane that a hello is to go over: this thread's, while it greets.
    static GREETING: Cell<Option<&'static Lane>> = const { Cell::new(None) };
}

/// Says hello over a fresh connection.
fn greet(lane: &'static Lane) -> bool {
    let kind = if is_known() { far::HELLO_JOIN } else { far::HELLO_NEW };
    let hello = far::new_hello(kind, key());
    GREETING.set(Some(lane));
    let mut done = far::hello(&hello, &[]).is_ok();
    if !done && kind == far::HELLO_NEW && errno() == libc::EEXIST {
        // Another thread was first.
        let hello = far::new_hello(far::HELLO_JOIN, key());
        done = far::hello(&hello, &[]).is_ok();
    }
    if !done && errno() == libc::ESTALE && !table::any() {
        // A daemon that has forgotten us, or another one; nothing of ours was there.
        KEY.store(0, Ordering::Release);
        done = far::hello(&far::new_hello(far::HELLO_NEW, key()), &[]).is_ok();
    }
    GREETING.set(None);
    if done {
        KNOWN.store(1, Ordering::Release);
    }
    done
}

mod moving;
pub(crate) use moving::leave as leave_identity;

/// Connects with this hello: for a process that takes something over.
pub(crate) fn begin_with(hello: far::Hello, keep: &[u32]) -> Result<(), c_int> {
    let lane = LANE
        .iter()
        .find(|lane| lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok())
        .ok_or(libc::EMFILE)?;
    let outcome = connect(lane).map_err(|_| libc::EIO).and_then(|()| {
        GREETING.set(Some(lane));
        let outcome = far::hello(&hello, keep);
        GREETING.set(None);
        outcome
    });
    match outcome {
        Ok(()) => KNOWN.store(1, Ordering::Release),
        Err(_) => drop_lane(lane),
    }
    release(lane);
    outcome
}

/// Whether the lane was connected as somebody whom this process is no more.
fn is_stale(lane: &Lane) -> bool {
    lane.epoch.load(Ordering::Acquire) != EPOCH.load(Ordering::Acquire)
}

fn release(lane: &Lane) {
    if is_stale(lane) {
        drop_lane(lane);
    }
    lane.state.store(FREE, Ordering::Release);
}

fn drop_lane(lane: &Lane) {
    // SAFETY: whoever drops a lane has made it BUSY.
    let rings = unsafe { &mut *lane.rings.get() };
    // Memory that the program has stays where it is, though nobody else looks at it any more.
    if lane.pool[1].swap(0, Ordering::Relaxed) == 0 {
        rings.unmap()
    } else {
        rings.forget()
    }
    lane.calls.store(0, Ordering::Relaxed);
    let fd = lane.fd.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        table::close_kernel(fd);
    }
}

/// See zazen_stub.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_stub_bind(_connection: *mut c_void, service: *const Service) -> i32 {
    far::keep_service(service);
    status::OK
}

/// See zazen_stub.h.
///
/// # Safety
///
/// A stub's structures.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_stub_call(
    _connection: *mut c_void,
    service: *const Service,
    call: *mut Call,
) -> i32 {
    // SAFETY: the stub's, for the length of the call.
    let (service, call) = unsafe { (&*service, &mut *call) };
    let lane = match GREETING.get() {
        Some(lane) => lane,
        None => match acquire() {
            Ok(lane) => lane,
            Err(status) => return status,
        },
    };
    call.runtime = std::ptr::from_ref(lane).cast_mut().cast();
    let waits = Waits { tag: (call.flags & FUNCTION_BLOCKING != 0).then(|| TAG.get()) };
    // SAFETY: the stub's arrays; the lane is this thread's.
    let (status, whole) = unsafe {
        let (buffers, rings) = (&mut *lane.buffers.get(), &mut *lane.rings.get());
        // A descriptor goes over the socket.
        if call.fd_count == 0
            && may_move(lane, buffers)
            && !rings::move_to_memory(lane.fd.load(Ordering::Relaxed), rings, buffers)
        {
            (status::DISCONNECTED, false)
        } else {
            let fd = lane.fd.load(Ordering::Relaxed);
            if rings.is_mapped() {
                rings::exchange_in_memory(fd, rings, buffers, service, call, &waits)
            } else {
                wire::exchange(fd, buffers, service, call, &waits)
            }
        }
    };
    if !whole {
        drop_lane(lane);
    }
    status
}

/// Whether it is time to leave the socket: true once.
fn may_move(lane: &Lane, buffers: &Buffers) -> bool {
    let calls = lane.calls.load(Ordering::Relaxed);
    if calls > CALLS_BEFORE_MEMORY || !buffers.offered {
        return false;
    }
    lane.calls.store(calls + 1, Ordering::Relaxed);
    calls == CALLS_BEFORE_MEMORY
}

/// A lane in shared memory, for what is asked of its pool.
fn acquire_in_memory() -> Option<&'static Lane> {
    let lane = acquire().ok()?;
    // SAFETY: the lane is this thread's.
    let (buffers, rings) = unsafe { (&mut *lane.buffers.get(), &mut *lane.rings.get()) };
    if !rings.is_mapped() {
        lane.calls.store(CALLS_BEFORE_MEMORY + 1, Ordering::Relaxed);
        if !rings::move_to_memory(lane.fd.load(Ordering::Relaxed), rings, buffers) {
            drop_lane(lane);
        }
    }
    if rings.is_mapped() {
        let pool = rings.pool_range();
        lane.pool[0].store(pool.start, Ordering::Relaxed);
        lane.pool[1].store(pool.end, Ordering::Release);
        return Some(lane);
    }
    release(lane);
    None
}

/// Memory that is shared with the daemon: what is read into it, or written from it, is not copied
/// on its way. NULL if none is to be had. For programs that know of it: `dlsym(RTLD_DEFAULT,
/// "zazen_forward_allocate")`. A child has no part in it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_forward_allocate(bytes: usize) -> *mut c_void {
    if !state::is_active() {
        return std::ptr::null_mut();
    }
    let Some(lane) = acquire_in_memory() else { return std::ptr::null_mut() };
    // SAFETY: the lane is this thread's.
    let (buffers, rings) = unsafe { (&mut *lane.buffers.get(), &mut *lane.rings.get()) };
    let words = (bytes as u64).to_le_bytes();
    let taken = rings::pool_call(lane.fd.load(Ordering::Relaxed), rings, buffers, &words);
    let address = taken.as_ref().ok().and_then(|span| rings.pool_address(*span));
    buffers.clear();
    if matches!(taken, Err(false)) {
        drop_lane(lane);
    }
    release(lane);
    address.unwrap_or(std::ptr::null_mut())
}

/// Gives back what [`zazen_forward_allocate`] gave, with the bytes that were asked for.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_forward_free(address: *mut c_void, bytes: usize) {
    let wanted = address as usize;
    let holds = |lane: &&Lane| {
        let end = lane.pool[1].load(Ordering::Acquire);
        (lane.pool[0].load(Ordering::Relaxed)..end).contains(&wanted)
    };
    let Some(lane) = LANE.iter().find(holds) else { return };
    // Whoever has the lane is in a call, which may take its time.
    while lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
        let _ = system_call(libc::SYS_sched_yield, [0; 6]);
    }
    // SAFETY: the lane is this thread's.
    let (buffers, rings) = unsafe { (&mut *lane.buffers.get(), &mut *lane.rings.get()) };
    if let Some(at) = rings.pool_offset(address) {
        // What is granted is a multiple of so much.
        let bytes = (bytes as u64).next_multiple_of(64 << 10);
        let words = [at.to_le_bytes(), bytes.to_le_bytes()];
        let fd = lane.fd.load(Ordering::Relaxed);
        let given = rings::pool_call(fd, rings, buffers, words.as_flattened());
        buffers.clear();
        if matches!(given, Err(false)) {
            drop_lane(lane);
        }
    }
    release(lane);
}

/// See zazen_stub.h.
///
/// # Safety
///
/// A stub's structure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_stub_end(call: *mut Call, status: i32) {
    STATUS.set(status);
    // SAFETY: the stub's; the lane is one of ours, and this thread's until it is released here.
    unsafe {
        let lane = (*call).runtime.cast::<Lane>();
        if lane.is_null() {
            return;
        }
        let lane = &*lane;
        (*lane.buffers.get()).clear();
        if !GREETING.get().is_some_and(|greeting| std::ptr::eq(greeting, lane)) {
            release(lane);
        }
    }
}

/// See zazen_stub.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_stub_error() -> i32 {
    STATUS.get()
}

/// See zazen_stub.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_stub_set_default(_connection: *mut c_void) {}

/// The descriptors that are ours; how many.
pub(crate) fn descriptors(into: &mut [c_int]) -> usize {
    let mut count = 0;
    for lane in &LANE {
        let fd = lane.fd.load(Ordering::Relaxed);
        if fd >= 0 && count < into.len() {
            into[count] = fd;
            count += 1;
        }
    }
    count
}
