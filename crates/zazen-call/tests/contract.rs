//! The contract of a carrier: the same tests over the unix socket, over TCP and in shared memory.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

mod common;

use common::*;
use std::time::Duration;
use zazen_call::ServerLimits;
use zazen_core::ErrorKind;
use zazen_wire::checksum::frame_checksum;

/// Runs `test` on each carrier; the last one named before a failure is the one that failed.
#[allow(clippy::print_stderr, reason = "shown only if the test fails")]
fn each(test: impl Fn(Carrier)) {
    for carrier in CARRIERS {
        eprintln!("carrier {carrier:?}");
        test(carrier);
    }
}

#[test]
fn payloads_of_any_size_come_back() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        for size in [0, 1, 63, 16 << 10, (16 << 10) + 1, 300_000, 5 << 20] {
            let payload = pattern(size);
            let reply = connection.call(SERVICE, ECHO, &payload, &[]).unwrap();
            assert!(reply.payload == payload, "{size} bytes");
            assert!(reply.bulk.is_empty() && reply.fds.is_empty());
        }
    });
}

#[test]
fn bulk_travels_both_ways_in_any_pieces() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        let bytes = pattern(7 << 20);
        for size in [0, 1, 15_000, 17_000, 430_000, 7 << 20] {
            let mut expected = (size as u64).to_le_bytes().to_vec();
            expected.extend(frame_checksum(&bytes[..size]).to_le_bytes());
            let one: &[&[u8]] = &[&bytes[..size]];
            // More pieces than one vectored send takes, empty ones between.
            let many: Vec<&[u8]> =
                bytes[..size].chunks((size / 3000).max(1)).flat_map(|part| [part, &[]]).collect();
            for pieces in [one, &many] {
                let reply = connection.call(SERVICE, SINK, b"", pieces).unwrap();
                assert_eq!(reply.payload, expected, "{size} bytes in {} pieces", pieces.len());
            }
            let reply = connection.call(SERVICE, SOURCE, &(size as u64).to_le_bytes(), &[]).unwrap();
            assert!(reply.bulk == bytes[..size], "{size} bytes");
        }
    });
}

#[test]
fn an_error_comes_as_itself_and_the_connection_lives() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        let error = connection.call(SERVICE, REFUSE, b"", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("frame 7 is here already"), "{error}");
        let error = connection.call(99, ECHO, b"", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("service 99"), "{error}");
        assert!(connection.is_alive());
        assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
    });
}

#[test]
fn unread_bulk_never_blocks_nor_breaks_the_connection() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        let megabyte = pattern(1 << 20);
        let bulk: Vec<&[u8]> = vec![&megabyte; 200];
        let error = connection.call(SERVICE, REFUSE, b"", &bulk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let error = connection.call(99, ECHO, b"", &bulk[..3]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let reply = connection.call(SERVICE, SIP, b"", &bulk[..3]).unwrap();
        assert_eq!(reply.payload, &megabyte[..10]);
        assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
    });
}

#[test]
fn a_panic_is_an_error_reply() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        let error = connection.call(SERVICE, PANIC, b"", &[&pattern(100_000)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("a test's panic"), "{error}");
        assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
        drop(connection);
        bench.assert_all_detached(1);
    });
}

#[test]
fn the_service_knows_who_calls() {
    let bench = Bench::new();
    let ask = |carrier| {
        String::from_utf8(bench.connect(carrier).call(SERVICE, WHOAMI, b"", &[]).unwrap().payload).unwrap()
    };
    let remote = ask(Carrier::Tcp);
    assert!(remote.contains("uid: 1234, gid: 567, groups: [8, 9, 10]"), "{remote}");
    assert!(
        remote.contains("pid: 4321, host: Some(\"testhost\")") && remote.contains("local=false"),
        "{remote}"
    );
    let local = ask(Carrier::Unix);
    let me = zazen_call::Identity::of_this_process();
    assert!(local.contains(&format!("uid: {}, gid: {}", me.credentials.uid, me.credentials.gid)), "{local}");
    for group in &me.credentials.groups {
        assert!(local.contains(&group.to_string()), "{local}");
    }
    assert!(local.contains(&format!("pid: {}, host: None", std::process::id())), "{local}");
    assert!(local.contains("local=true"), "{local}");
}

#[test]
fn one_connection_too_many_is_told_busy() {
    each(|carrier| {
        let bench = Bench::with(ServerLimits {
            connections_max: 2,
            stall_timeout: PATIENCE,
            ..ServerLimits::default()
        });
        let mut first = bench.connect(carrier);
        first.call(SERVICE, ECHO, b"", &[]).unwrap();
        let mut second = bench.connect(carrier);
        second.call(SERVICE, ECHO, b"", &[]).unwrap();
        let refused = bench.try_connect(carrier).and_then(|mut third| third.call(SERVICE, ECHO, b"", &[]));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("limit of 2 connections"), "{error}");
        drop(second);
        bench.assert_all_detached(1);
        while bench.server.connections() > 1 {
            std::thread::yield_now();
        }
        bench.connect(carrier).call(SERVICE, ECHO, b"", &[]).unwrap();
        first.call(SERVICE, ECHO, b"", &[]).unwrap();
    });
}

#[test]
fn calls_of_many_connections_run_at_once() {
    each(|carrier| {
        let bench = Bench::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| bench.connect(carrier).call(SERVICE, GATE, b"", &[]).unwrap());
            }
            bench.probe.wait("eight calls wait together", |state| state.waiting == 8);
            bench.probe.open_gate();
        });
        bench.assert_all_detached(8);
    });
}

#[test]
fn a_late_reply_is_timed_out_and_the_connection_dead() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        connection.set_timeout(Some(Duration::from_millis(50)));
        let error = connection.call(SERVICE, GATE, b"", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(!connection.is_alive());
        let error = connection.call(SERVICE, ECHO, b"", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("reconnect"), "{error}");
        bench.probe.open_gate();
    });
}

#[test]
fn what_no_peer_would_take_is_refused_before_it_is_sent() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        let huge = vec![0; zazen_core::limits::PAYLOAD_BYTES_MAX + 1];
        assert_eq!(connection.call(SERVICE, ECHO, &huge, &[]).unwrap_err().kind(), ErrorKind::TooLarge);
        assert!(connection.is_alive());
        // The service's reply would break a limit: the caller learns it, the connection lives.
        assert_eq!(connection.call(SERVICE, MANY_FDS, b"", &[]).unwrap_err().kind(), ErrorKind::TooLarge);
        let null = std::fs::File::open("/dev/null").unwrap();
        let fds = [std::os::fd::AsFd::as_fd(&null)];
        let passed = connection.call_with_fds(SERVICE, FDS, b"", &[], &fds);
        match carrier {
            Carrier::Unix | Carrier::Shm => assert_eq!(passed.unwrap().fds.len(), 1),
            Carrier::Tcp => assert_eq!(passed.unwrap_err().kind(), ErrorKind::Unsupported),
        }
        assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
    });
}

#[test]
fn drain_lets_calls_finish_and_closes_the_rest() {
    each(|carrier| {
        let bench = Bench::new();
        let mut idle = bench.connect(carrier);
        idle.call(SERVICE, ECHO, b"", &[]).unwrap();
        let mut busy = bench.connect(carrier);
        std::thread::scope(|scope| {
            let in_call = scope.spawn(move || busy.call(SERVICE, GATE, b"", &[]).map(|reply| reply.payload));
            bench.probe.wait("the call is in progress", |state| state.waiting == 1);
            let drain = scope.spawn(|| bench.server.drain(PATIENCE));
            // The idle connection's end shows that draining has begun.
            let error = idle.call(SERVICE, ECHO, b"", &[]);
            while error.is_ok() && idle.call(SERVICE, ECHO, b"", &[]).is_ok() {}
            bench.probe.open_gate();
            assert_eq!(in_call.join().unwrap().unwrap(), b"through");
            assert_eq!(drain.join().unwrap(), 0);
        });
        assert!(!bench.socket.exists());
        assert!(matches!(
            bench.try_connect(carrier).unwrap_err().kind(),
            ErrorKind::Unavailable | ErrorKind::TimedOut
        ));
        assert_eq!(bench.server.connections(), 0);
        bench.assert_all_detached(2);
        assert_eq!(bench.server.listen_tcp("127.0.0.1:0").unwrap_err().kind(), ErrorKind::ShuttingDown);
        assert_eq!(bench.server.drain(PATIENCE), 0);
    });
}

#[test]
fn drain_cuts_off_what_takes_too_long() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        std::thread::scope(|scope| {
            let call = scope.spawn(move || connection.call(SERVICE, GATE, b"", &[]));
            bench.probe.wait("the call is in progress", |state| state.waiting == 1);
            assert_eq!(bench.server.drain(Duration::from_millis(10)), 1);
            assert_eq!(call.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
            bench.probe.open_gate();
        });
        bench.assert_all_detached(1);
    });
}

/// A service that works for long sees that its caller has gone.
#[test]
fn a_service_hears_that_its_caller_is_gone() {
    each(|carrier| {
        let bench = Bench::new();
        let mut connection = bench.connect(carrier);
        connection.call(SERVICE, ECHO, b"", &[]).unwrap();
        connection.set_timeout(Some(Duration::from_millis(50)));
        // The call is given up and its connection dropped, while the service works on.
        connection.call(SERVICE, UNTIL_CUT, b"", &[]).unwrap_err();
        bench.probe.wait("it works", |state| state.waiting == 1);
        drop(connection);
        bench.probe.wait("it has ended", |state| state.cut == 1);
    });
}
