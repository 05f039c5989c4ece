//! The lock table against a byte map: each byte of a small file has, for each owner, no lock, a
//! read lock or a write lock.

use proptest::prelude::*;
use std::collections::HashMap;
use zazen_posix::{LockTable, Range};

const BYTES: i64 = 24;

fn range(first: i64, last: i64) -> Range {
    Range { first, last }
}

#[derive(Clone, Debug)]
enum Step {
    Set { owner: u8, first: i64, length: i64, write: Option<bool> },
    Release { owner: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let set = (0..4u8, 0..BYTES, 0..BYTES, proptest::option::of(any::<bool>()))
        .prop_map(|(owner, first, length, write)| Step::Set { owner, first, length, write });
    prop_oneof![9 => set, 1 => (0..4u8).prop_map(|owner| Step::Release { owner })]
}

/// What each owner holds on each byte; the last stands for all bytes beyond.
type Map = HashMap<(u8, i64), bool>;

fn bytes(range: Range) -> impl Iterator<Item = i64> {
    range.first..=range.last.min(BYTES * 2)
}

fn stands_in_the_way(map: &Map, owner: u8, range: Range, write: bool) -> bool {
    bytes(range).any(|byte| {
        (0..4).any(|other| other != owner && map.get(&(other, byte)).is_some_and(|held| *held || write))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn agrees_with_a_map_of_bytes(steps in proptest::collection::vec(step(), 1..40)) {
        let mut table: LockTable<u8, u8> = LockTable::default();
        let mut map = Map::new();
        for step in steps {
            match step {
                Step::Release { owner } => {
                    table.release(0, owner);
                    map.retain(|(other, _), _| *other != owner);
                }
                Step::Set { owner, first, length, write } => {
                    let range = Range::new(first, length).unwrap();
                    if let Some(write) = write {
                        let expected = stands_in_the_way(&map, owner, range, write);
                        prop_assert_eq!(table.conflict(0, owner, range, write).is_some(), expected);
                        if expected {
                            continue;
                        }
                    }
                    table.set(0, owner, range, write);
                    for byte in bytes(range) {
                        match write {
                            Some(write) => map.insert((owner, byte), write),
                            None => map.remove(&(owner, byte)),
                        };
                    }
                }
            }
            check(&table, &map)?;
        }
    }
}

fn check(table: &LockTable<u8, u8>, map: &Map) -> Result<(), TestCaseError> {
    let mut seen = Map::new();
    for lock in table.held(0) {
        for byte in bytes(lock.range) {
            prop_assert!(seen.insert((lock.owner, byte), lock.write).is_none(), "overlap");
        }
    }
    prop_assert_eq!(&seen, map);
    for one in table.held(0) {
        let touching = table.held(0).iter().any(|two| {
            one.owner == two.owner
                && one.write == two.write
                && one.range.last.checked_add(1) == Some(two.range.first)
        });
        prop_assert!(!touching, "neighbours not merged");
    }
    let mut next = 0;
    for (part, kind) in table.strongest(0, range(0, i64::MAX)) {
        prop_assert_eq!(part.first, next);
        next = part.last.wrapping_add(1);
        for byte in bytes(part) {
            prop_assert_eq!((0..4).filter_map(|owner| map.get(&(owner, byte)).copied()).max(), kind);
        }
    }
    prop_assert_eq!(next, i64::MIN);
    Ok(())
}

#[test]
fn circles_are_refused() {
    let mut table: LockTable<u8, u8> = LockTable::default();
    assert!(table.wait(1, 2));
    assert!(table.wait(2, 3));
    assert!(table.wait(4, 1));
    assert!(!table.wait(3, 1));
    assert!(!table.wait(3, 4));
    table.unwait(2, 3);
    assert!(table.wait(3, 1));
    assert!(!table.wait(2, 3));
    table.release_owner(3);
    assert!(table.wait(2, 3));
}

#[test]
fn ranges_are_those_of_struct_flock() {
    assert_eq!(Range::new(5, 0), Some(range(5, i64::MAX)));
    assert_eq!(Range::new(5, 3), Some(range(5, 7)));
    assert_eq!(Range::new(5, -3), Some(range(2, 4)));
    assert_eq!(Range::new(2, -3), None);
    assert_eq!(Range::new(-1, 0), None);
    assert_eq!(Range::new(i64::MAX, 2), None);
    assert_eq!(range(5, i64::MAX).length(), 0);
}
