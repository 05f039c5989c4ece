//! The kernel's events for a directory, reduced to what a watch needs.

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode};
use notify::{Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// News of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A file of this name, relative to the directory, was closed after writing or renamed into
    /// place.
    File(String),
    /// A file of this name was made, and is open for writing.
    Begun(String),
    /// Something has this name, relative to the directory, and the name is not UTF-8.
    NotUtf8(PathBuf),
    /// A folder appeared and is watched now. Files may have appeared in it before that.
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
    deep: bool,
    /// Watches until it is dropped.
    watcher: RefCell<RecommendedWatcher>,
}

impl Inbox {
    /// Watches `directory` and, if `deep`, the folders in it.
    pub(super) fn open(directory: &Path, deep: bool) -> Result<Inbox> {
        let trouble = |error| cannot_watch(directory, &error);
        let (send, events) = channel();
        let tell = move |event| {
            // The send fails only after the watch has ended.
            let _ = send.send(event);
        };
        // A link that somebody puts there could lead to all of the machine's folders.
        let config = Config::default().with_follow_symlinks(false);
        let mut watcher = RecommendedWatcher::new(tell, config).map_err(trouble)?;
        let mode = if deep { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        // The dot: the directory itself may be a link.
        watcher.watch(&directory.join("."), mode).map_err(trouble)?;
        Ok(Inbox { directory: directory.to_owned(), events, deep, watcher: RefCell::new(watcher) })
    }

    /// A folder appeared. The watcher's own recursion reports a folder before it watches it. A
    /// listing at that moment would miss files that appear in between. So make sure of the watch
    /// first.
    fn folder_came(&self, folder: &Path) -> Result<Arrival> {
        if self.deep {
            match self.watcher.borrow_mut().watch(folder, RecursiveMode::Recursive) {
                // The folder is gone again, so it holds no frames.
                Err(notify::Error { kind: notify::ErrorKind::PathNotFound, .. }) => {}
                Err(_) if !folder.exists() => {}
                other => other.map_err(|error| cannot_watch(folder, &error))?,
            }
        }
        Ok(Arrival::Folder)
    }

    /// The events that came. Waits at most `patience` for the first.
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
        let named = |path: &PathBuf, arrival: fn(String) -> Arrival| {
            let name = path.strip_prefix(&self.directory).ok()?;
            Some(match name.to_str() {
                Some(name) => arrival(name.to_owned()),
                None => Arrival::NotUtf8(name.to_owned()),
            })
        };
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                arrivals.extend(event.paths.first().and_then(|path| named(path, Arrival::File)));
            }
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                let Some(path) = event.paths.first() else { return Ok(()) };
                match path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                    true => arrivals.push(self.folder_came(path)?),
                    false => arrivals.extend(named(path, Arrival::File)),
                }
            }
            // Only a trajectory that grows is read before it is closed.
            EventKind::Create(CreateKind::File) => {
                arrivals.extend(event.paths.first().and_then(|path| named(path, Arrival::Begun)));
            }
            EventKind::Create(CreateKind::Folder) => {
                let Some(path) = event.paths.first() else { return Ok(()) };
                arrivals.push(self.folder_came(path)?);
            }
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

fn cannot_watch(folder: &Path, error: &notify::Error) -> Error {
    let kind = match &error.kind {
        notify::ErrorKind::MaxFilesWatch => ErrorKind::Busy,
        notify::ErrorKind::PathNotFound => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    let hint = "if the limit is reached, raise fs.inotify.max_user_watches or max_user_instances";
    Error::new(kind, format!("watch {}: {error}; {hint}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::Flag;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn names_that_are_not_utf8_are_not_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = Inbox::open(folder.path(), false).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(b"f\xff-1"));
        for kind in [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Create(CreateKind::File),
        ] {
            let mut arrivals = Vec::new();
            inbox.read(Ok(Event::new(kind).add_path(folder.path().join(name))), &mut arrivals).unwrap();
            assert_eq!(arrivals, [Arrival::NotUtf8(name.to_owned())], "{kind:?}");
        }
    }

    #[test]
    fn events_are_reduced_to_what_a_watch_has_to_know() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = Inbox::open(folder.path(), false).unwrap();
        let check = |kind, name: &str, expected: Option<Arrival>| {
            let mut arrivals = Vec::new();
            inbox.read(Ok(Event::new(kind).add_path(folder.path().join(name))), &mut arrivals).unwrap();
            assert_eq!(arrivals.first(), expected.as_ref(), "{kind:?}");
        };
        let file = |name: &str| Some(Arrival::File(name.to_owned()));
        check(EventKind::Access(AccessKind::Close(AccessMode::Write)), "f1", file("f1"));
        check(EventKind::Modify(ModifyKind::Name(RenameMode::To)), "f2", file("f2"));
        check(EventKind::Modify(ModifyKind::Name(RenameMode::From)), "f2", None);
        check(EventKind::Access(AccessKind::Close(AccessMode::Read)), "f1", None);
        check(EventKind::Create(CreateKind::File), "f1", Some(Arrival::Begun("f1".to_owned())));
        check(EventKind::Create(CreateKind::Folder), "d", Some(Arrival::Folder));
        check(EventKind::Remove(RemoveKind::Folder), "", Some(Arrival::Gone));
        check(EventKind::Remove(RemoveKind::Folder), "d", None);
        let mut arrivals = Vec::new();
        inbox.read(Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)), &mut arrivals).unwrap();
        assert_eq!(arrivals, [Arrival::Overflow]);
    }
}
