//! `zazen plugin ping`: whether plug-ins answer.

use super::ask::{UNSEEN, ask, text};
use crate::output;
use crate::target::{self, Done, Targets};
use clap::Args;
use serde_json::{Value, json};
use std::time::Instant;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{About, Pong, plugins_fn};
use zazen_wire::service;

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
