//! The simulated backing store: one truth for all nodes, which changes under them and at times does
//! not answer.

use crate::content::{EPOCH_NS, FrameId, OWNER};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result, SourceStat, Validator};

/// All versions of all files, and the outages.
#[derive(Default)]
pub(crate) struct Backing {
    /// By frame: when each version was written, ascending; version v is at index v - 1.
    files: BTreeMap<FrameId, Vec<u64>>,
    /// Times without an answer: (from, to, how).
    outages: Vec<(u64, u64, ErrorKind)>,
    /// Times in which only their owner may read the files of a dataset: (dataset, from, to).
    closed: Vec<(usize, u64, u64)>,
    /// Times without a file: (frame, from, to).
    deleted: Vec<(FrameId, u64, u64)>,
}

impl Backing {
    /// Writes the next version of a frame in place; its number.
    pub(crate) fn write(&mut self, frame: FrameId, now_ns: u64) -> u32 {
        self.deleted.iter_mut().filter(|(of, ..)| *of == frame).for_each(|(.., to)| *to = (*to).min(now_ns));
        let versions = self.files.entry(frame).or_default();
        // File servers stamp each change with a time of its own.
        let stamp = versions.last().map_or(now_ns, |last| now_ns.max(last + 1));
        versions.push(stamp);
        versions.len() as u32
    }

    /// The version that is there at `now_ns`; 0 if there is no file.
    pub(crate) fn version(&self, frame: FrameId, now_ns: u64) -> u32 {
        self.files.get(&frame).map_or(0, |versions| versions.partition_point(|at| *at <= now_ns) as u32)
    }

    /// The version that is there now; 0 if there is no file.
    pub(crate) fn latest(&self, frame: FrameId) -> u32 {
        self.files.get(&frame).map_or(0, |versions| versions.len() as u32)
    }

    /// What the file of a version looks like to a machine whose clock shows `wall_ns`.
    pub(crate) fn seen(&self, frame: FrameId, version: u32, wall_ns: i64) -> Option<SourceStat> {
        let written_ns = *self.files.get(&frame)?.get(version.checked_sub(1)? as usize)?;
        let length = frame.length(version) as u64;
        // Never a whole second: such times are taken for those of a coarse clock.
        let mtime_ns = (EPOCH_NS + written_ns * 2 + 1) as i64;
        let inode = 1 + frame.number + ((frame.dataset as u64) << 32);
        let validator = Validator::seen(length, mtime_ns, mtime_ns, inode, wall_ns);
        Some(SourceStat { validator, uid: OWNER, gid: OWNER, mode: 0o644, is_dir: false })
    }

    /// All frames of a dataset.
    pub(crate) fn numbers(&self, dataset: usize) -> impl Iterator<Item = u64> + '_ {
        self.files.keys().filter(move |frame| frame.dataset == dataset).map(|frame| frame.number)
    }

    /// Only the owner may read the files of a dataset for some time.
    pub(crate) fn close(&mut self, dataset: usize, from_ns: u64, to_ns: u64) {
        self.closed.push((dataset, from_ns, to_ns));
    }

    /// The file of a frame is gone for some time.
    pub(crate) fn delete(&mut self, frame: FrameId, from_ns: u64, to_ns: u64) {
        self.deleted.push((frame, from_ns, to_ns));
    }

    /// Whether a dataset is closed to all but its owner all the time from `from_ns` to `to_ns`.
    pub(crate) fn is_closed(&self, dataset: usize, from_ns: u64, to_ns: u64) -> bool {
        self.closed.iter().any(|(of, from, to)| *of == dataset && *from <= from_ns && to_ns < *to)
    }

    /// Whether a frame has no file all the time from `from_ns` to `to_ns`.
    pub(crate) fn is_deleted(&self, frame: FrameId, from_ns: u64, to_ns: u64) -> bool {
        self.deleted.iter().any(|(of, from, to)| *of == frame && *from <= from_ns && to_ns < *to)
    }

    pub(crate) fn begin_outage(&mut self, from_ns: u64, to_ns: u64, kind: ErrorKind) {
        self.outages.push((from_ns, to_ns, kind));
    }

    /// Whether an outage lies within `from_ns ..= to_ns`.
    pub(crate) fn was_away(&self, from_ns: u64, to_ns: u64) -> bool {
        self.outages.iter().any(|(from, to, _)| *from <= to_ns && from_ns <= *to)
    }

    /// The outage of this moment, as an error.
    pub(crate) fn check(&self, now_ns: u64) -> Result<()> {
        match self.outages.iter().find(|(from, to, _)| (*from..*to).contains(&now_ns)) {
            Some((.., kind)) => Err(Error::new(*kind, "the backing store does not answer")),
            None => Ok(()),
        }
    }

    /// All outages end, all files are there and open.
    pub(crate) fn recover(&mut self, now_ns: u64) {
        for (_, to, _) in &mut self.outages {
            *to = (*to).min(now_ns);
        }
        self.closed.iter_mut().for_each(|(.., to)| *to = (*to).min(now_ns));
        self.deleted.iter_mut().for_each(|(.., to)| *to = (*to).min(now_ns));
    }
}
