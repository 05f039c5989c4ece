//! One cache over several disks: a store on each, and which of them a frame goes to.
//!
//! Invariants: each disk has its budget, its logs and its failures for itself, and each frame lies
//! on one disk. Losing a disk costs the frames that lie on it, and nothing else. If a disk takes no
//! changes and a newer copy goes to another disk, the old copy counts no more, even if the newer
//! one is evicted later (`superseded.rs`). If a number is on two disks after all, and nobody knows
//! which copy is the newer one, both are dropped: the cache is never the only copy.
//!
//! With one disk, every call goes straight to its store.

use crate::activity::ScanGuard;
use crate::put::Put;
use crate::store::Store;
use crate::superseded::Superseded;
use crate::types::{CachedFrame, DatasetSummary, EntriesCursor, OpenFrame, Space, Stored};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, FrameMeta, Layout, Origin, RelPath, Result, RunSet, Source, Validator};
use zazen_env::{Disk, Seldom, is_trouble};
use zazen_frames::absence::Removals;

/// Disks of one cache, at most.
pub const DISKS_MAX: usize = 64;
/// Packed frames with adjacent numbers share a disk, so many at a time: they share files, too.
const PACKED_STRIPE: u64 = 256;
/// A disk whose frames cannot be looked up is told of once in this time.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);

/// The stores of one cache. Shared by threads.
pub struct Stores<D: Disk> {
    all: Vec<Arc<Store<D>>>,
    superseded: Arc<Superseded<D>>,
    unions: Mutex<BTreeMap<RelPath, Union>>,
    trouble: Seldom,
}

/// The natives and the aliens of a dataset.
type Holdings = (Arc<RunSet>, Arc<RunSet>);
/// Those of one disk, and whether it takes changes.
type DiskHoldings = (Arc<RunSet>, Arc<RunSet>, bool);

/// What all disks hold of a dataset, as long as none of them changes.
struct Union {
    of: Vec<DiskHoldings>,
    /// Of [`Superseded::version`].
    version: u64,
    whole: Holdings,
    /// Which numbers each disk hands out; no number is in two of them.
    shares: Arc<Vec<RunSet>>,
}

/// Datasets whose unions are remembered; beyond this all are made anew.
const UNIONS_MAX: usize = 4096;

/// Where [`Stores::entries_page`] goes on; begin with the default.
#[derive(Clone, Debug, Default)]
pub struct PageCursor {
    one: EntriesCursor,
    /// Of each disk; `None` once it has given all.
    several: Vec<Option<EntriesCursor>>,
}

/// Keeps a dataset from being evicted on all disks while a scan of it goes on.
pub struct ScanGuards(Vec<ScanGuard>);

impl ScanGuards {
    /// Notes that the scan handed out frames just now.
    pub fn goes_on(&self) {
        self.0.iter().for_each(ScanGuard::goes_on);
    }
}

/// A frame on its way to one of the disks. Dropping it without a commit leaves nothing behind.
pub struct DiskPut<D: Disk> {
    put: Put<D>,
    /// Which disk of `all` it goes to.
    at: usize,
    store: Arc<Store<D>>,
    superseded: Arc<Superseded<D>>,
    dataset: RelPath,
    number: u64,
    /// The dataset is pinned on another disk.
    is_pinned: bool,
}

impl<D: Disk> DiskPut<D> {
    /// As [`Put::write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.put.write(bytes)
    }

    /// As [`Put::write_vec`].
    pub fn write_vec(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.put.write_vec(bytes)
    }

    /// As [`Put::commit`].
    pub fn commit(self) -> Result<Stored> {
        // Bytes that will be refused make no other copy old.
        self.put.check()?;
        self.superseded.supersede(self.at, &self.dataset, self.number)?;
        let stored = self.put.commit()?;
        pin_too(&self.store, &self.dataset, self.is_pinned);
        Ok(stored)
    }

    /// As [`Put::commit_computed`].
    pub fn commit_computed(self) -> Result<(Stored, u64)> {
        self.put.check_length()?;
        self.superseded.supersede(self.at, &self.dataset, self.number)?;
        let stored = self.put.commit_computed()?;
        pin_too(&self.store, &self.dataset, self.is_pinned);
        Ok(stored)
    }
}

/// A dataset that is pinned on one disk is pinned on each that gets frames of it.
fn pin_too<D: Disk>(store: &Arc<Store<D>>, dataset: &RelPath, is_pinned: bool) {
    if is_pinned
        && !store.is_pinned(dataset)
        && let Err(error) = store.pin(dataset, true)
    {
        tracing::warn!("{error}; dataset {dataset} is pinned on the other disks only");
    }
}

impl<D: Disk> Stores<D> {
    /// One cache over these stores, in the order in which the operator named them. At least one.
    /// They share the record of what was removed. Copies that became old while their disk took no
    /// changes, or was away, are dropped now.
    pub fn new(all: Vec<Arc<Store<D>>>) -> Result<Stores<D>> {
        let Some((first, others)) = all.split_first() else {
            return Err(Error::new(ErrorKind::Config, "no cache disk: give --cache DIR"));
        };
        if all.len() > DISKS_MAX {
            let text = format!("{} cache disks; the limit is {DISKS_MAX}", all.len());
            return Err(Error::new(ErrorKind::Config, text));
        }
        others.iter().for_each(|other| other.share_removals(first));
        let superseded = Arc::new(Superseded::open(&all));
        Ok(Stores { all, superseded, unions: Mutex::default(), trouble: Seldom::every(TROUBLE_EVERY) })
    }

    /// The store of each disk.
    pub fn disks(&self) -> &[Arc<Store<D>>] {
        &self.all
    }

    fn first(&self) -> &Arc<Store<D>> {
        &self.all[0]
    }

    /// The only store, if there is one only.
    fn only(&self) -> Option<&Arc<Store<D>>> {
        (self.all.len() == 1).then(|| self.first())
    }

    /// Identity of this cache: that of its first disk.
    pub fn node(&self) -> u128 {
        self.first().node()
    }

    /// As [`Store::holdings`], of all disks.
    pub fn holdings(&self, dataset: &RelPath) -> Holdings {
        match self.only() {
            Some(one) => one.holdings(dataset),
            None => self.union(dataset).0,
        }
    }

    /// What all disks hold, and which part of it each of them hands out.
    fn union(&self, dataset: &RelPath) -> (Holdings, Arc<Vec<RunSet>>) {
        loop {
            let version = self.superseded.version();
            let of: Vec<_> = self
                .all
                .iter()
                .map(|store| {
                    let (native, alien) = store.holdings(dataset);
                    (native, alien, store.takes_changes())
                })
                .collect();
            let mut unions = self.unions();
            if let Some(known) = unions.get(dataset)
                && known.version == version
                && known.of.iter().zip(&of).all(|(one, other)| is_same(one, other))
            {
                return (known.whole.clone(), known.shares.clone());
            }
            drop(unions);
            let counts = self.without_void(dataset, &of);
            let (made, doubtful) = Union::of(of, version, &counts);
            if doubtful.is_empty() || !self.drop_doubtful(dataset, &doubtful) {
                let answer = (made.whole.clone(), made.shares.clone());
                unions = self.unions();
                if unions.len() >= UNIONS_MAX {
                    unions.clear();
                }
                unions.insert(dataset.clone(), made);
                return answer;
            }
        }
    }

    /// What the disks hold, without copies that do not count.
    fn without_void(&self, dataset: &RelPath, of: &[DiskHoldings]) -> Vec<DiskHoldings> {
        let cut = |(at, disk): (usize, &DiskHoldings)| match self.superseded.void_numbers(at, dataset) {
            None => disk.clone(),
            Some(void) => {
                let without = |set: &RunSet| Arc::new(set.difference(&void));
                (without(&disk.0), without(&disk.1), disk.2)
            }
        };
        of.iter().enumerate().map(cut).collect()
    }

    fn unions(&self) -> MutexGuard<'_, BTreeMap<RelPath, Union>> {
        self.unions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops all copies of numbers that are on several disks: nobody knows which is the newer one.
    /// False if none could be dropped.
    fn drop_doubtful(&self, dataset: &RelPath, numbers: &RunSet) -> bool {
        let mut dropped = 0u64;
        for number in numbers.iter() {
            for at in self.holders(dataset, number) {
                match self.drop_on(at, dataset, number) {
                    Ok(true) => dropped += 1,
                    Ok(false) => {}
                    Err(error) => {
                        dropped += 1;
                        self.tell(&error);
                    }
                }
            }
        }
        if dropped > 0 {
            tracing::info!(
                "dataset {dataset}: {} frames were on two disks after one of them had failed; they are \
                 fetched again",
                numbers.len()
            );
        }
        dropped > 0
    }

    /// Drops the copy on disk `at`. If the disk does not take the change, the copy counts no more.
    fn drop_on(&self, at: usize, dataset: &RelPath, number: u64) -> Result<bool> {
        let dropped = self.all[at].drop_frame(dataset, number);
        if dropped.is_err() && self.all.len() > 1 {
            self.superseded.could_not_drop(at, dataset, number);
        }
        dropped
    }

    /// The disks whose copy of the frame counts.
    fn holders(&self, dataset: &RelPath, number: u64) -> Vec<usize> {
        let has =
            |at: &usize| self.all[*at].has(dataset, number) && !self.superseded.is_void(*at, dataset, number);
        (0..self.all.len()).filter(has).collect()
    }

    fn tell(&self, error: &Error) {
        if let Some(others) = self.trouble.pass() {
            tracing::warn!("{error} ({others} more such failures since this was last said)");
        }
    }

    /// The store that has the frame; `None` if none has it for sure.
    fn holder(&self, dataset: &RelPath, number: u64) -> Option<&Arc<Store<D>>> {
        if let Some(one) = self.only() {
            return Some(one);
        }
        let holders: Vec<&Arc<Store<D>>> =
            self.holders(dataset, number).into_iter().map(|at| &self.all[at]).collect();
        match holders[..] {
            [] => None,
            [one] => Some(one),
            // A disk that took no changes may have an older copy than the others.
            _ => {
                let mut able = holders.iter().filter(|store| store.takes_changes());
                match (able.next(), able.next()) {
                    (Some(one), None) => Some(one),
                    (None, _) => None,
                    _ => {
                        self.drop_doubtful(dataset, &RunSet::range(number, number));
                        None
                    }
                }
            }
        }
    }

    /// As [`Store::entry`].
    pub fn entry(&self, dataset: &RelPath, number: u64) -> Result<Option<CachedFrame>> {
        let Some(store) = self.holder(dataset, number) else { return Ok(None) };
        Ok(store.entry(dataset, number)?.map(|entry| self.placed(store, entry)))
    }

    /// `entry` of `store`, so that it is found there again.
    fn placed(&self, store: &Arc<Store<D>>, mut entry: CachedFrame) -> CachedFrame {
        entry.disk = u8::try_from(self.position(store)).unwrap_or(0);
        entry
    }

    fn position(&self, store: &Arc<Store<D>>) -> usize {
        self.all.iter().position(|other| Arc::ptr_eq(other, store)).unwrap_or(0)
    }

    fn store_of(&self, entry: &CachedFrame) -> &Arc<Store<D>> {
        self.all.get(usize::from(entry.disk)).unwrap_or_else(|| self.first())
    }

    /// As [`Store::entries`]: ordered by storage position on each disk, the disks in turn. A disk
    /// that cannot be asked gives none.
    pub fn entries(&self, dataset: &RelPath, numbers: &RunSet) -> Result<Vec<CachedFrame>> {
        if let Some(one) = self.only() {
            return one.entries(dataset, numbers);
        }
        let shares = self.union(dataset).1;
        let mut lists = Vec::new();
        for (store, share) in self.all.iter().zip(shares.iter()) {
            match store.entries(dataset, &numbers.intersection(share)) {
                Ok(found) => lists.push(found.into_iter().map(|entry| self.placed(store, entry)).collect()),
                Err(error) => self.tell(&error),
            }
        }
        Ok(in_turn(lists))
    }

    /// As [`Store::entries_page`]. A page has entries of all disks in turn, so that who reads them
    /// one after the other keeps all disks busy. A disk that cannot be asked gives none.
    pub fn entries_page(
        &self,
        dataset: &RelPath,
        numbers: &RunSet,
        cursor: &mut PageCursor,
    ) -> Result<Option<Vec<CachedFrame>>> {
        if let Some(one) = self.only() {
            return one.entries_page(dataset, numbers, &mut cursor.one);
        }
        let shares = self.union(dataset).1;
        cursor.several.resize(self.all.len(), Some(EntriesCursor::default()));
        let mut lists = Vec::new();
        for ((store, share), at) in self.all.iter().zip(shares.iter()).zip(&mut cursor.several) {
            let Some(place) = at else { continue };
            match store.entries_page(dataset, &numbers.intersection(share), place) {
                Ok(Some(page)) => {
                    lists.push(page.into_iter().map(|entry| self.placed(store, entry)).collect());
                }
                Ok(None) => *at = None,
                Err(error) => {
                    *at = None;
                    self.tell(&error);
                }
            }
        }
        Ok((!lists.is_empty()).then(|| in_turn(lists)))
    }

    /// As [`Store::entries_near`], on the disk that has the frame. Copies that do not count are
    /// left out.
    pub fn entries_near(&self, dataset: &RelPath, number: u64, frames: u64) -> Result<Vec<CachedFrame>> {
        let Some(store) = self.holder(dataset, number) else { return Ok(Vec::new()) };
        let mut entries = store.entries_near(dataset, number, frames)?;
        if self.only().is_none() {
            let shares = self.union(dataset).1;
            let share = shares.get(self.position(store));
            entries.retain(|entry| share.is_some_and(|share| share.contains(entry.meta.number.get())));
        }
        Ok(entries.into_iter().map(|entry| self.placed(store, entry)).collect())
    }

    /// As [`Store::open_frame`].
    pub fn open_frame(&self, dataset: &RelPath, number: u64) -> Result<Option<OpenFrame>> {
        self.holder(dataset, number).map_or(Ok(None), |store| store.open_frame(dataset, number))
    }

    /// As [`Store::open_entry`].
    pub fn open_entry(&self, dataset: &RelPath, entry: &CachedFrame) -> Result<Option<OpenFrame>> {
        self.store_of(entry).open_entry(dataset, entry)
    }

    /// As [`Store::verify`].
    pub fn verify(&self, dataset: &RelPath, number: u64) -> Result<Option<bool>> {
        self.holder(dataset, number).map_or(Ok(None), |store| store.verify(dataset, number))
    }

    /// As [`Store::drop_frame`], on all disks, also where one of them fails.
    pub fn drop_frame(&self, dataset: &RelPath, number: u64) -> Result<bool> {
        let (mut dropped, mut outcome) = (false, Ok(()));
        for at in 0..self.all.len() {
            let here = self.drop_on(at, dataset, number).map(|done| dropped |= done);
            outcome = outcome.and(here);
        }
        outcome.map(|()| dropped)
    }

    /// As [`Store::drop_stale`].
    pub fn drop_stale(&self, dataset: &RelPath, entry: &CachedFrame) -> Result<bool> {
        let dropped = self.store_of(entry).drop_stale(dataset, entry);
        if dropped.is_err() && self.all.len() > 1 {
            let (at, number) = (usize::from(entry.disk), entry.meta.number.get());
            self.superseded.could_not_drop(at.min(self.all.len() - 1), dataset, number);
        }
        dropped
    }

    /// As [`Store::adopt`].
    pub fn adopt(&self, dataset: &RelPath, entries: &[(&CachedFrame, Validator)]) -> Result<()> {
        if let Some(one) = self.only() {
            return one.adopt(dataset, entries);
        }
        let mut outcome = Ok(());
        for store in &self.all {
            let is_its = |(entry, _): &&(&CachedFrame, Validator)| Arc::ptr_eq(self.store_of(entry), store);
            let its: Vec<(&CachedFrame, Validator)> = entries.iter().filter(is_its).copied().collect();
            if !its.is_empty() {
                outcome = outcome.and(store.adopt(dataset, &its));
            }
        }
        outcome
    }

    /// As [`Store::removals`], of all disks.
    pub fn removals(&self) -> MutexGuard<'_, Removals> {
        self.first().removals()
    }

    /// As [`Store::now_ns`].
    pub fn now_ns(&self) -> u64 {
        self.first().now_ns()
    }

    /// As [`Store::series_of`].
    pub fn series_of(&self, directory: &RelPath) -> Vec<RelPath> {
        if let Some(one) = self.only() {
            return one.series_of(directory);
        }
        let mut all: Vec<RelPath> = self.all.iter().flat_map(|store| store.series_of(directory)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// As [`Store::pin`]; frames that come later are pinned with the others, whatever their disk.
    pub fn pin(&self, dataset: &RelPath, pinned: bool) -> Result<()> {
        let (mut missing, mut failed) = (None, None);
        let mut any = false;
        for store in &self.all {
            match store.pin(dataset, pinned) {
                Ok(()) => any = true,
                Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed.or(missing.filter(|_| !any)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// As [`Store::set_layout`].
    pub fn set_layout(&self, dataset: &RelPath, layout: &Layout) -> Result<()> {
        let mut outcome = Ok(());
        for store in &self.all {
            outcome = outcome.and(store.set_layout(dataset, layout));
        }
        outcome
    }

    /// As [`Store::layout`].
    pub fn layout(&self, dataset: &RelPath) -> Option<Layout> {
        // A disk that takes no changes may have missed the last one that was told.
        let (able, unable): (Vec<_>, Vec<_>) = self.all.iter().partition(|store| store.takes_changes());
        let all = || able.iter().chain(&unable);
        all()
            .find_map(|store| store.told_layout(dataset))
            .or_else(|| all().find_map(|store| store.layout(dataset)))
    }

    /// As [`Store::scan`].
    pub fn scan(&self, dataset: &RelPath) -> ScanGuards {
        ScanGuards(self.all.iter().map(|store| store.scan(dataset)).collect())
    }

    /// As [`Store::evict`], on all disks, also where one of them fails.
    pub fn evict(&self, dataset: &RelPath, set: Option<&RunSet>) -> Result<(u64, u64)> {
        let (mut sum, mut outcome) = ((0, 0), Ok(()));
        for store in &self.all {
            let here = store.evict(dataset, set);
            let here = here.map(|(frames, bytes)| sum = (sum.0 + frames, sum.1 + bytes));
            outcome = outcome.and(here);
        }
        outcome.map(|()| sum)
    }

    /// All datasets, by path; each in numbers of all disks.
    pub fn datasets(&self) -> Vec<DatasetSummary> {
        if let Some(one) = self.only() {
            return one.datasets();
        }
        let mut all: BTreeMap<String, DatasetSummary> = BTreeMap::new();
        for one in self.all.iter().flat_map(|store| store.datasets()) {
            match all.get_mut(one.dataset.as_str()) {
                None => drop(all.insert(one.dataset.as_str().to_owned(), one)),
                Some(sum) => {
                    sum.natives += one.natives;
                    sum.aliens += one.aliens;
                    sum.bytes += one.bytes;
                    sum.pinned |= one.pinned;
                    sum.scans = sum.scans.max(one.scans);
                    sum.last_use = sum.last_use.max(one.last_use);
                }
            }
        }
        all.into_values().collect()
    }

    /// Space of all disks.
    pub fn space(&self) -> Space {
        let sum = |sum: Space, space: Space| Space {
            used: sum.used + space.used,
            reserved: sum.reserved + space.reserved,
            budget: sum.budget.saturating_add(space.budget),
            free: sum.free + space.free,
            floor: sum.floor + space.floor,
        };
        self.all.iter().map(|store| store.space()).fold(Space::default(), sum)
    }

    /// As [`Store::counters`], of all disks.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = self.first().counters();
        for other in &self.all[1..] {
            for ((_, sum), (_, more)) in sums.iter_mut().zip(other.counters()) {
                *sum += more;
            }
        }
        sums
    }

    /// As [`Store::dump`], of all disks.
    pub fn dump(&self) -> String {
        self.all.iter().map(|store| store.dump()).collect()
    }

    /// As [`Store::sync`]: all disks, also where one of them fails.
    pub fn sync(&self) -> Result<()> {
        self.superseded.give_back();
        let mut outcome = Ok(());
        for store in &self.all {
            outcome = outcome.and(store.sync());
        }
        outcome
    }

    /// As [`Store::put`].
    pub fn put(
        &self,
        dataset: &RelPath,
        source: &Source,
        meta: &FrameMeta,
        origin: Origin,
    ) -> Result<DiskPut<D>> {
        self.begin_put(dataset, meta, |store| store.put(dataset, source, meta, origin))
    }

    /// As [`Store::put_gradually`].
    pub fn put_gradually(
        &self,
        dataset: &RelPath,
        source: &Source,
        meta: &FrameMeta,
        origin: Origin,
    ) -> Result<DiskPut<D>> {
        self.begin_put(dataset, meta, |store| store.put_gradually(dataset, source, meta, origin))
    }

    fn begin_put(
        &self,
        dataset: &RelPath,
        meta: &FrameMeta,
        begin: impl Fn(&Arc<Store<D>>) -> Result<Put<D>>,
    ) -> Result<DiskPut<D>> {
        let number = meta.number.get();
        let placed = |store: &Arc<Store<D>>, put| {
            let is_pinned = self.all.len() > 1 && self.all.iter().any(|store| store.is_pinned(dataset));
            let (store, superseded, dataset) = (store.clone(), self.superseded.clone(), dataset.clone());
            DiskPut { put, at: self.position(&store), store, superseded, dataset, number, is_pinned }
        };
        if let Some(one) = self.only() {
            return begin(one).map(|put| placed(one, put));
        }
        self.superseded.give_back();
        // A frame that is here is judged where it is. If that disk takes no changes, the new copy
        // goes elsewhere.
        let holder = self.holder(dataset, number);
        let order = match holder {
            Some(store) if store.takes_changes() => vec![store],
            // A disk with an old copy would compare the new one with it.
            _ => {
                let mut order = self.order(number, meta.length);
                order.retain(|store| !self.superseded.is_void(self.position(store), dataset, number));
                order
            }
        };
        let mut failed = None;
        for store in order {
            match begin(store) {
                Ok(put) => return Ok(placed(store, put)),
                // Another disk may do what this one cannot.
                Err(error) if error.kind() == ErrorKind::NoSpace || is_trouble(&error) => {
                    failed = failed.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::NoSpace, "no disk of the cache takes frames now")))
    }

    /// The disks in the order in which a new frame tries them: the one that its number says, if it
    /// has room without evicting; the others that do, the emptiest first; then those that must
    /// evict; at last those that take no changes now, which say why.
    fn order(&self, number: u64, length: u64) -> Vec<&Arc<Store<D>>> {
        let stripe = if length <= self.first().packed_bytes_max() { number / PACKED_STRIPE } else { number };
        let count = self.all.len() as u64;
        let rank = |at: usize, store: &Store<D>| {
            let space = store.space();
            let room =
                space.budget.saturating_sub(space.used + space.reserved).min(store.room_beside_floor());
            let distance = (at as u64 + count - stripe % count) % count;
            let evicts = room < length + (1 << 20);
            // Of disks with room, the one that the number says comes first, then the emptiest.
            let emptiest = if distance == 0 || evicts { 0 } else { u64::MAX - room };
            (!store.takes_changes(), evicts, distance != 0, emptiest, distance)
        };
        let mut ranked: Vec<_> =
            self.all.iter().enumerate().map(|(at, store)| (rank(at, store), store)).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, store)| store).collect()
    }
}

impl Union {
    /// The union of what counts on the disks, which hold `of`; and the numbers of which nobody
    /// knows which copy is newer.
    fn of(of: Vec<DiskHoldings>, version: u64, counts: &[DiskHoldings]) -> (Union, RunSet) {
        let holds = |(native, alien, _): &DiskHoldings| native.union(alien);
        let (mut taken, mut doubtful) = (RunSet::new(), RunSet::new());
        let mut shares = vec![RunSet::new(); of.len()];
        // Disks that take changes first: their copies are the newer ones.
        for able in [true, false] {
            for (at, disk) in counts.iter().enumerate().filter(|(_, disk)| disk.2 == able) {
                let held = holds(disk);
                if able {
                    doubtful = doubtful.union(&held.intersection(&taken));
                }
                shares[at] = held.difference(&taken);
                taken = taken.union(&held);
            }
        }
        shares.iter_mut().for_each(|share| *share = share.difference(&doubtful));
        let side = |pick: fn(&DiskHoldings) -> &Arc<RunSet>| {
            let cut = counts.iter().zip(&shares).map(|(disk, share)| pick(disk).intersection(share));
            Arc::new(RunSet::union_all(cut))
        };
        let whole = (side(|disk| &disk.0), side(|disk| &disk.1));
        (Union { of, version, whole, shares: Arc::new(shares) }, doubtful)
    }
}

fn is_same(one: &DiskHoldings, other: &DiskHoldings) -> bool {
    // A set that changes is another one: its owner copies it on write while this one is held.
    Arc::ptr_eq(&one.0, &other.0) && Arc::ptr_eq(&one.1, &other.1) && one.2 == other.2
}

/// The lists as one: a part of each in turn. Entries that share a file stay together.
fn in_turn(lists: Vec<Vec<CachedFrame>>) -> Vec<CachedFrame> {
    let mut lists: Vec<_> = lists.into_iter().map(|list| list.into_iter().peekable()).collect();
    let mut all = Vec::new();
    while !lists.is_empty() {
        lists.retain_mut(|list| {
            let Some(mut last) = list.next() else { return false };
            while let Some(next) = list.next_if(|next| next.is_packed_with(&last)) {
                all.push(std::mem::replace(&mut last, next));
            }
            all.push(last);
            true
        });
    }
    all
}
