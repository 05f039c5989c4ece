//! What a cluster can do: the parameters of a simulation, as `cluster.toml` holds them.
//!
//! Each parameter has an origin: calibrated from spans, taken from a publication, or assumed. The
//! table `origin` says which; what it does not name is assumed. Results repeat it.

use crate::daemon::Discipline;
use crate::network::Costs;
use crate::random::{Random, Stream};
use crate::shared_store::SharedCosts;
use crate::spread::Spread;
use crate::time::{Rate, ps};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// All parameters of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// The nodes' disks.
    pub disk: Disk,
    /// The daemons.
    pub daemon: Daemon,
    /// The mount.
    pub fuse: Fuse,
    /// The network.
    pub network: Network,
    /// Storage that all nodes share.
    pub shared: Shared,
    /// Failures and repairs of nodes.
    pub failures: Failures,
    /// Where each parameter comes from, by its name, such as `disk.write_bytes_per_s`.
    pub origin: BTreeMap<String, String>,
    /// The training run's mean seconds by operation, per byte and per call: what `zazen sim
    /// validate` compares with.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub baseline: BTreeMap<String, (f64, f64)>,
    /// What a daemon's calls take, by operation, as calibration found it: `zazen sim validate`
    /// replays with it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service: BTreeMap<String, Service>,
}

/// The nodes' disks and memories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Sequential reads.
    pub read_bytes_per_s: f64,
    /// Sequential writes.
    pub write_bytes_per_s: f64,
    /// Before the first byte of a request, in microseconds.
    pub latency_us: f64,
    /// Copies into and out of the page cache.
    pub memory_bytes_per_s: f64,
    /// Dirty bytes that the kernel allows; 0: writes go straight to the disk.
    pub dirty_bytes_max: u64,
    /// Standard deviation of the nodes' speeds, as a part of the mean.
    pub node_deviation: f64,
    /// Standard deviation of the logarithm of each request's time.
    pub request_sigma: f64,
    /// Part of the nodes that are slow.
    pub slow_fraction: f64,
    /// How much longer a slow node takes.
    pub slow_factor: f64,
}

/// The daemons' service times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Requests that a daemon serves at once.
    pub workers: u32,
    /// Whether requests are served in turn, or share the workers.
    pub discipline: Discipline,
    /// Opening a file.
    pub open_us: Spread,
    /// Adding a name.
    pub insert_us: Spread,
    /// Looking a name up.
    pub lookup_us: Spread,
    /// Closing a file: committing its size.
    pub close_us: Spread,
    /// Removing a name.
    pub remove_us: Spread,
    /// Beginning to send bytes to another node.
    pub fetch_us: Spread,
    /// A metadata request on the wire.
    pub request_bytes: u64,
    /// Its answer.
    pub reply_bytes: u64,
    /// Replicas of each row besides the first; the first of them is written before the answer.
    pub replicas: u32,
}

/// What the mount costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fuse {
    /// Each request through the kernel and back, in microseconds.
    pub request_us: f64,
    /// Bytes that a read or write request carries.
    pub request_bytes: u64,
}

/// The network's costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// The shape, such as `torus`; see `zazen sim run --help`.
    pub shape: String,
    /// A node's interface, each way.
    pub interface_bytes_per_s: f64,
    /// A link between routers, each way.
    pub link_bytes_per_s: f64,
    /// A global link of a dragonfly, each way.
    pub global_bytes_per_s: f64,
    /// From node to node, without links between routers, in microseconds.
    pub latency_us: f64,
    /// For each link between routers, in microseconds.
    pub hop_us: f64,
    /// For each global link, in microseconds.
    pub global_hop_us: f64,
    /// A processor's time for sending or receiving a message, in microseconds.
    pub overhead_us: f64,
    /// The least time between two messages of an interface, in microseconds.
    pub gap_us: f64,
    /// At fidelity `flow`, shorter messages take no part in sharing.
    pub flow_bytes_min: u64,
}

/// A file server or a parallel file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shared {
    /// All servers together.
    pub bytes_per_s: f64,
    /// Compute nodes at one I/O node; 0: no I/O nodes.
    pub nodes_per_gateway: u32,
    /// An I/O node.
    pub gateway_bytes_per_s: f64,
    /// Before a request's first byte, in microseconds.
    pub latency_us: f64,
    /// Metadata operations of the whole store per second.
    pub operations_per_s: f64,
    /// The same in one directory that many nodes use.
    pub shared_operations_per_s: f64,
}

/// What the calls of one operation take at a daemon, as spans show it: a fixed time and a time for
/// each byte, times a part that is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Without a byte, in microseconds.
    pub fixed_us: f64,
    /// 0: bytes do not matter.
    pub bytes_per_s: f64,
    /// Means of equally large groups of calls, the quickest first: their times over what the line
    /// says. So the mean of many draws is the mean of the calls, however far some are out.
    pub parts: Vec<f64>,
    /// Whether its bytes are flows that share links, disks and the store with those of other calls.
    /// Then the line is what a call takes besides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares: bool,
}

impl Service {
    /// What a call takes without its drawn part, in seconds.
    pub fn line_s(&self, bytes: f64) -> f64 {
        let moving_s = if self.bytes_per_s > 0.0 { bytes / self.bytes_per_s } else { 0.0 };
        self.fixed_us * 1e-6 + moving_s
    }

    /// What a call takes.
    pub fn draw_ps(&self, random: Random, counter: u64, bytes: u64) -> u64 {
        let groups = self.parts.len().max(1) as u64;
        let group = random.below(groups, 0, Stream::Service, counter) as usize;
        ps(self.line_s(bytes as f64) * self.parts.get(group).copied().unwrap_or(1.0))
    }
}

/// Failures and repairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Failures {
    /// Part of the nodes that are dead from the beginning and stay so.
    pub dead_fraction: f64,
    /// Mean time between failures of a node, in hours; 0: nodes do not fail.
    pub mtbf_hours: f64,
    /// Time until a failed node is back, in seconds.
    pub repair_s: f64,
    /// How long a client waits for an answer before it asks the next replica, in milliseconds.
    pub timeout_ms: f64,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster::intrepid()
    }
}

impl Default for Disk {
    fn default() -> Self {
        Disk {
            read_bytes_per_s: 500e6,
            write_bytes_per_s: 450e6,
            latency_us: 100.0,
            memory_bytes_per_s: 5e9,
            dirty_bytes_max: 0,
            node_deviation: 0.0,
            request_sigma: 0.0,
            slow_fraction: 0.0,
            slow_factor: 1.0,
        }
    }
}

impl Default for Daemon {
    fn default() -> Self {
        Daemon {
            workers: 1,
            discipline: Discipline::Fifo,
            open_us: Spread::Constant(25.0),
            insert_us: Spread::Constant(60.0),
            lookup_us: Spread::Constant(25.0),
            close_us: Spread::Constant(25.0),
            remove_us: Spread::Constant(60.0),
            fetch_us: Spread::Constant(50.0),
            request_bytes: 512,
            reply_bytes: 512,
            replicas: 0,
        }
    }
}

impl Default for Fuse {
    fn default() -> Self {
        Fuse { request_us: 0.0, request_bytes: 128 << 10 }
    }
}

impl Default for Network {
    fn default() -> Self {
        Network {
            shape: "star".to_owned(),
            interface_bytes_per_s: 1.25e9,
            link_bytes_per_s: 1.25e9,
            global_bytes_per_s: 1.25e9,
            latency_us: 20.0,
            hop_us: 0.1,
            global_hop_us: 1.0,
            overhead_us: 5.0,
            gap_us: 5.0,
            flow_bytes_min: 64 << 10,
        }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            bytes_per_s: 1e9,
            nodes_per_gateway: 0,
            gateway_bytes_per_s: 1e9,
            latency_us: 200.0,
            operations_per_s: 20_000.0,
            shared_operations_per_s: 5_000.0,
        }
    }
}

impl Default for Failures {
    fn default() -> Self {
        Failures { dead_fraction: 0.0, mtbf_hours: 0.0, repair_s: 600.0, timeout_ms: 1000.0 }
    }
}

impl Cluster {
    /// The clusters that come with the simulator.
    pub const NAMES: [&str; 2] = ["intrepid", "commodity"];

    /// A cluster by name.
    pub fn named(name: &str) -> Option<Cluster> {
        match name {
            "intrepid" => Some(Cluster::intrepid()),
            "commodity" => Some(Cluster::commodity()),
            _ => None,
        }
    }

    /// Intrepid, a Blue Gene/P of 40,960 nodes, as the FusionFS paper describes it.
    pub fn intrepid() -> Cluster {
        let origin = [
            ("disk.write_bytes_per_s", "paper §4.5: 2.64 TB/s at peak over 16,384 nodes"),
            ("disk.read_bytes_per_s", "paper §4.1: 174 MB/s, a RAM disk behind FUSE"),
            ("disk.node_deviation", "assumed: the paper gives 5 % between runs, not between nodes"),
            ("daemon.insert_us", "fitted: `metadata` at 1,024 nodes gives the 54 K creates/s of paper §4.2"),
            ("network.link_bytes_per_s", "Blue Gene/P: 425 MB/s each way"),
            ("network.hop_us", "Blue Gene/P: 0.1 µs a hop"),
            ("network.overhead_us", "assumed: TCP on an 850 MHz PowerPC"),
            ("shared.bytes_per_s", "paper §4.5: 37 GB/s of GPFS at 1 M nodes"),
            ("shared.nodes_per_gateway", "paper §4.1"),
            ("shared.gateway_bytes_per_s", "assumed: 10 Gbit Ethernet, 850 MB/s of it"),
            ("shared.operations_per_s", "assumed: paper §4.2 says that 8 nodes saturate it"),
        ];
        Cluster {
            name: "intrepid".to_owned(),
            disk: Disk {
                read_bytes_per_s: 174e6,
                write_bytes_per_s: 2.64e12 / 16_384.0,
                latency_us: 0.0,
                memory_bytes_per_s: 2e9,
                node_deviation: 0.01,
                ..Disk::default()
            },
            daemon: Daemon {
                open_us: Spread::Constant(4_000.0),
                insert_us: Spread::Constant(10_400.0),
                lookup_us: Spread::Constant(4_000.0),
                close_us: Spread::Constant(4_000.0),
                remove_us: Spread::Constant(10_400.0),
                fetch_us: Spread::Constant(1_000.0),
                ..Daemon::default()
            },
            // The disk's 174 MB/s are behind FUSE already; its requests cost metadata only.
            fuse: Fuse { request_us: 500.0, request_bytes: 1 << 50 },
            network: Network {
                shape: "torus".to_owned(),
                interface_bytes_per_s: 2.55e9,
                link_bytes_per_s: 425e6,
                global_bytes_per_s: 425e6,
                latency_us: 1.0,
                hop_us: 0.1,
                overhead_us: 30.0,
                gap_us: 30.0,
                ..Network::default()
            },
            shared: Shared {
                bytes_per_s: 37e9,
                nodes_per_gateway: 64,
                gateway_bytes_per_s: 850e6,
                latency_us: 1_000.0,
                operations_per_s: 500.0,
                shared_operations_per_s: 50.0,
            },
            failures: Failures::default(),
            origin: origin.map(|(name, from)| (name.to_owned(), from.to_owned())).into(),
            baseline: BTreeMap::new(),
            service: BTreeMap::new(),
        }
    }

    /// A cluster of today: NVMe disks, 100 Gbit Ethernet. All of it is assumed.
    pub fn commodity() -> Cluster {
        Cluster {
            name: "commodity".to_owned(),
            disk: Disk {
                read_bytes_per_s: 3e9,
                write_bytes_per_s: 1.5e9,
                latency_us: 80.0,
                memory_bytes_per_s: 8e9,
                dirty_bytes_max: 8 << 30,
                node_deviation: 0.03,
                request_sigma: 0.1,
                slow_fraction: 0.005,
                slow_factor: 2.0,
            },
            daemon: Daemon { workers: 4, ..Daemon::default() },
            fuse: Fuse { request_us: 12.0, request_bytes: 128 << 10 },
            network: Network {
                shape: "fat-tree".to_owned(),
                interface_bytes_per_s: 12.5e9,
                link_bytes_per_s: 12.5e9,
                global_bytes_per_s: 12.5e9,
                latency_us: 8.0,
                hop_us: 0.5,
                overhead_us: 3.0,
                gap_us: 1.0,
                ..Network::default()
            },
            shared: Shared {
                bytes_per_s: 200e9,
                nodes_per_gateway: 0,
                latency_us: 500.0,
                operations_per_s: 100_000.0,
                shared_operations_per_s: 20_000.0,
                ..Shared::default()
            },
            failures: Failures::default(),
            origin: BTreeMap::new(),
            baseline: BTreeMap::new(),
            service: BTreeMap::new(),
        }
    }

    /// Reads a `cluster.toml`. What it lacks as a whole is that of [`Cluster::intrepid`]; what is
    /// lacking in a part that it has is assumed. `Config` if it is no such, or has a parameter that
    /// cannot be.
    pub fn from_toml(text: &str) -> Result<Cluster> {
        let refuse = |error: toml::de::Error| Error::new(ErrorKind::Config, error.to_string());
        let mut cluster: Cluster = toml::from_str(text).map_err(refuse)?;
        let given: toml::Table = toml::from_str(text).map_err(refuse)?;
        // A part that the file has is not the one whose origins these are.
        if !given.contains_key("origin") {
            let part = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
            cluster.origin.retain(|name, _| !given.contains_key(&part(name)));
        }
        if !given.contains_key("name") && !given.is_empty() {
            cluster.name += " with changes";
        }
        cluster.check()?;
        Ok(cluster)
    }

    /// The same as a `cluster.toml`.
    pub fn to_toml(&self) -> Result<String> {
        let refuse = |error: toml::ser::Error| Error::new(ErrorKind::Config, error.to_string());
        toml::to_string_pretty(self).map_err(refuse)
    }

    /// `Config` if a parameter is negative, missing or absurd. The message names it.
    pub fn check(&self) -> Result<()> {
        let Cluster { disk, daemon, fuse, network, shared, failures, .. } = self;
        let within = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let why = format!("{name} = {value} is not between {low} and {high}");
            Err(Error::new(ErrorKind::Config, why))
        };
        for (name, value) in [
            ("disk.read_bytes_per_s", disk.read_bytes_per_s),
            ("disk.write_bytes_per_s", disk.write_bytes_per_s),
            ("disk.memory_bytes_per_s", disk.memory_bytes_per_s),
            ("network.interface_bytes_per_s", network.interface_bytes_per_s),
            ("network.link_bytes_per_s", network.link_bytes_per_s),
            ("network.global_bytes_per_s", network.global_bytes_per_s),
            ("shared.bytes_per_s", shared.bytes_per_s),
            ("shared.gateway_bytes_per_s", shared.gateway_bytes_per_s),
        ] {
            within(name, value, 1_000.0, 1e15)?;
        }
        for (name, value) in [
            ("disk.latency_us", disk.latency_us),
            ("fuse.request_us", fuse.request_us),
            ("network.latency_us", network.latency_us),
            ("network.hop_us", network.hop_us),
            ("network.global_hop_us", network.global_hop_us),
            ("network.overhead_us", network.overhead_us),
            ("network.gap_us", network.gap_us),
            ("shared.latency_us", shared.latency_us),
        ] {
            within(name, value, 0.0, 60e6)?;
        }
        for (name, value, low, high) in [
            ("disk.node_deviation", disk.node_deviation, 0.0, 0.5),
            ("disk.request_sigma", disk.request_sigma, 0.0, 3.0),
            ("disk.slow_fraction", disk.slow_fraction, 0.0, 1.0),
            ("disk.slow_factor", disk.slow_factor, 0.1, 1_000.0),
            ("daemon.workers", f64::from(daemon.workers), 1.0, 256.0),
            ("daemon.replicas", f64::from(daemon.replicas), 0.0, 16.0),
            ("daemon.request_bytes", daemon.request_bytes as f64, 1.0, 1e9),
            ("daemon.reply_bytes", daemon.reply_bytes as f64, 1.0, 1e9),
            ("fuse.request_bytes", fuse.request_bytes as f64, 512.0, (1_u64 << 60) as f64),
            ("shared.operations_per_s", shared.operations_per_s, 1e-3, 1e12),
            ("shared.shared_operations_per_s", shared.shared_operations_per_s, 1e-3, 1e12),
            ("failures.dead_fraction", failures.dead_fraction, 0.0, 0.99),
            ("failures.mtbf_hours", failures.mtbf_hours, 0.0, 1e9),
            ("failures.repair_s", failures.repair_s, 0.0, 1e7),
            ("failures.timeout_ms", failures.timeout_ms, 0.001, 1e8),
        ] {
            within(name, value, low, high)?;
        }
        if failures.mtbf_hours > 0.0 {
            // Nodes that fail faster than they work would never end their steps.
            within("failures.mtbf_hours", failures.mtbf_hours, 0.001, 1e9)?;
            within("failures.repair_s", failures.repair_s, 0.001, 1e7)?;
        }
        for (name, spread) in [
            ("daemon.open_us", &daemon.open_us),
            ("daemon.insert_us", &daemon.insert_us),
            ("daemon.lookup_us", &daemon.lookup_us),
            ("daemon.close_us", &daemon.close_us),
            ("daemon.remove_us", &daemon.remove_us),
            ("daemon.fetch_us", &daemon.fetch_us),
        ] {
            spread.check(name)?;
        }
        for (op, service) in &self.service {
            let Service { fixed_us, bytes_per_s, parts, .. } = service;
            within(&format!("service.{op}.fixed_us"), *fixed_us, 0.0, 86_400e6)?;
            within(&format!("service.{op}.bytes_per_s"), *bytes_per_s, 0.0, 1e15)?;
            within(&format!("number of service.{op}.parts"), parts.len() as f64, 1.0, 10_000.0)?;
            for part in parts {
                within(&format!("service.{op}.parts"), *part, 0.0, 1e9)?;
            }
        }
        for (op, (per_byte, per_call)) in &self.baseline {
            within(&format!("baseline.{op}"), *per_byte, 0.0, 86_400.0)?;
            within(&format!("baseline.{op}"), *per_call, 0.0, 86_400.0)?;
        }
        crate::topology::parse(&network.shape).map(|_| ())
    }

    /// The network's costs.
    pub fn network_costs(&self) -> Costs {
        let network = &self.network;
        let us = |us: f64| ps(us * 1e-6);
        Costs {
            overhead_ps: us(network.overhead_us),
            gap_ps: us(network.gap_us),
            latency_ps: us(network.latency_us),
            hop_ps: us(network.hop_us),
            global_hop_ps: us(network.global_hop_us),
            interface: Rate::per_second(network.interface_bytes_per_s),
            fabric: Rate::per_second(network.link_bytes_per_s),
            global: Rate::per_second(network.global_bytes_per_s),
            flow_bytes_min: network.flow_bytes_min,
        }
    }

    /// The disks' costs.
    pub fn disk_costs(&self) -> crate::disk::DiskCosts {
        crate::disk::DiskCosts {
            read: Rate::per_second(self.disk.read_bytes_per_s),
            write: Rate::per_second(self.disk.write_bytes_per_s),
            memory: Rate::per_second(self.disk.memory_bytes_per_s),
            dirty_max: self.disk.dirty_bytes_max,
            latency_ps: ps(self.disk.latency_us * 1e-6),
        }
    }

    /// The shared store's costs.
    pub fn shared_costs(&self) -> SharedCosts {
        let shared = &self.shared;
        SharedCosts {
            pool: Rate::per_second(shared.bytes_per_s),
            nodes_per_gateway: shared.nodes_per_gateway,
            gateway: Rate::per_second(shared.gateway_bytes_per_s),
            latency_ps: ps(shared.latency_us * 1e-6),
            meta_ps: ps(1.0 / shared.operations_per_s),
            meta_shared_ps: ps(1.0 / shared.shared_operations_per_s),
        }
    }

    /// What the mount adds to each byte.
    pub fn fuse_rate(&self) -> Rate {
        if self.fuse.request_us == 0.0 {
            return Rate::INFINITE;
        }
        Rate::per_second((self.fuse.request_bytes as f64 / (self.fuse.request_us * 1e-6)).min(1e18))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_survive_their_files() {
        for name in Cluster::NAMES {
            let cluster = Cluster::named(name).unwrap();
            let text = cluster.to_toml().unwrap();
            assert_eq!(Cluster::from_toml(&text).unwrap(), cluster, "{text}");
        }
    }

    /// A number that is not from a publication must not pass for one.
    #[test]
    fn what_a_file_changes_has_another_origin_and_name() {
        let cluster = Cluster::from_toml("[disk]\nwrite_bytes_per_s = 5e8").unwrap();
        assert_eq!(cluster.name, "intrepid with changes");
        assert!(!cluster.origin.keys().any(|name| name.starts_with("disk.")), "{:?}", cluster.origin);
        assert!(cluster.origin.contains_key("network.link_bytes_per_s"));
        let text = "name = \"mine\"\n[disk]\nlatency_us = 1.0\n[origin]\n\"disk.latency_us\" = \"a vendor\"";
        let cluster = Cluster::from_toml(text).unwrap();
        assert_eq!((cluster.name.as_str(), cluster.origin.len()), ("mine", 1));
        assert_eq!(Cluster::from_toml("").unwrap(), Cluster::intrepid());
    }

    #[test]
    fn absurd_parameters_are_refused_by_name() {
        let check = |text: &str, expected: &str| {
            let message = Cluster::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        };
        check("[disk]\nwrite_bytes_per_s = -1.0", "disk.write_bytes_per_s = -1");
        check("[disk]\nwrite_bytes_per_s = 0.0", "disk.write_bytes_per_s = 0");
        check("[disk]\nwrite_bytes_per_s = nan", "NaN");
        check("[disk]\nslow_fraction = 1.5", "disk.slow_fraction");
        check("[disk]\nspeed = 1.0", "unknown field `speed`");
        check("[daemon]\nworkers = 0", "daemon.workers");
        check("[daemon]\nopen_us = -3.0", "daemon.open_us");
        check("[network]\nshape = \"ring\"", "there are star");
        check("[failures]\ndead_fraction = 1.0", "failures.dead_fraction");
        check("[failures]\nmtbf_hours = 1e-9", "failures.mtbf_hours");
        check("[daemon]\nopen_us = { mean = 3.0 }", "mean_us");
        check("[daemon]\nopen_us = { mean_us = 3.0, sigma = 0.5 }", "mean_us");
        check("[baseline]\n\"frames.push\" = [nan, 0.0]", "baseline.frames.push");
        check("disk = 3", "disk");
    }
}
