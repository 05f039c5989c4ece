//! The writer itself: window, round-robin, retries, fates.
//!
//! Invariants: every submitted frame gets exactly one fate. Frames in flight never exceed the
//! window. A frame is sent to each node at most once, so it gets its fate after finitely many
//! outcomes.

use crate::rest::{Node, Random};
use crate::{Action, Config, Counters, Event, Fate, OnSlow};
use std::collections::{BTreeMap, VecDeque};
use zazen_core::FrameNo;

/// A frame in flight.
struct Flight {
    bytes: u64,
    /// The nodes that it was sent to. The writer waits for the outcome of the last one.
    tried: Vec<usize>,
    /// The last node's era when the frame was sent.
    era: u64,
    /// Failures so far. A full node is not a failure.
    failures: u32,
}

/// The state machine. Not for several threads: the driver must serialise its calls.
///
/// The driver must give one outcome event for each `Send`, within its own time limit. It must not
/// submit a number that is in flight. Such a second frame counts as [`Fate::SkippedSlow`] and is
/// accepted without a `Done`, because the `Done` belongs to the first frame. Outcomes that the
/// writer does not wait for are ignored.
pub struct Writer {
    config: Config,
    nodes: Vec<Node>,
    /// The node at which the round-robin continues.
    next: usize,
    flights: BTreeMap<FrameNo, Flight>,
    flight_bytes: u64,
    /// Submits that wait for room, under [`OnSlow::Block`].
    waiting: VecDeque<(FrameNo, u64)>,
    counters: Counters,
    random: Random,
    finishing: bool,
    finished: bool,
}

impl Writer {
    /// A writer whose first node follows from `seed`. The caller guarantees `config.nodes` ≥ 1.
    pub fn new(config: Config, seed: u64) -> Writer {
        let mut random = Random::new(seed);
        let next = random.below(config.nodes as u64) as usize;
        Writer {
            nodes: vec![Node::new(); config.nodes],
            next,
            flights: BTreeMap::new(),
            flight_bytes: 0,
            waiting: VecDeque::new(),
            counters: Counters::default(),
            random,
            finishing: false,
            finished: false,
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
                    self.nodes[node].works(era);
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
                    self.nodes[node].works(era);
                    self.settle(frame, Fate::Refused, actions);
                }
            }
            Event::Full { frame, node } => self.elsewhere(now_ns, frame, node, false, actions),
            Event::Failed { frame, node } => self.elsewhere(now_ns, frame, node, true, actions),
            // Every event compares rest periods with its own time, so nothing depends on ticks.
            Event::Tick => {}
            Event::Finish => self.finishing = true,
        }
        self.admit_waiting(now_ns, actions);
        if self.finishing && !self.finished && self.in_flight() == 0 {
            self.finished = true;
            actions.push(Action::Finished);
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

    /// Which nodes count as dead at `now_ns`: they failed last, whether or not it is time to try
    /// them again.
    pub fn dead(&self, now_ns: u64) -> Vec<usize> {
        let _ = now_ns;
        (0..self.nodes.len()).filter(|node| self.nodes[*node].dead()).collect()
    }

    fn submit(&mut self, now_ns: u64, frame: FrameNo, bytes: u64, actions: &mut Vec<Action>) {
        self.counters.submitted += 1;
        self.finished = false;
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
        self.flights.insert(frame, Flight { bytes, tried: Vec::new(), era: 0, failures: 0 });
        self.send(now_ns, frame, actions);
    }

    /// Sends an admitted frame to the next usable node that did not get it before, or gives it up.
    fn send(&mut self, now_ns: u64, frame: FrameNo, actions: &mut Vec<Action>) {
        let Some(flight) = self.flights.get_mut(&frame) else { return };
        let count = self.nodes.len();
        let next = self.next;
        let node = (0..count)
            .map(|step| (next + step) % count)
            .find(|node| self.nodes[*node].usable(now_ns) && !flight.tried.contains(node));
        let may_go = flight.failures <= self.config.retries;
        match node {
            Some(node) if may_go => {
                if !flight.tried.is_empty() {
                    self.counters.resent += 1;
                }
                flight.era = self.nodes[node].sending();
                flight.tried.push(node);
                self.next = (node + 1) % count;
                actions.push(Action::Send { frame, node });
            }
            _ => self.settle(frame, Fate::SkippedNoNode, actions),
        }
    }

    /// The flight of `frame`, if it waits for the outcome of `node`.
    fn awaited(&mut self, frame: FrameNo, node: usize) -> Option<&mut Flight> {
        self.flights.get_mut(&frame).filter(|flight| flight.tried.last() == Some(&node))
    }

    fn elsewhere(&mut self, now_ns: u64, frame: FrameNo, node: usize, dead: bool, actions: &mut Vec<Action>) {
        let Some(flight) = self.awaited(frame, node) else { return };
        flight.failures += u32::from(dead);
        let era = flight.era;
        let pauses = (self.config.backoff_min_ns, self.config.backoff_max_ns);
        if let Some(at_ns) = self.nodes[node].fails(era, dead, now_ns, pauses, &mut self.random) {
            self.counters.node_deaths += u64::from(dead);
            actions.push(Action::WakeAt { at_ns });
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
