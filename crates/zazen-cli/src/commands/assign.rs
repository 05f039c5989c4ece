//! `zazen assign`: who would read what, decided by the shipped protocol over in-process ranks.

use crate::output::{self, Lines, Table};
use clap::Args;
use zazen_assign::scenario::{Outcome, Scenario, run_scenario};
use zazen_core::Result;

/// The longest scenario.
const SCENARIO_BYTES_MAX: u64 = 64 << 20;
/// Runs shown of a rank's share before the rest is counted.
const RUNS_SHOWN: usize = 4;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen assign --scenario scenario.json
  zazen assign --scenario - --json < scenario.json

A scenario, with `end` inclusive and runs as [first, count, step]:
  {\"nodes_of_ranks\": [0, 0, 1, 1], \"begin\": 0, \"end\": 999, \"stride\": 1,
   \"native\": [[[0, 500, 1]], [[500, 500, 1]]], \"alien\": [[], []],
   \"rules\": \"full\", \"protocol\": \"owner\"}")]
pub(crate) struct Assign {
    /// The scenario's file; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    scenario: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Assign) -> Result<()> {
    let (name, text) = crate::parse::scenario_text(&arguments.scenario, SCENARIO_BYTES_MAX)?;
    let scenario = Scenario::from_json(&text).map_err(|error| error.within(name))?;
    let outcome = run_scenario(&scenario).map_err(|error| error.within(name))?;
    if arguments.json {
        return output::json_of(name, &outcome);
    }
    output::print(&as_table(&scenario, &outcome));
    Ok(())
}

fn as_table(scenario: &Scenario, outcome: &Outcome) -> Lines {
    let mut table = Table::new(&["rank", "node", ">frames", ">bytes sent", "first+count*step"]);
    for (rank, runs) in outcome.assigned.iter().enumerate() {
        let frames: u64 = runs.iter().map(|[_, count, _]| count).sum();
        table.row(vec![
            rank.to_string(),
            scenario.nodes_of_ranks[rank].to_string(),
            frames.to_string(),
            outcome.bytes_sent[rank].to_string(),
            runs_text(runs),
        ]);
    }
    let mut text = table.render();
    text.line(format!(
        "native {}, alien {}, residue {}; found by {} in {} rounds",
        outcome.native, outcome.alien, outcome.residue, outcome.path, outcome.rounds
    ));
    text
}

/// A few runs as `first+count*step`, and how many more there are.
pub(crate) fn runs_text(runs: &[[u64; 3]]) -> String {
    let shown: Vec<String> = runs
        .iter()
        .take(RUNS_SHOWN)
        .map(|[first, count, step]| match (count, step) {
            (1, _) => format!("{first}"),
            (_, 1) => format!("{first}+{count}"),
            _ => format!("{first}+{count}*{step}"),
        })
        .collect();
    match runs.len() {
        0 => "-".to_owned(),
        all if all > RUNS_SHOWN => format!("{} … {} more", shown.join(" "), all - RUNS_SHOWN),
        _ => shown.join(" "),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_are_short() {
        let check = |runs: &[[u64; 3]], expected: &str| assert_eq!(super::runs_text(runs), expected);
        check(&[], "-");
        check(&[[7, 1, 1], [10, 3, 1], [20, 5, 2]], "7 10+3 20+5*2");
        check(&[[1, 1, 1]; 6], "1 1 1 1 … 2 more");
    }
}
