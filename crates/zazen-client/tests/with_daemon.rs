//! The client with the real daemon, in this process: pushed, missed, damaged and reassigned frames.

#![allow(clippy::unwrap_used)]

mod common;

use clap::Parser;
use common::{PATTERN, content, name, write_frames};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zazen_assign::{Collectives, Protocol, Rules};
use zazen_call::ClusterKey;
use zazen_client::{
    Dataset, FrameReader, FrameSource, LoadOptions, Node, NodeList, OpenOptions, Pusher, PusherOptions,
    ReadOptions, ReadStats, Remote, Target, load,
};
use zazen_core::{ErrorKind, FrameNo, RunSet};
use zazen_frames::messages::Delivery;
use zazen_push::OnSlow;
use zazend::Daemon;
use zazend::config::{Args, Config};

const BYTES: usize = 140_000;

struct Site {
    _folder: tempfile::TempDir,
    root: PathBuf,
    places: zazen_testbed::Site,
}

impl Site {
    fn new(frames: u64) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let places = zazen_testbed::Site::make(folder.path()).unwrap();
        let root = places.backing.join("sim");
        write_frames(&root, 0..frames, BYTES);
        Site { root, places, _folder: folder }
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.places.node(node).socket
    }

    fn cache(&self, node: usize) -> PathBuf {
        self.places.node(node).cache
    }

    fn start(&self, node: usize) -> Daemon {
        let mut launch = self.places.node(node).launch();
        launch.name = Some(format!("n{node}"));
        launch.budget = Some("256M".into());
        let args = Args::parse_from(std::iter::once("zazend".into()).chain(launch.flags()));
        Daemon::start(Config::assemble(&args).unwrap()).unwrap()
    }

    fn open(&self, node: usize) -> Dataset {
        let options = OpenOptions { socket: Some(self.socket(node)), ..OpenOptions::default() };
        let dataset = Dataset::open(&self.root, &options).unwrap();
        assert!(dataset.has_daemon(), "{:?}", zazen_client::warnings());
        dataset
    }
}

fn list(daemons: &[Daemon]) -> NodeList {
    let addr = |daemon: &Daemon| Node { addr: daemon.listen_addr().unwrap().to_string() };
    NodeList { nodes: daemons.iter().map(addr).collect() }
}

fn push_all(site: &Site, daemons: &[Daemon], frames: u64) {
    let mut options = PusherOptions::new(list(daemons), &site.places.key);
    options.on_slow = OnSlow::Block;
    let pusher = Pusher::new(&site.root, Some(PATTERN), options).unwrap();
    for number in 0..frames {
        pusher.push(FrameNo::new(number).unwrap(), content(number, BYTES), FrameSource::default()).unwrap();
    }
    pusher.drain();
    assert!(pusher.problems().is_empty(), "{:?}", pusher.problems());
    assert_eq!(pusher.finish().unwrap().pushed, frames);
}

fn read(reader: &mut FrameReader) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    for item in reader {
        let frame = item.unwrap();
        assert_eq!(frame.bytes(), content(frame.number, BYTES), "frame {}", frame.number);
        assert!(frame.path().is_some_and(Path::is_file), "{frame:?}");
        assert!(seen.insert(frame.number), "frame {} came twice", frame.number);
    }
    seen
}

fn read_all(dataset: &mut Dataset, frames: u64) -> ReadStats {
    let mut reader = dataset.frames(RunSet::range(0, frames - 1), &ReadOptions::default()).unwrap();
    assert_eq!(read(&mut reader).len() as u64, frames);
    reader.stats()
}

#[test]
fn misses_become_aliens() {
    let site = Site::new(150);
    let daemon = site.start(0);
    let mut dataset = site.open(0);
    assert_eq!(dataset.extent().unwrap(), RunSet::range(0, 149));
    let first = read_all(&mut dataset, 150);
    assert_eq!((first.native, first.alien, first.backing_reads), (0, 0, 150));
    let second = read_all(&mut dataset, 150);
    assert_eq!((second.native, second.alien, second.backing_reads), (0, 150, 0));
    assert_eq!(dataset.query(0, 149, 1).unwrap(), (RunSet::new(), RunSet::range(0, 149)));
    assert_eq!(dataset.read(7).unwrap().delivery, Some(Delivery::Alien));
    assert_eq!(dataset.read(150).unwrap_err().kind(), ErrorKind::NotFound);
    daemon.stop().unwrap();
}

#[test]
fn pushed_frames_are_natives_and_a_damaged_one_is_mended() {
    let site = Site::new(60);
    let daemons = [site.start(0)];
    push_all(&site, &daemons, 60);
    let mut dataset = site.open(0);
    assert_eq!(dataset.query(0, 59, 1).unwrap().0, RunSet::range(0, 59));
    assert_eq!(read_all(&mut dataset, 60).native, 60);
    for number in [5, 42] {
        let cached = find(&site.cache(0), &name(number)).unwrap();
        std::fs::set_permissions(&cached, std::fs::Permissions::from_mode(0o644)).unwrap();
        let mut bytes = std::fs::read(&cached).unwrap();
        bytes[123] ^= 4;
        std::fs::write(&cached, bytes).unwrap();
    }
    let stats = read_all(&mut dataset, 60);
    assert_eq!((stats.native, stats.backing_reads, stats.mended), (58, 2, 2));
    let stats = read_all(&mut dataset, 60);
    assert_eq!((stats.native + stats.alien, stats.mended), (60, 0));
}

/// The daemon hands out descriptors by the record alone. The reader detects damage to a file.
#[test]
fn what_came_to_lie_in_a_frames_place_never_comes_out_as_the_frame() {
    let site = Site::new(20);
    let daemons = [site.start(0)];
    push_all(&site, &daemons, 20);
    let mut dataset = site.open(0);
    let place = |number| find(&site.cache(0), &name(number)).unwrap();
    let writable = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::OpenOptions::new().write(true).open(path).unwrap()
    };
    for check in [true, false] {
        let places: Vec<PathBuf> = [3, 4, 5, 6, 7, 8].map(place).into();
        writable(&places[0]).set_len(BYTES as u64 - 1).unwrap();
        writable(&places[1]).set_len(0).unwrap();
        places[2..].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        std::fs::create_dir(&places[2]).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &places[3],
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink(place(9), &places[4]).unwrap();
        let options = ReadOptions { check, ..ReadOptions::default() };
        let reader = dataset.frames(RunSet::range(0, 19), &options).unwrap();
        let mut came = BTreeSet::new();
        for frame in reader {
            let frame = frame.unwrap();
            assert_eq!(frame.bytes(), content(frame.number, BYTES), "frame {}", frame.number);
            came.insert(frame.number);
        }
        assert_eq!(came.len(), 20);
        // They no longer block later frames, or never did.
        std::fs::remove_dir(&places[2]).ok();
        places[3..5].iter().for_each(|path| {
            std::fs::remove_file(path).ok();
        });
        read_all(&mut dataset, 20);
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
    }
    None
}

#[test]
fn ranks_on_two_nodes_read_each_frame_once_from_where_it_is() {
    let site = Site::new(120);
    let daemons = [site.start(0), site.start(1)];
    push_all(&site, &daemons, 120);
    let results = zazen_assign::threads::run(4, |rank| {
        let mut dataset = site.open(rank.rank() % 2);
        // Each rank decides for itself whether its disk begins early.
        let assignment = match rank.rank() < 2 {
            true => dataset.assign_to_read(None, Rules::Full, Protocol::Owner, rank)?,
            false => dataset.assign(None, Rules::Full, Protocol::Owner, rank)?,
        };
        assert_eq!((assignment.total.native, assignment.total.residue), (120, 0));
        let mut reader = dataset.frames(assignment.set, &ReadOptions::default())?;
        let seen = read(&mut reader);
        assert_eq!(reader.stats().native, seen.len() as u64);
        Ok(seen)
    });
    let mut all = BTreeSet::new();
    for seen in results {
        let seen = seen.unwrap();
        assert_eq!(seen.len(), 30);
        all.extend(seen);
    }
    assert_eq!(all.len(), 120);
}

#[test]
fn a_dataset_is_loaded_listed_verified_pinned_and_evicted() {
    let site = Site::new(100);
    let daemons = [site.start(0), site.start(1)];
    let key = ClusterKey::from_file(&site.places.key).unwrap();
    let targets: Vec<_> = list(&daemons).nodes.into_iter().map(|node| Target::Tcp(node.addr)).collect();
    let options = LoadOptions::new(targets.clone(), Some(key.clone()));
    let report = load(&site.root, &options, &mut |_| ()).unwrap();
    assert_eq!((report.frames, report.loaded, report.failed), (100, 100, 0), "{report:?}");
    let report = load(&site.root, &options, &mut |_| ()).unwrap();
    assert_eq!((report.present, report.loaded), (100, 0), "{report:?}");

    let mut remote = Remote::connect(&targets[0], Some(&key)).unwrap();
    remote.ping().unwrap();
    assert_eq!(remote.hello().unwrap().name, "n0");
    assert!(remote.status().unwrap().starts_with('{'));
    assert!(remote.datasets().unwrap().contains("sim"));
    assert!(!remote.dump().unwrap().is_empty());
    let handle = remote.open(&site.root, None, false).unwrap().handle;
    assert_eq!(remote.query_all(handle).unwrap().native, RunSet::range(0, 49));
    let listing = remote.list(handle, 10, 5).unwrap();
    assert_eq!(
        listing.rows.iter().map(|row| row.meta.number.get()).collect::<Vec<_>>(),
        [10, 11, 12, 13, 14]
    );
    assert_eq!(listing.next, Some(15));
    let verified = remote.verify(handle, 0, 1000).unwrap();
    assert_eq!((verified.checked, verified.bad.len()), (50, 0));
    remote.pin(handle, true).unwrap();
    assert!(remote.evict(handle, None).is_err());
    remote.pin(handle, false).unwrap();
    assert_eq!(remote.evict(handle, Some(RunSet::range(0, 9))).unwrap().frames, 10);
    assert_eq!(remote.query_all(handle).unwrap().native, RunSet::range(10, 49));
}

#[test]
fn a_daemon_that_stops_in_mid_scan_costs_no_frame() {
    let site = Site::new(400);
    let daemon = site.start(0);
    let mut dataset = site.open(0);
    read_all(&mut dataset, 400);
    let mut reader = dataset
        .frames(RunSet::range(0, 399), &ReadOptions { memory_max: 100_000, ..ReadOptions::default() })
        .unwrap();
    let first: Vec<u64> = reader.by_ref().take(20).map(|item| item.unwrap().number).collect();
    daemon.stop().unwrap();
    let rest = read(&mut reader);
    assert_eq!(rest.len() + first.len(), 400);
    assert!(first.iter().all(|number| !rest.contains(number)));
    assert!(reader.stats().backing_reads > 0, "{:?}", reader.stats());
    // The dataset itself also finds the way.
    assert_eq!(dataset.extent().unwrap().len(), 400);
    assert!(!dataset.has_daemon());
}
