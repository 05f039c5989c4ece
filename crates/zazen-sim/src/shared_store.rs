//! Storage that all nodes share, as a baseline: a file server (one machine) or a parallel file
//! system (many servers as one pool, with I/O nodes before it).
//!
//! Bytes pass the I/O node of a compute node and the pool, each first come, first served, both at
//! once. Metadata operations pass one queue; those in a directory that many nodes use at once take
//! longer there, because its lock goes around.

use crate::time::Rate;

/// What the store can do.
#[derive(Clone, Copy, Debug)]
pub struct SharedCosts {
    /// Of the whole pool.
    pub pool: Rate,
    /// Compute nodes at one I/O node; 0: there are none.
    pub nodes_per_gateway: u32,
    /// Of an I/O node.
    pub gateway: Rate,
    /// Before a request's first byte.
    pub latency_ps: u64,
    /// A metadata operation.
    pub meta_ps: u64,
    /// A metadata operation in a directory that others use at the same time.
    pub meta_shared_ps: u64,
}

/// The store's state.
pub struct SharedStore {
    costs: SharedCosts,
    pool_ps: u64,
    meta_ps: u64,
    gateways_ps: Vec<u64>,
}

impl SharedStore {
    /// An idle store for `nodes` compute nodes.
    pub fn new(nodes: u32, costs: SharedCosts) -> SharedStore {
        let gateways = nodes.checked_div(costs.nodes_per_gateway).map_or(0, |whole| whole + 1);
        SharedStore { costs, pool_ps: 0, meta_ps: 0, gateways_ps: vec![0; gateways as usize] }
    }

    /// When a read or a write that comes at `now_ps` is done.
    pub fn transfer(&mut self, now_ps: u64, node: u32, bytes: u64) -> u64 {
        let start = now_ps + self.costs.latency_ps;
        // A request that waits for its I/O node does not keep the pool from others' bytes.
        self.pool_ps = start.max(self.pool_ps).saturating_add(self.costs.pool.time_ps(bytes));
        let Some(gateway) = node.checked_div(self.costs.nodes_per_gateway) else { return self.pool_ps };
        let free = &mut self.gateways_ps[gateway as usize];
        *free = start.max(*free).saturating_add(self.costs.gateway.time_ps(bytes));
        self.pool_ps.max(*free)
    }

    /// When a metadata operation that comes at `now_ps` is done.
    pub fn operate(&mut self, now_ps: u64, is_shared: bool) -> u64 {
        let service = if is_shared { self.costs.meta_shared_ps } else { self.costs.meta_ps };
        self.meta_ps = self.meta_ps.max(now_ps + self.costs.latency_ps).saturating_add(service);
        self.meta_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_PS;

    fn store() -> SharedStore {
        let costs = SharedCosts {
            pool: Rate::per_second(1e9),
            nodes_per_gateway: 4,
            gateway: Rate::per_second(200e6),
            latency_ps: 0,
            meta_ps: 1_000,
            meta_shared_ps: 7_000,
        };
        SharedStore::new(64, costs)
    }

    /// Few nodes: their I/O node decides. Many: the pool does, and the sum of bytes takes
    /// bytes / bandwidth.
    #[test]
    fn gateways_and_then_the_pool_decide() {
        let mut one = store();
        let ends: Vec<u64> = (0..4).map(|node| one.transfer(0, node, 200_000_000)).collect();
        assert_eq!(ends, (1..5).map(|n| n * SECOND_PS).collect::<Vec<_>>());
        let mut all = store();
        let last = (0..64).map(|node| all.transfer(0, node, 200_000_000)).max();
        // 12.8 GB at 1 GB/s: the I/O nodes are quicker.
        assert_eq!(last, Some(64 * SECOND_PS / 5));
    }

    #[test]
    fn a_shared_directory_costs_more() {
        let mut store = store();
        assert_eq!([false, false, true].map(|shared| store.operate(0, shared)), [1_000, 2_000, 9_000]);
    }
}
