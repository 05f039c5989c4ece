//! `zazen pin`: a pinned dataset is never evicted to make room.

use crate::output;
use crate::target::{self, Done, Missed, Pattern, Targets};
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

pub(crate) fn run(arguments: &Pin) -> Result<Done> {
    let mut answers = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    let (mut names, mut refusal) = (Vec::new(), None);
    for mut node in answers.given {
        match node.remote.pin(node.info.handle, !arguments.off) {
            Ok(()) if names.last() == Some(&node.name) => {}
            Ok(()) => names.push(node.name),
            Err(error) if target::is_silence(&error) => answers.missed.push(Missed::new(&node.node, error)),
            Err(error) => refusal = refusal.or(Some(error.within(format!("node {}", node.name)))),
        }
    }
    if names.is_empty() && refusal.is_none() {
        return Err(target::none_answers(answers.missed));
    }
    let (pinned, dataset) = (!arguments.off, arguments.dataset.display());
    match arguments.json {
        true => output::json(&json!({
            "dataset": arguments.dataset,
            "pinned": pinned,
            "nodes": names,
            "missed": target::missed_json(&answers.missed),
        })),
        false => {
            let done = if pinned { "pinned" } else { "unpinned" };
            let names = if names.is_empty() { "no node".to_owned() } else { names.join(", ") };
            output::line(format!("{dataset}: {done} on {names}"));
        }
    }
    let command = format!("zazen pin {}{dataset}", if arguments.off { "--off " } else { "" });
    let what_now = format!(
        "a daemon keeps a pin across restarts, but it never heard of this one; {}",
        target::again(&command, &answers.missed)
    );
    let done = target::judge(&answers.missed, &what_now);
    refusal.map_or(Ok(done), Err)
}
