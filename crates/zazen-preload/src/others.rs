//! Functions of libc that do several things at once, some of them past the hooks. Here each is
//! built from hooks.

use crate::far::{Destination, place};
use crate::given::{Given, Real};
use crate::real::{hooks, set_errno};
use crate::{cwd, descriptors, dup, fault, metadata, names, near, open, state, table};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use zazen_forward_api::paths::Text;

fn is_far(path: *const c_char) -> bool {
    // SAFETY: NULL, or the program's string.
    !path.is_null()
        && matches!(
            unsafe { place(libc::AT_FDCWD, path, &mut Text::new()) },
            Ok(Destination::Near(_) | Destination::Far(..))
        )
}

/// A far file by its descriptor, or the working directory.
fn far_directory(dir: c_int) -> Option<table::FarFile> {
    if dir == libc::AT_FDCWD { cwd::far() } else { table::entry(dir) }
}

fn fails(error: c_int) -> c_int {
    set_errno(error);
    -1
}

hooks! {
    fn ftok(path: *const c_char, id: c_int) -> c_int {
        if !is_far(path) {
            return next(path, id);
        }
        let mut stat: libc::stat64 = std::mem::zeroed();
        if metadata::stat(path, &raw mut stat) != 0 {
            return -1;
        }
        let bits = stat.st_ino & 0xffff | (stat.st_dev & 0xff) << 16 | (id as u64 & 0xff) << 24;
        bits as u32 as c_int
    }

    fn name_to_handle_at(
        dir: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int,
    ) -> c_int {
        let empty = flags & libc::AT_EMPTY_PATH != 0;
        if empty
            && let Some(entry) = far_directory(dir)
            && fault::string(path).is_some_and(CStr::is_empty)
        {
            return match Given::of(entry) {
                Some(given) => next(given.fd(), path, handle, mount, flags),
                None => fails(libc::EOPNOTSUPP),
            };
        }
        match place(dir, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(dir, path, handle, mount, flags),
            Ok(Destination::Far(dir, path)) => {
                let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::O_NOFOLLOW };
                // A handle is of one kernel.
                match Given::of_path(dir, path, follow, libc::EOPNOTSUPP) {
                    Ok(given) => {
                        let flags = flags & !libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH;
                        next(given.fd(), c"".as_ptr(), handle, mount, flags)
                    }
                    Err(error) => fails(error),
                }
            }
            Err(error) => fails(error),
        }
    }

    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
        let Some(cwd) = cwd::far().filter(|_| mount == libc::AT_FDCWD) else {
            return match Real::of(mount) {
                Some(real) => next(real.fd(), handle, flags),
                None => fails(libc::EOPNOTSUPP),
            };
        };
        // The working directory is open without a right to list it. The kernel wants that here.
        let Some(given) = Given::of(cwd) else { return fails(libc::EOPNOTSUPP) };
        let (name, how) = (given.name(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
        let asked = [libc::AT_FDCWD as usize, name.as_ptr() as usize, how as usize, 0, 0, 0];
        match crate::real::system_call(libc::SYS_openat, asked) {
            Ok(folder) => {
                let opened = next(folder as c_int, handle, flags);
                table::close_kernel(folder as c_int);
                opened
            }
            Err(error) => fails(error),
        }
    }

    fn chroot(path: *const c_char) -> c_int {
        // A root directory that this kernel doesn't have.
        if is_far(path) {
            return fails(libc::EPERM);
        }
        let outcome = next(path);
        if outcome == 0 {
            look_again();
        }
        outcome
    }

    fn unshare(what: c_int) -> c_int {
        let outcome = next(what);
        if outcome == 0 && state::is_active() {
            look_again();
        }
        outcome
    }

    fn setns(fd: c_int, kind: c_int) -> c_int {
        let outcome = next(fd, kind);
        if outcome == 0 && state::is_active() {
            look_again();
        }
        outcome
    }

    fn mktemp(template: *mut c_char) -> *mut c_char {
        match place(libc::AT_FDCWD, template, &mut Text::new()) {
            Ok(Destination::Near(_) | Destination::Far(..)) => {
                if open::name_unused(template).is_err() {
                    *template = 0;
                }
                template
            }
            _ => next(template),
        }
    }

    fn tempnam(folder: *const c_char, start: *const c_char) -> *mut c_char {
        let named = state::variable(c"TMPDIR").and_then(|name| CString::new(name).ok());
        let given = (!folder.is_null()).then(|| CStr::from_ptr(folder).to_owned());
        let chosen = named.into_iter().chain(given).find(|folder| is_folder(folder));
        let Some(chosen) = chosen.filter(|folder| is_far(folder.as_ptr())) else {
            return next(folder, start)
        };
        let start = if start.is_null() { c"file" } else { CStr::from_ptr(start) };
        let start = &start.to_bytes()[..start.count_bytes().min(5)];
        let Ok(whole) = CString::new([chosen.to_bytes(), b"/", start, b"XXXXXX"].concat()) else {
            return std::ptr::null_mut();
        };
        let name = libc::strdup(whole.as_ptr());
        if !name.is_null() && let Err(error) = open::name_unused(name) {
            libc::free(name.cast::<c_void>());
            set_errno(error);
            return std::ptr::null_mut();
        }
        name
    }

    fn daemon(stays: c_int, keeps: c_int) -> c_int {
        if !state::is_active() {
            return next(stays, keeps);
        }
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() < 0 || (stays == 0 && names::chdir(c"/".as_ptr()) != 0) {
            return -1;
        }
        if keeps == 0 {
            let null = open::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0);
            if null < 0 {
                return -1;
            }
            become_streams(null);
        }
        0
    }

    fn login_tty(fd: c_int) -> c_int {
        if !state::is_active() {
            return next(fd);
        }
        libc::setsid();
        if descriptors::ioctl(fd, libc::TIOCSCTTY, 0) != 0 {
            return -1;
        }
        become_streams(fd);
        0
    }

    fn forkpty(
        leader: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize,
    ) -> libc::pid_t {
        if !state::is_active() {
            return next(leader, name, settings, size);
        }
        let (mut ours, mut theirs) = (-1, -1);
        if libc::openpty(&raw mut ours, &raw mut theirs, name, settings, size) != 0 {
            return -1;
        }
        let child = libc::fork();
        match child {
            -1 => {
                descriptors::close(ours);
                descriptors::close(theirs);
            }
            0 => {
                descriptors::close(ours);
                if login_tty(theirs) != 0 {
                    libc::_exit(1);
                }
            }
            _ => {
                *leader = ours;
                descriptors::close(theirs);
            }
        }
        child
    }
}

/// After this process got another root directory or other mounts.
fn look_again() {
    near::look_again();
    cwd::refresh_local();
}

fn is_folder(path: &CStr) -> bool {
    // SAFETY: a string; all zeros is a valid stat.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        metadata::stat(path.as_ptr(), &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Makes a descriptor all three standard streams.
fn become_streams(fd: c_int) {
    // SAFETY: numbers only.
    unsafe {
        for stream in 0..3 {
            dup::dup2(fd, stream);
        }
        if fd > 2 {
            descriptors::close(fd);
        }
    }
}
