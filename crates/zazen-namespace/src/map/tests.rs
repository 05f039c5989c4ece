//! Placement and changes of maps, and the bytes of a map.

use super::*;
use zazen_wire::Message;

fn genesis(nodes: usize, partitions: u32, replicas: u8) -> Map {
    let addresses = (1..=nodes).map(|node| format!("n{node}")).collect();
    let stewards = Genesis::stewards_of(nodes);
    let synchronous = replicas.min(2) - 1;
    let settings = Settings { partitions, ..Settings::default() };
    let genesis = Genesis { namespace: 7, settings, replicas, synchronous, addresses, stewards };
    genesis.map().expect("a map")
}

fn enter(map: &mut Map, node: u32, incarnation: u64) -> bool {
    let (key, incarnation) = (100 + u128::from(node), Incarnation(incarnation));
    map.change(&Change::Enter(Enter { key, incarnation, address: format!("n{node}"), weight: 1 }))
}

fn keep(map: &Map, partition: u32, node: u32) -> Keep {
    let keepers = &map.partitions[partition as usize];
    let incarnation = map.nodes[node as usize - 1].incarnation;
    let (partition, node) = (PartitionNo(partition), NodeNo(node));
    Keep { partition, epoch: keepers.epoch, primary: keepers.primary, node, incarnation }
}

/// Nodes 1 to 3 live, node `primary` keeps partition 0, and all others are its backups.
fn kept(nodes: usize) -> (Map, u32, Vec<u32>) {
    let mut map = genesis(nodes, 1, nodes as u8);
    for node in 1..=nodes as u32 {
        assert!(enter(&mut map, node, 1));
    }
    let primary = map.partitions[0].primary.0;
    let others: Vec<u32> = (1..=nodes as u32).filter(|node| *node != primary).collect();
    for node in &others {
        let add = Change::Add(keep(&map, 0, *node));
        assert!(map.change(&add));
        assert!(!map.change(&add), "late");
    }
    (map, primary, others)
}

#[test]
fn a_node_more_takes_its_share_and_moves_nothing_else() {
    let before = genesis(8, 4096, 1);
    let mut after = before.clone();
    assert!(enter(&mut after, 9, 1));
    let mut share = [0u32; 10];
    for number in 0..4096 {
        let (old, new) = (before.wanted(PartitionNo(number)), after.wanted(PartitionNo(number)));
        assert!(old == new || new == [NodeNo(9)]);
        share[new[0].0 as usize] += 1;
    }
    // 455 each by chance, of which the standard deviation is 20.
    assert!(share[1..].iter().all(|count| (365..545).contains(count)), "{share:?}");
}

#[test]
fn weight_is_share() {
    let mut map = genesis(3, 4096, 1);
    map.nodes[0].weight = 2;
    let first = (0..4096).filter(|number| map.wanted(PartitionNo(*number)) == [NodeNo(1)]).count();
    assert!((1920..2180).contains(&first), "{first} of 4096 is not a half");
}

#[test]
fn keepers_are_different_nodes_that_are_up() {
    let mut map = genesis(5, 64, 3);
    map.nodes[1].state = State::Down;
    for number in 0..64 {
        let mut wanted = map.wanted(PartitionNo(number));
        assert!(!wanted.contains(&NodeNo(2)));
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(wanted.len(), 3);
    }
}

#[test]
fn a_backup_takes_over_when_the_lease_of_the_primary_ended() {
    let (mut map, primary, others) = kept(3);
    let epoch = map.partitions[0].epoch;
    let stop =
        |incarnation| Change::Stop(Stop { node: NodeNo(primary), incarnation: Incarnation(incarnation) });
    assert!(!map.change(&stop(0)), "another life");
    assert!(map.change(&stop(1)));
    assert!(!map.change(&stop(1)));
    assert_eq!(map.partitions[0].primary, NodeNo(others[0]));
    assert_eq!(map.partitions[0].backups, [NodeNo(others[1])]);
    assert!(map.partitions[0].epoch > epoch);
    // It comes back, and keeps nothing until the primary adds it.
    assert!(enter(&mut map, primary, 2));
    assert_eq!(map.nodes[primary as usize - 1].state, State::Up);
    assert_eq!(map.partitions[0].backups, [NodeNo(others[1])]);
}

#[test]
fn a_new_life_keeps_only_what_nobody_else_has() {
    let (mut map, primary, others) = kept(2);
    assert!(enter(&mut map, primary, 2));
    assert_eq!(map.partitions[0].primary, NodeNo(others[0]));
    let epoch = map.partitions[0].epoch;
    assert!(enter(&mut map, others[0], 2));
    assert_eq!(map.partitions[0].primary, NodeNo(others[0]));
    assert!(map.partitions[0].epoch > epoch, "its memory is lost");
    assert!(!enter(&mut map, others[0], 1), "an earlier life");
}

/// A map whose partition has so many keepers, all of which stop at once.
fn all_stopped(replicas: usize) -> (Map, u32, Vec<u32>) {
    let (mut map, primary, others) = kept(replicas);
    // The backups are named first: they do not go because the primary is not down yet.
    let all = others.iter().chain([&primary]);
    let stops: Vec<Stop> =
        all.map(|node| Stop { node: NodeNo(*node), incarnation: Incarnation(1) }).collect();
    assert!(map.stop_all(&stops) && !map.stop_all(&stops));
    assert_eq!(keepers_of(&map), (primary, others.clone()));
    (map, primary, others)
}

fn keepers_of(map: &Map) -> (u32, Vec<u32>) {
    let keepers = &map.partitions[0];
    (keepers.primary.0, keepers.backups.iter().map(|backup| backup.0).collect())
}

#[test]
fn of_keepers_that_were_lost_at_once_any_is_enough() {
    for replicas in [2, 3] {
        for first in 0..replicas {
            let (mut map, primary, others) = all_stopped(replicas);
            let all = [&[primary][..], &others[..]].concat();
            let epoch = map.partitions[0].epoch;
            assert!(enter(&mut map, all[first], 2));
            assert_eq!(keepers_of(&map), (all[first], vec![]));
            assert!(map.partitions[0].epoch > epoch);
            // The others lack what it has taken since.
            for node in all.iter().filter(|node| **node != all[first]) {
                assert!(enter(&mut map, *node, 2));
                assert_eq!(keepers_of(&map), (all[first], vec![]));
            }
        }
    }
}

#[test]
fn who_is_up_takes_over_from_those_that_stop_at_once() {
    let (mut map, primary, others) = kept(3);
    let stop = |node| Stop { node: NodeNo(node), incarnation: Incarnation(1) };
    assert!(map.stop_all(&[stop(others[0]), stop(primary)]));
    assert_eq!(keepers_of(&map), (others[1], vec![]));
}

#[test]
fn an_addition_does_not_come_after_the_drop_that_ended_it() {
    let (mut map, _, others) = kept(2);
    let late = keep(&map, 0, others[0]);
    assert!(map.change(&Change::Drop(late.clone())));
    let add = keep(&map, 0, others[0]);
    assert!(map.change(&Change::Drop(add.clone())), "nothing to drop, but an end");
    assert!(!map.change(&Change::Add(add)));
    assert!(!map.change(&Change::Hand(late)));
    assert!(map.partitions[0].backups.is_empty());
    // Nor does one that a life before this one was ready for.
    let mut stale = keep(&map, 0, others[0]);
    stale.incarnation = Incarnation(0);
    assert!(!map.change(&Change::Add(stale)));
}

#[test]
fn a_hand_over_exchanges_the_two() {
    let (mut map, primary, others) = kept(3);
    let hand = Change::Hand(keep(&map, 0, others[1]));
    assert!(map.change(&hand));
    assert_eq!(map.partitions[0].primary, NodeNo(others[1]));
    assert_eq!(map.partitions[0].backups, [NodeNo(others[0]), NodeNo(primary)]);
}

#[test]
fn a_replaced_disk_is_another_node() {
    let mut map = genesis(3, 16, 1);
    assert!(enter(&mut map, 1, 1));
    let empty = Enter { key: 999, incarnation: Incarnation(5), address: "n1".into(), weight: 1 };
    assert!(map.change(&Change::Enter(empty)));
    assert_eq!(map.nodes.last().map(|member| (member.node, member.key)), Some((NodeNo(4), 999)));
    assert_eq!(map.nodes[0].key, 101, "what the old disk keeps stays its own");
}

#[test]
fn a_node_that_leaves_is_gone_when_it_keeps_nothing() {
    let (mut map, primary, others) = kept(2);
    let leave = |state| Change::Leave(Leave { node: NodeNo(primary), state });
    assert!(!map.change(&leave(State::Gone)));
    assert!(map.change(&leave(State::Leaving)));
    assert_eq!(map.wanted(PartitionNo(0)), [NodeNo(others[0])]);
    assert!(!map.change(&leave(State::Gone)), "it is still the primary");
}

#[test]
fn the_bytes_of_a_map_stay() {
    let mut map = genesis(1, 1, 1);
    assert!(enter(&mut map, 1, 3));
    let golden = "07000000000000000000000000000000 0200000000000000 01 00 01000000 01000000 \
        01000000 24000000 01000000 65000000000000000000000000000000 0300000000000000 \
        02000000 6e31 01 01 01000000 10000000 0100000000000000 01000000 00000000\
        38000000 01000000 ed010000 00000000 00000000 00100000 0070c9b28b000000 00c2eb0b00000000 \
        00000040 00100000 00000200 00400000 40000000";
    let hex: String = map.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.split_whitespace().collect::<String>());
    assert_eq!(Map::decode(&map.encode()).expect("decodes"), map);
    map.check().expect("sound");
    map.partitions[0].primary = NodeNo(2);
    assert!(map.check().is_err());
}

#[test]
fn placement_stays() {
    // Nodes agree on it, whatever their releases.
    let map = genesis(5, 8, 2);
    let wanted: Vec<Vec<u32>> =
        (0..8).map(|number| map.wanted(PartitionNo(number)).iter().map(|node| node.0).collect()).collect();
    assert_eq!(wanted, [[5, 3], [5, 3], [5, 2], [4, 2], [4, 5], [1, 3], [1, 3], [3, 4]]);
}

#[test]
fn a_namespace_that_cannot_be_is_refused() {
    let genesis = |partitions, replicas, synchronous, stewards| Genesis {
        namespace: 1,
        settings: Settings { partitions, ..Settings::default() },
        replicas,
        synchronous,
        addresses: vec!["a".into(), "b".into(), "c".into()],
        stewards,
    };
    for bad in [genesis(3, 1, 0, 1), genesis(0, 1, 0, 1), genesis(4, 0, 0, 1), genesis(4, 2, 2, 1)] {
        assert!(bad.map().is_err(), "{bad:?}");
    }
    for bad in [genesis(4, 1, 0, 2), genesis(4, 1, 0, 0), genesis(4, 1, 0, 5)] {
        assert!(bad.map().is_err(), "{bad:?}");
    }
    assert!(genesis(4, 2, 1, 3).map().is_ok());
}
