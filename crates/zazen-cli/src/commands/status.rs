//! `zazen status`: how the nodes are.

use crate::output::{self, Table, human_bytes};
use crate::target::{Node, Targets};
use clap::Args;
use serde_json::{Value, json};
use zazen_client::cluster::Remote;
use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen status                          # this machine's daemon
  zazen status --nodes nodes.txt        # all nodes; dead ones are shown as dead
  zazen status --json | jq '.nodes[] | select(.state == \"dead\") | .node'
  zazen status --dump                   # a daemon's whole state as text, for a bug report

Exit code 1 if no node answers.")]
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
    status: Result<Value>,
}

pub(crate) fn run(arguments: &Status) -> Result<()> {
    let nodes = arguments.targets.nodes()?;
    if arguments.dump {
        return nodes.iter().try_for_each(dump);
    }
    // A dead node costs its whole time limit: all are asked at once.
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            nodes.into_iter().map(|node| (node.clone(), scope.spawn(move || ask(&node)))).collect();
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the thread that asked it ended"));
        asked
            .into_iter()
            .map(|(node, thread)| Answer { node, status: thread.join().unwrap_or_else(|_| gone()) })
            .collect()
    });
    match arguments.json {
        true => output::json(&json!({"nodes": answers.iter().map(as_json).collect::<Vec<_>>()})),
        false => output::print(&as_table(&answers)),
    }
    if answers.iter().any(|answer| answer.status.is_ok()) {
        return Ok(());
    }
    let count = answers.len();
    match answers.into_iter().find_map(|answer| answer.status.err()) {
        Some(error) if count == 1 => Err(error),
        Some(error) => Err(error.within(format!("none of {count} nodes answers; the first one"))),
        None => Err(Error::new(ErrorKind::Config, "nodes: the list is empty; name at least one")),
    }
}

fn connect(node: &Node) -> Result<Remote> {
    let mut remote = node.connect()?;
    remote.set_timeout(Some(std::time::Duration::from_secs(10)));
    Ok(remote)
}

fn dump(node: &Node) -> Result<()> {
    let state = connect(node)?.dump()?;
    output::print(&format!("node {}\n{state}", node.name));
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
        Err(error) => {
            json!({"node": name(answer), "target": target, "state": "dead", "error": error.to_string()})
        }
    }
}

fn name(answer: &Answer) -> &str {
    let told = answer.status.as_ref().ok().and_then(|status| status["name"].as_str());
    told.unwrap_or(&answer.node.name)
}

fn state(status: &Value) -> &str {
    if status["draining"].as_bool().unwrap_or(false) { "draining" } else { "up" }
}

fn as_table(answers: &[Answer]) -> String {
    let mut table =
        Table::new(&["node", "state", ">native", ">alien", ">used", ">budget", ">hit rate", ">connections"]);
    for answer in answers {
        let Ok(status) = &answer.status else {
            let mut cells = vec![name(answer).to_owned(), "dead".to_owned()];
            cells.resize(8, "-".to_owned());
            table.row(cells);
            continue;
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
    table.render()
}
