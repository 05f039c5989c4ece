//! The event queue: events in one total order, by time, then node, then order of scheduling.
//!
//! A hierarchical timing wheel of 8 levels with 256 slots each holds the far events. The nearest
//! slot is sorted and handed out. Each event moves a few times in all, whatever the number of
//! pending events, and the memory is touched in order. So a run with millions of pending events
//! costs about as much per event as a small one.
//!
//! Invariants: an event never comes out before an earlier one; two queues that were given the same
//! events in the same order give them back in the same order, byte for byte.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Nodes that an event can be for. The topmost number is free for events that come last at a time.
pub const NODES_MAX: u32 = (1 << NODE_BITS) - 1;
/// The node of events that come after all others of the same time.
pub const LAST: u32 = NODES_MAX;

const NODE_BITS: u32 = 26;
const SEQ_BITS: u32 = 64 - NODE_BITS;
const LEVELS: usize = 8;
const SLOTS: usize = 256;
/// A slot with more events than this is split before it is sorted.
const SORTED_MAX: usize = 2048;
/// Events of a block: of the pieces of memory that slots are made of.
const BLOCK: usize = 64;

#[derive(Clone, Copy)]
struct Scheduled<E> {
    /// One more than the event's time, so that no entry lies at the wheel's start.
    time: u64,
    /// Node and number in the order of scheduling.
    order: u64,
    event: E,
}

impl<E> Scheduled<E> {
    fn key(&self) -> (u64, u64) {
        (self.time, self.order)
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<E> Eq for Scheduled<E> {}
impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Scheduled<E> {
    /// The earliest is the greatest: std's heap hands out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// An event as it comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due<E> {
    /// When it happens, in picoseconds.
    pub time_ps: u64,
    /// The node that it is for.
    pub node: u32,
    /// What happens.
    pub event: E,
}

/// Events of one slot, in the order in which they came. Its blocks are a list.
#[derive(Clone, Copy, Default)]
struct Slot {
    first: u32,
    last: u32,
    len: usize,
}

/// The memory of all slots. It does not move when events do, and a block that was read is the next
/// one that is filled: the processor's caches have it.
struct Blocks<E> {
    entries: Vec<Scheduled<E>>,
    /// By block: the next one of its slot.
    next: Vec<u32>,
    unused: Vec<u32>,
}

impl<E: Copy> Blocks<E> {
    fn push(&mut self, slot: &mut Slot, entry: Scheduled<E>) {
        let at = slot.len % BLOCK;
        if at == 0 {
            let block = self.fresh(entry);
            match slot.len {
                0 => slot.first = block,
                _ => self.next[slot.last as usize] = block,
            }
            slot.last = block;
        }
        self.entries[slot.last as usize * BLOCK + at] = entry;
        slot.len += 1;
    }

    fn fresh(&mut self, entry: Scheduled<E>) -> u32 {
        if let Some(block) = self.unused.pop() {
            return block;
        }
        if self.entries.len() == self.entries.capacity() {
            // Twice as much each time would be too much at the end.
            let more = (self.entries.len() / 4).next_multiple_of(BLOCK).max(16 * BLOCK);
            self.entries.reserve_exact(more);
        }
        self.entries.resize(self.entries.len() + BLOCK, entry);
        self.next.push(0);
        self.next.len() as u32 - 1
    }

    /// The slot's first block and the number of its events, if there is one; the slot is shorter
    /// then. The block is to be given back once it was read.
    fn take(&self, slot: &mut Slot) -> Option<(u32, usize)> {
        let (block, count) = (slot.first, slot.len.min(BLOCK));
        slot.len -= count;
        slot.first = *self.next.get(block as usize)?;
        (count > 0).then_some((block, count))
    }
}

/// Pending events. Times are picoseconds. Not for several threads.
pub struct Queue<E> {
    /// Number of the next event in the order of scheduling.
    next: u64,
    len: usize,
    len_max: usize,
    /// The nearest events, the first one at the end. None is later than `base`.
    near: Vec<Scheduled<E>>,
    /// Events that were scheduled since, and are not later than `base`.
    fresh: BinaryHeap<Scheduled<E>>,
    /// All events of the wheel are later than this. Each is at the level of the highest byte in
    /// which its time differs from `base`, in the slot that this byte of its time names.
    base: u64,
    slots: Vec<Slot>,
    blocks: Blocks<E>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    last: u64,
}

impl<E: Copy> Default for Queue<E> {
    fn default() -> Self {
        Queue::new()
    }
}

impl<E: Copy> Queue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Queue<E> {
        Queue {
            next: 0,
            len: 0,
            len_max: 0,
            near: Vec::new(),
            fresh: BinaryHeap::new(),
            base: 0,
            slots: vec![Slot::default(); LEVELS * SLOTS],
            blocks: Blocks { entries: Vec::new(), next: Vec::new(), unused: Vec::new() },
            occupied: [[0; SLOTS / 64]; LEVELS],
            last: 0,
        }
    }

    /// Schedules `event` for `node` at `time_ps`.
    ///
    /// The caller guarantees that `time_ps` is not before the last event that came out, and that
    /// `node` is at most [`NODES_MAX`].
    pub fn push(&mut self, time_ps: u64, node: u32, event: E) {
        // Beyond what a run may reach: such an event only ends the run.
        let time = time_ps.saturating_add(1);
        assert!(time >= self.last, "an event was scheduled before the present");
        debug_assert!(node <= NODES_MAX && self.next < 1 << SEQ_BITS);
        let order = u64::from(node) << SEQ_BITS | self.next;
        self.next += 1;
        self.len += 1;
        self.len_max = self.len_max.max(self.len);
        self.place(Scheduled { time, order, event });
    }

    fn place(&mut self, entry: Scheduled<E>) {
        if entry.time <= self.base {
            self.fresh.push(entry);
        } else {
            let level = (63 - (entry.time ^ self.base).leading_zeros() as usize) / 8;
            let slot = (entry.time >> (8 * level)) as usize & (SLOTS - 1);
            self.occupied[level][slot / 64] |= 1 << (slot % 64);
            self.blocks.push(&mut self.slots[level * SLOTS + slot], entry);
        }
    }

    /// The next event, if there is one.
    pub fn pop(&mut self) -> Option<Due<E>> {
        loop {
            let near = self.near.last().map(Scheduled::key);
            let fresh = self.fresh.peek().map(Scheduled::key);
            let from_near = match (near, fresh) {
                (Some(near), Some(fresh)) => near < fresh,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) if self.refill() => continue,
                (None, None) => return None,
            };
            let entry = if from_near { self.near.pop() } else { self.fresh.pop() }?;
            self.len -= 1;
            self.last = entry.time;
            let node = (entry.order >> SEQ_BITS) as u32;
            return Some(Due { time_ps: entry.time - 1, node, event: entry.event });
        }
    }

    /// The event that comes out after `distance` others, and its node, if that is certain enough
    /// to prepare for: events that are scheduled meanwhile may come first.
    #[inline]
    pub fn ahead(&self, distance: usize) -> Option<(u32, E)> {
        let at = self.near.len().checked_sub(distance + 1)?;
        let entry = &self.near[at];
        Some(((entry.order >> SEQ_BITS) as u32, entry.event))
    }

    /// Takes events of the first occupied slot as the near ones. False if the wheel is empty.
    fn refill(&mut self) -> bool {
        let Some((level, slot)) = self.first_slot() else { return false };
        let shift = 8 * level as u32;
        let below = (1_u64 << shift) - 1;
        // The times of the slot begin here: the bytes above as in `base`, the bytes below 0.
        let above = if level + 1 == LEVELS { 0 } else { self.base >> (shift + 8) << (shift + 8) };
        let begin = above | (slot as u64) << shift;
        self.occupied[level][slot / 64] &= !(1 << (slot % 64));
        let mut slot = std::mem::take(&mut self.slots[level * SLOTS + slot]);
        let is_split = level > 0 && slot.len > SORTED_MAX;
        self.base = if is_split { begin } else { begin | below };
        while let Some((block, count)) = self.blocks.take(&mut slot) {
            let entries = block as usize * BLOCK..block as usize * BLOCK + count;
            if is_split {
                entries.for_each(|at| self.place(self.blocks.entries[at]));
            } else {
                self.near.extend_from_slice(&self.blocks.entries[entries]);
            }
            self.blocks.unused.push(block);
        }
        if !is_split {
            self.near.sort_unstable_by_key(|entry| Reverse(entry.key()));
        }
        true
    }

    fn first_slot(&self) -> Option<(usize, usize)> {
        self.occupied.iter().enumerate().find_map(|(level, words)| {
            let (index, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
            Some((level, index * 64 + word.trailing_zeros() as usize))
        })
    }

    /// Pending events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most events that were pending at once.
    pub fn len_max(&self) -> usize {
        self.len_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The queue against a sorted map, with pushes between pops, as a simulation does it.
    fn check(steps: &[(u64, u32, u8)]) {
        let mut queue = Queue::new();
        let mut oracle = BTreeMap::new();
        let mut now = 0;
        for (number, (delay, node, pops)) in steps.iter().enumerate() {
            let number = number as u64;
            let time = now + delay;
            queue.push(time, *node, number);
            oracle.insert((time, *node, number), ());
            for _ in 0..*pops {
                let expected = oracle.pop_first().map(|((time, node, number), ())| (time, node, number));
                let found = queue.pop().map(|due| (due.time_ps, due.node, due.event));
                assert_eq!(found, expected);
                now = found.map_or(now, |(time, _, _)| time);
            }
        }
        while let Some(due) = queue.pop() {
            let expected = oracle.pop_first().map(|(key, ())| key);
            assert_eq!(Some((due.time_ps, due.node, due.event)), expected);
        }
        assert!(oracle.is_empty() && queue.is_empty());
    }

    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..4_u64, 0..600_u64, 0..1_u64 << 20, 0..1_u64 << 52]
    }

    proptest! {
        #[test]
        fn gives_events_back_in_total_order(
            steps in prop::collection::vec((delay(), 0..5_u32, 0..3_u8), 0..3000)
        ) {
            check(&steps);
        }
    }

    #[test]
    fn many_events_of_one_time_come_by_node() {
        let steps: Vec<(u64, u32, u8)> = (0..5000).map(|number| (77, 5000 - number, 0)).collect();
        check(&steps);
    }

    #[test]
    #[should_panic(expected = "before the present")]
    fn the_past_is_refused() {
        let mut queue = Queue::new();
        queue.push(10, 0, ());
        queue.pop();
        queue.push(9, 0, ());
    }
}
