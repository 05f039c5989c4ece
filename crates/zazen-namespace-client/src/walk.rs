//! Paths.
//!
//! A path is bytes, and is walked from the root: symbolic links are followed as the kernel does, 40
//! of them at most; `..` of the root is the root. Each directory on the way must let the caller
//! search it, which the daemon checks.

use crate::file::File;
use crate::link::Namespace;
use crate::tree::{Found, Who};
use std::collections::VecDeque;
use zazen_namespace::operation::{Mode, Rename};
use zazen_namespace::{Attributes, Errno, InodeId, Kind, Name};

type Result<T> = std::result::Result<T, Errno>;

/// Symbolic links that one path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;
/// About how many bytes of a directory are asked for at a time.
const LISTING_BYTES: u32 = 1 << 20;

/// The last step of a path: a directory, and the name in it; or a directory itself.
#[derive(Clone, Debug)]
pub enum At {
    /// A name in a directory; there may be nothing under it.
    Name(InodeId, Name),
    /// The directory itself: the path ends in `/`, `.` or `..`.
    Directory(InodeId),
}

/// An entry of a directory with its attributes.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Its inode; `None` if it went away meanwhile.
    pub attributes: Option<Attributes>,
    /// What it is.
    pub kind: Kind,
}

/// A step of a path.
enum Step {
    Up,
    Down(Name),
}

fn steps(path: &[u8]) -> Result<Vec<Step>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.map(|part| if part == b".." { Ok(Step::Up) } else { Name::new(part).map(Step::Down) }).collect()
}

impl Namespace {
    /// Walks all but the last name of `path`. With `follow`, a symbolic link under the last name is
    /// followed, too.
    pub fn walk(&self, who: Who<'_>, path: &[u8], follow: bool) -> Result<At> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() > 4096 {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut left: VecDeque<Step> = steps(path)?.into();
        // A slash at the end asks for what the link leads to.
        let follow = follow || path.ends_with(b"/");
        let mut here = InodeId::ROOT;
        let mut links = 0;
        while let Some(step) = left.pop_front() {
            let name = match step {
                Step::Up => {
                    here = self.parent(who, here)?.id;
                    continue;
                }
                Step::Down(name) => name,
            };
            if left.is_empty() && !follow {
                return Ok(At::Name(here, name));
            }
            let found = match self.lookup(who, here, &name) {
                Err(Errno::ENOENT) if left.is_empty() => return Ok(At::Name(here, name)),
                found => found?,
            };
            match found.kind {
                Kind::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::ELOOP);
                    }
                    let target = self.read_link(who, found.id)?;
                    if target.is_empty() {
                        return Err(Errno::ENOENT);
                    }
                    if target.starts_with(b"/") {
                        here = InodeId::ROOT;
                    }
                    for step in steps(&target)?.into_iter().rev() {
                        left.push_front(step);
                    }
                }
                Kind::Directory => here = found.id,
                _ if left.is_empty() => return Ok(At::Name(here, name)),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok(At::Directory(here))
    }

    /// `stat` (`follow`) or `lstat` of a path.
    pub fn stat(&self, who: Who<'_>, path: &[u8], follow: bool) -> Result<Found> {
        match self.walk(who, path, follow)? {
            At::Directory(id) => self.attributes(who, id),
            At::Name(directory, name) => {
                let found = self.lookup(who, directory, &name)?;
                let wants_directory = path.ends_with(b"/");
                if wants_directory && found.kind != Kind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                Ok(found)
            }
        }
    }

    /// The directory and the name that a change of `path` is about; `EEXIST` where the path names a
    /// directory by `/`, `.` or `..`.
    pub fn place(&self, who: Who<'_>, path: &[u8]) -> Result<(InodeId, Name)> {
        let trimmed = path.iter().rposition(|byte| *byte != b'/').map_or(&b"/"[..], |end| &path[..=end]);
        match self.walk(who, trimmed, false)? {
            At::Name(directory, name) => Ok((directory, name)),
            At::Directory(_) => Err(Errno::EEXIST),
        }
    }

    /// Opens a file.
    pub fn open(&self, who: Who<'_>, path: &[u8], mode: Mode) -> Result<File> {
        let found = self.stat(who, path, true)?;
        if found.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        self.open_inode(who, found.id, mode)
    }

    /// Opens a file, and makes it if it is not there. `mode` is after the umask.
    pub fn open_or_create(
        &self,
        who: Who<'_>,
        path: &[u8],
        mode: u32,
        open: Mode,
        exclusive: bool,
    ) -> Result<File> {
        match self.walk(who, path, !exclusive)? {
            At::Directory(_) => Err(Errno::EISDIR),
            At::Name(..) if path.ends_with(b"/") => Err(Errno::EISDIR),
            At::Name(directory, name) => self.create(who, directory, &name, mode, open, exclusive),
        }
    }

    /// All entries of a directory, with attributes where the caller wants them. Without `.` and
    /// `..`, in the directory's own order.
    pub fn list(&self, who: Who<'_>, path: &[u8], attributes: bool) -> Result<Vec<Listed>> {
        let id = self.stat(who, path, true)?.id;
        let mut listed = Vec::new();
        let mut missing = Vec::new();
        let mut cookie = 0;
        loop {
            let part = self.read_directory(who, id, cookie, LISTING_BYTES, attributes)?;
            for entry in part.entries {
                cookie = entry.cookie;
                if attributes && entry.entry.attributes.is_none() {
                    missing.push((listed.len(), entry.entry.id));
                }
                listed.push(Listed {
                    name: entry.name,
                    kind: entry.entry.kind,
                    attributes: entry.entry.attributes,
                });
            }
            if part.end {
                break;
            }
        }
        let ids: Vec<InodeId> = missing.iter().map(|(_, id)| *id).collect();
        for ((at, _), found) in missing.iter().zip(self.attributes_many(who, &ids)?) {
            listed[*at].attributes = found;
        }
        Ok(listed)
    }

    /// Makes a directory by path. `mode` is after the umask.
    pub fn mkdir(&self, who: Who<'_>, path: &[u8], mode: u32) -> Result<Found> {
        let (directory, name) = self.place(who, path)?;
        self.make_directory(who, directory, &name, mode)
    }

    /// Makes a directory and those above it; no error if it is there.
    pub fn mkdir_all(&self, who: Who<'_>, path: &[u8], mode: u32) -> Result<Found> {
        match self.mkdir(who, path, mode) {
            Err(Errno::EEXIST) => {}
            Err(Errno::ENOENT) => {
                let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |end| end + 1);
                let above = path[..end].iter().rposition(|byte| *byte == b'/').ok_or(Errno::ENOENT)?;
                self.mkdir_all(who, &path[..above.max(1)], mode)?;
                return self.mkdir_all(who, path, mode);
            }
            made => return made,
        }
        match self.stat(who, path, true)? {
            found if found.kind == Kind::Directory => Ok(found),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Removes a name that is not a directory's, by path.
    pub fn remove(&self, who: Who<'_>, path: &[u8]) -> Result<()> {
        let (directory, name) = self.place(who, path)?;
        self.unlink(who, directory, &name)
    }

    /// Removes an empty directory by path.
    pub fn rmdir(&self, who: Who<'_>, path: &[u8]) -> Result<()> {
        let (directory, name) = self.place(who, path)?;
        self.remove_directory(who, directory, &name)
    }

    /// Renames by path, replacing the target.
    pub fn rename_path(&self, who: Who<'_>, from: &[u8], to: &[u8]) -> Result<()> {
        let (directory, name) = self.place(who, from)?;
        let (new_directory, new_name) = self.place(who, to)?;
        let (no_replace, exchange) = (false, false);
        self.rename(who, Rename { directory, name, new_directory, new_name, no_replace, exchange })
    }
}
