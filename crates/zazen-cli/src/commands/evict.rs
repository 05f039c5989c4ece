//! `zazen evict`: gives a dataset's room back.

use crate::output::{self, human_bytes};
use crate::parse;
use crate::target::{Pattern, Targets};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use zazen_core::{Result, RunSet};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen evict /lustre/sim1                          # all frames of the directory, on this node
  zazen evict /lustre/sim1 --pattern 'vel-{n}.bin'  # only these
  zazen evict /lustre/sim1 --frames 0-999:2 --nodes nodes.txt

The files on the backing store are never touched. A pinned dataset is refused: `zazen pin --off` first.")]
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

pub(crate) fn run(arguments: &Evict) -> Result<()> {
    let mut rows = Vec::new();
    let mut nodes = BTreeSet::new();
    let (mut frames, mut bytes) = (0, 0);
    for mut node in arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())? {
        let evicted = node.remote.evict(node.info.handle, arguments.frames.clone())?;
        frames += evicted.frames;
        bytes += evicted.bytes;
        let (name, pattern) = (node.name, node.pattern);
        let row = json!({"node": name, "pattern": pattern, "frames": evicted.frames, "bytes": evicted.bytes});
        rows.push(row);
        nodes.insert(name);
    }
    match arguments.json {
        true => output::json(&json!({"frames": frames, "bytes": bytes, "nodes": rows})),
        false => {
            let dataset = arguments.dataset.display();
            output::line(format!(
                "{dataset}: {frames} frames evicted, {} freed on {} nodes",
                human_bytes(bytes),
                nodes.len()
            ));
        }
    }
    Ok(())
}
