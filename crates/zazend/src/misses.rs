//! The misses of one scan: fetched in the background, a bounded number ahead of the reader.
//!
//! Invariants: every frame added comes out exactly once, as brought or as failed; at most [`AHEAD_FRAMES`] frames and
//! about [`INLINE_AHEAD_BYTES`] bytes of frames sent inline are ahead of the reader; the threads end with the scan.
//! Each source is opened once, with its user's rights, and that descriptor serves for all that follows: what was
//! checked is what is copied or handed out.

use crate::config::Validate;
use crate::fetcher::{Outcome, read_inline};
use crate::look::is_same_file;
use crate::node::{Node, Opened};
use crate::shares::Share;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_backing::{SourceFile, SourceStat};
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, Result, RunSet, Source};

/// Frames fetched and not yet taken.
pub const AHEAD_FRAMES: usize = 64;
/// Bytes held in memory for frames that the cache has no room for.
pub const INLINE_AHEAD_BYTES: u64 = 64 << 20;
/// How often a scan that may not go ahead looks whether it may.
const LOOK: Duration = Duration::from_millis(100);
/// The largest frame sent inline.
pub const INLINE_BYTES_MAX: u64 = 1 << 30;

/// A miss that was dealt with.
pub struct Brought {
    /// The frame.
    pub number: u64,
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

/// What of a source the user's rights have opened, and when.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    stat: SourceStat,
    /// When.
    pub at: Instant,
}

impl Proof {
    /// Whether a copy is one of what was opened.
    pub fn covers(&self, node: &Node, meta: &FrameMeta) -> bool {
        let alike = match (node.config.validate, meta.validator) {
            (Validate::Always, Some(validator)) => validator.looks_like(&self.stat.validator),
            _ => true,
        };
        alike && is_same_file(meta, &self.stat)
    }
}

#[derive(Default)]
struct State {
    todo: RunSet,
    at: u64,
    /// Frames that were thought to be in the cache; true: and that the cache cannot give.
    extra: VecDeque<(u64, bool)>,
    /// Those of `extra` that are to be natives.
    natives: RunSet,
    ready: VecDeque<Brought>,
    inline_bytes: u64,
    under_way: usize,
    workers: usize,
    closed: bool,
}

impl State {
    fn waiting(&self) -> u64 {
        self.todo.len() - self.at + self.extra.len() as u64
    }

    fn window_open(&self) -> bool {
        self.ready.len() + self.under_way < AHEAD_FRAMES && self.inline_bytes < INLINE_AHEAD_BYTES
    }

    fn next(&mut self) -> Option<(u64, bool)> {
        if let Some(extra) = self.extra.pop_front() {
            return Some(extra);
        }
        let number = self.todo.select(self.at)?;
        self.at += 1;
        Some((number, false))
    }
}

/// The misses of one scan.
pub struct Misses {
    shared: Arc<Shared>,
}

struct Shared {
    node: Weak<Node>,
    opened: Arc<Opened>,
    caller: Caller,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn share(&self) -> Option<Share> {
        self.node.upgrade()?.shares.fetchers.take(&self.caller).ok()
    }

    fn ahead(&self) -> Option<Share> {
        self.node.upgrade()?.shares.ahead.take(&self.caller).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Misses {
    /// Begins to bring `todo` with the rights of the user who opened the dataset.
    pub fn new(node: &Arc<Node>, opened: &Arc<Opened>, caller: &Caller, todo: RunSet) -> Misses {
        let state = Mutex::new(State { todo, ..State::default() });
        let shared = Shared {
            node: Arc::downgrade(node),
            opened: opened.clone(),
            caller: caller.clone(),
            state,
            changed: Condvar::new(),
        };
        let misses = Misses { shared: Arc::new(shared) };
        misses.start_workers(node.config.fetchers);
        misses
    }

    /// Adds a frame that was thought to be in the cache; it becomes what `origin` says.
    pub fn add(&self, fetchers: usize, number: u64, origin: Origin) {
        self.add_one(fetchers, number, origin, false);
    }

    /// Adds a frame that the cache has and cannot give: it is handed out from its source.
    pub fn add_around(&self, fetchers: usize, number: u64) {
        self.add_one(fetchers, number, Origin::Alien, true);
    }

    fn add_one(&self, fetchers: usize, number: u64, origin: Origin, around: bool) {
        let mut state = self.shared.state();
        state.extra.push_back((number, around));
        if origin == Origin::Native {
            state.natives.insert(number);
        }
        drop(state);
        self.start_workers(fetchers);
        self.shared.changed.notify_all();
    }

    /// The next frames dealt with, at most `frames_max`; waits for the first. Empty when all have come out.
    pub fn take(&self, frames_max: usize) -> Vec<Brought> {
        let state = self.shared.state();
        let pending =
            |state: &mut State| state.ready.is_empty() && state.waiting() + state.under_way as u64 > 0;
        let waited = self.shared.changed.wait_while(state, pending);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<Brought> = {
            let count = frames_max.min(state.ready.len());
            state.ready.drain(..count).collect()
        };
        for brought in &taken {
            if let Ok(Way::Inline(_, bytes)) = &brought.result {
                state.inline_bytes -= bytes.len() as u64;
            }
        }
        self.shared.changed.notify_all();
        taken
    }

    /// Gives back frames that did not fit into a reply; they come out first next time.
    pub fn give_back(&self, frames: Vec<Brought>) {
        let mut state = self.shared.state();
        for brought in frames.into_iter().rev() {
            if let Ok(Way::Inline(_, bytes)) = &brought.result {
                state.inline_bytes += bytes.len() as u64;
            }
            state.ready.push_front(brought);
        }
    }

    fn start_workers(&self, fetchers: usize) {
        let mut state = self.shared.state();
        let wanted = (fetchers as u64).min(state.waiting()) as usize;
        while state.workers < wanted {
            // Each scan has a thread of its own; further ones are its user's to share.
            let share = match state.workers {
                0 => None,
                _ => match self.shared.share() {
                    Some(share) => Some(share),
                    None => return,
                },
            };
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("fetch".into()).spawn(move || {
                work(&shared);
                drop(share);
            });
            match spawned {
                Ok(_) => state.workers += 1,
                Err(error) if state.workers == 0 => {
                    // Nobody would ever deal with them: they fail now, with the reason.
                    fail_all(&mut state, &error);
                    self.shared.changed.notify_all();
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

impl Drop for Misses {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }
}

fn fail_all(state: &mut State, cause: &std::io::Error) {
    while let Some((number, _)) = state.next() {
        let what = format!("frame {number}: no thread to fetch it with ({cause}); try again");
        let result = Err(Error::new(ErrorKind::Busy, what));
        state.ready.push_back(Brought { number, result, _ahead: None });
    }
}

fn work(shared: &Shared) {
    loop {
        let mut state = shared.state();
        let ((number, around), ahead) = loop {
            if state.closed {
                return leave(state, shared);
            }
            let mut wait = Duration::MAX;
            if state.window_open() {
                // One frame is each scan's own; what lies ready beyond it holds files that are its user's to share.
                let is_ahead = state.under_way + state.ready.len() > 0;
                let share = if is_ahead { shared.ahead() } else { None };
                if is_ahead && share.is_none() {
                    wait = LOOK;
                } else {
                    match state.next() {
                        Some(next) => break (next, share),
                        None => return leave(state, shared),
                    }
                }
            }
            let waited = shared.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.under_way += 1;
        drop(state);
        let landing = Landing { shared, number, brought: None, ahead };
        landing.with(|| bring(shared, number, around));
    }
}

fn leave(mut state: MutexGuard<'_, State>, shared: &Shared) {
    state.workers -= 1;
    drop(state);
    shared.changed.notify_all();
}

/// Puts a result in its place also if bringing it panics.
struct Landing<'a> {
    shared: &'a Shared,
    number: u64,
    brought: Option<Result<Way>>,
    ahead: Option<Share>,
}

impl Landing<'_> {
    fn with(mut self, bring: impl FnOnce() -> Result<Way>) {
        self.brought = Some(bring());
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Io, "the fetch failed inside zazend; see its log"));
        let result = self.brought.take().unwrap_or_else(lost);
        let mut state = self.shared.state();
        if let Ok(Way::Inline(_, bytes)) = &result {
            state.inline_bytes += bytes.len() as u64;
        }
        state.under_way -= 1;
        if std::thread::panicking() {
            state.workers -= 1;
        }
        let held = matches!(result, Ok(Way::ReadThrough(..) | Way::Inline(..)));
        let ahead = self.ahead.take().filter(|_| held);
        state.ready.push_back(Brought { number: self.number, result, _ahead: ahead });
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn bring(shared: &Shared, number: u64, around: bool) -> Result<Way> {
    let gone = || Error::new(ErrorKind::ShuttingDown, "zazend is stopping");
    let node = shared.node.upgrade().ok_or_else(gone)?;
    let opened = &shared.opened;
    let source = opened.source(number)?;
    let origin = if shared.state().natives.contains(number) { Origin::Native } else { Origin::Alien };
    let mut file = opened.open_source(&source, number)?;
    let at = Instant::now();
    if around {
        return without_room(opened, source, number, file);
    }
    match node.fetcher.fetch(&node, opened, &source, number, origin, &mut file)? {
        Outcome::Stored(_) | Outcome::Present => Ok(Way::Cached(Proof { stat: file.stat(), at })),
        Outcome::NoRoom | Outcome::CacheFailed | Outcome::Contended => {
            without_room(opened, source, number, file)
        }
    }
}

/// A frame that the cache cannot take or give: its opened source's descriptor if the store has such, else its bytes.
pub fn without_room(opened: &Opened, source: Source, number: u64, file: Box<dyn SourceFile>) -> Result<Way> {
    if file.has_descriptor() {
        return Ok(Way::ReadThrough(source, file));
    }
    let (_, length) = crate::fetcher::extent_in(&*file, &source, number, &opened.spelled())?;
    if length > INLINE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "frame {number} of {}: {length} bytes find no room in the cache and are beyond the limit of \
                 {INLINE_BYTES_MAX} for passing through; raise --budget or evict a dataset",
                opened.spelled()
            ),
        ));
    }
    let bytes = read_inline(opened, &source, number, &*file)?;
    Ok(Way::Inline(source, bytes))
}
