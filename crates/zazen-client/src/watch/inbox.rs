//! What the kernel tells of a directory, reduced to what a watch has to know.

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// News of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A file of this name, relative to the directory, was closed after writing or renamed into place.
    File(String),
    /// A folder came: files may have come into it before it was watched.
    Folder,
    /// The kernel dropped events: look through the directory.
    Overflow,
    /// The directory itself is gone.
    Gone,
}

/// A watched directory.
pub(super) struct Inbox {
    directory: PathBuf,
    events: Receiver<notify::Result<Event>>,
    /// Watches as long as it lives.
    _watcher: RecommendedWatcher,
}

impl Inbox {
    /// Watches `directory`, and the folders in it where `deep`.
    pub(super) fn open(directory: &Path, deep: bool) -> Result<Inbox> {
        let trouble = |error: notify::Error| {
            let kind = match &error.kind {
                notify::ErrorKind::MaxFilesWatch => ErrorKind::Busy,
                notify::ErrorKind::PathNotFound => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            let hint = "if the limit is reached, raise fs.inotify.max_user_watches or max_user_instances";
            Error::new(kind, format!("watch {}: {error}; {hint}", directory.display()))
        };
        let (send, events) = channel();
        let mut watcher = notify::recommended_watcher(move |event| {
            // Nobody listens any more when the watch has ended.
            let _ = send.send(event);
        })
        .map_err(trouble)?;
        let mode = if deep { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        watcher.watch(directory, mode).map_err(trouble)?;
        Ok(Inbox { directory: directory.to_owned(), events, _watcher: watcher })
    }

    /// What came; waits at most `patience` for the first.
    pub(super) fn wait(&self, patience: Duration) -> Result<Vec<Arrival>> {
        let mut arrivals = Vec::new();
        match self.events.recv_timeout(patience) {
            Ok(event) => self.read(event, &mut arrivals)?,
            Err(RecvTimeoutError::Timeout) => return Ok(arrivals),
            Err(RecvTimeoutError::Disconnected) => {
                let why = format!("watch {}: the kernel's events have ended", self.directory.display());
                return Err(Error::new(ErrorKind::Io, why));
            }
        }
        while let Ok(event) = self.events.try_recv() {
            self.read(event, &mut arrivals)?;
        }
        Ok(arrivals)
    }

    fn read(&self, event: notify::Result<Event>, arrivals: &mut Vec<Arrival>) -> Result<()> {
        let event = event.map_err(|error| {
            Error::new(ErrorKind::Io, format!("watch {}: {error}", self.directory.display()))
        })?;
        if event.need_rescan() {
            arrivals.push(Arrival::Overflow);
            return Ok(());
        }
        let name = |path: &PathBuf| path.strip_prefix(&self.directory).ok()?.to_str().map(str::to_owned);
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                arrivals.extend(event.paths.first().and_then(name).map(Arrival::File));
            }
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                let Some(path) = event.paths.first() else { return Ok(()) };
                let arrival =
                    if path.is_dir() { Some(Arrival::Folder) } else { name(path).map(Arrival::File) };
                arrivals.extend(arrival);
            }
            EventKind::Create(CreateKind::Folder) => arrivals.push(Arrival::Folder),
            EventKind::Remove(RemoveKind::Folder)
                if event.paths.first().is_some_and(|path| *path == self.directory) =>
            {
                arrivals.push(Arrival::Gone);
            }
            _ => {}
        }
        Ok(())
    }
}
