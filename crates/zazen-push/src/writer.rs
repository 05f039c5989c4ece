//! The writer itself: window, round-robin, retries, fates.
//!
//! Invariants: every submitted frame gets exactly one fate. Frames in flight never exceed the
//! window. A frame is sent to each node at most once, and to a bounded number of nodes, so it gets
//! its fate after finitely many outcomes.
//!
//! Size: a writer takes 200 bytes, plus what is in flight, plus an entry for each node that is not
//! known to work. A frame costs nothing that grows with the number of nodes: with 2 million writers
//! and as many nodes, both would.

use crate::rest::{Node, Random};
use crate::{Action, Config, Counters, Event, Fate, OnSlow};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use zazen_core::FrameNo;

/// Nodes that a frame looks at for one that it can be sent to. Beyond it, the frame is given up,
/// and the next frame looks at other nodes.
pub const LOOKS_MAX: usize = 64;

/// A frame in flight.
struct Flight {
    bytes: u64,
    /// The nodes that it was sent to. The writer waits for the outcome of the last one.
    tried: Vec<usize>,
    /// The last node's era when the frame was sent.
    era: u64,
    /// Failures so far. A full node is not a failure.
    failures: u32,
    /// Full nodes so far.
    full: u32,
}

/// The state machine. Not for several threads: the driver must serialise its calls.
///
/// The driver must give one outcome event for each `Send`, within its own time limit. It must not
/// submit a number that is in flight. Such a second frame counts as [`Fate::SkippedSlow`] and is
/// accepted without a `Done`, because the `Done` belongs to the first frame. Outcomes that the
/// writer does not wait for are ignored.
pub struct Writer {
    config: Arc<Config>,
    /// The nodes that rest, are being tried, or have frames in flight that were sent before that
    /// ended. All others are usable.
    troubled: BTreeMap<usize, Node>,
    /// The node at which the round-robin continues.
    next: usize,
    /// Sendings so far.
    sent: u64,
    flights: BTreeMap<FrameNo, Flight>,
    flight_bytes: u64,
    /// Submits that wait for room, under [`OnSlow::Block`].
    waiting: VecDeque<(FrameNo, u64)>,
    counters: Counters,
    random: Random,
}

impl Writer {
    /// A writer whose first node follows from `seed`. The caller guarantees `config.nodes` ≥ 1.
    /// Many writers can share one configuration.
    pub fn new(config: impl Into<Arc<Config>>, seed: u64) -> Writer {
        let config = config.into();
        let mut random = Random::new(seed);
        let next = random.below(config.nodes as u64) as usize;
        Writer {
            troubled: BTreeMap::new(),
            next,
            sent: 0,
            flights: BTreeMap::new(),
            flight_bytes: 0,
            waiting: VecDeque::new(),
            counters: Counters::default(),
            random,
            config,
        }
    }

    /// Takes one event at `now_ns` and appends the resulting actions to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submit { frame, bytes } => self.submit(now_ns, frame, bytes, actions),
            Event::Acknowledged { frame, node, already } => {
                if let Some(flight) = self.awaited(frame, node) {
                    let (era, bytes) = (flight.era, flight.bytes);
                    self.works(node, era);
                    if already {
                        self.settle(frame, Fate::AlreadyThere, actions);
                    } else {
                        self.counters.bytes_pushed += bytes;
                        self.settle(frame, Fate::Pushed, actions);
                    }
                }
            }
            Event::Refused { frame, node } => {
                if let Some(flight) = self.awaited(frame, node) {
                    let era = flight.era;
                    self.works(node, era);
                    self.settle(frame, Fate::Refused, actions);
                }
            }
            Event::Full { frame, node } => self.elsewhere(now_ns, frame, node, false, actions),
            Event::Failed { frame, node } => self.elsewhere(now_ns, frame, node, true, actions),
        }
        self.admit_waiting(now_ns, actions);
        if let Event::Acknowledged { node, .. } | Event::Refused { node, .. } = event {
            self.forget(node);
        }
    }

    fn works(&mut self, node: usize, era: u64) {
        if let Some(troubled) = self.troubled.get_mut(&node) {
            troubled.works(era);
        }
    }

    /// Drops the entry of a node that works again, once no outcome can come that is older than
    /// that.
    fn forget(&mut self, node: usize) {
        let is_well = self.troubled.get(&node).is_some_and(Node::is_well);
        if is_well && !self.flights.values().any(|flight| flight.tried.last() == Some(&node)) {
            self.troubled.remove(&node);
        }
    }

    /// Fates so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Frames submitted and not settled, including those that wait for room.
    pub fn in_flight(&self) -> usize {
        self.flights.len() + self.waiting.len()
    }

    /// Which nodes count as dead: they failed last, whether or not it is time to try them again.
    pub fn dead(&self) -> Vec<usize> {
        self.troubled.iter().filter(|(_, state)| state.dead()).map(|(node, _)| *node).collect()
    }

    /// Until when `node` rests, in monotonic nanoseconds; `None` if it does not.
    pub fn rests_until(&self, node: usize) -> Option<u64> {
        self.troubled.get(&node).and_then(Node::rests_until)
    }

    /// Entries for nodes that are not known to work.
    pub fn troubled(&self) -> usize {
        self.troubled.len()
    }

    fn submit(&mut self, now_ns: u64, frame: FrameNo, bytes: u64, actions: &mut Vec<Action>) {
        self.counters.submitted += 1;
        let twice =
            self.flights.contains_key(&frame) || self.waiting.iter().any(|(other, _)| *other == frame);
        if twice {
            self.counters.skipped_slow += 1;
            actions.push(Action::Accept { frame });
        } else if self.waiting.is_empty() && self.has_room(bytes) {
            self.admit(now_ns, frame, bytes, actions);
        } else if self.config.on_slow == OnSlow::Block {
            self.waiting.push_back((frame, bytes));
        } else {
            actions.push(Action::Accept { frame });
            self.count(Fate::SkippedSlow);
            actions.push(Action::Done { frame, fate: Fate::SkippedSlow });
        }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.flights.is_empty()
            || (self.flights.len() < self.config.window_frames
                && self.flight_bytes.saturating_add(bytes) <= self.config.window_bytes)
    }

    fn admit_waiting(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some((frame, bytes)) = self.waiting.front().copied() {
            if !self.has_room(bytes) {
                break;
            }
            self.waiting.pop_front();
            self.admit(now_ns, frame, bytes, actions);
        }
    }

    fn admit(&mut self, now_ns: u64, frame: FrameNo, bytes: u64, actions: &mut Vec<Action>) {
        actions.push(Action::Accept { frame });
        self.flight_bytes = self.flight_bytes.saturating_add(bytes);
        self.flights.insert(frame, Flight { bytes, tried: Vec::new(), era: 0, failures: 0, full: 0 });
        self.send(now_ns, frame, actions);
    }

    /// Sends an admitted frame to the next usable node that has not had it, or gives it up.
    fn send(&mut self, now_ns: u64, frame: FrameNo, actions: &mut Vec<Action>) {
        let Some(flight) = self.flights.get_mut(&frame) else { return };
        let (count, first) = (self.config.nodes, self.next);
        let may_go = flight.failures <= self.config.retries && flight.full <= self.config.retries;
        let looks = if may_go { count.min(LOOKS_MAX) } else { 0 };
        for node in (0..looks).map(|step| (first + step) % count) {
            let state = self.troubled.get_mut(&node);
            let is_usable = state.as_ref().is_none_or(|state| state.usable(now_ns));
            if !is_usable || flight.tried.contains(&node) {
                continue;
            }
            if !flight.tried.is_empty() {
                self.counters.resent += 1;
            }
            flight.era = state.map_or(0, Node::sending);
            flight.tried.push(node);
            self.sent += 1;
            let is_passed = self.sent.checked_rem(self.config.pass_over_after) == Some(0);
            self.next = (node + 1 + usize::from(is_passed)) % count;
            actions.push(Action::Send { frame, node });
            return;
        }
        if looks < count {
            // The next frame looks at others.
            self.next = (first + looks) % count;
        }
        self.settle(frame, Fate::SkippedNoNode, actions);
    }

    /// The flight of `frame`, if it waits for the outcome of `node`.
    fn awaited(&mut self, frame: FrameNo, node: usize) -> Option<&mut Flight> {
        self.flights.get_mut(&frame).filter(|flight| flight.tried.last() == Some(&node))
    }

    fn elsewhere(&mut self, now_ns: u64, frame: FrameNo, node: usize, dead: bool, actions: &mut Vec<Action>) {
        let Some(flight) = self.awaited(frame, node) else { return };
        *(if dead { &mut flight.failures } else { &mut flight.full }) += 1;
        let era = flight.era;
        let pauses = (self.config.backoff_min_ns, self.config.backoff_max_ns);
        let state = self.troubled.entry(node).or_default();
        if state.fails(era, dead, now_ns, pauses, &mut self.random) {
            self.counters.node_deaths += u64::from(dead);
        }
        self.send(now_ns, frame, actions);
    }

    fn settle(&mut self, frame: FrameNo, fate: Fate, actions: &mut Vec<Action>) {
        if let Some(flight) = self.flights.remove(&frame) {
            self.flight_bytes = self.flight_bytes.saturating_sub(flight.bytes);
            self.count(fate);
            actions.push(Action::Done { frame, fate });
        }
    }

    fn count(&mut self, fate: Fate) {
        let counter = match fate {
            Fate::Pushed => &mut self.counters.pushed,
            Fate::AlreadyThere => &mut self.counters.already_there,
            Fate::SkippedSlow => &mut self.counters.skipped_slow,
            Fate::SkippedNoNode => &mut self.counters.skipped_no_node,
            Fate::Refused => &mut self.counters.refused,
        };
        *counter += 1;
    }
}
