//! Whether to spin for the other end's answer, and for how long: pure, fed with what waits came to.
//!
//! A spin pays if the other end runs on another CPU and answers soon; on one CPU it keeps the other end from running.

use std::time::Duration;

/// The first spins.
const BUDGET_FIRST: Duration = Duration::from_micros(5);
/// No spin is longer: a sleep and its wake cost about as much.
const BUDGET_MAX: Duration = Duration::from_micros(50);
/// So many spins in vain, one after another, end spinning …
const MISSES_MAX: u32 = 8;
/// … but for one wait in so many, which looks whether times have changed.
const PROBE_EVERY: u32 = 64;

/// One end's policy.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    budget: Duration,
    misses: u32,
    waits: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { budget: BUDGET_FIRST, misses: 0, waits: 0 }
    }
}

impl Spin {
    /// How long the next wait may spin; zero for not at all.
    pub(crate) fn budget(&mut self, same_cpu: bool) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        if same_cpu {
            return Duration::ZERO;
        }
        if self.misses >= MISSES_MAX && !self.waits.is_multiple_of(PROBE_EVERY) {
            return Duration::ZERO;
        }
        self.budget
    }

    /// The answer came while spinning.
    pub(crate) fn hit(&mut self) {
        self.misses = 0;
    }

    /// The spin was in vain; the answer came after `waited` in all.
    pub(crate) fn missed(&mut self, waited: Duration) {
        if waited <= BUDGET_MAX {
            // A little more patience would have been rewarded: most of this wait was our own falling asleep.
            self.budget = (self.budget * 2).min(BUDGET_MAX);
            self.misses = self.misses.saturating_sub(1);
        } else {
            self.misses = self.misses.saturating_add(1);
            self.budget = (self.budget / 2).max(BUDGET_FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_short_ends_after_misses_and_probes() {
        let mut spin = Spin::default();
        assert_eq!(spin.budget(true), Duration::ZERO, "never on one CPU");
        assert_eq!(spin.budget(false), BUDGET_FIRST);
        for _ in 0..MISSES_MAX {
            assert!(!spin.budget(false).is_zero());
            spin.missed(Duration::from_millis(1));
        }
        let tries = (0..10 * PROBE_EVERY).filter(|_| !spin.budget(false).is_zero()).count();
        assert_eq!(tries, 10);
        spin.hit();
        assert!(!spin.budget(false).is_zero());
    }

    #[test]
    fn near_misses_make_it_more_patient_within_bounds() {
        let mut spin = Spin::default();
        for _ in 0..20 {
            assert!(!spin.budget(false).is_zero());
            spin.missed(Duration::from_micros(30));
        }
        assert_eq!(spin.budget(false), BUDGET_MAX);
        spin.missed(Duration::from_millis(1));
        assert!(spin.budget(false) < BUDGET_MAX);
    }
}
