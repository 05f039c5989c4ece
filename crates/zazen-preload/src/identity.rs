//! setuid and its kin: far files are opened as whom this process goes on.
//!
//! The far side has a process for each identity, and the kernel tells it who connects. So a process
//! that becomes another user takes what it has open from the old one, ends its connections there,
//! and goes on with the new one.
//!
//! Invariant: no call that comes after a change is made with the identity of before, and nothing is
//! left in this process by which one could be.

use crate::real::hooks;
use crate::{state, transport};
use std::ffi::{c_char, c_int};

/// Leaves the far side's process of before, if the call changed anything.
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
