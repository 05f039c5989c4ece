//! Routes against a breadth-first search over the links, which the routes themselves reveal.

use super::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

fn built(text: &str, nodes: u32) -> Topology {
    parse(text).and_then(|shape| shape.of(nodes)).unwrap()
}

/// Every route ends at its node, no link leads to two places, and no route is longer than the
/// shortest path over all links that any route uses. (A dragonfly's minimal route crosses between
/// groups once, and is sometimes longer than two crossings without local links.)
fn check(text: &str, nodes: u32) {
    let topology = built(text, nodes);
    let mut ends: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for from in 0..nodes {
        for to in 0..nodes {
            let mut router = topology.home(from);
            let mut route = Vec::new();
            while let Some(hop) = topology.next(router, to) {
                assert!(u64::from(hop.link) < topology.fabric_links(), "{text} link {}", hop.link);
                let known = ends.entry(hop.link).or_insert((router, hop.router));
                assert_eq!(*known, (router, hop.router), "{text}: link {} has other ends", hop.link);
                route.push(hop.link);
                router = hop.router;
                assert!(route.len() < 1000, "{text}: {from} to {to} runs in circles");
            }
            assert_eq!(router, topology.home(to));
            assert_eq!(topology.hops(from, to) as usize, route.len());
            let mut walked = Vec::new();
            topology.walk(from, to, |link| walked.push(link));
            assert_eq!(walked, route);
            assert_eq!(by_runs(&topology, from, to), route, "{text}: {from} to {to}");
        }
    }
    if matches!(topology, Topology::Dragonfly(_)) {
        return;
    }
    let mut neighbours: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (from, to) in ends.values() {
        neighbours.entry(*from).or_default().insert(*to);
    }
    for from in 0..nodes {
        let start = topology.home(from);
        let mut distance = BTreeMap::from([(start, 0)]);
        let mut waiting = VecDeque::from([start]);
        while let Some(router) = waiting.pop_front() {
            for next in neighbours.get(&router).into_iter().flatten() {
                if !distance.contains_key(next) {
                    distance.insert(*next, distance[&router] + 1);
                    waiting.push_back(*next);
                }
            }
        }
        for to in 0..nodes {
            assert_eq!(topology.hops(from, to), distance[&topology.home(to)], "{text}: {from} to {to}");
        }
    }
}

/// The links of a route as its runs tell them.
fn by_runs(topology: &Topology, from: u32, to: u32) -> Vec<u32> {
    let (mut router, mut route) = (topology.home(from), Vec::new());
    while let Some(run) = topology.run(router, to) {
        let at = |step| if run.rises { run.link + step } else { run.link - step };
        route.extend((0..run.links).map(at));
        router = run.router;
    }
    assert_eq!(router, topology.home(to));
    route
}

#[test]
fn routes_are_shortest_paths() {
    check("torus:4x3x5", 60);
    check("torus:7", 7);
    check("torus:2x2x2x2", 16);
    check("torus", 36);
    check("fat-tree:4x4:1x4", 16);
    check("fat-tree:3x2x4:1x2x3", 24);
    check("fat-tree", 40);
    check("dragonfly:2x4x2x9", 72);
    check("dragonfly", 50);
    check("star", 9);
}

/// The minimal route of a dragonfly has at most one link in each group, and crosses between groups
/// once, or not at all within a group.
#[test]
fn a_dragonfly_crosses_between_groups_once() {
    let topology = built("dragonfly:2x4x2x9", 72);
    for from in 0..72 {
        for to in 0..72 {
            let (mut local, mut global) = (0, 0);
            topology.walk(from, to, |link| match topology.class(link) {
                Class::Global => global += 1,
                _ => local += 1,
            });
            assert_eq!(global, u32::from(from / 8 != to / 8), "{from} to {to}");
            assert!(local <= 1 + global, "{from} to {to}");
        }
    }
}

/// Every pair of neighbouring torus nodes is one hop apart, also around the end.
#[test]
fn the_issue_torus_is_a_cube() {
    let topology = built("torus", 2_000_376);
    assert_eq!(topology.name(), "torus:126x126x126");
    assert_eq!((topology.hops(0, 125), topology.hops(0, 63), topology.hops(0, 2_000_375)), (1, 63, 3));
    assert_eq!(built("torus", 1_000_003).name(), "torus:101x100x100");
    assert_eq!(built("torus", 1_048_576).name(), "torus:64x128x128");
}

/// With D-mod-k routing, a shift permutation of a full fat tree shares no link.
#[test]
fn a_full_fat_tree_carries_a_shift_without_sharing() {
    let topology = built("fat-tree:4x4x4:1x4x4", 64);
    for shift in 1..64 {
        let mut used = BTreeSet::new();
        for from in 0..64 {
            topology.walk(from, (from + shift) % 64, |link| assert!(used.insert(link), "shift {shift}"));
        }
    }
}

#[test]
fn what_does_not_add_up_is_refused() {
    let check = |text: &str, nodes: u32, expected: &str| {
        let message = parse(text).and_then(|shape| shape.of(nodes)).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    };
    check("torus:4x4x4", 65, "room for 64 nodes, and 65");
    check("torus:0x4", 1, "not a size");
    check("torus:-4", 1, "not a size");
    check("torus:4x4:2", 1, "one list");
    check("dragonfly:4x8x4x34", 9, "at most 33 groups");
    check("dragonfly:4x8", 9, "such as");
    check("fat-tree:4x4:1", 9, "as many children");
    check("fat-tree:4x4:2x4", 9, "one parent");
    check("ring", 9, "there are star");
    check("torus:60000x60000x60000", 9, "places");
    check("star:3", 3, "no sizes");
    check("a:b:c:d", 3, "colons");
}
