//! Files that the daemon writes where its settings say: the ready file, the state dump, spans.
//!
//! The folder may be one in which other users may add names, such as /tmp. Invariant: nothing that
//! another user put there is followed, written to or believed.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

/// Opens a file to add to it, and makes it if there is none. Fails if it is a link, has another
/// name, or belongs to another user: then it is not the daemon's.
pub fn add_to(path: &Path) -> Result<File> {
    use rustix::io::Errno;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
    // Not in one call: the kernel would refuse another user's file without saying why.
    let opened = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode),
        opened => opened,
    };
    let file = match opened {
        Err(Errno::LOOP) => {
            return refuse("it is a symbolic link; remove it, or name another folder".to_owned());
        }
        opened => File::from(opened?),
    };
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own || !found.is_file() || found.nlink() != 1 {
        return refuse(format!(
            "it is no file of user {own}'s own (owner {}, {} names); remove it, or name another folder",
            found.uid(),
            found.nlink()
        ));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

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
    fn only_ones_own_file_is_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for text in ["a", "b"] {
            add_to(&at("log")).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read(at("log")).unwrap(), b"ab");
        symlink(at("log"), at("link")).unwrap();
        assert!(add_to(&at("link")).unwrap_err().to_string().contains("symbolic link"));
        std::fs::hard_link(at("log"), at("hard")).unwrap();
        assert!(add_to(&at("hard")).unwrap_err().to_string().contains("2 names"));
        std::fs::remove_file(at("hard")).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(at("log"), Some(64_777), None).unwrap();
            assert!(add_to(&at("log")).unwrap_err().to_string().contains("owner 64777"));
        } else {
            println!("skipped: giving a file away needs root");
        }
    }
}
