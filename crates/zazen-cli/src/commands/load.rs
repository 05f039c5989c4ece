//! `zazen load`: fills the caches from the backing store, each frame on one node.

use crate::output::{self, human_bytes};
use crate::target::{Opened, Targets};
use crate::parse;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Origin, Result, RunSet};

/// Frames asked for between two steps of the progress bar.
const STEP_FRAMES: u64 = 32;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen load /lustre/sim1 --nodes nodes.txt          # spread over all nodes
  zazen load /lustre/sim1 --frames 0-9999 --nodes node1,node2

Frames that some node holds as natives already stay where they are. A node that dies while it loads is left out;
load again to give its frames to the others.")]
pub(crate) struct Load {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Only these frames: 7, 0-999, 0-999:2, several joined by commas
    #[arg(long, value_name = "RANGES", value_parser = parse::frames)]
    frames: Option<RunSet>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Loaded {
    node: String,
    fetched: u64,
    present: u64,
    bytes: u64,
    failed: Vec<(u64, String)>,
    /// Why the node stopped before its end.
    error: Option<String>,
}

pub(crate) fn run(arguments: &Load) -> Result<()> {
    let mut nodes = arguments.targets.open(&arguments.dataset, true)?;
    let shares = arguments.shares(&mut nodes)?;
    let total = shares.iter().map(RunSet::len).sum();
    let bar = output::bar(total, "load");
    let loaded: Vec<Loaded> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            nodes.into_iter().zip(shares).map(|(node, share)| scope.spawn(|| load_node(node, share, &bar))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    bar.finish_and_clear();
    tell(arguments, &loaded);
    let failed: usize = loaded.iter().map(|node| node.failed.len()).sum();
    let broken = loaded.iter().filter(|node| node.error.is_some()).count();
    if failed + broken == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{}: {failed} frames could not be loaded and {broken} nodes stopped early; load again",
            arguments.dataset.display()
        ),
    ))
}

impl Load {
    /// By node: what it is to load. The wanted frames that are native nowhere, dealt out in contiguous blocks that
    /// level the natives that each node holds in the end.
    fn shares(&self, nodes: &mut [Opened]) -> Result<Vec<RunSet>> {
        let extent = nodes.iter().find_map(|node| node.info.extent.clone()).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!("{}: the backing store does not answer; load when it is back", self.dataset.display()),
            )
        })?;
        let mut missing = match &self.frames {
            Some(frames) => frames.intersection(&extent),
            None => extent,
        };
        let mut held = Vec::new();
        for node in nodes.iter_mut() {
            let natives = node.remote.query_all(node.info.handle)?.native;
            missing = missing.difference(&natives);
            held.push(natives.len());
        }
        let mut at = 0;
        let sizes = level(&held, missing.len());
        Ok(sizes
            .into_iter()
            .map(|size| {
                let share = missing.block(at, size);
                at += size;
                share
            })
            .collect())
    }
}

/// How many of `more` each node gets so that the fullest is as little full as can be.
fn level(held: &[u64], more: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..held.len()).collect();
    order.sort_by_key(|node| held[*node]);
    // The common level is that of the k emptiest nodes, for the largest k whose members it does not overtop.
    let (mut sum, mut chosen) = (more, 0);
    for (k, node) in order.iter().enumerate() {
        if k > 0 && held[*node] * k as u64 >= sum {
            break;
        }
        sum += held[*node];
        chosen = k + 1;
    }
    let mut sizes = vec![0; held.len()];
    let (height, mut extra) = (sum / chosen as u64, sum % chosen as u64);
    for node in &order[..chosen] {
        let one = u64::from(extra > 0);
        extra -= one;
        sizes[*node] = height + one - held[*node];
    }
    sizes
}

fn load_node(mut node: Opened, share: RunSet, bar: &ProgressBar) -> Loaded {
    let mut loaded = Loaded { node: node.name.clone(), ..Loaded::default() };
    let mut at = 0;
    while at < share.len() {
        let step = share.block(at, STEP_FRAMES);
        at += step.len();
        bar.inc(step.len());
        match node.remote.fetch(node.info.handle, step, Origin::Native) {
            Ok(done) => {
                loaded.fetched += done.fetched;
                loaded.present += done.present;
                loaded.bytes += done.bytes;
                loaded.failed.extend(done.failed.into_iter().map(|(frame, _, why)| (frame, why)));
            }
            Err(error) => {
                loaded.error = Some(error.to_string());
                break;
            }
        }
    }
    loaded
}

fn tell(arguments: &Load, loaded: &[Loaded]) {
    let sum = |of: fn(&Loaded) -> u64| loaded.iter().map(of).sum::<u64>();
    let (fetched, present, bytes) = (sum(|l| l.fetched), sum(|l| l.present), sum(|l| l.bytes));
    for node in loaded {
        for (frame, why) in node.failed.iter().take(10) {
            output::note(format!("node {}: frame {frame}: {why}", node.node));
        }
        if let Some(error) = &node.error {
            output::note(format!("node {}: {error}", node.node));
        }
    }
    if arguments.json {
        let nodes = loaded.iter().map(|node| {
            json!({
                "node": node.node,
                "fetched": node.fetched,
                "present": node.present,
                "bytes": node.bytes,
                "failed": node.failed.iter().map(|(frame, why)| json!({"frame": frame, "why": why})).collect::<Vec<_>>(),
                "error": node.error,
            })
        });
        let nodes: Vec<_> = nodes.collect();
        return output::json(&json!({
            "dataset": arguments.dataset, "fetched": fetched, "present": present, "bytes": bytes, "nodes": nodes,
        }));
    }
    let dataset = arguments.dataset.display();
    output::line(format!(
        "{dataset}: {fetched} frames ({}) loaded onto {} nodes, {present} were there",
        human_bytes(bytes),
        loaded.len()
    ));
}

#[cfg(test)]
mod tests {
    use super::level;

    #[test]
    fn loads_are_levelled() {
        let check = |held: &[u64], more, expected: &[u64]| assert_eq!(level(held, more), expected, "{held:?} + {more}");
        check(&[0, 0, 0, 0], 10, &[3, 3, 2, 2]);
        check(&[5], 3, &[3]);
        check(&[10, 0], 4, &[0, 4]);
        check(&[10, 0, 2], 6, &[0, 4, 2]);
        check(&[3, 1, 2], 0, &[0, 0, 0]);
        check(&[1, 1], 1, &[1, 0]);
    }

    #[test]
    fn the_highest_level_is_as_low_as_any_dealing_can_make_it() {
        // Oracle: give one at a time to the least loaded.
        for seed in 0..200_u64 {
            let held: Vec<u64> = (0..4).map(|i| (seed * 2_654_435_761 >> (i * 5)) % 12).collect();
            let more = seed % 17;
            let mut levels = held.clone();
            for _ in 0..more {
                if let Some(least) = levels.iter_mut().min() {
                    *least += 1;
                }
            }
            let sizes = level(&held, more);
            assert_eq!(sizes.iter().sum::<u64>(), more, "{held:?} + {more}");
            let mut ours: Vec<u64> = held.iter().zip(&sizes).map(|(h, s)| h + s).collect();
            ours.sort_unstable();
            levels.sort_unstable();
            assert_eq!(ours, levels, "{held:?} + {more}");
        }
    }
}
