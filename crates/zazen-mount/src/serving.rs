//! What requests are served with: the tree, and what the adapter keeps beside it.
//!
//! Any thread may serve a request, while others serve others ([`crate::turns`]).

use crate::bytes;
use crate::caller::{Caller, Callers};
use crate::convert::{attr, error, how, without_set_id};
use crate::locks::Locks;
use crate::opens::{Answer, OpenFile, Opens, open_with};
use crate::pages::Pages;
use crate::tree::{Changes, Credentials, Errno, InodeStat, Kind, Name, Node, Result, Tree};
use fuser::{
    FileHandle, Generation, INodeNo, Notifier, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, WriteFlags,
};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What serves requests.
pub(crate) struct Serving {
    pub(crate) tree: Arc<dyn Tree>,
    callers: Callers,
    pub(crate) opens: Arc<Opens>,
    pub(crate) pages: Arc<Pages>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) fresh: Duration,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
}

/// Which bytes of an open file are written, and how.
#[derive(Clone, Copy)]
pub(crate) struct Write {
    pub(crate) node: INodeNo,
    pub(crate) file: FileHandle,
    pub(crate) offset: u64,
    pub(crate) append: bool,
    pub(crate) flags: WriteFlags,
}

impl Serving {
    pub(crate) fn new(tree: Arc<dyn Tree>, notifier: Arc<OnceLock<Notifier>>) -> Serving {
        let fresh = tree.fresh_for();
        Serving {
            tree,
            callers: Callers::default(),
            opens: Arc::new(Opens::new()),
            pages: Arc::default(),
            locks: Arc::default(),
            fresh,
            notifier,
        }
    }

    /// Runs `work` as the caller. A refusal counts only with groups that were just read.
    pub(crate) fn attempt<T>(&self, caller: Caller, work: impl Fn(&Credentials) -> Result<T>) -> Result<T> {
        let (who, may_be_old) = self.callers.identity(caller);
        match work(&who) {
            Err(Errno::EACCES | Errno::EPERM) if may_be_old => work(&self.callers.read_anew(caller)),
            done => done,
        }
    }

    /// The same, if the caller may name these inodes.
    pub(crate) fn attempt_on<T>(
        &self,
        caller: Caller,
        nodes: &[INodeNo],
        work: impl Fn(&Credentials) -> Result<T>,
    ) -> Result<T> {
        self.attempt(caller, |who| {
            nodes.iter().try_for_each(|node| self.tree.vet(who, node.0))?;
            work(who)
        })
    }

    pub(crate) fn entry(&self, reply: ReplyEntry, found: Result<InodeStat>) {
        match found {
            Ok(stat) => {
                reply.entry_with_ttls(&self.keep(&stat), &self.fresh, &attr(&stat), Generation(0));
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    /// How long the kernel may keep these attributes.
    pub(crate) fn keep(&self, stat: &InodeStat) -> Duration {
        if stat.keep { self.fresh } else { Duration::ZERO }
    }

    pub(crate) fn attributes(&self, reply: ReplyAttr, found: Result<InodeStat>) {
        match found {
            Ok(stat) => reply.attr(&self.keep(&stat), &attr(&stat)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    pub(crate) fn file(&self, file: FileHandle) -> Result<Arc<OpenFile>> {
        self.opens.get(file).ok_or(Errno::EBADF)
    }

    pub(crate) fn handle(&self, file: Option<FileHandle>) -> Option<u64> {
        file.and_then(|file| self.opens.get(file)).map(|file| file.handle)
    }

    /// Takes the set-id bits away from a file that somebody other than root writes.
    pub(crate) fn drop_set_id(&self, node: Node, handle: Option<u64>, uid: u32) -> Result<Option<InodeStat>> {
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

    /// Changes attributes, and takes the set-id bits away if that is so wished and must be.
    pub(crate) fn set(
        &self,
        caller: Caller,
        node: INodeNo,
        handle: Option<u64>,
        changes: &Changes,
        may_drop_set_id: bool,
    ) -> Result<InodeStat> {
        let set = |who: &Credentials| self.tree.set(who, node.0, handle, changes);
        let stat = self.attempt_on(caller, &named(node, handle), set)?;
        if may_drop_set_id && without_set_id(stat.mode).is_some() {
            return Ok(self.drop_set_id(node.0, handle, caller.uid)?.unwrap_or(stat));
        }
        Ok(stat)
    }

    pub(crate) fn open(&self, caller: Caller, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self
            .attempt_on(caller, &[node], |who| open_with(&*self.tree, who, node.0, flags.0))
            .and_then(|opened| {
                let may_have_set_id = opened.mode.is_none_or(|mode| without_set_id(mode).is_some());
                if how(flags.0).write
                    && may_have_set_id
                    && let Err(errno) = self.drop_set_id(node.0, Some(opened.handle), caller.uid)
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
                let register = |local: BorrowedFd<'_>| reply.open_backing(local);
                let Answer { file, flags, backing } = self.opens.enter(node.0, opened, caller.uid, register);
                match backing {
                    Some(backing) => reply.opened_passthrough(file, flags, &backing),
                    None => reply.opened(file, flags),
                }
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: Result<Name>,
        mode: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = name.and_then(|name| {
            let create = |who: &Credentials| self.tree.create(who, parent.0, &name, mode, how(flags));
            self.attempt_on(caller, &[parent], create)
        });
        match made {
            Ok((stat, opened)) => {
                let register = |local: BorrowedFd<'_>| reply.open_backing(local);
                let Answer { file, flags, backing } =
                    self.opens.enter(stat.node, opened, caller.uid, register);
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

    pub(crate) fn write(&self, caller: Caller, write: Write, bytes: &[u8]) -> Result<usize> {
        let ends_set_id = write.flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let wrote = self.file(write.file).and_then(|file| {
            if ends_set_id {
                self.drop_set_id(write.node.0, Some(file.handle), caller.uid)?;
            }
            bytes::write(&*self.tree, &file, write.offset, bytes, write.append)
        });
        // The kernel keeps the mode, and leaves it to the tree to take bits of it away.
        if ends_set_id
            && self.tree.drops_set_id()
            && let Some(notifier) = self.notifier.get()
        {
            _ = notifier.inval_inode(write.node, -1, 0);
        }
        wrote
    }
}

/// The inode that a request names: none if it names an open file.
pub(crate) fn named(node: INodeNo, handle: Option<u64>) -> Vec<INodeNo> {
    if handle.is_some() { Vec::new() } else { vec![node] }
}

pub(crate) fn empty(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(error(errno)),
    }
}

pub(crate) fn data(reply: ReplyData, found: Result<Vec<u8>>) {
    match found {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(error(errno)),
    }
}

pub(crate) fn xattr(reply: ReplyXattr, size: u32, found: Result<Vec<u8>>) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(error(errno)),
    }
}

pub(crate) fn wrote(reply: ReplyWrite, wrote: Result<usize>) {
    match wrote {
        Ok(bytes) => reply.written(bytes as u32),
        Err(errno) => reply.error(error(errno)),
    }
}
