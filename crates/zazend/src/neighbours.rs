//! Small frames that lie one after another in a file are read from the backing store in blocks: a
//! frame of a few KiB costs a store as much as one of a hundred.
//!
//! Invariants:
//! - A block was read from a source that its reader's own rights opened. Only readers with the same
//!   rights use it, for [`LEASE`] from then on, and only those that began before it was opened: who
//!   begins later gets what the source is then.
//! - What the source and its name looked like before and after the block was read stands for each
//!   frame in it. So a frame that comes from a block is judged like one that was read alone.
//! - Only frames that somebody wants, and that are not in the cache, are read.

use crate::clock::now_ns;
use crate::fetcher::Fetcher;
use crate::node_store::NodeStore;
use crate::opened::{LEASE, OpenedDataset};
use crate::shares::{AllShares, Share};
use crate::viewer::Viewer;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_backing::SourceFile;
use zazen_call::Caller;
use zazen_core::{RelPath, Result, RunSet, Source, SourceStat, Validator};

/// Frames up to this length are read in blocks.
const SMALL_BYTES: u64 = 64 << 10;
/// The first block of a file, and the smallest and the largest.
const FIRST_BYTES: u64 = 256 << 10;
const LEAST_BYTES: u64 = 64 << 10;
const MOST_BYTES: u64 = 4 << 20;
/// A block that came more quickly is followed by one of twice the length; one that took longer than
/// the second, by one of half of it.
const QUICK: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_millis(200);
/// Blocks that are held for readers of one series.
const BLOCKS_MAX: usize = 2;

/// The blocks of all series. One for the daemon.
#[derive(Default)]
pub struct AllNeighbours(Mutex<BTreeMap<(RelPath, Viewer), Weak<Neighbours>>>);

impl AllNeighbours {
    /// The blocks of the series that is open, for readers with the rights of its viewer.
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

/// The blocks of one series that were read lately. Shared by threads.
pub struct Neighbours {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    blocks: VecDeque<Arc<Block>>,
    /// Parts of files that are being read.
    reading: Vec<Part>,
    /// How long the next block is.
    bytes: u64,
}

impl State {
    /// The part of the file that begins at `source` and holds wanted neighbours, unless others read
    /// them.
    fn part_from(&self, readers: &Readers<'_>, number: u64, source: &Source) -> Part {
        let (native, alien) = readers.store.holdings(&readers.opened.series());
        let is_wanted =
            |number| readers.wanted.contains(number) && !native.contains(number) && !alien.contains(number);
        let begin = source.offset;
        let end = begin + source.length.unwrap_or(0);
        let mut part = Part { path: source.path.clone(), begin, end, opened_ns: now_ns() };
        for next in (number + 1..).take_while(|next| is_wanted(*next)) {
            let Ok(source) = readers.opened.source(next) else { break };
            let is_next = source.path == part.path && source.offset == part.end;
            let others = self.blocks.iter().map(|block| &block.part).chain(&self.reading);
            let mut others = others.filter(|part| part.opened_ns >= readers.since_ns);
            match source.length.and_then(|length| source.offset.checked_add(length)) {
                Some(end)
                    if is_next && end - begin <= self.bytes && !others.any(|part| part.holds(&source)) =>
                {
                    part.end = end;
                }
                _ => break,
            }
        }
        part
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Part {
    path: RelPath,
    begin: u64,
    end: u64,
    /// The file was opened after this.
    opened_ns: u64,
}

impl Part {
    fn holds(&self, source: &Source) -> bool {
        let end = source.length.and_then(|length| source.offset.checked_add(length));
        self.path == source.path && self.begin <= source.offset && end.is_some_and(|end| end <= self.end)
    }
}

/// A part of a file, in memory.
struct Block {
    part: Part,
    bytes: Vec<u8>,
    /// The file, which looked like this when it was opened, before the bytes were read.
    file: Box<dyn SourceFile>,
    opened: Instant,
    /// What the file looked like after that, and what its name led to.
    after: SourceStat,
    name: Validator,
    _share: Share,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        let state = State { blocks: VecDeque::new(), reading: Vec::new(), bytes: FIRST_BYTES };
        Neighbours { state: Mutex::new(state), changed: Condvar::new() }
    }
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
    /// Whose share of memory a block is.
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

    /// Opens `source`, that of frame `number`, with the rights of its user: in a block with its
    /// neighbours if it is small and they are wanted, too. Also when it was opened.
    pub fn open(
        self: &Arc<Neighbours>,
        readers: &Readers<'_>,
        number: u64,
        source: &Source,
    ) -> Result<(Box<dyn SourceFile>, u64)> {
        let opened = readers.opened;
        let alone = || Ok((opened.open_source(source, number)?, now_ns()));
        if source.length.is_none_or(|length| length > SMALL_BYTES) || opened.is_blocks() {
            return alone();
        }
        let Some(block) = self.block(readers, number, source)? else { return alone() };
        let at_ns = block.part.opened_ns;
        let file = InBlock(block);
        opened.confirm(&file, source, number)?;
        Ok((Box::new(file), at_ns))
    }

    /// The block that holds the frame. `None`: it is to be read alone.
    fn block(&self, readers: &Readers<'_>, number: u64, source: &Source) -> Result<Option<Arc<Block>>> {
        let mut state = self.state();
        loop {
            state.blocks.retain(|block| block.opened.elapsed() < LEASE);
            let holds = |part: &Part| part.opened_ns >= readers.since_ns && part.holds(source);
            if let Some(block) = state.blocks.iter().find(|block| holds(&block.part)) {
                return Ok(Some(block.clone()));
            }
            if !state.reading.iter().any(holds) {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Somebody may have brought the frame since its reader looked.
        if matches!(readers.store.entry(&readers.opened.series(), number), Ok(Some(_))) {
            return Ok(None);
        }
        let part = state.part_from(readers, number, source);
        if Some(part.end - part.begin) <= source.length {
            return Ok(None);
        }
        let Ok(share) = readers.shares.blocks.take(readers.caller) else { return Ok(None) };
        let reading = Reading { neighbours: self, part: part.clone() };
        state.reading.push(part.clone());
        drop(state);
        let begun = Instant::now();
        let block = read(readers, number, source, part, share)?;
        let took = begun.elapsed();
        let mut state = self.state();
        state.bytes = match took {
            quick if quick < QUICK => (2 * state.bytes).min(MOST_BYTES),
            slow if slow > SLOW => (state.bytes / 2).max(LEAST_BYTES),
            _ => state.bytes,
        };
        if let Some(block) = &block {
            state.blocks.push_back(block.clone());
            if state.blocks.len() > BLOCKS_MAX {
                state.blocks.pop_front();
            }
        }
        drop(state);
        drop(reading);
        Ok(block)
    }
}

/// Others wait for this part; they look again when it ends, however it ends.
struct Reading<'a> {
    neighbours: &'a Neighbours,
    part: Part,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.neighbours.state();
        if let Some(at) = state.reading.iter().position(|part| *part == self.part) {
            state.reading.swap_remove(at);
        }
        self.neighbours.changed.notify_all();
    }
}

/// Reads a block. `None` if the file is shorter: then each frame tells for itself.
fn read(
    readers: &Readers<'_>,
    number: u64,
    source: &Source,
    part: Part,
    share: Share,
) -> Result<Option<Arc<Block>>> {
    let Readers { fetcher, opened, .. } = readers;
    let opened_at = Instant::now();
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
    let opened = opened_at;
    Ok(Some(Arc::new(Block { part, bytes, file, opened, after, name, _share: share })))
}

/// An opened source of which a part is in memory.
struct InBlock(Arc<Block>);

impl SourceFile for InBlock {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let InBlock(block) = self;
        let held = offset.checked_sub(block.part.begin).and_then(|from| usize::try_from(from).ok());
        match held.and_then(|from| block.bytes.get(from..)).filter(|held| !held.is_empty()) {
            Some(held) => {
                let count = held.len().min(buffer.len());
                buffer[..count].copy_from_slice(&held[..count]);
                Ok(count)
            }
            None => block.file.read_at(buffer, offset),
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
