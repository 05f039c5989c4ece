//! Which node keeps a partition of the namespace: what the shipped map says, to as many nodes as a
//! map holds. Beyond, a closed form takes over: partitions fall on nodes at random and evenly, as
//! rendezvous hashing has it.

use crate::random::mix;
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::map::{Genesis, Map, NODES_MAX};
use zazen_namespace::partition::Settings;
use zazen_namespace::{PARTITIONS_MAX, PartitionNo};

/// Partitions of a namespace for so many nodes: a power of two, at least 16 for each node.
pub fn partitions_of(nodes: u32) -> u32 {
    let wanted = u64::from(nodes) * 16;
    wanted.next_power_of_two().min(u64::from(PARTITIONS_MAX)) as u32
}

/// Who keeps what.
pub struct Keepers {
    nodes: u32,
    /// The shipped map, without its partitions: each is computed when somebody asks.
    map: Option<Map>,
    known: BTreeMap<u32, u32>,
}

impl Keepers {
    /// The keepers of a new namespace of `nodes` nodes.
    pub fn new(nodes: u32, settings: &Settings) -> Result<Keepers> {
        let map = match nodes as usize <= NODES_MAX {
            true => Some(map(nodes, settings)?),
            false => None,
        };
        Ok(Keepers { nodes, map, known: BTreeMap::new() })
    }

    /// Whether the shipped map decides.
    pub fn is_shipped(&self) -> bool {
        self.map.is_some()
    }

    /// The node, counted from 0, that answers for a partition.
    pub fn primary(&mut self, partition: PartitionNo) -> u32 {
        let Some(map) = &self.map else {
            return ((u128::from(mix(u64::from(partition.0))) * u128::from(self.nodes)) >> 64) as u32;
        };
        let compute = || map.wanted(partition).first().map_or(0, |node| node.0.saturating_sub(1));
        *self.known.entry(partition.0).or_insert_with(compute)
    }
}

fn map(nodes: u32, settings: &Settings) -> Result<Map> {
    let genesis = Genesis {
        namespace: 1,
        settings: Settings { partitions: 1, ..settings.clone() },
        replicas: 1,
        synchronous: 0,
        addresses: vec![String::new(); nodes as usize],
        stewards: Genesis::stewards_of(nodes as usize),
    };
    genesis.map().map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions of the fullest node over the mean, and of the emptiest.
    fn loads(nodes: u32, mut primary: impl FnMut(PartitionNo) -> u32) -> (f64, f64) {
        let partitions = partitions_of(nodes);
        let mut load = vec![0_u32; nodes as usize];
        (0..partitions).for_each(|number| load[primary(PartitionNo(number)) as usize] += 1);
        let mean = f64::from(partitions) / f64::from(nodes);
        let part = |load: Option<&u32>| f64::from(*load.unwrap()) / mean;
        (part(load.iter().max()), part(load.iter().min()))
    }

    /// The closed form loads nodes as unevenly as the shipped map: both are even draws.
    #[test]
    fn the_closed_form_is_as_uneven_as_the_map() {
        let settings = Settings { partitions: partitions_of(512), ..Settings::default() };
        let mut shipped = Keepers::new(512, &settings).unwrap();
        assert!(shipped.is_shipped());
        let mut closed = Keepers { nodes: 512, map: None, known: BTreeMap::new() };
        let (shipped, closed) = (loads(512, |no| shipped.primary(no)), loads(512, |no| closed.primary(no)));
        for (one, other) in [(shipped.0, closed.0), (shipped.1 + 1.0, closed.1 + 1.0)] {
            assert!((one / other - 1.0).abs() < 0.25, "{shipped:?} {closed:?}");
        }
        assert!(!Keepers::new(2_000_376, &settings).unwrap().is_shipped());
    }

    #[test]
    fn partitions_are_a_power_of_two() {
        assert_eq!([1, 3, 64, 2_000_376].map(partitions_of), [16, 64, 1024, PARTITIONS_MAX]);
    }
}
