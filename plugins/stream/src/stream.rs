//! One stream: its ring and the ring's bytes, the ranks that wait for blocks, the sums under way.
//!
//! Invariants: the ring's lock is held for bookkeeping only, never while bytes are copied, zeroed,
//! summed, sent or waited for. Bytes of a packet are written between `arrive` and `stored`; bytes
//! of a block are read or zeroed between `take` and `returned`. The ring makes sure that these
//! never overlap.

use crate::config::Config;
use crate::integrate::{self, Accepted, Element, Groups, Key, ResultCounters, Whole};
use crate::lock::lock;
use crate::memory::{Landing, Pages};
use crate::packet::Piece;
use crate::receivers::Receivers;
use crate::ring::{Arrival, Ring, Take};
use crate::store::{LeavingSum, Store};
use crate::tally::Tally;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread sleeps before it checks whether its caller is still there.
const PATIENCE: Duration = Duration::from_millis(50);
/// Sums are made piece by piece, so that both pieces stay in the cache.
const SUM_BYTES: usize = 64 << 10;
/// Groups that have begun, of all parts, at most.
const GROUPS_MAX: usize = 4096;
/// Parts, at most.
const PARTS_MAX: u32 = 65_536;

/// What a rank gets.
pub(crate) enum Scattered {
    /// A block; [`Stream::returned`] must follow.
    Block {
        block: u64,
        slot: u32,
        missing: u32,
    },
    /// It was dropped.
    Gap {
        block: u64,
    },
    End,
}

type Sum = Arc<Mutex<Option<Landing>>>;

/// See the module.
pub(crate) struct Stream {
    pub(crate) config: Config,
    began: Instant,
    ring: Mutex<Ring>,
    /// Blocks became ready, ranks came or went, the end is known.
    news: Condvar,
    /// Room came.
    room: Condvar,
    memory: Pages,
    groups: Mutex<Groups>,
    sums: Mutex<HashMap<Key, Sum>>,
    pub(crate) store: Store,
    pub(crate) receivers: Receivers,
    pub(crate) tally: Tally,
    is_shut: AtomicBool,
}

impl Stream {
    /// A stream that receives nothing yet. The config is complete.
    pub(crate) fn new(config: Config) -> Result<Arc<Stream>, c_int> {
        let bytes = config.slot_bytes().checked_mul(u64::from(config.slots)).ok_or(libc::ENOMEM)?;
        let memory = Pages::map(usize::try_from(bytes).map_err(|_| libc::ENOMEM)?).ok_or(libc::ENOMEM)?;
        Ok(Arc::new(Stream {
            began: Instant::now(),
            ring: Mutex::new(Ring::new(config.shape()?)),
            news: Condvar::new(),
            room: Condvar::new(),
            memory,
            groups: Mutex::new(Groups::new(config.integrate, config.groups_open)),
            sums: Mutex::new(HashMap::new()),
            store: Store::start(),
            receivers: Receivers::default(),
            tally: Tally::default(),
            is_shut: AtomicBool::new(false),
            config,
        }))
    }

    /// Nanoseconds since the stream began.
    pub(crate) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    /// Puts packets where they belong. Waits for room if that is the policy, until the stream is
    /// shut.
    pub(crate) fn take_in(&self, pieces: &[Piece<'_>]) {
        let mut places = Vec::with_capacity(pieces.len());
        let mut rest = pieces;
        while !rest.is_empty() {
            places.clear();
            let news_before = {
                let mut ring = lock(&self.ring);
                let (now_ns, news_before) = (self.now_ns(), ring.news());
                while places.len() < rest.len() {
                    let piece = &rest[places.len()];
                    match ring.arrive(piece.station, piece.packet, now_ns) {
                        Arrival::Full => break,
                        other => places.push(other),
                    }
                }
                if places.is_empty() && !self.is_shut() {
                    drop(self.room.wait_timeout(ring, PATIENCE));
                    continue;
                }
                news_before
            };
            if self.is_shut() {
                return;
            }
            let (now, later) = rest.split_at(places.len());
            self.copy_in(now, &places);
            rest = later;
            let mut ring = lock(&self.ring);
            for place in &places {
                if let Arrival::Store { slot, .. } = place {
                    ring.stored(*slot, 1);
                }
            }
            if ring.news() != news_before {
                self.news.notify_all();
            }
        }
    }

    /// One more receiver that says by [`Stream::drained`] how far it is.
    pub(crate) fn add_receiver(&self) -> usize {
        lock(&self.ring).add_receiver()
    }

    /// The receiver's socket is empty: all that came before `then_ns` was taken in.
    pub(crate) fn drained(&self, receiver: usize, then_ns: u64) {
        let mut ring = lock(&self.ring);
        let news_before = ring.news();
        ring.drained(receiver, then_ns);
        if ring.news() != news_before {
            self.news.notify_all();
        }
    }

    fn copy_in(&self, pieces: &[Piece<'_>], places: &[Arrival]) {
        let packet_bytes = self.config.packet_bytes() as usize;
        for (piece, place) in pieces.iter().zip(places) {
            let &Arrival::Store { slot, index } = place else { continue };
            assert_eq!(piece.samples.len(), packet_bytes);
            // SAFETY: the ring gave this place to this packet alone, until `stored`; it is
            // packet_bytes long.
            unsafe {
                let to = self.place(slot, index);
                std::ptr::copy_nonoverlapping(piece.samples.as_ptr(), to, packet_bytes);
            }
        }
    }

    fn place(&self, slot: u32, index: u32) -> *mut u8 {
        let packet = u64::from(index) * self.config.packet_bytes();
        self.memory.at((u64::from(slot) * self.config.slot_bytes() + packet) as usize)
    }

    /// The buffer, for others to look at.
    pub(crate) fn memory(&self) -> std::io::Result<OwnedFd> {
        self.memory.share()
    }

    /// Where the block in this slot begins, from the buffer's beginning.
    pub(crate) fn block_offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.config.slot_bytes()
    }

    /// Where the block in this slot begins.
    pub(crate) fn block_at(&self, slot: u32) -> *const u8 {
        self.place(slot, 0).cast_const()
    }

    /// The next block for this rank. Waits; EAGAIN after the timeout, EINTR when `cancelled` says
    /// so.
    pub(crate) fn scatter(
        &self,
        rank: u32,
        timeout: Option<Duration>,
        cancelled: &dyn Fn() -> bool,
        present: &mut [u8],
    ) -> Result<Scattered, c_int> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut ring = lock(&self.ring);
        loop {
            let now_ns = self.now_ns();
            let wake_ns = match ring.take(rank, now_ns) {
                Take::Block { block, slot } => {
                    let bits = ring.present(slot).clone();
                    drop(ring);
                    bits.write_to(present);
                    let missing = self.blank(slot, &bits);
                    return Ok(Scattered::Block { block, slot, missing });
                }
                Take::Gap { block } => return Ok(Scattered::Gap { block }),
                Take::End => return Ok(Scattered::End),
                Take::Wait { until_ns } => until_ns,
            };
            let mut sleep = PATIENCE;
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(libc::EAGAIN);
                }
                sleep = sleep.min(left);
            }
            if let Some(wake_ns) = wake_ns {
                sleep = sleep.min(Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
            }
            let woken = self.news.wait_timeout(ring, sleep.max(Duration::from_micros(50)));
            ring = woken.unwrap_or_else(PoisonError::into_inner).0;
            if cancelled() {
                return Err(libc::EINTR);
            }
        }
    }

    /// Zeros where nothing came. How many packets that is.
    fn blank(&self, slot: u32, bits: &crate::bits::Bits) -> u32 {
        let packets = self.config.stations * self.config.block_packets;
        let packet_bytes = self.config.packet_bytes() as usize;
        if bits.count(0, packets as usize) == packets as usize {
            return 0;
        }
        let mut missing = 0;
        for index in (0..packets).filter(|index| !bits.get(*index as usize)) {
            missing += 1;
            // SAFETY: the block is handed out to this thread alone, and nothing is stored in it any
            // more.
            unsafe { self.place(slot, index).write_bytes(0, packet_bytes) };
        }
        missing
    }

    /// The block is not read any more.
    pub(crate) fn returned(&self, block: u64, was_received: bool) {
        lock(&self.ring).returned(block, was_received);
        if was_received {
            Tally::add(&self.tally.bytes_scattered, self.config.block_bytes());
        }
        self.room.notify_all();
        self.news.notify_all();
    }

    /// Ranks come and go.
    pub(crate) fn join(&self, rank: u32) {
        lock(&self.ring).join(rank);
        self.news.notify_all();
    }

    pub(crate) fn leave(&self, rank: u32) {
        lock(&self.ring).leave(rank);
        self.news.notify_all();
    }

    /// No more packets are expected.
    pub(crate) fn finish(&self) {
        let now_ns = self.now_ns();
        lock(&self.ring).finish(now_ns);
        self.news.notify_all();
    }

    pub(crate) fn station_ended(&self, station: u32, packet_end: u64) {
        let now_ns = self.now_ns();
        lock(&self.ring).station_ended(station, packet_end, now_ns);
        self.news.notify_all();
    }

    /// Adds a result to its group's sum. Whether it was added.
    pub(crate) fn gather(
        &self,
        block: u64,
        part: u32,
        result: Option<(Landing, u64)>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<bool, c_int> {
        if let Some((landing, _)) = &result {
            Tally::add(&self.tally.bytes_gathered, landing.bytes().len() as u64);
        }
        let sizes = result.as_ref().map(|(landing, weight)| (landing.bytes().len() as u64, *weight));
        let mut leaving = Vec::new();
        let accepted = self.accept(block, part, sizes, &mut leaving);
        let outcome = match (accepted, result) {
            (Ok(Accepted::Add(key)), Some((landing, _))) => {
                self.sum(key, landing);
                leaving.extend(lock(&self.groups).added(key));
                Ok(true)
            }
            (accepted, result) => {
                if let Some((landing, _)) = result {
                    landing.recycle();
                }
                match accepted {
                    Err(error) => Err(error),
                    Ok(Accepted::Unfit) => Err(libc::EINVAL),
                    Ok(other) => Ok(other == Accepted::Skipped),
                }
            }
        };
        self.emit(leaving, cancelled);
        outcome
    }

    fn accept(
        &self,
        block: u64,
        part: u32,
        sizes: Option<(u64, u64)>,
        leaving: &mut Vec<Whole>,
    ) -> Result<Accepted, c_int> {
        let (first, ..) = lock(&self.ring).window();
        let mut groups = lock(&self.groups);
        let element = self.element().bytes() as u64;
        let is_whole = sizes.is_none_or(|(bytes, _)| bytes > 0 && bytes.is_multiple_of(element));
        if block < first || part >= PARTS_MAX || !is_whole {
            groups.refuse();
            return Err(libc::EINVAL);
        }
        if groups.open() >= GROUPS_MAX {
            groups.refuse();
            return Err(libc::ENOMEM);
        }
        Ok(groups.accept(block - first, part, sizes, leaving))
    }

    fn element(&self) -> Element {
        Element::from_number(self.config.element).unwrap_or(Element::F32)
    }

    fn sum(&self, key: Key, landing: Landing) {
        let sum = lock(&self.sums).entry(key).or_default().clone();
        let mut sum = lock(&sum);
        let Some(sum) = sum.as_mut() else {
            *sum = Some(landing);
            return;
        };
        let pieces = sum.bytes_mut().chunks_mut(SUM_BYTES).zip(landing.bytes().chunks(SUM_BYTES));
        for (sum, more) in pieces {
            integrate::add(self.element(), sum, more);
        }
        landing.recycle();
    }

    fn emit(&self, leaving: Vec<Whole>, cancelled: &dyn Fn() -> bool) {
        for whole in leaving {
            let sum = lock(&self.sums).remove(&whole.key);
            let sum = sum.and_then(|sum| lock(&sum).take());
            let (first, ..) = lock(&self.ring).window();
            self.store.put(LeavingSum { whole, config: self.config, first, sum }, cancelled);
        }
    }

    /// Sums under way leave; returns when storage has all. EIO if it failed.
    pub(crate) fn flush(&self, cancelled: &dyn Fn() -> bool) -> Result<(), c_int> {
        let leaving = lock(&self.groups).retire_all();
        self.emit(leaving, cancelled);
        self.store.wait(cancelled)
    }

    /// What became of results, and the groups that have begun.
    pub(crate) fn results(&self) -> (ResultCounters, usize) {
        let groups = lock(&self.groups);
        (groups.counters(), groups.open())
    }

    /// Looks at the ring.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Ring) -> T) -> T {
        look(&lock(&self.ring))
    }

    /// The end: nothing is received or dealt any more, what is summed leaves, threads have ended.
    pub(crate) fn shut(&self) {
        if self.is_shut.swap(true, Ordering::AcqRel) {
            return;
        }
        lock(&self.ring).close();
        self.news.notify_all();
        self.room.notify_all();
        self.receivers.join();
        let leaving = lock(&self.groups).retire_all();
        // Do not wait for room: `stop` gives hanging storage some seconds.
        self.emit(leaving, &|| true);
        self.store.stop();
    }
}
