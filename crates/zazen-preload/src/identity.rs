//! setuid and its relatives: from then on, far files are opened as the new user.
//!
//! The far side has a process for each identity, and the kernel tells it who connects. A process
//! that becomes another user takes its open files from the old identity's process, ends its
//! connections there, and goes on with the new identity's process.
//!
//! Invariant: after a change, no call is made with the old identity, and this process keeps nothing
//! with which it could make one.

use crate::real::hooks;
use crate::{state, transport};
use std::ffi::{c_char, c_int};

/// Leaves the old identity's process at the far side, if the call changed the identity.
fn told(result: c_int) -> c_int {
    // Who connects later is seen as who it is then.
    if result >= 0 && state::is_active() && transport::is_known() {
        transport::leave_identity();
    }
    result
}

hooks! {
    fn setuid(uid: u32) -> c_int {
        told(next(uid))
    }

    fn setgid(gid: u32) -> c_int {
        told(next(gid))
    }

    fn seteuid(uid: u32) -> c_int {
        told(next(uid))
    }

    fn setegid(gid: u32) -> c_int {
        told(next(gid))
    }

    fn setreuid(real: u32, effective: u32) -> c_int {
        told(next(real, effective))
    }

    fn setregid(real: u32, effective: u32) -> c_int {
        told(next(real, effective))
    }

    fn setresuid(real: u32, effective: u32, saved: u32) -> c_int {
        told(next(real, effective, saved))
    }

    fn setresgid(real: u32, effective: u32, saved: u32) -> c_int {
        told(next(real, effective, saved))
    }

    fn setgroups(count: usize, groups: *const u32) -> c_int {
        told(next(count, groups))
    }

    fn initgroups(user: *const c_char, group: u32) -> c_int {
        told(next(user, group))
    }
}
