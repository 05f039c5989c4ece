//! A backing store with a memory of its health: one that hangs costs one timeout, not one per frame, and its
//! going and coming are each logged once.
//!
//! Invariants: the store as a whole counts as ill only if its root does not answer either. A part of it that hangs (a
//! user's own mount beneath the root, a dead server of one folder) is ill by itself, and costs only its readers. Each
//! view has a memory of its own: what one user's calls meet keeps nobody else from asking.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_backing::{Backing, Rights, SourceFile, SourceStat};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};

/// A store that refused at once is asked again after this: asking costs little.
const AWAY_HOLD_OFF: Duration = Duration::from_millis(200);
/// A store that let a call time out is left alone for so long.
const HUNG_HOLD_OFF: Duration = Duration::from_secs(5);
/// Folders whose ailments are remembered.
const AILING_FOLDERS_MAX: usize = 256;

/// A backing store that isn't asked while it is known not to answer.
pub struct GuardedBacking {
    inner: Arc<dyn Backing>,
    health: Arc<Health>,
    /// Whose view it is, for messages; empty for the daemon's own.
    of: String,
}

#[derive(Default)]
struct Health {
    ailments: Mutex<Ailments>,
    /// A user's view: that user can bring its calls to time out at will, so what they meet is no news.
    is_view: bool,
}

#[derive(Default)]
struct Ailments {
    /// Of the store as a whole.
    whole: Option<Ailment>,
    /// Of folders, with what is beneath them.
    folders: HashMap<RelPath, Ailment>,
}

struct Ailment {
    kind: ErrorKind,
    message: String,
    ask_again: Instant,
}

impl GuardedBacking {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Backing>) -> GuardedBacking {
        GuardedBacking { inner, health: Arc::default(), of: String::new() }
    }

    /// Guards the view that `who` has of the same store.
    pub fn view(&self, who: &Credentials) -> Result<GuardedBacking> {
        let inner = self.inner.seen_by(who)?;
        let health = Arc::new(Health { is_view: true, ..Health::default() });
        Ok(GuardedBacking { inner, health, of: format!(" (asked for user {})", who.uid) })
    }

    /// Whether the store as a whole answered the last call.
    pub fn is_ok(&self) -> bool {
        self.health.ailments().whole.is_none()
    }

    fn guarded<T>(&self, path: &RelPath, call: impl FnOnce(&dyn Backing) -> Result<T>) -> Result<T> {
        self.health.admit(path)?;
        let result = call(&*self.inner);
        let outage = result.as_ref().err().filter(|error| is_outage(error));
        // What fails beneath the root may be one folder's trouble: the root itself tells.
        let part = outage.is_some() && self.root_answers();
        self.health.note(&self.describe(), path, outage, part);
        result
    }

    fn root_answers(&self) -> bool {
        !matches!(self.inner.stat(&RelPath::default()), Err(error) if is_outage(&error))
    }
}

/// Whether `error` says that the store as a whole doesn't answer, as against something about one file.
pub fn is_outage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
}

impl Health {
    fn ailments(&self) -> MutexGuard<'_, Ailments> {
        self.ailments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, path: &RelPath) -> Result<()> {
        let ailments = self.ailments();
        let of_folders = || {
            let above =
                std::iter::successors(Some(path.clone()), |path| path.split().map(|(above, _)| above));
            (!ailments.folders.is_empty()).then(|| above.filter_map(|path| ailments.folders.get(&path)))
        };
        let now = Instant::now();
        let known = ailments.whole.iter().chain(of_folders().into_iter().flatten());
        match known.into_iter().find(|ailment| now < ailment.ask_again) {
            Some(ailment) => Err(Error::new(ailment.kind, ailment.message.clone())),
            None => Ok(()),
        }
    }

    fn tell(&self, news: std::fmt::Arguments<'_>) {
        match self.is_view {
            true => tracing::debug!("{news}"),
            false => tracing::warn!("{news}"),
        }
    }

    /// Notes what a call for `path` told. `part`: an outage is that of `path` and what is beneath it alone.
    fn note(&self, describe: &str, path: &RelPath, outage: Option<&Error>, part: bool) {
        let mut ailments = self.ailments();
        let Some(error) = outage else {
            if ailments.whole.take().is_some() {
                self.tell(format_args!("backing store {describe} answers again"));
            }
            if !ailments.folders.is_empty() && ailments.folders.remove(path).is_some() {
                self.tell(format_args!("{path} of backing store {describe} answers again"));
            }
            return;
        };
        let hung = error.kind() == ErrorKind::TimedOut;
        let hold_off = if hung { HUNG_HOLD_OFF } else { AWAY_HOLD_OFF };
        let ailment =
            Ailment { kind: error.kind(), message: error.to_string(), ask_again: Instant::now() + hold_off };
        if !part {
            if ailments.whole.is_none() {
                self.tell(format_args!(
                    "backing store {describe} does not answer, serving from the cache alone: {error}"
                ));
            }
            ailments.whole = Some(ailment);
            return;
        }
        if ailments.folders.len() >= AILING_FOLDERS_MAX {
            let now = Instant::now();
            ailments.folders.retain(|_, ailment| now < ailment.ask_again);
        }
        let room = ailments.folders.len() < AILING_FOLDERS_MAX;
        if room && ailments.folders.insert(path.clone(), ailment).is_none() {
            self.tell(format_args!("{path} of backing store {describe} does not answer: {error}"));
        }
    }
}

/// What the opening of a file tells of is its folder's ailment.
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
        let (health, describe) = (self.health.clone(), self.describe());
        Ok(Box::new(GuardedFile { file, health, describe, folder }))
    }
    fn list(&self, path: &RelPath) -> Result<Vec<String>> {
        self.guarded(path, |inner| inner.list(path))
    }
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.guarded(path, |inner| inner.allows(path, rights))
    }
    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        self.guarded(&RelPath::default(), |inner| inner.allows_many(paths, rights))
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
    fn list_files(&self, path: &RelPath) -> Result<Vec<String>> {
        self.guarded(path, |inner| inner.list_files(path))
    }
    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}

struct GuardedFile {
    file: Box<dyn SourceFile>,
    health: Arc<Health>,
    describe: String,
    folder: RelPath,
}

impl SourceFile for GuardedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let result = self.file.read_at(buffer, offset);
        if let Err(error) = &result
            && is_outage(error)
        {
            // What serves one file says nothing of the root; the next call for the root finds out.
            self.health.note(&self.describe, &self.folder, Some(error), true);
        }
        result
    }
    fn stat(&self) -> SourceStat {
        self.file.stat()
    }
    fn stat_now(&self) -> Result<SourceStat> {
        let result = self.file.stat_now();
        if let Err(error) = &result
            && is_outage(error)
        {
            self.health.note(&self.describe, &self.folder, Some(error), true);
        }
        result
    }
    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.descriptor()
    }

    fn has_descriptor(&self) -> bool {
        self.file.has_descriptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use zazen_core::Validator;

    /// Of which all hangs, or all but the root.
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
        fn list(&self, _: &RelPath) -> Result<Vec<String>> {
            Ok(vec![])
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
}
