//! `zazen stage-in` and `zazen stage-out`: trees into the namespace and out of it.

use crate::output::{self, human_bytes};
use crate::target::one_socket;
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_backing::objects::{self, ObjectLocation, ObjectWriter, Owner};
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_namespace_client::Namespace;
use zazen_stage::{NamespaceSide, ObjectSide, Options, PlainSide, Progress, Report, Side, stage};

/// Failures that are named.
const NAMED_MAX: usize = 50;
/// How often the bar moves.
const LOOK: Duration = Duration::from_millis(100);
/// The file system of a mount, as the kernel names it.
const MOUNT: &str = "fuse.zazen";

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen stage-in /lustre/input /job/input            # /job is a mount of the namespace
  zazen stage-in /lustre/input /input                # a path of the namespace, without a mount
  srun -N 64 --ntasks-per-node=1 zazen stage-in /lustre/input /job/input  # all nodes share the work

Afterwards DST has what SRC has; nothing else at DST is removed. Files whose length and time are
equal at both ends are left alone, so the same command goes on after an interruption. Each node
keeps the files that it copied.")]
pub(crate) struct StageIn {
    /// A file or a directory of any file system
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where it goes: in a mount of the namespace, or a path of the namespace
    #[arg(value_name = "DST")]
    target: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen stage-out /job/run1 /lustre/run1
  srun -N 64 --ntasks-per-node=1 zazen stage-out /job/run1 /lustre/run1  # each writes its files
  zazen stage-out /job/run1 s3://bucket/run1         # into a bucket, with your credentials

Afterwards DST has what SRC has; nothing else at DST is removed. Files whose length and time are
equal at both ends are left alone, so the same command goes on after an interruption.")]
pub(crate) struct StageOut {
    /// In a mount of the namespace, or a path of the namespace
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where it goes, on any file system; or s3://BUCKET/KEY
    #[arg(value_name = "DST")]
    target: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
struct How {
    /// The daemon behind this socket, for a path of the namespace [default: on a testbed its first
    /// node's, else this machine's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Files that are copied at a time
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Compare bytes, too, where length and time are equal
    #[arg(long)]
    compare: bool,
    /// Do not read what was written to compare its checksum
    #[arg(long)]
    no_verify: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn stage_in(arguments: &StageIn) -> Result<()> {
    let to = side(&arguments.target, &arguments.how)?;
    let source = real(&arguments.source)?;
    let from = plain(&source)?;
    run("stage-in", &from, &source, &*to, &arguments.target, &arguments.how)
}

pub(crate) fn stage_out(arguments: &StageOut) -> Result<()> {
    let is_plain = arguments.how.socket.is_none() && is_mounted(&arguments.source)?;
    let source = if is_plain { real(&arguments.source)? } else { arguments.source.clone() };
    let from = side(&source, &arguments.how)?;
    if let Some(location) = arguments.target.to_str().filter(|text| text.starts_with(objects::SCHEME)) {
        let (to, target) = bucket(location)?;
        return run("stage-out", &*from, &source, &to, &target, &arguments.how);
    }
    let to = plain(&arguments.target)?;
    run("stage-out", &*from, &source, &to, &arguments.target, &arguments.how)
}

/// A bucket as a side, and where in it the tree goes.
fn bucket(told: &str) -> Result<(ObjectSide, PathBuf)> {
    let nobody = Owner { uid: 0, gid: 0, mode: 0o400 };
    let location = ObjectLocation::parse(told, nobody).map_err(|error| error.within(format!("{told:?}")))?;
    let target = PathBuf::from(location.prefix.as_str());
    let location = ObjectLocation { prefix: RelPath::default(), ..location };
    Ok((ObjectSide::new(ObjectWriter::new(&location, objects::program()?)), target))
}

/// A link on the command line stands for what it leads to.
fn real(source: &Path) -> Result<PathBuf> {
    source.canonicalize().map_err(|error| Error::io(source.display().to_string(), error))
}

fn plain(path: &Path) -> Result<PlainSide> {
    PlainSide::new(path).map_err(|error| Error::io(path.display().to_string(), error))
}

/// A path in a mount is the kernel's business, any other is the namespace's own.
fn side(path: &Path, how: &How) -> Result<Box<dyn Side>> {
    if how.socket.is_none() && is_mounted(path)? {
        return Ok(Box::new(plain(path)?));
    }
    if !path.is_absolute() {
        let why =
            format!("{}: give a path in a mount of the namespace, or one that begins with /", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let socket = one_socket(how.socket.as_deref())?;
    let side = NamespaceSide::new(Namespace::local(&socket)?, path);
    // A folder that is there, but in no mount, is looked for in the namespace: say where.
    Ok(Box::new(side.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let why = "lies in no mount of the namespace, so it is taken for a path of the namespace itself";
            error.within(format!("{} {why}", path.display()))
        }
        _ => error,
    })?))
}

/// Whether the path lies in a mount of a namespace.
fn is_mounted(path: &Path) -> Result<bool> {
    let io = |error| Error::io(path.display().to_string(), error);
    let absolute = std::path::absolute(path).map_err(io)?;
    // What is not there yet is where its parent is.
    let real = absolute.ancestors().find_map(|above| above.canonicalize().ok()).unwrap_or_default();
    let table = std::fs::read("/proc/self/mountinfo").map_err(io)?;
    let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let behind = words.iter().position(|word| *word == b"-")?;
        Some((unescaped(words.get(4)?), *words.get(behind + 1)?))
    });
    let above = mounts.filter(|(at, _)| real.starts_with(Path::new(std::ffi::OsStr::from_bytes(at))));
    // The last of equals is on top.
    let nearest = above.max_by_key(|(at, _)| at.len());
    Ok(nearest.is_some_and(|(_, kind)| kind == MOUNT.as_bytes()))
}

/// A field of mountinfo: blanks and the like are `\ooo` there.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = (field[at] == b'\\').then(|| field.get(at + 1..at + 4)).flatten();
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(byte.unwrap_or(field[at]));
        at += if byte.is_some() { 4 } else { 1 };
    }
    plain
}

/// A file goes into a directory that is there, under its own name, as with `cp`.
fn target_of(from: &dyn Side, source: &Path, to: &dyn Side, target: &Path) -> Result<PathBuf> {
    let within = |path: &Path, error| Error::io(path.display().to_string(), error);
    let of_source = from.meta(source).map_err(|error| within(source, error))?;
    let of_target = to.meta(target).map_err(|error| within(target, error))?;
    let is_file = of_source.is_some_and(|meta| meta.kind == zazen_stage::Kind::File);
    let into = of_target.is_some_and(|meta| meta.kind == zazen_stage::Kind::Directory);
    Ok(match source.file_name() {
        Some(name) if is_file && into => target.join(name),
        _ => target.to_path_buf(),
    })
}

fn run(
    what: &'static str,
    from: &dyn Side,
    source: &Path,
    to: &dyn Side,
    target: &Path,
    how: &How,
) -> Result<()> {
    let shown = source.display();
    if from.own_node().is_none()
        && to.own_node().is_none()
        && to.whole_files().is_none()
        && std::path::absolute(target).is_ok_and(|target| target.starts_with(source))
    {
        let why = format!("{shown}: {} is in it", target.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let target = target_of(from, source, to, target)?;
    let options = Options { jobs: how.jobs.into(), compare: how.compare, verify: !how.no_verify };
    let progress = Arc::new(Progress::default());
    stop_on_signal(&progress)?;
    let begun = Instant::now();
    let report = std::thread::scope(|scope| {
        let staged = scope.spawn(|| stage(from, source, to, &target, &options, &progress));
        let bar = output::bytes_bar(0, what);
        while !staged.is_finished() {
            bar.set_length(progress.bytes_total.load(Ordering::Relaxed));
            bar.set_position(progress.bytes_done.load(Ordering::Relaxed));
            std::thread::sleep(LOOK);
        }
        bar.finish_and_clear();
        staged.join()
    });
    let report = match report {
        Ok(report) => report.map_err(|error| Error::io(format!("{shown} to {}", target.display()), error))?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    tell(&report, begun.elapsed(), how.json);
    judge(what, &report)
}

/// The first signal ends the run after the chunks that are under way, the second at once.
fn stop_on_signal(progress: &Arc<Progress>) -> Result<()> {
    let failed = |error| Error::io("handlers for signals", error);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let progress = Arc::clone(progress);
    let watch = move || {
        for signal in &mut signals {
            if progress.stop.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop).map_err(failed)
}

fn tell(report: &Report, took: Duration, json: bool) {
    for failure in report.failures.iter().take(NAMED_MAX) {
        output::note(format!("{}: {}", failure.path.display(), failure.error));
    }
    if report.failures.len() > NAMED_MAX {
        output::note(format!("and {} more", report.failures.len() - NAMED_MAX));
    }
    if json {
        output::json(&json!({
            "copied": report.copied,
            "copied_bytes": report.copied_bytes,
            "there": report.there,
            "others": report.others,
            "elsewhere": report.elsewhere,
            "left_out": report.left_out,
            "failed": report.failures.iter().map(|failure| json!({
                "path": failure.path.display().to_string(),
                "error": failure.error.to_string(),
            })).collect::<Vec<_>>(),
            "stopped": report.stopped,
        }));
        return;
    }
    output::line(format!(
        "{} files copied ({} in {:.1} s), {} were there, {} failed",
        report.copied,
        human_bytes(report.copied_bytes),
        took.as_secs_f64(),
        report.there,
        report.failures.len()
    ));
    if report.elsewhere > 0 {
        output::note(format!("{} files are being copied by other processes", report.elsewhere));
    }
    if report.left_out > 0 {
        output::note(format!(
            "left out: {} empty directories and extended attributes, which an object store does not keep",
            report.left_out
        ));
    }
}

fn judge(what: &str, report: &Report) -> Result<()> {
    if !report.failures.is_empty() {
        let why =
            format!("{what}: {} could not be copied; mend that and run it again", report.failures.len());
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    if report.stopped {
        let why = format!("{what}: stopped; the same command goes on");
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mountinfo_come_back() {
        assert_eq!(unescaped(br"/a\040b\134c\0"), br"/a b\c\0");
    }
}
