//! A run's outcome as numbers: what is kept in files, compared, and drawn.

use crate::job::Job;
use crate::outcome::{Line, Outcome};
use crate::random::mix;
use crate::time::seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The version of records; one of another version is not read. It changes with what a record has,
/// and with what the same job gives.
pub const VERSION: u32 = 3;

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Its name.
    pub name: String,
    /// Whether it consists of metadata operations.
    pub is_metadata: bool,
    /// Steps of all ranks.
    pub steps: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// When the first one began.
    pub first_s: f64,
    /// When the last one ended.
    pub last_s: f64,
    /// Steps per second in between.
    pub per_s: f64,
    /// Bytes per second in between.
    pub bytes_per_s: f64,
    /// Time of a step: mean.
    pub mean_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 90 % take no longer.
    pub p90_s: f64,
    /// 99 % take no longer.
    pub p99_s: f64,
    /// 99.9 % take no longer.
    pub p999_s: f64,
    /// The longest.
    pub max_s: f64,
}

/// One of the slowest ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRecord {
    /// The rank.
    pub rank: u32,
    /// When it was done.
    pub end_s: f64,
    /// How much longer its disk takes than a typical one.
    pub disk_stretch: f64,
}

/// How busy a kind of resource was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyRecord {
    /// Its name.
    pub name: String,
    /// How many there are; 0: requests under way are counted instead.
    pub of: f64,
    /// (time in seconds, how many are busy on average until the next time).
    pub series: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`VERSION`].
    pub version: u32,
    /// Digest of the job: a run with the same digest gives the same record.
    pub job: String,
    /// The workload.
    pub workload: String,
    /// The cluster.
    pub cluster: String,
    /// The network with its sizes.
    pub network: String,
    /// Nodes.
    pub nodes: u32,
    /// Ranks.
    pub ranks: u32,
    /// The seed.
    pub seed: u64,
    /// The fidelity's name.
    pub fidelity: String,
    /// Until the last rank was done.
    pub makespan_s: f64,
    /// Until the median rank was done.
    pub median_end_s: f64,
    /// Bytes of all steps.
    pub bytes: u64,
    /// Bytes per second of the makespan.
    pub bytes_per_s: f64,
    /// The same if nothing but typical disks took time; 0 where disks do not matter.
    pub ideal_bytes_per_s: f64,
    /// The former over the latter; 0 where disks do not matter.
    pub efficiency: f64,
    /// Metadata operations.
    pub metadata_ops: u64,
    /// The same per second of the makespan.
    pub metadata_ops_per_s: f64,
    /// Messages between nodes.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Ranks that did not end.
    pub unfinished: u32,
    /// Events.
    pub events: u64,
    /// Digest of all events.
    pub trace_hash: String,
    /// By phase.
    pub phases: Vec<PhaseRecord>,
    /// The slowest ranks.
    pub slowest: Vec<SlowRecord>,
    /// How busy resources were.
    pub busy: Vec<BusyRecord>,
    /// What the workload itself reports.
    pub extra: BTreeMap<String, f64>,
    /// Where the cluster's parameters come from.
    pub origin: BTreeMap<String, String>,
}

/// A digest of everything that a run's result depends on.
pub fn digest(job: &Job) -> String {
    let text = format!(
        "{VERSION} {:?} {} {} {} {} {} {:?} {:?}",
        job.name,
        job.nodes,
        job.ranks_per_node,
        job.network,
        job.fidelity.name(),
        job.seed,
        job.cluster,
        job.work
    );
    let half = |salt: u64| text.bytes().fold(mix(salt), |hash, byte| mix(hash ^ u64::from(byte)));
    format!("{:016x}{:016x}", half(1), half(2))
}

impl RunRecord {
    /// The record of a run of `job`.
    pub fn new(job: &Job, outcome: &Outcome) -> RunRecord {
        let phases = outcome.phases.iter().map(|phase| {
            let quantile = |part| seconds(phase.times.quantile(part));
            PhaseRecord {
                name: phase.name.clone(),
                is_metadata: phase.is_metadata,
                steps: phase.times.count(),
                bytes: phase.bytes,
                first_s: seconds(phase.first_ps),
                last_s: seconds(phase.last_ps),
                per_s: phase.per_s(),
                bytes_per_s: phase.bytes_per_s(),
                mean_s: phase.times.mean() / 1e12,
                p50_s: quantile(0.5),
                p90_s: quantile(0.9),
                p99_s: quantile(0.99),
                p999_s: quantile(0.999),
                max_s: seconds(phase.times.max()),
            }
        });
        let slowest = outcome.slowest.kept().iter().zip(&outcome.slowest_stretch);
        let slowest = slowest.map(|((end_ps, rank), stretch)| SlowRecord {
            rank: *rank,
            end_s: seconds(*end_ps),
            disk_stretch: *stretch,
        });
        let busy = outcome.busy.iter().map(|(name, timeline, of)| BusyRecord {
            name: (*name).to_owned(),
            of: *of,
            series: timeline.series(outcome.makespan_ps),
        });
        RunRecord {
            version: VERSION,
            job: digest(job),
            workload: outcome.workload.clone(),
            cluster: outcome.cluster.clone(),
            network: outcome.network.clone(),
            nodes: outcome.nodes,
            ranks: outcome.ranks,
            seed: outcome.seed,
            fidelity: outcome.fidelity.name().to_owned(),
            makespan_s: seconds(outcome.makespan_ps),
            median_end_s: seconds(outcome.ends.quantile(0.5)),
            bytes: outcome.bytes,
            bytes_per_s: outcome.bytes_per_s(),
            ideal_bytes_per_s: outcome.ideal_bytes_per_s,
            efficiency: outcome.efficiency(),
            metadata_ops: outcome.metadata_ops,
            metadata_ops_per_s: outcome.metadata_ops_per_s(),
            messages: outcome.messages,
            message_bytes: outcome.message_bytes,
            retries: outcome.retries,
            unfinished: outcome.unfinished,
            events: outcome.events,
            trace_hash: format!("{:016x}", outcome.trace_hash),
            phases: phases.collect(),
            slowest: slowest.collect(),
            busy: busy.collect(),
            extra: outcome.extra.iter().cloned().collect(),
            origin: job.cluster.origin.clone(),
        }
    }

    /// Reads a record. `Corrupt` if the text is none, or was cut.
    pub fn from_json(text: &str) -> Result<RunRecord> {
        let refuse = |why: String| Error::new(ErrorKind::Corrupt, why);
        let record: RunRecord = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        if record.version != VERSION {
            return Err(refuse(format!("version {} is not {VERSION}: simulate again", record.version)));
        }
        Ok(record)
    }

    /// The record as JSON, without a line end.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))
    }

    /// What `zazen sim run --json` prints.
    pub fn line(&self) -> Result<Line> {
        let fidelity = self.fidelity.parse::<crate::network::Fidelity>()?;
        Ok(Line {
            nodes: self.nodes,
            seed: self.seed,
            fidelity: fidelity.name(),
            makespan_s: self.makespan_s,
            bytes_per_s: self.bytes_per_s,
            metadata_ops_per_s: self.metadata_ops_per_s,
            events: self.events,
            trace_hash: self.trace_hash.clone(),
        })
    }

    /// Metadata operations per second of the busiest metadata phase; 0 without one. In a job that
    /// also moves data, the makespan says little about metadata.
    pub fn metadata_peak_per_s(&self) -> f64 {
        let rates = self.phases.iter().filter(|phase| phase.is_metadata).map(|phase| phase.per_s);
        rates.fold(0.0, f64::max)
    }
}
