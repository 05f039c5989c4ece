//! The lanes of one client. Each lane is a connection for one call at a time. To the far side, all
//! lanes are the same caller.
//!
//! Invariant: a lane is in the pool only between complete calls.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zazen_call::{Connection, Lanes};
use zazen_core::Result;
use zazen_wire::Message;
use zazen_wire::plugins::{About, plugins_fn};
use zazen_wire::service;

/// How many idle lanes are kept.
const KEPT: usize = 32;
/// A lane whose last call began longer ago than this may have lost its daemon. It is tested before
/// a call depends on it.
const STALE: Duration = Duration::from_millis(50);

/// One connection, and memory that its calls use again.
pub(crate) struct Lane {
    pub(crate) connection: Connection,
    pub(crate) payload: Vec<u8>,
    /// When its last call began.
    used: Instant,
}

/// The lanes of one caller.
pub(crate) struct Pool {
    opener: Lanes,
    call_timeout: Option<Duration>,
    idle: [AtomicPtr<Lane>; KEPT],
}

/// Where this thread looks first, so that it usually gets the lane that it had.
fn hint() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // While a thread ends, any place is as good.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

impl Pool {
    /// A pool that begins with `connection`.
    pub(crate) fn new(mut connection: Connection, call_timeout: Option<Duration>) -> Result<Pool> {
        let opener = connection.lanes()?;
        let pool = Pool { opener, call_timeout, idle: [const { AtomicPtr::new(null_mut()) }; KEPT] };
        pool.give_back(Box::new(Lane { connection, payload: Vec::new(), used: Instant::now() }));
        Ok(pool)
    }

    /// A lane for one call: an idle one, or a new one.
    pub(crate) fn take(&self) -> Result<Box<Lane>> {
        let first = hint();
        for offset in 0..KEPT {
            let place = &self.idle[(first + offset) % KEPT];
            if place.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let lane = place.swap(null_mut(), Ordering::Acquire);
            if !lane.is_null() {
                // SAFETY: only boxes are put there, and the swap made this one ours alone.
                return Ok(unsafe { Box::from_raw(lane) });
            }
        }
        let mut connection = self.opener.open()?;
        connection.set_timeout(self.call_timeout);
        Ok(Box::new(Lane { connection, payload: Vec::new(), used: Instant::now() }))
    }

    /// Keeps a lane for later calls, unless it is dead.
    pub(crate) fn give_back(&self, lane: Box<Lane>) {
        if !lane.connection.is_alive() {
            return;
        }
        let lane = Box::into_raw(lane);
        let first = hint();
        for offset in 0..KEPT {
            let place = &self.idle[(first + offset) % KEPT];
            if place.compare_exchange(null_mut(), lane, Ordering::Release, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        // SAFETY: made above from a box, and put nowhere.
        drop(unsafe { Box::from_raw(lane) });
    }

    /// One call that is not a plug-in's function.
    pub(crate) fn ask(&self, function: u16, payload: &[u8]) -> Result<Vec<u8>> {
        let mut lane = self.take()?;
        let answer = lane.connection.call(service::PLUGINS, function, payload, &[]);
        self.give_back(lane);
        answer.map(|reply| reply.payload)
    }
}

impl Lane {
    /// Whether the far side is still there when a call begins at `now`. It is asked only if the
    /// lane was idle for long.
    pub(crate) fn is_fresh(&mut self, plugin: u16, now: Instant) -> bool {
        let idle = now.saturating_duration_since(std::mem::replace(&mut self.used, now));
        if idle < STALE {
            return true;
        }
        let about = About { plugin, generation: 0 }.encode();
        self.connection.call(service::PLUGINS, plugins_fn::PING, &about, &[]).is_ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for place in &mut self.idle {
            let lane = *place.get_mut();
            if !lane.is_null() {
                // SAFETY: only boxes are put there, and nobody else has the pool.
                drop(unsafe { Box::from_raw(lane) });
            }
        }
    }
}
