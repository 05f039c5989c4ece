//! Paths.
//!
//! A path is bytes, and is walked from the root: symbolic links are followed as the kernel does, 40
//! of them at most; `..` of the root is the root. Each directory on the way must let the caller
//! search it, which the daemon checks.

use crate::file::File;
use crate::link::Namespace;
use crate::tree::{Found, Who};
use std::collections::VecDeque;
use std::time::Instant;
use zazen_namespace::operation::{Mode, Rename};
use zazen_namespace::{Attributes, Errno, InodeId, Kind, Name};

type Result<T> = std::result::Result<T, Errno>;

/// Symbolic links that one path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;
/// The longest path, as in the kernel.
const PATH_BYTES_MAX: usize = 4096;
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
        self.seek(who, path, follow).map(|(at, _)| at)
    }

    /// The same, and what is under the last name if that was looked up on the way.
    fn seek(&self, who: Who<'_>, path: &[u8], follow: bool) -> Result<(At, Option<Found>)> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let since = Instant::now();
        let above = directory_of(path);
        let mut left: VecDeque<Step> = steps(path)?.into();
        // A slash at the end asks for what the link leads to.
        let follow = follow || ends_in_directory(path);
        let mut here = InodeId::ROOT;
        let mut links = 0;
        // Until the last name itself leads elsewhere, one step left means: `here` is `above`.
        let mut is_above = who.is_none() && matches!(left.back(), Some(Step::Down(_)));
        if is_above
            && left.len() > 1
            && let Some(known) = self.known().get(above)
        {
            here = known;
            left.drain(..left.len() - 1);
            is_above = false;
        }
        while let Some(step) = left.pop_front() {
            let name = match step {
                Step::Up => {
                    here = self.parent(who, here)?.id;
                    continue;
                }
                Step::Down(name) => name,
            };
            if left.is_empty() && std::mem::take(&mut is_above) && here != InodeId::ROOT {
                self.known().put(above, here, since);
            }
            if left.is_empty() && !follow {
                return Ok((At::Name(here, name), None));
            }
            let found = match self.lookup(who, here, &name) {
                Err(Errno::ENOENT) if left.is_empty() => return Ok((At::Name(here, name), None)),
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
                _ if left.is_empty() => return Ok((At::Name(here, name), Some(found))),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok((At::Directory(here), None))
    }

    /// Does `work`, and does it again without the directories that were found earlier if it fails
    /// as it does when one of them is no longer the right one.
    pub(crate) fn afresh<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(errno) if errno.asks_for_another_look() && self.known().clear() => work(),
            done => done,
        }
    }

    /// `stat` (`follow`) or `lstat` of a path.
    pub fn stat(&self, who: Who<'_>, path: &[u8], follow: bool) -> Result<Found> {
        self.afresh(|| self.stat_once(who, path, follow))
    }

    fn stat_once(&self, who: Who<'_>, path: &[u8], follow: bool) -> Result<Found> {
        let found = match self.seek(who, path, follow)? {
            (At::Directory(id), _) => return self.attributes(who, id),
            (At::Name(..), Some(found)) => found,
            (At::Name(directory, name), None) => self.lookup(who, directory, &name)?,
        };
        if ends_in_directory(path) && found.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(found)
    }

    /// The directory at `path`; `ENOTDIR` if it is something else.
    pub fn directory(&self, who: Who<'_>, path: &[u8]) -> Result<InodeId> {
        let mut whole = path.to_vec();
        // So that it is found, and remembered, as the directory above this name.
        whole.extend_from_slice(b"/x");
        match self.walk(who, &whole, false)? {
            At::Name(directory, _) | At::Directory(directory) => Ok(directory),
        }
    }

    /// The directory and the name of a new file or link at `path`. `EEXIST` where the path names a
    /// directory by `/`, `.` or `..`; behind a name, a `/` is for directories only.
    pub fn place(&self, who: Who<'_>, path: &[u8]) -> Result<(InodeId, Name)> {
        let (directory, name) = self.named(who, path, Errno::EEXIST)?;
        if path.ends_with(b"/") {
            self.lookup(who, directory, &name)?;
            return Err(Errno::EEXIST);
        }
        Ok((directory, name))
    }

    /// The directory and the name that a change of `path` is about; `no_name` where it has none.
    fn named(&self, who: Who<'_>, path: &[u8], no_name: Errno) -> Result<(InodeId, Name)> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if matches!(last_of(path), b"" | b"." | b"..") {
            self.directory(who, path)?;
            return Err(no_name);
        }
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |end| end + 1);
        match self.walk(who, &path[..end], false)? {
            At::Name(directory, name) => Ok((directory, name)),
            At::Directory(_) => Err(no_name),
        }
    }

    /// Opens a file.
    pub fn open(&self, who: Who<'_>, path: &[u8], mode: Mode) -> Result<File> {
        self.afresh(|| {
            let found = self.stat_once(who, path, true)?;
            if found.kind == Kind::Directory {
                return Err(Errno::EISDIR);
            }
            self.open_inode(who, found.id, mode.clone())
        })
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
        let make = |follow: bool| match self.walk(who, path, follow)? {
            At::Directory(_) if exclusive => Err(Errno::EEXIST),
            At::Directory(_) => Err(Errno::EISDIR),
            At::Name(..) if ends_in_directory(path) => Err(Errno::EISDIR),
            At::Name(directory, name) => self.create(who, directory, &name, mode, open.clone(), exclusive),
        };
        // Most names lead to no symbolic link: then this is one call.
        let file = match self.afresh(|| make(false)) {
            Err(Errno::ELOOP) if !exclusive => self.afresh(|| make(true)),
            made => made,
        }?;
        match file.attributes().kind {
            Kind::Directory => Err(Errno::EISDIR),
            _ => Ok(file),
        }
    }

    /// All entries of a directory, with attributes where the caller wants them. Without `.` and
    /// `..`, in the directory's own order.
    pub fn list(&self, who: Who<'_>, path: &[u8], attributes: bool) -> Result<Vec<Listed>> {
        let id = self.afresh(|| self.directory(who, path))?;
        self.list_inode(who, id, attributes)
    }

    /// As [`Namespace::list`], of a directory that is known by its inode.
    pub fn list_inode(&self, who: Who<'_>, id: InodeId, attributes: bool) -> Result<Vec<Listed>> {
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
        self.afresh(|| {
            let (directory, name) = self.named(who, path, Errno::EEXIST)?;
            self.make_directory(who, directory, &name, mode)
        })
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
        self.afresh(|| {
            let (directory, name) = self.named(who, path, Errno::EISDIR)?;
            if path.ends_with(b"/") {
                let found = self.lookup(who, directory, &name)?;
                return Err(if found.kind == Kind::Directory { Errno::EISDIR } else { Errno::ENOTDIR });
            }
            self.unlink(who, directory, &name)
        })
    }

    /// Removes an empty directory by path.
    pub fn rmdir(&self, who: Who<'_>, path: &[u8]) -> Result<()> {
        let no_name = match last_of(path) {
            b"." => Errno::EINVAL,
            b".." => Errno::ENOTEMPTY,
            _ => Errno::EBUSY,
        };
        let removed = self.afresh(|| {
            let (directory, name) = self.named(who, path, no_name)?;
            self.remove_directory(who, directory, &name)
        });
        self.known().clear();
        removed
    }

    /// Renames by path, replacing the target.
    pub fn rename_path(&self, who: Who<'_>, from: &[u8], to: &[u8]) -> Result<()> {
        let (no_replace, exchange) = (false, false);
        let renamed = self.afresh(|| {
            let (directory, name) = self.named(who, from, Errno::EBUSY)?;
            let (new_directory, new_name) = self.named(who, to, Errno::EBUSY)?;
            let is_directory =
                || self.lookup(who, directory, &name).map(|found| found.kind == Kind::Directory);
            if (from.ends_with(b"/") || to.ends_with(b"/")) && !is_directory()? {
                return Err(Errno::ENOTDIR);
            }
            self.rename(who, Rename { directory, name, new_directory, new_name, no_replace, exchange })
        });
        self.known().clear();
        renamed
    }
}

/// What stands behind the last `/` that something stands behind: a name, `.` or `..`; nothing of a
/// path that is only `/`.
fn last_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or_default()
}

/// Whether the path leads to a directory or nowhere: it ends in `/` or `.`.
fn ends_in_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || last_of(path) == b"."
}

/// What stands before the last name of a path: the directory that the name is in. As in [`steps`],
/// `.` is no name.
pub(crate) fn directory_of(path: &[u8]) -> &[u8] {
    let mut rest = path;
    loop {
        let end = rest.iter().rposition(|byte| *byte == b'/');
        let (above, last) = end.map_or((&rest[..0], rest), |slash| (&rest[..slash], &rest[slash + 1..]));
        if end.is_none() || !matches!(last, b"" | b".") {
            return above;
        }
        rest = above;
    }
}

#[cfg(test)]
mod tests {
    use super::{directory_of, ends_in_directory, last_of};

    #[test]
    fn the_end_of_a_path_says_what_it_may_lead_to() {
        let check = |path: &str, last: &str, directory: bool| {
            assert_eq!(last_of(path.as_bytes()), last.as_bytes(), "{path}");
            assert_eq!(ends_in_directory(path.as_bytes()), directory, "{path}");
        };
        check("/a/b", "b", false);
        check("/a//b//", "b", true);
        check("/a/.", ".", true);
        check("/a/..", "..", false);
        check("/", "", true);
        check("a.", "a.", false);
    }

    #[test]
    fn the_directory_of_a_path_is_what_stands_before_its_last_name() {
        let check = |path: &str, expected: &str| {
            assert_eq!(directory_of(path.as_bytes()), expected.as_bytes(), "{path}");
        };
        check("/a/b", "/a");
        check("/a/b/", "/a");
        check("/a//b", "/a/");
        check("/a", "");
        check("a", "");
        check("/", "");
        check("/a/d/.", "/a");
        check("/a/d/.//./", "/a");
        check("/a/./d", "/a/.");
        check("/a/.d", "/a");
        check(".", "");
    }
}
