//! Streams of forwarded descriptors: libc's streams make system calls of their own, which no hook
//! sees. So the stream of a forwarded descriptor is one of fopencookie's, whose functions are the
//! hooks. libc's fread, fprintf and getline then work on it unchanged.
//!
//! Once one of descriptors 0, 1 and 2 is forwarded, streams that go through the hooks by number
//! replace stdin, stdout and stderr for good. Such a stream is never freed: programs close stdout
//! twice.

use crate::real::{errno, set_errno};
use crate::{data, descriptors};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Streams of forwarded descriptors at once.
const STREAMS_MAX: usize = 4096;

/// A stream of a forwarded descriptor.
pub(crate) struct Known {
    stream: AtomicPtr<libc::FILE>,
    pub(crate) fd: AtomicI32,
}

static STREAMS: [Known; STREAMS_MAX] =
    [const { Known { stream: AtomicPtr::new(std::ptr::null_mut()), fd: AtomicI32::new(-1) } }; STREAMS_MAX];
/// Entries beyond this were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static TAKEN_OVER: AtomicBool = AtomicBool::new(false);
/// The replacements of the standard streams.
pub(crate) static STANDARD: [AtomicPtr<libc::FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut libc::FILE;
    pub(crate) fn __fpending(stream: *mut libc::FILE) -> usize;
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

pub(crate) unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    from: *const c_char,
    count: usize,
) -> isize {
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

pub(crate) fn known(stream: *mut libc::FILE) -> Option<&'static Known> {
    STREAMS[..USED.load(Ordering::Acquire)]
        .iter()
        .find(|known| known.stream.load(Ordering::Acquire) == stream)
}

pub(crate) fn forget(stream: *mut libc::FILE) {
    if let Some(known) = known(stream) {
        known.fd.store(-1, Ordering::Release);
        known.stream.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Which standard stream this is the replacement of.
pub(crate) fn standard(stream: *mut libc::FILE) -> Option<usize> {
    STANDARD.iter().position(|own| !stream.is_null() && own.load(Ordering::Acquire) == stream)
}

/// A stream of a descriptor that goes through the hooks.
pub(crate) fn stream_of(fd: c_int, mode: &CStr) -> *mut libc::FILE {
    // SAFETY: functions that live for ever.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode.as_ptr(), FUNCTIONS) };
    if !stream.is_null() {
        remember(stream, fd);
    }
    stream
}

/// Replaces stdin, stdout and stderr by streams that look up their descriptor at each operation.
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

/// The fields of libc's FILE that say what is buffered for writing. Their offsets are part of its
/// ABI.
#[repr(C)]
struct FileFields {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
    write_at: *mut c_char,
}

/// Moves what `from` has buffered but not yet written to `to`.
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
