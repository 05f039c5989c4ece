//! The descriptors of logs, names files and segments: as many are open as the process can spare,
//! not as many as there are datasets.
//!
//! Invariant: a file that is reopened is the file that was closed. One with a header is known by
//! its id; a file that is about to lose its name is pinned first, so that whoever still reads it
//! never looks for it by that name.

use crate::record::{FILE_HEADER_BYTES, FileHeader, FileKind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::{Disk, DiskFile, DiskPath, Identities};

/// Opens a file of the disk again.
type Open<F> = Box<dyn Fn(&DiskPath) -> Result<F> + Send + Sync>;

/// The open files of one store.
pub(crate) struct OpenFiles<F> {
    open: Open<F>,
    /// Where new files get the ids in their headers from.
    identities: Arc<dyn Identities>,
    max: usize,
    /// Every file with a descriptor is here once; some may have gone since.
    ring: Mutex<VecDeque<Weak<KeptFile<F>>>>,
}

/// A file that is open when it is needed. Shared by its readers and its writer.
pub(crate) struct KeptFile<F> {
    files: Arc<OpenFiles<F>>,
    /// What its header must say when it is reopened.
    header: Option<(FileKind, u128)>,
    slot: Mutex<Slot<F>>,
    /// Used since the ring looked last.
    used: AtomicBool,
}

struct Slot<F> {
    path: DiskPath,
    file: Option<Arc<F>>,
    pinned: bool,
}

impl<F: DiskFile> OpenFiles<F> {
    /// For the files of `disk`.
    pub(crate) fn new<D: Disk<File = F>>(disk: Arc<D>, identities: Arc<dyn Identities>) -> Arc<OpenFiles<F>> {
        let max = disk.open_files_max();
        let open = Box::new(move |path: &DiskPath| disk.open(path, true));
        Arc::new(OpenFiles { open, identities, max, ring: Mutex::default() })
    }

    /// An id for the header of a new file.
    pub(crate) fn new_id(&self) -> Result<u128> {
        self.identities.draw()
    }

    /// Takes an open file in. `header`: the kind and the id by which it is known.
    pub(crate) fn keep(
        self: &Arc<Self>,
        path: DiskPath,
        header: Option<(FileKind, u128)>,
        file: F,
    ) -> Arc<KeptFile<F>> {
        let slot = Slot { path, file: Some(Arc::new(file)), pinned: false };
        let kept = KeptFile { files: self.clone(), header, slot: Mutex::new(slot), used: true.into() };
        let kept = Arc::new(kept);
        self.opened(&kept);
        kept
    }

    /// Notes that `kept` has a descriptor now, and closes others beyond the bound: those not used
    /// for a round.
    fn opened(&self, kept: &Arc<KeptFile<F>>) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.push_back(Arc::downgrade(kept));
        // Twice around: the first may only find that all were used.
        for _ in 0..2 * ring.len() {
            if ring.len() <= self.max {
                return;
            }
            let Some(next) = ring.pop_front() else { return };
            let Some(candidate) = next.upgrade() else { continue };
            if Arc::ptr_eq(&candidate, kept) || candidate.used.swap(false, Ordering::Relaxed) {
                ring.push_back(next);
                continue;
            }
            let mut slot = candidate.slot();
            if slot.pinned {
                drop(slot);
                ring.push_back(next);
            } else {
                slot.file = None;
            }
        }
    }

    #[cfg(test)]
    fn open_count(&self) -> usize {
        let ring = self.ring.lock().unwrap();
        ring.iter().filter_map(Weak::upgrade).filter(|kept| kept.slot().file.is_some()).count()
    }
}

impl<F: DiskFile> KeptFile<F> {
    fn slot(&self) -> MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, opened if it isn't. It stays open as long as the answer is held.
    pub(crate) fn file(self: &Arc<Self>) -> Result<Arc<F>> {
        self.used.store(true, Ordering::Relaxed);
        let path = {
            let slot = self.slot();
            if let Some(file) = &slot.file {
                return Ok(file.clone());
            }
            slot.path.clone()
        };
        let file = (self.files.open)(&path)?;
        if let Some((kind, id)) = self.header {
            let mut head = [0; FILE_HEADER_BYTES];
            file.read_full_at(&mut head, 0)?;
            if FileHeader::decode(&head, kind).map_err(|error| error.within(&path))?.id != id {
                let text = format!("{path}: was replaced by another file while the daemon ran; restart it");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
        }
        let mut slot = self.slot();
        if let Some(other) = &slot.file {
            return Ok(other.clone());
        }
        let file = Arc::new(file);
        slot.file = Some(file.clone());
        drop(slot);
        self.files.opened(self);
        Ok(file)
    }

    /// Keeps it open from now on: it is about to lose its name.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<()> {
        let file = self.file()?;
        let mut slot = self.slot();
        slot.pinned = true;
        // Closed between the two looks: the ring does not know it then, and nobody closes it.
        slot.file.get_or_insert(file);
        Ok(())
    }

    /// It has a name that it can be opened by.
    pub(crate) fn unpin(&self) {
        self.slot().pinned = false;
    }

    /// It was renamed.
    pub(crate) fn renamed(&self, path: DiskPath) {
        self.slot().path = path;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::RelPath;
    use zazen_env::SimDisk;

    fn path(number: usize) -> DiskPath {
        DiskPath::of(&RelPath::new(&format!("f{number}")).unwrap())
    }

    #[test]
    fn few_are_open_and_all_can_be_read() {
        let disk = SimDisk::new(1, 1 << 20);
        let of = disk.clone();
        let open = Box::new(move |path: &DiskPath| of.open(path, true));
        let identities = Arc::new(zazen_env::SeededIdentities::new(1));
        let files = Arc::new(OpenFiles { open, identities, max: 4, ring: Mutex::default() });
        let make = |number: usize| {
            let file = disk.create(&path(number)).unwrap();
            file.write_all_at(&[number as u8], 0).unwrap();
            files.keep(path(number), None, file)
        };
        let kept: Vec<_> = (0..50).map(make).collect();
        let read = |at: usize| {
            let mut byte = [0];
            kept[at].file().unwrap().read_at(&mut byte, 0).unwrap();
            byte[0]
        };
        for at in (0..50).chain((0..50).rev()).chain([7; 20]) {
            assert_eq!(read(at), at as u8);
            assert!(files.open_count() <= 4, "{}", files.open_count());
        }
        // A pinned one outlives its name; the others do not.
        kept[3].pin().unwrap();
        for at in 0..50 {
            disk.remove(&path(at)).unwrap();
            let _ = kept[(at + 10) % 50].file();
        }
        assert_eq!(read(3), 3);
        assert!(kept[20].file().is_err() || files.open_count() <= 4);
        drop(kept);
        assert_eq!(files.open_count(), 0);
    }
}
