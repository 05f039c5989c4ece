//! Turns at a spinning disk: one process of the node at a time reads from it. Several at once make its heads seek and
//! cost most of its bandwidth (Zazen paper §5.2, Figure 6).
//!
//! The daemon puts two lock files beside its socket where it advises a single reader: one for the turn, one for the
//! place of who comes next. A process keeps its turn from frame to frame, so that frames that lie behind each other
//! cost no seek each, and passes it on after [`TURN_BYTES`] or [`TURN_TIME`] if another process wants it: whoever
//! comes next holds its place until it has the turn, so that the one that passed it on cannot take it again first.
//! A process that has nothing to read at once gives its turn back at once ([`Turns::rest`]).
//!
//! Frames that are in memory need no turn. Whoever keeps a turn for too long, by a hang or on purpose, delays each of
//! the others once, by [`PATIENCE`]; then they read as if there were no turns until they get one again.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::limits::{NEXT_TURN_SUFFIX, TURN_SUFFIX};

/// Bytes read in a turn after which another process is let in: a seek costs a tenth of them.
const TURN_BYTES: u64 = 8 << 20;
/// The same in time.
const TURN_TIME: Duration = Duration::from_millis(100);
/// The longest wait for a turn; then the frame is read all the same.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks; a frame takes a spinning disk several times as long.
const PAUSE: Duration = Duration::from_micros(500);
/// Between two looks of the one that comes next: the disk stands still meanwhile.
const PAUSE_OF_NEXT: Duration = Duration::from_micros(100);

/// What a process has read since it took its turn, or since it last found that nobody waits.
#[derive(Clone, Copy, Debug, Default)]
struct Tenure {
    bytes: u64,
    time: Duration,
}

/// What becomes of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It goes on.
    Kept,
    /// It goes on as if it had just begun.
    Renewed,
    /// It ends.
    Over,
}

impl Tenure {
    fn is_spent(self) -> bool {
        self.bytes >= TURN_BYTES || self.time >= TURN_TIME
    }

    /// After a frame: whether another process `waits` is asked only when it matters.
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
    /// Locked by whoever comes next; `None` with a daemon that knows of no such place.
    next: Option<File>,
    state: Mutex<State>,
    /// A thread waits for another one's turn to end.
    changed: Condvar,
    patience: Duration,
    /// A wait was in vain, and there was no turn since.
    gave_up: AtomicBool,
}

#[derive(Default)]
struct State {
    /// A thread is at taking a turn.
    taking: bool,
    /// Since when this process has the turn, or found that nobody else wants it.
    held: Option<Instant>,
    /// Bytes read since.
    bytes: u64,
    /// Threads that read in it now.
    users: usize,
}

impl State {
    fn tenure(&self) -> Option<Tenure> {
        self.held.map(|begun| Tenure { bytes: self.bytes, time: begun.elapsed() })
    }
}

/// A part of a turn: the reading of one frame. The turn itself may go on when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    bytes: u64,
}

impl Turns {
    /// Where the daemon at `socket` wants readers to take turns. `None` if it doesn't.
    pub(crate) fn at(socket: &Path) -> Option<Turns> {
        let open = |suffix: &str| {
            let mut path = socket.as_os_str().to_owned();
            path.push(suffix);
            open_lock(Path::new(&path))
        };
        Some(Turns {
            turn: open(TURN_SUFFIX)?,
            next: open(NEXT_TURN_SUFFIX),
            state: Mutex::default(),
            changed: Condvar::new(),
            patience: PATIENCE,
            gave_up: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn for reading `bytes`, or a part of the one that this process has. Waits for it; `None` after [`PATIENCE`],
    /// or where the file system has no locks.
    pub(crate) fn take(&self, bytes: u64) -> Option<Turn<'_>> {
        let mut state = self.lock();
        loop {
            self.review(&mut state);
            match state.tenure() {
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
        // Made only where there is one: its end ends the turn.
        taken.then(|| Turn { turns: self, bytes })
    }

    /// Ends a turn that no thread reads in: there is nothing to read at once.
    pub(crate) fn rest(&self) {
        let mut state = self.lock();
        if state.held.is_some() && state.users == 0 {
            self.end(&mut state);
        }
    }

    /// Takes the place of who comes next, then the turn. False if that takes too long, or can't be had.
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

    /// Decides what becomes of a turn that no thread reads in just now.
    fn review(&self, state: &mut State) {
        let Some(tenure) = state.tenure().filter(|_| state.users == 0) else { return };
        match tenure.decide(|| self.is_wanted()) {
            Fate::Kept => {}
            Fate::Renewed => {
                (state.held, state.bytes) = (Some(Instant::now()), 0);
                self.changed.notify_all();
            }
            Fate::Over => self.end(state),
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

/// A lock file, if it is a plain file of somebody whose daemons are believed: others could have planted it where anybody
/// may make files.
fn open_lock(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && zazen_call::believes(found.uid()).unwrap_or(false)).then_some(file)
}

/// Waits for `file`'s lock, looking every `pause`, but not beyond `until`.
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
