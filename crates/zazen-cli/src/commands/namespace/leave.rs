//! `zazen namespace leave`: a node gives away what it keeps, and is no node of the namespace then.

use super::names::shown;
use crate::output::{self, human_bytes};
use crate::target::{Done, Targets};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::map::State;
use zazen_namespace_client::core::service::{Leave, Leaving, NodeView};

/// How often the node is asked how far it is.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace leave n3             # waits until node n3 has left
  zazen namespace leave n3 --no-wait   # zazen namespace status shows how far it is
  zazen namespace leave n3 --stay      # it stays after all

NODE is a name, or a number in the first column of `zazen namespace status`.

Root and the daemon's user may have a node leave. The other nodes take over its part of the
metadata, then it gives them its files; programs notice nothing. Files that somebody has open move
when they are closed, so end the node's programs first. Ctrl-C ends the waiting only, with exit
status 3. A node that is stopped meanwhile goes on when it is back. When it has left, stop its
daemon; its folder holds nothing that the namespace needs.")]
pub(crate) struct LeaveCommand {
    /// The node: its name, or its number in `zazen namespace status`
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    targets: Targets,
    /// The node stays after all
    #[arg(long)]
    stay: bool,
    /// Do not wait until the node has left
    #[arg(long, conflicts_with = "stay")]
    no_wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &LeaveCommand) -> Result<Done> {
    let namespace = arguments.targets.namespace()?;
    let node = find(&namespace, &arguments.node)?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stopped));
        registered.map_err(|error| Error::io("handlers for signals", error))?;
    }
    let mut leaving = namespace.leave(&Leave { node: Some(node.node), run: Some(!arguments.stay) })?;
    let called = format!("node {} ({})", node.node, shown(Some(&node.name)));
    if arguments.stay {
        tell(arguments, &leaving, &format!("{called} stays"));
        return Ok(Done::Wholly);
    }
    let bar = output::spinner("leave");
    while !arguments.no_wait && leaving.state != State::Gone && !stopped.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        match namespace.leave(&Leave { node: Some(node.node), run: None }) {
            Ok(now) if !now.wanted => {
                bar.finish_and_clear();
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("{called} stays: somebody said so meanwhile"),
                ));
            }
            Ok(now) => {
                leaving = now;
                bar.set_message(format!("leave: {called} {}", how_far(&leaving)));
            }
            Err(error) => bar.set_message(format!("leave: {called} does not answer: {error}")),
        }
    }
    bar.finish_and_clear();
    let has_left = leaving.state == State::Gone;
    let words = match has_left {
        true => format!("{called} has left, and keeps nothing of the namespace; stop its daemon"),
        false => format!(
            "{called} is leaving: it {}; `zazen namespace status` shows how far it is",
            how_far(&leaving)
        ),
    };
    tell(arguments, &leaving, &words);
    Ok(if has_left || arguments.no_wait { Done::Wholly } else { Done::Partly })
}

/// The node of this number or name.
fn find(namespace: &Namespace, wanted: &str) -> Result<NodeView> {
    let nodes = namespace.map()?.nodes;
    let number = wanted.parse::<u32>().ok();
    let is_it = |node: &&NodeView| number.map_or(node.name == wanted, |number| node.node.0 == number);
    let mut found: Vec<&NodeView> = nodes.iter().filter(is_it).collect();
    // A machine that has left and joined again has its name from before, too.
    if found.len() > 1 {
        found.retain(|node| node.state != State::Gone);
    }
    match found[..] {
        [node] => Ok(node.clone()),
        [] => Err(Error::new(
            ErrorKind::NotFound,
            format!("the namespace has no node {}; `zazen namespace status` lists them", shown(Some(wanted))),
        )),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("several nodes are called {}: name it by its number", shown(Some(wanted))),
        )),
    }
}

/// What still is to be done.
fn how_far(leaving: &Leaving) -> String {
    let mut words = vec![format!("keeps {} partitions", leaving.partitions)];
    // Nought may mean that they were not counted yet.
    if leaving.files > 0 {
        words.push(format!("has {} files ({})", leaving.files, human_bytes(leaving.bytes)));
    }
    if leaving.in_use > 0 {
        words.push(format!("{} of them in use", leaving.in_use));
    }
    if leaving.open_files > 0 {
        words.push(format!("its programs have {} files open", leaving.open_files));
    }
    if leaving.is_steward {
        words.push("is a steward".to_owned());
    }
    if leaving.moved > 0 {
        words.push(format!("has given away {} files ({})", leaving.moved, human_bytes(leaving.moved_bytes)));
    }
    words.join(", ")
}

fn tell(arguments: &LeaveCommand, leaving: &Leaving, words: &str) {
    if arguments.json {
        return output::json(&json!({
            "left": leaving.state == State::Gone,
            "leaving": leaving.wanted,
            "partitions": leaving.partitions,
            "is_steward": leaving.is_steward,
            "files": leaving.files,
            "bytes": leaving.bytes,
            "in_use": leaving.in_use,
            "open_files": leaving.open_files,
            "moved": leaving.moved,
            "moved_bytes": leaving.moved_bytes,
        }));
    }
    output::line(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_yet_is_not_told() {
        let leaving = Leaving { partitions: 3, ..Leaving::default() };
        assert_eq!(how_far(&leaving), "keeps 3 partitions");
        let leaving = Leaving { files: 2, bytes: 5, moved: 1, moved_bytes: 1, ..leaving };
        assert_eq!(how_far(&leaving), "keeps 3 partitions, has 2 files (5 B), has given away 1 files (1 B)");
    }
}
