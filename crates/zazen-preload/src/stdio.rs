//! libc's functions that open streams and redirect them.
//!
//! A stream of a far file is libc's own, made for the descriptor that stands for the file; what
//! libc does with it goes through streams.rs.

use crate::far::{Destination, place};
use crate::real::{aliases, errno, give, hooks, set_errno};
use crate::{descriptors, dup, open, real, streams, table};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;
use zazen_forward_api::paths::Text;

/// What fopen's mode says.
struct Mode {
    /// open's flags.
    flags: c_int,
    /// The mode for a stream of a descriptor that is open already: nothing is created or mapped.
    rest: CString,
}

fn parse(mode: *const c_char) -> Result<Mode, c_int> {
    // SAFETY: the program's string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let comma = mode.iter().position(|byte| *byte == b',').unwrap_or(mode.len());
    let (letters, coding) = mode.split_at(comma);
    let plus = letters.contains(&b'+');
    let flags = match (letters.first(), plus) {
        (Some(b'r'), false) => libc::O_RDONLY,
        (Some(b'r'), true) => libc::O_RDWR,
        (Some(b'w'), false) => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        (Some(b'w'), true) => libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
        (Some(b'a'), false) => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        (Some(b'a'), true) => libc::O_RDWR | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(libc::EINVAL),
    };
    let exclusive = if letters.contains(&b'x') { libc::O_EXCL } else { 0 };
    let close_on_exec = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    let kept: Vec<u8> = letters.iter().filter(|byte| !b"xm".contains(byte)).chain(coding).copied().collect();
    let rest = CString::new(kept).map_err(|_| libc::EINVAL)?;
    Ok(Mode { flags: flags | exclusive | close_on_exec, rest })
}

const NOTHING: &CStr = c"/dev/null";

/// Opens a far file as a stream.
fn open_stream(dir: c_int, path: *const c_char, mode: *const c_char) -> Result<*mut libc::FILE, c_int> {
    let parsed = parse(mode)?;
    let fd = open::open_far(dir, path, parsed.flags, 0o666)?;
    // libc's fdopen knows no coding; its fopen does.
    let coded = parsed.rest.to_bytes().contains(&b',');
    // SAFETY: the program's string; the descriptor is new.
    let stream = unsafe { if coded { coded_stream(fd, &parsed) } else { plain_stream(fd, &parsed.rest) } };
    if stream.is_null() {
        let error = errno();
        // SAFETY: a number.
        unsafe { descriptors::close(fd) };
        return Err(error);
    }
    Ok(stream)
}

/// A stream of libc's: what fdopen's hook checks is so.
unsafe fn plain_stream(fd: c_int, mode: &CStr) -> *mut libc::FILE {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's function has this signature; a descriptor and a string of ours.
    unsafe {
        let fdopen: unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE =
            std::mem::transmute(real::next(&SLOT, c"fdopen"));
        fdopen(fd, mode.as_ptr())
    }
}

/// A stream of libc's with the coding that the mode names, moved to `fd`'s file, which is closed.
unsafe fn coded_stream(fd: c_int, mode: &Mode) -> *mut libc::FILE {
    // SAFETY: strings and descriptors of ours.
    unsafe {
        let stream = libc::fopen(NOTHING.as_ptr(), mode.rest.as_ptr());
        if stream.is_null() {
            return stream;
        }
        if dup::dup3(fd, libc::fileno(stream), mode.flags & libc::O_CLOEXEC) < 0 {
            let error = errno();
            libc::fclose(stream);
            set_errno(error);
            return std::ptr::null_mut();
        }
        descriptors::close(fd);
        stream
    }
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
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, mode),
            Ok(Destination::Far(dir, path)) => give_stream(open_stream(dir, path, mode)),
            Err(error) => give_stream(Err(error)),
        }
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        let Some(entry) = table::entry(fd) else { return next(fd, mode) };
        match may_stream(entry, mode) {
            Ok(mode) => next(fd, mode.rest.as_ptr()),
            Err(error) => give_stream(Err(error)),
        }
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE {
        let mut text = Text::new();
        let old = libc::fileno(stream);
        let was_far = table::entry(old).is_some();
        let new = match place(libc::AT_FDCWD, path, &mut text) {
            Ok(Destination::Local(_)) if !was_far => return next(path, mode, stream),
            // The same file once more: libc would open the placeholder.
            Ok(Destination::Local(path)) if path.is_null() => {
                libc::fflush(stream);
                let dir = table::entry(old).map_or(-1, table::FarFile::dir);
                parse(mode).and_then(|mode| {
                    let flags = mode.flags & !(libc::O_CREAT | libc::O_EXCL);
                    Ok((open::open_far(dir, crate::far::EMPTY, flags, 0)?, mode))
                })
            }
            Ok(Destination::Near(path)) if !was_far => return next(path, mode, stream),
            Ok(Destination::Local(path) | Destination::Near(path)) => {
                libc::fflush(stream);
                let _ = descriptors::drop_entry(old);
                return next(path, mode, stream);
            }
            Ok(Destination::Far(dir, path)) => {
                libc::fflush(stream);
                parse(mode).and_then(|mode| Ok((open::open_far(dir, path, mode.flags, 0o666)?, mode)))
            }
            Err(error) => Err(error),
        };
        if was_far {
            let _ = descriptors::drop_entry(old);
        }
        match new {
            // The stream is closed all the same, as if libc had tried.
            Err(error) => {
                next(c"".as_ptr(), mode, stream);
                give_stream(Err(error))
            }
            Ok((fd, mode)) => {
                let result = next(NOTHING.as_ptr(), mode.rest.as_ptr(), stream);
                let moved = if result.is_null() {
                    -1
                } else {
                    dup::dup3(fd, libc::fileno(result), mode.flags & libc::O_CLOEXEC)
                };
                let error = errno();
                descriptors::close(fd);
                if moved < 0 { give_stream(Err(error)) } else { result }
            }
        }
    }

    fn tmpfile() -> *mut libc::FILE {
        let mut text = Text::new();
        match place(libc::AT_FDCWD, c"/tmp".as_ptr(), &mut text) {
            Ok(Destination::Far(dir, path)) => {
                match open::open_far(dir, path, UNNAMED, 0o600) {
                    Ok(fd) => fdopen(fd, c"w+".as_ptr()),
                    Err(error) => give_stream(Err(error)),
                }
            }
            Ok(Destination::Near(path)) => {
                let fd = open::open(path, UNNAMED, 0o600);
                if fd < 0 { std::ptr::null_mut() } else { fdopen(fd, c"w+".as_ptr()) }
            }
            _ => next(),
        }
    }
}

/// How tmpfile's file is opened.
const UNNAMED: c_int = libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL;

/// Whether a far descriptor allows what a stream's mode wants. libc would ask the placeholder.
fn may_stream(entry: table::FarFile, mode: *const c_char) -> Result<Mode, c_int> {
    let mode = parse(mode)?;
    let now = crate::far::far!(px_fcntl(entry.id(), libc::F_GETFL, 0))? as c_int;
    let (has, wants) = (now & libc::O_ACCMODE, mode.flags & libc::O_ACCMODE);
    if has != libc::O_RDWR && has != wants {
        return Err(libc::EINVAL);
    }
    if mode.flags & libc::O_APPEND != 0 && now & libc::O_APPEND == 0 {
        crate::far::far!(px_fcntl(entry.id(), libc::F_SETFL, i64::from(now | libc::O_APPEND)))?;
    }
    Ok(mode)
}

aliases! {
    fopen64 = fopen, (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    _IO_fopen = fopen, (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    setmntent = fopen, (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    __setmntent = fopen, (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    _IO_fdopen = fdopen, (fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    freopen64 = freopen,
        (path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    tmpfile64 = tmpfile, () -> *mut libc::FILE;
}

/// dprintf's bytes, formatted by variadic.c.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_preload_write_all(
    fd: c_int,
    data: *const c_char,
    count: usize,
) -> c_int {
    if streams::write_all(fd, data, count) == count { count as c_int } else { give(Err(errno())) }
}

/// Whether a descriptor is forwarded, for variadic.c.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zazen_preload_is_far(fd: c_int) -> c_int {
    c_int::from(table::entry(fd).is_some())
}
