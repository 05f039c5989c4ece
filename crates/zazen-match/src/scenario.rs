//! A whole matching in one JSON document, for `zazen viz match --scenario`, Python and tests.

use crate::{FileAt, Matched, Problem, Sticky, Strategy, match_files, sticky};
use serde::{Deserialize, Serialize};
use zazen_core::{Error, ErrorKind, Result};

/// A node by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged, expecting = "a node: give a number of 0 to 2^64 - 1, or a name")]
pub enum Node {
    /// By number.
    Number(u64),
    /// By name.
    Name(String),
}

/// A file in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    bytes: u64,
    holders: Vec<Node>,
}

/// What is matched. In JSON:
///
/// ```json
/// {"ranks": [node of each rank], "files": [{"bytes": 4096, "holders": [node, …]}, …],
///  "strategy": "blind|first-come|scarcest|least-demand|optimal|bytes", "seed": 1}
/// ```
///
/// A node is a number or a name. `seed` (0) may be left out. With `"strategy": "sticky"`, `steps`
/// (a list of `files` lists) takes the place of `files`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    ranks: Vec<Node>,
    #[serde(default)]
    files: Option<Vec<File>>,
    #[serde(default)]
    steps: Option<Vec<Vec<File>>>,
    strategy: String,
    #[serde(default)]
    seed: u64,
}

/// The result of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// By rank: the indices of its files (of its blocks, for sticky), ascending.
    pub assigned: Vec<Vec<u32>>,
    /// Remote reads; over all steps for sticky.
    pub remote: u64,
    /// The fewest remote reads possible; for sticky, with a map of its own for each step.
    pub bound: u64,
    /// The most bytes that a rank reads.
    pub bytes_max: u64,
    /// Bytes that a rank reads on average, rounded down.
    pub bytes_mean: u64,
    /// In no map of the strategy's kind does every rank read fewer. Missing for sticky.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_bound: Option<u64>,
}

impl Scenario {
    /// The scenario in a JSON text. Fails with `InvalidArgument`, naming the place in the text.
    pub fn from_json(text: &str) -> Result<Scenario> {
        serde_json::from_str(text)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("scenario: {error}")))
    }
}

/// Matches what `scenario` describes.
///
/// Fails with `InvalidArgument` or `TooLarge` and the field's name if the scenario is not possible.
pub fn run_scenario(scenario: &Scenario) -> Result<Outcome> {
    let invalid = |context: &str| Err(Error::new(ErrorKind::InvalidArgument, context));
    let ranks = scenario.ranks.len();
    if scenario.strategy == "sticky" {
        let (Some(steps), None) = (&scenario.steps, &scenario.files) else {
            return invalid("steps: strategy sticky needs steps, and no files");
        };
        let steps: Vec<_> = steps.iter().map(|files| places(files)).collect();
        let map: Sticky = sticky(&scenario.ranks, &steps)?;
        let mut assigned = vec![Vec::new(); ranks];
        for (block, rank) in map.rank_of_block.iter().enumerate() {
            assigned[*rank as usize].push(block as u32);
        }
        let Sticky { remote, bound, bytes_max, bytes_mean, .. } = map;
        return Ok(Outcome { assigned, remote, bound, bytes_max, bytes_mean, bytes_bound: None });
    }
    let refuse = |error: Error| Error::new(error.kind(), format!("{} and sticky", error.context()));
    let strategy: Strategy = scenario.strategy.parse().map_err(refuse)?;
    let (Some(files), None) = (&scenario.files, &scenario.steps) else {
        return invalid("files: missing in the scenario (steps go with strategy sticky only)");
    };
    let problem = Problem::new(&scenario.ranks, &places(files))?;
    let matched = match_files(&problem, strategy, scenario.seed);
    let Matched { remote, bound, bytes_max, bytes_mean, bytes_bound, .. } = matched;
    let assigned = matched.files_by_rank(ranks);
    Ok(Outcome { assigned, remote, bound, bytes_max, bytes_mean, bytes_bound: Some(bytes_bound) })
}

fn places(files: &[File]) -> Vec<FileAt<Node>> {
    files.iter().map(|file| FileAt { bytes: file.bytes, holders: file.holders.clone() }).collect()
}
