//! The map: which nodes there are, and which of them keep each partition.
//!
//! Always true of a map: a partition's backups have every record that its primary acknowledged, so
//! each of them may become the primary. The stewards alone change a map ([`Change`]), one change
//! after the other, and each change has a larger epoch. Everything here is integers: nodes agree on
//! what [`Map::wanted`] says.

mod change;

pub use change::{Appoint, Change, Enter, Keep, Leave, Stop};

use crate::partition::Settings;
use crate::{Epoch, Incarnation, NodeNo, PARTITIONS_MAX, PartitionNo};
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::field::{Field, List, Nested, Text};

/// The most nodes that a map holds.
pub const NODES_MAX: usize = 1 << 16;
/// The most stewards.
pub const STEWARDS_MAX: usize = 5;
/// The largest weight of a node.
pub const WEIGHT_MAX: u8 = 16;
/// The epoch of a new namespace.
pub const EPOCH_FIRST: Epoch = Epoch(1);

zazen_wire::messages! {
    /// Who keeps what, as of an epoch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Map {
        /// The namespace; 0 for a map that is not known yet.
        namespace: u128,
        /// Grows with each change.
        epoch: Epoch,
        /// How many nodes shall keep a partition, its primary among them.
        replicas: u8,
        /// How many backups shall have a record before its change is acknowledged.
        synchronous: u8,
        /// The nodes that agree on the map.
        stewards: Vec<NodeNo> = List<NodeNo>,
        /// All nodes that ever were, by number, from 1 on.
        nodes: Vec<Member> = List<Nested<Member>>,
        /// Who keeps each partition.
        partitions: Vec<Keepers> = List<Nested<Keepers>>,
        /// What all partitions agree on.
        settings: Settings = Nested<Settings>,
    }

    /// A node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Member {
        /// Its number.
        node: NodeNo,
        /// What it drew when its disk was first used; 0 until it comes for the first time. A node
        /// whose disk is replaced is another node.
        key: u128,
        /// Its present or last life; 0 until it comes for the first time.
        incarnation: Incarnation,
        /// Where its peers reach it.
        address: String = Text<PATH_BYTES_MAX>,
        /// Its share of partitions, from 1 to [`WEIGHT_MAX`], relative to others'.
        weight: u8,
        /// Whether it takes part.
        state: State,
    }

    /// Who keeps a partition.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Keepers {
        /// The epoch since which this holds.
        epoch: Epoch,
        /// The one node that answers.
        primary: NodeNo,
        /// Nodes that have all that was acknowledged. The first becomes the primary when the
        /// primary is lost.
        backups: Vec<NodeNo> = List<NodeNo>,
    }
}

/// Whether a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// It takes part.
    Up = 1,
    /// Its lease ended. It comes back by a new life.
    Down = 2,
    /// It takes part, and shall keep nothing.
    Leaving = 3,
    /// It is gone for good.
    Gone = 4,
}

impl Field for State {
    type Value = State;
    const BYTES_MIN: usize = 1;
    fn write(value: &State, writer: &mut zazen_wire::codec::Writer) {
        writer.u8(*value as u8);
    }
    fn read(reader: &mut zazen_wire::codec::Reader<'_>) -> Result<State> {
        Ok(match reader.u8()? {
            1 => State::Up,
            2 => State::Down,
            3 => State::Leaving,
            4 => State::Gone,
            other => return Err(reader.malformed(format_args!("state {other} of a node"))),
        })
    }
}

/// A new namespace, as its maker wants it.
#[derive(Clone, Debug)]
pub struct Genesis {
    /// Drawn at random.
    pub namespace: u128,
    /// What all partitions agree on, their number among it: a power of two, at least 16 for each
    /// node that may come.
    pub settings: Settings,
    /// How many nodes shall keep a partition.
    pub replicas: u8,
    /// How many backups shall have a record before its change is acknowledged; at most
    /// `replicas - 1`. 1 unless there is a reason.
    pub synchronous: u8,
    /// Addresses of the first nodes, which are numbered from 1 on.
    pub addresses: Vec<String>,
    /// How many of them are stewards: 1, 3 or 5. With one, the namespace stops when that node is
    /// lost; 3 survive the loss of one, 5 of two.
    pub stewards: u8,
}

impl Genesis {
    /// How many of `nodes` nodes should be stewards: an odd number. Of two nodes, one: with two
    /// stewards the loss of either would stop the namespace.
    pub fn stewards_of(nodes: usize) -> u8 {
        match nodes {
            0..=2 => 1,
            3..=4 => 3,
            _ => 5,
        }
    }

    /// The first map. `Config` for numbers that do not fit.
    pub fn map(&self) -> Result<Map> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Config, why));
        let (nodes, partitions) = (self.addresses.len(), self.settings.partitions);
        if !partitions.is_power_of_two() || partitions > PARTITIONS_MAX {
            return refuse(format!("{} partitions: not a power of two up to {PARTITIONS_MAX}", partitions));
        }
        if self.namespace == 0 || self.replicas == 0 || self.synchronous >= self.replicas.max(2) {
            return refuse(format!(
                "{} replicas with {} synchronous backups, namespace {:x}",
                self.replicas, self.synchronous, self.namespace
            ));
        }
        if nodes == 0
            || nodes > NODES_MAX
            || self.stewards.is_multiple_of(2)
            || usize::from(self.stewards) > nodes
        {
            return refuse(format!("{} stewards of {nodes} nodes: not an odd number of them", self.stewards));
        }
        let member = |(at, address): (usize, &String)| Member {
            node: NodeNo(at as u32 + 1),
            key: 0,
            incarnation: Incarnation(0),
            address: address.clone(),
            weight: 1,
            state: State::Up,
        };
        let mut map = Map {
            namespace: self.namespace,
            epoch: EPOCH_FIRST,
            replicas: self.replicas,
            synchronous: self.synchronous,
            stewards: (1..=u32::from(self.stewards)).map(NodeNo).collect(),
            nodes: self.addresses.iter().enumerate().map(member).collect(),
            partitions: Vec::new(),
            settings: self.settings.clone(),
        };
        map.partitions = (0..partitions)
            .map(|number| {
                let primary = map.wanted(PartitionNo(number)).first().copied().unwrap_or_default();
                Keepers { epoch: EPOCH_FIRST, primary, backups: Vec::new() }
            })
            .collect();
        Ok(map)
    }
}

impl Map {
    /// The map of a node that knows none yet.
    pub fn unknown() -> Map {
        Map {
            namespace: 0,
            epoch: Epoch(0),
            replicas: 1,
            synchronous: 0,
            stewards: Vec::new(),
            nodes: Vec::new(),
            partitions: Vec::new(),
            settings: Settings::default(),
        }
    }

    /// The node with this number.
    pub fn member(&self, node: NodeNo) -> Option<&Member> {
        self.nodes.get((node.0 as usize).checked_sub(1)?)
    }

    /// The node with this key.
    pub fn by_key(&self, key: u128) -> Option<&Member> {
        self.nodes.iter().find(|member| member.key == key && key != 0)
    }

    /// Who keeps a partition.
    pub fn keepers(&self, partition: PartitionNo) -> Option<&Keepers> {
        self.partitions.get(partition.0 as usize)
    }

    /// The node that answers for a partition.
    pub fn primary(&self, partition: PartitionNo) -> Option<&Member> {
        self.member(self.keepers(partition)?.primary)
    }

    /// Whether `node` lives its `incarnation` and takes part.
    pub fn lives(&self, node: NodeNo, incarnation: Incarnation) -> bool {
        self.member(node).is_some_and(|member| member.incarnation == incarnation && member.is_in())
    }

    /// Whom rendezvous hashing wants for a partition: its primary, then its backups. Of a node that
    /// comes or goes, only its own share of partitions moves.
    pub fn wanted(&self, partition: PartitionNo) -> Vec<NodeNo> {
        let mut scored: Vec<(u64, NodeNo)> = self
            .nodes
            .iter()
            .filter(|member| member.state == State::Up)
            .map(|member| (score(partition, member), member.node))
            .collect();
        scored.sort_unstable_by(|left, right| right.cmp(left));
        scored.truncate(self.replicas.max(1).into());
        scored.into_iter().map(|(_, node)| node).collect()
    }

    /// What a map that came from outside must hold before it is used.
    pub fn check(&self) -> Result<()> {
        let is_node = |node: &NodeNo| self.member(*node).is_some();
        let numbered = self.nodes.iter().zip(1..).all(|(member, number)| member.node == NodeNo(number));
        let kept = self.partitions.iter().all(|keepers| {
            is_node(&keepers.primary) && keepers.backups.iter().all(is_node) && keepers.epoch <= self.epoch
        });
        let fits = self.nodes.len() <= NODES_MAX && self.partitions.len().is_power_of_two();
        if numbered && kept && fits && !self.stewards.is_empty() && self.stewards.iter().all(is_node) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, format!("the map of epoch {} contradicts itself", self.epoch)))
    }
}

impl Member {
    /// Whether it takes part.
    pub fn is_in(&self) -> bool {
        matches!(self.state, State::Up | State::Leaving)
    }

    /// The last of its lives that have ended, if one has.
    pub fn ended(&self) -> Option<(NodeNo, Incarnation)> {
        let last = Incarnation(self.incarnation.0.saturating_sub(u64::from(self.is_in())));
        (last.0 > 0).then_some((self.node, last))
    }
}

/// The best of as many draws as the node has weight: so the chance to be first grows with weight.
fn score(partition: PartitionNo, member: &Member) -> u64 {
    let draws = u64::from(member.weight.clamp(1, WEIGHT_MAX));
    let seed = (u64::from(partition.0) << 32) | u64::from(member.node.0);
    (0..draws).map(|draw| mix(mix(seed) ^ draw.wrapping_mul(0x9e37_79b9_7f4a_7c15))).max().unwrap_or(0)
}

/// The finalizer of SplitMix64: a permutation of 64 bits.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests;
