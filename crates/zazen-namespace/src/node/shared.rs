//! What the partitions of a node share: the log, the map, the lease, and what goes out.

use super::log::{Mark, Record, segment_head, write_record};
use super::{Action, Config, File, Level, Position, has};
use crate::map::{Change, Map};
use crate::partition::{PeerMessage, Settings};
use crate::peer::{Envelope, Message, Propose};
use crate::planted::Planted;
use crate::{Incarnation, NodeNo, PartitionNo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zazen_wire::Message as _;

/// What a token of a disk action stands for.
pub(crate) enum Task {
    /// Records up to this number of the node's are written.
    Append(u64),
    /// Records up to this number, and the log up to this place, are synced.
    Sync(u64, Mark),
    /// The identity of a life.
    Identity(Incarnation),
    /// A steward's ballot, by its number.
    Ballot(u64, Box<crate::peer::Ballot>),
    /// A partition up to a record.
    Snapshot(PartitionNo, Position),
    /// That a partition is damaged.
    Damaged(PartitionNo),
}

/// The log of a node.
pub(crate) struct Log {
    pub(crate) segment: u64,
    segment_bytes: u64,
    /// The bytes and the last records, by partition, of segments that are closed.
    pub(crate) closed: VecDeque<(u64, u64, BTreeMap<PartitionNo, Position>)>,
    last: BTreeMap<PartitionNo, Position>,
    buffer: Vec<u8>,
    /// How many records were appended, written, synced.
    appended: u64,
    written: u64,
    synced: u64,
    syncing: bool,
    synced_to: Mark,
    /// When the oldest record that waits for its sync was appended.
    unsynced_ns: Option<u64>,
    /// Records that are not yet as durable as the level says: number, partition, position.
    pending: VecDeque<(u64, PartitionNo, u64)>,
}

impl Log {
    pub(crate) fn new(segment: u64) -> Log {
        Log {
            segment,
            segment_bytes: 0,
            closed: VecDeque::new(),
            last: BTreeMap::new(),
            buffer: Vec::new(),
            appended: 0,
            written: 0,
            synced: 0,
            syncing: false,
            synced_to: (0, 0),
            unsynced_ns: None,
            pending: VecDeque::new(),
        }
    }

    /// Records whose durability has reached the level: the partition, and the record's number.
    pub(crate) fn settled(&mut self, level: Level, planted: Option<Planted>) -> Vec<(PartitionNo, u64)> {
        let reached = match level {
            Level::Memory => self.appended,
            Level::Written => self.written,
            Level::Synced if has(planted, Planted::AcknowledgeBeforeSync) => self.written,
            Level::Synced => self.synced,
        };
        let mut settled = Vec::new();
        while let Some((_, partition, index)) = self.pending.pop_front_if(|(number, ..)| *number <= reached) {
            settled.push((partition, index));
        }
        settled
    }
}

/// What the partitions of a node share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) now_ns: u64,
    pub(crate) wall_ns: i64,
    pub(crate) namespace: u128,
    pub(crate) key: u128,
    pub(crate) incarnation: Incarnation,
    pub(crate) me: NodeNo,
    pub(crate) map: Map,
    pub(crate) settings: Settings,
    pub(crate) log: Log,
    pub(crate) lease_until_ns: u64,
    /// What goes to other nodes at the next flush.
    pub(crate) outbox: BTreeMap<NodeNo, Vec<Message>>,
    /// What goes to this node itself, and what partitions here tell each other.
    pub(crate) inbox: VecDeque<Message>,
    pub(crate) out: Vec<Action>,
    pub(crate) tasks: BTreeMap<u64, Task>,
    next_token: u64,
    /// Partitions that have something to send or to count at the next flush.
    pub(crate) dirty: BTreeSet<PartitionNo>,
    /// Partitions that have something to do at timers.
    pub(crate) busy: BTreeSet<PartitionNo>,
    /// Snapshots under way to nodes that are to become backups.
    pub(crate) transfers: usize,
    pub(crate) broken: bool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        namespace: u128,
        key: u128,
        incarnation: Incarnation,
        map: Map,
    ) -> Shared {
        Shared {
            config,
            now_ns: 0,
            wall_ns: 0,
            namespace,
            key,
            incarnation,
            me: NodeNo(0),
            settings: map.settings.clone(),
            map,
            log: Log::new(1),
            lease_until_ns: 0,
            outbox: BTreeMap::new(),
            inbox: VecDeque::new(),
            out: Vec::new(),
            tasks: BTreeMap::new(),
            next_token: 0,
            dirty: BTreeSet::new(),
            busy: BTreeSet::new(),
            transfers: 0,
            broken: false,
        }
    }

    pub(crate) fn has(&self, bug: Planted) -> bool {
        has(self.config.planted(), bug)
    }

    /// Whether this life may answer for partitions now.
    pub(crate) fn may_answer(&self) -> bool {
        self.may_answer_at(self.now_ns)
    }

    pub(crate) fn may_answer_at(&self, now_ns: u64) -> bool {
        let has_lease = now_ns < self.lease_until_ns || self.has(Planted::IgnoreLease);
        has_lease && !self.broken && self.map.lives(self.me, self.incarnation)
    }

    /// Whether the map names this life as the partition's primary.
    pub(crate) fn is_mine(&self, partition: PartitionNo) -> bool {
        let is_primary = self.map.keepers(partition).is_some_and(|keepers| keepers.primary == self.me);
        is_primary && self.map.lives(self.me, self.incarnation)
    }

    /// Whether a partition of a new namespace waits for its first backups: nothing may be made that
    /// the loss of one node would take away.
    pub(crate) fn is_young(&self, partition: PartitionNo) -> bool {
        let is_first = |keepers: &crate::map::Keepers| {
            keepers.epoch == crate::map::EPOCH_FIRST && keepers.backups.is_empty()
        };
        self.map.synchronous > 0
            && self.map.keepers(partition).is_some_and(is_first)
            && self.map.wanted(partition).len() > 1
    }

    pub(crate) fn send(&mut self, to: NodeNo, message: Message) {
        if to == self.me {
            self.inbox.push_back(message);
        } else {
            self.outbox.entry(to).or_default().push(message);
        }
    }

    /// Tells another partition's primary.
    pub(crate) fn tell(&mut self, from: PartitionNo, to: PartitionNo, message: PeerMessage) {
        let Some(primary) = self.map.keepers(to).map(|keepers| keepers.primary) else { return };
        let between = crate::peer::Between { from, to, message };
        self.send(primary, Message::Between(between));
    }

    /// Asks the stewards for a change.
    pub(crate) fn propose(&mut self, change: &Change) {
        for steward in self.map.stewards.clone() {
            self.send(steward, Message::Propose(Propose { change: change.clone() }));
        }
    }

    pub(crate) fn token(&mut self, task: Task) -> u64 {
        self.next_token += 1;
        self.tasks.insert(self.next_token, task);
        self.next_token
    }

    pub(crate) fn put(&mut self, file: File, bytes: Vec<u8>, task: Task) {
        let token = self.token(task);
        self.out.push(Action::Put { file, token, bytes });
    }

    /// Appends a record to the log.
    pub(crate) fn append(&mut self, partition: PartitionNo, position: Position, body: &[u8]) {
        let (namespace, segment) = (self.namespace, self.log.segment);
        if self.log.segment_bytes == 0 && self.log.buffer.is_empty() {
            let oldest = self.log.closed.front().map_or(segment, |(number, ..)| *number);
            self.log.buffer = segment_head(namespace, segment, oldest);
        }
        let record = Record { partition, position, body: body.to_vec(), synced: self.log.synced_to };
        write_record(&mut self.log.buffer, namespace, segment, &record);
        self.log.appended += 1;
        self.log.pending.push_back((self.log.appended, partition, position.index));
        self.log.last.insert(partition, position);
        self.log.unsynced_ns.get_or_insert(self.now_ns);
        if self.config.level == Level::Memory {
            self.dirty.insert(partition);
        }
    }

    /// Writes what was appended, and syncs if it is time. True if a segment was closed.
    pub(crate) fn write_log(&mut self) -> bool {
        if !self.log.buffer.is_empty() {
            let bytes = std::mem::take(&mut self.log.buffer);
            self.log.segment_bytes += bytes.len() as u64;
            let (segment, appended) = (self.log.segment, self.log.appended);
            let token = self.token(Task::Append(appended));
            self.out.push(Action::Append { segment, token, bytes });
        }
        let closes = self.log.segment_bytes >= self.config.segment_bytes_max;
        let waits = self.log.unsynced_ns.is_some_and(|since_ns| {
            self.config.level == Level::Synced || self.now_ns >= since_ns + self.config.timing.sync_ns
        });
        if closes || waits && !self.log.syncing {
            self.sync_log();
        }
        if closes {
            let (segment, bytes) = (self.log.segment, self.log.segment_bytes);
            let last = std::mem::take(&mut self.log.last);
            self.log.closed.push_back((segment, bytes, last));
            self.log.segment += 1;
            self.log.segment_bytes = 0;
        }
        closes
    }

    fn sync_log(&mut self) {
        self.log.syncing = true;
        self.log.unsynced_ns = None;
        let (segment, appended) = (self.log.segment, self.log.appended);
        let token = self.token(Task::Sync(appended, (segment, self.log.segment_bytes)));
        self.out.push(Action::Sync { segment, token });
    }

    /// When the log wants to be synced.
    pub(crate) fn syncs_ns(&self) -> u64 {
        match self.log.unsynced_ns {
            Some(since_ns) if !self.log.syncing => since_ns + self.config.timing.sync_ns,
            _ => u64::MAX,
        }
    }

    pub(crate) fn appended(&mut self, number: u64) {
        self.log.written = self.log.written.max(number);
    }

    pub(crate) fn synced(&mut self, number: u64, mark: Mark) {
        self.log.synced_to = self.log.synced_to.max(mark);
        self.log.synced = self.log.synced.max(number);
        self.log.written = self.log.written.max(number);
        self.log.syncing = self.tasks.values().any(|task| matches!(task, Task::Sync(..)));
    }

    /// The node answers nobody any more.
    pub(crate) fn break_down(&mut self, why: &str) {
        if !std::mem::replace(&mut self.broken, true) {
            self.out.push(Action::Broken { why: why.to_owned() });
        }
    }

    /// An envelope of this node without messages.
    pub(crate) fn letter(&self) -> Envelope {
        Envelope {
            namespace: self.namespace,
            from: self.me,
            key: self.key,
            incarnation: self.incarnation,
            address: self.config.address.clone(),
            epoch: self.map.epoch,
            messages: Vec::new(),
        }
    }

    fn envelope(&self, messages: Vec<Message>) -> Vec<u8> {
        Envelope { messages, ..self.letter() }.encode()
    }

    /// Sends to an address: of a steward, while no map is known.
    pub(crate) fn send_to(&mut self, address: String, message: Message) {
        let bytes = self.envelope(vec![message]);
        self.out.push(Action::Send { address, bytes });
    }

    /// Closes the envelopes.
    pub(crate) fn post(&mut self) {
        for (node, messages) in std::mem::take(&mut self.outbox) {
            if let Some(address) = self.map.member(node).map(|member| member.address.clone()) {
                let bytes = self.envelope(messages);
                self.out.push(Action::Send { address, bytes });
            }
        }
    }
}
