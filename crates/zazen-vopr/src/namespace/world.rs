//! The world of a namespace: hosts, the network between them, clients, and faults.

use super::caller::{Client, LockAsks};
use super::check::History;
use super::chunks::Use;
use super::host::{Host, act};
use super::net::{Below, Faults, Faulty, OnWay, Packet, Rough, Travel};
use super::profile::Profile;
use crate::scheduler::{MS, Scheduler, Trace};
use std::collections::{BTreeMap, BTreeSet};
use zazen_env::{SeededRandom, SimDisk};
use zazen_namespace::map::{Change, Genesis, Map, State};
use zazen_namespace::node::{
    Action, Config, Envelope, Event as NodeEvent, File, Level, Position, Start, Timing,
};
use zazen_namespace::operation::{Answer, Request, Response};
use zazen_namespace::partition::Settings;
use zazen_namespace::{Epoch, Incarnation, InodeId, NodeNo, PartitionNo, Planted};
use zazen_sim::network::{Carrier, Fidelity, Schedule, Sending};
use zazen_wire::Message;

/// Seeds that found something when clients only made, removed and looked up names. They, and a
/// quarter of all seeds, run as they did then.
const FOUND_BEFORE: [u64; 5] = [1_422, 3_544, 5_833, 9_966, 11_741];

/// Something that happens.
pub(crate) enum Event {
    Arrive {
        host: usize,
        packet: Packet,
    },
    /// In the network below the faults.
    OnWay {
        host: u32,
        event: OnWay,
    },
    Disk {
        host: usize,
        process: u64,
    },
    Timer {
        host: usize,
        process: u64,
    },
    Start {
        host: usize,
    },
    /// It dies, and may come back at once.
    Kill {
        host: usize,
    },
    /// Its power fails.
    Power {
        host: usize,
    },
    Client {
        client: usize,
    },
    Trouble,
    Heal {
        from: usize,
        to: usize,
    },
    Calm,
    /// The operator of a host that shall leave looks how far it is.
    Leave,
}

/// A host that its operator wants to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaver {
    pub(crate) host: usize,
    /// When the operator wants it to stay after all.
    pub(crate) back_ns: Option<u64>,
    /// It has left.
    pub(crate) has_left: bool,
}

/// The world.
pub(crate) struct World {
    pub(crate) schedule: Scheduler<Event>,
    pub(crate) random: SeededRandom,
    pub(crate) trace: Trace,
    pub(crate) profile: Profile,
    pub(crate) planted: Option<Planted>,
    pub(crate) genesis: Genesis,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) directories: Vec<InodeId>,
    /// Names of directories that somebody tried to make.
    pub(crate) made: BTreeSet<u8>,
    /// Files whose bytes and locks clients use.
    pub(crate) files: Vec<InodeId>,
    /// Files of chunks that clients use, and their chunks that may be open.
    pub(crate) chunked: Vec<InodeId>,
    pub(crate) chunk_uses: BTreeMap<(InodeId, u64), Use>,
    /// Inodes that were seen lately under names that are renamed to each other.
    pub(crate) linked: BTreeMap<u8, Vec<InodeId>>,
    /// Lengths that were committed: each once.
    pub(crate) lengths: u64,
    /// The last life of each node that has ended.
    pub(crate) ended: BTreeMap<NodeNo, Incarnation>,
    /// Since a while after the faults have ended, and before.
    pub(crate) lock_asks: BTreeMap<InodeId, LockAsks>,
    pub(crate) early_lock_asks: LockAsks,
    pub(crate) history: History,
    pub(crate) parted: BTreeSet<(usize, usize)>,
    net: Faulty<Below>,
    /// Who answered for each partition in each epoch, and from which record on.
    led: BTreeMap<(PartitionNo, Epoch), (usize, u64, u64)>,
    /// A digest of the map of each epoch.
    maps: BTreeMap<Epoch, u64>,
    /// The last record of each partition that each host had, and the newest map that it knew.
    had: BTreeMap<(usize, PartitionNo), Position>,
    known: Vec<Epoch>,
    /// The host that shall leave.
    pub(crate) leaver: Option<Leaver>,
    /// Nodes that ever were stewards.
    pub(crate) stewards: BTreeSet<NodeNo>,
    /// Whether bytes on a disk went bad, or a disk was replaced.
    pub(crate) spoiled: bool,
    pub(crate) violation: Option<String>,
    pub(crate) events: u64,
    pub(crate) faults: u64,
    pub(crate) calm: bool,
    pub(crate) story: Option<Vec<String>>,
}

impl Schedule<Travel> for World {
    /// All events are of one queue: only time and order count.
    fn schedule(&mut self, time_ns: u64, host: u32, travel: Travel) {
        let event = match travel {
            Travel::Arrive(packet) => Event::Arrive { host: host as usize, packet },
            Travel::Below(event) => Event::OnWay { host, event },
        };
        self.schedule.at(time_ns, event);
    }
}

impl Rough for World {
    fn faults(&self, from: usize, to: usize) -> Faults {
        let Profile { lost, doubled, late, delay_max_ns, .. } = self.profile;
        let of = |of_1000| (!self.calm).then_some(of_1000);
        let parted = from != to && self.parted.contains(&(from, to));
        Faults { parted, lost: of(lost), doubled: of(doubled), late: of(late), delay_max_ns }
    }

    fn random(&mut self) -> &mut SeededRandom {
        &mut self.random
    }

    fn aim(&mut self, from: usize, to: usize, packet: &Packet) -> u64 {
        self.aim_at(from, to, packet)
    }
}

impl World {
    /// The world of a seed; `over` says what lies below the network's faults, if anything does.
    pub(crate) fn new(seed: u64, planted: Option<Planted>, over: Option<Fidelity>) -> World {
        let mut random = SeededRandom::new(seed);
        let mut profile = Profile::draw(&mut random);
        // Of draws of their own: seeds without a leave run as they did before there were any.
        let mut of_leaves = SeededRandom::new(seed ^ 0x6c65_6176_6573);
        profile.leaves = profile.hosts > 1 && !profile.gone && !profile.alone && seed.is_multiple_of(5);
        profile.works = !seed.is_multiple_of(4) && !FOUND_BEFORE.contains(&seed);
        // Seeds without chunks run as they did before there were any.
        profile.chunks = profile.works && seed % 4 == 2;
        let all = profile.hosts + profile.joins;
        let mut addresses: Vec<String> = (0..all).map(|host| format!("h{host}")).collect();
        let settings = Settings {
            partitions: profile.partitions,
            root_mode: 0o777,
            // Clients are forgotten by the time of day, which jumps here.
            client_idle_ns: i64::MAX / 2,
            split_entries: profile.split_entries,
            buckets_max: 4,
            ..Settings::default()
        };
        let genesis = Genesis {
            namespace: u128::from(random.next_u64()) | 1,
            settings,
            replicas: profile.replicas,
            synchronous: profile.replicas.min(2) - 1,
            stewards: Genesis::stewards_of(profile.hosts),
            addresses: addresses[..profile.hosts].to_vec(),
        };
        let hosts = addresses.drain(..).map(|address| {
            let disk = SimDisk::new(random.next_u64(), 1 << 40);
            let drift_ppm = random.below(30_000) as i64 - 15_000;
            Host::new(address, disk, drift_ppm, random.below(1 << 40))
        });
        let hosts: Vec<Host> = hosts.collect();
        let clients = (0..profile.clients).map(|client| Client::new(client as u64, client % all)).collect();
        let mut world = World {
            schedule: Scheduler::new(),
            random,
            trace: Trace::default(),
            profile,
            planted,
            genesis,
            hosts,
            clients,
            directories: vec![InodeId::ROOT],
            made: BTreeSet::new(),
            files: Vec::new(),
            chunked: Vec::new(),
            chunk_uses: BTreeMap::new(),
            linked: BTreeMap::new(),
            lengths: 0,
            ended: BTreeMap::new(),
            lock_asks: BTreeMap::new(),
            early_lock_asks: LockAsks::default(),
            history: History::default(),
            parted: BTreeSet::new(),
            net: Faulty::default(),
            led: BTreeMap::new(),
            maps: BTreeMap::new(),
            had: BTreeMap::new(),
            known: vec![Epoch(0); all],
            leaver: None,
            stewards: BTreeSet::new(),
            spoiled: false,
            violation: None,
            events: 0,
            faults: 0,
            calm: false,
            story: None,
        };
        if let Some(fidelity) = over {
            match Below::simulated(all, fidelity) {
                Ok(below) => world.net = Faulty { below },
                Err(error) => world.fail(format!("network: {error}")),
            }
        }
        for host in 0..profile.hosts {
            world.start(host, true);
        }
        for host in profile.hosts..all {
            let at_ns = (1_000 + world.random.below(9_000)) * MS;
            world.schedule.at(at_ns, Event::Start { host });
        }
        for client in 0..world.clients.len() {
            world.schedule.at(MS * (1 + client as u64), Event::Client { client });
        }
        if profile.leaves {
            let host = of_leaves.below(profile.hosts as u64) as usize;
            let at_ns = (1_000 + of_leaves.below(12_000)) * MS;
            let back_ns = of_leaves.percent(30).then(|| at_ns + of_leaves.below(4_000) * MS);
            world.leaver = Some(Leaver { host, back_ns, has_left: false });
            world.schedule.at(at_ns, Event::Leave);
        }
        world.schedule.at(2_000 * MS, Event::Trouble);
        world.schedule.at(world.profile.calm_ns, Event::Calm);
        world
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.schedule.now_ns() as f64 / 1e6;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:11.3} ms  {}", line()));
        }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.tell(|| format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn run(&mut self) {
        while self.violation.is_none() {
            let Some(event) = self.schedule.pop() else { break };
            if self.schedule.now_ns() > self.profile.end_ns {
                break;
            }
            self.events += 1;
            self.trace.word(self.schedule.now_ns());
            self.happen(event);
        }
        self.judge();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { host, packet } => self.arrive(host, packet),
            Event::OnWay { host, event } => {
                let mut net = std::mem::take(&mut self.net);
                let now_ns = self.schedule.now_ns();
                net.below.happen(self, now_ns, host, event);
                self.net = net;
            }
            Event::Disk { host, process } => {
                if self.hosts[host].process == process && !self.is_away(host, Event::Disk { host, process }) {
                    self.disk(host);
                }
            }
            Event::Timer { host, process } => {
                if self.hosts[host].process == process && !self.is_away(host, Event::Timer { host, process })
                {
                    self.hosts[host].timer_ns = u64::MAX;
                    self.step(host, NodeEvent::Timer);
                }
            }
            Event::Start { host } => self.start(host, false),
            Event::Power { host } => {
                if self.hosts[host].node.is_some() && !self.calm && !self.mourns() {
                    let for_ns = (100 + self.random.below(1_000)) * MS;
                    self.die(host, true, for_ns);
                }
            }
            Event::Kill { host } => {
                if self.hosts[host].node.is_some() && !self.calm && !self.mourns() {
                    let most = if self.random.percent(50) { 20 } else { 400 };
                    let for_ns = (1 + self.random.below(most)) * MS;
                    self.die(host, false, for_ns);
                }
            }
            Event::Client { client } => self.client(client),
            Event::Trouble => {
                self.trouble();
                if !self.calm {
                    let delay = (100 + self.random.below(2_000)) * MS;
                    self.schedule.after(delay, Event::Trouble);
                }
            }
            Event::Heal { from, to } => {
                self.parted.remove(&(from, to));
            }
            Event::Calm => self.calm_down(),
            Event::Leave => self.leave(),
        }
    }

    /// What the daemon of a host that shall leave does: it asks again until the map says so. Once
    /// the node keeps nothing, and is no steward, it is to be forgotten.
    fn leave(&mut self) {
        let Some(leaver) = self.leaver.filter(|leaver| !leaver.has_left) else { return };
        let now_ns = self.schedule.now_ns();
        let host = leaver.host;
        let stays = leaver.back_ns.is_some_and(|back_ns| now_ns >= back_ns);
        let (state, wish) = match &self.hosts[host].node {
            None => (None, None),
            Some(node) => {
                let (map, me) = (node.map(), node.number());
                let keeps = map
                    .partitions
                    .iter()
                    .any(|keepers| keepers.primary == me || keepers.backups.contains(&me));
                let is_free = !keeps && !map.stewards.contains(&me);
                let wish = match node.state() {
                    Some(State::Up) if !stays => Some(State::Leaving),
                    Some(State::Leaving) if stays => Some(State::Up),
                    Some(State::Leaving) if is_free => Some(State::Gone),
                    _ => None,
                };
                (node.state(), wish)
            }
        };
        if state == Some(State::Gone) {
            self.tell(|| format!("host {host} has left"));
            self.leaver = Some(Leaver { has_left: true, ..leaver });
            self.hosts[host].gone_as = self.hosts[host].node.as_ref().map(|node| node.number());
            self.hosts[host].stop(false);
            self.hosts[host].is_gone = true;
            return;
        }
        if let Some(state) = wish {
            self.tell(|| format!("host {host} shall be {state:?}"));
            self.step(host, NodeEvent::Wish { state });
        }
        self.schedule.after(250 * MS, Event::Leave);
    }

    /// Keeps what a stopped process cannot take yet.
    fn is_away(&mut self, host: usize, event: Event) -> bool {
        let until_ns = self.hosts[host].paused_ns;
        let is_away = self.schedule.now_ns() < until_ns;
        if is_away {
            self.schedule.at(until_ns, event);
        }
        is_away
    }

    fn arrive(&mut self, host: usize, packet: Packet) {
        if self.is_away(host, Event::Arrive { host, packet: packet.clone() }) {
            return;
        }
        match packet {
            Packet::Peer(bytes) => {
                self.trace.bytes(&bytes);
                self.step(host, NodeEvent::Peer { bytes });
            }
            Packet::Ask { client, bytes } => {
                self.trace.bytes(&bytes);
                let Ok(request) = Request::decode(&bytes) else { return };
                let number = request.number;
                self.tell(|| {
                    format!("host {host} is asked by client {client}: {number} {:?}", request.operation)
                });
                let at = &mut self.hosts[host];
                at.next_token += 1;
                let token = at.next_token;
                let (node, life) = (request.node, request.incarnation);
                let map = at.node.as_ref().map(|one| one.map());
                let ended = map.and_then(|map| map.member(node)?.ended());
                let is_late = ended.is_some_and(|(_, last)| life <= last);
                at.tokens.insert(token, (client, is_late));
                self.step(host, NodeEvent::Request { token, request });
            }
            Packet::Answer { client, bytes } => {
                if let Ok(response) = Response::decode(&bytes) {
                    self.answered(client, response);
                }
            }
        }
    }

    /// Brings an event to a node, and does what it wants.
    fn step(&mut self, host: usize, event: NodeEvent) {
        let now_ns = self.schedule.now_ns();
        let at = &mut self.hosts[host];
        let (clock_ns, wall_ns) = (at.clock_ns(now_ns), at.wall_ns(now_ns));
        let Some(node) = &mut at.node else { return };
        node.step(clock_ns, wall_ns, event);
        self.flush(host);
    }

    fn flush(&mut self, host: usize) {
        let now_ns = self.schedule.now_ns();
        let mut actions = Vec::new();
        if let Some(node) = &mut self.hosts[host].node {
            node.flush(&mut actions);
        }
        let mut broken = None;
        for action in actions {
            match action {
                Action::Reply { token, response } => {
                    if let Some((client, is_late)) = self.hosts[host].tokens.remove(&token) {
                        let refuses =
                            matches!(response.answer, Answer::Moved(_) | Answer::Refused(_) | Answer::Ended);
                        if is_late && !refuses {
                            let what = format!(
                                "fence: a node's life ended, and its request is executed: {response:?}"
                            );
                            self.fail(what);
                        }
                        let to = self.clients[client].host;
                        let bytes = response.encode();
                        self.tell(|| format!("host {host} answers client {client}: {response:?}"));
                        self.send(host, to, &Packet::Answer { client, bytes });
                    }
                }
                Action::Send { address, bytes } => {
                    if let Some(to) = self.hosts.iter().position(|other| other.address == address) {
                        self.send(host, to, &Packet::Peer(bytes));
                    }
                }
                Action::DropObject { .. } => {}
                Action::Broken { why } => broken = Some(why),
                disk => self.hosts[host].queue.push_back(disk),
            }
        }
        self.check_map(host);
        self.check_leaders(host);
        if let Some(why) = broken {
            self.tell(|| format!("host {host} is broken: {why}"));
            self.die(host, false, 300 * MS);
            return;
        }
        self.work(host);
        let at = &mut self.hosts[host];
        let process = at.process;
        let Some(wakes_ns) = at.node.as_ref().map(|node| node.wakes_ns()) else { return };
        if wakes_ns < u64::MAX {
            let due_ns = at.world_ns(wakes_ns).max(now_ns + MS / 100);
            if due_ns < at.timer_ns {
                at.timer_ns = due_ns;
                self.schedule.at(due_ns, Event::Timer { host, process });
            }
        }
    }

    /// Begins the next disk action.
    fn work(&mut self, host: usize) {
        let at = &mut self.hosts[host];
        let Some(action) = at.queue.front() else { return };
        if std::mem::replace(&mut at.works, true) {
            return;
        }
        let slow = matches!(action, Action::Sync { .. } | Action::Put { .. });
        let process = at.process;
        let delay = MS / 50 + if slow { self.random.below(3 * MS) } else { self.random.below(MS / 10) };
        self.schedule.after(delay, Event::Disk { host, process });
    }

    fn disk(&mut self, host: usize) {
        let at = &mut self.hosts[host];
        at.works = false;
        let Some(action) = at.queue.pop_front() else { return };
        let done = act(&at.disk, &action);
        if at.disk.is_dead() {
            let power = self.profile.power && self.random.percent(50);
            let for_ns = (200 + self.random.below(2_000)) * MS;
            self.die(host, power, for_ns);
            return;
        }
        at.was_named |= matches!(action, Action::Put { file: File::Identity, .. });
        let token = match action {
            Action::Append { token, .. } | Action::Sync { token, .. } | Action::Put { token, .. } => token,
            _ => 0,
        };
        self.work(host);
        if token > 0 {
            let ok = done.is_ok();
            self.step(host, NodeEvent::Done { token, ok });
        }
    }

    /// Sends a packet, or not.
    pub(crate) fn send(&mut self, from: usize, to: usize, packet: &Packet) {
        let bytes = packet.bytes().len() as u64;
        let sending = Sending { now: self.schedule.now_ns(), from: from as u32, to: to as u32, bytes };
        // The network draws from this world, and the world has another one meanwhile.
        let mut net = std::mem::take(&mut self.net);
        net.send(self, sending, packet.clone());
        self.net = net;
    }

    /// Faults that come when they may do most harm: a vote that comes late, a steward that restarts
    /// when it has voted, a new backup that is not reached when the map is about to name it. How
    /// much later the packet comes.
    fn aim_at(&mut self, from: usize, to: usize, packet: &Packet) -> u64 {
        let Packet::Peer(bytes) = packet else { return 0 };
        if !self.profile.aimed || self.calm || from == to {
            return 0;
        }
        let Ok(envelope) = Envelope::decode(bytes) else { return 0 };
        let (asks, gives) = envelope.votes();
        let adds = envelope.proposals().find_map(|change| match change {
            Change::Add(keep) => Some(keep.node),
            _ => None,
        });
        let careful = self.profile.level == Level::Memory;
        if gives && self.profile.kills && !careful && self.random.percent(40) {
            // The voter restarts at once, and the others do not hear of the leader that it made.
            self.schedule.after(self.random.below(MS), Event::Kill { host: from });
            if self.profile.parts {
                for other in (0..self.hosts.len()).filter(|other| *other != to && *other != from) {
                    self.part(to, other, 2_000 * MS);
                }
            }
        }
        if let Some(node) = adds.filter(|_| self.profile.parts && self.random.percent(20)) {
            let new =
                self.hosts.iter().position(|host| host.node.as_ref().is_some_and(|one| one.number() == node));
            if let Some(new) = new.filter(|new| *new != from) {
                self.faults += 1;
                self.tell(|| format!("host {from} does not reach its new backup, host {new}"));
                let for_ns = (200 + self.random.below(3_000)) * MS;
                self.part(from, new, for_ns);
                if self.profile.kills && !careful && self.random.percent(70) {
                    let soon = self.random.below(900) * MS;
                    self.schedule.after(soon, Event::Kill { host: from });
                }
            }
        }
        if asks && self.random.percent(40) { self.random.below(200) * MS } else { 0 }
    }

    pub(crate) fn die(&mut self, host: usize, power: bool, for_ns: u64) {
        self.faults += 1;
        self.tell(|| format!("host {host} dies, power {power}, for {} ms", for_ns / MS));
        self.hosts[host].stop(power);
        self.had.retain(|(of, _), _| *of != host);
        let for_ns = if self.profile.quick { for_ns / 20 } else { for_ns };
        self.schedule.after(for_ns, Event::Start { host });
    }

    fn start(&mut self, host: usize, is_first: bool) {
        if self.hosts[host].node.is_some() || self.hosts[host].is_gone {
            return;
        }
        let replace_ns = 4_000 * MS;
        let config = Config {
            // All nodes of the beginning: any of them may leave for good before others come.
            seeds: self.genesis.addresses.clone(),
            level: self.profile.level,
            segment_bytes_max: 8 << 10,
            log_bytes_max: 32 << 10,
            planted: self.planted,
            timing: Timing { replace_ns, ..Timing::default() },
            ..Config::new(&self.hosts[host].address)
        };
        self.hosts[host].disk.set_capacity(1 << 40);
        let key = (u128::from(self.random.next_u64()) << 64) | u128::from(self.random.next_u64());
        let is_new = self.hosts[host].disk.files().iter().all(|(name, _)| name != "identity");
        // A first node that died before it had a name begins anew, as its operator would.
        let start = match is_first || is_new && !self.hosts[host].was_named && host < self.profile.hosts {
            true => Start::Format { key, genesis: self.genesis.clone() },
            false => Start::Open { key },
        };
        let now_ns = self.schedule.now_ns();
        self.tell(|| format!("host {host} starts"));
        match self.hosts[host].start(config, start, now_ns) {
            Ok(()) => self.flush(host),
            Err(error) => self.fail(format!("start: host {host} does not start: {error}")),
        }
    }

    pub(crate) fn part(&mut self, from: usize, to: usize, for_ns: u64) {
        self.parted.insert((from, to));
        self.schedule.after(for_ns, Event::Heal { from, to });
    }

    pub(crate) fn heal(&mut self) {
        self.parted.clear();
    }

    /// The newest map that a living node knows.
    pub(crate) fn map(&self) -> Option<&Map> {
        self.hosts
            .iter()
            .filter_map(|host| host.node.as_ref())
            .map(|node| node.map())
            .max_by_key(|map| map.epoch)
    }

    /// There is one map of an epoch.
    fn check_map(&mut self, host: usize) {
        let Some(map) = self.hosts[host].node.as_ref().map(|node| node.map()) else { return };
        let epoch = map.epoch;
        if std::mem::replace(&mut self.known[host], epoch) == epoch {
            return;
        }
        self.stewards.extend(map.stewards.iter().copied());
        for (node, last) in map.nodes.iter().filter_map(zazen_namespace::map::Member::ended) {
            let ended = self.ended.entry(node).or_insert(last);
            *ended = last.max(*ended);
        }
        let kept =
            map.partitions.iter().map(|keepers| (keepers.epoch.0, keepers.primary.0, &keepers.backups));
        let members =
            map.nodes.iter().map(|member| (member.node.0, member.incarnation.0 >> 20, member.state));
        let line = self.story.is_some().then(|| {
            format!(
                "host {host} knows map {epoch}: stewards {:?}, nodes {:?}, kept {:?}",
                map.stewards,
                members.collect::<Vec<_>>(),
                kept.collect::<Vec<_>>()
            )
        });
        let digest = zazen_wire::checksum::frame_checksum(&map.encode());
        // A steward that has just started knows addresses only, and calls that epoch 0.
        self.tell(|| line.unwrap_or_default());
        if epoch.0 > 0 && *self.maps.entry(epoch).or_insert(digest) != digest {
            self.fail(format!("two maps: host {host} has another map of epoch {epoch}"));
        }
    }

    /// At most one node answers for a partition at any time, and in any epoch; its epoch opens with
    /// a record; and no replica takes records of a primary that it knows to be replaced.
    fn check_leaders(&mut self, host: usize) {
        let now_ns = self.schedule.now_ns();
        let leads = |at: &Host, partition| {
            at.node.as_ref().and_then(|node| node.leads(partition, at.clock_ns(now_ns)))
        };
        for number in 0..self.profile.partitions {
            let partition = PartitionNo(number);
            self.check_record(host, partition);
            let Some(epoch) = leads(&self.hosts[host], partition) else { continue };
            let process = self.hosts[host].process;
            let last = self.hosts[host].node.as_ref().and_then(|node| node.position(partition));
            let first = last.map_or(0, |last| last.index);
            let other = *self.led.entry((partition, epoch)).or_insert((host, process, first));
            let rival =
                (0..self.hosts.len()).find(|at| *at != host && leads(&self.hosts[*at], partition).is_some());
            if (other.0, other.1) != (host, process) {
                self.fail(format!(
                    "two primaries: {other:?} and {host}, {process} of partition {number} in epoch {epoch}"
                ));
            } else if let Some(rival) = rival {
                self.fail(format!("two primaries: hosts {host} and {rival} answer for partition {number}"));
            } else if last.is_some_and(|last| last.epoch != epoch) {
                self.fail(format!(
                    "no barrier: host {host} answers for partition {number} in epoch {epoch} after {last:?}"
                ));
            }
        }
    }

    /// A record that a replica has got since the last look fits its fence.
    fn check_record(&mut self, host: usize, partition: PartitionNo) {
        let Some(node) = &self.hosts[host].node else { return };
        let (Some(last), Some(fence)) = (node.position(partition), node.fence(partition)) else { return };
        if self.had.insert((host, partition), last) == Some(last) {
            return;
        }
        // Epochs that began at or before this record, after the record's own, up to the fence.
        let next = Epoch(last.epoch.0 + 1);
        if next > fence {
            return;
        }
        let replaced = self.led.range((partition, next)..=(partition, fence));
        let found = replaced.map(|(key, led)| (key.1, led.2)).find(|(_, first)| *first <= last.index);
        if let Some((epoch, first)) = found {
            self.fail(format!(
                "fence: host {host} took {last:?} of partition {number}, \
                 though epoch {epoch} began at {first}",
                number = partition
            ));
        }
    }
}
