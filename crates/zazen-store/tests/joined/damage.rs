//! Truncated and bit-flipped files, foreign files and links in the way, other versions, a root that
//! can't be written.

use std::os::unix::fs::{FileExt, symlink};
use std::sync::Arc;
use zazen_core::{ErrorKind, FrameMeta, Origin, RelPath, RunSet, Source};
use zazen_env::{DiskPath, RealDisk, SimDisk};
use zazen_store::contract::{bytes_of, file_of, meta_of, path, put, put_version, read, series_in};
use zazen_store::{RecoveryReport, Store, StoreConfig, Stored};

/// Frames up to this length are packed.
const PACKED: u64 = 16 << 10;
const CONFIG: StoreConfig =
    StoreConfig { budget_bytes: 64 << 20, free_floor_bytes: 0, packed_bytes_max: PACKED };

fn open(disk: &SimDisk) -> (Arc<Store<SimDisk>>, RecoveryReport) {
    Store::open(disk.clone(), CONFIG).unwrap()
}

/// Frames 0..8 of dataset d, small and large; the disk after a clean stop.
fn filled() -> SimDisk {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, _) = open(&disk);
    for number in 0..8 {
        put_version(&store, "d", number, 0, 1_000 + number as usize * 4_000, Origin::Native).unwrap();
    }
    store.sync().unwrap();
    drop(store);
    disk
}

/// Whatever was damaged: what is handed out is right, and the cache can be filled again.
fn check_usable(disk: &SimDisk, what: &str) -> (Vec<u64>, RecoveryReport) {
    let (store, report) = open(disk);
    let mut good = Vec::new();
    for number in 0..8 {
        if let Some(bytes) = read(&store, "d", number) {
            assert_eq!(bytes, bytes_of(number, 0, 1_000 + number as usize * 4_000), "{what}");
            good.push(number);
        } else {
            store.verify(&series_in("d"), number).unwrap();
        }
    }
    for number in 0..8 {
        let stored =
            put_version(&store, "d", number, 0, 1_000 + number as usize * 4_000, Origin::Native).unwrap();
        let expected = if good.contains(&number) { Stored::AlreadyHere } else { Stored::Stored };
        assert_eq!(stored, expected, "{what}: frame {number}");
        assert_eq!(store.verify(&series_in("d"), number).unwrap(), Some(true), "{what}: frame {number}");
    }
    let space = store.space();
    assert!(disk.used_bytes() <= space.used + report.problems.len() as u64 * 4096, "{what}: {space:?}");
    (good, report)
}

#[test]
fn a_log_cut_anywhere_keeps_the_records_before_the_cut() {
    let whole = 64 + 8 * 80;
    for len in 0..whole {
        let disk = filled();
        disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/native.log", |bytes| bytes.truncate(len));
        let (good, report) = check_usable(&disk, &format!("cut to {len}"));
        let records = len.saturating_sub(64) / 80;
        assert_eq!(good, (0..records as u64).collect::<Vec<_>>(), "cut to {len}");
        assert!(len < 64 || report.log_bytes_cut == ((len - 64) % 80) as u64, "cut to {len}: {report:?}");
    }
}

#[test]
fn a_log_with_any_flipped_byte_is_cut_there_or_set_aside() {
    for at in 0..64 + 8 * 80 {
        let disk = filled();
        disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/native.log", |bytes| bytes[at] ^= 1 << (at % 8));
        let (good, report) = check_usable(&disk, &format!("byte {at} flipped"));
        if at < 64 {
            assert!(good.is_empty() && report.problems[0].contains("native.log.aside-1"), "{report:?}");
            assert!(
                disk.files()
                    .iter()
                    .any(|(name, _)| name == "d/.zazen@frame-{n}.dcd/.zazen/native.log.aside-1")
            );
        } else {
            assert_eq!(good.len(), (at - 64) / 80, "byte {at}");
            assert_eq!(report.log_bytes_cut as usize, (8 - good.len()) * 80);
        }
    }
}

#[test]
fn what_was_cut_does_not_come_back() {
    let disk = filled();
    disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/native.log", |bytes| bytes[64 + 3 * 80 + 9] ^= 1);
    let (store, report) = open(&disk);
    assert_eq!((report.frames, report.log_bytes_cut), (3, 5 * 80));
    put_version(&store, "d", 3, 0, 13_000, Origin::Native).unwrap();
    drop(store);
    let (store, report) = open(&disk);
    assert_eq!(
        (report.frames, report.log_bytes_cut),
        (4, 0),
        "the good records behind the bad one are gone too"
    );
    assert_eq!(*store.holdings(&series_in("d")).0, RunSet::range(0, 3));
}

#[test]
fn a_log_of_another_version_is_kept_aside() {
    let disk = filled();
    disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/native.log", |bytes| {
        bytes[8] = 9;
        let crc = zazen_wire::checksum::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    });
    let (_, report) = check_usable(&disk, "version 9");
    assert!(report.problems[0].contains("version 9"), "{report:?}");
    let (_, again) = open(&disk);
    assert!(again.problems.is_empty(), "said once: {again:?}");
}

#[test]
fn any_other_own_file_may_be_damaged() {
    for file in ["d/.zazen@frame-{n}.dcd/.zazen/state", ".zazen/datasets", ".zazen/node", ".zazen/clean"] {
        for flip in [0, 5, 20] {
            let disk = filled();
            assert!(disk.tamper(file, |bytes| {
                let at = flip.min(bytes.len() - 1);
                bytes[at] ^= 4;
            }));
            let (_, report) = check_usable(&disk, file);
            let reported = report.problems.iter().any(|problem| problem.contains(".aside-1"));
            assert!(reported || file.ends_with("clean"), "{file}: {report:?}");
        }
        let disk = filled();
        disk.tamper(file, Vec::clear);
        check_usable(&disk, file);
    }
}

#[test]
fn flipped_frame_bytes_are_never_handed_out() {
    let disk = filled();
    let frames: Vec<(String, u64)> = disk
        .files()
        .into_iter()
        .filter(|(name, _)| name.contains("/frame-") || name.contains("segments/"))
        .collect();
    assert!(frames.len() >= 5);
    for (name, len) in frames {
        for at in [0, len / 2, len - 1] {
            let disk = filled();
            disk.tamper(&name, |bytes| bytes[at as usize] ^= 0x10);
            let (good, _) = check_usable(&disk, &name);
            assert_eq!(good.len(), 7, "{name} at {at}");
        }
        let disk = filled();
        disk.tamper(&name, |bytes| bytes.truncate(len as usize - 1));
        let (good, _) = check_usable(&disk, &name);
        assert_eq!(good.len(), 7, "{name} cut");
        let disk = filled();
        disk.tamper(&name, |bytes| bytes.fill(0));
        check_usable(&disk, &name);
    }
}

#[test]
fn a_damaged_names_entry_is_a_miss() {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, _) = open(&disk);
    let source = Source { path: path("a.xtc"), offset: 64, length: Some(20_000) };
    let bytes = bytes_of(1, 0, 20_000);
    put(&store, &series_in("d"), &source, &meta_of(1, 0, &bytes), &bytes, Origin::Native).unwrap();
    drop(store);
    disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/names", |bytes| bytes[90] ^= 1);
    let (store, _) = open(&disk);
    assert_eq!(store.entries(&series_in("d"), &RunSet::range(0, 9)).unwrap(), []);
    assert!(store.open_frame(&series_in("d"), 1).unwrap().is_none());
    assert_eq!(store.holdings(&series_in("d")).0.len(), 0);
    put(&store, &series_in("d"), &source, &meta_of(1, 0, &bytes), &bytes, Origin::Native).unwrap();
    assert_eq!(read(&store, "d", 1), Some(bytes));
}

#[test]
fn a_log_damaged_while_open_is_a_miss() {
    let disk = filled();
    let (store, _) = open(&disk);
    disk.tamper("d/.zazen@frame-{n}.dcd/.zazen/native.log", |bytes| bytes[64 + 3 * 80 + 9] ^= 1);
    assert!(store.open_frame(&series_in("d"), 3).unwrap().is_none());
    assert_eq!(store.holdings(&series_in("d")).0.len(), 7);
    assert_eq!(store.entries(&series_in("d"), &RunSet::range(0, 9)).unwrap().len(), 7);
    put_version(&store, "d", 3, 0, 13_000, Origin::Native).unwrap();
    assert_eq!(read(&store, "d", 3).unwrap(), bytes_of(3, 0, 13_000));
}

#[test]
fn a_root_that_cannot_be_written_says_so() {
    let disk = SimDisk::new(1, 1 << 30);
    disk.set_read_only(true);
    let error = Store::open(disk, CONFIG).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("cache root /simulated"), "{error}");
}

/// What a release without series left is dropped, and nothing else.
#[test]
fn datasets_of_an_earlier_release_are_dropped() {
    let disk = filled();
    let (store, _) = open(&disk);
    let used = store.space().used;
    store.sync().unwrap();
    drop(store);
    // Where it had its frames: a file of the dataset's own folder, records, a segment.
    let old = ["old/sim/.zazen/native.log", "old/sim/.zazen/state", "old/sim/.zazen/segments/0000000"];
    for name in old.iter().chain(&["old/sim/run/frame-0000009.dcd", "old/sim/mine.txt", ".zazen/native.log"])
    {
        let file =
            zazen_env::Disk::open_append(&disk, &DiskPath::of(&RelPath::default()).child(name)).unwrap();
        zazen_env::DiskFile::write_all_at(&file, b"x", 0).unwrap();
        if name.contains("frame-") || name.contains("segments") {
            zazen_env::DiskFile::mark(&file, true).unwrap();
        }
    }
    let crc = |text: &str| format!("{text}crc {:08x}\n", zazen_wire::checksum::crc32c(text.as_bytes()));
    disk.tamper(".zazen/datasets", |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let listed = text.lines().filter(|line| !line.starts_with("crc ")).map(|line| format!("{line}\n"));
        *bytes = crc(&format!("{}old/sim\n%\n", listed.collect::<String>())).into_bytes();
    });
    let (store, report) = open(&disk);
    assert!(report.problems.len() == 1 && report.problems[0].contains("dropped 2 datasets"), "{report:?}");
    let left: Vec<String> = disk.files().into_iter().map(|(name, _)| name).collect();
    let gone = |name: &str| !left.iter().any(|left| left == name);
    assert!(old.iter().all(|name| gone(name)) && gone("old/sim/run/frame-0000009.dcd"), "{left:?}");
    assert!(gone(".zazen/native.log") && !gone("old/sim/mine.txt") && !gone(".zazen/node"), "{left:?}");
    assert_eq!((store.space().used, store.holdings(&series_in("d")).0.len()), (used, 8));
    drop(store);
    assert!(open(&disk).1.problems.is_empty(), "said once");
}

#[test]
fn a_missing_file_is_a_miss_and_is_not_counted() {
    let disk = filled();
    let (store, _) = open(&disk);
    let before = store.space().used;
    drop(store);
    let copy = disk.kill();
    zazen_env::Disk::remove(&copy, &zazen_env::DiskPath::of(&series_in("d")).child("frame-0000007.dcd"))
        .unwrap();
    let (store, _) = open(&copy);
    assert!(store.open_frame(&series_in("d"), 7).unwrap().is_none());
    assert!(!store.holdings(&series_in("d")).0.contains(7));
    assert!(store.space().used < before);
}

#[test]
fn a_file_that_could_not_be_removed_is_found_at_the_next_start() {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, _) = open(&disk);
    put_version(&store, "d", 1, 0, 20_000, Origin::Native).unwrap();
    put_version(&store, "d", 2, 0, 20_000, Origin::Native).unwrap();
    disk.fail_at(disk.steps() + 1);
    assert_eq!(store.drop_frame(&series_in("d"), 1).unwrap_err().kind(), ErrorKind::Io);
    assert!(store.open_frame(&series_in("d"), 1).unwrap().is_none());
    let has = |disk: &SimDisk| {
        disk.files().iter().any(|(name, _)| name == "d/.zazen@frame-{n}.dcd/frame-0000001.dcd")
    };
    assert!(has(&disk), "the removal failed");
    store.sync().unwrap();
    drop(store);
    let (store, report) = open(&disk);
    assert_eq!((report.clean, report.temporaries_removed), (false, 1));
    assert!(!has(&disk));
    assert!(disk.used_bytes() <= store.space().used);
}

/// On the machine's own disk: links and foreign files.
struct Real {
    folder: tempfile::TempDir,
}

impl Real {
    fn new() -> Real {
        Real { folder: tempfile::tempdir().unwrap() }
    }
    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("cache")
    }
    fn open(&self) -> (Arc<Store<RealDisk>>, RecoveryReport) {
        use std::os::unix::fs::PermissionsExt;
        // Closed to others: one that is not and holds other files is refused.
        std::fs::create_dir_all(self.root()).unwrap();
        std::fs::set_permissions(self.root(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Store::open(RealDisk::new(&self.root()).unwrap(), CONFIG).unwrap()
    }
}

#[test]
fn a_link_in_place_of_a_frame_is_not_followed() {
    let real = Real::new();
    let (store, _) = real.open();
    put_version(&store, "d", 1, 0, 20_000, Origin::Native).unwrap();
    let secret = real.folder.path().join("secret");
    std::fs::write(&secret, bytes_of(1, 0, 20_000)).unwrap();
    let frame = real.root().join("d/.zazen@frame-{n}.dcd/frame-0000001.dcd");
    std::fs::remove_file(&frame).unwrap();
    symlink(&secret, &frame).unwrap();
    assert!(
        store.open_frame(&series_in("d"), 1).unwrap().is_none(),
        "the link's target has the very same bytes"
    );
    put_version(&store, "d", 1, 0, 20_000, Origin::Native).unwrap();
    assert!(std::fs::symlink_metadata(&frame).unwrap().is_file());
    assert!(secret.exists());
}

#[test]
fn a_link_in_place_of_a_dataset_is_not_followed() {
    let real = Real::new();
    let outside = real.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let (store, _) = real.open();
    symlink(&outside, real.root().join("d")).unwrap();
    let error = put_version(&store, "d", 1, 0, 20_000, Origin::Native).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Conflict), "{error}");
    put_version(&store, "e", 1, 0, 20_000, Origin::Native).unwrap();
    drop(store);
    std::fs::rename(real.root().join("e"), real.folder.path().join("moved")).unwrap();
    symlink(real.folder.path().join("moved"), real.root().join("e")).unwrap();
    let (store, report) = real.open();
    assert!(report.problems.iter().any(|problem| problem.contains("dataset e/")), "{report:?}");
    assert!(store.open_frame(&series_in("e"), 1).unwrap().is_none());
    assert!(std::fs::read_dir(&outside).unwrap().next().is_none(), "nothing was written outside");
    assert!(real.folder.path().join("moved/.zazen@frame-{n}.dcd/frame-0000001.dcd").exists());
    put_version(&store, "f", 1, 0, 20_000, Origin::Native).unwrap();
}

#[test]
fn a_foreign_file_in_the_way_stays() {
    let real = Real::new();
    std::fs::create_dir_all(real.root().join("d/.zazen@frame-{n}.dcd")).unwrap();
    let foreign = real.root().join("d/.zazen@frame-{n}.dcd/frame-0000001.dcd");
    std::fs::write(&foreign, "mine").unwrap();
    let (store, _) = real.open();
    let error = put_version(&store, "d", 1, 0, 20_000, Origin::Native).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("move it out of the cache"), "{error}");
    put_version(&store, "d", 2, 0, 20_000, Origin::Native).unwrap();
    drop(store);
    let (store, report) = real.open();
    assert_eq!(report.foreign_files, 1);
    store.evict(&series_in("d"), None).unwrap();
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "mine");
    assert!(!real.root().join("d/.zazen@frame-{n}.dcd/frame-0000002.dcd").exists());
}

#[test]
fn a_frame_of_a_lost_log_is_swept_and_can_come_again() {
    let real = Real::new();
    let (store, _) = real.open();
    for number in 0..5 {
        put_version(&store, "d", number, 0, 20_000, Origin::Native).unwrap();
    }
    let used = store.space().used;
    drop(store);
    std::fs::remove_file(real.root().join("d/.zazen@frame-{n}.dcd/.zazen/native.log")).unwrap();
    let (store, report) = real.open();
    assert_eq!(report.temporaries_removed, 5, "{report:?}");
    assert!(!real.root().join("d/.zazen@frame-{n}.dcd/frame-0000001.dcd").exists());
    for number in 0..5 {
        put_version(&store, "d", number, 0, 20_000, Origin::Native).unwrap();
    }
    assert_eq!(store.space().used, used);
}

#[test]
fn segments_hold_frames_of_one_access_class() {
    let real = Real::new();
    let (store, _) = real.open();
    let bytes = bytes_of(1, 0, 100);
    for (number, mode) in [(1, 0o644), (2, 0o600), (3, 0o644)] {
        let meta = FrameMeta { mode, ..meta_of(number, 0, &bytes) };
        put(&store, &series_in("d"), &file_of(number), &meta, &bytes, Origin::Native).unwrap();
    }
    let file = |number| store.open_frame(&series_in("d"), number).unwrap().unwrap();
    assert_eq!(file(1).path, file(3).path);
    assert_ne!(file(1).path, file(2).path, "a descriptor of one shows nothing of the other");
    let opened = file(1);
    assert!(opened.file.write_at(b"x", opened.offset).is_err(), "handed out for reading only");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(file(2).path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_shuffled_log_is_sorted_when_look_ups_suffer() {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, _) = open(&disk);
    let count = 3_000;
    let mut random = zazen_env::SeededRandom::new(5);
    let mut numbers: Vec<u64> = (0..count).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, random.below(at as u64 + 1) as usize);
    }
    for number in &numbers {
        put_version(&store, "d", *number, 0, 10, Origin::Native).unwrap();
    }
    let rewritten = || store.counters().into_iter().find(|(name, _)| *name == "rewritten_logs").unwrap().1;
    assert_eq!(rewritten(), 0);
    for number in 0..count {
        assert_eq!(read(&store, "d", number).unwrap(), bytes_of(number, 0, 10));
    }
    assert_eq!(rewritten(), 1, "sorted once, and never again");
    let order: Vec<u64> = store
        .entries(&series_in("d"), &RunSet::range(0, count))
        .unwrap()
        .iter()
        .map(|entry| entry.meta.number.get())
        .collect();
    assert_eq!(order, numbers, "the storage order is that of the segments still");
    drop(store);
    let (store, report) = open(&disk);
    assert_eq!(report.frames, count);
    assert_eq!(read(&store, "d", 7).unwrap(), bytes_of(7, 0, 10));
}
