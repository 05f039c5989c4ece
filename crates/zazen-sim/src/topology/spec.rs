//! Topologies as users write them: `star`, `torus`, `torus:126x126x126`, `fat-tree:24x24:1x12`,
//! `dragonfly:4x8x4x33`. Without sizes, the sizes follow from the number of nodes.

use super::{Dragonfly, FatTree, Topology, Torus};
use crate::queue::NODES_MAX;
use zazen_core::{Error, ErrorKind, Result};

/// Links of a network, interfaces included, at most.
const LINKS_MAX: u64 = 1 << 31;
/// Dimensions and levels at most.
const SIZES_MAX: usize = 8;
/// A cuboid of nodes longer than this, against its shortest side, is no longer a reasonable torus.
const ASPECT_MAX: u32 = 4;
/// Children and parents of a switch of a fat tree whose sizes are computed.
const RADIX: u32 = 32;

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One switch.
    Star,
    /// Sizes of the dimensions; empty: three that fit the nodes.
    Torus(Vec<u32>),
    /// Children and parents by level; empty: as many levels as the nodes need.
    FatTree(Vec<u32>, Vec<u32>),
    /// p, a, h, g; none: balanced ones that fit the nodes.
    Dragonfly(Option<[u32; 4]>),
}

fn refuse<T>(text: &str, why: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, format!("network {text:?}: {why}")))
}

/// Reads a shape. `InvalidArgument` with the reason and an example if there is no such.
pub fn parse(text: &str) -> Result<Shape> {
    let mut parts = text.split(':');
    let (name, first, second) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    if parts.next().is_some() {
        return refuse(text, "there are too many colons; write torus:16x16x16");
    }
    let sizes = |part: Option<&str>| -> Result<Vec<u32>> {
        let Some(part) = part else { return Ok(Vec::new()) };
        let sizes = part.split('x').map(|size| match size.trim().parse::<u32>() {
            Ok(size @ 1..=NODES_MAX) => Ok(size),
            _ => refuse(text, format!("{size:?} is not a size; write torus:16x16x16")),
        });
        let sizes = sizes.collect::<Result<Vec<u32>>>()?;
        if sizes.len() > SIZES_MAX {
            return refuse(text, format!("it has more than {SIZES_MAX} sizes"));
        }
        Ok(sizes)
    };
    let (first, second) = (sizes(first)?, sizes(second)?);
    match (name, first.as_slice(), second.as_slice()) {
        ("star", [], []) => Ok(Shape::Star),
        ("star", ..) => refuse(text, "a star has no sizes"),
        ("torus", _, []) => Ok(Shape::Torus(first)),
        ("fat-tree", down, up) if down.len() == up.len() => {
            if up.first().is_some_and(|up| *up != 1) {
                return refuse(text, "nodes have one parent: the second list begins with 1");
            }
            Ok(Shape::FatTree(first, second))
        }
        ("fat-tree", ..) => refuse(text, "write as many children as parents, such as fat-tree:24x24:1x12"),
        ("dragonfly", [], []) => Ok(Shape::Dragonfly(None)),
        ("dragonfly", [p, a, h, g], []) => {
            if u64::from(*g) > u64::from(*a) * u64::from(*h) + 1 {
                let most = u64::from(*a) * u64::from(*h) + 1;
                let why = format!("{a} routers with {h} global links each connect at most {most} groups");
                return refuse(text, format!("{why}, not {g}"));
            }
            Ok(Shape::Dragonfly(Some([*p, *a, *h, *g])))
        }
        ("dragonfly", ..) => refuse(
            text,
            "give nodes per router, routers per group, global links per router and groups, such as \
             dragonfly:4x8x4x33",
        ),
        ("torus", ..) => refuse(text, "a torus has one list of sizes, such as torus:16x16x16"),
        _ => refuse(text, "there are star, torus, fat-tree and dragonfly"),
    }
}

impl Shape {
    /// The topology for `nodes` nodes. `InvalidArgument` if it has no room for them, and `TooLarge`
    /// if it is beyond what the simulator counts.
    pub fn of(&self, nodes: u32) -> Result<Topology> {
        let topology = match self {
            Shape::Star => Topology::Star,
            Shape::Torus(sizes) if sizes.is_empty() => Topology::Torus(Torus::new(cuboid(nodes))),
            Shape::Torus(sizes) => {
                self.room(nodes, sizes)?;
                Topology::Torus(Torus::new(sizes.clone()))
            }
            Shape::FatTree(down, up) if down.is_empty() => {
                let (down, up) = levels(nodes);
                self.counted(&down, &up)?;
                Topology::FatTree(FatTree::new(down, up))
            }
            Shape::FatTree(down, up) => {
                self.room(nodes, down)?;
                self.counted(down, up)?;
                Topology::FatTree(FatTree::new(down.clone(), up.clone()))
            }
            Shape::Dragonfly(None) => Topology::Dragonfly(Dragonfly::new(balanced(nodes))),
            Shape::Dragonfly(Some(sizes @ [p, a, _, g])) => {
                self.room(nodes, &[*p, *a, *g])?;
                Topology::Dragonfly(Dragonfly::new(*sizes))
            }
        };
        let links = topology.fabric_links() + 2 * u64::from(nodes);
        if links > LINKS_MAX {
            let why = format!("network: {nodes} nodes need {links} links; at most {LINKS_MAX} are simulated");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        Ok(topology)
    }

    fn room(&self, nodes: u32, sizes: &[u32]) -> Result<()> {
        let room = sizes.iter().try_fold(1_u64, |room, size| room.checked_mul(u64::from(*size)));
        let text = sizes.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        match room {
            Some(room) if room > u64::from(NODES_MAX) => {
                refuse(&text, format!("it has {room} places; at most {NODES_MAX} are simulated"))
            }
            None => refuse(&text, format!("it has too many places; at most {NODES_MAX} are simulated")),
            Some(room) if room < u64::from(nodes) => {
                refuse(&text, format!("it has room for {room} nodes, and {nodes} were asked for"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Switches and links of a fat tree stay countable.
    fn counted(&self, down: &[u32], up: &[u32]) -> Result<()> {
        for level in 0..down.len() {
            let below = up[..=level].iter().map(|up| u128::from(*up)).product::<u128>();
            let above = down[level + 1..].iter().map(|down| u128::from(*down)).product::<u128>();
            let parents = u128::from(up.get(level + 1).copied().unwrap_or(1));
            if below * above * parents > u128::from(LINKS_MAX / 4) {
                return refuse("fat-tree", "it has more links than are simulated");
            }
        }
        Ok(())
    }
}

/// The cuboid nearest to a cube that holds exactly `nodes`; if that is far from a cube, the
/// smallest near-cube with at least as many places.
fn cuboid(nodes: u32) -> Vec<u32> {
    let mut best = [1, 1, nodes];
    let mut one = 1;
    while u64::from(one).pow(3) <= u64::from(nodes) {
        if nodes.is_multiple_of(one) {
            let rest = nodes / one;
            let mut two = one;
            while u64::from(two).pow(2) <= u64::from(rest) {
                if rest.is_multiple_of(two) && rest / two - one < best[2] - best[0] {
                    best = [one, two, rest / two];
                }
                two += 1;
            }
        }
        one += 1;
    }
    if best[2] <= ASPECT_MAX * best[0] {
        return best.to_vec();
    }
    let mut sizes = [1_u32; 3];
    let mut at = 0;
    while sizes.iter().map(|size| u64::from(*size)).product::<u64>() < u64::from(nodes) {
        sizes[at % 3] += 1;
        at += 1;
    }
    sizes.to_vec()
}

/// Levels of a fat tree with half the bandwidth lost at no level.
fn levels(nodes: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut down, mut up, mut room) = (vec![RADIX.min(nodes)], vec![1], u64::from(RADIX));
    while room < u64::from(nodes) {
        let more = u64::from(nodes).div_ceil(room).min(u64::from(RADIX));
        down.push(more as u32);
        up.push(RADIX);
        room *= more;
    }
    (down, up)
}

/// The smallest balanced dragonfly (a = 2p = 2h, g ≤ a·h + 1) that holds `nodes`.
fn balanced(nodes: u32) -> [u32; 4] {
    let mut h = 1_u32;
    loop {
        let (p, a) = (h, 2 * h);
        let groups = u64::from(nodes).div_ceil(u64::from(p) * u64::from(a));
        if groups <= u64::from(a) * u64::from(h) + 1 {
            return [p, a, h, groups as u32];
        }
        h += 1;
    }
}
