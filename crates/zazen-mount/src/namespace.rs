//! The namespace as a tree: through the daemon of this node.
//!
//! - A file that this node holds is the kernel's to read and write (its descriptor comes from the
//!   daemon). All others are read and written through the daemon, each time anew: every node sees
//!   the same bytes at every moment.
//! - The kernel keeps attributes for [`FRESH_FOR`], but none of a file that is being written. An
//!   open tells the kernel to forget attributes that are not those of the open.
//! - The daemon tells what others change of what the kernel was told; the kernel forgets that.
//! - Root that is nobody in particular names only inodes that it was led to (`squashed`).
//! - After a restart of the daemon, all open files are opened again by their inode. If the bytes
//!   are not where they were, or if somebody here had a lock of the file, which others may have got
//!   since, the file answers `EIO` from then on.
//! - No change that was made answers `ESTALE`: the kernel would ask for it a second time.
//! - A directory that is open shows its last attributes when it has been removed.

mod open_file;

use crate::locked::Locked;
use crate::squashed::{Asked, Squashed};
use crate::tree::{
    Blocking, BytesVersion, Change, Changes, Credentials, Errno, Handle, How, InodeStat, Io, Kind, Listed,
    Lock, Name, Node, Opened, Owner, Range, Result, Space, Tree, When,
};
use open_file::{Local, OpenFile, lock, mode};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zazen_namespace::operation::{self, LockWanted, Mode, NOW_NS, Rename, SetAttributes, SetXattr};
use zazen_namespace::{Attributes, InodeId};
use zazen_namespace_client::{File, Namespace, Who};

/// How long the kernel may keep attributes and names of what nobody writes.
pub const FRESH_FOR: Duration = Duration::from_secs(1);
/// About how many bytes of a directory are asked for at once.
const LISTING_BYTES: u32 = 64 << 10;
/// How long the rest of a listing may wait for the kernel's next request.
const LISTING_FOR: Duration = Duration::from_millis(500);
/// Inodes of which it is known which version the kernel has seen.
const SEEN_MAX: usize = 1 << 16;
/// How long the watch waits when the daemon does not answer.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

type Files = Mutex<HashMap<Handle, Arc<OpenFile>>>;

/// What the kernel was told last of an inode.
struct Seen {
    version: u64,
    /// Of a directory: what it shows when it was removed while it is open.
    directory: Option<Box<InodeStat>>,
}

/// An open directory: how often it is open, and what was seen of it last.
struct OpenDirectory {
    opens: usize,
    stat: InodeStat,
}

/// A listing under way: what was fetched and the kernel has not asked for yet.
struct Listing {
    who: Credentials,
    directory: InodeId,
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    entries: VecDeque<Listed>,
    /// The cookie before the first of them.
    cookie: u64,
    end: bool,
    plus: bool,
    at: Option<Instant>,
}

/// The namespace, through a daemon.
pub struct NamespaceTree {
    namespace: Namespace,
    /// Whether the daemon believes what this process says of its callers.
    vouches: bool,
    /// What root was led to, if it is nobody in particular here.
    squashed: Option<Squashed>,
    fresh_for: Duration,
    files: Arc<Files>,
    listings: Mutex<HashMap<Handle, Arc<Listing>>>,
    directories: Mutex<HashMap<Node, OpenDirectory>>,
    locked: Arc<Locked>,
    next: AtomicU64,
    seen: Arc<Mutex<HashMap<u64, Seen>>>,
}

fn id(node: Node) -> InodeId {
    InodeId(node)
}

fn ns(when: When) -> i64 {
    match when {
        When::Now => NOW_NS,
        When::At(ns) => ns,
    }
}

impl NamespaceTree {
    /// The tree of the namespace that the daemon behind `socket` serves. Waits a while for a daemon
    /// that is there, but has not joined its namespace yet.
    pub fn through(socket: &Path) -> zazen_core::Result<NamespaceTree> {
        NamespaceTree::new(Namespace::local_when_joined(socket)?)
    }

    /// The tree of this namespace. The process must be root, or the daemon's user, to act for
    /// others than itself: see [`NamespaceTree::vouches`].
    pub fn new(namespace: Namespace) -> zazen_core::Result<NamespaceTree> {
        let hello = namespace.hello()?;
        Ok(NamespaceTree::known(namespace, hello.vouches, hello.squashes_root))
    }

    /// The tree of this namespace, as its daemon would say: see [`NamespaceTree::vouches`], and
    /// `squashes_root`: root is nobody there.
    pub fn known(namespace: Namespace, vouches: bool, squashes_root: bool) -> NamespaceTree {
        NamespaceTree {
            namespace,
            vouches,
            squashed: (vouches && squashes_root).then(Squashed::default),
            fresh_for: FRESH_FOR,
            files: Arc::default(),
            listings: Mutex::default(),
            directories: Mutex::default(),
            locked: Arc::default(),
            next: AtomicU64::new(1),
            seen: Arc::default(),
        }
    }

    /// Whether the daemon believes what this process says of its callers. If not, all calls count
    /// as this process's own user's, and no other user may enter the mount.
    pub fn vouches(&self) -> bool {
        self.vouches
    }

    /// The same, with another time that the kernel may keep attributes and names: for tests of what
    /// the daemon tells.
    #[must_use]
    pub fn keeping(self, fresh_for: Duration) -> NamespaceTree {
        NamespaceTree { fresh_for, ..self }
    }

    fn who<'a>(&self, who: &'a Credentials) -> Who<'a> {
        self.vouches.then_some(who)
    }

    /// What the kernel is told of an inode to which a name led the caller.
    fn led_to(&self, who: &Credentials, attributes: &Attributes) -> InodeStat {
        if let Some(squashed) = &self.squashed {
            squashed.learn(who, attributes.id.0);
        }
        self.stat_of(attributes)
    }

    /// What the kernel is told of an inode.
    fn stat_of(&self, attributes: &Attributes) -> InodeStat {
        let stat = stat(attributes);
        let is_directory = stat.kind == Kind::Directory;
        if is_directory && let Some(open) = lock(&self.directories).get_mut(&stat.node) {
            open.stat = stat.clone();
        }
        let directory = is_directory.then(|| Box::new(stat.clone()));
        let mut seen = lock(&self.seen);
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(stat.node, Seen { version: attributes.version, directory });
        stat
    }

    /// What a directory shows that was removed while it is open here.
    fn removed_directory(&self, node: Node) -> Option<InodeStat> {
        let open = lock(&self.directories);
        let stat = &open.get(&node)?.stat;
        Some(InodeStat { links: 0, bytes: 0, ..stat.clone() })
    }

    /// Whether the kernel may keep something else of the inode than these attributes.
    fn is_stale(&self, attributes: &Attributes) -> bool {
        lock(&self.seen).get(&attributes.id.0).is_none_or(|seen| seen.version != attributes.version)
    }

    fn handle(&self) -> Handle {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn enter(&self, who: &Credentials, how: How, file: File, stale: bool) -> Result<Opened> {
        let bits = file.attributes().mode;
        let mut file = OpenFile::new(who, how, file, Arc::clone(&self.locked));
        // Only who may vouch gets a descriptor for writing; a file without bytes has none yet.
        let local = match self.vouches {
            true => file.with(&self.namespace, self.vouches, File::descriptor)?.map(Arc::new),
            false => None,
        };
        file.local = local.clone().map(Local::new);
        let io = local.map_or(Io::Direct, Io::Local);
        let handle = self.handle();
        lock(&self.files).insert(handle, Arc::new(file));
        Ok(Opened { handle, io, mode: Some(bits), stale })
    }

    fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        lock(&self.files).get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// Does `work` with an open file; if the daemon has forgotten it, opens it again, once.
    fn with<T>(&self, handle: Handle, work: impl Fn(&File) -> Result<T>) -> Result<T> {
        let open = self.file(handle)?;
        open.with(&self.namespace, self.vouches, work)
    }

    fn listing(&self, handle: Handle) -> Result<Arc<Listing>> {
        lock(&self.listings).get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// The next part of a directory, with the attributes of all entries if `plus`.
    fn fetch(&self, listing: &Listing, cookie: u64, plus: bool) -> Result<(VecDeque<Listed>, bool)> {
        let who = self.who(&listing.who);
        let part = self.namespace.read_directory(who, listing.directory, cookie, LISTING_BYTES, plus);
        let part = match part {
            // The directory was removed while it was open: it has no entries.
            Err(Errno::ESTALE | Errno::ENOENT) => return Ok((VecDeque::new(), true)),
            part => part?,
        };
        let lacking = |entry: &operation::Listed| plus && entry.entry.attributes.is_none();
        let ids: Vec<InodeId> =
            part.entries.iter().filter(|entry| lacking(entry)).map(|entry| entry.entry.id).collect();
        let mut brought = match ids.is_empty() {
            true => Vec::new(),
            false => self.namespace.attributes_many(who, &ids)?,
        }
        .into_iter();
        let mut entries = VecDeque::with_capacity(part.entries.len());
        for entry in part.entries {
            let attributes = match entry.entry.attributes {
                None if plus => match brought.next().flatten() {
                    // Its inode is gone meanwhile.
                    None => continue,
                    found => found,
                },
                found => found,
            };
            entries.push_back(Listed {
                cookie: entry.cookie,
                name: entry.name,
                node: entry.entry.id.0,
                kind: entry.entry.kind,
                stat: attributes.map(|attributes| self.stat_of(&attributes)),
            });
        }
        Ok((entries, part.end))
    }

    fn ask_lock(
        &self,
        handle: Handle,
        owner: Owner,
        range: Range,
        wanted: LockWanted,
    ) -> Result<Option<operation::Blocking>> {
        let open = self.file(handle)?;
        let asked = operation::Lock {
            id: open.id,
            owner: owner.number,
            pid: owner.pid,
            whole: owner.whole,
            start: range.start,
            end: range.end,
            wanted,
        };
        let ask = || self.namespace.lock(self.who(&open.who), asked.clone());
        let answer = match ask() {
            // The daemon was restarted: its locks ended with it, and it does not know of the file.
            Err(Errno::EBADF) if wanted == LockWanted::Unlock => Ok(None),
            Err(Errno::EBADF) => open.with(&self.namespace, self.vouches, File::flush).and_then(|()| ask()),
            answer => answer,
        };
        let all = range.start == 0 && range.end >= i64::MAX as u64;
        match (wanted, &answer) {
            // One that nobody answered may be held, too.
            (LockWanted::Shared | LockWanted::Exclusive, Ok(None) | Err(Errno::ETIMEDOUT)) => {
                self.locked.add(open.id, owner);
            }
            (LockWanted::Unlock, Ok(_)) if all => self.locked.end(open.id, owner),
            _ => {}
        }
        answer
    }

    /// Sets the length of a file that is not open: opens it for that.
    fn set_length(&self, who: &Credentials, node: Node, bytes: u64) -> Result<()> {
        let how = Mode { read: false, write: true, truncate: bytes == 0 };
        let file = self.namespace.open_inode(self.who(who), id(node), how)?;
        if bytes > 0 {
            file.set_length(bytes)?;
        }
        file.close()
    }
}

/// An inode's attributes as FUSE has them.
fn stat(attributes: &Attributes) -> InodeStat {
    InodeStat {
        node: attributes.id.0,
        kind: attributes.kind,
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        links: attributes.links,
        bytes: attributes.bytes,
        blocks: attributes.blocks,
        accessed_ns: attributes.accessed_ns,
        modified_ns: attributes.modified_ns,
        changed_ns: attributes.changed_ns,
        device: attributes.device,
        keep: !attributes.is_written(),
    }
}

/// What the daemon tells root.
struct OfRoot<'a>(&'a Namespace, &'a Credentials);

impl Asked for OfRoot<'_> {
    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.0.attributes(Some(self.1), id(node))
    }

    fn parent(&self, node: Node) -> Result<Attributes> {
        self.0.parent(Some(self.1), id(node))
    }
}

/// Passes on what the daemon says has changed, and opens files again after its restart. Ends with
/// the mount.
struct Watcher {
    namespace: Namespace,
    vouches: bool,
    files: Arc<Files>,
    seen: Arc<Mutex<HashMap<u64, Seen>>>,
    changes: Sender<Change>,
}

impl Watcher {
    fn run(&self) {
        let mut after = 0;
        let mut life = None;
        loop {
            let hello = self.namespace.hello().ok().map(|hello| (hello.node, hello.incarnation));
            if life.is_some() && hello.is_some() && hello != life {
                self.open_again();
            }
            life = hello.or(life);
            match self.namespace.watch(after) {
                Ok(found) => {
                    after = found.next;
                    // Nobody knows which: all that the kernel was told of.
                    let all = found.all.then(|| lock(&self.seen).keys().copied().collect::<Vec<u64>>());
                    let nodes = all.into_iter().flatten().chain(found.inodes.into_iter().map(|id| id.0));
                    let names = found.entries.into_iter().map(|at| Change::Entry(at.directory.0, at.name));
                    for change in names.chain(nodes.map(Change::Bytes)) {
                        if self.changes.send(change).is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the daemon tells no changes");
                    std::thread::sleep(WATCH_AGAIN);
                }
            }
        }
    }

    /// The metadata must know what is open here: which files without names stay, and whose lengths
    /// only their holder knows.
    fn open_again(&self) {
        let open: Vec<Arc<OpenFile>> = lock(&self.files).values().cloned().collect();
        let mut lost = 0;
        for file in &open {
            lost += u64::from(file.with(&self.namespace, self.vouches, File::flush).is_err());
        }
        if !open.is_empty() {
            tracing::info!(
                files = open.len(),
                lost,
                "the daemon was restarted: open files were opened again"
            );
        }
    }
}

impl Tree for NamespaceTree {
    fn fresh_for(&self) -> Duration {
        self.fresh_for
    }

    fn changes(&self) -> Option<Receiver<Change>> {
        let (sender, receiver) = channel();
        let watcher = Watcher {
            namespace: self.namespace.clone(),
            vouches: self.vouches,
            files: Arc::clone(&self.files),
            seen: Arc::clone(&self.seen),
            changes: sender,
        };
        let started = std::thread::Builder::new().name("watch".into()).spawn(move || watcher.run());
        started.is_ok().then_some(receiver)
    }

    fn bytes_version(&self, node: Node) -> Option<BytesVersion> {
        let root = Credentials { uid: 0, gid: 0, groups: Vec::new() };
        // The kernel is told nothing: what it was told last stays as it is.
        let found = self.namespace.attributes(self.who(&root), id(node)).ok()?;
        let is_written = found.is_written();
        let Attributes { version, modified_ns, .. } = found;
        (!is_written).then_some(BytesVersion { version, modified_ns })
    }

    fn vet(&self, who: &Credentials, node: Node) -> Result<()> {
        match &self.squashed {
            Some(squashed) => squashed.vet(who, node, &OfRoot(&self.namespace, who)),
            None => Ok(()),
        }
    }

    fn forget(&self, node: Node, _count: u64) {
        if let Some(squashed) = &self.squashed {
            squashed.forget(node);
        }
    }

    fn lookup(&self, who: &Credentials, parent: Node, name: &Name) -> Result<InodeStat> {
        self.namespace.lookup(self.who(who), id(parent), name).map(|found| self.led_to(who, &found))
    }

    fn stat(&self, who: &Credentials, node: Node, _handle: Option<Handle>) -> Result<InodeStat> {
        match self.namespace.attributes(self.who(who), id(node)) {
            Err(Errno::ESTALE) => self.removed_directory(node).ok_or(Errno::ESTALE),
            found => found.map(|found| self.stat_of(&found)),
        }
    }

    fn set(
        &self,
        who: &Credentials,
        node: Node,
        handle: Option<Handle>,
        changes: &Changes,
    ) -> Result<InodeStat> {
        if let Some(bytes) = changes.bytes {
            match handle {
                Some(handle) => {
                    if let Some(local) = &self.file(handle)?.local {
                        local.cut();
                    }
                    self.with(handle, |file| file.set_length(bytes))?;
                }
                None => self.set_length(who, node, bytes)?,
            }
            let rest = Changes { bytes: None, ..changes.clone() };
            if rest == Changes::default() {
                return self.stat(who, node, handle);
            }
        }
        let set = SetAttributes {
            id: id(node),
            mode: changes.mode,
            uid: changes.uid,
            gid: changes.gid,
            bytes: None,
            accessed_ns: changes.accessed.map(ns),
            modified_ns: changes.modified.map(ns),
        };
        self.namespace.set_attributes(self.who(who), set).map(|found| self.stat_of(&found))
    }

    fn read_link(&self, who: &Credentials, node: Node) -> Result<Vec<u8>> {
        self.namespace.read_link(self.who(who), id(node))
    }

    fn make_node(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<InodeStat> {
        let made = self.namespace.make_node(self.who(who), id(parent), name, kind, mode, device);
        made.map(|made| self.led_to(who, &made))
    }

    fn make_directory(&self, who: &Credentials, parent: Node, name: &Name, mode: u32) -> Result<InodeStat> {
        let made = self.namespace.make_directory(self.who(who), id(parent), name, mode);
        made.map(|made| self.led_to(who, &made))
    }

    fn make_link(&self, who: &Credentials, parent: Node, name: &Name, target: &[u8]) -> Result<InodeStat> {
        self.namespace.symlink(self.who(who), id(parent), name, target).map(|made| self.led_to(who, &made))
    }

    fn unlink(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        self.namespace.unlink(self.who(who), id(parent), name)
    }

    fn remove_directory(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        self.namespace.remove_directory(self.who(who), id(parent), name)
    }

    fn rename(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        new_parent: Node,
        new_name: &Name,
        flags: u32,
    ) -> Result<()> {
        let (no_replace, exchange) = match flags {
            0 => (false, false),
            libc::RENAME_NOREPLACE => (true, false),
            libc::RENAME_EXCHANGE => (false, true),
            _ => return Err(Errno::EINVAL),
        };
        let rename = Rename {
            directory: id(parent),
            name: name.clone(),
            new_directory: id(new_parent),
            new_name: new_name.clone(),
            no_replace,
            exchange,
        };
        self.namespace.rename(self.who(who), rename)
    }

    fn link(&self, who: &Credentials, node: Node, parent: Node, name: &Name) -> Result<InodeStat> {
        self.namespace.link(self.who(who), id(node), id(parent), name).map(|found| self.stat_of(&found))
    }

    fn open(&self, who: &Credentials, node: Node, how: How) -> Result<Opened> {
        let file = self.namespace.open_inode(self.who(who), id(node), mode(how))?;
        let stale = self.is_stale(file.attributes());
        self.enter(who, how, file, stale)
    }

    fn create(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        bits: u32,
        how: How,
    ) -> Result<(InodeStat, Opened)> {
        let file = self.namespace.create(self.who(who), id(parent), name, bits, mode(how), how.exclusive)?;
        let stat = self.led_to(who, file.attributes());
        Ok((stat, self.enter(who, how, file, false).map_err(Errno::after_change)?))
    }

    fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let buffer = Mutex::new(buffer);
        self.with(handle, |file| file.read_at(&mut lock(&buffer), offset))
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize> {
        self.with(handle, |file| if append { file.append(bytes) } else { file.write_at(bytes, offset) })
    }

    fn flush(&self, handle: Handle) -> Result<()> {
        let open = self.file(handle)?;
        if !open.how.write {
            return Ok(());
        }
        let flush = || open.with(&self.namespace, self.vouches, File::flush);
        match &open.local {
            Some(local) => local.tell(flush),
            None => flush(),
        }
    }

    fn release(&self, handle: Handle) {
        // The last reference to the file closes it, which may take long: not under the lock.
        let file = lock(&self.files).remove(&handle);
        drop(file);
    }

    fn sync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        let open = self.file(handle)?;
        let sync = |file: &File| match open.is_again() {
            // The daemon does not know which chunks were written before.
            true => file.sync_every(),
            false => file.sync(),
        };
        open.with(&self.namespace, self.vouches, sync)
    }

    fn allocate(&self, handle: Handle, mode: i32, offset: u64, bytes: u64) -> Result<()> {
        self.with(handle, |file| file.allocate(mode as u32, offset, bytes))
    }

    fn seek(&self, handle: Handle, offset: u64, data: bool) -> Result<u64> {
        self.with(handle, |file| if data { file.seek_data(offset) } else { file.seek_hole(offset) })
    }

    fn open_directory(&self, who: &Credentials, node: Node) -> Result<Handle> {
        let known = lock(&self.seen).get(&node).and_then(|seen| seen.directory.as_deref().cloned());
        let stat = known.map_or_else(|| self.stat(who, node, None), Ok)?;
        lock(&self.directories).entry(node).or_insert(OpenDirectory { opens: 0, stat }).opens += 1;
        let listing = Listing { who: who.clone(), directory: id(node), rest: Mutex::default() };
        let handle = self.handle();
        lock(&self.listings).insert(handle, Arc::new(listing));
        Ok(handle)
    }

    fn list(
        &self,
        handle: Handle,
        cookie: u64,
        plus: bool,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let listing = self.listing(handle)?;
        let mut rest = lock(&listing.rest);
        let is_next = cookie == rest.cookie && plus == rest.plus;
        if cookie == 0 || !is_next || rest.at.is_none_or(|at| at.elapsed() > LISTING_FOR) {
            *rest = Rest { cookie, plus, ..Rest::default() };
        }
        loop {
            while let Some(entry) = rest.entries.front() {
                let (entry, cookie) = (entry.clone(), entry.cookie);
                if !take(entry) {
                    return Ok(());
                }
                rest.entries.pop_front();
                rest.cookie = cookie;
            }
            if rest.end {
                return Ok(());
            }
            let (entries, end) = self.fetch(&listing, rest.cookie, plus)?;
            let empty = entries.is_empty();
            (rest.entries, rest.end, rest.at) = (entries, end || empty, Some(Instant::now()));
        }
    }

    fn release_directory(&self, handle: Handle) {
        let Some(listing) = lock(&self.listings).remove(&handle) else { return };
        let mut directories = lock(&self.directories);
        if let Some(open) = directories.get_mut(&listing.directory.0) {
            open.opens -= 1;
            if open.opens == 0 {
                directories.remove(&listing.directory.0);
            }
        }
    }

    fn space(&self, node: Node) -> Result<Space> {
        let nodes = self.namespace.spaces_in(id(node)).map_err(|_| Errno::EIO)?;
        Ok(nodes.iter().fold(Space::default(), |sum, node| Space {
            bytes: sum.bytes + node.bytes,
            bytes_free: sum.bytes_free + node.bytes_free,
            inodes: sum.inodes + node.inodes,
            inodes_free: sum.inodes_free + node.inodes_free,
        }))
    }

    fn get_xattr(&self, who: &Credentials, node: Node, name: &Name) -> Result<Vec<u8>> {
        self.namespace.get_xattr(self.who(who), id(node), name)
    }

    fn set_xattr(&self, who: &Credentials, node: Node, name: &Name, value: &[u8], flags: i32) -> Result<()> {
        let set = SetXattr {
            id: id(node),
            name: name.clone(),
            value: Some(value.to_vec()),
            create: flags & libc::XATTR_CREATE != 0,
            replace: flags & libc::XATTR_REPLACE != 0,
        };
        self.namespace.set_xattr(self.who(who), set)
    }

    fn remove_xattr(&self, who: &Credentials, node: Node, name: &Name) -> Result<()> {
        let set = SetXattr { id: id(node), name: name.clone(), value: None, create: false, replace: false };
        self.namespace.set_xattr(self.who(who), set)
    }

    fn list_xattr(&self, who: &Credentials, node: Node) -> Result<Vec<Name>> {
        self.namespace.list_xattr(self.who(who), id(node))
    }

    fn test_lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<Option<Blocking>> {
        let wanted = match lock {
            Lock::Unlock => return Ok(None),
            Lock::Shared => LockWanted::TestShared,
            Lock::Exclusive => LockWanted::TestExclusive,
        };
        let found = self.ask_lock(handle, owner, range, wanted)?;
        let Some(found) = found else { return Ok(None) };
        let here = self.namespace.hello().is_ok_and(|hello| hello.node == found.node);
        let range = Range { start: found.start, end: found.end };
        Ok(Some(Blocking { range, exclusive: found.exclusive, pid: if here { found.pid } else { 0 } }))
    }

    fn lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<()> {
        let wanted = match lock {
            Lock::Unlock => LockWanted::Unlock,
            Lock::Shared => LockWanted::Shared,
            Lock::Exclusive => LockWanted::Exclusive,
        };
        match self.ask_lock(handle, owner, range, wanted)? {
            None => Ok(()),
            Some(_) => Err(Errno::EAGAIN),
        }
    }
}
