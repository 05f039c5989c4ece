//! Whatever a client does to its region, its ring or itself costs its own lanes only.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

mod common;

use common::*;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zazen_call::{ServerLimits, ShmLimits};
use zazen_core::ErrorKind;
use zazen_wire::Message;
use zazen_wire::header::{Header, Kind};
use zazen_wire::shm::{ASK, BELL, FDS, MOVE, Offer, Op, PartPlace, Record, SLOT_BYTES, Span, TableEntry};

const STALL: Duration = Duration::from_millis(400);

fn bench() -> Bench {
    Bench::with_shm(
        ServerLimits { connections_max: 512, stall_timeout: STALL, ..ServerLimits::default() },
        ShmLimits::default(),
    )
}

/// A client that writes its region by hand.
struct RawLane {
    socket: UnixStream,
    base: *mut u8,
    offer: Offer,
    tail: u32,
    taken: u32,
    call: u64,
}

impl RawLane {
    fn new(bench: &Bench) -> RawLane {
        let mut socket = UnixStream::connect(&bench.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&request_to(0, ASK, 1, b"", b"")).unwrap();
        let mut bytes = vec![0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let header = Header::decode(bytes[..64].try_into().unwrap()).unwrap();
        assert_eq!((header.status, got.bytes), (0, 64 + header.payload_bytes as usize));
        let offer = Offer::decode(&bytes[64..got.bytes]).unwrap();
        socket.write_all(&request_to(0, MOVE, 2, b"", b"")).unwrap();
        socket.read_exact(&mut bytes[..64]).unwrap();
        assert_eq!(Header::decode(bytes[..64].try_into().unwrap()).unwrap().status, 0);
        let (length, both) = (offer.region_bytes as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping of the region that the daemon offers.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, both, MapFlags::SHARED, &fds[0], 0) };
        RawLane { socket, base: base.unwrap().cast(), offer, tail: 0, taken: 0, call: 2 }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.offer.region_bytes);
        // SAFETY: within the mapping, which lives as long as the process; the daemon expects the
        // worst.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at as usize), bytes.len()) }
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        assert!(at + into.len() as u64 <= self.offer.region_bytes);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at as usize), into.as_mut_ptr(), into.len()) }
    }

    fn counter(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn ring_bell(&mut self) {
        let _ = self.socket.write_all(&request_to(0, BELL, 0, b"", b""));
    }

    /// Writes a slot `ahead` of those published.
    fn slot(&self, ahead: u32, bytes: &[u8; SLOT_BYTES]) {
        let index = u64::from(self.tail.wrapping_add(ahead) % self.offer.slots);
        self.write(self.offer.lane().requests() + index * SLOT_BYTES as u64, bytes);
    }

    fn publish(&mut self, slots: u32) {
        self.tail = self.tail.wrapping_add(slots);
        self.write(self.offer.lane().requests_tail(), &self.tail.to_le_bytes());
        self.ring_bell();
    }

    fn post(&mut self, record: Record, header: Option<Header>) {
        let header = header.map_or([0; 64], |header| header.encode_unsealed());
        self.slot(0, &record.encode(&header));
        self.publish(1);
    }

    /// A request of the next call: its record and header, good as they are.
    fn request(&mut self, function: u16) -> (Record, Header) {
        self.call += 1;
        let header = Header {
            kind: Kind::Request,
            service: SERVICE,
            function,
            status: 0,
            call: self.call,
            payload_bytes: 0,
            fd_count: 0,
            bulk_bytes: 0,
            payload_crc: 0,
            flags: 0,
            room: None,
        };
        (Record::of(Op::Message, self.call as u32), header)
    }

    /// Waits for the next record from the daemon.
    fn next(&mut self) -> Option<(Record, [u8; 64])> {
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.counter(self.offer.lane().replies_tail()) == self.taken {
            if std::time::Instant::now() > deadline {
                return None;
            }
            std::thread::yield_now();
        }
        let mut slot = [0; SLOT_BYTES];
        let index = u64::from(self.taken % self.offer.slots);
        self.read(self.offer.lane().replies() + index * SLOT_BYTES as u64, &mut slot);
        let (record, header) = Record::decode(&slot, self.offer.slots).unwrap();
        self.taken += u32::from(record.slots);
        self.write(self.offer.lane().replies_head(), &self.taken.to_le_bytes());
        Some((record, header))
    }

    /// The daemon closes the lane, and says why on the socket.
    fn last_words(&mut self) -> (ErrorKind, String) {
        loop {
            let mut header = [0; 64];
            self.socket.read_exact(&mut header).expect("the daemon says why it closes");
            let header = Header::decode(&header).unwrap();
            let mut payload = vec![0; header.payload_bytes as usize];
            self.socket.read_exact(&mut payload).unwrap();
            if header.status != 0 {
                let message = String::from_utf8(payload[4..].to_vec()).unwrap();
                return (ErrorKind::from_code(header.status).unwrap(), message);
            }
        }
    }

    fn send_fds(&self, bytes: &[u8], count: usize) {
        let null = std::fs::File::open("/dev/null").unwrap();
        let fds = vec![null.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }
}

impl Drop for RawLane {
    fn drop(&mut self) {
        // SAFETY: nothing points into the mapping any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.offer.region_bytes as usize) };
    }
}

fn assert_serves_all(bench: &Bench) {
    for carrier in CARRIERS {
        let reply = bench.connect(carrier).call(SERVICE, ECHO, b"still here?", &[]).unwrap();
        assert_eq!(reply.payload, b"still here?");
    }
}

fn settled(bench: &Bench) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while bench.server.connections() > 0 || bench.server.granted_bytes() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} granted", bench.server.granted_bytes());
        std::thread::yield_now();
    }
    assert!(bench.probe.detached().values().all(|count| *count == 1));
}

/// A lie, and a word of what the client is told.
type Lie = (&'static str, fn(&mut RawLane), &'static str);

fn data_at(lane: &mut RawLane, bytes: u64, entries: &[(u64, u64)]) {
    let (mut record, mut header) = lane.request(SINK);
    (record.inputs, record.slots, header.bulk_bytes) = (entries.len() as u16, 2, bytes);
    let mut body = [0; SLOT_BYTES];
    for (nth, (at, bytes)) in entries.iter().enumerate() {
        let entry = TableEntry::Pool(Span { at: *at, bytes: *bytes });
        body[nth * 16..nth * 16 + 16].copy_from_slice(&entry.encode());
    }
    lane.slot(0, &record.encode(&header.encode_unsealed()));
    lane.slot(1, &body);
    lane.publish(2);
}

/// Begins a call whose bulk is streamed, and waits for the grant.
fn streamed(lane: &mut RawLane, bytes: u64) -> Record {
    let (mut record, mut header) = lane.request(SLURP);
    (record.data, header.bulk_bytes) = (PartPlace::Streamed, bytes);
    lane.post(record, Some(header));
    let (grant, _) = lane.next().unwrap();
    assert_eq!(grant.op, Op::Grant);
    grant
}

fn piece(lane: &mut RawLane, at: u64, bytes: u64) {
    let record = Record { span: Span { at, bytes }, ..Record::of(Op::Chunk, lane.call as u32) };
    lane.post(record, None);
}

const LIES: &[Lie] = &[
    ("a tail beyond the ring", |lane| lane.publish(65), "counter"),
    ("a tail far beyond", |lane| lane.publish(0x8000_0000), "counter"),
    (
        "a tail that goes back",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(record, Some(header));
            lane.next().unwrap();
            lane.tail = lane.tail.wrapping_sub(2);
            lane.publish(1);
        },
        "counter",
    ),
    (
        "a head beyond what was sent",
        |lane| {
            let places = lane.offer.lane();
            lane.write(places.replies_head(), &0x4000_0000u32.to_le_bytes());
            // The daemon looks when what it knows of leaves no room.
            for _ in 0..=lane.offer.slots {
                let (record, header) = lane.request(ECHO);
                lane.post(record, Some(header));
                while lane.counter(places.requests_head()) != lane.tail
                    && lane.counter(places.daemon_line() + 8) == 0
                {
                    std::thread::yield_now();
                }
            }
        },
        "counter",
    ),
    (
        "a record of no slots",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(Record { slots: 0, ..record }, Some(header));
        },
        "malformed",
    ),
    (
        "a record of more slots than the ring",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(Record { slots: 65, ..record }, Some(header));
        },
        "malformed",
    ),
    (
        "a record of more slots than published",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(Record { slots: 2, ..record }, Some(header));
        },
        "more slots than were published",
    ),
    (
        "noise",
        |lane| {
            lane.slot(0, &[0xa5; SLOT_BYTES]);
            lane.publish(1);
        },
        "malformed",
    ),
    (
        "a header that is none",
        |lane| {
            let (record, _) = lane.request(ECHO);
            lane.post(record, None);
        },
        "does not speak",
    ),
    (
        "a reply for a request",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(record, Some(Header { kind: Kind::Reply, ..header }));
        },
        "no request",
    ),
    (
        "another number than the call",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(Record { call_number: record.call_number + 1, ..record }, Some(header));
        },
        "no request",
    ),
    (
        "a payload that is not there",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(record, Some(Header { payload_bytes: 1, ..header }));
        },
        "not where it says",
    ),
    (
        "a payload longer than the eager buffer",
        |lane| {
            let (record, header) = lane.request(ECHO);
            let payload_bytes = lane.offer.eager_bytes + 1;
            lane.post(Record { head: PartPlace::Eager, ..record }, Some(Header { payload_bytes, ..header }));
        },
        "not where it says",
    ),
    (
        "a payload beyond any limit",
        |lane| {
            let (record, header) = lane.request(ECHO);
            lane.post(record, Some(Header { payload_bytes: u32::MAX, ..header }));
        },
        "beyond the limit",
    ),
    (
        "data longer than the eager buffer",
        |lane| {
            let (record, header) = lane.request(SINK);
            let bulk_bytes = u64::from(lane.offer.eager_bytes) + 1;
            lane.post(Record { data: PartPlace::Eager, ..record }, Some(Header { bulk_bytes, ..header }));
        },
        "longer than the buffer",
    ),
    (
        "data that are not in the slots",
        |lane| {
            let (record, header) = lane.request(SINK);
            lane.post(record, Some(Header { bulk_bytes: 1, ..header }));
        },
        "not where it says",
    ),
    (
        "streamed tables",
        |lane| {
            let (record, header) = lane.request(SINK);
            let record = Record { head: PartPlace::Streamed, data: PartPlace::Streamed, inputs: 1, ..record };
            lane.post(record, Some(Header { bulk_bytes: 1, ..header }));
        },
        "not where it says",
    ),
    (
        "a table longer than tables are",
        |lane| {
            let (record, header) = lane.request(SINK);
            lane.post(Record { inputs: 65, ..record }, Some(header));
        },
        "malformed",
    ),
    ("input before the pool", |lane| data_at(lane, 100, &[(0, 100)]), "outside the pool"),
    (
        "input across the pool's end",
        |lane| {
            let end = lane.offer.pool.end().unwrap();
            data_at(lane, 100, &[(end - 99, 100)]);
        },
        "outside the pool",
    ),
    ("input that wraps", |lane| data_at(lane, 100, &[(u64::MAX - 50, 100)]), "outside the pool"),
    (
        "lengths that wrap",
        |lane| {
            let at = lane.offer.pool.at;
            data_at(lane, 0, &[(at, 8), (at, u64::MAX - 7)]);
        },
        "table",
    ),
    (
        "a table that says another sum",
        |lane| {
            let at = lane.offer.pool.at;
            data_at(lane, 100, &[(at, 50)]);
        },
        "its message says 100",
    ),
    (
        "output for no room",
        |lane| {
            let (mut record, header) = lane.request(ECHO);
            (record.outputs, record.slots) = (1, 2);
            lane.slot(0, &record.encode(&header.encode_unsealed()));
            lane.publish(2);
        },
        "for no room",
    ),
    (
        "a piece that starts before the grant",
        |lane| {
            let grant = streamed(lane, 1 << 20);
            piece(lane, grant.span.at - 1, 100);
        },
        "outside what was granted",
    ),
    (
        "a piece that ends behind the grant",
        |lane| {
            let grant = streamed(lane, 1 << 20);
            piece(lane, grant.span.at, grant.span.bytes + 1);
        },
        "outside what was granted",
    ),
    (
        "a piece that wraps",
        |lane| {
            let grant = streamed(lane, 1 << 20);
            piece(lane, grant.span.at, u64::MAX - 10);
        },
        "outside what was granted",
    ),
    (
        "an empty piece",
        |lane| {
            let grant = streamed(lane, 1 << 20);
            piece(lane, grant.span.at, 0);
        },
        "outside what was granted",
    ),
    (
        "more pieces than bytes",
        |lane| {
            let grant = streamed(lane, 150_000);
            for _ in 0..2 {
                piece(lane, grant.span.at, 100_000);
            }
        },
        "outside what was granted",
    ),
    (
        "credit for nothing",
        |lane| {
            streamed(lane, 1 << 20);
            lane.post(Record::of(Op::Credit, lane.call as u32), None);
        },
        "credit",
    ),
    (
        "a request within a call",
        |lane| {
            streamed(lane, 1 << 20);
            let (mut record, mut header) = lane.request(ECHO);
            (record.call_number, header.call) = (record.call_number - 1, header.call - 1);
            lane.post(record, Some(header));
        },
        "no place within a call",
    ),
    ("a grant from the client", |lane| lane.post(Record::of(Op::Grant, 1), None), "grants no memory"),
    (
        "a flood of records of no call",
        |lane| {
            let places = lane.offer.lane();
            // Within the ring's room, until the daemon closes.
            while lane.counter(places.daemon_line() + 8) == 0 {
                if lane.tail.wrapping_sub(lane.counter(places.requests_head())) < lane.offer.slots {
                    lane.slot(0, &Record::of(Op::Done, 77).encode(&[0; 64]));
                    lane.publish(1);
                }
            }
        },
        "floods",
    ),
    (
        "a call on the socket",
        |lane| {
            lane.socket.write_all(&request(ECHO, 9, b"", b"")).unwrap();
        },
        "belongs into the ring",
    ),
    (
        "a bell with a payload",
        |lane| {
            lane.socket.write_all(&request_to(0, BELL, 0, b"payload", b"")).unwrap();
        },
        "belongs into the ring",
    ),
    (
        "descriptors of another call",
        |lane| {
            let mut frame = request_to(0, FDS, 99, b"", b"");
            frame[28..30].copy_from_slice(&1u16.to_le_bytes());
            lane.send_fds(&resealed(frame), 1);
            let (record, header) = lane.request(FDS_FUNCTION);
            lane.post(record, Some(Header { fd_count: 1, ..header }));
        },
        "another call",
    ),
    (
        "other descriptors than announced",
        |lane| {
            let mut frame = request_to(0, FDS, 2, b"", b"");
            frame[28..30].copy_from_slice(&3u16.to_le_bytes());
            lane.send_fds(&resealed(frame), 2);
        },
        "other descriptors",
    ),
    (
        "descriptors on a bell",
        |lane| lane.send_fds(&request_to(0, BELL, 0, b"", b""), 60),
        "belongs into the ring",
    ),
];

const FDS_FUNCTION: u16 = common::FDS;

#[test]
#[allow(clippy::print_stderr, reason = "shown only if the test fails")]
fn a_lie_closes_the_lane_with_a_reason() {
    let bench = bench();
    for (what, lie, words) in LIES {
        eprintln!("{what}");
        let mut lane = RawLane::new(&bench);
        lie(&mut lane);
        let (kind, message) = lane.last_words();
        assert!(matches!(kind, ErrorKind::Protocol | ErrorKind::TooLarge), "{what}: {message}");
        assert!(message.contains(words), "{what}: {message}");
    }
    assert_serves_all(&bench);
    settled(&bench);
    assert_eq!(bench.probe.detached().len(), LIES.len() + 3);
}

#[test]
fn a_client_that_stops_in_a_call_is_closed_and_its_memory_back() {
    let bench = bench();
    // It never fills what was granted; it fills some; it never takes its answer; its descriptors
    // never come.
    let mut silent = RawLane::new(&bench);
    streamed(&mut silent, 1 << 20);
    let mut half = RawLane::new(&bench);
    let grant = streamed(&mut half, 1 << 20);
    piece(&mut half, grant.span.at, 1000);
    let mut deaf = RawLane::new(&bench);
    let (record, mut header) = deaf.request(SOURCE);
    (header.payload_bytes, header.room) = (8, Some(64 << 20));
    let mut body = [0; SLOT_BYTES];
    body[..8].copy_from_slice(&(64u64 << 20).to_le_bytes());
    deaf.slot(0, &Record { slots: 2, ..record }.encode(&header.encode_unsealed()));
    deaf.slot(1, &body);
    deaf.publish(2);
    let mut without = RawLane::new(&bench);
    let (record, header) = without.request(common::FDS);
    without.post(record, Some(Header { fd_count: 1, ..header }));
    bench.assert_all_detached(4);
    settled(&bench);
    drop((silent, half, deaf, without));
    assert_serves_all(&bench);
}

#[test]
fn a_flood_of_bells_costs_its_sender_only() {
    let bench = bench();
    let mut lane = RawLane::new(&bench);
    lane.socket.set_nonblocking(true).unwrap();
    let flood = request_to(0, BELL, 0, b"", b"").repeat(100);
    let mut other = bench.connect(Carrier::Shm);
    for _ in 0..200 {
        // A cut bell is a lie like any other; the daemon may close, but never stops serving.
        let _ = lane.socket.write(&flood);
        assert_eq!(other.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
    }
    drop((lane, other));
    settled(&bench);
}

/// A generator of its own, so that a seed in a failure's message plays the same again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn scribble(lane: &mut RawLane, random: &mut Random) {
    let places = lane.offer.lane();
    let (at, span) = match random.below(5) {
        0 => (places.at, 400),
        1 => (places.requests(), 8192),
        2 => (places.replies(), 8192),
        3 => (places.eager_in().at, 4096),
        _ => (lane.offer.pool.at, 8192),
    };
    let length = 1 + random.below(64);
    let bytes: Vec<u8> =
        (0..length).map(|_| if random.below(3) == 0 { 0 } else { random.next() as u8 }).collect();
    lane.write(at + random.below(span - length), &bytes);
}

fn nearly_right(lane: &mut RawLane, random: &mut Random) {
    let (mut record, mut header) = lane.request(1 + random.below(16) as u16);
    if header.function == GATE || header.function == NAP {
        header.function = SLURP;
    }
    let place = |random: &mut Random| {
        [PartPlace::Inline, PartPlace::Eager, PartPlace::Streamed][random.below(3) as usize]
    };
    (record.head, record.data) = (place(random), place(random));
    let size = [0, 1, 100, 4096, 70_000, 1 << 20, 1 << 39][random.below(7) as usize];
    header.bulk_bytes = size;
    header.payload_bytes = [0, 8, 100, 5000][random.below(4) as usize];
    header.room = [None, Some(0), Some(100), Some(1 << 20)][random.below(4) as usize];
    header.fd_count = u16::from(random.below(10) == 0);
    (record.inputs, record.outputs) = (random.below(3) as u16, random.below(3) as u16);
    let mut slots = [[0; SLOT_BYTES]; 3];
    for slot in &mut slots {
        for entry in slot.chunks_exact_mut(16) {
            let at = lane.offer.pool.at + random.below(1 << 16);
            entry.copy_from_slice(&TableEntry::Pool(Span { at, bytes: random.below(200) }).encode());
        }
    }
    // The pattern of SOURCE and FILL must not be asked for in a size that only costs the test time.
    slots[0][..8].copy_from_slice(&random.below(1 << 20).to_le_bytes());
    record.slots = 1 + random.below(4) as u16;
    lane.slot(0, &record.encode(&header.encode_unsealed()));
    for (nth, slot) in (1..).zip(&slots) {
        lane.slot(nth, slot);
    }
    lane.publish(u32::from(record.slots));
}

#[test]
#[allow(clippy::print_stderr, reason = "shown only if the test fails")]
fn random_scribbling_harms_nobody_else() {
    // Lanes that were closed for a lie linger for a moment.
    let limits = ServerLimits {
        connections_max: 512,
        stall_timeout: Duration::from_secs(1),
        ..ServerLimits::default()
    };
    let bench = Bench::with_shm(limits, ShmLimits { budget_bytes: 4 << 20, ..ShmLimits::default() });
    let mut honest = bench.connect(Carrier::Shm);
    let bytes = pattern(300_000);
    for seed in 1..=150u64 {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut lane = RawLane::new(&bench);
        for _ in 0..1 + random.below(30) {
            match random.below(8) {
                0..=3 => scribble(&mut lane, &mut random),
                4 => nearly_right(&mut lane, &mut random),
                5 => {
                    let op = [Op::Chunk, Op::Credit, Op::Done][random.below(3) as usize];
                    let at = lane.offer.pool.at + random.below(1 << 17);
                    let span = Span { at, bytes: random.below(1 << 17) };
                    let number = lane.call as u32;
                    lane.post(Record { span, ..Record::of(op, number) }, None);
                }
                6 => lane.ring_bell(),
                _ => lane.send_fds(&request_to(0, FDS, lane.call, b"", b""), 1),
            }
        }
        // Meanwhile an honest client's calls are what they should be.
        let got = honest.call(SERVICE, SINK, b"", &[&bytes]).unwrap();
        assert_eq!(got.payload[8..], zazen_wire::checksum::frame_checksum(&bytes).to_le_bytes());
    }
    drop(honest);
    settled(&bench);
    bench.assert_all_detached(151);
    assert_serves_all(&bench);
}

/// What the client does that dies: all that a client can do. Runs in a process of its own.
#[test]
fn child() {
    let Ok(step) = std::env::var("ZAZEN_TEST_DIES_AT") else { return };
    let socket = std::env::var("ZAZEN_TEST_SOCKET").unwrap();
    let mut connection =
        zazen_call::Connection::local(socket.as_ref(), zazen_call::Carrier::Shm, PATIENCE).unwrap();
    zazen_call::die_at_fault_point(step.parse().unwrap());
    connection.set_timeout(Some(PATIENCE));
    let bytes = pattern(400_000);
    connection.call(SERVICE, ECHO, &bytes[..5000], &[]).unwrap();
    connection.call(SERVICE, SINK, b"", &[&bytes]).unwrap();
    let mut room = vec![0; 400_000];
    let mut output = [IoSliceMut::new(&mut room)];
    connection.exchange(SERVICE, PIPE, b"", &[IoSlice::new(&bytes)], &mut output).unwrap();
    let mut pooled = connection.allocate(200_000);
    pooled.copy_from_slice(&bytes[..200_000]);
    connection.exchange(SERVICE, LEND, b"", &[IoSlice::new(&pooled)], &mut []).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    connection.call_with_fds(SERVICE, common::FDS, b"", &[], &[null.as_fd()]).unwrap();
    let mut lane = connection.lane().unwrap();
    lane.call(SERVICE, NAP, &60u64.to_le_bytes(), &[]).unwrap();
}

#[test]
fn a_client_may_be_killed_at_any_step() {
    let bench = Bench::with_shm(
        ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() },
        ShmLimits { budget_bytes: 4 << 20, ..ShmLimits::default() },
    );
    let me = std::env::current_exe().unwrap();
    let mut killed = 0;
    for step in 1.. {
        // Every step of the beginning, then some of them: pieces of a stream are much the same.
        if step > 40 && step % 3 != 0 {
            continue;
        }
        let child = std::process::Command::new(&me)
            .args(["--exact", "child"])
            .env("ZAZEN_TEST_DIES_AT", step.to_string())
            .env("ZAZEN_TEST_SOCKET", &bench.socket)
            .output()
            .unwrap();
        if child.status.success() {
            break;
        }
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.status.signal(), Some(9), "step {step}: {}", String::from_utf8_lossy(&child.stdout));
        killed += 1;
        assert!(killed < 500, "it never lives to its end");
    }
    assert!(killed > 30, "only {killed} fault points");
    settled(&bench);
    bench.assert_all_detached(killed + 1);
    assert_serves_all(&bench);
}
