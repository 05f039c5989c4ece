//! FETCH fills the cache from the backing store (`zazen load`), BRING from a node that holds the
//! frames.
//!
//! Invariant: the work ends with its caller: once the connection is closed, no frame is begun, and
//! no further part of one is read. Once the daemon stops, no frame is begun.

use crate::clock::now_ns;
use crate::fetch::{Whence, held};
use crate::neighbours::Neighbours;
use crate::node::Node;
use crate::opened::OpenedDataset;
use crate::session::Sessions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zazen_call::{Caller, Line, may_say};
use zazen_core::{Error, ErrorKind, Origin, Result, RunSet};
use zazen_frames::load::{Loaded, Step, plan, result_of};
use zazen_frames::messages::{Bring, Fetch, Fetched};
use zazen_frames::stale::Held;

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;
/// Frames of one call: its caller may look at what came of them before it asks for more.
const FRAMES_MAX: u64 = 1 << 20;
/// Failed frames that an answer names.
const NAMED_MAX: usize = 100;

pub(super) fn fetch(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: Fetch,
    line: &Line,
) -> Result<Fetched> {
    from(node, sessions, caller, (ask.handle, ask.set, ask.origin), None, line)
}

/// BRING.
pub(super) fn bring(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: Bring,
    line: &Line,
) -> Result<Fetched> {
    node.peers.check_asks()?;
    from(node, sessions, caller, (ask.handle, ask.set, Origin::Alien), Some(ask.holder), line)
}

/// Brings frames from the backing store, or from the node `holder`.
fn from(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    (handle, set, origin): (u32, RunSet, Origin),
    holder: Option<u128>,
    line: &Line,
) -> Result<Fetched> {
    node.admit()?;
    if set.len() > FRAMES_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("{} frames in one call, the limit is {FRAMES_MAX}; ask for fewer at a time", set.len()),
        ));
    }
    let opened = sessions.with(caller.connection, |session| session.opened(handle))?;
    opened.check(&node.store)?;
    // Its blocks are those of this series.
    opened.layout().ok();
    let (native, alien) = node.store.holdings(&opened.series());
    let missing = set.difference(&native).difference(&alien);
    let work = Work {
        node,
        opened: &opened,
        line,
        caller,
        set: &set,
        missing,
        since_ns: now_ns(),
        neighbours: node.neighbours.of(&opened),
        origin,
        holder,
        next: AtomicU64::new(0),
        found: Mutex::new(Fetched { fetched: 0, present: 0, bytes: 0, failed: Vec::new() }),
    };
    let workers = (node.config().fetchers as u64).min(set.len()).max(1);
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|| work.run());
        }
        work.run();
    });
    let found = work.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    crate::spans::moved(found.bytes);
    Ok(found)
}

struct Work<'a> {
    node: &'a Arc<Node>,
    opened: &'a OpenedDataset,
    line: &'a Line,
    caller: &'a Caller,
    set: &'a RunSet,
    /// What of it was not in the cache.
    missing: RunSet,
    since_ns: u64,
    neighbours: Arc<Neighbours>,
    origin: Origin,
    /// The node that has the frames; `None`: the backing store.
    holder: Option<u128>,
    next: AtomicU64,
    found: Mutex<Fetched>,
}

impl Work<'_> {
    fn run(&self) {
        while let Some(number) = self.set.select(self.next.fetch_add(1, Ordering::Relaxed)) {
            if self.line.is_cut() || self.node.is_draining() {
                return;
            }
            let result = self.node.admit().and_then(|()| self.bring(number));
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(Loaded::Fetched(bytes)) => {
                    found.fetched += 1;
                    found.bytes += bytes;
                }
                Ok(Loaded::Present) => found.present += 1,
                Err(error) => name_failure(&mut found, number, &error),
            }
        }
    }

    fn bring(&self, number: u64) -> Result<Loaded> {
        let (node, opened) = (self.node, self.opened);
        let source = opened.source(number)?;
        let readers = node.readers_of(opened, self.caller, &self.missing, self.since_ns);
        let (mut file, _) = self.neighbours.open(&readers, number, &source)?;
        // What the cache cannot tell of, it does not have.
        let here = node.store.entry(&opened.series(), number).ok().flatten().map(held);
        let how = (node.config().validate, opened.viewer.is_own());
        match plan(here.as_ref(), self.origin, how, &source, &file.stat()) {
            Step::Present => return Ok(Loaded::Present),
            Step::Promote if self.promote(number, here.as_ref())? => return Ok(Loaded::Present),
            Step::Promote | Step::Fetch => {}
        }
        let is_cut = || self.line.is_cut();
        let whence = Whence { peers: self.holder.is_none(), holder: self.holder, stops: &is_cut };
        let outcome = crate::fetch::fetch(node, opened, &source, number, self.origin, &mut file, whence)?;
        result_of(outcome, &node.config().name)
    }
}

impl Work<'_> {
    /// Makes a native of `alien` from its own copy, without asking the backing store; false if that
    /// is no good, or if another copy has taken its place.
    fn promote(&self, number: u64, alien: Option<&Held>) -> Result<bool> {
        let (store, dataset) = (&self.node.store, &self.opened.series());
        let Some(frame) = store.open_frame(dataset, number)? else { return Ok(false) };
        if alien.is_none_or(|alien| (&alien.meta, &alien.source) != (&frame.meta, &frame.source)) {
            return Ok(false);
        }
        let mut put = store.put(dataset, &frame.source, &frame.meta, Origin::Native)?;
        let mut buffer = vec![0; frame.meta.length.clamp(1, COPY_BYTES) as usize];
        let mut done = 0;
        while done < frame.meta.length {
            let wanted = (frame.meta.length - done).min(buffer.len() as u64) as usize;
            let read = frame.file.read_exact_at(&mut buffer[..wanted], frame.offset + done);
            read.map_err(|error| Error::io(format!("read the copy of frame {number}"), error))?;
            put.write(&buffer[..wanted])?;
            done += wanted as u64;
        }
        match put.commit() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                if let Some(left_out) = may_say("promote", &self.opened.spelled()) {
                    tracing::warn!("{error}; its copy is dropped and fetched anew{left_out}");
                }
                self.node.counters.corrupt_dropped.add(1);
                store.drop_frame(dataset, number)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn name_failure(found: &mut Fetched, number: u64, error: &Error) {
    if found.failed.len() < NAMED_MAX {
        found.failed.push((number, error.kind() as u32, error.to_string()));
    }
}
