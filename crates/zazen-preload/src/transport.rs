//! How a call of the generated stubs reaches the posix plug-in. This module implements
//! `zazen_stub.h` for one process; the rest of the library does not know what carries calls.
//!
//! A lane is a connection that carries one call at a time; a process has as many as it has threads
//! in calls. Nothing is allocated for a call whose reply is small, and no thread is started.
//!
//! Invariants: a lane that failed in the middle of a call is closed, so no reply is ever taken for
//! another call's. After a fork the child has lanes and a session of its own. The descriptors of
//! lanes are above those that programs use, and hooks keep programs away from them.

mod lane;
mod lanes;
mod left;
mod manner;
mod moving;

pub(crate) use lanes::{begin_with, is_known, key, move_away, raised, settle};
pub(crate) use left::jump;
pub(crate) use manner::{tagged, without_waiting};
pub(crate) use moving::leave as leave_identity;

use crate::real::system_call;
use crate::rings;
use crate::wire::{self, Buffers, Waits, status};
use crate::{call_ids, cwd, far, heard, lineage, near, state, table};
use lane::{BUSY, FREE, Lane, drop_lane};
use lanes::{KEY, KNOWN, LOWEST, acquire_fresh, lanes, release};
use manner::{Manner, in_manner};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use zazen_plugin_abi::stub::{StubCall, StubService};

/// A process that made this many calls will make more: then shared memory pays.
const CALLS_BEFORE_MEMORY: u32 = 16;

/// Answers that nobody waits for, on one lane at a time: more than one call has files opened, and
/// few enough for what the kernels keep of a connection.
const OWED_MAX: u32 = 64;

/// Calls without waiting that go together with a later one, at most.
const REST_MAX: u32 = 8;

/// Calls that are on their way at once over one connection, at most: so few that neither they nor
/// the answers to writing fill what the kernels keep of a connection, whose ends would wait for
/// each other.
const AT_ONCE_MAX: usize = 32;

thread_local! {
    static STATUS: Cell<i32> = const { Cell::new(0) };
}

/// Makes several calls in their order, without waiting for one's answer before the next is sent:
/// where the far side is another machine, all of them take the time of one. `call` makes the call
/// of that number, twice: its outcome counts the second time, when `done` gets it. All of them
/// read, or all of them write. Whether the connection allows that; else nothing has happened.
pub(crate) fn at_once<T>(
    count: usize,
    mut call: impl FnMut(usize) -> T,
    mut done: impl FnMut(usize, T),
) -> bool {
    if count < 2 || !reaches_the_plug_in() {
        return false;
    }
    heard::before_calls();
    let Ok(lane) = acquire() else { return false };
    // SAFETY: the lane is this thread's.
    if !lane.queues.load(Ordering::Relaxed) || unsafe { (*lane.rings.get()).is_mapped() } {
        release(lane);
        return false;
    }
    lane.stays.store(true, Ordering::Relaxed);
    let mut first = 0;
    while first < count {
        let end = count.min(first + AT_ONCE_MAX);
        for at in first..end {
            let manner = Manner::Send { lane, more: at + 1 < end };
            in_manner(manner, || call(at));
        }
        for at in first..end {
            let manner = Manner::Receive { lane, is_first: at == first };
            done(at, in_manner(manner, || call(at)));
        }
        first = end;
    }
    lane.stays.store(false, Ordering::Relaxed);
    release(lane);
    true
}

/// After fork: a new process, so new lanes and a new session.
pub(crate) fn forget() {
    call_ids::forget();
    left::forget();
    lanes::lower_the_limit();
    for lane in lanes() {
        let fd = lane.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            table::close_kernel(fd);
        }
        // SAFETY: this is the child's only thread.
        unsafe { (*lane.rings.get()).forget() };
        lane.forget_calls();
        lane.pool[1].store(0, Ordering::Relaxed);
        lane.state.store(FREE, Ordering::Release);
    }
    KEY.store(0, Ordering::Release);
    KNOWN.store(0, Ordering::Release);
    moving::forget();
    lineage::settle();
}

/// Goes on with the session of before exec.
pub(crate) fn adopt(key: u64) {
    KEY.store(key, Ordering::Release);
}

/// Whether a descriptor is one of ours, which programs must not touch.
#[inline]
pub(crate) fn owns(fd: c_int) -> bool {
    // Lanes live high: most descriptors are decided by one comparison.
    let lane = || lanes().any(|lane| lane.fd.load(Ordering::Relaxed) == fd);
    (fd >= LOWEST.load(Ordering::Relaxed) && (lane() || moving::carries(fd)))
        || table::keeps(fd)
        || table::is_peer(fd)
}

/// A lane for one call, connected and known to the far side.
fn acquire() -> Result<&'static Lane, i32> {
    if lineage::is_orphan() {
        // Made past fork's handlers: what it inherited, it has not.
        forget();
        cwd::after_fork();
        near::after_fork();
        lanes::begin_anew();
    }
    moving::arrive()?;
    acquire_fresh()
}

/// Connects again if the daemon was started again since the last call, or if this process became
/// another user.
pub(crate) fn look_alive() {
    if (is_known() || lanes::begins_anew())
        && let Ok(lane) = acquire()
    {
        release(lane);
    }
}

/// Whether calls go over TCP to the plug-in's process itself, as far as is known.
pub(crate) fn reaches_the_plug_in() -> bool {
    is_known() && lanes::reaches_the_plug_in()
}

/// See zazen_stub.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_stub_bind(_connection: *mut c_void, service: *const StubService) -> i32 {
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
    service: *const StubService,
    call: *mut StubCall,
) -> i32 {
    // SAFETY: the stub's, for the length of the call.
    let (service, call) = unsafe { (&*service, &mut *call) };
    let manner = manner::take();
    let unawaited = matches!(manner, Manner::Unawaited);
    let lane = match manner {
        Manner::Over(lane) | Manner::Send { lane, .. } | Manner::Receive { lane, .. } => lane,
        Manner::Usual | Manner::Unawaited | Manner::Tagged(_) => {
            heard::before_call(call.function, unawaited);
            match acquire() {
                Ok(lane) => lane,
                Err(status) => return status,
            }
        }
    };
    let waits = Waits { tag: if let Manner::Tagged(tag) = manner { Some(tag) } else { None } };
    let mark = 0;
    left::enter(lane, &mark, waits.tag);
    call.runtime = std::ptr::from_ref(lane).cast_mut().cast();
    // SAFETY: the stub's arrays; the lane is this thread's.
    let (status, whole) = unsafe {
        let (buffers, rings) = (&mut *lane.buffers.get(), &mut *lane.rings.get());
        if let Manner::Send { more, .. } = manner {
            wire::send_first(lane.fd.load(Ordering::Relaxed), buffers, service, call, more)
        } else if let Manner::Receive { is_first, .. } = manner {
            let owed = if is_first { lane.owed.swap(0, Ordering::Relaxed) } else { 0 };
            wire::receive_later(lane.fd.load(Ordering::Relaxed), buffers, call, owed)
        } else
        // A descriptor goes over the socket.
        if call.fd_count == 0
            && !lane.queues.load(Ordering::Relaxed)
            && may_move(lane, buffers)
            && !rings::move_to_memory(lane.fd.load(Ordering::Relaxed), rings, buffers)
        {
            (status::DISCONNECTED, false)
        } else {
            let fd = lane.fd.load(Ordering::Relaxed);
            if rings.is_mapped() {
                rings::exchange_in_memory(fd, rings, buffers, service, call, &waits)
            } else if unawaited && lane.takes_one_more() {
                // With one thread, its next call takes this connection, too. Of many, some go
                // ahead, so that the far side is done with them by then.
                let goes = lane.owed.load(Ordering::Relaxed) % REST_MAX == 0;
                wire::send_only(fd, buffers, service, call, heard::is_alone() && !goes)
            } else {
                let owed = lane.owed.swap(0, Ordering::Relaxed);
                let owed = lane.queues.load(Ordering::Relaxed).then_some(owed);
                wire::exchange(fd, buffers, service, call, &waits, owed)
            }
        }
    };
    // A go-between that has lost its daemon says so; the next call connects again.
    if !whole || status == status::NO_SERVICE {
        drop_lane(lane);
    }
    left::leave(lane);
    heard::after_call();
    status
}

impl Lane {
    /// Whether a call may go without waiting; then it counts.
    fn takes_one_more(&self) -> bool {
        let owed = self.owed.load(Ordering::Relaxed);
        let takes = self.queues.load(Ordering::Relaxed) && owed < OWED_MAX;
        if takes {
            self.owed.store(owed + 1, Ordering::Relaxed);
        }
        takes
    }
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
    if lane.queues.load(Ordering::Relaxed) {
        // Another machine's: it has no such memory, and may yet answer calls that nobody waits for.
        release(lane);
        return None;
    }
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
    let Some(lane) = lanes().find(holds) else { return };
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
pub(crate) unsafe extern "C" fn zazen_stub_end(call: *mut StubCall, status: i32) {
    STATUS.set(status);
    // SAFETY: the stub's; the lane is one of ours, and this thread's until it is released here.
    unsafe {
        let lane = (*call).runtime.cast::<Lane>();
        if lane.is_null() {
            return;
        }
        let lane = &*lane;
        (*lane.buffers.get()).clear();
        if !lane.stays.load(Ordering::Relaxed) {
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

/// The descriptors that are ours.
pub(crate) fn descriptors() -> impl Iterator<Item = c_int> {
    lanes().map(|lane| lane.fd.load(Ordering::Relaxed)).filter(|fd| *fd >= 0).chain(table::all_kept())
}
