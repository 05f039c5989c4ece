//! The circular buffer, without its bytes: it decides where a packet goes and which rank gets a
//! block, and counts the outcome of each packet. *Pure*: time is an argument, and the caller holds
//! the samples.
//!
//! Time is cut into *blocks*: block b holds packets b·P … b·P + P - 1 of every station. Block b is
//! stored in slot b mod N. If block b - N is still being read there, b is dropped before it begins.
//! Nothing waits for a slow rank.
//!
//! ```text
//!   open ──(full, or its deadline passed)──► handed to a rank ──► done: delivered
//!     ▲ │                                        │
//!     │ └─(room is needed)──► done: dropped      └─(the rank is gone: dealt again)──► open
//! ```
//!
//! Invariants, which `check` asserts: a packet that arrived is exactly one of stored, duplicate,
//! late, refused, outside, strange; a packet of a block that is done is exactly one of delivered,
//! dropped, missing; what is stored is delivered, dropped or still held. A block being read or
//! written to is never dropped and its slot never used again.

use crate::bits::Bits;
use std::collections::BTreeSet;

/// A jump of more blocks than this is taken for a broken clock.
const JUMP_BLOCKS_MAX: u64 = 65_536;
/// The most dropped blocks that are remembered until a rank is told of them. Beyond this, the
/// oldest is forgotten.
const GAPS_MAX: usize = 65_536;

/// How blocks are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// Block b goes to rank b mod R, in order, as ranks need it that exchange data with other
    /// nodes. A rank is told of dropped blocks that it should have got.
    Turns,
    /// The oldest ready block to whoever asks.
    Free,
}

/// What to do with a packet for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// The oldest block is dropped for it.
    DropOldest,
    /// The packet waits with its sender. For transports that can make a sender wait (TCP).
    Wait,
}

/// The measures of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Stations.
    pub stations: u32,
    /// Packets of each station in a block.
    pub packets: u32,
    /// Blocks that there is room for.
    pub slots: u32,
    /// Ranks that blocks are dealt to.
    pub ranks: u32,
    /// How they are dealt.
    pub deal: Deal,
    /// What happens without room.
    pub pressure: Pressure,
    /// How long a block waits for missing packets after the first packet of this block or of a
    /// later one.
    pub deadline_ns: u64,
    /// All stations silent for so long: the stream has ended. 0: never.
    pub silence_ns: u64,
    /// The first block; else that of the first packet.
    pub first: Option<u64>,
    /// Blocks in all; else until the stations end.
    pub count: Option<u64>,
}

/// What became of the packets of one station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of this station that came.
    pub arrived: u64,
    /// Of them: put into their block.
    pub stored: u64,
    /// Of them: came before.
    pub duplicate: u64,
    /// Of them: their block was already handed out, or dropped.
    pub late: u64,
    /// Of them: there was no room, and nothing that could be dropped.
    pub refused: u64,
    /// Of them: before the first or after the last block.
    pub outside: u64,
    /// Of them: an impossible time.
    pub strange: u64,
    /// Packets in blocks that ranks got.
    pub delivered: u64,
    /// Packets that were stored and then dropped with their block.
    pub dropped: u64,
    /// Packets that were not there when their block was done: flagged lost.
    pub missing: u64,
}

/// What became of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Given to a rank.
    pub delivered: u64,
    /// Of them, with something missing.
    pub incomplete: u64,
    /// Dropped for want of room, or when the stream was closed.
    pub dropped: u64,
    /// Handed to a rank that did not get it, and dealt again.
    pub redealt: u64,
    /// Dropped blocks of which a rank was told.
    pub gaps: u64,
    /// Dropped blocks of which nobody will be told.
    pub gaps_forgotten: u64,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Into this slot, as this packet of it (station · P + packet); [`Ring::stored`] must follow.
    Store {
        /// Which slot.
        slot: u32,
        /// Which packet of it.
        index: u32,
    },
    /// Nowhere: it came before.
    Duplicate,
    /// Nowhere: its block is gone.
    Late,
    /// Nowhere: no room.
    Refused,
    /// Nowhere: not of this observation.
    Outside,
    /// Nowhere: its time is impossible.
    Strange,
    /// Not yet: ask again when something was delivered ([`Pressure::Wait`]); not counted.
    Full,
}

/// What a rank gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// A block; [`Ring::returned`] must follow.
    Block {
        /// Which block.
        block: u64,
        /// Where it lies.
        slot: u32,
    },
    /// A notice that this block was dropped.
    Gap {
        /// Which block.
        block: u64,
    },
    /// Nothing now. Ask again at that time, or when something arrived.
    Wait {
        /// When a deadline passes.
        until_ns: Option<u64>,
    },
    /// Nothing more: the end.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Handed,
    Done,
}

struct Slot {
    /// Which block is, or was last, here.
    block: Option<u64>,
    state: State,
    opened_ns: u64,
    /// Packets here, or on their way from a receiver's buffer.
    present: Bits,
    /// Packets that came at all: also those that came too late.
    seen: Bits,
    present_count: u32,
    /// Packets on their way.
    pins: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Awaited,
    Here,
    Gone,
}

/// See the module.
pub struct Ring {
    shape: Shape,
    slots: Vec<Slot>,
    members: Vec<Member>,
    first: Option<u64>,
    /// One past the last block, once it is known.
    limit: Option<u64>,
    /// One past the newest block that has begun.
    next: u64,
    /// Slots whose block is not done.
    undone: usize,
    /// Blocks that are not done though their slot's turn for the next one came.
    overdue: BTreeSet<u64>,
    /// Dropped blocks whose rank has not been told.
    gaps: BTreeSet<u64>,
    /// Per station: a block far ahead that one packet claimed.
    jump: Vec<Option<u64>>,
    /// Per station: one past its last packet, once it said so.
    ended: Vec<Option<u64>>,
    arrived_ns: Option<u64>,
    /// Per receiver: all packets that came before this time have been brought here.
    drained_ns: Vec<u64>,
    /// Since when no more is expected.
    closing_ns: Option<u64>,
    closed: bool,
    counters: Vec<Counters>,
    blocks: BlockCounters,
    news: u64,
}

impl Ring {
    /// An empty ring. All measures are at least 1.
    pub fn new(shape: Shape) -> Ring {
        let packets = shape.stations * shape.packets;
        let slot = || Slot {
            block: None,
            state: State::Done,
            opened_ns: 0,
            present: Bits::new(packets as usize),
            seen: Bits::new(packets as usize),
            present_count: 0,
            pins: 0,
        };
        let first = shape.first;
        Ring {
            slots: (0..shape.slots).map(|_| slot()).collect(),
            members: vec![Member::Awaited; shape.ranks as usize],
            limit: first.zip(shape.count).map(|(first, count)| first.saturating_add(count)),
            first,
            next: first.unwrap_or(0),
            undone: 0,
            overdue: BTreeSet::new(),
            gaps: BTreeSet::new(),
            jump: vec![None; shape.stations as usize],
            ended: vec![None; shape.stations as usize],
            arrived_ns: None,
            drained_ns: Vec::new(),
            closing_ns: None,
            closed: false,
            counters: vec![Counters::default(); shape.stations as usize],
            blocks: BlockCounters::default(),
            news: 0,
            shape,
        }
    }

    /// One more receiver says by [`Ring::drained`] how far it is; returns its number. Until it has
    /// brought what came before a deadline, the deadline waits, at most once more as long: a
    /// receiver that the machine keeps from running makes no packet late.
    pub fn add_receiver(&mut self) -> usize {
        self.drained_ns.push(0);
        self.drained_ns.len() - 1
    }

    /// All packets that came to this receiver before `then_ns` have been brought to the ring.
    pub fn drained(&mut self, receiver: usize, then_ns: u64) {
        let mark = &mut self.drained_ns[receiver];
        let before = std::mem::replace(mark, then_ns.max(*mark));
        // A rank may wait for just this.
        self.news += u64::from(self.undone > 0 && before != then_ns);
    }

    /// When what was due after `patience_ns` has come to pass: at `due_ns` if everything that came
    /// until then is here.
    fn passes_at(&self, due_ns: u64, patience_ns: u64) -> u64 {
        match self.drained_ns.iter().all(|drained| *drained >= due_ns) {
            true => due_ns,
            false => due_ns.saturating_add(patience_ns),
        }
    }

    /// A packet came: number `packet` of that station since the beginning of time.
    pub fn arrive(&mut self, station: u32, packet: u64, now_ns: u64) -> Arrival {
        let arrival = self.place(station, packet, now_ns);
        let counters = &mut self.counters[station as usize];
        match arrival {
            Arrival::Store { .. } => counters.stored += 1,
            Arrival::Duplicate => counters.duplicate += 1,
            Arrival::Late => counters.late += 1,
            Arrival::Refused => counters.refused += 1,
            Arrival::Outside => counters.outside += 1,
            Arrival::Strange => counters.strange += 1,
            Arrival::Full => return arrival,
        }
        counters.arrived += 1;
        arrival
    }

    fn place(&mut self, station: u32, packet: u64, now_ns: u64) -> Arrival {
        let block = packet / u64::from(self.shape.packets);
        let index = station * self.shape.packets + (packet % u64::from(self.shape.packets)) as u32;
        if self.closed {
            return Arrival::Late;
        }
        if self.first.is_none() {
            self.begin(block);
        }
        let before = self.first.is_some_and(|first| block < first);
        if before || self.limit.is_some_and(|limit| block >= limit) {
            return Arrival::Outside;
        }
        self.arrived_ns = Some(self.arrived_ns.map_or(now_ns, |last| last.max(now_ns)));
        if block >= self.next {
            if !self.is_credible(station, block) {
                return Arrival::Strange;
            }
            if !self.open_through(block, now_ns) {
                return Arrival::Full;
            }
        }
        let at = self.slot_of(block);
        let slot = &mut self.slots[at];
        match slot.block {
            Some(here) if here == block => {}
            // So long ago that its slot has another block now.
            Some(here) if here > block => return Arrival::Late,
            _ => return Arrival::Refused,
        }
        if !slot.seen.set(index as usize) {
            return Arrival::Duplicate;
        }
        if slot.state != State::Open {
            return Arrival::Late;
        }
        slot.present.set(index as usize);
        slot.present_count += 1;
        slot.pins += 1;
        Arrival::Store { slot: at as u32, index }
    }

    fn begin(&mut self, block: u64) {
        self.first = Some(block);
        self.next = block;
        self.limit = self.shape.count.map(|count| block.saturating_add(count));
    }

    /// One packet alone cannot make the ring jump, because a flipped bit would then empty it. A
    /// second packet with the same claim can.
    fn is_credible(&mut self, station: u32, block: u64) -> bool {
        let room = u64::from(self.shape.slots);
        let ahead = block - self.next;
        let claimed = self.jump[station as usize].replace(block);
        if ahead < room {
            self.jump[station as usize] = None;
            return true;
        }
        ahead <= JUMP_BLOCKS_MAX && claimed.is_some_and(|claimed| claimed.abs_diff(block) < room)
    }

    fn slot_of(&self, block: u64) -> usize {
        (block % self.slots.len() as u64) as usize
    }

    /// Begins all blocks up to this one, dropping old ones if that is the policy; false if it has
    /// to wait.
    fn open_through(&mut self, block: u64, now_ns: u64) -> bool {
        while self.next <= block {
            let at = self.slot_of(self.next);
            if self.slots[at].state != State::Done {
                if self.shape.pressure == Pressure::Wait {
                    return false;
                }
                if !self.drop_block(at) {
                    self.drop_unborn(at);
                    continue;
                }
            }
            self.open_next(at, now_ns);
        }
        true
    }

    fn open_next(&mut self, at: usize, now_ns: u64) {
        let slot = &mut self.slots[at];
        slot.block = Some(self.next);
        slot.state = State::Open;
        slot.opened_ns = now_ns;
        slot.present.clear();
        slot.seen.clear();
        slot.present_count = 0;
        self.undone += 1;
        self.next += 1;
        self.news += 1;
    }

    /// Drops the block in this slot, unless somebody is reading it or writing to it.
    fn drop_block(&mut self, at: usize) -> bool {
        let slot = &self.slots[at];
        let (State::Open, 0, Some(block)) = (slot.state, slot.pins, slot.block) else { return false };
        self.settle(at);
        self.blocks.dropped += 1;
        self.account(at, |counters, present| counters.dropped += present);
        self.announce(block);
        true
    }

    /// The next block's slot is taken by one that is being read or written: it is dropped before it
    /// begins.
    fn drop_unborn(&mut self, at: usize) {
        self.overdue.extend(self.slots[at].block);
        self.blocks.dropped += 1;
        for counters in &mut self.counters {
            counters.missing += u64::from(self.shape.packets);
        }
        self.announce(self.next);
        self.next += 1;
        self.news += 1;
    }

    /// The rank whose turn it was will be told.
    fn announce(&mut self, block: u64) {
        match self.shape.deal {
            Deal::Free => self.blocks.gaps_forgotten += 1,
            Deal::Turns => {
                self.gaps.insert(block);
                if self.gaps.len() > GAPS_MAX {
                    self.gaps.pop_first();
                    self.blocks.gaps_forgotten += 1;
                }
            }
        }
    }

    /// The block in this slot is done.
    fn settle(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.state = State::Done;
        self.undone -= 1;
        if let Some(block) = slot.block {
            self.overdue.remove(&block);
        }
    }

    /// Blocks that may not be done, the oldest first.
    fn recent(&self) -> impl Iterator<Item = u64> + use<> {
        let from = self.next.saturating_sub(self.slots.len() as u64);
        let old: Vec<u64> = self.overdue.range(..from).copied().collect();
        old.into_iter().chain(from..self.next)
    }

    fn account(&mut self, at: usize, add: impl Fn(&mut Counters, u64)) {
        let packets = self.shape.packets as usize;
        for (station, counters) in self.counters.iter_mut().enumerate() {
            let present = self.slots[at].present.count(station * packets, packets) as u64;
            add(counters, present);
            counters.missing += packets as u64 - present;
        }
    }

    /// This many packets are stored where [`Ring::arrive`] said.
    pub fn stored(&mut self, slot: u32, count: u32) {
        if self.closed {
            return;
        }
        let slot = &mut self.slots[slot as usize];
        assert!(slot.pins >= count, "more packets stored than were on their way");
        slot.pins -= count;
        let is_full = slot.present_count == self.shape.stations * self.shape.packets;
        self.news += u64::from(is_full && slot.pins == 0);
    }

    /// Changes when a rank that waits should look again because of something that arrived.
    pub fn news(&self) -> u64 {
        self.news
    }

    /// The station says that its packets end before this one.
    pub fn station_ended(&mut self, station: u32, packet_end: u64, now_ns: u64) {
        self.ended[station as usize] = Some(packet_end);
        if self.ended.iter().any(Option::is_none) || self.closing_ns.is_some() {
            return;
        }
        if self.limit.is_none() {
            let packets = self.ended.iter().flatten().max().copied().unwrap_or(0);
            self.set_limit(packets.div_ceil(u64::from(self.shape.packets)));
        }
        self.closing_ns = Some(now_ns);
    }

    /// No more packets are expected: what is there is ready when its deadline passes.
    pub fn finish(&mut self, now_ns: u64) {
        if self.closing_ns.is_none() {
            self.set_limit(self.limit.unwrap_or(self.next));
            self.closing_ns = Some(now_ns);
        }
    }

    /// The end. It is limited, so that a broken clock cannot claim too many blocks.
    fn set_limit(&mut self, limit: u64) {
        if self.first.is_none() {
            self.begin(limit);
        }
        self.limit = Some(limit.clamp(self.next, self.next.saturating_add(JUMP_BLOCKS_MAX)));
    }

    /// A rank is there.
    pub fn join(&mut self, rank: u32) {
        self.members[rank as usize] = Member::Here;
    }

    /// A rank is gone: what it would have got goes to the next one that is not.
    pub fn leave(&mut self, rank: u32) {
        self.members[rank as usize] = Member::Gone;
    }

    /// Whose turn a block is; `None` if all ranks are gone.
    fn owner(&self, block: u64) -> Option<u32> {
        let ranks = self.members.len() as u64;
        let turn = (block % ranks) as u32;
        let ranks = ranks as u32;
        (0..ranks).map(|step| (turn + step) % ranks).find(|&rank| self.members[rank as usize] != Member::Gone)
    }

    fn is_whose(&self, block: u64, rank: u32) -> bool {
        self.shape.deal == Deal::Free || self.owner(block) == Some(rank)
    }

    /// When this block is ready; `None` for now.
    fn ready_at(&self, slot: &Slot) -> Option<u64> {
        let is_full = slot.present_count == self.shape.stations * self.shape.packets;
        let patience_ns = self.shape.deadline_ns;
        (!is_full).then(|| self.passes_at(slot.opened_ns.saturating_add(patience_ns), patience_ns))
    }

    /// What is next for this rank.
    pub fn take(&mut self, rank: u32, now_ns: u64) -> Take {
        self.notice_end(now_ns);
        let gap = self.gaps.iter().copied().find(|&block| self.is_whose(block, rank));
        let mut until_ns: Option<u64> = None;
        for block in self.recent() {
            if gap.is_some_and(|gap| gap < block) {
                break;
            }
            let at = self.slot_of(block);
            let is_here = self.slots[at].block == Some(block) && self.slots[at].state == State::Open;
            if !is_here || !self.is_whose(block, rank) {
                continue;
            }
            let ready_at = self.ready_at(&self.slots[at]);
            if ready_at.is_none_or(|at_ns| at_ns <= now_ns) && self.slots[at].pins == 0 {
                self.slots[at].state = State::Handed;
                return Take::Block { block, slot: at as u32 };
            }
            let at_ns = ready_at.unwrap_or(now_ns).max(now_ns + 1);
            until_ns = Some(until_ns.map_or(at_ns, |until| until.min(at_ns)));
            if self.shape.deal == Deal::Turns {
                break;
            }
        }
        if let Some(block) = gap.filter(|_| until_ns.is_none()) {
            self.gaps.remove(&block);
            self.blocks.gaps += 1;
            return Take::Gap { block };
        }
        // Not before all blocks are done, because the blocks of a rank that dies now go to the
        // others.
        if self.closed || (self.limit == Some(self.next) && self.undone == 0) {
            return Take::End;
        }
        Take::Wait { until_ns: until_ns.or_else(|| self.silence_at()) }
    }

    fn silence_at(&self) -> Option<u64> {
        let is_watched = self.shape.silence_ns > 0 && self.closing_ns.is_none();
        let patience_ns = self.shape.silence_ns;
        let last = self.arrived_ns.filter(|_| is_watched);
        last.map(|last| self.passes_at(last.saturating_add(patience_ns), patience_ns))
    }

    /// After the end, blocks of which nothing came are opened as room comes: they are missing, and
    /// have an owner.
    fn notice_end(&mut self, now_ns: u64) {
        if self.silence_at().is_some_and(|at| at <= now_ns) {
            self.finish(now_ns);
        }
        let (Some(closing_ns), Some(limit)) = (self.closing_ns, self.limit) else { return };
        while self.first.is_some() && self.next < limit && !self.closed {
            let at = self.slot_of(self.next);
            if self.slots[at].state != State::Done {
                return;
            }
            self.open_next(at, closing_ns);
        }
    }

    /// A block that was handed out is no longer being read: the rank has it, or it is dealt again.
    pub fn returned(&mut self, block: u64, was_received: bool) {
        let at = self.slot_of(block);
        let slot = &mut self.slots[at];
        assert!(slot.block == Some(block) && slot.state == State::Handed, "block {block} was not handed out");
        if !was_received && !self.closed {
            slot.state = State::Open;
            self.blocks.redealt += 1;
            return;
        }
        let is_full = slot.present_count == self.shape.stations * self.shape.packets;
        self.settle(at);
        if was_received {
            self.blocks.delivered += 1;
            self.blocks.incomplete += u64::from(!is_full);
            self.account(at, |counters, present| counters.delivered += present);
        } else {
            self.blocks.dropped += 1;
            self.account(at, |counters, present| counters.dropped += present);
        }
    }

    /// Ends everything: nothing is stored or handed out any more; what nobody reads is dropped.
    pub fn close(&mut self) {
        for at in 0..self.slots.len() {
            // Packets that receivers still hold arrive in memory that nobody reads.
            self.slots[at].pins = 0;
            if self.slots[at].state == State::Open {
                self.settle(at);
                self.blocks.dropped += 1;
                self.account(at, |counters, present| counters.dropped += present);
            }
        }
        self.gaps.clear();
        self.closed = true;
    }

    /// Which packets of a handed-out block are there: one bit each, station · P + packet, the
    /// lowest bit first.
    pub fn present(&self, slot: u32) -> &Bits {
        &self.slots[slot as usize].present
    }

    /// The measures.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Per station.
    pub fn counters(&self) -> &[Counters] {
        &self.counters
    }

    /// Per station, and whether it has said that it ended.
    pub fn station_counters(&self) -> Vec<(Counters, bool)> {
        self.counters.iter().copied().zip(self.ended.iter().map(Option::is_some)).collect()
    }

    /// Of blocks.
    pub fn block_counters(&self) -> BlockCounters {
        self.blocks
    }

    /// The first block, the oldest that is not done, one past the newest, one past the last (or
    /// `u64::MAX`).
    pub fn window(&self) -> (u64, u64, u64, u64) {
        let is_undone = |block: &u64| {
            let slot = &self.slots[self.slot_of(*block)];
            slot.block == Some(*block) && slot.state != State::Done
        };
        let base = self.recent().find(is_undone).unwrap_or(self.next);
        (self.first.unwrap_or(0), base, self.next, self.limit.unwrap_or(u64::MAX))
    }

    /// Packets of a station that are in blocks not done yet.
    fn held(&self, station: usize) -> u64 {
        let packets = self.shape.packets as usize;
        let undone = self.slots.iter().filter(|slot| slot.state != State::Done);
        undone.map(|slot| slot.present.count(station * packets, packets) as u64).sum()
    }

    /// Whether the counters add up; the first sum that does not.
    pub fn check(&self) -> Result<(), String> {
        let done = self.blocks.delivered + self.blocks.dropped;
        for (station, c) in self.counters.iter().enumerate() {
            let sums = [
                ("arrived", c.arrived, c.stored + c.duplicate + c.late + c.refused + c.outside + c.strange),
                ("stored", c.stored, c.delivered + c.dropped + self.held(station)),
                ("done", done * u64::from(self.shape.packets), c.delivered + c.dropped + c.missing),
            ];
            for (what, is, should) in sums {
                if is != should {
                    return Err(format!("station {station}: {what} {is}, parts {should}: {c:?}"));
                }
            }
        }
        Ok(())
    }
}
