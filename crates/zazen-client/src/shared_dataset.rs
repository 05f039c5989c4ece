//! A dataset that threads share and that forked children can use. The language bindings hold it.
//!
//! Invariants: a forked child uses no connection of its parent and waits for no lock of its parent.
//! When the child first needs the dataset, it opens it again with the same arguments. The parent is
//! not affected.

use crate::daemon_spec::check_same_version;
use crate::session::{Dataset, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_core::{Blocks, Error, ErrorKind, Layout, Result};
use zazen_env::fork::PerProcess;
use zazen_wire::codec::{Reader, Writer};

/// An opened dataset, for any thread; threads take turns.
pub struct SharedDataset {
    path: PathBuf,
    options: OpenOptions,
    has_daemon: bool,
    /// What was opened, if it is of a version: the blocks of a file, a trajectory, files by name.
    opened_as: Option<Layout>,
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
            opened_as: dataset.opened_as().cloned(),
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
        self.opened_as.as_ref().and_then(Layout::blocks)
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
                check_same_version(self.opened_as.as_ref(), again.layout())?;
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
            "dataset {}: files of {} came or went since it was opened, so frames have other numbers; \
             open it again",
            self.path.display(),
            self.options.pattern.as_deref().unwrap_or_default(),
        );
        Err(Error::new(ErrorKind::Stale, what))
    }

    /// What another process needs to know that it opens the same trajectory; `None` for other
    /// datasets.
    pub fn seen(&self) -> Option<Vec<u8>> {
        let layout = self.opened_as.as_ref().filter(|layout| layout.trajectory().is_some())?;
        let mut writer = Writer::new();
        writer.layout(layout);
        Some(writer.into_bytes())
    }

    /// Fails with `Stale` unless this is the trajectory of which another process has `seen`,
    /// perhaps with more frames by now.
    pub fn check_seen(&self, seen: &[u8]) -> Result<()> {
        let before = Reader::new("what was seen of a trajectory", seen).layout()?;
        check_same_version(Some(&before), self.opened_as.as_ref())
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
