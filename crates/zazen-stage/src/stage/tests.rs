//! Trees of the kernel's file system, staged by one run and by many at once.

use super::*;
use crate::plain::PlainSide;
use crate::scan::part_of;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

const OPTIONS: Options = Options { jobs: 3, compare: false, verify: true };

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn age(path: &Path, seconds: u64) {
    let file = std::fs::File::open(path).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000 + seconds, 123_456_789);
    file.set_times(std::fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
}

/// A tree with one of each, and how many files it has.
fn tree(root: &Path) -> u64 {
    std::fs::create_dir_all(root.join("a/deep/er")).unwrap();
    std::fs::create_dir_all(root.join("empty")).unwrap();
    let mut count = 0;
    for (at, length) in [0, 1, 4096, 100_000, (4 << 20) + 17, 9 << 20].into_iter().enumerate() {
        let path = root.join(format!("a/deep/file{at}"));
        std::fs::write(&path, bytes(length, at as u64)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640 - at as u32)).unwrap();
        age(&path, at as u64);
        count += 1;
    }
    std::fs::hard_link(root.join("a/deep/file3"), root.join("a/again")).unwrap();
    std::os::unix::fs::symlink("deep/file1", root.join("a/link")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at all", root.join("broken")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", 20 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    let odd = root.join("a name\nwith all \u{fe}\u{ff}");
    std::fs::write(&odd, b"odd").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    // Not all file systems have them.
    rustix::fs::setxattr(&odd, "user.note", b"value", flags).ok();
    std::fs::set_permissions(root.join("a/deep"), PermissionsExt::from_mode(0o555)).unwrap();
    for directory in ["a/deep/er", "a/deep", "a", "empty"] {
        age(&root.join(directory), 77);
    }
    count + 2
}

/// All that can be seen of a tree, without what differs from one to the next.
fn seen(root: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    let entries =
        scan(&plain(root), root, &|| false, &mut |path, error| panic!("{path:?}: {error}")).unwrap();
    let one = |entry: &TreeEntry| {
        let path = join(root, &entry.path);
        let meta = &entry.meta;
        let content = match meta.kind {
            Kind::File => std::fs::read(&path).unwrap(),
            Kind::Symlink => std::fs::read_link(&path).unwrap().as_os_str().as_encoded_bytes().to_vec(),
            _ => Vec::new(),
        };
        let length = if meta.kind == Kind::Directory { 0 } else { meta.bytes };
        let links = if meta.kind == Kind::File { meta.links } else { 0 };
        let time = if entry.path.as_os_str().is_empty() { 0 } else { meta.modified_ns };
        let side = plain(root);
        let xattrs = match meta.kind {
            Kind::File => side.open(&path).unwrap().xattrs().unwrap(),
            Kind::Directory => side.xattrs(&path).unwrap(),
            _ => Vec::new(),
        };
        let shown =
            format!("{:?} {:o} {} {length} {links} {time} {xattrs:?}", meta.kind, meta.mode, meta.uid);
        (entry.path.clone(), shown, content)
    };
    entries.iter().map(one).collect()
}

fn plain(root: &Path) -> PlainSide {
    PlainSide::new(root).unwrap()
}

fn run(source: &Path, target: &Path, options: &Options) -> Report {
    stage(&plain(source), source, &plain(target), target, options, &Progress::default()).unwrap()
}

#[test]
fn a_tree_arrives_as_it_is_and_a_second_run_copies_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let files = tree(&source);
    let report = run(&source, &target, &OPTIONS);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!((report.copied, report.there, report.elsewhere), (files, 0, 0));
    assert_eq!(seen(&target), seen(&source));
    assert_eq!(
        std::fs::metadata(target.join("a/again")).unwrap().ino(),
        std::fs::metadata(target.join("a/deep/file3")).unwrap().ino()
    );
    assert!(std::fs::metadata(target.join("sparse")).unwrap().blocks() < 4096, "holes stay holes");
    for compare in [false, true] {
        let report = run(&source, &target, &Options { compare, ..OPTIONS });
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert_eq!((report.copied, report.there), (0, files));
    }
    assert_eq!(seen(&target), seen(&source));
}

#[test]
fn what_changed_is_copied_again_and_silent_changes_are_found_by_comparing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let files = tree(&source);
    run(&source, &target, &OPTIONS);
    let (changed, silent) = (source.join("a/deep/file3"), source.join("a/deep/file2"));
    std::fs::write(&changed, b"other").unwrap();
    std::fs::write(&silent, bytes(4096, 99)).unwrap();
    age(&silent, 2);
    std::fs::remove_file(source.join("broken")).unwrap();
    std::fs::write(source.join("broken"), b"a file now").unwrap();
    let report = run(&source, &target, &OPTIONS);
    assert_eq!((report.copied, report.failures.len()), (2, 0));
    assert_eq!(std::fs::read(target.join("a/again")).unwrap(), b"other", "its other name leads to it");
    assert_ne!(std::fs::read(target.join("a/deep/file2")).unwrap(), bytes(4096, 99));
    let report = run(&source, &target, &Options { compare: true, ..OPTIONS });
    assert_eq!((report.copied, report.there), (1, files));
    assert_eq!(seen(&target), seen(&source));
}

#[test]
fn a_run_that_was_stopped_goes_on_and_leaves_no_half_file_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("big"), bytes(40 << 20, 5)).unwrap();
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let watcher = std::thread::spawn(move || {
        while watched.bytes_done.load(Ordering::Relaxed) < 8 << 20 {
            std::hint::spin_loop();
        }
        watched.stop.store(true, Ordering::Relaxed);
    });
    let report = stage(&plain(&source), &source, &plain(&target), &target, &OPTIONS, &progress).unwrap();
    watcher.join().unwrap();
    if report.copied == 0 {
        assert!(report.stopped && !target.join("big").exists());
        let part = part_of(&target.join("big"));
        assert!(std::fs::metadata(&part).unwrap().len() >= 8 << 20);
        // Whatever the part has become, the file is right.
        std::fs::File::options().write(true).open(&part).unwrap().write_all_at(b"garbage", 5 << 20).unwrap();
    }
    let report = run(&source, &target, &OPTIONS);
    assert!(report.failures.is_empty() && !report.stopped);
    assert_eq!(std::fs::read(target.join("big")).unwrap(), bytes(40 << 20, 5));
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1, "no part is left");
}

#[test]
fn many_runs_at_once_share_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let files = tree(&source);
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let one = |_| scope.spawn(|| run(&source, &target, &OPTIONS));
        let threads: Vec<_> = (0..4).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let copied: u64 = reports.iter().map(|report| report.copied).sum();
    assert!(reports.iter().all(|report| report.failures.is_empty()), "{reports:?}");
    assert!((files..=files + 3).contains(&copied), "{copied} copies of {files} files");
    let report = run(&source, &target, &OPTIONS);
    assert_eq!((report.copied, report.there), (0, files));
    assert_eq!(seen(&target), seen(&source));
}

#[test]
fn each_failure_is_named_and_the_rest_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::write(source.join("d/good"), b"good").unwrap();
    std::fs::write(source.join("taken"), b"taken").unwrap();
    std::fs::create_dir_all(target.join("taken")).unwrap();
    let pipe = source.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let report = run(&source, &target, &OPTIONS);
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.path.clone()).collect();
    assert_eq!(failed, [pipe, source.join("taken")]);
    assert_eq!(std::fs::read(target.join("d/good")).unwrap(), b"good");
    let nothing = dir.path().join("nothing");
    let nowhere = stage(&plain(&nothing), &nothing, &plain(&target), &target, &OPTIONS, &Progress::default());
    assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let file = dir.path().join("file");
    let onto_file = stage(&plain(&source), &source, &plain(&file), &file, &OPTIONS, &Progress::default());
    assert_eq!(onto_file.unwrap_err().kind(), ErrorKind::NotADirectory);
}

/// Copies one file of 9 MiB, and does something to the two while it is under way.
fn meddle(meddle: impl Fn(&Path, &Path) + Sync) -> (tempfile::TempDir, Result<Copied>) {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::write(&source, bytes(9 << 20, 3)).unwrap();
    age(&source, 1);
    let meta = plain(&source).meta(&source).unwrap().unwrap();
    let part = part_of(&target);
    let progress = |_| {
        meddle(&source, &part);
        false
    };
    let (from, to): (&dyn Side, &dyn Side) = (&plain(&source), &plain(&target));
    let way = Way { from, to, compare: false, verify: true, progress: &progress };
    let copied = way.copy(&source, &target, &meta);
    (dir, copied)
}

#[test]
fn a_source_that_changes_meanwhile_is_an_error_and_not_a_mixture() {
    let (dir, copied) = meddle(|source, _| {
        std::fs::File::options().write(true).open(source).unwrap().write_all_at(b"new", 1 << 20).unwrap();
    });
    assert!(copied.unwrap_err().to_string().contains("changed while it was copied"));
    assert!(!dir.path().join("target").exists());
    let (dir, copied) = meddle(|source, _| {
        std::fs::File::options().write(true).open(source).unwrap().set_len(5 << 20).unwrap();
    });
    assert!(copied.is_err() && !dir.path().join("target").exists());
}

#[test]
fn bytes_that_do_not_come_back_are_an_error() {
    let (dir, copied) = meddle(|_, part| {
        std::fs::File::options().write(true).open(part).unwrap().write_all_at(b"bad disk", 100).unwrap();
    });
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::InvalidData);
    assert!(!dir.path().join("target").exists());
}

#[test]
fn a_link_where_a_directory_goes_is_an_error_and_nothing_is_touched_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(source.join("sub/deeper")).unwrap();
    std::fs::write(source.join("sub/deeper/file"), b"file").unwrap();
    std::fs::set_permissions(source.join("sub"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    std::os::unix::fs::symlink(&outside, target.join("sub")).unwrap();
    let report = run(&source, &target, &OPTIONS);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(std::fs::metadata(&outside).unwrap().mode() & 0o7777, 0o700);
    let said = report.failures[0].error.to_string();
    assert!(
        said.contains(target.join("sub").to_str().unwrap()) && said.contains("remove the link"),
        "{said}"
    );
    // The destination itself.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let onto_link = stage(&plain(&source), &source, &plain(&link), &link, &OPTIONS, &Progress::default());
    assert!(onto_link.unwrap_err().to_string().contains("remove the link"));
    // A directory that became a link after it was made.
    let side = plain(&target);
    let meta = side.meta(&target).unwrap().unwrap();
    assert!(side.set_meta(&target.join("sub"), &Meta { mode: 0o777, ..meta }).is_err());
    assert!(side.set_xattr(&target.join("sub"), &"user.note".into(), b"x").is_err());
    assert!(side.open_part(&target.join("sub/part"), 0).is_err());
    assert_eq!(std::fs::metadata(&outside).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_source_directory_that_becomes_a_link_does_not_lead_outside() {
    let dir = tempfile::tempdir().unwrap();
    let (source, outside) = (dir.path().join("source"), dir.path().join("outside"));
    for at in [&source.join("sub"), &outside] {
        std::fs::create_dir_all(at).unwrap();
        std::fs::write(at.join("file"), b"secret").unwrap();
    }
    let side = plain(&source);
    std::fs::rename(source.join("sub"), source.join("was")).unwrap();
    std::os::unix::fs::symlink(&outside, source.join("sub")).unwrap();
    assert!(side.list(&source.join("sub")).is_err());
    assert!(side.open(&source.join("sub/file")).is_err());
    assert!(side.meta(&source.join("sub/file")).is_err());
    assert!(side.xattrs(&source.join("sub")).is_err());
}

#[test]
fn a_part_that_is_not_the_callers_alone_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::write(&source, b"whole").unwrap();
    let (part, other) = (part_of(&target), dir.path().join("other"));
    let plants: [&dyn Fn(); 3] = [
        &|| std::fs::hard_link(&other, &part).unwrap(),
        &|| std::os::unix::fs::symlink(&other, &part).unwrap(),
        &|| {
            std::fs::write(&part, b"").unwrap();
            // Only root can give a file away.
            std::os::unix::fs::chown(&part, Some(65534), None).ok();
        },
    ];
    for plant in plants {
        std::fs::write(&other, b"other").unwrap();
        plant();
        let planted = std::fs::File::open(&part).unwrap();
        let theirs = planted.metadata().unwrap().uid() != rustix::process::geteuid().as_raw();
        let report = run(&source, &target, &OPTIONS);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert_eq!(std::fs::read(&target).unwrap(), b"whole");
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        let same = std::fs::metadata(&target).unwrap().ino() == planted.metadata().unwrap().ino();
        assert!(!(same && theirs), "the other user could still write it");
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn a_part_stays_locked_after_writing_and_is_renamed_only_if_it_is_still_there() {
    let dir = tempfile::tempdir().unwrap();
    let part = dir.path().join("part");
    let side = plain(&part);
    let mut first = side.open_part(&part, 0).unwrap().unwrap();
    first.end_writing().unwrap();
    assert!(side.open_part(&part, 0).unwrap().is_none());
    drop(first);
    assert!(side.open_part(&part, 0).unwrap().is_some());
    let (dir, copied) = meddle(|_, part| {
        std::fs::remove_file(part).ok();
        std::fs::write(part, b"of somebody else").unwrap();
    });
    assert!(copied.unwrap_err().to_string().contains("replaced"));
    assert!(!dir.path().join("target").exists());
}

/// The folder that a tree is put into is not the tree's: its owner's mode stays.
#[test]
fn what_the_tree_lies_in_keeps_its_mode() {
    if rustix::process::geteuid().is_root() {
        return println!("skipped: root may write everywhere");
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, closed) = (dir.path().join("source"), dir.path().join("closed"));
    tree(&source);
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o555)).unwrap();
    let target = closed.join("target");
    let staged = stage(&plain(&source), &source, &plain(&target), &target, &OPTIONS, &Progress::default());
    assert!(staged.map_or(true, |report| !report.failures.is_empty()));
    assert_eq!(std::fs::metadata(&closed).unwrap().permissions().mode() & 0o777, 0o555);
}
