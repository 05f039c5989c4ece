//! Small frames that lie one after another in a file are read from the backing store in one part
//! of the file. `zazen_frames::neighbours` decides which frames, and for how long; this reads.
//!
//! Invariants:
//! - A part is read from a source that its reader's own rights opened, and only readers with the
//!   same rights use it.
//! - What the source and its name looked like before and after the part was read stands for each
//!   frame in it. So a frame that comes from a part is judged like one that was read alone.

use crate::clock::now_ns;
use crate::fetcher::Fetcher;
use crate::node_store::NodeStore;
use crate::opened::OpenedDataset;
use crate::shares::{AllShares, Share};
use crate::viewer::Viewer;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use zazen_backing::SourceFile;
use zazen_call::Caller;
use zazen_core::{RelPath, Result, RunSet, Source, SourceStat, Validator};
use zazen_frames::neighbours::{self, Action, Event, Part};

/// The parts of all series. One for the daemon.
#[derive(Default)]
pub struct AllNeighbours(Mutex<BTreeMap<(RelPath, Viewer), Weak<Neighbours>>>);

impl AllNeighbours {
    /// The parts of the series that is open, for readers with the rights of its viewer.
    pub fn of(&self, opened: &OpenedDataset) -> Arc<Neighbours> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (opened.series(), opened.viewer.clone());
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let made = Arc::new(Neighbours::default());
        all.insert(key, Arc::downgrade(&made));
        made
    }
}

/// The parts of one series' files that were read lately. Shared by threads.
#[derive(Default)]
pub struct Neighbours {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    decides: neighbours::Neighbours,
    parts: Vec<Arc<PartInMemory>>,
}

impl State {
    /// Brings an event to the machine and forgets what it wants forgotten. The answer to a question
    /// comes back.
    fn step(&mut self, event: Event<'_>) -> Option<Action> {
        let mut actions = Vec::new();
        self.decides.step(now_ns(), event, &mut actions);
        let mut answer = None;
        for action in actions {
            match action {
                Action::Forget(part) => self.parts.retain(|held| held.part != part),
                other => answer = Some(other),
            }
        }
        answer
    }
}

/// A part of a file, in memory.
struct PartInMemory {
    part: Part,
    bytes: Vec<u8>,
    /// The file, which looked like this when it was opened, before the bytes were read.
    file: Box<dyn SourceFile>,
    /// What the file looked like after that, and what its name led to.
    after: SourceStat,
    name: Validator,
    _share: Share,
}

/// Who wants frames, and which.
pub struct Readers<'a> {
    /// The cache.
    pub store: &'a NodeStore,
    /// Knows how fast the backing store is.
    pub fetcher: &'a Fetcher,
    /// What each user may hold in memory.
    pub shares: &'a AllShares,
    /// The dataset, with its user's rights.
    pub opened: &'a OpenedDataset,
    /// Whose share of memory a part is.
    pub caller: &'a Caller,
    /// The frames that are wanted and were not in the cache.
    pub wanted: &'a RunSet,
    /// When their scan or load began.
    pub since_ns: u64,
}

impl Neighbours {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens `source`, that of frame `number`, with the rights of its user: in a part with its
    /// neighbours if it is small and they are wanted, too. Also when it was opened.
    pub fn open(
        self: &Arc<Neighbours>,
        readers: &Readers<'_>,
        number: u64,
        source: &Source,
    ) -> Result<(Box<dyn SourceFile>, u64)> {
        let opened = readers.opened;
        let alone = || Ok((opened.open_source(source, number)?, now_ns()));
        if !neighbours::is_small(source) || opened.is_blocks() {
            return alone();
        }
        let Some(held) = self.part(readers, number, source)? else { return alone() };
        let at_ns = held.part.opened_ns;
        let file = InPart(held);
        opened.confirm(&file, source, number)?;
        Ok((Box::new(file), at_ns))
    }

    /// The part that holds the frame. `None`: it is to be read alone.
    fn part(&self, readers: &Readers<'_>, number: u64, source: &Source) -> Result<Option<Arc<PartInMemory>>> {
        let series = readers.opened.series();
        let since_ns = readers.since_ns;
        let mut state = self.state();
        loop {
            match state.step(Event::Ask { source, since_ns }) {
                Some(Action::Use(part)) => {
                    return Ok(state.parts.iter().find(|held| held.part == part).cloned());
                }
                Some(Action::Wait) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                _ => break,
            }
        }
        // Somebody may have brought the frame since its reader looked.
        if matches!(readers.store.entry(&series, number), Ok(Some(_))) {
            return Ok(None);
        }
        let (native, alien) = readers.store.holdings(&series);
        let is_wanted = |number: &u64| {
            readers.wanted.contains(*number) && !native.contains(*number) && !alien.contains(*number)
        };
        let behind = (number + 1..).take_while(is_wanted);
        let behind = behind.map_while(|number| readers.opened.source(number).ok());
        let Some(part) = state.decides.choose(now_ns(), source, since_ns, behind) else { return Ok(None) };
        let Ok(share) = readers.shares.blocks.take(readers.caller) else { return Ok(None) };
        state.step(Event::Begin { part: &part });
        drop(state);
        let mut reading = Reading { neighbours: self, part: part.clone(), held: None };
        let begun_ns = now_ns();
        reading.held = read(readers, number, source, part.clone(), share)?;
        let took_ns = now_ns().saturating_sub(begun_ns);
        self.state().step(Event::Read { part: &part, took_ns });
        Ok(reading.held.clone())
    }
}

/// Others wait for this part; they look again when it ends, however it ends.
struct Reading<'a> {
    neighbours: &'a Neighbours,
    part: Part,
    /// Its bytes, if it was read.
    held: Option<Arc<PartInMemory>>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.neighbours.state();
        let held = self.held.is_some();
        state.parts.extend(self.held.take());
        state.step(Event::End { part: &self.part, held });
        drop(state);
        self.neighbours.changed.notify_all();
    }
}

/// Reads a part. `None` if the file is shorter: then each frame tells for itself.
fn read(
    readers: &Readers<'_>,
    number: u64,
    source: &Source,
    part: Part,
    share: Share,
) -> Result<Option<Arc<PartInMemory>>> {
    let Readers { fetcher, opened, .. } = readers;
    let file = opened.open_source(source, number)?;
    let mut bytes = vec![0; (part.end - part.begin) as usize];
    let frame_bytes = source.length.unwrap_or(0);
    fetcher.rates().begin(now_ns(), frame_bytes);
    let mut done = 0;
    let failed = loop {
        if done == bytes.len() {
            break None;
        }
        match file.read_at(&mut bytes[done..], part.begin + done as u64) {
            Ok(0) => break Some(Ok(None)),
            Ok(more) => done += more,
            Err(error) => break Some(Err(error)),
        }
    };
    fetcher.rates().end(now_ns(), frame_bytes, done as u64);
    if let Some(failed) = failed {
        return failed;
    }
    let after = file.stat_now()?;
    let name = opened.backing().stat(&opened.at.beneath.join(part.path.as_str())?)?.validator;
    Ok(Some(Arc::new(PartInMemory { part, bytes, file, after, name, _share: share })))
}

/// An opened source of which a part is in memory.
struct InPart(Arc<PartInMemory>);

impl SourceFile for InPart {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let InPart(held) = self;
        let from = offset.checked_sub(held.part.begin).and_then(|from| usize::try_from(from).ok());
        match from.and_then(|from| held.bytes.get(from..)).filter(|rest| !rest.is_empty()) {
            Some(rest) => {
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            }
            None => held.file.read_at(buffer, offset),
        }
    }

    fn stat(&self) -> SourceStat {
        self.0.file.stat()
    }

    fn stat_now(&self) -> Result<SourceStat> {
        Ok(self.0.after)
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.0.file.descriptor()
    }

    fn has_descriptor(&self) -> bool {
        self.0.file.has_descriptor()
    }

    fn name_led_to(&self) -> Option<Validator> {
        Some(self.0.name)
    }
}
