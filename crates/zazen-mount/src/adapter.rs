//! FUSE over a [`Tree`]: one call for each request of the kernel.
//!
//! - The kernel checks permissions (`default_permissions`), and the tree checks again.
//! - Attributes and names stay in the kernel for at most [`Tree::fresh_for`].
//! - No write-back cache: what `write` returned is in the tree.
//! - The set-id bits of a file go when somebody other than root opens it for writing, not with the
//!   first write: the kernel itself writes files of this machine, and tells nobody.
//! - The thread that read a request serves it, or another one does: [`crate::turns`] says which.

use crate::bytes;
use crate::caller::Caller;
use crate::convert::{error, name_of, when};
use crate::local_io;
use crate::locks::{self, Asked};
use crate::pages::Keeper;
use crate::serving::{Serving, Write, data, empty, named, wrote, xattr};
use crate::tree::{Blocking, Changes, Errno, Kind, Lock, Owner, Tree};
use crate::turns::Turns;
use fuser::{
    FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// The most bytes of one read or write request.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account (read-ahead and the like).
const BACKGROUND_MAX: u16 = 64;

/// Serves a tree to the kernel.
pub(crate) struct Adapter {
    serving: Arc<Serving>,
    turns: Arc<Turns>,
    try_passthrough: bool,
}

impl Adapter {
    /// `notifier` is set when there is one: after the mount. `readers` is how many threads will
    /// read requests.
    pub(crate) fn new(
        tree: Arc<dyn Tree>,
        try_passthrough: bool,
        notifier: Arc<OnceLock<Notifier>>,
        readers: usize,
    ) -> Adapter {
        let (serving, turns) = (Serving::new(tree, notifier), Turns::new(readers));
        Adapter { serving: Arc::new(serving), turns: Arc::new(turns), try_passthrough }
    }

    /// Has the kernel forget pages that others may have written.
    pub(crate) fn keeper(&self) -> Keeper {
        let Serving { pages, opens, tree, .. } = &*self.serving;
        Keeper { pages: Arc::clone(pages), tree: Arc::clone(tree), opens: Arc::clone(opens) }
    }

    /// Has a request served, here or by another thread. It names this open file or directory.
    fn serve_on(
        &self,
        req: &Request,
        file: Option<FileHandle>,
        work: impl FnOnce(&Serving, Caller) + Send + 'static,
    ) {
        let caller = Caller::of(req);
        match self.turns.serve_here() {
            Some(_here) => work(&self.serving, caller),
            None => {
                let serving = Arc::clone(&self.serving);
                self.turns.hand_over(self.whose(caller, file), 0, move || work(&serving, caller));
            }
        }
    }

    /// The same for a request that names no open file.
    fn serve(&self, req: &Request, work: impl FnOnce(&Serving, Caller) + Send + 'static) {
        self.serve_on(req, None, work);
    }

    /// Whose request it is. The kernel itself closes files and writes back pages; that is work of
    /// the user who opened the file.
    fn whose(&self, caller: Caller, file: Option<FileHandle>) -> u32 {
        let opener = |file| self.serving.opens.opener(file);
        let opener = if caller.is_the_kernel() { file.and_then(opener) } else { None };
        opener.unwrap_or(caller.uid)
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
            self.serving.opens.allow_passthrough();
        }
        // A refused value leaves the kernel's own, which also serves.
        _ = config.set_max_write(IO_BYTES_MAX);
        _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.serving.locks.stop();
        self.serving.pages.stop();
        // Files are closed when their mount has ended.
        self.turns.finish();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let find = |name| to.attempt_on(caller, &[parent], |who| to.tree.lookup(who, parent.0, &name));
            to.entry(reply, name.and_then(find));
        });
    }

    fn forget(&self, _req: &Request, node: INodeNo, count: u64) {
        // Not counted: no user waits for it, and it asks nobody.
        self.serving.tree.forget(node.0, count);
    }

    fn getattr(&self, req: &Request, node: INodeNo, file: Option<FileHandle>, reply: ReplyAttr) {
        self.serve_on(req, file, move |to, caller| {
            let handle = to.handle(file);
            let stat = to.attempt_on(caller, &named(node, handle), |who| to.tree.stat(who, node.0, handle));
            to.attributes(reply, stat);
        });
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
        let may_drop_set_id = bytes.is_some() && mode.is_none();
        self.serve_on(req, file, move |to, caller| {
            let handle = to.handle(file);
            to.attributes(reply, to.set(caller, node, handle, &changes, may_drop_set_id));
        });
    }

    fn readlink(&self, req: &Request, node: INodeNo, reply: ReplyData) {
        self.serve(req, move |to, caller| {
            data(reply, to.attempt_on(caller, &[node], |who| to.tree.read_link(who, node.0)));
        });
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
        let named = kind.and_then(|kind| Ok((kind, name_of(name)?)));
        self.serve(req, move |to, caller| {
            let made = named.and_then(|(kind, name)| {
                to.attempt_on(caller, &[parent], |who| {
                    to.tree.make_node(who, parent.0, &name, kind, mode & 0o7777, device)
                })
            });
            to.entry(reply, made);
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let made = name.and_then(|name| {
                to.attempt_on(caller, &[parent], |who| {
                    to.tree.make_directory(who, parent.0, &name, mode & 0o7777)
                })
            });
            to.entry(reply, made);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let remove = |name| to.attempt_on(caller, &[parent], |who| to.tree.unlink(who, parent.0, &name));
            empty(reply, name.and_then(remove));
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let done = name.and_then(|name| {
                to.attempt_on(caller, &[parent], |who| to.tree.remove_directory(who, parent.0, &name))
            });
            empty(reply, done);
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target) = (name_of(name), target.as_os_str().as_bytes().to_vec());
        self.serve(req, move |to, caller| {
            let made = name.and_then(|name| {
                to.attempt_on(caller, &[parent], |who| to.tree.make_link(who, parent.0, &name, &target))
            });
            to.entry(reply, made);
        });
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
        let names = name_of(name).and_then(|name| Ok((name, name_of(new_name)?)));
        self.serve(req, move |to, caller| {
            let done = names.and_then(|(name, new_name)| {
                to.attempt_on(caller, &[parent, new_parent], |who| {
                    to.tree.rename(who, parent.0, &name, new_parent.0, &new_name, flags.bits())
                })
            });
            empty(reply, done);
        });
    }

    fn link(&self, req: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let made = name.and_then(|name| {
                to.attempt_on(caller, &[node, parent], |who| to.tree.link(who, node.0, parent.0, &name))
            });
            to.entry(reply, made);
        });
    }

    fn open(&self, req: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.serve(req, move |to, caller| to.open(caller, node, flags, reply));
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
        let name = name_of(name);
        self.serve(req, move |to, caller| to.create(caller, parent, name, mode & 0o7777, flags, reply));
    }

    fn read(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve_on(req, Some(file), move |to, _| {
            let read = to.file(file).and_then(|file| {
                // A program's own read has an owner. What has none fills pages.
                if owner.is_none() && !file.is_cached {
                    to.pages.note(node.0);
                }
                let mut buffer = vec![0; size as usize];
                let bytes = bytes::read(&*to.tree, &file, offset, &mut buffer)?;
                buffer.truncate(bytes);
                Ok(buffer)
            });
            data(reply, read);
        });
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
        let write = Write { node, file, offset, append: flags.0 & libc::O_APPEND != 0, flags: write_flags };
        let caller = Caller::of(req);
        if let Some(_here) = self.turns.serve_here() {
            return wrote(reply, self.serving.write(caller, write, bytes));
        }
        let uid = self.whose(caller, Some(file));
        // The kernel counts pages that it writes back as written, even if the write was short.
        let whole = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let room = self.turns.room_for(uid, bytes.len(), whole);
        let (serving, bytes) = (Arc::clone(&self.serving), bytes[..room].to_vec());
        self.turns.hand_over(uid, room, move || wrote(reply, serving.write(caller, write, &bytes)));
    }

    fn flush(&self, req: &Request, node: INodeNo, file: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.serve_on(req, Some(file), move |to, _| {
            let done = to.file(file).and_then(|file| {
                to.locks.close(&*to.tree, node.0, file.handle, owner.0);
                to.tree.flush(file.handle)
            });
            empty(reply, done);
        });
    }

    fn release(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.serve_on(req, Some(file), move |to, _| {
            if let Some(file) = to.opens.leave(file) {
                to.locks.release(&*to.tree, node.0, file.handle, owner.map(|owner| owner.0));
                to.tree.release(file.handle);
            }
            reply.ok();
        });
    }

    fn fsync(&self, req: &Request, _node: INodeNo, file: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.serve_on(req, Some(file), move |to, _| {
            let done = to.file(file).and_then(|file| {
                if let Some(local) = &file.local {
                    local_io::sync(local, data_only)?;
                }
                to.tree.sync(file.handle, data_only)
            });
            empty(reply, done);
        });
    }

    fn opendir(&self, req: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.serve(req, move |to, caller| {
            match to.attempt_on(caller, &[node], |who| to.tree.open_directory(who, node.0)) {
                Ok(handle) => {
                    let file = to.opens.enter_directory(handle, caller.uid);
                    reply.opened(file, FopenFlags::empty());
                }
                Err(errno) => reply.error(error(errno)),
            }
        });
    }

    fn readdir(&self, req: &Request, node: INodeNo, file: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.serve_on(req, Some(file), move |to, _| to.list(node, file, offset, reply));
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.serve_on(req, Some(file), move |to, caller| to.list_plus(caller, node, file, offset, reply));
    }

    fn releasedir(
        &self,
        req: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.serve_on(req, Some(file), move |to, _| {
            if let Some(handle) = to.opens.leave_directory(file) {
                to.tree.release_directory(handle);
            }
            reply.ok();
        });
    }

    fn fsyncdir(&self, req: &Request, _node: INodeNo, file: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.serve_on(req, Some(file), move |to, _| {
            let handle = to.opens.directory(file).ok_or(Errno::EBADF);
            empty(reply, handle.and_then(|handle| to.tree.sync_directory(handle)));
        });
    }

    fn statfs(&self, req: &Request, node: INodeNo, reply: ReplyStatfs) {
        self.serve(req, move |to, _| to.space(node, reply));
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
        let (name, value) = (name_of(name), value.to_vec());
        self.serve(req, move |to, caller| {
            let done = name.and_then(|name| {
                to.attempt_on(caller, &[node], |who| to.tree.set_xattr(who, node.0, &name, &value, flags))
            });
            empty(reply, done);
        });
    }

    fn getxattr(&self, req: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let find = |name| to.attempt_on(caller, &[node], |who| to.tree.get_xattr(who, node.0, &name));
            xattr(reply, size, name.and_then(find));
        });
    }

    fn listxattr(&self, req: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(req, move |to, caller| {
            let names = to.attempt_on(caller, &[node], |who| to.tree.list_xattr(who, node.0));
            let joined = names.map(|names| {
                names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect::<Vec<u8>>()
            });
            xattr(reply, size, joined);
        });
    }

    fn removexattr(&self, req: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name_of(name);
        self.serve(req, move |to, caller| {
            let remove =
                |name| to.attempt_on(caller, &[node], |who| to.tree.remove_xattr(who, node.0, &name));
            empty(reply, name.and_then(remove));
        });
    }

    fn getlk(
        &self,
        req: &Request,
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
        self.serve_on(req, Some(file), move |to, _| {
            let found = to.file(file).and_then(|file| {
                to.tree.test_lock(file.handle, owner, locks::range(start, end), locks::lock_of(kind)?)
            });
            match found {
                Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
                Ok(Some(Blocking { range, exclusive, pid })) => {
                    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                    reply.locked(range.start, range.end.min(i64::MAX as u64), kind, pid);
                }
                Err(errno) => reply.error(error(errno)),
            }
        });
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
        self.serve_on(req, Some(file), move |to, caller| {
            let (file, lock) = match (to.file(file), locks::lock_of(kind)) {
                (Ok(file), Ok(lock)) => (file, lock),
                (Err(errno), _) | (_, Err(errno)) => return reply.error(error(errno)),
            };
            let asked = Asked {
                node: node.0,
                handle: file.handle,
                owner: Owner { number: owner.0, pid, whole: false },
                range: locks::range(start, end),
                lock,
                tid: caller.tid,
            };
            if sleep && lock != Lock::Unlock {
                to.locks.wait(&to.tree, asked, caller.uid, |done| empty(reply, done));
            } else {
                empty(reply, to.locks.set(&*to.tree, asked));
            }
        });
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
        req: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.serve_on(req, Some(file), move |to, _| {
            let done = to.file(file).and_then(|file| match &file.local {
                Some(local) => local_io::allocate(local, mode, offset, bytes),
                None => to.tree.allocate(file.handle, mode, offset, bytes),
            });
            empty(reply, done);
        });
    }

    fn lseek(
        &self,
        req: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.serve_on(req, Some(file), move |to, _| {
            let found = to.file(file).and_then(|file| {
                let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let data = match whence {
                    libc::SEEK_DATA => true,
                    libc::SEEK_HOLE => false,
                    _ => return Err(Errno::EINVAL),
                };
                match &file.local {
                    Some(local) => local_io::seek(local, offset, data),
                    None => to.tree.seek(file.handle, offset, data),
                }
            });
            match found {
                Ok(offset) => reply.offset(offset as i64),
                Err(errno) => reply.error(error(errno)),
            }
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _node_in: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _node_out: INodeNo,
        to_file: FileHandle,
        to_offset: u64,
        bytes: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.serve_on(req, Some(to_file), move |to, _| {
            let copied = to.file(from).and_then(|from| {
                let into = to.file(to_file)?;
                bytes::copy(&*to.tree, (&from, from_offset), (&into, to_offset), bytes.min(1 << 30))
            });
            wrote(reply, copied.map(|bytes| bytes as usize));
        });
    }
}
