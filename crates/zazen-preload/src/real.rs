//! The functions that this library stands in front of: libc's, or another preloaded library's.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of `name`, looked up once per `slot`.
pub(crate) fn next(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a string; RTLD_NEXT is meant for this.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // Only a function that this libc doesn't have: whoever calls it could not have been linked.
        std::process::abort();
    }
    slot.store(found, Ordering::Relaxed);
    found
}

/// Defines functions of libc's names. In each body, `next(…)` is the function that stands behind.
macro_rules! hooks {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            #[allow(dead_code, clippy::too_many_arguments)]
            #[inline(always)]
            unsafe fn next($($arg: $type),*) -> $ret {
                static SLOT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    };
                let function = $crate::real::next(&SLOT, NAME);
                // SAFETY: the symbol of this name has this signature.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $ret = std::mem::transmute(function);
                    function($($arg),*)
                }
            }
            // SAFETY: what the caller of the libc function promises.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}

/// Other names of a hook: `new = old(arguments) -> result`.
macro_rules! aliases {
    ($($name:ident = $hook:path, ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: what the caller of the libc function promises.
            unsafe { $hook($($arg),*) }
        }
    )*};
}

pub(crate) use {aliases, hooks};

/// A system call, past every hook.
pub(crate) fn system_call(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: libc's syscall; what the call does with its arguments is for the callers of this
    // function to know.
    unsafe {
        let function: unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> isize =
            std::mem::transmute(next(&SLOT, c"syscall"));
        let result = function(number, a, b, c, d, e, f);
        if result == -1 { Err(errno()) } else { Ok(result as usize) }
    }
}

/// This thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error }
}

/// A result as libc gives it: -1 and errno.
pub(crate) fn give<T: From<i8>>(result: Result<T, c_int>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            set_errno(error);
            T::from(-1)
        }
    }
}
