//! Objects that are needed no more. They wait in a folder of their own until a thread removes them:
//! for a large one the kernel takes long, and everybody waits for the driver, which hears first
//! that an object goes.

use rustix::fs::{AtFlags, Dir};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use zazen_core::{Error, Result};

/// The folder, and the thread that empties it.
pub(crate) struct Gone {
    folder: Arc<OwnedFd>,
    wake: SyncSender<()>,
}

impl Gone {
    /// Begins with what an earlier life of the daemon left in `folder`.
    pub(crate) fn begin(folder: OwnedFd) -> Result<Gone> {
        let folder = Arc::new(folder);
        // One that waits is enough: the thread removes all that is there.
        let (wake, wakes) = sync_channel(1);
        let of_thread = Arc::clone(&folder);
        let run = move || {
            empty(&of_thread);
            wakes.into_iter().for_each(|()| empty(&of_thread));
        };
        let thread = std::thread::Builder::new().name("ns-gone".to_owned()).spawn(run);
        thread.map_err(|error| Error::io("start thread ns-gone", error))?;
        Ok(Gone { folder, wake })
    }

    /// Where an object is put that shall go.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Something was put there.
    pub(crate) fn wake(&self) {
        self.wake.try_send(()).ok();
    }
}

fn empty(folder: &OwnedFd) {
    let entries = match Dir::read_from(folder) {
        Ok(entries) => entries.flatten(),
        Err(error) => return tracing::warn!("namespace: the folder of objects that go: {error}"),
    };
    for entry in entries.filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")) {
        if let Err(error) = rustix::fs::unlinkat(folder, entry.file_name(), AtFlags::empty()) {
            tracing::warn!("namespace: object {:?} stays on the disk: {error}", entry.file_name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, Instant};

    fn is_empty_soon(path: &std::path::Path) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while std::fs::read_dir(path).unwrap().count() > 0 {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    #[test]
    fn what_was_left_and_what_comes_goes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("left"), b"x").unwrap();
        let gone = Gone::begin(File::open(dir.path()).unwrap().into()).unwrap();
        assert!(is_empty_soon(dir.path()));
        for round in 0..50 {
            std::fs::write(dir.path().join(format!("{round}")), b"x").unwrap();
            gone.wake();
        }
        assert!(is_empty_soon(dir.path()));
    }
}
