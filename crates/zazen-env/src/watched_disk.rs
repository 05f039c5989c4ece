//! A disk that records its health. It notes each failure with its cause, logs once when the disk
//! fails and once when it recovers, and pauses changes for a while after a failure.
//!
//! Only trouble of the device and its file system counts (an I/O error, a read-only mount, a
//! structure that needs cleaning). A missing file, a taken name or a full disk does not.

use crate::clock::{Clock, RealClock};
use crate::disk::{Disk, DiskFile, DiskPath, FileStat};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

const EIO: i32 = 5;
/// After a failed change, changes are not tried for this time.
const HOLD_OFF: Duration = Duration::from_secs(5);
/// A disk counts as well again when the failed operation succeeds and nothing has failed for this
/// time.
const QUIET: Duration = Duration::from_secs(5);

/// What a [`WatchedDisk`] knows. Whoever reports it keeps a copy.
pub struct DiskHealth {
    root: PathBuf,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reads: Side,
    changes: Side,
}

#[derive(Default)]
struct Side {
    failures: u64,
    trouble: Option<Trouble>,
}

struct Trouble {
    since_ns: u64,
    last_ns: u64,
    what: String,
    errno: i32,
}

impl Trouble {
    fn cause(&self) -> std::io::Error {
        std::io::Error::from_raw_os_error(self.errno)
    }
}

/// The health of a disk at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskReport {
    /// Operations that failed since the start: (reads, changes).
    pub failures: (u64, u64),
    /// What is wrong with reading now, and for how long.
    pub reads: Option<(String, Duration)>,
    /// The same of changing.
    pub changes: Option<(String, Duration)>,
}

impl DiskReport {
    /// Whether nothing is wrong now.
    pub fn is_ok(&self) -> bool {
        self.reads.is_none() && self.changes.is_none()
    }

    /// What is wrong, in a line; empty for a healthy disk.
    pub fn trouble(&self) -> String {
        let say = |what: &str, trouble: &Option<(String, Duration)>| {
            let say =
                |(cause, time): &(String, Duration)| format!("{what} for {} s: {cause}", time.as_secs());
            trouble.as_ref().map(say)
        };
        let both = [say("cannot be written to", &self.changes), say("cannot be read", &self.reads)];
        both.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

impl DiskHealth {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since `then_ns` of this disk's clock.
    fn since(&self, then_ns: u64) -> Duration {
        Duration::from_nanos(self.clock.now_ns().saturating_sub(then_ns))
    }

    /// The health now.
    pub fn report(&self) -> DiskReport {
        let state = self.state();
        let told = |side: &Side| {
            let told = |it: &Trouble| (format!("{}: {}", it.what, it.cause()), self.since(it.since_ns));
            side.trouble.as_ref().map(told)
        };
        DiskReport {
            failures: (state.reads.failures, state.changes.failures),
            reads: told(&state.reads),
            changes: told(&state.changes),
        }
    }

    fn note<T>(&self, is_change: bool, result: Result<T>) -> Result<T> {
        let error = result.as_ref().err().filter(|error| is_trouble(error));
        let mut state = self.state();
        let side = if is_change { &mut state.changes } else { &mut state.reads };
        let verb = if is_change { "written to" } else { "read" };
        let Some(error) = error else {
            // An answer like "no such file" also comes from a healthy disk.
            if side.trouble.as_ref().is_some_and(|trouble| self.since(trouble.last_ns) > QUIET) {
                side.trouble = None;
                tracing::info!("cache disk {} can be {verb} again", self.root.display());
            }
            return result;
        };
        side.failures += 1;
        let now_ns = self.clock.now_ns();
        let (what, errno) = (error.context().to_owned(), errno_of(error).unwrap_or(EIO));
        match &mut side.trouble {
            Some(trouble) => (trouble.last_ns, trouble.what, trouble.errno) = (now_ns, what, errno),
            none => {
                tracing::error!(
                    "cache disk {} cannot be {verb}: {error}; what fails is read from the backing store. \
                     Look at the disk and the kernel's log",
                    self.root.display()
                );
                *none = Some(Trouble { since_ns: now_ns, last_ns: now_ns, what, errno });
            }
        }
        result
    }

    /// Refuses at once if a change failed a moment ago.
    fn admit_change(&self) -> Result<()> {
        match &self.state().changes.trouble {
            Some(trouble) if self.since(trouble.last_ns) < HOLD_OFF => {
                let what = format!("the cache disk is left alone for a while after: {}", trouble.what);
                Err(Error::io(what, trouble.cause()))
            }
            _ => Ok(()),
        }
    }
}

fn errno_of(error: &Error) -> Option<i32> {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.and_then(std::io::Error::raw_os_error)
}

/// Whether `error` is the device's or its file system's trouble.
pub fn is_trouble(error: &Error) -> bool {
    use rustix::io::Errno;
    let Some(errno) = errno_of(error) else { return error.kind() == ErrorKind::Io };
    let harmless = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::EXIST,
        Errno::NOTEMPTY,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::XDEV,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::INTR,
        Errno::AGAIN,
        Errno::INVAL,
        Errno::NAMETOOLONG,
        Errno::FBIG,
        Errno::BUSY,
        Errno::NXIO,
        Errno::OPNOTSUPP,
    ];
    !harmless.iter().any(|known| known.raw_os_error() == errno)
}

/// A disk whose failures are noted.
pub struct WatchedDisk<D> {
    inner: D,
    health: Arc<DiskHealth>,
}

/// An open file of a [`WatchedDisk`].
pub struct WatchedFile<F> {
    inner: F,
    health: Arc<DiskHealth>,
}

impl<D: Disk> WatchedDisk<D> {
    /// Watches `inner`.
    pub fn new(inner: D) -> WatchedDisk<D> {
        WatchedDisk::with_clock(inner, Arc::new(RealClock::default()))
    }

    /// Watches `inner`; `clock` tells how long ago something failed.
    pub fn with_clock(inner: D, clock: Arc<dyn Clock>) -> WatchedDisk<D> {
        let health = DiskHealth { root: inner.root().to_owned(), clock, state: Mutex::default() };
        WatchedDisk { inner, health: Arc::new(health) }
    }

    /// What it learns.
    pub fn health(&self) -> Arc<DiskHealth> {
        self.health.clone()
    }

    fn read<T>(&self, result: Result<T>) -> Result<T> {
        self.health.note(false, result)
    }

    fn change<T>(&self, result: Result<T>) -> Result<T> {
        self.health.note(true, result)
    }

    fn file(&self, file: Result<D::File>) -> Result<WatchedFile<D::File>> {
        file.map(|inner| WatchedFile { inner, health: self.health.clone() })
    }
}

impl<D: Disk> Disk for WatchedDisk<D> {
    type File = WatchedFile<D::File>;

    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn lock(&self) -> Result<()> {
        self.change(self.inner.lock())
    }
    fn create(&self, path: &DiskPath) -> Result<Self::File> {
        self.file(self.change(self.inner.create(path)))
    }
    fn open(&self, path: &DiskPath, write: bool) -> Result<Self::File> {
        let opened = self.inner.open(path, write);
        // A mount that may not be written to refuses to open for writing; any other trouble is that
        // of reading.
        let refused =
            write && opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        self.file(if refused { self.change(opened) } else { self.read(opened) })
    }
    fn open_append(&self, path: &DiskPath) -> Result<Self::File> {
        self.file(self.change(self.inner.open_append(path)))
    }
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.change(self.inner.rename(from, to))
    }
    fn rename_new(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.change(self.inner.rename_new(from, to))
    }
    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.change(self.inner.remove(path))
    }
    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()> {
        self.change(self.inner.remove_dir_if_empty(path))
    }
    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>> {
        self.read(self.inner.list(path))
    }
    fn stat(&self, path: &DiskPath) -> Result<Option<FileStat>> {
        self.read(self.inner.stat(path))
    }
    fn check_folders(&self, path: &DiskPath) -> Result<()> {
        self.read(self.inner.check_folders(path))
    }
    fn admit_change(&self) -> Result<()> {
        self.health.admit_change()
    }
    fn open_files_max(&self) -> usize {
        self.inner.open_files_max()
    }
    fn free_bytes(&self) -> Result<u64> {
        self.read(self.inner.free_bytes())
    }
    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        self.change(self.inner.sync_dir(path))
    }
    fn sync_all(&self) -> Result<()> {
        self.change(self.inner.sync_all())
    }
}

impl<F: DiskFile> WatchedFile<F> {
    fn read<T>(&self, result: Result<T>) -> Result<T> {
        self.health.note(false, result)
    }

    fn change<T>(&self, result: Result<T>) -> Result<T> {
        self.health.note(true, result)
    }
}

impl<F: DiskFile> DiskFile for WatchedFile<F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read(self.inner.read_at(buffer, offset))
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.change(self.inner.write_all_at(bytes, offset))
    }
    fn stat(&self) -> Result<FileStat> {
        self.read(self.inner.stat())
    }
    fn truncate(&self, bytes: u64) -> Result<()> {
        self.change(self.inner.truncate(bytes))
    }
    fn sync(&self) -> Result<()> {
        self.change(self.inner.sync())
    }
    fn sync_data(&self) -> Result<()> {
        self.change(self.inner.sync_data())
    }
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.change(self.inner.allocate(offset, bytes))
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.change(self.inner.punch_hole(offset, bytes))
    }
    fn set_times(&self, accessed_ns: i64, modified_ns: i64) -> Result<()> {
        self.change(self.inner.set_times(accessed_ns, modified_ns))
    }
    fn reflink_from(&self, source: &Self) -> Result<()> {
        self.change(self.inner.reflink_from(&source.inner))
    }
    fn mark(&self, handed_out: bool) -> Result<()> {
        self.change(self.inner.mark(handed_out))
    }
    fn to_std(&self) -> Result<std::fs::File> {
        self.inner.to_std()
    }
    fn into_std(self) -> Result<std::fs::File> {
        self.inner.into_std()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ManualClock, SimDisk};
    use zazen_core::RelPath;

    fn at(path: &str) -> DiskPath {
        DiskPath::of(&RelPath::new(path).unwrap())
    }

    #[test]
    fn trouble_is_noted_with_its_cause_and_holds_changes_off() {
        let sim = SimDisk::new(1, 1 << 20);
        let clock = Arc::new(ManualClock::default());
        let disk = WatchedDisk::with_clock(sim.clone(), clock.clone());
        let health = disk.health();
        disk.create(&at("a")).unwrap().write_all_at(b"abc", 0).unwrap();
        assert!(disk.open(&at("none"), false).is_err() && disk.create(&at("a")).is_err());
        assert!(health.report().is_ok(), "what is missing or taken is no trouble: {:?}", health.report());
        sim.set_capacity(0);
        assert!(disk.create(&at("b")).and_then(|file| file.write_all_at(&[0; 99999], 0)).is_err());
        assert!(health.report().is_ok(), "a full disk is not a bad one");
        sim.set_capacity(1 << 20);

        sim.fail_read_at(sim.reads() + 1);
        assert!(disk.open(&at("a"), false).is_err());
        let report = health.report();
        assert_eq!((report.failures, report.changes.clone()), ((1, 0), None));
        assert!(report.trouble().starts_with("cannot be read for 0 s: simulated read of a"), "{report:?}");
        assert!(disk.admit_change().is_ok());

        sim.set_read_only(true);
        assert!(disk.create(&at("c")).is_err());
        let report = health.report();
        assert_eq!(report.failures, (1, 1));
        let refused = disk.admit_change().unwrap_err();
        assert!(refused.to_string().contains("left alone for a while"), "{refused}");
        // Back again, after the time in which nothing failed.
        sim.set_read_only(false);
        clock.advance_ns(2 * QUIET.as_nanos() as u64);
        assert!(disk.admit_change().is_ok());
        disk.create(&at("c")).unwrap();
        disk.open(&at("a"), false).unwrap();
        assert!(health.report().is_ok() && health.report().failures == (1, 1));
    }
}
