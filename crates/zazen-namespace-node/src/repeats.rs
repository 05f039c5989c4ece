//! Calls of other daemons and of programs that come again because their connection broke.
//!
//! Daemons share one table, because their calls have numbers that no other daemon's call has. Each
//! program has a table in its session: its open files are good for this session only.
//!
//! Nobody knows whether the first try was executed, or still waits in a thread here. It must not be
//! executed after a later one: its caller has gone on since, and may have written other bytes in
//! the same place.
//!
//! Invariants: a try waits until earlier tries of its call have ended, and keeps those from being
//! executed that have not begun.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_namespace::Errno;

/// Calls that came again and are remembered; the oldest are forgotten. A try is that late only if
/// its thread was stopped while so many other connections broke.
const REMEMBERED_MAX: usize = 1 << 16;

/// A caller waits no longer for a call on an object.
const PATIENCE: Duration = Duration::from_secs(30);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
#[derive(Default)]
pub(crate) struct Repeats {
    calls: Mutex<Calls>,
    ended: Condvar,
}

#[derive(Default)]
struct Calls {
    /// How many tries of a call run now.
    running: HashMap<u64, usize>,
    /// The latest try of each call that came again.
    latest: HashMap<u64, u32>,
    /// The calls in `latest`, the oldest first.
    order: VecDeque<u64>,
}

impl Calls {
    /// Whether an earlier try of the call runs.
    fn is_busy(&self, call: u64) -> bool {
        self.running.contains_key(&call)
    }

    /// Whether no later try of the call has come.
    fn is_latest(&self, call: u64, again: u32) -> bool {
        self.latest.get(&call).is_none_or(|latest| again >= *latest)
    }

    fn came_again(&mut self, call: u64, again: u32) {
        if self.latest.insert(call, again).is_none() {
            self.order.push_back(call);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.latest.remove(&oldest);
        }
    }
}

impl Repeats {
    /// Executes try `again` of a call, 0 for its first. `ETIMEDOUT`, and nothing was done, if a
    /// later try has come, or if an earlier one goes on for longer than a caller waits.
    pub(crate) fn run<T>(
        &self,
        call: u64,
        again: u32,
        work: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut calls = lock(&self.calls);
        if again > 0 && calls.is_latest(call, again) {
            calls.came_again(call, again);
            // An earlier try that waits gives up its place.
            self.ended.notify_all();
            let waits = |calls: &mut Calls| calls.is_busy(call) && calls.is_latest(call, again);
            let waited = self.ended.wait_timeout_while(calls, PATIENCE, waits);
            calls = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        if !calls.is_latest(call, again) || again > 0 && calls.is_busy(call) {
            return Err(Errno::ETIMEDOUT);
        }
        *calls.running.entry(call).or_default() += 1;
        drop(calls);
        let _running = Running { repeats: self, call };
        work()
    }
}

/// A try that runs; also a panic ends it.
struct Running<'a> {
    repeats: &'a Repeats,
    call: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.repeats.calls);
        if let Some(count) = calls.running.get_mut(&self.call) {
            *count -= 1;
            if *count == 0 {
                calls.running.remove(&self.call);
            }
        }
        self.repeats.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    #[test]
    fn a_try_that_comes_after_a_later_one_does_nothing() {
        let repeats = Repeats::default();
        let written = Mutex::new(Vec::new());
        let write = |call, again, what: &'static str| {
            repeats.run(call, again, || {
                lock(&written).push(what);
                Ok(())
            })
        };
        assert_eq!(write(7, 1, "second try"), Ok(()));
        assert_eq!(write(8, 0, "what the program wrote then"), Ok(()));
        assert_eq!(write(7, 0, "first try"), Err(Errno::ETIMEDOUT));
        assert_eq!(write(7, 2, "third try"), Ok(()));
        assert_eq!(write(7, 1, "second try, late"), Err(Errno::ETIMEDOUT));
        assert_eq!(*lock(&written), ["second try", "what the program wrote then", "third try"]);
    }

    #[test]
    fn a_try_waits_for_an_earlier_one_that_runs() {
        let repeats = Repeats::default();
        let (begun, has_begun) = channel();
        let (go, may_go) = channel::<()>();
        let (done, order) = channel();
        std::thread::scope(|scope| {
            let (repeats, first_done) = (&repeats, done.clone());
            scope.spawn(move || {
                repeats.run(7, 0, || {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    first_done.send("first").unwrap();
                    Ok(())
                })
            });
            has_begun.recv().unwrap();
            scope.spawn(move || repeats.run(7, 1, || Ok(done.send("second").map_err(|_| Errno::EIO))));
            // Other calls are not held up meanwhile.
            assert_eq!(repeats.run(8, 0, || Ok(1)), Ok(1));
            let early = order.recv_timeout(Duration::from_millis(50));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "the second waits");
            go.send(()).unwrap();
            assert_eq!((order.recv().unwrap(), order.recv().unwrap()), ("first", "second"));
        });
        assert!(lock(&repeats.calls).running.is_empty());
    }

    #[test]
    fn a_try_that_waits_ends_when_a_later_one_comes() {
        let repeats = Repeats::default();
        let (begun, has_begun) = channel();
        let (go, may_go) = channel::<()>();
        let (done, second_done) = channel();
        std::thread::scope(|scope| {
            let repeats = &repeats;
            scope.spawn(move || {
                repeats.run(7, 0, || {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    Ok(())
                })
            });
            has_begun.recv().unwrap();
            scope.spawn(move || done.send(repeats.run(7, 1, || Ok(()))));
            let is_second = || lock(&repeats.calls).latest.get(&7) == Some(&1);
            while !is_second() {
                std::thread::yield_now();
            }
            let third = scope.spawn(|| repeats.run(7, 2, || Ok(())));
            assert_eq!(second_done.recv().unwrap(), Err(Errno::ETIMEDOUT), "while the first still runs");
            go.send(()).unwrap();
            assert_eq!(third.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn only_so_many_calls_are_remembered_and_none_that_came_once() {
        let repeats = Repeats::default();
        for call in 0..REMEMBERED_MAX as u64 + 10 {
            repeats.run(call, 1, || Ok(())).unwrap();
            repeats.run(1 << 40 | call, 0, || Ok(())).unwrap();
        }
        let calls = lock(&repeats.calls);
        assert_eq!((calls.latest.len(), calls.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(calls.running.is_empty());
    }
}
