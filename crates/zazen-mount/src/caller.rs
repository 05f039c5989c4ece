//! Who makes a request: the kernel names user and group, and `/proc` the supplementary groups.
//!
//! FUSE tells a thread's user and group id, but not its groups. They are read from
//! `/proc/TID/status` and kept for [`KEPT_FOR`] under (thread, user, group). A thread that lays
//! down a group within that time gains nothing: the kernel checks each request by the true groups
//! first. A thread that gains a group may be refused by what is kept: the adapter reads the groups
//! anew before it passes on a refusal.

use crate::tree::Credentials;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long the groups of a thread are kept.
const KEPT_FOR: Duration = Duration::from_millis(100);
/// The most threads whose groups are kept.
const KEPT_MAX: usize = 4096;
/// The most bytes that are read of a status: 65,536 groups, the kernel's limit, take up to 720 kB.
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// Who makes a request, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) tid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Caller {
    pub(crate) fn of(request: &fuser::Request) -> Caller {
        Caller { tid: request.pid(), uid: request.uid(), gid: request.gid() }
    }

    /// Whether no process makes it (or root's, of which this machine's kernel tells no number).
    pub(crate) fn is_the_kernel(self) -> bool {
        self.uid == 0 && self.tid == 0
    }
}

/// The groups of those who asked lately, and since when they are known.
#[derive(Default)]
pub(crate) struct Callers {
    kept: Mutex<HashMap<Caller, (Instant, Vec<u32>)>>,
}

impl Callers {
    /// The caller's identity, and whether its groups may be old.
    pub(crate) fn identity(&self, caller: Caller) -> (Credentials, bool) {
        let Caller { tid, uid, gid } = caller;
        // Root needs no group, and a request of the kernel's own has no thread.
        if uid == 0 || tid == 0 {
            return (Credentials { uid, gid, groups: Vec::new() }, false);
        }
        let now = Instant::now();
        if let Ok(kept) = self.kept.lock()
            && let Some((at, groups)) = kept.get(&caller)
            && now.duration_since(*at) < KEPT_FOR
        {
            return (Credentials { uid, gid, groups: groups.clone() }, true);
        }
        (self.read_anew(caller), false)
    }

    /// The identity with groups as they are now.
    pub(crate) fn read_anew(&self, caller: Caller) -> Credentials {
        let Caller { tid, uid, gid } = caller;
        let groups = read_status(tid).map(|status| groups_of(&status)).unwrap_or_default();
        let now = Instant::now();
        if let Ok(mut kept) = self.kept.lock() {
            if kept.len() >= KEPT_MAX {
                kept.retain(|_, (at, _)| now.duration_since(*at) < KEPT_FOR);
                if kept.len() >= KEPT_MAX {
                    kept.clear();
                }
            }
            kept.insert(caller, (now, groups.clone()));
        }
        Credentials { uid, gid, groups }
    }
}

/// `/proc/TID/status`; `None` if the thread is gone or hidden.
fn read_status(tid: u32) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(format!("/proc/{tid}/status")).ok()?;
    file.take(STATUS_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The numbers behind `Groups:`.
fn groups_of(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Whether a signal waits for the thread that it does not block or ignore: then a wait in its name
/// ends with `EINTR`. A thread that is gone counts as interrupted.
pub(crate) fn is_interrupted(tid: u32) -> bool {
    if tid == 0 {
        return false;
    }
    match read_status(tid) {
        Some(status) => waits(&status),
        None => true,
    }
}

fn waits(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// The system call that the thread is in, as it is while its request is under way.
pub(crate) fn system_call(tid: u32) -> Option<i64> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_kernel() {
        let own = read_status(std::process::id()).unwrap();
        let mut expected: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        let mut found = groups_of(&own);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(groups_of("Name:\tx\nGroups:\t4 24 100 \nNStgid:\t1\n"), [4, 24, 100]);
        assert_eq!(groups_of("Groups:\t\n"), [0_u32; 0]);
    }

    #[test]
    fn a_signal_counts_unless_it_is_blocked_or_ignored() {
        let status = |pending: &str, blocked: &str, ignored: &str| {
            format!("SigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n")
        };
        assert!(waits(&status("0000000000004000", "0", "0")));
        assert!(!waits(&status("0000000000004000", "0000000000004000", "0")));
        assert!(!waits(&status("0000000000004000", "0", "4000")));
        assert!(!waits(&status("0", "0", "0")));
        assert!(is_interrupted(u32::MAX - 1) && !is_interrupted(std::process::id()));
    }
}
