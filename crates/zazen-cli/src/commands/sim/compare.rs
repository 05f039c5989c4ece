//! `zazen sim compare`: what changed between two folders of results.

use crate::output::{self, Table};
use clap::Args;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::record::{RunRecord, VERSION};

/// The longest summary.
const SUMMARY_BYTES_MAX: u64 = 1 << 30;

#[derive(Args)]
pub(crate) struct Compare {
    /// Results of `zazen sim run -o FOLDER`
    one: PathBuf,
    /// Other results
    other: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let (one, other) = (records(&arguments.one)?, records(&arguments.other)?);
    let key =
        |record: &RunRecord| (record.workload.clone(), record.nodes, record.fidelity.clone(), record.seed);
    let pairs: Vec<(&RunRecord, &RunRecord)> = one
        .iter()
        .filter_map(|record| Some((record, other.iter().find(|found| key(found) == key(record))?)))
        .collect();
    if pairs.is_empty() {
        let why = format!(
            "{} and {} have no run in common: same workload, nodes, fidelity and seed",
            arguments.one.display(),
            arguments.other.display()
        );
        return Err(Error::new(ErrorKind::NotFound, why));
    }
    let change = |one: f64, other: f64| if one > 0.0 { Some(other / one - 1.0) } else { None };
    // A makespan is that of the ranks that ended: a job that breaks off early is not a quick one.
    for (one, other) in pairs.iter().filter(|(one, other)| one.unfinished + other.unfinished > 0) {
        output::note(format!(
            "{} at {} nodes: {} and {} ranks did not end, so the times are those of the others",
            one.workload, one.nodes, one.unfinished, other.unfinished
        ));
    }
    if arguments.json {
        let row = |(one, other): &(&RunRecord, &RunRecord)| {
            serde_json::json!({
                "workload": one.workload, "nodes": one.nodes, "fidelity": one.fidelity, "seed": one.seed,
                "makespan_s": [one.makespan_s, other.makespan_s],
                "makespan_change": change(one.makespan_s, other.makespan_s),
                "same_trace": one.trace_hash == other.trace_hash,
                "unfinished": [one.unfinished, other.unfinished],
            })
        };
        output::json(&serde_json::Value::Array(pairs.iter().map(row).collect()));
        return Ok(());
    }
    let signed =
        |change: Option<f64>| change.map_or("-".to_owned(), |change| format!("{:+.2} %", change * 100.0));
    let mut table = Table::new(&[
        "workload",
        ">nodes",
        "fidelity",
        ">seed",
        ">makespan s",
        ">other s",
        ">change",
        ">metadata peak",
        "trace",
    ]);
    for (one, other) in &pairs {
        table.row(vec![
            one.workload.clone(),
            one.nodes.to_string(),
            one.fidelity.clone(),
            one.seed.to_string(),
            format!("{:.4}", one.makespan_s),
            format!("{:.4}", other.makespan_s),
            signed(change(one.makespan_s, other.makespan_s)),
            signed(change(one.metadata_peak_per_s(), other.metadata_peak_per_s())),
            if one.trace_hash == other.trace_hash { "same" } else { "differs" }.to_owned(),
        ]);
    }
    output::print(&table.render());
    let alone = one.len() + other.len() - 2 * pairs.len();
    if alone > 0 {
        output::note(format!("{alone} runs are in one folder only"));
    }
    Ok(())
}

fn records(folder: &Path) -> Result<Vec<RunRecord>> {
    let path = folder.join("summary.json");
    let text = crate::parse::text_file(&path, SUMMARY_BYTES_MAX, "results")?;
    let refuse = |error: serde_json::Error| {
        let why = format!("{}: {error}; simulate again, with --resume", path.display());
        Error::new(ErrorKind::Corrupt, why)
    };
    let records: Vec<RunRecord> = serde_json::from_str(&text).map_err(refuse)?;
    match records.iter().find(|record| record.version != VERSION) {
        None => Ok(records),
        Some(RunRecord { version, .. }) => {
            let why = format!("{}: version {version} is not {VERSION}; simulate again", path.display());
            Err(Error::new(ErrorKind::Corrupt, why))
        }
    }
}
