//! Shared memory beside the socket: lanes, the pool, what streams, and when it is not to be had.
//! (What holds on every carrier is in `contract.rs`.)

use crate::common::*;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;
use zazen_call::{Connection, ServerLimits, ShmLimits};
use zazen_core::ErrorKind;
use zazen_wire::checksum::frame_checksum;

type Kind = zazen_call::Carrier;

fn limits() -> ServerLimits {
    ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() }
}

fn bench_with(shm: ShmLimits) -> Bench {
    Bench::with_shm(limits(), shm)
}

fn number(connection: &mut Connection) -> u64 {
    u64::from_le_bytes(connection.call(SERVICE, NUMBER, b"", &[]).unwrap().payload.try_into().unwrap())
}

/// A caller's memory goes back right after its services have heard of its end.
fn all_comes_back(bench: &Bench) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while bench.server.granted_bytes() > 0 {
        assert!(
            std::time::Instant::now() < deadline,
            "{} bytes never came back",
            bench.server.granted_bytes()
        );
        std::thread::yield_now();
    }
}

/// Sends `input` and gets it back, through pieces of the service's own.
fn piped(connection: &mut Connection, input: &[IoSlice<'_>], output: &mut [IoSliceMut<'_>]) -> u64 {
    let got = connection.exchange(SERVICE, PIPE, b"some payload", input, output).unwrap();
    assert_eq!(got.payload, got.bulk_bytes.to_le_bytes());
    got.bulk_bytes
}

#[test]
fn exchanges_of_any_shape_on_every_carrier() {
    let bench = Bench::new();
    let bytes = pattern(3 << 20);
    for carrier in CARRIERS {
        let mut connection = bench.connect(carrier);
        for size in [0, 1, 511, 4000, 4096, 65_536, 65_537, 430_000, 3 << 20] {
            let mut whole = vec![0; size];
            assert_eq!(
                piped(&mut connection, &[IoSlice::new(&bytes[..size])], &mut [IoSliceMut::new(&mut whole)]),
                size as u64
            );
            assert!(whole == bytes[..size], "{carrier:?}, {size} bytes");
            // In pieces, some in the pool, some of them empty, and with more room than is needed.
            let (first, second) = (size / 3, size / 2);
            let mut pooled = connection.allocate(second - first);
            pooled.copy_from_slice(&bytes[first..second]);
            let input = [&bytes[..first], &pooled, &[], &bytes[second..size]].map(IoSlice::new);
            let (mut one, mut two, mut three) =
                (vec![0; size / 4], connection.allocate(size / 4), vec![0; size + 5]);
            let mut output = [&mut one[..], &mut two, &mut three].map(IoSliceMut::new);
            assert_eq!(piped(&mut connection, &input, &mut output), size as u64);
            let got = [&one[..], &two, &three[..size - 2 * (size / 4)]].concat();
            assert!(got == bytes[..size], "{carrier:?}, {size} bytes in pieces");
            assert_eq!(pooled.is_shared(), carrier == Carrier::Shm);
        }
        // More pieces than a table has entries.
        let mut pooled = connection.allocate(200 * 600);
        pooled.copy_from_slice(&bytes[..200 * 600]);
        let input: Vec<_> = pooled
            .chunks(600)
            .enumerate()
            .map(|(at, part)| IoSlice::new(if at % 2 == 0 { part } else { &bytes[at * 600..][..600] }))
            .collect();
        let mut whole = vec![0; 200 * 600];
        piped(&mut connection, &input, &mut [IoSliceMut::new(&mut whole)]);
        assert!(whole == bytes[..200 * 600], "{carrier:?}, many pieces");
        // A payload that is streamed itself, with bulk bytes on both sides.
        let error =
            connection.exchange(SERVICE, ECHO, &bytes[..70_000], &[IoSlice::new(&bytes[..70_000])], &mut []);
        assert_eq!(error.unwrap().payload, &bytes[..70_000]);
    }
}

#[test]
fn what_lies_in_the_pool_is_lent_both_ways() {
    let bench = Bench::new();
    let mut connection = bench.connect(Carrier::Shm);
    for size in [600, 4096, 100_000, 2 << 20] {
        let mut buffer = connection.allocate(size);
        assert!(buffer.is_shared(), "{size}");
        buffer.copy_from_slice(&pattern(size));
        let got = connection.exchange(SERVICE, LEND, b"", &[IoSlice::new(&buffer)], &mut []).unwrap();
        assert_eq!(got.payload, [b"lent", &frame_checksum(&pattern(size)).to_le_bytes()[..]].concat());
        buffer.fill(0);
        let ask = (size as u64).to_le_bytes();
        let got = connection.exchange(SERVICE, FILL, &ask, &[], &mut [IoSliceMut::new(&mut buffer)]).unwrap();
        assert_eq!((got.payload.as_slice(), got.bulk_bytes), (&b"lent"[..], size as u64));
        assert!(buffer[..] == pattern(size));
    }
    // What is small enough is lent wherever it was.
    let bytes = pattern(60_000);
    let got = connection.exchange(SERVICE, LEND, b"", &[IoSlice::new(&bytes)], &mut []).unwrap();
    assert_eq!(&got.payload[..4], b"lent");
    let mut room = vec![0; 60_000];
    let ask = 60_000u64.to_le_bytes();
    let got = connection.exchange(SERVICE, FILL, &ask, &[], &mut [IoSliceMut::new(&mut room)]).unwrap();
    assert_eq!((got.payload.as_slice(), room == bytes), (&b"lent"[..], true));
    drop(connection);
    bench.assert_all_detached(1);
    all_comes_back(&bench);
}

#[test]
fn buffers_are_recycled_and_given_back() {
    let bench = Bench::new();
    let mut connection = bench.connect(Carrier::Shm);
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..100 {
        places.insert(connection.allocate(300_000).as_ptr() as usize);
    }
    assert_eq!(places.len(), 1, "one buffer is used again and again");
    // More than the pool has: the rest comes from the heap, and everything works.
    let many: Vec<_> = (0..50).map(|_| connection.allocate(1 << 20)).collect();
    assert!(
        many.iter().any(|buffer| !buffer.is_shared()) && many.iter().filter(|b| b.is_shared()).count() >= 16
    );
    let before = bench.server.granted_bytes();
    drop(many);
    // The next large one finds too much kept, and gives the surplus back.
    drop(connection.allocate(16 << 20));
    assert!(bench.server.granted_bytes() <= before, "{} of {before}", bench.server.granted_bytes());
    assert!(connection.pool().unwrap().take(300_000).unwrap().is_shared());
    let huge = connection.allocate(1 << 30);
    assert!(!huge.is_shared());
    drop(connection);
    bench.assert_all_detached(1);
    all_comes_back(&bench);
}

#[test]
fn a_connection_moves_by_itself_once_it_pays() {
    let bench = Bench::new();
    let mut connection = Connection::unix(&bench.socket, PATIENCE).unwrap();
    assert_eq!(connection.carrier(), Kind::Unix);
    for _ in 0..20 {
        connection.call(SERVICE, ECHO, b"x", &[]).unwrap();
    }
    assert_eq!(connection.carrier(), Kind::Shm);
    let plain = Connection::local(&bench.socket, Kind::Unix, PATIENCE).unwrap();
    assert_eq!((plain.carrier(), plain.pool().is_none()), (Kind::Unix, true));
    drop(connection);
    drop(plain);
    bench.assert_all_detached(2);
}

#[test]
fn without_shared_memory_the_socket_does() {
    let bench = bench_with(ShmLimits { enabled: false, ..ShmLimits::default() });
    let mut connection = Connection::local(&bench.socket, Kind::Shm, PATIENCE).unwrap();
    assert_eq!(connection.carrier(), Kind::Unix);
    assert!(!connection.allocate(1 << 20).is_shared());
    assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
}

/// With next to no memory to grant, calls use what their lanes have.
#[test]
fn streams_get_through_on_the_smallest_budget() {
    for budget_bytes in [0, 64 << 10, 1 << 20] {
        let bench = bench_with(ShmLimits { budget_bytes, pool_bytes: 1 << 20, ..ShmLimits::default() });
        let bytes = pattern(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut connection = bench.connect(Carrier::Shm);
                    let mut back = vec![0; bytes.len()];
                    piped(&mut connection, &[IoSlice::new(&bytes)], &mut [IoSliceMut::new(&mut back)]);
                    assert!(back == bytes, "budget {budget_bytes}");
                    let error = connection.call(SERVICE, REFUSE, b"", &[&bytes]).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict);
                    let got = connection.call(SERVICE, SOURCE, &700_000u64.to_le_bytes(), &[]).unwrap();
                    assert!(got.bulk == pattern(700_000));
                });
            }
        });
        bench.assert_all_detached(3);
        all_comes_back(&bench);
    }
}

#[test]
fn an_answer_beyond_the_room_is_refused_and_the_connection_lives() {
    let bench = Bench::new();
    for carrier in CARRIERS {
        let mut connection = bench.connect(carrier);
        for (function, ask) in [(FILL, 1000u64), (SOURCE, 100_000)] {
            let mut room = [0; 999];
            let asked = ask.to_le_bytes();
            let error = connection
                .exchange(SERVICE, function, &asked, &[], &mut [IoSliceMut::new(&mut room)])
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{carrier:?}: {error}");
            assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
        }
    }
}

#[test]
fn lanes_are_one_caller_on_every_carrier() {
    for carrier in CARRIERS {
        let bench = Bench::new();
        let mut first = bench.connect(carrier);
        let mine = number(&mut first);
        let lanes = first.lanes().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let lanes = lanes.clone();
                scope.spawn(move || {
                    let mut lane = lanes.open().unwrap();
                    for round in 0..20 {
                        assert_eq!(number(&mut lane), mine, "{carrier:?}");
                        let bytes = pattern(round * 5000);
                        let mut back = vec![0; bytes.len()];
                        piped(&mut lane, &[IoSlice::new(&bytes)], &mut [IoSliceMut::new(&mut back)]);
                        assert!(back == bytes);
                    }
                });
            }
        });
        let mut last = first.lane().unwrap();
        drop(first);
        assert_eq!(number(&mut last), mine);
        assert!(bench.probe.detached().is_empty(), "{carrier:?}: a lane is still there");
        drop(last);
        bench.assert_all_detached(1);
        let error = lanes.open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[test]
fn lanes_beyond_the_region_stay_on_the_socket() {
    let bench = bench_with(ShmLimits { lanes_max: 2, ..ShmLimits::default() });
    let mut first = bench.connect(Carrier::Shm);
    let second = first.lane().unwrap();
    let mut third = first.lane().unwrap();
    assert_eq!([first.carrier(), second.carrier(), third.carrier()], [Kind::Shm, Kind::Shm, Kind::Unix]);
    let shared = first.allocate(100_000);
    let got = third.exchange(SERVICE, LEND, b"", &[IoSlice::new(&shared)], &mut []).unwrap();
    assert_eq!(&got.payload[..4], b"read");
    // A buffer of one lane is in place on the other lanes of the region, and a lane that ended
    // makes room.
    drop(second);
    let mut fourth = loop {
        let lane = first.lane().unwrap();
        if lane.carrier() == Kind::Shm {
            break lane;
        }
    };
    let got = fourth.exchange(SERVICE, LEND, b"", &[IoSlice::new(&shared)], &mut []).unwrap();
    assert_eq!(&got.payload[..4], b"lent");
}

#[test]
fn both_ends_sleep_and_wake() {
    let bench = Bench::new();
    let mut connection = bench.connect(Carrier::Shm);
    // Each wait of either end by spin, by futex, and on the socket; descriptors come after the
    // deepest sleep.
    for idle in [0, 1, 30, 120] {
        std::thread::sleep(Duration::from_millis(idle));
        let reply = connection.call(SERVICE, NAP, &idle.to_le_bytes(), &[]).unwrap();
        assert_eq!(reply.fds.len(), 1);
        let null = std::fs::File::open("/dev/null").unwrap();
        let fds = [std::os::fd::AsFd::as_fd(&null); 3];
        std::thread::sleep(Duration::from_millis(idle));
        assert_eq!(connection.call_with_fds(SERVICE, FDS, b"", &[], &fds).unwrap().fds.len(), 3);
    }
    // Lanes that sleep cost no thread, and a caller that is gone is noticed.
    let idle: Vec<_> = (0..40).map(|_| bench.connect(Carrier::Shm)).collect();
    drop(idle);
    drop(connection);
    bench.assert_all_detached(41);
}

#[test]
fn a_dead_daemon_is_noticed_in_any_sleep() {
    for nap in [1, 100] {
        let bench = Bench::new();
        let mut connection = bench.connect(Carrier::Shm);
        connection.set_timeout(None);
        std::thread::scope(|scope| {
            let call = scope.spawn(move || connection.call(SERVICE, GATE, b"", &[]).unwrap_err());
            bench.probe.wait("the call is in progress", |state| state.waiting == 1);
            std::thread::sleep(Duration::from_millis(nap));
            assert_eq!(bench.server.drain(Duration::ZERO), 1);
            assert_eq!(call.join().unwrap().kind(), ErrorKind::Unavailable);
            bench.probe.open_gate();
        });
        bench.assert_all_detached(1);
    }
}
