//! Reads frames in storage order, with read-ahead within a memory limit and several files in
//! flight, and checks each frame's checksum.
//!
//! A feeder thread fetches descriptors ahead of use. Reader threads read the files into pooled
//! buffers. The consumer takes frames as they become ready, and reads some itself if none is ready.

mod access;
mod any_reader;
mod apart;
mod buffer;
mod crowd;
mod early;
mod extent;
mod feed;
mod frame_file;
pub(crate) mod job;
mod ordered;
mod outcome;
mod pipeline;
mod places;
mod record;
mod resident;
mod turn;
mod window;

pub(crate) use access::{Access, jobs_of};
pub use any_reader::AnyReader;
pub(crate) use apart::read_all;
pub(crate) use buffer::Pool;
pub(crate) use early::Early;
pub(crate) use extent::SMALL;
pub(crate) use feed::Scan;
pub use frame_file::remove_frame_files;
pub(crate) use job::{Data, Job};
pub use ordered::OrderedReader;
pub(crate) use outcome::Got;
pub use places::{FrameLocation, PlaceReader};
pub(crate) use record::{Facts, Local, Recorder, Taken};

use access::LastFile;
use buffer::Slice;
use frame_file::{FrameFile, OwnFile};
use outcome::Outcome;
use pipeline::{Pipeline, Task};
use record::Waits;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zazen_core::{Error, Layout, Result, RunSet};
use zazen_env::fork::Mine;
use zazen_frames::messages::Delivery;

/// Files in flight if the kind of disk is not known. A flash device and a network file system are
/// fastest with several (measured: one reader gets a third of the device's rate, four to eight get
/// all of it).
const READERS_UNKNOWN: usize = 4;
/// More never helped.
const READERS_MAX: usize = 64;

/// How to read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The most bytes of frames that are read ahead and not yet taken. A single larger frame is
    /// still read, alone. Default 256 MiB.
    pub memory_max: u64,
    /// Files in flight; `None`: as the daemon advises for its disk.
    pub readers: Option<usize>,
    /// Check every frame against its checksum (default true).
    pub check: bool,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { memory_max: 256 << 20, readers: None, check: true }
    }
}

/// A frame in memory. Its buffer goes back to the reader's pool when the last clone is dropped.
/// Frames of up to 16 KiB share a buffer of up to 256 KiB with frames that were read together with
/// them. A caller that keeps a few of them for long should copy them.
#[derive(Clone)]
pub struct Frame {
    /// Its number.
    pub number: u64,
    /// How it came; `None`: straight from the backing store, without a daemon.
    pub delivery: Option<Delivery>,
    /// Its copy in the cache had wrong bytes, and it was read again.
    pub(crate) mended: bool,
    place: FrameFile,
    /// The file that [`Frame::path`] makes, if the frame has none of its own.
    own_file: OwnFile,
    /// The source of that file's name.
    layout: Option<Arc<Layout>>,
    buffer: Slice,
}

impl Frame {
    pub(crate) fn new(number: u64, got: Got, layout: Option<Arc<Layout>>) -> Frame {
        let (delivery, mended, place, buffer) = (got.delivery, got.mended, got.place, got.buffer);
        Frame { number, delivery, mended, place, own_file: OwnFile::default(), layout, buffer }
    }

    /// Absolute path of a file with exactly the frame's bytes: in the cache if cached, else on the
    /// backing store. `None` only if there is none and none can be made.
    ///
    /// A frame that is a part of a larger file ([`Frame::container`]), or whose file this user may
    /// not open, has no file until the first call. Then a file is made: a link to a copy in memory.
    /// It lives as long as the frame.
    pub fn path(&self) -> Option<&Path> {
        let own = || self.own_file.path(self.number, self.layout.as_deref(), self.bytes());
        self.place.own().or_else(own)
    }

    /// Whether the first call of [`Frame::path`] makes a file.
    pub fn path_is_to_be_made(&self) -> bool {
        self.place.own().is_none()
    }

    /// The larger file that the frame is a part of, and the frame's offset in bytes; `None` if the
    /// frame has a file of its own, or is in no file that this process may open.
    pub fn container(&self) -> Option<(&Path, u64)> {
        let larger = self.place.path.as_deref().filter(|_| !self.place.whole)?;
        Some((larger, self.place.offset))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("number", &self.number)
            .field("delivery", &self.delivery)
            .field("place", &self.place)
            .field("bytes", &self.bytes().len())
            .finish()
    }
}

/// Where frames came from, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// From the cache as natives.
    pub native: u64,
    /// From the cache as aliens that were there before.
    pub alien: u64,
    /// Read from the backing store, by the daemon or directly.
    pub backing_reads: u64,
    /// Bytes of all frames.
    pub bytes: u64,
    /// Bad checksums that were found and repaired.
    pub mended: u64,
}

/// An iterator over frames; dropping it stops the read-ahead.
///
/// An `Err` item names its frame. The iteration can continue after it.
///
/// It may move to another thread, but only one thread may use it at a time. Frames outlive it. In a
/// forked child, its next item is an error and the last item.
pub struct FrameReader {
    /// Its threads belong to this process. A forked child has none of them.
    mine: Mine,
    shared: Arc<Shared>,
    /// Outcomes that the consumer has received. They still count as read ahead.
    local: VecDeque<Outcome>,
    last: LastFile,
    stats: ReadStats,
    remaining: u64,
    /// What the consumer waited for the frames that it takes now, and what came of them, for the
    /// scan's record.
    taking: Taking,
    /// The scan's record ends with this reader.
    ends_record: bool,
    /// The pool's memory is for later readers, too.
    keeps_pool: bool,
}

/// Frames that the consumer received at once, as far as it has taken them. The local ones are only
/// counted: that costs next to nothing for each.
#[derive(Default)]
struct Taking {
    waits: Waits,
    local: Local,
    others: Vec<Taken>,
}

impl Taking {
    fn count(&mut self, outcome: &Outcome) {
        match &outcome.got {
            Ok(got) if got.is_local() => {
                self.local.frames += 1;
                self.local.bytes += got.buffer.len() as u64;
            }
            _ => self.others.push(Taken::of_outcome(outcome)),
        }
    }
}

struct Shared {
    pipeline: Pipeline,
    access: Access,
}

impl Shared {
    fn read(&self) {
        self.pipeline.run_reader(&self.access);
    }
}

fn spawn(shared: &Arc<Shared>, name: &str, body: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
    let shared = shared.clone();
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&shared));
    spawned.map(drop).map_err(|error| Error::io(format!("start thread {name}"), error))
}

impl FrameReader {
    /// Starts to read `set`: from `scan` if there is one, else from the backing store.
    pub(crate) fn start(
        access: Access,
        scan: Option<Scan>,
        set: RunSet,
        options: &ReadOptions,
        advised: Option<usize>,
    ) -> Result<FrameReader> {
        let reader = FrameReader::with_threads(access, set.len(), options, advised)?;
        let bytes_max = (options.memory_max / 4).max(1);
        spawn(&reader.shared, "zazen-feed", move |shared| {
            feed::run(&shared.pipeline, &shared.access, scan, &set, bytes_max);
        })?;
        Ok(reader)
    }

    /// Starts to read `jobs`.
    pub(crate) fn of_jobs(
        access: Access,
        jobs: Vec<Job>,
        options: &ReadOptions,
        advised: Option<usize>,
    ) -> Result<FrameReader> {
        let reader = FrameReader::with_threads(access, jobs.len() as u64, options, advised)?;
        reader.shared.pipeline.feed(jobs.into_iter().map(Task::Read));
        reader.shared.pipeline.fed();
        Ok(reader)
    }

    /// A reader with its threads, to which `remaining` frames will be fed.
    fn with_threads(
        access: Access,
        remaining: u64,
        options: &ReadOptions,
        advised: Option<usize>,
    ) -> Result<FrameReader> {
        let readers = options.readers.or(advised).unwrap_or(READERS_UNKNOWN).clamp(1, READERS_MAX);
        let shared = Arc::new(Shared { pipeline: Pipeline::new(options.memory_max, readers), access });
        let reader = FrameReader {
            mine: Mine::of_this_process(),
            shared,
            local: VecDeque::new(),
            last: None,
            stats: ReadStats::default(),
            remaining,
            taking: Taking::default(),
            ends_record: true,
            keeps_pool: false,
        };
        // The consumer reads too, so one thread less than there are frames is enough.
        let most = readers.min(usize::try_from(remaining.saturating_sub(1)).unwrap_or(readers));
        let first = most.min(reader.shared.pipeline.readers_at_first());
        for _ in 0..first {
            spawn(&reader.shared, "zazen-read", Shared::read)?;
        }
        let weak = Arc::downgrade(&reader.shared);
        reader.shared.pipeline.grow_by(Box::new(move || {
            let Some(shared) = weak.upgrade() else { return };
            for _ in first..most {
                if let Err(error) = spawn(&shared, "zazen-read", Shared::read) {
                    tracing::debug!("{error}; reading with fewer threads");
                    return;
                }
            }
        }));
        Ok(reader)
    }

    /// Where the frames taken so far came from.
    pub fn stats(&self) -> ReadStats {
        self.stats
    }

    /// Frames not yet taken.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
}

impl ReadStats {
    /// Both together.
    pub(crate) fn plus(self, other: ReadStats) -> ReadStats {
        ReadStats {
            native: self.native + other.native,
            alien: self.alien + other.alien,
            backing_reads: self.backing_reads + other.backing_reads,
            bytes: self.bytes + other.bytes,
            mended: self.mended + other.mended,
        }
    }

    pub(crate) fn count(&mut self, got: &Got) {
        match got.delivery {
            Some(Delivery::Native) => self.native += 1,
            Some(Delivery::Alien) => self.alien += 1,
            Some(Delivery::Failed) => {}
            Some(Delivery::Fetched | Delivery::ReadThrough | Delivery::Inline) | None => {
                self.backing_reads += 1
            }
        }
        self.bytes += got.buffer.len() as u64;
        self.mended += u64::from(got.mended);
    }
}

impl Iterator for FrameReader {
    type Item = std::result::Result<Frame, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.check() {
            // The error is reported once; then the iteration has ended.
            return (std::mem::take(&mut self.remaining) > 0).then_some(Err(error));
        }
        self.next_numbered().map(|(_, outcome)| outcome)
    }
}

impl FrameReader {
    /// The next frame with its number, which an error has too.
    pub(crate) fn next_numbered(&mut self) -> Option<(u64, std::result::Result<Frame, Error>)> {
        if self.local.is_empty() && !self.take_ready() {
            self.end(true);
            return None;
        }
        self.take_one()
    }

    /// The next frame, if it is ready. Does not wait and does not read. `None` does not mean that
    /// no frame will come.
    pub fn next_ready(&mut self) -> Option<std::result::Result<Frame, Error>> {
        match self.mine.is_mine() {
            true => self.take_one().map(|(_, outcome)| outcome),
            false => None,
        }
    }

    fn take_one(&mut self) -> Option<(u64, std::result::Result<Frame, Error>)> {
        let outcome = self.local.pop_front()?;
        self.shared.pipeline.taken(&outcome);
        if self.shared.access.record.is_some() {
            self.taking.count(&outcome);
        }
        self.remaining = self.remaining.saturating_sub(1);
        let frame = outcome.got.map(|got| {
            self.stats.count(&got);
            Frame::new(outcome.number, got, self.shared.access.layout())
        });
        Some((outcome.number, frame))
    }

    /// Its end is not the end of its pool, which other readers use, too.
    pub(crate) fn keeping_pool(mut self) -> FrameReader {
        self.keeps_pool = true;
        self
    }

    /// Its end is not the end of the scan's record.
    pub(crate) fn into_window(mut self) -> FrameReader {
        self.ends_record = false;
        self
    }
}

impl FrameReader {
    /// Waits for frames and takes those that are ready; false if all were taken.
    fn take_ready(&mut self) -> bool {
        self.tell_record();
        let Shared { pipeline, access } = &*self.shared;
        pipeline.next(access, &mut self.last, &mut self.local, &mut self.taking.waits)
    }

    /// Tells the scan's record what the consumer has taken since it was told last.
    fn tell_record(&mut self) {
        if let Some(record) = &self.shared.access.record {
            let Taking { waits, local, others } = std::mem::take(&mut self.taking);
            record.took(waits, local, others);
        }
    }

    /// The scan has ended: its record is kept.
    fn end(&mut self, whole: bool) {
        self.tell_record();
        if let Some(record) = self.shared.access.record.as_ref().filter(|_| self.ends_record) {
            record.finish(self.shared.access.daemon_now(), whole);
        }
    }

    fn check(&self) -> Result<()> {
        self.mine.check("this iteration over frames", "begin one of this process's own")
    }
}

impl Drop for FrameReader {
    fn drop(&mut self) {
        if !self.mine.is_mine() {
            // Threads that do not exist in this process may hold its locks.
            self.local.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.access.stop.store(true, Ordering::Relaxed);
        self.shared.pipeline.stop();
        if !self.keeps_pool {
            self.shared.access.pool.close();
        }
        self.end(self.remaining == 0);
    }
}
