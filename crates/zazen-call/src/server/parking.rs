//! Lanes that wait without a thread, and the threads that take them up again when a bell rings.
//!
//! All cold lanes' sockets are in one epoll set, each armed for one event; threads wait there and serve whichever
//! lane rings until that is cold again, so thousands of idle clients cost no thread, and a service that blocks
//! holds up its own lane only. Invariants: while lanes are parked, some thread waits for their bells; a lane is in the set
//! only while it is parked.

use rustix::event::{EventfdFlags, epoll};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zazen_core::{Error, Result};

/// Threads that wait for bells beyond the one that must: they take the next bells without being started first.
const SPARE_MAX: usize = 2;
/// The number by which the epoll set tells that the server is gone; no connection has it.
const THE_END: u64 = u64::MAX;

/// A lane, as far as parking needs it.
pub(crate) trait Parked: Send {
    /// Its connection's number.
    fn number(&self) -> u64;

    /// What its client rings on.
    fn socket(&self) -> Arc<OwnedFd>;

    /// Says that bells are wanted from now on. False: something has come; serve on.
    fn go_cold(&self) -> bool;

    /// Serves calls until none comes for a while: then it may wait without a thread. `None`: it is over.
    fn serve(self: Box<Self>) -> Option<Box<dyn Parked>>;
}

/// The parked lanes of one server.
pub(crate) struct Parking {
    epoll: OwnedFd,
    /// Readable once the server is gone; all threads see it.
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

    /// The server is gone, and all lanes with it: the threads that wait for bells end.
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

    /// If nobody waits for bells, since the system gave no thread for it, this one does.
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

/// A thread's life: waits for bells, serves, waits again; ends when there are others enough, or the server is gone.
/// It is counted as waiting when it starts.
fn answer_bells(parking: &Weak<Parking>) {
    // Held by the thread: the epoll set lives as long as somebody waits in it.
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
