//! `zazen namespace archive`: what a node has archived, and waiting until it has archived all.

use super::names::shown;
use crate::output::{self, human_bytes};
use crate::target::{Done, Targets};
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::Namespace;

/// How often the daemon is asked.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace archive
  zazen namespace archive --wait                                  # for the files of this node
  srun --ntasks-per-node=1 zazen namespace archive --wait         # for all files of a job

With --wait, it returns when the archive has all closed files of this node that it shall have, and,
on the node that makes the names in the archive, when all files have theirs. Close files first: a
file that is open for writing is not archived before it is closed. What fails is tried again; a note
says why. Ctrl-C ends the waiting only, with exit status 3.")]
pub(crate) struct ArchiveCommand {
    #[command(flatten)]
    targets: Targets,
    /// Wait until the archive has all files of this node
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ArchiveCommand) -> Result<Done> {
    let namespace = arguments.targets.namespace()?;
    let mut status = asked(&namespace)?;
    if !arguments.wait {
        tell(arguments, &status);
        return Ok(Done::Wholly);
    }
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stopped));
        registered.map_err(|error| Error::io("handlers for signals", error))?;
    }
    let bar = output::spinner("archive");
    let mut since = None;
    let mut told = None;
    let is_done = loop {
        let waits = waiting(&status);
        // Only now: names that were made before may lack those of the last files.
        let since = since.get_or_insert_with(Instant::now);
        if waits > 0 {
            *since = Instant::now();
        }
        if waits == 0 && has_names(&status["archive"]["names"], since.elapsed()) {
            break true;
        }
        if stopped.load(Ordering::Relaxed) {
            break false;
        }
        let why = trouble(&status);
        if why != told {
            why.iter().for_each(output::note);
            told = why;
        }
        bar.set_message(format!("archive: {waits} files wait"));
        std::thread::sleep(LOOK);
        status = asked(&namespace)?;
    };
    bar.finish_and_clear();
    tell(arguments, &status);
    Ok(if is_done { Done::Wholly } else { Done::Partly })
}

/// The daemon's status; an error if it archives nothing.
fn asked(namespace: &Namespace) -> Result<Value> {
    let status: Value = serde_json::from_str(&namespace.status()?)
        .map_err(|error| Error::new(ErrorKind::Protocol, "the daemon's status").caused_by(error))?;
    if status["archive"]["root"].is_string() {
        return Ok(status);
    }
    let why = "this daemon archives nothing: set archive in [namespace], or give zazend --namespace-archive";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_default()
}

/// How many files of the node are to be archived still. Those without checksums are among them.
fn waiting(status: &Value) -> u64 {
    number(&status["archive"], "waiting") + number(status, "waits_for_checksums")
}

/// Whether all files have their names in the archive, by a look that began in the last `within`; or
/// another node makes the names.
fn has_names(names: &Value, within: Duration) -> bool {
    // The age is in whole seconds, rounded down.
    let is_new = || number(names, "age_s") < within.as_secs();
    !names.is_object() || (number(names, "lacking") == 0 && number(names, "failed") == 0 && is_new())
}

/// What keeps files from the archive.
fn trouble(status: &Value) -> Option<String> {
    let of = &status["archive"];
    let causes =
        [(&of["trouble"], "the archive"), (&of["failure"], "archiving"), (&of["names"]["failure"], "name")];
    causes.into_iter().find_map(|(why, what)| why.as_str().map(|why| format!("{what}: {why}")))
}

fn tell(arguments: &ArchiveCommand, status: &Value) {
    if arguments.json {
        let mut of = status["archive"].clone();
        of["waiting"] = json!(waiting(status));
        return output::json(&of);
    }
    show(status);
}

/// Shows what is archived of a node's files, waits, and fails.
pub(super) fn show(status: &Value) {
    let of = &status["archive"];
    let root = of["root"].as_str().unwrap_or("no archive is set");
    output::line(format!(
        "archive {}: {} files ({}) of this node, {} of them only there ({}); {} wait, {} failed",
        shown(Some(root)),
        number(of, "files"),
        human_bytes(number(of, "bytes")),
        number(of, "only_there_files"),
        human_bytes(number(of, "only_there_bytes")),
        waiting(status),
        number(of, "failed"),
    ));
    let names = &of["names"];
    if names.is_object() {
        output::line(format!(
            "names in the archive, {} s ago: {}, {} files had none yet, {} failed",
            names["age_s"], names["names"], names["lacking"], names["failed"],
        ));
    }
    trouble(status).iter().for_each(output::note);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_if_the_look_began_after_the_last_file_was_archived() {
        let names = |age_s: u64, lacking: u64| json!({"age_s": age_s, "lacking": lacking, "failed": 0});
        let within = Duration::from_secs;
        assert!(has_names(&Value::Null, within(0)), "another node makes them");
        assert!(has_names(&names(3, 0), within(4)));
        assert!(!has_names(&names(3, 0), within(3)), "it may have begun before");
        assert!(!has_names(&names(3, 1), within(60)));
        assert!(!has_names(&json!({"age_s": 0, "lacking": 0, "failed": 1}), within(60)));
    }

    #[test]
    fn files_without_checksums_wait_too() {
        let status = json!({"waits_for_checksums": 2, "archive": {"waiting": 3, "trouble": "away"}});
        assert_eq!(waiting(&status), 5);
        assert_eq!(trouble(&status).as_deref(), Some("the archive: away"));
        assert_eq!(trouble(&json!({"archive": {}})), None);
    }
}
