//! A node of one's own: directories for backing store, cache and socket, a daemon in this process,
//! and a client that speaks the messages directly.

#![allow(dead_code, unreachable_pub, clippy::print_stdout)]

use clap::Parser;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use zazen_call::{ClusterKey, Connection, Identity, Reply};
use zazen_core::{
    Credentials, Error, FrameMeta, FrameNo, Origin, RelPath, Result, RunSet, Series, Source, Validator,
};
use zazen_frames::messages::*;
use zazen_wire::checksum::frame_checksum;
use zazen_wire::control::control_fn;
use zazen_wire::{Message, service};
use zazend::config::{Args, Config};
use zazend::{Daemon, config};

/// Waits until what was written is old enough to be told from what is written next.
pub fn settle() {
    std::thread::sleep(Duration::from_nanos(zazen_core::frame::TICK_NS as u64 + 5_000_000));
}

/// One node's places, in a folder that goes with it.
pub struct Site {
    pub dir: tempfile::TempDir,
    places: zazen_testbed::Site,
}

impl Default for Site {
    fn default() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let places = zazen_testbed::Site::make(dir.path()).unwrap();
        Site { dir, places }
    }
}

impl std::ops::Deref for Site {
    type Target = zazen_testbed::Site;
    fn deref(&self) -> &zazen_testbed::Site {
        &self.places
    }
}

impl Site {
    /// Settings for a daemon here.
    pub fn args(&self) -> Args {
        Args::parse_from(std::iter::once("zazend".into()).chain(self.launch().flags()))
    }

    pub fn start(&self) -> Daemon {
        self.start_with(|_| {})
    }

    pub fn start_with(&self, change: impl FnOnce(&mut Args)) -> Daemon {
        let mut args = self.args();
        change(&mut args);
        Daemon::start(config::Config::assemble(&args).unwrap()).unwrap()
    }

    pub fn config(&self) -> Config {
        Config::assemble(&self.args()).unwrap()
    }

    /// Writes frames `numbers` of dataset `sim`, `length` bytes each, to the backing store; returns
    /// its path.
    pub fn dataset(&self, name: &str, numbers: impl IntoIterator<Item = u64>, length: usize) -> String {
        let folder = self.backing.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for number in numbers {
            std::fs::write(folder.join(frame_name(number)), frame_bytes(number, length)).unwrap();
        }
        settle();
        folder.to_str().unwrap().to_owned()
    }

    pub fn client(&self) -> Client {
        Client(Connection::unix(&self.socket, Duration::from_secs(10)).unwrap())
    }

    pub fn remote(&self, daemon: &Daemon, uid: u32) -> Client {
        let key = ClusterKey::from_file(&self.key).unwrap();
        Client(connect(daemon, &key, uid).unwrap())
    }
}

pub fn connect(daemon: &Daemon, key: &ClusterKey, uid: u32) -> Result<Connection> {
    let credentials = Credentials { uid, gid: uid, groups: vec![] };
    let identity = Identity { credentials, host: "elsewhere".into(), pid: 1 };
    let addr = daemon.listen_addr().unwrap().to_string();
    Connection::tcp(&addr, key, &identity, Duration::from_secs(10))
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub fn frame_name(number: u64) -> String {
    format!("frame-{number:05}.dat")
}

pub fn frame_bytes(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// What a writer says of a frame with these bytes.
pub fn meta(number: u64, bytes: &[u8], validator: Option<Validator>) -> FrameMeta {
    FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: bytes.len() as u64,
        checksum: frame_checksum(bytes),
        validator,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mode: 0o644,
    }
}

/// The push of a frame of this process's own, without its bytes.
pub fn push_of(dataset: &str, number: u64, bytes: &[u8]) -> Push {
    push_as(dataset, source(number), meta(number, bytes, None))
}

fn push_as(dataset: &str, source: Source, meta: FrameMeta) -> Push {
    let series = Series::of_file(source.path.as_str(), meta.number).unwrap();
    Push { dataset: dataset.into(), source, meta, series }
}

pub fn source(number: u64) -> Source {
    Source { path: RelPath::new(&frame_name(number)).unwrap(), offset: 0, length: None }
}

pub fn set(numbers: impl IntoIterator<Item = u64>) -> RunSet {
    numbers.into_iter().collect()
}

/// A frame as a scan gave it.
pub struct Got {
    pub entry: BatchEntry,
    pub bytes: Vec<u8>,
}

/// One connection.
pub struct Client(pub Connection);

impl Client {
    pub fn raw(&mut self, service: u16, function: u16, payload: &[u8], bulk: &[&[u8]]) -> Result<Reply> {
        self.0.call(service, function, payload, bulk)
    }

    pub fn ask<A: Message>(&mut self, function: u16, question: &impl Message) -> Result<A> {
        A::decode(&self.raw(service::FRAMES, function, &question.encode(), &[])?.payload)
    }

    pub fn tell(&mut self, function: u16, question: &impl Message) -> Result<()> {
        self.raw(service::FRAMES, function, &question.encode(), &[]).map(|_| ())
    }

    pub fn open(&mut self, path: &str) -> Result<DatasetInfo> {
        let ask = OpenDataset { path: path.into(), want_extent: true, pattern: None, only_cached: false };
        self.ask(frames_fn::OPEN, &ask)
    }

    pub fn query(&mut self, handle: u32) -> (RunSet, RunSet) {
        let all = Query { handle, begin: 0, end: 1 << 40, stride: 1 };
        let found: Holdings = self.ask(frames_fn::QUERY, &all).unwrap();
        (found.native, found.alien)
    }

    pub fn push(&mut self, dataset: &str, number: u64, bytes: &[u8]) -> Result<Pushed> {
        self.push_as(dataset, source(number), meta(number, bytes, None), bytes)
    }

    /// Pushes with the validator that the source has now.
    pub fn push_valid(&mut self, dataset: &str, number: u64) -> Result<Pushed> {
        let path = Path::new(dataset).join(frame_name(number));
        let stat = zazen_backing::directory::stat_local(&path)?;
        let bytes = std::fs::read(path).unwrap();
        self.push_as(dataset, source(number), meta(number, &bytes, Some(stat.validator)), &bytes)
    }

    pub fn push_as(
        &mut self,
        dataset: &str,
        source: Source,
        meta: FrameMeta,
        bytes: &[u8],
    ) -> Result<Pushed> {
        let push = push_as(dataset, source, meta);
        let reply = self.raw(service::FRAMES, frames_fn::PUSH, &push.encode(), &[bytes])?;
        Pushed::decode(&reply.payload)
    }

    pub fn fetch(&mut self, handle: u32, set: RunSet, origin: Origin) -> Fetched {
        self.ask(frames_fn::FETCH, &Fetch { handle, set, origin }).unwrap()
    }

    /// Scans `set` to the end, in batches of `frames_max`.
    pub fn scan(&mut self, handle: u32, set: &RunSet, frames_max: u16) -> Vec<Got> {
        let opened: ScanOpened =
            self.ask(frames_fn::SCAN_OPEN, &ScanOpen { handle, set: set.clone() }).unwrap();
        let mut all = Vec::new();
        loop {
            let batch = self.next(opened.scan, frames_max).unwrap();
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= usize::from(frames_max));
            all.extend(batch);
        }
        self.tell(frames_fn::SCAN_CLOSE, &ScanClose { scan: opened.scan }).unwrap();
        all
    }

    pub fn next(&mut self, scan: u32, frames_max: u16) -> Result<Vec<Got>> {
        let ask = ScanNext { scan, frames_max, bytes_max: 16 << 20 };
        let reply = self.raw(service::FRAMES, frames_fn::SCAN_NEXT, &ask.encode(), &[])?;
        let batch = ScanBatch::decode(&reply.payload)?;
        let files: Vec<std::fs::File> = reply.fds.into_iter().map(Into::into).collect();
        let got = batch.entries.into_iter().map(|entry| {
            let mut bytes = vec![0; entry.length as usize];
            match entry.fd {
                Some(fd) => files[usize::from(fd)].read_exact_at(&mut bytes, entry.offset).unwrap(),
                None if entry.delivery == Delivery::Inline => {
                    bytes.copy_from_slice(&reply.bulk[entry.offset as usize..][..entry.length as usize]);
                }
                None => {}
            }
            Got { entry, bytes }
        });
        Ok(got.collect())
    }

    pub fn status(&mut self) -> serde_json::Value {
        let reply = self.raw(service::CONTROL, control_fn::STATUS, &[], &[]).unwrap();
        serde_json::from_slice(&reply.payload).unwrap()
    }

    pub fn counter(&mut self, name: &str) -> u64 {
        self.status()["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }
}

/// Runs `work` on a thread that is another user, as the kernel sees it; false (with a reason) where
/// this process may not become one.
pub fn as_user(uid: u32, work: impl FnOnce() + Send) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as another user");
        return false;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            use rustix::process::{Gid, Uid};
            rustix::thread::set_thread_groups(&[]).unwrap();
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work();
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    true
}

/// Each frame of a scan checked: it came as `delivery` says, with the bytes of `frame_bytes`.
pub fn check_scan(got: &[Got], numbers: &RunSet, length: usize, delivery: impl Fn(u64) -> Delivery) {
    let seen: RunSet = got.iter().map(|got| got.entry.number).collect();
    assert_eq!(&seen, numbers);
    assert_eq!(got.len() as u64, numbers.len(), "each exactly once");
    for Got { entry, bytes } in got {
        assert_eq!(entry.delivery, delivery(entry.number), "frame {}: {:?}", entry.number, entry.error);
        assert!(*bytes == frame_bytes(entry.number, length), "frame {} has other bytes", entry.number);
        if let Some(checksum) = entry.checksum {
            assert_eq!(checksum, frame_checksum(bytes));
        }
    }
}

/// The kind of an error that travelled.
pub fn kind<T>(result: Result<T>) -> Option<zazen_core::ErrorKind> {
    result.err().map(|error: Error| error.kind())
}
