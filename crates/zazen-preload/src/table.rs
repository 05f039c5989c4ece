//! Which descriptors are forwarded, and to which descriptions.
//!
//! Each forwarded descriptor is also a kernel descriptor: a placeholder. It is an unconnected
//! socket, with which a program can do nothing. So numbers, `FD_CLOEXEC`, dup and /proc/self/fd are
//! the kernel's own. A call that bypasses this library fails (reading with EINVAL, writing with
//! ENOTCONN) and reaches no other file. In test mode, the placeholder is one end of a pair: what is
//! written to it past this library ends the process.
//!
//! Invariants: an entry is cleared before its number is free in the kernel, and set after the
//! number is taken. The count of a description is the number of entries that name it. Lookups take
//! no lock.

use crate::real::system_call;
use crate::state;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use zazen_forward_api::variables;

/// Descriptors above this are never forwarded.
const FDS_MAX: usize = 1 << 20;

static TABLE: [AtomicU64; FDS_MAX] = [const { AtomicU64::new(0) }; FDS_MAX];
static COUNTS: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];
/// One more than the highest number that was ever forwarded.
static END: AtomicI32 = AtomicI32::new(0);
/// Forwarded descriptors now.
static LIVE: AtomicU32 = AtomicU32::new(0);

/// What [`before_first`] was given.
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Says what must be done before a descriptor is forwarded. It is called before each one, and is
/// cheap the second time.
pub(crate) fn before_first(begin: fn()) {
    FIRST.store(begin as *const () as usize, Ordering::Release);
}

/// What a forwarded descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FarFile(u64);

/// In a [`FarFile`]: see [`FarFile::only_read`].
const ONLY_READ: u64 = 1 << 32;

impl FarFile {
    /// `mode` is st_mode; ids are not 0.
    pub(crate) fn new(id: u32, mode: u32) -> FarFile {
        FarFile(u64::from(id) | u64::from(mode & libc::S_IFMT) << 32)
    }

    /// This process has opened the file for reading only, and not with O_PATH. So its close has
    /// nothing to report, and it can be read.
    pub(crate) fn only_read(self) -> FarFile {
        FarFile(self.0 | ONLY_READ)
    }

    /// Whether it is such a regular file or directory.
    pub(crate) fn is_only_read(self) -> bool {
        self.0 & ONLY_READ != 0 && matches!(self.kind(), libc::S_IFREG | libc::S_IFDIR)
    }

    /// The far side's number.
    pub(crate) fn id(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    /// The file type bits of st_mode.
    pub(crate) fn kind(self) -> u32 {
        (self.0 >> 32) as u32 & libc::S_IFMT
    }

    /// Whether reading and writing end by themselves.
    pub(crate) fn is_prompt(self) -> bool {
        matches!(self.kind(), libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK)
    }

    pub(crate) fn is_socket(self) -> bool {
        self.kind() == libc::S_IFSOCK
    }

    /// As the base of a relative path.
    pub(crate) fn dir(self) -> c_int {
        self.id() as c_int
    }
}

/// The entry of a descriptor, if it is forwarded.
#[inline(always)]
pub(crate) fn entry(fd: c_int) -> Option<FarFile> {
    // Nothing was ever forwarded: the usual case of the usual process.
    if fd >= END.load(Ordering::Relaxed) || fd < 0 {
        return None;
    }
    let value = TABLE[fd as usize].load(Ordering::Acquire);
    (value != 0).then_some(FarFile(value))
}

/// Whether anything is forwarded now.
pub(crate) fn any() -> bool {
    LIVE.load(Ordering::Relaxed) != 0
}

/// One more than the highest number that may be forwarded.
pub(crate) fn end() -> c_int {
    END.load(Ordering::Relaxed)
}

/// The highest number of a description that this process had.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The far side has given this process a description of that number.
pub(crate) fn note_number(id: u32) {
    HIGHEST.fetch_max(id, Ordering::AcqRel);
}

/// A number that no description of this process had, nor any above it.
pub(crate) fn beyond_all() -> u64 {
    u64::from(HIGHEST.load(Ordering::Acquire)) + 1
}

/// Marks a kernel descriptor as forwarded; false if its number is too high.
pub(crate) fn set(fd: c_int, entry: FarFile) -> bool {
    let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) else { return false };
    // SAFETY: a function of `before_first`, or none.
    let begin: Option<fn()> = unsafe { std::mem::transmute(FIRST.load(Ordering::Acquire)) };
    if let Some(begin) = begin {
        begin();
    }
    HIGHEST.fetch_max(entry.id(), Ordering::AcqRel);
    COUNTS[entry.id() as usize % FDS_MAX].fetch_add(1, Ordering::AcqRel);
    LIVE.fetch_add(1, Ordering::AcqRel);
    slot.store(entry.0, Ordering::Release);
    END.fetch_max(fd + 1, Ordering::AcqRel);
    true
}

/// Takes the entry away: what it was, and whether it was the description's last.
pub(crate) fn take(fd: c_int) -> Option<(FarFile, bool)> {
    let value = TABLE.get(usize::try_from(fd).ok()?)?.swap(0, Ordering::AcqRel);
    if value == 0 {
        return None;
    }
    LIVE.fetch_sub(1, Ordering::AcqRel);
    let entry = FarFile(value);
    let before = COUNTS[entry.id() as usize % FDS_MAX].fetch_sub(1, Ordering::AcqRel);
    if state::aborts_on_escape() {
        look_for_escape(entry.id(), before == 1);
    }
    Some((entry, before == 1))
}

/// One more reference that is no descriptor: the working directory.
pub(crate) fn hold(entry: FarFile) {
    HIGHEST.fetch_max(entry.id(), Ordering::AcqRel);
    COUNTS[entry.id() as usize % FDS_MAX].fetch_add(1, Ordering::AcqRel);
    LIVE.fetch_add(1, Ordering::AcqRel);
}

/// Gives [`hold`] back; whether it was the last reference.
pub(crate) fn release(entry: FarFile) -> bool {
    LIVE.fetch_sub(1, Ordering::AcqRel);
    COUNTS[entry.id() as usize % FDS_MAX].fetch_sub(1, Ordering::AcqRel) == 1
}

/// All forwarded descriptors.
pub(crate) fn each() -> impl Iterator<Item = (c_int, FarFile)> {
    (0..end()).filter_map(|fd| entry(fd).map(|entry| (fd, entry)))
}

/// In test mode: the other ends of placeholders, by description; one more than the descriptor.
static PEERS: [AtomicI32; FDS_MAX] = [const { AtomicI32::new(0) }; FDS_MAX];
/// Whether a descriptor is such an end, which programs must not touch.
static IS_PEER: [AtomicBool; FDS_MAX] = [const { AtomicBool::new(false) }; FDS_MAX];

/// A new placeholder, and in test mode the end at which an escape arrives.
pub(crate) fn placeholder(close_on_exec: bool) -> Result<(c_int, Option<c_int>), c_int> {
    let kind = libc::SOCK_STREAM | if close_on_exec { libc::SOCK_CLOEXEC } else { 0 };
    if !state::aborts_on_escape() {
        let fd = system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])?;
        return Ok((fd as c_int, None));
    }
    let mut pair = [0 as c_int; 2];
    let arguments = [libc::AF_UNIX as usize, kind as usize, 0, pair.as_mut_ptr() as usize, 0, 0];
    match system_call(libc::SYS_socketpair, arguments) {
        // There is room for one.
        Err(libc::EMFILE) => {
            let fd = system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])?;
            return Ok((fd as c_int, None));
        }
        made => made?,
    };
    let high = fcntl_kernel(pair[1], libc::F_DUPFD_CLOEXEC, 512);
    close_kernel(pair[1]);
    let Ok(high) = high else {
        // A program that may have few descriptors: no detector for this one.
        close_kernel(pair[0]);
        let fd = system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])?;
        return Ok((fd as c_int, None));
    };
    // Reading past the library must not wait for ever: it fails with EAGAIN.
    let soon = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_RCVTIMEO as usize);
    let arguments = [pair[0] as usize, level, option, (&raw const soon) as usize, size_of_val(&soon), 0];
    let _ = system_call(libc::SYS_setsockopt, arguments);
    Ok((pair[0], Some(high)))
}

/// Remembers the end at which an escape from this description arrives.
pub(crate) fn watch(id: u32, peer: c_int) {
    if let Some(is_peer) = usize::try_from(peer).ok().and_then(|peer| IS_PEER.get(peer)) {
        is_peer.store(true, Ordering::Release);
        PEERS[id as usize % FDS_MAX].store(peer + 1, Ordering::Release);
    }
}

/// Whether a descriptor is the other end of a placeholder.
pub(crate) fn is_peer(fd: c_int) -> bool {
    state::aborts_on_escape()
        && usize::try_from(fd)
            .ok()
            .and_then(|fd| IS_PEER.get(fd))
            .is_some_and(|peer| peer.load(Ordering::Acquire))
}

/// All such ends.
pub(crate) fn peers() -> impl Iterator<Item = c_int> {
    let end = if state::aborts_on_escape() { FDS_MAX } else { 0 };
    (0..end).filter(|fd| IS_PEER[*fd].load(Ordering::Relaxed)).map(|fd| fd as c_int)
}

/// Aborts if somebody wrote to the placeholder past this library; then lets the other end go, if
/// `last`.
pub(crate) fn look_for_escape(id: u32, last: bool) {
    let slot = &PEERS[id as usize % FDS_MAX];
    let peer = slot.load(Ordering::Acquire) - 1;
    if peer < 0 {
        return;
    }
    let mut bytes: c_int = 0;
    let arguments = [peer as usize, libc::FIONREAD as usize, (&raw mut bytes) as usize, 0, 0, 0];
    if system_call(libc::SYS_ioctl, arguments).is_ok() && bytes > 0 {
        let words = b"zazen: something was written to a forwarded descriptor past the preload library\n";
        let _ = system_call(libc::SYS_write, [2, words.as_ptr() as usize, words.len(), 0, 0, 0]);
        note_escape();
        std::process::abort();
    }
    if last && slot.compare_exchange(peer + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        IS_PEER[peer as usize].store(false, Ordering::Release);
        close_kernel(peer);
    }
}

/// One line for whoever counts.
fn note_escape() {
    // SAFETY: a name; the value is used at once.
    let path = unsafe { libc::getenv(variables::ESCAPES.as_ptr()) };
    if path.is_null() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let arguments = [libc::AT_FDCWD as usize, path as usize, flags as usize, 0o666, 0, 0];
    if let Ok(fd) = system_call(libc::SYS_openat, arguments) {
        let _ = system_call(libc::SYS_write, [fd, b"escape\n".as_ptr() as usize, 7, 0, 0, 0]);
        close_kernel(fd as c_int);
    }
}

/// At the end of the process.
pub(crate) fn look_for_escapes() {
    if state::aborts_on_escape() {
        for (_, entry) in each() {
            look_for_escape(entry.id(), false);
        }
    }
}

/// The inode of a descriptor if it could be a placeholder: it names the same one in every process.
pub(crate) fn placeholder_inode(fd: c_int) -> Option<u64> {
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    system_call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize, 0, 0, 0, 0]).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Closes a kernel descriptor, past the hooks.
pub(crate) fn close_kernel(fd: c_int) {
    let _ = system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// A closed-over descriptor by the kernel's dup calls, past the hooks.
pub(crate) fn fcntl_kernel(fd: c_int, command: c_int, argument: usize) -> Result<c_int, c_int> {
    system_call(libc::SYS_fcntl, [fd as usize, command as usize, argument, 0, 0, 0])
        .map(|value| value as c_int)
}

/// Whether this kernel knows a descriptor by that number.
pub(crate) fn is_open(fd: c_int) -> bool {
    fcntl_kernel(fd, libc::F_GETFD, 0).is_ok()
}

/// Descriptors that must stay while a far file is open: the kernel drops a directory's
/// notifications when their descriptor is closed.
const KEPT_MAX: usize = 256;
static KEPT: [AtomicI32; KEPT_MAX] = [const { AtomicI32::new(-1) }; KEPT_MAX];
static KEPT_FOR: [AtomicU32; KEPT_MAX] = [const { AtomicU32::new(0) }; KEPT_MAX];
/// How many slots were ever used.
static USED: AtomicU32 = AtomicU32::new(0);

fn kept() -> &'static [AtomicI32] {
    &KEPT[..USED.load(Ordering::Acquire) as usize]
}

/// Keeps a descriptor for a far file; false where there is no room.
pub(crate) fn keep(entry: FarFile, fd: c_int) -> bool {
    for (at, slot) in KEPT.iter().enumerate() {
        if slot.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            KEPT_FOR[at].store(entry.id(), Ordering::Release);
            USED.fetch_max(at as u32 + 1, Ordering::AcqRel);
            return true;
        }
    }
    false
}

/// A kept descriptor of that file.
pub(crate) fn kept_for(entry: FarFile) -> Option<c_int> {
    let mut all = kept().iter().zip(&KEPT_FOR);
    let found =
        all.find(|(fd, id)| fd.load(Ordering::Acquire) >= 0 && id.load(Ordering::Acquire) == entry.id());
    found.map(|(fd, _)| fd.load(Ordering::Acquire))
}

/// The far file is closed.
pub(crate) fn drop_kept(entry: FarFile) {
    for (fd, id) in kept().iter().zip(&KEPT_FOR) {
        if id.load(Ordering::Acquire) == entry.id() {
            let before = fd.swap(-1, Ordering::AcqRel);
            if before >= 0 {
                close_kernel(before);
            }
        }
    }
}

/// Whether a descriptor is one that is kept, which programs must not touch.
pub(crate) fn keeps(fd: c_int) -> bool {
    kept().iter().any(|kept| kept.load(Ordering::Relaxed) == fd)
}

/// All that are kept.
pub(crate) fn all_kept() -> impl Iterator<Item = c_int> {
    kept().iter().map(|fd| fd.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
}
