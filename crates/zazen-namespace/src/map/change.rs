//! How a map changes. Every steward makes the same map from the same changes.
//!
//! A change that is late does nothing: those of a partition name the partition's epoch, those of a
//! node its life.

use super::{Map, Member, State, WEIGHT_MAX};
use crate::tagged::tagged;
use crate::{Epoch, Incarnation, NodeNo, PartitionNo};
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_wire::field::Text;

zazen_wire::messages! {
    /// A node begins a life. What it kept in memory in an earlier life is lost, so it keeps only
    /// partitions that nobody else has.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Enter {
        /// What it drew when its disk was first used.
        key: u128,
        /// The life.
        incarnation: Incarnation,
        /// Where its peers reach it.
        address: String = Text<PATH_BYTES_MAX>,
        /// Its share of partitions.
        weight: u8,
    }

    /// The life of a node ended: its lease is over, or it said so itself.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Stop {
        /// The node.
        node: NodeNo,
        /// The life that ended.
        incarnation: Incarnation,
    }

    /// A partition's primary changes who keeps it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Keep {
        /// The partition.
        partition: PartitionNo,
        /// The epoch of its keepers that the primary knows.
        epoch: Epoch,
        /// The primary.
        primary: NodeNo,
        /// The backup.
        node: NodeNo,
        /// The backup's life.
        incarnation: Incarnation,
    }

    /// An operator wants a node to go, to stay, or to be forgotten.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Leave {
        /// The node.
        node: NodeNo,
        /// What it shall be.
        state: State,
    }
}

zazen_wire::messages! {
    /// A node becomes a steward, or is one no more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Appoint {
        /// The node.
        node: NodeNo,
        /// Whether it shall be one.
        is_one: bool,
    }
}

tagged! {
    /// A change of the map.
    Change {
        /// A node begins a life.
        Enter = 1 (Enter),
        /// A life ended.
        Stop = 2 (Stop),
        /// The backup has all that was acknowledged, and the primary waits for it from now on.
        Add = 3 (Keep),
        /// The backup does not count any more. Also ends what the primary asked for before.
        Drop = 4 (Keep),
        /// The primary, which has stopped to answer, and the backup change places.
        Hand = 5 (Keep),
        /// An operator's wish.
        Leave = 6 (Leave),
        /// One steward more, or one less.
        Appoint = 7 (Appoint),
    }
}

impl Change {
    /// The end of a life, if it is one.
    pub(crate) fn as_stop(&self) -> Option<&Stop> {
        match self {
            Change::Stop(stop) => Some(stop),
            _ => None,
        }
    }
}

impl Map {
    /// Makes the change, with a new epoch. False if there is nothing to change, or if it came late.
    pub fn change(&mut self, change: &Change) -> bool {
        let next = Epoch(self.epoch.0 + 1);
        let changed = match change {
            Change::Enter(enter) => self.enter(enter, next),
            Change::Stop(stop) => self.stop(std::slice::from_ref(stop), next),
            Change::Add(keep) => self.add(keep, next),
            Change::Drop(keep) => self.drop_backup(keep, next),
            Change::Hand(keep) => self.hand(keep, next),
            Change::Leave(leave) => self.leave(leave, next),
            Change::Appoint(appoint) => self.appoint(appoint),
        };
        if changed {
            self.epoch = next;
        }
        changed
    }

    /// The leases of all these nodes have ended, in one epoch. False if none of them was up.
    pub fn stop_all(&mut self, stops: &[Stop]) -> bool {
        let next = Epoch(self.epoch.0 + 1);
        let changed = self.stop(stops, next);
        if changed {
            self.epoch = next;
        }
        changed
    }

    fn enter(&mut self, enter: &Enter, next: Epoch) -> bool {
        if enter.key == 0 || enter.incarnation.0 == 0 {
            return false;
        }
        let known = self.nodes.iter().position(|member| member.key == enter.key);
        // A first node of a new namespace is known by its address until it comes.
        let waiting =
            || self.nodes.iter().position(|member| member.key == 0 && member.address == enter.address);
        let at = match known.or_else(waiting) {
            Some(at) => at,
            None if self.nodes.len() >= super::NODES_MAX => return false,
            None => {
                self.nodes.push(Member {
                    node: NodeNo(self.nodes.len() as u32 + 1),
                    key: enter.key,
                    incarnation: Incarnation(0),
                    address: String::new(),
                    weight: 1,
                    state: State::Up,
                });
                self.nodes.len() - 1
            }
        };
        let member = &mut self.nodes[at];
        if member.incarnation >= enter.incarnation || member.state == State::Gone {
            return false;
        }
        let (node, is_first) = (member.node, member.incarnation.0 == 0);
        member.key = enter.key;
        member.incarnation = enter.incarnation;
        member.address.clone_from(&enter.address);
        member.weight = enter.weight.clamp(1, WEIGHT_MAX);
        if member.state == State::Down {
            member.state = State::Up;
        }
        if !is_first {
            self.end_life(node, next);
            // What it alone keeps opens a new epoch, because its memory is lost.
            for keepers in self.partitions.iter_mut().filter(|keepers| keepers.primary == node) {
                keepers.epoch = next;
            }
        }
        true
    }

    fn stop(&mut self, stops: &[Stop], next: Epoch) -> bool {
        let up: Vec<NodeNo> = stops
            .iter()
            .filter(|stop| self.lives(stop.node, stop.incarnation))
            .map(|stop| stop.node)
            .collect();
        // All first: none of them takes over from another.
        for node in &up {
            self.nodes[node.0 as usize - 1].state = State::Down;
        }
        up.iter().for_each(|node| self.end_life(*node, next));
        !up.is_empty()
    }

    /// A life of a node has ended; it has begun another one, unless it is down. The node's backups
    /// take over. What it alone keeps waits for it. If all keepers of a partition are down, it is
    /// the first one's that comes back: each of them has all that was acknowledged.
    fn end_life(&mut self, node: NodeNo, next: Epoch) {
        let nodes = &self.nodes;
        let is_up = |node: &NodeNo| !matches!(nodes[node.0 as usize - 1].state, State::Down | State::Gone);
        for keepers in &mut self.partitions {
            let (primary, backups) = (&mut keepers.primary, &mut keepers.backups);
            if *primary == node {
                if let Some(at) = backups.iter().position(is_up) {
                    *primary = backups.remove(at);
                } else if !is_up(&node) || backups.is_empty() {
                    continue;
                }
                backups.retain(is_up);
            } else if let Some(at) = backups.iter().position(|backup| *backup == node) {
                if is_up(primary) {
                    backups.remove(at);
                } else if is_up(&node) {
                    *primary = node;
                    backups.retain(|backup| *backup != node && is_up(backup));
                } else {
                    continue;
                }
            } else {
                continue;
            }
            keepers.epoch = next;
        }
    }

    /// The partition's keepers, if the primary that asks knows them as they are.
    fn asked(&mut self, keep: &Keep) -> Option<&mut super::Keepers> {
        self.partitions
            .get_mut(keep.partition.0 as usize)
            .filter(|keepers| keepers.epoch == keep.epoch && keepers.primary == keep.primary)
    }

    fn add(&mut self, keep: &Keep, next: Epoch) -> bool {
        let lives = self.lives(keep.node, keep.incarnation);
        let Some(keepers) = self.asked(keep) else { return false };
        if !lives || keepers.primary == keep.node || keepers.backups.contains(&keep.node) {
            return false;
        }
        keepers.backups.push(keep.node);
        keepers.epoch = next;
        true
    }

    fn drop_backup(&mut self, keep: &Keep, next: Epoch) -> bool {
        let Some(keepers) = self.asked(keep) else { return false };
        keepers.backups.retain(|backup| *backup != keep.node);
        // Also without such a backup: an addition that is under way must not come after this.
        keepers.epoch = next;
        true
    }

    fn hand(&mut self, keep: &Keep, next: Epoch) -> bool {
        let lives = self.lives(keep.node, keep.incarnation);
        let Some(keepers) = self.asked(keep) else { return false };
        let Some(at) = keepers.backups.iter().position(|backup| *backup == keep.node && lives) else {
            return false;
        };
        keepers.backups[at] = keepers.primary;
        keepers.primary = keep.node;
        keepers.epoch = next;
        true
    }

    /// One at a time, so that a majority of the stewards before and one after share a steward.
    fn appoint(&mut self, appoint: &Appoint) -> bool {
        let node = appoint.node;
        let is_one = self.stewards.contains(&node);
        let is_up = self.member(node).is_some_and(|one| one.state == State::Up && one.incarnation.0 > 0);
        if appoint.is_one && !is_one && is_up && self.stewards.len() < super::STEWARDS_MAX {
            self.stewards.push(node);
            self.stewards.sort_unstable();
            return true;
        }
        if !appoint.is_one && is_one && self.stewards.len() > 1 {
            self.stewards.retain(|other| *other != node);
            return true;
        }
        false
    }

    fn leave(&mut self, leave: &Leave, next: Epoch) -> bool {
        let Some(member) = (leave.node.0 as usize).checked_sub(1).and_then(|at| self.nodes.get_mut(at))
        else {
            return false;
        };
        let allowed = match (member.state, leave.state) {
            (State::Up, State::Leaving) | (State::Leaving, State::Up) => true,
            (State::Down | State::Leaving, State::Gone) => {
                let keeps = |keepers: &super::Keepers| {
                    keepers.primary == leave.node || keepers.backups.contains(&leave.node)
                };
                !self.partitions.iter().any(keeps) && !self.stewards.contains(&leave.node)
            }
            _ => false,
        };
        if !allowed {
            return false;
        }
        self.nodes[leave.node.0 as usize - 1].state = leave.state;
        if leave.state == State::Gone {
            self.end_life(leave.node, next);
        }
        true
    }
}
