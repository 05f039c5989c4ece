//! A replica of a partition: its tables, its place in the partition's log, and its part.
//!
//! The records of a partition are numbered, and each carries the epoch in which it was made. An
//! epoch has one primary, and opens with an empty record. So there is one record at a [`Position`],
//! and two replicas that have it are equal up to it. A replica whose last position the primary has
//! in its history gets the records behind it; any other gets a snapshot.

mod backup;
mod parts;
mod policy;
mod primary;

use parts::{Backup, Primary};

use crate::node::{File, Position, Shared, Snapshot, Tables, write_file};
use crate::{Epoch, PartitionNo};
use std::collections::VecDeque;

/// How many epochs a replica remembers the beginning of.
const TURNS_MAX: usize = 64;
/// A primary keeps records of so many bytes for backups that lag.
const TAIL_BYTES_MAX: usize = 4 << 20;

/// A replica.
pub(crate) struct Replica<T> {
    pub(crate) partition: PartitionNo,
    pub(crate) tables: T,
    /// Messages of older epochs are refused.
    pub(crate) fence: Epoch,
    /// The last record in the tables.
    pub(crate) last: Position,
    /// The first record of each of the last epochs.
    pub(crate) turns: Vec<Position>,
    /// The last records, for backups that lag; empty unless this is the primary.
    tail: VecDeque<(Position, Vec<u8>)>,
    tail_bytes: usize,
    /// Up to here this node's disk has the records, as durable as the level says.
    pub(crate) local: u64,
    /// The record of the newest snapshot on disk, and of one that is being written.
    pub(crate) snapshot: Position,
    pub(crate) snapshotting: bool,
    /// Records here are lost: the replica answers nobody, and needs a snapshot.
    pub(crate) damaged: bool,
    /// Whether the disk says so, too.
    pub(crate) marked: bool,
    pub(crate) role: Role,
}

/// What a replica is.
pub(crate) enum Role {
    /// It takes what a primary sends.
    Backup(Box<Backup>),
    /// It answers.
    Primary(Box<Primary>),
}

impl<T: Tables> Replica<T> {
    pub(crate) fn new(partition: PartitionNo, tables: T) -> Replica<T> {
        Replica {
            partition,
            tables,
            fence: Epoch(0),
            last: Position::default(),
            turns: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            local: 0,
            snapshot: Position::default(),
            snapshotting: false,
            damaged: false,
            marked: false,
            role: Role::Backup(Box::default()),
        }
    }

    /// Whether the record at `position` is one of this replica's.
    pub(crate) fn has(&self, position: Position) -> bool {
        if position.index > self.last.index || position.index == 0 {
            return false;
        }
        // The epoch of a record is that of the last turn at or before it.
        let after = self.turns.partition_point(|turn| turn.index <= position.index);
        after > 0 && self.turns[after - 1].epoch == position.epoch
    }

    /// Notes that the tables hold the record at `position`.
    pub(crate) fn advance(&mut self, position: Position) {
        if self.turns.last().is_none_or(|turn| turn.epoch < position.epoch) {
            self.turns.push(position);
            if self.turns.len() > TURNS_MAX {
                self.turns.remove(0);
            }
        }
        self.last = position;
    }

    /// The partition as a file.
    pub(crate) fn to_file(&self, shared: &Shared) -> Vec<u8> {
        let snapshot = Snapshot {
            partition: self.partition,
            settings: shared.settings.clone(),
            position: self.last,
            turns: self.turns.clone(),
            pieces: self.tables.snapshot(),
        };
        write_file(shared.namespace, &snapshot)
    }

    /// Writes the partition as a snapshot, so that the log before it is not needed.
    pub(crate) fn write_snapshot(&mut self, shared: &mut Shared) {
        if std::mem::replace(&mut self.snapshotting, true) {
            return;
        }
        let bytes = self.to_file(shared);
        let task = crate::node::Task::Snapshot(self.partition, self.last);
        shared.put(File::Snapshot(self.partition), bytes, task);
    }

    /// Records up to `index` are as durable here as the level says.
    pub(crate) fn settle(&mut self, index: u64, shared: &mut Shared) {
        self.local = self.local.max(index.min(self.last.index));
        shared.dirty.insert(self.partition);
    }

    pub(crate) fn primary(&mut self) -> Option<&mut Primary> {
        match &mut self.role {
            Role::Primary(primary) => Some(primary),
            Role::Backup(_) => None,
        }
    }

    /// Is no primary any more. What was not answered stays so: clients ask the new one.
    pub(crate) fn step_down(&mut self, shared: &mut Shared) {
        if let Role::Primary(primary) = std::mem::replace(&mut self.role, Role::Backup(Box::default())) {
            primary.refuse_held(shared);
            self.tail.clear();
            self.tail_bytes = 0;
        }
    }
}
