//! Directory streams. libc's functions read directories by themselves, so these streams are ours.
//!
//! The first field of a stream is its descriptor, as in libc's streams. The second field has a
//! value that libc never uses: so this library recognizes its own streams. The far side sends as
//! many entries as fit, in Linux's own format.

use crate::far::far;
use crate::open::open_far;
use crate::real::{aliases, errno, give, hooks, set_errno};
use crate::table::{self, FarFile};
use crate::{ahead, heard, state};
use std::ffi::{c_char, c_int, c_void};

/// Where libc has the size of its buffer.
const MAGIC: u64 = 0x7a61_7a65_6e64_6972;
const BUFFER_BYTES: usize = 32768;
/// Bytes of entries that one call brings, at most.
const ENTRIES_BYTES_MAX: usize = 1 << 20;

#[repr(C)]
struct Stream {
    fd: c_int,
    unused: c_int,
    magic: u64,
    entry: FarFile,
    at: usize,
    end: usize,
    /// Where the next entry is, for telldir.
    position: i64,
    buffer: [u64; BUFFER_BYTES / 8],
}

unsafe fn ours<'a>(stream: *mut libc::DIR) -> Option<&'a mut Stream> {
    // SAFETY: both kinds are at least as large as the fields that are looked at.
    unsafe {
        let stream = stream.cast::<Stream>();
        (!stream.is_null() && (&raw const (*stream).magic).read() == MAGIC).then(|| &mut *stream)
    }
}

fn new_stream(fd: c_int, entry: FarFile) -> *mut libc::DIR {
    // SAFETY: a size; fields are filled before anybody looks.
    unsafe {
        let stream = libc::malloc(size_of::<Stream>()).cast::<Stream>();
        if stream.is_null() {
            return std::ptr::null_mut();
        }
        (*stream).fd = fd;
        (*stream).unused = 0;
        (*stream).magic = MAGIC;
        (*stream).entry = entry;
        (*stream).at = 0;
        (*stream).end = 0;
        (*stream).position = 0;
        stream.cast()
    }
}

/// A directory's next entries, as many as fit.
fn entries_far(entry: FarFile, data: *mut c_void, room: usize) -> Result<i64, c_int> {
    let id = entry.id();
    let got = ahead::entries(id, data, room).unwrap_or_else(|| {
        let mut room = room as u64;
        far!(px_entries(id, data, &raw mut room))
    })?;
    ahead::listed(id, data, got as usize);
    Ok(got)
}

/// The next entry; NULL at the end (errno as it was) or with errno.
unsafe fn next_entry(stream: &mut Stream) -> *mut libc::dirent64 {
    if stream.at >= stream.end {
        let data = stream.buffer.as_mut_ptr().cast();
        match entries_far(stream.entry, data, BUFFER_BYTES) {
            Ok(got) => (stream.at, stream.end) = (0, got as usize),
            // A directory that was removed is an empty one.
            Err(libc::ENOENT) => (stream.at, stream.end) = (0, 0),
            Err(error) => {
                set_errno(error);
                return std::ptr::null_mut();
            }
        }
        if stream.end == 0 {
            return std::ptr::null_mut();
        }
    }
    // SAFETY: the far kernel's entries, whole ones.
    unsafe {
        let entry = stream.buffer.as_mut_ptr().cast::<u8>().add(stream.at).cast::<libc::dirent64>();
        let length = (&raw const (*entry).d_reclen).read() as usize;
        stream.at += length.max(1);
        stream.position = (&raw const (*entry).d_off).read();
        entry
    }
}

hooks! {
    fn opendir(path: *const c_char) -> *mut libc::DIR {
        let mut text = zazen_forward_api::paths::Text::new();
        match crate::far::place(libc::AT_FDCWD, path, &mut text) {
            Ok(crate::far::Destination::Local(path) | crate::far::Destination::Near(path)) => next(path),
            Ok(crate::far::Destination::Far(dir, path)) => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
                match open_far(dir, path, flags, 0) {
                    Ok(fd) => fdopendir(fd),
                    Err(error) => {
                        set_errno(error);
                        std::ptr::null_mut()
                    }
                }
            }
            Err(error) => {
                set_errno(error);
                std::ptr::null_mut()
            }
        }
    }

    fn fdopendir(fd: c_int) -> *mut libc::DIR {
        let Some(entry) = table::entry(fd) else { return next(fd) };
        if entry.kind() != libc::S_IFDIR {
            set_errno(libc::ENOTDIR);
            return std::ptr::null_mut();
        }
        // What this process opened, it knows.
        let flags =
            if entry.is_only_read() { 0 } else { far!(px_fcntl(entry.id(), libc::F_GETFL, 0)).unwrap_or(0) };
        if flags as c_int & libc::O_PATH != 0 {
            set_errno(libc::EBADF);
            return std::ptr::null_mut();
        }
        new_stream(fd, entry)
    }

    fn closedir(stream: *mut libc::DIR) -> c_int {
        let Some(own) = ours(stream) else { return next(stream) };
        let fd = own.fd;
        own.magic = 0;
        libc::free(stream.cast());
        crate::descriptors::close(fd)
    }

    fn readdir(stream: *mut libc::DIR) -> *mut libc::dirent64 {
        match ours(stream) {
            None => { heard::hear(); next(stream) }
            Some(own) => next_entry(own),
        }
    }

    fn readdir_r(
        stream: *mut libc::DIR, entry: *mut libc::dirent64, result: *mut *mut libc::dirent64,
    ) -> c_int {
        let Some(own) = ours(stream) else {
            heard::hear();
            return next(stream, entry, result);
        };
        set_errno(0);
        let found = next_entry(own);
        *result = std::ptr::null_mut();
        if found.is_null() {
            return errno();
        }
        let length = (&raw const (*found).d_reclen).read() as usize;
        std::ptr::copy_nonoverlapping(found.cast::<u8>(), entry.cast::<u8>(), length);
        *result = entry;
        0
    }

    fn rewinddir(stream: *mut libc::DIR) -> () {
        match ours(stream) {
            None => next(stream),
            Some(own) => seek(own, 0),
        }
    }

    fn seekdir(stream: *mut libc::DIR, position: i64) -> () {
        match ours(stream) {
            None => next(stream, position),
            Some(own) => seek(own, position),
        }
    }

    fn telldir(stream: *mut libc::DIR) -> i64 {
        match ours(stream) {
            None => next(stream),
            Some(own) => own.position,
        }
    }

    fn dirfd(stream: *mut libc::DIR) -> c_int {
        match ours(stream) {
            None => next(stream),
            Some(own) => own.fd,
        }
    }

    fn getdents64(fd: c_int, data: *mut c_void, count: usize) -> isize {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return next(fd, data, count);
        };
        // The far side gives whole entries: as many as there is memory for.
        let backed = crate::fault::backed(data, count.min(ENTRIES_BYTES_MAX), true);
        give(backed.and_then(|bytes| entries_far(entry, data, bytes).map(|got| got as isize)))
    }

    fn scandir(
        path: *const c_char, list: *mut *mut *mut libc::dirent64,
        filter: Filter, order: Order
    ) -> c_int {
        if !state::is_active() {
            return next(path, list, filter, order);
        }
        scan(opendir(path), list, filter, order)
    }

    fn scandirat(
        dir: c_int, path: *const c_char, list: *mut *mut *mut libc::dirent64, filter: Filter, order: Order,
    ) -> c_int {
        if !state::is_active() {
            return next(dir, path, list, filter, order);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = crate::open::openat(dir, path, flags, 0);
        if fd < 0 {
            return -1;
        }
        scan(fdopendir(fd), list, filter, order)
    }

    fn glob(
        pattern: *const c_char, flags: c_int,
        report: Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
        result: *mut libc::glob64_t,
    ) -> c_int {
        if !state::is_active() || flags & libc::GLOB_ALTDIRFUNC != 0 {
            return next(pattern, flags, report, result);
        }
        // libc's glob with these hooks for its directory functions.
        let functions = result.cast::<GlobFunctions>();
        (*functions).close = closedir as *const c_void;
        (*functions).read = readdir as *const c_void;
        (*functions).open = opendir as *const c_void;
        (*functions).lstat = crate::metadata::lstat as *const c_void;
        (*functions).stat = crate::metadata::stat as *const c_void;
        let outcome = next(pattern, flags | libc::GLOB_ALTDIRFUNC, report, result);
        (*functions).flags &= !libc::GLOB_ALTDIRFUNC;
        outcome
    }
}

type Filter = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const libc::dirent64, *mut *const libc::dirent64) -> c_int>;

/// `glob_t` with its functions.
#[repr(C)]
struct GlobFunctions {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: *const c_void,
    read: *const c_void,
    open: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

fn seek(stream: &mut Stream, position: i64) {
    let _ = ahead::seek(stream.entry.id(), position, libc::SEEK_SET);
    (stream.at, stream.end, stream.position) = (0, 0, position);
}

unsafe fn scan(
    stream: *mut libc::DIR,
    list: *mut *mut *mut libc::dirent64,
    filter: Filter,
    order: Order,
) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: streams and entries of these hooks; memory of libc's, which the caller frees.
    unsafe {
        let (mut found, mut count, mut room) = (std::ptr::null_mut::<*mut libc::dirent64>(), 0, 0);
        loop {
            let entry = readdir(stream);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            if count == room {
                room = (room * 2).max(32);
                found = libc::realloc(found.cast(), room * size_of::<*mut c_void>()).cast();
            }
            let length = (&raw const (*entry).d_reclen).read() as usize;
            let copy = libc::malloc(length);
            if found.is_null() || copy.is_null() {
                closedir(stream);
                set_errno(libc::ENOMEM);
                return -1;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length);
            *found.add(count) = copy.cast();
            count += 1;
        }
        closedir(stream);
        if found.is_null() {
            found = libc::malloc(size_of::<*mut c_void>()).cast();
        }
        if let Some(order) = order {
            let order: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int =
                std::mem::transmute(order);
            libc::qsort(found.cast(), count, size_of::<*mut c_void>(), Some(order));
        }
        *list = found;
        count as c_int
    }
}

/// getdents of a far directory, as it was before each entry told its kind beside its name: the kind
/// is the entry's last byte. `None` for this kernel's directories.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn getdents_old(fd: c_int, data: *mut c_void, count: usize) -> Option<std::ffi::c_long> {
    table::entry(fd)?;
    // SAFETY: the program's memory; the entries in it are whole, and as long as the old ones.
    unsafe {
        let got = getdents64(fd, data, count);
        let mut at = 0;
        while at < got {
            let entry = data.cast::<u8>().offset(at);
            let length = entry.add(16).cast::<u16>().read_unaligned() as usize;
            if length < 20 {
                break;
            }
            let kind = entry.add(18).read();
            std::ptr::copy(entry.add(19), entry.add(18), length - 19);
            entry.add(length - 1).write(kind);
            at += length as isize;
        }
        Some(got as std::ffi::c_long)
    }
}

aliases! {
    readdir64 = readdir, (stream: *mut libc::DIR) -> *mut libc::dirent64;
    readdir64_r = readdir_r,
        (stream: *mut libc::DIR, entry: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int;
    scandir64 = scandir,
        (path: *const c_char, list: *mut *mut *mut libc::dirent64, filter: Filter, order: Order) -> c_int;
    scandirat64 = scandirat,
        (dir: c_int, path: *const c_char, list: *mut *mut *mut libc::dirent64,
         filter: Filter, order: Order) -> c_int;
    glob64 = glob,
        (pattern: *const c_char, flags: c_int,
         report: Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
         result: *mut libc::glob64_t) -> c_int;
}
