//! Decoders against the world: any bytes give a message or an error, what is read is written the
//! same, and memory stays in proportion to the input.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::cell::Cell;
use zazen_core::{
    ErrorKind, FrameMeta, FrameNo, NameTemplate, Origin, RelPath, Run, RunSet, Series, Source, Validator,
};
use zazen_frames::messages::*;
use zazen_frames::scan_record::*;
use zazen_wire::Message;
use zazen_wire::codec::Writer;
use zazen_wire::contract::{check_bytes, golden_messages};

/// Counts what each thread has allocated and not freed, and the most that ever was.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Allocation) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as usize
}

fn check_all(bytes: &[u8]) {
    macro_rules! all {
        ($($message:ty),* $(,)?) => { $(check_bytes::<$message>(bytes);)* };
    }
    all!(
        OpenDataset,
        DatasetInfo,
        Query,
        Holdings,
        ScanOpen,
        ScanOpened,
        ScanNext,
        BatchEntry,
        ScanBatch,
        ScanClose,
        CloseDataset,
        ReadMany,
        Push,
        Pushed,
        PushMany,
        PushFate,
        PushedMany,
        ReportBad,
        Fetch,
        Fetched,
        Bring,
        GetPiece,
        GivenPiece,
        AskPlaces,
        PlacedFrame,
        Places,
        OpenRead,
        OpenedRead,
        Evict,
        Evicted,
        Pin,
        Verify,
        Verified,
        List,
        ListRow,
        Listing,
        Absent,
        AskNotes,
        AskReadNotes,
        ScanNotes,
        ScanRecord,
        AskRecords,
        KeptRecord,
        Records,
    );
}

/// Every golden message, as a beginning for mutations.
fn golden() -> Vec<Vec<u8>> {
    golden_messages(include_str!("golden.txt")).map(|(_, bytes)| bytes).collect()
}

fn run_set() -> impl Strategy<Value = RunSet> {
    prop::collection::vec((0u64..1 << 39, 1u64..1000, 1u64..1000), 0..6).prop_map(|runs| {
        RunSet::from_runs(runs.into_iter().map(|(first, count, step)| Run::new(first, count, step).unwrap()))
    })
}

fn rel_path() -> impl Strategy<Value = RelPath> {
    "[a-z0-9é]{1,8}(/[a-z0-9._-]{1,8}x){0,3}".prop_map(|text| RelPath::new(&text).unwrap())
}

fn frame_meta() -> impl Strategy<Value = FrameMeta> {
    let validator = prop::option::of(any::<(u64, i64, i64, u64, bool)>()).prop_map(|found| {
        found.map(|(size, mtime_ns, ctime_ns, inode, unsettled)| Validator {
            size,
            mtime_ns,
            ctime_ns,
            inode,
            unsettled,
        })
    });
    (0u64..=1 << 40, 0u64..=1 << 40, any::<u64>(), validator, any::<[u32; 3]>()).prop_map(
        |(number, length, checksum, validator, [uid, gid, mode])| FrameMeta {
            number: FrameNo::new(number).unwrap(),
            length,
            checksum,
            validator,
            uid,
            gid,
            mode,
        },
    )
}

fn source() -> impl Strategy<Value = Source> {
    (rel_path(), 0u64..1 << 60, prop::option::of(0u64..1 << 60)).prop_map(|(path, offset, length)| Source {
        path,
        offset,
        length,
    })
}

fn origin() -> impl Strategy<Value = Origin> {
    prop_oneof![Just(Origin::Native), Just(Origin::Alien)]
}

fn entry() -> impl Strategy<Value = BatchEntry> {
    let delivery = prop::sample::select(vec![
        Delivery::Native,
        Delivery::Alien,
        Delivery::Fetched,
        Delivery::ReadThrough,
        Delivery::Inline,
        Delivery::Failed,
    ]);
    let numbers = (0u64..=1 << 40, any::<u64>(), any::<u64>(), prop::option::of(any::<u64>()));
    let error = (prop::option::of((any::<u32>(), ".{0,20}")), any::<bool>());
    (numbers, delivery, prop::option::of(any::<u16>()), "/[^\0]{0,20}", error).prop_map(
        |((number, offset, length, checksum), delivery, fd, path, (error, whole))| BatchEntry {
            number,
            delivery,
            fd,
            offset,
            length,
            checksum,
            path,
            error,
            whole,
        },
    )
}

fn series() -> impl Strategy<Value = Series> {
    let files = "[a-z/]{1,5}x".prop_map(|prefix| {
        Series::Files(
            NameTemplate::new(prefix.trim_start_matches('/').replace("//", "").as_str(), 0, "").unwrap(),
        )
    });
    prop_oneof![files, Just(Series::Pieces), Just(Series::List), any::<u64>().prop_map(Series::Blocks)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_all(&bytes);
    }

    #[test]
    fn damaged_messages_are_a_message_or_an_error(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let golden = golden();
        let mut bytes = golden[pick.index(golden.len())].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check_all(&bytes);
    }

    #[test]
    fn messages_come_back_as_they_were(
        (native, alien) in (run_set(), run_set()),
        (meta, source, origin) in (frame_meta(), source(), origin()),
        entries in prop::collection::vec(entry(), 0..5),
        dataset in "/[^\0]{0,30}",
        next in prop::option::of(any::<u64>()),
        series in series(),
    ) {
        let holdings = Holdings { native: native.clone(), alien };
        prop_assert_eq!(Holdings::decode(&holdings.encode()).unwrap(), holdings);
        let push = Push { dataset: dataset.clone(), source: source.clone(), meta: meta.clone(), series };
        prop_assert_eq!(Push::decode(&push.encode()).unwrap(), push);
        let batch = ScanBatch { entries };
        prop_assert_eq!(ScanBatch::decode(&batch.encode()).unwrap(), batch);
        let placed = PlacedFrame { meta: meta.clone(), origin, source: source.clone(), file: 3, offset: 9 };
        let (directory, paths) = (dataset.clone(), vec![dataset.clone(), dataset.clone()]);
        let frames = vec![placed.clone(), placed];
        let places = Places { directory, compares: next.is_some(), paths, frames };
        prop_assert_eq!(Places::decode(&places.encode()).unwrap(), places);
        let row = ListRow { meta, origin, source, path: dataset };
        let listing = Listing { rows: vec![row.clone(), row], next };
        prop_assert_eq!(Listing::decode(&listing.encode()).unwrap(), listing);
        let fetch = Fetch { handle: 1, set: native, origin };
        prop_assert_eq!(Fetch::decode(&fetch.encode()).unwrap(), fetch);
    }
}

/// A message may claim any count or length; memory follows the bytes that are there.
#[test]
fn announcements_cost_nothing() {
    let mut huge = Writer::new();
    huge.u64(0);
    huge.u64(0);
    huge.u32(u32::MAX);
    for tail in [0usize, 1000, 60_000] {
        let mut bytes = vec![0xff; 4];
        bytes.resize(4 + tail, 0);
        let peak = peak_of(|| {
            check_all(&bytes);
            assert!(ScanBatch::decode(&bytes).is_err() && Listing::decode(&bytes).is_err());
        });
        assert!(peak <= 16 * bytes.len() + (64 << 10), "{peak} bytes for {} of input", bytes.len());
    }
    // The densest honest message: rows of the smallest size.
    let mut dense = Writer::new();
    let rows = 5000;
    dense.u32(rows);
    for _ in 0..rows {
        dense.record(|writer| {
            writer.u64(1);
            writer.u8(5);
            writer.bool(false);
            writer.raw(&[0; 16]);
            writer.bool(false);
            writer.text("");
            writer.bool(false);
            writer.bool(false);
        });
    }
    let bytes = dense.into_bytes();
    let peak = peak_of(|| assert_eq!(ScanBatch::decode(&bytes).unwrap().entries.len(), rows as usize));
    assert!(peak <= 16 * bytes.len(), "{peak} bytes for {} of input", bytes.len());
    assert!(Verified::decode(&huge.into_bytes()).is_err());
}

fn refused<M: Message>(bytes: &[u8], kind: ErrorKind, words: &str) {
    let error = M::decode(bytes).err().expect("refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn limits_are_named() {
    let push = |dataset: &str, path: &str, number: u64, length: u64| {
        let mut writer = Writer::new();
        writer.text(dataset);
        writer.record(|writer| {
            writer.text(path);
            writer.u64(0);
            writer.bool(false);
        });
        writer.record(|writer| {
            writer.u64(number);
            writer.u64(length);
            writer.u64(0);
            writer.bool(false);
            writer.raw(&[0; 12 + 17]);
        });
        writer.series(&Series::Pieces);
        writer.into_bytes()
    };
    Push::decode(&push("/d", "f", 1 << 40, 1 << 40)).unwrap();
    refused::<Push>(&push("/d", "f", (1 << 40) + 1, 0), ErrorKind::TooLarge, "limit of 2^40");
    refused::<Push>(
        &push("/d", "f", 1, (1 << 40) + 1),
        ErrorKind::TooLarge,
        "beyond the limit of 1099511627776",
    );
    refused::<Push>(&push("/d", "../f", 1, 1), ErrorKind::InvalidArgument, "`..`");
    refused::<Push>(&push("/d\0", "f", 1, 1), ErrorKind::InvalidArgument, "NUL");
    refused::<Push>(&push(&"d".repeat(8193), "f", 1, 1), ErrorKind::TooLarge, "beyond the limit of 8192");
    let beyond = ScanOpen { handle: 1, set: RunSet::range(5, (1 << 40) + 1) };
    refused::<ScanOpen>(&beyond.encode(), ErrorKind::TooLarge, "frame number 1099511627777");
    refused::<Pushed>(&[2], ErrorKind::Protocol, "unknown fate 2");
    refused::<Pin>(&[0, 0, 0, 0, 2], ErrorKind::Protocol, "neither 0 nor 1");
}
