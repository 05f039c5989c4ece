//! Who may do what with an inode: the kernel's own rules.

use super::inode::Inode;
use crate::Errno;
use crate::attributes::Kind;
use zazen_core::Credentials;

/// Set-user-id bit.
pub(super) const SET_UID: u16 = 0o4000;
/// Set-group-id bit.
pub(super) const SET_GID: u16 = 0o2000;
/// Sticky bit.
const STICKY: u16 = 0o1000;
/// May read.
pub(super) const READ: u16 = 4;
/// May write.
pub(super) const WRITE: u16 = 2;
/// May search a directory.
pub(super) const SEARCH: u16 = 1;

/// Whether the caller is in the group.
pub(super) fn in_group(caller: &Credentials, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// Whether the caller may do all that `bits` name.
pub(super) fn may(caller: &Credentials, inode: &Inode, bits: u16) -> bool {
    if caller.uid == 0 {
        return true;
    }
    let shift = if caller.uid == inode.uid {
        6
    } else if in_group(caller, inode.gid) {
        3
    } else {
        0
    };
    (inode.mode >> shift) & bits == bits
}

/// `EACCES` unless the caller may do all that `bits` name.
pub(super) fn check(caller: &Credentials, inode: &Inode, bits: u16) -> Result<(), Errno> {
    if may(caller, inode, bits) { Ok(()) } else { Err(Errno::EACCES) }
}

/// `EPERM` unless the caller owns the inode or is root.
pub(super) fn check_owner(caller: &Credentials, inode: &Inode) -> Result<(), Errno> {
    if caller.uid == 0 || caller.uid == inode.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether only the owner of an entry's inode may take the entry out of this directory: it is
/// sticky, and the caller is neither its owner nor root. Then it says who the owner must be.
pub(super) fn owner_only(caller: &Credentials, directory: &Inode) -> Option<u32> {
    let free = directory.mode & STICKY == 0 || caller.uid == 0 || caller.uid == directory.uid;
    (!free).then_some(caller.uid)
}

/// Group and permission bits of an inode that the caller makes in `directory`.
pub(super) fn inherit(caller: &Credentials, directory: &Inode, kind: Kind, mode: u32) -> (u32, u16) {
    let mode = (mode & 0o7777) as u16;
    if directory.mode & SET_GID == 0 {
        return (caller.gid, mode);
    }
    let gid = directory.gid;
    if kind == Kind::Directory {
        return (gid, mode | SET_GID);
    }
    let executable = mode & (SET_GID | 0o010) == SET_GID | 0o010;
    let strip = executable && caller.uid != 0 && !in_group(caller, gid);
    (gid, if strip { mode & !SET_GID } else { mode })
}

/// Permission bits after the caller changed the bytes or the owner: set-user-id goes, and
/// set-group-id of what its group may execute, or of what the caller's groups do not include.
pub(super) fn without_privileges(caller: &Credentials, inode: &Inode) -> u16 {
    let executable = inode.mode & 0o010 != 0;
    let strip = executable || (caller.uid != 0 && !in_group(caller, inode.gid));
    let mode = inode.mode & !SET_UID;
    if strip { mode & !SET_GID } else { mode }
}
