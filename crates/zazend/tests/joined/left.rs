//! Work ends with its caller: whoever asks for much and leaves costs nobody anything from then on.

use crate::common::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use zazen_backing::served::FileServer;
use zazen_core::{ErrorKind, Origin, RunSet};
use zazen_frames::messages::*;
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::{Message, service};

/// The backing store's bytes in a second.
const RATE: u64 = 8_000_000;
const PATIENCE: Duration = Duration::from_secs(90);

/// A connection whose owner need not wait for answers.
struct Hasty(UnixStream);

impl Hasty {
    fn send(&mut self, function: u16, question: &impl Message) {
        let payload = question.encode();
        let header = Header {
            kind: Kind::Request,
            service: service::FRAMES,
            function,
            status: 0,
            call: 1,
            payload_bytes: payload.len() as u32,
            fd_count: 0,
            bulk_bytes: 0,
            payload_crc: crc32c(&payload),
            flags: 0,
            room: None,
        };
        self.0.write_all(&[&header.encode()[..], &payload].concat()).unwrap();
    }

    fn ask<A: Message>(&mut self, function: u16, question: &impl Message) -> A {
        self.send(function, question);
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap();
        let mut payload = vec![0; header.payload_bytes as usize];
        self.0.read_exact(&mut payload).unwrap();
        assert_eq!(header.status, 0, "{}", String::from_utf8_lossy(&payload));
        A::decode(&payload).unwrap()
    }
}

/// A node over a slow store, whose frames are holes.
struct Slow {
    site: Site,
    sim: String,
    store: FileServer,
    _daemon: zazend::Daemon,
}

impl Slow {
    fn start(frames: u64, length: u64) -> Slow {
        let site = Site::default();
        let sim = site.dataset("sim", 0..frames, 0);
        for number in 0..frames {
            let path = std::path::Path::new(&sim).join(frame_name(number));
            std::fs::File::create(path).unwrap().set_len(length).unwrap();
        }
        settle();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let store = zazen_backing::served::serve(listener, &site.backing, Some(RATE)).unwrap();
        let spec = format!("{}=tcp://{}", site.backing.display(), store.addr());
        let daemon = site.start_with(|args| {
            args.backing = vec![spec];
            args.budget = vec!["1G".into()];
        });
        Slow { site, sim, store, _daemon: daemon }
    }

    fn open(&self) -> (Hasty, u32) {
        let mut hasty = Hasty(UnixStream::connect(&self.site.socket).unwrap());
        hasty.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = self.sim.clone();
        let ask = OpenDataset { path, want_extent: false, pattern: None, only_cached: false };
        let info: DatasetInfo = hasty.ask(frames_fn::OPEN, &ask);
        (hasty, info.handle)
    }

    /// Waits until the caller's work has begun, lets the caller leave, and waits until nothing of
    /// the work goes on. The bytes that were read of the store.
    fn leave(&self, hasty: Hasty, before: u64) -> u64 {
        let mut other = self.site.client();
        let mut wait = |what: &str, is_so: &dyn Fn(&serde_json::Value) -> bool| {
            let begun = Instant::now();
            while !is_so(&other.status()) {
                assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        wait("the work begins", &|status| status["fetches"] != 0);
        drop(hasty);
        wait("the work ends", &|status| status["connections"] == 1 && status["fetches"] == 0);
        self.store.traffic().bytes - before
    }
}

#[test]
fn a_long_copy_ends_with_its_reader() {
    const LENGTH: u64 = 400 << 20;
    let slow = Slow::start(1, LENGTH);
    for function in [frames_fn::SCAN_NEXT, frames_fn::READ_MANY, frames_fn::FETCH] {
        let before = slow.store.traffic().bytes;
        let (mut hasty, handle) = slow.open();
        let set = set([0]);
        match function {
            frames_fn::SCAN_NEXT => {
                let opened: ScanOpened = hasty.ask(frames_fn::SCAN_OPEN, &ScanOpen { handle, set });
                let next = ScanNext { scan: opened.scan, frames_max: 8, bytes_max: 1 << 20 };
                hasty.send(function, &next);
            }
            frames_fn::READ_MANY => hasty.send(function, &ReadMany { handle, set, bytes_max: 1 << 20 }),
            _ => hasty.send(function, &Fetch { handle, set, origin: Origin::Native }),
        }
        let read = slow.leave(hasty, before);
        assert!(read < LENGTH / 2, "function {function}: {read} bytes were read for nobody");
    }
    // The room that was promised to the copies is free again.
    assert_eq!(slow.site.client().status()["space"]["reserved"], 0);
}

#[test]
fn a_load_ends_with_its_caller() {
    const FRAMES: u64 = 400;
    const LENGTH: u64 = 1 << 20;
    let slow = Slow::start(FRAMES, LENGTH);
    let before = slow.store.traffic().bytes;
    let (mut hasty, handle) = slow.open();
    hasty
        .send(frames_fn::FETCH, &Fetch { handle, set: RunSet::range(0, FRAMES - 1), origin: Origin::Native });
    let read = slow.leave(hasty, before);
    assert!(read < FRAMES * LENGTH / 2, "{read} bytes were read for nobody");
    // So many numbers that looking for each would take days.
    let mut client = slow.site.client();
    let handle = client.open(&slow.sim).unwrap().handle;
    let ask = Fetch { handle, set: RunSet::range(0, 1 << 40), origin: Origin::Native };
    let refused = client.ask::<Fetched>(frames_fn::FETCH, &ask).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
    assert!(refused.to_string().contains("ask for fewer"), "{refused}");
}
