//! The life of an open file: it is made ready, opened again in a new life of the node, told of, and
//! closed.

use crate::data::Tries;
use crate::handles::{Handle, Session, lock};
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName, ObjectStat};
use crate::route::{PATIENCE, root};
use std::sync::atomic::Ordering;
use std::time::Instant;
use zazen_namespace::operation::{Answer, Commit, Grant, Lock, LockWanted, Mode, Open, Operation, Release};
use zazen_namespace::{Attributes, Errno, Incarnation, Kind, NodeNo};

/// How far the clocks of two nodes may be apart.
const SKEW_NS: i64 = 2_000_000_000;

impl NamespaceNode {
    /// Makes the object of a file that this node holds, or makes sure that it is there. Newer
    /// attributes, if the disk knows more of the file than the metadata.
    pub(crate) fn make_ready(
        &self,
        handle: &Handle,
        grant: &Grant,
        mode: &Mode,
        since_ns: i64,
    ) -> Result<Option<Attributes>, Errno> {
        let mut fresh = None;
        let attributes = &grant.attributes;
        if let Some(parts) = handle.parts.as_ref().filter(|_| mode.truncate && !grant.created) {
            self.cut_at_holders(handle, parts, 0)?;
        }
        let (Kind::File, Some(place)) = (attributes.kind, &attributes.place) else {
            return Ok(None);
        };
        let (me, _) = self.joined_soon()?;
        if place.holder == me {
            let name = ObjectName { id: attributes.id, generation: place.generation };
            if mode.truncate {
                lock(&self.committed).remove(&name);
            }
            if grant.created {
                self.objects.make_new(name, since_ns)?;
            }
            let object = match self.objects.open(name) {
                // It never had a byte: the metadata says so.
                Err(Errno::ESTALE) if mode.write && attributes.bytes == 0 => self.objects.make(name)?,
                Err(Errno::ESTALE) if attributes.bytes == 0 => return Ok(None),
                Err(Errno::ESTALE) => {
                    tracing::error!(
                        "namespace: the bytes of inode {} (generation {}) are not on this disk any more",
                        attributes.id,
                        place.generation
                    );
                    return Err(Errno::EIO);
                }
                opened => opened?,
            };
            // What is read of a chunk is checked as it is read.
            if !mode.truncate && (mode.write || handle.chunk_of.is_none()) {
                self.check_open(name, &object, mode.write)?;
            }
            let telling = self.telling(name.id);
            let stat = objects::stat(&object)?;
            if stat.bytes < attributes.bytes && !place.writing {
                tracing::error!(
                    "namespace: inode {} has {} bytes on this disk, and {} by the metadata",
                    attributes.id,
                    stat.bytes,
                    attributes.bytes
                );
                return Err(Errno::EIO);
            }
            // What was written before a crash was perhaps never told. Times that were set later
            // than the last write stay.
            let is_known = stat.modified_ns == attributes.modified_ns;
            let times = is_known || stat.modified_ns <= attributes.changed_ns.saturating_add(SKEW_NS);
            let told = stat.bytes == attributes.bytes && times;
            if told {
                let looks = (stat.bytes, stat.blocks, stat.modified_ns);
                let is_sure = is_known || lock(&self.committed).get(&name) == Some(&looks);
                // Whether the time was set or a write was not told: copies may be of what was there
                // before, and so may be what the archive has.
                if !is_sure && mode.write && !mode.truncate && !place.copies.is_empty() {
                    self.commit_anew(name, &stat, attributes)?;
                    fresh = Some(self.attributes(attributes.id)?);
                }
                self.note_committed(name, looks, false);
            }
            drop(telling);
            if !told && !place.writing && !mode.truncate {
                lock(&self.committed).remove(&name);
                self.commit_object(name, false)?;
                fresh = Some(self.attributes(attributes.id)?);
            }
        }
        let is_new = mode.write && (grant.created || mode.truncate);
        if place.holder != me && mode.write && attributes.bytes == 0 {
            let name = ObjectName { id: attributes.id, generation: place.generation };
            match self.make_there(place.holder, name) {
                // It has its object, unless it is new.
                Err(errno) if is_new => return Err(errno),
                _ => {}
            }
        }
        if mode.truncate && !grant.created {
            self.empty(handle)?;
        }
        Ok(fresh)
    }

    /// Commits an object whose bytes may be others than those that were committed, though its
    /// length is not. A time that somebody set stays.
    fn commit_anew(&self, name: ObjectName, stat: &ObjectStat, attributes: &Attributes) -> Result<(), Errno> {
        let is_set = attributes.modified_ns.abs_diff(attributes.changed_ns) > SKEW_NS.unsigned_abs();
        let commit = Commit {
            id: name.id,
            generation: name.generation,
            bytes: stat.bytes,
            blocks: stat.blocks,
            modified_ns: if is_set { attributes.modified_ns } else { stat.modified_ns },
        };
        self.route_one(root(), Operation::Recommit(commit)).map(drop)
    }

    /// Brings the length and times of a file that is being written up to date.
    pub(crate) fn refresh(&self, attributes: &mut Attributes) {
        if attributes.chunks.as_ref().is_some_and(|chunks| chunks.writing) {
            return self.refresh_chunked(attributes);
        }
        let Some(place) = attributes.place.clone().filter(|place| place.writing) else { return };
        let name = ObjectName { id: attributes.id, generation: place.generation };
        let told = match self.identity() {
            Ok((me, _)) if me == place.holder => self.commit_object(name, true),
            _ => self.commit_there(place.holder, name, true, Tries::One),
        };
        // If the holder does not answer, the last commit is what is known.
        if told == Ok(true)
            && let Ok(fresh) = self.attributes(attributes.id)
        {
            *attributes = fresh;
        }
    }

    /// Ends an open file: tells the metadata what was written, then that it is closed.
    pub(crate) fn close(&self, handle: &Handle) -> Result<(), Errno> {
        let committed = match &handle.parts {
            Some(parts) => self.close_parts(handle, parts),
            None => self.commit(handle).map(drop),
        };
        self.release(handle);
        committed
    }

    pub(crate) fn release(&self, handle: &Handle) {
        let Some(life) = lock(&handle.life).take() else { return };
        let (writers, readers) = (u32::from(handle.write), u32::from(!handle.write));
        let release = Release { id: handle.id, writers, readers, commit: None };
        // What was open in an earlier life ended with it. It must not end an open file of this
        // life.
        match self.route_of_life(life, Operation::Release(release)) {
            Answer::Done => {}
            answer => tracing::debug!("namespace: release of inode {}: {answer:?}", handle.id),
        }
    }

    /// Opens a file again that was open in an earlier life of the node: that ended, and with it all
    /// that it had open.
    ///
    /// `EIO` if the caller had locks of the file, which others may have got since; and if it wrote
    /// bytes that are the file's no more. `EBADF` if the file was removed meanwhile.
    pub(crate) fn bring_into(&self, life: Incarnation, handle: &Handle) -> Result<(), Errno> {
        let mut open_in = lock(&handle.life);
        match *open_in {
            Some(known) if known == life => return Ok(()),
            Some(_) => {}
            None => return Err(Errno::EBADF),
        }
        if handle.session.upgrade().is_some_and(|session| session.has_lost_locks(handle.id, life)) {
            return Err(Errno::EIO);
        }
        let mode = Mode { read: handle.read, write: handle.write, truncate: false };
        let open = Operation::Open(Open { id: handle.id, mode });
        let (grant, life) = match self.route_in_lives(vec![(root(), open)]).pop() {
            Some((Answer::Grant(grant), life)) => (grant, life),
            Some((Answer::Refused(refused), _)) if refused.errno == Errno::ESTALE => {
                return Err(Errno::EBADF);
            }
            Some((Answer::Refused(refused), _)) => return Err(refused.errno),
            _ => return Err(Errno::EIO),
        };
        *open_in = Some(life);
        if grant.attributes.chunks.is_some() != handle.parts.is_some() {
            // It became a file in chunks while it was not open.
            drop(open_in);
            self.release(handle);
            return Err(Errno::EIO);
        }
        let mut place = lock(&handle.place);
        let found = place_of(&grant.attributes);
        if place.is_some() && *place != found && handle.wrote.load(Ordering::Relaxed) {
            tracing::warn!("namespace: inode {} has other bytes than those that were written", handle.id);
            drop(place);
            drop(open_in);
            // Nothing is written to bytes that are nobody's.
            self.release(handle);
            return Err(Errno::EIO);
        }
        *place = found;
        Ok(())
    }

    /// The caller is gone: what it had open is closed, what it had locked is free.
    pub(crate) fn end_session(&self, session: &Session) {
        // One wait for all that the caller had, while this node has not joined the others.
        let deadline = Instant::now() + PATIENCE;
        for handle in session.take_all() {
            if self.joined(deadline, None).is_ok() {
                self.close(&handle).ok();
            } else {
                // What the life had open ended with it. Nobody opens it again.
                lock(&handle.life).take();
            }
        }
        let locks = session.take_locks();
        if locks.is_empty() || self.joined(deadline, None).is_err() {
            return;
        }
        let unlock = |(id, owner, whole)| {
            let (start, end, wanted) = (0, u64::MAX, LockWanted::Unlock);
            (root(), Operation::Lock(Lock { id, owner, pid: 0, whole, start, end, wanted }))
        };
        self.route(locks.into_iter().map(unlock).collect());
    }

    /// Tells the metadata what was written through a handle. Whether there was something to tell.
    pub(crate) fn commit(&self, handle: &Handle) -> Result<bool, Errno> {
        if let Some(parts) = &handle.parts {
            return self.commit_parts(handle, parts);
        }
        let wrote = handle.wrote.load(Ordering::Relaxed);
        // A program may have written by a descriptor that it got before the daemon's restart.
        if !handle.write && !wrote {
            return Ok(false);
        }
        let Some((holder, generation)) = *lock(&handle.place) else { return Ok(false) };
        let name = ObjectName { id: handle.id, generation };
        let (me, life) = self.joined_soon()?;
        if holder == me && *lock(&handle.life) != Some(life) {
            // Only the metadata knows whether these are still the file's bytes.
            lock(&self.committed).remove(&name);
        }
        let told = match me == holder {
            true => self.commit_object(name, handle.by_root()),
            false => self.commit_there(
                holder,
                name,
                handle.by_root(),
                if wrote { Tries::Many } else { Tries::One },
            ),
        };
        match told {
            Err(_) if !wrote && me != holder => Ok(false),
            // What was written is in the file no more.
            Err(Errno::ESTALE) => Err(Errno::EIO),
            told => told,
        }
    }
}

/// Where a file's bytes are: the holder, and the generation.
pub(crate) fn place_of(attributes: &Attributes) -> Option<(NodeNo, u64)> {
    attributes.place.as_ref().map(|place| (place.holder, place.generation))
}
