//! Files that the daemon writes where its settings say: the ready file, the state dump, spans.
//!
//! The folder may be one in which other users may add names, such as /tmp. Invariant: nothing that
//! another user put there is followed, written to or believed.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Puts a new file of this mode in the place of the one at `path`. Whoever waits for it never sees
/// half of it. Fails if what is there is no regular file: a device or a directory stays what it is.
pub fn put(path: &Path, contents: &[u8], mode: u32) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file; name another one"));
    }
    let mut name = path.file_name().ok_or_else(|| Error::from(ErrorKind::InvalidInput))?.to_owned();
    name.push(format!(".{:016x}.new", zazen_env::random_u128().map_err(Error::other)? as u64));
    let fresh = path.with_file_name(name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&fresh, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .set_permissions(std::fs::Permissions::from_mode(mode))
        .and_then(|()| file.write_all(contents))
        .and_then(|()| std::fs::rename(&fresh, path));
    if written.is_err() {
        // What is left is ours and has no secret that its mode does not keep.
        let _ = std::fs::remove_file(&fresh);
    }
    written
}

/// Makes a file to write to. Fails if there is anything of this name, a link too: `AlreadyExists`.
pub fn make(path: &Path) -> Result<File> {
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    Ok(File::from(rustix::fs::open(path, flags, mode)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

    #[test]
    fn what_lies_in_the_place_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("victim"), "precious").unwrap();
        symlink(at("victim"), at("state")).unwrap();
        put(&at("state"), b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"precious");
        let found = std::fs::symlink_metadata(at("state")).unwrap();
        assert!(found.is_file() && found.mode() & 0o7777 == 0o600);
        std::fs::remove_file(at("state")).unwrap();
        std::fs::hard_link(at("victim"), at("state")).unwrap();
        put(&at("state"), b"newer", 0o644).unwrap();
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"precious");
        assert_eq!(std::fs::read(at("state")).unwrap(), b"newer");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside it");
        // A device stays a device.
        symlink("/dev/null", at("null")).unwrap();
        assert!(put(&at("null"), b"x", 0o600).is_err());
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert!(put(&at("none/state"), b"x", 0o600).is_err() && put(folder.path(), b"x", 0o600).is_err());
    }

    #[test]
    fn only_a_new_file_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(&at("log")).unwrap().write_all(b"a").unwrap();
        symlink(at("log"), at("link")).unwrap();
        symlink(at("nothing"), at("loose")).unwrap();
        for name in ["log", "link", "loose"] {
            assert_eq!(make(&at(name)).unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
        }
        assert_eq!(std::fs::read(at("log")).unwrap(), b"a");
        assert!(!at("nothing").exists());
    }
}
