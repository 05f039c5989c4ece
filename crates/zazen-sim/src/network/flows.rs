//! Flows that share links max-min fairly, recomputed for what a change touches.
//!
//! When flows begin or end, the rates of all flows that share a link with them, directly or over
//! others, can change: that part of the network is recomputed, exactly, once per point in time.

use crate::maxmin::{Crossing, max_min};
use crate::time::{SECOND_PS, TIME_MAX_PS};

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Flow<E> {
    to: u32,
    token: E,
    /// Bytes left when the rate was set.
    left: f64,
    bytes_per_s: f64,
    set_ps: u64,
    end_ps: u64,
    /// Time from the last byte's sending to its arrival.
    after_ps: u64,
    /// First of the flow's entries; [`NONE`] for an unused place.
    first: u32,
    mark: u32,
}

/// A flow on a link: a member of the link's list and of the flow's.
#[derive(Clone, Copy)]
struct Membership {
    flow: u32,
    link: u32,
    before: u32,
    after: u32,
    next_of_flow: u32,
}

/// A flow that ended.
pub(super) struct Ended<E> {
    pub(super) to: u32,
    pub(super) after_ps: u64,
    pub(super) token: E,
}

pub(super) struct Flows<E> {
    flows: Vec<Flow<E>>,
    unused_flows: Vec<u32>,
    entries: Vec<Membership>,
    unused_entries: Vec<u32>,
    /// By link: the first entry of its list.
    first: Vec<u32>,
    /// By link: the round that saw it last, and its number there.
    seen: Vec<(u32, u32)>,
    round: u32,
    /// Links whose flows changed since the rates were computed.
    changed: Vec<u32>,
    asked: bool,
}

impl<E: Copy> Flows<E> {
    pub(super) fn new(links: usize) -> Flows<E> {
        Flows {
            flows: Vec::new(),
            unused_flows: Vec::new(),
            entries: Vec::new(),
            unused_entries: Vec::new(),
            first: vec![NONE; links],
            seen: vec![(0, 0); links],
            round: 0,
            changed: Vec::new(),
            asked: false,
        }
    }

    /// Whether rates are out of date and nobody was told since they are.
    pub(super) fn wants_settling(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    pub(super) fn begin(&mut self, now_ps: u64, to: u32, bytes: u64, after_ps: u64, links: &[u32], token: E) {
        let flow = Flow {
            to,
            token,
            left: bytes as f64,
            bytes_per_s: 0.0,
            set_ps: now_ps,
            end_ps: u64::MAX,
            after_ps,
            first: NONE,
            mark: 0,
        };
        let number = match self.unused_flows.pop() {
            Some(number) => {
                self.flows[number as usize] = flow;
                number
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
        };
        for link in links {
            let head = self.first[*link as usize];
            let next_of_flow = self.flows[number as usize].first;
            let entry = Membership { flow: number, link: *link, before: NONE, after: head, next_of_flow };
            let place = match self.unused_entries.pop() {
                Some(place) => {
                    self.entries[place as usize] = entry;
                    place
                }
                None => {
                    self.entries.push(entry);
                    self.entries.len() as u32 - 1
                }
            };
            if head != NONE {
                self.entries[head as usize].before = place;
            }
            self.first[*link as usize] = place;
            self.flows[number as usize].first = place;
            self.changed.push(*link);
        }
    }

    /// Ends a flow whose time has come; `None` if its rate changed since the event was scheduled.
    pub(super) fn end(&mut self, now_ps: u64, number: u32) -> Option<Ended<E>> {
        let flow = self.flows[number as usize];
        if flow.first == NONE || flow.end_ps != now_ps {
            return None;
        }
        let mut at = flow.first;
        while at != NONE {
            let entry = self.entries[at as usize];
            match entry.before {
                NONE => self.first[entry.link as usize] = entry.after,
                before => self.entries[before as usize].after = entry.after,
            }
            if entry.after != NONE {
                self.entries[entry.after as usize].before = entry.before;
            }
            self.changed.push(entry.link);
            self.unused_entries.push(at);
            at = entry.next_of_flow;
        }
        self.flows[number as usize].first = NONE;
        self.unused_flows.push(number);
        Some(Ended { to: flow.to, after_ps: flow.after_ps, token: flow.token })
    }

    /// Sets the rates of all flows connected with a changed link, and calls
    /// `schedule(end_ps, to, flow)` for each whose end changed.
    pub(super) fn settle(
        &mut self,
        now_ps: u64,
        capacity: impl Fn(u32) -> f64,
        mut schedule: impl FnMut(u64, u32, u32),
    ) {
        self.asked = false;
        self.round += 1;
        let mut links = Vec::new();
        let mut flows = Vec::new();
        let see = |seen: &mut Vec<(u32, u32)>, links: &mut Vec<u32>, round: u32, link: u32| {
            if seen[link as usize].0 != round {
                seen[link as usize] = (round, links.len() as u32);
                links.push(link);
            }
        };
        for link in std::mem::take(&mut self.changed) {
            see(&mut self.seen, &mut links, self.round, link);
        }
        let mut next = 0;
        while next < links.len() {
            let mut on_link = self.first[links[next] as usize];
            next += 1;
            while on_link != NONE {
                let entry = self.entries[on_link as usize];
                on_link = entry.after;
                let flow = &mut self.flows[entry.flow as usize];
                if std::mem::replace(&mut flow.mark, self.round) == self.round {
                    continue;
                }
                flows.push(entry.flow);
                let mut of_flow = flow.first;
                while of_flow != NONE {
                    let crossed = self.entries[of_flow as usize];
                    of_flow = crossed.next_of_flow;
                    see(&mut self.seen, &mut links, self.round, crossed.link);
                }
            }
        }
        // In the order of their numbers, so that rounding does not depend on how they were found.
        flows.sort_unstable();
        let mut crossing = Crossing::new();
        for flow in &flows {
            let mut at = self.flows[*flow as usize].first;
            while at != NONE {
                let entry = self.entries[at as usize];
                crossing.links.push(self.seen[entry.link as usize].1);
                at = entry.next_of_flow;
            }
            crossing.begin.push(crossing.links.len() as u32);
        }
        let capacities: Vec<f64> = links.iter().map(|link| capacity(*link)).collect();
        for (number, rate) in flows.iter().zip(max_min(&capacities, &crossing)) {
            let flow = &mut self.flows[*number as usize];
            if flow.bytes_per_s == rate {
                continue;
            }
            let passed = (now_ps - flow.set_ps) as f64 / SECOND_PS as f64;
            flow.left = (flow.left - flow.bytes_per_s * passed).max(0.0);
            flow.set_ps = now_ps;
            flow.bytes_per_s = rate;
            let wait = (flow.left / rate * SECOND_PS as f64 + 0.5).min(TIME_MAX_PS as f64) as u64;
            flow.end_ps = now_ps + wait;
            schedule(flow.end_ps, flow.to, *number);
        }
    }
}
