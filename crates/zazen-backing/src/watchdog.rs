//! Deadlines for file-system calls, which have none of their own. On a hung NFS mount, a thread
//! sleeps in the kernel and cannot be woken. So calls run on threads of a pool, and the caller
//! stops waiting at the deadline.
//!
//! Invariant: at most [`Bounds::stuck_max`] threads hang in calls that somebody waited for. While
//! that many hang, new calls fail at once. A call that returns late frees its thread. The threads
//! of a pool with an identity assume the identity before they run a call, and run none if they
//! cannot. Calls that nobody waits for have at most half of the threads, also if they hang.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::Identity;

/// How many threads a pool has.
#[derive(Clone, Copy)]
struct Bounds {
    /// The number of hanging calls at which further calls are refused.
    stuck_max: usize,
    /// The most threads; more callers queue.
    threads_max: usize,
}

/// The pool of the process's own identity.
const OWN: Bounds = Bounds { stuck_max: 16, threads_max: 48 };
/// The pool of one other identity.
const OTHER: Bounds = Bounds { stuck_max: 8, threads_max: 16 };
/// A thread without work ends after this time.
const IDLE_EXIT: Duration = Duration::from_secs(20);

/// A job learns whether its thread has the right identity. If not, it only passes the error on.
type Job = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stuck: usize,
    /// Calls that run or queue for nobody.
    aside: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; a poisoned one still has a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool whose calls have a deadline.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    deadline: Option<Duration>,
    bounds: Bounds,
    identity: Option<Arc<Identity>>,
}

/// The place of a call that runs for nobody. It is free again when the call ends or is dropped.
struct Aside(Arc<Shared>);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.state().aside -= 1;
    }
}

const WAITING: u8 = 0;
const ABANDONED: u8 = 1;
const DONE: u8 = 2;

impl Watchdog {
    /// `None`: calls run on the caller's own thread, without a bound.
    pub(crate) fn new(deadline: Option<Duration>) -> Watchdog {
        Watchdog { shared: Arc::default(), deadline, bounds: OWN, identity: None }
    }

    /// A pool whose threads are `identity`.
    pub(crate) fn of(identity: Identity, deadline: Duration) -> Watchdog {
        let identity = Some(Arc::new(identity));
        Watchdog { shared: Arc::default(), deadline: Some(deadline), bounds: OTHER, identity }
    }

    /// Whether calls run with the process's own identity.
    pub(crate) fn is_own(&self) -> bool {
        self.identity.is_none()
    }

    /// The bound on each call.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Runs `call`; `TimedOut` naming `what` if it takes longer than the deadline.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        what: impl Fn() -> String,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_long(1, what, call)
    }

    /// As [`Watchdog::run`] with `times` the deadline, for calls that take many round trips.
    pub(crate) fn run_long<T: Send + 'static>(
        &self,
        times: u32,
        what: impl Fn() -> String,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.deadline {
            None => call(),
            Some(deadline) => self.wait(deadline * times, what, self.start(call)),
        }
    }

    /// Runs all of `calls` at the same time; results in the same order.
    pub(crate) fn run_all<T: Send + 'static, F: FnOnce() -> Result<T> + Send + 'static>(
        &self,
        what: impl Fn() -> String,
        calls: Vec<F>,
    ) -> Vec<Result<T>> {
        let Some(deadline) = self.deadline else {
            return calls.into_iter().map(|call| call()).collect();
        };
        let started: Vec<_> = calls.into_iter().map(|call| self.start(call)).collect();
        started.into_iter().map(|call| self.wait(deadline, &what, call)).collect()
    }

    /// Runs `calls` at some time, for nobody: calls that may be left out. They are left out while
    /// no thread is free for them, so that nobody queues behind them, and beyond half of the
    /// threads, so that those who wait keep the other half.
    pub(crate) fn run_aside<F: FnOnce() + Send + 'static>(&self, calls: Vec<F>) {
        let taken = {
            let mut state = self.shared.state();
            let free =
                (self.bounds.threads_max - state.threads + state.idle).saturating_sub(state.queue.len());
            let room = (self.bounds.threads_max / 2).saturating_sub(state.aside);
            let taken = calls.len().min(room).min(free);
            state.aside += taken;
            taken
        };
        for call in calls.into_iter().take(taken) {
            let place = Aside(self.shared.clone());
            self.start(move || {
                call();
                drop(place);
                Ok(())
            });
        }
    }

    fn start<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Option<Started<T>> {
        let (answer, receiver) = mpsc::sync_channel(1);
        let fate = Arc::new(AtomicU8::new(WAITING));
        let (shared, seen) = (self.shared.clone(), fate.clone());
        let job = Box::new(move |admitted: Result<()>| {
            if seen.load(Ordering::Acquire) == ABANDONED {
                shared.state().stuck -= 1;
                return;
            }
            let result = admitted.and_then(|()| call());
            if seen.swap(DONE, Ordering::AcqRel) == ABANDONED {
                shared.state().stuck -= 1;
            }
            // The caller may have stopped waiting.
            answer.send(result).ok();
        });
        let mut state = self.shared.state();
        if state.stuck >= self.bounds.stuck_max {
            return None;
        }
        state.queue.push_back(job);
        if state.queue.len() > state.idle && state.threads < self.bounds.threads_max {
            let (shared, identity) = (self.shared.clone(), self.identity.clone());
            let name =
                identity.as_ref().map_or("backing".into(), |identity| format!("as {}", identity.uid()));
            let spawned =
                std::thread::Builder::new().name(name).spawn(move || serve(&shared, identity.as_deref()));
            // If no new thread can be started, an existing thread takes the job, or the deadline
            // passes.
            state.threads += usize::from(spawned.is_ok());
        }
        drop(state);
        self.shared.work.notify_one();
        Some(Started { receiver, fate })
    }

    fn wait<T>(
        &self,
        deadline: Duration,
        what: impl Fn() -> String,
        started: Option<Started<T>>,
    ) -> Result<T> {
        let Some(started) = started else {
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "{}: {} calls to this backing store hang already; check its mount",
                    what(),
                    self.bounds.stuck_max
                ),
            ));
        };
        if let Ok(result) = started.receiver.recv_timeout(deadline) {
            return result;
        }
        // Count before the outcome is published, so that the job cannot decrement the count first.
        self.shared.state().stuck += 1;
        if started.fate.swap(ABANDONED, Ordering::AcqRel) == DONE {
            self.shared.state().stuck -= 1;
            if let Ok(result) = started.receiver.recv() {
                return result;
            }
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            format!("{}: no answer within {:.0?}; the mount hangs, check its server", what(), deadline),
        ))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.work.notify_all();
    }
}

struct Started<T> {
    receiver: mpsc::Receiver<Result<T>>,
    fate: Arc<AtomicU8>,
}

fn serve(shared: &Shared, identity: Option<&Identity>) {
    let refused = identity.and_then(|identity| identity.assume().err());
    loop {
        let mut state = shared.state();
        let job = loop {
            if let Some(job) = state.queue.pop_front() {
                break job;
            }
            if state.closed {
                state.threads -= 1;
                return;
            }
            if refused.is_some() {
                // This thread must not be used. A later call tries a new thread.
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (back, waited) =
                shared.work.wait_timeout(state, IDLE_EXIT).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        };
        drop(state);
        job(match &refused {
            None => Ok(()),
            Some(error) => Err(Error::new(error.kind(), error.to_string())),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_call_that_hangs_times_out_and_the_pool_recovers() {
        let dog = Watchdog::new(Some(Duration::from_millis(30)));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let begun = Arc::new(AtomicUsize::new(0));
        // On a busy machine a call may time out before a thread begins it. That call never hangs.
        while begun.load(Ordering::Acquire) < OWN.stuck_max {
            let (gate, begun) = (gate.clone(), begun.clone());
            let hung = dog.run(
                || "stat /x".into(),
                move || {
                    begun.fetch_add(1, Ordering::AcqRel);
                    let mut open = gate.0.lock().unwrap();
                    while !*open {
                        open = gate.1.wait(open).unwrap();
                    }
                    Ok(())
                },
            );
            assert!(hung.is_err());
        }
        let refused = dog.run(|| "stat /x".into(), || Ok(())).unwrap_err();
        assert!(refused.to_string().contains("hang already"), "{refused}");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        while dog.shared.state().stuck > 0 {
            std::thread::yield_now();
        }
        // Long: the machine may be busy.
        assert_eq!(dog.run_long(2000, || "stat /x".into(), || Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_pool_that_cannot_become_its_user_runs_nothing() {
        // A thread cannot become the process's own user: it is that user already, with more rights.
        let own = zazen_core::Credentials { uid: zazen_env::identity::own_uid(), gid: 0, groups: vec![] };
        let dog = Watchdog::of(Identity::of(&own).unwrap(), Duration::from_secs(60));
        for _ in 0..3 {
            let ran = dog.run(|| "x".into(), || -> Result<()> { panic!("it ran") });
            assert_eq!(ran.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        dog.run_aside(vec![|| panic!("it ran"); 3]);
        while dog.shared.state().aside > 0 {
            std::thread::yield_now();
        }
    }

    /// Calls that wait until they may end.
    #[derive(Default)]
    struct Held {
        may_end: Mutex<bool>,
        ends: Condvar,
        begun: AtomicUsize,
    }

    impl Held {
        fn wait(&self) {
            self.begun.fetch_add(1, Ordering::AcqRel);
            let mut may_end = self.may_end.lock().unwrap();
            while !*may_end {
                may_end = self.ends.wait(may_end).unwrap();
            }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::Acquire)
        }

        fn end(&self) {
            *self.may_end.lock().unwrap() = true;
            self.ends.notify_all();
        }
    }

    #[test]
    fn calls_for_nobody_are_left_out_while_no_thread_is_free() {
        let dog = Watchdog::new(Some(Duration::from_secs(600)));
        let held = Arc::new(Held::default());
        std::thread::scope(|scope| {
            let call = |held: Arc<Held>| {
                move || {
                    held.wait();
                    Ok(())
                }
            };
            let calls = (0..OWN.threads_max).map(|_| call(held.clone())).collect();
            scope.spawn(|| dog.run_all(|| "x".into(), calls));
            while held.begun() < OWN.threads_max {
                std::thread::yield_now();
            }
            dog.run_aside(vec![|| panic!("it ran"); 3]);
            let aside = dog.shared.state().aside;
            held.end();
            assert_eq!(aside, 0);
        });
    }

    #[test]
    fn calls_for_nobody_leave_half_of_the_threads_to_those_who_wait() {
        let dog = Watchdog::new(Some(Duration::from_secs(600)));
        let held = Arc::new(Held::default());
        let call = || {
            let held = held.clone();
            move || held.wait()
        };
        let most = OWN.threads_max / 2;
        dog.run_aside((0..most + 7).map(|_| call()).collect());
        while held.begun() < most {
            std::thread::yield_now();
        }
        dog.run_aside(vec![call()]);
        for n in 0..100 {
            assert_eq!(dog.run(|| "x".into(), move || Ok(n)).unwrap(), n);
        }
        assert_eq!((held.begun(), dog.shared.state().aside), (most, most));
        held.end();
        while dog.shared.state().aside > 0 {
            std::thread::yield_now();
        }
        dog.run_aside(vec![call()]);
        while held.begun() == most {
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_callers_share_the_threads() {
        let dog = Arc::new(Watchdog::new(Some(Duration::from_secs(60))));
        std::thread::scope(|scope| {
            for caller in 0..8u64 {
                let dog = dog.clone();
                scope.spawn(move || {
                    for n in 0..200 {
                        assert_eq!(dog.run(|| "x".into(), move || Ok(caller * n)).unwrap(), caller * n);
                    }
                });
            }
        });
        let all = dog.run_all(|| "x".into(), (0..100).map(|n| move || Ok(n)).collect());
        assert!(all.into_iter().enumerate().all(|(n, got)| got.unwrap() == n));
    }
}
