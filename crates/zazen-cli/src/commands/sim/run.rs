//! `zazen sim run`: simulates a workload and says what was found.

use super::files::write_whole;
use super::scales::Scales;
use super::sweep::{self, Sweep};
use crate::output::{self, Lines, Table};
use clap::Args;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::job::{JobFile, NodesText};
use zazen_sim::program::{At, Program};
use zazen_sim::record::RunRecord;
use zazen_sim::report::{csv, page, parquet};
use zazen_sim::work::Work;
use zazen_sim::{Cluster, Fidelity, Job, workloads};

/// The longest job or cluster file.
const FILE_BYTES_MAX: u64 = 16 << 20;
const NODES_DEFAULT: u32 = 1024;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen sim run fusionfs --nodes 512..2000376 --net torus -o out/
  zazen sim run metadata --nodes 1024 --fidelity hop --json
  zazen sim run read-remote --nodes 4096 --net fat-tree:32x32x4:1x32x32 --compare-fidelity
  zazen sim run my-job.toml --cluster cluster.toml -o out/ --resume
  zazen sim run ior --ior '-b 16m -t 4m -s 4 -w -r -C -F' --nodes 64..4096
  zazen sim run my-job.toml --darshan job.darshan      # replay what a real job did
  zazen sim run list

NETWORKS:
  star                  one switch that is never a bottleneck
  torus[:AxBxC]         sizes of the dimensions; without them, three that fit the nodes
  fat-tree[:M:W]        children and parents by level, such as fat-tree:24x24:1x12
  dragonfly[:PxAxHxG]   nodes per router, routers per group, global links per router, groups

FIDELITIES:
  loggp   overhead, gap, latency by distance, bandwidth of the interface; no contention
  path    each link of a route is busy for the message; routes are taken when messages are sent
  flow    long messages share links max-min fairly, short ones as loggp
  hop     an event at each router, links served in order of arrival")]
pub(crate) struct Run {
    /// A workload's name, a job file (FILE.toml), or `list` for the names
    workload: String,
    /// Replay this Darshan log: its ranks' reads and writes, with their pauses. The job file says
    /// on which cluster; instead of one, write `darshan`
    #[arg(long, value_name = "LOG")]
    darshan: Option<PathBuf>,
    /// IOR's options, for the workload `ior`
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    ior: Option<String>,
    /// Nodes: 4096, a range that doubles such as 512..16384, or a list [default: 1024]
    #[arg(long, value_name = "N|A..B|LIST")]
    nodes: Option<Scales>,
    /// The network [default: the cluster's]
    #[arg(long, value_name = "SHAPE")]
    net: Option<String>,
    /// How closely the network is simulated: loggp, path, flow or hop [default: path]
    #[arg(long, value_name = "NAME")]
    fidelity: Option<String>,
    /// Also run the other fidelities, and print how far they disagree
    #[arg(long, conflicts_with = "fidelity")]
    compare_fidelity: bool,
    /// The seed of all draws [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// A cluster.toml, intrepid or commodity [default: intrepid]
    #[arg(long, value_name = "FILE|NAME")]
    cluster: Option<String>,
    /// Ranks on each node [default: 1]
    #[arg(long, value_name = "COUNT")]
    ranks_per_node: Option<u32>,
    /// Write tables and plots into this folder
    #[arg(short, long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Do not repeat runs whose results are in the folder already
    #[arg(long, requires = "out")]
    resume: bool,
    /// Runs side by side [default: as many as there are processors]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Memory that all runs together may take, such as 8G [default: 80 % of what is free]
    #[arg(long, value_name = "BYTES", value_parser = crate::parse::bytes)]
    memory: Option<u64>,
    /// Print a line of JSON for each run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Run) -> Result<()> {
    if arguments.workload == "list" {
        let mut table = Table::new(&["workload", "what each node does"]);
        workloads::ALL
            .iter()
            .for_each(|workload| table.row(vec![workload.name.into(), workload.about.into()]));
        output::print(&table.render());
        return Ok(());
    }
    let jobs = jobs(arguments)?;
    jobs.iter().try_for_each(|job| {
        job.check().map_err(|error| error.within(format!("{} at {} nodes", job.name, job.nodes)))
    })?;
    if let Some(out) = &arguments.out {
        let runs = out.join("runs");
        std::fs::create_dir_all(&runs).map_err(|error| Error::io(runs.display().to_string(), error))?;
    }
    let sweep = Sweep {
        jobs: &jobs,
        out: arguments.out.as_deref(),
        resume: arguments.resume,
        threads: arguments.threads,
        memory: arguments.memory,
    };
    let results = sweep::run(&sweep)?;
    let missing = results.iter().filter(|result| result.is_none()).count();
    let records: Vec<RunRecord> = results.into_iter().flatten().collect();
    if let Some(out) = arguments.out.as_ref().filter(|_| !records.is_empty()) {
        report(out, &records)?;
    }
    if arguments.json {
        for record in &records {
            let line = serde_json::to_string(&record.line()?).unwrap_or_default();
            output::json_text(line);
        }
    } else if arguments.compare_fidelity {
        output::print(&comparison(&records));
    } else {
        output::print(&table(&records));
        trust(&records);
    }
    unfinished(&records);
    if missing > 0 {
        let again = match &arguments.out {
            Some(out) => format!("what was finished is in {}; --resume goes on", out.display()),
            None => "with -o FOLDER, what was finished would be kept".to_owned(),
        };
        let why = format!("interrupted: {missing} of {} runs were not done; {again}", jobs.len());
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    Ok(())
}

/// What the arguments and the job file ask for, a job for each scale and fidelity.
fn jobs(arguments: &Run) -> Result<Vec<Job>> {
    let file = match arguments.workload.strip_suffix(".toml") {
        Some(_) => {
            let path = Path::new(&arguments.workload);
            let text = crate::parse::text_file(path, FILE_BYTES_MAX, "job file")?;
            let file = JobFile::from_toml(&text);
            Some(file.map_err(|error| error.within(arguments.workload.clone()))?)
        }
        None => None,
    };
    let from_file = file.clone().unwrap_or_default();
    let cluster = match arguments.cluster.as_ref().or(from_file.cluster.as_ref()) {
        Some(name) => cluster(name)?,
        None => Cluster::default(),
    };
    let in_file = |why: String| Error::new(ErrorKind::Config, format!("job file: {why}"));
    let scales = match (&arguments.nodes, &from_file.nodes) {
        (Some(scales), _) => scales.0.clone(),
        (None, Some(NodesText::One(nodes))) => vec![*nodes],
        (None, Some(NodesText::Text(text))) => text.parse::<Scales>().map_err(in_file)?.0,
        (None, None) if arguments.darshan.is_some() => Vec::new(),
        (None, None) => vec![NODES_DEFAULT],
    };
    let fidelities = match arguments.fidelity.as_ref().or(from_file.fidelity.as_ref()) {
        _ if arguments.compare_fidelity => Fidelity::ALL.to_vec(),
        Some(name) => vec![name.parse::<Fidelity>()?],
        None => vec![Fidelity::Path],
    };
    let network = arguments.net.clone().or(from_file.net.clone()).unwrap_or(cluster.network.shape.clone());
    let ior = match (arguments.workload == "ior", &arguments.ior) {
        (true, options) => Some(zazen_sim::ior::program(options.as_deref().unwrap_or(""))?),
        (false, None) => None,
        (false, Some(_)) => {
            let why = "--ior belongs to the workload ior: zazen sim run ior --ior OPTIONS";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    };
    let replayed = match (&arguments.darshan, arguments.workload == "darshan") {
        (Some(log), _) if file.is_some() || arguments.workload == "darshan" => Some(replay(log, &from_file)?),
        (Some(_), _) => {
            let why = "--darshan belongs to a job file, or to the workload darshan: \
                       zazen sim run darshan --darshan LOG";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        (None, true) => {
            let why = "which log? zazen sim run darshan --darshan LOG";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        (None, false) => None,
    };
    if replayed.is_none() && from_file.data.is_some() {
        return Err(in_file("data says where the data of a log lie; it belongs to --darshan".to_owned()));
    }
    let workload = match &file {
        Some(_) => None,
        None if ior.is_some() || replayed.is_some() => None,
        None => Some(workloads::named(&arguments.workload)?),
    };
    let name = match (&workload, &from_file.name) {
        (Some(workload), _) => workload.name.to_owned(),
        (None, Some(name)) => name.clone(),
        (None, None) => arguments.workload.trim_end_matches(".toml").to_owned(),
    };
    let each = arguments.ranks_per_node.or(from_file.ranks_per_node);
    let scales: Vec<(u32, u32)> = match &replayed {
        Some(program) => spread_out(program.ranges.len() as u32, &scales, each),
        None => scales.into_iter().map(|nodes| (nodes, each.unwrap_or(1))).collect(),
    };
    let mut jobs = Vec::new();
    for (nodes, ranks_per_node) in scales {
        let work = match (&workload, ior.as_ref().or(replayed.as_ref())) {
            (Some(workload), _) => (workload.work)(nodes),
            (None, Some(program)) => Work::Program(program.clone()),
            (None, None) => {
                Work::Program(from_file.program().map_err(|error| error.within(arguments.workload.clone()))?)
            }
        };
        for fidelity in &fidelities {
            jobs.push(Job {
                name: name.clone(),
                nodes,
                ranks_per_node,
                network: network.clone(),
                fidelity: *fidelity,
                seed: arguments.seed.or(from_file.seed).unwrap_or(1),
                cluster: cluster.clone(),
                work: work.clone(),
            });
        }
    }
    Ok(jobs)
}

/// What a Darshan log's ranks do, where the job file says that their data lie.
fn replay(path: &Path, file: &JobFile) -> Result<Program> {
    let at = match file.data.as_deref() {
        None | Some("local") => At::Local,
        Some("random") => At::Random,
        Some("shared") => At::Shared,
        Some(other) => {
            let why = format!("job file: data = {other:?}; there are local, random and shared");
            return Err(Error::new(ErrorKind::Config, why));
        }
    };
    let log = super::darshan::read(path)?;
    let (program, basis) = log.program(at).map_err(|error| error.within(path.display()))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).display();
    output::note(format!("{name}: {} ranks, {:.1} s", log.header.ranks, log.header.run_s));
    log.header.words.iter().for_each(|word| output::note(format!("{name}: {word}")));
    if basis.overlapping > 0 {
        output::note(format!(
            "{name}: {} operations of one rank overlap in time; they are replayed one after the other",
            basis.overlapping
        ));
    }
    if !file.steps.is_empty() {
        output::note("the job file's steps are not used: the log says what each rank does");
    }
    Ok(program)
}

/// How logged ranks lie on nodes: as many on each as the user says, or as the nodes need.
fn spread_out(ranks: u32, scales: &[u32], each: Option<u32>) -> Vec<(u32, u32)> {
    if scales.is_empty() {
        let each = each.unwrap_or(1).max(1);
        return vec![(ranks.div_ceil(each), each)];
    }
    scales.iter().map(|nodes| (*nodes, each.unwrap_or(ranks.div_ceil((*nodes).max(1))))).collect()
}

/// A cluster by name or from its file.
pub(crate) fn cluster(name: &str) -> Result<Cluster> {
    if let Some(cluster) = Cluster::named(name) {
        return Ok(cluster);
    }
    if !name.ends_with(".toml") {
        let known = Cluster::NAMES.join(", ");
        let why = format!("cluster {name:?}: there is none; there are {known}, or a file FILE.toml");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let text = crate::parse::text_file(Path::new(name), FILE_BYTES_MAX, "cluster file")?;
    Cluster::from_toml(&text).map_err(|error| error.within(name))
}

fn report(out: &Path, records: &[RunRecord]) -> Result<()> {
    for (name, text) in [
        ("runs", csv::runs(records)),
        ("phases", csv::phases(records)),
        ("slowest", csv::slowest(records)),
        ("busy", csv::busy(records)),
    ] {
        let columns = parquet::from_csv(&text);
        let columns: Vec<_> = columns.iter().map(|(name, column)| (name.as_str(), column.clone())).collect();
        write_whole(&out.join(format!("{name}.parquet")), parquet::file(&columns))?;
        write_whole(&out.join(format!("{name}.csv")), text)?;
    }
    let plots = page::plots(records);
    // Plots of other runs beside these tables would pass for plots of these.
    for name in page::PLOTS.iter().filter(|name| plots.iter().all(|(drawn, _)| drawn != *name)) {
        for ending in ["svg", "png"] {
            let _ = std::fs::remove_file(out.join(format!("{name}.{ending}")));
        }
    }
    for (name, plot) in plots {
        write_whole(&out.join(format!("{name}.svg")), plot.svg())?;
        write_whole(&out.join(format!("{name}.png")), super::png::png(&plot)?)?;
    }
    write_whole(&out.join("index.html"), page::page(records))?;
    let records = records.iter().map(RunRecord::to_json).collect::<Result<Vec<String>>>()?;
    write_whole(&out.join("summary.json"), format!("[{}]\n", records.join(",\n")))
}

/// A number with a unit of 1000.
pub(crate) fn scaled(value: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value >= 99.95 || value == 0.0 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn per_cent(part: f64) -> String {
    if part == 0.0 { "-".to_owned() } else { format!("{:.1} %", part * 100.0) }
}

fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        seconds if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

fn table(records: &[RunRecord]) -> Lines {
    let mut runs = Table::new(&[
        ">nodes",
        "network",
        "fidelity",
        ">makespan",
        ">median rank",
        ">bytes/s",
        ">of ideal",
        ">metadata/s",
        ">peak",
        ">events",
    ]);
    for record in records {
        runs.row(vec![
            record.nodes.to_string(),
            record.network.clone(),
            record.fidelity.clone(),
            time(record.makespan_s),
            time(record.median_end_s),
            format!("{}B", scaled(record.bytes_per_s)),
            per_cent(record.efficiency),
            scaled(record.metadata_ops_per_s),
            scaled(record.metadata_peak_per_s()),
            scaled(record.events as f64),
        ]);
    }
    let mut text = runs.render();
    let Some(last) = records.last() else { return text };
    let mut phases =
        Table::new(&["phase", ">steps", ">mean", ">p50", ">p99", ">p99.9", ">max", ">per s", ">bytes/s"]);
    for phase in &last.phases {
        phases.row(vec![
            phase.name.clone(),
            phase.steps.to_string(),
            time(phase.mean_s),
            time(phase.p50_s),
            time(phase.p99_s),
            time(phase.p999_s),
            time(phase.max_s),
            scaled(phase.per_s),
            if phase.bytes == 0 { "-".to_owned() } else { format!("{}B", scaled(phase.bytes_per_s)) },
        ]);
    }
    text.line("");
    text.line(format!("at {} nodes:", last.nodes));
    text.add(&phases.render());
    text
}

/// What a reader must know before believing the figures.
fn trust(records: &[RunRecord]) {
    let Some(last) = records.last() else { return };
    let calibrated = last.origin.values().filter(|from| from.starts_with("calibrated")).count();
    let trust = match calibrated {
        0 => "nothing is calibrated; parameters are published ones or assumed".to_owned(),
        count => format!("{count} parameters are calibrated, all others published or assumed"),
    };
    output::note(format!("cluster {}: {trust} (-o FOLDER lists them)", last.cluster));
}

/// A makespan is that of the ranks that ended, whoever reads it: a person or a program.
fn unfinished(records: &[RunRecord]) {
    for record in records.iter().filter(|record| record.unfinished > 0) {
        let (nodes, ranks) = (record.nodes, record.unfinished);
        output::note(format!("at {nodes} nodes {ranks} ranks did not end: what they need is on dead nodes"));
    }
}

/// The fidelities side by side, and how far each is from `hop`.
fn comparison(records: &[RunRecord]) -> Lines {
    let mut table = Table::new(&[
        ">nodes",
        "fidelity",
        ">makespan",
        ">against hop",
        ">metadata mean",
        ">against hop",
        ">events",
    ]);
    let metadata = |record: &RunRecord| {
        let phases = record.phases.iter().filter(|phase| phase.is_metadata);
        let (steps, sum) = phases.fold((0.0, 0.0), |(steps, sum), phase| {
            (steps + phase.steps as f64, sum + phase.steps as f64 * phase.mean_s)
        });
        if steps > 0.0 { sum / steps } else { 0.0 }
    };
    let against = |value: f64, best: f64| match best {
        0.0 => "-".to_owned(),
        best => format!("{:+.2} %", (value / best - 1.0) * 100.0),
    };
    for record in records {
        let hop = records.iter().find(|other| other.nodes == record.nodes && other.fidelity == "hop");
        let best = hop.unwrap_or(record);
        table.row(vec![
            record.nodes.to_string(),
            record.fidelity.clone(),
            time(record.makespan_s),
            against(record.makespan_s, best.makespan_s),
            time(metadata(record)),
            against(metadata(record), metadata(best)),
            scaled(record.events as f64),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let check = |value: f64, expected: &str| assert_eq!(scaled(value), expected);
        check(0.0, "0 ");
        check(1234.0, "1.23 k");
        check(327.4e12, "327 T");
        check(54_321.0, "54.3 k");
        assert_eq!([time(2e-6), time(0.0314), time(97.0)], ["2.0 µs", "31.40 ms", "97.00 s"]);
    }
}
