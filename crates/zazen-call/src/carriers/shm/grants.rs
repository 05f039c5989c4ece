//! Who gets pool memory, and when, as pure state machines: the daemon's budget, and which parts of
//! one region are taken. Asks are granted first come first served, and in turn between clients.
//!
//! A *transfer* is a call that streams through granted memory. Only a limited number run at a time,
//! and the others wait for a place, so that clients get equal shares wherever the kernel runs
//! them (ZOID's rendezvous, PPoPP'08 §3).
//!
//! Invariants: never more is granted than the budget. Nobody overtakes: small asks do not starve a
//! large one. Each waiting client gets one grant before any gets a second. What a client
//! held is free again when the client is gone. A transfer that takes too long keeps its memory, but
//! not its place.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A transfer that takes longer than this does not count as running any more, so a slow client
/// holds up nobody.
pub(crate) const TRANSFER_MAX: Duration = Duration::from_millis(20);

/// The daemon's budget. The user of this type chooses the numbers of clients and tickets (tickets
/// are unique) and the moment from which times count.
#[derive(Debug)]
pub(crate) struct Budget {
    free: u64,
    transfers_max: usize,
    /// Running transfers, the oldest first: each ticket, and when it began.
    under_way: VecDeque<(u64, Duration)>,
    /// Asks that wait, by client, each client's oldest first.
    waiting: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// Clients that wait, the next one to be served first.
    clients: VecDeque<u64>,
}

impl Budget {
    pub(crate) fn new(bytes: u64, transfers_max: usize) -> Budget {
        Budget {
            free: bytes,
            transfers_max,
            under_way: VecDeque::new(),
            waiting: BTreeMap::new(),
            clients: VecDeque::new(),
        }
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Bytes that the next ask wants; 0 if nobody waits.
    fn next_bytes(&self) -> u64 {
        let queue = self.clients.front().and_then(|client| self.waiting.get(client));
        queue.and_then(|queue| queue.front()).map_or(0, |(_, bytes)| *bytes)
    }

    /// Whether the asks wait for memory rather than for a place.
    pub(crate) fn is_short(&self) -> bool {
        self.next_bytes() > self.free
    }

    /// Takes `bytes` to keep, if they are free beside what the next transfer waits for.
    pub(crate) fn try_take(&mut self, bytes: u64) -> bool {
        let can = self.next_bytes().saturating_add(bytes) <= self.free;
        if can {
            self.free -= bytes;
        }
        can
    }

    /// Begins transfer `ticket` with `bytes` at once, if nobody waits, the bytes are free, and
    /// there is a place.
    pub(crate) fn try_begin(&mut self, ticket: u64, bytes: u64, now: Duration) -> bool {
        let can = self.clients.is_empty() && bytes <= self.free && self.has_place(now);
        if can {
            self.free -= bytes;
            self.under_way.push_back((ticket, now));
        }
        can
    }

    fn has_place(&mut self, now: Duration) -> bool {
        while self.under_way.front().is_some_and(|(_, since)| now.saturating_sub(*since) >= TRANSFER_MAX) {
            self.under_way.pop_front();
        }
        self.under_way.len() < self.transfers_max
    }

    /// Appends an ask to its client's queue; [`Budget::serve`] says when it is granted.
    pub(crate) fn ask(&mut self, client: u64, ticket: u64, bytes: u64) {
        let queue = self.waiting.entry(client).or_default();
        if queue.is_empty() {
            self.clients.push_back(client);
        }
        queue.push_back((ticket, bytes));
    }

    /// Begins all transfers that can begin now; their tickets, in order.
    pub(crate) fn serve(&mut self, now: Duration) -> Vec<u64> {
        let mut granted = Vec::new();
        while let Some(client) = self.clients.front().copied() {
            let Some(queue) = self.waiting.get_mut(&client) else {
                self.clients.pop_front();
                continue;
            };
            let Some((ticket, bytes)) = queue.front().copied() else {
                self.clients.pop_front();
                self.waiting.remove(&client);
                continue;
            };
            if bytes > self.free || !self.has_place(now) {
                break;
            }
            self.free -= bytes;
            self.under_way.push_back((ticket, now));
            granted.push(ticket);
            self.clients.pop_front();
            // `has_place` needed all of the budget meanwhile.
            if let Some(queue) = self.waiting.get_mut(&client) {
                queue.pop_front();
                if queue.is_empty() {
                    self.waiting.remove(&client);
                } else {
                    self.clients.push_back(client);
                }
            }
        }
        granted
    }

    /// Drops an ask that was not granted yet.
    pub(crate) fn cancel(&mut self, client: u64, ticket: u64) {
        if let Some(queue) = self.waiting.get_mut(&client) {
            queue.retain(|(waiting, _)| *waiting != ticket);
            if queue.is_empty() {
                self.waiting.remove(&client);
                self.clients.retain(|waiting| *waiting != client);
            }
        }
    }

    /// All bytes of transfer `ticket` have moved; its memory is still taken.
    pub(crate) fn end_transfer(&mut self, ticket: u64) {
        self.under_way.retain(|(under_way, _)| *under_way != ticket);
    }

    /// Granted bytes come back.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.free += bytes;
    }
}

/// Which units of one region's pool are taken. The first fit is taken, so that the same memory is
/// used again.
#[derive(Debug)]
pub(crate) struct Units {
    taken: Vec<bool>,
}

impl Units {
    pub(crate) fn new(count: usize) -> Units {
        Units { taken: vec![false; count] }
    }

    /// Takes `count` units in a row; the number of the first.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        let mut run = 0;
        for at in 0..self.taken.len() {
            run = if self.taken[at] { 0 } else { run + 1 };
            if run == count {
                let first = at + 1 - count;
                self.taken[first..=at].fill(true);
                return Some(first);
            }
        }
        None
    }

    /// Gives back `count` units from `first` on.
    pub(crate) fn give_back(&mut self, first: usize, count: usize) {
        self.taken[first..first + count].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any number of transfers, at no time in particular.
    const MANY: usize = usize::MAX;
    const NOW: Duration = Duration::ZERO;

    #[test]
    fn grants_go_in_turn_between_clients_and_in_order_within() {
        let mut budget = Budget::new(10, MANY);
        assert!(budget.try_take(10));
        // Client 1 floods; 2 and 3 come later and ask once each.
        for ticket in 0..5 {
            budget.ask(1, ticket, 5);
        }
        budget.ask(2, 20, 5);
        budget.ask(3, 30, 5);
        assert!(!budget.try_begin(99, 0, NOW), "nobody overtakes those that wait");
        let mut order = Vec::new();
        for _ in 0..7 {
            budget.give_back(5);
            order.extend(budget.serve(NOW));
        }
        assert_eq!(order, [0, 20, 30, 1, 2, 3, 4]);
    }

    #[test]
    fn a_large_ask_is_not_starved() {
        let mut budget = Budget::new(10, MANY);
        assert!(budget.try_take(6));
        budget.ask(1, 1, 10);
        budget.ask(2, 2, 1);
        assert!(budget.serve(NOW).is_empty());
        budget.give_back(6);
        assert_eq!(budget.serve(NOW), [1]);
        budget.give_back(10);
        assert_eq!(budget.serve(NOW), [2]);
        assert_eq!(budget.free(), 9);
    }

    #[test]
    fn cancelled_asks_hold_nobody_up() {
        let mut budget = Budget::new(4, MANY);
        budget.ask(1, 1, 100);
        budget.ask(2, 2, 4);
        assert!(budget.serve(NOW).is_empty());
        budget.cancel(1, 1);
        budget.cancel(1, 1);
        assert_eq!(budget.serve(NOW), [2]);
    }

    /// Sixty-four greedy clients on a small budget: nobody is ever two grants ahead of a client
    /// that waits.
    #[test]
    fn greedy_clients_get_the_same() {
        let mut budget = Budget::new(8, MANY);
        let mut held = VecDeque::new();
        let mut got = [0u64; 64];
        for client in 0..64u64 {
            for nth in 0..100 {
                budget.ask(client, client * 1000 + nth, 1 + (client + nth) % 4);
            }
        }
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        while got.iter().sum::<u64>() < 6400 {
            for ticket in budget.serve(NOW) {
                got[(ticket / 1000) as usize] += 1;
                held.push_back(1 + (ticket / 1000 + ticket % 1000) % 4);
            }
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            assert!(most - least <= 1, "{got:?}");
            assert!(held.iter().sum::<u64>() <= 8);
            // Somebody is done, whoever.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let index = (random % held.len() as u64) as usize;
            budget.give_back(held.remove(index).unwrap());
        }
    }

    #[test]
    fn transfers_wait_for_their_turn_and_memory_that_is_kept_does_not() {
        let mut budget = Budget::new(100, 2);
        assert!(budget.try_begin(1, 10, NOW) && budget.try_begin(2, 10, NOW));
        assert!(!budget.try_begin(3, 10, NOW), "two are under way");
        budget.ask(3, 3, 10);
        budget.ask(4, 4, 10);
        assert!(budget.serve(NOW).is_empty() && !budget.is_short());
        assert!(budget.try_take(60) && !budget.try_take(11), "what the next transfer needs stays");
        budget.end_transfer(1);
        budget.end_transfer(1);
        assert_eq!(budget.serve(NOW), [3], "its place is free, though its memory is still taken");
        assert_eq!(budget.free(), 10);
        budget.give_back(10);
        budget.end_transfer(2);
        assert_eq!(budget.serve(NOW), [4]);
    }

    #[test]
    fn who_dawdles_loses_its_place_and_nothing_else() {
        let mut budget = Budget::new(100, 1);
        assert!(budget.try_begin(1, 10, NOW));
        budget.ask(2, 2, 10);
        budget.ask(3, 3, 10);
        let almost = TRANSFER_MAX - Duration::from_nanos(1);
        assert!(budget.serve(almost).is_empty());
        assert_eq!(budget.serve(TRANSFER_MAX), [2], "one place, one transfer");
        assert_eq!(budget.free(), 80);
        // The one that dawdled ends: that makes no second place.
        budget.end_transfer(1);
        assert!(budget.serve(TRANSFER_MAX).is_empty());
        assert_eq!(budget.serve(2 * TRANSFER_MAX), [3]);
    }

    #[test]
    fn units_are_taken_once_and_used_again() {
        let mut units = Units::new(10);
        assert_eq!((units.take(4), units.take(4), units.take(4)), (Some(0), Some(4), None));
        units.give_back(1, 2);
        assert_eq!((units.take(3), units.take(2), units.take(1)), (None, Some(1), Some(8)));
    }
}
