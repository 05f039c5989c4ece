//! Answers that come along with others: what a program asks for after an open, and attributes of
//! names that follow in a listing. For clients from which a message takes long.
//!
//! Invariants: each answer is what the single calls would have said at a moment within this one.
//! Bytes come only of regular files that have blocks: so nothing is read of a file whose reading
//! does something (those of /sys have none), or that lies on a tape.

use crate::base::Base;
use crate::entry::answer;
use crate::files::{enter_description, opened_now};
use crate::metadata::{look, look_at};
use crate::reach::{self, by_number};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::{AHEAD_STAT, AHEAD_WHOLE, Found, PxOpened, PxStat};
use zazen_plugin_sdk::{Outcome, errno, text};

/// What statx(2) gives of all files.
const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
/// Room for an entry with any name.
const ENTRY_BYTES_MAX: usize = 280;

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_open_ahead(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    opened: *mut PxOpened,
    stat: *mut PxStat,
    data: *mut c_void,
    count: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's memory: as much room as count says; on failure nothing comes back.
    unsafe {
        let room = std::mem::take(&mut *count) as usize;
        answer(|session| {
            if flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) != libc::O_RDONLY {
                return Err(libc::EINVAL);
            }
            let description = opened_now(session, dir, text(path), flags, 0, 0)?;
            let (fd, kind) = (description.fd(), description.mode & libc::S_IFMT);
            let (told, got, is_whole) = match kind {
                libc::S_IFREG => read_all(fd, data, room),
                libc::S_IFDIR => list(fd, data, room),
                _ => (None, 0, false),
            };
            let mut bits = if is_whole { AHEAD_WHOLE } else { 0 };
            if let Some(told) = told {
                *stat = told;
                bits |= AHEAD_STAT;
            }
            *opened = enter_description(session, description)?;
            *count = got as u64;
            Ok(bits)
        })
    }
}

/// A file's attributes, and its bytes if all of them fit.
///
/// # Safety
///
/// `data` has room for `room` bytes.
unsafe fn read_all(fd: RawFd, data: *mut c_void, room: usize) -> (Option<PxStat>, usize, bool) {
    let Ok(before) = look_at(fd, MASK) else { return (None, 0, false) };
    if before.size == 0 || before.size >= room as u64 || before.blocks == 0 {
        return (Some(before), 0, false);
    }
    // SAFETY: the caller's room.
    let got = unsafe { libc::pread64(fd, data, room, 0) };
    // Reading may have moved the time of access.
    let Ok(after) = look_at(fd, MASK) else { return (None, 0, false) };
    let is_whole = u64::try_from(got).is_ok_and(|got| got == after.size);
    (Some(after), if is_whole { got as usize } else { 0 }, is_whole)
}

/// A directory's attributes, its entries, and whether these are all.
///
/// # Safety
///
/// `data` has room for `room` bytes.
unsafe fn list(fd: RawFd, data: *mut c_void, room: usize) -> (Option<PxStat>, usize, bool) {
    let (mut got, mut is_whole) = (0, false);
    while room - got >= ENTRY_BYTES_MAX {
        // SAFETY: the caller's room, behind what has come.
        let more = unsafe {
            let to = data.cast::<u8>().add(got);
            libc::syscall(libc::SYS_getdents64, fd, to, room - got)
        };
        match usize::try_from(more) {
            Ok(0) => {
                is_whole = true;
                break;
            }
            Ok(more) => got += more,
            // What may not be listed, the listing itself says.
            Err(_) => break,
        }
    }
    (look_at(fd, MASK).ok(), got, is_whole)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_stat_several(
    dir: c_int,
    folder: *const c_char,
    flags: c_int,
    mask: u32,
    also: c_int,
    names: *const c_void,
    bytes: u64,
    found: *mut c_void,
    room: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let most = std::mem::take(&mut *room) as usize / size_of::<Found>();
        answer(|session| {
            let base = Base::new(session, dir)?;
            let folder = text(folder).to_bytes();
            if bytes == 0 {
                return Ok(0);
            }
            let names = std::slice::from_raw_parts(names.cast::<u8>(), bytes as usize);
            let mut done = 0;
            for name in names.split_inclusive(|byte| *byte == 0).take(most) {
                let name = CStr::from_bytes_with_nul(name).map_err(|_| libc::EINVAL)?;
                let one = look_once(&base, folder, name, flags, mask, also != 0);
                found.cast::<Found>().add(done).write_unaligned(one);
                done += 1;
            }
            *room = (done * size_of::<Found>()) as u64;
            Ok(0)
        })
    }
}

fn look_once(base: &Base, folder: &[u8], name: &CStr, flags: c_int, mask: u32, also: bool) -> Found {
    let failed = |error| Found { error, ..Found::default() };
    if folder.len() + name.count_bytes() >= PATH_MAX {
        return failed(libc::ENAMETOOLONG);
    }
    // No NUL is inside: both are strings.
    let Ok(path) = CString::new([folder, name.to_bytes()].concat()) else { return failed(libc::EINVAL) };
    match look(base, &path, flags, mask) {
        Ok(stat) => {
            let [acl, label] = if also { lacks(base, &path).unwrap_or_default() } else { [0; 2] };
            Found { stat, acl, label, ..Found::default() }
        }
        Err(error) => failed(error),
    }
}

/// errno of asking for a file's access control list and label; 0 where they are there. Nothing of
/// links: the list is of what they lead to.
fn lacks(base: &Base, path: &CStr) -> Outcome<[c_int; 2]> {
    let object = reach::open(base, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    if look_at(object.as_raw_fd(), libc::STATX_TYPE)?.mode & libc::S_IFMT == libc::S_IFLNK {
        return Ok([0; 2]);
    }
    let name = by_number(object.as_raw_fd());
    Ok([c"system.posix_acl_access", c"security.selinux"].map(|attribute| {
        // SAFETY: strings that live for the call; no room, so only a size would come.
        let got = unsafe { libc::getxattr(name.as_ptr(), attribute.as_ptr(), std::ptr::null_mut(), 0) };
        if got < 0 { errno() } else { 0 }
    }))
}
