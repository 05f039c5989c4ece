//! The disk under a simulated store: [`SimDisk`], or one of the planted bugs over it.

use crate::mutant::Mutant;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::Result;
use zazen_env::{DiskFile, DiskPath, FileStat, SimDisk, SimFile, WatchedDisk};
use zazen_store::Store;

/// The disk that a node's store sees.
pub(crate) type Disk = WatchedDisk<NodeDisk>;
/// A node's store.
pub(crate) type NodeStore = Store<Disk>;

/// Writes that a planted bug holds back.
type Held = Arc<Mutex<Vec<(Arc<SimFile>, Vec<u8>, u64)>>>;

/// A node's disk.
pub(crate) struct NodeDisk {
    inner: SimDisk,
    mutant: Option<Mutant>,
    held: Held,
}

/// An open file of a [`NodeDisk`].
pub(crate) struct NodeFile {
    inner: Arc<SimFile>,
    mutant: Option<Mutant>,
    /// Where writes wait, if this file's do.
    held: Option<Held>,
}

/// Brings held writes to the disk.
#[derive(Clone)]
pub(crate) struct HeldWrites(Held);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeldWrites {
    pub(crate) fn flush(&self) {
        for (file, bytes, offset) in lock(&self.0).drain(..) {
            // A disk that died meanwhile has lost them.
            let _ = file.write_all_at(&bytes, offset);
        }
    }
}

impl NodeDisk {
    pub(crate) fn new(inner: SimDisk, mutant: Option<Mutant>) -> (NodeDisk, HeldWrites) {
        let held = Held::default();
        (NodeDisk { inner, mutant, held: held.clone() }, HeldWrites(held))
    }

    fn file(&self, path: &DiskPath, file: Result<SimFile>) -> Result<NodeFile> {
        let unfinished = path.as_str().starts_with(".zazen/tmp/");
        let held = (self.mutant == Some(Mutant::DataAfterRecord) && unfinished).then(|| self.held.clone());
        file.map(|inner| NodeFile { inner: Arc::new(inner), mutant: self.mutant, held })
    }
}

/// Syncs as the planted bug does.
fn sync(mutant: Option<Mutant>, sync: impl Fn() -> Result<()>) -> Result<()> {
    match mutant {
        Some(Mutant::SkipSync) => Ok(()),
        Some(Mutant::RetrySync) => sync().or_else(|_| sync()),
        _ => sync(),
    }
}

impl zazen_env::Disk for NodeDisk {
    type File = NodeFile;

    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn lock(&self) -> Result<()> {
        self.inner.lock()
    }
    fn create(&self, path: &DiskPath) -> Result<NodeFile> {
        self.file(path, self.inner.create(path))
    }
    fn open(&self, path: &DiskPath, write: bool) -> Result<NodeFile> {
        self.file(path, self.inner.open(path, write))
    }
    fn open_append(&self, path: &DiskPath) -> Result<NodeFile> {
        self.file(path, self.inner.open_append(path))
    }
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn rename_new(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.inner.rename_new(from, to)
    }
    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.inner.remove(path)
    }
    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()> {
        self.inner.remove_dir_if_empty(path)
    }
    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>> {
        self.inner.list(path)
    }
    fn stat(&self, path: &DiskPath) -> Result<Option<FileStat>> {
        self.inner.stat(path)
    }
    fn free_bytes(&self) -> Result<u64> {
        self.inner.free_bytes()
    }
    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        sync(self.mutant, || self.inner.sync_dir(path))
    }
    fn sync_all(&self) -> Result<()> {
        sync(self.mutant, || self.inner.sync_all())
    }
}

impl DiskFile for NodeFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        match &self.held {
            Some(held) => lock(held).push((self.inner.clone(), bytes.to_vec(), offset)),
            None => self.inner.write_all_at(bytes, offset)?,
        }
        Ok(())
    }
    fn stat(&self) -> Result<FileStat> {
        self.inner.stat()
    }
    fn truncate(&self, bytes: u64) -> Result<()> {
        self.inner.truncate(bytes)
    }
    fn sync(&self) -> Result<()> {
        sync(self.mutant, || self.inner.sync())
    }
    fn sync_data(&self) -> Result<()> {
        sync(self.mutant, || self.inner.sync_data())
    }
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner.allocate(offset, bytes)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner.punch_hole(offset, bytes)
    }
    fn set_times(&self, accessed_ns: i64, modified_ns: i64) -> Result<()> {
        self.inner.set_times(accessed_ns, modified_ns)
    }
    fn reflink_from(&self, source: &NodeFile) -> Result<()> {
        self.inner.reflink_from(&source.inner)
    }
    fn mark(&self, handed_out: bool) -> Result<()> {
        self.inner.mark(handed_out)
    }
    fn to_std(&self) -> Result<std::fs::File> {
        self.inner.to_std()
    }
}
