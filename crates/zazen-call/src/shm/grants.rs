//! Who gets pool memory when, as pure state machines: a daemon's budget, first come first served and in turn between
//! clients; and which parts of one region are taken.
//!
//! Invariants: never more is granted than the budget; nobody overtakes (a large ask is not starved by small ones);
//! of clients that wait, each gets one grant before any gets a second; what a client held is back when it is gone.

use std::collections::{BTreeMap, VecDeque};

/// The daemon's budget. Clients and tickets are numbers of the user's choice, tickets unique.
#[derive(Debug)]
pub(crate) struct Budget {
    free: u64,
    /// Asks that wait, by client, the oldest first.
    waiting: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// Clients that wait, the next one first.
    turns: VecDeque<u64>,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget { free: bytes, waiting: BTreeMap::new(), turns: VecDeque::new() }
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes `bytes` at once if nobody waits and there are so many.
    pub(crate) fn try_take(&mut self, bytes: u64) -> bool {
        let can = self.turns.is_empty() && bytes <= self.free;
        if can {
            self.free -= bytes;
        }
        can
    }

    /// Puts an ask at the end of its client's queue; [`Budget::serve`] says when it is granted.
    pub(crate) fn ask(&mut self, client: u64, ticket: u64, bytes: u64) {
        let queue = self.waiting.entry(client).or_default();
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        queue.push_back((ticket, bytes));
    }

    /// Grants what can be granted now; the tickets, in order.
    pub(crate) fn serve(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        while let Some(client) = self.turns.front().copied() {
            let Some(queue) = self.waiting.get_mut(&client) else {
                self.turns.pop_front();
                continue;
            };
            let Some((ticket, bytes)) = queue.front().copied() else {
                self.turns.pop_front();
                self.waiting.remove(&client);
                continue;
            };
            if bytes > self.free {
                break;
            }
            self.free -= bytes;
            granted.push(ticket);
            queue.pop_front();
            self.turns.pop_front();
            if queue.is_empty() {
                self.waiting.remove(&client);
            } else {
                self.turns.push_back(client);
            }
        }
        granted
    }

    /// An ask is given up before it was granted.
    pub(crate) fn cancel(&mut self, client: u64, ticket: u64) {
        if let Some(queue) = self.waiting.get_mut(&client) {
            queue.retain(|(waiting, _)| *waiting != ticket);
            if queue.is_empty() {
                self.waiting.remove(&client);
                self.turns.retain(|waiting| *waiting != client);
            }
        }
    }

    /// Granted bytes come back.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.free += bytes;
    }
}

/// Which units of one region's pool are taken: first fit, so that the same memory is used again and again.
#[derive(Debug)]
pub(crate) struct Units {
    taken: Vec<bool>,
}

impl Units {
    pub(crate) fn new(count: usize) -> Units {
        Units { taken: vec![false; count] }
    }

    /// Takes `count` units in a row; the first one's number.
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

    /// Gives `count` units from `first` on back.
    pub(crate) fn give_back(&mut self, first: usize, count: usize) {
        self.taken[first..first + count].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_go_in_turn_between_clients_and_in_order_within() {
        let mut budget = Budget::new(10);
        assert!(budget.try_take(10));
        // Client 1 floods; 2 and 3 come later and ask once each.
        for ticket in 0..5 {
            budget.ask(1, ticket, 5);
        }
        budget.ask(2, 20, 5);
        budget.ask(3, 30, 5);
        assert!(!budget.try_take(0), "nobody overtakes those that wait");
        let mut order = Vec::new();
        for _ in 0..7 {
            budget.give_back(5);
            order.extend(budget.serve());
        }
        assert_eq!(order, [0, 20, 30, 1, 2, 3, 4]);
    }

    #[test]
    fn a_large_ask_is_not_starved() {
        let mut budget = Budget::new(10);
        assert!(budget.try_take(6));
        budget.ask(1, 1, 10);
        budget.ask(2, 2, 1);
        assert!(budget.serve().is_empty());
        budget.give_back(6);
        assert_eq!(budget.serve(), [1]);
        budget.give_back(10);
        assert_eq!(budget.serve(), [2]);
        assert_eq!(budget.free(), 9);
    }

    #[test]
    fn cancelled_asks_hold_nobody_up() {
        let mut budget = Budget::new(4);
        budget.ask(1, 1, 100);
        budget.ask(2, 2, 4);
        assert!(budget.serve().is_empty());
        budget.cancel(1, 1);
        budget.cancel(1, 1);
        assert_eq!(budget.serve(), [2]);
    }

    /// Sixty-four greedy clients on a small budget: nobody is ever two grants ahead of a client that waits.
    #[test]
    fn greedy_clients_get_the_same() {
        let mut budget = Budget::new(8);
        let mut held = VecDeque::new();
        let mut got = [0u64; 64];
        for client in 0..64u64 {
            for nth in 0..100 {
                budget.ask(client, client * 1000 + nth, 1 + (client + nth) % 4);
            }
        }
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        while got.iter().sum::<u64>() < 6400 {
            for ticket in budget.serve() {
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
    fn units_are_taken_once_and_used_again() {
        let mut units = Units::new(10);
        assert_eq!((units.take(4), units.take(4), units.take(4)), (Some(0), Some(4), None));
        units.give_back(1, 2);
        assert_eq!((units.take(3), units.take(2), units.take(1)), (None, Some(1), Some(8)));
    }
}
