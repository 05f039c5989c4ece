//! Who a client claims to be, where no kernel can say it.

use zazen_core::Credentials;

/// How a client presents itself to a remote daemon.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Credentials claimed.
    pub credentials: Credentials,
    /// This host's name.
    pub host: String,
    /// This process.
    pub pid: u32,
}

impl Identity {
    /// This process: effective ids, groups, pid, host name.
    pub fn of_this_process() -> Identity {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity {
            credentials: Credentials {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            },
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        }
    }
}
