//! Directories that are split into buckets.
//!
//! A bucket is a directory of its own, in another partition, with the directory's rights: it holds
//! the entries whose places begin with the same bits. So all operations on names are the same in a
//! bucket as in a directory, and only whoever routes an operation knows the difference: see
//! [`crate::split`]. The directory's own row stays where it was, and keeps the list of buckets.
//!
//! A transaction splits a directory, gives its buckets new rights, and removes them before the
//! directory is removed. Meanwhile it holds the empty name of the directory: then nothing else
//! changes the directory's names or its list. A bucket whose empty name is held is closed: whoever
//! asks it waits, until it is open again, or gone (`ESTALE`: ask the directory).

use super::change::Change;
use super::entry::name_of;
use super::inode::Inode;
use super::machine::{Asking, Partition, Stop};
use super::mutant::Mutant;
use super::peer::{Changed, Install, MakeBucket, Moving, Part, PeerBody, Remove, SetRights, Target};
use super::tables::TransactionId;
use super::transaction::{Next, Spread, Spreading, Stopped, Transaction};
use crate::attributes::Kind;
use crate::id::BUCKET;
use crate::map::mix;
use crate::operation::{Answer, Layout, Operation, Request, SetAttributes};
use crate::split::{bucket_of_place, first_place_of};
use crate::{Epoch, Errno, Incarnation, InodeId, NodeNo, PartitionNo};
use zazen_core::Credentials;

/// What stands for the whole directory among its names.
const ALL: &[u8] = b"";

/// Who asks for what the partition does of its own accord.
fn own_request(operation: Operation) -> Request {
    Request {
        client: 0,
        number: 0,
        oldest: 0,
        node: NodeNo(0),
        incarnation: Incarnation(0),
        epoch: Epoch(0),
        credentials: Credentials { uid: 0, gid: 0, groups: Vec::new() },
        operation,
        place: None,
        knows_chunks: None,
    }
}

impl Partition {
    pub(super) fn is_split(&self, id: InodeId) -> bool {
        id.partition() == self.number() && self.tables.splits.contains_key(&id.serial())
    }

    /// Whether a transaction keeps all others from the directory.
    pub(super) fn is_frozen(&self, id: InodeId) -> bool {
        self.tables.holder(id, ALL).is_some()
    }

    pub(super) fn not_frozen(&self, id: InodeId) -> Result<(), Stop> {
        let waits = self.is_frozen(id) && !self.plants(Mutant::IgnoresFreeze);
        if waits { Err(Stop::Wait((id.0, ALL.into()))) } else { Ok(()) }
    }

    /// How a directory is split.
    pub(super) fn layout(&self, directory: InodeId) -> Layout {
        let here = directory.partition() == self.number();
        let buckets = self.tables.splits.get(&directory.serial()).filter(|_| here);
        Layout { directory, buckets: buckets.cloned().unwrap_or_default() }
    }

    /// How the directory is split in which the operation uses a name.
    pub(super) fn split_of(&self, operation: &Operation) -> Option<Layout> {
        if self.tables.splits.is_empty() {
            return None;
        }
        let directories = crate::split::directories_of(operation);
        let split = directories.into_iter().flatten().find(|id| self.is_split(*id));
        split.map(|id| self.layout(id))
    }

    /// Splits a directory that has grown, when there is nothing else to do with it.
    pub(super) fn watch_size(&mut self, id: InodeId) {
        let grown = |row: &Inode| row.bytes >= u64::from(self.settings.split_entries.max(1));
        let is_grown = self.tables.row(id.serial()).is_some_and(grown);
        if is_grown && !id.is_bucket() && self.buckets_count() > 1 {
            self.waiting.grown.insert(id);
        }
    }

    fn buckets_count(&self) -> u32 {
        let most = self.settings.partitions.min(self.settings.buckets_max);
        if most == 0 { 0 } else { 1 << most.ilog2() }
    }

    /// Begins what was found to be done with directories.
    pub(super) fn spread(&mut self, now_ns: i64) {
        for id in std::mem::take(&mut self.waiting.grown) {
            let is_there = self.directory(id).is_ok_and(|row| row.bytes > 0);
            if is_there && !self.is_split(id) && self.tables.names_held(id).next().is_none() {
                let count = self.buckets_count();
                self.begin_spread(now_ns, None, own(id, Spreading::Split, Vec::new(), count), None);
            }
        }
        for (id, claimant) in std::mem::take(&mut self.waiting.to_merge) {
            if self.is_split(id) && !self.is_frozen(id) {
                self.waiting.merging.insert(id, claimant);
                let buckets = self.layout(id).buckets;
                let count = buckets.len() as u32;
                self.begin_spread(now_ns, None, own(id, Spreading::Merge, buckets, count), None);
            }
        }
    }

    fn begin_spread(
        &mut self,
        now_ns: i64,
        asked: Option<(u64, &Request)>,
        spread: Spread,
        found: Option<Changed>,
    ) {
        let number = self.tables.next_transaction;
        self.hold(spread.directory, ALL, (self.number(), number));
        let asks = own_request(Operation::Buckets(crate::operation::Inode { id: spread.directory }));
        let request = asked.map_or(asks, |(_, request)| request.clone());
        if let Some((token, _)) = asked {
            self.waiting.tokens.insert(number, token);
        }
        let transaction = Box::new(Transaction::of_buckets(request, spread, found));
        self.drive(now_ns, number, transaction, false);
    }

    /// What a transaction does next, with what only the tables know.
    pub(super) fn next_part(&self, transaction: &Transaction) -> Option<Part> {
        let Next::Ask(part) = transaction.next() else { return None };
        let (Part::MakeBucket(make), Some(spread)) = (&part, &transaction.spread) else { return Some(part) };
        let row = self.tables.row(make.directory.serial())?;
        let (count, at) = (spread.count.max(1) as usize, spread.at as usize);
        let before = first_place_of(at, count).saturating_sub(1);
        let entries = self.tables.entries.behind(make.directory, before);
        let entries = entries.take_while(|(place, _)| bucket_of_place(*place, count) == at);
        let entries = entries.filter_map(|(place, entry)| {
            let target = Target { id: entry.id, kind: entry.kind() };
            Some(Moving { place, name: name_of(entry.name())?, target })
        });
        Some(Part::MakeBucket(MakeBucket {
            partition: self.partition_of_bucket(spread),
            directory: make.directory,
            mode: row.mode.into(),
            uid: row.uid,
            gid: row.gid,
            modified_ns: row.modified_ns,
            entries: entries.collect(),
        }))
    }

    /// The partition that a transaction waits for.
    pub(super) fn waits_for(&self, transaction: &Transaction) -> Option<PartitionNo> {
        match (transaction.next(), &transaction.spread) {
            (Next::Ask(Part::MakeBucket(_)), Some(spread)) => Some(self.partition_of_bucket(spread)),
            (Next::Ask(part), _) => Some(part.partition()),
            (Next::Finish, _) => None,
        }
    }

    /// Buckets are in partitions that follow on each other: those are spread over the nodes.
    fn partition_of_bucket(&self, spread: &Spread) -> PartitionNo {
        let first = mix(spread.directory.0).wrapping_add(u64::from(spread.at));
        PartitionNo((first % u64::from(self.settings.partitions.max(1))) as u32)
    }

    /// Changes attributes; those of a directory that is split, in its buckets too.
    pub(super) fn set_attributes_everywhere(
        &mut self,
        call: &Asking<'_>,
        request: &Request,
        set: &SetAttributes,
    ) -> Result<Answer, Stop> {
        self.not_frozen(set.id)?;
        let answer = self.set_attributes(call, set)?;
        let Answer::Found(found) = &answer else { return Ok(answer) };
        if !self.is_split(set.id) || self.plants(Mutant::ForgetsRights) {
            return Ok(answer);
        }
        let attributes = found.attributes.clone();
        let rights = SetRights {
            id: set.id,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            modified_ns: set.modified_ns.map(|_| attributes.modified_ns),
        };
        let buckets = self.layout(set.id).buckets;
        let count = buckets.len() as u32;
        let spread = own(set.id, Spreading::Rights(rights), buckets, count);
        self.hold(set.id, ALL, (self.number(), self.tables.next_transaction));
        let found = Some(Changed { attributes });
        Err(Stop::Transaction(Box::new(Transaction::of_buckets(request.clone(), spread, found))))
    }

    /// A directory that is split is to be removed: its buckets are, first. `None` while it waits.
    pub(super) fn merge_to_remove(
        &mut self,
        id: TransactionId,
        remove: &Remove,
    ) -> Option<Result<PeerBody, Errno>> {
        let row = self.tables.row(remove.id.serial())?;
        if remove.owner.is_some_and(|owner| owner != row.uid) {
            return Some(Err(Errno::EPERM));
        }
        if self.waiting.not_merged.get(&remove.id).is_some_and(|(of, _)| *of == id) {
            let (_, errno) = self.waiting.not_merged.remove(&remove.id)?;
            return Some(errno.map_or(Ok(PeerBody::Busy), Err));
        }
        if !self.is_frozen(remove.id) {
            self.waiting.to_merge.entry(remove.id).or_insert(id);
        }
        None
    }

    /// A transaction on buckets is over.
    pub(super) fn spread_ended(&mut self, spread: &Spread) {
        if let Some(claimant) = self.waiting.merging.remove(&spread.directory)
            && let Some(Stopped { errno }) = &spread.stopped
        {
            self.waiting.not_merged.insert(spread.directory, (claimant, *errno));
        }
        self.waiting.freed = true;
    }

    pub(super) fn part_make_bucket(&mut self, now_ns: i64, make: &MakeBucket) -> Result<PeerBody, Errno> {
        let serial = self.tables.next_serial | BUCKET;
        let directories = make.entries.iter().filter(|moving| moving.target.is_directory()).count();
        let inode = Inode {
            mode: make.mode as u16 & 0o7777,
            uid: make.uid,
            gid: make.gid,
            links: 2 + directories as u32,
            bytes: make.entries.len() as u64,
            blocks_or_parent: make.directory.0,
            created_ns: now_ns,
            version: 0,
            ..Inode::new(Kind::Directory, make.modified_ns)
        };
        self.change(&Change::Put { serial, inode });
        let id = InodeId::new(self.number(), serial);
        for Moving { place, name, target } in &make.entries {
            let Target { id: to, kind } = *target;
            let name = name.as_bytes();
            self.change(&Change::Enter { directory: id.0, place: *place, id: to, kind, name });
        }
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(PeerBody::Changed(Changed { attributes }))
    }

    pub(super) fn part_set_rights(&mut self, now_ns: i64, set: &SetRights) -> Result<PeerBody, Errno> {
        let serial = set.id.serial();
        let mut inode = self.tables.row(serial).copied().ok_or(Errno::ESTALE)?;
        (inode.mode, inode.uid, inode.gid) = (set.mode as u16 & 0o7777, set.uid, set.gid);
        inode.modified_ns = set.modified_ns.unwrap_or(inode.modified_ns);
        inode.changed_ns = now_ns;
        inode.version = inode.version.wrapping_add(1);
        self.change(&Change::Put { serial, inode });
        Ok(PeerBody::Done)
    }

    pub(super) fn part_close_bucket(&mut self, by: TransactionId, id: InodeId) -> Result<PeerBody, Errno> {
        let inode = self.tables.row(id.serial()).ok_or(Errno::ESTALE)?;
        if inode.bytes > 0 && !self.plants(Mutant::DropsFullBuckets) {
            return Err(Errno::ENOTEMPTY);
        }
        if self.tables.names_held(id).next().is_some() {
            return Ok(PeerBody::Busy);
        }
        self.hold(id, ALL, by);
        Ok(PeerBody::Done)
    }

    /// Lets a directory or a bucket be used again.
    pub(super) fn part_thaw(&mut self, by: TransactionId, id: InodeId) -> Result<PeerBody, Errno> {
        if self.tables.holder(id, ALL) == Some(by) {
            self.change(&Change::Free { directory: id.0, name: ALL });
            self.waiting.free(id, ALL);
        }
        Ok(PeerBody::Done)
    }

    pub(super) fn part_drop_bucket(&mut self, by: TransactionId, id: InodeId) -> Result<PeerBody, Errno> {
        self.part_thaw(by, id)?;
        if self.tables.row(id.serial()).is_some() {
            // The names of a split that is given up; the directory has them still.
            let places: Vec<u64> = self.tables.entries.behind(id, 0).map(|(place, _)| place).collect();
            for place in places {
                self.change(&Change::Leave { directory: id.0, place });
            }
            self.change(&Change::Drop { serial: id.serial() });
        }
        Ok(PeerBody::Done)
    }

    pub(super) fn part_install(&mut self, by: TransactionId, install: &Install) -> Result<PeerBody, Errno> {
        let (serial, buckets) = (install.directory.serial(), install.buckets.clone());
        if self.tables.row(serial).is_none() {
            return Err(Errno::ESTALE);
        }
        self.change(&Change::Split { serial, buckets });
        self.part_thaw(by, install.directory)
    }
}

/// A transaction on buckets from its beginning on.
fn own(directory: InodeId, what: Spreading, buckets: Vec<InodeId>, count: u32) -> Spread {
    Spread { directory, what, buckets, count, at: 0, stopped: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;
    use crate::partition::Settings;

    #[test]
    fn a_bucket_that_is_dropped_leaves_no_names_behind() {
        let mut partition = Partition::new(PartitionNo(0), Settings::default());
        let target = Target { id: InodeId(77), kind: Kind::File };
        let moving = |name: &[u8]| {
            let place = crate::partition::place_of(name);
            Moving { place, name: Name::new(name).expect("a name"), target }
        };
        let entries = vec![moving(b"a"), moving(b"b")];
        let directory = InodeId::ROOT;
        let partition_no = PartitionNo(0);
        let make = MakeBucket {
            partition: partition_no,
            directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            modified_ns: 0,
            entries,
        };
        let Ok(PeerBody::Changed(made)) = partition.part_make_bucket(1, &make) else { panic!("not made") };
        assert_eq!(partition.tables.entries.iter().count(), 2);
        let dropped = partition.part_drop_bucket((partition_no, 1), made.attributes.id);
        assert_eq!(dropped, Ok(PeerBody::Done));
        assert_eq!(partition.tables.entries.iter().count(), 0);
    }
}
