//! What the kernel knows of the tree: inodes by number, and the names that lead to them.
//!
//! A far inode is found by a name in its directory, as the last lookup found it. Directories also
//! have a description of their own for a while, so that a path of many names takes no call for
//! each; the ones that were used longest ago are given up.
//!
//! Invariants: a number means the same far inode until the kernel has forgotten it. A name leads to
//! one number.

use super::far::{Description, Identity};
use crate::tree::{Name, Node, ROOT};
use std::collections::HashMap;
use std::sync::Arc;

/// Names of one inode that are remembered.
const NAMES_MAX: usize = 8;
/// Directories that keep a description.
const KEPT_MAX: usize = 128;

/// An inode that the kernel knows.
#[derive(Default)]
struct Known {
    identity: Option<Identity>,
    lookups: u64,
    /// The last is the newest.
    names: Vec<(Node, Name)>,
    kept: Option<Arc<Description>>,
    /// When `kept` was used last.
    used: u64,
}

/// All inodes that the kernel knows.
#[derive(Default)]
pub(super) struct Nodes {
    /// The device of the root directory.
    device: u64,
    known: HashMap<Node, Known>,
    numbers: HashMap<Identity, Node>,
    names: HashMap<(Node, Name), Node>,
    kept: usize,
    clock: u64,
}

impl Nodes {
    /// Knows the root only.
    pub(super) fn new(root: Identity) -> Nodes {
        let mut nodes = Nodes { device: root.device, ..Nodes::default() };
        nodes.known.insert(ROOT, Known { identity: Some(root), lookups: 1, ..Known::default() });
        nodes.numbers.insert(root, ROOT);
        nodes
    }

    /// The number that an inode of `device` has if nobody else has it.
    pub(super) fn usual(&self, device: u64, inode: u64) -> Node {
        let number = if device == self.device {
            inode
        } else {
            // Other file systems below the root: apart from the root's own numbers.
            (inode ^ device.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1 << 62
        };
        if number <= ROOT { number | 1 << 61 } else { number }
    }

    /// The number of an inode, the same as long as the kernel knows it.
    pub(super) fn number(&self, identity: Identity) -> Node {
        if let Some(number) = self.numbers.get(&identity) {
            return *number;
        }
        let mut number = self.usual(identity.device, identity.inode);
        while self.known.contains_key(&number) {
            number = number.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1) | 1 << 60;
        }
        number
    }

    /// A lookup of `name` found this inode. Returns its number.
    #[must_use]
    pub(super) fn enter(&mut self, parent: Node, name: &Name, identity: Identity) -> Node {
        let node = self.number(identity);
        self.numbers.insert(identity, node);
        let known = self.known.entry(node).or_default();
        known.identity = Some(identity);
        known.lookups += 1;
        self.name(node, parent, name);
        node
    }

    /// `name` leads to the inode from now on.
    fn name(&mut self, node: Node, parent: Node, name: &Name) {
        let key = (parent, name.clone());
        if node == ROOT {
            return;
        }
        match self.names.insert(key.clone(), node) {
            Some(old) if old != node => self.unname(old, &key),
            _ => {}
        }
        if let Some(known) = self.known.get_mut(&node) {
            known.names.retain(|other| *other != key);
            known.names.push(key);
            if known.names.len() > NAMES_MAX {
                let oldest = known.names.remove(0);
                self.names.remove(&oldest);
            }
        }
    }

    fn unname(&mut self, node: Node, key: &(Node, Name)) {
        if let Some(known) = self.known.get_mut(&node) {
            known.names.retain(|name| name != key);
        }
    }

    /// The name is gone.
    pub(super) fn remove(&mut self, parent: Node, name: &Name) -> Option<Node> {
        let key = (parent, name.clone());
        let node = self.names.remove(&key)?;
        self.unname(node, &key);
        Some(node)
    }

    /// The inode of `name` has another name now; `exchange`: and the other's inode this one.
    pub(super) fn rename(
        &mut self,
        (parent, name): (Node, &Name),
        (new_parent, new_name): (Node, &Name),
        exchange: bool,
    ) {
        let moved = self.remove(parent, name);
        let other = self.remove(new_parent, new_name);
        if let Some(moved) = moved {
            self.name(moved, new_parent, new_name);
        }
        if let (Some(other), true) = (other, exchange) {
            self.name(other, parent, name);
        }
    }

    /// Ends `count` lookups. Returns what is no longer needed, to be dropped without a lock.
    #[must_use]
    pub(super) fn forget(&mut self, node: Node, count: u64) -> Option<Arc<Description>> {
        let known = self.known.get_mut(&node)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 || node == ROOT {
            return None;
        }
        let known = self.known.remove(&node)?;
        for name in &known.names {
            self.names.remove(name);
        }
        if let Some(identity) = known.identity {
            self.numbers.remove(&identity);
        }
        self.kept -= usize::from(known.kept.is_some());
        known.kept
    }

    /// Which inode it is; `None` if the kernel does not know it any more.
    pub(super) fn identity(&self, node: Node) -> Option<Identity> {
        self.known.get(&node)?.identity
    }

    /// The newest name of an inode.
    pub(super) fn name_of(&self, node: Node) -> Option<(Node, Name)> {
        self.known.get(&node)?.names.last().cloned()
    }

    /// The description that a directory keeps.
    pub(super) fn kept(&mut self, node: Node) -> Option<Arc<Description>> {
        self.clock += 1;
        let known = self.known.get_mut(&node)?;
        known.used = self.clock;
        known.kept.clone()
    }

    /// Keeps a directory's description. Returns what it replaces.
    #[must_use]
    pub(super) fn keep(&mut self, node: Node, description: Arc<Description>) -> Vec<Arc<Description>> {
        let mut dropped = Vec::new();
        self.clock += 1;
        if let Some(known) = self.known.get_mut(&node) {
            known.used = self.clock;
            match known.kept.replace(description) {
                Some(old) => dropped.push(old),
                None => self.kept += 1,
            }
        }
        if self.kept > KEPT_MAX {
            dropped.extend(self.give_up(KEPT_MAX / 2));
        }
        dropped
    }

    /// Gives up the descriptions that were used longest ago, until at most `left` are kept.
    #[must_use]
    pub(super) fn give_up(&mut self, left: usize) -> Vec<Arc<Description>> {
        let mut kept: Vec<(u64, Node)> = self
            .known
            .iter()
            .filter(|(_, known)| known.kept.is_some())
            .map(|(node, known)| (known.used, *node))
            .collect();
        kept.sort_unstable();
        let surplus = kept.len().saturating_sub(left);
        let dropped: Vec<_> = kept[..surplus]
            .iter()
            .filter_map(|(_, node)| self.known.get_mut(node).and_then(|known| known.kept.take()))
            .collect();
        self.kept -= dropped.len();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_forward_api::structures::PxStat;

    fn identity(inode: u64, born: i64) -> Identity {
        let mask = libc::STATX_BTIME;
        Identity::of(&PxStat {
            ino: inode,
            seconds: [0, born, 0, 0],
            mask,
            mode: 0o100_644,
            ..PxStat::default()
        })
    }

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_number_stays_and_a_used_one_is_not_given_again() {
        let mut nodes = Nodes::new(identity(2, 0));
        let first = nodes.enter(ROOT, &name("a"), identity(7, 1));
        assert_eq!(first, 7);
        assert_eq!(nodes.enter(ROOT, &name("b"), identity(7, 1)), first, "a hard link");
        let second = nodes.enter(ROOT, &name("c"), identity(7, 2));
        assert_ne!(second, first, "a later inode with the same number");
        assert!(nodes.forget(first, 1).is_none());
        assert_eq!(nodes.identity(first), Some(identity(7, 1)), "one lookup is left");
        assert!(nodes.forget(first, 1).is_none());
        assert_eq!(nodes.identity(first), None);
        assert_eq!(nodes.name_of(first), None);
        assert_eq!(nodes.enter(ROOT, &name("c"), identity(7, 2)), second);
        assert_eq!(nodes.enter(ROOT, &name("up"), identity(2, 0)), ROOT);
        assert_eq!(nodes.name_of(ROOT), None, "the root has no name");
        assert!(nodes.forget(ROOT, u64::MAX).is_none());
        assert!(nodes.identity(ROOT).is_some());
    }

    #[test]
    fn names_follow_renames_links_and_removals() {
        let mut nodes = Nodes::new(identity(2, 0));
        let (a, b) = (name("a"), name("b"));
        let (first, second) = (nodes.enter(ROOT, &a, identity(7, 0)), nodes.enter(ROOT, &b, identity(8, 0)));
        nodes.rename((ROOT, &a), (ROOT, &b), true);
        assert_eq!(
            (nodes.name_of(first), nodes.name_of(second)),
            (Some((ROOT, b.clone())), Some((ROOT, a.clone())))
        );
        nodes.rename((ROOT, &a), (ROOT, &b), false);
        assert_eq!((nodes.name_of(first), nodes.name_of(second)), (None, Some((ROOT, b.clone()))));
        assert_eq!(nodes.enter(5, &a, identity(8, 0)), second);
        assert_eq!(nodes.remove(5, &a), Some(second));
        assert_eq!(nodes.name_of(second), Some((ROOT, b.clone())), "the other name is left");
        let third = nodes.enter(ROOT, &b, identity(9, 0));
        assert_eq!((nodes.name_of(second), nodes.name_of(third)), (None, Some((ROOT, b))));
    }

    #[test]
    fn other_file_systems_have_numbers_of_their_own() {
        let nodes = Nodes::new(identity(2, 0));
        assert_eq!(nodes.usual(0, 77), 77);
        assert_ne!(nodes.usual(9, 77), 77);
        for (device, inode) in [(0, 0), (0, 1), (9, 0)] {
            assert!(nodes.usual(device, inode) > ROOT);
        }
    }
}
