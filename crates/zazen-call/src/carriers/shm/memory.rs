//! The daemon's side of shared memory: one budget for all clients, and a region with lanes and a
//! pool for each client.
//!
//! Invariants: granted memory is free again when its [`Grant`] is dropped; memory that a client
//! took for itself is free again when its region is dropped, whoever died where. A grant is memory
//! of its own client's region only.

use crate::carriers::account::Account;
use crate::carriers::shm::grants::{Budget, TRANSFER_MAX, Units};
use crate::carriers::shm::region::Region;
use crate::limits::ShmLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_lane::{Geometry, Source};
use zazen_wire::shm::{LANE_HEAD_BYTES, LanePlaces, Offer, REGION_VERSION, Span};

/// Grants are multiples of this.
const UNIT_BYTES: u64 = 64 << 10;
/// One identity may keep at most a quarter of the budget for itself.
const KEPT_SHARE: u64 = 4;
/// Slots of a ring.
const SLOTS: u32 = 64;

/// How long a call waits for a place. One always comes, since nobody holds a place for long.
/// Memory may not come, so the caller says how long to wait for it.
const TRANSFER_PATIENCE: Duration = Duration::from_secs(2);

/// One daemon's budget of granted bytes.
pub(crate) struct Treasury {
    state: Mutex<State>,
    began: Instant,
    regions: AtomicU64,
    bytes: u64,
}

struct State {
    budget: Budget,
    last_ticket: u64,
    /// Granted tickets whose threads have not looked yet.
    granted: BTreeSet<u64>,
    /// Which thread waits for which ticket.
    waiting: BTreeMap<u64, Thread>,
}

impl Treasury {
    pub(crate) fn new(limits: &ShmLimits) -> Treasury {
        let state = State {
            budget: Budget::new(limits.budget_bytes, limits.transfers_max),
            last_ticket: 0,
            granted: BTreeSet::new(),
            waiting: BTreeMap::new(),
        };
        Treasury {
            state: Mutex::new(state),
            began: Instant::now(),
            regions: AtomicU64::new(0),
            bytes: limits.budget_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes granted now.
    pub(crate) fn granted(&self) -> u64 {
        self.bytes - self.state().budget.free()
    }

    /// Takes `bytes` to keep, if they are free now.
    fn take(&self, bytes: u64) -> bool {
        self.state().budget.try_take(bytes)
    }

    /// Takes `bytes` for a transfer of `client`, when a place is free; the transfer's ticket. Waits
    /// at most `patience` for memory.
    fn begin(&self, client: u64, bytes: u64, patience: Duration) -> Option<u64> {
        let mut state = self.state();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        if state.budget.try_begin(ticket, bytes, self.began.elapsed()) {
            return Some(ticket);
        }
        if patience.is_zero() {
            return None;
        }
        state.budget.ask(client, ticket, bytes);
        state.waiting.insert(ticket, std::thread::current());
        let start = Instant::now();
        let granted = loop {
            self.serve(&mut state);
            if state.granted.remove(&ticket) {
                break true;
            }
            let patience = if state.budget.is_short() { patience } else { TRANSFER_PATIENCE };
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                state.budget.cancel(client, ticket);
                break false;
            }
            drop(state);
            // Nobody is told when a slow transfer loses its place, so a waiting thread looks for
            // itself.
            std::thread::park_timeout(left.min(TRANSFER_MAX));
            state = self.state();
        };
        state.waiting.remove(&ticket);
        // The asks behind this one may have a place now.
        self.serve(&mut state);
        granted.then_some(ticket)
    }

    fn serve(&self, state: &mut State) {
        for ticket in state.budget.serve(self.began.elapsed()) {
            state.granted.insert(ticket);
            if let Some(thread) = state.waiting.get(&ticket) {
                thread.unpark();
            }
        }
    }

    fn end_transfer(&self, ticket: u64) {
        let mut state = self.state();
        state.budget.end_transfer(ticket);
        self.serve(&mut state);
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state();
        state.budget.give_back(bytes);
        self.serve(&mut state);
    }
}

/// One client's region, as the daemon has it.
pub(crate) struct Pool {
    pub(crate) region: Arc<Region>,
    fd: OwnedFd,
    number: u64,
    /// The caller to whom the budget counts it.
    client: u64,
    account: Arc<Account>,
    limits: ShmLimits,
    treasury: Arc<Treasury>,
    state: Mutex<PoolState>,
}

struct PoolState {
    lanes: Vec<bool>,
    units: Units,
    /// Memory that the client took for itself: first unit and count.
    taken: BTreeMap<usize, usize>,
}

impl Pool {
    /// Makes a region for `client`.
    pub(crate) fn create(
        client: u64,
        account: &Arc<Account>,
        limits: &ShmLimits,
        treasury: &Arc<Treasury>,
    ) -> Result<Arc<Pool>> {
        let (fd, region) = Region::create(geometry(limits).region_bytes())?;
        let units = (limits.pool_bytes / UNIT_BYTES) as usize;
        let state = PoolState {
            lanes: vec![false; limits.lanes_max],
            units: Units::new(units),
            taken: BTreeMap::new(),
        };
        Ok(Arc::new(Pool {
            region: Arc::new(region),
            fd,
            number: treasury.regions.fetch_add(1, Ordering::Relaxed) + 1,
            client,
            account: Arc::clone(account),
            limits: limits.clone(),
            treasury: Arc::clone(treasury),
            state: Mutex::new(state),
        }))
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The pool's place in the region.
    pub(crate) fn span(&self) -> Span {
        geometry(&self.limits).pool()
    }

    /// A free lane; `Busy` if there is none. Its counters start at 0, whatever an earlier client
    /// left there.
    pub(crate) fn take_lane(self: &Arc<Pool>) -> Result<LaneSeat> {
        let mut state = self.state();
        let Some(lane) = state.lanes.iter().position(|taken| !taken) else {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "all {} lanes of this caller's region are taken; this one stays on the socket",
                    self.limits.lanes_max
                ),
            ));
        };
        state.lanes[lane] = true;
        drop(state);
        let seat = LaneSeat { pool: Arc::clone(self), lane };
        let working = seat.places().working();
        self.region.populate(working);
        self.region.write(working.at, Source::of(&[0; LANE_HEAD_BYTES as usize]));
        Ok(seat)
    }

    /// Memory for one call's streamed bytes: at most what the region has, and perhaps less than was
    /// asked for.
    pub(crate) fn stage(self: &Arc<Pool>, bytes: u64, patience: Duration) -> Option<Grant> {
        let bytes = bytes.min(self.limits.staging_bytes_max()).next_multiple_of(UNIT_BYTES);
        let units = (bytes / UNIT_BYTES) as usize;
        let first = self.state().units.take(units)?;
        let Some(ticket) = self.treasury.begin(self.client, bytes, patience) else {
            self.state().units.give_back(first, units);
            return None;
        };
        Some(Grant { pool: Arc::clone(self), first, units, ticket: Some(ticket) })
    }

    /// Pool memory for the client's own use, if some is free now.
    pub(crate) fn take_for_client(&self, bytes: u64) -> Result<Span> {
        let short = || {
            Error::new(
                ErrorKind::Busy,
                format!("{bytes} bytes of shared pool memory are not to be had now; use memory of your own"),
            )
        };
        if bytes == 0 || bytes > self.limits.pool_bytes {
            return Err(short());
        }
        let bytes = bytes.next_multiple_of(UNIT_BYTES);
        let units = (bytes / UNIT_BYTES) as usize;
        let mut state = self.state();
        let first = state.units.take(units).ok_or_else(short)?;
        if !self.account.take_shm(bytes, self.limits.budget_bytes / KEPT_SHARE) {
            state.units.give_back(first, units);
            return Err(short());
        }
        if !self.treasury.take(bytes) {
            self.account.give_back_shm(bytes);
            state.units.give_back(first, units);
            return Err(short());
        }
        state.taken.insert(first, units);
        drop(state);
        let span = self.units_span(first, units);
        self.region.populate(span);
        Ok(span)
    }

    /// Takes back a span that the client took; `InvalidArgument` if it took no such span.
    pub(crate) fn give_back(&self, span: Span) -> Result<()> {
        let mut state = self.state();
        let first = span.at.checked_sub(self.span().at).map(|at| (at / UNIT_BYTES) as usize);
        let found = first.and_then(|first| Some((first, *state.taken.get(&first)?)));
        match found {
            Some((first, units)) if self.units_span(first, units) == span => {
                state.taken.remove(&first);
                state.units.give_back(first, units);
                drop(state);
                self.account.give_back_shm(span.bytes);
                self.treasury.give_back(span.bytes);
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} bytes at {} of the pool are not this caller's to give back", span.bytes, span.at),
            )),
        }
    }

    fn units_span(&self, first: usize, units: usize) -> Span {
        Span { at: self.span().at + first as u64 * UNIT_BYTES, bytes: units as u64 * UNIT_BYTES }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let taken: usize = self.state().taken.values().sum();
        self.account.give_back_shm(taken as u64 * UNIT_BYTES);
        self.treasury.give_back(taken as u64 * UNIT_BYTES);
    }
}

fn geometry(limits: &ShmLimits) -> Geometry {
    Geometry {
        lanes: limits.lanes_max as u64,
        slots: SLOTS,
        eager_bytes: limits.eager_bytes,
        pool_bytes: limits.pool_bytes,
    }
}

/// A lane that is taken, and given back when dropped.
pub(crate) struct LaneSeat {
    pub(crate) pool: Arc<Pool>,
    lane: usize,
}

impl LaneSeat {
    pub(crate) fn places(&self) -> LanePlaces {
        geometry(&self.pool.limits).lane(self.lane as u64)
    }

    /// What the client is told.
    pub(crate) fn offer(&self) -> Offer {
        let (pool, limits) = (&self.pool, &self.pool.limits);
        Offer {
            version: REGION_VERSION,
            region: pool.number,
            region_bytes: geometry(limits).region_bytes(),
            lane_at: self.places().at,
            slots: SLOTS,
            eager_bytes: limits.eager_bytes,
            inline_bytes: limits.inline_bytes,
            chunk_bytes: limits.chunk_bytes,
            pool: pool.span(),
        }
    }
}

impl Drop for LaneSeat {
    fn drop(&mut self) {
        self.pool.state().lanes[self.lane] = false;
    }
}

/// Memory granted to a call, given back when dropped.
pub(crate) struct Grant {
    pool: Arc<Pool>,
    first: usize,
    units: usize,
    /// Set while its transfer counts as running.
    ticket: Option<u64>,
}

impl Grant {
    pub(crate) fn span(&self) -> Span {
        self.pool.units_span(self.first, self.units)
    }

    /// All bytes have moved: the next transfer may begin.
    pub(crate) fn end_transfer(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pool.treasury.end_transfer(ticket);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.end_transfer();
        self.pool.state().units.give_back(self.first, self.units);
        self.pool.treasury.give_back(self.span().bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than places, more bytes asked for than there are: each waiting thread is woken,
    /// and all memory comes back.
    #[test]
    fn everybody_who_waits_has_a_turn_and_all_comes_back() {
        const BYTES: u64 = 4 << 20;
        let limits = ShmLimits { budget_bytes: BYTES, transfers_max: 2, ..ShmLimits::default() };
        let treasury = Treasury::new(&limits);
        std::thread::scope(|scope| {
            for client in 0..16 {
                let treasury = &treasury;
                scope.spawn(move || {
                    for nth in 0..200 {
                        let bytes = UNIT_BYTES << ((client + nth) % 6);
                        let ticket = treasury.begin(client, bytes, Duration::from_secs(60));
                        let ticket = ticket.expect("a minute is enough");
                        assert!(treasury.granted() <= BYTES);
                        if nth % 2 == 0 {
                            treasury.end_transfer(ticket);
                            std::thread::yield_now();
                        }
                        // A place that nobody gives back lapses, or ends with the memory.
                        treasury.end_transfer(ticket);
                        treasury.give_back(bytes);
                    }
                });
            }
        });
        assert_eq!(treasury.granted(), 0);
        assert!(treasury.take(BYTES));
    }
}
