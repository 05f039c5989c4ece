//! What all services of a daemon share.

use crate::backing_roots::BackingRoots;
use crate::config::Config;
use crate::counters::Counters;
use crate::fetcher::Fetcher;
use crate::latency::Calls;
use crate::layouts::Layouts;
use crate::neighbours::{AllNeighbours, Readers};
use crate::node_store::{CacheDisks, NodeStore};
use crate::opened::{OpenedDataset, Stops};
use crate::peers::Peers;
use crate::push_buffers::PushBuffers;
use crate::scan_records::ScanRecords;
use crate::shares::AllShares;
use crate::user_room::Unfinished;
use crate::viewer::Powers;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Instant;
use zazen_call::{Caller, ClusterKey, Line, Server};
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_env::Seldom;
use zazen_plugins::Plugins;

/// The daemon's shared state.
pub struct Node {
    /// Settings; SIGHUP puts others in their place.
    pub(crate) config: RwLock<Arc<Config>>,
    /// The cluster key, if the daemon was given one. SIGHUP replaces its bytes.
    pub key: Option<ClusterKey>,
    /// Held while the disk is measured.
    pub(crate) measuring: Mutex<()>,
    /// What the last SIGHUP left undone.
    pub left_undone: Mutex<LeftUndone>,
    /// The cache.
    pub store: Arc<NodeStore>,
    /// Its disks.
    pub disks: CacheDisks,
    /// Lets one failure of the cache in a while into the log.
    pub cache_failures: Seldom,
    /// The backing stores.
    pub roots: BackingRoots,
    /// What happened so far.
    pub counters: Counters,
    /// How long its calls took.
    pub calls: Arc<Calls>,
    /// What the names of datasets' files told.
    pub layouts: Layouts,
    /// Brings misses.
    pub fetcher: Fetcher,
    /// Blocks of small frames, on their way from the backing store into the cache.
    pub neighbours: AllNeighbours,
    /// The other nodes, which may have blocks of files.
    pub peers: Peers,
    /// What each user may have under way.
    pub shares: AllShares,
    /// The records of the last scans.
    pub records: ScanRecords,
    /// What each user is still sending.
    pub unfinished: Arc<Unfinished>,
    /// Memory for frames that are pushed.
    pub push_buffers: PushBuffers,
    /// Readers that clients should have in flight.
    pub readers: AtomicU16,
    /// The first cache root, resolved.
    pub cache_root: String,
    /// The daemon's own user, and whom it can act for.
    pub powers: Powers,
    /// When it started.
    pub started: Instant,
    /// Set once it stops: no new work is taken.
    pub draining: AtomicBool,
    /// The server that carries the services, once there is one.
    pub server: OnceLock<Weak<Server>>,
    /// The plug-ins that it serves.
    pub plugins: OnceLock<Weak<Plugins>>,
}

/// Settings that a running daemon was told of and does not follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftUndone {
    /// Names of settings that need a restart.
    pub needs_restart: Vec<String>,
    /// Why the settings were refused as a whole.
    pub refused: Option<String>,
}

impl Node {
    /// The settings now.
    pub fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other settings in the place of these. Whoever took the old ones goes on with them.
    pub(crate) fn set_config(&self, config: Config) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Readers that clients should have in flight.
    pub fn readers(&self) -> u16 {
        self.readers.load(Ordering::Relaxed)
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.server.get().and_then(Weak::upgrade).map_or(0, |server| server.connections())
    }

    /// Counts that the cache could not give or take a frame, which is read from its source instead.
    pub fn cache_failed(&self, error: &Error) {
        self.counters.cache_failures.add(1);
        if let Some(others) = self.cache_failures.pass() {
            tracing::warn!(
                "{error}; it is read from the backing store ({others} more such failures since this was last \
                 said)"
            );
        }
    }

    /// Whether the daemon is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Whether a call from `line` still matters: its caller waits, and the daemon is not stopping.
    pub fn stops(self: &Arc<Node>, line: &Line) -> Stops {
        let (node, line) = (Arc::downgrade(self), line.clone());
        Arc::new(move || line.is_cut() || node.upgrade().is_none_or(|node| node.is_draining()))
    }

    /// Who wants the frames `wanted` of `opened` since `since_ns`, for blocks of small ones.
    pub fn readers_of<'a>(
        &'a self,
        opened: &'a OpenedDataset,
        caller: &'a Caller,
        wanted: &'a RunSet,
        since_ns: u64,
    ) -> Readers<'a> {
        Readers {
            store: &self.store,
            fetcher: &self.fetcher,
            shares: &self.shares,
            opened,
            caller,
            wanted,
            since_ns,
        }
    }

    /// Refuses new work while draining.
    pub fn admit(&self) -> Result<()> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::ShuttingDown,
                format!(
                    "zazend on {} is stopping and takes no new work; use another node",
                    self.config().name
                ),
            ));
        }
        Ok(())
    }

    /// Whether `caller` may administer any dataset: root, the daemon's own user, or a key holder.
    pub fn is_operator(&self, caller: &Caller) -> bool {
        !caller.is_local() || self.is_privileged(caller)
    }

    /// Whether `caller` could read the cache's own files anyway: a local process of root or of the
    /// daemon's user.
    pub fn is_privileged(&self, caller: &Caller) -> bool {
        caller.is_local() && (caller.credentials.uid == 0 || caller.credentials.uid == self.powers.uid)
    }
}
