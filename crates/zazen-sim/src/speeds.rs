//! How fast each node's disk is.

use crate::cluster::Cluster;
use crate::random::{Random, Stream};

/// How much longer a byte takes on each node's disk; empty if all are alike.
pub fn stretches(cluster: &Cluster, nodes: u32, random: Random) -> Vec<f32> {
    let disk = &cluster.disk;
    if disk.node_deviation == 0.0 && (disk.slow_fraction == 0.0 || disk.slow_factor == 1.0) {
        return Vec::new();
    }
    let stretch = |node| {
        let speed = 1.0 + disk.node_deviation * random.normal(node, Stream::DiskSpeed, 0);
        let is_slow = random.uniform(node, Stream::Slow, 0) < disk.slow_fraction;
        let slow = if is_slow { disk.slow_factor } else { 1.0 };
        (slow / speed.max(0.05)) as f32
    };
    (0..nodes).map(stretch).collect()
}
