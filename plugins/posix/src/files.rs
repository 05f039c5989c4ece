//! Opening, reading, writing, and what else is asked of an open description.

use crate::base::Base;
use crate::blocking::{Waiting, patiently};
use crate::entry::answer;
use crate::reach::{self, Object, by_number};
use crate::session::{Description, Session};
use crate::umask::with_umask;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use zazen_forward_api::structures::PxOpened;
use zazen_plugin_sdk::{Outcome, checked, errno, text};

/// Enters a descriptor that was opened for the session.
pub(crate) fn enter(session: &Session, fd: OwnedFd) -> Outcome<PxOpened> {
    enter_description(session, Description::new(fd)?)
}

pub(crate) fn enter_description(session: &Session, description: Description) -> Outcome<PxOpened> {
    let (ino, dev, mode) = (description.ino, description.dev, description.mode);
    Ok(PxOpened { ino, dev, mode, id: session.enter(description)? })
}

fn open(base: &Base, path: &CStr, flags: c_int, mode: u32, mask: u32) -> Outcome<OwnedFd> {
    // O_DIRECT would need aligned buffers here, and the program cannot align those.
    let flags = (flags | libc::O_NOCTTY) & !libc::O_DIRECT;
    if let Some(held) = base.itself(path) {
        return open_again(held, flags);
    }
    let creates = flags & (libc::O_CREAT | libc::O_TMPFILE) != 0;
    let _umask = if creates { Some(with_umask(mask)?) } else { None };
    reach::open(base, path, flags, mode)
}

/// The file of a description once more, as open(2) of `/dev/fd/N` does it.
pub(crate) fn open_again(held: RawFd, flags: c_int) -> Outcome<OwnedFd> {
    let name = by_number(held);
    let flags = flags & !libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a string of ours; the descriptor is new.
    unsafe { Ok(OwnedFd::from_raw_fd(checked(libc::open64(name.as_ptr(), flags, 0))?)) }
}

/// The same without waiting: EINPROGRESS if another process has a lease on the file.
fn open_now(base: &Base, path: &CStr, flags: c_int, mode: u32, mask: u32) -> Outcome<OwnedFd> {
    if flags & (libc::O_NONBLOCK | libc::O_PATH) != 0 {
        return open(base, path, flags, mode, mask);
    }
    let fd = open(base, path, flags | libc::O_NONBLOCK, mode, mask)
        .map_err(|error| if error == libc::EAGAIN { libc::EINPROGRESS } else { error })?;
    may_block_from_now_on(fd.as_raw_fd(), flags)?;
    Ok(fd)
}

/// `flags`: what it was opened with but for O_NONBLOCK.
fn may_block_from_now_on(fd: RawFd, flags: c_int) -> Outcome<()> {
    let flags = flags & !(libc::O_NONBLOCK | libc::O_DIRECT);
    // SAFETY: numbers only.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(|_| ())
}

/// Whether opening would wait for another end, as a FIFO does. This is a guess without a walk
/// within the exports, because the open itself checks again.
fn may_wait(base: &Base, path: &CStr, flags: c_int) -> Outcome<bool> {
    let never = libc::O_NONBLOCK | libc::O_PATH | libc::O_DIRECTORY;
    if flags & never != 0 || flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Ok(false);
    }
    // SAFETY: all zeros is a valid stat; a path that lives for the call.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
        let itself = if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        let found = libc::fstatat64(base.fd(path)?, path.as_ptr(), &raw mut stat, follow | itself);
        Ok(found == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO)
    }
}

/// Whether open(2) would have waited for the other end of this FIFO. This open did not, so its
/// descriptor is a reader by now, and a writer that waited goes on. The writer must find this
/// reader, and no other: a later one would not learn of the writer's end
/// ([`Session::keep_reader`]).
fn waits_for_a_writer(description: &Description, flags: c_int) -> bool {
    flags & (libc::O_NONBLOCK | libc::O_PATH) == 0
        && flags & libc::O_ACCMODE == libc::O_RDONLY
        && description.mode & libc::S_IFMT == libc::S_IFIFO
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_open(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    mask: u32,
    opened: *mut PxOpened,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let description = opened_now(session, dir, path, flags, mode, mask)?;
        let entered = enter_description(session, description)?;
        // SAFETY: the dispatcher's memory.
        unsafe { *opened = entered };
        Ok(0)
    })
}

/// Opens without waiting: EINPROGRESS where open(2) may wait.
pub(crate) fn opened_now(
    session: &Session,
    dir: c_int,
    path: &CStr,
    flags: c_int,
    mode: u32,
    mask: u32,
) -> Outcome<Description> {
    let base = Base::new(session, dir)?;
    let description = match open_now(&base, path, flags, mode, mask) {
        // A FIFO without a reader, unless it is a file that cannot be opened at all.
        Err(libc::ENXIO) if may_wait(&base, path, flags)? => return Err(libc::EINPROGRESS),
        fd => Description::new(fd?)?,
    };
    if waits_for_a_writer(&description, flags) {
        session.keep_reader((dir, path.to_owned(), flags), description);
        return Err(libc::EINPROGRESS);
    }
    Ok(description)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_open_wait(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    mask: u32,
    tag: u32,
    opened: *mut PxOpened,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        let waiting = Waiting::begin(session, tag)?;
        let attempt = || open(&base, path, flags | libc::O_NONBLOCK, mode, mask);
        let description = match session.take_reader(&(dir, path.to_owned(), flags)) {
            Some(fifo) => fifo,
            None => Description::new(patiently(&waiting, || match attempt() {
                // A FIFO without a reader.
                Err(libc::ENXIO) => Err(libc::EAGAIN),
                other => other,
            })?)?,
        };
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            wait_for_a_writer(&waiting, description.fd())?;
        }
        may_block_from_now_on(description.fd(), flags)?;
        let entered = enter_description(session, description)?;
        // SAFETY: the dispatcher's memory.
        unsafe { *opened = entered };
        Ok(0)
    })
}

/// Waits until a FIFO has a writer, or had one. Nothing reports a writer that has not written yet,
/// so this looks again and again.
fn wait_for_a_writer(waiting: &Waiting<'_>, fifo: RawFd) -> Outcome<()> {
    const LONGEST: Duration = Duration::from_millis(50);
    let (_end, scratch) = pipe()?;
    let mut pause = Duration::from_millis(1);
    loop {
        // A copy of the first byte: EAGAIN where a writer has written none, 0 where there is none.
        // SAFETY: descriptors of ours and numbers.
        let copied = unsafe { libc::tee(fifo, scratch.as_raw_fd(), 1, libc::SPLICE_F_NONBLOCK) };
        if copied > 0 || copied < 0 && errno() == libc::EAGAIN {
            return Ok(());
        }
        let mut fds = vec![libc::pollfd { fd: fifo, events: libc::POLLIN, revents: 0 }];
        if waiting.poll(&mut fds, Some(Instant::now() + pause))? {
            return Ok(());
        }
        pause = (pause * 2).min(LONGEST);
    }
}

/// A pipe's ends, for reading and for writing.
fn pipe() -> Outcome<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: room for both.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: new, and nobody else's.
    unsafe { Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))) }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_open_direct(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    mask: u32,
    fd: *mut c_int,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        if may_wait(&base, path, flags)? {
            return Err(libc::EINPROGRESS);
        }
        let opened = open_now(&base, path, flags, mode, mask)?;
        // SAFETY: the dispatcher's memory; the host closes what it sent.
        unsafe { *fd = opened.into_raw_fd() };
        Ok(0)
    })
}

/// Bytes moved, as a result.
fn moved(count: isize) -> Outcome<i64> {
    if count < 0 { Err(errno()) } else { Ok(count as i64) }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_read(
    id: u32,
    offset: i64,
    flags: c_int,
    data: *mut c_void,
    count: *mut u64,
) -> i64 {
    // SAFETY: the dispatcher's memory: as much room as count says; on failure nothing comes back.
    unsafe {
        let room = std::mem::take(&mut *count);
        answer(|session| {
            let description = session.description(id)?;
            let got = read_at(description.fd(), offset, flags, data, room as usize)?;
            *count = got as u64;
            Ok(got)
        })
    }
}

/// # Safety
///
/// `data` has room for `room` bytes.
unsafe fn read_at(fd: RawFd, offset: i64, flags: c_int, data: *mut c_void, room: usize) -> Outcome<i64> {
    // SAFETY: the caller's room.
    unsafe {
        moved(match (offset, flags) {
            (-1, 0) => libc::read(fd, data, room),
            (0.., 0) => libc::pread64(fd, data, room, offset),
            _ => {
                let part = libc::iovec { iov_base: data, iov_len: room };
                libc::preadv2(fd, &raw const part, 1, offset, flags)
            }
        })
    }
}

/// # Safety
///
/// `data` has `count` bytes.
unsafe fn write_at(fd: RawFd, offset: i64, flags: c_int, data: *const c_void, count: usize) -> Outcome<i64> {
    // SAFETY: the caller's bytes.
    unsafe {
        moved(match (offset, flags) {
            (-1, 0) => libc::write(fd, data, count),
            (0.., 0) => libc::pwrite64(fd, data, count, offset),
            _ => {
                let part = libc::iovec { iov_base: data.cast_mut(), iov_len: count };
                libc::pwritev2(fd, &raw const part, 1, offset, flags)
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
pub(crate) unsafe extern "C" fn px_write(
    id: u32,
    offset: i64,
    flags: c_int,
    data: *const c_void,
    count: u64,
) -> i64 {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: the dispatcher's memory.
        unsafe { write_at(description.fd(), offset, flags, data, count as usize) }
    })
}

/// Whether the description was asked not to block.
pub(crate) fn is_nonblocking(fd: RawFd) -> Outcome<bool> {
    // SAFETY: numbers only.
    Ok(checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_NONBLOCK != 0)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_read_wait(id: u32, tag: u32, data: *mut c_void, count: *mut u64) -> i64 {
    // SAFETY: as in px_read.
    unsafe {
        let room = std::mem::take(&mut *count);
        answer(|session| {
            let description = session.description(id)?;
            let fd = description.fd();
            let attempt = || attempt_read(&description, data, room as usize);
            let got = if is_nonblocking(fd)? && !is_socket(&description) {
                // It does not block anyway. A FIFO that never had a writer is at its end, and not
                // ready.
                read_at(fd, -1, 0, data, room as usize)?
            } else if is_nonblocking(fd)? {
                attempt()?
            } else {
                match attempt() {
                    Err(libc::EAGAIN) => {
                        Waiting::begin(session, tag)?.until(fd, libc::POLLIN, None, attempt)?
                    }
                    other => other?,
                }
            };
            *count = got as u64;
            Ok(got)
        })
    }
}

fn is_socket(description: &Description) -> bool {
    description.mode & libc::S_IFMT == libc::S_IFSOCK
}

/// # Safety
///
/// `data` has room for `room` bytes.
unsafe fn attempt_read(description: &Description, data: *mut c_void, room: usize) -> Outcome<i64> {
    // SAFETY: the caller's room.
    unsafe {
        if is_socket(description) {
            return moved(libc::recv(description.fd(), data, room, libc::MSG_DONTWAIT));
        }
        match read_at(description.fd(), -1, libc::RWF_NOWAIT, data, room) {
            // Not every file can be asked so: then only a ready one is read.
            Err(libc::EOPNOTSUPP) if !is_ready(description.fd(), libc::POLLIN) => Err(libc::EAGAIN),
            Err(libc::EOPNOTSUPP) => read_at(description.fd(), -1, 0, data, room),
            other => other,
        }
    }
}

/// # Safety
///
/// `data` has `count` bytes.
unsafe fn attempt_write(description: &Description, data: *const c_void, count: usize) -> Outcome<i64> {
    let fd = description.fd();
    // SAFETY: the caller's bytes.
    unsafe {
        if is_socket(description) {
            return moved(libc::send(fd, data, count, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL));
        }
        match write_at(fd, -1, libc::RWF_NOWAIT, data, count) {
            Err(libc::EOPNOTSUPP) if !is_ready(fd, libc::POLLOUT) => Err(libc::EAGAIN),
            Err(libc::EOPNOTSUPP) => write_at(fd, -1, 0, data, count),
            other => other,
        }
    }
}

fn is_ready(fd: RawFd, events: i16) -> bool {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one element.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_write_wait(id: u32, tag: u32, data: *const c_void, count: u64) -> i64 {
    answer(|session| {
        let description = session.description(id)?;
        let fd = description.fd();
        // SAFETY: the dispatcher's memory, all of it counted.
        let attempt = |done: usize| unsafe {
            attempt_write(&description, data.cast::<u8>().add(done).cast(), count as usize - done)
        };
        if is_nonblocking(fd)? {
            return attempt(0);
        }
        let waiting = Waiting::begin(session, tag)?;
        let mut done = 0;
        // A blocking write ends when all is written; if it is interrupted, with what was.
        while done < count as usize {
            match waiting.until(fd, libc::POLLOUT, None, || attempt(done)) {
                Ok(0) => break,
                Ok(more) => done += more as usize,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done as i64)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_seek(id: u32, offset: i64, whence: c_int) -> i64 {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        checked(unsafe { libc::lseek64(description.fd(), offset, whence) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_copy(
    from: u32,
    from_offset: *mut i64,
    to: u32,
    to_offset: *mut i64,
    count: u64,
) -> i64 {
    answer(|session| {
        let (from, to) = (session.description(from)?, session.description(to)?);
        // SAFETY: the dispatcher's memory.
        unsafe {
            let here = |offset: *mut i64| if *offset < 0 { std::ptr::null_mut() } else { offset };
            moved(libc::copy_file_range(
                from.fd(),
                here(from_offset),
                to.fd(),
                here(to_offset),
                count as usize,
                0,
            ))
        }
    })
}

/// See posix.h: 0 fsync, 1 fdatasync, 2 syncfs.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_sync(id: u32, what: c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        checked(unsafe {
            match what {
                0 => libc::fsync(description.fd()),
                1 => libc::fdatasync(description.fd()),
                _ => libc::syncfs(description.fd()),
            }
        })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_truncate(dir: c_int, path: *const c_char, size: i64) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        match Object::new(&base, path, true)? {
            // SAFETY: numbers only.
            Object::Held(fd) => checked(unsafe { libc::ftruncate64(fd, size) }),
            Object::Named(fd) => {
                // SAFETY: a path that lives for the call.
                checked(unsafe { libc::truncate64(by_number(fd.as_raw_fd()).as_ptr(), size) })
            }
        }
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_allocate(id: u32, mode: c_int, offset: i64, size: i64) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        checked(unsafe { libc::fallocate64(description.fd(), mode, offset, size) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_entries(id: u32, data: *mut c_void, count: *mut u64) -> i64 {
    // SAFETY: as in px_read.
    unsafe {
        let room = std::mem::take(&mut *count);
        answer(|session| {
            let description = session.description(id)?;
            let got = libc::syscall(libc::SYS_getdents64, description.fd(), data, room);
            let got = moved(got as isize)?;
            *count = got as u64;
            Ok(got)
        })
    }
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_fcntl(id: u32, command: c_int, argument: i64) -> i64 {
    answer(|session| {
        let description = session.description(id)?;
        match command {
            libc::F_GETFL | libc::F_SETFL | libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => {}
            libc::F_ADD_SEALS | libc::F_GET_SEALS => {}
            // Owners, signals, leases and notifications are between a process and its own kernel.
            _ => return Err(libc::EINVAL),
        }
        // Signals for readiness would go to the daemon.
        let argument = if command == libc::F_SETFL {
            argument & !i64::from(libc::O_ASYNC | libc::O_DIRECT)
        } else {
            argument
        };
        // SAFETY: these commands take a number.
        checked(i64::from(unsafe { libc::fcntl(description.fd(), command, argument) }))
    })
}

const FS_IOC_GETFLAGS: u64 = 0x8008_6601;
const FS_IOC_SETFLAGS: u64 = 0x4008_6602;

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_ioctl(id: u32, request: u64, argument: *mut u64) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        match request {
            libc::FIONREAD | libc::FIONBIO | libc::TIOCOUTQ | FS_IOC_GETFLAGS | FS_IOC_SETFLAGS => {}
            // What else there is takes memory of a size that only the driver knows.
            _ => return Err(libc::ENOTTY),
        }
        // SAFETY: these requests take at most 8 bytes, which the dispatcher holds.
        checked(unsafe { libc::ioctl(description.fd(), request, argument) })
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_advise(id: u32, offset: i64, size: i64, advice: c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: numbers only.
        match unsafe { libc::posix_fadvise64(description.fd(), offset, size, advice) } {
            0 => Ok(0),
            error => Err(error),
        }
    })
}
