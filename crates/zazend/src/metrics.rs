//! The Prometheus page: every counter of the daemon and the store, read at each scrape. It is
//! OpenMetrics for who asks for that, and Prometheus' older text for all others.

use crate::latency::Histogram;
use crate::node::Node;
use crate::node_store::DiskState;
use crate::quotas::{self, Row, Whose};
use crate::status::parts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use zazen_core::{Error, ErrorKind, Result};
use zazen_http::{Page, Request, Responder};
use zazen_plugins::PluginReport;
use zazen_store::DatasetSummary;

/// A running metrics page; it ends when dropped.
pub struct MetricsPage {
    _responder: Responder,
    /// Where it is.
    pub addr: SocketAddr,
}

impl MetricsPage {
    /// Serves `node`'s metrics at `http://addr/metrics`.
    pub fn serve(addr: &str, node: &Arc<Node>) -> Result<MetricsPage> {
        let mut registry = Registry::with_prefix("zazen");
        registry.register_collector(Box::new(NodeCollector(Arc::downgrade(node))));
        let answer = move |request: &Request| match request.path.as_str() {
            "/metrics" | "/" => page(&registry, &request.accepted()),
            _ => Page::refusal("404 Not Found", "the metrics are at /metrics"),
        };
        let responder = Responder::serve(addr, "metrics", Box::new(answer)).map_err(|error| {
            let why = format!("metrics at {addr}: {error}; choose another --metrics address");
            Error::new(ErrorKind::Config, why)
        })?;
        let addr = responder.addr;
        Ok(MetricsPage { _responder: responder, addr })
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OLDER_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn page(registry: &Registry, accept: &str) -> Page {
    let mut text = String::new();
    // Writing to a String cannot fail.
    prometheus_client::encoding::text::encode(&mut text, registry).ok();
    match wants_open_metrics(accept) {
        true => Page::of(OPEN_METRICS, text),
        false => Page::of(OLDER_TEXT, older_text(&text)),
    }
}

/// Whether an `Accept` header names OpenMetrics, and not with `q=0`.
fn wants_open_metrics(accept: &str) -> bool {
    accept.split(',').any(|one| {
        let mut words = one.split(';').map(str::trim);
        let refused = |word: &str| word.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()) == Some(0.0);
        words.next() == Some("application/openmetrics-text") && !words.any(refused)
    })
}

/// A page of OpenMetrics in Prometheus' older text format: there a counter's help and type are
/// under its name with `_total`, and no line marks the end.
fn older_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|told| told.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

struct NodeCollector(Weak<Node>);

impl std::fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeCollector")
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::result::Result<(), std::fmt::Error> {
        let Some(node) = self.0.upgrade() else { return Ok(()) };
        let mut told = Vec::new();
        for (name, help, value) in node.counters.all() {
            told.push(name);
            counter(&mut encoder, name, help.trim_end_matches('.'), value)?;
        }
        for (name, value) in node.store.counters() {
            if !told.contains(&name) {
                counter(&mut encoder, name, "Counted by the store", value)?;
            }
        }
        let space = node.store.space();
        let disks = node.disks.states();
        let (opened, scans) = (node.shares.opened.under_way(), node.shares.scans.under_way());
        let ok = node.roots.roots.iter().filter(|root| root.backing.is_ok()).count();
        for (name, help, value) in [
            ("space_used_bytes", "Bytes that the cache uses", space.used),
            ("space_reserved_bytes", "Bytes promised to frames that are being written", space.reserved),
            ("space_budget_bytes", "Bytes that the cache may use", space.budget),
            ("space_free_bytes", "Bytes free on the cache's file system", space.free),
            (
                "cache_disk_ok",
                "1 while all disks of the cache can be read and written",
                u64::from(disks.iter().all(|disk| disk.trouble.is_empty())),
            ),
            (
                "cache_disk_failures",
                "Operations on the cache's disk that failed since the start",
                disks.iter().map(|disk| disk.failures.0 + disk.failures.1).sum(),
            ),
            ("connections", "Connections now", node.connections() as u64),
            ("opened_datasets", "Datasets open", opened as u64),
            ("scans_under_way", "Scans under way", scans as u64),
            (
                "fetches_under_way",
                "Fetches from the backing store under way",
                node.fetcher.under_way() as u64,
            ),
            ("backing_ok", "Backing stores that answer", ok as u64),
            ("backing_roots", "Backing stores", node.roots.roots.len() as u64),
            ("uptime_seconds", "Seconds since the start", node.started.elapsed().as_secs()),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        let mut calls = encoder.encode_descriptor(
            "call_seconds",
            "Time that calls took, by what they did",
            None,
            MetricType::Histogram,
        )?;
        for (op, took) in node.calls.all() {
            histogram(calls.encode_family(&[("op", op)])?, took)?;
        }
        for (name, help, took) in [
            ("fetch_seconds", "Time that fetches from the backing store took", &node.fetcher.took),
            ("fetch_wait_seconds", "Time that fetches waited for their turn", &node.fetcher.waits),
        ] {
            histogram(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?, took)?;
        }
        encode_disks(&mut encoder, &disks)?;
        encode_quotas(&mut encoder, &quotas::report(&node))?;
        encode_datasets(&mut encoder, &node)?;
        let plugins = node.plugins.get().and_then(Weak::upgrade);
        plugins.map_or(Ok(()), |plugins| encode_plugins(&mut encoder, &plugins.reports()))
    }
}

/// What users and folders have, and their bounds.
fn encode_quotas(
    encoder: &mut DescriptorEncoder<'_>,
    rows: &[Row],
) -> std::result::Result<(), std::fmt::Error> {
    type Value = fn(&Row) -> Option<u64>;
    let gauges: [(&str, &str, Value); 2] = [
        ("quota_used_bytes", "Bytes that frames of a user or a folder take", |row| Some(row.used)),
        ("quota_budget_bytes", "Bytes that they may take", |row| row.budget),
    ];
    for (name, help, value) in gauges.into_iter().filter(|_| !rows.is_empty()) {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (row, bytes) in rows.iter().filter_map(|row| Some((row, value(row)?))) {
            let label = match &row.whose {
                Whose::User(uid) => ("user", uid.to_string()),
                Whose::Folder(path) => ("folder", path.clone()),
            };
            ConstGauge::new(bytes as i64).encode(family.encode_family(&[label])?)?;
        }
    }
    Ok(())
}

/// How many datasets there are, and as many of the largest as the settings allow, by name.
fn encode_datasets(
    encoder: &mut DescriptorEncoder<'_>,
    node: &Node,
) -> std::result::Result<(), std::fmt::Error> {
    let mut all = node.store.datasets();
    gauge(encoder, "datasets", "Datasets with cached frames", all.len() as u64)?;
    all.sort_by(|one, other| (other.bytes, &one.dataset).cmp(&(one.bytes, &other.dataset)));
    all.truncate(node.config().metrics_datasets);
    let named = all.iter().map(|dataset| {
        let (directory, series) = parts(&dataset.dataset);
        let path = node.roots.spelled(&directory).unwrap_or_else(|| directory.to_string());
        (dataset, path, series)
    });
    let named: Vec<_> = named.collect();
    type Value = fn(&DatasetSummary) -> u64;
    let gauges: [(&str, &str, Value); 4] = [
        ("dataset_bytes", "Bytes that a dataset takes on this node's disks", |one| one.bytes),
        ("dataset_native_frames", "Its frames that were pushed here", |one| one.natives),
        ("dataset_alien_frames", "Its frames that were fetched here", |one| one.aliens),
        ("dataset_scans", "Scans of it under way", |one| one.scans.into()),
    ];
    for (name, help, value) in gauges.into_iter().filter(|_| !named.is_empty()) {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (dataset, path, series) in &named {
            let labels = [("dataset", path.as_str()), ("series", series.as_str())];
            ConstGauge::new(value(dataset) as i64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// The disks of the cache, by their roots.
fn encode_disks(
    encoder: &mut DescriptorEncoder<'_>,
    disks: &[DiskState],
) -> std::result::Result<(), std::fmt::Error> {
    type Value = fn(&DiskState) -> u64;
    let gauges: [(&str, &str, Value); 6] = [
        ("disk_ok", "1 while this disk of the cache can be read and written", |disk| {
            u64::from(disk.trouble.is_empty())
        }),
        ("disk_failures", "Operations on this disk that failed since the start", |disk| {
            disk.failures.0 + disk.failures.1
        }),
        ("disk_used_bytes", "Bytes that the cache uses of this disk", |disk| disk.space.used),
        ("disk_budget_bytes", "Bytes that the cache may use of this disk", |disk| disk.space.budget),
        ("disk_free_bytes", "Bytes free on this disk's file system", |disk| disk.space.free),
        ("disk_floor_bytes", "Bytes of them that the cache leaves free", |disk| disk.space.floor),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for disk in disks {
            let root = disk.root.to_string_lossy();
            let label = [("disk", root.as_ref())];
            let one = family.encode_family(&label)?;
            ConstGauge::new(value(disk) as i64).encode(one)?;
        }
    }
    Ok(())
}

/// What plug-ins did, by name. The counters of an isolated plug-in begin anew with its process.
fn encode_plugins(
    encoder: &mut DescriptorEncoder<'_>,
    reports: &[PluginReport],
) -> std::result::Result<(), std::fmt::Error> {
    type Value = fn(&PluginReport) -> u64;
    let counters: [(&str, &str, Value); 5] = [
        ("plugin_calls", "Calls of plug-ins", |plugin| plugin.sum(|function| function.calls)),
        ("plugin_errors", "Calls whose transport failed", |plugin| plugin.sum(|function| function.errors)),
        ("plugin_bytes_in", "Bytes of requests", |plugin| plugin.sum(|function| function.bytes_in)),
        ("plugin_bytes_out", "Bytes of answers", |plugin| plugin.sum(|function| function.bytes_out)),
        ("plugin_crashes", "Processes that ended without being told to", |plugin| plugin.crashes),
    ];
    let gauges: [(&str, &str, Value); 3] = [
        ("plugin_clients", "Clients attached", |plugin| plugin.clients),
        ("plugin_handles", "Handles that clients hold", |plugin| plugin.handles),
        ("plugin_running", "Calls in progress", |plugin| plugin.running),
    ];
    if reports.is_empty() {
        return Ok(());
    }
    for (name, help, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for report in reports {
            let label = [("plugin", report.name.as_str())];
            let one = family.encode_family(&label)?;
            ConstCounter::new(value(report)).encode(one)?;
        }
    }
    let mut family =
        encoder.encode_descriptor("plugin_seconds", "Time spent in calls", None, MetricType::Counter)?;
    for report in reports {
        let label = [("plugin", report.name.as_str())];
        let seconds = report.sum(|function| function.nanoseconds) as f64 / 1e9;
        ConstCounter::new(seconds).encode(family.encode_family(&label)?)?;
    }
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for report in reports {
            let label = [("plugin", report.name.as_str())];
            let one = family.encode_family(&label)?;
            ConstGauge::new(value(report) as i64).encode(one)?;
        }
    }
    Ok(())
}

fn histogram(mut encoder: MetricEncoder<'_>, took: &Histogram) -> std::result::Result<(), std::fmt::Error> {
    let buckets = took.buckets();
    let count = buckets.iter().map(|(_, count)| count).sum();
    encoder.encode_histogram::<NoLabelSet>(took.sum(), count, &buckets, None)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> std::result::Result<(), std::fmt::Error> {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> std::result::Result<(), std::fmt::Error> {
    ConstGauge::new(value as i64).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_goes_to_who_asks_for_it() {
        for (accept, wants) in [
            ("", false),
            ("*/*", false),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", false),
            ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", true),
            ("text/plain, application/openmetrics-text", true),
            ("application/openmetrics-text;q=0,text/plain", false),
        ] {
            assert_eq!(wants_open_metrics(accept), wants, "{accept:?}");
        }
    }

    #[test]
    fn the_older_text_has_other_names_for_counters() {
        let open_metrics = "# HELP a_b Things.\n# TYPE a_b counter\n# UNIT a_b s\na_b_total{x=\"1\"} 2\n\
            # HELP c Room.\n# TYPE c gauge\nc 3\n# TYPE d histogram\nd_count 0\n# EOF\n";
        let older = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"1\"} 2\n\
            # HELP c Room.\n# TYPE c gauge\nc 3\n# TYPE d histogram\nd_count 0\n";
        assert_eq!(older_text(open_metrics), older);
    }
}
