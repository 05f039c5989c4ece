//! A whole assignment in one document: who holds what goes in, who reads what comes out.
//!
//! The real protocol runs over in-process ranks. `zazen assign --scenario` and external oracles
//! check the protocol this way. Frames are never listed, so a billion frames are as cheap to
//! describe as ten.

use crate::{Assignment, Input, Parts, Path, Protocol, Rules, assign, threads};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, Request, Result, Run, RunSet};

/// The most ranks a scenario may have: each is a thread, and an all-to-all among them is a million
/// blocks.
pub const RANKS_MAX: usize = 1024;

/// What is assigned among whom. In JSON:
///
/// ```json
/// {"nodes_of_ranks": [0, 0, 1, 1], "begin": 0, "end": 999, "stride": 1,
///  "native": [[[first, count, step], …] per node], "alien": […per node],
///  "rules": "full|paper", "protocol": "owner|bitmaps", "verify": "exact", "seed": 1}
/// ```
///
/// `stride`, `alien`, `rules` (full), `protocol` (owner), `verify` (fingerprint) and `seed` may be
/// left out.
///
/// Reading a scenario fails with an error that names the field. [`run_scenario`] fails in the same
/// way for errors that only show there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Scenario {
    /// The node of each rank, an index into `native` and `alien`. A node without a rank is dead.
    pub nodes_of_ranks: Vec<usize>,
    /// The first frame number asked for.
    pub begin: u64,
    /// The last one, inclusive.
    pub end: u64,
    /// The distance between the frame numbers asked for.
    pub stride: u64,
    /// By node: runs of frame numbers held as natives, as (first, count, step); they may overlap.
    pub native: Vec<Vec<[u64; 3]>>,
    /// By node: the same for aliens; empty if there are none.
    pub alien: Vec<Vec<[u64; 3]>>,
    /// The rules.
    pub rules: Rules,
    /// The protocol.
    pub protocol: Protocol,
    /// Whether the fingerprint is skipped.
    pub verify_exact: bool,
    /// The seed from which the fingerprint's points are drawn.
    pub seed: u64,
}

/// The result of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// By rank: the frame numbers it reads, as disjoint runs (first, count, step); those of natives
    /// first, then of aliens and of residue, each ascending.
    pub assigned: Vec<Vec<[u64; 3]>>,
    /// Frames read as natives.
    pub native: u64,
    /// Frames read as aliens.
    pub alien: u64,
    /// Frames read from the backing store.
    pub residue: u64,
    /// How the assignment was found: `fingerprint` or `exchange`.
    pub path: &'static str,
    /// By rank: payload bytes sent to others.
    pub bytes_sent: Vec<u64>,
    /// Collective rounds.
    pub rounds: u32,
}

/// Runs `scenario` over in-process ranks.
///
/// Fails with `InvalidArgument` or `TooLarge` and the field's name if the scenario is not possible.
pub fn run_scenario(scenario: &Scenario) -> Result<Outcome> {
    let inputs = scenario.inputs()?;
    let ranks = scenario.nodes_of_ranks.len();
    let results = threads::run(ranks, |collectives| {
        use crate::Collectives;
        assign(inputs[collectives.rank()].clone(), collectives)
    });
    // Report the error of the rank that failed, not of a rank that only waited for it.
    let cause = |error: &Error| error.kind() != ErrorKind::Unavailable;
    let (shares, mut errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let first = errors.iter().position(|result| result.as_ref().is_err_and(cause)).unwrap_or(0);
    if !errors.is_empty() {
        errors.swap(0, first);
    }
    errors.truncate(1);
    let shares: Vec<Assignment> = errors.into_iter().chain(shares).collect::<Result<_>>()?;
    let total = shares[0].total;
    Ok(Outcome {
        assigned: shares.iter().map(|share| triples(&share.parts)).collect(),
        native: total.native,
        alien: total.alien,
        residue: total.residue,
        path: match shares[0].path {
            Path::Fingerprint => "fingerprint",
            Path::Exchange => "exchange",
        },
        bytes_sent: shares.iter().map(|share| share.bytes_sent).collect(),
        rounds: shares[0].rounds,
    })
}

/// Describe natives and residue separately: if they interleave, each is few runs, but together they
/// are many.
fn triples(parts: &Parts) -> Vec<[u64; 3]> {
    let runs = [&parts.native, &parts.alien, &parts.residue].into_iter().flat_map(RunSet::runs);
    runs.map(|run| [run.first, run.count, run.step]).collect()
}

impl Scenario {
    /// The scenario in a JSON text. Fails with `InvalidArgument` or `TooLarge`, naming the field.
    pub fn from_json(text: &str) -> Result<Scenario> {
        let value: Value =
            serde_json::from_str(text).map_err(|source| invalid("scenario is not JSON").caused_by(source))?;
        Scenario::try_from(value)
    }

    /// What each rank brings, by rank. Checks everything that [`Scenario::from_json`] cannot see.
    pub fn inputs(&self) -> Result<Vec<Input>> {
        if self.nodes_of_ranks.is_empty() || self.nodes_of_ranks.len() > RANKS_MAX {
            let ranks = self.nodes_of_ranks.len();
            let kind = if ranks == 0 { ErrorKind::InvalidArgument } else { ErrorKind::TooLarge };
            return Err(Error::new(kind, format!("nodes_of_ranks: {ranks} ranks, give 1 to {RANKS_MAX}")));
        }
        let request = Request::new(self.begin, self.end, self.stride)
            .map_err(|error| error.within("begin, end, stride"))?;
        self.check_room(&request)?;
        let native = sets("native", &self.native)?;
        let alien = sets("alien", &self.alien)?;
        let mut seed = [0; 16];
        for (bytes, word) in seed.chunks_mut(8).zip([self.seed, !self.seed]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let input = |(rank, node): (usize, &usize)| {
            let lists = native.len();
            let native = native.get(*node).cloned().ok_or_else(|| {
                invalid(format!(
                    "nodes_of_ranks[{rank}]: node {node} has no list in native, which has {lists}"
                ))
            })?;
            let lists = alien.len();
            let alien = match alien.get(*node) {
                Some(set) => set.clone(),
                None if lists == 0 => RunSet::new(),
                None => {
                    let context = format!(
                        "nodes_of_ranks[{rank}]: node {node} has no list in alien, which has {lists}"
                    );
                    return Err(invalid(context));
                }
            };
            let (rules, protocol, verify_exact) = (self.rules, self.protocol, self.verify_exact);
            let node = *node as u128;
            Ok(Input { node, native, alien, request, target: None, rules, protocol, verify_exact, seed })
        };
        self.nodes_of_ranks.iter().enumerate().map(input).collect()
    }
}

impl Scenario {
    /// Refuses a scenario that would need too much memory, before it allocates any.
    fn check_room(&self, request: &Request) -> Result<()> {
        let too_large = |what: String| Err(Error::new(ErrorKind::TooLarge, what));
        let ranks = self.nodes_of_ranks.len() as u64;
        let bits = request.count().saturating_mul(ranks);
        if self.protocol == Protocol::Bitmaps && bits > BITS_MAX {
            return too_large(format!(
                "begin, end: the bitmaps of {} frames for {ranks} ranks have {bits} bits, the limit is \
                 {BITS_MAX}; use protocol owner",
                request.count()
            ));
        }
        let runs = self.native.iter().chain(&self.alien).flatten();
        let valid = runs.filter_map(|[first, count, step]| Run::new(*first, *count, *step).ok());
        // Cut away what is outside the request first.
        let within = valid.filter_map(|run| {
            let skipped = request.begin().saturating_sub(run.first).div_ceil(run.step.max(1));
            let first = run.first.checked_add(skipped.checked_mul(run.step)?)?;
            let left = run.count.checked_sub(skipped)?;
            let most = request.end().checked_sub(first)? / run.step.max(1) + 1;
            Run::new(first, left.min(most), run.step).ok()
        });
        let spread = RunSet::interleaved(&within.collect::<Vec<_>>());
        if spread > SPREAD_MAX {
            return too_large(format!(
                "native, alien: runs of unlike steps interleave over {spread} frames, the limit is \
                 {SPREAD_MAX}; use equal steps, or fewer frames"
            ));
        }
        Ok(())
    }
}

/// Bits of all ranks' bitmaps together, and a few copies of them: some GiB.
const BITS_MAX: u64 = 1 << 33;
/// Frames over which holdings may interleave unevenly: a bit for each, and several sets of them.
const SPREAD_MAX: u64 = 1 << 30;

fn sets(field: &str, lists: &[Vec<[u64; 3]>]) -> Result<Vec<RunSet>> {
    let run = |node: usize, at: usize, [first, count, step]: [u64; 3]| {
        let run =
            Run::new(first, count, step).map_err(|error| error.within(format!("{field}[{node}][{at}]")))?;
        if run.last() > FRAME_NO_MAX {
            let context = format!(
                "{field}[{node}][{at}]: frame {} is beyond the limit of 2^40 ({FRAME_NO_MAX})",
                run.last()
            );
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        Ok(run)
    };
    let set = |(node, list): (usize, &Vec<[u64; 3]>)| {
        let runs: Result<Vec<Run>> =
            list.iter().enumerate().map(|(at, triple)| run(node, at, *triple)).collect();
        RunSet::checked_from_runs(runs?).map_err(|error| error.within(format!("{field}[{node}]")))
    };
    lists.iter().enumerate().map(set).collect()
}

fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, context)
}

impl TryFrom<Value> for Scenario {
    type Error = Error;

    fn try_from(value: Value) -> Result<Scenario> {
        let Value::Object(mut fields) = value else {
            return Err(invalid(format!(
                "scenario is {}, not an object with nodes_of_ranks, begin, …",
                shown(&value)
            )));
        };
        let nodes = array("nodes_of_ranks", required(&mut fields, "nodes_of_ranks")?)?;
        let nodes_of_ranks = nodes
            .into_iter()
            .enumerate()
            .map(|(rank, node)| Ok(number(&format!("nodes_of_ranks[{rank}]"), &node)? as usize))
            .collect::<Result<_>>()?;
        let scenario = Scenario {
            nodes_of_ranks,
            begin: number("begin", &required(&mut fields, "begin")?)?,
            end: number("end", &required(&mut fields, "end")?)?,
            stride: fields.remove("stride").map_or(Ok(1), |value| number("stride", &value))?,
            native: holdings("native", required(&mut fields, "native")?)?,
            alien: fields.remove("alien").map_or(Ok(Vec::new()), |value| holdings("alien", value))?,
            rules: fields.remove("rules").map_or(Ok(Rules::Full), |value| word("rules", &value)?.parse())?,
            protocol: fields
                .remove("protocol")
                .map_or(Ok(Protocol::Owner), |value| word("protocol", &value)?.parse())?,
            verify_exact: fields.remove("verify").map_or(Ok(false), |value| verify(&value))?,
            seed: fields.remove("seed").map_or(Ok(0), |value| number("seed", &value))?,
        };
        match fields.keys().next() {
            None => Ok(scenario),
            Some(field) => Err(invalid(format!(
                "{field}: no such field in a scenario; there are nodes_of_ranks, begin, end, stride, native, \
                 alien, rules, protocol, verify and seed"
            ))),
        }
    }
}

fn required(fields: &mut Map<String, Value>, field: &str) -> Result<Value> {
    fields.remove(field).ok_or_else(|| invalid(format!("{field}: missing in the scenario")))
}

fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > 60 {
        text.truncate(text.floor_char_boundary(60));
        text.push('…');
    }
    text
}

fn array(field: &str, value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(invalid(format!("{field}: is {}, give a list", shown(&other)))),
    }
}

fn number(field: &str, value: &Value) -> Result<u64> {
    match value.as_u64() {
        Some(number) => Ok(number),
        None if value.as_f64().is_some_and(|number| number >= u64::MAX as f64) => {
            Err(Error::new(ErrorKind::TooLarge, format!("{field}: {} does not fit 64 bits", shown(value))))
        }
        None => Err(invalid(format!("{field}: is {}, give an integer that is not negative", shown(value)))),
    }
}

fn word<'a>(field: &str, value: &'a Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| invalid(format!("{field}: is {}, give a word in quotes", shown(value))))
}

fn verify(value: &Value) -> Result<bool> {
    match word("verify", value)? {
        "exact" => Ok(true),
        "fingerprint" => Ok(false),
        other => Err(invalid(format!("verify: is {other:?}, give exact or fingerprint"))),
    }
}

fn holdings(field: &str, value: Value) -> Result<Vec<Vec<[u64; 3]>>> {
    let triple = |node: usize, (at, value): (usize, Value)| {
        let place = format!("{field}[{node}][{at}]");
        let items = array(&place, value)?;
        let [first, count, step] = items.as_slice() else {
            return Err(invalid(format!("{place}: has {} items, give first, count and step", items.len())));
        };
        let part = |name: &str, value: &Value| number(&format!("{place} ({name})"), value);
        Ok([part("first", first)?, part("count", count)?, part("step", step)?])
    };
    let list = |(node, value): (usize, Value)| {
        let items = array(&format!("{field}[{node}]"), value)?;
        items.into_iter().enumerate().map(|item| triple(node, item)).collect()
    };
    array(field, value)?.into_iter().enumerate().map(list).collect()
}

impl std::str::FromStr for Rules {
    type Err = Error;
    fn from_str(text: &str) -> Result<Rules> {
        match text {
            "full" => Ok(Rules::Full),
            "paper" => Ok(Rules::Paper),
            other => Err(invalid(format!("rules: is {other:?}, give full or paper"))),
        }
    }
}

impl std::str::FromStr for Protocol {
    type Err = Error;
    fn from_str(text: &str) -> Result<Protocol> {
        match text {
            "owner" => Ok(Protocol::Owner),
            "bitmaps" => Ok(Protocol::Bitmaps),
            other => Err(invalid(format!("protocol: is {other:?}, give owner or bitmaps"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_error(edit: impl FnOnce(&mut Map<String, Value>), kind: ErrorKind, names: &str) {
        let mut value: Value = serde_json::from_str(
            r#"{"nodes_of_ranks":[0,0,1],"begin":0,"end":99,"stride":1,
                "native":[[[0,50,1]],[[50,50,1]]],"alien":[[],[]],"rules":"full","protocol":"owner"}"#,
        )
        .unwrap();
        edit(value.as_object_mut().unwrap());
        let shown = value.to_string();
        let error = Scenario::try_from(value).and_then(|scenario| run_scenario(&scenario)).expect_err(&shown);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(names), "{error} should name {names}");
    }

    fn set(field: &'static str, value: Value) -> impl FnOnce(&mut Map<String, Value>) {
        move |fields| {
            fields.insert(field.to_owned(), value);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        use ErrorKind::{InvalidArgument, TooLarge};
        use serde_json::json;
        check_error(set("colour", json!(1)), InvalidArgument, "colour");
        check_error(|fields| drop(fields.remove("begin")), InvalidArgument, "begin");
        check_error(|fields| drop(fields.remove("native")), InvalidArgument, "native");
        check_error(set("begin", json!(-1)), InvalidArgument, "begin");
        check_error(set("begin", json!(0.5)), InvalidArgument, "begin");
        check_error(set("begin", json!("0")), InvalidArgument, "begin");
        check_error(set("begin", json!(100)), InvalidArgument, "begin");
        check_error(set("end", json!((1u64 << 40) + 1)), TooLarge, "end");
        check_error(set("end", json!(1e30)), TooLarge, "end");
        check_error(set("stride", json!(0)), InvalidArgument, "stride");
        check_error(set("nodes_of_ranks", json!([])), InvalidArgument, "nodes_of_ranks");
        check_error(set("nodes_of_ranks", json!([0, -1])), InvalidArgument, "nodes_of_ranks[1]");
        check_error(set("nodes_of_ranks", json!([0, 2])), InvalidArgument, "nodes_of_ranks[1]");
        check_error(set("nodes_of_ranks", json!(vec![0; 1025])), TooLarge, "nodes_of_ranks");
        check_error(set("native", json!([[[0, 0, 1]], []])), InvalidArgument, "native[0][0]");
        check_error(set("native", json!([[[0, 1, 1], [0, 2, 0]], []])), InvalidArgument, "native[0][1]");
        check_error(set("native", json!([[[0, 1]], []])), InvalidArgument, "native[0][0]");
        check_error(
            set("native", json!([[], [[1, 1u64 << 40, 1], [1u64 << 40, 2, 1]]])),
            TooLarge,
            "native[1][1]",
        );
        check_error(set("native", json!([[], [[1, u64::MAX, u64::MAX]]])), TooLarge, "native[1][0]");
        check_error(set("native", json!([[[-1, 1, 1]], []])), InvalidArgument, "native[0][0] (first)");
        check_error(set("alien", json!([[]])), InvalidArgument, "alien");
        check_error(set("alien", json!(3)), InvalidArgument, "alien");
        check_error(set("rules", json!("loose")), InvalidArgument, "rules");
        check_error(set("rules", json!(1)), InvalidArgument, "rules");
        check_error(set("protocol", json!("mpi")), InvalidArgument, "protocol");
        check_error(set("verify", json!("no")), InvalidArgument, "verify");
        check_error(set("seed", json!(-4)), InvalidArgument, "seed");
        assert!(Scenario::from_json("[1]").unwrap_err().to_string().contains("object"));
        assert!(Scenario::from_json("{").unwrap_err().to_string().contains("JSON"));
        assert!(serde_json::from_str::<Scenario>("{}").unwrap_err().to_string().contains("nodes_of_ranks"));
    }

    #[test]
    fn a_perfect_hit_and_a_dead_node_come_out_as_described() {
        let text = |ranks: &str| {
            format!(
                r#"{{"nodes_of_ranks":{ranks},"begin":0,"end":999,"stride":1,"seed":7,
                   "native":[[[0,500,2]],[[1,500,2]]]}}"#
            )
        };
        let run = |ranks: &str| run_scenario(&Scenario::from_json(&text(ranks)).unwrap()).unwrap();
        let hit = run("[0,1]");
        assert_eq!(hit.assigned, [[[0, 500, 2]], [[1, 500, 2]]]);
        assert_eq!(
            (hit.native, hit.alien, hit.residue, hit.path, hit.rounds),
            (1000, 0, 0, "fingerprint", 2)
        );
        let dead = run("[1,1]");
        assert_eq!((dead.native, dead.alien, dead.residue, dead.path), (500, 0, 500, "exchange"));
        let json = serde_json::to_value(&dead).unwrap();
        assert_eq!(json["path"], "exchange");
        assert_eq!(json["bytes_sent"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_billion_frames_are_not_walked() {
        let native: Vec<Vec<[u64; 3]>> = (0..8).map(|node| vec![[node, 125_000_000, 8]]).collect();
        let mut scenario = Scenario {
            nodes_of_ranks: (0..8).collect(),
            begin: 0,
            end: 999_999_999,
            stride: 1,
            native,
            alien: Vec::new(),
            rules: Rules::Full,
            protocol: Protocol::Owner,
            verify_exact: false,
            seed: 1,
        };
        let hit = run_scenario(&scenario).unwrap();
        assert_eq!((hit.path, hit.native), ("fingerprint", 1_000_000_000));
        assert!(hit.bytes_sent.iter().all(|bytes| *bytes < 100), "{:?}", hit.bytes_sent);
        // Node 3 is dead: its frames are one strided run, cut among the other seven.
        scenario.nodes_of_ranks.remove(3);
        let dead = run_scenario(&scenario).unwrap();
        assert_eq!((dead.path, dead.native, dead.residue), ("exchange", 875_000_000, 125_000_000));
        let sizes: Vec<u64> = dead.assigned.iter().map(|runs| runs.iter().map(|run| run[1]).sum()).collect();
        assert!(dead.assigned.iter().all(|runs| runs.len() == 2), "{:?}", dead.assigned);
        assert!(sizes.iter().all(|size| (142_857_142..=142_857_143).contains(size)), "{sizes:?}");
    }
}
