//! A dataset that threads share and that forked children can use. The language bindings hold it.
//!
//! Invariants: a forked child uses no connection of its parent and waits for no lock of its parent.
//! When the child first needs the dataset, it opens it again with the same arguments. The parent is
//! not affected.

use crate::session::{Dataset, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_core::{Blocks, Error, ErrorKind, Result};
use zazen_env::fork::PerProcess;

/// An opened dataset, for any thread; threads take turns.
pub struct SharedDataset {
    path: PathBuf,
    options: OpenOptions,
    has_daemon: bool,
    /// The version of the file that was opened, if the dataset is the blocks of a file.
    blocks: Option<Blocks>,
    /// As [`Dataset::names`].
    names: Option<(u64, u64)>,
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
            blocks: dataset.blocks().cloned(),
            names: dataset.names(),
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

    /// The version of the file that was opened, if the dataset is the blocks of a file.
    pub fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    /// Whether a daemon answered when it was opened.
    pub fn has_daemon(&self) -> bool {
        self.has_daemon
    }

    /// Runs `body` on the dataset, one thread at a time. `InvalidArgument` once it is closed.
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
            fresh => {
                let again = Dataset::open(&self.path, &self.options)?;
                if let (Some(before), Some(now)) = (&self.blocks, again.blocks()) {
                    before.check_version(&now.version)?;
                }
                self.check_names(again.names())?;
                fresh.insert(again)
            }
        };
        body(dataset)
    }

    /// As [`Dataset::names`], when it was opened.
    pub fn names(&self) -> Option<(u64, u64)> {
        self.names
    }

    /// Fails with `Stale` if files that are numbered by their names are not those of `others`, who
    /// opened the same dataset.
    pub fn check_names(&self, others: Option<(u64, u64)>) -> Result<()> {
        if self.names == others {
            return Ok(());
        }
        let what = format!(
            "dataset {}: files of {} came or went since it was opened, so frames have other numbers; open it again",
            self.path.display(),
            self.options.pattern.as_deref().unwrap_or_default(),
        );
        Err(Error::new(ErrorKind::Stale, what))
    }

    /// Closes the dataset in this process. Iterations over its frames continue. It may be closed
    /// twice.
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
            // If no thread of the parent was using the dataset at the fork, close its descriptors
            // here, so that the daemon does not mistake this child for the parent. Otherwise leave
            // it as it is, unused.
            if let Some(mut parents) = parents.and_then(|parents| parents.try_lock().ok()) {
                parents.take().into_iter().for_each(Dataset::disown);
            }
            Mutex::new(None)
        });
        opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
