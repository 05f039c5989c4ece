//! A dataset that a connection has opened: what its user may see of it, and its layout.

use crate::backing_roots::Located;
use crate::guarded_backing::{GuardedBacking, is_outage};
use crate::node_store::NodeStore;
use crate::shares::LAYOUT_BYTES_OF_A_SHARE;
use crate::viewer::Viewer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_backing::trajectory::{Confirmed, Finder};
use zazen_backing::{Backing, Rights, SourceFile};
use zazen_core::{Error, ErrorKind, FrameNo, Layout, RelPath, Result, Series, Source, Validator};

/// If no layout was found, or the search failed, the next search begins after this time.
const LAYOUT_HOLD_OFF: Duration = Duration::from_secs(1);
/// How long an answer about a directory's permission counts.
pub const LEASE: Duration = Duration::from_nanos(zazen_frames::scan::LEASE_NS);

/// A dataset that a connection has opened, as the connection's user sees it.
pub struct OpenedDataset {
    /// Where it is.
    pub at: Located,
    /// The template that the user gave, if any.
    pub pattern: Option<String>,
    /// Who opened it.
    pub viewer: Viewer,
    view: Arc<GuardedBacking>,
    layout: Mutex<KnownLayout>,
    /// When the directory was last found to be open to the viewer.
    allowed: Mutex<Option<Instant>>,
    /// Looks of trajectory files that only grew.
    confirmed: Confirmed,
    stops: Stops,
}

/// Whether nobody waits for an answer any more: the connection is cut, or the daemon stops.
pub type Stops = Arc<dyn Fn() -> bool + Send + Sync>;

struct KnownLayout {
    layout: Option<Arc<Layout>>,
    /// The user or the backing store told it; else it is what the cache remembers.
    told: bool,
    /// The cache's name for the series.
    series: RelPath,
    looked: Option<Instant>,
    /// Why the last search failed: each frame of a scan asks, and a search may list a directory.
    failed: Option<(ErrorKind, String)>,
    /// Frames in the cache are meant, whatever the backing store says.
    only_cached: bool,
}

impl KnownLayout {
    fn unknown(series: RelPath) -> KnownLayout {
        KnownLayout { layout: None, told: false, series, looked: None, failed: None, only_cached: false }
    }
}

impl OpenedDataset {
    /// The dataset at `at` for `viewer`; its layout is not known yet. Looking for it ends once
    /// `stops` says so.
    pub fn new(at: Located, pattern: Option<String>, viewer: Viewer, stops: Stops) -> Result<OpenedDataset> {
        let view = at.root.seen_by(&viewer)?;
        let series = at.dataset.clone();
        let known = KnownLayout::unknown(series);
        let (layout, allowed) = (Mutex::new(known), Mutex::default());
        let confirmed = Confirmed::default();
        Ok(OpenedDataset { at, pattern, viewer, view, layout, allowed, confirmed, stops })
    }

    /// From now on this handle means a series of the cache: for a tool that manages the cache
    /// alone.
    pub fn mean_cached(&self, series: RelPath, layout: Option<Layout>) {
        let layout = layout.map(Arc::new);
        *self.known() = KnownLayout { layout, only_cached: true, ..KnownLayout::unknown(series) };
    }

    fn known(&self) -> MutexGuard<'_, KnownLayout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache's name for the open series. While the layout is unknown, it is the name of the
    /// dataset's directory, which has no frames.
    pub fn series(&self) -> RelPath {
        self.known().series.clone()
    }

    /// As users spell it.
    pub fn spelled(&self) -> String {
        self.at.root.spelled(&self.at.beneath)
    }

    /// The store that it lives on, as its user sees it.
    pub fn backing(&self) -> &dyn Backing {
        &*self.view
    }

    /// Opens the source of frame `number` with its user's rights. What this descriptor reads, the
    /// user may read.
    ///
    /// Fails with `Stale` if the dataset is the blocks of another version of the file, or if a
    /// trajectory's frame is no longer where it was.
    pub fn open_source(&self, source: &Source, number: u64) -> Result<Box<dyn SourceFile>> {
        let path = self.at.beneath.join(source.path.as_str())?;
        let within = |error: Error| error.within(format!("frame {number} of {}", self.spelled()));
        let file = self.backing().open(&path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => self.denied(number, &error),
            _ if is_outage(&error) => {
                within(error).within("not in the cache, and its backing store does not answer")
            }
            _ => within(error),
        })?;
        self.check_version(&file.stat().validator)?;
        self.confirm(&*file, source, number)?;
        Ok(file)
    }

    /// Checks that frame `number` of a trajectory is still at `source` in its opened file; `Stale`
    /// if it is not.
    pub fn confirm(&self, file: &dyn SourceFile, source: &Source, number: u64) -> Result<()> {
        if let Some(layout) = self.told_layout()
            && let Some(trajectory) = layout.trajectory()
        {
            let confirmed = &self.confirmed;
            zazen_backing::trajectory::confirm(file, trajectory, number, source, confirmed)
                .map_err(|error| error.within(format!("frame {number} of {}", self.spelled())))?;
        }
        Ok(())
    }

    /// Whether the dataset is the blocks of a file.
    pub fn is_blocks(&self) -> bool {
        self.known().layout.as_deref().is_some_and(|layout| layout.blocks().is_some())
    }

    /// Fails with `Stale` if the dataset is the blocks of a file, and what looks like `found` is
    /// another version of that file than the one that was opened.
    pub fn check_version(&self, found: &Validator) -> Result<()> {
        let layout = self.known().layout.clone();
        match layout.as_deref().and_then(Layout::blocks) {
            None => Ok(()),
            Some(blocks) => blocks.check_version(found).map_err(|error| error.within(self.spelled())),
        }
    }

    /// The refusal of a frame whose source the user may not read.
    pub fn denied(&self, number: u64, why: &Error) -> Error {
        Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "frame {number} of {}: {} may not read its source ({why}); ask the owner for read permission",
                self.spelled(),
                self.who()
            ),
        )
    }

    /// The user, for messages.
    pub fn who(&self) -> String {
        match &self.viewer {
            Viewer::Own => "the daemon's user".into(),
            Viewer::Other(identity) => format!("user {}", identity.uid()),
        }
    }

    /// Whether the user may still use the dataset's directory: a handle is valid only as long as
    /// the permission. The answer counts for [`LEASE`].
    pub fn check(&self, store: &NodeStore) -> Result<()> {
        if self.viewer.is_own() {
            return Ok(());
        }
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if allowed.is_some_and(|since| since.elapsed() < LEASE) {
            return Ok(());
        }
        self.check_now(store, Rights::SEARCH)?;
        *allowed = Some(Instant::now());
        Ok(())
    }

    /// Whether the user has `rights` to the dataset's directory now.
    pub fn check_now(&self, store: &NodeStore, rights: Rights) -> Result<()> {
        if self.viewer.is_own() {
            return Ok(());
        }
        match self.backing().allows(&self.at.beneath, rights) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let what = "may not use its directory so; ask the owner for permission";
                let text = format!("dataset {}: {} {what}", self.spelled(), self.who());
                Err(Error::new(ErrorKind::PermissionDenied, text))
            }
            Err(error) if is_outage(&error) || error.kind() == ErrorKind::NotFound => {
                if self.owns_what_is_cached(store) { Ok(()) } else { Err(self.unknowable(error)) }
            }
            Err(error) => Err(error.within(format!("dataset {}", self.spelled()))),
        }
    }

    /// Whether the user owned the source of the first cached frame. While the backing store does
    /// not answer, only that user may learn what is cached of the dataset.
    pub fn owns_what_is_cached(&self, store: &NodeStore) -> bool {
        let Viewer::Other(identity) = &self.viewer else { return true };
        store.series_of(&self.at.dataset).iter().any(|series| {
            let (native, alien) = store.holdings(series);
            let first = native.first().or(alien.first());
            let entry = first.and_then(|number| store.entry(series, number).ok().flatten());
            entry.is_some_and(|entry| entry.meta.uid == identity.uid())
        })
    }

    /// Whether the daemon's own view of the dataset gets no answer either. A user can make the
    /// user's own view time out, which says nothing about the store.
    pub fn is_store_away(&self) -> bool {
        self.at.root.backing.stat(&self.at.beneath).is_err_and(|error| is_outage(&error))
    }

    /// The error if nobody can be asked whether this is allowed.
    pub fn unknowable(&self, why: Error) -> Error {
        let kind = if is_outage(&why) { why.kind() } else { ErrorKind::PermissionDenied };
        Error::new(
            kind,
            format!(
                "dataset {}: without its backing store zazend cannot tell what {} may read; try again when \
                 the store answers ({why})",
                self.spelled(),
                self.who()
            ),
        )
    }

    /// The layout, if it is known already.
    pub fn known_layout(&self) -> Option<Layout> {
        self.known().layout.as_deref().cloned()
    }

    /// The memory that the layout takes, about.
    pub fn layout_bytes(&self) -> usize {
        self.known().layout.as_deref().map_or(0, zazen_store::layout_bytes)
    }

    /// Whether the layout is known already.
    pub fn has_layout(&self) -> bool {
        self.known().layout.is_some()
    }

    /// The layout, if the user or the backing store told it.
    pub fn told_layout(&self) -> Option<Arc<Layout>> {
        let known = self.known();
        known.layout.clone().filter(|_| known.told)
    }

    /// Replaces what is known of the layout. `told`: by the user or the backing store; otherwise
    /// the cache remembered it.
    pub fn set_layout(&self, layout: Layout, told: bool) {
        self.put_layout(&mut self.known(), layout, told);
    }

    fn put_layout(&self, known: &mut KnownLayout, layout: Layout, told: bool) {
        // A path that is too long for a series has no frames in the cache.
        known.series = self.at.series(&Series::of(&layout)).unwrap_or_else(|_| self.at.dataset.clone());
        known.layout = Some(Arc::new(layout));
        known.told = told;
    }

    /// The layout. If it is not known yet, this looks for it on the backing store: a dataset that
    /// was empty when it was opened may have frames by now.
    pub fn layout(&self) -> Result<Option<Arc<Layout>>> {
        let mut known = self.known();
        let unknown = known.layout.is_none() && !known.only_cached;
        if unknown && known.looked.is_none_or(|at| at.elapsed() > LAYOUT_HOLD_OFF) {
            let (finder, pattern) = (self.finder(), self.pattern.as_deref());
            let found = zazen_backing::dataset::layout(finder, self.backing(), &self.at.beneath, pattern);
            known.looked = Some(Instant::now());
            known.failed = None;
            // Its share of memory was taken when it was opened.
            let fits = |layout: &Layout| zazen_store::layout_bytes(layout) <= LAYOUT_BYTES_OF_A_SHARE;
            match found {
                Ok(Some(layout)) if !fits(&layout) => {
                    let why = "its list of frames came after it was opened, and is long; open it again";
                    known.failed = Some((ErrorKind::Busy, format!("dataset {}: {why}", self.spelled())));
                }
                Ok(found) => found.into_iter().for_each(|layout| self.put_layout(&mut known, layout, true)),
                Err(error) => known.failed = Some((error.kind(), error.to_string())),
            }
        }
        match &known.failed {
            Some((kind, why)) if unknown => Err(Error::new(*kind, why.clone())),
            _ => Ok(known.layout.clone()),
        }
    }

    /// Where its layout is looked for.
    pub fn finder(&self) -> Finder<'_> {
        self.at.root.finder(&*self.stops)
    }

    /// Whether nobody waits for an answer any more.
    pub fn stops(&self) -> bool {
        (self.stops)()
    }

    /// Where frame `number` is on the backing store.
    pub fn source(&self, number: u64) -> Result<Source> {
        let layout = self.layout()?;
        let found = layout.as_ref().and_then(|layout| layout.source(FrameNo::new(number).ok()?));
        found.ok_or_else(|| {
            let trajectory = layout.as_ref().and_then(|layout| layout.trajectory());
            let (kind, why) = match trajectory {
                Some(trajectory) => trajectory.why_not(number),
                None => {
                    let why = "the dataset has no such frame; check its names or zazen.toml";
                    (ErrorKind::NotFound, why.to_owned())
                }
            };
            Error::new(kind, format!("frame {number} of {}: {why}", self.spelled()))
        })
    }
}
