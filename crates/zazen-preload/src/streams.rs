//! Streams of forwarded descriptors. libc's streams make system calls of their own, which no hook
//! sees. For each stream, libc finds these five calls in a table of functions: one table for byte
//! streams, one for wide streams. This library puts its own functions into the tables; they look up
//! the stream's descriptor.
//!
//! libc's stream objects stay. `stdout` is the object that every library knows, and programs that
//! never forward a descriptor keep libc's tables as they are.
//!
//! Invariant: no descriptor is forwarded before the tables are changed.

use crate::real::{errno, set_errno, system_call};
use crate::table::{self, FarFile};
use crate::{data, descriptors, heard, metadata};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// libc's table of a stream's functions (`struct _IO_jump_t`), whose order is part of its ABI.
#[repr(C)]
struct Jumps {
    others: [usize; 14],
    calls: [AtomicUsize; 5],
}

/// Where the calls stand in [`Jumps::calls`]; 1 is the call that writes.
const READ: usize = 0;
const SEEK: usize = 2;
const CLOSE: usize = 3;
const STAT: usize = 4;

/// libc's own functions, as the tables had them.
const NAMES: [&CStr; 5] =
    [c"_IO_file_read", c"_IO_file_write", c"_IO_file_seek", c"_IO_file_close", c"_IO_file_stat"];
static ORIGINAL: [AtomicUsize; 5] = [const { AtomicUsize::new(0) }; 5];
static IS_CHANGED: AtomicBool = AtomicBool::new(false);

/// The fields of libc's FILE that its write function changes. Their offsets are part of its ABI.
#[repr(C)]
struct Fields {
    flags: c_int,
    pointers: [*mut c_char; 13],
    fd: c_int,
    flags2: c_int,
    old_offset: i64,
    column_and_lock: [u64; 2],
    offset: i64,
}

/// `_IO_ERR_SEEN`.
const ERROR_SEEN: c_int = 0x20;

/// Changes the tables. A thread that comes second may go on before the first is done; both
/// write the same.
#[inline]
pub(crate) fn begin() {
    if !IS_CHANGED.load(Ordering::Acquire) {
        let before = errno();
        change_tables();
        IS_CHANGED.store(true, Ordering::Release);
        set_errno(before);
    }
}

#[cold]
fn change_tables() {
    let own: [usize; 5] = [
        stream_read as *const () as usize,
        stream_write as *const () as usize,
        stream_seek as *const () as usize,
        stream_close as *const () as usize,
        stream_stat as *const () as usize,
    ];
    for (name, original) in NAMES.iter().zip(&ORIGINAL) {
        original.store(symbol(name), Ordering::Release);
    }
    for name in [c"_IO_file_jumps", c"_IO_wfile_jumps"] {
        let table = symbol(name) as *const Jumps;
        // SAFETY: libc's table, which lives for ever.
        let calls = unsafe { &(*table).calls };
        let found = calls.iter().map(|call| call.load(Ordering::Relaxed));
        if !found
            .zip(&ORIGINAL)
            .zip(own)
            .all(|((now, original), own)| now == original.load(Ordering::Relaxed) || now == own)
        {
            give_up();
        }
        // libc protects its tables once they are relocated.
        let from = calls.as_ptr() as usize & !4095;
        let bytes = (calls.as_ptr_range().end as usize).next_multiple_of(4096) - from;
        let protect =
            |protection: c_int| system_call(libc::SYS_mprotect, [from, bytes, protection as usize, 0, 0, 0]);
        if protect(libc::PROT_READ | libc::PROT_WRITE).is_err() {
            give_up();
        }
        for (call, own) in calls.iter().zip(own) {
            call.store(own, Ordering::Release);
        }
        let _ = protect(libc::PROT_READ);
    }
}

fn symbol(name: &CStr) -> usize {
    // SAFETY: a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        give_up();
    }
    found as usize
}

/// Output that would be lost without a word is worse than no program.
fn give_up() -> ! {
    let words =
        b"zazen: this C library's streams are not the GNU C library's; forwarding would lose output\n";
    let _ = system_call(libc::SYS_write, [2, words.as_ptr() as usize, words.len(), 0, 0, 0]);
    std::process::abort();
}

fn descriptor(stream: *mut libc::FILE) -> c_int {
    // SAFETY: libc's stream, in a call of libc's.
    unsafe { (*stream.cast::<Fields>()).fd }
}

/// The entry of a stream's descriptor. libc also makes streams of descriptors that it duplicated
/// itself (perror does): `error` is what the kernel said of the placeholder.
fn adopted(fd: c_int, error: c_int) -> Option<FarFile> {
    if !table::any() || !matches!(error, libc::ENOTCONN | libc::EINVAL | libc::ESPIPE) {
        return None;
    }
    let inode = table::placeholder_inode(fd)?;
    table::each().find(|(known, _)| table::placeholder_inode(*known) == Some(inode)).map(|(_, entry)| entry)
}

unsafe extern "C" fn stream_read(stream: *mut libc::FILE, to: *mut c_void, count: isize) -> isize {
    let fd = descriptor(stream);
    // SAFETY: libc's buffer; the function has this signature.
    unsafe {
        if table::entry(fd).is_some() {
            return data::read(fd, to, count.max(0) as usize);
        }
        heard::hear();
        let original: unsafe extern "C" fn(*mut libc::FILE, *mut c_void, isize) -> isize =
            std::mem::transmute(ORIGINAL[READ].load(Ordering::Acquire));
        let got = original(stream, to, count);
        match if got < 0 { adopted(fd, errno()) } else { None } {
            Some(entry) => {
                crate::real::give(data::read_far(entry, to, count.max(0) as usize, crate::far::OFFSET, 0))
            }
            None => got,
        }
    }
}

/// Writes all; returns how much it could.
pub(crate) fn write_all(fd: c_int, from: *const c_char, count: usize) -> usize {
    let mut entry = None;
    let mut done = 0;
    while done < count {
        let (rest, left) = (from.wrapping_add(done).cast::<c_void>(), count - done);
        let outcome = match entry.or_else(|| table::entry(fd)) {
            Some(entry) => data::write_far(entry, rest, left, crate::far::OFFSET, 0),
            None => system_call(libc::SYS_write, [fd as usize, rest as usize, left, 0, 0, 0])
                .map(|written| written as isize),
        };
        match outcome {
            Ok(written) => done += written as usize,
            Err(error) => {
                entry = if entry.is_none() { adopted(fd, error) } else { None };
                if entry.is_none() {
                    set_errno(error);
                    break;
                }
            }
        }
    }
    done
}

unsafe extern "C" fn stream_write(stream: *mut libc::FILE, from: *const c_char, count: isize) -> isize {
    let fields = stream.cast::<Fields>();
    // SAFETY: libc's stream, in a call of libc's, which holds its lock; libc's buffer.
    unsafe {
        let done = write_all((*fields).fd, from, count.max(0) as usize) as isize;
        if done < count {
            (*fields).flags |= ERROR_SEEN;
        }
        if (*fields).offset >= 0 {
            (*fields).offset += done as i64;
        }
        done
    }
}

unsafe extern "C" fn stream_seek(stream: *mut libc::FILE, offset: i64, whence: c_int) -> i64 {
    let fd = descriptor(stream);
    // SAFETY: numbers; the function has this signature.
    unsafe {
        if table::entry(fd).is_some() {
            return data::lseek(fd, offset, whence);
        }
        let original: unsafe extern "C" fn(*mut libc::FILE, i64, c_int) -> i64 =
            std::mem::transmute(ORIGINAL[SEEK].load(Ordering::Acquire));
        original(stream, offset, whence)
    }
}

unsafe extern "C" fn stream_close(stream: *mut libc::FILE) -> c_int {
    let fd = descriptor(stream);
    // SAFETY: a number; the function has this signature.
    unsafe {
        if table::entry(fd).is_some() {
            return descriptors::close(fd);
        }
        let original: unsafe extern "C" fn(*mut libc::FILE) -> c_int =
            std::mem::transmute(ORIGINAL[CLOSE].load(Ordering::Acquire));
        original(stream)
    }
}

unsafe extern "C" fn stream_stat(stream: *mut libc::FILE, to: *mut c_void) -> c_int {
    let fd = descriptor(stream);
    // SAFETY: libc's object, a `struct stat`; the function has this signature.
    unsafe {
        if table::entry(fd).is_some() {
            return metadata::fstat(fd, to.cast());
        }
        let original: unsafe extern "C" fn(*mut libc::FILE, *mut c_void) -> c_int =
            std::mem::transmute(ORIGINAL[STAT].load(Ordering::Acquire));
        original(stream, to)
    }
}
