//! What root may name where it is nobody in particular.
//!
//! The kernel keeps names for a second, and lets root pass closed directories by names that others
//! have looked up. The daemon does not see that: it is asked for the inode. So root names only
//! inodes to which a permitted lookup of its own led. For any other the kernel hears `ESTALE`, and
//! looks up the whole path again, as root, which the daemon refuses where nobody may pass.
//!
//! A working directory has no path to look up again: the directories above it are checked instead.

use crate::tree::{Credentials, Errno, Kind, Node, Result};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_namespace::{Attributes, InodeId};

/// Inodes that are remembered. Root is led there again if they are forgotten.
const KNOWN_MAX: usize = 1 << 16;
/// Directories above a directory, at most.
const DEPTH_MAX: usize = 4096;
/// The user and the group that root is.
const NOBODY: u32 = 65_534;

/// What root was led to.
#[derive(Default)]
pub(crate) struct Squashed(Mutex<HashSet<Node>>);

/// What is asked about inodes, on behalf of root.
pub(crate) trait Asked {
    fn attributes(&self, node: Node) -> Result<Attributes>;
    /// The directory that a directory is in.
    fn parent(&self, node: Node) -> Result<Attributes>;
}

impl Squashed {
    fn known(&self) -> MutexGuard<'_, HashSet<Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permitted lookup led the caller here.
    pub(crate) fn learn(&self, who: &Credentials, node: Node) {
        if who.uid == 0 {
            let mut known = self.known();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(node);
        }
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn forget(&self, node: Node) {
        self.known().remove(&node);
    }

    /// Whether the caller may name the inode.
    pub(crate) fn vet(&self, who: &Credentials, node: Node, asked: &impl Asked) -> Result<()> {
        if who.uid != 0 || node == InodeId::ROOT.0 || self.known().contains(&node) {
            return Ok(());
        }
        if asked.attributes(node)?.kind != Kind::Directory {
            return Err(Errno::ESTALE);
        }
        let mut at = node;
        for _ in 0..DEPTH_MAX {
            if at == InodeId::ROOT.0 {
                self.learn(who, node);
                return Ok(());
            }
            let parent = asked.parent(at)?;
            if !is_open(&parent) {
                return Err(Errno::EACCES);
            }
            at = parent.id.0;
        }
        Err(Errno::EACCES)
    }
}

/// Whether nobody in particular may search the directory.
fn is_open(directory: &Attributes) -> bool {
    let shift = match () {
        () if directory.uid == NOBODY => 6,
        () if directory.gid == NOBODY => 3,
        () => 0,
    };
    (directory.mode >> shift) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Inodes by number: the kind, the mode, and the directory that a directory is in.
    struct Tree(&'static [(Node, Kind, u32, Node)], Cell<usize>);

    impl Tree {
        fn find(&self, node: Node) -> Result<&(Node, Kind, u32, Node)> {
            self.1.set(self.1.get() + 1);
            self.0.iter().find(|(number, ..)| *number == node).ok_or(Errno::ESTALE)
        }
    }

    impl Asked for Tree {
        fn attributes(&self, node: Node) -> Result<Attributes> {
            let (number, kind, mode, _) = *self.find(node)?;
            Ok(Attributes { mode, uid: 7, gid: 8, ..Attributes::new(InodeId(number), kind) })
        }

        fn parent(&self, node: Node) -> Result<Attributes> {
            self.attributes(self.find(node)?.3)
        }
    }

    fn tree() -> Tree {
        let all = &[
            (1, Kind::Directory, 0o755, 1),
            (2, Kind::Directory, 0o755, 1),
            (3, Kind::Directory, 0o700, 2),
            (4, Kind::Directory, 0o755, 3),
            (5, Kind::File, 0o666, 0),
        ];
        Tree(all, Cell::new(0))
    }

    fn user(uid: u32) -> Credentials {
        Credentials { uid, gid: uid, groups: Vec::new() }
    }

    #[test]
    fn root_names_what_it_was_led_to_and_directories_that_it_may_reach() {
        let (tree, squashed, root) = (tree(), Squashed::default(), user(0));
        let vet = |node| squashed.vet(&root, node, &tree);
        assert_eq!((vet(1), vet(2), vet(3)), (Ok(()), Ok(()), Ok(())), "what is closed has a name");
        assert_eq!(vet(4), Err(Errno::EACCES), "a working directory in a closed one");
        assert_eq!(vet(5), Err(Errno::ESTALE), "the kernel looks it up again");
        assert_eq!(vet(6), Err(Errno::ESTALE), "it is gone");
        squashed.learn(&root, 5);
        assert_eq!(vet(5), Ok(()));
        squashed.forget(5);
        assert_eq!(vet(5), Err(Errno::ESTALE));
        let asked = tree.1.get();
        assert_eq!(vet(2), Ok(()));
        assert_eq!(tree.1.get(), asked, "what is known is not asked for again");
    }

    #[test]
    fn other_users_are_the_kernels_business() {
        let (tree, squashed) = (tree(), Squashed::default());
        for node in 1..7 {
            assert_eq!(squashed.vet(&user(7), node, &tree), Ok(()));
            squashed.learn(&user(7), node);
        }
        assert_eq!(tree.1.get(), 0);
        assert_eq!(squashed.vet(&user(0), 5, &tree), Err(Errno::ESTALE), "a user led nobody else there");
    }
}
