//! Fills the nodes' caches from the backing store. Each missing frame goes to one node, in
//! contiguous blocks, or to as many nodes as copies are wanted ([`placement`]).
//!
//! Each live node fetches its share chunk by chunk. If a node dies, the others fetch the rest of
//! its share.

pub mod placement;

use crate::cluster::{Remote, Target, daemon_is_gone};
use placement::{Spread, Wanted};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_core::{Error, ErrorKind, Origin, Result, RunSet};
use zazen_frames::messages::Fetched;

/// How long a node may take for one chunk.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(600);
/// Failed frames that a report names.
const NAMED_MAX: usize = 1000;

/// How to load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The daemons of the nodes that will hold the dataset.
    pub targets: Vec<Target>,
    /// The cluster key; needed for daemons on other machines.
    pub key: Option<ClusterKey>,
    /// File-name template; `None`: the manifest, or what the names tell.
    pub pattern: Option<String>,
    /// Only these frame numbers; `None`: all that exist.
    pub set: Option<RunSet>,
    /// Frames requested in one call, which is also the step of the progress. At least 1.
    pub chunk_frames: u64,
    /// Nodes that shall hold each frame.
    pub copies: u32,
    /// Where the copies go: with names of racks, one for each target, the first copy lies on one
    /// rack and the others on another, as in HDFS. `None`: any nodes.
    pub racks: Option<Vec<String>>,
}

impl LoadOptions {
    /// All frames, 64 at a time, on one node each.
    pub fn new(targets: Vec<Target>, key: Option<ClusterKey>) -> LoadOptions {
        LoadOptions { targets, key, pattern: None, set: None, chunk_frames: 64, copies: 1, racks: None }
    }
}

/// The progress of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Frames to fetch; each of its copies counts.
    pub frames_total: u64,
    /// Frames fetched or failed.
    pub frames_done: u64,
    /// Bytes read from the backing store.
    pub bytes: u64,
    /// Frames that could not be fetched.
    pub failed: u64,
    /// Nodes at work.
    pub nodes: usize,
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct LoadReport {
    /// Frames asked for that exist.
    pub frames: u64,
    /// Frames that some node held before; with several copies, copies that were there.
    pub present: u64,
    /// Frames fetched; each copy counts.
    pub loaded: u64,
    /// Bytes read from the backing store.
    pub bytes: u64,
    /// The number of frames that could not be fetched.
    pub failed: u64,
    /// The first thousand of them: number and reason.
    pub failures: Vec<(u64, Error)>,
    /// Nodes that did not answer, or stopped answering, and why.
    pub dead: Vec<(Target, Error)>,
    /// Copies that no node has: too few nodes answered, or one died during the load.
    pub copies_missing: u64,
}

struct Member {
    target: Target,
    remote: Remote,
    handle: u32,
    held: RunSet,
    rack: Option<String>,
}

enum News {
    Chunk(u64, Fetched),
    Failed(RunSet, Error),
    Died(Target, Error),
    Left,
}

/// Blocks that wait for a node.
struct Blocks {
    state: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    orphans: VecDeque<RunSet>,
    at_work: usize,
}

/// Loads the dataset at `dataset` (absolute path as users spell it) into the caches of the nodes.
/// `progress` is called on the caller's thread after every chunk.
///
/// Fails if no node answers, or if none can list the dataset. Frames and nodes that fail during the
/// load are in the report.
pub fn load(
    dataset: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadReport> {
    let mut report = LoadReport::default();
    check_copies(options)?;
    let (members, extent) = muster(dataset, options, &mut report)?;
    let wanted = options.set.as_ref().map_or(extent.clone(), |set| extent.intersection(set));
    let held: Vec<RunSet> = members.iter().map(|member| member.held.clone()).collect();
    let racks: Option<Vec<&str>> = members.iter().map(|member| member.rack.as_deref()).collect();
    let copies = options.copies.min(members.len() as u32);
    let to_hold = Wanted { frames: &wanted, held: &held, copies, racks: racks.as_deref() };
    let Spread { shares, missing } = to_hold.spread();
    let copies_total = wanted.len() * u64::from(options.copies);
    report.frames = wanted.len();
    report.present = wanted.len() * u64::from(copies) - missing;
    report.copies_missing = wanted.len() * u64::from(options.copies - copies);
    let (present_before, dead_before) = (report.present, report.dead.len());
    let mut so_far = LoadProgress { frames_total: missing, nodes: members.len(), ..LoadProgress::default() };
    progress(&so_far);
    if missing == 0 {
        return Ok(report);
    }
    let blocks = Blocks {
        state: Mutex::new(Waiting { orphans: VecDeque::new(), at_work: members.len() }),
        changed: Condvar::new(),
    };
    let (tell, news) = channel();
    std::thread::scope(|scope| {
        for (member, share) in members.into_iter().zip(shares) {
            let (tell, blocks) = (tell.clone(), &blocks);
            scope.spawn(move || work(member, share, blocks, options.chunk_frames.max(1), &tell));
        }
        drop(tell);
        for item in news {
            take_in(item, &mut report, &mut so_far);
            progress(&so_far);
        }
    });
    abandon(&blocks, &mut report, &mut so_far);
    if options.copies > 1 && report.dead.len() > dead_before {
        // What a dead node left may have gone to nodes that had it already.
        let placed = present_before + report.loaded + report.failed;
        report.copies_missing = copies_total.saturating_sub(placed);
    }
    progress(&so_far);
    Ok(report)
}

fn check_copies(options: &LoadOptions) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
    match &options.racks {
        _ if options.copies == 0 => refuse("0 copies: give at least 1".into()),
        _ if options.copies as usize > options.targets.len() => refuse(format!(
            "{} copies of each frame need as many nodes, and {} are given",
            options.copies,
            options.targets.len()
        )),
        Some(racks) if racks.len() != options.targets.len() => {
            refuse(format!("racks of {} nodes are given, and {} nodes", racks.len(), options.targets.len()))
        }
        _ => Ok(()),
    }
}

/// Connects to all nodes at once: those that answer, and what exists.
fn muster(dataset: &Path, options: &LoadOptions, report: &mut LoadReport) -> Result<(Vec<Member>, RunSet)> {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = options
            .targets
            .iter()
            .map(|target| {
                let (pattern, key) = (options.pattern.as_deref(), options.key.as_ref());
                (target.clone(), scope.spawn(move || join(target, dataset, pattern, key)))
            })
            .collect();
        let lost = || {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the thread that asked it ended early, a bug; please report it",
            ))
        };
        asked.into_iter().map(|(target, handle)| (target, handle.join().unwrap_or_else(|_| lost()))).collect()
    });
    let mut members = Vec::new();
    for (at, (target, answer)) in answers.into_iter().enumerate() {
        let rack = options.racks.as_ref().and_then(|racks| racks.get(at).cloned());
        match answer {
            Ok((remote, handle, held)) => members.push(Member { target, remote, handle, held, rack }),
            Err(error) => report.dead.push((target, error)),
        }
    }
    if members.is_empty() {
        let kind = report.dead.first().map_or(ErrorKind::Unavailable, |(_, error)| error.kind());
        return Err(Error::new(
            kind,
            format!("load {}: no node can take part: {}", dataset.display(), reasons(&report.dead)),
        ));
    }
    // Any node can list the backing store. Ask one; if it does not answer, ask the next.
    let (mut extent, mut why) = (None, String::new());
    for member in &mut members {
        match member.remote.open(dataset, options.pattern.as_deref(), true).map(|info| info.extent) {
            Ok(Some(found)) => {
                extent = Some(found);
                break;
            }
            Ok(None) => why = format!("{}: its backing store does not answer", member.target),
            Err(error) => why = format!("{}: {error}", member.target),
        }
    }
    members.retain(|member| member.remote.is_alive());
    match extent {
        Some(extent) => Ok((members, extent)),
        None => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "load {}: no node can list it on the backing store ({why}); look there, then load again",
                dataset.display()
            ),
        )),
    }
}

fn join(
    target: &Target,
    dataset: &Path,
    pattern: Option<&str>,
    key: Option<&ClusterKey>,
) -> Result<(Remote, u32, RunSet)> {
    let mut remote = Remote::connect(target, key)?;
    remote.set_timeout(Some(CHUNK_TIMEOUT));
    let handle = remote.open(dataset, pattern, false)?.handle;
    let held = remote.query_all(handle)?;
    Ok((remote, handle, held.native.union(&held.alien)))
}

/// What kept the nodes from taking part: what several say is said once, and no list is longer than
/// a person reads.
fn reasons(dead: &[(Target, Error)]) -> String {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for (target, error) in dead {
        let (why, who) = (error.to_string(), target.to_string());
        match said.iter_mut().find(|(known, _)| *known == why) {
            Some((_, nodes)) => nodes.push(who),
            None => said.push((why, vec![who])),
        }
    }
    let named =
        |(why, nodes): &(String, Vec<String>)| format!("{}: {why}", shortened(nodes, ", ", "more nodes"));
    shortened(&said.iter().map(named).collect::<Vec<_>>(), "; ", "more reasons")
}

/// The first of `all`, and how many more there are.
fn shortened(all: &[String], between: &str, what: &str) -> String {
    const NAMED_MAX: usize = 3;
    let mut text = all[..all.len().min(NAMED_MAX)].join(between);
    if all.len() > NAMED_MAX {
        text += &format!("{between}and {} {what}", all.len() - NAMED_MAX);
    }
    text
}

/// One node's share of the work: its own block, then what dead nodes left.
fn work(mut member: Member, block: RunSet, blocks: &Blocks, chunk: u64, tell: &Sender<News>) {
    let mut mine = Some(block);
    while let Some(block) = mine.take().or_else(|| blocks.next()) {
        let mut done = 0;
        while done < block.len() {
            let set = block.block(done, chunk);
            let frames = set.len();
            match member.remote.fetch(member.handle, set.clone(), Origin::Native) {
                Ok(fetched) => {
                    let _ = tell.send(News::Chunk(frames, fetched));
                }
                Err(error) if !member.remote.is_alive() || daemon_is_gone(&error) => {
                    blocks.leave(Some(block.block(done, block.len() - done)));
                    let _ = tell.send(News::Died(member.target, error));
                    return;
                }
                Err(error) => {
                    let _ = tell.send(News::Failed(set, error));
                }
            }
            done += frames;
        }
    }
    let _ = tell.send(News::Left);
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block that another node left; `None` if no other node is at work that could leave one.
    fn next(&self) -> Option<RunSet> {
        let mut waiting = self.lock();
        waiting.at_work -= 1;
        self.changed.notify_all();
        loop {
            if let Some(block) = waiting.orphans.pop_front() {
                waiting.at_work += 1;
                return Some(block);
            }
            if waiting.at_work == 0 {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn leave(&self, rest: Option<RunSet>) {
        let mut waiting = self.lock();
        waiting.at_work -= 1;
        waiting.orphans.extend(rest);
        self.changed.notify_all();
    }
}

fn take_in(news: News, report: &mut LoadReport, so_far: &mut LoadProgress) {
    match news {
        News::Chunk(frames, fetched) => {
            report.loaded += fetched.fetched;
            report.present += fetched.present;
            report.bytes += fetched.bytes;
            let failed = frames.saturating_sub(fetched.fetched + fetched.present);
            report.failed += failed;
            let named = fetched.failed.into_iter().map(|(number, code, message)| {
                let kind = ErrorKind::from_code(code).unwrap_or(ErrorKind::Unavailable);
                (number, Error::new(kind, message))
            });
            report.failures.extend(named.take(NAMED_MAX.saturating_sub(report.failures.len())));
            so_far.frames_done += frames;
            so_far.bytes += report.bytes - so_far.bytes;
            so_far.failed = report.failed;
        }
        News::Failed(set, error) => {
            report.failed += set.len();
            so_far.frames_done += set.len();
            so_far.failed = report.failed;
            name_all(&set, error.kind(), error.context(), report);
        }
        News::Died(target, error) => {
            so_far.nodes = so_far.nodes.saturating_sub(1);
            report.dead.push((target, error));
        }
        News::Left => so_far.nodes = so_far.nodes.saturating_sub(1),
    }
}

fn name_all(set: &RunSet, kind: ErrorKind, why: &str, report: &mut LoadReport) {
    let room = NAMED_MAX.saturating_sub(report.failures.len());
    report.failures.extend(set.iter().take(room).map(|number| (number, Error::new(kind, why))));
}

/// Nobody fetches what the last node left.
fn abandon(blocks: &Blocks, report: &mut LoadReport, so_far: &mut LoadProgress) {
    let orphans = std::mem::take(&mut blocks.lock().orphans);
    for block in orphans {
        report.failed += block.len();
        so_far.frames_done += block.len();
        so_far.failed = report.failed;
        name_all(
            &block,
            ErrorKind::Unavailable,
            "its node stopped answering, and no other node was left",
            report,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_nodes_say_is_said_once() {
        let dead = |number: usize| {
            let why = if number == 2 { "is full" } else { "no such directory" };
            (Target::Tcp(format!("n{number}:1")), Error::new(ErrorKind::NotFound, why))
        };
        let check = |nodes: usize, expected: &str| {
            assert_eq!(reasons(&(0..nodes).map(dead).collect::<Vec<_>>()), expected);
        };
        check(1, "daemon at n0:1: no such directory");
        check(3, "daemon at n0:1, daemon at n1:1: no such directory; daemon at n2:1: is full");
        check(
            1000,
            "daemon at n0:1, daemon at n1:1, daemon at n3:1, and 996 more nodes: no such directory; \
             daemon at n2:1: is full",
        );
    }
}
