//! Opening: every name that libc has for it.

use crate::far::{Destination, PxOpened, far, place};
use crate::real::{aliases, give, hooks};
use crate::table::{self, FarFile};
use crate::transport::tagged;
use crate::{ahead, state};
use std::ffi::{c_char, c_int, c_uint};
use zazen_forward_api::paths::Text;

/// A number for a far descriptor, taken before anything is asked of the far side: where there is
/// none, open(2) creates no file.
struct Number {
    fd: c_int,
    peer: Option<c_int>,
}

impl Number {
    fn take(close_on_exec: bool) -> Result<Number, c_int> {
        let (fd, peer) = table::placeholder(close_on_exec)?;
        Ok(Number { fd, peer })
    }

    /// For the other end of an attempt that failed.
    fn give_back(self) {
        table::close_kernel(self.fd);
        if let Some(peer) = self.peer {
            table::close_kernel(peer);
        }
    }

    /// The number stands for a description from now on.
    fn stands_for(self, opened: PxOpened, only_reads: bool) -> Result<c_int, c_int> {
        let file = FarFile::new(opened.id, opened.mode);
        if !table::set(self.fd, if only_reads { file.only_read() } else { file }) {
            let _ = far!(px_close(opened.id, 1));
            self.give_back();
            return Err(libc::EMFILE);
        }
        if let Some(peer) = self.peer {
            table::watch(opened.id, peer);
        }
        Ok(self.fd)
    }
}

/// Gives an opened description a descriptor of this process.
pub(crate) fn enter(opened: PxOpened, close_on_exec: bool) -> Result<c_int, c_int> {
    match Number::take(close_on_exec) {
        Ok(number) => number.stands_for(opened, false),
        Err(error) => {
            let _ = far!(px_close(opened.id, 1));
            Err(error)
        }
    }
}

/// Opens at the far side.
pub(crate) fn open_far(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> Result<c_int, c_int> {
    let mask = state::umask();
    let asked = flags & !libc::O_CLOEXEC;
    let number = Number::take(flags & libc::O_CLOEXEC != 0)?;
    // What goes past the page cache is between the program's memory and its own kernel.
    let uncached = flags & libc::O_DIRECT != 0 && state::daemon_is_here() && !state::aborts_on_escape();
    if state::is_direct() || uncached {
        // The descriptor that comes takes the number's place.
        number.give_back();
        let mut fd = -1;
        match far!(px_open_direct(dir, path, asked, mode, mask, &raw mut fd)) {
            Ok(_) if flags & (libc::O_DIRECT | libc::O_PATH) == libc::O_DIRECT => {
                let now = table::fcntl_kernel(fd, libc::F_GETFL, 0)?;
                if let Err(error) = table::fcntl_kernel(fd, libc::F_SETFL, (now | libc::O_DIRECT) as usize) {
                    table::close_kernel(fd);
                    return Err(error);
                }
                return settle(fd, flags);
            }
            Ok(_) => return settle(fd, flags),
            Err(libc::EINPROGRESS) => {}
            // Another thread was first to have the last number.
            Err(libc::EIO) => {
                return Err(Number::take(true).map_or_else(
                    |error| error,
                    |number| {
                        number.give_back();
                        libc::EIO
                    },
                ));
            }
            Err(error) => return Err(error),
        }
        return open_at(Number::take(flags & libc::O_CLOEXEC != 0)?, dir, path, asked, mode, mask);
    }
    open_at(number, dir, path, asked, mode, mask)
}

fn open_at(
    number: Number,
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    mask: u32,
) -> Result<c_int, c_int> {
    let mut opened = PxOpened::default();
    let mut outcome = ahead::open(dir, path, flags, &mut opened)
        .unwrap_or_else(|| far!(px_open(dir, path, flags, mode, mask, (&raw mut opened).cast())));
    if outcome == Err(libc::EINPROGRESS) {
        let out = (&raw mut opened).cast();
        outcome = tagged(|tag| far!(px_open_wait(dir, path, flags, mode, mask, tag, out)));
    }
    match outcome {
        Ok(_) => {
            if flags & libc::O_ACCMODE != libc::O_RDONLY {
                ahead::note_opened(&opened);
            }
            let only_reads = flags & (libc::O_ACCMODE | libc::O_PATH) == libc::O_RDONLY;
            number.stands_for(opened, only_reads)
        }
        Err(error) => {
            number.give_back();
            Err(error)
        }
    }
}

/// A received descriptor at the lowest free number, as open(2) would have given it.
fn settle(fd: c_int, flags: c_int) -> Result<c_int, c_int> {
    let close_on_exec = usize::from(flags & libc::O_CLOEXEC != 0);
    let command = if close_on_exec != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    match table::fcntl_kernel(fd, command, 0) {
        Ok(lower) if lower < fd => {
            table::close_kernel(fd);
            Ok(lower)
        }
        other => {
            if let Ok(higher) = other {
                table::close_kernel(higher);
            }
            table::fcntl_kernel(fd, libc::F_SETFD, close_on_exec)?;
            Ok(fd)
        }
    }
}

hooks! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        let mut text = Text::new();
        match place(libc::AT_FDCWD, path, &mut text) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(path, flags, mode),
            Ok(Destination::Far(dir, path)) => give(open_far(dir, path, flags, mode)),
            Err(error) => give(Err(error)),
        }
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        let mut text = Text::new();
        match place(dir, path, &mut text) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(dir, path, flags, mode),
            Ok(Destination::Far(dir, path)) => give(open_far(dir, path, flags, mode)),
            Err(error) => give(Err(error)),
        }
    }
}

aliases! {
    open64 = open, (path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open = open, (path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open64 = open, (path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat64 = openat, (dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's string.
    unsafe { open(path, flags, 0) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's string.
    unsafe { open(path, flags, 0) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's string.
    unsafe { openat(dir, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's string.
    unsafe { openat(dir, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the caller's string.
    unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn creat64(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the caller's string.
    unsafe { creat(path, mode) }
}

/// Letters for the six X of a template.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// Fills a template with a far name that nothing has.
///
/// # Safety
///
/// `template` is a string that may be written.
pub(crate) unsafe fn name_unused(template: *mut c_char) -> Result<c_int, c_int> {
    let attempt = || {
        // SAFETY: all zeros is a valid stat.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: the caller's string.
        if unsafe { crate::metadata::lstat(template, &raw mut stat) } == 0 {
            return Err(libc::EEXIST);
        }
        match crate::real::errno() {
            libc::ENOENT => Ok(0),
            error => Err(error),
        }
    };
    // SAFETY: the caller's string.
    unsafe { fill_template(template, 0, attempt) }
}

/// Fills a template's X until `attempt` doesn't say EEXIST. As libc does it: 6 X before a suffix.
unsafe fn fill_template(
    template: *mut c_char,
    suffix: c_int,
    mut attempt: impl FnMut() -> Result<c_int, c_int>,
) -> Result<c_int, c_int> {
    // SAFETY: the caller's string, which it may write.
    unsafe {
        let length = libc::strlen(template);
        let end =
            length.checked_sub(usize::try_from(suffix).map_err(|_| libc::EINVAL)?).ok_or(libc::EINVAL)?;
        let start = end.checked_sub(6).ok_or(libc::EINVAL)?;
        let holes = std::slice::from_raw_parts_mut(template.cast::<u8>().add(start), 6);
        if holes != b"XXXXXX" {
            return Err(libc::EINVAL);
        }
        for _ in 0..62 * 62 * 62 {
            let mut random = 0_u64;
            let asked = [(&raw mut random) as usize, 8, 0, 0, 0, 0];
            let _ = crate::real::system_call(libc::SYS_getrandom, asked);
            for hole in holes.iter_mut() {
                *hole = LETTERS[(random % 62) as usize];
                random /= 62;
            }
            match attempt() {
                Err(libc::EEXIST) => {}
                other => return other,
            }
        }
        Err(libc::EEXIST)
    }
}

/// Whether a template is of a forwarded path.
unsafe fn is_far(path: *const c_char) -> bool {
    // SAFETY: the caller's string.
    let leads_to = unsafe { place(libc::AT_FDCWD, path, &mut Text::new()) };
    matches!(leads_to, Ok(Destination::Near(_) | Destination::Far(..)))
}

unsafe fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: the caller's template.
    give(unsafe {
        fill_template(template, suffix, || {
            let fd = open(template, flags, 0o600);
            if fd < 0 { Err(crate::real::errno()) } else { Ok(fd) }
        })
    })
}

hooks! {
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        if is_far(template) { make_file(template, suffix, flags) } else { next(template, suffix, flags) }
    }

    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        if !is_far(template) {
            return next(template);
        }
        let made = fill_template(template, 0, || {
            if crate::names::mkdir(template, 0o700) < 0 { Err(crate::real::errno()) } else { Ok(0) }
        });
        if give(made) < 0 { std::ptr::null_mut() } else { template }
    }
}

aliases! {
    mkostemps64 = mkostemps, (template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
}

macro_rules! temporaries {
    ($($name:ident($template:ident $(, $argument:ident)*) = ($suffix:expr, $flags:expr);)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($template: *mut c_char $(, $argument: c_int)*) -> c_int {
            // SAFETY: the caller's template.
            unsafe { mkostemps($template, $suffix, $flags) }
        }
    )*};
}

temporaries! {
    mkstemp(template) = (0, 0);
    mkstemp64(template) = (0, 0);
    mkstemps(template, suffix) = (suffix, 0);
    mkstemps64(template, suffix) = (suffix, 0);
    mkostemp(template, flags) = (0, flags);
    mkostemp64(template, flags) = (0, flags);
}
