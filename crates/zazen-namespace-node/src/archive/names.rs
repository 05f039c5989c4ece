//! The tree of the namespace in the archive, as users see it: names of archived objects.
//!
//! The node with the root's partition walks the namespace and the archive side by side, again and
//! again. It needs no list of what it made before: what has an archived object's inode is a name
//! that it made. Objects of files that are removed from the namespace go from the hidden folder;
//! their last names in the tree stay, and so do their bytes.

use crate::archive::drain;
use crate::archive::folders::{Folders, HIDDEN};
use crate::archive::state::{ArchiveTold, Named, os};
use crate::archive::wholes;
use crate::node::NamespaceNode;
use crate::objects::{self, FOLDERS, ObjectName};
use crate::route::root;
use crate::wish::Wish;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno as Kernel;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_namespace::archive::{Act, There, Wanted, acts};
use zazen_namespace::operation::{Answer, Inode, Listed, Operation, ReadDirectory};
use zazen_namespace::{Attributes, Errno, InodeId, Kind};

/// After a walk there is a rest of so many times the walk, and at least so long.
const REST: u32 = 4;
const REST_MIN: Duration = Duration::from_secs(2);
/// Bytes of a listing.
const LISTING_BYTES: u32 = 1 << 20;
/// Inodes that are asked for together.
const AT_ONCE: usize = 512;
/// Directories below one another, at most.
const DEPTH_MAX: usize = 4096;
/// The same of directories that are gone from the namespace; each takes a descriptor.
const PRUNED_DEPTH_MAX: usize = 64;

/// What earlier walks found.
#[derive(Default)]
pub(crate) struct Known {
    /// Inodes that were as they should be, with the version of their attributes then.
    inodes: HashMap<InodeId, u64>,
    /// Directories of the archive that are not in the namespace, and in which nothing is ours: they
    /// may be large.
    foreign: HashSet<u64>,
}

/// What was in a directory that the namespace has not.
#[derive(Clone, Copy, Default)]
struct Pruned {
    /// Names went.
    went: bool,
    /// Names of files of the namespace are left.
    left: bool,
}

/// A walk.
struct Walk<'a> {
    node: &'a NamespaceNode,
    archive: &'a Folders,
    known: &'a mut Known,
    /// What this walk made or found as it should be.
    seen: HashMap<InodeId, u64>,
    inode_of: HashMap<ObjectName, u64>,
    /// Of files in chunks: the state that the archive has of them, and its inode.
    wholes: HashMap<InodeId, (u64, u64)>,
    object_of: HashMap<u64, ObjectName>,
    /// The archive's file system.
    device: u64,
    /// Numbers names on their way.
    next: u64,
    named: Named,
}

fn kernel(errno: Kernel) -> Errno {
    objects::errno(errno)
}

fn open_folder(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Kernel> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// What a folder has.
fn list(folder: &OwnedFd) -> Result<BTreeMap<Vec<u8>, There>, Kernel> {
    let mut there = BTreeMap::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            kind => kind == FileType::Directory,
        };
        there.insert(name.to_vec(), There { inode: entry.ino(), is_directory });
    }
    Ok(there)
}

impl NamespaceNode {
    /// Brings the names in the archive up to date, if that is this node's part. When to come again.
    pub(crate) fn name_all(&self, told: &ArchiveTold, known: &mut Known) -> Duration {
        let map = self.map();
        let seat = map.partitions.get(InodeId::ROOT.partition().0 as usize);
        let is_mine = self.identity().is_ok_and(|(me, _)| seat.is_some_and(|seat| seat.primary == me));
        if !is_mine {
            *crate::handles::lock(&self.archive.named) = None;
            *known = Known::default();
            self.archive.wholes.forget();
            return REST_MIN;
        }
        let Ok(folders) = self.archive_folders(told) else { return REST_MIN };
        let began = Instant::now();
        let named = Named { began, names: 0, lacking: 0, failed: 0, failure: None };
        let (seen, next) = (HashMap::new(), 0);
        let (inode_of, wholes, object_of) = (HashMap::new(), HashMap::new(), HashMap::new());
        let Ok(device) = rustix::fs::fstat(&folders.root).map(|stat| stat.st_dev) else { return REST_MIN };
        let archive = &folders;
        let mut walk =
            Walk { node: self, archive, known, seen, inode_of, wholes, object_of, device, next, named };
        match walk.all() {
            Ok(()) => {
                let Walk { named, seen, wholes, .. } = walk;
                self.archive.wholes.keep(|id| wholes.contains_key(&id));
                known.inodes = seen;
                *crate::handles::lock(&self.archive.named) = Some(named);
            }
            Err(errno) => tracing::debug!("namespace: names in the archive: {errno}"),
        }
        (began.elapsed() * REST).max(REST_MIN)
    }
}

impl Walk<'_> {
    fn stops(&self) -> Result<(), Errno> {
        if self.node.stopping.load(Ordering::Relaxed) { Err(Errno::EINTR) } else { Ok(()) }
    }

    fn fails(&mut self, name: &[u8], errno: Errno) {
        self.named.failed += 1;
        if self.named.failure.is_none() {
            self.named.failure = Some(format!("{}: {errno}", String::from_utf8_lossy(name)));
        }
    }

    fn all(&mut self) -> Result<(), Errno> {
        for name in list(&self.archive.names).map_err(kernel)?.into_keys() {
            rustix::fs::unlinkat(&self.archive.names, &name[..], AtFlags::empty()).ok();
        }
        self.learn_objects()?;
        let top = self.archive.root.try_clone().map_err(os)?;
        let mut stack = vec![(InodeId::ROOT, Rc::new(top), Vec::new(), 0)];
        while let Some((directory, above, name, depth)) = stack.pop() {
            self.stops()?;
            // Only now: a directory may have more directories in it than there are descriptors.
            let folder = if depth == 0 { Ok(above) } else { open_folder(above.as_fd(), &name).map(Rc::new) };
            match folder {
                Ok(folder) if depth <= DEPTH_MAX => {
                    let below = self.one_directory(directory, &folder)?;
                    stack.extend(
                        below.into_iter().map(|(id, name)| (id, Rc::clone(&folder), name, depth + 1)),
                    );
                }
                Ok(_) => self.fails(&name, Errno::ELOOP),
                Err(errno) => self.fails(&name, kernel(errno)),
            }
        }
        Ok(())
    }

    /// The archived objects, without those of files that are gone.
    fn learn_objects(&mut self) -> Result<(), Errno> {
        for folder in 0..FOLDERS {
            self.stops()?;
            let folder = match open_folder(self.archive.objects.as_fd(), format!("{folder:03x}").as_bytes()) {
                Ok(folder) => folder,
                Err(Kernel::NOENT) => continue,
                Err(errno) => return Err(kernel(errno)),
            };
            let there: Vec<(ObjectName, u64)> = list(&folder)
                .map_err(kernel)?
                .into_iter()
                .filter_map(|(name, there)| {
                    let name = std::str::from_utf8(&name).ok().and_then(ObjectName::parse)?;
                    Some((name, there.inode))
                })
                .collect();
            for some in there.chunks(AT_ONCE) {
                let ids: Vec<_> = some.iter().map(|(name, _)| name.id).collect();
                for ((name, inode), found) in some.iter().zip(self.node.attributes_of(&ids)) {
                    let found = found?;
                    let place = found.as_ref().and_then(|found| found.place.as_ref());
                    let is_whole = found.as_ref().is_some_and(wholes::has_one);
                    if is_whole {
                        self.learn_whole(*name, *inode);
                    }
                    if is_whole || place.is_some_and(|place| place.generation == name.generation) {
                        self.inode_of.insert(*name, *inode);
                        self.object_of.insert(*inode, *name);
                    } else {
                        // What the tree shows of it stays.
                        rustix::fs::unlinkat(&folder, name.file(), AtFlags::empty()).ok();
                        rustix::fs::unlinkat(&self.archive.sums, name.path(), AtFlags::empty()).ok();
                    }
                }
            }
        }
        Ok(())
    }

    /// Brings the names of one directory up to date. The directories in it.
    fn one_directory(
        &mut self,
        directory: InodeId,
        folder: &OwnedFd,
    ) -> Result<Vec<(InodeId, Vec<u8>)>, Errno> {
        let entries = match self.entries(directory) {
            Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut there = match list(folder) {
            Ok(there) => there,
            Err(errno) => {
                self.fails(
                    format!("a directory of the archive, inode {directory} here").as_bytes(),
                    kernel(errno),
                );
                return Ok(Vec::new());
            }
        };
        let mut wanted = BTreeMap::new();
        for (name, found) in &entries {
            if directory == InodeId::ROOT && name == HIDDEN.as_bytes() {
                self.fails(name, Errno::EEXIST);
                continue;
            }
            wanted.insert(name.clone(), self.wanted(found));
        }
        let lacking: Vec<_> =
            entries.iter().filter(|(name, found)| self.lacks(wanted.get(*name), found)).collect();
        for some in lacking.chunks(AT_ONCE) {
            let ids: Vec<_> = some.iter().map(|(_, found)| found.id).collect();
            for ((name, found), wish) in some.iter().zip(self.node.wishes_of(Wish::Archive, &ids)) {
                // Those that the archive shall not have lack nothing.
                if wish == Ok(0) {
                    continue;
                }
                self.named.lacking += 1;
                if let Some(errno) = self.node.archive.wholes.want(found) {
                    self.fails(name, errno);
                }
            }
        }
        if directory == InodeId::ROOT {
            there.remove(HIDDEN.as_bytes());
        }
        let mut below = Vec::new();
        for (name, act) in acts(&wanted, &there, |inode| self.object_of.contains_key(&inode)) {
            let done = match (act, entries.get(name)) {
                (Act::Link(inode), Some(found)) => self.link(folder, name, inode, found),
                (Act::Directory, Some(found)) => self.directory(folder, name, found).map(|()| {
                    below.push((found.id, name.to_vec()));
                }),
                (Act::Small, Some(found)) => self.small(folder, name, found, there.contains_key(name)),
                (Act::Remove, _) => self.remove(folder, name).map(drop),
                (Act::Prune, _) => self.prune_new(folder, name, there.get(name)),
                (_, None) => Ok(()),
            };
            if let Err(errno) = done {
                self.fails(name, errno);
            }
        }
        for (name, found) in &entries {
            if let Some(Wanted::File(Some(_))) = wanted.get(name)
                && let Err(errno) = self.follow(found)
            {
                self.fails(name, errno);
            }
        }
        Ok(below)
    }

    fn wanted(&mut self, found: &Attributes) -> Wanted {
        let wanted = match (found.kind, &found.place) {
            (Kind::File, None) if wholes::has_one(found) => {
                Wanted::File(self.wholes.get(&found.id).map(|(_, inode)| *inode))
            }
            // In chunks, and written for the first time.
            (Kind::File, None) if found.is_written() => Wanted::File(None),
            (Kind::Directory, _) => Wanted::Directory,
            (Kind::Symlink, _) => Wanted::Small,
            // It never had a byte: it reads as zeros.
            (Kind::File, None) => Wanted::Small,
            (Kind::File, Some(place)) if found.bytes == 0 => match place.writing {
                // For the first time.
                true => Wanted::File(None),
                false => Wanted::Small,
            },
            (Kind::File, Some(place)) => {
                let name = ObjectName { id: found.id, generation: place.generation };
                Wanted::File(self.inode_of.get(&name).copied())
            }
            _ => Wanted::Other,
        };
        match wanted {
            Wanted::Other | Wanted::File(None) => {}
            _ => self.named.names += 1,
        }
        wanted
    }

    /// An archived object is a file in chunks. Of several, which a crash left, the one that is
    /// known to be the file as it is counts.
    fn learn_whole(&mut self, name: ObjectName, inode: u64) {
        let is_known = self.node.archive.wholes.state(name.id) == Some(name.generation);
        if is_known || !self.wholes.contains_key(&name.id) {
            self.wholes.insert(name.id, (name.generation, inode));
        }
    }

    /// Whether the archive does not have a file as it is, as far as is known here.
    fn lacks(&self, wanted: Option<&Wanted>, found: &Attributes) -> bool {
        match wanted {
            Some(Wanted::File(None)) => true,
            Some(Wanted::File(Some(_))) if found.chunks.is_some() => {
                let state = self.wholes.get(&found.id).map(|(state, _)| *state);
                !self.node.archive.wholes.is_as_made(found, state)
            }
            _ => false,
        }
    }

    /// The archived object of a file that has one.
    fn object(&self, found: &Attributes) -> Option<ObjectName> {
        let whole = || self.wholes.get(&found.id).map(|(state, _)| *state);
        let generation = found.place.as_ref().map(|place| place.generation).or_else(whole)?;
        Some(ObjectName { id: found.id, generation })
    }

    /// A name on its way, which nobody else can reach.
    fn fresh(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    /// Puts what has the fresh name in the place of what the folder has under a name.
    fn put(&self, fresh: &str, folder: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let put = rustix::fs::renameat(&self.archive.names, fresh, folder, name).map_err(kernel);
        // A rename to another name of the same file does nothing.
        rustix::fs::unlinkat(&self.archive.names, fresh, AtFlags::empty()).ok();
        put
    }

    fn link(&mut self, folder: &OwnedFd, name: &[u8], inode: u64, found: &Attributes) -> Result<(), Errno> {
        let Some(object) = self.object_of.get(&inode).copied() else { return Ok(()) };
        debug_assert_eq!(object.id, found.id, "the object of another file");
        let fresh = self.fresh();
        let (objects, names) = (&self.archive.objects, &self.archive.names);
        rustix::fs::linkat(objects, object.path(), names, &fresh, AtFlags::empty()).map_err(kernel)?;
        self.put(&fresh, folder, name)
    }

    /// Owner, mode and times of an archived file follow the namespace.
    fn follow(&mut self, found: &Attributes) -> Result<(), Errno> {
        let Some(name) = self.object(found) else { return Ok(()) };
        if !found.is_written() && self.known.inodes.get(&found.id) != Some(&found.version) {
            drain::dress(&self.archive.object(name).map_err(os)?, found).map_err(os)?;
        }
        self.seen.insert(found.id, found.version);
        Ok(())
    }

    fn directory(&mut self, folder: &OwnedFd, name: &[u8], found: &Attributes) -> Result<(), Errno> {
        let made = match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Kernel::EXIST) => false,
            Err(errno) => return Err(kernel(errno)),
        };
        if made || self.known.inodes.get(&found.id) != Some(&found.version) {
            let opened = open_folder(folder.as_fd(), name).map_err(kernel)?;
            let meta = File::from(opened.try_clone().map_err(os)?).metadata().map_err(os)?;
            let is_own = meta.uid() == rustix::process::geteuid().as_raw() || meta.uid() == found.uid;
            // Root writes everywhere; another daemon must be able to.
            let own = if rustix::process::geteuid().is_root() { 0 } else { 0o700 };
            let mode = found.mode & 0o1777 | own;
            let is_right = (meta.uid(), meta.gid(), meta.mode() & 0o7777) == (found.uid, found.gid, mode);
            // One that somebody else made keeps its owner and mode.
            if is_own && !is_right {
                rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode)).map_err(kernel)?;
                let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
                if rustix::fs::fchown(&opened, Some(uid), Some(gid)).is_err() {
                    rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode & 0o700)).map_err(kernel)?;
                }
            }
        }
        self.seen.insert(found.id, found.version);
        Ok(())
    }

    /// A symbolic link, or a file without bytes.
    fn small(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        found: &Attributes,
        is_there: bool,
    ) -> Result<(), Errno> {
        if is_there && self.known.inodes.get(&found.id) == Some(&found.version) {
            self.seen.insert(found.id, found.version);
            return Ok(());
        }
        let fresh = self.fresh();
        if found.kind == Kind::Symlink {
            let asked = Operation::ReadLink(Inode { id: found.id });
            let Answer::Bytes(target) = self.node.route_one(root(), asked)? else { return Err(Errno::EIO) };
            let known = rustix::fs::readlinkat(folder, name, Vec::new());
            if !known.is_ok_and(|known| known.as_bytes() == target.bytes) {
                rustix::fs::symlinkat(&target.bytes[..], &self.archive.names, &fresh).map_err(kernel)?;
                let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(&self.archive.names, &fresh, Some(uid), Some(gid), flags).ok();
                self.put(&fresh, folder, name)?;
            }
        } else {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let made = rustix::fs::openat(&self.archive.names, &fresh, flags, Mode::from_raw_mode(0o600));
            let made = File::from(made.map_err(kernel)?);
            made.set_len(found.bytes).map_err(os)?;
            drain::dress(&made, found).map_err(os)?;
            self.put(&fresh, folder, name)?;
        }
        self.seen.insert(found.id, found.version);
        Ok(())
    }

    /// Removes a name of a file that has another one in the tree: a file is never without a name
    /// while it is renamed. Whether it went.
    fn remove(&self, folder: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(kernel)?;
        let is_ours = stat.st_dev == self.device && self.object_of.contains_key(&stat.st_ino);
        let goes = is_ours && stat.st_nlink > 2;
        if goes {
            rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(kernel)?;
        }
        Ok(goes)
    }

    /// Prunes a folder that the namespace has not, unless there was nothing of ours in it before.
    fn prune_new(&mut self, folder: &OwnedFd, name: &[u8], there: Option<&There>) -> Result<(), Errno> {
        let inode = there.map_or(0, |there| there.inode);
        if !self.known.foreign.contains(&inode) {
            let pruned = self.prune(folder, name, 0)?;
            if !pruned.went && !pruned.left {
                self.known.foreign.insert(inode);
            }
        }
        Ok(())
    }

    /// Removes names of files that have other ones from a folder that the namespace has not, and
    /// then the folder, if nothing else was or is in it.
    fn prune(&self, folder: &OwnedFd, name: &[u8], depth: usize) -> Result<Pruned, Errno> {
        self.stops()?;
        let mut pruned = Pruned::default();
        if depth > PRUNED_DEPTH_MAX {
            return Ok(pruned);
        }
        let below = open_folder(folder.as_fd(), name).map_err(kernel)?;
        for (name, there) in list(&below).map_err(kernel)? {
            if there.is_directory {
                let found = self.prune(&below, &name, depth + 1)?;
                pruned.went |= found.went;
                pruned.left |= found.left;
            } else if self.object_of.contains_key(&there.inode) {
                let went = self.remove(&below, &name)?;
                pruned.went |= went;
                pruned.left |= !went;
            }
        }
        // An empty folder of somebody else's stays, and so does one in which anything is.
        if pruned.went {
            rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR).ok();
        }
        Ok(pruned)
    }

    /// What a directory of the namespace has.
    fn entries(&self, directory: InodeId) -> Result<BTreeMap<Vec<u8>, Attributes>, Errno> {
        let mut entries = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let read = ReadDirectory { directory, cookie, bytes_max: LISTING_BYTES, attributes: true };
            let Answer::Listing(listing) = self.node.route_one(root(), Operation::ReadDirectory(read))?
            else {
                return Err(Errno::EIO);
            };
            let Some(last) = listing.entries.last() else { return Ok(entries) };
            cookie = last.cookie;
            let (known, lacking): (Vec<Listed>, Vec<Listed>) =
                listing.entries.into_iter().partition(|listed| listed.entry.attributes.is_some());
            let ids: Vec<_> = lacking.iter().map(|listed| listed.entry.id).collect();
            let found = if ids.is_empty() { Vec::new() } else { self.node.attributes_of(&ids) };
            for (listed, found) in lacking.into_iter().zip(found) {
                if let Some(found) = found? {
                    entries.insert(listed.name.as_bytes().to_vec(), found);
                }
            }
            for listed in known {
                if let Some(found) = listed.entry.attributes {
                    entries.insert(listed.name.as_bytes().to_vec(), found);
                }
            }
            if listing.end {
                return Ok(entries);
            }
        }
    }
}
