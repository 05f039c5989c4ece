//! The simulated world, and what may happen in it.

use crate::backing::Backing;
use crate::checks::Checks;
use crate::content::FrameId;
use crate::mutant::Mutant;
use crate::net::{Arrival, Message, Net, Rough};
use crate::node::Node;
use crate::profile::{NetFaults, Profile};
use crate::rank::Job;
use crate::scheduler::{Scheduler, Trace};
use crate::writer::WriterSim;
use std::collections::BTreeMap;
use zazen_core::{ErrorKind, RunSet};
use zazen_env::SeededRandom;
use zazen_sim::network::{Carrier, Schedule, Sending};

pub(crate) use crate::scheduler::MS;

/// Something that happens.
pub(crate) enum Event {
    /// Bytes come in; `None` is a reset.
    Arrive { conn: u64, to_server: bool, bytes: Option<Vec<u8>> },
    /// A daemon goes on with a task of its own.
    Task { node: usize, incarnation: u64, task: u64 },
    /// A daemon's disk brings held writes to its files (a planted bug).
    Flush { node: usize, incarnation: u64 },
    /// A daemon starts.
    Start { node: usize },
    /// A writer produces its next frame.
    Produce { writer: usize },
    /// A caller has waited long enough.
    Timeout { conn: u64, call: u64 },
    /// A job begins.
    Begin { job: usize },
    /// The ranks of a job take part in the next collective.
    Collective { job: usize },
    /// A rank reads a frame from the backing store itself.
    ReadSource { job: usize, rank: usize },
    /// Somebody writes a frame again while a node copies it.
    Rewrite(FrameId),
    /// A fault.
    Trouble(Trouble),
    /// The faults end.
    Calm,
}

/// A fault.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The daemon is killed now, or at a step of its disk to come; with the power or without.
    Crash {
        node: usize,
        power: bool,
        in_steps: u64,
    },
    /// The daemon stops in good order; then the power may fail.
    Stop {
        node: usize,
        power: bool,
        sync_fails: bool,
    },
    /// Hosts do not reach each other.
    Part {
        from: usize,
        to: usize,
        both: bool,
        for_ns: u64,
    },
    /// The backing store does not answer.
    Outage {
        for_ns: u64,
        kind: ErrorKind,
    },
    /// A change or a read of a disk fails.
    DiskError {
        node: usize,
        in_steps: u64,
        of_read: bool,
    },
    /// A bit of a file goes bad.
    Rot {
        node: usize,
        draw: u64,
    },
    /// A node's clock jumps ahead.
    Jump {
        node: usize,
        by_ns: u64,
    },
    /// An operator evicts a dataset, or pins or unpins one.
    Evict {
        node: usize,
        dataset: usize,
    },
    Pin {
        node: usize,
        dataset: usize,
        pinned: bool,
    },
    /// Only their owner may read the files of a dataset.
    Close {
        dataset: usize,
        for_ns: u64,
    },
    /// The file of a frame is gone.
    Delete {
        frame: FrameId,
        for_ns: u64,
    },
}

/// What scanned datasets hold, by (node, dataset), as of the last event.
pub(crate) type Holdings = BTreeMap<(usize, usize), RunSet>;

/// The world.
pub(crate) struct World {
    pub(crate) schedule: Scheduler<Event>,
    pub(crate) random: SeededRandom,
    pub(crate) trace: Trace,
    pub(crate) profile: Profile,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) net: Net,
    pub(crate) nodes: Vec<Node>,
    pub(crate) backing: Backing,
    pub(crate) writers: Vec<WriterSim>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) checks: Checks,
    pub(crate) scanned: Holdings,
    pub(crate) calm: bool,
    /// What happened, as lines for a person; kept on demand.
    pub(crate) story: Option<Vec<String>>,
}

impl Schedule<Arrival> for World {
    /// All events are the cluster's: only time and order count.
    fn schedule(&mut self, time_ns: u64, _node: u32, arrival: Arrival) {
        let Arrival { conn, to_server, bytes } = arrival;
        self.schedule.at(time_ns, Event::Arrive { conn, to_server, bytes });
    }
}

impl Rough for World {
    fn faults(&self) -> NetFaults {
        self.profile.net
    }

    fn random(&mut self) -> &mut SeededRandom {
        &mut self.random
    }
}

impl World {
    pub(crate) fn now_ns(&self) -> u64 {
        self.schedule.now_ns()
    }

    /// Adds a line to the story, if one is kept.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.now_ns() as f64 / 1e6;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:11.3} ms  {}", line()));
        }
    }

    /// Sends a message over a connection.
    pub(crate) fn send(&mut self, conn: u64, to_server: bool, bytes: Vec<u8>) {
        let Some((from, to)) = self.net.way(conn, to_server) else { return };
        let (from, to, bytes_sent) = (from as u32, to as u32, bytes.len() as u64);
        let sending = Sending { now: self.now_ns(), from, to, bytes: bytes_sent };
        // The network draws from this world, and the world has another one meanwhile.
        let mut net = std::mem::take(&mut self.net);
        net.send(self, sending, Message { conn, to_server, bytes });
        self.net = net;
    }

    /// Resets a connection from the daemon's side: the caller learns it soon.
    pub(crate) fn reset(&mut self, conn: u64) {
        let delay = MS / 10 + self.random.below(MS);
        self.schedule.after(delay, Event::Arrive { conn, to_server: false, bytes: None });
    }
}
