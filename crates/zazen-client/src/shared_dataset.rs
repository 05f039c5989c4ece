//! A dataset that threads share and that forked children go on with: what front ends hold.
//!
//! Invariants: nothing that a parent connected is used in a child, and no lock of the parent's is waited for there:
//! the child opens the dataset anew, by the arguments of the first time, when it first needs it. The parent goes on
//! undisturbed.

use crate::session::{Dataset, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::fork::PerProcess;

/// An opened dataset, for any thread; threads take turns.
pub struct SharedDataset {
    path: PathBuf,
    options: OpenOptions,
    has_daemon: bool,
    closed: AtomicBool,
    /// `None` in a child that has not needed it yet, and once it is closed.
    opened: PerProcess<Mutex<Option<Dataset>>>,
}

impl SharedDataset {
    /// As [`Dataset::open`].
    pub fn open(path: &Path, options: OpenOptions) -> Result<SharedDataset> {
        let dataset = Dataset::open(path, &options)?;
        let shared = SharedDataset {
            path: dataset.path().to_path_buf(),
            options,
            has_daemon: dataset.has_daemon(),
            closed: AtomicBool::new(false),
            opened: PerProcess::new(),
        };
        *shared.lock() = Some(dataset);
        Ok(shared)
    }

    /// Absolute path as opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Whether a daemon answered when it was opened.
    pub fn has_daemon(&self) -> bool {
        self.has_daemon
    }

    /// Runs `body` on the dataset, in turn with other threads. `InvalidArgument` once it is closed.
    pub fn with<T>(&self, body: impl FnOnce(&mut Dataset) -> Result<T>) -> Result<T> {
        let mut opened = self.lock();
        if self.is_closed() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("dataset {} is closed; open it again", self.path.display()),
            ));
        }
        let dataset = match &mut *opened {
            Some(dataset) => dataset,
            fresh => fresh.insert(Dataset::open(&self.path, &self.options)?),
        };
        body(dataset)
    }

    /// Closes it, in this process; iterations over its frames go on. Closing twice is fine.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let dataset = self.lock().take();
        drop(dataset);
    }

    /// Whether [`SharedDataset::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Dataset>> {
        let opened = self.opened.get_or(|parents| {
            // If no thread of the parent was at it, what it has open is closed here: the daemon shall not take this
            // child for it. Else it stays as it is, and unused.
            if let Some(mut parents) = parents.and_then(|parents| parents.try_lock().ok()) {
                parents.take().into_iter().for_each(Dataset::disown);
            }
            Mutex::new(None)
        });
        opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
