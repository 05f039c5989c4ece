//! The daemon's cache: a store on each of the disks that it was given.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use zazen_env::{DiskHealth, RealDisk, WatchedDisk};
use zazen_store::{DiskPut, Space, Store, Stores};

/// The disk under a store.
pub type NodeDisk = WatchedDisk<RealDisk>;
/// The stores on this machine's disks.
pub type NodeStore = Stores<NodeDisk>;
/// A frame on its way to one of them.
pub type NodePut = DiskPut<NodeDisk>;

/// A disk that serves.
pub struct CacheDisk {
    /// The cache root on it, resolved.
    pub root: PathBuf,
    /// How it is.
    pub health: Arc<DiskHealth>,
    /// Its store.
    pub store: Arc<Store<NodeDisk>>,
}

/// A disk that the daemon was given and could not open at its start.
#[derive(Clone, Debug)]
pub struct AbsentDisk {
    /// The cache root, as told.
    pub root: PathBuf,
    /// Why it does not serve.
    pub why: String,
}

/// All disks that the daemon was given.
pub struct CacheDisks {
    /// Those that serve, in the order of the settings; at least one.
    pub serving: Vec<CacheDisk>,
    /// Those that do not.
    pub absent: Vec<AbsentDisk>,
}

/// One disk of the cache at one moment.
pub struct DiskState {
    /// The cache root.
    pub root: PathBuf,
    /// What is wrong, and for how long; empty for a disk that is well.
    pub trouble: String,
    /// Operations that failed since the start: (reads, changes).
    pub failures: (u64, u64),
    /// Its space; nothing for a disk that could not be opened.
    pub space: Space,
}

impl CacheDisks {
    /// All disks, those first that serve.
    pub fn states(&self) -> Vec<DiskState> {
        let serving = self.serving.iter().map(|disk| {
            let report = disk.health.report();
            let trouble = report.trouble();
            DiskState {
                root: disk.root.clone(),
                trouble,
                failures: report.failures,
                space: disk.store.space(),
            }
        });
        let absent = self.absent.iter().map(|disk| DiskState {
            root: disk.root.clone(),
            trouble: format!(
                "could not be opened at the start: {}; restart zazend once it is repaired",
                disk.why
            ),
            failures: (0, 0),
            space: Space::default(),
        });
        serving.chain(absent).collect()
    }

    /// The first cache root that serves: it has what the daemon keeps beside frames.
    pub fn first_root(&self) -> &Path {
        self.serving.first().map_or(Path::new("/"), |disk| &disk.root)
    }

    /// The cache roots that serve, for messages.
    pub fn roots(&self) -> String {
        let roots: Vec<String> = self.serving.iter().map(|disk| disk.root.display().to_string()).collect();
        roots.join(", ")
    }
}
