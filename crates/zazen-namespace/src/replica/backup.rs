//! A backup takes what its primary sends.

use super::parts::Incoming;
use super::{Replica, Role};
use crate::NodeNo;
use crate::node::{File, Position, RECORD_BYTES_MAX, Shared, Snapshot, Tables, Task, read_file};
use crate::peer::{Append, Appended, Behind, Message, Piece, Taken};
use crate::planted::Planted;

impl<T: Tables> Replica<T> {
    /// Whether this replica takes the records of this epoch from this node already.
    pub(crate) fn follows(&self, from: NodeNo, epoch: crate::Epoch) -> bool {
        matches!(&self.role, Role::Backup(backup) if backup.primary == from && self.fence == epoch)
    }

    /// Whether a message of this epoch counts. One of a later epoch makes this replica a backup of
    /// its sender.
    fn admits(&mut self, epoch: crate::Epoch, from: NodeNo, shared: &mut Shared) -> bool {
        if epoch < self.fence {
            return false;
        }
        if epoch > self.fence {
            self.step_down(shared);
            self.fence = epoch;
            if let Role::Backup(backup) = &mut self.role {
                backup.matched = 0;
                backup.acknowledged = 0;
                backup.incoming = None;
            }
        }
        let Role::Backup(backup) = &mut self.role else { return false };
        backup.primary = from;
        true
    }

    /// Takes records.
    pub(crate) fn take_records(&mut self, from: NodeNo, append: Append, shared: &mut Shared) {
        if !self.admits(append.epoch, from, shared) {
            return;
        }
        let behind =
            |last| Message::Behind(Behind { partition: append.partition, epoch: append.epoch, last });
        if self.damaged || self.last.index == 0 {
            return shared.send(from, behind(Position::default()));
        }
        let follows = self.has(append.previous) || shared.has(Planted::SkipPositionCheck);
        if !follows {
            return shared.send(from, behind(self.last));
        }
        let mut index = append.previous.index;
        for (epoch, body) in append.records {
            index += 1;
            let position = Position { epoch, index };
            if index <= self.last.index && self.has(position) {
                continue;
            }
            if index != self.last.index + 1 && !shared.has(Planted::SkipPositionCheck)
                || epoch < self.last.epoch
                || epoch > append.epoch
                || body.len() > RECORD_BYTES_MAX
            {
                // What is here was made by a primary that others have replaced since.
                return shared.send(from, behind(self.last));
            }
            if !body.is_empty() && self.tables.apply(&body).is_err() {
                self.damaged = true;
                return shared.send(from, behind(Position::default()));
            }
            shared.append(self.partition, position, &body);
            self.advance(position);
        }
        if let Role::Backup(backup) = &mut self.role {
            backup.matched = backup.matched.max(index);
            // Said again even if nothing is new: the primary may not have heard it.
            backup.acknowledged = 0;
        }
        shared.dirty.insert(self.partition);
    }

    /// Says what is here, as durable as the level says.
    pub(crate) fn acknowledge(&mut self, shared: &mut Shared) {
        let (partition, epoch, local) = (self.partition, self.fence, self.local);
        let Role::Backup(backup) = &mut self.role else { return };
        let index = backup.matched.min(local);
        if index > backup.acknowledged && !backup.installing {
            backup.acknowledged = index;
            shared.send(backup.primary, Message::Appended(Appended { partition, epoch, index }));
        }
    }

    /// Takes a part of a snapshot.
    pub(crate) fn take_piece(&mut self, from: NodeNo, piece: Piece, shared: &mut Shared) {
        if !self.admits(piece.epoch, from, shared) {
            return;
        }
        let (has_it, partition) = (self.has(piece.position) && !self.damaged, self.partition);
        let Role::Backup(backup) = &mut self.role else { return };
        let Piece { epoch, position, offset, total, bytes, .. } = piece;
        if backup.installing {
            return;
        }
        if has_it {
            let taken = Taken { partition, epoch, position, offset: total };
            return shared.send(from, Message::Taken(taken));
        }
        if backup.incoming.as_ref().is_none_or(|one| one.position != position || one.total != total) {
            backup.incoming = Some(Incoming { position, total, bytes: Vec::new() });
        }
        let Some(incoming) = &mut backup.incoming else { return };
        if offset == incoming.bytes.len() as u64 && offset + bytes.len() as u64 <= total {
            incoming.bytes.extend_from_slice(&bytes);
        }
        let offset = incoming.bytes.len() as u64;
        if offset < total {
            let taken = Taken { partition, epoch, position, offset };
            return shared.send(from, Message::Taken(taken));
        }
        let Some(incoming) = backup.incoming.take() else { return };
        self.install(&incoming.bytes, shared);
    }

    /// Becomes what a snapshot holds. Nothing is acknowledged before it is on disk.
    fn install(&mut self, bytes: &[u8], shared: &mut Shared) {
        let Ok((_, snapshot)) = read_file::<Snapshot>(bytes) else { return };
        if snapshot.partition != self.partition {
            return;
        }
        let Ok(tables) = T::restore(self.partition, &snapshot.settings, &snapshot.pieces) else { return };
        self.tables = tables;
        self.last = snapshot.position;
        self.turns = snapshot.turns;
        self.damaged = false;
        self.local = 0;
        if let Role::Backup(backup) = &mut self.role {
            backup.installing = true;
            backup.matched = snapshot.position.index;
            backup.acknowledged = 0;
        }
        self.snapshotting = true;
        let task = Task::Snapshot(self.partition, snapshot.position);
        shared.put(File::Snapshot(self.partition), bytes.to_vec(), task);
    }

    /// A snapshot of this partition is on disk.
    pub(crate) fn snapshot_written(&mut self, position: Position, shared: &mut Shared) {
        self.snapshotting = false;
        self.snapshot = self.snapshot.max(position);
        let partition = self.partition;
        if self.marked && !self.damaged {
            self.marked = false;
            shared.out.push(crate::node::Action::Remove { file: File::Damaged(partition) });
        }
        if let Role::Backup(backup) = &mut self.role
            && std::mem::take(&mut backup.installing)
        {
            let taken = Taken { partition, epoch: self.fence, position, offset: u64::MAX };
            shared.send(backup.primary, Message::Taken(taken));
        }
        self.settle(position.index, shared);
    }
}
