//! How an end of a connection waits for the other end's next message before it sleeps on the
//! socket: as a lane's end does, though only the socket's looks tell whether something has come.

use crate::patience::{Spin, Yielding};
use crate::system::System;
use std::time::Duration;

/// Yields of one wait, at most.
const YIELDS: u32 = 2;

/// One end's wait for messages.
#[derive(Clone, Debug)]
pub struct Awake {
    spin: Spin,
    yielding: Yielding,
    /// When the wait at hand began, if its length teaches something.
    since: Option<Duration>,
}

impl Default for Awake {
    fn default() -> Awake {
        Awake::new()
    }
}

impl Awake {
    /// An end that knows nothing of the other yet.
    pub const fn new() -> Awake {
        Awake { spin: Spin::new(), yielding: Yielding::new(), since: None }
    }

    /// Waits without sleeping, if that has paid before. `other`: the CPU on which the other end
    /// sent last. False: nothing has come, so sleep, and call [`Awake::slept`].
    pub fn wait(&mut self, system: &impl System, other: u32, mut has_come: impl FnMut() -> bool) -> bool {
        let since = system.now();
        if system.cpu() == other {
            // A spin would keep the other end from running.
            let may = self.yielding.may();
            let come = may
                && (0..YIELDS).any(|_| {
                    system.give_way();
                    has_come()
                });
            if may {
                self.yielding.learn(come, system.now().saturating_sub(since));
            }
            return come;
        }
        let budget = self.spin.budget(false);
        while !budget.is_zero() {
            if has_come() {
                self.spin.hit();
                return true;
            }
            if system.now().saturating_sub(since) >= budget {
                break;
            }
        }
        self.since = Some(since);
        false
    }

    /// The message came after a sleep.
    pub fn slept(&mut self, system: &impl System) {
        if let Some(since) = self.since.take() {
            self.spin.missed(system.now().saturating_sub(since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicU32;

    /// Time passes with each look at the clock, and with each yield.
    #[derive(Default)]
    struct Clock {
        us: Cell<u64>,
        yields: Cell<u32>,
    }

    impl System for Clock {
        fn sleep_on(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
            false
        }
        fn wake(&self, _: &AtomicU32) {}
        fn give_way(&self) {
            self.yields.set(self.yields.get() + 1);
            self.us.set(self.us.get() + 10);
        }
        fn cpu(&self) -> u32 {
            1
        }
        fn now(&self) -> Duration {
            self.us.set(self.us.get() + 1);
            Duration::from_micros(self.us.get())
        }
    }

    #[test]
    fn an_end_on_another_cpu_is_waited_for_awake_and_one_on_the_same_gets_the_cpu() {
        let clock = Clock::default();
        let mut awake = Awake::new();
        let mut looks = 0;
        assert!(awake.wait(&clock, 0, || {
            looks += 1;
            looks == 3
        }));
        assert_eq!((looks, clock.yields.get()), (3, 0));
        assert!(awake.wait(&clock, 1, || clock.yields.get() == 2));
        assert_eq!(clock.yields.get(), 2);
    }

    #[test]
    fn an_end_that_is_slow_is_slept_for() {
        let clock = Clock::default();
        let mut awake = Awake::new();
        let mut waits_with_looks = 0;
        for _ in 0..640 {
            let mut looks = 0;
            assert!(!awake.wait(&clock, 0, || {
                looks += 1;
                false
            }));
            waits_with_looks += u32::from(looks > 0);
            clock.us.set(clock.us.get() + 10_000);
            awake.slept(&clock);
        }
        assert!(waits_with_looks < 30, "{waits_with_looks} waits of 640");
    }

    #[test]
    fn yields_that_are_in_vain_become_rare() {
        let clock = Clock::default();
        let mut awake = Awake::new();
        for _ in 0..640 {
            assert!(!awake.wait(&clock, 1, || false));
            awake.slept(&clock);
        }
        assert!(clock.yields.get() < 200, "{} yields in 640 waits", clock.yields.get());
    }
}
