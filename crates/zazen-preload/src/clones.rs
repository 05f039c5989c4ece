//! Children that a program makes by `clone`, or by the numbers of fork and clone: they begin as
//! those of fork do.

use crate::process::{before_fork, in_child};
use crate::real::{aliases, hooks};
use crate::{heard, state};
use std::ffi::{c_int, c_void};

/// Makes a process by `make`, which returns in both, as fork does.
pub(crate) fn forked(make: impl FnOnce() -> Result<usize, c_int>) -> Result<usize, c_int> {
    before_fork();
    let made = make();
    if made == Ok(0) {
        in_child();
    }
    made
}

type Start = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child of `clone` begins with.
struct Cloned {
    start: Start,
    argument: *mut c_void,
}

unsafe extern "C" fn begin_cloned(cloned: *mut c_void) -> c_int {
    in_child();
    // SAFETY: its parent's, of which it has a copy.
    unsafe {
        let Cloned { start, argument } = cloned.cast::<Cloned>().read();
        start(argument)
    }
}

hooks! {
    fn clone(
        start: Start, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void,
        local: *mut c_void, child: *mut c_void,
    ) -> c_int {
        if flags & libc::CLONE_VM != 0 {
            heard::note_start();
        }
        if !state::is_active() || flags & libc::CLONE_VM != 0 {
            return next(start, stack, flags, argument, parent, local, child);
        }
        before_fork();
        let cloned = Cloned { start, argument };
        let cloned = (&raw const cloned).cast_mut().cast();
        next(begin_cloned, stack, flags, cloned, parent, local, child)
    }
}

aliases! {
    __clone = clone,
        (start: Start, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void,
         local: *mut c_void, child: *mut c_void) -> c_int;
}
