//! Opens files of a directory in which others may write, too.
//!
//! A name there may be a FIFO, which would be waited for, or a link that somebody planted so that
//! this user gives away what only this user may read. A link counts if this user or root made it.
//! Another user's link counts if it leads to a file of that user, who needs no link to give it
//! away.

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The plain file `name` beneath `directory`, to read it.
pub(crate) fn open_found(directory: &Path, name: &str) -> Result<File> {
    let mut planted = Vec::new();
    let mut at = open(directory, FOLDER, Mode::empty())?;
    let (folders, last) = name.rsplit_once('/').unwrap_or(("", name));
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        at = open_one(&at, folder, FOLDER, &mut planted)?;
    }
    let file = File::from(open_one(&at, last, READ, &mut planted)?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Error::other("is not a plain file"));
    }
    match planted.into_iter().find(|maker| *maker != found.uid()) {
        None => Ok(file),
        Some(maker) => Err(Error::other(format!(
            "is a symbolic link that user {maker} made, and leads to a file of user {}, so it is not read; \
             make it yourself if it shall be",
            found.uid()
        ))),
    }
}

/// Opens `name` in the folder `at`. If it is a link of another user, that user goes to `planted`.
fn open_one(at: &OwnedFd, name: &str, flags: OFlags, planted: &mut Vec<u32>) -> Result<OwnedFd> {
    match openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        // A folder that is no folder may be a link.
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let (target, maker) = link(at, name)?;
            if maker != 0 && maker != rustix::process::geteuid().as_raw() {
                planted.push(maker);
            }
            Ok(openat(at, target, flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// Where a link leads, and whose it is. Both are of one link, whatever takes its name meanwhile.
fn link(at: &OwnedFd, name: &str) -> Result<(CString, u32)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(at, name, flags, Mode::empty())?;
    let found = fstat(&link)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR.into());
    }
    Ok((readlinkat(&link, "", Vec::new())?, found.st_uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{chown, lchown, symlink};

    fn read(directory: &Path, name: &str) -> std::result::Result<String, String> {
        let mut text = String::new();
        let opened = open_found(directory, name).map_err(|error| error.to_string())?;
        opened.take(100).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn nothing_is_waited_for_and_own_links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (at, place) = (folder.path().join("watched"), folder.path().join("elsewhere"));
        std::fs::create_dir_all(at.join("in")).unwrap();
        std::fs::create_dir(&place).unwrap();
        std::fs::write(at.join("in/frame"), "plain").unwrap();
        std::fs::write(place.join("frame"), "far").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at.join("fifo")).status().unwrap().success());
        symlink("fifo", at.join("to-fifo")).unwrap();
        symlink("in/frame", at.join("near")).unwrap();
        symlink(place.join("frame"), at.join("far")).unwrap();
        symlink("../elsewhere", at.join("folder")).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        let check = |name: &str, expected: std::result::Result<&str, &str>| match expected {
            Ok(text) => assert_eq!(read(&at, name).as_deref(), Ok(text), "{name}"),
            Err(why) => assert!(read(&at, name).unwrap_err().contains(why), "{name}: {:?}", read(&at, name)),
        };
        check("in/frame", Ok("plain"));
        check("near", Ok("plain"));
        check("far", Ok("far"));
        check("folder/frame", Ok("far"));
        check("fifo", Err("not a plain file"));
        check("to-fifo", Err("not a plain file"));
        check("in", Err("not a plain file"));
        check("loop", Err("symbolic links"));
        check("in/frame/x", Err("Not a directory"));
        check("nothing", Err("No such file"));
    }

    #[test]
    fn links_of_others_lead_only_to_their_own_files() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (other, third) = (64_301, 64_302);
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for (name, owner) in [("secret", 0), ("theirs", other), ("third", third)] {
            std::fs::write(at.join(name), name).unwrap();
            chown(at.join(name), Some(owner), None).unwrap();
        }
        std::fs::create_dir(at.join("private")).unwrap();
        std::fs::write(at.join("private/frame"), "secret").unwrap();
        for (name, target) in [
            ("to-secret", "secret"),
            ("to-theirs", "theirs"),
            ("to-third", "third"),
            ("chain", "to-secret"),
            ("folder", "private"),
        ] {
            symlink(target, at.join(name)).unwrap();
            lchown(at.join(name), Some(other), None).unwrap();
        }
        assert_eq!(read(at, "to-theirs").as_deref(), Ok("theirs"));
        for name in ["to-secret", "to-third", "chain", "folder/frame"] {
            let why = read(at, name).unwrap_err();
            assert!(why.contains(&format!("link that user {other} made")), "{name}: {why}");
        }
    }
}
