//! Ranks as threads of one process: the collectives of tests, scenarios and benches.
//!
//! A rank that returns an error, panics or leaves early never hangs the others: each rank that
//! waits for it gets an error that names it. If two ranks call different collectives, every rank
//! gets an error.
//!
//! At most as many ranks compute at a time as there are cores, so thousands of ranks need only the
//! working memory of a few. A rank that waits in a collective lets another rank run.

use crate::collectives::{Collectives, two_bit};
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, ErrorKind, Result};

/// Stack of a rank's thread in bytes; nothing here recurses or keeps planes on the stack.
const STACK_BYTES: usize = 1 << 20;

/// Runs `body` once per rank, each on a thread of its own, and returns the results by rank. A panic
/// of a rank is returned as `Unavailable`.
pub fn run<T: Send>(size: usize, body: impl Fn(&ThreadRank) -> Result<T> + Sync) -> Vec<Result<T>> {
    let hub = Arc::new(Hub::new(size));
    let body = &body;
    std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..size)
            .map(|rank| {
                let member =
                    ThreadRank { hub: hub.clone(), rank, round: Cell::new(0), computing: Cell::new(false) };
                let spawned = std::thread::Builder::new()
                    .name(format!("rank-{rank}"))
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || {
                        member.begin();
                        body(&member)
                    });
                // If no thread could be started, the closure is dropped with its rank, so the other
                // ranks learn of it.
                spawned
                    .map_err(|source| Error::io(format!("start a thread for rank {rank} of {size}"), source))
            })
            .collect();
        spawned
            .into_iter()
            .enumerate()
            .map(|(rank, handle)| match handle?.join() {
                Ok(result) => result,
                Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("rank {rank} panicked"))),
            })
            .collect()
    })
}

/// One rank of [`run`].
pub struct ThreadRank {
    hub: Arc<Hub>,
    rank: usize,
    round: Cell<u64>,
    computing: Cell<bool>,
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        state.departed.get_or_insert(self.rank);
        self.pause(&mut state);
        self.hub.changed.notify_all();
    }
}

struct Hub {
    size: usize,
    cores: usize,
    state: Mutex<State>,
    /// A round is complete, or a rank has departed.
    changed: Condvar,
    /// A rank has stopped computing.
    idle: Condvar,
}

struct State {
    /// Contributions to the round that is being collected.
    slots: Vec<Option<Arc<Deposit>>>,
    arrived: usize,
    computing: usize,
    /// The last complete round. It may be overwritten only after all ranks have read it. A round is
    /// complete when every rank has entered it, so every rank has left the round before.
    complete: (u64, Arc<Vec<Arc<Deposit>>>),
    departed: Option<usize>,
}

struct Deposit {
    call: &'static str,
    words: Vec<u64>,
    /// Each block is taken once, by its receiver, or read by all (all-gather).
    blocks: Mutex<Vec<Vec<u8>>>,
}

impl Hub {
    fn new(size: usize) -> Hub {
        let state = State {
            slots: vec![None; size],
            arrived: 0,
            computing: 0,
            complete: (0, Arc::new(Vec::new())),
            departed: None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Hub { size, cores, state: Mutex::new(state), changed: Condvar::new(), idle: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a holder of the lock could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadRank {
    /// Waits for a core.
    fn begin(&self) {
        let mut state = self.hub.lock();
        while state.computing == self.hub.cores {
            state = self.hub.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.computing += 1;
        self.computing.set(true);
    }

    /// Gives its core to another rank.
    fn pause(&self, state: &mut State) {
        if self.computing.replace(false) {
            state.computing -= 1;
            self.hub.idle.notify_one();
        }
    }

    /// The contributions of all ranks to the next round, by rank.
    fn exchange(
        &self,
        call: &'static str,
        words: Vec<u64>,
        blocks: Vec<Vec<u8>>,
    ) -> Result<Arc<Vec<Arc<Deposit>>>> {
        let round = self.round.get() + 1;
        self.round.set(round);
        let mut state = self.hub.lock();
        state.slots[self.rank] = Some(Arc::new(Deposit { call, words, blocks: Mutex::new(blocks) }));
        state.arrived += 1;
        if state.arrived == self.hub.size {
            let all = state.slots.iter_mut().filter_map(Option::take).collect();
            state.complete = (round, Arc::new(all));
            state.arrived = 0;
            self.hub.changed.notify_all();
        }
        self.pause(&mut state);
        while state.complete.0 < round {
            if let Some(rank) = state.departed {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("rank {rank} left before round {round} ({call}); see its own error"),
                ));
            }
            state = self.hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let all = state.complete.1.clone();
        drop(state);
        self.begin();
        let length = all[self.rank].words.len();
        if let Some(rank) = all.iter().position(|other| other.call != call || other.words.len() != length) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "in round {round} rank {} calls {call} with {length} words, rank {rank} calls {} with {}",
                    self.rank,
                    all[rank].call,
                    all[rank].words.len()
                ),
            ));
        }
        Ok(all)
    }

    /// Reduces one piece per rank, then gathers the pieces: each word is combined by one rank only.
    fn allreduce(
        &self,
        call: &'static str,
        values: &mut [u64],
        combine: impl Fn(u64, u64) -> u64,
    ) -> Result<()> {
        let size = self.hub.size;
        let bounds = |rank: usize| values.len() * rank / size;
        let all = self.exchange(call, values.to_vec(), Vec::new())?;
        let (first, end) = (bounds(self.rank), bounds(self.rank + 1));
        let mut piece = all[0].words[first..end].to_vec();
        for other in &all[1..] {
            for (into, from) in piece.iter_mut().zip(&other.words[first..end]) {
                *into = combine(*into, *from);
            }
        }
        drop(all);
        let encoded = piece.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let pieces = self.exchange(call, Vec::new(), vec![encoded])?;
        let mut at = 0;
        for other in pieces.iter() {
            let blocks = other.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            for word in blocks[0].chunks_exact(8) {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                values[at] = u64::from_ne_bytes(bytes);
                at += 1;
            }
        }
        Ok(())
    }
}

impl Collectives for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.hub.size
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_sum", values, u64::wrapping_add)
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_xor", values, |a, b| a ^ b)
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_or", values, |a, b| a | b)
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_two_bit", values, two_bit)
    }
    fn alltoallv(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if send.len() != self.hub.size {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "all-to-all with {} blocks among {} ranks; give one per rank",
                    send.len(),
                    self.hub.size
                ),
            ));
        }
        let all = self.exchange("alltoallv", Vec::new(), send)?;
        let take = |from: &Arc<Deposit>| {
            let mut blocks = from.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut blocks[self.rank])
        };
        Ok(all.iter().map(take).collect())
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.exchange("allgatherv", Vec::new(), vec![mine.to_vec()])?;
        let read =
            |from: &Arc<Deposit>| from.blocks.lock().unwrap_or_else(PoisonError::into_inner)[0].clone();
        Ok(all.iter().map(read).collect())
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mine = if self.rank == 0 { mine.to_vec() } else { Vec::new() };
        let all = self.exchange("broadcast", Vec::new(), vec![mine])?;
        let root = all[0].blocks.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(root[0].clone())
    }
}
