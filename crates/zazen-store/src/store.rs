//! The store of one cache root: the datasets, and what callers ask of them.

use crate::activity::{Activity, ScanGuard};
use crate::counters::{Counters, count};
use crate::dataset::{Dataset, Found, Lookup, Writer};
use crate::layout_bytes::layout_bytes;
use crate::open_files::OpenFiles;
use crate::own_file::temporary;
use crate::record::{Record, RecordOp, Storage};
use crate::registry;
use crate::room::{Room, on_disk};
use crate::state::State;
use crate::types::{CachedFrame, DatasetSummary, EntriesCursor, OpenFrame, Space, StoreConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use zazen_core::limits::SERIES_MARK;
use zazen_core::{Error, ErrorKind, FrameMeta, Layout, Origin, RelPath, Result, RunSet, Source, Validator};
use zazen_env::{Disk, DiskFile, DiskPath, Seldom, is_trouble};
use zazen_frames::absence::{Absence, Removal, Removals};
use zazen_wire::checksum::FrameDigest;

/// Where a frame's bytes are, and of what source they are.
struct Placed<F> {
    file: F,
    offset: u64,
    path: DiskPath,
    source: Source,
}

/// A frame's record, and where it is if its file can hold it.
type LookedAt<F> = (Found, Option<Placed<F>>);

pub(crate) type DatasetMap<D> = BTreeMap<String, Arc<Dataset<D>>>;

/// The store of one cache root. Shared by threads; data are written and read outside its lock.
pub struct Store<D: Disk> {
    disk: Arc<D>,
    files: Arc<OpenFiles<D::File>>,
    pub(crate) config: StoreConfig,
    node: u128,
    pub(crate) datasets: RwLock<DatasetMap<D>>,
    /// Held while a dataset is made or ended.
    creation: Mutex<()>,
    /// Held for reading during every change; held for writing while the mark of a clean stop is set
    /// or removed.
    changes: RwLock<()>,
    pub(crate) clean: AtomicBool,
    activity: Arc<Activity>,
    room: Arc<Room>,
    pub(crate) evicting: Mutex<()>,
    clock: AtomicU64,
    temporaries: Arc<AtomicU64>,
    pub(crate) registry_bytes: AtomicU64,
    counters: Counters,
    /// Which frames were removed lately, and why.
    removals: Mutex<Removals>,
    /// Those of the first disk, if this is another disk of the same cache.
    shared_removals: OnceLock<Arc<Store<D>>>,
    /// Limits how often a refusal for want of room is logged: a full cache refuses each frame of a
    /// scan.
    pub(crate) refusals: Seldom,
    /// Datasets that could not be opened because the disk failed; they stay on the list of
    /// datasets.
    pub(crate) left_out: Mutex<BTreeSet<String>>,
    /// Whether a sync of the disk failed. The kernel counts what it could not write as written, so
    /// no later sync of this process proves anything about it.
    has_lost_writes: AtomicBool,
}

/// Refusals for want of room are logged once in this time.
const REFUSALS_EVERY: Duration = Duration::from_secs(60);
/// A layout up to this size is remembered, in bytes of memory; a larger one only up to this part of
/// what is held of the dataset.
const LAYOUT_BYTES_MIN: u64 = 64 << 10;
const LAYOUT_SHARE: u64 = 16;
/// Bytes read at once by [`Store::verify`].
const VERIFY_BYTES: usize = 1 << 20;
/// Blocks of records that a page of entries reads at most.
pub(crate) const PAGE_BLOCKS: u64 = 256;

impl<D: Disk> Store<D> {
    #[allow(clippy::too_many_arguments)] // its parts, each made by the one caller
    pub(crate) fn new(
        disk: Arc<D>,
        files: Arc<OpenFiles<D::File>>,
        config: StoreConfig,
        node: u128,
        room: Arc<Room>,
        activity: Arc<Activity>,
        temporaries: Arc<AtomicU64>,
        datasets: DatasetMap<D>,
    ) -> Store<D> {
        let last_use = |dataset: &Arc<Dataset<D>>| dataset.last_use.load(Ordering::Relaxed);
        let clock = datasets.values().map(last_use).max().unwrap_or(0);
        Store {
            disk,
            files,
            config,
            node,
            datasets: RwLock::new(datasets),
            creation: Mutex::default(),
            changes: RwLock::default(),
            clean: AtomicBool::new(false),
            activity,
            room,
            evicting: Mutex::default(),
            clock: AtomicU64::new(clock),
            temporaries,
            registry_bytes: AtomicU64::new(0),
            counters: Counters::default(),
            removals: Mutex::default(),
            shared_removals: OnceLock::new(),
            refusals: Seldom::every(REFUSALS_EVERY),
            left_out: Mutex::default(),
            has_lost_writes: AtomicBool::new(false),
        }
    }

    pub(crate) fn disk(&self) -> &D {
        &self.disk
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    pub(crate) fn tally(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn new_temporary(&self) -> DiskPath {
        temporary(self.temporaries.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn serial(&self) -> u64 {
        self.temporaries.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn touch(&self, dataset: &Dataset<D>) {
        dataset.last_use.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn map(&self) -> RwLockReadGuard<'_, DatasetMap<D>> {
        self.datasets.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn map_mut(&self) -> RwLockWriteGuard<'_, DatasetMap<D>> {
        self.datasets.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn dataset(&self, path: &str) -> Option<Arc<Dataset<D>>> {
        self.map().get(path).cloned()
    }

    /// Nobody else makes or ends a dataset while this is held.
    pub(crate) fn creation(&self) -> MutexGuard<'_, ()> {
        self.creation.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Held during a change of anything on disk. Removes the mark of a clean stop first.
    pub(crate) fn changing(&self) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            let changing = self.changes.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            if !self.clean.load(Ordering::Acquire) {
                return Ok(changing);
            }
            drop(changing);
            let _alone = self.changes.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            if self.clean.load(Ordering::Acquire) {
                registry::unmark_clean(&*self.disk)?;
                self.clean.store(false, Ordering::Release);
            }
        }
    }

    /// Writes the list of datasets; the caller holds `creation`.
    pub(crate) fn save_registry<'a>(&self, datasets: impl Iterator<Item = &'a str>) -> Result<()> {
        let left_out = self.left_out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut all = left_out.clone();
        all.extend(datasets.map(str::to_owned));
        let bytes = registry::save_datasets(&*self.disk, self.serial(), all.iter().map(String::as_str))?;
        let before = self.registry_bytes.swap(bytes, Ordering::Relaxed);
        self.room.settle_own(on_disk(before), on_disk(bytes));
        Ok(())
    }

    /// The dataset, made if there is none.
    pub(crate) fn dataset_or_new(&self, path: &RelPath) -> Result<Arc<Dataset<D>>> {
        if let Some(dataset) = self.dataset(path.as_str()) {
            return Ok(dataset);
        }
        let _alone = self.creation();
        if let Some(dataset) = self.dataset(path.as_str()) {
            return Ok(dataset);
        }
        let names: Vec<String> = self.map().keys().cloned().chain([path.as_str().to_owned()]).collect();
        self.save_registry(names.iter().map(String::as_str))?;
        let mut report = crate::types::RecoveryReport::default();
        let parts = (self.disk.clone(), self.files.clone(), self.room.clone(), self.temporaries.clone());
        let (dataset, _) = Dataset::open(path.clone(), parts.0, parts.1, parts.2, parts.3, &mut report)?;
        let dataset = Arc::new(dataset);
        self.left_out.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(path.as_str());
        self.touch(&dataset);
        self.map_mut().insert(path.as_str().to_owned(), dataset.clone());
        Ok(dataset)
    }

    pub(crate) fn tidy(&self, dataset: &Dataset<D>, writer: &mut Writer<D::File>) {
        match dataset.tidy(writer) {
            Ok(rewritten) => count(&self.counters.rewritten_logs, rewritten),
            Err(error) => tracing::warn!("{error}; the old log stays"),
        }
    }

    /// Forgets a number whose record can't be read any more.
    pub(crate) fn forget_damaged(&self, dataset: &Dataset<D>, origin: Origin, number: u64) {
        tracing::warn!("frame {number} of dataset {}: its log record is damaged; dropped", dataset.path);
        let forgotten =
            dataset.update(|index| Arc::make_mut(&mut index.side_mut(origin).live).remove(number));
        count(&self.counters.dropped_missing, u64::from(forgotten));
    }

    /// Drops a frame if its record is still the one that the caller judged.
    pub(crate) fn drop_found(
        &self,
        dataset: &Dataset<D>,
        found: &Found,
        counter: &AtomicU64,
    ) -> Result<bool> {
        let _changing = self.changing()?;
        let mut writer = dataset.lock_writer();
        match dataset.find(found.record.meta.number.get())? {
            Lookup::Here(now) if now.record == found.record => {
                count(counter, 1);
                dataset.remove(&mut writer, now.origin, &[now.record])?;
                self.tidy(dataset, &mut writer);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl<D: Disk> Store<D> {
    /// Lets the program around the store keep something of its own in the root, with
    /// [`crate::write_root_text`].
    pub fn keep_beside<R>(&self, keep: impl FnOnce(&D) -> R) -> R {
        keep(&self.disk)
    }

    /// Identity of this cache, made at first open and kept.
    pub fn node(&self) -> u128 {
        self.node
    }

    /// The cache root.
    pub fn root(&self) -> &std::path::Path {
        self.disk.root()
    }

    /// What is held of `dataset`, as (natives, aliens); empty sets for an unknown dataset. A cheap
    /// snapshot.
    pub fn holdings(&self, dataset: &RelPath) -> (Arc<RunSet>, Arc<RunSet>) {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Default::default() };
        self.touch(&dataset);
        let index = dataset.read_index();
        (index.native.live.clone(), index.alien.live.clone())
    }

    /// Describes a cached frame; `None` if it isn't here.
    pub fn entry(&self, dataset: &RelPath, number: u64) -> Result<Option<CachedFrame>> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(None) };
        match dataset.find(number)? {
            Lookup::Here(found) => dataset.describe(&found),
            Lookup::Absent | Lookup::Damaged(_) => Ok(None),
        }
    }

    /// Describes those of `numbers` that are here, ordered by storage position.
    ///
    /// Reads the log front to back, some 100 bytes of heap per entry; for more than some 100 000
    /// frames take [`Store::entries_page`].
    pub fn entries(&self, dataset: &RelPath, numbers: &RunSet) -> Result<Vec<CachedFrame>> {
        let mut all = Vec::new();
        let mut cursor = EntriesCursor::default();
        while let Some(page) = self.entries_page(dataset, numbers, &mut cursor)? {
            all.extend(page);
        }
        // If a log was rewritten meanwhile, or a frame promoted, an entry may come twice.
        all.sort_by_key(|entry: &CachedFrame| (entry.meta.number, entry.position));
        all.dedup_by_key(|entry| entry.meta.number);
        all.sort_by_key(|entry| entry.position);
        Ok(all)
    }

    /// The next entries of `numbers`, natives first, each page ordered by storage position; `None`
    /// at the end. A page has some 16 000 entries at most. If the store rewrites a log between two
    /// pages, entries may come again: the caller takes what it got out of `numbers`, or ignores the
    /// second time.
    pub fn entries_page(
        &self,
        dataset: &RelPath,
        numbers: &RunSet,
        cursor: &mut EntriesCursor,
    ) -> Result<Option<Vec<CachedFrame>>> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(None) };
        self.touch(&dataset);
        let blocks = cursor.next_blocks(PAGE_BLOCKS);
        let Some(found) = dataset.page(numbers, cursor, blocks)? else { return Ok(None) };
        let mut entries = Vec::with_capacity(found.len());
        dataset.describe_all(found, &mut entries)?;
        entries.sort_by_key(|entry| entry.position);
        Ok(Some(entries))
    }

    /// Opens a cached frame; `None` if it isn't here (a missing or short file is dropped and counts
    /// as not here).
    pub fn open_frame(&self, dataset: &RelPath, number: u64) -> Result<Option<OpenFrame>> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(None) };
        while let Some((found, opened)) = self.look_at(&dataset, number)? {
            if let Some(Placed { file, offset, path, source }) = opened {
                let is_packed = matches!(found.record.storage, Storage::Packed(_));
                let (meta, origin) = (found.record.meta, found.origin);
                let (file, path) = (file.to_std()?, dataset.absolute(&path));
                return Ok(Some(OpenFrame { file, offset, meta, source, origin, path, is_packed }));
            }
            match self.drop_found(&dataset, &found, &self.counters.dropped_missing) {
                Ok(true) => {
                    self.remember(&dataset.path, Absence::Corrupt, None, RunSet::range(number, number));
                    tracing::warn!(
                        "frame {number} of dataset {}: its file is gone or short; dropped",
                        dataset.path
                    );
                    return Ok(None);
                }
                // It was replaced meanwhile; look again.
                Ok(false) => {}
                // What lies in its place can't be removed; the frame still counts as not here.
                Err(error) => {
                    tracing::warn!("frame {number} of dataset {}: its file is gone ({error})", dataset.path);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Opens a frame by an entry that this store gave a moment ago, without looking it up again:
    /// half the system calls of [`Store::open_frame`]. The frame may have been replaced since; then
    /// the bytes don't match `entry.meta.checksum`, as with any copy that went bad, and the reader
    /// asks again; or it is `None`, if another copy has its number now.
    pub fn open_entry(&self, dataset: &RelPath, entry: &CachedFrame) -> Result<Option<OpenFrame>> {
        // It is gone, or something else has its path: the slow way finds out which.
        let Ok(file) = self.disk.open(&entry.place, false) else {
            let found = self.open_frame(dataset, entry.meta.number.get())?;
            // A verdict about the entry says nothing about other bytes.
            let what = |meta: &FrameMeta| (meta.length, meta.checksum, meta.uid);
            let is_same =
                |found: &OpenFrame| found.source == entry.source && what(&found.meta) == what(&entry.meta);
            return Ok(found.filter(is_same));
        };
        let (meta, source, path) = (entry.meta.clone(), entry.source.clone(), entry.path.clone());
        let (file, offset, is_packed) = (file.into_std()?, entry.offset, entry.is_packed());
        Ok(Some(OpenFrame { file, offset, meta, source, origin: entry.origin, path, is_packed }))
    }

    fn look_at(&self, dataset: &Dataset<D>, number: u64) -> Result<Option<LookedAt<D::File>>> {
        let found = match dataset.find(number)? {
            Lookup::Here(found) => found,
            Lookup::Absent => return Ok(None),
            Lookup::Damaged(_) => {
                let _writer = dataset.lock_writer();
                if let Lookup::Damaged(origin) = dataset.find(number)? {
                    self.forget_damaged(dataset, origin, number);
                }
                return Ok(None);
            }
        };
        if dataset.is_wasteful() {
            // Take `changing` before the writer, as everywhere: `sync` waits in that order.
            let _changing = self.changing()?;
            if let Ok(mut writer) = dataset.writer.try_lock() {
                self.tidy(dataset, &mut writer);
            }
        }
        let Some(source) = dataset.source(&found.record)? else { return Ok(Some((found, None))) };
        let (path, offset) = dataset.file_of(&found.record, &source)?;
        let file = match self.disk.open(&path, false) {
            Ok(file) => file,
            // It may be gone, a directory, a link, or another user's file: in any case it isn't the
            // frame.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::Conflict
                        | ErrorKind::PermissionDenied
                        | ErrorKind::Corrupt
                ) =>
            {
                return Ok(Some((found, None)));
            }
            Err(error) => return Err(error),
        };
        let len = file.len()?;
        let packed = matches!(found.record.storage, Storage::Packed(_));
        let (length, end) = (found.record.meta.length, offset + found.record.meta.length);
        // An empty frame may lie at its segment's end, where nothing was written for it.
        let fits = if packed { len >= end || length == 0 } else { len == end };
        Ok(Some((found, fits.then_some(Placed { file, offset, path, source }))))
    }

    /// Reads a frame and compares its checksum. Drops a bad one, and one that the disk cannot read.
    /// Returns whether it was good; `None` if it isn't here.
    pub fn verify(&self, dataset: &RelPath, number: u64) -> Result<Option<bool>> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(None) };
        while let Some((found, opened)) = self.look_at(&dataset, number)? {
            let good = match &opened {
                Some(placed) => matches(&placed.file, placed.offset, &found),
                None => Ok(false),
            };
            let (counter, what) = match good {
                Ok(true) => return Ok(Some(true)),
                Ok(false) => (&self.counters.dropped_corrupt, "its bytes are wrong".to_owned()),
                // An unreadable copy is as useless as a wrong one, and a new copy gets another
                // place on the disk.
                Err(error) if is_trouble(&error) => (&self.counters.dropped_unreadable, error.to_string()),
                Err(error) => return Err(error),
            };
            if self.drop_found(&dataset, &found, counter)? {
                self.remember(&dataset.path, Absence::Corrupt, None, RunSet::range(number, number));
                tracing::warn!("frame {number} of dataset {}: {what}; dropped", dataset.path);
                return Ok(Some(false));
            }
        }
        Ok(None)
    }

    /// Drops a frame (stale, bad, or evicted by hand); false if it wasn't here.
    pub fn drop_frame(&self, dataset: &RelPath, number: u64) -> Result<bool> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(false) };
        loop {
            match dataset.find(number)? {
                Lookup::Absent => return Ok(false),
                Lookup::Damaged(origin) => {
                    let _writer = dataset.lock_writer();
                    self.forget_damaged(&dataset, origin, number);
                    return Ok(true);
                }
                Lookup::Here(found) => {
                    if self.drop_found(&dataset, &found, &self.counters.dropped_asked)? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Drops a frame that `entry` described, because its source changed; false if the number has
    /// another copy by now.
    pub fn drop_stale(&self, dataset: &RelPath, entry: &CachedFrame) -> Result<bool> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(false) };
        match dataset.find(entry.meta.number.get())? {
            Lookup::Here(found) if found.record.meta == entry.meta && found.origin == entry.origin => {
                let dropped = self.drop_found(&dataset, &found, &self.counters.dropped_stale)?;
                if dropped {
                    let number = entry.meta.number.get();
                    self.remember(&dataset.path, Absence::Stale, None, RunSet::range(number, number));
                }
                Ok(dropped)
            }
            _ => Ok(false),
        }
    }

    /// Records that frames of `series` were removed, for [`Store::removals`].
    pub(crate) fn remember(&self, series: &RelPath, why: Absence, wanted: Option<&RelPath>, set: RunSet) {
        let at_ns = self.activity.now_ns();
        self.removals().remember(Removal {
            at_ns,
            series: series.clone(),
            why,
            wanted: wanted.cloned(),
            set,
        });
    }

    /// Which frames were removed lately, and why. Hold it briefly: whatever removes frames waits
    /// for it.
    pub fn removals(&self) -> MutexGuard<'_, Removals> {
        let of = self.shared_removals.get().map_or(&self.removals, |first| &first.removals);
        of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records removals with those of `first`, another disk of the same cache, from now on.
    pub(crate) fn share_removals(&self, first: &Arc<Store<D>>) {
        self.shared_removals.get_or_init(|| first.clone());
    }

    /// Whether the frame is here, without reading the disk.
    pub(crate) fn has(&self, dataset: &RelPath, number: u64) -> bool {
        self.dataset(dataset.as_str()).is_some_and(|dataset| {
            let index = dataset.read_index();
            index.native.live.contains(number) || index.alien.live.contains(number)
        })
    }

    /// False while the disk refuses changes because one failed a moment ago.
    pub(crate) fn takes_changes(&self) -> bool {
        self.disk.admit_change().is_ok()
    }

    pub(crate) fn is_pinned(&self, dataset: &RelPath) -> bool {
        self.dataset(dataset.as_str()).is_some_and(|dataset| dataset.read_index().state.pinned)
    }

    /// The layout that was told, not what names of files tell.
    pub(crate) fn told_layout(&self, dataset: &RelPath) -> Option<Layout> {
        self.dataset(dataset.as_str())?.read_index().state.layout.clone()
    }

    /// Frames up to this length are packed.
    pub(crate) fn packed_bytes_max(&self) -> u64 {
        self.config.packed_bytes_max
    }

    /// Bytes of the file system that are free beyond the floor.
    pub(crate) fn room_beside_floor(&self) -> u64 {
        self.disk.free_bytes().unwrap_or(0).saturating_sub(self.room.floor())
    }

    /// The clock of [`Removal::at_ns`] now.
    pub fn now_ns(&self) -> u64 {
        self.activity.now_ns()
    }

    /// Gives frames that came without a validator the one that their sources have, if they are
    /// still as `entries` described them. One write to the log for all of them.
    pub fn adopt(&self, dataset: &RelPath, entries: &[(&CachedFrame, Validator)]) -> Result<()> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(()) };
        let _changing = self.changing()?;
        let mut writer = dataset.lock_writer();
        for origin in [Origin::Native, Origin::Alien] {
            let mut records: Vec<Record> = Vec::new();
            for (entry, validator) in entries.iter().filter(|(entry, _)| entry.origin == origin) {
                let Lookup::Here(found) = dataset.find(entry.meta.number.get())? else { continue };
                if found.record.meta != entry.meta || found.origin != origin {
                    continue;
                }
                let mut new = found.record.clone();
                new.meta.validator = Some(*validator);
                records.push(Record { op: RecordOp::Remove, ..found.record });
                records.push(new);
            }
            if !records.is_empty() {
                dataset.append(&mut writer, origin, &records, |_| {})?;
            }
        }
        self.tidy(&dataset, &mut writer);
        Ok(())
    }

    /// The series of `directory` that have frames here, by path.
    pub fn series_of(&self, directory: &RelPath) -> Vec<RelPath> {
        let before = match directory.is_root() {
            true => SERIES_MARK.to_owned(),
            false => format!("{directory}/{SERIES_MARK}"),
        };
        let map = self.map();
        let beneath = map.range(before.clone()..).take_while(|(path, _)| path.starts_with(&before));
        beneath.map(|(_, dataset)| dataset.path.clone()).collect()
    }

    /// Pins or unpins; survives restarts. `NotFound` for an unknown dataset.
    pub fn pin(&self, dataset: &RelPath, pinned: bool) -> Result<()> {
        let Some(found) = self.dataset(dataset.as_str()) else {
            let text = format!("dataset {dataset} is not in the cache; push or load a frame of it first");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let _changing = self.changing()?;
        let _writer = found.lock_writer();
        found.change_state(|state| state.pinned = pinned)
    }

    /// Remembers the layout of `dataset`, across restarts; made known by whoever listed the backing
    /// store. Without effect for a dataset without frames, and for a layout that takes more memory
    /// than [`LAYOUT_BYTES_MIN`] and a sixteenth of what the cache holds of the dataset: whoever
    /// may write a manifest could fill the memory with it.
    pub fn set_layout(&self, dataset: &RelPath, layout: &Layout) -> Result<()> {
        let Some(found) = self.dataset(dataset.as_str()) else { return Ok(()) };
        let (is_known, held) = {
            let index = found.read_index();
            (index.state.layout.as_ref() == Some(layout), index.footprint())
        };
        if is_known || layout_bytes(layout) as u64 > LAYOUT_BYTES_MIN.max(held / LAYOUT_SHARE) {
            return Ok(());
        }
        let _changing = self.changing()?;
        let _writer = found.lock_writer();
        found.change_state(|state| state.layout = Some(layout.clone()))
    }

    /// The layout last told for `dataset`, if any, else what the names of its frames tell; kept
    /// across restarts.
    pub fn layout(&self, dataset: &RelPath) -> Option<Layout> {
        let state = self.dataset(dataset.as_str())?.read_index().state.clone();
        let by_names = || state.templates.first().cloned().map(Layout::Files);
        state.layout.clone().or_else(by_names)
    }

    /// Marks a scan of `dataset` as under way until the guard is dropped.
    pub fn scan(self: &Arc<Self>, dataset: &RelPath) -> ScanGuard {
        if let Some(found) = self.dataset(dataset.as_str()) {
            self.touch(&found);
        }
        ScanGuard::new(self.activity.clone(), dataset.clone())
    }

    /// All datasets, by path.
    pub fn datasets(&self) -> Vec<DatasetSummary> {
        let all: Vec<Arc<Dataset<D>>> = self.map().values().cloned().collect();
        let summary = |dataset: Arc<Dataset<D>>| {
            let index = dataset.read_index();
            DatasetSummary {
                dataset: dataset.path.clone(),
                natives: index.native.live.len(),
                aliens: index.alien.live.len(),
                bytes: index.footprint(),
                pinned: index.state.pinned,
                scans: self.activity.of(dataset.path.as_str()).scans,
                last_use: dataset.last_use.load(Ordering::Relaxed),
            }
        };
        all.into_iter().map(summary).collect()
    }

    /// Space now.
    pub fn space(&self) -> Space {
        let account = self.room.account();
        Space {
            used: account.used,
            reserved: account.reserved,
            budget: self.room.budget(),
            free: self.disk.free_bytes().unwrap_or(0),
            floor: account.floor,
        }
    }

    /// Counters since the start, as (name, value): evicted_frames, evicted_bytes, dropped_corrupt,
    /// dropped_stale, …
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.all()
    }

    /// Bytes of heap that run sets and fences take: the part of the store's memory that grows with
    /// its frames.
    pub fn heap_bytes(&self) -> usize {
        let of = |dataset: &Arc<Dataset<D>>| {
            let index = dataset.read_index();
            index.native.live.heap_bytes() + index.alien.live.heap_bytes() + index.fence_bytes()
        };
        self.map().values().map(of).sum()
    }

    /// The whole state as text, for a person.
    pub fn dump(&self) -> String {
        let space = self.space();
        let mut text = format!(
            "store {}\n  node {:032x}\n  used {} of {} bytes, {} reserved, {} free on the disk, floor {}\n",
            self.disk.root().display(),
            self.node,
            space.used,
            space.budget,
            space.reserved,
            space.free,
            self.room.floor(),
        );
        for (name, value) in self.counters.all() {
            text.push_str(&format!("  {name} {value}\n"));
        }
        let all: Vec<Arc<Dataset<D>>> = self.map().values().cloned().collect();
        for dataset in all {
            let index = dataset.read_index();
            let busy = self.activity.of(dataset.path.as_str());
            text.push_str(&format!(
                "dataset {}\n  natives {} in {} records, aliens {} in {} records, {} segments, {} bytes\n  \
                 pinned {}, scans {}, puts {}, last use {}, layout {:?}\n",
                // Users choose names: a line of the dump is the daemon's.
                dataset.path.as_str().escape_debug(),
                index.native.live.len(),
                index.native.log.records(),
                index.alien.live.len(),
                index.alien.log.records(),
                index.segments.len(),
                index.footprint(),
                index.state.pinned,
                busy.scans,
                busy.puts,
                dataset.last_use.load(Ordering::Relaxed),
                index.state.layout,
            ));
        }
        text
    }

    /// Rewrites a dataset's logs now, sorted and without dead records. The store does so by itself
    /// where it pays.
    pub fn compact(&self, dataset: &RelPath) -> Result<()> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(()) };
        let _changing = self.changing()?;
        let mut writer = dataset.lock_writer();
        for origin in [Origin::Native, Origin::Alien] {
            dataset.rewrite(&mut writer, origin)?;
            count(&self.counters.rewritten_logs, 1);
        }
        Ok(())
    }

    /// Records when each dataset was used last. All are durable before the first takes its place,
    /// because to sync thousands of files one by one takes minutes.
    fn keep_last_uses(&self) -> Result<()> {
        let all: Vec<Arc<Dataset<D>>> = self.map().values().cloned().collect();
        let mut prepared = Vec::new();
        for dataset in all {
            let mut state = State::clone(&dataset.read_index().state);
            let last_use = dataset.last_use.load(Ordering::Relaxed);
            if state.last_use != last_use {
                state.last_use = last_use;
                let temporary = self.new_temporary();
                let bytes = state.prepare(&*self.disk, &temporary)?;
                prepared.push((dataset, state, temporary, bytes));
            }
        }
        if prepared.is_empty() {
            return Ok(());
        }
        self.sync_disk()?;
        for (dataset, state, temporary, bytes) in prepared {
            self.disk.rename(&temporary, &State::path(&dataset.path))?;
            dataset.update(|index| (index.state, index.state_bytes) = (Arc::new(state), bytes));
        }
        Ok(())
    }

    /// Syncs everything written to the disk; `Io` if that failed now or before, because the kernel
    /// does not try twice.
    fn sync_disk(&self) -> Result<()> {
        if self.has_lost_writes.load(Ordering::Relaxed) {
            let text = format!(
                "cache root {}: an earlier sync of its disk failed, and what was written before that may be \
                 lost; restart the daemon, which looks at what is there",
                self.disk.root().display()
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        let synced = self.disk.sync_all();
        self.has_lost_writes.store(synced.is_err(), Ordering::Relaxed);
        synced
    }

    /// Writes and syncs what is in memory only; called at a graceful stop. All frames committed
    /// before it are safe from a power failure after it. Once it has failed, it fails until the
    /// store is opened again.
    pub fn sync(&self) -> Result<()> {
        let _alone = self.changes.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.clean.load(Ordering::Acquire) {
            return Ok(());
        }
        self.keep_last_uses()?;
        self.sync_disk()?;
        if self.room.is_leaking() {
            return Ok(());
        }
        registry::mark_clean(&*self.disk, self.serial())?;
        self.clean.store(true, Ordering::Release);
        Ok(())
    }
}

fn matches<F: DiskFile>(file: &F, offset: u64, found: &Found) -> Result<bool> {
    let meta = &found.record.meta;
    let mut digest = FrameDigest::default();
    let mut buffer = vec![0; VERIFY_BYTES.min(meta.length as usize)];
    let mut done = 0;
    while done < meta.length {
        let want = buffer.len().min((meta.length - done) as usize);
        if file.read_full_at(&mut buffer[..want], offset + done)? < want {
            return Ok(false);
        }
        digest.update(&buffer[..want]);
        done += want as u64;
    }
    Ok(digest.finish() == meta.checksum)
}
