//! The server: one thread per connection, and one token bucket for all.

use super::upload::{Receiver, Writing};
use super::{
    ListDirectory, Names, OpenFile, READ_BYTES_MAX, ReadFile, STATS_MAX, STEP_BYTES, StatMany, StatMessage,
    Stats, TokenBucket, Traffic, function, receive, send,
};
use crate::{Backing, DirectoryBacking, Piece, SourceFile};
use std::collections::HashMap;
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_wire::Message;
use zazen_wire::header::{ErrorReply, Kind};

/// The most connections at once. A further connection is closed.
const CONNECTIONS_MAX: usize = 1024;

/// A running file server. Dropping it stops it.
pub struct FileServer {
    shared: Arc<Shared>,
    addr: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    tree: Arc<dyn Backing>,
    bucket: Option<TokenBucket>,
    rate_bytes_per_s: u64,
    stopping: AtomicBool,
    open: Mutex<HashMap<u64, TcpStream>>,
    opens: AtomicU64,
    stats: AtomicU64,
    lists: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

/// Serves the directory `root` on `listener` to everybody who connects. Sends at most
/// `rate_bytes_per_s` of file data to all clients together (`None`: no limit). The work is done by
/// threads of its own.
pub fn serve(listener: TcpListener, root: &Path, rate_bytes_per_s: Option<u64>) -> Result<FileServer> {
    let addr = listener.local_addr().map_err(|error| Error::io("address of the file server", error))?;
    let tree = Arc::new(DirectoryBacking::with_deadline(root, None)?);
    let shared = Arc::new(Shared::of(tree, rate_bytes_per_s));
    let accepting = shared.clone();
    let acceptor = std::thread::Builder::new()
        .name("file-server".into())
        .spawn(move || accept_all(&listener, &accepting))
        .map_err(|error| Error::io("start the file server's thread", error))?;
    Ok(FileServer { shared, addr, acceptor: Some(acceptor) })
}

impl FileServer {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it has done so far.
    pub fn traffic(&self) -> Traffic {
        self.shared.traffic()
    }

    /// Stops accepting and closes every connection.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wake the thread that waits in accept.
        TcpStream::connect(self.addr).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        for stream in self.shared.open().values() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers the questions of one peer about `tree` until it closes the connection.
pub fn answer_peer(stream: &mut (impl Read + Write), tree: Arc<dyn Backing>) -> Result<()> {
    talk(stream, "the daemon", &Shared::of(tree, None), None)
}

/// The same for a peer that also writes: `receiver` takes its files.
pub fn answer_writer(
    stream: &mut (impl Read + Write),
    tree: Arc<dyn Backing>,
    receiver: &dyn Receiver,
) -> Result<()> {
    talk(stream, "the program that writes", &Shared::of(tree, None), Some(receiver))
}

impl Shared {
    fn of(tree: Arc<dyn Backing>, rate_bytes_per_s: Option<u64>) -> Shared {
        Shared {
            tree,
            bucket: rate_bytes_per_s.map(TokenBucket::new),
            rate_bytes_per_s: rate_bytes_per_s.unwrap_or(0),
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            opens: AtomicU64::new(0),
            stats: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traffic(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            reads: get(&self.reads),
            bytes: get(&self.bytes),
            opens: get(&self.opens),
            stats: get(&self.stats),
            lists: get(&self.lists),
            connections: self.open().len() as u64,
            rate_bytes_per_s: self.rate_bytes_per_s,
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut next = 0;
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            // Probably the process has no descriptors left. Wait until some are closed.
            std::thread::sleep(std::time::Duration::from_millis(20));
            continue;
        };
        let Ok(kept) = stream.try_clone() else { continue };
        if shared.open().len() >= CONNECTIONS_MAX {
            continue;
        }
        let id = next;
        next += 1;
        shared.open().insert(id, kept);
        let ours = shared.clone();
        let spawned = std::thread::Builder::new().name("file-server-client".into()).spawn(move || {
            let mut stream = stream;
            stream.set_nodelay(true).ok();
            let peer = stream.peer_addr().map(|addr| addr.to_string()).unwrap_or_default();
            if let Err(error) = talk(&mut stream, &peer, &ours, None)
                && !ours.stopping.load(Ordering::SeqCst)
            {
                tracing::debug!("file server: {error}");
            }
            ours.open().remove(&id);
        });
        if spawned.is_err() {
            shared.open().remove(&id);
        }
    }
}

/// The file that a connection reads. A client reads files one after the other, in large pieces.
type Current = Option<(RelPath, Box<dyn SourceFile>)>;

fn talk(
    stream: &mut (impl Read + Write),
    peer: &str,
    shared: &Shared,
    receiver: Option<&dyn Receiver>,
) -> Result<()> {
    let lost = |error| Error::io(format!("connection with {peer}"), error);
    let mut current: Current = None;
    let mut writing = receiver.map(Writing::new);
    while let Some((header, payload)) = receive(stream, Kind::Request, peer)? {
        let function = header.function;
        let of_writing = writing.as_mut().and_then(|writing| writing.answer(function, &payload));
        let answer = match of_writing {
            Some(answer) => answer.map(|payload| (payload, Vec::new())),
            None => answer(shared, function, &payload, &mut current),
        };
        match answer {
            Ok((payload, bulk)) => {
                let bulk_bytes = bulk.iter().map(|piece| (**piece).as_ref().len() as u64).sum();
                send(stream, Kind::Reply, function, 0, &payload, bulk_bytes).map_err(lost)?;
                send_data(stream, &bulk, shared).map_err(lost)?;
            }
            Err(error) => {
                let payload = ErrorReply { message: error.to_string() }.encode();
                send(stream, Kind::Reply, function, error.kind() as u32, &payload, 0).map_err(lost)?;
            }
        }
    }
    Ok(())
}

fn send_data(stream: &mut impl Write, data: &[Piece], shared: &Shared) -> std::io::Result<()> {
    let pieces: Vec<&[u8]> = data.iter().map(|piece| (**piece).as_ref()).collect();
    let count = |bytes: usize| shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let Some(bucket) = &shared.bucket else {
        write_all(stream, &pieces)?;
        count(pieces.iter().map(|piece| piece.len()).sum());
        return Ok(());
    };
    for part in pieces.iter().flat_map(|piece| piece.chunks(bucket.portion_bytes())) {
        bucket.take(part.len());
        stream.write_all(part)?;
        count(part.len());
    }
    Ok(())
}

/// Writes all pieces, many by one call.
fn write_all(stream: &mut impl Write, pieces: &[&[u8]]) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut left = &mut slices[..];
    // Drops empty ones at the front.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(
    shared: &Shared,
    function: u16,
    payload: &[u8],
    current: &mut Current,
) -> Result<(Vec<u8>, Vec<Piece>)> {
    let count = |counter: &AtomicU64, by: usize| counter.fetch_add(by as u64, Ordering::Relaxed);
    let payload = match function {
        function::STAT_MANY => {
            let StatMany(paths) = StatMany::decode(payload)?;
            if paths.len() > STATS_MAX {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("{} paths in one stat, beyond the limit of {STATS_MAX}", paths.len()),
                ));
            }
            count(&shared.stats, paths.len());
            Stats(shared.tree.stat_many(&paths)?).encode()
        }
        function::OPEN => {
            let OpenFile(path) = OpenFile::decode(payload)?;
            count(&shared.opens, 1);
            let file = shared.tree.open(&path)?;
            let stat = file.stat();
            *current = Some((path, file));
            StatMessage(stat).encode()
        }
        function::LIST => {
            let ListDirectory { path, files_only } = ListDirectory::decode(payload)?;
            count(&shared.lists, 1);
            let names = if files_only { shared.tree.list_files(&path)? } else { shared.tree.list(&path)? };
            Names(names.into()).encode()
        }
        function::READ => {
            count(&shared.reads, 1);
            return read(shared, &ReadFile::decode(payload)?, current).map(|bulk| (Vec::new(), bulk));
        }
        function::TRAFFIC => shared.traffic().encode(),
        other => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the file server has no function {other}; install the same release on both sides"),
            ));
        }
    };
    Ok((payload, Vec::new()))
}

fn read(shared: &Shared, wanted: &ReadFile, current: &mut Current) -> Result<Vec<Piece>> {
    let fits = |(path, file): &(RelPath, Box<dyn SourceFile>)| {
        *path == wanted.path && file.stat().validator.looks_like(&wanted.validator)
    };
    let file = match current.take().filter(fits) {
        Some((_, file)) => file,
        None => shared.tree.open_version(&wanted.path, &wanted.validator)?,
    };
    if !file.stat().validator.looks_like(&wanted.validator) {
        return Err(Error::new(
            ErrorKind::Stale,
            format!("{} changed since it was opened; open it again", wanted.path),
        ));
    }
    let length = (wanted.length as usize).min(READ_BYTES_MAX);
    let (mut data, mut filled) = (Vec::new(), 0);
    while filled < length.min(STEP_BYTES as usize) {
        let pieces = file.read_pieces(length - filled, wanted.offset + filled as u64)?;
        if pieces.is_empty() {
            break;
        }
        filled += pieces.iter().map(|piece| (**piece).as_ref().len()).sum::<usize>();
        data.extend(pieces);
    }
    *current = Some((wanted.path.clone(), file));
    Ok(data)
}
