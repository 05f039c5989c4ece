//! The lanes of a process: connections to the daemon, each for one call at a time, and the session
//! that all of them belong to.

use super::lane::{BUSY, FREE, Lane, drop_lane};
use super::left;
use super::manner::over;
use crate::far;
use crate::real::system_call;
use crate::signals::Lock;
use crate::wire::{self, status};
use crate::{lineage, state, table};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use zazen_forward_api::paths::Text;

/// Lanes that are there from the start, and how many are made at once.
const LANES: usize = 128;
/// A program has 1,024 threads in calls at most.
const BLOCKS_MAX: usize = 7;

/// How often a call asks for the plug-in's process if it ends while the call connects …
const OPEN_TRIES: usize = 1000;
/// … and how long it waits in between: a killed process may take a while to be gone.
const TRY_AGAIN_NS: i64 = 20_000_000;

/// How many connections a call greets over, one after the other: those that a go-between had ready
/// may be of a process that has just ended.
const GREETINGS_MAX: usize = 5;

type Block = [Lane; LANES];

static LANE: Block = [const { Lane::new() }; LANES];
/// Further ones, for programs with more threads in calls: made when they are needed, and kept.
static MORE: [AtomicPtr<Block>; BLOCKS_MAX] = [const { AtomicPtr::new(std::ptr::null_mut()) }; BLOCKS_MAX];

/// How many lanes were ever used: the first ones. A look at another one would only bring its page
/// in, and most programs use one lane at most, in each of their children.
static USED: AtomicUsize = AtomicUsize::new(0);

/// All lanes that were ever used.
pub(super) fn lanes() -> impl Iterator<Item = &'static Lane> {
    all_lanes().take(USED.load(Ordering::Acquire))
}

/// All lanes that there are.
fn all_lanes() -> impl Iterator<Item = &'static Lane> {
    // SAFETY: null, or a block, which stays.
    let more = MORE.iter().map_while(|block| unsafe { block.load(Ordering::Acquire).as_ref() });
    LANE.iter().chain(more.flatten())
}

/// A lane that nobody uses, for the caller to connect.
fn take_unconnected() -> Option<&'static Lane> {
    let mut blocks = 0;
    loop {
        for (at, lane) in all_lanes().enumerate() {
            // Lanes behind those that were used are not connected.
            let is_new = at >= USED.load(Ordering::Acquire);
            if (is_new || lane.fd.load(Ordering::Relaxed) < 0)
                && lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                USED.fetch_max(at + 1, Ordering::AcqRel);
                return Some(lane);
            }
        }
        if !make_more(blocks) {
            return None;
        }
        blocks += 1;
    }
}

/// Makes room for more lanes than so many blocks have; whether there is any.
#[cold]
fn make_more(blocks: usize) -> bool {
    let Some(slot) = MORE.get(blocks) else { return false };
    if !slot.load(Ordering::Acquire).is_null() {
        return true;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let asked = [0, size_of::<Block>(), protection as usize, flags as usize, usize::MAX, 0];
    let Ok(memory) = system_call(libc::SYS_mmap, asked) else { return false };
    let lanes = memory as *mut Lane;
    for at in 0..LANES {
        // SAFETY: memory of that size, which is ours alone; pages are aligned enough.
        unsafe { lanes.add(at).write(Lane::new()) };
    }
    let none = std::ptr::null_mut();
    if slot.compare_exchange(none, lanes.cast(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // Another thread was first.
        let _ = system_call(libc::SYS_munmap, [memory, size_of::<Block>(), 0, 0, 0, 0]);
    }
    true
}

/// The session's key; 0 until the first connection.
pub(super) static KEY: AtomicU64 = AtomicU64::new(0);
/// Whether the far side knows the session already.
pub(super) static KNOWN: AtomicU32 = AtomicU32::new(0);
/// Counts the identities that this process has had.
pub(super) static EPOCH: AtomicU32 = AtomicU32::new(0);

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

/// Whether the far side has heard of this session.
pub(crate) fn is_known() -> bool {
    KNOWN.load(Ordering::Acquire) != 0
}

/// Whether the last connection was one to the plug-in's process on another machine.
static REACHES: AtomicBool = AtomicBool::new(false);

pub(super) fn reaches_the_plug_in() -> bool {
    REACHES.load(Ordering::Relaxed)
}

pub(super) static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);

/// Makes room at a number that a program wants: the lane moves elsewhere.
pub(crate) fn move_away(fd: c_int) {
    for lane in lanes() {
        if lane.fd.load(Ordering::Acquire) == fd
            && let Ok(new) = table::fcntl_kernel(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1)
        {
            lane.fd.store(new, Ordering::Release);
        }
    }
}

/// Does `body` with a higher limit of descriptors, and tells it the program's own: for a moment,
/// and only where the program may raise it. What is opened meanwhile stays open.
fn above_the_limit(body: impl FnOnce(usize) -> Result<c_int, c_int>) -> Result<c_int, c_int> {
    let asked = libc::RLIMIT_NOFILE as usize;
    let swap_limit = |new: *const libc::rlimit64, old: *mut libc::rlimit64| {
        system_call(libc::SYS_prlimit64, [0, asked, new as usize, old as usize, 0, 0])
    };
    // One thread at a time: another one would take the higher limit for the program's.
    let _locked = RAISING.lock();
    // SAFETY: all zeros is a valid limit.
    let mut limit: libc::rlimit64 = unsafe { std::mem::zeroed() };
    let known = swap_limit(std::ptr::null(), &raw mut limit);
    if known.is_err() || limit.rlim_cur >= limit.rlim_max || limit.rlim_cur > HIGHEST_LIMIT {
        return Err(libc::EMFILE);
    }
    let above = limit.rlim_cur.saturating_add(ABOVE).min(limit.rlim_max);
    let higher = libc::rlimit64 { rlim_cur: above, ..limit };
    LIMIT.store(limit.rlim_cur, Ordering::Release);
    let raised = swap_limit(&raw const higher, std::ptr::null_mut());
    let done = raised.and_then(|_| body(limit.rlim_cur as usize));
    let _ = swap_limit(&raw const limit, std::ptr::null_mut());
    LIMIT.store(0, Ordering::Release);
    done
}

/// Whether a thread is in [`above_the_limit`].
static RAISING: Lock = Lock::new();
/// The program's limit meanwhile; else 0.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// After fork: a thread that the child does not have may have raised the limit.
pub(super) fn lower_the_limit() {
    let limit = LIMIT.swap(0, Ordering::AcqRel);
    if limit != 0 {
        // SAFETY: all zeros is a valid limit.
        let mut now: libc::rlimit64 = unsafe { std::mem::zeroed() };
        let asked = libc::RLIMIT_NOFILE as usize;
        if system_call(libc::SYS_prlimit64, [0, asked, 0, (&raw mut now) as usize, 0, 0]).is_ok() {
            now.rlim_cur = limit;
            let _ = system_call(libc::SYS_prlimit64, [0, asked, (&raw const now) as usize, 0, 0, 0]);
        }
    }
    RAISING.after_fork();
}

/// Moves a descriptor above those that programs use: above their limit, where that can be.
pub(crate) fn raised(fd: c_int) -> c_int {
    let copy = |lowest: usize| table::fcntl_kernel(fd, libc::F_DUPFD_CLOEXEC, lowest);
    let high = above_the_limit(copy).or_else(|_| {
        // SAFETY: all zeros is a valid limit.
        let mut limit: libc::rlimit64 = unsafe { std::mem::zeroed() };
        let asked = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
        let _ = system_call(libc::SYS_prlimit64, asked);
        let lowest = (limit.rlim_cur.min(4096) as usize).saturating_sub(LANES + 8).max(10);
        // More lanes than usual: they may be among the program's numbers.
        copy(lowest).or_else(|_| copy(lowest / 2))
    });
    let Ok(high) = high else { return fd };
    table::close_kernel(fd);
    high
}

/// How far above a program's limit descriptors of this library are.
const ABOVE: u64 = 1200;
/// Above a higher limit they would make the kernel's table large.
const HIGHEST_LIMIT: u64 = 4096;

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
    let make = |_| {
        system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])
            .map(|fd| fd as c_int)
    };
    // A program may have all that it may have.
    let fd = raised(match make(0) {
        Err(libc::EMFILE) => above_the_limit(make)?,
        made => made?,
    });
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
    lineage::begin();
    lane.epoch.store(EPOCH.load(Ordering::Acquire), Ordering::Release);
    let mut path = Text::new();
    path.set(state::socket());
    // A daemon that is on this machine says where the plug-in's own process is.
    let mut over = !state::daemon_is_here();
    REACHES.store(false, Ordering::Relaxed);
    let mut is_elsewhere = false;
    for _ in 0..OPEN_TRIES {
        let opened = open(lane, path.as_bytes(), over);
        match opened {
            Ok(wire::PluginHost::Here) => return Ok(()),
            Ok(wire::PluginHost::Over(socket)) => {
                let socket = raised(socket);
                LOWEST.fetch_min(socket, Ordering::AcqRel);
                let go_between = lane.fd.swap(socket, Ordering::AcqRel);
                lane.queues.store(true, Ordering::Relaxed);
                REACHES.store(true, Ordering::Relaxed);
                table::close_kernel(go_between);
                return Ok(());
            }
            _ => drop_lane(lane),
        }
        match opened {
            Err(status::NO_SERVICE | status::DISCONNECTED) if is_elsewhere => {
                // That process has ended, or is about to: the daemon knows its successor.
                pause(TRY_AGAIN_NS);
                path.set(state::socket());
                is_elsewhere = false;
            }
            Err(status) => return Err(status),
            Ok(wire::PluginHost::Elsewhere(there)) => {
                path.set(there.as_bytes());
                is_elsewhere = true;
            }
            Ok(_) => over = false,
        }
    }
    Err(status::NO_SERVICE)
}

/// Connects the lane to that socket and opens the plug-in there.
fn open(lane: &Lane, path: &[u8], over: bool) -> Result<wire::PluginHost, i32> {
    let fd = connect_socket(path).map_err(|_| status::NO_SERVICE)?;
    lane.fd.store(fd, Ordering::Release);
    wire::open(fd, far::service(), over)
}

/// The calling thread waits.
pub(super) fn pause(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // A signal may end it early.
    let _ = system_call(libc::SYS_nanosleep, [(&raw const time) as usize, 0, 0, 0, 0, 0]);
}

/// Whether the other end is there still, as far as is known: it is asked once a second, so that a
/// daemon that was started again is found before a call is lost.
fn lives(lane: &Lane) -> bool {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer; no system call, where the kernel has a vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    let second = now.tv_sec as u32;
    if lane.asked.swap(second, Ordering::Relaxed) == second {
        return true;
    }
    let mut byte = 0_u8;
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT) as usize;
    let fd = lane.fd.load(Ordering::Acquire) as usize;
    match system_call(libc::SYS_recvfrom, [fd, (&raw mut byte) as usize, 1, flags, 0, 0]) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => matches!(error, libc::EAGAIN | libc::EINTR),
    }
}

/// A lane for one call, connected and known to the far side. What the process carries from an
/// earlier identity is not entered yet.
pub(super) fn acquire_fresh() -> Result<&'static Lane, i32> {
    let is_free = |lane: &&Lane| {
        lane.fd.load(Ordering::Relaxed) >= 0
            && lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let lane = lanes().find(is_free).or_else(take_unconnected).ok_or(status::NO_MEMORY)?;
    let mark = 0;
    left::enter(lane, &mark, None);
    let ready = make_ready(lane);
    left::leave(lane);
    ready
}

/// Connects a lane of this thread's, unless it is connected, and makes it known to the far side.
fn make_ready(lane: &'static Lane) -> Result<&'static Lane, i32> {
    if lane.fd.load(Ordering::Acquire) >= 0 {
        if !is_stale(lane) && lives(lane) {
            return Ok(lane);
        }
        drop_lane(lane);
    }
    for _ in 0..GREETINGS_MAX {
        if let Err(status) = connect(lane) {
            release(lane);
            return Err(status);
        }
        if greet(lane) {
            return Ok(lane);
        }
        let was_lost = lane.fd.load(Ordering::Acquire) < 0;
        drop_lane(lane);
        if !was_lost {
            break;
        }
    }
    release(lane);
    Err(status::NO_SERVICE)
}

/// Whether this process has numbers of a session that it has no part in.
static ANEW: AtomicBool = AtomicBool::new(false);

/// The next session is a new one, which knows nothing that this process has open.
pub(crate) fn begin_anew() {
    ANEW.store(true, Ordering::Release);
}

/// Whether the next session is to be a new one.
pub(super) fn begins_anew() -> bool {
    ANEW.load(Ordering::Acquire)
}

/// Says hello over a fresh connection.
fn greet(lane: &'static Lane) -> bool {
    let kind = if is_known() { far::HELLO_JOIN } else { far::HELLO_NEW };
    let mut used = key();
    let mut hello = far::new_hello(kind, used);
    let anew = kind == far::HELLO_NEW && ANEW.swap(false, Ordering::AcqRel);
    if anew {
        hello.token = table::beyond_all();
    }
    // Over this lane, and no handler's call meanwhile: it has none of its own yet.
    let say = |hello: &far::Hello| over(lane, || far::hello(hello, &[]));
    let begin_again = || far::begin_again(|open| over(lane, open));
    let mut said = say(&hello);
    if said.is_ok() && anew {
        begin_again();
    }
    if said == Err(libc::EEXIST) && kind == far::HELLO_NEW {
        // Another thread was first, or a signal's handler.
        said = say(&far::new_hello(far::HELLO_JOIN, key()));
    }
    if said == Err(libc::ESTALE) && kind == far::HELLO_JOIN {
        // A daemon that has forgotten us, or another one. Another thread may be first here, too.
        let _ = KEY.compare_exchange(used, 0, Ordering::AcqRel, Ordering::Acquire);
        used = key();
        let mut hello = far::new_hello(far::HELLO_NEW, used);
        hello.token = table::beyond_all();
        said = say(&hello);
        if said.is_ok() {
            begin_again();
        } else if said == Err(libc::EEXIST) {
            said = say(&far::new_hello(far::HELLO_JOIN, used));
        }
    }
    if said.is_ok() {
        KNOWN.store(1, Ordering::Release);
    } else if anew {
        begin_anew();
    }
    said.is_ok()
}

/// Connects with this hello: for a process that takes something over.
pub(crate) fn begin_with(hello: far::Hello, keep: &[u32]) -> Result<(), c_int> {
    let lane = take_unconnected().ok_or(libc::EMFILE)?;
    let said = || over(lane, || far::hello(&hello, keep));
    let outcome = connect(lane).map_err(|_| libc::EIO).and_then(|()| said());
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

pub(super) fn release(lane: &Lane) {
    if is_stale(lane) {
        drop_lane(lane);
    }
    lane.state.store(FREE, Ordering::Release);
}

/// Before a fork: the far side has done what nobody waited for, so a child gets no part in it.
pub(crate) fn settle() {
    for lane in lanes().filter(|lane| lane.owed.load(Ordering::Relaxed) > 0) {
        if lane.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: the lane is this thread's.
            let buffers = unsafe { &mut *lane.buffers.get() };
            let owed = lane.owed.swap(0, Ordering::Relaxed);
            let fd = lane.fd.load(Ordering::Relaxed);
            wire::push(fd);
            if wire::drop_answers(fd, buffers, owed).is_err() {
                drop_lane(lane);
            }
            lane.state.store(FREE, Ordering::Release);
        }
    }
}
