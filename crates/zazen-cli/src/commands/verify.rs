//! `zazen verify`: reads every cached frame and compares it with its checksum.

use crate::output::{self, human_bytes};
use crate::target::{Opened, Pattern, Targets};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result};

/// Frames checked between two steps of the progress bar.
const STEP_FRAMES: u32 = 64;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen verify /lustre/sim1 --nodes nodes.txt
  zazen verify /lustre/sim1 --json

Bad frames are dropped from the cache; the next read fetches them anew. Exit code 1 if there was one.")]
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

pub(crate) fn run(arguments: &Verify) -> Result<()> {
    let mut nodes = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    let mut total = 0;
    for node in &mut nodes {
        let held = node.remote.query_all(node.info.handle)?;
        total += held.native.len() + held.alien.len();
    }
    let bar = output::bar(total, "verify");
    let found: Result<Vec<Found>> = std::thread::scope(|scope| {
        // Every node reads its own disk.
        let threads: Vec<_> = nodes.into_iter().map(|node| scope.spawn(|| verify_node(node, &bar))).collect();
        let gone = || Err(Error::new(ErrorKind::Unavailable, "verify: a thread ended early"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| gone())).collect()
    });
    bar.finish_and_clear();
    let found = found?;
    tell(arguments, &found);
    match found.iter().map(|node| node.bad.len()).sum::<usize>() {
        0 => Ok(()),
        bad => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{}: {bad} frames did not match their checksums and were dropped; the next read fetches them anew",
                arguments.dataset.display()
            ),
        )),
    }
}

fn verify_node(mut node: Opened, bar: &ProgressBar) -> Result<Found> {
    let mut found = Found { node: node.name.clone(), pattern: node.pattern.clone(), ..Found::default() };
    let mut from = Some(0);
    while let Some(start) = from {
        let step = node.remote.verify(node.info.handle, start, STEP_FRAMES)?;
        found.checked += step.checked;
        found.bytes += step.bytes;
        found.bad.extend(step.bad);
        bar.inc(step.checked);
        from = step.next;
    }
    Ok(found)
}

fn tell(arguments: &Verify, found: &[Found]) {
    let checked: u64 = found.iter().map(|node| node.checked).sum();
    let bytes: u64 = found.iter().map(|node| node.bytes).sum();
    if arguments.json {
        let nodes = found.iter().map(
            |node| json!({"node": node.node, "pattern": node.pattern, "checked": node.checked, "bytes": node.bytes, "bad": node.bad}),
        );
        let nodes: Vec<_> = nodes.collect();
        return output::json(
            &json!({"dataset": arguments.dataset, "checked": checked, "bytes": bytes, "nodes": nodes}),
        );
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
