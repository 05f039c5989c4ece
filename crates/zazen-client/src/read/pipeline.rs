//! The queue between feeder, reader threads and the consumer: tasks go in, frames come out.
//!
//! Invariants: the bytes of frames that were read and not taken stay within `memory_max`, except
//! for a single larger frame. At most `readers` threads read at a time, with the consumer. No
//! thread holds results back while it waits for room, so the consumer always makes progress.
//!
//! If frames are in memory, few threads copy them, because more threads would only evict each
//! other's bytes from the processor's caches. If frames are not in memory, many threads wait for
//! them, because a flash device is fastest with several reads in flight. The reads show which case
//! applies. While they miss memory, prefetch before reading: all frames that a thread takes
//! together, and large windows of larger frames and of packed frames.
//!
//! If nothing is ready, the consumer itself reads. Then warm frames cost no thread switch, and
//! reader threads run ahead only while the consumer computes. Where the processors are crowded,
//! reader threads leave frames in memory to the consumer (`crowd`).

use super::access::{Access, LastFile};
use super::job::Job;
use super::outcome::Outcome;
use super::record::Waits;
use super::{crowd, extent, window};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use zazen_core::Error;

/// Small frames are taken together up to this many bytes, so the lock is taken once.
const TOGETHER_BYTES: u64 = 256 << 10;
const TOGETHER_MAX: usize = 16;
/// More frames that are packed in one file are taken together, because each costs less than a file
/// of its own.
const PACKED_TOGETHER_MAX: usize = 256;
/// The feeder fetches more below this number of tasks. Each task may hold a descriptor.
const TASKS_LOW: usize = 256;
/// The same for small frames, which share descriptors: as many as readers finish while a batch is
/// fetched.
const SMALL_TASKS_LOW: usize = 4096;
/// Useful read-ahead for files in memory, in bytes. Within it, copies are still in the processor's
/// cache when the consumer takes them.
const WARM_AHEAD: u64 = 8 << 20;
/// After this many consecutive takes without a wait for the disk, the files count as being in
/// memory.
const WARM_AFTER: u32 = 32;
/// After this many takes, frames are no longer assumed to come from the disk; memory is probed
/// first.
const DOUBT_AFTER: u32 = WARM_AFTER - 2;

/// One frame's way through the pipeline.
pub(crate) enum Task {
    /// Open it on the backing store, then read it.
    Direct(u64),
    /// Read it.
    Read(Job),
    /// The frame could not be fetched.
    Failed(u64, Error),
}

struct State {
    tasks: VecDeque<Task>,
    results: VecDeque<Outcome>,
    /// Threads that are reading now.
    reading: usize,
    /// Tasks that threads are carrying out.
    in_hand: usize,
    fed: bool,
    /// The number of takes since a read last waited for the disk.
    warm_takes: u32,
    idle_readers: usize,
    consumer_waits: bool,
    feeder_waits: bool,
    /// The file of packed frames that was prefetched last, and up to which offset.
    brought: (Option<Arc<Path>>, u64),
}

/// Who takes tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Consumer,
    Reader,
}

/// Tasks taken by one thread, to be carried out together.
#[derive(Default)]
struct Taken {
    tasks: Vec<Task>,
    /// The frames are assumed to come from the disk.
    from_disk: bool,
    /// The place in the first frame's file at which to bring in a window, for this thread and
    /// others.
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
    /// Threads that may copy at a time if no read waits for the disk.
    copiers: usize,
    /// A read has waited for the disk since the last take.
    cold: AtomicBool,
    /// Starts the threads that are needed only to wait for the disk.
    grow: Mutex<Option<Grow>>,
}

/// Starts more reader threads. Called once, by the thread that first waits for the disk.
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
                brought: (None, 0),
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

    /// Reader threads to start with; [`Pipeline::grow_by`] brings the rest. The consumer is a
    /// reader too.
    pub(crate) fn readers_at_first(&self) -> usize {
        self.copiers.saturating_sub(1).max(1)
    }

    /// Sets how the remaining `readers` are started when they are needed.
    pub(crate) fn grow_by(&self, grow: Grow) {
        *self.grow.lock().unwrap_or_else(PoisonError::into_inner) = Some(grow);
    }

    /// Threads that may read now.
    fn limit(&self, state: &State) -> usize {
        if state.warm_takes >= WARM_AFTER { self.copiers } else { self.readers }
    }

    /// Whether reader threads leave the frames to the consumer: it can do as well alone.
    fn rests(state: &State) -> bool {
        state.warm_takes >= WARM_AFTER && crowd::rests()
    }

    /// A read waits for the disk, so other threads may wait too.
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

    /// Wakes all threads, so that they see that the reader is being dropped. The caller has set
    /// `stop`.
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
        if state.idle_readers == 0 || Self::rests(state) {
            return;
        }
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
    fn take_tasks(&self, state: &mut State, by: By) -> Taken {
        let mut taken = Taken::default();
        let limit = self.limit(state);
        if state.reading >= limit || (by == By::Reader && Self::rests(state)) {
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

    /// Carries out tasks outside the lock. A task that was only opened comes back, so that its
    /// bytes are counted.
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
                    // A dropped reader does not need the rest.
                    let Some(got) = access.read_from(from_disk, job, &on_cold) else { continue };
                    done.outcomes.push(Outcome { number, got, charged });
                }
                Task::Failed(number, error) => {
                    done.outcomes.push(Outcome { number, got: Err(error), charged: 0 });
                }
            }
        }
    }

    /// Puts back the tasks that [`Pipeline::carry_out`] opened, at the front and in order. If there
    /// is no next frame to read at once, gives up the turn at the disk.
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

    /// The loop of a reader thread.
    pub(crate) fn run_reader(&self, access: &Access) {
        let mut last: LastFile = None;
        let mut done = Done::default();
        let mut fare = crowd::Fare::of_this_thread();
        let mut state = self.lock();
        loop {
            if access.stopped() {
                return;
            }
            let taken = self.take_tasks(&mut state, By::Reader);
            if taken.tasks.is_empty() {
                if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                    return;
                }
                state = self.wait_for_work(state, access);
                continue;
            }
            drop(state);
            let (count, from_disk) = (taken.tasks.len(), taken.from_disk);
            self.carry_out(access, taken, &mut last, &mut done);
            if !from_disk {
                fare.judge();
            }
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
        let may_read = state.reading < self.limit(&state) && !Self::rests(&state);
        if let (Some(Task::Read(job)), true) = (state.tasks.front(), may_read) {
            self.starved.store(true, Ordering::SeqCst);
            // The consumer may have made room between the check and the flag, so check again.
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
    pub(crate) fn next(
        &self,
        access: &Access,
        last: &mut LastFile,
        local: &mut VecDeque<Outcome>,
        waits: &mut Waits,
    ) -> bool {
        let mut done = Done::default();
        let mut state = self.lock();
        loop {
            if !state.results.is_empty() {
                std::mem::swap(&mut state.results, local);
                return true;
            }
            let taken = self.take_tasks(&mut state, By::Consumer);
            if taken.tasks.is_empty() {
                if state.fed && state.tasks.is_empty() && state.in_hand == 0 {
                    self.work.notify_all();
                    return false;
                }
                let nothing_to_read = state.tasks.is_empty() && state.in_hand == 0;
                let since = Instant::now();
                state.consumer_waits = true;
                state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.consumer_waits = false;
                let kind = if nothing_to_read { &mut waits.feeder } else { &mut waits.reading };
                *kind += since.elapsed();
                continue;
            }
            drop(state);
            let count = taken.tasks.len();
            let since = Instant::now();
            self.carry_out(access, taken, last, &mut done);
            waits.reading += since.elapsed();
            state = self.lock();
            self.settle(access, &mut state, count, &mut done.opened);
            // While the consumer computes, another thread must continue. A reader that is working
            // will.
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
        // If readers are woken at three quarters, they find enough work.
        if used <= self.bound(&state) / 4 * 3 {
            self.starved.store(false, Ordering::SeqCst);
            self.wake_readers(&state);
        }
    }
}

impl State {
    /// Whether the feeder should fetch more.
    fn runs_low(&self) -> bool {
        let is_small = |task: &Task| matches!(task, Task::Read(job) if job.small_place().is_some());
        let enough = if self.tasks.back().is_some_and(is_small) { SMALL_TASKS_LOW } else { TASKS_LOW };
        self.tasks.len() < enough
    }

    /// The place at which to bring in a window of the file that packs `tasks`, if it is time: half
    /// a window before readers reach it.
    fn bring(&mut self, tasks: &[Task]) -> Option<u64> {
        let Some(Task::Read(job)) = tasks.first() else { return None };
        let (_, begin) = job.packed_place()?;
        // Names are compared as bytes: they are spelled alike, and there is one for each batch.
        let is_same = self.brought.0.as_ref().is_some_and(|path| path.as_os_str() == job.path.as_os_str());
        if !is_same || self.brought.1 + window::WINDOW < begin {
            self.brought = (Some(job.path.clone()), begin);
        }
        let from = self.brought.1.max(begin);
        if begin + window::WINDOW / 2 < from {
            return None;
        }
        self.brought.1 = window::next(from);
        Some(from)
    }
}

/// Whether `task` reads bytes that follow closely after the last of `jobs`.
fn follows(jobs: &[Job], task: &Task) -> bool {
    let Task::Read(next) = task else { return false };
    next.small_place().is_some() && jobs.last().is_some_and(|last| last.is_followed_by(next))
}

/// Asks the disk for all of `tasks` before the first of them is waited for.
fn ask_for(tasks: &[Task], bring: Option<u64>) {
    if let (Some(at), Some(Task::Read(job))) = (bring, tasks.first())
        && let Some((file, _)) = job.packed_place()
    {
        window::bring(file, at);
    }
    // Do not prefetch the first one, so that its read shows whether it is cold. Windows bring what
    // follows it in its file.
    for pair in tasks.windows(2) {
        if let [before, Task::Read(job)] = pair
            && job.small_place().is_none()
            && !matches!(before, Task::Read(before) if before.is_followed_by(job))
        {
            job.ask_for();
        }
    }
}

/// Threads that copy from the page cache at a time. Two hide the cost of the checksum; more gain
/// nothing.
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
