//! `zazen sim calibrate`, `validate` and `export`: from what daemons recorded to parameters, to how
//! far these are from other recordings, and to pictures.

use super::files::write_whole;
use crate::output::{self, Lines, Table};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::calibrate::Estimate;
use zazen_sim::validate::{Baseline, Row, mape};
use zazen_spans::{SUFFIX, Span};

/// The longest file of spans.
const SPANS_BYTES_MAX: u64 = 4 << 30;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen testbed up 4 --spans spans/        # or zazend --spans DIR on each node
  zazen sim calibrate spans/ -o cluster.toml
  zazen sim run my-job.toml --cluster cluster.toml")]
pub(crate) struct Calibrate {
    /// Folders with files of spans; each is one run
    #[arg(required = true, value_name = "FOLDER")]
    spans: Vec<PathBuf>,
    /// Write the cluster here
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// What the spans do not tell comes from this cluster
    #[arg(long, value_name = "FILE|NAME", default_value = "commodity")]
    base: String,
    /// The seed of the bootstrap
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
pub(crate) struct Validate {
    /// A cluster that was calibrated
    cluster: String,
    /// Folders with spans that it was not calibrated from; each is one repetition
    #[arg(required = true, value_name = "FOLDER")]
    spans: Vec<PathBuf>,
    /// The seed of the replay
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen sim export spans/ -o trace.json            # open it at https://ui.perfetto.dev
  zazen sim export spans/ -o all.jsonl --format jsonl")]
pub(crate) struct Export {
    /// Folders with files of spans
    #[arg(required = true, value_name = "FOLDER")]
    spans: Vec<PathBuf>,
    /// Write this file
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Perfetto)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The Trace Event format
    Perfetto,
    /// All spans in one file, in the order of their beginnings
    Jsonl,
}

pub(crate) fn calibrate(arguments: &Calibrate) -> Result<()> {
    let each = arguments.spans.iter().map(|folder| spans_of(std::slice::from_ref(folder)));
    let runs = each.collect::<Result<Vec<Vec<Span>>>>()?;
    let base = super::run::cluster(&arguments.base)?;
    let (mut cluster, estimates) = zazen_sim::calibrate::calibrate(&runs, &base, arguments.seed)?;
    let spans = runs.concat();
    cluster.baseline = Baseline::of(&spans).0;
    write_whole(&arguments.out, cluster.to_toml()?)?;
    output::print(&estimates_text(&estimates));
    output::note(format!(
        "{}: {} spans; other parameters are those of {}",
        arguments.out.display(),
        spans.len(),
        base.name
    ));
    Ok(())
}

fn estimates_text(estimates: &[Estimate]) -> Lines {
    let mut table = Table::new(&["parameter", ">value", ">95 % interval", ">spans", "why"]);
    for estimate in estimates {
        let number = |value: f64| format!("{value:.4e}");
        let (value, interval) = match estimate.value {
            Some((value, low, high)) => (number(value), format!("{} .. {}", number(low), number(high))),
            None => ("not told".to_owned(), "-".to_owned()),
        };
        table.row(vec![
            estimate.name.clone(),
            value,
            interval,
            estimate.spans.to_string(),
            estimate.word.clone(),
        ]);
    }
    table.render()
}

pub(crate) fn validate(arguments: &Validate) -> Result<()> {
    let cluster = super::run::cluster(&arguments.cluster)?;
    let baseline = Baseline(cluster.baseline.clone());
    let mut rows = Vec::new();
    for folder in &arguments.spans {
        let spans = spans_of(std::slice::from_ref(folder))?;
        let found = zazen_sim::validate::validate(&cluster, &baseline, &spans, arguments.seed);
        let found = found.map_err(|error| error.within(folder.display()))?;
        rows.extend(found.into_iter().map(|row| (folder.display().to_string(), row)));
    }
    let errors = mape(rows.iter().map(|(_, row)| row.error()));
    let naive: Vec<f64> = rows.iter().filter_map(|(_, row)| row.naive_error()).collect();
    let naive = (naive.len() == rows.len()).then(|| mape(naive.into_iter()));
    if arguments.json {
        let row = |(folder, row): &(String, Row)| {
            serde_json::json!({
                "folder": folder, "op": row.op, "nodes": row.nodes, "calls": row.calls,
                "recorded_s": row.recorded_s, "simulated_s": row.simulated_s, "error": row.error(),
                "naive_error": row.naive_error(), "paused_s": row.paused_s,
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        output::json(&serde_json::json!({"rows": rows, "mape": errors, "naive_mape": naive}));
        return Ok(());
    }
    let signed = |error: f64| format!("{:+.1} %", error * 100.0);
    let mut table =
        Table::new(&["folder", ">nodes", "op", ">calls", ">recorded s", ">simulated s", ">error", ">naive"]);
    for (folder, row) in &rows {
        table.row(vec![
            folder.clone(),
            row.nodes.to_string(),
            row.op.clone(),
            row.calls.to_string(),
            format!("{:.4}", row.recorded_s),
            format!("{:.4}", row.simulated_s),
            signed(row.error()),
            row.naive_error().map_or("-".to_owned(), signed),
        ]);
    }
    output::print(&table.render());
    let naive = naive.map_or("not known".to_owned(), |naive| format!("{:.1} %", naive * 100.0));
    output::line(format!("mean absolute error {:.1} %, of the naive baseline {naive}", errors * 100.0));
    if arguments.spans.len() < 5 {
        output::note(format!(
            "{} repetitions; an error below run-to-run noise needs 5 or more",
            arguments.spans.len()
        ));
    }
    Ok(())
}

pub(crate) fn export(arguments: &Export) -> Result<()> {
    let mut spans = spans_of(&arguments.spans)?;
    spans.sort_by(|one, other| (one.start_ns, &one.node).cmp(&(other.start_ns, &other.node)));
    let text = match arguments.format {
        Format::Perfetto => zazen_spans::perfetto(&spans),
        Format::Jsonl => spans.iter().fold(String::new(), |mut text, span| {
            span.write(&mut text);
            text
        }),
    };
    write_whole(&arguments.out, text)?;
    output::note(format!("{}: {} spans", arguments.out.display(), spans.len()));
    Ok(())
}

/// All spans of these folders. `NotFound` if there are none.
fn spans_of(folders: &[PathBuf]) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    for folder in folders {
        let named = |error| Error::io(format!("spans {}", folder.display()), error);
        let entries = std::fs::read_dir(folder).map_err(named)?;
        let paths =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<PathBuf>>>();
        let mut files: Vec<PathBuf> = paths
            .map_err(named)?
            .into_iter()
            .filter(|path| path.to_string_lossy().ends_with(SUFFIX))
            .collect();
        files.sort();
        if files.is_empty() {
            let why = format!(
                "{}: there is no file *{SUFFIX}; start daemons with --spans, or `zazen testbed up N --spans \
                 DIR`",
                folder.display()
            );
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        for file in files {
            spans.extend(file_spans(&file)?);
        }
    }
    Ok(spans)
}

fn file_spans(file: &Path) -> Result<Vec<Span>> {
    let text = crate::parse::text_file(file, SPANS_BYTES_MAX, "spans")?;
    zazen_spans::read(&file.display().to_string(), &text)
}
