//! One end of a lane: posts records to the other end's ring, takes those that came, sleeps and
//! wakes.
//!
//! Invariants: a record is published whole. It is copied out of shared memory once, and decoded
//! from the copy. A counter that the other end writes is believed only within what an honest end
//! could write.
//!
//! No wake is lost, because each end orders its steps and puts a full fence between them. An end
//! that posts publishes the record, then looks whether the other end sleeps. An end that goes to
//! sleep says so, then looks whether a record came.

use crate::parts::Source;
use crate::patience::{Spin, Yielding};
use crate::ring::{Consumer, Producer};
use crate::view::View;
use crate::{Broken, System};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;
use zazen_wire::header::HEADER_BYTES;
use zazen_wire::shm::{LanePlaces, Record, SLOT_BYTES};

// How an end waits, as the other end reads it.
const AWAKE: u32 = 0;
/// It sleeps on its line's word.
const ON_FUTEX: u32 = 1;
/// It sleeps on the socket.
const ON_SOCKET: u32 = 2;

const SLOT: u64 = SLOT_BYTES as u64;
/// Looks at the ring between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;
/// How often one wait yields the CPU: the other end may be the second in line.
const YIELDS: u32 = 2;
/// Sleeps within one wait that may end without a record.
const SLEEPS_MAX: u32 = 64;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that asks.
    Client,
    /// The end that answers, and trusts nothing in the region.
    Daemon,
}

/// What the other end still needs after a record was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Rouse {
    /// Nothing: it was awake, or has been woken.
    Nothing,
    /// A bell on the socket.
    Bell,
}

/// A record that came.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// What it says.
    pub record: Record,
    /// The call header in its first slot: zeros unless it is a message.
    pub header: [u8; HEADER_BYTES],
    /// Bytes of its body: whole slots.
    pub body_bytes: usize,
}

/// A word of a lane's head: its place is checked once, when the port is made.
#[derive(Clone, Copy, Debug)]
struct Word(*const AtomicU32);

impl Word {
    fn of(view: View, at: u64) -> Word {
        Word(std::ptr::from_ref(view.counter(at)))
    }

    #[inline]
    fn get(&self) -> &AtomicU32 {
        // SAFETY: `View::counter` gave it, and the port's maker keeps the region mapped.
        unsafe { &*self.0 }
    }
}

/// One end of a lane.
pub struct Port<S> {
    system: S,
    view: View,
    places: LanePlaces,
    outgoing: Producer,
    outgoing_at: u64,
    outgoing_tail: Word,
    outgoing_head: Word,
    incoming: Consumer,
    incoming_at: u64,
    incoming_tail: Word,
    incoming_head: Word,
    /// How this end waits, and its CPU.
    my_word: Word,
    my_cpu: Word,
    their_word: Word,
    their_cpu: Word,
    /// 1 once the daemon has closed the lane.
    closed: Word,
    end: End,
    spin: Spin,
    yielding: Yielding,
    /// The last post had to wake the other end: it needs longer than a spin.
    woke: bool,
}

// SAFETY: the words are atomics of the region, which any thread may access.
unsafe impl<S: Send> Send for Port<S> {}

impl<S: System> Port<S> {
    /// The `end` of the lane at `places`; panics if the lane is not within `view`, which
    /// [`zazen_wire::shm::Offer::check`] or [`crate::Geometry`] rules out.
    ///
    /// # Safety
    ///
    /// The region stays mapped as long as the port lives.
    pub unsafe fn new(view: View, places: LanePlaces, end: End, system: S) -> Port<S> {
        let _whole = view.pointer(places.span());
        let requests = (places.requests(), places.requests_tail(), places.requests_head());
        let replies = (places.replies(), places.replies_tail(), places.replies_head());
        let lines = (places.client_line(), places.daemon_line());
        let (out, inn, lines) = match end {
            End::Client => (requests, replies, lines),
            End::Daemon => (replies, requests, (lines.1, lines.0)),
        };
        let word = |at| Word::of(view, at);
        Port {
            system,
            view,
            places,
            outgoing: Producer::new(places.slots),
            outgoing_at: out.0,
            outgoing_tail: word(out.1),
            outgoing_head: word(out.2),
            incoming: Consumer::new(places.slots),
            incoming_at: inn.0,
            incoming_tail: word(inn.1),
            incoming_head: word(inn.2),
            my_word: word(lines.0),
            my_cpu: word(lines.0 + 4),
            their_word: word(lines.1),
            their_cpu: word(lines.1 + 4),
            closed: word(places.daemon_line() + 8),
            end,
            spin: Spin::default(),
            yielding: Yielding::default(),
            woke: false,
        }
    }

    /// The region.
    #[inline]
    pub fn view(&self) -> View {
        self.view
    }

    /// Where the lane's parts are.
    #[inline]
    pub fn places(&self) -> LanePlaces {
        self.places
    }

    /// What this end waits and wakes with.
    #[inline]
    pub fn system(&self) -> &S {
        &self.system
    }

    #[inline]
    fn cpu_differs(&self) -> bool {
        self.their_cpu.get().load(Ordering::Relaxed) != self.system.cpu()
    }

    /// Tells the other end on which CPU this end runs. The other end decides by it whether to spin.
    #[inline]
    pub fn tell_cpu(&self) {
        let told = self.my_cpu.get();
        let now = self.system.cpu();
        // Written only when it changes: the other end reads this line with every record that it
        // posts.
        if told.load(Ordering::Relaxed) != now {
            told.store(now, Ordering::Relaxed);
        }
    }

    /// Posts `record` with `header`, and `body` in the slots that follow; `record.slots` is set
    /// here. `Ok(None)`: there is no room now.
    #[inline]
    pub fn post<'a>(
        &mut self,
        mut record: Record,
        header: &[u8; HEADER_BYTES],
        body: impl Iterator<Item = Source<'a>> + Clone,
    ) -> Result<Option<Rouse>, Broken> {
        let bytes: usize = body.clone().map(|part| part.len()).sum();
        let slots = 1 + bytes.div_ceil(SLOT_BYTES) as u32;
        if slots > self.outgoing.room_known() {
            let head = self.outgoing_head.get().load(Ordering::Acquire);
            if slots > self.outgoing.room(head)? {
                return Ok(None);
            }
        }
        record.slots = slots as u16;
        self.system.fault_point();
        let first = self.outgoing_at + u64::from(self.outgoing.index(0)) * SLOT;
        self.view.write(first, Source::of(&record.encode(header)));
        let ring_end = self.outgoing_at + u64::from(self.places.slots) * SLOT;
        let mut at = self.outgoing_at + u64::from(self.outgoing.index(1)) * SLOT;
        for part in body {
            let before_end = ((ring_end - at) as usize).min(part.len());
            self.view.write(at, part.part(0, before_end));
            at += before_end as u64;
            if at == ring_end {
                at = self.outgoing_at;
            }
            if before_end < part.len() {
                self.view.write(at, part.part(before_end, usize::MAX));
                at += (part.len() - before_end) as u64;
            }
        }
        self.system.fault_point();
        let tail = self.outgoing.publish(slots);
        self.outgoing_tail.get().store(tail, Ordering::Release);
        self.system.fault_point();
        Ok(Some(self.rouse()))
    }

    /// After something was published: wakes the other end if it sleeps.
    #[inline]
    fn rouse(&mut self) -> Rouse {
        fence(Ordering::SeqCst);
        let word = self.their_word.get();
        self.woke = word.load(Ordering::Relaxed) != AWAKE;
        if !self.woke {
            return Rouse::Nothing;
        }
        let slept = word.swap(AWAKE, Ordering::AcqRel);
        self.system.fault_point();
        match slept {
            ON_FUTEX => {
                self.system.wake(word);
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
    #[inline]
    pub fn is_ready(&mut self) -> Result<bool, Broken> {
        let tail = self.incoming_tail.get().load(Ordering::Acquire);
        Ok(self.incoming.available(tail)? > 0)
    }

    /// Takes the next record. `room` is asked for memory of exactly the body's length (the slots
    /// that follow the first, 0 included), and the body is copied there. If `room` returns `None`,
    /// the lane is broken.
    #[inline]
    pub fn take<'b>(
        &mut self,
        room: impl FnOnce(usize) -> Option<&'b mut [u8]>,
    ) -> Result<Option<Taken>, Broken> {
        let tail = self.incoming_tail.get().load(Ordering::Acquire);
        let available = self.incoming.available(tail)?;
        if available == 0 {
            return Ok(None);
        }
        let mut slot = [0; SLOT_BYTES];
        self.view.read(self.incoming_at + u64::from(self.incoming.index(0)) * SLOT, &mut slot);
        let decoded = Record::decode(&slot, self.places.slots);
        let (record, header) = decoded.map_err(|_| Broken("a record in its ring is malformed"))?;
        let slots = u32::from(record.slots);
        if slots > available {
            return Err(Broken("a record claims more slots than were published"));
        }
        let body_bytes = (slots as usize - 1) * SLOT_BYTES;
        let body = room(body_bytes).filter(|body| body.len() == body_bytes);
        let body = body.ok_or(Broken("a record is longer than any answer"))?;
        if body_bytes > 0 {
            let first = self.incoming.index(1);
            let before_end = ((self.places.slots - first) as usize * SLOT_BYTES).min(body_bytes);
            self.view.read(self.incoming_at + u64::from(first) * SLOT, &mut body[..before_end]);
            self.view.read(self.incoming_at, &mut body[before_end..]);
        }
        self.system.fault_point();
        let head = self.incoming.take(slots);
        self.incoming_head.get().store(head, Ordering::Release);
        Ok(Some(Taken { record, header, body_bytes }))
    }

    /// Waits for a record: spins, then sleeps on the futex, at most `sleep_max` in all. False: none
    /// came. `may_spin` is the process's own decision.
    #[inline]
    pub fn wait(&mut self, may_spin: bool, sleep_max: Duration) -> Result<bool, Broken> {
        if self.is_ready()? {
            return Ok(true);
        }
        let apart = self.cpu_differs();
        if !apart && self.yielding.may() && self.give_way()? {
            return Ok(true);
        }
        // An end never spins on the CPU that the other end needs.
        let start = (may_spin && apart).then(|| self.system.now());
        if let Some(start) = start {
            let budget = self.spin.budget(self.woke);
            if !budget.is_zero() && self.spin_for(start, budget)? {
                self.spin.hit();
                return Ok(true);
            }
        }
        let mut slept: Option<Duration> = None;
        let mut left = sleep_max;
        // A peer that keeps clearing the word keeps this end awake, but not for long.
        for _ in 0..SLEEPS_MAX {
            let word = self.my_word;
            word.get().store(ON_FUTEX, Ordering::Relaxed);
            self.system.fault_point();
            fence(Ordering::SeqCst);
            let ready = self.is_ready();
            let in_vain = matches!(ready, Ok(false)) && !self.system.sleep_on(word.get(), ON_FUTEX, left);
            word.get().store(AWAKE, Ordering::Relaxed);
            if ready? || self.is_ready()? {
                self.learn(start);
                return Ok(true);
            }
            if in_vain {
                self.learn(start);
            }
            if in_vain || (self.end == End::Client && self.is_closed()) {
                return Ok(false);
            }
            let since = *slept.get_or_insert_with(|| self.system.now());
            left = sleep_max.saturating_sub(self.system.now().saturating_sub(since));
            if left.is_zero() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// The spin that began at `start` was too short.
    fn learn(&mut self, start: Option<Duration>) {
        if let Some(start) = start {
            let waited = self.system.now().saturating_sub(start);
            self.spin.missed(waited);
        }
    }

    /// Yields the CPU to the other end, which runs on the same. True: a record came meanwhile.
    fn give_way(&mut self) -> Result<bool, Broken> {
        let start = self.system.now();
        let mut ready = false;
        for _ in 0..YIELDS {
            self.system.give_way();
            ready = self.is_ready()?;
            if ready {
                break;
            }
        }
        let took = self.system.now().saturating_sub(start);
        self.yielding.learn(ready, took);
        Ok(ready)
    }

    fn spin_for(&mut self, start: Duration, budget: Duration) -> Result<bool, Broken> {
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.is_ready()? {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if self.system.now().saturating_sub(start) >= budget {
                return Ok(false);
            }
        }
    }

    /// Says that this end sleeps on the socket from now on. False: a record has come, so it does
    /// not sleep.
    pub fn sleep_on_socket(&mut self) -> Result<bool, Broken> {
        self.my_word.get().store(ON_SOCKET, Ordering::Relaxed);
        self.system.fault_point();
        fence(Ordering::SeqCst);
        let ready = self.is_ready();
        if !matches!(ready, Ok(false)) {
            self.wake_up();
        }
        ready.map(|ready| !ready)
    }

    /// This end is awake again.
    pub fn wake_up(&self) {
        self.my_word.get().store(AWAKE, Ordering::Relaxed);
    }

    /// Says that the daemon will post nothing more on this lane; the socket has the reason.
    pub fn close(&self) {
        self.closed.get().store(1, Ordering::Release);
        let word = self.their_word.get();
        if word.swap(AWAKE, Ordering::AcqRel) == ON_FUTEX {
            self.system.wake(word);
        }
    }

    /// Whether the daemon has closed the lane. A client that writes this word itself harms only
    /// itself.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.get().load(Ordering::Acquire) != 0
    }
}
