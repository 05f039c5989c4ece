//! The verdict: what cost the slowest rank its time, and what mends it.

use crate::cause::{Cause, CauseFound, NodeSeen, OWN_DAEMON, causes_of, merged};
use crate::words::{quoted, rate, seconds, shown};
use zazen_core::{RelPath, RunSet};
use zazen_frames::scan_record::{Part, ScanRecord};

/// A finding that takes less of the wall time is no verdict.
const WORTH: f64 = 0.05;
/// The store is slow if it gives less than one part in so many of what it gave before.
const SLOW_STORE: u64 = 3;
/// A rank is slow if it needs this share of its wall time more than the median rank.
const SLOW_RANK: f64 = 0.2;

/// What cost time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Frames came from elsewhere, for the cause at this index of [`Explanation::causes`].
    Frames(usize),
    /// The backing store gives less than it did.
    SlowStore,
    /// One rank took longer than the others, in this part.
    SlowRank(Part),
    /// The ranks waited for each other in the assignment.
    Assign,
}

/// Something that cost time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// It.
    pub what: What,
    /// How much of the slowest rank's wall time.
    pub cost_ns: u64,
    /// A sentence.
    pub sentence: String,
    /// The command or the step that mends it.
    pub mend: String,
}

/// Why a scan took as long as it did.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The dataset's path.
    pub dataset: String,
    /// One sentence.
    pub verdict: String,
    /// What to do first; empty: nothing.
    pub mend: String,
    /// What cost time, the dearest first.
    pub findings: Vec<Finding>,
    /// The ranks, by number.
    pub ranks: Vec<ScanRecord>,
    /// Index of the rank with the longest wall time.
    pub slowest: usize,
    /// Index of the median rank.
    pub median: usize,
    /// Why frames were not read locally, over all ranks, the dearest first.
    pub causes: Vec<CauseFound>,
    /// Wall time of the slowest rank.
    pub wall_ns: u64,
    /// An upper bound of what the job would have taken if each frame had been on its reader's node.
    pub all_local_ns: u64,
    /// Frames read from their reader's node, and others.
    pub near_frames: u64,
    /// Frames that were not.
    pub far_frames: u64,
    /// What limits this explanation.
    pub remarks: Vec<String>,
}

/// Explains one job's scan. `nodes`: what the nodes say now; `with`: what a command needs to reach
/// them (`" --nodes nodes.txt"`, or nothing). `None` without records.
///
/// Records hold what users wrote: no control character of theirs comes into a sentence, and a path
/// in a command is one word of a shell.
pub fn explain(mut job: Vec<ScanRecord>, nodes: &[NodeSeen], with: &str) -> Option<Explanation> {
    job.iter_mut().for_each(clean);
    let slowest = (0..job.len()).max_by_key(|rank| (job[*rank].wall_ns, std::cmp::Reverse(*rank)))?;
    let mut by_wall: Vec<usize> = (0..job.len()).collect();
    by_wall.sort_by_key(|rank| job[*rank].wall_ns);
    let median = by_wall[(by_wall.len() - 1) / 2];
    let (slow, usual) = (&job[slowest], &job[median]);
    let wall_ns = slow.wall_ns;

    let store = StoreLoss::of(&job, slow);
    let mut causes = Vec::new();
    for (rank, record) in job.iter().enumerate() {
        let mut own = causes_of(record, &job, nodes);
        if rank == slowest {
            share_out(&mut own, slow, store.left_ns.saturating_add(slow.spent(Part::Peer)));
        }
        causes.extend(own);
    }
    let mut causes = merged(causes);
    causes.sort_by_key(|cause| std::cmp::Reverse((cause.cost_ns, cause.frames)));

    let dataset = slow.dataset.clone();
    let (named, word) = (shown(&dataset), quoted(&dataset));
    let blocks = blocks_of(slow);
    let cached = cached_now(&job, nodes);
    let is_cached =
        |cause: &CauseFound| cause.set.len() == cause.frames && cause.set.difference(&cached).is_empty();
    let mut findings: Vec<Finding> = causes
        .iter()
        .enumerate()
        .filter(|(_, cause)| cause.cost_ns > 0)
        .map(|(at, cause)| Finding {
            what: What::Frames(at),
            cost_ns: cause.cost_ns,
            sentence: format!(
                "{} of {} waited on {named}: {}",
                seconds(cause.cost_ns),
                seconds(wall_ns),
                phrase(cause)
            ),
            mend: match &blocks {
                _ if is_cached(cause) => mend_of_cached(cause, &named, &word, with),
                Some(blocks) if cause.cause == Cause::NeverPushed => format!(
                    "zazen load {word} --pattern 'FILE{blocks}'{with}   # FILE: the file that was read; \
                     or read it twice"
                ),
                _ => mend(cause, &named, &word, with),
            },
        })
        .collect();
    let is_all_cached = !causes.is_empty() && causes.iter().all(is_cached);
    findings.extend(store.finding(slow, &named, &word, with, is_all_cached));
    findings.extend(slow_rank(slow, usual, job.len()));
    findings.extend(assign(slow, usual));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.cost_ns));

    let top = findings.first().filter(|top| top.cost_ns as f64 >= WORTH * wall_ns as f64);
    let verdict = top.map_or_else(|| nothing(slow), |top| top.sentence.clone());
    let mend = top.map_or_else(String::new, |top| top.mend.clone());
    let all_local_ns = all_local(&job);
    let remarks = remarks(&job, nodes, &causes);
    Some(Explanation {
        dataset,
        verdict,
        mend,
        findings,
        slowest,
        median,
        causes,
        wall_ns,
        all_local_ns,
        near_frames: job.iter().map(|record| record.near_frames).sum(),
        far_frames: job.iter().map(|record| record.far_frames).sum(),
        remarks,
        ranks: job,
    })
}

/// What the nodes on which a rank ran hold now of the series that the job read. Empty if its ranks
/// read several.
fn cached_now(job: &[ScanRecord], nodes: &[NodeSeen]) -> RunSet {
    let Some(series) = job.first().map(|record| &record.series).filter(|series| !series.is_empty()) else {
        return RunSet::new();
    };
    if job.iter().any(|record| record.series != *series) {
        return RunSet::new();
    }
    let is_of_the_job = |node: &&NodeSeen| {
        node.answers && node.series == *series && job.iter().any(|record| record.node_id == node.id)
    };
    nodes.iter().filter(is_of_the_job).fold(RunSet::new(), |all, node| all.union(&node.cached))
}

/// What a pattern says of the blocks of files that were read, as `{n*1048576}`; `None` if frames
/// were read.
fn blocks_of(record: &ScanRecord) -> Option<String> {
    let (_, series) = RelPath::stored(&record.series).ok()?.series_parts()?;
    let is_blocks = series.strip_prefix("{n*")?.strip_suffix('}')?.bytes().all(|byte| byte.is_ascii_digit());
    is_blocks.then_some(series)
}

/// Takes what a terminal would obey out of the texts that are shown. The dataset's path is needed
/// as it is.
fn clean(record: &mut ScanRecord) {
    let wanted = record.absent.iter_mut().map(|absent| &mut absent.wanted);
    for text in [&mut record.node, &mut record.host, &mut record.job].into_iter().chain(wanted) {
        *text = shown(text);
    }
}

/// What of the wait for the backing store is the store's slowness, and what remains if the store
/// gave what it gave before.
struct StoreLoss {
    slow_ns: u64,
    left_ns: u64,
    rate: u64,
    best: u64,
}

impl StoreLoss {
    fn of(job: &[ScanRecord], slow: &ScanRecord) -> StoreLoss {
        let waited = slow.spent(Part::Backing);
        let best = job.iter().map(|record| record.store_rate_best).max().unwrap_or(0);
        let rate = slow.store_rate;
        if rate == 0 || rate.saturating_mul(SLOW_STORE) > best {
            return StoreLoss { slow_ns: 0, left_ns: waited, rate, best };
        }
        let left_ns = (waited as f64 * rate as f64 / best as f64) as u64;
        StoreLoss { slow_ns: waited.saturating_sub(left_ns), left_ns, rate, best }
    }

    fn finding(
        &self,
        slow: &ScanRecord,
        dataset: &str,
        word: &str,
        with: &str,
        is_cached: bool,
    ) -> Option<Finding> {
        (self.slow_ns > 0).then(|| Finding {
            what: What::SlowStore,
            cost_ns: self.slow_ns,
            sentence: format!(
                "{} of {} waited on a slow store: {dataset} came with {}, and has come with {} before",
                seconds(self.slow_ns),
                seconds(slow.wall_ns),
                rate(self.rate),
                rate(self.best)
            ),
            mend: match is_cached {
                true => format!("look at the store; {CACHED_NOW}"),
                false => format!("zazen load {word}{with}   # before the next job; and look at the store"),
            },
        })
    }
}

/// Deals the wait for the store out to a rank's causes, by frames. A daemon that died also cost the
/// time to notice it.
fn share_out(causes: &mut [CauseFound], record: &ScanRecord, waited_ns: u64) {
    let all: u64 = causes.iter().map(|cause| cause.frames).sum();
    for cause in causes.iter_mut() {
        cause.cost_ns = (waited_ns as f64 * cause.frames as f64 / all.max(1) as f64) as u64;
    }
    if let Some(own) = causes.iter_mut().find(|cause| cause.detail == OWN_DAEMON) {
        own.cost_ns += record.spent(Part::Daemon);
    }
}

fn slow_rank(slow: &ScanRecord, usual: &ScanRecord, ranks: usize) -> Option<Finding> {
    if ranks < 2 {
        return None;
    }
    let more = |part| slow.spent(part).saturating_sub(usual.spent(part));
    let parts = [Part::Consumer, Part::Disk, Part::Checksum];
    let part = parts.into_iter().max_by_key(|part| more(*part))?;
    let cost_ns = more(part);
    let what = match part {
        Part::Consumer => "computing between two frames",
        Part::Checksum => "checking frames",
        _ => "reading its own disk",
    };
    let on = if slow.node.is_empty() { &slow.host } else { &slow.node };
    (cost_ns as f64 > SLOW_RANK * slow.wall_ns as f64).then(|| Finding {
        what: What::SlowRank(part),
        cost_ns,
        sentence: format!(
            "rank {} (on {on}) took {}, and the median rank {}: it spent {} more {what}",
            slow.rank,
            seconds(slow.wall_ns),
            seconds(usual.wall_ns),
            seconds(cost_ns)
        ),
        mend: match part {
            Part::Disk => format!("look at the disk and the load of {on}"),
            _ => format!("look at what else runs on {on}, and at what rank {} computes", slow.rank),
        },
    })
}

fn assign(slow: &ScanRecord, usual: &ScanRecord) -> Option<Finding> {
    let cost_ns = slow.spent(Part::Assign).min(usual.spent(Part::Assign));
    (cost_ns as f64 > SLOW_RANK * slow.wall_ns as f64).then(|| Finding {
        what: What::Assign,
        cost_ns,
        sentence: format!(
            "{} of {} went into agreeing on who reads what, or into waiting for the last rank to begin",
            seconds(cost_ns),
            seconds(slow.wall_ns)
        ),
        mend: "look at what the ranks do before they read; a directory of many files takes long to list"
            .into(),
    })
}

fn nothing(slow: &ScanRecord) -> String {
    let (part, ns) = Part::ALL
        .into_iter()
        .map(|part| (part, slow.spent(part)))
        .max_by_key(|(_, ns)| *ns)
        .unwrap_or((Part::Consumer, 0));
    let what = match part {
        Part::Consumer => "the program's own computing",
        Part::Disk => "reading the node's own disk or memory",
        Part::Checksum => "checking frames",
        Part::Daemon => "waiting for the daemon",
        Part::Assign => "agreeing on who reads what",
        Part::Peer => "reading from other nodes",
        Part::Backing => "waiting for the backing store",
    };
    format!("nothing to mend: {} of {} were {what}", seconds(ns), seconds(slow.wall_ns))
}

fn frames(count: u64, does: &str, do_: &str) -> String {
    if count == 1 { format!("1 frame {does}") } else { format!("{count} frames {do_}") }
}

fn phrase(cause: &CauseFound) -> String {
    let count = cause.frames;
    let at = if cause.node.is_empty() { String::new() } else { format!(" on {}", cause.node) };
    let more = if cause.detail.is_empty() { String::new() } else { format!(" ({})", cause.detail) };
    match cause.cause {
        Cause::NeverPushed => format!("{} never pushed", frames(count, "was", "were")),
        Cause::Evicted => format!("{} evicted{at}{more}", frames(count, "was", "were")),
        Cause::Stale => format!("{} after their copies were made{at}", frames(count, "changed", "changed")),
        Cause::Corrupt => format!("{} wrong bytes in the cache{at}", frames(count, "had", "had")),
        Cause::DeadNode => match cause.node.as_str() {
            "" => format!("no daemon answered; {} straight from the store", frames(count, "came", "came")),
            node => {
                format!("node {node} is or was dead{more}; {} from the store", frames(count, "came", "came"))
            }
        },
        Cause::OverBudget => format!("{} no room in the cache{at}", frames(count, "had", "had")),
        Cause::NoPermission => format!("{} refused", frames(count, "was", "were")),
        Cause::OtherShare => {
            format!("{} cached{at}, and read by a rank elsewhere{more}", frames(count, "is", "are"))
        }
        Cause::DiskFails => format!("{} blocked by a failing cache disk{at}", frames(count, "was", "were")),
        Cause::NoDaemon => format!("{} without a daemon", frames(count, "was read", "were read")),
    }
}

/// What needs no command: the frames are where the next analysis looks.
const CACHED_NOW: &str = "reading has cached these frames, so the next analysis finds them on the nodes";

/// As [`mend`], for frames that nodes of the job hold by now: to load them would do nothing.
fn mend_of_cached(cause: &CauseFound, dataset: &str, word: &str, with: &str) -> String {
    match cause.cause {
        Cause::NeverPushed | Cause::Stale => format!("nothing to load: {CACHED_NOW}"),
        Cause::Evicted => {
            format!("zazen pin {word}{with}   # reading has cached them again; or raise the budget")
        }
        _ => mend(cause, dataset, word, with),
    }
}

/// `dataset` for a sentence, and as a `word` of a command.
fn mend(cause: &CauseFound, dataset: &str, word: &str, with: &str) -> String {
    match cause.cause {
        Cause::NeverPushed => format!("zazen load {word}{with}"),
        Cause::Evicted => {
            format!("zazen load {word}{with} && zazen pin {word}{with}   # or raise the budget")
        }
        Cause::Stale => format!("zazen load {word}{with}   # after the last change of the files"),
        Cause::Corrupt => format!("zazen verify {word}{with}   # and check the disk of {}", cause.node),
        Cause::DeadNode => format!("zazen status{with}   # then start zazend on {}", named(&cause.node)),
        Cause::OverBudget => {
            format!("raise --budget of zazend on {}, or zazen evict what is not needed", named(&cause.node))
        }
        Cause::NoPermission => format!("ask the owner of {dataset} for read permission"),
        Cause::OtherShare => {
            format!("run a rank on each node, and pass comm= to frames(), so that {} reads them", cause.node)
        }
        Cause::DiskFails => format!("look at the cache disk of {}", named(&cause.node)),
        Cause::NoDaemon => format!("open {dataset} through a daemon that caches it: zazend --backing"),
    }
}

fn named(node: &str) -> &str {
    if node.is_empty() { "this node" } else { node }
}

/// What each rank would have taken with its far frames on its own disk; the job takes as long as
/// the slowest of them.
fn all_local(job: &[ScanRecord]) -> u64 {
    let near: u64 = job.iter().fold(0, |sum, record| sum.saturating_add(record.near_bytes));
    let own = |record: &ScanRecord| record.spent(Part::Disk).saturating_add(record.spent(Part::Checksum));
    let near_ns: u64 = job.iter().fold(0, |sum, record| sum.saturating_add(own(record)));
    let ns_per_byte = if near == 0 { 0.0 } else { near_ns as f64 / near as f64 };
    let local = |record: &ScanRecord| {
        let found_dead = if record.near_frames == 0 { record.spent(Part::Daemon) } else { 0 };
        let without = record.spent(Part::Backing) + record.spent(Part::Peer) + found_dead;
        let instead = (record.far_bytes as f64 * ns_per_byte) as u64;
        record.wall_ns.saturating_sub(without).saturating_add(instead).min(record.wall_ns)
    };
    job.iter().map(local).max().unwrap_or(0)
}

fn remarks(job: &[ScanRecord], nodes: &[NodeSeen], causes: &[CauseFound]) -> Vec<String> {
    let mut remarks = Vec::new();
    let told = job.first().map_or(0, |record| record.ranks as usize);
    if job.len() < told {
        remarks.push(format!(
            "records of {} of {told} ranks were found; ask all nodes ($ZAZEN_NODES), \
             also for the slowest rank",
            job.len()
        ));
    }
    let began = job.iter().map(|record| record.began_ms).min().unwrap_or(0);
    if causes.iter().any(|cause| cause.cause == Cause::NeverPushed) {
        for node in
            nodes.iter().filter(|node| node.answers && node.up_since_ms > began.saturating_sub(60_000))
        {
            let remark = format!(
                "the daemon of {} started {} the scan; it does not remember what was evicted before",
                node.name,
                if node.up_since_ms > began { "after" } else { "just before" }
            );
            // A node is seen once for each series of the dataset.
            if !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
    }
    if job.iter().any(|record| !record.whole) {
        remarks.push("the program did not take all frames".to_owned());
    }
    remarks
}
