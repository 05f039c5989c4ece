//! A daemon that sends false answers. Whatever it sends, a reader ends, with the right bytes or an
//! error for each frame.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zazen_call::{Call, Caller, Reply, Server, ServerLimits, Service};
use zazen_client::{Dataset, OpenOptions, ReadOptions};
use zazen_core::{ErrorKind, Layout, NameTemplate, Piece, RelPath, Result, RunSet};
use zazen_frames::messages::*;
use zazen_wire::control::{NodeInfo, control_fn};
use zazen_wire::header::{HEADER_BYTES, Header, Kind};
use zazen_wire::{Message, service};

const FRAMES: u64 = 6;
const BYTES: usize = 3000;

fn content(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; BYTES]
}

fn name(number: u64) -> String {
    format!("f-{number}.bin")
}

/// How the daemon falsifies its answers.
type Lie = fn(&mut Answer);

/// One true answer; a `None` field was not requested.
#[derive(Default)]
struct Answer {
    hello: Option<NodeInfo>,
    info: Option<DatasetInfo>,
    held: Option<Holdings>,
    batch: Option<(Vec<BatchEntry>, Vec<OwnedFd>, Vec<u8>)>,
    /// Sent in place of the payload.
    raw: Option<Vec<u8>>,
}

struct Liar {
    root: PathBuf,
    lie: Lie,
    /// How late each answer comes.
    late: Duration,
    scans: Mutex<BTreeMap<u32, Vec<u64>>>,
}

impl Liar {
    fn entry(&self, number: u64, fd: u16) -> BatchEntry {
        BatchEntry {
            number,
            delivery: Delivery::Native,
            fd: Some(fd),
            offset: 0,
            length: BYTES as u64,
            checksum: None,
            path: self.root.join(name(number)).to_str().unwrap().to_owned(),
            error: None,
            whole: true,
        }
    }

    fn honest(&self, service: u16, function: u16, payload: &[u8]) -> Result<Answer> {
        let mut answer = Answer::default();
        if service == service::CONTROL {
            if function == control_fn::HELLO {
                answer.hello = Some(NodeInfo {
                    node: 7,
                    name: "liar".into(),
                    version: "0".into(),
                    backing_roots: vec![self.root.parent().unwrap().to_str().unwrap().to_owned()],
                    cache_root: "/cache".into(),
                    readers: 4,
                });
            }
            return Ok(answer);
        }
        match function {
            frames_fn::OPEN => {
                let ask = OpenDataset::decode(payload)?;
                answer.info = Some(DatasetInfo {
                    handle: 1,
                    dataset: RelPath::new("sim")?,
                    layout: Some(Layout::Files(NameTemplate::parse("f-{n}.bin")?)),
                    extent: ask.want_extent.then(|| RunSet::range(0, FRAMES - 1)),
                    backing_ok: true,
                    series: Vec::new(),
                });
            }
            frames_fn::QUERY => {
                answer.held = Some(Holdings { native: RunSet::range(0, FRAMES - 1), alien: RunSet::new() });
            }
            frames_fn::SCAN_OPEN => {
                let ask = ScanOpen::decode(payload)?;
                let mut scans = self.scans.lock().unwrap();
                let scan = scans.len() as u32 + 1;
                scans.insert(scan, ask.set.iter().collect());
                answer.raw = Some(ScanOpened { scan, cached: ask.set.len() }.encode());
            }
            frames_fn::SCAN_NEXT => {
                let ask = ScanNext::decode(payload)?;
                let mut scans = self.scans.lock().unwrap();
                let left = scans.entry(ask.scan).or_default();
                let some: Vec<u64> = left.drain(..left.len().min(usize::from(ask.frames_max))).collect();
                let open = |number: &u64| std::fs::File::open(self.root.join(name(*number))).unwrap().into();
                let entries = some.iter().zip(0..).map(|(number, fd)| self.entry(*number, fd)).collect();
                answer.batch = Some((entries, some.iter().map(open).collect(), Vec::new()));
            }
            _ => {}
        }
        Ok(answer)
    }
}

struct Served(Arc<Liar>, u16);

impl Service for Served {
    fn id(&self) -> u16 {
        self.1
    }

    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let mut answer = self.0.honest(self.1, call.function, call.payload)?;
        (self.0.lie)(&mut answer);
        std::thread::sleep(self.0.late);
        let (fds, bulk) = answer
            .batch
            .as_mut()
            .map_or_else(Default::default, |(_, fds, bulk)| (std::mem::take(fds), std::mem::take(bulk)));
        let payload = answer
            .raw
            .or(answer.hello.map(|hello| hello.encode()))
            .or(answer.info.map(|info| info.encode()))
            .or(answer.held.map(|held| held.encode()))
            .or(answer.batch.map(|(entries, ..)| ScanBatch { entries }.encode()));
        Ok(Reply { payload: payload.unwrap_or_default(), fds, bulk, ..Reply::default() })
    }

    fn detach(&self, _caller: &Caller) {}
}

fn serve(folder: &Path, root: &Path, lie: Lie, late: Duration) -> (Server, PathBuf) {
    let liar = Arc::new(Liar { root: root.to_owned(), lie, late, scans: Mutex::default() });
    let services: Vec<Arc<dyn Service>> =
        vec![Arc::new(Served(liar.clone(), service::CONTROL)), Arc::new(Served(liar, service::FRAMES))];
    let server = Server::new(services, None, ServerLimits::default());
    let socket = folder.join("liar.sock");
    server.listen_unix(&socket).unwrap();
    (server, socket)
}

/// Frames, and the kinds of the errors in the place of others.
type Got = (BTreeMap<u64, Vec<u8>>, Vec<ErrorKind>);

/// How long a daemon may be silent here.
const SILENCE: Duration = Duration::from_secs(2);

/// What a reader gets.
fn read_all(root: &Path, socket: PathBuf) -> Result<Got> {
    let silence = Some(SILENCE);
    let options = OpenOptions { socket: Some(socket), silence, ..OpenOptions::default() };
    let mut dataset = Dataset::open(root, &options)?;
    let extent = dataset.extent()?;
    dataset.query(0, 40, 1).ok();
    let set = extent.slice(0, FRAMES - 1);
    let (mut found, mut errors) = (BTreeMap::new(), Vec::new());
    for frame in dataset.frames(set, &ReadOptions::default())? {
        match frame {
            Ok(frame) => drop(found.insert(frame.number, frame.bytes().to_vec())),
            Err(error) => errors.push(error.kind()),
        }
        assert!(found.len() + errors.len() <= 100, "it does not end");
    }
    dataset.read(2).ok();
    Ok((found, errors))
}

/// What must still be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// All frames, from the backing store.
    All,
    /// Each frame is right or an error.
    RightOrError,
}

const LIES: &[(&str, Left, Lie)] = &[
    ("none", Left::All, |_| ()),
    ("hello is noise", Left::All, |answer| {
        if answer.hello.is_some() {
            answer.raw = Some(vec![0xff; 100]);
        }
    }),
    ("hello is empty", Left::All, |answer| {
        if answer.hello.is_some() {
            answer.raw = Some(Vec::new());
        }
    }),
    ("the opened dataset is noise", Left::All, |answer| {
        if answer.info.is_some() {
            answer.raw = Some(vec![0x80; 33]);
        }
    }),
    ("the layout is a bomb", Left::All, |answer| {
        if let Some(info) = &mut answer.info {
            let piece = |first, step| Piece {
                path: RelPath::new("a").unwrap(),
                first,
                count: 1 << 30,
                step,
                offset: 0,
                frame_bytes: 1,
            };
            info.layout = Some(Layout::Pieces(vec![piece(0, 1000), piece(7, 1000)]));
        }
    }),
    ("it holds what was not asked for", Left::All, |answer| {
        if let Some(held) = &mut answer.held {
            held.native = RunSet::range(0, 1 << 40);
        }
    }),
    ("frames have exabytes", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.length = u64::MAX);
    }),
    ("frames have half a terabyte", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.length = 1 << 39);
    }),
    ("frames are a byte longer", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.length += 1);
    }),
    ("frames begin beyond the end of the world", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.offset = u64::MAX - 5);
    }),
    ("frames begin beyond the end of their files", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.offset = 1 << 50);
    }),
    ("descriptors have other numbers", Left::RightOrError, |answer| {
        entries(answer).iter_mut().for_each(|entry| entry.fd = Some(60_000));
    }),
    ("descriptors are missing", Left::RightOrError, |answer| {
        if let Some((entries, fds, _)) = &mut answer.batch {
            entries.iter_mut().for_each(|entry| entry.fd = None);
            fds.clear();
        }
    }),
    ("bytes come inline, but don't", Left::RightOrError, |answer| {
        if let Some((entries, fds, bulk)) = &mut answer.batch {
            fds.clear();
            bulk.extend([1; 10]);
            for entry in entries {
                (entry.fd, entry.delivery) = (None, Delivery::Inline);
                entry.length = u64::MAX / 3;
            }
        }
    }),
    ("all frames failed, and nobody knows why", Left::RightOrError, |answer| {
        for entry in entries(answer) {
            (entry.delivery, entry.error) = (Delivery::Failed, Some((4_000_000, "\u{1b}[2J".into())));
        }
    }),
    ("the scan ends at once", Left::All, |answer| {
        if let Some((entries, fds, _)) = &mut answer.batch {
            entries.clear();
            fds.clear();
        }
    }),
    ("the scan never ends", Left::All, |answer| {
        if let Some((entries, fds, _)) = &mut answer.batch {
            let null = || std::fs::File::open("/dev/null").unwrap().into();
            *fds = vec![null()];
            *entries = vec![stranger(77)];
        }
    }),
    ("a batch has more frames than were asked for", Left::All, |answer| {
        if let Some((entries, ..)) = &mut answer.batch {
            let more = (0..5000).map(|number| stranger(number + 100));
            entries.extend(more);
        }
    }),
];

fn stranger(number: u64) -> BatchEntry {
    BatchEntry {
        number,
        delivery: Delivery::Native,
        fd: Some(0),
        offset: 0,
        length: 1,
        checksum: None,
        path: "/somewhere".into(),
        error: None,
        whole: true,
    }
}

fn entries(answer: &mut Answer) -> &mut [BatchEntry] {
    answer.batch.as_mut().map_or(&mut [], |(entries, ..)| entries)
}

/// A dataset of [`FRAMES`] frames.
fn dataset(folder: &Path) -> PathBuf {
    let root = folder.join("backing").join("sim");
    std::fs::create_dir_all(&root).unwrap();
    for number in 0..FRAMES {
        std::fs::write(root.join(name(number)), content(number)).unwrap();
    }
    root
}

#[test]
fn whatever_a_daemon_says_a_reader_ends_with_the_truth_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let root = dataset(folder.path());
    for (lie, left, tell) in LIES {
        let (server, socket) = serve(folder.path(), &root, *tell, Duration::ZERO);
        let told = read_all(&root, socket);
        drop(server);
        let (found, errors) = match told {
            Ok(told) => told,
            Err(error) => panic!("{lie}: {error}"),
        };
        for (number, bytes) in &found {
            assert_eq!(bytes, &content(*number), "{lie}: frame {number}");
        }
        match left {
            Left::All => assert_eq!((found.len() as u64, errors.len()), (FRAMES, 0), "{lie}: {errors:?}"),
            Left::RightOrError => {
                assert_eq!(found.len() as u64 + errors.len() as u64, FRAMES, "{lie}: {errors:?}");
            }
        }
    }
}

#[test]
fn a_daemon_that_lies_late_is_found_out_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let root = dataset(folder.path());
    for name in ["the scan never ends", "it holds what was not asked for", "descriptors are missing"] {
        let (_, _, tell) = LIES.iter().find(|(lie, ..)| *lie == name).unwrap();
        let begun = Instant::now();
        // Soon enough to be no silence, each time.
        let (server, socket) = serve(folder.path(), &root, *tell, SILENCE / 8);
        let (found, errors) = read_all(&root, socket).unwrap();
        drop(server);
        assert_eq!(found.len() + errors.len(), FRAMES as usize, "{name}: {errors:?}");
        assert!(found.iter().all(|(number, bytes)| *bytes == content(*number)), "{name}");
        assert!(begun.elapsed() < 20 * SILENCE, "{name}: {:?}", begun.elapsed());
    }
}

/// Announces an answer of many bytes to each call and sends them one by one, so some bytes always
/// arrive.
fn drip(mut stream: UnixStream) -> std::io::Result<()> {
    let mut asked = [0; HEADER_BYTES];
    stream.read_exact(&mut asked)?;
    let asked = Header::decode(&asked).map_err(std::io::Error::other)?;
    let answer = Header { kind: Kind::Reply, payload_bytes: 64 << 20, fd_count: 0, bulk_bytes: 0, ..asked };
    stream.write_all(&answer.encode())?;
    loop {
        stream.write_all(&[0])?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_daemon_that_drips_its_answers_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let root = dataset(folder.path());
    let socket = folder.path().join("drip.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // It ends when its client has gone.
            std::thread::spawn(move || drip(stream));
        }
    });
    let begun = Instant::now();
    let (found, errors) = read_all(&root, socket).unwrap();
    assert_eq!((found.len() as u64, errors.len()), (FRAMES, 0), "{errors:?}");
    assert!(begun.elapsed() < 10 * SILENCE, "{:?}", begun.elapsed());
}
