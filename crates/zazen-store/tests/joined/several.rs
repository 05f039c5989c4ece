//! One cache over several disks: where frames go, what a failing disk costs, and that no old copy
//! is handed out.

use std::collections::BTreeMap;
use std::sync::Arc;
use zazen_core::{ErrorKind, FrameMeta, FrameNo, Origin, RelPath, Result, RunSet, Source};
use zazen_env::{ManualClock, SeededRandom, SimDisk, WatchedDisk};
use zazen_store::contract::series_in;
use zazen_store::{CachedFrame, PageCursor, Store, StoreConfig, Stored, Stores};
use zazen_wire::checksum::frame_checksum;

type Several = Stores<WatchedDisk<SimDisk>>;

const SMALL: usize = 100;
const LARGE: usize = 40_000;

fn disks(count: u64) -> Vec<SimDisk> {
    (0..count).map(|seed| SimDisk::new(seed, 64 << 20)).collect()
}

/// The health of these disks goes by a clock that stands still: a disk that failed stays so.
fn open(disks: &[SimDisk], budget_bytes: u64) -> Several {
    let clock = Arc::new(ManualClock::default());
    let open = |disk: &SimDisk| {
        let config = StoreConfig { budget_bytes, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
        Store::open(WatchedDisk::with_clock(disk.clone(), clock.clone()), config).unwrap().0
    };
    Stores::new(disks.iter().map(open).collect()).unwrap()
}

fn meta(number: u64, bytes: &[u8]) -> FrameMeta {
    FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: bytes.len() as u64,
        checksum: frame_checksum(bytes),
        validator: None,
        uid: 0,
        gid: 0,
        mode: 0o644,
    }
}

fn source(number: u64) -> Source {
    Source { path: RelPath::new(&format!("f{number}")).unwrap(), offset: 0, length: None }
}

fn bytes_of(number: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number as usize * 31 + at) as u8).collect()
}

fn put_as(store: &Several, number: u64, bytes: &[u8], origin: Origin) -> Result<Stored> {
    let mut put = store.put(&series_in("d"), &source(number), &meta(number, bytes), origin)?;
    put.write(bytes)?;
    put.commit()
}

fn put(store: &Several, number: u64, length: usize) -> Result<Stored> {
    put_as(store, number, &bytes_of(number, length), Origin::Native)
}

fn held(store: &Several) -> RunSet {
    let (native, alien) = store.holdings(&series_in("d"));
    assert!(native.is_disjoint(&alien));
    native.union(&alien)
}

fn on_disk(store: &Several, at: usize) -> u64 {
    let (native, alien) = store.disks()[at].holdings(&series_in("d"));
    native.len() + alien.len()
}

fn pages(store: &Several, wanted: &RunSet) -> Vec<CachedFrame> {
    let (mut all, mut cursor) = (Vec::new(), PageCursor::default());
    while let Some(page) = store.entries_page(&series_in("d"), wanted, &mut cursor).unwrap() {
        all.extend(page);
    }
    all
}

fn read(store: &Several, number: u64) -> Option<Vec<u8>> {
    let opened = store.open_frame(&series_in("d"), number).unwrap()?;
    let mut bytes = vec![0; opened.meta.length as usize];
    std::os::unix::fs::FileExt::read_exact_at(&opened.file, &mut bytes, opened.offset).unwrap();
    Some(bytes)
}

#[test]
fn frames_are_dealt_to_all_disks_and_come_back_after_a_restart() {
    let disks = disks(3);
    let store = open(&disks, 32 << 20);
    for number in 0..90 {
        assert_eq!(put(&store, number, LARGE).unwrap(), Stored::Stored);
    }
    for at in 0..3 {
        assert_eq!(on_disk(&store, at), 30);
    }
    store.sync().unwrap();
    drop(store);
    let store = open(&disks, 32 << 20);
    assert_eq!(held(&store), RunSet::range(0, 89));
    for number in 0..90 {
        assert_eq!(read(&store, number), Some(bytes_of(number, LARGE)));
        assert_eq!(store.verify(&series_in("d"), number).unwrap(), Some(true));
    }
    // Who reads a page in its order keeps all disks busy.
    let entries = pages(&store, &RunSet::range(0, 89));
    assert_eq!(entries.len(), 90);
    for three in entries.chunks(3) {
        let mut parts: Vec<u64> = three.iter().map(|entry| entry.meta.number.get() % 3).collect();
        parts.sort_unstable();
        assert_eq!(parts, [0, 1, 2]);
    }
    for entry in &entries {
        let opened = store.open_entry(&series_in("d"), entry).unwrap().unwrap();
        assert_eq!(opened.meta, entry.meta);
    }
}

#[test]
fn small_frames_share_files_on_each_disk() {
    let disks = disks(2);
    let store = open(&disks, 32 << 20);
    for number in 0..1024 {
        put(&store, number, SMALL).unwrap();
    }
    assert_eq!((on_disk(&store, 0), on_disk(&store, 1)), (512, 512));
    let entries = store.entries(&series_in("d"), &RunSet::range(0, 1023)).unwrap();
    assert_eq!(entries.len(), 1024);
    let changes = entries.windows(2).filter(|two| !two[0].is_packed_with(&two[1])).count();
    assert!(changes < 8, "{changes} changes of the file among 1024 packed frames");
}

#[test]
fn a_full_disk_leaves_its_share_to_the_others_before_anything_is_evicted() {
    let disks = disks(2);
    let config = |budget_bytes| StoreConfig { budget_bytes, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
    let small = Store::open(WatchedDisk::new(disks[0].clone()), config(3 << 20)).unwrap().0;
    let large = Store::open(WatchedDisk::new(disks[1].clone()), config(32 << 20)).unwrap().0;
    let store = Stores::new(vec![small, large]).unwrap();
    for number in 0..200 {
        put(&store, number, LARGE).unwrap();
    }
    assert_eq!(held(&store).len(), 200, "nothing was evicted");
    assert!(on_disk(&store, 0) > 20 && on_disk(&store, 1) > 100);
    let space = store.space();
    assert_eq!(space.budget, 35 << 20);
    for one in store.disks() {
        assert!(one.space().used <= one.space().budget);
    }
}

#[test]
fn a_disk_that_takes_no_changes_costs_only_what_is_on_it() {
    let disks = disks(2);
    let store = open(&disks, 32 << 20);
    for number in 0..10 {
        put(&store, number, LARGE).unwrap();
    }
    disks[0].set_read_only(true);
    // New frames go to the other disk, also those whose number says otherwise.
    for number in 10..20 {
        assert_eq!(put(&store, number, LARGE).unwrap(), Stored::Stored, "frame {number}");
    }
    assert_eq!((on_disk(&store, 0), on_disk(&store, 1)), (5, 15));
    for number in 0..20 {
        assert_eq!(read(&store, number), Some(bytes_of(number, LARGE)), "frame {number}");
    }
    assert_eq!(pages(&store, &RunSet::range(0, 19)).len(), 20);
}

/// While one disk takes no changes, a frame of it is replaced. When the disk is back, nobody may
/// get the old bytes.
#[test]
fn a_copy_that_was_replaced_while_its_disk_failed_is_never_handed_out() {
    let disks = disks(2);
    let store = open(&disks, 32 << 20);
    for number in 0..4 {
        put(&store, number, LARGE).unwrap();
    }
    disks[0].set_read_only(true);
    // Notice it.
    put(&store, 10, LARGE).unwrap();
    let new = vec![7; LARGE];
    assert_eq!(put_as(&store, 0, &new, Origin::Native).unwrap(), Stored::Stored);
    assert_eq!(read(&store, 0), Some(new.clone()), "the copy on the disk that works");
    let entries = pages(&store, &RunSet::range(0, 0));
    assert_eq!(entries.iter().map(|entry| entry.meta.checksum).collect::<Vec<_>>(), [frame_checksum(&new)]);
    store.sync().unwrap_err();
    drop(store);

    disks[0].set_read_only(false);
    let store = open(&disks, 32 << 20);
    assert_eq!(read(&store, 0), Some(new), "the newer copy");
    assert_eq!(
        (on_disk(&store, 0), on_disk(&store, 1)),
        (0, 4),
        "which copies of the first are old is not known"
    );
    assert_eq!(read(&store, 1), Some(bytes_of(1, LARGE)));
    // The next start has nothing to drop.
    put(&store, 2, LARGE).unwrap();
    assert_eq!(on_disk(&store, 0), 1);
    store.sync().unwrap();
    drop(store);
    assert_eq!(on_disk(&open(&disks, 32 << 20), 0), 1);
}

fn dataset() -> RelPath {
    series_in("d")
}

/// Two disks whose health goes by `clock`. Frames 0 to 3 are on them, and frame 0, which was on the
/// first, was replaced by `new` while that disk took no changes.
fn replaced(disks: &[SimDisk], clock: &Arc<ManualClock>, new: &[u8]) -> Several {
    let open = |disk: &SimDisk| {
        let config = StoreConfig { budget_bytes: 32 << 20, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
        Store::open(WatchedDisk::with_clock(disk.clone(), clock.clone()), config).unwrap().0
    };
    let store = Stores::new(disks.iter().map(open).collect()).unwrap();
    for number in 0..4 {
        put(&store, number, LARGE).unwrap();
    }
    disks[0].set_read_only(true);
    put(&store, 10, LARGE).unwrap();
    assert_eq!(put_as(&store, 0, new, Origin::Native).unwrap(), Stored::Stored);
    store
}

/// The newer copy goes before the disk with the old one is back. The old one would be the only one.
#[test]
fn an_old_copy_does_not_come_back_when_the_newer_one_was_evicted() {
    let (disks, clock, new) = (disks(2), Arc::new(ManualClock::default()), vec![7; LARGE]);
    let store = replaced(&disks, &clock, &new);
    assert_eq!(store.evict(&dataset(), Some(&RunSet::range(10, 10))).unwrap().0, 1);
    assert_eq!(store.disks()[1].drop_frame(&dataset(), 0).ok(), Some(true), "as an eviction does");
    for step in ["while the disk fails", "when it is back", "after the next put", "after a stop"] {
        assert!(!held(&store).contains(0) && read(&store, 0).is_none(), "{step}");
        assert_eq!(store.entries(&dataset(), &RunSet::range(0, 0)).unwrap(), [], "{step}");
        assert_eq!(pages(&store, &RunSet::range(0, 0)), [], "{step}");
        assert_eq!(store.entry(&dataset(), 0).unwrap(), None, "{step}");
        match step {
            "while the disk fails" => {
                disks[0].set_read_only(false);
                clock.advance_ns(60_000_000_000);
            }
            "when it is back" => assert_eq!(put(&store, 12, LARGE).unwrap(), Stored::Stored),
            _ => store.sync().unwrap(),
        }
    }
    assert_eq!(on_disk(&store, 0), 2, "frames 2 and 12; the old copy of frame 0 is gone");
    assert_eq!(put_as(&store, 0, &new, Origin::Native).unwrap(), Stored::Stored);
    drop(store);
    let store = open(&disks, 32 << 20);
    assert_eq!(read(&store, 0), Some(new));
    assert_eq!(read(&store, 2), Some(bytes_of(2, LARGE)), "nothing else was lost");
}

/// The same over a restart, with the disk back at once or only at a later start.
#[test]
fn an_old_copy_does_not_come_back_with_a_restart() {
    for without in [false, true] {
        let (disks, clock, new) = (disks(2), Arc::new(ManualClock::default()), vec![7; LARGE]);
        let store = replaced(&disks, &clock, &new);
        assert_eq!(store.disks()[1].drop_frame(&dataset(), 0).ok(), Some(true));
        drop(store);
        disks[0].set_read_only(false);
        if without {
            drop(open(&disks[1..], 32 << 20));
        }
        let store = open(&disks, 32 << 20);
        assert_eq!(read(&store, 0), None, "without: {without}");
        assert_eq!(read(&store, 1), Some(bytes_of(1, LARGE)));
    }
}

/// A daemon starts without one of its disks, and gets newer frames.
#[test]
fn a_disk_that_was_away_has_old_copies_only_of_datasets_that_changed() {
    let (disks, new) = (disks(2), vec![7; LARGE]);
    let other = |store: &Several| {
        let bytes = bytes_of(0, LARGE);
        let mut put = store.put(&series_in("e"), &source(0), &meta(0, &bytes), Origin::Native).unwrap();
        put.write(&bytes).unwrap();
        put.commit().unwrap();
    };
    let store = open(&disks, 32 << 20);
    for number in 0..4 {
        put(&store, number, LARGE).unwrap();
    }
    other(&store);
    store.sync().unwrap();
    drop(store);
    let store = open(&disks[1..], 32 << 20);
    assert_eq!(put_as(&store, 0, &new, Origin::Native).unwrap(), Stored::Stored);
    assert_eq!(store.drop_frame(&dataset(), 0).ok(), Some(true));
    store.sync().unwrap();
    drop(store);
    let store = open(&disks, 32 << 20);
    assert_eq!(
        (read(&store, 0), read(&store, 2)),
        (None, None),
        "they may be older than what came meanwhile"
    );
    assert_eq!(read(&store, 1), Some(bytes_of(1, LARGE)));
    assert!(
        store.open_frame(&series_in("e"), 0).unwrap().is_some(),
        "nothing of this dataset came meanwhile"
    );
}

/// A frame is dropped, and its disk does not take the change.
#[test]
fn a_copy_that_could_not_be_dropped_counts_no_more() {
    let (disks, clock) = (disks(2), Arc::new(ManualClock::default()));
    let store = replaced(&disks, &clock, &[7; LARGE]);
    let stale = store.entry(&dataset(), 2).unwrap().unwrap();
    store.drop_stale(&dataset(), &stale).unwrap_err();
    assert!(read(&store, 2).is_none() && !held(&store).contains(2));
    drop(store);
    disks[0].set_read_only(false);
    assert_eq!(read(&open(&disks, 32 << 20), 2), None);
}

/// Frames are evicted, and their disk does not take the change. A newer copy of one of them comes
/// to another disk and goes again.
#[test]
fn a_copy_that_could_not_be_evicted_does_not_come_back() {
    let (disks, clock) = (disks(2), Arc::new(ManualClock::default()));
    let store = replaced(&disks, &clock, &[7; LARGE]);
    store.evict(&dataset(), Some(&RunSet::range(2, 2))).unwrap_err();
    assert_eq!(read(&store, 2), Some(bytes_of(2, LARGE)), "what cannot be evicted stays");
    assert_eq!(put_as(&store, 2, &vec![8; LARGE], Origin::Native).unwrap(), Stored::Stored);
    assert_eq!(store.disks()[1].drop_frame(&dataset(), 2).ok(), Some(true));
    drop(store);
    disks[0].set_read_only(false);
    assert_eq!(read(&open(&disks, 32 << 20), 2), None);
}

/// Damages the text that says which copies of other disks are old.
fn damage_text(disk: &SimDisk) {
    let named = |path: &String| path.ends_with("superseded");
    let path = disk.files().into_iter().map(|(path, _)| path).find(named).unwrap();
    assert!(disk.tamper(&path, |bytes| bytes[30] ^= 1));
}

/// Only one text names the old copy, and it is damaged, whether the disk then takes changes or not.
#[test]
fn a_damaged_text_brings_no_old_copy_back() {
    for restart_between in [false, true] {
        let (disks, new) = (disks(2), vec![7; LARGE]);
        let store = replaced(&disks, &Arc::new(ManualClock::default()), &new);
        assert_eq!(store.disks()[1].drop_frame(&dataset(), 0).ok(), Some(true));
        drop(store);
        damage_text(&disks[1]);
        if restart_between {
            // Without the disk with the old copy, which is not known by now.
            let store = open(&disks[1..], 32 << 20);
            put(&store, 20, LARGE).unwrap();
            store.sync().unwrap();
        }
        disks[0].set_read_only(false);
        let store = open(&disks, 32 << 20);
        assert_eq!(read(&store, 0), None, "{restart_between}");
        assert_eq!(read(&store, 1), Some(bytes_of(1, LARGE)), "its own frames stay");
        assert!(disks[1].files().iter().any(|(path, _)| path.ends_with("superseded.aside-1")));
        // What comes from now on stays.
        put(&store, 0, LARGE).unwrap();
        store.sync().unwrap();
        drop(store);
        assert_eq!(read(&open(&disks, 32 << 20), 0), Some(bytes_of(0, LARGE)));
    }
}

/// The newer copy on the second disk goes with that disk; the one on the third is evicted.
#[test]
fn each_newer_copy_notes_the_old_ones_on_its_own_disk() {
    let (disks, clock) = (disks(3), Arc::new(ManualClock::default()));
    let open_with = |disk: &SimDisk| {
        let config = StoreConfig { budget_bytes: 32 << 20, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
        Store::open(WatchedDisk::with_clock(disk.clone(), clock.clone()), config).unwrap().0
    };
    let store = Stores::new(disks.iter().map(open_with).collect()).unwrap();
    put(&store, 0, LARGE).unwrap();
    disks[0].set_read_only(true);
    disks[2].set_read_only(true);
    // Notice it.
    put(&store, 3, LARGE).unwrap();
    put(&store, 5, LARGE).unwrap();
    put_as(&store, 0, &vec![7; LARGE], Origin::Native).unwrap();
    assert_eq!(store.disks()[1].drop_frame(&dataset(), 0).ok(), Some(true));
    disks[1].set_read_only(true);
    disks[2].set_read_only(false);
    clock.advance_ns(60_000_000_000);
    put_as(&store, 0, &vec![8; LARGE], Origin::Native).unwrap();
    assert_eq!(store.disks()[2].drop_frame(&dataset(), 0).ok(), Some(true));
    drop(store);
    disks[0].set_read_only(false);
    assert_eq!(read(&open(&[disks[0].clone(), disks[2].clone()], 32 << 20), 0), None);
}

#[test]
fn bytes_that_are_refused_make_no_copy_old() {
    let disks = disks(2);
    let store = replaced(&disks, &Arc::new(ManualClock::default()), &[7; LARGE]);
    let new = vec![9; LARGE];
    let mut put = store.put(&dataset(), &source(2), &meta(2, &new), Origin::Native).unwrap();
    put.write(&[1; LARGE]).unwrap();
    assert_eq!(put.commit().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(read(&store, 2), Some(bytes_of(2, LARGE)));
}

#[test]
fn many_old_copies_go_in_several_steps() {
    let disks = disks(2);
    let store = open(&disks, 32 << 20);
    for number in 0..3072 {
        put(&store, number, SMALL).unwrap();
    }
    let before = on_disk(&store, 0);
    assert_eq!(before, 1536);
    store.sync().unwrap();
    drop(store);
    let store = open(&disks[1..], 32 << 20);
    put(&store, 0, LARGE).unwrap();
    drop(store);
    let store = open(&disks, 32 << 20);
    assert_eq!(on_disk(&store, 0), before - 1000);
    assert_eq!(held(&store).len(), 1537, "none of them counts");
    store.sync().unwrap();
    assert_eq!(on_disk(&store, 0), 0);
}

/// One disk that cannot be read is as if it had nothing.
#[test]
fn entries_of_the_other_disks_come_when_one_cannot_be_read() {
    let disks = disks(2);
    let store = open(&disks, 32 << 20);
    for number in 0..8 {
        put(&store, number, SMALL + number as usize).unwrap();
    }
    for number in 256..264 {
        put(&store, number, SMALL).unwrap();
    }
    disks[0].fail_read_at(disks[0].reads() + 1);
    let entries = store.entries(&dataset(), &RunSet::range(0, 511)).unwrap();
    assert_eq!(entries.len(), 8, "those of the disk that can be read");
}

#[test]
fn pins_hold_on_all_disks() {
    let disks = disks(2);
    let store = open(&disks, 2 << 20);
    assert_eq!(store.pin(&series_in("d"), true).unwrap_err().kind(), ErrorKind::NotFound);
    put(&store, 0, LARGE).unwrap();
    store.pin(&series_in("d"), true).unwrap();
    put(&store, 1, LARGE).unwrap();
    let other = |number: u64| {
        let bytes = bytes_of(number, LARGE);
        let mut put = store.put(&series_in("e"), &source(number), &meta(number, &bytes), Origin::Native)?;
        put.write(&bytes)?;
        put.commit()
    };
    for number in 0..200 {
        if let Err(error) = other(number) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
    }
    assert_eq!(held(&store).len(), 2, "pinned frames stay, whatever their disk");
    assert!(store.evict(&series_in("d"), None).is_err());
    store.pin(&series_in("d"), false).unwrap();
    assert_eq!(store.evict(&series_in("d"), None).unwrap().0, 2);
    assert!(held(&store).is_empty());
}

/// A random history on several disks, with restarts, is like a map.
#[test]
fn a_random_history_is_like_a_map() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = SeededRandom::new(seed);
        let disks = disks(1 + seed % 3);
        let mut store = open(&disks, 32 << 20);
        let mut model: BTreeMap<u64, usize> = BTreeMap::new();
        for _ in 0..200 {
            let number = random.below(40);
            match random.below(10) {
                0..=5 => {
                    let length =
                        model.get(&number).copied().unwrap_or(if random.percent(50) { SMALL } else { LARGE });
                    put(&store, number, length).unwrap();
                    model.insert(number, length);
                }
                6..=7 => {
                    let dropped = store.drop_frame(&series_in("d"), number).unwrap();
                    assert_eq!(dropped, model.remove(&number).is_some());
                }
                8 => {
                    store.sync().unwrap();
                    drop(store);
                    store = open(&disks, 32 << 20);
                }
                _ => {
                    let set = RunSet::range(number, number + 9);
                    let evicted = store.evict(&series_in("d"), Some(&set)).unwrap().0;
                    let before = model.len();
                    model.retain(|number, _| !set.contains(*number));
                    assert_eq!(evicted, (before - model.len()) as u64);
                }
            }
            assert!(held(&store).iter().eq(model.keys().copied()));
        }
        let mut numbers: Vec<u64> =
            pages(&store, &RunSet::range(0, 100)).iter().map(|entry| entry.meta.number.get()).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().eq(model.keys()));
        for (number, length) in &model {
            assert_eq!(read(&store, *number), Some(bytes_of(*number, *length)));
        }
        let all = store.datasets();
        assert_eq!(all.iter().map(|one| one.natives).sum::<u64>(), model.len() as u64);
    }
}
