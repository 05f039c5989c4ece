//! Listings of directories, as the kernel has them, and space.

use crate::caller::Caller;
use crate::convert::{attr, error, file_type};
use crate::serving::Serving;
use fuser::{FileHandle, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, ReplyStatfs};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Offsets of a listing: 0 the start, then `.`, `..`; the tree's cookies are larger.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

impl Serving {
    pub(crate) fn list(&self, node: INodeNo, file: FileHandle, offset: u64, mut reply: ReplyDirectory) {
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

    /// The same with attributes: each entry counts as a lookup.
    pub(crate) fn list_plus(
        &self,
        caller: Caller,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let Some(handle) = self.opens.directory(file) else { return reply.error(fuser::Errno::EBADF) };
        if offset < BEHIND_DOT_DOT {
            let own = match self.attempt(caller, |who| self.tree.stat(who, node.0, None)) {
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
                None => self.attempt(caller, |who| self.tree.stat(who, entry.node, None)),
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

    pub(crate) fn space(&self, node: INodeNo, reply: ReplyStatfs) {
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
}
