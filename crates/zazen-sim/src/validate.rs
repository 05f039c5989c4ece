//! How well a calibrated cluster predicts spans that it was not calibrated from.
//!
//! Each connection of the held-out run makes its calls again, in their order and with the pauses
//! between them: each takes what calls of its operation took in training, or, if the training had
//! none, what a simulated daemon and disk need. The time that calls of one kind take in all is
//! compared with the recorded one, beside a naive baseline: each operation takes its mean time per
//! byte (or per call, if it moves no bytes) of the training run.

use crate::calibrate::{READS, WRITES};
use crate::cluster::Cluster;
use crate::daemon::Daemons;
use crate::disk::Disks;
use crate::queue::Queue;
use crate::random::{Random, Stream};
use crate::spread::Spread;
use crate::time::{Rate, SECOND_PS};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};
use zazen_spans::Span;

/// One kind of operation of the held-out run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The operation, or `all` for the time from the first call to the last answer.
    pub op: String,
    /// Nodes that were recorded.
    pub nodes: usize,
    /// Calls.
    pub calls: usize,
    /// Seconds that they took in all.
    pub recorded_s: f64,
    /// The same as the simulator says.
    pub simulated_s: f64,
    /// The same as the baseline says; `None` if the training run has no such call.
    pub naive_s: Option<f64>,
}

impl Row {
    /// Signed error of the simulator, as a part of what was recorded.
    pub fn error(&self) -> f64 {
        self.simulated_s / self.recorded_s - 1.0
    }

    /// Signed error of the baseline.
    pub fn naive_error(&self) -> Option<f64> {
        self.naive_s.map(|naive| naive / self.recorded_s - 1.0)
    }
}

/// The mean of the errors' absolute values; 0 of none.
pub fn mape(errors: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = errors.fold((0.0, 0.0), |(count, sum), error| (count + 1.0, sum + error.abs()));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Mean times of the training run by operation: seconds per byte, or per call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline(pub BTreeMap<String, (f64, f64)>);

impl Baseline {
    /// The baseline of a training run.
    pub fn of(spans: &[Span]) -> Baseline {
        let mut sums: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.is_ok()) {
            let sum = sums.entry(span.op.clone()).or_default();
            sum.0 += span.duration_ns as f64 / 1e9;
            sum.1 += (span.bytes_in + span.bytes_out) as f64;
            sum.2 += 1.0;
        }
        let each = |(seconds, bytes, calls): (f64, f64, f64)| {
            if bytes > 0.0 { (seconds / bytes, 0.0) } else { (0.0, seconds / calls) }
        };
        Baseline(sums.into_iter().map(|(op, sum)| (op, each(sum))).collect())
    }

    fn predict(&self, span: &Span) -> Option<f64> {
        let (per_byte, per_call) = self.0.get(&span.op)?;
        Some(per_byte * (span.bytes_in + span.bytes_out) as f64 + per_call)
    }
}

/// Replays held-out spans. `InvalidArgument` if no operation of theirs is one that the simulator
/// models.
pub fn validate(cluster: &Cluster, baseline: &Baseline, held_out: &[Span], seed: u64) -> Result<Vec<Row>> {
    let mut nodes: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    let is_modelled = |op: &str| cluster.service.contains_key(op) || service(cluster, op).is_some();
    for span in held_out.iter().filter(|span| span.is_ok() && is_modelled(&span.op)) {
        nodes.entry(&span.node).or_default().push(span);
    }
    if nodes.is_empty() {
        let why = "validate: no span is of an operation that the simulator models";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let count = nodes.len();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let row = |op: &str| Row {
        op: op.to_owned(),
        nodes: count,
        calls: 0,
        recorded_s: 0.0,
        simulated_s: 0.0,
        naive_s: Some(0.0),
    };
    let mut all = row("all");
    for (number, spans) in nodes.into_values().enumerate() {
        let simulated = replay(cluster, &spans, seed ^ number as u64);
        for (span, time_ps) in spans.iter().zip(&simulated.times_ps) {
            let row = rows.entry(span.op.clone()).or_insert_with(|| row(&span.op));
            row.calls += 1;
            row.recorded_s += span.duration_ns as f64 / 1e9;
            row.simulated_s += *time_ps as f64 / SECOND_PS as f64;
            row.naive_s = row.naive_s.zip(baseline.predict(span)).map(|(sum, more)| sum + more);
        }
        let begin = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.end_ns()).max().unwrap_or(begin);
        all.calls += spans.len();
        // The slowest node decides.
        all.recorded_s = all.recorded_s.max((end - begin) as f64 / 1e9);
        all.simulated_s = all.simulated_s.max(simulated.end_ps as f64 / SECOND_PS as f64);
        let naive = naive_end_s(baseline, &spans);
        all.naive_s = all.naive_s.zip(naive).map(|(one, other)| one.max(other));
    }
    Ok(rows.into_values().chain([all]).collect())
}

/// What the baseline says of the last answer: each connection's calls and pauses added up.
fn naive_end_s(baseline: &Baseline, spans: &[&Span]) -> Option<f64> {
    let begin = spans.iter().map(|span| span.start_ns).min()?;
    let mut ends: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    for span in spans {
        let (at, last) = ends.entry(span.connection).or_insert((0.0, begin));
        *at += span.start_ns.saturating_sub(*last) as f64 / 1e9 + baseline.predict(span)?;
        *last = span.end_ns();
    }
    ends.into_values().map(|(at, _)| at).reduce(f64::max)
}

/// The parameter of an operation's service; `None` if the simulator does not model it.
fn service<'a>(cluster: &'a Cluster, op: &str) -> Option<&'a Spread> {
    let daemon = &cluster.daemon;
    match op {
        "frames.open" => Some(&daemon.open_us),
        "frames.query" => Some(&daemon.lookup_us),
        "frames.scan_close" | "namespace.close" => Some(&daemon.close_us),
        "frames.evict" => Some(&daemon.remove_us),
        op if WRITES.contains(&op) => Some(&daemon.insert_us),
        op if READS.contains(&op) => Some(&daemon.fetch_us),
        _ => None,
    }
}

struct Replayed {
    times_ps: Vec<u64>,
    end_ps: u64,
}

/// One node's calls again. `spans` are in the order in which the calls ended.
fn replay(cluster: &Cluster, spans: &[&Span], seed: u64) -> Replayed {
    let random = Random::new(seed);
    let begin = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let mut of_connection: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, span) in spans.iter().enumerate() {
        of_connection.entry(span.connection).or_default().push(index);
    }
    let connections: Vec<Vec<usize>> = of_connection
        .into_values()
        .map(|mut calls| {
            calls.sort_unstable_by_key(|index| (spans[*index].start_ns, *index));
            calls
        })
        .collect();
    let mut daemons = Daemons::new(1, cluster.daemon.workers.max(connections.len() as u32));
    let mut disks = Disks::new(1, cluster.disk_costs(), Vec::new());
    let mut queue: Queue<(u32, u32)> = Queue::new();
    let pause_ps =
        |before_ns: u64, index: usize| spans[index].start_ns.saturating_sub(before_ns).saturating_mul(1000);
    for (connection, calls) in connections.iter().enumerate() {
        queue.push(pause_ps(begin, calls[0]), connection as u32, (connection as u32, 0));
    }
    let mut times_ps = vec![0; spans.len()];
    let mut last_ps = 0;
    while let Some(due) = queue.pop() {
        let (connection, at) = (due.event.0 as usize, due.event.1 as usize);
        let calls = &connections[connection];
        let span = spans[calls[at]];
        let draw = calls[at] as u64;
        let known = cluster.service.get(&span.op);
        let service_ps =
            service(cluster, &span.op).map_or(0, |spread| spread.draw_ps(random, 0, Stream::Service, draw));
        let noise = match cluster.disk.request_sigma {
            0.0 => 1.0,
            sigma => crate::math::exp(sigma * random.normal(0, Stream::DiskNoise, draw)),
        };
        let served_ps = if known.is_some() { 0 } else { daemons.serve(due.time_ps, 0, service_ps).1 };
        let end_ps = if let Some(known) = known {
            due.time_ps.saturating_add(known.draw_ps(random, draw, span.bytes_in + span.bytes_out))
        } else if WRITES.contains(&span.op.as_str()) {
            disks.write(served_ps, 0, span.bytes_in, Rate::INFINITE, noise)
        } else if READS.contains(&span.op.as_str()) {
            disks.read(served_ps, 0, span.bytes_out, Rate::INFINITE, noise)
        } else {
            served_ps
        };
        times_ps[calls[at]] = end_ps - due.time_ps;
        last_ps = last_ps.max(end_ps);
        if let Some(next) = calls.get(at + 1) {
            queue.push(
                end_ps + pause_ps(span.end_ns(), *next),
                connection as u32,
                (connection as u32, at as u32 + 1),
            );
        }
    }
    Replayed { times_ps, end_ps: last_ps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{calibrate, tests::spans};

    /// Trained on one run, the model predicts another with other sizes; the baseline, which knows
    /// no latency, does not.
    #[test]
    fn predicts_other_sizes_better_than_the_baseline() {
        let clean = |spans: Vec<Span>| -> Vec<Span> {
            spans.into_iter().enumerate().filter(|(at, _)| at % 10 != 9).map(|(_, span)| span).collect()
        };
        let train = clean(spans("n0", 1_000, 5e-3, 100e6, 40));
        let (cluster, _) = calibrate(&train, &Cluster::commodity(), 1).unwrap();
        let baseline = Baseline::of(&train);
        let held_out = clean(spans("n1", 1_000, 5e-3, 100e6, 2));
        let rows = validate(&cluster, &baseline, &held_out, 1).unwrap();
        let pushes = &rows[0];
        assert_eq!((pushes.op.as_str(), pushes.calls), ("frames.push", 900));
        assert!(pushes.error().abs() < 0.04, "{pushes:?}");
        assert!(pushes.naive_error().unwrap().abs() > 0.2, "{pushes:?}");
        assert_eq!(rows[1].op, "all");
        assert!(rows[1].error().abs() < 0.01);
        let errors = [0.1, -0.3];
        assert!((mape(errors.into_iter()) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn unknown_operations_are_refused() {
        let mut other = spans("n0", 50, 1e-3, 1e8, 4);
        other.iter_mut().for_each(|span| span.op = "plugins.2".to_owned());
        assert!(validate(&Cluster::commodity(), &Baseline::default(), &other, 1).is_err());
    }
}
