//! Calls to the daemon's posix plug-in, made as the user of the program's thread.
//!
//! The daemon believes only what the kernel says about a connection. So there is a connection for
//! each identity, and a thread of root's takes another user's identity, for files and sockets,
//! while it calls for that user.
//!
//! Invariants: a call runs as the user for whom it is made; no lock is held while it runs, so a
//! call that waits holds up no other; a thread that cannot take its own identity back ends the
//! process.

use crate::identity::Identity;
use crate::target::Target;
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zazen_call::Carrier;
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::{HELLO_NEW, Hello, ROOT};
use zazen_posix_client::{Address, Link, Settings, ffi};

/// Calls a function of posix.h: `px!(px_mkdir(ROOT, path.as_ptr(), 0o755, 0))`. Its result, or its
/// errno.
macro_rules! px {
    ($name:ident($($argument:expr),* $(,)?)) => {
        zazen_posix_client::call!($name($($argument),*)).map_err(zazen_posix_client::Failure::errno)
    };
}
pub(crate) use px;

/// The sessions with the plug-in.
pub(crate) struct Far {
    /// Only root can make calls as other users.
    is_root: bool,
    own: Identity,
    socket: PathBuf,
    /// The connection of each identity. They are never freed, since threads may be in calls when
    /// the process ends.
    links: Mutex<HashMap<Identity, &'static Link>>,
}

/// This thread has another identity while this lives. Its real user stays, so that it can return.
struct Acting<'a> {
    own: &'a Identity,
}

impl Acting<'_> {
    fn begin<'a>(identity: &Identity, own: &'a Identity) -> Result<Acting<'a>, i32> {
        let acting = Acting { own };
        become_them(identity)?;
        Ok(acting)
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        // The user first: only root may change the rest.
        // SAFETY: numbers only; this thread only.
        let back = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, self.own.uid, KEEP) } == 0;
        if !back || become_them(self.own).is_err() {
            // Nothing may go on with another user's identity.
            std::process::abort();
        }
    }
}

/// "As it is", for setresuid and setresgid.
const KEEP: u32 = u32::MAX;

/// Gives this thread the effective identity: groups, group, user. Checks each.
fn become_them(identity: &Identity) -> Result<(), i32> {
    let Identity { uid, gid, groups } = identity;
    // SAFETY: as many groups as are said; numbers; this thread only (libc's functions change all
    // threads).
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, KEEP, *gid, KEEP) == 0
            && libc::syscall(libc::SYS_setresuid, KEEP, *uid, KEEP) == 0
            && (libc::geteuid(), libc::getegid()) == (*uid, *gid)
    };
    if done { Ok(()) } else { Err(libc::EPERM) }
}

impl Far {
    /// Connects as this process's own user.
    pub(crate) fn connect(socket: &Path) -> Result<Far, i32> {
        // SAFETY: no arguments.
        let is_root = unsafe { libc::geteuid() } == 0;
        let own = Target::own().status()?.identity(false);
        let far = Far { is_root, own, socket: socket.to_owned(), links: Mutex::default() };
        ffi::through(far.link(&far.own), greet)?;
        Ok(far)
    }

    fn link(&self, identity: &Identity) -> &'static Link {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.entry(identity.clone()).or_insert_with(|| {
            let settings =
                Settings { carrier: Carrier::Unix, ..Settings::new(Address::Socket(self.socket.clone())) };
            Box::leak(Box::new(Link::new(settings)))
        })
    }

    /// The only identity that calls can have, unless this process is root's.
    pub(crate) fn only_identity(&self) -> Option<&Identity> {
        Some(&self.own).filter(|_| !self.is_root)
    }

    /// Does `work` as `identity`: files that it opens on this machine are opened with that user's
    /// rights.
    pub(crate) fn as_them<T>(
        &self,
        identity: &Identity,
        work: impl FnOnce() -> Result<T, i32>,
    ) -> Result<T, i32> {
        let is_other = self.is_root && *identity != self.own;
        let _acting = if is_other { Some(Acting::begin(identity, &self.own)?) } else { None };
        work()
    }

    /// Makes calls as `identity`. They must not read the program's memory or /proc: that user may
    /// not be allowed to.
    pub(crate) fn acting<T>(
        &self,
        identity: &Identity,
        mut calls: impl FnMut() -> Result<T, i32>,
    ) -> Result<T, i32> {
        let link = self.link(if self.is_root { identity } else { &self.own });
        self.as_them(identity, || {
            ffi::through(link, || match calls() {
                // The connection is new, or the daemon was restarted.
                Err(libc::EBADFD) => {
                    greet()?;
                    calls()
                }
                other => other,
            })
        })
    }
}

fn greet() -> Result<(), i32> {
    let mut key = 0_u64;
    // SAFETY: room for eight bytes.
    if unsafe { libc::getrandom((&raw mut key).cast(), 8, 0) } != 8 {
        return Err(libc::EIO);
    }
    let hello = Hello { key, token: 0, kind: HELLO_NEW, pid: std::process::id(), umask: 0, keep_all: 0 };
    let none: [u32; 1] = [0];
    px!(px_hello((&raw const hello).cast(), none.as_ptr(), 0)).map(|_| ())
}

/// A kernel descriptor of the far file.
pub(crate) fn open(path: &CStr, flags: c_int, mode: u32, umask: u32) -> Result<OwnedFd, i32> {
    let mut fd = -1;
    px!(px_open_direct(ROOT, path.as_ptr(), flags, mode, umask, &raw mut fd))?;
    // SAFETY: it came with the answer, for us alone.
    if fd < 0 { Err(libc::EIO) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// The canonical path of a far file.
pub(crate) fn real_path(path: &CStr) -> Result<Vec<u8>, i32> {
    let mut name = vec![0_u8; PATH_MAX];
    let mut room = name.len() as u64;
    px!(px_realpath(ROOT, path.as_ptr(), name.as_mut_ptr().cast(), &raw mut room))?;
    name.truncate(room as usize);
    Ok(name)
}
