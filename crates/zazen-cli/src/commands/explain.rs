//! `zazen explain`: why the last analysis of a dataset took as long as it did.
//!
//! Asks all nodes for the records that readers left, and for what they hold and have removed;
//! `zazen-explain` makes the verdict of it.

mod page;
mod text;

use crate::output;
use crate::target::{self, Done, Missed, Node, Targets, is_silence, missed_json};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use zazen_client::record_folder;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_explain::{Explanation, NodeSeen, explain, jobs, quoted};
use zazen_frames::scan_record::{KeptRecord, Part, Records, ScanRecord};

/// How long a node may take to say what it knows.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen explain /lustre/sim1 --nodes nodes.txt       # the last analysis: what took time, what helps
  zazen explain /lustre/sim1 --back 1                # the one before
  zazen explain /lustre/sim1 --html why.html         # a page with pictures, in one file
  zazen explain /lustre/sim1 --json | jq -r .mend

Readers leave a record of each scan of 50 ms or longer, or of several ranks, with their node's
daemon, or in ~/.local/state/zazen/scans where no daemon takes it. You see your own records; root
sees all.
ZAZEN_RECORDS=off in an analysis' environment turns them off.")]
pub(crate) struct Explain {
    /// The dataset's directory, or the trajectory file
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Explain the analysis that many before the last one
    #[arg(long, value_name = "N", default_value_t = 0)]
    back: usize,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Explain) -> Result<Done> {
    let dataset = target::dataset_path(&arguments.dataset)?;
    let nodes = arguments.targets.nodes()?;
    let back = arguments.back;
    let Looked { explanation, jobs, missed } = look(&dataset, &nodes, back, &arguments.targets.as_flags())?;
    if let Some(file) = &arguments.html {
        std::fs::write(file, page::page(&explanation))
            .map_err(|error| Error::io(format!("page {}", file.display()), error))?;
        output::note(format!("wrote {}", file.display()));
    }
    match arguments.json {
        true => output::json(&as_json(&explanation, &missed)),
        false => output::print(&text::text(&explanation, back, jobs)),
    }
    // A dead node is a part of the explanation, not an error of it.
    for one in missed.iter().filter(|_| !arguments.json) {
        output::note(format!("node {}: {}: {}; {}", one.node, one.state, one.error, one.state.remedy()));
    }
    Ok(if missed.is_empty() { Done::Wholly } else { Done::Partly })
}

/// An analysis, explained.
pub(crate) struct Looked {
    pub(crate) explanation: Explanation,
    /// Analyses of the dataset that are on record.
    jobs: usize,
    /// Nodes that did not say what they know.
    pub(crate) missed: Vec<Missed>,
}

/// Explains the analysis of `dataset` that is `back` before the last one. `flags`: what a command
/// line needs to reach the nodes. `NotFound` if no such analysis is on record.
pub(crate) fn look(dataset: &Path, nodes: &[Node], back: usize, flags: &str) -> Result<Looked> {
    let (seen, mut records, missed) = collect(nodes, dataset)?;
    let own = record_folder::read().into_iter().filter(|record| is_of(record, dataset));
    let uid = rustix::process::geteuid().as_raw();
    records.extend(own.map(|record| KeptRecord { uid, record }));
    let jobs = jobs(records);
    let count = jobs.len();
    let Some(job) = jobs.into_iter().nth(back) else {
        return Err(none(dataset, count, missed));
    };
    let explanation = explain(job, &seen, flags)
        .ok_or_else(|| Error::new(ErrorKind::NotFound, "a job without records, a bug; please report it"))?;
    Ok(Looked { explanation, jobs: count, missed })
}

fn none(dataset: &Path, jobs: usize, missed: Vec<Missed>) -> Error {
    let path = dataset.display();
    if jobs > 0 {
        let text = format!("dataset {path}: only {jobs} analyses are on record; give a smaller --back");
        return Error::new(ErrorKind::NotFound, text);
    }
    let mut text = format!(
        "dataset {path}: no analysis of yours is on record. Read it with zazen.open(…).frames() for 50 ms or \
         longer first; daemons forget records when they stop"
    );
    // Blocks are frames of the file's folder.
    if let (true, Some(folder)) = (dataset.is_file(), dataset.parent()) {
        let folder = quoted(&folder.to_string_lossy());
        text += &format!(". What was read through fsspec: `zazen explain {folder}`");
    }
    let none = Error::new(ErrorKind::NotFound, text);
    match missed.into_iter().next() {
        Some(first) => none.within(format!("node {} is {}", first.node, first.state)),
        None => none,
    }
}

type Collected = (Vec<NodeSeen>, Vec<KeptRecord>, Vec<Missed>);

/// What all nodes know; a dead node costs its whole time limit, so all are asked at once.
fn collect(nodes: &[Node], dataset: &Path) -> Result<Collected> {
    let answers: Vec<(&Node, Result<Vec<Told>>)> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            nodes.iter().map(|node| (node, scope.spawn(move || ask(node, dataset)))).collect();
        let gone = || Error::new(ErrorKind::Unavailable, "the thread that asked it ended early, a bug");
        let end = |(node, thread): (_, ScopedJoinHandle<'_, _>)| {
            (node, thread.join().unwrap_or_else(|_| Err(gone())))
        };
        asked.into_iter().map(end).collect()
    });
    let (mut seen, mut records, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    for (node, answer) in answers {
        match answer {
            Ok(several) => {
                for (one, told) in several {
                    records.extend(told);
                    seen.push(one);
                }
            }
            Err(error) if is_silence(&error) => {
                seen.push(NodeSeen { name: node.name.clone(), ..NodeSeen::default() });
                missed.push(Missed::new(node, error));
            }
            Err(error) => return Err(error),
        }
    }
    // A directory with several series was asked for once for each.
    records.sort_by_key(|KeptRecord { uid, record }| {
        (record.began_ms, record.rank, record.pid, record.node_id, *uid)
    });
    records.dedup();
    Ok((seen, records, missed))
}

/// A node as it is seen for one series, and the records that it keeps of it.
type Told = (NodeSeen, Vec<KeptRecord>);

fn ask(node: &Node, dataset: &Path) -> Result<Vec<Told>> {
    let one = |pattern: Option<&str>| {
        let mut remote = node.connect()?;
        remote.set_timeout(Some(ANSWER_WITHIN));
        let info = remote.open_cached(dataset, pattern)?;
        let Records { node, node_id, now_ms, up_ms, native, removed, records } =
            remote.records(info.handle)?;
        // Without it, a command is proposed that may not be needed.
        let cached = match info.series.is_empty() {
            true => RunSet::new(),
            false => remote.query_all(info.handle).map_or_else(
                |error| {
                    tracing::debug!("{error}; what node {node} holds is not known");
                    RunSet::new()
                },
                |held| held.native.union(&held.alien),
            ),
        };
        let up_since_ms = now_ms.saturating_sub(up_ms);
        let series = info.dataset.to_string();
        let seen =
            NodeSeen { name: node, id: node_id, answers: true, up_since_ms, series, native, cached, removed };
        Ok((info, (seen, records)))
    };
    let (info, told) = one(None)?;
    if info.series.len() < 2 {
        return Ok(vec![told]);
    }
    info.series.iter().map(|pattern| Ok(one(Some(pattern))?.1)).collect()
}

/// Whether a record of the user's folder is of the dataset, which may be spelled through a link, or
/// of a trajectory file in its directory.
fn is_of(record: &ScanRecord, dataset: &Path) -> bool {
    let same =
        |one: &Path| matches!((one.canonicalize(), dataset.canonicalize()), (Ok(one), Ok(two)) if one == two);
    let other = Path::new(&record.dataset);
    other == dataset || same(other) || other.is_file() && other.parent().is_some_and(same)
}

pub(crate) fn as_json(explanation: &Explanation, missed: &[Missed]) -> Value {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let rank = |record: &ScanRecord| {
        let spent = Part::ALL.map(|part| (part.word().to_owned(), json!(seconds(record.spent(part)))));
        json!({
            "rank": record.rank, "node": record.node, "host": record.host, "wall_s": seconds(record.wall_ns),
            "spent_s": serde_json::Map::from_iter(spent),
            "local_frames": record.near_frames, "local_bytes": record.near_bytes,
            "other_frames": record.far_frames, "other_bytes": record.far_bytes,
            "failed_frames": record.failed_frames, "complete": record.whole,
        })
    };
    let cause = |cause: &zazen_explain::CauseFound| {
        json!({
            "cause": cause.cause.word(), "frames": cause.frames, "node": cause.node, "detail": cause.detail,
            "numbers": text::numbers(&cause.set), "cost_s": seconds(cause.cost_ns),
        })
    };
    let finding = |finding: &zazen_explain::Finding| {
        json!({
            "what": text::word(explanation, finding), "cost_s": seconds(finding.cost_ns),
            "sentence": finding.sentence, "mend": finding.mend,
        })
    };
    json!({
        "dataset": explanation.dataset,
        "verdict": explanation.verdict,
        "mend": explanation.mend,
        "began_ms": explanation.ranks[explanation.slowest].began_ms,
        "wall_s": seconds(explanation.wall_ns),
        "all_local_s": seconds(explanation.all_local_ns),
        "findings": explanation.findings.iter().map(finding).collect::<Vec<_>>(),
        "causes": explanation.causes.iter().map(cause).collect::<Vec<_>>(),
        "ranks": explanation.ranks.iter().map(rank).collect::<Vec<_>>(),
        "slowest": explanation.ranks[explanation.slowest].rank,
        "median": explanation.ranks[explanation.median].rank,
        "remarks": explanation.remarks,
        "missed": missed_json(missed),
    })
}
