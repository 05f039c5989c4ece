//! The tables of a partition, and what each change does to them.

use super::change::Change;
use super::chunk_table::{ChunkTable, Grave};
use super::entry::{Dentry, Entries};
use super::inode::{Inode, Inodes};
use super::peer::PeerBody;
use super::row::{Client, LockRow, Opens, Saved};
use super::settings::Settings;
use super::transaction::Transaction;
use crate::attributes::Kind;
use crate::id::BUCKET;
use crate::{Incarnation, InodeId, NodeNo, PartitionNo};
use std::collections::{BTreeMap, VecDeque};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::codec::Reader;

/// Which of whose transactions.
pub(super) type TransactionId = (PartitionNo, u64);

/// A name of what the number says: an attribute of an inode, or an entry of a directory.
pub(super) type NameKey = (u64, Box<[u8]>);

/// What a partition knows. Equal on all replicas that have applied the same records.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) number: PartitionNo,
    pub(super) next_serial: u64,
    pub(super) next_transaction: u64,
    pub(super) inodes: Inodes,
    pub(super) entries: Entries,
    pub(super) targets: BTreeMap<u64, Box<[u8]>>,
    pub(super) xattrs: BTreeMap<NameKey, Box<[u8]>>,
    pub(super) opens: BTreeMap<(u64, NodeNo, Incarnation), Opens>,
    pub(super) locks: BTreeMap<u64, Vec<LockRow>>,
    pub(super) times_set: BTreeMap<u64, i64>,
    /// Nodes with a full copy of a file's bytes, as of the last commit.
    pub(super) copies: BTreeMap<u64, Vec<NodeNo>>,
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) gone: BTreeMap<NodeNo, Incarnation>,
    pub(super) held: BTreeMap<NameKey, TransactionId>,
    pub(super) driven: BTreeMap<u64, Box<Transaction>>,
    pub(super) executed: BTreeMap<TransactionId, (u32, PeerBody)>,
    pub(super) floors: BTreeMap<PartitionNo, u64>,
    pub(super) move_lock: Option<TransactionId>,
    /// The buckets of directories that are split.
    pub(super) splits: BTreeMap<u64, Vec<InodeId>>,
    /// The chunks of files that have their bytes in chunks.
    pub(super) chunks: ChunkTable,
}

fn misfit(what: &str) -> Error {
    let why = format!("a record of a partition does not fit its tables: {what}; build the partition anew");
    Error::new(ErrorKind::Corrupt, why)
}

/// `change`, or an error that names what was missing.
fn check(fits: bool, what: &str) -> Result<()> {
    if fits { Ok(()) } else { Err(misfit(what)) }
}

impl Tables {
    /// The tables of a new partition.
    pub(super) fn new(number: PartitionNo, settings: &Settings) -> Tables {
        let mut tables = Tables {
            number,
            next_serial: InodeId::ROOT.serial() + 1,
            next_transaction: 1,
            inodes: Inodes::default(),
            entries: Entries::default(),
            targets: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            opens: BTreeMap::new(),
            locks: BTreeMap::new(),
            times_set: BTreeMap::new(),
            copies: BTreeMap::new(),
            clients: BTreeMap::new(),
            gone: BTreeMap::new(),
            held: BTreeMap::new(),
            driven: BTreeMap::new(),
            executed: BTreeMap::new(),
            floors: BTreeMap::new(),
            move_lock: None,
            splits: BTreeMap::new(),
            chunks: ChunkTable::default(),
        };
        if number == InodeId::ROOT.partition() {
            let root = Inode {
                mode: (settings.root_mode & 0o7777) as u16,
                uid: settings.root_uid,
                gid: settings.root_gid,
                links: 2,
                blocks_or_parent: InodeId::ROOT.0,
                ..Inode::new(Kind::Directory, 0)
            };
            tables.inodes.put(InodeId::ROOT.serial(), root);
        }
        tables
    }

    /// Applies a record; nothing of it, if it is malformed.
    pub(super) fn apply_record(&mut self, record: &[u8]) -> Result<()> {
        let mut reader = Reader::new("Record", record);
        let mut changes = Vec::new();
        while reader.remaining() > 0 {
            changes.push(Change::read(&mut reader)?);
        }
        changes.iter().try_for_each(|change| self.apply(change))
    }

    /// Makes one change.
    pub(super) fn apply(&mut self, change: &Change<'_>) -> Result<()> {
        match change {
            Change::Make { .. }
            | Change::Put { .. }
            | Change::Drop { .. }
            | Change::Touch { .. }
            | Change::LinkTarget { .. }
            | Change::Xattr { .. }
            | Change::Split { .. }
            | Change::TimeSet { .. }
            | Change::Copies { .. } => self.apply_inode(change),
            Change::Chunked { .. }
            | Change::Chunk { .. }
            | Change::Cut { .. }
            | Change::Grave { .. }
            | Change::Buried { .. } => self.apply_chunks(change),
            Change::Enter { directory, place, id, kind, name } => {
                self.entries.put(*directory, *place, Dentry::new(*id, *kind, name));
                Ok(())
            }
            Change::Leave { directory, place } => {
                check(self.entries.remove(*directory, *place), "an entry that goes is missing")
            }
            Change::Opens { serial, node, incarnation, readers, writers } => {
                let key = (*serial, *node, *incarnation);
                if *readers == 0 && *writers == 0 {
                    self.opens.remove(&key);
                } else {
                    self.opens.insert(key, Opens { readers: *readers, writers: *writers });
                }
                if self.chunks.file_of(*serial).is_some() {
                    let is_open = self.opens_of(*serial).next().is_some();
                    self.chunks.opened(*serial, is_open, self.is_written(*serial));
                }
                Ok(())
            }
            Change::Locks { serial, locks } => {
                if locks.is_empty() {
                    self.locks.remove(serial);
                } else {
                    self.locks.insert(*serial, locks.clone());
                }
                Ok(())
            }
            Change::Answered { client, oldest, node, incarnation, now_ns, answer } => {
                let row = self.clients.entry(*client).or_insert_with(|| Client {
                    node: *node,
                    incarnation: *incarnation,
                    oldest: 0,
                    asked_ns: *now_ns,
                    answers: VecDeque::new(),
                });
                (row.node, row.incarnation, row.asked_ns) = (*node, *incarnation, *now_ns);
                row.forget_below(*oldest);
                if let Some((number, saved)) = answer {
                    row.save(*number, saved.clone());
                }
                Ok(())
            }
            Change::ForgetClient { client } => {
                check(self.clients.remove(client).is_some(), "a client that goes is missing")
            }
            Change::Gone { node, incarnation } => {
                self.gone.insert(*node, *incarnation);
                Ok(())
            }
            _ => self.apply_transaction(change),
        }
    }

    fn apply_inode(&mut self, change: &Change<'_>) -> Result<()> {
        match change {
            Change::Make { serial, kind, mode, uid, gid, holder_or_device, generation, bytes, now_ns } => {
                let inode = Inode {
                    mode: *mode,
                    uid: *uid,
                    gid: *gid,
                    holder_or_device: *holder_or_device,
                    generation: *generation,
                    bytes: *bytes,
                    ..Inode::new(*kind, *now_ns)
                };
                self.inodes.put(*serial, inode);
                self.next_serial = self.next_serial.max((serial & !BUCKET).saturating_add(1));
            }
            Change::Put { serial, inode } => {
                if self.chunks.file_of(*serial).is_some() {
                    check(inode.place().is_some(), "a chunk loses its place")?;
                    self.chunks.changed(*serial, inode);
                }
                let is_chunked = self.chunks.of_file(*serial).is_some();
                check(!is_chunked || inode.place().is_none(), "a file of chunks gets a place")?;
                self.inodes.put(*serial, *inode);
                self.next_serial = self.next_serial.max((serial & !BUCKET).saturating_add(1));
            }
            Change::Split { serial, buckets } => {
                let directory = InodeId::new(self.number, *serial);
                let Some(row) = self.inodes.get_mut(*serial) else {
                    return Err(misfit("a directory that is split is missing"));
                };
                if buckets.is_empty() {
                    self.splits.remove(serial);
                } else {
                    (row.bytes, row.links) = (0, 2);
                    self.entries.clear(directory);
                    self.splits.insert(*serial, buckets.clone());
                }
            }
            Change::Drop { serial } => {
                check(self.chunks.file_of(*serial).is_none(), "a chunk goes without its file")?;
                check(self.chunks.end(*serial), "a file goes without its chunks")?;
                self.splits.remove(serial);
                self.targets.remove(serial);
                self.locks.remove(serial);
                self.times_set.remove(serial);
                self.copies.remove(serial);
                let names: Vec<_> = self.xattrs_of(*serial).map(|(name, _)| name.clone()).collect();
                for name in names {
                    self.xattrs.remove(&(*serial, name));
                }
                return check(self.inodes.remove(*serial), "an inode that goes is missing");
            }
            Change::Touch { serial, now_ns, entries, links } => {
                let Some(directory) = self.inodes.get_mut(*serial) else {
                    return Err(misfit("a directory is missing"));
                };
                let (bytes, count) = (
                    directory.bytes.checked_add_signed(*entries),
                    directory.links.checked_add_signed(*links as i32),
                );
                let (Some(bytes), Some(links)) = (bytes, count) else {
                    return Err(misfit("a directory has too few entries"));
                };
                (directory.bytes, directory.links) = (bytes, links);
                (directory.modified_ns, directory.changed_ns) = (*now_ns, *now_ns);
                directory.version = directory.version.wrapping_add(1);
            }
            Change::LinkTarget { serial, target } => {
                self.targets.insert(*serial, (*target).into());
            }
            Change::Xattr { serial, name, value } => {
                let key = (*serial, Box::from(*name));
                match value {
                    Some(value) => {
                        self.xattrs.insert(key, Box::from(*value));
                    }
                    None => return check(self.xattrs.remove(&key).is_some(), "an attribute is missing"),
                }
            }
            Change::TimeSet { serial, until_ns: Some(until_ns) } => {
                self.times_set.insert(*serial, *until_ns);
            }
            Change::TimeSet { serial, until_ns: None } => {
                self.times_set.remove(serial);
            }
            Change::Copies { serial, nodes } if nodes.is_empty() => {
                self.copies.remove(serial);
            }
            Change::Copies { serial, nodes } => {
                self.copies.insert(*serial, nodes.clone());
            }
            _ => return Err(misfit("a change of no inode")),
        }
        Ok(())
    }

    fn apply_chunks(&mut self, change: &Change<'_>) -> Result<()> {
        match change {
            Change::Chunked { serial, chunk_bytes } => {
                let row = self.inodes.get(*serial);
                let is_file = row.is_some_and(|row| row.kind == Kind::File && row.place().is_none());
                check(is_file && self.chunks.begin(*serial, *chunk_bytes), "a file cannot have chunks")
            }
            Change::Chunk { serial, file, index } => {
                let Some(row) = self.inodes.get(*serial) else { return Err(misfit("a chunk is missing")) };
                let fits =
                    self.opens_of(*serial).next().is_none() && self.chunks.add(*file, *index, *serial, row);
                check(fits, "an inode cannot be a chunk")
            }
            Change::Cut { file, first, kept } => {
                check(self.chunks.cut(*file, *first, kept), "a file that is cut has no chunks")
            }
            Change::Grave { serial, generation, nodes } => {
                let grave = Grave { generation: *generation, nodes: nodes.clone() };
                self.chunks.graves.insert(*serial, grave);
                Ok(())
            }
            Change::Buried { serial } if self.chunks.bury(*serial) => self.remove_chunk(*serial),
            Change::Buried { serial } => {
                check(self.chunks.graves.remove(serial).is_some(), "what is buried is missing")
            }
            _ => Err(misfit("a change of no chunk")),
        }
    }

    /// Removes the row of a chunk that is gone, and all that belongs to it.
    fn remove_chunk(&mut self, serial: u64) -> Result<()> {
        let opens: Vec<_> = self.opens_of(serial).map(|(node, life, _)| (serial, node, life)).collect();
        for key in opens {
            self.opens.remove(&key);
        }
        self.locks.remove(&serial);
        self.times_set.remove(&serial);
        self.copies.remove(&serial);
        check(self.inodes.remove(serial), "a chunk that goes is missing")
    }

    /// The row of an inode. A chunk that is gone has none, for anybody but its grave.
    pub(super) fn row(&self, serial: u64) -> Option<&Inode> {
        self.inodes.get(serial).filter(|_| !self.chunks.is_gone(serial))
    }

    /// The same, of all inodes.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u64, &Inode)> {
        self.inodes.iter().filter(|(serial, _)| !self.chunks.is_gone(*serial))
    }

    /// The object of a chunk that was not buried yet, and which nodes have it.
    pub(super) fn grave(&self, serial: u64) -> Option<Grave> {
        if let Some(grave) = self.chunks.graves.get(&serial) {
            return Some(grave.clone());
        }
        let (holder, generation) = self.inodes.get(serial)?.place()?;
        let mut nodes = self.copies.get(&serial).cloned().unwrap_or_default();
        nodes.push(holder);
        Some(Grave { generation, nodes })
    }

    /// Whether some node has the inode open for writing.
    pub(super) fn is_written(&self, serial: u64) -> bool {
        self.opens_of(serial).any(|(_, _, opens)| opens.writers > 0)
    }

    /// The length of a file, whatever it is kept in.
    pub(super) fn length_of(&self, serial: u64, inode: &Inode) -> u64 {
        let end = self.chunks.of_file(serial).and_then(|chunks| {
            let (index, last) = chunks.last_filled()?;
            let bytes = self.inodes.get(last)?.bytes;
            Some(index.saturating_mul(chunks.chunk_bytes).saturating_add(bytes))
        });
        inode.bytes.max(end.unwrap_or(0))
    }

    fn apply_transaction(&mut self, change: &Change<'_>) -> Result<()> {
        match change {
            Change::Hold { directory, name, driver, transaction } => {
                if *driver == self.number {
                    self.next_transaction = self.next_transaction.max(transaction.saturating_add(1));
                }
                let key = (*directory, Box::from(*name));
                let before = self.held.insert(key, (*driver, *transaction));
                check(before.is_none(), "a name is held twice")
            }
            Change::Free { directory, name } => {
                let key = (*directory, Box::from(*name));
                check(self.held.remove(&key).is_some(), "a name is not held")
            }
            Change::Drive { number, transaction } => {
                self.next_transaction = self.next_transaction.max(number.saturating_add(1));
                self.driven.insert(*number, transaction.clone());
                Ok(())
            }
            Change::Ended { number } => {
                check(self.driven.remove(number).is_some(), "a transaction is missing")
            }
            Change::Executed { driver, transaction, step, body } => {
                self.executed.insert((*driver, *transaction), (*step, body.clone()));
                Ok(())
            }
            Change::Floor { driver, oldest } => {
                self.floors.insert(*driver, *oldest);
                let ended = self.executed.range((*driver, 0)..(*driver, *oldest));
                let ended: Vec<_> = ended.map(|(transaction, _)| *transaction).collect();
                for transaction in ended {
                    self.executed.remove(&transaction);
                }
                Ok(())
            }
            Change::MoveLock { holder } => {
                self.move_lock = *holder;
                Ok(())
            }
            Change::Next { serial, transaction } => {
                (self.next_serial, self.next_transaction) = (*serial, *transaction);
                Ok(())
            }
            _ => Err(misfit("a change of no transaction")),
        }
    }

    /// The extended attributes of an inode.
    pub(super) fn xattrs_of(&self, serial: u64) -> impl Iterator<Item = (&Box<[u8]>, &[u8])> {
        let from = (serial, Box::from(&[][..]));
        let rows = self.xattrs.range(from..).take_while(move |((of, _), _)| *of == serial);
        rows.map(|((_, name), value)| (name, &**value))
    }

    /// What is open of an inode, by node and its life.
    pub(super) fn opens_of(&self, serial: u64) -> impl Iterator<Item = (NodeNo, Incarnation, Opens)> {
        let first = (serial, NodeNo(0), Incarnation(0));
        let last = (serial, NodeNo(u32::MAX), Incarnation(u64::MAX));
        self.opens.range(first..=last).map(|((_, node, incarnation), opens)| (*node, *incarnation, *opens))
    }

    /// The names of the directory that transactions hold.
    pub(super) fn names_held(&self, directory: InodeId) -> impl Iterator<Item = &[u8]> {
        let from = (directory.0, Box::from(&[][..]));
        let rows = self.held.range(from..).take_while(move |((of, _), _)| *of == directory.0);
        rows.map(|((_, name), _)| &**name)
    }

    /// The transaction that holds the name.
    pub(super) fn holder(&self, directory: InodeId, name: &[u8]) -> Option<TransactionId> {
        if self.held.is_empty() {
            return None;
        }
        self.held.get(&(directory.0, Box::from(name))).copied()
    }

    /// All tables as changes that build them from an empty partition.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        // What is gone is in graves.
        let is_there = |serial: &u64| !self.chunks.is_gone(*serial);
        let inodes = self.rows().map(|(serial, inode)| Change::Put { serial, inode: *inode });
        let entries = self.entries.iter().map(|(directory, place, entry)| Change::Enter {
            directory,
            place,
            id: entry.id,
            kind: entry.kind(),
            name: entry.name(),
        });
        let targets =
            self.targets.iter().map(|(serial, target)| Change::LinkTarget { serial: *serial, target });
        let xattrs = self.xattrs.iter().map(|((serial, name), value)| Change::Xattr {
            serial: *serial,
            name,
            value: Some(value),
        });
        let opens = self.opens.iter().filter(move |((serial, ..), _)| is_there(serial));
        let opens = opens.map(|((serial, node, incarnation), opens)| Change::Opens {
            serial: *serial,
            node: *node,
            incarnation: *incarnation,
            readers: opens.readers,
            writers: opens.writers,
        });
        let locks = self.locks.iter().filter(move |(serial, _)| is_there(serial));
        let locks = locks.map(|(serial, locks)| Change::Locks { serial: *serial, locks: locks.clone() });
        let times = self
            .times_set
            .iter()
            .filter(move |(serial, _)| is_there(serial))
            .map(|(serial, until)| Change::TimeSet { serial: *serial, until_ns: Some(*until) });
        let copies = self
            .copies
            .iter()
            .filter(move |(serial, _)| is_there(serial))
            .map(|(serial, nodes)| Change::Copies { serial: *serial, nodes: nodes.clone() });
        let clients = self.clients.iter().flat_map(|(client, row)| {
            let answers = row.answers.iter().map(|answer| Some(answer.clone()));
            std::iter::once(None).chain(answers).map(|answer| Change::Answered {
                client: *client,
                oldest: row.oldest,
                node: row.node,
                incarnation: row.incarnation,
                now_ns: row.asked_ns,
                answer,
            })
        });
        let splits =
            self.splits.iter().map(|(serial, of)| Change::Split { serial: *serial, buckets: of.clone() });
        let gone = self.gone.iter().map(|(node, life)| Change::Gone { node: *node, incarnation: *life });
        let files = inodes.chain(self.all_chunks()).chain(entries).chain(targets).chain(xattrs);
        let open = opens.chain(locks).chain(times).chain(copies);
        let files = files.chain(splits).chain(open);
        files.chain(clients).chain(gone).chain(self.transactions())
    }

    fn all_chunks(&self) -> impl Iterator<Item = Change<'_>> {
        let files = self.chunks.iter().flat_map(|(file, chunks)| {
            let of = chunks.from(0).map(move |(index, serial)| Change::Chunk { serial, file, index });
            std::iter::once(Change::Chunked { serial: file, chunk_bytes: chunks.chunk_bytes }).chain(of)
        });
        // In the order of their numbers: replicas may have come to them in different ways.
        let mut unburied: Vec<u64> = self.chunks.unburied().collect();
        unburied.sort_unstable();
        let graves = unburied.into_iter().filter_map(|serial| {
            let Grave { generation, nodes } = self.grave(serial)?;
            Some(Change::Grave { serial, generation, nodes })
        });
        files.chain(graves)
    }

    fn transactions(&self) -> impl Iterator<Item = Change<'_>> {
        let held = self.held.iter().map(|((directory, name), (driver, transaction))| Change::Hold {
            directory: *directory,
            name,
            driver: *driver,
            transaction: *transaction,
        });
        let driven = self
            .driven
            .iter()
            .map(|(number, row)| Change::Drive { number: *number, transaction: row.clone() });
        let executed = self.executed.iter().map(|((driver, transaction), (step, body))| Change::Executed {
            driver: *driver,
            transaction: *transaction,
            step: *step,
            body: body.clone(),
        });
        let floors =
            self.floors.iter().map(|(driver, oldest)| Change::Floor { driver: *driver, oldest: *oldest });
        let numbers = [
            Change::MoveLock { holder: self.move_lock },
            Change::Next { serial: self.next_serial, transaction: self.next_transaction },
        ];
        held.chain(driven).chain(executed).chain(floors).chain(numbers)
    }
}

impl Client {
    /// Forgets the answers of lower numbers.
    fn forget_below(&mut self, oldest: u64) {
        self.oldest = self.oldest.max(oldest);
        while self.answers.front().is_some_and(|(number, _)| *number < self.oldest) {
            self.answers.pop_front();
        }
    }

    fn save(&mut self, number: u64, saved: Saved) {
        let at = match self.answers.back() {
            Some((last, _)) if *last >= number => self.answers.partition_point(|(of, _)| *of < number),
            _ => self.answers.len(),
        };
        self.answers.insert(at, (number, saved));
    }

    /// The answer that the request with this number got.
    pub(super) fn answer(&self, number: u64) -> Option<&Saved> {
        let at = self.answers.binary_search_by_key(&number, |(of, _)| *of).ok()?;
        Some(&self.answers[at].1)
    }
}
