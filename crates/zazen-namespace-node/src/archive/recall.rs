//! Brings bytes back from the archive when somebody wants them.

use crate::archive::records::Record;
use crate::archive::state::{Archive, os};
use crate::archive::sums;
use crate::folder::DataFolder;
use crate::incoming::Incoming;
use crate::objects::{Absent, ObjectName, Objects};
use crate::seals::Seals;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zazen_namespace::Errno;

/// Brings objects back, for [`Objects`].
struct Recall {
    archive: Arc<Archive>,
    seals: Arc<Seals>,
    /// Files that are coming back.
    incoming: Incoming,
}

/// From now on, `objects` brings back what is in the archive alone.
pub(crate) fn install(
    archive: &Arc<Archive>,
    objects: &Objects,
    seals: &Arc<Seals>,
    folder: &DataFolder,
) -> zazen_core::Result<()> {
    let incoming = Incoming::open(folder.sub("recalled")?)?;
    let recall = Recall { archive: Arc::clone(archive), seals: Arc::clone(seals), incoming };
    objects.bring_back_by(Box::new(recall));
    Ok(())
}

impl Absent for Recall {
    fn bring_back(&self, objects: &Objects, name: ObjectName) -> Result<bool, Errno> {
        if self.archive.records.get(name).is_none() {
            return Ok(false);
        }
        // An eviction that goes on may put it back.
        let _one = self.archive.one(name);
        let Some(record) = self.archive.records.get(name) else { return Ok(true) };
        if !record.away || objects.is_there(name) {
            return Ok(true);
        }
        let brought = self.bring(objects, name, record);
        if let Err(errno) = brought {
            self.incoming.remove(name);
            tracing::error!("namespace: inode {} does not come back from the archive: {errno}", name.id);
        }
        brought.map(|()| true)
    }

    fn gone(&self, name: ObjectName) {
        self.archive.records.remove(name);
    }
}

impl Recall {
    fn bring(&self, objects: &Objects, name: ObjectName, record: Record) -> Result<(), Errno> {
        let folders = self.archive.known_folders().map_err(|why| {
            self.archive.trouble(Some(why));
            Errno::EIO
        })?;
        let seal = self.seals.of_absent(name).ok_or(Errno::EIO)?;
        if (seal.bytes, seal.modified_ns) != record.looks {
            return Err(Errno::EIO);
        }
        let from = folders.object(name).map_err(os)?;
        let length = from.metadata().map_err(os)?.len();
        if length != seal.bytes {
            tracing::error!(
                "namespace: inode {}: the archive has {length} bytes of it, and {} were archived: somebody \
                 changed the archived file",
                name.id,
                seal.bytes
            );
            return Err(Errno::EIO);
        }
        let into = self.incoming.file(name, true)?;
        into.set_len(seal.bytes).map_err(os)?;
        sums::copy_checked(&from, (&into, 0), &seal, &mut |_| Ok(())).map_err(|error| match error {
            Some(error) => os(error),
            None => {
                tracing::error!(
                    "namespace: inode {}: bytes in the archive are not what was archived",
                    name.id
                );
                Errno::EIO
            }
        })?;
        self.incoming.finish(&into, seal.bytes, seal.modified_ns)?;
        // It was wanted now: what goes next is something else.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let stays = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        rustix::fs::futimens(&into, &Timestamps { last_access: now, last_modification: stays }).ok();
        objects.put(name, self.incoming.fd(), &name.file())?;
        self.archive.records.set(name, Record { away: false, ..record }).map_err(os)?;
        self.archive.brought.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
