//! Golden bytes: what is on the wire today stays readable, and stays what is written.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::fmt::Debug;
use zazen_core::{
    Credentials, FrameMeta, FrameNo, Layout, NameTemplate, Origin, Piece, RelPath, RunSet, Series, Source,
    Validator,
};
use zazen_wire::Message;
use zazen_wire::checksum::{FrameDigest, crc32c, frame_checksum};
use zazen_wire::frames::*;
use zazen_wire::handshake::{ClientHello, Proof, ServerHello, Side, proof_input};
use zazen_wire::header::{ErrorReply, Header, Kind};

const GOLDEN: &str = include_str!("golden.txt");

fn golden(name: &str) -> Vec<u8> {
    let line = GOLDEN.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    let hex = line.unwrap_or_else(|| panic!("{name} is not in golden.txt"));
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `message` is written as the golden bytes and read back from them; a newer peer's longer message is read,
/// a shorter one is not.
fn check<M: Message + PartialEq + Debug>(name: &str, message: M) {
    let bytes = golden(name);
    assert_eq!(hex(&message.encode()), hex(&bytes), "{name}");
    assert_eq!(M::decode(&bytes).unwrap(), message, "{name}");
    let longer = [&bytes[..], b"a field of the future"].concat();
    assert_eq!(M::decode(&longer).unwrap(), message, "{name}");
    for cut in 0..bytes.len() {
        let error = M::decode(&bytes[..cut]).expect_err(name);
        assert_eq!(error.kind(), zazen_core::ErrorKind::Protocol, "{name} cut at {cut}: {error}");
    }
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn meta(validator: Option<Validator>) -> FrameMeta {
    FrameMeta {
        number: FrameNo::new(7).unwrap(),
        length: 430_000,
        checksum: 0x0123_4567_89ab_cdef,
        validator,
        uid: 1000,
        gid: 100,
        mode: 0o640,
    }
}

fn dataset_info(layout: Layout, extent: Option<RunSet>, backing_ok: bool) -> DatasetInfo {
    let template = Series::of(&Layout::Files(NameTemplate::parse("f{n}").unwrap()));
    let dataset = path("sim1").series(&template).unwrap();
    let series = vec!["pos-{n}".to_owned()];
    DatasetInfo { handle: 3, dataset, layout: Some(layout), extent, backing_ok, series }
}

#[test]
fn datasets_and_holdings() {
    let ten = || RunSet::range(10, 19);
    let template = NameTemplate::parse("frame-{n:07}.dcd").unwrap();
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
    let pattern = Some("frame-{n:07}.dcd".into());
    let ask = OpenDataset { path: "/lustre/sim1".into(), want_extent: true, pattern, only_cached: true };
    check("OpenDataset", ask);
    check("DatasetInfo", dataset_info(Layout::Files(template), Some(ten()), true));
    let piece =
        Piece { path: path("traj.dcd"), first: 5, count: 100, step: 2, offset: 276, frame_bytes: 1000 };
    check("DatasetInfo pieces", dataset_info(Layout::Pieces(vec![piece]), None, false));
    let list = Layout::List(vec![path("cat.jpg"), path("dog.jpg")]);
    check("DatasetInfo list", dataset_info(list, None, true));
    check("Query", Query { handle: 3, begin: 1, end: 1 << 40, stride: 5 });
    check("Holdings", Holdings { native: ten(), alien: RunSet::new() });
    check("Fetch", Fetch { handle: 3, set: ten(), origin: Origin::Alien });
    let failed = vec![(9, 6, "server is down".into())];
    check("Fetched", Fetched { fetched: 1, present: 2, bytes: 3, failed });
    check("Evict", Evict { handle: 3, set: Some(ten()) });
    check("Evict all", Evict { handle: 3, set: None });
    check("Evicted", Evicted { frames: 5, bytes: 6 });
    check("Pin", Pin { handle: 3, pinned: true });
    check("Verify", Verify { handle: 3, from: 100, frames_max: 1000 });
    check("Verified", Verified { checked: 1000, bytes: 1 << 33, bad: vec![17, 19], next: Some(1100) });
    check("List", List { handle: 3, from: 100, rows_max: 50 });
    let source = Source { path: path("a"), offset: 0, length: None };
    let row = ListRow { meta: meta(None), origin: Origin::Native, source, path: "/c/a".into() };
    check("Listing", Listing { rows: vec![row], next: None });
}

#[test]
fn scans_and_pushes() {
    check("ScanOpen", ScanOpen { handle: 3, set: RunSet::range(10, 19) });
    check("ScanOpened", ScanOpened { scan: 4, cached: 99 });
    check("ScanNext", ScanNext { scan: 4, frames_max: 64, bytes_max: 1 << 26 });
    let cached = BatchEntry {
        number: 7,
        delivery: Delivery::Native,
        fd: Some(2),
        offset: 16,
        length: 430_000,
        checksum: Some(0xfedc_ba98_7654_3210),
        path: "/ssd/zazen/sim1/f7".into(),
        error: None,
        whole: true,
    };
    let failed = BatchEntry {
        number: 8,
        delivery: Delivery::Failed,
        fd: None,
        offset: 0,
        length: 0,
        checksum: None,
        path: String::new(),
        error: Some((2, "gone".into())),
        whole: false,
    };
    check("ScanBatch", ScanBatch { entries: vec![cached, failed] });
    check("ScanClose", ScanClose { scan: 4 });
    check("ReportBad", ReportBad { handle: 3, number: 7 });
    let source = Source { path: path("run/frame-0000007.dcd"), offset: 16, length: Some(430_000) };
    let validator = Some(Validator { size: 430_000, mtime_ns: -5, ctime_ns: 6, inode: 77, unsettled: true });
    let push = |series| {
        let (source, meta) = (source.clone(), meta(validator));
        Push { dataset: "/lustre/sim1".into(), source, meta, series }
    };
    check("Push", push(Series::Pieces));
    check("Push of a file", push(Series::Files(NameTemplate::parse("run/frame-{n}.dcd").unwrap())));
    check("Pushed", Pushed::AlreadyHere);
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
    assert_eq!(hex(&proof_input(Side::Client, b"hello", b"answer")), hex(&golden("proof_input")));
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
    let bytes: [u8; 64] = golden("Header").try_into().unwrap();
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
