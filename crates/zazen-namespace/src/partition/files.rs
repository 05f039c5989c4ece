//! Opening, committing and closing files.

use super::change::Change;
use super::chunks::LONG_AGO_NS;
use super::directories::check_mode;
use super::event::Action;
use super::inode::Inode;
use super::machine::{Asking, Partition, Stop};
use super::permission::{self, READ, WRITE};
use crate::attributes::{ARCHIVE, Kind};
use crate::operation::{Answer, Commit, Copied, Grant, Mode, Open, Release, TakeOver};
use crate::{Errno, Incarnation, InodeId, NodeNo, Planted};

type Answered = Result<Answer, Stop>;

/// The most nodes that have a copy of a file.
const COPIES_MAX: usize = 16;

impl Partition {
    /// Opens an inode.
    pub(super) fn open(&mut self, call: &Asking<'_>, open: &Open) -> Answered {
        self.open_inode(call, open.id, &open.mode)
    }

    pub(super) fn open_inode(&mut self, call: &Asking<'_>, id: InodeId, mode: &Mode) -> Answered {
        check_mode(mode)?;
        let serial = id.serial();
        let mut inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        let writes = mode.write || mode.truncate;
        match inode.kind {
            Kind::File => {}
            Kind::Directory if writes => return Err(Errno::EISDIR.into()),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        let bits = if mode.read { READ } else { 0 } | if writes { WRITE } else { 0 };
        permission::check(call.caller, &inode, bits)?;
        let is_chunked = self.is_chunked(serial);
        if is_chunked && !call.knows_chunks {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let before = inode;
        if mode.truncate {
            self.truncate(call, id, &mut inode);
        }
        if mode.write && inode.generation != 0 {
            // A copy that is being made counts no more: see `copied`.
            inode.version = inode.version.wrapping_add(1);
        }
        if mode.write && inode.generation == 0 && !is_chunked {
            (inode.holder_or_device, inode.generation) = (call.place.0, self.next_generation(0));
        }
        if inode != before {
            inode.version = inode.version.wrapping_add(1);
            self.change(&Change::Put { serial, inode });
        }
        if mode.truncate {
            self.cut_chunks(serial, 0);
            self.forget_explicit_time(serial);
            self.chunk_changed(call, serial, call.now_ns);
        }
        self.add_open(call, serial, mode);
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(Answer::Grant(Grant { attributes, created: false }))
    }

    /// Drops a file's bytes. While nobody has it open, the asking node becomes its holder.
    fn truncate(&mut self, call: &Asking<'_>, id: InodeId, inode: &mut Inode) {
        let copies = self.forget_copies(id.serial());
        let open = self.tables.opens_of(id.serial()).next().is_some();
        if let Some((holder, generation)) = inode.place().filter(|_| !open) {
            self.drop_objects(id, generation, copies.into_iter().chain([holder]));
            let next = self.next_generation(generation);
            (inode.holder_or_device, inode.generation) = (call.place.0, next);
        }
        (inode.bytes, inode.blocks_or_parent) = (0, 0);
        (inode.modified_ns, inode.changed_ns) = (call.now_ns, call.now_ns);
        if call.caller.uid != 0 {
            inode.mode = permission::without_privileges(call.caller, inode);
        }
    }

    /// The generation after `before`; 0 stands for none.
    ///
    /// It begins with the epoch. If the end of the log is lost, serial numbers are given again, but
    /// in a later epoch: a new file never has the name of an old object.
    pub(super) fn next_generation(&self, before: u64) -> u64 {
        let first = (self.epoch.0 << 32) | 1;
        before.saturating_add(1).max(first)
    }

    pub(super) fn add_open(&mut self, call: &Asking<'_>, serial: u64, mode: &Mode) {
        let (node, incarnation) = (call.node, call.incarnation);
        let before = self.tables.opens.get(&(serial, node, incarnation)).copied().unwrap_or_default();
        let readers = before.readers.saturating_add(u32::from(!mode.write));
        let writers = before.writers.saturating_add(u32::from(mode.write));
        self.change(&Change::Opens { serial, node, incarnation, readers, writers });
    }

    /// Takes what the holder says of a file's bytes.
    ///
    /// `anew`: the bytes may be others, though nothing else is.
    pub(super) fn commit(&mut self, call: &Asking<'_>, commit: &Commit, anew: bool) -> Answered {
        let serial = commit.id.serial();
        let mut inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        let is_its = inode.place() == Some((call.node, commit.generation));
        if !is_its && !self.has(Planted::CommitAnyGeneration) {
            return Err(Errno::ESTALE.into());
        }
        if commit.bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.fits_chunk(serial, commit.bytes)?;
        let before = inode;
        (inode.bytes, inode.blocks_or_parent) = (commit.bytes, commit.blocks);
        let set_later = self.tables.times_set.get(&serial).is_some_and(|set| *set >= commit.modified_ns);
        if !set_later {
            inode.modified_ns = commit.modified_ns;
        }
        // Where somebody has set a later time, nothing says whether there was a write.
        if inode != before || set_later || anew {
            self.forget_copies(serial);
            if call.caller.uid != 0 {
                inode.mode = permission::without_privileges(call.caller, &inode);
            }
            inode.changed_ns = call.now_ns;
            inode.version = inode.version.wrapping_add(1);
            self.change(&Change::Put { serial, inode });
            self.chunk_changed(call, serial, inode.modified_ns);
        }
        Ok(Answer::Done)
    }

    /// Ends opens of the asking node.
    pub(super) fn release(&mut self, call: &Asking<'_>, release: &Release) -> Answered {
        let serial = release.id.serial();
        let key = (serial, call.node, call.incarnation);
        // What is open of a chunk ends with the chunk.
        self.tables.row(serial).ok_or(Errno::EBADF)?;
        let opens = self.tables.opens.get(&key).copied().ok_or(Errno::EBADF)?;
        let readers = opens.readers.checked_sub(release.readers).ok_or(Errno::EBADF)?;
        let writers = opens.writers.checked_sub(release.writers).ok_or(Errno::EBADF)?;
        if release.commit.as_ref().is_some_and(|commit| commit.id != release.id) {
            return Err(Errno::EINVAL.into());
        }
        let committed = release.commit.as_ref().map(|commit| self.commit(call, commit, false));
        if readers == 0 && writers == 0 {
            self.close(call.now_ns, serial, call.node, call.incarnation);
        } else {
            let (node, incarnation) = (call.node, call.incarnation);
            self.change(&Change::Opens { serial, node, incarnation, readers, writers });
            self.forget_time_set(serial);
        }
        committed.unwrap_or(Ok(Answer::Done))
    }

    /// Ends all that a life of a node has open of an inode, and its locks there.
    pub(super) fn close(&mut self, _now_ns: i64, serial: u64, node: NodeNo, incarnation: Incarnation) {
        self.change(&Change::Opens { serial, node, incarnation, readers: 0, writers: 0 });
        if let Some(locks) = self.tables.locks.get(&serial).filter(|_| !self.has(Planted::KeepDeadLocks)) {
            let others = |lock: &&_| !super::locks::is_of(lock, node, incarnation);
            let kept: Vec<_> = locks.iter().filter(others).cloned().collect();
            if kept.len() < locks.len() {
                self.change(&Change::Locks { serial, locks: kept });
            }
        }
        self.forget_time_set(serial);
        let Some(inode) = self.tables.row(serial).copied() else { return };
        if inode.links == 0 && self.tables.opens_of(serial).next().is_none() {
            self.drop_inode(InodeId::new(self.number(), serial), &inode);
        }
    }

    /// Somebody set the time of modification: it holds against the writes before.
    pub(super) fn note_explicit_time(&mut self, call: &Asking<'_>, serial: u64) {
        let until_ns = match (self.is_written(serial), self.is_chunked(serial)) {
            (true, _) => call.now_ns,
            // Later writes of chunks may be told in any order: the first of them ends it.
            (false, true) => LONG_AGO_NS,
            (false, false) => return,
        };
        self.change(&Change::TimeSet { serial, until_ns: Some(until_ns) });
    }

    /// The time of modification of a file of chunks is that of a change of its bytes again.
    pub(super) fn forget_explicit_time(&mut self, serial: u64) {
        if self.is_chunked(serial) && self.tables.times_set.contains_key(&serial) {
            self.change(&Change::TimeSet { serial, until_ns: None });
        }
    }

    /// An explicit modification time holds against the writes before it, until the last writer
    /// ends.
    fn forget_time_set(&mut self, serial: u64) {
        let Some(set_ns) = self.tables.times_set.get(&serial).copied() else { return };
        if self.is_written(serial) {
            return;
        }
        let until_ns = self.is_chunked(serial).then_some(LONG_AGO_NS);
        if until_ns != Some(set_ns) {
            self.change(&Change::TimeSet { serial, until_ns });
        }
    }

    /// Removes an inode, and tells the nodes that have its bytes.
    pub(super) fn drop_inode(&mut self, id: InodeId, inode: &Inode) {
        let copies = self.tables.copies.get(&id.serial()).cloned().unwrap_or_default();
        self.drop_chunks(id.serial());
        self.change(&Change::Drop { serial: id.serial() });
        if let Some((holder, generation)) = inode.place() {
            self.drop_objects(id, generation, copies.into_iter().chain([holder]));
        }
    }

    fn drop_objects(&mut self, id: InodeId, generation: u64, holders: impl IntoIterator<Item = NodeNo>) {
        // The archive finds out by itself.
        let nodes = holders.into_iter().filter(|holder| *holder != ARCHIVE);
        self.leaving.extend(nodes.map(|holder| Action::DropObject { holder, id, generation }));
    }

    /// The copies of a file are not its bytes any more; which nodes had them. They are told
    /// nothing: the next copy replaces theirs, and a message that comes late would end that one.
    pub(super) fn forget_copies(&mut self, serial: u64) -> Vec<NodeNo> {
        let copies = self.tables.copies.get(&serial).cloned().unwrap_or_default();
        if !copies.is_empty() {
            self.change(&Change::Copies { serial, nodes: Vec::new() });
        }
        copies
    }

    fn is_written(&self, serial: u64) -> bool {
        self.tables.is_written(serial)
    }

    /// Takes the holder's word for which nodes have a copy.
    ///
    /// Opening for writing changes the version, and so does a commit: what was read for the copy
    /// since the version was asked for is what the file has now.
    pub(super) fn copied(&mut self, call: &Asking<'_>, copied: &Copied) -> Answered {
        let serial = copied.id.serial();
        let inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        let same = inode.place() == Some((call.node, copied.generation)) && inode.version == copied.version;
        if !same || self.is_written(serial) {
            return Err(Errno::ESTALE.into());
        }
        let known = self.tables.copies.get(&serial).map_or(&[][..], |known| known);
        let mut nodes = copied.copies.clone();
        nodes.retain(|node| *node != call.node);
        nodes.dedup();
        // Its bytes do not go while they are the file's. Who tells of nodes may not know of it yet.
        let stays = |node: &NodeNo| *node == ARCHIVE || copied.more == Some(true);
        let kept = known.iter().copied().filter(|node| stays(node) && !nodes.contains(node));
        let nodes: Vec<NodeNo> = kept.chain(nodes.iter().copied()).collect();
        if nodes.len() > COPIES_MAX {
            return Err(Errno::EINVAL.into());
        }
        if known != nodes {
            self.change(&Change::Copies { serial, nodes });
        }
        Ok(Answer::Done)
    }

    /// Makes a node with a copy the holder, or a node that has the bytes from the archive.
    ///
    /// The node says that the holder is lost. If that is wrong, nothing is: both have the same
    /// bytes, nobody has the file open for writing, and whoever opens it from now on gets the new
    /// holder.
    pub(super) fn take_over(&mut self, call: &Asking<'_>, take: &TakeOver) -> Answered {
        let serial = take.id.serial();
        let mut inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        let Some((holder, generation)) = inode.place() else { return Err(Errno::ESTALE.into()) };
        if holder == call.node && generation == take.generation {
            return Ok(Answer::Done);
        }
        let mut nodes = self.tables.copies.get(&serial).cloned().unwrap_or_default();
        let has_bytes = nodes.contains(&call.node) || (nodes.contains(&ARCHIVE) && !take.idle);
        if generation != take.generation || !has_bytes {
            return Err(Errno::ESTALE.into());
        }
        let is_open = self.tables.opens_of(serial).next().is_some();
        if self.is_written(serial) || (take.idle && is_open) {
            return Err(Errno::EBUSY.into());
        }
        nodes.retain(|node| *node != call.node);
        inode.holder_or_device = call.node.0;
        inode.version = inode.version.wrapping_add(1);
        self.change(&Change::Put { serial, inode });
        self.change(&Change::Copies { serial, nodes });
        Ok(Answer::Done)
    }
}
