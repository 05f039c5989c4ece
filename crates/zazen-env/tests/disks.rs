//! The contract suite on the real disk (both ways of resolving) and the simulated one; then what
//! each has of its own.

// Helpers of tests: the exceptions in clippy.toml cover #[test] functions only.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::os::unix::fs::{PermissionsExt, symlink};
use zazen_core::{ErrorKind, RelPath, Result};
use zazen_env::contract::{self, Abilities};
use zazen_env::{Disk, DiskFile, DiskPath, RealDisk, SimDisk, WatchedDisk};

fn at(path: &str) -> DiskPath {
    DiskPath::of(&RelPath::new(path).unwrap())
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn all_disks_keep_the_contract() {
    let everything = Abilities { allocates: true, punches_holes: true, shares_blocks: true };
    assert_eq!(contract::run(&SimDisk::new(1, 1 << 20)), everything);
    let without = SimDisk::new(1, 1 << 20);
    without.set_reflinks(false);
    assert_eq!(contract::run(&without), Abilities { shares_blocks: false, ..everything });
    assert_eq!(contract::run(&WatchedDisk::new(SimDisk::new(1, 1 << 20))), everything);
    let folder = tempfile::tempdir().unwrap();
    contract::run(&RealDisk::new(&folder.path().join("made/root")).unwrap());
    contract::run(&RealDisk::without_openat2(&folder.path().join("other")).unwrap());
}

#[test]
fn a_root_has_one_owner_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = RealDisk::new(folder.path()).unwrap();
    first.lock().unwrap();
    let second = RealDisk::new(folder.path()).unwrap();
    let error = second.lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(first);
    second.lock().unwrap();

    let disk = SimDisk::new(1, 1 << 20);
    let other = disk.clone();
    disk.lock().unwrap();
    assert_eq!(kind(other.lock()), Some(ErrorKind::Busy));
    drop(disk);
    other.lock().unwrap();
}

#[test]
fn links_are_never_followed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("outside/deep")).unwrap();
    std::fs::write(folder.path().join("outside/secret"), "secret").unwrap();
    let roots = [folder.path().join("one"), folder.path().join("two")];
    let disks = [RealDisk::new(&roots[0]).unwrap(), RealDisk::without_openat2(&roots[1]).unwrap()];
    for (disk, root) in disks.iter().zip(&roots) {
        disk.create(&at("inside/own")).unwrap();
        symlink("../outside", root.join("folder")).unwrap();
        symlink(folder.path().join("outside/secret"), root.join("file")).unwrap();
        symlink("inside", root.join("harmless")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        for path in ["folder/secret", "file", "harmless/own", "magic/etc/passwd"] {
            assert!(disk.open(&at(path), false).is_err(), "{path}");
            assert!(disk.open(&at(path), true).is_err(), "{path}");
            assert!(disk.open_append(&at(path)).is_err(), "{path}");
        }
        for path in ["folder/new", "magic/tmp/new"] {
            assert!(disk.create(&at(path)).is_err(), "{path}");
            assert!(disk.rename(&at("inside/own"), &at(path)).is_err(), "{path}");
            assert!(disk.remove(&at("folder/secret")).is_err(), "{path}");
        }
        disk.remove_dir_if_empty(&at("folder/deep")).unwrap_or(());
        assert!(folder.path().join("outside/deep").exists());
        assert!(disk.list(&at("folder")).is_err());
        assert!(!disk.stat(&at("file")).unwrap().unwrap().is_file);
        // A link itself can be replaced and removed.
        disk.rename(&at("inside/own"), &at("file")).unwrap();
        assert!(disk.stat(&at("file")).unwrap().unwrap().is_file);
        disk.remove(&at("harmless")).unwrap();
        assert!(root.join("inside").exists());
        assert_eq!(std::fs::read_to_string(folder.path().join("outside/secret")).unwrap(), "secret");
        assert_eq!(std::fs::read_dir(folder.path().join("outside")).unwrap().count(), 2);
    }
}

#[test]
fn what_is_no_file_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(folder.path()).unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(kind(disk.open(&at("fifo"), false)), Some(ErrorKind::Conflict), "and it does not hang");
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(kind(disk.open(&at("folder"), false)), Some(ErrorKind::Conflict));
}

#[test]
fn nobody_else_reaches_the_cache_by_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &str| folder.path().join(path).metadata().unwrap().permissions().mode() & 0o7777;
    let set = |mode| std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o755);
    let disk = RealDisk::new(folder.path()).unwrap();
    assert_eq!(mode(""), 0o700, "an empty folder is taken and closed");
    let mark = |handed_out| disk.open_append(&at("a/f")).unwrap().mark(handed_out).unwrap();
    mark(true);
    assert_eq!(
        (mode("a"), mode("a/f")),
        (0o700, 0o1644),
        "its descriptor can be opened again by its receiver"
    );
    mark(false);
    assert_eq!(mode("a/f"), 0o1600);
    disk.create(&DiskPath::own(&RelPath::default(), "x")).unwrap();
    assert_eq!(mode(".zazen"), 0o700);
    set(0o755);
    RealDisk::new(folder.path()).unwrap();
    assert_eq!(mode(""), 0o700, "a cache of before is closed");
    let shared = folder.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(shared.join("theirs"), "").unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(kind(RealDisk::check_root(&shared)), Some(ErrorKind::Config));
    assert_eq!(kind(RealDisk::new(&shared)), Some(ErrorKind::Config));
    assert_eq!(mode("shared"), 0o755, "others' folder is left as it is");
}

#[test]
fn the_simulated_disk_keeps_what_was_synced_and_may_lose_the_rest() {
    let (mut lost, mut kept, mut zeroed, mut unnamed) = (0, 0, 0, 0);
    for seed in 0..200 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.create(&at("synced")).unwrap();
        file.write_all_at(&[1; 2000], 0).unwrap();
        file.sync().unwrap();
        disk.sync_dir(&at("")).unwrap();
        file.write_all_at(&[2; 2000], 2000).unwrap();
        disk.create(&at("new")).unwrap().write_all_at(&[3; 1000], 0).unwrap();
        disk.rename(&at("new"), &at("renamed")).unwrap();
        let after = disk.power_fail();
        assert!(disk.create(&at("late")).is_err(), "the old disk is dead");
        let mut bytes = [9; 4000];
        let len = after.open(&at("synced"), false).unwrap().read_full_at(&mut bytes, 0).unwrap();
        assert!(len >= 2000 && bytes[..2000] == [1; 2000], "seed {seed}");
        assert!(bytes[2000..len].iter().all(|byte| [0, 2].contains(byte)), "seed {seed}");
        lost += u32::from(len < 4000);
        zeroed += u32::from(bytes[2000..len].contains(&0));
        kept += u32::from(bytes[2000..] == [2; 2000]);
        let names: Vec<String> = after.files().into_iter().map(|(name, _)| name).collect();
        unnamed += u32::from(names == ["synced"]);
        assert!(!(names.contains(&"new".into()) && names.contains(&"renamed".into())), "seed {seed}");
    }
    assert!(lost > 20 && kept > 20 && zeroed > 20 && unnamed > 20, "{lost} {kept} {zeroed} {unnamed}");
}

#[test]
fn the_simulated_disk_fails_on_demand() {
    let disk = SimDisk::new(1, 10_000);
    let file = disk.create(&at("f")).unwrap();
    disk.fail_at(disk.steps() + 1);
    assert_eq!(kind(file.write_all_at(b"x", 0)), Some(ErrorKind::Io));
    file.write_all_at(b"x", 0).unwrap();
    disk.fail_read_at(disk.reads() + 1);
    assert_eq!(kind(file.read_at(&mut [0], 0)), Some(ErrorKind::Io));
    assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1);
    assert_eq!(kind(file.write_all_at(&[0; 20_000], 0)), Some(ErrorKind::NoSpace));
    assert!(file.len().unwrap() < 20_000);
    disk.set_read_only(true);
    assert_eq!(kind(disk.create(&at("g"))), Some(ErrorKind::PermissionDenied));
    disk.set_read_only(false);
    disk.crash_at(disk.steps() + 2);
    disk.create(&at("g")).unwrap();
    assert!(disk.create(&at("h")).is_err() && disk.is_dead());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert_eq!(disk.kill().list(&at("")).unwrap().len().clamp(2, 3), disk.kill().files().len());
}

#[test]
fn after_a_failed_sync_a_second_one_succeeds_without_the_data() {
    let (mut lost, mut seen) = (0, 0);
    for seed in 0..100 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.create(&at("f")).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.sync().unwrap();
        disk.sync_dir(&at("")).unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        if seed % 3 == 0 {
            disk.fail_next_sync();
        } else {
            disk.fail_at(disk.steps() + 1);
        }
        assert_eq!(kind(if seed % 2 == 0 { file.sync() } else { disk.sync_all() }), Some(ErrorKind::Io));
        file.sync().unwrap();
        disk.sync_all().unwrap();
        let byte = |disk: &SimDisk| {
            let mut byte = [0];
            disk.open(&at("f"), false).unwrap().read_at(&mut byte, 0).unwrap();
            byte[0]
        };
        let before = byte(&disk);
        let crashed = disk.power_fail();
        assert!(byte(&crashed) <= before, "what was lost does not come back");
        lost += u32::from(byte(&crashed) == 1);
        seen += u32::from(before == 2 && byte(&crashed) == 1);
    }
    assert!(lost > 30 && seen > 10 && lost > seen + 10, "{lost} lost, {seen} of them seen until the crash");
}

#[test]
fn the_simulated_disk_costs_what_is_touched() {
    let disk = SimDisk::new(1, 1 << 40);
    // A log that is synced after each record, and files that come and go: time and memory follow
    // the work.
    let log = disk.create(&at("log")).unwrap();
    for record in 0..40_000u64 {
        log.write_all_at(&[record as u8; 100], record * 100).unwrap();
        log.sync_data().unwrap();
        let path = at(&format!("d/{}", record % 7));
        disk.create(&path).unwrap().write_all_at(&[1; 10], 0).unwrap();
        disk.remove(&path).unwrap();
    }
    assert!(disk.inode_count() < 1_100, "{} files are in memory", disk.inode_count());
    disk.sync_all().unwrap();
    assert_eq!(disk.inode_count(), 1);
    assert_eq!(disk.used_bytes(), 4_000_000u64.next_multiple_of(4096));
    // A sparse file takes what was written.
    let sparse = disk.create(&at("sparse")).unwrap();
    sparse.write_all_at(&[1], 1 << 36).unwrap();
    assert_eq!(disk.used_bytes(), 4_000_000u64.next_multiple_of(4096) + 4096);
}

#[test]
fn equal_histories_have_equal_traces() {
    let history = |seed: u64, last: &[u8]| {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.create(&at("f")).unwrap();
        file.write_all_at(&[1; 3000], 0).unwrap();
        let disk = disk.power_fail();
        let _ = disk.open(&at("f"), false);
        disk.create(&at("g")).unwrap().write_all_at(last, 5).unwrap();
        (disk.trace(), disk.files())
    };
    for seed in 0..20 {
        assert_eq!(history(seed, b"x"), history(seed, b"x"), "seed {seed}");
        assert_ne!(history(seed, b"x").0, history(seed, b"y").0, "seed {seed}");
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: giving files away needs root");
    }
    root
}

fn give(path: &std::path::Path, uid: u32) {
    std::os::unix::fs::chown(path, Some(uid), None).unwrap();
}

fn chmod(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_root_that_others_could_change_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("above/root");
    std::fs::create_dir_all(root.join(".zazen")).unwrap();
    let folders = [root.join(".zazen"), root.clone(), place.path().join("above")];
    folders.iter().for_each(|folder| chmod(folder, 0o755));
    assert!(RealDisk::new(&root).is_ok());
    for folder in &folders {
        chmod(folder, 0o757);
        assert_eq!(kind(RealDisk::new(&root)), Some(ErrorKind::Config), "{}", folder.display());
        chmod(folder, 0o755);
        if is_root() {
            give(folder, 64_101);
            let refused = RealDisk::new(&root).err().unwrap().to_string();
            assert!(refused.contains("belongs to user 64101"), "{refused}");
            give(folder, 0);
        }
    }
    chmod(&root, 0o1777);
    assert_eq!(kind(RealDisk::new(&root)), Some(ErrorKind::Config), "others could add files");
    assert_eq!(kind(RealDisk::check_root(&root)), Some(ErrorKind::Config));
    chmod(&root, 0o755);
    assert!(RealDisk::check_root(&root).is_ok());
}

#[test]
fn files_that_others_could_have_written_are_not_believed() {
    let place = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(place.path()).unwrap();
    let file = place.path().join("a/b");
    disk.create(&at("a/b")).unwrap();
    let opened = |disk: &RealDisk| {
        [
            kind(disk.open(&at("a/b"), false)),
            kind(disk.open(&at("a/b"), true)),
            kind(disk.open_append(&at("a/b"))),
        ]
    };
    assert_eq!(opened(&disk), [None; 3]);
    chmod(&file, 0o602);
    assert_eq!(opened(&disk), [Some(ErrorKind::Corrupt); 3]);
    chmod(&file, 0o644);
    std::fs::hard_link(&file, place.path().join("other")).unwrap();
    assert_eq!(opened(&disk), [None, Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt)]);
    std::fs::remove_file(place.path().join("other")).unwrap();
    assert!(disk.check_folders(&at("a")).is_ok() && disk.check_folders(&at("a/none/below")).is_ok());
    chmod(&place.path().join("a"), 0o777);
    assert_eq!(kind(disk.check_folders(&at("a/none/below"))), Some(ErrorKind::Config));
    chmod(&place.path().join("a"), 0o755);
    if is_root() {
        give(&file, 64_101);
        assert_eq!(opened(&disk), [Some(ErrorKind::Corrupt); 3]);
        give(&place.path().join("a"), 64_101);
        assert_eq!(kind(disk.check_folders(&at("a"))), Some(ErrorKind::Config));
    }
}
