//! `zazen plugin stats`: what plug-ins' functions have done.

use super::ask::{Answer, UNSEEN, ask, text};
use crate::output::{self, Table, human_bytes};
use crate::target::{self, Done, Targets};
use clap::Args;
use serde_json::Value;
use zazen_core::Result;

#[derive(Args)]
#[command(after_help = "Times are upper bounds of the bucket that the share of calls falls into; \
        counters begin anew with a
plug-in's process.

EXAMPLES:
  zazen plugin stats
  zazen plugin stats 100 --json")]
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
                    "{} (ID {}) on {}, {}, {}, generation {}, pid {}: {} clients, {} handles, {} calls in \
                     progress",
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
