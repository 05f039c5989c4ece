//! `zazen sim calibrate`, `validate` and `export`: from what daemons recorded to parameters, to how
//! far these are from other recordings, and to pictures.

use super::files::{write_whole, write_whole_by};
use crate::output::{self, Lines, Table};
use clap::{Args, ValueEnum};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::plain_file::open_given;
use zazen_sim::calibrate::Estimate;
use zazen_sim::validate::{Baseline, Row, mape};
use zazen_spans::{HEAD_BYTES, Head, LINES_SUFFIX, SUFFIX, Span};

/// The longest file of lines.
const LINES_BYTES_MAX: u64 = 4 << 30;

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
    each_once(&arguments.spans)?;
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
    each_once(&arguments.spans)?;
    let cluster = super::run::cluster(&arguments.cluster)?;
    let baseline = Baseline(cluster.baseline.clone());
    let mut rows = Vec::new();
    for folder in &arguments.spans {
        let spans = spans_of(std::slice::from_ref(folder))?;
        if zazen_sim::calibrate::was_trained_on(&cluster, &spans) {
            output::note(format!(
                "{}: {} was calibrated from these spans, so their error says nothing of others",
                folder.display(),
                arguments.cluster
            ));
        }
        if let Some(words) = zazen_sim::validate::left_out(&cluster, &spans) {
            output::note(format!("{}: {words}", folder.display()));
        }
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
    let spans = spans_of(&arguments.spans)?;
    write_whole_by(&arguments.out, |into| match arguments.format {
        Format::Perfetto => zazen_spans::perfetto(&spans, into),
        Format::Jsonl => spans.iter().try_for_each(|span| span.write_line(into)),
    })?;
    output::note(format!("{}: {} spans", arguments.out.display(), spans.len()));
    Ok(())
}

/// A folder that is given twice would count as two runs.
fn each_once(folders: &[PathBuf]) -> Result<()> {
    let mut known = BTreeSet::new();
    let place = |folder: &PathBuf| std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
    match folders.iter().find(|folder| !known.insert(place(folder))) {
        None => Ok(()),
        Some(folder) => {
            let why = format!("{}: is given twice; each folder is a run of its own", folder.display());
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

/// All spans of these folders, in the order of their beginnings. `NotFound` if there are none.
fn spans_of(folders: &[PathBuf]) -> Result<Vec<Span>> {
    let mut spans = Spans::new();
    for folder in folders {
        let named = |error| Error::io(format!("spans {}", folder.display()), error);
        let entries = std::fs::read_dir(folder).map_err(named)?;
        let paths =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<PathBuf>>>();
        let mut paths = paths.map_err(named)?;
        paths.sort();
        let mut files = 0;
        for path in paths {
            let name = path.to_string_lossy();
            let is_lines = name.ends_with(LINES_SUFFIX);
            if !is_lines && !name.ends_with(SUFFIX) {
                continue;
            }
            // Opening a pipe would wait for its other end.
            if !std::fs::metadata(&path).map_err(named)?.is_file() {
                let why = format!("spans {}: is no regular file; move it elsewhere", path.display());
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            if is_lines {
                spans.add_lines(&path)?
            } else {
                spans.add_blocks(&path)?
            }
            files += 1;
        }
        if files == 0 {
            let why = format!(
                "{}: there is no file *{SUFFIX}; start daemons with --spans, or `zazen testbed up N --spans \
                 DIR`",
                folder.display()
            );
            return Err(Error::new(ErrorKind::NotFound, why));
        }
    }
    // Whatever order they were written in, the same spans give the same results.
    spans.all.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(spans.all)
}

fn order(span: &Span) -> impl Ord {
    (span.start_ns, &span.node, span.connection, span.id, span.duration_ns, &span.op, span.bytes_in)
}

/// Spans as they are read; no more than there is memory for.
struct Spans {
    all: Vec<Span>,
    bytes: u64,
    bytes_max: u64,
}

impl Spans {
    fn new() -> Spans {
        // Half of it: what works on the spans needs about as much again.
        let bytes_max = super::sweep::free_memory().map_or(u64::MAX, |free| free / 2);
        Spans { all: Vec::new(), bytes: 0, bytes_max }
    }

    /// Counts the spans from `first` on. Their texts, which they share, were read from so many
    /// bytes.
    fn look(&mut self, first: usize, text_bytes: usize, file: &Path) -> Result<()> {
        self.bytes += (size_of_val(&self.all[first..]) + text_bytes) as u64;
        if self.bytes > self.bytes_max {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "spans {}: {} spans so far need {}, half of the memory that is free; give a \
                     shorter recording",
                    file.display(),
                    self.all.len(),
                    zazen_core::byte_size::show(self.bytes)
                ),
            ));
        }
        Ok(())
    }

    fn add_blocks(&mut self, path: &Path) -> Result<()> {
        let named = |error| Error::io(format!("spans {}", path.display()), error);
        let mut file = std::io::BufReader::with_capacity(1 << 20, open_given(path).map_err(named)?);
        let (mut at, mut body) = (0_u64, Vec::new());
        loop {
            let refuse = |error: Error| error.within(format!("spans {}: byte {at}", path.display()));
            let cut = || {
                let why = match at {
                    0 => "has no whole block: it was cut, or is no file of spans; remove it".to_owned(),
                    _ => format!(
                        "was cut in the block that begins at byte {at}: the daemon was killed while it \
                         wrote, or still writes; `truncate -s {at} FILE` leaves what is whole"
                    ),
                };
                Error::new(ErrorKind::Corrupt, format!("spans {}: {why}", path.display()))
            };
            body.clear();
            let bytes = (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut body).map_err(named)?;
            if bytes == 0 {
                return Ok(());
            }
            let head = Head::read(body.first_chunk().ok_or_else(cut)?).map_err(refuse)?;
            body.clear();
            (&mut file).take(head.body_bytes as u64).read_to_end(&mut body).map_err(named)?;
            if body.len() < head.body_bytes {
                return Err(cut());
            }
            let first = self.all.len();
            head.body(&body, &mut self.all).map_err(refuse)?;
            self.look(first, head.body_bytes, path)?;
            at += (HEAD_BYTES + head.body_bytes) as u64;
        }
    }

    /// A file of an earlier release, or one that `export` made.
    fn add_lines(&mut self, path: &Path) -> Result<()> {
        let text = crate::parse::text_file(path, LINES_BYTES_MAX, "spans")?;
        let first = self.all.len();
        self.all.extend(zazen_spans::read_lines(&path.display().to_string(), &text)?);
        self.look(first, text.len(), path)
    }
}
