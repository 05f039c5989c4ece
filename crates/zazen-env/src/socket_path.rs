//! Where a node's daemon listens for local callers, when nobody says otherwise: one rule for the daemon and all
//! its clients.

use std::path::PathBuf;

/// `$ZAZEN_SOCKET` if set; else `/run/zazen/zazend.sock` for root, `$XDG_RUNTIME_DIR/zazen/zazend.sock`, or
/// `/tmp/zazen-$UID/zazend.sock`.
pub fn default_socket_path() -> PathBuf {
    socket_path(rustix::process::geteuid().as_raw(), |name| std::env::var_os(name).filter(|v| !v.is_empty()))
}

/// For a client: the default path if a socket is there, else the system-wide daemon's if that is. An ordinary
/// user's programs find a daemon that root started.
pub fn find_socket_path() -> PathBuf {
    let own = default_socket_path();
    let system = PathBuf::from(SYSTEM_SOCKET);
    let explicit = std::env::var_os("ZAZEN_SOCKET").is_some_and(|value| !value.is_empty());
    if !explicit && !own.exists() && system.exists() { system } else { own }
}

const SYSTEM_SOCKET: &str = "/run/zazen/zazend.sock";

fn socket_path(uid: u32, variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> PathBuf {
    if let Some(path) = variable("ZAZEN_SOCKET") {
        return path.into();
    }
    if uid == 0 {
        return SYSTEM_SOCKET.into();
    }
    match variable("XDG_RUNTIME_DIR") {
        Some(runtime) => PathBuf::from(runtime).join("zazen/zazend.sock"),
        None => format!("/tmp/zazen-{uid}/zazend.sock").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_applies_decides() {
        let check = |uid, set: &[(&str, &str)], expected: &str| {
            let found = socket_path(uid, |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            });
            assert_eq!(found, PathBuf::from(expected));
        };
        check(0, &[], "/run/zazen/zazend.sock");
        check(0, &[("XDG_RUNTIME_DIR", "/run/user/0")], "/run/zazen/zazend.sock");
        check(7, &[("XDG_RUNTIME_DIR", "/run/user/7")], "/run/user/7/zazen/zazend.sock");
        check(7, &[], "/tmp/zazen-7/zazend.sock");
        check(7, &[("ZAZEN_SOCKET", "/x/s"), ("XDG_RUNTIME_DIR", "/r")], "/x/s");
    }
}
