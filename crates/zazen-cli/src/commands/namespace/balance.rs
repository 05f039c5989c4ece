//! `zazen namespace balance`: files go from full disks to empty ones.

use crate::output::{self, Table, human_bytes};
use crate::target::{Done, Targets};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zazen_core::{Error, Result, byte_size};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::map::State;
use zazen_namespace_client::core::service::{Balance, Balanced, NodeView};

/// How often the nodes are asked how far they are.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace balance                   # at 100 MiB/s for each node
  zazen namespace balance --rate 1G --age 0

Root and the daemon's user may balance. Nodes whose disk is fuller than all disks together give
files to the emptiest, until they differ by less than 3 %. Files that somebody has open stay, and so
do files that were changed lately. Ctrl-C stops the work on all nodes; what was moved stays there.")]
pub(crate) struct BalanceCommand {
    #[command(flatten)]
    targets: Targets,
    /// The most bytes that each node sends in a second
    #[arg(long, value_name = "BYTES", default_value = "100M", value_parser = byte_size::parse)]
    rate: u64,
    /// Files that were changed in the last so many seconds stay
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    age: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &BalanceCommand) -> Result<Done> {
    let namespace = arguments.targets.namespace()?;
    let mut nodes = namespace.map()?.nodes;
    nodes.retain(|node| node.state != State::Gone);
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stopped));
        registered.map_err(|error| Error::io("handlers for signals", error))?;
    }
    let bar = output::spinner("balance");
    let start = Balance { node: None, run: Some(true), bytes_per_s: arguments.rate, age_s: arguments.age };
    let mut outcomes: Vec<(NodeView, Result<Balanced>)> =
        nodes.into_iter().map(|node| (node.clone(), ask(&namespace, &node, &start))).collect();
    let mut only_ask = Balance { run: None, ..start };
    loop {
        std::thread::sleep(LOOK);
        if stopped.load(Ordering::Relaxed) {
            only_ask.run = Some(false);
        }
        for (node, outcome) in &mut outcomes {
            if outcome.as_ref().is_ok_and(|balanced| balanced.running) {
                *outcome = ask(&namespace, node, &only_ask);
            }
        }
        let known = || outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
        let bytes: u64 = known().map(|balanced| balanced.bytes).sum();
        bar.set_message(format!("balance: {} moved", human_bytes(bytes)));
        if !known().any(|balanced| balanced.running) {
            break;
        }
    }
    bar.finish_and_clear();
    tell(&outcomes, arguments.json);
    let partly = outcomes.iter().any(|(_, outcome)| outcome.is_err());
    Ok(if partly { Done::Partly } else { Done::Wholly })
}

fn ask(namespace: &Namespace, node: &NodeView, ask: &Balance) -> Result<Balanced> {
    namespace.balance(&Balance { node: Some(node.node), ..ask.clone() })
}

fn tell(outcomes: &[(NodeView, Result<Balanced>)], json: bool) {
    if json {
        let row = |(node, outcome): &(NodeView, Result<Balanced>)| {
            let balanced = outcome.as_ref().cloned().unwrap_or_default();
            json!({
                "node": node.node.0,
                "name": (!node.name.is_empty()).then_some(&node.name),
                "files": balanced.files,
                "bytes": balanced.bytes,
                "left": balanced.left,
                "error": outcome.as_ref().err().map(ToString::to_string),
            })
        };
        return output::json(&json!(outcomes.iter().map(row).collect::<Vec<_>>()));
    }
    let mut table = Table::new(&["node", "name", ">files moved", ">bytes", ">left"]);
    for (node, outcome) in outcomes {
        match outcome {
            Ok(balanced) => table.row(vec![
                node.node.to_string(),
                super::names::shown(Some(&node.name)),
                balanced.files.to_string(),
                human_bytes(balanced.bytes),
                balanced.left.to_string(),
            ]),
            Err(error) => output::note(format!("node {}: {error}", node.node)),
        }
    }
    output::print(&table.render());
}
