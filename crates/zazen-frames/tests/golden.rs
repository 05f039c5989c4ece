//! Golden bytes: what is on the wire today stays readable, and stays what is written.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::fmt::Debug;
use zazen_core::{
    Blocks, Error, ErrorKind, FrameMeta, FrameNo, Layout, NameTemplate, Origin, Piece, RelPath, RunSet,
    Series, Source, Validator,
};
use zazen_frames::absence::Absence;
use zazen_frames::messages::*;
use zazen_frames::scan_record::*;
use zazen_wire::Message;
use zazen_wire::contract::check_golden;

const GOLDEN: &str = include_str!("golden.txt");

fn check<M: Message + PartialEq + Debug>(name: &str, message: M) {
    check_golden(GOLDEN, name, message);
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
    let pattern = Some("frame-{n:07}.dcd".into());
    let ask = OpenDataset { path: "/lustre/sim1".into(), want_extent: true, pattern, only_cached: true };
    check("OpenDataset", ask);
    check("DatasetInfo", dataset_info(Layout::Files(template), Some(ten()), true));
    let piece =
        Piece { path: path("traj.dcd"), first: 5, count: 100, step: 2, offset: 276, frame_bytes: 1000 };
    check("DatasetInfo pieces", dataset_info(Layout::Pieces(vec![piece]), None, false));
    let list = Layout::List(vec![path("cat.jpg"), path("dog.jpg")].into());
    check("DatasetInfo list", dataset_info(list, None, true));
    let version = Validator { size: 10_000, mtime_ns: 5, ctime_ns: 6, inode: 7, unsettled: false };
    let blocks = Layout::Blocks(Blocks { path: path("field.h5"), block_bytes: 4096, version });
    check("DatasetInfo blocks", dataset_info(blocks, None, true));
    let pattern = "field.h5{n*4096}".to_owned();
    let open = OpenDataset {
        path: "/lustre/sim1".into(),
        want_extent: false,
        pattern: Some("field.h5{n*4096}".into()),
        only_cached: false,
    };
    check("OpenRead", OpenRead { open, closes: Some(7), blocks_max: 1, bytes_max: 1 << 20 });
    check("GetBlock", GetBlock { dataset: "/lustre/sim1".into(), pattern, version, number: 9 });
    let validator = Validator { unsettled: true, ..version };
    check("GivenBlock", GivenBlock { validator, checksum: 0x0123_4567_89ab_cdef });
    check("Query", Query { handle: 3, begin: 1, end: 1 << 40, stride: 5 });
    check("Holdings", Holdings { native: ten(), alien: RunSet::new() });
    check("Fetch", Fetch { handle: 3, set: ten(), origin: Origin::Alien });
    let failed = vec![(9, 6, "server is down".into())];
    check("Fetched", Fetched { fetched: 1, present: 2, bytes: 3, failed });
    check("Bring", Bring { handle: 3, set: ten(), holder: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10 });
    let pattern = Some("s{t}/b{b}.vtu".to_owned());
    let ask = GetPiece { dataset: "/lustre/sim1".into(), pattern, number: 9, offset: 1 << 24, length: 77 };
    check("GetPiece", ask);
    let source = Source { path: path("a"), offset: 0, length: None };
    check("GivenPiece", GivenPiece { meta: meta(Some(validator)), source: source.clone() });
    let (native_frames, native_bytes, alien_frames, alien_bytes) = (3, 4, 5, 6);
    let ask = AskPlaces {
        handle: 3,
        number: 9,
        frames_max: 2048,
        native_frames,
        native_bytes,
        alien_frames,
        alien_bytes,
    };
    check("AskPlaces", ask);
    let placed =
        PlacedFrame { meta: meta(Some(version)), origin: Origin::Alien, source, file: 1, offset: 64 };
    let paths = vec!["/cache/0".to_owned(), "/cache/1".to_owned()];
    let frames = vec![placed];
    check("Places", Places { directory: "/lustre/sim1".into(), compares: true, paths, frames });
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
    let batch = ScanBatch { entries: vec![cached, failed] };
    check("ScanBatch", batch.clone());
    let version = Validator { size: 10_000, mtime_ns: 5, ctime_ns: 6, inode: 7, unsettled: false };
    let blocks = Layout::Blocks(Blocks { path: path("field.h5"), block_bytes: 4096, version });
    check("OpenedRead", OpenedRead { info: dataset_info(blocks, None, true), batch });
    check("ScanClose", ScanClose { scan: 4 });
    check("CloseDataset", CloseDataset { handle: 7 });
    check("ReadMany", ReadMany { handle: 3, set: RunSet::range(10, 19), bytes_max: 1 << 26 });
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
    let of_a_file = push(Series::Files(NameTemplate::parse("run/frame-{n}.dcd").unwrap()));
    check("PushMany", PushMany { pushes: vec![push(Series::Pieces), of_a_file] });
    let refused = Error::new(ErrorKind::NoSpace, "no room");
    let fates = [Ok(Pushed::AlreadyHere), Err(refused)].iter().map(PushFate::of).collect();
    check("PushedMany", PushedMany { fates });
}

fn scan_record() -> ScanRecord {
    let set = RunSet::range(10, 19);
    let absent = Absent {
        why: Absence::Evicted,
        at_ms: 1_700_000_000_000,
        wanted: "/lustre/sim2".into(),
        count: 10,
        set,
    };
    ScanRecord {
        dataset: "/lustre/sim1".into(),
        series: "sim1/.zazen@pos-{n}".into(),
        node: "n0".into(),
        node_id: 7,
        host: "node7".into(),
        job: "42".into(),
        pid: 99,
        rank: 1,
        ranks: 4,
        assigned: true,
        whole: true,
        began_ms: 1_700_000_060_000,
        wall_ns: 28,
        spent_ns: (1..=7).collect(),
        near_frames: 90,
        near_bytes: 900,
        far_frames: 10,
        far_bytes: 100,
        failed_frames: 0,
        store_rate: 5,
        store_rate_best: 50,
        absent: vec![absent],
    }
}

#[test]
fn records_of_scans() {
    let record = scan_record();
    check("AskNotes", AskNotes { scan: 4 });
    check("AskReadNotes", AskReadNotes { handle: 5 });
    let notes = ScanNotes {
        absent: record.absent.clone(),
        store_rate: 5,
        store_rate_best: 50,
        peer_ns: 6,
        store_ns: 7,
    };
    check("ScanNotes", notes);
    check("ScanRecord", record.clone());
    check("AskRecords", AskRecords { handle: 3 });
    let records = Records {
        node: "n0".into(),
        node_id: 7,
        now_ms: 1_700_000_100_000,
        up_ms: 5_000,
        native: RunSet::range(10, 19),
        removed: record.absent.clone(),
        records: vec![KeptRecord { uid: 1000, record }],
    };
    check("Records", records);
}
