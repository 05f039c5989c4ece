//! The misses of one scan, fetched in the background: `zazen_frames::misses` decides what is begun
//! when, threads of this file do it.
//!
//! Invariants: the threads end with the scan; so does a long copy, at its next part. Each source is
//! opened once, with its user's rights, and that descriptor serves for all that follows: what was
//! checked is what is copied or handed out.

use crate::clock::{left_until, now_ns};
use crate::fetch::{self, Whence, read_inline};
use crate::fetcher::Outcome;
use crate::neighbours::Neighbours;
use crate::node::Node;
use crate::notes::Notes;
use crate::opened::OpenedDataset;
use crate::shares::Share;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_backing::SourceFile;
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Result, RunSet, Source};
use zazen_frames::absence::Absence;
use zazen_frames::copy::check_inline;
use zazen_frames::misses::{self, Action, Event, Take, Wanted};
use zazen_frames::scan::Proof;

/// How often a caller that waits for a frame is looked after.
const LOOK: Duration = Duration::from_millis(500);

/// A miss that was dealt with.
pub type Brought = misses::Brought<Arrived>;

/// How a miss came.
pub struct Arrived {
    /// How it came, or why not.
    pub result: Result<Way>,
    /// What it costs its user to be held until the reader comes.
    _ahead: Option<Share>,
}

/// How a miss can be handed out.
pub enum Way {
    /// It is in the cache now, and the user's rights have opened its source.
    Cached(Proof),
    /// By a descriptor of its source, which the user's rights have opened.
    ReadThrough(Source, Box<dyn SourceFile>),
    /// As bytes; the source is told for its path.
    Inline(Source, Vec<u8>),
}

/// The misses of one scan.
pub struct Misses {
    shared: Arc<Shared>,
}

struct Shared {
    node: Weak<Node>,
    opened: Arc<OpenedDataset>,
    caller: Caller,
    notes: Arc<Notes>,
    /// What was not in the cache when the scan began.
    wanted: RunSet,
    since_ns: u64,
    neighbours: Arc<Neighbours>,
    state: Mutex<misses::Misses<Arrived>>,
    changed: Condvar,
    /// The scan has ended.
    ended: AtomicBool,
}

type State<'a> = MutexGuard<'a, misses::Misses<Arrived>>;

impl Misses {
    /// Begins to bring `todo` with the rights of the user who opened the dataset.
    pub fn new(
        node: &Arc<Node>,
        opened: &Arc<OpenedDataset>,
        caller: &Caller,
        todo: RunSet,
        notes: Arc<Notes>,
    ) -> Misses {
        let wanted = todo.clone();
        let state = Mutex::new(misses::Misses::new(todo, node.config().fetchers));
        let shared = Arc::new(Shared {
            node: Arc::downgrade(node),
            opened: opened.clone(),
            caller: caller.clone(),
            notes,
            wanted,
            since_ns: now_ns(),
            neighbours: node.neighbours.of(opened),
            state,
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        shared.step(&mut shared.state(), Event::Begin);
        Misses { shared }
    }

    /// Adds a frame that was thought to be in the cache.
    pub fn add(&self, wanted: Wanted) {
        self.shared.step(&mut self.shared.state(), Event::Add(wanted));
    }

    /// The next frames dealt with, at most `frames_max`; waits for the first. Empty when all have
    /// come out, or when `is_left` says that nobody waits for them any more.
    pub fn take(&self, frames_max: usize, is_left: &dyn Fn() -> bool) -> Vec<Brought> {
        let mut state = self.shared.state();
        loop {
            match state.take(frames_max) {
                Take::Frames(frames) => {
                    self.shared.changed.notify_all();
                    return frames;
                }
                Take::End => return Vec::new(),
                Take::Wait => {
                    let waited = self.shared.changed.wait_timeout(state, LOOK);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && is_left() {
                        return Vec::new();
                    }
                    state = after;
                }
            }
        }
    }

    /// Gives back frames that did not fit into a reply; they come out first next time.
    pub fn give_back(&self, frames: Vec<Brought>) {
        self.shared.state().give_back(frames);
    }
}

impl Drop for Misses {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.step(&mut self.shared.state(), Event::Close);
    }
}

impl Shared {
    fn state(&self) -> State<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the state machine and does what it asks for, but for the answer to an idle worker,
    /// which it returns.
    fn step(self: &Arc<Shared>, state: &mut State<'_>, event: Event<Arrived>) -> Option<Action> {
        let mut actions = Vec::new();
        state.step(now_ns(), event, &mut actions);
        let mut answer = None;
        for action in actions {
            match action {
                Action::Hire { first } => self.hire(state, first),
                Action::Wake => self.changed.notify_all(),
                Action::Bring { .. } | Action::Rest { .. } | Action::Leave => answer = Some(action),
                // Handled where the worker could not be had: the reason is known there.
                Action::Abandon => {}
            }
        }
        answer
    }

    /// Each scan has a thread of its own; further ones are its user's to share.
    fn hire(self: &Arc<Shared>, state: &mut State<'_>, first: bool) {
        let share = match first {
            true => None,
            false => match self.share_of(|node| node.shares.fetchers.take(&self.caller).ok()) {
                None => {
                    self.step(state, Event::NotHired);
                    return;
                }
                share => share,
            },
        };
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name("fetch".into()).spawn(move || {
            work(&shared);
            drop(share);
        });
        match spawned {
            Ok(_) => {
                self.step(state, Event::Hired);
            }
            Err(error) => {
                self.step(state, Event::NotHired);
                if first {
                    self.fail_all(state, &error);
                }
            }
        }
    }

    /// Nobody would ever deal with what is wanted: it fails now, with the reason.
    fn fail_all(self: &Arc<Shared>, state: &mut State<'_>, cause: &std::io::Error) {
        while let Some(number) = state.abandon() {
            let what = format!("frame {number}: no thread to fetch it with ({cause}); try again");
            let what = Arrived { result: Err(Error::new(ErrorKind::Busy, what)), _ahead: None };
            self.step(state, Event::Brought(Brought { number, inline_bytes: 0, what }));
        }
    }

    fn share_of(&self, take: impl FnOnce(&Node) -> Option<Share>) -> Option<Share> {
        take(&*self.node.upgrade()?)
    }
}

fn work(shared: &Arc<Shared>) {
    let mut state = shared.state();
    loop {
        match shared.step(&mut state, Event::Idle) {
            Some(Action::Bring { wanted, ahead }) => {
                // One frame is each scan's own; what lies ready beyond it holds files that are its
                // user's to share.
                let share = match ahead {
                    true => shared.share_of(|node| node.shares.ahead.take(&shared.caller).ok()),
                    false => None,
                };
                if ahead && share.is_none() {
                    let rest = shared.step(&mut state, Event::Denied(wanted));
                    state = sleep(shared, state, rest);
                    continue;
                }
                drop(state);
                let landing = Landing { shared, number: wanted.number, result: None, ahead: share };
                landing.with(|| bring(shared, wanted));
                state = shared.state();
            }
            Some(rest @ Action::Rest { .. }) => state = sleep(shared, state, Some(rest)),
            _ => return,
        }
    }
}

/// Waits for a change, or for the time that a rest names.
fn sleep<'a>(shared: &'a Shared, state: State<'a>, rest: Option<Action>) -> State<'a> {
    match rest {
        Some(Action::Rest { until_ns: Some(until_ns) }) => {
            let waited = shared.changed.wait_timeout(state, left_until(until_ns));
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
        _ => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
    }
}

/// Puts a result in its place also if bringing it panics.
struct Landing<'a> {
    shared: &'a Arc<Shared>,
    number: u64,
    result: Option<Result<Way>>,
    ahead: Option<Share>,
}

impl Landing<'_> {
    fn with(mut self, bring: impl FnOnce() -> Result<Way>) {
        self.result = Some(bring());
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Io, "the fetch failed inside zazend; see its log"));
        let result = self.result.take().unwrap_or_else(lost);
        let inline_bytes = match &result {
            Ok(Way::Inline(_, bytes)) => bytes.len() as u64,
            _ => 0,
        };
        let is_held = matches!(result, Ok(Way::ReadThrough(..) | Way::Inline(..)));
        let what = Arrived { result, _ahead: self.ahead.take().filter(|_| is_held) };
        let mut state = self.shared.state();
        let brought = Brought { number: self.number, inline_bytes, what };
        self.shared.step(&mut state, Event::Brought(brought));
        if std::thread::panicking() {
            self.shared.step(&mut state, Event::Lost);
        }
    }
}

fn bring(shared: &Shared, wanted: Wanted) -> Result<Way> {
    let Wanted { number, origin, around } = wanted;
    let gone = || Error::new(ErrorKind::ShuttingDown, "zazend is stopping");
    let node = shared.node.upgrade().ok_or_else(gone)?;
    let opened = &shared.opened;
    let source = opened.source(number)?;
    let readers = node.readers_of(opened, &shared.caller, &shared.wanted, shared.since_ns);
    let (mut file, at_ns) = match around {
        false => shared.neighbours.open(&readers, number, &source)?,
        true => (opened.open_source(&source, number)?, now_ns()),
    };
    shared.notes.length(source.length.unwrap_or(file.stat().validator.size));
    if around {
        return without_room(opened, source, number, file);
    }
    let began = Instant::now();
    let ended = || shared.ended.load(Ordering::Relaxed);
    let whence = Whence { peers: true, holder: None, stops: &ended };
    let outcome = fetch::fetch(&node, opened, &source, number, origin, &mut file, whence)?;
    shared.notes.came(matches!(outcome, Outcome::Given(_)), began.elapsed());
    match outcome {
        Outcome::Stored(_) | Outcome::Given(_) | Outcome::Present => {
            Ok(Way::Cached(Proof { source, stat: file.stat(), at_ns }))
        }
        outcome @ (Outcome::NoRoom | Outcome::CacheFailed | Outcome::Contended) => {
            match outcome {
                Outcome::NoRoom => shared.notes.add(number, Absence::NoRoom),
                Outcome::CacheFailed => shared.notes.add(number, Absence::CacheFails),
                _ => {}
            }
            without_room(opened, source, number, file)
        }
    }
}

/// A frame that the cache cannot take or give: its opened source's descriptor if the store has
/// such, else its bytes.
pub fn without_room(
    opened: &OpenedDataset,
    source: Source,
    number: u64,
    file: Box<dyn SourceFile>,
) -> Result<Way> {
    if file.has_descriptor() {
        return Ok(Way::ReadThrough(source, file));
    }
    let (_, length) = fetch::extent_in(&*file, &source, number, &opened.spelled())?;
    check_inline(length, number, &opened.spelled())?;
    let bytes = read_inline(opened, &source, number, &*file)?;
    opened.check_version(&file.stat_now()?.validator)?;
    Ok(Way::Inline(source, bytes))
}
