//! Moves files to nodes with more space, when an operator asks for it.
//!
//! A move is a copy that takes over: it counts only if nobody has the file open, and if nothing of
//! it changed since the first byte was read. Until then all reads go to the old holder.

use crate::copies::{END, END_BYTES_PER_S};
use crate::data::Tries;
use crate::driver::wall_ns;
use crate::handles::lock;
use crate::lease::is_only_user;
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName};
use crate::route::root;
use crate::waiting::Balancing;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::operation::{Copied, Operation, TakeOver};
use zazen_namespace::service::{Balance, Balanced, NodeSpace, namespace_fn};
use zazen_namespace::{Attributes, Errno, NodeNo};
use zazen_wire::Message;

/// How long another node may take to answer.
const THERE: Duration = Duration::from_secs(10);
/// How long one pass works.
const PASS: Duration = Duration::from_secs(1);
/// Disks whose fill differs by less than so many hundredths are equally full.
const SLACK: u64 = 3;

/// How full a disk is, in hundredths.
fn fill(space: &NodeSpace) -> u64 {
    let used = u128::from(space.bytes.saturating_sub(space.bytes_free));
    u64::try_from(used * 100 / u128::from(space.bytes.max(1))).unwrap_or(100)
}

/// How full all disks are together, in hundredths.
fn mean(spaces: &[NodeSpace]) -> u64 {
    let bytes = spaces.iter().map(|space| space.bytes).sum();
    let bytes_free = spaces.iter().map(|space| space.bytes_free).sum();
    fill(&NodeSpace { node: NodeNo(0), bytes, bytes_free, inodes: 0, inodes_free: 0 })
}

/// The disks as they are after files went to other nodes. What a node told of its space may be
/// older than the files that it got since: without this, too many files would go there, and some
/// come back.
fn less_what_was_given(
    mut spaces: Vec<NodeSpace>,
    begun: &[NodeSpace],
    given: &BTreeMap<NodeNo, u64>,
) -> Vec<NodeSpace> {
    for space in &mut spaces {
        let before = begun.iter().find(|before| before.node == space.node);
        if let (Some(bytes), Some(before)) = (given.get(&space.node), before) {
            space.bytes_free = space.bytes_free.min(before.bytes_free.saturating_sub(*bytes));
        }
    }
    spaces
}

impl NamespaceNode {
    /// Starts, stops or asks after the work, here or on another node.
    pub(crate) fn balance(&self, asked: &Balance) -> Result<Balanced> {
        let (me, _) = self.identity()?;
        if let Some(node) = asked.node.filter(|node| *node != me) {
            let address = self.address(node).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("the namespace has no node {node}"))
            })?;
            let ask = Balance { node: None, ..asked.clone() }.encode();
            return Balanced::decode(
                &self.links.call(&address, namespace_fn::BALANCE, &ask, &[], THERE)?.payload,
            );
        }
        let begun = self.spaces();
        let mut balance = lock(&self.waiting.balance);
        match asked.run {
            Some(true) => {
                let done = Balanced { running: true, ..Balanced::default() };
                let (bytes_per_s, age_s) = (asked.bytes_per_s, asked.age_s);
                *balance = Balancing { done, bytes_per_s, age_s, begun, ..Balancing::default() };
            }
            Some(false) => balance.done.running = false,
            None => {}
        }
        Ok(balance.done.clone())
    }

    /// The node that a file of `bytes` is to go to: the emptiest, if this one is fuller than all
    /// together and stays fuller than that one.
    fn balance_target(&self, me: NodeNo, bytes: u64) -> Option<(NodeNo, String)> {
        let spaces = {
            let balance = lock(&self.waiting.balance);
            less_what_was_given(self.spaces(), &balance.begun, &balance.given)
        };
        let own = spaces.iter().find(|space| space.node == me)?;
        let others = spaces.iter().filter(|space| space.node != me && self.stays(space.node));
        let other = others.min_by_key(|space| (fill(space), space.node))?;
        let after = NodeSpace { bytes_free: other.bytes_free.saturating_sub(bytes), ..other.clone() };
        let helps = fill(own) > mean(&spaces) + SLACK && fill(&after) + SLACK < fill(own);
        let address = self.address(other.node).filter(|_| helps)?;
        Some((other.node, address))
    }

    /// Moves some files, if that was asked for.
    pub(crate) fn balance_some(&self) {
        let Balancing { done, folder, age_s, .. } = lock(&self.waiting.balance).clone();
        let Ok((me, _)) = self.identity() else { return };
        if !done.running {
            return;
        }
        let until = Instant::now() + PASS;
        let mut folder = folder;
        while Instant::now() < until {
            let listed = self.objects.folder(folder).filter(|_| self.balance_target(me, 0).is_some());
            let Some(listed) = listed else {
                lock(&self.waiting.balance).done.running = false;
                return;
            };
            let names = listed.unwrap_or_else(|errno| {
                tracing::error!(
                    "namespace: folder {folder:03x} of the objects cannot be listed: {errno}; none of its \
                     files moves"
                );
                Vec::new()
            });
            let ids: Vec<_> = names.iter().map(|name| name.id).collect();
            for (name, found) in names.iter().zip(self.attributes_of(&ids)) {
                let Ok(Some(found)) = found else { continue };
                let age_ns = wall_ns().saturating_sub(found.modified_ns);
                let is_old = age_ns >= i64::try_from(age_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
                if found.bytes == 0 || !is_old {
                    continue;
                }
                let Some((node, address)) = self.balance_target(me, found.bytes) else { continue };
                if found.place.as_ref().is_some_and(|place| place.copies.contains(&node)) {
                    continue;
                }
                let moved = self.move_to(me, *name, &found, node, &address, &|bytes| self.pace(bytes));
                let mut balance = lock(&self.waiting.balance);
                match moved {
                    Ok(true) => {
                        balance.done.files += 1;
                        balance.done.bytes += found.bytes;
                        *balance.given.entry(node).or_default() += found.bytes;
                    }
                    Ok(false) => {}
                    Err(errno) => {
                        tracing::debug!("namespace: inode {} stays here: {errno}", name.id);
                        balance.done.left += 1;
                    }
                }
                if !balance.done.running || self.stopping.load(Ordering::Relaxed) {
                    return;
                }
            }
            folder += 1;
            lock(&self.waiting.balance).folder = folder;
        }
    }

    /// Gives a file to a node, which may have a copy already. False if it is not this node's to
    /// give. `paced` is told how many bytes went, and says whether to go on.
    pub(crate) fn move_to(
        &self,
        me: NodeNo,
        name: ObjectName,
        found: &Attributes,
        node: NodeNo,
        address: &str,
        paced: &dyn Fn(usize) -> bool,
    ) -> std::result::Result<bool, Errno> {
        let Some(place) = &found.place else { return Ok(false) };
        if (place.holder, place.generation) != (me, name.generation) {
            return Ok(false);
        }
        if place.writing {
            return Err(Errno::EBUSY);
        }
        let object = self.objects.open(name)?;
        if self.seals.get(name, &objects::stat(&object)?).is_none() {
            self.waiting.note(name, &objects::stat(&object)?);
            return Err(Errno::EAGAIN);
        }
        // A mapping outlives the close: what is stored through it later would be lost.
        let before = objects::stat(&object)?;
        if !is_only_user(&object) {
            return Err(Errno::EBUSY);
        }
        let has_copy = place.copies.contains(&node);
        if !has_copy {
            self.send_copy(name, &object, address, paced)?;
        }
        let within = END + Duration::from_secs(found.bytes / END_BYTES_PER_S);
        let take = || {
            let call = name.call(namespace_fn::TAKE, 0, 0, 0);
            self.there_within(address, &call, &[], within, Tries::Many).map(drop)
        };
        let copied = |copies: Vec<NodeNo>| {
            let (id, generation, version) = (name.id, name.generation, found.version);
            Operation::Copied(Copied { id, generation, version, copies, more: None })
        };
        let others = place.copies.iter().copied().filter(|copy| *copy != node);
        self.route_one(root(), copied(others.chain([node]).collect()))?;
        if !is_only_user(&object) || objects::stat(&object)? != before {
            self.route_one(root(), copied(place.copies.clone())).ok();
            return Err(Errno::EBUSY);
        }
        let mut taken = take();
        // The copy that it had is not whole.
        if has_copy && matches!(taken, Err(Errno::EIO | Errno::EAGAIN | Errno::ESTALE)) {
            taken = self.send_copy(name, &object, address, paced).and_then(|()| {
                let is_same = is_only_user(&object) && objects::stat(&object)? == before;
                if is_same { take() } else { Err(Errno::EBUSY) }
            });
        }
        let now = self.attributes(name.id)?;
        if now.place.is_some_and(|now| now.holder == me) {
            // Somebody opened it. The copy is not kept: nobody asked for one.
            self.route_one(root(), copied(place.copies.clone())).ok();
            return Err(taken.err().unwrap_or(Errno::EBUSY));
        }
        // Nobody had it open, and whoever opens it now gets the new holder.
        self.seals.remove(name);
        self.objects.remove(name)?;
        Ok(true)
    }

    /// Waits as the rate says. Whether to go on.
    fn pace(&self, bytes: usize) -> bool {
        let (running, rate) = {
            let balance = lock(&self.waiting.balance);
            (balance.done.running, balance.bytes_per_s)
        };
        if rate > 0 {
            std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate as f64));
        }
        running && !self.stopping.load(Ordering::Relaxed)
    }

    /// The holder gives a file away to this node, which has a copy.
    pub(crate) fn take_idle(&self, name: ObjectName) -> std::result::Result<(), Errno> {
        // The holder removes its bytes then. The copy may be old, and the disk a bad one.
        let object = self.objects.open(name)?;
        let verified = self.seals.verify(name, &object, 0, || !self.stopping.load(Ordering::Relaxed))?;
        if !verified.sealed || verified.next.is_some() {
            return Err(Errno::EAGAIN);
        }
        if self.seals.is_damaged(name) {
            return Err(Errno::EIO);
        }
        let _telling = self.telling(name.id);
        let take = TakeOver { id: name.id, generation: name.generation, idle: true };
        self.route_one(root(), Operation::TakeOver(take)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_are_hundredths_and_empty_disks_count_as_empty() {
        let space =
            |bytes, bytes_free| NodeSpace { node: NodeNo(1), bytes, bytes_free, inodes: 0, inodes_free: 0 };
        assert_eq!(fill(&space(1000, 250)), 75);
        assert_eq!(fill(&space(0, 0)), 0);
        assert_eq!(fill(&space(u64::MAX, 0)), 100);
        assert_eq!(mean(&[space(1000, 0), space(3000, 3000)]), 25);
    }

    #[test]
    fn what_went_to_a_node_counts_before_the_node_tells_it() {
        let free = |node, bytes_free| NodeSpace {
            node: NodeNo(node),
            bytes: 1000,
            bytes_free,
            inodes: 0,
            inodes_free: 0,
        };
        let begun = [free(1, 100), free(2, 900), free(3, 900)];
        let given = BTreeMap::from([(NodeNo(2), 300)]);
        let now = |two| {
            let told = vec![free(1, 400), free(2, two), free(3, 900)];
            let spaces = less_what_was_given(told, &begun, &given);
            spaces.iter().map(|space| space.bytes_free).collect::<Vec<_>>()
        };
        assert_eq!(now(900), [400, 600, 900], "it has not told yet");
        assert_eq!(now(600), [400, 600, 900]);
        assert_eq!(now(500), [400, 500, 900], "somebody else wrote there too");
    }
}
