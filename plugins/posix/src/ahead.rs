//! Answers that come along with others: what a program asks for after an open, attributes of names
//! that follow in a listing, and opens of them. For clients from which a message takes long.
//!
//! Invariants: each answer is what the single calls would have said at a moment within this one.
//! Bytes come only of regular files that have blocks: so nothing is read of a file whose reading
//! does something (those of /sys have none), or that lies on a tape. What is only a guess leaves no
//! trace: it opens such files only, and reads them without moving their time of access. Guesses
//! take a small part of the descriptors that there are.

use crate::base::Base;
use crate::entry::answer;
use crate::files::{enter_description, open_again, opened_now};
use crate::metadata::{CHANGED, is_news, look, look_at};
use crate::reach::{self, by_number};
use crate::session::{Description, Session, is_among_the_first};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::{
    AHEAD_NEWS, AHEAD_QUIET, AHEAD_STAT, AHEAD_WHOLE, Came, Found, PxOpened, PxStat,
};
use zazen_plugin_sdk::{Outcome, checked, errno, text};

/// What statx(2) gives of all files.
const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
/// Room for an entry with any name.
const ENTRY_BYTES_MAX: usize = 280;
/// Bytes of one file that was opened with others. Larger files come without.
const FILE_BYTES_MAX: usize = 32 << 10;
/// Where a file's attributes have the time when its bytes changed.
const MODIFIED: usize = 3;
/// When the kernel moves a time of access in any case, in seconds, and less than that.
const ACCESSED_LATELY_S: i64 = 23 * 60 * 60;

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
            let came = open_with_all(session, dir, text(path), flags, (data, room))?;
            (*opened, *stat) = (came.opened, came.stat);
            *count = came.bytes.into();
            Ok(came.bits)
        })
    }
}

/// Opens a file for reading, and takes what programs ask for next.
///
/// # Safety
///
/// `data` has room for so many bytes.
unsafe fn open_with_all(
    session: &Session,
    dir: c_int,
    path: &CStr,
    flags: c_int,
    (data, room): (*mut c_void, usize),
) -> Outcome<Came> {
    if flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) != libc::O_RDONLY {
        return Err(libc::EINVAL);
    }
    let description = opened_now(session, dir, path, flags, 0, 0)?;
    // SAFETY: the caller's room.
    let (told, got, is_whole) = unsafe {
        match description.mode & libc::S_IFMT {
            libc::S_IFREG => read_all(description.fd(), data, room),
            libc::S_IFDIR => list(description.fd(), data, room),
            _ => (None, 0, false),
        }
    };
    let bits = if is_whole { AHEAD_WHOLE } else { 0 } | if told.is_some() { AHEAD_STAT } else { 0 };
    let news = if told.as_ref().is_none_or(is_news) { AHEAD_NEWS } else { 0 };
    let opened = enter_description(session, description)?;
    Ok(Came { opened, stat: told.unwrap_or_default(), bits: bits | news, bytes: got as u32 })
}

/// What is another value once a file has other bytes, or a directory other entries.
fn version(stat: &PxStat) -> [(i64, u32); 2] {
    [CHANGED, MODIFIED].map(|at| (stat.seconds[at], stat.nanoseconds[at]))
}

/// A file's attributes, and its bytes if all of them fit. Attributes never come with bytes from
/// before a change that they tell of: who asks for them first, and then reads, never meets that.
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
    let is_whole =
        u64::try_from(got).is_ok_and(|got| got == after.size) && version(&before) == version(&after);
    (Some(after), if is_whole { got as usize } else { 0 }, is_whole)
}

/// A directory's attributes, its entries, and whether these are all. As with files, entries come
/// only where the directory did not change meanwhile.
///
/// # Safety
///
/// `data` has room for `room` bytes.
unsafe fn list(fd: RawFd, data: *mut c_void, room: usize) -> (Option<PxStat>, usize, bool) {
    let before = look_at(fd, MASK).ok();
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
    let after = look_at(fd, MASK).ok();
    let stays = matches!((&before, &after), (Some(before), Some(after)) if version(before) == version(after));
    // SAFETY: numbers only.
    if !stays && unsafe { libc::lseek64(fd, 0, libc::SEEK_SET) } == 0 {
        return (after, 0, false);
    }
    (after.filter(|_| stays), got, is_whole)
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_open_several(
    dir: c_int,
    folder: *const c_char,
    flags: c_int,
    names: *const c_void,
    bytes: u64,
    files: *mut c_void,
    room: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's memory: as much room as is said; on failure nothing comes back.
    unsafe {
        let most = std::mem::take(&mut *room) as usize;
        answer(|session| {
            let folder = text(folder).to_bytes();
            let names: &[u8] =
                if bytes == 0 { &[] } else { std::slice::from_raw_parts(names.cast(), bytes as usize) };
            let mut names = names.split_inclusive(|byte| *byte == 0).map(CStr::from_bytes_with_nul);
            let first = names.next().ok_or(libc::EINVAL)?.map_err(|_| libc::EINVAL)?;
            if folder.len() + first.count_bytes() >= PATH_MAX {
                return Err(libc::ENAMETOOLONG);
            }
            let path = CString::new([folder, first.to_bytes()].concat()).map_err(|_| libc::EINVAL)?;
            let mut files = Files { to: files.cast(), room: most, used: 0, count: 0 };
            let (data, rest) = files.rest().ok_or(libc::EINVAL)?;
            let came = open_with_all(session, dir, &path, flags, (data, rest.min(FILE_BYTES_MAX)))?;
            files.put(&came);
            if came.opened.mode & libc::S_IFMT == libc::S_IFREG
                && let Ok(base) = folder_of(session, dir, folder)
            {
                for name in names.map_while(Result::ok) {
                    let Some(data) = files.rest() else { break };
                    let Ok(came) = guess(session, &base, name, flags, data) else { break };
                    files.put(&came);
                    if came.bits & AHEAD_WHOLE == 0 {
                        break;
                    }
                }
            }
            *room = files.used as u64;
            Ok(files.count)
        })
    }
}

/// The files of an answer, one behind the other.
struct Files {
    to: *mut u8,
    room: usize,
    used: usize,
    count: c_int,
}

impl Files {
    /// Where the next file's bytes go, and how many at most; `None`: there is no room for the file.
    fn rest(&self) -> Option<(*mut c_void, usize)> {
        let at = self.used + size_of::<Came>();
        // What stands behind the bytes is zeros up to a multiple of 8.
        (at <= self.room).then(|| (self.to.wrapping_add(at).cast(), (self.room - at) & !7))
    }

    /// The next file is this; its bytes are where they belong.
    ///
    /// # Safety
    ///
    /// `rest` said that there is room for it.
    unsafe fn put(&mut self, came: &Came) {
        let bytes = came.bytes as usize;
        let gap = bytes.wrapping_neg() & 7;
        let at = self.to.wrapping_add(self.used);
        // SAFETY: the caller's promise; the gap is within the room, which is a multiple of 8 there.
        unsafe {
            at.cast::<Came>().write_unaligned(*came);
            at.wrapping_add(size_of::<Came>() + bytes).write_bytes(0, gap);
        }
        self.used += size_of::<Came>() + bytes + gap;
        self.count += 1;
    }
}

/// The folder that names stand in, as what their paths begin at.
fn folder_of(session: &Session, dir: c_int, folder: &[u8]) -> Outcome<Base> {
    let base = Base::new(session, dir)?;
    if folder.is_empty() {
        return Ok(base);
    }
    let path = CString::new(folder).map_err(|_| libc::EINVAL)?;
    let found = reach::open(&base, &path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    Ok(Base::Held(Arc::new(Description::new(found)?)))
}

/// Opens a file that the caller has not asked for yet, without a trace and without waiting.
///
/// # Safety
///
/// `data` has room for so many bytes.
unsafe fn guess(
    session: &Session,
    base: &Base,
    name: &CStr,
    flags: c_int,
    (data, room): (*mut c_void, usize),
) -> Outcome<Came> {
    if !session.has_room_to_spare() {
        return Err(libc::EMFILE);
    }
    // What it is, before it is opened: opening a device or a FIFO does something.
    let found = reach::open(base, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let before = look_at(found.as_raw_fd(), MASK)?;
    let is_small = before.size < FILE_BYTES_MAX as u64;
    if before.mode & libc::S_IFMT != libc::S_IFREG
        || before.blocks == 0
        || is_small && before.size >= room as u64
    {
        return Err(libc::EAGAIN);
    }
    let flags = flags & !libc::O_DIRECT;
    let open = |flags: c_int| {
        let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
        if flags & libc::O_NOFOLLOW == 0 {
            return open_again(found.as_raw_fd(), flags);
        }
        // The kernel's own link may not be followed then, and the flag is one that programs see.
        reach::open(base, name, flags, 0)
    };
    let (fd, is_quiet) = match open(flags | libc::O_NOATIME) {
        // Another user's file.
        Err(libc::EPERM) => (open(flags)?, false),
        fd => (fd?, true),
    };
    if !is_among_the_first(fd.as_raw_fd()) {
        return Err(libc::EMFILE);
    }
    let reads = is_small && (is_quiet || moves_no_time(fd.as_raw_fd(), &before));
    let (told, got, is_whole) = if reads {
        // SAFETY: the caller's room.
        unsafe { read_all(fd.as_raw_fd(), data, room.min(FILE_BYTES_MAX)) }
    } else {
        (look_at(fd.as_raw_fd(), MASK).ok(), 0, false)
    };
    // SAFETY: numbers only.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
    let stat = told.ok_or(libc::EIO)?;
    if (stat.ino, stat.devices) != (before.ino, before.devices) {
        return Err(libc::EAGAIN);
    }
    let quiet = if is_quiet && flags & libc::O_NOATIME == 0 { AHEAD_QUIET } else { 0 };
    let news = if is_news(&stat) { AHEAD_NEWS } else { 0 };
    let bits = AHEAD_STAT | news | if is_whole { AHEAD_WHOLE | quiet } else { 0 };
    let opened = enter_description(session, Description::new(fd)?)?;
    Ok(Came { opened, stat, bits, bytes: got as u32 })
}

/// Whether reading a file leaves its time of access as it is, as the kernel decides on it.
fn moves_no_time(fd: RawFd, stat: &PxStat) -> bool {
    // SAFETY: all zeros is a valid answer; a descriptor of the caller's.
    let flags = unsafe {
        let mut found: libc::statvfs64 = std::mem::zeroed();
        if libc::fstatvfs64(fd, &raw mut found) != 0 {
            return false;
        }
        found.f_flag
    };
    if flags & (libc::ST_NOATIME | libc::ST_RDONLY) != 0 {
        return true;
    }
    let [accessed, _, changed, modified] = [0, 1, 2, 3].map(|at| (stat.seconds[at], stat.nanoseconds[at]));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(i64::MAX, |now| now.as_secs() as i64);
    flags & libc::ST_RELATIME != 0
        && accessed > changed
        && accessed > modified
        && now.saturating_sub(accessed.0) < ACCESSED_LATELY_S
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
            let (mut done, mut news) = (0, false);
            for name in names.split_inclusive(|byte| *byte == 0).take(most) {
                let name = CStr::from_bytes_with_nul(name).map_err(|_| libc::EINVAL)?;
                let one = look_once(&base, folder, name, flags, mask, also != 0);
                news |= one.error != 0 || is_news(&one.stat);
                found.cast::<Found>().add(done).write_unaligned(one);
                done += 1;
            }
            *room = (done * size_of::<Found>()) as u64;
            Ok(c_int::from(news))
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
