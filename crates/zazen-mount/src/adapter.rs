//! FUSE over a [`Tree`]: one call for each request of the kernel.
//!
//! - The kernel checks permissions (`default_permissions`), and the tree checks again.
//! - Attributes and names stay in the kernel for at most [`Tree::fresh_for`].
//! - No write-back cache: what `write` returned is in the tree.
//! - The set-id bits of a file go when somebody other than root opens it for writing, not with the
//!   first write: the kernel itself writes files of this machine, and tells nobody.

use crate::bytes;
use crate::caller::Callers;
use crate::convert::{attr, error, file_type, how, name_of, when, without_set_id};
use crate::local_io;
use crate::locks::{self, Asked, Locks};
use crate::opens::{Answer, OpenFile, Opens, open_with};
use crate::pages::{Keeper, Pages};
use crate::tree::{Blocking, Changes, Credentials, Errno, Kind, Lock, Node, Owner, Result};
use crate::tree::{InodeStat, Tree};
use fuser::{
    FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// The most bytes of one read or write request.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account (read-ahead and the like).
const BACKGROUND_MAX: u16 = 64;
/// Offsets of a listing: 0 the start, then `.`, `..`; the tree's cookies are larger.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;
/// Serves a tree to the kernel.
pub(crate) struct Adapter {
    tree: Arc<dyn Tree>,
    callers: Callers,
    opens: Arc<Opens>,
    pages: Arc<Pages>,
    locks: Arc<Locks>,
    fresh: Duration,
    try_passthrough: bool,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Adapter {
    /// `notifier` is set when there is one: after the mount.
    pub(crate) fn new(
        tree: Arc<dyn Tree>,
        try_passthrough: bool,
        notifier: Arc<OnceLock<Notifier>>,
    ) -> Adapter {
        let fresh = tree.fresh_for();
        Adapter {
            tree,
            callers: Callers::default(),
            opens: Arc::new(Opens::new()),
            pages: Arc::default(),
            locks: Arc::default(),
            fresh,
            try_passthrough,
            notifier,
        }
    }

    /// Has the kernel forget pages that others may have written.
    pub(crate) fn keeper(&self) -> Keeper {
        let (pages, opens) = (Arc::clone(&self.pages), Arc::clone(&self.opens));
        Keeper { pages, tree: Arc::clone(&self.tree), opens }
    }

    /// Runs `work` as the caller. A refusal counts only with groups that were just read.
    fn attempt<T>(&self, req: &Request, work: impl Fn(&Credentials) -> Result<T>) -> Result<T> {
        let (who, may_be_old) = self.callers.identity(req.pid(), req.uid(), req.gid());
        match work(&who) {
            Err(Errno::EACCES | Errno::EPERM) if may_be_old => {
                work(&self.callers.read_anew(req.pid(), req.uid(), req.gid()))
            }
            done => done,
        }
    }

    /// The same, if the caller may name these inodes.
    fn attempt_on<T>(
        &self,
        req: &Request,
        nodes: &[INodeNo],
        work: impl Fn(&Credentials) -> Result<T>,
    ) -> Result<T> {
        self.attempt(req, |who| {
            nodes.iter().try_for_each(|node| self.tree.vet(who, node.0))?;
            work(who)
        })
    }

    fn entry(&self, reply: ReplyEntry, found: Result<InodeStat>) {
        match found {
            Ok(stat) => {
                reply.entry_with_ttls(&self.keep(&stat), &self.fresh, &attr(&stat), Generation(0));
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    /// How long the kernel may keep these attributes.
    fn keep(&self, stat: &InodeStat) -> Duration {
        if stat.keep { self.fresh } else { Duration::ZERO }
    }

    fn attributes(&self, reply: ReplyAttr, found: Result<InodeStat>) {
        match found {
            Ok(stat) => reply.attr(&self.keep(&stat), &attr(&stat)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn file(&self, file: FileHandle) -> Result<Arc<OpenFile>> {
        self.opens.get(file).ok_or(Errno::EBADF)
    }

    fn handle(&self, file: Option<FileHandle>) -> Option<u64> {
        file.and_then(|file| self.opens.get(file)).map(|file| file.handle)
    }

    /// Takes the set-id bits away from a file that somebody other than root writes.
    fn drop_set_id(&self, node: Node, handle: Option<u64>, uid: u32) -> Result<Option<InodeStat>> {
        if uid == 0 || self.tree.drops_set_id() {
            return Ok(None);
        }
        let root = Credentials { uid: 0, gid: 0, groups: Vec::new() };
        let stat = self.tree.stat(&root, node, handle)?;
        match without_set_id(stat.mode) {
            Some(mode) if stat.kind == Kind::File => {
                let changes = Changes { mode: Some(mode), ..Changes::default() };
                self.tree.set(&root, node, handle, &changes).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// The inode that a request names: none if it names an open file.
fn named(node: INodeNo, handle: Option<u64>) -> Vec<INodeNo> {
    if handle.is_some() { Vec::new() } else { vec![node] }
}

fn empty(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(error(errno)),
    }
}

fn data(reply: ReplyData, found: Result<Vec<u8>>) {
    match found {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(error(errno)),
    }
}

fn xattr(reply: ReplyXattr, size: u32, found: Result<Vec<u8>>) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(error(errno)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not offer this");
            }
        }
        if self.try_passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            self.opens.allow_passthrough();
        }
        // A refused value leaves the kernel's own, which also serves.
        _ = config.set_max_write(IO_BYTES_MAX);
        _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.locks.stop();
        self.pages.stop();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name_of(name)
            .and_then(|name| self.attempt_on(req, &[parent], |who| self.tree.lookup(who, parent.0, &name)));
        self.entry(reply, found);
    }

    fn forget(&self, _req: &Request, node: INodeNo, count: u64) {
        self.tree.forget(node.0, count);
    }

    fn getattr(&self, req: &Request, node: INodeNo, file: Option<FileHandle>, reply: ReplyAttr) {
        let handle = self.handle(file);
        let found = self.attempt_on(req, &named(node, handle), |who| self.tree.stat(who, node.0, handle));
        self.attributes(reply, found);
    }

    fn setattr(
        &self,
        req: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        bytes: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        file: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_mac: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            bytes,
            accessed: when(accessed),
            modified: when(modified),
        };
        let handle = self.handle(file);
        let named = named(node, handle);
        let mut done = self.attempt_on(req, &named, |who| self.tree.set(who, node.0, handle, &changes));
        if let Ok(stat) = &done
            && bytes.is_some()
            && mode.is_none()
            && without_set_id(stat.mode).is_some()
        {
            done = match self.drop_set_id(node.0, handle, req.uid()) {
                Ok(Some(stat)) => Ok(stat),
                Ok(None) => done,
                Err(errno) => Err(errno),
            };
        }
        self.attributes(reply, done);
    }

    fn readlink(&self, req: &Request, node: INodeNo, reply: ReplyData) {
        data(reply, self.attempt_on(req, &[node], |who| self.tree.read_link(who, node.0)));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = Kind::of((mode >> 12) as u8).filter(|kind| *kind != Kind::Directory).ok_or(Errno::EINVAL);
        let found = kind.and_then(|kind| {
            let name = name_of(name)?;
            self.attempt_on(req, &[parent], |who| {
                self.tree.make_node(who, parent.0, &name, kind, mode & 0o7777, device)
            })
        });
        self.entry(reply, found);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let found = name_of(name).and_then(|name| {
            self.attempt_on(req, &[parent], |who| {
                self.tree.make_directory(who, parent.0, &name, mode & 0o7777)
            })
        });
        self.entry(reply, found);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = name_of(name)
            .and_then(|name| self.attempt_on(req, &[parent], |who| self.tree.unlink(who, parent.0, &name)));
        empty(reply, done);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = name_of(name).and_then(|name| {
            self.attempt_on(req, &[parent], |who| self.tree.remove_directory(who, parent.0, &name))
        });
        empty(reply, done);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let found = name_of(name).and_then(|name| {
            self.attempt_on(req, &[parent], |who| self.tree.make_link(who, parent.0, &name, target))
        });
        self.entry(reply, found);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = name_of(name).and_then(|name| {
            let new_name = name_of(new_name)?;
            self.attempt_on(req, &[parent, new_parent], |who| {
                self.tree.rename(who, parent.0, &name, new_parent.0, &new_name, flags.bits())
            })
        });
        empty(reply, done);
    }

    fn link(&self, req: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name_of(name).and_then(|name| {
            self.attempt_on(req, &[node, parent], |who| self.tree.link(who, node.0, parent.0, &name))
        });
        self.entry(reply, found);
    }

    fn open(&self, req: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self
            .attempt_on(req, &[node], |who| open_with(&*self.tree, who, node.0, flags.0))
            .and_then(|opened| {
                let may_have_set_id = opened.mode.is_none_or(|mode| without_set_id(mode).is_some());
                if how(flags.0).write
                    && may_have_set_id
                    && let Err(errno) = self.drop_set_id(node.0, Some(opened.handle), req.uid())
                {
                    self.tree.release(opened.handle);
                    return Err(errno);
                }
                Ok(opened)
            });
        match opened {
            Ok(opened) => {
                if opened.stale
                    && let Some(notifier) = self.notifier.get()
                {
                    // Attributes only. The kernel does not know it: nothing to forget.
                    _ = notifier.inval_inode(node, -1, 0);
                }
                let Answer { file, flags, backing } =
                    self.opens.enter(node.0, opened, |local| reply.open_backing(local));
                match backing {
                    Some(backing) => reply.opened_passthrough(file, flags, &backing),
                    None => reply.opened(file, flags),
                }
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = name_of(name).and_then(|name| {
            self.attempt_on(req, &[parent], |who| {
                self.tree.create(who, parent.0, &name, mode & 0o7777, how(flags))
            })
        });
        match made {
            Ok((stat, opened)) => {
                let Answer { file, flags, backing } =
                    self.opens.enter(stat.node, opened, |local| reply.open_backing(local));
                let attr = attr(&stat);
                match backing {
                    Some(backing) => {
                        reply.created_passthrough(&self.fresh, &attr, Generation(0), file, flags, &backing);
                    }
                    None => reply.created(&self.fresh, &attr, Generation(0), file, flags),
                }
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.file(file).and_then(|file| {
            // A program's own read has an owner. What has none fills pages.
            if owner.is_none() && !file.is_cached {
                self.pages.note(node.0);
            }
            let mut buffer = vec![0; size as usize];
            let bytes = bytes::read(&*self.tree, &file, offset, &mut buffer)?;
            buffer.truncate(bytes);
            Ok(buffer)
        });
        data(reply, read);
    }

    fn write(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let append = flags.0 & libc::O_APPEND != 0;
        let wrote = self.file(file).and_then(|file| {
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_set_id(node.0, Some(file.handle), req.uid())?;
            }
            bytes::write(&*self.tree, &file, offset, bytes, append)
        });
        // The kernel keeps the mode, and leaves it to the tree to take bits of it away.
        if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
            && self.tree.drops_set_id()
            && let Some(notifier) = self.notifier.get()
        {
            _ = notifier.inval_inode(node, -1, 0);
        }
        match wrote {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn flush(&self, _req: &Request, node: INodeNo, file: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let done = self.file(file).and_then(|file| {
            self.locks.close(&*self.tree, node.0, file.handle, owner.0);
            self.tree.flush(file.handle)
        });
        empty(reply, done);
    }

    fn release(
        &self,
        _req: &Request,
        node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(file) = self.opens.leave(file) {
            self.locks.release(&*self.tree, node.0, file.handle, owner.map(|owner| owner.0));
            self.tree.release(file.handle);
        }
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _node: INodeNo, file: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let done = self.file(file).and_then(|file| {
            if let Some(local) = &file.local {
                local_io::sync(local, data_only)?;
            }
            self.tree.sync(file.handle, data_only)
        });
        empty(reply, done);
    }

    fn opendir(&self, req: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.attempt_on(req, &[node], |who| self.tree.open_directory(who, node.0)) {
            Ok(handle) => reply.opened(self.opens.enter_directory(handle), FopenFlags::empty()),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(handle) = self.opens.directory(file) else { return reply.error(fuser::Errno::EBADF) };
        if offset < BEHIND_DOT && reply.add(node, BEHIND_DOT, FileType::Directory, ".")
            || offset < BEHIND_DOT_DOT && reply.add(node, BEHIND_DOT_DOT, FileType::Directory, "..")
        {
            return reply.ok();
        }
        let cookie = if offset <= BEHIND_DOT_DOT { 0 } else { offset };
        let listed = self.tree.list(handle, cookie, false, &mut |entry| {
            let name = OsStr::from_bytes(entry.name.as_bytes());
            !reply.add(INodeNo(entry.node), entry.cookie, file_type(entry.kind), name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let Some(handle) = self.opens.directory(file) else { return reply.error(fuser::Errno::EBADF) };
        if offset < BEHIND_DOT_DOT {
            let own = match self.attempt(req, |who| self.tree.stat(who, node.0, None)) {
                Ok(stat) => attr(&stat),
                Err(errno) => return reply.error(error(errno)),
            };
            // The kernel takes no lookup of these two.
            if offset < BEHIND_DOT && reply.add(node, BEHIND_DOT, ".", &self.fresh, &own, Generation(0))
                || reply.add(node, BEHIND_DOT_DOT, "..", &self.fresh, &own, Generation(0))
            {
                return reply.ok();
            }
        }
        let cookie = if offset <= BEHIND_DOT_DOT { 0 } else { offset };
        let listed = self.tree.list(handle, cookie, true, &mut |entry| {
            let stat = match entry.stat {
                Some(stat) => Ok(stat),
                None => self.attempt(req, |who| self.tree.stat(who, entry.node, None)),
            };
            // An entry whose inode is gone meanwhile is left out.
            let Ok(stat) = stat else { return true };
            let name = OsStr::from_bytes(entry.name.as_bytes());
            let attr = attr(&stat);
            if reply.add(INodeNo(stat.node), entry.cookie, name, &self.fresh, &attr, Generation(0)) {
                return false;
            }
            true
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if let Some(handle) = self.opens.leave_directory(file) {
            self.tree.release_directory(handle);
        }
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _node: INodeNo,
        file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let handle = self.opens.directory(file).ok_or(Errno::EBADF);
        empty(reply, handle.and_then(|handle| self.tree.sync_directory(handle)));
    }

    fn statfs(&self, _req: &Request, node: INodeNo, reply: ReplyStatfs) {
        const BLOCK: u64 = 4096;
        match self.tree.space(node.0) {
            Ok(space) => {
                let free = space.bytes_free / BLOCK;
                reply.statfs(
                    space.bytes / BLOCK,
                    free,
                    free,
                    space.inodes,
                    space.inodes_free,
                    BLOCK as u32,
                    255,
                    BLOCK as u32,
                );
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let done = name_of(name).and_then(|name| {
            self.attempt_on(req, &[node], |who| self.tree.set_xattr(who, node.0, &name, value, flags))
        });
        empty(reply, done);
    }

    fn getxattr(&self, req: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = name_of(name)
            .and_then(|name| self.attempt_on(req, &[node], |who| self.tree.get_xattr(who, node.0, &name)));
        xattr(reply, size, found);
    }

    fn listxattr(&self, req: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.attempt_on(req, &[node], |who| self.tree.list_xattr(who, node.0));
        let joined = names.map(|names| {
            names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect::<Vec<u8>>()
        });
        xattr(reply, size, joined);
    }

    fn removexattr(&self, req: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = name_of(name)
            .and_then(|name| self.attempt_on(req, &[node], |who| self.tree.remove_xattr(who, node.0, &name)));
        empty(reply, done);
    }

    fn getlk(
        &self,
        _req: &Request,
        _node: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let owner = Owner { number: owner.0, pid, whole: false };
        let found = self.file(file).and_then(|file| {
            self.tree.test_lock(file.handle, owner, locks::range(start, end), locks::lock_of(kind)?)
        });
        match found {
            Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
            Ok(Some(Blocking { range, exclusive, pid })) => {
                let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.locked(range.start, range.end.min(i64::MAX as u64), kind, pid);
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn setlk(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (file, lock) = match (self.file(file), locks::lock_of(kind)) {
            (Ok(file), Ok(lock)) => (file, lock),
            (Err(errno), _) | (_, Err(errno)) => return reply.error(error(errno)),
        };
        let asked = Asked {
            node: node.0,
            handle: file.handle,
            owner: Owner { number: owner.0, pid, whole: false },
            range: locks::range(start, end),
            lock,
            tid: req.pid(),
        };
        if sleep && lock != Lock::Unlock {
            self.locks.wait(&self.tree, asked, req.uid(), |done| empty(reply, done));
        } else {
            empty(reply, self.locks.set(&*self.tree, asked));
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.file(file).and_then(|file| match &file.local {
            Some(local) => local_io::allocate(local, mode, offset, bytes),
            None => self.tree.allocate(file.handle, mode, offset, bytes),
        });
        empty(reply, done);
    }

    fn lseek(
        &self,
        _req: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.file(file).and_then(|file| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let data = match whence {
                libc::SEEK_DATA => true,
                libc::SEEK_HOLE => false,
                _ => return Err(Errno::EINVAL),
            };
            match &file.local {
                Some(local) => local_io::seek(local, offset, data),
                None => self.tree.seek(file.handle, offset, data),
            }
        });
        match found {
            Ok(offset) => reply.offset(offset as i64),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _node_in: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _node_out: INodeNo,
        to: FileHandle,
        to_offset: u64,
        bytes: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.file(from).and_then(|from| {
            let to = self.file(to)?;
            bytes::copy(&*self.tree, (&from, from_offset), (&to, to_offset), bytes.min(1 << 30))
        });
        match copied {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(error(errno)),
        }
    }
}
