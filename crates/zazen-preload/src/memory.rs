//! mmap and io_uring: here the kernel itself would have to reach the far side.
//!
//! If the daemon is on this machine, it hands over a descriptor of the file, and the kernel maps
//! that: all mappings are the kernel's own. From another node, a private mapping, and a shared one
//! for reading, are a copy of the file, up to a bound. A mapping that could not be coherent fails
//! with ENODEV, as on file systems that cannot map; making a shared copy writable fails with
//! EACCES.

use crate::far::far;
use crate::given::Given;
use crate::real::{aliases, hooks, system_call};
use crate::table::{self, FarFile};
use crate::{heard, state};
use std::ffi::{c_int, c_uint, c_void};

/// Bytes of a copy that are read at once.
const PIECE: usize = 4 << 20;
/// Bytes of a copy, at most.
const COPY_BYTES_MAX: u64 = 256 << 20;
/// The bits of mmap's flags that say how memory is shared.
const SHARING: c_int = 0xf;

/// Whether a description's flags say that it is no open file.
fn is_by_path(flags: i64) -> bool {
    flags & i64::from(libc::O_PATH) != 0
}

hooks! {
    fn mmap(
        at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64,
    ) -> *mut c_void {
        if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
            heard::note_sharing();
        }
        if flags & libc::MAP_ANONYMOUS != 0 {
            return next(at, length, protection, flags, fd, offset);
        }
        let Some(entry) = table::entry(fd) else {
            return next(at, length, protection, flags, fd, offset);
        };
        if let Some(given) = Given::of(entry) {
            let memory = next(at, length, protection, flags, given.fd(), offset);
            let error = crate::real::errno();
            drop(given);
            crate::real::set_errno(error);
            return memory;
        }
        // What is no mapping at all, the kernel says before it looks at the file.
        let copy = if length == 0 || flags & libc::MAP_TYPE == 0 {
            Err(libc::EINVAL)
        } else if far!(px_fcntl(entry.id(), libc::F_GETFL, 0)).is_ok_and(is_by_path) {
            Err(libc::EBADF)
        } else {
            copy_for(entry, length, protection, flags, offset)
        };
        let copied = copy.and_then(|copy| {
            let memory = next(at, length, protection, flags & !libc::MAP_SYNC, copy, 0);
            let error = crate::real::errno();
            table::close_kernel(copy);
            if memory == libc::MAP_FAILED { Err(error) } else { Ok(memory) }
        });
        match copied {
            Ok(memory) => memory,
            Err(error) => {
                crate::real::set_errno(error);
                libc::MAP_FAILED
            }
        }
    }

    fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
        heard::note_sharing();
        next(id, at, flags)
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
    mmap64 = mmap,
        (at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64)
            -> *mut c_void;
    __mmap = mmap,
        (at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64)
            -> *mut c_void;
}

/// A descriptor of memory that holds what is to be mapped of a far file.
fn copy_for(
    entry: FarFile,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> Result<c_int, c_int> {
    let access = far!(px_fcntl(entry.id(), libc::F_GETFL, 0))? as c_int & libc::O_ACCMODE;
    if entry.kind() != libc::S_IFREG {
        return Err(libc::ENODEV);
    }
    if access == libc::O_WRONLY {
        return Err(libc::EACCES);
    }
    let shared = match flags & SHARING {
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => true,
        _ => return Err(libc::EINVAL),
    };
    if shared && protection & libc::PROT_WRITE != 0 {
        return Err(if access == libc::O_RDWR { libc::ENODEV } else { libc::EACCES });
    }
    // A mapping that must reach the medium (MAP_SYNC) can't be a copy.
    if flags & SHARING == libc::MAP_SHARED_VALIDATE && flags & libc::MAP_SYNC != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if length == 0 || offset < 0 || offset % 4096 != 0 {
        return Err(libc::EINVAL);
    }
    let mut stat = crate::far::PxStat::default();
    let asked = libc::AT_EMPTY_PATH;
    far!(px_stat(entry.dir(), crate::far::EMPTY, asked, libc::STATX_SIZE, (&raw mut stat).cast()))?;
    let bytes = stat.size.saturating_sub(offset as u64).min(length as u64);
    if bytes > COPY_BYTES_MAX {
        return Err(libc::ENODEV);
    }
    let name = c"zazen-mapping".as_ptr() as usize;
    let options = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    let fd = system_call(libc::SYS_memfd_create, [name, options, 0, 0, 0, 0])?;
    let filled = fill(fd, entry, bytes as usize, offset).and_then(|()| {
        // Nobody shall take writes for the file's: mprotect must not make a shared copy writable.
        let seals = if shared { libc::F_SEAL_FUTURE_WRITE } else { 0 };
        table::fcntl_kernel(fd as c_int, libc::F_ADD_SEALS, seals as usize)
    });
    if let Err(error) = filled {
        table::close_kernel(fd as c_int);
        return Err(error);
    }
    Ok(fd as c_int)
}

/// Reads part of a far file into a file in memory, which gets no more than there is: beyond it, the
/// kernel sends SIGBUS, as it does for the file.
fn fill(fd: usize, entry: FarFile, bytes: usize, offset: i64) -> Result<(), c_int> {
    system_call(libc::SYS_ftruncate, [fd, bytes, 0, 0, 0, 0])?;
    if bytes == 0 {
        return Ok(());
    }
    let (protection, shared) = ((libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize);
    let memory = system_call(libc::SYS_mmap, [0, bytes, protection, shared, fd, 0])?;
    let mut done = 0;
    let outcome = loop {
        let piece = (bytes - done).min(PIECE);
        let to = (memory + done) as *mut c_void;
        match crate::data::read_far(entry, to, piece, offset + done as i64, 0) {
            // The file is shorter by now: without the cut, its end would read as zeros.
            Ok(0) => break system_call(libc::SYS_ftruncate, [fd, done, 0, 0, 0, 0]).map(drop),
            Ok(got) => done += got as usize,
            Err(error) => break Err(error),
        }
        if done >= bytes {
            break Ok(());
        }
    };
    let _ = system_call(libc::SYS_munmap, [memory, bytes, 0, 0, 0, 0]);
    outcome
}
