//! Finding frames of a dataset: one by number, or many in the order in which they lie on the disk.

use crate::dataset::{Dataset, Found, Lookup};
use crate::fences::BLOCK_RECORDS;
use crate::log::plan_reads;
use crate::record::{Record, RecordOp, Storage};
use crate::segments;
use crate::store::{PAGE_BLOCKS, Store};
use crate::types::{CachedFrame, EntriesCursor, POSITION_FILES};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Origin, RelPath, Result, RunSet, Source};
use zazen_env::{Disk, DiskPath};

const POSITION_ALIENS: u64 = 1 << 61;

impl<D: Disk> Dataset<D> {
    /// Finds the record of frame `number`.
    pub(crate) fn find(&self, number: u64) -> Result<Lookup> {
        let (origin, candidates, view) = {
            let index = self.read_index();
            let origin = match (index.native.live.contains(number), index.alien.live.contains(number)) {
                (true, _) => Origin::Native,
                (false, true) => Origin::Alien,
                (false, false) => return Ok(Lookup::Absent),
            };
            let log = &index.side(origin).log;
            (origin, log.fences.candidates(number), log.view())
        };
        let wasted = candidates.len().saturating_sub(1) as u64;
        self.wasted_reads.fetch_add(wasted, Ordering::Relaxed);
        let found = match view {
            Some(view) => view.find(&candidates, number)?,
            None => None,
        };
        Ok(match found {
            Some((index, record)) => Lookup::Here(Found { origin, index, record }),
            None => Lookup::Damaged(origin),
        })
    }

    /// Describes a found frame; `None` if its name can't be read any more.
    pub(crate) fn describe(&self, found: &Found) -> Result<Option<CachedFrame>> {
        let Some(source) = self.source(&found.record)? else { return Ok(None) };
        self.entry_of(found.clone(), source, &mut None).map(Some)
    }

    /// `packed`: the segment file that the last entry was packed in, which mostly is this one's
    /// too.
    fn entry_of(&self, found: Found, source: Source, packed: &mut Option<Segment>) -> Result<CachedFrame> {
        let (place, path, offset) = match found.record.storage {
            Storage::Packed(address) => {
                let (number, offset) = segments::locate(address);
                let segment = match packed.take().filter(|last| last.number == number) {
                    Some(last) => packed.insert(last),
                    None => {
                        let place = segments::path(&self.path, number);
                        packed.insert(Segment { number, path: self.absolute(&place), place })
                    }
                };
                (segment.place.clone(), segment.path.clone(), offset)
            }
            _ => {
                let (place, offset) = self.file_of(&found.record, &source)?;
                let path = self.absolute(&place);
                (place, path, offset)
            }
        };
        let position = position(&found);
        let (meta, origin) = (found.record.meta, found.origin);
        Ok(CachedFrame { meta, origin, source, path, offset, position, place, disk: 0 })
    }

    /// Some frames of `numbers` in log order, natives first; `None` when there are no more. Reads
    /// about `blocks_max` blocks.
    pub(crate) fn page(
        &self,
        numbers: &RunSet,
        cursor: &mut EntriesCursor,
        blocks_max: u64,
    ) -> Result<Option<Vec<Found>>> {
        loop {
            let origin = if cursor.in_aliens { Origin::Alien } else { Origin::Native };
            let (wanted, ranges, next, view, has_dead) = {
                let index = self.read_index();
                let side = index.side(origin);
                if cursor.generation != side.log.generation() {
                    (cursor.generation, cursor.block) = (side.log.generation(), 0);
                }
                let wanted = side.live.intersection(numbers);
                let (ranges, next) = plan_reads(&side.log.fences, cursor.block, &wanted, blocks_max);
                (wanted, ranges, next, side.log.view(), side.dead() > 0)
            };
            let mut page = Page { wanted: &wanted, found: Vec::new(), seen: has_dead.then(Vec::new) };
            if let Some(view) = &view {
                for range in ranges {
                    view.read(range, |index, record| {
                        record.into_iter().for_each(|record| page.take(index, record));
                        true
                    })?;
                }
            }
            page.keep_last_of_each();
            let mut found = Vec::with_capacity(page.found.len());
            for (index, record) in page.found.into_iter().flatten() {
                let number = record.meta.number.get();
                if !has_dead || self.is_last(origin, index, number)? {
                    found.push(Found { origin, index, record });
                }
            }
            match (next, cursor.in_aliens) {
                (Some(block), _) => cursor.block = block,
                (None, false) => {
                    *cursor = EntriesCursor { in_aliens: true, generation: 0, block: 0, ..*cursor }
                }
                (None, true) => {
                    cursor.block = u64::MAX;
                    return Ok((!found.is_empty()).then_some(found));
                }
            }
            if !found.is_empty() {
                return Ok(Some(found));
            }
        }
    }

    /// Frames whose records lie beside that of frame `number` in its log, itself among them; none
    /// if it is not here. Reads `blocks` blocks of records, the same for each frame of them.
    pub(crate) fn near(&self, number: u64, blocks: u64) -> Result<Vec<Found>> {
        let Lookup::Here(Found { origin, index, .. }) = self.find(number)? else { return Ok(Vec::new()) };
        let generation = self.read_index().side(origin).log.generation();
        let block = index / BLOCK_RECORDS / blocks * blocks;
        let mut cursor = EntriesCursor { in_aliens: origin == Origin::Alien, generation, block, pages: 0 };
        Ok(self.page(&RunSet::range(0, FRAME_NO_MAX), &mut cursor, blocks)?.unwrap_or_default())
    }

    /// Whether no later record is about the same number, in a log that has dead records.
    fn is_last(&self, origin: Origin, index: u64, number: u64) -> Result<bool> {
        let (later, view) = {
            let read = self.read_index();
            let log = &read.side(origin).log;
            let mut later = log.fences.candidates(number);
            later.retain(|block| *block > index / BLOCK_RECORDS);
            (later, log.view())
        };
        let Some(view) = view.filter(|_| !later.is_empty()) else { return Ok(true) };
        for block in later {
            let mut other = false;
            view.read(block..block + 1, |_, record| {
                other = record.is_some_and(|record| record.meta.number.get() == number);
                !other
            })?;
            if other {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the entries of found frames; those whose name can't be read any more are left out.
    pub(crate) fn describe_all(&self, found: Vec<Found>, into: &mut Vec<CachedFrame>) -> Result<()> {
        let (state, mut names) = {
            let index = self.read_index();
            (index.state.clone(), index.names.reader())
        };
        let mut packed = None;
        for found in found {
            if let Some(source) = Dataset::<D>::source_of(&state, &mut names, &found.record)? {
                into.push(self.entry_of(found, source, &mut packed)?);
            }
        }
        Ok(())
    }
}

impl<D: Disk> Store<D> {
    /// Describes frame `number` and frames that came to this store around the same time, ordered by
    /// storage position; at most about `frames`. None if it is not here.
    pub fn entries_near(&self, dataset: &RelPath, number: u64, frames: u64) -> Result<Vec<CachedFrame>> {
        let Some(dataset) = self.dataset(dataset.as_str()) else { return Ok(Vec::new()) };
        self.touch(&dataset);
        let found = dataset.near(number, (frames / BLOCK_RECORDS).clamp(1, PAGE_BLOCKS))?;
        let mut entries = Vec::with_capacity(found.len());
        dataset.describe_all(found, &mut entries)?;
        entries.sort_by_key(|entry| entry.position);
        Ok(entries)
    }
}

/// A file of packed frames.
struct Segment {
    number: u64,
    place: DiskPath,
    path: PathBuf,
}

struct Page<'a> {
    wanted: &'a RunSet,
    found: Vec<Option<(u64, Record)>>,
    /// In logs that may have a number twice: each number and where it is in `found`.
    seen: Option<Vec<(u64, usize)>>,
}

impl Page<'_> {
    fn take(&mut self, index: u64, record: Record) {
        let number = record.meta.number.get();
        if !self.wanted.contains(number) {
            return;
        }
        if let Some(seen) = &mut self.seen {
            seen.push((number, self.found.len()));
        }
        self.found.push((record.op == RecordOp::Put).then_some((index, record)));
    }

    /// Of several records about one number only the last counts.
    fn keep_last_of_each(&mut self) {
        let Some(seen) = &mut self.seen else { return };
        seen.sort_unstable();
        for pair in seen.windows(2) {
            if pair[0].0 == pair[1].0 {
                self.found[pair[0].1] = None;
            }
        }
    }
}

fn position(found: &Found) -> u64 {
    match (found.record.storage, found.origin) {
        (Storage::Packed(address), _) => address,
        (_, Origin::Native) => POSITION_FILES | found.index,
        (_, Origin::Alien) => POSITION_FILES | POSITION_ALIENS | found.index,
    }
}
