//! The partition as its driver sees it: events in, actions out.

use super::change::Change;
use super::event::{Action, Event};
use super::mutant::Mutant;
use super::peer::{Ask, PeerBody, PeerMessage};
use super::row::{Saved, SavedEntry, SavedErrno, SavedInode, SavedMany, SavedWhole};
use super::settings::Settings;
use super::tables::{NameKey, Tables, TransactionId};
use super::transaction::Transaction;
use crate::Planted;
use crate::attributes::{Attributes, Place};
use crate::operation::{Answer, Entry, Found, Grant, ManyCreated, Operation, Refused, Request, Response};
use crate::{Epoch, Errno, Incarnation, InodeId, NodeNo, PartitionNo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zazen_core::{Credentials, Result};
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::Field;

/// Room for the record of one operation: a create takes about 190 bytes.
const RECORD_BYTES: usize = 256;
/// The most requests of a client that wait for names; more are refused with `EAGAIN`.
pub(super) const WAITS_MAX: usize = 1024;

/// One partition of the namespace. See the [module](super).
pub struct Partition {
    pub(super) settings: Settings,
    pub(super) tables: Tables,
    /// What the event has changed so far.
    pub(super) record: Writer,
    /// In which this node became the primary: it is part of the names of new objects.
    pub(super) epoch: Epoch,
    /// What leaves after the record.
    pub(super) leaving: Vec<Action>,
    pub(super) waiting: Waiting,
    /// The bug that a test plants.
    #[cfg(test)]
    pub(super) mutant: Option<Mutant>,
    /// The bug that the simulation of whole nodes plants.
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<Planted>,
}

/// What is lost with the primary, without harm.
#[derive(Default)]
pub(super) struct Waiting {
    /// Something became free: parts and own transactions that wait try again.
    pub(super) freed: bool,
    /// Names that became free: the requests that wait for them try again, one after the other.
    freed_names: Vec<NameKey>,
    /// Requests that met a name that is held, by the name.
    requests: BTreeMap<NameKey, VecDeque<(u64, Request)>>,
    /// For which name the request of a client with a number waits.
    waits: BTreeMap<(u64, u64), NameKey>,
    /// Requests that try again at the next tick.
    pub(super) later: Vec<(u64, Request)>,
    /// Parts that met a name, or the lock of moves, that is held.
    pub(super) asks: Vec<(PartitionNo, u64, u32, Ask)>,
    /// Own transactions that met one here.
    pub(super) own: BTreeSet<u64>,
    /// The newest token of each own transaction.
    pub(super) tokens: BTreeMap<u64, u64>,
    /// Directories to split, and to merge so that a transaction can remove them.
    pub(super) grown: BTreeSet<InodeId>,
    pub(super) to_merge: BTreeMap<InodeId, TransactionId>,
    /// For whom a merge is under way, and what was in the way of the last one.
    pub(super) merging: BTreeMap<InodeId, TransactionId>,
    pub(super) not_merged: BTreeMap<InodeId, (TransactionId, Option<Errno>)>,
    /// When the outstanding part of each own transaction was sent last.
    pub(super) sent_ns: BTreeMap<u64, i64>,
    /// For how long this node has been the primary, by its ticks: see [`Partition::forget_silent`].
    led_ns: i64,
    /// The newest tick, by the time of day.
    ticked_ns: Option<i64>,
    /// When silent clients were looked for, of `led_ns`.
    swept_ns: i64,
    /// When clients asked last, of `led_ns`, and below which number they are refused. A client that
    /// is not here counts as new.
    heard: BTreeMap<u64, (i64, u64)>,
    /// Answers to requests that changed nothing, by client and number: they are not in the tables.
    unchanged: BTreeMap<(u64, u64), Answer>,
}

impl Waiting {
    /// A name became free.
    pub(super) fn free(&mut self, directory: InodeId, name: &[u8]) {
        self.freed = true;
        let name = (directory.0, name.into());
        if self.requests.contains_key(&name) {
            self.freed_names.push(name);
        }
    }
}

/// Who asks, and when.
pub(super) struct Asking<'a> {
    pub(super) now_ns: i64,
    pub(super) node: NodeNo,
    /// The node that gets the bytes of a file that has none yet.
    pub(super) place: NodeNo,
    pub(super) incarnation: Incarnation,
    pub(super) caller: &'a Credentials,
    /// The asking node knows files of chunks.
    pub(super) knows_chunks: bool,
}

/// Why an operation has no answer yet, or is refused.
pub(super) enum Stop {
    Refused(Errno),
    /// It meets this name, which is held: it tries again when the name is free.
    Wait(NameKey),
    /// It goes on as a transaction.
    Transaction(Box<Transaction>),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Refused(errno)
    }
}

impl Partition {
    /// An empty partition. Partition 0 has the root directory.
    pub fn new(number: PartitionNo, settings: Settings) -> Partition {
        let tables = Tables::new(number, &settings);
        Partition::with_tables(settings, tables)
    }

    fn with_tables(settings: Settings, tables: Tables) -> Partition {
        let (record, leaving, waiting) = (Writer::new(), Vec::new(), Waiting::default());
        Partition {
            settings,
            tables,
            record,
            epoch: Epoch(0),
            leaving,
            waiting,
            #[cfg(test)]
            mutant: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Which partition it is.
    pub fn number(&self) -> PartitionNo {
        self.tables.number
    }

    /// What the partition was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many inodes the partition keeps.
    pub fn inodes(&self) -> u64 {
        self.tables.inodes.count() - self.tables.chunks.gone_count()
    }

    /// How many entries of directories the partition keeps.
    pub fn entries(&self) -> u64 {
        self.tables.entries.count() as u64
    }

    /// How many transactions the partition drives that have not ended.
    pub fn transactions(&self) -> u64 {
        self.tables.driven.len() as u64
    }

    /// Executes an event at wall-clock time `now_ns`, and appends what is to be done to `actions`.
    pub fn step(&mut self, now_ns: i64, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Request { token, request } => self.request(now_ns, token, request),
            Event::Peer { from, message } => self.peer(now_ns, from, message),
            Event::NodeGone { node, incarnation } => self.node_gone(now_ns, node, incarnation),
            Event::Tick => self.tick(now_ns),
            Event::Resumed { epoch } => self.resume(now_ns, epoch),
        }
        loop {
            self.spread(now_ns);
            if !self.waiting.freed && self.waiting.freed_names.is_empty() {
                break;
            }
            self.wake(now_ns);
        }
        self.bury();
        if !self.record.is_empty() {
            let record = std::mem::replace(&mut self.record, Writer::with_capacity(RECORD_BYTES));
            actions.push(Action::Log(record.into_bytes()));
        }
        actions.append(&mut self.leaving);
    }

    /// Applies a record that [`Partition::step`] logged on a primary.
    ///
    /// Fails with [`zazen_core::ErrorKind::Protocol`] for a malformed record, and with
    /// [`zazen_core::ErrorKind::Corrupt`] for one that does not fit the tables.
    pub fn apply(&mut self, record: &[u8]) -> Result<()> {
        self.tables.apply_record(record)
    }

    /// The partition that the pieces of a snapshot describe.
    pub(super) fn restored(settings: Settings, tables: Tables) -> Partition {
        Partition::with_tables(settings, tables)
    }

    /// Changes the tables, and says so in the record.
    pub(super) fn change(&mut self, change: &Change<'_>) {
        if !(self.plants(Mutant::RecordsLess) && matches!(change, Change::Touch { .. })) {
            change.write(&mut self.record);
        }
        let applied = self.tables.apply(change);
        assert!(applied.is_ok(), "{change:?} does not fit the tables: {applied:?}");
    }

    /// Whether the bug is planted: never, except in tests.
    #[cfg(not(test))]
    pub(super) fn plants(&self, _bug: Mutant) -> bool {
        false
    }

    /// Whether the bug is planted.
    #[cfg(test)]
    pub(super) fn plants(&self, bug: Mutant) -> bool {
        self.mutant == Some(bug)
    }

    /// Whether the bug of whole nodes is planted: never, except in their simulation.
    #[cfg(not(feature = "planted"))]
    pub(super) fn has(&self, _bug: Planted) -> bool {
        false
    }

    /// Whether the bug of whole nodes is planted.
    #[cfg(feature = "planted")]
    pub(super) fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    fn request(&mut self, now_ns: i64, token: u64, request: Request) {
        if request.operation.partition() != self.number() {
            return self.reply(token, request.number, Answer::refused(Errno::EINVAL));
        }
        if self.is_gone(request.node, request.incarnation) {
            return self.reply(token, request.number, Answer::Ended);
        }
        if !request.operation.only_reads() && self.answered_before(token, &request) {
            return;
        }
        self.execute(now_ns, token, request);
    }

    /// Whether this life of the node has ended.
    fn is_gone(&self, node: NodeNo, incarnation: Incarnation) -> bool {
        self.tables.gone.get(&node).is_some_and(|gone| incarnation <= *gone)
    }

    /// Deals with a repeated request, and with one that comes too late; whether it was one.
    fn answered_before(&mut self, token: u64, request: &Request) -> bool {
        let (client, number) = (request.client, request.number);
        let row = self.tables.clients.get(&client);
        let led_ns = self.waiting.led_ns;
        let (heard_ns, floor) = self.waiting.heard.entry(client).or_default();
        let oldest = row.map_or(0, |row| row.oldest).max(request.oldest).max(*floor);
        (*heard_ns, *floor) = (led_ns, oldest);
        if number < oldest {
            self.reply(token, number, Answer::refused(Errno::EIO));
            return true;
        }
        if let Some(saved) = row.and_then(|row| row.answer(number)) {
            let answer = self.recall(&saved.clone());
            self.reply(token, number, answer);
            return true;
        }
        if let Some(answer) = self.waiting.unchanged.get(&(client, number)) {
            let answer = answer.clone();
            self.reply(token, number, answer);
            return true;
        }
        let same = |of: &Request| of.client == client && of.number == number;
        let driven = self.tables.driven.iter().find(|(_, driven)| same(&driven.request));
        if let Some((transaction, _)) = driven {
            self.waiting.tokens.insert(*transaction, token);
            return true;
        }
        let Waiting { requests, later, waits, .. } = &mut self.waiting;
        let queue = waits.get(&(client, number)).and_then(|name| requests.get_mut(name));
        let waits = queue.into_iter().flatten().chain(later).find(|(_, waits)| same(waits));
        waits.map(|(of, _)| *of = token).is_some()
    }

    /// Lets the request wait until the name is free.
    fn wait_for(&mut self, now_ns: i64, name: NameKey, token: u64, request: Request) {
        let (client, waits) = (request.client, &mut self.waiting.waits);
        if waits.range((client, 0)..=(client, u64::MAX)).count() >= WAITS_MAX {
            return self.finish(now_ns, Some(token), &request, Answer::refused(Errno::EAGAIN));
        }
        // A request that only reads may come twice with one number: the older copy goes.
        if let Some(before) = waits.insert((client, request.number), name.clone())
            && let Some(queue) = self.waiting.requests.get_mut(&before)
        {
            queue.retain(|(_, of)| (of.client, of.number) != (client, request.number));
        }
        self.waiting.requests.entry(name).or_default().push_back((token, request));
    }

    /// Executes a request for the first time, or again after it has waited.
    pub(super) fn execute(&mut self, now_ns: i64, token: u64, request: Request) {
        if self.is_gone(request.node, request.incarnation) {
            return self.reply(token, request.number, Answer::Ended);
        }
        let call = Asking {
            now_ns,
            node: request.node,
            place: request.place.unwrap_or(request.node),
            incarnation: request.incarnation,
            caller: &request.credentials,
            knows_chunks: request.knows_chunks == Some(true),
        };
        match self.operate(&call, &request) {
            Ok(answer) => self.finish(now_ns, Some(token), &request, answer),
            Err(Stop::Refused(errno)) => {
                self.finish(now_ns, Some(token), &request, Answer::refused(errno));
            }
            Err(Stop::Wait(name)) => self.wait_for(now_ns, name, token, request),
            Err(Stop::Transaction(transaction)) => self.begin(now_ns, token, transaction),
        }
    }

    fn operate(&mut self, call: &Asking<'_>, request: &Request) -> std::result::Result<Answer, Stop> {
        if let Some(layout) = self.split_of(&request.operation) {
            return Ok(Answer::Split(layout));
        }
        match &request.operation {
            Operation::Buckets(inode) => Ok(Answer::Split(self.layout(inode.id))),
            Operation::SetAttributes(set) => self.set_attributes_everywhere(call, request, set),
            Operation::Lookup(at) => self.lookup(call, at),
            Operation::GetAttributes(inode) => self.get_attributes(inode.id),
            Operation::GetMany(many) => self.get_many(many),
            Operation::Create(create) => self.create(call, create),
            Operation::CreateMany(many) => self.create_many(call, many),
            Operation::MakeDirectory(make) => self.make_directory(call, request, make),
            Operation::Unlink(at) => self.unlink(call, request, at),
            Operation::RemoveDirectory(at) => self.remove_directory(call, request, at),
            Operation::Rename(rename) => self.rename(request, rename),
            Operation::Link(link) => self.link(call, request, link),
            Operation::ReadDirectory(read) => self.read_directory(call, read),
            Operation::ReadLink(inode) => self.read_link(inode.id),
            Operation::Open(open) => self.open(call, open),
            Operation::Commit(commit) => self.commit(call, commit, false),
            Operation::Recommit(commit) => self.commit(call, commit, true),
            Operation::Release(release) => self.release(call, release),
            Operation::SetXattr(set) => self.set_xattr(call, set),
            Operation::GetXattr(get) => self.get_xattr(call, get),
            Operation::ListXattr(inode) => self.list_xattr(call, inode.id),
            Operation::Lock(lock) => self.lock(call, lock),
            Operation::Parent(inode) => self.parent(inode.id),
            Operation::Copied(copied) => self.copied(call, copied),
            Operation::TakeOver(take) => self.take_over(call, take),
            Operation::OpenChunk(open) => self.open_chunk(call, open),
            Operation::Chunks(list) => self.list_chunks(list),
            Operation::Append(append) => self.append(call, append),
            Operation::Nameless(list) => self.list_nameless(list),
        }
    }

    /// Answers a request, and keeps the answer if the request may not be executed twice.
    pub(super) fn finish(&mut self, now_ns: i64, token: Option<u64>, request: &Request, answer: Answer) {
        let forgets = self.plants(Mutant::ForgetsAnswers)
            || self.has(Planted::AppendTwice) && matches!(request.operation, Operation::Append(_));
        let keeps = !request.operation.only_reads() && !forgets;
        // A lock that was not given changed nothing, and neither did a look at a chunk that is not
        // there. Whoever waits for one, or reads a hole, asks again and again, and that shall not
        // fill the log: the answer is kept in memory only.
        let refuses = matches!(answer, Answer::Blocking(_) | Answer::Refused(_));
        let asks_often = matches!(request.operation, Operation::Lock(_) | Operation::OpenChunk(_));
        if keeps && refuses && asks_often {
            self.keep_unchanged(request, &answer);
        } else if keeps && !self.is_gone(request.node, request.incarnation) {
            let row = self.tables.clients.get(&request.client);
            let crowded = row.filter(|row| row.answers.len() >= self.settings.answers_max as usize);
            let first =
                crowded.and_then(|row| row.answers.front()).map_or(0, |(number, _)| number.saturating_add(1));
            let change = Change::Answered {
                client: request.client,
                oldest: request.oldest.max(first),
                node: request.node,
                incarnation: request.incarnation,
                now_ns,
                answer: Some((request.number, self.saved(&answer))),
            };
            self.change(&change);
        }
        if let Some(token) = token {
            self.reply(token, request.number, answer);
        }
    }

    /// Keeps the answer to a request that changed nothing, until the client needs it no more.
    fn keep_unchanged(&mut self, request: &Request, answer: &Answer) {
        let (client, unchanged) = (request.client, &mut self.waiting.unchanged);
        unchanged.insert((client, request.number), answer.clone());
        let of_client = unchanged.range((client, 0)..=(client, u64::MAX)).map(|((_, number), _)| *number);
        let numbers: Vec<_> = of_client.collect();
        let crowded = numbers.len().saturating_sub(self.settings.answers_max as usize);
        for (at, number) in numbers.into_iter().enumerate() {
            if at >= crowded && number >= request.oldest {
                break;
            }
            unchanged.remove(&(client, number));
            let floor = &mut self.waiting.heard.entry(client).or_default().1;
            *floor = number.saturating_add(1).max(*floor);
        }
    }

    fn reply(&mut self, token: u64, number: u64, answer: Answer) {
        self.leaving.push(Action::Reply { token, response: Response { number, answer } });
    }

    fn saved(&self, answer: &Answer) -> Saved {
        match answer {
            Answer::Done => Saved::Done,
            Answer::Refused(Refused { errno }) => Saved::Refused(SavedErrno { errno: *errno }),
            Answer::Entry(Entry { id, kind, .. }) if id.partition() == self.number() => {
                Saved::Entry(SavedEntry { id: *id, kind: *kind })
            }
            // Who asks again for a chunk that is gone by then may make it anew.
            Answer::Grant(Grant { attributes, created }) if !created || attributes.chunk_of.is_some() => {
                Saved::Grant(SavedInode { id: attributes.id })
            }
            Answer::Grant(Grant { attributes, .. }) => Saved::GrantCreated(SavedInode { id: attributes.id }),
            Answer::Found(Found { attributes }) => Saved::Found(SavedInode { id: attributes.id }),
            Answer::Created(ManyCreated { results }) => {
                Saved::Created(SavedMany { results: results.clone() })
            }
            other => {
                let mut answer = Writer::new();
                Answer::write(other, &mut answer);
                Saved::Whole(SavedWhole { answer: answer.into_bytes() })
            }
        }
    }

    fn recall(&self, saved: &Saved) -> Answer {
        // The inode of a change may be gone since: nobody may make the change again for that.
        let grant = |id, created| match self.attributes(id) {
            Some(attributes) => Answer::Grant(Grant { attributes, created }),
            None if created => Answer::refused(Errno::ESTALE.after_change()),
            None => Answer::refused(Errno::ESTALE),
        };
        match saved {
            Saved::Done => Answer::Done,
            Saved::Refused(refused) => Answer::refused(refused.errno),
            Saved::Entry(SavedEntry { id, kind }) => {
                Answer::Entry(Entry { id: *id, kind: *kind, attributes: self.attributes(*id) })
            }
            Saved::Grant(of) => grant(of.id, false),
            Saved::GrantCreated(of) => grant(of.id, true),
            Saved::Found(of) => match self.attributes(of.id) {
                Some(attributes) => Answer::Found(Found { attributes }),
                None => Answer::refused(Errno::ESTALE.after_change()),
            },
            Saved::Created(many) => Answer::Created(ManyCreated { results: many.results.clone() }),
            Saved::Whole(whole) => {
                let answer = Answer::read(&mut Reader::new("Answer", &whole.answer));
                answer.unwrap_or_else(|_| Answer::refused(Errno::EIO))
            }
        }
    }

    /// What `stat` shows of an inode of this partition; `None` if it is gone.
    pub(super) fn attributes(&self, id: InodeId) -> Option<Attributes> {
        if id.partition() != self.number() {
            return None;
        }
        let inode = self.tables.row(id.serial())?;
        let is_split = self.tables.splits.contains_key(&id.serial());
        let elsewhere = is_split.then(Place::nowhere);
        let place = inode.place().map(|(holder, generation)| Place {
            holder,
            generation,
            writing: self.tables.opens_of(id.serial()).any(|(_, _, opens)| opens.writers > 0),
            copies: self.tables.copies.get(&id.serial()).cloned().unwrap_or_default(),
        });
        let place = place.or(elsewhere);
        let device = match inode.kind {
            crate::Kind::CharDevice | crate::Kind::BlockDevice => inode.holder_or_device,
            _ => 0,
        };
        let chunks = self.tables.chunks.of_file(id.serial());
        let blocks = match (inode.is_directory(), chunks) {
            (true, _) => 0,
            (false, None) => inode.blocks_or_parent,
            (false, Some(chunks)) => chunks.blocks(),
        };
        Some(Attributes {
            id,
            kind: inode.kind,
            mode: inode.mode.into(),
            uid: inode.uid,
            gid: inode.gid,
            links: inode.links,
            bytes: self.tables.length_of(id.serial(), inode),
            blocks,
            accessed_ns: inode.accessed_ns,
            modified_ns: inode.modified_ns,
            changed_ns: inode.changed_ns,
            created_ns: inode.created_ns,
            device,
            version: inode.version,
            place,
            chunks: self.shown_chunks(id.serial()),
            chunk_of: self.shown_chunk_of(id.serial()),
        })
    }

    /// Parts and own transactions that wait try again, and the requests for names that are free.
    fn wake(&mut self, now_ns: i64) {
        self.waiting.freed = false;
        for (from, transaction, step, ask) in std::mem::take(&mut self.waiting.asks) {
            self.peer(now_ns, from, PeerMessage { transaction, step, body: PeerBody::Ask(ask) });
        }
        for number in std::mem::take(&mut self.waiting.own) {
            self.go_on(now_ns, number);
        }
        for name in std::mem::take(&mut self.waiting.freed_names) {
            while !self.tables.held.contains_key(&name) {
                let Some(queue) = self.waiting.requests.get_mut(&name) else { break };
                let Some((token, request)) = queue.pop_front() else {
                    self.waiting.requests.remove(&name);
                    break;
                };
                self.waiting.waits.remove(&(request.client, request.number));
                self.execute(now_ns, token, request);
            }
        }
    }

    fn tick(&mut self, now_ns: i64) {
        self.wake(now_ns);
        for (token, request) in std::mem::take(&mut self.waiting.later) {
            self.execute(now_ns, token, request);
        }
        let resend_ns = self.settings.resend_ns;
        let late = |sent_ns: i64| now_ns < sent_ns || now_ns.saturating_sub(sent_ns) >= resend_ns;
        let sent = self.waiting.sent_ns.iter().filter(|(_, sent_ns)| late(**sent_ns));
        for number in sent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.ask_again(now_ns, number);
        }
        self.forget_silent(now_ns);
    }

    /// Forgets the answers of clients that have been silent for long.
    ///
    /// The time of day may jump, and an answer that is forgotten early lets a repeated request be
    /// executed twice. So the time between two ticks counts as at most an eighth of the idle time,
    /// and silence begins anew with each primary.
    fn forget_silent(&mut self, now_ns: i64) {
        let idle_ns = self.settings.client_idle_ns;
        let waiting = &mut self.waiting;
        let since = waiting.ticked_ns.replace(now_ns).map_or(0, |before| now_ns.saturating_sub(before));
        waiting.led_ns = waiting.led_ns.saturating_add(since.clamp(0, (idle_ns / 8).max(1)));
        let led_ns = waiting.led_ns;
        if led_ns - waiting.swept_ns < idle_ns / 8 {
            return;
        }
        waiting.swept_ns = led_ns;
        let clients: Vec<_> = self.tables.clients.keys().copied().collect();
        for client in clients {
            let (heard_ns, _) = *self.waiting.heard.entry(client).or_insert((led_ns, 0));
            if led_ns - heard_ns > idle_ns {
                self.forget_client(client);
            }
        }
        let Waiting { unchanged, heard, .. } = &mut self.waiting;
        unchanged.retain(|(client, _), _| heard.get(client).is_some_and(|(at, _)| led_ns - at <= idle_ns));
        let clients = &self.tables.clients;
        heard.retain(|client, (at, _)| led_ns - *at <= idle_ns || clients.contains_key(client));
    }

    fn forget_client(&mut self, client: u64) {
        self.change(&Change::ForgetClient { client });
        self.waiting.heard.remove(&client);
        let of_client: Vec<_> =
            self.waiting.unchanged.range((client, 0)..=(client, u64::MAX)).map(|(key, _)| *key).collect();
        for key in of_client {
            self.waiting.unchanged.remove(&key);
        }
    }

    fn resume(&mut self, now_ns: i64, epoch: Epoch) {
        self.epoch = epoch;
        self.waiting = Waiting::default();
        for number in self.tables.driven.keys().copied().collect::<Vec<_>>() {
            self.ask_again(now_ns, number);
        }
    }

    fn node_gone(&mut self, now_ns: i64, node: NodeNo, incarnation: Incarnation) {
        if self.is_gone(node, incarnation) {
            return;
        }
        self.change(&Change::Gone { node, incarnation });
        let ended = |of: NodeNo, life: Incarnation| of == node && life <= incarnation;
        let clients = self.tables.clients.iter().filter(|(_, row)| ended(row.node, row.incarnation));
        for client in clients.map(|(client, _)| *client).collect::<Vec<_>>() {
            self.forget_client(client);
        }
        let with_locks = self.tables.locks.iter();
        let with_locks = with_locks
            .filter(|(_, locks)| locks.iter().any(|lock| ended(lock.node, lock.incarnation)))
            .map(|(serial, locks)| {
                let kept = locks.iter().filter(|lock| !ended(lock.node, lock.incarnation));
                (*serial, kept.cloned().collect::<Vec<_>>())
            });
        let keeps = self.has(Planted::KeepDeadLocks);
        for (serial, locks) in with_locks.filter(|_| !keeps).collect::<Vec<_>>() {
            self.change(&Change::Locks { serial, locks });
        }
        if self.plants(Mutant::KeepsDeadOpens) {
            return;
        }
        let opens = self.tables.opens.keys().filter(|(_, of, life)| ended(*of, *life));
        for (serial, node, incarnation) in opens.copied().collect::<Vec<_>>() {
            self.close(now_ns, serial, node, incarnation);
        }
    }
}
