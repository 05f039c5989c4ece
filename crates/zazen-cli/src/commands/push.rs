//! `zazen push`: frames into the nodes' caches, from files that are there or as a simulation writes
//! them.

mod outcome;
mod through;

use crate::{output, parse, target};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use outcome::{judge, skipped, tell};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zazen_backing::objects::{self, ObjectLocation, Owner};
use zazen_backing::trajectory::{Finder, Indexes};
use zazen_backing::{DirectoryBacking, dataset};
use zazen_client::watch::{Submit, WatchEvent, WatchOptions, read_file, watch_into};
use zazen_client::{FrameSource, NodeList, Pusher, PusherOptions};
use zazen_core::{Error, ErrorKind, FrameNo, Layout, RelPath, Result, Series, survey};
use zazen_push::OnSlow;

#[derive(Clone, Copy, ValueEnum)]
enum Slow {
    /// Skip frames while the window is full
    Skip,
    /// Fall behind and push every frame
    Block,
}

/// Where objects are written. Whose they are is for the daemons that serve them to say.
fn location(told: &str) -> Result<ObjectLocation> {
    ObjectLocation::parse(told, Owner { uid: 0, gid: 0, mode: 0o400 })
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen push --watch /lustre/sim1 --nodes nodes.txt     # while the simulation runs; Ctrl-C ends it
  zazen push --watch /lustre/sim1 --nodes nodes.txt --until simulation.done
  zazen push /lustre/sim1/frame-*.dcd --nodes node1,node2
  zazen push --watch /lustre/ocean --pattern 'step{t}/block{b}.vtu' --copies 3 --nodes nodes.txt
  zazen push --watch /scratch/sim1 --write-through s3://bucket/sim1 --nodes nodes.txt

After Ctrl-C, frames in flight are finished and the counters are printed.")]
pub(crate) struct Push {
    /// Files of one dataset to push now
    #[arg(value_name = "FILE", required_unless_present = "watch", conflicts_with = "watch")]
    files: Vec<PathBuf>,
    /// Push each file that appears in this directory
    #[arg(long, value_name = "DIR")]
    watch: Option<PathBuf>,
    /// The nodes: a file with one host:port a line, or host:port,host:port [default: $ZAZEN_NODES]
    #[arg(long, value_name = "FILE|LIST", env = "ZAZEN_NODES", hide_env = true)]
    nodes: Option<String>,
    /// The cluster key's file [default: $ZAZEN_KEY]
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY", hide_env = true)]
    key: Option<PathBuf>,
    /// Pattern of the file names, like frame-{n:07}.dcd [default: from the manifest or the file
    /// names]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
    /// What to do when nodes can't keep up. The simulation itself never waits, with either value
    #[arg(long, value_enum, default_value = "block")]
    on_slow: Slow,
    /// Nodes that get each frame, for visualization (`zazen viz`)
    #[arg(long, value_name = "NODES", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Frames in flight
    #[arg(long, value_name = "FRAMES", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Bytes in flight
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::bytes)]
    window_bytes: u64,
    /// How long a node may take for one frame before it counts as dead
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse::patience)]
    timeout: Duration,
    /// Write each file to this object store first, with your credentials. Then push it as a frame
    /// of the dataset there; settings follow a `?`, as for zazend --backing
    #[arg(long, value_name = "s3://BUCKET/PREFIX", value_parser = location)]
    write_through: Option<ObjectLocation>,
    /// Objects that are written at once
    #[arg(long, value_name = "N", default_value_t = 8, requires = "write_through",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    uploads: u16,
    /// End when no file has appeared for this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "watch")]
    idle_exit: Option<Duration>,
    /// End when a file of this name appears in the directory
    #[arg(long, value_name = "NAME", requires = "watch")]
    until: Option<String>,
    /// Leave out files that exist at the start
    #[arg(long, requires = "watch")]
    no_existing: bool,
    /// How far this program stands back behind the simulation for processors (0 to 19, as nice(1))
    #[arg(long, value_name = "NICE", default_value_t = 10, requires = "watch",
        value_parser = clap::value_parser!(i32).range(0..=19))]
    nice: i32,
    /// Print the counters as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Push) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process as if there were no handler.
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::io("handlers for signals", error))?;
    }
    if arguments.watch.is_some() {
        stand_back(arguments.nice)?;
    }
    let dataset = target::dataset_path(&arguments.dataset()?)?;
    if dataset.to_str().is_some_and(|text| text.starts_with(objects::SCHEME)) {
        let why = format!(
            "{}: a push takes files of this machine; give --write-through to write them to an object \
             store, or put them there with the store's own tools",
            dataset.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let layout = if arguments.watch.is_some() { None } else { Some(arguments.layout(&dataset)?) };
    let pattern = match &layout {
        Some(Layout::Files(template)) => Some(template.to_string()),
        _ => arguments.pattern.clone(),
    };
    if let Some(location) = &arguments.write_through {
        return through::run(arguments, location, &dataset, pattern.as_deref(), layout.as_ref(), &stop);
    }
    let pusher = Pusher::new(&dataset, pattern.as_deref(), arguments.options()?)?;
    let mut submit = |number, bytes, source| pusher.push(number, bytes, source);
    let outcome = match &arguments.watch {
        Some(_) => arguments.watch(&dataset, &pusher, &output::spinner("watching"), &mut submit, &stop),
        None => arguments.push_files(&mut submit, layout.as_ref(), &stop),
    };
    // The reasons are only complete when every fate is settled.
    pusher.drain();
    let problems = pusher.problems();
    let counters = pusher.finish()?;
    tell(&dataset, &counters, None, &problems, arguments.json);
    outcome?;
    judge(&counters, arguments.nodes.as_deref().unwrap_or_default())
        .map_err(|error| error.within(dataset.display()))
}

/// Lets other programs have the processors first. The threads that push are made later, and inherit
/// it.
fn stand_back(nice: i32) -> Result<()> {
    let failed = |errno: rustix::io::Errno| Error::io(format!("nice value {nice}"), errno.into());
    let now = rustix::process::getpriority_process(None).map_err(failed)?;
    match nice > now {
        true => rustix::process::setpriority_process(None, nice).map_err(failed),
        false => Ok(()),
    }
}

impl Push {
    /// The directory of the dataset: the watched one, or the one that all files are in.
    fn dataset(&self) -> Result<PathBuf> {
        if let Some(directory) = &self.watch {
            return Ok(directory.clone());
        }
        let folder = |file: &Path| match file.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_path_buf(),
            None => PathBuf::from("/"),
        };
        let first = folder(&self.files[0]);
        match self.files.iter().find(|file| folder(file) != first) {
            None => Ok(first),
            Some(other) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{}: is not in {}, and one push goes to one dataset; push each directory by itself",
                    other.display(),
                    first.display()
                ),
            )),
        }
    }

    fn options(&self) -> Result<PusherOptions> {
        let missing =
            |what: &str, how: &str| Error::new(ErrorKind::Config, format!("{what}: not given; {how}"));
        let nodes = self.nodes.as_deref().filter(|spec| !spec.is_empty());
        let nodes = nodes.ok_or_else(|| missing("nodes", "give --nodes nodes.txt or set ZAZEN_NODES"))?;
        let key = self.key.clone().ok_or_else(|| {
            missing("cluster key", "give --key FILE or set ZAZEN_KEY; `zazen key new FILE` makes one")
        })?;
        let on_slow = match self.on_slow {
            Slow::Skip => OnSlow::Skip,
            Slow::Block => OnSlow::Block,
        };
        Ok(PusherOptions {
            nodes: NodeList::read(nodes)?,
            key,
            window_frames: self.window as usize,
            window_bytes: self.window_bytes,
            on_slow,
            timeout: self.timeout,
            seed: None,
            copies: self.copies as usize,
        })
    }

    fn watch(
        &self,
        dataset: &Path,
        pusher: &Pusher,
        spinner: &ProgressBar,
        submit: &mut Submit<'_>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let options = WatchOptions {
            pattern: self.pattern.clone(),
            existing: !self.no_existing,
            idle_exit: self.idle_exit,
            until: self.until.clone(),
        };
        let mut submitted = 0_u64;
        let outcome = watch_into(dataset, submit, &options, stop, &mut |event| match event {
            WatchEvent::Submitted { .. } => {
                submitted += 1;
                let done = pusher.counters();
                spinner.set_message(format!(
                    "{submitted} frames seen, {} pushed, {} skipped",
                    done.pushed,
                    skipped(&done)
                ));
            }
            WatchEvent::NotAFrame(name) => {
                spinner
                    .suspend(|| output::note(format!("{name}: its name gives no frame number; left alone")));
            }
            WatchEvent::Failed { name, reason } => {
                spinner.suspend(|| output::note(format!("{name}: {reason}")))
            }
            WatchEvent::CaughtUp => {}
        });
        spinner.finish_and_clear();
        outcome
    }

    fn push_files(&self, submit: &mut Submit<'_>, layout: Option<&Layout>, stop: &AtomicBool) -> Result<()> {
        let bar = output::bar(self.files.len() as u64, "push");
        for file in &self.files {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(number) = layout.and_then(|layout| number_of(layout, name)) else {
                bar.finish_and_clear();
                let shown = layout.map(|layout| Series::of(layout).to_string()).unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{}: its name is not one of {shown}; leave it out or give --pattern",
                        file.display()
                    ),
                ));
            };
            let (bytes, seen, owner) = match read_file(file) {
                Ok(found) => found,
                Err(error) => {
                    bar.finish_and_clear();
                    return Err(error);
                }
            };
            submit(
                number,
                bytes,
                FrameSource {
                    name: Some(name.to_owned()),
                    validator: Some(seen),
                    owner: Some(owner),
                    ..FrameSource::default()
                },
            )?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// What numbers the files given: the pattern, else the directory's manifest, else their own
    /// names.
    fn layout(&self, dataset: &Path) -> Result<Layout> {
        if let Some(pattern) = &self.pattern {
            return dataset::layout_of_pattern(pattern);
        }
        let backing = DirectoryBacking::new(dataset)?;
        let (indexes, store) = (Indexes::of_this_user(), dataset.to_string_lossy());
        let finder = Finder { indexes: &indexes, store: &store, stops: None };
        if let Some(told) = dataset::told_layout(finder, &backing, &RelPath::default(), None)? {
            return Ok(told);
        }
        let names = self.files.iter().filter_map(|file| file.file_name()?.to_str());
        survey::choose(names)?.map(Layout::Files).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "file names: none has a number in it; give --pattern like frame-{n:07}.dcd, or list the \
                 files in zazen.toml (zazen number DIR)",
            )
        })
    }
}

fn number_of(layout: &Layout, name: &str) -> Option<FrameNo> {
    match layout {
        Layout::Files(template) => template.number(name),
        Layout::List(files) => {
            let index = files.iter().position(|file| file.as_str() == name)?;
            FrameNo::new(index as u64).ok()
        }
        // A file that holds many frames is pushed by --watch, piece by piece.
        Layout::Pieces(_) | Layout::Trajectory(_) | Layout::Blocks(_) => None,
    }
}
