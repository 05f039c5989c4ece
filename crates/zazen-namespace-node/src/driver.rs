//! Drives the engine: brings it events, does what it wants done.
//!
//! Whoever brings an event runs the engine in its own thread, under one lock, and appends to the
//! log there too; so a request that needs no sync and no other node costs no change of threads.
//! Syncs and whole files are the disk threads' work: snapshots of partitions are one thread's, in
//! order, all else is the other's, in order. Snapshots take seconds, and a steward that is silent
//! so long loses its leases. A timer thread brings the time.

use crate::engine::{Action, DiskAction, Engine, Event};
use crate::folder::replace;
use crate::gone::Gone;
use crate::links::Links;
use crate::objects::{ObjectName, Objects};
use crate::reserve::Reserve;
use crate::seals::Seals;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use zazen_core::{Error, Result};
use zazen_namespace::map::State;
use zazen_namespace::node;
use zazen_namespace::operation::{Answer, Request, Response};
use zazen_namespace::{Epoch, Errno, InodeId};

/// The longest time between two looks at the clock.
const TIMER_MAX: Duration = Duration::from_millis(250);
/// The kernel's ENOSPC.
const NO_SPACE: i32 = 28;
/// Segments of the log that are kept open.
const SEGMENTS_MAX: usize = 4;

/// The engine with its clock, its disk and its waiting callers.
pub(crate) struct Driver {
    engine: Mutex<Box<dyn Engine>>,
    waiting: Mutex<HashMap<u64, (Arc<Batch>, usize)>>,
    next_token: AtomicU64,
    started: Duration,
    disk: Mutex<Option<Disk>>,
    /// Which engine it is: what was asked for by an earlier one does not count.
    life: AtomicU64,
    files: Files,
    bytes: Bytes,
    links: Arc<Links>,
    /// The engine and the epoch of its map that the links know.
    told: Mutex<Option<(u64, Epoch)>>,
    /// Why the engine does not answer any more.
    broken: Mutex<Option<String>>,
    stopping: AtomicBool,
}

/// The bytes of files and their checksums.
pub(crate) struct Bytes {
    pub(crate) objects: Arc<Objects>,
    pub(crate) seals: Arc<Seals>,
    pub(crate) gone: Gone,
}

/// Requests that were brought together, and their answers so far.
struct Batch {
    answers: Mutex<(Vec<Option<Response>>, usize)>,
    done: Condvar,
}

/// The files of the node's folder.
struct Files {
    folder: OwnedFd,
    segments: Mutex<BTreeMap<String, Arc<File>>>,
    reserve: Arc<Reserve>,
}

/// The disk threads' work.
struct Disk {
    snapshots: Sender<Job>,
    others: Sender<Job>,
}

impl Disk {
    fn of(&self, action: &DiskAction) -> &Sender<Job> {
        let (DiskAction::Append { file, .. }
        | DiskAction::Sync { file, .. }
        | DiskAction::Put { file, .. }
        | DiskAction::Remove { file }) = action;
        match node::File::named(file) {
            Some(node::File::Snapshot(_) | node::File::Damaged(_)) => &self.snapshots,
            _ => &self.others,
        }
    }
}

/// What a disk thread does.
enum Job {
    /// For which engine, and what.
    Act(u64, DiskAction),
    /// Says when all before it is done.
    Barrier(Sender<()>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of day, in nanoseconds since the epoch.
pub(crate) fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// How long the machine has been on. Unlike the monotonic clock, it goes on while the machine is
/// suspended: a lease must not outlive a pause in which another node took over.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Driver {
    /// Starts to drive `engine`, whose files are in `folder`.
    pub(crate) fn start(
        engine: Box<dyn Engine>,
        folder: OwnedFd,
        bytes: Bytes,
        links: Arc<Links>,
        reserve: Arc<Reserve>,
    ) -> Result<Arc<Driver>> {
        let (snapshots, of_snapshots) = channel();
        let (others, of_others) = channel();
        let driver = Arc::new(Driver {
            engine: Mutex::new(engine),
            waiting: Mutex::default(),
            next_token: AtomicU64::new(1),
            started: since_boot(),
            disk: Mutex::new(Some(Disk { snapshots, others })),
            life: AtomicU64::new(0),
            files: Files { folder, segments: Mutex::default(), reserve },
            bytes,
            links,
            told: Mutex::default(),
            broken: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map(drop).map_err(|error| Error::io(format!("start thread {name}"), error))
        };
        for (name, jobs) in [("ns-disk", of_others), ("ns-snapshot", of_snapshots)] {
            let of_disk = Arc::downgrade(&driver);
            spawn(name, Box::new(move || run_disk(&of_disk, &jobs)))?;
        }
        let of_timer = Arc::downgrade(&driver);
        spawn("ns-timer", Box::new(move || run_timer(&of_timer)))?;
        Ok(driver)
    }

    /// The engine's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        since_boot().saturating_sub(self.started).as_nanos() as u64
    }

    /// What the engine knows.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&dyn Engine) -> T) -> T {
        ask(&**lock(&self.engine))
    }

    /// Why the engine does not answer any more, if so.
    pub(crate) fn broken(&self) -> Option<String> {
        lock(&self.broken).clone()
    }

    /// Executes requests; one response for each, in order. What is not answered within `patience`
    /// is answered with `ETIMEDOUT`: it may have been executed, or may still be.
    pub(crate) fn execute(&self, requests: Vec<Request>, patience: Duration) -> Vec<Response> {
        let numbers: Vec<u64> = requests.iter().map(|request| request.number).collect();
        let answers = (vec![None; requests.len()], 0);
        let batch = Arc::new(Batch { answers: Mutex::new(answers), done: Condvar::new() });
        let first = self.next_token.fetch_add(requests.len() as u64, Ordering::Relaxed);
        {
            let mut waiting = lock(&self.waiting);
            for at in 0..requests.len() {
                waiting.insert(first + at as u64, (Arc::clone(&batch), at));
            }
        }
        let events = (first..).zip(requests).map(|(token, request)| Event::Request { token, request });
        self.bring(events);
        let all = |answers: &mut (Vec<Option<Response>>, usize)| answers.1 < numbers.len();
        let wait = batch.done.wait_timeout_while(lock(&batch.answers), patience, all);
        let mut answers = wait.unwrap_or_else(PoisonError::into_inner).0;
        if answers.1 < numbers.len() {
            let mut waiting = lock(&self.waiting);
            for at in 0..numbers.len() {
                waiting.remove(&(first + at as u64));
            }
        }
        let late = |number| Response { number, answer: Answer::refused(Errno::ETIMEDOUT) };
        let given = std::mem::take(&mut answers.0);
        given
            .into_iter()
            .zip(numbers)
            .map(|(answer, number)| answer.unwrap_or_else(|| late(number)))
            .collect()
    }

    /// Puts an engine in the place of the one that was there. Times are those of
    /// [`Driver::now_ns`].
    pub(crate) fn install(&self, engine: Box<dyn Engine>) {
        {
            let mut place = lock(&self.engine);
            *place = engine;
            self.life.fetch_add(1, Ordering::Relaxed);
            *lock(&self.broken) = None;
        }
        self.bring([]);
    }

    /// Waits until the disk has all that was asked of it.
    pub(crate) fn settle(&self) {
        let (done, wait) = channel();
        {
            let disk = lock(&self.disk);
            // Stopped: nobody would ever answer.
            let Some(disk) = &*disk else { return };
            disk.snapshots.send(Job::Barrier(done.clone())).ok();
            disk.others.send(Job::Barrier(done)).ok();
        }
        // Both, or none while the threads end.
        while wait.recv().is_ok() {}
    }

    /// Whether the disk is so full that nothing new may be made.
    pub(crate) fn is_full(&self) -> bool {
        self.files.reserve.is_low()
    }

    /// Whether less than half of the reserve is left.
    pub(crate) fn is_nearly_out(&self) -> bool {
        self.files.reserve.is_nearly_out()
    }

    /// Bytes of another node's engine came.
    pub(crate) fn peer(&self, bytes: Vec<Vec<u8>>) {
        self.bring(bytes.into_iter().map(Event::Peer));
    }

    /// A disk action of the engine `life` is done.
    fn done(&self, life: u64, token: u64, ok: bool) {
        self.bring_to(Some(life), [Event::Done { token, ok }]);
    }

    /// Brings events that came together, and does what follows.
    fn bring(&self, events: impl IntoIterator<Item = Event>) {
        self.bring_to(None, events);
    }

    fn bring_to(&self, life: Option<u64>, events: impl IntoIterator<Item = Event>) {
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        let mut replies = Vec::new();
        {
            let mut engine = lock(&self.engine);
            if life.is_some_and(|life| life != self.life.load(Ordering::Relaxed)) {
                return;
            }
            let (now, wall) = (self.now_ns(), wall_ns());
            events.into_iter().for_each(|event| engine.step(now, wall, event));
            let mut actions = Vec::new();
            loop {
                engine.flush(&mut actions);
                let mut done = Vec::new();
                for action in actions.drain(..) {
                    self.act(action, &mut replies, &mut done);
                }
                if done.is_empty() {
                    break;
                }
                done.into_iter().for_each(|event| engine.step(now, wall, event));
            }
            self.tell_links(&**engine);
        }
        self.reply(replies);
    }

    /// Whom the links may believe, when the map has changed.
    fn tell_links(&self, engine: &dyn Engine) {
        let (life, epoch) = (self.life.load(Ordering::Relaxed), engine.epoch());
        let mut told = lock(&self.told);
        if *told != Some((life, epoch)) {
            *told = Some((life, epoch));
            self.links.learn(&engine.map());
        }
    }

    fn act(&self, action: Action, replies: &mut Vec<(u64, Response)>, done: &mut Vec<Event>) {
        match action {
            Action::Reply(token, response) => replies.push((token, response)),
            Action::Send { address, bytes } => self.links.post(&address, bytes),
            Action::DropObject(id, generation) => self.drop_object(id, generation),
            Action::Disk(DiskAction::Append { file, token, bytes }) => {
                let appended = self.files.append(&file, &bytes);
                if let Err(error) = &appended {
                    tracing::error!("namespace: append to {file}: {error}");
                }
                done.push(Event::Done { token, ok: appended.is_ok() });
            }
            Action::Disk(other) => {
                if let Some(disk) = &*lock(&self.disk) {
                    let job = disk.of(&other);
                    job.send(Job::Act(self.life.load(Ordering::Relaxed), other)).ok();
                }
            }
            Action::Broken(why) => {
                tracing::error!("namespace: this node answers nobody any more: {why}; restart its daemon");
                *lock(&self.broken) = Some(why);
            }
        }
    }

    fn drop_object(&self, id: InodeId, generation: u64) {
        let name = ObjectName { id, generation };
        self.bytes.seals.remove(name);
        let gone = &self.bytes.gone;
        let removed = self.bytes.objects.remove_by(name, gone.folder());
        gone.wake();
        if let Err(errno) = removed {
            tracing::warn!("namespace: object {id} of generation {generation} stays on the disk: {errno}");
        }
    }

    fn reply(&self, replies: Vec<(u64, Response)>) {
        if replies.is_empty() {
            return;
        }
        let mut waiting = lock(&self.waiting);
        for (token, response) in replies {
            let Some((batch, at)) = waiting.remove(&token) else { continue };
            let mut answers = lock(&batch.answers);
            if answers.0[at].replace(response).is_none() {
                answers.1 += 1;
            }
            if answers.1 == answers.0.len() {
                batch.done.notify_all();
            }
        }
    }

    /// The operator wants this node to go, to stay, or to be forgotten.
    pub(crate) fn wish(&self, state: State) {
        self.bring([Event::Wish(state)]);
    }

    /// Ends the threads. Nothing is executed any more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        lock(&self.disk).take();
    }
}

fn run_timer(driver: &Weak<Driver>) {
    loop {
        let Some(driver) = driver.upgrade() else { return };
        if driver.stopping.load(Ordering::Relaxed) {
            return;
        }
        let now = driver.now_ns();
        let wakes = driver.ask(|engine| engine.wakes_ns());
        if wakes <= now {
            driver.bring([Event::Timer]);
        }
        driver.files.reserve.refill();
        let wakes = driver.ask(|engine| engine.wakes_ns());
        drop(driver);
        let pause =
            Duration::from_nanos(wakes.saturating_sub(now)).clamp(Duration::from_millis(1), TIMER_MAX);
        std::thread::sleep(pause);
    }
}

fn run_disk(driver: &Weak<Driver>, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let Some(driver) = driver.upgrade() else { return };
        let (life, action) = match job {
            Job::Act(life, action) => (life, action),
            Job::Barrier(done) => {
                done.send(()).ok();
                continue;
            }
        };
        let (what, token, done) = match action {
            DiskAction::Append { file, token, bytes } => {
                let done = driver.files.append(&file, &bytes);
                (format!("append to {file}"), Some(token), done)
            }
            DiskAction::Sync { file, token } => {
                let done = driver.files.sync(&file);
                (format!("sync {file}"), Some(token), done)
            }
            DiskAction::Put { file, token, bytes } => {
                let done = driver.files.put(&file, &bytes);
                (format!("write {file}"), Some(token), done)
            }
            DiskAction::Remove { file } => (format!("remove {file}"), None, driver.files.remove(&file)),
        };
        if let Err(error) = &done {
            tracing::error!("namespace: {what}: {error}");
        }
        if let Some(token) = token {
            driver.done(life, token, done.is_ok());
        }
    }
}

impl Files {
    fn segment(&self, name: &str) -> std::io::Result<Arc<File>> {
        let mut segments = lock(&self.segments);
        if let Some(file) = segments.get(name) {
            return Ok(Arc::clone(file));
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o600))?;
        let file = Arc::new(File::from(opened));
        if segments.len() >= SEGMENTS_MAX {
            segments.clear();
        }
        segments.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    /// Does `act`, and again while the disk is full and the reserve has bytes to give.
    fn with_reserve(&self, mut act: impl FnMut() -> std::io::Result<()>) -> std::io::Result<()> {
        loop {
            match act() {
                Err(error) if error.raw_os_error() == Some(NO_SPACE) && self.reserve.give() => {}
                done => return done,
            }
        }
    }

    fn append(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let mut put = 0;
        self.with_reserve(|| {
            let segment = self.segment(name)?;
            while put < bytes.len() {
                put += (&*segment).write(&bytes[put..])?;
            }
            Ok(())
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        self.with_reserve(|| replace(self.folder.as_fd(), name, bytes))
    }

    fn sync(&self, name: &str) -> std::io::Result<()> {
        self.segment(name)?.sync_data()?;
        Ok(rustix::fs::fsync(&self.folder)?)
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        lock(&self.segments).remove(name);
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
