//! Keeps a process that acts as a caller within the exported folders, by the kernel's Landlock
//! where there is one.
//!
//! Landlock asks at opening, listing, making, removing, renaming, truncating and executing, and
//! takes links and mounts into account. It does not ask for names' metadata (stat, chmod, extended
//! attributes): the plug-in's own walk (`openat2`) keeps these within the exports, with and without
//! Landlock.

use rustix::fs::{Mode, OFlags};
use std::io::Error as Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use zazen_core::{Error, Result};

/// The first version that knows of renaming between folders; an earlier one would forbid it
/// altogether.
const ABI_MIN: libc::c_long = 2;
const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
/// All rights that versions 2, 3 and 5 know: up to REFER, TRUNCATE, IOCTL_DEV.
const RIGHTS: [(libc::c_long, u64); 3] = [(2, (1 << 14) - 1), (3, (1 << 15) - 1), (5, (1 << 16) - 1)];
/// From this version on: no connecting to abstract sockets, no signals to processes outside.
const SCOPES: (libc::c_long, u64) = (6, 0b11);
const SYS_CREATE_RULESET: libc::c_long = 444;
const SYS_ADD_RULE: libc::c_long = 445;
const SYS_RESTRICT_SELF: libc::c_long = 446;

#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

fn checked(outcome: libc::c_long, what: &str) -> Result<libc::c_long> {
    if outcome < 0 {
        return Err(Error::io(format!("Landlock: {what}"), Errno::last_os_error()));
    }
    Ok(outcome)
}

/// From now on the calling thread, and those that it begins, open nothing outside `exports` and the
/// folders `mounted`. False: this kernel has no Landlock, or an export is the whole tree.
///
/// The process can get no new privileges.
pub(crate) fn confine(exports: &[PathBuf], mounted: &[(PathBuf, OwnedFd)]) -> Result<bool> {
    if exports.iter().any(|export| export.as_os_str() == "/") {
        return Ok(false);
    }
    let none = std::ptr::null::<u8>();
    // SAFETY: asks for the version.
    let version = unsafe { libc::syscall(SYS_CREATE_RULESET, none, 0_usize, CREATE_RULESET_VERSION) };
    if version < ABI_MIN {
        return Ok(false);
    }
    let known = RIGHTS.iter().filter(|(since, _)| version >= *since).map(|(_, rights)| *rights).max();
    let rights = known.unwrap_or_default();
    let scoped = if version >= SCOPES.0 { SCOPES.1 } else { 0 };
    let ruleset = Ruleset { files: rights, network: 0, scoped };
    // SAFETY: the struct and its size; older versions take a longer one whose end is zero.
    let fd = unsafe { libc::syscall(SYS_CREATE_RULESET, &raw const ruleset, size_of::<Ruleset>(), 0_u32) };
    // SAFETY: new, and nobody else's.
    let ruleset = unsafe { OwnedFd::from_raw_fd(checked(fd, "make a set of rules")? as i32) };
    let allow = |folder: &OwnedFd| {
        let rule = PathBeneath { allowed: rights, parent: folder.as_raw_fd() };
        // SAFETY: the struct lives for the call.
        let added = unsafe {
            libc::syscall(SYS_ADD_RULE, ruleset.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0_u32)
        };
        checked(added, "allow an export").map(drop)
    };
    for export in exports {
        // One that isn't there, or that this identity can't reach, is as good as not exported.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open(export, flags, Mode::empty()) else { continue };
        allow(&folder)?;
    }
    mounted.iter().try_for_each(|(_, root)| allow(root))?;
    // SAFETY: numbers only.
    checked(unsafe { libc::syscall(SYS_RESTRICT_SELF, ruleset.as_raw_fd(), 0_u32) }, "confine the process")?;
    Ok(true)
}
