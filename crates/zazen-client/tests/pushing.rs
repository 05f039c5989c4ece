//! Pushing over real sockets to daemons that may misbehave, watching a directory, loading a
//! dataset.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Running, Script, content, key, name, write_frames};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_call::ClusterKey;
use zazen_client::{
    FrameSource, LoadOptions, Node, NodeList, Pusher, PusherOptions, Target, WatchEvent, WatchOptions, load,
    watch,
};
use zazen_core::{ErrorKind, FrameNo, RunSet};
use zazen_push::{Counters, OnSlow};

struct Cluster {
    folder: tempfile::TempDir,
    root: PathBuf,
    key: PathBuf,
    nodes: Vec<Running>,
}

fn cluster(scripts: Vec<Script>) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    std::fs::create_dir(&root).unwrap();
    let (path, secret) = key(folder.path());
    let start = |script| Running::start_with(&root, script, Some(secret.clone()));
    let nodes = scripts.into_iter().map(start).collect();
    Cluster { root, key: path, nodes, folder }
}

impl Cluster {
    fn list(&self) -> NodeList {
        let addr = |node: &Running| Node { addr: node.addr.clone().unwrap() };
        NodeList { nodes: self.nodes.iter().map(addr).collect() }
    }

    fn options(&self) -> PusherOptions {
        let mut options = PusherOptions::new(self.list(), &self.key);
        options.on_slow = OnSlow::Block;
        options.seed = Some(1);
        options
    }

    fn pusher(&self) -> Pusher {
        Pusher::new(&self.root, Some(common::PATTERN), self.options()).unwrap()
    }

    fn load_options(&self) -> LoadOptions {
        let targets = self.list().nodes.into_iter().map(|node| Target::Tcp(node.addr));
        LoadOptions::new(targets.collect(), Some(ClusterKey::from_file(&self.key).unwrap()))
    }

    fn held(&self) -> Vec<BTreeMap<u64, Vec<u8>>> {
        self.nodes.iter().map(|node| node.fake.natives.lock().unwrap().clone()).collect()
    }
}

fn frame(number: u64) -> FrameNo {
    FrameNo::new(number).unwrap()
}

fn push_all(pusher: &Pusher, frames: u64) {
    for number in 0..frames {
        pusher.push(frame(number), content(number, 1000), FrameSource::default()).unwrap();
    }
}

fn settled(counters: Counters) -> u64 {
    counters.pushed
        + counters.already_there
        + counters.skipped_slow
        + counters.skipped_no_node
        + counters.refused
}

#[test]
fn frames_are_spread_evenly_and_arrive_whole() {
    let cluster = cluster(vec![Script::default(), Script::default(), Script::default()]);
    let pusher = cluster.pusher();
    push_all(&pusher, 100);
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.submitted, counters.pushed, counters.bytes_pushed), (100, 100, 100_000));
    let held = cluster.held();
    let counts: Vec<_> = held.iter().map(BTreeMap::len).collect();
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    for number in 0..100 {
        let holders: Vec<_> = held.iter().filter_map(|node| node.get(&number)).collect();
        assert_eq!(holders, [&content(number, 1000)], "frame {number}");
    }
}

#[test]
fn small_frames_travel_together_to_daemons_that_take_that() {
    let conflict = BTreeMap::from([(6, Some(ErrorKind::Conflict))]);
    let new = Script { takes_many: true, push_answers: conflict.clone(), ..Script::default() };
    let old = Script { push_answers: conflict, ..Script::default() };
    let cluster = cluster(vec![new, old]);
    let pusher = cluster.pusher();
    push_all(&pusher, 400);
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.submitted, counters.pushed, counters.refused), (400, 399, 1));
    let held = cluster.held();
    for number in (0..400).filter(|number| *number != 6) {
        let holders: Vec<_> = held.iter().filter_map(|node| node.get(&number)).collect();
        assert_eq!(holders, [&content(number, 1000)], "frame {number}");
    }
    let together = |at: usize| cluster.nodes[at].fake.came_together.load(Ordering::SeqCst);
    assert!(together(0) > 20 && together(1) == 0, "{} {}", together(0), together(1));
}

#[test]
fn a_dead_node_costs_no_frame_while_another_lives() {
    let cluster = cluster(vec![Script::default(), Script::default()]);
    cluster.nodes[0].kill();
    while std::net::TcpStream::connect(cluster.nodes[0].addr.as_ref().unwrap()).is_ok() {
        std::thread::yield_now();
    }
    let pusher = cluster.pusher();
    push_all(&pusher, 50);
    pusher.drain();
    assert!(!pusher.problems().is_empty());
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.pushed, counters.submitted), (50, 50));
    assert!(counters.node_deaths >= 1);
    assert_eq!(cluster.held()[1].len(), 50);
}

#[test]
fn a_silent_node_times_out_and_its_frame_goes_elsewhere() {
    let silent =
        || Script { push_answers: (0..200).map(|number| (number, None)).collect(), ..Script::default() };
    let cluster = cluster(vec![silent(), Script::default()]);
    let options = PusherOptions { timeout: Duration::from_millis(100), ..cluster.options() };
    let pusher = Pusher::new(&cluster.root, Some(common::PATTERN), options).unwrap();
    push_all(&pusher, 20);
    let counters = pusher.finish().unwrap();
    assert_eq!(counters.pushed, 20);
    assert_eq!(cluster.held()[1].len(), 20);
    cluster.nodes[0].kill();
}

#[test]
fn refusals_are_final_and_full_nodes_are_passed_over() {
    let full = Script { push_always: Some(ErrorKind::NoSpace), ..Script::default() };
    let refusing = Script { push_answers: [(3, Some(ErrorKind::Conflict))].into(), ..Script::default() };
    let cluster = cluster(vec![full, refusing]);
    let pusher = cluster.pusher();
    push_all(&pusher, 30);
    pusher.drain();
    let problems = pusher.problems();
    assert!(problems.iter().any(|problem| problem.contains("frame 3")), "{problems:?}");
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.pushed, counters.refused, counters.node_deaths), (29, 1, 0));
}

#[test]
fn when_every_node_is_full_frames_are_skipped_and_counted() {
    let full = || Script { push_always: Some(ErrorKind::NoSpace), ..Script::default() };
    let cluster = cluster(vec![full(), full()]);
    let pusher = cluster.pusher();
    push_all(&pusher, 30);
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.pushed, counters.skipped_no_node), (0, 30));
}

#[test]
fn skip_mode_never_waits_and_counts_what_it_skips() {
    let silent =
        Script { push_answers: (0..1000).map(|number| (number, None)).collect(), ..Script::default() };
    let cluster = cluster(vec![silent]);
    let options = PusherOptions {
        on_slow: OnSlow::Skip,
        window_frames: 4,
        timeout: Duration::from_secs(5),
        ..cluster.options()
    };
    let pusher = Pusher::new(&cluster.root, Some(common::PATTERN), options).unwrap();
    push_all(&pusher, 100);
    let counters = pusher.counters();
    assert_eq!((counters.submitted, counters.skipped_slow), (100, 96));
    assert_eq!(pusher.in_flight(), 4);
    cluster.nodes[0].kill();
    let counters = pusher.finish().unwrap();
    assert_eq!(settled(counters), 100);
}

#[test]
fn the_wrong_key_is_a_dead_node_with_a_reason() {
    let cluster = cluster(vec![Script::default()]);
    let other = tempfile::tempdir().unwrap();
    let (path, _) = key(other.path());
    std::fs::write(&path, "a quite different key, long enough").unwrap();
    let options = PusherOptions { key: path, ..cluster.options() };
    let pusher = Pusher::new(&cluster.root, Some(common::PATTERN), options).unwrap();
    push_all(&pusher, 1);
    pusher.drain();
    assert_eq!(pusher.dead_nodes().len(), 1);
    assert_eq!(pusher.finish().unwrap().skipped_no_node, 1);
    let options = PusherOptions { key: other.path().join("none"), ..cluster.options() };
    assert!(Pusher::new(&cluster.root, None, options).is_err());
}

#[test]
fn what_the_caller_gets_wrong_is_told_at_once() {
    let cluster = cluster(vec![Script::default()]);
    let error = Pusher::new(Path::new("sim"), None, cluster.options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = Pusher::new(&cluster.root, Some("no number"), cluster.options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let pusher = Pusher::new(&cluster.root, None, cluster.options()).unwrap();
    let push = |name: Option<&str>| {
        let source = FrameSource { name: name.map(str::to_owned), ..FrameSource::default() };
        pusher.push(frame(1), vec![1], source).map_err(|error| error.kind())
    };
    assert_eq!(push(None), Err(ErrorKind::InvalidArgument));
    assert_eq!(push(Some("../x")), Err(ErrorKind::InvalidArgument));
    assert_eq!(push(Some("")), Err(ErrorKind::InvalidArgument));
    assert_eq!(push(Some("x1")), Ok(()));
    assert_eq!(pusher.finish().unwrap().pushed, 1);
}

#[test]
fn a_newer_version_follows_the_one_in_flight() {
    for on_slow in [OnSlow::Skip, OnSlow::Block] {
        let cluster = cluster(vec![Script::default()]);
        let options = PusherOptions { on_slow, ..cluster.options() };
        let pusher = Pusher::new(&cluster.root, Some(common::PATTERN), options).unwrap();
        for version in 0..50 {
            pusher.push(frame(9), content(version, 500), FrameSource::default()).unwrap();
        }
        let counters = pusher.finish().unwrap();
        assert_eq!((counters.submitted, settled(counters)), (50, 50), "{on_slow:?}");
        assert_eq!(cluster.held()[0][&9], content(49, 500), "{on_slow:?}: the last version is what stays");
    }
}

#[test]
fn all_threads_that_wait_for_room_get_it() {
    const THREADS: u64 = 6;
    const EACH: u64 = 40;
    let cluster = cluster(vec![Script::default()]);
    let options = PusherOptions { window_frames: 1, ..cluster.options() };
    let pusher = Arc::new(Pusher::new(&cluster.root, Some(common::PATTERN), options).unwrap());
    let (ended, ends) = std::sync::mpsc::channel();
    for thread in 0..THREADS {
        let (pusher, ended) = (pusher.clone(), ended.clone());
        std::thread::spawn(move || {
            for number in thread * EACH..(thread + 1) * EACH {
                pusher.push(frame(number), content(number, 100), FrameSource::default()).unwrap();
            }
            drop(pusher);
            ended.send(()).unwrap();
        });
    }
    for thread in 0..THREADS {
        let ended = ends.recv_timeout(Duration::from_secs(60));
        assert!(ended.is_ok(), "{} threads wait for ever", THREADS - thread);
    }
    let counters = Arc::into_inner(pusher).unwrap().finish().unwrap();
    assert_eq!(counters.pushed, THREADS * EACH, "{counters:?}");
}

/// Runs a watch beside `body` until all of `frames` have been submitted, and what else was told.
fn watching(
    cluster: &Cluster,
    options: WatchOptions,
    frames: u64,
    body: impl FnOnce(&Path) + Send,
) -> Vec<WatchEvent> {
    let pusher = cluster.pusher();
    let stop = Arc::new(AtomicBool::new(false));
    let mut told = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| body(&cluster.root));
        let begun = Instant::now();
        let mut numbers = std::collections::BTreeSet::new();
        watch(&cluster.root, &pusher, &options, &stop, &mut |event| {
            if let WatchEvent::Submitted { number, .. } = &event {
                numbers.insert(*number);
            }
            told.push(event);
            if numbers.len() as u64 >= frames && options.idle_exit.is_none() {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "only {} frames came", numbers.len());
        })
        .unwrap();
        writer.join().unwrap();
    });
    pusher.finish().unwrap();
    told
}

fn submitted(told: &[WatchEvent]) -> Vec<u64> {
    let number = |event: &WatchEvent| match event {
        WatchEvent::Submitted { number, .. } => Some(*number),
        _ => None,
    };
    told.iter().filter_map(number).collect()
}

#[test]
fn no_file_falls_between_the_listing_and_the_watch() {
    for round in 0..5 {
        let cluster = cluster(vec![Script::default(), Script::default()]);
        write_frames(&cluster.root, 0..50, 300);
        // The writer goes on while the watch begins.
        let told = watching(&cluster, WatchOptions::default(), 150, |root| {
            for number in 50..150 {
                let hidden = root.join(format!("{}.tmp", name(number)));
                if number % 2 == 0 {
                    std::fs::write(&hidden, content(number, 300)).unwrap();
                    std::fs::rename(&hidden, root.join(name(number))).unwrap();
                } else {
                    std::fs::write(root.join(name(number)), content(number, 300)).unwrap();
                }
            }
        });
        let held = cluster.held();
        for number in 0..150 {
            let bytes = held.iter().find_map(|node| node.get(&number)).unwrap();
            assert_eq!(*bytes, content(number, 300), "round {round}, frame {number}");
        }
        let strangers = told.iter().filter(|event| matches!(event, WatchEvent::NotAFrame(_))).count();
        assert_eq!(strangers, 0, "temporary names are nobody's business: {told:?}");
    }
}

#[test]
fn files_replaced_later_are_pushed_again_and_equal_ones_once() {
    let cluster = cluster(vec![Script::default()]);
    write_frames(&cluster.root, 0..3, 100);
    let options = WatchOptions { idle_exit: Some(Duration::from_millis(700)), ..WatchOptions::default() };
    let told = watching(&cluster, options, 3, |root| {
        std::thread::sleep(Duration::from_millis(300));
        std::fs::write(root.join(name(1)), content(71, 120)).unwrap();
        std::fs::write(root.join("notes.txt"), "x").unwrap();
    });
    let mut numbers = submitted(&told);
    numbers.sort_unstable();
    assert!(numbers == [0, 1, 1, 2] || numbers == [0, 1, 2], "{numbers:?}");
    assert_eq!(cluster.held()[0][&1], content(71, 120));
    assert!(told.iter().any(|event| matches!(event, WatchEvent::CaughtUp)), "{told:?}");
    let strangers =
        told.iter().filter(|event| matches!(event, WatchEvent::NotAFrame(name) if name == "notes.txt"));
    assert_eq!(strangers.count(), 1);
}

#[test]
fn a_watch_ends_with_the_file_that_says_so_and_not_before_the_frames_are_in() {
    let cluster = cluster(vec![Script::default()]);
    let options = WatchOptions {
        until: Some("DONE".into()),
        pattern: Some(common::PATTERN.into()),
        ..WatchOptions::default()
    };
    let told = watching(&cluster, options, u64::MAX, |root| {
        for number in 0..40 {
            std::fs::write(root.join(name(number)), content(number, 50)).unwrap();
        }
        std::fs::write(root.join("DONE"), "").unwrap();
    });
    assert_eq!(submitted(&told).len(), 40, "{told:?}");
    // Once more with all of it there at the start, and nothing to be pushed.
    let options = WatchOptions { until: Some("DONE".into()), existing: false, ..WatchOptions::default() };
    let told = watching(&cluster, options, u64::MAX, |_| ());
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_file_that_is_still_being_written_at_the_start_ends_up_whole() {
    use std::io::Write;
    let cluster = cluster(vec![Script::default()]);
    let bytes = content(4, 5000);
    let mut file = std::fs::File::create(cluster.root.join(name(4))).unwrap();
    file.write_all(&bytes[..2000]).unwrap();
    let options = WatchOptions { idle_exit: Some(Duration::from_millis(800)), ..WatchOptions::default() };
    let rest = bytes.clone();
    watching(&cluster, options, 1, move |_| {
        std::thread::sleep(Duration::from_millis(300));
        file.write_all(&rest[2000..]).unwrap();
    });
    assert_eq!(cluster.held()[0][&4], bytes);
}

#[test]
fn frames_in_folders_are_found() {
    let cluster = cluster(vec![Script::default()]);
    let options = WatchOptions { pattern: Some("step{n}/data.vtu".into()), ..WatchOptions::default() };
    let told = watching(&cluster, options, 20, |root| {
        for number in 0..20 {
            let folder = root.join(format!("step{number}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("data.vtu"), content(number, 50)).unwrap();
        }
    });
    let mut numbers = submitted(&told);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}

#[test]
fn names_that_are_not_utf8_are_told_once() {
    use std::os::unix::ffi::OsStrExt;
    let failed = |told: &[WatchEvent]| -> Vec<String> {
        let name = |event: &WatchEvent| match event {
            WatchEvent::Failed { name, reason } if reason.contains("not UTF-8") => Some(name.clone()),
            _ => None,
        };
        let mut names: Vec<String> = told.iter().filter_map(name).collect();
        names.sort();
        names
    };
    let bytes = std::ffi::OsStr::from_bytes;
    let cluster = cluster(vec![Script::default()]);
    std::fs::write(cluster.root.join(bytes(b"old\xff-1")), "x").unwrap();
    std::fs::write(cluster.root.join(bytes(b".hidden\xff")), "x").unwrap();
    std::fs::create_dir(cluster.root.join(bytes(b"folder\xff"))).unwrap();
    let options = WatchOptions { pattern: Some(common::PATTERN.into()), ..WatchOptions::default() };
    // The frames come last: when they are pushed, everything before them has been told.
    let told = watching(&cluster, options, 3, |root| {
        std::fs::write(root.join(bytes(b"new\xfe-1")), "x").unwrap();
        std::fs::write(root.join(bytes(b"new\xff-1")), "x").unwrap();
        std::fs::write(root.join(bytes(b"new\xff-1")), "again").unwrap();
        write_frames(root, 0..3, 100);
    });
    assert_eq!(failed(&told), ["new\u{fffd}-1", "new\u{fffd}-1", "old\u{fffd}-1"], "{told:?}");
    // With frames in folders, a folder is told of, and not each file in it.
    let deep = WatchOptions { pattern: Some("s{n}/f".into()), ..WatchOptions::default() };
    let told = watching(&cluster, deep, 1, |root| {
        std::fs::write(root.join(bytes(b"folder\xff/f1")), "x").unwrap();
        std::fs::write(root.join(bytes(b"folder\xff/f2")), "x").unwrap();
        std::fs::create_dir(root.join("s7")).unwrap();
        std::fs::write(root.join("s7/f"), "x").unwrap();
    });
    let mut expected = vec!["folder\u{fffd}", "new\u{fffd}-1", "new\u{fffd}-1", "old\u{fffd}-1"];
    expected.sort();
    assert_eq!(failed(&told), expected, "{told:?}");
}

#[test]
fn a_watch_needs_a_directory() {
    let cluster = cluster(vec![Script::default()]);
    let pusher = cluster.pusher();
    let stop = AtomicBool::new(true);
    let missing = cluster.folder.path().join("none");
    let error = watch(&missing, &pusher, &WatchOptions::default(), &stop, &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn loading_deals_what_is_missing_over_the_live_nodes() {
    let cluster = cluster(vec![Script::default(), Script::default(), Script::default()]);
    write_frames(&cluster.root, 0..300, 100);
    for number in 10..20 {
        cluster.nodes[1].fake.natives.lock().unwrap().insert(number, content(number, 100));
    }
    cluster.nodes[2].kill();
    while std::net::TcpStream::connect(cluster.nodes[2].addr.as_ref().unwrap()).is_ok() {
        std::thread::yield_now();
    }
    let mut options = cluster.load_options();
    options.chunk_frames = 7;
    let mut seen = Vec::new();
    let report = load(&cluster.root, &options, &mut |progress| seen.push(*progress)).unwrap();
    assert_eq!(
        (report.frames, report.present, report.loaded, report.failed),
        (300, 10, 290, 0),
        "{report:?}"
    );
    assert_eq!(report.bytes, 29_000);
    assert_eq!(report.dead.len(), 1);
    let last = seen.last().unwrap();
    assert_eq!((last.frames_total, last.frames_done, last.bytes), (290, 290, 29_000));
    assert!(seen.windows(2).all(|pair| pair[0].frames_done <= pair[1].frames_done));
    let held = cluster.held();
    for number in 0..300 {
        assert_eq!(held.iter().filter(|node| node.contains_key(&number)).count(), 1, "frame {number}");
    }
    let blocks: Vec<usize> = held[..2].iter().map(BTreeMap::len).collect();
    assert!(blocks.iter().all(|count| (145..=155).contains(count)), "{blocks:?}");
}

#[test]
fn a_node_that_dies_while_loading_leaves_its_share_to_the_others() {
    let dying = Script { fetch_dies_after: Some(20), ..Script::default() };
    let cluster = cluster(vec![dying, Script::default()]);
    write_frames(&cluster.root, 0..200, 100);
    let mut options = cluster.load_options();
    options.chunk_frames = 10;
    options.set = Some(RunSet::range(0, 149));
    let report = load(&cluster.root, &options, &mut |_| ()).unwrap();
    assert_eq!((report.frames, report.failed, report.dead.len()), (150, 0, 1), "{report:?}");
    let held = cluster.held();
    assert!((0..150).all(|number| held.iter().any(|node| node.contains_key(&number))));
    assert!(!held.iter().any(|node| node.contains_key(&150)));
}

#[test]
fn loading_without_nodes_or_frames_says_so() {
    let cluster = cluster(vec![Script::default()]);
    let options = cluster.load_options();
    let report = load(&cluster.root, &options, &mut |_| ()).unwrap();
    assert_eq!((report.frames, report.loaded), (0, 0));
    let elsewhere = cluster.folder.path().join("none");
    assert_eq!(load(&elsewhere, &options, &mut |_| ()).unwrap_err().kind(), ErrorKind::NotFound);
    cluster.nodes[0].kill();
    while std::net::TcpStream::connect(cluster.nodes[0].addr.as_ref().unwrap()).is_ok() {
        std::thread::yield_now();
    }
    let error = load(&cluster.root, &options, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains(cluster.nodes[0].addr.as_ref().unwrap()), "{error}");
}

#[test]
fn copies_are_on_different_nodes() {
    let cluster = cluster((0..5).map(|_| Script::default()).collect());
    let pusher =
        Pusher::new(&cluster.root, Some(common::PATTERN), PusherOptions { copies: 3, ..cluster.options() })
            .unwrap();
    push_all(&pusher, 40);
    let counters = pusher.finish().unwrap();
    assert_eq!((counters.submitted, counters.pushed, settled(counters)), (120, 120, 120));
    let held = cluster.held();
    for number in 0..40 {
        let nodes = held.iter().filter(|held| held.contains_key(&number)).count();
        assert_eq!(nodes, 3, "frame {number}");
    }
    for copies in [0, 6] {
        let options = PusherOptions { copies, ..cluster.options() };
        let error = Pusher::new(&cluster.root, Some(common::PATTERN), options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_load_of_copies_fills_up() {
    let cluster = cluster((0..4).map(|_| Script::default()).collect());
    write_frames(&cluster.root, 0..16, 500);
    let mut options = cluster.load_options();
    options.set = Some(RunSet::range(0, 15));
    let loaded = |options: &LoadOptions| load(&cluster.root, options, &mut |_| {}).unwrap();
    let first = loaded(&options);
    assert_eq!((first.frames, first.loaded, first.copies_missing), (16, 16, 0));
    options.copies = 3;
    let more = loaded(&options);
    assert_eq!((more.present, more.loaded, more.failed, more.copies_missing), (16, 32, 0, 0));
    let again = loaded(&options);
    assert_eq!((again.present, again.loaded), (48, 0));
    let held = cluster.held();
    for number in 0..16 {
        assert_eq!(held.iter().filter(|held| held.contains_key(&number)).count(), 3, "frame {number}");
    }
    options.copies = 5;
    let error = load(&cluster.root, &options, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
