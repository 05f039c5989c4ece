//! The frames service over real sockets, the daemon in this process.

use crate::common::*;
use std::net::TcpListener;
use zazen_backing::served::Traffic;
use zazen_core::{ErrorKind, Origin, RunSet, Validator};
use zazen_frames::messages::*;
use zazen_wire::checksum::frame_checksum;
use zazen_wire::control::{NodeInfo, control_fn};
use zazen_wire::{Message, service};

const LENGTH: usize = 140_000;
/// A user who is nobody here.
const OTHER_USER: u32 = 4_054_321;

fn frames(got: &[Got]) -> Vec<(u64, Delivery)> {
    let mut all: Vec<_> = got.iter().map(|got| (got.entry.number, got.entry.delivery)).collect();
    all.sort_by_key(|frame| frame.0);
    all
}

#[test]
fn what_is_pushed_is_found_and_read() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..20, LENGTH);
    let daemon = site.start();
    let (mut local, mut remote) = (site.client(), site.remote(&daemon, 0));
    for number in 0..20 {
        let writer = if number % 2 == 0 { &mut local } else { &mut remote };
        assert_eq!(writer.push(&sim, number, &frame_bytes(number, LENGTH)).unwrap(), Pushed::Stored);
        assert_eq!(writer.push(&sim, number, &frame_bytes(number, LENGTH)).unwrap(), Pushed::AlreadyHere);
    }
    let opened = local.open(&sim).unwrap();
    assert_eq!(opened.dataset.as_str(), "sim/.zazen@frame-{n}.dat");
    assert!(opened.backing_ok);
    assert_eq!(opened.extent, Some(set(0..20)));
    assert_eq!(local.query(opened.handle), (set(0..20), RunSet::new()));
    let stride = Query { handle: opened.handle, begin: 3, end: 12, stride: 4 };
    let found: Holdings = local.ask(frames_fn::QUERY, &stride).unwrap();
    assert_eq!(found.native, set([3, 7, 11]));
    check_scan(&local.scan(opened.handle, &set(0..20), 7), &set(0..20), LENGTH, |_| Delivery::Native);
    assert_eq!(local.counter("native_reads"), 20);
    assert_eq!(local.status()["hit_rate"], 1.0);
    assert_eq!(local.status()["backing"][0]["reads"], 0);

    let listing: Listing =
        local.ask(frames_fn::LIST, &List { handle: opened.handle, from: 5, rows_max: 3 }).unwrap();
    assert_eq!(listing.rows.iter().map(|row| row.meta.number.get()).collect::<Vec<_>>(), [5, 6, 7]);
    assert_eq!(listing.next, Some(8));
    assert_eq!(std::fs::read(&listing.rows[0].path).unwrap(), frame_bytes(5, LENGTH));
    assert_eq!(daemon.stop().unwrap(), 0);
}

#[test]
fn misses_are_fetched_once_however_many_ask() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..30, LENGTH);
    let _daemon = site.start();
    let gate = std::sync::Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = site.client();
                let handle = client.open(&sim).unwrap().handle;
                gate.wait();
                let got = client.scan(handle, &set(0..30), 5);
                assert!(got.iter().all(|got| got.bytes == frame_bytes(got.entry.number, LENGTH)));
                assert_eq!(got.len(), 30);
            });
        }
    });
    let mut client = site.client();
    assert_eq!(client.counter("fetched"), 30);
    let handle = client.open(&sim).unwrap().handle;
    assert_eq!(client.query(handle), (RunSet::new(), set(0..30)));
    check_scan(&client.scan(handle, &set(5..9), 64), &set(5..9), LENGTH, |_| Delivery::Alien);
}

#[test]
fn natives_come_first_and_misses_after() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..10, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    for number in [7, 8, 9] {
        client.push_valid(&sim, number).unwrap();
    }
    let handle = client.open(&sim).unwrap().handle;
    let got = client.scan(handle, &set(0..10), 4);
    let deliver = |number| if number >= 7 { Delivery::Native } else { Delivery::Fetched };
    check_scan(&got, &set(0..10), LENGTH, deliver);
    assert!(got[..3].iter().all(|got| got.entry.delivery == Delivery::Native));
}

#[test]
fn a_changed_source_is_fetched_anew() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..4, LENGTH);
    let daemon = site.start();
    let mut client = site.client();
    (0..4).for_each(|number| assert_eq!(client.push_valid(&sim, number).unwrap(), Pushed::Stored));
    let changed = frame_bytes(77, LENGTH + 1);
    std::fs::write(site.backing.join("sim").join(frame_name(2)), &changed).unwrap();
    let handle = client.open(&sim).unwrap().handle;
    let got = client.scan(handle, &set(0..4), 64);
    let deliveries = frames(&got);
    assert_eq!(deliveries[2], (2, Delivery::Fetched));
    assert_eq!(deliveries.iter().filter(|frame| frame.1 == Delivery::Native).count(), 3);
    let fresh = got.iter().find(|got| got.entry.number == 2).unwrap();
    assert!(fresh.bytes == changed);
    assert_eq!(client.counter("stale_dropped"), 1);
    daemon.stop().unwrap();

    // The user's promise that sources don't change is kept to.
    std::fs::write(site.backing.join("sim").join(frame_name(3)), &changed).unwrap();
    let _daemon = site.start_with(|args| args.validate = Some("never".into()));
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set([3]), 1), &set([3]), LENGTH, |_| Delivery::Native);
}

#[test]
fn a_deleted_source_is_a_deleted_frame_but_a_lost_mount_is_not() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..4, LENGTH);
    site.dataset("other", 0..1, 1);
    let _daemon = site.start();
    let mut client = site.client();
    (0..4).for_each(|number| assert_eq!(client.push_valid(&sim, number).unwrap(), Pushed::Stored));
    let handle = client.open(&sim).unwrap().handle;
    let frame = site.backing.join("sim").join(frame_name(1));
    std::fs::rename(&frame, site.dir.path().join("kept")).unwrap();
    let got = client.scan(handle, &set(0..4), 64);
    assert_eq!(frames(&got)[1], (1, Delivery::Failed));
    let failed = got.iter().find(|got| got.entry.number == 1).unwrap();
    let (code, message) = failed.entry.error.clone().unwrap();
    assert_eq!(code, ErrorKind::NotFound as u32);
    assert!(message.contains("was deleted") && message.contains(&sim), "{message}");
    std::fs::rename(site.dir.path().join("kept"), &frame).unwrap();

    let away = site.dir.path().join("away");
    for leave in ["root gone", "root empty", "dataset gone"] {
        let moved = if leave == "dataset gone" { site.backing.join("sim") } else { site.backing.clone() };
        std::fs::rename(&moved, &away).unwrap();
        if leave == "root empty" {
            std::fs::create_dir(&site.backing).unwrap();
        }
        let mut other = site.client();
        let opened = other.open(&sim).unwrap();
        assert!(!opened.backing_ok && opened.extent.is_none(), "{leave}");
        for got in [client.scan(handle, &set(0..4), 64), other.scan(opened.handle, &set(0..4), 64)] {
            if leave == "dataset gone" {
                // The store answers: nobody can say whose files these natives stand for.
                assert_eq!(got.len(), 4);
                let not_found = |got: &Got| got.entry.error.as_ref().map(|(code, _)| *code);
                assert!(got.iter().all(|got| not_found(got) == Some(ErrorKind::NotFound as u32)), "{leave}");
            } else {
                check_scan(&got, &set(0..4), LENGTH, |_| Delivery::Native);
            }
        }
        if leave == "root gone" {
            // What isn't cached fails with a message that names the store.
            let got = other.scan(opened.handle, &set([9]), 1);
            let (_, message) = got[0].entry.error.clone().unwrap();
            assert!(message.contains(site.backing.to_str().unwrap()), "{message}");
        }
        if leave == "root empty" {
            std::fs::remove_dir(&site.backing).unwrap();
        }
        std::fs::rename(&away, &moved).unwrap();
        // The store is asked again after a short rest.
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    let opened = site.client().open(&sim).unwrap();
    assert!(opened.backing_ok);
}

#[test]
fn with_no_room_frames_are_read_through() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..8, 300_000);
    let _daemon = site.start_with(|args| args.budget = vec!["100K".into()]);
    let mut client = site.client();
    assert_eq!(kind(client.push(&sim, 0, &frame_bytes(0, 300_000))), Some(ErrorKind::NoSpace));
    let handle = client.open(&sim).unwrap().handle;
    let got = client.scan(handle, &set(0..8), 3);
    check_scan(&got, &set(0..8), 300_000, |_| Delivery::ReadThrough);
    assert!(got.iter().all(|got| got.entry.path.starts_with(&sim)));
    assert_eq!(client.counter("read_through"), 8);
    let loaded = client.fetch(handle, set(0..2), Origin::Native);
    assert_eq!((loaded.fetched, loaded.failed.len()), (0, 2));
    assert_eq!(loaded.failed[0].1, ErrorKind::NoSpace as u32);
}

#[test]
fn a_served_backing_fetches_and_sends_inline_when_full() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..12, 300_000);
    let server =
        zazen_backing::served::serve(TcpListener::bind("127.0.0.1:0").unwrap(), &site.backing, None).unwrap();
    let spec = format!("{}=tcp://{}", site.backing.display(), server.addr());
    let daemon = site.start_with(|args| args.backing = vec![spec.clone()]);
    let mut client = site.client();
    let opened = client.open(&sim).unwrap();
    assert_eq!(opened.extent, Some(set(0..12)));
    let got = client.scan(opened.handle, &set(0..12), 5);
    check_scan(&got, &set(0..12), 300_000, |_| Delivery::Fetched);
    assert_eq!(server.traffic().bytes, 12 * 300_000);
    check_scan(&client.scan(opened.handle, &set(0..12), 5), &set(0..12), 300_000, |_| Delivery::Alien);
    assert_eq!(server.traffic().bytes, 12 * 300_000, "aliens cost no further reads");
    daemon.stop().unwrap();

    std::fs::remove_dir_all(&site.cache).unwrap();
    let _daemon = site.start_with(|args| {
        args.backing = vec![spec];
        args.budget = vec!["100K".into()];
    });
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set(0..12), 5), &set(0..12), 300_000, |_| Delivery::Inline);
}

/// Neighbours in one file come in blocks, and each frame is what the file has there.
#[test]
fn small_frames_of_one_file_are_read_together() {
    const COUNT: u64 = 2000;
    let site = Site::default();
    let folder = site.backing.join("traj");
    std::fs::create_dir(&folder).unwrap();
    let all: Vec<u8> = (0..COUNT).flat_map(|number| frame_bytes(number, 2_000)).collect();
    std::fs::write(folder.join("t.dcd"), &all).unwrap();
    let manifest = "[[pieces]]\npath = \"t.dcd\"\nfirst = 0\ncount = 2000\noffset = 0\nframe_bytes = 2000\n";
    std::fs::write(folder.join("zazen.toml"), manifest).unwrap();
    settle();
    let server =
        zazen_backing::served::serve(TcpListener::bind("127.0.0.1:0").unwrap(), &site.backing, None).unwrap();
    let spec = format!("{}=tcp://{}", site.backing.display(), server.addr());
    let _daemon = site.start_with(|args| args.backing = vec![spec.clone()]);
    let mut client = site.client();
    let handle = client.open(folder.to_str().unwrap()).unwrap().handle;
    // Every other hundred frames, then all: only what is missing is read.
    let some = set((0..COUNT).filter(|number| number / 100 % 2 == 1));
    let opening = server.traffic();
    check_scan(&client.scan(handle, &some, 64), &some, 2_000, |_| Delivery::Fetched);
    let first = server.traffic();
    let once = COUNT * 1_000..COUNT * 1_020;
    assert!(once.contains(&(first.bytes - opening.bytes)), "{opening:?}, {first:?}");
    let got = client.scan(handle, &set(0..COUNT), 64);
    assert_eq!(got.len() as u64, COUNT);
    for frame in &got {
        assert_eq!(frame.entry.error, None);
        assert!(frame.bytes == frame_bytes(frame.entry.number, 2_000), "frame {}", frame.entry.number);
    }
    let last = server.traffic();
    assert!(once.contains(&(last.bytes - first.bytes)), "{first:?}, {last:?}");
    println!("{} frames: {opening:?}, {first:?}, {last:?}", COUNT);
    let asked =
        |from: &Traffic, to: &Traffic| to.reads + to.opens + to.stats - from.reads - from.opens - from.stats;
    assert!(asked(&opening, &first) < 100, "{first:?}");

    // A load, by several at once.
    client.tell(frames_fn::EVICT, &Evict { handle, set: None }).unwrap();
    let loaded = client.fetch(handle, set(0..COUNT), Origin::Native);
    assert_eq!((loaded.fetched, loaded.failed.len()), (COUNT, 0));
    let load = server.traffic();
    // One that comes out of turn between two blocks may be read twice.
    assert!((COUNT * 2_000..COUNT * 2_020).contains(&(load.bytes - last.bytes)), "{last:?}, {load:?}");
    assert!(asked(&last, &load) < 100, "{load:?}");
}

#[test]
fn frames_inside_a_trajectory_file_are_pieces() {
    let site = Site::default();
    let folder = site.backing.join("traj");
    std::fs::create_dir(&folder).unwrap();
    let all: Vec<u8> = (0..6).flat_map(|number| frame_bytes(number, 50_000)).collect();
    std::fs::write(folder.join("t.dcd"), [&[9; 100][..], &all].concat()).unwrap();
    let manifest = "[[pieces]]\npath = \"t.dcd\"\nfirst = 0\ncount = 7\noffset = 100\nframe_bytes = 50000\n";
    std::fs::write(folder.join("zazen.toml"), manifest).unwrap();
    settle();
    let _daemon = site.start();
    let mut client = site.client();
    let opened = client.open(folder.to_str().unwrap()).unwrap();
    assert_eq!(opened.extent, Some(set(0..7)));
    check_scan(&client.scan(opened.handle, &set(0..6), 4), &set(0..6), 50_000, |_| Delivery::Fetched);
    check_scan(&client.scan(opened.handle, &set(0..6), 4), &set(0..6), 50_000, |_| Delivery::Alien);
    // The manifest promises one frame more than the file holds; all who ask for it are told so.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = site.client();
                let handle = client.open(folder.to_str().unwrap()).unwrap().handle;
                let got = client.scan(handle, &set([6]), 1);
                let (code, message) = got[0].entry.error.clone().unwrap();
                assert_eq!(code, ErrorKind::NotFound as u32);
                assert!(message.contains("300100 bytes") && message.contains("zazen.toml"), "{message}");
            });
        }
    });
}

#[test]
fn loading_makes_natives_and_promotes_aliens() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..10, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    client.scan(handle, &set([1, 2]), 64);
    client.push_valid(&sim, 3).unwrap();
    let loaded = client.fetch(handle, set(0..12), Origin::Native);
    assert_eq!((loaded.fetched, loaded.present, loaded.bytes), (7, 3, 7 * LENGTH as u64));
    assert_eq!(loaded.failed.iter().map(|failed| failed.0).collect::<RunSet>(), set([10, 11]));
    assert!(loaded.failed.iter().all(|failed| failed.1 == ErrorKind::NotFound as u32), "{loaded:?}");
    assert_eq!(client.query(handle), (set(0..10), RunSet::new()));
    let again = client.fetch(handle, set(0..10), Origin::Native);
    assert_eq!((again.fetched, again.present, again.bytes), (0, 10, 0));
}

#[test]
fn evict_pin_and_verify() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..10, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    (0..10).for_each(|number| assert_eq!(client.push_valid(&sim, number).unwrap(), Pushed::Stored));
    let handle = client.open(&sim).unwrap().handle;
    client.tell(frames_fn::PIN, &Pin { handle, pinned: true }).unwrap();
    assert_eq!(client.status()["datasets"][0]["pinned"], true);
    let evict = |client: &mut Client, numbers: Option<RunSet>| -> zazen_core::Result<Evicted> {
        client.ask(frames_fn::EVICT, &Evict { handle, set: numbers })
    };
    assert_eq!(kind(evict(&mut client, None)), Some(ErrorKind::Busy));
    client.tell(frames_fn::PIN, &Pin { handle, pinned: false }).unwrap();
    assert_eq!(evict(&mut client, Some(set(0..3))).unwrap().frames, 3);
    let verified: Verified =
        client.ask(frames_fn::VERIFY, &Verify { handle, from: 0, frames_max: 4 }).unwrap();
    assert_eq!((verified.checked, verified.bytes, verified.next), (4, 4 * LENGTH as u64, Some(7)));
    assert_eq!(evict(&mut client, None).unwrap().frames, 7);
    assert_eq!(client.query(handle), (RunSet::new(), RunSet::new()));
}

/// Flips a bit of the cached copy of `frame`.
fn damage(site: &Site, number: u64) {
    let path = site.cache.join("sim/.zazen@frame-{n}.dat").join(frame_name(number));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[LENGTH / 2] ^= 4;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
}

#[test]
fn a_flipped_bit_never_comes_out_as_good() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..5, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    (0..5).for_each(|number| assert_eq!(client.push_valid(&sim, number).unwrap(), Pushed::Stored));
    damage(&site, 2);
    damage(&site, 4);
    let handle = client.open(&sim).unwrap().handle;
    // A reader sees that the bytes are not those of the checksum that came along, and complains.
    for got in client.scan(handle, &set(0..5), 64) {
        let good = frame_checksum(&got.bytes) == got.entry.checksum.unwrap();
        assert_eq!(good, ![2, 4].contains(&got.entry.number));
    }
    client.tell(frames_fn::REPORT_BAD, &ReportBad { handle, number: 2 }).unwrap();
    client.tell(frames_fn::REPORT_BAD, &ReportBad { handle, number: 3 }).unwrap();
    assert_eq!(client.query(handle).0, set([0, 1, 3, 4]), "a false alarm drops nothing");
    check_scan(&client.scan(handle, &set([2]), 1), &set([2]), LENGTH, |_| Delivery::Fetched);
    let verified: Verified =
        client.ask(frames_fn::VERIFY, &Verify { handle, from: 0, frames_max: 100 }).unwrap();
    assert_eq!((verified.checked, verified.bad.clone(), verified.next), (5, vec![4], None));
    assert_eq!(client.counter("corrupt_dropped"), 2);
}

#[test]
fn what_a_writer_may_not_push() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..2, LENGTH);
    let daemon = site.start();
    let mut client = site.client();
    let bytes = frame_bytes(0, LENGTH);
    let mut wrong = meta(0, &bytes, None);
    wrong.checksum ^= 1;
    assert_eq!(kind(client.push_as(&sim, source(0), wrong, &bytes)), Some(ErrorKind::Corrupt));
    let short = meta(0, &bytes, None);
    assert_eq!(kind(client.push_as(&sim, source(0), short, &bytes[1..])), Some(ErrorKind::InvalidArgument));
    let nowhere = site.dir.path().to_str().unwrap().to_owned();
    let refused = client.push(&nowhere, 0, &bytes).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains(site.backing.to_str().unwrap()), "{refused}");
    assert!(client.push(&format!("{sim}/../../etc"), 0, &bytes).is_err());
    assert!(client.push(&format!("{sim}/.zazen"), 0, &bytes).is_err());
    assert!(client.push("relative", 0, &bytes).is_err());
    let handle = client.open(&sim).unwrap().handle;
    assert!(client.query(handle).0.is_empty(), "nothing is kept of what was refused");
    client.push(&sim, 0, &bytes).unwrap();
    let other = frame_bytes(9, LENGTH);
    let twice = client.push(&sim, 0, &other).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Conflict, "{twice}");
    // The connection has survived all that, and so has the daemon.
    assert_eq!(client.query(handle).0, set([0]));
    assert_eq!(client.counter("push_failures"), 7);

    daemon.node().draining.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(kind(client.push(&sim, 1, &bytes)), Some(ErrorKind::ShuttingDown));
    assert_eq!(kind(client.open(&sim)), Some(ErrorKind::ShuttingDown));
}

#[test]
fn another_users_frames_stay_closed() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..6, LENGTH);
    let closed = site.dataset("closed", 0..2, LENGTH);
    set_mode(&site.backing.join("closed"), 0o700);
    let daemon = site.start();
    // A cached one, an uncached one, and one that was closed after it was cached.
    let mut root = site.client();
    for number in [1, 3, 4] {
        root.push_valid(&sim, number).unwrap();
    }
    for number in [2, 3] {
        set_mode(&site.backing.join("sim").join(frame_name(number)), 0o600);
    }
    // Only root's daemon acts for key holders as another user.
    let denied = rustix::process::geteuid().is_root().then_some(ErrorKind::PermissionDenied);
    assert_eq!(kind(site.remote(&daemon, OTHER_USER).open(&closed)), denied);
    let ran = as_user(OTHER_USER, || {
        let mut other = site.client();
        assert_eq!(kind(other.open(&closed)), Some(ErrorKind::PermissionDenied));
        let handle = other.open(&sim).unwrap().handle;
        let got = other.scan(handle, &set(0..6), 64);
        for got in &got {
            let denied = [2, 3].contains(&got.entry.number);
            assert_eq!(got.entry.delivery == Delivery::Failed, denied, "frame {}", got.entry.number);
            match &got.entry.error {
                Some((code, message)) => {
                    assert_eq!(*code, ErrorKind::PermissionDenied as u32, "{message}");
                    assert!(message.contains(&format!("user {OTHER_USER}")), "{message}");
                }
                None => assert!(got.bytes == frame_bytes(got.entry.number, LENGTH)),
            }
        }
        let loaded = other.fetch(handle, set([2]), Origin::Native);
        assert_eq!(loaded.failed[0].1, ErrorKind::PermissionDenied as u32);
        let evict = Evict { handle, set: None };
        assert_eq!(kind(other.ask::<Evicted>(frames_fn::EVICT, &evict)), Some(ErrorKind::PermissionDenied));
        assert_eq!(
            kind(other.raw(service::CONTROL, control_fn::DUMP, &[], &[])),
            Some(ErrorKind::PermissionDenied)
        );
        // Neither in root's name nor into a directory that the user may not write to.
        let bytes = frame_bytes(5, LENGTH);
        assert_eq!(kind(other.push(&sim, 5, &bytes)), Some(ErrorKind::PermissionDenied));
        let mut own = meta(5, &bytes, None);
        (own.uid, own.gid) = (OTHER_USER, OTHER_USER);
        assert_eq!(
            kind(other.push_as(&sim, source(5), own.clone(), &bytes)),
            Some(ErrorKind::PermissionDenied)
        );
        own.gid = 0;
        assert_eq!(kind(other.push_as(&sim, source(5), own, &bytes)), Some(ErrorKind::PermissionDenied));
    });
    if ran {
        let handle = root.open(&sim).unwrap().handle;
        assert!(!root.query(handle).1.contains(2), "a refused miss is not fetched");
        set_mode(&site.backing.join("sim"), 0o777);
        as_user(OTHER_USER, || {
            let bytes = frame_bytes(5, LENGTH);
            let mut own = meta(5, &bytes, None);
            (own.uid, own.gid) = (OTHER_USER, OTHER_USER);
            let mut fresh = site.client();
            fresh.open(&sim).unwrap();
            let pushed = fresh.push_as(&sim, source(50), meta_of(50, &own), &bytes);
            assert_eq!(pushed.unwrap(), Pushed::Stored);
        });
    }
}

fn meta_of(number: u64, like: &zazen_core::FrameMeta) -> zazen_core::FrameMeta {
    zazen_core::FrameMeta { number: zazen_core::FrameNo::new(number).unwrap(), ..like.clone() }
}

#[test]
fn strangers_and_remote_scans_are_refused() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..2, LENGTH);
    let daemon = site.start();
    let other_key = site.dir.path().join("other");
    std::fs::write(&other_key, zazen_call::ClusterKey::generate().unwrap()).unwrap();
    set_mode(&other_key, 0o600);
    let wrong = zazen_call::ClusterKey::from_file(&other_key).unwrap();
    assert_eq!(kind(connect(&daemon, &wrong, 0)), Some(ErrorKind::Authentication));
    let mut remote = site.remote(&daemon, 0);
    let handle = remote.open(&sim).unwrap().handle;
    let scan = ScanOpen { handle, set: set(0..2) };
    assert_eq!(kind(remote.ask::<ScanOpened>(frames_fn::SCAN_OPEN, &scan)), Some(ErrorKind::Unsupported));
}

#[test]
fn nonsense_gets_an_error_and_the_daemon_stays() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..2, LENGTH);
    let outside = site.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join(frame_name(0)), "secret").unwrap();
    std::os::unix::fs::symlink(&outside, site.backing.join("link")).unwrap();
    let empty = site.dataset("empty", [], 0);
    let _daemon = site.start();
    let mut client = site.client();
    for function in 0..20 {
        assert!(client.raw(service::FRAMES, function, &[0xff; 3], &[]).is_err() || function == 13);
        client.raw(service::CONTROL, function + 90, &[], &[]).unwrap_err();
    }
    assert!(client.raw(99, 1, &[], &[]).is_err());
    let refusal = |path: &str| site.client().open(path).unwrap_err();
    assert_eq!(refusal(&format!("{sim}/../../etc")).kind(), ErrorKind::InvalidArgument);
    let link = site.backing.join("link");
    assert_eq!(refusal(link.to_str().unwrap()).kind(), ErrorKind::PermissionDenied);
    assert_eq!(refusal(&format!("{sim}2")).kind(), ErrorKind::NotFound);
    let elsewhere = refusal("/etc");
    assert_eq!(elsewhere.kind(), ErrorKind::NotFound);
    assert!(elsewhere.to_string().contains(site.backing.to_str().unwrap()), "{elsewhere}");

    let opened = client.open(&empty).unwrap();
    assert_eq!((opened.layout.is_none(), opened.extent), (true, Some(RunSet::new())));
    assert_eq!(client.scan(opened.handle, &set([1]), 1)[0].entry.delivery, Delivery::Failed);
    assert!(client.scan(opened.handle, &RunSet::new(), 1).is_empty());
    let handle = client.open(&sim).unwrap().handle;
    for (begin, end, stride) in [(5, 4, 1), (0, 4, 0), (0, (1 << 40) + 1, 1)] {
        assert!(client.ask::<Holdings>(frames_fn::QUERY, &Query { handle, begin, end, stride }).is_err());
    }
    assert_eq!(
        kind(client.ask::<Holdings>(frames_fn::QUERY, &Query { handle: 999, begin: 0, end: 1, stride: 1 })),
        Some(ErrorKind::InvalidArgument)
    );
    assert_eq!(kind(client.next(999, 1)), Some(ErrorKind::InvalidArgument));
    // Handles belong to their connection.
    assert!(
        site.client()
            .ask::<Holdings>(frames_fn::QUERY, &Query { handle, begin: 0, end: 1, stride: 1 })
            .is_err()
    );
    // A dataset that was empty when it was opened may fill.
    site.dataset("empty", 0..3, LENGTH);
    std::thread::sleep(std::time::Duration::from_millis(1050));
    let got = client.scan(opened.handle, &set(0..3), 64);
    check_scan(&got, &set(0..3), LENGTH, |_| Delivery::Fetched);
}

#[test]
fn a_scan_that_is_left_in_the_middle_is_released() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..300, 2000);
    let daemon = site.start();
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    let scan: ScanOpened = client.ask(frames_fn::SCAN_OPEN, &ScanOpen { handle, set: set(0..300) }).unwrap();
    assert_eq!(scan.cached, 0);
    client.next(scan.scan, 3).unwrap();
    assert_eq!(daemon.node().shares.scans.under_way(), 1);
    drop(client);
    let mut other = site.client();
    while daemon.node().shares.scans.under_way() > 0 || daemon.node().fetcher.under_way() > 0 {
        std::thread::yield_now();
    }
    // Far fewer than all were fetched ahead for a reader that took three.
    assert!(other.counter("fetched") < 150, "{}", other.counter("fetched"));
}

#[test]
fn packed_frames_share_a_descriptor_and_larger_ones_have_their_own() {
    let site = Site::default();
    let _daemon = site.start();
    let mut client = site.client();
    for (name, count, length) in [("packed", 300, 500), ("files", 150, LENGTH)] {
        let path = site.dataset(name, 0..count, length);
        let handle = client.open(&path).unwrap().handle;
        client.fetch(handle, set(0..count), Origin::Native);
        check_scan(&client.scan(handle, &set(0..count), 1024), &set(0..count), length, |_| Delivery::Native);
        let scan: ScanOpened =
            client.ask(frames_fn::SCAN_OPEN, &ScanOpen { handle, set: set(0..count) }).unwrap();
        let batch = client.next(scan.scan, 1024).unwrap();
        let files: std::collections::BTreeSet<_> = batch.iter().map(|got| got.entry.fd).collect();
        match name {
            "packed" => assert!(batch.len() > 64 && files.len() == 1, "{} in {files:?}", batch.len()),
            _ => assert!(batch.len() <= 64 && files.len() == batch.len(), "{} in {files:?}", batch.len()),
        }
    }
}

#[test]
fn the_daemon_tells_about_itself() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..3, LENGTH);
    let daemon = site.start_with(|args| {
        args.metrics = Some("127.0.0.1:0".into());
        args.readers = Some("3".into());
    });
    let mut client = site.client();
    client.push_valid(&sim, 0).unwrap();
    let hello = client.raw(service::CONTROL, control_fn::HELLO, &[], &[]).unwrap();
    let info = NodeInfo::decode(&hello.payload).unwrap();
    assert_eq!((info.name.as_str(), info.readers), ("testnode", 3));
    assert_eq!(info.backing_roots, [site.backing.to_str().unwrap()]);
    assert!(client.raw(service::CONTROL, control_fn::PING, &[], &[]).unwrap().payload.is_empty());
    let status = client.status();
    assert_eq!(status["node"], format!("{:032x}", info.node));
    assert_eq!(status["space"]["budget"], 64 << 20);
    assert_eq!(status["datasets"][0]["natives"], 1);
    assert_eq!(status["datasets"][0]["path"], sim);
    assert_eq!(status["draining"], false);
    let dump = client.raw(service::CONTROL, control_fn::DUMP, &[], &[]).unwrap();
    let dump = String::from_utf8(dump.payload).unwrap();
    assert!(dump.contains("pushes 1") && dump.contains("testnode"), "{dump}");
    let page = get(daemon.metrics_addr().unwrap(), "/metrics");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    for line in ["zazen_pushes_total 1", "zazen_space_budget_bytes 67108864", "zazen_backing_ok 1"] {
        assert!(page.contains(&format!("\n{line}")), "{line} is not in {page}");
    }
    assert!(get(daemon.metrics_addr().unwrap(), "/other").starts_with("HTTP/1.1 404"));
}

fn get(addr: std::net::SocketAddr, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn frames_and_pins_survive_a_restart() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..6, LENGTH);
    let daemon = site.start();
    let node = daemon.node().store.node();
    let mut client = site.client();
    (0..3).for_each(|number| assert_eq!(client.push_valid(&sim, number).unwrap(), Pushed::Stored));
    let handle = client.open(&sim).unwrap().handle;
    client.scan(handle, &set([5]), 1);
    client.tell(frames_fn::PIN, &Pin { handle, pinned: true }).unwrap();
    daemon.stop().unwrap();
    let daemon = site.start();
    assert_eq!(daemon.node().store.node(), node);
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    assert_eq!(client.query(handle), (set(0..3), set([5])));
    assert_eq!(client.status()["datasets"][0]["pinned"], true);
}

#[test]
fn a_cache_has_one_daemon() {
    let site = Site::default();
    let daemon = site.start();
    let mut second = site.config();
    second.socket = site.dir.path().join("run/second");
    let refused = zazend::Daemon::start(second).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains(site.cache.to_str().unwrap()), "{refused}");
    daemon.stop().unwrap();
    site.start();
}

#[test]
fn two_backing_stores_keep_their_datasets_apart() {
    let site = Site::default();
    let second = site.dir.path().join("second");
    std::fs::create_dir_all(second.join("sim")).unwrap();
    std::fs::write(second.join("sim").join(frame_name(0)), frame_bytes(90, LENGTH)).unwrap();
    let first = site.dataset("sim", 0..1, LENGTH);
    let both = [site.backing.to_str().unwrap().to_owned(), second.to_str().unwrap().to_owned()];
    for order in [[0, 1], [1, 0]] {
        let daemon = site.start_with(|args| args.backing = order.map(|at| both[at].clone()).to_vec());
        let mut client = site.client();
        let one = client.open(&first).unwrap();
        let two = client.open(&format!("{}/sim", both[1])).unwrap();
        let names = ("sim/.zazen@frame-{n}.dat", "@second/sim/.zazen@frame-{n}.dat");
        assert_eq!((one.dataset.as_str(), two.dataset.as_str()), names);
        let got = client.scan(one.handle, &set([0]), 1);
        assert!(got[0].bytes == frame_bytes(0, LENGTH));
        let got = client.scan(two.handle, &set([0]), 1);
        assert!(got[0].bytes == frame_bytes(90, LENGTH));
        let status = client.status();
        let paths: Vec<_> =
            status["datasets"].as_array().unwrap().iter().map(|row| row["path"].clone()).collect();
        assert!(paths.contains(&first.clone().into()) && paths.len() == 2, "{paths:?}");
        daemon.stop().unwrap();
    }
}

#[test]
fn a_full_cache_evicts_cold_datasets_and_never_exceeds_its_budget() {
    let site = Site::default();
    let all: Vec<String> = (0..6).map(|at| site.dataset(&format!("sim{at}"), 0..10, 100_000)).collect();
    let daemon = site.start_with(|args| args.budget = vec!["3M".into()]);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (site, all) = (&site, &all);
            scope.spawn(move || {
                let mut client = site.client();
                for round in 0..6 {
                    let handle = client.open(&all[(reader + round) % 6]).unwrap().handle;
                    let got = client.scan(handle, &set(0..10), 4);
                    assert_eq!(got.len(), 10);
                    for got in got {
                        assert!(got.bytes == frame_bytes(got.entry.number, 100_000), "{:?}", got.entry);
                    }
                }
            });
        }
        let ends = std::time::Instant::now() + std::time::Duration::from_millis(300);
        while std::time::Instant::now() < ends {
            let space = daemon.node().store.space();
            assert!(space.used <= space.budget, "{space:?}");
        }
    });
    let used = bytes_on_disk(&site.cache);
    assert!(used <= 3 << 20, "{used} bytes on disk");
    assert!(site.client().counter("evicted_frames") > 0);
}

/// What the files beneath `folder` take on the disk.
fn bytes_on_disk(folder: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| match entry.metadata().unwrap() {
        meta if meta.is_dir() => bytes_on_disk(&entry.path()),
        meta => meta.blocks() * 512,
    });
    sizes.sum()
}

#[test]
fn a_validator_from_before_is_stale_at_once() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..1, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    let bytes = frame_bytes(5, 100_000);
    let old = Some(Validator { size: 100_000, mtime_ns: 1, ..Validator::default() });
    client.push_as(&sim, source(0), meta(0, &bytes, old), &bytes).unwrap();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set([0]), 1), &set([0]), LENGTH, |_| Delivery::Fetched);
}

#[test]
fn frames_that_come_in_one_message_are_taken_or_refused_one_by_one() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..6, LENGTH);
    let _daemon = site.start();
    let mut client = site.client();
    let lengths = [500, LENGTH, 3_000_000, 70_000, 0, 20_000];
    let all: Vec<Vec<u8>> = (0..6).zip(lengths).map(|(number, length)| frame_bytes(number, length)).collect();
    let mut pushes: Vec<Push> =
        (0..6).zip(&all).map(|(number, bytes)| push_of(&sim, number, bytes)).collect();
    // Frames that are refused before or after their bytes are read: those behind them still come.
    pushes[0].dataset = "/nowhere".into();
    pushes[2].source.path = pushes[1].source.path.clone();
    pushes[3].meta.checksum ^= 1;
    let bulk: Vec<&[u8]> = all.iter().map(|bytes| &bytes[..]).collect();
    let send = |client: &mut Client, pushes: &[Push], bulk: &[&[u8]]| -> zazen_core::Result<PushedMany> {
        let message = PushMany { pushes: pushes.to_vec() }.encode();
        PushedMany::decode(&client.raw(service::FRAMES, frames_fn::PUSH_MANY, &message, bulk)?.payload)
    };
    let fates = send(&mut client, &pushes, &bulk).unwrap().fates;
    let ends: Vec<_> = fates.into_iter().map(|fate| fate.outcome().map_err(|error| error.kind())).collect();
    let stored = Ok(Pushed::Stored);
    let refused = |kind| Err(kind);
    assert_eq!(
        ends,
        [
            refused(ErrorKind::NotFound),
            stored,
            refused(ErrorKind::InvalidArgument),
            refused(ErrorKind::Corrupt),
            stored,
            stored
        ]
    );
    let again = send(&mut client, &pushes[1..2], &bulk[1..2]).unwrap().fates;
    assert_eq!(again, [PushFate { already_here: true, error: None }]);
    let handle = client.open(&sim).unwrap().handle;
    assert_eq!(client.query(handle).0, set([1, 4, 5]));
    assert_eq!((client.counter("pushes"), client.counter("push_failures")), (3, 3));

    let too_few = send(&mut client, &pushes[1..2], &[&all[1][1..]]).unwrap_err();
    assert_eq!(too_few.kind(), ErrorKind::InvalidArgument, "{too_few}");
    let many: Vec<Push> = (0..=PUSHES_MAX as u64).map(|number| push_of(&sim, number, &[])).collect();
    let too_many = send(&mut client, &many, &[]).unwrap_err();
    assert!(too_many.to_string().contains("at most 64 frames"), "{too_many}");
    assert_eq!(client.query(handle).0, set([1, 4, 5]));
}
