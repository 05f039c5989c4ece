//! `zazen datasets`: what is cached, summed over the nodes.

use crate::output::{self, Lines, Table, human_bytes};
use crate::target::{self, Done, Missed, Targets};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen datasets
  zazen datasets --nodes nodes.txt --json")]
pub(crate) struct Datasets {
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// By directory and pattern.
type Sums = BTreeMap<(String, String), Sum>;

#[derive(Default)]
struct Sum {
    native: u64,
    alien: u64,
    bytes: u64,
    pinned_on: u64,
    nodes: Vec<String>,
}

pub(crate) fn run(arguments: &Datasets) -> Result<Done> {
    let mut sums: Sums = BTreeMap::new();
    let answers = arguments.targets.each(|node, remote| Ok((node.name.clone(), remote.datasets()?)))?;
    for (_, (name, text)) in answers.given {
        add(&mut sums, &name, &text)?;
    }
    match arguments.json {
        true => output::json(&as_json(&sums, &answers.missed)),
        false => output::print(&as_table(&sums)),
    }
    Ok(target::judge(&answers.missed, "what they hold is not in this list"))
}

fn add(sums: &mut Sums, node: &str, text: &str) -> Result<()> {
    let bad = |why: String| Error::new(ErrorKind::Protocol, format!("node {node}: datasets: {why}"));
    let value: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    let rows = value.as_array().ok_or_else(|| bad("the answer is no list".to_owned()))?;
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let sum = sums
            .entry((
                row["path"].as_str().or(row["dataset"].as_str()).unwrap_or("?").to_owned(),
                row["pattern"].as_str().unwrap_or_default().to_owned(),
            ))
            .or_default();
        sum.native += number("natives");
        sum.alien += number("aliens");
        sum.bytes += number("bytes");
        sum.pinned_on += u64::from(row["pinned"].as_bool().unwrap_or(false));
        sum.nodes.push(node.to_owned());
    }
    Ok(())
}

fn as_json(sums: &Sums, missed: &[Missed]) -> Value {
    let rows = sums.iter().map(|((dataset, pattern), sum)| {
        json!({
            "dataset": dataset,
            "pattern": pattern,
            "native": sum.native,
            "alien": sum.alien,
            "bytes": sum.bytes,
            "pinned_on": sum.pinned_on,
            "nodes": sum.nodes,
        })
    });
    json!({"datasets": rows.collect::<Vec<_>>(), "missed": target::missed_json(missed)})
}

fn as_table(sums: &Sums) -> Lines {
    let mut table = Table::new(&["dataset", "pattern", ">native", ">alien", ">size", ">nodes", "pinned"]);
    for ((dataset, pattern), sum) in sums {
        let nodes = sum.nodes.len() as u64;
        let pinned = match sum.pinned_on {
            0 => "no".to_owned(),
            all if all == nodes => "yes".to_owned(),
            some => format!("on {some}"),
        };
        table.row(vec![
            dataset.clone(),
            pattern.clone(),
            sum.native.to_string(),
            sum.alien.to_string(),
            human_bytes(sum.bytes),
            nodes.to_string(),
            pinned,
        ]);
    }
    table.render()
}
