//! Why a frame was not read from its reader's node: one cause for each frame.

use crate::words::span;
use zazen_core::RunSet;
use zazen_frames::absence::Absence;
use zazen_frames::scan_record::{Absent, ScanRecord};

/// The closed list of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// No node ever had it, as far as the nodes remember.
    NeverPushed,
    /// It was cached and had to go.
    Evicted,
    /// Its source changed after it was cached.
    Stale,
    /// The copy's bytes were wrong.
    Corrupt,
    /// The node that has it, or the reader's own, did not answer.
    DeadNode,
    /// The cache had no room to keep it.
    OverBudget,
    /// The reader may not read it.
    NoPermission,
    /// Another node had it, and a rank of this one read it.
    OtherShare,
    /// The cache's disk could not give or take it.
    DiskFails,
    /// The program used no daemon.
    NoDaemon,
}

impl Cause {
    /// A short name, also for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Cause::NeverPushed => "never pushed",
            Cause::Evicted => "evicted",
            Cause::Stale => "stale",
            Cause::Corrupt => "corrupt",
            Cause::DeadNode => "dead node",
            Cause::OverBudget => "over budget",
            Cause::NoPermission => "no permission",
            Cause::OtherShare => "another rank's share",
            Cause::DiskFails => "cache disk fails",
            Cause::NoDaemon => "no daemon used",
        }
    }
}

/// What a node says when the explanation is asked for.
#[derive(Clone, Debug, Default)]
pub struct NodeSeen {
    /// Its name.
    pub name: String,
    /// Its identity; 0 if it does not answer.
    pub id: u128,
    /// Whether it answers.
    pub answers: bool,
    /// Since when its daemon runs, in milliseconds since 1970.
    pub up_since_ms: u64,
    /// The cache's name for what it was asked about.
    pub series: String,
    /// The natives that it holds.
    pub native: RunSet,
    /// All that it holds: natives, and what reading has brought.
    pub cached: RunSet,
    /// What it removed, the latest first.
    pub removed: Vec<Absent>,
}

/// Frames with one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseFound {
    /// It.
    pub cause: Cause,
    /// How many frames.
    pub frames: u64,
    /// Which; may be fewer than `frames`.
    pub set: RunSet,
    /// The node concerned; empty: none in particular.
    pub node: String,
    /// When and for what, if that is known; empty if not.
    pub detail: String,
    /// The time of the slowest rank that these frames took, in nanoseconds.
    pub cost_ns: u64,
}

/// The causes of one rank's frames.
pub(crate) fn causes_of(record: &ScanRecord, job: &[ScanRecord], nodes: &[NodeSeen]) -> Vec<CauseFound> {
    let mut found = Vec::new();
    for absent in &record.absent {
        let mut put = |cause, set: RunSet, frames, node: &str, detail: String| {
            if frames > 0 {
                found.push(CauseFound { cause, frames, set, node: node.to_owned(), detail, cost_ns: 0 });
            }
        };
        let mut all = |cause, detail: String| {
            put(cause, absent.set.clone(), absent.count, &record.node, detail);
        };
        match absent.why {
            Absence::Evicted => all(Cause::Evicted, evicted(absent, record.began_ms)),
            Absence::Stale => all(Cause::Stale, String::new()),
            Absence::Corrupt => all(Cause::Corrupt, String::new()),
            Absence::NoRoom => all(Cause::OverBudget, String::new()),
            Absence::Denied => all(Cause::NoPermission, String::new()),
            Absence::CacheFails => all(Cause::DiskFails, String::new()),
            Absence::NodeDead => {
                let node = match record.node.as_str() {
                    "" => absent_nodes(nodes, record.began_ms),
                    node => node.to_owned(),
                };
                put(Cause::DeadNode, absent.set.clone(), absent.count, &node, OWN_DAEMON.to_owned());
            }
            Absence::NoDaemon => all(Cause::NoDaemon, String::new()),
            Absence::NeverHere => elsewhere(record, job, nodes, absent, &mut put),
        }
    }
    found
}

/// The detail of a dead node that is the reader's own.
pub(crate) const OWN_DAEMON: &str = "the reader's own daemon";

/// The nodes that do not answer, or did not run yet at `began_ms`.
fn absent_nodes(nodes: &[NodeSeen], began_ms: u64) -> String {
    let absent = nodes.iter().filter(|node| !node.answers || node.up_since_ms > began_ms);
    absent.map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn evicted(absent: &Absent, began_ms: u64) -> String {
    let when = match absent.at_ms {
        0 => String::new(),
        at => format!("{} before", span(began_ms.saturating_sub(at))),
    };
    let what = match absent.wanted.as_str() {
        "" => String::new(),
        wanted => format!("to make room for {wanted}"),
    };
    [when, what].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Frames that the reader's node never had: what the other nodes know of them.
fn elsewhere(
    record: &ScanRecord,
    job: &[ScanRecord],
    nodes: &[NodeSeen],
    absent: &Absent,
    put: &mut dyn FnMut(Cause, RunSet, u64, &str, String),
) {
    let mut rest = absent.set.clone();
    let unnamed = absent.count.saturating_sub(rest.len());
    for node in nodes.iter().filter(|node| node.id != record.node_id) {
        for removed in node.removed.iter().filter(|removed| removed.at_ms <= record.began_ms) {
            let hit = rest.intersection(&removed.set);
            rest = rest.difference(&hit);
            let cause = match removed.why {
                Absence::Stale => Cause::Stale,
                Absence::Corrupt => Cause::Corrupt,
                _ => Cause::Evicted,
            };
            let count = hit.len();
            let detail =
                if cause == Cause::Evicted { evicted(removed, record.began_ms) } else { String::new() };
            put(cause, hit, count, &node.name, detail);
        }
    }
    for node in nodes.iter().filter(|node| node.answers && node.id != record.node_id) {
        let hit = rest.intersection(&node.native);
        let has_rank = job.iter().any(|other| other.node_id == node.id);
        let (cause, detail) = if node.up_since_ms > record.began_ms {
            (Cause::DeadNode, "it runs again since then".to_owned())
        } else if record.assigned && has_rank {
            // Its own rank would have read them: they came later.
            continue;
        } else {
            (Cause::OtherShare, if has_rank { "" } else { "no rank of the job ran there" }.to_owned())
        };
        rest = rest.difference(&hit);
        let count = hit.len();
        put(cause, hit, count, &node.name, detail);
    }
    let dead: Vec<&str> = nodes.iter().filter(|node| !node.answers).map(|node| node.name.as_str()).collect();
    let count = rest.len() + unnamed;
    match dead.is_empty() {
        false => put(Cause::DeadNode, rest, count, &dead.join(", "), String::new()),
        true => put(Cause::NeverPushed, rest, count, "", String::new()),
    }
}

/// Puts the same causes of several ranks together.
pub(crate) fn merged(all: impl IntoIterator<Item = CauseFound>) -> Vec<CauseFound> {
    let mut merged: Vec<CauseFound> = Vec::new();
    for one in all {
        let alike = |other: &&mut CauseFound| {
            (other.cause, &other.node, &other.detail) == (one.cause, &one.node, &one.detail)
        };
        match merged.iter_mut().find(alike) {
            Some(other) => {
                other.frames += one.frames;
                other.set = other.set.union(&one.set);
                other.cost_ns += one.cost_ns;
            }
            None => merged.push(one),
        }
    }
    merged
}
