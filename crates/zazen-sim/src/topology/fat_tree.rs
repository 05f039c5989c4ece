//! The extended generalised fat tree XGFT(h; m; w) (Öhring et al., IPPS'95): level l switches have
//! m_l children, and level l - 1 switches (nodes at level 0) have w_l parents.
//!
//! A route goes up to the first level whose switch is above both nodes, and down again. The parent
//! is the one that the destination chooses (D-mod-k), so routes to one node come together, and
//! routes to different nodes spread.

use super::link::Hop;

/// A fat tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Children of a switch, by level from the leaves up.
    down: Vec<u32>,
    /// Parents of a node or a switch of the level below. Nodes have one parent.
    up: Vec<u32>,
    /// First switch of each level, and the number of switches.
    begin: Vec<u32>,
    /// First upward link of each level (of the switches below the topmost), and the number of
    /// upward links. The downward link beside upward link i is `links_up + i`.
    link_begin: Vec<u32>,
}

impl FatTree {
    /// `down` and `up` are as long as each other and not empty; `up[0]` is 1. The sizes were
    /// checked to have fewer than 2³¹ switches and links.
    pub(super) fn new(down: Vec<u32>, up: Vec<u32>) -> FatTree {
        let levels = down.len();
        // Switches of level l (from 0): the w below it times the m above it.
        let switches = |level: usize| -> u32 {
            up[..=level].iter().product::<u32>() * down[level + 1..].iter().product::<u32>()
        };
        let mut begin = vec![0];
        let mut link_begin = vec![0];
        for level in 0..levels {
            begin.push(begin[level] + switches(level));
            let parents = up.get(level + 1).copied().unwrap_or(0);
            link_begin.push(link_begin[level] + switches(level) * parents);
        }
        FatTree { down, up, begin, link_begin }
    }

    /// Children of a switch, by level from the leaves up.
    pub fn down(&self) -> &[u32] {
        &self.down
    }

    /// Parents, by level from the nodes up.
    pub fn up(&self) -> &[u32] {
        &self.up
    }

    pub(super) fn links(&self) -> u64 {
        2 * u64::from(self.links_up())
    }

    fn links_up(&self) -> u32 {
        self.link_begin.last().copied().unwrap_or(0)
    }

    pub(super) fn home(&self, node: u32) -> u32 {
        node / self.down[0]
    }

    /// A switch of level l is numbered `subtree · copies + copy`: `subtree` is the node number
    /// divided by m_1 … m_(l+1), and `copy` counts the switches that stand above the same nodes.
    pub(super) fn next(&self, router: u32, to: u32) -> Option<Hop> {
        let level = self.begin.iter().rposition(|begin| *begin <= router).unwrap_or(0);
        let copies: u32 = self.up[..=level].iter().product();
        let below: u32 = self.down[..=level].iter().product();
        let index = router - self.begin[level];
        let (subtree, copy) = (index / copies, index % copies);
        if to / below == subtree {
            if level == 0 {
                return None;
            }
            // Down: the child towards `to`; of its copies the one under this copy.
            let copies_below = copies / self.up[level];
            let child = to / (below / self.down[level]) * copies_below + copy % copies_below;
            let port = copy / copies_below;
            let link = self.links_up() + self.link_begin[level - 1] + child * self.up[level] + port;
            return Some(Hop { link, router: self.begin[level - 1] + child });
        }
        // Up: the destination's number, without what the levels below used, chooses the port.
        let ports = self.up[level + 1];
        let port = to / self.up[..=level].iter().product::<u32>() % ports;
        let link = self.link_begin[level] + index * ports + port;
        let parent = subtree / self.down[level + 1] * (copies * ports) + port * copies + copy;
        Some(Hop { link, router: self.begin[level + 1] + parent })
    }
}
