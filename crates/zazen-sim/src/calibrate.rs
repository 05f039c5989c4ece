//! From spans to parameters: service times by their quantiles, bandwidths by a robust regression.
//!
//! A transfer of n bytes takes L + n / B. Theil and Sen's estimator gives both: the median of the
//! slopes between all pairs of transfers, and the median of what remains. A third of the spans may
//! be outliers (a page-cache flush, a paused process) without moving it much. Intervals come from
//! bootstrap samples. What the data do not tell keeps the value of the base cluster, and the report
//! says why.

use crate::cluster::{Cluster, Service};
use crate::contention::{READS, WRITES};
use crate::estimate::{interval, median};
use crate::spread::Spread;
use crate::trace::Trace;
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};
use zazen_spans::Span;

pub use crate::estimate::Estimate;

/// Fewer spans than this say nothing.
pub const SPANS_MIN: usize = 30;
/// Transfers that a regression uses; with more, each n-th.
const POINTS_MAX: usize = 400;
/// Quantiles that describe a service time.
const QUANTILES: usize = 11;

/// Which parameter an operation's service time is.
const SERVICES: [(&str, &[&str]); 4] = [
    ("daemon.open_us", &["frames.open"]),
    ("daemon.lookup_us", &["frames.query"]),
    ("daemon.close_us", &["frames.scan_close", "namespace.close"]),
    ("daemon.remove_us", &["frames.evict"]),
];
/// The cluster that the spans describe: `base`, with what they tell put in. Each run is one
/// recording. `InvalidArgument` if there are fewer than [`SPANS_MIN`] successful spans.
pub fn calibrate(runs: &[Vec<Span>], base: &Cluster, seed: u64) -> Result<(Cluster, Vec<Estimate>)> {
    let runs: Vec<Vec<&Span>> =
        runs.iter().map(|run| run.iter().filter(|span| span.is_ok()).collect()).collect();
    let good: Vec<&Span> = runs.iter().flatten().copied().collect();
    if good.len() < SPANS_MIN {
        let why = format!(
            "calibrate: {} successful spans are too few, at least {SPANS_MIN} are needed; \
             record a longer run",
            good.len()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let mut cluster = base.clone();
    cluster.name = format!("{}-calibrated", base.name);
    let mut estimates = Vec::new();
    for (name, ops) in SERVICES {
        let mut times: Vec<f64> = good
            .iter()
            .filter(|span| ops.contains(&span.op.as_str()))
            .map(|span| span.duration_ns as f64 / 1e3)
            .collect();
        estimates.push(service(name, ops, &mut times, &mut cluster, seed));
    }
    let ops: BTreeMap<&str, Vec<&Span>> = good.iter().fold(BTreeMap::new(), |mut ops, span| {
        ops.entry(span.op.as_str()).or_insert_with(Vec::new).push(span);
        ops
    });
    for (op, spans) in ops {
        estimates.push(operation(op, &spans, &mut cluster, seed));
    }
    let fitted = crate::fit::fit(&runs, &mut cluster, seed);
    let disk_is_fitted = fitted.iter().any(|each| each.name.starts_with("disk.") && each.value.is_some());
    let mut noise = Vec::new();
    for (name, ops, bytes) in [
        ("disk.write_bytes_per_s", WRITES, (|span| span.bytes_in) as fn(&Span) -> u64),
        ("disk.read_bytes_per_s", READS, |span| span.bytes_out),
    ] {
        if name.contains("read") && disk_is_fitted {
            continue;
        }
        // What takes time on a link says nothing of the disk.
        let shares = |op: &str| cluster.service.get(op).is_some_and(|service| service.shares);
        let points: Vec<(f64, f64)> = good
            .iter()
            .filter(|span| ops.contains(&span.op.as_str()) && !shares(&span.op))
            .map(|span| (bytes(span) as f64, span.duration_ns as f64 / 1e9))
            .collect();
        estimates.extend(bandwidth(name, &ops, &points, &mut cluster, &mut noise, seed));
    }
    estimates.extend(latency(&estimates, &mut cluster));
    estimates.push(deviation(&good, &mut cluster));
    estimates.push(sigma(noise, &mut cluster));
    if good.iter().any(|span| span.op == "namespace.ask") {
        let word = "a namespace.ask holds operations of all kinds: their times are not told apart";
        let name = "daemon.insert_us, of the namespace".to_owned();
        estimates.push(Estimate { name, value: None, spans: 0, word: word.to_owned() });
    }
    estimates
        .extend(fitted.into_iter().filter(|each| !each.name.starts_with("disk.") || each.value.is_some()));
    for name in ["network.latency_us", "fuse.request_us"] {
        let word = "a daemon's spans begin when a call has arrived: they hold no time before that";
        estimates.push(Estimate { name: name.to_owned(), value: None, spans: 0, word: word.to_owned() });
    }
    let kept = kept(&cluster, &estimates)?;
    estimates.extend(kept);
    for estimate in &estimates {
        if estimate.value.is_some() {
            let origin = format!("calibrated from {} spans: {}", estimate.spans, estimate.word);
            cluster.origin.insert(estimate.name.clone(), origin);
        }
    }
    let each: Vec<String> = runs.iter().map(|run| format!("{:016x}", digest(run))).collect();
    let from = format!(
        "zazen {}, seed {seed}, {} runs of {} spans with the digest {:016x} (each run's: {}); the rest \
         from {}",
        env!("CARGO_PKG_VERSION"),
        runs.len(),
        good.len(),
        digest(&good),
        each.join(" "),
        base.name
    );
    cluster.origin.insert("calibration".to_owned(), from);
    cluster.check()?;
    Ok((cluster, estimates))
}

/// Whether `cluster` was calibrated from this run: then how well it predicts it says nothing.
pub fn was_trained_on(cluster: &Cluster, run: &[Span]) -> bool {
    let good: Vec<&Span> = run.iter().filter(|span| span.is_ok()).collect();
    let origin = cluster.origin.get("calibration");
    origin.is_some_and(|origin| origin.contains(&format!("{:016x}", digest(&good))))
}

/// Of spans: the same ones have the same, on every machine.
fn digest(spans: &[&Span]) -> u64 {
    let mut trace = Trace::default();
    for span in spans {
        let texts = [&span.node, &span.op, &span.peer, &span.outcome];
        texts.into_iter().for_each(|text| trace.bytes(text.as_bytes()));
        let numbers = [
            span.start_ns,
            span.duration_ns,
            span.queue_ns,
            span.bytes_in,
            span.bytes_out,
            span.bytes_moved,
            span.connection,
            span.id,
        ];
        numbers.into_iter().for_each(|number| trace.word(number));
    }
    trace.digest()
}

/// Why spans do not tell the other parameters of each part of a cluster.
const KEPT: [(&str, &str); 6] = [
    ("disk", "a span has a call's whole time: these parts of it are not told apart"),
    ("daemon", "how the daemons were set up, and the bytes of calls' heads, are in no span"),
    ("fuse", "a daemon's spans do not see the mount"),
    ("network", "a daemon's spans do not see the way of a call: measure the network, or give its shape"),
    ("shared", "daemons' spans tell what the store gives them, and not how it is made"),
    ("failures", "a span is of a call that was served: it tells of no node that was down"),
];

/// A word for the parameters that no estimate names: they are the base cluster's.
fn kept(cluster: &Cluster, estimates: &[Estimate]) -> Result<Vec<Estimate>> {
    let text = cluster.to_toml()?;
    let parts: toml::Table =
        toml::from_str(&text).map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
    let is_told = |name: &str| estimates.iter().any(|estimate| estimate.name == name);
    let of_part = |(part, word): (&str, &str)| {
        let all = parts.get(part).and_then(toml::Value::as_table);
        let names = all.into_iter().flat_map(|all| all.keys()).map(|key| format!("{part}.{key}"));
        let unknown = |name| Estimate { name, value: None, spans: 0, word: word.to_owned() };
        names.filter(|name| !is_told(name)).map(unknown).collect::<Vec<Estimate>>()
    };
    Ok(KEPT.into_iter().flat_map(of_part).collect())
}

fn service(name: &str, ops: &[&str], times_us: &mut [f64], cluster: &mut Cluster, seed: u64) -> Estimate {
    if times_us.len() < SPANS_MIN {
        let word = format!("{} spans of {}; at least {SPANS_MIN} are needed", times_us.len(), ops.join(", "));
        return Estimate { name: name.to_owned(), value: None, spans: times_us.len(), word };
    }
    times_us.sort_unstable_by(f64::total_cmp);
    let at = |step: usize| times_us[step * (times_us.len() - 1) / (QUANTILES - 1)];
    let spread = Spread::Quantiles { quantiles_us: (0..QUANTILES).map(at).collect() };
    let place = match name {
        "daemon.open_us" => &mut cluster.daemon.open_us,
        "daemon.lookup_us" => &mut cluster.daemon.lookup_us,
        "daemon.close_us" => &mut cluster.daemon.close_us,
        _ => &mut cluster.daemon.remove_us,
    };
    *place = spread;
    let (low, high) = interval(times_us.len(), seed, |chosen| {
        median(chosen.iter().map(|index| times_us[*index]).collect())
    });
    let value = Some((median(times_us.to_vec()), low, high));
    let word = format!("median of {}; all quantiles are kept", ops.join(", "));
    Estimate { name: name.to_owned(), value, spans: times_us.len(), word }
}

/// Groups of calls whose means describe how far calls are from their line.
const GROUPS: usize = 40;

/// What the calls of one operation take: a line by Theil and Sen, and how far calls are from it.
fn operation(op: &str, spans: &[&Span], cluster: &mut Cluster, seed: u64) -> Estimate {
    let name = format!("service.{op}");
    if spans.len() < SPANS_MIN {
        let word = format!("{} spans; at least {SPANS_MIN} are needed", spans.len());
        return Estimate { name, value: None, spans: spans.len(), word };
    }
    let all: Vec<(f64, f64)> = spans
        .iter()
        .map(|span| {
            ((span.bytes_in + span.bytes_out + span.bytes_moved) as f64, span.duration_ns as f64 / 1e9)
        })
        .collect();
    let points: Vec<(f64, f64)> = all.iter().step_by(all.len().div_ceil(POINTS_MAX)).copied().collect();
    let least = all.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = all.iter().map(|point| point.0).fold(0.0, f64::max);
    let (slope, fixed_s) = if most >= 2.0 * least.max(1.0) { theil_sen(points) } else { (0.0, 0.0) };
    let (word, service) = if slope > 0.0 {
        let fixed_us = fixed_s.max(0.0) * 1e6;
        let word = "fixed part of a call, in microseconds; its line and its spread are kept";
        (word, Service { fixed_us, bytes_per_s: (1.0 / slope).min(1e15), parts: Vec::new(), shares: false })
    } else {
        // One size, or bytes that take no time.
        let fixed_us = median(all.iter().map(|point| point.1).collect()) * 1e6;
        let word = "time of a call, in microseconds: its bytes do not tell more";
        (word, Service { fixed_us, bytes_per_s: 0.0, parts: Vec::new(), shares: false })
    };
    let mut ratios: Vec<(f64, f64)> = all
        .iter()
        .map(|(bytes, time)| (*time, service.line_s(*bytes)))
        .filter(|(_, line)| *line > 0.0)
        .collect();
    ratios.sort_by(|one, other| (one.0 / one.1).total_cmp(&(other.0 / other.1)));
    let groups = GROUPS.min(ratios.len().max(1));
    let part = |group: usize| {
        let members = &ratios[group * ratios.len() / groups..(group + 1) * ratios.len() / groups];
        let (time, line) = members.iter().fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        if line > 0.0 { time / line } else { 1.0 }
    };
    let parts: Vec<f64> = (0..groups).map(part).collect();
    let fixed_us = service.fixed_us;
    let (low, high) = interval(all.len(), seed, |chosen| {
        let chosen = chosen.iter().map(|index| all[*index]);
        match service.bytes_per_s > 0.0 {
            true => theil_sen(chosen.collect()).1.max(0.0) * 1e6,
            false => median(chosen.map(|point| point.1).collect()) * 1e6,
        }
    });
    cluster.service.insert(op.to_owned(), Service { parts, ..service });
    Estimate { name, value: Some((fixed_us, low, high)), spans: all.len(), word: word.to_owned() }
}

/// Bandwidth and what a request takes besides.
fn bandwidth(
    name: &str,
    ops: &[&str],
    points: &[(f64, f64)],
    cluster: &mut Cluster,
    noise: &mut Vec<f64>,
    seed: u64,
) -> Vec<Estimate> {
    let is_write = name.contains("write");
    let other = if is_write { "daemon.insert_us" } else { "daemon.fetch_us" };
    let unknown =
        |name: &str, word: String| Estimate { name: name.to_owned(), value: None, spans: points.len(), word };
    let ops = ops.join(", ");
    if points.len() < SPANS_MIN {
        let word = format!("{} spans of {ops}; at least {SPANS_MIN} are needed", points.len());
        return vec![unknown(name, word)];
    }
    let stride = points.len().div_ceil(POINTS_MAX);
    let points: Vec<(f64, f64)> = points.iter().step_by(stride).copied().collect();
    let least = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| point.0).fold(0.0, f64::max);
    if most < 2.0 * least.max(1.0) {
        let word = format!(
            "all transfers of {ops} are about {most} bytes: latency and bandwidth cannot be told apart"
        );
        return vec![unknown(name, word.clone()), unknown(other, word)];
    }
    let all: Vec<usize> = (0..points.len()).collect();
    let line = |chosen: &[usize]| theil_sen(chosen.iter().map(|index| points[*index]).collect());
    let (slope, rest) = line(&all);
    let (low, high) = interval(points.len(), seed, |chosen| line(chosen).0);
    if slope <= 0.0 || low <= 0.0 {
        let word = format!("longer transfers of {ops} do not take longer: something else takes the time");
        return vec![unknown(name, word)];
    }
    noise.extend(
        points.iter().map(|(bytes, time)| time / (rest.max(0.0) + slope * bytes)).filter(|part| *part > 0.0),
    );
    let rate =
        if is_write { &mut cluster.disk.write_bytes_per_s } else { &mut cluster.disk.read_bytes_per_s };
    *rate = 1.0 / slope;
    if is_write {
        cluster.disk.dirty_bytes_max = 0;
    }
    let rest_us = (rest * 1e6).max(0.0);
    let place = if is_write { &mut cluster.daemon.insert_us } else { &mut cluster.daemon.fetch_us };
    *place = Spread::Constant(rest_us);
    let (rest_low, rest_high) = interval(points.len(), seed, |chosen| line(chosen).1 * 1e6);
    let word = format!("Theil-Sen over {ops}, page cache included");
    vec![
        Estimate {
            name: name.to_owned(),
            value: Some((1.0 / slope, 1.0 / high, 1.0 / low)),
            spans: points.len(),
            word,
        },
        Estimate {
            name: other.to_owned(),
            value: Some((rest_us, rest_low.max(0.0), rest_high.max(0.0))),
            spans: points.len(),
            word: format!("what {ops} take besides their bytes"),
        },
    ]
}

/// What calls take besides their bytes holds the disk's latency: it must not be counted once more.
/// Where only writes or only reads tell their part, the others keep it in theirs.
fn latency(estimates: &[Estimate], cluster: &mut Cluster) -> Option<Estimate> {
    let told = |name: &str| estimates.iter().find(|each| each.name == name && each.value.is_some());
    let (writes, reads) = (told("daemon.insert_us"), told("daemon.fetch_us"));
    let spans = [writes, reads].into_iter().flatten().map(|each| each.spans).max()?;
    let was_us = std::mem::take(&mut cluster.disk.latency_us);
    for (told, place) in [(writes, &mut cluster.daemon.insert_us), (reads, &mut cluster.daemon.fetch_us)] {
        if let (None, Spread::Constant(us)) = (told, place) {
            *us += was_us;
        }
    }
    let word = "what calls take besides their bytes (daemon.insert_us, daemon.fetch_us) has it".to_owned();
    Some(Estimate { name: "disk.latency_us".to_owned(), value: Some((0.0, 0.0, 0.0)), spans, word })
}

/// How far the nodes' speeds are apart.
fn deviation(good: &[&Span], cluster: &mut Cluster) -> Estimate {
    let name = "disk.node_deviation".to_owned();
    let mut by_node: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for span in good.iter().filter(|span| WRITES.contains(&span.op.as_str()) && span.bytes_in > 0) {
        by_node.entry(&span.node).or_default().push(span.duration_ns as f64 / span.bytes_in as f64);
    }
    let spans = by_node.values().map(Vec::len).sum();
    let medians: Vec<f64> =
        by_node.into_values().filter(|times| times.len() >= SPANS_MIN).map(median).collect();
    if medians.len() < 4 {
        let word = format!("{} nodes have {SPANS_MIN} writes; at least 4 are needed", medians.len());
        return Estimate { name, value: None, spans, word };
    }
    let centre = median(medians.clone());
    let found = robust_deviation(medians.iter().map(|each| each / centre).collect()).min(0.5);
    cluster.disk.node_deviation = found;
    cluster.disk.slow_fraction = 0.0;
    let word = format!("between the medians of {} nodes", medians.len());
    Estimate { name, value: Some((found, found, found)), spans, word }
}

/// How far requests are from their line.
fn sigma(noise: Vec<f64>, cluster: &mut Cluster) -> Estimate {
    let name = "disk.request_sigma".to_owned();
    let spans = noise.len();
    if spans < SPANS_MIN {
        let word = "too few transfers with a bandwidth".to_owned();
        return Estimate { name, value: None, spans, word };
    }
    let found = robust_deviation(noise.into_iter().map(crate::math::ln).collect()).min(3.0);
    cluster.disk.request_sigma = found;
    let word = "of the logarithm of each transfer's time over its line".to_owned();
    Estimate { name, value: Some((found, found, found)), spans, word }
}

/// Slope and remainder: medians, so that outliers do not matter.
pub fn theil_sen(points: Vec<(f64, f64)>) -> (f64, f64) {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, one) in points.iter().enumerate() {
        let others = points[index + 1..].iter().filter(|other| other.0 != one.0);
        slopes.extend(others.map(|other| (other.1 - one.1) / (other.0 - one.0)));
    }
    let slope = median(slopes);
    (slope, median(points.into_iter().map(|(x, y)| y - slope * x).collect()))
}

/// 1.4826 times the median distance from the median: the standard deviation of normal data.
fn robust_deviation(values: Vec<f64>) -> f64 {
    let centre = median(values.clone());
    1.4826 * median(values.into_iter().map(|value| (value - centre).abs()).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::random::{Random, Stream};

    /// Spans of a node with this latency and bandwidth, a tenth of them outliers.
    pub(crate) fn spans(node: &str, count: u64, latency_s: f64, rate: f64, sizes: u64) -> Vec<Span> {
        let random = Random::new(77);
        (0..count)
            .map(|at| {
                let bytes = (1 + random.below(sizes, 0, Stream::Workload, at)) * 100_000;
                let noise = 1.0 + 0.02 * random.normal(1, Stream::Service, at);
                let outlier = if at % 10 == 9 { 5.0 } else { 1.0 };
                let time = (latency_s + bytes as f64 / rate) * noise * outlier;
                Span {
                    v: 1,
                    start_ns: at * 1_000_000_000,
                    duration_ns: (time * 1e9) as u64,
                    queue_ns: 0,
                    node: node.into(),
                    op: "frames.push".into(),
                    bytes_in: bytes,
                    bytes_out: 0,
                    bytes_moved: 0,
                    connection: 1,
                    peer: "".into(),
                    outcome: "ok".into(),
                    id: 0,
                }
            })
            .collect()
    }

    fn estimate<'a>(estimates: &'a [Estimate], name: &str) -> &'a Estimate {
        estimates.iter().rfind(|estimate| estimate.name == name).unwrap()
    }

    /// What was put in comes out, in spite of the outliers, and lies in its interval.
    #[test]
    fn finds_what_the_spans_were_made_from() {
        for (latency, rate) in [(1e-3, 100e6), (50e-6, 1.5e9)] {
            let (cluster, estimates) =
                calibrate(&[spans("n0", 1_000, latency, rate, 40)], &Cluster::commodity(), 1).unwrap();
            let (found, low, high) = estimate(&estimates, "disk.write_bytes_per_s").value.unwrap();
            assert!((found / rate - 1.0).abs() < 0.03 && low < found && found < high, "{found} {low} {high}");
            let (rest, ..) = estimate(&estimates, "daemon.insert_us").value.unwrap();
            assert!((rest / (latency * 1e6) - 1.0).abs() < 0.4, "{rest}");
            assert_eq!(cluster.disk.write_bytes_per_s, found);
            assert!(cluster.origin["disk.write_bytes_per_s"].starts_with("calibrated from"));
            Cluster::from_toml(&cluster.to_toml().unwrap()).unwrap();
        }
    }

    /// A disk of the calibrated cluster takes what the spans took: its latency is counted once.
    /// What the spans do not tell takes what it took before.
    #[test]
    fn a_disks_latency_is_counted_once() {
        let mut base = Cluster::commodity();
        base.disk.latency_us = 1_000.0;
        let besides_us = |cluster: &Cluster, place: &Spread| cluster.disk.latency_us + place.mean_us();
        let writes = spans("n0", 1_000, 1e-3, 100e6, 40);
        let as_reads = |span: &Span| Span {
            op: "frames.get_block".into(),
            bytes_in: 0,
            bytes_out: span.bytes_in,
            start_ns: span.start_ns + 500_000_000,
            ..span.clone()
        };
        let reads: Vec<Span> = writes.iter().map(as_reads).collect();
        let before = |place: &Spread| besides_us(&base, place);
        let (insert_us, fetch_us) = (before(&base.daemon.insert_us), before(&base.daemon.fetch_us));
        for (run, write_us, read_us) in [
            (writes.clone(), 1_000.0, fetch_us),
            (reads.clone(), insert_us, 1_000.0),
            ([writes, reads].concat(), 1_000.0, 1_000.0),
        ] {
            let (cluster, estimates) = calibrate(&[run], &base, 1).unwrap();
            let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.4, "{found}");
            close(besides_us(&cluster, &cluster.daemon.insert_us), write_us);
            close(besides_us(&cluster, &cluster.daemon.fetch_us), read_us);
            assert!(estimate(&estimates, "disk.latency_us").value.is_some());
        }
    }

    /// However far some calls are out, the sum of many drawn times is that of the calls.
    #[test]
    fn drawn_times_add_up_to_the_recorded_ones() {
        let spans = spans("n0", 4_000, 1e-3, 100e6, 40);
        let (cluster, _) = calibrate(std::slice::from_ref(&spans), &Cluster::commodity(), 1).unwrap();
        let service = &cluster.service["frames.push"];
        let recorded: f64 = spans.iter().map(|span| span.duration_ns as f64 / 1e9).sum();
        let drawn = |(at, span): (usize, &Span)| {
            crate::time::seconds(service.draw_ps(Random::new(5), at as u64, span.bytes_in))
        };
        let sum: f64 = spans.iter().enumerate().map(drawn).sum();
        assert!((sum / recorded - 1.0).abs() < 0.03, "{sum} s, recorded {recorded} s");
        Cluster::from_toml(&cluster.to_toml().unwrap()).unwrap();
    }

    #[test]
    fn says_what_the_data_do_not_tell() {
        let base = Cluster::commodity();
        let same = calibrate(&[spans("n0", 200, 1e-3, 100e6, 1)], &base, 1).unwrap();
        let told = estimate(&same.1, "disk.write_bytes_per_s");
        assert!(told.value.is_none() && told.word.contains("cannot be told apart"), "{told:?}");
        assert_eq!(same.0.disk.write_bytes_per_s, base.disk.write_bytes_per_s);
        assert!(estimate(&same.1, "network.latency_us").value.is_none());
        // Each parameter is found, or has a word.
        let parameters: toml::Table = toml::from_str(&base.to_toml().unwrap()).unwrap();
        for (part, of_part) in &parameters {
            for key in of_part.as_table().into_iter().flat_map(|table| table.keys()) {
                let name = format!("{part}.{key}");
                assert_eq!(same.1.iter().filter(|each| each.name == name).count(), 1, "{name}");
            }
        }
        let few = calibrate(&[spans("n0", 20, 1e-3, 100e6, 40)], &base, 1).unwrap_err().to_string();
        assert!(few.contains("20 successful spans are too few"), "{few}");
        let mut failed = spans("n0", 200, 1e-3, 100e6, 40);
        failed.iter_mut().for_each(|span| span.outcome = "no space".into());
        assert!(calibrate(&[failed], &base, 1).is_err());
    }

    /// What a cluster was made from can be told from its file.
    #[test]
    fn a_cluster_names_its_calibration() {
        let made_from = |spans: &[Span], seed| {
            let (cluster, _) = calibrate(&[spans.to_vec()], &Cluster::commodity(), seed).unwrap();
            cluster.origin["calibration"].clone()
        };
        let mut spans = spans("n0", 100, 1e-3, 100e6, 40);
        let first = made_from(&spans, 7);
        assert!(first.contains("seed 7, 1 runs of 100 spans") && first.contains("commodity"), "{first}");
        assert_eq!(made_from(&spans, 7), first);
        let runs = [spans.clone(), spans[10..].to_vec()];
        let (cluster, _) = calibrate(&runs, &Cluster::commodity(), 7).unwrap();
        assert!(was_trained_on(&cluster, &spans) && was_trained_on(&cluster, &spans[10..]));
        assert!(!was_trained_on(&cluster, &spans[11..]) && !was_trained_on(&Cluster::commodity(), &spans));
        spans[50].bytes_in += 1;
        assert_ne!(made_from(&spans, 7), first);
    }

    #[test]
    fn nodes_that_differ_show() {
        let mut all = Vec::new();
        for (node, rate) in [("a", 100e6), ("b", 95e6), ("c", 105e6), ("d", 110e6), ("e", 90e6)] {
            all.extend(spans(node, 200, 0.0, rate, 40));
        }
        let (cluster, _) = calibrate(&[all], &Cluster::commodity(), 1).unwrap();
        assert!((0.04..0.12).contains(&cluster.disk.node_deviation), "{}", cluster.disk.node_deviation);
    }

    #[test]
    fn medians_and_lines() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
        // One point in nine is far away.
        let point = |x: u32| (f64::from(x), if x == 4 { 999.0 } else { 1.0 + 2.0 * f64::from(x) });
        assert_eq!(theil_sen((0..9).map(point).collect()), (2.0, 1.0));
    }
}
