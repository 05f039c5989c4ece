//! Sockets of the far side.

use crate::blocking::Waiting;
use crate::entry::answer;
use crate::files::{enter, is_nonblocking};
use crate::session::Session;
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use zazen_forward_api::structures::{Address, PollFd, PxOpened};
use zazen_plugin_sdk::{Outcome, checked, errno};

fn length(address: &Address) -> Outcome<libc::socklen_t> {
    if address.bytes as usize <= address.data.len() { Ok(address.bytes) } else { Err(libc::EINVAL) }
}

fn pointer(address: &Address) -> *const libc::sockaddr {
    address.data.as_ptr().cast()
}

/// Has the kernel fill an address.
fn fill(
    address: &mut Address,
    ask: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> i64,
) -> Outcome<i64> {
    // The kernel wants what a sockaddr_storage is aligned to.
    // SAFETY: all zeros is a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&storage) as libc::socklen_t;
    let got = checked(ask((&raw mut storage).cast(), &raw mut length))?;
    address.bytes = length.min(128);
    // SAFETY: a sockaddr_storage has 128 bytes.
    address.data = unsafe { std::mem::transmute::<libc::sockaddr_storage, [u8; 128]>(storage) };
    Ok(got)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    opened: *mut PxOpened,
) -> c_int {
    answer(|session| {
        // Ports below 1024 and raw sockets would be the daemon's privilege.
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(libc::EAFNOSUPPORT);
        }
        let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if plain != libc::SOCK_STREAM && plain != libc::SOCK_DGRAM {
            return Err(libc::ESOCKTNOSUPPORT);
        }
        // SAFETY: numbers only; the descriptor is new.
        unsafe {
            let fd = checked(libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol))?;
            *opened = enter(session, OwnedFd::from_raw_fd(fd))?;
        }
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_bind(id: u32, address: *const Address) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: the dispatcher's object.
        unsafe {
            let address = &*address;
            checked(libc::bind(description.fd(), pointer(address), length(address)?))
        }
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_listen(id: u32, backlog: c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        checked(unsafe { libc::listen(description.fd(), backlog) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_connect(id: u32, tag: u32, address: *const Address) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        let fd = description.fd();
        // SAFETY: the dispatcher's object.
        let address = unsafe { &*address };
        let (pointer, length) = (pointer(address), length(address)?);
        if is_nonblocking(fd)? {
            // SAFETY: as many bytes as said.
            return checked(unsafe { libc::connect(fd, pointer, length) });
        }
        let waiting = Waiting::begin(session, tag)?;
        set_nonblocking(fd, true)?;
        // SAFETY: as many bytes as said.
        let begun = checked(unsafe { libc::connect(fd, pointer, length) });
        let outcome = match begun {
            Err(libc::EINPROGRESS) => {
                let mut fds = vec![libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                waiting.poll(&mut fds, None).and_then(|_| pending_error(fd))
            }
            other => other,
        };
        set_nonblocking(fd, false)?;
        outcome
    })
}

fn set_nonblocking(fd: RawFd, on: bool) -> Outcome<()> {
    let mut value = c_int::from(on);
    // SAFETY: one int.
    checked(unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut value) }).map(|_| ())
}

/// What became of a connect.
fn pending_error(fd: RawFd) -> Outcome<c_int> {
    let mut error: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: one int and its length.
    checked(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length)
    })?;
    if error == 0 { Ok(0) } else { Err(error) }
}

/// Until when a socket's own time limit lets a call wait.
fn limit(fd: RawFd, option: c_int) -> Option<Instant> {
    // SAFETY: all zeros is a valid timeval; its size is said.
    let time = unsafe {
        let mut time: libc::timeval = std::mem::zeroed();
        let mut length = size_of_val(&time) as libc::socklen_t;
        libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut time).cast(), &raw mut length);
        time
    };
    let limit = Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (!limit.is_zero()).then(|| Instant::now() + limit)
}

/// Runs a socket call: at once, or until it is done if it may block.
fn perform<T>(
    session: &Session,
    fd: RawFd,
    tag: u32,
    (events, option): (i16, c_int),
    flags: c_int,
    mut attempt: impl FnMut() -> Outcome<T>,
) -> Outcome<T> {
    match attempt() {
        Err(libc::EAGAIN) if flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(fd)? => {}
        other => return other,
    }
    Waiting::begin(session, tag)?.until(fd, events, limit(fd, option), attempt)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_accept(
    id: u32,
    tag: u32,
    flags: c_int,
    address: *mut Address,
    opened: *mut PxOpened,
) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        let fd = description.fd();
        // SAFETY: the dispatcher's memory.
        let address = unsafe { &mut *address };
        let attempt = || {
            // Another thread may have taken what was ready: accept itself must not block.
            let waits = !is_nonblocking(fd)?;
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one element.
            if waits && unsafe { libc::poll(&raw mut poll, 1, 0) } == 0 {
                return Err(libc::EAGAIN);
            }
            // SAFETY: fill()'s memory.
            fill(address, |to, length| unsafe {
                libc::accept4(fd, to, length, flags | libc::SOCK_CLOEXEC).into()
            })
        };
        let accepted = perform(session, fd, tag, (libc::POLLIN, libc::SO_RCVTIMEO), 0, attempt)?;
        // SAFETY: new, and ours; the dispatcher's memory.
        unsafe { *opened = enter(session, OwnedFd::from_raw_fd(accepted as RawFd))? };
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_send(
    id: u32,
    tag: u32,
    flags: c_int,
    address: *const Address,
    data: *const c_void,
    count: u64,
) -> i64 {
    answer(|session| {
        let description = session.description(id)?;
        let fd = description.fd();
        // SAFETY: the dispatcher's object, or NULL.
        let address = unsafe { address.as_ref() };
        let (pointer, length) = match address {
            Some(address) => (pointer(address), length(address)?),
            None => (std::ptr::null(), 0),
        };
        let mut done = 0;
        loop {
            let attempt = || {
                // SAFETY: the dispatcher's bytes, all of them counted.
                let sent = unsafe {
                    let from = data.cast::<u8>().add(done).cast();
                    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                    libc::sendto(fd, from, count as usize - done, flags, pointer, length)
                };
                if sent < 0 { Err(errno()) } else { Ok(sent as usize) }
            };
            match perform(session, fd, tag, (libc::POLLOUT, libc::SO_SNDTIMEO), flags, attempt) {
                Ok(sent) => done += sent,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            // A blocking send on a stream takes all.
            if done >= count as usize || flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(fd)? {
                break;
            }
        }
        Ok(done as i64)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_receive(
    id: u32,
    tag: u32,
    flags: *mut c_int,
    address: *mut Address,
    data: *mut c_void,
    count: *mut u64,
) -> i64 {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let room = std::mem::take(&mut *count) as usize;
        answer(|session| {
            let description = session.description(id)?;
            let fd = description.fd();
            let asked = *flags;
            let mut done = 0;
            loop {
                let mut part =
                    libc::iovec { iov_base: data.cast::<u8>().add(done).cast(), iov_len: room - done };
                let mut returned = 0;
                let attempt = || {
                    let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                    let mut message: libc::msghdr = std::mem::zeroed();
                    message.msg_name = (&raw mut storage).cast();
                    message.msg_namelen = size_of_val(&storage) as libc::socklen_t;
                    message.msg_iov = &raw mut part;
                    message.msg_iovlen = 1;
                    let plain = asked & !libc::MSG_WAITALL;
                    let got = libc::recvmsg(fd, &raw mut message, plain | libc::MSG_DONTWAIT);
                    if got < 0 {
                        return Err(errno());
                    }
                    returned = message.msg_flags;
                    (*address).bytes = message.msg_namelen.min(128);
                    (*address).data = std::mem::transmute::<libc::sockaddr_storage, [u8; 128]>(storage);
                    Ok(got)
                };
                let got = perform(session, fd, tag, (libc::POLLIN, libc::SO_RCVTIMEO), asked, attempt);
                let got = match got {
                    Err(_) if done > 0 => 0,
                    other => other?,
                };
                *flags = returned;
                let all =
                    asked & libc::MSG_WAITALL != 0 && asked & (libc::MSG_PEEK | libc::MSG_DONTWAIT) == 0;
                let length = if asked & libc::MSG_TRUNC != 0 { got } else { got.min((room - done) as isize) };
                done += (length as usize).min(room - done);
                if !all || got == 0 || done >= room || is_nonblocking(fd)? {
                    *count = done as u64;
                    return Ok(if asked & libc::MSG_TRUNC != 0 { got as i64 } else { done as i64 });
                }
            }
        })
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_getsockopt(
    id: u32,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    room: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let mut length = std::mem::take(&mut *room) as libc::socklen_t;
        answer(|session| {
            let description = session.description(id)?;
            checked(libc::getsockopt(description.fd(), level, name, value, &raw mut length))?;
            *room = length.into();
            Ok(0)
        })
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_setsockopt(
    id: u32,
    level: c_int,
    name: c_int,
    value: *const c_void,
    count: u64,
) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        let privileged = [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE, libc::SO_MARK, libc::SO_DEBUG];
        if level == libc::SOL_SOCKET && privileged.contains(&name) && zazen_plugin_sdk::caller()?.uid != 0 {
            return Err(libc::EPERM);
        }
        // SAFETY: the dispatcher's bytes.
        checked(unsafe { libc::setsockopt(description.fd(), level, name, value, count as libc::socklen_t) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_sockname(id: u32, peer: c_int, address: *mut Address) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: the dispatcher's memory, fill()'s memory.
        unsafe {
            fill(&mut *address, |to, length| {
                if peer != 0 {
                    libc::getpeername(description.fd(), to, length).into()
                } else {
                    libc::getsockname(description.fd(), to, length).into()
                }
            })?;
        }
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_shutdown(id: u32, how: c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        checked(unsafe { libc::shutdown(description.fd(), how) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_poll(
    sockets: *mut PollFd,
    count: u32,
    timeout_ms: c_int,
    tag: u32,
) -> c_int {
    answer(|session| {
        let sockets = if count == 0 {
            &mut []
        } else {
            // SAFETY: the dispatcher's array.
            unsafe { std::slice::from_raw_parts_mut(sockets, count as usize) }
        };
        let held: Vec<_> = sockets.iter().map(|socket| session.description(socket.id).ok()).collect();
        let mut fds: Vec<libc::pollfd> = sockets
            .iter()
            .zip(&held)
            .map(|(socket, held)| libc::pollfd {
                fd: held.as_ref().map_or(-1, |description| description.fd()),
                events: socket.events,
                revents: 0,
            })
            .collect();
        if timeout_ms == 0 || held.iter().any(Option::is_none) {
            // SAFETY: as many as there are.
            checked(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as u64, 0) })?;
        } else {
            let until = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
            Waiting::begin(session, tag)?.poll(&mut fds, until)?;
        }
        let mut ready = 0;
        for ((socket, held), fd) in sockets.iter_mut().zip(&held).zip(&fds) {
            socket.revents = if held.is_some() { fd.revents } else { libc::POLLNVAL };
            ready += c_int::from(socket.revents != 0);
        }
        Ok(ready)
    })
}
