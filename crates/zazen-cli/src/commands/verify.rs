//! `zazen verify`: reads every cached frame and compares it with its checksum.

use crate::output::{self, human_bytes};
use crate::target::{self, Done, Missed, Node, OpenedSeries, Pattern, Targets};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::PathBuf;
use std::thread::ScopedJoinHandle;
use zazen_core::{Error, ErrorKind, Result};

/// Frames checked between two steps of the progress bar.
const STEP_FRAMES: u32 = 64;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen verify /lustre/sim1 --nodes nodes.txt
  zazen verify /lustre/sim1 --json

Bad frames are dropped from the cache; the next read fetches them anew. Exit code 1 if there was
one.")]
pub(crate) struct Verify {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    #[command(flatten)]
    pattern: Pattern,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Found {
    node: String,
    pattern: String,
    checked: u64,
    bytes: u64,
    bad: Vec<u64>,
}

pub(crate) fn run(arguments: &Verify) -> Result<Done> {
    let answers = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    let mut missed = answers.missed;
    let mut nodes = answers.given;
    let mut total = 0;
    for node in &mut nodes {
        let held = node.remote.query_all(node.info.handle)?;
        total += held.native.len() + held.alien.len();
    }
    let bar = output::bar(total, "verify");
    let answers: Vec<(Found, Result<()>, Node)> = std::thread::scope(|scope| {
        // Every node reads its own disk.
        let threads: Vec<_> = nodes
            .into_iter()
            .map(|node| (node.node.clone(), scope.spawn(|| verify_node(node, &bar))))
            .collect();
        let gone = || {
            Err(Error::new(ErrorKind::Unavailable, "verify: a thread ended early, a bug; please report it"))
        };
        let end = |(node, thread): (Node, ScopedJoinHandle<'_, _>)| {
            let (found, outcome) = thread.join().unwrap_or_else(|_| (Found::default(), gone()));
            (found, outcome, node)
        };
        threads.into_iter().map(end).collect()
    });
    bar.finish_and_clear();
    let (mut found, mut refusal) = (Vec::new(), None);
    for (part, outcome, node) in answers {
        found.push(part);
        match outcome {
            Ok(()) => {}
            Err(error) if target::is_silence(&error) => missed.push(Missed::new(&node, error)),
            Err(error) => refusal = refusal.or(Some(error.within(format!("node {}", node.name)))),
        }
    }
    tell(arguments, &found, &missed);
    let done = target::judge(&missed, "not all of what they hold was checked");
    if let Some(error) = refusal {
        return Err(error);
    }
    match found.iter().map(|node| node.bad.len()).sum::<usize>() {
        0 => Ok(done),
        bad => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{}: {bad} frames did not match their checksums and were dropped; the next read fetches them \
                 anew",
                arguments.dataset.display()
            ),
        )),
    }
}

/// What was found, as far as it came, and how it ended.
fn verify_node(mut node: OpenedSeries, bar: &ProgressBar) -> (Found, Result<()>) {
    let mut found = Found { node: node.name.clone(), pattern: node.pattern.clone(), ..Found::default() };
    let mut from = Some(0);
    while let Some(start) = from {
        let step = match node.remote.verify(node.info.handle, start, STEP_FRAMES) {
            Ok(step) => step,
            Err(error) => return (found, Err(error)),
        };
        found.checked += step.checked;
        found.bytes += step.bytes;
        found.bad.extend(step.bad);
        bar.inc(step.checked);
        from = step.next;
    }
    (found, Ok(()))
}

fn tell(arguments: &Verify, found: &[Found], missed: &[Missed]) {
    let checked: u64 = found.iter().map(|node| node.checked).sum();
    let bytes: u64 = found.iter().map(|node| node.bytes).sum();
    if arguments.json {
        let nodes = found.iter().map(|node| {
            let (name, pattern) = (&node.node, &node.pattern);
            let (checked, bytes, bad) = (node.checked, node.bytes, &node.bad);
            json!({"node": name, "pattern": pattern, "checked": checked, "bytes": bytes, "bad": bad})
        });
        let nodes: Vec<_> = nodes.collect();
        return output::json(&json!({
            "dataset": arguments.dataset,
            "checked": checked,
            "bytes": bytes,
            "nodes": nodes,
            "missed": target::missed_json(missed),
        }));
    }
    for node in found {
        for frame in &node.bad {
            output::line(format!("bad: frame {frame} of {} on {}", node.pattern, node.node));
        }
    }
    let bad: usize = found.iter().map(|node| node.bad.len()).sum();
    let dataset = arguments.dataset.display();
    output::line(format!("{dataset}: {checked} frames ({}) checked, {bad} bad", human_bytes(bytes)));
}
