//! Whether the processors are crowded: more threads want to run than there are processors.
//!
//! To copy a frame from memory takes a processor and nothing else. Where the processors are
//! crowded, a thread that copies frames ahead only takes the time of those who use them, and its
//! copies push each other out of the caches. So it rests, and asks again later.
//!
//! Invariants: to rest costs time, never frames: the consumer reads whatever is not ready. Where
//! the kernel does not tell how long threads wait, nobody rests.

use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread is judged after it has run and waited this long together.
const JUDGED_AFTER: Duration = Duration::from_micros(500);
/// How long readers rest at first. It doubles while the processors stay crowded.
const REST_MIN: Duration = Duration::from_millis(8);
const REST_MAX: Duration = Duration::from_millis(256);

/// What the threads of this process learned of the processors.
static CROWD: Crowd = Crowd { until_us: AtomicU64::new(0), rest_us: AtomicU64::new(0) };

struct Crowd {
    /// Readers rest until then: microseconds since [`now_us`]'s begin.
    until_us: AtomicU64,
    /// How long they rested the last time; 0: the processors were free.
    rest_us: AtomicU64,
}

impl Crowd {
    fn rests(&self, now_us: u64) -> bool {
        now_us < self.until_us.load(Ordering::Relaxed)
    }

    /// A thread ran and waited for a processor: nanoseconds.
    fn judge(&self, ran: u64, waited: u64, now_us: u64) {
        if waited <= ran / 2 {
            self.rest_us.store(0, Ordering::Relaxed);
            return;
        }
        if self.rests(now_us) {
            return; // Another thread saw it too.
        }
        let (min, max) = (REST_MIN.as_micros() as u64, REST_MAX.as_micros() as u64);
        let rest_us = (2 * self.rest_us.load(Ordering::Relaxed)).clamp(min, max);
        self.rest_us.store(rest_us, Ordering::Relaxed);
        self.until_us.store(now_us + rest_us, Ordering::Relaxed);
    }
}

/// Microseconds since this process asked first.
fn now_us() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Whether threads that read ahead from memory should rest now.
pub(super) fn rests() -> bool {
    CROWD.rests(now_us())
}

/// As if the processors were crowded for so long.
#[cfg(test)]
pub(super) fn crowd_for(time: Duration) {
    CROWD.until_us.store(now_us() + time.as_micros() as u64, Ordering::Relaxed);
}

/// How one thread fares.
pub(super) struct Fare {
    /// The kernel's counts of this thread; `None`: it tells none.
    counts: Option<File>,
    /// Nanoseconds that it ran and waited, when it was judged last.
    before: (u64, u64),
}

impl Fare {
    pub(super) fn of_this_thread() -> Fare {
        let counts = File::open("/proc/thread-self/schedstat").ok();
        let mut fare = Fare { counts, before: (0, 0) };
        fare.before = fare.now().unwrap_or_default();
        fare
    }

    fn now(&self) -> Option<(u64, u64)> {
        let mut text = [0; 64];
        let length = self.counts.as_ref()?.read_at(&mut text, 0).ok()?;
        let waited = waited(text.get(..length)?)?;
        // The first of the kernel's counts is as old as the last tick.
        let ran = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).ok()?;
        Some((u64::try_from(ran.as_nanos()).ok()?, waited))
    }

    /// Tells the others if this thread has waited for a processor more than half as long as it ran.
    /// Two system calls.
    pub(super) fn judge(&mut self) {
        let Some((ran, waited)) = self.now() else { return };
        let since = (ran.saturating_sub(self.before.0), waited.saturating_sub(self.before.1));
        if u128::from(since.0) + u128::from(since.1) >= JUDGED_AFTER.as_nanos() {
            self.before = (ran, waited);
            CROWD.judge(since.0, since.1, now_us());
        }
    }
}

/// The second number of `schedstat`: nanoseconds that a thread waited to run.
fn waited(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_rest_longer_while_processors_stay_crowded_and_not_once_they_are_free() {
        let crowd = Crowd { until_us: AtomicU64::new(0), rest_us: AtomicU64::new(0) };
        let mut now_us = 100;
        assert!(!crowd.rests(now_us));
        for rest_ms in [8, 16, 32, 64, 128, 256, 256] {
            crowd.judge(1000, 501, now_us);
            crowd.judge(1000, 5000, now_us + 1); // told twice
            assert!(crowd.rests(now_us + rest_ms * 1000 - 1) && !crowd.rests(now_us + rest_ms * 1000));
            now_us += rest_ms * 1000;
        }
        crowd.judge(1000, 500, now_us);
        assert!(!crowd.rests(now_us));
        crowd.judge(0, 1, now_us);
        assert!(crowd.rests(now_us + 7999) && !crowd.rests(now_us + 8000));
    }

    #[test]
    fn the_kernels_counts_are_understood() {
        assert_eq!(waited(b"36204 926838 2\n"), Some(926_838));
        for bad in [&b""[..], b"1", b"1 x", b"1 -2 3", b"1 99999999999999999999 1", b"\xff 1 1"] {
            assert_eq!(waited(bad), None);
        }
        let mut fare = Fare { counts: None, before: (0, 0) };
        fare.judge();
        // This thread's own time grows, if the kernel counts.
        let fare = Fare::of_this_thread();
        if let Some(before) = fare.now() {
            let end = Instant::now() + Duration::from_millis(5);
            while Instant::now() < end {}
            assert!(fare.now().unwrap().0 > before.0);
        }
    }
}
