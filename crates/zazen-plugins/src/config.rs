//! What a daemon is told of one plug-in.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zazen_call::Service;
use zazen_core::Result;

/// One plug-in, where it runs, and within which bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// The shared object.
    pub path: PathBuf,
    /// In a process of its own (the default), or in the daemon's.
    pub isolate: bool,
    /// A call that runs for longer, in a function that is not `blocking`, is taken to hang: the
    /// plug-in's process is ended. Zero: no bound. Without effect in the daemon's process but for a
    /// warning. `None`: 30 seconds, but no bound for a plug-in that acts as its caller, whose calls
    /// wait as long as the caller's own would.
    pub call_timeout: Option<Duration>,
    /// A plug-in's process that gives no sign of life for so long is replaced; it gives one each
    /// second.
    pub silence: Duration,
    /// Bytes of address space that the plug-in's process may have (RLIMIT_AS).
    pub memory_bytes: Option<u64>,
    /// Descriptors that it may have open (RLIMIT_NOFILE).
    pub open_files: Option<u64>,
    /// What the plug-in's process has in its environment besides a search path.
    pub environment: BTreeMap<String, String>,
    /// In a process for each caller's identity, which has become that caller, also if the plug-in
    /// does not ask for it.
    pub acts_as_caller: bool,
    /// Such processes at once, of all identities.
    pub identities_max: usize,
    /// Clients to expect, for INIT's `nproc`; -1 if unknown.
    pub process_count: i32,
    /// The most bytes of all segments of a call.
    pub segment_bytes_max: u64,
}

/// What a call may take where nothing is said.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

impl PluginConfig {
    /// What a call may take; zero: no bound.
    pub(crate) fn call_timeout(&self) -> Duration {
        let usual = if self.acts_as_caller { Duration::ZERO } else { CALL_TIMEOUT };
        self.call_timeout.unwrap_or(usual)
    }

    /// Isolated, with 30 seconds for a call and the daemon's own limits.
    pub fn new(path: PathBuf) -> PluginConfig {
        PluginConfig {
            path,
            isolate: true,
            call_timeout: None,
            silence: Duration::from_secs(15),
            memory_bytes: None,
            open_files: None,
            environment: BTreeMap::new(),
            acts_as_caller: false,
            identities_max: 64,
            process_count: -1,
            segment_bytes_max: 16 << 30,
        }
    }
}

/// What all plug-ins of a daemon share.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The daemon's socket: those of plug-ins' processes lie beside it.
    pub socket: PathBuf,
    /// Folders that callers may reach by plug-ins that act as they, as absolute paths.
    pub exports: Vec<PathBuf>,
    /// Folders that they may reach besides, and that no path of this machine leads to.
    pub mounted: Vec<MountedFolder>,
    /// The program that runs [`crate::worker_main`] when its only argument is
    /// [`crate::WORKER_FLAG`].
    pub worker: PathBuf,
    /// Connections at once to each plug-in's process.
    pub connections_max: usize,
    /// How long a plug-in may take to load and to initialise.
    pub start_timeout: Duration,
    /// How long calls may take to finish when the daemon stops.
    pub drain: Duration,
    /// Where plug-ins' processes record their calls, if they do.
    pub recording: Option<Recording>,
}

/// A folder of a mount that is in nobody's view.
#[derive(Clone, Debug)]
pub struct MountedFolder {
    /// What callers call it: an absolute path.
    pub path: PathBuf,
    /// The folder.
    pub root: Arc<OwnedFd>,
}

/// Where plug-ins' processes record their calls. Each has a file of its own: it may run as its
/// caller, who must not reach what others did.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The folder of the files.
    pub folder: PathBuf,
    /// The daemon's name.
    pub node: String,
    /// Opens the file of this folder for a recorder of this name.
    pub open: fn(&Path, &str) -> Result<File>,
}

/// By a plug-in's ID and a function's index: `NAME.FUNCTION`.
pub type FunctionNames = BTreeMap<(u16, u32), String>;

/// Puts a recorder of calls around the service of a plug-in's process: into this file, as this
/// node's.
pub type Recorder = fn(File, &str, Arc<dyn Service>, FunctionNames) -> Arc<dyn Service>;
