//! Calls of the posix plug-in (`plugins/posix/posix.h`): its generated client, with results that
//! tell how a call failed.
//!
//! The supervisor of `zazen run --seccomp` and the mounts of forwarded folders use it. A call goes
//! over the link of its thread ([`zazen_stub::ffi::through`]).

use zazen_plugin_abi::status;
pub use zazen_stub::{Address, Link, Settings, ffi};

#[allow(missing_docs, dead_code, unreachable_pub, clippy::all)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/posix_raw.rs"));
}
pub use stubs::raw;

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The plug-in refused it, with this error number.
    Errno(i32),
    /// The plug-in cannot be reached. The call has not been made.
    Unreachable,
    /// The plug-in went away meanwhile. The call may have been made.
    Lost,
}

impl From<i32> for Failure {
    fn from(errno: i32) -> Failure {
        Failure::Errno(errno)
    }
}

impl Failure {
    /// The error number for a program. To it, a daemon that is gone looks like a broken disk.
    pub fn errno(self) -> i32 {
        match self {
            Failure::Errno(errno) => errno,
            Failure::Unreachable | Failure::Lost => EIO,
        }
    }
}

const EIO: i32 = 5;

/// What this thread's last stub returned: its result, or why it has none.
pub fn outcome<T: PartialOrd + From<i8>>(value: T) -> Result<T, Failure> {
    if value >= T::from(0) {
        return Ok(value);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO);
    // SAFETY: this thread's number.
    Err(match unsafe { raw::zazen_stub_error() } {
        status::OK => Failure::Errno(errno),
        status::NO_SERVICE => Failure::Unreachable,
        _ => Failure::Lost,
    })
}

/// Calls a function of posix.h: `call!(px_mkdir(ROOT, path.as_ptr(), 0o755, 0))`. The pointers must
/// be what posix.h wants, and alive until the call returns.
#[macro_export]
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers to strings and objects that live for the call, as posix.h wants them.
        $crate::outcome(unsafe { $crate::raw::$name($($argument),*) })
    };
}
