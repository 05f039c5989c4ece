//! A node begins a life: from its files, or as a first node of a new namespace.

use super::log::{Found, Mark, next_life, oldest_of, read_segment};
use super::shared::{Log, Task};
use super::{Config, File, Identity, Node, Position, Shared, Snapshot, Tables, has, read_file, write_file};
use crate::map::{Genesis, Map};
use crate::partition::Settings;
use crate::peer::{Ballot, Value};
use crate::planted::Planted;
use crate::replica::Replica;
use crate::stewards::Steward;
use crate::{Incarnation, NodeNo, PartitionNo};
use std::collections::{BTreeMap, BTreeSet};
use zazen_core::{Error, ErrorKind, Result};

/// What the file of a damaged partition says, for people.
const DAMAGED: &[u8] = b"Records of this partition are lost on this disk. Do not remove this file.\n";

/// How a node begins.
#[derive(Clone, Debug)]
pub enum Start {
    /// From what its folder holds. An empty folder is that of a new node.
    Open {
        /// 128 bits that nothing else has: drawn for each start.
        key: u128,
    },
    /// As a first node of a new namespace. What its folder holds must not matter any more.
    Format {
        /// 128 bits that nothing else has.
        key: u128,
        /// The namespace, as all its first nodes have it.
        genesis: Genesis,
    },
}

/// A node's files, as they were read.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The bytes of each.
    pub files: BTreeMap<File, Vec<u8>>,
}

impl<T: Tables> Node<T> {
    /// Begins a life. Nothing is answered before the actions of the first [`Node::flush`] are done.
    ///
    /// Fails with `Corrupt` if the node's identity or its ballot as a steward is damaged: then the
    /// folder must be restored, or emptied, which makes the node a new one. Damaged records do not
    /// fail here; their partitions are filled from other nodes, or answered with `EIO`.
    pub fn open(config: Config, files: &Files, start: Start, now_ns: u64) -> Result<Node<T>> {
        match start {
            Start::Open { key } => Self::reopen(config, files, key, now_ns),
            Start::Format { key, genesis } => Self::format(config, files, key, &genesis, now_ns),
        }
    }

    fn format(config: Config, files: &Files, key: u128, genesis: &Genesis, now_ns: u64) -> Result<Node<T>> {
        if files.files.contains_key(&File::Identity) {
            return Err(Error::new(ErrorKind::Config, "the folder belongs to a node already"));
        }
        let map = genesis.map()?;
        let me = map.nodes.iter().find(|member| member.address == config.address);
        let Some(me) = me.map(|member| member.node) else {
            let why = format!("{} is not an address of the new namespace's nodes", config.address);
            return Err(Error::new(ErrorKind::Config, why));
        };
        let shared = Shared::new(config, map.namespace, key, next_life(Incarnation(0), key), map);
        let mut node = Node::with(shared, now_ns);
        for (number, keepers) in (0..).zip(&node.shared.map.partitions) {
            if keepers.primary == me {
                let partition = PartitionNo(number);
                let tables = T::new(partition, &node.shared.settings);
                node.replicas.insert(partition, Replica::new(partition, tables));
            }
        }
        for replica in node.replicas.values_mut() {
            replica.write_snapshot(&mut node.shared);
            node.opening.insert(replica.partition);
        }
        if node.shared.map.stewards.contains(&me) {
            let value = Value { term: 0, index: 0, map: node.shared.map.clone() };
            let ballot = Ballot { term: 0, voted: NodeNo(0), value };
            let bytes = write_file(node.shared.namespace, &ballot);
            let task = Task::Ballot(0, Box::new(ballot.clone()));
            node.shared.put(File::Steward, bytes, task);
            node.steward = Some(Self::steward(&node.shared, me, ballot));
        }
        node.shared.me = me;
        Ok(node)
    }

    pub(super) fn steward(shared: &Shared, me: NodeNo, ballot: Ballot) -> Steward {
        Steward::new(me, shared.config.timing, shared.config.planted(), ballot, shared.now_ns)
    }

    fn reopen(config: Config, files: &Files, key: u128, now_ns: u64) -> Result<Node<T>> {
        let file = |file: File| files.files.get(&file);
        let Some(bytes) = file(File::Identity) else {
            // Other files without an identity are of a life that never began.
            let life = next_life(Incarnation(0), key);
            let shared = Shared::new(config, 0, key, life, Map::unknown());
            let mut node = Node::with(shared, now_ns);
            for left in files.files.keys() {
                node.shared.out.push(super::Action::Remove { file: *left });
            }
            return Ok(node);
        };
        let (_, identity) = read_file::<Identity>(bytes)?;
        let life = next_life(identity.incarnation, key);
        let shared = Shared::new(config, identity.namespace, identity.key, life, Map::unknown());
        let mut node = Node::with(shared, now_ns);
        if let Some(bytes) = file(File::Steward) {
            let (_, ballot) = read_file::<Ballot>(bytes)?;
            ballot.value.map.check()?;
            node.shared.map = ballot.value.map.clone();
            // What this node stored may not hold: the map is for addresses, until a leader tells
            // one.
            node.shared.map.epoch = crate::Epoch(0);
            let by_key = ballot.value.map.by_key(identity.key).map(|member| member.node);
            let address = &node.shared.config.address;
            let waits = |member: &&crate::map::Member| member.key == 0 && member.address == *address;
            let me = by_key.or_else(|| ballot.value.map.nodes.iter().find(waits).map(|member| member.node));
            // One that was replaced keeps its vote: it may be appointed again.
            if let Some(me) = me {
                node.shared.me = me;
                node.steward = Some(Self::steward(&node.shared, me, ballot));
            }
        }
        node.recover(files);
        Ok(node)
    }

    /// Reads the log and the snapshots, and writes snapshots that make the log before this life
    /// unneeded: so a torn end is never appended to, and what only the kernel's memory still had
    /// after a failed sync is on disk before anybody builds on it.
    fn recover(&mut self, files: &Files) {
        let planted = self.shared.config.planted();
        let namespace = self.shared.namespace;
        for (file, bytes) in &files.files {
            let File::Snapshot(partition) = *file else { continue };
            let snapshot = read_file::<Snapshot>(bytes).map(|(_, snapshot)| snapshot);
            if let Ok(snapshot) = &snapshot {
                self.shared.settings = snapshot.settings.clone();
            }
            let replica = snapshot.and_then(|snapshot| {
                let tables = T::restore(partition, &snapshot.settings, &snapshot.pieces)?;
                let mut replica = Replica::new(partition, tables);
                replica.last = snapshot.position;
                replica.snapshot = snapshot.position;
                replica.turns = snapshot.turns;
                Ok(replica)
            });
            let replica = replica.unwrap_or_else(|_| {
                let mut replica = Replica::new(partition, T::new(partition, &Settings::default()));
                replica.damaged = true;
                replica
            });
            self.replicas.insert(partition, replica);
        }
        for file in files.files.keys() {
            let File::Damaged(partition) = *file else { continue };
            match self.replicas.get_mut(&partition) {
                Some(replica) => (replica.damaged, replica.marked) = (true, true),
                None => self.shared.out.push(super::Action::Remove { file: *file }),
            }
        }
        let segments = || {
            files.files.iter().filter_map(|(file, bytes)| match file {
                File::Segment(number) => Some((*number, bytes)),
                _ => None,
            })
        };
        let newest = segments().filter_map(|(number, bytes)| oldest_of(namespace, number, bytes)).next_back();
        let oldest = newest.unwrap_or(0);
        // A segment is begun after the one before it was synced whole.
        let last = segments().map(|(number, _)| number).next_back().unwrap_or(0);
        let mut synced: Mark = (if last > oldest { last } else { 0 }, 0);
        for (number, bytes) in segments().filter(|(number, _)| *number >= oldest) {
            read_segment(namespace, number, bytes, |found| {
                if let Found::Record(record) = found {
                    synced = synced.max(record.synced);
                }
            });
        }
        let mut reading = Reading { synced, doubted: BTreeSet::new(), torn: false, next: None };
        for (number, bytes) in segments().filter(|(number, _)| *number >= oldest) {
            if reading.next.is_some_and(|next| next != number) {
                reading.bad((number - 1, 0), &self.replicas);
            }
            reading.next = Some(number + 1);
            read_segment(namespace, number, bytes, |found| reading.take(number, found, &mut self.replicas));
        }
        for partition in reading.doubted {
            if let Some(replica) = self.replicas.get_mut(&partition) {
                replica.damaged = true;
            }
        }
        for replica in self.replicas.values_mut() {
            if has(planted, Planted::ServeDamaged) {
                replica.damaged = false;
            }
            replica.fence = replica.last.epoch;
            if replica.damaged {
                // The log of later lives does not tell it.
                if !std::mem::replace(&mut replica.marked, true) {
                    let file = File::Damaged(replica.partition);
                    self.shared.put(file, DAMAGED.to_vec(), Task::Damaged(replica.partition));
                    self.opening.insert(replica.partition);
                }
                continue;
            }
            if replica.last != replica.snapshot {
                replica.write_snapshot(&mut self.shared);
                self.opening.insert(replica.partition);
            }
            replica.local = replica.last.index;
        }
        self.shared.log = Log::new(last + 1);
        // Damaged partitions keep their records: perhaps a person can use them.
        if self.replicas.values().all(|replica| !replica.damaged) {
            self.old_segments.extend(segments().map(|(number, _)| number));
        }
    }
}

/// How far recovery has come.
struct Reading {
    /// The log was synced at least up to here.
    synced: Mark,
    /// Partitions of which records may be lost.
    doubted: BTreeSet<PartitionNo>,
    /// From here on nothing was synced for certain, and something is missing: nothing more counts.
    torn: bool,
    next: Option<u64>,
}

impl Reading {
    fn take<T: Tables>(
        &mut self,
        segment: u64,
        found: Found,
        replicas: &mut BTreeMap<PartitionNo, Replica<T>>,
    ) {
        if self.torn {
            return;
        }
        let record = match found {
            Found::BadBytes(at) => return self.bad((segment, at), replicas),
            Found::BadBody(_, at) if (segment, at) >= self.synced => {
                return self.bad((segment, at), replicas);
            }
            Found::BadBody(partition, _) => {
                self.doubted.insert(partition);
                return;
            }
            Found::Record(record) => record,
        };
        let Some(replica) = replicas.get_mut(&record.partition) else { return };
        let Position { epoch, index } = record.position;
        if replica.damaged || epoch < replica.last.epoch || replica.has(record.position) {
            return;
        }
        let follows = index == replica.last.index + 1;
        if !follows || !record.body.is_empty() && replica.tables.apply(&record.body).is_err() {
            replica.damaged = true;
            return;
        }
        replica.advance(record.position);
        // What follows on the last record shows that none was lost.
        self.doubted.remove(&record.partition);
    }

    /// Bytes are bad from `at` on. Behind what was synced it is a torn end: a power failure leaves
    /// any of the last sectors. Before that, any partition may have lost records.
    fn bad<T: Tables>(&mut self, at: Mark, replicas: &BTreeMap<PartitionNo, Replica<T>>) {
        if at < self.synced {
            self.doubted.extend(replicas.keys());
        } else {
            self.torn = true;
        }
    }
}
