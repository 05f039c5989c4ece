//! Operations on directories and their entries.

use super::change::Change;
use super::entry::{name_of, place_of};
use super::inode::Inode;
use super::machine::{Asking, Partition, Stop};
use super::mutant::Mutant;
use super::peer::{MakeChild, Part, PeerBody, Remove, Target};
use super::permission::{self, READ, SEARCH, WRITE};
use super::transaction::Transaction;
use crate::attributes::Kind;
use crate::operation::{
    ARCHIVE_WANTED, Answer, At, CHUNK_MIB_MAX, COPIES_WANTED, Create, CreateMany, Entry, Grant, Link, Listed,
    Listing, MANY_MAX, MakeDirectory, ManyCreated, Mode, ReadDirectory, Rename, Request, TARGET_BYTES_MAX,
};
use crate::{Errno, InodeId, PartitionNo};

/// The most bytes that a listing takes, whatever the client asks for.
const LISTING_BYTES_MAX: usize = 1 << 20;

type Answered = Result<Answer, Stop>;

impl Partition {
    /// A directory that has not been removed.
    pub(super) fn directory(&self, id: InodeId) -> Result<&Inode, Errno> {
        let here = id.partition() == self.number();
        // A bucket that is gone: its directory is not split any more, or was removed.
        let missing = if id.is_bucket() { Errno::ESTALE } else { Errno::ENOENT };
        let inode = self.tables.row(id.serial()).filter(|_| here).ok_or(missing)?;
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if inode.links == 0 { Err(Errno::ENOENT) } else { Ok(inode) }
    }

    /// Waits while a transaction holds the name.
    fn not_held(&self, at: (InodeId, &[u8])) -> Result<(), Stop> {
        let held = self.tables.holder(at.0, at.1).is_some() && !self.plants(Mutant::IgnoresHolds);
        if held { Err(Stop::Wait((at.0.0, at.1.into()))) } else { Ok(()) }
    }

    fn entry(&self, id: InodeId, kind: Kind) -> Entry {
        Entry { id, kind, attributes: self.attributes(id) }
    }

    /// Finds what a name leads to.
    pub(super) fn lookup(&self, call: &Asking<'_>, at: &At) -> Answered {
        self.not_frozen(at.directory)?;
        permission::check(call.caller, self.directory(at.directory)?, SEARCH)?;
        let name = at.name.as_bytes();
        // A name that is being made may be the last one of its inode: who links it holds the inode
        // already, so others may have removed the inode's other names.
        self.not_held((at.directory, name))?;
        let (_, entry) = self.tables.entries.find(at.directory, name).ok_or(Errno::ENOENT)?;
        Ok(Answer::Entry(self.entry(entry.id, entry.kind())))
    }

    /// Lists a part of a directory.
    pub(super) fn read_directory(&self, call: &Asking<'_>, read: &ReadDirectory) -> Answered {
        self.not_frozen(read.directory)?;
        permission::check(call.caller, self.directory(read.directory)?, READ)?;
        let mut room = (read.bytes_max as usize).min(LISTING_BYTES_MAX);
        let mut listing = Listing { entries: Vec::new(), end: true };
        for (cookie, entry) in self.tables.entries.behind(read.directory, read.cookie) {
            let Some(name) = name_of(entry.name()) else { continue };
            let attributes = if read.attributes { self.attributes(entry.id) } else { None };
            let bytes = 40 + name.as_bytes().len() + if attributes.is_some() { 140 } else { 0 };
            if bytes > room && !listing.entries.is_empty() {
                listing.end = false;
                break;
            }
            room = room.saturating_sub(bytes);
            let entry = Entry { id: entry.id, kind: entry.kind(), attributes };
            listing.entries.push(Listed { cookie, name, entry });
        }
        Ok(Answer::Listing(listing))
    }

    /// Tells which directory a directory is in.
    pub(super) fn parent(&self, id: InodeId) -> Answered {
        let parent = self.directory(id)?.parent();
        Ok(Answer::Entry(self.entry(parent, Kind::Directory)))
    }

    /// Makes an inode that is not a directory, or opens an existing file.
    pub(super) fn create(&mut self, call: &Asking<'_>, create: &Create) -> Answered {
        check_new(call, create)?;
        self.not_frozen(create.directory)?;
        let directory = *self.directory(create.directory)?;
        permission::check(call.caller, &directory, SEARCH)?;
        let name = create.name.as_bytes();
        self.not_held((create.directory, name))?;
        let place = match self.tables.entries.look(create.directory, name) {
            Ok((_, entry)) => {
                let (id, kind) = (entry.id, entry.kind());
                return self.open_existing(call, create, id, kind);
            }
            Err(place) => place,
        };
        permission::check(call.caller, &directory, WRITE)?;
        let place = self.unreserved(create.directory, name, place).ok_or(Errno::ENOSPC)?;
        let open = create.open.as_ref();
        let placed = open.is_some_and(|mode| mode.write) && !wants_chunks(create.chunk_mib);
        let id = self.make(call, &directory, create, place, placed);
        if create.kind == Kind::Symlink {
            self.change(&Change::LinkTarget { serial: id.serial(), target: &create.target });
        }
        let Some(mode) = open else {
            return Ok(Answer::Entry(self.entry(id, create.kind)));
        };
        self.add_open(call, id.serial(), mode);
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(Answer::Grant(Grant { attributes, created: true }))
    }

    fn open_existing(&mut self, call: &Asking<'_>, create: &Create, id: InodeId, kind: Kind) -> Answered {
        let Some(mode) = create.open.as_ref().filter(|_| !create.exclusive) else {
            return Err(Errno::EEXIST.into());
        };
        if id.partition() != self.number() {
            return Ok(Answer::Entry(Entry { id, kind, attributes: None }));
        }
        if kind == Kind::Directory {
            return Err(Errno::EISDIR.into());
        }
        self.open_inode(call, id, mode)
    }

    fn make(
        &mut self,
        call: &Asking<'_>,
        directory: &Inode,
        create: &Create,
        place: u64,
        placed: bool,
    ) -> InodeId {
        let (gid, mode) = permission::inherit(call.caller, directory, create.kind, create.mode);
        let serial = self.tables.next_serial;
        let id = InodeId::new(self.number(), serial);
        self.change(&Change::Make {
            serial,
            kind: create.kind,
            mode,
            uid: call.caller.uid,
            gid,
            holder_or_device: if placed { call.place.0 } else { create.device },
            generation: if placed { self.next_generation(0) } else { 0 },
            bytes: create.target.len() as u64,
            now_ns: call.now_ns,
        });
        let (name, kind) = (create.name.as_bytes(), create.kind);
        self.change(&Change::Enter { directory: create.directory.0, place, id, kind, name });
        if create.kind == Kind::File {
            self.wish(serial, create.copies, create.archived);
            self.wish_chunks(serial, create.chunk_mib);
        }
        let serial = create.directory.serial();
        self.change(&Change::Touch { serial, now_ns: call.now_ns, entries: 1, links: 0 });
        self.watch_size(create.directory);
        id
    }

    /// Gives a new file the attributes that say how many nodes shall have it, and whether the
    /// archive shall.
    fn wish(&mut self, serial: u64, copies: u8, archived: Option<bool>) {
        if copies > 0 {
            let value = copies.to_string();
            let (name, value) = (COPIES_WANTED, Some(value.as_bytes()));
            self.change(&Change::Xattr { serial, name, value });
        }
        if let Some(archived) = archived {
            let value: &[u8] = if archived { b"yes" } else { b"no" };
            self.change(&Change::Xattr { serial, name: ARCHIVE_WANTED, value: Some(value) });
        }
    }

    /// Makes many empty files in one directory.
    pub(super) fn create_many(&mut self, call: &Asking<'_>, many: &CreateMany) -> Answered {
        if many.names.len() > MANY_MAX || many.chunk_mib.is_some_and(|mib| mib > CHUNK_MIB_MAX) {
            return Err(Errno::EINVAL.into());
        }
        self.not_frozen(many.directory)?;
        let directory = *self.directory(many.directory)?;
        permission::check(call.caller, &directory, SEARCH)?;
        many.names.iter().try_for_each(|name| self.not_held((many.directory, name.as_bytes())))?;
        let (gid, mode) = permission::inherit(call.caller, &directory, Kind::File, many.mode);
        let may_write = permission::check(call.caller, &directory, WRITE);
        let mut results = Vec::with_capacity(many.names.len());
        for name in &many.names {
            let name = name.as_bytes();
            let place = match self.tables.entries.look(many.directory, name) {
                Ok(_) => Err(Errno::EEXIST),
                Err(place) => {
                    may_write.and_then(|()| self.unreserved(many.directory, name, place).ok_or(Errno::ENOSPC))
                }
            };
            let place = match place {
                Ok(place) => place,
                Err(errno) => {
                    results.push((InodeId(0), Some(errno)));
                    continue;
                }
            };
            let (serial, kind, now_ns) = (self.tables.next_serial, Kind::File, call.now_ns);
            let uid = call.caller.uid;
            self.change(&Change::Make {
                serial,
                kind,
                mode,
                uid,
                gid,
                holder_or_device: 0,
                generation: 0,
                bytes: 0,
                now_ns,
            });
            let id = InodeId::new(self.number(), serial);
            self.change(&Change::Enter { directory: many.directory.0, place, id, kind, name });
            self.wish(serial, many.copies, many.archived);
            self.wish_chunks(serial, many.chunk_mib);
            results.push((id, None));
        }
        let made = results.iter().filter(|(_, errno)| errno.is_none()).count() as i64;
        if made > 0 {
            let (serial, now_ns) = (many.directory.serial(), call.now_ns);
            self.change(&Change::Touch { serial, now_ns, entries: made, links: 0 });
            self.watch_size(many.directory);
        }
        Ok(Answer::Created(ManyCreated { results }))
    }

    /// The directory for a new name, if the caller may make one and it is free.
    fn for_new_name(&self, call: &Asking<'_>, id: InodeId, name: &[u8]) -> Result<Inode, Stop> {
        self.not_frozen(id)?;
        let directory = *self.directory(id)?;
        permission::check(call.caller, &directory, SEARCH)?;
        self.not_held((id, name))?;
        if self.tables.entries.find(id, name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        permission::check(call.caller, &directory, WRITE)?;
        self.place_for(id, name).ok_or(Errno::ENOSPC)?;
        Ok(directory)
    }

    /// The partition for a new directory: directories spread by a hash of what will be their names'
    /// surroundings, and of how many there were.
    fn partition_of_child(&self, parent: InodeId, name: &[u8]) -> PartitionNo {
        let mixed = place_of(name) ^ parent.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ self.tables.next_serial).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 24;
        PartitionNo((mixed % u64::from(self.settings.partitions.max(1))) as u32)
    }

    /// Makes a directory, here or elsewhere.
    pub(super) fn make_directory(
        &mut self,
        call: &Asking<'_>,
        request: &Request,
        make: &MakeDirectory,
    ) -> Answered {
        let name = make.name.as_bytes();
        let directory = self.for_new_name(call, make.directory, name)?;
        if directory.links >= self.settings.links_max {
            return Err(Errno::EMLINK.into());
        }
        let (gid, mode) = permission::inherit(call.caller, &directory, Kind::Directory, make.mode);
        let child = MakeChild {
            partition: self.partition_of_child(make.directory, name),
            parent: make.directory,
            mode: mode.into(),
            uid: call.caller.uid,
            gid,
        };
        if child.partition != self.number() {
            let mut transaction = self.with_name(request, make.directory, name, None);
            transaction.child = Some(child);
            return Err(Stop::Transaction(transaction));
        }
        match self.execute_part(call.now_ns, (self.number(), 0), &Part::MakeChild(child)) {
            Some(PeerBody::Changed(made)) => {
                let id = made.attributes.id;
                let target = Target { id, kind: Kind::Directory };
                self.set_entry(call.now_ns, make.directory, name, Some(target))?;
                self.watch_size(make.directory);
                Ok(Answer::Entry(self.entry(id, Kind::Directory)))
            }
            _ => Err(Errno::EIO.into()),
        }
    }

    /// A transaction on one name, which it holds from now on.
    fn with_name(
        &mut self,
        request: &Request,
        directory: InodeId,
        name: &[u8],
        target: Option<Target>,
    ) -> Box<Transaction> {
        self.hold(directory, name, (self.number(), self.tables.next_transaction));
        Box::new(Transaction::of_name(request.clone(), target))
    }

    /// What a name leads to that the caller may remove, its place, and who must own it.
    fn to_remove(&self, call: &Asking<'_>, at: &At) -> Result<(Target, u64, Option<u32>), Stop> {
        self.not_frozen(at.directory)?;
        let directory = self.directory(at.directory)?;
        permission::check(call.caller, directory, SEARCH)?;
        let name = at.name.as_bytes();
        let (place, entry) = self.tables.entries.find(at.directory, name).ok_or(Errno::ENOENT)?;
        self.not_held((at.directory, name))?;
        permission::check(call.caller, directory, WRITE)?;
        let target = Target { id: entry.id, kind: entry.kind() };
        Ok((target, place, permission::owner_only(call.caller, directory)))
    }

    /// Removes a name that is not a directory's.
    pub(super) fn unlink(&mut self, call: &Asking<'_>, request: &Request, at: &At) -> Answered {
        let (target, place, owner) = self.to_remove(call, at)?;
        if target.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        self.remove(call, request, at, (target, place, owner))
    }

    /// Removes an empty directory.
    pub(super) fn remove_directory(&mut self, call: &Asking<'_>, request: &Request, at: &At) -> Answered {
        let (target, place, owner) = self.to_remove(call, at)?;
        if !target.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        self.remove(call, request, at, (target, place, owner))
    }

    fn remove(
        &mut self,
        call: &Asking<'_>,
        request: &Request,
        at: &At,
        (target, place, owner): (Target, u64, Option<u32>),
    ) -> Answered {
        if target.id.partition() != self.number() || self.is_split(target.id) {
            let mut transaction = self.with_name(request, at.directory, at.name.as_bytes(), Some(target));
            transaction.owner = owner;
            return Err(Stop::Transaction(transaction));
        }
        let part = Part::Remove(Remove { id: target.id, owner });
        match self.execute_part(call.now_ns, (self.number(), 0), &part) {
            Some(PeerBody::Done) => {}
            Some(PeerBody::Refused(refused)) => return Err(refused.errno.into()),
            // A name in the directory that goes is held.
            _ => {
                let held = self.tables.names_held(target.id).next().ok_or(Errno::EIO)?;
                return Err(Stop::Wait((target.id.0, held.into())));
            }
        }
        self.change(&Change::Leave { directory: at.directory.0, place });
        let links = -i64::from(target.is_directory());
        let (serial, now_ns) = (at.directory.serial(), call.now_ns);
        self.change(&Change::Touch { serial, now_ns, entries: -1, links });
        Ok(Answer::Done)
    }

    /// Gives an inode another name.
    pub(super) fn link(&mut self, call: &Asking<'_>, request: &Request, link: &Link) -> Answered {
        let name = link.name.as_bytes();
        self.for_new_name(call, link.directory, name)?;
        Err(Stop::Transaction(self.with_name(request, link.directory, name, None)))
    }

    /// Gives an entry another name.
    pub(super) fn rename(&mut self, request: &Request, rename: &Rename) -> Answered {
        if rename.no_replace && rename.exchange {
            return Err(Errno::EINVAL.into());
        }
        if (rename.directory, &rename.name) != (rename.new_directory, &rename.new_name) {
            return Err(Stop::Transaction(Box::new(Transaction::of_rename(request.clone()))));
        }
        self.not_frozen(rename.directory)?;
        let directory = self.directory(rename.directory)?;
        permission::check(&request.credentials, directory, SEARCH)?;
        let name = rename.name.as_bytes();
        self.not_held((rename.directory, name))?;
        self.tables.entries.find(rename.directory, name).ok_or(Errno::ENOENT)?;
        if rename.no_replace { Err(Errno::EEXIST.into()) } else { Ok(Answer::Done) }
    }
}

/// Checks what `Create` asks for, whatever is there.
fn check_new(call: &Asking<'_>, create: &Create) -> Result<(), Errno> {
    let (is_link, is_file) = (create.kind == Kind::Symlink, create.kind == Kind::File);
    let odd = create.kind == Kind::Directory
        || (!is_link && !create.target.is_empty())
        || (!is_file && (create.open.is_some() || wants_chunks(create.chunk_mib)))
        || create.chunk_mib.is_some_and(|mib| mib > CHUNK_MIB_MAX);
    if odd {
        return Err(Errno::EINVAL);
    }
    if is_link && create.target.is_empty() {
        return Err(Errno::ENOENT);
    }
    if create.target.len() > TARGET_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let device = matches!(create.kind, Kind::CharDevice | Kind::BlockDevice);
    if device && call.caller.uid != 0 {
        return Err(Errno::EPERM);
    }
    if !device && create.device != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Whether a new file gets chunks.
fn wants_chunks(mib: Option<u32>) -> bool {
    mib.is_some_and(|mib| mib > 0)
}

/// Modes for opening: at least one of reading and writing, or nothing can be done with it.
pub(super) fn check_mode(mode: &Mode) -> Result<(), Errno> {
    if mode.read || mode.write || mode.truncate { Ok(()) } else { Err(Errno::EINVAL) }
}
