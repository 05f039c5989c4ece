//! The default path of a daemon's socket. The daemon and all its clients use this rule.
//!
//! Invariant: no place is in a folder that another user could have made or can write to, and the
//! system's place comes first. Clients also ask the kernel which user runs the daemon
//! (`zazen_call::believes`).

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// Where root's daemon listens.
pub const SYSTEM_SOCKET: &str = "/run/zazen/zazend.sock";

/// Where this user's daemon is to listen: `$ZAZEN_SOCKET` if set; else [`SYSTEM_SOCKET`] for root,
/// `$XDG_RUNTIME_DIR/zazen/zazend.sock`, or `~/.zazen/zazend-HOST.sock`.
///
/// Fails with `Config` if the user has no folder that only this user can write to.
pub fn daemon_socket_path() -> Result<PathBuf> {
    let who = Who::this_process();
    if let Some(path) = who.explicit() {
        return Ok(path);
    }
    if who.uid == 0 {
        return Ok(SYSTEM_SOCKET.into());
    }
    who.own().into_iter().find(|own| own.is_private()).map(|own| own.socket).ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            "there is no place for the daemon's socket: neither $XDG_RUNTIME_DIR nor $HOME is a folder that \
             only this user can write to; give --socket PATH, and $ZAZEN_SOCKET to the programs",
        )
    })
}

/// For a client: `$ZAZEN_SOCKET` if set; else the first place with a socket that somebody listens
/// on, of the system's ([`SYSTEM_SOCKET`]) and this user's own. With no such place, the system's.
pub fn find_socket_path() -> PathBuf {
    let who = Who::this_process();
    if let Some(path) = who.explicit() {
        return path;
    }
    let own = who.own().into_iter().filter(Own::is_private).map(|own| own.socket);
    choose(std::iter::once(PathBuf::from(SYSTEM_SOCKET)).chain(own))
}

/// The first of `places` with a live socket, else the first with a socket, else the first.
fn choose(places: impl Iterator<Item = PathBuf>) -> PathBuf {
    let places: Vec<PathBuf> = places.collect();
    let is_socket =
        |place: &&PathBuf| std::fs::symlink_metadata(place).is_ok_and(|found| found.file_type().is_socket());
    let sockets: Vec<&PathBuf> = places.iter().filter(is_socket).collect();
    let chosen = match sockets[..] {
        [] | [_] => sockets.first().copied(),
        // A daemon that was killed leaves its socket behind.
        [first, ..] => sockets.iter().copied().find(|place| is_live(place)).or(Some(first)),
    };
    chosen.or(places.first()).cloned().unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// Whether a process listens on `socket`, if this can be found out without waiting.
fn is_live(socket: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(probe) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return true;
    };
    let Ok(address) = SocketAddrUnix::new(socket) else { return true };
    !matches!(
        rustix::net::connect(&probe, &address),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT)
    )
}

/// A user's own place.
struct Own {
    /// The folder that the user must own already.
    base: PathBuf,
    socket: PathBuf,
    uid: u32,
}

impl Own {
    fn is_private(&self) -> bool {
        is_private(&self.base, self.uid)
            && self.socket.parent().is_none_or(|folder| !folder.exists() || is_private(folder, self.uid))
    }
}

/// Whether nobody but `uid` and root can change what is in `folder`, or put another folder in its
/// place.
pub fn is_private(folder: &Path, uid: u32) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let own = |owner: u32| owner == uid || owner == 0;
    folder.ancestors().enumerate().all(|(above, folder)| match std::fs::symlink_metadata(folder) {
        Ok(found) => {
            let closed = found.mode() & 0o022 == 0;
            // In a sticky folder, users can rename or remove only their own files.
            let sticky = above > 0 && found.mode() & 0o1000 != 0;
            let right_owner = if above == 0 { found.uid() == uid } else { own(found.uid()) };
            found.is_dir() && right_owner && (closed || sticky)
        }
        Err(_) => false,
    })
}

/// The user whose places are looked for, and the environment's settings.
struct Who<'a> {
    uid: u32,
    host: String,
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Who<'_> {
    fn this_process() -> Who<'static> {
        Who {
            uid: rustix::process::geteuid().as_raw(),
            host: rustix::system::uname().nodename().to_string_lossy().replace('/', "_"),
            variable: &|name| std::env::var_os(name).filter(|value| !value.is_empty()),
        }
    }

    fn explicit(&self) -> Option<PathBuf> {
        (self.variable)("ZAZEN_SOCKET").map(PathBuf::from)
    }

    /// The user's own places, best first; whether they are safe is still to be looked at.
    fn own(&self) -> Vec<Own> {
        let place = |name: &str, beneath: &str| {
            let base = PathBuf::from((self.variable)(name)?);
            Some(Own { socket: base.join(beneath), base, uid: self.uid })
        };
        let at_home = format!(".zazen/zazend-{}.sock", self.host);
        [place("XDG_RUNTIME_DIR", "zazen/zazend.sock"), place("HOME", &at_home)]
            .into_iter()
            .flatten()
            .filter(|own| own.base.is_absolute())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_users_places_are_beneath_its_own_folders() {
        let check = |set: &[(&str, &str)], expected: &[&str]| {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            let who = Who { uid: 7, host: "n1".into(), variable: &variable };
            let found: Vec<PathBuf> = who.own().into_iter().map(|own| own.socket).collect();
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        check(&[], &[]);
        check(&[("XDG_RUNTIME_DIR", "run")], &[]);
        check(&[("XDG_RUNTIME_DIR", "/run/user/7")], &["/run/user/7/zazen/zazend.sock"]);
        check(
            &[("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/r")],
            &["/r/zazen/zazend.sock", "/home/a/.zazen/zazend-n1.sock"],
        );
    }

    #[test]
    fn a_folder_is_private_if_nobody_else_can_change_it() {
        let folder = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let check = |outer_mode: u32, mode: u32, expected: bool| {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(outer_mode)).unwrap();
            std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_private(&inner, uid), expected, "{outer_mode:o} {mode:o}");
        };
        check(0o700, 0o700, true);
        check(0o755, 0o755, true);
        check(0o755, 0o777, false);
        check(0o755, 0o1777, false);
        check(0o755, 0o770, false);
        check(0o777, 0o700, false);
        check(0o1777, 0o700, true);
        assert!(!is_private(&inner, uid + 1) && !is_private(Path::new("/nowhere/at/all"), uid));
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let all = || ["a", "b"].map(path).into_iter();
        assert_eq!(choose(all()), path("a"), "none is there");
        drop(UnixListener::bind(path("a")).unwrap());
        assert_eq!(choose(all()), path("a"), "only a stale one");
        let _listener = UnixListener::bind(path("b")).unwrap();
        assert_eq!(choose(all()), path("b"));
        std::fs::remove_file(path("a")).unwrap();
        let _first = UnixListener::bind(path("a")).unwrap();
        assert_eq!(choose(all()), path("a"));
    }
}
