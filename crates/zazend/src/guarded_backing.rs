//! A backing store with a memory of its health: `zazen_frames::outage` decides when it is asked,
//! this file asks.
//!
//! Invariants: each view has a memory of its own. What one user's calls meet keeps nobody else from
//! asking. Another user's names of large directories are in memory for one call at a time, within a
//! bound; the user's other such calls wait.

use crate::clock::now_ns;
use crate::shares::Shares;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zazen_backing::{Backing, DirectoryNames, Rights, SourceFile, SourceStat};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};
use zazen_frames::outage::{Action, Event, Health, News};

pub use zazen_frames::outage::is_outage;

/// Names that take more memory than this are those of a large directory.
const SMALL_BYTES_MAX: u64 = 2 << 20;
/// Names of one directory, at most, for users other than the daemon's own.
const NAMES_BYTES_MAX: u64 = 512 << 20;
/// How long a call waits while another call of its user lists a large directory.
const PATIENCE: Duration = Duration::from_secs(120);

/// A backing store that isn't asked while it is known not to answer.
pub struct GuardedBacking {
    inner: Arc<dyn Backing>,
    memory: Arc<Memory>,
    /// The turns of users who list large directories, for all views of the store.
    large: Arc<Shares>,
    /// Whose view it is; `None` for the daemon's own.
    uid: Option<u32>,
    /// Whose view it is, for messages; empty for the daemon's own.
    of: String,
}

/// What one view knows of the store's health.
#[derive(Default)]
struct Memory {
    health: Mutex<Health>,
    /// A user's view. That user can make its calls time out at will, so their errors are not
    /// logged.
    is_view: bool,
}

impl GuardedBacking {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Backing>) -> GuardedBacking {
        let large = Shares::new("listings of large directories", 1);
        GuardedBacking { inner, memory: Arc::default(), large, uid: None, of: String::new() }
    }

    /// Guards the view that `who` has of the same store.
    pub fn view(&self, who: &Credentials) -> Result<GuardedBacking> {
        let inner = self.inner.seen_by(who)?;
        let memory = Arc::new(Memory { is_view: true, ..Memory::default() });
        let (large, uid) = (self.large.clone(), Some(who.uid));
        Ok(GuardedBacking { inner, memory, large, uid, of: format!(" (asked for user {})", who.uid) })
    }

    /// Whether the store as a whole answered the last call.
    pub fn is_ok(&self) -> bool {
        self.memory.health.lock().unwrap_or_else(PoisonError::into_inner).is_ok()
    }

    fn guarded<T>(&self, path: &RelPath, call: impl FnOnce(&dyn Backing) -> Result<T>) -> Result<T> {
        self.may_ask(path)?;
        let result = call(&*self.inner);
        self.note(path, &result);
        result
    }

    /// Fails while `path` is known not to answer.
    fn may_ask(&self, path: &RelPath) -> Result<()> {
        for action in self.memory.step(Event::Ask { path }, || self.describe()) {
            if let Action::Refuse { kind, message } = action {
                return Err(Error::new(kind, message));
            }
        }
        Ok(())
    }

    /// Remembers what came of asking for `path`.
    fn note<T>(&self, path: &RelPath, result: &Result<T>) {
        let describe = || self.describe();
        match result.as_ref().err().filter(|error| is_outage(error)) {
            None => drop(self.memory.step(Event::Answered { path }, describe)),
            Some(error) => {
                let actions = self.memory.step(Event::Failed { path, error }, describe);
                if actions.contains(&Action::AskRoot) {
                    let answers = self.root_answers();
                    self.memory.step(Event::Root { path, error, answers }, describe);
                }
            }
        }
    }

    /// Lists a directory. A large one waits for its user's turn.
    fn list_in_turn(&self, path: &RelPath, files_only: bool) -> Result<DirectoryNames> {
        let within = |bytes_max| self.guarded(path, |inner| inner.list_within(path, files_only, bytes_max));
        let Some(uid) = self.uid else { return Ok(within(u64::MAX)?.unwrap_or_default()) };
        if let Some(names) = within(SMALL_BYTES_MAX)? {
            return Ok(names);
        }
        let turn = self.large.wait_as(Some((None, uid)), PATIENCE, || false)?;
        let names = within(NAMES_BYTES_MAX)?.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the names in {path} of {} are more than {NAMES_BYTES_MAX} bytes, the limit for one \
                     directory; spread the files over several directories",
                    self.describe()
                ),
            )
        })?;
        Ok(names.holding(turn))
    }

    fn root_answers(&self) -> bool {
        !matches!(self.inner.stat(&RelPath::default()), Err(error) if is_outage(&error))
    }
}

impl Memory {
    /// Steps the state machine, logs its news, returns what else there is to do.
    fn step(&self, event: Event<'_>, describe: impl Fn() -> String) -> Vec<Action> {
        let mut actions = Vec::new();
        self.health.lock().unwrap_or_else(PoisonError::into_inner).step(now_ns(), event, &mut actions);
        for action in &actions {
            if let Action::News(news) = action {
                self.tell(&describe(), news);
            }
        }
        actions
    }

    fn tell(&self, store: &str, news: &News) {
        let text = match news {
            News::StoreAway(error) => {
                format!("backing store {store} does not answer, serving from the cache alone: {error}")
            }
            News::StoreBack => format!("backing store {store} answers again"),
            News::FolderAway(path, error) => {
                format!("{path} of backing store {store} does not answer: {error}")
            }
            News::FolderBack(path) => format!("{path} of backing store {store} answers again"),
        };
        match self.is_view {
            true => tracing::debug!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }
}

/// If a file cannot be opened because of an outage, the outage counts for its folder.
fn folder_of(file: &RelPath) -> RelPath {
    file.split().map(|(folder, _)| folder).unwrap_or_default()
}

impl Backing for GuardedBacking {
    fn describe(&self) -> String {
        self.inner.describe() + &self.of
    }
    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.guarded(path, |inner| inner.stat(path))
    }
    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        let folder = folder_of(path);
        let file = self.guarded(&folder, |inner| inner.open(path))?;
        let (memory, describe) = (self.memory.clone(), self.describe());
        Ok(Box::new(GuardedFile { file, memory, describe, folder }))
    }
    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.list_in_turn(path, false)
    }
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.guarded(path, |inner| inner.allows(path, rights))
    }
    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        // One folder that hangs says nothing about the others, and is not asked again at once.
        let mut answers: Vec<Result<bool>> =
            paths.iter().map(|path| self.may_ask(path).map(|()| false)).collect();
        let is_asked = |at: &usize| answers[*at].is_ok();
        let asked: Vec<usize> = (0..paths.len()).filter(is_asked).collect();
        let of_asked: Vec<RelPath> = asked.iter().map(|at| paths[*at].clone()).collect();
        let told = self.inner.allows_many(&of_asked, rights)?;
        let not_asked = asked.get(told.len()..).unwrap_or_default();
        for at in not_asked {
            let what = format!("{} of {}: others hang, so it was not asked", paths[*at], self.describe());
            answers[*at] = Err(Error::new(ErrorKind::Unavailable, what));
        }
        for (at, answer) in asked.iter().zip(told) {
            self.note(&paths[*at], &answer);
            answers[*at] = answer;
        }
        Ok(answers)
    }
    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        Ok(Arc::new(self.view(who)?))
    }
    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(&RelPath::default(), |inner| inner.stat_many(paths))
    }
    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(folder, |inner| inner.stat_beneath(folder, paths))
    }
    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(folder, |inner| inner.probe_beneath(folder, paths))
    }
    fn will_look_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) {
        if self.may_ask(folder).is_ok() {
            self.inner.will_look_beneath(folder, paths);
        }
    }
    fn near_folders(&self, folder: &RelPath, inner: &Arc<[RelPath]>) -> Result<Vec<bool>> {
        self.guarded(folder, |backing| backing.near_folders(folder, inner))
    }
    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.list_in_turn(path, true)
    }
    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}

struct GuardedFile {
    file: Box<dyn SourceFile>,
    memory: Arc<Memory>,
    describe: String,
    folder: RelPath,
}

impl GuardedFile {
    /// Remembers an outage of this file's server. That says nothing about the root.
    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && is_outage(error)
        {
            let event = Event::FileFailed { folder: &self.folder, error };
            self.memory.step(event, || self.describe.clone());
        }
        result
    }
}

impl SourceFile for GuardedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.note(self.file.read_at(buffer, offset))
    }
    fn stat(&self) -> SourceStat {
        self.file.stat()
    }
    fn stat_now(&self) -> Result<SourceStat> {
        self.note(self.file.stat_now())
    }
    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.descriptor()
    }

    fn has_descriptor(&self) -> bool {
        self.file.has_descriptor()
    }

    fn is_one_version(&self) -> bool {
        self.file.is_one_version()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use zazen_core::{ErrorKind, Validator};

    /// A store that hangs, or hangs except for its root.
    struct Hung(Arc<AtomicU64>, bool);

    impl Backing for Hung {
        fn describe(&self) -> String {
            "a hung one".into()
        }
        fn stat(&self, path: &RelPath) -> Result<SourceStat> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if path.is_root() && !self.1 {
                let validator = Validator::default();
                return Ok(SourceStat { validator, uid: 0, gid: 0, mode: 0, is_dir: true });
            }
            Err(Error::new(ErrorKind::TimedOut, "no answer"))
        }
        fn open(&self, _: &RelPath) -> Result<Box<dyn SourceFile>> {
            Err(Error::new(ErrorKind::NotFound, "none"))
        }
        fn list(&self, _: &RelPath) -> Result<DirectoryNames> {
            Ok(DirectoryNames::default())
        }
        fn allows(&self, _: &RelPath, _: Rights) -> Result<bool> {
            Ok(true)
        }
        fn seen_by(&self, _: &Credentials) -> Result<Arc<dyn Backing>> {
            Ok(Arc::new(Hung(self.0.clone(), self.1)))
        }
    }

    fn refused(guarded: &GuardedBacking, path: &str) -> Option<ErrorKind> {
        guarded.stat(&RelPath::new(path).unwrap()).err().map(|error| error.kind())
    }

    #[test]
    fn a_hung_store_is_asked_once() {
        let calls = Arc::new(AtomicU64::new(0));
        let guarded = GuardedBacking::new(Arc::new(Hung(calls.clone(), true)));
        for _ in 0..50 {
            assert_eq!(refused(&guarded, "x"), Some(ErrorKind::TimedOut));
            assert_eq!(refused(&guarded, "other/y"), Some(ErrorKind::TimedOut));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2, "for x, and for the root that told whose trouble it is");
        assert!(!guarded.is_ok());
        let who = Credentials { uid: 7, gid: 7, groups: vec![] };
        assert!(guarded.view(&who).unwrap().is_ok(), "another's view is asked");
        // A missing file says nothing against the store.
        let fresh = GuardedBacking::new(Arc::new(Hung(calls, true)));
        assert!(fresh.open(&RelPath::new("x").unwrap()).is_err());
        assert!(fresh.is_ok());
    }

    #[test]
    fn a_hung_folder_costs_only_its_own_readers() {
        let calls = Arc::new(AtomicU64::new(0));
        let guarded = GuardedBacking::new(Arc::new(Hung(calls.clone(), false)));
        for _ in 0..50 {
            assert_eq!(refused(&guarded, "mine/hung"), Some(ErrorKind::TimedOut));
            assert_eq!(refused(&guarded, "mine/hung/beneath"), Some(ErrorKind::TimedOut));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert!(guarded.is_ok() && guarded.stat(&RelPath::default()).is_ok());
        assert!(guarded.list(&RelPath::new("mine").unwrap()).is_ok(), "the folder above is another");
        assert!(guarded.list(&RelPath::new("others").unwrap()).is_ok());
    }

    /// A store whose directories have names of 1 MiB.
    struct Crowded(u64);

    impl Backing for Crowded {
        fn describe(&self) -> String {
            "a crowded one".into()
        }
        fn stat(&self, _: &RelPath) -> Result<SourceStat> {
            Err(Error::new(ErrorKind::NotFound, "none"))
        }
        fn open(&self, _: &RelPath) -> Result<Box<dyn SourceFile>> {
            Err(Error::new(ErrorKind::NotFound, "none"))
        }
        fn list(&self, _: &RelPath) -> Result<DirectoryNames> {
            Ok(vec!["x".repeat(1 << 20); self.0 as usize].into())
        }
        fn allows(&self, _: &RelPath, _: Rights) -> Result<bool> {
            Ok(true)
        }
        fn seen_by(&self, _: &Credentials) -> Result<Arc<dyn Backing>> {
            Ok(Arc::new(Crowded(self.0)))
        }
    }

    #[test]
    fn a_users_large_directories_are_listed_one_at_a_time() {
        let path = RelPath::new("d").unwrap();
        let who = |uid| Credentials { uid, gid: 7, groups: vec![] };
        let own = GuardedBacking::new(Arc::new(Crowded(8)));
        let (view, again) = (own.view(&who(7)).unwrap(), own.view(&who(7)).unwrap());
        let other = own.view(&who(8)).unwrap();
        let names = view.list_files(&path).unwrap();
        assert_eq!((names.len(), own.large.under_way()), (8, 1));
        assert_eq!(other.list(&path).unwrap().len(), 8, "another user's turn is another one");
        assert_eq!(own.list(&path).unwrap().len(), 8, "the daemon's own user waits for nobody");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| again.list(&path).map(|names| names.len()));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "the names are still there");
            drop(names);
            assert_eq!(waits.join().unwrap().unwrap(), 8);
        });
        let small = GuardedBacking::new(Arc::new(Crowded(1))).view(&who(7)).unwrap();
        let held = small.list(&path).unwrap();
        assert_eq!((small.list(&path).unwrap().len(), held.len(), small.large.under_way()), (1, 1, 0));
        let huge = GuardedBacking::new(Arc::new(Crowded(513))).view(&who(7)).unwrap();
        let error = huge.list(&path).err().unwrap();
        assert!(error.to_string().contains("512") || error.to_string().contains("536870912"), "{error}");
        assert_eq!(huge.large.under_way(), 0);
    }
}
