//! `zazen index`: finds the frames of trajectory files beforehand, or as they grow.

use crate::{output, parse, target};
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_client::{Dataset, OpenOptions, OpenedTrajectory};
use zazen_core::{Error, ErrorKind, Result};

/// How often a growing file is looked at.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often a request to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen index /lustre/sim1/md.xtc            # once; later openings take milliseconds
  zazen index /lustre/sim1/md.xtc --follow   # while the simulation writes it; Ctrl-C ends it
  zazen index /lustre/sim1 --json            # the trajectories that zazen.toml names

The index is kept by this node's daemon, or, without a daemon, in your cache folder. Nothing is
written beside the data.")]
pub(crate) struct Index {
    /// A trajectory file, or a directory with one, or with a zazen.toml that names several
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Go on while the files grow, and print a line for each time they did
    #[arg(long)]
    follow: bool,
    /// With --follow: end if nothing grew for this time, such as 30s
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "follow")]
    idle_exit: Option<Duration>,
    /// The daemon's socket [default: $ZAZEN_SOCKET, or the usual place]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Ask no daemon; keep the index in your cache folder
    #[arg(long, conflicts_with = "socket")]
    direct: bool,
    /// Print JSON, one line for each time the files grew
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Index) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process as if there were no handler.
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::io("handlers for signals", error))?;
    }
    let path = target::dataset_path(&arguments.path)?;
    let options =
        OpenOptions { socket: arguments.socket.clone(), direct: arguments.direct, ..OpenOptions::default() };
    let mut last: Option<Vec<(u64, bool)>> = None;
    let mut changed = Instant::now();
    loop {
        let begun = Instant::now();
        match index(&path, &options) {
            Ok((found, by_daemon)) => {
                let state = found.trajectory.files.iter().map(|file| (file.count, file.trouble.is_some()));
                let state: Vec<_> = state.collect();
                if last.as_ref() != Some(&state) {
                    tell(arguments, &found, by_daemon, begun.elapsed());
                    (last, changed) = (Some(state), Instant::now());
                }
            }
            // The simulation has not begun to write.
            Err(error) if arguments.follow && error.kind() == ErrorKind::NotFound && last.is_none() => {}
            Err(error) => return Err(error),
        }
        let idle = arguments.idle_exit.is_some_and(|bound| changed.elapsed() >= bound);
        if !arguments.follow || idle {
            return Ok(());
        }
        let next = Instant::now() + INTERVAL;
        while Instant::now() < next {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn index(path: &std::path::Path, options: &OpenOptions) -> Result<(OpenedTrajectory, bool)> {
    let dataset = Dataset::open(path, options)?;
    let found = dataset.trajectory().ok_or_else(|| {
        let what =
            format!("{}: holds one file per frame, or pieces; there is nothing to index", path.display());
        Error::new(ErrorKind::InvalidArgument, what)
    })?;
    // Warnings go to the log; what is wrong is printed below.
    zazen_client::warnings();
    Ok((found, dataset.has_daemon()))
}

fn tell(arguments: &Index, found: &OpenedTrajectory, by_daemon: bool, took: Duration) {
    let trajectory = &found.trajectory;
    let frames: u64 = trajectory.files.iter().map(|file| file.count).sum();
    if arguments.json {
        let files = trajectory.files.iter().map(|file| {
            let trouble = file.trouble.as_ref().map(|trouble| {
                json!({"frame": file.count, "offset": trouble.offset, "unfinished": trouble.unfinished,
                    "why": trouble.why})
            });
            json!({"path": found.directory.join(file.path.as_str()), "first": file.first,
                "frames": file.count,
                "header_bytes": file.header.len(), "trouble": trouble})
        });
        let files: Vec<Value> = files.collect();
        let value = json!({"format": trajectory.format.name(), "atoms": trajectory.n_atoms, "frames": frames,
            "files": files, "daemon": by_daemon, "seconds": took.as_secs_f64()});
        output::json(&value);
        return;
    }
    let files = match trajectory.files.len() {
        1 => String::new(),
        count => format!(" in {count} files"),
    };
    output::line(format!(
        "{}: {}, {} atoms, {frames} frames{files}",
        arguments.path.display(),
        trajectory.format,
        trajectory.n_atoms
    ));
    found.troubles().iter().for_each(output::note);
}
