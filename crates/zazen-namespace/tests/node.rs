//! Nodes over a network and disks that do what they are told: what a driver has to do, the life of
//! a namespace, fail-over, and recovery from every cut of a log.

use std::collections::{BTreeMap, VecDeque};
use zazen_core::Credentials;
use zazen_namespace::map::{Genesis, State};
use zazen_namespace::node::{Action, Config, Event, File, Files, Level, Node, Start, Timing};
use zazen_namespace::operation::{Answer, At, Create, Lock, LockWanted, Operation, Request};
use zazen_namespace::partition::{Partition, Settings};
use zazen_namespace::{Errno, Incarnation, InodeId, Name, NodeNo, PartitionNo};

const MS: u64 = 1_000_000;

/// A node with its disk; `None` while its daemon is dead.
struct Host {
    address: String,
    disk: BTreeMap<File, Vec<u8>>,
    node: Option<Node>,
    level: Level,
    fails: bool,
}

struct Cluster {
    now_ns: u64,
    hosts: Vec<Host>,
    post: VecDeque<(String, Vec<u8>)>,
    answers: BTreeMap<u64, Answer>,
    next: u64,
}

fn config(address: &str, level: Level) -> Config {
    Config {
        level,
        seeds: vec!["n1".into()],
        segment_bytes_max: 4 << 10,
        log_bytes_max: 16 << 10,
        ..Config::new(address)
    }
}

impl Cluster {
    fn new(nodes: usize, replicas: u8, partitions: u32, level: Level) -> Cluster {
        let addresses: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
        let genesis = Genesis {
            namespace: 77,
            settings: Settings { partitions, root_mode: 0o777, ..Settings::default() },
            replicas,
            synchronous: replicas.min(2) - 1,
            addresses: addresses.clone(),
            stewards: Genesis::stewards_of(nodes),
        };
        let mut cluster = Cluster {
            now_ns: 1,
            hosts: Vec::new(),
            post: VecDeque::new(),
            answers: BTreeMap::new(),
            next: 0,
        };
        for (key, address) in (1..).zip(addresses) {
            let start = Start::Format { key, genesis: genesis.clone() };
            let node = Node::open(config(&address, level), &Files::default(), start, 1).expect("formats");
            let disk = BTreeMap::new();
            cluster.hosts.push(Host { address, disk, node: Some(node), level, fails: false });
        }
        cluster
    }

    fn reopen(&mut self, at: usize, key: u128) {
        let now_ns = self.now_ns;
        let host = &mut self.hosts[at];
        let files = Files { files: host.disk.clone() };
        let config = config(&host.address, host.level);
        host.node = Some(Node::open(config, &files, Start::Open { key }, now_ns).expect("opens"));
    }

    /// Does all that nodes want, until they want nothing at this time.
    fn settle(&mut self) {
        loop {
            let mut worked = false;
            for at in 0..self.hosts.len() {
                let mut actions = Vec::new();
                if let Some(node) = &mut self.hosts[at].node {
                    node.flush(&mut actions);
                }
                worked |= !actions.is_empty();
                for action in actions {
                    self.act(at, action);
                }
            }
            while let Some((address, bytes)) = self.post.pop_front() {
                worked = true;
                let now_ns = self.now_ns;
                let host = self.hosts.iter_mut().find(|host| host.address == address);
                if let Some(node) = host.and_then(|host| host.node.as_mut()) {
                    node.step(now_ns, now_ns as i64, Event::Peer { bytes });
                }
            }
            if !worked {
                return;
            }
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        let now_ns = self.now_ns;
        let host = &mut self.hosts[at];
        let done = match action {
            Action::Reply { token, response } => {
                self.answers.insert(token, response.answer);
                return;
            }
            Action::Send { address, bytes } => return self.post.push_back((address, bytes)),
            Action::Append { segment, token, bytes } => {
                host.disk.entry(File::Segment(segment)).or_default().extend(bytes);
                token
            }
            Action::Sync { token, .. } => token,
            Action::Put { file, token, bytes } => {
                host.disk.insert(file, bytes);
                token
            }
            Action::Remove { file } => {
                host.disk.remove(&file);
                return;
            }
            Action::DropObject { .. } => return,
            Action::Broken { .. } => {
                host.node = None;
                return;
            }
        };
        let ok = !host.fails;
        if let Some(node) = &mut host.node {
            node.step(now_ns, now_ns as i64, Event::Done { token: done, ok });
        }
    }

    /// Time passes.
    fn pass(&mut self, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        self.settle();
        loop {
            let wakes = self.hosts.iter().filter_map(|host| host.node.as_ref()).map(Node::wakes_ns).min();
            let next_ns = wakes.unwrap_or(u64::MAX).max(self.now_ns + MS / 10);
            if next_ns > until_ns {
                break;
            }
            self.now_ns = next_ns;
            for host in &mut self.hosts {
                if let Some(node) = host.node.as_mut().filter(|node| node.wakes_ns() <= next_ns) {
                    node.step(next_ns, next_ns as i64, Event::Timer);
                }
            }
            self.settle();
        }
        self.now_ns = until_ns;
    }

    fn ask(&mut self, operation: Operation) -> Answer {
        self.ask_as(None, operation)
    }

    /// Asks for a life of a node; `None`: for whoever answers.
    fn ask_as(&mut self, life: Option<(NodeNo, Incarnation)>, operation: Operation) -> Answer {
        self.next += 1;
        let number = self.next;
        for _ in 0..200 {
            let partition = operation.partition();
            for at in 0..self.hosts.len() {
                let now_ns = self.now_ns;
                let Some(node) = &mut self.hosts[at].node else { continue };
                if node.leads(partition, now_ns).is_none() {
                    continue;
                }
                let token = number * 1000 + now_ns;
                let (of, incarnation) = life.unwrap_or((node.number(), node.incarnation()));
                let request = Request {
                    client: 1,
                    number,
                    oldest: number,
                    node: of,
                    incarnation,
                    epoch: node.map().epoch,
                    credentials: Credentials { uid: 0, gid: 0, groups: vec![] },
                    operation: operation.clone(),
                    place: None,
                    knows_chunks: Some(true),
                };
                node.step(now_ns, now_ns as i64, Event::Request { token, request });
                self.settle();
                for _ in 0..100 {
                    match self.answers.remove(&token) {
                        Some(Answer::Moved(_)) => break,
                        Some(answer) => return answer,
                        None => self.pass(20 * MS),
                    }
                }
            }
            self.pass(50 * MS);
        }
        panic!("nobody answers for partition {}", operation.partition());
    }

    fn create(&mut self, directory: InodeId, name: &str) -> Answer {
        let name = Name::new(name.as_bytes()).expect("a name");
        let create = Create::file(directory, name);
        self.ask(Operation::Create(create))
    }

    fn has(&mut self, name: &str) -> bool {
        let name = Name::new(name.as_bytes()).expect("a name");
        match self.ask(Operation::Lookup(At { directory: InodeId::ROOT, name })) {
            Answer::Entry(_) => true,
            Answer::Refused(refused) if refused.errno == Errno::ENOENT => false,
            other => panic!("{other:?}"),
        }
    }

    fn root(&self) -> usize {
        let leads = |host: &Host| {
            host.node.as_ref().is_some_and(|node| node.leads(PartitionNo(0), self.now_ns).is_some())
        };
        self.hosts.iter().position(leads).expect("somebody leads partition 0")
    }
}

#[test]
fn one_node_keeps_what_it_acknowledged() {
    for level in [Level::Memory, Level::Written, Level::Synced] {
        let mut cluster = Cluster::new(1, 1, 16, level);
        cluster.pass(100 * MS);
        for number in 0..200 {
            assert!(matches!(cluster.create(InodeId::ROOT, &format!("f{number}")), Answer::Entry(_)));
        }
        for life in 0..3 {
            cluster.reopen(0, 1);
            cluster.pass(100 * MS);
            for number in 0..200 + life {
                assert!(cluster.has(&format!("f{number}")), "{level:?}, life {life}, f{number}");
            }
            assert!(!cluster.has("never"));
            assert!(matches!(cluster.create(InodeId::ROOT, &format!("f{}", 200 + life)), Answer::Entry(_)));
        }
    }
}

#[test]
fn a_log_does_not_grow_without_end() {
    let mut cluster = Cluster::new(1, 1, 4, Level::Written);
    cluster.pass(100 * MS);
    for number in 0..600 {
        cluster.create(InodeId::ROOT, &format!("f{number}"));
    }
    let log = |cluster: &Cluster| -> usize {
        let is_log = |(file, _): &(&File, &Vec<u8>)| matches!(file, File::Segment(_));
        cluster.hosts[0].disk.iter().filter(is_log).map(|(_, bytes)| bytes.len()).sum()
    };
    assert!(log(&cluster) < 32 << 10, "{} bytes of log", log(&cluster));
    cluster.reopen(0, 1);
    cluster.pass(100 * MS);
    for number in 0..600 {
        assert!(cluster.has(&format!("f{number}")));
    }
}

#[test]
fn a_cut_log_gives_a_prefix() {
    let mut cluster = Cluster::new(1, 1, 1, Level::Written);
    cluster.pass(100 * MS);
    for number in 0..5 {
        cluster.create(InodeId::ROOT, &format!("f{number}"));
    }
    let disk = cluster.hosts[0].disk.clone();
    let (file, bytes) = disk.iter().rfind(|(file, _)| matches!(file, File::Segment(_))).expect("a log");
    let mut seen = Vec::new();
    for cut in (0..=bytes.len()).step_by(7) {
        let mut cluster = Cluster::new(1, 1, 1, Level::Written);
        cluster.hosts[0].disk = disk.clone();
        cluster.hosts[0].disk.insert(*file, bytes[..cut].to_vec());
        cluster.reopen(0, 1);
        cluster.pass(100 * MS);
        let there: Vec<bool> = (0..5).map(|number| cluster.has(&format!("f{number}"))).collect();
        assert!(there.is_sorted_by(|left, right| left >= right), "cut {cut}: {there:?}");
        seen.push(there.iter().filter(|there| **there).count());
    }
    assert!(seen.is_sorted() && seen.first() == Some(&0) && seen.last() >= Some(&4), "{seen:?}");
}

#[test]
fn damage_before_what_was_synced_is_not_served() {
    let mut cluster = Cluster::new(1, 1, 1, Level::Synced);
    cluster.pass(100 * MS);
    for number in 0..8 {
        cluster.create(InodeId::ROOT, &format!("f{number}"));
    }
    let disk = cluster.hosts[0].disk.clone();
    let (file, bytes) = disk.iter().rfind(|(file, _)| matches!(file, File::Segment(_))).expect("a log");
    for at in (60..bytes.len() / 2).step_by(11) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        cluster.hosts[0].disk = disk.clone();
        cluster.hosts[0].disk.insert(*file, bad);
        cluster.reopen(0, 1);
        cluster.pass(200 * MS);
        let node = cluster.hosts[0].node.as_ref().expect("lives");
        assert_eq!(node.status().damaged, [PartitionNo(0)], "byte {at}");
        assert_eq!(node.status().primary_of, 0);
        // Nor in later lives, whose own log does not tell it.
        cluster.hosts[0].disk.retain(|file, _| !matches!(file, File::Segment(_)));
        cluster.reopen(0, 2);
        cluster.pass(200 * MS);
        let node = cluster.hosts[0].node.as_ref().expect("lives");
        assert_eq!(node.status().damaged, [PartitionNo(0)], "byte {at}, a start later");
    }
}

#[test]
fn a_failed_sync_is_no_success() {
    let mut cluster = Cluster::new(1, 1, 1, Level::Synced);
    cluster.pass(1000 * MS);
    cluster.hosts[0].fails = true;
    let name = Name::new(b"f").expect("a name");
    let create = Create::file(InodeId::ROOT, name);
    let now_ns = cluster.now_ns;
    let node = cluster.hosts[0].node.as_mut().expect("lives");
    let request = Request {
        client: 1,
        number: 1,
        oldest: 1,
        node: NodeNo(1),
        incarnation: node.incarnation(),
        epoch: node.map().epoch,
        credentials: Credentials { uid: 0, gid: 0, groups: vec![] },
        operation: Operation::Create(create),
        place: None,
        knows_chunks: Some(true),
    };
    node.step(now_ns, 0, Event::Request { token: 9, request });
    cluster.settle();
    assert!(cluster.hosts[0].node.is_none(), "the node says that it is broken");
    assert!(matches!(cluster.answers.get(&9), Some(Answer::Moved(_))), "{:?}", cluster.answers);
}

#[test]
fn another_node_takes_over_in_time_and_has_everything() {
    for level in [Level::Memory, Level::Written, Level::Synced] {
        let mut cluster = Cluster::new(4, 2, 16, level);
        cluster.pass(3000 * MS);
        for round in 0..3 {
            for number in 0..20 {
                let name = format!("f{round}-{number}");
                assert!(matches!(cluster.create(InodeId::ROOT, &name), Answer::Entry(_)));
            }
            let dead = cluster.root();
            cluster.hosts[dead].node = None;
            let died_ns = cluster.now_ns;
            assert!(cluster.has(&format!("f{round}-19")));
            let took_ns = cluster.now_ns - died_ns;
            assert!(took_ns < 10_000 * MS, "{} ms", took_ns / MS);
            for old in 0..=round {
                for number in 0..20 {
                    assert!(cluster.has(&format!("f{old}-{number}")));
                }
            }
            cluster.reopen(dead, 1 + dead as u128);
            cluster.pass(8000 * MS);
            // All is kept twice again, by whom the map wants.
            let map = cluster.hosts[dead].node.as_ref().expect("lives").map().clone();
            for (number, keepers) in (0..).zip(&map.partitions) {
                let wanted = map.wanted(PartitionNo(number));
                let mut kept = vec![keepers.primary];
                kept.extend(&keepers.backups);
                assert_eq!(kept, wanted, "partition {number}");
            }
        }
    }
}

#[test]
fn nodes_come_and_go_while_the_namespace_is_used() {
    let mut cluster = Cluster::new(1, 2, 16, Level::Written);
    cluster.pass(100 * MS);
    for number in 0..50 {
        cluster.create(InodeId::ROOT, &format!("f{number}"));
    }
    for key in 2..=4u128 {
        let address = format!("n{key}");
        let host = Host { address, disk: BTreeMap::new(), node: None, level: Level::Written, fails: false };
        cluster.hosts.push(host);
        cluster.reopen(key as usize - 1, key);
        cluster.pass(5000 * MS);
        for number in 0..50 {
            assert!(cluster.has(&format!("f{number}")));
        }
    }
    let status: Vec<_> =
        cluster.hosts.iter().filter_map(|host| host.node.as_ref()).map(Node::status).collect();
    assert_eq!(status.iter().map(|one| one.primary_of).sum::<usize>(), 16);
    assert_eq!(status.iter().map(|one| one.backup_of).sum::<usize>(), 16, "{status:?}");
    assert!(status.iter().all(|one| one.primary_of > 0), "{status:?}");
    // The disk of one is lost: it comes back as another node.
    cluster.hosts[2].disk.clear();
    cluster.reopen(2, 99);
    cluster.pass(10_000 * MS);
    for number in 0..50 {
        assert!(cluster.has(&format!("f{number}")));
    }
    let node = cluster.hosts[2].node.as_ref().expect("lives");
    assert_eq!(node.number(), NodeNo(5));
    assert!(node.status().primary_of > 0);
}

#[test]
fn replicas_are_equal() {
    let mut cluster = Cluster::new(3, 2, 4, Level::Written);
    cluster.pass(3000 * MS);
    for number in 0..100 {
        cluster.create(InodeId::ROOT, &format!("f{number}"));
    }
    cluster.pass(1000 * MS);
    let digest = |at: usize| {
        let node = cluster.hosts[at].node.as_ref()?;
        node.tables(PartitionNo(0)).map(Partition::digest)
    };
    let mut digests: Vec<u64> = (0..3).filter_map(digest).collect();
    assert_eq!(digests.len(), 2);
    digests.dedup();
    assert_eq!(digests.len(), 1);
}

#[test]
fn names_of_files_come_back() {
    for file in [
        File::Identity,
        File::Steward,
        File::Snapshot(PartitionNo(7)),
        File::Damaged(PartitionNo(3)),
        File::Segment(12),
    ] {
        assert_eq!(File::named(&file.name()), Some(file));
    }
    for other in ["", "identity2", "log-", "log-01", "log-x", "partition-1.tmp", "identity-1"] {
        assert_eq!(File::named(other), None, "{other}");
    }
    assert!(Timing::default().lease_ns < 10_000 * MS);
}

#[test]
fn the_locks_of_a_dead_node_end_where_it_was_a_backup() {
    let mut cluster = Cluster::new(3, 2, 1, Level::Written);
    cluster.pass(6_000 * MS);
    let Answer::Entry(file) = cluster.create(InodeId::ROOT, "f") else { panic!("no file") };
    let map = cluster.hosts[cluster.root()].node.as_ref().expect("lives").map().clone();
    let backup = map.partitions[0].backups[0];
    let dies = |host: &Host| host.node.as_ref().is_some_and(|node| node.number() == backup);
    let dies = cluster.hosts.iter().position(dies).expect("the backup lives");
    let life = cluster.hosts[dies].node.as_ref().map(|node| (node.number(), node.incarnation()));
    let lock = |owner| {
        let (pid, whole, start, end, wanted) = (1, true, 0, u64::MAX, LockWanted::Exclusive);
        Operation::Lock(Lock { id: file.id, owner, pid, whole, start, end, wanted })
    };
    assert_eq!(cluster.ask_as(life, lock(1)), Answer::Done);
    assert!(matches!(cluster.ask(lock(2)), Answer::Blocking(_)));
    cluster.hosts[dies].node = None;
    cluster.pass(8_000 * MS);
    assert_eq!(cluster.ask(lock(2)), Answer::Done, "the lock of a dead node is held");
    let late = cluster.ask_as(life, lock(1));
    assert_eq!(late, Answer::Ended, "a late request of the dead node");
}

#[test]
fn a_steward_that_is_lost_is_replaced() {
    let mut cluster = Cluster::new(4, 2, 4, Level::Written);
    cluster.pass(6_000 * MS);
    assert!(matches!(cluster.create(InodeId::ROOT, "f"), Answer::Entry(_)));
    cluster.hosts[2].node = None;
    cluster.pass(80_000 * MS);
    let stewards = |cluster: &Cluster| cluster.hosts[0].node.as_ref().expect("lives").map().stewards.clone();
    assert_eq!(stewards(&cluster), [1, 2, 4].map(NodeNo));
    // So the next loss is survived too.
    cluster.hosts[1].node = None;
    cluster.pass(10_000 * MS);
    assert!(cluster.has("f"));
    assert!(matches!(cluster.create(InodeId::ROOT, "g"), Answer::Entry(_)));
}

/// Whenever the one dies, also just when the other is taken out of the stewards.
#[test]
fn a_steward_may_be_lost_while_another_one_leaves() {
    for (nodes, seed) in (4..=7).flat_map(|nodes| (0..60).map(move |seed| (nodes, seed))) {
        let mut cluster = Cluster::new(nodes, 2, 4, Level::Written);
        cluster.pass(6_000 * MS + seed * 37 * MS);
        let steps = [0, 1, 3, 10, 30, 100, 300, 1_000];
        let (lost, leaves) = if seed % 2 == 0 { (0, 1) } else { (2, 0) };
        if seed % 3 == 0 {
            cluster.hosts[lost].node = None;
            cluster.pass(steps[seed as usize % 8] * MS);
        }
        let now_ns = cluster.now_ns;
        let leaving = cluster.hosts[leaves].node.as_mut().expect("lives");
        leaving.step(now_ns, now_ns as i64, Event::Wish { state: State::Leaving });
        cluster.pass(steps[seed as usize / 3 % 8] * MS);
        cluster.hosts[lost].node = None;
        cluster.pass(90_000 * MS);
        let other = (0..nodes).find(|at| *at != lost && *at != leaves).expect("one is left");
        let node = cluster.hosts[other].node.as_ref().expect("lives");
        let state = |at: usize| node.map().member(NodeNo(at as u32 + 1)).expect("a member").state;
        let what = format!("{nodes} nodes, seed {seed}: {:?}", node.map().stewards);
        assert_eq!(state(lost), State::Down, "{what}");
        assert!(!node.map().stewards.contains(&NodeNo(leaves as u32 + 1)), "{what}");
    }
}

#[test]
fn a_new_namespace_answers_when_it_has_its_backups() {
    let mut cluster = Cluster::new(2, 2, 8, Level::Written);
    let late = cluster.hosts[1].node.take();
    cluster.pass(10_000 * MS);
    let answers = |cluster: &Cluster| {
        let node = cluster.hosts[0].node.as_ref().expect("lives");
        (0..8).filter(|number| node.leads(PartitionNo(*number), cluster.now_ns).is_some()).count()
    };
    assert_eq!(answers(&cluster), 0, "what is made now would be lost with this node");
    cluster.hosts[1].node = late;
    cluster.pass(5_000 * MS);
    assert!(answers(&cluster) > 0);
    assert!(matches!(cluster.create(InodeId::ROOT, "f"), Answer::Entry(_)));
}
