//! The client: a [`Backing`] over a few pooled connections.

use super::view::ServedView;
use super::{
    ListDirectory, Names, OpenFile, READ_BYTES_MAX, ReadFile, STATS_MAX, StatMany, StatMessage, Stats,
    Traffic, function, receive, send,
};
use crate::{Backing, DirectoryNames, Rights, SourceFile, SourceStat};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Validator};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, Kind};

/// Idle connections kept.
const POOL_MAX: usize = 16;
/// A server that does not accept a connection within this time counts as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that sends nothing for this time in the middle of an answer counts as hung.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection with a server.
pub trait Carrier: Read + Write + Send {
    /// Bounds each wait for the server from now on.
    fn set_patience(&self, patience: Duration) -> std::io::Result<()>;
}

impl Carrier for TcpStream {
    fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Carrier for UnixStream {
    fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

/// How connections are made.
pub trait Dial: Send + Sync {
    /// For messages: "file server 10.0.0.1:9100".
    fn describe(&self) -> String;
    /// A new connection; `Unavailable` or `TimedOut` if there is no server.
    fn dial(&self) -> Result<Box<dyn Carrier>>;
}

/// How long a server may send nothing in the middle of an answer, before it counts as hung.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// While a directory is listed.
    pub list: Duration,
    /// While bytes of a file are written, which may wait for those before them.
    pub write: Duration,
    /// In all other calls.
    pub call: Duration,
}

/// A directory behind a [`super::FileServer`]. Shared by threads; each call takes a connection of
/// its own.
#[derive(Clone)]
pub struct ServedBacking {
    link: Arc<Link>,
}

impl ServedBacking {
    /// The server at `addr`, written `host:port` or `tcp://host:port`. It need not answer yet; a
    /// call that cannot reach it is `Unavailable`. `Config` for an address of another form.
    pub fn connect(addr: &str) -> Result<ServedBacking> {
        let bare = addr.strip_prefix("tcp://").unwrap_or(addr).trim_end_matches('/');
        let port = bare.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("file server address {addr:?}: give tcp://HOST:PORT"),
            ));
        }
        let patience = Patience { list: STALL_TIMEOUT, write: STALL_TIMEOUT, call: STALL_TIMEOUT };
        Ok(ServedBacking::over(Box::new(TcpServer(bare.to_owned())), patience))
    }

    /// The server that `dial` connects to.
    pub fn over(dial: Box<dyn Dial>, patience: Patience) -> ServedBacking {
        let (pool, reads, bytes) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        ServedBacking { link: Arc::new(Link { dial, patience, pool, reads, bytes }) }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// What the server has done for all its clients.
    pub fn server_traffic(&self) -> Result<Traffic> {
        Traffic::decode(&self.link.call(function::TRAFFIC, &[])?)
    }
}

impl Backing for ServedBacking {
    fn describe(&self) -> String {
        self.link.describe()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        let mut stats = self.stat_many(std::slice::from_ref(path))?;
        stats.pop().unwrap_or_else(|| Err(self.link.short_answer()))
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        let mut all = Vec::with_capacity(paths.len());
        for part in paths.chunks(STATS_MAX) {
            let Stats(stats) =
                Stats::decode(&self.link.call(function::STAT_MANY, &StatMany(part.to_vec()).encode())?)?;
            if stats.len() != part.len() {
                return Err(self.link.short_answer());
            }
            all.extend(stats);
        }
        Ok(all)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        let stat = StatMessage::decode(&self.link.call(function::OPEN, &OpenFile(path.clone()).encode())?)?.0;
        Ok(Box::new(ServedFile { link: self.link.clone(), path: path.clone(), stat }))
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.link.list(path, false).map(DirectoryNames::from)
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.link.list(path, true).map(DirectoryNames::from)
    }

    /// The view of the server's own user: it may do what the server does.
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.stat(path).map(|_| !rights.contains(Rights::WRITE))
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        Ok(Arc::new(ServedView { inner: Arc::new(self.clone()), who: who.clone() }))
    }

    fn traffic(&self) -> (u64, u64) {
        (self.link.reads.load(Ordering::Relaxed), self.link.bytes.load(Ordering::Relaxed))
    }
}

struct ServedFile {
    link: Arc<Link>,
    path: RelPath,
    stat: SourceStat,
}

impl SourceFile for ServedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let wanted = buffer.len().min(READ_BYTES_MAX);
        let buffer = &mut buffer[..wanted];
        let read = self.link.read(&self.path, self.stat.validator, buffer, offset);
        let read =
            read.map_err(|error| error.within(format!("{} on {}", self.path, self.link.describe())))?;
        self.link.reads.fetch_add(1, Ordering::Relaxed);
        self.link.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn stat_now(&self) -> Result<SourceStat> {
        ServedBacking { link: self.link.clone() }.stat(&self.path)
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

/// A file server by its address.
struct TcpServer(String);

impl Dial for TcpServer {
    fn describe(&self) -> String {
        format!("file server {}", self.0)
    }

    fn dial(&self) -> Result<Box<dyn Carrier>> {
        let away = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => ErrorKind::TimedOut,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, format!("{} does not answer; start it or check the address", self.describe()))
                .caused_by(error)
        };
        let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for addr in self.0.to_socket_addrs().map_err(away)? {
            match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(away)?;
                    return Ok(Box::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(away(last))
    }
}

pub(super) struct Link {
    dial: Box<dyn Dial>,
    patience: Patience,
    pool: Mutex<Vec<Box<dyn Carrier>>>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Link {
    fn describe(&self) -> String {
        self.dial.describe()
    }

    fn short_answer(&self) -> Error {
        self.broken("left a question unanswered")
    }

    fn pool(&self) -> MutexGuard<'_, Vec<Box<dyn Carrier>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and its answer. A pooled connection may have died with a server that was
    /// restarted since, so a lost connection is not yet an error. All requests can be repeated.
    fn exchange<T>(
        &self,
        patience: Duration,
        ask: &mut dyn FnMut(&mut dyn Carrier) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        loop {
            let pooled = self.pool().pop();
            let fresh = pooled.is_none();
            let mut stream = match pooled {
                Some(stream) => stream,
                None => self.dial.dial()?,
            };
            stream.set_patience(patience).map_err(|error| Error::io(self.describe(), error))?;
            let answer = match ask(&mut *stream) {
                Ok(answer) => Ok(answer),
                Err(Failure::Answered(error)) => Err(error),
                Err(Failure::Lost(error)) if fresh || error.kind() == ErrorKind::TimedOut => {
                    return Err(error);
                }
                Err(Failure::Lost(_)) => continue,
            };
            let mut pool = self.pool();
            if pool.len() < POOL_MAX {
                pool.push(stream);
            }
            return answer;
        }
    }

    /// A connection that writes one file, and then ends.
    pub(super) fn dial_to_write(&self) -> Result<Box<dyn Carrier>> {
        let carrier = self.dial.dial()?;
        carrier.set_patience(self.patience.write).map_err(|error| Error::io(self.describe(), error))?;
        Ok(carrier)
    }

    pub(super) fn call(&self, function: u16, request: &[u8]) -> Result<Vec<u8>> {
        let patience = if function == function::LIST { self.patience.list } else { self.patience.call };
        self.exchange(patience, &mut |stream| match self.ask(&mut { stream }, function, request)? {
            (0, payload) => Ok(payload),
            _ => Err(Failure::Lost(self.broken("sent data unasked"))),
        })
    }

    fn list(&self, path: &RelPath, files_only: bool) -> Result<Vec<String>> {
        let request = ListDirectory { path: path.clone(), files_only }.encode();
        Names::decode(&self.call(function::LIST, &request)?).map(|Names(names)| names)
    }

    fn read(&self, path: &RelPath, validator: Validator, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let length = buffer.len() as u32;
        let request = ReadFile { path: path.clone(), offset, length, validator }.encode();
        self.exchange(self.patience.call, &mut |mut stream| {
            let (bulk_bytes, _) = self.ask(&mut stream, function::READ, &request)?;
            if bulk_bytes > buffer.len() as u64 {
                return Err(Failure::Lost(self.broken("sent more than was asked for")));
            }
            let data = &mut buffer[..bulk_bytes as usize];
            stream.read_exact(data).map_err(|error| Failure::Lost(Error::io(self.describe(), error)))?;
            Ok(data.len())
        })
    }

    /// Sends a question and receives its answer: bulk bytes that follow, and the payload.
    pub(super) fn ask(
        &self,
        stream: &mut &mut dyn Carrier,
        function: u16,
        request: &[u8],
    ) -> std::result::Result<(u64, Vec<u8>), Failure> {
        let peer = self.describe();
        let closed = |error| Failure::Lost(Error::io(peer.clone(), error));
        send(stream, Kind::Request, function, 0, request, 0).map_err(closed)?;
        let reply = receive(stream, Kind::Reply, &peer).map_err(Failure::Lost)?;
        let (header, payload) = reply.ok_or_else(|| closed(std::io::ErrorKind::UnexpectedEof.into()))?;
        match header.status {
            0 => Ok((header.bulk_bytes, payload)),
            status => {
                let reply = ErrorReply::decode(&payload).map_err(Failure::Lost)?;
                Err(Failure::Answered(reply.into_error(status)))
            }
        }
    }

    fn broken(&self, what: &str) -> Error {
        Error::new(ErrorKind::Protocol, format!("{} {what}; check the address", self.describe()))
    }
}

/// Why a request failed: the server reported an error, or the connection broke.
pub(super) enum Failure {
    Answered(Error),
    Lost(Error),
}
