//! poll and select. Regular files are always ready; the far side is asked about its sockets.
//!
//! If a program waits for local and far descriptors together, this library asks about both in
//! turns, with pauses that grow to ten milliseconds. So an event is noticed at most that late.

use crate::far::{PollFd, far};
use crate::real::{errno, give, hooks, set_errno, system_call};
use crate::transport::tagged;
use crate::{fault, heard, table};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// Monotonic time.
pub(crate) fn now() -> Duration {
    // SAFETY: all zeros is a valid time.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    let asked = [libc::CLOCK_MONOTONIC as usize, (&raw mut time) as usize, 0, 0, 0, 0];
    let _ = system_call(libc::SYS_clock_gettime, asked);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Asks the kernel about the local ones, for at most `wait`.
fn poll_local(fds: &mut [libc::pollfd], wait: Option<Duration>, mask: *const c_void) -> Result<usize, c_int> {
    let time = wait.map(|wait| libc::timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    });
    let time = time.as_ref().map_or(0, |time| std::ptr::from_ref(time) as usize);
    let arguments = [fds.as_mut_ptr() as usize, fds.len(), time, mask as usize, 8, 0];
    system_call(libc::SYS_ppoll, arguments)
}

/// Asks about the far ones.
fn poll_far(fds: &mut [libc::pollfd], sockets: &mut [PollFd], timeout_ms: c_int) -> Result<(), c_int> {
    let (all, count) = (sockets.as_mut_ptr().cast(), sockets.len() as u32);
    tagged(|tag| far!(px_poll(all, count, timeout_ms, tag)))?;
    let mut answers = sockets.iter();
    for fd in fds.iter_mut().filter(|fd| table::entry(fd.fd).is_some_and(|entry| !entry.is_prompt())) {
        if let Some(answer) = answers.next() {
            fd.revents = answer.revents;
        }
    }
    Ok(())
}

/// Waits until one of the descriptors is ready, at most so long: how many are.
pub(crate) fn wait_for(
    fds: &mut [libc::pollfd],
    wait: Option<Duration>,
    mask: *const c_void,
) -> Result<c_int, c_int> {
    // What lies beyond all time is for ever.
    let until = wait.and_then(|wait| now().checked_add(wait));
    let mut local = fds.to_vec();
    let mut sockets = Vec::new();
    let mut ready = false;
    for (mine, fd) in local.iter_mut().zip(fds.iter_mut()) {
        fd.revents = 0;
        let Some(entry) = table::entry(fd.fd) else { continue };
        mine.fd = -1;
        if entry.is_prompt() {
            fd.revents = fd.events & (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM);
            ready |= fd.revents != 0;
        } else {
            sockets.push(PollFd { id: entry.id(), events: fd.events, revents: 0 });
        }
    }
    let only_far = local.iter().all(|fd| fd.fd < 0) && mask.is_null();
    let mut pause = Duration::from_millis(1);
    loop {
        let left = until.map(|until| until.saturating_sub(now()));
        if !sockets.is_empty() {
            let far_wait = if ready || !only_far { Some(Duration::ZERO) } else { left };
            let milliseconds =
                far_wait.map_or(-1, |wait| wait.as_micros().div_ceil(1000).min(1 << 30) as c_int);
            poll_far(fds, &mut sockets, milliseconds)?;
            ready |= fds.iter().any(|fd| fd.revents != 0);
        }
        if !only_far || sockets.is_empty() {
            let slice = if ready {
                Some(Duration::ZERO)
            } else if sockets.is_empty() {
                left
            } else {
                Some(left.map_or(pause, |left| left.min(pause)))
            };
            poll_local(&mut local, slice, mask)?;
        }
        let mut count = 0;
        for (mine, fd) in local.iter().zip(fds.iter_mut()) {
            if mine.fd >= 0 {
                fd.revents = mine.revents;
            }
            count += c_int::from(fd.revents != 0);
        }
        if count > 0 || until.is_some_and(|until| until <= now()) || (sockets.is_empty() && ready) {
            return Ok(count);
        }
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn involves(fds: &[libc::pollfd]) -> bool {
    table::any() && fds.iter().any(|fd| table::entry(fd.fd).is_some())
}

/// More descriptors than that a process can't have.
const FDS_MAX: u64 = 1 << 20;

/// A program's time limit; EINVAL and EFAULT as the kernel says them.
pub(crate) fn limit<T: Copy>(
    time: *const T,
    parts: impl FnOnce(T) -> (i64, i64),
) -> Result<Option<Duration>, c_int> {
    if time.is_null() {
        return Ok(None);
    }
    if !fault::readable(time, size_of::<T>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's object, as was just looked.
    let (seconds, nanoseconds) = parts(unsafe { *time });
    match (u64::try_from(seconds), u32::try_from(nanoseconds)) {
        (Ok(seconds), Ok(nanoseconds @ ..1_000_000_000)) => Ok(Some(Duration::new(seconds, nanoseconds))),
        _ => Err(libc::EINVAL),
    }
}

unsafe fn slice<'a>(fds: *mut libc::pollfd, count: libc::nfds_t) -> &'a mut [libc::pollfd] {
    // The kernel says what is wrong with the rest.
    if count == 0 || count > FDS_MAX || !fault::writable(fds, count as usize * size_of::<libc::pollfd>()) {
        return &mut [];
    }
    // SAFETY: the program's array.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

hooks! {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        heard::hear();
        if !table::any() || !involves(slice(fds, count)) {
            return next(fds, count, timeout);
        }
        let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
        give(wait_for(slice(fds, count), wait, std::ptr::null()))
    }

    fn ppoll(
        fds: *mut libc::pollfd, count: libc::nfds_t,
        timeout: *const libc::timespec, mask: *const libc::sigset_t,
    ) -> c_int {
        heard::hear();
        if !table::any() || !involves(slice(fds, count)) {
            return next(fds, count, timeout, mask);
        }
        give(limit(timeout, |time| (time.tv_sec, time.tv_nsec))
            .and_then(|wait| wait_for(slice(fds, count), wait, mask.cast())))
    }

    fn select(
        count: c_int, readable: *mut libc::fd_set, writable: *mut libc::fd_set, special: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int {
        heard::hear();
        if !table::any() {
            return next(count, readable, writable, special, timeout);
        }
        // Microseconds may be a million and more here.
        let parts = |time: libc::timeval| {
            let whole = time.tv_sec.checked_add(time.tv_usec.max(0) / 1_000_000);
            (whole.unwrap_or(i64::MAX), time.tv_usec % 1_000_000 * 1000)
        };
        let wait = match limit(timeout, parts) {
            Ok(wait) => wait,
            Err(error) => return give(Err(error)),
        };
        let start = now();
        let outcome = select_by_poll(count, [readable, writable, special], wait, std::ptr::null());
        if let Some(wait) = wait && fault::writable(timeout, size_of::<libc::timeval>()) {
            // Linux says what is left, where the program's object is no constant.
            let time = &mut *timeout;
            let left = wait.saturating_sub(now() - start);
            (time.tv_sec, time.tv_usec) = (left.as_secs() as i64, i64::from(left.subsec_micros()));
        }
        give(outcome)
    }

    fn pselect(
        count: c_int, readable: *mut libc::fd_set, writable: *mut libc::fd_set, special: *mut libc::fd_set,
        timeout: *const libc::timespec, mask: *const libc::sigset_t,
    ) -> c_int {
        heard::hear();
        if !table::any() {
            return next(count, readable, writable, special, timeout, mask);
        }
        give(limit(timeout, |time| (time.tv_sec, time.tv_nsec))
            .and_then(|wait| select_by_poll(count, [readable, writable, special], wait, mask.cast())))
    }
}

/// Words of a descriptor set.
unsafe fn is_in(set: *mut libc::fd_set, fd: c_int) -> bool {
    // SAFETY: the program's set, as large as its count says.
    !set.is_null() && unsafe { *set.cast::<u64>().add(fd as usize / 64) } & 1 << (fd % 64) != 0
}

unsafe fn put(set: *mut libc::fd_set, fd: c_int, on: bool) {
    if set.is_null() {
        return;
    }
    // SAFETY: as above.
    unsafe {
        let word = set.cast::<u64>().add(fd as usize / 64);
        *word = if on { *word | 1 << (fd % 64) } else { *word & !(1 << (fd % 64)) };
    }
}

unsafe fn select_by_poll(
    count: c_int,
    sets: [*mut libc::fd_set; 3],
    wait: Option<Duration>,
    mask: *const c_void,
) -> Result<c_int, c_int> {
    const ASKED: [i16; 3] =
        [libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM, libc::POLLPRI];
    const MEANT: [i16; 3] = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR,
        libc::POLLPRI,
    ];
    let count = u64::try_from(count).map_err(|_| libc::EINVAL)?.min(FDS_MAX) as c_int;
    let bytes = count as usize / 64 * 8 + if count % 64 == 0 { 0 } else { 8 };
    if sets.iter().any(|set| !set.is_null() && !fault::writable(*set, bytes)) {
        return Err(libc::EFAULT);
    }
    let mut fds = Vec::new();
    for fd in 0..count {
        // SAFETY: the program's sets.
        let asked = unsafe { sets.map(|set| is_in(set, fd)) };
        let events = (0..3).filter(|at| asked[*at]).fold(0, |events, at| events | ASKED[at]);
        if events != 0 {
            fds.push(libc::pollfd { fd, events, revents: 0 });
        }
    }
    let before = errno();
    wait_for(&mut fds, wait, mask)?;
    set_errno(before);
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut ready = 0;
    for fd in &fds {
        for (at, set) in sets.iter().enumerate() {
            // SAFETY: the program's sets.
            unsafe {
                let is_ready = is_in(*set, fd.fd) && fd.revents & MEANT[at] != 0;
                ready += c_int::from(is_ready);
                put(*set, fd.fd, is_ready);
            }
        }
    }
    Ok(ready)
}

/// poll of a program that was compiled with _FORTIFY_SOURCE; `room` is the array's size in bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __poll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<libc::pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's array.
    unsafe { poll(fds, count, timeout) }
}

/// The same of ppoll.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<libc::pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's array and objects.
    unsafe { ppoll(fds, count, timeout, mask) }
}
