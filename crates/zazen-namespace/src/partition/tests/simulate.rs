//! Random operations of several clients at once on partitions with faults, against the reference:
//! what a batch of operations answered, and the tree that it left, must be what some order of them
//! gives.

use super::super::Event;
use super::super::mutant::Mutant;
use super::model::{Model, Row, Who};
use super::world::{ALL_FAULTS, Faults, NO_FAULTS, Random, World};
use crate::operation::*;
use crate::split::{Errand, Layouts, Next};
use crate::{Attributes, Epoch, Incarnation, InodeId, Kind, Name, NodeNo};
use std::collections::{BTreeMap, BTreeSet};
use zazen_core::Credentials;

const NODES: u32 = 3;

/// A client: it has one request outstanding at a time.
struct Client {
    id: u64,
    number: u64,
    node: u32,
    /// What it asks now: the requests, and the answers that came.
    errand: Option<Errand>,
    asks: Vec<(Request, Option<Answer>)>,
    /// What came of a listing so far.
    listed: Vec<Listed>,
}

pub(super) struct Simulation {
    pub(super) world: World,
    pub(super) model: Model,
    clients: Vec<Client>,
    lives: [u64; NODES as usize],
    next_client: u64,
    /// Opens that clients have, by node.
    opens: Vec<(u32, InodeId, bool)>,
    operations: u64,
    layouts: Layouts,
    splitting: bool,
    chunking: bool,
    /// The most directories that were split at a time, and how often one was merged.
    pub(super) split_most: usize,
    pub(super) merged: usize,
    splits_before: usize,
}

fn name(random: &mut Random) -> Name {
    Name::new(&[b'a' + random.below(6) as u8]).expect("a name")
}

impl Simulation {
    pub(super) fn new(partitions: u32, seed: u64, faults: Faults, mutant: Option<Mutant>) -> Simulation {
        let mut simulation = Simulation {
            world: World::new(partitions, u32::MAX, seed, faults, mutant),
            model: Model::new(0o777),
            clients: Vec::new(),
            lives: [1; NODES as usize],
            next_client: 1,
            opens: Vec::new(),
            operations: 0,
            layouts: Layouts::default(),
            splitting: false,
            chunking: false,
            split_most: 0,
            merged: 0,
            splits_before: 0,
        };
        for node in 0..NODES {
            simulation.add_client(node);
        }
        simulation
    }

    /// One in which directories of three names are split.
    pub(super) fn splitting(
        partitions: u32,
        seed: u64,
        faults: Faults,
        mutant: Option<Mutant>,
    ) -> Simulation {
        let world = World::new(partitions, 3, seed, faults, mutant);
        let model = Model { splits: true, ..Model::new(0o777) };
        Simulation { world, model, splitting: true, ..Simulation::new(partitions, seed, faults, mutant) }
    }

    /// One in which some files have their bytes in chunks of a MiB.
    pub(super) fn chunking(partitions: u32, seed: u64, faults: Faults, mutant: Option<Mutant>) -> Simulation {
        Simulation { chunking: true, ..Simulation::new(partitions, seed, faults, mutant) }
    }

    fn add_client(&mut self, node: u32) {
        let (id, asks, listed) = (self.next_client, Vec::new(), Vec::new());
        self.clients.push(Client { id, number: 0, node, errand: None, asks, listed });
        self.next_client += 1;
    }

    fn some_inode(&mut self, kind: Option<Kind>) -> InodeId {
        let rows = self.model.rows.iter().filter(|(_, row)| kind.is_none_or(|kind| row.kind == kind));
        let ids: Vec<_> = rows.map(|(id, _)| *id).collect();
        ids.get(self.world.random.below(ids.len())).copied().unwrap_or(InodeId::ROOT)
    }

    fn some_directory(&mut self) -> InodeId {
        match self.world.random.below(12) {
            0 => self.some_inode(None),
            1 | 2 => InodeId::ROOT,
            _ => self.some_inode(Some(Kind::Directory)),
        }
    }

    /// Removes something, so that directories that were split become empty and go.
    fn some_removal(&mut self) -> Operation {
        let directory = self.some_inode(Some(Kind::Directory));
        let row = &self.model.rows[&directory];
        if let Some((name, id)) = row.entries.first_key_value() {
            let at = At { directory, name: Name::new(name).expect("a name") };
            let is_directory = self.model.rows.get(id).is_some_and(|row| row.kind == Kind::Directory);
            return if is_directory { Operation::RemoveDirectory(at) } else { Operation::Unlink(at) };
        }
        let above = self.model.rows.get(&row.parent).into_iter().flat_map(|above| &above.entries);
        match above.into_iter().find(|(_, id)| **id == directory) {
            Some((name, _)) => {
                let name = Name::new(name).expect("a name");
                Operation::RemoveDirectory(At { directory: row.parent, name })
            }
            None => Operation::GetAttributes(Inode { id: directory }),
        }
    }

    /// Somebody removes a directory that is split, and others make something in it.
    fn hot_operations(&mut self) -> Option<Vec<Operation>> {
        let empty = |id: &InodeId| self.model.rows.get(id).is_some_and(|row| row.entries.is_empty());
        let split: Vec<InodeId> = self.world.split_directories().into_iter().filter(empty).collect();
        let directory = *split.get(self.world.random.below(split.len()))?;
        let parent = self.model.rows[&directory].parent;
        let above = self.model.rows.get(&parent)?.entries.iter().find(|(_, id)| **id == directory)?;
        let above = At { directory: parent, name: Name::new(above.0).expect("a name") };
        let (one, two) = (name(&mut self.world.random), name(&mut self.world.random));
        let make = MakeDirectory { directory, name: two, mode: 0o755 };
        let create = self.some_create(directory, one, 0o644);
        Some(vec![Operation::RemoveDirectory(above), create, Operation::MakeDirectory(make)])
    }

    fn some_operation(&mut self, node: u32) -> Operation {
        if self.splitting && self.world.random.one_in(3) {
            return self.some_removal();
        }
        if self.chunking && self.world.random.one_in(2) {
            return self.some_chunk_operation(node);
        }
        let directory = self.some_directory();
        let random = &mut self.world.random;
        let (name, mode) = (name(random), [0o777, 0o755, 0o700, 0o1777, 0o2775, 0o6755][random.below(6)]);
        let crowded = self.model.rows.len() > 40;
        let at = At { directory, name: name.clone() };
        match random.below(if crowded { 40 } else { 28 }) {
            0..=5 => self.some_create(directory, name, mode),
            6..=8 => Operation::MakeDirectory(MakeDirectory { directory, name, mode }),
            9..=14 => {
                let (no_replace, exchange) = (random.one_in(6), random.one_in(5));
                let new_name = self::name(random);
                let new_directory = if random.one_in(3) { directory } else { self.some_directory() };
                let exchange = exchange && !no_replace;
                Operation::Rename(Rename { directory, name, new_directory, new_name, no_replace, exchange })
            }
            15 | 16 => Operation::Link(Link { id: self.some_inode(Some(Kind::File)), directory, name }),
            17 => Operation::Lookup(at),
            18 | 19 => match self.opens.iter().position(|(of, ..)| *of == node) {
                Some(found) => {
                    let (_, id, writes) = self.opens.swap_remove(found);
                    let (writers, readers) = (u32::from(writes), u32::from(!writes));
                    Operation::Release(Release { id, writers, readers, commit: None })
                }
                None => Operation::Lookup(at),
            },
            20 => self.some_open(),
            21 | 22 => self.some_set(mode),
            23 => {
                let value = (!self.world.random.one_in(3)).then(|| vec![mode as u8]);
                let (create, replace) = (self.world.random.one_in(4), self.world.random.one_in(4));
                let name = Name::new(b"user.x").expect("a name");
                let id = self.some_inode(None);
                Operation::SetXattr(SetXattr { id, name, value, create: create && !replace, replace })
            }
            24 => Operation::ReadDirectory(ReadDirectory {
                directory,
                cookie: 0,
                bytes_max: u32::MAX,
                attributes: false,
            }),
            25 => Operation::GetAttributes(Inode { id: self.some_inode(None) }),
            26 => Operation::Parent(Inode { id: directory }),
            27 => Operation::ListXattr(Inode { id: self.some_inode(None) }),
            28..=34 => Operation::Unlink(at),
            _ => Operation::RemoveDirectory(at),
        }
    }

    fn some_create(&mut self, directory: InodeId, name: Name, mode: u32) -> Operation {
        let random = &mut self.world.random;
        let kind = [Kind::File, Kind::File, Kind::File, Kind::Symlink, Kind::Fifo][random.below(5)];
        let write = random.one_in(2);
        let how = Mode { read: !write, write, truncate: write && random.one_in(2) };
        let open = (kind == Kind::File && random.one_in(2)).then_some(how);
        let target = if kind == Kind::Symlink { b"to".to_vec() } else { Vec::new() };
        let exclusive = open.is_none() || random.one_in(2);
        let chunk_mib = (self.chunking && kind == Kind::File && random.one_in(2)).then_some(1);
        Operation::Create(Create {
            directory,
            name,
            kind,
            mode,
            device: 0,
            target,
            open,
            exclusive,
            copies: 0,
            archived: None,
            chunk_mib,
        })
    }

    /// Something with the chunks of a file that the node has open, if there is one.
    fn some_chunk_operation(&mut self, node: u32) -> Operation {
        let rows = self.model.rows.iter().filter(|(_, row)| row.chunk_bytes > 0);
        let (open, others): (Vec<_>, Vec<_>) = rows.partition(|(_, row)| row.opens.contains_key(&node));
        let random = &mut self.world.random;
        let picked = if open.is_empty() || random.one_in(8) { others } else { open };
        let Some((id, row)) = picked.get(random.below(picked.len())) else {
            let name = name(random);
            return self.some_create(InodeId::ROOT, name, 0o777);
        };
        let (file, length) = (**id, row.bytes());
        let (index, write) = (random.below(4) as u64, !random.one_in(4));
        let mode = Mode { read: !write, write, truncate: false };
        if !row.opens.contains_key(&node) {
            let truncate = write && random.one_in(3);
            return Operation::Open(Open { id: file, mode: Mode { truncate, ..mode } });
        }
        // Ends and beginnings of chunks, and what is between.
        let bytes = [0, 5, 1 << 20, (1 << 20) + 5, 2 << 20, (3 << 20) - 1, length][random.below(7)];
        match random.below(14) {
            0..=4 => {
                let make = write && !random.one_in(4);
                Operation::OpenChunk(OpenChunk { file, index, mode, make })
            }
            5..=7 => {
                let held = row.chunks.values().find_map(|id| {
                    let (holder, generation) = self.model.rows[id].place?;
                    (holder == node || random.one_in(4)).then_some((*id, generation))
                });
                let (id, generation) = held.unwrap_or((file, 1));
                // No two are equal: each changes something.
                let (blocks, modified_ns) = (self.operations + 1, self.operations as i64 + 1);
                let bytes = if bytes > 1 << 20 { (1 << 20) + u64::from(random.one_in(4)) } else { bytes };
                Operation::Commit(Commit { id, generation, bytes, blocks, modified_ns })
            }
            8 | 9 => Operation::Append(Append { file, bytes: bytes.min(1 << 21) }),
            10 | 11 => {
                Operation::SetAttributes(SetAttributes { bytes: Some(bytes), ..SetAttributes::of(file) })
            }
            12 => Operation::Chunks(Chunks { file, from: index / 2, max: 99, writing: random.one_in(2) }),
            _ => Operation::GetAttributes(Inode { id: file }),
        }
    }

    fn some_open(&mut self) -> Operation {
        let id = self.some_inode(None);
        let write = self.world.random.one_in(2);
        let truncate = write && self.world.random.one_in(2);
        Operation::Open(Open { id, mode: Mode { read: !write, write, truncate } })
    }

    fn some_set(&mut self, mode: u32) -> Operation {
        let id = self.some_inode(None);
        let random = &mut self.world.random;
        let some = |yes: bool, value: u32| yes.then_some(value);
        Operation::SetAttributes(SetAttributes {
            id,
            mode: some(random.one_in(2), mode),
            uid: some(random.one_in(4), [0, 10, 11][random.below(3)]),
            gid: some(random.one_in(4), [0, 100, 200][random.below(3)]),
            bytes: random.one_in(4).then(|| random.below(9) as u64),
            accessed_ns: random.one_in(6).then_some(NOW_NS),
            modified_ns: random.one_in(6).then(|| if random.one_in(2) { NOW_NS } else { 5 }),
        })
    }

    fn some_caller(&mut self) -> Credentials {
        match self.world.random.below(5) {
            0..=2 => Credentials { uid: 0, gid: 0, groups: vec![] },
            3 => Credentials { uid: 10, gid: 100, groups: vec![200] },
            _ => Credentials { uid: 11, gid: 100, groups: vec![] },
        }
    }

    /// One of the clients asks.
    pub(super) fn ask(&mut self, at: usize, caller: Credentials, operation: Operation) -> (Who, Request) {
        let (errand, asks) = Errand::new(operation.clone(), &self.layouts);
        self.clients[at].errand = Some(errand);
        self.clients[at].listed.clear();
        let asked = self.send(at, &caller, asks);
        (Who { node: self.clients[at].node, caller }, Request { operation, ..asked })
    }

    /// A client sends operations; the first request.
    fn send(&mut self, at: usize, caller: &Credentials, asks: Vec<Operation>) -> Request {
        let client = &mut self.clients[at];
        let oldest = client.number + 1;
        client.asks.clear();
        for operation in asks {
            client.number += 1;
            let request = Request {
                client: client.id,
                number: client.number,
                oldest,
                node: NodeNo(client.node),
                incarnation: Incarnation(self.lives[client.node as usize]),
                epoch: Epoch(1),
                credentials: caller.clone(),
                operation,
                place: None,
                knows_chunks: Some(true),
            };
            self.world.send(request.clone());
            client.asks.push((request, None));
        }
        client.asks[0].0.clone()
    }

    /// A client is answered; its answer, if that was all.
    fn answered(&mut self, id: u64, response: Response) -> Option<Answer> {
        let at = self.clients.iter().position(|client| client.id == id)?;
        let client = &mut self.clients[at];
        let asked = client.asks.iter_mut().find(|(request, _)| request.number == response.number);
        let (_, answer) = asked?;
        answer.get_or_insert(response.answer);
        if client.asks.iter().any(|(_, answer)| answer.is_none()) {
            return None;
        }
        let answers = client.asks.iter_mut().filter_map(|(_, answer)| answer.take()).collect();
        let caller = client.asks[0].0.credentials.clone();
        match client.errand.as_mut()?.take(answers, &mut self.layouts) {
            Next::Ask(asks) => {
                self.send(at, &caller, asks);
                None
            }
            Next::Done(Answer::Listing(listing)) if self.splitting => {
                client.listed.extend(listing.entries);
                let entries = std::mem::take(&mut client.listed);
                let cookie = entries.last().map_or(0, |last| last.cookie);
                let Operation::ReadDirectory(read) = client.errand.as_ref()?.operation() else { return None };
                if listing.end {
                    return Some(Answer::Listing(Listing { entries, end: true }));
                }
                let again = Operation::ReadDirectory(ReadDirectory { cookie, ..read.clone() });
                let (errand, asks) = Errand::new(again, &self.layouts);
                (client.errand, client.listed) = (Some(errand), entries);
                self.send(at, &caller, asks);
                None
            }
            Next::Done(answer) => {
                client.errand = None;
                Some(answer)
            }
        }
    }

    /// One of the clients asks alone.
    pub(super) fn do_alone(&mut self, operation: Operation) -> Answer {
        let root = Credentials { uid: 0, gid: 0, groups: vec![] };
        let asked = [self.ask(0, root, operation)];
        let answers = self.collect(&asked);
        self.judge(&asked, &answers);
        answers[0].clone()
    }

    /// Some clients ask at once; all get their answers; some order of them explains everything.
    fn batch(&mut self) {
        let count = 1 + self.world.random.below(self.clients.len());
        let mut asked = Vec::new();
        let hot = if self.splitting && self.world.random.one_in(2) { self.hot_operations() } else { None };
        let mut hot = hot.unwrap_or_default().into_iter();
        let count = if hot.len() > 0 { self.clients.len() } else { count };
        for at in 0..count {
            if let Some(operation) = hot.next() {
                let root = Credentials { uid: 0, gid: 0, groups: vec![] };
                asked.push(self.ask(at, root, operation));
                continue;
            }
            let node = self.clients[at].node;
            let (mut operation, caller) = (self.some_operation(node), self.some_caller());
            if let Operation::ReadDirectory(read) = &operation
                && self.splitting
                && count > 1
            {
                // A listing of several parts shows several moments.
                operation = Operation::Parent(Inode { id: read.directory });
            }
            asked.push(self.ask(at, caller, operation));
        }
        self.operations += count as u64;
        let answers = self.collect(&asked);
        self.judge(&asked, &answers);
        for ((who, request), answer) in asked.iter().zip(&answers) {
            if let Answer::Grant(grant) = answer {
                let writes = match &request.operation {
                    Operation::Open(open) => open.mode.write,
                    Operation::Create(create) => create.open.as_ref().is_some_and(|mode| mode.write),
                    Operation::OpenChunk(open) => open.mode.write,
                    _ => false,
                };
                self.opens.push((who.node, grant.attributes.id, writes));
            }
        }
    }

    fn collect(&mut self, asked: &[(Who, Request)]) -> Vec<Answer> {
        let mut answers = BTreeMap::new();
        for round in 0.. {
            assert!(round < 20_000, "no answer to some of {asked:#?}; answered: {answers:?}");
            if let Some((client, response)) = self.world.happen()
                && !answers.contains_key(&client)
                && let Some(answer) = self.answered(client, response)
            {
                answers.insert(client, answer);
            }
            if answers.len() == asked.len() {
                break;
            }
            if self.world.flights.is_empty() || self.world.random.one_in(30) {
                let waits = asked.iter().filter(|(_, request)| !answers.contains_key(&request.client));
                let waits: Vec<u64> = waits.map(|(_, request)| request.client).collect();
                let clients = self.clients.iter().filter(|client| waits.contains(&client.id));
                let asks = clients.flat_map(|client| client.asks.iter());
                for (request, answer) in asks {
                    if answer.is_none() {
                        self.world.send(request.clone());
                    }
                }
            }
        }
        let before = self.world.splits();
        // A split goes on behind the answer to the operation that made the directory large.
        for round in 0..20_000 {
            if !self.splitting || self.world.is_quiet() {
                break;
            }
            assert!(round < 19_999, "a directory is split for ever after {asked:#?}");
            self.world.happen();
        }
        let splits = self.world.splits();
        self.split_most = self.split_most.max(splits);
        self.merged += usize::from(splits < before || splits < self.splits_before);
        self.splits_before = splits;
        asked.iter().map(|(_, request)| answers[&request.client].clone()).collect()
    }

    pub(super) fn judge(&mut self, asked: &[(Who, Request)], answers: &[Answer]) {
        assert!(self.world.is_quiet(), "something is held after {asked:#?}\n{answers:#?}");
        if let ([(who, request)], [answer]) = (asked, answers) {
            let right = self.model.check(who, &request.operation, answer);
            assert!(right, "{asked:#?} was answered with {answer:#?}");
            if !self.world.random.one_in(16) {
                return;
            }
        }
        let tree = self.world.tree();
        if asked.len() == 1 {
            assert_eq!(tree, self.model, "after {asked:#?}");
            return;
        }
        let orders = orders(asked.len());
        let in_answers: Vec<_> = answers.iter().filter_map(attributes_of).map(|shown| shown.id).collect();
        let explains = orders.iter().find_map(|order| {
            let gone = self.model.rows.keys().filter(|id| !tree.rows.contains_key(id)).copied().collect();
            let mut model = Model { loose: true, gone, ..self.model.clone() };
            let mut states = Vec::new();
            for at in *order {
                let (who, request) = &asked[*at];
                if !model.check(who, &request.operation, &answers[*at]) {
                    return None;
                }
                // Of the whole tree only these rows are compared with answers.
                let rows = in_answers.iter().filter_map(|id| Some((*id, model.rows.get(id)?.clone())));
                states.push(rows.collect::<BTreeMap<_, _>>());
            }
            // An answer that is given again has the attributes of a later moment. A transaction's
            // rights are judged when it holds its name, and count no later: a change of a
            // directory's rights may be answered before the entry is there.
            let seen = |state: &BTreeMap<InodeId, Row>, seen: &Attributes| {
                let Some(row) = state.get(&seen.id) else { return false };
                let counts = (seen.kind == Kind::Directory).then_some((row.links, row.bytes()));
                let (links, bytes) = counts.unwrap_or((seen.links, seen.bytes));
                row.shows(&Attributes { links, bytes, ..seen.clone() })
            };
            let shown = order.iter().enumerate().all(|(place, at)| {
                let attributes = attributes_of(&answers[*at]);
                attributes.is_none_or(|shown| states[place..].iter().any(|state| seen(state, shown)))
            });
            (model.loose, model.gone) = (false, BTreeSet::new());
            (shown && model == tree).then_some(model)
        });
        match explains {
            Some(model) => self.model = model,
            None => {
                let mut model = self.model.clone();
                let right = asked
                    .iter()
                    .zip(answers)
                    .map(|((who, request), answer)| model.check(who, &request.operation, answer));
                let right: Vec<_> = right.collect();
                let differ: Vec<_> = model
                    .rows
                    .iter()
                    .filter(|(id, row)| tree.rows.get(id) != Some(row))
                    .map(|(id, row)| (id, row, tree.rows.get(id)))
                    .collect();
                panic!("no order of\n{asked:#?}\nexplains\n{answers:#?}\n{right:?}: {differ:#?}");
            }
        }
    }

    /// A node dies and comes back.
    fn node_dies(&mut self) {
        let node = self.world.random.below(NODES as usize) as u32;
        let incarnation = Incarnation(self.lives[node as usize]);
        self.world.everywhere(&Event::NodeGone { node: NodeNo(node), incarnation });
        self.model.node_gone(node);
        assert_eq!(self.world.tree(), self.model, "node {node} is gone");
        self.lives[node as usize] += 1;
        self.opens.retain(|(of, ..)| *of != node);
        self.clients.retain(|client| client.node != node);
        self.add_client(node);
    }

    pub(super) fn run(&mut self, operations: u64) {
        while self.operations < operations {
            self.batch();
            if self.world.random.one_in(150) {
                self.node_dies();
            }
        }
    }
}

fn attributes_of(answer: &Answer) -> Option<&Attributes> {
    match answer {
        Answer::Entry(entry) => entry.attributes.as_ref(),
        Answer::Grant(grant) => Some(&grant.attributes),
        Answer::Found(found) => Some(&found.attributes),
        _ => None,
    }
}

fn orders(count: usize) -> &'static [&'static [usize]] {
    match count {
        1 => &[&[0]],
        2 => &[&[0, 1], &[1, 0]],
        _ => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
    }
}

pub(super) fn times() -> u64 {
    std::env::var("ZAZEN_NAMESPACE_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn one_partition_is_the_reference() {
    let mut simulation = Simulation::new(1, 1, Faults { compare: 20, ..NO_FAULTS }, None);
    simulation.run(20_000 * times());
}

#[test]
fn one_partition_with_faults_is_the_reference() {
    for seed in 1..=4 {
        Simulation::new(1, seed, ALL_FAULTS, None).run(1500 * times());
    }
}

#[test]
fn sixteen_partitions_are_the_reference() {
    Simulation::new(16, 1, Faults { compare: 20, ..NO_FAULTS }, None).run(10_000 * times());
}

#[test]
fn partitions_with_faults_are_the_reference() {
    for seed in 1..=30 * times() {
        let partitions = [2, 3, 4, 16][seed as usize % 4];
        println!("{partitions} partitions, seed {seed}");
        Simulation::new(partitions, seed, ALL_FAULTS, None).run(600);
    }
}

#[test]
fn directories_that_are_split_are_the_reference() {
    let (mut split, mut merged) = (0, 0);
    for seed in 1..=6 * times() {
        let partitions = [2, 3, 4, 16][seed as usize % 4];
        println!("{partitions} partitions, seed {seed}");
        let faults = if seed % 3 == 0 { Faults { compare: 20, ..NO_FAULTS } } else { ALL_FAULTS };
        let mut simulation = Simulation::splitting(partitions, seed, faults, None);
        simulation.run(600);
        split = split.max(simulation.split_most);
        merged += simulation.merged;
    }
    assert!(split > 2 && merged > 2, "{split} split at a time, {merged} merged");
}

#[test]
fn files_of_chunks_are_the_reference() {
    for seed in 1..=8 * times() {
        let partitions = [1, 2, 3, 16][seed as usize % 4];
        println!("{partitions} partitions, seed {seed}");
        let faults = if seed % 3 == 0 { Faults { compare: 20, ..NO_FAULTS } } else { ALL_FAULTS };
        Simulation::chunking(partitions, seed, faults, None).run(1200);
    }
}
