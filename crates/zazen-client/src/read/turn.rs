//! Turns at a spinning disk: only one process of the node reads from it at a time. If several read
//! at once, the heads seek, and most of the bandwidth is lost (Zazen paper §5.2, Figure 6).
//!
//! For each spinning disk, the daemon puts two lock files beside its socket: one for the turn and
//! one for the next turn. Where there are several disks, their names end in the disk's device
//! number. A process keeps its turn from frame to frame, so adjacent frames cost no seek each.
//! After [`TURN_BYTES`] or [`TURN_TIME`] it passes the turn on, if another process wants it. The
//! next process holds the second lock until it has the turn, so the process that passed the turn on
//! cannot take it again first. A process with nothing to read gives its turn back at once
//! ([`Turns::rest`]).
//!
//! Frames in memory need no turn. A process that keeps a turn for too long, by a hang or on
//! purpose, delays each other process once, by [`PATIENCE`]. After that, they read without turns
//! until they get one again.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::limits::{NEXT_TURN_SUFFIX, TURN_SUFFIX};

/// After this many bytes, the turn is passed on. A disk takes a third of a second to read them, and
/// a turn costs it one or two seeks: 3 to 5 % of that time.
const TURN_BYTES: u64 = 32 << 20;
/// After this time, the turn is passed on.
const TURN_TIME: Duration = Duration::from_millis(350);
/// The longest wait for a turn: some fifty other readers' turns. Then the frame is read without it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Disks at which turns are taken, at most.
const DISKS_MAX: usize = 64;
/// The pause between two attempts to get the lock. A spinning disk takes several times as long for
/// a frame.
const PAUSE: Duration = Duration::from_micros(500);
/// The pause between two attempts of the next process. It is short, because the disk is idle
/// meanwhile.
const PAUSE_OF_NEXT: Duration = Duration::from_micros(100);

/// What a process has read since it took its turn, or since it last found that no other process
/// waits.
#[derive(Clone, Copy, Debug, Default)]
struct Tenure {
    bytes: u64,
    time: Duration,
}

/// What happens to a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The turn continues.
    Kept,
    /// The turn continues as if it had just begun.
    Renewed,
    /// The turn ends.
    Over,
}

impl Tenure {
    fn is_spent(self) -> bool {
        self.bytes >= TURN_BYTES || self.time >= TURN_TIME
    }

    /// The decision after a frame. Calls `waits` (does another process wait?) only when it matters.
    fn decide(self, waits: impl FnOnce() -> bool) -> Fate {
        match self.is_spent() {
            false => Fate::Kept,
            true if waits() => Fate::Over,
            true => Fate::Renewed,
        }
    }
}

/// This process's place in the queue for one disk.
pub(crate) struct Turns {
    turn: File,
    /// The next process holds this lock; `None` if the daemon has no such file.
    next: Option<File>,
    state: Mutex<State>,
    /// Threads wait here until another thread's turn ends.
    changed: Condvar,
    patience: Duration,
    /// A wait timed out, and this process has had no turn since.
    gave_up: AtomicBool,
}

#[derive(Default)]
struct State {
    /// A thread is taking a turn.
    taking: bool,
    /// When this process took the turn, or last found that no other process wants it.
    held: Option<Instant>,
    /// Bytes read since.
    bytes: u64,
    /// Threads that read in this turn now.
    users: usize,
}

impl State {
    fn tenure(&self) -> Option<Tenure> {
        self.held.map(|begun| Tenure { bytes: self.bytes, time: begun.elapsed() })
    }
}

/// This process's places in the queues for the disks of its node.
#[derive(Default)]
pub(crate) struct AllTurns {
    /// By device number; `None`: the node has one disk.
    disks: Vec<(Option<u64>, Turns)>,
}

impl AllTurns {
    /// The lock files of the daemon at `socket`: one pair for each of its disks that takes turns.
    pub(crate) fn at(socket: &Path) -> AllTurns {
        if let Some(only) = Turns::of(socket, None) {
            return AllTurns { disks: vec![(None, only)] };
        }
        let name = socket.file_name().and_then(|name| name.to_str());
        let (Some(folder), Some(name)) = (socket.parent(), name) else { return AllTurns::default() };
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let device = |found: String| turn_device(found.strip_prefix(name)?.strip_prefix(TURN_SUFFIX)?);
        let devices = names.filter_map(device).take(DISKS_MAX);
        let disks = devices.filter_map(|device| Some((Some(device), Turns::of(socket, Some(device))?)));
        AllTurns { disks: disks.collect() }
    }

    /// Whether readers of no disk take turns.
    pub(crate) fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    /// The turns at the disk that has `file`; `None` if its readers take none.
    pub(crate) fn of(&self, file: &OwnedFd) -> Option<&Turns> {
        match &self.disks[..] {
            [] => None,
            [(None, only)] => Some(only),
            several => {
                let device = rustix::fs::fstat(file).ok()?.st_dev;
                several.iter().find(|(of, _)| *of == Some(device)).map(|(_, turns)| turns)
            }
        }
    }

    /// Ends turns in which no thread reads, because there is nothing to read now.
    pub(crate) fn rest(&self) {
        self.disks.iter().for_each(|(_, turns)| turns.rest());
    }
}

/// A part of a turn: the reading of one frame. The turn itself may continue when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    bytes: u64,
}

impl Turns {
    /// The lock files of the daemon at `socket` for its only disk; `None` if its readers take no
    /// turns.
    #[cfg(test)]
    pub(crate) fn at(socket: &Path) -> Option<Turns> {
        Turns::of(socket, None)
    }

    /// The lock files for the disk with this device number; `None`: for the only disk.
    fn of(socket: &Path, device: Option<u64>) -> Option<Turns> {
        let open = |suffix: &str| {
            let mut path = socket.as_os_str().to_owned();
            path.push(suffix);
            open_lock(Path::new(&path))
        };
        let [turn, next] = turn_suffixes(device);
        Some(Turns {
            turn: open(&turn)?,
            next: open(&next),
            state: Mutex::default(),
            changed: Condvar::new(),
            patience: PATIENCE,
            gave_up: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn for reading `bytes`, or a part of the turn that this process has. Waits for it.
    /// `None` after [`PATIENCE`], or if the file system has no locks.
    pub(crate) fn take(&self, bytes: u64) -> Option<Turn<'_>> {
        let mut state = self.lock();
        loop {
            match self.review(&mut state) {
                Some(tenure) if !tenure.is_spent() => {
                    state.users += 1;
                    return Some(Turn { turns: self, bytes });
                }
                None if !state.taking => break,
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        state.taking = true;
        drop(state);
        let taken = self.queue();
        self.gave_up.store(!taken, Ordering::Relaxed);
        let mut state = self.lock();
        state.taking = false;
        if taken {
            (state.held, state.bytes, state.users) = (Some(Instant::now()), 0, 1);
        }
        drop(state);
        self.changed.notify_all();
        // This value exists only in a turn: its end ends the turn.
        taken.then(|| Turn { turns: self, bytes })
    }

    /// Ends a turn in which no thread reads, because there is nothing to read now.
    pub(crate) fn rest(&self) {
        let mut state = self.lock();
        if state.held.is_some() && state.users == 0 {
            self.end(&mut state);
        }
    }

    /// Takes the lock for the next turn, then the turn. False if this takes too long or is not
    /// possible.
    fn queue(&self) -> bool {
        let patience = if self.gave_up.load(Ordering::Relaxed) { Duration::ZERO } else { self.patience };
        let until = Instant::now() + patience;
        let Some(next) = &self.next else { return lock(&self.turn, PAUSE, until) };
        if !lock(next, PAUSE, until) {
            return false;
        }
        let taken = lock(&self.turn, PAUSE_OF_NEXT, until);
        unlock(next);
        taken
    }

    /// Whether another process waits for the turn that this one has.
    fn is_wanted(&self) -> bool {
        let Some(next) = &self.next else { return true };
        let free = rustix::fs::flock(next, FlockOperation::NonBlockingLockExclusive).is_ok();
        if free {
            unlock(next);
        }
        !free
    }

    /// Decides what happens to a turn in which no thread reads now. Returns what this process has
    /// read in its turn, if it still has one. That is spent only while threads read in it: the
    /// clock is looked at once, or its time could end between two looks, and who asked would wait
    /// for nobody.
    fn review(&self, state: &mut State) -> Option<Tenure> {
        let tenure = state.tenure()?;
        if state.users > 0 {
            return Some(tenure);
        }
        match tenure.decide(|| self.is_wanted()) {
            Fate::Kept => Some(tenure),
            Fate::Renewed => {
                (state.held, state.bytes) = (Some(Instant::now()), 0);
                self.changed.notify_all();
                Some(Tenure::default())
            }
            Fate::Over => {
                self.end(state);
                None
            }
        }
    }

    fn end(&self, state: &mut State) {
        state.held = None;
        unlock(&self.turn);
        self.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.users -= 1;
        state.bytes += self.bytes;
        self.turns.review(&mut state);
    }
}

/// Suffixes of the lock files, the turn's and the next turn's, of one of several spinning disks:
/// that with this device number (`st_dev`). `None`: the only disk. zazend has the same names.
fn turn_suffixes(device: Option<u64>) -> [String; 2] {
    [TURN_SUFFIX, NEXT_TURN_SUFFIX].map(|suffix| match device {
        Some(device) => format!("{suffix}-{device:x}"),
        None => suffix.to_owned(),
    })
}

/// The device number in the name of a turn's lock file: `rest` is what follows [`TURN_SUFFIX`].
fn turn_device(rest: &str) -> Option<u64> {
    u64::from_str_radix(rest.strip_prefix('-')?, 16).ok()
}

/// A lock file, if it is a plain file of a user whose daemons are trusted. In a folder where
/// anybody may make files, others could have put it there.
fn open_lock(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && zazen_call::believes(found.uid()).unwrap_or(false)).then_some(file)
}

/// Waits for the lock of `file`: tries every `pause`, until `until`.
fn lock(file: &File, pause: Duration, until: Instant) -> bool {
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(pause),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn unlock(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests;
