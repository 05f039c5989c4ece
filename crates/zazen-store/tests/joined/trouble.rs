//! A disk that cannot be read or written: what fails is told, the rest goes on, and nothing that is
//! there is lost.

use std::sync::Arc;
use zazen_core::{FrameMeta, FrameNo, Origin, RelPath, Result, Source};
use zazen_env::{DiskHealth, SimDisk, WatchedDisk, is_trouble};
use zazen_store::contract::series_in;
use zazen_store::{RecoveryReport, Store, StoreConfig};
use zazen_wire::checksum::frame_checksum;

type Watched = Store<WatchedDisk<SimDisk>>;

fn open(disk: &SimDisk) -> Result<(Arc<Watched>, RecoveryReport, Arc<DiskHealth>)> {
    let disk = WatchedDisk::new(disk.clone());
    let health = disk.health();
    let config = StoreConfig { budget_bytes: 1 << 30, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
    let (store, report) = Store::open(disk, config)?;
    Ok((store, report, health))
}

fn dataset(name: &str) -> RelPath {
    series_in(name)
}

fn put(store: &Arc<Watched>, name: &str, number: u64, bytes: &[u8]) -> Result<()> {
    let source = Source { path: RelPath::new(&format!("f{number}")).unwrap(), offset: 0, length: None };
    let meta = FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: bytes.len() as u64,
        checksum: frame_checksum(bytes),
        validator: None,
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let mut put = store.put(&dataset(name), &source, &meta, Origin::Alien)?;
    put.write(bytes)?;
    put.commit().map(|_| ())
}

/// Two datasets of two small and two large frames.
fn filled() -> SimDisk {
    let disk = SimDisk::new(7, 64 << 20);
    let (store, ..) = open(&disk).unwrap();
    for name in ["a", "b"] {
        for number in 0..4 {
            put(&store, name, number, &vec![number as u8 + 1; if number < 2 { 100 } else { 40_000 }])
                .unwrap();
        }
    }
    store.sync().unwrap();
    drop(store);
    disk
}

#[test]
fn a_read_only_disk_serves_what_it_has_and_refuses_the_rest_at_once() {
    let disk = filled();
    let (store, _, health) = open(&disk).unwrap();
    disk.set_read_only(true);
    let refused = put(&store, "a", 9, &[1; 50_000]).unwrap_err();
    assert!(is_trouble(&refused), "{refused}");
    assert!(!health.report().is_ok() && health.report().reads.is_none());
    let steps = disk.steps();
    for number in 10..30 {
        let refused = put(&store, "a", number, &[1; 100]).unwrap_err();
        assert!(refused.to_string().contains("left alone for a while"), "{refused}");
    }
    assert_eq!(disk.steps(), steps, "the disk was not asked");
    for number in 0..4 {
        assert!(store.open_frame(&dataset("a"), number).unwrap().is_some());
    }
    assert_eq!(store.space().reserved, 0);
}

#[test]
fn any_read_may_fail_at_a_start_and_what_is_there_is_there_again_at_the_next() {
    let disk = filled();
    for read in 1.. {
        let damaged = disk.fork(read);
        damaged.fail_read_at(damaged.reads() + read);
        let before = damaged.reads();
        if let Ok((store, report, _)) = open(&damaged) {
            if damaged.reads() - before < read {
                assert_eq!((report.datasets, report.frames), (2, 8));
                assert!(read > 10, "{read}");
                return;
            }
            // A dataset that was left out is known when the disk is well again, though the list is
            // written anew.
            put(&store, "c", 0, &[1; 100]).unwrap();
            let stopped = store.sync();
            assert!(stopped.is_ok(), "{stopped:?}");
        }
        let (store, ..) = open(&damaged).unwrap();
        for name in ["a", "b"] {
            for number in 0..4 {
                assert_ne!(store.verify(&dataset(name), number).unwrap(), Some(false), "read {read}");
            }
            let held = store.holdings(&dataset(name)).1.len();
            assert!(held == 4, "{held} of dataset {name} after read {read} failed");
        }
    }
}

#[test]
fn a_frame_that_cannot_be_read_is_dropped_by_a_look_at_it() {
    let disk = filled();
    let (store, _, health) = open(&disk).unwrap();
    assert_eq!(store.verify(&dataset("a"), 2).unwrap(), Some(true));
    // Opening looks the record up first; the last read of a look at a frame is that of its bytes.
    let reads = disk.reads();
    store.verify(&dataset("a"), 3).unwrap();
    let of_one = disk.reads() - reads;
    disk.fail_read_at(disk.reads() + of_one);
    assert_eq!(store.verify(&dataset("a"), 2).unwrap(), Some(false));
    assert!(store.open_frame(&dataset("a"), 2).unwrap().is_none());
    assert!(health.report().reads.unwrap().0.contains("read"));
    put(&store, "a", 2, &[5; 40_000]).unwrap();
    assert_eq!(store.verify(&dataset("a"), 2).unwrap(), Some(true));
}
