//! Files of lost nodes that the archive has: they are read there, and other nodes take them over.
//!
//! The metadata says that the archive has a file's bytes as of its last commit
//! ([`zazen_namespace::ARCHIVE`]). The checksums beside the archived object say which bytes.

use crate::archive::folders::Folders;
use crate::archive::records::Record;
use crate::archive::state::os;
use crate::archive::sums;
use crate::node::NamespaceNode;
use crate::objects::ObjectName;
use crate::route::root;
use crate::seals::{BLOCK_BYTES, Seal};
use std::os::unix::fs::FileExt;
use zazen_core::fnv::mixed;
use zazen_namespace::map::State;
use zazen_namespace::operation::{Operation, TakeOver};
use zazen_namespace::{Attributes, Errno, NodeNo};

impl NamespaceNode {
    /// Reads from the archive what the metadata says that it has. `EIO` if that is not what it has.
    pub(crate) fn read_archived(
        &self,
        name: ObjectName,
        length: u64,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Errno> {
        let told = self.told.archive.as_ref().ok_or(Errno::EIO)?;
        let folders = self.archive_folders(told).map_err(|()| Errno::EIO)?;
        let seal = folders.seal(name).map_err(os)?.filter(|seal| seal.bytes == length).ok_or(Errno::EIO)?;
        let end = offset.saturating_add(bytes as u64).min(length);
        if offset >= end {
            return Ok(Vec::new());
        }
        let first = offset / BLOCK_BYTES * BLOCK_BYTES;
        let whole = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES).min(length);
        let mut read = vec![0; (whole - first) as usize];
        let object = folders.object(name).map_err(os)?;
        object.read_exact_at(&mut read, first).map_err(os)?;
        if !sums::is_right(&read, first, &seal).map_err(os)? {
            tracing::error!("namespace: inode {}: bytes in the archive are not what was archived", name.id);
            return Err(Errno::EIO);
        }
        read.truncate((end - first) as usize);
        Ok(read.split_off((offset - first) as usize))
    }

    /// Takes over the archived files of one folder whose holders are lost, as far as it is this
    /// node's turn. How many could not be taken over yet.
    pub(crate) fn adopt_folder(&self, me: NodeNo, folder: u64) -> usize {
        let Some(told) = &self.told.archive else { return 0 };
        let Ok(folders) = self.archive_folders(told) else { return 1 };
        let names = match folders.sealed_in(folder) {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!("namespace: folder {folder:03x} of the archive cannot be listed: {error}");
                return 1;
            }
        };
        let mine: Vec<ObjectName> = names.into_iter().filter(|name| self.is_turn(me, *name)).collect();
        let ids: Vec<_> = mine.iter().map(|name| name.id).collect();
        let mut left = 0;
        for (name, found) in mine.iter().zip(self.attributes_of(&ids)) {
            let adopted = match found {
                Ok(Some(found)) if self.waits_for_adoption(*name, &found) => self.adopt(&folders, *name),
                Ok(_) => Ok(()),
                Err(errno) => Err(errno),
            };
            if let Err(errno) = adopted {
                tracing::info!("namespace: archived inode {} stays with a lost node: {errno}", name.id);
                left += 1;
            }
        }
        left
    }

    /// Whether of all nodes that may get files this one takes over the object.
    fn is_turn(&self, me: NodeNo, name: ObjectName) -> bool {
        let map = self.map();
        let stay = map.nodes.iter().filter(|node| node.up && node.state == State::Up);
        stay.map(|node| node.node).max_by_key(|node| (mixed(name.id.0 ^ mixed(u64::from(node.0))), *node))
            == Some(me)
    }

    /// Whether the holder is lost, and nobody else than the archive has the file.
    fn waits_for_adoption(&self, name: ObjectName, found: &Attributes) -> bool {
        found.place.as_ref().is_some_and(|place| {
            place.generation == name.generation
                && place.is_archived()
                && self.is_lost(place.holder)
                && place.nodes_with_copy().all(|node| self.is_lost(node))
        })
    }

    /// Becomes the holder of a file whose bytes the archive has. They come when they are wanted.
    fn adopt(&self, folders: &Folders, name: ObjectName) -> Result<(), Errno> {
        let _under_way = self.leave.begin();
        if self.takes_nothing() {
            return Err(Errno::EBUSY);
        }
        let seal = folders.seal(name).map_err(os)?.ok_or(Errno::EIO)?;
        if folders.object(name).and_then(|object| object.metadata()).map_err(os)?.len() != seal.bytes {
            return Err(Errno::EIO);
        }
        let _telling = self.telling(name.id);
        let found = self.attributes(name.id)?;
        if !self.waits_for_adoption(name, &found) || found.bytes != seal.bytes {
            return Ok(());
        }
        self.prepare_adoption(name, &seal)?;
        let take = TakeOver { id: name.id, generation: name.generation, idle: false };
        match self.route_one(root(), Operation::TakeOver(take)) {
            Ok(_) => {
                tracing::info!("namespace: inode {} is this node's: the archive has its bytes", name.id);
                Ok(())
            }
            // It was removed, or written: the archive has other bytes than the file.
            Err(Errno::ESTALE) => {
                self.archive.records.remove(name);
                self.seals.remove(name);
                Ok(())
            }
            // Perhaps it was done: what was prepared stays.
            Err(errno) => Err(errno),
        }
    }

    /// Makes this node's disk that of a holder whose bytes are in the archive alone.
    fn prepare_adoption(&self, name: ObjectName, seal: &Seal) -> Result<(), Errno> {
        // What an earlier time as a holder, or a copy that does not count, left here.
        if self.objects.is_there(name) {
            self.objects.remove(name)?;
        }
        let _one = self.archive.one(name);
        self.seals.take(name, seal).map_err(os)?;
        let record = Record { looks: (seal.bytes, seal.modified_ns), away: true };
        self.archive.records.set(name, record).map_err(os)
    }
}
