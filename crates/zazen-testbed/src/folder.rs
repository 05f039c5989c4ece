//! The testbed's own folder. Root runs testbeds, too, in places where others can put things.
//!
//! Invariants: the folder is believed only if nobody but its owner (this user or root) can change
//! it or the way to it; everything in it is reached beneath its descriptor; no link is ever
//! followed, no mount point crossed, and what is made is made new.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, mkdirat,
    openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::ownership::{self, Trust};

/// Held while a command changes the testbed; nobody else can open it.
const LOCK_NAME: &str = ".lock";
/// A record is smaller.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// An open testbed folder that was found to be its owner's alone.
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// The folder at `path`. `NotFound` if there is none, `Config` if others could change what it
    /// holds.
    pub fn open(path: &Path) -> Result<Folder> {
        ownership::check(path, Trust::of_this_process()).map_err(|error| {
            error.within("testbed: its folder is not yours alone, and what it records will not be done")
        })?;
        let missing = |error: std::io::Error| Error::io(format!("testbed {}", path.display()), error);
        let path = path.canonicalize().map_err(missing)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map_err(|errno| missing(errno.into()))?;
        let folder = Folder { path, fd };
        folder
            .must_be_ours(&fstat(&folder.fd).map_err(|errno| folder.failed("look at", ".", errno))?, ".")?;
        Ok(folder)
    }

    /// The same, made if there is none, with the folders above it.
    pub fn make(path: &Path) -> Result<Folder> {
        ownership::check(path, Trust::of_this_process())
            .map_err(|error| error.within("testbed: choose another --dir"))?;
        let failed =
            |at: &Path, errno: Errno| Error::io(format!("testbed folder {}", at.display()), errno.into());
        let is_there = |above: &&Path| above.symlink_metadata().is_ok();
        let mut at = path.ancestors().find(is_there).unwrap_or(Path::new("/")).to_path_buf();
        let rest = path.strip_prefix(&at).unwrap_or(Path::new("")).to_path_buf();
        at = at
            .canonicalize()
            .map_err(|error| Error::io(format!("testbed folder {}", at.display()), error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut fd = openat2(CWD, &at, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map_err(|errno| failed(&at, errno))?;
        for part in rest.components() {
            let Component::Normal(name) = part else { continue };
            at.push(name);
            match mkdirat(&fd, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(&at, errno)),
            }
            fd = openat(&fd, name, flags | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|errno| failed(&at, errno))?;
        }
        Folder::open(&at)
    }

    /// Where it is, links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn named(&self, name: &str) -> PathBuf {
        if name == "." { self.path.clone() } else { self.path.join(name) }
    }

    fn failed(&self, what: &str, name: &str, errno: Errno) -> Error {
        Error::io(format!("testbed: {what} {}", self.named(name).display()), errno.into())
    }

    /// Refuses what another user owns or can write.
    fn must_be_ours(&self, stat: &Stat, name: &str) -> Result<()> {
        let trust = Trust::of_this_process();
        let mode = Mode::from_raw_mode(stat.st_mode);
        let open = mode.contains(Mode::WOTH) || (mode.contains(Mode::WGRP) && stat.st_gid != trust.gid);
        let why = match stat.st_uid {
            uid if uid != 0 && uid != trust.uid => format!("belongs to user {uid}"),
            _ if open => format!("can be written by others (mode {:04o})", stat.st_mode & 0o7777),
            _ => return Ok(()),
        };
        let advice = "look at it and remove it, or choose another --dir";
        Err(Error::new(ErrorKind::Config, format!("testbed: {} {why}; {advice}", self.named(name).display())))
    }

    /// The text of the file `name`; `None` if there is none.
    pub fn read(&self, name: &str) -> Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match self.reach(name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.is_a_link(name)),
            other => other.map_err(|errno| self.failed("open", name, errno))?,
        };
        self.must_be_a_file(&file, name)?;
        let mut text = String::new();
        let mut bounded = File::from(file).take(TEXT_BYTES_MAX);
        bounded
            .read_to_string(&mut text)
            .map_err(|error| Error::io(format!("testbed: read {}", self.named(name).display()), error))?;
        Ok(Some(text))
    }

    fn is_a_link(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::Config,
            format!(
                "testbed: {} is a symbolic link, and none is followed; remove it",
                self.named(name).display()
            ),
        )
    }

    fn must_be_a_file(&self, file: &OwnedFd, name: &str) -> Result<()> {
        let stat = fstat(file).map_err(|errno| self.failed("look at", name, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
            return Err(Error::new(
                ErrorKind::Config,
                format!("testbed: {} is not a plain file of one name; remove it", self.named(name).display()),
            ));
        }
        self.must_be_ours(&stat, name)
    }

    fn reach(&self, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        openat2(&self.fd, name, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
    }

    /// Puts a new file `name` with `text` in the place of an old one, whole or not at all.
    pub fn write(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let fresh = format!("{name}.new");
        let failed = |errno| self.failed("write", name, errno);
        match unlinkat(&self.fd, &fresh, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = self.reach(&fresh, flags, Mode::from_raw_mode(mode)).map_err(failed)?;
        File::from(file)
            .write_all(text.as_bytes())
            .map_err(|error| Error::io(format!("testbed: write {}", self.named(name).display()), error))?;
        renameat(&self.fd, &fresh, &self.fd, name).map_err(failed)
    }

    /// The file `name` for appending; made if there is none.
    pub fn append(&self, name: &str) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = self.reach(name, flags, Mode::from_raw_mode(0o644)).map_err(|errno| match errno {
            Errno::LOOP => self.is_a_link(name),
            other => self.failed("open", name, other),
        })?;
        self.must_be_a_file(&file, name)?;
        Ok(file.into())
    }

    /// Makes the folder `name`; one that is there must be a folder of ours.
    pub fn make_folder(&self, name: &str) -> Result<()> {
        match mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.failed("make", name, errno)),
        }
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("look at", name, errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.must_be_ours(&stat, name),
            FileType::Symlink => Err(self.is_a_link(name)),
            _ => Err(self.failed("make", name, Errno::EXIST)),
        }
    }

    /// Removes `name` with all it holds; what is not there is no error. Links are removed, not
    /// followed; a mount point stops it.
    pub fn remove(&self, name: &str) -> Result<()> {
        let failed = |errno| self.failed("remove", name, errno);
        let Some((above, last)) = name.rsplit_once('/') else {
            return remove_beneath(&self.fd, name).map_err(failed);
        };
        match self.reach(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Ok(()),
            above => above.and_then(|above| remove_beneath(above, last)).map_err(failed),
        }
    }

    /// Removes all that the folder holds.
    pub fn remove_all(&self) -> Result<()> {
        empty(&self.fd).map_err(|errno| self.failed("empty", ".", errno))
    }

    /// Removes the folder `name` if it is empty.
    pub fn remove_if_empty(&self, name: &str) {
        // One that holds something stays, by design.
        let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Keeps two commands from changing one testbed at once; released when dropped.
    pub fn lock(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file =
            self.reach(LOCK_NAME, flags, mode).map_err(|errno| self.failed("lock", LOCK_NAME, errno))?;
        self.must_be_a_file(&file, LOCK_NAME)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(
                ErrorKind::Busy,
                format!(
                    "testbed {}: another `zazen testbed` command is changing it; wait for it",
                    self.path.display()
                ),
            )
        })?;
        Ok(file)
    }

    /// Removes the lock's file; whoever holds the lock does so last.
    pub fn remove_lock(&self) {
        let _ = unlinkat(&self.fd, LOCK_NAME, AtFlags::empty());
    }
}

/// `name` has no slash.
fn remove_beneath(fd: impl AsFd, name: &str) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let folder = match openat2(&fd, name, flags, Mode::empty(), resolve) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        // No folder, or a link to one.
        Err(Errno::NOTDIR | Errno::LOOP) => return unlinkat(&fd, name, AtFlags::empty()),
        Err(errno) => return Err(errno),
    };
    empty(&folder)?;
    unlinkat(&fd, name, AtFlags::REMOVEDIR)
}

fn empty(folder: &OwnedFd) -> rustix::io::Result<()> {
    // All names first: removing while listing may pass names over.
    let names = Dir::read_from(folder)?
        .filter_map(|entry| match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => None,
            Ok(entry) => Some(Ok(entry.file_name().to_owned())),
            Err(errno) => Some(Err(errno)),
        })
        .collect::<rustix::io::Result<Vec<_>>>()?;
    for name in names {
        match unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let inner = openat2(folder, &name, flags, Mode::empty(), resolve)?;
        empty(&inner)?;
        drop(inner);
        unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}
