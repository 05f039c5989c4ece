//! Threads that open files as another user. All crates that need this use this module.
//!
//! The kernel keeps credentials per thread. A thread that assumed an identity has its file-system
//! user, all three group ids and its supplementary groups, and no capability in any set: mode bits,
//! ACLs, sticky bits and a network file system's own rules decide as they decide for that user's
//! programs.
//!
//! Invariants:
//! - Real, effective and saved user id stay the process's own, on purpose. The kernel judges
//!   `kill`, `ptrace`, `prlimit` and `sched_setaffinity` by these three of the target *thread*: a
//!   user whose number stood in one of them could end, slow or inspect the whole process. File
//!   access is judged by the file-system user id alone.
//! - Every step is read back from the kernel. A thread whose identity is not exactly the wanted one
//!   is an error, and its caller ends it: there is no way back to the process's own identity.

use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// The number that means "unchanged" to the kernel; no user has this id.
const NO_ID: u32 = u32::MAX;

/// The identity by which the kernel decides about opening files: user, group, sorted supplementary
/// groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Identity {
    /// The identity of `who`. `PermissionDenied` for ids that nobody can have.
    pub fn of(who: &Credentials) -> Result<Identity> {
        let mut groups = who.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        if who.uid == NO_ID || who.gid == NO_ID || groups.last() == Some(&NO_ID) {
            return Err(refuse(who.uid, &format!("{NO_ID} is no user or group id")));
        }
        Ok(Identity { uid: who.uid, gid: who.gid, groups })
    }

    /// The user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The identity as credentials.
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }

    /// Whether this process may give its threads other identities: it has CAP_SETUID and
    /// CAP_SETGID.
    pub fn can_be_assumed() -> bool {
        let wanted = CapabilitySet::SETUID | CapabilitySet::SETGID;
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
    }

    /// Gives the calling thread this identity for the rest of its life, and verifies it. On an
    /// error the identity may be partly changed: the thread must do nothing more and end.
    pub fn assume(&self) -> Result<()> {
        let failed = |what: &str, errno: rustix::io::Errno| {
            refuse(
                self.uid,
                &format!("{what}: {errno}; zazend needs CAP_SETUID and CAP_SETGID for other users"),
            )
        };
        let before = user_ids();
        if [before.0, before.1, before.2].contains(&self.uid) {
            return Err(refuse(self.uid, "it is this process's own user"));
        }
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(|errno| failed("set its groups", errno))?;
        let gid = Gid::from_raw(self.gid);
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(|errno| failed("set its group", errno))?;
        // SAFETY: takes a number and returns one; glibc's function is the system call, for this
        // thread alone.
        unsafe { libc::setfsuid(self.uid) };
        let none = CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets)
            .map_err(|errno| failed("lay down the capabilities", errno))?;
        self.check(before)
    }

    fn check(&self, before: (u32, u32, u32)) -> Result<()> {
        let wrong = |what: &str| Err(refuse(self.uid, &format!("the kernel did not set {what}")));
        // SAFETY: as in `assume`; an id that nobody can have changes nothing and tells the present
        // one.
        let (fs_uid, fs_gid) = unsafe { (libc::setfsuid(NO_ID) as u32, libc::setfsgid(NO_ID) as u32) };
        if fs_uid != self.uid || user_ids() != before {
            return wrong("its user");
        }
        if fs_gid != self.gid || group_ids() != (self.gid, self.gid, self.gid) {
            return wrong("its group");
        }
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        groups.sort_unstable();
        if groups != self.groups {
            return wrong("its supplementary groups");
        }
        let is_bare = rustix::thread::capabilities(None).is_ok_and(|sets| {
            sets.effective.is_empty() && sets.permitted.is_empty() && sets.inheritable.is_empty()
        });
        if is_bare { Ok(()) } else { wrong("its capabilities") }
    }
}

/// Protects this process's memory from other processes of the same user, and from core dumps.
pub fn forbid_inspection() -> Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| Error::io("forbid inspection of this process", errno.into()))
}

fn refuse(uid: u32, why: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, format!("user {uid} cannot be acted for: {why}"))
}

/// Real, effective and saved user id of the calling thread.
fn user_ids() -> (u32, u32, u32) {
    let mut ids = (NO_ID, NO_ID, NO_ID);
    // SAFETY: the three pointers are to integers that live until the call returns; it can't fail
    // then.
    unsafe { libc::getresuid(&raw mut ids.0, &raw mut ids.1, &raw mut ids.2) };
    ids
}

fn group_ids() -> (u32, u32, u32) {
    let mut ids = (NO_ID, NO_ID, NO_ID);
    // SAFETY: as for the users'.
    unsafe { libc::getresgid(&raw mut ids.0, &raw mut ids.1, &raw mut ids.2) };
    ids
}

/// The user that this process runs as.
pub fn own_uid() -> u32 {
    Uid::as_raw(rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const OTHER: u32 = 64_377;

    fn as_other<T: Send>(groups: &[u32], work: impl FnOnce() -> T + Send) -> Option<T> {
        if !Identity::can_be_assumed() {
            return None;
        }
        let who = Credentials { uid: OTHER, gid: OTHER, groups: groups.to_vec() };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                Identity::of(&who).unwrap().assume().unwrap();
                work()
            });
            Some(thread.join().unwrap())
        })
    }

    #[test]
    fn a_thread_has_the_users_rights_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = |name: &str, uid, gid, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            if Identity::can_be_assumed() {
                std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
            }
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let files = [
            (file("own", OTHER, 0, 0o600), true),
            (file("group", 0, 64_378, 0o640), true),
            (file("others", 0, 0, 0o604), true),
            (file("root", 0, 0, 0o600), false),
            (file("not-group", 0, 64_379, 0o640), false),
        ];
        let opened = as_other(&[64_378], || {
            let task = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let opened: Vec<bool> = files.iter().map(|(path, _)| std::fs::File::open(path).is_ok()).collect();
            (opened, task)
        });
        let Some((opened, task)) = opened else { return };
        assert_eq!(opened, files.iter().map(|(_, expected)| *expected).collect::<Vec<_>>());
        assert!(task.contains(&format!("Uid:\t0\t0\t0\t{OTHER}\n")), "{task}");
        assert!(task.contains("CapEff:\t0000000000000000") && task.contains("CapPrm:\t0000000000000000"));
        // This thread's identity has not changed.
        assert!(
            Identity::can_be_assumed() && files.iter().all(|(path, _)| std::fs::File::open(path).is_ok())
        );
    }

    #[test]
    fn impossible_identities_are_refused() {
        let check = |uid, gid, groups: &[u32]| {
            let who = Credentials { uid, gid, groups: groups.to_vec() };
            Identity::of(&who).err().map(|error| error.kind())
        };
        assert_eq!(check(NO_ID, 1, &[]), Some(ErrorKind::PermissionDenied));
        assert_eq!(check(1, NO_ID, &[]), Some(ErrorKind::PermissionDenied));
        assert_eq!(check(1, 1, &[2, NO_ID]), Some(ErrorKind::PermissionDenied));
        assert_eq!(check(1, 1, &[3, 2, 3]), None);
        let own = Credentials { uid: own_uid(), gid: 0, groups: vec![] };
        let refused = std::thread::spawn(move || Identity::of(&own).unwrap().assume()).join().unwrap();
        assert!(refused.unwrap_err().to_string().contains("own user"));
    }

    /// A user must not be able to end or slow down a thread that acts for that user.
    #[test]
    fn the_user_has_no_power_over_the_thread() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let found = std::thread::scope(|scope| {
            scope.spawn(move || {
                as_other(&[], move || {
                    tell.send(rustix::thread::gettid().as_raw_nonzero().get()).ok();
                    ended.recv().ok();
                })
            });
            let found = told.recv().ok().map(|tid| attack(tid, OTHER));
            end.send(()).ok();
            found
        });
        if let Some(found) = found {
            assert_eq!(found, Vec::<&str>::new(), "these succeeded");
        }
    }

    /// What a process of user `uid` can do to thread `tid`: the names of the calls that succeeded.
    fn attack(tid: i32, uid: u32) -> Vec<&'static str> {
        let names =
            ["tkill", "kill", "prlimit", "sched_setscheduler", "setpriority", "sched_setaffinity", "ptrace"];
        let limit = libc::rlimit64 { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        let sched = libc::sched_param { sched_priority: 0 };
        // SAFETY: the child makes system calls alone, with integers and pointers to values of its
        // own copy, and ends; signal 0 does nothing.
        let status = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            let child = libc::fork();
            if child == 0 {
                let none = std::ptr::null_mut::<libc::rlimit64>();
                let became = libc::syscall(libc::SYS_setgroups, 0, none) == 0
                    && libc::syscall(libc::SYS_setresgid, uid, uid, uid) == 0
                    && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0;
                let tried = [
                    libc::syscall(libc::SYS_tkill, tid, 0),
                    libc::syscall(libc::SYS_kill, tid, 0),
                    libc::syscall(libc::SYS_prlimit64, tid, libc::RLIMIT_FSIZE, &raw const limit, none),
                    libc::syscall(libc::SYS_sched_setscheduler, tid, libc::SCHED_IDLE, &raw const sched),
                    libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid, 19),
                    libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(&set), &raw const set),
                    libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, tid, 0, 0),
                ];
                let mut bits = i32::from(!became) << 7;
                for (at, got) in tried.iter().enumerate() {
                    bits |= i32::from(*got == 0) << at;
                }
                libc::_exit(bits);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        };
        assert_eq!(status >> 7, 0, "the attacker became the user");
        names.into_iter().enumerate().filter(|(at, _)| status >> at & 1 == 1).map(|(_, name)| name).collect()
    }
}
