//! The decoders. Each target uses the first bytes of its input for choices of its own.

use zazen_core::limits;
use zazen_frames::messages::*;
use zazen_frames::scan_record::*;
use zazen_store::record::{FileHeader, FileKind, NameEntry, RECORD_BYTES, Record};
use zazen_stream::packet;
use zazen_stream::ring::{Arrival, Deal, Pressure, Ring, Shape, Take};
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;
use zazen_wire::control::{Examine, NodeInfo};
use zazen_wire::handshake::{ClientHello, Proof, ServerHello};
use zazen_wire::header::{ErrorReply, HEADER_BYTES, Header, MAGIC};
use zazen_wire::plugins::*;
use zazen_wire::shm::{self, SLOT_BYTES, Span};
use zazen_wire::{pack, runset_codec};

/// Takes a number of bytes from the front, with zeros if there are too few.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut taken = [0; N];
    let count = N.min(bytes.len());
    taken[..count].copy_from_slice(&bytes[..count]);
    *bytes = &bytes[count..];
    taken
}

pub(crate) fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(&message.encode()).expect("what was encoded decodes");
        assert_eq!(again, message);
    }
}

pub(crate) fn pick(checks: &[fn(&[u8])], mut bytes: &[u8]) {
    let [which] = take(&mut bytes);
    checks[usize::from(which) % checks.len()](bytes);
}

/// The call header. The CRC is corrected for every second input; otherwise the code behind it is
/// never reached.
pub(crate) fn header(mut input: &[u8]) {
    let [reseal] = take(&mut input);
    let mut bytes: [u8; HEADER_BYTES] = take(&mut input);
    if reseal & 1 == 1 {
        bytes[..4].copy_from_slice(&MAGIC);
        let crc = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    let _ = Header::call_of(&bytes);
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()).expect("what was encoded decodes"), header);
    }
}

/// The messages of the control and frames services.
pub(crate) fn messages(input: &[u8]) {
    let checks: &[fn(&[u8])] = &[
        check::<NodeInfo>,
        check::<Examine>,
        check::<OpenDataset>,
        check::<DatasetInfo>,
        check::<Query>,
        check::<Holdings>,
        check::<ScanOpen>,
        check::<ScanOpened>,
        check::<ScanNext>,
        check::<BatchEntry>,
        check::<ScanBatch>,
        check::<ScanClose>,
        check::<CloseDataset>,
        check::<ReadMany>,
        check::<Push>,
        check::<Pushed>,
        check::<PushMany>,
        check::<PushFate>,
        check::<PushedMany>,
        check::<ReportBad>,
        check::<Fetch>,
        check::<Fetched>,
        check::<Evict>,
        check::<Evicted>,
        check::<Pin>,
        check::<Verify>,
        check::<Verified>,
        check::<List>,
        check::<ListRow>,
        check::<Listing>,
        check::<GetBlock>,
        check::<GivenBlock>,
        check::<Bring>,
        check::<GetPiece>,
        check::<GivenPiece>,
        check::<AskPlaces>,
        check::<Places>,
        check::<OpenRead>,
        check::<OpenedRead>,
        check::<AskNotes>,
        check::<AskReadNotes>,
        check::<ScanNotes>,
        check::<ScanRecord>,
        check::<AskRecords>,
        check::<Records>,
    ];
    pick(checks, input);
}

/// The messages of the TCP handshake and the error reply: what a stranger can make either end
/// decode.
pub(crate) fn handshake(input: &[u8]) {
    pick(&[check::<ClientHello>, check::<ServerHello>, check::<Proof>, check::<ErrorReply>], input);
}

/// Packed bytes.
pub(crate) fn pack(input: &[u8]) {
    if let Ok(bytes) = pack::unpack(input) {
        assert!(bytes.len() <= 8 * input.len() + 8);
        let mut again = Vec::new();
        pack::pack(&bytes, &mut again);
        assert!(pack::unpack(&again).expect("what was packed unpacks") == bytes);
    }
}

/// The run-set codec.
pub(crate) fn runset(input: &[u8]) {
    if let Ok((set, used)) = runset_codec::decode_prefix(input) {
        assert!(used <= input.len());
        assert!(runset_codec::decode(&input[..used]).expect("the prefix is a set") == set);
        let mut again = Vec::new();
        runset_codec::encode(&set, &mut again);
        assert!(runset_codec::decode(&again).expect("what was encoded decodes") == set);
    }
}

/// What a store reads from its disk: file headers, log records, names. Records with a checksum that
/// is right are reached through the store's target.
pub(crate) fn record(mut input: &[u8]) {
    let id = u128::from_le_bytes(take(&mut input));
    let index = u64::from_le_bytes(take(&mut input));
    for kind in [FileKind::NativeLog, FileKind::AlienLog, FileKind::Names] {
        if let Ok(header) = FileHeader::decode(input, kind) {
            assert_eq!(FileHeader::decode(&header.encode(), kind).expect("what was encoded decodes"), header);
        }
    }
    if let Some((first, _)) = input.split_first_chunk::<RECORD_BYTES>()
        && let Some(record) = Record::decode(first, id, index)
    {
        assert_eq!(Record::decode(&record.encode(id, index), id, index).as_ref(), Some(&record));
        assert_eq!(Record::decode(&record.encode(id, index), id, index ^ 1), None);
    }
    if let Some(entry) = NameEntry::decode(input, id) {
        assert!(entry.path.len() <= limits::PATH_BYTES_MAX);
        assert_eq!(NameEntry::decode(&entry.encode(id), id), Some(entry));
    }
}

/// Shared memory's records, tables and offers. What decodes must encode to the same bytes, and be
/// within its bounds.
pub(crate) fn shm(mut input: &[u8]) {
    let slot: [u8; SLOT_BYTES] = take(&mut input);
    let mut number = || u64::from_le_bytes(take(&mut input));
    let (pool, total) = (Span { at: number(), bytes: number() }, number());
    if let Ok((record, header)) = shm::Record::decode(&slot, 64) {
        let again = shm::Record::decode(&record.encode(&header), 64).expect("what was encoded decodes");
        assert_eq!(again, (record, header));
        assert!((1..=64).contains(&record.slots));
    }
    for entry in shm::TableEntry::decode_table(input, pool, total).into_iter().flatten() {
        if let shm::TableEntry::Pool(span) = entry {
            let end = |span: &Span| u128::from(span.at) + u128::from(span.bytes);
            assert!(span.at >= pool.at && end(&span) <= end(&pool));
        }
    }
    if let Ok(offer) = shm::Offer::decode(input) {
        let lane = offer.lane().span();
        assert!(u128::from(lane.at) + u128::from(lane.bytes) <= u128::from(offer.region_bytes));
        assert_eq!(shm::Offer::decode(&offer.encode()).expect("what was encoded decodes"), offer);
    }
}

fn call_head(bytes: &[u8]) {
    if let Ok((head, of_segments, at)) = CallHead::take(bytes) {
        let mut again = Vec::new();
        head.put(sizes(of_segments), &mut again);
        assert_eq!(again.len(), at);
        assert_eq!(CallHead::take(&again).expect("what was put is taken"), (head, of_segments, at));
    }
}

fn answer_head(bytes: &[u8]) {
    if let Ok((head, of_segments, at)) = AnswerHead::take(bytes) {
        let mut again = vec![0; at];
        head.write_to(sizes(of_segments), &mut again);
        assert_eq!(AnswerHead::take(&again).expect("what was written is taken"), (head, of_segments, at));
    }
}

/// The messages and heads of the plug-ins service.
pub(crate) fn plugins(input: &[u8]) {
    let checks: &[fn(&[u8])] = &[
        check::<About>,
        check::<Pong>,
        check::<Fate>,
        check::<Cancel>,
        check::<OpenPlugin>,
        check::<OpenPluginFor>,
        check::<PluginOpened>,
        call_head,
        answer_head,
    ];
    pick(checks, input);
}

const SHAPE: Shape = Shape {
    stations: 3,
    packets: 2,
    slots: 5,
    ranks: 2,
    deal: Deal::Turns,
    pressure: Pressure::DropOldest,
    deadline_ns: 4,
    silence_ns: 1000,
    first: None,
    count: None,
};

/// What strangers can send to a stream's port: any headers, in any order. The counters add up after
/// each.
pub(crate) fn stream(mut input: &[u8]) {
    let [is_free] = take(&mut input);
    let deal = if is_free & 1 == 1 { Deal::Free } else { Deal::Turns };
    let mut ring = Ring::new(Shape { deal, ..SHAPE });
    let mut now_ns = 0;
    while !input.is_empty() {
        let mut bytes: [u8; packet::HEADER_BYTES] = take(&mut input);
        let [then] = take(&mut input);
        now_ns += 1;
        // Without this, the code behind the magic is never reached.
        bytes[..4].copy_from_slice(b"ZST1");
        if let Some(header) = packet::Header::take(&bytes) {
            assert_eq!(header.put(), bytes);
            let station = u32::from(header.station) % SHAPE.stations;
            if header.is_end {
                ring.station_ended(station, header.time, now_ns);
            } else if let Arrival::Store { slot, index } = ring.arrive(station, header.time, now_ns) {
                assert!(slot < SHAPE.slots && index < SHAPE.stations * SHAPE.packets);
                ring.stored(slot, 1);
            }
        }
        if then & 1 == 1
            && let Take::Block { block, .. } = ring.take(u32::from(then >> 1) % SHAPE.ranks, now_ns)
        {
            ring.returned(block, then & 4 == 0);
        }
        ring.check().expect("the counters add up");
    }
    ring.close();
    ring.check().expect("the counters add up");
}

/// The stub generator: no header makes it panic, and each mistake has a place within the text.
pub(crate) fn stubs(mut input: &[u8]) {
    let [marked] = take(&mut input);
    let text = String::from_utf8_lossy(input);
    let marker = "/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n";
    let text = if marked & 1 == 1 { format!("{marker}{text}") } else { text.into_owned() };
    match zazen_stubs::generate("fuzz.h", &text) {
        Ok(output) => assert!(!output.files.is_empty()),
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
}

/// A dataset's manifest. Its cost is bounded, and each frame that it names has a source.
pub(crate) fn manifest(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(layout) = zazen_backing::dataset::parse_manifest(text, "zazen.toml") {
        for number in [0, 1, 5, 1000, limits::FRAME_NO_MAX] {
            let number = zazen_core::FrameNo::new(number).expect("within the limit");
            let _ = layout.source(number);
        }
    }
}

/// A frame of an XTC trajectory. The caller's memory is for as many atoms as the header says, if
/// that many could be in a frame of this length: an atom takes at least three bits.
pub(crate) fn xtc(input: &[u8]) {
    let Ok(header) = zazen_xtc::header(input) else { return };
    if header.atoms <= 8 * input.len() {
        let _ = zazen_xtc::decode(input, &mut vec![0.0; 3 * header.atoms], 10.0);
    }
}

/// A trajectory file of any format, and the index of one. Every frame that is told lies in the
/// file, behind the one before.
pub(crate) fn trajectory(mut input: &[u8]) {
    let [which, look] = take(&mut input);
    if let Ok(index) = zazen_trajectory::FileIndex::decode(input) {
        let _ = index.table.get(index.table.count() / 2);
    }
    h5md(input);
    let formats = zazen_core::trajectory::Format::ALL;
    let told = formats[usize::from(which) % formats.len()];
    let format = zazen_trajectory::sniff(input, "x.gro").unwrap_or(told);
    let (size, mut least) = (input.len() as u64, 1 + usize::from(look));
    let mut scanner = zazen_trajectory::Scanner::new(format);
    let mut end = 0;
    for _ in 0..4 * input.len() + 64 {
        let rest = &input[(scanner.position() as usize).min(input.len())..];
        match scanner.step(&rest[..rest.len().min(least)], size) {
            Ok(zazen_trajectory::Step::More(wanted)) => least = least.max(wanted),
            Ok(zazen_trajectory::Step::Header) => end = scanner.begin(),
            Ok(zazen_trajectory::Step::Frame(length)) => end += length,
            Ok(zazen_trajectory::Step::Moved) => {}
            Ok(zazen_trajectory::Step::End) | Err(_) => {
                assert!(end <= size, "frames end at {end} of {size}");
                return;
            }
        }
    }
    panic!("the scan does not end");
}

/// The metadata of an HDF5 file. Every frame that is told lies in the file.
fn h5md(input: &[u8]) {
    let mut read = |offset: u64, count: usize| {
        let rest = usize::try_from(offset).ok().and_then(|from| input.get(from..)).unwrap_or_default();
        Ok(rest[..rest.len().min(count)].to_vec())
    };
    let Ok(found) = zazen_trajectory::find_h5md(&mut read, input.len() as u64) else { return };
    let count = found.table.count();
    for index in (0..count.min(100)).chain(count.checked_sub(1)) {
        let (offset, length) = found.table.get(index).expect("a frame that is counted");
        assert!(length > 0 && offset + length <= input.len() as u64, "frame {index} at {offset}, {length}");
    }
}

/// The daemon's settings file.
pub(crate) fn config(input: &[u8]) {
    use clap::Parser;
    use zazend::config::{Args, Config};
    thread_local! {
        // The flags are parsed once: that takes longer than to read most inputs.
        static FILE: (tempfile::NamedTempFile, Args) = {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            let flags = ["zazend".as_ref(), "--config".as_ref(), file.path().as_os_str()];
            let args = Args::parse_from(flags);
            (file, args)
        };
    }
    FILE.with(|(file, args)| {
        std::fs::write(file.path(), input).expect("a temporary file can be written");
        let _ = Config::assemble(args);
    });
}
