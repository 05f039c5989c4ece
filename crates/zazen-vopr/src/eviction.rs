//! The check that what is being scanned is not evicted for want of room.

use crate::content;
use crate::world::World;
use zazen_core::RunSet;

impl World {
    fn held(&self, node: usize, dataset: usize) -> Option<RunSet> {
        let store = self.nodes[node].store.as_ref()?;
        let (native, alien) = store.holdings(&content::series(dataset).ok()?);
        Some(native.union(&alien))
    }

    /// Notes what the scanned datasets of a node hold.
    pub(crate) fn note_holdings(&mut self, node: usize) {
        let scanned = self.scanned_on(node);
        self.scanned.retain(|(at, dataset), _| *at != node || scanned.contains(dataset));
        for dataset in scanned {
            if let Some(held) = self.held(node, dataset) {
                self.scanned.insert((node, dataset), held);
            }
        }
    }

    pub(crate) fn forget_holdings(&mut self, node: usize) {
        self.scanned.retain(|(at, _), _| *at != node);
    }

    /// An operator evicted something: that is no fault of the daemon's.
    pub(crate) fn evicted_by_hand(&mut self, node: usize) {
        self.forget_holdings(node);
        let Some(store) = self.nodes[node].store.clone() else { return };
        let evicted = store.counters().iter().find(|(name, _)| *name == "evicted_frames").map(|it| it.1);
        self.nodes[node].evicted = evicted.unwrap_or(0);
    }

    /// Room was made on a node: what is scanned there must not have gone.
    pub(crate) fn check_scanned(&mut self, node: usize) {
        let before: Vec<(usize, RunSet)> = self
            .scanned
            .iter()
            .filter(|((at, _), _)| *at == node)
            .map(|((_, dataset), held)| (*dataset, held.clone()))
            .collect();
        for (dataset, held) in before {
            let Some(now) = self.held(node, dataset) else { continue };
            let gone = held.difference(&now);
            // A copy that is stale or bad may go at the same time, one by one.
            if gone.len() > 1 && now.is_empty() {
                self.checks.fail(format!(
                    "evicted in use: frames {gone:?} of dataset {dataset}, which is scanned on node {node}"
                ));
            }
        }
    }
}
