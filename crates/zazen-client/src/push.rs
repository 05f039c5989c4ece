//! Pushes frames to the nodes' caches while a simulation writes them: threads and sockets around
//! [`zazen_push::Writer`].
//!
//! With several copies, the nodes are dealt into as many groups, and each group has a writer that
//! brings each frame to one of its nodes. So the copies of a frame are on different nodes. The
//! groups' turns shift against each other, so that any node of one group shares frames with all
//! nodes of the others.
//!
//! Invariants: each `Send` of a writer gets exactly one outcome. A frame's bytes are in memory
//! once, however often the frame is sent. A thread that pushes waits only for the lock and, under
//! `OnSlow::Block`, for room in the window.

mod courier;
mod holders;
mod payload;

use crate::NodeList;
use crate::cluster::utf8;
use courier::{Shared, State};
use holders::Holders;
use payload::Payload;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};
use zazen_backing::trajectory::Finder;
use zazen_backing::{DirectoryBacking, by_name, dataset};
use zazen_call::ClusterKey;
use zazen_core::{
    Credentials, Error, ErrorKind, FrameMeta, FrameNo, Layout, RelPath, Result, Series, Source, Validator,
    limits,
};
use zazen_env::fork::Mine;
use zazen_push::{Config, Counters, OnSlow, Writer};

/// Other nodes tried before a frame is given up.
const RETRIES: u32 = 3;
/// First and longest pause before a dead or full node is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The most couriers at once, whatever the window.
const COURIERS_MAX: usize = 32;

/// How to push.
#[derive(Clone, Debug)]
pub struct PusherOptions {
    /// The nodes.
    pub nodes: NodeList,
    /// The cluster key file (`$ZAZEN_KEY`).
    pub key: PathBuf,
    /// Frames in flight.
    pub window_frames: usize,
    /// Bytes in flight.
    pub window_bytes: u64,
    /// When the window is full.
    pub on_slow: OnSlow,
    /// How long a node may take for one frame before it counts as dead.
    pub timeout: Duration,
    /// First node and order; `None`: random.
    pub seed: Option<u64>,
    /// Nodes that get each frame; at least 1. The window counts for each copy by itself.
    pub copies: usize,
}

impl PusherOptions {
    /// The defaults: 64 frames or 256 MiB in flight, frames skipped when the nodes can't keep up,
    /// 10 s a frame.
    pub fn new(nodes: NodeList, key: impl Into<PathBuf>) -> PusherOptions {
        PusherOptions {
            nodes,
            key: key.into(),
            window_frames: 64,
            window_bytes: 256 << 20,
            on_slow: OnSlow::Skip,
            timeout: Duration::from_secs(10),
            seed: None,
            copies: 1,
        }
    }
}

/// Where a pushed frame is on the backing store.
#[derive(Clone, Debug, Default)]
pub struct FrameSource {
    /// File beneath the dataset; `None`: the name that the dataset's pattern gives.
    pub name: Option<String>,
    /// Byte offset in that file (0 for a file per frame).
    pub offset: u64,
    /// Whether the frame is only a piece of that file.
    pub piece: bool,
    /// What the source looks like. `None`: the writer looks at it now, if it exists.
    pub validator: Option<Validator>,
    /// Owner and mode to record; `None`: this process's, 0o644 less umask.
    pub owner: Option<(Credentials, u32)>,
    /// The series that the frame belongs to; `None`: that of the layout, or of the file's name.
    pub series: Option<Series>,
}

/// A writer into the caches of many nodes. Threads may share it.
///
/// If it is dropped without [`Pusher::finish`], frames in flight are given up.
pub struct Pusher {
    /// Its threads and connections belong to this process. A forked child has none of them.
    mine: Mine,
    /// One for each copy; at least one.
    groups: Vec<Arc<Shared>>,
    dataset: PathBuf,
    /// Where its sources are looked at; `None`: who pushes gives their validators.
    sources: Option<PathBuf>,
    layout: Option<Layout>,
    owner: (Credentials, u32),
}

impl Pusher {
    /// A pusher for the dataset at `dataset` (absolute path as the readers spell it). `pattern`
    /// names frames that come without a name. Connects lazily; fails with `Config` for a bad key
    /// file or a node whose host name is unknown.
    ///
    /// Without `pattern`, the dataset's manifest or the existing files give the names.
    pub fn new(dataset: &Path, pattern: Option<&str>, options: PusherOptions) -> Result<Pusher> {
        if !dataset.is_absolute() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("dataset {}: give its absolute path, as the readers spell it", dataset.display()),
            ));
        }
        Pusher::of(dataset, dataset, pattern, options)
    }

    /// A pusher for the dataset that readers spell `dataset`, of an object store. Its files are in
    /// `directory` on this machine: they, or their manifest, give the names. Each push brings its
    /// validator.
    pub(crate) fn for_objects(
        dataset: &Path,
        directory: &Path,
        pattern: Option<&str>,
        options: PusherOptions,
    ) -> Result<Pusher> {
        Pusher::of(dataset, directory, pattern, options)
    }

    fn of(dataset: &Path, directory: &Path, pattern: Option<&str>, options: PusherOptions) -> Result<Pusher> {
        if options.nodes.nodes.is_empty() {
            return Err(Error::new(ErrorKind::Config, "no nodes to push to; give at least one host[:port]"));
        }
        options.nodes.look_up()?;
        utf8(dataset)?;
        let key = ClusterKey::from_file(&options.key)?;
        let layout = layout_of(directory, pattern)?;
        let seed = match options.seed {
            Some(seed) => seed,
            None => zazen_env::random_u128()? as u64,
        };
        check_copies(&options)?;
        let groups = (0..options.copies).map(|copy| Arc::new(group(&options, &key, seed, copy))).collect();
        let identity = crate::cluster::own_identity();
        let owner = (identity.credentials, 0o644 & !umask());
        let mine = Mine::of_this_process();
        let sources = (dataset == directory).then(|| directory.to_owned());
        let dataset = dataset.to_owned();
        Ok(Pusher { mine, groups, dataset, sources, layout, owner })
    }

    /// The dataset's path as given.
    pub fn dataset(&self) -> &Path {
        &self.dataset
    }

    /// Hands over a frame and its bytes. Returns at once unless the window is full and
    /// `OnSlow::Block` is set. An error is a mistake of the caller (bad number or name).
    /// [`Pusher::counters`] shows the fates of accepted frames.
    ///
    /// If a frame with the same number is still in flight, the newer frame follows it.
    ///
    /// In a forked child this call and [`Pusher::finish`] fail with `InvalidArgument`.
    pub fn push(&self, number: FrameNo, bytes: Vec<u8>, source: FrameSource) -> Result<()> {
        self.check()?;
        let payload = Arc::new(self.payload(number, bytes, source)?);
        for shared in &self.groups {
            shared.take(number, &payload);
        }
        Ok(())
    }

    /// Fails in a forked child, because the pusher belongs to the parent.
    pub fn check(&self) -> Result<()> {
        self.mine.check("this writer", "make one of this process's own")
    }

    /// Fates so far, of each copy; none in a forked child.
    pub fn counters(&self) -> Counters {
        if !self.mine.is_mine() {
            return Counters::default();
        }
        let each = self.groups.iter().map(|shared| shared.lock().writer.counters());
        each.fold(Counters::default(), |sum, counters| sum.plus(&counters))
    }

    /// Submitted frames, or copies of them, that have no fate yet.
    pub fn in_flight(&self) -> usize {
        if !self.mine.is_mine() {
            return 0;
        }
        self.groups.iter().map(|shared| shared.lock().entries.len()).sum()
    }

    /// Addresses of the nodes that count as dead now.
    pub fn dead_nodes(&self) -> Vec<String> {
        if !self.mine.is_mine() {
            return Vec::new();
        }
        let dead = |shared: &Arc<Shared>| {
            let dead = shared.lock().writer.dead();
            dead.into_iter().map(|node| shared.nodes[node].clone()).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(dead).collect()
    }

    /// The last few failures as text: node, frame, reason.
    pub fn problems(&self) -> Vec<String> {
        if !self.mine.is_mine() {
            return Vec::new();
        }
        let problems = |shared: &Arc<Shared>| shared.lock().problems.iter().cloned().collect::<Vec<_>>();
        self.groups.iter().flat_map(problems).collect()
    }

    /// Waits until every frame has its fate, and returns the counters.
    pub fn finish(self) -> Result<Counters> {
        self.check()?;
        self.drain();
        Ok(self.counters())
    }

    /// Waits until no frame is in flight; the pusher stays usable.
    pub fn drain(&self) {
        if !self.mine.is_mine() {
            return;
        }
        for shared in &self.groups {
            let mut state = shared.lock();
            while !state.entries.is_empty() {
                state = shared.wait_settled(state);
            }
        }
    }

    fn payload(&self, number: FrameNo, bytes: Vec<u8>, source: FrameSource) -> Result<Payload> {
        let length = bytes.len() as u64;
        limits::check_frame_bytes(length).map_err(|error| error.within(format!("frame {number}")))?;
        let at = self.source(number, length, &source)?;
        let series = match source.series.clone() {
            Some(series) => series,
            None => self.series_of(number, &at)?,
        };
        let validator = match source.validator {
            Some(validator) => Some(validator),
            None => self.look_at(&at, length),
        };
        let (who, mode) = source.owner.unwrap_or_else(|| self.owner.clone());
        let meta = FrameMeta { number, length, checksum: 0, validator, uid: who.uid, gid: who.gid, mode };
        let dataset = utf8(&self.dataset)?.to_owned();
        Ok(Payload { dataset, source: at, series, meta, bytes, checksum: OnceLock::new() })
    }

    fn source(&self, number: FrameNo, length: u64, given: &FrameSource) -> Result<Source> {
        if let Some(name) = &given.name {
            let path = RelPath::new(name)?;
            if path.is_root() {
                let why = format!("frame {number}: its file name is empty");
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            return Ok(Source { path, offset: given.offset, length: given.piece.then_some(length) });
        }
        let named = self.layout.as_ref().and_then(|layout| layout.source(number));
        let source = named.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "frame {number}: nothing says which file it is; give its name, or the writer a pattern"
                ),
            )
        })?;
        match source.length {
            Some(expected) if expected != length => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("frame {number} has {length} bytes, its piece in {} has {expected}", source.path),
            )),
            _ => Ok(source),
        }
    }

    /// The series in which a reader will look for the frame: the layout's series if the frame is in
    /// the layout, else the series of the file's name.
    fn series_of(&self, number: FrameNo, source: &Source) -> Result<Series> {
        let is_part = source.offset != 0 || source.length.is_some();
        let known = self.layout.as_ref().map(Series::of);
        if let Some(series) = known.filter(|series| series.may_hold(source.path.as_str(), number, is_part)) {
            return Ok(series);
        }
        if is_part { Ok(Series::Pieces) } else { Series::of_file(source.path.as_str(), number) }
    }

    /// What the source looks like now; `None` if it does not exist, or does not yet hold what is
    /// pushed.
    fn look_at(&self, source: &Source, length: u64) -> Option<Validator> {
        let path = self.sources.as_ref()?.join(source.path.as_str());
        let found = zazen_backing::directory::stat_local(&path).ok().filter(|found| !found.is_dir)?;
        let end = source.offset.saturating_add(length);
        let whole = source.length.is_none();
        let fits = if whole { found.validator.size == end } else { found.validator.size >= end };
        fits.then_some(found.validator)
    }
}

fn check_copies(options: &PusherOptions) -> Result<()> {
    let (copies, nodes) = (options.copies, options.nodes.nodes.len());
    if (1..=nodes).contains(&copies) {
        return Ok(());
    }
    let why = format!("{copies} copies of each frame on {nodes} nodes; give 1 to {nodes} copies");
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// The writer of copy `copy`, with every `copies`-th node.
fn group(options: &PusherOptions, key: &ClusterKey, seed: u64, copy: usize) -> Shared {
    let listed = options.nodes.nodes.iter().skip(copy).step_by(options.copies.max(1));
    let nodes: Vec<String> = listed.map(|node| node.addr.clone()).collect();
    let config = Config {
        nodes: nodes.len(),
        window_frames: options.window_frames,
        window_bytes: options.window_bytes,
        on_slow: options.on_slow,
        retries: RETRIES,
        backoff_min_ns: BACKOFF.0.as_nanos() as u64,
        backoff_max_ns: BACKOFF.1.as_nanos() as u64,
        pass_over_after: turns(nodes.len() as u64, copy),
    };
    Shared {
        state: Mutex::new(State {
            writer: Writer::new(config, seed.wrapping_add(copy as u64)),
            entries: BTreeMap::new(),
            newer_bytes: 0,
            queue: VecDeque::new(),
            deaths: vec![0; nodes.len()],
            problems: VecDeque::new(),
            couriers: 0,
            idle: 0,
            waits: false,
            stop: false,
        }),
        work: Condvar::new(),
        settled: Condvar::new(),
        begun: Instant::now(),
        couriers_max: COURIERS_MAX.min(2 * nodes.len()).min(options.window_frames.max(1)),
        nodes,
        key: key.clone(),
        holders: Holders::default(),
        timeout: options.timeout,
        on_slow: options.on_slow,
        window_bytes: options.window_bytes,
    }
}

/// After how many frames the turns of copy `copy` in a group of `nodes` nodes shift by one node.
/// Like the digits of a counter, the second copy shifts after each round of the nodes, the third
/// after each round of those shifts, and so on. So each node of a group meets every choice of the
/// others.
fn turns(nodes: u64, copy: usize) -> u64 {
    match u32::try_from(copy) {
        Ok(0) => 0,
        Ok(copy) => nodes.saturating_pow(copy),
        Err(_) => u64::MAX,
    }
}

impl Shared {
    /// Takes a frame, which may wait for room in the window.
    fn take(self: &Arc<Self>, number: FrameNo, payload: &Arc<Payload>) {
        let mut state = self.lock();
        if self.on_slow == OnSlow::Block {
            while state.entries.contains_key(&number) {
                state = self.wait_settled(state);
            }
        } else if let Some(entry) = state.entries.get_mut(&number) {
            let replaced = entry.newer.replace(payload.clone());
            let replaced_bytes = replaced.as_ref().map_or(0, |older| older.bytes.len() as u64);
            state.newer_bytes = state.newer_bytes + payload.bytes.len() as u64 - replaced_bytes;
            if replaced.is_some() || state.newer_bytes > self.window_bytes {
                self.drop_newer(&mut state, number, replaced.is_none());
            }
            return;
        }
        self.submit(&mut state, number, payload.clone());
        while state.entries.get(&number).is_some_and(|entry| !entry.accepted) {
            state = self.wait_settled(state);
        }
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        if !self.mine.is_mine() {
            return;
        }
        for shared in &self.groups {
            let mut state = shared.lock();
            state.stop = true;
            state.queue.clear();
            drop(state);
            shared.work.notify_all();
        }
    }
}

fn layout_of(dataset: &Path, pattern: Option<&str>) -> Result<Option<Layout>> {
    let named = |error: Error| error.within(format!("dataset {}", dataset.display()));
    if let Some(pattern) = pattern.filter(|pattern| by_name::is_by_name(pattern)) {
        return dataset::layout_of_pattern(pattern).map(Some).map_err(named);
    }
    let backing = DirectoryBacking::new(dataset)?;
    let (indexes, store) = (crate::indexes::indexes(), dataset.to_string_lossy());
    let finder = Finder { indexes: &indexes, store: &store, stops: None };
    match dataset::layout(finder, &backing, &RelPath::default(), pattern) {
        Ok(layout) => Ok(layout),
        // The simulation may create its directory later. Then the pattern or the caller gives the
        // names.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => match pattern {
            Some(pattern) => dataset::layout_of_pattern(pattern).map(Some),
            None => Ok(None),
        },
        Err(error) => Err(named(error)),
    }
}

/// This process's umask, read without changing it (a change would race with other threads).
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}
