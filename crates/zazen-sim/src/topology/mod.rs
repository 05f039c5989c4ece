//! Topologies: which links a message crosses. Routes are computed; no table grows with the nodes.
//!
//! Node i sits at the router [`Topology::home`]. A message crosses the node's transmitting
//! interface, the links from router to router that [`Topology::next`] names, and the receiver's
//! receiving interface. Links have one direction. Routes are minimal and depend only on the place
//! and the destination, so they cannot run in circles.

mod dragonfly;
mod fat_tree;
mod link;
mod spec;
mod torus;

pub use dragonfly::Dragonfly;
pub use fat_tree::FatTree;
pub use link::{Class, Hop, Run};
pub use spec::{Shape, parse};
pub use torus::Torus;

/// A network's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All nodes at one switch that is never a bottleneck.
    Star,
    /// A k-ary n-cube with wrap-around.
    Torus(Torus),
    /// An extended generalised fat tree.
    FatTree(FatTree),
    /// Groups of routers, each pair of routers of a group and each pair of groups connected.
    Dragonfly(Dragonfly),
}

impl Topology {
    /// Links between routers.
    pub fn fabric_links(&self) -> u64 {
        match self {
            Topology::Star => 0,
            Topology::Torus(torus) => torus.links(),
            Topology::FatTree(tree) => tree.links(),
            Topology::Dragonfly(dragonfly) => dragonfly.links(),
        }
    }

    /// The router of a node.
    pub fn home(&self, node: u32) -> u32 {
        match self {
            Topology::Star => 0,
            Topology::Torus(_) => node,
            Topology::FatTree(tree) => tree.home(node),
            Topology::Dragonfly(dragonfly) => dragonfly.home(node),
        }
    }

    /// The next link of a message at `router` to the node `to`; `None` at that node's router.
    pub fn next(&self, router: u32, to: u32) -> Option<Hop> {
        match self {
            Topology::Star => None,
            Topology::Torus(torus) => torus.next(router, to),
            Topology::FatTree(tree) => tree.next(router, to),
            Topology::Dragonfly(dragonfly) => dragonfly.next(router, to),
        }
    }

    /// The same, with as many links as can be told at once.
    pub fn run(&self, router: u32, to: u32) -> Option<Run> {
        match self {
            Topology::Torus(torus) => torus.run(router, to),
            _ => {
                let Hop { link, router } = self.next(router, to)?;
                Some(Run { link, links: 1, rises: true, router })
            }
        }
    }

    /// Calls `visit` with each link between routers on the way, in order.
    pub fn walk(&self, from: u32, to: u32, mut visit: impl FnMut(u32)) {
        match self {
            Topology::Star => {}
            Topology::Torus(torus) => torus.walk(from, to, visit),
            Topology::FatTree(_) | Topology::Dragonfly(_) => {
                let mut router = self.home(from);
                while let Some(hop) = self.next(router, to) {
                    visit(hop.link);
                    router = hop.router;
                }
            }
        }
    }

    /// Links between routers on the way.
    pub fn hops(&self, from: u32, to: u32) -> u32 {
        match self {
            Topology::Torus(torus) => torus.distance(from, to),
            _ => {
                let mut hops = 0;
                self.walk(from, to, |_| hops += 1);
                hops
            }
        }
    }

    /// What kind a link between routers is.
    pub fn class(&self, link: u32) -> Class {
        match self {
            Topology::Dragonfly(dragonfly) => dragonfly.class(link),
            _ => Class::Fabric,
        }
    }

    /// The topology with its sizes, as [`parse`] reads it.
    pub fn name(&self) -> String {
        let sizes = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        match self {
            Topology::Star => "star".to_owned(),
            Topology::Torus(torus) => format!("torus:{}", sizes(torus.sizes())),
            Topology::FatTree(tree) => format!("fat-tree:{}:{}", sizes(tree.down()), sizes(tree.up())),
            Topology::Dragonfly(dragonfly) => format!("dragonfly:{}", sizes(&dragonfly.sizes())),
        }
    }
}

#[cfg(test)]
mod tests;
