//! Short files: where each file is a dataset, calls cost more than bytes. So the daemon gives the
//! only block of a file with the answer to the call that opens it, if the block is cached. It takes
//! back the handle of the file before with the same call.
//!
//! Invariants: what came with the answer is used by the next read, within a second, or not at all,
//! and is checked against its checksum as any other frame. It is of the version that was opened.

use crate::cluster::{Batch, Remote};
use crate::daemon_spec::DaemonSpec;
use crate::read::{Job, jobs_of};
use std::time::{Duration, Instant};
use zazen_core::{Blocks, ErrorKind, Result, RunSet};
use zazen_frames::messages::{DatasetInfo, OpenDataset, OpenRead};

/// The most bytes of the block; its file may be longer than what is sent as bytes.
const ALONG_BYTES: u64 = 1 << 30;

/// How long they are of use: after that, the daemon is asked whether the file has changed.
const ALONG_FOR: Duration = Duration::from_secs(1);

/// What came with the answer to the call that opened a dataset.
pub(super) struct Along {
    batch: Batch,
    since: Instant,
}

/// Opens the dataset of `spec`. `closes`: a handle of this connection that is given back.
pub(super) fn open(
    remote: &mut Remote,
    spec: &DaemonSpec,
    closes: Option<u32>,
) -> Result<(DatasetInfo, Option<Along>)> {
    let pattern = spec.pattern.as_deref();
    let is_blocks = pattern.is_some_and(|pattern| Blocks::parse_pattern(pattern).is_some());
    if is_blocks || closes.is_some() {
        let path = crate::cluster::utf8(&spec.path)?.to_owned();
        let open =
            OpenDataset { path, want_extent: false, pattern: spec.pattern.clone(), only_cached: false };
        let ask = OpenRead { open, closes, blocks_max: u64::from(is_blocks), bytes_max: ALONG_BYTES };
        match remote.open_read(&ask) {
            // A daemon of an older release, or a file of a kind that is not supported.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            opened => {
                let since = Instant::now();
                return opened.map(|(info, batch)| (info, Some(Along { batch, since })));
            }
        }
    }
    closes.map_or(Ok(()), |handle| remote.close(handle))?;
    Ok((remote.open(&spec.path, pattern, false)?, None))
}

impl Along {
    /// Those of the frames that are in `set` and did not fail, each once.
    pub(super) fn good_of(self, set: &RunSet) -> Vec<(u64, Result<Job>)> {
        if self.since.elapsed() > ALONG_FOR {
            return Vec::new();
        }
        let mut left = set.clone();
        jobs_of(self.batch).filter(|(number, job)| job.is_ok() && left.remove(*number)).collect()
    }
}
