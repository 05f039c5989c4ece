//! Frames in the order of their numbers, with bounded memory.
//!
//! A scan hands frames out in storage order, and misses last. Here the set is cut into parts of
//! consecutive numbers. Each part is a scan of its own; its frames wait in memory until it is
//! their turn. While the consumer takes one part, the next one is read ahead.
//!
//! Invariants: each frame comes out exactly once, by ascending number. The frames of at most two
//! parts are in memory: together about `memory_max` bytes, as parts are sized by the frames
//! that came before.

use super::record::Recorder;
use super::{Frame, FrameReader, ReadStats};
use crate::cluster::Target;
use std::collections::BTreeMap;
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_env::fork::Mine;

/// Frames in the first part, while their length is not known.
const FIRST_FRAMES: u64 = 8;
/// Frames in a part: enough to make a scan's own cost small.
const FRAMES_MAX: u64 = 16_384;

/// Begins to read a set.
pub(crate) type Start = Box<dyn FnMut(RunSet) -> Result<FrameReader> + Send>;

/// An iterator over frames by ascending number; dropping it stops the read-ahead.
///
/// Only one thread may use it at a time. Frames outlive it.
pub struct OrderedReader {
    /// Its threads belong to this process.
    mine: Mine,
    start: Start,
    record: Option<(Arc<Recorder>, Option<Target>)>,
    /// What no part has.
    left: RunSet,
    memory_max: u64,
    current: Option<Part>,
    ahead: Option<Part>,
    /// Of parts that have ended.
    stats: ReadStats,
    remaining: u64,
}

struct Part {
    numbers: RunSet,
    /// How many of them were taken.
    taken: u64,
    reader: FrameReader,
    early: BTreeMap<u64, std::result::Result<Frame, Error>>,
}

impl Part {
    /// The next frame in order; `None` at the part's end.
    fn next(&mut self) -> Option<std::result::Result<Frame, Error>> {
        let number = self.numbers.select(self.taken)?;
        self.taken += 1;
        if let Some(frame) = self.early.remove(&number) {
            return Some(frame);
        }
        loop {
            match self.reader.next_numbered() {
                Some((found, frame)) if found == number => return Some(frame),
                Some((other, frame)) => {
                    self.early.insert(other, frame);
                }
                None => {
                    let why = format!("frame {number}: the iteration ended without it");
                    return Some(Err(Error::new(ErrorKind::Protocol, why)));
                }
            }
        }
    }
}

impl OrderedReader {
    /// Reads `set` with readers that `start` begins, in about `memory_max` bytes. `record`: what
    /// the scan measures of itself, and the daemon that keeps it.
    pub(crate) fn new(
        start: Start,
        set: RunSet,
        memory_max: u64,
        record: Option<(Arc<Recorder>, Option<Target>)>,
    ) -> Result<OrderedReader> {
        let mut reader = OrderedReader {
            mine: Mine::of_this_process(),
            start,
            record,
            remaining: set.len(),
            left: set,
            memory_max,
            current: None,
            ahead: None,
            stats: ReadStats::default(),
        };
        reader.current = reader.begin()?;
        Ok(reader)
    }

    /// Begins the next part, if there is one.
    fn begin(&mut self) -> Result<Option<Part>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let numbers = self.left.block(0, self.part_frames());
        let reader = (self.start)(numbers.clone())?;
        self.left = self.left.difference(&numbers);
        Ok(Some(Part { numbers, taken: 0, reader, early: BTreeMap::new() }))
    }

    /// As many frames as half of the memory holds.
    fn part_frames(&self) -> u64 {
        let stats = self.stats();
        let frames = stats.native + stats.alien + stats.backing_reads;
        match stats.bytes.checked_div(frames) {
            None => FIRST_FRAMES,
            Some(bytes) => (self.memory_max / 2 / bytes.max(1)).clamp(1, FRAMES_MAX),
        }
    }

    /// Where the frames read so far came from.
    pub fn stats(&self) -> ReadStats {
        let parts = [&self.current, &self.ahead].into_iter().flatten();
        parts.fold(self.stats, |sum, part| sum.plus(part.reader.stats()))
    }

    /// Frames not yet taken.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    fn end(&self) {
        if let Some((record, daemon)) = &self.record {
            record.finish(daemon.as_ref(), self.remaining == 0);
        }
    }
}

impl Drop for OrderedReader {
    fn drop(&mut self) {
        if self.mine.is_mine() {
            // They tell the record what was taken of them.
            (self.current, self.ahead) = (None, None);
            self.end();
        }
    }
}

impl Iterator for OrderedReader {
    type Item = std::result::Result<Frame, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.mine.check("this iteration over frames", "begin one of this process's own") {
            return (std::mem::take(&mut self.remaining) > 0).then_some(Err(error));
        }
        loop {
            let Some(part) = self.current.as_mut() else {
                self.end();
                return None;
            };
            let frame = part.next();
            // Once some lengths are known, the next part can be sized, and read ahead.
            if self.ahead.is_none() && part.taken * 2 >= part.numbers.len() {
                match self.begin() {
                    Ok(ahead) => self.ahead = ahead,
                    Err(error) => {
                        // What is left cannot be begun: it is told once, and the iteration ends.
                        self.left = RunSet::new();
                        self.remaining = 0;
                        self.current = None;
                        return Some(Err(error));
                    }
                }
            }
            if let Some(frame) = frame {
                self.remaining = self.remaining.saturating_sub(1);
                return Some(frame);
            }
            if let Some(ended) = self.current.take() {
                self.stats = self.stats.plus(ended.reader.stats());
            }
            self.current = self.ahead.take();
        }
    }
}
