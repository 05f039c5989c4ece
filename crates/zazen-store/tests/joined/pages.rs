//! Entries of a log that is longer than a page.

use zazen_core::{Origin, RunSet};
use zazen_env::SimDisk;
use zazen_store::contract::{DiskMaker, put_version, series_in};
use zazen_store::{EntriesCursor, Store, StoreConfig};

const CONFIG: StoreConfig =
    StoreConfig { budget_bytes: 64 << 20, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };

#[test]
fn a_frame_replaced_pages_later_comes_once_and_new() {
    let (store, _) = Store::open(SimDisk::new(1, 1 << 30), CONFIG).unwrap();
    let count = 17_000;
    for number in 0..count {
        put_version(&store, "d", number, 1, 8, Origin::Native).unwrap();
    }
    for number in [0, 5, 700] {
        put_version(&store, "d", number, 2, 8, Origin::Native).unwrap();
    }
    put_version(&store, "d", count, 1, 8, Origin::Alien).unwrap();
    let everything = RunSet::range(0, count);
    let (mut cursor, mut pages, mut seen) = (EntriesCursor::default(), 0, RunSet::new());
    while let Some(page) = store.entries_page(&series_in("d"), &everything, &mut cursor).unwrap() {
        pages += 1;
        for entry in page {
            let number = entry.meta.number.get();
            assert!(seen.insert(number), "frame {number} comes twice");
            let expected = if [0, 5, 700].contains(&number) { 2 } else { 1 };
            assert_eq!(entry.meta.validator.unwrap().mtime_ns, expected, "frame {number}");
        }
    }
    // Natives on pages of 4, 16, 64 and up to 256 blocks, then the alien.
    assert_eq!((seen, pages), (everything.clone(), 5));

    // A log that is written anew between two pages: what comes twice is the same, and nothing is
    // missing.
    let mut cursor = EntriesCursor::default();
    let first = store.entries_page(&series_in("d"), &everything, &mut cursor).unwrap().unwrap();
    store.compact(&series_in("d")).unwrap();
    let mut seen: RunSet = first.iter().map(|entry| entry.meta.number.get()).collect();
    let rest = everything.difference(&seen);
    while let Some(page) = store.entries_page(&series_in("d"), &rest, &mut cursor).unwrap() {
        page.iter().for_each(|entry| assert!(seen.insert(entry.meta.number.get())));
    }
    assert_eq!(seen, everything);
    assert_eq!(store.entries(&series_in("d"), &everything).unwrap().len() as u64, count + 1);
}

/// What lies near a frame: itself, and frames as the store describes each alone.
#[test]
fn frames_near_one_are_as_described_alone() {
    let disk = SimDisk::new(1, 1 << 30);
    let place: DiskMaker<'_, SimDisk> = Box::new(move || disk.clone());
    let store = zazen_store::contract::open(&place);
    let count = 300u64;
    let in_order: Vec<u64> = (0..count).map(|at| at * 7919 % count).collect();
    for number in &in_order {
        let origin = if number % 3 == 0 { Origin::Alien } else { Origin::Native };
        put_version(&store, "small", *number, 0, 100, origin).unwrap();
    }
    let series = series_in("small");
    for number in (0..count).step_by(11) {
        assert!(store.drop_frame(&series, number).unwrap());
        if number % 2 == 0 {
            put_version(&store, "small", number, 1, 90, Origin::Native).unwrap();
        }
    }
    for number in 0..count + 2 {
        for frames in [0, 64, 128, 100_000] {
            let near = store.entries_near(&series, number, frames).unwrap();
            assert!(near.is_sorted_by(|one, other| one.position < other.position));
            let alone = store.entry(&series, number).unwrap();
            assert_eq!(near.iter().find(|entry| entry.meta.number.get() == number), alone.as_ref());
            assert_eq!(near.is_empty(), alone.is_none(), "{number}");
            assert!(near.len() as u64 <= frames.max(64), "{} of {frames}", near.len());
            for entry in near.iter().step_by(17) {
                assert_eq!(store.entry(&series, entry.meta.number.get()).unwrap().as_ref(), Some(entry));
            }
        }
    }
}
