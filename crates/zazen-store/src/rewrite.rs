//! Rewrites a log, sorted by frame number and without dead records.
//!
//! The live set tells each record's place in the new log: its rank. So for each share of the new
//! log that fits in memory the old log is read once and the share is filled in place; nothing is
//! sorted or merged. The new log is durable before it takes the old one's name. Readers of the old
//! log keep reading it.

use crate::dataset::{Dataset, Writer};
use crate::log::{Log, LogView, plan_reads};
use crate::record::{FileKind, RECORD_BYTES, Record, RecordOp};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zazen_core::{Origin, Result, RunSet};
use zazen_env::{Disk, DiskFile};

/// Records of a share: some 50 MiB of memory while a log is rewritten.
const SHARE_RECORDS: u64 = 1 << 18;
/// Dead records that a log may always have.
const DEAD_MIN: u64 = 4096;
/// Blocks that look-ups may always read in vain before a log is sorted.
const WASTED_MIN: u64 = 4096;

impl<D: Disk> Dataset<D> {
    /// Rewrites the logs that are more than half dead, or for which look-ups have read as many
    /// blocks in vain as the rewriting will read. Returns how many.
    pub(crate) fn tidy(&self, writer: &mut Writer<D::File>) -> Result<u64> {
        let mut rewritten = 0;
        for origin in [Origin::Native, Origin::Alien] {
            let (dead, records, blocks) = {
                let index = self.read_index();
                let side = index.side(origin);
                (side.dead(), side.log.records(), side.log.fences.blocks())
            };
            let wasteful = self.wasted_reads.load(Ordering::Relaxed) > WASTED_MIN.max(2 * blocks);
            if dead > DEAD_MIN.max(records / 2) || wasteful && blocks > 1 {
                self.rewrite(writer, origin)?;
                rewritten += 1;
            }
        }
        if rewritten > 0 {
            self.wasted_reads.store(0, Ordering::Relaxed);
        }
        Ok(rewritten)
    }

    /// Whether [`Dataset::tidy`] would rewrite a log because of look-ups.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.wasted_reads.load(Ordering::Relaxed) > WASTED_MIN
    }

    /// Rewrites the log of `origin`. On an error the old log stays.
    pub(crate) fn rewrite(&self, _writer: &mut Writer<D::File>, origin: Origin) -> Result<()> {
        let (live, view, generation) = {
            let index = self.read_index();
            let side = index.side(origin);
            (side.live.clone(), side.log.view(), side.log.generation())
        };
        let Some(view) = view else { return Ok(()) };
        // Readers that have the old log keep it when its name becomes the new one's.
        view.file().pin()?;
        let temporary = self.new_temporary();
        let folder = crate::own_file::temporary_dir();
        let kind = if origin == Origin::Native { FileKind::NativeLog } else { FileKind::AlienLog };
        let written = self.write_sorted(origin, &live, &view, generation, || {
            Log::make(&*self.disk, &self.files, &temporary, &folder, kind)
        });
        let moved = written.and_then(|(log, lost)| {
            self.disk.rename(&temporary, &self.log_path(origin))?;
            self.disk.sync_dir(&self.own_dir())?;
            log.renamed(self.log_path(origin));
            Ok((log, lost))
        });
        match moved {
            Ok((log, lost)) => {
                self.update(|index| {
                    let side = index.side_mut(origin);
                    if !lost.is_empty() {
                        side.live = Arc::new(side.live.difference(&lost));
                    }
                    side.log = log;
                });
                Ok(())
            }
            Err(error) => {
                let _ = self.disk.remove(&temporary);
                view.file().unpin();
                Err(error.within(format!("rewrite the {origin:?} log of dataset {}", self.path)))
            }
        }
    }

    fn write_sorted(
        &self,
        origin: Origin,
        live: &RunSet,
        old: &LogView<D::File>,
        generation: u64,
        make: impl FnOnce() -> Result<crate::own_file::HeadedFile<D::File>>,
    ) -> Result<(Log<D::File>, RunSet)> {
        let mut log = Log::empty(generation + 1);
        log.adopt(make()?);
        let mut lost = RunSet::new();
        let share = SHARE_RECORDS.max(live.len() / 16);
        for start in (0..live.len()).step_by(share as usize) {
            let numbers = live.block(start, share);
            let ranges = {
                let index = self.read_index();
                plan_reads(&index.side(origin).log.fences, 0, &numbers, u64::MAX).0
            };
            let records = gather(old, &numbers, ranges)?;
            for (slot, record) in records.iter().enumerate() {
                if record.is_none() {
                    numbers.select(slot as u64).into_iter().for_each(|number| {
                        lost.insert(number);
                    });
                }
            }
            let records: Vec<Record> = records.into_iter().flatten().collect();
            for part in records.chunks(1 << 14) {
                if let Some(view) = log.view() {
                    view.append(part)?;
                }
                log.appended(part.iter().map(|record| record.meta.number.get()));
            }
        }
        if let Some(view) = log.view() {
            view.file().file()?.sync()?;
        }
        Ok((log, lost))
    }
}

/// The last good records of `numbers`, in ascending order; `None` where there is none.
fn gather<F: DiskFile>(
    old: &LogView<F>,
    numbers: &RunSet,
    ranges: Vec<std::ops::Range<u64>>,
) -> Result<Vec<Option<Record>>> {
    // Encoded records take half the memory of decoded ones.
    let count = numbers.len() as usize;
    let mut slots = vec![0u8; count * RECORD_BYTES];
    for range in ranges {
        old.read(range, |_, record| {
            if let Some(record) = record
                && numbers.contains(record.meta.number.get())
            {
                let slot = numbers.rank(record.meta.number.get()) as usize;
                let bytes = match record.op {
                    RecordOp::Put => record.encode(0, slot as u64),
                    RecordOp::Remove => [0; RECORD_BYTES],
                };
                slots[slot * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&bytes);
            }
            true
        })?;
    }
    let records = slots.as_chunks::<RECORD_BYTES>().0;
    Ok((0..).zip(records).map(|(slot, bytes)| Record::decode(bytes, 0, slot)).collect())
}
