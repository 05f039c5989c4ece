//! The daemon's posix plug-in, as the supervisor calls it: for whoever the program's thread is.
//!
//! The daemon believes the kernel only: who connects is who calls. So there is a connection for each identity, and a
//! thread of root's that calls for somebody else is somebody else meanwhile, as far as files and sockets go.
//!
//! Invariants: a call runs as the one for whom it is made; no lock is held while it runs, so that one that waits for
//! something costs nobody else; a thread that can't become itself again ends the process.

use crate::notify::errno;
use crate::target::Target;
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zazen_call::Carrier;
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::{HELLO_NEW, Hello, ROOT};
use zazen_stub::{Address, Link, Settings, ffi};

#[allow(missing_docs, dead_code, unreachable_pub, clippy::all)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/posix_raw.rs"));
}
pub(crate) use stubs::raw;

/// As whom a file is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// A stub's result, or its errno.
pub(crate) fn outcome<T: PartialOrd + From<i8>>(value: T) -> Result<T, i32> {
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
        $crate::far::outcome(unsafe {
            $crate::far::raw::$name($($argument),*)
        })
    };
}
pub(crate) use px;

/// The sessions.
pub(crate) struct Far {
    /// Only root's can be made as somebody else.
    is_root: bool,
    own: Identity,
    socket: PathBuf,
    /// The connection of each identity; for ever, since threads may be in calls whenever the process ends.
    links: Mutex<HashMap<Identity, &'static Link>>,
}

/// This thread is somebody else while this lives; its real user stays, so that it can come back.
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
        // The user first: without it the rest is forbidden.
        // SAFETY: numbers only; this thread only.
        let back = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, self.own.uid, KEEP) } == 0;
        if !back || become_them(self.own).is_err() {
            // Nobody may go on as somebody else.
            std::process::abort();
        }
    }
}

/// "As it is", for setresuid and setresgid.
const KEEP: u32 = u32::MAX;

/// Makes this thread that user as far as others see it: groups, group, user; each checked.
fn become_them(identity: &Identity) -> Result<(), i32> {
    let Identity { uid, gid, groups } = identity;
    // SAFETY: as many groups as are said; numbers; this thread only (libc's functions change all threads).
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

    /// The only one as whom calls can be made, unless this is root's.
    pub(crate) fn only_identity(&self) -> Option<&Identity> {
        Some(&self.own).filter(|_| !self.is_root)
    }

    /// Does `work` as `identity`: what it opens here is opened with that one's rights.
    pub(crate) fn as_them<T>(
        &self,
        identity: &Identity,
        work: impl FnOnce() -> Result<T, i32>,
    ) -> Result<T, i32> {
        let is_other = self.is_root && *identity != self.own;
        let _acting = if is_other { Some(Acting::begin(identity, &self.own)?) } else { None };
        work()
    }

    /// Makes calls as `identity`. They do not look into the program: its memory and its /proc are not for that one.
    pub(crate) fn acting<T>(
        &self,
        identity: &Identity,
        mut calls: impl FnMut() -> Result<T, i32>,
    ) -> Result<T, i32> {
        let link = self.link(if self.is_root { identity } else { &self.own });
        self.as_them(identity, || {
            ffi::through(link, || match calls() {
                // A new connection, or a daemon that was begun anew.
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

/// The canonical name.
pub(crate) fn real_path(path: &CStr) -> Result<Vec<u8>, i32> {
    let mut name = vec![0_u8; PATH_MAX];
    let mut room = name.len() as u64;
    px!(px_realpath(ROOT, path.as_ptr(), name.as_mut_ptr().cast(), &raw mut room))?;
    name.truncate(room as usize);
    Ok(name)
}
