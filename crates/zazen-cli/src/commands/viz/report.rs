//! `zazen viz report`: what the steps of a run waited for.
//!
//! A reader with a folder for records writes a line of JSON for each step and rank
//! (`integrations/viz/src/reader.py`).

use super::reads_page;
use super::record::{Reads, Run, Share, Step, reads};
use crate::output::{self, Lines, Table, human_bytes};
use clap::Args;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// The longest file of records.
const RECORD_BYTES_MAX: u64 = 1 << 30;
/// Users expect an answer within this time (VisIO, IPDPS'11).
const PATIENCE_S: f64 = 10.0;
/// Steps that the table shows.
const SHOWN_MAX: usize = 40;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  ZAZEN_VIZ_RECORD=/shared/run1 mpiexec -n 8 python render.py && zazen viz report /shared/run1
  zazen viz report /shared/run1 --ranks
  zazen viz report stock/ blind/ matched/ --html reads.html

Each folder is one run. The page has a plot of each run's read calls, on one scale.")]
pub(super) struct Report {
    /// The folders of the records
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,
    /// Write a page with a plot of the read calls
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show each rank of each step
    #[arg(long)]
    ranks: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A step as one rank had it.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Line {
    step: u64,
    time: f64,
    kept: bool,
    ahead: bool,
    /// Whether the step could not be shown.
    failed: bool,
    rank: u32,
    ranks: u32,
    strategy: String,
    /// The job, by a name that no other has; empty in records of November 2026.
    run: String,
    index: String,
    seconds: f64,
    wait_s: f64,
    reads_s: Vec<f64>,
    local_bytes: u64,
    remote_bytes: u64,
    store_bytes: u64,
}

pub(super) fn run(arguments: &Report) -> Result<()> {
    let runs = arguments.folders.iter().map(|folder| read(folder)).collect::<Result<Vec<_>>>()?;
    if let Some(page) = &arguments.html {
        std::fs::write(page, reads_page::html(&runs))
            .map_err(|error| Error::io(page.display().to_string(), error))?;
    }
    if arguments.json {
        return output::json_of("report", &runs);
    }
    for run in &runs {
        output::print(&as_table(run, arguments.ranks));
    }
    Ok(())
}

fn read(folder: &Path) -> Result<Run> {
    let name = folder.display().to_string();
    let failed = |error| Error::io(format!("records {name}"), error);
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_record = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rank-"));
        if is_record && path.extension().is_some_and(|ending| ending == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let why = format!(
            "{name}: no records (rank-*.jsonl); give the reader record=FOLDER, or set ZAZEN_VIZ_RECORD for \
             the run"
        );
        return Err(Error::new(ErrorKind::NotFound, why));
    }
    let mut lines = Vec::new();
    for file in &files {
        lines.extend(lines_of(file)?);
    }
    one_run(&lines).map_err(|error| error.within(&name))?;
    let ranks = lines.first().map_or(0, |line| line.ranks as usize);
    if ranks > files.len() {
        output::note(format!(
            "{name}: has records of {} of the run's {ranks} ranks; give all ranks one shared folder",
            files.len()
        ));
    }
    Ok(summed(name, files.len(), &lines))
}

/// Lines of two runs would be added up as if they were one. `InvalidArgument` says how they differ.
fn one_run(lines: &[Line]) -> Result<()> {
    let of = |line: &Line| match line.ranks {
        0 => format!("strategy {:?}", line.strategy),
        ranks => format!("{ranks} ranks, strategy {:?}", line.strategy),
    };
    let Some(first) = lines.first() else { return Ok(()) };
    match lines.iter().find(|line| of(line) != of(first) || line.run != first.run) {
        None => Ok(()),
        Some(other) if of(other) == of(first) => {
            let why = "holds records of several runs; record each run in a folder of its own";
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        Some(other) => {
            let why = format!(
                "holds records of several runs ({}; {}); record each run in a folder of its own",
                of(first),
                of(other)
            );
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

fn lines_of(file: &Path) -> Result<Vec<Line>> {
    let text = crate::parse::text_file(file, RECORD_BYTES_MAX, "record")?;
    let parse = |(line, at): (&str, u32)| {
        let refuse = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Corrupt, format!("{}, line {at}: no record: {why}", file.display()))
        };
        // A list would pass for a record's values.
        if !line.trim_start().starts_with('{') {
            return Err(refuse(&"it is no object of JSON"));
        }
        serde_json::from_str(line).map_err(|error| refuse(&error))
    };
    text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).map(parse).collect()
}

/// A step that is shown again counts again: its n-th line of each rank is of its n-th showing.
fn summed(folder: String, ranks: usize, lines: &[Line]) -> Run {
    let mut showings: BTreeMap<(u32, &str, u64), u32> = BTreeMap::new();
    // A job may show several visualizations, whose steps have the same numbers.
    let mut steps: BTreeMap<(u32, &str, u64), Step> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in lines {
        let index = line.index.as_str();
        let showing = showings.entry((line.rank, index, line.step)).or_default();
        let step = steps.entry((*showing, index, line.step)).or_default();
        *showing += 1;
        (step.step, step.time) = (line.step, line.time);
        step.local_bytes += line.local_bytes;
        step.remote_bytes += line.remote_bytes;
        step.store_bytes += line.store_bytes;
        step.wait_s_mean += line.wait_s;
        if line.wait_s >= step.wait_s_max {
            (step.wait_s_max, step.slowest_rank) = (line.wait_s, line.rank);
        }
        step.seconds = step.seconds.max(line.seconds);
        step.kept |= line.kept;
        step.ahead |= line.ahead;
        step.failed |= line.failed;
        step.ranks.push(Share {
            rank: line.rank,
            local_bytes: line.local_bytes,
            remote_bytes: line.remote_bytes,
            store_bytes: line.store_bytes,
            wait_s: line.wait_s,
            seconds: line.seconds,
            kept: line.kept,
            ahead: line.ahead,
            failed: line.failed,
        });
        calls.extend(line.reads_s.iter().map(|seconds| (line.time, *seconds)));
    }
    let mut steps: Vec<Step> = steps.into_values().collect();
    for step in &mut steps {
        step.wait_s_mean /= step.ranks.len().max(1) as f64;
        step.ranks.sort_by_key(|share| share.rank);
    }
    let quick = steps.iter().filter(|step| !step.failed && step.seconds <= PATIENCE_S).count();
    let within_10_s = quick as f64 / steps.len().max(1) as f64;
    let strategy = lines.first().map_or(String::new(), |line| line.strategy.clone());
    let reads = reads(&calls.iter().map(|(_, seconds)| *seconds).collect::<Vec<_>>());
    Run { folder, strategy, ranks, steps, reads, within_10_s, calls }
}

fn as_table(run: &Run, by_rank: bool) -> Lines {
    let mut table = Table::new(&[
        "time",
        ">local",
        ">remote",
        ">from the store",
        ">wait, mean s",
        ">most",
        ">rank",
        ">seconds",
        "",
    ]);
    for step in run.steps.iter().take(SHOWN_MAX) {
        let how = how(step.failed, step.kept, step.ahead);
        table.row(vec![
            step.time.to_string(),
            human_bytes(step.local_bytes),
            human_bytes(step.remote_bytes),
            human_bytes(step.store_bytes),
            format!("{:.4}", step.wait_s_mean),
            format!("{:.4}", step.wait_s_max),
            step.slowest_rank.to_string(),
            format!("{:.4}", step.seconds),
            how.to_owned(),
        ]);
        for share in step.ranks.iter().filter(|_| by_rank) {
            table.row(vec![
                String::new(),
                human_bytes(share.local_bytes),
                human_bytes(share.remote_bytes),
                human_bytes(share.store_bytes),
                String::new(),
                format!("{:.4}", share.wait_s),
                share.rank.to_string(),
                format!("{:.4}", share.seconds),
                self::how(share.failed, share.kept, share.ahead).to_owned(),
            ]);
        }
    }
    let mut text = Lines::default();
    text.line(format!("{}: {} ranks, strategy {}", run.folder, run.ranks, run.strategy));
    text.add(&table.render());
    let more = run.steps.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        text.line(format!("… {more} more steps; --json shows all"));
    }
    let Reads { count, mean_s, deviation_s, p99_s, max_s, outliers, .. } = run.reads;
    text.line(format!(
        "{count} read calls: mean {mean_s:.4} s, deviation {deviation_s:.4}, p99 {p99_s:.4}, most \
         {max_s:.4}, {outliers} beyond the mean and 3 deviations; {:.1} % of steps within 10 s",
        100.0 * run.within_10_s,
    ));
    text
}

/// How a step came to be there, beyond reading it.
fn how(failed: bool, kept: bool, ahead: bool) -> &'static str {
    match (failed, kept, ahead) {
        (true, ..) => "failed",
        (_, true, _) => "kept",
        (.., true) => "fetched ahead",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_calls_are_summed() {
        let mut calls = vec![1.0; 99];
        calls.push(101.0);
        let found = reads(&calls);
        assert_eq!((found.count, found.mean_s, found.p99_s, found.max_s), (100, 2.0, 1.0, 101.0));
        assert!((found.deviation_s - 99f64.sqrt() * 1.0).abs() < 1e-9 && found.outliers == 1);
        assert_eq!(reads(&[]), Reads::default());
    }

    #[test]
    fn a_step_shown_twice_counts_twice() {
        let line = |rank, step, seconds| Line { rank, step, seconds, wait_s: seconds, ..Line::default() };
        let lines = [
            line(0, 0, 1.0),
            line(0, 1, 2.0),
            line(0, 0, 3.0),
            line(1, 0, 11.0),
            line(1, 1, 1.0),
            line(1, 0, 1.0),
        ];
        let run = summed("x".into(), 2, &lines);
        let seconds: Vec<(u64, f64, u32)> =
            run.steps.iter().map(|step| (step.step, step.seconds, step.slowest_rank)).collect();
        assert_eq!(seconds, [(0, 11.0, 1), (1, 2.0, 0), (0, 3.0, 0)]);
        assert_eq!(run.steps[0].wait_s_mean, 6.0);
        assert!((run.within_10_s - 2.0 / 3.0).abs() < 1e-12);
        let of = |index: &str, rank| Line { index: index.into(), rank, ..line(rank, 0, 1.0) };
        // Rank 1 shows them in another order.
        let run = summed("x".into(), 2, &[of("a", 0), of("b", 0), of("b", 1), of("a", 1)]);
        assert_eq!(run.steps.iter().map(|step| step.ranks.len()).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn a_step_that_failed_was_not_shown_in_time() {
        let failed = Line { failed: true, seconds: 0.1, ..Line::default() };
        let run = summed("x".into(), 1, &[failed, Line { step: 1, ..Line::default() }]);
        assert_eq!((run.within_10_s, run.steps[0].failed), (0.5, true));
        assert!(as_table(&run, false).as_str().contains("failed"));
    }
}
