//! The kernel's own descriptor of a far file, where the daemon is on this machine. With it, this
//! process's kernel does what a message can't: leases, `splice`, handles, attributes that only
//! their owner's kernel may set. From another node there is none, and the caller says so.
//!
//! Invariant: a descriptor lives for one call, but for those that the kernel's own marks belong to
//! ([`keep`]). It is of the same open file description as the daemon's, so offsets, flags and
//! leases are the same.

use crate::far::{PxOpened, far};
use crate::real::errno;
use crate::state;
use crate::table::{self, FarFile};
use std::ffi::{c_char, c_int};

/// A descriptor of this kernel's.
pub(crate) struct Given {
    fd: c_int,
    /// It is closed when this is dropped.
    ends: bool,
}

impl Given {
    /// Of an open far file.
    pub(crate) fn of(entry: FarFile) -> Option<Given> {
        // Where one is kept, another one's end would be taken for the file's.
        if let Some(fd) = table::kept_for(entry) {
            return Some(Given { fd, ends: false });
        }
        if !state::daemon_is_here() {
            return None;
        }
        let mut fd = -1;
        far!(px_give(entry.id(), &raw mut fd)).ok()?;
        (fd >= 0).then_some(Given { fd, ends: true })
    }

    /// Of a far path, opened with `O_PATH` and `flags`: its errno, or `without` if the file is
    /// there and no descriptor is to be had.
    pub(crate) fn of_path(
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        without: c_int,
    ) -> Result<Given, c_int> {
        let mut opened = PxOpened::default();
        far!(px_open(dir, path, libc::O_PATH | flags, 0, 0, (&raw mut opened).cast()))?;
        let given = Given::of(FarFile::new(opened.id, opened.mode));
        let _ = far!(px_close(opened.id, 1));
        given.ok_or(without)
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// The path by which this kernel knows the file, with its NUL.
    pub(crate) fn name(&self) -> String {
        format!("/proc/self/fd/{}\0", self.fd)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.ends {
            table::close_kernel(self.fd);
        }
    }
}

/// A descriptor of the program's as this kernel has it.
pub(crate) enum Real {
    /// Its own number: it is not forwarded.
    Own(c_int),
    Given(Given),
}

impl Real {
    /// `None`: it is another node's.
    pub(crate) fn of(fd: c_int) -> Option<Real> {
        match table::entry(fd) {
            None => Some(Real::Own(fd)),
            Some(entry) => Given::of(entry).map(Real::Given),
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        match self {
            Real::Own(fd) => *fd,
            Real::Given(given) => given.fd(),
        }
    }
}

/// Calls `body` with both descriptors as this kernel has them; `None`: one is another node's. The
/// descriptors are closed with the errno of `body` kept.
pub(crate) fn with_both<T>(one: c_int, other: c_int, body: impl FnOnce(c_int, c_int) -> T) -> Option<T> {
    let (one, other) = (Real::of(one)?, Real::of(other)?);
    let result = body(one.fd(), other.fd());
    let error = errno();
    drop((one, other));
    crate::real::set_errno(error);
    Some(result)
}

/// A descriptor that stays until the far file is closed: one for each file. EINVAL where there is
/// none; EMFILE where there is no room.
pub(crate) fn keep(entry: FarFile) -> Result<Given, c_int> {
    let mut given = Given::of(entry).ok_or(libc::EINVAL)?;
    if !given.ends {
        return Ok(given);
    }
    given.fd = crate::transport::raised(given.fd);
    if !table::keep(entry, given.fd) {
        return Err(libc::EMFILE);
    }
    given.ends = false;
    Ok(given)
}
