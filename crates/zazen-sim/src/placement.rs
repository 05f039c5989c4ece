//! Which node has a row of metadata. The one place that asks, so that the namespace's own placement
//! can answer here.

use crate::random::mix;

/// The node of a key's row; `replica` 0 is the first copy, and replicas lie on different nodes
/// while there are enough.
pub fn owner(key: u64, replica: u32, nodes: u32) -> u32 {
    let first = ((u128::from(mix(key)) * u128::from(nodes)) >> 64) as u32;
    if replica == 0 || nodes < 2 {
        return first;
    }
    // Replicas follow at a distance that the key chooses, so that a dead node's load spreads.
    let stride = 1 + ((u128::from(mix(key ^ 0xA5A5_5A5A)) * u128::from(nodes - 1)) >> 64) as u32;
    let after = u64::from(stride) + u64::from(replica - 1);
    ((u64::from(first) + 1 + (after - 1) % u64::from(nodes - 1)) % u64::from(nodes)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn replicas_lie_on_different_nodes_and_keys_spread() {
        let mut load = [0_u32; 10];
        for key in 0..20_000_u64 {
            let owners: BTreeSet<u32> = (0..5).map(|replica| owner(key, replica, 10)).collect();
            assert_eq!(owners.len(), 5, "key {key}");
            load[owner(key, 0, 10) as usize] += 1;
        }
        assert!(load.iter().all(|count| (1_800..2_200).contains(count)), "{load:?}");
        assert_eq!(owner(7, 3, 1), 0);
    }
}
