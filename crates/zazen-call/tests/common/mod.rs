//! What the tests of the call layer share: the contract's service, a server on each carrier, and a
//! raw peer that speaks the protocol byte by byte, with a handshake written from the format's page.
#![allow(dead_code, missing_docs, unreachable_pub)]

use hmac::{Hmac, KeyInit, Mac};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use zazen_call::contract::*;
use zazen_call::{ClusterKey, Connection, Identity, Server, ServerLimits, Service, ShmLimits};
use zazen_core::{Credentials, ErrorKind, Result};
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{Header, Kind};

pub const KEY: &[u8] = b"sixteen bytes or more of test key";

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
        let probe = Arc::new(Probe::default());
        Bench::of(Arc::clone(&probe), vec![probe], limits, shm)
    }

    pub fn of(
        probe: Arc<Probe>,
        services: Vec<Arc<dyn Service>>,
        limits: ServerLimits,
        shm: ShmLimits,
    ) -> Bench {
        let folder = tempfile::tempdir().unwrap();
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
        self.probe.assert_all_detached(connections);
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
