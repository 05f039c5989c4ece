//! Nodes that cannot be reached: who waited for one in vain, waits once.
//!
//! An operation is repeated for as long as it may take, because a node that is restarted comes
//! back within that time. If it has not come back, the next operations on its partitions would each
//! wait as long. So a node to which no connection could be made all that time counts as away. Until
//! a connection can be made again, an operation tries it for a moment only.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zazen_namespace::NodeNo;

/// How long an operation tries a node that is away.
const MOMENT: Duration = Duration::from_secs(1);

/// The nodes that are away.
#[derive(Default)]
pub(crate) struct Away(Mutex<BTreeSet<NodeNo>>);

impl Away {
    /// An operation has waited for long, and no connection could be made at last.
    pub(crate) fn waited_in_vain(&self, node: NodeNo) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    /// There is a connection.
    pub(crate) fn is_reached(&self, node: NodeNo) {
        let mut away = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !away.is_empty() {
            away.remove(&node);
        }
    }

    /// Whether an operation gives the node up that it has tried to reach for so long.
    pub(crate) fn gives_up(&self, node: NodeNo, tried_for: Duration) -> bool {
        tried_for >= MOMENT && self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_in_vain_and_the_next_ones_for_a_moment_until_the_node_is_back() {
        let (away, node) = (Away::default(), NodeNo(3));
        assert!(!away.gives_up(node, Duration::from_secs(29)), "the first waits as long as it may");
        away.waited_in_vain(node);
        assert!(!away.gives_up(node, MOMENT / 2));
        assert!(away.gives_up(node, MOMENT));
        assert!(!away.gives_up(NodeNo(4), MOMENT), "another node");
        away.is_reached(node);
        assert!(!away.gives_up(node, Duration::from_secs(29)));
    }
}
