//! `zazen pin`: a pinned dataset is never evicted to make room.

use crate::output;
use crate::target::{Pattern, Targets};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use zazen_core::Result;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen pin /lustre/sim1 --nodes nodes.txt
  zazen pin --off /lustre/sim1 --nodes nodes.txt")]
pub(crate) struct Pin {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Unpin it
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    pattern: Pattern,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Pin) -> Result<()> {
    let mut names = Vec::new();
    for mut node in arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())? {
        node.remote.pin(node.info.handle, !arguments.off)?;
        if names.last() != Some(&node.name) {
            names.push(node.name);
        }
    }
    let (pinned, dataset) = (!arguments.off, arguments.dataset.display());
    match arguments.json {
        true => output::json(&json!({"dataset": arguments.dataset, "pinned": pinned, "nodes": names})),
        false => {
            let done = if pinned { "pinned" } else { "unpinned" };
            output::line(format!("{dataset}: {done} on {}", names.join(", ")));
        }
    }
    Ok(())
}
