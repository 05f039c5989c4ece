//! What `zazen bench assign` is asked to do: its options, checked.

use super::memory;
use super::model::Elsewhere;
use super::placement::{Placement, Plan};
use super::sample::Task;
use crate::{output, parse};
use clap::{Args, ValueEnum};
use serde_json::json;
use zazen_assign::scenario::RANKS_MAX;
use zazen_assign::{BITMAP_FRAMES_MAX, Protocol, Rules};
use zazen_core::{Error, ErrorKind, Result};

/// Ranks in one process where nothing is said.
const RANKS: usize = 4;
/// Share of holes of the placement of that name.
const HOLE_SHARE: f64 = 1e-6;
/// Bytes that the bitmap protocol takes per frame and rank in one process, at most: bits, entries,
/// and what the ranks lay down for each other.
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
  zazen bench assign --frames 1e8 --placement random --protocol both \\
      --model-nodes 100 --model-link 117e6

Without a launcher the ranks are threads of one process. Under mpiexec, mpirun or srun each process
is a rank. The MPI library is the launcher's own ($ZAZEN_MPI_LIBRARY names another). Times are taken
between barriers and are medians of the repeats. Holdings are built before the clock starts. Rank r
is on node r modulo the number of nodes.")]
pub(crate) struct Assign {
    /// Frames that are asked for: 1000000, 1e9
    #[arg(long, value_name = "N", value_parser = parse::frame_count, default_value = "1e9")]
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
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
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
    #[arg(long, value_name = "BYTES", default_value = "117e6", value_parser = parse::positive)]
    model_link: f64,
    /// Seconds per message of the model
    #[arg(long, value_name = "SECONDS", default_value = "50e-6", value_parser = parse::positive)]
    model_latency: f64,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Assign {
    /// How many ranks take part.
    pub(super) fn ranks(&self, launched: Option<usize>) -> usize {
        launched.or(self.ranks).unwrap_or(RANKS)
    }

    /// What is to be done; fails with `InvalidArgument` or `TooLarge` and the option's name.
    pub(super) fn task(&self, launched: Option<usize>) -> Result<Task> {
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
                "--frames {}: the bitmap protocol takes {BITMAP_FRAMES_MAX} frames at most; give fewer, or \
                 --protocol owner",
                self.frames
            );
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        let needed = (self.frames as f64 * BITMAP_BYTES_PER_FRAME) as u64 * ranks_in_process as u64;
        match memory::available_bytes() {
            Some(available) if needed > available => {
                let context = format!(
                    "--frames {}: the bitmaps of {ranks_in_process} ranks may take {} in this process, and \
                     {} are free; give fewer frames or --ranks, or --protocol owner",
                    self.frames,
                    output::human_bytes(needed),
                    output::human_bytes(available)
                );
                Err(Error::new(ErrorKind::TooLarge, context))
            }
            _ => Ok(()),
        }
    }

    /// The cluster to model the time on, if one is asked for.
    pub(super) fn elsewhere(&self) -> Option<Elsewhere> {
        let (link_bytes_per_s, latency_s) = (self.model_link, self.model_latency);
        Some(Elsewhere { nodes: self.model_nodes?, link_bytes_per_s, latency_s })
    }

    /// What was asked for, for people.
    pub(super) fn title(&self, task: &Task, ranks: usize, carrier: &str) -> String {
        let plan = &task.plan;
        let dead =
            if plan.dead_nodes > 0 { format!(", {} of them dead", plan.dead_nodes) } else { String::new() };
        let holes =
            if plan.hole_share > 0.0 { format!(", holes {:e}", plan.hole_share) } else { String::new() };
        format!(
            "{} frames, {} on {} nodes{dead}{holes}; {ranks} ranks over {carrier}; medians of {} repeats, \
             seed {}",
            plan.frames,
            placement_name(plan.placement),
            plan.nodes,
            task.repeats,
            plan.seed
        )
    }

    /// The same for scripts.
    pub(super) fn setting(&self, task: &Task, ranks: usize, carrier: &str) -> serde_json::Value {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        assign: Assign,
    }

    pub(crate) fn parse(line: &str) -> Assign {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))
            .map(|line| line.assign)
            .unwrap()
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
}
