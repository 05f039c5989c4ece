//! Compares cached frames with a source that has grown since they were cached: samples of their
//! bytes (`zazen_frames::stale::samples`). A frame of up to 8 KiB is compared as a whole.
//!
//! Small frames that lie one after the other are compared in blocks.

use crate::node::Node;
use crate::opened::OpenedDataset;
use std::os::unix::fs::FileExt;
use zazen_backing::SourceFile;
use zazen_core::{RelPath, Result, Source};
use zazen_frames::stale::{WHOLE_BYTES, samples};
use zazen_store::CachedFrame;

/// Bytes of the source that are read at once where frames are small.
const BLOCK_BYTES: usize = 256 << 10;

/// Compares the frames of one group, one after the other.
pub(crate) struct Comparison<'a> {
    node: &'a Node,
    opened: &'a OpenedDataset,
    file: Option<(RelPath, Box<dyn SourceFile>)>,
    /// Bytes of the file, and where they begin.
    block: Vec<u8>,
    at: u64,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(node: &'a Node, opened: &'a OpenedDataset) -> Comparison<'a> {
        Comparison { node, opened, file: None, block: Vec::new(), at: 0 }
    }

    /// Whether the copy's samples are the source's. Fails if the user may not read the source.
    pub(crate) fn is_same(&mut self, entry: &CachedFrame) -> Result<bool> {
        self.open(&entry.source, entry.meta.number.get())?;
        // A copy that cannot be read is brought again, like one that differs.
        let Ok(Some(copy)) = self.node.store.open_entry(&self.opened.series(), entry) else {
            return Ok(false);
        };
        let is_small = entry.meta.length <= WHOLE_BYTES;
        for (offset, bytes) in samples(entry.meta.length, entry.meta.checksum) {
            let mut sample = vec![0; bytes as usize];
            let read = copy.file.read_exact_at(&mut sample, copy.offset + offset);
            if read.is_err() || !self.is_at(&sample, entry.source.offset + offset, is_small)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn open(&mut self, source: &Source, number: u64) -> Result<()> {
        if self.file.as_ref().is_none_or(|(path, _)| *path != source.path) {
            let file = self.opened.open_source(source, number)?;
            self.file = Some((source.path.clone(), file));
            self.block.clear();
        }
        Ok(())
    }

    /// Whether the source has these bytes at `offset`. `is_small`: they are a whole small frame,
    /// whose neighbours may be asked for next.
    fn is_at(&mut self, sample: &[u8], offset: u64, is_small: bool) -> Result<bool> {
        let Some((_, file)) = &self.file else { return Ok(false) };
        let held = |at: u64, block: &[u8]| {
            let from = usize::try_from(offset.checked_sub(at)?).ok()?;
            block.get(from..from.checked_add(sample.len())?).map(|found| found == sample)
        };
        if let Some(same) = held(self.at, &self.block) {
            return Ok(same);
        }
        let is_beside = is_small && offset.abs_diff(self.at + self.block.len() as u64) <= BLOCK_BYTES as u64;
        let wanted = if is_beside { BLOCK_BYTES.max(sample.len()) } else { sample.len() };
        self.block.resize(wanted, 0);
        let mut read = 0;
        while read < wanted {
            match file.read_at(&mut self.block[read..], offset + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        self.block.truncate(read);
        self.at = offset;
        Ok(held(self.at, &self.block).unwrap_or(false))
    }
}
