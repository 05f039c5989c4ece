//! The contract suite of disks. The simulated and the real disk run it, and a new disk must pass
//! it.
//!
//! A failure is a panic that says where.

#![allow(clippy::unwrap_used)]

use crate::disk::{Disk, DiskFile, DiskPath};
use zazen_core::{ErrorKind, RelPath, Result};

const BLOCK: usize = 4096;

fn at(path: &str) -> DiskPath {
    DiskPath::of(&RelPath::new(path).unwrap())
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn contents(file: &impl DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_full_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// What [`run`] found that the disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// [`DiskFile::allocate`].
    pub allocates: bool,
    /// [`DiskFile::punch_hole`].
    pub punches_holes: bool,
    /// [`DiskFile::reflink_from`].
    pub shares_blocks: bool,
}

/// Runs all cases on an empty disk and tells what it can do beside what it must.
pub fn run(disk: &impl Disk) -> Abilities {
    files_are_written_and_read(disk);
    names_change_atomically(disk);
    folders_are_listed_and_go_when_empty(disk);
    an_open_file_outlives_its_name(disk);
    times_are_kept(disk);
    Abilities {
        allocates: room_is_given(disk),
        punches_holes: holes_are_punched(disk),
        shares_blocks: blocks_are_shared(disk),
    }
}

fn files_are_written_and_read(disk: &impl Disk) {
    assert_eq!(kind(disk.open(&at("a/b"), false)), Some(ErrorKind::NotFound));
    assert_eq!(disk.file_len(&at("a/b")).unwrap(), None);
    assert_eq!(disk.list(&at("a")).unwrap(), []);
    let file = disk.create(&at("a/b")).unwrap();
    file.write_all_at(b"world", 6).unwrap();
    file.write_all_at(b"hello ", 0).unwrap();
    assert_eq!((file.len().unwrap(), file.is_empty().unwrap()), (11, false));
    assert_eq!(kind(disk.create(&at("a/b"))), Some(ErrorKind::Conflict));
    let mut bytes = [0; 20];
    let file = disk.open(&at("a/b"), false).unwrap();
    assert_eq!(file.read_full_at(&mut bytes, 6).unwrap(), 5);
    assert_eq!(&bytes[..5], b"world");
    assert_eq!(file.read_at(&mut bytes, 11).unwrap(), 0);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file.to_std().unwrap(), &mut text).unwrap();
    assert_eq!(text, "hello world");
    let stat = disk.stat(&at("a/b")).unwrap().unwrap();
    assert!(stat.is_file && !stat.is_dir && !stat.marked && stat.len == 11);
    let file = disk.open_append(&at("a/b")).unwrap();
    file.mark(true).unwrap();
    file.truncate(5).unwrap();
    file.sync_data().unwrap();
    file.sync().unwrap();
    assert!(disk.stat(&at("a/b")).unwrap().unwrap().marked && file.stat().unwrap().marked);
    assert_eq!(disk.file_len(&at("a/b")).unwrap(), Some(5));
    assert!(disk.stat(&at("a")).unwrap().unwrap().is_dir);
    // The gap between the old end and a write behind it reads as zeros. So do the bytes that a
    // longer length adds.
    file.write_all_at(b"!", 2 * BLOCK as u64).unwrap();
    file.truncate(3 * BLOCK as u64).unwrap();
    let mut expected = vec![0; 3 * BLOCK];
    expected[..5].copy_from_slice(b"hello");
    expected[2 * BLOCK] = b'!';
    assert!(contents(&file) == expected);
    file.write_all_at(b"", 9 * BLOCK as u64).unwrap();
    assert_eq!(file.len().unwrap(), 3 * BLOCK as u64, "to write nothing changes nothing");
}

fn names_change_atomically(disk: &impl Disk) {
    disk.create(&at("x")).unwrap();
    assert_eq!(kind(disk.rename_new(&at("x"), &at("a/b"))), Some(ErrorKind::Conflict));
    assert_eq!(kind(disk.rename(&at("x"), &at("a"))), Some(ErrorKind::Conflict), "over a directory");
    assert_eq!(kind(disk.rename(&at("x"), &at("a/b/c"))), Some(ErrorKind::Conflict), "beneath a file");
    assert_eq!(kind(disk.create(&at("a/b/c"))), Some(ErrorKind::Conflict));
    assert_eq!(kind(disk.rename(&at("absent"), &at("y"))), Some(ErrorKind::NotFound));
    disk.rename_new(&at("x"), &at("new/er/x")).unwrap();
    disk.rename(&at("new/er/x"), &at("a/b")).unwrap();
    assert_eq!(disk.file_len(&at("a/b")).unwrap(), Some(0));
    disk.sync_dir(&at("a")).unwrap();
    disk.sync_all().unwrap();
}

fn folders_are_listed_and_go_when_empty(disk: &impl Disk) {
    let mut names = disk.list(&at("")).unwrap();
    names.sort();
    assert_eq!(names, [("a".to_owned(), true), ("new".to_owned(), true)]);
    disk.remove_dir_if_empty(&at("a")).unwrap();
    assert!(disk.stat(&at("a")).unwrap().is_some(), "it isn't empty");
    assert_eq!(kind(disk.remove(&at("a/absent"))), Some(ErrorKind::NotFound));
    disk.remove(&at("a/b")).unwrap();
    disk.remove_dir_if_empty(&at("a")).unwrap();
    disk.remove_dir_if_empty(&at("a")).unwrap();
    assert!(disk.stat(&at("a")).unwrap().is_none());
    assert!(disk.free_bytes().unwrap() > 0);
}

fn an_open_file_outlives_its_name(disk: &impl Disk) {
    let file = disk.create(&at("gone")).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    disk.remove(&at("gone")).unwrap();
    disk.create(&at("gone")).unwrap().write_all_at(b"other", 0).unwrap();
    file.write_all_at(b"F", 0).unwrap();
    assert_eq!(contents(&file), b"First");
    assert_eq!(contents(&disk.open(&at("gone"), true).unwrap()), b"other");
    disk.remove(&at("gone")).unwrap();
}

fn times_are_kept(disk: &impl Disk) {
    let file = disk.create(&at("times")).unwrap();
    for (accessed_ns, modified_ns) in [(1_500_000_000_123_456_789, 1_600_000_000_000_000_001), (7, 0)] {
        file.set_times(accessed_ns, modified_ns).unwrap();
        let stat = disk.stat(&at("times")).unwrap().unwrap();
        assert_eq!((stat.accessed_ns, stat.modified_ns), (accessed_ns, modified_ns));
        assert_eq!(file.stat().unwrap(), stat);
    }
    disk.remove(&at("times")).unwrap();
}

/// Whether the disk did, or said that it cannot.
fn is_done(result: Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            false
        }
    }
}

fn room_is_given(disk: &impl Disk) -> bool {
    let file = disk.create(&at("room")).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    let done = is_done(file.allocate(0, 8 * BLOCK as u64));
    if done {
        let stat = file.stat().unwrap();
        assert!(stat.len == 8 * BLOCK as u64 && stat.allocated_bytes >= stat.len, "{stat:?}");
        let mut expected = vec![0; 8 * BLOCK];
        expected[..3].copy_from_slice(b"abc");
        assert!(contents(&file) == expected);
        file.allocate(0, 10).unwrap();
        file.allocate(5, 0).unwrap();
        assert_eq!(file.len().unwrap(), 8 * BLOCK as u64, "it never becomes shorter");
    }
    disk.remove(&at("room")).unwrap();
    done
}

fn holes_are_punched(disk: &impl Disk) -> bool {
    let file = disk.create(&at("hole")).unwrap();
    let mut expected: Vec<u8> = (0..64 * BLOCK).map(|at| (at % 251) as u8 + 1).collect();
    file.write_all_at(&expected, 0).unwrap();
    file.sync().unwrap();
    let before = file.stat().unwrap();
    let (from, to) = (100, 60 * BLOCK + 100);
    let done = is_done(file.punch_hole(from as u64, (to - from) as u64));
    if done {
        expected[from..to].fill(0);
        assert!(contents(&file) == expected);
        file.sync().unwrap();
        let after = file.stat().unwrap();
        assert_eq!(after.len, before.len);
        assert!(after.allocated_bytes < before.allocated_bytes, "{before:?} {after:?}");
        file.punch_hole(7, 0).unwrap();
        file.punch_hole(63 * BLOCK as u64, 1 << 40).unwrap();
        assert_eq!(file.len().unwrap(), before.len, "a hole beyond the end adds nothing");
        file.write_all_at(b"again", 10 * BLOCK as u64).unwrap();
        expected[63 * BLOCK..].fill(0);
        expected[10 * BLOCK..10 * BLOCK + 5].copy_from_slice(b"again");
        assert!(contents(&file) == expected);
    }
    disk.remove(&at("hole")).unwrap();
    done
}

fn blocks_are_shared(disk: &impl Disk) -> bool {
    let source = disk.create(&at("source")).unwrap();
    let copy = disk.create(&at("copy")).unwrap();
    let bytes = vec![7; 3 * BLOCK + 11];
    source.write_all_at(&bytes, 0).unwrap();
    let done = is_done(copy.reflink_from(&source));
    if done {
        assert!(contents(&copy) == bytes);
        copy.write_all_at(b"mine", 0).unwrap();
        source.write_all_at(b"yours", BLOCK as u64).unwrap();
        assert!(contents(&source)[..4] == [7; 4] && contents(&source)[BLOCK..BLOCK + 5] == *b"yours");
        assert!(contents(&copy)[..4] == *b"mine" && contents(&copy)[BLOCK..BLOCK + 5] == [7; 5]);
    }
    disk.remove(&at("source")).unwrap();
    disk.remove(&at("copy")).unwrap();
    done
}
