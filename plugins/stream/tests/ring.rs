//! The ring against a model that keeps every packet for ever and looks everything up by brute
//! force.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use zazen_stream::ring::{Arrival, Deal, Pressure, Ring, Shape, Take};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    Open,
    Handed,
    Done,
}

#[derive(Debug)]
struct Block {
    life: Life,
    opened: u64,
    kept: BTreeSet<(u32, u64)>,
    seen: BTreeSet<(u32, u64)>,
    on_their_way: u32,
    /// False for one that was dropped before it began.
    has_slot: bool,
}

/// What the counters should say: every packet that arrived, with its fate.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u64, Block>,
    gaps: BTreeSet<u64>,
    gone: BTreeSet<u32>,
    fates: BTreeMap<(u32, &'static str), u64>,
    claimed: BTreeMap<u32, u64>,
    first: Option<u64>,
    limit: Option<u64>,
    closing: Option<u64>,
}

impl Model {
    fn next(&self) -> u64 {
        self.blocks.keys().next_back().map_or(self.first.unwrap_or(0), |last| last + 1)
    }

    fn undone(&self) -> Option<u64> {
        self.blocks.iter().find(|(_, block)| block.life != Life::Done).map(|(number, _)| *number)
    }

    /// The block that lies where this one should.
    fn occupant(&self, shape: &Shape, number: u64) -> Option<u64> {
        let room = u64::from(shape.slots);
        let same =
            self.blocks.iter().filter(|(other, block)| *other % room == number % room && block.has_slot);
        same.map(|(other, _)| *other).max()
    }

    fn fate(&mut self, station: u32, what: &'static str, count: u64) {
        *self.fates.entry((station, what)).or_default() += count;
    }

    fn settle(&mut self, shape: &Shape, number: u64, kept_are: &'static str) {
        let block = self.blocks.get_mut(&number).unwrap();
        block.life = Life::Done;
        for station in 0..shape.stations {
            let kept = self.blocks[&number].kept.iter().filter(|(from, _)| *from == station).count() as u64;
            self.fate(station, kept_are, kept);
            self.fate(station, "missing", u64::from(shape.packets) - kept);
        }
    }

    fn arrive(&mut self, shape: &Shape, station: u32, packet: u64, now: u64) -> &'static str {
        let number = packet / u64::from(shape.packets);
        self.first = self.first.or(Some(number));
        self.limit = self.limit.or(shape.count.map(|count| self.first.unwrap() + count));
        if number < self.first.unwrap() || self.limit.is_some_and(|limit| number >= limit) {
            return "outside";
        }
        let room = u64::from(shape.slots);
        if number >= self.next() {
            let claimed = self.claimed.insert(station, number);
            if number - self.next() < room {
                self.claimed.remove(&station);
            } else if number - self.next() > 65_536
                || claimed.is_none_or(|claim| claim.abs_diff(number) >= room)
            {
                return "strange";
            }
        }
        while self.next() <= number {
            let next = self.next();
            let before = self.occupant(shape, next).filter(|old| self.blocks[old].life != Life::Done);
            self.open(now);
            let Some(before) = before else { continue };
            let block = &self.blocks[&before];
            let victim = if block.life == Life::Handed || block.on_their_way > 0 {
                self.blocks.get_mut(&next).unwrap().has_slot = false;
                next
            } else {
                before
            };
            self.settle(shape, victim, "dropped");
            if shape.deal == Deal::Turns {
                self.gaps.insert(victim);
            }
        }
        let is_recycled = self.occupant(shape, number).is_some_and(|now| now > number);
        let block = self.blocks.get_mut(&number).unwrap();
        if is_recycled {
            "late"
        } else if !block.has_slot {
            "refused"
        } else if !block.seen.insert((station, packet)) {
            "duplicate"
        } else if block.life != Life::Open {
            "late"
        } else {
            block.kept.insert((station, packet));
            block.on_their_way += 1;
            "stored"
        }
    }

    fn owner(&self, shape: &Shape, block: u64) -> Option<u32> {
        let turn = block % u64::from(shape.ranks);
        let order = (turn..u64::from(shape.ranks)).chain(0..turn).map(|rank| rank as u32);
        order.into_iter().find(|rank| !self.gone.contains(rank))
    }

    /// After the end, what never came is opened too, as far as there is room.
    fn fill_up(&mut self, shape: &Shape) {
        let (Some(closing), Some(limit)) = (self.closing, self.limit) else { return };
        while self.next() < limit {
            let before = self.occupant(shape, self.next());
            if before.is_some_and(|old| self.blocks[&old].life != Life::Done) {
                return;
            }
            self.open(closing);
        }
    }

    fn open(&mut self, opened: u64) {
        let block = Block {
            life: Life::Open,
            opened,
            kept: BTreeSet::new(),
            seen: BTreeSet::new(),
            on_their_way: 0,
            has_slot: true,
        };
        self.blocks.insert(self.next(), block);
    }

    fn take(&self, shape: &Shape, rank: u32, now: u64) -> (&'static str, u64) {
        let mine = |number: u64| shape.deal == Deal::Free || self.owner(shape, number) == Some(rank);
        let whole = (shape.stations * shape.packets) as usize;
        let ready = |block: &Block| {
            block.on_their_way == 0 && (block.kept.len() == whole || now >= block.opened + shape.deadline_ns)
        };
        let open = self.blocks.iter().filter(|(number, block)| block.life == Life::Open && mine(**number));
        let mut open: Vec<(u64, bool)> = open.map(|(number, block)| (*number, ready(block))).collect();
        let gap = self.gaps.iter().copied().find(|&number| mine(number));
        if shape.deal == Deal::Free {
            open.sort_by_key(|(number, ready)| (!ready, *number));
        }
        match (open.first(), gap) {
            (Some((number, _)), Some(gap)) if gap < *number => ("gap", gap),
            (None, Some(gap)) => ("gap", gap),
            (Some((number, true)), _) => ("block", *number),
            (None, None) if self.limit == Some(self.next()) && self.undone().is_none() => ("end", 0),
            _ => ("nothing", 0),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Packet { station: u32, ahead: i64, wild: bool },
    Stored,
    Take { rank: u32 },
    Return { ok: bool },
    Pass { ns: u64 },
    Leave { rank: u32 },
    Join { rank: u32 },
    Finish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => (0u32..3, -12i64..6, proptest::bool::weighted(0.02))
            .prop_map(|(station, ahead, wild)| Step::Packet { station, ahead, wild }),
        8 => Just(Step::Stored),
        8 => (0u32..3).prop_map(|rank| Step::Take { rank }),
        6 => proptest::bool::weighted(0.8).prop_map(|ok| Step::Return { ok }),
        4 => (0u64..40).prop_map(|ns| Step::Pass { ns }),
        1 => (0u32..3).prop_map(|rank| Step::Leave { rank }),
        1 => (0u32..3).prop_map(|rank| Step::Join { rank }),
        1 => proptest::bool::weighted(0.1).prop_map(|end| if end { Step::Finish } else { Step::Stored }),
    ];
    proptest::collection::vec(step, 1..400)
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1u32..4, 1u32..5, 1u32..6, 1u32..4, any::<bool>(), 0u64..60, any::<bool>(), any::<bool>()).prop_map(
        |(stations, packets, slots, ranks, free, deadline_ns, first, count)| Shape {
            stations,
            packets,
            slots,
            ranks,
            deal: if free { Deal::Free } else { Deal::Turns },
            pressure: Pressure::DropOldest,
            deadline_ns,
            silence_ns: 0,
            first: first.then_some(3),
            count: count.then_some(40),
        },
    )
}

fn word(arrival: Arrival) -> &'static str {
    match arrival {
        Arrival::Store { .. } => "stored",
        Arrival::Duplicate => "duplicate",
        Arrival::Late => "late",
        Arrival::Refused => "refused",
        Arrival::Outside => "outside",
        Arrival::Strange => "strange",
        Arrival::Full => "full",
    }
}

/// The ring, the memory that it manages, and the model, stepped together.
struct Rig {
    shape: Shape,
    ring: Ring,
    model: Model,
    /// What lies at (slot, packet of the slot).
    memory: BTreeMap<(u32, u32), (u32, u64)>,
    carried: Vec<(u32, u64)>,
    handed: Vec<u64>,
    now: u64,
    front: i64,
    announced: u64,
}

impl Rig {
    fn new(shape: Shape) -> Rig {
        let model = Model {
            first: shape.first,
            limit: shape.first.zip(shape.count).map(|(first, count)| first + count),
            ..Model::default()
        };
        let ring = Ring::new(shape.clone());
        let memory = BTreeMap::new();
        Rig { shape, ring, model, memory, carried: vec![], handed: vec![], now: 0, front: 20, announced: 0 }
    }

    fn packet(&mut self, station: u32, ahead: i64, wild: bool) {
        let station = station % self.shape.stations;
        self.front += i64::from(ahead > 0);
        // Sometimes a clock is so far ahead that nobody can believe it, sometimes only nearly.
        let wild_packet = if self.now.is_multiple_of(2) { 1 << 40 } else { self.front as u64 + 97 };
        let packet = if wild { wild_packet } else { (self.front + ahead).max(0) as u64 };
        let arrival = self.ring.arrive(station, packet, self.now);
        let expected = self.model.arrive(&self.shape, station, packet, self.now);
        assert_eq!(word(arrival), expected, "station {station}, packet {packet}");
        self.model.fate(station, "arrived", 1);
        self.model.fate(station, expected, 1);
        if let Arrival::Store { slot, index } = arrival {
            self.memory.insert((slot, index), (station, packet));
            self.carried.push((slot, packet / u64::from(self.shape.packets)));
        }
    }

    fn take(&mut self, rank: u32) {
        let rank = rank % self.shape.ranks;
        if self.model.gone.contains(&rank) && self.shape.deal == Deal::Turns {
            return;
        }
        self.model.fill_up(&self.shape);
        let (what, number) = self.model.take(&self.shape, rank, self.now);
        match self.ring.take(rank, self.now) {
            Take::Block { block, slot } => {
                assert_eq!((what, number), ("block", block));
                self.model.blocks.get_mut(&block).unwrap().life = Life::Handed;
                self.look(block, slot);
                self.handed.push(block);
            }
            Take::Gap { block } => {
                assert_eq!((what, number), ("gap", block));
                self.model.gaps.remove(&block);
                self.announced += 1;
            }
            Take::Wait { .. } => assert_eq!(what, "nothing", "block {number}"),
            Take::End => assert_eq!(what, "end"),
        }
    }

    /// What a rank sees: exactly the packets that the model kept, each in its place.
    fn look(&self, block: u64, slot: u32) {
        let kept = &self.model.blocks[&block].kept;
        let packets = self.shape.packets;
        for station in 0..self.shape.stations {
            for within in 0..packets {
                let index = station * packets + within;
                let packet = (station, block * u64::from(packets) + u64::from(within));
                let is_there = self.ring.present(slot).get(index as usize);
                assert_eq!(is_there, kept.contains(&packet), "{packet:?} of block {block}");
                if is_there {
                    assert_eq!(self.memory[&(slot, index)], packet);
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Packet { station, ahead, wild } => self.packet(station, ahead, wild),
            Step::Stored => {
                for (slot, block) in std::mem::take(&mut self.carried) {
                    self.ring.stored(slot, 1);
                    self.model.blocks.get_mut(&block).unwrap().on_their_way -= 1;
                }
            }
            Step::Take { rank } => self.take(rank),
            Step::Return { ok } => {
                if let Some(block) = self.handed.pop() {
                    self.give_back(block, ok);
                }
            }
            Step::Pass { ns } => self.now += ns,
            Step::Finish => {
                self.ring.finish(self.now);
                if self.model.closing.is_none() {
                    let next = self.model.next();
                    self.model.first = self.model.first.or(Some(self.model.limit.unwrap_or(next)));
                    self.model.limit = self.model.limit.or(Some(next));
                    self.model.closing = Some(self.now);
                }
            }
            Step::Leave { rank } => {
                self.ring.leave(rank % self.shape.ranks);
                self.model.gone.insert(rank % self.shape.ranks);
            }
            Step::Join { rank } => {
                self.ring.join(rank % self.shape.ranks);
                self.model.gone.remove(&(rank % self.shape.ranks));
            }
        }
        self.ring.check().unwrap();
    }

    fn give_back(&mut self, block: u64, ok: bool) {
        self.ring.returned(block, ok);
        if ok {
            self.model.settle(&self.shape, block, "delivered");
        } else {
            self.model.blocks.get_mut(&block).unwrap().life = Life::Open;
        }
    }

    fn finish(mut self) {
        while let Some(block) = self.handed.pop() {
            self.give_back(block, true);
        }
        let open: Vec<u64> =
            self.model.blocks.iter().filter(|(_, b)| b.life == Life::Open).map(|(n, _)| *n).collect();
        for block in open {
            self.model.settle(&self.shape, block, "dropped");
        }
        self.ring.close();
        self.ring.check().unwrap();
        for (station, counters) in self.ring.counters().iter().enumerate() {
            let fates = [
                ("arrived", counters.arrived),
                ("stored", counters.stored),
                ("duplicate", counters.duplicate),
                ("late", counters.late),
                ("refused", counters.refused),
                ("outside", counters.outside),
                ("strange", counters.strange),
                ("delivered", counters.delivered),
                ("dropped", counters.dropped),
                ("missing", counters.missing),
            ];
            for (what, is) in fates {
                let should = self.model.fates.get(&(station as u32, what)).copied().unwrap_or(0);
                assert_eq!(is, should, "station {station}: {what}");
            }
            assert_eq!(counters.stored, counters.delivered + counters.dropped);
        }
        assert_eq!(self.ring.block_counters().gaps, self.announced);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_ring_does_what_the_model_does(shape in shapes(), steps in steps()) {
        let mut rig = Rig::new(shape);
        for step in &steps {
            rig.step(step);
        }
        rig.finish();
    }
}

#[test]
fn a_receiver_that_cannot_run_makes_no_packet_late() {
    let shape = Shape {
        stations: 1,
        packets: 2,
        slots: 4,
        ranks: 1,
        deal: Deal::Turns,
        pressure: Pressure::DropOldest,
        deadline_ns: 100,
        silence_ns: 0,
        first: None,
        count: None,
    };
    let begun = || {
        let mut ring = Ring::new(shape.clone());
        let receivers = [ring.add_receiver(), ring.add_receiver()];
        ring.join(0);
        let Arrival::Store { slot, .. } = ring.arrive(0, 0, 10) else { panic!("it is the first") };
        ring.stored(slot, 1);
        (ring, receivers)
    };
    // The second packet came in time, but its receiver did not run.
    let (mut ring, receivers) = begun();
    ring.drained(receivers[0], 500);
    ring.drained(receivers[1], 109);
    assert_eq!(ring.take(0, 150), Take::Wait { until_ns: Some(210) });
    let Arrival::Store { slot, .. } = ring.arrive(0, 1, 160) else { panic!("it is not late") };
    ring.stored(slot, 1);
    assert_eq!(ring.take(0, 161), Take::Block { block: 0, slot });
    // All that came is here: the deadline counts.
    let (mut ring, receivers) = begun();
    receivers.iter().for_each(|receiver| ring.drained(*receiver, 110));
    assert_eq!(ring.take(0, 109), Take::Wait { until_ns: Some(110) });
    assert!(matches!(ring.take(0, 111), Take::Block { block: 0, .. }));
    // A receiver that never runs again holds a block up for as long once more.
    let (mut ring, _) = begun();
    assert_eq!(ring.take(0, 209), Take::Wait { until_ns: Some(210) });
    assert!(matches!(ring.take(0, 210), Take::Block { block: 0, .. }));
    ring.check().unwrap();
}
