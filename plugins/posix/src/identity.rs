//! Acting as the caller: file system user, group, groups and umask of one thread.
//!
//! Invariants: a daemon that is not root serves its own user only; a thread is itself again when the guard is
//! dropped; only the calling thread is changed (raw system calls: glibc's would change all threads).

use crate::entry::{Outcome, caller, caller_groups};
use std::cell::{Cell, RefCell};
use std::ffi::c_long;
use std::sync::{Arc, LazyLock};

fn own_uid() -> u32 {
    /// A daemon stays who it is; asking the kernel for every call would cost as much as the rest of a small one.
    static OWN: LazyLock<u32> = LazyLock::new(|| {
        // SAFETY: no arguments.
        unsafe { libc::geteuid() }
    });
    *OWN
}

/// Whether this daemon can act for that user.
pub(crate) fn may_serve(uid: u32) -> Outcome<()> {
    let own = own_uid();
    if own == 0 || own == uid { Ok(()) } else { Err(libc::EPERM) }
}

/// A user, with what counts for files.
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

thread_local! {
    /// As whom the process goes on whose call this thread is running.
    static INSTEAD: RefCell<Option<Arc<Identity>>> = const { RefCell::new(None) };
}

/// Runs a call of a process that is another user by now than the one who connected.
pub(crate) fn acting_as<T>(identity: Arc<Identity>, call: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            INSTEAD.set(None);
        }
    }
    let _reset = Reset;
    INSTEAD.set(Some(identity));
    call()
}

/// The thread acts as the caller while this lives.
pub(crate) struct Acting {
    groups: Option<Vec<u32>>,
    gid: u32,
}

/// Makes this thread the caller as far as files are concerned. Nothing is done for the daemon's own user.
pub(crate) fn act() -> Outcome<Option<Acting>> {
    let own = own_uid();
    if let Some(instead) = INSTEAD.take() {
        let outcome = become_user(&instead);
        INSTEAD.set(Some(instead));
        return outcome.map(Some);
    }
    let caller = caller()?;
    if caller.uid == own {
        return Ok(None);
    }
    may_serve(caller.uid)?;
    let groups = caller_groups().or_else(|| groups_of(caller.pid, caller.uid)).unwrap_or_default();
    become_user(&Identity { uid: caller.uid, gid: caller.gid, groups }).map(Some)
}

fn become_user(identity: &Identity) -> Outcome<Acting> {
    let mine = current_groups();
    set_groups(&identity.groups)?;
    // SAFETY: numbers only; this thread only.
    let gid = unsafe {
        let gid = libc::syscall(libc::SYS_setfsgid, c_long::from(identity.gid)) as u32;
        libc::syscall(libc::SYS_setfsuid, c_long::from(identity.uid));
        gid
    };
    Ok(Acting { groups: Some(mine), gid })
}

impl Drop for Acting {
    fn drop(&mut self) {
        // SAFETY: numbers only; this thread only.
        unsafe {
            libc::syscall(libc::SYS_setfsuid, c_long::from(own_uid()));
            libc::syscall(libc::SYS_setfsgid, c_long::from(self.gid));
        }
        if let Some(groups) = self.groups.take() {
            let _ = set_groups(&groups);
        }
    }
}

fn current_groups() -> Vec<u32> {
    // SAFETY: asks for the count.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: room for as many.
    let count = unsafe { libc::getgroups(groups.len() as i32, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups
}

fn set_groups(groups: &[u32]) -> Outcome<()> {
    // SAFETY: as many as there are; this thread only.
    let outcome = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if outcome < 0 { Err(crate::entry::errno()) } else { Ok(()) }
}

/// The groups of a process on this machine, if it is that user's.
fn groups_of(pid: u32, uid: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let effective: u32 = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    if effective != uid {
        return None;
    }
    Some(field("Groups:")?.split_whitespace().filter_map(|group| group.parse().ok()).collect())
}

thread_local! {
    static UMASK_IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Creates with this umask while it lives. The thread gets an umask (and a working directory) of its own first.
pub(crate) struct Umask(u32);

pub(crate) fn with_umask(mask: u32) -> Outcome<Umask> {
    if !UMASK_IS_OURS.get() {
        // SAFETY: no memory involved.
        crate::entry::checked(unsafe { libc::unshare(libc::CLONE_FS) })?;
        UMASK_IS_OURS.set(true);
    }
    // SAFETY: a number.
    Ok(Umask(unsafe { libc::umask(mask & 0o777) }))
}

impl Drop for Umask {
    fn drop(&mut self) {
        // SAFETY: a number.
        unsafe { libc::umask(self.0) };
    }
}
