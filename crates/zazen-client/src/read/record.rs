//! What a scan measures of itself, for `zazen explain`: where the consumer's time went, and which
//! frames were not on this node.
//!
//! Invariants: the cost does not grow with the frames that are read locally: a few clock readings
//! for each group of frames that the consumer takes at once, sums, and run sets of the other
//! frames. A record that cannot be kept is lost without a word: it is no result.

use super::outcome::Outcome;
use crate::cluster::{Remote, Target};
use crate::record_folder;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_core::RunSet;
use zazen_frames::absence::Absence;
use zazen_frames::messages::Delivery;
use zazen_frames::scan_record::{Absent, Part, RECORD_BYTES_MAX, ScanNotes, ScanRecord};
use zazen_wire::Message;
use zazen_wire::checksum::frame_checksum;

/// A shorter scan of a process alone leaves no record: there is nothing to explain, and keeping it
/// would show.
const WALL_MIN: Duration = Duration::from_millis(50);
/// How long a daemon may take to accept the record.
const PATIENCE: Duration = Duration::from_secs(1);
/// The part of reading that checksums can take at most, as they are computed from a rate.
const CHECKSUM_SHARE_MAX: f64 = 0.9;

/// What is known when a scan begins.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The dataset, as the daemon knows it.
    pub dataset: String,
    /// The cache's name for it.
    pub series: String,
    /// The node's name and identity; a random identity without a daemon.
    pub node: (String, u128),
    /// What the ranks took to agree, if they did: time, this rank, how many ranks.
    pub agreed: Option<(Duration, u32, u32)>,
    /// Why no daemon is asked, if none is.
    pub without: Absence,
}

/// How long the consumer waited for what it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// For frames to be handed out.
    pub feeder: Duration,
    /// For frames to be read, by itself or by others.
    pub reading: Duration,
}

/// The record of one scan in the making.
pub(crate) struct Recorder {
    facts: Facts,
    began: Instant,
    done: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The consumer's waits.
    daemon: Duration,
    backing: Duration,
    /// Disk and checksum.
    near: Duration,
    /// Bytes that were checked while the consumer waited.
    near_bytes_waited: u64,
    near_frames: u64,
    near_bytes: u64,
    far_frames: u64,
    far_bytes: u64,
    failed: u64,
    absent: Vec<Absent>,
    /// Noted by this end.
    own: BTreeMap<Absence, RunSet>,
    rate: (u64, u64),
}

impl Recorder {
    /// A scan that began at `began`. `None` if the user wants no records (`$ZAZEN_RECORDS` is
    /// `off`).
    pub(crate) fn begin(facts: Facts, began: Instant) -> Option<Recorder> {
        let off = std::env::var_os("ZAZEN_RECORDS").is_some_and(|value| value == "off");
        let inner = Inner { daemon: began.elapsed(), ..Inner::default() };
        (!off).then(|| Recorder { facts, began, done: AtomicBool::new(false), inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The consumer took `outcomes` after these waits.
    pub(crate) fn took(&self, waits: Waits, outcomes: &VecDeque<Outcome>) {
        let mut inner = self.inner();
        // Bytes by who is waited for; a frame costs something even if it is empty.
        let (mut near, mut far, mut brought) = (0u64, 0u64, 0u64);
        for outcome in outcomes {
            let Ok(got) = &outcome.got else {
                inner.failed += 1;
                brought += 1;
                continue;
            };
            let bytes = got.buffer.bytes().len() as u64;
            match got.delivery {
                Some(Delivery::Native | Delivery::Alien) if !got.mended => {
                    near += bytes + 1;
                    inner.near_frames += 1;
                    inner.near_bytes += bytes;
                    continue;
                }
                Some(Delivery::Native | Delivery::Alien) => {
                    inner.own.entry(Absence::Corrupt).or_default().insert(outcome.number);
                    far += bytes + 1;
                }
                Some(Delivery::Fetched | Delivery::Inline | Delivery::Failed) => {
                    near += bytes + 1;
                    brought += 1;
                }
                Some(Delivery::ReadThrough) => {
                    far += bytes + 1;
                    brought += 1;
                }
                None => far += bytes + 1,
            }
            inner.far_frames += 1;
            inner.far_bytes += bytes;
        }
        match brought {
            0 => inner.daemon += waits.feeder,
            _ => inner.backing += waits.feeder,
        }
        if !waits.reading.is_zero() {
            let share = far as f64 / (near + far).max(1) as f64;
            let from_store = waits.reading.mul_f64(share);
            inner.backing += from_store;
            inner.near += waits.reading.saturating_sub(from_store);
            inner.near_bytes_waited += near;
        }
    }

    /// The frames of `numbers` are read without the daemon.
    pub(crate) fn direct(&self, numbers: &[u64], lost: bool) {
        let why = if lost { Absence::NodeDead } else { self.facts.without };
        let mut inner = self.inner();
        let set = inner.own.entry(why).or_default();
        numbers.iter().for_each(|number| {
            set.insert(*number);
        });
    }

    /// What the daemon tells of a scan that it has handed out.
    pub(crate) fn told(&self, notes: ScanNotes) {
        let mut inner = self.inner();
        inner.rate = (notes.store_rate, notes.store_rate_best);
        inner.absent.extend(notes.absent);
    }

    /// The scan has ended; `whole` if the consumer took every frame. Keeps the record at `daemon`,
    /// or in the user's folder. Does nothing the second time.
    pub(crate) fn finish(&self, daemon: Option<&Target>, whole: bool) {
        if self.done.swap(true, Ordering::Relaxed) || !self.is_worth_keeping(self.began.elapsed()) {
            return;
        }
        let record = self.record(whole);
        let kept = daemon.is_some_and(|target| match keep_at(target, &record) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("{error}; the scan's record goes to a file");
                false
            }
        });
        if !kept && let Err(error) = record_folder::write(&record) {
            tracing::debug!("{error}; the scan leaves no record");
        }
    }

    /// Of ranks that agreed, all leave a record: a rank that read quickly is what the slowest rank
    /// is compared with, and without it the job would look incomplete.
    fn is_worth_keeping(&self, read: Duration) -> bool {
        match self.facts.agreed {
            Some((_, _, ranks)) if ranks > 1 => true,
            agreed => read + agreed.map_or(Duration::ZERO, |(agreed, ..)| agreed) >= WALL_MIN,
        }
    }

    fn record(&self, whole: bool) -> ScanRecord {
        let inner = self.inner();
        let agreed = self.facts.agreed.map_or(Duration::ZERO, |(agreed, ..)| agreed);
        let wall = agreed + self.began.elapsed();
        let checked = inner.near_bytes_waited as f64 * checksum_ns_per_byte();
        let checked = Duration::from_nanos(checked as u64).min(inner.near.mul_f64(CHECKSUM_SHARE_MAX));
        let waited = agreed + inner.daemon + inner.backing + inner.near;
        let spent = |part| match part {
            Part::Assign => agreed,
            Part::Daemon => inner.daemon,
            Part::Disk => inner.near - checked,
            Part::Peer => Duration::ZERO,
            Part::Backing => inner.backing,
            Part::Checksum => checked,
            Part::Consumer => wall.saturating_sub(waited),
        };
        let (rank, ranks) = match self.facts.agreed {
            Some((_, rank, ranks)) => (rank, ranks),
            None => launched(),
        };
        let own = inner.own.iter().filter(|(_, set)| !set.is_empty()).map(|(why, set)| Absent {
            why: *why,
            at_ms: 0,
            wanted: String::new(),
            count: set.len(),
            set: set.clone(),
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut record = ScanRecord {
            dataset: self.facts.dataset.clone(),
            series: self.facts.series.clone(),
            node: self.facts.node.0.clone(),
            node_id: self.facts.node.1,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            job: job(),
            pid: std::process::id(),
            rank,
            ranks,
            assigned: self.facts.agreed.is_some(),
            whole,
            began_ms: now.saturating_sub(wall).as_millis() as u64,
            wall_ns: wall.as_nanos() as u64,
            spent_ns: Part::ALL.into_iter().map(|part| spent(part).as_nanos() as u64).collect(),
            near_frames: inner.near_frames,
            near_bytes: inner.near_bytes,
            far_frames: inner.far_frames,
            far_bytes: inner.far_bytes,
            failed_frames: inner.failed,
            store_rate: inner.rate.0,
            store_rate_best: inner.rate.1,
            absent: inner.absent.iter().cloned().chain(own).collect(),
        };
        if record.encode().len() > RECORD_BYTES_MAX {
            record.absent.iter_mut().for_each(|absent| absent.set = RunSet::new());
        }
        record
    }
}

fn keep_at(target: &Target, record: &ScanRecord) -> zazen_core::Result<()> {
    let mut remote = Remote::connect_within(target, None, PATIENCE)?;
    remote.set_timeout(Some(PATIENCE));
    remote.keep_record(record)
}

/// This process's rank as its launcher says, and how many there are.
fn launched() -> (u32, u32) {
    let told = zazen_core::launcher::rank_of_ranks(|name| std::env::var(name).ok());
    let (rank, ranks) = told.unwrap_or((0, 1));
    (u32::try_from(rank).unwrap_or(0), u32::try_from(ranks).unwrap_or(1))
}

/// What the batch system calls this job.
fn job() -> String {
    let names = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"];
    let found = names.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    found.chars().take(100).collect()
}

/// What a checksum costs here, measured once in a process.
fn checksum_ns_per_byte() -> f64 {
    static COST: OnceLock<f64> = OnceLock::new();
    *COST.get_or_init(|| {
        let bytes = vec![7u8; 64 << 10];
        let once = || {
            let began = Instant::now();
            std::hint::black_box(frame_checksum(std::hint::black_box(&bytes)));
            began.elapsed().as_nanos() as f64 / bytes.len() as f64
        };
        once().min(once())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(agreed: Option<(Duration, u32, u32)>) -> Recorder {
        let facts = Facts {
            dataset: "/d".into(),
            series: String::new(),
            node: (String::new(), 1),
            agreed,
            without: Absence::NoDaemon,
        };
        Recorder {
            facts,
            began: Instant::now(),
            done: AtomicBool::new(false),
            inner: Mutex::new(Inner::default()),
        }
    }

    #[test]
    fn a_quick_rank_leaves_a_record_and_a_quick_process_alone_leaves_none() {
        let quick = Duration::from_millis(2);
        assert!(recorder(Some((quick, 3, 4))).is_worth_keeping(quick));
        assert!(!recorder(None).is_worth_keeping(quick));
        assert!(!recorder(Some((quick, 0, 1))).is_worth_keeping(quick));
        assert!(recorder(None).is_worth_keeping(WALL_MIN));
        // What it took to agree counts.
        assert!(recorder(Some((WALL_MIN, 0, 1))).is_worth_keeping(quick));
    }
}
