//! What a run found.

use crate::engine::Ran;
use crate::job::Job;
use crate::measure::{Ends, Histogram, Slowest, Timeline};
use crate::network::{Fidelity, Network, Step};
use crate::time::seconds;
use serde::Serialize;

/// One phase over all ranks.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name in the program.
    pub name: String,
    /// Whether its steps are metadata operations.
    pub is_metadata: bool,
    /// Bytes that its steps moved.
    pub bytes: u64,
    /// When its first step began.
    pub first_ps: u64,
    /// When its last step ended.
    pub last_ps: u64,
    /// How long each step took.
    pub times: Histogram,
}

impl Phase {
    /// From the first step's beginning to the last one's end.
    pub fn span_s(&self) -> f64 {
        seconds(self.last_ps.saturating_sub(self.first_ps))
    }

    /// Steps per second of the span; 0 if it is empty.
    pub fn per_s(&self) -> f64 {
        ratio(self.times.count() as f64, self.span_s())
    }

    /// Bytes per second of the span; 0 if it is empty.
    pub fn bytes_per_s(&self) -> f64 {
        ratio(self.bytes as f64, self.span_s())
    }
}

/// `above / below`, or 0 where that is no number.
pub fn ratio(above: f64, below: f64) -> f64 {
    if below > 0.0 { above / below } else { 0.0 }
}

/// The result of one run. The same for the same job, cluster and seed, on every machine.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The workload's name.
    pub workload: String,
    /// The cluster's name.
    pub cluster: String,
    /// The network with its sizes.
    pub network: String,
    /// Nodes.
    pub nodes: u32,
    /// Ranks.
    pub ranks: u32,
    /// The seed.
    pub seed: u64,
    /// How closely the network was simulated.
    pub fidelity: Fidelity,
    /// When the last rank was done.
    pub makespan_ps: u64,
    /// Bytes that all steps moved.
    pub bytes: u64,
    /// Metadata operations done.
    pub metadata_ops: u64,
    /// Messages between nodes, and their bytes.
    pub messages: u64,
    /// Bytes of these messages.
    pub message_bytes: u64,
    /// Bytes per second, if nothing but the disks, all alike, took time; 0 where disks do not
    /// matter.
    pub ideal_bytes_per_s: f64,
    /// Requests that were sent again, because a node was down.
    pub retries: u64,
    /// Ranks that did not end: their node died, or they wait for one that did.
    pub unfinished: u32,
    /// Events handled.
    pub events: u64,
    /// Digest of all events: time, node, kind, and whom they concern.
    pub trace_hash: u64,
    /// By phase.
    pub phases: Vec<Phase>,
    /// When ranks were done.
    pub ends: Histogram,
    /// The slowest ranks.
    pub slowest: Slowest,
    /// How much longer a byte takes on the disk of each of the slowest ranks' nodes.
    pub slowest_stretch: Vec<f64>,
    /// Resources by name, with how many of them were busy over time, and how many there are.
    pub busy: Vec<(&'static str, Timeline, f64)>,
    /// What the workload itself reports, by name.
    pub extra: Vec<(String, f64)>,
}

impl Outcome {
    /// What all worlds tell alike; the rest is empty. `stretch` says how much longer a byte takes
    /// on a rank's disk than on a typical one.
    pub(crate) fn of(job: &Job, ran: Ran, ends: Ends, stretch: impl Fn(u32) -> f64) -> Outcome {
        Outcome {
            workload: job.name.clone(),
            cluster: job.cluster.name.clone(),
            network: String::new(),
            nodes: job.nodes,
            ranks: job.ranks() as u32,
            seed: job.seed,
            fidelity: job.fidelity,
            makespan_ps: ends.times.max(),
            bytes: 0,
            metadata_ops: 0,
            messages: 0,
            message_bytes: 0,
            ideal_bytes_per_s: 0.0,
            retries: 0,
            unfinished: 0,
            events: ran.events,
            trace_hash: ran.trace_hash,
            phases: Vec::new(),
            slowest_stretch: ends.slowest.kept().iter().map(|(_, rank)| stretch(*rank)).collect(),
            ends: ends.times,
            slowest: ends.slowest,
            busy: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// With what the network carried.
    pub(crate) fn over<E: Copy + From<Step>>(self, network: &Network<E>) -> Outcome {
        let (messages, message_bytes) = network.sent();
        Outcome { network: network.topology().name(), messages, message_bytes, ..self }
    }

    /// Bytes per second of the makespan.
    pub fn bytes_per_s(&self) -> f64 {
        ratio(self.bytes as f64, seconds(self.makespan_ps))
    }

    /// Metadata operations per second of the makespan.
    pub fn metadata_ops_per_s(&self) -> f64 {
        ratio(self.metadata_ops as f64, seconds(self.makespan_ps))
    }

    /// Bytes per second against what the disks could do; 0 where disks do not matter.
    pub fn efficiency(&self) -> f64 {
        ratio(self.bytes_per_s(), self.ideal_bytes_per_s)
    }

    /// What `zazen sim run --json` prints.
    pub fn line(&self) -> Line {
        Line {
            nodes: self.nodes,
            seed: self.seed,
            fidelity: self.fidelity.name(),
            makespan_s: seconds(self.makespan_ps),
            bytes_per_s: self.bytes_per_s(),
            metadata_ops_per_s: self.metadata_ops_per_s(),
            events: self.events,
            trace_hash: format!("{:016x}", self.trace_hash),
        }
    }
}

/// The outcome in one line, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Nodes.
    pub nodes: u32,
    /// The seed.
    pub seed: u64,
    /// The fidelity's name.
    pub fidelity: &'static str,
    /// Seconds of simulated time until the last rank was done.
    pub makespan_s: f64,
    /// Bytes per second of the makespan.
    pub bytes_per_s: f64,
    /// Metadata operations per second of the makespan.
    pub metadata_ops_per_s: f64,
    /// Events handled.
    pub events: u64,
    /// Digest of all events, as 16 hexadecimal digits.
    pub trace_hash: String,
}
