//! One rate for all threads, first come, first served.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Idle time that a thread may use up at once.
const BURST: Duration = Duration::from_millis(20);

/// A limit on bytes per second that threads share. Each thread reserves its bytes on one time line,
/// so all threads together keep the rate and none starves.
pub struct TokenBucket {
    bytes_per_s: u64,
    free_from: Mutex<Instant>,
}

impl TokenBucket {
    /// A bucket of `bytes_per_s` (at least 1).
    pub fn new(bytes_per_s: u64) -> TokenBucket {
        TokenBucket { bytes_per_s: bytes_per_s.max(1), free_from: Mutex::new(Instant::now()) }
    }

    /// A good number of bytes to take at once: what passes in about 10 ms, between 4 KiB and 256
    /// KiB.
    pub(crate) fn portion_bytes(&self) -> usize {
        (self.bytes_per_s / 100).clamp(4 << 10, 256 << 10) as usize
    }

    /// Waits until `bytes` may pass.
    pub fn take(&self, bytes: usize) {
        let now = Instant::now();
        let mut free_from = self.free_from.lock().unwrap_or_else(PoisonError::into_inner);
        let (ready, next) = schedule(*free_from, now, bytes as u64, self.bytes_per_s);
        *free_from = next;
        drop(free_from);
        std::thread::sleep(ready.saturating_duration_since(now));
    }
}

/// When `bytes` may pass, and when the time line is free again.
fn schedule(free_from: Instant, now: Instant, bytes: u64, bytes_per_s: u64) -> (Instant, Instant) {
    let earliest = now.checked_sub(BURST).unwrap_or(now);
    let takes = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64);
    let next = free_from.max(earliest) + takes;
    (next, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takers_together_keep_the_rate_and_idling_saves_up_little() {
        let start = Instant::now() + Duration::from_secs(60);
        let (mut free, mut last) = (start, start);
        for _ in 0..1000 {
            (last, free) = schedule(free, start, 1000, 1_000_000);
        }
        assert_eq!(last - start, Duration::from_secs(1));
        let later = start + Duration::from_secs(100);
        let (ready, _) = schedule(free, later, 30_000, 1_000_000);
        assert_eq!(ready - later, Duration::from_millis(10));
    }
}
