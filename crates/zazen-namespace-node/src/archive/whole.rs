//! Files in chunks, as users see them in the archive.
//!
//! Holders archive chunks as they archive files, each by itself. The node that makes the names puts
//! the archived chunks of a file together to one more archived object, the file's *whole*. Its name
//! says as of which state of the chunks it is, so nobody needs to remember which it was.
//!
//! A whole is only for users. Nodes read archived chunks.

use crate::archive::drain::dress;
use crate::archive::folders::Folders;
use crate::archive::state::{ArchiveTold, os};
use crate::archive::sums::{copy_checked, right_bytes};
use crate::folder::sub;
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName};
use crate::seals::Seal;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use zazen_namespace::{Attributes, Errno, InodeId};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::codec::Writer;

/// A chunk with bytes.
struct Part {
    name: ObjectName,
    start: u64,
    bytes: u64,
}

/// A file whose chunks are all archived.
struct Ready {
    found: Attributes,
    parts: Vec<Part>,
    /// As of which state of the chunks it is: other bytes, another state.
    state: u64,
}

impl NamespaceNode {
    /// Makes the wholes that are wanted.
    pub(crate) fn make_wholes(&self, told: &ArchiveTold) {
        let Some(mut id) = self.archive.wholes.next() else { return };
        let Ok(folders) = self.archive_folders(told) else { return };
        while !self.stopping.load(Ordering::Relaxed) {
            let made = self.make_whole(told, &folders, id);
            if let Err(errno) = made {
                tracing::debug!("namespace: inode {id}, in chunks, is not put together: {errno}");
            }
            self.archive.wholes.told(id, made);
            match self.archive.wholes.next() {
                Some(next) => id = next,
                None => return,
            }
        }
    }

    fn make_whole(&self, told: &ArchiveTold, folders: &Folders, id: InodeId) -> Result<(), Errno> {
        let (me, _) = self.joined_soon()?;
        let ready = self.ready(id)?;
        let name = ObjectName { id, generation: ready.state };
        if rustix::fs::statat(&folders.objects, name.path(), AtFlags::SYMLINK_NOFOLLOW).is_err() {
            // Another node may believe that it makes the names, too.
            let mine = format!(".whole-{me}");
            // What a killed daemon left.
            remove(&folders.parts, |name| name.ends_with(&mine))?;
            let part = format!("{}{mine}", name.file());
            let put = self.put_together(told, folders, &ready, (name, &part));
            if put.is_err() {
                rustix::fs::unlinkat(&folders.parts, &part[..], AtFlags::empty()).ok();
            }
            put?;
        }
        self.archive.wholes.made(&ready.found, ready.state);
        remove_others(folders, name)
    }

    /// The file as it is, if nobody writes it and all its chunks are archived. Else `EAGAIN`.
    fn ready(&self, id: InodeId) -> Result<Ready, Errno> {
        let found = self.attributes(id)?;
        let chunks = found.chunks.filter(|chunks| !chunks.writing).ok_or(Errno::EAGAIN)?;
        let mut parts = Vec::new();
        let mut words = Writer::new();
        words.u64(found.bytes);
        words.u64(chunks.chunk_bytes);
        self.each_chunk(id, 0, false, &mut |list| {
            for chunk in list.iter().filter(|chunk| chunk.bytes > 0) {
                let of = chunk.chunk_of.as_ref().ok_or(Errno::EIO)?;
                let place = chunk.place.as_ref().filter(|place| !place.writing && place.is_archived());
                let generation = place.ok_or(Errno::EAGAIN)?.generation;
                let name = ObjectName { id: chunk.id, generation };
                [of.index, name.id.0, generation, chunk.bytes].into_iter().for_each(|word| words.u64(word));
                words.u64(chunk.modified_ns.cast_unsigned());
                parts.push(Part { name, start: of.offset(), bytes: chunk.bytes });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Ready { found, parts, state: frame_checksum(&words.into_bytes()) })
    }

    /// Copies archived chunks to one file, compares it with their checksums, and makes it an
    /// archived object.
    fn put_together(
        &self,
        told: &ArchiveTold,
        folders: &Folders,
        ready: &Ready,
        (name, part): (ObjectName, &str),
    ) -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let into = rustix::fs::openat(&folders.parts, part, flags, Mode::from_raw_mode(0o600));
        let into = File::from(into.map_err(objects::errno)?);
        into.set_len(ready.found.bytes).map_err(os)?;
        let mut pace = |bytes: usize| {
            let paced = self.archive_pace(told, bytes);
            paced.map_err(|errno| std::io::Error::from_raw_os_error(i32::from(errno as u16)))
        };
        for chunk in &ready.parts {
            let seal = seal(folders, chunk)?;
            let from = folders.object(chunk.name).map_err(os)?;
            copy_checked(&from, (&into, chunk.start), &seal, &mut pace).map_err(|error| match error {
                Some(error) => os(error),
                None => other_bytes(chunk.name),
            })?;
        }
        // Read again from the store, as far as the kernel lets go of its pages.
        into.sync_data().map_err(os)?;
        rustix::fs::fadvise(&into, 0, None, Advice::DontNeed).ok();
        for chunk in &ready.parts {
            if right_bytes(&into, chunk.start, &seal(folders, chunk)?).map_err(os)? < chunk.bytes {
                return Err(other_bytes(chunk.name));
            }
        }
        dress(&into, &ready.found).map_err(os)?;
        into.sync_all().map_err(os)?;
        // What was changed meanwhile is made anew.
        if self.ready(name.id)?.state != ready.state {
            return Err(Errno::EAGAIN);
        }
        let folder = sub(folders.objects.as_fd(), &name.folder()).map_err(os)?;
        rustix::fs::renameat(&folders.parts, part, &folder, name.file()).map_err(objects::errno)?;
        rustix::fs::fsync(&folder).map_err(objects::errno)
    }
}

/// The checksums of an archived chunk. `EAGAIN` if they are of other bytes: it is archived again.
fn seal(folders: &Folders, chunk: &Part) -> Result<Seal, Errno> {
    let seal = folders.seal(chunk.name).map_err(os)?;
    seal.filter(|seal| seal.bytes == chunk.bytes).ok_or(Errno::EAGAIN)
}

fn other_bytes(name: ObjectName) -> Errno {
    tracing::error!("namespace: inode {}, a chunk: the archive has other bytes than were written", name.id);
    Errno::EIO
}

/// Removes wholes of other states of the file. What the tree shows of them stays until it shows the
/// new one.
fn remove_others(folders: &Folders, name: ObjectName) -> Result<(), Errno> {
    let folder = sub(folders.objects.as_fd(), &name.folder()).map_err(os)?;
    remove(&folder, |other| {
        ObjectName::parse(other)
            .is_some_and(|other| other.id == name.id && other.generation != name.generation)
    })
}

/// Removes files of a folder.
fn remove(folder: &OwnedFd, goes: impl Fn(&str) -> bool) -> Result<(), Errno> {
    for entry in rustix::fs::Dir::read_from(folder).map_err(objects::errno)? {
        let entry = entry.map_err(objects::errno)?;
        if entry.file_name().to_str().is_ok_and(&goes) {
            rustix::fs::unlinkat(folder, entry.file_name(), AtFlags::empty()).ok();
        }
    }
    Ok(())
}
