//! Pushing the files of a simulation code that cannot be changed: inotify on a directory, files that were
//! closed after writing or renamed into place, and those that were there before.

use crate::Pusher;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zazen_core::Result;

/// How to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// File-name template; `None`: manifest, or detected from the names seen.
    pub pattern: Option<String>,
    /// Also push files that are there at the start.
    pub existing: bool,
    /// Leave off when no file came for so long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Leave off when a file of this name appears in the directory.
    pub until: Option<String>,
}

/// What [`watch`] tells as it goes.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A file was handed to the pusher.
    Submitted {
        /// Its frame number.
        number: u64,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A file's name gives no frame number; told once per name.
    NotAFrame(String),
    /// A file could not be read.
    Failed {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The existing files have all been handed over.
    CaughtUp,
}

/// Watches `directory` and pushes until `stop` is set or the options say so. Runs on the caller's thread.
pub fn watch(
    directory: &Path,
    pusher: &Pusher,
    options: &WatchOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(WatchEvent),
) -> Result<()> {
    let _ = (directory, pusher, options, stop, tell);
    todo!()
}
