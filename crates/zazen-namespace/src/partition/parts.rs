//! The parts of transactions, executed on the partition's own tables. `None`: it waits.

use super::change::Change;
use super::entry::place_of;
use super::inode::Inode;
use super::machine::Partition;
use super::mutant::Mutant;
use super::peer::{
    AT_NAME, AddLink, Changed, Check, Free, Held, Hold, IN_DIRECTORY, MakeChild, Moved, NotDone, NotHeld,
    OfDirectory, Part, PeerBody, Remove, SetEntry, TO_WRITE, Target,
};
use super::permission;
use super::tables::TransactionId;
use crate::attributes::Kind;
use crate::{Errno, InodeId};

/// What executing a part on the tables comes to.
type Executed = Result<PeerBody, Errno>;

impl Partition {
    /// Executes a part of a transaction, once.
    pub(super) fn execute_part(&mut self, now_ns: i64, id: TransactionId, part: &Part) -> Option<PeerBody> {
        let executed = match part {
            Part::Hold(hold) if self.is_frozen(hold.directory) => return None,
            Part::Hold(hold) => match self.tables.holder(hold.directory, hold.name.as_bytes()) {
                Some(other) if other != id => return None,
                _ => Ok(self.part_hold(id, hold)),
            },
            Part::SetEntry(set) => self.part_set_entry(now_ns, id, set),
            Part::Free(free) => self.part_free(id, free),
            Part::MakeChild(make) => self.part_make_child(now_ns, make),
            Part::Remove(remove) if self.is_split(remove.id) => self.merge_to_remove(id, remove)?,
            Part::Remove(remove) => self.part_remove(now_ns, remove),
            Part::MakeBucket(make) => self.part_make_bucket(now_ns, make),
            Part::SetRights(set) => self.part_set_rights(now_ns, set),
            Part::CloseBucket(of) => self.part_close_bucket(id, of.id),
            Part::OpenBucket(of) | Part::Thaw(of) => self.part_thaw(id, of.id),
            Part::DropBucket(of) => self.part_drop_bucket(id, of.id),
            Part::Install(install) => self.part_install(id, install),
            Part::AddLink(link) => self.part_add_link(now_ns, link),
            Part::Check(check) => self.part_check(check),
            Part::Moved(moved) => self.part_moved(now_ns, moved),
            Part::Parent(of) => self.part_parent(of),
            Part::TakeMoveLock => match self.tables.move_lock {
                Some(other) if other != id && !self.plants(Mutant::MovesWithoutLock) => return None,
                _ => {
                    self.change(&Change::MoveLock { holder: Some(id) });
                    Ok(PeerBody::Done)
                }
            },
            Part::FreeMoveLock => {
                if self.tables.move_lock == Some(id) {
                    self.change(&Change::MoveLock { holder: None });
                    self.waiting.freed = true;
                }
                Ok(PeerBody::Done)
            }
        };
        Some(executed.unwrap_or_else(|errno| PeerBody::Refused(NotDone { errno })))
    }

    fn inode(&self, id: InodeId) -> Result<Inode, Errno> {
        self.tables.row(id.serial()).copied().ok_or(Errno::ESTALE)
    }

    fn part_hold(&mut self, id: TransactionId, hold: &Hold) -> PeerBody {
        match self.may_hold(hold) {
            Ok(held) => {
                self.hold(hold.directory, hold.name.as_bytes(), id);
                PeerBody::Held(held)
            }
            Err(not_held) if hold.tells_where == Some(true) => PeerBody::NotHeld(not_held),
            Err(NotHeld { errno, .. }) => PeerBody::Refused(NotDone { errno }),
        }
    }

    fn may_hold(&self, hold: &Hold) -> Result<Held, NotHeld> {
        let met = |at: u8| move |errno: Errno| NotHeld { errno, at };
        let directory = *self.directory(hold.directory).map_err(met(IN_DIRECTORY))?;
        if self.is_split(hold.directory) {
            return Err(met(IN_DIRECTORY)(Errno::ESTALE));
        }
        let check = |bits| permission::check(&hold.credentials, &directory, bits);
        check(permission::SEARCH).map_err(met(IN_DIRECTORY))?;
        let name = hold.name.as_bytes();
        let found = self.tables.entries.find(hold.directory, name);
        let target = found.map(|(_, entry)| Target { id: entry.id, kind: entry.kind() });
        if hold.existing && target.is_none() {
            return Err(met(AT_NAME)(Errno::ENOENT));
        }
        if hold.missing && target.is_some() {
            return Err(met(AT_NAME)(Errno::EEXIST));
        }
        check(permission::WRITE).map_err(met(TO_WRITE))?;
        if target.is_none() {
            self.place_for(hold.directory, name).ok_or(met(TO_WRITE)(Errno::ENOSPC))?;
        }
        let of = if hold.directory.is_bucket() { directory.parent() } else { hold.directory };
        Ok(Held {
            directory: of,
            target,
            owner_only: permission::owner_only(&hold.credentials, &directory).is_some(),
            full: directory.links >= self.settings.links_max,
        })
    }

    /// Holds a name for a transaction.
    pub(super) fn hold(&mut self, directory: InodeId, name: &[u8], (driver, transaction): TransactionId) {
        if self.tables.holder(directory, name).is_none() {
            self.change(&Change::Hold { directory: directory.0, name, driver, transaction });
        }
    }

    fn part_free(&mut self, id: TransactionId, free: &Free) -> Executed {
        let name = free.name.as_bytes();
        if self.tables.holder(free.directory, name) == Some(id) && !self.plants(Mutant::KeepsNames) {
            self.change(&Change::Free { directory: free.directory.0, name });
            self.waiting.free(free.directory, name);
        }
        Ok(PeerBody::Done)
    }

    fn part_set_entry(&mut self, now_ns: i64, id: TransactionId, set: &SetEntry) -> Executed {
        let name = set.name.as_bytes();
        if self.tables.holder(set.directory, name) != Some(id) {
            return Err(Errno::EIO);
        }
        self.directory(set.directory)?;
        // The name is held, so there is room for it.
        self.change(&Change::Free { directory: set.directory.0, name });
        self.waiting.free(set.directory, name);
        self.set_entry(now_ns, set.directory, name, set.target)?;
        self.watch_size(set.directory);
        Ok(PeerBody::Done)
    }

    /// Makes a name lead to `target`, or to nothing.
    pub(super) fn set_entry(
        &mut self,
        now_ns: i64,
        directory: InodeId,
        name: &[u8],
        target: Option<Target>,
    ) -> Result<(), Errno> {
        let before = self.tables.entries.find(directory, name).map(|(place, entry)| (place, entry.kind()));
        let place = match before {
            Some((place, _)) => place,
            None => self.place_for(directory, name).ok_or(Errno::ENOSPC)?,
        };
        match target {
            Some(Target { id, kind }) => {
                self.change(&Change::Enter { directory: directory.0, place, id, kind, name });
            }
            None if before.is_some() => self.change(&Change::Leave { directory: directory.0, place }),
            None => {}
        }
        let count = |is: bool| i64::from(is);
        let entries = count(target.is_some()) - count(before.is_some());
        let links = count(target.is_some_and(|target| target.is_directory()))
            - count(before.is_some_and(|(_, kind)| kind == Kind::Directory));
        self.change(&Change::Touch { serial: directory.serial(), now_ns, entries, links });
        Ok(())
    }

    /// The place for a new entry; `None` if names of the same hash have taken all places, or will.
    pub(super) fn place_for(&self, directory: InodeId, name: &[u8]) -> Option<u64> {
        self.unreserved(directory, name, self.tables.entries.look(directory, name).err().flatten())
    }

    /// The place, if what transactions are about to enter leaves room for it.
    pub(super) fn unreserved(&self, directory: InodeId, name: &[u8], place: Option<u64>) -> Option<u64> {
        let place = place?;
        if self.tables.held.is_empty() {
            return Some(place);
        }
        let (entries, first) = (&self.tables.entries, place_of(name));
        let held = self.tables.names_held(directory).filter(|held| *held != name);
        let coming = held.filter(|held| place_of(held) == first && entries.find(directory, held).is_none());
        (coming.count() < entries.room(directory, first)).then_some(place)
    }

    fn part_make_child(&mut self, now_ns: i64, make: &MakeChild) -> Executed {
        let serial = self.tables.next_serial;
        let inode = Inode {
            mode: make.mode as u16 & 0o7777,
            uid: make.uid,
            gid: make.gid,
            links: 2,
            blocks_or_parent: make.parent.0,
            ..Inode::new(Kind::Directory, now_ns)
        };
        self.change(&Change::Put { serial, inode });
        let id = InodeId::new(self.number(), serial);
        self.changed(id)
    }

    fn changed(&self, id: InodeId) -> Executed {
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(PeerBody::Changed(Changed { attributes }))
    }

    fn part_remove(&mut self, now_ns: i64, remove: &Remove) -> Executed {
        let inode = self.inode(remove.id)?;
        if remove.owner.is_some_and(|owner| owner != inode.uid) {
            return Err(Errno::EPERM);
        }
        if inode.is_directory() {
            if inode.bytes > 0 {
                return Err(Errno::ENOTEMPTY);
            }
            let held = self.tables.names_held(remove.id).next().is_some();
            if held && !self.plants(Mutant::RemovesWhileHeld) {
                return Ok(PeerBody::Busy);
            }
        }
        self.remove_link(now_ns, remove.id, inode);
        Ok(PeerBody::Done)
    }

    /// Takes a link away. Without links, the inode stays only while a node has it open.
    pub(super) fn remove_link(&mut self, now_ns: i64, id: InodeId, mut inode: Inode) {
        let serial = id.serial();
        inode.links = if inode.is_directory() { 0 } else { inode.links.saturating_sub(1) };
        inode.changed_ns = now_ns;
        inode.version = inode.version.wrapping_add(1);
        let open = self.tables.opens_of(serial).next().is_some();
        if inode.links == 0 && (!open || self.plants(Mutant::DropsOpenInodes)) {
            self.drop_inode(id, &inode);
        } else {
            self.change(&Change::Put { serial, inode });
        }
    }

    fn part_add_link(&mut self, now_ns: i64, link: &AddLink) -> Executed {
        let mut inode = self.inode(link.id).map_err(|_| Errno::ENOENT)?;
        if inode.is_directory() {
            return Err(Errno::EPERM);
        }
        if inode.links == 0 || self.tables.chunks.file_of(link.id.serial()).is_some() {
            return Err(Errno::ENOENT);
        }
        if inode.links >= self.settings.links_max {
            return Err(Errno::EMLINK);
        }
        inode.links += 1;
        inode.changed_ns = now_ns;
        inode.version = inode.version.wrapping_add(1);
        self.change(&Change::Put { serial: link.id.serial(), inode });
        self.changed(link.id)
    }

    fn part_check(&self, check: &Check) -> Executed {
        let inode = self.inode(check.id)?;
        if check.owner.is_some_and(|owner| owner != inode.uid) {
            return Err(Errno::EPERM);
        }
        if let Some(writer) = &check.writer {
            permission::check(writer, &inode, permission::WRITE)?;
        }
        Ok(PeerBody::Done)
    }

    fn part_moved(&mut self, now_ns: i64, moved: &Moved) -> Executed {
        let mut inode = self.inode(moved.id)?;
        inode.changed_ns = now_ns;
        inode.version = inode.version.wrapping_add(1);
        if let Some(parent) = moved.parent.filter(|_| inode.is_directory()) {
            inode.blocks_or_parent = parent.0;
        }
        self.change(&Change::Put { serial: moved.id.serial(), inode });
        Ok(PeerBody::Done)
    }

    fn part_parent(&self, of: &OfDirectory) -> Executed {
        let parent = self.directory(of.id)?.parent();
        let id = if self.plants(Mutant::MovesWithoutWalk) { InodeId::ROOT } else { parent };
        Ok(PeerBody::Parent(OfDirectory { id }))
    }
}
