//! Golden bytes: what is on the wire today stays readable, and stays what is written.

use std::fmt::Debug;
use zazen_core::Credentials;
use zazen_wire::Message;
use zazen_wire::checksum::{FrameDigest, crc32c, frame_checksum};
use zazen_wire::contract::{check_golden, golden_message, hex};
use zazen_wire::control::{Examine, NodeInfo};
use zazen_wire::handshake::{ClientHello, Proof, ServerHello, Side, proof_input};
use zazen_wire::header::{ErrorReply, Header, Kind};

const GOLDEN: &str = include_str!("../golden.txt");

fn check<M: Message + PartialEq + Debug>(name: &str, message: M) {
    check_golden(GOLDEN, name, message);
}

#[test]
fn control() {
    check(
        "NodeInfo",
        NodeInfo {
            node: 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f,
            name: "n1".into(),
            version: "0.1.0".into(),
            backing_roots: vec!["/lustre".into(), "/nfs".into()],
            cache_root: "/ssd/zazen".into(),
            readers: 8,
        },
    );
    check("Examine", Examine { disk_bytes: 64 << 20, answer_bytes: 65_536, ballast: vec![1, 2, 3] });
}

#[test]
fn handshake_and_errors() {
    let nonce = |from: u8| std::array::from_fn(|at| from + at as u8);
    let credentials = Credentials { uid: 1000, gid: 100, groups: vec![4, 24] };
    let host = "node-7".into();
    check(
        "ClientHello",
        ClientHello { version_min: 1, version_max: 1, nonce: nonce(0), credentials, pid: 777, host },
    );
    check("ServerHello", ServerHello { version: 1, nonce: nonce(32), host: "node-1".into() });
    check("Proof", Proof { mac: [0xa5; 32] });
    check("ErrorReply", ErrorReply { message: "no such dataset".into() });
    assert_eq!(
        hex(&proof_input(Side::Client, b"hello", b"answer")),
        hex(&golden_message(GOLDEN, "proof_input"))
    );
    assert_ne!(
        proof_input(Side::Server, b"hello", b"answer"),
        proof_input(Side::Client, b"hello", b"answer")
    );
    assert_ne!(proof_input(Side::Client, b"ab", b"c"), proof_input(Side::Client, b"a", b"bc"));
}

#[test]
fn header() {
    let header = Header {
        kind: Kind::Reply,
        service: 2,
        function: 4,
        status: 12,
        call: 0x1122_3344_5566_7788,
        payload_bytes: 4,
        fd_count: 3,
        bulk_bytes: 430_000,
        payload_crc: crc32c(b"ping"),
        flags: 0,
        room: None,
    };
    let bytes: [u8; 64] = golden_message(GOLDEN, "Header").try_into().unwrap();
    assert_eq!(hex(&header.encode()), hex(&bytes));
    assert_eq!(Header::decode(&bytes).unwrap(), header);
    assert_eq!(Header::call_of(&bytes), header.call);
    header.check_payload(b"ping").unwrap();
    assert!(header.check_payload(b"pong").is_err() && header.check_payload(b"pin").is_err());
    // Any flipped bit is noticed.
    for bit in 0..64 * 8 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::decode(&bad).is_err(), "bit {bit}");
        assert_eq!(Header::call_of(&bad), 0, "bit {bit}");
    }
}

/// The catalogue's check values; pieces give what the whole gives.
#[test]
fn checksums() {
    assert_eq!(frame_checksum(b"123456789"), 0xae8b_1486_0a79_9888);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(frame_checksum(b""), 0);
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7 + (at >> 9)) as u8).collect();
    for cut in [0, 1, 255, 256, 4096, 99_999, 100_000] {
        let mut digest = FrameDigest::default();
        digest.update(&bytes[..cut]);
        digest.update(&bytes[cut..]);
        assert_eq!(digest.finish(), frame_checksum(&bytes), "cut at {cut}");
    }
}
