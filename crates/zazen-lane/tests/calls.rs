//! A client's calls against a daemon's end written from `docs/formats/shm.md`, both in one thread:
//! every way that bytes travel, and a daemon that lies.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use zazen_lane::{
    Broken, Client, End, Geometry, Port, Receiver, Request, Rouse, Source, System, Target, View,
};
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::shm::{ENTRY_BYTES, Offer, Op, PartPlace, REGION_VERSION, Record, Span, TableEntry};

/// A system in which nobody sleeps, and each look at the clock takes a microsecond.
#[derive(Default)]
struct Alone(Cell<u64>);

impl System for Alone {
    fn sleep_on(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        false
    }
    fn wake(&self, _: &AtomicU32) {}
    fn give_way(&self) {}
    fn cpu(&self) -> u32 {
        1
    }
    fn now(&self) -> Duration {
        self.0.set(self.0.get() + 1);
        Duration::from_micros(self.0.get())
    }
}

#[derive(Clone)]
#[repr(align(4096))]
struct Page(#[allow(dead_code)] [u8; 4096]);

/// A region in this process's own memory.
struct Region {
    _pages: Vec<Page>,
    view: View,
    offer: Offer,
}

impl Region {
    fn new() -> Region {
        let shape = Geometry { lanes: 1, slots: 64, eager_bytes: 8192, pool_bytes: 1 << 20 };
        let mut pages = vec![Page([0; 4096]); shape.region_bytes() as usize / 4096];
        // SAFETY: the pages live as long as the region does, and are only used through the view.
        let view = unsafe { View::new(pages.as_mut_ptr().cast(), shape.region_bytes() as usize) };
        let offer = Offer {
            version: REGION_VERSION,
            region: 1,
            region_bytes: shape.region_bytes(),
            lane_at: shape.lane(0).at,
            slots: shape.slots,
            eager_bytes: shape.eager_bytes,
            inline_bytes: 4096,
            chunk_bytes: 16 << 10,
            pool: shape.pool(),
        };
        offer.check().unwrap();
        Region { _pages: pages, view, offer }
    }

    fn client(&self) -> Client<Alone> {
        // SAFETY: the tests drop the client before the region.
        unsafe { Client::new(&self.offer, self.view, Alone::default()) }
    }

    fn daemon(&self) -> Port<Alone> {
        // SAFETY: as above.
        unsafe { Port::new(self.view, self.offer.lane(), End::Daemon, Alone::default()) }
    }
}

/// The client's memory for answers.
#[derive(Default)]
struct Answer {
    body: Vec<u8>,
    payload: Vec<u8>,
    bulk: Vec<u8>,
    bells: u32,
}

fn more(all: &mut Vec<u8>, bytes: usize) -> Result<Target<'_>, Broken> {
    if bytes > 1 << 21 {
        return Err(Broken("too much"));
    }
    let have = all.len();
    all.resize(have + bytes, 0);
    Ok(Target::of(&mut all[have..]))
}

impl Receiver for Answer {
    type Error = Broken;

    fn ring(&mut self) -> Result<(), Broken> {
        self.bells += 1;
        Ok(())
    }
    fn body(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.body.resize(bytes, 0);
        Some(&mut self.body)
    }
    fn payload(&mut self, bytes: usize) -> Result<Target<'_>, Broken> {
        more(&mut self.payload, bytes)
    }
    fn bulk(&mut self, bytes: usize) -> Result<Target<'_>, Broken> {
        more(&mut self.bulk, bytes)
    }
}

/// The daemon's end, by hand.
struct Daemon {
    port: Port<Alone>,
    body: Vec<u8>,
    call_number: u32,
}

impl Daemon {
    fn new(region: &Region) -> Daemon {
        Daemon { port: region.daemon(), body: Vec::new(), call_number: 0 }
    }

    fn take(&mut self) -> Option<(Record, [u8; HEADER_BYTES])> {
        self.try_take().unwrap()
    }

    fn try_take(&mut self) -> Result<Option<(Record, [u8; HEADER_BYTES])>, Broken> {
        let body = &mut self.body;
        let taken = self.port.take(move |bytes| {
            body.resize(bytes, 0);
            Some(&mut body[..])
        });
        let Some(taken) = taken? else { return Ok(None) };
        self.call_number = taken.record.call_number;
        Ok(Some((taken.record, taken.header)))
    }

    fn post(&mut self, record: Record, header: [u8; HEADER_BYTES], body: &[u8]) {
        let posted = self.port.post(record, &header, std::iter::once(Source::of(body))).unwrap();
        assert_eq!(posted, Some(Rouse::Nothing));
    }

    fn say(&mut self, op: Op, span: Span, is_payload: bool) {
        let record = Record { span, is_payload, ..Record::of(op, self.call_number) };
        self.post(record, [0; HEADER_BYTES], &[]);
    }

    fn reply(&mut self, payload: &[u8], bulk_bytes: u64, tail: Span) {
        let header = header(self.call_number.into(), payload.len(), bulk_bytes, None);
        let record = Record { span: tail, ..Record::of(Op::Message, self.call_number) };
        self.post(record, Header { kind: Kind::Reply, ..header }.encode_unsealed(), payload);
    }

    fn bytes(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.bytes as usize];
        self.port.view().read(span.at, &mut bytes);
        bytes
    }
}

fn header(call: u64, payload_bytes: usize, bulk_bytes: u64, room: Option<u64>) -> Header {
    Header {
        kind: Kind::Request,
        service: 7,
        function: 1,
        status: 0,
        call,
        payload_bytes: payload_bytes as u32,
        fd_count: 0,
        bulk_bytes,
        payload_crc: 0,
        flags: 0,
        room,
    }
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

const NOWHERE: Span = Span { at: 0, bytes: 0 };

#[test]
fn what_is_small_is_one_record_each_way() {
    let region = Region::new();
    let (mut client, mut daemon) = (region.client(), Daemon::new(&region));
    // Often enough that the ring wraps in the middle of a body.
    for call in 1..200_u64 {
        let mut answer = Answer::default();
        let (payload, data) = (pattern(call as usize * 3), pattern(3000));
        let input = [Source::of(&data[..10]), Source::NONE, Source::of(&data[10..])];
        let request = Request {
            header: header(call, payload.len(), 3000, None),
            payload: Source::of(&payload),
            input: &input,
            output: None,
        };
        let mut progress = client.begin(&request, &mut answer).unwrap();
        assert!(client.advance(&mut progress, &mut answer).unwrap().is_none());
        let (record, header) = daemon.take().unwrap();
        assert_eq!(
            (record.op, record.head, record.data),
            (Op::Message, PartPlace::Inline, PartPlace::Inline)
        );
        assert_eq!(Header::decode_unsealed(&header).unwrap(), request.header);
        assert_eq!(daemon.body[..payload.len()], payload);
        assert_eq!(daemon.body[payload.len()..payload.len() + 3000], data);
        daemon.reply(b"so be it", 0, NOWHERE);
        let reply = client.advance(&mut progress, &mut answer).unwrap().unwrap();
        client.finish(&mut progress, &reply, u64::MAX, &mut answer).unwrap();
        assert_eq!(&answer.body[..8], b"so be it");
        assert!(daemon.take().is_none() && answer.bells == 0);
    }
}

#[test]
fn what_is_long_streams_both_ways() {
    let region = Region::new();
    let (mut client, mut daemon) = (region.client(), Daemon::new(&region));
    let eager_out = region.offer.lane().eager_out();
    for (call, length) in [(1, 8193), (2, 100_000), (3, 500_001)] {
        let mut answer = Answer::default();
        let data = pattern(length);
        let mut room = vec![0; length];
        let (front, back) = room.split_at_mut(77);
        let input: Vec<Source<'_>> = data.chunks(length / 3).map(Source::of).collect();
        let output = [Target::of(front), Target::of(back)];
        let bulk_bytes = length as u64;
        let request = Request {
            header: header(call, 0, bulk_bytes, Some(bulk_bytes)),
            payload: Source::NONE,
            input: &input,
            output: Some(&output),
        };
        let mut progress = client.begin(&request, &mut answer).unwrap();
        assert_eq!(daemon.take().unwrap().0.data, PartPlace::Streamed);
        // Not a multiple of the piece: the last piece is short.
        daemon.say(Op::Grant, Span { at: region.offer.pool.at, bytes: 50_000 }, false);
        let mut came = Vec::new();
        while came.len() < length {
            assert!(client.advance(&mut progress, &mut answer).unwrap().is_none());
            let (record, _) = daemon.take().unwrap();
            assert_eq!(record.op, Op::Chunk);
            came.extend(daemon.bytes(record.span));
            daemon.say(Op::Credit, NOWHERE, false);
        }
        assert!(came == data);
        // The last piece comes with the reply.
        let last = (length - 1) / 8000 * 8000;
        for start in (0..last).step_by(8000) {
            daemon.port.view().write(eager_out.at, Source::of(&data[start..start + 8000]));
            daemon.say(Op::Chunk, Span { at: eager_out.at, bytes: 8000 }, false);
            assert!(client.advance(&mut progress, &mut answer).unwrap().is_none());
            assert_eq!(daemon.take().unwrap().0.op, Op::Credit);
        }
        daemon.port.view().write(eager_out.at, Source::of(&data[last..]));
        daemon.reply(b"", bulk_bytes, Span { at: eager_out.at, bytes: (length - last) as u64 });
        let reply = client.advance(&mut progress, &mut answer).unwrap().unwrap();
        client.finish(&mut progress, &reply, u64::MAX, &mut answer).unwrap();
        assert_eq!(daemon.take().unwrap().0.op, Op::Done);
        assert!(room == data);
    }
}

#[test]
fn buffers_in_the_pool_are_named_and_not_copied() {
    let region = Region::new();
    let (mut client, mut daemon) = (region.client(), Daemon::new(&region));
    let pool = region.offer.pool;
    let (from, to) = (Span { at: pool.at, bytes: 20_000 }, Span { at: pool.at + 65_536, bytes: 30_000 });
    let before = pattern(100);
    // SAFETY: the region's own memory.
    let (named, target) = unsafe {
        let source = Source::from_raw(region.view.pointer(from), 20_000);
        (source, Target::from_raw(region.view.pointer(to), 30_000))
    };
    let (input, output) = ([Source::of(&before), named], [target]);
    let request = Request {
        header: header(1, 0, 20_100, Some(30_000)),
        payload: Source::NONE,
        input: &input,
        output: Some(&output),
    };
    let mut answer = Answer::default();
    let mut progress = client.begin(&request, &mut answer).unwrap();
    let (record, _) = daemon.take().unwrap();
    assert_eq!((record.inputs, record.outputs), (2, 1));
    let table = TableEntry::decode_table(&daemon.body[..2 * ENTRY_BYTES], pool, 20_100).unwrap();
    assert_eq!(table, [TableEntry::Data(100), TableEntry::Pool(from)]);
    let table = &daemon.body[2 * ENTRY_BYTES..3 * ENTRY_BYTES];
    assert_eq!(TableEntry::decode_table(table, pool, 30_000).unwrap(), [TableEntry::Pool(to)]);
    assert_eq!(daemon.body[3 * ENTRY_BYTES..3 * ENTRY_BYTES + 100], before);
    daemon.reply(b"", 30_000, NOWHERE);
    let reply = client.advance(&mut progress, &mut answer).unwrap().unwrap();
    client.finish(&mut progress, &reply, u64::MAX, &mut answer).unwrap();
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }
}

/// Any record at any time: the call fails, or goes on; nothing outside of the caller's memory is
/// written.
#[test]
fn a_daemon_that_lies_is_broken_and_nothing_more() {
    let mut broken = 0;
    for seed in 1..250_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let region = Region::new();
        let (mut client, mut daemon) = (region.client(), Daemon::new(&region));
        let data = pattern(20_000);
        let mut room = vec![7; 12_000];
        let (canary, rest) = room.split_at_mut(1000);
        let (target, behind) = rest.split_at_mut(10_000);
        let (input, output) = ([Source::of(&data)], [Target::of(target)]);
        let names_output = random.below(2) == 0;
        let request = Request {
            header: header(1, 3, 20_000, names_output.then_some(10_000)),
            payload: Source::of(b"abc"),
            input: &input,
            output: names_output.then_some(&output),
        };
        let mut answer = Answer::default();
        let mut progress = client.begin(&request, &mut answer).unwrap();
        daemon.take().unwrap();
        for _ in 0..20 {
            let wild = random.below(8) == 0;
            let near = |random: &mut Random, bound: u64| {
                if wild { u64::MAX - random.below(bound) } else { random.below(bound) }
            };
            let op = [Op::Message, Op::Chunk, Op::Credit, Op::Grant, Op::Done][random.below(5) as usize];
            let most = [10, 6000, 50_000, 1 << 21][random.below(4) as usize];
            let span =
                Span { at: near(&mut random, region.offer.region_bytes), bytes: near(&mut random, most) };
            let place = [PartPlace::Inline, PartPlace::Eager, PartPlace::Streamed][random.below(3) as usize];
            let call_number = daemon.call_number + u32::from(random.below(20) == 0);
            let record =
                Record { span, head: place, is_payload: random.below(3) == 0, ..Record::of(op, call_number) };
            let said = header(1, random.below(300) as usize, random.below(20_000), None);
            let kind = if random.below(10) == 0 { Kind::Request } else { Kind::Reply };
            let body = pattern(random.below(400) as usize);
            let head = Header { kind, ..said }.encode_unsealed();
            // Memory granted in the middle of the rings has the client write over them.
            let Ok(Some(_)) = daemon.port.post(record, &head, std::iter::once(Source::of(&body))) else {
                break;
            };
            if random.below(10) == 0 {
                // The counter itself.
                let at = region.offer.lane().replies_tail();
                region
                    .view
                    .counter(at)
                    .fetch_add(random.below(200) as u32, std::sync::atomic::Ordering::Relaxed);
            }
            let ended = match client.advance(&mut progress, &mut answer) {
                Ok(None) => false,
                Ok(Some(reply)) => {
                    assert!(reply.streamed || reply.header.payload_bytes as usize <= answer.body.len());
                    broken += u32::from(client.finish(&mut progress, &reply, u64::MAX, &mut answer).is_err());
                    true
                }
                Err(Broken(_)) => {
                    broken += 1;
                    true
                }
            };
            let mut taken = daemon.try_take();
            while let Ok(Some(_)) = taken {
                taken = daemon.try_take();
            }
            if ended || taken.is_err() {
                break;
            }
        }
        assert!(canary.iter().chain(behind.iter()).all(|byte| *byte == 7), "seed {seed}");
    }
    assert!(broken > 100, "{broken}");
}
