//! `zazen status`: how the nodes are.

use crate::output::{self, Lines, Table, human_bytes};
use crate::target::{self, Done, Missed, Node, Targets};
use clap::Args;
use serde_json::{Value, json};
use std::thread::ScopedJoinHandle;
use zazen_client::cluster::Remote;

use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen status                          # this machine's daemon
  zazen status --nodes nodes.txt        # all nodes; says why a node does not serve
  zazen status --json | jq '.nodes[] | select(.state != \"up\") | .node + \": \" + .remedy'
  zazen status --dump                   # a daemon's whole state as text, for a bug report

States of a node that does not serve: dead (nobody listens there), hangs, unreachable (its machine
does not answer), unknown name, wrong key, untrusted (another user's daemon), busy, draining,
incompatible, failed.

Exit code 1 if no node answers, 3 if some do not.")]
pub(crate) struct Status {
    #[command(flatten)]
    targets: Targets,
    /// Print JSON, with the daemons' own counters
    #[arg(long)]
    json: bool,
    /// Print the daemons' whole state as text
    #[arg(long, conflicts_with = "json")]
    dump: bool,
}

struct Answer {
    node: Node,
    status: std::result::Result<Value, Missed>,
}

pub(crate) fn run(arguments: &Status) -> Result<Done> {
    let nodes = arguments.targets.nodes()?;
    if arguments.dump {
        return dump_all(&nodes);
    }
    // A dead node costs its whole time limit: all are asked at once.
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            nodes.into_iter().map(|node| (node.clone(), scope.spawn(move || look(&node)))).collect();
        let gone = || {
            Error::new(
                ErrorKind::Unavailable,
                "the thread that asked it ended early, a bug; please report it",
            )
        };
        let end = |(node, thread): (Node, ScopedJoinHandle<'_, _>)| {
            let status = thread.join().unwrap_or_else(|_| Err(Missed::new(&node, gone())));
            Answer { node, status }
        };
        asked.into_iter().map(end).collect()
    });
    match arguments.json {
        true => output::json(&json!({"nodes": answers.iter().map(as_json).collect::<Vec<_>>()})),
        false => output::print(&as_table(&answers)),
    }
    let count = answers.len();
    let missed: Vec<Missed> = answers.into_iter().filter_map(|answer| answer.status.err()).collect();
    match missed.is_empty() {
        true => Ok(Done::Wholly),
        false if missed.len() == count => Err(target::none_answers(missed)),
        false => {
            for one in &missed {
                output::note(format!(
                    "node {}: {}: {}; {}",
                    one.node,
                    one.state,
                    one.error,
                    one.state.remedy()
                ));
            }
            Ok(Done::Partly)
        }
    }
}

fn dump_all(nodes: &[Node]) -> Result<Done> {
    let mut missed = Vec::new();
    for node in nodes {
        match dump(node) {
            Err(error) if nodes.len() == 1 => return Err(error),
            Err(error) => missed.push(Missed::new(node, error)),
            Ok(()) => {}
        }
    }
    match missed.len() == nodes.len() {
        true => Err(target::none_answers(missed)),
        false => Ok(target::judge(&missed, "their state is not shown")),
    }
}

fn look(node: &Node) -> std::result::Result<Value, Missed> {
    ask(node).map_err(|error| Missed::new(node, error))
}

fn connect(node: &Node) -> Result<Remote> {
    let mut remote = node.connect()?;
    remote.set_timeout(Some(std::time::Duration::from_secs(10)));
    Ok(remote)
}

fn dump(node: &Node) -> Result<()> {
    let state = connect(node)?.dump()?;
    let mut text = Lines::default();
    text.line(format!("node {}", node.name));
    text.text(&state);
    output::print(&text);
    Ok(())
}

fn ask(node: &Node) -> Result<Value> {
    let text = connect(node)?.status()?;
    serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("node {}: status: {error}", node.name)))
}

fn as_json(answer: &Answer) -> Value {
    let target = answer.node.target.to_string();
    match &answer.status {
        Ok(status) => {
            json!({"node": name(answer), "target": target, "state": state(status), "status": status})
        }
        Err(missed) => {
            let mut value = missed.as_json();
            value["target"] = json!(target);
            value
        }
    }
}

fn name(answer: &Answer) -> &str {
    let told = answer.status.as_ref().ok().and_then(|status| status["name"].as_str());
    told.unwrap_or(&answer.node.name)
}

/// The state of a node that answers, in a word.
pub(super) fn state(status: &Value) -> &str {
    match status["draining"].as_bool() {
        Some(true) => "draining",
        _ if disk_fails(status) => "disk fails",
        _ => "up",
    }
}

fn disk_fails(status: &Value) -> bool {
    status.pointer("/disk/ok").and_then(Value::as_bool) == Some(false)
}

fn as_table(answers: &[Answer]) -> Lines {
    let mut table =
        Table::new(&["node", "state", ">native", ">alien", ">used", ">budget", ">hit rate", ">connections"]);
    for answer in answers {
        let status = match &answer.status {
            Ok(status) => status,
            Err(missed) => {
                let mut cells = vec![name(answer).to_owned(), missed.state.to_string()];
                cells.resize(8, "-".to_owned());
                table.row(cells);
                continue;
            }
        };
        let number = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let frames = |key: &str| -> u64 {
            let datasets = status["datasets"].as_array().into_iter().flatten();
            datasets.filter_map(|dataset| dataset[key].as_u64()).sum()
        };
        table.row(vec![
            name(answer).to_owned(),
            state(status).to_owned(),
            frames("natives").to_string(),
            frames("aliens").to_string(),
            human_bytes(number("/space/used")),
            human_bytes(number("/space/budget")),
            status["hit_rate"]
                .as_f64()
                .map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", 100.0 * rate)),
            number("/connections").to_string(),
        ]);
    }
    let mut text = table.render();
    for answer in answers {
        if let Some(status) = answer.status.as_ref().ok().filter(|status| disk_fails(status)) {
            let trouble = status.pointer("/disk/trouble").and_then(Value::as_str).unwrap_or("fails");
            text.line(format!(
                "{}: the cache disk {trouble}; its frames are read from the backing store, \
                 look at the disk",
                name(answer)
            ));
        }
        for root in answer.status.iter().flat_map(silent_stores) {
            let cause = if root.starts_with("s3://") { "server, endpoint and credentials" } else { "mount" };
            text.line(format!(
                "{}: the backing store {root} does not answer: only cached frames are served; look at its \
                 {cause}",
                name(answer)
            ));
        }
        for (free, floor) in answer.status.iter().flat_map(short_of_room) {
            text.line(format!(
                "{}: the cache takes no new frames: its disk has {} free, and {} must stay free; \
                 make room on the disk, or set another free_floor",
                name(answer),
                human_bytes(free),
                human_bytes(floor)
            ));
        }
    }
    text
}

/// Backing stores that do not answer.
fn silent_stores(status: &Value) -> Vec<&str> {
    let stores = status["backing"].as_array().into_iter().flatten();
    stores.filter(|store| store["ok"] == false).map(|store| store["root"].as_str().unwrap_or("?")).collect()
}

/// Bytes that are free and the floor, for each disk of the cache that has less than its floor.
fn short_of_room(status: &Value) -> Vec<(u64, u64)> {
    let disks = status["disks"].as_array().into_iter().flatten();
    let bytes = |disk: &Value| Some((disk["free"].as_u64()?, disk["floor"].as_u64()?));
    disks.filter(|disk| disk["ok"] == true).filter_map(bytes).filter(|(free, floor)| free < floor).collect()
}
