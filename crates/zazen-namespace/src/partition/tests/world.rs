//! Partitions with a network and disks that fail as a seed says: messages are lost, doubled,
//! delayed and reordered, and a primary is replaced at any moment by one that has only the records
//! that were committed, or some of the later ones too.

use super::super::mutant::Mutant;
use super::super::{Action, Event, Partition, PeerMessage, Restore, Settings};
use super::model::{Model, Row};
use crate::operation::{Request, Response};
use crate::{InodeId, Kind, PartitionNo};
use std::collections::{BTreeMap, VecDeque};

/// Numbers that follow from a seed (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Something on its way.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    Request(Request),
    Peer(PartitionNo, PartitionNo, PeerMessage),
    Reply(u64, Response),
}

/// Which faults there are: 0 for none, otherwise one in so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) lose: usize,
    pub(super) double: usize,
    pub(super) replace: usize,
    /// Records are committed late, one step in so many.
    pub(super) late: usize,
    /// Compare the replicas after one event in so many.
    pub(super) compare: usize,
}

pub(super) const NO_FAULTS: Faults = Faults { lose: 0, double: 0, replace: 0, late: 0, compare: 1 };
pub(super) const ALL_FAULTS: Faults = Faults { lose: 20, double: 10, replace: 60, late: 2, compare: 1 };

/// A partition on its nodes.
struct Seat {
    primary: Partition,
    /// Has applied all records.
    backup: Partition,
    /// The tables without the records of `log`.
    base: Vec<Vec<u8>>,
    log: Vec<Vec<u8>>,
    committed: usize,
    /// What waits for records: how many of the log must be committed.
    held: VecDeque<(usize, Action)>,
}

pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) random: Random,
    faults: Faults,
    seats: Vec<Seat>,
    pub(super) flights: Vec<Flight>,
    /// Which client and request a token stands for.
    tokens: BTreeMap<u64, u64>,
    next_token: u64,
    now_ns: i64,
    mutant: Option<Mutant>,
    /// Messages between partitions so far.
    pub(super) sent: u64,
    /// Records so far.
    pub(super) records: u64,
}

impl World {
    /// `split_entries`: how large directories may be.
    pub(super) fn new(
        partitions: u32,
        split_entries: u32,
        seed: u64,
        faults: Faults,
        mutant: Option<Mutant>,
    ) -> World {
        let settings = Settings {
            split_entries,
            buckets_max: 4,
            partitions,
            root_mode: 0o777,
            resend_ns: 3,
            answers_max: 8,
            client_idle_ns: i64::MAX,
            ..Settings::default()
        };
        let seat = |number| {
            let mut primary = Partition::new(PartitionNo(number), settings.clone());
            primary.mutant = mutant;
            Seat {
                base: primary.snapshot().collect(),
                backup: Partition::new(PartitionNo(number), settings.clone()),
                primary,
                log: Vec::new(),
                committed: 0,
                held: VecDeque::new(),
            }
        };
        World {
            seats: (0..partitions).map(seat).collect(),
            random: Random(seed),
            faults,
            flights: Vec::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            now_ns: 0,
            mutant,
            sent: 0,
            records: 0,
            settings,
        }
    }

    fn chance(&mut self, one_in: usize) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    /// Has a partition execute an event.
    pub(super) fn step(&mut self, partition: PartitionNo, event: Event) {
        self.now_ns += 1;
        let compare = self.chance(self.faults.compare);
        let late = self.faults.late > 0 && !self.random.one_in(self.faults.late);
        let seat = &mut self.seats[partition.0 as usize];
        let mut actions = Vec::new();
        seat.primary.step(self.now_ns, event, &mut actions);
        for action in actions {
            match action {
                Action::Log(record) => {
                    self.records += 1;
                    seat.backup.apply(&record).expect("a record applies");
                    seat.log.push(record);
                }
                other => seat.held.push_back((seat.log.len(), other)),
            }
        }
        if compare {
            assert_eq!(seat.primary.digest(), seat.backup.digest(), "a backup differs");
        }
        if !late {
            self.commit(partition);
        }
    }

    /// Commits all records of a partition, and lets go what waited for them.
    fn commit(&mut self, partition: PartitionNo) {
        let seat = &mut self.seats[partition.0 as usize];
        seat.committed = seat.log.len();
        for (_, action) in std::mem::take(&mut seat.held) {
            match action {
                Action::Send { to, message } => {
                    self.sent += 1;
                    self.flights.push(Flight::Peer(partition, to, message));
                }
                Action::Reply { token, response } => {
                    if let Some(client) = self.tokens.get(&token) {
                        self.flights.push(Flight::Reply(*client, response));
                    }
                }
                _ => {}
            }
        }
        if seat.log.len() > 300 {
            seat.base = seat.primary.snapshot().collect();
            seat.log.clear();
            seat.committed = 0;
        }
    }

    /// Replaces the primary by one that has the committed records, and some of the later ones.
    fn replace(&mut self, partition: PartitionNo) {
        let later = self.seats[partition.0 as usize].log.len() - self.seats[partition.0 as usize].committed;
        let keep = self.random.below(later + 1);
        let seat = &mut self.seats[partition.0 as usize];
        seat.log.truncate(seat.committed + keep);
        let rebuild = || {
            let mut restore = Restore::new(partition, self.settings.clone());
            seat.base.iter().for_each(|piece| restore.piece(piece).expect("a piece fits"));
            let mut partition = restore.finish().expect("a snapshot is whole");
            seat.log.iter().for_each(|record| partition.apply(record).expect("a record applies"));
            partition
        };
        (seat.backup, seat.primary) = (rebuild(), rebuild());
        seat.primary.mutant = self.mutant;
        seat.held.clear();
        self.step(partition, Event::Resumed { epoch: crate::Epoch(0) });
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: Request) {
        self.flights.push(Flight::Request(request));
    }

    /// Delivers something that is on its way; a client's reply, if it was one.
    pub(super) fn deliver(&mut self, flight: Flight) -> Option<(u64, Response)> {
        match flight {
            Flight::Request(request) => {
                self.next_token += 1;
                let token = self.next_token;
                self.tokens.insert(token, request.client);
                self.tokens.retain(|of, _| of + 1000 > token);
                self.step(request.operation.partition(), Event::Request { token, request });
                None
            }
            Flight::Peer(from, to, message) => {
                self.step(to, Event::Peer { from, message });
                None
            }
            Flight::Reply(client, response) => Some((client, response)),
        }
    }

    /// One thing happens, as the seed says; a client's reply, if it was one.
    pub(super) fn happen(&mut self) -> Option<(u64, Response)> {
        let one = PartitionNo(self.random.below(self.seats.len()) as u32);
        if self.chance(self.faults.replace) {
            self.replace(one);
        }
        if self.flights.is_empty() || self.random.one_in(12) {
            for number in 0..self.seats.len() {
                self.commit(PartitionNo(number as u32));
            }
            self.step(one, Event::Tick);
        }
        if self.flights.is_empty() {
            for number in 0..self.seats.len() {
                self.step(PartitionNo(number as u32), Event::Tick);
            }
            return None;
        }
        let at = self.random.below(self.flights.len());
        if self.chance(self.faults.double) {
            let flight = self.flights[at].clone();
            return self.deliver(flight);
        }
        let flight = self.flights.swap_remove(at);
        if self.chance(self.faults.lose) { None } else { self.deliver(flight) }
    }

    /// The life of a node ends, everywhere.
    pub(super) fn everywhere(&mut self, event: &Event) {
        for number in 0..self.seats.len() {
            self.step(PartitionNo(number as u32), event.clone());
            self.commit(PartitionNo(number as u32));
        }
    }

    /// Whether no transaction is under way, and nothing is held.
    pub(super) fn is_quiet(&self) -> bool {
        self.seats.iter().all(|seat| {
            let tables = &seat.primary.tables;
            tables.driven.is_empty() && tables.held.is_empty() && tables.move_lock.is_none()
        })
    }

    /// How many directories are split.
    pub(super) fn splits(&self) -> usize {
        self.seats.iter().map(|seat| seat.primary.tables.splits.len()).sum()
    }

    /// The directories that are split.
    pub(super) fn split_directories(&self) -> Vec<InodeId> {
        let of = |seat: &Seat| {
            let number = seat.primary.tables.number;
            seat.primary.tables.splits.keys().map(|serial| InodeId::new(number, *serial)).collect::<Vec<_>>()
        };
        self.seats.iter().flat_map(of).collect()
    }

    /// The buckets, and the directory of each. A bucket is in the list of its directory, and has
    /// its rights.
    fn buckets(&self) -> BTreeMap<InodeId, (InodeId, u32)> {
        let row = |id: InodeId| self.seats[id.partition().0 as usize].primary.tables.row(id.serial());
        let mut buckets = BTreeMap::new();
        for seat in &self.seats {
            let tables = &seat.primary.tables;
            for (serial, of) in &tables.splits {
                let directory = InodeId::new(tables.number, *serial);
                let own = row(directory).expect("a directory that is split is there");
                assert_eq!((own.bytes, own.links), (0, 2), "its names are in its buckets");
                for (at, id) in of.iter().enumerate() {
                    let bucket = row(*id).expect("a bucket is there");
                    assert_eq!((bucket.mode, bucket.uid, bucket.gid), (own.mode, own.uid, own.gid));
                    assert_eq!(bucket.parent(), directory);
                    buckets.insert(*id, (directory, bucket.links - 2));
                    let tables = &self.seats[id.partition().0 as usize].primary.tables;
                    let places = tables.entries.behind(*id, 0).map(|(place, _)| place);
                    let right = |place| crate::split::bucket_of_place(place, of.len()) == at;
                    assert!(places.into_iter().all(right), "an entry is in the wrong bucket");
                }
            }
        }
        let rows = self.seats.iter().flat_map(|seat| {
            let number = seat.primary.tables.number;
            seat.primary.tables.rows().map(move |(serial, _)| InodeId::new(number, serial))
        });
        let lost: Vec<_> = rows.filter(|id| id.is_bucket() && !buckets.contains_key(id)).collect();
        assert!(lost.is_empty(), "buckets of no directory: {lost:?}");
        buckets
    }

    /// All tables as the reference has them.
    pub(super) fn tree(&self) -> Model {
        let mut rows = BTreeMap::new();
        let buckets = self.buckets();
        let whole = |id: InodeId| buckets.get(&id).map_or(id, |(directory, _)| *directory);
        for seat in &self.seats {
            let tables = &seat.primary.tables;
            for (serial, inode) in tables.rows() {
                let directory = inode.kind == Kind::Directory;
                let row = Row {
                    kind: inode.kind,
                    mode: inode.mode.into(),
                    uid: inode.uid,
                    gid: inode.gid,
                    links: inode.links,
                    bytes: if directory { 0 } else { inode.bytes },
                    place: inode.place().map(|(holder, generation)| (holder.0, generation)),
                    target: tables.targets.get(&serial).map_or(Vec::new(), |target| target.to_vec()),
                    xattrs: tables
                        .xattrs_of(serial)
                        .map(|(name, value)| (name.to_vec(), value.to_vec()))
                        .collect(),
                    entries: BTreeMap::new(),
                    parent: if directory { whole(inode.parent()) } else { InodeId(0) },
                    opens: tables
                        .opens_of(serial)
                        .map(|(node, _, opens)| (node.0, (opens.readers, opens.writers)))
                        .collect(),
                    chunk_bytes: tables.chunks.of_file(serial).map_or(0, |chunks| chunks.chunk_bytes),
                    chunks: tables
                        .chunks
                        .of_file(serial)
                        .into_iter()
                        .flat_map(|chunks| chunks.from(0))
                        .map(|(index, chunk)| (index, InodeId::new(tables.number, chunk)))
                        .collect(),
                    chunk_of: tables
                        .chunks
                        .file_of(serial)
                        .map(|(file, index)| (InodeId::new(tables.number, file), index)),
                    chunks_end: 0,
                    chunks_written: false,
                };
                if directory {
                    let id = InodeId::new(tables.number, serial);
                    assert_eq!(inode.bytes, tables.entries.behind(id, 0).count() as u64, "entries");
                }
                let id = InodeId::new(tables.number, serial);
                if !id.is_bucket() {
                    rows.insert(id, row);
                }
            }
        }
        for seat in &self.seats {
            for (directory, _, entry) in seat.primary.tables.entries.iter() {
                let row: Option<&mut Row> = rows.get_mut(&whole(InodeId(directory)));
                let row = row.expect("an entry is in a directory");
                assert!(row.entries.insert(entry.name().to_vec(), entry.id).is_none(), "a name twice");
            }
        }
        for (directory, links) in buckets.values() {
            rows.get_mut(directory).expect("the directory of a bucket").links += links;
        }
        let gone = Default::default();
        let mut model = Model { rows, loose: false, gone, splits: self.settings.split_entries < u32::MAX };
        model.count_chunks();
        model
    }
}
