//! One end of a lane: posts records to the other end's ring, takes those that came, sleeps and wakes.
//!
//! Invariants: a record is published whole; it is copied out of shared memory once and decoded from the copy; the
//! counters that the other end writes are believed only within what can be. The order of "publish, then look whether the
//! other end sleeps" here and "say that I sleep, then look whether something came" there (both with a full fence between)
//! is what makes no wake get lost.

use crate::shm::fault;
use crate::shm::region::{Region, sleep_on, wake};
use crate::shm::ring::{Consumer, Lie, Producer};
use crate::stream::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};
use zazen_wire::header::HEADER_BYTES;
use zazen_wire::patience::{Spin, Yielding};
use zazen_wire::shm::{LanePlaces, Record, SLOT_BYTES};

/// How an end waits: it is awake, …
const AWAKE: u32 = 0;
/// … sleeps on its line's word, …
const ON_FUTEX: u32 = 1;
/// … or on the socket.
const ON_SOCKET: u32 = 2;

const SLOT: u64 = SLOT_BYTES as u64;
/// Looks at the clock once in so many looks at the ring.
const LOOKS_PER_CLOCK: u32 = 32;
/// How often the CPU is given up in one wait: the other end may be the second in line.
const YIELDS: u32 = 2;
/// Sleeps within one wait that may end for nothing.
const SLEEPS_MAX: u32 = 64;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Daemon,
}

/// What the other end needs after a record was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Rouse {
    /// Nothing: it was awake, or has been woken.
    Nothing,
    /// A bell on the socket.
    Bell,
}

/// A record that came.
pub(crate) struct Taken {
    pub(crate) record: Record,
    pub(crate) header: [u8; HEADER_BYTES],
}

/// One end of a lane.
pub(crate) struct Port {
    pub(crate) region: Arc<Region>,
    pub(crate) places: LanePlaces,
    outgoing: Producer,
    outgoing_at: u64,
    outgoing_tail: u64,
    outgoing_head: u64,
    incoming: Consumer,
    incoming_at: u64,
    incoming_tail: u64,
    incoming_head: u64,
    my_line: u64,
    their_line: u64,
    end: End,
    spin: Spin,
    yielding: Yielding,
    /// The last post had to wake the other end: it needs longer than a spin.
    woke: bool,
}

impl Port {
    pub(crate) fn new(region: Arc<Region>, places: LanePlaces, end: End) -> Port {
        let requests = (places.requests(), places.requests_tail(), places.requests_head());
        let replies = (places.replies(), places.replies_tail(), places.replies_head());
        let lines = (places.client_line(), places.daemon_line());
        let (out, inn, lines) = match end {
            End::Client => (requests, replies, lines),
            End::Daemon => (replies, requests, (lines.1, lines.0)),
        };
        Port {
            region,
            places,
            outgoing: Producer::new(places.slots),
            outgoing_at: out.0,
            outgoing_tail: out.1,
            outgoing_head: out.2,
            incoming: Consumer::new(places.slots),
            incoming_at: inn.0,
            incoming_tail: inn.1,
            incoming_head: inn.2,
            my_line: lines.0,
            their_line: lines.1,
            end,
            spin: Spin::default(),
            yielding: Yielding::default(),
            woke: false,
        }
    }

    fn my_word(&self) -> &AtomicU32 {
        self.region.counter(self.my_line)
    }

    fn cpu_differs(&self) -> bool {
        let theirs = self.region.counter(self.their_line + 4).load(Ordering::Relaxed);
        theirs != this_cpu()
    }

    /// Says on which CPU this end runs, for the other's decision to spin.
    pub(crate) fn tell_cpu(&self) {
        let told = self.region.counter(self.my_line + 4);
        let now = this_cpu();
        // Written only when it changes: the other end reads this line with every record that it posts.
        if told.load(Ordering::Relaxed) != now {
            told.store(now, Ordering::Relaxed);
        }
    }

    /// Posts `record` with `header`, and `body` in the slots that follow; `record.slots` is set here. `Ok(None)`: there
    /// is no room now.
    pub(crate) fn post(
        &mut self,
        mut record: Record,
        header: &[u8; HEADER_BYTES],
        body: &[&[u8]],
    ) -> Result<Option<Rouse>, Fault> {
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let slots = 1 + bytes.div_ceil(SLOT_BYTES) as u32;
        if slots > self.outgoing.room_known() {
            let head = self.region.counter(self.outgoing_head).load(Ordering::Acquire);
            if slots > self.outgoing.room(head).map_err(lie)? {
                return Ok(None);
            }
        }
        record.slots = slots as u16;
        fault::point();
        let first = self.outgoing_at + u64::from(self.outgoing.index(0)) * SLOT;
        self.region.write(first, &record.encode(header));
        let ring_end = self.outgoing_at + u64::from(self.places.slots) * SLOT;
        let mut at = self.outgoing_at + u64::from(self.outgoing.index(1)) * SLOT;
        for part in body {
            let before_end = ((ring_end - at) as usize).min(part.len());
            self.region.write(at, &part[..before_end]);
            at += before_end as u64;
            if at == ring_end {
                at = self.outgoing_at;
            }
            if before_end < part.len() {
                self.region.write(at, &part[before_end..]);
                at += (part.len() - before_end) as u64;
            }
        }
        fault::point();
        let tail = self.outgoing.publish(slots);
        self.region.counter(self.outgoing_tail).store(tail, Ordering::Release);
        fault::point();
        Ok(Some(self.rouse()))
    }

    /// After something was published: wakes the other end if it sleeps.
    fn rouse(&mut self) -> Rouse {
        fence(Ordering::SeqCst);
        let word = self.region.counter(self.their_line);
        self.woke = word.load(Ordering::Relaxed) != AWAKE;
        if !self.woke {
            return Rouse::Nothing;
        }
        let slept = word.swap(AWAKE, Ordering::AcqRel);
        fault::point();
        match slept {
            ON_FUTEX => {
                wake(word);
                Rouse::Nothing
            }
            ON_SOCKET => Rouse::Bell,
            _ => {
                self.woke = false;
                Rouse::Nothing
            }
        }
    }

    /// Whether something came.
    pub(crate) fn is_ready(&mut self) -> Result<bool, Fault> {
        let tail = self.region.counter(self.incoming_tail).load(Ordering::Acquire);
        Ok(self.incoming.available(tail).map_err(lie)? > 0)
    }

    /// Takes the next record, its body (bytes of the slots that follow, to the end of the last) into `body`.
    pub(crate) fn take(&mut self, body: &mut Vec<u8>) -> Result<Option<Taken>, Fault> {
        let tail = self.region.counter(self.incoming_tail).load(Ordering::Acquire);
        let available = self.incoming.available(tail).map_err(lie)?;
        if available == 0 {
            return Ok(None);
        }
        let mut slot = [0; SLOT_BYTES];
        self.region.read(self.incoming_at + u64::from(self.incoming.index(0)) * SLOT, &mut slot);
        let decoded = Record::decode(&slot, self.places.slots);
        let (record, header) = decoded.map_err(|_| Fault::Broken("a record in its ring is malformed"))?;
        let slots = u32::from(record.slots);
        if slots > available {
            return Err(Fault::Broken("a record claims more slots than were published"));
        }
        body.clear();
        if slots > 1 {
            let bytes = (slots as usize - 1) * SLOT_BYTES;
            body.resize(bytes, 0);
            let first = self.incoming.index(1);
            let before_end = ((self.places.slots - first) as usize * SLOT_BYTES).min(bytes);
            self.region.read(self.incoming_at + u64::from(first) * SLOT, &mut body[..before_end]);
            self.region.read(self.incoming_at, &mut body[before_end..]);
        }
        fault::point();
        let head = self.incoming.take(slots);
        self.region.counter(self.incoming_head).store(head, Ordering::Release);
        Ok(Some(Taken { record, header }))
    }

    /// Waits until something came, spinning, then sleeping on the futex, at most `sleep_max` in all. False: nothing
    /// yet. `may_spin` is the process's own say.
    pub(crate) fn wait(&mut self, may_spin: bool, sleep_max: Duration) -> Result<bool, Fault> {
        if self.is_ready()? {
            return Ok(true);
        }
        let apart = self.cpu_differs();
        if !apart && self.yielding.may() && self.give_way()? {
            return Ok(true);
        }
        // On one CPU nobody spins.
        let start = (may_spin && apart).then(Instant::now);
        if let Some(start) = start {
            let budget = self.spin.budget(self.woke);
            if !budget.is_zero() && self.spin_for(start, budget)? {
                self.spin.hit();
                return Ok(true);
            }
        }
        let mut slept: Option<Instant> = None;
        let mut left = sleep_max;
        // A peer that scribbles over the word which this end sleeps on keeps it from sleeping; not for long.
        for _ in 0..SLEEPS_MAX {
            self.my_word().store(ON_FUTEX, Ordering::Relaxed);
            fault::point();
            fence(Ordering::SeqCst);
            let ready = self.is_ready();
            let in_vain = matches!(ready, Ok(false)) && !sleep_on(self.my_word(), ON_FUTEX, left);
            self.my_word().store(AWAKE, Ordering::Relaxed);
            if ready? || self.is_ready()? {
                if let Some(start) = start {
                    self.spin.missed(start.elapsed());
                }
                return Ok(true);
            }
            if in_vain && let Some(start) = start {
                self.spin.missed(start.elapsed());
            }
            if in_vain || (self.end == End::Client && self.is_closed()) {
                return Ok(false);
            }
            let since = *slept.get_or_insert_with(Instant::now);
            left = sleep_max.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Gives the CPU up to the other end, which runs on the same. True: something came meanwhile.
    fn give_way(&mut self) -> Result<bool, Fault> {
        let start = Instant::now();
        let mut ready = false;
        for _ in 0..YIELDS {
            std::thread::yield_now();
            ready = self.is_ready()?;
            if ready {
                break;
            }
        }
        self.yielding.learn(ready, start.elapsed());
        Ok(ready)
    }

    fn spin_for(&mut self, start: Instant, budget: Duration) -> Result<bool, Fault> {
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.is_ready()? {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= budget {
                return Ok(false);
            }
        }
    }

    /// Says that this end sleeps on the socket from now on. False: something has come, it does not.
    pub(crate) fn sleep_on_socket(&mut self) -> Result<bool, Fault> {
        self.my_word().store(ON_SOCKET, Ordering::Relaxed);
        fault::point();
        fence(Ordering::SeqCst);
        let ready = self.is_ready();
        if !matches!(ready, Ok(false)) {
            self.wake_up();
        }
        ready.map(|ready| !ready)
    }

    /// This end is awake again.
    pub(crate) fn wake_up(&self) {
        self.my_word().store(AWAKE, Ordering::Relaxed);
    }

    /// The daemon says that nothing will come of this lane any more; the socket has the reason.
    pub(crate) fn close(&self) {
        self.region.counter(self.places.daemon_line() + 8).store(1, Ordering::Release);
        let word = self.region.counter(self.their_line);
        if word.swap(AWAKE, Ordering::AcqRel) == ON_FUTEX {
            wake(word);
        }
    }

    /// Whether the daemon has closed the lane (the daemon's own word; a client may scribble over it at its own cost).
    pub(crate) fn is_closed(&self) -> bool {
        self.region.counter(self.places.daemon_line() + 8).load(Ordering::Acquire) != 0
    }
}

fn lie(_: Lie) -> Fault {
    Fault::Broken("a counter of its ring went where it can't be")
}

fn this_cpu() -> u32 {
    // SAFETY: takes nothing and only asks; -1 where the kernel can't say is as good a number as any.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.unsigned_abs()
}
