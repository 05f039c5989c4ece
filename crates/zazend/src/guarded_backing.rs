//! A backing store with a memory of its health: one that hangs costs one timeout, not one per frame, and its
//! going and coming are each logged once.
//!
//! Invariant: each view has a memory of its own. A user who has a directory that hangs keeps nobody else from asking.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_backing::{Backing, Rights, SourceFile, SourceStat};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};

/// A store that refused at once is asked again after this: asking costs little.
const AWAY_HOLD_OFF: Duration = Duration::from_millis(200);
/// A store that let a call time out is left alone for so long.
const HUNG_HOLD_OFF: Duration = Duration::from_secs(5);

/// A backing store that isn't asked while it is known not to answer.
pub struct GuardedBacking {
    inner: Arc<dyn Backing>,
    health: Arc<Health>,
    /// Whose view it is, for messages; empty for the daemon's own.
    of: String,
}

#[derive(Default)]
struct Health {
    ailment: Mutex<Option<Ailment>>,
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
        Ok(GuardedBacking { inner, health: Arc::default(), of: format!(" (asked for user {})", who.uid) })
    }

    /// Whether the last call to it was answered.
    pub fn is_ok(&self) -> bool {
        self.health.ailment().is_none()
    }

    fn guarded<T>(&self, call: impl FnOnce(&dyn Backing) -> Result<T>) -> Result<T> {
        self.health.admit()?;
        let result = call(&*self.inner);
        self.health.note(&self.describe(), result.as_ref().err());
        result
    }
}

/// Whether `error` says that the store as a whole doesn't answer, as against something about one file.
pub fn is_outage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
}

impl Health {
    fn ailment(&self) -> MutexGuard<'_, Option<Ailment>> {
        self.ailment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self) -> Result<()> {
        match &*self.ailment() {
            Some(ailment) if Instant::now() < ailment.ask_again => {
                Err(Error::new(ailment.kind, ailment.message.clone()))
            }
            _ => Ok(()),
        }
    }

    fn note(&self, describe: &str, error: Option<&Error>) {
        let mut ailment = self.ailment();
        match error.filter(|error| is_outage(error)) {
            Some(error) => {
                if ailment.is_none() {
                    tracing::warn!(
                        "backing store {describe} does not answer, serving from the cache alone: {error}"
                    );
                }
                let hung = error.kind() == ErrorKind::TimedOut;
                let hold_off = if hung { HUNG_HOLD_OFF } else { AWAY_HOLD_OFF };
                *ailment = Some(Ailment {
                    kind: error.kind(),
                    message: error.to_string(),
                    ask_again: Instant::now() + hold_off,
                });
            }
            None if ailment.take().is_some() => tracing::info!("backing store {describe} answers again"),
            None => {}
        }
    }
}

impl Backing for GuardedBacking {
    fn describe(&self) -> String {
        self.inner.describe() + &self.of
    }
    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.guarded(|inner| inner.stat(path))
    }
    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        let file = self.guarded(|inner| inner.open(path))?;
        let (health, describe) = (self.health.clone(), self.describe());
        Ok(Box::new(GuardedFile { file, health, describe }))
    }
    fn list(&self, path: &RelPath) -> Result<Vec<String>> {
        self.guarded(|inner| inner.list(path))
    }
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.guarded(|inner| inner.allows(path, rights))
    }
    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        self.guarded(|inner| inner.allows_many(paths, rights))
    }
    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        Ok(Arc::new(self.view(who)?))
    }
    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(|inner| inner.stat_many(paths))
    }
    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(|inner| inner.stat_beneath(folder, paths))
    }
    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.guarded(|inner| inner.probe_beneath(folder, paths))
    }
    fn list_files(&self, path: &RelPath) -> Result<Vec<String>> {
        self.guarded(|inner| inner.list_files(path))
    }
    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}

struct GuardedFile {
    file: Box<dyn SourceFile>,
    health: Arc<Health>,
    describe: String,
}

impl SourceFile for GuardedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let result = self.file.read_at(buffer, offset);
        if let Err(error) = &result {
            self.health.note(&self.describe, Some(error));
        }
        result
    }
    fn stat(&self) -> SourceStat {
        self.file.stat()
    }
    fn stat_now(&self) -> Result<SourceStat> {
        let result = self.file.stat_now();
        if let Err(error) = &result {
            self.health.note(&self.describe, Some(error));
        }
        result
    }
    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.descriptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use zazen_core::Validator;

    struct Hung(Arc<AtomicU64>);

    impl Backing for Hung {
        fn describe(&self) -> String {
            "a hung one".into()
        }
        fn stat(&self, path: &RelPath) -> Result<SourceStat> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if path.is_root() {
                let validator = Validator { size: 0, mtime_ns: 0 };
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
            Ok(Arc::new(Hung(self.0.clone())))
        }
    }

    #[test]
    fn a_hung_store_is_asked_once() {
        let calls = Arc::new(AtomicU64::new(0));
        let guarded = GuardedBacking::new(Arc::new(Hung(calls.clone())));
        assert!(guarded.stat(&RelPath::default()).is_ok() && guarded.is_ok());
        for _ in 0..50 {
            let refused = guarded.stat(&RelPath::new("x").unwrap()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TimedOut);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert!(!guarded.is_ok());
        let who = Credentials { uid: 7, gid: 7, groups: vec![] };
        assert!(guarded.view(&who).unwrap().is_ok(), "another's view is asked");
        // A missing file says nothing against the store.
        let fresh = GuardedBacking::new(Arc::new(Hung(calls)));
        assert!(fresh.open(&RelPath::new("x").unwrap()).is_err());
        assert!(fresh.is_ok());
    }
}
