//! The dragonfly (Kim et al., ISCA'08): p nodes at a router, a routers in a group, h global links
//! at a router, g groups. Routers of a group are all connected. Routes are minimal: to the router
//! with the link to the other group, across, and to the destination's router.
//!
//! Group i's global port k (of a·h) leads to group `(i + k + 1) mod g`; it comes in at the port
//! that leads back. With g = a·h + 1 each pair of groups has one link; with fewer groups the first
//! g - 1 ports are used.

use super::link::{Class, Hop};

/// A dragonfly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    nodes_per_router: u32,
    routers: u32,
    globals: u32,
    groups: u32,
}

impl Dragonfly {
    /// p, a, h and g; checked: none is 0, and g ≤ a·h + 1.
    pub(super) fn new([nodes_per_router, routers, globals, groups]: [u32; 4]) -> Dragonfly {
        Dragonfly { nodes_per_router, routers, globals, groups }
    }

    /// p, a, h and g.
    pub fn sizes(&self) -> [u32; 4] {
        [self.nodes_per_router, self.routers, self.globals, self.groups]
    }

    /// A router owns a local links (the one to itself is unused) and h global ones.
    pub(super) fn links(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.routers) * u64::from(self.routers + self.globals)
    }

    pub(super) fn home(&self, node: u32) -> u32 {
        node / self.nodes_per_router
    }

    pub(super) fn class(&self, link: u32) -> Class {
        if link % (self.routers + self.globals) < self.routers { Class::Fabric } else { Class::Global }
    }

    pub(super) fn next(&self, router: u32, to: u32) -> Option<Hop> {
        let goal = self.home(to);
        if router == goal {
            return None;
        }
        let (group, goal_group) = (router / self.routers, goal / self.routers);
        if group == goal_group {
            return Some(self.local(router, goal % self.routers));
        }
        let port = (goal_group + self.groups - group - 1) % self.groups;
        let gateway = port / self.globals;
        if router % self.routers != gateway {
            return Some(self.local(router, gateway));
        }
        let back = (group + self.groups - goal_group - 1) % self.groups;
        let link = router * (self.routers + self.globals) + self.routers + port % self.globals;
        Some(Hop { link, router: goal_group * self.routers + back / self.globals })
    }

    fn local(&self, router: u32, other: u32) -> Hop {
        let link = router * (self.routers + self.globals) + other;
        Hop { link, router: router - router % self.routers + other }
    }
}
