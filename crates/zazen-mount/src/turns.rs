//! Which thread serves a request, so that nobody's requests keep another user's waiting.
//!
//! The threads that read the kernel's requests (readers) serve them, too: that costs least. But a
//! request may take long, and one user can make many. So [`SPARE`] readers never serve. What a
//! reader gets while all others serve goes to the queue of its user. Threads of a pool take
//! requests from the queues of all users in turn.
//!
//! - There is always a reader that reads the next request, whatever the others wait for.
//! - A user has at most [`THREADS_OF_USER_MAX`] threads of the pool. A user that has none gets one,
//!   whatever others have.
//! - What of a user waits takes at most [`WAITING_OF_USER_MAX`] requests and about
//!   [`BYTES_OF_USER_MAX`] of memory here. The kernel sends each request once, so what is beyond
//!   cannot stay with the kernel: requests beyond fail, and long writes become short ones.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Readers that only read while all others serve. Two, because handing over a long write takes
/// time.
const SPARE: usize = 2;
/// Threads of the pool that work for one user at a time.
pub(crate) const THREADS_OF_USER_MAX: usize = 32;
/// Threads of the pool, and one more for each user who has none. Each has a connection to the
/// daemon while it waits, and the daemon has 1,024.
const THREADS_MAX: usize = 512;
/// Requests of one user that wait; one more is `EIO`. Each belongs to a thread of the user's.
const WAITING_OF_USER_MAX: usize = 16_384;
/// Bytes that one user's requests bring along, of those that wait and those that are served.
const BYTES_OF_USER_MAX: usize = 128 << 20;
/// What is written of a write that has no room there.
const SHORT_WRITE_BYTES: usize = 4 << 10;
/// A thread of the pool ends when it has had nothing to do for so long.
const IDLE: Duration = Duration::from_secs(5);

/// A request that was handed over.
struct Job {
    /// What it brings along.
    bytes: usize,
    work: Box<dyn FnOnce() + Send>,
}

/// The requests of a user that were handed over.
#[derive(Default)]
struct OfUser {
    waiting: VecDeque<Job>,
    /// How many of them may begin: as often is the user in [`Pool::turns`].
    in_turn: usize,
    running: usize,
    bytes: usize,
}

#[derive(Default)]
struct Pool {
    /// Those of whom there is something.
    users: HashMap<u32, OfUser>,
    /// Whose request begins next.
    turns: VecDeque<u32>,
    threads: usize,
    /// Threads without a request. As many as there are turns, unless there are too many threads.
    free: usize,
}

impl Pool {
    /// Enters a request. Whether it needs another thread; the request, if too many wait.
    fn enter(&mut self, uid: u32, job: Job) -> Result<bool, Job> {
        let of_user = self.users.entry(uid).or_default();
        if of_user.waiting.len() >= WAITING_OF_USER_MAX {
            of_user.bytes -= job.bytes;
            return Err(job);
        }
        of_user.waiting.push_back(job);
        let begun = of_user.running + of_user.in_turn;
        if begun < THREADS_OF_USER_MAX {
            of_user.in_turn += 1;
            if begun == 0 { self.turns.push_front(uid) } else { self.turns.push_back(uid) }
        }
        let grows = self.turns.len() > self.free && (self.threads < THREADS_MAX || begun == 0);
        if grows {
            self.threads += 1;
            self.free += 1;
        }
        Ok(grows)
    }

    /// The request that begins now.
    fn begin(&mut self) -> Option<(u32, Job)> {
        let uid = self.turns.pop_front()?;
        let of_user = self.users.get_mut(&uid)?;
        let job = of_user.waiting.pop_front()?;
        of_user.in_turn -= 1;
        of_user.running += 1;
        self.free -= 1;
        Some((uid, job))
    }

    /// A request that had begun has ended: another one of its user may begin.
    fn end(&mut self, uid: u32, bytes: usize) {
        self.free += 1;
        let Some(of_user) = self.users.get_mut(&uid) else { return };
        of_user.running -= 1;
        of_user.bytes -= bytes;
        if of_user.waiting.len() > of_user.in_turn {
            of_user.in_turn += 1;
            self.turns.push_back(uid);
        }
        self.forget_if_idle(uid);
    }

    fn forget_if_idle(&mut self, uid: u32) {
        let is_idle = |of: &OfUser| of.running == 0 && of.waiting.is_empty() && of.bytes == 0;
        if self.users.get(&uid).is_some_and(is_idle) {
            self.users.remove(&uid);
        }
    }
}

/// Who serves requests.
pub(crate) struct Turns {
    /// Readers that may serve at a time, and those that do.
    serving_max: usize,
    serving: AtomicUsize,
    pool: Mutex<Pool>,
    /// Something may begin.
    woken: Condvar,
    /// Nobody has anything here any more.
    ended: Condvar,
}

/// A reader serves until this is dropped.
pub(crate) struct ServedHere<'a>(&'a AtomicUsize);

impl Drop for ServedHere<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turns {
    /// For so many readers.
    pub(crate) fn new(readers: usize) -> Turns {
        Turns {
            serving_max: readers.saturating_sub(SPARE),
            serving: AtomicUsize::new(0),
            pool: Mutex::default(),
            woken: Condvar::new(),
            ended: Condvar::new(),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the reader itself may serve what it has read. If not, it hands the request over.
    pub(crate) fn serve_here(&self) -> Option<ServedHere<'_>> {
        let others = self.serving.fetch_add(1, Ordering::Relaxed);
        let here = ServedHere(&self.serving);
        (others < self.serving_max).then_some(here)
    }

    /// How many of `bytes` a request of the user's that is handed over may bring along: all, or
    /// what a short write has; all if they must come as a `whole`. They count until the request
    /// that brings them has ended.
    pub(crate) fn room_for(&self, uid: u32, bytes: usize, whole: bool) -> usize {
        let mut pool = self.pool();
        let of_user = pool.users.entry(uid).or_default();
        let has_room = whole || of_user.bytes.saturating_add(bytes) <= BYTES_OF_USER_MAX;
        let room = if has_room { bytes } else { bytes.min(SHORT_WRITE_BYTES) };
        of_user.bytes += room;
        room
    }

    /// Has another thread do `work`, which brings along the bytes that there was
    /// [room for](Self::room_for). If too many of the user's wait, `work` is dropped, and the reply
    /// in it answers the kernel with `EIO`.
    pub(crate) fn hand_over(self: &Arc<Self>, uid: u32, bytes: usize, work: impl FnOnce() + Send + 'static) {
        let entered = self.pool().enter(uid, Job { bytes, work: Box::new(work) });
        match entered {
            Ok(false) => self.woken.notify_one(),
            Ok(true) => {
                let turns = Arc::clone(self);
                let started = std::thread::Builder::new().name("turn".into()).spawn(move || turns.run());
                if started.is_err() {
                    self.serve_without_a_thread();
                }
            }
            Err(refused) => {
                tracing::debug!(uid, "too many requests of this user wait: one fails");
                drop(refused);
            }
        }
    }

    /// Serves until there is nothing to do for a while.
    fn run(&self) {
        let mut pool = self.pool();
        loop {
            if let Some((uid, job)) = pool.begin() {
                drop(pool);
                pool = self.serve(uid, job);
                continue;
            }
            let waited = self.woken.wait_timeout(pool, IDLE);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            pool = again;
            if waited.timed_out() && pool.turns.is_empty() {
                pool.threads -= 1;
                pool.free -= 1;
                return;
            }
        }
    }

    fn serve(&self, uid: u32, job: Job) -> MutexGuard<'_, Pool> {
        // The request of a panic is answered by the drop of its reply, and the thread goes on.
        _ = catch_unwind(AssertUnwindSafe(job.work));
        let mut pool = self.pool();
        pool.end(uid, job.bytes);
        if pool.users.is_empty() {
            self.ended.notify_all();
        }
        pool
    }

    /// The machine has no thread left. Those of the pool will come to it; if there is none, this
    /// thread does it.
    fn serve_without_a_thread(&self) {
        let mut pool = self.pool();
        if pool.threads == 1
            && let Some((uid, job)) = pool.begin()
        {
            drop(pool);
            pool = self.serve(uid, job);
        }
        pool.threads -= 1;
        pool.free -= 1;
    }

    /// Waits until all that was handed over has ended.
    pub(crate) fn finish(&self) {
        let mut pool = self.pool();
        while !pool.users.is_empty() {
            pool = self.ended.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Requests that say that they begin, and last until the test ends them.
    struct Held {
        turns: Arc<Turns>,
        gates: Vec<Sender<()>>,
    }

    impl Held {
        fn of(&mut self, uid: u32, bytes: usize, begun: &Sender<u32>) {
            let (gate, is_open) = channel::<()>();
            self.gates.push(gate);
            let begun = begun.clone();
            self.turns.hand_over(uid, bytes, move || {
                begun.send(uid).unwrap();
                _ = is_open.recv();
            });
        }
    }

    #[test]
    fn some_readers_never_serve() {
        let turns = Turns::new(5);
        let serving: Vec<_> = std::iter::from_fn(|| turns.serve_here()).take(9).collect();
        assert_eq!(serving.len(), 5 - SPARE);
        drop(serving);
        assert!(turns.serve_here().is_some());
        assert!(Turns::new(1).serve_here().is_none(), "a reader alone only reads");
    }

    #[test]
    fn one_users_requests_wait_for_each_other_and_nobody_elses() {
        let (begun, begins) = channel();
        let mut held = Held { turns: Arc::new(Turns::new(8)), gates: Vec::new() };
        // More users than the pool has threads for, each with more than its share.
        let users = THREADS_MAX as u32 / THREADS_OF_USER_MAX as u32 + 2;
        for _ in 0..THREADS_OF_USER_MAX + 3 {
            (0..users).for_each(|uid| held.of(uid, 0, &begun));
        }
        let mut of: HashMap<u32, usize> = HashMap::new();
        for _ in 0..THREADS_MAX {
            *of.entry(begins.recv_timeout(PATIENCE).unwrap()).or_default() += 1;
        }
        assert_eq!(of.len(), users as usize, "each has some");
        assert!(of.values().all(|running| *running <= THREADS_OF_USER_MAX), "{of:?}");
        for uid in users..users + 3 {
            held.of(uid, 0, &begun);
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(uid), "who has none gets a thread");
        }
        held.gates.clear();
        held.turns.finish();
        drop(begun);
        assert_eq!(begins.iter().count(), users as usize * (THREADS_OF_USER_MAX + 3) - THREADS_MAX);
    }

    #[test]
    fn what_waits_of_a_user_is_bounded_and_comes_in_its_order() {
        let (begun, begins) = channel();
        let mut held = Held { turns: Arc::new(Turns::new(8)), gates: Vec::new() };
        (0..THREADS_OF_USER_MAX).for_each(|_| held.of(7, 0, &begun));
        (0..THREADS_OF_USER_MAX).for_each(|_| assert_eq!(begins.recv_timeout(PATIENCE), Ok(7)));
        let (said, says) = channel();
        for number in 0..WAITING_OF_USER_MAX + 5 {
            let said = said.clone();
            held.turns.hand_over(7, 0, move || said.send(number).unwrap());
        }
        assert!(says.try_recv().is_err());
        held.gates.truncate(THREADS_OF_USER_MAX - 1);
        let mut first = Vec::new();
        for _ in 0..WAITING_OF_USER_MAX {
            first.push(says.recv_timeout(PATIENCE).unwrap());
        }
        assert!(first.into_iter().eq(0..WAITING_OF_USER_MAX), "one thread, in order");
        held.gates.clear();
        held.turns.finish();
        assert!(says.try_recv().is_err(), "those beyond were refused");
    }

    #[test]
    fn writes_beyond_a_users_room_are_short() {
        let (begun, _begins) = channel();
        let mut held = Held { turns: Arc::new(Turns::new(8)), gates: Vec::new() };
        for _ in 0..BYTES_OF_USER_MAX >> 20 {
            assert_eq!(held.turns.room_for(7, 1 << 20, false), 1 << 20);
            held.of(7, 1 << 20, &begun);
        }
        for (wanted, room) in [(1 << 20, SHORT_WRITE_BYTES), (100, 100)] {
            assert_eq!(held.turns.room_for(7, wanted, false), room);
            held.of(7, room, &begun);
        }
        assert_eq!(held.turns.room_for(8, 1 << 20, false), 1 << 20, "others have their own");
        held.of(8, 1 << 20, &begun);
        assert_eq!(held.turns.room_for(7, 1 << 20, true), 1 << 20);
        held.of(7, 1 << 20, &begun);
        held.gates.clear();
        held.turns.finish();
        assert_eq!(held.turns.room_for(7, 1 << 20, false), 1 << 20);
    }

    #[test]
    fn a_panic_ends_one_request() {
        let turns = Arc::new(Turns::new(8));
        turns.hand_over(7, 0, || panic!("a test's"));
        turns.finish();
        let (said, says) = channel();
        turns.hand_over(7, 0, move || said.send(()).unwrap());
        says.recv_timeout(PATIENCE).unwrap();
    }
}
