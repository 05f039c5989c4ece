//! `zazen load`: fills the caches from the backing store, each frame on one node.

use crate::output::{self, human_bytes};
use crate::parse;
use crate::target::{self, Targets};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use zazen_client::load::{LoadOptions, LoadReport, load};
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// Frames asked for between two steps of the progress bar.
const STEP_FRAMES: u64 = 32;
/// Failed frames that are named.
const NAMED_MAX: usize = 10;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen load /lustre/sim1 --nodes nodes.txt          # spread over all nodes
  zazen load /lustre/sim1 --frames 0-9999 --nodes node1,node2

Frames that some node holds already stay where they are. What a dying node leaves undone, the others do.")]
pub(crate) struct Load {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Only these frames: 7, 0-999, 0-999:2, several joined by commas
    #[arg(long, value_name = "RANGES", value_parser = parse::frames)]
    frames: Option<RunSet>,
    /// How file names tell frame numbers, like frame-{n:07}.dcd [default: what the names tell]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Load) -> Result<()> {
    let (targets, key) = arguments.targets.targets_and_key()?;
    let options = LoadOptions {
        pattern: arguments.pattern.clone(),
        set: arguments.frames.clone(),
        chunk_frames: STEP_FRAMES,
        ..LoadOptions::new(targets, key)
    };
    let bar = output::bar(0, "load");
    let outcome = load(&target::dataset_path(&arguments.dataset)?, &options, &mut |progress| {
        bar.set_length(progress.frames_total);
        bar.set_position(progress.frames_done);
    });
    bar.finish_and_clear();
    let report = outcome?;
    arguments.tell(&report);
    if report.failed == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{}: {} of {} frames could not be loaded; the lines above say why, load again when that is mended",
            arguments.dataset.display(),
            report.failed,
            report.frames
        ),
    ))
}

impl Load {
    fn tell(&self, report: &LoadReport) {
        for (frame, error) in report.failures.iter().take(NAMED_MAX) {
            output::note(format!("frame {frame}: {error}"));
        }
        for (node, error) in &report.dead {
            output::note(format!("{node}: {error}; left out"));
        }
        let dataset = self.dataset.display();
        if self.json {
            let failures = report
                .failures
                .iter()
                .map(|(frame, error)| json!({"frame": frame, "why": error.to_string()}));
            let dead =
                report.dead.iter().map(|(node, error)| json!({"node": node, "why": error.to_string()}));
            return output::json(&json!({
                "dataset": self.dataset,
                "frames": report.frames,
                "present": report.present,
                "loaded": report.loaded,
                "bytes": report.bytes,
                "failed": report.failed,
                "failures": failures.collect::<Vec<_>>(),
                "dead": dead.collect::<Vec<_>>(),
            }));
        }
        output::line(format!(
            "{dataset}: {} frames ({}) loaded, {} were there, {} failed",
            report.loaded,
            human_bytes(report.bytes),
            report.present,
            report.failed
        ));
    }
}
