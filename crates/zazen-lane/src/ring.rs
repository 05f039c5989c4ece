//! The counters of a ring, as pure state machines: what may be published, what may be taken, what
//! is a lie.
//!
//! Each end keeps its own counter in private memory and only publishes it; the other's is read from
//! shared memory and believed only within what can be. Counters count slots ever published or taken
//! and wrap.

use crate::Broken;

const LIE: Broken = Broken("a counter of its ring went where it can't be");

/// The end that publishes.
#[derive(Clone, Copy, Debug)]
pub struct Producer {
    slots: u32,
    tail: u32,
    /// The other end's counter as last believed.
    head: u32,
}

impl Producer {
    /// `slots` is a power of two.
    #[inline]
    pub fn new(slots: u32) -> Producer {
        Producer { slots, tail: 0, head: 0 }
    }

    /// Slots that may be written as far as is known already. It does not look at the consumer's
    /// counter, whose cache line would have to travel between the two ends' CPUs.
    #[inline]
    pub fn room_known(&self) -> u32 {
        self.slots - self.tail.wrapping_sub(self.head)
    }

    /// Slots that may be written, given the consumer's counter as it reads now.
    #[inline]
    pub fn room(&mut self, head_now: u32) -> Result<u32, Broken> {
        // It only moves forward, and never past what was published.
        if head_now.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
            return Err(LIE);
        }
        self.head = head_now;
        Ok(self.slots - self.tail.wrapping_sub(head_now))
    }

    /// Where the `nth` slot behind those published is, as an index.
    #[inline]
    pub fn index(&self, nth: u32) -> u32 {
        self.tail.wrapping_add(nth) & (self.slots - 1)
    }

    /// `count` more are written; returns the counter to publish.
    #[inline]
    pub fn publish(&mut self, count: u32) -> u32 {
        debug_assert!(self.tail.wrapping_add(count).wrapping_sub(self.head) <= self.slots);
        self.tail = self.tail.wrapping_add(count);
        self.tail
    }
}

/// The end that takes.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    slots: u32,
    head: u32,
    /// The other end's counter as last believed.
    tail: u32,
}

impl Consumer {
    /// `slots` is a power of two.
    #[inline]
    pub fn new(slots: u32) -> Consumer {
        Consumer { slots, head: 0, tail: 0 }
    }

    /// Slots that may be read, given the producer's counter as it reads now.
    #[inline]
    pub fn available(&mut self, tail_now: u32) -> Result<u32, Broken> {
        let (claimed, known) = (tail_now.wrapping_sub(self.head), self.tail.wrapping_sub(self.head));
        if claimed > self.slots || claimed < known {
            return Err(LIE);
        }
        self.tail = tail_now;
        Ok(claimed)
    }

    /// Where the `nth` slot of those available is, as an index.
    #[inline]
    pub fn index(&self, nth: u32) -> u32 {
        self.head.wrapping_add(nth) & (self.slots - 1)
    }

    /// `count` of those available are read; returns the counter to publish.
    #[inline]
    pub fn take(&mut self, count: u32) -> u32 {
        debug_assert!(count <= self.tail.wrapping_sub(self.head));
        self.head = self.head.wrapping_add(count);
        self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u32) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 32) as u32) % bound
        }
    }

    /// A ring as two processes see it: slots, and counters of which either end may still read an
    /// older value.
    struct Model {
        slots: Vec<u64>,
        tails: Vec<u32>,
        heads: Vec<u32>,
    }

    /// Any value that was published since the last one that was seen: memory may be slow, but does
    /// not go back.
    fn seen(published: &[u32], last: &mut usize, random: &mut Random) -> u32 {
        *last += random.below((published.len() - *last) as u32) as usize;
        published[*last]
    }

    #[test]
    fn whatever_the_interleaving_all_arrives_once_in_order() {
        for seed in 1..200u64 {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let slots = 1u32 << (1 + random.below(5));
            // The counters wrap in the middle of it.
            let start = u32::MAX - random.below(100);
            let mut producer = Producer { slots, tail: start, head: start };
            let mut consumer = Consumer { slots, head: start, tail: start };
            let mut model =
                Model { slots: vec![u64::MAX; slots as usize], tails: vec![start], heads: vec![start] };
            let (mut tail_seen, mut head_seen) = (0, 0);
            let (mut sent, mut got) = (0u64, 0u64);
            while got < 500 {
                if random.below(2) == 0 {
                    let now = seen(&model.heads, &mut head_seen, &mut random);
                    let known = random.below(2) == 0;
                    let room = if known { producer.room_known() } else { producer.room(now).unwrap() };
                    let count = random.below(room + 1);
                    for nth in 0..count {
                        model.slots[producer.index(nth) as usize] = sent;
                        sent += 1;
                    }
                    model.tails.push(producer.publish(count));
                } else {
                    let ready = consumer.available(seen(&model.tails, &mut tail_seen, &mut random)).unwrap();
                    let count = random.below(ready + 1);
                    for nth in 0..count {
                        assert_eq!(model.slots[consumer.index(nth) as usize], got, "seed {seed}");
                        got += 1;
                    }
                    model.heads.push(consumer.take(count));
                }
                assert!(sent - got <= u64::from(slots));
            }
        }
    }

    /// Whatever the other end writes into its counter, what is believed stays within the ring, and
    /// the own counter moves only by what was done.
    #[test]
    fn lies_are_found_or_harmless() {
        for seed in 1..2000u64 {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let slots = 8;
            let start = random.below(u32::MAX);
            let mut producer = Producer { slots, tail: start, head: start };
            let mut consumer = Consumer { slots, head: start, tail: start };
            let (mut published, mut taken) = (start, start);
            for _ in 0..50 {
                let near = random.below(32).wrapping_sub(16);
                let lie =
                    if random.below(4) == 0 { random.below(u32::MAX) } else { published.wrapping_add(near) };
                if let Ok(room) = producer.room(lie) {
                    assert!(room <= slots, "seed {seed}");
                    published = producer.publish(random.below(room + 1));
                }
                let lie =
                    if random.below(4) == 0 { random.below(u32::MAX) } else { taken.wrapping_add(near) };
                if let Ok(ready) = consumer.available(lie) {
                    assert!(ready <= slots, "seed {seed}");
                    let count = random.below(ready + 1);
                    taken = taken.wrapping_add(count);
                    assert_eq!(consumer.take(count), taken);
                }
            }
        }
    }

    /// Going to sleep against waking, every interleaving: what the ring's users do between counter
    /// and sleep word (see `port.rs`), one atomic step at a time.
    #[test]
    fn no_wake_is_lost_in_any_interleaving() {
        /// The sleeper: 0 says that it sleeps, 1 looks whether something came, 2 sleeps, 3 is up
        /// and has seen it. The poster: 0 publishes, 1 looks at the word, 2 wakes, 3 is done.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        struct State {
            sleeper: u8,
            poster: u8,
            published: bool,
            asleep: bool,
        }
        let step_sleeper = |mut state: State| {
            match state.sleeper {
                0 => (state.asleep, state.sleeper) = (true, 1),
                1 if state.published => (state.asleep, state.sleeper) = (false, 3),
                1 => state.sleeper = 2,
                // The kernel sleeps only while the word still says so.
                2 if !state.asleep => state.sleeper = 0,
                _ => return None,
            }
            Some(state)
        };
        let step_poster = |mut state: State| {
            match state.poster {
                0 => (state.published, state.poster) = (true, 1),
                1 => state.poster = if state.asleep { 2 } else { 3 },
                2 => (state.asleep, state.poster) = (false, 3),
                _ => return None,
            }
            Some(state)
        };
        let mut open = vec![State { sleeper: 0, poster: 0, published: false, asleep: false }];
        let mut known = std::collections::HashSet::new();
        while let Some(state) = open.pop() {
            let next: Vec<State> = step_sleeper(state).into_iter().chain(step_poster(state)).collect();
            // Where nothing can move any more, the sleeper has seen what was posted.
            assert!(!next.is_empty() || (state.sleeper, state.poster) == (3, 3));
            open.extend(next.into_iter().filter(|state| known.insert(*state)));
        }
        assert!(known.len() > 8);
    }
}
