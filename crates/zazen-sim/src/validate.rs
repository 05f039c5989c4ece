//! How well a calibrated cluster predicts spans that it was not calibrated from.
//!
//! Each connection of the held-out run makes its calls again ([`crate::contention`]): calls that
//! share a link, a disk or the store wait for each other as simulated, others take what calls of
//! their operation took in training. The time that calls of one kind take in all is compared with
//! the recorded one, beside a naive baseline: each operation takes its mean time per byte (or per
//! call, if it moves no bytes) of the training run.

use crate::cluster::Cluster;
use crate::contention::{self, service};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Of the simulated seconds of `all`: pauses of the client, which the recording gives.
    pub paused_s: f64,
}

/// The row of the whole run.
const ALL: &str = "all";
/// What calls of operations that are not modelled may take of all calls' time without a word.
const LEFT_OUT_MAX: f64 = 0.01;

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
            let sum = sums.entry(span.op.as_str().to_owned()).or_default();
            sum.0 += span.duration_ns as f64 / 1e9;
            sum.1 += (span.bytes_in + span.bytes_out + span.bytes_moved) as f64;
            sum.2 += 1.0;
        }
        let each = |(seconds, bytes, calls): (f64, f64, f64)| {
            if bytes > 0.0 { (seconds / bytes, 0.0) } else { (0.0, seconds / calls) }
        };
        Baseline(sums.into_iter().map(|(op, sum)| (op, each(sum))).collect())
    }

    fn predict(&self, span: &Span) -> Option<f64> {
        let (per_byte, per_call) = self.0.get(span.op.as_str())?;
        Some(per_byte * (span.bytes_in + span.bytes_out + span.bytes_moved) as f64 + per_call)
    }
}

/// Replays held-out spans. `InvalidArgument` if no operation of theirs is one that the simulator
/// models.
pub fn validate(cluster: &Cluster, baseline: &Baseline, held_out: &[Span], seed: u64) -> Result<Vec<Row>> {
    let mut nodes: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in held_out.iter().filter(|span| span.is_ok() && is_modelled(cluster, &span.op)) {
        nodes.entry(&span.node).or_default().push(span);
    }
    if nodes.is_empty() {
        let why = "validate: no span is of an operation that the simulator models";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let count = nodes.len();
    let run: Vec<&Span> = nodes.values().flatten().copied().collect();
    let replayed = contention::replay(cluster, &run, seed);
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (op, (recorded_s, simulated_s)) in contention::totals(&run, &replayed) {
        if recorded_s <= 0.0 {
            let why = format!("validate: the calls of {op} took no time, so no error can be told");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let calls: Vec<&&Span> = run.iter().filter(|span| op == ALL || span.op == op.as_str()).collect();
        let naive_s = match op.as_str() {
            ALL => {
                let ends = nodes.values().map(|spans| naive_end_s(baseline, spans));
                ends.reduce(|one, other| Some(one?.max(other?))).flatten()
            }
            _ => calls.iter().map(|span| baseline.predict(span)).sum::<Option<f64>>(),
        };
        // A pause of the client is no prediction: how much of the run it is must be known.
        let paused_s = if op == ALL { crate::time::seconds(replayed.paused_ps) } else { 0.0 };
        let calls = calls.len();
        rows.insert(op.clone(), Row { op, nodes: count, calls, recorded_s, simulated_s, naive_s, paused_s });
    }
    let all = rows.remove(ALL);
    Ok(rows.into_values().chain(all).collect())
}

fn is_modelled(cluster: &Cluster, op: &str) -> bool {
    cluster.service.contains_key(op) || service(cluster, op).is_some()
}

/// What [`validate`] says nothing of, in words; `None` if it does not matter: no call failed, and
/// those of operations that are not modelled took less than a hundredth of all calls' time.
pub fn left_out(cluster: &Cluster, held_out: &[Span]) -> Option<String> {
    let took = |spans: &[&Span]| spans.iter().map(|span| span.duration_ns as f64).sum::<f64>();
    let (ok, failed): (Vec<&Span>, Vec<&Span>) = held_out.iter().partition(|span| span.is_ok());
    let (modelled, other): (Vec<&Span>, Vec<&Span>) =
        ok.into_iter().partition(|span| is_modelled(cluster, &span.op));
    let mut words = Vec::new();
    if !failed.is_empty() {
        words.push(format!("{} failed", failed.len()));
    }
    if took(&other) >= (took(&modelled) + took(&other)) * LEFT_OUT_MAX && !other.is_empty() {
        let ops: BTreeSet<&str> = other.iter().map(|span| span.op.as_str()).collect();
        let ops: Vec<&str> = ops.into_iter().collect();
        words.push(format!("{} are not modelled ({})", other.len(), ops.join(", ")));
    }
    let all = held_out.len();
    (!words.is_empty()).then(|| format!("of {all} calls {}; they are left out", words.join(", and ")))
}

/// What the baseline says of the last answer: each lane's calls and pauses added up.
fn naive_end_s(baseline: &Baseline, spans: &[&Span]) -> Option<f64> {
    let begin = spans.iter().map(|span| span.start_ns).min()?;
    let mut latest: f64 = 0.0;
    for lane in contention::lanes(spans) {
        let (mut at, mut last) = (0.0, begin);
        for span in lane.into_iter().map(|call| spans[call]) {
            at += span.start_ns.saturating_sub(last) as f64 / 1e9 + baseline.predict(span)?;
            last = span.end_ns();
        }
        latest = latest.max(at);
    }
    Some(latest)
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
        let (cluster, _) = calibrate(std::slice::from_ref(&train), &Cluster::commodity(), 1).unwrap();
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
        other.iter_mut().for_each(|span| span.op = "plugins.2".into());
        assert!(validate(&Cluster::commodity(), &Baseline::default(), &other, 1).is_err());
    }

    /// An error of no time is no number, and half of a run that is left out is no validation.
    #[test]
    fn what_cannot_be_told_is_said() {
        let cluster = Cluster::commodity();
        let good = spans("n0", 1_000, 1e-3, 1e8, 4);
        assert_eq!(left_out(&cluster, &good[..9]), None);
        let mut mixed = good.clone();
        mixed[0].op = "plugins.posix.px_read".into();
        mixed[0].duration_ns = 1;
        mixed.retain(Span::is_ok);
        assert_eq!(left_out(&cluster, &mixed), None);
        mixed[0].duration_ns = 1_000_000_000_000;
        let words = left_out(&cluster, &mixed).unwrap();
        assert!(words.contains("1 are not modelled (plugins.posix.px_read)"), "{words}");
        mixed[1].outcome = "unavailable".into();
        assert!(left_out(&cluster, &mixed).unwrap().contains("1 failed, and 1 are"));
        let mut still = good;
        still.iter_mut().for_each(|span| span.duration_ns = 0);
        let error = validate(&cluster, &Baseline::default(), &still, 1).unwrap_err().to_string();
        assert!(error.contains("frames.push took no time"), "{error}");
    }

    const MB: u64 = 1_000_000;

    /// A writer that keeps one connection to each of `nodes` nodes busy over its link of 20 MB/s:
    /// what daemons would record. All calls have one size at a time, so all end together.
    fn pushed(nodes: u64, sizes: &[u64]) -> Vec<Span> {
        let one = spans("n0", 1, 0.0, 1e9, 1).remove(0);
        let mut all = Vec::new();
        let mut at_ms = 0;
        for round in 0..40 {
            let bytes = sizes[round % sizes.len()];
            let took_ms = 2 + nodes * bytes / 20_000;
            for node in 0..nodes {
                all.push(Span {
                    start_ns: at_ms * 1_000_000,
                    duration_ns: took_ms * 1_000_000,
                    node: format!("n{node}").into(),
                    bytes_in: bytes,
                    peer: "0:9@sim".into(),
                    ..one.clone()
                });
            }
            at_ms += took_ms;
        }
        all
    }

    /// Trained on one and two nodes, the model foresees that four share the sender's link. The
    /// baseline does not.
    #[test]
    fn contention_at_a_larger_scale_is_foreseen() {
        let training = [pushed(1, &[MB, 4 * MB]), pushed(2, &[MB, 4 * MB])];
        let (cluster, estimates) = calibrate(&training, &Cluster::commodity(), 1).unwrap();
        let link = estimates.iter().find(|each| each.name == "network.interface_bytes_per_s").unwrap();
        let (rate, ..) = link.value.unwrap();
        assert!((rate / 20e6 - 1.0).abs() < 0.02, "{link:?}");
        let fixed_us = cluster.service["frames.push"].fixed_us;
        assert!((fixed_us - 2_000.0).abs() < 1_000.0, "{fixed_us}");
        let baseline = Baseline::of(&training.concat());
        for held_out in [pushed(4, &[MB, 4 * MB]), pushed(3, &[2 * MB, 500_000])] {
            let rows = validate(&cluster, &baseline, &held_out, 1).unwrap();
            for row in rows {
                assert!(row.error().abs() < 0.02, "{row:?}");
                assert!(row.naive_error().unwrap() < -0.2, "{row:?}");
            }
        }
    }

    /// Checks of frames, one after the other on each of `nodes` nodes, at the rates of their disks.
    fn checked(nodes: u64, rate_of: impl Fn(u64) -> u64) -> Vec<Span> {
        let one = spans("n0", 1, 0.0, 1e9, 1).remove(0);
        let on = |node: u64| {
            let (one, took_ms) = (&one, 8 * MB / rate_of(node));
            (0..4).map(move |call| Span {
                start_ns: call * took_ms * 1_000_000,
                duration_ns: took_ms * 1_000_000,
                node: format!("n{node}").into(),
                op: "frames.verify".into(),
                bytes_in: 0,
                bytes_moved: 8 * MB,
                peer: "0:9@sim".into(),
                ..one.clone()
            })
        };
        (0..nodes).flat_map(on).collect()
    }

    /// All disks tell how quick a disk is, not the quickest one of each run: what their calls take
    /// in all is foreseen, also where two at a time share a disk.
    #[test]
    fn disks_that_differ_tell_their_mean() {
        // Bytes for each millisecond: 8 to 12 KB, 9.6 KB of all together.
        let rate_of = |node: u64| [8_000, 12_000][node as usize % 2];
        let training: Vec<Vec<Span>> = (0..5).map(|_| checked(2, rate_of)).collect();
        let (cluster, estimates) = calibrate(&training, &Cluster::commodity(), 1).unwrap();
        let disk = estimates.iter().rfind(|each| each.name == "disk.read_bytes_per_s").unwrap();
        let (rate, low, high) = disk.value.unwrap();
        assert!((rate / 9.6e6 - 1.0).abs() < 0.01 && low < rate && rate < high, "{disk:?}");
        let held_out = checked(6, rate_of);
        let rows = validate(&cluster, &Baseline::of(&training.concat()), &held_out, 1).unwrap();
        let row = rows.iter().find(|row| row.op == "frames.verify").unwrap();
        assert!(row.error().abs() < 0.01, "{row:?}");
    }

    /// Where calls take as long beside others as alone, nothing is said to be shared.
    #[test]
    fn what_does_not_slow_down_shares_nothing() {
        let alone = |nodes: u64| -> Vec<Span> {
            let one = pushed(1, &[MB, 4 * MB]);
            let on = |call: &Span, node: u64| Span { node: format!("n{node}").into(), ..call.clone() };
            let of = |node: u64| one.iter().map(move |call| on(call, node));
            (0..nodes).flat_map(of).collect()
        };
        let base = Cluster::commodity();
        let (cluster, estimates) = calibrate(&[alone(1), alone(2), alone(4)], &base, 1).unwrap();
        assert!(!cluster.service["frames.push"].shares);
        assert_eq!(cluster.network.interface_bytes_per_s, base.network.interface_bytes_per_s);
        let link = estimates.iter().find(|each| each.name == "network.interface_bytes_per_s").unwrap();
        assert!(link.value.is_none() && link.word.contains("as long alone"), "{link:?}");
    }
}
