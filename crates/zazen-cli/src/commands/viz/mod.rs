//! `zazen viz`: which rank reads which file of a visualization.

mod load;
mod plan;
mod ranks;
mod reads_page;
mod record;
mod report;
mod shown;

use crate::output::{self, Lines, Table};
use clap::{Args, Subcommand};
use shown::files_text;
use zazen_core::Result;
use zazen_match::scenario::{Outcome, Scenario, run_scenario};

/// The longest scenario.
const SCENARIO_BYTES_MAX: u64 = 256 << 20;

#[derive(Args)]
pub(crate) struct Viz {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Give the files of a scenario to its ranks
    Match(Match),
    /// Say which rank of a job would read which file, and what share is remote
    Plan(plan::Plan),
    /// Copy a visualization into HDFS, each file in one block
    Load(load::Load),
    /// Say what the steps of a run waited for, from the records of its readers
    Report(report::Report),
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen viz match --scenario scenario.json
  zazen viz match --scenario - --json < scenario.json

A scenario, with nodes as numbers or names:
  {\"ranks\": [0, 1], \"files\": [{\"bytes\": 4096, \"holders\": [1]}, {\"bytes\": 4096, \"holders\": [0]}],
   \"strategy\": \"optimal\", \"seed\": 1}

STRATEGIES:
  blind         file i goes to rank i mod ranks, wherever it lies
  first-come    files in a drawn order, each to a drawn holder with room
  scarcest      VisIO: the file with the fewest holders left first, to the first of them
  least-demand  the same, to the holder that the fewest other files ask for
  optimal       no map reads fewer files remotely
  bytes         all files at their holders, the bytes of the ranks balanced
  sticky        one map for all time steps: \"steps\": [files of each step] instead of \"files\"")]
struct Match {
    /// The scenario's file; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    scenario: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Viz) -> Result<()> {
    match &arguments.command {
        Command::Match(arguments) => run_match(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Load(arguments) => load::run(arguments),
        Command::Report(arguments) => report::run(arguments),
    }
}

fn run_match(arguments: &Match) -> Result<()> {
    let (name, text) = crate::parse::scenario_text(&arguments.scenario, SCENARIO_BYTES_MAX)?;
    let scenario = Scenario::from_json(&text).map_err(|error| error.within(name))?;
    let outcome = run_scenario(&scenario).map_err(|error| error.within(name))?;
    if arguments.json {
        return output::json_of(name, &outcome);
    }
    output::print(&as_table(&outcome));
    Ok(())
}

fn as_table(outcome: &Outcome) -> Lines {
    let mut table = Table::new(&["rank", ">files", "which"]);
    for (rank, files) in outcome.assigned.iter().enumerate() {
        table.row(vec![rank.to_string(), files.len().to_string(), files_text(files)]);
    }
    let bound = outcome.bytes_bound.map_or(String::new(), |bound| format!(", at least {bound}"));
    let mut text = table.render();
    text.line(format!(
        "{} remote (at least {}); bytes per rank: mean {}, most {}{bound}",
        outcome.remote, outcome.bound, outcome.bytes_mean, outcome.bytes_max,
    ));
    text
}
