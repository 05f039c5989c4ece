//! What is known of a file: statx, permissions, owners, times, extended attributes.

use crate::base::Base;
use crate::entry::answer;
use crate::reach::{Object, by_number, path_of, stat_at_once};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_forward_api::structures::{PxStat, StatFs, Times};
use zazen_plugin_sdk::{Outcome, checked, errno, text};

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_stat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    stat: *mut PxStat,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let found = look(&Base::new(session, dir)?, path, flags, mask)?;
        // SAFETY: the dispatcher's memory.
        unsafe { *stat = found };
        Ok(c_int::from(is_news(&found)))
    })
}

/// How long a change is news, in nanoseconds: longer than a program keeps what came along, than the
/// clocks of a site's file servers differ, and than the two seconds to which some file systems
/// round times down.
const NEWS_NS: i128 = 3_000_000_000;
/// Where a file's attributes have the time of its last change, which nobody can set.
pub(crate) const CHANGED: usize = 2;

/// Whether a file changed just now, or may have: then what is said of it may be somebody's word.
pub(crate) fn is_news(stat: &PxStat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
    let changed = i128::from(stat.seconds[CHANGED]) * 1_000_000_000 + i128::from(stat.nanoseconds[CHANGED]);
    stat.mask & libc::STATX_CTIME == 0 || now - changed < NEWS_NS
}

/// What statx(2) says of a path.
pub(crate) fn look(base: &Base, path: &CStr, flags: c_int, mask: u32) -> Outcome<PxStat> {
    // SAFETY: all zeros is a valid statx. The path lives for the call.
    unsafe {
        let mut x: libc::statx = std::mem::zeroed();
        let how = flags & (libc::AT_STATX_SYNC_TYPE | libc::AT_SYMLINK_NOFOLLOW);
        if !stat_at_once(base, path, how, mask, &mut x) {
            let object = Object::new(base, path, follows(flags))?;
            let flags = flags & libc::AT_STATX_SYNC_TYPE | libc::AT_EMPTY_PATH;
            checked(libc::statx(object.fd(), c"".as_ptr(), flags, mask, &raw mut x))?;
        }
        Ok(told(&x))
    }
}

/// What statx(2) says of an open file.
pub(crate) fn look_at(fd: RawFd, mask: u32) -> Outcome<PxStat> {
    // SAFETY: all zeros is a valid statx; a descriptor of the caller's.
    unsafe {
        let mut x: libc::statx = std::mem::zeroed();
        checked(libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &raw mut x))?;
        Ok(told(&x))
    }
}

fn told(x: &libc::statx) -> PxStat {
    PxStat {
        mask: x.stx_mask,
        blksize: x.stx_blksize,
        attributes: x.stx_attributes,
        nlink: x.stx_nlink,
        uid: x.stx_uid,
        gid: x.stx_gid,
        mode: x.stx_mode.into(),
        ino: x.stx_ino,
        size: x.stx_size,
        blocks: x.stx_blocks,
        attributes_mask: x.stx_attributes_mask,
        seconds: [x.stx_atime, x.stx_btime, x.stx_ctime, x.stx_mtime].map(|time| time.tv_sec),
        nanoseconds: [x.stx_atime, x.stx_btime, x.stx_ctime, x.stx_mtime].map(|time| time.tv_nsec),
        devices: [x.stx_rdev_major, x.stx_rdev_minor, x.stx_dev_major, x.stx_dev_minor],
        mnt_id: x.stx_mnt_id,
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_statfs(dir: c_int, path: *const c_char, stat: *mut StatFs) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        let object = Object::new(&base, path, true)?;
        // SAFETY: all zeros is a valid statfs; the dispatcher's memory.
        unsafe {
            let mut found: libc::statfs64 = std::mem::zeroed();
            checked(libc::fstatfs64(object.fd(), &raw mut found))?;
            let id: [u32; 2] = std::mem::transmute(found.f_fsid);
            *stat = StatFs([
                found.f_type as u64,
                found.f_bsize as u64,
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                u64::from(id[0]) | u64::from(id[1]) << 32,
                found.f_namelen as u64,
                found.f_frsize as u64,
                found.f_flags as u64,
            ]);
        }
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_access(
    dir: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        // Whether a name is there is what a look at it tells, by the same walk and the same rights.
        if mode == libc::F_OK {
            // SAFETY: all zeros is a valid statx.
            let mut x: libc::statx = unsafe { std::mem::zeroed() };
            if stat_at_once(&base, path, flags & libc::AT_SYMLINK_NOFOLLOW, 0, &mut x) {
                return Ok(0);
            }
        }
        let object = Object::new(&base, path, follows(flags))?;
        let how = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
        // SAFETY: a path that lives for the call.
        let outcome = unsafe { libc::syscall(libc::SYS_faccessat2, object.fd(), c"".as_ptr(), mode, how) };
        if outcome < 0 { Err(errno()) } else { Ok(0) }
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_chmod(dir: c_int, path: *const c_char, mode: u32, flags: c_int) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        // SAFETY: a path that lives for the call.
        checked(unsafe {
            match Object::new(&base, path, follows(flags))? {
                Object::Held(fd) => libc::fchmod(fd, mode),
                Object::Named(fd) => libc::chmod(by_number(fd.as_raw_fd()).as_ptr(), mode),
            }
        })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_chown(
    dir: c_int,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        // SAFETY: a path that lives for the call.
        checked(unsafe {
            match Object::new(&base, path, follows(flags))? {
                Object::Held(fd) if flags & libc::AT_EMPTY_PATH == 0 => libc::fchown(fd, uid, gid),
                object => libc::fchownat(object.fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH),
            }
        })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_utimes(
    dir: c_int,
    path: *const c_char,
    times: *const Times,
    flags: c_int,
) -> c_int {
    answer(|session| {
        // SAFETY: the dispatcher's string.
        let path = unsafe { text(path) };
        let base = Base::new(session, dir)?;
        // SAFETY: the dispatcher's object, or NULL; a path that lives for the call.
        unsafe {
            let times = times.as_ref().map(|Times([atime, atime_nsec, mtime, mtime_nsec])| {
                [
                    libc::timespec { tv_sec: *atime, tv_nsec: *atime_nsec },
                    libc::timespec { tv_sec: *mtime, tv_nsec: *mtime_nsec },
                ]
            });
            let times = times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr());
            checked(match Object::new(&base, path, follows(flags))? {
                Object::Held(fd) => libc::futimens(fd, times),
                Object::Named(fd) => {
                    libc::utimensat(fd.as_raw_fd(), c"".as_ptr(), times, libc::AT_EMPTY_PATH)
                }
            })
        }
    })
}

/// Whether links at the end are followed.
fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_getxattr(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
    value: *mut c_void,
    room: *mut u64,
) -> i64 {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let size = std::mem::take(&mut *room) as usize;
        answer(|session| {
            let base = Base::new(session, dir)?;
            let got = match Object::new(&base, text(path), follows(flags))? {
                Object::Held(fd) => libc::fgetxattr(fd, name, value, size),
                Object::Named(fd) => libc::getxattr(by_number(fd.as_raw_fd()).as_ptr(), name, value, size),
            };
            let got = checked(got as i64)?;
            *room = if size == 0 { 0 } else { got as u64 };
            Ok(got)
        })
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_listxattr(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    names: *mut c_void,
    room: *mut u64,
) -> i64 {
    // SAFETY: as in px_getxattr.
    unsafe {
        let size = std::mem::take(&mut *room) as usize;
        answer(|session| {
            let base = Base::new(session, dir)?;
            let got = match Object::new(&base, text(path), follows(flags))? {
                Object::Held(fd) => libc::flistxattr(fd, names.cast(), size),
                Object::Named(fd) => libc::listxattr(by_number(fd.as_raw_fd()).as_ptr(), names.cast(), size),
            };
            let got = checked(got as i64)?;
            *room = if size == 0 { 0 } else { got as u64 };
            Ok(got)
        })
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_setxattr(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
    value: *const c_void,
    count: u64,
    how: c_int,
) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        let size = count as usize;
        // SAFETY: the dispatcher's strings and bytes.
        checked(unsafe {
            match Object::new(&base, text(path), follows(flags))? {
                Object::Held(fd) => libc::fsetxattr(fd, name, value, size, how),
                Object::Named(fd) => {
                    libc::setxattr(by_number(fd.as_raw_fd()).as_ptr(), name, value, size, how)
                }
            }
        })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_removexattr(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
) -> c_int {
    answer(|session| {
        let base = Base::new(session, dir)?;
        // SAFETY: the dispatcher's strings.
        checked(unsafe {
            match Object::new(&base, text(path), follows(flags))? {
                Object::Held(fd) => libc::fremovexattr(fd, name),
                Object::Named(fd) => libc::removexattr(by_number(fd.as_raw_fd()).as_ptr(), name),
            }
        })
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_realpath(
    dir: c_int,
    path: *const c_char,
    target: *mut c_void,
    room: *mut u64,
) -> c_int {
    // SAFETY: as in px_getxattr.
    unsafe {
        let size = std::mem::take(&mut *room) as usize;
        answer(|session| {
            let path = text(path);
            let base = Base::new(session, dir)?;
            // What glibc's realpath does, but by the kernel, in one step.
            let name = path_of(Object::new(&base, path, true)?.fd())?;
            if name.len() >= size {
                return Err(libc::ENAMETOOLONG);
            }
            std::ptr::copy_nonoverlapping(name.as_ptr(), target.cast(), name.len());
            *room = name.len() as u64;
            Ok(0)
        })
    }
}
