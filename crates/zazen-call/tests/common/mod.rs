//! What the tests of the call layer share: a service with one function per behaviour, a server on each carrier,
//! and a raw peer that speaks the protocol byte by byte, with a handshake written from the format's page.
#![allow(dead_code, missing_docs, unreachable_pub)]

use hmac::{Hmac, KeyInit, Mac};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use zazen_call::{
    Call, Caller, ClusterKey, Connection, Identity, Reply, Server, ServerLimits, Service, ShmLimits,
};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_wire::checksum::{crc32c, frame_checksum};
use zazen_wire::header::{Header, Kind};

pub const SERVICE: u16 = 7;
pub const ECHO: u16 = 1;
/// Reads all bulk; replies its length and CRC-64.
pub const SINK: u16 = 2;
/// Payload: u64 count; replies so many bulk bytes of a known pattern.
pub const SOURCE: u16 = 3;
/// Refuses with `Conflict` without touching the bulk.
pub const REFUSE: u16 = 4;
/// Reads 10 bulk bytes only.
pub const SIP: u16 = 5;
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
/// Payload: u64 count; fills so many bytes of the caller's room with the pattern, in place if it can; says which.
pub const FILL: u16 = 13;
/// Reads the bulk in pieces and writes each to the output as it comes.
pub const PIPE: u16 = 14;
/// Payload: u64 milliseconds; sleeps, then replies with a descriptor.
pub const NAP: u16 = 15;
/// Works until its caller is gone.
pub const UNTIL_CUT: u16 = 17;
/// Replies the caller's number.
pub const NUMBER: u16 = 16;

pub const KEY: &[u8] = b"sixteen bytes or more of test key";
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the service saw.
#[derive(Default)]
pub struct Probe {
    state: Mutex<ProbeState>,
    changed: Condvar,
}

#[derive(Default)]
pub struct ProbeState {
    pub calls: u64,
    pub detached: BTreeMap<u64, u32>,
    pub waiting: u32,
    pub gate_open: bool,
    pub slurps: Vec<bool>,
    /// Calls that ended since their callers had gone.
    pub cut: u32,
}

impl Probe {
    pub fn wait(&self, what: &str, until: impl Fn(&ProbeState) -> bool) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) =
            self.changed.wait_timeout_while(state, PATIENCE, |state| !until(state)).unwrap();
        assert!(!timeout.timed_out(), "never happened: {what}");
    }

    pub fn open_gate(&self) {
        self.state.lock().unwrap().gate_open = true;
        self.changed.notify_all();
    }

    pub fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    pub fn detached(&self) -> BTreeMap<u64, u32> {
        self.state.lock().unwrap().detached.clone()
    }

    fn update(&self, change: impl FnOnce(&mut ProbeState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

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

    fn detach(&self, caller: &Caller) {
        self.update(|state| *state.detached.entry(caller.connection).or_default() += 1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Unix,
    Tcp,
    Shm,
}

/// Those on which messages are byte streams that a test can write by hand.
pub const STREAMS: [Carrier; 2] = [Carrier::Unix, Carrier::Tcp];
pub const CARRIERS: [Carrier; 3] = [Carrier::Unix, Carrier::Tcp, Carrier::Shm];

/// A server with a [`Probe`] that listens on both carriers.
pub struct Bench {
    pub server: Server,
    pub probe: Arc<Probe>,
    pub socket: PathBuf,
    pub address: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() })
    }

    pub fn with(limits: ServerLimits) -> Bench {
        Bench::with_shm(limits, ShmLimits::default())
    }

    pub fn with_shm(limits: ServerLimits, shm: ShmLimits) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let probe = Arc::new(Probe::default());
        let services = vec![Arc::clone(&probe) as Arc<dyn Service>];
        let server = Server::with_shm(services, Some(key(KEY)), limits, shm);
        let socket = folder.path().join("zazend.sock");
        server.listen_unix(&socket).unwrap();
        let address = server.listen_tcp("127.0.0.1:0").unwrap();
        Bench { server, probe, socket, address, folder }
    }

    pub fn connect(&self, carrier: Carrier) -> Connection {
        self.try_connect(carrier).unwrap()
    }

    pub fn try_connect(&self, carrier: Carrier) -> Result<Connection> {
        let mut connection = match carrier {
            Carrier::Unix => Connection::local(&self.socket, zazen_call::Carrier::Unix, PATIENCE)?,
            Carrier::Shm => Connection::local(&self.socket, zazen_call::Carrier::Shm, PATIENCE)?,
            Carrier::Tcp => Connection::tcp(&self.address.to_string(), &key(KEY), &identity(), PATIENCE)?,
        };
        connection.set_timeout(Some(PATIENCE));
        Ok(connection)
    }

    /// A peer that writes bytes of its own; on TCP it has proven the key.
    pub fn raw(&self, carrier: Carrier) -> Raw {
        match carrier {
            Carrier::Shm => panic!("records in shared memory are not bytes on a stream"),
            Carrier::Unix => Raw::new(Box::new(UnixStream::connect(&self.socket).unwrap())),
            Carrier::Tcp => {
                let mut raw = self.raw_unproven();
                raw.shake_hands(KEY).unwrap();
                raw
            }
        }
    }

    pub fn raw_unproven(&self) -> Raw {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw::new(Box::new(stream))
    }

    /// The server still serves, on both streams.
    pub fn assert_serves(&self) {
        for carrier in STREAMS {
            let reply = self.connect(carrier).call(SERVICE, ECHO, b"still here?", &[]).unwrap();
            assert_eq!(reply.payload, b"still here?");
        }
    }

    /// Waits until no connection is left, and checks that each was detached once.
    pub fn assert_all_detached(&self, connections: usize) {
        self.probe.wait("all connections are detached", |state| state.detached.len() >= connections);
        let detached = self.probe.detached();
        assert!(detached.values().all(|count| *count == 1), "{detached:?}");
        assert_eq!(detached.len(), connections);
    }
}

pub fn key(bytes: &[u8]) -> ClusterKey {
    ClusterKey::from_bytes(bytes).unwrap()
}

pub fn identity() -> Identity {
    Identity {
        credentials: Credentials { uid: 1234, gid: 567, groups: vec![8, 9, 10] },
        host: "testhost".to_owned(),
        pid: 4321,
    }
}

pub trait Socket: Read + Write + Send {
    fn end_writing(&self);
    fn set_read_timeout(&self, timeout: Duration);
}

impl Socket for UnixStream {
    fn end_writing(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
    fn set_read_timeout(&self, timeout: Duration) {
        UnixStream::set_read_timeout(self, Some(timeout)).unwrap();
    }
}

impl Socket for TcpStream {
    fn end_writing(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
    fn set_read_timeout(&self, timeout: Duration) {
        TcpStream::set_read_timeout(self, Some(timeout)).unwrap();
    }
}

pub struct Raw {
    pub socket: Box<dyn Socket>,
}

/// A request as bytes.
pub fn request(function: u16, call: u64, payload: &[u8], bulk: &[u8]) -> Vec<u8> {
    request_to(SERVICE, function, call, payload, bulk)
}

pub fn request_to(service: u16, function: u16, call: u64, payload: &[u8], bulk: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Request,
        service,
        function,
        status: 0,
        call,
        payload_bytes: payload.len() as u32,
        fd_count: 0,
        bulk_bytes: bulk.len() as u64,
        payload_crc: crc32c(payload),
        flags: 0,
        room: None,
    };
    [&header.encode()[..], payload, bulk].concat()
}

/// `bytes` with its header's CRC made right again after a change.
pub fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&bytes[..60]).to_le_bytes();
    bytes[60..64].copy_from_slice(&crc);
    bytes
}

impl Raw {
    pub fn new(socket: Box<dyn Socket>) -> Raw {
        socket.set_read_timeout(PATIENCE);
        Raw { socket }
    }

    /// Writes what the peer takes; a server that has closed is no failure of the test.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// The next reply: status and payload; `None` at the connection's end.
    pub fn reply(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut header = [0; 64];
        self.socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        assert_eq!(header.kind, Kind::Reply);
        let mut payload = vec![0; header.payload_bytes as usize];
        self.socket.read_exact(&mut payload).unwrap();
        header.check_payload(&payload).unwrap();
        Some((header.status, payload))
    }

    /// The reply's error kind and message.
    pub fn error(&mut self) -> (ErrorKind, String) {
        let (status, payload) = self.reply().expect("a reply before the end of the connection");
        let message = String::from_utf8(payload[4..].to_vec()).unwrap();
        (ErrorKind::from_code(status).expect("an error"), message)
    }

    pub fn assert_closed(&mut self) {
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection is not closed: {other:?}"),
        }
    }

    /// The client's half of the handshake, from `docs/formats/wire.md` and no code of the crate's.
    pub fn shake_hands(&mut self, key: &[u8]) -> std::result::Result<(), (ErrorKind, String)> {
        let hello = client_hello();
        self.send(&request_to(0, 1, 1, &hello, &[]));
        let (status, server_hello) = self.reply().unwrap();
        assert_eq!(status, 0, "{}", String::from_utf8_lossy(&server_hello));
        self.send(&request_to(0, 2, 2, &proof(key, "client", &hello, &server_hello), &[]));
        let (status, payload) = self.reply().unwrap();
        if status != 0 {
            let message = String::from_utf8(payload[4..].to_vec()).unwrap();
            return Err((ErrorKind::from_code(status).unwrap(), message));
        }
        assert_eq!(payload, proof(key, "server", &hello, &server_hello));
        Ok(())
    }
}

pub fn client_hello() -> Vec<u8> {
    let mut hello = Vec::new();
    hello.extend([1, 0, 1, 0]);
    hello.extend([0x5a; 32]);
    for number in [1234u32, 567, 2, 8, 9, 4321, 3] {
        hello.extend(number.to_le_bytes());
    }
    hello.extend(b"raw");
    hello
}

pub fn proof(key: &[u8], side: &str, client_hello: &[u8], server_hello: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
    let label = format!("zazen handshake 1 {side}");
    for part in [label.as_bytes(), client_hello, server_hello] {
        mac.update(&(part.len() as u32).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}
