//! Statuses, the last error's message, and the guard around every call.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use zazen_core::error::ERROR_TABLE;
use zazen_core::shown::shown;
use zazen_core::{Error, ErrorKind, Result};

/// The result of a call: ZAZEN_OK or a negative status. New ones may be added: treat an unknown
/// negative value as an error.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum zazen_status_t {
    /// It worked.
    ZAZEN_OK = 0,
    /// The call asks for something that cannot be: fix the call.
    ZAZEN_INVALID_ARGUMENT = -1,
    /// The named object does not exist.
    ZAZEN_NOT_FOUND = -2,
    /// The caller may not do this with this object.
    ZAZEN_PERMISSION_DENIED = -3,
    /// A different object already has this name or number.
    ZAZEN_CONFLICT = -4,
    /// A disk, budget or quota is full.
    ZAZEN_NO_SPACE = -5,
    /// A daemon, node or backing store does not answer: start it, or wait.
    ZAZEN_UNAVAILABLE = -6,
    /// An answer did not come in time.
    ZAZEN_TIMED_OUT = -7,
    /// Stored bytes do not match their checksum, or a stored record is damaged.
    ZAZEN_CORRUPT = -8,
    /// A peer broke the protocol.
    ZAZEN_PROTOCOL = -9,
    /// The cluster key is missing or wrong.
    ZAZEN_AUTHENTICATION = -10,
    /// A size, count or number is beyond its limit.
    ZAZEN_TOO_LARGE = -11,
    /// In use, or at the limit of callers: try again.
    ZAZEN_BUSY = -12,
    /// This build, file system or peer version cannot do it.
    ZAZEN_UNSUPPORTED = -13,
    /// The source changed after the copy was made.
    ZAZEN_STALE = -14,
    /// The daemon is draining and takes no new work.
    ZAZEN_SHUTTING_DOWN = -15,
    /// The device or the kernel reported a failure.
    ZAZEN_IO = -16,
    /// MPI or the caller's own collectives failed, or each rank is an MPI world of its own.
    ZAZEN_MPI = -17,
    /// The configuration is wrong: fix the file or option that the message names.
    ZAZEN_CONFIG = -18,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
    static LAST_ERRNO: Cell<i32> = const { Cell::new(0) };
}

/// A refused operation on a file: its error, and the kernel's number for it.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    pub(crate) errno: i32,
}

/// As [`guard`], for calls on files: also keeps the kernel's number.
pub(crate) fn guard_files(body: impl FnOnce() -> std::result::Result<(), Refusal>) -> i32 {
    let mut errno = libc::EIO;
    let status = guard(|| {
        body().map_err(|refusal| {
            errno = refusal.errno;
            refusal.error
        })
    });
    if status != 0 {
        LAST_ERRNO.with(|last| last.set(errno));
    }
    status
}

/// What [`guard_files`] kept last on this thread.
pub(crate) fn last_errno() -> i32 {
    LAST_ERRNO.with(Cell::get)
}

/// Runs `body`; returns its status and keeps its message. A panic is a bug in Zazen. It is reported
/// as ZAZEN_IO, and the object in which it happened must be closed.
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> i32 {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => {
            Error::new(ErrorKind::Io, "internal error in libzazen (a bug): close this object and report it")
        }
    };
    let text = shown(&error.to_string());
    LAST_ERROR.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    -(error.kind() as i32)
}

/// The answer of an object, or `otherwise` for NULL or after a panic.
pub(crate) fn ask<T>(otherwise: T, body: impl FnOnce() -> Option<T>) -> T {
    catch_unwind(AssertUnwindSafe(body)).ok().flatten().unwrap_or(otherwise)
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The text of a C string argument; `name` is the argument's.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string that lives as long as the result.
pub(crate) unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's word.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| invalid(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// The same for a string that must be there.
///
/// # Safety
/// As for [`optional_text`].
pub(crate) unsafe fn needed_text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: by the caller's word.
    unsafe { optional_text(text, name) }?.ok_or_else(|| invalid(format!("{name} is NULL; give a string")))
}

/// Describes `status` in a few words. The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_strerror(status: i32) -> *const c_char {
    const TEXTS: [&CStr; 20] = [
        c"success",
        c"invalid argument",
        c"not found",
        c"permission denied",
        c"conflict",
        c"no space",
        c"unavailable",
        c"timed out",
        c"corrupt",
        c"protocol violation",
        c"authentication failed",
        c"too large",
        c"busy",
        c"unsupported",
        c"stale",
        c"shutting down",
        c"input/output error",
        c"MPI",
        c"configuration",
        c"unknown status",
    ];
    const { assert!(TEXTS.len() == ERROR_TABLE.len() + 2) };
    let unknown = TEXTS.len() - 1;
    let at = status.checked_neg().and_then(|code| usize::try_from(code).ok()).unwrap_or(unknown);
    TEXTS[at.min(unknown)].as_ptr()
}

/// The message of the last call that failed on this thread: object, limit and next step. Empty if
/// no call failed. Valid until the next call fails on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// The library's version, such as "0.1.0". The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: the callers pass static strings.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn statuses_are_the_negated_kinds() {
        for row in ERROR_TABLE {
            assert_eq!(text(zazen_strerror(-(row.0 as i32))), row.1);
        }
        assert_eq!(text(zazen_strerror(0)), "success");
        for status in [1, -19, i32::MIN, i32::MAX] {
            assert_eq!(text(zazen_strerror(status)), "unknown status");
        }
        assert_eq!(zazen_status_t::ZAZEN_CONFIG as i32, -(ErrorKind::Config as i32));
        assert_eq!(zazen_status_t::ZAZEN_STALE as i32, -(ErrorKind::Stale as i32));
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let status = guard(|| panic!("expected by this test"));
        assert_eq!(status, -(ErrorKind::Io as i32));
        assert!(text(zazen_last_error()).contains("bug"));
        assert_eq!(ask(7, || panic!("expected by this test")), 7);
    }
}
