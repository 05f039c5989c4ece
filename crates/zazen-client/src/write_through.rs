//! Frames that are written to an object store before they are pushed, for a simulation whose files
//! lie where its readers do not read them.
//!
//! Invariants: a frame is pushed only after its object is with the store, and with the validator of
//! the object that holds these very bytes. So the cache is never the only copy, and an object that
//! is replaced later is found stale. Files of one name are written one after the other, in the
//! order in which they came. At most `bytes_max` bytes wait or are under way, or one file alone.

use crate::push::{FrameSource, Pusher, PusherOptions};
use crate::watch::open_found;
use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zazen_backing::dataset::MANIFEST_BYTES_MAX;
use zazen_backing::objects::{self, ObjectLocation, ObjectWriter};
use zazen_backing::served::{NewFile, There};
use zazen_core::{Error, ErrorKind, FrameNo, RelPath, Result, Validator, limits};
use zazen_env::plain_file::read_within;
use zazen_push::Counters;
use zazen_wire::checksum::frame_checksum;

/// Files that wait, at most.
const WAITING_MAX: usize = 4096;
/// First and longest pause before a store that does not answer is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often a pause looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// How to write through.
#[derive(Clone, Debug)]
pub struct WriteThroughOptions {
    /// Where the objects go: each file's name beneath the prefix. Readers open that prefix.
    pub location: ObjectLocation,
    /// Objects that are written at once.
    pub uploads: usize,
    /// Bytes of files that wait or are under way.
    pub bytes_max: u64,
    /// Whether a store that does not answer is tried until it does. If not, its files fail.
    pub patient: bool,
}

/// What was written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Objects that were written.
    pub written: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Files whose object was there already, with the same bytes.
    pub there: u64,
    /// Files that could not be written, or whose object nobody could tell from a later one. Their
    /// frames were not pushed.
    pub failed: u64,
}

/// Is told the file's name and why it was not written.
pub type Tell = Box<dyn Fn(&str, &Error) + Send + Sync>;

/// Writes files to an object store, then pushes them. For any thread.
pub struct WriteThrough {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    writer: ObjectWriter,
    pusher: Pusher,
    root: String,
    bytes_max: u64,
    patient: bool,
    stop: Arc<AtomicBool>,
    /// Files that were changed before that may have been written by an earlier run.
    begun_ns: i64,
    tell: Tell,
    state: Mutex<State>,
    /// Threads wait here for files.
    work: Condvar,
    /// Who submits waits here for room.
    room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Names of the files under way.
    under_way: HashSet<RelPath>,
    /// Of files that wait or are under way.
    bytes: u64,
    closed: bool,
    written: Written,
}

struct Job {
    number: FrameNo,
    path: RelPath,
    bytes: Vec<u8>,
    source: FrameSource,
    modified_ns: i64,
}

impl WriteThrough {
    /// Writes the files of `directory` to the store of `options`, and pushes them as `push` says.
    /// `pattern`: as for [`Pusher::new`]. After `stop` is set, a store that does not answer is not
    /// waited for. `tell` is called by threads of its own.
    ///
    /// The directory's manifest, if it has one, is written at once, so that readers number the
    /// frames as this program does.
    pub fn new(
        directory: &Path,
        pattern: Option<&str>,
        options: &WriteThroughOptions,
        push: PusherOptions,
        stop: Arc<AtomicBool>,
        tell: Tell,
    ) -> Result<WriteThrough> {
        let root = options.location.root();
        let pusher = Pusher::for_objects(Path::new(&root), directory, pattern, push)?;
        let shared = Arc::new(Shared {
            writer: ObjectWriter::new(&options.location, objects::program()?),
            pusher,
            root,
            bytes_max: options.bytes_max,
            patient: options.patient,
            stop,
            begun_ns: now_ns(),
            tell,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        shared.write_manifest(directory)?;
        let mut through = WriteThrough { shared, threads: Vec::new() };
        for _ in 0..options.uploads.max(1) {
            let shared = Arc::clone(&through.shared);
            let thread = std::thread::Builder::new().name("write-through".into());
            let thread = thread.spawn(move || shared.work_off());
            through.threads.push(thread.map_err(|error| Error::io("a thread that writes", error))?);
        }
        Ok(through)
    }

    /// Who pushes the frames: counters and problems.
    pub fn pusher(&self) -> &Pusher {
        &self.shared.pusher
    }

    /// What was written so far.
    pub fn written(&self) -> Written {
        self.shared.lock().written
    }

    /// Hands over the whole bytes of the file that `source` names, last changed at `modified_ns`.
    /// Waits for room. An error is a mistake of the caller.
    pub fn submit(
        &self,
        number: FrameNo,
        bytes: Vec<u8>,
        source: FrameSource,
        modified_ns: i64,
    ) -> Result<()> {
        let shared = &self.shared;
        let name = source.name.clone().unwrap_or_default();
        if source.piece || source.offset != 0 {
            let why = format!(
                "{name}: frame {number} is a part of it, and an object store takes whole files only; put it \
                 there when it is complete, by the store's own tools"
            );
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let path = RelPath::new(&name)?;
        if path.is_root() {
            let why = format!("frame {number}: its file name is empty");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let length = bytes.len() as u64;
        limits::check_frame_bytes(length).map_err(|error| error.within(&name))?;
        let mut state = shared.lock();
        let is_full = |state: &State| {
            let is_long = state.bytes > 0 && state.bytes.saturating_add(length) > shared.bytes_max;
            is_long || state.waiting.len() >= WAITING_MAX
        };
        while is_full(&state) {
            state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += length;
        state.waiting.push_back(Job { number, path, bytes, source, modified_ns });
        shared.work.notify_one();
        Ok(())
    }

    /// Waits until all files are written, or failed, and all frames have their fate.
    pub fn finish(mut self) -> (Written, Counters, Vec<String>) {
        self.end();
        self.shared.pusher.drain();
        let state = self.shared.lock();
        (state.written, self.shared.pusher.counters(), self.shared.pusher.problems())
    }

    /// No more files come.
    fn end(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

impl Drop for WriteThrough {
    fn drop(&mut self) {
        self.shared.lock().waiting.clear();
        self.end();
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_manifest(&self, directory: &Path) -> Result<()> {
        let at: PathBuf = directory.join(limits::MANIFEST_NAME);
        let named = |error| Error::io(at.display().to_string(), error);
        let file = match open_found(directory, limits::MANIFEST_NAME) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(named)?,
        };
        let modified_ns = zazen_backing::directory::stat_file(&file).map_err(named)?.validator.mtime_ns;
        let bytes = read_within(file, MANIFEST_BYTES_MAX).map_err(named)?;
        let path = RelPath::new(limits::MANIFEST_NAME)?;
        self.write(&path, &bytes, modified_ns).map(drop)
    }

    /// What a thread does until there is nothing more to do.
    fn work_off(&self) {
        while let Some(job) = self.next() {
            let (path, length) = (job.path.clone(), job.bytes.len() as u64);
            let done = self.write_and_push(job);
            let mut state = self.lock();
            state.under_way.remove(&path);
            state.bytes -= length;
            state.written.failed += u64::from(done.is_err());
            drop(state);
            self.room.notify_all();
            // A file of the same name may have waited for this one.
            self.work.notify_all();
            if let Err(error) = done {
                (self.tell)(path.as_str(), &error);
            }
        }
    }

    /// The first file whose name is not under way; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            let State { waiting, under_way, .. } = &mut *state;
            if let Some(at) = waiting.iter().position(|job| !under_way.contains(&job.path)) {
                let job = waiting.remove(at)?;
                under_way.insert(job.path.clone());
                return Some(job);
            }
            if state.closed && state.waiting.is_empty() {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_and_push(&self, job: Job) -> Result<()> {
        let validator = self.write_patiently(&job)?;
        let Job { number, bytes, source, .. } = job;
        self.pusher.push(number, bytes, FrameSource { validator: Some(validator), ..source })
    }

    fn write_patiently(&self, job: &Job) -> Result<Validator> {
        let mut pause = PAUSE.0;
        loop {
            let error = match self.write(&job.path, &job.bytes, job.modified_ns) {
                Ok(validator) => return Ok(validator),
                Err(error) => error,
            };
            let is_away = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut);
            if !self.patient || !is_away || self.stop.load(Ordering::Relaxed) {
                return Err(error);
            }
            (self.tell)(job.path.as_str(), &error.within(format!("tried again in {pause:?}")));
            let begun = std::time::Instant::now();
            while begun.elapsed() < pause && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Writes an object, unless it is there with the same bytes. Returns what it looks like.
    fn write(&self, path: &RelPath, bytes: &[u8], modified_ns: i64) -> Result<Validator> {
        let (length, checksum) = (bytes.len() as u64, Some(frame_checksum(bytes)));
        let file = NewFile { path: path.clone(), bytes: length, modified_ns, checksum };
        // No earlier run can have written what is younger than this one.
        if modified_ns < self.begun_ns {
            match self.writer.look(path)? {
                There::File { checksum: there, seen, .. } if there == checksum && seen.size == length => {
                    self.check_settled(path, &seen)?;
                    self.lock().written.there += 1;
                    return Ok(seen);
                }
                There::Folder => {
                    let why = format!("{}/{path}: is a folder there, which the object would hide", self.root);
                    return Err(Error::new(ErrorKind::Conflict, why));
                }
                _ => {}
            }
        }
        let seen = self.writer.put(&file, bytes)?;
        let mut state = self.lock();
        state.written.written += 1;
        state.written.written_bytes += length;
        drop(state);
        self.check_settled(path, &seen)?;
        Ok(seen)
    }

    /// A pushed frame counts as settled. So its object needs a sign by which a later one differs.
    fn check_settled(&self, path: &RelPath, seen: &Validator) -> Result<()> {
        if !seen.unsettled && seen.inode != 0 {
            return Ok(());
        }
        let why = format!(
            "{}/{path}: is there, but was not pushed: the object store gives no strong ETag, so nobody could \
             tell it from a later object; readers fetch it from there",
            self.root
        );
        Err(Error::new(ErrorKind::Unsupported, why))
    }
}
