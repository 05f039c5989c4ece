//! What a scan measures of itself, for `zazen explain`: where the consumer's time went, and which
//! frames were not on this node.
//!
//! Invariants: frames that are read locally are only counted; the rest is a few clock readings for
//! each group of frames that the consumer takes at once, sums, and run sets of the other frames. A
//! record that cannot be kept is lost without a word: it is no result.

use super::outcome::{Got, Outcome};
use crate::cluster::{Remote, Target, own_identity};
use crate::record_folder;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_core::{ErrorKind, RunSet};
use zazen_env::fork::Mine;
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

/// Frames that came from this node's cache, as they should.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Local {
    pub frames: u64,
    pub bytes: u64,
}

/// A frame that the consumer took.
pub(crate) struct Taken {
    pub number: u64,
    /// How it came, its bytes, and whether its cached copy was bad; `None` if it could not be read.
    pub read: Option<(Option<Delivery>, u64, bool)>,
}

impl Taken {
    pub(crate) fn of_outcome(outcome: &Outcome) -> Taken {
        let read = |got: &Got| (got.delivery, got.buffer.len() as u64, got.mended);
        Taken { number: outcome.number, read: outcome.got.as_ref().ok().map(read) }
    }
}

/// The record of one scan in the making, or of the random access to a dataset.
pub(crate) struct Recorder {
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    facts: Facts,
    began: Instant,
    done: AtomicBool,
    inner: Mutex<Inner>,
    /// A connection over which the record can go.
    connection: Mutex<Option<Remote>>,
}

#[derive(Default)]
struct Inner {
    /// The consumer's waits.
    daemon: Duration,
    backing: Duration,
    /// For frames that the daemon brings, from another node or from the backing store.
    brought: Duration,
    /// What the daemon took for those from other nodes, and for the rest, in nanoseconds.
    brought_ns: (u64, u64),
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
    /// Of random access: which frames the daemon brought, and how long after the first call the
    /// last one ended.
    asked: RunSet,
    ended: Option<Duration>,
}

impl Inner {
    fn waited(&self) -> Duration {
        self.daemon + self.backing + self.brought + self.near
    }

    /// The waits for other nodes, and for the backing store.
    fn far_waits(&self) -> (Duration, Duration) {
        let (peer, store) = self.brought_ns;
        let share = peer as f64 / (peer.saturating_add(store)).max(1) as f64;
        let from_peers = self.brought.mul_f64(share);
        (from_peers, self.backing + self.brought.saturating_sub(from_peers))
    }

    /// Adds frames that came after these waits: `local` ones, and others, which may be local, too.
    /// Which of them the daemon brought.
    fn take(&mut self, waits: Waits, local: Local, taken: impl Iterator<Item = Taken>) -> Vec<u64> {
        // Bytes by who is waited for; a frame costs something even if it is empty.
        let (mut near, mut far, mut brought, mut failed) =
            (local.bytes + local.frames, 0u64, Vec::new(), 0u64);
        self.near_frames += local.frames;
        self.near_bytes += local.bytes;
        for Taken { number, read } in taken {
            let Some((delivery, bytes, mended)) = read else {
                failed += 1;
                continue;
            };
            match delivery {
                Some(Delivery::Native | Delivery::Alien) if !mended => {
                    near += bytes + 1;
                    self.near_frames += 1;
                    self.near_bytes += bytes;
                    continue;
                }
                Some(Delivery::Native | Delivery::Alien) => {
                    self.own.entry(Absence::Corrupt).or_default().insert(number);
                    far += bytes + 1;
                }
                Some(Delivery::Fetched | Delivery::Inline | Delivery::Failed) => {
                    near += bytes + 1;
                    brought.push(number);
                }
                Some(Delivery::ReadThrough) => {
                    far += bytes + 1;
                    brought.push(number);
                }
                None => far += bytes + 1,
            }
            self.far_frames += 1;
            self.far_bytes += bytes;
        }
        self.failed += failed;
        match brought.len() as u64 + failed {
            0 => self.daemon += waits.feeder,
            _ => self.brought += waits.feeder,
        }
        if !waits.reading.is_zero() {
            let share = far as f64 / (near + far).max(1) as f64;
            let from_store = waits.reading.mul_f64(share);
            self.backing += from_store;
            self.near += waits.reading.saturating_sub(from_store);
            self.near_bytes_waited += near;
        }
        brought
    }

    /// Frames that were brought, and for which the daemon gave no reason.
    fn without_reason(&self) -> RunSet {
        let told = self.absent.iter().map(|absent| &absent.set).chain(self.own.values());
        told.fold(self.asked.clone(), |rest, set| rest.difference(set))
    }
}

impl Recorder {
    /// A scan that began at `began`. `None` if the user wants no records (`$ZAZEN_RECORDS` is
    /// `off`).
    pub(crate) fn begin(facts: Facts, began: Instant) -> Option<Recorder> {
        Recorder::new(facts, began, began.elapsed())
    }

    /// Random access whose first call began at `began`. [`Recorder::took_at_random`] adds each
    /// call, the first one too.
    pub(crate) fn begin_random(facts: Facts, began: Instant) -> Option<Recorder> {
        Recorder::new(facts, began, Duration::ZERO)
    }

    fn new(facts: Facts, began: Instant, daemon: Duration) -> Option<Recorder> {
        let off = std::env::var_os("ZAZEN_RECORDS").is_some_and(|value| value == "off");
        let inner = Inner { daemon, ..Inner::default() };
        let (mine, done) = (Mine::of_this_process(), AtomicBool::new(false));
        let connection = Mutex::default();
        (!off).then(|| Recorder { mine, facts, began, done, inner: Mutex::new(inner), connection })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of random access, which began at `began` and has ended, gave `taken`. The frames
    /// `direct` of them were read without the daemon, which was `lost` or never there.
    pub(crate) fn took_at_random(
        &self,
        began: Instant,
        asking: Duration,
        taken: impl Iterator<Item = Taken>,
        direct: &RunSet,
        lost: bool,
    ) {
        let reading = began.elapsed().saturating_sub(asking);
        if !direct.is_empty() {
            self.direct(direct.iter(), lost);
        }
        let mut inner = self.inner();
        let brought = inner.take(Waits { feeder: asking, reading }, Local::default(), taken);
        let ended = began.saturating_duration_since(self.began) + asking + reading;
        inner.ended = inner.ended.max(Some(ended));
        if inner.asked.heap_bytes() < RECORD_BYTES_MAX {
            brought.into_iter().for_each(|number| {
                inner.asked.insert(number);
            });
        }
    }

    /// The consumer took these frames after these waits.
    pub(crate) fn took(&self, waits: Waits, local: Local, others: Vec<Taken>) {
        self.inner().take(waits, local, others.into_iter());
    }

    /// The frames of `numbers` are read without the daemon.
    pub(crate) fn direct(&self, numbers: impl Iterator<Item = u64>, lost: bool) {
        let why = if lost { Absence::NodeDead } else { self.facts.without };
        let mut inner = self.inner();
        let set = inner.own.entry(why).or_default();
        numbers.for_each(|number| {
            set.insert(number);
        });
    }

    /// What the daemon tells of a scan that it has handed out.
    pub(crate) fn told(&self, notes: ScanNotes) {
        let mut inner = self.inner();
        inner.rate = (notes.store_rate, notes.store_rate_best);
        inner.brought_ns = (notes.peer_ns, notes.store_ns);
        inner.absent.extend(notes.absent);
    }

    /// The scan's connection, which has no other work any more. To connect once more would cost
    /// more than the record.
    pub(crate) fn lend(&self, connection: Remote) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// The scan has ended; `whole` if the consumer took every frame. Keeps the record at `daemon`,
    /// or in the user's folder. Does nothing the second time.
    pub(crate) fn finish(&self, daemon: Option<&Target>, whole: bool) {
        if self.done.swap(true, Ordering::Relaxed) || !self.is_worth_keeping(self.began.elapsed()) {
            return;
        }
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.keep(daemon, connection.as_mut(), whole);
    }

    /// Random access to a dataset has ended, which the daemon knows by this connection and handle.
    /// The daemon is asked why frames were not cached only if the program waited so long that a
    /// record is worth it. A forked child leaves the record to its parent.
    pub(crate) fn finish_random(&self, mut daemon: Option<(&mut Remote, u32)>) {
        if !self.mine.is_mine() {
            return;
        }
        let (waited, is_far) = {
            let inner = self.inner();
            (inner.waited(), !inner.asked.is_empty())
        };
        if waited < WALL_MIN || self.done.swap(true, Ordering::Relaxed) {
            return;
        }
        if let (true, Some((remote, handle))) = (is_far, &mut daemon) {
            // A daemon that hangs must not hold up the end of the program.
            remote.set_timeout(Some(PATIENCE));
            if let Ok(notes) = remote.read_notes(*handle) {
                self.told(notes);
            }
        }
        let target = daemon.as_ref().map(|(remote, _)| remote.target().clone());
        self.keep(target.as_ref(), daemon.map(|(remote, _)| remote), true);
    }

    fn keep(&self, daemon: Option<&Target>, connection: Option<&mut Remote>, whole: bool) {
        let record = self.record(whole);
        let kept = daemon.is_some_and(|target| match keep_at(target, connection, &record) {
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
        let wall = agreed + inner.ended.unwrap_or_else(|| self.began.elapsed());
        let checked = inner.near_bytes_waited as f64 * checksum_ns_per_byte();
        let checked = Duration::from_nanos(checked as u64).min(inner.near.mul_f64(CHECKSUM_SHARE_MAX));
        let waited = agreed + inner.waited();
        let (peer, backing) = inner.far_waits();
        let spent = |part| match part {
            Part::Assign => agreed,
            Part::Daemon => inner.daemon,
            Part::Disk => inner.near - checked,
            Part::Peer => peer,
            Part::Backing => backing,
            Part::Checksum => checked,
            Part::Consumer => wall.saturating_sub(waited),
        };
        let (rank, ranks) = match self.facts.agreed {
            Some((_, rank, ranks)) => (rank, ranks),
            None => launched(),
        };
        let unexplained = inner.without_reason();
        let own = inner.own.iter().chain([(&Absence::NeverHere, &unexplained)]);
        let own = own.filter(|(_, set)| !set.is_empty()).map(|(why, set)| Absent {
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

/// Gives the record to the daemon at `target`: over `connection`, if that leads there with the
/// rights that this process has now.
fn keep_at(target: &Target, connection: Option<&mut Remote>, record: &ScanRecord) -> zazen_core::Result<()> {
    let leads_there =
        |remote: &&mut Remote| remote.target() == target && *remote.who() == own_identity().credentials;
    if let Some(remote) = connection.filter(leads_there) {
        remote.set_timeout(Some(PATIENCE));
        match remote.keep_record(record) {
            // The daemon was started again since.
            Err(error) if error.kind() != ErrorKind::TimedOut && !remote.is_alive() => {}
            answer => return answer,
        }
    }
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
            mine: Mine::of_this_process(),
            facts,
            began: Instant::now(),
            done: AtomicBool::new(false),
            inner: Mutex::new(Inner::default()),
            connection: Mutex::default(),
        }
    }

    #[test]
    fn what_the_daemon_brings_is_divided_as_it_says() {
        let recorder = recorder(None);
        let (asking, began) = (Duration::from_millis(80), Instant::now());
        let taken = [(1, Delivery::Native), (2, Delivery::Fetched), (3, Delivery::Fetched)];
        let taken = taken.map(|(number, how)| Taken { number, read: Some((Some(how), 100, false)) });
        recorder.took_at_random(began, asking, taken.into_iter(), &RunSet::new(), false);
        let evicted = Absent {
            why: Absence::Evicted,
            at_ms: 7,
            wanted: String::new(),
            count: 1,
            set: RunSet::range(3, 3),
        };
        recorder.told(ScanNotes {
            absent: vec![evicted.clone()],
            store_rate: 0,
            store_rate_best: 0,
            peer_ns: 3,
            store_ns: 1,
        });
        let record = recorder.record(true);
        assert_eq!(record.spent(Part::Peer), 60_000_000);
        assert_eq!(record.spent(Part::Backing), 20_000_000);
        assert_eq!(record.spent_ns.iter().sum::<u64>(), record.wall_ns.max(80_000_000));
        assert_eq!((record.near_frames, record.far_frames), (1, 2));
        let reasons: Vec<_> = record.absent.iter().map(|absent| (absent.why, absent.set.clone())).collect();
        let never = (Absence::NeverHere, RunSet::range(2, 2));
        assert_eq!(reasons, [(Absence::Evicted, evicted.set), never], "each frame has one reason");
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
