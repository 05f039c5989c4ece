//! Whatever a peer sends, or stops sending, costs its own connection only.

use crate::common::*;
use std::time::Duration;
use zazen_call::ServerLimits;
use zazen_core::ErrorKind;
use zazen_core::limits::{FDS_PER_MESSAGE_MAX, FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// Sends `bytes` on a proven connection of each carrier: the peer is told an error of `kind` whose
/// message contains `words`, then closed; the service sees no call; the daemon serves on.
fn check_refused(bytes: &[u8], kind: ErrorKind, words: &str) {
    let bench = Bench::new();
    for carrier in STREAMS {
        let mut raw = bench.raw(carrier);
        raw.send(bytes);
        let (found, message) = raw.error();
        assert_eq!(found, kind, "{carrier:?}: {message}");
        assert!(message.contains(words), "{carrier:?}: {message}");
        // The server lingers until the peer ends too: a reset could swallow its last words.
        raw.socket.end_writing();
        raw.assert_closed();
    }
    assert_eq!(bench.probe.calls(), 0);
    bench.assert_serves();
    bench.assert_all_detached(4);
}

#[test]
fn a_stranger_to_the_protocol_is_told_so() {
    let mut http = b"GET / HTTP/1.1\r\nHost: localhost\r\n".to_vec();
    http.resize(200, b'x');
    check_refused(&http, ErrorKind::Protocol, "does not speak Zazen's call protocol");
    check_refused(&[0; 64], ErrorKind::Protocol, "does not speak Zazen's call protocol");
}

#[test]
fn damaged_headers_and_payloads_are_refused() {
    let good = request(ECHO, 5, b"some payload", b"");
    for at in [4, 6, 8, 10, 16, 24, 30, 39, 40, 44, 59, 60, 63] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        check_refused(&bad, ErrorKind::Protocol, "header was damaged");
    }
    let mut bad = good;
    bad[64 + 3] ^= 1;
    check_refused(
        &bad,
        ErrorKind::Protocol,
        "payload of a message (12 bytes, service 7, function 1) was damaged",
    );
}

#[test]
fn other_versions_kinds_and_statuses_are_refused() {
    let changed = |at: usize, value: u8| {
        let mut bytes = request(ECHO, 5, b"", b"");
        bytes[at] = value;
        resealed(bytes)
    };
    check_refused(
        &changed(4, 2),
        ErrorKind::Unsupported,
        "version 2 of the call protocol, this build speaks 1",
    );
    check_refused(&changed(6, 2), ErrorKind::Protocol, "reply where a request is wanted");
    check_refused(&changed(6, 9), ErrorKind::Protocol, "unknown kind 9");
    check_refused(&changed(12, 1), ErrorKind::Protocol, "reply where a request is wanted");
}

#[test]
fn announcements_beyond_the_limits_are_refused_unread() {
    let announcing = |at: usize, value: u64, width: usize| {
        let mut bytes = request(ECHO, 5, b"", b"");
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        resealed(bytes)
    };
    check_refused(
        &announcing(24, PAYLOAD_BYTES_MAX as u64 + 1, 4),
        ErrorKind::TooLarge,
        "268435457 payload bytes, beyond the limit of 268435456",
    );
    check_refused(&announcing(32, FRAME_BYTES_MAX + 1, 8), ErrorKind::TooLarge, "bulk bytes");
    check_refused(&announcing(28, FDS_PER_MESSAGE_MAX as u64 + 1, 2), ErrorKind::TooLarge, "descriptors");
    check_refused(&announcing(28, 1, 2), ErrorKind::Protocol, "announces 1 descriptors, 0 came");
}

/// The peer dies after each possible number of bytes of a call with payload and bulk, and (TCP) of
/// the handshake before it. A service that reads to the end never takes the part for the whole.
#[test]
fn a_peer_may_die_at_any_byte() {
    let bench = Bench::new();
    let whole = request(SLURP, 1, b"payload of twenty by", &pattern(30));
    let mut connections = 0;
    for carrier in STREAMS {
        for cut in 0..whole.len() {
            let mut raw = bench.raw(carrier);
            raw.send(&whole[..cut]);
            drop(raw);
            connections += 1;
            // One at a time keeps within the bound of connections.
            bench.probe.wait("detached", |state| state.detached.len() >= connections);
        }
    }
    let hello = request_to(0, 1, 1, &client_hello(), b"");
    for cut in 0..hello.len() {
        // Unproven callers are nobody's, so no detach tells of their end; the closed socket does.
        let mut raw = bench.raw_unproven();
        raw.send(&hello[..cut]);
        raw.socket.end_writing();
        raw.assert_closed();
    }
    bench.assert_all_detached(connections);
    bench.probe.wait("no part was taken for the whole", |state| state.slurps.iter().all(|whole| !whole));
    bench.assert_serves();
}

/// Long enough for a handshake on a busy machine, short enough to wait for.
const STALL: Duration = Duration::from_millis(500);

fn impatient_bench() -> Bench {
    Bench::with(ServerLimits { connections_max: 64, stall_timeout: STALL, ..ServerLimits::default() })
}

#[test]
fn a_peer_that_stalls_in_a_message_is_closed() {
    let bench = impatient_bench();
    let whole = request(SLURP, 1, b"payload of twenty by", &pattern(30));
    let mut stalling = Vec::new();
    for carrier in STREAMS {
        for cut in [1, 63, 64, 70, 84, 90, whole.len() - 1] {
            let mut raw = bench.raw(carrier);
            raw.send(&whole[..cut]);
            stalling.push(raw);
        }
    }
    // In the handshake, too, and before its first byte.
    let hello = request_to(0, 1, 1, &client_hello(), b"");
    for cut in [0, 1, 63, 64, 70] {
        let mut raw = bench.raw_unproven();
        raw.send(&hello[..cut]);
        stalling.push(raw);
    }
    stalling.iter_mut().for_each(Raw::assert_closed);
    bench.assert_all_detached(14);
}

#[test]
fn between_calls_a_connection_idles_as_long_as_it_likes() {
    let bench = impatient_bench();
    let mut connections = CARRIERS.map(|carrier| bench.connect(carrier));
    for wait in [3 * STALL, Duration::ZERO] {
        for connection in &mut connections {
            connection.call(SERVICE, ECHO, b"", &[]).unwrap();
        }
        std::thread::sleep(wait);
    }
}

#[test]
fn a_dribbled_header_runs_out_of_time() {
    let bench = impatient_bench();
    std::thread::scope(|scope| {
        for carrier in STREAMS {
            let mut raw = bench.raw(carrier);
            scope.spawn(move || {
                // Each byte comes in time; the header as a whole does not.
                let mut sent = 0;
                for byte in request(ECHO, 1, b"", b"") {
                    if raw.socket.write_all(&[byte]).is_err() {
                        break;
                    }
                    sent += 1;
                    std::thread::sleep(STALL / 10);
                }
                assert!(sent < 64 || raw.reply().is_none(), "{carrier:?}: the header was taken after all");
            });
        }
    });
    assert_eq!(bench.probe.calls(), 0);
}

#[test]
fn a_peer_that_does_not_read_is_closed() {
    let bench = impatient_bench();
    let mut raws = STREAMS.map(|carrier| bench.raw(carrier));
    for raw in &mut raws {
        raw.send(&request(SOURCE, 1, &(64u64 << 20).to_le_bytes(), b""));
    }
    bench.assert_all_detached(2);
}

#[test]
fn two_requests_at_once_are_answered_in_turn() {
    let bench = Bench::new();
    for carrier in STREAMS {
        let mut raw = bench.raw(carrier);
        raw.send(
            &[request(ECHO, 1, b"one", b""), request(SINK, 2, b"", b"bulk"), request(ECHO, 3, b"three", b"")]
                .concat(),
        );
        assert_eq!(raw.reply().unwrap(), (0, b"one".to_vec()));
        assert_eq!(raw.reply().unwrap().1[0], 4);
        assert_eq!(raw.reply().unwrap(), (0, b"three".to_vec()));
    }
}

/// Sends `bytes` on a fresh TCP connection: refused with `kind`, and no service hears of it.
fn check_unproven(bytes: &[u8], kind: ErrorKind, words: &str) {
    let bench = Bench::new();
    let mut raw = bench.raw_unproven();
    raw.send(bytes);
    let (found, message) = raw.error();
    assert_eq!(found, kind, "{message}");
    assert!(message.contains(words), "{message}");
    raw.socket.end_writing();
    raw.assert_closed();
    assert_eq!((bench.probe.calls(), bench.probe.detached().len()), (0, 0));
    bench.assert_serves();
}

#[test]
fn without_the_key_nothing_is_served() {
    let hello = request_to(0, 1, 1, &client_hello(), b"");
    let proof = |bytes: &[u8]| request_to(0, 2, 2, bytes, b"");
    check_unproven(&request(ECHO, 1, b"", b""), ErrorKind::Authentication, "begins with the proof");
    check_unproven(&proof(&[0; 32]), ErrorKind::Authentication, "begins with the proof");
    check_unproven(&request_to(0, 1, 1, b"short", b""), ErrorKind::Protocol, "ClientHello");
    check_unproven(&request_to(0, 1, 1, &client_hello(), b"bulk"), ErrorKind::Protocol, "bulk");
    check_unproven(&request_to(0, 1, 1, &[0; 8193], b""), ErrorKind::Protocol, "beyond the limit of 8192");
    let mut newer = client_hello();
    newer[..4].copy_from_slice(&[2, 0, 3, 0]);
    check_unproven(&request_to(0, 1, 1, &newer, b""), ErrorKind::Unsupported, "version 2 to 3");
    let bench = Bench::new();
    // A wrong proof, a second hello instead of one, a proof of another length.
    for second in [proof(&[7; 32]), hello.clone(), request(ECHO, 1, b"", b""), proof(&[7; 31])] {
        let mut raw = bench.raw_unproven();
        raw.send(&hello);
        assert_eq!(raw.reply().unwrap().0, 0);
        raw.send(&second);
        let (kind, message) = raw.error();
        assert!(matches!(kind, ErrorKind::Authentication | ErrorKind::Protocol), "{message}");
        raw.socket.end_writing();
        raw.assert_closed();
    }
    assert_eq!((bench.probe.calls(), bench.probe.detached().len()), (0, 0));
}

#[test]
fn a_proof_is_good_for_one_connection_and_one_side_only() {
    let bench = Bench::new();
    let hello = client_hello();
    let mut first = bench.raw_unproven();
    first.send(&request_to(0, 1, 1, &hello, b""));
    let server_hello = first.reply().unwrap().1;
    let good = proof(KEY, "client", &hello, &server_hello);
    // Replayed on a second connection, where the server's nonce is another one.
    let mut second = bench.raw_unproven();
    second.send(&request_to(0, 1, 1, &hello, b""));
    assert_ne!(second.reply().unwrap().1, server_hello);
    second.send(&request_to(0, 2, 2, &good, b""));
    assert_eq!(second.error().0, ErrorKind::Authentication);
    // The server's own proof sent back.
    let mut third = bench.raw_unproven();
    third.send(&request_to(0, 1, 1, &hello, b""));
    let answer = third.reply().unwrap().1;
    third.send(&request_to(0, 2, 2, &proof(KEY, "server", &hello, &answer), b""));
    assert_eq!(third.error().0, ErrorKind::Authentication);
    // Another identity than the one proven.
    let mut fourth = bench.raw_unproven();
    fourth.send(&request_to(0, 1, 1, &hello, b""));
    let answer = fourth.reply().unwrap().1;
    let mut root = hello.clone();
    root[36..40].copy_from_slice(&0u32.to_le_bytes());
    fourth.send(&request_to(0, 2, 2, &proof(KEY, "client", &root, &answer), b""));
    assert_eq!(fourth.error().0, ErrorKind::Authentication);
    // The first, at last, is let in by the very same proof.
    first.send(&request_to(0, 2, 2, &good, b""));
    assert_eq!(first.reply().unwrap(), (0, proof(KEY, "server", &hello, &server_hello)));
}

#[test]
fn a_wrong_key_is_named_on_both_sides() {
    let bench = Bench::new();
    let (kind, message) = bench.raw_unproven().shake_hands(b"some other key, long enough").unwrap_err();
    assert_eq!(kind, ErrorKind::Authentication);
    assert!(message.contains("cluster key of host raw") && message.contains("--key FILE"), "{message}");
}

/// Idle strangers take no place of those who know the key, and are not there for long.
#[test]
fn strangers_keep_nobody_out() {
    let proof_timeout = Duration::from_secs(3);
    let bench = Bench::with(ServerLimits {
        connections_max: 4,
        strangers_max: 8,
        proof_timeout,
        ..ServerLimits::default()
    });
    let mut strangers: Vec<_> = (0..100).map(|_| bench.raw_unproven()).collect();
    let mut holder = bench.connect(Carrier::Tcp);
    holder.call(SERVICE, ECHO, b"", &[]).unwrap();
    bench.connect(Carrier::Unix).call(SERVICE, ECHO, b"", &[]).unwrap();
    // Those that were not sent away for a newer one end by their deadline, whatever they dribble.
    strangers.iter_mut().for_each(Raw::assert_closed);
    holder.call(SERVICE, ECHO, b"", &[]).unwrap();
}
