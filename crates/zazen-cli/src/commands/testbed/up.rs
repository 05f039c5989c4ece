//! `zazen testbed up`: makes a testbed and says what it is limited to.

use crate::{output, parse};
use clap::Args;
use std::path::{Path, PathBuf};
use zazen_core::{Error, Result};
use zazen_testbed::state::{NODES_MAX, Namespace};
use zazen_testbed::{DiskLimits, LinkRates, Plan, Programs};

#[derive(Args)]
pub(crate) struct Up {
    /// How many nodes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    nodes: u16,
    /// Bytes that each node's cache may take
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse::bytes)]
    budget: u64,
    /// The directory that plays the file server [default: DIR/server]
    #[arg(long, value_name = "DIR")]
    backing: Option<PathBuf>,
    /// What the file server gives all readers together, per second (without --net)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate, conflicts_with = "net")]
    server_rate: Option<u64>,
    /// A network namespace per node, with shaped links (needs root and iproute2)
    #[arg(long)]
    net: bool,
    /// Rate of each node's link, each way
    #[arg(long, value_name = "RATE", default_value = "160mbit",
        value_parser = parse::bit_rate, requires = "net")]
    link: u64,
    /// Rate of the file server's link, each way
    #[arg(long, value_name = "RATE", default_value = "160mbit",
        value_parser = parse::bit_rate, requires = "net")]
    server_link: u64,
    /// What each node's disk gives, per second (needs root and an I/O control group)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate)]
    disk_bps: Option<u64>,
    /// Reads that each node's disk serves per second, whatever their size (as --disk-bps)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    disk_iops: Option<u64>,
    /// What the file server's disk gives, per second (as --disk-bps)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate)]
    server_disk_bps: Option<u64>,
    /// Readers that each daemon lets at its disk; 1 as for a spinning one [default: by the kind of
    /// disk]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: Option<u16>,
    /// The daemons hand frames out without a look at their sources (`validate = "never"`)
    #[arg(long)]
    trust_copies: bool,
    /// The daemons record each call in this folder, for `zazen sim calibrate`
    #[arg(long, value_name = "DIR")]
    spans: Option<PathBuf>,
    /// The nodes have a namespace: one file system over their disks
    #[arg(long)]
    namespace: bool,
    /// Mount it once for each node: DIR/0, DIR/1, … (needs root, or fusermount3)
    #[arg(long, value_name = "DIR", requires = "namespace")]
    mounts: Option<PathBuf>,
    /// Programs reach it as this path by `zazen run --forward PATH`, without a mount (needs root)
    #[arg(long, value_name = "PATH", requires = "namespace")]
    forward: Option<PathBuf>,
    /// Nodes that keep each part of its metadata [default: 2]
    #[arg(long, value_name = "R", requires = "namespace",
        value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: Option<u8>,
    /// When a change of its metadata counts as done [default: written]
    #[arg(long, value_name = "LEVEL", requires = "namespace", value_parser = ["memory", "written", "synced"])]
    durability: Option<String>,
    /// Seconds that a node must be down before its files are copied anew [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "namespace")]
    repair_after: Option<u32>,
    /// Root is nobody in the namespace, as on real nodes by default; otherwise it is root
    #[arg(long, requires = "namespace")]
    root_squash: bool,
}

impl Up {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let remark = &mut |remark| output::note(remark);
        // The daemons run in folders of their own.
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).map_err(|error| Error::io(path.display().to_string(), error))
        };
        let spans = self.spans.as_ref().map(absolute).transpose()?;
        let mounts = self.mounts.as_ref().map(absolute).transpose()?;
        let state = zazen_testbed::up(dir, &self.plan(spans, mounts), &Programs::of_this_zazen()?, remark)?;
        let dir = state.dir.display();
        let forward = state.namespace.as_ref().and_then(|namespace| namespace.forward.as_ref());
        output::line(format!("testbed {dir}: {} nodes up", state.nodes.len()));
        output::line(super::status::limits_line(&state));
        if let Some(mounts) = state.namespace.as_ref().and_then(|namespace| namespace.mounts.as_ref()) {
            let last = state.nodes.len() - 1;
            output::line(format!("mounts: {0}/0 to {0}/{last}, one for each node", mounts.display()));
        }
        if let Some(path) = forward {
            output::line(format!("forwarded: zazen run --forward {0} -- ls {0}", path.display()));
        }
        output::line(format!("next: eval \"$(zazen testbed env --dir {dir})\"; zazen status"));
        Ok(())
    }

    fn plan(&self, spans: Option<PathBuf>, mounts: Option<PathBuf>) -> Plan {
        let links = LinkRates { node_bits_per_s: self.link, server_bits_per_s: self.server_link };
        let namespace = || Namespace {
            replicas: self.replicas,
            durability: self.durability.clone(),
            repair_after: self.repair_after,
            root_squash: self.root_squash,
            forward: self.forward.clone(),
            mounts,
            made: None,
            processes: Vec::new(),
        };
        Plan {
            namespace: self.namespace.then(namespace),
            nodes: self.nodes.into(),
            budget: self.budget,
            backing: self.backing.clone(),
            server_bytes_per_s: self.server_rate,
            net: self.net.then_some(links),
            disk: DiskLimits {
                bytes_per_s: self.disk_bps,
                iops: self.disk_iops,
                server_bytes_per_s: self.server_disk_bps,
            },
            readers: self.readers,
            trust_copies: self.trust_copies,
            spans,
        }
    }
}
