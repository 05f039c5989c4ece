//! A primary executes requests, sends records to its backups, and answers when they have them.

use super::parts::{Follower, Held, Mode, Primary};
use super::{Replica, Role, TAIL_BYTES_MAX};
use crate::node::{Action, Position, Shared, Tables};
use crate::operation::{Answer, Moved, Request, Response};
use crate::partition::{self, PeerMessage};
use crate::peer::{Append, Appended, Behind, Message, Piece, Taken, Unneeded};
use crate::planted::Planted;
use crate::{Epoch, Errno, Incarnation, NodeNo, PartitionNo};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of records in one message.
const APPEND_BYTES_MAX: usize = 1 << 20;
/// Bytes of a snapshot in one message.
const PIECE_BYTES: usize = 512 << 10;
/// Snapshots that a node sends at once to nodes that are no backups yet.
const TRANSFERS_MAX: usize = 2;
/// How often after its last message to another partition a partition is told that time passes.
///
/// This counts, because a clock goes on while the node stands still, has no lease or hands the
/// partition over: transactions that wait would then never send their messages again.
const TICKS: u32 = 50;

impl<T: Tables> Replica<T> {
    /// Becomes, or stays, the primary, in a new epoch of the partition.
    pub(crate) fn lead(&mut self, epoch: Epoch, shared: &mut Shared) {
        let goes_on = matches!(self.role, Role::Primary(_));
        self.tables.plant(shared.config.planted());
        self.fence = epoch;
        if let Some(primary) = self.primary() {
            primary.epoch = epoch;
            primary.asked = None;
            primary.handing = false;
            primary.followers.values_mut().for_each(|follower| follower.required = false);
        } else {
            self.role = Role::Primary(Box::new(Primary {
                epoch,
                since: epoch,
                commit: 0,
                followers: BTreeMap::new(),
                held: VecDeque::new(),
                asked: None,
                handing: false,
                ticks: TICKS,
                settled: false,
            }));
        }
        if !shared.has(Planted::SkipBarrier) {
            self.log(Vec::new(), shared);
        }
        if !goes_on {
            self.execute(partition::Event::Resumed { epoch }, shared);
        }
        // Also where it goes on: the epoch may have changed because a backup's life ended.
        let ended: Vec<_> = shared.map.nodes.iter().filter_map(crate::map::Member::ended).collect();
        for (node, incarnation) in ended {
            self.execute(partition::Event::NodeGone { node, incarnation }, shared);
        }
        self.tend(shared);
        shared.busy.insert(self.partition);
        shared.dirty.insert(self.partition);
    }

    fn log(&mut self, body: Vec<u8>, shared: &mut Shared) {
        let position = Position { epoch: self.fence, index: self.last.index + 1 };
        shared.append(self.partition, position, &body);
        self.advance(position);
        self.tail_bytes += body.len() + 64;
        self.tail.push_back((position, body));
        shared.dirty.insert(self.partition);
    }

    /// A client asks.
    pub(crate) fn ask(&mut self, token: u64, request: Request, shared: &mut Shared) {
        let number = request.number;
        let partition = self.partition;
        let is_mine = shared.is_mine(partition);
        let answer = if is_mine && self.damaged {
            Some(Answer::refused(Errno::EIO))
        } else {
            let may = shared.may_answer() && !shared.is_young(partition);
            let hands = !shared.has(Planted::AnswerWhileHanding);
            let is_ready = self.primary().is_some_and(|primary| !(primary.handing && hands));
            let moved = Moved { epoch: shared.map.epoch, perhaps: false };
            (!may || !is_ready).then_some(Answer::Moved(moved))
        };
        match answer {
            Some(answer) => {
                shared.out.push(Action::Reply { token, response: Response { number, answer } });
            }
            None => self.execute(partition::Event::Request { token, request }, shared),
        }
    }

    /// Another partition says something.
    pub(crate) fn hear(&mut self, from: PartitionNo, message: PeerMessage, shared: &mut Shared) {
        let may = shared.may_answer()
            && !shared.is_young(self.partition)
            && self.primary().is_some_and(|primary| !primary.handing);
        if may {
            self.execute(partition::Event::Peer { from, message }, shared);
        }
    }

    /// Executes an event, and holds what may not leave yet.
    pub(crate) fn execute(&mut self, event: partition::Event, shared: &mut Shared) {
        if matches!(event, partition::Event::NodeGone { .. }) && shared.has(Planted::SkipFence) {
            return;
        }
        let mut actions = Vec::new();
        self.tables.step(shared.wall_ns, event, &mut actions);
        for action in actions {
            let held = match action {
                partition::Action::Log(body) => {
                    self.log(body, shared);
                    continue;
                }
                partition::Action::Reply { token, response } => Held::Reply { token, response },
                partition::Action::Send { to, message } => {
                    self.goes_on(shared);
                    Held::Send { to, message }
                }
                partition::Action::DropObject { holder, id, generation } => {
                    // More chunks may wait to be buried.
                    self.goes_on(shared);
                    Held::Drop { holder, unneeded: Unneeded { id, generation } }
                }
            };
            let last = self.last.index;
            let index = if shared.has(Planted::ReadUncommitted) { 0 } else { last };
            if let Some(primary) = self.primary() {
                primary.held.push_back((index, held));
            }
        }
        shared.dirty.insert(self.partition);
    }

    /// There may be something to do at ticks, though nobody asks for anything.
    fn goes_on(&mut self, shared: &mut Shared) {
        shared.busy.insert(self.partition);
        if let Some(primary) = self.primary() {
            primary.ticks = TICKS;
        }
    }

    /// Sends new records, counts what is committed, and lets go what waited for it.
    pub(crate) fn flush(&mut self, shared: &mut Shared) {
        let Role::Primary(_) = &self.role else { return self.acknowledge(shared) };
        self.send_records(shared);
        self.count(shared);
        self.trim(shared);
    }

    fn count(&mut self, shared: &mut Shared) {
        let (partition, local, last) = (self.partition, self.local, self.last.index);
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(keepers) = shared.map.keepers(partition) else { return };
        let mut commit = local;
        // A map that is newer than the primary's epoch names other backups.
        let is_current = keepers.epoch == primary.epoch;
        if !shared.has(Planted::AcknowledgeBeforeReplicate) {
            for backup in &keepers.backups {
                commit = commit.min(primary.followers.get(backup).map_or(0, |follower| follower.acked));
            }
            for follower in primary.followers.values().filter(|follower| follower.required) {
                commit = commit.min(follower.acked);
            }
        }
        if is_current {
            primary.commit = primary.commit.max(commit);
        }
        let now_ns = shared.now_ns;
        for follower in primary.followers.values_mut() {
            if follower.acked >= last {
                follower.lacks_ns = None;
            } else {
                follower.lacks_ns.get_or_insert(now_ns);
                shared.busy.insert(partition);
            }
        }
        let commit = primary.commit;
        let mut free = Vec::new();
        while let Some((_, held)) = primary.held.pop_front_if(|(index, _)| *index <= commit) {
            free.push(held);
        }
        for held in free {
            match held {
                Held::Reply { token, response } => shared.out.push(Action::Reply { token, response }),
                Held::Send { to, message } => shared.tell(partition, to, message),
                Held::Drop { holder, unneeded } => shared.send(holder, Message::Unneeded(unneeded)),
            }
        }
    }

    /// Forgets records that no backup lacks.
    fn trim(&mut self, shared: &Shared) {
        let (partition, last) = (self.partition, self.last.index);
        let Role::Primary(primary) = &mut self.role else { return };
        let mut keep = last;
        for follower in primary.followers.values() {
            keep = keep.min(match &follower.mode {
                Mode::Snapshot { position, .. } => position.index,
                _ => follower.acked,
            });
        }
        let waits_for = |node: &NodeNo| {
            shared.map.keepers(partition).is_some_and(|keepers| keepers.backups.contains(node))
        };
        let waits = primary.followers.iter().any(|(node, one)| one.acked < last && waits_for(node));
        let commit = primary.commit;
        while let Some((position, body)) = self.tail.front() {
            let is_spare = self.tail_bytes > TAIL_BYTES_MAX && (position.index <= commit || !waits);
            if position.index > keep && !is_spare {
                break;
            }
            self.tail_bytes -= body.len() + 64;
            self.tail.pop_front();
        }
    }

    /// The position of record `index`, if it is known.
    fn position_of(&self, index: u64) -> Option<Position> {
        let after = self.turns.partition_point(|turn| turn.index <= index);
        let epoch = self.turns.get(after.checked_sub(1)?)?.epoch;
        (index <= self.last.index).then_some(Position { epoch, index })
    }

    /// Sends each follower what it lacks.
    pub(super) fn send_records(&mut self, shared: &mut Shared) {
        let last = self.last;
        let (partition, epoch, now_ns) = (self.partition, self.fence, shared.now_ns);
        let retry_ns = shared.config.timing.retry_ns;
        let Role::Primary(primary) = &mut self.role else { return };
        let mut nodes: Vec<NodeNo> = Vec::with_capacity(primary.followers.len());
        nodes.extend(primary.followers.keys());
        for node in nodes {
            let Role::Primary(primary) = &mut self.role else { return };
            let Some(follower) = primary.followers.get_mut(&node) else { continue };
            let is_due = now_ns >= follower.tried_ns + retry_ns || follower.tried_ns == 0;
            match &mut follower.mode {
                Mode::Probe if is_due => {
                    follower.tried_ns = now_ns;
                    let append = Append { partition, epoch, previous: last, records: Vec::new() };
                    shared.send(node, Message::Append(append));
                }
                Mode::Snapshot { position, bytes, .. } if is_due => {
                    follower.tried_ns = now_ns;
                    let piece = piece(partition, epoch, *position, bytes, 0);
                    shared.send(node, Message::Piece(piece));
                }
                Mode::Stream(next) => {
                    if is_due && follower.acked < last.index && follower.acked + 1 < *next {
                        *next = follower.acked + 1;
                    }
                    let next = *next;
                    follower.tried_ns = if next <= last.index { now_ns } else { follower.tried_ns };
                    let sent = self.stream(node, next, shared);
                    if let Some(follower) =
                        self.primary().and_then(|primary| primary.followers.get_mut(&node))
                    {
                        match sent {
                            Some(next) => follower.mode = Mode::Stream(next),
                            None => follower.mode = Mode::Probe,
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends the records from `next` on; the record that comes next then. `None` if they are gone.
    fn stream(&self, node: NodeNo, mut next: u64, shared: &mut Shared) -> Option<u64> {
        while next <= self.last.index {
            let first = self.tail.front().map_or(u64::MAX, |(position, _)| position.index);
            let skip = usize::try_from(next.checked_sub(first)?).ok()?;
            let previous = self.position_of(next - 1)?;
            let mut bytes = 0;
            let mut records = Vec::new();
            for (position, body) in self.tail.iter().skip(skip) {
                if bytes > APPEND_BYTES_MAX {
                    break;
                }
                bytes += body.len() + 64;
                records.push((position.epoch, body.clone()));
            }
            if records.is_empty() {
                return None;
            }
            next += records.len() as u64;
            let append = Append { partition: self.partition, epoch: self.fence, previous, records };
            shared.send(node, Message::Append(append));
        }
        Some(next)
    }

    /// The follower that a message comes from, if it lives the life that is known.
    fn follower(&mut self, from: NodeNo, life: Incarnation, epoch: Epoch) -> Option<&mut Follower> {
        let primary = self.primary()?;
        if epoch < primary.since || epoch > primary.epoch {
            return None;
        }
        primary.followers.get_mut(&from).filter(|follower| follower.incarnation == life)
    }

    /// A backup has records.
    pub(crate) fn appended(
        &mut self,
        from: NodeNo,
        life: Incarnation,
        appended: &Appended,
        shared: &mut Shared,
    ) {
        let last = self.last.index;
        let Some(follower) = self.follower(from, life, appended.epoch) else { return };
        follower.acked = follower.acked.max(appended.index.min(last));
        if matches!(follower.mode, Mode::Probe) {
            follower.mode = Mode::Stream(follower.acked + 1);
        }
        follower.lacks_ns = None;
        shared.dirty.insert(self.partition);
        if self.primary().is_some_and(|primary| !primary.settled) {
            self.tend(shared);
        }
    }

    /// Records do not fit on what a backup has.
    pub(crate) fn behind(&mut self, from: NodeNo, life: Incarnation, behind: &Behind, shared: &mut Shared) {
        let knows = self.has(behind.last);
        let first = self.tail.front().map_or(self.last.index + 1, |(position, _)| position.index);
        let fits = knows && behind.last.index + 1 >= first && self.position_of(behind.last.index).is_some();
        let (position, now_ns) = (self.last, shared.now_ns);
        let retry_ns = shared.config.timing.retry_ns;
        let Some(follower) = self.follower(from, life, behind.epoch) else { return };
        if matches!(follower.mode, Mode::Snapshot { .. }) || now_ns < follower.rewound_ns + retry_ns / 4 {
            return;
        }
        let file = if fits { Vec::new() } else { self.to_file(shared) };
        let is_backup = shared.map.keepers(self.partition).is_some_and(|one| one.backups.contains(&from));
        let Some(follower) = self.follower(from, life, behind.epoch) else { return };
        follower.rewound_ns = now_ns;
        if fits {
            follower.mode = Mode::Stream(behind.last.index + 1);
        } else if is_backup || shared.transfers < TRANSFERS_MAX {
            if !is_backup {
                shared.transfers += 1;
            }
            follower.mode = Mode::Snapshot { position, bytes: file, counted: !is_backup };
            follower.tried_ns = 0;
        } else {
            follower.mode = Mode::Probe;
            follower.tried_ns = now_ns;
        }
        shared.busy.insert(self.partition);
        shared.dirty.insert(self.partition);
    }

    /// A backup has a part of a snapshot.
    pub(crate) fn taken(&mut self, from: NodeNo, life: Incarnation, taken: &Taken, shared: &mut Shared) {
        let partition = self.partition;
        let (epoch, now_ns) = (self.fence, shared.now_ns);
        let Some(follower) = self.follower(from, life, taken.epoch) else { return };
        let Mode::Snapshot { position, bytes, .. } = &follower.mode else { return };
        if *position != taken.position {
            return;
        }
        if taken.offset >= bytes.len() as u64 {
            let next = position.index + 1;
            // Only what is on its disk counts: it says so itself.
            follower.end_transfer(shared);
            follower.mode = Mode::Stream(next);
            if taken.offset == u64::MAX {
                follower.acked = follower.acked.max(next - 1);
            }
            follower.lacks_ns = None;
        } else {
            follower.tried_ns = now_ns;
            follower.lacks_ns = None;
            let piece = piece(partition, epoch, *position, bytes, taken.offset);
            shared.send(from, Message::Piece(piece));
        }
        shared.dirty.insert(partition);
        self.tend(shared);
    }

    /// Time has passed.
    pub(crate) fn remind(&mut self, shared: &mut Shared) {
        let damaged = self.damaged;
        let Some(primary) = self.primary() else { return };
        if primary.ticks > 0 && !damaged {
            // A transaction that waits makes records and messages at each tick: the partition would
            // never be quiet, and so never be handed over.
            let executes = !primary.handing || shared.has(Planted::AnswerWhileHanding);
            if executes && shared.may_answer() {
                primary.ticks -= 1;
                self.execute(partition::Event::Tick, shared);
            }
            shared.busy.insert(self.partition);
        }
        self.tend(shared);
        shared.dirty.insert(self.partition);
    }

    /// Forgets a follower.
    pub(super) fn forget(&mut self, node: NodeNo, shared: &mut Shared) {
        if let Some(mut follower) = self.primary().and_then(|primary| primary.followers.remove(&node)) {
            follower.end_transfer(shared);
        }
    }
}

fn piece(partition: PartitionNo, epoch: Epoch, position: Position, bytes: &[u8], offset: u64) -> Piece {
    let at = (offset as usize).min(bytes.len());
    let end = (at + PIECE_BYTES).min(bytes.len());
    let total = bytes.len() as u64;
    Piece { partition, epoch, position, offset, total, bytes: bytes[at..end].to_vec() }
}
