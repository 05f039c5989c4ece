//! close, fcntl and ioctl: what is done with descriptors as numbers.

use crate::far::{Lock, far};
use crate::given::{self, Given, Real};
use crate::real::{aliases, give, hooks};
use crate::table::{self, FarFile};
use crate::transport::{self, tagged};
use crate::{ahead, events, fault, heard, state};
use std::ffi::{c_int, c_uint};
use zazen_forward_api::structures::CLOSE_LAST;

/// Lets go of a descriptor at the far side.
pub(crate) fn drop_entry(fd: c_int) -> Result<(), c_int> {
    events::closed(fd);
    match table::take(fd) {
        Some((entry, last)) => {
            let mut how = 0;
            if last {
                table::drop_kept(entry);
                how = CLOSE_LAST | ahead::closed(entry);
            }
            let close = || far!(px_close(entry.id(), how)).map(|_| ());
            match state::uses_locks() {
                // Of a file that stays open, only locks go.
                false if !last => Ok(()),
                false if entry.is_only_read() && ahead::close_later(entry.id(), how) => Ok(()),
                false if entry.is_only_read() => transport::without_waiting(close),
                _ => close(),
            }
        }
        None => Ok(()),
    }
}

/// Another number for a forwarded descriptor, made by the kernel's own dup of the placeholder.
pub(crate) fn enter_dup(result: Result<c_int, c_int>, entry: FarFile) -> Result<c_int, c_int> {
    let fd = result?;
    if !table::set(fd, entry) {
        table::close_kernel(fd);
        return Err(libc::EMFILE);
    }
    Ok(fd)
}

hooks! {
    fn close(fd: c_int) -> c_int {
        if table::entry(fd).is_none() {
            if transport::owns(fd) {
                return give(Err(libc::EBADF));
            }
            events::closed(fd);
            return next(fd);
        }
        let outcome = drop_entry(fd);
        table::close_kernel(fd);
        give(outcome.map(|()| 0))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if !state::is_active() {
            return next(first, last, flags);
        }
        give(close_many(first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        if !state::is_active() {
            return next(first);
        }
        let _ = close_many(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        match table::entry(fd) {
            Some(entry) => give(control(fd, entry, command, argument)),
            None if transport::owns(fd) => give(Err(libc::EBADF)),
            None => {
                if is_of_locks(command) {
                    heard::hear();
                }
                next(fd, command, argument)
            }
        }
    }

    fn flock(fd: c_int, operation: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return next(fd, operation);
        };
        let id = entry.id();
        state::note_locks();
        give(match far!(px_flock(id, operation)) {
            Err(libc::EAGAIN) if operation & libc::LOCK_NB == 0 => {
                tagged(|tag| far!(px_flock_wait(id, operation, tag)))
            }
            other => other,
        })
    }

    fn lockf(fd: c_int, command: c_int, length: i64) -> c_int {
        if table::entry(fd).is_none() {
            heard::hear();
            return next(fd, command, length);
        }
        let mut lock: libc::flock64 = std::mem::zeroed();
        lock.l_whence = libc::SEEK_CUR as i16;
        lock.l_len = length;
        lock.l_type = if command == libc::F_ULOCK { libc::F_UNLCK as i16 } else { libc::F_WRLCK as i16 };
        let pointer = (&raw mut lock) as usize;
        match command {
            libc::F_LOCK => fcntl(fd, libc::F_SETLKW, pointer),
            libc::F_TLOCK | libc::F_ULOCK => fcntl(fd, libc::F_SETLK, pointer),
            libc::F_TEST => {
                lock.l_type = libc::F_WRLCK as i16;
                if fcntl(fd, libc::F_GETLK, pointer) < 0 {
                    return -1;
                }
                if lock.l_type == libc::F_UNLCK as i16 { 0 } else { give(Err(libc::EACCES)) }
            }
            _ => give(Err(libc::EINVAL)),
        }
    }

    fn ioctl(fd: c_int, request: u64, argument: usize) -> c_int {
        match table::entry(fd) {
            Some(entry) => give(device_control(fd, entry, request, argument)),
            None => {
                heard::hear();
                next(fd, request, argument)
            }
        }
    }

    fn isatty(fd: c_int) -> c_int {
        match table::entry(fd) {
            Some(_) => {
                crate::real::set_errno(libc::ENOTTY);
                0
            }
            None => next(fd),
        }
    }
}

aliases! {
    __close = close, (fd: c_int) -> c_int;
    fcntl64 = fcntl, (fd: c_int, command: c_int, argument: usize) -> c_int;
    __fcntl = fcntl, (fd: c_int, command: c_int, argument: usize) -> c_int;
    lockf64 = lockf, (fd: c_int, command: c_int, length: i64) -> c_int;
}

/// Whether a command of fcntl is about locks: who gets one knows that others are done.
fn is_of_locks(command: c_int) -> bool {
    matches!(
        command,
        libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
            | libc::F_GETLEASE
            | libc::F_SETLEASE
    )
}

/// close_range around what is forwarded and what is ours.
fn close_many(first: c_uint, last: c_uint, flags: c_int) -> Result<c_int, c_int> {
    if first > last {
        return Err(libc::EINVAL);
    }
    let only_mark = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if !only_mark {
        events::closed_many(first, last);
        let end = c_int::try_from(last).unwrap_or(c_int::MAX).min(table::end().max(1) - 1);
        for fd in c_int::try_from(first).unwrap_or(c_int::MAX)..=end {
            // The kernel's part follows below.
            let _ = drop_entry(fd);
        }
    }
    let close = |from: c_uint, to: c_uint| {
        if from > to {
            return Ok(0);
        }
        let arguments = [from as usize, to as usize, flags as usize, 0, 0, 0];
        crate::real::system_call(libc::SYS_close_range, arguments).map(|_| 0)
    };
    if only_mark {
        return close(first, last);
    }
    let mut from = first;
    let mut own: Vec<c_int> = transport::descriptors().chain(table::peers()).collect();
    own.sort_unstable();
    for fd in own.iter().map(|fd| *fd as c_uint).filter(|fd| (first..=last).contains(fd)) {
        if fd > from {
            close(from, fd - 1)?;
        }
        from = fd + 1;
    }
    close(from, last)
}

fn control(fd: c_int, entry: FarFile, command: c_int, argument: usize) -> Result<c_int, c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => enter_dup(table::fcntl_kernel(fd, command, argument), entry),
        libc::F_GETFD | libc::F_SETFD => table::fcntl_kernel(fd, command, argument),
        libc::F_GETLK | libc::F_OFD_GETLK | libc::F_SETLK | libc::F_OFD_SETLK => {
            // SAFETY: what fcntl(2) takes for these commands.
            unsafe { lock(entry, command, argument as *mut libc::flock64) }
        }
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            // SAFETY: as above.
            unsafe { lock_wait(entry, command, argument as *const libc::flock64) }
        }
        // The kernel drops notifications when a descriptor of the file is closed.
        libc::F_NOTIFY => table::fcntl_kernel(given::keep(entry)?.fd(), command, argument),
        libc::F_GETFL
        | libc::F_SETFL
        | libc::F_GETPIPE_SZ
        | libc::F_SETPIPE_SZ
        | libc::F_ADD_SEALS
        | libc::F_GET_SEALS => {
            far!(px_fcntl(entry.id(), command, argument as i64)).map(|value| value as c_int)
        }
        // Owners, signals and leases are between a process and its own kernel.
        _ => match Given::of(entry) {
            Some(given) => table::fcntl_kernel(given.fd(), command, argument),
            None => Err(libc::EINVAL),
        },
    }
}

unsafe fn lock(entry: FarFile, command: c_int, asked: *mut libc::flock64) -> Result<c_int, c_int> {
    let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    // A program's own may be a constant, where it is not written.
    let bytes = size_of::<libc::flock64>();
    if !(if asks { fault::writable(asked, bytes) } else { fault::readable(asked, bytes) }) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's object.
    let mut lock = to_far(unsafe { &*asked });
    state::note_locks();
    far!(px_lock(entry.id(), command, (&raw mut lock).cast()))?;
    if asks {
        // SAFETY: as above.
        let asked = unsafe { &mut *asked };
        asked.l_type = lock.kind as i16;
        if lock.kind != libc::F_UNLCK {
            asked.l_whence = lock.whence as i16;
            asked.l_start = lock.start;
            asked.l_len = lock.length;
            asked.l_pid = lock.pid;
        }
    } else {
        crate::wal::note_lock(&lock);
    }
    Ok(0)
}

fn to_far(lock: &libc::flock64) -> Lock {
    Lock {
        start: lock.l_start,
        length: lock.l_len,
        kind: lock.l_type.into(),
        whence: lock.l_whence.into(),
        pid: lock.l_pid,
        reserved: 0,
    }
}

unsafe fn lock_wait(entry: FarFile, command: c_int, asked: *const libc::flock64) -> Result<c_int, c_int> {
    if !fault::readable(asked, size_of::<libc::flock64>()) {
        return Err(libc::EFAULT);
    }
    let at_once = if command == libc::F_SETLKW { libc::F_SETLK } else { libc::F_OFD_SETLK };
    // SAFETY: the program's object.
    let mut lock = to_far(unsafe { &*asked });
    state::note_locks();
    match far!(px_lock(entry.id(), at_once, (&raw mut lock).cast())) {
        Err(libc::EAGAIN | libc::EACCES) => {
            let asked = (&raw const lock).cast();
            tagged(|tag| far!(px_lock_wait(entry.id(), command, tag, asked)))
        }
        other => other,
    }
}

fn device_control(fd: c_int, entry: FarFile, request: u64, argument: usize) -> Result<c_int, c_int> {
    match request {
        libc::FIOCLEX => table::fcntl_kernel(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize),
        libc::FIONCLEX => table::fcntl_kernel(fd, libc::F_SETFD, 0),
        libc::FIONREAD | libc::FIONBIO | libc::TIOCOUTQ | GET_FLAGS | SET_FLAGS => {
            let pointer = argument as *mut c_int;
            // A program's own may be a constant, where it is not written.
            let takes = matches!(request, libc::FIONBIO | SET_FLAGS);
            let bytes = size_of::<c_int>();
            if !(if takes { fault::readable(pointer, bytes) } else { fault::writable(pointer, bytes) }) {
                return Err(libc::EFAULT);
            }
            // SAFETY: what ioctl(2) takes for these requests.
            let mut value = u64::from(unsafe { *pointer } as u32);
            let result = far!(px_ioctl(entry.id(), request, &raw mut value))?;
            if !takes {
                // SAFETY: as above.
                unsafe { *pointer = value as c_int };
            }
            Ok(result)
        }
        _ => match Given::of(entry) {
            Some(given) => device_control_here(given.fd(), request, argument),
            // Cloning names a second descriptor, which could be this kernel's.
            None if matches!(request, FICLONE | FICLONERANGE) => Err(libc::EOPNOTSUPP),
            None if far!(px_fcntl(entry.id(), libc::F_GETFL, 0))? & i64::from(libc::O_PATH) != 0 => {
                Err(libc::EBADF)
            }
            None => Err(libc::ENOTTY),
        },
    }
}

/// FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: declared with a long, used with an int.
const GET_FLAGS: u64 = 0x8008_6601;
const SET_FLAGS: u64 = 0x4008_6602;
const FICLONE: u64 = 0x4004_9409;
const FICLONERANGE: u64 = 0x4020_940d;

/// By this kernel, for a descriptor that it has. Other descriptors that a request names are the
/// program's.
fn device_control_here(fd: c_int, request: u64, argument: usize) -> Result<c_int, c_int> {
    let call = |argument: usize| {
        let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
        crate::real::system_call(libc::SYS_ioctl, arguments).map(|value| value as c_int)
    };
    match request {
        FICLONE => {
            let from = Real::of(argument as c_int).ok_or(libc::EXDEV)?;
            call(from.fd() as usize)
        }
        FICLONERANGE => {
            let range = argument as *const [i64; 4];
            if !fault::readable(range, size_of::<[i64; 4]>()) {
                return Err(libc::EFAULT);
            }
            // SAFETY: the program's structure, as was just looked.
            let mut range = unsafe { range.read() };
            let from = Real::of(range[0] as c_int).ok_or(libc::EXDEV)?;
            range[0] = from.fd().into();
            call((&raw const range) as usize)
        }
        _ => call(argument),
    }
}
