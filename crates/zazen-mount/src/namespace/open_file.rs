//! An open file of the namespace, across restarts of the daemon.
//!
//! A file that the daemon has forgotten is opened again by its inode. It is lost for good if its
//! bytes are elsewhere by then, or if somebody here had a lock of it.

use crate::locked::Locked;
use crate::tree::{Credentials, Errno, How, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_namespace::operation::Mode;
use zazen_namespace::{Attributes, InodeId};
use zazen_namespace_client::{File, Namespace};

/// An open file, and what is needed to open it again.
pub(super) struct OpenFile {
    pub(super) who: Credentials,
    pub(super) id: InodeId,
    pub(super) how: How,
    file: Mutex<Arc<File>>,
    locked: Arc<Locked>,
    /// The bytes on this node.
    pub(super) local: Option<Local>,
    /// The daemon had forgotten it, and it was opened again.
    is_again: AtomicBool,
}

/// The bytes of an open file, which the kernel writes without a word.
pub(super) struct Local {
    file: Arc<OwnedFd>,
    /// How they looked when they were told last, or when nothing was written yet; `None` once they
    /// were cut: then they are told however they look.
    told: Mutex<Option<Look>>,
}

/// Length, units on disk, and the time of the last change: what a close tells the metadata.
type Look = (i64, i64, i64, i64);

impl Local {
    pub(super) fn new(file: Arc<OwnedFd>) -> Local {
        let told = Mutex::new(Local::look(&file));
        Local { file, told }
    }

    /// The bytes were cut.
    pub(super) fn cut(&self) {
        *lock(&self.told) = None;
    }

    /// Tells the daemon how the bytes look by `tell`, unless it knows that.
    pub(super) fn tell(&self, tell: impl FnOnce() -> Result<()>) -> Result<()> {
        let look = Local::look(&self.file);
        // The daemon compares the same: a close by which nothing is to be told asks it nothing.
        if look.is_some() && *lock(&self.told) == look {
            return Ok(());
        }
        tell()?;
        *lock(&self.told) = look;
        Ok(())
    }

    fn look(file: &OwnedFd) -> Option<Look> {
        let stat = rustix::fs::fstat(file).ok()?;
        Some((stat.st_size, stat.st_blocks, stat.st_mtime as i64, stat.st_mtime_nsec as i64))
    }
}

impl OpenFile {
    /// A file that was opened just now.
    pub(super) fn new(who: &Credentials, how: How, file: File, locked: Arc<Locked>) -> OpenFile {
        let (who, id) = (who.clone(), file.attributes().id);
        let how = How { truncate: false, exclusive: false, ..how };
        let (file, is_again) = (Mutex::new(Arc::new(file)), AtomicBool::default());
        OpenFile { who, id, how, file, locked, local: None, is_again }
    }

    /// Whether the daemon had forgotten it, and it was opened again.
    pub(super) fn is_again(&self) -> bool {
        self.is_again.load(Ordering::Relaxed)
    }

    /// Does `work` with the file; if the daemon has forgotten it, opens it again, once.
    pub(super) fn with<T>(
        &self,
        namespace: &Namespace,
        vouches: bool,
        work: impl Fn(&File) -> Result<T>,
    ) -> Result<T> {
        let file = Arc::clone(&lock(&self.file));
        match work(&file) {
            Err(Errno::ESTALE) => {}
            done => return done,
        }
        let again = {
            let mut kept = lock(&self.file);
            if Arc::ptr_eq(&kept, &file) {
                if self.locked.has(self.id) {
                    return Err(Errno::EIO);
                }
                let again = namespace.open_inode(vouches.then_some(&self.who), self.id, mode(self.how));
                let again = again.map_err(|_| Errno::EIO)?;
                if place(again.attributes()) != place(file.attributes()) {
                    return Err(Errno::EIO);
                }
                *kept = Arc::new(again);
                self.is_again.store(true, Ordering::Relaxed);
            }
            Arc::clone(&kept)
        };
        match work(&again) {
            Err(Errno::ESTALE) => Err(Errno::EIO),
            done => done,
        }
    }
}

pub(super) fn mode(how: How) -> Mode {
    Mode { read: how.read, write: how.write, truncate: how.truncate }
}

/// Where a file's bytes are, as far as an open file depends on it.
fn place(attributes: &Attributes) -> Option<(u32, u64)> {
    attributes.place.as_ref().map(|place| (place.holder.0, place.generation))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
