//! Making room for a put: reserve, and evict until there is room or nothing more may be evicted.
//!
//! Invariants: only one put evicts at a time (it holds the turn), so that several do not evict for
//! the same shortfall; if a bound cannot be kept, nothing is evicted for it; what is missing by
//! the bound of a user or a folder is taken from theirs only; at most [`ATTEMPTS`] plans are
//! carried out before a put is refused.

use crate::evict_scan_resistant::{Candidate, Victim, plan};
use crate::quota::{Scope, Short};
use std::collections::VecDeque;
use zazen_core::{Origin, Result};

/// Plans that are carried out for one put.
pub const ATTEMPTS: u32 = 8;
/// The part of the budget that is taken from aliens beyond the shortfall, so that not every frame
/// needs a plan of its own.
const SLACK_PART: u64 = 64;

/// What happened: the answer to the last action.
#[derive(Debug)]
pub enum Event {
    /// The beginning.
    Begin,
    /// Answer to [`Action::Reserve`]: done, or what is missing.
    Reserved(std::result::Result<(), Short>),
    /// Answer to [`Action::TakeTurn`].
    Turn,
    /// Answer to [`Action::Survey`].
    Surveyed(Vec<Candidate>),
    /// Answer to [`Action::Evict`].
    Evicted(Result<()>),
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// Reserve the bytes in the ledger ([`crate::quota::Ledger::reserve`]).
    Reserve,
    /// Wait until nobody else evicts; the turn ends with the machine.
    TakeTurn,
    /// Describe the datasets that are within this scope, with the bytes that they take of it.
    Survey(Scope),
    /// Evict this; it is an index into the last survey.
    Evict(Victim),
    /// The end: whether the bytes are reserved (or freed).
    Done(Result<bool>),
}

/// Makes room once. Sequential.
#[derive(Debug)]
pub struct MakeRoom {
    bytes: u64,
    budget: u64,
    for_alien: bool,
    /// Bytes are only freed, and for no put.
    shrinks: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before the turn.
    First,
    Turn,
    /// With the turn; so many plans were carried out.
    Trying(u32),
    Surveying {
        short: u64,
        /// The bound that it is about.
        limit: u64,
        plans: u32,
    },
    Evicting {
        victim: Victim,
        left: VecDeque<Victim>,
        plans: u32,
    },
    Last,
    Done,
}

impl MakeRoom {
    /// Room for a put of `bytes` that comes as `origin`, in a cache of `budget` bytes.
    pub fn new(bytes: u64, budget: u64, origin: Origin) -> MakeRoom {
        let for_alien = origin == Origin::Alien;
        MakeRoom { bytes, budget, for_alien, shrinks: false, state: State::First }
    }

    /// Frees `over` bytes, for a cache that uses more than its budget. Nobody else uses the cache
    /// yet.
    pub fn shrink(over: u64, budget: u64) -> MakeRoom {
        let state = State::Surveying { short: over, limit: budget, plans: ATTEMPTS };
        MakeRoom { bytes: 0, budget, for_alien: false, shrinks: true, state }
    }

    /// Takes the answer to the last action, appends the next one to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        let state = std::mem::replace(&mut self.state, State::Done);
        let (state, action) = self.next(state, event);
        self.state = state;
        actions.extend(action);
    }

    fn next(&self, state: State, event: Event) -> (State, Option<Action>) {
        let done = |result| (State::Done, Some(Action::Done(result)));
        match (state, event) {
            (State::First, Event::Begin) => (State::First, Some(Action::Reserve)),
            (state @ State::Surveying { .. }, Event::Begin) => (state, Some(Action::Survey(Scope::Cache))),
            (State::First | State::Trying(_) | State::Last, Event::Reserved(Ok(()))) => done(Ok(true)),
            (State::First, Event::Reserved(Err(_))) => (State::Turn, Some(Action::TakeTurn)),
            (State::Turn, Event::Turn) => (State::Trying(0), Some(Action::Reserve)),
            (State::Trying(_), Event::Reserved(Err(short))) if self.bytes > short.limit.min(self.budget) => {
                (State::Last, Some(Action::Reserve))
            }
            (State::Trying(plans), Event::Reserved(Err(Short { bytes: short, scope, limit }))) => {
                (State::Surveying { short, limit, plans: plans + 1 }, Some(Action::Survey(scope)))
            }
            (State::Surveying { short, limit, plans }, Event::Surveyed(candidates)) => {
                let slack = limit.min(self.budget) / SLACK_PART;
                match plan(&candidates, short, self.for_alien, slack) {
                    Some(victims) => self.evict(victims.into(), plans),
                    None if self.shrinks => done(Ok(false)),
                    None => (State::Last, Some(Action::Reserve)),
                }
            }
            // A dataset that stays does not affect the others; the account says whether there is
            // room now.
            (State::Evicting { victim: Victim::Aliens(..), .. }, Event::Evicted(Err(error))) => {
                done(Err(error))
            }
            (State::Evicting { left, plans, .. }, Event::Evicted(_)) => self.evict(left, plans),
            (State::Last, Event::Reserved(Err(_))) => done(Ok(false)),
            (state, event) => {
                debug_assert!(false, "{event:?} in {state:?}");
                (state, None)
            }
        }
    }

    fn evict(&self, mut left: VecDeque<Victim>, plans: u32) -> (State, Option<Action>) {
        match left.pop_front() {
            Some(victim) => (State::Evicting { victim, left, plans }, Some(Action::Evict(victim))),
            None if self.shrinks => (State::Done, Some(Action::Done(Ok(true)))),
            None if plans < ATTEMPTS => (State::Trying(plans), Some(Action::Reserve)),
            None => (State::Last, Some(Action::Reserve)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Account;
    use proptest::prelude::*;
    use zazen_core::{Error, ErrorKind};

    /// A cache of whole datasets, without disk.
    struct Cache {
        account: Account,
        datasets: Vec<Candidate>,
        turns: u32,
        surveys: u32,
        evictions: u32,
        /// Evicting the dataset at this index fails.
        stuck: Option<usize>,
    }

    impl Cache {
        fn new(budget: u64, datasets: Vec<Candidate>) -> Cache {
            let used = datasets.iter().map(|dataset| dataset.bytes).sum();
            let account = Account { budget, used, ..Account::default() };
            Cache { account, datasets, turns: 0, surveys: 0, evictions: 0, stuck: None }
        }

        fn run(&mut self, mut machine: MakeRoom) -> Result<bool> {
            let mut event = Event::Begin;
            for _ in 0..1000 {
                let mut actions = Vec::new();
                machine.step(event, &mut actions);
                let [action] = <[Action; 1]>::try_from(actions).expect("one action at a time");
                event = match action {
                    Action::Reserve => Event::Reserved(
                        self.account
                            .reserve(machine.bytes, u64::MAX)
                            .map_err(|bytes| Short::of_cache(bytes, self.account.budget)),
                    ),
                    Action::TakeTurn => {
                        self.turns += 1;
                        Event::Turn
                    }
                    Action::Survey(scope) => {
                        assert_eq!(scope, Scope::Cache);
                        self.surveys += 1;
                        Event::Surveyed(self.datasets.clone())
                    }
                    Action::Evict(victim) => Event::Evicted(self.evict(victim)),
                    Action::Done(result) => return result,
                };
            }
            panic!("no end")
        }

        fn evict(&mut self, victim: Victim) -> Result<()> {
            self.evictions += 1;
            let (at, bytes) = match victim {
                Victim::Dataset(at) => (at, self.datasets[at].bytes),
                Victim::Aliens(at, bytes) => (at, bytes.min(self.datasets[at].alien_bytes)),
            };
            if self.stuck == Some(at) {
                return Err(Error::new(ErrorKind::Io, "stuck"));
            }
            let dataset = &mut self.datasets[at];
            dataset.bytes -= bytes;
            dataset.alien_bytes = dataset.alien_bytes.saturating_sub(bytes).min(dataset.bytes);
            self.account.settle(bytes, 0);
            Ok(())
        }
    }

    fn cold(bytes: u64, last_use: u64) -> Candidate {
        Candidate { bytes, last_use, ..Candidate::default() }
    }

    #[test]
    fn room_that_is_there_costs_no_turn() {
        let mut cache = Cache::new(100, vec![cold(50, 1)]);
        assert!(cache.run(MakeRoom::new(50, 100, Origin::Native)).unwrap());
        assert_eq!((cache.turns, cache.surveys, cache.account.reserved), (0, 0, 50));
    }

    #[test]
    fn the_coldest_goes_and_no_more_than_needed() {
        let mut cache = Cache::new(100, vec![cold(50, 2), cold(40, 1)]);
        assert!(cache.run(MakeRoom::new(30, 100, Origin::Native)).unwrap());
        let bytes: Vec<u64> = cache.datasets.iter().map(|dataset| dataset.bytes).collect();
        assert_eq!((bytes, cache.evictions), (vec![50, 0], 1));
    }

    #[test]
    fn what_cannot_be_had_evicts_nothing() {
        let mut cache = Cache::new(100, vec![cold(60, 1), Candidate { pinned: true, ..cold(40, 2) }]);
        assert!(!cache.run(MakeRoom::new(70, 100, Origin::Native)).unwrap());
        assert!(!cache.run(MakeRoom::new(101, 100, Origin::Native)).unwrap());
        assert_eq!((cache.evictions, cache.account.used, cache.account.reserved), (0, 100, 0));
    }

    #[test]
    fn a_dataset_that_stays_does_not_keep_others_from_going() {
        let mut cache = Cache::new(100, vec![cold(50, 1), cold(50, 2)]);
        cache.stuck = Some(0);
        // The coldest is tried in each plan; the plan that needs both frees the other.
        assert!(cache.run(MakeRoom::new(50, 100, Origin::Native)).is_ok_and(|granted| !granted));
        assert_eq!(cache.evictions, ATTEMPTS);
        assert!(!cache.run(MakeRoom::new(60, 100, Origin::Native)).unwrap());
        assert_eq!(cache.account.used, 50);
        let scanned = Candidate { alien_bytes: 50, written: true, ..cold(50, 1) };
        let mut cache = Cache::new(50, vec![scanned]);
        cache.stuck = Some(0);
        assert_eq!(cache.run(MakeRoom::new(10, 50, Origin::Native)).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn a_cache_beyond_its_budget_shrinks() {
        let mut cache = Cache::new(60, vec![cold(50, 1), cold(50, 2)]);
        assert!(cache.run(MakeRoom::shrink(40, 60)).unwrap());
        assert_eq!((cache.account.used, cache.turns), (50, 0));
        let mut pinned = Cache::new(60, vec![Candidate { pinned: true, ..cold(100, 1) }]);
        assert!(!pinned.run(MakeRoom::shrink(40, 60)).unwrap());
    }

    proptest! {
        /// Compared with brute force: room is granted exactly if what may be evicted suffices; the
        /// budget is kept; what must stay stays.
        #[test]
        fn room_is_made_exactly_where_it_can_be(
            datasets in prop::collection::vec((0u64..50, 0u64..50, 0u64..5, 0u8..16), 0..8),
            bytes in 1u64..120, spare in 0u64..40, alien: bool,
        ) {
            let datasets: Vec<Candidate> = datasets
                .into_iter()
                .enumerate()
                .map(|(at, (bytes, alien_bytes, last_use, flags))| Candidate {
                    bytes,
                    alien_bytes: alien_bytes.min(bytes),
                    last_use,
                    pinned: flags & 1 != 0,
                    scanned: flags & 2 != 0,
                    written: flags & 4 != 0,
                    wanted: flags & 8 != 0 && at == 0,
                })
                .collect();
            let used: u64 = datasets.iter().map(|dataset| dataset.bytes).sum();
            let budget = used + spare;
            let may_go = |dataset: &Candidate| match dataset {
                Candidate { pinned: true, .. } | Candidate { scanned: true, .. } => 0,
                Candidate { written: true, wanted: false, .. } => dataset.alien_bytes,
                Candidate { wanted: true, .. } if alien => 0,
                Candidate { wanted: true, .. } => dataset.alien_bytes,
                _ => dataset.bytes,
            };
            let free: u64 = datasets.iter().map(may_go).sum();
            let expected = bytes <= spare + free && bytes <= budget;
            let before = datasets.clone();
            let mut cache = Cache::new(budget, datasets);
            let origin = if alien { Origin::Alien } else { Origin::Native };
            let granted = cache.run(MakeRoom::new(bytes, budget, origin)).unwrap();
            prop_assert_eq!(granted, expected);
            prop_assert!(cache.account.used + cache.account.reserved <= budget);
            for (before, after) in before.iter().zip(&cache.datasets) {
                prop_assert!(before.bytes - after.bytes <= may_go(before));
            }
            prop_assert!(granted || cache.evictions == 0);
        }
    }
}
