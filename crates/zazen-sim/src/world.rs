//! A run: ranks go through their program on simulated nodes.
//!
//! Ranks and nodes are rows. A rank waits for one thing at a time, so an event needs no more than
//! the rank's number, and what the rank does follows from its place in the program.

use crate::cluster::Cluster;
use crate::daemon::{Daemons, Turn};
use crate::disk::Disks;
use crate::engine::{Control, Events, Happening, Ran, drive};
use crate::job::Job;
use crate::measure::{Ends, Histogram, Timeline};
use crate::network::{Carrier, Fidelity, Network, Sending, Step};
use crate::outcome::{Outcome, Phase};
use crate::placement::owner;
use crate::prefetch::soon;
use crate::program::{At, LOOPS_MAX, MetaOp, MetadataNode, Op, Program};
use crate::queue::Queue;
use crate::random::{Random, Stream, mix};
use crate::shared_store::SharedStore;
use crate::spread::Spread;
use crate::time::{Rate, TIME_MAX_PS, ps};
use crate::work::Work;
use crate::{math, topology};
use zazen_core::{Error, ErrorKind, Result};

/// What happens. The number is a rank's, but for the network's own events and failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The rank's step is done; the next one begins.
    Ready(u32),
    /// The rank's request reached the node.
    Arrive(u32),
    /// The node's daemon has served the rank's request.
    Served(u32),
    /// The node's disk has read what the rank asked for.
    Fetched(u32),
    /// The bytes that the rank asked for have reached it.
    Data(u32),
    /// The rank asks again.
    Again(u32),
    Network(Step),
    Turn(Turn),
    Fail(u32),
    Repair(u32),
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
            Event::Ready(rank) => (0, rank),
            Event::Arrive(rank) => (1, rank),
            Event::Served(rank) => (2, rank),
            Event::Fetched(rank) => (3, rank),
            Event::Data(rank) => (4, rank),
            Event::Again(rank) => (5, rank),
            Event::Network(step) => return step.code(),
            Event::Turn(Turn(node)) => (11, node),
            Event::Fail(node) => (9, node),
            Event::Repair(node) => (10, node),
        };
        kind << 32 | u64::from(number)
    }
}

/// A rank.
#[derive(Clone, Copy)]
struct Rank {
    began_ps: u64,
    /// The step that it does, or the one after the last.
    at: u32,
    /// The step after its last.
    end: u32,
    loops: [u32; LOOPS_MAX],
    /// Steps done: the counter of its draws.
    steps: u32,
    /// How often it asked for the present step.
    attempt: u16,
    is_running: bool,
}

const RANK_BYTES: u64 = size_of::<Rank>() as u64;
/// Of a pending event, with the room that growing vectors keep.
const EVENT_BYTES: u64 = 24 * 5 / 2;
/// How many events ahead rows are fetched, and then links, which are named by the rows.
const ROWS_AHEAD: usize = 16;
const LINKS_AHEAD: usize = 7;
/// Attempts of a request before its rank gives up.
const ATTEMPTS_MAX: u16 = 64;

/// Estimated memory of a run, in bytes.
pub fn memory_bytes(job: &Job) -> Result<u64> {
    let (nodes, ranks) = (u64::from(job.nodes), u64::from(job.nodes) * u64::from(job.ranks_per_node));
    let topology = topology::parse(&job.network)?.of(job.nodes)?;
    let network = Network::<Event>::bytes_per_node(job.fidelity, &topology, job.nodes);
    let disk = 8 + 4 + if job.cluster.disk.dirty_bytes_max > 0 { 16 } else { 0 };
    let daemon = &job.cluster.daemon;
    let daemon = Daemons::<Event>::bytes_per_node(daemon.workers, daemon.discipline);
    let node = network + disk + daemon + 16;
    let program = match &job.work {
        Work::Program(program) => program,
        Work::Push(_) => {
            let cache = crate::cache::ROW_BYTES;
            return Ok(nodes * (node + cache + crate::push::WRITER_BYTES + 2 * EVENT_BYTES));
        }
        Work::Names(names) => {
            let names = crate::namespace::memory_bytes(nodes, ranks, names);
            return Ok(nodes * node + names + ranks * 2 * EVENT_BYTES);
        }
        Work::Fetching(_) => return Ok(nodes * node + ranks * crate::fetching::RANK_BYTES),
        Work::View(view) => {
            // Holders in two forms, the matching's tables, and the steps.
            let file = 48 * u64::from(view.replicas) + 200;
            return Ok(
                nodes * (node + u64::from(view.files_each) * file) + ranks * (RANK_BYTES + EVENT_BYTES)
            );
        }
        Work::Assign(_) => return Ok(nodes.min(u64::from(crate::assignment::MACHINES_MAX)) * 4096),
    };
    let mut message = 0;
    if job.fidelity == Fidelity::Hop {
        message = 40;
    }
    if job.fidelity == Fidelity::Flow {
        // Routes of the flows: sampled, because they depend on who talks to whom.
        let far = (0..64).map(|at| topology.hops(0, (u64::from(job.nodes) * at / 64) as u32));
        let hops = u64::from(far.max().unwrap_or(0)).div_ceil(2);
        let spread = program.steps.iter().any(|step| matches!(step.op, Op::Read(_, At::Random)));
        message = 100 + 2 * 24 * (2 + if spread { hops } else { 2 });
    }
    let steps = (program.steps.len() * size_of::<crate::program::Step>()) as u64;
    Ok(nodes * node + ranks * (RANK_BYTES + EVENT_BYTES + message) + steps)
}

struct World<'a> {
    job: &'a Job,
    program: &'a Program,
    cluster: &'a Cluster,
    random: Random,
    queue: Queue<Event>,
    network: Network<Event>,
    disks: Disks,
    daemons: Daemons<Event>,
    shared: SharedStore,
    ranks: Vec<Rank>,
    /// By node, if nodes can be down.
    is_down: Vec<bool>,
    /// Ranks whose node was not dead from the beginning, and those of them that are not done.
    started: u32,
    running: u32,
    /// Those of them that gave up.
    stuck: u32,
    fuse_ps: u64,
    fuse_rate: Rate,
    timeout_ps: u64,
    phases: Vec<Phase>,
    ends: Ends,
    disk_busy: Timeline,
    shared_busy: Timeline,
    steps: u64,
    bytes: u64,
    metadata_ops: u64,
    retries: u64,
    /// Who waits for the others.
    at_barrier: Vec<u32>,
}

/// Runs a job. `control` is asked from time to time; if it breaks, the run ends with `None`.
///
/// `InvalidArgument` or `Config` if the job cannot be, and `TooLarge` if it passes 106 days of
/// simulated time.
pub fn run(job: &Job, control: Control<'_>) -> Result<Option<Outcome>> {
    job.check()?;
    let topology = topology::parse(&job.network)?.of(job.nodes)?;
    match &job.work {
        Work::Program(program) => run_program(job, program, topology, control),
        Work::Push(push) => crate::push::run(job, push, topology, control),
        Work::Names(names) => crate::namespace::run(job, names, topology, control),
        Work::Fetching(fetching) => crate::fetching::run(job, fetching, &topology, control),
        Work::View(view) => {
            let (program, matched) = crate::view::program(job, view)?;
            let outcome = run_program(job, &program, topology, control)?;
            Ok(outcome.map(|mut outcome| {
                let told = [("remote_files", matched.remote), ("remote_files_at_least", matched.bound)];
                outcome.extra.extend(told.map(|(name, value)| (name.to_owned(), value as f64)));
                outcome
            }))
        }
        Work::Assign(assign) => crate::assignment::outcome(job, assign, topology.name()).map(Some),
    }
}

fn run_program(
    job: &Job,
    program: &Program,
    topology: topology::Topology,
    control: Control<'_>,
) -> Result<Option<Outcome>> {
    let cluster = &job.cluster;
    let random = Random::new(job.seed);
    let ranks = job.nodes * job.ranks_per_node;
    let can_fail = cluster.failures.dead_fraction > 0.0 || cluster.failures.mtbf_hours > 0.0;
    let mut world = World {
        job,
        program,
        cluster,
        random,
        queue: Queue::new(),
        network: Network::new(job.fidelity, topology, job.nodes, cluster.network_costs()),
        disks: Disks::new(
            job.nodes,
            cluster.disk_costs(),
            crate::speeds::stretches(cluster, job.nodes, random),
        ),
        daemons: Daemons::new(job.nodes, cluster.daemon.workers, cluster.daemon.discipline),
        shared: SharedStore::new(job.nodes, cluster.shared_costs()),
        ranks: (0..ranks)
            .map(|rank| {
                let (at, end) = program.range(rank);
                Rank { began_ps: 0, at, end, loops: [0; LOOPS_MAX], steps: 0, attempt: 0, is_running: true }
            })
            .collect(),
        is_down: if can_fail { vec![false; job.nodes as usize] } else { Vec::new() },
        started: ranks,
        running: ranks,
        stuck: 0,
        fuse_ps: ps(cluster.fuse.request_us * 1e-6),
        fuse_rate: cluster.fuse_rate(),
        timeout_ps: ps(cluster.failures.timeout_ms * 1e-3),
        phases: phases(program),
        ends: Ends::default(),
        disk_busy: Timeline::new(),
        shared_busy: Timeline::new(),
        steps: 0,
        bytes: 0,
        metadata_ops: 0,
        retries: 0,
        at_barrier: Vec::new(),
    };
    world.begin();
    if world.started == 0 {
        let why = format!(
            "all {} nodes are dead from the beginning: failures.dead_fraction = {}, seed {}",
            job.nodes, cluster.failures.dead_fraction, job.seed
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let ran = drive(&mut world, job.work.steps(u64::from(ranks)), control)?;
    Ok(ran.map(|ran| world.outcome(ran)))
}

fn phases(program: &Program) -> Vec<Phase> {
    let of = |(index, name): (usize, &String)| {
        let mut steps = program.steps.iter().filter(|step| usize::from(step.phase) == index);
        Phase {
            name: name.clone(),
            is_metadata: steps.any(|step| matches!(step.op, Op::Meta(..))),
            bytes: 0,
            first_ps: u64::MAX,
            last_ps: 0,
            times: Histogram::new(),
        }
    };
    program.phases.iter().enumerate().map(of).collect()
}

impl Events for World<'_> {
    type Event = Event;

    fn queue(&mut self) -> &mut Queue<Event> {
        &mut self.queue
    }

    /// Nodes fail and come back for ever. Ranks that gave up do not come back, nor do those that
    /// wait for them.
    fn is_over(&self) -> bool {
        let waiting = if self.stuck > 0 { self.at_barrier.len() as u32 } else { 0 };
        self.running == self.stuck + waiting
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Has the rows of events to come fetched.
    #[inline]
    fn expect(&self) {
        match self.queue.ahead(ROWS_AHEAD) {
            Some((_, Event::Network(Step::Hop(message)))) => self.network.expect_hop(message),
            Some((
                _,
                Event::Ready(rank)
                | Event::Arrive(rank)
                | Event::Served(rank)
                | Event::Fetched(rank)
                | Event::Data(rank)
                | Event::Again(rank),
            )) => soon(self.ranks.get(rank as usize)),
            _ => {}
        }
        if let Some((_, Event::Network(Step::Hop(message)))) = self.queue.ahead(LINKS_AHEAD) {
            self.network.expect_link(message);
        }
    }

    fn handle(&mut self, now_ps: u64, node: u32, event: Event) -> Result<()> {
        match event {
            Event::Ready(rank) => {
                self.complete(now_ps, rank);
                self.proceed(now_ps, rank);
            }
            Event::Again(rank) => self.proceed(now_ps, rank),
            Event::Network(step) => self.network.step(&mut self.queue, now_ps, step),
            Event::Turn(turn) => self.daemons.turn(&mut self.queue, now_ps, turn),
            Event::Fail(failed) => {
                self.is_down[failed as usize] = true;
                let back_ps = now_ps + ps(self.cluster.failures.repair_s);
                self.queue.push(back_ps, failed, Event::Repair(failed));
            }
            Event::Repair(repaired) => {
                self.is_down[repaired as usize] = false;
                // The draw's number grows with time, so that each failure has one of its own.
                self.schedule_failure(now_ps, repaired, now_ps);
            }
            Event::Arrive(rank) | Event::Served(rank) | Event::Fetched(rank) if self.is_down(node) => {
                // Nobody answers: the rank asks a replica when its patience ends.
                let home = self.node_of(rank);
                self.retries += 1;
                self.ranks[rank as usize].attempt += 1;
                self.queue.push(now_ps + self.timeout_ps, home, Event::Again(rank));
            }
            Event::Arrive(rank) => self.arrive(now_ps, node, rank),
            Event::Served(rank) => self.served(now_ps, node, rank),
            Event::Fetched(rank) => {
                let Op::Read(bytes, _) = *self.op(rank) else { return Ok(()) };
                let home = self.node_of(rank);
                let sending = Sending { now: now_ps, from: node, to: home, bytes };
                self.network.send(&mut self.queue, sending, Event::Data(rank));
            }
            Event::Data(rank) => {
                let Op::Read(bytes, _) = *self.op(rank) else { return Ok(()) };
                let copied_ps = now_ps.saturating_add(self.fuse_rate.time_ps(bytes));
                self.queue.push(copied_ps, node, Event::Ready(rank));
            }
        }
        Ok(())
    }
}

impl<'a> World<'a> {
    fn begin(&mut self) {
        let failures = &self.cluster.failures;
        for node in 0..self.is_down.len() as u32 {
            if self.random.uniform(node, Stream::Failure, 0) < failures.dead_fraction {
                self.is_down[node as usize] = true;
            } else if failures.mtbf_hours > 0.0 {
                self.schedule_failure(0, node, 1);
            }
        }
        for rank in 0..self.ranks.len() as u32 {
            if self.is_down(self.node_of(rank)) {
                self.ranks[rank as usize].is_running = false;
                self.running -= 1;
                self.started -= 1;
                continue;
            }
            self.queue.push(0, self.node_of(rank), Event::Again(rank));
        }
    }

    fn schedule_failure(&mut self, now_ps: u64, node: u32, count: u64) {
        let mean_s = self.cluster.failures.mtbf_hours * 3600.0;
        let wait_ps = ps(mean_s * self.random.exponential(node, Stream::Failure, count));
        if now_ps + wait_ps < TIME_MAX_PS {
            self.queue.push(now_ps + wait_ps, node, Event::Fail(node));
        }
    }

    fn node_of(&self, rank: u32) -> u32 {
        rank / self.job.ranks_per_node
    }

    fn is_down(&self, node: u32) -> bool {
        self.is_down.get(node as usize).copied().unwrap_or(false)
    }

    /// The step that the rank waits in.
    fn op(&self, rank: u32) -> &'a Op {
        &self.program.steps[self.ranks[rank as usize].at as usize].op
    }

    /// Books the rank's step.
    fn complete(&mut self, now_ps: u64, rank: u32) {
        let row = &mut self.ranks[rank as usize];
        let step = &self.program.steps[row.at as usize];
        let phase = &mut self.phases[usize::from(step.phase)];
        phase.first_ps = phase.first_ps.min(row.began_ps);
        phase.last_ps = phase.last_ps.max(now_ps);
        phase.times.add(now_ps - row.began_ps);
        match step.op {
            Op::Write(bytes, _) | Op::Read(bytes, _) => {
                phase.bytes += bytes;
                self.bytes += bytes;
            }
            Op::Meta(..) => self.metadata_ops += 1,
            _ => {}
        }
        self.steps += 1;
        row.steps += 1;
        row.at += 1;
        row.attempt = 0;
        row.began_ps = now_ps;
    }

    /// Begins the rank's next step, or the present one again.
    fn proceed(&mut self, now_ps: u64, rank: u32) {
        if !self.ranks[rank as usize].is_running {
            return;
        }
        let node = self.node_of(rank);
        if self.is_down(node) {
            // The rank's own node is down: it goes on when the node is back, or never.
            if self.cluster.failures.mtbf_hours > 0.0 {
                let later = now_ps + ps(self.cluster.failures.repair_s);
                self.queue.push(later, node, Event::Again(rank));
            }
            return;
        }
        let steps = &self.program.steps;
        loop {
            let row = &mut self.ranks[rank as usize];
            let Some(step) = steps[..row.end as usize].get(row.at as usize) else {
                row.is_running = false;
                self.running -= 1;
                self.ends.add(now_ps, rank);
                return;
            };
            if let Op::Repeat { back, times, counter } = step.op {
                let count = &mut row.loops[usize::from(counter)];
                *count += 1;
                if *count < times {
                    row.at = back;
                } else {
                    *count = 0;
                    row.at += 1;
                }
                continue;
            }
            if row.attempt == 0 {
                row.began_ps = now_ps;
            }
            break;
        }
        self.start(now_ps, node, rank);
    }

    /// The number that the rank's draws for the present step begin at.
    fn counter(&self, rank: u32) -> u64 {
        let row = &self.ranks[rank as usize];
        u64::from(row.steps) << 16 | u64::from(row.attempt)
    }

    fn start(&mut self, now_ps: u64, node: u32, rank: u32) {
        let step = &self.program.steps[self.ranks[rank as usize].at as usize];
        let done_ps = match &step.op {
            Op::Compute(spread) => {
                now_ps + spread.draw_ps(self.random, rank, Stream::Compute, self.counter(rank))
            }
            Op::Meta(_, MetadataNode::Shared { in_one_directory }) => {
                self.shared.operate(now_ps + self.fuse_ps, *in_one_directory)
            }
            Op::Meta(_, place) => {
                let Some(server) = self.server(rank, *place) else { return self.give_up(rank) };
                let bytes = self.cluster.daemon.request_bytes;
                let sending = Sending { now: now_ps + self.fuse_ps, from: node, to: server, bytes };
                return self.network.bring(&mut self.queue, sending, Event::Arrive(rank));
            }
            Op::Write(bytes, At::Shared) => self.transfer(now_ps, node, *bytes),
            Op::Write(bytes, _) => {
                let noise = self.noise(rank);
                let done = self.disks.write(now_ps, node, *bytes, self.fuse_rate, noise);
                self.disk_busy.add(now_ps, done);
                done
            }
            Op::Read(bytes, At::Local) => {
                let noise = self.noise(rank);
                let done = self.disks.read(now_ps, node, *bytes, self.fuse_rate, noise);
                self.disk_busy.add(now_ps, done);
                done
            }
            Op::Read(bytes, At::Cached) => self.disks.read_cached(now_ps, *bytes, self.fuse_rate),
            Op::Read(bytes, At::Shared) => self.transfer(now_ps, node, *bytes),
            Op::Read(bytes, At::Missing(part)) => {
                let missing = ((u128::from(*bytes) * u128::from(*part)) >> 16) as u64;
                let noise = self.noise(rank);
                let local = self.disks.read(now_ps, node, *bytes - missing, self.fuse_rate, noise);
                self.disk_busy.add(now_ps, local);
                // A reader that reads one frame after the other: first what it has, then the rest.
                if missing == 0 { local } else { self.transfer(local, node, missing) }
            }
            Op::Read(bytes, at) => {
                let holder = self.holder(rank, node, *at);
                if holder == node {
                    let noise = self.noise(rank);
                    let done = self.disks.read(now_ps, node, *bytes, self.fuse_rate, noise);
                    self.disk_busy.add(now_ps, done);
                    done
                } else {
                    if self.ranks[rank as usize].attempt >= ATTEMPTS_MAX {
                        return self.give_up(rank);
                    }
                    let bytes = self.cluster.daemon.request_bytes;
                    let sending = Sending { now: now_ps, from: node, to: holder, bytes };
                    self.network.send(&mut self.queue, sending, Event::Arrive(rank));
                    return;
                }
            }
            Op::Sync => {
                let done = self.disks.sync(now_ps, node);
                self.disk_busy.add(now_ps, done);
                done
            }
            Op::Barrier => return self.meet(now_ps, rank, 0),
            Op::Allreduce(bytes) => return self.meet(now_ps, rank, *bytes),
            Op::Repeat { .. } => now_ps,
        };
        self.queue.push(done_ps, node, Event::Ready(rank));
    }

    /// Nobody answers the rank. It stays where it is, and so do those that wait for it.
    fn give_up(&mut self, rank: u32) {
        self.ranks[rank as usize].is_running = false;
        self.stuck += 1;
    }

    fn noise(&self, rank: u32) -> f64 {
        let sigma = self.cluster.disk.request_sigma;
        if sigma == 0.0 {
            return 1.0;
        }
        math::exp(sigma * self.random.normal(rank, Stream::DiskNoise, self.counter(rank)))
    }

    fn transfer(&mut self, now_ps: u64, node: u32, bytes: u64) -> u64 {
        let done = self.shared.transfer(now_ps, node, bytes);
        self.shared_busy.add(now_ps, done);
        done.saturating_add(self.fuse_rate.time_ps(bytes))
    }

    /// The node with the rows of the rank's operation; `None` after too many attempts.
    fn server(&self, rank: u32, place: MetadataNode) -> Option<u32> {
        let row = &self.ranks[rank as usize];
        let attempt = row.attempt;
        if attempt >= ATTEMPTS_MAX {
            return None;
        }
        let replica = u32::from(attempt) % (self.cluster.daemon.replicas + 1);
        // A name of its own for each pass through a loop.
        let name = mix(u64::from(rank) << 32 | u64::from(row.loops[0]) << 12 | u64::from(row.loops[1]));
        let key = match place {
            MetadataNode::Own => return Some(self.node_of(rank)),
            MetadataNode::Hashed => name,
            MetadataNode::Named(hash) => mix(hash),
            MetadataNode::Directory { parts } => mix(0xD1 + (name % u64::from(parts.max(1)))),
            MetadataNode::Shared { .. } => return None,
        };
        Some(owner(key ^ self.job.seed, replica, self.job.nodes))
    }

    fn holder(&self, rank: u32, node: u32, at: At) -> u32 {
        let nodes = u64::from(self.job.nodes);
        let row = &self.ranks[rank as usize];
        let first = match at {
            At::On(node) => u64::from(node),
            At::Random => self.random.below(nodes, rank, Stream::Workload, u64::from(row.steps)),
            _ => (u64::from(node) + 1) % nodes,
        };
        // Copies lie on the nodes that follow.
        let copies = u64::from(self.cluster.daemon.replicas) + 1;
        ((first + u64::from(row.attempt) % copies) % nodes) as u32
    }

    fn service(&self, op: MetaOp) -> &Spread {
        let daemon = &self.cluster.daemon;
        match op {
            MetaOp::Open => &daemon.open_us,
            MetaOp::Insert => &daemon.insert_us,
            MetaOp::Lookup => &daemon.lookup_us,
            MetaOp::Close => &daemon.close_us,
            MetaOp::Remove => &daemon.remove_us,
        }
    }

    fn arrive(&mut self, now_ps: u64, node: u32, rank: u32) {
        let op = self.op(rank);
        let spread = match op {
            Op::Meta(op, _) => self.service(*op),
            _ => &self.cluster.daemon.fetch_us,
        };
        let mut service_ps = spread.draw_ps(self.random, rank, Stream::Service, self.counter(rank));
        let writes = matches!(op, Op::Meta(MetaOp::Insert | MetaOp::Close | MetaOp::Remove, _));
        if writes && self.cluster.daemon.replicas > 0 && self.job.nodes > 1 {
            // The first replica is written before the answer: a round trip of the primary's.
            let network = &self.cluster.network;
            service_ps += ps((2.0 * (network.latency_us + 2.0 * network.overhead_us)) * 1e-6);
        }
        let done = Event::Served(rank);
        self.daemons.serve_until(&mut self.queue, now_ps, node, service_ps, done);
    }

    fn served(&mut self, now_ps: u64, node: u32, rank: u32) {
        let home = self.node_of(rank);
        match self.op(rank) {
            Op::Read(bytes, _) => {
                let noise = self.noise(rank);
                let done = self.disks.read(now_ps, node, *bytes, Rate::INFINITE, noise);
                self.disk_busy.add(now_ps, done);
                self.queue.push(done, node, Event::Fetched(rank));
            }
            _ if home == node => {
                self.complete(now_ps, rank);
                self.proceed(now_ps, rank);
            }
            _ => {
                let bytes = self.cluster.daemon.reply_bytes;
                let sending = Sending { now: now_ps, from: node, to: home, bytes };
                self.network.send(&mut self.queue, sending, Event::Ready(rank));
            }
        }
    }

    /// The rank waits for all others; the last one releases them.
    fn meet(&mut self, now_ps: u64, rank: u32, bytes: u64) {
        self.at_barrier.push(rank);
        if (self.at_barrier.len() as u32) < self.running {
            return;
        }
        let cost_ps = self.collective_ps(bytes);
        for rank in std::mem::take(&mut self.at_barrier) {
            self.queue.push(now_ps.saturating_add(cost_ps), self.node_of(rank), Event::Ready(rank));
        }
    }

    /// A barrier is a dissemination of ⌈log₂ p⌉ rounds; a reduction is Rabenseifner's, twice as
    /// many rounds and twice the bytes but for a rank's own part. LogGP gives the cost of a round.
    fn collective_ps(&self, bytes: u64) -> u64 {
        let ranks = self.ranks.len() as u64;
        let rounds = u64::from(ranks.next_power_of_two().trailing_zeros());
        let network = &self.cluster.network;
        let round_ps = ps((network.latency_us + 2.0 * network.overhead_us) * 1e-6);
        if bytes == 0 {
            return rounds * round_ps;
        }
        let moved = 2 * bytes - 2 * bytes / ranks.max(1);
        let moving_ps = Rate::per_second(network.interface_bytes_per_s).time_ps(moved);
        (2 * rounds * round_ps).saturating_add(moving_ps)
    }

    fn outcome(self, ran: Ran) -> Outcome {
        let job = self.job;
        let nodes = f64::from(job.nodes);
        let workers = f64::from(self.cluster.daemon.workers);
        let mut phases = self.phases;
        if !self.program.ranges.is_empty() {
            // A log has a phase for each kind of operation, whether it happened or not.
            phases.retain(|phase| phase.times.count() > 0);
        }
        for phase in &mut phases {
            phase.first_ps = phase.first_ps.min(phase.last_ps);
        }
        let stretch = |rank: u32| self.disks.stretch(rank / job.ranks_per_node);
        Outcome {
            bytes: self.bytes,
            metadata_ops: self.metadata_ops,
            ideal_bytes_per_s: ideal(job, self.program),
            retries: self.retries,
            unfinished: self.started - self.ends.count(),
            phases,
            busy: vec![
                ("disk", self.disk_busy, nodes),
                ("daemon", self.daemons.into_busy(), nodes * workers),
                ("shared store", self.shared_busy, 0.0),
            ],
            ..Outcome::of(job, ran, self.ends, stretch).over(&self.network)
        }
    }
}

/// Bytes per second if the disks alone took time: all bytes, wherever they go, over the time of
/// those that go to disks.
fn ideal(job: &Job, program: &Program) -> f64 {
    if !program.ranges.is_empty() {
        // Ranks differ, and wait between their operations: their disks are no bound.
        return 0.0;
    }
    let disk = &job.cluster.disk;
    let mut times_s = vec![0.0];
    for step in &program.steps {
        let before_s = times_s[times_s.len() - 1];
        times_s.push(match step.op {
            Op::Write(bytes, At::Local) => before_s + bytes as f64 / disk.write_bytes_per_s,
            Op::Read(_, At::Shared | At::Cached) => before_s,
            Op::Read(bytes, _) => before_s + bytes as f64 / disk.read_bytes_per_s,
            Op::Repeat { back, times, .. } => {
                before_s + (before_s - times_s[back as usize]) * f64::from(times - 1)
            }
            _ => before_s,
        });
    }
    let (bytes, time_s) = (program.totals().1 as f64, times_s[times_s.len() - 1]);
    if time_s > 0.0 { bytes / time_s * f64::from(job.nodes) } else { 0.0 }
}

#[cfg(test)]
mod tests;
