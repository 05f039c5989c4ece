//! Typed calls to one daemon, on this machine or another. Sessions, pushers and the operator's tool
//! use them.
//!
//! One [`Remote`] is one connection: one call at a time, not for several threads. A dataset handle
//! is valid only on the connection that opened it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_call::{ClusterKey, Connection, Identity, Reply};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Credentials, Error, ErrorKind, Origin, Result, RunSet};
use zazen_frames::messages::{
    AskPlaces, BatchEntry, Bring, CloseDataset, DatasetInfo, Evict, Evicted, Fetch, Fetched, Holdings, List,
    Listing, OpenDataset, OpenRead, OpenedRead, Pin, Places, Push, PushFate, PushMany, Pushed, PushedMany,
    Query, ReadMany, ReportBad, ScanBatch, ScanClose, ScanNext, ScanOpen, ScanOpened, Verified, Verify,
    frames_fn,
};
use zazen_frames::scan_record::{AskNotes, AskReadNotes, AskRecords, Records, ScanNotes, ScanRecord};
use zazen_wire::control::{Examine, NodeInfo, control_fn};
use zazen_wire::{Message, service};

/// How long a daemon may take to accept a connection and to prove the key.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This machine's daemon, at its socket.
    Local(PathBuf),
    /// `host:port`; needs the cluster key.
    Tcp(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Local(path) => write!(f, "daemon at {}", path.display()),
            Target::Tcp(addr) => write!(f, "daemon at {addr}"),
        }
    }
}

/// The identity that this process states to daemons on other machines.
pub fn own_identity() -> Identity {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Identity {
        credentials: Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        },
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
    }
}

/// A batch of a scan: entries, the descriptors they index, and the inline bytes one after the
/// other.
#[derive(Debug)]
pub struct Batch {
    /// The frames; empty at the scan's end.
    pub entries: Vec<BatchEntry>,
    /// What [`BatchEntry::fd`] indexes.
    pub fds: Vec<OwnedFd>,
    /// Bytes of the `Inline` entries, in their order.
    pub bulk: Vec<u8>,
}

/// A connection to one daemon.
pub struct Remote {
    connection: Connection,
    target: Target,
    /// Whose rights the connection has: those that the process had when it connected.
    who: Credentials,
}

impl Remote {
    /// Connects; `key` is needed for [`Target::Tcp`]. `Unavailable` if nothing listens,
    /// `Authentication` if the keys differ.
    pub fn connect(target: &Target, key: Option<&ClusterKey>) -> Result<Remote> {
        Remote::connect_within(target, key, CONNECT_TIMEOUT)
    }

    /// As [`Remote::connect`] with another time limit.
    pub fn connect_within(target: &Target, key: Option<&ClusterKey>, timeout: Duration) -> Result<Remote> {
        let identity = own_identity();
        let connection = match target {
            Target::Local(path) => Connection::unix(path, timeout)?,
            Target::Tcp(addr) => {
                let key = key.ok_or_else(|| {
                    Error::new(
                        ErrorKind::Authentication,
                        format!(
                            "{target}: a daemon on another machine wants the cluster key; \
                             give --key or set $ZAZEN_KEY"
                        ),
                    )
                })?;
                Connection::tcp(addr, key, &identity, timeout)?
            }
        };
        Ok(Remote { connection, target: target.clone(), who: identity.credentials })
    }

    /// The daemon that it is connected to.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whose rights the connection has: the process may have taken others since.
    pub(crate) fn who(&self) -> &Credentials {
        &self.who
    }

    /// False once a call failed in the middle. Then make a new connection.
    pub fn is_alive(&self) -> bool {
        self.connection.is_alive()
    }

    /// The time allowed for each later reply; `None`: no bound.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.connection.set_timeout(timeout);
    }

    /// From now on, if a local daemon does not answer a call within `silence`, it is pinged on
    /// another connection. If it does not answer the ping within the same time (at most
    /// [`CONNECT_TIMEOUT`]), the call is `TimedOut` and the connection is dead. A busy daemon
    /// answers pings.
    pub(crate) fn give_up_after(&mut self, silence: Duration) {
        let target = self.target.clone();
        if matches!(target, Target::Local(_)) {
            self.connection.watch(silence, move || answers(&target, silence.min(CONNECT_TIMEOUT)));
        }
    }

    fn control(&mut self, function: u16) -> Result<Reply> {
        self.connection.call(service::CONTROL, function, &[], &[])
    }

    fn frames<A: Message>(&mut self, function: u16, arguments: &A, bulk: &[&[u8]]) -> Result<Reply> {
        self.connection.call(service::FRAMES, function, &arguments.encode(), bulk)
    }

    fn ask<A: Message, R: Message>(&mut self, function: u16, arguments: &A) -> Result<R> {
        let reply = self.frames(function, arguments, &[])?;
        self.understood(&reply)
    }

    /// Fails if the daemon asks for the same page again and again.
    fn goes_on(&self, from: u64, next: Option<u64>) -> Result<()> {
        match next {
            Some(next) if next <= from => Err(Error::new(
                ErrorKind::Protocol,
                format!("{}: it answered from frame {from} on, and says to go on at {next}", self.target),
            )),
            _ => Ok(()),
        }
    }

    /// Decodes an answer. If it cannot be decoded, for whatever reason, the error is `Protocol`.
    fn understood<R: Message>(&self, reply: &Reply) -> Result<R> {
        R::decode(&reply.payload).map_err(|error| {
            Error::new(ErrorKind::Protocol, format!("{}: its answer can't be read: {error}", self.target))
        })
    }

    fn text(&self, reply: Reply) -> Result<String> {
        String::from_utf8(reply.payload).map_err(|_| {
            Error::new(ErrorKind::Protocol, format!("{}: its answer is not UTF-8 text", self.target))
        })
    }

    /// Who it is.
    pub fn hello(&mut self) -> Result<NodeInfo> {
        let reply = self.control(control_fn::HELLO)?;
        self.understood(&reply)
    }

    /// Its status as JSON.
    pub fn status(&mut self) -> Result<String> {
        let reply = self.control(control_fn::STATUS)?;
        self.text(reply)
    }

    /// Its whole state as text for a person.
    pub fn dump(&mut self) -> Result<String> {
        let reply = self.control(control_fn::DUMP)?;
        self.text(reply)
    }

    /// What it finds on its node, as JSON for `zazen doctor`. `PermissionDenied` for all but root,
    /// the daemon's user and key holders; `Unsupported` by a daemon of an older version; `Protocol`
    /// if not all bytes that were asked for arrived.
    pub fn examine(&mut self, how: &Examine) -> Result<String> {
        let reply = self.connection.call(service::CONTROL, control_fn::EXAMINE, &how.encode(), &[])?;
        if reply.bulk.len() != how.answer_bytes as usize {
            let (sent, target) = (reply.bulk.len(), &self.target);
            let text = format!("{target}: {sent} bytes came with its answer, not {}", how.answer_bytes);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        self.text(reply)
    }

    /// Whether it answers.
    pub fn ping(&mut self) -> Result<()> {
        self.control(control_fn::PING).map(drop)
    }

    /// Its datasets as JSON.
    pub fn datasets(&mut self) -> Result<String> {
        let reply = self.connection.call(service::FRAMES, frames_fn::DATASETS, &[], &[])?;
        self.text(reply)
    }

    /// Opens the dataset at the absolute path `path`.
    pub fn open(&mut self, path: &Path, pattern: Option<&str>, want_extent: bool) -> Result<DatasetInfo> {
        let path = utf8(path)?.to_owned();
        let pattern = pattern.map(str::to_owned);
        self.ask(frames_fn::OPEN, &OpenDataset { path, want_extent, pattern, only_cached: false })
    }

    /// Opens a dataset, and reads it if it is a short file that is cached. A local daemon only;
    /// `Unsupported` by a daemon of an older release.
    pub(crate) fn open_read(&mut self, ask: &OpenRead) -> Result<(DatasetInfo, Batch)> {
        let reply = self.frames(frames_fn::OPEN_READ, ask, &[])?;
        let OpenedRead { info, batch } = self.understood(&reply)?;
        Ok((info, Batch { entries: batch.entries, fds: reply.fds, bulk: reply.bulk }))
    }

    /// Gives an opened dataset's handle back.
    pub fn close(&mut self, handle: u32) -> Result<()> {
        self.frames(frames_fn::CLOSE, &CloseDataset { handle }, &[]).map(drop)
    }

    /// Opens what the cache has of a directory: the series of `pattern`, or the only series. The
    /// answer lists all series. The backing store is not asked for a layout.
    pub fn open_cached(&mut self, path: &Path, pattern: Option<&str>) -> Result<DatasetInfo> {
        let path = utf8(path)?.to_owned();
        let pattern = pattern.map(str::to_owned);
        self.ask(frames_fn::OPEN, &OpenDataset { path, want_extent: false, pattern, only_cached: true })
    }

    /// What the node holds of begin ..= end at stride.
    pub fn query(&mut self, handle: u32, begin: u64, end: u64, stride: u64) -> Result<Holdings> {
        self.ask(frames_fn::QUERY, &Query { handle, begin, end, stride })
    }

    /// All that the node holds of a dataset.
    pub fn query_all(&mut self, handle: u32) -> Result<Holdings> {
        self.query(handle, 0, FRAME_NO_MAX, 1)
    }

    /// Begins a scan. This and the next two work with local daemons only.
    pub fn scan_open(&mut self, handle: u32, set: RunSet) -> Result<ScanOpened> {
        self.ask(frames_fn::SCAN_OPEN, &ScanOpen { handle, set })
    }

    /// The next frames of a scan; empty when it has handed out everything.
    pub fn scan_next(&mut self, scan: u32, frames_max: u16, bytes_max: u64) -> Result<Batch> {
        let reply = self.frames(frames_fn::SCAN_NEXT, &ScanNext { scan, frames_max, bytes_max }, &[])?;
        let batch: ScanBatch = self.understood(&reply)?;
        Ok(Batch { entries: batch.entries, fds: reply.fds, bulk: reply.bulk })
    }

    /// Frames of `set`, each once, in storage order: as many as fit into one answer, and at least
    /// one. For random access; works with local daemons only.
    pub fn read_many(&mut self, handle: u32, set: RunSet, bytes_max: u64) -> Result<Batch> {
        let reply = self.frames(frames_fn::READ_MANY, &ReadMany { handle, set, bytes_max }, &[])?;
        let batch: ScanBatch = self.understood(&reply)?;
        Ok(Batch { entries: batch.entries, fds: reply.fds, bulk: reply.bulk })
    }

    /// Where cached frames lie, and the files that hold them. A local daemon only; `Unsupported` by
    /// a daemon of an older release, `Protocol` if an answer names a file that did not come.
    pub fn places(&mut self, ask: &AskPlaces) -> Result<(Places, Vec<OwnedFd>)> {
        let reply = self.frames(frames_fn::PLACES, ask, &[])?;
        let places: Places = self.understood(&reply)?;
        let files = reply.fds.len();
        if places.paths.len() != files || places.frames.iter().any(|frame| usize::from(frame.file) >= files) {
            let why = format!("{}: its places are in files that it did not send", self.target);
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        Ok((places, reply.fds))
    }

    /// Ends a scan before it has handed out everything.
    pub fn scan_close(&mut self, scan: u32) -> Result<()> {
        self.frames(frames_fn::SCAN_CLOSE, &ScanClose { scan }, &[]).map(drop)
    }

    /// Why frames of a scan were not in the cache. A local daemon only.
    pub(crate) fn scan_notes(&mut self, scan: u32) -> Result<ScanNotes> {
        self.ask(frames_fn::SCAN_NOTES, &AskNotes { scan })
    }

    /// Why frames were not in the cache that this connection read by [`Remote::read_many`]. A local
    /// daemon only.
    pub fn read_notes(&mut self, handle: u32) -> Result<ScanNotes> {
        self.ask(frames_fn::READ_NOTES, &AskReadNotes { handle })
    }

    /// Keeps a scan's record for `zazen explain`. A local daemon only.
    pub(crate) fn keep_record(&mut self, record: &ScanRecord) -> Result<()> {
        self.frames(frames_fn::KEEP_RECORD, record, &[]).map(drop)
    }

    /// What the daemon knows of a dataset's last scans.
    pub fn records(&mut self, handle: u32) -> Result<Records> {
        self.ask(frames_fn::RECORDS, &AskRecords { handle })
    }

    /// Stores a frame as a native.
    pub fn push(&mut self, push: &Push, bytes: &[u8]) -> Result<Pushed> {
        let reply = self.frames(frames_fn::PUSH, push, &[bytes])?;
        self.understood(&reply)
    }

    /// Stores some frames as natives, each by itself: their outcomes, in their order. `Unsupported`
    /// from a daemon of an older release.
    pub fn push_many(&mut self, pushes: Vec<Push>, bytes: &[&[u8]]) -> Result<Vec<Result<Pushed>>> {
        let count = pushes.len();
        let reply = self.frames(frames_fn::PUSH_MANY, &PushMany { pushes }, bytes)?;
        let PushedMany { fates } = self.understood(&reply)?;
        if fates.len() != count {
            let why = format!("{}: it answered {} fates for {count} frames", self.target, fates.len());
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        Ok(fates.into_iter().map(PushFate::outcome).collect())
    }

    /// Reports a frame whose bytes do not match its checksum.
    pub fn report_bad(&mut self, handle: u32, number: u64) -> Result<()> {
        self.frames(frames_fn::REPORT_BAD, &ReportBad { handle, number }, &[]).map(drop)
    }

    /// Fills the cache from the backing store; answers when all of `set` is done.
    pub fn fetch(&mut self, handle: u32, set: RunSet, origin: Origin) -> Result<Fetched> {
        self.ask(frames_fn::FETCH, &Fetch { handle, set, origin })
    }

    /// Fills the cache from the copies of the node `holder`; answers when all of `set` is done.
    pub fn bring(&mut self, handle: u32, set: RunSet, holder: u128) -> Result<Fetched> {
        self.ask(frames_fn::BRING, &Bring { handle, set, holder })
    }

    /// Removes `set` (`None`: the whole dataset) from the cache; `Busy` if it is pinned.
    pub fn evict(&mut self, handle: u32, set: Option<RunSet>) -> Result<Evicted> {
        self.ask(frames_fn::EVICT, &Evict { handle, set })
    }

    /// Pins or unpins a dataset.
    pub fn pin(&mut self, handle: u32, pinned: bool) -> Result<()> {
        self.frames(frames_fn::PIN, &Pin { handle, pinned }, &[]).map(drop)
    }

    /// Checks cached frames against their checksums, from number `from` on, `frames_max` at most.
    pub fn verify(&mut self, handle: u32, from: u64, frames_max: u32) -> Result<Verified> {
        let verified: Verified = self.ask(frames_fn::VERIFY, &Verify { handle, from, frames_max })?;
        self.goes_on(from, verified.next)?;
        Ok(verified)
    }

    /// Rows of cached frames, from number `from` on, `rows_max` at most.
    pub fn list(&mut self, handle: u32, from: u64, rows_max: u32) -> Result<Listing> {
        let listing: Listing = self.ask(frames_fn::LIST, &List { handle, from, rows_max })?;
        self.goes_on(from, listing.next)?;
        Ok(listing)
    }
}

/// Whether the daemon at `target` answers each request of a new caller within `timeout`.
pub(crate) fn answers(target: &Target, timeout: Duration) -> bool {
    let pinged = Remote::connect_within(target, None, timeout).and_then(|mut remote| {
        remote.set_timeout(Some(timeout));
        remote.ping()
    });
    // A daemon with too many connections is alive.
    !pinged.is_err_and(|error| error.kind() != ErrorKind::Busy)
}

/// Whether an error says that the daemon, not the request, is at fault. Then another way may still
/// succeed.
pub(crate) fn daemon_is_gone(error: &Error) -> bool {
    use ErrorKind::{Authentication, Busy, Io, Protocol, ShuttingDown, TimedOut, Unavailable};
    matches!(error.kind(), Unavailable | TimedOut | Protocol | ShuttingDown | Busy | Io | Authentication)
}

/// The path as text, as it is sent.
pub(crate) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("path {}: is not UTF-8; rename it", path.display()))
    })
}
