//! The frame caches of all nodes, as rows. The shipped machines decide: `zazen_frames::room` keeps
//! the account, `make_room` says what to do for a put, and `evict_scan_resistant` what goes. Only
//! the files are missing.
//!
//! Each cache holds at most two datasets: what an earlier job left, which nobody uses any more, and
//! what the running job writes.

use crate::trace::Trace;
use zazen_core::Origin;
use zazen_frames::evict_scan_resistant::{Candidate, Victim};
use zazen_frames::make_room::{Action, Event, MakeRoom};
use zazen_frames::quota::Short;
use zazen_frames::room::{Account, PUT_OVERHEAD, on_disk};

/// A cache.
#[derive(Clone, Copy, Debug)]
struct Row {
    account: Account,
    /// Bytes of the earlier job's dataset.
    old_bytes: u64,
}

/// The caches of all nodes.
pub struct Caches {
    rows: Vec<Row>,
    /// Every decision, by node.
    decisions: Trace,
    evictions: u64,
    evicted_bytes: u64,
}

/// Bytes that a cache's row takes.
pub const ROW_BYTES: u64 = size_of::<Row>() as u64;
const OLD: usize = 0;

impl Caches {
    /// Caches of `budget` bytes each, in which an earlier job left `old_bytes`.
    pub fn new(nodes: u32, budget: u64, old_bytes: u64) -> Caches {
        let account = Account { budget, used: old_bytes, ..Account::default() };
        Caches {
            rows: vec![Row { account, old_bytes }; nodes as usize],
            decisions: Trace::default(),
            evictions: 0,
            evicted_bytes: 0,
        }
    }

    /// Whether a frame of `bytes` is stored on a node; room is made for it if that can be.
    pub fn put(&mut self, node: u32, bytes: u64) -> bool {
        let wanted = on_disk(bytes) + PUT_OVERHEAD;
        let row = &mut self.rows[node as usize];
        let mut machine = MakeRoom::new(wanted, row.account.budget, Origin::Native);
        let mut event = Event::Begin;
        let mut actions = Vec::new();
        self.decisions.word(u64::from(node));
        let granted = loop {
            machine.step(event, &mut actions);
            event = match actions.pop() {
                Some(Action::Reserve) => Event::Reserved(
                    row.account
                        .reserve(wanted, u64::MAX)
                        .map_err(|short| Short::of_cache(short, row.account.budget)),
                ),
                Some(Action::TakeTurn) => Event::Turn,
                Some(Action::Survey(_)) => Event::Surveyed(row.survey()),
                Some(Action::Evict(victim)) => {
                    let (number, freed) = row.evict(victim);
                    self.decisions.word(1 << 32 | number as u64);
                    self.decisions.word(freed);
                    self.evictions += 1;
                    self.evicted_bytes += freed;
                    Event::Evicted(Ok(()))
                }
                Some(Action::Done(granted)) => break matches!(granted, Ok(true)),
                None => break false,
            };
        };
        self.decisions.word(2 << 32 | u64::from(granted));
        if granted {
            row.account.release(wanted, 0);
            row.account.settle(0, on_disk(bytes));
        }
        granted
    }

    /// Evictions, and bytes that they freed.
    pub fn evicted(&self) -> (u64, u64) {
        (self.evictions, self.evicted_bytes)
    }

    /// Digest of all decisions, in their order.
    pub fn decisions(&self) -> u64 {
        self.decisions.digest()
    }

    /// Bytes of a node's cache in use.
    pub fn used(&self, node: u32) -> u64 {
        self.rows[node as usize].account.used
    }
}

impl Row {
    fn survey(&self) -> Vec<Candidate> {
        let written = self.account.used - self.old_bytes;
        vec![
            Candidate { bytes: self.old_bytes, last_use: 1, ..Candidate::default() },
            Candidate { bytes: written, last_use: 2, written: true, wanted: true, ..Candidate::default() },
        ]
    }

    /// Carries out one step of a plan: which dataset it was, and bytes that are free now.
    fn evict(&mut self, victim: Victim) -> (usize, u64) {
        let (number, freed) = match victim {
            Victim::Dataset(number @ OLD) => (number, std::mem::take(&mut self.old_bytes)),
            // What the job writes is not evicted, and no cache has aliens here.
            Victim::Dataset(number) | Victim::Aliens(number, _) => (number, 0),
        };
        self.account.settle(freed, 0);
        (number, freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 4 << 20;

    #[test]
    fn what_an_earlier_job_left_makes_room_and_the_own_frames_stay() {
        let mut caches = Caches::new(2, 10 * FRAME, 8 * FRAME);
        assert!((0..1).all(|_| caches.put(0, FRAME)));
        assert_eq!((caches.evicted().0, caches.used(0)), (0, 9 * FRAME));
        // The next one and its overhead do not fit: the old dataset goes as a whole.
        assert!((0..8).all(|_| caches.put(0, FRAME)));
        assert_eq!((caches.evicted(), caches.used(0)), ((1, 8 * FRAME), 9 * FRAME));
        // The last place lacks the overhead of a put: refused, and nothing is evicted.
        assert!(!caches.put(0, FRAME));
        assert_eq!((caches.evicted().0, caches.used(0), caches.used(1)), (1, 9 * FRAME, 8 * FRAME));
        assert!(!caches.put(1, 11 * FRAME), "a frame larger than the budget evicts nothing");
        assert_eq!(caches.used(1), 8 * FRAME);
    }

    #[test]
    fn equal_puts_are_equal_decisions() {
        let digest = |sizes: &[u64]| {
            let mut caches = Caches::new(1, 10 * FRAME, 5 * FRAME);
            sizes.iter().for_each(|bytes| {
                caches.put(0, *bytes);
            });
            caches.decisions()
        };
        assert_eq!(digest(&[FRAME; 12]), digest(&[FRAME; 12]));
        assert_ne!(digest(&[FRAME; 12]), digest(&[FRAME; 11]));
    }
}
