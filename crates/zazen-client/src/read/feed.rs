//! The feeder: fetches descriptors from the daemon ahead of use, and uses the backing store while
//! the daemon is gone.
//!
//! Invariant: each frame of the set is fed exactly once, even if the daemon dies at any time.

use super::access::{Access, jobs_of};
use super::job::Job;
use super::pipeline::{Pipeline, Task};
use crate::cluster::{Batch, Remote, answers, daemon_is_gone};
use crate::daemon_spec::DaemonSpec;
use crate::lost::Retry;
use zazen_core::limits::{BATCH_FRAMES_MAX, FRAME_NO_MAX};
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_frames::messages::{BatchEntry, Delivery};

/// How many directly opened frames are fed at a time.
const DIRECT_FRAMES: usize = 64;
/// Frames in a scan's first batch. It is small, so that reading begins at once. Each later batch is
/// four times as large.
const FIRST_FRAMES: usize = 4;

/// A scan begun on a connection of its own.
pub(crate) struct Scan {
    remote: Remote,
    scan: u32,
}

impl Scan {
    /// Begins a scan of `set`. A daemon that was silent for too long, because its node was
    /// suspended or very busy, and answers by now, is asked once more: nothing was read yet.
    pub(crate) fn begin(daemon: &DaemonSpec, set: &RunSet) -> Result<Scan> {
        let mut remote = daemon.connect()?;
        let error = match Scan::begin_on(&mut remote, daemon, set) {
            Ok(scan) => return Ok(Scan { remote, scan }),
            Err(error) => error,
        };
        // Otherwise it is the backing store that timed out.
        let was_silent = error.kind() == ErrorKind::TimedOut && !remote.is_alive();
        if !was_silent || !answers(&daemon.target, daemon.patience()) {
            return Err(error);
        }
        tracing::debug!("{error}; it answers again, and is asked again");
        let mut remote = daemon.connect()?;
        let scan = Scan::begin_on(&mut remote, daemon, set)?;
        Ok(Scan { remote, scan })
    }

    fn begin_on(remote: &mut Remote, daemon: &DaemonSpec, set: &RunSet) -> Result<u32> {
        let handle = daemon.open_on(remote)?;
        Ok(remote.scan_open(handle, set.clone())?.scan)
    }

    /// The next frames, at most `frames_max`; and the daemon's error if it is stopping. Frames that
    /// it cannot give for that reason are left out.
    #[allow(clippy::type_complexity)]
    pub(crate) fn next_jobs(
        &mut self,
        frames_max: usize,
    ) -> Result<(Vec<(u64, Result<Job>)>, Option<Error>)> {
        let batch = self.remote.scan_next(self.scan, frames_max as u16, u64::MAX)?;
        let (mut jobs, mut stopping) = (Vec::new(), None);
        for (number, job) in jobs_of(batch) {
            match job {
                Err(error) if error.kind() == ErrorKind::ShuttingDown => stopping = Some(error),
                job => jobs.push((number, job)),
            }
        }
        Ok((jobs, stopping))
    }
}

/// Feeds `set`: from `scan` while it works, and from a new scan if the daemon comes back.
pub(crate) fn run(pipeline: &Pipeline, access: &Access, scan: Option<Scan>, set: &RunSet, bytes_max: u64) {
    let mut retry = None;
    let mut next = Some((set.clone(), scan));
    while let Some((set, scan)) = next {
        let rest = match scan {
            Some(scan) => feed_scan(pipeline, access, scan, &set, bytes_max, &mut retry),
            None => Some(set),
        };
        next = rest.and_then(|rest| feed_direct(pipeline, access, &rest, &mut retry));
    }
    pipeline.fed();
}

/// Feeds the frames that the daemon hands out. Returns the frames that it did not hand out, or
/// `None` if the reader is being dropped.
fn feed_scan(
    pipeline: &Pipeline,
    access: &Access,
    mut scan: Scan,
    set: &RunSet,
    bytes_max: u64,
    retry: &mut Option<Retry>,
) -> Option<RunSet> {
    let mut handed_out = RunSet::new();
    let mut frames_max = FIRST_FRAMES;
    let mut was_absent = false;
    let failure = loop {
        if !pipeline.wait_low(access) {
            // If this call fails, the end of the connection ends the scan.
            let _ = scan.remote.scan_close(scan.scan);
            return None;
        }
        let asked = frames_max;
        let batch = scan.remote.scan_next(scan.scan, asked as u16, bytes_max);
        frames_max = BATCH_FRAMES_MAX.min(frames_max * 4);
        match batch {
            Ok(batch) if batch.entries.is_empty() => break None,
            Ok(batch) => {
                let count = batch.entries.len();
                let is_absent =
                    |entry: &BatchEntry| !matches!(entry.delivery, Delivery::Native | Delivery::Alien);
                was_absent |= batch.entries.iter().any(is_absent);
                if count > asked {
                    let why = format!("it answered {count} frames where {asked} were asked for");
                    break Some(Error::new(ErrorKind::Protocol, why));
                }
                let (tasks, stopping) = tasks_of(batch, set, &mut handed_out);
                // A daemon that repeats frames would never end the scan.
                if tasks.is_empty() && stopping.is_none() {
                    let why = format!("it answered {count} frames, none of them new");
                    break Some(Error::new(ErrorKind::Protocol, why));
                }
                pipeline.feed(tasks);
                if stopping.is_some() {
                    break stopping;
                }
            }
            Err(error) => break Some(error),
        }
    };
    let rest = set.difference(&handed_out);
    match failure {
        None if rest.is_empty() => {
            if let Some(record) = &access.record {
                if was_absent {
                    match scan.remote.scan_notes(scan.scan) {
                        Ok(notes) => record.told(notes),
                        Err(error) => tracing::debug!("{error}; the scan's record has no reasons"),
                    }
                }
                record.lend(scan.remote);
            }
            return Some(rest);
        }
        None => {
            let why = format!("its scan ended {} frames early", rest.len());
            *retry = access.lose_daemon(&Error::new(ErrorKind::Protocol, why));
        }
        Some(error) if daemon_is_gone(&error) => *retry = access.lose_daemon(&error),
        Some(error) => {
            // The daemon works and refuses. Each remaining frame gets its error.
            let message = error.to_string();
            let failed =
                |number| Task::Failed(number, Error::new(error.kind(), format!("frame {number}: {message}")));
            feed_all(pipeline, access, rest.iter().map(failed));
            return Some(RunSet::new());
        }
    }
    Some(rest)
}

/// The batch as tasks. Entries that were not requested, or came before, are dropped. A draining
/// daemon fails frames that can still be read elsewhere. They are left out, and its error is
/// returned.
fn tasks_of(batch: Batch, set: &RunSet, handed_out: &mut RunSet) -> (Vec<Task>, Option<Error>) {
    let mut tasks = Vec::with_capacity(batch.entries.len());
    let mut stopping = None;
    for (number, job) in jobs_of(batch) {
        match job {
            Err(error) if error.kind() == ErrorKind::ShuttingDown => stopping = Some(error),
            _ if !set.contains(number) || !handed_out.insert(number) => {}
            Ok(job) => tasks.push(Task::Read(job)),
            Err(error) => tasks.push(Task::Failed(number, error)),
        }
    }
    (tasks, stopping)
}

/// Feeds `set` from the backing store. Looks for a lost daemon now and then. When the daemon is
/// back, returns the remaining frames with a scan of them.
fn feed_direct(
    pipeline: &Pipeline,
    access: &Access,
    set: &RunSet,
    retry: &mut Option<Retry>,
) -> Option<(RunSet, Option<Scan>)> {
    let mut numbers = set.iter();
    while pipeline.wait_low(access) {
        let some: Vec<_> = numbers.by_ref().take(DIRECT_FRAMES).collect();
        let first = *some.first()?;
        if let Some(retry) = retry
            && let Some(daemon) = access.daemon_again(retry)
        {
            let rest = set.intersection(&RunSet::range(first, FRAME_NO_MAX));
            match Scan::begin(daemon, &rest) {
                Ok(scan) => {
                    access.regain_daemon();
                    return Some((rest, Some(scan)));
                }
                Err(error) => tracing::debug!("{error}; continuing without the daemon"),
            }
        }
        if let Some(record) = &access.record {
            record.direct(some.iter().copied(), retry.is_some());
        }
        pipeline.feed(some.into_iter().map(Task::Direct));
    }
    None
}

fn feed_all(pipeline: &Pipeline, access: &Access, mut tasks: impl Iterator<Item = Task>) {
    while pipeline.wait_low(access) {
        let some: Vec<_> = tasks.by_ref().take(DIRECT_FRAMES).collect();
        if some.is_empty() {
            break;
        }
        pipeline.feed(some);
    }
}
