//! The sources of a frame's bytes that reader threads share: the daemon, which repairs bad copies,
//! and the backing store.

use super::buffer::{Pool, Slice};
use super::frame_file::FrameFile;
use super::job::{Data, Fault, Job, Reading};
use super::outcome::Got;
use super::record::Recorder;
use super::resident::is_resident;
use super::turn::{AllTurns, Turn};
use crate::cluster::{Batch, Remote, Target, daemon_is_gone};
use crate::daemon_spec::{DaemonSpec, check_same_version};
use crate::direct::{Direct, DirectSpec};
use crate::lost::{Retry, warn_of_lost_daemon};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zazen_backing::SourceFile;
use zazen_core::limits::check_frame_bytes;
use zazen_core::{Error, ErrorKind, Layout, RelPath, Result, RunSet, Validator};
use zazen_frames::messages::Delivery;

/// The file a thread opened last.
pub(crate) type LastFile = Option<(RelPath, Arc<dyn SourceFile>)>;

/// Shared by the threads of a reader.
pub(crate) struct Access {
    pub pool: Arc<Pool>,
    pub check: bool,
    pub stop: AtomicBool,
    daemon: Option<DaemonSpec>,
    /// The daemon stopped answering and has not come back yet.
    daemon_lost: AtomicBool,
    repair: Mutex<Option<(Remote, u32)>>,
    direct_spec: DirectSpec,
    direct: Mutex<Option<Arc<Direct>>>,
    /// Looked for at the first frame that is read from a file: a small frame's bytes came with the
    /// daemon's answer.
    turns: OnceLock<AllTurns>,
    /// What the scan measures of itself; `None`: nothing.
    pub record: Option<Arc<Recorder>>,
}

impl Access {
    pub(crate) fn new(
        pool: Arc<Pool>,
        check: bool,
        daemon: Option<DaemonSpec>,
        direct_spec: DirectSpec,
        direct: Option<Arc<Direct>>,
    ) -> Access {
        Access {
            turns: OnceLock::new(),
            pool,
            check,
            stop: AtomicBool::new(false),
            daemon,
            daemon_lost: AtomicBool::new(false),
            repair: Mutex::new(None),
            direct_spec,
            direct: Mutex::new(direct),
            record: None,
        }
    }

    fn turns(&self) -> &AllTurns {
        self.turns.get_or_init(|| match self.daemon.as_ref().map(|daemon| &daemon.target) {
            Some(Target::Local(socket)) => AllTurns::at(socket),
            _ => AllTurns::default(),
        })
    }

    /// Whether there was a daemon when this was made.
    pub(crate) fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// The daemon, if there is one and it was not lost.
    pub(crate) fn daemon_now(&self) -> Option<&Target> {
        let daemon = self.daemon.as_ref().filter(|_| !self.daemon_lost.load(Ordering::Relaxed));
        daemon.map(|daemon| &daemon.target)
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The dataset on the backing store, opened on first use.
    pub(crate) fn direct(&self) -> Result<Arc<Direct>> {
        let mut held = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(direct) = &*held {
            return Ok(direct.clone());
        }
        let direct = Arc::new(self.direct_spec.open()?);
        check_same_version(self.layout().as_deref(), direct.layout())?;
        *held = Some(direct.clone());
        Ok(direct)
    }

    /// Opens frame `number` on the backing store.
    pub(crate) fn open_direct(&self, number: u64, last: &mut LastFile) -> Result<Job> {
        self.direct()?.open(number, last)
    }

    /// Reads a job's frame, and repairs it if its bytes are bad. `None` if the reader is being
    /// dropped. Calls `on_cold` if the bytes are not in memory yet.
    pub(crate) fn read(&self, job: Job, on_cold: &dyn Fn()) -> Option<Result<Got>> {
        self.read_from(false, job, on_cold)
    }

    /// As [`Access::read`]. If frames are already expected to come `from_disk`, `on_cold` need not
    /// be called.
    pub(crate) fn read_from(&self, from_disk: bool, job: Job, on_cold: &dyn Fn()) -> Option<Result<Got>> {
        let turn = |file: &OwnedFd, offset| self.turn(&job, file, offset, job.length);
        // If readers take turns at the disk, do not touch it before this process has the turn.
        let from_disk = from_disk && self.turns().is_empty();
        match job.read(&Reading { from_disk, on_cold, turn: &turn, ..self.reading() }) {
            Ok(buffer) => Some(self.check_version(&job).map(|()| {
                let place = self.file_of(&job);
                Got { delivery: job.delivery, place, buffer: Slice::all(buffer), mended: false }
            })),
            Err(Fault::Stopped) => None,
            Err(Fault::Bad(error)) => match job.delivery {
                Some(_) => self.mend(job, error),
                None => Some(Err(error)),
            },
        }
    }

    /// For blocks of a file: what was just read from the file itself is of the version that was
    /// opened. The daemon has checked what came from the cache. For a trajectory that is read
    /// without a daemon: its file was not rewritten while the frame was read.
    fn check_version(&self, job: &Job) -> Result<()> {
        if job.is_cached() {
            return Ok(());
        }
        if job.delivery.is_none()
            && let Some(direct) = self.held_direct()
            && direct.layout().is_some_and(|layout| layout.trajectory().is_some())
            && let Some(now) = look_of(job)?
        {
            return direct.check_read(job.number, &now);
        }
        let opened = match self.daemon {
            Some(_) => self.layout(),
            // Without a daemon, the frame was opened through this.
            None => self.held_direct().and_then(|direct| direct.layout().cloned().map(Arc::new)),
        };
        let Some(blocks) = opened.as_deref().and_then(Layout::blocks) else { return Ok(()) };
        look_of(job)?.map_or(Ok(()), |now| blocks.check_version(&now))
    }

    /// The dataset on the backing store, if it was opened there.
    fn held_direct(&self) -> Option<Arc<Direct>> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The path by which other programs find the frame of `job`.
    pub(crate) fn file_of(&self, job: &Job) -> FrameFile {
        let (offset, has_file) = match &job.data {
            Data::Descriptor(_, offset) => (*offset, true),
            Data::Source(_, offset) => (*offset, false),
            Data::Inline(..) => (0, false),
        };
        // A frame that came as bytes, or from a served store, is in no file of this machine.
        let path = has_file.then(|| job.path.clone());
        FrameFile { path, offset, whole: job.whole }
    }

    /// The layout or pattern that names the frames, if the daemon reported it.
    pub(crate) fn layout(&self) -> Option<Arc<Layout>> {
        self.daemon.as_ref().and_then(|daemon| daemon.layout.clone())
    }

    /// A turn for the `length` bytes of `job`'s file from `offset` on, if readers take turns at its
    /// disk and not all of the bytes are in memory. Before the turn, nothing is requested from that
    /// disk.
    pub(crate) fn turn(&self, job: &Job, file: &OwnedFd, offset: u64, length: u64) -> Option<Turn<'_>> {
        let turns = if job.is_cached() { self.turns().of(file)? } else { return None };
        if is_resident(file, offset, length) {
            turns.rest();
            return None;
        }
        turns.take(length)
    }

    /// This process has nothing to read from the node's disk now, so other processes may have the
    /// turn.
    pub(crate) fn rest(&self) {
        if let Some(turns) = self.turns.get() {
            turns.rest();
        }
    }

    /// Whether readers take turns at the node's disk.
    pub(crate) fn takes_turns(&self) -> bool {
        !self.turns().is_empty()
    }

    /// Reports a bad copy to the daemon and asks once more. If that fails, the backing store has
    /// the frame.
    fn mend(&self, job: Job, first: Error) -> Option<Result<Got>> {
        tracing::warn!("{first}; asking for it again");
        self.rest();
        let number = job.number;
        let again = match self.ask_again(number) {
            Ok(again) => self.read_once(again),
            Err(error) => Err(Fault::Bad(error)),
        };
        let mended = match again {
            Err(Fault::Bad(second)) => {
                if !daemon_is_gone(&second) {
                    tracing::warn!("{second}; reading frame {number} from the backing store");
                }
                self.open_direct(number, &mut None)
                    .map_err(Fault::Bad)
                    .and_then(|direct| self.read_once(direct))
                    .map_err(|fault| match fault {
                        Fault::Bad(third) => Fault::Bad(third.within(second)),
                        Fault::Stopped => Fault::Stopped,
                    })
            }
            other => other,
        };
        match mended {
            Ok(got) => Some(Ok(got)),
            Err(Fault::Stopped) => None,
            Err(Fault::Bad(error)) => Some(Err(corrupt(number, &first, &error))),
        }
    }

    fn read_once(&self, job: Job) -> std::result::Result<Got, Fault> {
        let buffer = Slice::all(job.read(&self.reading())?);
        self.check_version(&job).map_err(Fault::Bad)?;
        let place = self.file_of(&job);
        Ok(Got { delivery: job.delivery, place, buffer, mended: true })
    }

    /// Reading with this reader's memory and checks: nobody is told of cold bytes, no turn is
    /// taken.
    fn reading(&self) -> Reading<'_> {
        let Access { pool, check, stop, .. } = self;
        Reading { pool, check: *check, stop, from_disk: false, on_cold: &|| (), turn: &|_, _| None }
    }

    fn ask_again(&self, number: u64) -> Result<Job> {
        let daemon = self.daemon.as_ref().filter(|_| !self.daemon_lost.load(Ordering::Relaxed));
        let daemon = daemon.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no daemon to ask"))?;
        let mut held = self.repair.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut remote, handle) = match held.take() {
            Some(open) => open,
            None => daemon.open()?,
        };
        remote.report_bad(handle, number)?;
        let job = scan_one(&mut remote, handle, number)?;
        *held = Some((remote, handle));
        Ok(job)
    }

    /// The daemon stopped answering during a scan. Warns, and sets when to look for it again.
    pub(crate) fn lose_daemon(&self, error: &Error) -> Option<Retry> {
        let daemon = self.daemon.as_ref()?;
        self.daemon_lost.store(true, Ordering::Relaxed);
        warn_of_lost_daemon(daemon, &self.direct_spec.path, error);
        Some(Retry::new(daemon.silence))
    }

    /// The lost daemon, if it is time to look for it and it answers.
    pub(crate) fn daemon_again(&self, retry: &mut Retry) -> Option<&DaemonSpec> {
        self.daemon.as_ref().filter(|daemon| retry.finds(daemon))
    }

    /// The daemon is in use again.
    pub(crate) fn regain_daemon(&self) {
        self.daemon_lost.store(false, Ordering::Relaxed);
    }
}

fn corrupt(number: u64, first: &Error, second: &Error) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("frame {number}: bad bytes, and a second copy did not help: {first}; then: {second}"),
    )
}

/// A scan of one frame.
pub(crate) fn scan_one(remote: &mut Remote, handle: u32, number: u64) -> Result<Job> {
    let scan = remote.scan_open(handle, RunSet::range(number, number))?.scan;
    let batch = remote.scan_next(scan, 1, u64::MAX)?;
    remote.scan_close(scan)?;
    let mut jobs = jobs_of(batch).filter(|(found, _)| *found == number);
    match jobs.next() {
        Some((_, job)) => job,
        None => Err(Error::new(
            ErrorKind::Protocol,
            format!("the daemon handed out no frame {number} though asked for it alone"),
        )),
    }
}

/// Whether a frame can have this offset and length. A daemon may send any values.
fn check_place(offset: u64, length: u64) -> Result<()> {
    check_frame_bytes(length)?;
    // Offsets in files are signed in the kernel.
    match offset.checked_add(length).map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Error::new(ErrorKind::Protocol, "the daemon places it beyond the end of the largest file")),
    }
}

/// The frames of a batch as jobs; `Err` for frames that the daemon could not get or described
/// wrongly.
pub(crate) fn jobs_of(batch: Batch) -> impl Iterator<Item = (u64, Result<Job>)> {
    let fds: Vec<_> = batch.fds.into_iter().map(Arc::new).collect();
    let bulk = Arc::new(batch.bulk);
    let mut inline = 0usize;
    // Packed frames share their file, and so its name.
    let mut last: Arc<Path> = Arc::from(Path::new(""));
    batch.entries.into_iter().map(move |entry| {
        let number = entry.number;
        if let (Delivery::Failed, error) = (entry.delivery, &entry.error) {
            let (code, message) = error.clone().unwrap_or((0, "the daemon does not say why".to_owned()));
            let kind = ErrorKind::from_code(code).unwrap_or(ErrorKind::Unavailable);
            return (number, Err(Error::new(kind, format!("frame {number}: {message}"))));
        }
        if let Err(error) = check_place(entry.offset, entry.length) {
            return (number, Err(error.within(format!("frame {number}"))));
        }
        let data = match (entry.delivery, entry.fd.map(|at| fds.get(usize::from(at)))) {
            // Users other than the daemon's also get packed frames as bytes.
            (Delivery::Inline, _) | (_, None) => {
                let start = inline;
                inline = inline.saturating_add(usize::try_from(entry.length).unwrap_or(usize::MAX));
                if inline > bulk.len() {
                    let why = format!("frame {number}: the daemon sent fewer bytes than it says");
                    return (number, Err(Error::new(ErrorKind::Protocol, why)));
                }
                Data::Inline(bulk.clone(), start)
            }
            (_, Some(Some(fd))) => Data::Descriptor(fd.clone(), entry.offset),
            _ => {
                let why = format!("frame {number}: the daemon sent no descriptor for it");
                return (number, Err(Error::new(ErrorKind::Protocol, why)));
            }
        };
        if last.as_os_str() != entry.path.as_str() {
            last = Arc::from(Path::new(&entry.path));
        }
        let path = last.clone();
        let job = Job {
            number,
            delivery: Some(entry.delivery),
            path,
            whole: entry.whole,
            length: entry.length,
            checksum: entry.checksum,
            data,
        };
        (number, Ok(job))
    })
}

/// What the file of `job` looks like now; `None` if its bytes are in memory.
fn look_of(job: &Job) -> Result<Option<Validator>> {
    Ok(Some(match &job.data {
        Data::Descriptor(file, _) => {
            let found = zazen_backing::directory::stat_file(&**file);
            found.map_err(|error| Error::io(job.path.display().to_string(), error))?.validator
        }
        Data::Source(file, _) => file.stat_now()?.validator,
        Data::Inline(..) => return Ok(None),
    }))
}
