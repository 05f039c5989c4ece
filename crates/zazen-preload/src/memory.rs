//! mmap and io_uring: where the kernel would have to reach the far side by itself.
//!
//! A private mapping of a forwarded file is a copy; a shared one that can be written is refused (ENODEV), as is
//! done by file systems that can't; `--direct` has both.

use crate::far::far;
use crate::real::{aliases, hooks, system_call};
use crate::state;
use crate::table::{self, Entry};
use std::ffi::{c_int, c_uint, c_void};

/// Bytes of a mapping that is filled at once.
const PIECE: usize = 4 << 20;

hooks! {
    fn mmap(
        at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64,
    ) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS != 0 {
            return next(at, length, protection, flags, fd, offset);
        }
        let Some(entry) = table::entry(fd) else {
            return next(at, length, protection, flags, fd, offset);
        };
        match map_copy(entry, at, length, protection, flags, offset) {
            Ok(memory) => memory,
            Err(error) => {
                crate::real::set_errno(error);
                libc::MAP_FAILED
            }
        }
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        if refuses_rings() { -libc::ENOSYS } else { next(entries, ring, flags) }
    }

    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        if refuses_rings() { -libc::ENOSYS } else { next(entries, ring, parameters) }
    }

    fn io_setup(events: c_int, context: *mut c_void) -> c_int {
        if refuses_rings() { -libc::ENOSYS } else { next(events, context) }
    }

    fn io_queue_init(events: c_int, context: *mut c_void) -> c_int {
        if refuses_rings() { -libc::ENOSYS } else { next(events, context) }
    }
}

/// Whether asynchronous I/O, which goes past libc, would miss what is forwarded.
pub(crate) fn refuses_rings() -> bool {
    state::is_active() && !state::is_direct()
}

aliases! {
    mmap64 = mmap, (at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    __mmap = mmap, (at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
}

fn map_copy(
    entry: Entry,
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> Result<*mut c_void, c_int> {
    let access = far!(px_fcntl(entry.id(), libc::F_GETFL, 0))? as c_int & libc::O_ACCMODE;
    if entry.kind() != libc::S_IFREG {
        return Err(libc::ENODEV);
    }
    if access == libc::O_WRONLY {
        return Err(libc::EACCES);
    }
    let shared =
        flags & (libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE) != 0 && flags & libc::MAP_PRIVATE == 0;
    if shared && protection & libc::PROT_WRITE != 0 {
        return Err(if access == libc::O_RDWR { libc::ENODEV } else { libc::EACCES });
    }
    if length == 0 || offset % 4096 != 0 {
        return Err(libc::EINVAL);
    }
    let placed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | placed;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let minus_one = c_int::from(-1) as usize;
    let memory =
        system_call(libc::SYS_mmap, [at as usize, length, writable as usize, flags as usize, minus_one, 0])?;
    let mut done = 0;
    while done < length {
        let bytes = (length - done).min(PIECE);
        let to = (memory + done) as *mut c_void;
        match crate::data::read_far(entry, to, bytes, offset + done as i64, 0) {
            Ok(0) => break,
            Ok(got) => done += got as usize,
            Err(error) => {
                let _ = system_call(libc::SYS_munmap, [memory, length, 0, 0, 0, 0]);
                return Err(error);
            }
        }
    }
    if protection != writable {
        system_call(libc::SYS_mprotect, [memory, length, protection as usize, 0, 0, 0])?;
    }
    Ok(memory as *mut c_void)
}
