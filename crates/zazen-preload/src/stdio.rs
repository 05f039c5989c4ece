//! libc's functions that open, close and name streams.

use crate::far::{Place, place};
use crate::real::{aliases, errno, give, hooks, set_errno};
use crate::streams::{
    __fpending, STANDARD, cookie_write, forget, known, standard, stream_of, take_over_standard_streams,
};
use crate::{data, descriptors, dup, open, table};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use zazen_forward_api::paths::Text;

/// What fopen's mode says: open's flags, and the mode for a cookie.
fn parse(mode: *const c_char) -> Option<(c_int, &'static CStr)> {
    // SAFETY: the program's string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let letters = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let plus = letters.contains(&b'+');
    let (flags, cookie) = match (letters.first()?, plus) {
        (b'r', false) => (libc::O_RDONLY, c"r"),
        (b'r', true) => (libc::O_RDWR, c"r+"),
        (b'w', false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, c"w"),
        (b'w', true) => (libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, c"w+"),
        (b'a', false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, c"a"),
        (b'a', true) => (libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, c"a+"),
        _ => return None,
    };
    let exclusive = if letters.contains(&b'x') { libc::O_EXCL } else { 0 };
    let close_on_exec = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some((flags | exclusive | close_on_exec, cookie))
}

/// Opens a far file as a stream.
fn open_stream(dir: c_int, path: *const c_char, mode: *const c_char) -> Result<*mut libc::FILE, c_int> {
    let (flags, cookie) = parse(mode).ok_or(libc::EINVAL)?;
    let fd = open::open_far(dir, path, flags, 0o666)?;
    if flags & libc::O_APPEND != 0 {
        // SAFETY: numbers only.
        unsafe { data::lseek(fd, 0, libc::SEEK_END) };
    }
    // SAFETY: the program's string; the descriptor is new.
    let stream = unsafe { if table::entry(fd).is_some() { stream_of(fd, cookie) } else { fdopen(fd, mode) } };
    if stream.is_null() {
        // SAFETY: a number.
        unsafe { descriptors::close(fd) };
        return Err(libc::ENOMEM);
    }
    Ok(stream)
}

fn give_stream(result: Result<*mut libc::FILE, c_int>) -> *mut libc::FILE {
    result.unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}

hooks! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Place::Local(path)) => next(path, mode),
            Ok(Place::Far(dir, path)) => give_stream(open_stream(dir, path, mode)),
            Err(error) => give_stream(Err(error)),
        }
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        let Some(entry) = table::entry(fd) else { return next(fd, mode) };
        give_stream(open_descriptor(entry, fd, mode))
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE {
        let mut text = Text::new();
        let where_to = place(libc::AT_FDCWD, path, &mut text);
        match where_to {
            Ok(Place::Local(_)) if known(stream).is_none() => next(path, mode, stream),
            Ok(_) => reopen(path, mode, stream),
            Err(error) => give_stream(Err(error)),
        }
    }

    fn fclose(stream: *mut libc::FILE) -> c_int {
        if let Some(at) = standard(stream) {
            return close_standard(at, stream);
        }
        forget(stream);
        next(stream)
    }

    fn fileno(stream: *mut libc::FILE) -> c_int {
        match known(stream) {
            None => next(stream),
            Some(known) => known.fd.load(Ordering::Acquire),
        }
    }

    fn tmpfile() -> *mut libc::FILE {
        let mut text = Text::new();
        match place(libc::AT_FDCWD, c"/tmp".as_ptr(), &mut text) {
            Ok(Place::Far(dir, path)) => {
                let flags = libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL;
                match open::open_far(dir, path, flags, 0o600) {
                    Ok(fd) => fdopen(fd, c"w+".as_ptr()),
                    Err(error) => give_stream(Err(error)),
                }
            }
            _ => next(),
        }
    }
}

fn open_descriptor(entry: table::Entry, fd: c_int, mode: *const c_char) -> Result<*mut libc::FILE, c_int> {
    let (flags, cookie) = parse(mode).ok_or(libc::EINVAL)?;
    let now = crate::far::far!(px_fcntl(entry.id(), libc::F_GETFL, 0))? as c_int;
    let (has, wants) = (now & libc::O_ACCMODE, flags & libc::O_ACCMODE);
    if has != libc::O_RDWR && has != wants {
        return Err(libc::EINVAL);
    }
    if flags & libc::O_APPEND != 0 && now & libc::O_APPEND == 0 {
        crate::far::far!(px_fcntl(entry.id(), libc::F_SETFL, i64::from(now | libc::O_APPEND)))?;
    }
    let stream = stream_of(fd, cookie);
    if stream.is_null() { Err(libc::ENOMEM) } else { Ok(stream) }
}

/// freopen where the old or the new file is forwarded: the same number, a new stream.
unsafe fn reopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE {
    // SAFETY: the program's strings and stream.
    unsafe {
        let Some((flags, cookie)) = parse(mode) else { return give_stream(Err(libc::EINVAL)) };
        let fd = fileno(stream);
        if fd < 0 {
            return give_stream(Err(libc::EBADF));
        }
        libc::fflush(stream);
        if path.is_null() {
            return give_stream(Err(libc::EBADF));
        }
        let new = open::open(path, flags, 0o666);
        if new < 0 {
            return std::ptr::null_mut();
        }
        let close_on_exec = flags & libc::O_CLOEXEC;
        let moved = if new == fd { fd } else { dup::dup3(new, fd, close_on_exec) };
        if new != fd {
            descriptors::close(new);
        }
        if moved < 0 {
            return std::ptr::null_mut();
        }
        // Standard streams go by number already.
        if fd < 3 {
            take_over_standard_streams();
            return STANDARD[fd as usize].load(Ordering::Acquire);
        }
        stream_of(fd, cookie)
    }
}

/// Closes a standard stream's number, but keeps the stream: it may be closed again.
unsafe fn close_standard(at: usize, stream: *mut libc::FILE) -> c_int {
    // SAFETY: one of our streams, which live for ever.
    unsafe {
        let mut failed = libc::ferror(stream) != 0 && __fpending(stream) > 0;
        let error = errno();
        failed |= libc::fflush(stream) != 0;
        let error = if failed { errno() } else { error };
        let closed = descriptors::close(at as c_int);
        if failed {
            set_errno(error);
            return -1;
        }
        closed
    }
}

aliases! {
    fopen64 = fopen, (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    _IO_fdopen = fdopen, (fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    freopen64 = freopen, (path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    fileno_unlocked = fileno, (stream: *mut libc::FILE) -> c_int;
    tmpfile64 = tmpfile, () -> *mut libc::FILE;
}

/// dprintf's bytes, formatted by variadic.c.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_preload_write_all(
    fd: c_int,
    data: *const c_char,
    count: usize,
) -> c_int {
    // SAFETY: the caller's bytes.
    let written = unsafe { cookie_write(fd as usize as *mut c_void, data, count) };
    if written as usize == count { count as c_int } else { give(Err(errno())) }
}

/// Whether a descriptor is forwarded, for variadic.c.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_preload_is_far(fd: c_int) -> c_int {
    c_int::from(table::entry(fd).is_some())
}
