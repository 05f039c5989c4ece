//! The torus: routers on a grid that wraps around, one node each; routes go dimension by dimension,
//! the shorter way around, and upwards where both ways are equally long.

use super::link::{Hop, Run};

/// A torus of any number of dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torus {
    sizes: Vec<u32>,
    routers: u32,
}

impl Torus {
    /// Sizes of the dimensions, the first one running fastest. Each is at least 1, and their
    /// product is below 2³².
    pub(super) fn new(sizes: Vec<u32>) -> Torus {
        let routers = sizes.iter().product();
        Torus { sizes, routers }
    }

    /// Sizes of the dimensions.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// Links are numbered by dimension, then direction, then line, then place on the line: a
    /// route along a dimension uses links of consecutive numbers, whose rows lie side by side.
    pub(super) fn links(&self) -> u64 {
        u64::from(self.routers) * 2 * self.sizes.len() as u64
    }

    pub(super) fn next(&self, router: u32, to: u32) -> Option<Hop> {
        self.ahead(router, to, 1).map(|Run { link, router, .. }| Hop { link, router })
    }

    /// Along one line, to its end or to where it wraps around.
    pub(super) fn run(&self, router: u32, to: u32) -> Option<Run> {
        self.ahead(router, to, u32::MAX)
    }

    /// At most so many links.
    fn ahead(&self, router: u32, to: u32, links_max: u32) -> Option<Run> {
        let (mut at, mut goal, mut stride) = (router, to, 1);
        for (dimension, size) in self.sizes.iter().enumerate() {
            let (here, there) = (at % size, goal % size);
            if here != there {
                let (count, rises) = steps(here, there, *size);
                let before_wrapping = if rises { size - here } else { here + 1 };
                let links = count.min(before_wrapping).min(links_max);
                let after = if rises { here + links } else { here + size - links };
                let after = if after >= *size { after - size } else { after };
                let link = self.line(router, dimension, stride, rises) + here;
                let router = router - here * stride + after * stride;
                return Some(Run { link, links, rises, router });
            }
            (at, goal, stride) = (at / size, goal / size, stride * size);
        }
        None
    }

    pub(super) fn walk(&self, from: u32, to: u32, mut visit: impl FnMut(u32)) {
        let (mut at, mut goal, mut stride, mut router) = (from, to, 1, from);
        for (dimension, size) in self.sizes.iter().enumerate() {
            let (mut here, there) = (at % size, goal % size);
            let (count, up) = steps(here, there, *size);
            if count > 0 {
                let line = self.line(router, dimension, stride, up);
                for _ in 0..count {
                    visit(line + here);
                    here = neighbour(here, *size, up);
                }
                router = router - (at % size) * stride + there * stride;
            }
            (at, goal, stride) = (at / size, goal / size, stride * size);
        }
    }

    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        let (mut at, mut goal, mut sum) = (from, to, 0);
        for size in &self.sizes {
            sum += steps(at % size, goal % size, *size).0;
            (at, goal) = (at / size, goal / size);
        }
        sum
    }

    /// The first link of a router's line along a dimension. `stride` is the product of the sizes
    /// of the dimensions before.
    fn line(&self, router: u32, dimension: usize, stride: u32, up: bool) -> u32 {
        let size = self.sizes[dimension];
        let routers = self.routers;
        let line = router % stride + router / (stride * size) * stride;
        (2 * dimension as u32 + u32::from(!up)) * routers + line * size
    }
}

/// Steps along a ring, and whether they go upwards.
fn steps(here: u32, there: u32, size: u32) -> (u32, bool) {
    let up = if there >= here { there - here } else { there + size - here };
    if up <= size - up { (up, true) } else { (size - up, false) }
}

fn neighbour(here: u32, size: u32, up: bool) -> u32 {
    match up {
        true if here + 1 == size => 0,
        true => here + 1,
        false if here == 0 => size - 1,
        false => here - 1,
    }
}
