//! Names: rename, link, unlink, mkdir and their kin.

use crate::base::Base;
use crate::entry::answer;
use crate::reach::{Direct, NameInFolder, Object, by_number};
use crate::umask::with_umask;
use std::ffi::{CStr, c_char, c_int, c_void};
use zazen_plugin_sdk::{Outcome, checked, errno, text};

/// Lets `make` make the name `path`; `make` returns 0 on success. Where the kernel confines this
/// process, `make` gets the whole path, else the folder and the last name.
fn to_make(base: &Base, path: &CStr, make: impl Fn(c_int, *const c_char) -> c_int) -> Outcome<c_int> {
    if Direct::new(base, path).is_some_and(|direct| make(direct.fd(), direct.name()) == 0) {
        return Ok(0);
    }
    let place = NameInFolder::to_make(base, path)?;
    checked(make(place.fd(), place.name()))
}

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
        // SAFETY: the dispatcher's strings.
        let outcome = unsafe {
            let (old_path, new_path) = (text(old_path), text(new_path));
            if let (Some(from), Some(to)) = (Direct::new(&from, old_path), Direct::new(&to, new_path)) {
                let (old, new) = (from.name(), to.name());
                if libc::syscall(libc::SYS_renameat2, from.fd(), old, to.fd(), new, flags) == 0 {
                    return Ok(0);
                }
            }
            let from = NameInFolder::new(&from, old_path)?;
            let to = match NameInFolder::new(&to, new_path) {
                Ok(to) => to,
                // The kernel looks at the old name's folder first.
                Err(error) => return from.may_search().and(Err(error)),
            };
            libc::syscall(libc::SYS_renameat2, from.fd(), from.name(), to.fd(), to.name(), flags)
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
            let old_path = text(old_path);
            let to = NameInFolder::to_make(&to, text(new_path));
            let link = |fd: c_int| {
                let to = to.as_ref().map_err(|error| *error)?;
                // Naming a description asks for a privilege that its name in /proc doesn't.
                let (link, follow) = (by_number(fd), libc::AT_SYMLINK_FOLLOW);
                checked(libc::linkat(libc::AT_FDCWD, link.as_ptr(), to.fd(), to.name(), follow))
            };
            match from.itself(old_path) {
                Some(fd) if flags & libc::AT_EMPTY_PATH != 0 => link(fd),
                Some(_) => Err(libc::ENOENT),
                None if flags & libc::AT_SYMLINK_FOLLOW != 0 => {
                    link(Object::new(&from, old_path, true)?.fd())
                }
                None => {
                    if to.is_err() {
                        // The kernel looks at the old name first.
                        Object::new(&from, old_path, false)?;
                    }
                    let (from, to) =
                        (NameInFolder::new(&from, old_path)?, to.as_ref().map_err(|error| *error)?);
                    checked(libc::linkat(from.fd(), from.name(), to.fd(), to.name(), 0))
                }
            }
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
        // SAFETY: the dispatcher's strings.
        to_make(&base, unsafe { text(path) }, |folder, name| unsafe { libc::symlinkat(target, folder, name) })
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
        // SAFETY: the dispatcher's strings.
        let path = unsafe { text(path) };
        // SAFETY: as above.
        let unlink = |folder, name| unsafe { libc::unlinkat(folder, name, flags) };
        if Direct::new(&base, path).is_some_and(|direct| unlink(direct.fd(), direct.name()) == 0) {
            return Ok(0);
        }
        let place = NameInFolder::new(&base, path)?;
        checked(unlink(place.fd(), place.name()))
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
        let _umask = with_umask(mask)?;
        // SAFETY: the dispatcher's strings.
        to_make(&base, unsafe { text(path) }, |folder, name| unsafe { libc::mkdirat(folder, name, mode) })
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
        let _umask = with_umask(mask)?;
        // SAFETY: the dispatcher's strings.
        to_make(&base, unsafe { text(path) }, |folder, name| unsafe {
            libc::mknodat(folder, name, mode, dev)
        })
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
            let object = Object::new(&base, path, false)?;
            let got = libc::readlinkat(object.fd(), c"".as_ptr(), target.cast(), size);
            // What is no link is told otherwise of an empty path.
            let is_named = matches!(object, Object::Named(_));
            let got = checked(got as i64)
                .map_err(|error| if error == libc::ENOENT && is_named { libc::EINVAL } else { error })?;
            *room = got as u64;
            Ok(0)
        })
    }
}
