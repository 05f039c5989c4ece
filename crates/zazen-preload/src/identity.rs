//! setuid and its relatives: from then on, far files are opened as the new user.
//!
//! The far side has a process for each identity, and the kernel tells it who connects. A process
//! that becomes another user takes its open files from the old identity's process, ends its
//! connections there, and goes on with the new identity's process.
//!
//! Invariant: after a change, no call is made with the old identity, and this process keeps nothing
//! with which it could make one.

use crate::real::{hooks, system_call};
use crate::{state, transport};
use std::ffi::{c_char, c_int, c_long};

/// Groups that are compared. A program with more counts as changed.
const GROUPS_MAX: usize = 256;

/// As whom the kernel opens files for this process; `None` where that can't be said.
fn current() -> Option<(usize, usize, usize, [u32; GROUPS_MAX])> {
    let ask = |number| system_call(number, [0; 6]).ok();
    let mut groups = [0; GROUPS_MAX];
    let asked = [GROUPS_MAX, groups.as_mut_ptr() as usize, 0, 0, 0, 0];
    let count = system_call(libc::SYS_getgroups, asked).ok()?;
    Some((ask(libc::SYS_geteuid)?, ask(libc::SYS_getegid)?, count, groups))
}

/// Makes the call, and leaves the old identity's process at the far side if the identity changed.
fn changing(call: impl FnOnce() -> c_int) -> c_int {
    // Who connects later is seen as who it is then.
    if !state::is_active() || !transport::is_known() {
        return call();
    }
    let before = current();
    let result = call();
    if result >= 0 && (before.is_none() || before != current()) {
        transport::leave_identity();
    }
    result
}

/// The same for calls that programs make by their numbers; `None`: it is none of them.
pub(crate) fn by_number(number: c_long, arguments: [usize; 6]) -> Option<Result<usize, c_int>> {
    let changes = matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
    );
    changes.then(|| {
        let mut outcome = Ok(0);
        changing(|| {
            outcome = system_call(number, arguments);
            if outcome.is_ok() { 0 } else { -1 }
        });
        outcome
    })
}

hooks! {
    fn setuid(uid: u32) -> c_int {
        changing(|| next(uid))
    }

    fn setgid(gid: u32) -> c_int {
        changing(|| next(gid))
    }

    fn seteuid(uid: u32) -> c_int {
        changing(|| next(uid))
    }

    fn setegid(gid: u32) -> c_int {
        changing(|| next(gid))
    }

    fn setreuid(real: u32, effective: u32) -> c_int {
        changing(|| next(real, effective))
    }

    fn setregid(real: u32, effective: u32) -> c_int {
        changing(|| next(real, effective))
    }

    fn setresuid(real: u32, effective: u32, saved: u32) -> c_int {
        changing(|| next(real, effective, saved))
    }

    fn setresgid(real: u32, effective: u32, saved: u32) -> c_int {
        changing(|| next(real, effective, saved))
    }

    fn setgroups(count: usize, groups: *const u32) -> c_int {
        changing(|| next(count, groups))
    }

    fn initgroups(user: *const c_char, group: u32) -> c_int {
        changing(|| next(user, group))
    }
}
