//! Push while simulating: each node runs a simulation that hands frames to the shipped writer
//! (`zazen-push`), which decides where each goes. The nodes' daemons store them, evict what an
//! earlier job left, refuse them when they are full, or do not answer.
//!
//! The writers are the product's own state machines, one for each node, to millions of them, and so
//! is what admits and evicts (`cache.rs`). Only what they talk to is simulated.

use crate::cache::Caches;
use crate::daemon::{Daemons, Turn};
use crate::disk::Disks;
use crate::engine::{Control, Events, Happening, Ran, drive};
use crate::job::Job;
use crate::measure::{Ends, Histogram, Timeline};
use crate::network::{Network, Sending, Step};
use crate::outcome::{Outcome, Phase};
use crate::queue::Queue;
use crate::random::{Random, Stream};
use crate::slots::Slots;
use crate::time::{Rate, ps};
use crate::topology::Topology;
use crate::trace::Trace;
use crate::work::Push;
use std::sync::Arc;
use zazen_core::{FrameNo, Result};
use zazen_push::{Action, Config, Counters, Event as Input, Fate, OnSlow, Writer};

/// What a writer takes, with a frame in flight: measured with the shipped `Writer`, rounded up.
pub const WRITER_BYTES: u64 = 1400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The node's simulation has a frame.
    Produce(u32),
    /// The frame reached the daemon.
    Arrive(u32),
    /// The daemon has dealt with it, where daemons share their workers.
    Served(u32),
    /// The daemon has stored it.
    Stored(u32),
    /// The answer reached the writer.
    Answer(u32),
    /// No answer came in time.
    Silence(u32),
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
            Event::Produce(node) => (16, node),
            Event::Arrive(flight) => (17, flight),
            Event::Served(flight) => (22, flight),
            Event::Stored(flight) => (18, flight),
            Event::Answer(flight) => (19, flight),
            Event::Silence(flight) => (20, flight),
            Event::Network(step) => return step.code(),
            Event::Turn(Turn(node)) => (21, node),
        };
        kind << 32 | u64::from(number)
    }
}

/// A frame on its way.
#[derive(Clone, Copy)]
struct Flight {
    writer: u32,
    frame: FrameNo,
    node: u32,
    is_full: bool,
}

struct World<'a> {
    plan: &'a Push,
    job: &'a Job,
    random: Random,
    queue: Queue<Event>,
    network: Network<Event>,
    disks: Disks,
    daemons: Daemons<Event>,
    writers: Vec<Writer>,
    made: Vec<u32>,
    caches: Caches,
    is_dead: Vec<bool>,
    flights: Slots<Flight>,
    actions: Vec<Action>,
    times: Histogram,
    ends: Ends,
    disk_busy: Timeline,
    stored_bytes: u64,
    decisions: Trace,
    last_ps: u64,
    settled: u64,
}

/// Runs a pushing job. As [`crate::world::run`].
pub fn run(job: &Job, plan: &Push, topology: Topology, control: Control<'_>) -> Result<Option<Outcome>> {
    let nodes = job.nodes;
    let random = Random::new(job.seed);
    let cluster = &job.cluster;
    let config = Arc::new(Config {
        nodes: nodes as usize,
        window_frames: plan.window_frames,
        window_bytes: plan.frame_bytes.saturating_mul(plan.window_frames as u64),
        on_slow: OnSlow::Skip,
        retries: plan.retries,
        backoff_min_ns: 1_000_000_000,
        backoff_max_ns: 60_000_000_000,
        pass_over_after: 0,
    });
    let seed = |node| random.bits(node, Stream::Workload, 0);
    let dead = cluster.failures.dead_fraction;
    let mut world = World {
        plan,
        job,
        random,
        queue: Queue::new(),
        network: Network::new(job.fidelity, topology, nodes, cluster.network_costs()),
        disks: Disks::new(nodes, cluster.disk_costs(), crate::speeds::stretches(cluster, nodes, random)),
        daemons: Daemons::new(nodes, cluster.daemon.workers, cluster.daemon.discipline),
        writers: (0..nodes).map(|node| Writer::new(config.clone(), seed(node))).collect(),
        made: vec![0; nodes as usize],
        caches: Caches::new(nodes, plan.budget_bytes, plan.old_bytes),
        is_dead: (0..nodes).map(|node| random.uniform(node, Stream::Failure, 0) < dead).collect(),
        flights: Slots::default(),
        actions: Vec::new(),
        times: Histogram::new(),
        ends: Ends::default(),
        disk_busy: Timeline::new(),
        stored_bytes: 0,
        decisions: Trace::default(),
        last_ps: 0,
        settled: 0,
    };
    for node in 0..nodes {
        // Simulations do not begin in step.
        let offset_us = plan.interval_us * random.uniform(node, Stream::Workload, 1);
        world.queue.push(ps(offset_us * 1e-6), node, Event::Produce(node));
    }
    let all = u64::from(nodes) * u64::from(plan.frames);
    let ran = drive(&mut world, all, control)?;
    Ok(ran.map(|ran| world.outcome(ran)))
}

impl Events for World<'_> {
    type Event = Event;

    fn queue(&mut self) -> &mut Queue<Event> {
        &mut self.queue
    }

    fn steps(&self) -> u64 {
        self.settled
    }

    fn handle(&mut self, now_ps: u64, _: u32, event: Event) -> Result<()> {
        match event {
            Event::Network(step) => self.network.step(&mut self.queue, now_ps, step),
            Event::Turn(turn) => self.daemons.turn(&mut self.queue, now_ps, turn),
            Event::Produce(node) => {
                let made = &mut self.made[node as usize];
                let number = u64::from(*made);
                *made += 1;
                if *made < self.plan.frames {
                    let next_ps = now_ps + ps(self.plan.interval_us * 1e-6);
                    self.queue.push(next_ps, node, Event::Produce(node));
                }
                // The number is far below the limit of frame numbers: `made` is a u32.
                let Ok(frame) = FrameNo::new(number) else { return Ok(()) };
                self.step(now_ps, node, Input::Submit { frame, bytes: self.plan.frame_bytes });
            }
            Event::Arrive(number) => self.arrive(now_ps, number),
            Event::Served(number) => self.store(now_ps, number),
            Event::Stored(number) => self.reply(now_ps, number),
            Event::Answer(number) => {
                let flight = *self.flights.give_up(number);
                let (frame, node) = (flight.frame, flight.node as usize);
                let input = match flight.is_full {
                    true => Input::Full { frame, node },
                    false => Input::Acknowledged { frame, node, already: false },
                };
                self.step(now_ps, flight.writer, input);
            }
            Event::Silence(number) => {
                let flight = *self.flights.give_up(number);
                let input = Input::Failed { frame: flight.frame, node: flight.node as usize };
                self.step(now_ps, flight.writer, input);
            }
        }
        Ok(())
    }
}

impl World<'_> {
    /// Gives the shipped writer an event, and does what it decides.
    fn step(&mut self, now_ps: u64, writer: u32, input: Input) {
        let mut actions = std::mem::take(&mut self.actions);
        self.writers[writer as usize].step(now_ps / 1000, input, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send { frame, node } => {
                    self.decisions.word(u64::from(writer) << 32 | node as u64);
                    self.decisions.word(frame.get());
                    self.send(now_ps, writer, frame, node as u32);
                }
                Action::Accept { .. } => {}
                Action::Done { frame, fate } => {
                    self.decisions.word(frame.get() ^ (fate as u64) << 56);
                    self.settled += 1;
                    self.last_ps = self.last_ps.max(now_ps);
                    if fate == Fate::Pushed {
                        let begun_us = self.random.uniform(writer, Stream::Workload, 1) + frame.get() as f64;
                        let begun_ps = ps(begun_us * self.plan.interval_us * 1e-6);
                        self.times.add(now_ps.saturating_sub(begun_ps));
                    }
                    if frame.get() + 1 == u64::from(self.plan.frames) {
                        self.ends.add(now_ps, writer);
                    }
                }
            }
        }
        self.actions = actions;
    }

    fn send(&mut self, now_ps: u64, writer: u32, frame: FrameNo, node: u32) {
        let flight = Flight { writer, frame, node, is_full: false };
        let number = self.flights.put(flight);
        let bytes = self.plan.frame_bytes + self.job.cluster.daemon.request_bytes;
        let sending = Sending { now: now_ps, from: writer, to: node, bytes };
        self.network.bring(&mut self.queue, sending, Event::Arrive(number));
    }

    fn arrive(&mut self, now_ps: u64, number: u32) {
        let flight = self.flights[number];
        let node = flight.node;
        if self.is_dead[node as usize] {
            let timeout_ps = ps(self.job.cluster.failures.timeout_ms * 1e-3);
            self.queue.push(now_ps + timeout_ps, flight.writer, Event::Silence(number));
            return;
        }
        let service = &self.job.cluster.daemon.insert_us;
        let counter = u64::from(flight.writer) << 32 | flight.frame.get();
        let service_ps = service.draw_ps(self.random, node, Stream::Service, counter);
        let done = Event::Served(number);
        if let Some(served_ps) = self.daemons.serve(&mut self.queue, now_ps, node, service_ps, done) {
            self.store(served_ps, number);
        }
    }

    /// The daemon stores a frame, or has no room for it.
    fn store(&mut self, served_ps: u64, number: u32) {
        let node = self.flights[number].node;
        if !self.caches.put(node, self.plan.frame_bytes) {
            self.flights[number].is_full = true;
            self.queue.push(served_ps, node, Event::Stored(number));
            return;
        }
        self.stored_bytes += self.plan.frame_bytes;
        let done_ps = self.disks.write(served_ps, node, self.plan.frame_bytes, Rate::INFINITE, 1.0);
        self.disk_busy.add(served_ps, done_ps);
        self.queue.push(done_ps, node, Event::Stored(number));
    }

    fn reply(&mut self, now_ps: u64, number: u32) {
        let flight = self.flights[number];
        let bytes = self.job.cluster.daemon.reply_bytes;
        let sending = Sending { now: now_ps, from: flight.node, to: flight.writer, bytes };
        self.network.bring(&mut self.queue, sending, Event::Answer(number));
    }

    fn outcome(self, ran: Ran) -> Outcome {
        let job = self.job;
        let mut total = Counters::default();
        for counters in self.writers.iter().map(Writer::counters) {
            total.submitted += counters.submitted;
            total.pushed += counters.pushed;
            total.skipped_slow += counters.skipped_slow;
            total.skipped_no_node += counters.skipped_no_node;
            total.refused += counters.refused;
            total.resent += counters.resent;
            total.node_deaths += counters.node_deaths;
            total.bytes_pushed += counters.bytes_pushed;
        }
        let extra = [
            ("frames", total.submitted as f64),
            ("pushed", total.pushed as f64),
            ("skipped_slow", total.skipped_slow as f64),
            ("skipped_no_node", total.skipped_no_node as f64),
            ("resent", total.resent as f64),
            ("node_deaths", total.node_deaths as f64),
            ("stored_bytes", self.stored_bytes as f64),
            ("evictions", self.caches.evicted().0 as f64),
            ("evicted_bytes", self.caches.evicted().1 as f64),
            ("cache_decision_hash", (self.caches.decisions() >> 16) as f64),
            // 48 bits: a number that holds it exactly.
            ("decision_hash", (self.decisions.digest() >> 16) as f64),
        ];
        let phase = Phase {
            name: "push".to_owned(),
            is_metadata: false,
            bytes: total.bytes_pushed,
            first_ps: 0,
            last_ps: self.last_ps,
            times: self.times,
        };
        Outcome {
            ranks: job.nodes,
            makespan_ps: self.last_ps,
            bytes: total.bytes_pushed,
            retries: total.resent,
            unfinished: self.writers.iter().filter(|writer| writer.in_flight() > 0).count() as u32,
            phases: vec![phase],
            busy: vec![("disk", self.disk_busy, f64::from(job.nodes))],
            extra: extra.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Outcome::of(job, ran, self.ends, |node| self.disks.stretch(node)).over(&self.network)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::daemon::Discipline;
    use crate::network::Fidelity;
    use crate::work::Work;
    use std::ops::ControlFlow;

    fn job(nodes: u32, plan: Push) -> Job {
        Job {
            name: "push".to_owned(),
            nodes,
            ranks_per_node: 1,
            network: "torus".to_owned(),
            fidelity: Fidelity::Path,
            seed: 4,
            cluster: Cluster::commodity(),
            work: Work::Push(plan),
        }
    }

    fn plan() -> Push {
        Push {
            frames: 10,
            frame_bytes: 4_000_000,
            interval_us: 1e5,
            window_frames: 4,
            retries: 3,
            budget_bytes: u64::MAX / 2,
            old_bytes: 0,
        }
    }

    fn outcome(job: &Job) -> Outcome {
        crate::world::run(job, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
    }

    fn extra(outcome: &Outcome, name: &str) -> u64 {
        outcome.extra.iter().find(|extra| extra.0 == name).unwrap().1 as u64
    }

    /// Every frame has one fate, and every byte that a writer counts as pushed lies on a disk.
    #[test]
    fn frames_and_bytes_are_conserved() {
        for fidelity in Fidelity::ALL {
            let found = outcome(&Job { fidelity, ..job(64, plan()) });
            assert_eq!((extra(&found, "frames"), extra(&found, "pushed")), (640, 640));
            assert_eq!((found.bytes, extra(&found, "stored_bytes")), (640 * 4_000_000, 640 * 4_000_000));
            assert_eq!(found.unfinished, 0);
            let mut shared = Job { fidelity, ..job(64, plan()) };
            shared.cluster.daemon.discipline = Discipline::Sharing;
            let found = outcome(&shared);
            assert_eq!((found.bytes, extra(&found, "stored_bytes")), (640 * 4_000_000, 640 * 4_000_000));
        }
    }

    /// The writers deal out in turns, from a start of their own: no node gets much more than
    /// another. A tenth of the nodes is dead: their frames go elsewhere.
    #[test]
    fn frames_of_dead_nodes_go_elsewhere() {
        let mut job = job(200, plan());
        job.cluster.failures.dead_fraction = 0.1;
        job.cluster.failures.timeout_ms = 5.0;
        let found = outcome(&job);
        assert_eq!(extra(&found, "pushed"), 2_000);
        assert!(extra(&found, "resent") > 100 && extra(&found, "node_deaths") > 100);
    }

    /// Caches with room for half of the frames: those are stored, and the rest is given up.
    #[test]
    fn full_caches_are_filled_and_no_more() {
        let budget_bytes = 5 * 4_000_000 + (64 << 10);
        let found = outcome(&job(50, Push { budget_bytes, ..plan() }));
        let (pushed, skipped) = (extra(&found, "pushed"), extra(&found, "skipped_no_node"));
        assert_eq!(pushed + skipped + extra(&found, "skipped_slow"), 500);
        assert!((200..=250).contains(&pushed), "{pushed}");
        assert_eq!(found.bytes, pushed * 4_000_000);
    }

    /// Caches that an earlier job has filled: its datasets go, and every frame is stored.
    #[test]
    fn what_an_earlier_job_left_makes_room() {
        let budget_bytes = 40 * 4_000_000;
        let found = outcome(&job(50, Push { budget_bytes, old_bytes: budget_bytes, ..plan() }));
        assert_eq!((extra(&found, "pushed"), extra(&found, "evictions")), (500, 50));
        assert_eq!(extra(&found, "evicted_bytes"), 50 * budget_bytes);
    }

    /// Links slower than the simulation: the window fills, and the writer skips frames rather than
    /// wait.
    #[test]
    fn a_slow_network_costs_frames_and_never_time() {
        let mut job = job(8, plan());
        job.cluster.network.interface_bytes_per_s = 20e6;
        let found = outcome(&job);
        assert!(extra(&found, "skipped_slow") > 8, "{}", extra(&found, "skipped_slow"));
        assert_eq!(extra(&found, "frames"), 80);
    }

    /// The decisions do not depend on anything but job and seed.
    #[test]
    fn decisions_repeat() {
        let one = job(100, plan());
        let hash = |job: &Job| extra(&outcome(job), "decision_hash");
        assert_eq!(hash(&one), hash(&one));
        assert_ne!(hash(&one), hash(&Job { seed: 5, ..one.clone() }));
    }
}
