//! Creating files in the shipped namespace: the product's own partitions (`zazen-namespace`)
//! answer, split directories and carry out transactions; its router's errands find the buckets.
//! Only the network between nodes and the time that a daemon takes are simulated.
//!
//! A partition is there from the first message to it on, so a job on millions of nodes has those
//! partitions that it uses.

use crate::daemon::{Daemons, Turn};
use crate::engine::{Control, Events, Happening, Ran, drive};
use crate::job::Job;
use crate::keepers::{Keepers, partitions_of};
use crate::measure::{Ends, Histogram};
use crate::network::{Network, Sending, Step};
use crate::outcome::{Outcome, Phase};
use crate::queue::Queue;
use crate::random::{Random, Stream};
use crate::slots::Slots;
use crate::time::ps;
use crate::topology::Topology;
use crate::trace::Trace;
use crate::work::Names;
use std::collections::BTreeMap;
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_namespace::operation::{Answer, Create, MakeDirectory, Operation, Request, Response};
use zazen_namespace::partition::{Action, Event as Input, Partition, PeerMessage, Settings};
use zazen_namespace::split::{Errand, Layouts, Next};
use zazen_namespace::{Epoch, Incarnation, InodeId, Name, NodeNo, PartitionNo};

/// What a rank with an errand takes, and its answers where they are kept.
pub const RANK_BYTES: u64 = 3 << 10;
/// What a partition with a few rows takes.
pub const PARTITION_BYTES: u64 = 8 << 10;
/// What a file's name and inode take (`cargo run --example creates -p zazen-namespace`).
pub const FILE_BYTES: u64 = 200;
/// Between two ticks of a partition that has something to wait for.
const TICK_PS: u64 = 200_000_000_000;
/// A partition is ticked so often for one request, at most.
const TICKS_MAX: u32 = 5_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The rank goes on.
    Begin(u32),
    /// A parcel reached the node of its partition.
    Arrive(u32),
    /// The daemon has dealt with it.
    Served(u32),
    /// An answer reached the rank.
    Answer(u32),
    /// The partition at this place looks after what waits.
    Tick(u32),
    Network(Step),
    Turn(Turn),
}

impl From<Step> for Event {
    fn from(step: Step) -> Event {
        Event::Network(step)
    }
}

impl From<Turn> for Event {
    fn from(turn: Turn) -> Event {
        Event::Turn(turn)
    }
}

impl Happening for Event {
    fn code(self) -> u64 {
        let (kind, number) = match self {
            Event::Begin(rank) => (32, rank),
            Event::Arrive(parcel) => (33, parcel),
            Event::Served(parcel) => (34, parcel),
            Event::Answer(parcel) => (35, parcel),
            Event::Tick(place) => (36, place),
            Event::Network(step) => return step.code(),
            Event::Turn(Turn(node)) => (37, node),
        };
        kind << 32 | u64::from(number)
    }
}

/// What travels.
enum Parcel {
    Ask { rank: u32, to: PartitionNo, request: Box<Request> },
    Peer { from: PartitionNo, to: PartitionNo, message: Box<PeerMessage> },
    Answer { rank: u32, response: Box<Response> },
    Unused,
}

struct Rank {
    directory: InodeId,
    made: u32,
    number: u64,
    began_ps: u64,
    layouts: Layouts,
    /// What it does, and the answers that came so far by the place of what was asked.
    errand: Option<(Errand, Vec<Option<Answer>>)>,
    /// Number of the first request of those that wait for their answers.
    first: u64,
}

struct HostedPartition {
    partition: Partition,
    node: u32,
    /// Requests that were brought and not answered.
    waiting: u32,
    ticks: u32,
    is_ticking: bool,
    /// Digest of the records that it logged.
    log: Trace,
}

struct World<'a> {
    job: &'a Job,
    plan: &'a Names,
    random: Random,
    settings: Settings,
    queue: Queue<Event>,
    network: Network<Event>,
    daemons: Daemons<Event>,
    keepers: Keepers,
    /// By partition: its place.
    found: BTreeMap<u32, u32>,
    places: Vec<HostedPartition>,
    parcels: Slots<Parcel>,
    ranks: Vec<Rank>,
    running: u32,
    served: u64,
    asked: u64,
    actions: Vec<Action>,
    phases: [Phase; 2],
    ends: Ends,
}

/// Memory of a job, in bytes.
pub fn memory_bytes(nodes: u64, ranks: u64, plan: &Names) -> u64 {
    let partitions = if plan.is_shared { 128 } else { nodes.min(u64::from(partitions_of(nodes as u32))) };
    ranks * RANK_BYTES
        + partitions * PARTITION_BYTES
        + ranks * u64::from(plan.files) * FILE_BYTES
        + nodes * 128
}

/// Runs a job. As [`crate::world::run`].
pub fn run(job: &Job, plan: &Names, topology: Topology, control: Control<'_>) -> Result<Option<Outcome>> {
    let settings = Settings {
        partitions: partitions_of(job.nodes),
        root_mode: 0o777,
        split_entries: plan.split_entries,
        ..Settings::default()
    };
    let ranks = job.nodes * job.ranks_per_node;
    let phase = |name: &str| Phase {
        name: name.to_owned(),
        is_metadata: true,
        bytes: 0,
        first_ps: u64::MAX,
        last_ps: 0,
        times: Histogram::new(),
    };
    let rank = || Rank {
        directory: InodeId::ROOT,
        made: 0,
        number: 0,
        began_ps: 0,
        layouts: Layouts::default(),
        errand: None,
        first: 0,
    };
    let mut world = World {
        job,
        plan,
        random: Random::new(job.seed),
        queue: Queue::new(),
        network: Network::new(job.fidelity, topology, job.nodes, job.cluster.network_costs()),
        daemons: Daemons::new(job.nodes, job.cluster.daemon.workers, job.cluster.daemon.discipline),
        keepers: Keepers::new(job.nodes, &settings)?,
        settings,
        found: BTreeMap::new(),
        places: Vec::new(),
        parcels: Slots::default(),
        ranks: (0..ranks).map(|_| rank()).collect(),
        running: ranks,
        served: 0,
        asked: 0,
        actions: Vec::new(),
        phases: [phase("mkdir"), phase("create")],
        ends: Ends::default(),
    };
    for rank in 0..ranks {
        world.queue.push(0, rank / job.ranks_per_node, Event::Begin(rank));
    }
    let all = u64::from(ranks) * (u64::from(plan.files) + u64::from(!plan.is_shared));
    let ran = drive(&mut world, all, control)?;
    Ok(ran.map(|ran| world.outcome(ran)))
}

impl Events for World<'_> {
    type Event = Event;

    fn queue(&mut self) -> &mut Queue<Event> {
        &mut self.queue
    }

    fn is_over(&self) -> bool {
        self.running == 0
    }

    fn steps(&self) -> u64 {
        self.served
    }

    fn handle(&mut self, now_ps: u64, node: u32, event: Event) -> Result<()> {
        match event {
            Event::Network(step) => self.network.step(&mut self.queue, now_ps, step),
            Event::Turn(turn) => self.daemons.turn(&mut self.queue, now_ps, turn),
            Event::Begin(rank) => self.begin(now_ps, rank)?,
            Event::Arrive(parcel) => {
                let daemon = &self.job.cluster.daemon;
                let service = match self.parcels[parcel] {
                    Parcel::Peer { .. } => &daemon.lookup_us,
                    _ => &daemon.insert_us,
                };
                self.asked += 1;
                let service_ps = service.draw_ps(self.random, node, Stream::Service, self.asked);
                let done = Event::Served(parcel);
                self.daemons.serve_until(&mut self.queue, now_ps, node, service_ps, done);
            }
            Event::Served(parcel) => self.serve(now_ps, parcel)?,
            Event::Answer(parcel) => {
                let parcel = self.take(parcel);
                if let Parcel::Answer { rank, response } = parcel {
                    self.answered(now_ps, rank, *response)?;
                }
            }
            Event::Tick(place) => self.tick(now_ps, place)?,
        }
        Ok(())
    }
}

impl World<'_> {
    /// The rank's next file, or its directory first.
    fn begin(&mut self, now_ps: u64, rank: u32) -> Result<()> {
        let plan = self.plan;
        let row = &mut self.ranks[rank as usize];
        row.began_ps = now_ps;
        let operation = if !plan.is_shared && row.directory == InodeId::ROOT {
            let name = name(format!("rank{rank:08}"))?;
            Operation::MakeDirectory(MakeDirectory { directory: InodeId::ROOT, name, mode: 0o755 })
        } else if row.made < plan.files {
            Operation::Create(Create::file(row.directory, name(format!("rank{rank:08}.{:06}", row.made))?))
        } else {
            self.running -= 1;
            self.ends.add(now_ps, rank);
            return Ok(());
        };
        let (errand, asks) = Errand::new(operation, &row.layouts);
        row.errand = Some((errand, Vec::new()));
        self.ask(now_ps, rank, asks);
        Ok(())
    }

    fn ask(&mut self, now_ps: u64, rank: u32, operations: Vec<Operation>) {
        let home = rank / self.job.ranks_per_node;
        let row = &mut self.ranks[rank as usize];
        row.first = row.number + 1;
        if let Some((_, answers)) = &mut row.errand {
            *answers = vec![None; operations.len()];
        }
        let first = row.first;
        for operation in operations {
            let row = &mut self.ranks[rank as usize];
            row.number += 1;
            let to = operation.partition();
            let request = Box::new(Request {
                client: u64::from(rank) + 1,
                number: row.number,
                oldest: first,
                node: NodeNo(home + 1),
                incarnation: Incarnation(1),
                epoch: Epoch(1),
                credentials: Credentials { uid: 1000, gid: 1000, groups: Vec::new() },
                operation,
                place: None,
                knows_chunks: Some(true),
            });
            let at_ps = now_ps + ps(self.job.cluster.fuse.request_us * 1e-6);
            let place = self.place(to);
            let node = self.places[place as usize].node;
            self.send(at_ps, home, node, Parcel::Ask { rank, to, request });
        }
    }

    fn send(&mut self, now_ps: u64, from: u32, to: u32, parcel: Parcel) {
        let daemon = &self.job.cluster.daemon;
        let (is_answer, bytes) = match parcel {
            Parcel::Answer { .. } => (true, daemon.reply_bytes),
            _ => (false, daemon.request_bytes),
        };
        let number = self.parcels.put(parcel);
        let event = if is_answer { Event::Answer(number) } else { Event::Arrive(number) };
        self.network.bring(&mut self.queue, Sending { now: now_ps, from, to, bytes }, event);
    }

    fn take(&mut self, parcel: u32) -> Parcel {
        std::mem::replace(self.parcels.give_up(parcel), Parcel::Unused)
    }

    /// Where a partition is; it begins to be there.
    fn place(&mut self, partition: PartitionNo) -> u32 {
        if let Some(place) = self.found.get(&partition.0) {
            return *place;
        }
        let mut fresh = Partition::new(partition, self.settings.clone());
        let mut actions = Vec::new();
        fresh.step(0, Input::Resumed { epoch: Epoch(1) }, &mut actions);
        let mut log = Trace::default();
        for action in actions {
            if let Action::Log(record) = action {
                log.bytes(&record);
            }
        }
        let node = self.keepers.primary(partition);
        let place = self.places.len() as u32;
        self.places.push(HostedPartition {
            partition: fresh,
            node,
            waiting: 0,
            ticks: 0,
            is_ticking: false,
            log,
        });
        self.found.insert(partition.0, place);
        place
    }

    /// The partition takes what came.
    fn serve(&mut self, now_ps: u64, parcel: u32) -> Result<()> {
        let (to, input) = match self.take(parcel) {
            Parcel::Ask { rank, to, request } => {
                let token = u64::from(rank) << 32 | (request.number & 0xffff_ffff);
                (to, Input::Request { token, request: *request })
            }
            Parcel::Peer { from, to, message } => (to, Input::Peer { from, message: *message }),
            Parcel::Answer { .. } | Parcel::Unused => return Ok(()),
        };
        let place = self.place(to);
        if matches!(input, Input::Request { .. }) {
            self.places[place as usize].waiting += 1;
        }
        self.step(now_ps, place, input);
        Ok(())
    }

    /// Gives a partition an event, and does what it decides.
    fn step(&mut self, now_ps: u64, at: u32, input: Input) {
        let mut actions = std::mem::take(&mut self.actions);
        let place = &mut self.places[at as usize];
        let (node, from) = (place.node, place.partition.number());
        place.partition.step((now_ps / 1000) as i64, input, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Log(record) => self.places[at as usize].log.bytes(&record),
                Action::Reply { token, response } => {
                    let place = &mut self.places[at as usize];
                    place.waiting = place.waiting.saturating_sub(1);
                    place.ticks = 0;
                    let rank = (token >> 32) as u32;
                    let home = rank / self.job.ranks_per_node;
                    self.send(now_ps, node, home, Parcel::Answer { rank, response: Box::new(response) });
                }
                Action::Send { to, message } => {
                    let other = self.place(to);
                    let node_to = self.places[other as usize].node;
                    self.send(now_ps, node, node_to, Parcel::Peer { from, to, message: Box::new(message) });
                }
                Action::DropObject { .. } => {}
            }
        }
        self.actions = actions;
        let place = &mut self.places[at as usize];
        let is_restless = place.waiting > 0 || place.partition.transactions() > 0;
        if is_restless && !place.is_ticking {
            place.is_ticking = true;
            self.queue.push(now_ps + TICK_PS, node, Event::Tick(at));
        }
    }

    fn tick(&mut self, now_ps: u64, at: u32) -> Result<()> {
        let place = &mut self.places[at as usize];
        place.is_ticking = false;
        place.ticks += 1;
        if place.ticks > TICKS_MAX {
            let why =
                format!("namespace: a request to partition {} is never answered", place.partition.number());
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        self.step(now_ps, at, Input::Tick);
        Ok(())
    }

    fn answered(&mut self, now_ps: u64, rank: u32, response: Response) -> Result<()> {
        let row = &mut self.ranks[rank as usize];
        let Some((_, answers)) = &mut row.errand else { return Ok(()) };
        let place = response.number.checked_sub(row.first).map(|place| place as usize);
        if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
            *answer = Some(response.answer);
        }
        if answers.iter().any(Option::is_none) {
            return Ok(());
        }
        let Some((mut errand, answers)) = row.errand.take() else { return Ok(()) };
        match errand.take(answers.into_iter().flatten().collect(), &mut row.layouts) {
            Next::Ask(operations) => {
                row.errand = Some((errand, Vec::new()));
                self.ask(now_ps, rank, operations);
            }
            Next::Done(answer) => self.done(now_ps, rank, answer)?,
        }
        Ok(())
    }

    fn done(&mut self, now_ps: u64, rank: u32, answer: Answer) -> Result<()> {
        let row = &mut self.ranks[rank as usize];
        let is_directory = !self.plan.is_shared && row.directory == InodeId::ROOT;
        match answer {
            Answer::Entry(entry) if is_directory => row.directory = entry.id,
            Answer::Entry(_) => row.made += 1,
            Answer::Refused(refused) => {
                let why = format!("namespace: rank {rank} was refused: {:?}", refused.errno);
                return Err(Error::new(ErrorKind::Protocol, why));
            }
            other => {
                let why = format!("namespace: rank {rank} got {other:?}");
                return Err(Error::new(ErrorKind::Protocol, why));
            }
        }
        let phase = &mut self.phases[usize::from(!is_directory)];
        phase.first_ps = phase.first_ps.min(row.began_ps);
        phase.last_ps = phase.last_ps.max(now_ps);
        phase.times.add(now_ps - row.began_ps);
        self.served += 1;
        self.begin(now_ps, rank)
    }

    /// Digest of what all partitions logged: the decisions of the shipped code.
    fn decisions(&self) -> u64 {
        let mut all = Trace::default();
        for (partition, place) in &self.found {
            all.word(u64::from(*partition));
            all.word(self.places[*place as usize].log.digest());
        }
        all.digest()
    }

    fn outcome(self, ran: Ran) -> Outcome {
        let job = self.job;
        let entries: u64 = self.places.iter().map(|place| place.partition.entries()).sum();
        let busiest = self.places.iter().map(|place| place.partition.entries()).max().unwrap_or(0);
        let nodes: std::collections::BTreeSet<u32> = self.places.iter().map(|place| place.node).collect();
        let extra = [
            ("entries", entries as f64),
            ("partitions_used", self.places.len() as f64),
            ("nodes_used", nodes.len() as f64),
            ("entries_of_the_fullest_partition", busiest as f64),
            ("placement_is_shipped", f64::from(u8::from(self.keepers.is_shipped()))),
            // 48 bits: a number that holds it exactly.
            ("decision_hash", (self.decisions() >> 16) as f64),
        ];
        let mut phases: Vec<Phase> = self.phases.into();
        phases.retain(|phase| phase.times.count() > 0);
        Outcome {
            metadata_ops: self.served,
            unfinished: self.ranks.len() as u32 - self.ends.count(),
            phases,
            busy: vec![(
                "daemon",
                self.daemons.into_busy(),
                f64::from(job.nodes) * f64::from(job.cluster.daemon.workers),
            )],
            extra: extra.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Outcome::of(job, ran, self.ends, |_| 1.0).over(&self.network)
        }
    }
}

fn name(text: String) -> Result<Name> {
    let refuse =
        |errno| Error::new(ErrorKind::InvalidArgument, format!("namespace: name {text:?}: {errno:?}"));
    Name::new(text.as_bytes()).map_err(refuse)
}

#[cfg(test)]
mod tests;
