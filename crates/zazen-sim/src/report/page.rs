//! The plots of a sweep, and one page that holds everything: no script, no file beside it.

use super::svg::{Plot, Series, escape, short};
use crate::record::RunRecord;
use std::collections::BTreeMap;

/// What the FusionFS paper reports for its job: (nodes, bytes per second) measured on Intrepid to
/// 16 K nodes, and simulated by its authors at 2 M (§4.5).
const PAPER_FUSIONFS: [(f64, f64); 2] = [(16_384.0, 2.5e12), (2_000_000.0, 329e12)];
/// The same curve to 16 K nodes: the paper's text gives its end, and that it is linear.
const PAPER_FUSIONFS_PER_NODE: f64 = 2.5e12 / 16_384.0;
const PAPER_FUSIONFS_NODES: std::ops::RangeInclusive<u32> = 512..=16_384;
/// The error that the paper reports of its own simulator, at most, in per cent (§4.5).
const PAPER_ERROR: f64 = 4.0;
/// What it reports for creating files in one directory (§4.2): (nodes, creates per second).
const PAPER_CREATES: [(f64, f64); 1] = [(1_024.0, 54e3)];

/// The names of all plots that there may be.
pub const PLOTS: [&str; 6] = ["throughput", "error", "metadata", "efficiency", "stragglers", "busy"];

/// The plots of these runs, by file name without its suffix.
pub fn plots(records: &[RunRecord]) -> Vec<(&'static str, Plot)> {
    let mut plots = Vec::new();
    let mut groups: BTreeMap<(&str, &str), Vec<&RunRecord>> = BTreeMap::new();
    for record in records {
        groups.entry((&record.workload, &record.fidelity)).or_default().push(record);
    }
    groups.values_mut().for_each(|group| group.sort_by_key(|record| record.nodes));
    let lines = |value: &dyn Fn(&RunRecord) -> f64| -> Vec<Series> {
        let line = |(key, group): (&(&str, &str), &Vec<&RunRecord>)| Series {
            name: if groups.len() > 1 { format!("{} {}", key.0, key.1) } else { key.1.to_owned() },
            points: group.iter().map(|record| (f64::from(record.nodes), value(record))).collect(),
            ..Series::default()
        };
        groups.iter().map(line).collect()
    };
    let is_intrepid = |workload: &str| {
        records.iter().all(|record| record.workload == workload && record.cluster == "intrepid")
    };
    let reference = |points: &[(f64, f64)]| Series {
        name: "published".to_owned(),
        points: points.to_vec(),
        is_reference: true,
        ..Series::default()
    };
    let ideal = |value: &dyn Fn(&RunRecord) -> f64| {
        let mut points: Vec<(f64, f64)> = records
            .iter()
            .map(|record| (f64::from(record.nodes), value(record)))
            .filter(|point| point.1 > 0.0)
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points.dedup();
        Series { name: "ideal".to_owned(), points, is_guide: true, ..Series::default() }
    };
    if records.iter().any(|record| record.bytes > 0) {
        let mut series = lines(&|record| record.bytes_per_s);
        series.push(ideal(&|record| record.ideal_bytes_per_s));
        if is_intrepid("fusionfs") {
            series.push(reference(&PAPER_FUSIONFS));
        }
        plots.push(("throughput", plot("Throughput", "nodes", "bytes per second", series, true)));
    }
    let published: Vec<&RunRecord> =
        records.iter().filter(|record| PAPER_FUSIONFS_NODES.contains(&record.nodes)).collect();
    if is_intrepid("fusionfs") && !published.is_empty() {
        plots.push(("error", error(&published)));
    }
    if records.iter().any(|record| record.metadata_ops > 0) {
        let mut series = metadata(&groups);
        if is_intrepid("metadata-shared") {
            series.push(reference(&PAPER_CREATES));
        }
        plots.push(("metadata", plot("Metadata by phase", "nodes", "operations per second", series, true)));
    }
    if records.iter().any(|record| record.efficiency > 0.0) {
        let mut series = lines(&|record| record.efficiency * 100.0);
        series.push(ideal(&|_| 100.0));
        let plot = plot("Efficiency against the disks", "nodes", "per cent", series, false);
        plots.push(("efficiency", Plot { is_log_x: true, ..plot }));
    }
    let mut series = lines(&|record| record.makespan_s);
    series.extend(
        lines(&|record| record.median_end_s)
            .into_iter()
            .map(|series| Series { name: format!("median rank {}", series.name), ..series }),
    );
    plots.push((
        "stragglers",
        Plot { is_log_x: true, ..plot("Last and median rank", "nodes", "seconds", series, false) },
    ));
    if let Some(largest) = records.iter().max_by_key(|record| record.nodes) {
        let series =
            largest.busy.iter().filter(|busy| busy.of > 0.0 && busy.series.iter().any(|at| at.1 > 0.0));
        let series = series.map(|busy| Series {
            name: busy.name.clone(),
            points: busy.series.iter().map(|(time, count)| (*time, 100.0 * count / busy.of)).collect(),
            ..Series::default()
        });
        let title = format!("Busy over time at {} nodes", largest.nodes);
        plots.push(("busy", plot(&title, "simulated seconds", "per cent busy", series.collect(), false)));
    }
    plots
}

/// Operations per second of each metadata phase, by scale.
fn metadata(groups: &BTreeMap<(&str, &str), Vec<&RunRecord>>) -> Vec<Series> {
    let mut series = Vec::new();
    for (key, group) in groups {
        let mut phases: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for record in group {
            for phase in record.phases.iter().filter(|phase| phase.is_metadata) {
                phases.entry(&phase.name).or_default().push((f64::from(record.nodes), phase.per_s));
            }
        }
        series.extend(phases.into_iter().map(|(phase, points)| Series {
            name: if groups.len() > 1 { format!("{} {phase}", key.1) } else { phase.to_owned() },
            points,
            ..Series::default()
        }));
    }
    series
}

/// How far the simulated throughput is from the published curve, by scale.
fn error(records: &[&RunRecord]) -> Plot {
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for record in records {
        let published = PAPER_FUSIONFS_PER_NODE * f64::from(record.nodes);
        let error = 100.0 * (record.bytes_per_s / published - 1.0).abs();
        groups.entry(&record.fidelity).or_default().push((f64::from(record.nodes), error));
    }
    let ends = |nodes: &dyn Fn(f64, f64) -> f64| {
        records.iter().map(|record| f64::from(record.nodes)).reduce(nodes).unwrap_or(1.0)
    };
    let (first, last) = (ends(&f64::min), ends(&f64::max));
    let mut series: Vec<Series> = groups
        .into_iter()
        .map(|(fidelity, mut points)| {
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            Series { name: fidelity.to_owned(), points, ..Series::default() }
        })
        .collect();
    series.push(Series {
        name: "published error".to_owned(),
        points: vec![(first, PAPER_ERROR), (last, PAPER_ERROR)],
        is_guide: true,
        ..Series::default()
    });
    let plot = plot("Distance from the published curve", "nodes", "per cent", series, false);
    Plot { is_log_x: true, ..plot }
}

fn plot(title: &str, x: &str, y: &str, series: Vec<Series>, is_log: bool) -> Plot {
    Plot { title: title.to_owned(), x: x.to_owned(), y: y.to_owned(), is_log, is_log_x: false, series }
}

const STYLE: &str = "\
:root{--ink:#1b1f24;--soft:#57606a;--line:#d5dae1;--paper:#fff}\
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#a2abb6;--line:#3a414b;--paper:#14181d}}\
body{margin:2rem auto;max-width:72rem;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);\
background:var(--paper)}h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}p{max-width:46rem}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(30rem,1fr));gap:1rem}\
figure{margin:0;border:1px solid var(--line);border-radius:6px;overflow:hidden}\
svg{display:block;width:100%;height:auto}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}\
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
th:first-child,td:first-child,.text{text-align:left}\
.left th,.left td{text-align:left}th{color:var(--soft);font-weight:600}code{font-size:.9em}";

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    header.iter().for_each(|name| out += &format!("<th>{}</th>", escape(name)));
    out += "</tr></thead><tbody>";
    for row in rows {
        out += "<tr>";
        row.iter().for_each(|cell| out += &format!("<td>{}</td>", escape(cell)));
        out += "</tr>";
    }
    out + "</tbody></table></div>"
}

fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        seconds if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

fn per_cent(part: f64) -> String {
    if part == 0.0 { "–".to_owned() } else { format!("{:.1} %", part * 100.0) }
}

/// One page with the tables and plots of these runs.
pub fn page(records: &[RunRecord]) -> String {
    let names: std::collections::BTreeSet<&str> =
        records.iter().map(|record| record.workload.as_str()).collect();
    let title = format!("zazen sim: {}", names.into_iter().collect::<Vec<_>>().join(", "));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>",
        title = escape(&title)
    );
    out += &trust(records);
    out += "<h2>Plots</h2><div class=\"plots\">";
    plots(records).iter().for_each(|(_, plot)| out += &format!("<figure>{}</figure>", plot.svg().trim_end()));
    out += "</div><h2>Runs</h2>";
    out += &table(
        &[
            "workload",
            "nodes",
            "network",
            "fidelity",
            "seed",
            "makespan",
            "median rank",
            "bytes/s",
            "of ideal",
            "metadata/s",
            "busiest phase",
            "messages",
            "retries",
            "not ended",
            "events",
            "trace",
        ],
        records.iter().map(|run| {
            vec![
                run.workload.clone(),
                run.nodes.to_string(),
                run.network.clone(),
                run.fidelity.clone(),
                run.seed.to_string(),
                time(run.makespan_s),
                time(run.median_end_s),
                short(run.bytes_per_s),
                per_cent(run.efficiency),
                short(run.metadata_ops_per_s),
                short(run.metadata_peak_per_s()),
                short(run.messages as f64),
                run.retries.to_string(),
                run.unfinished.to_string(),
                short(run.events as f64),
                run.trace_hash.clone(),
            ]
        }),
    );
    if let Some(largest) = records.iter().max_by_key(|record| record.nodes) {
        out += &format!("<h2>Phases at {} nodes</h2>", largest.nodes);
        out += &table(
            &["phase", "steps", "mean", "p50", "p90", "p99", "p99.9", "max", "per second", "bytes/s"],
            largest.phases.iter().map(|phase| {
                vec![
                    phase.name.clone(),
                    phase.steps.to_string(),
                    time(phase.mean_s),
                    time(phase.p50_s),
                    time(phase.p90_s),
                    time(phase.p99_s),
                    time(phase.p999_s),
                    time(phase.max_s),
                    short(phase.per_s),
                    short(phase.bytes_per_s),
                ]
            }),
        );
        out += &format!("<h2>The slowest ranks at {} nodes</h2>", largest.nodes);
        out += &table(
            &["rank", "done at", "after the median by", "its disk takes"],
            largest.slowest.iter().map(|slow| {
                vec![
                    slow.rank.to_string(),
                    time(slow.end_s),
                    time(slow.end_s - largest.median_end_s),
                    format!("{:.3} times the typical", slow.disk_stretch),
                ]
            }),
        );
        out += "<h2>Where the parameters come from</h2>";
        out += "<div class=\"left\">";
        out += &table(
            &["parameter", "origin"],
            largest.origin.iter().map(|(name, origin)| vec![name.clone(), origin.clone()]),
        );
        out += "</div><p>Parameters that are not listed are assumed.</p>";
    }
    out + "</body></html>\n"
}

/// What a reader must know before believing the figures.
fn trust(records: &[RunRecord]) -> String {
    let clusters: std::collections::BTreeSet<&str> =
        records.iter().map(|record| record.cluster.as_str()).collect();
    let calibrated = records
        .last()
        .map_or(0, |record| record.origin.values().filter(|origin| origin.starts_with("calibrated")).count());
    let origin = match calibrated {
        0 => "No parameter is calibrated: all are published or assumed.".to_owned(),
        count => {
            format!("{count} parameters are calibrated from spans; all others are published or assumed.")
        }
    };
    let fidelities: std::collections::BTreeSet<&str> =
        records.iter().map(|record| record.fidelity.as_str()).collect();
    format!(
        "<p>Simulated on the cluster <b>{}</b> at fidelity <b>{}</b>. {origin} Local work that scales \
         with the nodes scales here because it does so by construction; look at stragglers, metadata \
         and remote reads.</p>",
        escape(&clusters.into_iter().collect::<Vec<_>>().join(", ")),
        escape(&fidelities.into_iter().collect::<Vec<_>>().join(", "))
    )
}
