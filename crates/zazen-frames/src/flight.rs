//! Who copies a frame from the backing store when several ask for it: one flight a frame, a bound
//! on each user's copies.
//!
//! Invariants: a frame has one flight at a time, and the flight's leader holds one of its user's
//! slots; a user has at most the given number of slots; whoever asks comes to lead or gets a share
//! of what the leader brought, once. A failed flight fails those who joined it only if they are its
//! leader's user: what another user may not do says nothing about them, so they try for themselves.
//! A joiner of another user than the leader's waits at most [`PATIENCE_NS`], then reads the source
//! itself.

use std::collections::{BTreeMap, VecDeque};
use zazen_core::ErrorKind;

/// How long one user waits for a copy that another user makes.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// Names one who asks, from [`Event::Want`] until its [`Action::Share`] or its [`Event::Landed`].
/// The driver chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How a flight ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The frame is in the cache now; so many bytes were read for it.
    Stored(u64),
    /// The frame is in the cache now; another node gave its so many bytes.
    Given(u64),
    /// The frame was in the cache when its turn came.
    Present,
    /// The cache has no room for it.
    NoRoom,
    /// The cache cannot take it for another reason: its disk fails, or something lies in the
    /// frame's place.
    CacheFailed,
    /// Another user is copying the same frame and takes long over it.
    Contended,
}

/// An outcome, or the kind and message of a failure, as it is handed to several.
pub type Shared = Result<Outcome, (ErrorKind, String)>;

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<K, W> {
    /// User `who` wants frame `key`.
    Want {
        /// Not in use.
        ticket: Ticket,
        /// The frame.
        key: K,
        /// Whose slots count.
        who: W,
    },
    /// The time that [`Action::Joined`] named has come.
    Impatient {
        /// Who waited. One that waits no more is ignored.
        ticket: Ticket,
    },
    /// The leader's copy ended. Owed after each [`Action::Lead`], also where the copy panicked.
    Landed {
        /// The leader.
        ticket: Ticket,
        /// What it came to.
        result: Shared,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// This one holds a slot and leads the frame's flight: it copies, then reports
    /// [`Event::Landed`].
    Lead {
        /// Who.
        ticket: Ticket,
    },
    /// This one joined a flight. At `until_ns` it reports [`Event::Impatient`].
    Joined {
        /// Who.
        ticket: Ticket,
        /// When its patience ends; `None`: it waits for as long as the flight takes.
        until_ns: Option<u64>,
    },
    /// This one is done: the flight that it joined came to this.
    Share {
        /// Who.
        ticket: Ticket,
        /// What came of it.
        result: Shared,
    },
}

/// The flights of one daemon. `K` names a frame, `W` a user.
#[derive(Debug)]
pub struct Flights<K, W> {
    slots_per_user: usize,
    /// Users who lead a flight or wait for a slot.
    users: BTreeMap<W, Slots>,
    flights: BTreeMap<K, Flight<W>>,
    asking: BTreeMap<Ticket, Asking<K, W>>,
}

#[derive(Debug, Default)]
struct Slots {
    taken: usize,
    queue: VecDeque<Ticket>,
}

#[derive(Debug)]
struct Flight<W> {
    leader: W,
    joined: Vec<Ticket>,
}

#[derive(Clone, Debug)]
struct Asking<K, W> {
    key: K,
    who: W,
}

impl<K: Ord + Clone, W: Ord + Clone> Flights<K, W> {
    /// No flights yet; each user copies at most `slots_per_user` frames at a time, at least one.
    pub fn new(slots_per_user: usize) -> Flights<K, W> {
        let slots_per_user = slots_per_user.max(1);
        Flights { slots_per_user, users: BTreeMap::new(), flights: BTreeMap::new(), asking: BTreeMap::new() }
    }

    /// Lets each user copy at most `slots_per_user` frames at a time from now on, at least one.
    /// Copies under way go on, and users who wait get a new slot when one of theirs ends.
    pub fn set_slots(&mut self, slots_per_user: usize) {
        self.slots_per_user = slots_per_user.max(1);
    }

    /// Flights under way.
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Takes one event at `now_ns`, appends what to do to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event<K, W>, actions: &mut Vec<Action>) {
        match event {
            Event::Want { ticket, key, who } => {
                let before = self.asking.insert(ticket, Asking { key, who });
                debug_assert!(before.is_none(), "a ticket is in use");
                self.want(now_ns, ticket, actions);
            }
            Event::Impatient { ticket } => self.give_up(ticket, actions),
            Event::Landed { ticket, result } => self.landed(now_ns, ticket, &result, actions),
        }
    }

    /// The slot comes first, then the flight: whoever leads a flight copies, and keeps nobody
    /// waiting for a slot.
    fn want(&mut self, now_ns: u64, ticket: Ticket, actions: &mut Vec<Action>) {
        let Some(asking) = self.asking.get(&ticket) else { return };
        let slots = self.users.entry(asking.who.clone()).or_default();
        slots.queue.push_back(ticket);
        let who = asking.who.clone();
        self.serve(now_ns, &who, actions);
    }

    /// Gives free slots of `who` to those who wait for one.
    fn serve(&mut self, now_ns: u64, who: &W, actions: &mut Vec<Action>) {
        while let Some(slots) = self.users.get_mut(who) {
            if slots.taken >= self.slots_per_user {
                return;
            }
            let Some(ticket) = slots.queue.pop_front() else {
                if slots.taken == 0 {
                    self.users.remove(who);
                }
                return;
            };
            let Some(asking) = self.asking.get(&ticket) else { continue };
            match self.flights.get_mut(&asking.key) {
                // The slot stays free for the next in the queue.
                Some(flight) => {
                    flight.joined.push(ticket);
                    let until_ns = (flight.leader != *who).then(|| now_ns.saturating_add(PATIENCE_NS));
                    actions.push(Action::Joined { ticket, until_ns });
                }
                None => {
                    slots.taken += 1;
                    let flight = Flight { leader: who.clone(), joined: Vec::new() };
                    self.flights.insert(asking.key.clone(), flight);
                    actions.push(Action::Lead { ticket });
                }
            }
        }
    }

    fn give_up(&mut self, ticket: Ticket, actions: &mut Vec<Action>) {
        let Some(asking) = self.asking.get(&ticket) else { return };
        let Some(flight) = self.flights.get_mut(&asking.key) else { return };
        let Some(at) = flight.joined.iter().position(|joined| *joined == ticket) else { return };
        flight.joined.remove(at);
        self.asking.remove(&ticket);
        actions.push(Action::Share { ticket, result: Ok(Outcome::Contended) });
    }

    fn landed(&mut self, now_ns: u64, ticket: Ticket, result: &Shared, actions: &mut Vec<Action>) {
        let Some(Asking { key, who }) = self.asking.remove(&ticket) else { return };
        // The flight leaves the list first: a joiner that tries for itself must not find the same
        // flight again.
        let Some(flight) = self.flights.remove(&key) else { return };
        let mut on_their_own = Vec::new();
        for joined in flight.joined {
            let is_same_user = self.asking.get(&joined).is_some_and(|asking| asking.who == flight.leader);
            let share = match result {
                Ok(Outcome::Stored(_)) => Ok(Outcome::Present),
                Ok(Outcome::Given(_)) => Ok(Outcome::Given(0)),
                Err(_) if !is_same_user => {
                    on_their_own.push(joined);
                    continue;
                }
                other => other.clone(),
            };
            self.asking.remove(&joined);
            actions.push(Action::Share { ticket: joined, result: share });
        }
        on_their_own.into_iter().for_each(|joined| self.want(now_ns, joined, actions));
        if let Some(slots) = self.users.get_mut(&who) {
            slots.taken = slots.taken.saturating_sub(1);
        }
        self.serve(now_ns, &who, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type TestFlights = Flights<u64, &'static str>;

    fn step(flights: &mut TestFlights, now_ns: u64, event: Event<u64, &'static str>) -> Vec<Action> {
        let mut actions = Vec::new();
        flights.step(now_ns, event, &mut actions);
        actions
    }

    fn want(flights: &mut TestFlights, ticket: u64, key: u64, who: &'static str) -> Vec<Action> {
        step(flights, 0, Event::Want { ticket: Ticket(ticket), key, who })
    }

    fn land(flights: &mut TestFlights, ticket: u64, result: Shared) -> Vec<Action> {
        step(flights, 5, Event::Landed { ticket: Ticket(ticket), result })
    }

    fn lead(ticket: u64) -> Action {
        Action::Lead { ticket: Ticket(ticket) }
    }

    fn share(ticket: u64, result: Shared) -> Action {
        Action::Share { ticket: Ticket(ticket), result }
    }

    fn joined(ticket: u64, until_ns: Option<u64>) -> Action {
        Action::Joined { ticket: Ticket(ticket), until_ns }
    }

    #[test]
    fn one_copies_and_the_others_share() {
        let mut flights = Flights::new(2);
        assert_eq!(want(&mut flights, 1, 7, "a"), [lead(1)]);
        assert_eq!(want(&mut flights, 2, 7, "a"), [joined(2, None)]);
        assert_eq!(want(&mut flights, 3, 7, "b"), [joined(3, Some(PATIENCE_NS))]);
        assert_eq!(flights.under_way(), 1);
        let present = || Ok(Outcome::Present);
        assert_eq!(land(&mut flights, 1, Ok(Outcome::Stored(9))), [share(2, present()), share(3, present())]);
        assert_eq!(flights.under_way(), 0);
        assert!(flights.users.is_empty() && flights.asking.is_empty());
    }

    #[test]
    fn a_failure_is_shared_by_its_own_user_only() {
        let mut flights = Flights::new(2);
        want(&mut flights, 1, 7, "a");
        for (ticket, who) in [(2, "a"), (3, "b"), (4, "c"), (5, "b")] {
            assert!(matches!(want(&mut flights, ticket, 7, who).as_slice(), [Action::Joined { .. }]));
        }
        let denied: Shared = Err((ErrorKind::PermissionDenied, "no".into()));
        // The first of the other users leads the next flight, the others join that.
        let expected = [share(2, denied.clone()), lead(3), joined(4, Some(5 + PATIENCE_NS)), joined(5, None)];
        assert_eq!(land(&mut flights, 1, denied), expected);
        let full = || Ok(Outcome::NoRoom);
        assert_eq!(land(&mut flights, 3, full()), [share(4, full()), share(5, full())]);
    }

    #[test]
    fn another_users_copy_is_waited_for_with_patience() {
        let mut flights = Flights::new(1);
        want(&mut flights, 1, 7, "a");
        want(&mut flights, 2, 7, "b");
        let contended = share(2, Ok(Outcome::Contended));
        assert_eq!(step(&mut flights, PATIENCE_NS, Event::Impatient { ticket: Ticket(2) }), [contended]);
        assert_eq!(step(&mut flights, PATIENCE_NS, Event::Impatient { ticket: Ticket(2) }), []);
        assert_eq!(land(&mut flights, 1, Ok(Outcome::Stored(1))), []);
    }

    #[test]
    fn each_user_has_slots_of_its_own() {
        let mut flights = Flights::new(2);
        assert_eq!(want(&mut flights, 1, 1, "a"), [lead(1)]);
        assert_eq!(want(&mut flights, 2, 2, "a"), [lead(2)]);
        assert_eq!(want(&mut flights, 3, 3, "a"), []);
        assert_eq!(want(&mut flights, 4, 2, "a"), [], "who has no slot does not even join");
        assert_eq!(want(&mut flights, 5, 4, "b"), [lead(5)]);
        let got = land(&mut flights, 1, Ok(Outcome::Present));
        assert_eq!(got, [lead(3)]);
        let got = land(&mut flights, 2, Ok(Outcome::Present));
        assert_eq!(got, [lead(4)], "its flight has ended meanwhile");
    }

    const USERS: [&str; 3] = ["a", "b", "c"];

    proptest! {
        /// In any order of asking, landing and losing patience the bounds hold at each step, and
        /// all are settled once.
        #[test]
        fn all_are_served_once_within_the_bounds(
            slots in 1usize..4,
            steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>(), 0u64..4, 0usize..3), 1..200)
        ) {
            let mut flights: TestFlights = Flights::new(slots);
            let mut of: BTreeMap<Ticket, (u64, &str)> = BTreeMap::new();
            let (mut leads, mut joins) = (BTreeSet::new(), BTreeSet::new());
            let mut settled = BTreeSet::new();
            let mut now_ns = 0;
            let mut next = 0;
            let mut events: VecDeque<(u8, prop::sample::Index, u64, usize)> = steps.into();
            loop {
                now_ns += 1;
                let event = match events.pop_front() {
                    Some((0 | 1, _, key, who)) => {
                        next += 1;
                        of.insert(Ticket(next), (key, USERS[who]));
                        Event::Want { ticket: Ticket(next), key, who: USERS[who] }
                    }
                    Some((2, at, ..)) if !joins.is_empty() => {
                        let all: Vec<Ticket> = joins.iter().copied().collect();
                        Event::Impatient { ticket: all[at.index(all.len())] }
                    }
                    Some((kind, at, ..)) if !leads.is_empty() => {
                        let all: Vec<Ticket> = leads.iter().copied().collect();
                        let ticket = all[at.index(all.len())];
                        let failed = || Err((ErrorKind::Io, String::new()));
                        Event::Landed {
                            ticket,
                            result: if kind == 3 { failed() } else { Ok(Outcome::Stored(1))
                        } }
                    }
                    Some(_) => continue,
                    None => match leads.first().copied() {
                        Some(ticket) => Event::Landed { ticket, result: Ok(Outcome::NoRoom) },
                        None => break,
                    },
                };
                if let Event::Landed { ticket, .. } = &event {
                    leads.remove(ticket);
                    prop_assert!(settled.insert(*ticket));
                }
                for action in step(&mut flights, now_ns, event) {
                    match action {
                        Action::Lead { ticket } => {
                            joins.remove(&ticket);
                            prop_assert!(leads.insert(ticket));
                        }
                        Action::Joined { ticket, until_ns } => {
                            let leader = leads.iter().find(|other| of[other].0 == of[&ticket].0);
                            let leader = leader.expect("one leads what is joined");
                            prop_assert_eq!(until_ns.is_none(), of[leader].1 == of[&ticket].1);
                            joins.insert(ticket);
                        }
                        Action::Share { ticket, .. } => {
                            joins.remove(&ticket);
                            prop_assert!(settled.insert(ticket));
                        }
                    }
                }
                let keys: BTreeSet<u64> = leads.iter().map(|ticket| of[ticket].0).collect();
                prop_assert_eq!(keys.len(), leads.len(), "one flight a frame");
                prop_assert_eq!(flights.under_way(), leads.len());
                for user in USERS {
                    let mine = leads.iter().filter(|ticket| of[ticket].1 == user).count();
                    prop_assert!(mine <= slots);
                }
            }
            prop_assert_eq!(settled.len(), of.len(), "nobody is forgotten");
            prop_assert!(flights.users.is_empty() && flights.asking.is_empty());
        }
    }
}
