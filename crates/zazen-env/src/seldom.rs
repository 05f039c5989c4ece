//! Limits messages about events that happen often.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lets one of many through in each interval. Shared by threads.
#[derive(Debug)]
pub struct Seldom {
    start: Instant,
    interval_ns: u64,
    /// Nanoseconds since the start before which nothing passes.
    next_ns: AtomicU64,
    held_back: AtomicU64,
}

impl Seldom {
    /// At most one in each `interval`.
    pub fn every(interval: Duration) -> Seldom {
        Seldom {
            start: Instant::now(),
            interval_ns: interval.as_nanos() as u64,
            next_ns: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// Whether this message passes and, if so, how many were held back since the last one that
    /// passed.
    pub fn pass(&self) -> Option<u64> {
        let now = self.start.elapsed().as_nanos() as u64;
        let next = self.next_ns.load(Ordering::Relaxed);
        let later = now.saturating_add(self.interval_ns);
        let mine = now >= next
            && self.next_ns.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_passes_and_tells_of_the_others() {
        let seldom = Seldom::every(Duration::from_secs(3600));
        assert_eq!([seldom.pass(), seldom.pass(), seldom.pass()], [Some(0), None, None]);
        let often = Seldom::every(Duration::ZERO);
        assert_eq!([often.pass(), often.pass()], [Some(0), Some(0)]);
        seldom.next_ns.store(0, Ordering::Relaxed);
        assert_eq!(seldom.pass(), Some(2));
    }
}
