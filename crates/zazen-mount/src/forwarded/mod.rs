//! A folder of another machine as a tree: through its daemon's posix plug-in.
//!
//! `operations`: what the kernel asks, as calls; `far`: the session; `nodes`: what the kernel
//! knows.
//!
//! - All calls are made with one identity, that of this process: the far kernel decides with that
//!   user's rights. So only that user may enter the mount.
//! - Nothing of a file's bytes stays here. Reads and writes go to the far kernel, each time anew.
//! - Names and attributes stay in the kernel for [`crate::Tree::fresh_for`]; what others change
//!   there is seen after that time.
//! - Each owner of locks has a description of its own at the far side, on which its locks are open
//!   file description locks. So the far kernel keeps them apart, also from those of its own
//!   programs.
//! - After a restart of the daemon, open files are opened again by their names. A file that is not
//!   there any more, or on which somebody had a lock, answers `EIO` from then on.

mod entries;
mod far;
mod nodes;
mod operations;

use crate::tree::{
    Changes, Errno, Handle, How, InodeStat, Io, Kind, Lock, Name, Node, Opened, ROOT, Range, Result, When,
};
use far::{Answer, Description, Far, Identity, text};
use nodes::Nodes;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_core::{Error, ErrorKind};
use zazen_forward_api::structures::{self, Lock as RecordLock, PxStat, Times};
use zazen_posix_client::{Address, Failure, Settings, call};

/// Cookies of a listing are its places, from here on.
const COOKIES_FROM: u64 = 256;
/// Bytes of directory entries that are asked for at once.
const ENTRIES_BYTES: usize = 64 << 10;
/// The longest value of an extended attribute, and of the list of their names.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// The longest path from the root to an inode, in names.
const DEPTH_MAX: usize = 4096;

/// The daemon whose folder is mounted.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// Of this machine, behind this socket.
    Here(PathBuf),
    /// Of another machine: HOST:PORT, and the cluster key's file.
    There(String, PathBuf),
}

/// An open file.
struct OpenFile {
    node: Node,
    how: How,
    /// Held for moments only.
    description: Mutex<Arc<Description>>,
    /// Held while the file is opened again.
    reopening: Mutex<()>,
    lost: AtomicBool,
}

#[derive(Default)]
struct OpenFiles {
    by_handle: HashMap<Handle, Arc<OpenFile>>,
    by_node: HashMap<Node, Vec<Arc<OpenFile>>>,
}

/// An open directory.
struct Listing {
    node: Node,
    /// The device whose inode numbers the entries show.
    device: u64,
    description: Mutex<Arc<Description>>,
    /// What the listing found when it began.
    entries: Mutex<Arc<Vec<(Name, u64, Kind)>>>,
}

/// Whose locks of which file: the inode, the owner's number, and whether they are `flock`'s.
type LockOwner = (Node, u64, bool);

/// A folder at the far side.
pub struct ForwardedTree {
    far: Arc<Far>,
    /// The folder's path there.
    folder: CString,
    fresh_for: Duration,
    nodes: Mutex<Nodes>,
    files: Mutex<OpenFiles>,
    listings: Mutex<HashMap<Handle, Arc<Listing>>>,
    locks: Mutex<HashMap<LockOwner, Arc<Description>>>,
    next: AtomicU64,
}

/// How a call names an inode: a directory's number and a name, or a number and no name.
struct NamedBy {
    dir: c_int,
    name: CString,
    /// What must be found by the name; `None` if the number alone names it.
    expected: Option<Identity>,
    _held: Option<Arc<Description>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const STALE: Failure = Failure::Errno(libc::ESTALE);

/// A name that the kernel knows, and that leads elsewhere or nowhere now.
fn moved(failure: Failure) -> Failure {
    match failure {
        Failure::Errno(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => STALE,
        other => other,
    }
}

fn access_of(how: How) -> c_int {
    match (how.read, how.write) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    }
}

fn time_of(when: Option<When>) -> (i64, i64) {
    match when {
        None => (0, libc::UTIME_OMIT),
        Some(When::Now) => (0, libc::UTIME_NOW),
        Some(When::At(ns)) => (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000)),
    }
}

impl ForwardedTree {
    /// The daemon's folder `folder`, an absolute path there. Connects, and looks at the folder.
    pub fn of(daemon: &Daemon, folder: &Path) -> zazen_core::Result<ForwardedTree> {
        let shown = match daemon {
            Daemon::Here(socket) => socket.display().to_string(),
            Daemon::There(address, _) => address.clone(),
        };
        let settings = match daemon {
            Daemon::Here(socket) => Settings::new(Address::Socket(socket.clone())),
            Daemon::There(address, key) => Settings {
                key_file: Some(key.clone()),
                ..Settings::new(Address::parse(Some(&format!("tcp:{address}")))?)
            },
        };
        let path = CString::new(folder.as_os_str().as_bytes())
            .ok()
            .filter(|_| folder.is_absolute())
            .ok_or_else(|| invalid(format!("{} is no absolute path", folder.display())))?;
        let far = Arc::new(Far::new(settings));
        far.connect()?;
        let refused = |failure| match failure {
            Failure::Errno(libc::EACCES) => format!(
                "the daemon at {shown} does not export {0}, or this user may not enter it; its operator \
                 can add --export {0}",
                folder.display()
            ),
            Failure::Errno(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                format!("{} at {shown}: {why}", folder.display())
            }
            Failure::Unreachable | Failure::Lost => {
                format!(
                    "the daemon at {shown} has no posix plug-in for this user; start it with --plugin posix"
                )
            }
        };
        // The folder itself may be a link: it is followed.
        let stat = far
            .once(|| {
                let root = far.open(structures::ROOT, &path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
                far.stat(root.dir()?, c"")
            })
            .map_err(|failure| Error::new(ErrorKind::NotFound, refused(failure)))?;
        Ok(ForwardedTree {
            far,
            folder: path,
            fresh_for: Duration::from_secs(1),
            nodes: Mutex::new(Nodes::new(Identity::of(&stat))),
            files: Mutex::default(),
            listings: Mutex::default(),
            locks: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    /// The kernel may keep names and attributes for so long.
    #[must_use]
    pub fn keeping(mut self, fresh_for: Duration) -> ForwardedTree {
        self.fresh_for = fresh_for;
        self
    }

    /// Whether `directory`, on this machine, is the folder itself: a mount there would hide it from
    /// the daemon.
    pub fn is_at(&self, directory: &Path) -> bool {
        use rustix::fs::{AtFlags, StatxFlags};
        let Some(root) = held(&self.nodes).identity(ROOT) else { return false };
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(rustix::fs::CWD, directory, AtFlags::empty(), wanted);
        found.is_ok_and(|found| {
            root == Identity::of(&PxStat {
                mask: found.stx_mask,
                mode: found.stx_mode.into(),
                ino: found.stx_ino,
                seconds: [0, found.stx_btime.tv_sec, 0, 0],
                nanoseconds: [0, found.stx_btime.tv_nsec, 0, 0],
                devices: [0, 0, found.stx_dev_major, found.stx_dev_minor],
                ..PxStat::default()
            })
        })
    }

    /// Makes calls; see [`Far::patiently`]. A session with too many descriptions gives up those
    /// that it only keeps.
    fn ask<T>(&self, repeatable: bool, mut work: impl FnMut() -> Answer<T>) -> Result<T> {
        self.far.patiently(repeatable, || match work() {
            Err(Failure::Errno(libc::EMFILE)) => {
                let dropped = held(&self.nodes).give_up(0);
                drop(dropped);
                work()
            }
            done => done,
        })
    }

    fn handle(&self) -> Handle {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn identity(&self, node: Node) -> Answer<Identity> {
        held(&self.nodes).identity(node).ok_or(STALE)
    }

    /// A description of a directory, without rights.
    fn directory(&self, node: Node) -> Answer<Arc<Description>> {
        // Up to a directory that keeps its description, then down again.
        let (mut at, mut below) = (node, Vec::new());
        let mut found = loop {
            let kept = held(&self.nodes).kept(at);
            if let Some(kept) = kept.filter(|kept| kept.is_alive()) {
                break kept;
            }
            if at == ROOT {
                break self.enter_directory(ROOT, structures::ROOT, &self.folder)?;
            }
            let (parent, name) = held(&self.nodes).name_of(at).ok_or(STALE)?;
            below.push((at, name));
            if below.len() > DEPTH_MAX {
                return Err(STALE);
            }
            at = parent;
        };
        for (node, name) in below.into_iter().rev() {
            found = self.enter_directory(node, found.dir()?, &text(name.as_bytes())?)?;
        }
        Ok(found)
    }

    /// Opens a directory that the kernel knows, and keeps it.
    fn enter_directory(&self, node: Node, dir: c_int, name: &CStr) -> Answer<Arc<Description>> {
        let expected = self.identity(node)?;
        let no_follow = if node == ROOT { 0 } else { libc::O_NOFOLLOW };
        let flags = libc::O_PATH | libc::O_DIRECTORY | no_follow;
        let description = Arc::new(self.far.open(dir, name, flags, 0).map_err(moved)?);
        if Identity::of(&self.far.stat(description.dir()?, c"")?) != expected {
            return Err(STALE);
        }
        let dropped = held(&self.nodes).keep(node, Arc::clone(&description));
        drop(dropped);
        Ok(description)
    }

    /// How a call names the inode. An open file is named by its description, so that it is found
    /// without a name, too.
    fn place(&self, node: Node) -> Answer<NamedBy> {
        if node == ROOT {
            return Ok(NamedBy {
                dir: structures::ROOT,
                name: self.folder.clone(),
                expected: None,
                _held: None,
            });
        }
        let open = held(&self.files).by_node.get(&node).cloned().unwrap_or_default();
        let alive = open.iter().map(|file| Arc::clone(&held(&file.description)));
        if let Some(description) = alive.into_iter().find(|description| description.is_alive()) {
            return by_number(description);
        }
        let named = held(&self.nodes).name_of(node);
        let Some((parent, name)) = named else {
            // A directory that was removed and is still somebody's working directory.
            let kept = held(&self.nodes).kept(node).filter(|kept| kept.is_alive());
            return by_number(kept.ok_or(STALE)?);
        };
        let parent = self.directory(parent)?;
        let expected = Some(self.identity(node)?);
        Ok(NamedBy { dir: parent.dir()?, name: text(name.as_bytes())?, expected, _held: Some(parent) })
    }

    /// The same, and its attributes; `ESTALE` if the name leads to another inode now.
    fn look(&self, node: Node) -> Answer<(NamedBy, PxStat)> {
        let place = self.place(node)?;
        let stat = self.far.stat(place.dir, &place.name).map_err(|failure| match place.expected {
            Some(_) => moved(failure),
            None => failure,
        })?;
        match place.expected {
            Some(expected) if expected != Identity::of(&stat) => Err(STALE),
            _ => Ok((place, stat)),
        }
    }

    /// Opens a file that the kernel knows.
    fn open_node(&self, node: Node, flags: c_int) -> Answer<Description> {
        let (expected, named) = {
            let nodes = held(&self.nodes);
            (nodes.identity(node).ok_or(STALE)?, nodes.name_of(node))
        };
        let Some((parent, name)) = named else {
            let place = self.place(node)?;
            return self.far.open(place.dir, c"", flags, 0);
        };
        let parent = self.directory(parent)?;
        let flags = flags | libc::O_NOFOLLOW;
        let found = self.far.open(parent.dir()?, &text(name.as_bytes())?, flags, 0).map_err(moved)?;
        if found.file == (expected.device, expected.inode) { Ok(found) } else { Err(STALE) }
    }

    fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        held(&self.files).by_handle.get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// The description of an open file. After a restart of the daemon, a new one.
    fn description_of(&self, file: &OpenFile) -> Answer<Arc<Description>> {
        let lost = Failure::Errno(libc::EIO);
        if file.lost.load(Ordering::Relaxed) {
            return Err(lost);
        }
        let alive = || Some(Arc::clone(&held(&file.description))).filter(|found| found.is_alive());
        if let Some(description) = alive() {
            return Ok(description);
        }
        let _only_once = held(&file.reopening);
        if let Some(description) = alive() {
            return Ok(description);
        }
        let was_locked = held(&self.locks).keys().any(|(node, ..)| *node == file.node);
        let again = if was_locked { Err(lost) } else { self.open_node(file.node, access_of(file.how)) };
        match again {
            Ok(again) => {
                let again = Arc::new(again);
                let old = std::mem::replace(&mut *held(&file.description), Arc::clone(&again));
                drop(old);
                Ok(again)
            }
            Err(Failure::Errno(errno)) if !matches!(errno, libc::EBADFD | libc::EBADF | libc::EMFILE) => {
                file.lost.store(true, Ordering::Relaxed);
                Err(lost)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Does `work` with the number of an open file.
    fn with<T>(&self, handle: Handle, repeatable: bool, mut work: impl FnMut(u32) -> Answer<T>) -> Result<T> {
        let file = self.file(handle)?;
        self.ask(repeatable, || {
            let description = self.description_of(&file)?;
            work(description.id()?)
        })
    }

    fn enter_file(&self, node: Node, how: How, description: Description) -> Opened {
        let description = Mutex::new(Arc::new(description));
        let file = Arc::new(OpenFile {
            node,
            how,
            description,
            reopening: Mutex::default(),
            lost: AtomicBool::new(false),
        });
        let handle = self.handle();
        let mut files = held(&self.files);
        files.by_node.entry(node).or_default().push(Arc::clone(&file));
        files.by_handle.insert(handle, file);
        Opened { handle, io: Io::Direct, mode: None, stale: false }
    }

    fn shown(node: Node, stat: &PxStat) -> InodeStat {
        let ns = |time: usize| {
            stat.seconds[time].saturating_mul(1_000_000_000).saturating_add(i64::from(stat.nanoseconds[time]))
        };
        let [major, minor, ..] = stat.devices;
        InodeStat {
            node,
            kind: Kind::of((stat.mode >> 12) as u8).unwrap_or(Kind::File),
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            links: stat.nlink,
            bytes: stat.size,
            blocks: stat.blocks,
            accessed_ns: ns(0),
            changed_ns: ns(2),
            modified_ns: ns(3),
            device: libc::makedev(major, minor) as u32,
            keep: true,
        }
    }

    /// A name was looked at, or made: one lookup.
    fn enter(&self, parent: Node, name: &Name, stat: &PxStat) -> InodeStat {
        let node = held(&self.nodes).enter(parent, name, Identity::of(stat));
        Self::shown(node, stat)
    }

    /// Makes a name by `make`, and looks at it.
    fn make(
        &self,
        parent: Node,
        name: &Name,
        make: impl Fn(c_int, &CStr) -> Answer<()>,
    ) -> Result<InodeStat> {
        let text = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.ask(false, || {
            let directory = self.directory(parent)?;
            make(directory.dir()?, &text)
        })?;
        let stat = self.ask(true, || {
            let directory = self.directory(parent)?;
            self.far.stat(directory.dir()?, &text)
        })?;
        Ok(self.enter(parent, name, &stat))
    }

    fn remove(&self, parent: Node, name: &Name, flags: c_int) -> Result<()> {
        let text = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.ask(false, || {
            let directory = self.directory(parent)?;
            call!(px_unlink(directory.dir()?, text.as_ptr(), flags)).map(drop)
        })?;
        held(&self.nodes).remove(parent, name);
        Ok(())
    }

    fn apply(&self, node: Node, description: Option<&OpenFile>, changes: &Changes) -> Answer<()> {
        if let Some(bytes) = changes.bytes {
            let bytes = i64::try_from(bytes).map_err(|_| Failure::Errno(libc::EFBIG))?;
            let file = match description {
                Some(file) => self.description_of(file)?,
                None => Arc::new(self.open_node(node, libc::O_WRONLY)?),
            };
            call!(px_truncate(file.dir()?, c"".as_ptr(), bytes))?;
        }
        let (place, _) = self.look(node)?;
        let (dir, name, no_follow) = (place.dir, place.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        if changes.uid.is_some() || changes.gid.is_some() {
            let (uid, gid) = (changes.uid.unwrap_or(u32::MAX), changes.gid.unwrap_or(u32::MAX));
            call!(px_chown(dir, name, uid, gid, no_follow))?;
        }
        if let Some(mode) = changes.mode {
            call!(px_chmod(dir, name, mode, no_follow))?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let ((accessed, accessed_ns), (modified, modified_ns)) =
                (time_of(changes.accessed), time_of(changes.modified));
            let times = Times([accessed, accessed_ns, modified, modified_ns]);
            call!(px_utimes(dir, name, (&raw const times).cast(), no_follow))?;
        }
        Ok(())
    }

    fn listing(&self, handle: Handle) -> Result<Arc<Listing>> {
        held(&self.listings).get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// The directory's description; after a restart of the daemon, a new one.
    fn description_of_listing(&self, listing: &Listing) -> Answer<Arc<Description>> {
        let mut description = held(&listing.description);
        if !description.is_alive() {
            *description = Arc::new(self.open_listed(listing.node)?);
        }
        Ok(Arc::clone(&description))
    }

    fn open_listed(&self, node: Node) -> Answer<Description> {
        let directory = self.directory(node)?;
        self.far.open(directory.dir()?, c"", libc::O_RDONLY | libc::O_DIRECTORY, 0)
    }

    /// All entries, as they are now.
    fn read_entries(&self, listing: &Listing) -> Answer<Vec<(Name, u64, Kind)>> {
        let description = self.description_of_listing(listing)?;
        let id = description.id()?;
        call!(px_seek(id, 0, libc::SEEK_SET))?;
        let mut buffer = vec![0_u8; ENTRIES_BYTES];
        let mut found = Vec::new();
        loop {
            let mut count = buffer.len() as u64;
            call!(px_entries(id, buffer.as_mut_ptr().cast(), &raw mut count))?;
            let bytes = buffer.get(..count as usize).unwrap_or_default();
            if bytes.is_empty() {
                return Ok(found);
            }
            found.extend(entries::parse(bytes).ok_or(Failure::Errno(libc::EIO))?);
        }
    }

    /// The description on which the owner's locks are; a new one if it has none.
    fn lock_description(&self, file: &OpenFile, owner: LockOwner) -> Answer<Arc<Description>> {
        if let Some(found) = held(&self.locks).get(&owner).cloned() {
            // The far side's locks ended with the session.
            return if found.is_alive() { Ok(found) } else { Err(Failure::Errno(libc::EIO)) };
        }
        let again = self.description_of(file)?;
        let open = |flags| self.far.open(again.dir()?, c"", flags, 0);
        let refused = [libc::EACCES, libc::EPERM, libc::EROFS, libc::ETXTBSY];
        let made = match open(libc::O_RDWR) {
            Err(Failure::Errno(errno)) if refused.contains(&errno) => open(access_of(file.how)),
            made => made,
        };
        let made = Arc::new(made?);
        Ok(Arc::clone(held(&self.locks).entry(owner).or_insert(made)))
    }
}

fn invalid(words: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, words)
}

fn by_number(description: Arc<Description>) -> Answer<NamedBy> {
    Ok(NamedBy {
        dir: description.dir()?,
        name: CString::default(),
        expected: None,
        _held: Some(description),
    })
}

fn record(range: Range, kind: c_int) -> RecordLock {
    let start = i64::try_from(range.start).unwrap_or(i64::MAX);
    let end = i64::try_from(range.end).ok().filter(|end| *end < i64::MAX);
    // A length of 0 reaches to the end of all files.
    let length = end.map_or(0, |end| end - start + 1);
    RecordLock { start, length, kind, whence: libc::SEEK_SET, pid: 0, reserved: 0 }
}

fn kind_of(lock: Lock) -> c_int {
    match lock {
        Lock::Unlock => libc::F_UNLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    }
}

/// An offset as the call takes it.
fn position(offset: u64, done: usize) -> Answer<i64> {
    let at = offset.checked_add(done as u64).and_then(|at| i64::try_from(at).ok());
    at.ok_or(Failure::Errno(libc::EINVAL))
}
