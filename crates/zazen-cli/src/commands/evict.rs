//! `zazen evict`: gives a dataset's room back.

use crate::output::{self, human_bytes};
use crate::parse;
use crate::target::{self, Done, Missed, Pattern, Targets};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use zazen_core::{Result, RunSet};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen evict /lustre/sim1                          # all frames of the directory, on this node
  zazen evict /lustre/sim1 --pattern 'vel-{n:04}.bin'  # only these
  zazen evict /lustre/sim1 --frames 0-999:2 --nodes nodes.txt

The files on the backing store are never touched. A pinned dataset is refused: unpin it first with
`zazen pin --off`.")]
pub(crate) struct Evict {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Only these frames: 7, 0-999, 0-999:2, several joined by commas
    #[arg(long, value_name = "RANGES", value_parser = parse::frames)]
    frames: Option<RunSet>,
    #[command(flatten)]
    pattern: Pattern,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Evict) -> Result<Done> {
    let mut answers = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    let mut refusal = None;
    let mut rows = Vec::new();
    let mut nodes = BTreeSet::new();
    let (mut frames, mut bytes) = (0, 0);
    for mut node in answers.given {
        match node.remote.evict(node.info.handle, arguments.frames.clone()) {
            Ok(evicted) => {
                frames += evicted.frames;
                bytes += evicted.bytes;
                let (frames, bytes) = (evicted.frames, evicted.bytes);
                rows.push(
                    json!({"node": node.name, "pattern": node.pattern, "frames": frames, "bytes": bytes}),
                );
                nodes.insert(node.name);
            }
            Err(error) if target::is_silence(&error) => answers.missed.push(Missed::new(&node.node, error)),
            Err(error) => refusal = refusal.or(Some(error.within(format!("node {}", node.name)))),
        }
    }
    if rows.is_empty() && refusal.is_none() {
        return Err(target::none_answers(answers.missed));
    }
    match arguments.json {
        true => output::json(&json!({
            "frames": frames,
            "bytes": bytes,
            "nodes": rows,
            "missed": target::missed_json(&answers.missed),
        })),
        false => {
            let dataset = arguments.dataset.display();
            output::line(format!(
                "{dataset}: {frames} frames evicted, {} freed on {} nodes",
                human_bytes(bytes),
                nodes.len()
            ));
            if frames > 0 && bytes == 0 {
                output::note(
                    "small frames share files; such a file's room is free when all its frames are gone",
                );
            }
        }
    }
    let command = format!("zazen evict {}", arguments.dataset.display());
    let what_now = format!("they keep what they hold; {}", target::again(&command, &answers.missed));
    let done = target::judge(&answers.missed, &what_now);
    refusal.map_or(Ok(done), Err)
}
