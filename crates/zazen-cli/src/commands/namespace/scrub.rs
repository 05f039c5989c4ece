//! `zazen namespace scrub`: are the bytes on the nodes' disks what was written?

use crate::output::{self, Table, human_bytes};
use crate::target::{Done, Targets};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::NodeNo;
use zazen_namespace_client::core::map::State;
use zazen_namespace_client::core::service::{Damage, NodeView, ScrubAt, Scrubbed};

/// Damaged files that are named.
const NAMED_MAX: usize = 20;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace scrub               # all nodes
  zazen namespace scrub --node 2
  zazen namespace scrub --json

Root and the daemon's user may scrub. It reads all that the nodes hold, compares it with the
checksums that were made after each file was closed, and removes objects that no file names. Reading
a damaged file fails from then on; `find MOUNTPOINT -inum INODE` finds its name.")]
pub(crate) struct Scrub {
    #[command(flatten)]
    targets: Targets,
    /// Only this node, by its number in `zazen namespace status`
    #[arg(long, value_name = "NUMBER")]
    node: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found on a node; an error if it ended early.
struct Outcome {
    node: NodeView,
    found: Scrubbed,
    error: Option<Error>,
}

pub(crate) fn run(arguments: &Scrub) -> Result<Done> {
    let namespace = arguments.targets.namespace()?;
    let mut nodes = namespace.map()?.nodes;
    nodes.retain(|node| node.state != State::Gone);
    if let Some(number) = arguments.node {
        nodes.retain(|node| node.node == NodeNo(number));
        if nodes.is_empty() {
            let why = format!("the namespace has no node {number}; see `zazen namespace status`");
            return Err(Error::new(ErrorKind::NotFound, why));
        }
    }
    let bar = output::parts_bar(0, "scrub");
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let (namespace, bar) = (&namespace, &bar);
        let one = |node| scope.spawn(move || scrub(namespace, node, bar));
        let threads: Vec<_> = nodes.into_iter().map(one).collect();
        // A thread that panicked has said so.
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    bar.finish_and_clear();
    if arguments.json {
        output::json(&json!(outcomes.iter().map(to_json).collect::<Vec<_>>()));
    } else {
        tell(&outcomes);
    }
    judge(&outcomes)
}

fn scrub(namespace: &Namespace, node: NodeView, bar: &ProgressBar) -> Outcome {
    let mut found = Scrubbed::default();
    let mut at = ScrubAt::default();
    loop {
        let part = match namespace.scrub(Some(node.node), at) {
            Ok(part) => part,
            Err(error) => return Outcome { node, found, error: Some(error) },
        };
        if found.folders == 0 {
            bar.inc_length(part.folders);
        }
        bar.inc(part.next.map_or(part.folders, |next| next.folder).saturating_sub(at.folder));
        add(&mut found, part);
        match found.next.take() {
            Some(next) => at = next,
            None => return Outcome { node, found, error: None },
        }
    }
}

fn add(sum: &mut Scrubbed, part: Scrubbed) {
    sum.next = part.next;
    sum.folders = part.folders;
    sum.objects += part.objects;
    sum.bytes += part.bytes;
    sum.unsealed += part.unsealed;
    sum.unknown += part.unknown;
    sum.removed += part.removed;
    sum.removed_bytes += part.removed_bytes;
    sum.damaged.extend(part.damaged);
    sum.short.extend(part.short);
}

fn to_json(outcome: &Outcome) -> serde_json::Value {
    let inodes = |of: &[Damage]| of.iter().map(|damage| damage.id.0).collect::<Vec<_>>();
    let found = &outcome.found;
    json!({
        "node": outcome.node.node.0,
        "name": (!outcome.node.name.is_empty()).then_some(&outcome.node.name),
        "files": found.objects,
        "bytes_checked": found.bytes,
        "without_checksums": found.unsealed,
        "unknown": found.unknown,
        "removed": found.removed,
        "removed_bytes": found.removed_bytes,
        "damaged_inodes": inodes(&found.damaged),
        "short_inodes": inodes(&found.short),
        "error": outcome.error.as_ref().map(ToString::to_string),
    })
}

fn tell(outcomes: &[Outcome]) {
    let mut table =
        Table::new(&["node", "name", ">files", ">checked", ">no checksum", ">removed", ">damaged", ">short"]);
    for Outcome { node, found, error } in outcomes {
        table.row(vec![
            node.node.to_string(),
            super::names::shown(Some(&node.name)),
            found.objects.to_string(),
            human_bytes(found.bytes),
            found.unsealed.to_string(),
            found.removed.to_string(),
            found.damaged.len().to_string(),
            found.short.len().to_string(),
        ]);
        for (what, of) in [("damaged", &found.damaged), ("shorter than its metadata", &found.short)] {
            for damage in of.iter().take(NAMED_MAX) {
                output::note(format!("node {}: inode {} is {what}", node.node, damage.id));
            }
        }
        if let Some(error) = error {
            output::note(format!("node {}: not scrubbed to the end: {error}", node.node));
        }
        if found.unknown > 0 {
            let count = found.unknown;
            output::note(format!(
                "node {}: {count} objects were left out, because their metadata or the disk did not answer",
                node.node
            ));
        }
    }
    output::print(&table.render());
}

fn judge(outcomes: &[Outcome]) -> Result<Done> {
    let damaged: usize = outcomes.iter().map(|of| of.found.damaged.len() + of.found.short.len()).sum();
    if damaged > 0 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{damaged} files are damaged; find them with `find MOUNTPOINT -inum INODE`, and write them \
                 anew"
            ),
        ));
    }
    let partly = outcomes.iter().any(|of| of.error.is_some() || of.found.unknown > 0);
    Ok(if partly { Done::Partly } else { Done::Wholly })
}
