//! Random operations of several clients at once on partitions with faults, against the reference:
//! what a batch of operations answered, and the tree that it left, must be what some order of them
//! gives.

use super::super::Event;
use super::super::mutant::Mutant;
use super::model::{Model, Who};
use super::world::{ALL_FAULTS, Faults, NO_FAULTS, Random, World};
use crate::operation::*;
use crate::{Attributes, Epoch, Incarnation, InodeId, Kind, Name, NodeNo};
use std::collections::BTreeMap;
use zazen_core::Credentials;

const NODES: u32 = 3;

/// A client: it has one request outstanding at a time.
struct Client {
    id: u64,
    number: u64,
    node: u32,
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
}

fn name(random: &mut Random) -> Name {
    Name::new(&[b'a' + random.below(6) as u8]).expect("a name")
}

impl Simulation {
    pub(super) fn new(partitions: u32, seed: u64, faults: Faults, mutant: Option<Mutant>) -> Simulation {
        let mut simulation = Simulation {
            world: World::new(partitions, seed, faults, mutant),
            model: Model::new(0o777),
            clients: Vec::new(),
            lives: [1; NODES as usize],
            next_client: 1,
            opens: Vec::new(),
            operations: 0,
        };
        for node in 0..NODES {
            simulation.add_client(node);
        }
        simulation
    }

    fn add_client(&mut self, node: u32) {
        self.clients.push(Client { id: self.next_client, number: 0, node });
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

    fn some_operation(&mut self, node: u32) -> Operation {
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
        Operation::Create(Create { directory, name, kind, mode, device: 0, target, open, exclusive })
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
        let client = &mut self.clients[at];
        client.number += 1;
        let node = client.node;
        let request = Request {
            client: client.id,
            number: client.number,
            oldest: client.number,
            node: NodeNo(node),
            incarnation: Incarnation(self.lives[node as usize]),
            epoch: Epoch(1),
            credentials: caller.clone(),
            operation,
            place: None,
        };
        self.world.send(request.clone());
        (Who { node, caller }, request)
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
        for at in 0..count {
            let node = self.clients[at].node;
            let (operation, caller) = (self.some_operation(node), self.some_caller());
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
                && let Some((_, request)) = asked.iter().find(|(_, request)| request.client == client)
                && request.number == response.number
            {
                answers.entry(client).or_insert(response.answer);
            }
            if answers.len() == asked.len() {
                break;
            }
            if self.world.flights.is_empty() || self.world.random.one_in(30) {
                let waits = asked.iter().filter(|(_, request)| !answers.contains_key(&request.client));
                for (_, request) in waits.cloned().collect::<Vec<_>>() {
                    self.world.send(request);
                }
            }
        }
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
        let explains = orders.iter().find_map(|order| {
            let mut model = Model { loose: true, ..self.model.clone() };
            let mut states = Vec::new();
            for at in *order {
                let (who, request) = &asked[*at];
                if !model.check(who, &request.operation, &answers[*at]) {
                    return None;
                }
                states.push(model.clone());
            }
            // An answer that is given again has the attributes of a later moment. A transaction's
            // rights are judged when it holds its name, and count no later: a change of a
            // directory's rights may be answered before the entry is there.
            let seen = |state: &Model, seen: &Attributes| {
                let Some(row) = state.rows.get(&seen.id) else { return false };
                let counts = (seen.kind == Kind::Directory).then_some((row.links, row.bytes()));
                let (links, bytes) = counts.unwrap_or((seen.links, seen.bytes));
                row.shows(&Attributes { links, bytes, ..seen.clone() })
            };
            let shown = order.iter().enumerate().all(|(place, at)| {
                let attributes = attributes_of(&answers[*at]);
                attributes.is_none_or(|shown| states[place..].iter().any(|state| seen(state, shown)))
            });
            model.loose = false;
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
