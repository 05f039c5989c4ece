//! Where new files go: here, or to another node while this node's disk is nearly full.

use crate::handles::lock;
use crate::node::NamespaceNode;
use crate::objects::ObjectName;
use std::sync::atomic::Ordering;
use zazen_namespace::service::{NodeSpace, namespace_fn};
use zazen_namespace::{Errno, NodeNo};

/// A disk with less left, or with less than a 16th of it, is nearly full.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// The part of a small disk: one of so many.
const PART: u64 = 16;

/// Bytes that a disk of `bytes` has free while new files stay on it.
pub fn free_bytes_min(bytes: u64) -> u64 {
    (bytes / PART).min(FREE_BYTES_MIN)
}

/// Whether new files shall go elsewhere. One that has twice as much left is no such disk again: new
/// files do not jump to and fro.
fn is_tight(space: &NodeSpace, factor: u64) -> bool {
    space.bytes_free < free_bytes_min(space.bytes).saturating_mul(factor)
}

impl NamespaceNode {
    /// The node that gets the bytes of new files; `None` for this one.
    pub(crate) fn place(&self) -> Option<NodeNo> {
        let place = self.waiting.place.load(Ordering::Relaxed);
        place.checked_sub(1).and_then(|node| u32::try_from(node).ok()).map(NodeNo)
    }

    /// Looks at the disks. If this one is nearly full and others are not, the one with the most
    /// left gets new files.
    pub(crate) fn choose_place(&self) {
        let _one = lock(&self.leave.choosing);
        let Some(own) = self.own_space() else { return };
        let before = self.place();
        let leaves = self.leaves();
        let tight = leaves || is_tight(&own, if before.is_some() { 2 } else { 1 });
        let is_other = |space: &NodeSpace| space.node != own.node && self.stays(space.node);
        let takes = |space: &NodeSpace| is_other(space) && (leaves || !is_tight(space, 2));
        let others = self.spaces().into_iter().filter(takes);
        let chosen = others.max_by_key(|space| (space.bytes_free, space.node)).filter(|_| tight);
        // A node that leaves takes no new files back because others do not answer just now.
        let place = chosen.map(|space| space.node).or_else(|| before.filter(|_| leaves));
        if place.is_some() != before.is_some() {
            match place {
                Some(node) if leaves => {
                    tracing::info!("namespace: new files of this node go to node {node}");
                }
                Some(node) => tracing::warn!(
                    "namespace: {} bytes are left on this node's disk: new files go to other nodes, \
                     now to node {node}",
                    own.bytes_free
                ),
                None => tracing::info!("namespace: new files of this node stay on it again"),
            }
        }
        self.waiting.place.store(place.map_or(0, |node| u64::from(node.0) + 1), Ordering::Relaxed);
    }

    /// Has the holder make the object of a file without bytes.
    pub(crate) fn make_there(&self, holder: NodeNo, name: ObjectName) -> Result<(), Errno> {
        let address = self.address(holder).ok_or(Errno::EIO)?;
        self.there(&address, &name.call(namespace_fn::MAKE, 0, 0, 0), &[]).map(drop)
    }

    /// Another node has a new file here. The metadata must say so: an object that was lost is never
    /// made anew.
    pub(crate) fn make_for_other(&self, name: ObjectName) -> Result<(), Errno> {
        let (me, _) = self.joined_soon()?;
        let attributes = self.attributes(name.id)?;
        let place = attributes.place.ok_or(Errno::ESTALE)?;
        if (place.holder, place.generation) != (me, name.generation) {
            return Err(Errno::ESTALE);
        }
        match self.objects.open(name) {
            Err(Errno::ESTALE) if attributes.bytes == 0 => self.objects.make(name).map(drop),
            Err(Errno::ESTALE) => Err(Errno::EIO),
            opened => opened.map(drop),
        }
    }
}
