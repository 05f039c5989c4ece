//! Tasks in, frames out: the queue between feeder, reader threads and the consumer.
//!
//! Invariants: bytes of frames read and not taken stay within `memory_max`, but for a single larger frame; at
//! most `readers` threads read at a time, the consumer included; nobody waits for room while holding
//! results back, so that the consumer always gets on.
//!
//! Frames that are in memory are copied by few threads: more only drive each other's bytes out of the
//! processor's caches. Frames that are not are waited for by many: a flash device wants several in flight. Which
//! of the two it is, the reads themselves tell.
//!
//! The consumer itself reads when nothing is ready: warm frames then cost no thread switch, and reader threads
//! run ahead only while it computes.

use super::access::{Access, Got, LastFile};
use super::job::Job;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, Result};

/// Small frames are taken together up to so many bytes, to pay for a lock once.
const TOGETHER_BYTES: u64 = 256 << 10;
const TOGETHER_MAX: usize = 16;
/// Tasks below which the feeder fetches more.
const TASKS_LOW: usize = 64;
/// Read-ahead that is of use for files in memory, in bytes: their copies are still in the processor's cache when
/// the consumer comes to them.
const WARM_AHEAD: u64 = 8 << 20;
/// Takes in a row without a wait for the disk after which the files count as being in memory.
const WARM_AFTER: u32 = 16;

/// One frame's way through the pipeline.
pub(crate) enum Task {
    /// Open it on the backing store, then read it.
    Direct(u64),
    /// Read it.
    Read(Job),
    /// It could not be had.
    Failed(u64, Error),
}

/// What became of a frame.
pub(crate) struct Outcome {
    pub number: u64,
    pub got: Result<Got>,
    /// Bytes counted against the bound.
    charged: u64,
}

struct State {
    tasks: VecDeque<Task>,
    results: VecDeque<Outcome>,
    /// Threads that are reading now.
    reading: usize,
    /// Tasks that threads have in hand.
    in_hand: usize,
    fed: bool,
    /// Takes since a read had to wait for the disk.
    warm_takes: u32,
    idle_readers: usize,
    consumer_waits: bool,
    feeder_waits: bool,
}

/// The queue.
pub(crate) struct Pipeline {
    state: Mutex<State>,
    /// Readers wait for tasks, for room and for their turn.
    work: Condvar,
    /// The consumer waits for results.
    ready: Condvar,
    /// The feeder waits for tasks to run low.
    low: Condvar,
    /// Bytes charged and not taken.
    used: AtomicU64,
    /// A reader waits for room.
    starved: AtomicBool,
    memory_max: u64,
    /// Threads that may wait for the disk at a time.
    readers: usize,
    /// Threads that may copy at a time where nothing waits for the disk.
    copiers: usize,
    /// A read had to wait for the disk since the last take.
    cold: AtomicBool,
    /// Starts the threads that only waiting for the disk needs.
    grow: Mutex<Option<Grow>>,
}

/// Starts more reader threads; called once, by whoever first waits for the disk.
pub(crate) type Grow = Box<dyn FnOnce() + Send>;

impl Pipeline {
    pub(crate) fn new(memory_max: u64, readers: usize) -> Pipeline {
        Pipeline {
            state: Mutex::new(State {
                tasks: VecDeque::new(),
                results: VecDeque::new(),
                reading: 0,
                in_hand: 0,
                fed: false,
                warm_takes: WARM_AFTER,
                idle_readers: 0,
                consumer_waits: false,
                feeder_waits: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            low: Condvar::new(),
            used: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            memory_max,
            readers: readers.max(1),
            copiers: copiers().min(readers).max(1),
            cold: AtomicBool::new(false),
            grow: Mutex::new(None),
        }
    }

    /// Reader threads to start with; [`Pipeline::grow_by`] brings the rest. The consumer is a reader too.
    pub(crate) fn readers_at_first(&self) -> usize {
        self.copiers.saturating_sub(1).max(1)
    }

    /// How to come to all `readers` when they are needed.
    pub(crate) fn grow_by(&self, grow: Grow) {
        *self.grow.lock().unwrap_or_else(PoisonError::into_inner) = Some(grow);
    }

    /// Threads that may read now.
    fn limit(&self, state: &State) -> usize {
        if state.warm_takes >= WARM_AFTER { self.copiers } else { self.readers }
    }

    /// A read waits for the disk: others shall wait with it.
    fn is_cold(&self) {
        if self.cold.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        state.warm_takes = 0;
        self.wake_readers(&state);
        drop(state);
        let grow = self.grow.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(grow) = grow {
            grow();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everyone to see that the reader is being dropped. The caller has set `stop`.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.tasks.clear();
        state.results.clear();
        drop(state);
        self.work.notify_all();
        self.low.notify_all();
        self.ready.notify_all();
    }

    /// Feeder: waits until tasks run low; false if the reader is being dropped.
    pub(crate) fn wait_low(&self, access: &Access) -> bool {
        let mut state = self.lock();
        while state.tasks.len() >= TASKS_LOW && !access.stopped() {
            state.feeder_waits = true;
            state = self.low.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.feeder_waits = false;
        }
        !access.stopped()
    }

    /// Feeder: hands over tasks.
    pub(crate) fn feed(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut state = self.lock();
        for task in tasks {
            match task {
                Task::Failed(number, error) => {
                    state.results.push_back(Outcome { number, got: Err(error), charged: 0 });
                }
                task => state.tasks.push_back(task),
            }
        }
        self.wake(&state);
    }

    /// Feeder: nothing more will come.
    pub(crate) fn fed(&self) {
        let mut state = self.lock();
        state.fed = true;
        drop(state);
        self.work.notify_all();
        self.ready.notify_all();
    }

    fn wake(&self, state: &State) {
        if state.consumer_waits && !(state.results.is_empty() && state.tasks.is_empty()) {
            self.ready.notify_one();
        }
        self.wake_readers(state);
    }

    /// Wakes as many readers as may read now.
    fn wake_readers(&self, state: &State) {
        let free = self.limit(state).saturating_sub(state.reading);
        for _ in 0..free.min(state.idle_readers).min(state.tasks.len()) {
            self.work.notify_one();
        }
    }

    fn room(&self, state: &State, bytes: u64) -> bool {
        let used = self.used.load(Ordering::SeqCst);
        used == 0 || used.saturating_add(bytes) <= self.bound(state)
    }

    fn bound(&self, state: &State) -> u64 {
        if state.warm_takes >= WARM_AFTER { self.memory_max.min(WARM_AHEAD) } else { self.memory_max }
    }

    /// Takes some tasks that may be read now, charging their bytes; empty if there are none.
    fn take_tasks(&self, state: &mut State, most: usize) -> Vec<Task> {
        let mut taken = Vec::new();
        let limit = self.limit(state);
        if state.reading >= limit {
            return taken;
        }
        let most = most.min(state.tasks.len().div_ceil(limit));
        let mut bytes = 0;
        while taken.len() < most.max(1) {
            match state.tasks.front() {
                Some(Task::Read(job)) => {
                    let together = bytes + job.length;
                    if !taken.is_empty() && together > TOGETHER_BYTES || !self.room(state, job.length) {
                        break;
                    }
                    bytes = together;
                    self.used.fetch_add(job.length, Ordering::SeqCst);
                }
                Some(_) => {}
                None => break,
            }
            taken.extend(state.tasks.pop_front());
        }
        if !taken.is_empty() {
            let cold = self.cold.swap(false, Ordering::Relaxed);
            state.warm_takes = if cold { 0 } else { state.warm_takes.saturating_add(1) };
            state.reading += 1;
            state.in_hand += taken.len();
        }
        if state.feeder_waits && state.tasks.len() < TASKS_LOW {
            self.low.notify_one();
        }
        taken
    }

    /// Carries out tasks outside the lock. A task that was only opened comes back to be charged for.
    fn carry_out(&self, access: &Access, tasks: Vec<Task>, last: &mut LastFile, done: &mut Done) {
        for task in tasks {
            match task {
                Task::Direct(number) => match access.open_direct(number, last) {
                    Ok(job) => done.opened.push(job),
                    Err(error) => done.outcomes.push(Outcome { number, got: Err(error), charged: 0 }),
                },
                Task::Read(job) => {
                    let (number, charged) = (job.number, job.length);
                    // Dropped readers have no use for the rest.
                    let Some(got) = access.read(job, &|| self.is_cold()) else { continue };
                    done.outcomes.push(Outcome { number, got, charged });
                }
                Task::Failed(number, error) => {
                    done.outcomes.push(Outcome { number, got: Err(error), charged: 0 });
                }
            }
        }
    }

    /// Puts back what [`Pipeline::carry_out`] opened, in front and in order.
    fn settle(&self, state: &mut State, taken: usize, opened: &mut Vec<Job>) {
        state.reading -= 1;
        state.in_hand -= taken;
        for job in opened.drain(..).rev() {
            state.tasks.push_front(Task::Read(job));
        }
    }

    /// A reader thread's life.
    pub(crate) fn run_reader(&self, access: &Access) {
        let mut last: LastFile = None;
        let mut done = Done::default();
        let mut state = self.lock();
        loop {
            if access.stopped() {
                return;
            }
            let tasks = self.take_tasks(&mut state, TOGETHER_MAX);
            if tasks.is_empty() {
                if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                    return;
                }
                state = self.wait_for_work(state, access);
                continue;
            }
            drop(state);
            let taken = tasks.len();
            self.carry_out(access, tasks, &mut last, &mut done);
            state = self.lock();
            self.settle(&mut state, taken, &mut done.opened);
            state.results.extend(done.outcomes.drain(..));
            if state.consumer_waits {
                self.ready.notify_one();
            }
            if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                self.work.notify_all();
            }
        }
    }

    fn wait_for_work<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        access: &Access,
    ) -> MutexGuard<'a, State> {
        if let (Some(Task::Read(job)), true) = (state.tasks.front(), state.reading < self.limit(&state)) {
            self.starved.store(true, Ordering::SeqCst);
            // The consumer may have made room between the look at it and the flag: look again.
            if self.room(&state, job.length) {
                return state;
            }
        }
        if access.stopped() {
            return state;
        }
        state.idle_readers += 1;
        state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle_readers -= 1;
        state
    }

    /// Consumer: moves what is ready into `local`, or reads some itself. False when all is done.
    pub(crate) fn next(&self, access: &Access, last: &mut LastFile, local: &mut VecDeque<Outcome>) -> bool {
        let mut done = Done::default();
        let mut state = self.lock();
        loop {
            if !state.results.is_empty() {
                std::mem::swap(&mut state.results, local);
                return true;
            }
            let tasks = self.take_tasks(&mut state, TOGETHER_MAX);
            if tasks.is_empty() {
                if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                    self.work.notify_all();
                    return false;
                }
                state.consumer_waits = true;
                state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.consumer_waits = false;
                continue;
            }
            drop(state);
            let taken = tasks.len();
            self.carry_out(access, tasks, last, &mut done);
            state = self.lock();
            self.settle(&mut state, taken, &mut done.opened);
            // While the consumer is away somebody shall go on; a reader that is at it will.
            if state.reading == 0 {
                self.wake_readers(&state);
            }
            state.results.extend(done.outcomes.drain(..));
        }
    }

    /// Consumer: an outcome leaves the read-ahead.
    pub(crate) fn taken(&self, outcome: &Outcome) {
        if outcome.charged == 0 {
            return;
        }
        let used = self.used.fetch_sub(outcome.charged, Ordering::SeqCst) - outcome.charged;
        if !self.starved.load(Ordering::SeqCst) {
            return;
        }
        let state = self.lock();
        // Woken at three quarters, readers find work for a while.
        if used <= self.bound(&state) / 4 * 3 {
            self.starved.store(false, Ordering::SeqCst);
            self.wake_readers(&state);
        }
    }
}

/// Threads that copy from the page cache at a time: two make up for the checksum; more gain nothing.
fn copiers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(2)
}

#[derive(Default)]
struct Done {
    outcomes: Vec<Outcome>,
    opened: Vec<Job>,
}

#[cfg(test)]
mod tests {
    use super::super::buffer::Pool;
    use super::super::job::Data;
    use super::*;
    use crate::direct::DirectSpec;
    use std::sync::Arc;

    fn job(number: u64, length: u64) -> Task {
        Task::Read(Job {
            number,
            delivery: None,
            path: "inline".into(),
            length,
            checksum: None,
            data: Data::Inline(Arc::new(vec![7; length as usize]), 0),
        })
    }

    fn access() -> Access {
        let spec = DirectSpec { path: "/none".into(), pattern: None, backing: None };
        Access::new(Pool::new(1 << 20), true, None, spec, None)
    }

    /// Feeds `sizes`, lets readers do all they may before each take of the consumer, and returns the most bytes
    /// that were read ahead at a time.
    fn most_ahead(sizes: &[u64], memory_max: u64, readers: usize) -> u64 {
        let (pipeline, access) = (Pipeline::new(memory_max, readers), access());
        // Files on a disk: the bound is the user's own.
        pipeline.lock().warm_takes = 0;
        pipeline.feed(sizes.iter().enumerate().map(|(number, size)| job(number as u64, *size)));
        pipeline.fed();
        let (mut most, mut taken, mut local, mut last) = (0, 0, VecDeque::new(), None);
        loop {
            loop {
                let mut state = pipeline.lock();
                state.warm_takes = 0;
                let tasks = pipeline.take_tasks(&mut state, TOGETHER_MAX);
                if tasks.is_empty() {
                    break;
                }
                drop(state);
                let mut done = Done::default();
                let count = tasks.len();
                pipeline.carry_out(&access, tasks, &mut last, &mut done);
                let mut state = pipeline.lock();
                pipeline.settle(&mut state, count, &mut done.opened);
                state.results.extend(done.outcomes);
            }
            most = most.max(pipeline.used.load(Ordering::SeqCst));
            if local.is_empty() && !pipeline.next(&access, &mut last, &mut local) {
                break;
            }
            if let Some(outcome) = local.pop_front() {
                pipeline.taken(&outcome);
                taken += 1;
            }
        }
        assert_eq!(taken, sizes.len());
        assert_eq!(pipeline.used.load(Ordering::SeqCst), 0);
        most
    }

    #[test]
    fn read_ahead_stays_within_the_bound() {
        assert_eq!(most_ahead(&[300; 40], 1000, 4), 900);
        assert_eq!(most_ahead(&[300; 40], 300, 4), 300);
        assert!(most_ahead(&[1, 999, 5, 800, 300, 700, 2], 1000, 2) <= 1000);
        assert_eq!(most_ahead(&[], 1000, 2), 0);
        assert_eq!(most_ahead(&[0; 100], 1, 2), 0);
    }

    #[test]
    fn a_frame_beyond_the_bound_comes_alone() {
        assert_eq!(most_ahead(&[100, 5000, 100, 5000, 5000], 1000, 8), 5000);
    }

    #[test]
    fn files_in_memory_are_read_ahead_only_as_far_as_caches_reach() {
        let pipeline = Pipeline::new(1 << 40, 4);
        pipeline.feed((0..100).map(|number| job(number, 1 << 20)));
        let mut state = pipeline.lock();
        while !pipeline.take_tasks(&mut state, 1).is_empty() {
            state.reading = 0;
        }
        assert_eq!(pipeline.used.load(Ordering::SeqCst), WARM_AHEAD);
    }
}
