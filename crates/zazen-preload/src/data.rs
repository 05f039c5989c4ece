//! Reading, writing, seeking: calls on forwarded descriptors go to the far side, all others to
//! libc.
//!
//! Invariant: a regular file is read and written in full, as the kernel does, though one call
//! carries at most `BYTES_MAX`. After an error, the result is what was moved before it.

use crate::far::{BYTES_MAX, Destination, OFFSET, far, place};
use crate::real::{aliases, give, hooks};
use crate::table::{self, FarFile};
use crate::transport::{self, tagged};
use crate::{ahead, descriptors, fault, given, heard};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_forward_api::paths::Text;

/// RLIMIT_FSIZE of this process.
pub(crate) static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// Reads the limit anew.
pub(crate) fn refresh_limit() {
    // SAFETY: all zeros is a valid limit.
    let mut limit: libc::rlimit64 = unsafe { std::mem::zeroed() };
    let asked = [0, libc::RLIMIT_FSIZE as usize, 0, (&raw mut limit) as usize, 0, 0];
    if crate::real::system_call(libc::SYS_prlimit64, asked).is_ok() {
        FILE_BYTES_MAX.store(limit.rlim_cur, Ordering::Relaxed);
    }
}

/// Moves up to `count` bytes by pieces; `offset` is OFFSET or where.
fn by_pieces(
    count: usize,
    offset: i64,
    mut piece: impl FnMut(usize, usize, i64) -> Result<i64, c_int>,
) -> Result<isize, c_int> {
    let count = count.min(0x7fff_f000);
    let mut done = 0;
    loop {
        let bytes = (count - done).min(BYTES_MAX);
        let at = if offset == OFFSET { OFFSET } else { offset + done as i64 };
        match piece(done, bytes, at) {
            Ok(moved) => {
                done += moved as usize;
                if (moved as usize) < bytes || done >= count {
                    return Ok(done as isize);
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done as isize),
        }
    }
}

pub(crate) fn read_far(
    entry: FarFile,
    data: *mut c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> Result<isize, c_int> {
    let id = entry.id();
    if flags == 0 && ahead::has(id) {
        let room = fault::backed(data, count.min(BYTES_MAX), true)?;
        if let Some(got) = ahead::read(id, data, room, offset) {
            return Ok(got as isize);
        }
    }
    if entry.is_prompt() || offset != OFFSET || flags != 0 {
        return by_pieces(count, offset, |done, bytes, at| {
            let to = data.cast::<u8>().wrapping_add(done);
            let mut room = fault::backed(to, bytes, true)? as u64;
            far!(px_read(id, at, flags, to.cast(), &raw mut room))
        });
    }
    let mut room = fault::backed(data, count.min(BYTES_MAX), true)? as u64;
    tagged(|tag| far!(px_read_wait(id, tag, data, &raw mut room))).map(|got| got as isize)
}

pub(crate) fn write_far(
    entry: FarFile,
    data: *const c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> Result<isize, c_int> {
    let id = entry.id();
    if entry.is_prompt() || offset != OFFSET || flags != 0 {
        let count = within_limit(entry, count, offset)?;
        crate::wal::look(entry, data.cast(), count, offset)?;
        return by_pieces(count, offset, |done, bytes, at| {
            let from = data.cast::<u8>().wrapping_add(done);
            let bytes = fault::backed(from, bytes, false)?;
            heard::note_write(id);
            far!(px_write(id, at, flags, from.cast(), bytes as u64))
        });
    }
    let mut done = 0;
    loop {
        let from = data.cast::<u8>().wrapping_add(done).cast::<c_void>();
        let bytes = match fault::backed(from, (count - done).min(BYTES_MAX), false) {
            Ok(bytes) => bytes,
            Err(_) if done > 0 => return Ok(done as isize),
            Err(error) => return Err(error),
        };
        match tagged(|tag| far!(px_write_wait(id, tag, from, bytes as u64))) {
            Ok(moved) => {
                done += moved as usize;
                if (moved as usize) < bytes || done >= count {
                    return Ok(done as isize);
                }
            }
            Err(_) if done > 0 => return Ok(done as isize),
            Err(error) => {
                if error == libc::EPIPE {
                    raise(libc::SIGPIPE);
                }
                if error == libc::EAGAIN {
                    crate::events::would_block(id);
                }
                return Err(error);
            }
        }
    }
}

/// A signal to this thread, as the kernel would have sent it.
pub(crate) fn raise(signal: c_int) {
    let pid = crate::real::system_call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
    let tid = crate::real::system_call(libc::SYS_gettid, [0; 6]).unwrap_or(0);
    let _ = crate::real::system_call(libc::SYS_tgkill, [pid, tid, signal as usize, 0, 0, 0]);
}

/// How much of a write RLIMIT_FSIZE allows; SIGXFSZ and EFBIG if nothing.
fn within_limit(entry: FarFile, count: usize, offset: i64) -> Result<usize, c_int> {
    let limit = FILE_BYTES_MAX.load(Ordering::Relaxed);
    if limit == u64::MAX || entry.kind() != libc::S_IFREG || count == 0 {
        return Ok(count);
    }
    let id = entry.id();
    let appends = far!(px_fcntl(id, libc::F_GETFL, 0))? & i64::from(libc::O_APPEND) != 0;
    let at = if appends {
        let mut stat = crate::far::PxStat::default();
        let flags = libc::AT_EMPTY_PATH;
        far!(px_stat(entry.dir(), crate::far::EMPTY, flags, libc::STATX_SIZE, (&raw mut stat).cast()))?;
        stat.size
    } else if offset == OFFSET {
        far!(px_seek(id, 0, libc::SEEK_CUR))? as u64
    } else {
        offset as u64
    };
    if at >= limit {
        raise(libc::SIGXFSZ);
        return Err(libc::EFBIG);
    }
    Ok(count.min((limit - at) as usize))
}

/// The whole of an iovec array in one piece of memory, so that it is one read or write.
struct Gathered {
    memory: *mut u8,
    bytes: usize,
}

impl Gathered {
    unsafe fn new(parts: *const libc::iovec, count: c_int) -> Result<Gathered, c_int> {
        let count = usize::try_from(count).ok().filter(|count| *count <= 1024).ok_or(libc::EINVAL)?;
        let mut bytes = 0_usize;
        if !fault::readable(parts, count * size_of::<libc::iovec>()) {
            return Err(libc::EFAULT);
        }
        for at in 0..count {
            // SAFETY: the program's array of that length.
            let length = unsafe { (*parts.add(at)).iov_len };
            bytes =
                bytes.checked_add(length).filter(|sum| *sum <= isize::MAX as usize).ok_or(libc::EINVAL)?;
        }
        let bytes = bytes.min(0x7fff_f000);
        // SAFETY: a size; the result is looked at.
        let memory = unsafe { libc::malloc(bytes.max(1)) }.cast::<u8>();
        if memory.is_null() {
            return Err(libc::ENOMEM);
        }
        Ok(Gathered { memory, bytes })
    }

    /// Copies between the parts and the memory, up to `bytes`. Returns how many: fewer where the
    /// program does not have a part's memory.
    unsafe fn copy(&self, parts: *const libc::iovec, bytes: usize, to_parts: bool) -> usize {
        let (mut done, mut at) = (0, 0);
        while done < bytes {
            // SAFETY: the program's parts have at least `bytes` bytes together.
            unsafe {
                let part = *parts.add(at);
                let length = part.iov_len.min(bytes - done);
                let (mine, theirs) = (self.memory.add(done), part.iov_base.cast::<u8>());
                if fault::backed(theirs, length, to_parts) != Ok(length) {
                    break;
                }
                if to_parts {
                    std::ptr::copy_nonoverlapping(mine, theirs, length);
                } else {
                    std::ptr::copy_nonoverlapping(theirs, mine, length);
                }
                done += length;
            }
            at += 1;
        }
        done
    }

    /// As many of the bytes as the program has memory for, from the first part on; EFAULT if none.
    unsafe fn backed(&self, parts: *const libc::iovec, writes: bool) -> Result<usize, c_int> {
        let (mut done, mut at) = (0, 0);
        while done < self.bytes {
            // SAFETY: the program's parts have that many bytes together.
            let part = unsafe { *parts.add(at) };
            let length = part.iov_len.min(self.bytes - done);
            match fault::backed(part.iov_base, length, writes) {
                Ok(good) if good == length => done += length,
                Ok(good) => return Ok(done + good),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
            at += 1;
        }
        Ok(done)
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        // SAFETY: malloc's.
        unsafe { libc::free(self.memory.cast()) }
    }
}

pub(crate) unsafe fn read_parts(
    entry: FarFile,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> Result<isize, c_int> {
    // SAFETY: the program's array.
    unsafe {
        if count == 1 && fault::readable(parts, size_of::<libc::iovec>()) {
            if (*parts).iov_len > isize::MAX as usize {
                return Err(libc::EINVAL);
            }
            return read_far(entry, (*parts).iov_base, (*parts).iov_len, offset, flags);
        }
        let gathered = Gathered::new(parts, count)?;
        let room = gathered.backed(parts, true)?;
        let got = read_far(entry, gathered.memory.cast(), room, offset, flags)?;
        Ok(gathered.copy(parts, got as usize, true) as isize)
    }
}

pub(crate) unsafe fn write_parts(
    entry: FarFile,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> Result<isize, c_int> {
    // SAFETY: the program's array.
    unsafe {
        if count == 1 && fault::readable(parts, size_of::<libc::iovec>()) {
            if (*parts).iov_len > isize::MAX as usize {
                return Err(libc::EINVAL);
            }
            return write_far(entry, (*parts).iov_base, (*parts).iov_len, offset, flags);
        }
        let gathered = Gathered::new(parts, count)?;
        let bytes = gathered.backed(parts, false)?;
        let bytes = gathered.copy(parts, bytes, false);
        write_far(entry, gathered.memory.cast(), bytes, offset, flags)
    }
}

/// pread and pwrite take no negative offsets, and no FIFOs or sockets.
fn positioned(entry: FarFile, offset: i64) -> Result<(), c_int> {
    if offset < 0 {
        return Err(libc::EINVAL);
    }
    if entry.is_socket() || entry.kind() == libc::S_IFIFO {
        return Err(libc::ESPIPE);
    }
    Ok(())
}

hooks! {
    fn read(fd: c_int, data: *mut c_void, count: usize) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, data, count) }
            Some(entry) => give(read_far(entry, data, count, OFFSET, 0)),
        }
    }

    fn write(fd: c_int, data: *const c_void, count: usize) -> isize {
        match table::entry(fd) {
            None => next(fd, data, count),
            Some(entry) => give(write_far(entry, data, count, OFFSET, 0)),
        }
    }

    fn pread(fd: c_int, data: *mut c_void, count: usize, offset: i64) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, data, count, offset) }
            Some(entry) => {
                give(positioned(entry, offset).and_then(|()| read_far(entry, data, count, offset, 0)))
            }
        }
    }

    fn pwrite(fd: c_int, data: *const c_void, count: usize, offset: i64) -> isize {
        match table::entry(fd) {
            None => next(fd, data, count, offset),
            Some(entry) => {
                give(positioned(entry, offset).and_then(|()| write_far(entry, data, count, offset, 0)))
            }
        }
    }

    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, parts, count) }
            Some(entry) => give(read_parts(entry, parts, count, OFFSET, 0)),
        }
    }

    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        match table::entry(fd) {
            None => next(fd, parts, count),
            Some(entry) => give(write_parts(entry, parts, count, OFFSET, 0)),
        }
    }

    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, parts, count, offset) }
            Some(entry) => {
                give(positioned(entry, offset).and_then(|()| read_parts(entry, parts, count, offset, 0)))
            }
        }
    }

    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize {
        match table::entry(fd) {
            None => next(fd, parts, count, offset),
            Some(entry) => {
                give(positioned(entry, offset).and_then(|()| write_parts(entry, parts, count, offset, 0)))
            }
        }
    }

    fn preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, parts, count, offset, flags) }
            Some(entry) => give(read_parts(entry, parts, count, offset, flags)),
        }
    }

    fn pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        match table::entry(fd) {
            None => next(fd, parts, count, offset, flags),
            Some(entry) => give(write_parts(entry, parts, count, offset, flags)),
        }
    }

    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, offset, whence) }
            Some(entry) => give(ahead::seek(entry.id(), offset, whence)),
        }
    }

    fn fsync(fd: c_int) -> c_int {
        match table::entry(fd) {
            None => next(fd),
            Some(entry) => give(far!(px_sync(entry.id(), 0))),
        }
    }

    fn fdatasync(fd: c_int) -> c_int {
        match table::entry(fd) {
            None => next(fd),
            Some(entry) => give(far!(px_sync(entry.id(), 1))),
        }
    }

    fn syncfs(fd: c_int) -> c_int {
        match table::entry(fd) {
            None => next(fd),
            Some(entry) => give(far!(px_sync(entry.id(), 2))),
        }
    }

    fn sync_file_range(fd: c_int, offset: i64, count: i64, flags: c_uint) -> c_int {
        match table::entry(fd) {
            None => next(fd, offset, count, flags),
            Some(entry) => {
                let end = offset.checked_add(count).unwrap_or(-1);
                if flags & !RANGE_FLAGS != 0 || offset < 0 || count < 0 || end < 0 {
                    return give(Err(libc::EINVAL));
                }
                if entry.is_socket() || !entry.is_prompt() {
                    return give(Err(libc::ESPIPE));
                }
                // Weaker than what is done.
                give(far!(px_sync(entry.id(), 1)))
            }
        }
    }

    fn truncate(path: *const c_char, size: i64) -> c_int {
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, size),
            Ok(Destination::Far(_, _)) if over_limit(size) => give(Err(libc::EFBIG)),
            Ok(Destination::Far(dir, path)) => give(far!(px_truncate(dir, path, size))),
            Err(error) => give(Err(error)),
        }
    }

    fn ftruncate(fd: c_int, size: i64) -> c_int {
        match table::entry(fd) {
            None => next(fd, size),
            Some(_) if over_limit(size) => give(Err(libc::EFBIG)),
            Some(entry) => give(far!(px_truncate(entry.dir(), crate::far::EMPTY, size))),
        }
    }

    fn fallocate(fd: c_int, mode: c_int, offset: i64, size: i64) -> c_int {
        match table::entry(fd) {
            None => next(fd, mode, offset, size),
            Some(entry) => give(far!(px_allocate(entry.id(), mode, offset, size))),
        }
    }

    fn posix_fallocate(fd: c_int, offset: i64, size: i64) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, offset, size) };
        match far!(px_allocate(entry.id(), 0, offset, size)) {
            Ok(_) => 0,
            Err(error) => error,
        }
    }

    fn posix_fadvise(fd: c_int, offset: i64, size: i64, advice: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, offset, size, advice) };
        let advise = || far!(px_advise(entry.id(), offset, size, advice));
        // Good advice on such a file never fails, and changes no answer.
        let is_good = size >= 0 && (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
        let unawaited = is_good && entry.is_only_read() && entry.kind() == libc::S_IFREG;
        match if unawaited { transport::without_waiting(advise) } else { advise() } {
            Ok(_) => 0,
            Err(error) => error,
        }
    }

    fn readahead(fd: c_int, offset: i64, count: usize) -> isize {
        let Some(entry) = table::entry(fd) else { return next(fd, offset, count) };
        let flags = match far!(px_fcntl(entry.id(), libc::F_GETFL, 0)) {
            Ok(flags) => flags as c_int,
            Err(error) => return give(Err(error)),
        };
        if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
            return give(Err(libc::EBADF));
        }
        if !matches!(entry.kind(), libc::S_IFREG | libc::S_IFBLK) {
            return give(Err(libc::EINVAL));
        }
        let wanted = libc::POSIX_FADV_WILLNEED;
        give(far!(px_advise(entry.id(), offset, count as i64, wanted)).map(|_| 0))
    }

    fn copy_file_range(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize, flags: c_uint,
    ) -> isize {
        match (table::entry(from), table::entry(to)) {
            (None, None) => { heard::hear(); next(from, from_offset, to, to_offset, count, flags) }
            (Some(from), Some(to)) if flags == 0 => {
                give(copy_far(from, from_offset, to, to_offset, count))
            }
            (Some(_), Some(_)) => give(Err(libc::EINVAL)),
            _ => {
                let here = given::with_both(from, to, |from, to| {
                    next(from, from_offset, to, to_offset, count, flags)
                });
                match here {
                    Some(copied) => copied,
                    // Two kernels: programs fall back to reading and writing.
                    None if table::is_open(from) && table::is_open(to) => give(Err(libc::EXDEV)),
                    None => give(Err(libc::EBADF)),
                }
            }
        }
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
        if table::entry(from).is_none() && table::entry(to).is_none() {
            heard::hear();
            return next(to, from, offset, count);
        }
        if let Some(sent) = given::with_both(to, from, |to, from| next(to, from, offset, count)) {
            return sent;
        }
        if !offset.is_null() && !fault::writable(offset, size_of::<i64>()) {
            return give(Err(libc::EFAULT));
        }
        if !offset.is_null() && *offset < 0 {
            return give(Err(libc::EINVAL));
        }
        if let Err(error) = can_send(to, from, count) {
            return give(Err(error));
        }
        give(send_file(to, from, offset, count))
    }

    fn splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize, flags: c_uint,
    ) -> isize {
        if table::entry(from).is_none() && table::entry(to).is_none() {
            heard::hear();
            return next(from, from_offset, to, to_offset, count, flags);
        }
        let here = given::with_both(from, to, |from, to| {
            next(from, from_offset, to, to_offset, count, flags)
        });
        match here {
            Some(moved) => moved,
            None => give(splice_by_copy(from, from_offset, to, to_offset, count)),
        }
    }

    fn tee(from: c_int, to: c_int, count: usize, flags: c_uint) -> isize {
        if table::entry(from).is_none() && table::entry(to).is_none() {
            heard::hear();
            return next(from, to, count, flags);
        }
        given::with_both(from, to, |from, to| next(from, to, count, flags))
            .unwrap_or_else(|| give(Err(libc::EINVAL)))
    }

    fn vmsplice(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_uint) -> isize {
        match table::entry(fd) {
            None => { heard::hear(); next(fd, parts, count, flags) }
            Some(_) => given::with_both(fd, fd, |fd, _| next(fd, parts, count, flags))
                .unwrap_or_else(|| give(Err(libc::EBADF))),
        }
    }

    fn setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int {
        let result = next(resource, limit);
        refresh_limit();
        result
    }

    fn prlimit(pid: libc::pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int {
        let result = next(pid, resource, new, old);
        refresh_limit();
        result
    }
}

/// What sync_file_range knows.
const RANGE_FLAGS: c_uint =
    libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// What sendfile(2) checks, in its order.
unsafe fn can_send(to: c_int, from: c_int, count: usize) -> Result<(), c_int> {
    // SAFETY: numbers only.
    let (input, output) =
        unsafe { (descriptors::fcntl(from, libc::F_GETFL, 0), descriptors::fcntl(to, libc::F_GETFL, 0)) };
    let (reads, writes) =
        (input & libc::O_ACCMODE != libc::O_WRONLY, output & libc::O_ACCMODE != libc::O_RDONLY);
    if input < 0 || output < 0 || (input | output) & libc::O_PATH != 0 || !reads || !writes {
        return Err(libc::EBADF);
    }
    let is_directory = table::entry(from).is_some_and(|entry| entry.kind() == libc::S_IFDIR);
    let refused = output & libc::O_APPEND != 0 || (is_directory && count > 0);
    if refused { Err(libc::EINVAL) } else { Ok(()) }
}

fn over_limit(size: i64) -> bool {
    let limit = FILE_BYTES_MAX.load(Ordering::Relaxed);
    let over = size > 0 && size as u64 > limit;
    if over {
        raise(libc::SIGXFSZ);
    }
    over
}

unsafe fn copy_far(
    from: FarFile,
    from_offset: *mut i64,
    to: FarFile,
    to_offset: *mut i64,
    count: usize,
) -> Result<isize, c_int> {
    // SAFETY: the program's objects, or NULL.
    unsafe {
        let mut here = if from_offset.is_null() { OFFSET } else { *from_offset };
        let mut there = if to_offset.is_null() { OFFSET } else { *to_offset };
        if (!from_offset.is_null() && here < 0) || (!to_offset.is_null() && there < 0) {
            return Err(libc::EINVAL);
        }
        let copied = far!(px_copy(from.id(), &raw mut here, to.id(), &raw mut there, count as u64))?;
        if !from_offset.is_null() {
            *from_offset = here;
        }
        if !to_offset.is_null() {
            *to_offset = there;
        }
        Ok(copied as isize)
    }
}

/// sendfile between this machine and the far side, or within the far side: by reading and writing.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut i64, count: usize) -> Result<isize, c_int> {
    const PIECE: usize = 1 << 18;
    // SAFETY: a size; the result is looked at.
    let memory = unsafe { libc::malloc(PIECE) };
    if memory.is_null() {
        return Err(libc::ENOMEM);
    }
    let mut done = 0;
    let mut outcome = Ok(());
    // SAFETY: memory of PIECE bytes; the program's offset, or NULL.
    unsafe {
        while done < count {
            let bytes = (count - done).min(PIECE);
            let at = if offset.is_null() { lseek(from, 0, libc::SEEK_CUR) } else { *offset };
            let got = if at < 0 { at as isize } else { pread(from, memory, bytes, at) };
            if got < 0 {
                outcome = Err(crate::real::errno());
                break;
            }
            let sent = if got == 0 { 0 } else { write(to, memory, got as usize) };
            if sent < 0 {
                outcome = Err(crate::real::errno());
                break;
            }
            done += sent as usize;
            if offset.is_null() {
                lseek(from, at + sent as i64, libc::SEEK_SET);
            } else {
                *offset = at + sent as i64;
            }
            if sent == 0 || sent < got {
                break;
            }
        }
        libc::free(memory);
    }
    if done == 0 { outcome.map(|()| 0) } else { Ok(done as isize) }
}

/// splice between a pipe here and a far file: what one read of the pipe, or of the file, gives.
unsafe fn splice_by_copy(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: usize,
) -> Result<isize, c_int> {
    const PIECE: usize = 1 << 16;
    let is_pipe = |fd: c_int| {
        // SAFETY: all zeros is a valid stat.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: room for the answer.
        let known = unsafe { crate::metadata::fstat(fd, &raw mut stat) } == 0;
        known && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
    };
    if !table::is_open(from) || !table::is_open(to) {
        return Err(libc::EBADF);
    }
    if !is_pipe(from) && !is_pipe(to) {
        return Err(libc::EINVAL);
    }
    if (is_pipe(from) && !from_offset.is_null()) || (is_pipe(to) && !to_offset.is_null()) {
        return Err(libc::ESPIPE);
    }
    for offset in [from_offset, to_offset] {
        if !offset.is_null() && !fault::writable(offset, size_of::<i64>()) {
            return Err(libc::EFAULT);
        }
    }
    // SAFETY: numbers only.
    if unsafe { descriptors::fcntl(to, libc::F_GETFL, 0) } & libc::O_APPEND != 0 {
        return Err(libc::EINVAL);
    }
    let mut memory = vec![0_u8; count.min(PIECE)];
    let checked = |moved: isize| if moved < 0 { Err(crate::real::errno()) } else { Ok(moved as usize) };
    // SAFETY: the memory's size; the program's offsets, or NULL.
    unsafe {
        let got = checked(match from_offset.as_ref() {
            Some(offset) => pread(from, memory.as_mut_ptr().cast(), memory.len(), *offset),
            None => read(from, memory.as_mut_ptr().cast(), memory.len()),
        })?;
        // What a pipe gave must not be lost.
        let mut put = 0;
        while put < got {
            let rest = &memory[put..got];
            let written = checked(match to_offset.as_ref() {
                Some(offset) => pwrite(to, rest.as_ptr().cast(), rest.len(), *offset + put as i64),
                None => write(to, rest.as_ptr().cast(), rest.len()),
            });
            match written {
                Ok(0) => break,
                Ok(written) => put += written,
                Err(_) if put > 0 => break,
                Err(error) => {
                    give_back(from, from_offset, got);
                    return Err(error);
                }
            }
        }
        if let Some(offset) = from_offset.as_mut() {
            *offset += put as i64;
        } else {
            give_back(from, from_offset, got - put);
        }
        if let Some(offset) = to_offset.as_mut() {
            *offset += put as i64;
        }
        Ok(put as isize)
    }
}

/// A file goes on where bytes were not passed on; a pipe can't.
unsafe fn give_back(from: c_int, offset: *mut i64, count: usize) {
    if offset.is_null() && count > 0 {
        // SAFETY: numbers only.
        unsafe { lseek(from, -(count as i64), libc::SEEK_CUR) };
    }
}

aliases! {
    __read = read, (fd: c_int, data: *mut c_void, count: usize) -> isize;
    __write = write, (fd: c_int, data: *const c_void, count: usize) -> isize;
    pread64 = pread, (fd: c_int, data: *mut c_void, count: usize, offset: i64) -> isize;
    __pread64 = pread, (fd: c_int, data: *mut c_void, count: usize, offset: i64) -> isize;
    pwrite64 = pwrite, (fd: c_int, data: *const c_void, count: usize, offset: i64) -> isize;
    __pwrite64 = pwrite, (fd: c_int, data: *const c_void, count: usize, offset: i64) -> isize;
    preadv64 = preadv, (fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize;
    pwritev64 = pwritev, (fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize;
    preadv64v2 = preadv2,
        (fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    pwritev64v2 = pwritev2,
        (fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    lseek64 = lseek, (fd: c_int, offset: i64, whence: c_int) -> i64;
    llseek = lseek, (fd: c_int, offset: i64, whence: c_int) -> i64;
    __lseek = lseek, (fd: c_int, offset: i64, whence: c_int) -> i64;
    truncate64 = truncate, (path: *const c_char, size: i64) -> c_int;
    ftruncate64 = ftruncate, (fd: c_int, size: i64) -> c_int;
    fallocate64 = fallocate, (fd: c_int, mode: c_int, offset: i64, size: i64) -> c_int;
    posix_fallocate64 = posix_fallocate, (fd: c_int, offset: i64, size: i64) -> c_int;
    posix_fadvise64 = posix_fadvise, (fd: c_int, offset: i64, size: i64, advice: c_int) -> c_int;
    sendfile64 = sendfile, (to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize;
    setrlimit64 = setrlimit, (resource: c_int, limit: *const libc::rlimit) -> c_int;
    prlimit64 = prlimit,
        (pid: libc::pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __read_chk(fd: c_int, data: *mut c_void, count: usize, room: usize) -> isize {
    if count > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { read(fd, data, count) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __pread_chk(
    fd: c_int,
    data: *mut c_void,
    count: usize,
    offset: i64,
    room: usize,
) -> isize {
    if count > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { pread(fd, data, count, offset) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    data: *mut c_void,
    count: usize,
    offset: i64,
    room: usize,
) -> isize {
    // SAFETY: the caller's memory.
    unsafe { __pread_chk(fd, data, count, offset, room) }
}
