//! Far more datasets than the process may open files: they are found, served, written to and
//! recovered. A test program of its own, because the limit is the process's.

// Helpers of tests: the exceptions in clippy.toml cover #[test] functions only.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use zazen_core::{FrameMeta, FrameNo, Origin, RelPath, Source};
use zazen_env::RealDisk;
use zazen_store::contract::series_in;
use zazen_store::{RecoveryReport, Store, StoreConfig};
use zazen_wire::checksum::frame_checksum;

const DATASETS: usize = 20_000;
const DESCRIPTORS: u64 = 1024;

fn open(root: &Path) -> (Arc<Store<RealDisk>>, RecoveryReport) {
    let config = StoreConfig { budget_bytes: 1 << 40, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
    let begun = Instant::now();
    let opened = Store::open(RealDisk::new(root).unwrap(), config).unwrap();
    eprintln!("{} datasets opened in {:?}, clean: {}", opened.1.datasets, begun.elapsed(), opened.1.clean);
    opened
}

fn dataset(at: usize) -> RelPath {
    series_in(&format!("d{at}"))
}

fn bytes(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; 1000]
}

fn put(store: &Arc<Store<RealDisk>>, at: usize, number: u64) {
    let bytes = bytes(number);
    let source = Source { path: RelPath::new(&format!("frame{number}")).unwrap(), offset: 0, length: None };
    let meta = FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: bytes.len() as u64,
        checksum: frame_checksum(&bytes),
        validator: None,
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let mut put = store.put(&dataset(at), &source, &meta, Origin::Native).unwrap();
    put.write(&bytes).unwrap();
    put.commit().unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { _ = std::fs::copy(from, to).unwrap() }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn descriptors_do_not_grow_with_datasets() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..limit }).unwrap();
    // In memory: a hundred thousand files take a disk minutes.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (store, _) = open(folder.path());
    for number in 0..3 {
        put(&store, 0, number);
    }
    store.sync().unwrap();
    drop(store);
    for at in 1..DATASETS {
        copy(&folder.path().join("d0"), &folder.path().join(format!("d{at}")));
    }
    eprintln!("copied");
    // The list is found again by walking, as after damage.
    std::fs::write(folder.path().join(".zazen/datasets"), "damaged").unwrap();
    std::fs::remove_file(folder.path().join(".zazen/clean")).unwrap();

    let (store, report) = open(folder.path());
    assert_eq!((report.datasets, report.frames), (DATASETS as u64, 3 * DATASETS as u64));
    for at in (0..DATASETS).step_by(70) {
        put(&store, at, 3);
        assert!(descriptors() < 400, "{} after dataset {at}", descriptors());
    }
    for at in (0..DATASETS).step_by(30) {
        let last = if at % 70 == 0 { 4 } else { 3 };
        for number in 0..last {
            assert_eq!(store.verify(&dataset(at), number).unwrap(), Some(true), "frame {number} of d{at}");
        }
        assert!(store.open_frame(&dataset(at), last).unwrap().is_none());
    }
    store.compact(&dataset(70)).unwrap();
    assert_eq!(store.evict(&dataset(140), None).unwrap().0, 4);
    assert!(descriptors() < 400, "{}", descriptors());
    let begun = Instant::now();
    store.sync().unwrap();
    eprintln!("synced in {:?}", begun.elapsed());
    drop(store);
    let (store, report) = open(folder.path());
    assert!(report.clean && report.datasets == DATASETS as u64 - 1, "{report:?}");
    assert_eq!(store.verify(&dataset(70), 3).unwrap(), Some(true));
    assert!(descriptors() < 400, "{}", descriptors());
}
