//! Who fetches a frame, when several threads ask for it: `zazen_frames::flight` decides, threads of
//! this file wait.

use crate::clock::{left_until, now_ns};
use crate::counters::Counters;
use crate::latency::Histogram;
use crate::viewer::Viewer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use zazen_core::{Error, ErrorKind, RelPath, Result, Source};
use zazen_frames::absence::{StoreRate, StoreRates};
use zazen_frames::flight::{self, Flights, Shared, Ticket};

pub use zazen_frames::flight::Outcome;

/// One for the daemon.
pub struct Fetcher {
    board: Mutex<Board>,
    rates: Mutex<StoreRates>,
    /// How long those waited for their turn who fetched a frame.
    pub waits: Histogram,
    /// How long fetches took, with failed ones.
    pub took: Histogram,
}

/// What a fetch is to bring. Two sources can have one number (blocks of files whose numbers
/// overlap): who wants the one gets nothing of a fetch of the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanting {
    series: RelPath,
    number: u64,
    path: RelPath,
    offset: u64,
    length: Option<u64>,
}

impl Wanting {
    pub(crate) fn new(series: RelPath, number: u64, source: &Source) -> Wanting {
        let Source { path, offset, length } = source.clone();
        Wanting { series, number, path, offset, length }
    }
}

struct Board {
    flights: Flights<Wanting, Viewer>,
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
        Fetcher {
            board: Mutex::new(board),
            rates: Mutex::default(),
            waits: Histogram::default(),
            took: Histogram::default(),
        }
    }

    /// Reads at most `at_once` frames at the same time for each user from now on.
    pub fn set_at_once(&self, at_once: usize) {
        self.board().flights.set_slots(at_once);
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

    fn ask(&self, key: Wanting, who: Viewer) -> (Ticket, Arc<Mailbox>) {
        let mut board = self.board();
        board.tickets += 1;
        let (ticket, mailbox) = (Ticket(board.tickets), Arc::<Mailbox>::default());
        board.asking.insert(ticket, mailbox.clone());
        board.step(flight::Event::Want { ticket, key, who });
        (ticket, mailbox)
    }

    /// Asks to fetch a frame: the caller is to fetch it itself, or gets the result of a fetch that
    /// is under way.
    pub(crate) fn ask_for(&self, key: Wanting, who: Viewer, counters: &Counters) -> Asked<'_> {
        let asked = Instant::now();
        let (ticket, mailbox) = self.ask(key, who);
        let mut until_ns = None;
        loop {
            match mailbox.wait(until_ns) {
                Some(flight::Action::Lead { .. }) => {
                    self.waits.add(asked.elapsed());
                    return Asked::Lead(Landing {
                        fetcher: self,
                        ticket,
                        result: None,
                        began: Instant::now(),
                    });
                }
                Some(flight::Action::Joined { until_ns: patience, .. }) => {
                    counters.fetches_shared.add(1);
                    until_ns = patience;
                }
                Some(flight::Action::Share { result, .. }) => {
                    return Asked::Shared(result.map_err(|(kind, message)| Error::new(kind, message)));
                }
                None => {
                    self.board().step(flight::Event::Impatient { ticket });
                    until_ns = None;
                }
            }
        }
    }
}

/// The answer to who wants a frame fetched.
pub(crate) enum Asked<'a> {
    /// The caller fetches it. It then reports the result.
    Lead(Landing<'a>),
    /// Another thread has fetched it.
    Shared(Result<Outcome>),
}

impl Board {
    fn step(&mut self, event: flight::Event<Wanting, Viewer>) {
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
pub(crate) struct Landing<'a> {
    fetcher: &'a Fetcher,
    ticket: Ticket,
    result: Option<Shared>,
    began: Instant,
}

impl Landing<'_> {
    /// Shares the result with those who wait for it.
    pub(crate) fn land(mut self, result: &Result<Outcome>) {
        let shared = result.as_ref().map(|outcome| *outcome);
        self.result = Some(shared.map_err(|error| (error.kind(), error.to_string())));
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.fetcher.took.add(self.began.elapsed());
        let lost = || Err((ErrorKind::Io, "the fetch failed inside zazend; see its log".to_owned()));
        let result = self.result.take().unwrap_or_else(lost);
        self.fetcher.board().step(flight::Event::Landed { ticket: self.ticket, result });
    }
}
