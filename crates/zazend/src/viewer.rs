//! Whose rights a call has: the daemon's own, or its caller's, as the kernel has them.
//!
//! Invariants: whatever a caller learns of a source or a directory came from a view of its own; a
//! daemon that cannot act for others serves its own user alone.

use std::sync::Arc;
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::{Identity, identity};

/// Who looks at the backing stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Viewer {
    /// The daemon itself: for its own user, and for root.
    Own,
    /// Another user.
    Other(Arc<Identity>),
}

impl Viewer {
    /// Whether these are the daemon's own rights.
    pub fn is_own(&self) -> bool {
        matches!(self, Viewer::Own)
    }
}

/// Whom a daemon can act for.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    /// The daemon's user.
    pub uid: u32,
    /// Whether its threads can assume other identities.
    pub others: bool,
}

impl Powers {
    /// What the kernel lets this process do.
    pub fn of_this_process() -> Powers {
        Powers { uid: identity::own_uid(), others: Identity::can_be_assumed() }
    }

    /// Whose rights `caller` has. A key holder is believed; where the daemon can act for nobody, it
    /// acts as itself for key holders and root, and refuses other users.
    pub fn viewer(&self, caller: &Caller) -> Result<Viewer> {
        let who = &caller.credentials;
        if who.uid == self.uid {
            return Ok(Viewer::Own);
        }
        if self.others {
            return Ok(Viewer::Other(Arc::new(Identity::of(who)?)));
        }
        if who.uid == 0 || !caller.is_local() {
            return Ok(Viewer::Own);
        }
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "this zazend runs as user {} and serves only that user, not user {}; ask for the system \
                 daemon",
                self.uid, who.uid
            ),
        ))
    }

    /// For the log and for `--check`.
    pub fn describe(&self) -> String {
        match self.others {
            true => format!("serves all users, each with its own rights, as user {}", self.uid),
            false => format!(
                "serves user {} alone; to serve all, run it as root or with CAP_SETUID and CAP_SETGID",
                self.uid
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::Credentials;

    #[test]
    fn each_has_its_own_rights() {
        let viewer = |uid, others, caller_uid, host: Option<&str>| {
            let credentials = Credentials { uid: caller_uid, gid: 1, groups: vec![] };
            let caller = Caller { credentials, pid: 1, host: host.map(str::to_owned), connection: 1 };
            Powers { uid, others }.viewer(&caller).map(|viewer| viewer.is_own()).ok()
        };
        assert_eq!(viewer(0, true, 0, None), Some(true));
        assert_eq!(viewer(0, true, 7, None), Some(false));
        assert_eq!(viewer(0, true, 7, Some("far")), Some(false));
        assert_eq!(viewer(0, true, 0, Some("far")), Some(true));
        assert_eq!(viewer(0, true, u32::MAX, Some("far")), None);
        assert_eq!(viewer(5, false, 5, None), Some(true));
        assert_eq!(viewer(5, false, 7, None), None);
        assert_eq!(viewer(5, false, 0, None), Some(true));
        assert_eq!(viewer(5, false, 7, Some("far")), Some(true));
        assert_eq!(viewer(0, false, 7, None), None);
    }
}
