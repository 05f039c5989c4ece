//! A small daemon for tests that need a misbehaving one. It serves the frames of a directory, as
//! natives, over the real call layer.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zazen_call::{Call, Caller, ClusterKey, Reply, Server, ServerLimits, Service};
use zazen_client::{Dataset, OpenOptions};
use zazen_core::{Error, ErrorKind, Layout, NameTemplate, RelPath, Request, Result, RunSet};
use zazen_frames::messages::*;
use zazen_wire::checksum::frame_checksum;
use zazen_wire::control::{NodeInfo, control_fn};
use zazen_wire::{Message, service};

/// How the fake misbehaves.
#[derive(Default)]
pub struct Script {
    /// Frames whose copy has bad bytes until it is reported.
    pub bad_once: BTreeSet<u64>,
    /// Frames whose copy has bad bytes for ever.
    pub bad_always: BTreeSet<u64>,
    /// Frames that are handed out inline.
    pub inline: BTreeSet<u64>,
    /// Frames that fail.
    pub failing: BTreeSet<u64>,
    /// All connections are cut after this many frames of scans.
    pub dies_after: Option<u64>,
    /// The answer is `ShuttingDown` after this many frames of scans.
    pub drains_after: Option<u64>,
    /// Frames are handed out twice.
    pub twice: bool,
    /// The scan ends after this many frames.
    pub ends_after: Option<u64>,
    /// The answer to a push, by number; `None`: silence.
    pub push_answers: BTreeMap<u64, Option<ErrorKind>>,
    /// The answer to every push.
    pub push_always: Option<ErrorKind>,
    /// Several frames in a message are taken, as daemons of this release do.
    pub takes_many: bool,
    /// After this many frames, FETCH gets `Unavailable` over a connection that then ends.
    pub fetch_dies_after: Option<u64>,
    /// Calls that get no answer, as if the daemon were stopped for that long: with 2, the next scan
    /// that is begun, and the ping that follows.
    pub stopped: u64,
}

pub struct Fake {
    pub root: PathBuf,
    pub script: Mutex<Script>,
    scans: Mutex<BTreeMap<u32, Vec<u64>>>,
    next_scan: AtomicU64,
    pub frames_out: AtomicU64,
    pub reported: Mutex<BTreeSet<u64>>,
    pub natives: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub listing_fails: AtomicBool,
    /// Frames that came in messages of several.
    pub came_together: AtomicU64,
    /// Calls of the frames service: function and connection.
    pub calls: Mutex<Vec<(u16, u64)>>,
    die: Mutex<Option<std::sync::mpsc::Sender<()>>>,
    dead: AtomicBool,
    /// Started for pushing and loading: its cache is empty at first.
    addr_only: bool,
    /// Length and checksum by frame, computed once, so that a bench does not measure the fake.
    files: Mutex<BTreeMap<u64, (u64, u64)>>,
}

pub const PATTERN: &str = "frame-{n:06}.bin";

pub fn name(number: u64) -> String {
    format!("frame-{number:06}.bin")
}

pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

pub fn write_frames(root: &Path, numbers: impl IntoIterator<Item = u64>, bytes: usize) {
    std::fs::create_dir_all(root).unwrap();
    for number in numbers {
        std::fs::write(root.join(name(number)), content(number, bytes)).unwrap();
    }
}

/// A running fake. Dropped, it stops.
pub struct Running {
    pub fake: Arc<Fake>,
    pub server: Arc<Server>,
    pub socket: PathBuf,
    pub addr: Option<String>,
    folder: tempfile::TempDir,
}

impl Running {
    pub fn start(root: &Path, script: Script) -> Running {
        Running::start_with(root, script, None)
    }

    pub fn start_with(root: &Path, script: Script, key: Option<ClusterKey>) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let (die, killer) = std::sync::mpsc::channel();
        let fake = Arc::new(Fake {
            root: root.to_owned(),
            script: Mutex::new(script),
            scans: Mutex::default(),
            next_scan: AtomicU64::new(1),
            frames_out: AtomicU64::new(0),
            reported: Mutex::default(),
            natives: Mutex::default(),
            listing_fails: AtomicBool::new(false),
            came_together: AtomicU64::new(0),
            calls: Mutex::default(),
            addr_only: key.is_some(),
            die: Mutex::new(Some(die)),
            dead: AtomicBool::new(false),
            files: Mutex::default(),
        });
        let limits = ServerLimits {
            connections_max: 100,
            stall_timeout: Duration::from_secs(10),
            ..ServerLimits::default()
        };
        let services: Vec<Arc<dyn Service>> =
            vec![Arc::new(Frames(fake.clone())), Arc::new(Control(fake.clone()))];
        let server = Arc::new(Server::new(services, key.clone(), limits));
        let socket = folder.path().join("fake.sock");
        server.listen_unix(&socket).unwrap();
        let addr = key.map(|_| server.listen_tcp("127.0.0.1:0").unwrap().to_string());
        let (server_too, fake_too) = (server.clone(), fake.clone());
        std::thread::spawn(move || {
            if killer.recv().is_ok() {
                fake_too.dead.store(true, Ordering::SeqCst);
                server_too.drain(Duration::ZERO);
            }
        });
        Running { fake, server, socket, addr, folder }
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions { socket: Some(self.socket.clone()), ..OpenOptions::default() }
    }

    pub fn open(&self) -> Dataset {
        Dataset::open(&self.fake.root, &self.options()).unwrap()
    }

    pub fn kill(&self) {
        if let Some(die) = self.fake.die.lock().unwrap().take() {
            die.send(()).unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.fake.die.lock().unwrap().take();
        self.server.drain(Duration::ZERO);
    }
}

/// Waits for longer than a reader that allows a second of silence, twice.
fn stopped() -> Error {
    std::thread::sleep(Duration::from_secs(4));
    Error::new(ErrorKind::Io, "it was stopped")
}

struct Control(Arc<Fake>);

impl Service for Control {
    fn id(&self) -> u16 {
        service::CONTROL
    }
    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let payload = match call.function {
            control_fn::HELLO => NodeInfo {
                node: 77,
                name: "fake".into(),
                version: "0".into(),
                backing_roots: vec![self.0.root.parent().unwrap().to_str().unwrap().to_owned()],
                cache_root: "/cache".into(),
                readers: 4,
            }
            .encode(),
            control_fn::PING if self.0.is_stopped(1) => return Err(stopped()),
            _ => Vec::new(),
        };
        Ok(Reply { payload, ..Reply::default() })
    }
    fn detach(&self, _caller: &Caller) {}
}

struct Frames(Arc<Fake>);

impl Service for Frames {
    fn id(&self) -> u16 {
        service::FRAMES
    }
    fn call(&self, caller: &Caller, mut call: Call<'_>) -> Result<Reply> {
        let fake = &self.0;
        fake.calls.lock().unwrap().push((call.function, caller.connection));
        let payload = call.payload;
        let payload = match call.function {
            frames_fn::OPEN => fake.open(OpenDataset::decode(payload)?)?.encode(),
            frames_fn::QUERY => {
                let query = Query::decode(payload)?;
                let request = Request::new(query.begin, query.end, query.stride)?;
                let mut held = if fake.addr_only { BTreeSet::new() } else { fake.numbers() };
                held.extend(fake.natives.lock().unwrap().keys());
                held.retain(|number| request.index_of(*number).is_some());
                Holdings { native: held.into_iter().collect(), alien: RunSet::new() }.encode()
            }
            frames_fn::SCAN_OPEN if fake.is_stopped(2) => return Err(stopped()),
            frames_fn::SCAN_OPEN => {
                let open = ScanOpen::decode(payload)?;
                let scan = fake.next_scan.fetch_add(1, Ordering::SeqCst) as u32;
                let mut numbers: Vec<_> = open.set.iter().collect();
                numbers.reverse();
                fake.scans.lock().unwrap().insert(scan, numbers);
                ScanOpened { scan, cached: open.set.len() }.encode()
            }
            frames_fn::SCAN_NEXT => return fake.scan_next(ScanNext::decode(payload)?),
            frames_fn::SCAN_CLOSE | frames_fn::KEEP_RECORD => Vec::new(),
            frames_fn::READ_MANY => return fake.read_many(ReadMany::decode(payload)?),
            frames_fn::REPORT_BAD => {
                let number = ReportBad::decode(payload)?.number;
                fake.reported.lock().unwrap().insert(number);
                fake.script.lock().unwrap().bad_once.remove(&number);
                Vec::new()
            }
            frames_fn::PUSH => return fake.push(Push::decode(payload)?, call.bulk_bytes, &mut call.bulk),
            frames_fn::PUSH_MANY if fake.script.lock().unwrap().takes_many => {
                let PushMany { pushes } = PushMany::decode(payload)?;
                assert!((2..=PUSHES_MAX).contains(&pushes.len()));
                fake.came_together.fetch_add(pushes.len() as u64, Ordering::SeqCst);
                let fates = pushes.into_iter().map(|push| {
                    let bytes = push.meta.length;
                    let mut part = Read::take(&mut *call.bulk, bytes);
                    let outcome = fake.push(push, bytes, &mut part);
                    std::io::copy(&mut part, &mut std::io::sink()).unwrap();
                    PushFate::of(&outcome.map(|reply| Pushed::decode(&reply.payload).unwrap()))
                });
                PushedMany { fates: fates.collect() }.encode()
            }
            frames_fn::FETCH => fake.fetch(Fetch::decode(payload)?)?.encode(),
            _ => return Err(Error::new(ErrorKind::Unsupported, "the fake cannot do that")),
        };
        Ok(Reply { payload, ..Reply::default() })
    }
    fn detach(&self, _caller: &Caller) {}
}

impl Fake {
    /// The numbers of the files in the directory.
    fn numbers(&self) -> BTreeSet<u64> {
        let template = NameTemplate::parse(PATTERN).unwrap();
        let names = std::fs::read_dir(&self.root).unwrap();
        let numbers = names.filter_map(|entry| template.number(entry.unwrap().file_name().to_str()?));
        numbers.map(|number| number.get()).collect()
    }

    fn open(&self, open: OpenDataset) -> Result<DatasetInfo> {
        if Path::new(&open.path) != self.root {
            return Err(Error::new(ErrorKind::NotFound, format!("no dataset {}", open.path)));
        }
        let listing = open.want_extent && !self.listing_fails.load(Ordering::SeqCst);
        Ok(DatasetInfo {
            handle: 1,
            dataset: RelPath::new(self.root.file_name().unwrap().to_str().unwrap()).unwrap(),
            layout: Some(Layout::Files(NameTemplate::parse(PATTERN).unwrap())),
            extent: listing.then(|| self.numbers().into_iter().collect()),
            backing_ok: true,
            series: Vec::new(),
        })
    }

    /// Whether a call is to get no answer, of which there is one where so many are left.
    fn is_stopped(&self, left: u64) -> bool {
        let stopped = &mut self.script.lock().unwrap().stopped;
        let is_it = *stopped == left;
        *stopped -= u64::from(is_it);
        is_it
    }

    fn wait_for_death(&self) -> Error {
        if let Some(die) = self.die.lock().unwrap().take() {
            die.send(()).unwrap();
        }
        // The server is closing every connection, so this answer reaches nobody.
        while !self.dead.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        Error::new(ErrorKind::Unavailable, "dead")
    }

    fn scan_next(&self, next: ScanNext) -> Result<Reply> {
        let script = self.script.lock().unwrap();
        let mut reply = Reply::default();
        let mut entries = Vec::new();
        let mut scans = self.scans.lock().unwrap();
        let left = scans.get_mut(&next.scan).unwrap();
        let mut bytes = 0;
        // Each frame has a descriptor of its own here.
        let frames_max = usize::from(next.frames_max).min(zazen_core::limits::FDS_PER_MESSAGE_MAX);
        while entries.len() < frames_max && (bytes < next.bytes_max || entries.is_empty()) {
            let out = self.frames_out.load(Ordering::SeqCst);
            if script.ends_after.is_some_and(|after| out >= after) {
                break;
            }
            if script.dies_after.is_some_and(|after| out >= after) {
                drop(scans);
                drop(script);
                return Err(self.wait_for_death());
            }
            let Some(number) = left.pop() else { break };
            let draining = script.drains_after.is_some_and(|after| out >= after);
            self.frames_out.fetch_add(1, Ordering::SeqCst);
            let entry = self.entry(&script, number, draining, &mut reply)?;
            bytes += entry.length;
            if script.twice {
                entries.push(entry.clone());
            }
            entries.push(entry);
        }
        reply.payload = ScanBatch { entries }.encode();
        Ok(reply)
    }

    /// A scan of one answer.
    fn read_many(&self, ask: ReadMany) -> Result<Reply> {
        let scan = self.next_scan.fetch_add(1, Ordering::SeqCst) as u32;
        let mut numbers: Vec<_> = ask.set.iter().collect();
        numbers.reverse();
        self.scans.lock().unwrap().insert(scan, numbers);
        self.scan_next(ScanNext { scan, frames_max: u16::MAX, bytes_max: ask.bytes_max })
    }

    fn entry(&self, script: &Script, number: u64, draining: bool, reply: &mut Reply) -> Result<BatchEntry> {
        let path = self.root.join(name(number));
        let mut entry = BatchEntry {
            number,
            delivery: Delivery::Native,
            fd: None,
            offset: 0,
            length: 0,
            checksum: None,
            path: path.to_str().unwrap().to_owned(),
            error: None,
            whole: true,
        };
        let refusal = if draining {
            Some((ErrorKind::ShuttingDown, "draining"))
        } else if script.failing.contains(&number) || !path.exists() {
            Some((ErrorKind::NotFound, "no such frame"))
        } else {
            None
        };
        if let Some((kind, why)) = refusal {
            entry.delivery = Delivery::Failed;
            entry.error = Some((kind as u32, why.to_owned()));
            return Ok(entry);
        }
        let mut files = self.files.lock().unwrap();
        let (length, checksum) = *files.entry(number).or_insert_with(|| {
            let bytes = std::fs::read(&path).unwrap();
            (bytes.len() as u64, frame_checksum(&bytes))
        });
        entry.length = length;
        entry.checksum = Some(checksum);
        if script.inline.contains(&number) {
            entry.delivery = Delivery::Inline;
            reply.bulk.extend(std::fs::read(&path).unwrap());
        } else if script.bad_once.contains(&number) || script.bad_always.contains(&number) {
            let mut file = tempfile::tempfile().unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            std::io::Write::write_all(&mut file, &bytes).unwrap();
            entry.fd = Some(reply.fds.len() as u16);
            reply.fds.push(OwnedFd::from(file));
        } else {
            entry.fd = Some(reply.fds.len() as u16);
            reply.fds.push(OwnedFd::from(std::fs::File::open(&path).unwrap()));
        }
        Ok(entry)
    }

    fn push(&self, push: Push, bulk_bytes: u64, bulk: &mut dyn Read) -> Result<Reply> {
        let number = push.meta.number.get();
        let script = self.script.lock().unwrap();
        let answer = script.push_answers.get(&number).copied();
        let always = script.push_always;
        drop(script);
        if answer == Some(None) {
            while !self.dead.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(kind) = answer.flatten().or(always) {
            return Err(Error::new(kind, "as the script says"));
        }
        let mut bytes = Vec::new();
        bulk.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, bulk_bytes);
        assert_eq!(frame_checksum(&bytes), push.meta.checksum);
        let before = self.natives.lock().unwrap().insert(number, bytes);
        let answer = if before.is_some() { Pushed::AlreadyHere } else { Pushed::Stored };
        Ok(Reply { payload: answer.encode(), ..Reply::default() })
    }

    fn fetch(&self, fetch: Fetch) -> Result<Fetched> {
        let mut done = Fetched { fetched: 0, present: 0, bytes: 0, failed: Vec::new() };
        for number in fetch.set.iter() {
            let dies = self.script.lock().unwrap().fetch_dies_after;
            if dies.is_some_and(|after| self.natives.lock().unwrap().len() as u64 >= after) {
                return Err(self.wait_for_death());
            }
            match std::fs::read(self.root.join(name(number))) {
                Ok(bytes) => {
                    done.bytes += bytes.len() as u64;
                    let before = self.natives.lock().unwrap().insert(number, bytes);
                    *if before.is_some() { &mut done.present } else { &mut done.fetched } += 1;
                }
                Err(_) => done.failed.push((number, ErrorKind::NotFound as u32, "no such file".into())),
            }
        }
        Ok(done)
    }
}

/// A key file and the key in it.
pub fn key(folder: &Path) -> (PathBuf, ClusterKey) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("key");
    std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = ClusterKey::from_file(&path).unwrap();
    (path, key)
}
