//! dup, dup2 and dup3.

use crate::descriptors::{drop_entry, enter_dup};
use crate::real::{aliases, give, hooks, system_call};
use crate::{events, state, table, transport};
use std::ffi::c_int;

hooks! {
    fn dup(fd: c_int) -> c_int {
        match table::entry(fd) {
            None if transport::owns(fd) => give(Err(libc::EBADF)),
            None => next(fd),
            Some(entry) => give(enter_dup(table::fcntl_kernel(fd, libc::F_DUPFD, 0), entry)),
        }
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if !state::is_active() {
            return next(old, new, flags);
        }
        if transport::owns(old) {
            return give(Err(libc::EBADF));
        }
        if old == new {
            return give(Err(libc::EINVAL));
        }
        give(replace(old, new, flags))
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        if !state::is_active() {
            return next(old, new);
        }
        if transport::owns(old) {
            return give(Err(libc::EBADF));
        }
        if old == new {
            return next(old, new);
        }
        give(replace(old, new, 0))
    }
}

aliases! {
    __dup2 = dup2, (old: c_int, new: c_int) -> c_int;
}

/// dup2 and dup3 of different numbers.
fn replace(old: c_int, new: c_int, flags: c_int) -> Result<c_int, c_int> {
    let entry = table::entry(old);
    if transport::owns(new) {
        transport::move_away(new);
    }
    if entry.is_none() && table::entry(new).is_none() {
        events::closed(new);
        return kernel_dup3(old, new, flags);
    }
    if entry.is_none() {
        // Check the old number before the new one is given up.
        table::fcntl_kernel(old, libc::F_GETFD, 0)?;
    }
    // As in dup2(2), an error of closing is lost.
    let _ = drop_entry(new);
    kernel_dup3(old, new, flags)?;
    if let Some(entry) = entry {
        table::set(new, entry);
    }
    Ok(new)
}

fn kernel_dup3(old: c_int, new: c_int, flags: c_int) -> Result<c_int, c_int> {
    let arguments = [old as usize, new as usize, flags as usize, 0, 0, 0];
    system_call(libc::SYS_dup3, arguments).map(|fd| fd as c_int)
}
