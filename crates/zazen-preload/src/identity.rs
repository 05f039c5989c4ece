//! setuid and its kin: far files are opened as whom this process goes on.
//!
//! Invariant: the far side hears of a change before any call that comes after it; it believes only processes that
//! root started.

use crate::far::far;
use crate::real::{hooks, system_call};
use crate::{state, transport};
use std::ffi::{c_char, c_int};

const GROUPS_MAX: usize = 65536;

/// Tells the far side who this process is now.
fn told(result: c_int) -> c_int {
    // Who connects later is seen as who it is then.
    if result < 0 || !state::is_active() || !transport::is_known() {
        return result;
    }
    let (mut user, mut group) = ([0_u32; 3], [0_u32; 3]);
    let ids = |number, all: &mut [u32; 3]| {
        let [real, effective, saved] = all.each_mut().map(|id| std::ptr::from_mut(id) as usize);
        let _ = system_call(number, [real, effective, saved, 0, 0, 0]);
    };
    ids(libc::SYS_getresuid, &mut user);
    ids(libc::SYS_getresgid, &mut group);
    let count = system_call(libc::SYS_getgroups, [0; 6]).unwrap_or(0).min(GROUPS_MAX);
    let mut groups = vec![0_u32; count];
    let count = system_call(libc::SYS_getgroups, [count, groups.as_mut_ptr() as usize, 0, 0, 0, 0]);
    groups.truncate(count.unwrap_or(0));
    let _ = far!(px_identity(user[1], group[1], groups.as_ptr(), groups.len() as u32));
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
