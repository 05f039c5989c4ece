//! Random access: frames by number, in any order, in one call of the daemon.
//!
//! Invariants: every number that was asked for has one result, in the order asked. The daemon is
//! asked for each number once; what it leaves out is asked for again, and what it cannot give
//! because it stops is read from the backing store.

use super::{Dataset, Local};
use crate::cluster::Batch;
use crate::read::{
    Access, Frame, FrameReader, Got, Job, Pool, ReadOptions, Recorder, SMALL, Taken, jobs_of, read_all,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, FrameNo, Result, RunSet};
use zazen_frames::messages::{AskPlaces, Delivery};

/// The most frames of one call. For more there is [`Dataset::frames`], whose memory is bounded.
pub const READ_MANY_MAX: usize = 1 << 20;
/// The most bytes of frames in one answer of the daemon.
const ANSWER_BYTES: u64 = 1 << 30;
/// Memory that is kept for the next call.
const KEPT_BYTES: u64 = 8 << 20;
/// The same for calls of together larger frames, once there was one. Those who read ahead in blocks
/// hold two of up to 8 MiB (`zazen.decoders`); fresh memory for each block would cost more than the
/// copy into it.
const KEPT_LARGE_BYTES: u64 = 16 << 20;
/// Frames of together more bytes than this are read by several threads.
const ALONE_BYTES: u64 = 1 << 20;
/// More frames than this are read by several threads if there is no daemon.
const ALONE_DIRECT: u64 = 8;

type Outcome = std::result::Result<Frame, Error>;

impl Dataset {
    /// Reads the frames `numbers`, in this order, each as often as it is asked for; bytes checked
    /// against their checksums. Small frames that are cached cost one call of the daemon together.
    ///
    /// Each number has its own result. `TooLarge` if there are more than [`READ_MANY_MAX`] numbers,
    /// or a number is beyond the limit of frame numbers. Other errors mean that nothing could be
    /// read.
    pub fn read_many(&mut self, numbers: &[u64]) -> Result<Vec<Outcome>> {
        if numbers.len() > READ_MANY_MAX {
            let text = format!(
                "{} frames are asked for at once, the limit is {READ_MANY_MAX}; \
                 ask in parts, or iterate over frames()",
                numbers.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        numbers.iter().try_for_each(|number| FrameNo::new(*number).map(drop))?;
        let began = Instant::now();
        let (mut found, mut asking) = (Found::new(numbers), Duration::ZERO);
        self.read_cached(&mut found, &mut asking)?;
        let direct = if found.left > 0 { found.missing() } else { RunSet::new() };
        if found.left > 0 {
            self.read_rest(&mut found)?;
        }
        self.note(began, asking, found.taken(), &direct);
        Ok(found.in_order(numbers))
    }

    /// Adds a call to the record of this dataset's random access, for `zazen explain`.
    fn note(
        &mut self,
        began: Instant,
        asking: Duration,
        taken: impl Iterator<Item = Taken>,
        direct: &RunSet,
    ) {
        if self.reads.is_none() {
            self.reads = Some(Recorder::begin_random(self.facts(None), began));
        }
        if let Some(Some(reads)) = &self.reads {
            reads.took_at_random(began, asking, taken, direct, self.lost.is_some());
        }
    }

    /// Reads what the daemon gives; leaves the rest if it stops. `asking`: how long it was waited
    /// for.
    fn read_cached(&mut self, found: &mut Found, asking: &mut Duration) -> Result<()> {
        while found.left > 0 {
            let set = found.missing();
            let began = Instant::now();
            let jobs = self.with_daemon(|local| ask(local, &set));
            *asking += began.elapsed();
            let jobs = jobs?;
            let Some((jobs, is_stopping)) = jobs else { return Ok(()) };
            let mut good = Vec::with_capacity(jobs.len());
            let access = self.near()?;
            for (number, job) in jobs {
                match job {
                    Ok(job) => good.push(job),
                    Err(error) => found.put(number, Err(error)),
                }
            }
            self.read_jobs(&access, good, found)?;
            if is_stopping {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads `jobs`: small ones on this thread, large ones by several.
    fn read_jobs(&mut self, access: &Arc<Access>, jobs: Vec<Job>, found: &mut Found) -> Result<()> {
        let bytes: u64 = jobs.iter().map(|job| job.length).fold(0, u64::saturating_add);
        let has_large = jobs.len() > 1 && bytes > ALONE_BYTES && jobs.iter().any(|job| job.length > SMALL);
        if has_large {
            let options = ReadOptions::default();
            let advised = self.advised();
            let pool = self.large_pool();
            let access = self.access(pool, true)?;
            found.put_all(FrameReader::of_jobs(access, jobs, &options, advised)?.keeping_pool());
            return Ok(());
        }
        let layout = access.layout();
        read_all(access, jobs, &mut |number, got: Result<Got>| {
            found.put(number, got.map(|got| Frame::new(number, got, layout.clone())));
        });
        Ok(())
    }

    /// Reads what is left from the backing store.
    fn read_rest(&mut self, found: &mut Found) -> Result<()> {
        if found.left > ALONE_DIRECT {
            let pool = self.large_pool();
            let access = self.access(pool, true)?;
            let missing = found.missing();
            let reader = FrameReader::start(access, None, missing, &ReadOptions::default(), None)?;
            found.put_all(reader.keeping_pool());
            return Ok(());
        }
        let access = self.near()?;
        let mut last = None;
        for number in found.missing().iter() {
            let got = access.open_direct(number, &mut last).and_then(|job| {
                let stopped =
                    || Error::new(ErrorKind::ShuttingDown, format!("frame {number}: the read was stopped"));
                access.read(job, &|| ()).unwrap_or_else(|| Err(stopped()))
            });
            found.put(number, got.map(|got| Frame::new(number, got, access.layout())));
        }
        Ok(())
    }

    /// Reads frame `number` from the place that the daemon gave ahead, if there is one and its copy
    /// still stands for its source.
    pub(super) fn read_placed(&mut self, number: u64) -> Option<Frame> {
        self.local.as_ref()?;
        let began = Instant::now();
        let job = self.ahead.job(number, began)?;
        let access = self.near().ok()?;
        let got = match access.read(job, &|| ())? {
            Ok(got) => got,
            Err(error) => {
                tracing::debug!("{error}; asking the daemon");
                self.ahead.forget(number);
                return None;
            }
        };
        let bytes = got.buffer.bytes().len() as u64;
        if got.mended {
            self.ahead.forget(number);
        } else {
            self.ahead.used(got.delivery, bytes);
        }
        let taken = Taken { number, read: Some((got.delivery, bytes, got.mended)) };
        self.note(began, Duration::ZERO, std::iter::once(taken), &RunSet::new());
        Some(Frame::new(number, got, access.layout()))
    }

    /// The daemon was asked for `frame` alone. Asks for places near it, if that is worth it now.
    pub(super) fn look_ahead(&mut self, frame: &Frame) {
        let is_cached = matches!(frame.delivery, Some(Delivery::Native | Delivery::Alien)) && !frame.mended;
        if self.local.is_none() || !is_cached || !self.ahead.read_alone(frame.bytes().len()) {
            return;
        }
        let ask = self.ahead.question(frame.number);
        match self.with_daemon(|local| local.remote.places(&AskPlaces { handle: local.info.handle, ..ask })) {
            Ok(Some(given)) => self.ahead.take(frame.number, given),
            Ok(None) => {}
            Err(error) => self.ahead.no_places(&error),
        }
    }

    /// The memory that calls of several large frames share.
    fn large_pool(&mut self) -> Arc<Pool> {
        self.large.get_or_insert_with(|| Pool::new(KEPT_LARGE_BYTES)).clone()
    }

    /// What calls of random access share: memory, and the way to the daemon and the backing store.
    fn near(&mut self) -> Result<Arc<Access>> {
        if let Some(near) = self.near.as_ref().filter(|near| near.has_daemon() == self.has_daemon()) {
            return Ok(near.clone());
        }
        let near = Arc::new(self.access(Pool::new(KEPT_BYTES), true)?);
        self.near = Some(near.clone());
        Ok(near)
    }
}

type Jobs = (Vec<(u64, Result<Job>)>, bool);

/// Asks the daemon for `set`: the frames of its answer, and whether it is stopping. Frames that
/// were not asked for, or came before, are dropped.
fn ask(local: &mut Local, set: &RunSet) -> Result<Jobs> {
    let along = local.along.take().map(|along| along.good_of(set));
    if let Some(jobs) = along.filter(|jobs| !jobs.is_empty()) {
        return Ok((jobs, false));
    }
    let batch: Batch = local.remote.read_many(local.info.handle, set.clone(), ANSWER_BYTES)?;
    let mut seen = RunSet::new();
    let mut is_stopping = false;
    let mut jobs = Vec::with_capacity(batch.entries.len());
    for (number, job) in jobs_of(batch) {
        match job {
            // It can still be read elsewhere.
            Err(error) if error.kind() == ErrorKind::ShuttingDown => is_stopping = true,
            _ if !set.contains(number) || !seen.insert(number) => {}
            job => jobs.push((number, job)),
        }
    }
    match jobs.is_empty() && !is_stopping {
        // It would be asked for ever.
        true => {
            let why = format!("the daemon answered none of the {} frames it was asked for", set.len());
            Err(Error::new(ErrorKind::Protocol, why))
        }
        false => Ok((jobs, is_stopping)),
    }
}

/// The results so far, by number.
struct Found {
    /// Ascending, each once.
    numbers: Vec<u64>,
    outcomes: Vec<Option<Outcome>>,
    left: u64,
}

impl Found {
    fn new(asked: &[u64]) -> Found {
        let mut numbers = asked.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let left = numbers.len() as u64;
        let outcomes = numbers.iter().map(|_| None).collect();
        Found { numbers, outcomes, left }
    }

    fn missing(&self) -> RunSet {
        let pairs = self.numbers.iter().zip(&self.outcomes);
        RunSet::from_ascending(pairs.filter(|(_, outcome)| outcome.is_none()).map(|(number, _)| *number))
    }

    /// Keeps the first result of a number that was asked for.
    fn put(&mut self, number: u64, outcome: Outcome) {
        let Ok(at) = self.numbers.binary_search(&number) else { return };
        if self.outcomes[at].is_none() {
            self.outcomes[at] = Some(outcome);
            self.left -= 1;
        }
    }

    fn put_all(&mut self, mut reader: FrameReader) {
        while let Some((number, outcome)) = reader.next_numbered() {
            self.put(number, outcome);
        }
    }

    /// What came of each number, for the record.
    fn taken(&self) -> impl Iterator<Item = Taken> {
        self.numbers.iter().zip(&self.outcomes).map(|(number, outcome)| {
            let frame = outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
            let read = frame.map(|frame| (frame.delivery, frame.bytes().len() as u64, frame.mended));
            Taken { number: *number, read }
        })
    }

    fn in_order(mut self, asked: &[u64]) -> Vec<Outcome> {
        let is_once = asked.len() == self.numbers.len();
        let mut outcomes = Vec::with_capacity(asked.len());
        for number in asked {
            let slot = self.numbers.binary_search(number).ok().map(|at| &mut self.outcomes[at]);
            outcomes.push(match slot {
                Some(slot) if is_once => slot.take().unwrap_or_else(|| Err(unread(*number))),
                Some(Some(Ok(frame))) => Ok(frame.clone()),
                Some(Some(Err(error))) => Err(Error::new(error.kind(), error.to_string())),
                Some(None) | None => Err(unread(*number)),
            });
        }
        outcomes
    }
}

fn unread(number: u64) -> Error {
    Error::new(ErrorKind::Io, format!("frame {number}: was not read; ask again"))
}
