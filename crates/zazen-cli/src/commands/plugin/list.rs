//! `zazen plugin list`: which plug-ins daemons serve.

use super::ask::{Answer, UNSEEN, ask, sum, text};
use crate::output::{self, Table};
use crate::target::{self, Done, Targets};
use clap::Args;
use serde_json::{Value, json};
use zazen_core::Result;

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
