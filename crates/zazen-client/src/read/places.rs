//! Paths of frames, without their bytes: for programs that map a large file, or hand its path on.
//!
//! Invariant: each frame of the set comes out exactly once, even if the daemon dies at any time.

use super::access::{Access, LastFile};
use super::feed::Scan;
use super::job::{Data, Job};
use super::{Frame, Got};
use crate::cluster::daemon_is_gone;
use std::collections::VecDeque;
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_env::fork::Mine;

/// Frames that the daemon is asked for at a time.
const BATCH: usize = 64;

/// Where a frame's bytes are.
pub enum FrameLocation {
    /// In a file with exactly these bytes, which were not read and not checked.
    File(PathBuf),
    /// In a part of a file, or in no file that this process may open: the frame was read, and
    /// [`Frame::path`] makes a file.
    Read(Frame),
}

/// An iterator over the places of frames, by number. Only one thread may use it at a time.
pub struct PlaceReader {
    /// In a forked child, its connection is the parent's.
    mine: Mine,
    access: Access,
    scan: Option<Scan>,
    /// What did not come out yet.
    left: RunSet,
    jobs: VecDeque<(u64, Result<Job>)>,
    last: LastFile,
}

impl PlaceReader {
    pub(crate) fn new(access: Access, scan: Option<Scan>, set: RunSet) -> PlaceReader {
        let mine = Mine::of_this_process();
        PlaceReader { mine, access, scan, left: set, jobs: VecDeque::new(), last: None }
    }

    /// Frames that did not come out yet.
    pub fn remaining(&self) -> u64 {
        self.left.len() + self.jobs.len() as u64
    }

    /// Gets more jobs; none if all came out.
    fn fill(&mut self) {
        if let (Some(scan), false) = (&mut self.scan, self.left.is_empty()) {
            let failure = match scan.next_jobs(BATCH) {
                Ok((_, Some(stopping))) => stopping,
                Ok((jobs, None)) => {
                    let new: Vec<_> =
                        jobs.into_iter().filter(|(number, _)| self.left.remove(*number)).collect();
                    if !new.is_empty() {
                        self.jobs.extend(new);
                        return;
                    }
                    Error::new(ErrorKind::Protocol, "its scan ended early, or repeats frames")
                }
                Err(error) => error,
            };
            self.scan = None;
            let is_lost = matches!(failure.kind(), ErrorKind::Protocol | ErrorKind::ShuttingDown);
            if !is_lost && !daemon_is_gone(&failure) {
                // The daemon works and refuses.
                let left = std::mem::take(&mut self.left);
                let (kind, text) = (failure.kind(), failure.to_string());
                let refused = |number| (number, Err(Error::new(kind, format!("frame {number}: {text}"))));
                self.jobs.extend(left.iter().map(refused));
                return;
            }
            self.access.lose_daemon(&failure);
        }
        if let Some(number) = self.left.first() {
            self.left.remove(number);
            self.jobs.push_back((number, self.access.open_direct(number, &mut self.last)));
        }
    }

    fn place(&self, job: Job) -> Result<FrameLocation> {
        let (number, file) = (job.number, self.access.file_of(&job));
        if let (Some(own), Data::Descriptor(..)) = (file.own(), &job.data) {
            return Ok(FrameLocation::File(own.to_path_buf()));
        }
        let stopped = || Error::new(ErrorKind::ShuttingDown, format!("frame {number}: the read was stopped"));
        let got: Got = self.access.read(job, &|| ()).unwrap_or_else(|| Err(stopped()))?;
        Ok(FrameLocation::Read(Frame::new(number, got, self.access.layout())))
    }
}

impl Iterator for PlaceReader {
    type Item = (u64, Result<FrameLocation>);

    fn next(&mut self) -> Option<(u64, Result<FrameLocation>)> {
        if let Err(error) = self.mine.check("this iteration over paths", "begin one of this process's own") {
            let first = self.jobs.front().map(|(number, _)| *number).or(self.left.first());
            self.jobs.drain(..).for_each(std::mem::forget);
            self.left = RunSet::new();
            std::mem::forget(self.scan.take());
            return first.map(|number| (number, Err(error)));
        }
        if self.jobs.is_empty() {
            self.fill();
        }
        let (number, job) = self.jobs.pop_front()?;
        Some((number, job.and_then(|job| self.place(job))))
    }
}
