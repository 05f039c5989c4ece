//! Who shall keep a partition: its primary works towards what the map wants, one change at a time,
//! and has the stewards drop a backup that does not answer.

use super::parts::{Follower, Primary};
use super::{Replica, Role};
use crate::NodeNo;
use crate::map::{Change, Keep};
use crate::node::{Shared, Tables};
use crate::planted::Planted;

impl<T: Tables> Replica<T> {
    /// Does what is to be done about the partition's keepers.
    pub(crate) fn tend(&mut self, shared: &mut Shared) {
        let (partition, last) = (self.partition, self.last.index);
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(keepers) = shared.map.keepers(partition).cloned() else { return };
        if keepers.epoch != primary.epoch || !shared.may_answer() {
            primary.settled = false;
            return;
        }
        let wanted = shared.map.wanted(partition);
        self.choose_followers(&keepers.backups, &wanted, shared);
        let Role::Primary(primary) = &mut self.role else { return };

        // What was asked before can no longer happen if the other node's life has ended.
        let is_void = |change: &Change| match change {
            Change::Add(keep) | Change::Hand(keep) => !shared.map.lives(keep.node, keep.incarnation),
            _ => false,
        };
        if primary.asked.as_ref().is_some_and(|(change, _)| is_void(change)) {
            primary.asked = None;
            primary.handing = false;
            primary.followers.values_mut().for_each(|follower| follower.required = false);
        }

        let change = Self::lost(primary, &keepers.backups, shared)
            .map(|node| (node, What::Drop))
            .or_else(|| Self::next(primary, &keepers.backups, &wanted, last, shared));
        // The map wants something else before the stewards were asked: this node answers again.
        if primary.asked.is_none() && !matches!(change, Some((_, What::Hand))) {
            primary.handing = false;
        }
        let Some((node, what)) = change else {
            primary.settled = primary.asked.is_none();
            return self.ask_again(shared);
        };
        primary.settled = false;
        shared.busy.insert(partition);
        let incarnation = primary.followers.get(&node).map(|follower| follower.incarnation);
        let incarnation = incarnation.unwrap_or_default();
        let keep = Keep { partition, epoch: primary.epoch, primary: shared.me, node, incarnation };
        let change = match what {
            What::Wait => return self.ask_again(shared),
            What::Drop => Change::Drop(keep),
            What::Add => {
                let waits = !shared.has(Planted::AddWithoutWaiting);
                if let Some(follower) = primary.followers.get_mut(&node) {
                    follower.required = waits;
                }
                Change::Add(keep)
            }
            What::Hand => {
                primary.handing = true;
                if !primary.is_quiet(last) && !shared.has(Planted::AnswerWhileHanding) {
                    return;
                }
                Change::Hand(keep)
            }
        };
        if primary.asked.as_ref().is_none_or(|(asked, _)| *asked != change) {
            primary.asked = Some((change, 0));
        }
        self.ask_again(shared);
    }

    /// Asks the stewards for what was not answered in time.
    fn ask_again(&mut self, shared: &mut Shared) {
        let retry_ns = shared.config.timing.retry_ns;
        let Role::Primary(primary) = &mut self.role else { return };
        if let Some((change, asked_ns)) = &mut primary.asked {
            shared.busy.insert(self.partition);
            if *asked_ns == 0 || shared.now_ns >= *asked_ns + retry_ns {
                *asked_ns = shared.now_ns.max(1);
                shared.propose(change);
            }
        }
    }

    /// Nodes that get the records: the backups, and those that shall be.
    fn choose_followers(&mut self, backups: &[NodeNo], wanted: &[NodeNo], shared: &mut Shared) {
        let Role::Primary(primary) = &mut self.role else { return };
        let mut gone: Vec<NodeNo> = Vec::new();
        for (node, follower) in &primary.followers {
            // One that the stewards were asked to add may be a backup at any moment, whatever the
            // map wants since: nothing counts without it.
            let is_asked_for = follower.required;
            let is_chosen = is_asked_for || backups.contains(node) || wanted.contains(node);
            let lives = shared.map.lives(*node, follower.incarnation);
            if !(is_chosen && lives) {
                gone.push(*node);
            }
        }
        for node in gone {
            self.forget(node, shared);
        }
        let Role::Primary(primary) = &mut self.role else { return };
        for node in backups.iter().chain(wanted).filter(|node| **node != shared.me) {
            let Some(member) = shared.map.member(*node).filter(|member| member.incarnation.0 > 0) else {
                continue;
            };
            if member.is_in() && !primary.followers.contains_key(node) {
                primary.followers.insert(*node, Follower::new(member.incarnation));
                shared.busy.insert(self.partition);
                shared.dirty.insert(self.partition);
            }
        }
    }

    /// A backup that everything waits for, and that does not answer.
    fn lost(primary: &Primary, backups: &[NodeNo], shared: &Shared) -> Option<NodeNo> {
        let patience_ns = shared.config.timing.patience_ns;
        let is_lost = |node: &NodeNo| {
            let lacks_ns = primary.followers.get(node).and_then(|follower| follower.lacks_ns);
            lacks_ns.is_some_and(|since_ns| shared.now_ns >= since_ns + patience_ns)
        };
        let required = primary.followers.iter().filter(|(_, follower)| follower.required);
        backups.iter().chain(required.map(|(node, _)| node)).find(|node| is_lost(node)).copied()
    }

    /// The next step to the keepers that the map wants.
    fn next(
        primary: &Primary,
        backups: &[NodeNo],
        wanted: &[NodeNo],
        last: u64,
        shared: &Shared,
    ) -> Option<(NodeNo, What)> {
        // One that has just been dropped because it is silent is not taken back for what it had.
        let patience_ns = shared.config.timing.patience_ns;
        let answers =
            |one: &Follower| one.lacks_ns.is_none_or(|since_ns| shared.now_ns < since_ns + patience_ns);
        let is_ready = |node: &NodeNo| {
            let has = |one: &Follower| one.streams() && one.acked >= primary.commit.max(1);
            primary.followers.get(node).is_some_and(|one| has(one) && answers(one))
        };
        if let Some((Change::Drop(keep), _)) = &primary.asked {
            return Some((keep.node, What::Drop));
        }
        if let Some((Change::Add(keep), _)) = &primary.asked {
            return Some((keep.node, What::Add));
        }
        // The stewards may have made this change already, so this node answers no more, and asks
        // for nothing else that might end without a new epoch.
        if let Some((Change::Hand(keep), _)) = &primary.asked {
            return Some((keep.node, What::Hand));
        }
        let synchronous = usize::from(shared.map.synchronous);
        let add = |node: NodeNo| (node, if is_ready(&node) { What::Add } else { What::Wait });
        let head = wanted.first().copied().unwrap_or(shared.me);
        // The backups of the next primary, or of this one.
        let rest: Vec<NodeNo> =
            wanted.iter().copied().filter(|node| *node != head && *node != shared.me).collect();
        let right = backups.iter().filter(|node| rest.contains(node)).count();
        if head != shared.me {
            if !backups.contains(&head) {
                return Some(add(head));
            }
            let has_all = primary.followers.get(&head).is_some_and(|one| one.acked >= last);
            return Some((head, if has_all || primary.handing { What::Hand } else { What::Wait }));
        }
        if right < synchronous.min(rest.len()) {
            let missing = || rest.iter().filter(|node| !backups.contains(node)).copied();
            return missing().find(is_ready).or_else(|| missing().next()).map(add);
        }
        let spare = backups.iter().find(|node| !rest.contains(node));
        let spare = spare.or_else(|| backups.last().filter(|_| right > synchronous));
        spare.map(|node| (*node, What::Drop))
    }
}

enum What {
    Add,
    Drop,
    Hand,
    /// Something is to be done later.
    Wait,
}
