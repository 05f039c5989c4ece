//! The calls of posix.h, with results instead of errno, and where a path leads.

use crate::real::{errno, set_errno};
use crate::table::{self, FarFile};
use crate::{cwd, fault, heard, near, state};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use zazen_forward_api::paths::{self, Route, Text};
use zazen_plugin_abi::stub::StubService;

#[allow(missing_docs, dead_code, unreachable_pub, clippy::all)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/posix_raw.rs"));
}
pub(crate) use stubs::raw;

pub(crate) use zazen_forward_api::structures::{
    Address, BYTES_MAX, HELLO_EXEC, HELLO_FORK, HELLO_JOIN, HELLO_NEW, Hello, Lock, OFFSET, PollFd, PxOpened,
    PxStat, ROOT, StatFs, Times,
};

/// A hello of this process.
pub(crate) fn new_hello(kind: u32, key: u64) -> Hello {
    let pid = crate::real::system_call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
    Hello { key, token: 0, kind, pid: pid as u32, umask: state::umask(), keep_all: 0 }
}

/// A stub's result, or its errno. The caller's errno stays as it was on success.
pub(crate) fn outcome<T: PartialOrd + From<i8>>(call: impl FnOnce() -> T) -> Result<T, c_int> {
    let before = errno();
    let value = call();
    if value < T::from(0) {
        let error = errno();
        // If the far side is gone, calls fail with EIO, as on a broken disk.
        // SAFETY: this thread's number.
        let lost = unsafe { raw::zazen_stub_error() } != 0
            && matches!(error, libc::ECONNRESET | libc::ECONNREFUSED | libc::EPROTO);
        let gone = error == libc::EBADF && IS_LOST.load(Ordering::Relaxed);
        return Err(if lost || gone { libc::EIO } else { error });
    }
    set_errno(before);
    Ok(value)
}

/// Whether a session of this process was lost: what it had open fails with EIO.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Calls a function of posix.h: `far!(px_seek(id, 0, 1))`.
macro_rules! far {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers are to memory of the hook or of the program, as the libc function
        // demands.
        $crate::far::outcome(|| unsafe { $crate::far::raw::$name($($argument),*) })
    };
}
pub(crate) use far;

/// Called when the far side has begun a new session, which knows none of the old numbers: opens the
/// working directory again by its name. `carry` makes the call.
pub(crate) fn begin_again(carry: impl FnOnce(&dyn Fn() -> Result<c_int, c_int>) -> Result<c_int, c_int>) {
    IS_LOST.store(true, Ordering::Relaxed);
    heard::begin_again();
    for base in &BASES {
        base.store(0, Ordering::Release);
    }
    let mut name = Text::new();
    if !cwd::name(&mut name) {
        return;
    }
    let (mut there, mut opened) = (Text::new(), PxOpened::default());
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let is_far = paths::route(name.as_bytes(), state::all_prefixes(), &mut there) == Route::Far;
    let (path, out) = (there.as_ptr(), (&raw mut opened).cast());
    if is_far && carry(&|| far!(px_open(ROOT, path, flags, 0, 0, out))).is_ok() {
        cwd::set_far(Some((FarFile::new(opened.id, opened.mode), name.as_bytes())));
    }
}

pub(crate) fn hello(hello: &Hello, keep: &[u32]) -> Result<(), c_int> {
    far!(px_hello(std::ptr::from_ref(hello).cast(), keep.as_ptr(), keep.len() as u32)).map(|_| ())
}

pub(crate) fn cancel(tag: u32) -> Result<(), c_int> {
    far!(px_cancel(tag)).map(|_| ())
}

static SERVICE: AtomicPtr<StubService> = AtomicPtr::new(std::ptr::null_mut());

/// What the generated stubs are a client of, as they told the transport.
pub(crate) fn keep_service(service: *const StubService) {
    SERVICE.store(service.cast_mut(), Ordering::Release);
}

pub(crate) fn service() -> &'static StubService {
    let mut service = SERVICE.load(Ordering::Acquire);
    if service.is_null() {
        // SAFETY: it only calls keep_service().
        unsafe { raw::posix_bind(std::ptr::null_mut()) };
        service = SERVICE.load(Ordering::Acquire);
    }
    // SAFETY: the stubs' static.
    unsafe { &*service }
}

/// Where a path of a hook leads.
pub(crate) enum Destination {
    /// To this machine's kernel, by this path.
    Local(*const c_char),
    /// Below a prefix, in a folder that this machine's kernel has itself: to it, by this path.
    Near(*const c_char),
    /// To the far side: a description and a path for it.
    Far(c_int, *const c_char),
}

/// Where `path` leads, seen from `dir` (a descriptor or AT_FDCWD). `text` keeps what the result
/// points to.
///
/// # Safety
///
/// `path` is NULL or a string.
pub(crate) unsafe fn place(dir: c_int, path: *const c_char, text: &mut Text) -> Result<Destination, c_int> {
    if !state::is_active() {
        return Ok(Destination::Local(path));
    }
    // SAFETY: the caller's promise.
    let found = unsafe { find(dir, path, text) };
    if !matches!(found, Ok(Destination::Far(..))) {
        // What is there, or not, may be somebody's word.
        heard::hear();
    }
    found
}

/// See [`place`].
unsafe fn find(dir: c_int, path: *const c_char, text: &mut Text) -> Result<Destination, c_int> {
    // Where there is no string, the kernel says what that is (EFAULT).
    let Some(bytes) = fault::string(path) else { return Ok(Destination::Local(path)) };
    let bytes = bytes.to_bytes();
    if bytes.first() == Some(&b'/') {
        if table::any()
            && let Some((entry, fd, rest)) = named(bytes)
        {
            let from = path.wrapping_add(bytes.len() - rest.len());
            return if rest.is_empty() {
                Ok(Destination::Far(entry.dir(), EMPTY))
            } else {
                relative_to_far(entry, fd, rest, from, text)
            };
        }
        return routed(bytes, path, text);
    }
    let base = if dir == libc::AT_FDCWD { far_cwd() } else { table::entry(dir) };
    match base {
        Some(base) => relative_to_far(base, dir, bytes, path, text),
        None if bytes.is_empty() => Ok(Destination::Local(path)),
        None => relative_to_local(dir, bytes, path, text),
    }
}

/// What [`look_alive_by`] was given.
static LOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Says how to find out whether the daemon was started again: the working directory's number is
/// another one then.
pub(crate) fn look_alive_by(look: fn()) {
    LOOK.store(look as *mut (), Ordering::Release);
}

/// The far working directory, by a number that the far side knows.
pub(crate) fn far_cwd() -> Option<FarFile> {
    cwd::far()?;
    // SAFETY: a function of `look_alive_by`, or none.
    let look: Option<fn()> = unsafe { std::mem::transmute(LOOK.load(Ordering::Acquire)) };
    if let Some(look) = look {
        look();
    }
    cwd::far()
}

/// What a name that the kernel has for a descriptor or the working directory of this process stands
/// for, if it is a far one: its description, what it was named by (AT_FDCWD for the working
/// directory), and the rest of the path.
fn named(bytes: &[u8]) -> Option<(FarFile, c_int, &[u8])> {
    let rest_of = |rest: &'static [u8]| bytes.strip_prefix(rest);
    let by_number = |rest: &'_ [u8]| {
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let digits = &rest[..end];
        let fd: c_int = str::from_utf8(digits).ok()?.parse().ok()?;
        digits[0].is_ascii_digit().then_some((fd, end))
    };
    if let Some(stream) = rest_of(b"/dev/std") {
        let fd = [&b"in"[..], b"out", b"err"].iter().position(|name| *name == stream)? as c_int;
        return Some((table::entry(fd)?, fd, b""));
    }
    let numbered = if let Some(rest) = rest_of(b"/dev/fd/") {
        rest
    } else {
        let inside = own_process(rest_of(b"/proc/")?)?;
        if let Some(rest) = inside.strip_prefix(b"cwd") {
            if !rest.is_empty() && rest[0] != b'/' {
                return None;
            }
            return Some((cwd::far()?, libc::AT_FDCWD, without_slashes(rest)));
        }
        inside.strip_prefix(b"fd/")?
    };
    let (fd, end) = by_number(numbered)?;
    Some((table::entry(fd)?, fd, without_slashes(&numbered[end..])))
}

/// What follows this process's own folder in a path below `/proc`.
fn own_process(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().position(|byte| *byte == b'/')?;
    let (name, rest) = (&path[..end], &path[end + 1..]);
    if name == b"self" || name == b"thread-self" {
        return Some(rest);
    }
    let number: usize = str::from_utf8(name).ok()?.parse().ok()?;
    (crate::real::system_call(libc::SYS_getpid, [0; 6]) == Ok(number)).then_some(rest)
}

fn without_slashes(rest: &[u8]) -> &[u8] {
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    // `dir/` means what `dir` means.
    &rest[slashes..]
}

/// The far file that a path names by this process's descriptor or working directory, where the path
/// is nothing more: a symbolic link of /proc or /dev, for calls that do not follow links.
///
/// # Safety
///
/// `path` is NULL or a string.
pub(crate) unsafe fn link_to_far(path: *const c_char) -> Option<FarFile> {
    if !table::any() {
        return None;
    }
    let bytes = fault::string(path)?.to_bytes();
    named(bytes).filter(|(_, _, rest)| rest.is_empty() && !bytes.ends_with(b"/")).map(|(entry, ..)| entry)
}

fn routed(bytes: &[u8], path: *const c_char, text: &mut Text) -> Result<Destination, c_int> {
    match paths::route(bytes, state::all_prefixes(), text) {
        Route::Local => Ok(Destination::Local(path)),
        Route::LocalAs => Ok(Destination::Local(text.as_ptr())),
        Route::Far if near::all() => Ok(Destination::Near(text.as_ptr())),
        Route::Far => Ok(Destination::Far(ROOT, text.as_ptr())),
        Route::TooLong => from_prefix(bytes, path),
    }
}

/// The far folders of prefixes as descriptions, opened when first needed: ids, 0 where not.
static BASES: [AtomicU32; paths::PREFIXES_MAX] = [const { AtomicU32::new(0) }; paths::PREFIXES_MAX];

/// Those that are open.
pub(crate) fn bases() -> impl Iterator<Item = u32> {
    BASES.iter().map(|base| base.load(Ordering::Acquire)).filter(|id| *id != 0)
}

/// A path that is too long only as an absolute one of the far side: seen from its prefix's folder.
fn from_prefix(bytes: &[u8], path: *const c_char) -> Result<Destination, c_int> {
    let found = {
        let prefixes = state::all_prefixes();
        let below = |prefix: &paths::Prefix<'_>| {
            let rest = paths::below(bytes, prefix.local)?;
            rest.iter().position(|byte| *byte != b'/').map(|slashes| rest.len() - slashes)
        };
        prefixes.iter().enumerate().find_map(|(at, prefix)| Some((at, prefix.far, below(prefix)?)))
    };
    let Some((at, folder, rest)) = found.filter(|_| bytes.len() < paths::PATH_MAX && !paths::climbs(bytes))
    else {
        return Err(libc::ENAMETOOLONG);
    };
    let mut base = BASES[at].load(Ordering::Acquire);
    if base == 0 {
        let mut name = Text::new();
        name.set(folder);
        let mut opened = PxOpened::default();
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        far!(px_open(ROOT, name.as_ptr(), flags, 0, 0, (&raw mut opened).cast()))?;
        base = match BASES[at].compare_exchange(0, opened.id, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // Held for good: a child takes it over, a program that is started opens its own.
                table::hold(FarFile::new(opened.id, opened.mode));
                opened.id
            }
            Err(other) => {
                let _ = far!(px_close(opened.id, 1));
                other
            }
        };
    }
    Ok(Destination::Far(base as c_int, path.wrapping_add(bytes.len() - rest)))
}

fn relative_to_far(
    base: FarFile,
    dir: c_int,
    bytes: &[u8],
    path: *const c_char,
    text: &mut Text,
) -> Result<Destination, c_int> {
    if bytes.len() >= paths::PATH_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    if bytes.is_empty() {
        // The description itself has to be asked for: see by_number().
        return Err(libc::ENOENT);
    }
    if !paths::climbs(bytes) || base.kind() != libc::S_IFDIR {
        return Ok(Destination::Far(base.dir(), path));
    }
    // Does it leave what is forwarded?
    let mut name = Text::new();
    if dir == libc::AT_FDCWD {
        cwd::name(&mut name);
    } else {
        name_of(base, &mut name)?;
    }
    let mut whole = Text::new();
    if !paths::normalize(name.as_bytes(), bytes, &mut whole) {
        return Err(libc::ENAMETOOLONG);
    }
    match paths::route(whole.as_bytes(), state::all_prefixes(), text) {
        Route::Far => Ok(Destination::Far(base.dir(), path)),
        _ => {
            text.set(whole.as_bytes());
            Ok(Destination::Local(text.as_ptr()))
        }
    }
}

fn relative_to_local(
    dir: c_int,
    bytes: &[u8],
    path: *const c_char,
    text: &mut Text,
) -> Result<Destination, c_int> {
    let here = if dir == libc::AT_FDCWD && cwd::is_near() {
        Destination::Near(path)
    } else {
        Destination::Local(path)
    };
    if dir == libc::AT_FDCWD && !cwd::is_above_a_prefix() && !paths::climbs(bytes) {
        return Ok(here);
    }
    let mut name = Text::new();
    if dir == libc::AT_FDCWD {
        cwd::name(&mut name);
    } else if may_enter(bytes) {
        shown_name(dir, &mut name);
    }
    if name.as_bytes().is_empty() {
        return Ok(here);
    }
    // Only from above a prefix, or by climbing, can a relative path get there.
    let above = {
        let prefixes = state::all_prefixes();
        prefixes.iter().any(|prefix| paths::below(prefix.local, name.as_bytes()).is_some())
    };
    if !above && !paths::climbs(bytes) {
        return Ok(here);
    }
    let mut whole = Text::new();
    if !paths::normalize(name.as_bytes(), bytes, &mut whole) {
        return Ok(here);
    }
    let begins_near = near::renames()
        && state::all_prefixes().iter().any(|prefix| paths::below(name.as_bytes(), prefix.local).is_some());
    match paths::route(whole.as_bytes(), state::all_prefixes(), text) {
        // What links mean on the way is for the kernel to say.
        Route::Far if begins_near => Ok(Destination::Near(path)),
        Route::Far if near::all() => Ok(Destination::Near(text.as_ptr())),
        Route::Far => Ok(Destination::Far(ROOT, text.as_ptr())),
        // It leaves the near folder: the kernel knows another one above it.
        _ if begins_near => {
            text.set(whole.as_bytes());
            Ok(Destination::Local(text.as_ptr()))
        }
        _ => Ok(here),
    }
}

/// The description that an empty path with AT_EMPTY_PATH means, if it is a far one.
///
/// # Safety
///
/// `path` is NULL or a string.
pub(crate) unsafe fn by_number(dir: c_int, path: *const c_char, flags: c_int) -> Option<FarFile> {
    // SAFETY: the hook's caller's string.
    if flags & libc::AT_EMPTY_PATH == 0 || !fault::readable(path, 1) || unsafe { *path } != 0 {
        return None;
    }
    if dir == libc::AT_FDCWD { cwd::far() } else { table::entry(dir) }
}

/// Whether a path below some local directory could be one of a prefix: by its first component.
fn may_enter(bytes: &[u8]) -> bool {
    let first = bytes.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.starts_with(b".") || {
        let prefixes = state::all_prefixes();
        prefixes.iter().any(|prefix| prefix.local.split(|byte| *byte == b'/').any(|part| part == first))
    }
}

/// The name here of a directory of this kernel's.
fn shown_name(fd: c_int, out: &mut Text) {
    near::kernel_name(fd, out);
    if near::renames() {
        let mut name = Text::new();
        name.set(out.as_bytes());
        near::shown(name.as_bytes(), out);
    }
}

/// What a far description is called here.
pub(crate) fn name_of(base: FarFile, out: &mut Text) -> Result<(), c_int> {
    far_name(base.dir(), c"".as_ptr(), out)
}

/// The canonical name here of a far file.
pub(crate) fn far_name(dir: c_int, path: *const c_char, out: &mut Text) -> Result<(), c_int> {
    let mut name = Text::new();
    far_path(dir, path, &mut name)?;
    paths::local_of(name.as_bytes(), state::all_prefixes(), out);
    Ok(())
}

/// The canonical name of a far file at the far side.
pub(crate) fn far_path(dir: c_int, path: *const c_char, out: &mut Text) -> Result<(), c_int> {
    let mut bytes = [0_u8; paths::PATH_MAX];
    let mut room = bytes.len() as u64;
    far!(px_realpath(dir, path, bytes.as_mut_ptr().cast(), &raw mut room))?;
    if out.set(&bytes[..room as usize]) { Ok(()) } else { Err(libc::ENAMETOOLONG) }
}

/// The one description behind both ways to name a file by descriptor: an empty path.
pub(crate) const EMPTY: *const c_char = c"".as_ptr();
