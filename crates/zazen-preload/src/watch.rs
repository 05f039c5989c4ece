//! inotify and fanotify: where the daemon is on this machine, its kernel is this one, so a far file
//! is watched through a descriptor of it. Elsewhere no watch is to be had: ENOSPC, as when the
//! kernel has none left, for which programs have another way.

use crate::far::{Destination, place};
use crate::given::Given;
use crate::real::{hooks, set_errno};
use std::ffi::{c_char, c_int, c_uint};
use zazen_forward_api::paths::Text;

/// Calls `body` with a name of this kernel's for a far file.
fn with_name(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    body: impl FnOnce(*const c_char) -> c_int,
) -> Result<c_int, c_int> {
    let given = Given::of_path(dir, path, flags, libc::ENOSPC)?;
    let result = body(given.name().as_ptr().cast());
    let error = crate::real::errno();
    drop(given);
    set_errno(error);
    Ok(result)
}

fn give(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

hooks! {
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(fd, path, mask),
            Ok(Destination::Far(dir, path)) => {
                let follow = if mask & libc::IN_DONT_FOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
                let kind = if mask & libc::IN_ONLYDIR != 0 { libc::O_DIRECTORY } else { 0 };
                give(with_name(dir, path, follow | kind, |name| next(fd, name, mask & !libc::IN_DONT_FOLLOW)))
            }
            Err(error) => give(Err(error)),
        }
    }

    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, at: c_int, path: *const c_char) -> c_int {
        match place(at, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(fd, flags, mask, at, path),
            Ok(Destination::Far(dir, path)) => {
                let follow = if flags & libc::FAN_MARK_DONT_FOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
                let flags = flags & !libc::FAN_MARK_DONT_FOLLOW;
                give(with_name(dir, path, follow as c_int,
                    |name| next(fd, flags, mask, libc::AT_FDCWD, name)))
            }
            Err(error) => give(Err(error)),
        }
    }
}
