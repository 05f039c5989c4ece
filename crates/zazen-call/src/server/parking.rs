//! Lanes that wait without a thread, and the threads that serve them again when a bell rings.
//!
//! All idle lanes' sockets are in one epoll set, each armed for one event. Threads wait there, and
//! serve a lane that rings until it is idle again. So thousands of idle clients cost no thread, and
//! a service that blocks holds up its own lane only.
//!
//! Invariants: while lanes are parked, some thread waits for their bells. A lane is in the set only
//! while it is parked.

use rustix::event::{EventfdFlags, epoll};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zazen_core::{Error, Result};

/// Spare threads that wait for bells: they take the next bells without having to be started.
const SPARE_MAX: usize = 2;
/// The number with which the epoll set says that the server is gone; no connection has it.
const THE_END: u64 = u64::MAX;

/// A lane, as far as parking needs it.
pub(crate) trait Parked: Send {
    /// Its connection's number.
    fn number(&self) -> u64;

    /// What its client rings on.
    fn socket(&self) -> Arc<OwnedFd>;

    /// Says that bells are wanted from now on. False: something has come; serve on.
    fn go_cold(&self) -> bool;

    /// Serves calls until none comes for a while: then it may wait without a thread. `None`: it is
    /// over.
    fn serve(self: Box<Self>) -> Option<Box<dyn Parked>>;
}

/// The parked lanes of one server.
pub(crate) struct Parking {
    epoll: OwnedFd,
    /// Readable once the server is gone; all threads see that.
    end: OwnedFd,
    lanes: Mutex<HashMap<u64, Box<dyn Parked>>>,
    /// Threads that wait for a bell.
    waiting: AtomicUsize,
    me: Weak<Parking>,
}

impl Parking {
    pub(crate) fn new() -> Result<Arc<Parking>> {
        let context =
            |errno: rustix::io::Errno| Error::io("make an epoll set for shared memory", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(context)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let end = rustix::event::eventfd(0, flags).map_err(context)?;
        epoll::add(&epoll, &end, epoll::EventData::new_u64(THE_END), epoll::EventFlags::IN)
            .map_err(context)?;
        Ok(Arc::new_cyclic(|me| Parking {
            epoll,
            end,
            lanes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            me: me.clone(),
        }))
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<u64, Box<dyn Parked>>> {
        // No code panics while it holds the lock.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server and its lanes are gone: ends the threads that wait for bells.
    pub(crate) fn end(&self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }

    /// Serves a lane until it is cold, and parks it.
    pub(crate) fn serve(&self, mut lane: Box<dyn Parked>) {
        loop {
            match lane.serve() {
                None => return,
                Some(cold) if cold.go_cold() => {
                    self.park(cold);
                    return;
                }
                Some(busy) => lane = busy,
            }
        }
    }

    fn park(&self, lane: Box<dyn Parked>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            self.spawn();
        }
        let (number, socket) = (lane.number(), lane.socket());
        self.lanes().insert(number, lane);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        let armed = epoll::add(&self.epoll, socket.as_fd(), epoll::EventData::new_u64(number), flags);
        if let Err(errno) = armed {
            tracing::warn!("shm connection {number} closed: it can't be waited for ({errno})");
            let lane = self.lanes().remove(&number);
            drop(lane);
        }
    }

    /// If no thread waits for bells (the system gave none), the calling thread does.
    pub(crate) fn stand_in(&self) {
        let nobody = self.waiting.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if nobody && !self.lanes().is_empty() {
            answer_bells(&self.me);
        } else if nobody {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn spawn(&self) {
        let me = self.me.clone();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let spawned =
            std::thread::Builder::new().name("call-bells".to_owned()).spawn(move || answer_bells(&me));
        if let Err(error) = spawned {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!("no thread to wait for shared memory's bells: {error}");
        }
    }
}

/// A thread's life: it waits for a bell, serves, and waits again. It ends when enough other threads
/// wait, or when the server is gone. It is counted as waiting when it starts.
fn answer_bells(parking: &Weak<Parking>) {
    // The thread holds it: the epoll set lives as long as a thread waits in it.
    let Some(here) = parking.upgrade() else { return };
    loop {
        let mut events = Vec::with_capacity(1);
        let waited = epoll::wait(&here.epoll, rustix::buffer::spare_capacity(&mut events), None);
        let Some(event) = events.first().filter(|_| waited.is_ok()) else { continue };
        let number = event.data.u64();
        if number == THE_END {
            return;
        }
        let lane = here.lanes().remove(&number);
        if here.waiting.fetch_sub(1, Ordering::SeqCst) == 1 {
            here.spawn();
        }
        if let Some(lane) = lane {
            let _ = epoll::delete(&here.epoll, lane.socket().as_fd());
            here.serve(lane);
        }
        if here.waiting.fetch_add(1, Ordering::SeqCst) > SPARE_MAX {
            here.waiting.fetch_sub(1, Ordering::SeqCst);
            return;
        }
    }
}
