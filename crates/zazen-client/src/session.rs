//! A dataset that is opened through the node's daemon, or directly from the backing store if no
//! daemon answers.

mod ahead;
mod by_name;
mod idle;
mod names;
mod ordered;
mod owners;
mod random;
mod short;

use crate::agree::{Bounds, told_by_rank_0};
use crate::cluster::{CONNECT_TIMEOUT, Remote, Target, answers, daemon_is_gone};
use crate::daemon_spec::{DaemonSpec, check_same_version};
use crate::direct::{Direct, DirectSpec, absolute};
use crate::lost::{Retry, warn_of_lost_daemon};
use crate::read::{Access, Early, Facts, Frame, FrameReader, PlaceReader, Pool, ReadOptions, Recorder, Scan};
use crate::testbed_env::{find_socket_path, testbed_backing};
use crate::trajectory::OpenedTrajectory;
use crate::warn::warn_once;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_assign::{Assignment, Collectives, Input, Protocol, Rules};
use zazen_core::{Blocks, Error, ErrorKind, Layout, RelPath, Request, Result, RunSet};
use zazen_env::fork::Mine;
use zazen_frames::absence::Absence;
use zazen_frames::messages::{AskPlaces, DatasetInfo};
use zazen_wire::control::NodeInfo;

/// How long a daemon that answers pings may take for a call (a listing of a large directory, a
/// query) before it counts as dead.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a daemon may take to be told what was read without it. One that hangs must not hold up
/// the end of the program.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a daemon may be silent before it is pinged, by default.
const SILENCE: Duration = Duration::from_secs(10);
/// Memory that is kept for frames without a file of their own, by an iteration over paths.
const PLACES_KEPT_BYTES: u64 = 8 << 20;
/// The longest silence that a user may ask for: a day.
const SILENCE_MAX_S: f64 = 86_400.0;

/// How to open.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Socket of the daemon; `None`: `$ZAZEN_SOCKET`, the testbed's node of this rank, or the
    /// default path.
    pub socket: Option<PathBuf>,
    /// File-name template; `None`: the manifest, or what the names tell.
    pub pattern: Option<String>,
    /// A served backing store to use when no daemon answers, as `/ROOT=tcp://host:port` or
    /// `tcp://host:port/ROOT` (`$ZAZEN_BACKING`); `None`: the dataset's path itself.
    pub backing: Option<String>,
    /// Don't ask a daemon at all.
    pub direct: bool,
    /// How long a daemon may leave a call unanswered before it is pinged. If it does not answer the
    /// ping within the same time (at most 5 s), it counts as hung and is no longer used. `None`:
    /// `$ZAZEN_TIMEOUT` in seconds, or 10 s.
    pub silence: Option<Duration>,
}

/// The daemon's side of an opened dataset.
struct Local {
    remote: Remote,
    node: NodeInfo,
    info: DatasetInfo,
    spec: DaemonSpec,
    /// What came with the answer to the call that opened it, for the next read.
    along: Option<short::Along>,
    /// Another process must not use the connection.
    mine: Mine,
}

/// An opened dataset. Not for several threads and not for a forked child; use
/// [`crate::SharedDataset`] there.
pub struct Dataset {
    path: PathBuf,
    local: Option<Local>,
    /// The daemon that stopped answering, and when to look for it again.
    lost: Option<(DaemonSpec, Retry)>,
    node: u128,
    direct_spec: DirectSpec,
    direct: Option<Arc<Direct>>,
    /// The layout when it was opened.
    opened: Option<Layout>,
    extent: Option<RunSet>,
    /// What calls of random access share.
    near: Option<Arc<Access>>,
    /// Their memory for large frames.
    large: Option<Arc<Pool>>,
    /// Where files are in the layout's list, once somebody asked by name.
    names: HashMap<RelPath, u64>,
    /// How the ranks agreed on who reads what is read next.
    agreed: Option<Agreed>,
    /// When the caller began with an assignment that is to come.
    begun: Option<Instant>,
    /// Why there is no daemon, if there is none.
    without: Absence,
    /// What random access measures of itself, once something was read; `Some(None)`: nothing.
    reads: Option<Option<Recorder>>,
    /// Places of small frames that are read one by one.
    ahead: ahead::Ahead,
}

/// An agreement of ranks, for `zazen explain`.
#[derive(Clone, Copy)]
struct Agreed {
    took: Duration,
    ended: Instant,
    rank: u32,
    ranks: u32,
}

pub use owners::{Holders, NO_OWNER};
pub use random::READ_MANY_MAX;

impl Dataset {
    /// Opens the dataset whose directory is `path` (absolute or relative, as the user types it), or
    /// the trajectory file `path`.
    ///
    /// With no daemon: a warning once per process, then the backing store. `NotFound` if there is
    /// no such directory.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Dataset> {
        let path = absolute(path)?;
        let backing = options.backing.clone().or_else(|| variable("ZAZEN_BACKING")).or_else(testbed_backing);
        let direct_spec = DirectSpec { path: path.clone(), pattern: options.pattern.clone(), backing };
        let (local, without) = match options.direct {
            true => (None, Absence::NoDaemon),
            false => match open_local(&path, options)? {
                Ok(local) => (Some(local), Absence::NodeDead),
                Err(without) => (None, without),
            },
        };
        let node = match &local {
            Some(local) => local.node.node,
            None => zazen_env::random_u128()?,
        };
        let mut dataset = Dataset {
            path,
            local,
            lost: None,
            node,
            direct_spec,
            direct: None,
            opened: None,
            extent: None,
            near: None,
            large: None,
            names: HashMap::new(),
            agreed: None,
            begun: None,
            without,
            reads: None,
            ahead: ahead::Ahead::new(),
        };
        if dataset.local.is_none() {
            dataset.direct()?;
        }
        dataset.trajectory().inspect(OpenedTrajectory::warn);
        let by_name = dataset.is_by_name();
        let is_of_a_version =
            |layout: &&Layout| layout.blocks().is_some() || layout.trajectory().is_some() || by_name;
        dataset.opened = dataset.layout().filter(is_of_a_version).cloned();
        Ok(dataset)
    }

    /// Ends it in a forked child: its descriptors are closed, its locks are left alone.
    pub(crate) fn disown(mut self) {
        drop(self.local.take());
        std::mem::forget(self.direct.take());
        std::mem::forget(self.near.take());
        std::mem::forget(self.large.take());
        std::mem::forget(self.reads.take());
    }

    /// Absolute path as opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a daemon answered and has not stopped answering since.
    pub fn has_daemon(&self) -> bool {
        self.local.is_some()
    }

    /// Identity of the node whose daemon answered. Without a daemon: a random one, fixed for this
    /// Dataset.
    pub fn node(&self) -> u128 {
        self.node
    }

    /// The version of the file that was opened, if the dataset is the blocks of a file.
    pub fn blocks(&self) -> Option<&Blocks> {
        self.opened.as_ref().and_then(Layout::blocks)
    }

    /// The layout when it was opened, if it is of a version: the blocks of a file, a trajectory,
    /// files by name.
    pub(crate) fn opened_as(&self) -> Option<&Layout> {
        self.opened.as_ref()
    }

    /// How numbers map to files, if known.
    pub fn layout(&self) -> Option<&Layout> {
        match (&self.local, &self.direct) {
            (Some(local), _) => local.info.layout.as_ref(),
            (None, Some(direct)) => direct.layout(),
            (None, None) => None,
        }
    }

    /// The layout in words: "frame-{n:07}.dcd", "pieces of N files", "list of N files", "xtc
    /// trajectory of N files", or the pattern of the blocks of a file; `None` if it is not known.
    pub fn layout_in_words(&self) -> Option<String> {
        self.layout().map(|layout| match layout {
            Layout::Files(template) => template.to_string(),
            Layout::Pieces(pieces) => format!("pieces of {} files", pieces.len()),
            Layout::List(files) => format!("list of {} files", files.len()),
            Layout::Trajectory(found) => {
                format!("{} trajectory of {} files", found.format, found.files.len())
            }
            Layout::Blocks(blocks) => blocks.pattern(),
        })
    }

    /// The trajectory files that hold the frames, if the dataset is made of such files.
    pub fn trajectory(&self) -> Option<OpenedTrajectory> {
        OpenedTrajectory::of(self.layout(), &self.path, self.direct_spec.pattern.as_deref())
    }

    /// The frames that exist on the backing store. Listed on the first call, then remembered.
    /// `Unavailable` if the store does not answer: what a cache holds is not all there is.
    pub fn extent(&mut self) -> Result<RunSet> {
        if let Some(extent) = &self.extent {
            return Ok(extent.clone());
        }
        if let Some(blocks) = self.blocks() {
            return Ok(blocks.extent());
        }
        let listed = self.with_daemon(|local| {
            let info = local.remote.open(&local.spec.path, local.spec.pattern.as_deref(), true)?;
            check_same_version(local.spec.layout.as_deref(), info.layout.as_ref())?;
            let extent = info.extent.clone();
            local.info = info;
            Ok(extent)
        })?;
        self.names.clear();
        let extent = match listed {
            Some(Some(extent)) => extent,
            // What a cache holds is not all there is: frames would be left out without a word.
            Some(None) => {
                let why = format!(
                    "the backing store of {} does not answer, so that nobody can say which frames there are; \
                     repair it, or name the first and the last frame: cached ones are then read, and \
                     missing ones are errors",
                    self.path.display()
                );
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            None => self.direct()?.extent()?,
        };
        self.extent = Some(extent.clone());
        Ok(extent)
    }

    /// What this node holds of begin..=end at stride, as frame numbers: (natives, aliens). Paper:
    /// `query`. Without a daemon both are empty.
    pub fn query(&mut self, begin: u64, end: u64, stride: u64) -> Result<(RunSet, RunSet)> {
        Request::new(begin, end, stride)?;
        let held = self.with_daemon(|local| {
            let held = local.remote.query(local.info.handle, begin, end, stride)?;
            let within = |number: Option<u64>| number.is_none_or(|number| (begin..=end).contains(&number));
            let all_within = |set: &RunSet| within(set.first()) && within(set.last());
            match all_within(&held.native) && all_within(&held.alien) {
                true => Ok(held),
                false => Err(Error::new(
                    ErrorKind::Protocol,
                    format!("the daemon reports frames beyond the requested {begin} to {end}"),
                )),
            }
        })?;
        let Some(held) = held else { return Ok(Default::default()) };
        Ok((held.native, held.alien))
    }

    /// Brings frames that the node `holder` (its [`Dataset::node`]) holds into this node's cache,
    /// from that node and not from the backing store. How many of them are here then; 0 without a
    /// daemon.
    ///
    /// A frame that the holder lacks, or whose source has changed, is left out. `Unsupported` if
    /// the daemon knows no other nodes.
    pub fn bring(&mut self, numbers: RunSet, holder: u128) -> Result<u64> {
        let ask = |local: &mut Local| local.remote.bring(local.info.handle, numbers.clone(), holder);
        let brought = self.with_daemon(ask)?;
        Ok(brought.map_or(0, |brought| brought.fetched + brought.present))
    }

    /// Runs the assignment protocol with the other ranks (collective) for begin..=end at stride, or
    /// for the whole dataset where `range` is `None` (rank 0's extent counts for all and is
    /// broadcast). Paper: `zazen`.
    ///
    /// An error of one rank ends the call on every rank. The implementation of the collectives must
    /// detect ranks that started as singletons, because only it knows the size of the world.
    pub fn assign(
        &mut self,
        range: Option<(u64, u64, u64)>,
        rules: Rules,
        protocol: Protocol,
        collectives: &dyn Collectives,
    ) -> Result<Assignment> {
        let began = self.begun.take().unwrap_or_else(Instant::now);
        let same_files = self.agree_on_names(collectives)?;
        let asked = match range {
            Some((begin, end, stride)) => Request::new(begin, end, stride).map(|request| (request, None)),
            None => Ok(self.agree_on_extent(collectives)?),
        };
        let asked = same_files.and(asked);
        let input = asked.and_then(|(request, target)| {
            let (native, alien) = self.query(request.begin(), request.end(), request.stride())?;
            let seed = zazen_env::random_u128()?.to_le_bytes();
            let node = self.node;
            Ok(Input { node, native, alien, request, target, rules, protocol, verify_exact: false, seed })
        });
        let assigned = match input {
            Ok(input) => zazen_assign::assign(input, collectives),
            // The other ranks wait in the protocol's first round and learn of the error there.
            Err(error) => Err(zazen_assign::decline(error, collectives)),
        };
        let (rank, ranks) = (collectives.rank() as u32, collectives.size() as u32);
        self.agreed = Some(Agreed { took: began.elapsed(), ended: Instant::now(), rank, ranks });
        assigned
    }

    /// The time of the next assignment counts from `began` on, for `zazen explain`; the first call
    /// before an assignment decides.
    pub fn begins(&mut self, began: Instant) {
        self.begun.get_or_insert(began);
    }

    /// What was assigned is read at once, by the call that assigned it: the time since then counts
    /// as the agreement's, for `zazen explain`. On a busy machine it is more than nothing.
    pub fn reads_at_once(&mut self) {
        if let Some(agreed) = &mut self.agreed {
            agreed.took += agreed.ended.elapsed();
            agreed.ended = Instant::now();
        }
    }

    /// As [`Dataset::assign`], if the frames are read next: while the ranks agree, the disk begins
    /// to read the first frames that this node holds.
    pub fn assign_to_read(
        &mut self,
        range: Option<(u64, u64, u64)>,
        rules: Rules,
        protocol: Protocol,
        collectives: &dyn Collectives,
    ) -> Result<Assignment> {
        let spec = self.local.as_ref().map(|local| &local.spec).filter(|_| collectives.size() > 1);
        let _early = spec.and_then(|spec| Early::begin(spec, range));
        self.assign(range, rules, protocol, collectives)
    }

    /// The frames begin ..= end at stride as [`Dataset::assign`] takes them (collective): a bound
    /// left out is the first or the last frame that exists, as rank 0 sees it. `None` where nothing
    /// is said: all frames that exist.
    pub fn range(
        &mut self,
        begin: Option<u64>,
        end: Option<u64>,
        stride: u64,
        collectives: &dyn Collectives,
    ) -> Result<Option<(u64, u64, u64)>> {
        self.begins(Instant::now());
        let Bounds(first, last) = match (begin, end) {
            (None, None) if stride == 1 => return Ok(None),
            (Some(begin), Some(end)) => Bounds(begin, end),
            _ => told_by_rank_0(collectives, || self.bounds())?,
        };
        Ok(Some((begin.unwrap_or(first), end.unwrap_or(last), stride)))
    }

    fn bounds(&mut self) -> Result<Bounds> {
        let extent = self.extent()?;
        let bounds = extent.first().zip(extent.last()).map(|(first, last)| Bounds(first, last));
        bounds.ok_or_else(|| {
            let path = self.path.display();
            let why = format!(
                "dataset {path} has no frames; check its path, or give pattern=, such as \"**/*.jpg\" for \
                 all pictures in its folders"
            );
            Error::new(ErrorKind::NotFound, why)
        })
    }

    /// The whole dataset as a request and, if the request has gaps, the frames in it; or rank 0's
    /// error on every rank.
    fn agree_on_extent(&mut self, collectives: &dyn Collectives) -> Result<(Request, Option<RunSet>)> {
        let extent = told_by_rank_0(collectives, || self.extent())?;
        self.extent = Some(extent.clone());
        let (Some(begin), Some(end)) = (extent.first(), extent.last()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "dataset {}: has no frames; if its files have other names, give pattern=, such \
                     as \"**/*.jpg\" for all pictures in its folders",
                    self.path.display()
                ),
            ));
        };
        let mut runs = extent.runs();
        match (runs.next(), runs.next()) {
            (Some(run), None) => Ok((Request::new(begin, end, run.step)?, None)),
            _ => Ok((Request::new(begin, end, 1)?, Some(extent.clone()))),
        }
    }

    /// Reads one frame: bytes checked against their checksum.
    pub fn read(&mut self, number: u64) -> Result<Frame> {
        if let Some(frame) = self.read_placed(number) {
            return Ok(frame);
        }
        let missing = || Error::new(ErrorKind::Io, format!("frame {number}: was not read; ask again"));
        let frame = self.read_many(&[number])?.pop().unwrap_or_else(|| Err(missing()))?;
        self.look_ahead(&frame);
        Ok(frame)
    }

    /// Reads `set` in storage order with read-ahead.
    pub fn frames(&mut self, set: RunSet, options: &ReadOptions) -> Result<FrameReader> {
        let began = Instant::now();
        let scan = self.with_daemon(|local| Scan::begin(&local.spec, &set))?;
        let advised = self.advised();
        let mut access = self.access(Pool::new(options.memory_max), options.check)?;
        let agreed = self.agreed.take();
        access.record = Recorder::begin(self.facts(agreed), began).map(Arc::new);
        FrameReader::start(access, scan, set, options, advised)
    }

    /// Where the frames of `set` are, in storage order: a frame with a file of its own is not read.
    pub fn places(&mut self, set: RunSet) -> Result<PlaceReader> {
        let scan = self.with_daemon(|local| Scan::begin(&local.spec, &set))?;
        let access = self.access(Pool::new(PLACES_KEPT_BYTES), true)?;
        Ok(PlaceReader::new(access, scan, set))
    }

    /// Files in flight that the daemon advises for its disk.
    fn advised(&self) -> Option<usize> {
        self.local.as_ref().map(|local| usize::from(local.node.readers))
    }

    /// What a scan's record begins with.
    fn facts(&self, agreed: Option<Agreed>) -> Facts {
        let agreed = agreed.map(|Agreed { took, rank, ranks, .. }| (took, rank, ranks));
        let without = if self.lost.is_some() { Absence::NodeDead } else { self.without };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        match &self.local {
            Some(local) => Facts {
                dataset: text(&local.spec.path),
                series: local.info.dataset.to_string(),
                node: (local.node.name.clone(), self.node),
                agreed,
                without,
            },
            None => Facts {
                dataset: text(&self.path),
                series: String::new(),
                node: (String::new(), self.node),
                agreed,
                without,
            },
        }
    }

    fn access(&mut self, pool: Arc<Pool>, check: bool) -> Result<Access> {
        let daemon = self.local.as_ref().map(|local| local.spec.clone());
        if daemon.is_none() {
            self.direct()?;
        }
        Ok(Access::new(pool, check, daemon, self.direct_spec.clone(), self.direct.clone()))
    }

    fn direct(&mut self) -> Result<Arc<Direct>> {
        if let Some(direct) = &self.direct {
            return Ok(direct.clone());
        }
        let direct = Arc::new(self.direct_spec.open()?);
        check_same_version(self.opened.as_ref(), direct.layout())?;
        self.direct = Some(direct.clone());
        Ok(direct)
    }

    /// Asks the daemon. If the connection is lost, asks again on a new connection. `None` if there
    /// is no daemon, or if it stopped answering (with a warning). A daemon that stopped answering
    /// earlier is looked for now and then.
    fn with_daemon<T>(&mut self, mut ask: impl FnMut(&mut Local) -> Result<T>) -> Result<Option<T>> {
        self.look_again();
        let Some(local) = &mut self.local else { return Ok(None) };
        let first = match ask(local) {
            Err(error) if lost(local, &error) => error,
            answer => return answer.map(Some),
        };
        let last = match first.kind() {
            // The daemon hangs, so do not ask again.
            ErrorKind::TimedOut => first,
            _ => {
                tracing::debug!("{first}; connecting again");
                match open_again(&local.spec) {
                    Ok(reopened) => {
                        *local = reopened;
                        self.names.clear();
                        match ask(local) {
                            Err(error) if lost(local, &error) => error,
                            answer => return answer.map(Some),
                        }
                    }
                    Err(error) if daemon_is_gone(&error) => error,
                    Err(error) => return Err(error),
                }
            }
        };
        warn_of_lost_daemon(&local.spec, &self.path, &last);
        self.lost = Some((local.spec.clone(), Retry::new(local.spec.silence)));
        self.local = None;
        self.near = None;
        self.names.clear();
        Ok(None)
    }

    /// Uses a lost daemon again if it answers.
    fn look_again(&mut self) {
        let Some((spec, retry)) = &mut self.lost else { return };
        if !retry.finds(spec) {
            return;
        }
        match open_again(spec) {
            Ok(local) => {
                tracing::info!("the {} answers again", spec.target);
                self.local = Some(local);
                self.lost = None;
                self.near = None;
                self.names.clear();
            }
            Err(error) => tracing::debug!("{error}; continuing without it"),
        }
    }
}

impl Drop for Dataset {
    fn drop(&mut self) {
        if let Some(pool) = self.large.take() {
            pool.close();
        }
        let reads = self.reads.take().flatten();
        let Some(Local { mut remote, node, info, spec, mine, .. }) = self.local.take() else {
            reads.iter().for_each(|reads| reads.finish_random(None));
            return;
        };
        if mine.is_mine() {
            reads.iter().for_each(|reads| reads.finish_random(Some((&mut remote, info.handle))));
            if let Some(told) = self.ahead.last_words() {
                remote.set_timeout(Some(LAST_WORDS_TIMEOUT));
                // Only the daemon's counters need it.
                let _ = remote.places(&AskPlaces { handle: info.handle, ..told });
            }
            remote.set_timeout(Some(CALL_TIMEOUT.max(spec.silence)));
            idle::keep(remote, node, info.handle, spec.silence);
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether `error` means that the daemon is lost. An error over a working connection is about the
/// dataset or the backing store. If the error comes from another connection, such as a scan's, the
/// daemon is asked.
fn lost(local: &mut Local, error: &Error) -> bool {
    // A daemon that breaks the protocol is not asked again, because its answers cannot be trusted.
    if matches!(error.kind(), ErrorKind::ShuttingDown | ErrorKind::Protocol) || !local.remote.is_alive() {
        return true;
    }
    match error.kind() {
        ErrorKind::TimedOut => !answers(&local.spec.target, local.spec.patience()),
        _ => daemon_is_gone(error) && local.remote.ping().is_err(),
    }
}

fn connect(target: &Target, silence: Duration) -> Result<(Remote, NodeInfo)> {
    let patience = silence.min(CONNECT_TIMEOUT);
    let mut remote = Remote::connect_within(target, None, patience)?;
    remote.set_timeout(Some(patience));
    let node = remote.hello()?;
    remote.set_timeout(Some(CALL_TIMEOUT.max(silence)));
    remote.give_up_after(silence);
    Ok((remote, node))
}

fn open_again(spec: &DaemonSpec) -> Result<Local> {
    let (remote, node) = connect(&spec.target, spec.silence)?;
    open_on(remote, node, spec.clone(), None)
}

/// How long a daemon may be silent: the user's setting, or the default.
fn silence(options: &OpenOptions) -> Result<Duration> {
    if let Some(silence) = options.silence {
        return Ok(silence);
    }
    let Some(text) = variable("ZAZEN_TIMEOUT") else { return Ok(SILENCE) };
    parse_silence(&text)
}

fn parse_silence(text: &str) -> Result<Duration> {
    let seconds: Option<f64> = text.trim().parse().ok();
    match seconds.filter(|seconds| *seconds > 0.0 && *seconds <= SILENCE_MAX_S) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(Error::new(
            ErrorKind::Config,
            format!("$ZAZEN_TIMEOUT is {text:?}; give seconds, more than 0 and at most {SILENCE_MAX_S}"),
        )),
    }
}

/// Opens the dataset over a connection. `closes`: a handle that is given back.
fn open_on(mut remote: Remote, node: NodeInfo, mut spec: DaemonSpec, closes: Option<u32>) -> Result<Local> {
    let (info, along) = short::open(&mut remote, &spec, closes)?;
    check_same_version(spec.layout.as_deref(), info.layout.as_ref())?;
    spec.layout = info.layout.clone().map(Arc::new);
    Ok(Local { remote, node, info, spec, along, mine: Mine::of_this_process() })
}

/// The daemon's side; or, with a warning, why no daemon can serve this path.
fn open_local(path: &Path, options: &OpenOptions) -> Result<std::result::Result<Local, Absence>> {
    let socket = options.socket.clone().unwrap_or_else(find_socket_path);
    let target = Target::Local(socket.clone());
    let silence = silence(options)?;
    let no_daemon = |error: &Error| {
        let shown = socket.display();
        let text = match error.kind() {
            ErrorKind::Authentication => format!(
                "the Zazen daemon at {shown} is not used: {error}. Reading straight from the backing store: \
                 results are the same, only slower"
            ),
            _ => format!(
                "no Zazen daemon answers at {shown} ({error}); reading straight from the backing store. \
                 Results are the same, only slower; start one with `zazend --cache DIR --backing DIR`"
            ),
        };
        warn_once(&format!("no daemon {shown}"), &text);
        match error.kind() {
            ErrorKind::Authentication => Absence::NoDaemon,
            _ => Absence::NodeDead,
        }
    };
    let kept = idle::take(&target, silence).map(|(remote, node, handle)| (remote, node, Some(handle)));
    let was_kept = kept.is_some();
    let connected = || connect(&target, silence).map(|(remote, node)| (remote, node, None));
    let (remote, node, closes) = match kept.map_or_else(connected, Ok) {
        Ok(connected) => connected,
        Err(error) if daemon_is_gone(&error) || error.kind() == ErrorKind::NotFound => {
            return Ok(Err(no_daemon(&error)));
        }
        Err(error) => return Err(error.within(target)),
    };
    let Some(known) = beneath_roots(path, &node.backing_roots) else {
        let text = format!(
            "{} is not beneath what this node's daemon caches ({}); reading it straight. Add it with `zazend \
             --backing`",
            path.display(),
            node.backing_roots.join(", ")
        );
        warn_once(&format!("outside {}", path.display()), &text);
        return Ok(Err(Absence::NoDaemon));
    };
    let pattern = options.pattern.clone();
    let spec = DaemonSpec { target, path: known, pattern, layout: None, node: node.name.clone(), silence };
    let opened = match open_on(remote, node, spec.clone(), closes) {
        // The daemon may have been started again since.
        Err(error) if was_kept && daemon_is_gone(&error) => open_again(&spec),
        opened => opened,
    };
    match opened {
        Ok(local) => Ok(Ok(local)),
        Err(error) if daemon_is_gone(&error) => Ok(Err(no_daemon(&error))),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_this_users_mount(path) => {
            let text = format!(
                "the daemon may not read {}, which is on a FUSE file system; reading it straight. If only \
                 this user may enter the mount, mount it with allow_other to have it cached",
                path.display()
            );
            warn_once(&format!("private {}", path.display()), &text);
            Ok(Err(Absence::NoDaemon))
        }
        Err(error) => Err(error),
    }
}

/// Whether this process may read what the daemon may not: the kernel lets only its user enter a
/// FUSE mount without `allow_other`, and not a thread of root's that acts for that user.
fn is_this_users_mount(path: &Path) -> bool {
    const FUSE: u64 = 0x6573_5546;
    // Without a wait, should it be a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    rustix::fs::fstatfs(&file).is_ok_and(|found| found.f_type as u64 == FUSE)
}

/// The path as the daemon knows it: as typed or, if that is beneath no root, with symbolic links
/// resolved.
fn beneath_roots(path: &Path, roots: &[String]) -> Option<PathBuf> {
    let beneath = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    if beneath(path) {
        return Some(path.to_owned());
    }
    std::fs::canonicalize(path).ok().filter(|resolved| beneath(resolved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silences_are_seconds() {
        assert_eq!(parse_silence("2.5").unwrap(), Duration::from_millis(2500));
        assert_eq!(parse_silence(" 10 ").unwrap(), SILENCE);
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "ten", "5s"] {
            let error = parse_silence(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
            assert!(error.to_string().contains("ZAZEN_TIMEOUT"), "{error}");
        }
    }
}
