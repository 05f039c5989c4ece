//! The frame that each function of a plug-in runs in: results in Rust become results and errno in
//! C.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A result, or the errno of a failure.
pub type Outcome<T> = Result<T, c_int>;

/// A whole number that a function of a header returns.
pub trait Answer {
    /// -1.
    const FAILED: Self;
}

impl Answer for i32 {
    const FAILED: i32 = -1;
}

impl Answer for i64 {
    const FAILED: i64 = -1;
}

/// Runs a function's body. An error becomes -1 and errno; so does a panic (EIO). On success errno
/// is 0.
pub fn guarded<T: Answer>(body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO));
    let (value, error) = match outcome {
        Ok(value) => (value, 0),
        Err(error) => (T::FAILED, error),
    };
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
    value
}

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// What a C function returned, or its errno if that is negative.
pub fn checked<T: PartialOrd + From<i8>>(value: T) -> Outcome<T> {
    if value < T::from(0) { Err(errno()) } else { Ok(value) }
}

/// A string argument.
///
/// # Safety
///
/// `argument` is a string that lives as long as the call; the dispatcher checks that.
pub unsafe fn text<'a>(argument: *const c_char) -> &'a CStr {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(argument) }
}
