//! The namespace of several real daemons: files of one node on the others, kill -9, restarts, a
//! full disk.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

mod namespaces;

use namespaces::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::operation::{Lock, LockWanted, Mode, SetAttributes, SetXattr};
use zazen_namespace_client::core::{Errno, Name};

const READ: Mode = Mode { read: true, write: false, truncate: false };
const WRITE: Mode = Mode { read: true, write: true, truncate: false };
/// A hang: the bench measures how soon a partition answers again, on an idle machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

fn write(ns: &Namespace, path: &str, bytes: &[u8]) -> Result<(), Errno> {
    let file = ns.open_or_create(None, path.as_bytes(), 0o644, WRITE, false)?;
    file.write_all_at(bytes, 0)?;
    file.close()
}

fn read(ns: &Namespace, path: &str) -> Result<Vec<u8>, Errno> {
    let file = ns.open(None, path.as_bytes(), READ)?;
    let mut bytes = vec![0; file.attributes().bytes as usize + 1];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[test]
fn files_of_one_node_are_the_same_on_all() {
    let cluster = Cluster::with(4, &["--namespace-replicas", "1"]);
    let nodes: Vec<Namespace> = (0..4).map(|at| cluster.client(at)).collect();
    nodes[0].mkdir(None, b"/d", 0o755).unwrap();
    for (at, ns) in nodes.iter().enumerate() {
        ns.mkdir_all(None, format!("/d/{at}/sub").as_bytes(), 0o755).unwrap();
        write(ns, &format!("/d/{at}/sub/f"), &noise(5_000_000 + at, at as u64)).unwrap();
    }
    for ns in &nodes {
        assert_eq!(ns.list(None, b"/d", true).unwrap().len(), 4);
        for at in 0..4 {
            assert_eq!(read(ns, &format!("/d/{at}/sub/f")).unwrap(), noise(5_000_000 + at, at as u64));
        }
    }
    for at in 0..4 {
        assert_eq!(cluster.objects(at), 1, "each node holds what it wrote");
        let holder = nodes[0].stat(None, format!("/d/{at}/sub/f").as_bytes(), true).unwrap().place;
        assert_eq!(holder.unwrap().holder, nodes[at].hello().unwrap().node);
    }
    // Writes of another node go to the holder, and are seen at once by a third.
    let there = nodes[1].open(None, b"/d/0/sub/f", WRITE).unwrap();
    let third = nodes[2].open(None, b"/d/0/sub/f", READ).unwrap();
    for round in 0..20u64 {
        let offset = round * 250_007;
        there.write_all_at(&noise(1000, round), offset).unwrap();
        let mut got = [0; 1000];
        assert_eq!(third.read_at(&mut got, offset), Ok(1000));
        assert_eq!(got[..], noise(1000, round));
    }
    there.write_all_at(b"longer", 6_000_000).unwrap();
    assert_eq!(nodes[3].stat(None, b"/d/0/sub/f", true).unwrap().bytes, 6_000_006);
    there.close().unwrap();
    // A rewrite moves the file to the writer.
    let moved = nodes[3].open(None, b"/d/2/sub/f", Mode { truncate: true, ..WRITE }).unwrap();
    moved.write_all_at(b"moved", 0).unwrap();
    moved.close().unwrap();
    assert_eq!(read(&nodes[0], "/d/2/sub/f").unwrap(), b"moved");
    eventually("the old bytes end", || cluster.objects(2) == 0);
    // A rewrite of what others have open stays, and they see it.
    let open = nodes[2].open(None, b"/d/1/sub/f", READ).unwrap();
    let again = nodes[3].open(None, b"/d/1/sub/f", Mode { truncate: true, ..WRITE }).unwrap();
    again.write_all_at(b"seen", 0).unwrap();
    let mut got = [0; 9];
    assert_eq!(open.read_at(&mut got, 0), Ok(4));
    assert_eq!(&got[..4], b"seen");
    // Names move between the partitions.
    nodes[2].rename_path(None, b"/d/0/sub", b"/d/3/sub0").unwrap();
    assert_eq!(nodes[1].stat(None, b"/d/3/sub0/f", true).unwrap().bytes, 6_000_006);
    assert_eq!(nodes[1].rename_path(None, b"/d/3", b"/d/3/sub0/x").unwrap_err(), Errno::EINVAL);
}

#[test]
fn a_new_file_whose_node_died_before_it_made_the_object_is_empty_on_all_nodes() {
    let mut cluster = Cluster::with(2, &["--namespace-replicas", "2"]);
    let other = cluster.client(1);
    write(&cluster.client(0), "/new", b"").unwrap();
    cluster.kill(0);
    // What its disk has if it dies when the file's name is made and the object is not.
    for folder in std::fs::read_dir(cluster.data(0).join("objects")).unwrap() {
        let files = std::fs::read_dir(folder.unwrap().path()).unwrap();
        files.for_each(|file| std::fs::remove_file(file.unwrap().path()).unwrap());
    }
    assert_eq!(cluster.objects(0), 0);
    cluster.start(0);
    eventually("the node is back", || read(&cluster.client(0), "/new") == Ok(Vec::new()));
    assert_eq!(read(&other, "/new"), Ok(Vec::new()));
    write(&other, "/new", b"bytes").unwrap();
    assert_eq!(read(&cluster.client(0), "/new").unwrap(), b"bytes");
}

#[test]
fn many_clients_of_all_nodes_create_in_one_directory() {
    let cluster = Cluster::with(3, &["--namespace-replicas", "2"]);
    cluster.client(0).mkdir(None, b"/one", 0o777).unwrap();
    let made: usize = std::thread::scope(|scope| {
        let create = |client: usize| {
            let ns = cluster.client(client % 3);
            let directory = ns.stat(None, b"/one", true).unwrap().id;
            let name = |at| Name::new(format!("c{client}-{at}").as_bytes()).unwrap();
            let names: Vec<Name> = (0..150).map(name).collect();
            let many = ns.create_many(None, directory, &names[..100], 0o644).unwrap();
            let one = |name: &Name| ns.create(None, directory, name, 0o644, WRITE, true).is_ok();
            many.iter().filter(|made| made.is_ok()).count()
                + names[100..].iter().filter(|name| one(name)).count()
        };
        let threads: Vec<_> = (0..6).map(|client| scope.spawn(move || create(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 6 * 150);
    for at in 0..3 {
        assert_eq!(cluster.client(at).list(None, b"/one", false).unwrap().len(), made);
    }
}

#[test]
fn a_large_directory_is_spread_over_the_nodes_and_lists_completely() {
    const OF_EACH: usize = 8_000;
    let cluster = Cluster::with(3, &["--namespace-replicas", "2"]);
    let nodes: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let directory = nodes[0].mkdir(None, b"/large", 0o777).unwrap().id;
    std::thread::scope(|scope| {
        for (at, ns) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let name = |number| Name::new(format!("n{at}-{number}").as_bytes()).unwrap();
                let names: Vec<Name> = (0..OF_EACH).map(name).collect();
                for some in names.chunks(500) {
                    let made = ns.create_many(None, directory, some, 0o644).unwrap();
                    assert!(made.iter().all(Result::is_ok), "{at}: {made:?}");
                }
            });
        }
    });
    let map = nodes[0].map().unwrap();
    for ns in &nodes {
        let listed = ns.list(None, b"/large", true).unwrap();
        let names: std::collections::BTreeSet<_> = listed.iter().map(|entry| entry.name.as_bytes()).collect();
        assert_eq!((listed.len(), names.len()), (3 * OF_EACH, 3 * OF_EACH));
        assert_eq!(ns.stat(None, b"/large", true).unwrap().bytes, 3 * OF_EACH as u64);
        let keeper =
            |id: zazen_namespace_client::core::InodeId| map.partitions[id.partition().0 as usize].primary;
        let keepers: std::collections::BTreeSet<_> =
            listed.iter().filter_map(|entry| Some(keeper(entry.attributes.as_ref()?.id))).collect();
        assert_eq!(keepers.len(), 3, "new files are made on all nodes");
    }
    // Who has looked at a name is told when it changes, and knows nothing of buckets.
    let mut after = nodes[2].watch(0).unwrap().next;
    eventually("a change is told", || {
        nodes[2].stat(None, b"/large/told", true).ok();
        write(&nodes[0], "/large/told", b"told").unwrap();
        nodes[0].remove(None, b"/large/told").unwrap();
        let changes = nodes[2].watch(after).unwrap();
        after = changes.next;
        changes.inodes.contains(&directory)
    });
    // It is a directory as any other.
    write(&nodes[1], "/large/one", b"one").unwrap();
    nodes[2].rename_path(None, b"/large/one", b"/large/two").unwrap();
    nodes[0].mkdir(None, b"/large/d", 0o755).unwrap();
    nodes[1].rename_path(None, b"/large/two", b"/large/d/three").unwrap();
    assert_eq!(read(&nodes[2], "/large/d/three").unwrap(), b"one");
    assert_eq!(nodes[0].rename_path(None, b"/large", b"/large/d/x").unwrap_err(), Errno::EINVAL);
    assert_eq!(nodes[2].rmdir(None, b"/large").unwrap_err(), Errno::ENOTEMPTY);
}

#[test]
fn after_a_restart_with_the_same_disk_all_is_there() {
    for level in ["memory", "written", "synced"] {
        let mut cluster = Cluster::with(2, &["--namespace-replicas", "1", "--namespace-durability", level]);
        let bytes = noise(300_000, 7);
        for at in 0..2 {
            let ns = cluster.client(at);
            ns.mkdir(None, format!("/d{at}").as_bytes(), 0o755).unwrap();
            for file in 0..20 {
                write(&ns, &format!("/d{at}/f{file}"), &bytes).unwrap();
            }
        }
        if level == "memory" {
            // The level promises the disk within a second.
            std::thread::sleep(Duration::from_secs(3));
        }
        (0..2).for_each(|at| cluster.kill(at));
        (0..2).for_each(|at| cluster.start(at));
        for at in 0..2 {
            let ns = cluster.client(at);
            for of in 0..2 {
                let listed = ns.list(None, format!("/d{of}").as_bytes(), false).unwrap();
                assert_eq!(listed.len(), 20, "{level}");
                assert_eq!(read(&ns, &format!("/d{of}/f19")).unwrap(), bytes);
            }
        }
    }
}

#[test]
fn kill_9_at_two_replicas_loses_no_acknowledged_change() {
    let mut cluster = Cluster::with(4, &["--namespace-replicas", "2"]);
    let survivors: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    let up = |ns: &Namespace| ns.map().unwrap().nodes.iter().filter(|node| node.up).count();
    eventually("each partition has a backup", || backed(&survivors[0]));
    for dir in 0..12 {
        survivors[0].mkdir(None, format!("/d{dir}").as_bytes(), 0o755).unwrap();
    }
    let stop = AtomicBool::new(false);
    let (made, longest) = std::thread::scope(|scope| {
        let work = |at: usize, ns: &Namespace, stop: &AtomicBool| {
            let mut made = Vec::new();
            let mut longest = Duration::ZERO;
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let path = format!("/d{}/c{at}-{number}", number % 12);
                let started = Instant::now();
                match write(ns, &path, path.as_bytes()) {
                    Ok(()) => made.push(path),
                    // On a loaded machine. Whether it was made, nobody knows.
                    Err(Errno::ETIMEDOUT) => println!("{path}: after {:?}", started.elapsed()),
                    Err(errno) => panic!("{path}: {errno:?} after {:?}", started.elapsed()),
                }
                longest = longest.max(started.elapsed());
                number += 1;
            }
            (made, longest)
        };
        let stop = &stop;
        let threads: Vec<_> =
            survivors.iter().enumerate().map(|(at, ns)| scope.spawn(move || work(at, ns, stop))).collect();
        std::thread::sleep(Duration::from_secs(1));
        cluster.kill(3);
        eventually("the others take over", || up(&survivors[0]) == 3);
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        let mut made = Vec::new();
        let mut longest = Duration::ZERO;
        for thread in threads {
            let (paths, pause) = thread.join().unwrap();
            made.extend(paths);
            longest = longest.max(pause);
        }
        (made, longest)
    });
    println!("{} files, longest pause {longest:?}", made.len());
    assert!(longest < BACK_WITHIN, "service was away for {longest:?}");
    let mut listed = BTreeMap::new();
    for dir in 0..12 {
        for entry in survivors[1].list(None, format!("/d{dir}").as_bytes(), true).unwrap() {
            let name = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            listed.insert(format!("/d{dir}/{name}"), entry.attributes.unwrap().bytes);
        }
    }
    for path in &made {
        assert_eq!(listed.get(path), Some(&(path.len() as u64)), "{path} was acknowledged");
        assert_eq!(read(&survivors[2], path).unwrap(), path.as_bytes());
    }
    // The node comes back with its old disk, and takes part again.
    cluster.start(3);
    let back = cluster.client(3);
    write(&back, "/d0/back", b"back").unwrap();
    assert_eq!(read(&survivors[0], "/d0/back").unwrap(), b"back");
    assert_eq!(read(&back, &made[0]).unwrap(), made[0].as_bytes());
}

/// A daemon that was stopped for longer than its lease has lost its partitions, and begins a new
/// life. Its programs see no error, and what they have open stays open.
#[test]
fn a_pause_longer_than_the_lease_is_no_error_to_programs() {
    let cluster = Cluster::with(3, &["--namespace-replicas", "2"]);
    let nodes: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[1]));
    for dir in 0..12 {
        nodes[0].mkdir(None, format!("/d{dir}").as_bytes(), 0o755).unwrap();
    }
    write(&nodes[1], "/theirs", b"theirs").unwrap();
    let own = nodes[0].open_or_create(None, b"/own", 0o644, WRITE, true).unwrap();
    own.write_all_at(b"before", 0).unwrap();
    let far = nodes[0].open(None, b"/theirs", WRITE).unwrap();
    let reads = nodes[0].open(None, b"/own", READ).unwrap();
    let locked = nodes[0].open_or_create(None, b"/locked", 0o644, WRITE, true).unwrap();
    let id = locked.attributes().id;
    let exclusive = |wanted| Lock { id, owner: 7, pid: 1, whole: true, start: 0, end: u64::MAX, wanted };
    assert_eq!(nodes[0].lock(None, exclusive(LockWanted::Exclusive)), Ok(None));
    let me = nodes[0].hello().unwrap().node;
    let is_up = |ns: &Namespace| ns.map().unwrap().nodes.iter().any(|node| node.node == me && node.up);
    for _ in 0..2 {
        let stop = AtomicBool::new(false);
        let made = std::thread::scope(|scope| {
            let work = |worker: usize| {
                let mut made = Vec::new();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = format!("/d{}/w{worker}-{number}", number % 12);
                    match write(&nodes[0], &path, path.as_bytes()) {
                        Ok(()) => made.push(path),
                        // On a loaded machine. Whether it was made, nobody knows.
                        Err(Errno::ETIMEDOUT) => println!("{path}: not in time"),
                        Err(errno) => panic!("{path}: {errno}"),
                    }
                    number += 1;
                }
                made
            };
            let threads: Vec<_> = (0..3).map(|worker| scope.spawn(move || work(worker))).collect();
            std::thread::sleep(Duration::from_millis(300));
            cluster.pause(0);
            eventually("the others take over", || !is_up(&nodes[1]));
            cluster.resume(0);
            eventually("it begins a new life", || is_up(&nodes[1]));
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for path in &made {
            assert_eq!(read(&nodes[2], path).as_deref(), Ok(path.as_bytes()), "{path}");
            eventually("it is removed", || {
                matches!(nodes[0].remove(None, path.as_bytes()), Ok(_) | Err(Errno::ENOENT))
            });
        }
        own.write_all_at(b" after", 6).unwrap();
        far.write_all_at(b"T", 0).unwrap();
        let mut got = [0; 12];
        assert_eq!(reads.read_at(&mut got, 0), Ok(12));
        assert_eq!(&got, b"before after");
    }
    // A lock is lost: who held it is told, and others get it.
    assert_eq!(locked.write_at(b"x", 0), Err(Errno::EIO));
    assert_eq!(nodes[0].lock(None, exclusive(LockWanted::Exclusive)), Err(Errno::EIO));
    let other = nodes[1].open(None, b"/locked", WRITE).unwrap();
    assert_eq!(nodes[1].lock(None, exclusive(LockWanted::Exclusive)), Ok(None));
    drop((other, locked));
    drop(reads);
    own.close().unwrap();
    far.close().unwrap();
    assert_eq!(read(&nodes[2], "/own").unwrap(), b"before after");
    assert_eq!(read(&nodes[0], "/theirs").unwrap(), b"Theirs");
    // Nothing counts as open any more.
    let writing = |path: &str| nodes[1].stat(None, path.as_bytes(), true).unwrap().place.unwrap().writing;
    assert!(!writing("/own") && !writing("/theirs"));
}

/// Copies of files after kill -9 of a node: each file is read, and soon has two nodes again.
#[test]
fn files_with_copies_have_them_again_after_a_node_is_lost() {
    let mut cluster = Cluster::with(4, &["--namespace-replicas", "2", "--namespace-repair-after", "2"]);
    let nodes: Vec<Namespace> = (0..4).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[0]));
    let number = |at: usize| nodes[at].hello().unwrap().node;
    let numbers: Vec<_> = (0..4).map(number).collect();
    let kept = nodes[0].mkdir(None, b"/kept", 0o755).unwrap().id;
    let name = Name::new(b"user.zazen.copies").unwrap();
    let (value, create, replace) = (Some(b"2".to_vec()), false, false);
    nodes[0].set_xattr(None, SetXattr { id: kept, name, value, create, replace }).unwrap();
    let path = |at: usize| format!("/kept/f{at}");
    let bytes = |at: usize| noise(1 + at * 4001, at as u64);
    // Other nodes may remember for two seconds that the directory had no wish.
    std::thread::sleep(Duration::from_millis(2100));
    (0..40).for_each(|at| write(&nodes[at % 4], &path(at), &bytes(at)).unwrap());
    let place = |ns: &Namespace, at: usize| {
        let place = ns.stat(None, path(at).as_bytes(), true).ok()?.place?;
        Some((place.holder, place.copies))
    };
    let has_copy = |ns: &Namespace, at: usize, without: Option<_>| {
        let found = place(ns, at);
        found.is_some_and(|(holder, copies)| {
            let both = [holder].into_iter().chain(copies.iter().copied());
            copies.len() == 1 && copies[0] != holder && both.into_iter().all(|node| Some(node) != without)
        })
    };
    eventually("each file has a copy", || (0..40).all(|at| has_copy(&nodes[0], at, None)));
    let open: Vec<_> =
        (0..40).map(|at| nodes[at % 3].open(None, path(at).as_bytes(), READ).unwrap()).collect();
    let reads = |at: usize| {
        let mut got = vec![0; bytes(at).len()];
        open[at].read_at(&mut got, 0) == Ok(got.len()) && got == bytes(at)
    };
    cluster.kill(3);
    for at in 0..40 {
        eventually("each file is read", || read(&nodes[at % 3], &path(at)).as_ref() == Ok(&bytes(at)));
        eventually("each open file is read", || reads(at));
    }
    let lost = Some(numbers[3]);
    eventually("each file has two nodes again", || (0..40).all(|at| has_copy(&nodes[0], at, lost)));
    // Also through what was open all the time, whose holder was perhaps the lost node.
    assert!((0..40).all(reads));
    drop(open);
    // And is a file as any other.
    for at in 0..40 {
        let file = nodes[(at + 1) % 3].open(None, path(at).as_bytes(), WRITE).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        file.close().unwrap();
        assert_eq!(read(&nodes[at % 3], &path(at)).unwrap()[..1], b"new"[..1]);
    }
    // The node comes back with its old disk: what it had is not the file any more.
    cluster.start(3);
    let back = cluster.client(3);
    for at in 0..40 {
        let got = read(&back, &path(at)).unwrap();
        let mut wanted = bytes(at);
        wanted.resize(wanted.len().max(3), 0);
        wanted[..3].copy_from_slice(b"new");
        assert_eq!(got, wanted, "{}", path(at));
    }
}

/// What a killed daemon knew of files that still lack a copy is lost with it. The next one looks
/// through all files: of few files that takes no minutes, whichever folders they are in.
#[test]
fn files_that_were_closed_just_before_a_crash_have_copies_soon_after_it() {
    let mut cluster = Cluster::with(3, &["--namespace-replicas", "2"]);
    let nodes: Vec<Namespace> = (0..3).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[0]));
    let kept = nodes[0].mkdir(None, b"/kept", 0o755).unwrap().id;
    let name = Name::new(b"user.zazen.copies").unwrap();
    let (value, create, replace) = (Some(b"2".to_vec()), false, false);
    nodes[0].set_xattr(None, SetXattr { id: kept, name, value, create, replace }).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let path = |at: usize| format!("/kept/f{at}");
    let copies = |at: usize| {
        let found = nodes[1].stat(None, path(at).as_bytes(), true).ok().and_then(|found| found.place);
        found.map_or(0, |place| place.copies.len())
    };
    (0..40).for_each(|at| write(&nodes[2], &path(at), b"closed").unwrap());
    cluster.kill(2);
    let lacks = (0..40).filter(|at| copies(*at) == 0).count();
    assert!(lacks > 10, "only {lacks} files lacked a copy when their holder was killed");
    cluster.start(2);
    eventually("each file has a copy", || (0..40).all(|at| copies(at) == 1));
}

/// A node whose disk was replaced is another node. Names are all there; bytes that only the old
/// disk had are an error, and never other bytes.
#[test]
fn a_node_back_with_an_empty_disk_takes_part_as_a_new_one() {
    let mut cluster = Cluster::with(4, &["--namespace-replicas", "2"]);
    let nodes: Vec<Namespace> = (0..4).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| ns.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", || backed(&nodes[0]));
    for (at, ns) in nodes.iter().enumerate() {
        ns.mkdir(None, format!("/d{at}").as_bytes(), 0o755).unwrap();
        for file in 0..5 {
            let path = format!("/d{at}/f{file}");
            write(ns, &path, path.as_bytes()).unwrap();
        }
    }
    cluster.kill(3);
    cluster.wipe(3);
    cluster.start(3);
    let back = cluster.client(3);
    for at in 0..4 {
        assert_eq!(back.list(None, format!("/d{at}").as_bytes(), true).unwrap().len(), 5);
        for file in 0..5 {
            let path = format!("/d{at}/f{file}");
            let got = read(if file % 2 == 0 { &back } else { &nodes[0] }, &path);
            match at {
                3 => assert!(got.is_err(), "the bytes of {path} are lost: {got:?}"),
                _ => assert_eq!(got.as_deref(), Ok(path.as_bytes())),
            }
        }
    }
    write(&back, "/d3/new", b"new").unwrap();
    assert_eq!(read(&nodes[1], "/d3/new").unwrap(), b"new");
    // What is lost can be written anew.
    let again = back.open(None, b"/d3/f0", Mode { truncate: true, ..WRITE }).unwrap();
    again.write_all_at(b"again", 0).unwrap();
    again.close().unwrap();
    assert_eq!(read(&nodes[2], "/d3/f0").unwrap(), b"again");
    eventually("each partition has a backup again", || backed(&nodes[0]));
}

#[test]
fn at_one_replica_a_dead_nodes_part_is_refused_and_comes_back_with_it() {
    let mut cluster = Cluster::with(3, &["--namespace-replicas", "1"]);
    let (one, two) = (cluster.client(0), cluster.client(2));
    let files: Vec<String> = (0..2).map(|at| format!("/f{at}")).collect();
    for (at, path) in files.iter().enumerate() {
        write(if at % 2 == 0 { &one } else { &two }, path, path.as_bytes()).unwrap();
    }
    let folders: Vec<String> = (0..12).map(|at| format!("/d{at}")).collect();
    for folder in &folders {
        one.mkdir(None, folder.as_bytes(), 0o755).unwrap();
    }
    cluster.kill(2);
    for (at, path) in files.iter().enumerate() {
        let got = read(&one, path);
        match at % 2 {
            0 => assert!(got.is_err() || got == Ok(path.clone().into_bytes()), "{path}: {got:?}"),
            _ => assert!(got.is_err(), "the bytes of {path} were on the dead node: {got:?}"),
        }
    }
    // Only the first refusal takes as long as an operation may take: these would take minutes.
    for folder in &folders {
        let got = one.stat(None, folder.as_bytes(), true).map(drop);
        assert!(matches!(got, Ok(()) | Err(Errno::ETIMEDOUT)), "{folder}: {got:?}");
    }
    cluster.start(2);
    drop(cluster.client(2));
    for path in &files {
        eventually("the file is there again", || read(&one, path) == Ok(path.clone().into_bytes()));
    }
    for folder in &folders {
        eventually("the folder is there again", || one.stat(None, folder.as_bytes(), true).is_ok());
    }
}

#[test]
fn a_full_disk_is_enospc_without_harm() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to mount a small disk");
        return;
    }
    let mut cluster = Cluster::prepare(1, &[]);
    let disk = SmallDisk::mount(cluster.data(0), "48m");
    cluster.begin();
    let ns = cluster.client(0);
    write(&ns, "/before", b"before").unwrap();
    let file = ns.open_or_create(None, b"/big", 0o644, WRITE, true).unwrap();
    let chunk = noise(1 << 20, 3);
    let full = (0..100).find_map(|at| file.write_all_at(&chunk, at << 20).err());
    assert_eq!(full, Some(Errno::ENOSPC));
    // Small files until nothing goes any more: then it is ENOSPC, and never anything else.
    let end = (0..200_000).find_map(|at| write(&ns, &format!("/small{at}"), b"x").err());
    assert_eq!(end, Some(Errno::ENOSPC));
    assert_eq!(read(&ns, "/before").unwrap(), b"before");
    file.close().unwrap();
    ns.remove(None, b"/big").unwrap();
    eventually("there is room again", || write(&ns, "/after", b"after").is_ok());
    cluster.kill(0);
    cluster.start(0);
    let ns = cluster.client(0);
    assert_eq!(read(&ns, "/before").unwrap(), b"before");
    assert_eq!(read(&ns, "/after").unwrap(), b"after");
    drop(ns);
    cluster.kill(0);
    drop(disk);
}

/// A daemon is killed after a program has written over bytes, and before it has told anybody. A
/// copy of what was there before must not be taken for the file, also where nothing but its bytes
/// has changed.
#[test]
fn a_copy_of_older_bytes_is_not_the_file_after_a_crash() {
    let flags = ["--namespace-replicas", "2", "--namespace-repair-after", "3600"];
    let mut cluster = Cluster::with(3, &flags);
    let (holder, other) = (cluster.client(0), cluster.client(1));
    let backed = || other.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", backed);
    write(&holder, "/f", &noise(50_000, 1)).unwrap();
    let id = holder.stat(None, b"/f", true).unwrap().id;
    let name = Name::new(b"user.zazen.copies").unwrap();
    let value = Some(b"2".to_vec());
    holder.set_xattr(None, SetXattr { id, name, value, create: false, replace: false }).unwrap();
    let copies = || {
        let found = other.stat(None, b"/f", true).ok().and_then(|found| found.place);
        found.map_or(0, |place| place.copies.len())
    };
    eventually("the file has a copy", || copies() == 1);
    // The time that the metadata has says nothing of the write that follows.
    let set = SetAttributes { modified_ns: Some(1_000_000_000), ..SetAttributes::of(id) };
    holder.set_attributes(None, set).unwrap();
    let open = holder.open(None, b"/f", WRITE).unwrap();
    open.write_all_at(&noise(50_000, 2), 0).unwrap();
    cluster.kill(0);
    drop(open);
    cluster.start(0);
    let again = cluster.client(0);
    let opens = || again.open(None, b"/f", WRITE).and_then(|file| file.close()).is_ok();
    eventually("it is opened again", opens);
    assert_eq!(again.stat(None, b"/f", true).unwrap().modified_ns, 1_000_000_000, "the time stays");
    eventually("the file has a copy again", || copies() == 1);
    cluster.kill(0);
    let mut got = vec![0; 50_000];
    eventually("it is read where its copy is", || {
        let read = other.open(None, b"/f", READ).and_then(|file| file.read_at(&mut got, 0));
        read == Ok(got.len())
    });
    assert!(got == noise(50_000, 2), "these are the bytes before");
}
