//! The Prometheus page: every counter of the daemon and the store, read at each scrape.

use crate::http::{Page, Responder};
use crate::node::Node;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use zazen_core::{Error, ErrorKind, Result};
use zazen_plugins::PluginReport;

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
        let answer = move |path: &str| match path {
            "/metrics" | "/" => Some(Page { content_type: CONTENT_TYPE, text: page(&registry) }),
            _ => None,
        };
        let responder = Responder::serve(addr, Box::new(answer)).map_err(|error| {
            let why = format!("metrics at {addr}: {error}; choose another --metrics address");
            Error::new(ErrorKind::Config, why)
        })?;
        let addr = responder.addr;
        Ok(MetricsPage { _responder: responder, addr })
    }
}

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page's text.
fn page(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    prometheus_client::encoding::text::encode(&mut text, registry).ok();
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
        let disk = node.disk.report();
        let (opened, scans) = (node.shares.opened.under_way(), node.shares.scans.under_way());
        let ok = node.roots.roots.iter().filter(|root| root.backing.is_ok()).count();
        for (name, help, value) in [
            ("space_used_bytes", "Bytes that the cache uses", space.used),
            ("space_reserved_bytes", "Bytes promised to frames that are being written", space.reserved),
            ("space_budget_bytes", "Bytes that the cache may use", space.budget),
            ("space_free_bytes", "Bytes free on the cache's file system", space.free),
            ("cache_disk_ok", "1 while the cache's disk can be read and written", u64::from(disk.is_ok())),
            (
                "cache_disk_failures",
                "Operations on the cache's disk that failed since the start",
                disk.failures.0 + disk.failures.1,
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
            ("uptime_seconds", "Seconds since the start", node.started.elapsed().as_secs()),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        let plugins = node.plugins.get().and_then(Weak::upgrade);
        plugins.map_or(Ok(()), |plugins| encode_plugins(&mut encoder, &plugins.reports()))
    }
}

/// What plug-ins did, by name. The counters of an isolated plug-in begin anew with its process.
fn encode_plugins(
    encoder: &mut DescriptorEncoder<'_>,
    reports: &[PluginReport],
) -> std::result::Result<(), std::fmt::Error> {
    type Value = fn(&PluginReport) -> u64;
    let counters: [(&str, &str, Value); 6] = [
        ("plugin_calls", "Calls of plug-ins", |plugin| plugin.sum(|function| function.calls)),
        ("plugin_errors", "Calls whose transport failed", |plugin| plugin.sum(|function| function.errors)),
        ("plugin_bytes_in", "Bytes of requests", |plugin| plugin.sum(|function| function.bytes_in)),
        ("plugin_bytes_out", "Bytes of answers", |plugin| plugin.sum(|function| function.bytes_out)),
        ("plugin_nanoseconds", "Time spent in calls", |plugin| plugin.sum(|function| function.nanoseconds)),
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
