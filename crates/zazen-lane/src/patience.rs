//! How an end waits for the other end's answer: whether to spin, and for how long. Learns from how
//! long waits took.
//!
//! A spin pays if the other end runs on another CPU and answers soon. On the same CPU it keeps the
//! other end from running.
//!
//! An end that slept sees a longer wait than the answer took: its own wake is part of it, and so is
//! the other end's if that slept, too. Two ends that both sleep therefore look slow to each other,
//! though neither would if both were awake. So a wait that two wakes can explain makes an end more
//! patient, up to a bound, before it gives up spinning.
//!
//! On the same CPU an end can give the CPU to the other end ([`Yielding`]) instead of sleeping:
//! that saves the wake.

use std::time::Duration;

/// How long the first spins are.
const BUDGET_FIRST: Duration = Duration::from_micros(5);
/// No spin is longer: a sleep and its wake cost about as much.
const BUDGET_MAX: Duration = Duration::from_micros(50);
/// A short call and two wakes of idle CPUs take at most this long.
const TWO_WAKES: Duration = Duration::from_micros(120);
/// About how long a wake takes: a shorter spin for an end that had to be woken is useless.
const WAKE: Duration = Duration::from_micros(30);
/// After this many useless spins in a row an end stops spinning,
const MISSES_MAX: u32 = 8;
/// and tries again only in every 64th wait.
const PROBE_EVERY: u32 = 64;

/// One end's decision to spin.
#[derive(Clone, Debug)]
pub struct Spin {
    budget: Duration,
    misses: u32,
    waits: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::new()
    }
}

impl Spin {
    /// An end that knows nothing of the other yet.
    pub const fn new() -> Spin {
        Spin { budget: BUDGET_FIRST, misses: 0, waits: 0 }
    }

    /// How long the next wait may spin; zero: not at all. `woken`: the other end had to be woken.
    #[inline]
    pub fn budget(&mut self, woken: bool) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        let budget = if self.misses < MISSES_MAX {
            self.budget
        } else if self.waits.is_multiple_of(PROBE_EVERY) {
            BUDGET_MAX
        } else {
            Duration::ZERO
        };
        if woken && budget < WAKE { Duration::ZERO } else { budget }
    }

    /// The answer came while spinning.
    #[inline]
    pub fn hit(&mut self) {
        self.misses = 0;
    }

    /// The spin was useless, or there was none; the answer came after `waited` in all.
    pub fn missed(&mut self, waited: Duration) {
        if waited <= BUDGET_MAX {
            // The longest spin would have seen it.
            self.budget = BUDGET_MAX;
            self.misses = self.misses.min(MISSES_MAX - 1);
        } else if waited <= TWO_WAKES && self.budget < BUDGET_MAX {
            self.budget = (self.budget * 2).min(BUDGET_MAX);
        } else {
            self.misses = self.misses.saturating_add(1);
        }
    }
}

/// An answer that comes later than this after a yield did not come because of the yield.
const HANDED_OVER: Duration = Duration::from_micros(50);
/// After this many useless yields in a row an end rests: it keeps the CPU for a number of waits.
const VAIN_MAX: u32 = 8;
/// The first rest, in waits. Each further one is twice as long, up to the maximum: a useless yield
/// costs two switches, or a time slice where the CPU has other work.
const REST_FIRST: u32 = 16;
const REST_MAX: u32 = 1024;

/// One end's decision to give the CPU to the other end, which runs on the same.
#[derive(Clone, Debug)]
pub struct Yielding {
    vain: u32,
    resting: u32,
    rest: u32,
}

impl Default for Yielding {
    fn default() -> Yielding {
        Yielding::new()
    }
}

impl Yielding {
    /// An end that yields in its first wait.
    pub const fn new() -> Yielding {
        Yielding { vain: 0, resting: 0, rest: REST_FIRST }
    }

    /// Whether the next wait may yield.
    #[inline]
    pub fn may(&mut self) -> bool {
        let may = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        may
    }

    /// Whether the answer came while the CPU was given up, and how long that took.
    #[inline]
    pub fn learn(&mut self, answered: bool, took: Duration) {
        if answered && took <= HANDED_OVER {
            (self.vain, self.rest) = (0, REST_FIRST);
            return;
        }
        self.vain += 1;
        if self.vain >= VAIN_MAX {
            (self.vain, self.resting) = (0, self.rest);
            self.rest = (2 * self.rest).min(REST_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn it_starts_short_ends_after_misses_and_probes() {
        let mut spin = Spin::default();
        assert_eq!(spin.budget(true), Duration::ZERO, "who is asleep is not there in 5 µs");
        assert_eq!(spin.budget(false), BUDGET_FIRST);
        for _ in 0..MISSES_MAX {
            assert!(!spin.budget(false).is_zero());
            spin.missed(1000 * US);
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
            spin.missed(30 * US);
        }
        assert_eq!(spin.budget(true), BUDGET_MAX, "an end that was woken is there by then");
    }

    #[test]
    fn what_takes_longer_than_any_spin_is_given_up() {
        for waited in [60 * US, 119 * US, 130 * US] {
            let mut spin = Spin::default();
            let mut spins = 0;
            for _ in 0..1000 {
                spins += u32::from(!spin.budget(false).is_zero());
                spin.missed(waited);
            }
            assert!(spins <= 4 + MISSES_MAX + 1000 / PROBE_EVERY + 1, "{waited:?}: {spins} spins");
        }
    }

    #[test]
    fn the_cpu_is_given_up_while_that_helps_and_ever_more_rarely_if_not() {
        let mut yielding = Yielding::default();
        for _ in 0..1000 {
            assert!(yielding.may());
            yielding.learn(true, 3 * US);
        }
        let mut tries = 0;
        for _ in 0..100_000 {
            if yielding.may() {
                tries += 1;
                yielding.learn(tries % 2 == 0, 3000 * US);
            }
        }
        assert!((VAIN_MAX..1000).contains(&tries), "{tries}");
        while !yielding.may() {}
        yielding.learn(true, US);
        assert!(yielding.may());
    }

    /// Two ends that call and answer: each wait of one depends on whether the other slept.
    #[test]
    fn two_ends_that_sleep_wake_up_to_each_other() {
        for (work, wake) in [(US, 25 * US), (12 * US, 27 * US), (20 * US, 20 * US)] {
            let (mut client, mut daemon) = (Spin::default(), Spin::default());
            for spin in [&mut client, &mut daemon] {
                (0..2 * MISSES_MAX).for_each(|_| spin.missed(10_000 * US));
            }
            let (mut daemon_sleeps, mut slow) = (true, 0);
            for _ in 0..1000 {
                let answer = work + if daemon_sleeps { wake } else { Duration::ZERO };
                let spun = client.budget(daemon_sleeps);
                let client_sleeps = spun < answer;
                if client_sleeps {
                    client.missed(answer + wake)
                } else {
                    client.hit()
                }
                let next = US + if client_sleeps { wake } else { Duration::ZERO };
                daemon_sleeps = daemon.budget(client_sleeps) < next;
                if daemon_sleeps {
                    daemon.missed(next + wake)
                } else {
                    daemon.hit()
                }
                slow += u32::from(client_sleeps || daemon_sleeps);
            }
            assert!(slow < 150, "work {work:?}, wake {wake:?}: {slow} of 1000 calls with a sleep");
        }
    }
}
