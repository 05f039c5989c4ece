//! What every carrier must do, as tests that any crate can run over a carrier of its own.
//!
//! Write a [`Rig`] for the carrier, then call [`run`] in a test. Each function of this module that
//! takes a rig checks one promise and panics if the carrier breaks it.
#![allow(clippy::unwrap_used, reason = "these are tests: one that panics is one that fails")]

use crate::client::Connection;
use crate::limits::ServerLimits;
use crate::server::Server;
use crate::service::{Call, Caller, Reply, Service};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use zazen_core::limits::PAYLOAD_BYTES_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::checksum::frame_checksum;

/// What makes servers and clients that talk over one carrier.
pub trait Rig {
    /// A server of `services` that [`Running::connect`] reaches.
    fn start(&self, services: Vec<Arc<dyn Service>>, limits: ServerLimits) -> Box<dyn Running>;

    /// Whether descriptors can travel.
    fn passes_fds(&self) -> bool;

    /// Whether an answer is sent before the service hears of it. Not so where others send it.
    fn sends_first(&self) -> bool {
        true
    }
}

/// A server that runs until this is dropped.
pub trait Running: Sync {
    /// The server.
    fn server(&self) -> &Server;

    /// A new connection, which waits at most [`PATIENCE`] for each reply.
    fn connect(&self) -> Result<Connection>;
}

/// Runs the whole contract over `rig`.
pub fn run(rig: &dyn Rig) {
    for promise in [
        payloads_of_any_size_come_back,
        bulk_travels_both_ways_in_any_pieces,
        an_error_comes_as_itself_and_the_connection_lives,
        unread_bulk_never_blocks_nor_breaks_the_connection,
        a_panic_is_an_error_reply,
        one_connection_too_many_is_told_busy,
        calls_of_many_connections_run_at_once,
        a_late_reply_is_timed_out_and_the_connection_dead,
        what_no_peer_would_take_is_refused_before_it_is_sent,
        drain_lets_calls_finish_and_closes_the_rest,
        drain_cuts_off_what_takes_too_long,
        a_service_hears_that_its_caller_is_gone,
        a_service_hears_that_it_has_answered,
    ] {
        promise(rig);
    }
}

/// A server with a [`Probe`].
struct Stage {
    running: Box<dyn Running>,
    probe: Arc<Probe>,
}

impl Stage {
    fn new(rig: &dyn Rig) -> Stage {
        let limits = ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() };
        Stage::with(rig, limits)
    }

    fn with(rig: &dyn Rig, limits: ServerLimits) -> Stage {
        let probe = Arc::new(Probe::default());
        let running = rig.start(vec![Arc::clone(&probe) as Arc<dyn Service>], limits);
        Stage { running, probe }
    }

    fn server(&self) -> &Server {
        self.running.server()
    }

    fn connect(&self) -> Connection {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> Result<Connection> {
        self.running.connect()
    }

    fn assert_all_detached(&self, connections: usize) {
        self.probe.assert_all_detached(connections);
    }
}

/// Payloads from nothing to megabytes come back as they were.
pub fn payloads_of_any_size_come_back(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    for size in [0, 1, 63, 16 << 10, (16 << 10) + 1, 300_000, 5 << 20] {
        let payload = pattern(size);
        let reply = connection.call(SERVICE, ECHO, &payload, &[]).unwrap();
        assert!(reply.payload == payload, "{size} bytes");
        assert!(reply.bulk.is_empty() && reply.fds.is_empty());
    }
}

/// Bulk bytes travel both ways, in one piece or in thousands.
pub fn bulk_travels_both_ways_in_any_pieces(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
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
}

/// A service's error comes as its kind and message, and the connection goes on.
pub fn an_error_comes_as_itself_and_the_connection_lives(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    let error = connection.call(SERVICE, REFUSE, b"", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("frame 7 is here already"), "{error}");
    let error = connection.call(99, ECHO, b"", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("service 99"), "{error}");
    assert!(connection.is_alive());
    assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
}

/// Bulk bytes that the service leaves unread are discarded: the connection goes on.
pub fn unread_bulk_never_blocks_nor_breaks_the_connection(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    let megabyte = pattern(1 << 20);
    let bulk: Vec<&[u8]> = vec![&megabyte; 200];
    let error = connection.call(SERVICE, REFUSE, b"", &bulk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let error = connection.call(99, ECHO, b"", &bulk[..3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let reply = connection.call(SERVICE, SIP, b"", &bulk[..3]).unwrap();
    assert_eq!(reply.payload, &megabyte[..10]);
    assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
}

/// A service that panics answers with an error; its caller's end is told once.
pub fn a_panic_is_an_error_reply(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    let error = connection.call(SERVICE, PANIC, b"", &[&pattern(100_000)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("a test's panic"), "{error}");
    assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
    drop(connection);
    stage.assert_all_detached(1);
}

/// A connection beyond the server's limit is `Busy`, and its place is free again once another has
/// ended.
pub fn one_connection_too_many_is_told_busy(rig: &dyn Rig) {
    let stage = Stage::with(
        rig,
        ServerLimits { connections_max: 2, stall_timeout: PATIENCE, ..ServerLimits::default() },
    );
    let mut first = stage.connect();
    first.call(SERVICE, ECHO, b"", &[]).unwrap();
    let mut second = stage.connect();
    second.call(SERVICE, ECHO, b"", &[]).unwrap();
    let refused = stage.try_connect().and_then(|mut third| third.call(SERVICE, ECHO, b"", &[]));
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("limit of 2 connections"), "{error}");
    drop(second);
    stage.assert_all_detached(1);
    while stage.server().connections() > 1 {
        std::thread::yield_now();
    }
    stage.connect().call(SERVICE, ECHO, b"", &[]).unwrap();
    first.call(SERVICE, ECHO, b"", &[]).unwrap();
}

/// Calls of several connections run at the same time.
pub fn calls_of_many_connections_run_at_once(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| stage.connect().call(SERVICE, GATE, b"", &[]).unwrap());
        }
        stage.probe.wait("eight calls wait together", |state| state.waiting == 8);
        stage.probe.open_gate();
    });
    stage.assert_all_detached(8);
}

/// A reply that is late is `TimedOut`, and the connection carries no further call.
pub fn a_late_reply_is_timed_out_and_the_connection_dead(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    connection.set_timeout(Some(Duration::from_millis(50)));
    let error = connection.call(SERVICE, GATE, b"", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(!connection.is_alive());
    let error = connection.call(SERVICE, ECHO, b"", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("reconnect"), "{error}");
    stage.probe.open_gate();
}

/// What breaks a limit is refused on either side, and the connection goes on.
pub fn what_no_peer_would_take_is_refused_before_it_is_sent(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    let huge = vec![0; PAYLOAD_BYTES_MAX + 1];
    assert_eq!(connection.call(SERVICE, ECHO, &huge, &[]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(connection.is_alive());
    // The service's reply would break a limit: the caller learns it, the connection lives.
    assert_eq!(connection.call(SERVICE, MANY_FDS, b"", &[]).unwrap_err().kind(), ErrorKind::TooLarge);
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd()];
    let passed = connection.call_with_fds(SERVICE, FDS, b"", &[], &fds);
    if rig.passes_fds() {
        assert_eq!(passed.unwrap().fds.len(), 1);
    } else {
        assert_eq!(passed.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(connection.call(SERVICE, ECHO, b"on", &[]).unwrap().payload, b"on");
}

/// A server that drains lets calls finish, and closes connections that are in no call.
pub fn drain_lets_calls_finish_and_closes_the_rest(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut idle = stage.connect();
    idle.call(SERVICE, ECHO, b"", &[]).unwrap();
    let mut busy = stage.connect();
    std::thread::scope(|scope| {
        let in_call = scope.spawn(move || busy.call(SERVICE, GATE, b"", &[]).map(|reply| reply.payload));
        stage.probe.wait("the call is in progress", |state| state.waiting == 1);
        let drain = scope.spawn(|| stage.server().drain(PATIENCE));
        // The idle connection's end shows that draining has begun.
        let error = idle.call(SERVICE, ECHO, b"", &[]);
        while error.is_ok() && idle.call(SERVICE, ECHO, b"", &[]).is_ok() {}
        stage.probe.open_gate();
        assert_eq!(in_call.join().unwrap().unwrap(), b"through");
        assert_eq!(drain.join().unwrap(), 0);
    });
    assert!(matches!(stage.try_connect().unwrap_err().kind(), ErrorKind::Unavailable | ErrorKind::TimedOut));
    assert_eq!(stage.server().connections(), 0);
    stage.assert_all_detached(2);
    assert_eq!(stage.server().drain(PATIENCE), 0);
}

/// A server that drains without patience cuts off the calls in progress.
pub fn drain_cuts_off_what_takes_too_long(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    std::thread::scope(|scope| {
        let call = scope.spawn(move || connection.call(SERVICE, GATE, b"", &[]));
        stage.probe.wait("the call is in progress", |state| state.waiting == 1);
        assert_eq!(stage.server().drain(Duration::from_millis(10)), 1);
        assert_eq!(call.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        stage.probe.open_gate();
    });
    stage.assert_all_detached(1);
}

/// A service that works for long can see that its caller has gone.
pub fn a_service_hears_that_its_caller_is_gone(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    connection.call(SERVICE, ECHO, b"", &[]).unwrap();
    connection.set_timeout(Some(Duration::from_millis(50)));
    // The call is given up and its connection dropped, while the service works on.
    connection.call(SERVICE, UNTIL_CUT, b"", &[]).unwrap_err();
    stage.probe.wait("it works", |state| state.waiting == 1);
    drop(connection);
    stage.probe.wait("it has ended", |state| state.cut == 1);
}

/// Each call of a service is followed by one [`Service::answered`], whatever became of it. Where
/// [`Rig::sends_first`], a caller does not wait for that.
pub fn a_service_hears_that_it_has_answered(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let mut connection = stage.connect();
    connection.call(SERVICE, ECHO, b"", &[]).unwrap();
    connection.call(SERVICE, REFUSE, b"", &[]).unwrap_err();
    connection.call(SERVICE, PANIC, b"", &[]).unwrap_err();
    connection.call(SERVICE, MANY_FDS, b"", &[]).unwrap_err();
    stage.probe.wait("all were followed", |state| state.answered == state.calls);
    stage.probe.update(|state| state.is_slow_after = rig.sends_first());
    let mut another = stage.connect();
    assert_eq!(another.call(SERVICE, ECHO, b"there", &[]).unwrap().payload, b"there");
    stage.probe.open_gate();
    another.set_timeout(Some(Duration::from_millis(50)));
    another.call(SERVICE, UNTIL_CUT, b"", &[]).unwrap_err();
    drop(another);
    stage.probe.wait("the last one ended, and was followed", |state| {
        (state.cut, state.answered) == (1, state.calls)
    });
}

/// The number of [`Probe`].
pub const SERVICE: u16 = 7;
/// Replies the payload.
pub const ECHO: u16 = 1;
/// Reads all bulk; replies its length and CRC-64.
pub const SINK: u16 = 2;
/// Payload: u64 count; replies so many bulk bytes of a known pattern.
pub const SOURCE: u16 = 3;
/// Refuses with `Conflict` without touching the bulk.
pub const REFUSE: u16 = 4;
/// Reads 10 bulk bytes only.
pub const SIP: u16 = 5;
/// Panics.
pub const PANIC: u16 = 6;
/// Blocks until [`Probe::open_gate`].
pub const GATE: u16 = 7;
/// Passes the descriptors that came back.
pub const FDS: u16 = 8;
/// Replies the caller, as text.
pub const WHOAMI: u16 = 9;
/// Replies with more descriptors than a message can have.
pub const MANY_FDS: u16 = 10;
/// Reads the bulk to its end as a file would be read; says whether it came whole.
pub const SLURP: u16 = 11;
/// Takes the whole bulk where it lies; replies "lent" or "read", its length and CRC-64.
pub const LEND: u16 = 12;
/// Payload: u64 count; fills so many bytes of the caller's room with the pattern, in place if it
/// can; says which.
pub const FILL: u16 = 13;
/// Reads the bulk in pieces and writes each to the output as it comes.
pub const PIPE: u16 = 14;
/// Payload: u64 milliseconds; sleeps, then replies with a descriptor.
pub const NAP: u16 = 15;
/// Works until its caller is gone.
pub const UNTIL_CUT: u16 = 17;
/// Replies the caller's number.
pub const NUMBER: u16 = 16;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A service with one function for each behaviour, which remembers what it saw.
#[derive(Default)]
pub struct Probe {
    state: Mutex<ProbeState>,
    changed: Condvar,
}

/// See [`Probe`].
#[derive(Default)]
pub struct ProbeState {
    /// Calls that came.
    pub calls: u64,
    /// How often each caller's end was told.
    pub detached: BTreeMap<u64, u32>,
    /// Calls that wait, for the gate or for their caller's end.
    pub waiting: u32,
    /// Whether the gate is open.
    pub gate_open: bool,
    /// Whether the bulk bytes of each [`SLURP`] came whole.
    pub slurps: Vec<bool>,
    /// Calls that ended since their callers had gone.
    pub cut: u32,
    /// Calls whose answers were on their way, or could not be sent.
    pub answered: u64,
    /// Whether what comes after an answer waits at the gate.
    pub is_slow_after: bool,
}

impl Probe {
    /// Waits until the state is as `until` says; panics if that never happens.
    pub fn wait(&self, what: &str, until: impl Fn(&ProbeState) -> bool) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) =
            self.changed.wait_timeout_while(state, PATIENCE, |state| !until(state)).unwrap();
        assert!(!timeout.timed_out(), "never happened: {what}");
    }

    /// Lets the calls go on that wait at the [`GATE`].
    pub fn open_gate(&self) {
        self.state.lock().unwrap().gate_open = true;
        self.changed.notify_all();
    }

    /// Waits until `connections` callers have gone, and checks that the end of each was told once,
    /// and of no other.
    pub fn assert_all_detached(&self, connections: usize) {
        self.wait("all connections are detached", |state| state.detached.len() >= connections);
        let detached = self.detached();
        assert!(detached.values().all(|count| *count == 1), "{detached:?}");
        assert_eq!(detached.len(), connections);
    }

    /// Calls that came.
    pub fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    /// How often each caller's end was told.
    pub fn detached(&self) -> BTreeMap<u64, u32> {
        self.state.lock().unwrap().detached.clone()
    }

    fn update(&self, change: impl FnOnce(&mut ProbeState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

/// Bytes that tell their places apart.
pub fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

impl Service for Probe {
    fn id(&self) -> u16 {
        SERVICE
    }

    fn call(&self, caller: &Caller, mut call: Call<'_>) -> Result<Reply> {
        self.update(|state| state.calls += 1);
        let number = || u64::from_le_bytes(call.payload.try_into().unwrap());
        let payload = |payload: Vec<u8>| Ok(Reply { payload, ..Reply::default() });
        match call.function {
            ECHO => payload(call.payload.to_vec()),
            SINK => {
                let mut bytes = Vec::new();
                call.bulk.read_to_end(&mut bytes).map_err(|error| Error::io("read bulk", error))?;
                assert_eq!(bytes.len() as u64, call.bulk_bytes);
                payload([(bytes.len() as u64).to_le_bytes(), frame_checksum(&bytes).to_le_bytes()].concat())
            }
            SOURCE => {
                let count = u64::from_le_bytes(call.payload.try_into().unwrap());
                Ok(Reply { bulk: pattern(count as usize), ..Reply::default() })
            }
            REFUSE => Err(Error::new(ErrorKind::Conflict, "frame 7 is here already, with other bytes")),
            SIP => {
                let mut ten = [0; 10];
                call.bulk.read_exact(&mut ten).map_err(|error| Error::io("read bulk", error))?;
                payload(ten.to_vec())
            }
            PANIC => panic!("a test's panic"),
            UNTIL_CUT => {
                self.update(|state| state.waiting += 1);
                while !call.line.is_cut() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.update(|state| state.cut += 1);
                payload(Vec::new())
            }
            GATE => {
                self.update(|state| state.waiting += 1);
                self.wait("the gate opens", |state| state.gate_open);
                payload(b"through".to_vec())
            }
            FDS => Ok(Reply { fds: call.fds, ..Reply::default() }),
            WHOAMI => payload(format!("{caller:?} local={}", caller.is_local()).into_bytes()),
            MANY_FDS => {
                let null = || std::fs::File::open("/dev/null").unwrap().into();
                Ok(Reply { fds: (0..65).map(|_| null()).collect(), ..Reply::default() })
            }
            SLURP => {
                let whole = call.bulk.read_to_end(&mut Vec::new()).is_ok();
                self.update(|state| state.slurps.push(whole));
                payload(Vec::new())
            }
            LEND => {
                let (how, bytes) = match call.lend_input(call.bulk_bytes as usize) {
                    Some(bytes) => ("lent", bytes.to_vec()),
                    None => {
                        let mut bytes = Vec::new();
                        call.bulk.read_to_end(&mut bytes).map_err(|error| Error::io("read bulk", error))?;
                        ("read", bytes)
                    }
                };
                payload([how.as_bytes(), &frame_checksum(&bytes).to_le_bytes()].concat())
            }
            FILL => {
                let bytes = pattern(number() as usize);
                if let Some(mut room) = call.lend_output(bytes.len()) {
                    room.copy_from(&bytes);
                    return payload(b"lent".to_vec());
                }
                call.output
                    .write_all(&bytes)
                    .map_err(|error| Error::new(ErrorKind::TooLarge, error.to_string()))?;
                payload(b"written".to_vec())
            }
            PIPE => {
                let io = |error| Error::io("pipe", error);
                loop {
                    let piece = call.bulk.chunk(100_000).map_err(io)?.to_vec();
                    if piece.is_empty() {
                        return payload(call.output.written().to_le_bytes().to_vec());
                    }
                    call.output.write_all(&piece).map_err(io)?;
                }
            }
            NAP => {
                std::thread::sleep(Duration::from_millis(number()));
                Ok(Reply { fds: vec![std::fs::File::open("/dev/null").unwrap().into()], ..Reply::default() })
            }
            NUMBER => payload(caller.connection.to_le_bytes().to_vec()),
            other => Err(Error::new(ErrorKind::Unsupported, format!("no function {other}"))),
        }
    }

    fn answered(&self, _caller: &Caller) {
        self.update(|state| state.answered += 1);
        self.wait("the gate opens", |state| state.gate_open || !state.is_slow_after);
    }

    fn detach(&self, caller: &Caller) {
        self.update(|state| *state.detached.entry(caller.connection).or_default() += 1);
    }
}
