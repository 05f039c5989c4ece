//! Runs a seed: everything that happens, one event at a time, and what must hold after it.

use crate::backing::Backing;
use crate::calls;
use crate::checks::Checks;
use crate::content::{self, FrameId};
use crate::disk::NodeStore;
use crate::mutant::Mutant;
use crate::net::{Caller, Net};
use crate::node::{Node, Skewed};
use crate::profile::Profile;
use crate::scheduler::{Scheduler, Trace};
use crate::world::{Event, Holdings, MS, World};
use crate::writer::WriterSim;
use zazen_core::Result;
use zazen_env::SeededRandom;

/// Events in a run at most; a run that needs more does not end.
const EVENTS_MAX: u64 = 300_000;
/// After the faults have ended, everything must be done within this time.
const CALM_MAX_NS: u64 = 600_000 * MS;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Digest of everything that happened: equal for equal seeds.
    pub trace: u64,
    /// The first promise that was broken.
    pub violation: Option<String>,
    /// What happened, in numbers.
    pub stats: Stats,
}

/// A run in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Frames that nodes acknowledged to writers.
    pub pushed: u64,
    /// Frames that ranks read.
    pub read: u64,
    /// Messages that met a fault of the network.
    pub net_faults: u64,
    /// Ends of daemons: kills, power failures, stops.
    pub ends: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
}

/// Runs one seed, with a planted bug or without.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    tell(seed, mutant, false).0
}

/// As [`run`]; if `in_words` also what happened, in lines for a person.
pub fn tell(seed: u64, mutant: Option<Mutant>, in_words: bool) -> (Outcome, Vec<String>) {
    let mut world = World::new(seed, mutant);
    world.story = in_words.then(|| vec![format!("{:?}", world.profile)]);
    let mut stats = Stats::default();
    while let Some(event) = world.schedule.pop() {
        stats.events += 1;
        stats.ends += u64::from(matches!(event, Event::Start { .. }));
        let late = world.calm && world.schedule.now_ns() > world.profile.calm_ns + CALM_MAX_NS;
        if stats.events > EVENTS_MAX || late {
            world.checks.fail("no progress: the run does not end though the faults have");
        }
        if world.checks.has_failed() {
            break;
        }
        world.happen(event);
    }
    world.judge_end();
    for node in &world.nodes {
        world.trace.word(node.disk.trace());
    }
    stats.ends -= stats.ends.min(world.nodes.len() as u64);
    stats.pushed = world.checks.pushed;
    stats.read = world.checks.delivered;
    stats.net_faults = world.net.faults;
    stats.virtual_ms = world.schedule.now_ns() / MS;
    let story = world.story.unwrap_or_default();
    (Outcome { trace: world.trace.digest(), violation: world.checks.into_violation(), stats }, story)
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> World {
        let mut random = SeededRandom::new(seed);
        let profile = Profile::of(&mut random);
        let node = |random: &mut SeededRandom| {
            let time = Skewed::new(random.below(profile.skew_ns + 1), random.below(2_001) as i64 - 1_000);
            Node::new(random.next_u64(), profile.budget, time)
        };
        let nodes = (0..profile.nodes).map(|_| node(&mut random)).collect();
        let writers = (0..profile.writers).map(|at| WriterSim::new(at, &profile, &mut random)).collect();
        let mut world = World {
            schedule: Scheduler::new(),
            random,
            trace: Trace::default(),
            profile,
            mutant,
            net: Net::default(),
            nodes,
            backing: Backing::default(),
            writers,
            jobs: Vec::new(),
            checks: Checks::default(),
            scanned: Holdings::new(),
            calm: false,
            story: None,
        };
        for node in 0..profile.nodes {
            world.schedule.at(0, Event::Start { node });
        }
        for writer in 0..profile.writers {
            world.schedule.at(MS, Event::Produce { writer });
        }
        world.plan_jobs();
        world.plan_trouble();
        world.schedule.at(profile.calm_ns, Event::Calm);
        world
    }

    fn happen(&mut self, event: Event) {
        let now_ns = self.now_ns();
        self.trace.word(now_ns);
        self.nodes.iter().for_each(|node| node.time.set(now_ns));
        match event {
            Event::Arrive { conn, to_server, bytes } => {
                calls::note(&mut self.trace, conn, to_server, bytes.as_deref().unwrap_or(&[]));
                let Some((caller, node)) = self.net.get(conn).map(|conn| (conn.caller, conn.node)) else {
                    return;
                };
                match (to_server, bytes) {
                    (true, Some(bytes)) => self.daemon_receives(node, conn, &bytes),
                    (true, None) => self.daemon_loses(node, conn),
                    (false, bytes) => self.caller_receives(caller, conn, bytes),
                }
                if to_server {
                    self.check_node(node);
                }
            }
            Event::Task { node, incarnation, task } => {
                if self.nodes[node].incarnation == incarnation {
                    self.daemon_goes_on(node, task);
                    self.check_node(node);
                }
            }
            Event::Flush { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation
                    && let Some(held) = self.nodes[node].held.clone()
                {
                    held.flush();
                }
            }
            Event::Start { node } => self.start_daemon(node),
            Event::Produce { writer } => self.produce(writer),
            Event::Timeout { conn, call } => self.times_out(conn, call),
            Event::Begin { job } => self.begin_job(job),
            Event::Collective { job } => self.collective(job),
            Event::ReadSource { job, rank } => self.read_source(job, rank),
            Event::Rewrite(frame) => {
                let version = self.backing.write(frame, now_ns);
                self.checks.excuse_frame(frame);
                self.tell(|| format!("somebody: {frame} in version {version}"));
            }
            Event::Trouble(trouble) => {
                self.trouble(trouble);
                self.bury_the_dead();
            }
            Event::Calm => self.calm_down(),
        }
    }

    /// Ends the daemons whose disks died under what an administrator did to them.
    fn bury_the_dead(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].store.is_some() && self.nodes[node].disk.is_dead() {
                self.disk_died(node);
            }
        }
    }

    fn caller_receives(&mut self, caller: Caller, conn: u64, bytes: Option<Vec<u8>>) {
        if bytes.is_none() {
            self.net.close(conn);
        }
        match caller {
            Caller::Writer(writer) => self.writer_receives(writer, conn, bytes),
            Caller::Rank { job, rank } => self.rank_receives(job, rank, conn, bytes),
            Caller::Ghost => {}
        }
    }

    fn times_out(&mut self, conn: u64, call: u64) {
        let Some(caller) = self.net.get(conn).map(|conn| conn.caller) else { return };
        match caller {
            Caller::Writer(writer) => self.writer_waited(writer, conn, call),
            Caller::Rank { job, rank } => self.rank_waited(job, rank, conn, call),
            Caller::Ghost => {}
        }
    }

    /// What must hold of a node after each thing that it did.
    fn check_node(&mut self, at: usize) {
        let now_ns = self.now_ns();
        let node = &mut self.nodes[at];
        if node.disk.is_dead() {
            return self.disk_died(at);
        }
        let Some(store) = node.store.clone() else { return };
        let (space, on_disk) = (store.space(), node.disk.used_bytes());
        let budget = node.budget();
        // A dataset that a start could not read is left out, and counted once it is read again.
        if (space.used + space.reserved > budget || on_disk > budget) && !node.tainted {
            self.checks.fail(format!("budget: node {at} uses {on_disk} bytes of {budget}, {space:?}"));
        }
        let counters = store.counters();
        let count = |name: &str| counters.iter().find(|(of, _)| *of == name).map_or(0, |(_, count)| *count);
        let evicted = count("evicted_frames");
        if evicted != node.evicted {
            node.evicted = evicted;
            node.forgot_ns = now_ns;
            self.checks.excuse_node(at);
            self.check_scanned(at);
        }
        self.note_holdings(at);
    }

    /// Reads what a node must have after a start or at the end, and what it says it has.
    pub(crate) fn check_memory(&mut self, at: usize, when: &str) {
        let Some(store) = self.nodes[at].store.clone() else { return };
        if self.nodes[at].tainted {
            return;
        }
        let owed: Vec<(FrameId, u32)> = self.checks.owed(at).collect();
        for (frame, version) in owed {
            match self.holds(&store, frame, version) {
                Ok(true) => {}
                found => {
                    let what = format!(
                        "forgotten: node {at} acknowledged version {version} of {frame}, {when} it is not"
                    );
                    self.checks.fail(format!("{what} there ({found:?})"));
                }
            }
        }
    }

    fn holds(&self, store: &NodeStore, frame: FrameId, version: u32) -> Result<bool> {
        let series = content::series(frame.dataset)?;
        let Some(entry) = store.entry(&series, frame.number)? else { return Ok(false) };
        let right = zazen_wire::checksum::frame_checksum(&frame.bytes(version));
        // An alien came back by a miss: that it is here says nothing of the push.
        let is_it = entry.meta.checksum == right && entry.origin == zazen_core::Origin::Native;
        Ok(is_it && store.verify(&series, frame.number)? == Some(true))
    }

    /// What must hold when nothing more happens.
    fn judge_end(&mut self) {
        if self.checks.has_failed() {
            return;
        }
        for writer in &self.writers {
            if writer.in_flight() > 0 {
                self.checks
                    .fail(format!("no progress: {} frames of a writer never settle", writer.in_flight()));
            }
        }
        for at in 0..self.jobs.len() {
            self.judge_job(at);
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].store.is_none() {
                self.checks.fail(format!("no progress: the daemon of node {node} does not come back"));
            }
            self.check_memory(node, "at the end");
        }
    }
}
