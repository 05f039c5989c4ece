//! What every store must do on every disk: the suite that the store's own tests run on the
//! simulated and on the real disk, and that a new disk should pass.
//!
//! A failure is a panic that names the case.

#![allow(clippy::unwrap_used)]

use crate::{CachedFrame, Store, StoreConfig, Stored};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zazen_core::{
    ErrorKind, FrameMeta, FrameNo, Layout, NameTemplate, Origin, RelPath, Result, RunSet, Series, Source,
    Validator,
};
use zazen_env::{Disk, SeededRandom};
use zazen_wire::checksum::frame_checksum;

/// Opens a disk for a store. Called again, it opens the same disk again.
pub type DiskMaker<'a, D> = Box<dyn Fn() -> D + 'a>;

/// A budget that no case exceeds by accident.
pub const BUDGET: u64 = 64 << 20;

/// Frames up to this length are packed: fewer bytes than a daemon packs, so that the cases stay
/// small.
const PACKED: u64 = 16 << 10;

/// Opens the store of a disk with [`BUDGET`].
pub fn open<D: Disk>(place: &DiskMaker<'_, D>) -> Arc<Store<D>> {
    open_with(place, BUDGET)
}

/// Opens the store of a place.
pub fn open_with<D: Disk>(place: &DiskMaker<'_, D>, budget_bytes: u64) -> Arc<Store<D>> {
    Store::open(place(), StoreConfig { budget_bytes, free_floor_bytes: 0, packed_bytes_max: PACKED })
        .expect("open the store")
        .0
}

/// A path.
pub fn path(text: &str) -> RelPath {
    RelPath::new(text).expect("a good path")
}

/// The series of files `frame-{n}.dcd` in directory `text`.
pub fn series_in(text: &str) -> RelPath {
    series_of(text, "frame-{n}.dcd")
}

/// The series of files called `template` in directory `text`.
pub fn series_of(text: &str, template: &str) -> RelPath {
    let template = NameTemplate::parse(template).expect("a good template");
    path(text).series(&Series::of(&Layout::Files(template))).expect("a good series")
}

/// The source of a whole file.
pub fn whole(name: &str) -> Source {
    Source { path: path(name), offset: 0, length: None }
}

/// The usual file of frame `number`.
pub fn file_of(number: u64) -> Source {
    whole(&format!("frame-{number:07}.dcd"))
}

/// `length` bytes that differ for each number and version.
pub fn bytes_of(number: u64, version: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededRandom::new(number << 8 | version).fill(&mut bytes);
    bytes
}

/// What a writer says of frame `number` with these bytes; `version` is in its validator.
pub fn meta_of(number: u64, version: u64, bytes: &[u8]) -> FrameMeta {
    FrameMeta {
        number: FrameNo::new(number).expect("a good number"),
        length: bytes.len() as u64,
        checksum: frame_checksum(bytes),
        validator: Some(Validator {
            size: bytes.len() as u64,
            mtime_ns: version as i64,
            ..Validator::default()
        }),
        uid: 1000,
        gid: 1000,
        mode: 0o644,
    }
}

/// Puts a frame in one go.
pub fn put<D: Disk>(
    store: &Arc<Store<D>>,
    dataset: &RelPath,
    source: &Source,
    meta: &FrameMeta,
    bytes: &[u8],
    origin: Origin,
) -> Result<Stored> {
    let mut put = store.put(dataset, source, meta, origin)?;
    for part in bytes.chunks(100_000) {
        put.write(part)?;
    }
    put.commit()
}

/// Puts version `version` of frame `number` with `length` bytes.
pub fn put_version<D: Disk>(
    store: &Arc<Store<D>>,
    dataset: &str,
    number: u64,
    version: u64,
    length: usize,
    origin: Origin,
) -> Result<Stored> {
    let bytes = bytes_of(number, version, length);
    put(store, &series_in(dataset), &file_of(number), &meta_of(number, version, &bytes), &bytes, origin)
}

/// The bytes of a frame as a reader gets them; `None` if it isn't here, or if they don't match
/// their checksum.
pub fn read<D: Disk>(store: &Store<D>, dataset: &str, number: u64) -> Option<Vec<u8>> {
    let frame = store.open_frame(&series_in(dataset), number).expect("open a frame")?;
    let mut bytes = vec![0; frame.meta.length as usize];
    frame.file.read_exact_at(&mut bytes, frame.offset).expect("read an opened frame");
    (frame_checksum(&bytes) == frame.meta.checksum).then_some(bytes)
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Runs all cases, each in a fresh place.
pub fn run<'a, D: Disk>(fresh: impl Fn() -> DiskMaker<'a, D>) {
    frames_come_back_and_survive_a_restart(&fresh());
    two_frames_with_one_number(&fresh());
    equal_frames_and_promotion(&fresh());
    sources_of_all_kinds(&fresh());
    unfinished_puts_leave_nothing(&fresh());
    wrong_input_is_refused(&fresh());
    series_lie_side_by_side(&fresh());
    another_source_replaces(&fresh());
    frames_adopt_validators(&fresh());
    clashing_names_are_conflicts(&fresh());
    entries_come_in_storage_order(&fresh());
    entries_open_what_they_describe(&fresh());
    a_random_history_is_like_a_map(&fresh(), 1);
    a_random_history_is_like_a_map(&fresh(), 2);
    eviction_keeps_the_budget(&fresh());
    a_scan_hinders_no_eviction_by_hand(&fresh());
    a_gradual_put_takes_room_as_bytes_arrive(&fresh());
    a_cyclic_scan_keeps_its_hits(&fresh());
    pins_and_layouts_survive(&fresh());
    concurrent_puts_have_one_winner(&fresh());
    concurrent_readers_never_see_wrong_bytes(&fresh());
}

fn entries_open_what_they_describe<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    for (number, length) in (0..).zip(LENGTHS) {
        put_version(&store, "sim1", number, 0, length, Origin::Alien).unwrap();
    }
    let entries = store.entries(&series_in("sim1"), &RunSet::range(0, 9)).unwrap();
    assert_eq!(entries.len(), LENGTHS.len());
    for entry in &entries {
        let opened = store.open_entry(&series_in("sim1"), entry).unwrap().unwrap();
        let mut bytes = vec![0; entry.meta.length as usize];
        opened.file.read_exact_at(&mut bytes, opened.offset).unwrap();
        assert_eq!(frame_checksum(&bytes), entry.meta.checksum);
        assert_eq!((&opened.meta, opened.origin, &opened.path), (&entry.meta, Origin::Alien, &entry.path));
    }
    // An entry that has become old: a dropped frame isn't here; the checksum of a replaced one
    // differs.
    let number_of = |at: usize| entries[at].meta.number.get();
    let large = entries.iter().position(|entry| entry.meta.length == 430_000).unwrap();
    store.drop_frame(&series_in("sim1"), number_of(large)).unwrap();
    assert!(store.open_entry(&series_in("sim1"), &entries[large]).unwrap().is_none());
    put_version(&store, "sim1", number_of(large), 2, 430_000, Origin::Alien).unwrap();
    let opened = store.open_entry(&series_in("sim1"), &entries[large]).unwrap().unwrap();
    let mut bytes = vec![0; 430_000];
    opened.file.read_exact_at(&mut bytes, opened.offset).unwrap();
    assert_ne!(frame_checksum(&bytes), opened.meta.checksum);
}

const LENGTHS: [usize; 5] = [0, 1, 4096, 16_384, 430_000];

fn frames_come_back_and_survive_a_restart<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    for (number, length) in (0..).zip(LENGTHS) {
        assert_eq!(put_version(&store, "sim1", number, 0, length, Origin::Native).unwrap(), Stored::Stored);
    }
    let check = |store: &Store<D>| {
        let (native, alien) = store.holdings(&series_in("sim1"));
        assert_eq!((&*native, &*alien), (&RunSet::range(0, 4), &RunSet::new()));
        for (number, length) in (0..).zip(LENGTHS) {
            assert_eq!(read(store, "sim1", number).unwrap(), bytes_of(number, 0, length));
            assert_eq!(store.verify(&series_in("sim1"), number).unwrap(), Some(true));
            let frame = store.open_frame(&series_in("sim1"), number).unwrap().unwrap();
            assert_eq!(frame.meta, meta_of(number, 0, &bytes_of(number, 0, length)));
        }
        assert!(store.open_frame(&series_in("sim1"), 5).unwrap().is_none());
        assert!(store.open_frame(&series_in("sim2"), 0).unwrap().is_none());
    };
    check(&store);
    let (node, used) = (store.node(), store.space().used);
    drop(store);
    let store = open(place);
    check(&store);
    assert_eq!((store.node(), store.space().used), (node, used), "identity and account survive");
    store.sync().unwrap();
    drop(store);
    let config = StoreConfig { budget_bytes: BUDGET, free_floor_bytes: 0, packed_bytes_max: PACKED };
    let (store, report) = Store::open(place(), config).unwrap();
    assert!(report.clean && report.problems.is_empty(), "{report:?}");
    assert_eq!((report.datasets, report.frames), (1, 5));
    check(&store);
}

fn two_frames_with_one_number<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    for length in [100, 50_000] {
        let number = length as u64;
        put_version(&store, "d", number, 1, length, Origin::Native).unwrap();
        let other = bytes_of(number, 99, length);
        let same_validator = FrameMeta { checksum: frame_checksum(&other), ..meta_of(number, 1, &other) };
        let clash = put(&store, &series_in("d"), &file_of(number), &same_validator, &other, Origin::Native);
        assert_eq!(kind(clash), Some(ErrorKind::Conflict));
        let no_validator = FrameMeta { validator: None, ..same_validator };
        let clash = put(&store, &series_in("d"), &file_of(number), &no_validator, &other, Origin::Native);
        assert_eq!(kind(clash), Some(ErrorKind::Conflict));
        assert_eq!(read(&store, "d", number).unwrap(), bytes_of(number, 1, length), "the first one stays");
        put_version(&store, "d", number, 2, length, Origin::Native).unwrap();
        assert_eq!(
            read(&store, "d", number).unwrap(),
            bytes_of(number, 2, length),
            "a changed source replaces"
        );
        put_version(&store, "d", number, 3, length + 20_000, Origin::Alien).unwrap();
        assert_eq!(read(&store, "d", number).unwrap(), bytes_of(number, 3, length + 20_000));
        assert!(store.holdings(&series_in("d")).1.contains(number), "it is an alien now");
    }
    let used = store.space().used;
    drop(store);
    let store = open(place);
    assert_eq!(store.space().used, used);
    assert_eq!(read(&store, "d", 100).unwrap(), bytes_of(100, 3, 20_100));
    assert_eq!(store.holdings(&series_in("d")).1.len(), 2);
}

fn equal_frames_and_promotion<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    for (number, length) in [(1, 100), (2, 70_000)] {
        assert_eq!(put_version(&store, "d", number, 1, length, Origin::Alien).unwrap(), Stored::Stored);
        assert_eq!(put_version(&store, "d", number, 1, length, Origin::Alien).unwrap(), Stored::AlreadyHere);
        assert!(store.holdings(&series_in("d")).1.contains(number));
        let before = store.space().used;
        assert_eq!(put_version(&store, "d", number, 1, length, Origin::Native).unwrap(), Stored::AlreadyHere);
        let (native, alien) = store.holdings(&series_in("d"));
        assert!(native.contains(number) && !alien.contains(number));
        assert!(store.space().used <= before + 8192, "no second copy");
        // The source was rewritten with the same bytes: the copy is good, and must not look stale.
        let touched = FrameMeta {
            validator: Some(Validator { size: 1, mtime_ns: 77, ..Validator::default() }),
            ..meta_of(number, 1, &bytes_of(number, 1, length))
        };
        let bytes = bytes_of(number, 1, length);
        let again = put(&store, &series_in("d"), &file_of(number), &touched, &bytes, Origin::Native).unwrap();
        assert_eq!(again, Stored::AlreadyHere);
        assert_eq!(store.entry(&series_in("d"), number).unwrap().unwrap().meta, touched);
        // Access changes too.
        let private = FrameMeta { mode: 0o600, ..touched };
        put(&store, &series_in("d"), &file_of(number), &private, &bytes, Origin::Alien).unwrap();
        let now = store.entry(&series_in("d"), number).unwrap().unwrap();
        assert_eq!((now.meta, now.origin), (private, Origin::Native));
        assert_eq!(read(&store, "d", number).unwrap(), bytes);
    }
    let used = store.space().used;
    drop(store);
    let store = open(place);
    assert_eq!(store.space().used, used);
    assert_eq!(*store.holdings(&series_in("d")).0, RunSet::range(1, 2));
    assert_eq!(read(&store, "d", 2).unwrap(), bytes_of(2, 1, 70_000));
}

fn sources_of_all_kinds<D: Disk>(place: &DiskMaker<'_, D>) {
    let piece =
        |offset, length: usize| Source { path: path("traj/a.xtc"), offset, length: Some(length as u64) };
    let sources = [
        (1, 20_000, whole("frame-0001.dcd")),
        (2, 20_000, whole("deep/er/frame-0002.dcd")),
        (3, 20_000, whole("no number in it.pdb")),
        (4, 20_000, whole("odd %{n} name-4é")),
        (5, 30_000, piece(0, 30_000)),
        (6, 30_000, piece(30_000, 30_000)),
        (7, 3_000, piece(60_000, 3_000)),
        (8, 3_000, whole("small file")),
        (1 << 40, 20_000, whole("frame-1099511627776.dcd")),
    ];
    let store = open(place);
    for (number, length, source) in &sources {
        let bytes = bytes_of(*number, 0, *length);
        let meta = meta_of(*number, 0, &bytes);
        assert_eq!(
            put(&store, &series_in("a/b"), source, &meta, &bytes, Origin::Native).unwrap(),
            Stored::Stored
        );
    }
    let check = |store: &Store<D>| {
        let entries = store.entries(&series_in("a/b"), &RunSet::range(0, 1 << 40)).unwrap();
        let by_number: BTreeMap<u64, &CachedFrame> =
            entries.iter().map(|entry| (entry.meta.number.get(), entry)).collect();
        assert_eq!(by_number.len(), sources.len());
        for (number, length, source) in &sources {
            assert_eq!(&by_number[number].source, source);
            assert_eq!(read(store, "a/b", *number).unwrap(), bytes_of(*number, 0, *length));
            let is_whole = source.offset == 0 && source.length.is_none();
            if is_whole && *length > 16_384 {
                let root = place_root(store);
                assert_eq!(
                    by_number[number].path,
                    root.join(series_in("a/b").as_str()).join(source.path.as_str()),
                    "its own path"
                );
            }
        }
    };
    check(&store);
    drop(store);
    check(&open(place));
}

fn place_root<D: Disk>(store: &Store<D>) -> std::path::PathBuf {
    store.root().to_path_buf()
}

fn unfinished_puts_leave_nothing<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    put_version(&store, "d", 0, 0, 100, Origin::Native).unwrap();
    let before = store.space();
    for length in [1_000, 100_000] {
        let bytes = bytes_of(1, 0, length);
        let meta = meta_of(1, 0, &bytes);
        let mut dropped = store.put(&series_in("d"), &file_of(1), &meta, Origin::Native).unwrap();
        dropped.write(&bytes[..500]).unwrap();
        assert!(store.space().reserved >= length as u64);
        drop(dropped);
        let mut short = store.put(&series_in("d"), &file_of(1), &meta, Origin::Native).unwrap();
        short.write(&bytes[1..]).unwrap();
        assert_eq!(kind(short.commit()), Some(ErrorKind::Corrupt));
        let mut long = store.put(&series_in("d"), &file_of(1), &meta, Origin::Native).unwrap();
        long.write(&bytes).unwrap();
        assert_eq!(kind(long.write(&[1])), Some(ErrorKind::InvalidArgument));
        drop(long);
        let mut wrong = store.put(&series_in("d"), &file_of(1), &meta, Origin::Native).unwrap();
        wrong.write(&bytes_of(1, 9, length)).unwrap();
        assert_eq!(kind(wrong.commit()), Some(ErrorKind::Corrupt));
        assert!(store.open_frame(&series_in("d"), 1).unwrap().is_none());
        let now = store.space();
        assert_eq!((now.used, now.reserved), (before.used, 0), "length {length}");
    }
    let bytes = bytes_of(1, 0, 20_000);
    let unknown = FrameMeta { checksum: 0, ..meta_of(1, 0, &bytes) };
    let mut computed = store.put(&series_in("d"), &file_of(1), &unknown, Origin::Alien).unwrap();
    computed.write(&bytes).unwrap();
    assert_eq!(computed.commit_computed().unwrap(), (Stored::Stored, frame_checksum(&bytes)));
    assert_eq!(read(&store, "d", 1).unwrap(), bytes);
}

fn wrong_input_is_refused<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let meta = meta_of(1, 0, b"1234");
    let refused = |source: &Source, meta: &FrameMeta| {
        kind(store.put(&series_in("d"), source, meta, Origin::Native).map(|_| ()))
    };
    assert_eq!(refused(&whole(""), &meta), Some(ErrorKind::InvalidArgument));
    let lying = Source { length: Some(5), ..file_of(1) };
    assert_eq!(refused(&lying, &meta), Some(ErrorKind::InvalidArgument));
    let huge = FrameMeta { length: (1 << 40) + 1, ..meta.clone() };
    assert_eq!(refused(&file_of(1), &huge), Some(ErrorKind::TooLarge));
    let no_room = FrameMeta { length: BUDGET + 1, ..meta };
    assert_eq!(refused(&file_of(1), &no_room), Some(ErrorKind::NoSpace));
    assert_eq!(kind(store.pin(&series_in("unknown"), true)), Some(ErrorKind::NotFound));
    assert!(!store.drop_frame(&series_in("unknown"), 1).unwrap());
    assert_eq!(store.evict(&series_in("unknown"), None).unwrap(), (0, 0));
    assert_eq!(store.entries(&series_in("unknown"), &RunSet::range(0, 9)).unwrap(), []);
    assert!(store.datasets().is_empty(), "a refused put makes no dataset");
    let second = Store::open(
        place(),
        StoreConfig { budget_bytes: BUDGET, free_floor_bytes: 0, packed_bytes_max: PACKED },
    );
    assert_eq!(kind(second), Some(ErrorKind::Busy), "one process at a time");
}

fn series_lie_side_by_side<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    // Three cases: the same directory twice; another dataset's folder as a part of a template; the
    // root.
    let all = [
        (series_of("sim1", "pos-{n}"), "pos-1"),
        (series_of("sim1", "vel-{n}"), "vel-1"),
        (series_of("sim1", "run2/f-{n}"), "run2/f-1"),
        (series_of("sim1/run2", "f-{n}"), "f-1"),
        (series_of("", "sim1/run2/f-{n}"), "sim1/run2/f-1"),
    ];
    for (version, (series, name)) in (0..).zip(&all) {
        let bytes = bytes_of(1, version, 20_000);
        let meta = meta_of(1, 0, &bytes);
        assert_eq!(put(&store, series, &whole(name), &meta, &bytes, Origin::Native).unwrap(), Stored::Stored);
    }
    let read = |store: &Store<D>, series: &RelPath| {
        let frame = store.open_frame(series, 1).unwrap()?;
        let mut bytes = vec![0; 20_000];
        frame.file.read_exact_at(&mut bytes, 0).unwrap();
        Some(bytes)
    };
    let check = |store: &Store<D>| {
        for (version, (series, _)) in (0..).zip(&all) {
            assert_eq!(read(store, series), Some(bytes_of(1, version, 20_000)), "{series}");
        }
        assert_eq!(store.datasets().len(), all.len());
        let of = |text: &str| store.series_of(&path(text)).len();
        assert_eq!((of("sim1"), of("sim1/run2"), of(""), of("sim")), (3, 1, 1, 0));
    };
    check(&store);
    drop(store);
    let store = open(place);
    check(&store);
    assert_eq!(store.evict(&all[2].0, None).unwrap().0, 1);
    assert!(read(&store, &all[2].0).is_none());
    for series in [&all[0].0, &all[1].0, &all[3].0, &all[4].0] {
        assert!(read(&store, series).is_some(), "{series} stays");
    }
    let bytes = bytes_of(1, 0, 20);
    let unnamed = put(&store, &path("sim1"), &whole("f-1"), &meta_of(1, 0, &bytes), &bytes, Origin::Native);
    assert_eq!(kind(unnamed), Some(ErrorKind::InvalidArgument), "a directory is no series");
}

fn another_source_replaces<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let series = series_in("d");
    for length in [100, 20_000] {
        let bytes = bytes_of(7, 0, length);
        let meta = meta_of(7, 0, &bytes);
        for name in ["frame-7.dcd", "frame-007.dcd", "frame-7.dcd"] {
            let stored = put(&store, &series, &whole(name), &meta, &bytes, Origin::Native).unwrap();
            assert_eq!(stored, Stored::Stored, "{name} is another file, though its bytes are the same");
            let entry = store.entry(&series, 7).unwrap().unwrap();
            assert_eq!(entry.source, whole(name));
            assert_eq!(read(&store, "d", 7).as_ref(), Some(&bytes));
        }
        assert_eq!(store.holdings(&series).0.len(), 1);
        store.drop_frame(&series, 7).unwrap();
    }
}

fn frames_adopt_validators<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let series = series_in("d");
    for (number, length) in [(1, 100), (2, 20_000), (3, 100)] {
        let bytes = bytes_of(number, 0, length);
        let meta = FrameMeta { validator: None, ..meta_of(number, 0, &bytes) };
        put(&store, &series, &file_of(number), &meta, &bytes, Origin::Native).unwrap();
    }
    let seen = Validator { size: 9, mtime_ns: 8, ctime_ns: 7, inode: 6, unsettled: false };
    let entries = store.entries(&series, &RunSet::range(0, 9)).unwrap();
    store.drop_frame(&series, 3).unwrap();
    let all: Vec<_> = entries.iter().map(|entry| (entry, seen)).collect();
    store.adopt(&series, &all).unwrap();
    let check = |store: &Store<D>| {
        for (number, length) in [(1, 100), (2, 20_000)] {
            assert_eq!(store.entry(&series, number).unwrap().unwrap().meta.validator, Some(seen));
            assert_eq!(read(store, "d", number), Some(bytes_of(number, 0, length)));
        }
        assert_eq!(*store.holdings(&series).0, RunSet::range(1, 2));
    };
    check(&store);
    let used = store.space().used;
    drop(store);
    let store = open(place);
    check(&store);
    assert_eq!(store.space().used, used);
    // Only what was looked at is dropped, and nothing that came meanwhile.
    assert!(!store.drop_stale(&series, &entries[0]).unwrap());
    let now = store.entry(&series, 1).unwrap().unwrap();
    assert!(store.drop_stale(&series, &now).unwrap());
    assert!(store.entry(&series, 1).unwrap().is_none());
}

fn clashing_names_are_conflicts<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let bytes = bytes_of(1, 0, 20_000);
    let at = |number, name: &str| {
        kind(put(&store, &series_in("d"), &whole(name), &meta_of(number, 0, &bytes), &bytes, Origin::Native))
    };
    assert_eq!(at(1, "one"), None);
    assert_eq!(at(2, "one"), Some(ErrorKind::Conflict), "another frame's file");
    assert_eq!(at(2, "one/two"), Some(ErrorKind::Conflict), "a file where a folder should be");
    assert_eq!(at(2, "folder/two"), None);
    assert_eq!(at(3, "folder"), Some(ErrorKind::Conflict), "a folder where a file should be");
    assert_eq!(at(7, "step-7.vtu"), None);
    assert_eq!(at(8, "step-7.vtu"), Some(ErrorKind::Conflict));
    assert_eq!(*store.holdings(&series_in("d")).0, [1, 2, 7].into_iter().collect());
    for number in [1, 2, 7] {
        assert_eq!(read(&store, "d", number).as_ref(), Some(&bytes));
    }
    assert_eq!(store.space().reserved, 0);
}

fn entries_come_in_storage_order<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let order = [5, 3, 9, 1, 7, 2];
    for number in order {
        put_version(&store, "small", number, 0, 100, Origin::Native).unwrap();
        put_version(&store, "large", number, 0, 20_000, Origin::Native).unwrap();
    }
    put_version(&store, "large", 0, 0, 20_000, Origin::Alien).unwrap();
    let numbers = |dataset: &str, set: &RunSet| -> Vec<u64> {
        let entries = store.entries(&series_in(dataset), set).unwrap();
        assert!(entries.is_sorted_by(|one, other| one.position < other.position));
        entries.iter().map(|entry| entry.meta.number.get()).collect()
    };
    assert_eq!(numbers("small", &RunSet::range(0, 100)), order);
    assert_eq!(numbers("large", &RunSet::range(0, 100)), [5, 3, 9, 1, 7, 2, 0]);
    assert_eq!(numbers("large", &RunSet::range(3, 7)), [5, 3, 7]);
    assert!(
        store.drop_frame(&series_in("large"), 9).unwrap()
            && !store.drop_frame(&series_in("large"), 9).unwrap()
    );
    put_version(&store, "large", 9, 0, 20_000, Origin::Native).unwrap();
    assert_eq!(numbers("large", &RunSet::range(0, 100)), [5, 3, 1, 7, 2, 9, 0], "the last record counts");
}

/// Puts, replaces, drops, promotes and reopens at random, against a map.
fn a_random_history_is_like_a_map<D: Disk>(place: &DiskMaker<'_, D>, seed: u64) {
    let mut random = SeededRandom::new(seed);
    let mut store = open(place);
    let mut model: BTreeMap<u64, (u64, usize, Origin)> = BTreeMap::new();
    for step in 0..400 {
        let number = random.below(40);
        let length = LENGTHS[random.below(4) as usize] + random.below(2) as usize * 20_000;
        let origin = if random.percent(50) { Origin::Native } else { Origin::Alien };
        match random.below(10) {
            0..6 => {
                let (version, length) = match model.get(&number) {
                    Some((version, length, _)) if random.percent(50) => (*version, *length),
                    Some((version, ..)) => (version + 1, length),
                    None => (0, length),
                };
                put_version(&store, "d", number, version, length, origin).unwrap();
                let (before, old_length, had) = *model.entry(number).or_insert((version, length, origin));
                let same = bytes_of(number, before, old_length) == bytes_of(number, version, length);
                let origin = if same && had == Origin::Native { had } else { origin };
                model.insert(number, (version, length, origin));
            }
            6..8 => {
                assert_eq!(
                    store.drop_frame(&series_in("d"), number).unwrap(),
                    model.remove(&number).is_some()
                )
            }
            8 => {
                let set: RunSet = (0..5).map(|_| random.below(40)).collect();
                store.evict(&series_in("d"), Some(&set)).unwrap();
                model.retain(|number, _| !set.contains(*number));
            }
            _ => {
                let used = store.space().used;
                drop(store);
                store = open(place);
                if !model.is_empty() {
                    assert_eq!(store.space().used, used, "step {step}, seed {seed}");
                }
            }
        }
        let of = |wanted: Origin| -> RunSet {
            model.iter().filter(|(_, (.., origin))| *origin == wanted).map(|(number, _)| *number).collect()
        };
        let (native, alien) = store.holdings(&series_in("d"));
        assert_eq!(
            (&*native, &*alien),
            (&of(Origin::Native), &of(Origin::Alien)),
            "step {step}, seed {seed}"
        );
        let entries = store.entries(&series_in("d"), &RunSet::range(0, 100)).unwrap();
        assert_eq!(entries.len(), model.len(), "step {step}, seed {seed}");
        for entry in entries {
            let (version, length, origin) = model[&entry.meta.number.get()];
            assert_eq!(
                (entry.meta.length, entry.origin),
                (length as u64, origin),
                "step {step}, seed {seed}"
            );
            assert_eq!(entry.meta.validator.unwrap().mtime_ns, version as i64, "step {step}, seed {seed}");
        }
        if let Some((version, length, _)) = model.get(&number) {
            let bytes = bytes_of(number, *version, *length);
            assert_eq!(read(&store, "d", number), Some(bytes), "step {step}, seed {seed}");
        }
    }
}

fn eviction_keeps_the_budget<D: Disk>(place: &DiskMaker<'_, D>) {
    let budget = 4 << 20;
    let store = open_with(place, budget);
    let fits = |store: &Store<D>| {
        let space = store.space();
        assert!(space.used + space.reserved <= budget, "{space:?}");
    };
    for dataset in ["a", "b", "c", "d", "e"] {
        for number in 0..10 {
            put_version(&store, dataset, number, 0, 100_000, Origin::Native).unwrap();
            fits(&store);
        }
    }
    let held = |dataset: &str| store.holdings(&series_in(dataset)).0.len();
    assert_eq!((held("a"), held("e")), (0, 10), "the least recently used one went as a whole");
    assert!(store.datasets().len() >= 3);
    store.pin(&series_in("e"), true).unwrap();
    for number in 0..60 {
        let result = put_version(&store, "f", number, 0, 100_000, Origin::Native);
        fits(&store);
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
    }
    assert_eq!(held("e"), 10, "pinned");
    assert!(held("f") > 20);
    assert_eq!(kind(store.evict(&series_in("e"), None)), Some(ErrorKind::Busy));
    let used = store.space().used;
    drop(store);
    let store = open_with(place, budget);
    assert_eq!(store.space().used, used);
    drop(store);
    let store = open_with(place, 2 << 20);
    assert!(store.space().used <= 2 << 20, "a smaller budget is kept from the start: {:?}", store.space());
    assert_eq!(store.holdings(&series_in("e")).0.len(), 10);
}

/// A put that announces many bytes takes only what it brings; the budget holds at each step.
fn a_gradual_put_takes_room_as_bytes_arrive<D: Disk>(place: &DiskMaker<'_, D>) {
    let budget = 16 << 20;
    let store = open_with(place, budget);
    put_version(&store, "a", 0, 0, 1 << 20, Origin::Native).unwrap();
    let bytes = bytes_of(1, 0, 15 << 20);
    let meta = meta_of(1, 0, &bytes);
    let begin = |meta: &FrameMeta| store.put_gradually(&series_in("b"), &file_of(1), meta, Origin::Native);
    let held = || store.holdings(&series_in("a")).0.len();
    let mut put = begin(&meta).unwrap();
    assert_eq!((held(), store.space().reserved), (1, 0), "announced only");
    put.write(&bytes[..1]).unwrap();
    let space = store.space();
    assert!(held() == 1 && space.reserved > 0 && space.reserved < 5 << 20, "{space:?}");
    let mut before = 1;
    for end in (1..=15).map(|mib| mib << 20) {
        put.write(&bytes[before..end]).unwrap();
        before = end;
        let space = store.space();
        assert!(space.used + space.reserved <= budget && space.reserved > end as u64, "{space:?}");
    }
    assert_eq!(held(), 0, "evicted for bytes that came");
    // A second put has no room beside it, and is refused when its bytes come.
    let other = FrameMeta { number: FrameNo::new(2).unwrap(), ..meta.clone() };
    let mut second = store.put_gradually(&series_in("c"), &file_of(2), &other, Origin::Native).unwrap();
    assert_eq!(kind(second.write(&bytes[..1 << 20])), Some(ErrorKind::NoSpace));
    drop(second);
    put.commit().unwrap();
    assert_eq!(store.space().reserved, 0);
    let huge = FrameMeta { number: FrameNo::new(3).unwrap(), length: 17 << 20, ..meta };
    assert_eq!(kind(begin(&huge)), Some(ErrorKind::NoSpace), "more than the budget");
}

fn a_cyclic_scan_keeps_its_hits<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open_with(place, 2 << 20);
    let mut hits = Vec::new();
    for _cycle in 0..4 {
        let _scan = store.scan(&series_in("d"));
        let mut hit = 0;
        for number in 0..60 {
            if read(&store, "d", number).is_some() {
                hit += 1;
            } else if let Err(error) = put_version(&store, "d", number, 0, 60_000, Origin::Alien) {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
            }
        }
        hits.push(hit);
    }
    assert!(hits[1] >= 25 && hits[1] == hits[2] && hits[2] == hits[3], "a stable set is hit: {hits:?}");
    // Natives of a dataset may displace its aliens while nobody scans it.
    put_version(&store, "d", 100, 0, 60_000, Origin::Native).unwrap();
    assert!(store.holdings(&series_in("d")).1.len() < hits[3]);
}

fn a_scan_hinders_no_eviction_by_hand<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open_with(place, 2 << 20);
    for number in 0..10 {
        put_version(&store, "d", number, 0, 100_000, Origin::Native).unwrap();
    }
    let guard = store.scan(&series_in("d"));
    let crowd =
        || (0..25).map(|n| put_version(&store, "e", n, 0, 60_000, Origin::Alien)).all(|put| put.is_ok());
    assert!(!crowd() && store.holdings(&series_in("d")).0.len() == 10, "kept for the scan");
    guard.goes_on();
    assert_eq!(store.evict(&series_in("d"), None).unwrap().0, 10);
    assert!(read(&store, "d", 0).is_none(), "a miss");
}

fn pins_and_layouts_survive<D: Disk>(place: &DiskMaker<'_, D>) {
    let layout = zazen_core::Layout::Files(zazen_core::NameTemplate::parse("frame-{n:07}.dcd").unwrap());
    let store = open(place);
    put_version(&store, "d", 1, 0, 100, Origin::Native).unwrap();
    store.set_layout(&series_in("d"), &layout).unwrap();
    // One that takes more memory than its frames take disk is not kept.
    let name = |number: u64| RelPath::new(&format!("some-file-{number}")).unwrap();
    let long = zazen_core::Layout::List(Arc::new((0..10_000).map(name).collect()));
    store.set_layout(&series_in("d"), &long).unwrap();
    assert_eq!(store.layout(&series_in("d")).as_ref(), Some(&layout));
    store.pin(&series_in("d"), true).unwrap();
    drop(store);
    let store = open(place);
    assert_eq!(store.layout(&series_in("d")), Some(layout));
    assert!(store.datasets()[0].pinned);
    store.pin(&series_in("d"), false).unwrap();
    drop(store);
    let store = open(place);
    assert!(!store.datasets()[0].pinned);
    assert!(store.dump().contains("dataset d/.zazen@frame-{n}.dcd"));
    assert!(store.counters().iter().any(|(name, _)| *name == "evicted_frames"));
}

fn concurrent_puts_have_one_winner<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open(place);
    let outcomes: Vec<Result<Stored>> = std::thread::scope(|scope| {
        let one = |thread: u64| {
            let store = &store;
            move || -> Vec<Result<Stored>> {
                (0..20)
                    .map(|number| put_version(store, "d", number, thread % 2, 20_000, Origin::Native))
                    .collect()
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(one(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for error in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Busy, "equal frames and stale ones are no conflict: {error}");
    }
    assert_eq!(*store.holdings(&series_in("d")).0, RunSet::range(0, 19));
    for number in 0..20 {
        assert_eq!(store.verify(&series_in("d"), number).unwrap(), Some(true));
    }
    assert_eq!(store.space().reserved, 0);
}

fn concurrent_readers_never_see_wrong_bytes<D: Disk>(place: &DiskMaker<'_, D>) {
    let store = open_with(place, 1 << 20);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..30 {
                let dataset = ["a", "b", "c"][round as usize % 3];
                for number in 0..10 {
                    let length = 1_000 + number as usize * 4_000;
                    let _ = put_version(&store, dataset, number, round, length, Origin::Native);
                }
            }
        });
        while !writer.is_finished() {
            for dataset in ["a", "b", "c"] {
                for number in 0..10 {
                    if let Some(frame) = store.open_frame(&series_in(dataset), number).unwrap() {
                        let mut bytes = vec![0; frame.meta.length as usize];
                        let whole = frame.file.read_exact_at(&mut bytes, frame.offset).is_ok();
                        // A copy may be replaced after its record was read and before its file was
                        // opened: then the checksum differs.
                        if whole && frame_checksum(&bytes) == frame.meta.checksum {
                            let version = frame.meta.validator.unwrap().mtime_ns as u64;
                            assert_eq!(bytes, bytes_of(number, version, bytes.len()));
                        }
                    }
                }
            }
        }
    });
    let space = store.space();
    assert!(space.used <= space.budget && space.reserved == 0, "{space:?}");
}
