//! Names: rename, link, unlink, mkdir and their kin.

use crate::entry::{answer, checked, errno, text};
use crate::files::Base;
use crate::identity;
use std::ffi::{c_char, c_int, c_void};

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_rename(
    from: c_int,
    old_path: *const c_char,
    to: c_int,
    new_path: *const c_char,
    flags: u32,
) -> c_int {
    answer(|session| {
        let (from, to) = (Base::new(session, from)?, Base::new(session, to)?);
        let _acting = identity::act()?;
        // SAFETY: the dispatcher's strings.
        let outcome = unsafe {
            let (from, to) = (from.fd(text(old_path))?, to.fd(text(new_path))?);
            libc::syscall(libc::SYS_renameat2, from, old_path, to, new_path, flags)
        };
        if outcome < 0 { Err(errno()) } else { Ok(0) }
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_link(
    from: c_int,
    old_path: *const c_char,
    to: c_int,
    new_path: *const c_char,
    flags: c_int,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's strings.
        unsafe {
            let (from, to) = (Base::new(session, from)?, Base::new(session, to)?);
            let _acting = identity::act()?;
            let to = to.fd(text(new_path))?;
            let Some(fd) = from.itself(text(old_path)) else {
                return checked(libc::linkat(from.fd(text(old_path))?, old_path, to, new_path, flags));
            };
            if flags & libc::AT_EMPTY_PATH == 0 {
                return Err(libc::ENOENT);
            }
            // Naming a description asks for a privilege that its name in /proc doesn't.
            let link = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| libc::EINVAL)?;
            checked(libc::linkat(libc::AT_FDCWD, link.as_ptr(), to, new_path, libc::AT_SYMLINK_FOLLOW))
        }
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_symlink(target: *const c_char, dir: c_int, path: *const c_char) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        let _acting = identity::act()?;
        // SAFETY: the dispatcher's strings.
        checked(unsafe { libc::symlinkat(target, base.fd(text(path))?, path) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_unlink(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        let _acting = identity::act()?;
        // SAFETY: the dispatcher's strings.
        checked(unsafe { libc::unlinkat(base.fd(text(path))?, path, flags) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_mkdir(dir: c_int, path: *const c_char, mode: u32, mask: u32) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        let _acting = identity::act()?;
        let _umask = identity::with_umask(mask)?;
        // SAFETY: the dispatcher's strings.
        checked(unsafe { libc::mkdirat(base.fd(text(path))?, path, mode) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_mknod(
    dir: c_int,
    path: *const c_char,
    mode: u32,
    dev: u64,
    mask: u32,
) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        // The capability for devices goes with the file system's user.
        let _acting = identity::act()?;
        let _umask = identity::with_umask(mask)?;
        // SAFETY: the dispatcher's strings.
        checked(unsafe { libc::mknodat(base.fd(text(path))?, path, mode, dev) })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_readlink(
    dir: c_int,
    path: *const c_char,
    target: *mut c_void,
    room: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let size = std::mem::take(&mut *room) as usize;
        answer(|session| {
            let path = text(path);
            let base = Base::new(session, dir)?;
            let _acting = identity::act()?;
            let fd = base.itself(path).map_or_else(|| base.fd(path), Ok)?;
            let got = checked(libc::readlinkat(fd, path.as_ptr(), target.cast(), size) as i64)?;
            *room = got as u64;
            Ok(0)
        })
    }
}
