//! Functions on the bytes of open files: here, or at the node that holds them.

use crate::handles::{Handle, lock};
use crate::links::Failed;
use crate::node::NamespaceNode;
use crate::objects::{self, Act, Object, ObjectName};
use crate::quota;
use crate::route::root;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::Credentials;
use zazen_namespace::operation::{Answer, Commit, Operation};
use zazen_namespace::service::{CHUNK_BYTES_MAX, ObjectCall, ObjectDone, namespace_fn};
use zazen_namespace::{Errno, NodeNo};
use zazen_wire::Message;
use zazen_wire::checksum::frame_checksum;

/// How long a holder may take for a chunk.
pub(crate) const CHUNK: Duration = Duration::from_secs(30);
/// How long a holder may take to say how long a file is now.
pub(crate) const LOOK: Duration = Duration::from_secs(5);
/// A holder that does not answer is asked again after this.
const AGAIN: Duration = Duration::from_millis(100);
/// Commits that are remembered.
const COMMITTED_MAX: usize = 1 << 16;
/// The flag of [`namespace_fn::SYNC`]: the metadata alone, without a sync.
pub(crate) const NO_SYNC: u32 = 1;
/// A flag of it: all chunks of a file, whoever wrote them.
const SYNC_EVERY: u32 = 4;
/// A flag of SYNC between daemons: the writer is root.
const BY_ROOT: u32 = 2;
/// Flags of `fallocate`: the file's length stays.
const KEEP_SIZE: u32 = 1;
/// Flags of `fallocate` that take bytes away.
const PUNCH_HOLE: u32 = 2;
const COLLAPSE_RANGE: u32 = 8;
/// The flag of SEEK: to the next hole.
const TO_HOLE: u32 = 1;
/// The flag of [`namespace_fn::WRITE`]: at the end of the file.
pub(crate) const APPEND: u32 = 1;

/// How often a daemon is asked that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tries {
    One,
    /// While its node counts as there, and nothing can be done twice by it.
    Many,
}

/// Where the bytes of an open file are.
enum Where {
    Here(Object, ObjectName),
    There(String, ObjectName),
    /// The file never had any: it reads as this many zeros.
    Nowhere(u64),
}

impl NamespaceNode {
    fn locate(&self, handle: &Handle) -> Result<Where, Errno> {
        let (me, life) = self.joined_soon()?;
        self.bring_into(life, handle)?;
        let mut place = lock(&handle.place);
        // After a change of the map, another node may be the holder.
        let epoch = self.map().epoch.0;
        if handle.asked_in.load(Ordering::Relaxed) != epoch
            && let Some((holder, _)) = *place
            && holder != me
        {
            let now = self.attributes(handle.id)?.place.map(|now| (now.holder, now.generation));
            if now != *place && handle.wrote.load(Ordering::Relaxed) {
                // And so next time: the old holder may still have the bytes, which are nobody's.
                return Err(Errno::EIO);
            }
            *place = now;
        }
        // Only now: if the metadata did not answer, it is asked again before the next access.
        handle.asked_in.store(epoch, Ordering::Relaxed);
        if place.is_none() {
            let attributes = self.attributes(handle.id)?;
            match attributes.place {
                None => return Ok(Where::Nowhere(attributes.bytes)),
                Some(found) => *place = Some((found.holder, found.generation)),
            }
        }
        let Some((holder, generation)) = *place else { return Err(Errno::EIO) };
        let name = ObjectName { id: handle.id, generation };
        if holder != me {
            return Ok(Where::There(self.address(holder).ok_or(Errno::EIO)?, name));
        }
        match self.objects.open(name) {
            Ok(object) => Ok(Where::Here(object, name)),
            // Opened for reading before anybody wrote: there is nothing yet.
            Err(Errno::ESTALE) => {
                let attributes = self.attributes(handle.id)?;
                let found = attributes.place.as_ref().map(|place| (place.holder, place.generation));
                if found != *place {
                    return Err(Errno::ESTALE);
                }
                if attributes.bytes == 0 { Ok(Where::Nowhere(0)) } else { Err(Errno::EIO) }
            }
            Err(errno) => Err(errno),
        }
    }

    /// Does `act` where the bytes are, and again if they have moved meanwhile. Through a handle
    /// that has written nothing is done elsewhere: half a file would be there, and no error.
    fn at_place<T>(
        &self,
        handle: &Handle,
        mut act: impl FnMut(Where) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let follows = lock(&handle.place).is_none() || !handle.wrote.load(Ordering::Relaxed);
        for _ in 0..3 {
            match self.locate(handle).and_then(&mut act) {
                Err(Errno::ESTALE) if !follows => return Err(Errno::EIO),
                Err(Errno::ESTALE) => *lock(&handle.place) = None,
                done => return done,
            }
        }
        // The metadata names a place where the bytes are not.
        Err(Errno::EIO)
    }

    /// Asks the daemon at `address`. The bytes of the answer are those that it sent.
    pub(crate) fn there(
        &self,
        address: &str,
        call: &ObjectCall,
        bulk: &[u8],
    ) -> Result<(u64, Vec<u8>), Errno> {
        self.there_within(address, call, bulk, CHUNK, Tries::Many)
    }

    /// Asks the daemon at `address`, which may take so long.
    pub(crate) fn there_within(
        &self,
        address: &str,
        call: &ObjectCall,
        bulk: &[u8],
        within: Duration,
        tries: Tries,
    ) -> Result<(u64, Vec<u8>), Errno> {
        let mut call = ObjectCall { sum: frame_checksum(bulk), call: self.fresh_call(), ..call.clone() };
        let deadline = Instant::now() + within;
        let reply = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let called = self.links.try_call(address, namespace_fn::OBJECT, &call.encode(), bulk, left);
            let (error, was_sent) = match called {
                Ok(reply) => break reply,
                Err(Failed::Before(error)) => (error, false),
                Err(Failed::Meanwhile(error)) => (error, true),
            };
            tracing::debug!("namespace: object {} at {address}: {error}", call.id);
            let repeats = tries == Tries::Many && (!was_sent || may_come_twice(&call));
            if !repeats || Instant::now() + AGAIN >= deadline || !self.expects(address) {
                return Err(Errno::ETIMEDOUT);
            }
            call.again += 1;
            std::thread::sleep(AGAIN);
        };
        let answer = ObjectDone::decode(&reply.payload).map_err(|_| Errno::EIO)?;
        let value = answer.done.result()?;
        if frame_checksum(&reply.bulk) != answer.sum {
            tracing::error!("namespace: bytes of inode {} from {address} came changed", call.id);
            return Err(Errno::EIO);
        }
        Ok((value, reply.bulk))
    }

    /// Whether the node at `address` counts as there: if it does not answer, it is being started
    /// again, or its lease will end soon.
    fn expects(&self, address: &str) -> bool {
        let stopping = self.stopping.load(Ordering::Relaxed);
        !stopping && self.map().nodes.iter().any(|node| node.addr == address && node.up)
    }

    /// Reads `bytes` at `offset`: fewer only where the file ends.
    pub(crate) fn read(&self, handle: &Handle, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        if !handle.read {
            return Err(Errno::EBADF);
        }
        check_chunk(offset, bytes as u64)?;
        if let Some(parts) = &handle.parts {
            return self.read_parts(handle, parts, offset, bytes);
        }
        let read = self.read_at_place(handle, offset, bytes, Tries::One);
        let copied = match read {
            // The holder is away, or its bytes are damaged.
            Err(Errno::ETIMEDOUT | Errno::EIO) if !handle.wrote.load(Ordering::Relaxed) => {
                self.read_copy(handle, offset, bytes).or(read)
            }
            read => read,
        };
        match copied {
            Err(Errno::ETIMEDOUT) => self.read_at_place(handle, offset, bytes, Tries::Many),
            copied => copied,
        }
    }

    fn read_at_place(
        &self,
        handle: &Handle,
        offset: u64,
        bytes: usize,
        tries: Tries,
    ) -> Result<Vec<u8>, Errno> {
        self.at_place(handle, |at| match at {
            Where::Here(object, name) => self.seals.read(name, &object, offset, bytes),
            Where::There(address, name) => {
                let call = name.call(namespace_fn::READ, offset, bytes as u64, 0);
                let (count, got) = self.there_within(&address, &call, &[], CHUNK, tries)?;
                if count != got.len() as u64 || got.len() > bytes {
                    return Err(Errno::EIO);
                }
                if got.len() < bytes {
                    self.check_end(handle, offset + count)?;
                }
                Ok(got)
            }
            Where::Nowhere(length) => {
                Ok(vec![0; usize::try_from(length.saturating_sub(offset)).unwrap_or(bytes).min(bytes)])
            }
        })
    }

    /// Reads from the holder, if another node became it, or from one with a copy of the file as it
    /// is, or from the archive.
    fn read_copy(&self, handle: &Handle, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let (me, _) = self.joined_soon()?;
        let attributes = self.attributes(handle.id)?;
        let place = attributes.place.ok_or(Errno::EIO)?;
        // A node that takes over from a lost one does not change the map.
        if Self::follow(handle, (place.holder, place.generation))
            && let Ok(got) = self.read_at_place(handle, offset, bytes, Tries::One)
        {
            return Ok(got);
        }
        if place.writing {
            return Err(Errno::EIO);
        }
        let name = ObjectName { id: handle.id, generation: place.generation };
        let expected = attributes.bytes.saturating_sub(offset).min(bytes as u64);
        if expected == 0 && handle.chunk_of.is_none() {
            // The file ends before `offset`, and nobody writes it: no node is needed to say so. But
            // where a chunk ends, a hole begins: what its holder had not told would read as zeros.
            return Ok(Vec::new());
        }
        let is_archived = place.is_archived();
        for copy in place.nodes_with_copy() {
            let got = if copy == me {
                self.objects.open(name).and_then(|object| self.seals.read(name, &object, offset, bytes))
            } else {
                let Some(address) = self.address(copy) else { continue };
                let call = name.call(namespace_fn::READ, offset, bytes as u64, 0);
                self.there(&address, &call, &[]).map(|(_, got)| got)
            };
            if let Ok(got) = got
                && got.len() as u64 == expected
            {
                return Ok(got);
            }
        }
        if is_archived { self.read_archived(name, attributes.bytes, offset, bytes) } else { Err(Errno::EIO) }
    }

    /// Lets a handle that has written nothing go to where the bytes are now. Whether that is
    /// another place than before.
    fn follow(handle: &Handle, now: (NodeNo, u64)) -> bool {
        let mut place = lock(&handle.place);
        let follows = *place != Some(now) && !handle.wrote.load(Ordering::Relaxed);
        if follows {
            *place = Some(now);
        }
        follows
    }

    /// A holder whose disk lost the end of a file must not make it shorter.
    fn check_end(&self, handle: &Handle, end: u64) -> Result<(), Errno> {
        let attributes = self.attributes(handle.id)?;
        let writing = attributes.place.as_ref().is_none_or(|place| place.writing);
        if !writing && attributes.bytes > end {
            tracing::error!(
                "namespace: inode {} ends at byte {end} at its holder, and at {} by the metadata",
                handle.id,
                attributes.bytes
            );
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Writes all at `offset`, or (`append`) at the end. How many bytes were written.
    pub(crate) fn write(&self, handle: &Handle, offset: u64, bytes: &[u8], flags: u32) -> Result<u64, Errno> {
        if !handle.write {
            return Err(Errno::EBADF);
        }
        check_chunk(offset, bytes.len() as u64)?;
        let append = flags & APPEND != 0;
        match &handle.parts {
            Some(parts) if append => return self.append_parts(handle, parts, bytes),
            Some(parts) => return self.write_parts(handle, parts, offset, bytes),
            None => {}
        }
        self.grow(handle, if append { None } else { Some(offset) }, bytes.len() as u64)?;
        self.at_place(handle, |at| match at {
            Where::Here(object, _) => {
                handle.wrote.store(true, Ordering::Relaxed);
                objects::write(&object, bytes, offset, flags & APPEND != 0).map(|count| count as u64)
            }
            Where::There(address, name) => {
                let call = name.call(namespace_fn::WRITE, offset, bytes.len() as u64, flags);
                handle.wrote.store(true, Ordering::Relaxed);
                let (count, _) = self.there(&address, &call, bytes)?;
                if count <= bytes.len() as u64 { Ok(count) } else { Err(Errno::EIO) }
            }
            Where::Nowhere(_) => Err(Errno::EIO),
        })
    }

    /// Bytes are written at an offset, or at the end. `EDQUOT` if a quota does not allow that the
    /// file takes so much more.
    fn grow(&self, handle: &Handle, offset: Option<u64>, bytes: u64) -> Result<(), Errno> {
        if bytes == 0 {
            return Ok(());
        }
        let bounds = self.bounds(handle)?;
        if bounds.is_empty() {
            return Ok(());
        }
        let end = handle.end.load(Ordering::Relaxed);
        let start = offset.unwrap_or(end);
        let new_end = start.saturating_add(bytes);
        let more = match start < end && !self.is_allocated(handle, start, new_end.min(end)) {
            true => bytes,
            false => new_end.saturating_sub(end).min(bytes),
        };
        self.quotas.take(&bounds, more)?;
        handle.end.fetch_max(new_end, Ordering::Relaxed);
        Ok(())
    }

    /// Whether writing from `start` to `end` takes nothing more of the disk: holes do, and what
    /// somebody has cut meanwhile.
    fn is_allocated(&self, handle: &Handle, start: u64, end: u64) -> bool {
        let seek = Act { what: namespace_fn::SEEK, offset: start, bytes: 0, flags: TO_HOLE };
        if self.act_at(handle, seek).is_ok_and(|hole| hole >= end) {
            return true;
        }
        // What was allocated and never written may look like a hole.
        self.attributes(handle.id).is_ok_and(|mut attributes| {
            self.refresh(&mut attributes);
            attributes.bytes >= end && quota::on_disk(&attributes) >= attributes.bytes
        })
    }

    /// TRUNCATE, ALLOCATE or SEEK.
    pub(crate) fn act(
        &self,
        handle: &Handle,
        what: u16,
        offset: u64,
        bytes: u64,
        flags: u32,
    ) -> Result<u64, Errno> {
        if what == namespace_fn::SEEK && !handle.read && !handle.write {
            return Err(Errno::EBADF);
        }
        if what != namespace_fn::SEEK && !handle.write {
            return Err(Errno::EBADF);
        }
        if let Some(parts) = &handle.parts {
            return match what {
                namespace_fn::TRUNCATE => self.cut_parts(handle, parts, offset),
                namespace_fn::ALLOCATE => self.allocate_parts(handle, parts, offset, bytes, flags),
                namespace_fn::SEEK => self.seek_parts(handle, parts, offset, flags),
                _ => Err(Errno::ENOSYS),
            };
        }
        match what {
            // Nobody could count what lies behind the end of a file.
            namespace_fn::ALLOCATE
                if flags & KEEP_SIZE != 0 && flags & PUNCH_HOLE == 0 && !self.bounds(handle)?.is_empty() =>
            {
                return Err(Errno::EOPNOTSUPP);
            }
            namespace_fn::ALLOCATE if flags & (PUNCH_HOLE | COLLAPSE_RANGE) == 0 => {
                self.grow(handle, Some(offset), bytes)?;
            }
            namespace_fn::TRUNCATE => handle.end.store(offset, Ordering::Relaxed),
            _ => {}
        }
        self.act_at(handle, Act { what, offset, bytes, flags })
    }

    /// TRUNCATE to nothing of a file that was opened so, for writing or not.
    pub(crate) fn empty(&self, handle: &Handle) -> Result<(), Errno> {
        self.act_at(handle, Act { what: namespace_fn::TRUNCATE, offset: 0, bytes: 0, flags: 0 }).map(drop)
    }

    fn act_at(&self, handle: &Handle, act: Act) -> Result<u64, Errno> {
        let Act { what, offset, bytes, flags } = act;
        let writes = || handle.wrote.fetch_or(what != namespace_fn::SEEK, Ordering::Relaxed);
        let done = self.at_place(handle, |at| match at {
            Where::Here(object, name) => {
                writes();
                self.act_here(&object, name, act)
            }
            Where::There(address, name) => {
                writes();
                self.there(&address, &name.call(what, offset, bytes, flags), &[]).map(|(value, _)| value)
            }
            Where::Nowhere(length) if what == namespace_fn::SEEK && offset < length => {
                if flags == 0 {
                    Err(Errno::ENXIO)
                } else {
                    Ok(offset)
                }
            }
            Where::Nowhere(_) => Err(Errno::ENXIO),
        });
        match done {
            // While the holder is away, all counts as data.
            Err(Errno::ETIMEDOUT) if what == namespace_fn::SEEK => match self.attributes(handle.id)? {
                found if found.place.as_ref().is_none_or(|place| place.copies.is_empty()) => done,
                found if offset >= found.bytes => Err(Errno::ENXIO),
                found => Ok(if flags == 0 { offset } else { found.bytes }),
            },
            done => done,
        }
    }

    /// What is cut is told anew, even if it comes to look as before: the metadata has lost it.
    fn act_here(&self, object: &Object, name: ObjectName, act: Act) -> Result<u64, Errno> {
        if act.what != namespace_fn::TRUNCATE {
            return objects::act(object, act);
        }
        let _telling = self.telling(name.id);
        lock(&self.committed).remove(&name);
        let done = objects::act(object, act)?;
        if act.offset == 0 {
            self.seals.remove(name);
        }
        Ok(done)
    }

    /// A sync that failed once fails for good: which bytes were lost is not known.
    pub(crate) fn sync_here(&self, object: &Object, name: ObjectName) -> Result<(), Errno> {
        if lock(&self.unsynced).contains(&name) {
            return Err(Errno::EIO);
        }
        object.sync_data().map_err(|error| {
            tracing::error!("namespace: sync of inode {}: {error}", name.id);
            lock(&self.unsynced).insert(name);
            Errno::EIO
        })
    }

    /// Syncs the bytes, and tells the metadata.
    pub(crate) fn sync(&self, handle: &Handle, flags: u32) -> Result<(), Errno> {
        match &handle.parts {
            Some(parts) if flags & NO_SYNC == 0 => {
                return self.sync_parts(handle, parts, flags & SYNC_EVERY != 0);
            }
            _ => {}
        }
        if flags & NO_SYNC == 0 {
            self.at_place(handle, |at| match at {
                Where::Here(object, name) => self.sync_here(&object, name),
                Where::There(address, name) => {
                    let flags = if handle.by_root() { BY_ROOT } else { 0 };
                    self.there(&address, &name.call(namespace_fn::SYNC, 0, 0, flags), &[]).map(drop)
                }
                Where::Nowhere(_) => Ok(()),
            })?;
        }
        self.commit(handle).map(drop)
    }

    /// A descriptor of the bytes for the caller. `EXDEV` if another node has them.
    pub(crate) fn descriptor(&self, handle: &Handle, vouches: bool) -> Result<OwnedFd, Errno> {
        if !vouches && !handle.read {
            return Err(Errno::EPERM);
        }
        if handle.parts.is_some() {
            return Err(Errno::EXDEV);
        }
        let write = handle.write && vouches;
        // What the kernel writes itself, nobody counts.
        let counts =
            write && (!self.bounds(handle)?.is_empty() || !handle.by_root() && self.quotas.version() == 0);
        let fd = self.at_place(handle, |at| match at {
            Where::Here(..) if counts => Err(Errno::EXDEV),
            // What the kernel reads itself, nobody checks.
            Where::Here(_, name) if self.told.verify_always || self.seals.is_damaged(name) => {
                Err(Errno::EXDEV)
            }
            Where::Here(_, name) => self.objects.descriptor(name, write),
            Where::There(..) | Where::Nowhere(_) => Err(Errno::EXDEV),
        })?;
        if write {
            // From now on nobody sees what is written.
            handle.wrote.store(true, Ordering::Relaxed);
        }
        Ok(fd)
    }

    /// As [`Self::object`]; but a try of a change is not executed after a later one.
    pub(crate) fn tried(&self, call: &ObjectCall, bulk: &[u8]) -> Result<(u64, Vec<u8>), Errno> {
        match call.what {
            namespace_fn::READ | namespace_fn::SEEK => self.object(call, bulk),
            _ => self.repeats.run(call.call, call.again, || self.object(call, bulk)),
        }
    }

    /// Another daemon asks for a function on an object of this node.
    pub(crate) fn object(&self, call: &ObjectCall, bulk: &[u8]) -> Result<(u64, Vec<u8>), Errno> {
        let name = ObjectName { id: call.id, generation: call.generation };
        if frame_checksum(bulk) != call.sum {
            tracing::error!("namespace: bytes to write to inode {} came changed", call.id);
            return Err(Errno::EIO);
        }
        let _under_way = self.leave.begin();
        let brings = matches!(
            call.what,
            namespace_fn::MAKE | namespace_fn::TAKE | namespace_fn::COPY_PUT..=namespace_fn::COPY_END
        );
        if brings && self.takes_nothing() {
            return Err(Errno::ENOSPC);
        }
        if call.what == namespace_fn::MAKE {
            return self.make_for_other(name).map(|()| (0, Vec::new()));
        }
        if call.what == namespace_fn::TAKE {
            return self.take_idle(name).map(|()| (0, Vec::new()));
        }
        if call.what == namespace_fn::TELL {
            return self.tell_for_other(call, bulk).map(|told| (told, Vec::new()));
        }
        if let namespace_fn::COPY_PUT..=namespace_fn::COPY_END = call.what {
            return self.take_copy(name, call, bulk).map(|value| (value, Vec::new()));
        }
        let object = match self.objects.open(name) {
            Err(Errno::ESTALE) if call.what == namespace_fn::READ && self.never_had_bytes(name)? => {
                return Ok((0, Vec::new()));
            }
            Err(Errno::ESTALE) if call.what == namespace_fn::SEEK && self.never_had_bytes(name)? => {
                return Err(Errno::ENXIO);
            }
            opened => opened?,
        };
        match call.what {
            namespace_fn::READ => {
                check_chunk(call.offset, call.bytes)?;
                let got = self.seals.read(name, &object, call.offset, call.bytes as usize)?;
                Ok((got.len() as u64, got))
            }
            namespace_fn::WRITE => {
                check_chunk(call.offset, bulk.len() as u64)?;
                let count = objects::write(&object, bulk, call.offset, call.flags & APPEND != 0)?;
                Ok((count as u64, Vec::new()))
            }
            namespace_fn::SYNC => {
                if call.flags & NO_SYNC == 0 {
                    self.sync_here(&object, name)?;
                }
                let told = self.commit_object(name, call.flags & BY_ROOT != 0)?;
                Ok((told.into(), Vec::new()))
            }
            what => {
                let (offset, bytes, flags) = (call.offset, call.bytes, call.flags);
                let act = Act { what, offset, bytes, flags };
                self.act_here(&object, name, act).map(|value| (value, Vec::new()))
            }
        }
    }

    /// Whether an object that is not on this disk was never made: its file is new, and this node
    /// died before it made the object, or nobody has opened the file for writing yet.
    fn never_had_bytes(&self, name: ObjectName) -> Result<bool, Errno> {
        let (me, _) = self.joined_soon()?;
        let attributes = self.attributes(name.id)?;
        let is_here =
            attributes.place.is_some_and(|place| (place.holder, place.generation) == (me, name.generation));
        Ok(is_here && attributes.bytes == 0)
    }

    /// Tells the metadata the length and times of an object of this node, unless it knows them.
    /// Whether there was something to tell. `ESTALE` if the file has other bytes by now.
    pub(crate) fn commit_object(&self, name: ObjectName, by_root: bool) -> Result<bool, Errno> {
        let _telling = self.telling(name.id);
        let stat = objects::stat(&*self.objects.open(name)?)?;
        let seen = (stat.bytes, stat.blocks, stat.modified_ns);
        self.waiting.note(name, &stat);
        if lock(&self.committed).get(&name) == Some(&seen) {
            return Ok(false);
        }
        let commit = Commit {
            id: name.id,
            generation: name.generation,
            bytes: stat.bytes,
            blocks: stat.blocks,
            modified_ns: stat.modified_ns,
        };
        // Set-user-id ends by the write of anybody but root.
        let nobody = Credentials { uid: 65534, gid: 65534, groups: Vec::new() };
        let credentials = if by_root { root() } else { nobody };
        match self.route_one(credentials, Operation::Commit(commit)) {
            Ok(Answer::Done) => {
                self.note_committed(name, seen, true);
                Ok(true)
            }
            Ok(_) => Err(Errno::EIO),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn note_committed(&self, name: ObjectName, seen: (u64, u64, i64), replace: bool) {
        let mut committed = lock(&self.committed);
        if committed.len() >= COMMITTED_MAX {
            committed.clear();
        }
        if replace {
            committed.insert(name, seen);
        } else {
            committed.entry(name).or_insert(seen);
        }
    }

    /// Has the holder tell the metadata.
    pub(crate) fn commit_there(
        &self,
        holder: NodeNo,
        name: ObjectName,
        by_root: bool,
        tries: Tries,
    ) -> Result<bool, Errno> {
        let address = self.address(holder).ok_or(Errno::EIO)?;
        let flags = if by_root { NO_SYNC | BY_ROOT } else { NO_SYNC };
        let call = name.call(namespace_fn::SYNC, 0, 0, flags);
        let within = if tries == Tries::One { LOOK } else { CHUNK };
        self.there_within(&address, &call, &[], within, tries).map(|(told, _)| told != 0)
    }
}

/// Whether nothing is done twice if the call comes twice. The other daemon sees to it that the
/// first try never comes after the second.
fn may_come_twice(call: &ObjectCall) -> bool {
    match call.what {
        namespace_fn::WRITE => call.flags & APPEND == 0,
        // A range may be taken out of the file, or put into it.
        namespace_fn::ALLOCATE => false,
        _ => true,
    }
}

fn check_chunk(offset: u64, bytes: u64) -> Result<(), Errno> {
    if bytes > CHUNK_BYTES_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if offset > i64::MAX as u64 - bytes {
        return Err(Errno::EFBIG);
    }
    Ok(())
}
