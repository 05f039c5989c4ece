//! stdio: libc's streams make system calls of their own, which no hook sees. A stream of a forwarded descriptor
//! is therefore one of fopencookie's, whose functions are the hooks; libc's fread, fprintf and getline then work
//! on it untouched.
//!
//! Once one of descriptors 0, 1 and 2 is forwarded, stdin, stdout and stderr are replaced, for good, by streams
//! that go through the hooks by number. Such a stream is never freed: programs close stdout twice.

use crate::far::{Place, place};
use crate::real::{aliases, errno, give, hooks, set_errno};
use crate::{data, descriptors, open, table};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use zazen_forward_api::paths::Text;

/// Streams of forwarded descriptors at once.
const STREAMS_MAX: usize = 4096;

struct Known {
    stream: AtomicPtr<libc::FILE>,
    fd: AtomicI32,
}

static STREAMS: [Known; STREAMS_MAX] =
    [const { Known { stream: AtomicPtr::new(std::ptr::null_mut()), fd: AtomicI32::new(-1) } }; STREAMS_MAX];
/// Entries beyond this were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static TAKEN_OVER: AtomicBool = AtomicBool::new(false);
/// The replacements of the standard streams.
static STANDARD: [AtomicPtr<libc::FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut libc::FILE;
    fn __fpending(stream: *mut libc::FILE) -> usize;
    fn __fpurge(stream: *mut libc::FILE);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

const FUNCTIONS: CookieFunctions =
    CookieFunctions { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };

fn fd_of(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, count: usize) -> isize {
    // SAFETY: libc's buffer.
    unsafe { data::read(fd_of(cookie), to.cast(), count) }
}

unsafe extern "C" fn cookie_write(cookie: *mut c_void, from: *const c_char, count: usize) -> isize {
    let mut done = 0;
    while done < count {
        // SAFETY: libc's buffer.
        let written = unsafe { data::write(fd_of(cookie), from.add(done).cast(), count - done) };
        if written < 0 {
            break;
        }
        done += written as usize;
    }
    // Less than asked for is an error to libc; it takes no negative numbers.
    done as isize
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: libc's object.
    unsafe {
        let result = data::lseek(fd_of(cookie), *offset, whence);
        if result < 0 {
            return -1;
        }
        *offset = result;
    }
    0
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: a number.
    unsafe { descriptors::close(fd_of(cookie)) }
}

fn remember(stream: *mut libc::FILE, fd: c_int) {
    for (at, known) in STREAMS.iter().enumerate() {
        let empty = std::ptr::null_mut();
        if known.stream.compare_exchange(empty, stream, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            known.fd.store(fd, Ordering::Release);
            USED.fetch_max(at + 1, Ordering::AcqRel);
            return;
        }
    }
}

fn known(stream: *mut libc::FILE) -> Option<&'static Known> {
    STREAMS[..USED.load(Ordering::Acquire)]
        .iter()
        .find(|known| known.stream.load(Ordering::Acquire) == stream)
}

fn forget(stream: *mut libc::FILE) {
    if let Some(known) = known(stream) {
        known.fd.store(-1, Ordering::Release);
        known.stream.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Which standard stream this is the replacement of.
fn standard(stream: *mut libc::FILE) -> Option<usize> {
    STANDARD.iter().position(|own| !stream.is_null() && own.load(Ordering::Acquire) == stream)
}

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

/// A stream of a descriptor that goes through the hooks.
fn stream_of(fd: c_int, mode: &CStr) -> *mut libc::FILE {
    // SAFETY: functions that live for ever.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode.as_ptr(), FUNCTIONS) };
    if !stream.is_null() {
        remember(stream, fd);
    }
    stream
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

/// Replaces stdin, stdout and stderr by streams that look, with each operation, where their number leads.
pub(crate) fn take_over_standard_streams() {
    if TAKEN_OVER.swap(true, Ordering::AcqRel) {
        return;
    }
    let before = errno();
    // SAFETY: libc's variables, as a program may set them.
    unsafe {
        let old = [stdin, stdout, stderr];
        for (fd, mode) in [(0, c"r"), (1, c"w"), (2, c"w")] {
            let stream = fopencookie(fd as usize as *mut c_void, mode.as_ptr(), FUNCTIONS);
            if stream.is_null() {
                continue;
            }
            remember(stream, fd);
            STANDARD[fd as usize].store(stream, Ordering::Release);
            match fd {
                0 => stdin = stream,
                1 => {
                    if libc::isatty(1) != 0 {
                        libc::setvbuf(stream, std::ptr::null_mut(), libc::_IOLBF, 0);
                    }
                    hand_over(old[1], stream);
                    stdout = stream;
                }
                _ => {
                    libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
                    hand_over(old[2], stream);
                    stderr = stream;
                }
            }
        }
    }
    set_errno(before);
}

/// The fields of libc's FILE that say what is buffered for writing; their places are part of its ABI.
#[repr(C)]
struct FileFields {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
    write_at: *mut c_char,
}

/// What was printed but not written yet goes where the number leads when it is written.
unsafe fn hand_over(from: *mut libc::FILE, to: *mut libc::FILE) {
    // SAFETY: libc's streams.
    unsafe {
        let pending = __fpending(from);
        if pending > 0 {
            let base = (*from.cast::<FileFields>()).write_base;
            libc::fwrite(base.cast(), 1, pending, to);
            __fpurge(from);
        }
    }
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
        let moved = if new == fd { fd } else { descriptors::dup3(new, fd, close_on_exec) };
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
