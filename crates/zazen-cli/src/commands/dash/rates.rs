//! From counters that only grow, and begin anew when a daemon restarts, to what happened lately.
//! *Pure*: seconds since the page began are arguments.

use serde_json::{Value, json};
use std::collections::VecDeque;

/// "Lately" goes back this far, in seconds.
pub(super) const LATELY_S: f64 = 10.0;
/// Points that the history keeps.
const POINTS_MAX: usize = 600;

/// What one node, or all together, did since the page began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Frames that were on their reader's node.
    pub(super) hits: u64,
    /// Frames that were not.
    pub(super) misses: u64,
    pub(super) read_bytes: u64,
    pub(super) pushes: u64,
    pub(super) push_bytes: u64,
}

impl Done {
    /// From the counters of a status.
    pub(super) fn of(counters: &Value) -> Done {
        let sum = |names: &[&str]| {
            names.iter().filter_map(|name| counters[*name].as_u64()).fold(0, u64::saturating_add)
        };
        Done {
            hits: sum(&["native_reads", "alien_reads"]),
            misses: sum(&["fetched_reads", "read_through", "inline"]),
            read_bytes: sum(&["native_bytes", "alien_bytes"]),
            pushes: sum(&["pushes"]),
            push_bytes: sum(&["push_bytes"]),
        }
    }

    fn each(self, other: Done, of: impl Fn(u64, u64) -> u64) -> Done {
        Done {
            hits: of(self.hits, other.hits),
            misses: of(self.misses, other.misses),
            read_bytes: of(self.read_bytes, other.read_bytes),
            pushes: of(self.pushes, other.pushes),
            push_bytes: of(self.push_bytes, other.push_bytes),
        }
    }

    pub(super) fn plus(self, other: Done) -> Done {
        self.each(other, u64::saturating_add)
    }

    /// What came since `before`. A counter that is smaller than it was began anew.
    fn since(self, before: Done) -> Done {
        self.each(before, |now, before| now.checked_sub(before).unwrap_or(now))
    }
}

/// What a node did, from one look to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The counters when they were looked at last.
    counters: Option<Done>,
    /// Since the page began.
    pub(super) total: Done,
    /// Times of looks, and the totals then, the oldest first.
    looks: VecDeque<(f64, Done)>,
}

impl Progress {
    /// The node's counters at the time `now`.
    pub(super) fn look(&mut self, now: f64, counters: Done) {
        let more = self.counters.map_or(Done::default(), |before| counters.since(before));
        self.counters = Some(counters);
        self.total = self.total.plus(more);
        self.looks.push_back((now, self.total));
        // One look that is older stays: what came since is lately.
        while self.looks.get(1).is_some_and(|(at, _)| *at <= now - LATELY_S) {
            self.looks.pop_front();
        }
    }

    /// What it did lately, by the second: rates of frames read, bytes read, pushes, bytes pushed.
    pub(super) fn lately(&self, now: f64) -> [f64; 4] {
        let Some((at, before)) = self.looks.front().filter(|_| self.is_fresh(now)) else { return [0.0; 4] };
        let done = self.total.since(*before);
        let seconds = (now - at).max(0.5);
        #[allow(clippy::cast_precision_loss)] // rates, for people
        let rate = |count: u64| count as f64 / seconds;
        [
            rate(done.hits.saturating_add(done.misses)),
            rate(done.read_bytes),
            rate(done.pushes),
            rate(done.push_bytes),
        ]
    }

    fn is_fresh(&self, now: f64) -> bool {
        self.looks.back().is_some_and(|(at, _)| *at > now - LATELY_S)
    }
}

/// What all nodes did, over time.
#[derive(Clone, Debug, Default)]
pub(super) struct History(VecDeque<(f64, Done)>);

impl History {
    /// All nodes together at `now`.
    pub(super) fn add(&mut self, now: f64, all: Done) {
        self.0.push_back((now, all));
        while self.0.len() > POINTS_MAX {
            self.0.pop_front();
        }
    }

    /// Rows of time, hits, misses, bytes read and bytes pushed since the page began.
    pub(super) fn as_json(&self) -> Value {
        let row = |(at, all): &(f64, Done)| json!([at, all.hits, all.misses, all.read_bytes, all.push_bytes]);
        self.0.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(hits: u64) -> Done {
        Done { hits, ..Done::default() }
    }

    #[test]
    fn what_was_before_the_page_does_not_count_and_restarts_do_no_harm() {
        let mut node = Progress::default();
        node.look(0.0, hits(1000));
        assert_eq!(node.total, hits(0));
        node.look(2.0, hits(1100));
        // It was restarted and has handed out 7 since.
        node.look(4.0, hits(7));
        assert_eq!(node.total, hits(107));
        assert_eq!(node.lately(4.0)[0], 107.0 / 4.0);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds_only() {
        let mut node = Progress::default();
        for second in 0..100 {
            node.look(f64::from(second), hits(if second < 50 { 10 * second as u64 } else { 500 }));
        }
        assert_eq!(node.lately(99.0)[0], 0.0);
        assert!(node.looks.len() <= 12, "{}", node.looks.len());
        // A node that has not been heard for a while does nothing that is known.
        let mut silent = Progress::default();
        silent.look(0.0, hits(0));
        silent.look(1.0, hits(10));
        assert_eq!(silent.lately(1.0)[0], 10.0);
        assert_eq!(silent.lately(100.0), [0.0; 4]);
    }

    #[test]
    fn a_history_has_its_bound() {
        let mut history = History::default();
        for at in 0..2 * POINTS_MAX {
            history.add(at as f64, hits(at as u64));
        }
        let rows = history.as_json();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), POINTS_MAX);
        assert_eq!(rows[0], json!([POINTS_MAX as f64, POINTS_MAX, 0, 0, 0]));
    }

    #[test]
    fn counters_are_those_of_a_status() {
        let counters = json!({
            "native_reads": 1, "alien_reads": 2, "fetched_reads": 4, "read_through": 8, "inline": 16,
            "native_bytes": 32, "alien_bytes": 64, "pushes": 128, "push_bytes": 256, "odd": "x",
        });
        let expected = Done { hits: 3, misses: 28, read_bytes: 96, pushes: 128, push_bytes: 256 };
        assert_eq!(Done::of(&counters), expected);
        assert_eq!(Done::of(&json!(null)), Done::default());
    }
}
