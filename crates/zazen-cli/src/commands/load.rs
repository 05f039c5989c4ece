//! `zazen load`: fills the caches from the backing store, each frame on one node or on several.

use crate::output::{self, human_bytes};
use crate::parse;
use crate::racks;
use crate::target::{self, Done, Missed, Node, Targets};
use clap::{Args, ValueEnum};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use zazen_client::load::{LoadOptions, LoadProgress, LoadReport, load};
use zazen_client::{NodeState, Target};
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_locate::{is_index, open_index};

/// Frames asked for between two steps of the progress bar.
const STEP_FRAMES: u64 = 32;
/// Failed frames that are named.
const NAMED_MAX: usize = 10;

/// Where copies go.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Layout {
    /// Over all nodes
    Spread,
    /// The first copy on one rack and the others on another, as HDFS does
    Rack,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen load /lustre/sim1 --nodes nodes.txt          # spread over all nodes
  zazen load /lustre/sim1 --frames 0-9999 --nodes node1,node2
  zazen load /lustre/ocean --pattern 'step{t}/block{b}.vtu' --copies 3 --nodes nodes.txt
  zazen load /lustre/ocean/ts.vtm.series --copies 3 --nodes nodes.txt
  zazen load /lustre/ocean --copies 3 --layout rack --racks racks.txt --nodes nodes.txt

Frames that a node already holds stay where they are. If a node dies, the others load its part.
After Ctrl-C the loaded frames stay cached, and the same command loads the rest.")]
pub(crate) struct Load {
    /// The dataset's directory, or the index of a visualization (.vtm.series, .pvd, .vtm, …)
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Only these frames: 7, 0-999, 0-999:2, several joined by commas
    #[arg(long, value_name = "RANGES", value_parser = parse::frames)]
    frames: Option<RunSet>,
    /// Pattern of the file names, like frame-{n:07}.dcd [default: from the manifest or the file
    /// names]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
    /// Nodes that shall hold each frame, for visualization (`zazen viz`)
    #[arg(long, value_name = "NODES", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Where the copies go
    #[arg(long, value_enum, default_value = "spread")]
    layout: Layout,
    /// The racks: a file with a host and its rack in each line
    #[arg(long, value_name = "FILE", required_if_eq("layout", "rack"))]
    racks: Option<PathBuf>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Load) -> Result<Done> {
    let nodes = arguments.targets.nodes()?;
    let key = nodes.iter().find_map(|node| node.key().cloned());
    let targets = nodes.iter().map(|node| node.target.clone()).collect();
    let so_far = Arc::new(Mutex::new(LoadProgress::default()));
    end_on_signal(&arguments.dataset, so_far.clone())?;
    let (dataset, pattern) = arguments.dataset()?;
    let options = LoadOptions {
        pattern,
        set: arguments.frames.clone(),
        chunk_frames: STEP_FRAMES,
        copies: arguments.copies,
        racks: arguments.racks_of(&nodes)?,
        ..LoadOptions::new(targets, key)
    };
    let bar = output::bar(0, "load");
    let outcome = load(&dataset, &options, &mut |progress| {
        bar.set_length(progress.frames_total);
        bar.set_position(progress.frames_done);
        *so_far.lock().unwrap_or_else(PoisonError::into_inner) = *progress;
    });
    bar.finish_and_clear();
    let mut report = outcome?;
    let missed: Vec<Missed> =
        report.dead.drain(..).map(|(target, error)| missed_of(&nodes, &target, error)).collect();
    arguments.tell(&report, &missed);
    let done = target::judge(&missed, "nothing was loaded there; the other nodes loaded that share, too");
    if report.failed == 0 {
        return Ok(done);
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{}: {} of {} frames could not be loaded; the lines above say why, \
             load again when that is mended",
            arguments.dataset.display(),
            report.failed,
            report.frames
        ),
    ))
}

fn missed_of(nodes: &[Node], target: &Target, error: Error) -> Missed {
    let name = nodes.iter().find(|node| node.target == *target).map(|node| node.name.clone());
    Missed { node: name.unwrap_or_else(|| target.to_string()), state: NodeState::of(target, &error), error }
}

/// From now on SIGINT and SIGTERM end this process with a word on what goes on. The daemons give up
/// what it asked them for when its connections close.
fn end_on_signal(dataset: &Path, so_far: Arc<Mutex<LoadProgress>>) -> Result<()> {
    let failed = |error| Error::io("handlers for signals", error);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let dataset = dataset.display().to_string();
    let wait = move || {
        let Some(signal) = signals.forever().next() else { return };
        let so_far = *so_far.lock().unwrap_or_else(PoisonError::into_inner);
        output::note(format!(
            "{dataset}: load ended by a signal: {} of {} frames dealt with; what is loaded stays. Of the \
             frames asked for last (at most {STEP_FRAMES} a node) some may still come; nothing else goes on. \
             Load again to go on",
            so_far.frames_done, so_far.frames_total
        ));
        std::process::exit(128 + signal);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop).map_err(failed)
}

impl Load {
    /// The dataset and its pattern; those of the files, if an index is given.
    fn dataset(&self) -> Result<(PathBuf, Option<String>)> {
        let path = target::dataset_path(&self.dataset)?;
        let is_index = path.file_name().is_some_and(|name| is_index(&name.to_string_lossy()));
        if !is_index || !path.is_file() {
            return Ok((path, self.pattern.clone()));
        }
        let place = open_index(&path)?.place;
        let pattern = self.pattern.clone().or(place.template.map(|template| template.to_string()));
        if pattern.is_none() && !Path::new(&place.directory).join("zazen.toml").is_file() {
            let why = format!(
                "{}: its files follow no pattern; list them with `zazen number {}`, then load that directory",
                path.display(),
                place.directory
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok((PathBuf::from(place.directory), pattern))
    }

    fn racks_of(&self, nodes: &[Node]) -> Result<Option<Vec<String>>> {
        match (&self.racks, self.layout) {
            (Some(file), Layout::Rack) => racks::of(file, nodes).map(Some),
            _ => Ok(None),
        }
    }

    fn tell(&self, report: &LoadReport, missed: &[Missed]) {
        for (frame, error) in report.failures.iter().take(NAMED_MAX) {
            output::note(format!("frame {frame}: {error}"));
        }
        let dataset = self.dataset.display();
        if report.frames == 0 && self.frames.is_none() {
            output::note(format!(
                "{dataset}: has no frames; if its files have other names, or are in folders, give --pattern, \
                 such as '**/*.jpg'"
            ));
        }
        if report.copies_missing > 0 {
            output::note(format!(
                "{dataset}: {} of the {} copies a frame that were asked for are missing, because nodes did \
                 not answer; load again when they do",
                report.copies_missing, self.copies
            ));
        }
        if self.json {
            let failures = report
                .failures
                .iter()
                .map(|(frame, error)| json!({"frame": frame, "why": error.to_string()}));
            return output::json(&json!({
                "dataset": self.dataset,
                "frames": report.frames,
                "present": report.present,
                "loaded": report.loaded,
                "bytes": report.bytes,
                "failed": report.failed,
                "copies_missing": report.copies_missing,
                "failures": failures.collect::<Vec<_>>(),
                "missed": target::missed_json(missed),
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
