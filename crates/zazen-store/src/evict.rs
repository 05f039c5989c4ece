//! Making room, and eviction by hand.

use crate::counters::count;
use crate::dataset::{Dataset, Index, Writer, shown};
use crate::own_file::ignore_absent;
use crate::own_file::temporary;
use crate::record::{Record, Storage};
use crate::room::Room;
use crate::segments::{self, SegmentWriter};
use crate::state::State;
use crate::store::Store;
use crate::types::EntriesCursor;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use zazen_core::{Error, ErrorKind, Origin, RelPath, Result, RunSet};
use zazen_env::{Disk, DiskPath};
use zazen_frames::absence::Absence;
use zazen_frames::evict_scan_resistant::{Candidate, Victim};
use zazen_frames::make_room::{Action, Event, MakeRoom};
use zazen_frames::quota::{Claim, Scope, Short, is_beneath};

/// Blocks of records that are evicted at a time.
const BATCH_BLOCKS: u64 = 64;

impl<D: Disk> Store<D> {
    /// Reserves `bytes` for a put of `claim`; evicts if needed.
    pub(crate) fn make_room(&self, claim: &Claim, bytes: u64, origin: Origin) -> Result<u64> {
        let making = MakeRoom::new(bytes, self.room().budget(), origin);
        let Err(short) = self.carry_out(making, bytes, Some(claim))? else { return Ok(bytes) };
        count(&self.tally().refused_no_space, 1);
        let (space, dataset) = (self.space(), &claim.series);
        let root = self.disk().root().display();
        let text = match short.map(|short| (short.scope, short.limit)) {
            Some((scope @ Scope::User(uid), limit)) => format!(
                "no room for {bytes} bytes of dataset {dataset}: user {uid}, who owns its source, has {} of \
                 {limit} bytes in cache {root}, and the rest is pinned or in use; raise user_budget, or \
                 evict a dataset of this user",
                self.room().taken(&scope).used
            ),
            Some((Scope::Folder(folder), limit)) => format!(
                "no room for {bytes} bytes of dataset {dataset}: datasets at and beneath {folder} have {} of \
                 {limit} bytes in cache {root}, and the rest is pinned or in use; raise dataset_budget, or \
                 evict one of them",
                self.room().taken(&Scope::Folder(folder.clone())).used
            ),
            _ => format!(
                "no room for {bytes} bytes of dataset {dataset} in cache {}: {} of {} bytes are used, {} \
                 reserved, {} free on the disk (floor {}), and the rest is pinned or in use; raise the \
                 budget, unpin or evict a dataset",
                root,
                space.used,
                space.budget,
                space.reserved,
                space.free,
                self.room().floor(),
            ),
        };
        let refused = Error::new(ErrorKind::NoSpace, text);
        if let Some(others) = self.refusals.pass() {
            tracing::warn!("{refused} (and {others} more such refusals since this was last said)");
        }
        Err(refused)
    }

    /// Runs `work` while `bytes` of the budget are set aside for it; evicts nothing. `NoSpace` if
    /// the budget or the floor does not allow it.
    pub fn with_room<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> Result<R> {
        let free = self.disk().free_bytes()?;
        self.room().reserve(bytes, free, None).map_err(|short| {
            let lacks = short.bytes;
            let text = format!("the cache lacks {lacks} of {bytes} bytes that are to be set aside");
            Error::new(ErrorKind::NoSpace, text)
        })?;
        let result = work();
        self.room().release(bytes, 0, None);
        Ok(result)
    }

    /// Carries out what `making` asks for until it ends. Returns whether there is room for a put of
    /// `bytes` by `claim`; if not, what was missing at last.
    pub(crate) fn carry_out(
        &self,
        mut making: MakeRoom,
        bytes: u64,
        claim: Option<&Claim>,
    ) -> Result<std::result::Result<(), Option<Short>>> {
        let wanted = claim.map(|claim| &claim.series);
        let mut missing = None;
        let mut turn = None;
        let mut surveyed = Vec::new();
        let mut event = Event::Begin;
        let mut actions = Vec::with_capacity(1);
        loop {
            making.step(event, &mut actions);
            event = match actions.pop() {
                Some(Action::Reserve) => {
                    let reserved = self.room().reserve(bytes, self.disk().free_bytes()?, claim);
                    missing = reserved.as_ref().err().cloned();
                    Event::Reserved(reserved)
                }
                Some(Action::TakeTurn) => {
                    turn = Some(self.evicting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
                    Event::Turn
                }
                Some(Action::Survey(scope)) => {
                    let candidates;
                    (surveyed, candidates) = self.survey(&scope, wanted);
                    Event::Surveyed(candidates)
                }
                Some(Action::Evict(victim)) => Event::Evicted(self.evict_victim(&surveyed, victim, wanted)),
                Some(Action::Done(result)) => {
                    drop(turn);
                    return result.map(|granted| if granted { Ok(()) } else { Err(missing) });
                }
                None => unreachable!("making room asks for something or ends"),
            };
        }
    }

    /// The datasets within `scope`, and what they could give to it. A dataset of several users
    /// counts as its main owner's.
    fn survey(&self, scope: &Scope, wanted: Option<&RelPath>) -> (Vec<Arc<Dataset<D>>>, Vec<Candidate>) {
        let is_within = |dataset: &&Arc<Dataset<D>>| match scope {
            Scope::Cache => true,
            Scope::User(uid) => dataset.read_index().owners.main().is_some_and(|(owner, _)| owner == *uid),
            Scope::Folder(folder) => is_beneath(dataset.path.as_str(), folder),
        };
        let all: Vec<Arc<Dataset<D>>> = self.map().values().filter(is_within).cloned().collect();
        let now_ns = self.activity().now_ns();
        let candidate = |dataset: &Arc<Dataset<D>>| {
            let busy = self.activity().of(dataset.path.as_str());
            let index = dataset.read_index();
            let bytes = match (scope, index.owners.main()) {
                (Scope::User(_), Some((_, owned))) => owned,
                _ => index.footprint(),
            };
            Candidate {
                bytes,
                alien_bytes: (index.alien.file_bytes + index.alien.packed_bytes).min(bytes),
                last_use: dataset.last_use.load(Ordering::Relaxed),
                pinned: index.state.pinned,
                scanned: busy.is_scanned(now_ns),
                written: busy.puts > 0,
                wanted: wanted == Some(&dataset.path),
            }
        };
        let candidates = all.iter().map(candidate).collect();
        (all, candidates)
    }

    fn evict_victim(
        &self,
        surveyed: &[Arc<Dataset<D>>],
        victim: Victim,
        wanted: Option<&RelPath>,
    ) -> Result<()> {
        let why = match wanted {
            Some(dataset) => format!("to make room for dataset {dataset}"),
            None => "because more is in use than the budget allows".to_owned(),
        };
        match victim {
            Victim::Dataset(at) => {
                let path = &surveyed[at].path;
                let evicted = self.evict_whole(&surveyed[at], wanted);
                let (frames, bytes) =
                    evicted.inspect_err(|error| tracing::warn!("evict dataset {path}: {error}"))?;
                count(&self.tally().evicted_datasets, 1);
                tracing::info!(
                    "evicted dataset {path} ({frames} frames, {bytes} bytes), the longest not used, {why}"
                );
            }
            Victim::Aliens(at, bytes) => {
                let (frames, bytes) = self.evict_aliens(&surveyed[at], bytes, wanted)?;
                tracing::info!(
                    "evicted the {frames} oldest aliens of dataset {} ({bytes} bytes) {why}",
                    surveyed[at].path
                );
            }
        }
        Ok(())
    }

    /// Drops `set` (`None`: all) of a dataset: (frames, bytes). `Busy` if it is pinned. Scans under
    /// way do not prevent it: a reader keeps the files that it has open, and the rest of its scan
    /// misses.
    pub fn evict(&self, dataset: &RelPath, set: Option<&RunSet>) -> Result<(u64, u64)> {
        let Some(found) = self.dataset(dataset.as_str()) else { return Ok((0, 0)) };
        if found.read_index().state.pinned {
            let text = format!("dataset {} is pinned; unpin it first with `zazen pin --off`", shown(dataset));
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let (frames, bytes) = match set {
            None => self.evict_whole(&found, None)?,
            Some(set) => self.evict_set(&found, set, u64::MAX, EntriesCursor::default(), None)?,
        };
        tracing::info!("evicted {frames} frames of dataset {dataset} ({bytes} bytes), as asked");
        Ok((frames, bytes))
    }

    /// Removes aliens in log order, the order in which they came, until so many bytes are free.
    pub(crate) fn evict_aliens(
        &self,
        dataset: &Dataset<D>,
        bytes: u64,
        wanted: Option<&RelPath>,
    ) -> Result<(u64, u64)> {
        let aliens = dataset.read_index().alien.live.clone();
        let cursor = EntriesCursor { in_aliens: true, ..EntriesCursor::default() };
        self.evict_set(dataset, &aliens, bytes, cursor, wanted)
    }

    fn evict_set(
        &self,
        dataset: &Dataset<D>,
        set: &RunSet,
        bytes_max: u64,
        mut cursor: EntriesCursor,
        wanted: Option<&RelPath>,
    ) -> Result<(u64, u64)> {
        let _changing = self.changing()?;
        let (mut frames, mut bytes) = (0, 0);
        while bytes < bytes_max {
            let mut writer = dataset.lock_writer();
            let Some(page) = dataset.page(set, &mut cursor, BATCH_BLOCKS)? else { break };
            let origin = page.first().map_or(Origin::Native, |found| found.origin);
            let mut enough = 0;
            let records: Vec<Record> = page
                .into_iter()
                .map(|found| found.record)
                .take_while(|record| {
                    let take = bytes + enough < bytes_max;
                    enough += record.meta.length;
                    take
                })
                .collect();
            let before = dataset.read_index().footprint();
            dataset.remove(&mut writer, origin, &records)?;
            let mut gone: Vec<u64> = records.iter().map(|record| record.meta.number.get()).collect();
            gone.sort_unstable();
            self.remember(&dataset.path, Absence::Evicted, wanted, RunSet::from_ascending(gone));
            frames += records.len() as u64;
            bytes += before.saturating_sub(dataset.read_index().footprint());
            self.tidy(dataset, &mut writer);
        }
        count(&self.tally().evicted_frames, frames);
        count(&self.tally().evicted_bytes, bytes);
        Ok((frames, bytes))
    }

    /// Evicts a dataset with its logs, and ends it unless somebody is using it: (frames, bytes).
    ///
    /// The logs go first: a crash after that leaves files that no record speaks of, which the next
    /// start removes.
    pub(crate) fn evict_whole(
        &self,
        dataset: &Arc<Dataset<D>>,
        wanted: Option<&RelPath>,
    ) -> Result<(u64, u64)> {
        let _changing = self.changing()?;
        let mut writer = dataset.lock_writer();
        if let Err(error) = self.room().removed(dataset.read_index().pin()) {
            tracing::warn!("{error}; files of dataset {} may stay until the next start", dataset.path);
        }
        for origin in [Origin::Native, Origin::Alien] {
            let aside = temporary(self.serial());
            if dataset.read_index().side(origin).log.is_made() {
                ignore_absent(self.disk().rename(&dataset.log_path(origin), &aside))?;
                ignore_absent(self.disk().remove(&aside))?;
            }
        }
        let old = {
            let mut index = dataset.index.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let mut kept = Index::empty();
            (kept.state, kept.state_bytes) = (index.state.clone(), index.state_bytes);
            std::mem::replace(&mut *index, kept)
        };
        writer.segments.close_all();
        self.remember(&dataset.path, Absence::Evicted, wanted, old.native.live.union(&old.alien.live));
        let (frames, before) = (old.native.live.len() + old.alien.live.len(), old.footprint());
        let owned = old.owners_gone();
        let removed = self.remove_files(dataset, old);
        // What could not be removed is no longer counted; the next walk of the tree finds it.
        let after = dataset.read_index().footprint();
        dataset.room.settle(&dataset.path, before, after, &owned);
        self.room().removed(removed)?;
        drop(writer);
        self.end(dataset)?;
        let bytes = before.saturating_sub(dataset.read_index().footprint());
        count(&self.tally().evicted_frames, frames);
        count(&self.tally().evicted_bytes, bytes);
        Ok((frames, bytes))
    }

    /// Removes the files of a dataset whose index was taken out.
    fn remove_files(&self, dataset: &Dataset<D>, old: Index<D::File>) -> Result<()> {
        let everything = old.native.live.union(&old.alien.live);
        let all_segments: Vec<u64> = old.segments.keys().copied().collect();
        let gone = Dataset {
            path: dataset.path.clone(),
            disk: dataset.disk.clone(),
            files: dataset.files.clone(),
            // The caller adjusted the account for the whole dataset.
            room: Arc::new(Room::new(u64::MAX, 0)),
            temporaries: dataset.temporaries.clone(),
            last_use: AtomicU64::new(0),
            wasted_reads: AtomicU64::new(0),
            index: RwLock::new(old),
            writer: Mutex::new(Writer { segments: SegmentWriter::new(0, dataset.files.clone()) }),
        };
        let mut folders = BTreeSet::new();
        let mut writer = gone.lock_writer();
        let mut cursor = EntriesCursor::default();
        let mut result = Ok(());
        loop {
            let page = match gone.page(&everything, &mut cursor, BATCH_BLOCKS) {
                Ok(Some(page)) => page,
                Ok(None) => break,
                // A record that cannot be read cannot be removed; the others can.
                Err(error) => {
                    result = result.and(Err(error));
                    break;
                }
            };
            for found in page {
                match found.record.storage {
                    Storage::Packed(_) => continue,
                    Storage::Piece => {}
                    Storage::Plain => {
                        let source = gone.source(&found.record)?;
                        let folder = source.and_then(|source| source.path.split().map(|(folder, _)| folder));
                        folders.extend(folder);
                    }
                }
                result = result.and(gone.remove_storage(&mut writer, &found.record));
            }
        }
        for segment in all_segments {
            result = result.and(ignore_absent(self.disk().remove(&segments::path(&dataset.path, segment))));
        }
        result = result.and(ignore_absent(self.disk().remove(&dataset.names_path())));
        for folder in folders.into_iter().rev() {
            let mut folder = Some(folder).filter(|folder| !folder.is_root());
            while let Some(path) = folder {
                self.disk().remove_dir_if_empty(&DiskPath::of(&dataset.path.join(path.as_str())?))?;
                folder = path.split().map(|(above, _)| above).filter(|above| !above.is_root());
            }
        }
        result
    }

    /// Takes an empty dataset off the list, unless it is in use.
    fn end(&self, dataset: &Arc<Dataset<D>>) -> Result<()> {
        let _alone = self.creation();
        let path = dataset.path.as_str();
        let mut map = self.map_mut();
        let busy = self.activity().of(path);
        let index = dataset.read_index();
        let in_use = busy.puts > 0
            || index.state.pinned
            || !index.native.live.is_empty()
            || !index.alien.live.is_empty();
        drop(index);
        if in_use || !map.get(path).is_some_and(|listed| Arc::ptr_eq(listed, dataset)) {
            return Ok(());
        }
        map.remove(path);
        let names: Vec<String> = map.keys().cloned().collect();
        drop(map);
        let disk = self.disk();
        ignore_absent(disk.remove(&State::path(&dataset.path)))?;
        dataset.update(|index| (index.state, index.state_bytes) = (Arc::default(), 0));
        for own in ["pieces", "segments"] {
            disk.remove_dir_if_empty(&DiskPath::own(&dataset.path, own))?;
        }
        self.save_registry(names.iter().map(String::as_str))?;
        if !dataset.path.is_root() {
            disk.remove_dir_if_empty(&dataset.own_dir())?;
            let mut folder = Some(dataset.path.clone());
            while let Some(path) = folder.filter(|path| !path.is_root()) {
                disk.remove_dir_if_empty(&DiskPath::of(&path))?;
                folder = path.split().map(|(above, _)| above);
            }
        }
        Ok(())
    }
}
