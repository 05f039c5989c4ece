//! The functions of posix.h that lock.

use crate::blocking::{Waiting, patiently};
use crate::entry::answer;
use crate::record_locks::{self, description_lock};
use crate::session::Description;
use std::ffi::c_int;
use std::os::fd::RawFd;
use zazen_forward_api::structures::Lock;
use zazen_plugin_sdk::{Outcome, checked, errno};

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_lock(id: u32, command: c_int, lock: *mut Lock) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: the dispatcher's memory, of this call only.
        let lock = unsafe { &mut *lock };
        match command {
            libc::F_OFD_GETLK | libc::F_OFD_SETLK => {
                *lock = description_lock(description.fd(), command, lock)?;
            }
            libc::F_SETLK => record_locks::set(session, &description, lock)?,
            libc::F_GETLK if is_by_path(description.fd())? => return Err(libc::EBADF),
            libc::F_GETLK => record_locks::get(session, &description, lock)?,
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    })
}

/// Whether a descriptor names a file that is not open.
fn is_by_path(fd: RawFd) -> Outcome<bool> {
    // SAFETY: numbers only.
    Ok(checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_PATH != 0)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_lock_wait(id: u32, command: c_int, tag: u32, lock: *const Lock) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: the dispatcher's memory, of this call only.
        let lock = unsafe { *lock };
        let waiting = Waiting::begin(session, tag)?;
        match command {
            libc::F_SETLKW => record_locks::set_waiting(session, &description, &lock, &waiting)?,
            libc::F_OFD_SETLKW => {
                patiently(&waiting, || description_lock(description.fd(), libc::F_OFD_SETLK, &lock))?;
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_flock(id: u32, operation: c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        flock_now(&description, operation)
    })
}

fn flock_now(description: &Description, operation: c_int) -> Outcome<c_int> {
    // SAFETY: numbers only.
    match unsafe { libc::flock(description.fd(), operation | libc::LOCK_NB) } {
        0 => Ok(0),
        _ => Err(errno()),
    }
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_flock_wait(id: u32, operation: c_int, tag: u32) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        let waiting = Waiting::begin(session, tag)?;
        patiently(&waiting, || flock_now(&description, operation))
    })
}
