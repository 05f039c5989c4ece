//! `zazen bench assign`: the assignment protocol at any scale, its ranks as threads or under an MPI launcher.

use super::memory;
use super::model::{Elsewhere, Rates};
use super::placement::{Placement, Plan};
use super::report::{Memory, Report, Side, name};
use super::sample::{RankReport, Task, run_rank};
use crate::output;
use clap::{Args, ValueEnum};
use serde_json::json;
use zazen_assign::scenario::RANKS_MAX;
use zazen_assign::{BITMAP_FRAMES_MAX, Collectives, Protocol, Rules, threads};
use zazen_client::testbed_env::launcher_rank;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_mpi::{MpiCollectives, Started, launched_ranks};

/// Ranks in one process where nothing is said.
const RANKS: usize = 4;
/// Share of holes of the placement of that name.
const HOLE_SHARE: f64 = 1e-6;
/// Bytes that the bitmap protocol takes per frame and rank in one process, at most: bits, entries, and what the
/// ranks lay down for each other.
const BITMAP_BYTES_PER_FRAME: f64 = 1.0;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// This product's: a fingerprint, then each rank decides a slice
    Owner,
    /// The paper's: two all-reduces over bitmaps
    Bitmaps,
    /// One after the other in turns, with their ratio
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// Random sums, wrong with a probability below 2^-60
    Fingerprint,
    /// No fingerprint: holdings are exchanged in any case
    Exact,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RulesArg {
    Full,
    Paper,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen bench assign --frames 1e9 --ranks 1                          # local work alone
  zazen bench assign --frames 1e8 --placement random --protocol both
  zazen bench assign --frames 1e9 --placement aliens --protocol bitmaps --rules paper --ranks 2
  mpiexec -n 4 zazen bench assign --frames 1e8 --placement random --protocol both --json
  zazen testbed run -n 8 -- zazen bench assign --frames 1e9 --dead-nodes 1
  zazen bench assign --frames 1e8 --placement random --protocol both --model-nodes 100 --model-link 117e6

Without a launcher the ranks are threads of one process. Under mpiexec, mpirun or srun each process
is a rank. The MPI library is the launcher's own ($ZAZEN_MPI_LIBRARY names another). Times are taken
between barriers and are medians of the repeats. Holdings are built before the clock starts. Rank r is
on node r modulo the number of nodes.")]
pub(crate) struct Assign {
    /// Frames that are asked for: 1000000, 1e9
    #[arg(long, value_name = "N", value_parser = frames, default_value = "1e9")]
    frames: u64,
    /// Who holds what
    #[arg(long, value_enum, default_value = "round-robin")]
    placement: Placement,
    /// Which protocol
    #[arg(long, value_enum, default_value = "owner")]
    protocol: Which,
    /// The assignment rules: the product's or the paper's
    #[arg(long, value_enum, default_value = "full")]
    rules: RulesArg,
    /// Ranks in this process [default: 4, or what the launcher has started]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Ranks that share a node's cache; must divide the ranks
    #[arg(long, value_name = "M", default_value_t = 1)]
    ranks_per_node: usize,
    /// Runs of each protocol
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Whatever is random follows from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Of all frames, 0 to 1, those that no node holds [default: 0; 1e-6 for --placement holes]
    #[arg(long, value_name = "X")]
    hole_share: Option<f64>,
    /// So many nodes hold nothing (the last ones)
    #[arg(long, value_name = "K", default_value_t = 0)]
    dead_nodes: usize,
    /// How a perfect hit is found out
    #[arg(long, value_enum, default_value = "fingerprint")]
    verify: Verify,
    /// Also give the modelled time at so many nodes
    #[arg(long, value_name = "N")]
    model_nodes: Option<usize>,
    /// Bytes per second of the links of the model
    #[arg(long, value_name = "BYTES", default_value = "117e6", value_parser = positive)]
    model_link: f64,
    /// Seconds per message of the model
    #[arg(long, value_name = "SECONDS", default_value = "50e-6", value_parser = positive)]
    model_latency: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Assign) -> Result<()> {
    let launched = launched_ranks();
    let task = match arguments.task(launched) {
        Ok(task) => task,
        // Every rank finds the same mistake; one tells it, and the others do not end the job before it has.
        Err(_) if launched.is_some() && launcher_rank().is_some_and(|rank| rank != 0) => return Ok(()),
        Err(error) => return Err(error),
    };
    let ranks = arguments.ranks(launched);
    // A launcher of one rank needs no MPI.
    let (carrier, reports) = match launched.filter(|ranks| *ranks > 1) {
        None => ("threads of one process".to_owned(), on_threads(&task, ranks)?),
        Some(launched) => match under_launcher(&task, launched)? {
            Some(done) => done,
            None => return Ok(()),
        },
    };
    finish(arguments, &task, ranks, &carrier, &reports)
}

/// The ranks as threads; reports by rank.
fn on_threads(task: &Task, ranks: usize) -> Result<Vec<RankReport>> {
    let results = threads::run(ranks, |member| run_rank(task, member));
    // A rank that only waited for another says less than the one that failed.
    let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let mut errors: Vec<Error> = failed.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() == ErrorKind::Unavailable);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(done.into_iter().flatten().flatten().collect()),
    }
}

/// This process as one rank of MPI_COMM_WORLD. The carrier's name and the reports by rank, on rank 0.
fn under_launcher(task: &Task, launched: usize) -> Result<Option<(String, Vec<RankReport>)>> {
    let started = Started::new()?;
    let work = || {
        let collectives = MpiCollectives::world()?;
        if collectives.size() != launched {
            let context = format!(
                "the launcher says that it started {launched} ranks, but MPI_COMM_WORLD has {}; use the mpiexec that \
                 belongs to {}",
                collectives.size(),
                started.file()
            );
            return Err(Error::new(ErrorKind::Mpi, context));
        }
        let reports = run_rank(task, &collectives)?;
        Ok((collectives.rank() == 0).then_some(reports))
    };
    match work() {
        Ok(reports) => Ok(reports.map(|reports| (format!("MPI ({})", started.file()), reports))),
        Err(error) => {
            // The others may be in a collective: MPI_Finalize would wait for them, our exit ends the job.
            std::mem::forget(started);
            Err(error.within(format!("rank {}", launcher_rank().unwrap_or(0))))
        }
    }
}

fn finish(
    arguments: &Assign,
    task: &Task,
    ranks: usize,
    carrier: &str,
    reports: &[RankReport],
) -> Result<()> {
    let frames = task.plan.frames;
    let side = |(at, protocol): (usize, &Protocol)| Side::of(*protocol, at, reports, frames);
    let sides: Vec<Side> = task.protocols.iter().enumerate().map(side).collect();
    let rates: Vec<Rates> = reports.iter().filter_map(|report| report.rates).collect();
    let rates = (!rates.is_empty()).then(|| Rates::median(&rates));
    let elsewhere = match (arguments.elsewhere(), rates) {
        (Some(there), Some(rates)) => {
            Some((there, arguments.modelled(task, &there, &sides, ranks, carrier, &rates)?))
        }
        _ => None,
    };
    let report = Report {
        title: arguments.title(task, ranks, carrier),
        setting: arguments.setting(task, ranks, carrier),
        frames,
        ranks,
        sides,
        rates,
        memory: Memory::of(reports),
        elsewhere,
    };
    if arguments.json {
        output::json(&report.as_json());
    } else {
        output::print(&report.as_text());
    }
    match report.sides.iter().find(|side| !side.adds_up) {
        None => Ok(()),
        Some(side) => Err(Error::new(
            ErrorKind::Protocol,
            format!(
                "protocol {}: the ranks' shares are not the {frames} frames asked for, each once; please report \
                 the command line",
                side.protocol
            ),
        )),
    }
}

impl Assign {
    fn ranks(&self, launched: Option<usize>) -> usize {
        launched.or(self.ranks).unwrap_or(RANKS)
    }

    /// What is to be done; fails with `InvalidArgument` or `TooLarge` and the option's name.
    fn task(&self, launched: Option<usize>) -> Result<Task> {
        let ranks = self.ranks(launched);
        if let (Some(launched), Some(given)) = (launched, self.ranks)
            && launched != given
        {
            let context =
                format!("--ranks {given}: the launcher has started {launched} ranks; leave --ranks out");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        check_count("--ranks", ranks, RANKS_MAX)?;
        check_count("--model-nodes", self.model_nodes.unwrap_or(2), RANKS_MAX)?;
        if self.ranks_per_node == 0 || !ranks.is_multiple_of(self.ranks_per_node) {
            let per_node = self.ranks_per_node;
            return Err(invalid(format!(
                "--ranks-per-node {per_node}: does not divide the {ranks} ranks; give a divisor"
            )));
        }
        let nodes = ranks / self.ranks_per_node;
        if self.dead_nodes > nodes {
            return Err(invalid(format!("--dead-nodes {}: there are {nodes} nodes", self.dead_nodes)));
        }
        let default = if self.placement == Placement::Holes { HOLE_SHARE } else { 0.0 };
        let hole_share = self.hole_share.unwrap_or(default);
        if !(0.0..=1.0).contains(&hole_share) {
            return Err(invalid(format!("--hole-share {hole_share}: give a share between 0 and 1")));
        }
        let one_process = launched.is_none_or(|launched| launched == 1);
        self.check_bitmaps(if one_process { ranks } else { 1 })?;
        let (nodes, dead_nodes) = (nodes as u64, self.dead_nodes as u64);
        Ok(Task {
            plan: Plan {
                frames: self.frames,
                nodes,
                placement: self.placement,
                dead_nodes,
                hole_share,
                seed: self.seed,
            },
            protocols: match self.protocol {
                Which::Owner => vec![Protocol::Owner],
                Which::Bitmaps => vec![Protocol::Bitmaps],
                Which::Both => vec![Protocol::Owner, Protocol::Bitmaps],
            },
            rules: match self.rules {
                RulesArg::Full => Rules::Full,
                RulesArg::Paper => Rules::Paper,
            },
            verify_exact: self.verify == Verify::Exact,
            repeats: self.repeats as usize,
            rates: self.protocol != Which::Owner || self.model_nodes.is_some(),
            one_process,
        })
    }

    /// Bitmaps are dear whatever is held: that is said before, not by the kernel's killer.
    fn check_bitmaps(&self, ranks_in_process: usize) -> Result<()> {
        if self.protocol == Which::Owner {
            return Ok(());
        }
        if self.frames > BITMAP_FRAMES_MAX {
            let context = format!(
                "--frames {}: the bitmap protocol takes {BITMAP_FRAMES_MAX} frames at most; give fewer, or --protocol owner",
                self.frames
            );
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        let needed = (self.frames as f64 * BITMAP_BYTES_PER_FRAME) as u64 * ranks_in_process as u64;
        match memory::available_bytes() {
            Some(available) if needed > available => {
                let context = format!(
                    "--frames {}: the bitmaps of {ranks_in_process} ranks may take {} in this process, and {} are free; \
                     give fewer frames or --ranks, or --protocol owner",
                    self.frames,
                    output::human_bytes(needed),
                    output::human_bytes(available)
                );
                Err(Error::new(ErrorKind::TooLarge, context))
            }
            _ => Ok(()),
        }
    }

    fn elsewhere(&self) -> Option<Elsewhere> {
        let (link_bytes_per_s, latency_s) = (self.model_link, self.model_latency);
        Some(Elsewhere { nodes: self.model_nodes?, link_bytes_per_s, latency_s })
    }

    /// The owner protocol's local work and bytes depend on the number of nodes: it is run once more among as many
    /// ranks as the model has nodes, as threads. That of the bitmaps does not.
    fn modelled(
        &self,
        task: &Task,
        there: &Elsewhere,
        sides: &[Side],
        ranks: usize,
        carrier: &str,
        rates: &Rates,
    ) -> Result<Vec<(&'static str, super::model::Modelled)>> {
        let frames = task.plan.frames;
        let as_there = ranks == there.nodes && task.plan.nodes as usize == ranks;
        let mut times = Vec::new();
        for side in sides {
            let rerun =
                side.protocol == name(Protocol::Owner) && !(as_there && carrier.starts_with("threads"));
            if !rerun {
                times.push((side.protocol, there.time(side, frames, rates)));
                continue;
            }
            let plan = Plan { nodes: there.nodes as u64, ..task.plan.clone() };
            let again = Task {
                plan,
                protocols: vec![Protocol::Owner],
                repeats: task.repeats.min(3),
                rates: false,
                one_process: true,
                ..*task
            };
            let reports = on_threads(&again, there.nodes)?;
            let side = Side::of(Protocol::Owner, 0, &reports, frames);
            times.push((side.protocol, there.time(&side, frames, rates)));
        }
        Ok(times)
    }

    fn title(&self, task: &Task, ranks: usize, carrier: &str) -> String {
        let plan = &task.plan;
        let dead =
            if plan.dead_nodes > 0 { format!(", {} of them dead", plan.dead_nodes) } else { String::new() };
        let holes =
            if plan.hole_share > 0.0 { format!(", holes {:e}", plan.hole_share) } else { String::new() };
        format!(
            "{} frames, {} on {} nodes{dead}{holes}; {ranks} ranks over {carrier}; medians of {} repeats, seed {}",
            plan.frames,
            placement_name(plan.placement),
            plan.nodes,
            task.repeats,
            plan.seed
        )
    }

    fn setting(&self, task: &Task, ranks: usize, carrier: &str) -> serde_json::Value {
        let plan = &task.plan;
        json!({
            "frames": plan.frames,
            "placement": placement_name(plan.placement),
            "nodes": plan.nodes,
            "ranks": ranks,
            "ranks_per_node": self.ranks_per_node,
            "dead_nodes": plan.dead_nodes,
            "hole_share": plan.hole_share,
            "rules": if self.rules == RulesArg::Full { "full" } else { "paper" },
            "verify": if task.verify_exact { "exact" } else { "fingerprint" },
            "repeats": task.repeats,
            "seed": plan.seed,
            "carrier": carrier,
        })
    }
}

fn placement_name(placement: Placement) -> String {
    placement.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn check_count(option: &str, count: usize, most: usize) -> Result<()> {
    match count {
        0 => Err(invalid(format!("{option} 0: give 1 to {most}"))),
        count if count > most => {
            Err(Error::new(ErrorKind::TooLarge, format!("{option} {count}: the limit is {most}")))
        }
        _ => Ok(()),
    }
}

fn invalid(context: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, context)
}

/// A number of frames, also as 1e9.
fn frames(text: &str) -> std::result::Result<u64, String> {
    let most = FRAME_NO_MAX + 1;
    let value = text.parse::<f64>().ok().filter(|value| value.fract() == 0.0 && *value >= 0.0);
    match (text.parse::<u64>().ok(), value) {
        (Some(0), _) => Err(format!("0 frames need no assignment; give 1 to {most}")),
        (Some(frames), _) if frames <= most => Ok(frames),
        (_, Some(value)) if value > most as f64 => {
            Err(format!("beyond the limit of {most} frames (2^40 + 1)"))
        }
        (_, Some(0.0)) => Err(format!("0 frames need no assignment; give 1 to {most}")),
        // Below 2^53 every whole number is exact.
        (_, Some(value)) => Ok(value as u64),
        (_, None) => Err(format!("not a number of frames; give 1 to {most}, as 1000000 or 1e6")),
    }
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("give a number above 0, as 117e6".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        assign: Assign,
    }

    fn parse(line: &str) -> Assign {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))
            .map(|line| line.assign)
            .unwrap()
    }

    #[test]
    fn frames_are_whole_and_bounded() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(frames(text).ok(), expected, "{text:?}");
        check("1", Some(1));
        check("1e9", Some(1_000_000_000));
        check("1.5e3", Some(1500));
        check("1099511627777", Some((1 << 40) + 1));
        check("0", None);
        check("1099511627778", None);
        check("9223372036854775809", None);
        check("1e30", None);
        check("0.5", None);
        check("-1", None);
        check("nan", None);
        check("inf", None);
        check("many", None);
        assert!(frames("2e13").unwrap_err().contains("2^40"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let check = |line: &str, launched: Option<usize>, names: &str| {
            let error = parse(line).task(launched).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(names), "{line}: {error:?} should name {names}");
        };
        check("--ranks 0", None, "--ranks 0");
        check("--ranks 1025", None, "1024");
        check("--ranks 8 --ranks-per-node 3", None, "--ranks-per-node 3");
        check("--ranks-per-node 0", None, "--ranks-per-node 0");
        check("--ranks 4 --dead-nodes 5", None, "--dead-nodes 5");
        check("--ranks 4 --ranks-per-node 4 --dead-nodes 2", None, "there are 1 nodes");
        check("--hole-share 1.5", None, "--hole-share");
        check("--frames 1e10 --protocol bitmaps", None, "bitmap protocol takes");
        check("--model-nodes 0", None, "--model-nodes");
        check("--ranks 3", Some(4), "4 ranks");
        assert!(parse("--ranks 4").task(Some(4)).is_ok());
        assert_eq!(parse("").ranks(Some(1)), 1);
        assert_eq!(parse("").task(Some(7)).map(|task| task.plan.nodes).ok(), Some(7));
    }

    fn measure(line: &str) -> serde_json::Value {
        let arguments = parse(line);
        let (task, ranks) = (arguments.task(None).unwrap(), arguments.ranks(None));
        let reports = on_threads(&task, ranks).unwrap();
        assert_eq!(reports.len(), ranks);
        let side = |(at, protocol): (usize, &Protocol)| Side::of(*protocol, at, &reports, task.plan.frames);
        let rates: Vec<Rates> = reports.iter().filter_map(|report| report.rates).collect();
        let report = Report {
            title: arguments.title(&task, ranks, "threads"),
            setting: arguments.setting(&task, ranks, "threads"),
            frames: task.plan.frames,
            ranks,
            sides: task.protocols.iter().enumerate().map(side).collect(),
            rates: (!rates.is_empty()).then(|| Rates::median(&rates)),
            memory: Memory::of(&reports),
            elsewhere: None,
        };
        assert!(report.as_text().contains("adds up"));
        report.as_json()
    }

    #[test]
    fn every_placement_is_assigned_whole_by_both_protocols() {
        for (line, paths, residue) in [
            ("--placement round-robin", ["fingerprint", "exchange"], 0),
            ("--placement contiguous --ranks-per-node 2", ["fingerprint", "exchange"], 0),
            ("--placement random", ["fingerprint", "exchange"], 0),
            ("--placement random --verify exact", ["exchange", "exchange"], 0),
            ("--placement holes --hole-share 1e-3", ["exchange", "exchange"], 100),
            ("--placement round-robin --dead-nodes 1", ["exchange", "exchange"], 25_000),
            ("--placement aliens --rules paper", ["exchange", "exchange"], 1),
            ("--placement aliens", ["exchange", "exchange"], 0),
        ] {
            let report = measure(&format!("{line} --frames 100000 --ranks 4 --repeats 2 --protocol both"));
            for (side, path) in report["protocols"].as_array().unwrap().iter().zip(paths) {
                assert_eq!(side["adds_up"], true, "{line}: {side}");
                assert_eq!(side["path"], path, "{line}: {side}");
                assert_eq!(side["residue"], residue, "{line}: {side}");
            }
            assert!(report["bitmaps_over_owner"].as_f64().unwrap() > 0.0);
            let rounds = report["model"]["rounds"].as_array().unwrap();
            assert!(rounds.iter().any(|row| row["round"] == "natives"), "{line}: {rounds:?}");
        }
    }
}
