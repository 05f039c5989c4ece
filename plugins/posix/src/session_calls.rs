//! The functions of posix.h about a session and its descriptions.

use crate::entry::answer;
use crate::session::{Description, Session};
use crate::{record_locks, sessions};
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use zazen_forward_api::structures::{CLOSE_LAST, CLOSE_READ};
use zazen_plugin_sdk::checked;

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_fork(token: *mut u64) -> c_int {
    answer(|session| {
        let number = sessions::fork(session)?;
        // SAFETY: the dispatcher's memory.
        unsafe { *token = number };
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_exec(coming: c_int) -> c_int {
    answer(|session| {
        sessions::announce_exec(session, coming != 0)?;
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_give(id: u32, fd: *mut c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: a descriptor of ours; the dispatcher's memory; the host closes what it sent.
        unsafe { *fd = checked(libc::fcntl(description.fd(), libc::F_DUPFD_CLOEXEC, 3))? };
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_take(id: u32, fd: c_int) -> c_int {
    answer(|session| {
        // SAFETY: the host's, for the length of the call; the copy is new.
        let own = unsafe { OwnedFd::from_raw_fd(checked(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3))?) };
        session.enter_as(id, Description::new(own)?)?;
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_close(id: u32, last: c_int) -> c_int {
    answer(|session| close(session, id, last))
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_close_several(closes: *const c_void, bytes: u64) -> c_int {
    answer(|session| {
        let (pairs, rest) = (bytes as usize / size_of::<[u32; 2]>(), bytes as usize % size_of::<[u32; 2]>());
        if rest != 0 {
            return Err(libc::EINVAL);
        }
        let mut outcome = Ok(0);
        for at in 0..pairs {
            // SAFETY: so many bytes, for the length of the call; any bytes are numbers.
            let [id, last] = unsafe { closes.cast::<[u32; 2]>().add(at).read_unaligned() };
            outcome = close(session, id, last as c_int);
        }
        outcome
    })
}

fn close(session: &Session, id: u32, last: c_int) -> Result<c_int, c_int> {
    let is_last = last & CLOSE_LAST != 0;
    let description = if is_last { session.remove(id)? } else { session.description(id)? };
    if last & CLOSE_READ != 0 {
        let mut byte = 0_u8;
        // Now its time of access moves, if the kernel has it so.
        // SAFETY: room for a byte.
        unsafe { libc::pread64(description.fd(), (&raw mut byte).cast(), 1, 0) };
    }
    record_locks::closed(session, &description);
    match Arc::into_inner(description).filter(|_| is_last) {
        Some(description) => description.close(),
        None => Ok(0),
    }
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_cancel(tag: u32) -> c_int {
    answer(|session| {
        let waiting = session.interrupted.lock().unwrap_or_else(PoisonError::into_inner).get(&tag).cloned();
        waiting.ok_or(libc::ESRCH)?.raise();
        record_locks::wake();
        Ok(0)
    })
}
