//! Names: rename, link, unlink, mkdir, links, the working directory.

use crate::far::{Destination, EMPTY, PxOpened, by_number, far, far_name, link_to_far, place};
use crate::real::{aliases, errno, give, hooks, set_errno};
use crate::table::{self, FarFile};
use crate::{cwd, fault, near, state};
use std::ffi::{CStr, c_char, c_int, c_uint};
use zazen_forward_api::paths::{self, Text};

/// A far path, or what to give back at once.
macro_rules! far_or {
    ($at:expr, $path:expr, |$local:ident| $here:expr, |$dir:ident, $name:ident| $there:expr) => {
        match place($at, $path, &mut Text::new()) {
            Ok(Destination::Local($local) | Destination::Near($local)) => $here,
            Ok(Destination::Far($dir, $name)) => give($there),
            Err(error) => give(Err(error)),
        }
    };
}

unsafe fn two(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    local: impl FnOnce(*const c_char, *const c_char) -> c_int,
    far: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> Result<c_int, c_int>,
) -> c_int {
    let (mut text, mut other) = (Text::new(), Text::new());
    for (good, bad) in [(from, to), (to, from)] {
        if fault::string(bad.1).is_none() {
            // SAFETY: the program's string, as far as it can be one.
            return match unsafe { place(good.0, good.1, &mut text) } {
                Ok(Destination::Far(..)) => give(Err(libc::EFAULT)),
                _ => local(from.1, to.1),
            };
        }
    }
    let at = (from.0, to.0);
    // SAFETY: the program's strings.
    let places = unsafe { (place(from.0, from.1, &mut text), place(to.0, to.1, &mut other)) };
    match places {
        (
            Ok(Destination::Local(from) | Destination::Near(from)),
            Ok(Destination::Local(to) | Destination::Near(to)),
        ) => local(from, to),
        (Ok(Destination::Far(a, from)), Ok(Destination::Far(b, to))) => give(far((a, from), (b, to))),
        (Err(error), _) | (_, Err(error)) => give(Err(error)),
        // Two file systems, though a directory or a source that isn't there comes first.
        (Ok(Destination::Local(from) | Destination::Near(from)), Ok(Destination::Far(dir, to)))
            if !is_open(at.0) =>
        {
            give(far((NOBODY, from), (dir, to)))
        }
        (Ok(Destination::Far(dir, from)), Ok(Destination::Local(to) | Destination::Near(to)))
            if !is_open(at.1) =>
        {
            give(far((dir, from), (NOBODY, to)))
        }
        (Ok(Destination::Far(dir, from)), _) => {
            if let Err(error) = is_folder(at.1, to.1) {
                return give(Err(error));
            }
            let mut found = crate::far::PxStat::default();
            let flags = libc::AT_SYMLINK_NOFOLLOW;
            let exists = far!(px_stat(dir, from, flags, libc::STATX_TYPE, (&raw mut found).cast()));
            give(exists.and(Err(libc::EXDEV)))
        }
        (Ok(Destination::Local(_) | Destination::Near(_)), Ok(Destination::Far(..))) => {
            give(is_folder(at.0, from.1).and(Err(libc::EXDEV)))
        }
    }
}

/// An error where a path is relative to a descriptor that is no directory's.
fn is_folder(dir: c_int, path: *const c_char) -> Result<(), c_int> {
    let relative = fault::string(path).is_some_and(|path| path.to_bytes().first() != Some(&b'/'));
    if dir == libc::AT_FDCWD || !relative {
        return Ok(());
    }
    let look = [dir as usize, c".".as_ptr() as usize, libc::F_OK as usize, 0, 0, 0];
    match crate::real::system_call(libc::SYS_faccessat, look) {
        Err(libc::ENOTDIR) => Err(libc::ENOTDIR),
        _ => Ok(()),
    }
}

/// A description that nobody has: the far kernel then finds what is wrong, in its own order.
const NOBODY: c_int = c_int::MAX;

/// Whether a directory descriptor is one at all.
fn is_open(dir: c_int) -> bool {
    dir == libc::AT_FDCWD || table::is_open(dir)
}

hooks! {
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        let here = libc::AT_FDCWD;
        two((here, from), (here, to), |from, to| next(from, to), |(a, from), (b, to)| {
            far!(px_rename(a, from, b, to, 0))
        })
    }

    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        two(
            (from_dir, from), (to_dir, to),
            |from, to| next(from_dir, from, to_dir, to),
            |(a, from), (b, to)| {
            far!(px_rename(a, from, b, to, 0))
        })
    }

    fn renameat2(
        from_dir: c_int, from: *const c_char,
        to_dir: c_int, to: *const c_char,
        flags: c_uint
    ) -> c_int {
        two(
            (from_dir, from), (to_dir, to),
            |from, to| next(from_dir, from, to_dir, to, flags),
            |(a, from), (b, to)| {
            far!(px_rename(a, from, b, to, flags))
        })
    }

    fn link(from: *const c_char, to: *const c_char) -> c_int {
        let here = libc::AT_FDCWD;
        two((here, from), (here, to), |from, to| next(from, to), |(a, from), (b, to)| {
            far!(px_link(a, from, b, to, 0))
        })
    }

    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return give(Err(libc::EINVAL));
        }
        if let Some(entry) = linked_by_number(from, flags) {
            return match place(to_dir, to, &mut Text::new()) {
                Ok(Destination::Far(dir, to)) => {
                    give(far!(px_link(entry.dir(), EMPTY, dir, to, libc::AT_EMPTY_PATH)))
                }
                _ => give(Err(libc::EXDEV)),
            };
        }
        if let Some(entry) = table::entry(from_dir)
            && flags & libc::AT_EMPTY_PATH != 0
            && fault::string(from).is_some_and(CStr::is_empty)
        {
            return match place(to_dir, to, &mut Text::new()) {
                Ok(Destination::Far(dir, to)) => {
                    give(far!(px_link(entry.dir(), EMPTY, dir, to, libc::AT_EMPTY_PATH)))
                }
                Ok(_) => give(Err(libc::EXDEV)),
                Err(error) => give(Err(error)),
            };
        }
        let local = |from, to| next(from_dir, from, to_dir, to, flags);
        two((from_dir, from), (to_dir, to), local, |(a, from), (b, to)| far!(px_link(a, from, b, to, flags)))
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        let mut there = Text::new();
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path)) => next(target, path),
            Ok(Destination::Near(path)) => next(target_there(target, &mut there), path),
            Ok(Destination::Far(dir, path)) => give(link_to(target, dir, path)),
            Err(error) => give(Err(error)),
        }
    }

    fn symlinkat(target: *const c_char, at: c_int, path: *const c_char) -> c_int {
        let mut there = Text::new();
        match place(at, path, &mut Text::new()) {
            Ok(Destination::Local(path)) if !is_near_folder(at) => next(target, at, path),
            Ok(Destination::Local(path) | Destination::Near(path)) => {
                next(target_there(target, &mut there), at, path)
            }
            Ok(Destination::Far(dir, path)) => give(link_to(target, dir, path)),
            Err(error) => give(Err(error)),
        }
    }

    fn unlink(path: *const c_char) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path), |dir, path| far!(px_unlink(dir, path, 0)))
    }

    fn unlinkat(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        far_or!(at, path, |path| next(at, path, flags), |dir, path| far!(px_unlink(dir, path, flags)))
    }

    fn rmdir(path: *const c_char) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path), |dir, path| {
            far!(px_unlink(dir, path, libc::AT_REMOVEDIR))
        })
    }

    fn remove(path: *const c_char) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path), |dir, path| {
            match far!(px_unlink(dir, path, 0)) {
                Err(libc::EISDIR) => far!(px_unlink(dir, path, libc::AT_REMOVEDIR)),
                other => other,
            }
        })
    }

    fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_mkdir(dir, path, mode, state::umask()))
        })
    }

    fn mkdirat(at: c_int, path: *const c_char, mode: c_uint) -> c_int {
        far_or!(at, path, |path| next(at, path, mode), |dir, path| {
            far!(px_mkdir(dir, path, mode, state::umask()))
        })
    }

    fn mknod(path: *const c_char, mode: c_uint, dev: u64) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path, mode, dev), |dir, path| {
            far!(px_mknod(dir, path, mode, dev, state::umask()))
        })
    }

    fn mknodat(at: c_int, path: *const c_char, mode: c_uint, dev: u64) -> c_int {
        far_or!(at, path, |path| next(at, path, mode, dev), |dir, path| {
            far!(px_mknod(dir, path, mode, dev, state::umask()))
        })
    }

    fn mkfifo(path: *const c_char, mode: c_uint) -> c_int {
        far_or!(libc::AT_FDCWD, path, |path| next(path, mode), |dir, path| {
            far!(px_mknod(dir, path, mode & 0o7777 | libc::S_IFIFO, 0, state::umask()))
        })
    }

    fn mkfifoat(at: c_int, path: *const c_char, mode: c_uint) -> c_int {
        far_or!(at, path, |path| next(at, path, mode), |dir, path| {
            far!(px_mknod(dir, path, mode & 0o7777 | libc::S_IFIFO, 0, state::umask()))
        })
    }

    fn readlink(path: *const c_char, to: *mut c_char, size: usize) -> isize {
        if let Some(entry) = link_to_far(path) {
            return match read_name(entry, path, to, size) {
                Some(result) => give(result),
                None => next(path, to, size),
            };
        }
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path)) if !names_open_file(path) => next(path, to, size),
            Ok(Destination::Local(path) | Destination::Near(path)) if near::renames() => {
                give(read_link_here(libc::AT_FDCWD, path, to, size))
            }
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, to, size),
            Ok(Destination::Far(dir, path)) => give(read_link(dir, path, to, size)),
            Err(error) => give(Err(error)),
        }
    }

    fn readlinkat(at: c_int, path: *const c_char, to: *mut c_char, size: usize) -> isize {
        if let Some(entry) = by_number(at, path, libc::AT_EMPTY_PATH) {
            return give(read_link(entry.dir(), EMPTY, to, size));
        }
        if let Some(entry) = link_to_far(path) {
            return match read_name(entry, path, to, size) {
                Some(result) => give(result),
                None => next(at, path, to, size),
            };
        }
        match place(at, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) if near::renames() => {
                if is_near_folder(at) || names_open_file(path) || cwd::is_near() {
                    give(read_link_here(at, path, to, size))
                } else {
                    next(at, path, to, size)
                }
            }
            Ok(Destination::Local(path) | Destination::Near(path)) => next(at, path, to, size),
            Ok(Destination::Far(dir, path)) => give(read_link(dir, path, to, size)),
            Err(error) => give(Err(error)),
        }
    }

    fn umask(mask: c_uint) -> c_uint {
        state::set_umask(mask);
        next(mask)
    }

    fn chdir(path: *const c_char) -> c_int {
        if let Some(entry) = link_to_far(path) {
            return give(move_far(entry.dir(), c".".as_ptr()));
        }
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => {
                let result = next(path);
                if result == 0 {
                    moved_here();
                }
                result
            }
            Ok(Destination::Far(dir, path)) => give(move_far(dir, path)),
            Err(error) => give(Err(error)),
        }
    }

    fn fchdir(fd: c_int) -> c_int {
        match table::entry(fd) {
            None => {
                let result = next(fd);
                if result == 0 {
                    moved_here();
                }
                result
            }
            Some(entry) => give(move_far(entry.dir(), c".".as_ptr())),
        }
    }

    fn getcwd(to: *mut c_char, size: usize) -> *mut c_char {
        let mut text = Text::new();
        let named = match crate::far::far_cwd() {
            Some(cwd) => crate::far::name_of(cwd, &mut text),
            None if near::renames() => cwd::ask_kernel(&mut text),
            None => return next(to, size),
        };
        match named {
            Ok(()) => give_text(&text, to, size),
            Err(error) => {
                set_errno(error);
                std::ptr::null_mut()
            }
        }
    }

    fn get_current_dir_name() -> *mut c_char {
        if cwd::far().is_none() && !near::renames() {
            return next();
        }
        getcwd(std::ptr::null_mut(), 0)
    }

    fn getwd(to: *mut c_char) -> *mut c_char {
        if cwd::far().is_none() && !near::renames() {
            return next(to);
        }
        getcwd(to, paths::PATH_MAX)
    }

    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) if near::renames() => {
                let found = next(path, std::ptr::null_mut());
                shown_instead(found, to)
            }
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, to),
            Ok(Destination::Far(dir, path)) => {
                let mut text = Text::new();
                let found = if *path == 0 { Err(libc::ENOENT) } else { far_name(dir, path, &mut text) };
                match found {
                    Ok(()) => give_text(&text, to, if to.is_null() { 0 } else { paths::PATH_MAX }),
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
}

unsafe fn getwd_in(to: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the caller's memory, of that size.
    unsafe { getcwd(to, room.min(paths::PATH_MAX)) }
}

/// A path in the program's memory, or in new memory.
unsafe fn give_text(text: &Text, to: *mut c_char, size: usize) -> *mut c_char {
    let bytes = text.as_bytes();
    // SAFETY: memory of that size, the program's or new.
    unsafe {
        let (to, size) = if to.is_null() {
            let size = if size == 0 { bytes.len() + 1 } else { size };
            (libc::malloc(size).cast::<c_char>(), size)
        } else {
            if size == 0 {
                set_errno(libc::EINVAL);
                return std::ptr::null_mut();
            }
            (to, size)
        };
        if to.is_null() {
            return to;
        }
        if bytes.len() >= size {
            set_errno(libc::ERANGE);
            return std::ptr::null_mut();
        }
        if !fault::writable(to, bytes.len() + 1) {
            set_errno(libc::EFAULT);
            return std::ptr::null_mut();
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), to, bytes.len() + 1);
        to
    }
}

/// `/proc/self/fd/N` of a forwarded descriptor, the usual way to name an `O_TMPFILE`.
unsafe fn linked_by_number(path: *const c_char, flags: c_int) -> Option<FarFile> {
    if flags & libc::AT_SYMLINK_FOLLOW == 0 {
        return None;
    }
    // SAFETY: the program's string.
    unsafe { link_to_far(path) }
}

/// What a link to `target` says at the far side: if it is below a prefix, the path there. `text`
/// keeps what the result points to.
fn target_there(target: *const c_char, text: &mut Text) -> *const c_char {
    let Some(bytes) = fault::string(target) else { return target };
    let bytes = bytes.to_bytes();
    let direct = {
        let prefixes = state::all_prefixes();
        prefixes.iter().any(|prefix| paths::below(bytes, prefix.local).is_some())
    };
    if direct && paths::route(bytes, state::all_prefixes(), text) == paths::Route::Far {
        text.as_ptr()
    } else {
        target
    }
}

fn link_to(target: *const c_char, dir: c_int, path: *const c_char) -> Result<c_int, c_int> {
    if fault::string(target).is_none() {
        return Err(libc::EFAULT);
    }
    far!(px_symlink(target_there(target, &mut Text::new()), dir, path))
}

/// Whether a descriptor is of a directory in a near folder that has another name here.
fn is_near_folder(fd: c_int) -> bool {
    if fd == libc::AT_FDCWD || !near::renames() {
        return false;
    }
    let mut name = Text::new();
    near::kernel_name(fd, &mut name);
    near::shown(name.as_bytes(), &mut Text::new())
}

/// Whether a path is one of /proc's, whose links say what is open.
fn names_open_file(path: *const c_char) -> bool {
    fault::string(path).is_some_and(|path| path.to_bytes().starts_with(b"/proc/"))
}

/// What a link of this kernel's says, with the names of near folders as they are here.
fn read_link_here(dir: c_int, path: *const c_char, to: *mut c_char, size: usize) -> Result<isize, c_int> {
    if size == 0 {
        return Err(libc::EINVAL);
    }
    let mut text = Text::new();
    near::read_link(dir, path, &mut text)?;
    give_bytes(text.as_bytes(), to, size)
}

/// What fits of a name, in the program's memory.
fn give_bytes(name: &[u8], to: *mut c_char, size: usize) -> Result<isize, c_int> {
    let length = name.len().min(size);
    if !fault::writable(to, length) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's memory, as was just looked.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), length) };
    Ok(length as isize)
}

/// A path of malloc's, as it is shown here, in `to` or in new memory.
unsafe fn shown_instead(found: *mut c_char, to: *mut c_char) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    let mut text = Text::new();
    // SAFETY: libc's string; the caller's memory, as large as realpath wants it.
    unsafe {
        near::shown(CStr::from_ptr(found).to_bytes(), &mut text);
        libc::free(found.cast());
        give_text(&text, to, if to.is_null() { 0 } else { paths::PATH_MAX })
    }
}

/// What the kernel's link to a descriptor or to the working directory says: the file's name. `None`
/// where the link is another one (/dev/stdin leads to /proc/self/fd/0), or the file has no name.
fn read_name(
    entry: FarFile,
    path: *const c_char,
    to: *mut c_char,
    size: usize,
) -> Option<Result<isize, c_int>> {
    // SAFETY: the program's string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.starts_with(b"/dev/std") || size == 0 || entry.is_socket() || entry.kind() == libc::S_IFIFO {
        return None;
    }
    let mut text = Text::new();
    crate::far::name_of(entry, &mut text).ok()?;
    Some(give_bytes(text.as_bytes(), to, size))
}

fn read_link(dir: c_int, path: *const c_char, to: *mut c_char, size: usize) -> Result<isize, c_int> {
    if size == 0 {
        return Err(libc::EINVAL);
    }
    let mut bytes = [0_u8; paths::PATH_MAX];
    let mut room = bytes.len() as u64;
    far!(px_readlink(dir, path, bytes.as_mut_ptr().cast(), &raw mut room))?;
    let target = &bytes[..room as usize];
    let mut text = Text::new();
    let known = target.first() == Some(&b'/') && paths::local_of(target, state::all_prefixes(), &mut text);
    let target = if known { text.as_bytes() } else { target };
    give_bytes(target, to, size)
}

/// The working directory is this kernel's again.
fn moved_here() {
    let before = errno();
    if let Some(entry) = cwd::set_far(None) {
        let _ = far!(px_close(entry.id(), 1));
    }
    cwd::refresh_local();
    set_errno(before);
}

fn move_far(dir: c_int, path: *const c_char) -> Result<c_int, c_int> {
    // SAFETY: a string.
    if unsafe { *path } == 0 {
        return Err(libc::ENOENT);
    }
    let mut opened = PxOpened::default();
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    far!(px_open(dir, path, flags, 0, 0, (&raw mut opened).cast()))?;
    let entry = FarFile::new(opened.id, opened.mode);
    let mut name = Text::new();
    let allowed = far!(px_access(entry.dir(), c".".as_ptr(), libc::X_OK, libc::AT_EACCESS))
        .and_then(|_| crate::far::name_of(entry, &mut name))
        .and_then(|()| if cwd::far().is_some() { Ok(()) } else { cwd::go_nowhere() });
    if let Err(error) = allowed {
        let _ = far!(px_close(opened.id, 1));
        return Err(error);
    }
    if let Some(before) = cwd::set_far(Some((entry, name.as_bytes()))) {
        let _ = far!(px_close(before.id(), 1));
    }
    Ok(0)
}

aliases! {
    __getwd_chk = getwd_in, (to: *mut c_char, room: usize) -> *mut c_char;
    __getcwd = getcwd, (to: *mut c_char, size: usize) -> *mut c_char;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's string.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    to: *mut c_char,
    _room: usize,
) -> *mut c_char {
    // SAFETY: the caller's memory.
    unsafe { realpath(path, to) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __getcwd_chk(to: *mut c_char, size: usize, room: usize) -> *mut c_char {
    if size > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { getcwd(to, size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    if size > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { readlink(path, to, size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlinkat_chk(
    at: c_int,
    path: *const c_char,
    to: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    if size > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { readlinkat(at, path, to, size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __xmknod(
    _version: c_int,
    path: *const c_char,
    mode: c_uint,
    dev: *const u64,
) -> c_int {
    // SAFETY: the caller's string and number.
    unsafe { mknod(path, mode, *dev) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __xmknodat(
    _version: c_int,
    at: c_int,
    path: *const c_char,
    mode: c_uint,
    dev: *const u64,
) -> c_int {
    // SAFETY: the caller's string and number.
    unsafe { mknodat(at, path, mode, *dev) }
}
