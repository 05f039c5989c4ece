//! Clocks: the machine's, and one that moves only on demand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Time since an arbitrary start, and wall time.
pub trait Clock: Send + Sync {
    /// Monotonic nanoseconds.
    fn now_ns(&self) -> u64;
    /// Nanoseconds since the epoch.
    fn wall_ns(&self) -> i64;
}

/// The machine's clocks. Monotonic time counts from the creation of this value.
#[derive(Clone, Debug)]
pub struct RealClock {
    start: Instant,
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn wall_ns(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i64,
            Err(before) => -(before.duration().as_nanos() as i64),
        }
    }
}

/// A clock that moves only on demand. Both of its times move together. Threads share it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
    wall_offset_ns: u64,
}

impl ManualClock {
    /// A clock whose monotonic time is 0 and whose wall time is `wall_ns` (not before the epoch)
    /// now.
    pub fn new(wall_ns: u64) -> ManualClock {
        ManualClock { now_ns: AtomicU64::new(0), wall_offset_ns: wall_ns }
    }

    /// Moves both of its times so that the monotonic one is `now_ns`; a simulation moves a node's
    /// clock so.
    pub fn set_ns(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::SeqCst);
    }

    /// Moves it on.
    pub fn advance_ns(&self, nanoseconds: u64) {
        self.now_ns.fetch_add(nanoseconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn wall_ns(&self) -> i64 {
        (self.wall_offset_ns + self.now_ns()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_time_moves_only_when_told() {
        let clock = ManualClock::new(1_000);
        assert_eq!((clock.now_ns(), clock.wall_ns()), (0, 1_000));
        clock.advance_ns(25);
        assert_eq!((clock.now_ns(), clock.wall_ns()), (25, 1_025));
    }

    #[test]
    fn real_time_does_not_run_backwards() {
        let clock = RealClock::default();
        let first = clock.now_ns();
        assert!(clock.now_ns() >= first);
        assert!(clock.wall_ns() > 1_600_000_000_000_000_000, "the wall clock is set before 2020");
    }
}
