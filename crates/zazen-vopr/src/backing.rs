//! The simulated backing store: one truth for all nodes, which changes under them and at times does
//! not answer.

use crate::content::{EPOCH_NS, FrameId};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result, SourceStat, Validator};

/// All versions of all files, and the outages.
#[derive(Default)]
pub(crate) struct Backing {
    /// By frame: when each version was written, ascending; version v is at index v - 1.
    files: BTreeMap<FrameId, Vec<u64>>,
    /// Times without an answer: (from, to, how).
    outages: Vec<(u64, u64, ErrorKind)>,
}

impl Backing {
    /// Writes the next version of a frame in place; its number.
    pub(crate) fn write(&mut self, frame: FrameId, now_ns: u64) -> u32 {
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
        Some(SourceStat { validator, uid: 1000, gid: 1000, mode: 0o644, is_dir: false })
    }

    /// All frames of a dataset.
    pub(crate) fn numbers(&self, dataset: usize) -> impl Iterator<Item = u64> + '_ {
        self.files.keys().filter(move |frame| frame.dataset == dataset).map(|frame| frame.number)
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

    /// All outages end.
    pub(crate) fn recover(&mut self, now_ns: u64) {
        for (_, to, _) in &mut self.outages {
            *to = (*to).min(now_ns);
        }
    }
}
