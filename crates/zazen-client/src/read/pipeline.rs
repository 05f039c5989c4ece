//! Tasks in, frames out: the queue between feeder, reader threads and the consumer.
//!
//! Invariants: bytes of frames read and not taken stay within `memory_max`, but for a single larger frame; at
//! most `readers` threads read at a time, the consumer included; nobody waits for room while holding
//! results back, so that the consumer always gets on.
//!
//! Frames that are in memory are copied by few threads: more only drive each other's bytes out of the
//! processor's caches. Frames that are not are waited for by many: a flash device wants several in flight. Which
//! of the two it is, the reads themselves tell. While they tell of a disk, the disk is asked before they are:
//! for all frames that a thread takes together, and for large windows of larger frames and of packed ones.
//!
//! The consumer itself reads when nothing is ready: warm frames then cost no thread switch, and reader threads
//! run ahead only while it computes.

use super::access::{Access, Got, LastFile};
use super::job::Job;
use super::{extent, window};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, Result};

/// Small frames are taken together up to so many bytes, to pay for a lock once.
const TOGETHER_BYTES: u64 = 256 << 10;
const TOGETHER_MAX: usize = 16;
/// Frames packed in one file cost less than one of their own.
const PACKED_TOGETHER_MAX: usize = 256;
/// Tasks below which the feeder fetches more: each may hold a descriptor.
const TASKS_LOW: usize = 256;
/// The same for small frames, which share descriptors: as many as readers get through while a batch is on its way.
const SMALL_TASKS_LOW: usize = 4096;
/// Read-ahead that is of use for files in memory, in bytes: their copies are still in the processor's cache when
/// the consumer comes to them.
const WARM_AHEAD: u64 = 8 << 20;
/// Takes in a row without a wait for the disk after which the files count as being in memory.
const WARM_AFTER: u32 = 32;
/// Takes after which frames are no longer thought to come from the disk, but looked for in memory first.
const DOUBT_AFTER: u32 = WARM_AFTER - 2;

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
    /// The file of packed frames that was asked of the disk last, and up to where.
    brought: (PathBuf, u64),
}

/// Tasks taken by one thread, to be carried out together.
#[derive(Default)]
struct Taken {
    tasks: Vec<Task>,
    /// The frames are thought to come from the disk.
    from_disk: bool,
    /// Where in the first frame's file a window is to be brought, for this thread and others.
    bring: Option<u64>,
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
                brought: (PathBuf::new(), 0),
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
        while !state.runs_low() && !access.stopped() {
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
    fn take_tasks(&self, state: &mut State) -> Taken {
        let mut taken = Taken::default();
        let limit = self.limit(state);
        if state.reading >= limit {
            return taken;
        }
        let packed = state
            .tasks
            .front()
            .is_some_and(|task| matches!(task, Task::Read(job) if job.small_place().is_some()));
        let most = if packed { PACKED_TOGETHER_MAX } else { TOGETHER_MAX };
        let most = most.min(state.tasks.len().div_ceil(limit)).max(1);
        let mut bytes = 0;
        while taken.tasks.len() < most {
            match state.tasks.front() {
                Some(Task::Read(job)) => {
                    let together = bytes + job.length;
                    let full = !taken.tasks.is_empty() && together > TOGETHER_BYTES;
                    if full || !self.room(state, job.length) {
                        break;
                    }
                    bytes = together;
                    self.used.fetch_add(job.length, Ordering::SeqCst);
                }
                Some(_) => {}
                None => break,
            }
            taken.tasks.extend(state.tasks.pop_front());
        }
        if !taken.tasks.is_empty() {
            let cold = self.cold.swap(false, Ordering::Relaxed);
            state.warm_takes = if cold { 0 } else { state.warm_takes.saturating_add(1) };
            taken.from_disk = state.warm_takes < DOUBT_AFTER;
            if taken.from_disk {
                taken.bring = state.bring(&taken.tasks);
            }
            state.reading += 1;
            state.in_hand += taken.tasks.len();
        }
        if state.feeder_waits && state.runs_low() {
            self.low.notify_one();
        }
        taken
    }

    /// Carries out tasks outside the lock. A task that was only opened comes back to be charged for.
    fn carry_out(&self, access: &Access, taken: Taken, last: &mut LastFile, done: &mut Done) {
        let Taken { tasks, from_disk, bring } = taken;
        let on_cold = || self.is_cold();
        if from_disk && !access.takes_turns() {
            ask_for(&tasks, bring);
        }
        let mut tasks = tasks.into_iter().peekable();
        while let Some(task) = tasks.next() {
            match task {
                Task::Direct(number) => match access.open_direct(number, last) {
                    Ok(job) => done.opened.push(job),
                    Err(error) => done.outcomes.push(Outcome { number, got: Err(error), charged: 0 }),
                },
                Task::Read(job) if job.small_place().is_some() => {
                    let mut jobs = vec![job];
                    while let Some(Task::Read(job)) = tasks.next_if(|task| follows(&jobs, task)) {
                        jobs.push(job);
                    }
                    extent::read(access, jobs, &on_cold, &mut |number, charged, got| {
                        done.outcomes.push(Outcome { number, got, charged });
                    });
                }
                Task::Read(job) => {
                    let (number, charged) = (job.number, job.length);
                    // Dropped readers have no use for the rest.
                    let Some(got) = access.read_from(from_disk, job, &on_cold) else { continue };
                    done.outcomes.push(Outcome { number, got, charged });
                }
                Task::Failed(number, error) => {
                    done.outcomes.push(Outcome { number, got: Err(error), charged: 0 });
                }
            }
        }
    }

    /// Puts back what [`Pipeline::carry_out`] opened, in front and in order. Without a next frame to read at once the
    /// disk is left to others.
    fn settle(&self, access: &Access, state: &mut State, taken: usize, opened: &mut Vec<Job>) {
        state.reading -= 1;
        state.in_hand -= taken;
        for job in opened.drain(..).rev() {
            state.tasks.push_front(Task::Read(job));
        }
        let goes_on = match state.tasks.front() {
            Some(Task::Read(job)) => job.is_cached() && self.room(state, job.length),
            _ => false,
        };
        if !goes_on && state.reading == 0 {
            access.rest();
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
            let taken = self.take_tasks(&mut state);
            if taken.tasks.is_empty() {
                if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                    return;
                }
                state = self.wait_for_work(state, access);
                continue;
            }
            drop(state);
            let count = taken.tasks.len();
            self.carry_out(access, taken, &mut last, &mut done);
            state = self.lock();
            self.settle(access, &mut state, count, &mut done.opened);
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
            let taken = self.take_tasks(&mut state);
            if taken.tasks.is_empty() {
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
            let count = taken.tasks.len();
            self.carry_out(access, taken, last, &mut done);
            state = self.lock();
            self.settle(access, &mut state, count, &mut done.opened);
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

impl State {
    /// Whether the feeder shall fetch more.
    fn runs_low(&self) -> bool {
        let is_small = |task: &Task| matches!(task, Task::Read(job) if job.small_place().is_some());
        let enough = if self.tasks.back().is_some_and(is_small) { SMALL_TASKS_LOW } else { TASKS_LOW };
        self.tasks.len() < enough
    }

    /// Where to bring a window of the file that packs `tasks`, if it is time to: half a window before readers come
    /// to it.
    fn bring(&mut self, tasks: &[Task]) -> Option<u64> {
        let Some(Task::Read(job)) = tasks.first() else { return None };
        let (_, begin) = job.small_place()?;
        if self.brought.0 != job.path || self.brought.1 + window::WINDOW < begin {
            self.brought = (job.path.clone(), begin);
        }
        let from = self.brought.1.max(begin);
        if begin + window::WINDOW / 2 < from {
            return None;
        }
        self.brought.1 = window::next(from);
        Some(from)
    }
}

/// Whether `task` is to read what lies close behind the last of `jobs`.
fn follows(jobs: &[Job], task: &Task) -> bool {
    matches!((jobs.last(), task), (Some(last), Task::Read(next)) if last.is_followed_by(next))
}

/// Has the disk begin with all of `tasks` before the first of them is waited for.
fn ask_for(tasks: &[Task], bring: Option<u64>) {
    if let (Some(at), Some(Task::Read(job))) = (bring, tasks.first())
        && let Some((file, _)) = job.small_place()
    {
        window::bring(file, at);
    }
    // The first one shall be found cold, if it is.
    for task in tasks.iter().skip(1) {
        if let Task::Read(job) = task
            && job.small_place().is_none()
        {
            job.ask_for();
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
mod tests;
