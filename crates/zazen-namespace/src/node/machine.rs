//! The node as its driver sees it.

use super::heard::Sender;
use super::log::next_life;
use super::shared::Task;
use super::{Action, Event, File, Identity, Shared, Status, Tables, write_file};
use crate::map::{Change, Leave, Map, State, Stop};
use crate::operation::{Answer, Moved, Request, Response};
use crate::partition::{self, Partition};
use crate::peer::{Ballot, Envelope, Message, News, Renew, Store, Value};
use crate::planted::Planted;
use crate::replica::{Replica, Role};
use crate::stewards::{Steward, Wish};
use crate::{Errno, Incarnation, NodeNo, PartitionNo};
use std::collections::{BTreeMap, BTreeSet};
use zazen_wire::Message as _;

/// Snapshots that a node writes at once to shorten its log.
const SNAPSHOTS_MAX: usize = 4;

/// One node of a namespace. See the [module](super).
pub struct Node<T = Partition> {
    pub(super) shared: Shared,
    pub(super) replicas: BTreeMap<PartitionNo, Replica<T>>,
    pub(super) steward: Option<Steward>,
    /// Snapshots that must be on disk before this life begins.
    pub(super) opening: BTreeSet<PartitionNo>,
    /// Segments of earlier lives, to remove when this life begins.
    pub(super) old_segments: Vec<u64>,
    phase: Phase,
    renews_ns: u64,
    reminds_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Snapshots are being written.
    Opening,
    /// The identity is being written.
    Naming,
    /// It lives.
    Living,
}

impl<T: Tables> Node<T> {
    pub(super) fn with(mut shared: Shared, now_ns: u64) -> Node<T> {
        shared.now_ns = now_ns;
        Node {
            shared,
            replicas: BTreeMap::new(),
            steward: None,
            opening: BTreeSet::new(),
            old_segments: Vec::new(),
            phase: Phase::Opening,
            renews_ns: now_ns,
            reminds_ns: u64::MAX,
        }
    }

    /// The newest map that the node knows.
    pub fn map(&self) -> &Map {
        &self.shared.map
    }

    /// The node's number; 0 while it has none.
    pub fn number(&self) -> NodeNo {
        self.shared.me
    }

    /// The node's present life. It may end, and a new one begin, while the driver runs.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation
    }

    /// Whether the node takes part, by the newest map that it knows; `None` while it has no number.
    pub fn state(&self) -> Option<State> {
        self.shared.map.member(self.shared.me).map(|member| member.state)
    }

    /// What the node tells of itself.
    pub fn status(&self) -> Status {
        let leads = |replica: &&Replica<T>| matches!(replica.role, Role::Primary(_));
        let primary_of = self.replicas.values().filter(leads).count();
        Status {
            node: self.shared.me,
            has_lease: self.shared.may_answer(),
            leads: self.steward.as_ref().is_some_and(Steward::leads),
            primary_of,
            backup_of: self.replicas.len() - primary_of,
            damaged: self.replicas.values().filter(|one| one.damaged).map(|one| one.partition).collect(),
        }
    }

    /// The tables of a partition, for tests.
    pub fn tables(&self, partition: PartitionNo) -> Option<&T> {
        self.replicas.get(&partition).map(|replica| &replica.tables)
    }

    /// The epoch in which the node would answer a request for this partition that comes at
    /// `now_ns`; `None` if it would not.
    pub fn leads(&self, partition: PartitionNo, now_ns: u64) -> Option<crate::Epoch> {
        let goes_on = self.shared.has(Planted::AnswerWhileHanding);
        match &self.replicas.get(&partition)?.role {
            Role::Primary(primary)
                if (!primary.handing || goes_on)
                    && self.shared.may_answer_at(now_ns)
                    && !self.shared.is_young(partition) =>
            {
                Some(primary.epoch)
            }
            _ => None,
        }
    }

    /// The oldest epoch of which this node takes records of the partition, for tests.
    pub fn fence(&self, partition: PartitionNo) -> Option<crate::Epoch> {
        self.replicas.get(&partition).map(|replica| replica.fence)
    }

    /// The last record of this partition that the node has, for tests.
    pub fn position(&self, partition: PartitionNo) -> Option<super::Position> {
        self.replicas.get(&partition).filter(|replica| !replica.damaged).map(|replica| replica.last)
    }

    /// When the driver must bring [`Event::Timer`], by the clock of `now_ns`.
    pub fn wakes_ns(&self) -> u64 {
        if self.shared.broken || self.phase != Phase::Living {
            return u64::MAX;
        }
        let steward = self.steward.as_ref().map_or(u64::MAX, Steward::wakes_ns);
        self.renews_ns.min(self.reminds_ns).min(steward).min(self.shared.syncs_ns())
    }

    /// Takes what happens. What is to be done comes from [`Node::flush`].
    pub fn step(&mut self, now_ns: u64, wall_ns: i64, event: Event) {
        self.shared.now_ns = self.shared.now_ns.max(now_ns);
        self.shared.wall_ns = wall_ns;
        match event {
            Event::Request { token, request } => self.ask(token, request),
            _ if self.shared.broken => {}
            Event::Peer { bytes } => self.open_envelope(&bytes),
            Event::Done { token, ok } => self.done(token, ok),
            Event::Timer => self.timer(),
            Event::Wish { state } => {
                let node = self.shared.me;
                if node.0 > 0 {
                    self.shared.propose(&Change::Leave(Leave { node, state }));
                }
            }
        }
    }

    /// What is to be done, after all that was brought.
    pub fn flush(&mut self, actions: &mut Vec<Action>) {
        if self.phase == Phase::Opening && self.opening.is_empty() {
            self.name();
        }
        loop {
            while let Some(message) = self.shared.inbox.pop_front() {
                let from = self.shared.self_as_sender();
                self.hear(&from, message);
            }
            for partition in std::mem::take(&mut self.shared.dirty) {
                if let Some(replica) = self.replicas.get_mut(&partition) {
                    replica.flush(&mut self.shared);
                }
            }
            self.settle();
            if self.shared.inbox.is_empty() && self.shared.dirty.is_empty() {
                break;
            }
        }
        if !self.shared.broken && self.shared.write_log() {
            self.shorten_log();
        }
        if self.shared.busy.is_empty() {
            self.reminds_ns = u64::MAX;
        } else if self.reminds_ns == u64::MAX {
            self.reminds_ns = self.shared.now_ns + self.shared.config.timing.retry_ns / 2;
        }
        self.shared.post();
        actions.append(&mut self.shared.out);
    }

    /// Tells partitions how far their records are durable.
    fn settle(&mut self) {
        let planted = self.shared.config.planted();
        for (partition, index) in self.shared.log.settled(self.shared.config.level, planted) {
            if let Some(replica) = self.replicas.get_mut(&partition) {
                replica.settle(index, &mut self.shared);
            }
        }
    }

    /// Writes who the node is, with its new life.
    fn name(&mut self) {
        self.phase = Phase::Naming;
        for segment in std::mem::take(&mut self.old_segments) {
            self.shared.out.push(Action::Remove { file: File::Segment(segment) });
        }
        self.write_identity();
    }

    fn write_identity(&mut self) {
        let Shared { namespace, key, incarnation, .. } = self.shared;
        let bytes = write_file(namespace, &Identity { namespace, key, incarnation });
        self.shared.put(File::Identity, bytes, Task::Identity(incarnation));
    }

    fn ask(&mut self, token: u64, request: Request) {
        let partition = request.operation.partition();
        if let Some(replica) = self.replicas.get_mut(&partition)
            && !self.shared.broken
        {
            return replica.ask(token, request, &mut self.shared);
        }
        let answer = match self.shared.is_mine(partition) && !self.shared.broken {
            // It should be here, and is not.
            true => Answer::refused(Errno::EIO),
            false => Answer::Moved(Moved { epoch: self.shared.map.epoch, perhaps: false }),
        };
        let response = Response { number: request.number, answer };
        self.shared.out.push(Action::Reply { token, response });
    }

    fn open_envelope(&mut self, bytes: &[u8]) {
        let Ok(envelope) = Envelope::decode(bytes) else { return };
        let (ours, theirs) = (self.shared.namespace, envelope.namespace);
        if self.phase != Phase::Living || ours != 0 && theirs != 0 && ours != theirs {
            return;
        }
        let sender = self.shared.sender(&envelope);
        if envelope.epoch > self.shared.map.epoch {
            self.renews_ns = self.renews_ns.min(self.shared.now_ns + self.shared.config.timing.retry_ns / 4);
        }
        for message in &envelope.messages {
            if let Message::Renew(renew) = message {
                self.with_steward(|steward, now_ns, wishes| steward.renew(&envelope, renew, now_ns, wishes));
                self.relay(&envelope);
            } else if self.may_say(&sender, message) {
                self.hear(&sender, message.clone());
            }
        }
    }

    /// Tells a node that asks for its lease the newer map that this node goes by: it may not know
    /// yet who leads the stewards. The leader itself tells it in its own time.
    fn relay(&mut self, envelope: &Envelope) {
        let leads = self.steward.as_ref().is_some_and(Steward::leads);
        if leads || envelope.epoch >= self.shared.map.epoch || envelope.key == self.shared.key {
            return;
        }
        let news = Message::News(News { map: self.shared.map.clone() });
        match self.shared.map.by_key(envelope.key).map(|member| member.node) {
            Some(to) => self.shared.send(to, news),
            None => self.shared.send_to(envelope.address.clone(), news),
        }
    }

    /// Whether the sender of an envelope may say this. `heard` has the rules.
    fn may_say(&self, sender: &Sender, message: &Message) -> bool {
        let heard = match message {
            Message::Append(append) => Some((append.partition, append.epoch)),
            Message::Piece(piece) => Some((piece.partition, piece.epoch)),
            _ => None,
        };
        if let Some((partition, epoch)) = heard {
            let goes_on = |replica: &Replica<T>| replica.follows(sender.node, epoch);
            let follows = self.replicas.get(&partition).is_some_and(goes_on);
            return self.shared.may_lead(sender, partition, epoch, follows);
        }
        let learns =
            |steward: &Steward| matches!(message, Message::Stored(_)) && steward.teaches(sender.node);
        let counts = |steward: &Steward| steward.counts(sender.node) || learns(steward);
        let is_steward = self.steward.as_ref().is_some_and(counts);
        self.shared.may_say(sender, message, is_steward)
    }

    fn with_steward(&mut self, call: impl FnOnce(&mut Steward, u64, &mut Vec<Wish>)) {
        let mut wishes = Vec::new();
        if let Some(steward) = &mut self.steward {
            call(steward, self.shared.now_ns, &mut wishes);
        }
        for wish in wishes {
            match wish {
                Wish::Send(to, message) => self.shared.send(to, message),
                Wish::Save(number, ballot) => {
                    let bytes = write_file(self.shared.namespace, &*ballot);
                    self.shared.put(File::Steward, bytes, Task::Ballot(number, ballot));
                }
                Wish::Holds(map) => self.adopt(*map),
            }
        }
    }

    fn hear(&mut self, from: &Sender, message: Message) {
        let partition = match &message {
            Message::Append(append) => append.partition,
            Message::Appended(appended) => appended.partition,
            Message::Behind(behind) => behind.partition,
            Message::Piece(piece) => piece.partition,
            Message::Taken(taken) => taken.partition,
            Message::Between(between) => between.to,
            Message::Unneeded(unneeded) => {
                let (id, generation) = (unneeded.id, unneeded.generation);
                return self.shared.out.push(Action::DropObject { id, generation });
            }
            Message::Renew(renew) => {
                let envelope = self.shared.letter();
                let renew = renew.clone();
                return self.with_steward(|steward, now_ns, wishes| {
                    steward.renew(&envelope, &renew, now_ns, wishes);
                });
            }
            Message::Granted(granted) => {
                // Nobody was asked at a later time than now.
                if granted.incarnation == self.shared.incarnation && granted.sent_ns <= self.shared.now_ns {
                    self.granted(granted.sent_ns);
                }
                return;
            }
            Message::News(news) => return self.adopt(news.map.clone()),
            Message::Propose(propose) => {
                let change = propose.change.clone();
                return self.with_steward(|steward, now_ns, wishes| steward.propose(change, now_ns, wishes));
            }
            Message::Vote(_) | Message::Voted(_) | Message::Store(_) | Message::Stored(_) => {
                // The leader appoints this node once it has stored a map.
                if let Message::Store(Store { value: Some(value), .. }) = &message {
                    self.become_steward(&value.map);
                }
                let from = from.node;
                return self.with_steward(|steward, now_ns, wishes| {
                    steward.receive(from, message, now_ns, wishes);
                });
            }
        };
        let is_first = matches!(message, Message::Append(_) | Message::Piece(_));
        let is_known = partition.0 < self.shared.settings.partitions && self.shared.me.0 > 0;
        if is_first && is_known && !self.replicas.contains_key(&partition) {
            let tables = T::new(partition, &self.shared.settings);
            self.replicas.insert(partition, Replica::new(partition, tables));
        }
        let Some(replica) = self.replicas.get_mut(&partition) else { return };
        let shared = &mut self.shared;
        match message {
            // A life that the map does not know yet promises nothing: it could be taken for an
            // earlier one.
            Message::Append(_) | Message::Piece(_) if !shared.map.lives(shared.me, shared.incarnation) => {}
            Message::Append(append) => replica.take_records(from.node, append, shared),
            Message::Piece(piece) => replica.take_piece(from.node, piece, shared),
            Message::Appended(appended) => replica.appended(from.node, from.life, &appended, shared),
            Message::Behind(behind) => replica.behind(from.node, from.life, &behind, shared),
            Message::Taken(taken) => replica.taken(from.node, from.life, &taken, shared),
            Message::Between(between) => replica.hear(between.from, between.message, shared),
            _ => {}
        }
    }

    fn granted(&mut self, sent_ns: u64) {
        let had = self.shared.may_answer();
        let until_ns = sent_ns.saturating_add(self.shared.config.timing.lease_of_nodes_ns());
        self.shared.lease_until_ns = self.shared.lease_until_ns.max(until_ns);
        if !had {
            self.shared.busy.extend(self.replicas.keys());
        }
    }

    /// Goes by a newer map.
    fn adopt(&mut self, map: Map) {
        if map.epoch <= self.shared.map.epoch || map.check().is_err() || map.namespace == 0 {
            return;
        }
        if self.shared.namespace == 0 {
            self.shared.namespace = map.namespace;
            self.write_identity();
        }
        if self.shared.namespace != map.namespace {
            return;
        }
        self.shared.settings = map.settings.clone();
        let old = std::mem::replace(&mut self.shared.map, map);
        let Shared { key, incarnation, .. } = self.shared;
        if let Some(member) = self.shared.map.by_key(key) {
            let before = std::mem::replace(&mut self.shared.me, member.node);
            if before.0 != 0 && before != member.node && self.steward.take().is_some() {
                // It was a steward in the place of another node.
                self.shared.out.push(Action::Remove { file: File::Steward });
            }
            let (life, is_in) = (member.incarnation, member.is_in());
            // The folder was put back to an earlier state, or this life ended.
            if life > incarnation || life == incarnation && !is_in {
                self.begin_life(life.max(incarnation));
            }
        }
        self.take_roles(&old);
        self.drop_replicas();
        if self.steward.is_none() && self.shared.map.stewards.contains(&self.shared.me) {
            let map = self.shared.map.clone();
            self.become_steward(&map);
        }
    }

    /// A node that is or shall be a steward begins without a vote and without a stored map: it
    /// never was one.
    fn become_steward(&mut self, map: &Map) {
        let Shared { me, key, .. } = self.shared;
        let is_mine = map.member(me).is_some_and(|member| member.key == key || member.key == 0);
        if self.steward.is_some() || !is_mine || map.check().is_err() {
            return;
        }
        let value = Value { term: 0, index: 0, map: map.clone() };
        let ballot = Ballot { term: 0, voted: NodeNo(0), value };
        self.steward = Some(Self::steward(&self.shared, me, ballot));
    }

    /// The life ended, by the map: begins a new one.
    fn begin_life(&mut self, last: Incarnation) {
        self.shared.incarnation = next_life(last, u128::from(self.shared.incarnation.0));
        self.shared.lease_until_ns = 0;
        for replica in self.replicas.values_mut() {
            replica.step_down(&mut self.shared);
        }
        self.phase = Phase::Naming;
        self.write_identity();
    }

    fn take_roles(&mut self, old: &Map) {
        let me = self.shared.me;
        let ended: Vec<_> = self
            .shared
            .map
            .nodes
            .iter()
            .filter(|member| old.member(member.node).and_then(crate::map::Member::ended) != member.ended())
            .filter_map(crate::map::Member::ended)
            .collect();
        let lives = self.shared.map.lives(me, self.shared.incarnation);
        for replica in self.replicas.values_mut() {
            let Some(keepers) = self.shared.map.keepers(replica.partition) else { continue };
            let (epoch, is_mine) = (keepers.epoch, keepers.primary == me && lives);
            match replica.primary().map(|primary| primary.epoch) {
                Some(led) if !is_mine && led < epoch => replica.step_down(&mut self.shared),
                Some(led) if is_mine && led < epoch => replica.lead(epoch, &mut self.shared),
                Some(_) => {
                    for (node, incarnation) in &ended {
                        let gone = partition::Event::NodeGone { node: *node, incarnation: *incarnation };
                        replica.execute(gone, &mut self.shared);
                    }
                    self.shared.busy.insert(replica.partition);
                }
                None if is_mine && !replica.damaged && epoch >= replica.fence => {
                    replica.lead(epoch, &mut self.shared);
                }
                None => {}
            }
        }
    }

    /// Drops what others keep, and this node need not.
    fn drop_replicas(&mut self) {
        let (map, me) = (&self.shared.map, self.shared.me);
        let members = map.nodes.iter().filter(|member| member.is_in()).count();
        let spare = |replica: &&Replica<T>| {
            let Some(keepers) = map.keepers(replica.partition) else { return false };
            let enough = keepers.backups.len() >= usize::from(map.synchronous).min(members.saturating_sub(1));
            let kept = keepers.primary == me || keepers.backups.contains(&me);
            !kept && enough && replica.fence < keepers.epoch && !map.wanted(replica.partition).contains(&me)
        };
        let spare: Vec<PartitionNo> =
            self.replicas.values().filter(spare).map(|replica| replica.partition).collect();
        for partition in spare {
            let replica = self.replicas.remove(&partition);
            self.shared.out.push(Action::Remove { file: File::Snapshot(partition) });
            if replica.is_some_and(|replica| replica.marked) {
                self.shared.out.push(Action::Remove { file: File::Damaged(partition) });
            }
        }
    }

    fn done(&mut self, token: u64, ok: bool) {
        let Some(task) = self.shared.tasks.remove(&token) else { return };
        let ignores = matches!(task, Task::Sync(..)) && self.shared.has(Planted::IgnoreFailedSync);
        if !ok && !ignores {
            return self.break_down("its disk failed");
        }
        match task {
            Task::Append(number) => self.shared.appended(number),
            Task::Sync(number, mark) => self.shared.synced(number, mark),
            Task::Identity(life) => {
                if self.phase == Phase::Naming && life == self.shared.incarnation {
                    self.phase = Phase::Living;
                    self.renews_ns = self.shared.now_ns;
                }
            }
            Task::Ballot(number, ballot) => {
                self.with_steward(|steward, now_ns, wishes| steward.saved(number, &ballot, now_ns, wishes));
            }
            Task::Snapshot(partition, position) => {
                if let Some(replica) = self.replicas.get_mut(&partition) {
                    replica.snapshot_written(position, &mut self.shared);
                }
                self.opening.remove(&partition);
                self.shorten_log();
            }
            Task::Damaged(partition) => {
                self.opening.remove(&partition);
            }
        }
        self.settle();
    }

    /// The disk failed: others take over at once.
    fn break_down(&mut self, why: &str) {
        let (node, incarnation) = (self.shared.me, self.shared.incarnation);
        if node.0 > 0 && !self.shared.broken {
            self.shared.propose(&Change::Stop(Stop { node, incarnation }));
            self.shared.inbox.clear();
        }
        for replica in self.replicas.values_mut() {
            replica.step_down(&mut self.shared);
        }
        self.shared.break_down(why);
    }

    /// Removes segments that no partition needs, and writes snapshots if the log is long.
    fn shorten_log(&mut self) {
        let needs = |replicas: &BTreeMap<PartitionNo, Replica<T>>, partition: &PartitionNo, position| {
            replicas.get(partition).is_some_and(|replica| replica.snapshot < position)
        };
        while let Some((segment, _, last)) = self.shared.log.closed.front() {
            if last.iter().any(|(partition, position)| needs(&self.replicas, partition, *position)) {
                break;
            }
            self.shared.out.push(Action::Remove { file: File::Segment(*segment) });
            self.shared.log.closed.pop_front();
        }
        let bytes: u64 = self.shared.log.closed.iter().map(|(_, bytes, _)| *bytes).sum();
        if bytes < self.shared.config.log_bytes_max {
            return;
        }
        let Some((_, _, last)) = self.shared.log.closed.front().cloned() else { return };
        let writing = self.replicas.values().filter(|replica| replica.snapshotting).count();
        for (partition, position) in last.into_iter().take(SNAPSHOTS_MAX.saturating_sub(writing) * 64) {
            let writing = self.replicas.values().filter(|replica| replica.snapshotting).count();
            if writing >= SNAPSHOTS_MAX {
                break;
            }
            if let Some(replica) = self.replicas.get_mut(&partition)
                && replica.snapshot < position
            {
                replica.write_snapshot(&mut self.shared);
            }
        }
    }

    fn timer(&mut self) {
        if self.phase != Phase::Living {
            return;
        }
        let now_ns = self.shared.now_ns;
        if now_ns >= self.renews_ns {
            let timing = &self.shared.config.timing;
            let is_settled = self.shared.may_answer();
            self.renews_ns = now_ns + if is_settled { timing.renew_ns } else { timing.retry_ns / 4 };
            self.renew();
            // A message that came late may have brought a replica back.
            self.drop_replicas();
        }
        self.with_steward(Steward::tick_if_due);
        if now_ns >= self.reminds_ns {
            self.reminds_ns = u64::MAX;
            for partition in std::mem::take(&mut self.shared.busy) {
                if let Some(replica) = self.replicas.get_mut(&partition) {
                    replica.remind(&mut self.shared);
                }
            }
        }
    }

    fn renew(&mut self) {
        let message =
            Message::Renew(Renew { sent_ns: self.shared.now_ns, weight: self.shared.config.weight });
        for steward in self.shared.map.stewards.clone() {
            self.shared.send(steward, message.clone());
        }
        // A node that knows no map, or an old one, also asks those whom its operator named.
        if self.shared.map.epoch.0 == 0 || !self.shared.may_answer() {
            for seed in self.shared.config.seeds.clone() {
                if seed != self.shared.config.address {
                    self.shared.send_to(seed, message.clone());
                }
            }
        }
    }
}
