//! Copies of files on other nodes: made some time after a file was closed, read when its holder is
//! away, and made anew when a node is lost.
//!
//! How many nodes shall have a file is a wish ([`Wish`]). The metadata says which nodes have a copy
//! of the file as it is; a commit of other bytes ends that.

use crate::data::Tries;
use crate::driver::wall_ns;
use crate::handles::lock;
use crate::node::NamespaceNode;
use crate::objects::{self, Act, Object, ObjectName};
use crate::route::root;
use crate::wish::Wish;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::fnv::mixed;
use zazen_namespace::map::State;
use zazen_namespace::operation::{Copied, Operation, TakeOver};
use zazen_namespace::service::{CHUNK_BYTES_MAX, ObjectCall, namespace_fn};
use zazen_namespace::{Attributes, Errno, InodeId, NodeNo};
use zazen_wire::checksum::FrameDigest;
use zazen_wire::codec::{Reader, Writer};

/// The copy begins.
const FRESH: u32 = 1;
/// A node gets copies while it has this much more than the copy.
pub(crate) const SPARE_BYTES: u64 = 256 << 20;
/// A copy that comes in is synced whenever so many bytes more came.
const SYNC_BYTES: u64 = 64 << 20;
/// How long a copy waits for the one before it to become the holder's place.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// How long lost files are dealt with at a time.
const REPAIR_PASS: Duration = Duration::from_millis(200);
/// How long a node may take to end a copy, and how many bytes more a second it must deal with.
pub(crate) const END: Duration = Duration::from_secs(30);
pub(crate) const END_BYTES_PER_S: u64 = 32 << 20;

impl NamespaceNode {
    /// A file, perhaps, got another wish: its holder looks at it.
    pub(crate) fn note_wanted(&self, id: InodeId) {
        let Ok(found) = self.attributes(id) else { return };
        if found.chunks.is_some() {
            return self.note_wanted_chunks(id);
        }
        let Some(place) = found.place else { return };
        let name = ObjectName { id, generation: place.generation };
        let noted = match self.identity() {
            Ok((me, _)) if me == place.holder => self.commit_object(name, true),
            _ => self.commit_there(place.holder, name, true, Tries::Many),
        };
        if let Err(errno) = noted {
            tracing::debug!("namespace: the holder of inode {id} was not told of copies: {errno}");
        }
    }

    /// Brings files to the nodes that shall have them.
    pub(crate) fn copy_all(&self, names: &[ObjectName]) {
        let ids: Vec<InodeId> = names.iter().map(|name| name.id).collect();
        let wanted = self.wishes_of(Wish::Copies, &ids);
        for ((name, found), wanted) in names.iter().zip(self.attributes_of(&ids)).zip(wanted) {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let Ok(wanted) = wanted else {
                self.waiting.copies.later(*name);
                continue;
            };
            let copied = match found {
                Ok(Some(found)) => self.copy_one(*name, &found, wanted),
                Ok(None) => Ok(()),
                Err(errno) => Err(errno),
            };
            match copied {
                Ok(()) => self.waiting.copies.done(*name),
                Err(errno) => {
                    tracing::debug!("namespace: copies of inode {}: {errno}", name.id);
                    self.waiting.copies.later(*name);
                }
            }
        }
    }

    /// Makes the copies of a file that are missing. `found` is from before the first byte is read.
    fn copy_one(&self, name: ObjectName, found: &Attributes, wanted: u32) -> Result<(), Errno> {
        let (me, _) = self.joined_soon()?;
        let Some(place) = &found.place else { return Ok(()) };
        // Copies of nodes that leave count until there are others.
        let map = self.map();
        let leaves = |wanted: &NodeNo| {
            map.nodes.iter().any(|node| node.node == *wanted && node.state == State::Leaving)
        };
        let kept = place.nodes_with_copy().filter(|node| !self.is_lost(*node));
        let (leaving, mut copies): (Vec<NodeNo>, Vec<NodeNo>) = kept.partition(leaves);
        let wants = if found.bytes == 0 { 0 } else { wanted.saturating_sub(1) as usize };
        let missing = wants.saturating_sub(copies.len());
        let is_its = (place.holder, place.generation) == (me, name.generation);
        if !is_its || (missing == 0 && leaving.is_empty()) {
            return Ok(());
        }
        if place.writing {
            return Err(Errno::EBUSY);
        }
        let object = self.objects.open(name)?;
        let copied = |copies: &[NodeNo]| {
            let (generation, copies) = (name.generation, copies.to_vec());
            let version = found.version;
            let copied = Copied { id: name.id, generation, version, copies, more: None };
            self.route_one(root(), Operation::Copied(copied)).map(drop)
        };
        let mut refusal = Errno::ENOSPC;
        let mut made = 0;
        for (node, address) in self.targets(name, &copies, found.bytes) {
            if made == missing {
                break;
            }
            match self.send_copy(name, &object, &address, &|_| !self.stopping.load(Ordering::Relaxed)) {
                Ok(()) => {
                    copies.push(node);
                    made += 1;
                    // At once: until then the other node has bytes that no inode names.
                    copied(&[&copies[..], &leaving[..]].concat())?;
                    if !self.stays(node) {
                        return Err(Errno::EAGAIN);
                    }
                }
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                Err(errno) => refusal = errno,
            }
        }
        let can_have = |node: &NodeNo| *node != me && !copies.contains(node) && self.stays(*node);
        if made < missing && (leaving.is_empty() || map.nodes.iter().any(|node| can_have(&node.node))) {
            return Err(refusal);
        }
        if leaving.is_empty() {
            return Ok(());
        }
        // The nodes that leave may be the only ones whose bytes are right.
        let verified = self.seals.verify(name, &object, 0, || !self.stopping.load(Ordering::Relaxed))?;
        if !verified.sealed || verified.next.is_some() || self.seals.is_damaged(name) {
            return Err(Errno::EIO);
        }
        copied(&copies)
    }

    /// The nodes that may get a copy, in an order that spreads files over nodes.
    fn targets(&self, name: ObjectName, copies: &[NodeNo], bytes: u64) -> Vec<(NodeNo, String)> {
        let spaces = self.spaces();
        let Ok((me, _)) = self.identity() else { return Vec::new() };
        let map = self.map();
        let mut targets: Vec<_> = map
            .nodes
            .iter()
            .filter(|node| node.up && node.state == State::Up)
            .filter(|node| node.node != me && !copies.contains(&node.node))
            .filter(|node| {
                let space = spaces.iter().find(|space| space.node == node.node);
                space.is_some_and(|space| space.bytes_free > bytes.saturating_add(SPARE_BYTES))
            })
            .map(|node| (mixed(name.id.0 ^ mixed(u64::from(node.node.0))), node.node, node.addr.clone()))
            .collect();
        targets.sort_unstable();
        targets.into_iter().map(|(_, node, address)| (node, address)).collect()
    }

    /// Sends a sealed object. Its bytes are checked on the way. `paced` is told how many bytes
    /// went, and says whether to go on.
    pub(crate) fn send_copy(
        &self,
        name: ObjectName,
        object: &Object,
        address: &str,
        paced: &dyn Fn(usize) -> bool,
    ) -> Result<(), Errno> {
        let stat = objects::stat(object)?;
        let seal = self.seals.get(name, &stat).ok_or(Errno::EAGAIN)?;
        let sum = sum_of_sums(&seal)?;
        self.there(address, &name.call(namespace_fn::COPY_PUT, 0, 0, FRESH), &[])?;
        let mut at = 0;
        while at < stat.bytes {
            let seek = Act { what: namespace_fn::SEEK, offset: at, bytes: 0, flags: 0 };
            at = match objects::act(object, seek) {
                Ok(data) => data,
                // Only a hole follows.
                Err(Errno::ENXIO) => break,
                Err(errno) => return Err(errno),
            };
            let hole = objects::act(object, Act { offset: at, flags: 1, ..seek })?;
            while at < hole.min(stat.bytes) {
                let wanted = (hole.min(stat.bytes) - at).min(CHUNK_BYTES_MAX as u64) as usize;
                let bytes = self.seals.read(name, object, at, wanted)?;
                if bytes.is_empty() {
                    return Err(Errno::EAGAIN);
                }
                self.there(address, &name.call(namespace_fn::COPY_PUT, at, bytes.len() as u64, 0), &bytes)?;
                at += bytes.len() as u64;
                if !paced(bytes.len()) {
                    return Err(Errno::EINTR);
                }
            }
        }
        if objects::stat(object)? != stat {
            return Err(Errno::EAGAIN);
        }
        let mut whole = Writer::new();
        whole.u64(sum);
        let end = name.call(namespace_fn::COPY_END, stat.bytes, stat.modified_ns as u64, 0);
        // The other node reads and syncs all of it before it answers.
        let within = END + Duration::from_secs(stat.bytes / END_BYTES_PER_S);
        self.there_within(address, &end, &whole.into_bytes(), within, Tries::One).map(drop)
    }

    /// Whether another node holds the object, as the metadata has it: its copy never takes the
    /// place of this node's own bytes. `ESTALE` if not.
    fn must_be_others(&self, name: ObjectName) -> Result<(), Errno> {
        let (me, _) = self.joined_soon()?;
        let place = self.attributes(name.id)?.place.ok_or(Errno::ESTALE)?;
        let is_others = place.holder != me && place.generation == name.generation;
        if is_others { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Another node sends a copy.
    pub(crate) fn take_copy(&self, name: ObjectName, call: &ObjectCall, bulk: &[u8]) -> Result<u64, Errno> {
        if call.what == namespace_fn::COPY_PUT {
            if self.driver.is_full() {
                return Err(Errno::ENOSPC);
            }
            let file = self.incoming.file(name, call.flags & FRESH != 0)?;
            let mut put = 0;
            while put < bulk.len() {
                put += objects::write(&file, &bulk[put..], call.offset + put as u64, false)?;
            }
            // Step by step: the sync of the whole shall not take minutes.
            let end = call.offset.saturating_add(put as u64);
            if call.offset / SYNC_BYTES != end / SYNC_BYTES {
                file.sync_data().map_err(|_| Errno::EIO)?;
            }
            return Ok(put as u64);
        }
        let file = self.incoming.file(name, false)?;
        let taken = (|| {
            let sum = Reader::new("copy", bulk).u64().map_err(|_| Errno::EINVAL)?;
            // Before the checksums of a file of this node are replaced, too.
            self.must_be_others(name)?;
            self.incoming.finish(&file, call.offset, call.bytes as i64)?;
            if !self.seals.seal(name, &file, wall_ns())? {
                return Err(Errno::EAGAIN);
            }
            let seal = self.seals.get(name, &objects::stat(&file)?).ok_or(Errno::EIO)?;
            if sum_of_sums(&seal)? != sum {
                tracing::error!("namespace: a copy of inode {} came changed", name.id);
                return Err(Errno::EIO);
            }
            // This node does not take the file over meanwhile, and a scrub removes nothing.
            let _telling = self.telling(name.id);
            self.must_be_others(name)?;
            if !self.waiting.arrived.note(name) {
                return Err(Errno::EBUSY);
            }
            self.objects.put(name, self.incoming.fd(), &name.file())?;
            self.seals.mark_whole(name);
            Ok(())
        })();
        if taken.is_err() {
            self.incoming.remove(name);
        }
        taken.map(|()| 0)
    }

    /// Whether a node has been away for so long that its files are to be copied anew.
    pub(crate) fn is_lost(&self, node: NodeNo) -> bool {
        let map = self.map();
        let since = lock(&self.waiting.down).get(&node).copied();
        map.nodes.iter().all(|known| known.node != node || known.state == State::Gone)
            || since.is_some_and(|since| since.elapsed() >= self.told.repair_after)
    }

    /// Notes which nodes are down, and gives those that have been down for so long that their files
    /// are to be dealt with.
    fn lost_nodes(&self) -> BTreeSet<NodeNo> {
        let map = self.map();
        let mut down = lock(&self.waiting.down);
        down.retain(|node, _| map.nodes.iter().any(|known| known.node == *node && !known.up));
        for node in map.nodes.iter().filter(|node| !node.up) {
            down.entry(node.node).or_insert_with(Instant::now);
        }
        let is_late = |since: &Instant| since.elapsed() >= self.told.repair_after;
        let late = down.iter().filter(|(_, since)| is_late(since)).map(|(node, _)| *node);
        // One that has left does not come back.
        let left = map.nodes.iter().filter(|node| node.state == State::Gone).map(|node| node.node);
        late.chain(left).collect()
    }

    /// Deals with objects that lost nodes held or had copies of, for a while.
    pub(crate) fn repair_some(&self) {
        let lost = self.lost_nodes();
        let until = Instant::now() + REPAIR_PASS;
        while Instant::now() < until && !self.stopping.load(Ordering::Relaxed) {
            let folder = lock(&self.waiting.repairs).folder(Instant::now(), &lost);
            let Some(folder) = folder else { return };
            let left = self.repair_folder(folder);
            let is_last = folder + 1 >= objects::FOLDERS;
            let ended = lock(&self.waiting.repairs).looked(Instant::now(), left, is_last);
            match ended {
                Some((nodes, 0)) => tracing::info!(
                    "namespace: all files of this node that nodes {nodes:?} had are dealt with"
                ),
                Some((nodes, left)) => tracing::warn!(
                    "namespace: {left} files that the lost nodes {nodes:?} had wait for another try"
                ),
                None => {}
            }
        }
    }

    /// Deals with the objects of one folder that lost nodes held or had copies of. How many of them
    /// could not be dealt with yet.
    fn repair_folder(&self, folder: u64) -> usize {
        let names = match self.objects.folder(folder) {
            Some(Ok(names)) => names,
            Some(Err(errno)) => {
                tracing::error!("namespace: folder {folder:03x} of the objects cannot be listed: {errno}");
                return 1;
            }
            None => return 1,
        };
        let Ok((me, _)) = self.identity() else { return 1 };
        let ids: Vec<InodeId> = names.iter().map(|name| name.id).collect();
        let found = names.iter().zip(self.attributes_of(&ids));
        let left = found.filter(|(name, found)| !self.repair_one(me, **name, found)).count();
        left + self.adopt_folder(me, folder)
    }

    /// Whether nothing is left to do about an object.
    fn repair_one(&self, me: NodeNo, name: ObjectName, found: &Result<Option<Attributes>, Errno>) -> bool {
        let place = match found {
            Ok(Some(Attributes { place: Some(place), .. })) if place.generation == name.generation => place,
            Ok(_) => return true,
            Err(_) => return false,
        };
        if place.holder == me {
            let lacks = place.nodes_with_copy().any(|node| self.is_lost(node));
            return !lacks || self.waiting.copies.note(name, Duration::ZERO);
        }
        if !self.is_lost(place.holder) {
            return true;
        }
        let mut left = place.nodes_with_copy().filter(|node| !self.is_lost(*node));
        let Some(turn) = left.position(|node| node == me) else { return true };
        // The first of them may lack its copy, or be away: then it is the next one's turn.
        let since = lock(&self.waiting.down).get(&place.holder).copied();
        let waits = self.told.repair_after + COPY_WAIT * u32::try_from(turn).unwrap_or(u32::MAX);
        if since.is_none_or(|since| since.elapsed() < waits) || !self.waiting.copies.has_room() {
            return false;
        }
        let _under_way = self.leave.begin();
        if self.takes_nothing() {
            return false;
        }
        let _telling = self.telling(name.id);
        if let Err(errno) = self.objects.open(name) {
            tracing::warn!("namespace: the copy of inode {} is not here any more: {errno}", name.id);
            return true;
        }
        let take = TakeOver { id: name.id, generation: name.generation, idle: false };
        match self.route_one(root(), Operation::TakeOver(take)) {
            Ok(_) => self.waiting.copies.note(name, Duration::ZERO),
            // It was removed, or rewritten, or another copy became the holder.
            Err(Errno::ESTALE) => true,
            Err(errno) => {
                tracing::info!("namespace: inode {} stays with a lost node for now: {errno}", name.id);
                false
            }
        }
    }
}

/// One checksum of all checksums of a seal.
fn sum_of_sums(seal: &crate::seals::Seal) -> Result<u64, Errno> {
    let mut digest = FrameDigest::default();
    let mut at = 0;
    while at < seal.blocks() {
        let count = (seal.blocks() - at).min(1 << 16);
        let mut sums = Writer::new();
        seal.sums(at, count).map_err(|_| Errno::EIO)?.into_iter().for_each(|sum| sums.u64(sum));
        digest.update(&sums.into_bytes());
        at += count;
    }
    Ok(digest.finish())
}
