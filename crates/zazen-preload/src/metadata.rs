//! stat and its kin, permissions, owners, times, extended attributes.

use crate::far::{Destination, EMPTY, PxStat, StatFs, Times, by_number, far, link_to_far, place};
use crate::given::Given;
use crate::real::{aliases, errno, give, hooks};
use crate::state;
use crate::table::{self, FarFile};
use crate::{ahead, fault, heard};
use std::ffi::{c_char, c_int, c_uint, c_void};
use zazen_forward_api::paths::Text;

/// Runs `far` for a path that is forwarded, `local` otherwise.
macro_rules! by_path {
    ($at:expr, $path:expr, |$local:ident| $here:expr, |$dir:ident, $name:ident| $there:expr) => {
        match place($at, $path, &mut Text::new()) {
            Ok(Destination::Local($local) | Destination::Near($local)) => $here,
            Ok(Destination::Far($dir, $name)) => give($there),
            Err(error) => give(Err(error)),
        }
    };
}

const BASIC: u32 = libc::STATX_BASIC_STATS;

/// Flags of an `*at` call besides those that it knows: EINVAL, as from the kernel.
fn only(flags: c_int, known: c_int) -> Result<(), c_int> {
    if flags & !known == 0 { Ok(()) } else { Err(libc::EINVAL) }
}

/// What stat and its kin know.
const OF_STAT: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;

/// What faccessat knows.
const OF_ACCESS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EACCESS | libc::AT_EMPTY_PATH;
/// What calls that change permissions, owners and times know.
const OF_OWNERS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

fn stat_far(dir: c_int, path: *const c_char, flags: c_int, mask: u32) -> Result<PxStat, c_int> {
    let known = if flags & libc::AT_STATX_FORCE_SYNC != 0 {
        None
    } else if path == EMPTY {
        ahead::stat(dir as u32, mask).map(Ok)
    } else {
        ahead::look(dir, path, flags, mask)
    };
    if let Some(known) = known {
        return known;
    }
    let mut stat = PxStat::default();
    let told = far!(px_stat(dir, path, flags, mask, (&raw mut stat).cast()));
    if told != Ok(0) {
        // That it changed just now, or is not there, may be somebody's word.
        heard::hear();
    }
    told.map(|_| stat)
}

/// EFAULT where the program has no memory for the answer.
fn has_room<T>(to: *mut T) -> Result<(), c_int> {
    if fault::writable(to, size_of::<T>()) { Ok(()) } else { Err(libc::EFAULT) }
}

fn to_stat(from: &PxStat, to: *mut libc::stat64) {
    // SAFETY: the program's object; all zeros is a valid stat.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        stat.st_dev = libc::makedev(from.devices[2], from.devices[3]);
        stat.st_rdev = libc::makedev(from.devices[0], from.devices[1]);
        stat.st_ino = from.ino;
        stat.st_nlink = from.nlink as _;
        stat.st_mode = from.mode;
        stat.st_uid = from.uid;
        stat.st_gid = from.gid;
        stat.st_size = from.size as i64;
        stat.st_blksize = from.blksize as _;
        stat.st_blocks = from.blocks as i64;
        (stat.st_atime, stat.st_atime_nsec) = (from.seconds[0], from.nanoseconds[0].into());
        (stat.st_ctime, stat.st_ctime_nsec) = (from.seconds[2], from.nanoseconds[2].into());
        (stat.st_mtime, stat.st_mtime_nsec) = (from.seconds[3], from.nanoseconds[3].into());
        *to = stat;
    }
}

fn give_stat(dir: c_int, path: *const c_char, flags: c_int, to: *mut libc::stat64) -> Result<c_int, c_int> {
    only(flags, OF_STAT)?;
    let stat = stat_far(dir, path, flags, BASIC)?;
    has_room(to)?;
    to_stat(&stat, to);
    Ok(0)
}

hooks! {
    fn stat(path: *const c_char, to: *mut libc::stat64) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, to), |dir, path| give_stat(dir, path, 0, to))
    }

    fn lstat(path: *const c_char, to: *mut libc::stat64) -> c_int {
        if link_to_far(path).is_some() {
            return next(path, to);
        }
        by_path!(libc::AT_FDCWD, path, |path| next(path, to), |dir, path| {
            give_stat(dir, path, libc::AT_SYMLINK_NOFOLLOW, to)
        })
    }

    fn fstat(fd: c_int, to: *mut libc::stat64) -> c_int {
        match table::entry(fd) {
            None if crate::transport::owns(fd) => give(Err(libc::EBADF)),
            None => { heard::hear(); next(fd, to) }
            Some(entry) => give(give_stat(entry.dir(), EMPTY, libc::AT_EMPTY_PATH, to)),
        }
    }

    fn fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int) -> c_int {
        if let Some(entry) = by_number(dir, path, flags) {
            return give(give_stat(entry.dir(), EMPTY, flags, to));
        }
        if flags & libc::AT_SYMLINK_NOFOLLOW != 0 && link_to_far(path).is_some() {
            return next(dir, path, to, flags);
        }
        by_path!(dir, path, |path| next(dir, path, to, flags), |dir, path| give_stat(dir, path, flags, to))
    }

    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int {
        if let Some(entry) = by_number(dir, path, flags) {
            return give(give_statx(entry.dir(), EMPTY, flags, mask, to));
        }
        if flags & libc::AT_SYMLINK_NOFOLLOW != 0 && link_to_far(path).is_some() {
            return next(dir, path, flags, mask, to);
        }
        by_path!(dir, path, |path| next(dir, path, flags, mask, to), |dir, path| {
            give_statx(dir, path, flags, mask, to)
        })
    }

    fn statfs(path: *const c_char, to: *mut libc::statfs64) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, to), |dir, path| statfs_far(dir, path, to))
    }

    fn fstatfs(fd: c_int, to: *mut libc::statfs64) -> c_int {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, to) }
            Some(entry) => give(statfs_far(entry.dir(), EMPTY, to)),
        }
    }

    fn statvfs(path: *const c_char, to: *mut libc::statvfs64) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, to), |dir, path| statvfs_far(dir, path, to))
    }

    fn fstatvfs(fd: c_int, to: *mut libc::statvfs64) -> c_int {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, to) }
            Some(entry) => give(statvfs_far(entry.dir(), EMPTY, to)),
        }
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_access(dir, path, mode, 0))
        })
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_access(dir, path, mode, libc::AT_EACCESS))
        })
    }

    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        if let Some(entry) = by_number(dir, path, flags) {
            return give(only(flags, OF_ACCESS)
                .and_then(|()| far!(px_access(entry.dir(), EMPTY, mode, flags))));
        }
        by_path!(dir, path, |path| next(dir, path, mode, flags), |dir, path| {
            only(flags, OF_ACCESS).and_then(|()| far!(px_access(dir, path, mode, flags)))
        })
    }

    fn chmod(path: *const c_char, mode: c_uint) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_chmod(dir, path, mode, 0))
        })
    }

    fn lchmod(path: *const c_char, mode: c_uint) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_chmod(dir, path, mode, libc::AT_SYMLINK_NOFOLLOW))
        })
    }

    fn fchmod(fd: c_int, mode: c_uint) -> c_int {
        match table::entry(fd) {
            None => next(fd, mode),
            Some(entry) => give(far!(px_chmod(entry.dir(), EMPTY, mode, 0))),
        }
    }

    fn fchmodat(dir: c_int, path: *const c_char, mode: c_uint, flags: c_int) -> c_int {
        by_path!(dir, path, |path| next(dir, path, mode, flags), |dir, path| {
            only(flags, OF_OWNERS).and_then(|()| far!(px_chmod(dir, path, mode, flags)))
        })
    }

    fn chown(path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, uid, gid), |dir, path| {
            far!(px_chown(dir, path, uid, gid, 0))
        })
    }

    fn lchown(path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, uid, gid), |dir, path| {
            far!(px_chown(dir, path, uid, gid, libc::AT_SYMLINK_NOFOLLOW))
        })
    }

    fn fchown(fd: c_int, uid: c_uint, gid: c_uint) -> c_int {
        match table::entry(fd) {
            None => next(fd, uid, gid),
            Some(entry) => give(far!(px_chown(entry.dir(), EMPTY, uid, gid, 0))),
        }
    }

    fn fchownat(dir: c_int, path: *const c_char, uid: c_uint, gid: c_uint, flags: c_int) -> c_int {
        if let Some(entry) = by_number(dir, path, flags) {
            let known = only(flags, OF_OWNERS);
            return give(known.and_then(|()| far!(px_chown(entry.dir(), EMPTY, uid, gid, flags))));
        }
        by_path!(dir, path, |path| next(dir, path, uid, gid, flags), |dir, path| {
            only(flags, OF_OWNERS).and_then(|()| far!(px_chown(dir, path, uid, gid, flags)))
        })
    }

    fn utimensat(dir: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int {
        if let Some(entry) = by_number(dir, path, flags) {
            return give(set_times(entry.dir(), EMPTY, times, flags));
        }
        by_path!(dir, path, |path| next(dir, path, times, flags), |dir, path| {
            set_times(dir, path, times, flags)
        })
    }

    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int {
        match table::entry(fd) {
            None => next(fd, times),
            Some(entry) => give(set_times(entry.dir(), EMPTY, times, 0)),
        }
    }

    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        let both = times.as_ref().map(|times| [timespec(times.actime, 0), timespec(times.modtime, 0)]);
        by_path!(libc::AT_FDCWD, path, |path| next(path, times), |dir, path| {
            set_times(dir, path, both.as_ref().map_or(std::ptr::null(), |both| both.as_ptr()), 0)
        })
    }

    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, times), |dir, path| {
            set_microseconds(dir, path, times, 0)
        })
    }

    fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, times), |dir, path| {
            set_microseconds(dir, path, times, libc::AT_SYMLINK_NOFOLLOW)
        })
    }

    fn futimesat(dir: c_int, path: *const c_char, times: *const libc::timeval) -> c_int {
        by_path!(dir, path, |path| next(dir, path, times), |dir, path| {
            set_microseconds(dir, path, times, 0)
        })
    }

    fn futimes(fd: c_int, times: *const libc::timeval) -> c_int {
        match table::entry(fd) {
            None => next(fd, times),
            Some(entry) => give(set_microseconds(entry.dir(), EMPTY, times, 0)),
        }
    }

    fn pathconf(path: *const c_char, name: c_int) -> i64 {
        // Names that there are not, before the path is looked at.
        if state::is_active() && next(c"/".as_ptr(), name) == -1 && errno() == libc::EINVAL {
            return -1;
        }
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, name),
            Ok(Destination::Far(dir, path)) => match stat_far(dir, path, 0, BASIC) {
                // What isn't the file system's is the same everywhere.
                Ok(_) => next(c"/".as_ptr(), name),
                Err(error) => give(Err(error)),
            },
            Err(error) => give(Err(error)),
        }
    }

    fn fpathconf(fd: c_int, name: c_int) -> i64 {
        match table::entry(fd) {
            None => next(fd, name),
            Some(_) => pathconf(c"/".as_ptr(), name),
        }
    }

    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name, value, size), |dir, path| {
            get_attribute(dir, path, 0, name, value, size)
        })
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name, value, size), |dir, path| {
            get_attribute(dir, path, libc::AT_SYMLINK_NOFOLLOW, name, value, size)
        })
    }

    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: usize) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, name, value, size) }
            Some(entry) => give(get_attribute(entry.dir(), EMPTY, 0, name, value, size)),
        }
    }

    fn listxattr(path: *const c_char, names: *mut c_char, size: usize) -> isize {
        by_path!(libc::AT_FDCWD, path, |path| next(path, names, size), |dir, path| {
            list_attributes(dir, path, 0, names, size)
        })
    }

    fn llistxattr(path: *const c_char, names: *mut c_char, size: usize) -> isize {
        by_path!(libc::AT_FDCWD, path, |path| next(path, names, size), |dir, path| {
            list_attributes(dir, path, libc::AT_SYMLINK_NOFOLLOW, names, size)
        })
    }

    fn flistxattr(fd: c_int, names: *mut c_char, size: usize) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, names, size) }
            Some(entry) => give(list_attributes(entry.dir(), EMPTY, 0, names, size)),
        }
    }

    fn setxattr(
        path: *const c_char, name: *const c_char, value: *const c_void,
        size: usize, how: c_int
    ) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name, value, size, how), |dir, path| {
            set_attribute(dir, path, 0, name, value, size, how)
        })
    }

    fn lsetxattr(
        path: *const c_char, name: *const c_char, value: *const c_void,
        size: usize, how: c_int
    ) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name, value, size, how), |dir, path| {
            set_attribute(dir, path, libc::AT_SYMLINK_NOFOLLOW, name, value, size, how)
        })
    }

    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, size: usize, how: c_int) -> c_int {
        match table::entry(fd) {
            None => next(fd, name, value, size, how),
            Some(entry) => give(set_attribute(entry.dir(), EMPTY, 0, name, value, size, how)),
        }
    }

    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name), |dir, path| {
            remove_attribute(dir, path, 0, name)
        })
    }

    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        by_path!(libc::AT_FDCWD, path, |path| next(path, name), |dir, path| {
            remove_attribute(dir, path, libc::AT_SYMLINK_NOFOLLOW, name)
        })
    }

    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        match table::entry(fd) {
            None => next(fd, name),
            Some(entry) => give(remove_attribute(entry.dir(), EMPTY, 0, name)),
        }
    }
}

fn to_statx(from: &PxStat, to: *mut libc::statx) {
    // SAFETY: the program's object; all zeros is a valid statx.
    unsafe {
        let mut x: libc::statx = std::mem::zeroed();
        x.stx_mask = from.mask;
        x.stx_blksize = from.blksize;
        x.stx_attributes = from.attributes;
        x.stx_nlink = from.nlink;
        x.stx_uid = from.uid;
        x.stx_gid = from.gid;
        x.stx_mode = from.mode as u16;
        x.stx_ino = from.ino;
        x.stx_size = from.size;
        x.stx_blocks = from.blocks;
        x.stx_attributes_mask = from.attributes_mask;
        let times = [&mut x.stx_atime, &mut x.stx_btime, &mut x.stx_ctime, &mut x.stx_mtime];
        for (at, time) in times.into_iter().enumerate() {
            (time.tv_sec, time.tv_nsec) = (from.seconds[at], from.nanoseconds[at]);
        }
        [x.stx_rdev_major, x.stx_rdev_minor, x.stx_dev_major, x.stx_dev_minor] = from.devices;
        x.stx_mnt_id = from.mnt_id;
        *to = x;
    }
}

fn give_statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    to: *mut libc::statx,
) -> Result<c_int, c_int> {
    // Bit 31 of the mask is for the kernel's later use, and no answer is fresh and cached at a
    // time.
    only(flags, OF_STAT | libc::AT_STATX_SYNC_TYPE)?;
    if flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE || mask & 1 << 31 != 0 {
        return Err(libc::EINVAL);
    }
    let stat = stat_far(dir, path, flags, mask)?;
    has_room(to)?;
    to_statx(&stat, to);
    Ok(0)
}

fn statfs_far(dir: c_int, path: *const c_char, to: *mut libc::statfs64) -> Result<c_int, c_int> {
    let mut found = StatFs::default();
    far!(px_statfs(dir, path, (&raw mut found).cast()))?;
    let StatFs(found) = found;
    has_room(to)?;
    // SAFETY: the program's object; all zeros is a valid statfs.
    unsafe {
        let mut stat: libc::statfs64 = std::mem::zeroed();
        stat.f_type = found[0] as _;
        stat.f_bsize = found[1] as _;
        stat.f_blocks = found[2];
        stat.f_bfree = found[3];
        stat.f_bavail = found[4];
        stat.f_files = found[5];
        stat.f_ffree = found[6];
        stat.f_fsid = std::mem::transmute::<u64, libc::fsid_t>(found[7]);
        stat.f_namelen = found[8] as _;
        stat.f_frsize = found[9] as _;
        stat.f_flags = found[10] as _;
        *to = stat;
    }
    Ok(0)
}

fn statvfs_far(dir: c_int, path: *const c_char, to: *mut libc::statvfs64) -> Result<c_int, c_int> {
    let mut found = StatFs::default();
    far!(px_statfs(dir, path, (&raw mut found).cast()))?;
    let StatFs(found) = found;
    has_room(to)?;
    // SAFETY: the program's object; all zeros is a valid statvfs.
    unsafe {
        let mut stat: libc::statvfs64 = std::mem::zeroed();
        stat.f_bsize = found[1] as _;
        stat.f_frsize = if found[9] == 0 { found[1] as _ } else { found[9] as _ };
        stat.f_blocks = found[2];
        stat.f_bfree = found[3];
        stat.f_bavail = found[4];
        stat.f_files = found[5];
        stat.f_ffree = found[6];
        stat.f_favail = found[6];
        stat.f_fsid = found[7];
        stat.f_namemax = found[8] as _;
        // ST_VALID is between the kernel and libc.
        stat.f_flag = (found[10] & !0x20) as _;
        *to = stat;
    }
    Ok(0)
}

fn timespec(seconds: i64, nanoseconds: i64) -> libc::timespec {
    libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds }
}

fn set_times(
    dir: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> Result<c_int, c_int> {
    only(flags, OF_OWNERS)?;
    if times.is_null() {
        return far!(px_utimes(dir, path, std::ptr::null(), flags));
    }
    if !fault::readable(times, 2 * size_of_val(&timespec(0, 0))) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's two objects.
    let [access, change] = unsafe { [*times, *times.add(1)] };
    let far = Times([access.tv_sec, access.tv_nsec, change.tv_sec, change.tv_nsec]);
    far!(px_utimes(dir, path, (&raw const far).cast(), flags))
}

fn set_microseconds(
    dir: c_int,
    path: *const c_char,
    times: *const libc::timeval,
    flags: c_int,
) -> Result<c_int, c_int> {
    if times.is_null() {
        return set_times(dir, path, std::ptr::null(), flags);
    }
    if !fault::readable(times, 2 * size_of::<libc::timeval>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's two objects.
    let both = unsafe { [*times, *times.add(1)] };
    if both.iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) {
        return Err(libc::EINVAL);
    }
    let both = both.map(|time| timespec(time.tv_sec, time.tv_usec * 1000));
    set_times(dir, path, both.as_ptr(), flags)
}

/// Whether an attribute is one that the kernel gives and takes only by rights which the daemon's
/// processes do not have, whoever they act as.
fn is_privileged(name: *const c_char) -> bool {
    // SAFETY: a string, as the caller has looked.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    name.starts_with(b"trusted.") || name.starts_with(b"security.")
}

/// The same for reading.
fn needs_rights_to_read(name: *const c_char) -> bool {
    // SAFETY: a string, as the caller has looked.
    unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes().starts_with(b"trusted.")
}

/// Calls `body` with a name of this kernel's for a far file, so that the program's own rights
/// count. `None`: the daemon is on another machine.
fn here(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    body: impl FnOnce(*const c_char) -> i64,
) -> Option<Result<i64, c_int>> {
    if !state::daemon_is_here() {
        return None;
    }
    // SAFETY: a string.
    let given = if unsafe { *path } == 0 {
        let given = Given::of(FarFile::new(dir as u32, libc::S_IFREG))?;
        match table::fcntl_kernel(given.fd(), libc::F_GETFL, 0) {
            Ok(flags) if flags & libc::O_PATH != 0 => return Some(Err(libc::EBADF)),
            _ => given,
        }
    } else {
        let nofollow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
        match Given::of_path(dir, path, nofollow, libc::EOPNOTSUPP) {
            Ok(given) => given,
            Err(libc::EOPNOTSUPP) => return None,
            Err(error) => return Some(Err(error)),
        }
    };
    let result = body(given.name().as_ptr().cast());
    let outcome = if result < 0 { Err(crate::real::errno()) } else { Ok(result) };
    Some(outcome)
}

/// Whether this process may be one whose privileged attributes the kernel lists.
fn is_root() -> bool {
    crate::real::system_call(libc::SYS_geteuid, [0; 6]) == Ok(0)
}

fn by_number_here(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    give(crate::real::system_call(number, arguments).map(|value| value as i64))
}

fn get_attribute(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> Result<isize, c_int> {
    let mut room = size.min(65536) as u64;
    if fault::string(name).is_none() || !fault::writable(value, room as usize) {
        return Err(libc::EFAULT);
    }
    if let Some(error) = ahead::lacks(dir, path, flags, name) {
        return Err(error);
    }
    let asked = |file: *const c_char| {
        by_number_here(libc::SYS_getxattr, [file as usize, name as usize, value as usize, size, 0, 0])
    };
    if needs_rights_to_read(name)
        && let Some(found) = here(dir, path, flags, asked)
    {
        return found.map(|got| got as isize);
    }
    far!(px_getxattr(dir, path, flags, name, value, &raw mut room)).map(|got| got as isize)
}

fn list_attributes(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    names: *mut c_char,
    size: usize,
) -> Result<isize, c_int> {
    let mut room = size.min(65536) as u64;
    if !fault::writable(names, room as usize) {
        return Err(libc::EFAULT);
    }
    let asked = |file: *const c_char| {
        by_number_here(libc::SYS_listxattr, [file as usize, names as usize, size, 0, 0, 0])
    };
    if is_root()
        && let Some(found) = here(dir, path, flags, asked)
    {
        return found.map(|got| got as isize);
    }
    far!(px_listxattr(dir, path, flags, names.cast(), &raw mut room)).map(|got| got as isize)
}

fn remove_attribute(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
) -> Result<c_int, c_int> {
    if fault::string(name).is_none() {
        return Err(libc::EFAULT);
    }
    let asked = |file: *const c_char| {
        by_number_here(libc::SYS_removexattr, [file as usize, name as usize, 0, 0, 0, 0])
    };
    if is_privileged(name)
        && let Some(done) = here(dir, path, flags, asked)
    {
        return done.map(|_| 0);
    }
    far!(px_removexattr(dir, path, flags, name))
}

fn set_attribute(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    how: c_int,
) -> Result<c_int, c_int> {
    if fault::string(name).is_none() || !fault::readable(value, size.min(65536)) {
        return Err(libc::EFAULT);
    }
    let asked = |file: *const c_char| {
        let words = [file as usize, name as usize, value as usize, size, how as usize, 0];
        by_number_here(libc::SYS_setxattr, words)
    };
    if is_privileged(name)
        && let Some(done) = here(dir, path, flags, asked)
    {
        return done.map(|_| 0);
    }
    far!(px_setxattr(dir, path, flags, name, value, size as u64, how))
}

aliases! {
    stat64 = stat, (path: *const c_char, to: *mut libc::stat64) -> c_int;
    lstat64 = lstat, (path: *const c_char, to: *mut libc::stat64) -> c_int;
    fstat64 = fstat, (fd: c_int, to: *mut libc::stat64) -> c_int;
    fstatat64 = fstatat, (dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int) -> c_int;
    statfs64 = statfs, (path: *const c_char, to: *mut libc::statfs64) -> c_int;
    fstatfs64 = fstatfs, (fd: c_int, to: *mut libc::statfs64) -> c_int;
    statvfs64 = statvfs, (path: *const c_char, to: *mut libc::statvfs64) -> c_int;
    fstatvfs64 = fstatvfs, (fd: c_int, to: *mut libc::statvfs64) -> c_int;
    eaccess = euidaccess, (path: *const c_char, mode: c_int) -> c_int;
}

/// Of programs linked before glibc 2.33: a version comes first.
macro_rules! versioned {
    ($($name:ident = $hook:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(_version: c_int, $($arg: $type),*) -> c_int {
            // SAFETY: what the caller of the libc function promises.
            unsafe { $hook($($arg),*) }
        }
    )*};
}

versioned! {
    __xstat = stat(path: *const c_char, to: *mut libc::stat64);
    __xstat64 = stat(path: *const c_char, to: *mut libc::stat64);
    __lxstat = lstat(path: *const c_char, to: *mut libc::stat64);
    __lxstat64 = lstat(path: *const c_char, to: *mut libc::stat64);
    __fxstat = fstat(fd: c_int, to: *mut libc::stat64);
    __fxstat64 = fstat(fd: c_int, to: *mut libc::stat64);
    __fxstatat = fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int);
    __fxstatat64 = fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int);
}
