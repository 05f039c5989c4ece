//! Lets bytes go from this node's disk that the archive has.

use crate::archive::folders::Folders;
use crate::archive::records::Record;
use crate::archive::state::{ArchiveTold, os};
use crate::lease::is_only_user;
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use zazen_namespace::archive::{Candidate, victims};
use zazen_namespace::{Attributes, Errno};

/// Archived files that are looked at together for those that were used longest ago.
const LOOKED_AT: usize = 4096;

impl NamespaceNode {
    /// Lets local bytes go that the archive has, if the disk lacks space.
    pub(crate) fn evict_some(&self, told: &ArchiveTold) {
        let Ok(disk) = self.objects.disk() else { return };
        let lacking = told.keep_free.lacks(disk.bytes, disk.bytes_free);
        if lacking == 0 {
            return;
        }
        let Ok(folders) = self.archive_folders(told) else { return };
        let mut at = self.archive.evict_at.load(Ordering::Relaxed);
        let some = self.archive.records.here(LOOKED_AT, &mut at);
        self.archive.evict_at.store(at, Ordering::Relaxed);
        let candidates = some.iter().filter_map(|(name, record)| self.candidate(*name, record)).collect();
        let names = victims(candidates, lacking);
        let ids: Vec<_> = names.iter().map(|name| name.id).collect();
        for (name, found) in names.iter().zip(self.attributes_of(&ids)) {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let Ok(Some(found)) = found else { continue };
            match self.evict(&folders, *name, &found) {
                Ok(_) => {}
                Err(errno) => {
                    tracing::debug!("namespace: the bytes of inode {} stay here: {errno}", name.id);
                }
            }
        }
    }

    fn candidate(&self, name: ObjectName, record: &Record) -> Option<Candidate<ObjectName>> {
        let meta = self.objects.look(name)?;
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        let modified_ns = ns(meta.mtime(), meta.mtime_nsec());
        if (meta.len(), modified_ns) != record.looks {
            return None;
        }
        let used_ns = modified_ns.max(ns(meta.atime(), meta.atime_nsec()));
        Some(Candidate { of: name, bytes: meta.blocks() * 512, used_ns })
    }

    /// Lets the local bytes of a file go. False if somebody uses it, or it is not as archived.
    fn evict(&self, folders: &Folders, name: ObjectName, found: &Attributes) -> Result<bool, Errno> {
        let (me, _) = self.joined_soon()?;
        let is_ours = found
            .place
            .as_ref()
            .is_some_and(|at| (at.holder, at.generation) == (me, name.generation) && !at.writing);
        if !is_ours || self.seals.is_damaged(name) {
            return Ok(false);
        }
        let _one = self.archive.one(name);
        let Some(record) = self.archive.records.get(name).filter(|record| !record.away) else {
            return Ok(false);
        };
        let seal = self.seals.of_absent(name).ok_or(Errno::EAGAIN)?;
        // The archive's file is still there. Its bytes were read again after they were written, and
        // are compared with their checksums when they come back.
        let there = folders.object(name).and_then(|file| file.metadata()).map_err(os)?;
        if (seal.bytes, seal.modified_ns) != record.looks || there.len() != seal.bytes {
            self.archive.records.remove(name);
            self.archive.note(name);
            return Ok(false);
        }
        self.seals.sync(name).map_err(os)?;
        self.archive.records.set(name, Record { away: true, ..record }).map_err(os)?;
        let is_unused = |object: &File| {
            let stat = objects::stat(object)?;
            Ok((stat.bytes, stat.modified_ns) == record.looks && is_only_user(object))
        };
        let went = self.objects.set_aside(name, self.archive.aside.as_fd(), &is_unused);
        match went {
            Ok(true) => Ok(true),
            other => {
                // Still here, unless the file was removed meanwhile.
                if self.archive.records.get(name).is_some() {
                    self.archive.records.set(name, Record { away: false, ..record }).map_err(os)?;
                }
                other
            }
        }
    }
}
