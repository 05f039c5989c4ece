//! What all services of a daemon share.

use crate::backing_roots::{BackingRoots, Located};
use crate::config::Config;
use crate::counters::Counters;
use crate::fetcher::Fetcher;
use crate::layouts::Layouts;
use crate::session::Sessions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_backing::Backing;
use zazen_call::{Caller, Server};
use zazen_core::{Error, ErrorKind, FrameNo, Layout, RelPath, Result, Series, Source};
use zazen_env::RealDisk;
use zazen_plugins::Plugins;
use zazen_store::Store;

/// The store on this machine's disk.
pub type NodeStore = Store<RealDisk>;

/// A layout that was looked for in vain is looked for again after this.
const LAYOUT_HOLD_OFF: Duration = Duration::from_secs(1);

/// The daemon's shared state.
pub struct Node {
    /// Settings.
    pub config: Config,
    /// The cache.
    pub store: Arc<NodeStore>,
    /// The backing stores.
    pub roots: BackingRoots,
    /// What happened so far.
    pub counters: Counters,
    /// What the names of datasets' files told.
    pub layouts: Layouts,
    /// Brings misses.
    pub fetcher: Fetcher,
    /// What each connection holds.
    pub sessions: Sessions,
    /// Readers that clients should have in flight.
    pub readers: u16,
    /// The cache root, resolved.
    pub cache_root: String,
    /// The daemon's own user.
    pub uid: u32,
    /// When it started.
    pub started: Instant,
    /// Set once it stops: no new work is taken.
    pub draining: AtomicBool,
    /// The server that carries the services, once there is one.
    pub server: OnceLock<Weak<Server>>,
    /// The plug-ins that it serves.
    pub plugins: OnceLock<Weak<Plugins>>,
}

impl Node {
    /// Connections now.
    pub fn connections(&self) -> usize {
        self.server.get().and_then(Weak::upgrade).map_or(0, |server| server.connections())
    }

    /// Refuses new work while draining.
    pub fn admit(&self) -> Result<()> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::ShuttingDown,
                format!("zazend on {} is stopping and takes no new work; use another node", self.config.name),
            ));
        }
        Ok(())
    }

    /// Whether `caller` may administer any dataset: root, the daemon's own user, or a key holder.
    pub fn is_operator(&self, caller: &Caller) -> bool {
        !caller.is_local() || caller.credentials.uid == 0 || caller.credentials.uid == self.uid
    }
}

/// A dataset that a connection has opened.
pub struct Opened {
    /// Where it is.
    pub at: Located,
    /// The template that the user gave, if any.
    pub pattern: Option<String>,
    layout: Mutex<KnownLayout>,
}

struct KnownLayout {
    layout: Option<Arc<Layout>>,
    /// The cache's name for the series.
    series: RelPath,
    looked: Option<Instant>,
    /// Frames in the cache are meant, whatever the backing store says.
    only_cached: bool,
}

impl Opened {
    /// A dataset whose layout is known already, or not.
    pub fn new(at: Located, pattern: Option<String>, layout: Option<Layout>) -> Opened {
        let known =
            KnownLayout { layout: None, series: at.dataset.clone(), looked: None, only_cached: false };
        let opened = Opened { at, pattern, layout: Mutex::new(known) };
        layout.into_iter().for_each(|layout| opened.set_layout(layout));
        opened
    }

    /// A series of the cache, for tools that look after the cache alone.
    pub fn cached(at: Located, pattern: Option<String>, series: RelPath, layout: Option<Layout>) -> Opened {
        let known = KnownLayout { layout: layout.map(Arc::new), series, looked: None, only_cached: true };
        Opened { at, pattern, layout: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, KnownLayout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As users spell it.
    pub fn spelled(&self) -> String {
        self.at.root.spelled(&self.at.beneath)
    }

    /// The store that it lives on.
    pub fn backing(&self) -> &dyn Backing {
        &self.at.root.backing
    }

    /// The layout, if it is known already.
    pub fn known_layout(&self) -> Option<Layout> {
        self.known().layout.as_deref().cloned()
    }

    /// The cache's name for the series that is open: the dataset's directory alone while its layout is not known, which
    /// has no frames.
    pub fn series(&self) -> RelPath {
        self.known().series.clone()
    }

    /// Replaces what is known of the layout.
    pub fn set_layout(&self, layout: Layout) {
        let mut known = self.known();
        self.put_layout(&mut known, layout);
    }

    fn put_layout(&self, known: &mut KnownLayout, layout: Layout) {
        // A path that is too long for a series has no frames in the cache.
        known.series = self.at.series(&Series::of(&layout)).unwrap_or_else(|_| self.at.dataset.clone());
        known.layout = Some(Arc::new(layout));
    }

    /// The layout; looked for on the backing store if it isn't known yet (a dataset that was empty when it was
    /// opened may have frames by now).
    pub fn layout(&self) -> Result<Option<Arc<Layout>>> {
        let mut known = self.known();
        let unknown = known.layout.is_none() && !known.only_cached;
        if unknown && known.looked.is_none_or(|at| at.elapsed() > LAYOUT_HOLD_OFF) {
            let found =
                zazen_backing::dataset::layout(self.backing(), &self.at.beneath, self.pattern.as_deref())?;
            known.looked = Some(Instant::now());
            found.into_iter().for_each(|layout| self.put_layout(&mut known, layout));
        }
        Ok(known.layout.clone())
    }

    /// Where frame `number` is on the backing store.
    pub fn source(&self, number: u64) -> Result<Source> {
        let found = self.layout()?.and_then(|layout| layout.source(FrameNo::new(number).ok()?));
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "frame {number} of {}: the dataset has no such frame; check its names or zazen.toml",
                    self.spelled()
                ),
            )
        })
    }
}
