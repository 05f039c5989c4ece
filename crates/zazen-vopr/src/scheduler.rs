//! Events in one total order: by time, then by the order in which they were scheduled.

use std::collections::BTreeMap;

/// Nanoseconds of a millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// What will happen, and when.
pub(crate) struct Scheduler<E> {
    now_ns: u64,
    next: u64,
    queue: BTreeMap<(u64, u64), E>,
}

impl<E> Scheduler<E> {
    pub(crate) fn new() -> Scheduler<E> {
        Scheduler { now_ns: 0, next: 0, queue: BTreeMap::new() }
    }

    /// The time of the event under way.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Schedules `event`; never before now.
    pub(crate) fn at(&mut self, time_ns: u64, event: E) {
        self.queue.insert((time_ns.max(self.now_ns), self.next), event);
        self.next += 1;
    }

    /// Schedules `event` in `delay_ns`.
    pub(crate) fn after(&mut self, delay_ns: u64, event: E) {
        self.at(self.now_ns.saturating_add(delay_ns), event);
    }

    /// The next event; time moves on to it.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let ((time_ns, _), event) = self.queue.pop_first()?;
        self.now_ns = time_ns;
        Some(event)
    }
}

/// FNV-1a over words: equal runs have equal digests.
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    pub(crate) fn digest(&self) -> u64 {
        self.0
    }
}
