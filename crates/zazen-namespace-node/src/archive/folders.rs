//! The folder of the archive, as the daemon has it open.
//!
//! ```text
//! ROOT/                              what users see: the tree of the namespace, as hard links
//!   .zazen-archive/                  the daemons' alone (mode 0700)
//!     NAMESPACE/objects/FOLDER/INODE-GENERATION     archived objects
//!     NAMESPACE/sums/FOLDER/INODE-GENERATION        their checksums, for other nodes
//!     NAMESPACE/parts/INODE-GENERATION              objects that are being copied
//!     NAMESPACE/names/                              names on their way to the tree
//! ```
//!
//! Users may own folders of the tree, so nothing below ROOT is found by a path: each folder is
//! opened in the one above it, and links are not followed. What the daemon reads and trusts is in
//! the hidden folder.

use crate::folder::sub;
use crate::objects::ObjectName;
use crate::seals::{self, Seal};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::result::Result;

/// The folder in the archive that is the daemons' alone.
pub(crate) const HIDDEN: &str = ".zazen-archive";

/// An archive that is there, and is this namespace's.
pub(crate) struct Folders {
    pub(crate) root: OwnedFd,
    pub(crate) objects: OwnedFd,
    pub(crate) sums: OwnedFd,
    pub(crate) parts: OwnedFd,
    pub(crate) names: OwnedFd,
}

/// Whether nobody but its owner, who is root or the daemon's user, can change what is in a folder.
/// `private`: nor look into it.
fn is_ours(folder: &OwnedFd, private: bool) -> std::io::Result<bool> {
    let meta = File::from(folder.try_clone()?).metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let others = if private { 0o077 } else { 0o022 };
    Ok((meta.uid() == own || meta.uid() == 0) && meta.mode() & others == 0)
}

fn folder(parent: BorrowedFd<'_>, name: &str) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Opens the folder at `path`, which must be there: a file system that is not mounted must not be
/// taken for an empty archive.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, String> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| format!("{shown}: {errno}; is its file system mounted?"))?;
    match is_ours(&root, false) {
        Ok(true) => Ok(root),
        Ok(false) => Err(format!(
            "{shown}: it must belong to root or to the daemon's user, and nobody else may write to it: what \
             is archived could be moved away"
        )),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

impl Folders {
    /// The archive of the namespace `id` in `root`. `fresh`: it is made; else it must be there.
    pub(crate) fn open(root: OwnedFd, id: &str, fresh: bool) -> Result<Folders, String> {
        let within = |error: std::io::Error| format!("{HIDDEN}/{id}: {error}");
        let hidden = if fresh { sub(root.as_fd(), HIDDEN) } else { folder(root.as_fd(), HIDDEN) };
        let own = match (hidden, fresh) {
            (Ok(hidden), _) if !is_ours(&hidden, true).map_err(within)? => {
                return Err(format!("{HIDDEN}: it must be the daemon's own, with mode 0700"));
            }
            (Ok(hidden), true) => sub(hidden.as_fd(), id).map_err(within)?,
            (Ok(hidden), false) => folder(hidden.as_fd(), id).map_err(|error| absent(id, &error))?,
            (Err(error), true) => return Err(within(error)),
            (Err(error), false) => return Err(absent(id, &error)),
        };
        let all = ["objects", "sums", "parts", "names"];
        let [objects, sums, parts, names] = all.map(|name| sub(own.as_fd(), name));
        Ok(Folders {
            root,
            objects: objects.map_err(within)?,
            sums: sums.map_err(within)?,
            parts: parts.map_err(within)?,
            names: names.map_err(within)?,
        })
    }

    /// Ends an archive that was made a moment ago, and in which nothing is.
    pub(crate) fn unmake(self, id: &str) {
        let paths = ["/objects", "/sums", "/parts", "/names", ""].map(|part| format!("{HIDDEN}/{id}{part}"));
        for path in paths {
            rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR).ok();
        }
    }

    /// Opens an archived object.
    pub(crate) fn object(&self, name: ObjectName) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(&self.objects, name.path(), flags, Mode::empty())?.into())
    }

    /// The checksums of an archived object. None: there are none yet, or they are damaged.
    pub(crate) fn seal(&self, name: ObjectName) -> std::io::Result<Option<Seal>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.sums, name.path(), flags, Mode::empty()) {
            Ok(file) => seals::read(name, file.into()).map_err(std::io::Error::other),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts the checksums of an archived object beside it, unless they are there.
    pub(crate) fn put_seal(&self, name: ObjectName, seal: &Seal) -> std::io::Result<()> {
        let looks = |seal: &Seal| (seal.bytes, seal.modified_ns);
        if self.seal(name).is_ok_and(|there| there.as_ref().map(looks) == Some(looks(seal))) {
            return Ok(());
        }
        let part = format!("{}.sums", name.file());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let into = File::from(rustix::fs::openat(&self.parts, &part, flags, Mode::from_raw_mode(0o600))?);
        seal.copy_to(&into)?;
        into.sync_all()?;
        let folder = sub(self.sums.as_fd(), &name.folder())?;
        rustix::fs::renameat(&self.parts, &part, &folder, name.file())?;
        rustix::fs::fsync(&folder)?;
        Ok(rustix::fs::fsync(&self.sums)?)
    }

    /// The objects of the `at`-th folder that have checksums beside them.
    pub(crate) fn sealed_in(&self, at: u64) -> std::io::Result<Vec<ObjectName>> {
        let folder = match folder(self.sums.as_fd(), &format!("{at:03x}")) {
            Ok(folder) => folder,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(folder)? {
            names.extend(entry?.file_name().to_str().ok().and_then(ObjectName::parse));
        }
        Ok(names)
    }
}

fn absent(id: &str, error: &std::io::Error) -> String {
    format!(
        "{HIDDEN}/{id}: {error}; this is not the archive that this namespace had before: mount its file \
         system, or move {HIDDEN} with the archive"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_folder_of_ours_that_had_this_namespace_is_its_archive() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path, fresh| open_root(path).and_then(|root| Folders::open(root, "id", fresh));
        let refused = |path: &Path| open(path, false).err().unwrap();
        assert!(refused(&dir.path().join("none")).contains("mounted?"));
        assert!(refused(dir.path()).contains("not the archive that this namespace had before"));
        open(dir.path(), true).ok().unwrap();
        open(dir.path(), false).ok().unwrap();
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&dir.path().join(HIDDEN), 0o755);
        assert!(refused(dir.path()).contains("0700"));
        mode(&dir.path().join(HIDDEN), 0o700);
        mode(dir.path(), 0o777);
        assert!(refused(dir.path()).contains("nobody else may write"));
        mode(dir.path(), 0o700);
        open(dir.path(), false).ok().unwrap().unmake("id");
        assert!(refused(dir.path()).contains("had before"));
    }
}
