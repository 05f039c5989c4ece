//! Entries of a log that is longer than a page.

#![allow(clippy::unwrap_used)] // helpers of tests; the configured exception sees #[test] functions only

use zazen_core::{Origin, RunSet};
use zazen_env::SimDisk;
use zazen_store::contract::{put_version, series_in};
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
    assert_eq!((seen, pages), (everything.clone(), 3));

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
