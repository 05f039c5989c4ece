//! Copies closed files to the archive.

use crate::archive::folders::Folders;
use crate::archive::records::Record;
use crate::archive::state::{ArchiveTold, os};
use crate::archive::sums::{CHUNK_BYTES, right_bytes};
use crate::driver::wall_ns;
use crate::folder::sub;
use crate::node::NamespaceNode;
use crate::objects::{self, Act, Object, ObjectName, ObjectStat};
use crate::route::root;
use crate::seals::Seal;
use crate::wish::Wish;
use rustix::fs::{Advice, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zazen_namespace::archive::{Held, Step, step};
use zazen_namespace::operation::{Copied, Operation};
use zazen_namespace::service::namespace_fn;
use zazen_namespace::{ARCHIVE, Attributes, Errno};

const NS: i64 = 1_000_000_000;
/// Folders of objects that are looked at together for those that do not wait and should.
const FOLDERS_AT_ONCE: usize = 64;

/// What became of a file.
pub(crate) enum Drained {
    /// The archive has it as it is, or shall not have it, or it is not this node's any more.
    Done,
    /// It is too early: it is being written, or was a moment ago.
    Later,
}

impl NamespaceNode {
    /// Archives some files that are due.
    pub(crate) fn archive_some(&self, told: &ArchiveTold) {
        self.archive_scan();
        let due = self.archive.waiting.due();
        if due.is_empty() {
            return;
        }
        let Ok(folders) = self.archive_folders(told) else { return };
        let ids: Vec<_> = due.iter().map(|name| name.id).collect();
        let wanted = self.wishes_of(Wish::Archive, &ids);
        for ((name, found), wanted) in due.iter().zip(self.attributes_of(&ids)).zip(wanted) {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let drained = match (found, wanted) {
                (Ok(None), _) | (_, Ok(0)) => Ok(Drained::Done),
                (Ok(Some(found)), Ok(_)) => self.archive_one(told, &folders, *name, &found),
                // Its partition does not answer: that is no failure of the archive.
                (Err(_), _) | (_, Err(_)) => Ok(Drained::Later),
            };
            match drained {
                Ok(Drained::Done) => {
                    // Of a file that was removed, or has other bytes by now.
                    rustix::fs::unlinkat(&folders.parts, name.file(), AtFlags::empty()).ok();
                    self.archive.waiting.done(*name);
                    self.archive.failed(*name, None);
                }
                Ok(Drained::Later) => self.archive.waiting.later(*name),
                Err(Errno::EINTR) => return,
                Err(errno) => {
                    tracing::debug!("namespace: archiving inode {}: {errno}", name.id);
                    if errno == Errno::ENOSPC {
                        // A smaller file may have room.
                        rustix::fs::unlinkat(&folders.parts, name.file(), AtFlags::empty()).ok();
                    }
                    self.archive.failed(*name, Some(errno));
                    self.archive.waiting.later(*name);
                }
            }
        }
    }

    fn archive_one(
        &self,
        told: &ArchiveTold,
        folders: &Folders,
        name: ObjectName,
        found: &Attributes,
    ) -> Result<Drained, Errno> {
        let (me, _) = self.joined_soon()?;
        let at = found.place.as_ref().filter(|at| (at.holder, at.generation) == (me, name.generation));
        let Some(at) = at else { return Ok(Drained::Done) };
        let record = self.archive.records.get(name);
        if record.is_some_and(|record| record.away) && !self.objects.is_there(name) {
            return Ok(Drained::Done);
        }
        let object = match self.objects.open(name) {
            Err(Errno::ESTALE) => return Ok(Drained::Done),
            opened => opened?,
        };
        let stat = objects::stat(&object)?;
        if stat.bytes == 0 {
            return Ok(Drained::Done);
        }
        let seal = self.seals.get(name, &stat);
        let held = Held {
            writing: at.writing,
            looks: (stat.bytes, stat.modified_ns),
            sealed: seal.is_some(),
            archived: record.map(|record| record.looks),
        };
        let after_ns = i64::try_from(told.after.as_nanos()).unwrap_or(i64::MAX);
        match (step(&held, wall_ns(), after_ns), seal) {
            (Step::Done, _) if at.is_archived() => Ok(Drained::Done),
            (Step::Done, Some(seal)) => self.tell_archived(folders, name, &seal, found),
            (Step::Copy, Some(seal)) => {
                self.copy_to_archive(told, folders, name, &object, &stat, &seal, found)?;
                self.tell_archived(folders, name, &seal, found)
            }
            _ => Ok(Drained::Later),
        }
    }

    /// Tells the metadata that the archive has a file, so that others read it there if this node is
    /// lost. `found` is from before the object was found to be as archived: a file that was written
    /// since has another version.
    fn tell_archived(
        &self,
        folders: &Folders,
        name: ObjectName,
        seal: &Seal,
        found: &Attributes,
    ) -> Result<Drained, Errno> {
        folders.put_seal(name, seal).map_err(os)?;
        let (generation, version) = (name.generation, found.version);
        let copied = Copied { id: name.id, generation, version, copies: vec![ARCHIVE], more: Some(true) };
        match self.route_one(root(), Operation::Copied(copied)) {
            Ok(_) => Ok(Drained::Done),
            // It was changed meanwhile, or its partition does not answer.
            Err(errno) => {
                tracing::debug!("namespace: inode {} is archived, and not told: {errno}", name.id);
                Ok(Drained::Later)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one file as all its keepers see it")]
    fn copy_to_archive(
        &self,
        told: &ArchiveTold,
        folders: &Folders,
        name: ObjectName,
        object: &Object,
        stat: &ObjectStat,
        seal: &Seal,
        found: &Attributes,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let part = rustix::fs::openat(&folders.parts, name.file(), flags, Mode::from_raw_mode(0o600));
        if part.as_ref().is_err_and(|errno| *errno == rustix::io::Errno::ACCESS) {
            // A crash came between its mode and its place: only root may go on with it.
            rustix::fs::unlinkat(&folders.parts, name.file(), AtFlags::empty()).map_err(objects::errno)?;
            return Err(Errno::EAGAIN);
        }
        let part = File::from(part.map_err(objects::errno)?);
        let mut at = right_bytes(&part, 0, seal).map_err(os)?;
        part.set_len(at).map_err(os)?;
        while at < stat.bytes {
            let seek = Act { what: namespace_fn::SEEK, offset: at, bytes: 0, flags: 0 };
            // What is a hole here is one there: a chunk with a byte in it is copied as a whole.
            let data = match objects::act(object, seek) {
                Ok(data) => data,
                Err(Errno::ENXIO) => break,
                Err(errno) => return Err(errno),
            };
            at = at.max(data / CHUNK_BYTES * CHUNK_BYTES);
            let wanted = (stat.bytes - at).min(CHUNK_BYTES) as usize;
            let bytes = self.seals.read(name, object, at, wanted)?;
            if bytes.len() < wanted {
                return Err(Errno::EAGAIN);
            }
            part.write_all_at(&bytes, at).map_err(os)?;
            at += bytes.len() as u64;
            self.archive_pace(told, bytes.len())?;
        }
        part.set_len(stat.bytes).map_err(os)?;
        // Read again from the store, as far as the kernel lets go of its pages.
        part.sync_data().map_err(os)?;
        rustix::fs::fadvise(&part, 0, None, Advice::DontNeed).ok();
        if right_bytes(&part, 0, seal).map_err(os)? < stat.bytes {
            rustix::fs::unlinkat(&folders.parts, name.file(), AtFlags::empty()).ok();
            tracing::error!("namespace: inode {}: the archive has other bytes than were written", name.id);
            return Err(Errno::EIO);
        }
        dress(&part, found).map_err(os)?;
        part.sync_all().map_err(os)?;
        let folder = sub(folders.objects.as_fd(), &name.folder()).map_err(os)?;
        rustix::fs::renameat(&folders.parts, name.file(), &folder, name.file()).map_err(objects::errno)?;
        rustix::fs::fsync(&folder)
            .and_then(|()| rustix::fs::fsync(&folders.objects))
            .map_err(objects::errno)?;
        if objects::stat(object)? != *stat {
            return Err(Errno::EAGAIN);
        }
        let record = Record { looks: (stat.bytes, stat.modified_ns), away: false };
        self.archive.records.set(name, record).map_err(os)
    }

    /// Waits as the rate says. `EINTR` if the daemon stops.
    pub(super) fn archive_pace(&self, told: &ArchiveTold, bytes: usize) -> Result<(), Errno> {
        if told.bytes_per_s > 0 {
            std::thread::sleep(Duration::from_secs_f64(bytes as f64 / told.bytes_per_s as f64));
        }
        if self.stopping.load(Ordering::Relaxed) { Err(Errno::EINTR) } else { Ok(()) }
    }

    /// Notes objects that an earlier life of the daemon left, or for which there was no room.
    fn archive_scan(&self) {
        for _ in 0..FOLDERS_AT_ONCE {
            let Some(folder) = self.archive.next_folder() else { return };
            let names = match self.objects.folder(folder) {
                Some(Ok(names)) => names,
                Some(Err(errno)) => {
                    tracing::error!(
                        "namespace: folder {folder:03x} of the objects cannot be listed: {errno}; files in \
                         it are not archived before the next start or write"
                    );
                    Vec::new()
                }
                None => Vec::new(),
            };
            names.into_iter().for_each(|name| self.archive.note(name));
        }
    }
}

/// Gives an archived file the owner, mode and times that the namespace says. If it cannot have the
/// owner, nobody else may read it. Set-id bits stay behind.
pub(crate) fn dress(file: &File, found: &Attributes) -> std::io::Result<()> {
    // Root reads all; another daemon must be able to bring the bytes back.
    let own = if rustix::process::geteuid().is_root() { 0 } else { 0o400 };
    let mode = found.mode & 0o777 | own;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) };
    let times =
        Timestamps { last_access: time(found.accessed_ns), last_modification: time(found.modified_ns) };
    rustix::fs::futimens(file, &times)?;
    match rustix::fs::fchown(file, Some(Uid::from_raw(found.uid)), Some(Gid::from_raw(found.gid))) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o700))?),
        Err(errno) => Err(errno.into()),
    }
}
