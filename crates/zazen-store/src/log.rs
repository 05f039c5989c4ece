//! A sequence log: fixed-width records, appended in the order in which frames came.
//!
//! Invariants: the file is a header and `records` good records; the fences cover exactly these.
//! Appends go by offset, so what a failed append left is overwritten by the next one. Readers take
//! a [`LogView`] and read without a lock: a log is never changed below its length, and a rewritten
//! one is another file.

use crate::fences::{BLOCK_RECORDS, Fences};
use crate::open_files::{KeptFile, OpenFiles};
use crate::own_file::{HeadedFile, create_headed, open_headed};
use crate::record::{FILE_HEADER_BYTES, FileKind, RECORD_BYTES, Record, RecordOp};
use std::ops::Range;
use std::sync::Arc;
use zazen_core::{Result, RunSet};
use zazen_env::{Disk, DiskFile, DiskPath};

const HEADER: u64 = FILE_HEADER_BYTES as u64;
const WIDTH: u64 = RECORD_BYTES as u64;
/// Blocks that a batch reads at once: 1 MiB.
const CHUNK_BLOCKS: u64 = 256;
/// Blocks that are read though nothing in them is wanted, if that saves a read.
const GAP_BLOCKS: u64 = 8;

/// A log that is open for appending. The file is made by the first append.
pub(crate) struct Log<F> {
    file: Option<Arc<KeptFile<F>>>,
    id: u128,
    records: u64,
    generation: u64,
    pub(crate) fences: Fences,
}

/// What a reader needs of a log. It stays valid whatever happens to the log.
pub(crate) struct LogView<F> {
    file: Arc<KeptFile<F>>,
    id: u128,
    records: u64,
}

impl<F> Clone for LogView<F> {
    fn clone(&self) -> LogView<F> {
        LogView { file: self.file.clone(), id: self.id, records: self.records }
    }
}

impl<F: DiskFile> Log<F> {
    pub(crate) fn empty(generation: u64) -> Log<F> {
        Log { file: None, id: 0, records: 0, generation, fences: Fences::default() }
    }

    /// Opens the log at `path`, calling `take` with each good record, and cuts it at the first bad
    /// one. Returns the log and the bytes cut.
    pub(crate) fn open<D: Disk<File = F>>(
        disk: &D,
        files: &Arc<OpenFiles<F>>,
        path: &DiskPath,
        kind: FileKind,
        mut take: impl FnMut(&Record),
    ) -> Result<(Log<F>, u64)> {
        let Some(headed) = open_headed(disk, files, path, kind)? else {
            return Ok((Log::empty(1), 0));
        };
        let HeadedFile { file, id, len } = headed;
        let claimed = LogView { file, id, records: (len - HEADER) / WIDTH };
        let mut log = Log { file: None, id, records: 0, generation: 1, fences: Fences::default() };
        claimed.read(0..claimed.records.div_ceil(BLOCK_RECORDS), |index, record| {
            let Some(record) = record else { return false };
            debug_assert_eq!(index, log.records, "records come in order");
            log.fences.push(record.meta.number.get());
            log.records += 1;
            take(&record);
            true
        })?;
        let good = HEADER + log.records * WIDTH;
        if good < len {
            claimed.file.file()?.truncate(good)?;
        }
        log.file = Some(claimed.file);
        Ok((log, len - good))
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        if self.file.is_some() { HEADER + self.records * WIDTH } else { 0 }
    }

    pub(crate) fn view(&self) -> Option<LogView<F>> {
        self.file.as_ref().map(|file| LogView { file: file.clone(), id: self.id, records: self.records })
    }

    /// Makes the file if there is none yet: (file, id) to give to [`Log::adopt`].
    pub(crate) fn make<D: Disk<File = F>>(
        disk: &D,
        files: &Arc<OpenFiles<F>>,
        path: &DiskPath,
        folder: &DiskPath,
        kind: FileKind,
    ) -> Result<HeadedFile<F>> {
        create_headed(disk, files, path, folder, kind)
    }

    /// Takes a file that [`Log::make`] made.
    pub(crate) fn adopt(&mut self, made: HeadedFile<F>) {
        self.file = Some(made.file);
        self.id = made.id;
    }

    /// Notes that records with these numbers were written by [`LogView::append`].
    pub(crate) fn appended(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.fences.push(number);
            self.records += 1;
        }
    }

    /// Notes that its file now has its final name.
    pub(crate) fn renamed(&self, path: DiskPath) {
        self.file.iter().for_each(|file| file.renamed(path.clone()));
    }

    /// Keeps the file open for its readers, because it is about to lose its name.
    pub(crate) fn pin(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), KeptFile::pin)
    }

    pub(crate) fn is_made(&self) -> bool {
        self.file.is_some()
    }
}

impl<F: DiskFile> LogView<F> {
    /// Writes records behind the last one of this view; only the log's writer may.
    pub(crate) fn append(&self, records: &[Record]) -> Result<()> {
        let encoded = self.encode(records);
        self.file.file()?.write_all_at(&encoded, HEADER + self.records * WIDTH)
    }

    fn encode(&self, records: &[Record]) -> Vec<u8> {
        let mut encoded = Vec::with_capacity(records.len() * RECORD_BYTES);
        for (index, record) in (self.records..).zip(records) {
            encoded.extend_from_slice(&record.encode(self.id, index));
        }
        encoded
    }

    /// Calls `take` with the index and the record (`None`: a bad one) of each record of `blocks`,
    /// in order, until it says false.
    pub(crate) fn read(
        &self,
        blocks: Range<u64>,
        mut take: impl FnMut(u64, Option<Record>) -> bool,
    ) -> Result<()> {
        self.read_raw(blocks, |index, bytes| take(index, Record::decode(bytes, self.id, index)))
    }

    /// All good records, in order.
    pub(crate) fn read_all(&self, mut take: impl FnMut(Record)) -> Result<()> {
        self.read(0..self.records.div_ceil(BLOCK_RECORDS), |_, record| {
            record.into_iter().for_each(&mut take);
            true
        })
    }

    fn read_raw(
        &self,
        blocks: Range<u64>,
        mut take: impl FnMut(u64, &[u8; RECORD_BYTES]) -> bool,
    ) -> Result<()> {
        let file = self.file.file()?;
        let mut buffer = Vec::new();
        let mut block = blocks.start;
        while block < blocks.end {
            let first = block * BLOCK_RECORDS;
            let upto = blocks.end.min(block + CHUNK_BLOCKS);
            let count = (upto * BLOCK_RECORDS).min(self.records).saturating_sub(first);
            buffer.resize((count * WIDTH) as usize, 0);
            let got = file.read_full_at(&mut buffer, HEADER + first * WIDTH)?;
            // If somebody else cut the log, the missing part reads as bad records.
            buffer[got..].fill(0);
            for (index, bytes) in (first..).zip(buffer.as_chunks::<RECORD_BYTES>().0) {
                if !take(index, bytes) {
                    return Ok(());
                }
            }
            block = upto;
        }
        Ok(())
    }

    /// The last good record of `number` in these blocks (ascending): its index and itself.
    pub(crate) fn find(&self, candidates: &[u64], number: u64) -> Result<Option<(u64, Record)>> {
        for block in candidates.iter().rev() {
            let mut found = None;
            self.read_raw(*block..*block + 1, |index, bytes| {
                if Record::claimed_number(bytes) == number
                    && let Some(record) = Record::decode(bytes, self.id, index)
                {
                    found = Some((index, record));
                }
                true
            })?;
            if let Some((_, record)) = &found {
                return Ok(if record.op == RecordOp::Put { found } else { None });
            }
        }
        Ok(None)
    }

    pub(crate) fn file(&self) -> &Arc<KeptFile<F>> {
        &self.file
    }
}

/// The blocks from `from` on that may hold one of `numbers`, as ranges to be read in one go, and
/// where to go on (`None`: that was all). About `blocks_max` blocks in all.
pub(crate) fn plan_reads(
    fences: &Fences,
    from: u64,
    numbers: &RunSet,
    blocks_max: u64,
) -> (Vec<Range<u64>>, Option<u64>) {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut planned = 0;
    let mut next = fences.next_of(from, numbers);
    while let Some(block) = next {
        if planned >= blocks_max {
            return (ranges, Some(block));
        }
        match ranges.last_mut() {
            Some(range) if block <= range.end + GAP_BLOCKS => range.end = block + 1,
            _ => ranges.push(block..block + 1),
        }
        planned += 1;
        next = fences.next_of(block + 1, numbers);
    }
    (ranges, None)
}
