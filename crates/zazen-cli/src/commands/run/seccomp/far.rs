//! The daemon's posix plug-in, as the supervisor calls it: for whoever the program's thread is.
//!
//! Invariant: a call runs as the one for whom it is made; others wait meanwhile.

use super::notify::errno;
use super::target::Target;
use std::ffi::{CStr, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use zazen_call::Carrier;
use zazen_stub::{Address, Link, Settings, ffi};

#[allow(missing_docs, dead_code, unreachable_pub, clippy::all)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/posix_raw.rs"));
}
pub(super) use stubs::raw;

/// "An absolute path".
pub(super) const ROOT: c_int = -100;

/// `struct px_hello`.
#[repr(C)]
struct Hello {
    key: u64,
    token: u64,
    kind: u32,
    pid: u32,
    umask: u32,
    keep_all: u32,
}

/// `struct px_stat`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Stat {
    pub(super) mask: u32,
    pub(super) blksize: u32,
    pub(super) attributes: u64,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) attributes_mask: u64,
    /// Access, birth, change, modification.
    pub(super) seconds: [i64; 4],
    pub(super) nanoseconds: [u32; 4],
    /// rdev's major and minor, dev's.
    pub(super) devices: [u32; 4],
    pub(super) mnt_id: u64,
}

/// As whom a file is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// A stub's result, or its errno.
pub(super) fn outcome<T: PartialOrd + From<i8>>(value: T) -> Result<T, i32> {
    if value >= T::from(0) {
        return Ok(value);
    }
    let error = errno();
    // SAFETY: this thread's number.
    let lost = unsafe { raw::zazen_stub_error() } != 0;
    // A far side that is gone is a broken disk to a program.
    Err(if lost { libc::EIO } else { error })
}

/// Calls a function of posix.h: `px!(px_mkdir(ROOT, path.as_ptr(), 0o755, 0))`.
macro_rules! px {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers to strings and objects that live for the call, as posix.h wants them.
        $crate::commands::run::seccomp::far::outcome(unsafe {
            $crate::commands::run::seccomp::far::raw::$name($($argument),*)
        })
    };
}
pub(super) use px;

/// The session.
pub(super) struct Far {
    /// As whom calls are made now. Only root's can be made as somebody else.
    acts_as: RwLock<Option<Identity>>,
    is_root: bool,
    own: Identity,
}

impl Far {
    /// Connects; this process's only one.
    pub(super) fn connect(socket: &Path) -> Result<Far, i32> {
        let settings =
            Settings { carrier: Carrier::Unix, ..Settings::new(Address::Socket(socket.to_owned())) };
        // As long as the process: threads may be in calls whenever it ends.
        let link = Box::leak(Box::new(Link::new(settings)));
        // SAFETY: it lives on.
        unsafe { ffi::zazen_stub_set_default(link) };
        // SAFETY: no arguments.
        let is_root = unsafe { libc::geteuid() } == 0;
        let own = Target { tid: std::process::id().cast_signed() }.status()?.identity(false);
        let far = Far { acts_as: RwLock::new(Some(own.clone())), is_root, own };
        far.greet()?;
        Ok(far)
    }

    fn greet(&self) -> Result<(), i32> {
        let mut key = 0_u64;
        // SAFETY: room for eight bytes.
        if unsafe { libc::getrandom((&raw mut key).cast(), 8, 0) } != 8 {
            return Err(libc::EIO);
        }
        let hello = Hello { key, token: 0, kind: 0, pid: std::process::id(), umask: 0, keep_all: 0 };
        let none: [u32; 1] = [0];
        px!(px_hello((&raw const hello).cast(), none.as_ptr(), 0)).map(|_| ())
    }

    /// Makes calls as `identity`.
    pub(super) fn acting<T>(
        &self,
        identity: &Identity,
        mut calls: impl FnMut() -> Result<T, i32>,
    ) -> Result<T, i32> {
        if !self.is_root {
            return self.greeted(None, &mut calls);
        }
        let current = self.acts_as.read().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() == Some(identity) {
            return self.greeted(Some(identity), &mut calls);
        }
        drop(current);
        let mut current = self.acts_as.write().unwrap_or_else(PoisonError::into_inner);
        *current = None;
        self.greeted(None, &mut || become_them(identity))?;
        *current = Some(identity.clone());
        self.greeted(Some(identity), &mut calls)
    }

    /// Says hello again to a daemon that was begun anew.
    fn greeted<T>(
        &self,
        identity: Option<&Identity>,
        calls: &mut impl FnMut() -> Result<T, i32>,
    ) -> Result<T, i32> {
        match calls() {
            Err(libc::EBADFD) => {
                self.greet()?;
                identity.filter(|identity| **identity != self.own).map_or(Ok(()), become_them)?;
                calls()
            }
            other => other,
        }
    }
}

fn become_them(identity: &Identity) -> Result<(), i32> {
    let (groups, count) = (identity.groups.as_ptr(), identity.groups.len() as u32);
    px!(px_identity(identity.uid, identity.gid, groups, count)).map(|_| ())
}

/// A kernel descriptor of the far file.
pub(super) fn open(path: &CStr, flags: c_int, mode: u32, umask: u32) -> Result<OwnedFd, i32> {
    let mut fd = -1;
    px!(px_open_direct(ROOT, path.as_ptr(), flags, mode, umask, &raw mut fd))?;
    // SAFETY: it came with the answer, for us alone.
    if fd < 0 { Err(libc::EIO) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// The canonical name.
pub(super) fn real_path(path: &CStr) -> Result<Vec<u8>, i32> {
    let mut name = vec![0_u8; 4096];
    let mut room = name.len() as u64;
    px!(px_realpath(ROOT, path.as_ptr(), name.as_mut_ptr().cast(), &raw mut room))?;
    name.truncate(room as usize);
    Ok(name)
}
