//! The session with a daemon's posix plug-in, and the descriptions that it holds there.
//!
//! Invariants: a description is closed when nobody here has it any more. The numbers of one life of
//! the session are never those of another: after a restart of the daemon, an old number leads
//! nowhere.

use crate::tree::Errno;
use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_forward_api::structures::{HELLO_NEW, Hello, PxOpened, PxStat};
use zazen_posix_client::{Failure, Link, Settings, call, ffi};

/// What a call gives.
pub(super) type Answer<T> = Result<T, Failure>;

/// How long a call waits for a daemon that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(250);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long one call may take at a daemon that is reached and does not answer. A sync of a large
/// file on a slow disk takes its time.
const ANSWER: Duration = Duration::from_secs(60);

/// What of a file tells it from all others, also from a later one with its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Device of the file system, as `makedev` makes it.
    pub(super) device: u64,
    /// Inode number there.
    pub(super) inode: u64,
    /// When it was made, if the file system knows.
    born: (i64, u32),
    /// `S_IFMT` of its mode.
    kind: u32,
}

impl Identity {
    pub(super) fn of(stat: &PxStat) -> Identity {
        let [_, _, major, minor] = stat.devices;
        let has_birth = stat.mask & libc::STATX_BTIME != 0;
        Identity {
            device: libc::makedev(major, minor),
            inode: stat.ino,
            born: if has_birth { (stat.seconds[1], stat.nanoseconds[1]) } else { (0, 0) },
            kind: stat.mode & libc::S_IFMT,
        }
    }
}

/// The connection to the plug-in, and the session there.
pub(super) struct Far {
    /// Never freed: threads may be in calls when the process ends.
    link: &'static Link,
    /// Counts the lives of the session: 0 before the first.
    life: Mutex<u64>,
    current: AtomicU64,
    /// New descriptions have higher numbers than this.
    numbers: AtomicU32,
    tags: AtomicU32,
    /// A call has waited in vain for the daemon: the others do not wait until it is back. From this
    /// moment on, one of them tries.
    away: Mutex<Option<Instant>>,
}

/// An open file description at the far side.
pub(super) struct Description {
    far: Arc<Far>,
    life: u64,
    id: u32,
    /// Device and inode.
    pub(super) file: (u64, u64),
}

impl Description {
    /// Its number; `EBADF` if its session has ended.
    pub(super) fn id(&self) -> Answer<u32> {
        if self.is_alive() { Ok(self.id) } else { Err(Failure::Errno(libc::EBADF)) }
    }

    /// Its number where a call takes the number of a directory.
    pub(super) fn dir(&self) -> Answer<c_int> {
        self.id().map(u32::cast_signed)
    }

    /// Whether the session that holds it goes on.
    pub(super) fn is_alive(&self) -> bool {
        self.life == self.far.life()
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        if self.is_alive() {
            // If the daemon is gone, so is the description.
            _ = ffi::through(self.far.link, || call!(px_close(self.id, 1)));
        }
    }
}

impl Far {
    pub(super) fn new(settings: Settings) -> Far {
        let settings = Settings { connect_timeout: CONNECT, call_timeout: Some(ANSWER), ..settings };
        Far {
            link: Box::leak(Box::new(Link::new(settings))),
            life: Mutex::new(0),
            current: AtomicU64::new(0),
            numbers: AtomicU32::new(0),
            tags: AtomicU32::new(1),
            away: Mutex::new(None),
        }
    }

    /// Connects, with the reason if that fails.
    pub(super) fn connect(&self) -> zazen_core::Result<()> {
        self.link.connect()
    }

    fn life(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// Begins a session, unless another thread has done so since `life`.
    fn renew(&self, life: u64) -> Answer<()> {
        let mut held = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if *held != life {
            return Ok(());
        }
        let hello = Hello {
            key: random()?,
            token: u64::from(self.numbers.load(Ordering::Relaxed)) + 1,
            kind: HELLO_NEW,
            pid: std::process::id(),
            umask: 0,
            keep_all: 0,
        };
        let none: [u32; 1] = [0];
        call!(px_hello((&raw const hello).cast(), none.as_ptr(), 0))?;
        *held += 1;
        self.current.store(*held, Ordering::Release);
        Ok(())
    }

    /// Makes calls, once: without a try again for a daemon that is away.
    pub(super) fn once<T>(&self, mut work: impl FnMut() -> Answer<T>) -> Answer<T> {
        ffi::through(self.link, || {
            for _ in 0..4 {
                let life = self.life();
                let done = if life == 0 { Err(Failure::Errno(libc::EBADFD)) } else { work() };
                match done {
                    // The daemon, or the plug-in's process, is another one.
                    Err(Failure::Errno(libc::EBADFD)) => self.renew(life)?,
                    // What it was asked about was of an earlier session.
                    Err(Failure::Errno(libc::EBADF)) if life != self.life() => {}
                    done => return done,
                }
            }
            Err(Failure::Lost)
        })
    }

    /// Makes calls. While the daemon does not answer, tries again for [`PATIENCE`]: calls that were
    /// certainly not made, and with `repeatable` all. `work` may run more than once.
    pub(super) fn patiently<T>(
        &self,
        repeatable: bool,
        mut work: impl FnMut() -> Answer<T>,
    ) -> Result<T, Errno> {
        let begun = Instant::now();
        let is_away = self.is_away(begun)?;
        let mut is_waiting = false;
        loop {
            let failure = match self.once(&mut work) {
                Ok(done) => {
                    self.back();
                    return Ok(done);
                }
                Err(Failure::Errno(errno)) => {
                    self.back();
                    return Err(error(errno));
                }
                Err(failure) => failure,
            };
            let is_over = is_away || begun.elapsed() > PATIENCE;
            if is_over {
                self.leave();
            }
            if failure == Failure::Lost && !repeatable || is_over {
                return Err(Errno::EIO);
            }
            // The first failure of a connection that has ended meanwhile says nothing of the next.
            if is_waiting {
                std::thread::sleep(PAUSE);
            }
            is_waiting = true;
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the daemon is away; then this call tries it, and no other meanwhile. `EIO`: another
    /// call does, or has just done so.
    fn is_away(&self, now: Instant) -> Result<bool, Errno> {
        let mut away = self.away();
        match *away {
            None => Ok(false),
            Some(next) if now < next => Err(Errno::EIO),
            Some(_) => {
                *away = Some(now + CONNECT);
                Ok(true)
            }
        }
    }

    fn leave(&self) {
        if self.away().replace(Instant::now() + PAUSE).is_none() {
            tracing::warn!("the daemon does not answer: calls fail until it is back");
        }
    }

    fn back(&self) {
        if self.away().take().is_some() {
            tracing::info!("the daemon is back");
        }
    }

    /// Opens what `path` leads to from `dir`.
    pub(super) fn open(
        self: &Arc<Far>,
        dir: c_int,
        path: &CStr,
        flags: c_int,
        mode: u32,
    ) -> Answer<Description> {
        let mut opened = PxOpened::default();
        let to = (&raw mut opened).cast();
        let life = self.life();
        match call!(px_open(dir, path.as_ptr(), flags, mode, 0, to)) {
            // Another program has a lease on the file.
            Err(Failure::Errno(libc::EINPROGRESS)) => {
                let tag = self.tags.fetch_add(1, Ordering::Relaxed);
                call!(px_open_wait(dir, path.as_ptr(), flags, mode, 0, tag, to))?
            }
            done => done?,
        };
        self.numbers.fetch_max(opened.id, Ordering::Relaxed);
        Ok(Description { far: Arc::clone(self), life, id: opened.id, file: (opened.dev, opened.ino) })
    }

    /// Attributes of what `path` leads to; of `dir` itself if it is empty. Follows no link.
    pub(super) fn stat(&self, dir: c_int, path: &CStr) -> Answer<PxStat> {
        let mut stat = PxStat::default();
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        let to = (&raw mut stat).cast();
        call!(px_stat(dir, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, mask, to))?;
        Ok(stat)
    }
}

fn random() -> Answer<u64> {
    let mut bytes = [0; 8];
    // SAFETY: room for as many bytes as are asked for.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(Failure::Errno(libc::EIO)) }
}

/// The error as the tree has it.
fn error(errno: i32) -> Errno {
    Errno::of(u16::try_from(errno).unwrap_or(libc::EIO as u16))
}

/// A name, or several, as C has it.
pub(super) fn text(bytes: &[u8]) -> Answer<CString> {
    CString::new(bytes).map_err(|_| Failure::Errno(libc::EINVAL))
}
