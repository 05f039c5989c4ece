//! `zazen plugin list`, `ping` and `stats`: what daemons say of their plug-ins.

use crate::output::{self, Table, human_bytes};
use crate::target::{self, Answers, Done, Missed, Node, Targets};
use clap::Args;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use zazen_call::Connection;
use zazen_client::cluster::{Target, own_identity};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{About, Pong, plugins_fn};
use zazen_wire::service;

/// How long a daemon may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long it may take to answer: plug-ins' processes are asked in turn.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// What a daemon that was not reached means.
const UNSEEN: &str = "their plug-ins are not shown";

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen plugin list
  zazen plugin list --nodes nodes.txt --json")]
pub(super) struct List {
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen plugin ping
  zazen plugin ping stats")]
pub(super) struct Ping {
    /// Name or ID; all if none is given
    #[arg(value_name = "PLUGIN")]
    plugin: Option<String>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Times are upper bounds of the bucket that the share of calls falls into; counters begin anew with a plug-in's
process.

EXAMPLES:
  zazen plugin stats
  zazen plugin stats 100 --json"
)]
pub(super) struct Stats {
    /// Name or ID; all if none is given
    #[arg(value_name = "PLUGIN")]
    plugin: Option<String>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One daemon's answer: its name, a connection to it, its plug-ins.
struct Answer {
    node: String,
    connection: Connection,
    reports: Vec<Value>,
}

fn connect(node: &Node) -> Result<Connection> {
    let mut connection = match (&node.target, node.key()) {
        (Target::Local(path), _) => Connection::unix(path, CONNECT_WITHIN)?,
        (Target::Tcp(addr), Some(key)) => Connection::tcp(addr, key, &own_identity(), CONNECT_WITHIN)?,
        (Target::Tcp(addr), None) => {
            return Err(Error::new(
                ErrorKind::Authentication,
                format!("node {addr}: needs the cluster key: give --key FILE or set $ZAZEN_KEY"),
            ));
        }
    };
    connection.set_timeout(Some(ANSWER_WITHIN));
    Ok(connection)
}

fn reports(node: &Node) -> Result<(Connection, Vec<u8>)> {
    let mut connection = connect(node)?;
    let reply = connection.call(service::PLUGINS, plugins_fn::STATS, &[], &[])?;
    Ok((connection, reply.payload))
}

/// What each daemon says of the plug-ins that `wanted` names (all for `None`).
fn ask(targets: &Targets, wanted: Option<&str>) -> Result<Answers<Answer>> {
    let (mut answers, mut missed) = (Vec::new(), Vec::new());
    for node in &targets.nodes()? {
        let (connection, payload) = match reports(node) {
            Ok(reply) => reply,
            Err(error) => {
                missed.push(Missed::new(node, error));
                continue;
            }
        };
        let node = node.target.to_string();
        let mut reports: Vec<Value> = serde_json::from_slice(&payload)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("node {node}: plug-ins: {error}")))?;
        if let Some(wanted) = wanted {
            reports.retain(|report| {
                report["name"] == wanted || wanted.parse::<u64>().is_ok_and(|id| report["id"] == id)
            });
        }
        answers.push(Answer { node, connection, reports });
    }
    if answers.is_empty() {
        return Err(target::none_answers(missed));
    }
    match wanted {
        Some(wanted) if answers.iter().all(|answer| answer.reports.is_empty()) => Err(Error::new(
            ErrorKind::NotFound,
            format!("plug-in {wanted}: no daemon serves it; `zazen plugin list` shows those that are served"),
        )),
        _ => Ok(Answers { given: answers, missed }),
    }
}

fn text(report: &Value, key: &str) -> String {
    match &report[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn sum(report: &Value, key: &str) -> u64 {
    let functions = report["functions"].as_array().into_iter().flatten();
    functions.filter_map(|function| function[key].as_u64()).sum()
}

impl List {
    pub(super) fn run(&self) -> Result<Done> {
        let asked = ask(&self.targets, None)?;
        self.tell(&asked.given);
        Ok(target::judge(&asked.missed, UNSEEN))
    }

    fn tell(&self, answers: &[Answer]) {
        if self.json {
            let rows = answers.iter().flat_map(|answer| {
                answer.reports.iter().map(|report| {
                    json!({
                        "node": answer.node, "id": report["id"], "name": report["name"],
                        "path": report["path"], "placement": report["placement"], "state": report["state"],
                        "generation": report["generation"], "pid": report["pid"],
                        "crashes": report["crashes"], "clients": report["clients"],
                        "calls": sum(report, "calls"), "errors": sum(report, "errors"),
                    })
                })
            });
            return output::json(&Value::Array(rows.collect()));
        }
        let mut table = Table::new(&[
            "node",
            ">id",
            "name",
            "placement",
            "state",
            ">clients",
            ">calls",
            ">errors",
            ">crashes",
        ]);
        for answer in answers {
            for report in &answer.reports {
                table.row(vec![
                    answer.node.clone(),
                    text(report, "id"),
                    text(report, "name"),
                    text(report, "placement"),
                    text(report, "state"),
                    text(report, "clients"),
                    sum(report, "calls").to_string(),
                    sum(report, "errors").to_string(),
                    text(report, "crashes"),
                ]);
            }
        }
        output::print(&table.render());
    }
}

impl Ping {
    pub(super) fn run(&self) -> Result<Done> {
        let (mut rows, mut silent) = (Vec::new(), 0);
        let asked = ask(&self.targets, self.plugin.as_deref())?;
        for mut answer in asked.given {
            for report in &answer.reports {
                let plugin = u16::try_from(report["id"].as_u64().unwrap_or(0)).unwrap_or(0);
                let asked = Instant::now();
                let payload = About { plugin, generation: 0 }.encode();
                let pong = answer
                    .connection
                    .call(service::PLUGINS, plugins_fn::PING, &payload, &[])
                    .and_then(|reply| Pong::decode(&reply.payload));
                let microseconds = asked.elapsed().as_secs_f64() * 1e6;
                silent += usize::from(pong.is_err());
                rows.push((answer.node.clone(), text(report, "name"), microseconds, pong));
            }
        }
        if self.json {
            let rows = rows.iter().map(|(node, name, microseconds, pong)| match pong {
                Ok(pong) => json!({
                    "node": node, "name": name, "answers": true, "microseconds": microseconds,
                    "generation": pong.generation, "clients": pong.clients,
                }),
                Err(error) => json!({
                    "node": node, "name": name, "answers": false, "error": error.to_string(),
                }),
            });
            output::json(&Value::Array(rows.collect()));
        } else {
            for (node, name, microseconds, pong) in &rows {
                output::line(match pong {
                    Ok(pong) => format!(
                        "{name} on {node}: answers in {microseconds:.0} µs, generation {}, {} clients",
                        pong.generation, pong.clients
                    ),
                    Err(error) => format!("{name} on {node}: does not answer: {error}"),
                });
            }
        }
        let done = target::judge(&asked.missed, UNSEEN);
        match silent {
            0 => Ok(done),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{silent} of {} plug-ins do not answer; the daemon's log says why", rows.len()),
            )),
        }
    }
}

/// The bound, in µs, below which `share` of the calls were.
fn quantile(buckets: &[u64], share: f64) -> Option<u64> {
    let calls: u64 = buckets.iter().sum();
    let wanted = (calls as f64 * share).ceil() as u64;
    let mut below = 0;
    let found = buckets.iter().position(|count| {
        below += count;
        below >= wanted
    });
    (calls > 0).then_some(1 << found?)
}

impl Stats {
    pub(super) fn run(&self) -> Result<Done> {
        let asked = ask(&self.targets, self.plugin.as_deref())?;
        self.tell(asked.given);
        Ok(target::judge(&asked.missed, UNSEEN))
    }

    fn tell(&self, answers: Vec<Answer>) {
        if self.json {
            let rows = answers.into_iter().flat_map(|answer| {
                answer.reports.into_iter().map(move |mut report| {
                    report["node"] = answer.node.clone().into();
                    report
                })
            });
            return output::json(&Value::Array(rows.collect()));
        }
        for answer in &answers {
            for report in &answer.reports {
                output::line(format!(
                    "{} (ID {}) on {}, {}, {}, generation {}, pid {}: {} clients, {} handles, {} calls in progress",
                    text(report, "name"),
                    text(report, "id"),
                    answer.node,
                    text(report, "placement"),
                    text(report, "state"),
                    text(report, "generation"),
                    text(report, "pid"),
                    text(report, "clients"),
                    text(report, "handles"),
                    text(report, "running"),
                ));
                output::print(&functions(report).render());
            }
        }
    }
}

fn functions(report: &Value) -> Table {
    let mut table =
        Table::new(&["function", ">calls", ">errors", ">in", ">out", ">mean µs", ">p50 µs", ">p99 µs"]);
    for function in report["functions"].as_array().into_iter().flatten() {
        let number = |key: &str| function[key].as_u64().unwrap_or(0);
        let buckets: Vec<u64> =
            function["buckets"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let bound = |share| quantile(&buckets, share).map_or("-".to_owned(), |bound| format!("<{bound}"));
        let mean = match number("calls") {
            0 => "-".to_owned(),
            calls => format!("{:.1}", number("nanoseconds") as f64 / calls as f64 / 1000.0),
        };
        table.row(vec![
            text(function, "name"),
            number("calls").to_string(),
            number("errors").to_string(),
            human_bytes(number("bytes_in")),
            human_bytes(number("bytes_out")),
            mean,
            bound(0.5),
            bound(0.99),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[0, 0], 0.5), None);
        assert_eq!(quantile(&[0, 3, 1], 0.5), Some(2));
        assert_eq!(quantile(&[0, 3, 1], 0.99), Some(4));
        assert_eq!(quantile(&[1], 0.99), Some(1));
    }
}
