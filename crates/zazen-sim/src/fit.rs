//! Calibration of what calls share: links, disks, the backing store.
//!
//! A resource's rate is what went over it while any call was on it. Where its calls cross nothing
//! else, each resource of the kind tells that, and all of them together give the rate. Where they
//! cross others too, those may hold them up: then the busiest resource of each run tells it, the
//! median over the runs. The rates are then refined: the training runs are simulated again, and
//! each rate is moved to where the simulation is closest to the recording. What the data do not
//! tell keeps the value of the base cluster, and the report says why.

use crate::cluster::{Cluster, Service};
use crate::contention::{Carried, Resource, carried, replay, route, totals};
use crate::estimate::{Estimate, interval, median};
use std::collections::{BTreeMap, BTreeSet};
use zazen_spans::Span;

/// Calls that a resource of a run must have carried to say anything.
const CALLS_MIN: usize = 3;
/// How far a rate may be moved from what resources carried.
const REFINED_BY_MAX: f64 = 1.25;
/// Halvings of that range.
const REFINEMENTS: usize = 12;
/// Part of the calls at each end that a fixed time does not rest on.
const TRIMMED: f64 = 0.1;

/// A kind of resource: its parameter, and which of them are of the kind.
struct Kind {
    name: &'static str,
    what: &'static str,
    is: fn(Resource) -> bool,
    place: fn(&mut Cluster) -> &mut f64,
}

static KINDS: [Kind; 3] = [
    Kind {
        name: "network.interface_bytes_per_s",
        what: "a host's link",
        is: |resource| matches!(resource, Resource::Out(_) | Resource::In(_)),
        place: |cluster| &mut cluster.network.interface_bytes_per_s,
    },
    Kind {
        name: "disk.read_bytes_per_s",
        what: "a node's disk",
        is: |resource| matches!(resource, Resource::Disk(_)),
        place: |cluster| &mut cluster.disk.read_bytes_per_s,
    },
    Kind {
        name: "shared.bytes_per_s",
        what: "the backing store",
        is: |resource| matches!(resource, Resource::Store),
        place: |cluster| &mut cluster.shared.bytes_per_s,
    },
];

/// Puts the rates of shared resources into `cluster`, and marks the operations whose calls share
/// them. `cluster` has the services of all operations already. Each run has successful spans only.
pub(crate) fn fit(runs: &[Vec<&Span>], cluster: &mut Cluster, seed: u64) -> Vec<Estimate> {
    let before = cluster.clone();
    let found: Vec<Option<Found>> = KINDS.iter().map(|kind| find(kind, runs, seed)).collect();
    for (kind, found) in KINDS.iter().zip(&found) {
        if let Some(found) = found {
            *(kind.place)(cluster) = found.rate;
        }
    }
    let sharing = operations(runs, &found);
    for op in &sharing {
        let shares = Service { fixed_us: 0.0, bytes_per_s: 0.0, parts: vec![1.0], shares: true };
        cluster.service.insert(op.clone(), shares);
    }
    if !sharing.is_empty() {
        fix(runs, &sharing, cluster, seed);
        for _ in 0..2 {
            for (kind, _) in KINDS.iter().zip(&found).filter(|(_, found)| found.as_ref().is_some_and(met)) {
                refine(kind, runs, &sharing, cluster, seed);
            }
            fix(runs, &sharing, cluster, seed);
        }
        keep_what_is_closer(runs, &sharing, &before, cluster, seed);
    }
    KINDS.iter().zip(found).map(|(kind, found)| estimate(kind, found, runs, &before, cluster)).collect()
}

/// What resources of a kind carried.
struct Found {
    rate: f64,
    low: f64,
    high: f64,
    /// The most calls that were on one at once.
    met: usize,
    /// Where the interval comes from.
    interval: &'static str,
}

/// Whether calls met on it. Where they did not, a lower rate and a shorter fixed time are as close
/// to the recording as a higher rate and a longer one: then what it carried stands.
fn met(found: &Found) -> bool {
    found.met > 1
}

fn find(kind: &Kind, runs: &[Vec<&Span>], seed: u64) -> Option<Found> {
    let by_run: Vec<Vec<Carried>> = runs.iter().map(|run| carried(run, CALLS_MIN, kind.is)).collect();
    let alone: Vec<Carried> = by_run.iter().flatten().filter(|each| each.is_alone).copied().collect();
    if !alone.is_empty() {
        let together = |chosen: &mut dyn Iterator<Item = &Carried>| {
            let (bytes, busy_s) =
                chosen.fold((0.0, 0.0), |(bytes, busy_s), each| (bytes + each.bytes, busy_s + each.busy_s));
            bytes / busy_s
        };
        let (low, high) =
            interval(alone.len(), seed, |chosen| together(&mut chosen.iter().map(|index| &alone[*index])));
        let met = alone.iter().map(|each| each.met).max()?;
        let rate = together(&mut alone.iter());
        return Some(Found { rate, low, high, met, interval: "over all of them" });
    }
    let busiest: Vec<Carried> = by_run
        .into_iter()
        .filter_map(|run| run.into_iter().max_by(|one, other| one.rate().total_cmp(&other.rate())))
        .collect();
    let rates: Vec<f64> = busiest.iter().map(Carried::rate).collect();
    let (low, high) =
        rates.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
    let met = busiest.iter().map(|each| each.met).max()?;
    Some(Found { rate: median(rates), low, high, met, interval: "over the runs" })
}

/// Operations whose calls cross a resource with a known rate, and nothing without one. Few calls
/// are enough: what their bytes take is known from others.
fn operations(runs: &[Vec<&Span>], found: &[Option<Found>]) -> Vec<String> {
    let mut sharing = BTreeSet::new();
    for span in runs.iter().flatten() {
        let (_, crossed) = route(span);
        let is_known = |resource: &Resource| {
            KINDS.iter().zip(found).any(|(kind, found)| (kind.is)(*resource) && found.is_some())
        };
        if !crossed.is_empty() && crossed.iter().all(is_known) {
            sharing.insert(span.op.as_str().to_owned());
        }
    }
    sharing.into_iter().collect()
}

/// Sets the fixed times of operations that share: what their calls take beside their bytes.
fn fix(runs: &[Vec<&Span>], sharing: &[String], cluster: &mut Cluster, seed: u64) {
    for op in sharing {
        cluster.service.entry(op.clone()).and_modify(|service| service.fixed_us = 0.0);
    }
    let mut rest: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs {
        let replayed = replay(cluster, run, seed);
        for (span, time_ps) in run.iter().zip(&replayed.times_ps) {
            let rest_us = span.duration_ns as f64 / 1e3 - *time_ps as f64 / 1e6;
            rest.entry(span.op.as_str()).or_default().push(rest_us);
        }
    }
    for op in sharing {
        let mut rest_us = rest.remove(op.as_str()).unwrap_or_default();
        rest_us.sort_unstable_by(f64::total_cmp);
        let cut = (rest_us.len() as f64 * TRIMMED) as usize;
        let kept = &rest_us[cut..rest_us.len() - cut];
        let mean_us = kept.iter().sum::<f64>() / kept.len().max(1) as f64;
        cluster.service.entry(op.clone()).and_modify(|service| service.fixed_us = mean_us.max(0.0));
    }
}

/// How far the simulated training runs are from the recorded ones: the mean of the logarithms'
/// distances, over runs and operations.
fn distance(runs: &[Vec<&Span>], cluster: &Cluster, seed: u64) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for run in runs {
        for (op, (recorded, simulated)) in totals(run, &replay(cluster, run, seed)) {
            if recorded > 0.0 && simulated > 0.0 {
                let sum = sums.entry(op).or_default();
                *sum = (sum.0 + crate::math::ln(simulated / recorded).abs(), sum.1 + 1.0);
            }
        }
    }
    sums.into_iter().map(|(op, (sum, count))| (op, sum / count)).collect()
}

/// Moves a rate to where the simulated times of whole runs and of operations are closest to the
/// recorded ones: golden-section search. The fixed times follow the rate. Single calls would not
/// do: links share their bytes less evenly than flows, so most calls are shorter than their mean.
fn refine(kind: &Kind, runs: &[Vec<&Span>], sharing: &[String], cluster: &mut Cluster, seed: u64) {
    let start = *(kind.place)(cluster);
    let mut trial = cluster.clone();
    let mut at = |factor: f64| -> f64 {
        *(kind.place)(&mut trial) = start * factor;
        fix(runs, sharing, &mut trial, seed);
        let mut far = distance(runs, &trial, seed);
        let whole = far.remove("all").unwrap_or(0.0);
        whole + far.values().sum::<f64>() / far.len().max(1) as f64
    };
    let golden = 0.618_033_988_749_894_9;
    let (mut low, mut high) = (1.0 / REFINED_BY_MAX, REFINED_BY_MAX);
    let mut inner = [high - golden * (high - low), low + golden * (high - low)];
    let mut far = inner.map(&mut at);
    for _ in 0..REFINEMENTS {
        if far[0] <= far[1] {
            high = inner[1];
            inner = [high - golden * (high - low), inner[0]];
            far = [at(inner[0]), far[0]];
        } else {
            low = inner[0];
            inner = [inner[1], low + golden * (high - low)];
            far = [far[1], at(inner[1])];
        }
    }
    *(kind.place)(cluster) = start * (low + high) / 2.0;
}

/// Operations whose training runs are closer to the line of their calls, as if nothing were shared,
/// keep that line.
fn keep_what_is_closer(
    runs: &[Vec<&Span>],
    sharing: &[String],
    before: &Cluster,
    cluster: &mut Cluster,
    seed: u64,
) {
    let (alone, shared) = (distance(runs, before, seed), distance(runs, cluster, seed));
    for op in sharing {
        if let (Some(line), Some(flows)) = (alone.get(op), shared.get(op))
            && line < flows
            && let Some(service) = before.service.get(op)
        {
            cluster.service.insert(op.clone(), service.clone());
        }
    }
}

/// What is reported of a kind; a rate that no operation uses goes back to the base cluster's.
fn estimate(
    kind: &Kind,
    found: Option<Found>,
    runs: &[Vec<&Span>],
    before: &Cluster,
    cluster: &mut Cluster,
) -> Estimate {
    let uses = |span: &Span| {
        let shares = cluster.service.get(span.op.as_str()).is_some_and(|service| service.shares);
        shares && route(span).1.into_iter().any(kind.is)
    };
    let spans = runs.iter().flatten().filter(|span| uses(span)).count();
    let unknown = |word: String| Estimate { name: kind.name.to_owned(), value: None, spans, word };
    let Some(found) = found else {
        return unknown(format!("no run has {CALLS_MIN} calls whose bytes are known to cross {}", kind.what));
    };
    if spans == 0 {
        *(kind.place)(cluster) = *(kind.place)(&mut before.clone());
        return unknown(format!(
            "the calls that cross {} take as long alone as beside others: something else takes the time",
            kind.what
        ));
    }
    let rate = *(kind.place)(cluster);
    let word = match found.met {
        0 | 1 => format!("{}: calls never met on it, so it may be faster", kind.what),
        met => {
            let (what, interval) = (kind.what, found.interval);
            format!("{what}, shared by up to {met} calls at once; the interval is {interval}")
        }
    };
    let value = Some((rate, found.low.min(rate), found.high.max(rate)));
    Estimate { name: kind.name.to_owned(), value, spans, word }
}
