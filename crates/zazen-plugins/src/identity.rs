//! Whom a plug-in's process acts as, and how it becomes that user for good.
//!
//! Invariants: no result of a call that changes the identity is taken on trust: the kernel is asked
//! again afterwards; a process that can't become exactly the wanted identity serves nobody; one
//! that has become a user who isn't root has no capability in any set and no way back.

use rustix::process::{getegid, geteuid, getgroups};
use serde::{Deserialize, Serialize};
use std::io::Error as Errno;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// What files are asked with: user, group, supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Sorted, each once: two lists of the same groups are the same identity.
    pub(crate) groups: Vec<u32>,
}

/// The capabilities that a worker of root's own keeps, so that root's forwarded calls are as good
/// as root's: those that are asked for when files are named, owned, marked and locked, and ports
/// below 1024 bound.
const ROOT_KEEPS: [u32; 11] = [
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    3,  // CAP_FOWNER
    4,  // CAP_FSETID
    9,  // CAP_LINUX_IMMUTABLE
    10, // CAP_NET_BIND_SERVICE
    24, // CAP_SYS_RESOURCE: blocks that a file system keeps for root
    27, // CAP_MKNOD
    28, // CAP_LEASE
    31, // CAP_SETFCAP
];
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
/// More than any kernel has; those that it doesn't know it refuses.
const CAPABILITIES_MAX: u32 = 64;

impl Identity {
    pub(crate) fn of(credentials: &Credentials) -> Identity {
        let mut groups = credentials.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        Identity { uid: credentials.uid, gid: credentials.gid, groups }
    }

    /// This process's.
    pub(crate) fn own() -> Result<Identity> {
        let groups = getgroups().map_err(|errno| Error::io("ask for this process's groups", errno.into()))?;
        Ok(Identity::of(&Credentials {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        }))
    }

    /// As whom this process, being `own`, can serve a caller of this identity; an error says why it
    /// can't.
    ///
    /// Without the privilege to become others, a caller is served only if that gives him nothing:
    /// the same user and group, and no group of ours that isn't his as well.
    pub(crate) fn to_serve(&self, own: &Identity) -> Result<Identity> {
        if self == own {
            return Ok(own.clone());
        }
        let has = effective_capabilities()?;
        let lacks = |capability: u32| has & (1 << capability) == 0;
        let missing: Vec<&str> = [(CAP_SETUID, "CAP_SETUID"), (CAP_SETGID, "CAP_SETGID")]
            .into_iter()
            .filter(|(capability, _)| lacks(*capability))
            .map(|(_, name)| name)
            .collect();
        if missing.is_empty() {
            return Ok(self.clone());
        }
        let is_his = |group: &u32| *group == self.gid || self.groups.contains(group);
        if self.uid == own.uid && self.gid == own.gid && own.groups.iter().all(is_his) {
            return Ok(own.clone());
        }
        let whom = if self.uid == own.uid { "another group or other groups of" } else { "anybody but" };
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "this daemon runs as user {} without {}, so it can't act for {whom} this user, and refuses \
                 user {}; give it the capability (packaging/zazend.service has it), or run a daemon as user \
                 {}",
                own.uid,
                missing.join(" and "),
                self.uid,
                self.uid
            ),
        ))
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3` and this thread.
fn header() -> [u32; 2] {
    [0x2008_0522, 0]
}

fn failed(what: &str) -> Error {
    Error::io(format!("{what} in a plug-in's process"), Errno::last_os_error())
}

fn capabilities() -> Result<[CapabilityWords; 2]> {
    let (mut header, mut words) = (header(), [CapabilityWords::default(); 2]);
    // SAFETY: version 3 fills two of the structs.
    if unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), words.as_mut_ptr()) } != 0 {
        return Err(failed("ask for the capabilities"));
    }
    Ok(words)
}

fn effective_capabilities() -> Result<u64> {
    let [low, high] = capabilities()?;
    Ok(u64::from(high.effective) << 32 | u64::from(low.effective))
}

fn control(option: libc::c_int, argument: u64) -> libc::c_int {
    // SAFETY: options that take numbers.
    unsafe { libc::prctl(option, argument, 0, 0, 0) }
}

/// Becomes `identity`, from `own`, for good; nothing of before is left that could be used or taken
/// back.
///
/// The process has one thread.
pub(crate) fn become_identity(identity: &Identity, own: &Identity) -> Result<()> {
    if control(libc::PR_SET_NO_NEW_PRIVS, 1) != 0 {
        return Err(failed("give up new privileges"));
    }
    control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64);
    let keeps = if identity.uid == 0 { ROOT_KEEPS.iter().fold(0_u64, |all, one| all | 1 << one) } else { 0 };
    // Where this is not allowed nothing is lost: without new privileges an exec gives nothing of
    // this set.
    for capability in (0..CAPABILITIES_MAX).filter(|capability| keeps & (1 << capability) == 0) {
        control(libc::PR_CAPBSET_DROP, capability.into());
    }
    if identity.groups != own.groups {
        // SAFETY: as many groups as are said.
        if unsafe { libc::setgroups(identity.groups.len(), identity.groups.as_ptr()) } != 0 {
            return Err(failed("take over the caller's groups"));
        }
    }
    // SAFETY: numbers only.
    if unsafe { libc::setresgid(identity.gid, identity.gid, identity.gid) } != 0 {
        return Err(failed("become the caller's group"));
    }
    // SAFETY: numbers only.
    if unsafe { libc::setresuid(identity.uid, identity.uid, identity.uid) } != 0 {
        return Err(failed("become the caller"));
    }
    keep_capabilities(keeps)?;
    // Again: the kernel changes it with the user.
    if control(libc::PR_SET_DUMPABLE, 0) != 0 || control(libc::PR_GET_DUMPABLE, 0) != 0 {
        return Err(failed("hide the memory from processes of the same user"));
    }
    prove(identity, own, keeps)
}

fn keep_capabilities(keeps: u64) -> Result<()> {
    let (mut header, mut words) = (header(), capabilities()?);
    for (word, keeps) in words.iter_mut().zip([keeps as u32, (keeps >> 32) as u32]) {
        word.permitted &= keeps;
        word.effective = word.permitted;
        word.inheritable = 0;
    }
    // SAFETY: version 3 reads two of the structs.
    if unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), words.as_ptr()) } != 0 {
        return Err(failed("give up the capabilities"));
    }
    Ok(())
}

/// Asks the kernel who this process is, and tries to go back.
fn prove(identity: &Identity, own: &Identity, keeps: u64) -> Result<()> {
    let wrong = |what: String| {
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("a plug-in's process did not become its caller: {what}"),
        ))
    };
    let (mut users, mut groups) = ([u32::MAX; 3], [u32::MAX; 3]);
    // SAFETY: room for three numbers each.
    unsafe {
        let [real, effective, saved] = users.each_mut();
        libc::getresuid(real, effective, saved);
        let [real, effective, saved] = groups.each_mut();
        libc::getresgid(real, effective, saved);
    }
    if users != [identity.uid; 3] || groups != [identity.gid; 3] {
        return wrong(format!(
            "users {users:?}, groups {groups:?} instead of {}, {}",
            identity.uid, identity.gid
        ));
    }
    let now = Identity::own()?;
    if now != *identity {
        return wrong(format!("supplementary groups {:?} instead of {:?}", now.groups, identity.groups));
    }
    let has = |word: &CapabilityWords, keeps: u32| (word.effective | word.permitted) & !keeps != 0;
    let [low, high] = capabilities()?;
    if has(&low, keeps as u32) || has(&high, (keeps >> 32) as u32) || low.inheritable | high.inheritable != 0
    {
        return wrong("capabilities are left".to_owned());
    }
    const SAME: u32 = u32::MAX;
    // SAFETY: numbers only; it is to fail.
    let as_user = |uid: u32| uid != identity.uid && unsafe { libc::setresuid(SAME, uid, SAME) } == 0;
    // SAFETY: as above.
    let as_group = |gid: u32| gid != identity.gid && unsafe { libc::setresgid(SAME, gid, SAME) } == 0;
    if as_user(0) || as_user(own.uid) || as_group(0) || as_group(own.gid) {
        return wrong("it could go back".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity::of(&Credentials { uid, gid, groups: groups.to_vec() })
    }

    #[test]
    fn the_order_of_groups_does_not_matter() {
        assert_eq!(identity(1, 2, &[5, 3, 5]), identity(1, 2, &[3, 5]));
        assert_ne!(identity(1, 2, &[3]), identity(1, 2, &[3, 5]));
    }

    /// Runs `child` in a forked process; whether it returned true.
    fn in_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls and allocates a little, then ends without unwinding;
        // glibc's allocator is usable after a fork.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(i32::from(!child()));
            }
            let mut status = -1;
            libc::waitpid(pid, &raw mut status, 0);
            status == 0
        }
    }

    #[test]
    fn who_has_become_a_user_is_that_user_and_nobody_else() {
        let own = Identity::own().unwrap();
        let strange = identity(64_101, 64_102, &[64_103]);
        if own.uid != 0 {
            eprintln!("skipped: becoming another user needs root");
            assert!(in_child(|| become_identity(&strange, &own).is_err()));
            return;
        }
        assert!(in_child(|| {
            become_identity(&strange, &own).is_ok()
                && Identity::own().is_ok_and(|now| now == strange)
                && effective_capabilities().is_ok_and(|left| left == 0)
                && control(libc::PR_CAPBSET_READ, CAP_SETUID.into()) == 0
                // SAFETY: a number; it is to fail.
                && unsafe { libc::setuid(0) } != 0
        }));
        // Root's own keeps what files ask for, and no more.
        assert!(in_child(|| {
            become_identity(&own, &own).is_ok()
                && effective_capabilities().is_ok_and(|left| left & (1 << CAP_SETUID) == 0)
        }));
    }

    #[test]
    fn half_the_privilege_is_none() {
        let own = Identity::own().unwrap();
        if own.uid != 0 {
            eprintln!("skipped: having the privilege needs root");
            return;
        }
        let strange = identity(64_101, 64_102, &[]);
        for (left_out, name) in [(CAP_SETUID, "CAP_SETUID"), (CAP_SETGID, "CAP_SETGID")] {
            assert!(in_child(|| {
                keep_capabilities(!(1 << left_out)).is_ok()
                    && strange.to_serve(&own).is_err_and(|error| error.to_string().contains(name))
                    && become_identity(&strange, &own).is_err()
                    && own.to_serve(&own).is_ok()
            }));
        }
        assert_eq!(strange.to_serve(&own).unwrap(), strange);
    }
}
