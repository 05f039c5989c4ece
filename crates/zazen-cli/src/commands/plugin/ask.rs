//! What daemons say of their plug-ins: the question behind `list`, `ping` and `stats`.

use crate::target::{self, Answers, Missed, Node, Targets};
use serde_json::Value;
use std::time::Duration;
use zazen_call::Connection;
use zazen_client::cluster::{Target, own_identity};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::plugins::plugins_fn;
use zazen_wire::service;

/// How long a daemon may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long it may take to answer: plug-ins' processes are asked in turn.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// What a daemon that was not reached means.
pub(super) const UNSEEN: &str = "their plug-ins are not shown";

/// One daemon's answer: its name, a connection to it, its plug-ins.
pub(super) struct Answer {
    pub(super) node: String,
    pub(super) connection: Connection,
    pub(super) reports: Vec<Value>,
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
pub(super) fn ask(targets: &Targets, wanted: Option<&str>) -> Result<Answers<Answer>> {
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

/// The value of `key` in a report, as text.
pub(super) fn text(report: &Value, key: &str) -> String {
    match &report[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The sum of `key` over a report's functions.
pub(super) fn sum(report: &Value, key: &str) -> u64 {
    let functions = report["functions"].as_array().into_iter().flatten();
    functions.filter_map(|function| function[key].as_u64()).sum()
}
