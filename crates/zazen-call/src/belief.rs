//! Whom a client believes: the user of a daemon at the other end of a socket, and the owner of a
//! file that names daemons.
//!
//! Invariant: only what the kernel says counts. A socket or a file is believed if its owner is
//! root, this process's own user, or the user that this process was configured to believe
//! (`$ZAZEN_DAEMON_UID`). Its path does not matter.
//!
//! On a connected socket the kernel tells as which user the listener ran when it began to listen.
//! Who bound the path, or who accepts now, does not matter.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use zazen_core::{Error, ErrorKind, Result};

/// One more user whose daemons are believed, as a number.
pub const DAEMON_UID_VARIABLE: &str = "ZAZEN_DAEMON_UID";

/// Whether daemons and files of user `uid` are believed: root's, this process's own user's, and
/// those of the user that [`DAEMON_UID_VARIABLE`] names. Fails with `Config` where that is no
/// number.
pub fn believes(uid: u32) -> Result<bool> {
    let own = rustix::process::geteuid().as_raw();
    if uid == 0 || uid == own {
        return Ok(true);
    }
    Ok(configured()? == Some(uid))
}

fn configured() -> Result<Option<u32>> {
    let Some(text) = std::env::var_os(DAEMON_UID_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.to_str().and_then(|text| text.trim().parse().ok()) {
        Some(uid) => Ok(Some(uid)),
        None => Err(Error::new(
            ErrorKind::Config,
            format!(
                "${DAEMON_UID_VARIABLE} is {text:?}; give the number of the user whose daemon is believed \
                 (`id -u NAME`)"
            ),
        )),
    }
}

/// Refuses a file that says whom to trust, if a user whom this process does not believe owns it or
/// may write to it. `what` begins the message: "key file /a/b".
pub fn check_file(file: &File, what: &str) -> Result<()> {
    let found = file.metadata().map_err(|error| Error::io(what, error))?;
    let refuse = |why: String| Err(Error::new(ErrorKind::Config, format!("{what}: {why}")));
    if !believes(found.uid())? {
        return refuse(format!(
            "belongs to user {}, who could change it: neither root nor user {}; use a file of your own, or \
             set {DAEMON_UID_VARIABLE}={} if you trust that user",
            found.uid(),
            rustix::process::geteuid().as_raw(),
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return refuse(format!(
            "others than its owner may write to it (mode {:03o}); run `chmod go-w` on it",
            found.mode() & 0o777
        ));
    }
    Ok(())
}
