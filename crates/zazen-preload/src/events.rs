//! epoll of forwarded sockets and FIFOs, which this kernel's epoll does not know.
//!
//! This library keeps what a program asked of them, beside the kernel's own epoll. Waiting asks the
//! far side about them and the kernel about the rest, in turns, as poll does.
//!
//! Invariants: what is kept goes with its descriptor and with its epoll. An edge that was told is
//! told again once it was gone, or once a call said that it would block; input is told as long as
//! there is some, which programs that wait for edges read to its end.

use crate::real::{give, hooks};
use crate::signals::Lock;
use crate::table;
use crate::{heard, poll};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bits that tell that a program can do something only once.
const EDGES: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
/// Bits that poll knows.
const ASKED: u32 = 0x3fff;
/// A wait looks that often for what other threads have added.
const TURN: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Watch {
    epoll: c_int,
    fd: c_int,
    /// The description: the number may be another one's by now.
    id: u32,
    events: u32,
    data: u64,
    /// Edges that were told and not gone since.
    told: u32,
    /// Told once, as was asked.
    off: bool,
}

struct Watches {
    lock: Lock,
    all: UnsafeCell<Vec<Watch>>,
}

// SAFETY: the cell is touched only by who has the lock.
unsafe impl Sync for Watches {}

static WATCHES: Watches = Watches { lock: Lock::new(), all: UnsafeCell::new(Vec::new()) };
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn with<T>(body: impl FnOnce(&mut Vec<Watch>) -> T) -> T {
    let _locked = WATCHES.lock.lock();
    // SAFETY: see Watches.
    let all = unsafe { &mut *WATCHES.all.get() };
    let result = body(all);
    COUNT.store(all.len(), Ordering::Release);
    result
}

/// After fork: a thread that the child does not have may have had them.
pub(crate) fn after_fork() {
    WATCHES.lock.after_fork();
}

#[inline]
fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// A descriptor is about to be closed.
#[inline]
pub(crate) fn closed(fd: c_int) {
    if any() {
        with(|all| all.retain(|watch| watch.epoll != fd && watch.fd != fd));
    }
}

/// All descriptors of a range are about to be closed.
pub(crate) fn closed_many(first: c_uint, last: c_uint) {
    let inside = |fd: c_int| (first..=last).contains(&(fd as c_uint));
    if any() {
        with(|all| all.retain(|watch| !inside(watch.epoll) && !inside(watch.fd)));
    }
}

/// A call on a description said that it would block: it can be told again when it would not.
#[inline]
pub(crate) fn would_block(id: u32) {
    if any() {
        with(|all| all.iter_mut().filter(|watch| watch.id == id).for_each(|watch| watch.told = 0));
    }
}

/// epoll_ctl of a far descriptor.
pub(crate) unsafe fn control(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> Result<c_int, c_int> {
    let entry = table::entry(fd).ok_or(libc::EBADF)?;
    // As the kernel says of files that are always ready.
    if entry.is_prompt() {
        return Err(libc::EPERM);
    }
    // Is it an epoll at all?
    let asked = [epoll as usize, libc::EPOLL_CTL_DEL as usize, fd as usize, 0, 0, 0];
    match crate::real::system_call(libc::SYS_epoll_ctl, asked) {
        Err(libc::ENOENT) | Ok(_) => {}
        Err(error) => return Err(error),
    }
    let changes = operation != libc::EPOLL_CTL_DEL;
    if changes && !crate::fault::readable(event, size_of::<libc::epoll_event>()) {
        return Err(libc::EFAULT);
    }
    let asked = if changes {
        // SAFETY: the program's object; it need not be aligned.
        unsafe { event.read_unaligned() }
    } else {
        libc::epoll_event { events: 0, u64: 0 }
    };
    let watch =
        Watch { epoll, fd, id: entry.id(), events: asked.events, data: asked.u64, told: 0, off: false };
    with(|all| {
        let known =
            all.iter().position(|known| known.epoll == epoll && known.fd == fd && known.id == entry.id());
        match (operation, known) {
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(libc::EEXIST),
            (libc::EPOLL_CTL_ADD, None) => {
                all.push(watch);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD, Some(at)) => {
                all[at] = watch;
                Ok(0)
            }
            (libc::EPOLL_CTL_DEL, Some(at)) => {
                all.remove(at);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => Err(libc::ENOENT),
            _ => Err(libc::EINVAL),
        }
    })
}

fn pollfd(watch: &Watch, events: u32) -> libc::pollfd {
    libc::pollfd { fd: watch.fd, events: (events & ASKED) as i16, revents: 0 }
}

/// What is watched by an epoll now. Edges that are gone can be told again.
fn watched(epoll: c_int) -> Result<Vec<Watch>, c_int> {
    let mut all: Vec<Watch> = with(|all| {
        all.retain(|watch| table::entry(watch.fd).is_some_and(|entry| entry.id() == watch.id));
        all.iter().filter(|watch| watch.epoll == epoll && !watch.off).copied().collect()
    });
    let mut told: Vec<&mut Watch> = all.iter_mut().filter(|watch| watch.told != 0).collect();
    if !told.is_empty() {
        let mut fds: Vec<_> = told.iter().map(|watch| pollfd(watch, watch.told)).collect();
        poll::wait_for(&mut fds, Some(Duration::ZERO), std::ptr::null())?;
        for (watch, fd) in told.iter_mut().zip(fds) {
            watch.told &= fd.revents as u16 as u32;
        }
    }
    Ok(all)
}

/// Waits for far descriptors and for the kernel's. `rest` asks the kernel what of its own is ready.
unsafe fn wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    room: usize,
    time: Option<Duration>,
    mask: *const c_void,
    rest: impl Fn(*mut libc::epoll_event, c_int) -> c_int,
) -> Result<c_int, c_int> {
    if !crate::fault::writable(events, room * size_of::<libc::epoll_event>()) {
        return Err(libc::EFAULT);
    }
    let until = time.and_then(|time| poll::now().checked_add(time));
    loop {
        let watches = watched(epoll)?;
        let mut fds = vec![libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
        // What was told already is no news; HUP and ERR are always told by poll.
        fds.extend(watches.iter().map(|watch| pollfd(watch, watch.events & !watch.told)));
        let left = until.map(|until| until.saturating_sub(poll::now()));
        poll::wait_for(&mut fds, Some(left.map_or(TURN, |left| left.min(TURN))), mask)?;
        let ready: Vec<(Watch, u32)> = watches
            .iter()
            .zip(&fds[1..])
            .map(|(watch, fd)| (*watch, u32::from(fd.revents as u16) & !watch.told))
            .filter(|(_, bits)| *bits != 0)
            .collect();
        let local = fds[0].revents != 0;
        // Neither side keeps the other waiting for ever.
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let first = TURNS.fetch_add(1, Ordering::Relaxed) % 2;
        let for_far = if local { ready.len().min((room + first) / 2) } else { ready.len().min(room) };
        let mut count = 0;
        for (watch, bits) in ready.into_iter().take(for_far) {
            if tell(&watch, bits) {
                // SAFETY: the program's array has that much room.
                unsafe {
                    events.add(count).write_unaligned(libc::epoll_event { events: bits, u64: watch.data })
                };
                count += 1;
            }
        }
        if local && room > count {
            let got = rest(events.wrapping_add(count), (room - count) as c_int);
            if got < 0 && count == 0 {
                return Err(crate::real::errno());
            }
            count += got.max(0) as usize;
        }
        if count > 0 || until.is_some_and(|until| until <= poll::now()) {
            return Ok(count as c_int);
        }
    }
}

/// Notes that bits are told; whether the watch is still there, unchanged.
fn tell(watch: &Watch, bits: u32) -> bool {
    with(|all| {
        let known = all.iter_mut().find(|known| {
            (known.epoll, known.fd, known.id, known.events, known.off)
                == (watch.epoll, watch.fd, watch.id, watch.events, false)
        });
        let Some(known) = known else { return false };
        if watch.events & libc::EPOLLET as u32 != 0 {
            known.told = (watch.told | bits) & EDGES;
        }
        known.off = watch.events & libc::EPOLLONESHOT as u32 != 0;
        true
    })
}

fn watches_far(epoll: c_int) -> bool {
    any() && with(|all| all.iter().any(|watch| watch.epoll == epoll))
}

hooks! {
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
        if table::entry(fd).is_none() {
            return next(epoll, operation, fd, event);
        }
        give(control(epoll, operation, fd, event))
    }

    fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, room: c_int, timeout: c_int) -> c_int {
        heard::hear();
        if !watches_far(epoll) || room <= 0 {
            return next(epoll, events, room, timeout);
        }
        let time = u64::try_from(timeout).ok().map(Duration::from_millis);
        let rest = |events, room| next(epoll, events, room, 0);
        give(wait(epoll, events, room as usize, time, std::ptr::null(), rest))
    }

    fn epoll_pwait(
        epoll: c_int, events: *mut libc::epoll_event, room: c_int, timeout: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int {
        heard::hear();
        if !watches_far(epoll) || room <= 0 {
            return next(epoll, events, room, timeout, mask);
        }
        let time = u64::try_from(timeout).ok().map(Duration::from_millis);
        let rest = |events, room| next(epoll, events, room, 0, std::ptr::null());
        give(wait(epoll, events, room as usize, time, mask.cast(), rest))
    }

    fn epoll_pwait2(
        epoll: c_int, events: *mut libc::epoll_event, room: c_int, timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        heard::hear();
        if !watches_far(epoll) || room <= 0 {
            return next(epoll, events, room, timeout, mask);
        }
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let rest = |events, room| next(epoll, events, room, &raw const none, std::ptr::null());
        give(poll::limit(timeout, |time| (time.tv_sec, time.tv_nsec))
            .and_then(|time| wait(epoll, events, room as usize, time, mask.cast(), rest)))
    }
}
