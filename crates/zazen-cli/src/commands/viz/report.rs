//! `zazen viz report`: what the steps of a run waited for.
//!
//! A reader with a folder for records writes a line of JSON for each step and rank
//! (`integrations/viz/src/reader.py`).

use crate::output::{self, Lines, Table, human_bytes};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// The longest file of records.
const RECORD_BYTES_MAX: u64 = 1 << 30;
/// Users expect an answer within this time (VisIO, IPDPS'11).
const PATIENCE_S: f64 = 10.0;
/// A read call is an outlier beyond the mean and this many deviations.
const OUTLIER_DEVIATIONS: f64 = 3.0;
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
    rank: u32,
    strategy: String,
    seconds: f64,
    wait_s: f64,
    reads_s: Vec<f64>,
    local_bytes: u64,
    remote_bytes: u64,
    store_bytes: u64,
}

/// A step over all ranks.
#[derive(Clone, Debug, Default, Serialize)]
struct Step {
    step: u64,
    time: f64,
    local_bytes: u64,
    remote_bytes: u64,
    store_bytes: u64,
    wait_s_mean: f64,
    wait_s_max: f64,
    slowest_rank: u32,
    seconds: f64,
    kept: bool,
    ahead: bool,
    /// What each rank had of it, by rank.
    ranks: Vec<Share>,
}

/// A rank's share of a step.
#[derive(Clone, Debug, Default, Serialize)]
struct Share {
    rank: u32,
    local_bytes: u64,
    remote_bytes: u64,
    store_bytes: u64,
    wait_s: f64,
    seconds: f64,
    kept: bool,
    ahead: bool,
}

/// Read calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Reads {
    count: usize,
    mean_s: f64,
    deviation_s: f64,
    p99_s: f64,
    max_s: f64,
    outliers: usize,
    /// A call beyond this is an outlier.
    #[serde(skip)]
    limit_s: f64,
}

/// A run.
#[derive(Serialize)]
struct Run {
    folder: String,
    strategy: String,
    ranks: usize,
    steps: Vec<Step>,
    reads: Reads,
    /// The share of steps that every rank had within ten seconds.
    within_10_s: f64,
    #[serde(skip)]
    calls: Vec<(f64, f64)>,
}

pub(super) fn run(arguments: &Report) -> Result<()> {
    let runs = arguments.folders.iter().map(|folder| read(folder)).collect::<Result<Vec<_>>>()?;
    if let Some(page) = &arguments.html {
        std::fs::write(page, html(&runs)).map_err(|error| Error::io(page.display().to_string(), error))?;
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
    Ok(summed(name, files.len(), &lines))
}

fn lines_of(file: &Path) -> Result<Vec<Line>> {
    let failed = |error| Error::io(file.display().to_string(), error);
    if std::fs::metadata(file).map_err(failed)?.len() > RECORD_BYTES_MAX {
        return Err(Error::new(ErrorKind::TooLarge, format!("{}: more than 1 GiB", file.display())));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let parse = |(line, at): (&str, u32)| {
        serde_json::from_str(line).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("{}, line {at}: no record: {error}", file.display()))
        })
    };
    text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).map(parse).collect()
}

/// A step that is shown again counts again: its n-th line of each rank is of its n-th showing.
fn summed(folder: String, ranks: usize, lines: &[Line]) -> Run {
    let mut showings: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    let mut steps: BTreeMap<(u32, u64), Step> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in lines {
        let showing = showings.entry((line.rank, line.step)).or_default();
        let step = steps.entry((*showing, line.step)).or_default();
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
        step.ranks.push(Share {
            rank: line.rank,
            local_bytes: line.local_bytes,
            remote_bytes: line.remote_bytes,
            store_bytes: line.store_bytes,
            wait_s: line.wait_s,
            seconds: line.seconds,
            kept: line.kept,
            ahead: line.ahead,
        });
        calls.extend(line.reads_s.iter().map(|seconds| (line.time, *seconds)));
    }
    let mut steps: Vec<Step> = steps.into_values().collect();
    for step in &mut steps {
        step.wait_s_mean /= step.ranks.len().max(1) as f64;
        step.ranks.sort_by_key(|share| share.rank);
    }
    let quick = steps.iter().filter(|step| step.seconds <= PATIENCE_S).count();
    let within_10_s = quick as f64 / steps.len().max(1) as f64;
    let strategy = lines.first().map_or(String::new(), |line| line.strategy.clone());
    let reads = reads(&calls.iter().map(|(_, seconds)| *seconds).collect::<Vec<_>>());
    Run { folder, strategy, ranks, steps, reads, within_10_s, calls }
}

fn reads(calls: &[f64]) -> Reads {
    let mut sorted = calls.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let Some(max_s) = sorted.last().copied() else { return Reads::default() };
    let mean_s = sorted.iter().sum::<f64>() / count as f64;
    let spread = sorted.iter().map(|call| (call - mean_s).powi(2)).sum::<f64>() / count as f64;
    let deviation_s = spread.sqrt();
    let limit = mean_s + OUTLIER_DEVIATIONS * deviation_s;
    let outliers = sorted.iter().filter(|call| **call > limit).count();
    let p99_s = sorted[(count * 99).div_ceil(100) - 1];
    Reads { count, mean_s, deviation_s, p99_s, max_s, outliers, limit_s: limit }
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
        let how = how(step.kept, step.ahead);
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
                self::how(share.kept, share.ahead).to_owned(),
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
fn how(kept: bool, ahead: bool) -> &'static str {
    match (kept, ahead) {
        (true, _) => "kept",
        (_, true) => "fetched ahead",
        _ => "",
    }
}

/// One plot for each run: time steps across, seconds of each read call up, the mean and p99 as
/// lines, the deviation around the mean as a band, outliers marked. All on one scale, which is
/// logarithmic.
fn html(runs: &[Run]) -> String {
    const SIZE: (f64, f64) = (720.0, 240.0);
    let all = || runs.iter().flat_map(|run| run.calls.iter());
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (first, last) = bounds(&mut all().map(|(time, _)| *time));
    let (low, high) = bounds(&mut all().map(|(_, seconds)| seconds.max(1e-6)));
    let x = |time: f64| SIZE.0 * (time - first) / (last - first).max(f64::MIN_POSITIVE);
    let y = |seconds: f64| {
        let share = (seconds.max(1e-6).ln() - low.ln()) / (high.ln() - low.ln()).max(f64::MIN_POSITIVE);
        SIZE.1 * (1.0 - share)
    };
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Read calls</title>\n\
         <style>body{font-family:sans-serif;max-width:50em;margin:2em auto}svg{background:#f4f4f4}</style>\n\
         <h1>Read calls</h1><p>Each dot is one read call of one rank: the step's time across, its seconds up \
         (logarithmic, one scale for all runs). The line is the mean, the band one deviation around it, the \
         dashed line the 99th percentile. Red dots are outliers: beyond the mean and 3 deviations.</p>\n",
    );
    for run in runs {
        let Reads { count, mean_s, deviation_s, p99_s, outliers, limit_s, .. } = run.reads;
        let _ = writeln!(
            page,
            "<h2>{} ({})</h2><p>{count} calls: mean {mean_s:.4} s, deviation {deviation_s:.4} s, p99 \
             {p99_s:.4} s, {outliers} outliers; {:.1} % of steps within 10 s</p>\n<svg width=\"{}\" \
             height=\"{}\" role=\"img\">",
            escaped(&run.folder),
            escaped(&run.strategy),
            100.0 * run.within_10_s,
            SIZE.0,
            SIZE.1
        );
        let (top, bottom) = (y(mean_s + deviation_s).max(0.0), y(mean_s - deviation_s).min(SIZE.1));
        let _ = write!(
            page,
            "<rect class=\"deviation\" x=\"0\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\" fill=\"#fd9\"/>",
            SIZE.0,
            (bottom - top).max(0.0)
        );
        for (time, seconds) in &run.calls {
            let (size, colour) = if *seconds > limit_s { (3, "#d22") } else { (2, "#27a") };
            let _ = write!(
                page,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{size}\" fill=\"{colour}\"/>",
                x(*time),
                y(*seconds)
            );
        }
        for (seconds, dash) in [(mean_s, ""), (p99_s, " stroke-dasharray=\"6\"")] {
            let at = y(seconds);
            let _ = write!(
                page,
                "<line x1=\"0\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#b30\"{dash}/>",
                SIZE.0
            );
        }
        page.push_str("</svg>\n");
    }
    page.push_str("</html>\n");
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
    }
}
