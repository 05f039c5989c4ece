//! The archive of real daemons: closed files go there, local bytes go and come back; the archive is
//! away, full, or changed; the daemon is killed in the middle.

use crate::namespaces::*;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::operation::{ARCHIVE_WANTED, CHUNKS_WANTED, Mode, SetXattr};
use zazen_namespace_client::core::{ARCHIVE, Attributes, Errno, InodeId, Name};

const READ: Mode = Mode { read: true, write: false, truncate: false };
const WRITE: Mode = Mode { read: true, write: true, truncate: false };

fn write(ns: &Namespace, path: &str, bytes: &[u8]) {
    let file = ns.open_or_create(None, path.as_bytes(), 0o644, WRITE, false).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.close().unwrap();
}

fn read(ns: &Namespace, path: &str) -> Result<Vec<u8>, Errno> {
    let file = ns.open(None, path.as_bytes(), READ)?;
    let mut bytes = vec![0; file.attributes().bytes as usize + 1];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn archive(ns: &Namespace) -> serde_json::Value {
    let status: serde_json::Value = serde_json::from_str(&ns.status().unwrap()).unwrap();
    status["archive"].clone()
}

fn number(ns: &Namespace, name: &str) -> u64 {
    archive(ns)[name].as_u64().unwrap()
}

/// An archive, and nodes that keep nothing on their disks that it has.
fn greedy(nodes: usize, flags: &[&str]) -> (tempfile::TempDir, PathBuf, Cluster) {
    let dir = tempfile::Builder::new().prefix("zna").tempdir_in("/tmp").unwrap();
    let root = dir.path().join("run1");
    std::fs::create_dir(&root).unwrap();
    let mut all = vec!["--namespace-archive", root.to_str().unwrap()];
    all.extend(["--namespace-archive-after", "0", "--namespace-archive-free", "100%"]);
    all.extend(flags);
    let cluster = Cluster::with(nodes, &all);
    (dir, root, cluster)
}

fn has(path: &Path, bytes: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|found| found == bytes)
}

/// Archived objects that are no names in the tree.
fn hidden(root: &Path) -> usize {
    let count = |path: &Path| std::fs::read_dir(path).unwrap().count();
    let of_namespace = std::fs::read_dir(root.join(".zazen-archive")).unwrap();
    let objects = of_namespace.map(|one| one.unwrap().path().join("objects"));
    objects.flat_map(|all| std::fs::read_dir(all).unwrap()).map(|folder| count(&folder.unwrap().path())).sum()
}

#[test]
fn closed_files_go_to_the_archive_and_come_back_when_they_are_read() {
    let (_dir, root, cluster) = greedy(1, &[]);
    let ns = cluster.client(0);
    ns.mkdir_all(None, b"/run1/deep", 0o750).unwrap();
    let first = noise(3_000_001, 1);
    write(&ns, "/run1/deep/a", &first);
    write(&ns, "/run1/empty", b"");
    // A file with a hole, and one that is open.
    let sparse = ns.open_or_create(None, b"/sparse", 0o600, WRITE, false).unwrap();
    sparse.write_all_at(b"end", 5_000_000).unwrap();
    sparse.close().unwrap();
    let open = ns.open_or_create(None, b"/open", 0o644, WRITE, false).unwrap();
    open.write_all_at(b"not yet", 0).unwrap();
    eventually("the tree of the archive has the files", || {
        has(&root.join("run1/deep/a"), &first) && has(&root.join("run1/empty"), b"")
    });
    eventually("their bytes go from the disk", || number(&ns, "only_there_files") == 2);
    assert_eq!(cluster.objects(0), 2, "the open file stays, and the one without bytes");
    assert!(!root.join("open").exists());
    let mode = |path: &str| root.join(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("run1/deep"), mode("run1/deep/a")), (0o750, 0o644));
    eventually("a file with a hole is archived", || root.join("sparse").exists());
    let stat = root.join("sparse").metadata().unwrap();
    assert!(stat.len() == 5_000_003 && stat.blocks() * 512 < 2_000_000, "{} blocks", stat.blocks());

    assert_eq!(read(&ns, "/run1/deep/a").unwrap(), first);
    let file = ns.open(None, b"/sparse", READ).unwrap();
    let mut end = [1; 4];
    assert_eq!((file.read_at(&mut end, 4_999_999), end), (Ok(4), *b"\0end"));
    file.close().unwrap();
    assert!(number(&ns, "brought_back") >= 2);

    // Written again: the archive follows, and what was there before is no copy of it.
    let again = ns.open(None, b"/run1/deep/a", WRITE).unwrap();
    again.write_all_at(b"changed", 1_000_000).unwrap();
    let mut second = first.clone();
    second[1_000_000..1_000_007].copy_from_slice(b"changed");
    again.close().unwrap();
    assert_eq!(read(&ns, "/run1/deep/a").unwrap(), second);
    eventually("the archive has the new bytes", || has(&root.join("run1/deep/a"), &second));
    open.close().unwrap();
    eventually("the closed file follows", || has(&root.join("open"), b"not yet"));
}

#[test]
fn names_in_the_archive_follow_renames_and_what_is_removed_stays_there() {
    let (_dir, root, cluster) = greedy(2, &["--namespace-replicas", "1"]);
    let nodes = [cluster.client(0), cluster.client(1)];
    let ns = &nodes[0];
    ns.mkdir(None, b"/d", 0o755).unwrap();
    for (at, node) in nodes.iter().enumerate() {
        write(node, &format!("/d/{at}"), &noise(100_000, at as u64));
    }
    let are_there =
        |names: [&str; 2]| (0..2).all(|at| has(&root.join(names[at]), &noise(100_000, at as u64)));
    eventually("both nodes archive", || are_there(["d/0", "d/1"]));
    eventually("their bytes go", || cluster.objects(0) + cluster.objects(1) == 0);
    // Somebody else's file in the archive is nobody's business.
    std::fs::write(root.join("d/foreign"), "foreign").unwrap();
    std::fs::create_dir(root.join("d/foreign-empty")).unwrap();
    ns.rename_path(None, b"/d/0", b"/d/renamed").unwrap();
    ns.rename_path(None, b"/d", b"/e").unwrap();
    eventually("the tree follows", || are_there(["e/renamed", "e/1"]));
    eventually("old names go", || !root.join("d/0").exists() && !root.join("d/1").exists());
    assert!(has(&root.join("d/foreign"), b"foreign") && root.join("d/foreign-empty").is_dir());
    // A node reads what the other one has only in the archive.
    assert_eq!(read(&nodes[1], "/e/renamed").unwrap(), noise(100_000, 0));
    ns.remove(None, b"/e/renamed").unwrap();
    eventually("what is removed needs no object", || hidden(&root) == 1);
    assert!(has(&root.join("e/renamed"), &noise(100_000, 0)));
    assert_eq!(root.join("e/renamed").metadata().unwrap().nlink(), 1);
    // A link that leads out of the archive, where a directory should be, is not followed.
    let outside = root.with_file_name("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("trap")).unwrap();
    ns.mkdir(None, b"/trap", 0o755).unwrap();
    write(ns, "/trap/f", b"bytes");
    eventually("the trap is told", || {
        nodes.iter().any(|node| archive(node)["names"]["failed"].as_u64().is_some_and(|failed| failed > 0))
    });
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(read(&nodes[1], "/trap/f").unwrap(), b"bytes");
}

#[test]
fn a_killed_daemon_goes_on_where_it_was() {
    let (_dir, root, mut cluster) = greedy(1, &["--namespace-archive-rate", "2M"]);
    let ns = cluster.client(0);
    write(&ns, "/small", b"small");
    eventually("the small file goes", || number(&ns, "only_there_files") == 1);
    let bytes = noise(8 << 20, 7);
    write(&ns, "/large", &bytes);
    let part = || {
        let hidden = std::fs::read_dir(root.join(".zazen-archive")).unwrap().next().unwrap().unwrap();
        let mut parts = std::fs::read_dir(hidden.path().join("parts")).unwrap();
        parts.next().map_or(0, |part| part.unwrap().metadata().map_or(0, |part| part.len()))
    };
    eventually("a part is there", || part() >= 2 << 20);
    cluster.kill(0);
    cluster.start(0);
    let ns = cluster.client(0);
    assert_eq!(read(&ns, "/small").unwrap(), b"small");
    assert_eq!(read(&ns, "/large").unwrap(), bytes);
    eventually("the large file is archived", || has(&root.join("large"), &bytes));
    eventually("and goes", || number(&ns, "only_there_files") == 2);
    cluster.kill(0);
    cluster.start(0);
    assert_eq!(read(&cluster.client(0), "/large").unwrap(), bytes);
}

#[test]
fn an_archive_that_is_away_or_changed_is_an_error_and_never_wrong_bytes() {
    let (_dir, root, cluster) = greedy(1, &[]);
    let ns = cluster.client(0);
    let bytes = noise(300_000, 3);
    for name in ["/a", "/b", "/c"] {
        write(&ns, name, &bytes);
    }
    eventually("all go", || number(&ns, "only_there_files") == 3 && has(&root.join("c"), &bytes));
    let away = root.with_file_name("away");
    std::fs::rename(&root, &away).unwrap();
    assert_eq!(read(&ns, "/a"), Err(Errno::EIO));
    write(&ns, "/new", b"new");
    eventually("the trouble is told", || {
        archive(&ns)["trouble"].as_str().is_some_and(|why| why.contains("mounted"))
    });
    // An empty folder in its place is not the archive.
    std::fs::create_dir(&root).unwrap();
    eventually("nor is another folder", || {
        archive(&ns)["trouble"].as_str().is_some_and(|why| why.contains("not the archive"))
    });
    assert_eq!(read(&ns, "/a"), Err(Errno::EIO));
    assert_eq!(read(&ns, "/new").unwrap(), b"new");
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    assert_eq!(read(&ns, "/a").unwrap(), bytes);
    eventually("what was made meanwhile follows", || has(&root.join("new"), b"new"));

    // Users may change archived files that they own. They do not change the namespace.
    let mut changed = bytes.clone();
    changed[200_000] ^= 1;
    std::fs::write(root.join("b"), &changed).unwrap();
    std::fs::write(root.join("c"), &bytes[..299_999]).unwrap();
    assert_eq!(read(&ns, "/b"), Err(Errno::EIO));
    assert_eq!(read(&ns, "/c"), Err(Errno::EIO));
    assert!(cluster.log(0).contains("somebody changed the archived file"));
    std::fs::write(root.join("b"), &bytes).unwrap();
    assert_eq!(read(&ns, "/b").unwrap(), bytes);
}

#[test]
fn a_full_archive_keeps_local_bytes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to mount a small disk");
        return;
    }
    let dir = tempfile::Builder::new().prefix("zna").tempdir_in("/tmp").unwrap();
    let root = dir.path().join("small");
    let _disk = SmallDisk::mount(&root, "4m");
    let flags = ["--namespace-archive", root.to_str().unwrap(), "--namespace-archive-after", "0"];
    let cluster = Cluster::with(1, &[&flags[..], &["--namespace-archive-free", "100%"]].concat());
    let ns = cluster.client(0);
    let (large, small) = (noise(6 << 20, 1), noise(100_000, 2));
    write(&ns, "/large", &large);
    eventually("the failure is told", || number(&ns, "failed") == 1);
    assert_eq!(read(&ns, "/large").unwrap(), large);
    ns.remove(None, b"/large").unwrap();
    write(&ns, "/small", &small);
    eventually("there is room again", || has(&root.join("small"), &small));
}

#[test]
fn a_node_that_leaves_takes_along_what_only_the_archive_has() {
    use zazen_namespace_client::core::service::Leave;
    let (_dir, root, cluster) = greedy(2, &["--namespace-replicas", "1"]);
    let (stays, leaves) = (cluster.client(0), cluster.client(1));
    let bytes = noise(200_000, 5);
    write(&leaves, "/f", &bytes);
    eventually("it goes", || number(&leaves, "only_there_files") == 1 && has(&root.join("f"), &bytes));
    let node = leaves.hello().unwrap().node;
    drop(leaves);
    let mut ask = Leave { node: Some(node), run: Some(true) };
    stays.leave(&ask).unwrap();
    ask.run = None;
    eventually("it has left", || {
        let state = stays.leave(&ask).map(|leaving| leaving.state);
        state.is_ok_and(|state| state == zazen_namespace_client::core::map::State::Gone)
    });
    assert_eq!(read(&stays, "/f").unwrap(), bytes);
}

#[test]
fn archived_files_of_a_lost_node_are_read_and_belong_to_others_soon() {
    let (_dir, root, mut cluster) =
        greedy(4, &["--namespace-replicas", "2", "--namespace-repair-after", "2"]);
    let nodes: Vec<Namespace> = (0..4).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[0]));
    let lost = nodes[3].hello().unwrap().node;
    let path = |at: usize| format!("/f{at}");
    let bytes = |at: usize| noise(1 + at * 30_011, at as u64);
    (0..12).for_each(|at| write(&nodes[3], &path(at), &bytes(at)));
    write(&nodes[3], "/spoiled", &noise(200_000, 99));
    let place = |path: &str| nodes[0].stat(None, path.as_bytes(), true).ok().and_then(|found| found.place);
    let is_archived = |path: &str| place(path).is_some_and(|place| place.is_archived());
    eventually("all are archived", || (0..12).all(|at| is_archived(&path(at))) && is_archived("/spoiled"));
    eventually("their bytes go", || number(&nodes[3], "only_there_files") == 13);
    eventually("and have names", || root.join("spoiled").exists());
    // Written again, and not archived again: the archive does not count.
    let changed = nodes[3].open(None, b"/f11", WRITE).unwrap();
    changed.write_all_at(b"new", 0).unwrap();
    changed.sync().unwrap();
    assert!(!is_archived("/f11"));
    std::fs::write(root.join("spoiled"), noise(200_000, 98)).unwrap();
    let open: Vec<_> =
        (0..11).map(|at| nodes[at % 3].open(None, path(at).as_bytes(), READ).unwrap()).collect();
    let reads = |at: usize| {
        let mut got = vec![0; bytes(at).len()];
        open[at].read_at(&mut got, 0) == Ok(got.len()) && got == bytes(at)
    };
    cluster.kill(3);
    for at in 0..11 {
        eventually("each open file is read", || reads(at));
        eventually("each file is read", || read(&nodes[at % 3], &path(at)).as_ref() == Ok(&bytes(at)));
    }
    for name in ["/f11", "/spoiled"] {
        assert!(read(&nodes[0], name).is_err(), "{name}: these bytes are nowhere");
    }
    let has_other = |at: usize| place(&path(at)).is_some_and(|place| place.holder != lost);
    eventually("each file has another holder", || (0..11).all(has_other));
    assert!(place("/f11").is_some_and(|place| place.holder == lost && !place.copies.contains(&ARCHIVE)));
    assert!((0..11).all(reads), "through what was open all the time, too");
    drop(open);
    assert!(read(&nodes[1], "/spoiled").is_err());
    // They are files as any others.
    let mut wanted: Vec<Vec<u8>> = (0..11).map(bytes).collect();
    for (at, wanted) in wanted.iter_mut().enumerate() {
        let file = nodes[(at + 1) % 3].open(None, path(at).as_bytes(), WRITE).unwrap();
        file.write_all_at(b"n", 0).unwrap();
        file.close().unwrap();
        wanted[0] = b'n';
        assert_eq!(&read(&nodes[at % 3], &path(at)).unwrap(), wanted);
    }
    eventually("the archive follows", || (0..11).all(|at| has(&root.join(&path(at)[1..]), &wanted[at])));
    // The node comes back with its old disk. It holds what nobody took over.
    cluster.start(3);
    let back = cluster.client(3);
    assert_eq!(&read(&back, "/f11").unwrap()[..3], b"new");
    for (at, wanted) in wanted.iter().enumerate() {
        assert_eq!(&read(&back, &path(at)).unwrap(), wanted);
    }
}

#[test]
fn a_directory_says_whether_the_archive_has_its_files() {
    let (_dir, root, cluster) = greedy(1, &[]);
    let ns = cluster.client(0);
    let wish = |path: &str, value: &[u8]| {
        let id = ns.stat(None, path.as_bytes(), true).unwrap().id;
        let (name, value) = (Name::new(ARCHIVE_WANTED).unwrap(), Some(value.to_vec()));
        ns.set_xattr(None, SetXattr { id, name, value, create: false, replace: false })
    };
    ns.mkdir_all(None, b"/scratch/results", 0o755).unwrap();
    assert_eq!(wish("/scratch", b"perhaps"), Err(Errno::EINVAL));
    wish("/scratch", b"no").unwrap();
    wish("/scratch/results", b"yes").unwrap();
    // What was asked before may be remembered for two seconds.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    ns.create_many_at(None, b"/scratch", &[Name::new(b"many").unwrap()], 0o644).unwrap()[0].unwrap();
    write(&ns, "/scratch/many", b"one of many");
    write(&ns, "/scratch/temporary", b"temporary");
    write(&ns, "/scratch/results/kept", b"kept");
    write(&ns, "/outside", b"outside");
    eventually("the others go", || {
        has(&root.join("scratch/results/kept"), b"kept") && has(&root.join("outside"), b"outside")
    });
    eventually("nothing waits", || number(&ns, "waiting") == 0);
    let found = archive(&ns);
    assert_eq!((found["files"].as_u64(), found["failed"].as_u64()), (Some(2), Some(0)), "{found}");
    eventually("a look at names lacks none", || {
        let names = &archive(&ns)["names"];
        names["lacking"].as_u64() == Some(0) && names["age_s"].as_u64() < Some(2)
    });
    assert!(!root.join("scratch/temporary").exists() && !root.join("scratch/many").exists());
    assert_eq!(read(&ns, "/scratch/many").unwrap(), b"one of many");
    // Later, somebody wants one all the same.
    wish("/scratch/temporary", b"yes").unwrap();
    eventually("it goes, too", || has(&root.join("scratch/temporary"), b"temporary"));
}

/// Makes a file in chunks of a MiB in the root directory.
fn make_shared(ns: &Namespace, name: &str) -> InodeId {
    let made = ns.create_many(None, InodeId::ROOT, &[Name::new(name.as_bytes()).unwrap()], 0o644).unwrap();
    let id = *made[0].as_ref().unwrap();
    let (name, value) = (Name::new(CHUNKS_WANTED).unwrap(), Some(b"1".to_vec()));
    ns.set_xattr(None, SetXattr { id, name, value, create: false, replace: false }).unwrap();
    id
}

fn write_at(ns: &Namespace, path: &str, bytes: &[u8], offset: usize) {
    let file = ns.open(None, path.as_bytes(), WRITE).unwrap();
    file.write_all_at(bytes, offset as u64).unwrap();
    file.close().unwrap();
}

fn is_archived(chunk: &Attributes) -> bool {
    chunk.bytes == 0 || chunk.place.as_ref().is_some_and(|place| place.is_archived())
}

#[test]
fn a_file_in_chunks_is_one_file_in_the_archive() {
    const MIB: usize = 1 << 20;
    let (_dir, root, cluster) = greedy(3, &[]);
    let nodes: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let id = make_shared(&nodes[0], "shared");
    // Each node has chunks; between them is a hole, and behind them an end that was set.
    let mut bytes = vec![0; 9 * MIB + 7];
    for (at, ns) in nodes.iter().enumerate() {
        let (start, count) = (at * 2 * MIB + 1000, 2 * MIB - 1000 - at);
        bytes[start..start + count].copy_from_slice(&noise(count, at as u64));
        write_at(ns, "/shared", &bytes[start..start + count], start);
    }
    let open = nodes[1].open(None, b"/shared", WRITE).unwrap();
    open.set_length(bytes.len() as u64).unwrap();
    open.close().unwrap();
    let there = root.join("shared");
    eventually("the archive has the file", || has(&there, &bytes));
    assert_eq!(there.metadata().unwrap().mode() & 0o7777, 0o644);
    let chunks = || nodes[0].chunks(None, id).unwrap();
    assert!(chunks().iter().all(is_archived) && chunks().len() == 6, "{:?}", chunks());
    // The nodes keep none of it, and read it all the same.
    let held = |ns: &Namespace| number(ns, "files") - number(ns, "only_there_files");
    eventually("no bytes are left here", || nodes.iter().all(|ns| held(ns) == 0));
    nodes.iter().for_each(|ns| assert!(read(ns, "/shared").unwrap() == bytes));
    // A chunk is written again, then the file is cut.
    bytes[3 * MIB..3 * MIB + 4].copy_from_slice(b"anew");
    write_at(&nodes[2], "/shared", b"anew", 3 * MIB);
    eventually("the archive has the new bytes", || has(&there, &bytes));
    nodes[0].rename_path(None, b"/shared", b"/other").unwrap();
    let open = nodes[0].open(None, b"/other", WRITE).unwrap();
    open.set_length(MIB as u64 + 5).unwrap();
    open.close().unwrap();
    bytes.truncate(MIB + 5);
    eventually("it is cut there, too", || has(&root.join("other"), &bytes) && !there.exists());
    eventually("one object of it is left, and two chunks", || hidden(&root) == 3);
    // The name in the archive stays, and nothing else of it.
    nodes[1].unlink(None, InodeId::ROOT, &Name::new(b"other").unwrap()).unwrap();
    eventually("its objects go", || hidden(&root) == 0);
    assert!(has(&root.join("other"), &bytes));
}

#[test]
fn archived_chunks_of_a_lost_node_are_read_and_belong_to_others_soon() {
    const MIB: usize = 1 << 20;
    let (_dir, root, mut cluster) =
        greedy(3, &["--namespace-replicas", "2", "--namespace-repair-after", "2"]);
    let nodes: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[0]));
    let lost = nodes[2].hello().unwrap().node;
    let id = make_shared(&nodes[0], "shared");
    let mut bytes = noise(3 * MIB, 5);
    for (at, ns) in nodes.iter().enumerate() {
        write_at(ns, "/shared", &bytes[at * MIB..(at + 1) * MIB], at * MIB);
    }
    eventually("the archive has the file", || has(&root.join("shared"), &bytes));
    cluster.kill(2);
    eventually("it is read", || read(&nodes[0], "/shared").is_ok_and(|found| found == bytes));
    let is_taken = |chunk: &Attributes| chunk.place.as_ref().is_some_and(|place| place.holder != lost);
    eventually("its chunk has another holder", || {
        nodes[0].chunks(None, id).is_ok_and(|chunks| chunks.iter().all(is_taken))
    });
    write_at(&nodes[1], "/shared", b"after", 2 * MIB + 9);
    bytes[2 * MIB + 9..2 * MIB + 14].copy_from_slice(b"after");
    assert!(read(&nodes[0], "/shared").unwrap() == bytes);
    eventually("the archive follows", || has(&root.join("shared"), &bytes));
}
