//! Analysis over caches that lack some frames: the product's own machines bring these from the
//! shared store while each rank reads what its cache has.
//!
//! `zazen_frames::misses` says which frame a scan's workers bring next and how far ahead of the
//! reader, and `zazen_frames::flight` who copies it and how many copies a user makes at a time.
//! Only the store and the disks are simulated. As in the product, a scan hands out cached frames
//! first, then misses as they arrive. Frames of dead nodes are dealt out to the living as misses.

use crate::disk::Disks;
use crate::engine::{Control, Events, Happening, Ran, drive};
use crate::job::Job;
use crate::measure::{Ends, Histogram, Timeline};
use crate::outcome::{Outcome, Phase};
use crate::queue::Queue;
use crate::random::{Random, Stream};
use crate::shared_store::SharedStore;
use crate::time::{Rate, ps};
use crate::topology::Topology;
use crate::trace::Trace;
use crate::work::Fetching;
use std::collections::VecDeque;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_frames::flight::{self, Flights, Ticket};
use zazen_frames::misses::{self, Brought, Misses, Take, Wanted};

/// What a rank takes: its scan, its flights and their maps. Rounded up.
pub const RANK_BYTES: u64 = 2048;

/// All ranks are one user's.
const USER: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The rank has read its frame and computed.
    Ready(u32),
    /// The store has given the rank's frame.
    Loaded(u32, u32),
    /// The frame is on the rank's disk.
    Stored(u32, u32),
    /// A resting worker of the rank looks again.
    Look(u32),
}

impl Happening for Event {
    fn code(self) -> u64 {
        let (kind, rank, frame) = match self {
            Event::Ready(rank) => (32, rank, 0),
            Event::Loaded(rank, frame) => (33, rank, frame),
            Event::Stored(rank, frame) => (34, rank, frame),
            Event::Look(rank) => (35, rank, 0),
        };
        (kind << 32 | u64::from(rank)) ^ u64::from(frame) << 40
    }
}

/// A rank and its scan.
struct Rank {
    misses: Misses<()>,
    /// Frames of its cache that it has not read.
    hits: u32,
    read: u32,
    /// Workers that rest until they are woken.
    resting: u32,
    is_waiting: bool,
    began_ps: u64,
}

struct World<'a> {
    plan: &'a Fetching,
    job: &'a Job,
    queue: Queue<Event>,
    disks: Disks,
    store: SharedStore,
    ranks: Vec<Option<Rank>>,
    /// By node: what its daemon copies.
    flights: Vec<Flights<u64, u32>>,
    reads: Histogram,
    waits: Histogram,
    ends: Ends,
    disk_busy: Timeline,
    store_busy: Timeline,
    decisions: Trace,
    fetched: u64,
    read: u64,
}

/// Runs an analysis. As [`crate::world::run`].
pub fn run(job: &Job, plan: &Fetching, topology: &Topology, control: Control<'_>) -> Result<Option<Outcome>> {
    let (random, cluster) = (Random::new(job.seed), &job.cluster);
    let count = job.ranks() as u32;
    let dead = cluster.failures.dead_fraction;
    let is_dead = |rank: u32| random.uniform(rank / job.ranks_per_node, Stream::Failure, 0) < dead;
    let living: Vec<u32> = (0..count).filter(|rank| !is_dead(*rank)).collect();
    if living.is_empty() {
        let why = format!("all {} nodes are dead from the beginning: seed {}", job.nodes, job.seed);
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    // Frames of the dead, in blocks.
    let orphans = (u64::from(count) - living.len() as u64) * u64::from(plan.frames);
    let share = |at: usize| {
        orphans * (at as u64 + 1) / living.len() as u64 - orphans * at as u64 / living.len() as u64
    };
    let mut ranks: Vec<Option<Rank>> = (0..count).map(|_| None).collect();
    for (at, rank) in living.iter().enumerate() {
        let lacks = |frame: &u32| random.uniform(*rank, Stream::Workload, u64::from(*frame)) < plan.missing;
        let own = (0..plan.frames).filter(lacks).map(u64::from);
        let all: Vec<u64> = own.chain((0..share(at)).map(|more| u64::from(plan.frames) + more)).collect();
        let lost = all.iter().filter(|number| **number < u64::from(plan.frames)).count() as u32;
        ranks[*rank as usize] = Some(Rank {
            misses: Misses::new(RunSet::from_ascending(all), plan.fetchers),
            hits: plan.frames - lost,
            read: 0,
            resting: 0,
            is_waiting: false,
            began_ps: 0,
        });
    }
    let mut world = World {
        plan,
        job,
        queue: Queue::new(),
        disks: Disks::new(
            job.nodes,
            cluster.disk_costs(),
            crate::speeds::stretches(cluster, job.nodes, random),
        ),
        store: SharedStore::new(job.nodes, cluster.shared_costs()),
        ranks,
        flights: (0..job.nodes).map(|_| Flights::new(plan.fetchers)).collect(),
        reads: Histogram::new(),
        waits: Histogram::new(),
        ends: Ends::default(),
        disk_busy: Timeline::new(),
        store_busy: Timeline::new(),
        decisions: Trace::default(),
        fetched: 0,
        read: 0,
    };
    for rank in &living {
        world.scan(0, *rank, misses::Event::Begin);
        world.next(0, *rank);
    }
    let all = u64::from(count) * u64::from(plan.frames);
    let ran = drive(&mut world, all, control)?;
    Ok(ran.map(|ran| world.outcome(ran, topology.name(), living.len() as u32)))
}

impl Events for World<'_> {
    type Event = Event;

    fn queue(&mut self) -> &mut Queue<Event> {
        &mut self.queue
    }

    fn steps(&self) -> u64 {
        self.read
    }

    fn handle(&mut self, now_ps: u64, _: u32, event: Event) -> Result<()> {
        match event {
            Event::Ready(rank) => {
                if let Some(row) = &mut self.ranks[rank as usize] {
                    row.read += 1;
                    self.read += 1;
                    self.reads.add(now_ps - row.began_ps);
                }
                self.next(now_ps, rank);
            }
            Event::Loaded(rank, frame) => {
                // The copy goes to the page cache, and to the disk in the background.
                let node = self.node_of(rank);
                let done = self.disks.write(now_ps, node, self.plan.frame_bytes, Rate::INFINITE, 1.0);
                self.disk_busy.add(now_ps, done);
                self.queue.push(done, node, Event::Stored(rank, frame));
            }
            Event::Stored(rank, frame) => {
                self.fetched += 1;
                let ticket = Ticket(u64::from(rank) << 32 | u64::from(frame));
                let result = Ok(flight::Outcome::Stored(self.plan.frame_bytes));
                self.fly(now_ps, self.node_of(rank), flight::Event::Landed { ticket, result });
                let brought = Brought { number: u64::from(frame), inline_bytes: 0, what: () };
                self.scan(now_ps, rank, misses::Event::Brought(brought));
                self.scan(now_ps, rank, misses::Event::Idle);
            }
            Event::Look(rank) => self.scan(now_ps, rank, misses::Event::Idle),
        }
        Ok(())
    }
}

impl World<'_> {
    fn node_of(&self, rank: u32) -> u32 {
        rank / self.job.ranks_per_node
    }

    /// Gives a rank's scan an event, and does what it decides.
    fn scan(&mut self, now_ps: u64, rank: u32, event: misses::Event<()>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(row) = &mut self.ranks[rank as usize] else { return };
            let mut actions = Vec::new();
            row.misses.step(now_ps / 1000, event, &mut actions);
            for action in actions {
                match action {
                    misses::Action::Hire { .. } => {
                        events.extend([misses::Event::Hired, misses::Event::Idle]);
                    }
                    misses::Action::Bring { wanted, .. } => self.bring(now_ps, rank, wanted),
                    misses::Action::Rest { until_ns: Some(until_ns) } => {
                        let node = self.node_of(rank);
                        self.queue.push(until_ns * 1000, node, Event::Look(rank));
                    }
                    misses::Action::Rest { until_ns: None } => {
                        if let Some(row) = &mut self.ranks[rank as usize] {
                            row.resting += 1;
                        }
                    }
                    misses::Action::Wake => events.extend(self.wake(now_ps, rank)),
                    // Each worker that is asked for is hired, so no scan is ever abandoned.
                    misses::Action::Leave | misses::Action::Abandon => {}
                }
            }
        }
    }

    /// Resting workers look again, and so does a reader that waits, once what happens now is over.
    fn wake(&mut self, now_ps: u64, rank: u32) -> Vec<misses::Event<()>> {
        let node = self.node_of(rank);
        let Some(row) = &mut self.ranks[rank as usize] else { return Vec::new() };
        if std::mem::take(&mut row.is_waiting) {
            self.waits.add(now_ps - row.began_ps);
            let taken = row.misses.take(1);
            self.took(now_ps, node, rank, &taken);
        }
        let Some(row) = &mut self.ranks[rank as usize] else { return Vec::new() };
        (0..std::mem::take(&mut row.resting)).map(|_| misses::Event::Idle).collect()
    }

    fn bring(&mut self, now_ps: u64, rank: u32, wanted: Wanted) {
        // Ranks read frames of their own.
        let key = u64::from(rank) << 32 | wanted.number;
        self.decisions.word(key);
        let want = flight::Event::Want { ticket: Ticket(key), key, who: USER };
        self.fly(now_ps, self.node_of(rank), want);
    }

    /// Gives a node's flights an event, and does what they decide.
    fn fly(&mut self, now_ps: u64, node: u32, event: flight::Event<u64, u32>) {
        let mut actions = Vec::new();
        self.flights[node as usize].step(now_ps / 1000, event, &mut actions);
        for action in actions {
            // Nobody joins another one's flight, because nobody wants another one's frame.
            if let flight::Action::Lead { ticket } = action {
                self.decisions.word(1 << 63 | ticket.0);
                let done = self.store.transfer(now_ps, node, self.plan.frame_bytes);
                self.store_busy.add(now_ps, done);
                let (rank, frame) = ((ticket.0 >> 32) as u32, ticket.0 as u32);
                self.queue.push(done, node, Event::Loaded(rank, frame));
            }
        }
    }

    /// The rank reads its next frame: what its cache has, then what has arrived.
    fn next(&mut self, now_ps: u64, rank: u32) {
        let node = self.node_of(rank);
        let Some(row) = &mut self.ranks[rank as usize] else { return };
        row.began_ps = now_ps;
        if row.hits > 0 {
            row.hits -= 1;
            let bytes = self.plan.frame_bytes;
            let done = self.disks.read(now_ps, node, bytes, Rate::INFINITE, 1.0);
            self.disk_busy.add(now_ps, done);
            return self.compute(done, node, rank);
        }
        let taken = row.misses.take(1);
        self.took(now_ps, node, rank, &taken);
        if matches!(taken, Take::Frames(_)) {
            let resting =
                self.ranks[rank as usize].as_mut().map_or(0, |row| std::mem::take(&mut row.resting));
            (0..resting).for_each(|_| self.scan(now_ps, rank, misses::Event::Idle));
        }
    }

    fn took(&mut self, now_ps: u64, node: u32, rank: u32, taken: &Take<()>) {
        let Some(row) = &mut self.ranks[rank as usize] else { return };
        match taken {
            // A frame that has just arrived is in the page cache.
            Take::Frames(_) => {
                let done = self.disks.read_cached(now_ps, self.plan.frame_bytes, Rate::INFINITE);
                self.compute(done, node, rank);
            }
            Take::Wait => row.is_waiting = true,
            Take::End => self.ends.add(now_ps, rank),
        }
    }

    fn compute(&mut self, read_ps: u64, node: u32, rank: u32) {
        self.queue.push(read_ps.saturating_add(ps(self.plan.compute_us * 1e-6)), node, Event::Ready(rank));
    }

    fn outcome(self, ran: Ran, network: String, living: u32) -> Outcome {
        let job = self.job;
        let bytes = self.read * self.plan.frame_bytes;
        let phase = |name: &str, bytes, times| Phase {
            name: name.to_owned(),
            is_metadata: false,
            bytes,
            first_ps: 0,
            last_ps: self.ends.times.max(),
            times,
        };
        let extra = [
            ("frames", self.read as f64),
            ("fetched", self.fetched as f64),
            ("decision_hash", (self.decisions.digest() >> 16) as f64),
        ];
        let stretch = |rank: u32| self.disks.stretch(rank / job.ranks_per_node);
        Outcome {
            network,
            bytes,
            unfinished: living - self.ends.count(),
            phases: vec![phase("read", bytes, self.reads), phase("wait", 0, self.waits)],
            busy: vec![
                ("disk", self.disk_busy, f64::from(job.nodes)),
                ("shared store", self.store_busy, 0.0),
            ],
            extra: extra.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Outcome::of(job, ran, self.ends, stretch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::network::Fidelity;
    use crate::time::seconds;
    use crate::work::Work;
    use std::ops::ControlFlow;

    const MB: u64 = 1_000_000;

    /// 16 nodes with disks of 100 MB/s and a store of 160 MB/s; computing takes no time.
    fn job(missing: f64) -> Job {
        let mut cluster = Cluster::commodity();
        cluster.disk = crate::cluster::Disk {
            read_bytes_per_s: 100e6,
            write_bytes_per_s: 1e12,
            latency_us: 0.0,
            memory_bytes_per_s: 1e13,
            ..Default::default()
        };
        cluster.shared.bytes_per_s = 160e6;
        cluster.shared.latency_us = 0.0;
        let plan = Fetching { frames: 200, frame_bytes: 10 * MB, missing, fetchers: 8, compute_us: 0.0 };
        Job {
            name: "analysis-fetch".to_owned(),
            nodes: 16,
            ranks_per_node: 1,
            network: "star".to_owned(),
            fidelity: Fidelity::Path,
            seed: 5,
            cluster,
            work: Work::Fetching(plan),
        }
    }

    fn outcome(job: &Job) -> Outcome {
        crate::run(job, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
    }

    fn extra(outcome: &Outcome, name: &str) -> f64 {
        outcome.extra.iter().find(|(known, _)| known == name).unwrap().1
    }

    #[test]
    fn a_full_cache_is_read_at_the_disks_speed() {
        let found = outcome(&job(0.0));
        assert!((seconds(found.makespan_ps) - 20.0).abs() < 0.01);
        assert_eq!((found.bytes, found.unfinished, extra(&found, "fetched")), (16 * 2_000 * MB, 0, 0.0));
    }

    /// The store brings misses while hits are read: the longer of the two decides, up to the little
    /// that the read-ahead of 64 frames holds back.
    #[test]
    fn misses_overlap_with_hits() {
        for missing in [0.05, 0.3, 0.8] {
            let found = outcome(&job(missing));
            let fetched = extra(&found, "fetched");
            assert_eq!((found.bytes, found.unfinished), (16 * 2_000 * MB, 0));
            assert!((fetched / 3200.0 / missing - 1.0).abs() < 0.15, "{missing}: {fetched}");
            let store_s = fetched * 10e6 / 160e6;
            let disk_s = 20.0 * (1.0 - missing);
            let longer = store_s.max(disk_s);
            let found_s = seconds(found.makespan_ps);
            assert!(
                found_s > longer * 0.97 && found_s < longer * 1.15,
                "{missing}: {found_s} s, not {longer}"
            );
        }
    }

    /// What dead nodes held is read by the living: no frame is lost, none is read twice.
    #[test]
    fn frames_of_dead_nodes_are_fetched_by_the_living() {
        let mut job = job(0.0);
        job.cluster.failures.dead_fraction = 0.2;
        let found = outcome(&job);
        let living = found.ends.count();
        assert!((8..16).contains(&living), "{living}");
        assert_eq!(found.bytes, 16 * 2_000 * MB);
        assert_eq!(extra(&found, "fetched"), (16 - living) as f64 * 200.0);
    }

    #[test]
    fn decisions_repeat_and_follow_the_seed() {
        let mut one = job(0.1);
        let first = outcome(&one);
        assert_eq!(extra(&outcome(&one), "decision_hash"), extra(&first, "decision_hash"));
        assert_eq!(outcome(&one).trace_hash, first.trace_hash);
        one.seed = 6;
        assert_ne!(outcome(&one).trace_hash, first.trace_hash);
    }
}
