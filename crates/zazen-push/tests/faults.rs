//! The writer under seeded faults in virtual time: nodes that die, come back, fall silent, are
//! full, or whose acknowledgements get lost. A failure prints its seed.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use zazen_core::FrameNo;
use zazen_push::{Action, Config, Counters, Event, Fate, OnSlow, Writer};

const MS: u64 = 1_000_000;
const TIMEOUT: u64 = 200 * MS;

/// A generator of its own, so that the tests' choices don't follow the writer's.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below.max(1)
    }
    fn percent(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

fn frame(number: u64) -> FrameNo {
    FrameNo::new(number).unwrap()
}

fn config(nodes: usize, on_slow: OnSlow) -> Config {
    Config {
        nodes,
        window_frames: 8,
        window_bytes: 1000,
        on_slow,
        retries: 2,
        backoff_min_ns: 100 * MS,
        backoff_max_ns: 1600 * MS,
        pass_over_after: 0,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Dead,
    Silent,
    Full,
}

/// The world around one writer: nodes, a clock, and what must hold at each step.
struct World {
    seed: u64,
    dice: Dice,
    now: u64,
    writer: Writer,
    config: Config,
    moods: Vec<Mood>,
    stored: Vec<BTreeSet<u64>>,
    /// Outcomes to come: (time, order) → event, and whether it is an echo that nobody waits for.
    pending: BTreeMap<(u64, u64), (Event, bool)>,
    order: u64,
    sizes: BTreeMap<u64, u64>,
    accepted: BTreeSet<u64>,
    in_window: BTreeMap<u64, u64>,
    fates: BTreeMap<u64, Fate>,
    /// The node of each frame's unanswered sending.
    sent_to: BTreeMap<u64, usize>,
    rests_until: Vec<u64>,
    sends: Vec<u64>,
}

impl World {
    fn new(seed: u64, config: Config) -> World {
        let nodes = config.nodes;
        World {
            seed,
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now: 0,
            writer: Writer::new(config.clone(), seed),
            moods: vec![Mood::Well; nodes],
            stored: vec![BTreeSet::new(); nodes],
            pending: BTreeMap::new(),
            order: 0,
            sizes: BTreeMap::new(),
            accepted: BTreeSet::new(),
            in_window: BTreeMap::new(),
            fates: BTreeMap::new(),
            sent_to: BTreeMap::new(),
            rests_until: vec![0; nodes],
            sends: vec![0; nodes],
            config,
        }
    }

    fn step(&mut self, event: Event) {
        let failed_node = match event {
            Event::Failed { frame, node } | Event::Full { frame, node } => {
                (self.sent_to.get(&frame.get()) == Some(&node)).then_some(node)
            }
            _ => None,
        };
        let mut actions = Vec::new();
        self.writer.step(self.now, event, &mut actions);
        assert!(actions.len() <= 4 + 4 * self.config.window_frames, "seed {}: {actions:?}", self.seed);
        self.note_rest(failed_node);
        for action in actions {
            self.act(action);
        }
        let bytes: u64 = self.in_window.values().sum();
        let (seed, window) = (self.seed, &self.config);
        assert!(self.in_window.len() <= window.window_frames.max(1), "seed {seed}: window of frames");
        assert!(bytes <= window.window_bytes || self.in_window.len() == 1, "seed {seed}: window of bytes");
    }

    /// A failure may begin a rest, which is as long as the configuration says.
    fn note_rest(&mut self, failed_node: Option<usize>) {
        let Some((node, until)) = failed_node.and_then(|node| Some((node, self.writer.rests_until(node)?)))
        else {
            return;
        };
        if self.rests_until[node] != until {
            let (seed, pause) = (self.seed, until - self.now);
            let bounds = self.config.backoff_min_ns..=self.config.backoff_max_ns;
            assert!(bounds.contains(&pause), "seed {seed}: a pause of {pause} ns");
            self.rests_until[node] = until;
        }
    }

    fn act(&mut self, action: Action) {
        let seed = self.seed;
        match action {
            Action::Accept { frame } => {
                assert!(self.accepted.insert(frame.get()), "seed {seed}: {frame} accepted twice");
                self.in_window.insert(frame.get(), self.sizes[&frame.get()]);
            }
            Action::Send { frame, node } => {
                assert!(
                    self.in_window.contains_key(&frame.get()),
                    "seed {seed}: {frame} sent but not in the window"
                );
                assert!(
                    self.now >= self.rests_until[node],
                    "seed {seed}: {frame} sent to {node} while it rests"
                );
                self.sends[node] += 1;
                self.sent_to.insert(frame.get(), node);
                self.outcome(frame, node);
            }
            Action::Done { frame, fate } => {
                assert!(self.accepted.contains(&frame.get()), "seed {seed}: {frame} done but never accepted");
                assert!(self.fates.insert(frame.get(), fate).is_none(), "seed {seed}: {frame} has two fates");
                self.in_window.remove(&frame.get());
                self.sent_to.remove(&frame.get());
                if fate == Fate::Pushed || fate == Fate::AlreadyThere {
                    let holders = self.stored.iter().filter(|held| held.contains(&frame.get())).count();
                    assert!(holders >= 1, "seed {seed}: {frame} counts as pushed and is nowhere");
                }
            }
        }
    }

    /// What will come of a sending, and when.
    fn outcome(&mut self, frame: FrameNo, node: usize) {
        let number = frame.get();
        let refused = number % 97 == 13;
        let soon = self.now + self.dice.roll(20 * MS);
        let (at, event) = match self.moods[node] {
            Mood::Well if refused => (soon, Event::Refused { frame, node }),
            Mood::Well => {
                let already = !self.stored[node].insert(number);
                if self.dice.percent(3) {
                    // Stored, but the acknowledgement is lost.
                    (self.now + TIMEOUT, Event::Failed { frame, node })
                } else {
                    (soon, Event::Acknowledged { frame, node, already })
                }
            }
            Mood::Full => (soon, Event::Full { frame, node }),
            Mood::Dead => (soon, Event::Failed { frame, node }),
            Mood::Silent => (self.now + TIMEOUT, Event::Failed { frame, node }),
        };
        self.order += 1;
        self.pending.insert((at, self.order), (event, false));
        if self.dice.percent(2) {
            // A late echo of something long settled, or never sent.
            let stranger = self.dice.roll(self.config.nodes as u64) as usize;
            self.order += 1;
            let echo = Event::Acknowledged { frame: frame_or(number, 3), node: stranger, already: false };
            self.pending.insert((at + TIMEOUT, self.order), (echo, true));
        }
    }

    fn run_until(&mut self, until: u64) {
        while let Some(entry) = self.pending.first_entry() {
            if entry.key().0 > until {
                break;
            }
            self.now = self.now.max(entry.key().0);
            let (event, echo) = entry.remove();
            // The driver owes that no echo passes for the outcome of a sending that is under way.
            let awaited = matches!(event, Event::Acknowledged { frame, node, .. }
                if self.sent_to.get(&frame.get()) == Some(&node));
            if !(echo && awaited) {
                self.step(event);
            }
        }
        self.now = self.now.max(until);
    }
}

fn frame_or(number: u64, distance: u64) -> FrameNo {
    frame(number.saturating_sub(distance))
}

fn run(seed: u64) {
    let mut dice = Dice(seed | 1 << 40);
    let nodes = 1 + dice.roll(9) as usize;
    let on_slow = if seed.is_multiple_of(2) { OnSlow::Skip } else { OnSlow::Block };
    let mut world = World::new(seed, config(nodes, on_slow));
    let frames = 400;
    for number in 0..frames {
        let size = if dice.percent(2) { 5000 } else { 1 + dice.roll(300) };
        world.sizes.insert(number, size);
        world.step(Event::Submit { frame: frame(number), bytes: size });
        // Under `Block` the application waits; other threads of it may not.
        while !world.accepted.contains(&number) && dice.percent(80) && !world.pending.is_empty() {
            let next = world.pending.first_key_value().unwrap().0.0;
            world.run_until(next);
        }
        let pause = dice.roll(30 * MS);
        world.run_until(world.now + pause);
        if dice.percent(10) {
            let node = dice.roll(nodes as u64) as usize;
            world.moods[node] = [Mood::Well, Mood::Dead, Mood::Silent, Mood::Full][dice.roll(4) as usize];
        }
    }
    // No livelock: each sending has one outcome, and only finitely many are ever made.
    let most = frames as usize * (nodes + 1) * 3;
    for _ in 0..most {
        let Some((next, _)) = world.pending.first_key_value() else { break };
        let next = next.0;
        world.run_until(next);
    }
    assert!(world.pending.is_empty(), "seed {seed}: it never ends");
    assert_eq!(world.writer.in_flight(), 0, "seed {seed}: in flight");
    assert_eq!(world.fates.len() as u64, frames, "seed {seed}: fates");
    check_counters(&world, seed);
}

fn check_counters(world: &World, seed: u64) {
    let count = |fate| world.fates.values().filter(|found| **found == fate).count() as u64;
    let pushed_bytes =
        |(number, fate): (&u64, &Fate)| if *fate == Fate::Pushed { world.sizes[number] } else { 0 };
    let found = world.writer.counters();
    let expected = Counters {
        submitted: world.fates.len() as u64,
        pushed: count(Fate::Pushed),
        already_there: count(Fate::AlreadyThere),
        skipped_slow: count(Fate::SkippedSlow),
        skipped_no_node: count(Fate::SkippedNoNode),
        refused: count(Fate::Refused),
        resent: found.resent,
        node_deaths: found.node_deaths,
        bytes_pushed: world.fates.iter().map(pushed_bytes).sum(),
    };
    assert_eq!(found, expected, "seed {seed}");
    let sends: u64 = world.sends.iter().sum();
    let first_sends = sends - found.resent;
    assert!(first_sends <= world.fates.len() as u64, "seed {seed}: more first sends than frames");
}

#[test]
fn seeded_faults() {
    for seed in 0..1500 {
        run(seed);
    }
}

#[test]
fn a_healthy_cluster_is_filled_evenly() {
    for seed in 0..50 {
        for nodes in 1..12 {
            let mut writer = Writer::new(config(nodes, OnSlow::Block), seed);
            let mut sends = vec![0u64; nodes];
            let mut actions = Vec::new();
            let mut first = None;
            for number in 0..101 {
                writer.step(number, Event::Submit { frame: frame(number), bytes: 10 }, &mut actions);
                for action in std::mem::take(&mut actions) {
                    if let Action::Send { frame, node } = action {
                        first.get_or_insert(node);
                        sends[node] += 1;
                        writer.step(
                            number,
                            Event::Acknowledged { frame, node, already: false },
                            &mut actions,
                        );
                    }
                }
                actions.clear();
            }
            let (least, most) = (sends.iter().min().unwrap(), sends.iter().max().unwrap());
            assert!(most - least <= 1, "seed {seed}, {nodes} nodes: {sends:?}");
            assert_eq!(writer.counters().pushed, 101);
        }
    }
}

#[test]
fn the_first_node_follows_from_the_seed_and_all_are_first_for_some() {
    let first = |seed| {
        let mut actions = Vec::new();
        Writer::new(config(5, OnSlow::Skip), seed).step(
            0,
            Event::Submit { frame: frame(0), bytes: 1 },
            &mut actions,
        );
        actions.iter().find_map(|action| match action {
            Action::Send { node, .. } => Some(*node),
            _ => None,
        })
    };
    let firsts: BTreeSet<_> = (0..100).map(first).collect();
    assert_eq!(firsts.len(), 5);
    assert_eq!(first(42), first(42));
}

#[test]
fn a_dead_node_is_tried_again_with_growing_pauses_and_one_frame_at_a_time() {
    let mut writer = Writer::new(config(2, OnSlow::Skip), 7);
    let mut actions = Vec::new();
    let (mut now, mut number, mut dead) = (0, 0, None);
    let mut tries = Vec::new();
    while tries.len() < 8 {
        now += MS;
        number += 1;
        writer.step(now, Event::Submit { frame: frame(number), bytes: 1 }, &mut actions);
        while let Some(action) = actions.pop() {
            let Action::Send { frame, node } = action else { continue };
            let event = if *dead.get_or_insert(node) == node {
                tries.push(now);
                Event::Failed { frame, node }
            } else {
                Event::Acknowledged { frame, node, already: false }
            };
            writer.step(now, event, &mut actions);
        }
    }
    let pauses: Vec<_> = tries.windows(2).map(|pair| (pair[1] - pair[0]) / MS).collect();
    for (at, pause) in pauses.iter().enumerate() {
        let least = (100 << at).min(1600);
        // A quarter of jitter, and up to two submits until it is that node's turn.
        assert!((least..=least * 5 / 4 + 3).contains(pause), "{pauses:?}");
    }
    assert_eq!(writer.counters().node_deaths, 8);
    assert_eq!(writer.dead(), [dead.unwrap()]);
    assert_eq!(writer.counters().pushed, number, "no frame was lost by it");
}

#[test]
fn without_any_node_frames_are_skipped_at_once() {
    let mut writer = Writer::new(config(0, OnSlow::Block), 7);
    let mut actions = Vec::new();
    writer.step(0, Event::Submit { frame: frame(0), bytes: 1 }, &mut actions);
    let done = Action::Done { frame: frame(0), fate: Fate::SkippedNoNode };
    assert_eq!(actions, [Action::Accept { frame: frame(0) }, done]);
}

#[test]
fn a_writer_is_small_whatever_the_number_of_nodes() {
    assert!(size_of::<Writer>() <= 200, "{} bytes", size_of::<Writer>());
    let config = std::sync::Arc::new(config(2_000_000, OnSlow::Skip));
    let mut writer = Writer::new(config, 3);
    let mut actions = Vec::new();
    let mut sent = |writer: &mut Writer, now: u64, number: u64| {
        writer.step(now, Event::Submit { frame: frame(number), bytes: 1 }, &mut actions);
        actions.drain(..).find_map(|action| match action {
            Action::Send { node, .. } => Some(node),
            _ => None,
        })
    };
    // Whoever works leaves nothing behind.
    for number in 0..1000 {
        let node = sent(&mut writer, number, number).unwrap();
        writer.step(
            number,
            Event::Acknowledged { frame: frame(number), node, already: false },
            &mut Vec::new(),
        );
    }
    assert_eq!(writer.troubled(), 0);
    // A node that failed and works again is forgotten, too.
    let failed = sent(&mut writer, 1000, 1000).unwrap();
    let mut more = Vec::new();
    writer.step(1000, Event::Failed { frame: frame(1000), node: failed }, &mut more);
    assert_eq!((writer.troubled(), writer.dead()), (1, vec![failed]));
}

#[test]
fn a_full_cluster_costs_a_frame_few_calls() {
    for nodes in [3, 100, 1000] {
        let mut writer = Writer::new(config(nodes, OnSlow::Skip), 5);
        let (mut actions, mut sends, mut skipped) = (Vec::new(), 0, 0);
        let frames = 3 * nodes as u64;
        for number in 0..frames {
            writer.step(number, Event::Submit { frame: frame(number), bytes: 1 }, &mut actions);
            while let Some(action) = actions.pop() {
                match action {
                    Action::Send { frame, node } => {
                        sends += 1;
                        writer.step(number, Event::Full { frame, node }, &mut actions);
                    }
                    Action::Done { fate, .. } => skipped += u64::from(fate == Fate::SkippedNoNode),
                    Action::Accept { .. } => {}
                }
            }
        }
        assert_eq!(skipped, frames);
        // Each node is asked once, since it rests then; no frame asks more than 1 + 2 of them.
        assert!(sends == nodes as u64, "{sends} sends to {nodes} nodes");
    }
}

mod any_events {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let (number, node) = (0..12u64, 0..4usize);
        prop_oneof![
            (0..12u64, 0..1500u64).prop_map(|(number, bytes)| Event::Submit { frame: frame(number), bytes }),
            (number, node, 0..4u8, any::<bool>()).prop_map(|(number, node, kind, already)| {
                let frame = frame(number);
                match kind {
                    0 => Event::Acknowledged { frame, node, already },
                    1 => Event::Refused { frame, node },
                    2 => Event::Full { frame, node },
                    _ => Event::Failed { frame, node },
                }
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 400, failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Whatever is thrown at it, the writer neither panics nor loses count.
        #[test]
        fn no_interleaving_breaks_it(
            events in prop::collection::vec((event(), 0..300 * MS), 0..120),
            nodes in 0..4usize,
            block in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let on_slow = if block { OnSlow::Block } else { OnSlow::Skip };
            let mut writer = Writer::new(config(nodes, on_slow), seed);
            let mut actions = Vec::new();
            let mut now = 0;
            for (event, pause) in events {
                now += pause;
                writer.step(now, event, &mut actions);
                let counters = writer.counters();
                let settled = counters.pushed
                    + counters.already_there
                    + counters.skipped_slow
                    + counters.skipped_no_node
                    + counters.refused;
                prop_assert_eq!(counters.submitted, settled + writer.in_flight() as u64);
                let sent_to_nobody =
                    actions.iter()
                        .any(|action| matches!(action, Action::Send { node, .. } if *node >= nodes));
                prop_assert!(!sent_to_nobody);
            }
        }
    }
}

/// Writers of the copies of the same frames: each node of one group meets all nodes of the others,
/// equally often, and none gets more frames than another of its group.
#[test]
fn copies_of_frames_are_on_all_pairs_of_nodes() {
    for (seed, nodes, copies) in [(1, 2, 2), (2, 2, 3), (3, 3, 3), (4, 8, 2), (5, 5, 1)] {
        let of = |copy| {
            let pass_over_after = if copy == 0 { 0 } else { (nodes as u64).pow(copy) };
            Writer::new(Config { pass_over_after, ..config(nodes, OnSlow::Block) }, seed + u64::from(copy))
        };
        let mut writers: Vec<Writer> = (0..copies).map(of).collect();
        let (all, rounds) = (nodes.pow(copies), 3);
        let mut met = BTreeMap::new();
        for number in 0..rounds * all {
            let mut together = Vec::new();
            for writer in &mut writers {
                let mut actions = Vec::new();
                writer.step(0, Event::Submit { frame: frame(number as u64), bytes: 1 }, &mut actions);
                let sent = |action: &Action| matches!(action, Action::Send { .. });
                let Some(Action::Send { frame, node }) = actions.iter().copied().find(sent) else {
                    panic!("seed {seed}: frame {number} is not sent")
                };
                writer.step(0, Event::Acknowledged { frame, node, already: false }, &mut actions);
                together.push(node);
            }
            *met.entry(together).or_insert(0) += 1;
        }
        assert_eq!(met.len(), all, "seed {seed}: {met:?}");
        assert!(met.values().all(|times| *times == rounds), "seed {seed}: {met:?}");
    }
}
