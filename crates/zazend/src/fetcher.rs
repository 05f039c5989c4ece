//! Brings misses from the backing store. `zazen_frames` decides: who copies when several ask
//! (`flight`), and what one copy does step by step (`copy`). Threads of this file wait, read and
//! write.
//!
//! Invariant: everybody who asks comes with the source opened by its own user's rights.

use crate::clock::{left_until, now_ns};
use crate::node::{Node, Opened};
use crate::peers::Wanted;
use crate::viewer::Viewer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, FrameNo, Origin, RelPath, Result, Source, SourceStat, Validator};
use zazen_env::{RealDisk, WatchedDisk};
use zazen_frames::absence::{StoreRate, StoreRates};
use zazen_frames::copy::{self, Ask, Copying, Failure};
use zazen_frames::flight::{self, Flights, Shared, Ticket};
use zazen_frames::home::GIVEN_BYTES_MAX;
use zazen_frames::stale::Held;
use zazen_store::{Entry, Put};

pub use zazen_frames::flight::Outcome;

/// Where a copy's bytes may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// From another node, or from the backing store.
    Any,
    /// From the backing store alone: another node asks.
    Store,
}

/// One for the daemon.
pub struct Fetcher {
    board: Mutex<Board>,
    rates: Mutex<StoreRates>,
}

struct Board {
    flights: Flights<(RelPath, u64), Viewer>,
    asking: BTreeMap<Ticket, Arc<Mailbox>>,
    tickets: u64,
}

/// Where the flights' actions for one ticket arrive.
#[derive(Default)]
struct Mailbox {
    letters: Mutex<VecDeque<flight::Action>>,
    arrived: Condvar,
}

impl Mailbox {
    fn post(&self, letter: flight::Action) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push_back(letter);
        self.arrived.notify_one();
    }

    /// The next letter; `None` at `until_ns`.
    fn wait(&self, until_ns: Option<u64>) -> Option<flight::Action> {
        let letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = |letters: &mut VecDeque<flight::Action>| letters.is_empty();
        let mut letters = match until_ns {
            None => self.arrived.wait_while(letters, is_empty).unwrap_or_else(PoisonError::into_inner),
            Some(until_ns) => {
                let waited = self.arrived.wait_timeout_while(letters, left_until(until_ns), is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        letters.pop_front()
    }
}

impl Fetcher {
    /// A fetcher that reads at most `at_once` frames at the same time for each user.
    pub fn new(at_once: usize) -> Fetcher {
        let board = Board { flights: Flights::new(at_once), asking: BTreeMap::new(), tickets: 0 };
        Fetcher { board: Mutex::new(board), rates: Mutex::default() }
    }

    /// Fetches under way.
    pub fn under_way(&self) -> usize {
        self.board().flights.under_way()
    }

    /// How fast the backing store gives frames.
    pub fn rates(&self) -> MutexGuard<'_, StoreRates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate of frames of about `length` bytes.
    pub fn rate(&self, length: u64) -> StoreRate {
        self.rates().rate(length)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, key: (RelPath, u64), who: Viewer) -> (Ticket, Arc<Mailbox>) {
        let mut board = self.board();
        board.tickets += 1;
        let (ticket, mailbox) = (Ticket(board.tickets), Arc::<Mailbox>::default());
        board.asking.insert(ticket, mailbox.clone());
        board.step(flight::Event::Want { ticket, key, who });
        (ticket, mailbox)
    }

    /// Brings frame `number` of `opened`, whose source is `source`, into the cache; joins a fetch
    /// of the same frame that is under way. Returns when it is there, or there is no room, or it
    /// can't be had. `file` is the source, opened by the user of `opened`; where it changed
    /// meanwhile it is opened again.
    #[allow(clippy::too_many_arguments, reason = "each is another thing, and one caller has all of them")]
    pub fn fetch(
        &self,
        node: &Node,
        opened: &Opened,
        source: &Source,
        number: u64,
        origin: Origin,
        file: &mut Box<dyn SourceFile>,
        whence: Whence,
    ) -> Result<Outcome> {
        let counters = &node.counters;
        let (ticket, mailbox) = self.ask((opened.series(), number), opened.viewer.clone());
        let mut until_ns = None;
        loop {
            match mailbox.wait(until_ns) {
                Some(flight::Action::Lead { .. }) => break,
                Some(flight::Action::Joined { until_ns: patience, .. }) => {
                    counters.fetches_shared.add(1);
                    until_ns = patience;
                }
                Some(flight::Action::Share { result, .. }) => {
                    return result.map_err(|(kind, message)| Error::new(kind, message));
                }
                None => {
                    self.board().step(flight::Event::Impatient { ticket });
                    until_ns = None;
                }
            }
        }
        let mut landing = Landing { fetcher: self, ticket, result: None };
        let mut timed = Timed::begin(node, source.length.unwrap_or(file.stat().validator.size));
        let (result, given) = copy_frame(node, opened, source, number, origin, file, whence);
        match &result {
            Ok(Outcome::Stored(bytes)) if given => {
                counters.peer_blocks.add(1);
                counters.peer_bytes.add(*bytes);
            }
            Ok(Outcome::Stored(bytes)) => {
                timed.bytes = *bytes;
                counters.fetched.add(1);
                counters.fetched_bytes.add(*bytes);
            }
            Ok(_) => {}
            Err(_) => counters.fetch_failures.add(1),
        }
        let shared = result.as_ref().map(|outcome| *outcome);
        landing.result = Some(shared.map_err(|error| (error.kind(), error.to_string())));
        result
    }
}

impl Board {
    fn step(&mut self, event: flight::Event<(RelPath, u64), Viewer>) {
        let mut actions = Vec::new();
        self.flights.step(now_ns(), event, &mut actions);
        for action in actions {
            let (ticket, ends) = match &action {
                flight::Action::Lead { ticket } | flight::Action::Share { ticket, .. } => (*ticket, true),
                flight::Action::Joined { ticket, .. } => (*ticket, false),
            };
            // A leader gets no more letters either.
            let mailbox = match ends {
                true => self.asking.remove(&ticket),
                false => self.asking.get(&ticket).cloned(),
            };
            if let Some(mailbox) = mailbox {
                mailbox.post(action);
            }
        }
    }
}

/// Reports the end of a leader's copy, also if the copy panics: a bug of ours must not leave others
/// waiting for ever.
struct Landing<'a> {
    fetcher: &'a Fetcher,
    ticket: Ticket,
    result: Option<Shared>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let lost = || Err((ErrorKind::Io, "the fetch failed inside zazend; see its log".to_owned()));
        let result = self.result.take().unwrap_or_else(lost);
        self.fetcher.board().step(flight::Event::Landed { ticket: self.ticket, result });
    }
}

/// Where the frame is in its opened source file: (offset, length).
pub fn extent_in(file: &dyn SourceFile, source: &Source, number: u64, spelled: &str) -> Result<(u64, u64)> {
    copy::extent_in(file.stat().validator.size, source, number, spelled)
}

/// What the state machines of `zazen_frames` are told of a cached frame.
pub fn held(entry: Entry) -> Held {
    Held { meta: entry.meta, origin: entry.origin, source: entry.source }
}

/// A copy from the backing store under way, for the store's rate.
struct Timed<'a> {
    node: &'a Node,
    length: u64,
    /// What came of it.
    bytes: u64,
}

impl<'a> Timed<'a> {
    fn begin(node: &'a Node, length: u64) -> Timed<'a> {
        node.fetcher.rates().begin(now_ns(), length);
        Timed { node, length, bytes: 0 }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.node.fetcher.rates().end(now_ns(), self.length, self.bytes);
    }
}

/// Copies a frame; also whether another node gave its bytes.
fn copy_frame(
    node: &Node,
    opened: &Opened,
    source: &Source,
    number: u64,
    origin: Origin,
    file: &mut Box<dyn SourceFile>,
    whence: Whence,
) -> (Result<Outcome>, bool) {
    let frame = match FrameNo::new(number) {
        Ok(frame) => frame,
        Err(error) => return (Err(error), false),
    };
    let ask = Ask {
        number: frame,
        source: source.clone(),
        origin,
        validate: node.config.validate,
        own: opened.viewer.is_own(),
        spelled: opened.spelled(),
    };
    let mut copying = Copying::new(ask, file.stat());
    let series = opened.series();
    let mut hands = Hands {
        node,
        opened,
        series,
        source,
        number,
        origin,
        file,
        put: None,
        buffer: vec![],
        ask_peers: whence == Whence::Any,
        given: None,
    };
    let mut event = copy::Event::Begin;
    let mut actions = Vec::new();
    loop {
        copying.step(event, &mut actions);
        let mut answer = None;
        for action in actions.drain(..) {
            match action {
                copy::Action::Done(result) => return (result, hands.given.is_some()),
                asked => answer = hands.perform(asked).or(answer),
            }
        }
        event = answer.unwrap_or_else(|| unreachable!("a copy asks something or ends"));
    }
}

/// Does what a copy asks for, on the real disk and the real backing store.
struct Hands<'a> {
    node: &'a Node,
    opened: &'a Opened,
    series: RelPath,
    source: &'a Source,
    number: u64,
    origin: Origin,
    file: &'a mut Box<dyn SourceFile>,
    put: Option<Put<WatchedDisk<RealDisk>>>,
    buffer: Vec<u8>,
    /// Other nodes have not been asked yet, and may be.
    ask_peers: bool,
    /// The whole frame, from another node.
    given: Option<Vec<u8>>,
}

impl Hands<'_> {
    /// The answer, where one is awaited.
    fn perform(&mut self, action: copy::Action) -> Option<copy::Event> {
        let store = &self.node.store;
        Some(match action {
            copy::Action::LookUp => {
                copy::Event::Held(store.entry(&self.series, self.number).ok().flatten().map(held))
            }
            copy::Action::Reopen => copy::Event::Reopened(self.reopen()),
            copy::Action::BeginPut { meta } => {
                let begun = store.put(&self.series, self.source, &meta, self.origin);
                copy::Event::Begun(begun.map(|put| self.put = Some(put)))
            }
            copy::Action::Copy { offset, bytes } => copy::Event::Copied(self.copy(offset, bytes)),
            copy::Action::LookAgain => copy::Event::Looked(self.look_again()),
            copy::Action::Commit => {
                copy::Event::Committed(self.put.take().map_or(Ok(()), |put| put.commit_computed().map(drop)))
            }
            copy::Action::Abandon => {
                self.put = None;
                return None;
            }
            copy::Action::CacheFailed(error) => {
                self.node.cache_failed(&error);
                return None;
            }
            copy::Action::Done(_) => return None,
        })
    }

    fn reopen(&mut self) -> Result<SourceStat> {
        // The source changed under the first try.
        (self.ask_peers, self.given) = (false, None);
        *self.file = self.opened.open_source(self.source, self.number)?;
        Ok(self.file.stat())
    }

    fn copy(&mut self, offset: u64, bytes: u64) -> std::result::Result<u64, Failure> {
        let bytes = bytes as usize;
        if std::mem::take(&mut self.ask_peers) {
            self.given = self.ask_peers();
        }
        if let Some(given) = &self.given {
            let from = (offset - self.source.offset) as usize;
            let part = &given[from..from + bytes];
            if let Some(put) = &mut self.put {
                put.write(part).map_err(Failure::Cache)?;
            }
            return Ok(bytes as u64);
        }
        if self.buffer.len() < bytes {
            self.buffer = vec![0; bytes];
        }
        let read = self.file.read_at(&mut self.buffer[..bytes], offset).map_err(Failure::Source)?;
        if let Some(put) = &mut self.put {
            put.write(&self.buffer[..read]).map_err(Failure::Cache)?;
        }
        Ok(read as u64)
    }

    /// The frame from another node, if it is a block of a file and a node gives it.
    fn ask_peers(&self) -> Option<Vec<u8>> {
        let layout = self.opened.told_layout()?;
        let blocks = layout.blocks()?;
        let length = self.source.length.filter(|length| *length <= GIVEN_BYTES_MAX)?;
        let dataset = self.opened.spelled();
        let seen = self.file.stat().validator;
        self.node.peers.get(&Wanted { dataset: &dataset, blocks, number: self.number, length, seen })
    }

    fn look_again(&self) -> Result<[Validator; 2]> {
        let path = self.opened.at.beneath.join(self.source.path.as_str())?;
        Ok([self.file.stat_now()?.validator, self.opened.backing().stat(&path)?.validator])
    }
}

/// Reads a whole frame from its opened source, for want of room in the cache.
pub fn read_inline(opened: &Opened, source: &Source, number: u64, file: &dyn SourceFile) -> Result<Vec<u8>> {
    let (offset, length) = extent_in(file, source, number, &opened.spelled())?;
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => {
                return Err(Error::new(
                    ErrorKind::Stale,
                    format!("{} became shorter while it was read", source.path),
                ));
            }
            read => done += read,
        }
    }
    Ok(bytes)
}
