//! Objects of a bucket as a backing store. A program of its own reads the bucket ([`helper`]); this
//! file asks it, and decides who may read.
//!
//! An object is a file; a folder is what the keys of several objects have in common up to a slash.
//! The validator of an object is its size, its time of change and a digest of its ETag, so an
//! object that was replaced within one second differs too. Each read names the version that was
//! opened, and fails with `Stale` for any other.
//!
//! Invariant: an object store knows no users of this machine. The owner, group and mode of the
//! location decide, for all objects alike.

mod helper;
mod location;
mod writer;

pub use helper::{PROGRAM, PROGRAM_VARIABLE, WRITES, program};
pub use location::{ObjectLocation, Owner, SCHEME, plain_path};
pub use writer::ObjectWriter;

use crate::served::{Patience, ServedBacking};
use crate::{Backing, DirectoryNames, Rights, SourceFile, SourceStat};
use helper::Helper;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Validator};

/// The program gives up a call after this time, with an error that says what the store did.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);
/// The same while it lists a folder, which takes a round trip for each thousand names.
pub const LIST_DEADLINE: Duration = Duration::from_secs(110);
/// The same while it writes: a part of an object may take this long, and so may their joining.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(300);
/// How long a store is asked, at the end, to drop the parts of objects that were given up.
pub const ABORT_DEADLINE: Duration = Duration::from_secs(15);
/// A program that itself hangs gets this much longer.
const GRACE: Duration = Duration::from_secs(5);

/// A bucket, or the part of it beneath a prefix.
#[derive(Clone)]
pub struct ObjectBacking {
    inner: ServedBacking,
    owner: Owner,
    root: Arc<str>,
}

impl ObjectBacking {
    /// The objects at `location`, which `program` reads. It is started by the first call.
    pub fn new(location: &ObjectLocation, program: PathBuf) -> ObjectBacking {
        let inner = served(location, program, vec![location.told()]);
        ObjectBacking { inner, owner: location.owner, root: location.root().into() }
    }
}

/// The program as a server. It is started by the first call.
fn served(location: &ObjectLocation, program: PathBuf, told: Vec<String>) -> ServedBacking {
    let root = location.root();
    let describe = match &location.endpoint {
        Some(endpoint) => format!("object store {root} at {endpoint}"),
        None => format!("object store {root}"),
    };
    let patience =
        Patience { list: LIST_DEADLINE + GRACE, write: WRITE_DEADLINE + GRACE, call: CALL_DEADLINE + GRACE };
    // One that only reads has nothing to tell the store at its end.
    let writes = told.iter().any(|word| word == WRITES);
    let to_end = if writes { ABORT_DEADLINE + GRACE } else { Duration::ZERO };
    ServedBacking::over(Box::new(Helper::new(program, told, to_end, describe)), patience)
}

/// The view of the daemon's own user: its credentials open the store.
impl Backing for ObjectBacking {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.inner.stat(path)
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.inner.stat_many(paths)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        Ok(Box::new(ObjectFile(self.inner.open(path)?)))
    }

    /// Looks at each object and opens none.
    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.stat_beneath(folder, paths)
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.inner.list(path)
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.inner.list_files(path)
    }

    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.inner.allows(path, rights)
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        Ok(Arc::new(ObjectView { store: self.clone(), who: who.clone() }))
    }

    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}

/// One version of an object.
struct ObjectFile(Box<dyn SourceFile>);

impl SourceFile for ObjectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        // Nobody asks a store for what lies beyond the end: it would answer with an error.
        let rest = self.0.stat().validator.size.saturating_sub(offset);
        let wanted = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        match self.0.read_at(&mut buffer[..wanted], offset)? {
            0 => {
                Err(Error::new(ErrorKind::Protocol, "the object store sent fewer bytes than the object has"))
            }
            read => Ok(read),
        }
    }

    fn stat(&self) -> SourceStat {
        self.0.stat()
    }

    /// A version never changes.
    fn stat_now(&self) -> Result<SourceStat> {
        Ok(self.0.stat())
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }

    fn is_one_version(&self) -> bool {
        true
    }

    fn name_led_to(&self) -> Option<Validator> {
        None
    }
}

/// The store as one user sees it.
struct ObjectView {
    store: ObjectBacking,
    who: Credentials,
}

impl ObjectView {
    fn may(&self) -> Result<()> {
        let Owner { uid, gid, mode } = self.store.owner;
        match self.store.owner.lets_read(&self.who) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "user {} may not read {}: for this node its objects belong to user {uid} and group \
                     {gid}, with mode {mode:04o} (an administrator sets owner=, group= and mode= of this \
                     backing store)",
                    self.who.uid, self.store.root
                ),
            )),
        }
    }
}

impl Backing for ObjectView {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.may()?;
        self.store.stat(path)
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        if self.may().is_ok() {
            return self.store.stat_many(paths);
        }
        let refusal = || self.may().and_then(|()| self.store.stat(&RelPath::default()));
        Ok(paths.iter().map(|_| refusal()).collect())
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        self.may()?;
        self.store.open(path)
    }

    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.stat_beneath(folder, paths)
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.may()?;
        self.store.list(path)
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.may()?;
        self.store.list_files(path)
    }

    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        match self.may() {
            Ok(()) => self.store.allows(path, rights),
            Err(_) => Ok(false),
        }
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        self.store.seen_by(who)
    }

    fn traffic(&self) -> (u64, u64) {
        self.store.traffic()
    }
}
